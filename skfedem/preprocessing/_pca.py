"""Principal components of the rows of all clients."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassNamePrefixFeaturesOutMixin
from sklearn.decomposition import PCA
from sklearn.utils.validation import check_is_fitted

from .._data.by_client import by_client
from .._data.clients import read_clients, read_rows
from .._data.features import store
from .._data.rows import sum_of_rows
from .._error_messages import repr_of
from .._parallel import Workers
from .._parameters import check_number, check_switch, unfitted
from .._rows import in_blocks, precision_of
from .._typing import ByClient, ClientsLike, FloatArray, OneTable, RowWeights
from ..clients.local import clients_of
from ._moments import n_rows_for_products, pooled_moments
from ._transformer import FederatedTransformer, fitted_clients, read_transformed

_EPS = np.finfo(np.float64).eps
_TIE = 1e-8
# Size of a component, relative to the row, that may be rounding.
_ROUNDING = 1e-10


class FederatedPCA(ClassNamePrefixFeaturesOutMixin, FederatedTransformer):
    """Principal component analysis of the rows of all clients.

    Rows are projected on the components: ``transformed = (rows - mean_) @ components_.T``. The
    components are the eigenvectors of the covariance of all rows, which is a sum over clients. The
    result is that of scikit-learn's ``PCA`` on the pooled rows along all axes with positive
    variance, including signs unless the largest entries of an axis tie. Clients send sums and
    second moments, not rows; but those of a client with one or two rows reveal these rows, and
    those of any client reveal a row that is its only one with a non-zero value in some feature.

    A client's message contains ``n_features * (n_features + 1) / 2`` second moments: 4 MB with
    1,000 features. Rows are read twice, for the sums and for the second moments.

    Read more in :doc:`/preprocessing`.

    Parameters
    ----------
    n_components : int, float in (0, 1) or None, default=None
        Number of components. A float is the share of the variance that they have to explain. 0
        attributes all variance to noise, as a baseline for ``score``. None keeps ``min(n_samples,
        n_features)`` components. scikit-learn's "mle" is not available.
    whiten : bool, default=False
        Whether to divide each component by its standard deviation.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Principal axes, in order of decreasing variance. The entry of largest magnitude of each is
        positive.
    explained_variance_ : ndarray of shape (n_components,)
        Variance along each axis, with divisor ``n_samples_ - 1``.
    explained_variance_ratio_ : ndarray of shape (n_components,)
        Share of each of these in the total variance of the features; 0 if the rows do not vary.
    singular_values_ : ndarray of shape (n_components,)
        Singular values of the centred pooled rows.
    mean_ : ndarray of shape (n_features,)
        Mean of the features.
    noise_variance_ : float
        Mean variance along the axes that are not kept, among the first ``min(n_samples_,
        n_features_in_)``, as in scikit-learn. With more rows than features, it is the noise
        variance of probabilistic PCA [1]_.
    n_components_ : int
        Number of components.
    n_samples_ : int
        Total number of rows of all clients.
    uplink_bits_ : int
        Bits that all clients together sent: numbers of rows, sums, sums of differences from the
        mean and of their products, at 64 bits per number.
    downlink_bits_ : int
        Bits that all clients together received: the mean, its correction, the components and, with
        ``whiten``, the variances.
    setup_messages_ : list of SetUpMessage
        What clients sent and received: the name of each message, the number of clients, and all
        their bits up and down; see :doc:`/what_leaves_a_client`.
    n_clients_ : int
        Number of clients.
    client_ids_ : ndarray of shape (`n_clients_`,)
        Label of each client: the sorted labels from ``clients``, or else its position in the list.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, if the data had string names.

    See Also
    --------
    sklearn.decomposition.PCA : The same for pooled rows.
    FederatedStandardScaler : Scales features to unit variance, usually before PCA.

    Notes
    -----
    Small variances are dominated by the rounding errors of the largest one: below ``n_features +
    100`` times 2.2e-16 times the largest variance, they are set to 0.

    Whitening changes the transformed rows, not the model: unlike with scikit-learn's ``PCA``,
    ``score`` does not depend on ``whiten``.

    References
    ----------
    .. [1] M. E. Tipping and C. M. Bishop, "Probabilistic principal component analysis", Journal of
       the Royal Statistical Society B 61(3), 1999.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedem.preprocessing import FederatedPCA
    >>> clients = [np.array([[0.0, 0.0], [2.0, 1.0]]), np.array([[4.0, 2.0]])]
    >>> pca = FederatedPCA(n_components=1).fit(clients)
    >>> pca.components_.round(3)
    array([[0.894, 0.447]])
    >>> [scores.round(3).tolist() for scores in pca.transform(clients)]
    [[[-2.236], [0.0]], [[2.236]]]
    """

    components_: FloatArray
    explained_variance_: FloatArray
    explained_variance_ratio_: FloatArray
    singular_values_: FloatArray
    mean_: FloatArray
    noise_variance_: float
    n_components_: int
    n_samples_: int

    def __init__(self, n_components: float | None = None, *, whiten: bool = False) -> None:
        self.n_components = n_components
        self.whiten = whiten

    def _fit(self, X: ClientsLike, clients: ArrayLike | None) -> None:
        check_switch("whiten", self.whiten)
        _check_n_components(self.n_components)
        checked = unfitted(self)
        federation, ids, _ = read_clients(checked, X, clients)
        n_samples, n_features = federation.n_samples, checked.n_features_in_
        if n_samples < 2:
            raise ValueError(
                "Expected at least 2 rows of all clients together, got n_samples=1: one row has no "
                "variance."
            )
        largest = min(n_samples, n_features)
        if isinstance(self.n_components, Integral) and self.n_components > largest:
            raise ValueError(
                f"Expected n_components <= min(n_samples, n_features) = {largest}, got "
                f"{self.n_components}. Use fewer components."
            )
        with Workers(1) as workers:
            local = clients_of(X, federation, workers)
            moments = pooled_moments(local, n_features, scatter="products")
        variances, axes = _principal_axes(moments.scatter / (n_samples - 1))
        variances, total = variances[:largest], variances[:largest].sum()
        shares = variances / total if total > 0 else np.zeros(largest)
        size = _n_components(self.n_components, shares)
        local.tell("mean and components", n_features * (1 + size) + size * int(self.whiten))
        uplink_bits, downlink_bits = local.bits()
        store(
            self,
            fitted_clients(checked, ids),
            components_=axes[:size].copy(),
            explained_variance_=variances[:size].copy(),
            explained_variance_ratio_=shares[:size].copy(),
            singular_values_=np.sqrt(variances[:size] * (n_samples - 1)),
            mean_=moments.mean,
            _mean_rest=moments.mean_rest,
            noise_variance_=float(variances[size:].mean()) if size < largest else 0.0,
            n_components_=size,
            n_samples_=n_samples,
            setup_messages_=local.messages,
            uplink_bits_=uplink_bits,
            downlink_bits_=downlink_bits,
        )

    @overload
    def score_samples(self, X: OneTable) -> FloatArray: ...
    @overload
    def score_samples(self, X: ClientsLike) -> ByClient: ...
    def score_samples(self, X: ClientsLike) -> ByClient:
        """Log-likelihood of each row under probabilistic PCA, in nats.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or a list of them

        Returns
        -------
        log_likelihood : ndarray of shape (n_samples,), or a tuple with one for each client

        Raises
        ------
        NotFittedError
            Before ``fit``.
        TypeError, ValueError
            As in ``transform``; and if the covariance is singular, because features are linearly
            dependent and ``n_components`` leaves no variance for the noise.
        """
        check_is_fitted(self)
        self._check_invertible()
        return by_client(X, self._log_likelihoods)

    def score(
        self, X: ClientsLike, y: object = None, sample_weight: RowWeights | None = None
    ) -> float:
        """Mean log-likelihood per row under probabilistic PCA, in nats.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or a list of them
            In a list, all rows have the same weight, whichever client holds them.
        y : Ignored
        sample_weight : array-like of shape (n_samples,), or a list of them, default=None
            Weight of each row in the mean, in the form of X.

        Returns
        -------
        log_likelihood : float

        Raises
        ------
        NotFittedError, TypeError, ValueError
            As in ``score_samples``; and if ``sample_weight`` does not match X.
        """
        log_likelihood, n_samples = sum_of_rows(self.score_samples(X), X, sample_weight)
        return log_likelihood / n_samples

    @property
    def _n_features_out(self) -> int:
        return self.n_components_

    def _transformed(self, X: Any) -> FloatArray:
        """``transform`` of one table."""
        rows = read_rows(self, X)
        return in_blocks(rows, n_rows_for_products(rows.shape[1]), self._projected)

    def _inverse_transformed(self, X: Any) -> FloatArray:
        """``inverse_transform`` of one table."""
        scores = read_transformed(X, self.n_components_)
        axes = self.components_
        if self.whiten:
            axes = np.sqrt(self.explained_variance_)[:, None] * axes
        old = scores.astype(np.float64, copy=False) @ axes
        old += self._mean_rest
        old += self.mean_
        return old.astype(scores.dtype, copy=False)

    def _log_likelihoods(self, X: Any) -> FloatArray:
        """``score_samples`` of one table."""
        rows, of_rows = read_rows(self, X), self._centered_pca().score_samples
        n_rows = n_rows_for_products(rows.shape[1])
        return in_blocks(rows, n_rows, lambda block: of_rows(self._centered(block)))

    def _projected(self, rows: NDArray[Any]) -> FloatArray:
        """Projections of a block of rows."""
        centered = self._centered(rows)
        new = centered @ self.components_.T
        precision = precision_of(rows)
        # Along axes without variance, rows of the fit differ from 0 only by rounding, of the sums
        # or of the numbers in the rows; such values are set to 0.
        is_flat = self.explained_variance_ == 0
        if is_flat.any():
            sizes = np.linalg.norm(centered, axis=1, keepdims=True)
            digits = 4 * np.finfo(precision).eps * (sizes + np.linalg.norm(self.mean_))
            rounding = np.maximum(_ROUNDING * sizes, digits)
            new[is_flat & (np.abs(new) <= rounding)] = 0.0
        if self.whiten:
            scales = np.sqrt(self.explained_variance_)
            # 0 along axes without variance, which only contain rounding errors.
            new = np.divide(new, scales, out=np.zeros_like(new), where=scales > 0)
        return new.astype(precision, copy=False)

    def _centered(self, rows: NDArray[Any]) -> FloatArray:
        return (rows - self.mean_) - self._mean_rest

    def _check_invertible(self) -> None:
        """Raise if the covariance under probabilistic PCA is singular."""
        rank = int(np.count_nonzero(self.explained_variance_))
        if rank < self.n_features_in_ and self.noise_variance_ == 0:
            expected, got, remedy = "at least one axis", rank, "more rows"
            if rank > 0:
                expected = f"n_components < {rank}, the number of axes"
                got, remedy = self.n_components_, "fewer components, more rows"
            raise ValueError(
                f"Expected {expected} along which the rows of the fit vary, for "
                f"{self.n_features_in_} features, got {got}: the noise variance is 0, so that the "
                f"covariance is singular and the rows have no density. Fit with {remedy}, or "
                "without features that are constant or follow from others; standardise features in "
                "unlike units."
            )

    def _centered_pca(self) -> PCA:
        """scikit-learn's PCA with the fitted parameters, for centred rows."""
        # Without whiten: scikit-learn's whitened PCA has another covariance.
        pca = PCA(self.n_components_)
        pca.n_features_in_ = self.n_features_in_
        pca.mean_ = np.zeros(self.n_features_in_)
        for name in ("components_", "explained_variance_", "noise_variance_", "n_components_"):
            setattr(pca, name, getattr(self, name))
        return pca


def _check_n_components(n_components: float | None) -> None:
    if n_components is None:
        return
    hint = "Give a number of components, a share of the variance in (0, 1), or None for all."
    if isinstance(n_components, str) and n_components == "mle":
        raise ValueError(
            'n_components="mle" is not available for federated PCA: give a share of the variance, '
            "as 0.95, or compare numbers of components by `score` on held-out clients."
        )
    if isinstance(n_components, Real) and not isinstance(n_components, Integral):
        if not 0 < float(n_components) < 1:
            raise ValueError(
                f"Expected n_components to be an integer >= 0 or a number between 0 and 1, got "
                f"{repr_of(n_components)}. {hint}"
            )
        return
    check_number("n_components", n_components, kind=Integral, low=0, hint=hint)


def _n_components(wanted: float | None, shares: FloatArray) -> int:
    """Number of components to keep, given their shares of the variance."""
    if wanted is None:
        return len(shares)
    if isinstance(wanted, Integral):
        return int(wanted)
    # The smallest number of components that explain more, as in scikit-learn.
    explained = np.cumsum(shares)
    return min(int(np.searchsorted(explained, wanted, side="right")) + 1, len(shares))


def _principal_axes(covariance: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Variances in decreasing order, and axes as rows, with scikit-learn's sign convention."""
    variances, axes = np.linalg.eigh(covariance)
    variances, axes = variances[::-1], axes[:, ::-1].T
    # Where it should be 0, rounding leaves up to 20 eps of the largest variance.
    rounding = (100 + len(variances)) * _EPS * variances[0]
    variances = np.where(variances > rounding, variances, 0.0)
    # The first of the entries that tie up to rounding: so the signs do not depend on the split.
    sizes = np.abs(axes)
    largest = (sizes > (1 - _TIE) * sizes.max(axis=1, keepdims=True)).argmax(axis=1)
    signs = np.sign(axes[np.arange(len(axes)), largest])
    return variances, axes * signs[:, None]
