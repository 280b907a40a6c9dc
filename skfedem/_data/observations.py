"""Observations of cells, from matrices (sparse, or with missing cells) and triplets."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from sklearn.base import BaseEstimator

from .._cells import cell_codes
from .._error_messages import label_repr, plural, repr_of
from .._federation import client_groups, offsets_of, owners_of
from .._typing import BoolArray, FloatArray, IntArray, RowsName, Table
from .effort import effort_of, efforts_of_list
from .frame_labels import check_same_labels, label_text, table_labels
from .labels import group_rows
from .matrices import GIVE_MATRICES, client_matrix, single_matrix
from .tables import LARGEST, check_not_empty, is_frame, is_missing

Family = Any
"""``Family`` of the models, which validation does not import."""

# Rows and columns are int32, so that codes, which are their products, fit into int64.
_MOST_ROWS = 2**31 - 1
# Number of triplets checked at once, to limit the memory in addition to input and result.
_BLOCK = 2**20


class Observations(NamedTuple):
    """Observations, client after client, in any order within a client.

    ``codes`` are defined in ``_cells``. ``ids`` is None for a single client. ``tables``, for
    messages, is one table, or a list of the clients' tables; None for triplets. ``log_effort`` is
    the offset of each observation, if there is one.
    """

    codes: NDArray[np.int64]
    values: FloatArray
    offsets: IntArray
    shape: tuple[int, int]
    ids: NDArray[Any] | None = None
    row_offsets: IntArray | None = None
    tables: Table | list[Table | None] = None
    log_effort: FloatArray | None = None


def observations_of_list(
    X: list[Table],
    shape: tuple[int, int] | None,
    missing: float,
    rows: RowsName,
    offset: Any = None,
) -> Observations:
    """Observations in the matrices, or with a shape the triplets, of a list of clients."""
    check_not_empty(X, GIVE_MATRICES)
    given: list[Table | None] = X
    row_offsets = None
    if shape is not None:
        shape = _checked_shape(shape, rows)
        tables = [client_matrix(table, f" for client {k}") for k, table in enumerate(X)]
        for k, table in enumerate(tables):
            _check_fits_shape(table, shape, f" for client {k}")
        effort = efforts_of_list(offset, tables, has_triplets=True)
        names = [f" of client {k}" for k in range(len(tables))]
        pieces = _from_triplets(tables, shape, missing, names, effort)
        given = [None if _is_triplets(table) else table for table in tables]
    else:
        tables = [client_matrix(table, f" for client {k}") for k, table in enumerate(X)]
        _check_shapes(tables, rows)
        check_same_labels(X, rows)
        effort = efforts_of_list(offset, tables, X)
        pieces = [_observed(*own, missing) for own in zip(tables, effort, strict=True)]
        n_rows, n_columns = tables[0].shape[-2:]
        if rows == "disjoint":
            row_offsets = offsets_of([table.shape[-2] for table in tables])
            n_rows = int(row_offsets[-1])
            for (codes, _, _), first in zip(pieces, row_offsets[:-1], strict=True):
                codes += first * n_columns
        shape = _checked_size((n_rows, n_columns))
    *parts, efforts = zip(*pieces, strict=True)
    codes, values = map(np.concatenate, parts)
    log_effort = None if offset is None else np.concatenate(efforts)
    offsets = offsets_of([len(codes) for codes, _, _ in pieces])
    ids = np.arange(len(X))
    return Observations(codes, values, offsets, shape, ids, row_offsets, given, log_effort)


def observations_of_stacked(
    triplets: NDArray[Any],
    offsets: IntArray,
    ids: NDArray[Any],
    shape: tuple[int, int],
    missing: float,
) -> Observations:
    """Observations in triplets of clients with these labels, client after client."""
    shape = _checked_shape(shape, "shared")
    _check_fits_shape(triplets, shape, "")
    tables = np.split(triplets, offsets[1:-1])
    names = [f" of client {label_repr(label)}" for label in ids]
    pieces = _from_triplets(tables, shape, missing, names, [None] * len(ids))
    codes, values, _ = zip(*pieces, strict=True)
    return Observations(np.concatenate(codes), np.concatenate(values), offsets, shape, ids)


def observations_of_table(
    estimator: BaseEstimator,
    X: Table,
    clients: ArrayLike | None,
    missing: float,
    offset: Any = None,
) -> Observations:
    """Observations in a matrix of one client, or of several with a label for each row.

    Error messages name the estimator.
    """
    table = single_matrix(estimator, X)
    shape = n_rows, n_columns = _checked_size(table.shape)
    effort = None if offset is None else effort_of(offset, table, "", X)
    codes, values, log_effort = _observed(table, effort, missing)
    given = X if is_frame(X) else table
    if clients is None:
        offsets = np.array([0, len(codes)])
        return Observations(codes, values, offsets, shape, None, None, given, log_effort)
    ids, order, row_offsets = group_rows(clients, n_rows)
    owners = np.empty(n_rows, dtype=np.intp)
    owners[slice(None) if order is None else order] = np.repeat(
        np.arange(len(ids)), np.diff(row_offsets)
    )
    # Sort the cells by client, but leave the order of the rows of the matrix.
    owners = owners[codes // n_columns]
    order = np.argsort(owners, kind="stable")
    offsets = offsets_of(np.bincount(owners, minlength=len(ids)))
    log_effort = None if log_effort is None else log_effort[order]
    codes, values = codes[order], values[order]
    return Observations(codes, values, offsets, shape, ids, None, given, log_effort)


def observations_of_triplets(
    X: Table,
    clients: ArrayLike | None,
    shape: tuple[int, int],
    missing: float,
    rows: RowsName = "shared",
    offset: Any = None,
) -> Observations:
    """Observations in a table of triplets of one client, or of several with a label for each."""
    shape = _checked_shape(shape, rows)
    if issparse(X):
        raise ValueError(
            "Expected triplets (site, month, value) with `shape`, got a sparse matrix, which has "
            "a shape of its own. Fit without `shape`."
        )
    table = client_matrix(X, "")
    _check_fits_shape(table, shape, "")
    effort = [None if offset is None else effort_of(offset, table, "", is_triplets=True)]
    ((codes, values, log_effort),) = _from_triplets([table], shape, missing, [""], effort)
    if clients is None:
        offsets = np.array([0, len(codes)])
        return Observations(codes, values, offsets, shape, log_effort=log_effort)
    ids, order, offsets = group_rows(clients, len(codes))
    if order is not None:
        codes, values = codes[order], values[order]
        log_effort = None if log_effort is None else log_effort[order]
    return Observations(codes, values, offsets, shape, ids, log_effort=log_effort)


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
            "Expected missing_values to be a number that fits in a float, got "
            f"{repr_of(missing_values)}. Give the value that marks missing cells."
        ) from error


def _checked_shape(shape: tuple[int, int], rows: RowsName) -> tuple[int, int]:
    """(J, L) of triplets as integers."""
    is_pair = isinstance(shape, list | tuple | np.ndarray) and np.shape(shape) == (2,)
    if not is_pair or not all(
        isinstance(n, Integral) and not isinstance(n, bool) and int(n) >= 1 for n in shape
    ):
        raise (ValueError if is_pair else TypeError)(
            f"Expected shape=(sites, months), two integers >= 1, got {repr_of(shape)}. Give the "
            "size of the matrix, not of the triplets."
        )
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


def _check_shapes(tables: list[Any], rows: RowsName) -> None:
    """Raise unless all matrices have equally many columns and, if shared, rows."""
    want = tables[0].shape[-2:]
    for k, table in enumerate(tables):
        got = f"for client {k} (shape {table.shape})"
        if not all(table.shape):
            raise ValueError(
                f"Expected at least one row and one column for every client, got none {got}. Leave "
                "clients without rows out of the list."
            )
        for axis, noun in ((1, "column"), (0, "row")):
            n = table.shape[-2:][axis]
            if n != want[axis] and not (noun == "row" and rows == "disjoint"):
                own_rows = ", or rows='disjoint' if each has rows of its own" * (noun == "row")
                raise ValueError(
                    f"Expected {plural(want[axis], noun)} for every client as for client 0, got "
                    f"{n} {got}. Give all clients the same sites and months (reindex DataFrames)"
                    f"{own_rows}, or shape=(sites, months) with triplets."
                )


def _check_fits_shape(table: Any, shape: tuple[int, int], whose: str) -> None:
    """Raise unless a table has triplets or has this shape."""
    if not _is_triplets(table):
        if table.shape[-2:] != shape or not table.shape[0]:
            raise ValueError(
                f"Expected a matrix of shape {shape}{whose}, got {table.shape}. Fit with the shape "
                "that all of them have."
            )
    elif table.shape[1] != 3:
        raise ValueError(
            f"Expected triplets (site, month, value) of shape (n, 3){whose}, got shape "
            f"{table.shape}. Fit without `shape` if this is a matrix of sites x months."
        )


def _is_triplets(table: Any) -> bool:
    return not issparse(table) and table.ndim == 2


_Piece = tuple[NDArray[np.int64], FloatArray, FloatArray | None]
"""Codes, values and log efforts, if any, of one client's observations."""


def _from_triplets(
    tables: list[Any], shape: tuple[int, int], missing: float, whose: list[str], effort: list[Any]
) -> list[_Piece]:
    """Observations in each client's triplets, or in its matrix."""
    clients = [k for k, table in enumerate(tables) if _is_triplets(table)]
    pieces = {
        k: _observed(table, effort[k], missing)
        for k, table in enumerate(tables)
        if not _is_triplets(table)
    }
    lengths = np.array([len(tables[k]) for k in clients], dtype=np.intp)
    for group in client_groups(offsets_of(lengths), _BLOCK):
        members = clients[group]
        stacked = np.concatenate([tables[k] for k in members], dtype=np.float64)
        numbers, ends = stacked[:, :2], np.cumsum(lengths[group])
        bad = ~((numbers >= 0) & (numbers < shape) & (numbers == np.floor(numbers)))
        if bad.any():
            row, axis = np.argwhere(bad)[0]
            member = int(np.searchsorted(ends, row, side="right"))
            raise ValueError(
                f"Expected {('site', 'month')[axis]} numbers to be integers from 0 to "
                f"{shape[axis] - 1} for a matrix of shape {shape}, got {numbers[row, axis]} in "
                f"triplet {row - ends[member] + lengths[group][member]}"
                f"{whose[members[member]]}. Number sites and months from 0, or give a "
                "larger shape."
            )
        sites, months = numbers.T.astype(np.int64)
        codes = cell_codes(sites, months, shape[1])
        values = np.ascontiguousarray(stacked[:, 2])
        for k, start, end in zip(members, ends - lengths[group], ends, strict=True):
            pieces[k] = codes[start:end], values[start:end], effort[k]
    return [pieces[k] for k in range(len(tables))]


def _missing_cells(table: NDArray[Any], missing: float) -> BoolArray:
    if missing != missing:
        return np.isnan(table)
    if table.dtype.kind != "f":
        return table == missing
    with np.errstate(over="ignore"):
        rounded, single = table.dtype.type(missing), np.float32(missing)
    # -999.9 is a different number in float32, also after conversion to doubles. Data do not have
    # this value by chance; but they might if the marker were an integer.
    is_marker = table == rounded
    if single != rounded and np.isfinite(single) and single % 1:
        is_marker |= table == single
    return is_marker


def _observed(table: Any, effort: Any, missing: float) -> _Piece:
    """Observations in a sparse matrix, or in one with missing cells."""
    n_rows, n_columns = table.shape[-2:]
    if issparse(table):
        codes = cell_codes(table.row, table.col, n_columns)
        effort = None if effort is None else effort[table.row, table.col]
        return codes, table.data.astype(np.float64, copy=False), effort
    seen = ~_missing_cells(table, missing)
    codes = np.flatnonzero(seen).astype(np.int64, copy=False)
    if table.ndim == 3:
        codes %= n_rows * n_columns
    effort = None if effort is None else effort[seen]
    return codes, table[seen].astype(np.float64, copy=False), effort


def check_values(observations: Observations, family: Family, missing: float) -> None:
    """Raise if values are missing, infinite, too large, or outside the family's domain."""
    values = observations.values
    bad = ~family.is_valid(values) | ~(np.abs(values) <= LARGEST) | (values == missing)
    if not bad.any():
        return
    position = int(np.argmax(bad))
    value = float(values[position])
    got = f"got {value} in {_place(observations, position)}"
    if value != value or value == missing:
        what = "NaN" if value != value else "missing_values"
        raise ValueError(
            f"Input X contains {what}: expected a number in each observed cell, {got}. Mark "
            "missing cells by missing_values only, and leave them out of sparse matrices and "
            "triplets."
        )
    if abs(value) == np.inf:
        raise ValueError(
            f"Input X contains infinity: expected finite numbers, {got}. Correct it, or mark it as "
            "missing."
        )
    if abs(value) > LARGEST:
        raise ValueError(
            f"Expected numbers of at most {LARGEST:g} in size, {got}: their squares are too "
            "large for a double. Rescale the data."
        )
    advice = "Correct it, choose another family, or give missing_values if it marks missing cells."
    if family.name in ("poisson", "negative_binomial") and value % 1:
        advice = "Give counts, and areas or efforts as an offset; or choose another family."
    raise ValueError(f"Expected {family.domain} for family={family.name!r}, {got}. {advice}")


def _place(observations: Observations, position: int) -> str:
    """Cell and client of an observation, in terms of the user's data."""
    cell = [int(n) for n in divmod(observations.codes[position], observations.shape[1])]
    client = int(owners_of(observations.offsets, position))
    tables = observations.tables
    table = tables[client] if isinstance(tables, list) else tables
    if observations.row_offsets is not None:
        cell[0] -= int(observations.row_offsets[client])
    # Rows and columns of a table of triplets are not those of the matrix.
    axes = ("site", "month") if table is None else ("row", "column")
    place = ", ".join(
        f"{axis} {n}" + ("" if labels is None else f" ({label_text(labels[n])})")
        for axis, n, labels in zip(axes, cell, table_labels(table), strict=True)
    )
    if observations.ids is None:
        return place
    return f"{place} of client {label_repr(observations.ids[client])}"
