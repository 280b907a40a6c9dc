"""What the user gives to the imputer, as observed cells. Nothing given is ever changed.

Within this module a cell (j, l) of a J x L matrix has the code ``j * L + l``, so that codes in
increasing order are cells in row-major order.
"""

from __future__ import annotations

from numbers import Integral, Real
from typing import NamedTuple

import numpy as np
from scipy.sparse import issparse
from sklearn.utils.validation import check_array, validate_data

from ._client_labels import client_codes
from ._federation import runs
from ._messages import plural, shown
from ._parameters import check_choice
from ._tables import (
    LARGEST,
    column_names,
    holds_tables,
    is_client_list,
    is_missing,
    n_dimensions,
    refuse_uneven_rows,
    refuse_what_is_no_table,
)

_HOW = (
    "Give a list with one sites x months matrix for each client (an array or DataFrame with "
    "missing cells, a sparse matrix of the observed ones, or a 3-D array of several observers), a "
    "list of (site, month, value) triplets with `shape=`, or one matrix alone for a single client."
)
_HOW_ROWS = (
    "Give all clients the same sites and months. If each client has rows of its own, give "
    "rows='disjoint'; if these are (site, month, value) triplets, give shape=(sites, months)."
)
# Rows and columns are int32. Products of two of them are codes, which stay within int64.
_MOST_ROWS = 2**31 - 1
# Observations read and sorted at once: beside what is given and what is returned, little is needed.
_BLOCK = 2**20


class CellData(NamedTuple):
    """Observed cells of all clients, client after client, each client's in row-major order.

    Attributes
    ----------
    rows, columns : ndarray of int32, shape (n_cells,)
        The distinct cells of each client; several clients may have the same one.
    values : ndarray of float64, shape (n_cells,)
        Mean of the client's observations of the cell.
    counts : ndarray of float64, shape (n_cells,)
        How many observations that is.
    offsets : ndarray of int64, shape (n_clients + 1,)
        Client ``i`` owns the cells ``offsets[i]:offsets[i + 1]``, which may be none.
    log_base_measure : ndarray of shape (n_clients,)
        Sum of log ρ(y) over the client's observations.
    ids : ndarray of shape (n_clients,)
        Sorted labels of the clients, or their positions in a list.
    shape : tuple of int
        (J, L).
    row_offsets : ndarray of int64, shape (n_clients + 1,), or None
        With ``rows="disjoint"``, client ``i`` has the rows ``row_offsets[i]:row_offsets[i + 1]``.
    observations : ndarray of shape (sum of counts,), or None
        The observations, cell after cell, if they were asked for.
    """

    rows: np.ndarray
    columns: np.ndarray
    values: np.ndarray
    counts: np.ndarray
    offsets: np.ndarray
    log_base_measure: np.ndarray
    ids: np.ndarray
    shape: tuple
    row_offsets: np.ndarray | None
    observations: np.ndarray | None


class TableCells(NamedTuple):
    """Observed cells of one table, as in CellData, and its number of rows."""

    rows: np.ndarray
    columns: np.ndarray
    values: np.ndarray
    counts: np.ndarray
    n_rows: int
    log_base_measure: float


class _Observations(NamedTuple):
    """Observations, client after client, in any order within a client.

    ``ids`` is None for the only client. ``given`` is for messages: one table, or a list of the
    clients' tables, with None in place of triplets.
    """

    codes: np.ndarray
    values: np.ndarray
    offsets: np.ndarray
    shape: tuple
    ids: np.ndarray | None = None
    row_offsets: np.ndarray | None = None
    given: object = None


def is_cell_list(X):
    """Whether X is a list of clients rather than one table."""
    return is_client_list(X) or (isinstance(X, list | tuple) and any(map(issparse, X)))


def holds_clients(X):
    """Whether X is a list of clients, or a 3-D array of observers."""
    return is_cell_list(X) or (not issparse(X) and getattr(X, "ndim", 2) == 3)


def check_cells(
    estimator,
    X,
    clients=None,
    *,
    shape=None,
    family,
    missing_values=np.nan,
    rows="shared",
    keep_observations=False,
):
    """Validate training data; set ``n_features_in_`` and ``feature_names_in_``.

    Parameters
    ----------
    estimator : estimator
        For scikit-learn's checks of features and their names.
    X : list of clients, 3-D array, or one matrix
        A client in a list is a matrix with missing cells, a 3-D array (observers, sites, months),
        or a sparse matrix whose stored entries, zeros too, are the observations. A 3-D array alone
        has one client for each observer. The rows of a matrix alone belong to one client, or to
        `clients`.
    clients : array-like of shape (n_rows,), default=None
        Client label of each row of one matrix.
    shape : tuple of int, default=None
        (J, L): dense 2-D arrays in the list are (site, month, value) triplets.
    family : Family
    missing_values : number, default=NaN
        Marks missing cells in dense matrices. NaN stands for None and pandas.NA as well.
    rows : {"shared", "disjoint"}, default="shared"
        Whether the rows of the clients in a list are the same sites, or each has its own.
    keep_observations : bool, default=False
        Whether single observations are wanted beside the means of cells.

    Returns
    -------
    data : CellData

    Raises
    ------
    TypeError, ValueError
        Which name the client and the cell, what was expected and what was got.
    """
    check_choice("rows", rows, ("shared", "disjoint"), hint="Do clients have the same rows?")
    missing = _marker(missing_values)
    if holds_clients(X):
        if clients is not None:
            raise ValueError(
                "Expected `clients=None` with a list of clients or a 3-D array, got both: they "
                f"already say whose each matrix is. {_HOW}"
            )
        observations = _from_list(estimator, list(X), shape, missing, rows)
    else:
        if shape is not None:
            raise ValueError(
                f"Expected `shape` only with a list of clients, got shape={shape!r} with one "
                "table. Give [X] if these are the triplets of a single client."
            )
        observations = _from_table(estimator, X, clients, missing)
    _check_values(observations, family, missing)
    if not len(observations.codes):
        raise ValueError(
            "Expected at least one observed cell, got none from "
            f"{plural(len(observations.offsets) - 1, 'client')}: all cells are missing. Check "
            "what marks missing cells (missing_values)."
        )
    return _merged(observations, family, keep_observations)


def check_matrix(estimator, X, missing_values, family):
    """Validate one table against the fitted estimator.

    Parameters
    ----------
    estimator : estimator
    X : array, DataFrame or sparse matrix of shape (n_rows, n_features_in_)
    missing_values : number
    family : Family

    Returns
    -------
    cells : TableCells
        There may be none.
    """
    if is_cell_list(X):
        raise ValueError("Expected one table, got a list of tables. Give them one by one.")
    missing = _marker(missing_values)
    table = _one_table(estimator, X, reset=False)
    codes, values = _observed(table, missing)
    given = X if _is_frame(X) else table
    return _table_cells(codes, values, table.shape, given, missing, family)


def check_triplets(X, shape, missing_values, family):
    """Validate one client's triplets against the matrix of the fit.

    Parameters
    ----------
    X : array-like of shape (n, 3)
        Site, month and value.
    shape : tuple of int
        (J, L).
    missing_values : number
    family : Family

    Returns
    -------
    cells : TableCells
        There may be none.
    """
    missing = _marker(missing_values)
    if n_dimensions(X) != 2:
        raise ValueError(
            "Expected an array of triplets (site, month, value), as `fit` was given, got a "
            f"{type(X).__name__} with {plural(n_dimensions(X), 'dimension')}. Give an array of "
            "shape (n, 3)."
        )
    table = _client_table(X, "")
    _check_fit(table, shape, "")
    ((codes, values),) = _from_triplets([table], shape, missing, whose="")
    return _table_cells(codes, values, shape, None, missing, family)


def _table_cells(codes, values, shape, given, missing, family):
    """Cells of the observations of one table."""
    observations = _Observations(codes, values, np.array([0, len(codes)]), shape, given=given)
    _check_values(observations, family, missing)
    cells = _merged(observations, family, keep_observations=False)
    return TableCells(
        cells.rows,
        cells.columns,
        cells.values,
        cells.counts,
        shape[0],
        float(cells.log_base_measure[0]),
    )


def _marker(missing_values):
    """What marks missing cells, as a float."""
    if is_missing(missing_values):
        return np.nan
    if isinstance(missing_values, bool | np.bool_) or not isinstance(missing_values, Real):
        raise TypeError(
            f"Expected missing_values to be a number or NaN, got {missing_values!r} of type "
            f"{type(missing_values).__name__}. NaN stands for None and pandas.NA as well."
        )
    return float(missing_values)


def _checked_shape(shape, rows):
    """(J, L) of triplets as integers, or None."""
    if shape is None:
        return None
    expected = f"Expected shape=(sites, months), two integers >= 1, got {shape!r}."
    if not isinstance(shape, list | tuple | np.ndarray) or np.shape(shape) != (2,):
        raise TypeError(f"{expected} Give the size of the matrix that the triplets number.")
    if not all(isinstance(n, Integral) and not isinstance(n, bool) and int(n) >= 1 for n in shape):
        raise ValueError(f"{expected} Give the size of the matrix that the triplets number.")
    if rows == "disjoint":
        raise ValueError(
            "Expected rows='shared' with `shape`, got 'disjoint': triplets number the rows of one "
            "matrix. Number each client's rows apart from the others'."
        )
    return _checked_size(tuple(map(int, shape)))


def _checked_size(shape):
    if max(shape) > _MOST_ROWS:
        raise ValueError(
            f"Expected at most {_MOST_ROWS} rows and columns, got shape {tuple(shape)}. Leave out "
            "the ones that nobody observed."
        )
    return shape


# ------------------------------------------------------------------ a list of clients


def _from_list(estimator, X, shape, missing, rows):
    if not len(X):
        raise ValueError(f"Expected at least one client, got an empty list. {_HOW}")
    shape = _checked_shape(shape, rows)
    tables = [_client_table(table, f" of client {k}") for k, table in enumerate(X)]
    row_offsets = None
    if shape is not None:
        for k, table in enumerate(tables):
            _check_fit(table, shape, f" of client {k}")
        _set_features(estimator, np.empty((1, shape[1])))
        pieces = _from_triplets(tables, shape, missing)
        given = [None if _is_triplets(table) else table for table in tables]
    else:
        _check_alike(tables, rows)
        _check_labels(X, rows)
        shape, given = tables[0].shape[-2:], X
        unnamed = column_names(X[0], 0) is None
        _set_features(estimator, np.empty((1, shape[1])) if unnamed else X[0])
        pieces = [_observed(table, missing) for table in tables]
        if rows == "disjoint":
            row_offsets = np.cumsum([0] + [table.shape[-2] for table in tables])
            shape = (int(row_offsets[-1]), shape[1])
            for (codes, _), first in zip(pieces, row_offsets[:-1], strict=True):
                codes += first * shape[1]
    offsets = np.cumsum([0] + [len(codes) for codes, _ in pieces])
    codes, values = map(np.concatenate, zip(*pieces, strict=True))
    return _Observations(
        codes, values, offsets, _checked_size(shape), np.arange(len(X)), row_offsets, given
    )


def _client_table(table, whose):
    """One client's table as a COO array or matrix, or a 2-D or 3-D array of numbers."""
    where = f" in the table{whose}"
    if issparse(table):
        return _stored(table, where)
    if holds_tables(table):
        raise ValueError(
            f"Expected numbers{where}, got entries that are tables or lists themselves. Give "
            "each of them as a client of its own, or a 3-D array if one client has them all."
        )
    if isinstance(table, list | tuple):
        refuse_uneven_rows(table, f" of the table{whose}")
    try:
        array = _numbers(table)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"Expected numbers{where}, got {error}. Encode or drop what is not a number."
        ) from error
    _refuse_no_numbers(array, where)
    if array.ndim not in (2, 3):
        got = f"{plural(array.ndim, 'dimension')} and shape {array.shape}"
        if not array.ndim:
            got = f"no table, but a {type(table).__name__}"
        raise ValueError(
            f"Expected a 2-D or 3-D table{whose}, got {got}. {_HOW}",
        )
    if array.dtype.kind == "c":
        raise ValueError(f"Complex data not supported: the table{whose} has dtype {array.dtype}.")
    return array


def _stored(matrix, where=""):
    """A sparse matrix in COO format, entry for entry."""
    kind = type(matrix).__name__
    if matrix.ndim != 2:
        raise ValueError(
            f"Expected a 2-D sparse matrix, got {plural(matrix.ndim, 'dimension')}{where}. {_HOW}"
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


def _numbers(table):
    """Array of whatever dimensions; None, pandas.NA and what a mask hides become NaN."""
    if isinstance(table, np.ma.MaskedArray):
        table = np.ma.filled(table.astype(np.float64), np.nan)
    array = np.asarray(table)
    if array.dtype != object:
        return array
    try:
        return array.astype(np.float64)
    except TypeError:
        missing = np.frompyfunc(is_missing, 1, 1)(array).astype(bool)
        if not missing.any():
            raise
        return np.where(missing, np.nan, array).astype(np.float64)


def _refuse_no_numbers(array, where=""):
    if array.dtype.kind in "USmM":
        raise ValueError(
            f"Expected numbers{where}, got dtype {array.dtype}. Encode or drop what is no number."
        )


def _set_features(estimator, table, reset=True):
    """Have scikit-learn keep, or compare, the number of the features and their names."""
    validate_data(estimator, table, reset=reset, skip_check_array=True)


def _check_alike(tables, rows):
    """Raise unless all matrices have the same columns and, if they are shared, rows."""
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
                "months."
            )
        if rows == "shared" and n_rows != first[0]:
            raise ValueError(
                f"Expected {plural(first[0], 'row')} for every client as for client 0, got "
                f"{n_rows} for client {k} (shape {table.shape}). {_HOW_ROWS}"
            )


def _check_labels(X, rows):
    """Raise unless all DataFrames have the labels of client 0, as far as rows are the same."""
    if not any(hasattr(table, "columns") for table in X):
        return
    first = table_labels(X[0])
    for k, table in enumerate(X):
        for axis, want, got in zip(("row", "column"), first, table_labels(table), strict=True):
            if (axis == "row" and rows == "disjoint") or (want is None and got is None):
                continue
            if want is None or got is None:
                of_first, of_other = (
                    f"{axis} labels" if labels is not None else f"no {axis} labels"
                    for labels in (want, got)
                )
                raise ValueError(
                    f"Expected {of_first} for every client as for client 0, got {of_other} for "
                    f"client {k}. Give all clients DataFrames with the same labels, or none."
                )
            difference = unlike(want, got)
            if difference is None:
                continue
            place, old, new = difference
            raise ValueError(
                f"Expected the {axis} labels of client 0 for every client, in that order: {old} "
                f"for {axis} {place}, got {new} for client {k}. Reindex it"
                + (", or give rows='disjoint' if it has rows of its own." if axis == "row" else ".")
            )


def _is_frame(table):
    return hasattr(table, "columns")


def table_labels(table):
    """Labels of the rows and the columns of a DataFrame; None where they only count from 0."""
    if not _is_frame(table):
        return None, None
    axes = getattr(table, "index", None), table.columns
    return tuple(None if labels is None or _only_count(labels) else labels for labels in axes)


def fit_labels(X, rows):
    """Labels of the rows and the columns of the matrix that checked matrices make up.

    Parameters
    ----------
    X : list of clients, 3-D array, or one matrix
    rows : {"shared", "disjoint"}

    Returns
    -------
    row_labels, column_labels : sequence of labels, or None
    """
    tables = X if is_cell_list(X) else [X]
    of_rows, of_columns = zip(*map(table_labels, tables), strict=True)
    if rows == "shared" or len(tables) == 1:
        return of_rows[0], of_columns[0]
    if any(labels is None for labels in of_rows):
        return None, of_columns[0]
    return of_rows[0].append(list(of_rows[1:])), of_columns[0]


def _only_count(labels):
    kind = getattr(getattr(labels, "dtype", None), "kind", "O")
    return kind in "iu" and np.array_equal(labels, np.arange(len(labels)))


def unlike(want, got):
    """Position of the first labels that differ, and both for a message; None if none do.

    What has no labels differs from nothing.
    """
    if want is None or got is None or (hasattr(want, "equals") and want.equals(got)):
        return None
    for place, (one, other) in enumerate(zip(want, got, strict=True)):
        if _differ(one, other):
            return place, _label(one), _label(other)
    return None


def check_labels(axis, want, got, what_to_do):
    """Raise for rows or columns that are labelled otherwise than in the fit."""
    difference = unlike(want, got)
    if difference is not None:
        place, old, new = difference
        raise ValueError(
            f"Expected the {axis} labels of the fit, in that order: {old} for {axis} {place}, got "
            f"{new}. {what_to_do}."
        )


def _differ(one, other):
    try:
        return one is not other and bool(one != other)
    except TypeError:  # pandas.NA beside a label
        return True


def _label(label):
    return repr(label) if isinstance(label, str) else str(label)


def _check_fit(table, shape, whose):
    """Raise unless a table is triplets or has the shape."""
    if not _is_triplets(table):
        if table.shape[-2:] != shape:
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


def _is_triplets(table):
    return not issparse(table) and table.ndim == 2


def _from_triplets(tables, shape, missing, whose=" of client {}"):
    """Codes and values of each client, who has triplets or else a matrix of the shape."""
    pieces = [None if _is_triplets(table) else _observed(table, missing) for table in tables]
    clients = [k for k, piece in enumerate(pieces) if piece is None]
    lengths = np.array([len(tables[k]) for k in clients], dtype=np.int64)
    for run in runs(lengths, _BLOCK):
        own = clients[run]
        stacked = np.concatenate([tables[k] for k in own], dtype=np.float64)
        numbers, ends = stacked[:, :2], np.cumsum(lengths[run])
        bad = ~((numbers >= 0) & (numbers < shape) & (numbers == np.floor(numbers)))
        if bad.any():
            row, axis = np.argwhere(bad)[0]
            which = int(np.searchsorted(ends, row, side="right"))
            raise ValueError(
                f"Expected {('site', 'month')[axis]} numbers to be integers from 0 to "
                f"{shape[axis] - 1} for a matrix of shape {shape}, got {numbers[row, axis]} in "
                f"triplet {row - ends[which] + lengths[run][which]}{whose.format(own[which])}. "
                "Number sites and months from 0, or fit with a larger shape."
            )
        codes = stacked[:, 0].astype(np.int64) * shape[1] + stacked[:, 1].astype(np.int64)
        values = np.ascontiguousarray(stacked[:, 2])
        for k, start, end in zip(own, ends - lengths[run], ends, strict=True):
            pieces[k] = codes[start:end], values[start:end]
    return pieces


# ------------------------------------------------------------------ one table


def _from_table(estimator, X, clients, missing):
    table = _one_table(estimator, X, reset=True)
    codes, values = _observed(table, missing)
    given = X if _is_frame(X) else table
    if clients is None:
        return _Observations(codes, values, np.array([0, len(codes)]), table.shape, given=given)
    ids, row_owners = client_codes(clients, table.shape[0])
    owners = row_owners[codes // table.shape[1]]
    # Cells are sorted by client, the rows of the matrix stay where they are.
    order = np.argsort(owners, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=len(ids)))])
    return _Observations(codes[order], values[order], offsets, table.shape, ids, given=given)


def _one_table(estimator, X, reset):
    """One table as a COO array or matrix, or a 2-D array of float32 or float64."""
    refuse_what_is_no_table(X)
    table = _stored(X) if issparse(X) else _numbers(X)
    if not table.ndim:
        raise TypeError(
            f"Expected a table or a list of tables, got {X!r} of type {type(X).__name__}. Give a "
            "matrix with missing cells, or a list with one for each client."
        )
    _refuse_no_numbers(table)
    table = check_array(
        table,
        accept_sparse=True,
        dtype=[np.float64, np.float32],
        ensure_all_finite=False,  # _check_values names the cell
        estimator=estimator,
        input_name="X",
    )
    _set_features(estimator, X if _is_frame(X) else table, reset)
    _checked_size(table.shape)
    return table


# ------------------------------------------------------------------ observations


def _missing_cells(table, missing):
    if missing != missing:
        return np.isnan(table)
    if table.dtype.kind == "f":
        with np.errstate(over="ignore"):
            missing = table.dtype.type(missing)  # 1e20 is another number in float32
    return table == missing


def _observed(table, missing):
    """Codes and values of the observations in a sparse matrix, or in one with missing cells."""
    n_rows, n_columns = table.shape[-2:]
    if issparse(table):
        rows, columns = table.row, table.col
        codes = rows.astype(np.int64) * n_columns + columns
        return codes, table.data.astype(np.float64, copy=False)
    seen = ~_missing_cells(table, missing)
    codes = np.flatnonzero(seen)
    if table.ndim == 3:
        codes %= n_rows * n_columns
    return codes, table[seen].astype(np.float64, copy=False)


def _check_values(observations, family, missing):
    """Raise for observations that are no numbers, too large, or none of the family's."""
    values = observations.values
    bad = ~family.is_valid(values) | ~(np.abs(values) <= LARGEST) | (values == missing)
    if not bad.any():
        return
    position = int(np.argmax(bad))
    value = float(values[position])
    got = f"got {value} in {_place(observations, position)}"
    if value != value or value == missing:
        marked = "" if missing != missing else f"Mark cells as missing by {_bare(missing)} only. "
        raise ValueError(
            f"Input X contains {'NaN' if value != value else 'missing_values'}: expected a number "
            f"in each observed cell, {got}. {marked}Leave missing cells out of sparse matrices and "
            "triplets: what is stored there is observed."
        )
    if abs(value) == np.inf:
        raise ValueError(
            f"Input X contains infinity: expected finite numbers, {got}. Correct it, or mark the "
            "cell as missing."
        )
    if abs(value) > LARGEST:
        raise ValueError(
            f"Expected numbers of at most {LARGEST:g} in size, {got}: their squares are too "
            "large for a double. Rescale the data."
        )
    _, table = _giver(observations, position)
    what_to_do = "Correct it, or choose another family."
    if table is not None and not issparse(table) and value.is_integer():
        what_to_do = (
            "Correct it, choose another family, or give "
            f"missing_values={_bare(value)} if this marks missing cells."
        )
    raise ValueError(f"Expected {family.domain} for family={family.name!r}, {got}. {what_to_do}")


def _bare(number):
    """An integer without its decimal point."""
    return str(number).removesuffix(".0")


def _giver(observations, position):
    """The client of an observation, and its table; None for triplets."""
    client = int(np.searchsorted(observations.offsets, position, side="right")) - 1
    given = observations.given
    return client, given[client] if isinstance(given, list) else given


def _place(observations, position):
    """An observation's cell and client, as a person finds them in what was given."""
    cell = [int(n) for n in divmod(observations.codes[position], observations.shape[1])]
    client, table = _giver(observations, position)
    if observations.row_offsets is not None:
        cell[0] -= int(observations.row_offsets[client])
    place = ", ".join(
        f"{axis} {n}" + ("" if labels is None else f" ({_label(labels[n])})")
        for axis, n, labels in zip(("row", "column"), cell, table_labels(table), strict=True)
    )
    if observations.ids is None:
        return place
    return f"{place} of client {shown(observations.ids[client])}"


def _merged(observations, family, keep_observations):
    """Sort each client's observations by cell, and merge those of the same cell."""
    codes, values, offsets, shape = observations[:4]
    n_cells = shape[0] * shape[1]
    lengths = np.diff(offsets)
    pieces, own_cells, base_measures, kept = [], [], [], []
    # Clients of one run are told apart by multiples of n_cells, which have to stay within int64.
    for run in runs(lengths, _BLOCK, min(1024, (2**63 - 1) // n_cells)):
        own, part = lengths[run], slice(offsets[run.start], offsets[run.stop])
        keys = np.repeat(np.arange(len(own)) * n_cells, own) + codes[part]
        sorted_values = values[part]
        if (keys[1:] < keys[:-1]).any():
            order = np.argsort(keys, kind="stable")
            keys, sorted_values = keys[order], sorted_values[order]
        starts = np.flatnonzero(np.diff(keys, prepend=-1))
        counts = np.diff(starts, append=len(keys)).astype(np.float64)
        owners, cells = np.divmod(keys[starts], n_cells)
        pieces.append(
            (
                (cells // shape[1]).astype(np.int32),
                (cells % shape[1]).astype(np.int32),
                np.add.reduceat(sorted_values, starts) / counts,
                counts,
            )
        )
        if keep_observations:
            kept.append(sorted_values)
        own_cells.append(np.bincount(owners, minlength=len(own)))
        base_measures.append(
            np.bincount(
                np.repeat(np.arange(len(own)), own),
                family.log_base_measure(sorted_values),
                minlength=len(own),
            )
        )
    rows, columns, means, counts = map(np.concatenate, zip(*pieces, strict=True))
    return CellData(
        rows,
        columns,
        means,
        counts,
        np.concatenate([[0], np.cumsum(np.concatenate(own_cells))]),
        np.concatenate(base_measures),
        np.arange(1) if observations.ids is None else observations.ids,
        tuple(map(int, shape)),
        observations.row_offsets,
        np.concatenate(kept) if keep_observations else None,
    )
