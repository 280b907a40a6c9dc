"""Gaussian mixtures fitted by federated EM."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal, Self, overload

from numpy.typing import ArrayLike
from sklearn.utils.validation import validate_data

from ._callbacks import CallbackSupportMixin, with_callbacks
from ._data.clients import read_clients
from ._data.features import check_columns_of_fit, features_of, store
from ._data.tables import first_table
from ._estimators.fit import fit
from ._mixture.fit import MixtureFit, memory_of_fit
from ._mixture.outcome import fitted_attributes
from ._mixture.partial_fit import first_call, next_call, read_call
from ._mixture.prediction import FittedMixture
from ._parallel import Workers
from ._parameters import (
    check_choice,
    check_enough_rows,
    check_number,
    check_switch,
    read_parameters,
    unfitted,
)
from ._typing import (
    ClientsLike,
    FilePath,
    IntArray,
    LabelsByClient,
    OneTable,
    RowWeights,
    available_if,
)
from .models.mixture.assignment import INIT_PARAMS
from .models.mixture.covariances import COVARIANCES
from .models.mixture.initial_parameters import (
    InitialParameters,
    MixtureParameters,
    check_initial_parameters,
    check_same_kind,
)
from .solvers._fitted_state import FittedState, at_average
from .solvers._from_parameters import check_federated_parameters
from .solvers._parameters import ResumableParameters
from .solvers._resume import check_checkpoint_parameters


def _reads_rows_once(estimator: FederatedGaussianMixture) -> Literal[True]:
    """Whether ``partial_fit`` is available; raise AttributeError if it is not."""
    if estimator.solver != "fedem":
        raise AttributeError(
            f'Expected solver="fedem" for partial_fit, got {estimator.solver!r}: variance '
            "reduction reads rows again, and partial_fit does not keep them."
        )
    return True


@dataclass(eq=False, repr=False, kw_only=True)
class _Parameters(ResumableParameters, MixtureParameters):
    """Parameters of the constructor, which sets them as attributes."""

    warm_start: bool = False


class FederatedGaussianMixture(CallbackSupportMixin, FittedMixture, _Parameters):
    """Gaussian mixture fitted to the rows of several clients without pooling them.

    In each round, the clients send compressed expectations of their sufficient statistics, and the
    server performs the M-step. The algorithms are FedEM and VR-FedEM of [1]_. With the default
    parameters, each round is an EM iteration on the pooled rows: from the same start, the result is
    that of scikit-learn's ``GaussianMixture``.

    The clients are simulated on this machine: their messages are computed and counted, not sent.
    Statistics are not private: those of a single row reveal that row. A fitted estimator, and any
    pickle of it, contains statistics of each client. :doc:`/what_leaves_a_client` lists all
    messages.

    Read more in :doc:`/user_guide`.

    Parameters
    ----------
    n_components : int, default=1
        Number of mixture components.
    covariance_type : {"full", "tied", "diag", "spherical"}, default="full"
        Type of covariance: one matrix per component, one matrix shared by all components, one
        diagonal matrix per component, or one variance per component.
    fixed_covariance : array-like of shape (n_features, n_features), default=None
        Known covariance matrix, shared by all components and not estimated; requires
        ``covariance_type="tied"``.
    reg_covar : float >= 0, default=1e-6
        Constant added to every estimated variance, in squared units of the features. With 0, a
        singular covariance raises ValueError.
    n_init : int, default=1
        Number of starts. The fit with the largest log-likelihood is kept; ``history_`` describes
        this run only.
    init_params : {"kmeans", "k-means++", "random_from_data", "random"}, default="kmeans"
        Method that finds a start. "kmeans": each client clusters its rows and sends the centroids
        of clusters with at least two different rows, with their counts; the server clusters these
        centroids. "k-means++" and "random_from_data" choose rows as centres. In these three
        methods, every row is then assigned to its nearest centre. "random": clients draw random
        posterior probabilities. **"random_from_data" reveals** ``n_components`` **rows to the
        server; "k-means++" also reveals the candidates that it tries**: 2 + log(``n_components``),
        rounded down, for each centre after the first. "kmeans" and "k-means++" do not depend on the
        order of a client's rows, and treat an integer weight like repeated rows.
    weights_init : array-like of shape (n_components,), default=None
        Initial weights of the components.
    means_init : array-like of shape (n_components, n_features), default=None
        Initial means of the components. Unless given as well, the initial weights and covariances
        are estimated from the rows nearest to each mean: their share, and their scatter about it.
    precisions_init : array-like, default=None
        Initial precisions, in the shape of ``precisions_``.
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
        variance for messages of this length; in ``partial_fit``, a tenth of that. Much larger steps
        diverge. 0 with ``control_init="zeros"`` is naive FedEM, without control variates.
    control_init : {"field", "zeros"}, default="field"
        Initial control variates: each client's field h_i(Ŝ_0), at the cost of a pass over all rows
        and an uncompressed message per client; or zeros. Exact rounds with α = 1 need neither.
        A stream of ``partial_fit`` calls starts from zeros, also after ``fit``.
    batch_size : int, default=None
        Minibatch size b: the number of rows that an active client reads in a round; None for all of
        its rows.
    replacement : bool, default=True
        Whether to draw minibatches with replacement. If False, every client needs at least
        ``batch_size`` rows.
    n_inner : int or "auto", default="auto"
        Number k_in of VR-FedEM's inner rounds between two passes over all rows. "auto" is (1 + ω)
        sqrt(m / 2) / ``participation``, rounded up (Appendix E.2 of [1]_). Here ω is as in
        ``control_step``, and m is the mean number of rows per client.
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
        Weight w_i of a client: its share of all rows, so that the objective is the pooled
        likelihood, or the same weight for every client.
    max_iter : int or None, default=100
        Maximum number of rounds. 0 returns the initial parameters; None sets no limit and requires
        ``max_epochs``.
    max_epochs : float, default=None
        Maximum number of epochs: the fit stops after the round that completes them. An epoch is as
        many evaluations of a row's conditional expectation as there are rows.
    tol : float, default=1e-3
        Tolerance for convergence, in nats per row. Exact rounds stop when the log-likelihood
        changes by less than ``tol`` times γ; random rounds stop after three windows of rounds
        without progress, see the user guide. A fit may stop early on a plateau; 1e-5 is safer. 0
        runs all rounds.
    eval_every : int, "auto" or None, default="auto"
        Number of rounds between evaluations of the log-likelihood and the mean field over all rows,
        for ``history_``; "auto" evaluates once per epoch, None never. Exact rounds yield both every
        time. Evaluations are not counted in bits or epochs.
    random_state : int, RandomState instance or None, default=None
        Pass an int for reproducible results, up to rounding also on other machines. Reordering the
        clients has the same effect as changing the seed.
    n_jobs : int, default=None
        Number of threads that simulate the clients, as in joblib; short rounds use one. The result
        does not depend on it.
    verbose : int, default=0
        Verbosity: 1 prints every tenth round and how a run ended, 2 prints every round.
    checkpoint : path-like, default=None
        File in which to save the run, so that ``fit(..., resume_from=path)`` can continue it;
        requires ``n_init=1``. The previous save is kept, with ``.previous`` appended to its name.
    checkpoint_every : int, default=100
        Number of rounds between saves. The last round is saved too, unless the fit is interrupted
        from the keyboard.
    warm_start : bool, default=False
        Whether to continue from the last fit: from its statistics Ŝ, its parameters, and the
        control variates V_i of clients whose label (or position in a list) is known. The round
        count continues too: with the same data, an integer ``random_state`` and ``n_init=1``, two
        fits of k rounds equal one of 2k. A continued fit ignores ``n_init`` and the initial values.

    Attributes
    ----------
    weights_ : ndarray of shape (n_components,)
        Weights of the components.
    means_ : ndarray of shape (n_components, n_features)
        Means of the components.
    covariances_ : ndarray
        Covariances of the components, of shape (n_components, n_features, n_features) if "full",
        (n_features, n_features) if "tied", (n_components, n_features) if "diag", (n_components,) if
        "spherical".
    precisions_, precisions_cholesky_ : ndarray
        Inverses of the covariances and their Cholesky factors, as in scikit-learn.
    n_iter_ : int
        Number of rounds of the last ``fit`` and of all calls of ``partial_fit`` after it.
    converged_ : bool
        Whether ``tol`` was reached; always False after ``partial_fit``.
    lower_bound_ : float
        Log-likelihood in nats per row, with clients weighted by ``client_weights``. After exact
        rounds, it is the value at the last E-step, as in scikit-learn; after ``partial_fit``, the
        value for the last rows under the parameters at Ŝ before these rows were read. NaN if its
        computation was interrupted from the keyboard.
    lower_bounds_ : list of float
        The log-likelihoods that were computed during the fit.
    history_ : dict of ndarray
        History of the fit: row 0 is the start, row r the state after round r. The entries are
        ``round``, ``epoch``, ``log_likelihood`` (nats per row, weighted as ``lower_bound_``),
        ``field_sq_norm`` (||H||², of the server's estimate of the field), ``mean_field_sq_norm``
        (||h(Ŝ)||²), ``step_size`` (the γ that was applied), ``n_active`` (number of clients that
        took part), ``uplink_bits`` and ``downlink_bits`` (of all clients together), ``safeguarded``
        (how often the step was cut to stay in the domain of the M-step, plus one if rare components
        were left unchanged), and ``weights`` of shape (n_rows, n_components). All entries except
        ``weights`` can be the columns of a DataFrame. Values that were not evaluated are NaN.
        Squared norms are in standard units (rows whitened or scaled).
    n_clients_ : int
        Number of clients.
    client_ids_ : ndarray of shape (`n_clients_`,)
        Label of each client: the sorted labels from ``clients``, or else its position in the list.
        After ``partial_fit``, clients are in the order in which they joined.
    new_client_ids_ : ndarray
        Labels of the clients that were new in the last call of ``partial_fit``.
    client_drift_ : ndarray of shape (`n_clients_`,)
        ||V_i||, a measure of how much a client differs from the others, in the standard units of
        ``history_``. After few rounds, or with a small ``control_step``, V_i is not yet close to
        the client's field.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, if the data had string names.

    See Also
    --------
    sklearn.mixture.GaussianMixture : The same model on pooled rows.
    skfedem.datasets.split_clients : Distribute the rows of one table over clients.

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

    __metadata_request__fit = {"clients": True, "sample_weight": True}
    __metadata_request__partial_fit = {"clients": True, "sample_weight": True}
    __metadata_request__score = {"sample_weight": True}

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
            A list with one table (n_i, n_features) for each client; one table, with ``clients``; or
            one table alone, which is a single client.
        y : Ignored
            Present for scikit-learn's API. To pass client labels, write ``fit(X, clients=labels)``:
            ``fit(X, labels)`` would take them for ``y`` and fit a single client.
        clients : array-like of shape (n_samples,), default=None
            Client label of each row of X, if X is one table.
        sample_weight : array-like of shape (n_samples,), or a list of them, default=None
            Weight of each row: an array for one table, or a list with one array for each client.
            Rows of weight zero are ignored. Only the ratios of weights matter: an integer weight is
            equivalent to repeating the row. See Notes.
        resume_from : path-like, default=None
            Checkpoint to resume from, of a run with the same data and parameters. The result is bit
            for bit that of an uninterrupted run, except for an additional evaluation in
            ``history_`` where the saved run ended. ``max_iter``, ``max_epochs``, ``checkpoint``,
            ``checkpoint_every``, ``n_jobs``, ``verbose`` and ``warm_start`` may differ, and
            ``random_state`` may be None.

        Returns
        -------
        self : FederatedGaussianMixture

        Raises
        ------
        TypeError, ValueError
            If data or parameters are invalid; an earlier fit is then kept unchanged.
        FileNotFoundError
            If the file ``resume_from`` does not exist.

        Warns
        -----
        ConvergenceWarning
            If ``tol`` was not reached; if steps still left the domain of the M-step in the last
            tenth of the rounds; if noise cut automatic steps to less than a tenth of the planned
            size; if random rounds reduced components to less than half the weight of a row, or
            ended well below the log-likelihood of the start; or if the fit was interrupted from the
            keyboard.
        UserWarning
            If X has a column of the name of ``clients``, or if these look like measurements; if
            ``clients`` or ``sample_weight`` has the index of X in another order; if a
            ``Compressor`` object is not used, or is coarser than ``omega``; if covariances were
            widened by rounding, because rows lie too far apart; if ``batch_size`` is larger than
            every client's number of rows; or if a checkpoint could not be written (the fit then
            continues).

        Notes
        -----
        With row weights v_j, s̄_i is ``Σ_j v_j s̄_ij / Σ_j v_j``, and the log-likelihood is
        weighted likewise. With ``client_weights="n_samples"``, w_i is the client's share of the
        total weight. Minibatches draw rows in proportion to their weights, which requires
        ``replacement=True``.

        The fit equals that of repeated rows in any order; with minibatches, in the order of the
        weighted rows. There are two exceptions. Starts that draw a number for each row of X differ:
        "random_from_data", "random", and samples of more than 131,072 rows. And epochs,
        ``n_inner="auto"`` and the automatic step for many clients count each row of X once.
        """
        self._check_parameters()
        settings, checked = read_parameters(self), unfitted(self)
        memory = memory_of_fit(self) if self.warm_start else None
        if memory is not None:
            check_columns_of_fit(self, X)
        data = read_clients(
            checked,
            X,
            clients,
            sample_weight,
            client_weights=self.client_weights,
            drop_equal_weights=True,
        )
        check_enough_rows(data.federation.n_samples, settings.n_components)
        initial = self._initial_parameters(settings, checked.n_features_in_, memory)
        memory = memory and at_average(memory)
        steps = MixtureFit(settings, data, features_of(checked), initial, memory)
        if (self.checkpoint or resume_from) and steps.n_starts > 1:
            raise ValueError(
                f"Expected n_init=1 with a checkpoint, got {self.n_init}: a checkpoint holds one "
                "run. Fit the starts one by one."
            )
        fit(self, steps, X, y, sample_weight, resume_from)
        self.__dict__.pop("new_client_ids_", None)  # left by an earlier partial_fit
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
        """Update the mixture with the next rows of a stream.

        Each call is one round of FedEM on the rows of X: the online case of assumption A7 of the
        paper. With ``batch_size``, a call is several rounds, each on the next ``batch_size`` rows
        of every client.

        The first call determines the standard units and a start, and fits its rows before its own
        round. Give it many rows, if possible ten for each statistic, and more than features: with
        fewer, "full" covariances may stay far too large for tens of calls. Later calls read their
        rows once. A call after ``fit`` continues from that fit. ``fit`` starts afresh, unless
        ``warm_start=True``. Read more in :doc:`/streams`.

        Parameters
        ----------
        X, y, clients, sample_weight
            As in ``fit``. Clients are recognized by their labels (in a list, by their positions).

        Returns
        -------
        self : FederatedGaussianMixture

        Raises
        ------
        TypeError, ValueError
            If data or parameters are invalid; the estimator is then left unchanged.
        AttributeError
            With ``solver="vr_fedem"``: variance reduction reads rows again.

        Notes
        -----
        *Parameters.* ``n_init``, ``max_iter``, ``max_epochs`` and ``tol`` only affect the start.
        ``eval_every``, ``replacement``, ``control_init``, ``checkpoint`` and ``verbose`` are not
        used.

        *Steps.* With ``step_size="auto"``, γ is the number of rows in the round divided by the
        number of rows read so far, to the power 0.5; it is smaller with compression or few rows.
        Because such steps are noisy, Ŝ is averaged over the rounds, with weights that grow as the
        third power of the number of rows so far. The fitted attributes and ``weights`` in
        ``history_`` are those of this average; a later call with another ``step_size``, and ``fit``
        with ``warm_start=True``, continue from it. The average is slow to follow a stream that
        changes. With a number or a callable, Ŝ is not averaged. A number is a constant step, which
        forgets old rows and so follows changes; a callable gets the round number, which continues
        from call to call. If the clients that answer hold less than the share ``participation`` of
        the weight in a round, all these steps are shortened in proportion.

        *Clients.* A client without rows in a call, or that does not take part in a round, keeps its
        V_i. The messages of the others are divided by their share of the total weight (not by
        ``participation``, as in ``fit``). A round without clients changes nothing. New clients
        start with V_i = 0. With ``client_weights="n_samples"``, w_i is the client's share of all
        rows so far; "uniform" gives all known clients the same weight.

        *The start* is the best of ``n_init`` fits to all rows of the first call, by FedEM with all
        clients, with a tenth of ``tol``. There is no such fit with ``means_init`` or
        ``max_iter=0``, with fewer than ``4 * n_components * n_features`` rows, or if a covariance
        would become singular with ``reg_covar=0``. The messages of the best fit are counted in row
        0 of ``history_``; its rounds are not counted.

        *What is recorded.* ``n_iter_``, ``history_`` and ``lower_bounds_`` grow from call to call.
        ``log_likelihood`` of a round is that of the rows of the *next* round, which the fit has not
        seen yet, at Ŝ and not at its average. (In row 0, with compression or partial participation,
        it is that of all rows of the first call.) An epoch is as many rows as the call has.
        ``partial_fit`` warns about ``clients`` and a ``Compressor`` as ``fit`` does, but not about
        the progress of the fit: look at ``safeguarded``, ``step_size`` and ``weights`` in
        ``history_``.

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
        settings, checked, memory = read_parameters(self), unfitted(self), memory_of_fit(self)
        check_columns_of_fit(self, X)  # if there was one
        federation, ids, _ = read_clients(
            checked, X, clients, sample_weight, client_weights=self.client_weights
        )
        if memory is None:
            # This call defines the features, and all of its clients are new.
            features, n_known, criteria = features_of(checked), 0, []
            check_enough_rows(federation.n_samples, settings.n_components)
        else:
            features, n_known = features_of(self), len(memory.ids)
            criteria = self.lower_bounds_
            validate_data(self, first_table(X), reset=False, skip_check_array=True)
        initial = self._initial_parameters(settings, checked.n_features_in_, memory)
        with Workers(self.n_jobs) as workers:
            if memory is None:
                beginning = first_call(settings, ids, federation, initial, workers)
            else:
                beginning = next_call(
                    settings, ids, federation, initial, memory, workers, self.history_
                )
            after, history, unseen = read_call(settings, beginning, ids, workers)
        # Kept apart from the history, whose last row may already hold an evaluation made by fit.
        # If no client answered the first call, there is only that of its start.
        criteria = [*criteria, *unseen] or history["log_likelihood"][:1].tolist()
        fitted = fitted_attributes(after, history, criteria, settings)
        store(self, {**fitted, **features}, new_client_ids_=after.ids[n_known:].copy())
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
        labels : ndarray of shape (n_samples,), or a tuple with one for each client

        Raises
        ------
        TypeError, ValueError
            As ``fit``.
        """
        return self.fit(X, y, clients=clients, sample_weight=sample_weight).predict(X)

    def _check_parameters(self) -> None:
        is_data = hasattr(self.n_components, "__len__") and not isinstance(self.n_components, str)
        hint = "Pass data to fit. GridSearchCV compares several numbers." if is_data else ""
        check_number("n_components", self.n_components, kind=Integral, low=1, hint=hint)
        check_choice("covariance_type", self.covariance_type, tuple(COVARIANCES))
        check_choice("init_params", self.init_params, INIT_PARAMS)
        check_number(
            "reg_covar", self.reg_covar, low=0, hint="Use 0 to add nothing to the covariances."
        )
        check_number("n_init", self.n_init, kind=Integral, low=1, hint="Use 1 for a single start.")
        check_switch("warm_start", self.warm_start)
        check_federated_parameters(self)
        check_checkpoint_parameters(self)

    def _initial_parameters(
        self, settings: Any, n_features: int, memory: FittedState | None
    ) -> InitialParameters:
        """Validated initial values, or the fitted parameters to continue from."""
        if memory is None:
            return check_initial_parameters(settings, n_features)
        check_same_kind(settings, n_features, memory.model)
        fitted = InitialParameters(self.weights_, self.means_, self.covariances_)
        return check_initial_parameters(settings, n_features, fitted)
