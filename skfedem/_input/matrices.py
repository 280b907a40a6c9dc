"""Forms of the imputer's data: lists and tables, tables as numbers, and numbers of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse

from .._messages import error_context, plural
from .._typing import IntArray, Table
from .entries import (
    as_array,
    check_dimensions,
    no_numbers,
    refuse_dtype,
    refuse_odd_entries,
    refuse_times,
)
from .tables import is_client_list, is_missing, refuse_masked, refuse_no_clients, unmasked

GIVE_MATRICES = (
    "Give a list with one sites x months matrix for each client (an array or DataFrame with "
    "missing cells, a sparse matrix of the observed ones, or a 3-D array of several observers), "
    "(site, month, value) triplets with `shape=`, or one matrix alone for a single client."
)

HOW_NUMBERS = (
    "Put names of sites in the index of a DataFrame (set_index). In triplets (site, month, value), "
    "which are fitted with their `shape`, number sites and months from 0. Give NaN for missing "
    "cells. Encode or drop other columns that are not numbers."
)


def is_cell_list(X: object) -> TypeGuard[Sequence[Any]]:
    """Whether X is a list of clients rather than one table."""
    return is_client_list(X) or (isinstance(X, list | tuple) and any(map(issparse, X)))


def holds_clients(X: object) -> bool:
    """Whether X is a list of clients, or a 3-D array of observers."""
    return is_cell_list(X) or (not issparse(X) and getattr(X, "ndim", 2) == 3)


def each_matrix(
    X: Sequence[Table], answer: Callable[[Table], Any], first: int = 0
) -> tuple[Any, ...]:
    """Answers for the tables of a list, or of the observers of a 3-D array, from ``first`` on."""
    refuse_no_clients(X)
    whose = "observer" if getattr(X, "ndim", 1) == 3 else "client"
    answers = []
    for k, table in enumerate(X, first):
        with error_context(f"In the matrix of {whose} {k}"):
            if is_cell_list(table):
                raise ValueError("expected one table, got a list of tables. Give a 3-D array.")
            answers.append(answer(table))
    return tuple(answers)


def client_table(table: Table, whose: str) -> Any:
    """One client's table as a COO array or matrix, or a 2-D or 3-D array of numbers."""
    where = f" in the table{whose}"
    if issparse(table):
        return as_coo(table, where)
    or_else = ", or a 3-D array if one client has them all"
    refuse_odd_entries(table, whose, or_else, HOW_NUMBERS)
    try:
        array = as_numbers(table)
    except (TypeError, ValueError, OverflowError) as error:
        raise no_numbers(table, error, where, HOW_NUMBERS, as_numbers) from error
    refuse_dtype(table, array, where, HOW_NUMBERS)
    check_dimensions(table, array, (2, 3), f"Expected a 2-D or 3-D table{whose}", GIVE_MATRICES)
    return array


def refuse_filled_columns(table: Table, missing: float, where: str = "") -> None:
    """Raise for sparse columns of pandas whose fill value is a number.

    In a scipy.sparse matrix, from which they may come, cells that are not stored are missing.
    """
    for dtype in getattr(table, "dtypes", ()):
        fill = getattr(dtype, "fill_value", missing)
        if not (is_missing(fill) or fill == missing):
            raise TypeError(
                f"Expected sparse columns whose fill value marks missing cells{where}, got "
                f"{dtype}. Give a matrix of scipy.sparse, as X.sparse.to_coo() makes it, if cells "
                "that are not stored are missing, or X.astype(float) if they were observed."
            )


def as_coo(matrix: Any, where: str = "") -> Any:
    """Sparse matrix in COO format, with the same entries."""
    kind = type(matrix).__name__
    if matrix.ndim != 2:
        raise ValueError(
            f"Expected a 2-D sparse matrix, got {plural(matrix.ndim, 'dimension')}{where}. "
            f"{GIVE_MATRICES}"
        )
    if matrix.format == "dia" or (matrix.format == "bsr" and matrix.blocksize != (1, 1)):
        stores = "diagonals" if matrix.format == "dia" else "blocks"
        raise TypeError(
            "Expected a sparse format that stores single entries (COO, CSR, CSC, LIL, DOK), got a "
            f"{kind}{where}: it stores whole {stores}, whose padding cannot be told from observed "
            "zeros. Build a coo_array of the observed cells."
        )
    if matrix.dtype.kind not in "biuf":
        raise ValueError(
            f"Expected real numbers, got a {kind} of dtype {matrix.dtype}{where}. "
            + ("Complex data not supported." if matrix.dtype.kind == "c" else "Convert them.")
        )
    return matrix.tocoo()


def as_numbers(table: Table) -> NDArray[Any]:
    """Array with any number of dimensions; None, pandas.NA and masked entries become NaN."""
    array = as_array(unmasked(table))
    if array.dtype != object:
        return array
    refuse_times(array)
    try:
        if hasattr(table, "isna"):  # a frame of pandas.NA is converted faster as a whole
            return table.to_numpy(np.float64, na_value=np.nan)
        return array.astype(np.float64)
    except TypeError:
        missing = np.asarray(np.frompyfunc(is_missing, 1, 1)(array), dtype=bool)
        if not missing.any():
            raise
        return np.where(missing, np.nan, array).astype(np.float64)


def checked_index(name: str, index: ArrayLike | None, size: int) -> IntArray:
    """Row or column numbers as an array."""
    if index is None:
        return np.arange(size)
    refuse_masked(name, index)
    index = np.atleast_1d(np.asarray(index))
    if not index.size:
        return np.empty(0, dtype=np.intp)
    if index.ndim != 1 or index.dtype.kind not in "iu":
        hint = " numpy.flatnonzero makes numbers of a mask." if index.dtype == bool else ""
        raise TypeError(
            f"Expected {name} to be a list of integers, the numbers of {name}, got an array of "
            f"dtype {index.dtype} and shape {index.shape}.{hint}"
        )
    outside = index[(index < -size) | (index >= size)]
    if len(outside):
        raise IndexError(
            f"Expected {name} from 0 to {size - 1}, or from -{size} to -1 to count from the end, "
            f"got {outside[0]}."
        )
    return index
