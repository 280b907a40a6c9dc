"""Sums over clients that do not depend on where they are, or on who is processed together."""

from __future__ import annotations

from functools import reduce
from itertools import groupby, pairwise
from operator import add, itemgetter
from typing import Any, NamedTuple

import numpy as np

from .._client_vectors import ClientVectors
from .._federation import MOST_CLIENTS, ClientSizes, client_groups, offsets_of
from .._typing import FloatArray, IntArray
from ..models.client_rows import sum_of_rows
from ..solvers.base import Solver, Task
from ..solvers.messages import AggregatedMessages, Message, stacked

# Numbers of rows and of shards: a shard has at least as many rows as the first, ...
_ROWS_OF_A_SHARD = 2**12
# ... there are at most so many, ...
_SHARDS = 16
# ... unless they would have more rows than this, which is work for many machines.
_MOST_ROWS_OF_A_SHARD = 2**22
MOST_SHARDS = 256
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

    def blocks(self, block_rows: int) -> list[slice]:
        """Runs of segments that are processed together."""
        if len(self.slices) == 1:
            return [slice(0, 1)]
        # Bounded in clients as well: with few rows each, their vectors are what fills the cache.
        n_clients = np.array([own.stop - own.start for own in self.slices], dtype=np.intp)
        sizes = np.maximum(self.n_rows, n_clients * block_rows // MOST_CLIENTS)
        return client_groups(offsets_of(sizes), block_rows)


def shards_of(lengths: IntArray) -> IntArray:
    """First client of each shard, and the number of clients, from the clients' numbers of rows."""
    offsets = offsets_of(lengths)
    n_rows = int(offsets[-1])
    few = min(_SHARDS, n_rows // _ROWS_OF_A_SHARD)
    n_shards = max(1, few, min(MOST_SHARDS, n_rows // _MOST_ROWS_OF_A_SHARD))
    cuts = np.searchsorted(offsets, n_rows * np.arange(n_shards + 1) // n_shards)
    return np.unique(np.append(cuts, len(lengths)))


def segments_of(clients: IntArray, n_rows: IntArray, shards: IntArray, block_rows: int) -> Segments:
    """Segments of some clients, in increasing order, that read ``n_rows`` rows each."""
    total = int(n_rows.sum())
    if len(shards) == 2 and total <= block_rows and 0 < len(clients) <= MOST_CLIENTS:
        return Segments([slice(0, len(clients))], [0], [total])
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


def segments_of_all(lengths: IntArray, block_rows: int, shards: IntArray | None = None) -> Segments:
    """Segments of all clients, which read all their rows; by default in their shards."""
    shards = shards_of(lengths) if shards is None else shards
    return segments_of(np.arange(len(lengths)), lengths, shards, block_rows)


def segments_of_round(task: Task, n_rows: IntArray, shards: IntArray, active: IntArray) -> Segments:
    """Segments of the active clients, which have ``n_rows`` rows each, of a round.

    ``shards`` are those of all clients.
    """
    if task.batch_size is not None:
        n_rows = np.full(len(active), task.batch_size)
    return segments_of(active, n_rows, shards, task.model.block_rows)


def weighted_terms(
    layout: ClientVectors,
    weights: FloatArray,
    clients: IntArray,
    vectors: FloatArray,
    segments: list[slice],
) -> list[FloatArray]:
    """Σ w_i v_i over each of some segments of these clients, from their weights and vectors."""
    return [
        layout.weighted(weights[own], clients[own], vectors[at])
        for own, at in zip(segments, layout.split(clients, segments), strict=True)
    ]


def weighted_total(
    layout: ClientVectors,
    sizes: ClientSizes,
    clients: IntArray,
    vectors: FloatArray,
    segments: Segments,
) -> FloatArray:
    """Σ w_i v_i over some clients, segment by segment and shard by shard."""
    weights = sizes.weights[clients]
    terms = weighted_terms(layout, weights, clients, vectors, segments.slices)
    return layout.total(clients, terms, segments.shards)


def aggregate(
    solver: Solver,
    task: Task,
    sizes: ClientSizes,
    active: IntArray,
    messages: list[Message],
) -> AggregatedMessages:
    """What the server's half sees of messages that arrive one by one.

    They are those of the ``active`` clients, in order; ``sizes`` are those of all.
    """
    total, shards = np.empty(0), shards_of(sizes.lengths)
    if solver.aggregates:
        layout = task.model.vectors(sizes)
        segments = segments_of_round(task, sizes.lengths[active], shards, active)
        vectors = np.concatenate([own.quantized for own in messages] or [np.empty(0)])
        total = weighted_total(layout, sizes, active, vectors, segments)
    return aggregated(solver, sizes.weights, shards, active, messages, total)


def aggregated(
    solver: Solver,
    weights: FloatArray,
    shards: IntArray,
    active: IntArray,
    messages: list[Message],
    message_sum: FloatArray,
) -> AggregatedMessages:
    """What the server's half sees, from messages of groups of clients, in order, and their sum.

    ``weights`` and ``shards`` are those of all clients.
    """

    def weighted(parts: list[Any], nothing: float | None) -> Any:
        """Σ w_i times numbers that every client sent, or ``nothing``."""
        if not parts or parts[0] is None:
            return nothing
        bounds = np.searchsorted(active, shards)
        return sum_of_shards(weights[active], np.concatenate(parts), bounds)

    return AggregatedMessages(
        message_sum,
        active=active,
        n_bytes=sum(own.n_bytes for own in messages),
        n_expectations=sum(own.n_expectations for own in messages),
        log_likelihood=weighted([own.log_likelihood for own in messages], None),
        uncompressed=weighted([own.uncompressed for own in messages], 0.0),
        each=stacked(messages) if messages and not solver.aggregates else None,
    )


def sum_of_shards(weights: FloatArray, numbers: FloatArray, shards: IntArray) -> Any:
    """Σ w_i times the numbers of each client: those of each shard, and then over the shards."""
    pairs = pairwise(shards.tolist())
    return reduce(add, (weights[a:b] @ numbers[a:b] for a, b in pairs if a < b))


def joined(
    parts: list[AggregatedMessages], active: IntArray, message_sum: FloatArray
) -> AggregatedMessages:
    """What the server's half sees of shards that were asked apart, in order.

    ``active`` are the clients of all parts, and ``message_sum`` is the sum of theirs.
    """
    likelihoods = [own.log_likelihood for own in parts]
    sent = [own.each for own in parts]
    return AggregatedMessages(
        message_sum,
        active=active,
        n_bytes=sum(own.n_bytes for own in parts),
        n_expectations=sum(own.n_expectations for own in parts),
        log_likelihood=None if None in likelihoods else reduce(add, likelihoods),
        uncompressed=reduce(add, (own.uncompressed for own in parts)),
        each=None if None in sent else stacked(sent),
    )


def sum_in_order(messages: FloatArray, total: FloatArray | float = 0.0) -> FloatArray:
    """``total`` plus the messages of further clients (n, k), one by one; they are overwritten."""
    messages[0] += total
    return sum_of_rows(messages)


class MeanTerm(NamedTuple):
    """A part of a weighted mean: Σ w_i, m of its first client, Σ w_i (m_i - first)."""

    weight: float
    first: FloatArray
    deviation: FloatArray


def mean_term(weights: FloatArray, messages: FloatArray) -> MeanTerm:
    """Part of a segment, from the messages of its clients."""
    first = messages[0].copy()  # a view would keep all messages
    apart = np.subtract(messages, first, order="C")  # products of other layouts round otherwise
    return MeanTerm(float(weights.sum()), first, weights @ apart)


def joined_terms(terms: list[MeanTerm]) -> MeanTerm:
    """Part of a mean that consists of these parts, in order."""
    origin = terms[0].first
    deviations = [own.deviation + own.weight * (own.first - origin) for own in terms]
    return MeanTerm(sum(own.weight for own in terms), origin, reduce(add, deviations))


def mean_of_terms(terms: list[MeanTerm], shards: list[int]) -> FloatArray:
    """Weighted mean, relative to the first client's message: equal messages have an exact mean."""
    whole = joined_terms(terms_of_shards(terms, shards))
    return whole.first + whole.deviation


def terms_of_shards(terms: list[MeanTerm], shards: list[int]) -> list[MeanTerm]:
    """Part of each shard, from those of its segments."""
    pairs = groupby(zip(terms, shards, strict=True), itemgetter(1))
    return [joined_terms([own for own, _ in pair]) for _, pair in pairs]
