"""Mean and second moments of all clients' rows, from two messages per client.

``counts``, ``counts_and_sums`` and ``centred_sums`` are what a client computes of its own rows; the
server only needs their sums over all clients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from .._federation import ClientRows, SetUp, read
from .._history import FLOAT_BITS
from .._typing import FloatArray, IntArray
from ..models.client_rows import segment_products
from ..models.mixture.linear_algebra import flat_upper_indices, unpack

Scatter = Literal["products", "squares"] | None

# Fits into the cache of a processor.
_NUMBERS_AT_ONCE = 2**18


class Moments(NamedTuple):
    """Moments of the rows of all clients, with equal weights.

    Attributes
    ----------
    counts : ndarray of int, shape (n_features,)
        Number of rows in which a feature is not missing.
    mean, mean_rest : ndarray of shape (n_features,)
        The mean in double precision, and its rounding error, to be added to it.
    scatter : ndarray of shape (n_features,) or (n_features, n_features)
        Sums of squares, or of products, of the centred rows; empty if not requested.
    """

    counts: IntArray
    mean: FloatArray
    mean_rest: FloatArray
    scatter: FloatArray


def pooled_moments(clients: SetUp, n_features: int, *, scatter: Scatter) -> Moments:
    """Exact moments of the pooled rows, from two messages of sums per client.

    First, each client sends its number of rows and their sum. Then it receives the mean c of all
    rows, and sends the sums of x - c and of the squares or products of x - c. The second message
    loses no digits, however far the rows are from the origin, and the corrected two-pass formula
    [1]_, eq. 1.7,

    ``scatter = Σ (x - c)(x - c)ᵀ - Σ (x - c) Σ (x - c)ᵀ / n_samples``,

    is exact for any c, so that the rounding of c does not matter. The server only needs the sums
    over all clients.

    Parameters
    ----------
    clients : SetUp
        Their weights are not used. Values may be missing (NaN) unless products are requested.
    n_features : int
    scatter : {"products", "squares", None}
        Second moments to compute: the matrix, its diagonal or none.

    Returns
    -------
    moments : Moments
        Count, mean and scatter are 0 for a feature without any value.

    References
    ----------
    .. [1] T. F. Chan, G. H. Golub and R. J. LeVeque, "Algorithms for computing the sample variance:
       analysis and recommendations", The American Statistician 37(3), 1983.
    """
    d = n_features
    first = clients.sum(counts_and_sums, n_bits=_bits_with_counts(clients.sizes.n_clients, d))
    n_present = first[2 : 2 + d].astype(np.int64)
    present = np.maximum(n_present, 1)
    center = first[2 + d :] / present
    second = clients.sum(centred_sums, center, scatter)
    sums, moment = second[:d], second[d:]
    correction = sums / present
    mean = center + correction
    if scatter == "products":
        moment = unpack(moment[None], d)[0] - np.outer(sums, correction)
    elif scatter == "squares":
        # Rounding can make the result negative for a constant feature.
        moment = np.maximum(moment - sums * correction, 0.0)
    return Moments(n_present, mean, (center - mean) + correction, moment)


def only_counts(clients: SetUp, n_features: int) -> Moments:
    """Only the counts: the returned moments are 0."""
    n_bits = _bits_with_counts(clients.sizes.n_clients, n_features)
    n_present = clients.sum(counts, n_bits=n_bits)[2:]
    zeros = np.zeros(n_features)
    return Moments(n_present.astype(np.int64), zeros, zeros, np.empty(0))


def n_rows_for_products(n_features: int) -> int:
    """Number of rows per block if the products of all features fit into memory anyway."""
    return max(n_features, _NUMBERS_AT_ONCE // n_features)


def n_rows_of_sums(n_features: int) -> int:
    """Number of rows per block if no products are computed."""
    return max(64, _NUMBERS_AT_ONCE // n_features)


# ---- messages: what each client sends


def counts(rows: ClientRows) -> FloatArray:
    """Number of rows, whether values are missing, and the number of values of each feature."""
    return counts_and_sums(rows)[:, : 2 + rows.federation.rows.shape[1]]


def counts_and_sums(rows: ClientRows) -> FloatArray:
    """As ``counts``, then the sums of the values of each feature."""
    federation, clients, _ = rows
    d = federation.rows.shape[1]
    sums, n_missing = np.zeros((2, len(clients), d))
    for group, block, lengths, _ in read(federation, clients, n_rows_of_sums(d)):
        y = block.astype(np.float64, copy=False)
        own = _sums(y, lengths)
        if np.isnan(own).any():
            missing = np.isnan(y)
            n_missing[group] += _sums(missing.astype(np.float64), lengths)
            own = _sums(np.where(missing, 0.0, y), lengths)
        sums[group] += own
    n_rows = federation.lengths_of(clients)[:, None]
    incomplete = n_missing.any(axis=1, keepdims=True)
    return np.hstack([n_rows, incomplete, n_rows - n_missing, sums])


def centred_sums(rows: ClientRows, center: FloatArray, scatter: Scatter) -> FloatArray:
    """Sum of rows minus ``center``, and of the squares or products of these.

    Of the products, the upper triangle. Missing values add nothing.
    """
    federation, clients, _ = rows
    n, d = len(clients), len(center)
    sums = np.zeros((n, d))
    moments = np.zeros((n, {"products": d * d, "squares": d, None: 0}[scatter]))
    n_rows = n_rows_for_products(d) if scatter == "products" else n_rows_of_sums(d)
    for group, block, lengths, _ in read(federation, clients, n_rows):
        y = block - center
        own = _sums(y, lengths)
        if np.isnan(own).any():
            y[np.isnan(y)] = 0.0
            own = _sums(y, lengths)
        sums[group] += own
        if scatter == "products":
            columns = np.ascontiguousarray(y.T)
            moments[group] += segment_products(columns, columns, lengths)
        elif scatter == "squares":
            moments[group] += _sums(y * y, lengths)
    if scatter == "products":
        moments = moments[:, flat_upper_indices(d)]
    return np.hstack([sums, moments])


def _sums(y: FloatArray, lengths: IntArray) -> FloatArray:
    """Sum of each client's rows."""
    return np.add.reduceat(y, np.cumsum(lengths) - lengths, axis=0)


def _bits_with_counts(n_clients: int, n_features: int) -> Callable[[FloatArray], int]:
    """Bits of all messages with counts: a single one from clients without missing values."""

    def n_bits(total: FloatArray) -> int:
        n_sums = len(total) - 2 - n_features
        return FLOAT_BITS * (n_clients * (1 + n_sums) + int(total[1]) * (n_features - 1))

    return n_bits
