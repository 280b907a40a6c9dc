"""Gaussian mixtures fitted by federated EM."""

from __future__ import annotations

from numbers import Integral
from typing import Any, Literal, Self, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import validate_data

from ._callbacks import CallbackSupportMixin, FitTask, with_callbacks
from ._fitted_mixture import FittedMixture
from ._input.clients import (
    check_clients,
    check_columns_of_fit,
    check_enough_rows,
    check_minibatches,
    federation_of,
    first_table,
    store,
)
from ._input.sample_weight import without_equal_weights
from ._mixture_outcome import so_far_fitted, warn_of_fit
from ._mixture_runs import best_run, new_runs, next_run
from ._mixture_stream import first_call, next_call, read_call
from ._parallel import Workers
from ._parameters import (
    check_choice,
    check_number,
    check_switch,
    in_python_numbers,
    unfitted,
)
from ._random import seeds_of_runs
from ._typing import (
    ClientsLike,
    ClientWeights,
    CompressorName,
    ControlInit,
    CovarianceType,
    FilePath,
    FloatArray,
    InitParams,
    IntArray,
    LabelsByClient,
    OneTable,
    RowWeights,
    Seed,
    SolverName,
    StepSize,
    available_if,
)
from .compression import Compressor
from .models.gaussian_mixture import COVARIANCE_TYPES
from .models.mixture_assignment import INIT_PARAMS
from .models.mixture_given import check_start
from .solvers._memory import memory_of, rows_that_matter
from .solvers._options import SOLVERS, check_federated_parameters
from .solvers._resume import check_checkpoint_parameters


def _reads_rows_once(estimator):
    """Whether ``partial_fit`` can be had."""
    if estimator.solver != "fedem":
        raise AttributeError(
            f'Expected solver="fedem" for partial_fit, got {estimator.solver!r}: variance '
            "reduction reads rows again, and those of a stream are gone."
        )
    return True


class FederatedGaussianMixture(CallbackSupportMixin, FittedMixture):
    """Gaussian mixture fitted to the rows of several clients without pooling them.

    In each round, the active clients send compressed expectations of their sufficient statistics
    and the server does the M-step. This is FedEM or, with variance reduction on each client,
    VR-FedEM. With the default parameters it is EM on the pooled rows, and gives the fit that
    scikit-learn's ``GaussianMixture`` gives from the same start.

    Clients are simulated on this machine. What a client would send is computed, including its
    encoded length. Clients send statistics, not rows, unless ``init_params`` says otherwise; but
    the statistics of one row are that row. A client with a single row sends it as its mean, before
    the first round, and a client that has a single row in some component of the first assignment
    sends that row, or both of two rows with "full" covariances. The estimator, and so a pickle of
    it, keeps the clients' control variates, which are statistics of each client.

    Read more in :doc:`/user_guide`.

    Parameters
    ----------
    n_components : int, default=1
        Number of components, G.
    covariance_type : {"full", "tied", "diag", "spherical"}, default="full"
        One covariance matrix per component, one for all components, one diagonal matrix per
        component, or one variance per component.
    fixed_covariance : array-like of shape (n_features, n_features), default=None
        A known covariance, shared by the components and not estimated; needs
        ``covariance_type="tied"``.
    solver : {"fedem", "vr_fedem"}, default="fedem"
        Algorithm 1 or Algorithm 2 of [1]_. Without ``batch_size``, both give the same fit. VR-FedEM
        keeps three vectors per client where FedEM keeps one.
    step_size : float in (0, 1], "auto" or callable, default="auto"
        γ of ``statistics += step_size * field``. A callable maps the round, counted from 1, to γ.
        "auto" is 1 where a round is exact (``omega=0``, ``participation=1``, all rows). Otherwise
        it follows from ``omega``, ``participation``, ``batch_size`` and the number of clients, by a
        rule found by measurement (see :doc:`/step_sizes`). With FedEM's minibatches it decreases
        from round to round, and it is shortened if rounds prove too random for it.
    control_step : float in [0, 1], or "auto", default="auto"
        Step α of the control variates; "auto" is 1 / (1 + ω), with the ω that the operator has for
        messages of this length, which is often less than the parameter ``omega``; it is the largest
        with which the theorems hold, and far above it control variates diverge. In streams "auto"
        is a tenth of it, as a client has new rows each time. With 0 and ``control_init="zeros"``
        there are no control variates: this is naive FedEM. With 0 alone they stay the fields of the
        start, which is neither FedEM nor naive FedEM.
    control_init : {"field", "zeros"}, default="field"
        Control variates before the first round: each client's field h_i(Ŝ_0) (at the parameters
        that were given, if any), which takes one pass over all rows and one uncompressed message
        per client; or zero. Exact rounds with α = 1 need neither. Streams begin with zeros.
    batch_size : int, default=None
        Number b of rows that an active client reads in a round; None for all of its rows.
    replacement : bool, default=True
        Whether a minibatch may hold a row twice. If False, no client may have fewer than
        ``batch_size`` rows.
    n_inner : int or "auto", default="auto"
        Length k_in of VR-FedEM's inner loop: rounds between two passes over all rows. "auto" is
        (1 + ω) sqrt(m / 2) divided by ``participation``, with the operator's own ω, as in
        ``control_step``, and m the mean number of rows of a client; it does not depend on b. The
        passes then cost as much as the minibatches if b is that of Theorem 3,
        sqrt(m / 2) / (1 + ω) (Appendix E.2 of [1]_). For another b, m / (2 b) divided by
        ``participation`` makes the two costs equal. After an automatic step that had to be
        shortened, and to see whether a fit has converged, a new loop begins at once.
    compressor : {"dithering", "block", "rand_k"}, Compressor or None, default="dithering"
        Operator that compresses the messages, one of ``skfedem.compression``. Ignored with
        ``omega=0``.
    omega : float, default=0.0
        Relative variance ω of the compression, E||Quant(x)||² <= (1 + ω)||x||², where x is a
        message in the units of the components, in which the noise of rows is alike in all
        directions. Operators named by a string take the coarsest level that satisfies this bound. A
        ``Compressor`` object with a level of its own keeps that level, with a warning if its ω is
        larger. 0 sends everything uncompressed.
    participation : float in (0, 1], default=1.0
        Probability p that a client takes part in a round.
    client_weights : {"n_samples", "uniform"}, default="n_samples"
        Weight w_i of a client: its share of all rows, which makes the objective the pooled
        likelihood, or the same for every client.
    max_iter : int or None, default=100
        Largest number of rounds; None for no bound, which needs ``max_epochs``.
    max_epochs : float, default=None
        Stop after the round in which this many epochs are complete. An epoch is as many evaluations
        of a row's conditional expectation as there are rows.
    tol : float, default=1e-3
        Tolerance in nats per row. With exact rounds, the fit stops when the log-likelihoods of two
        rounds in a row differ by less than ``tol`` times the step size. With other rounds, it stops
        when the M-step's objective gains less than half of ``tol`` over each of three sweeps in a
        row, where a sweep is the rounds whose step sizes add up to 1, at least ten, in which at
        least as many messages came as there are clients. (Half, as the log-likelihood gains twice
        as much along a plateau.) Very noisy rounds, of ω = 8 and p = 0.3 say, may still stop a
        little sooner than exact ones do; 1e-5 is safer. With VR-FedEM's minibatches a pass over all
        rows has to confirm it: a new outer loop begins for this.
    reg_covar : float, default=1e-6
        Added to every estimated variance, in squared units of the features. Where the rounding of
        second moments, 64 eps in standard units, may be larger, it is allowed for as well; a
        constant feature has no other unit than its own. 0 adds nothing, and singular covariances
        then raise ValueError: those of constant features (except with "spherical") and, with "full"
        and "tied", of linearly dependent ones.
    n_init : int, default=1
        Number of starts. The fit with the largest log-likelihood is kept; ``history_``, bits
        included, is that of its start alone.
    init_params : {"kmeans", "k-means++", "random_from_data", "random"}, default="kmeans"
        How a start is found. "kmeans": each client (of at most 128, drawn by their weights)
        clusters its rows and sends the centroids of two or more different rows with their counts,
        and the server clusters those; a client's only row is its mean, which the server has been
        told. A value that many rows share, such as the zeros of many a table, is sent as the mean
        of its copies and the nearest other row. The order of a client's rows does not
        matter, nor whether a row is repeated or has a weight; nor does it for "k-means++".
        Where there are fewer centroids than components, or for "k-means++" fewer different rows,
        the missing centres are drawn from the normal distribution with the mean and the variances
        of all rows; ``n_init`` tries several. A client with more than 131,072 rows clusters a
        random sample of this size, and "k-means++" uses such a sample of all rows.
        **"random_from_data" reveals** ``n_components`` **rows to the server, "k-means++" also
        those that it tries**: 2 + log(``n_components``), rounded down, for each centre but one.
        With these three, every row is then assigned to its nearest centre. With "random", clients
        draw posterior probabilities.
    weights_init : array-like of shape (n_components,), default=None
        Initial weights.
    means_init : array-like of shape (n_components, n_features), default=None
        Initial means. Weights and covariances that are not given come from the rows nearest to each
        mean: their share, and their scatter about it.
    precisions_init : array-like, default=None
        Initial precisions, of the shape of ``precisions_``.
    eval_every : int, "auto" or None, default="auto"
        Rounds between two evaluations of log-likelihood and mean field over all rows, for
        ``history_``; "auto" is once an epoch. Exact rounds yield both, and every one of them is in
        ``history_``. None: no evaluation there, not even at the start and the end; with
        ``control_init="zeros"``, or after a warm start, a fit of random rounds that ended below its
        start is then not warned of. Evaluations serve the experimenter: they count neither as bits
        nor as epochs.
    random_state : int, RandomState instance or None, default=None
        Pass an int for the same fit every time, and on other machines up to rounding. What a client
        draws depends only on the seed, the round and its position among the clients (in a stream,
        among those who take part). So reordering the clients changes the fit, except (up to
        rounding) in exact rounds from a given start.
    warm_start : bool, default=False
        Go on from the last fit: from its statistics Ŝ, its parameters and, for clients that are
        known by their label (by their position in a list), their control variates V_i, in its
        standard units. New clients begin with V_i = 0, and those that have left are forgotten;
        labels of another kind (numbers before, text now) are refused. ``n_init``,
        ``weights_init``, ``means_init`` and ``precisions_init`` do not count then. No statistic of
        the rows is computed for this, except the second moment for "tied" covariances and where
        features were constant or linearly dependent. The count of rounds goes on, for ``step_size``
        and for all random draws, so that with the same data and the same integer ``random_state``,
        two fits of k rounds with ``n_init=1`` equal one of 2k.
    n_jobs : int, default=None
        Number of threads that simulate clients, as in joblib. They are used where rounds are long
        enough for threads to pay off; inside a parallel search, there is only one. The fit does not
        depend on it.
    checkpoint : path-like, default=None
        File in which the run is saved regularly, so that ``fit(..., resume_from=path)`` can go on
        from it. The previous save is kept beside it, with ``.previous`` appended to its name. A
        file holds one run, and needs ``n_init=1``: in a search, that of the fit that was the last
        to save; with ``warm_start``, that of the fit before until the next one saves for the first
        time.
    checkpoint_every : int, default=100
        Rounds between two saves. The last round is saved as well, unless the fit is stopped from
        the keyboard: the file then holds the last regular save, if there was one.
    verbose : int, default=0
        1 prints every tenth round and how a run ended, 2 every round.

    Attributes
    ----------
    weights_ : ndarray of shape (n_components,)
        Weights of the components.
    means_ : ndarray of shape (n_components, n_features)
        Means.
    covariances_ : ndarray
        Covariances, of shape (n_components, n_features, n_features) if "full", (n_features,
        n_features) if "tied", (n_components, n_features) if "diag", (n_components,) if "spherical".
    precisions_, precisions_cholesky_ : ndarray
        Inverses of the covariances and their Cholesky factors, as in scikit-learn.
    n_iter_ : int
        Number of rounds of the last ``fit``, and of the calls of ``partial_fit`` since.
    converged_ : bool
        Whether ``tol`` was reached; a stream never converges.
    lower_bound_ : float
        Log-likelihood in nats per row, with clients weighted by ``client_weights``. If rounds are
        exact, it is that of the last E-step, as in scikit-learn; otherwise that of the fit. In a
        stream, that of the last rows, under the parameters that had not seen them. NaN if it was
        stopped from the keyboard while this was computed.
    lower_bounds_ : list of float
        The log-likelihoods that were computed on the way.
    history_ : dict of ndarray
        What happened, row 0 being the start and row r the state after round r: ``round``,
        ``epoch``, ``log_likelihood`` (nats per row, weighted as ``lower_bound_``),
        ``field_sq_norm`` (||H||², the server's estimate of the field in this round),
        ``mean_field_sq_norm`` (||h(Ŝ)||²; in row 0, at the parameters that were given, if any;
        where no statistic gives those, NaN, like ``field_sq_norm`` in row 1),
        ``step_size`` (γ as taken, after the safeguard), ``n_active``, ``uplink_bits``,
        ``downlink_bits`` (of this round, all clients together), ``safeguarded`` (how often the step
        was halved, or rare components were left as they were, to stay in the domain of the M-step),
        and ``weights`` of shape (n_rows, n_components). NaN where not evaluated. Squared norms are
        those of statistics in standard units (rows whitened, or scaled, by the moments of all
        rows).
    n_clients_ : int
        Number of clients.
    client_ids_ : ndarray of shape (`n_clients_`,)
        Label of each client: sorted labels with ``clients=``, else positions in the list. After
        ``partial_fit``, in the order in which they joined.
    new_client_ids_ : ndarray
        Labels of the clients that were new in the last call of ``partial_fit``.
    client_drift_ : ndarray of shape (`n_clients_`,)
        ||V_i||, a measure of how unlike the others a client is, in the standard units of
        ``history_``. With a small ``control_step``, or after few rounds, V_i is still on its way to
        the client's field, or 0.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, if the data had string names.

    See Also
    --------
    sklearn.mixture.GaussianMixture : The same model on pooled rows.
    skfedem.datasets.split_clients : Spreads the rows of one table over clients.

    References
    ----------
    .. [1] A. Dieuleveut, G. Fort, E. Moulines and G. Robin, "Federated Expectation Maximization
       with heterogeneity mitigation and variance reduction", NeurIPS 2021.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedem import FederatedGaussianMixture
    >>> rng = np.random.default_rng(0)
    >>> clients = [rng.normal(-4, 1, size=(50, 2)), rng.normal(4, 1, size=(80, 2))]
    >>> gm = FederatedGaussianMixture(n_components=2, random_state=0).fit(clients)
    >>> np.sort(gm.weights_).round(3)
    array([0.385, 0.615])
    >>> [len(labels) for labels in gm.predict(clients)]
    [50, 80]
    """

    weights_: FloatArray
    means_: FloatArray
    covariances_: FloatArray
    precisions_: FloatArray
    precisions_cholesky_: FloatArray
    converged_: bool
    n_iter_: int
    lower_bound_: float
    lower_bounds_: list[float]
    history_: dict[str, NDArray[Any]]
    client_drift_: FloatArray
    new_client_ids_: NDArray[Any]
    n_clients_: int
    client_ids_: NDArray[Any]
    n_features_in_: int
    feature_names_in_: NDArray[Any]

    __metadata_request__fit = {"clients": True, "sample_weight": True}
    __metadata_request__partial_fit = {"clients": True, "sample_weight": True}
    __metadata_request__score = {"sample_weight": True}

    def __init__(
        self,
        n_components: int = 1,
        *,
        covariance_type: CovarianceType = "full",
        fixed_covariance: ArrayLike | None = None,
        solver: SolverName = "fedem",
        step_size: StepSize = "auto",
        control_step: float | Literal["auto"] = "auto",
        control_init: ControlInit = "field",
        batch_size: int | None = None,
        replacement: bool = True,
        n_inner: int | Literal["auto"] = "auto",
        compressor: CompressorName | Compressor | None = "dithering",
        omega: float = 0.0,
        participation: float = 1.0,
        client_weights: ClientWeights = "n_samples",
        max_iter: int | None = 100,
        max_epochs: float | None = None,
        tol: float = 1e-3,
        reg_covar: float = 1e-6,
        n_init: int = 1,
        init_params: InitParams = "kmeans",
        weights_init: ArrayLike | None = None,
        means_init: ArrayLike | None = None,
        precisions_init: ArrayLike | None = None,
        eval_every: int | Literal["auto"] | None = "auto",
        random_state: Seed = None,
        warm_start: bool = False,
        n_jobs: int | None = None,
        checkpoint: FilePath | None = None,
        checkpoint_every: int = 100,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.covariance_type = covariance_type
        self.fixed_covariance = fixed_covariance
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
        self.reg_covar = reg_covar
        self.n_init = n_init
        self.init_params = init_params
        self.weights_init = weights_init
        self.means_init = means_init
        self.precisions_init = precisions_init
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
        X: ClientsLike,
        y: object = None,
        *,
        clients: ArrayLike | None = None,
        sample_weight: RowWeights | None = None,
        resume_from: FilePath | None = None,
    ) -> Self:
        """Fit the mixture to the rows of all clients.

        Parameters
        ----------
        X : list of array-likes, or array-like of shape (n_samples, n_features)
            One table (n_i, n_features) for each client; or one table with ``clients``; or one table
            alone, which is one client.
        y : Ignored
            By scikit-learn's convention. ``fit(X, labels)`` takes the labels for it and sees one
            client: write ``fit(X, clients=labels)``.
        clients : array-like of shape (n_samples,), default=None
            Client label of each row of X, when X is one table.
        sample_weight : array-like of shape (n_samples,), or a list of them, default=None
            Weight of each row: an array for one table, or a list with one array for each client for
            a list. Rows of weight zero are left out. Only ratios of weights matter: an integer
            weight is equivalent to repeating the row. See Notes.
        resume_from : path-like, default=None
            Checkpoint of the same run, with the same data and parameters, to go on from. The fit is
            bit for bit that of an uninterrupted run, except that ``history_`` has an evaluation
            where the saved run ended. ``max_iter``, ``max_epochs``, ``checkpoint``,
            ``checkpoint_every``, ``n_jobs``, ``verbose`` and ``warm_start`` may differ, and
            ``random_state`` may be None.

        Returns
        -------
        self : FederatedGaussianMixture

        Raises
        ------
        TypeError, ValueError
            For invalid data or parameters; nothing is fitted then, and an earlier fit is kept.
        FileNotFoundError
            If there is no checkpoint at ``resume_from``.

        Warns
        -----
        ConvergenceWarning
            When ``tol`` was not reached; when steps still left the domain of the M-step in the last
            tenth of the rounds; when noise cut automatic steps to less than a tenth of their plan;
            when, in random rounds, components were left with less than half the weight of a row or
            the log-likelihood ended well below that of the start; or when the fit was stopped from
            the keyboard.
        UserWarning
            For a ``Compressor`` object that is not used, or is coarser than ``omega``; for
            covariances that rounding has widened, because rows lie too far apart for them; for a
            ``batch_size`` above the number of rows of every client; for a checkpoint that could not
            be written, which ends no fit.

        Notes
        -----
        With weights v_j of rows, s̄_i is ``Σ_j v_j s̄_ij / Σ_j v_j``, the log-likelihood likewise,
        and with ``client_weights="n_samples"`` w_i is the client's share of all weight. Minibatches
        draw rows in proportion to their weights, with replacement only. The fit equals that of
        repeated rows, in any order; with minibatches, in the order of the weighted rows. Starts of
        "random_from_data" and "random" are others, as they draw for each row that is given; so are
        those from a sample of more than 131,072 rows. Epochs, and with them ``n_inner="auto"``,
        count the rows that are given; so does the automatic step size if there are many clients and
        their messages are compressed or they may be away.
        """
        self._check_parameters()
        settings = in_python_numbers(unfitted(self))
        memory = self._last_memory() if self.warm_start else None
        if memory is not None:
            check_columns_of_fit(self, X)
        data = check_clients(settings, X, clients, sample_weight)
        data, row_weight = without_equal_weights(data)
        check_enough_rows(data, settings.n_components)
        federation = federation_of(data, self.client_weights)
        check_minibatches(settings, federation.lengths, data.ids, "rows", data.sample_weight)
        given = check_start(settings, settings.n_features_in_, warm=memory is not None)
        seeds = seeds_of_runs(self.random_state, 1 if memory else self.n_init)
        self._check_one_run(resume_from, len(seeds))
        digest = rows_that_matter(federation, SOLVERS[settings.solver])
        task = FitTask(self, X, y, settings.max_iter, sample_weight, len(seeds))
        with Workers(self.n_jobs) as workers:
            if memory is None:
                problem, start = new_runs(settings, federation, given)
            else:
                problem, start = next_run(settings, data.ids, federation, given, memory)

            def so_far(run):
                fitted = so_far_fitted(problem.model, run.server, run.n_rounds, settings)
                return {**fitted, "n_clients_": len(data.ids), "client_ids_": data.ids.copy()}

            best = best_run(
                settings,
                problem,
                start,
                seeds,
                workers,
                resume_from,
                lambda: task.begin_start(so_far),
            )
        after = memory_of(data.ids, problem, best.server, best.states, best.gains, digest)
        after = after._replace(row_weight=row_weight)
        history = {**best.history, "weights": best.trace}
        self._store(after, history, best.criteria, problem, settings, converged_=best.converged)
        self.__dict__.pop("new_client_ids_", None)  # of an earlier stream
        task.end()
        warn_of_fit(settings, problem, best)
        return self

    @available_if(_reads_rows_once)
    def partial_fit(
        self,
        X: ClientsLike,
        y: object = None,
        *,
        clients: ArrayLike | None = None,
        sample_weight: RowWeights | None = None,
    ) -> Self:
        """Go on with the next rows of a stream.

        Each call is a round of FedEM on its rows, which after the first call are read once: the
        online case of assumption A7 of the paper. With ``batch_size``, a call is several rounds,
        each on the next ``batch_size`` rows of each client. The first call finds the standard units
        and a start from its rows and fits these, before its own round; give it enough of them, and
        more than there are features: with fewer, "full" covariances may be far too large for tens
        of calls. A call after ``fit`` goes on from the fit. A call of ``fit`` begins anew, unless
        ``warm_start=True``; for a client that joins a finished fit, whose rows and those of the
        others can still be read, ``fit`` all of them with that: a call with the newcomer's rows
        alone moves the fit by more than their share.

        Parameters
        ----------
        X, y, clients, sample_weight
            As in ``fit``. Clients are known by their labels (by their positions in a list).

        Returns
        -------
        self : FederatedGaussianMixture

        Raises
        ------
        TypeError, ValueError
            For invalid data or parameters; what was learnt before is kept.
        AttributeError
            With ``solver="vr_fedem"``: variance reduction reads rows again.

        Notes
        -----
        Known clients without rows in a call, and those that by ``participation`` take no part in a
        round, keep their V_i. V speaks for them, and what the others send is divided by the others'
        share of all weight (not by ``participation``, as in ``fit``); a round of nobody changes
        nothing. New clients begin with V_i = 0; they are listed in ``new_client_ids_``. With
        ``client_weights="n_samples"``, w_i is the client's share of all rows so far; "uniform"
        gives all known clients the same weight.

        ``step_size="auto"`` is the share of the rows that a round reads in all that were read so
        far (rows, not their weights), to the power 0.65, or less with compression or few rows. A
        number is a constant step, which forgets old rows and so follows a stream that changes; a
        callable gets the round, counted on from call to call. Where less than the share
        ``participation`` of the weight in a round answers, steps of all kinds are as much shorter.

        A stream starts at the best of ``n_init`` fits to all rows of the first call, by FedEM with
        all clients: EM, but for the compression of its messages. ``max_iter`` and ``max_epochs``
        bound the rounds of a fit, and it stops at a tenth of ``tol``, since a stream has a long way
        from a plateau. Starts stay as they are where ``means_init`` is given, where the call has
        fewer than ``4 * n_components * n_features`` rows (whatever their weights), which a fit
        would overfit, with ``max_iter=0``, and where a covariance would become singular with
        ``reg_covar=0``. What the best fit sends is in row 0 of ``history_``; its rounds count
        neither there nor in ``n_iter_``.

        The standard units are those of the first call; for features that were constant or linearly
        dependent, those of the first call in which they vary. "tied" covariances, unless one is
        given as ``fixed_covariance``, need the scatter of the rows about the means, which clients
        send in every round, uncompressed.

        A stream warns of a ``Compressor`` that is not used or coarser than ``omega``, but not of
        how the fit goes: look at ``safeguarded``, ``step_size`` and ``weights`` in ``history_``.
        The rows of the first call count for the start as well, ``participation`` times their
        number.

        A component whose rows stay away keeps its mean and its covariance, with a weight of about
        1e-10, until they come back. Where messages are compressed or clients away, noise would move
        them, and the weight is about 0.001: rarer components get more than their share there.

        ``n_iter_``, ``history_`` and ``lower_bounds_`` grow from call to call. In a stream, the
        ``log_likelihood`` of a round is that of the rows of the *next* round, which the fit had not
        seen, and an epoch is as many rows as the call has. ``n_init``, ``max_iter``, ``max_epochs``
        and ``tol`` are for the start alone; ``eval_every``, ``replacement``, ``control_init``,
        ``checkpoint`` and ``verbose`` are not used.

        Examples
        --------
        >>> import numpy as np
        >>> from skfedem import FederatedGaussianMixture
        >>> rng = np.random.default_rng(0)
        >>> gm = FederatedGaussianMixture(n_components=2, random_state=0)
        >>> for day in range(50):
        ...     rows = rng.normal(rng.choice([-4, 4], size=(100, 1)), 1)
        ...     gm = gm.partial_fit(rows, clients=rng.integers(5, size=100))
        >>> np.sort(gm.means_.ravel()).round()
        array([-4.,  4.])
        """
        self._check_parameters()
        settings = in_python_numbers(unfitted(self))
        memory = self._last_memory()
        if memory is not None:
            check_columns_of_fit(self, X)
        data = check_clients(settings, X, clients, sample_weight)
        if memory is None:
            check_enough_rows(data, settings.n_components)
        else:
            validate_data(self, first_table(X), reset=False, skip_check_array=True)
        given = check_start(settings, data.rows.shape[1], warm=memory is not None)
        federation = federation_of(data, self.client_weights)
        with Workers(self.n_jobs) as workers:
            if memory is None:
                beginning = first_call(settings, data.ids, federation, given, workers)
            else:
                beginning = next_call(settings, data.ids, federation, given, memory, self.history_)
            after, history, unseen = read_call(settings, beginning, data.ids, workers)
        # Features are those of the first call, in which all clients are new.
        seen, n_known = (settings, 0) if memory is None else (self, len(memory.ids))
        # Not those of the history, which has no room for them beside an evaluation of a fit.
        criteria = [*([] if memory is None else self.lower_bounds_), *unseen]
        # Nobody may have answered the first call.
        criteria = criteria or history["log_likelihood"][:1]
        new_ids = after.ids[n_known:].copy()
        self._store(after, history, criteria, beginning.problem, seen, new_client_ids_=new_ids)
        return self

    @overload
    def fit_predict(
        self,
        X: OneTable,
        y: object = None,
        *,
        clients: ArrayLike | None = None,
        sample_weight: RowWeights | None = None,
    ) -> IntArray: ...
    @overload
    def fit_predict(
        self,
        X: ClientsLike,
        y: object = None,
        *,
        clients: ArrayLike | None = None,
        sample_weight: RowWeights | None = None,
    ) -> LabelsByClient: ...
    def fit_predict(
        self,
        X: ClientsLike,
        y: object = None,
        *,
        clients: ArrayLike | None = None,
        sample_weight: RowWeights | None = None,
    ) -> LabelsByClient:
        """Fit the mixture and return the most probable component of each row.

        Parameters
        ----------
        X, y, clients, sample_weight
            As in ``fit``.

        Returns
        -------
        labels : ndarray of shape (n_samples,), or a tuple of them for a list of clients

        Raises
        ------
        TypeError, ValueError
            As ``fit``.
        """
        return self.fit(X, y, clients=clients, sample_weight=sample_weight).predict(X)

    # ---- fitting

    def _last_memory(self):
        """Memory of the last fit, None before it; raise for what a callback gets on the way."""
        memory = getattr(self, "_memory", None)
        if memory is None and hasattr(self, "converged_"):
            raise ValueError(
                "Expected an estimator whose fit has ended, to go on from it, got one that a "
                "callback was given on the way: it does not hold what clients and server remember. "
                "Save the run with checkpoint=path, or begin anew: fit with warm_start=False."
            )
        return memory

    def _check_one_run(self, resume_from, n_starts):
        """Raise if several starts are to share a checkpoint."""
        if (self.checkpoint or resume_from) and n_starts > 1:
            raise ValueError(
                f"Expected n_init=1 with a checkpoint, got {self.n_init}: a checkpoint holds one "
                "run. Fit the starts one by one."
            )

    def _check_parameters(self):
        is_data = hasattr(self.n_components, "__len__") and not isinstance(self.n_components, str)
        hint = "Data are given to fit." if is_data else ""
        check_number("n_components", self.n_components, kind=Integral, low=1, hint=hint)
        check_choice("covariance_type", self.covariance_type, COVARIANCE_TYPES)
        check_choice("init_params", self.init_params, INIT_PARAMS)
        check_number("reg_covar", self.reg_covar, low=0, hint="0 adds nothing to covariances.")
        check_number("n_init", self.n_init, kind=Integral, low=1, hint="1 is a single start.")
        check_switch("warm_start", self.warm_start)
        check_federated_parameters(self)
        check_checkpoint_parameters(self)

    def _store(self, memory, history, criteria, problem, seen, **attributes):
        """Set the fitted attributes, all at once."""
        lower_bounds = np.asarray(criteria, dtype=np.float64).tolist()
        store(
            self,
            so_far_fitted(memory.model, memory.server, len(history["round"]) - 1, seen),
            lower_bounds_=lower_bounds,
            lower_bound_=lower_bounds[-1],
            history_=history,
            n_clients_=len(memory.ids),
            client_ids_=memory.ids.copy(),  # the memory has its own
            client_drift_=problem.vectors.norms(memory.states.controls),
            _memory=memory,
            **attributes,
        )
