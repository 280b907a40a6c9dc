"""Cells held out by clients: folds, and observations for training and testing."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .._cells import distinct_cells
from .._data.cells import CellData
from .._error_messages import error_context
from .._federation import offsets_of
from .._imputer.covariates import NO_COVARIATES, GivenCovariates
from .._parameters import check_minibatches
from .._random import VALIDATION, generator
from .._typing import BoolArray, FloatArray, IntArray
from ..solvers._parameters import FederatedParameters


def fold_of_cells(cells: CellData, n_splits: int, seed: int) -> IntArray:
    """Fold of every cell: distinct cells are split at random into nearly equal folds.

    A cell is in the same fold for all clients, because its observations by one client are
    informative about those of others. Only the cells are needed, which the server knows, and no
    values.
    """
    distinct, _, positions = distinct_cells(cells.rows, cells.columns, cells.shape[1])
    if len(distinct) < n_splits:
        raise ValueError(
            f"Expected at least n_splits={n_splits} distinct observed cells (n_samples), got "
            f"{len(distinct)}: each fold holds some out. Use a smaller n_splits, or more cells."
        )
    order = generator(seed, VALIDATION).permutation(len(distinct))
    return (order % n_splits)[positions]


def check_minibatches_without_folds(
    settings: FederatedParameters, cells: CellData, folds: IntArray
) -> None:
    """Raise if a client has too few cells for its minibatches once a fold is held out."""
    owners = np.repeat(np.arange(len(cells.ids)), np.diff(cells.offsets))
    for fold in range(folds.max() + 1):
        lengths = np.bincount(owners[folds != fold], minlength=len(cells.ids))
        has_cells = lengths > 0
        with error_context(f"Without the cells of fold {fold}"):
            check_minibatches(settings, lengths[has_cells], cells.ids[has_cells], "observed cells")


class Triplets(NamedTuple):
    """Observations as ``FederatedMatrixImputer.fit`` takes them.

    ``table`` of shape (n_observations, 3) has site, month and value, ``clients`` their client, and
    ``offset`` their log efforts, if there are any; ``covariates`` are of rows and columns.
    """

    table: FloatArray
    clients: IntArray
    shape: tuple[int, int]
    offset: FloatArray | None = None
    covariates: GivenCovariates = NO_COVARIATES


class Split(NamedTuple):
    """Observations outside and inside a fold."""

    train: Triplets
    test: Triplets


def split_cells(
    cells: CellData, is_test: BoolArray, given: GivenCovariates = NO_COVARIATES
) -> Split:
    """Training and test observations, given the mask of held-out cells."""
    train, test = (_triplets(cells, own) for own in (~is_test, is_test))
    return Split(train._replace(covariates=given), test)


def _triplets(cells: CellData, is_chosen: BoolArray) -> Triplets:
    """Observations of the chosen cells."""
    assert cells.observations is not None  # kept for this
    counts = cells.n_observations.astype(np.intp)
    is_kept = np.repeat(is_chosen, counts)
    values = cells.observations[is_kept]
    offset = None if cells.log_effort is None else cells.log_effort[is_kept]
    counts *= is_chosen
    table = np.empty((len(values), 3))
    table[:, 0] = np.repeat(cells.rows, counts)
    table[:, 1] = np.repeat(cells.columns, counts)
    table[:, 2] = values
    lengths = np.diff(offsets_of(counts)[cells.offsets])
    clients = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    return Triplets(table, clients, cells.shape, offset)
