"""Held-out cells of clients: their choice, and the training and test observations."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .._cells import distinct_cells
from .._federation import offsets_of
from .._input.cells import CellData
from .._random import VALIDATION, generator
from .._typing import BoolArray, FloatArray, IntArray


def deal_cells(cells: CellData, n_splits: int, seed: int) -> IntArray:
    """Fold of every cell: distinct cells are split at random into nearly equal folds.

    A cell is in the same fold for all clients, because its observations by one client are
    informative about those of others. Only the cells are needed, which the server knows, and no
    values.
    """
    distinct, _, which = distinct_cells(cells.rows, cells.columns, cells.shape[1])
    if len(distinct) < n_splits:
        raise ValueError(
            f"Expected at least n_splits={n_splits} distinct observed cells (n_samples), got "
            f"{len(distinct)}: each fold holds some out. Use "
            f"{'a smaller n_splits, or ' if n_splits > 2 else ''}more cells."
        )
    order = generator(seed, VALIDATION).permutation(len(distinct))
    return (order % n_splits)[which]


class Triplets(NamedTuple):
    """Observations as ``FederatedMatrixImputer.fit`` takes them.

    Attributes
    ----------
    table : ndarray of shape (n_observations, 3)
        Site, month, value.
    clients : ndarray of int, shape (n_observations,)
        Increasing positions of the clients.
    shape : tuple of int
        (J, L).
    """

    table: FloatArray
    clients: IntArray
    shape: tuple[int, int]


def split_cells(cells: CellData, held_out: BoolArray) -> tuple[Triplets, Triplets]:
    """Observations, as triplets, outside and inside a mask of held-out cells."""
    return _triplets(cells, ~held_out), _triplets(cells, held_out)


def _triplets(cells: CellData, kept: BoolArray) -> Triplets:
    assert cells.observations is not None  # kept for this
    counts = cells.counts.astype(np.intp)
    is_chosen = np.repeat(kept, counts)
    counts *= kept
    table = np.empty((counts.sum(), 3))
    table[:, 0] = np.repeat(cells.rows, counts)
    table[:, 1] = np.repeat(cells.columns, counts)
    table[:, 2] = cells.observations[is_chosen]
    lengths = np.diff(offsets_of(counts)[cells.offsets])
    return Triplets(table, np.repeat(np.arange(len(lengths), dtype=np.int32), lengths), cells.shape)
