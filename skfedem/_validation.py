"""Checks of what the user gives: client data and parameters. Nothing given is ever changed."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from mmap import mmap
from numbers import Integral, Real
from typing import Any, NamedTuple, TypeGuard

import numpy as np
from scipy.sparse import issparse
from sklearn.utils.validation import check_array, validate_data

from ._federation import Federation, JoinedRows, ReorderedRows, sample_weight_of

_HOW = (
    "Give a list with one 2-D array or DataFrame for each client, one 2-D array with `clients=` "
    "(a client label for each row), or one 2-D array alone for a single client."
)
# Squares of larger numbers, and what EM divides by them, would leave the range of a double.
_LARGEST = 1e150
# Numbers that are checked at once: 2 MB, a second-level cache.
_BLOCK = 2**18
# Tables whose rows are in no order are sorted by client, and are faster to read then, up to so many
# bytes; larger ones are not held twice.
_LARGEST_COPY = 2**28


class ClientData(NamedTuple):
    """Validated rows of all clients, stacked in client order, and who the clients are.

    ``sample_weight`` has a positive weight for each row, or is None where all weigh the same.
    """

    rows: np.ndarray | JoinedRows | ReorderedRows
    offsets: np.ndarray
    ids: np.ndarray
    sample_weight: np.ndarray | None = None


def is_client_list(X: object) -> TypeGuard[Sequence[Any]]:
    """Whether X is a list of clients' tables rather than one table.

    A list of 2-D things is; a list of rows (1-D things or numbers) is a table written as a list.
    """
    if not isinstance(X, list | tuple):
        return False
    return not X or any(_n_dimensions(table) != 1 for table in X if _n_dimensions(table) > 0)


def _n_dimensions(table):
    depth = 0
    while isinstance(table, list | tuple):
        depth, table = depth + 1, table[0] if table else None
    return depth + len(getattr(table, "shape", ()))


def check_clients(estimator, X, clients=None, sample_weight=None, *, allow_nan=False):
    """Validate training data; set ``n_features_in_`` and ``feature_names_in_``.

    Parameters
    ----------
    estimator : estimator
        For scikit-learn's checks of features and their names.
    X : list of 2-D arrays or DataFrames, or one 2-D array or DataFrame
    clients : array-like of shape (n_samples,), default=None
        Client label of each row of one X.
    sample_weight : array-like of shape (n_samples,), or a list of them, default=None
        What each row counts, one array for each client where X is a list. Rows of weight zero are
        left out of the data.
    allow_nan : bool, default=False
        Whether a number may be missing.

    Returns
    -------
    data : ClientData

    Raises
    ------
    TypeError, ValueError
        Which name the client, what was expected and what was got.
    """
    if is_client_list(X):
        refuse_labels_of_a_list(clients)
        return _weighted(_from_list(estimator, X, allow_nan), _weights_of_list(X, sample_weight))
    if getattr(X, "ndim", 2) == 3:
        raise ValueError(
            f"Expected 2-D data, got one array with 3 dimensions and shape {X.shape}. If its first "
            f"axis counts clients, give `list(X)`. {_HOW}"
        )
    _refuse_what_is_no_table(X)
    if hasattr(X, "columns") and not len(X.columns):
        raise ValueError(
            f"Expected a table with at least one feature, got a {type(X).__name__} without columns."
        )
    if isinstance(X, np.ndarray) and X.dtype.kind in "USmM":
        raise ValueError(
            f"Expected numbers, got dtype {X.dtype}. Encode or drop the columns that are not "
            "numbers."
        )
    mapped = is_mapped(X)
    # Mapped integers become floats when they are read, not here, all at once.
    dtype = "numeric" if mapped else [np.float64, np.float32]
    rows = validate_data(estimator, X, dtype=dtype, ensure_all_finite=False)
    weights = None if sample_weight is None else _weights_of_table(sample_weight, len(rows))
    if clients is None:
        _check_finite(rows, allow_nan=allow_nan)
        return _weighted(ClientData(rows, np.array([0, len(rows)]), np.arange(1)), weights)
    may_copy = not mapped and rows.nbytes <= _LARGEST_COPY
    return _from_labels(rows, clients, weights, allow_nan, may_copy)


def refuse_labels_of_a_list(clients):
    """Raise if labels of rows come with a list of clients."""
    if clients is not None:
        raise ValueError(
            "Expected `clients=None` with a list of clients, got both: the list already says "
            f"which rows are whose. {_HOW}"
        )


def is_mapped(X):
    """Whether X is an array in a file, which may be larger than memory."""
    while isinstance(X, np.ndarray):
        if isinstance(X, np.memmap):
            return True
        X = X.base
    return isinstance(X, mmap)


def _refuse_what_is_no_table(X):
    """Raise for what holds tables or rows but is neither a list of tables nor a table."""
    kind = type(X).__name__
    if issparse(X):
        return  # scikit-learn says it
    if isinstance(X, Mapping):
        raise TypeError(
            f"Expected a table or a list of tables, got a {kind}. Give list(X.values()) if it "
            "holds the clients' tables."
        )
    is_table = any(hasattr(X, name) for name in ("__getitem__", "__array__", "shape"))
    if isinstance(X, Iterable) and not is_table:
        raise TypeError(
            f"Expected a table or a list of tables, got a {kind}. Give a list, as list(X)."
        )
    if isinstance(X, list | tuple):
        _refuse_uneven_rows(X)
    elif _holds_tables(X):
        raise ValueError(
            f"Expected numbers, got an object {kind} of shape {X.shape} whose entries are tables "
            "or lists. Give list(X) if they are the clients' tables."
        )


def _refuse_uneven_rows(rows, of_whom=""):
    """Raise if a table written as a list of rows has rows of several lengths."""
    lengths = [_length(row) for row in rows]
    for k, length in enumerate(lengths):
        if length != lengths[0]:
            raise ValueError(
                f"Expected rows of one length, got {_counted(lengths[0])} in row 0 and "
                f"{_counted(length)} in row {k}{of_whom}. Give every row the same columns"
                + ("." if of_whom else ", or every client a 2-D table (rows by features).")
            )


def _length(row):
    """Number of entries of a row, None for a number."""
    return len(row) if _n_dimensions(row) > 0 else None


def _counted(length):
    return "a bare number" if length is None else _plural(length, "number")


def _plural(count, noun):
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _holds_tables(table):
    """Whether entries of a list are tables, or of an array or a pandas Series tables or lists."""
    if isinstance(table, list | tuple):
        return any(_n_dimensions(entry) > 1 for entry in table)
    if getattr(getattr(table, "dtype", None), "kind", None) != "O":
        return False
    return any(_n_dimensions(entry) > 0 for entry in np.asarray(table, dtype=object).ravel())


def client_codes(labels, n_rows):
    """Clients of labelled rows.

    Parameters
    ----------
    labels : array-like of shape (n_rows,)
        Client label of each row.
    n_rows : int

    Returns
    -------
    ids : ndarray of shape (n_clients,)
        The distinct labels, sorted.
    codes : ndarray of int, shape (n_rows,)
        Position in ``ids`` of each row's label.
    """
    ids, order, offsets = grouped(labels, n_rows)
    in_order = np.repeat(np.arange(len(ids)), np.diff(offsets))
    if order is None:
        return ids, in_order
    codes = np.empty_like(in_order)
    codes[order] = in_order
    return ids, codes


def grouped(labels, n_rows):
    """Bring the rows of each client together.

    Parameters
    ----------
    labels : array-like of shape (n_rows,)
        Client label of each row.
    n_rows : int

    Returns
    -------
    ids : ndarray of shape (n_clients,)
        The distinct labels, sorted.
    order : ndarray of int, shape (n_rows,), or None
        Row numbers, those of the first client first; None where the rows are in that order.
    offsets : ndarray of int, shape (n_clients + 1,)
        Client ``i`` owns ``order[offsets[i]:offsets[i + 1]]``.
    """
    array = _label_array(labels, n_rows)
    order = None
    try:
        if not (array[1:] >= array[:-1]).all():
            order = np.argsort(array, kind="stable")
            array = array[order]
    except TypeError as error:
        kinds = sorted({type(label).__name__ for label in array})
        raise TypeError(
            f"Expected client labels of one type, got {', '.join(kinds)}, which cannot be sorted. "
            "Convert them, for example with str."
        ) from error
    starts = np.flatnonzero(np.concatenate([[True], array[1:] != array[:-1]]))
    ids = array[starts]
    if not hasattr(labels, "dtype"):
        ids = np.array(ids.tolist())
    return ids, order, np.append(starts, n_rows)


def _label_array(labels, n_rows):
    """One label for each row, none missing; objects where no array was given."""
    # As objects, a list of labels keeps its types: NumPy would make strings of [3, "a", nan].
    array = np.asarray(labels, dtype=None if hasattr(labels, "dtype") else object)
    if array.ndim != 1 or len(array) != n_rows:
        raise ValueError(
            f"Expected `clients` to hold one label for each of the {n_rows} rows, got shape "
            f"{array.shape}. Labels say who owns a row; lengths or lists of rows do not fit here."
        )
    if array.dtype != object:
        missing = np.flatnonzero(array != array)
    else:
        missing = np.flatnonzero([_is_missing(label) for label in array])
    if len(missing):
        raise ValueError(
            f"Expected a client label for each row, got a missing one at row {missing[0]}. Drop "
            "the row or give it to a client."
        )
    return array


def _from_labels(rows, clients, weights, allow_nan, may_copy):
    ids, order, offsets = grouped(clients, len(rows))

    def of_whom(row):
        """Whose row it is, for a message."""
        position = row if order is None else np.flatnonzero(order == row)[0]
        return f" of client {shown(ids[np.searchsorted(offsets, position, side='right') - 1])}"

    _check_finite(rows, of_whom, allow_nan=allow_nan)
    if order is None:
        return _weighted(ClientData(rows, offsets, ids), weights)
    if may_copy:
        rows = rows.take(order, axis=0)
    else:
        rows = _reordered(rows, order)
    weights = None if weights is None else weights[order]
    return _weighted(ClientData(rows, offsets, ids), weights)


def _reordered(rows, order):
    """Rows in another order, or some of them, not copied."""
    half = np.min_scalar_type(-len(rows))  # half the memory, as a rule
    return ReorderedRows(rows, order.astype(half))


def _weights_of_table(sample_weight, n_rows, whose=""):
    """Weights of a table's rows as float64."""
    try:
        weights = np.asarray(sample_weight, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"Expected sample_weight to hold numbers{whose}, got {error}.") from error
    if weights.shape != (n_rows,):
        raise ValueError(
            f"Expected sample_weight to hold one number for each of the {n_rows} rows{whose}, got "
            f"shape {weights.shape}. Give it the form of X: an array with a table, a list with one "
            "array for each client with a list."
        )
    return weights


def _weights_of_list(X, sample_weight):
    """Weights of the rows of a list of tables, stacked; None where there are none."""
    if sample_weight is None:
        return None
    if not isinstance(sample_weight, list | tuple) or len(sample_weight) != len(X):
        got = f"a {type(sample_weight).__name__}"
        if isinstance(sample_weight, list | tuple):
            got = f"a {type(sample_weight).__name__} of {len(sample_weight)}"
        raise ValueError(
            f"Expected sample_weight to be a list with one array for each of the {len(X)} clients "
            f"of X, got {got}. Give it the form of X."
        )
    return np.concatenate(
        [
            _weights_of_table(weights, len(table), f" of client {k}")
            for k, (table, weights) in enumerate(zip(X, sample_weight, strict=True))
        ]
    )


def check_weights(weights, of_whom=lambda row: "", first=lambda row: 0):
    """Raise for weights that are negative, missing or infinite, or zero altogether.

    ``of_whom`` and ``first`` tell of a row whose it is, and where that client's rows begin.
    """
    bad = np.flatnonzero(~((weights >= 0) & (weights <= _LARGEST)))
    if len(bad):
        row = bad[0]
        raise ValueError(
            f"Expected sample_weight to be not negative and at most {_LARGEST:g}, got "
            f"{weights[row]} in row {row - first(row)}{of_whom(row)}. Drop such rows or give them "
            "weight 0; only ratios of weights matter."
        )
    if not weights.max() >= 1 / _LARGEST:
        raise ValueError(
            "Expected a row with a positive sample_weight, got weights that are all zero, or below "
            f"{1 / _LARGEST:g}. Only their ratios matter: multiply all of them."
        )


def _weighted(data, weights):
    """Client data with weights of rows, without the rows of weight zero."""
    if weights is None:
        return data
    starts = data.offsets[:-1]
    owners = partial(np.searchsorted, data.offsets, side="right")
    check_weights(
        weights,
        lambda row: f" of client {shown(data.ids[owners(row) - 1])}",
        lambda row: data.offsets[owners(row) - 1],
    )
    kept = weights > 0
    counts = np.add.reduceat(kept, starts, dtype=np.intp)
    if not counts.all():
        raise ValueError(
            "Expected a row with a positive sample_weight for every client, got weights that are "
            f"all zero for client {shown(data.ids[np.argmin(counts)])}. Leave such clients out."
        )
    rows, offsets = data.rows, data.offsets
    if not kept.all():
        chosen = np.flatnonzero(kept)
        is_small = isinstance(rows, np.ndarray) and rows.nbytes <= _LARGEST_COPY
        may_copy = is_small and not is_mapped(rows)
        rows = rows[chosen] if may_copy else _reordered(rows, chosen)
        weights = weights[kept]
        offsets = np.concatenate([[0], np.cumsum(counts)])
    # Equal weights are none.
    weights = weights if (weights != weights[0]).any() else None
    return ClientData(rows, offsets, data.ids, weights)


def _from_list(estimator, X, allow_nan):
    if not len(X):
        raise ValueError(f"Expected at least one client, got an empty list. {_HOW}")
    tables = [_table(table, k) for k, table in enumerate(X)]
    check_columns(estimator, X, [table.shape for table in tables])
    offsets = np.concatenate([[0], np.cumsum([len(table) for table in tables])])
    if len(tables) == 1:
        rows = tables[0]
    elif any(is_mapped(table) for table in tables):
        rows = JoinedRows(tables)
    else:
        dtype = np.float32 if all(t.dtype == np.float32 for t in tables) else np.float64
        rows = np.concatenate(tables, dtype=dtype)
    owners = partial(np.searchsorted, offsets, side="right")
    _check_finite(rows, lambda row: f" of client {owners(row) - 1}", offsets, allow_nan=allow_nan)
    return ClientData(rows, offsets, np.arange(len(tables)))


def check_columns(estimator, X, shapes):
    """Take the features of the first client, and raise if another client's are not the same.

    Parameters
    ----------
    estimator : estimator
        Gets ``n_features_in_`` and ``feature_names_in_``.
    X : list of tables
    shapes : list of tuple
        Shape of each table.
    """
    names = _column_names(X[0], 0)
    first = X[0] if names is not None else np.empty((0, shapes[0][1]))
    # scikit-learn's checks on the first client fix the number and the names of the features.
    validate_data(estimator, first, skip_check_array=True)
    for k, shape in enumerate(shapes):
        if shape[1] != estimator.n_features_in_:
            raise ValueError(
                f"Expected {estimator.n_features_in_} features for every client as for client 0, "
                f"got {shape[1]} for client {k} (shape {shape}). Give all clients the same columns."
            )
        own = _column_names(X[k], k)
        if (own is None) != (names is None) or (own is not None and own != names):
            raise ValueError(
                f"Expected the columns of client 0 ({_shorten(names)}) for every client, in that "
                f"order, got {_shorten(own)} for client {k}. Rename or reorder its columns."
            )


def _is_missing(label):
    try:
        return label is None or bool(label != label)
    except TypeError:  # pandas.NA: whether it equals itself is NA, too
        return True


def shown(label):
    """A client's label as a person writes it."""
    if not isinstance(label, np.generic):
        return repr(label)
    if label.dtype.kind in "mM":
        return str(label)
    return repr(label.item())


def _table(table, k):
    """One client's rows as a 2-D array of float32 or float64."""
    if issparse(table):
        raise TypeError(
            f"Expected a dense table for client {k}, got a sparse {type(table).__name__}. Use "
            "`.toarray()` if it fits in memory."
        )
    whose = f"the table of client {k}"
    if _holds_tables(table):
        raise ValueError(
            f"Expected numbers in {whose}, got entries that are tables or lists themselves. Give "
            "each of them as a client of its own."
        )
    if isinstance(table, list | tuple):
        _refuse_uneven_rows(table, f" of {whose}")
    try:
        array = np.asarray(table)
    except ValueError as error:
        raise ValueError(f"Expected a 2-D table for client {k}, got {error}. {_HOW}") from error
    if array.ndim != 2:
        got = f"{_plural(array.ndim, 'dimension')} and shape {array.shape}"
        if not array.ndim:
            got = f"no table, but a {type(table).__name__}"
        raise ValueError(
            f"Expected a 2-D table (rows by features) for client {k}, got {got}. {_HOW}"
        )
    if array.dtype.kind == "c":
        raise ValueError(f"Complex data not supported: client {k} has dtype {array.dtype}.")
    if array.dtype not in (np.float32, np.float64):
        try:
            if array.dtype.kind in "USmM":
                raise ValueError(f"dtype {array.dtype}")
            if hasattr(table, "isna"):  # pandas.NA is no number, and missing all the same
                array = table.to_numpy(np.float64, na_value=np.nan)
            elif not is_mapped(array):  # in a file, integers become floats when they are read
                array = array.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"Expected numbers in {whose}, got {error}. Encode or drop the columns that are "
                "not numbers."
            ) from error
    if not array.shape[1]:
        raise ValueError(
            f"Expected at least one feature for every client, got 0 features for client {k} (shape "
            f"{array.shape}). Give all clients the same columns."
        )
    if not len(array):
        raise ValueError(
            f"Expected at least one row for every client, got none for client {k} (shape "
            f"{array.shape}). Leave clients without rows out of the list."
        )
    return array


def _check_finite(rows, of_whom=lambda row: "", offsets=None, *, allow_nan=False):
    """Raise for numbers that are missing, infinite, or too large to be squared."""
    n_rows = max(1, _BLOCK // rows.shape[1])
    for start in range(0, len(rows), n_rows):
        block = rows[start : start + n_rows]
        if not (float(block.min()) >= -_LARGEST and float(block.max()) <= _LARGEST):
            _check_each(block, start, of_whom, offsets, allow_nan)


def _check_each(block, start, of_whom, offsets, allow_nan):
    """Raise for the first number of a block, which begins with row ``start``, that does not fit."""
    finite = ~np.isinf(block) if allow_nan else np.isfinite(block)
    bad = np.abs(block) > _LARGEST if finite.all() else ~finite
    if not bad.any():
        return
    row, column = np.argwhere(bad)[0]
    value, row = block[row, column], row + start
    within = (
        row if offsets is None else row - offsets[np.searchsorted(offsets, row, side="right") - 1]
    )
    got = f"got {value} in row {within}, column {column}{of_whom(row)}"
    if finite.all():
        raise ValueError(
            f"Expected numbers of at most {_LARGEST:g} in size, {got}: their squares are too "
            "large for a double. Divide such a feature by a power of ten."
        )
    what, wanted = ("", " or missing (NaN)") if allow_nan else ("NaN or ", "")
    raise ValueError(
        f"Input X contains {what}infinity: expected finite{wanted} numbers, {got}. Drop or impute "
        "such rows."
    )


def _column_names(table, k):
    """Names of a table's columns as scikit-learn reads them: None unless they are strings."""
    columns = getattr(table, "columns", None)
    names = [] if columns is None else list(columns)
    are_strings = [isinstance(name, str) for name in names]
    if any(are_strings) and not all(are_strings):
        raise TypeError(
            f"Expected the column names of client {k} to be strings, all of them or none, got "
            f"{_shorten(names)}. Convert them with X.columns.astype(str)."
        )
    return names if any(are_strings) else None


def _shorten(names):
    return (
        "no string column names"
        if names is None
        else f"[{', '.join(map(repr, names[:8]))}" + (", ...]" if len(names) > 8 else "]")
    )


def check_rows(estimator, X, *, allow_nan=False):
    """Validate one table against the fitted estimator."""
    _refuse_what_is_no_table(X)
    rows = validate_data(
        estimator,
        X,
        dtype=[np.float64, np.float32],
        reset=False,
        ensure_all_finite="allow-nan" if allow_nan else True,
    )
    _check_finite(rows, allow_nan=allow_nan)
    return rows


def features_of(estimator):
    """``n_features_in_`` and, if there are some, ``feature_names_in_``, by name."""
    names = ("n_features_in_", "feature_names_in_")
    return {name: vars(estimator)[name] for name in names if name in vars(estimator)}


def check_row_weights(X, sample_weight):
    """Weights of the rows of a table, or of a list of tables one after the other, for a mean."""
    if is_client_list(X):
        weights = _weights_of_list(X, sample_weight)
        offsets = np.cumsum([0] + [len(table) for table in X])
        owners = partial(np.searchsorted, offsets, side="right")
        check_weights(
            weights,
            lambda row: f" of client {owners(row) - 1}",
            lambda row: offsets[owners(row) - 1],
        )
        return weights
    weights = _weights_of_table(sample_weight, _n_rows(X))
    check_weights(weights)
    return weights


def _n_rows(X):
    return X.shape[0] if hasattr(X, "shape") else len(X)


def take_features(estimator, checked):
    """Set ``n_features_in_`` and ``feature_names_in_`` as another has them."""
    vars(estimator).pop("feature_names_in_", None)
    vars(estimator).update(features_of(checked))


def each_client(X, answer):
    """Answer to each table of a list of clients, as a tuple; errors name the client."""
    if not len(X):
        raise ValueError(
            "Expected at least one client, got an empty list. Give one table, or a list with "
            "one table for each client."
        )
    answers = []
    for k, table in enumerate(X):
        if is_client_list(table):
            raise ValueError(
                f"Expected a 2-D table (rows by features) for client {k}, got a list of "
                f"{len(table)} tables. Give one list with all tables."
            )
        try:
            answers.append(answer(table))
        except (TypeError, ValueError) as error:
            raise type(error)(f"In the table of client {k}: {error}") from error
    return tuple(answers)


def federation_of(data, client_weights):
    """Stack validated clients with their weights w_i.

    ``client_weights`` is "n_samples" (w_i = m_i / N, the pooled likelihood, m_i being the sum of
    the client's weights of rows where rows have some) or "uniform" (1/n).
    """
    sample_weight = None
    totals = np.diff(data.offsets)
    if data.sample_weight is not None:
        sample_weight = sample_weight_of(data.sample_weight, data.offsets)
        totals = sample_weight.totals
    if client_weights == "n_samples":
        weights = totals / totals.sum()
    else:
        weights = np.full(len(totals), 1 / len(totals))
    return Federation(data.rows, data.offsets, weights, sample_weight)


def check_number(name, value, *, kind=Real, low=None, high=None, low_open=False, hint=""):
    """Raise if a parameter is not a number within its bounds.

    Parameters
    ----------
    name : str
    value : object
    kind : {numbers.Real, numbers.Integral}
    low, high : number, default=None
        Bounds; included, but for ``low`` when ``low_open``.
    hint : str
        What to do, for the message.
    """
    expected = "an integer" if kind is Integral else "a number"
    if low is not None:
        expected += f" {'>' if low_open else '>='} {low}"
    if high is not None:
        expected += f" and <= {high}" if low is not None else f" <= {high}"
    if isinstance(value, bool) or not isinstance(value, kind):
        raise TypeError(
            (
                f"Expected {name} to be {expected}, got {value!r} of type {type(value).__name__}. "
                f"{hint}"
            ).rstrip()
        )
    inside = value == value and abs(value) != np.inf
    inside = inside and (low is None or value > low or (value == low and not low_open))
    inside = inside and (high is None or value <= high)
    if not inside:
        raise ValueError(f"Expected {name} to be {expected}, got {value!r}. {hint}".rstrip())


def check_choice(name, value, choices, *, hint=""):
    """Raise if a parameter is not one of some strings."""
    if not isinstance(value, str) or value not in choices:
        names = ", ".join(map(repr, choices))
        raise ValueError(f"Expected {name} to be one of {names}, got {value!r}. {hint}".rstrip())


def check_shape(name, value, shape):
    """Return a parameter as a finite float array of a shape."""
    try:
        array = np.atleast_1d(np.asarray(value, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"Expected {name} to be numbers of shape {shape}, got {value!r}."
        ) from error
    array = check_array(array, dtype=np.float64, ensure_2d=False, allow_nd=True, input_name=name)
    if array.shape != shape:
        raise ValueError(f"Expected {name} to have shape {shape}, got {array.shape}.")
    return array


def check_enough_rows(data, n_components, batch_size, replacement):
    """Raise if there are fewer rows than components, or than a minibatch without replacement."""
    n_samples = int(data.offsets[-1])
    if n_samples < n_components:
        raise ValueError(
            f"Expected n_samples >= n_components, got n_samples = {n_samples} and n_components = "
            f"{n_components}. Use fewer components or more rows."
        )
    if batch_size is not None and not replacement:
        if data.sample_weight is not None:
            raise ValueError(
                f"Expected replacement=True with batch_size={batch_size} and a sample_weight: rows "
                "are drawn in proportion to their weights, which without replacement cannot be "
                "had. Use replacement=True, or batch_size=None."
            )
        short = np.flatnonzero(np.diff(data.offsets) < batch_size)
        if len(short):
            client = short[0]
            raise ValueError(
                f"Expected batch_size={batch_size} rows for every client with replacement=False, "
                f"got {data.offsets[client + 1] - data.offsets[client]} for client "
                f"{shown(data.ids[client])}"
                f"{f' and {len(short) - 1} more with too few' if len(short) > 1 else ''}. Use a "
                "smaller batch_size or replacement=True."
            )


def check_switch(name, value):
    """Raise if a parameter is neither True nor False."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"Expected {name} to be True or False, got {value!r}.")


def check_n_jobs(value):
    """Raise if a number of threads is none that joblib knows."""
    hint = "Give a number of threads, -1 for all processors, or None."
    if value is not None:
        check_number("n_jobs", value, kind=Integral, hint=hint)
        if value == 0:
            raise ValueError(f"Expected n_jobs to be an integer other than 0, got 0. {hint}")


def check_verbose(value):
    """Raise if how much to print is neither a number nor a switch."""
    if not isinstance(value, bool | np.bool_):
        check_number("verbose", value, low=0, hint="0 prints nothing.")


def warn(message, category):
    """Warn at the user's line: the nearest caller outside of this package and scikit-learn."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and _is_ours(frame):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def _is_ours(frame):
    return frame.f_globals.get("__name__", "").partition(".")[0] in ("skfedem", "sklearn", "joblib")
