"""Rows of minibatches, from uniform random numbers."""

from __future__ import annotations

import numpy as np

from ._federation import Federation, offsets_of
from ._typing import FloatArray, IntArray


def draw_minibatches(uniforms: FloatArray, lengths: IntArray, *, replacement: bool) -> IntArray:
    """Minibatch of each client, as row numbers within the client.

    ``uniforms`` has shape (n_clients, batch_size). Without replacement, the draw is Floyd's
    (Bentley and Floyd, CACM 1987): all subsets are equally likely, and each row takes one number.
    """
    if replacement:
        return (uniforms * lengths[:, None]).astype(np.intp)
    n_clients, batch_size = uniforms.shape
    batches = np.empty((n_clients, batch_size), dtype=np.intp)
    taken, first = np.zeros(int(lengths.sum()), dtype=bool), offsets_of(lengths)[:-1]
    for j in range(batch_size):
        newest = lengths - batch_size + j
        drawn = (uniforms[:, j] * (newest + 1)).astype(np.intp)
        batches[:, j] = np.where(taken[first + drawn], newest, drawn)
        taken[first + batches[:, j]] = True
    return batches


def draw_weighted_minibatches(
    uniforms: FloatArray, federation: Federation, clients: IntArray
) -> IntArray:
    """Minibatch of each client with replacement, rows being drawn in proportion to their weights.

    The row numbers within each client are those of the first rows whose running sum exceeds
    ``uniforms``, of shape (n_clients, batch_size), times the client's total. With integer weights,
    these are the rows that ``draw_minibatches`` draws if each row is repeated as often.
    """
    weighted = federation.sample_weight
    assert weighted is not None  # as described
    starts = federation.offsets[clients][:, None]
    wanted = uniforms * weighted.totals[clients][:, None]
    # Vectorised bisection: the row is among low, ..., high.
    low = np.broadcast_to(starts, wanted.shape)
    high = np.broadcast_to(federation.offsets[clients + 1][:, None] - 1, wanted.shape)
    for _ in range(int(np.max(high - low, initial=0)).bit_length()):
        middle = (low + high) // 2
        is_later = weighted.cumulative[middle] <= wanted
        low = np.where(is_later, np.minimum(middle + 1, high), low)
        high = np.where(is_later, high, middle)
    return low - starts
