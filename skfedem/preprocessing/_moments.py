"""Mean and second moments of all clients' rows, from two messages per client."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from .._federation import Federation, read
from .._history import FLOAT_BITS
from .._typing import FloatArray, IntArray

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
    uplink_bits, downlink_bits : int
        Bits that all clients together sent and received.
    """

    counts: IntArray
    mean: FloatArray
    mean_rest: FloatArray
    scatter: FloatArray
    uplink_bits: int
    downlink_bits: int


def pooled_moments(federation: Federation, *, scatter: Scatter) -> Moments:
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
    federation : Federation
        Its weights are not used. Values may be missing (NaN) unless products are requested.
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
    n, d = federation.n_clients, federation.rows.shape[1]
    counts, sums, _, n_counts = _sums_about(federation, np.zeros(d), None)
    present = np.maximum(counts, 1)
    center = sums / present
    _, sums, moment, _ = _sums_about(federation, center, scatter)
    correction = sums / present
    mean = center + correction
    if scatter == "products":
        moment = moment - np.outer(sums, correction)
    elif scatter == "squares":
        # Rounding can make the result negative for a constant feature.
        moment = np.maximum(moment - sums * correction, 0.0)
    second = d + {"products": d * (d + 1) // 2, "squares": d, None: 0}[scatter]
    uplink = n_counts + n * (d + second)
    return Moments(
        counts=counts,
        mean=mean,
        mean_rest=(center - mean) + correction,
        scatter=moment,
        uplink_bits=FLOAT_BITS * uplink,
        downlink_bits=FLOAT_BITS * n * d,
    )


def only_counts(federation: Federation) -> Moments:
    """Only the counts: the returned moments are 0."""
    zeros = np.zeros(federation.rows.shape[1])
    counts, _, _, n_counts = _sums_about(federation, zeros, None)
    return Moments(counts, zeros, zeros, np.empty(0), FLOAT_BITS * n_counts, 0)


def n_rows_for_products(n_features: int) -> int:
    """Number of rows per block if the products of all features fit into memory anyway."""
    return max(n_features, _NUMBERS_AT_ONCE // n_features)


def n_rows_of_sums(n_features: int) -> int:
    """Number of rows per block if no products are computed."""
    return max(64, _NUMBERS_AT_ONCE // n_features)


def _sums_about(
    federation: Federation, center: FloatArray, scatter: Scatter
) -> tuple[IntArray, FloatArray, FloatArray, int]:
    """Sums over all rows: of ones, of ``rows - center`` and of its squares or products.

    The last value is the number of counts that all clients send: one per client, or one per feature
    from clients with NaN.
    """
    d = len(center)
    incomplete = np.zeros(federation.n_clients, dtype=bool)
    counts, sums = np.zeros(d, dtype=np.int64), np.zeros(d)
    moment = np.zeros({"products": (d, d), "squares": (d,), None: (0,)}[scatter])
    n_rows = n_rows_for_products(d) if scatter == "products" else n_rows_of_sums(d)
    for group, rows, lengths, _ in read(federation, np.arange(federation.n_clients), n_rows):
        y = rows - center
        counts += len(y)
        own = y.sum(axis=0)
        if np.isnan(own).any():
            missing = np.isnan(y)
            y[missing] = 0.0
            counts -= missing.sum(axis=0)
            incomplete[group] |= np.logical_or.reduceat(
                missing.any(axis=1), np.cumsum(lengths) - lengths
            )
            own = y.sum(axis=0)
        sums += own
        if scatter == "products":
            moment += y.T @ y
        elif scatter == "squares":
            moment += np.einsum("ij,ij->j", y, y)
    return counts, sums, moment, federation.n_clients + int(incomplete.sum()) * (d - 1)
