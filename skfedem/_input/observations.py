"""Conversion of matrices (sparse, or with missing cells) and triplets to observations."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_array

from .._cells import cell_codes
from .._federation import client_groups, offsets_of
from .._messages import plural, repr_of
from .._typing import BoolArray, FloatArray, IntArray, RowsName, Table
from .client_labels import grouped, refuse_name
from .entries import no_numbers, refuse_dtype, refuse_odd_columns
from .matrices import (
    GIVE_MATRICES,
    HOW_NUMBERS,
    as_coo,
    as_numbers,
    client_table,
    refuse_filled_columns,
)
from .table_labels import check_same_labels, is_frame
from .tables import is_missing, refuse_no_clients, refuse_what_is_no_table

_HOW_ROWS = (
    "Give all clients the same sites and months (reindex DataFrames). If each client has rows of "
    "its own, give rows='disjoint'; if these are (site, month, value) triplets, give "
    "shape=(sites, months)."
)
# Rows and columns are int32, so that codes, which are their products, fit into int64.
_MOST_ROWS = 2**31 - 1
# Number of triplets checked at once, to limit the memory in addition to input and result.
_BLOCK = 2**20

_Piece = tuple[NDArray[np.int64], FloatArray]
"""Codes and values of one client's observations."""


class Observations(NamedTuple):
    """Observations, client after client, in any order within a client.

    ``codes`` are defined in ``_cells``. ``ids`` is None for a single client. ``given``, for
    messages, is one table, or a list of the clients' tables; None for triplets.
    """

    codes: NDArray[np.int64]
    values: FloatArray
    offsets: IntArray
    shape: tuple[int, int]
    ids: NDArray[Any] | None = None
    row_offsets: IntArray | None = None
    given: Table | list[Table | None] = None


def observations_of_list(
    X: list[Table], shape: tuple[int, int] | None, missing: float, rows: RowsName
) -> Observations:
    """Observations in the matrices, or with a shape the triplets, of a list of clients."""
    refuse_no_clients(X, GIVE_MATRICES)
    shape = None if shape is None else _checked_shape(shape, rows)
    tables = [client_table(table, f" of client {k}") for k, table in enumerate(X)]
    if shape is None:
        return _of_matrices(X, tables, missing, rows)
    for k, table in enumerate(tables):
        _check_fits_shape(table, shape, f" of client {k}")
    pieces = _from_triplets(tables, shape, missing, " of client {}")
    return _joined(pieces, shape, [None if _is_triplets(table) else table for table in tables])


def _of_matrices(X: list[Table], tables: list[Any], missing: float, rows: RowsName) -> Observations:
    """Observations in clients' matrices, which are stacked if their rows are disjoint."""
    for k, table in enumerate(X):
        refuse_filled_columns(table, missing, f" in the table of client {k}")
    _check_alike(tables, rows)
    check_same_labels(X, rows)
    pieces = [_observed(table, missing) for table in tables]
    n_rows, n_columns = tables[0].shape[-2:]
    if rows == "shared":
        return _joined(pieces, (n_rows, n_columns), X)
    row_offsets = offsets_of([table.shape[-2] for table in tables])
    for (codes, _), first in zip(pieces, row_offsets[:-1], strict=True):
        codes += first * n_columns
    return _joined(pieces, (int(row_offsets[-1]), n_columns), X, row_offsets)


def _joined(
    pieces: list[_Piece],
    shape: tuple[int, int],
    given: list[Table | None],
    row_offsets: IntArray | None = None,
) -> Observations:
    """Observations of all clients, from the codes and values of each."""
    offsets = offsets_of([len(codes) for codes, _ in pieces])
    codes, values = map(np.concatenate, zip(*pieces, strict=True))
    ids = np.arange(len(pieces))
    return Observations(codes, values, offsets, _checked_size(shape), ids, row_offsets, given)


def observations_of_table(
    estimator: BaseEstimator, X: Table, clients: ArrayLike | None, missing: float
) -> Observations:
    """Observations in a table of one client, or of several with a label for each row.

    Error messages name the estimator.
    """
    refuse_name(clients)
    table = _one_table(estimator, X)
    refuse_filled_columns(X, missing)
    codes, values = _observed(table, missing)
    given = X if is_frame(X) else table
    if clients is None:
        return _of_one_client(codes, values, table.shape, given)
    n_rows, n_columns = table.shape
    ids, order, row_offsets = grouped(clients, n_rows)
    owners = np.empty(n_rows, dtype=np.intp)
    owners[slice(None) if order is None else order] = np.repeat(
        np.arange(len(ids)), np.diff(row_offsets)
    )
    # Sort the cells by client, but leave the order of the rows of the matrix.
    owners = owners[codes // n_columns]
    order = np.argsort(owners, kind="stable")
    offsets = offsets_of(np.bincount(owners, minlength=len(ids)))
    return Observations(codes[order], values[order], offsets, table.shape, ids, given=given)


def observations_of_triplets(
    X: Table, clients: ArrayLike | None, shape: tuple[int, int], missing: float, rows: RowsName
) -> Observations:
    """Observations in a table of triplets of one client, or of several with a label for each."""
    refuse_name(clients)
    shape = _checked_shape(shape, rows)
    refuse_what_is_no_table(X)
    if issparse(X):
        raise ValueError(
            "Expected triplets (site, month, value) with `shape`, got a sparse matrix, which has "
            "a shape of its own. Fit without `shape`."
        )
    triplets = triplets_of_one_client(X, shape, missing)
    if clients is None:
        return triplets
    ids, order, offsets = grouped(clients, len(triplets.codes))
    if order is not None:
        triplets = triplets._replace(codes=triplets.codes[order], values=triplets.values[order])
    return triplets._replace(offsets=offsets, ids=ids)


def triplets_of_one_client(X: Table, shape: tuple[int, int], missing: float) -> Observations:
    table = client_table(X, "")
    _check_fits_shape(table, shape, "")
    ((codes, values),) = _from_triplets([table], shape, missing, "")
    return _of_one_client(codes, values, shape)


def _of_one_client(
    codes: NDArray[np.int64], values: FloatArray, shape: tuple[int, int], given: Table = None
) -> Observations:
    return Observations(codes, values, np.array([0, len(codes)]), shape, given=given)


def marker(missing_values: float) -> float:
    """Marker of missing cells, as a float."""
    if np.ndim(missing_values) == 0 and is_missing(missing_values):
        return np.nan
    if isinstance(missing_values, bool | np.bool_) or not isinstance(missing_values, Real):
        raise TypeError(
            f"Expected missing_values to be a number or NaN, got {repr_of(missing_values)} of type "
            f"{type(missing_values).__name__}. NaN also marks None and pandas.NA."
        )
    try:
        return float(missing_values)
    except OverflowError as error:
        raise ValueError(
            "Expected missing_values to be a number that fits in a float, got an integer of "
            f"{len(str(missing_values))} digits. Give the value that marks missing cells."
        ) from error


def _checked_shape(shape: tuple[int, int], rows: RowsName) -> tuple[int, int]:
    """(J, L) of triplets as integers."""
    expected = f"Expected shape=(sites, months), two integers >= 1, got {repr_of(shape)}."
    if not isinstance(shape, list | tuple | np.ndarray) or np.shape(shape) != (2,):
        raise TypeError(
            f"{expected} Give the size of the matrix, not of the triplets. (A search over two "
            "clients splits `shape` as if it were data: give sparse matrices instead.)"
        )
    if not all(isinstance(n, Integral) and not isinstance(n, bool) and int(n) >= 1 for n in shape):
        raise ValueError(f"{expected} Give the size of the matrix, not of the triplets.")
    if rows == "disjoint":
        raise ValueError(
            "Expected rows='shared' with `shape`, got 'disjoint': triplets refer to the rows of "
            "one matrix. Give different row numbers to the rows of different clients."
        )
    n_rows, n_columns = map(int, shape)
    return _checked_size((n_rows, n_columns))


def _checked_size(shape: tuple[int, int]) -> tuple[int, int]:
    if max(shape) > _MOST_ROWS:
        raise ValueError(
            f"Expected at most {_MOST_ROWS} rows and columns, got shape {tuple(shape)}. Leave out "
            "those without observations."
        )
    return shape


def _check_alike(tables: list[Any], rows: RowsName) -> None:
    """Raise unless all matrices have equally many columns and, if shared, rows."""
    first = tables[0].shape[-2:]
    for k, table in enumerate(tables):
        n_rows, n_columns = table.shape[-2:]
        if not all(table.shape):
            raise ValueError(
                "Expected at least one row and one column for every client, got shape "
                f"{table.shape} for client {k}. Leave clients without rows out of the list."
            )
        if n_columns != first[1]:
            raise ValueError(
                f"Expected {plural(first[1], 'column')} for every client as for client 0, got "
                f"{n_columns} for client {k} (shape {table.shape}). Give all clients the same "
                "months (reindex DataFrames)."
            )
        if rows == "shared" and n_rows != first[0]:
            raise ValueError(
                f"Expected {plural(first[0], 'row')} for every client as for client 0, got "
                f"{n_rows} for client {k} (shape {table.shape}). {_HOW_ROWS}"
            )


def _check_fits_shape(table: Any, shape: tuple[int, int], whose: str) -> None:
    """Raise unless a table has triplets or has this shape."""
    if not _is_triplets(table):
        if table.shape[-2:] != shape or not table.shape[0]:
            raise ValueError(
                f"Expected matrices of shape {shape}, got {table.shape} in the table{whose}. Fit "
                "with the shape that all of them have."
            )
    elif table.shape[1] != 3:
        raise ValueError(
            f"Expected triplets (site, month, value) of shape (n, 3), got shape {table.shape} in "
            f"the table{whose}. If this is a matrix of sites x months, make it sparse, or fit "
            "without `shape`."
        )


def _is_triplets(table: Any) -> bool:
    return not issparse(table) and table.ndim == 2


def _from_triplets(
    tables: list[Any], shape: tuple[int, int], missing: float, whose: str
) -> list[_Piece]:
    """Codes and values of each client's triplets, or of its matrix."""
    clients = [k for k, table in enumerate(tables) if _is_triplets(table)]
    pieces = {
        k: _observed(table, missing) for k, table in enumerate(tables) if not _is_triplets(table)
    }
    lengths = np.array([len(tables[k]) for k in clients], dtype=np.intp)
    for group in client_groups(offsets_of(lengths), _BLOCK):
        own = clients[group]
        stacked = np.concatenate([tables[k] for k in own], dtype=np.float64)
        numbers, ends = stacked[:, :2], np.cumsum(lengths[group])
        bad = ~((numbers >= 0) & (numbers < shape) & (numbers == np.floor(numbers)))
        if bad.any():
            row, axis = np.argwhere(bad)[0]
            which = int(np.searchsorted(ends, row, side="right"))
            raise ValueError(
                f"Expected {('site', 'month')[axis]} numbers to be integers from 0 to "
                f"{shape[axis] - 1} for a matrix of shape {shape}, got {numbers[row, axis]} in "
                f"triplet {row - ends[which] + lengths[group][which]}{whose.format(own[which])}. "
                "Number sites and months from 0, or give a larger shape. If this is a matrix of "
                "sites x months, fit without `shape`."
            )
        sites, months = numbers.T.astype(np.int64)
        codes = cell_codes(sites, months, shape[1])
        values = np.ascontiguousarray(stacked[:, 2])
        for k, start, end in zip(own, ends - lengths[group], ends, strict=True):
            pieces[k] = codes[start:end], values[start:end]
    return [pieces[k] for k in range(len(tables))]


def _one_table(estimator: BaseEstimator, X: Table) -> Any:
    """One table as a COO array or matrix, or a 2-D array of float32 or float64."""
    refuse_what_is_no_table(X)
    refuse_odd_columns(X, advice=HOW_NUMBERS)
    if issparse(X):
        table = as_coo(X)
    else:
        try:
            table = as_numbers(X)
        except (TypeError, ValueError, OverflowError) as error:
            raise no_numbers(X, error, "", HOW_NUMBERS, as_numbers) from error
        refuse_dtype(X, table, "", HOW_NUMBERS)
    table = check_array(
        table,
        accept_sparse=True,
        dtype=[np.float64, np.float32, np.float16],  # markers are compared in this dtype
        ensure_all_finite=False,  # check_values names the cell
        estimator=estimator,
        input_name="X",
    )
    _checked_size(table.shape)
    return table


def _missing_cells(table: NDArray[Any], missing: float) -> BoolArray:
    if missing != missing:
        return np.isnan(table)
    if table.dtype.kind != "f":
        return table == missing
    with np.errstate(over="ignore"):
        own, single = table.dtype.type(missing), np.float32(missing)
    # -999.9 is a different number in float32, also after conversion to doubles. Data do not have
    # this value by chance; but they might if the marker were an integer.
    is_marker = table == own
    if single != own and np.isfinite(single) and single % 1:
        is_marker |= table == single
    return is_marker


def _observed(table: Any, missing: float) -> _Piece:
    """Codes and values of the observations in a sparse matrix, or in one with missing cells."""
    n_rows, n_columns = table.shape[-2:]
    if issparse(table):
        codes = cell_codes(table.row, table.col, n_columns)
        return codes, table.data.astype(np.float64, copy=False)
    seen = ~_missing_cells(table, missing)
    codes = np.flatnonzero(seen).astype(np.int64, copy=False)
    if table.ndim == 3:
        codes %= n_rows * n_columns
    return codes, table[seen].astype(np.float64, copy=False)
