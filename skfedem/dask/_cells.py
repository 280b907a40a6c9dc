"""Cells of a matrix, where workers have the triplets of their observations."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
from distributed import Client, Future

from .._data.cells import CellData, CellReading, mean_of_sums, unread_cells
from .._federation import Federation, offsets_of
from .._typing import FloatArray, IntArray
from ..clients.sums import shards_of
from ..models.matrix.start import cell_federation, weights_of_cells
from ._cluster import on_each, results_of
from ._shard import Shard


class Facts(NamedTuple):
    """What a fit needs to know of some clients before it asks for their cells.

    Arrays have an entry per client: numbers of cells, sums of observations, their numbers, and
    these or efforts, see ``CellData``.
    """

    lengths: IntArray
    sums: FloatArray
    n_observations: FloatArray
    counts: FloatArray


class Cells(NamedTuple):
    """Futures of shards of cells, the first client of each, and all that a fit knows of them."""

    rows: list[Future]
    shards: IntArray
    federation: Federation
    data: CellData


def read_cells(
    client: Client, triplets: list[Future], bounds: IntArray, ids: Any, reading: CellReading
) -> Cells:
    """Have workers make cells of triplets; ``bounds`` are the first clients of their shards.

    Shards of cells are cut by numbers of cells, as in one process: where several observations have
    a cell in common, some clients change the worker.
    """
    asked = on_each(client, facts_of, triplets, "count-cells", reading)
    facts = Facts(*map(np.concatenate, zip(*results_of(client, asked), strict=True)))
    origin = 0.0
    if reading.from_mean:
        origin = mean_of_sums(facts.sums, facts.n_observations.sum())
    shards, rows = shards_of(facts.lengths), []
    for first, last in pairwise(shards.tolist()):
        overlap = slice(
            int(np.searchsorted(bounds, first, side="right")) - 1,
            int(np.searchsorted(bounds, last)),
        )
        rows.append(
            client.submit(
                cells_of,
                triplets[overlap],
                (first, last),
                reading,
                origin,
                key=f"read-cells-{uuid4().hex}",
            )
        )
    offsets = offsets_of(facts.lengths)
    weights = weights_of_cells(facts.lengths, facts.counts, reading.client_weights)
    return Cells(
        rows,
        shards,
        Federation(None, offsets, weights),
        unread_cells(facts.lengths, facts.sums, ids, reading.shape, origin),
    )


def facts_of(shard: Shard, reading: CellReading) -> Facts:
    """Facts of the clients of a shard of triplets."""
    data = _cells([shard], reading)
    starts = data.offsets[:-1]
    n_observations, counts = (
        np.add.reduceat(own, starts) for own in (data.n_observations, data.counts)
    )
    return Facts(np.diff(data.offsets), data.sums, n_observations, counts)


def cells_of(
    shards: list[Shard], clients: tuple[int, int], reading: CellReading, origin: float
) -> Shard:
    """Shard with the cells of some clients, from the shards that have their triplets."""
    first, last = clients
    parts = [
        own.part(max(first, int(own.ids[0])), min(last, int(own.ids[-1]) + 1)) for own in shards
    ]
    labels = np.concatenate([own.labels for own in parts])
    federation = cell_federation(_cells(parts, reading, origin), reading.client_weights)
    return Shard(federation, np.arange(first, last), labels, None)


def _cells(shards: list[Shard], reading: CellReading, origin: float = 0.0) -> CellData:
    rows = np.concatenate([own.federation.rows for own in shards])
    lengths = np.concatenate([own.federation.lengths for own in shards])
    labels = np.concatenate([own.labels for own in shards])
    return reading.cells(rows, offsets_of(lengths), labels, origin)
