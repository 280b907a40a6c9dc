"""Cells that clients hold out: which ones, and the clients' data without them or of them alone."""

from __future__ import annotations

import numpy as np
from scipy.sparse import coo_array

from ._cells import distinct_cells
from ._federation import offsets_of
from ._random import VALIDATION, generator


def deal_cells(cells, n_splits, seed):
    """Fold of every cell: distinct ones are dealt at random, and as evenly as can be.

    All clients hold a cell out for the same fold, whoever saw it: what one of them saw would tell a
    fit what others hold out. Only the cells are needed, which the server knows, and no value.

    Parameters
    ----------
    cells : CellData
    n_splits : int
    seed : int

    Returns
    -------
    folds : ndarray of int, shape (n_cells,)

    Raises
    ------
    ValueError
        If there are fewer distinct cells than folds.
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


def split_cells(cells, held_out):
    """Clients without the cells of a mask, and the clients with these cells alone.

    Parameters
    ----------
    cells : CellData
        With its observations.
    held_out : ndarray of bool, shape (n_cells,)

    Returns
    -------
    training, test : list of coo_array
        One sparse matrix for each client; an entry is an observation.
    """
    return _tables(cells, ~held_out), _tables(cells, held_out)


def _tables(cells, kept):
    counts = cells.counts.astype(np.intp)
    seen = np.repeat(kept, counts)
    rows, columns = (np.repeat(index, counts)[seen] for index in (cells.rows, cells.columns))
    values = cells.observations[seen]
    ends = offsets_of(counts * kept)[cells.offsets]
    return [
        coo_array((values[own], (rows[own], columns[own])), shape=cells.shape)
        for own in map(slice, ends[:-1], ends[1:])
    ]
