"""Sums over clients that do not depend on where they are, or on who is processed together."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from .._client_vectors import sum_by_shard
from .._federation import MOST_CLIENTS, client_groups, offsets_of
from .._typing import FloatArray, IntArray

# Clients are cut into at most this many shards, by their numbers of rows alone, ...
MOST_SHARDS = 16
# ... which have at least as many rows as this many blocks of an E-step.
_BLOCKS_OF_A_SHARD = 4
# Number of rows that a mean or a sum reads at once.
ROWS_OF_A_MEAN = 2**15


class Segments(NamedTuple):
    """Runs of clients that are summed at once.

    A total is the sum over shards, in order, of the sums over their segments, in order. It does not
    depend on which segments are processed together, where, or on how many workers.

    Attributes
    ----------
    slices : list of slice
        Positions among the clients that are summed.
    shards : list of int
        Shard of each segment.
    n_rows : list of int
        Number of rows of each segment.
    """

    slices: list[slice]
    shards: list[int]
    n_rows: list[int]


def shards_of(lengths: IntArray, block_rows: int) -> IntArray:
    """First client of each shard, and the number of clients, from the clients' numbers of rows."""
    offsets = offsets_of(lengths)
    n_rows = int(offsets[-1])
    n_shards = max(1, min(MOST_SHARDS, n_rows // (_BLOCKS_OF_A_SHARD * block_rows)))
    cuts = np.searchsorted(offsets, n_rows * np.arange(n_shards + 1) // n_shards)
    return np.unique(np.append(cuts, len(lengths)))


def segments_of(clients: IntArray, n_rows: IntArray, shards: IntArray, block_rows: int) -> Segments:
    """Segments of some clients, in increasing order, that read ``n_rows`` rows each."""
    offsets, bounds = offsets_of(n_rows), np.searchsorted(clients, shards)
    slices, numbers, sums = [], [], []
    for shard, (first, last) in enumerate(pairwise(bounds.tolist())):
        if first == last:
            continue
        groups = [slice(0, last - first)]
        if offsets[last] - offsets[first] > block_rows or last - first > MOST_CLIENTS:
            groups = client_groups(offsets[first : last + 1] - offsets[first], block_rows)
        for group in groups:
            own = slice(first + group.start, first + group.stop)
            slices.append(own)
            numbers.append(shard)
            sums.append(int(offsets[own.stop] - offsets[own.start]))
    return Segments(slices, numbers, sums)


def segments_of_all(lengths: IntArray, block_rows: int) -> Segments:
    """Segments of all clients, which read all their rows."""
    every, shards = np.arange(len(lengths)), shards_of(lengths, block_rows)
    return segments_of(every, lengths, shards, block_rows)


class MeanTerm(NamedTuple):
    """A segment's part of a weighted mean: Σ w_i, m of its first client, Σ w_i (m_i - first)."""

    weight: float
    first: FloatArray
    deviation: FloatArray


def mean_term(weights: FloatArray, messages: FloatArray) -> MeanTerm:
    """Part of a segment, from the messages of its clients."""
    first = messages[0].copy()  # a view would keep all messages
    return MeanTerm(float(weights.sum()), first, weights @ (messages - first))


def mean_of_terms(terms: list[MeanTerm], shards: list[int]) -> FloatArray:
    """Weighted mean, relative to the first client's message: equal messages have an exact mean."""
    origin = terms[0].first
    deviations = [own.deviation + own.weight * (own.first - origin) for own in terms]
    return origin + sum_by_shard(deviations, shards)
