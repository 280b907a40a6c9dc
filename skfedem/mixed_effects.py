"""Nonlinear mixed effects: population models fitted by federated EM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._callbacks import CallbackSupportMixin, with_callbacks
from ._data.features import store
from ._federation import Federation, weights_of_clients
from ._mixed_effects.design import design_of
from ._mixed_effects.fitted import FittedMixedEffects
from ._mixed_effects.outcome import fitted_after, so_far_fitted, warn_of_fit
from ._mixed_effects.records import ClientRecords, read_clients
from ._mixed_effects.report import sums_of_sites
from ._mixed_effects.start import model_of, start_of
from ._parallel import Workers
from ._parameters import check_minibatches, check_number, in_python_numbers
from ._random import seeds_of_runs
from ._typing import (
    ClientWeights,
    CompressorName,
    ControlInit,
    FilePath,
    FloatArray,
    Participation,
    Seed,
    SolverName,
    StepSize,
)
from .clients.local import LocalClients
from .compression import Compressor
from .models.mixed_effects.conditional import Structure
from .models.mixed_effects.subjects import pack
from .solvers._fit_task import FitTask
from .solvers._from_parameters import check_federated_parameters, federated_problem, run_solver
from .solvers._resume import check_checkpoint_parameters, seed_of

# A product rule of more dimensions has too many nodes.
_MOST_DIMENSIONS = 4


class FederatedNonlinearMixedEffects(CallbackSupportMixin, FittedMixedEffects):
    """Population model of repeated measurements of subjects at several sites.

    Subject i of a site has the parameters ``ψ_i = h(φ_i)``, where ``φ_i = Bᵀ x_i + η_i`` is normal:
    x_i are 1 and its covariates, and its random effects are ``η_i ~ N(0, Ω)``. Its responses are
    ``y_ij = f(ψ_i, x_ij)`` with a residual error, where f is a function that you give and x_ij are
    regressors, such as time and dose. Maximum likelihood estimates of B, Ω and the residual error
    are those of the pooled subjects.

    In each round, the sites send compressed expectations of their sufficient statistics, and the
    server performs the M-step, as FedEM and VR-FedEM of [1]_ do; this is Algorithm 2 of [2]_ with
    an E-step by quadrature and with control variates. What a subject was given and when, its
    responses, its parameters and its residuals stay at the site.

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
    n_nodes : int, default=5
        Number of quadrature nodes for each parameter; at most four parameters are possible. 7 is
        more accurate; with 3, the likelihood may decrease.
    solver : {"fedem", "vr_fedem"}, default="fedem"
        Algorithm to use: FedEM or VR-FedEM, Algorithms 1 and 2 of [1]_. Without ``batch_size``,
        both give the same fit.
    step_size : float in (0, 1], "auto" or callable, default="auto"
        Step size γ of the update ``statistics += step_size * field``. A callable maps the round
        number, counted from 1, to γ. "auto" is 1 if rounds are exact (``omega=0``,
        ``participation=1`` and all rows); otherwise it follows the rule in :doc:`/step_sizes`: γ
        decreases with FedEM's minibatches, and is cut if rounds turn out too noisy.
    control_step : float in [0, 1], or "auto", default="auto"
        Step size α of the control variates. "auto" is 1 / (1 + ω), where ω is the operator's actual
        variance for messages of this length. Much larger steps diverge. 0 with
        ``control_init="zeros"`` is naive FedEM, without control variates.
    control_init : {"field", "zeros"}, default="field"
        Initial control variates: each client's field h_i(Ŝ_0), at the cost of a pass over all rows
        and an uncompressed message per client; or zeros. Exact rounds with α = 1 need neither.
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
    max_iter : int or None, default=300
        Maximum number of rounds. 0 returns the initial parameters; None sets no limit and requires
        ``max_epochs``.
    max_epochs : float, default=None
        Maximum number of epochs: the fit stops after the round that completes them. An epoch is as
        many evaluations of a subject's conditional expectation as there are subjects.
    tol : float, default=1e-5
        Tolerance for convergence, in nats per subject. Exact rounds stop when the log-likelihood
        changes by less than ``tol`` times γ; random rounds stop after three windows of rounds
        without progress, see the user guide. 0 runs all rounds.
    eval_every : int, "auto" or None, default="auto"
        Number of rounds between evaluations of the log-likelihood and the mean field over all
        subjects, for ``history_``; "auto" evaluates once per epoch, None never. Exact rounds yield
        both every time. Evaluations are not counted in bits or epochs.
    random_state : int, RandomState instance or None, default=None
        Pass an int for reproducible results, up to rounding also on other machines. Reordering the
        clients has the same effect as changing the seed.
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
        Log-likelihood of all subjects in nats, by quadrature.
    shrinkage_ : dict of float
        ``1 - Var(η̂) / ω²`` of each random effect, where η̂ are the modes.
    history_ : dict of ndarray
        History of the fit: row 0 is the start, row r the state after round r. The entries are
        those of :class:`FederatedGaussianMixture`, without ``weights`` (the log-likelihood is in
        nats per subject), and one for each estimate, by the names of ``standard_errors_``.
    n_iter_ : int
        Number of rounds.
    converged_ : bool
        Whether ``tol`` was reached.
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

    population_parameters_: dict[str, float]
    coef_: FloatArray
    random_effects_cov_: FloatArray
    residual_: dict[str, float]
    log_likelihood_: float
    history_: dict[str, NDArray[Any]]
    n_iter_: int
    converged_: bool
    n_subjects_: int
    n_observations_: int
    n_missing_: int
    n_clients_: int
    client_ids_: NDArray[Any]
    client_drift_: FloatArray

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
        n_nodes: int = 5,
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
        max_iter: int | None = 300,
        max_epochs: float | None = None,
        tol: float = 1e-5,
        eval_every: int | Literal["auto"] | None = "auto",
        random_state: Seed = None,
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
        self.n_nodes = n_nodes
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
        self._check_parameters()
        settings = in_python_numbers(self)
        design = design_of(settings)
        data = read_clients(X, clients, design)
        federation = _federation_of(data, settings.client_weights)
        check_minibatches(settings, federation.lengths, data.ids, "subjects")
        (seed,) = seeds_of_runs(self.random_state, 1)
        task = FitTask(self, X, y, settings.max_iter)
        model = model_of(design, data, federation, settings.n_nodes)
        seed = seed_of(settings, seed, resume_from)
        problem = federated_problem(settings, model, federation.sizes, seed)
        start = start_of(design, model, data, federation)
        with Workers(self.n_jobs) as workers:
            sites = LocalClients(federation, workers)
            tasks = task.begin_start(
                lambda run: so_far_fitted(design, data, run.server.parameters, run.n_rounds)
            )
            result = run_solver(settings, problem, start, sites, resume_from, tasks)
            sums = sums_of_sites(model, federation, result.server.parameters, workers)
            drift = np.sqrt((sites.controls**2).sum(axis=1)) if sites.controls.size else 0.0
        fitted = fitted_after(design, data, result, sums, np.broadcast_to(drift, len(data.ids)))
        store(self, {}, **fitted, _n_nodes=settings.n_nodes)
        task.end()
        warn_of_fit(settings, problem, result)
        return self

    def _check_parameters(self) -> None:
        design = design_of(self)
        hint = "With 7, the likelihood is more accurate than with 5."
        check_number("n_nodes", self.n_nodes, kind=Integral, low=1, hint=hint)
        if len(design.names) > _MOST_DIMENSIONS:
            raise ValueError(
                f"Expected at most {_MOST_DIMENSIONS} parameters, got {len(design.names)}: the "
                "number of quadrature nodes is n_nodes to this power. Fix some in the model."
            )
        check_federated_parameters(self)
        check_checkpoint_parameters(self)


def _federation_of(data: ClientRecords, client_weights: ClientWeights) -> Federation:
    """Subjects of all clients, a row each."""
    lengths = data.offsets[1:] - data.offsets[:-1]
    return Federation(
        pack(data.subjects), data.offsets, weights_of_clients(lengths, client_weights)
    )
