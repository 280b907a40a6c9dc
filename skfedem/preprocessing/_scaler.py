"""Standardisation with the means and variances of all clients' rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import OneToOneFeatureMixin
from sklearn.utils import Tags

from .._data.clients import read_clients, read_rows
from .._data.features import store
from .._parallel import Workers
from .._parameters import check_switch, unfitted
from .._rows import in_blocks, precision_of
from .._typing import BoolArray, ClientsLike, FloatArray, IntArray
from .._warnings import warn
from ..clients.local import clients_of
from ._moments import n_rows_of_sums, only_counts, pooled_moments
from ._transformer import FederatedTransformer, fitted_clients, read_transformed

_EPS = np.finfo(np.float64).eps


class FederatedStandardScaler(OneToOneFeatureMixin, FederatedTransformer):
    """Standardise features by mean and standard deviation over the rows of all clients.

    ``transformed = (rows - mean_) / scale_``, as with scikit-learn's ``StandardScaler`` on the
    pooled rows. Clients send sums, not rows; but the sums of a client with one or two rows, or of a
    feature with one or two values at a client, reveal these values.

    Missing values (NaN) are ignored in the sums and stay missing.

    Read more in :doc:`/preprocessing`.

    Parameters
    ----------
    with_mean : bool, default=True
        Whether to subtract the mean.
    with_std : bool, default=True
        Whether to divide by the standard deviation.

    Attributes
    ----------
    mean_ : ndarray of shape (n_features,) or None
        Mean of each feature; None with ``with_mean=False`` and ``with_std=False``. 0 for a feature
        without any value.
    var_ : ndarray of shape (n_features,) or None
        Variance of each feature, with the number of rows as divisor; None with ``with_std=False``.
    scale_ : ndarray of shape (n_features,) or None
        Standard deviation of each feature, or 1 if it is constant; None with ``with_std=False``.
    n_samples_seen_ : int or ndarray of int, shape (n_features,)
        Total number of rows of all clients; an array with one number per feature if missing values
        make them differ.
    uplink_bits_ : int
        Bits that all clients together sent: numbers of rows, sums, sums of differences from the
        mean and of their squares, at 64 bits per number.
    downlink_bits_ : int
        Bits that all clients together received: the mean, its correction and the scale.
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
    sklearn.preprocessing.StandardScaler : The same for pooled rows.
    FederatedPCA : Also removes linear correlations.

    Notes
    -----
    Rows far from the origin (with mean 1e8 and standard deviation 1, say) lose no digits: the
    second sums are centred at the mean, and ``transform`` also corrects for the rounding error of
    ``mean_``.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedem.preprocessing import FederatedStandardScaler
    >>> clients = [np.array([[0.0, 1.0], [2.0, 1.0]]), np.array([[4.0, 1.0]])]
    >>> scaler = FederatedStandardScaler().fit(clients)
    >>> scaler.mean_
    array([2., 1.])
    >>> scaler.transform(clients)[0].round(3)
    array([[-1.225,  0.   ],
           [ 0.   ,  0.   ]])
    """

    mean_: FloatArray | None
    var_: FloatArray | None
    scale_: FloatArray | None
    n_samples_seen_: int | IntArray

    def __init__(self, *, with_mean: bool = True, with_std: bool = True) -> None:
        self.with_mean = with_mean
        self.with_std = with_std

    def _fit(self, X: ClientsLike, clients: ArrayLike | None) -> None:
        check_switch("with_mean", self.with_mean)
        check_switch("with_std", self.with_std)
        checked = unfitted(self)
        federation, ids, _ = read_clients(checked, X, clients, allow_nan=True)
        d = checked.n_features_in_
        with Workers(1) as workers:
            local = clients_of(X, federation, workers)
            if self.with_mean or self.with_std:
                moments = pooled_moments(local, d, scatter="squares" if self.with_std else None)
            else:
                moments = only_counts(local, d)
        local.tell("mean and scale", d * (int(self.with_mean) + int(self.with_std)))
        uplink_bits, downlink_bits = local.bits()
        variance = scale = None
        if self.with_std:
            variance = moments.scatter / np.maximum(moments.counts, 1)
            constant = _is_constant(variance, moments.mean)
            scale = np.where(constant, 1.0, np.sqrt(variance))
        counts = moments.counts
        store(
            self,
            fitted_clients(checked, ids),
            mean_=moments.mean if self.with_mean or self.with_std else None,
            _mean_rest=moments.mean_rest,
            var_=variance,
            scale_=scale,
            n_samples_seen_=int(counts[0]) if (counts == counts[0]).all() else counts,
            setup_messages_=local.messages,
            uplink_bits_=uplink_bits,
            downlink_bits_=downlink_bits,
        )
        unseen = np.flatnonzero(counts == 0)
        if len(unseen):
            names = ", ".join(map(str, unseen[:5])) + ", ..." * (len(unseen) > 5)
            columns = f"column {names}, which is left unscaled"
            if len(unseen) > 1:
                columns = f"{len(unseen)} columns ({names}), which are left unscaled"
            warn(
                f"No client has a value in {columns}. Drop such columns.",
                UserWarning,
            )

    def _transformed(self, X: Any) -> FloatArray:
        """``transform`` of one table."""
        rows = read_rows(self, X, allow_nan=True)
        return _by_precision(rows, self._standardized)

    def _inverse_transformed(self, X: Any) -> FloatArray:
        """``inverse_transform`` of one table."""
        rows = read_transformed(X, self.n_features_in_, allow_nan=True)
        return _by_precision(rows, self._restored)

    def _standardized(self, rows: Any) -> FloatArray:
        """Standardised block of rows."""
        new = rows.astype(np.float64)
        if self.with_mean:
            new -= self.mean_
            new -= self._mean_rest
        if self.with_std:
            new /= self.scale_
        return new.astype(precision_of(rows), copy=False)

    def _restored(self, rows: Any) -> FloatArray:
        """Block of rows in the original units."""
        old = rows.astype(np.float64)
        if self.with_std:
            old *= self.scale_
        if self.with_mean:
            old += self._mean_rest
            old += self.mean_
        return old.astype(rows.dtype, copy=False)

    def __sklearn_tags__(self) -> Tags:
        """Accept missing values."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


def _by_precision(
    rows: NDArray[Any], transform: Callable[[NDArray[Any]], FloatArray]
) -> FloatArray:
    """Transform rows; float32 rows in blocks, because they are converted to float64 meanwhile."""
    if rows.dtype != np.float32:
        return transform(rows)
    return in_blocks(rows, n_rows_of_sums(rows.shape[1]), transform)


def _is_constant(variance: FloatArray, mean: FloatArray) -> BoolArray:
    """Whether a variance may be 0 up to rounding, with a margin.

    Unlike in scikit-learn, the bound need not grow with the number of rows, as sums are centred.
    """
    return variance <= (4 * _EPS * mean) ** 2
