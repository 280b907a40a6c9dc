"""Gaussian mixtures fitted by federated EM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Self, overload

from numpy.typing import ArrayLike
from sklearn.utils.validation import validate_data

from ._callbacks import CallbackSupportMixin, with_callbacks
from ._data.clients import read_clients
from ._data.features import check_columns_of_fit, features_of, store
from ._data.labels import warn_of_ignored_labels
from ._data.tables import first_table
from ._estimators.fit import fit
from ._federation import Elsewhere
from ._mixture.fit_steps import MixtureFit, initial_parameters, memory_of_fit
from ._mixture.partial_fit import run_call
from ._mixture.prediction import FittedMixture
from ._parameters import check_enough_rows, check_switch, read_parameters, unfitted
from ._typing import (
    ClientsLike,
    FilePath,
    IntArray,
    LabelsByClient,
    OneTable,
    RowWeights,
    available_if,
)
from .models.mixture.initial_parameters import MixtureParameters, check_mixture_parameters
from .solvers._fitted_state import at_average
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
    that of scikit-learn's ``GaussianMixture``. Read more in :doc:`/user_guide`.

    The clients are simulated on this machine: their messages are computed and counted, not sent.
    Statistics are not private, and a fitted estimator contains those of each client:
    :doc:`/what_leaves_a_client`.

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
        Number of starts. The fit with the largest log-likelihood is kept.
    init_params : {"kmeans", "k-means++", "random_from_data", "random"}, default="kmeans"
        Method that finds a start. "kmeans": each client sends the centroids and counts of its
        clusters of at least two different rows, and the server clusters these. "k-means++" and
        "random_from_data" choose rows as centres: **these, and the candidates that "k-means++"
        tries, are revealed to the server**. Rows are then assigned to their nearest centre.
        "random": clients draw random posterior probabilities.
    weights_init : array-like of shape (n_components,), default=None
        Initial weights of the components.
    means_init : array-like of shape (n_components, n_features), default=None
        Initial means of the components. Unless given as well, the initial weights and covariances
        are estimated from the rows nearest to each mean: their share, and their scatter about it.
    precisions_init : array-like, default=None
        Initial precisions, in the shape of ``precisions_``.
    solver : {"fedem", "vr_fedem"}, default="fedem"
        Algorithm 1 or 2 of [1]_; they only differ with ``batch_size``.
    step_size : float in (0, 1], "auto" or callable, default="auto"
        Step size γ of the update ``statistics += step_size * field``, or a function of the round
        number, counted from 1. "auto" is 1 if rounds are exact (``omega=0``, ``participation=1``
        and all rows), and otherwise follows :doc:`/step_sizes`.
    control_step : float in [0, 1], or "auto", default="auto"
        Step size α of the control variates. "auto" is 1 / (1 + ω), where ω is the operator's actual
        variance for messages of this length; in ``partial_fit``, a tenth of that. Much larger steps
        diverge. 0 with ``control_init="zeros"`` is naive FedEM, without control variates.
    control_init : {"field", "zeros"}, default="field"
        Initial control variates: each client's field h_i(Ŝ_0), at the cost of a pass over all rows
        and an uncompressed message per client; or zeros, as always in ``partial_fit``.
    batch_size : int, default=None
        Minibatch size b: the number of rows that an active client reads in a round; None for all of
        its rows.
    replacement : bool, default=True
        Whether minibatches are drawn with replacement; if not, clients need ``batch_size`` rows.
    n_inner : int or "auto", default="auto"
        Number k_in of VR-FedEM's inner rounds between two passes over all rows. "auto" is (1 + ω)
        sqrt(m / 2) / ``participation``, rounded up (Appendix E.2 of [1]_), with m rows per client.
    compressor : {"dithering", "block", "rand_k"}, Compressor or None, default="dithering"
        Operator that compresses the messages, see ``skfedem.compression``. Ignored if ``omega=0``.
    omega : float >= 0, default=0.0
        Relative variance ω of the compression: E||Quant(x)||² <= (1 + ω)||x||² for a message x; 0
        disables it. An operator given by its name uses the coarsest level within this bound; a
        ``Compressor`` object keeps its own level.
    participation : float in (0, 1], or int, default=1.0
        Probability p that a client takes part in a round, or the number of clients that take part,
        drawn without replacement: 1.0 are all clients, 1 is one client.
    client_weights : {"n_samples", "uniform"}, default="n_samples"
        Weight w_i of a client: its share of all rows, so that the objective is the pooled
        likelihood, or the same weight for every client.
    max_iter : int or None, default=100
        Maximum number of rounds; None requires ``max_epochs``.
    max_epochs : float, default=None
        Maximum number of epochs, with as many conditional expectations of rows as there are rows.
    tol : float, default=1e-3
        Tolerance for convergence, in nats per row. Exact rounds stop when the log-likelihood
        changes by less than ``tol`` times γ; random rounds after three windows of rounds without
        progress. A fit may stop early on a plateau; 1e-5 is safer. 0 runs all rounds.
    eval_every : int, "auto" or None, default="auto"
        Number of rounds between evaluations of the log-likelihood and the mean field over all rows,
        for ``history_``; "auto" evaluates once per epoch, None never. Exact rounds yield both.
    random_state : int, RandomState instance or None, default=None
        Pass an int for reproducible results. Reordering the clients is like changing the seed.
    n_jobs : int, default=None
        Number of threads that simulate the clients, as in joblib. The result does not depend on it.
    verbose : int, default=0
        1 prints every tenth round and how a run ended, 2 prints every round.
    checkpoint : path-like, default=None
        File in which to save the run for ``fit(..., resume_from=path)``; requires ``n_init=1``. The
        previous save is kept, with ``.previous`` appended to its name.
    checkpoint_every : int, default=100
        Number of rounds between saves. The last round is saved too, unless interrupted.
    warm_start : bool, default=False
        Whether to continue from the last fit: its statistics Ŝ, its parameters, its count of
        rounds, and the control variates V_i of clients whose label (or position in a list) is
        known. ``n_init`` and initial values are then ignored. See :doc:`/user_guide`.

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
        Log-likelihood in nats per row, with clients weighted by ``client_weights``: after exact
        rounds at the last E-step, as in scikit-learn; after ``partial_fit`` that of the last rows
        before they were read.
    lower_bounds_ : list of float
        The log-likelihoods that were computed during the fit.
    setup_messages_ : list of SetUpMessage
        What clients sent and received before the rounds of the last call: the name of each message,
        the number of clients, and all their bits up and down; see :doc:`/what_leaves_a_client`.
    history_ : dict of ndarray
        History of the fit: row 0 is the start, row r the state after round r. The entries are
        ``round``, ``epoch``, ``log_likelihood``, ``field_sq_norm`` (||H||², of the server's
        estimate of the field), ``mean_field_sq_norm`` (||h(Ŝ)||²), ``step_size`` (the γ that was
        applied), ``n_active`` (clients that took part), ``uplink_bits`` and ``downlink_bits`` (of
        all clients together), ``safeguarded`` (how often the step was cut to stay in the domain of
        the M-step, plus one if rare components were left unchanged), and ``weights`` of shape
        (n_rows, n_components). Values that were not evaluated are NaN. Squared norms are in
        standard units (rows whitened or scaled).
    n_clients_ : int
        Number of clients.
    client_ids_ : ndarray of shape (`n_clients_`,)
        Label of each client: the sorted labels from ``clients``, or else its position in the list.
        After ``partial_fit``, clients are in the order in which they joined.
    new_client_ids_ : ndarray
        Labels of the clients that were new in the last call of ``partial_fit``.
    client_drift_ : ndarray of shape (`n_clients_`,)
        ||V_i||, a measure of how much a client differs from the others, in standard units.
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
            Present for scikit-learn's API. To pass client labels, write ``fit(X, clients=labels)``.
        clients : array-like of shape (n_samples,), default=None
            Client label of each row of X, if X is one table.
        sample_weight : array-like of shape (n_samples,), or a list of them, default=None
            Weight of each row: an array for one table, or a list with one array for each client.
            Only the ratios of weights matter, and an integer weight is equivalent to repeating the
            row. Minibatches draw rows in proportion to their weights, with replacement.
        resume_from : path-like, default=None
            Checkpoint to resume from, of a run with the same data and parameters; ``max_iter``,
            ``max_epochs``, ``checkpoint``, ``checkpoint_every``, ``n_jobs``, ``verbose`` and
            ``warm_start`` may differ, and ``random_state`` may be None. The result is bit for bit
            that of an uninterrupted run, except for an additional evaluation in ``history_``.

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
            If ``tol`` was not reached; if noise shortened steps, or lost components or likelihood;
            or if the fit was interrupted from the keyboard, which keeps what it has reached.
        UserWarning
            If ``clients``, ``batch_size`` or a ``Compressor`` do not fit the data, if y has labels,
            if rows lie too far apart for float64, if a variance is due to ``reg_covar``, or if a
            checkpoint could not be written.
        """
        self._check_parameters()
        settings, checked = read_parameters(self), unfitted(self)
        memory = memory_of_fit(self) if self.warm_start else None
        if memory is not None:
            check_columns_of_fit(self, X)
        how: dict[str, Any] = {"client_weights": self.client_weights, "drop_equal_weights": True}
        data = read_clients(checked, X, clients, sample_weight, **how)
        check_enough_rows(data.federation.n_samples, settings.n_components)
        warn_of_ignored_labels(X, y, clients)
        initial = initial_parameters(self, settings, checked.n_features_in_, memory)
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
        of every client. The first call determines the standard units and a start, and fits its rows
        before its own round: give it many rows. A call after ``fit`` continues from that fit;
        ``fit`` starts afresh, unless ``warm_start=True``.

        With ``step_size="auto"``, steps decrease with the number of rows read so far, and fitted
        attributes are those of an average of Ŝ over the rounds. Read in :doc:`/streams` what steps,
        absent and new clients, ``history_`` and the other parameters mean in a stream.

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
        if isinstance(X, Elsewhere):
            raise TypeError(f"Expected tables, got {type(X).__name__}. Use fit.")
        settings, checked, memory = read_parameters(self), unfitted(self), memory_of_fit(self)
        check_columns_of_fit(self, X)  # if there was one
        weights = self.client_weights
        data = read_clients(checked, X, clients, sample_weight, client_weights=weights)
        features, history, criteria = features_of(checked), None, None
        if memory is None:
            check_enough_rows(data.federation.n_samples, settings.n_components)
        else:
            features, history, criteria = features_of(self), self.history_, self.lower_bounds_
            validate_data(self, first_table(X), reset=False, skip_check_array=True)
        initial = initial_parameters(self, settings, checked.n_features_in_, memory)
        store(self, {**run_call(settings, data, initial, memory, history, criteria), **features})
        return self

    @overload
    def fit_predict(self, X: OneTable, y: object = None, **fit_params: Any) -> IntArray: ...
    @overload
    def fit_predict(
        self, X: ClientsLike, y: object = None, **fit_params: Any
    ) -> LabelsByClient: ...
    def fit_predict(self, X: ClientsLike, y: object = None, **fit_params: Any) -> LabelsByClient:
        """Fit the mixture and return the most probable component of each row.

        Parameters
        ----------
        X, y
            As in ``fit``.
        fit_params : dict
            Further arguments of ``fit``.

        Returns
        -------
        labels : ndarray of shape (n_samples,), or a tuple with one for each client

        Raises
        ------
        TypeError, ValueError
            As ``fit``.
        """
        return self.fit(X, y, **fit_params).predict(X)

    def _check_parameters(self) -> None:
        check_mixture_parameters(self)
        check_switch("warm_start", self.warm_start)
        check_federated_parameters(self)
        check_checkpoint_parameters(self)
