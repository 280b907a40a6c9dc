"""Cells that clients hold out: which ones, and the clients' data without them or of them alone."""

from __future__ import annotations

import numpy as np
from scipy.sparse import coo_array

from ._federation import offsets_of
from ._random import VALIDATION, ragged_client_uniforms

_NEVER_HELD_OUT = -1


def deal_cells(lengths, n_splits, seed):
    """Fold of every cell, dealt by its client: at random, and as evenly as can be.

    Parameters
    ----------
    lengths : ndarray of int, shape (n_clients,)
        How many cells each client observed.
    n_splits : int
    seed : int

    Returns
    -------
    folds : ndarray of int, shape (sum(lengths),)
        -1 for the only cell of a client, which is never held out.
    """
    clients = np.arange(len(lengths))
    owners = np.repeat(clients, lengths)
    ends = np.cumsum(lengths + 1)
    uniforms = ragged_client_uniforms(seed, VALIDATION, 0, clients, lengths + 1)
    # A client's last number is the fold that it deals to first: small clients do not all begin
    # with the same one.
    first_folds = (uniforms[ends - 1] * n_splits).astype(np.int64)
    order = np.lexsort((np.delete(uniforms, ends - 1), owners))
    dealt = np.arange(len(owners)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    folds = np.empty(len(owners), dtype=np.int64)
    folds[order] = (dealt + first_folds[owners]) % n_splits
    folds[lengths[owners] == 1] = _NEVER_HELD_OUT
    return folds


def check_folds(folds, n_splits):
    empty = np.setdiff1d(np.arange(n_splits), folds)
    if len(empty):
        smaller = "a smaller n_splits, " if n_splits > 2 else ""
        raise ValueError(
            f"Expected cells to hold out in each of n_splits={n_splits} folds, got none in "
            f"{len(empty)} of them: {len(folds)} observed cells (n_samples), of which "
            f"{np.count_nonzero(folds == _NEVER_HELD_OUT)} are a client's only one, not held "
            f"out. Use {smaller}labels of clients with more cells each, as observers are and "
            "single lines are not, or GridSearchCV, which holds clients out."
        )


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
    counts = cells.counts.astype(np.int64)
    seen = np.repeat(kept, counts)
    rows, columns = (np.repeat(index, counts)[seen] for index in (cells.rows, cells.columns))
    values = cells.observations[seen]
    ends = offsets_of(counts * kept)[cells.offsets]
    return [
        coo_array((values[own], (rows[own], columns[own])), shape=cells.shape)
        for own in map(slice, ends[:-1], ends[1:])
    ]
