"""Weights of rows on workers, from one of their columns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from distributed import Client, Future

from .._data.clients import unit_of
from .._data.tables import LARGEST
from .._federation import sample_weight_of
from .._typing import FloatArray
from ._cluster import on_each, results_of
from ._shard import Shard


class Facts(NamedTuple):
    """Smallest and largest weight of the rows of a shard, and the sum of each client's."""

    smallest: float
    largest: float
    totals: FloatArray


class Weighted(NamedTuple):
    """Futures of shards whose rows have weights.

    Attributes
    ----------
    rows : list of Future
    totals : ndarray of shape (n_clients,) or None
        Sums of the weights of each client; None if all weights are equal.
    unit : float
        Unit of these weights, or the weight of every row.
    """

    rows: list[Future]
    totals: FloatArray | None
    unit: float


def with_weights(client: Client, rows: list[Future], column: int) -> Weighted:
    """Have workers take a column of their rows as weights; equal ones are dropped, as in a fit."""
    facts = results_of(client, on_each(client, facts_of, rows, "weights", column))
    largest = max(own.largest for own in facts)
    is_equal = min(own.smallest for own in facts) == largest
    unit = largest if is_equal else unit_of(largest)
    given = column, None if is_equal else unit
    weighed = on_each(client, weighed_rows, rows, "weigh-rows", *given)
    totals = None if is_equal else np.concatenate([own.totals for own in facts]) / unit
    return Weighted(weighed, totals, unit)


def facts_of(shard: Shard, column: int) -> Facts:
    """Facts of the weights in a column, which are positive."""
    federation = shard.federation
    weights = federation.rows[:, column].astype(np.float64)
    bad = np.flatnonzero(~((weights > 0) & (weights <= LARGEST)))
    if len(bad):
        row, whose = shard.locate(int(bad[0]))
        raise ValueError(
            f"Expected sample_weight to be > 0 and at most {LARGEST:g}, got {weights[bad[0]]} in "
            f"row {row}{whose}. Leave such rows out of the files."
        )
    totals = np.add.reduceat(weights, federation.offsets[:-1])
    return Facts(float(weights.min()), float(weights.max()), totals)


def weighed_rows(shard: Shard, column: int, unit: float | None) -> Shard:
    """Shard whose rows have a column as weights, in a unit; without it if the unit is None."""
    federation = shard.federation
    rows = np.delete(federation.rows, column, axis=1)
    weights = None
    if unit is not None:
        values = federation.rows[:, column] / np.float64(unit)
        weights = sample_weight_of(values, federation.offsets)
    return shard.with_rows(rows, weights)
