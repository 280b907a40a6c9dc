"""Nonlinear mixed effects: population models fitted by federated EM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

from numpy.typing import ArrayLike

from ._callbacks import CallbackSupportMixin, with_callbacks
from ._estimators.fit import fit
from ._federation import Elsewhere
from ._mixed_effects.design import design_again, design_of
from ._mixed_effects.fit_steps import PopulationFit, federation_of
from ._mixed_effects.fitted import FittedMixedEffects
from ._mixed_effects.records import read_clients
from ._mixed_effects.settings import checked_settings
from ._typing import (
    ClientWeights,
    CompressorName,
    ControlInit,
    FilePath,
    Participation,
    Seed,
    SolverName,
    StepSize,
)
from .compression import Compressor
from .models.mixed_effects.conditional import Structure


class FederatedNonlinearMixedEffects(CallbackSupportMixin, FittedMixedEffects):
    """Population model of repeated measurements of subjects at several sites.

    Subject i of a site has the parameters ``ψ_i = h(φ_i)``, where ``φ_i = Bᵀ x_i + η_i`` is normal:
    x_i are 1 and its covariates, and its random effects are ``η_i ~ N(0, Ω)``. Its responses are
    ``y_ij = f(ψ_i, x_ij)`` with a residual error, where f is a function that you give and x_ij are
    regressors, such as time and dose. Maximum likelihood estimates of B, Ω and the residual error
    are those of the pooled subjects.

    In each round, the sites send compressed expectations of their sufficient statistics, and the
    server performs the M-step, as FedEM and VR-FedEM of [1]_ do; this is Algorithm 2 of [2]_ with
    control variates, and with an E-step by quadrature or by Markov chains. What a subject was given
    and when, its responses, its parameters and its residuals stay at the site.

    The sites are simulated on this machine: their messages are computed and counted, not sent.
    Statistics are not private: those of a single subject reveal its parameters.

    Read more in :doc:`/mixed_effects`.

    Parameters
    ----------
    model : callable
        Structural model ``f(parameters, regressors)``, such as those of
        :mod:`skfedem.pharmacokinetics`: the prediction as an array. Both arguments are dicts of
        arrays by name, which broadcast; the observations of a subject are along the first axis of
        the regressors. It has to work elementwise, with NumPy's functions.
    start : dict
        Value of each parameter to start from, in its own units, for a subject whose covariates
        are 0.
    transform : str, tuple or dict, default="log"
        Transform h of all parameters, or a dict from the name of a parameter to its transform:
        "identity", "log" (parameters > 0), ("logit", low, high) (between two bounds) or "probit"
        (between 0 and 1). Parameters that the dict lacks are not transformed.
    covariates : dict, default=None
        From the name of a parameter to the columns of the covariates that act on it, linearly in
        φ. Covariates do not vary within a subject. Give logarithms of weights for power laws.
    covariance_type : {"diag", "full"}, default="diag"
        Whether the random effects of a subject are independent, or may be correlated.
    error : {"constant", "proportional", "combined", "exponential"}, default="constant"
        Residual error: ``y = f + a ε``, ``y = f + b f ε``, ``y = f + a ε + b f ε'`` or ``y = f
        exp(a ε)``.
    subject : str, default="id"
        Column of the subjects' labels, which may be of any type.
    response : str, default="dv"
        Column of the responses. Rows without one are left out of the fit.
    regressors : sequence of str, default=("time", "dose")
        Columns of the regressors.
    e_step : {"quadrature", "mcmc"}, default="quadrature"
        How conditional expectations are computed: by adaptive quadrature, for at most four
        parameters, or by Markov chains [3]_, for any number. Chains take part with all subjects of
        a site, by FedEM: with stochastic approximation, this is SAEM.
    n_nodes : int, default=5
        Number of quadrature nodes for each parameter. 7 is more accurate; with 3, the likelihood
        may decrease.
    n_chains : int or "auto", default="auto"
        Number of Markov chains of each subject; "auto" is 50 divided by the number of subjects,
        rounded up.
    n_exploratory, n_smoothing : int, default=300
        Numbers of rounds with chains: those with a constant step, in whose first half variances
        fall by at most 3 % a round, and those with decreasing steps.
    smoothing_exponent : float in (0.5, 1], default=0.7
        Steps of the smoothing rounds decrease as their number to the power minus this.
    aggregate : {"statistics", "parameters"}, default="statistics"
        What the sites send with chains: statistics, or parameters that they estimate themselves,
        Algorithm 1 of [2]_. The mean of parameters lacks the variance between sites; it is meant
        for comparison.
    n_local : int, default=1
        Number of iterations of SAEM at a site in a round, if parameters are averaged.
    solver : {"fedem", "vr_fedem"}, default="fedem"
        Algorithm to use: FedEM or VR-FedEM, Algorithms 1 and 2 of [1]_. Without ``batch_size``,
        both give the same fit.
    step_size : float in (0, 1], "auto" or callable, default="auto"
        Step size γ of the update ``statistics += step_size * field``. A callable maps the round
        number, counted from 1, to γ. "auto" is 1 if rounds are exact (``omega=0``,
        ``participation=1`` and all rows); otherwise it follows the rule in :doc:`/step_sizes`: γ
        decreases with FedEM's minibatches, and is cut if rounds turn out too noisy. With chains,
        it is 0 in five rounds, then p / (1 + ω) until it decreases.
    control_step : float in [0, 1], or "auto", default="auto"
        Step size α of the control variates. "auto" is 1 / (1 + ω), where ω is the operator's actual
        variance for messages of this length. Much larger steps diverge. 0 with
        ``control_init="zeros"`` is naive FedEM, without control variates.
    control_init : {"field", "zeros"}, default="field"
        Initial control variates: each client's field h_i(Ŝ_0), at the cost of a pass over all rows
        and an uncompressed message per client; or zeros, which is what chains always begin with.
        Exact rounds with α = 1 need neither.
    batch_size : int, default=None
        Minibatch size b: the number of subjects that an active client reads in a round; None for
        all of them.
    replacement : bool, default=True
        Whether to draw minibatches with replacement. If False, every client needs at least
        ``batch_size`` subjects.
    n_inner : int or "auto", default="auto"
        Number k_in of VR-FedEM's inner rounds between two passes over all subjects. "auto" is
        (1 + ω) sqrt(m / 2) / ``participation``, rounded up (Appendix E.2 of [1]_). Here ω is as in
        ``control_step``, and m is the mean number of subjects per client.
    compressor : {"dithering", "block", "rand_k"}, Compressor or None, default="dithering"
        Operator that compresses the messages, see ``skfedem.compression``. Ignored if ``omega=0``.
    omega : float >= 0, default=0.0
        Relative variance ω of the compression: E||Quant(x)||² <= (1 + ω)||x||² for a message x. 0
        disables compression. An operator given by its name uses the coarsest level within this
        bound; a ``Compressor`` object keeps its own level.
    participation : float in (0, 1], or int, default=1.0
        Probability p that a client takes part in a round, or the number of clients that take part,
        drawn without replacement: 1.0 are all clients, 1 is one client.
    client_weights : {"n_samples", "uniform"}, default="n_samples"
        Weight w_i of a client: its share of all subjects, so that the objective is the
        pooled likelihood, or the same weight for every client.
    max_iter : int or None, default=None
        Maximum number of rounds. None is 300, or ``n_exploratory + n_smoothing`` with chains; with
        ``max_epochs`` it sets no limit. 0 returns the initial parameters.
    max_epochs : float, default=None
        Maximum number of epochs: the fit stops after the round that completes them. An epoch is as
        many evaluations of a subject's conditional expectation as there are subjects.
    tol : float, default=1e-5
        Tolerance for convergence, in nats per subject. Exact rounds stop when the log-likelihood
        changes by less than ``tol`` times γ; random rounds stop after three windows of rounds
        without progress, see the user guide. 0 runs all rounds, and so do chains.
    eval_every : int, "auto" or None, default="auto"
        Number of rounds between evaluations of the log-likelihood and the mean field over all
        subjects, for ``history_``; "auto" evaluates once per epoch, or never with chains, like
        None. Exact rounds yield both every time. Evaluations are by quadrature, and not counted in
        bits or epochs.
    random_state : int, RandomState instance or None, default=None
        Pass an int for reproducible results, up to rounding also on other machines. Reordering the
        clients has the same effect as changing the seed.
    warm_start : bool, default=False
        Whether to start at the estimates of the last fit instead of ``start``. With chains, sites
        and subjects whose labels are known go on with their control variates and chains, also
        subjects at another site. Rounds are counted anew.
    n_jobs : int, default=None
        Number of threads that simulate the clients, as in joblib; short rounds use one. The result
        does not depend on it.
    checkpoint : path-like, default=None
        File in which to save the run, so that ``fit(..., resume_from=path)`` can continue it. The
        previous save is kept, with ``.previous`` appended to its name.
    checkpoint_every : int, default=100
        Number of rounds between saves. The last round is saved too, unless the fit is interrupted
        from the keyboard.
    verbose : int, default=0
        Verbosity: 1 prints every tenth round and how a run ended, 2 prints every round.

    Attributes
    ----------
    population_parameters_ : dict of float
        Value of each parameter for a subject whose covariates and random effects are 0.
    coef_ : ndarray of shape (n_covariates, n_parameters)
        B without its first row, the coefficients of φ; 0 where a covariate does not act. Covariates
        are in the order in which ``covariates`` mentions them.
    random_effects_cov_ : ndarray of shape (n_parameters, n_parameters)
        Covariance Ω of the random effects.
    residual_ : dict of float
        Parameters ``a`` and ``b`` of the residual error, as far as it has them.
    standard_errors_ : dict of float
        Standard error of each estimate, from the Fisher information of the model linearised at the
        modes of the subjects' parameters. The estimates are the parameters by their names,
        ``beta_CL_weight`` for the coefficient of a covariate, ``omega2_CL`` for a variance,
        ``cov_V_CL`` for a covariance, and ``residual_a``.
    log_likelihood_ : float
        Log-likelihood of all subjects in nats: by quadrature with at most four parameters, else by
        importance sampling.
    log_likelihood_error_ : float
        Standard error of ``log_likelihood_`` due to sampling; 0 by quadrature.
    shrinkage_ : dict of float
        ``1 - Var(η̂) / ω²`` of each random effect, where η̂ are the modes.
    setup_messages_ : list of SetUpMessage
        What clients sent and received outside of rounds: the name of each message, the number of
        clients, and all their bits up and down; see :doc:`/what_leaves_a_client`.
    history_ : dict of ndarray
        History of the fit: row 0 is the start, row r the state after round r. The entries are
        those of :class:`FederatedGaussianMixture`, without ``weights`` (the log-likelihood is in
        nats per subject), and one for each estimate, by the names of ``standard_errors_``.
    n_iter_ : int
        Number of rounds.
    converged_ : bool
        Whether ``tol`` was reached; with chains, whether the second half of the smoothing rounds
        moved the estimates by less than a quarter of their standard errors.
    n_subjects_, n_observations_, n_missing_ : int
        Numbers of subjects, of responses, and of rows that were left out without one.
    n_clients_ : int
        Number of clients.
    client_ids_ : ndarray of shape (`n_clients_`,)
        Label of each client: the sorted labels from ``clients``, or else its position in the list.
    client_drift_ : ndarray of shape (`n_clients_`,)
        ||V_i||, a measure of how much a client differs from the others.

    See Also
    --------
    skfedem.pharmacokinetics : Structural models, and dosing records.
    skfedem.datasets.load_theophylline : Concentrations of a drug in twelve subjects.

    References
    ----------
    .. [1] A. Dieuleveut, G. Fort, E. Moulines and G. Robin, "Federated Expectation Maximization
       with heterogeneity mitigation and variance reduction", NeurIPS 2021.
    .. [2] "Federated Stochastic Approximation of the EM Algorithm", submitted to NeurIPS 2020.
    .. [3] E. Kuhn and M. Lavielle, "Maximum likelihood estimation in nonlinear mixed effects
       models", Computational Statistics & Data Analysis 49, 2005.

    Examples
    --------
    Theophylline at four sites with three subjects each:

    >>> from skfedem import FederatedNonlinearMixedEffects
    >>> from skfedem.datasets import load_theophylline
    >>> from skfedem.pharmacokinetics import one_compartment_oral
    >>> data = load_theophylline().data
    >>> nlme = FederatedNonlinearMixedEffects(
    ...     one_compartment_oral, start={"ka": 1.0, "V": 20.0, "CL": 0.5}
    ... )
    >>> nlme = nlme.fit(data, clients=(data["id"] - 1) // 3)
    >>> {name: round(value, 2) for name, value in nlme.population_parameters_.items()}
    {'ka': 1.58, 'V': 31.62, 'CL': 2.75}
    """

    __metadata_request__fit = {"clients": True}

    def __init__(
        self,
        model: Structure,
        start: Mapping[str, float],
        *,
        transform: Any = "log",
        covariates: Mapping[str, Sequence[str]] | None = None,
        covariance_type: Literal["diag", "full"] = "diag",
        error: Literal["constant", "proportional", "combined", "exponential"] = "constant",
        subject: str = "id",
        response: str = "dv",
        regressors: Sequence[str] = ("time", "dose"),
        e_step: Literal["quadrature", "mcmc"] = "quadrature",
        n_nodes: int = 5,
        n_chains: int | Literal["auto"] = "auto",
        n_exploratory: int = 300,
        n_smoothing: int = 300,
        smoothing_exponent: float = 0.7,
        aggregate: Literal["statistics", "parameters"] = "statistics",
        n_local: int = 1,
        solver: SolverName = "fedem",
        step_size: StepSize = "auto",
        control_step: float | Literal["auto"] = "auto",
        control_init: ControlInit = "field",
        batch_size: int | None = None,
        replacement: bool = True,
        n_inner: int | Literal["auto"] = "auto",
        compressor: CompressorName | Compressor | None = "dithering",
        omega: float = 0.0,
        participation: Participation = 1.0,
        client_weights: ClientWeights = "n_samples",
        max_iter: int | None = None,
        max_epochs: float | None = None,
        tol: float = 1e-5,
        eval_every: int | Literal["auto"] | None = "auto",
        random_state: Seed = None,
        warm_start: bool = False,
        n_jobs: int | None = None,
        checkpoint: FilePath | None = None,
        checkpoint_every: int = 100,
        verbose: int = 0,
    ) -> None:
        self.model = model
        self.start = start
        self.transform = transform
        self.covariates = covariates
        self.covariance_type = covariance_type
        self.error = error
        self.subject = subject
        self.response = response
        self.regressors = regressors
        self.e_step = e_step
        self.n_nodes = n_nodes
        self.n_chains = n_chains
        self.n_exploratory = n_exploratory
        self.n_smoothing = n_smoothing
        self.smoothing_exponent = smoothing_exponent
        self.aggregate = aggregate
        self.n_local = n_local
        self.solver = solver
        self.step_size = step_size
        self.control_step = control_step
        self.control_init = control_init
        self.batch_size = batch_size
        self.replacement = replacement
        self.n_inner = n_inner
        self.compressor = compressor
        self.omega = omega
        self.participation = participation
        self.client_weights = client_weights
        self.max_iter = max_iter
        self.max_epochs = max_epochs
        self.tol = tol
        self.eval_every = eval_every
        self.random_state = random_state
        self.warm_start = warm_start
        self.n_jobs = n_jobs
        self.checkpoint = checkpoint
        self.checkpoint_every = checkpoint_every
        self.verbose = verbose

    @with_callbacks
    def fit(
        self,
        X: Any,
        y: object = None,
        *,
        clients: str | ArrayLike | None = None,
        resume_from: FilePath | None = None,
    ) -> Self:
        """Fit the population to the subjects of all clients.

        Parameters
        ----------
        X : DataFrame (pandas or polars) or dict of array-likes, or a list of them
            Long tables with a row for each observation: a list with one table for each client; one
            table, with ``clients``; or one table alone, which is a single client. All rows of a
            subject belong to one client.
        y : Ignored
        clients : str or array-like of shape (n_rows,), default=None
            Column of the client labels, or the label of each row, if X is one table.
        resume_from : path-like, default=None
            Checkpoint to resume from, of a run with the same data and parameters. The result is bit
            for bit that of an uninterrupted run, except for an additional evaluation in
            ``history_`` where the saved run ended. ``max_iter``, ``max_epochs``, ``checkpoint``,
            ``checkpoint_every``, ``n_jobs`` and ``verbose`` may differ, and ``random_state`` may be
            None.

        Returns
        -------
        self : FederatedNonlinearMixedEffects

        Raises
        ------
        TypeError, ValueError
            If parameters are invalid; if a column is missing or has invalid values; if covariates
            vary within a subject, or are linearly dependent; if a subject has rows at two clients;
            or if the predictions at ``start`` do not allow for some response. An earlier fit is
            then kept unchanged.
        FileNotFoundError
            If the file ``resume_from`` does not exist.

        Warns
        -----
        ConvergenceWarning
            If ``tol`` was not reached; if steps still left the domain of the M-step in the last
            tenth of the rounds; if noise cut automatic steps to less than a tenth of the planned
            size; if the data do not determine all parameters; or if the fit was interrupted from
            the keyboard.
        UserWarning
            If a ``Compressor`` object is not used, or is coarser than ``omega``; if ``batch_size``
            is larger than every client's number of subjects; or if a checkpoint could not be
            written (the fit then continues).
        """
        design = design_of(self)
        settings = checked_settings(self, design)
        memory = getattr(self, "_memory", None) if self.warm_start else None
        if memory is not None:
            design = design_again(design, self._design)
        data = read_clients(X, clients, design)
        if isinstance(X, Elsewhere):
            federation = X.federation
        else:
            federation = federation_of(data, self.client_weights)
        theta = getattr(self, "_theta", None)
        steps = PopulationFit(settings, design, data, federation, memory, theta)
        return fit(self, steps, X, y, resume_from=resume_from)
