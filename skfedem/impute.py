"""Imputation of matrices with missing cells by federated EM."""

from __future__ import annotations

from numbers import Integral
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import Tags

from ._callbacks import CallbackSupportMixin, with_callbacks
from ._data.cells import CellData, read_cells
from ._data.features import features_of, store
from ._data.frame_labels import fit_labels, labels_of_shape
from ._data.matrices import holds_clients
from ._federation import Federation
from ._imputer.imputation import FittedMatrix, tags_of_matrices
from ._imputer.warnings import warn_of_fit
from ._parallel import Workers
from ._parameters import (
    check_choice,
    check_minibatches,
    check_number,
    check_rank,
    check_switch,
    in_python_numbers,
    unfitted,
)
from ._random import seeds_of_runs
from ._typing import (
    ClientWeights,
    CompressorName,
    ControlInit,
    EffectsName,
    FamilyName,
    FilePath,
    FloatArray,
    IntArray,
    MatricesLike,
    Participation,
    RowsName,
    Seed,
    Shape,
    SolverName,
    StepSize,
)
from .clients.local import LocalClients
from .compression import Compressor
from .models._base import Start
from .models.matrix.families import FAMILIES
from .models.matrix.low_rank import LowRankModel
from .models.matrix.main_effects import EFFECTS
from .models.matrix.start import cell_federation, low_rank_model, start_again, start_run
from .models.matrix.theta import Theta
from .solvers._fit_task import FitTask
from .solvers._fitted_state import continued, fitted_state, same_rows
from .solvers._from_parameters import (
    SOLVERS,
    check_federated_parameters,
    federated_problem,
    run_solver,
)
from .solvers._resume import check_checkpoint_parameters, seed_of
from .solvers._state import RunState, evaluate
from .solvers.base import Problem, ServerState


class FederatedMatrixImputer(CallbackSupportMixin, FittedMatrix):
    """Low-rank model of a matrix whose cells were observed by several clients.

    FedMissEM, Appendix F.2 of [1]_, for counts, presences or measurements, say of sites by months.
    Cell (j, l) has the natural parameter

    ``theta = intercept + row_effects[j] + column_effects[l] + low_rank[j, l]``

    The objective, in nats, is the negative log-likelihood of all observations of all clients, plus
    ``penalty`` times the nuclear norm of the low-rank part, plus ``effects_penalty`` / 2 times the
    sum of squares of the effects. Missing cells are ignored, not treated as zeros. A matrix of more
    than a million cells is never formed.

    The clients are simulated on this machine. First, they send which cells they observed and how
    often, and the row sums and column sums of their observations, which determine the effects. In
    each round, the active clients send compressed residuals, and the server takes a proximal step.
    This provides no privacy: with the fitted values, a residual reveals the observation.

    Read more in :doc:`/imputation`.

    Parameters
    ----------
    rank : int or None, default=2
        Maximum rank r of the low-rank part; None for no bound.
    family : {"gaussian", "bernoulli", "poisson"}, default="gaussian"
        Distribution of a cell: numbers of variance 1 (mean ``theta``), 0 or 1 (log-odds ``theta``),
        or counts up to 1e13 (mean ``exp(theta)``).
    penalty : float, default=1.0
        Nuclear-norm penalty λ >= 0, on the scale of softImpute [2]_: the log-likelihood is a sum
        over observations, not a mean. 1 is far too small for large counts;
        FederatedMatrixImputerCV chooses a penalty.
    effects : {"both", "rows", "columns", "none"}, default="both"
        Main effects in addition to the intercept. "none" also omits the intercept, as in
        soft-impute.
    effects_penalty : float, default=0.1
        Ridge penalty on the effects, equivalent to a normal prior of variance ``1 /
        effects_penalty``; 0 means 1e-7. With about ten observations per row or column or fewer, 1
        usually predicts better.
    rows : {"shared", "disjoint"}, default="shared"
        Whether all clients in a list have the same rows (sites), or each has different ones.
    missing_values : number, default=numpy.nan
        Value that marks missing cells in dense matrices. NaN also covers None and ``pandas.NA``. In
        sparse matrices, cells that are not stored are missing, and this value must not be stored.
    solver : {"fedem", "vr_fedem"}, default="fedem"
        Algorithm to use: FedEM or VR-FedEM, Algorithms 1 and 2 of [1]_. Without ``batch_size``,
        both give the same fit.
    step_size : float in (0, 1], "auto" or callable, default="auto"
        Step size γ. With "auto", the natural step η follows the curvature of the objective; exact
        rounds have γ = 1 and momentum, others follow :doc:`/step_sizes`. A number, or the number
        that a callable returns for a round, multiplies the safe natural step, without momentum: the
        inverse of the largest curvature of a cell (its number of observations times ψ'').
    control_step : float in [0, 1], or "auto", default="auto"
        Step size α of the control variates; "auto" is 1 / (1 + ω), with the operator's largest
        variance ω over the lengths of the messages. Much larger steps diverge.
    control_init : {"field", "zeros"}, default="field"
        Initial control variates: the residuals at the start, sent uncompressed; or zeros.
    batch_size : int, default=None
        Number b of observed cells that an active client reads in a round; None for all.
    replacement : bool, default=True
        Whether to draw minibatches with replacement; if not, all clients need ``batch_size`` cells.
    n_inner : int or "auto", default="auto"
        Number k_in of VR-FedEM's inner rounds between two passes over all cells. "auto" is (1 + ω)
        sqrt(m / 2) / ``participation``, rounded up; m is the mean number of cells per client.
    compressor : {"dithering", "block", "rand_k"}, Compressor or None, default="dithering"
        Operator that compresses the messages, see ``skfedem.compression``. Ignored if ``omega=0``.
    omega : float >= 0, default=0.0
        Relative variance ω of the compression: E||Quant(x)||² <= (1 + ω)||x||²; 0 disables it. An
        operator given by its name uses the coarsest level within this bound; a ``Compressor``
        object keeps its own level.
    participation : float in (0, 1], or int, default=1.0
        Probability p that a client takes part in a round, or the number of clients that take part,
        drawn without replacement: 1.0 are all clients, 1 is one client.
    client_weights : {"n_samples", "uniform"}, default="n_samples"
        Weight of a client: its number of observations, so that the objective is that of the pooled
        observations, or the same weight for every client.
    max_iter : int or None, default=500
        Maximum number of rounds. 0 returns the initial parameters; None sets no limit and requires
        ``max_epochs``.
    max_epochs : float, default=None
        Maximum number of epochs. An epoch is as many evaluations as there are observed cells.
    tol : float, default=1e-6
        Tolerance for convergence. Exact rounds stop when the relative change of the objective is
        less than ``tol`` times γ, five times in a row; random rounds after three windows of rounds
        without progress, see the user guide. 0 runs all rounds.
    eval_every : int, "auto" or None, default="auto"
        Number of rounds between evaluations for ``history_``; "auto" evaluates once per epoch, None
        never. Exact rounds need none.
    random_state : int, RandomState instance or None, default=None
        Pass an int for reproducible results, up to rounding also on other machines.
    warm_start : bool, default=False
        Whether to start from the θ of the last fit. If that also had ``warm_start=True`` and the
        same observations, the clients keep their control variates; with unchanged rank, penalties
        and effects, the run continues as if it had not been interrupted.
    n_jobs : int, default=None
        Number of threads that simulate the clients, as in joblib; short rounds use one. The result
        does not depend on it.
    checkpoint : path-like, default=None
        File in which to save the run for ``fit(..., resume_from=path)``. The previous save is kept,
        with ``.previous`` appended to its name.
    checkpoint_every : int, default=100
        Number of rounds between saves. The last round is saved too, unless interrupted.
    verbose : int, default=0
        Verbosity: 1 prints every tenth round and how a run ended, 2 prints every round.

    Attributes
    ----------
    row_factors_ : ndarray of shape (n_rows, n_factors)
        Left singular vectors of the low-rank part, ``n_factors <= rank``.
    singular_values_ : ndarray of shape (n_factors,)
        Singular values of the low-rank part, in decreasing order.
    column_factors_ : ndarray of shape (n_columns, n_factors)
        Right singular vectors of the low-rank part.
    row_effects_ : ndarray of shape (n_rows,)
        Row effects, with mean 0.
    column_effects_ : ndarray of shape (n_columns,)
        Column effects, with mean 0.
    intercept_ : float
        Intercept of the natural parameter; 0 with ``effects="none"``.
    objective_ : float
        Final value of the objective, in nats.
    n_iter_ : int
        Number of rounds.
    converged_ : bool
        Whether ``tol`` was reached.
    history_ : dict of ndarray
        History of the fit: row 0 is the start, row r the state after round r. The entries are
        ``round``, ``epoch``, ``objective`` (nats), ``field_sq_norm`` (squared norm of the change of
        the low-rank part divided by the step size), ``mean_field_sq_norm`` (the same for exact
        residuals; only comparable within a fit: with automatic steps, values are approximate, up to
        a fifth off at first), ``step_size`` (the γ that was applied), ``n_active`` (number of
        clients that took part), ``uplink_bits``, ``downlink_bits``, ``safeguarded`` (how often a
        step given by a number had to be halved), and ``singular_values`` of shape (n_rows, largest
        rank). All entries except ``singular_values`` can be the columns of a DataFrame. Values that
        were not evaluated are NaN.
    unobserved_rows_, unobserved_columns_ : ndarray of int
        Rows and columns without an observed cell. Their effects are 0.
    row_offsets_ : ndarray of int, shape (`n_clients_` + 1,), or None
        With ``rows="disjoint"``, the rows of client i are ``row_offsets_[i]:row_offsets_[i + 1]``.
    n_clients_ : int
        Number of clients, including those without observed cells.
    client_ids_ : ndarray of shape (`n_clients_`,)
        Label of each client: the sorted labels from ``clients``, or else its position in the list.
    client_drift_ : ndarray of shape (`n_clients_`,)
        How poorly the common model fits a client: root mean square of the residuals in its cells,
        from its control variate V_i. 0 without observed cells.
    n_features_in_ : int
        Number of columns.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns, if the data had string names.

    See Also
    --------
    FederatedMatrixImputerCV : Chooses rank and penalties by held-out cells.
    skfedem.datasets.read_ebird : Reads counts of birds.

    Notes
    -----
    If ``rank`` is below the rank that the penalty alone would yield, the problem is not convex:
    runs that differ in noise or in their start may end in different optima.

    When exact rounds stop, the objective may still exceed its minimum by a relative ten to a
    hundred times ``tol``, and by more in the cases that :doc:`/imputation` lists. With a spread of
    Gaussian cells below 1e-4, fits stop too soon: multiply the cells and ``penalty``.

    References
    ----------
    .. [1] A. Dieuleveut, G. Fort, E. Moulines and G. Robin, "Federated Expectation Maximization
       with heterogeneity mitigation and variance reduction", NeurIPS 2021, Appendix F.2.
    .. [2] R. Mazumder, T. Hastie and R. Tibshirani, "Spectral regularization algorithms for
       learning large incomplete matrices", JMLR 2010.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedem import FederatedMatrixImputer
    >>> nan = np.nan
    >>> one = np.array([[4.0, nan, 9.0], [nan, 1.0, nan], [2.0, nan, 5.0]])
    >>> other = np.array([[nan, 7.0, 8.0], [2.0, 1.0, 3.0], [nan, 3.0, nan]])
    >>> imputer = FederatedMatrixImputer(rank=1, family="poisson", penalty=0.3).fit([one, other])
    >>> imputer.fitted_mean().round(1)
    array([[3.9, 6.8, 8.6],
           [1.8, 1.1, 3. ],
           [2.3, 3. , 4.7]])
    >>> imputer.transform([one, other])[0].round(1)
    array([[4. , 6.8, 9. ],
           [1.8, 1. , 3. ],
           [2. , 3. , 5. ]])
    """

    row_factors_: FloatArray
    singular_values_: FloatArray
    column_factors_: FloatArray
    row_effects_: FloatArray
    column_effects_: FloatArray
    intercept_: float
    objective_: float
    n_iter_: int
    converged_: bool
    history_: dict[str, NDArray[Any]]
    unobserved_rows_: IntArray
    unobserved_columns_: IntArray
    row_offsets_: IntArray | None
    client_drift_: FloatArray
    n_clients_: int
    client_ids_: NDArray[Any]
    n_features_in_: int
    feature_names_in_: NDArray[Any]

    __metadata_request__fit = {"clients": True, "shape": True}
    # Pipeline.score asks for sample_weight, and fails if no request for it is declared.
    __metadata_request__score = {"sample_weight": None}

    def __init__(
        self,
        rank: int | None = 2,
        *,
        family: FamilyName = "gaussian",
        penalty: float = 1.0,
        effects: EffectsName = "both",
        effects_penalty: float = 0.1,
        rows: RowsName = "shared",
        missing_values: float = np.nan,
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
        max_iter: int | None = 500,
        max_epochs: float | None = None,
        tol: float = 1e-6,
        eval_every: int | Literal["auto"] | None = "auto",
        random_state: Seed = None,
        warm_start: bool = False,
        n_jobs: int | None = None,
        checkpoint: FilePath | None = None,
        checkpoint_every: int = 100,
        verbose: int = 0,
    ) -> None:
        self.rank = rank
        self.family = family
        self.penalty = penalty
        self.effects = effects
        self.effects_penalty = effects_penalty
        self.rows = rows
        self.missing_values = missing_values
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
        X: MatricesLike,
        y: object = None,
        *,
        clients: ArrayLike | None = None,
        shape: Shape | None = None,
        resume_from: FilePath | None = None,
    ) -> Self:
        """Fit the model to the observed cells of all clients.

        Parameters
        ----------
        X : list of clients, or array-like of shape (n_rows, n_columns)
            In a list, each client is

            - a matrix or DataFrame (sites by months) with missing cells,
            - a 3-D array (observers, sites, months),
            - a scipy.sparse matrix, whose stored entries (including zeros) are the observed cells,
            - with ``shape``, an array of triplets (site, month, value), with sites and months
              numbered from 0.

            A single matrix, or a single array of triplets, is one client, unless ``clients`` labels
            its rows. In a single 3-D array, each observer is a client. If a cell was observed
            several times, all observations count.
        y : Ignored
            Not used, present for scikit-learn's API.
        clients : array-like of shape (n_rows,), default=None
            Client label of each row of X, if X is one matrix or one array of triplets.
        shape : tuple of two int, or of two array-likes, default=None
            Numbers of sites and months, or their names. If given, dense 2-D arrays are read as
            triplets, and so are arrays of three columns that ``transform`` and ``score`` get in a
            list or, after a fit to a single array, alone. (With two clients, scikit-learn's
            searches would split ``shape`` like rows: use sparse matrices instead.)
        resume_from : path-like, default=None
            Checkpoint to resume from, of a run with the same data and parameters. The result is bit
            for bit that of an uninterrupted run, except for an additional evaluation in
            ``history_`` where the saved run ended. ``max_iter``, ``max_epochs``, ``checkpoint``,
            ``checkpoint_every``, ``n_jobs``, ``verbose`` and ``warm_start`` may differ, and
            ``random_state`` may be None.

        Returns
        -------
        self : FederatedMatrixImputer

        Raises
        ------
        TypeError, ValueError
            If data or parameters are invalid; an earlier fit is then kept unchanged.
        FileNotFoundError
            If the file ``resume_from`` does not exist.

        Warns
        -----
        ConvergenceWarning
            If ``tol`` was not reached, steps given by numbers still had to be halved at the end,
            the objective ended above its start, or the fit was interrupted from the keyboard.
        UserWarning
            If clients have no cell, a table looks like triplets without ``shape``, row labels
            recur, ``clients`` look wrong, Gaussian cells are far from 0 without effects, one cell
            slows the others down, Poisson means were capped, ``batch_size`` or a ``Compressor`` do
            not fit the data, or a checkpoint could not be written.
        """
        self._check_parameters()
        settings = in_python_numbers(unfitted(self))
        data = read_cells(settings, X, clients, shape=shape, family=FAMILIES[self.family])
        check_rank("rank", self.rank, data.shape)
        ids = data.ids[data.observers]
        federation = cell_federation(data, self.client_weights)
        check_minibatches(settings, federation.lengths, ids, "observed cells")
        known = self._known(X, clients, shape, data, settings)
        theta = self._warm_theta(data, known)
        (seed,) = seeds_of_runs(self.random_state, 1)
        seed = seed_of(self, seed, resume_from)
        task = FitTask(self, X, y, settings.max_iter)
        with Workers(self.n_jobs) as workers:
            observers = LocalClients(federation, workers)
            digest = observers.fingerprint() if self.warm_start else ""
            base_measures = data.log_base_measure[data.observers]
            model = low_rank_model(settings, observers, data.shape, base_measures)
            problem = federated_problem(settings, model, federation.sizes, seed)
            start = self._start(model, problem, observers, ids, theta, digest)
            tasks = task.begin_start(
                lambda run: {**known, **_so_far(run.server, run.n_rounds, data.origin)}
            )
            result = run_solver(settings, problem, start, observers, resume_from, tasks)
            objective = result.final_criterion
            if np.isnan(objective):
                objective = evaluate(problem, result.server, observers).criterion
        memory = None
        if self.warm_start:  # only if asked for: it is as large as the data
            memory = fitted_state(ids, federation.totals, self.solver, problem, result, digest)
        outcome = _outcome(federation, result, data, objective) | {"_memory": memory}
        store(self, known, **outcome)
        task.end()
        warn_of_fit(self, X, data, problem, result)
        return self

    def __sklearn_tags__(self) -> Tags:
        """Accept NaN and sparse matrices."""
        return tags_of_matrices(super().__sklearn_tags__(), self.family)

    # ---- fitting

    def _check_parameters(self) -> None:
        if self.rank is not None:
            hint = "Use None for no bound; for effects alone, give a large penalty."
            check_number("rank", self.rank, kind=Integral, low=1, hint=hint)
        check_choice("family", self.family, tuple(FAMILIES))
        check_number("penalty", self.penalty, low=0, hint="Use 0 for no penalty.")
        check_choice("effects", self.effects, EFFECTS)
        check_number("effects_penalty", self.effects_penalty, low=0, hint="0 means 1e-7.")
        check_switch("warm_start", self.warm_start)
        check_federated_parameters(self)
        check_checkpoint_parameters(self)

    def _start(
        self,
        model: LowRankModel,
        problem: Problem,
        observers: LocalClients,
        ids: NDArray[Any],
        theta: Theta | None,
        digest: str,
    ) -> Start:
        """Start of a run: the end of the last fit if it had these cells, its θ, or a new start."""
        totals, memory = observers.federation.totals, getattr(self, "_memory", None)
        if theta is not None and memory and same_rows(memory, totals, ids, digest):
            observers.messages.clear()  # the server knows these cells already
            start = start_again(model, memory.model, memory.server, theta)
            observers.join(SOLVERS[self.solver], problem.task)
            return continued(memory, self.solver, problem, observers, start, totals, ids, digest)
        return start_run(model, theta).after(*observers.bits())

    def _known(
        self,
        X: MatricesLike,
        clients: ArrayLike | None,
        shape: Shape | None,
        data: CellData,
        checked: Self,
    ) -> dict[str, Any]:
        """Attributes that the data and the parameters determine before the first round."""
        # If labels divide a matrix among clients, they do not share their rows.
        has_sites = self.rows == "shared" and (clients is None or shape is not None)
        labels = fit_labels(X, self.rows) if shape is None else labels_of_shape(shape)
        return {
            "n_clients_": len(data.ids),
            "client_ids_": data.ids,
            "row_offsets_": data.row_offsets,
            "unobserved_rows_": _absent(data.rows, data.shape[0]),
            "unobserved_columns_": _absent(data.columns, data.shape[1]),
            # Parameters of this fit, which set_params may change later.
            "_fitted_family": self.family,
            "_fitted_effects": self.effects,
            "_fitted_penalty": float(self.penalty),
            "_fitted_effects_penalty": float(self.effects_penalty),
            "_shape": data.shape,
            "_has_triplets": shape is not None,
            "_has_triplets_alone": shape is not None and not holds_clients(X),
            "_has_sites": has_sites,
            "_row_labels": labels[0],
            "_column_labels": labels[1],
            **features_of(checked),
        }


def _absent(numbers: IntArray, size: int) -> IntArray:
    """Numbers below a size that do not occur."""
    return np.flatnonzero(np.bincount(numbers, minlength=size) == 0)


def _outcome(
    federation: Federation, result: RunState, cells: CellData, objective: float
) -> dict[str, Any]:
    """Fitted attributes that result from a run."""
    drift = np.zeros(len(cells.ids))
    # Divided by the root of the number of visits, so that many visits alone do not look like drift.
    assert result.clients is not None  # the run has ended
    if result.clients["controls"].size:
        squares = result.clients["controls"] ** 2 / cells.counts
        sums = np.add.reduceat(squares, federation.offsets[:-1])
        drift[cells.observers] = np.sqrt(federation.lengths * sums)
    return {
        **_so_far(result.server, result.n_rounds, cells.origin),
        "objective_": float(objective),
        "converged_": result.converged,
        "history_": {**result.history.as_dict(), "singular_values": np.array(result.trace)},
        "client_drift_": drift,
        "_stopped_by": result.stopped_by,
    }


def _so_far(server: ServerState, n_rounds: int, origin: float) -> dict[str, Any]:
    """Fitted attributes that follow from the server's state; its θ is relative to ``origin``."""
    effects, low_rank = server.parameters.natural  # copied: the memory keeps them
    return {
        "intercept_": float(effects.intercept) + origin,
        "row_effects_": effects.rows.copy(),
        "column_effects_": effects.columns.copy(),
        "row_factors_": low_rank.left.copy(),
        "singular_values_": low_rank.singular_values.copy(),
        "column_factors_": low_rank.right.copy(),
        "_largest_theta": float(server.statistics.iterate.theta.max()),
        "n_iter_": n_rounds,
        "converged_": False,
        "_memory": None,  # the memory of an earlier fit belongs to another θ
    }
