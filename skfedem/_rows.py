"""Rows that are not copied, in place of an array of a federation's rows; rows in blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._typing import IntArray


class JoinedRows:
    """Concatenated rows of several tables, without copying them.

    Implements the part of an array's interface that federations use: length, shape, slices and
    ``take``.

    Parameters
    ----------
    tables : list of ndarray of shape (n_i, n_features)
        Usually memory-mapped, so that rows are loaded from disk when they are read.
    """

    def __init__(self, tables: list[NDArray[Any]]) -> None:
        self.tables = tables
        self.offsets = np.cumsum([0, *map(len, tables)], dtype=np.intp)
        self.dtype = np.result_type(*(table.dtype for table in tables))

    def __len__(self) -> int:
        return int(self.offsets[-1])

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and of features."""
        return len(self), self.tables[0].shape[1]

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        """Rows of a slice; they are only copied if they belong to several tables."""
        start, stop, _ = rows.indices(len(self))
        first = int(np.searchsorted(self.offsets, start, side="right")) - 1
        last = int(np.searchsorted(self.offsets, stop, side="left"))
        pieces = [
            self.tables[k][max(start - offset, 0) : stop - offset]
            for k, offset in enumerate(self.offsets[first:last].tolist(), start=first)
        ]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def take(self, positions: IntArray, axis: int = 0) -> NDArray[Any]:
        """Copy of rows by position; fast if consecutive ``positions`` are in the same table."""
        owners = np.searchsorted(self.offsets, positions, side="right") - 1
        taken = np.empty((len(positions), self.shape[1]), dtype=self.dtype)
        indices = positions - self.offsets[owners]
        cuts = np.flatnonzero(np.diff(owners, prepend=-1, append=-1))
        for k, (start, stop) in zip(
            owners[cuts[:-1]].tolist(), pairwise(cuts.tolist()), strict=True
        ):
            taken[start:stop] = take_rows(self.tables[k], indices[start:stop])
        return taken


class ReorderedRows:
    """Rows of one table in another order, without copying them.

    Implements the part of an array's interface that federations use: length, shape, slices and
    ``take``.

    Parameters
    ----------
    table : ndarray of shape (n_samples, n_features), JoinedRows or ReorderedRows
    order : ndarray of int, shape (n_samples,)
        Position in the table of each row.
    """

    def __init__(self, table: Rows, order: IntArray) -> None:
        self.table = table
        self.order = order
        self.dtype: np.dtype[Any] = table.dtype

    def __len__(self) -> int:
        return len(self.order)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and of features."""
        return len(self), self.table.shape[1]

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        """Copy of the rows of a slice."""
        return take_rows(self.table, self.order[rows])

    def take(self, positions: IntArray, axis: int = 0) -> NDArray[Any]:
        """Copy of rows by their numbers."""
        return take_rows(self.table, self.order[positions])


Rows = NDArray[Any] | JoinedRows | ReorderedRows


class LabelledRows:
    """Rows with a target each, which slices and ``take`` keep; iterates over features and targets.

    Parameters
    ----------
    features : ndarray of shape (n_samples, n_features), JoinedRows or ReorderedRows
    targets : ndarray of shape (n_samples, ...)
    """

    def __init__(self, features: Rows, targets: NDArray[Any]) -> None:
        self.features, self.targets = features, targets

    def __len__(self) -> int:
        return len(self.targets)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.features, self.targets))

    def __getitem__(self, rows: slice) -> LabelledRows:
        """Rows of a slice."""
        return LabelledRows(self.features[rows], self.targets[rows])

    def take(self, positions: IntArray, axis: int = 0) -> LabelledRows:
        """Copy of rows by their numbers."""
        return LabelledRows(take_rows(self.features, positions), self.targets[positions])


def in_blocks(
    rows: Rows, n_rows: int, function: Callable[[NDArray[Any]], NDArray[Any]]
) -> NDArray[Any]:
    """Apply a function, which returns a row or a number for each row, to blocks of rows.

    The results for all blocks have the same type.
    """
    first = function(rows[:n_rows])
    if len(rows) <= n_rows:
        return first
    # Preallocated: concatenating blocks would need twice the memory.
    results = np.empty((len(rows), *first.shape[1:]), dtype=first.dtype)
    results[:n_rows] = first
    for start in range(n_rows, len(rows), n_rows):
        results[start : start + n_rows] = function(rows[start : start + n_rows])
    return results


def precision_of(rows: Rows) -> np.dtype[Any]:
    """Type of results computed from rows: float32 for float32 rows, otherwise float64."""
    return rows.dtype if rows.dtype == np.float32 else np.dtype(np.float64)


def take_rows(rows: Rows, positions: IntArray) -> NDArray[Any]:
    """Copy of rows by position, without copying the rest of the table."""
    if isinstance(rows, np.ndarray) and not rows.flags.c_contiguous:
        return rows[positions]  # `take` would copy the whole table first
    return rows.take(positions, axis=0)
