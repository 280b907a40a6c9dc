"""What clients of a mixture send before the first round: functions of their own rows.

Each takes the ``ClientRows`` of some clients, and returns one message per client: a row of numbers,
or an array of a list if messages differ in length. The server learns nothing else of the rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import _random
from ..._federation import ClientRows, read
from ..._rows import take_rows
from ..._typing import FloatArray, IntArray
from ..client_rows import segment_products, sum_of_rows
from .gaussian_mixture import GaussianMixtureModel
from .linear_algebra import ROUNDING, flat_upper_indices

# Numbers that fit into the cache of a processor.
_AT_ONCE = 2**16


def _rows_at_once(n_features: int) -> int:
    return max(64, _AT_ONCE // n_features)


def mean_of_rows(rows: ClientRows) -> FloatArray:
    """Mean of each client's rows, shape (n_clients, n_features)."""
    federation, clients, _ = rows
    d = federation.rows.shape[1]
    # Relative to a client's first row, so that a constant feature has an exact mean.
    first = take_rows(federation.rows, federation.offsets[clients]).astype(np.float64)
    sums = np.zeros((len(clients), d))
    for group, block, lengths, weights in read(federation, clients, _rows_at_once(d)):
        apart = np.subtract(block, np.repeat(first[group], lengths, axis=0), order="C").T
        weighted = np.ascontiguousarray(apart if weights is None else apart * weights)
        sums[group] += np.add.reduceat(weighted, np.cumsum(lengths) - lengths, axis=1).T
    return first + sums / federation.totals_of(clients)[:, None]


def second_moment(rows: ClientRows, center: FloatArray, matrix: bool) -> FloatArray:
    """Mean of y yᵀ, packed, or of y² over each client's rows, where y is a row minus ``center``."""
    federation, clients, _ = rows
    d = len(center)
    sums = np.zeros((len(clients), d * d if matrix else d))
    for group, block, lengths, weights in read(federation, clients, _rows_at_once(d)):
        y = np.ascontiguousarray(np.subtract(block, center, order="C").T)
        weighted = y if weights is None else y * weights
        if matrix:
            sums[group] += segment_products(weighted, y, lengths)
        else:
            starts = np.cumsum(lengths) - lengths
            sums[group] += np.add.reduceat(weighted * y, starts, axis=1).T
    means = sums / federation.totals_of(clients)[:, None]
    return means[:, flat_upper_indices(d)] if matrix else means


def statistics_of_nearest(
    rows: ClientRows, model: GaussianMixtureModel, centers: FloatArray
) -> FloatArray:
    """Mean statistics of each client if rows belong to the nearest of ``centers``."""
    # Relative to the median of the centres: otherwise, a large common offset would cost digits of
    # the differences.
    middle = np.median(centers, axis=0)
    offsets = np.ascontiguousarray(centers - middle)
    half_squares = 0.5 * np.square(offsets).sum(axis=1)

    def posterior(block: NDArray[Any], lengths: IntArray, group: slice) -> FloatArray:
        apart = block - middle
        likeness = _by_rows(apart, offsets) - half_squares
        # The first of the centres that are equally near up to rounding.
        rounding = ROUNDING * (_by_rows(np.abs(apart), np.abs(offsets)) + 2 * half_squares)
        nearest = likeness + rounding >= (likeness - rounding).max(axis=1, keepdims=True)
        return np.equal(nearest.argmax(axis=1), np.arange(len(centers))[:, None]).astype(float)

    return _assigned_means(rows, model, posterior)


def _by_rows(left: FloatArray, right: FloatArray) -> FloatArray:
    """``left @ right.T``, rounded the same for any number of rows."""
    return np.einsum("ij,gj->ig", left, right)


def random_statistics(rows: ClientRows, model: GaussianMixtureModel, seed: int) -> FloatArray:
    """Mean statistics under posterior probabilities that each client draws for its rows."""
    n_read = np.zeros(len(rows.clients), dtype=np.int64)

    def posterior(block: NDArray[Any], lengths: IntArray, group: slice) -> FloatArray:
        positions = np.arange(len(block)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        numbers = np.repeat(n_read[group], lengths) + positions
        n_read[group] += lengths
        keys = (np.repeat(rows.ids[group], lengths) << 32 | numbers).astype(np.uint64)
        address = seed, _random.INITIALISATION, 0
        shares = np.ascontiguousarray(_random.row_uniforms(*address, keys, model.n_components).T)
        return shares / sum_of_rows(shares)

    return _assigned_means(rows, model, posterior)


def _assigned_means(rows: ClientRows, model: GaussianMixtureModel, posterior: Any) -> FloatArray:
    """Mean statistics of each client under ``posterior(block, lengths, group)``."""
    federation, clients, _ = rows
    sums = np.zeros((len(clients), model.n_statistics))
    for group, block, lengths, weights in read(federation, clients, model.block_rows):
        shares = np.ascontiguousarray(posterior(block, lengths, group))
        # Features are not kept for the next block, as they take most of the memory.
        sums[group] += model.assigned(
            shares, model.client_features(block, lengths), lengths, weights
        )
    return sums / federation.totals_of(clients)[:, None]


def expected_statistics(
    rows: ClientRows, model: GaussianMixtureModel, parameters: Any
) -> FloatArray:
    """s̄_i(θ) of each client."""
    return model.all_rows(rows.federation, parameters, rows.clients).statistics


def n_rows_too_far(
    rows: ClientRows, model: GaussianMixtureModel, limit: float, is_known: bool
) -> FloatArray:
    """Number of each client's rows beyond ``limit`` standard deviations, shape (n_clients, 1).

    A feature that has been constant so far has no unit, unless the covariance ``is_known``.
    """
    federation, clients, _ = rows
    counts = np.zeros((len(clients), 1))
    units = model.units
    has_unit = (units.standard_deviations > 0) | is_known
    for group, block, lengths, _ in read(federation, clients, model.block_rows):
        far = ((np.abs(block - units.center) > limit * units.scale) & has_unit).any(axis=1)
        counts[group, 0] += np.add.reduceat(far, np.cumsum(lengths) - lengths, dtype=float)
    return counts
