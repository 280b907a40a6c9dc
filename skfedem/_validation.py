"""Checks of what the user gives: client data and parameters. Nothing given is ever changed."""

from __future__ import annotations

from functools import partial
from numbers import Integral, Real
from typing import NamedTuple

import numpy as np
from scipy.sparse import issparse
from sklearn.utils.validation import check_array, validate_data

from ._federation import Federation

_HOW = (
    "Give a list with one 2-D array or DataFrame for each client, one 2-D array with `clients=` "
    "(a client label for each row), or one 2-D array alone for a single client."
)


class ClientData(NamedTuple):
    """Validated rows of all clients, stacked in client order, and who the clients are."""

    rows: np.ndarray
    offsets: np.ndarray
    ids: np.ndarray


def is_client_list(X):
    """Whether X is a list of clients' tables rather than one table.

    A list of 2-D things is; a list of rows (1-D things or numbers) is a table written as a list.
    """
    if not isinstance(X, list | tuple):
        return False
    return not X or any(_n_dimensions(table) != 1 for table in X if _n_dimensions(table) > 0)


def _n_dimensions(table):
    if hasattr(table, "ndim"):
        return table.ndim
    depth = 0
    while isinstance(table, list | tuple):
        depth, table = depth + 1, table[0] if table else None
    return depth + getattr(table, "ndim", 0)


def check_clients(estimator, X, clients=None):
    """Validate training data; set ``n_features_in_`` and ``feature_names_in_``.

    Parameters
    ----------
    estimator : estimator
        For scikit-learn's checks of features and their names.
    X : list of 2-D arrays or DataFrames, or one 2-D array or DataFrame
    clients : array-like of shape (n_samples,), default=None
        Client label of each row of one X.

    Returns
    -------
    data : ClientData

    Raises
    ------
    TypeError, ValueError
        Which name the client, what was expected and what was got.
    """
    if is_client_list(X):
        if clients is not None:
            raise ValueError(
                "Expected `clients=None` with a list of clients, got both: the list already says "
                f"which rows are whose. {_HOW}"
            )
        return _from_list(estimator, X)
    if getattr(X, "ndim", 2) == 3:
        raise ValueError(
            f"Expected 2-D data, got one array with 3 dimensions and shape {X.shape}. If its first "
            f"axis counts clients, give `list(X)`. {_HOW}"
        )
    if isinstance(X, np.ndarray) and X.dtype.kind in "USmM":
        raise ValueError(
            f"Expected numbers, got dtype {X.dtype}. Encode or drop the columns that are not numbers."
        )
    rows = validate_data(estimator, X, dtype=[np.float64, np.float32], ensure_all_finite=False)
    if clients is None:
        _check_finite(rows)
        return ClientData(rows, np.array([0, len(rows)]), np.arange(1))
    return _from_labels(rows, clients)


def _from_labels(rows, clients):
    # As objects, a list of labels keeps its types: NumPy would make strings of [3, "a", nan].
    labels = np.asarray(clients, dtype=None if hasattr(clients, "dtype") else object)
    if labels.ndim != 1 or len(labels) != len(rows):
        raise ValueError(
            f"Expected `clients` to hold one label for each of the {len(rows)} rows, got shape "
            f"{labels.shape}. Labels say who owns a row; lengths or lists of rows do not fit here."
        )
    if labels.dtype != object:
        missing = np.flatnonzero(labels != labels)
    else:
        missing = [k for k, label in enumerate(labels) if _is_missing(label)]
    if len(missing):
        raise ValueError(
            f"Expected a client label for each row, got a missing one at row {missing[0]}. Drop "
            "the row or give it to a client."
        )
    try:
        ids, codes = np.unique(labels, return_inverse=True)
    except TypeError as error:
        kinds = sorted({type(label).__name__ for label in labels})
        raise TypeError(
            f"Expected client labels of one type, got {', '.join(kinds)}, which cannot be sorted. "
            "Convert them, for example with str."
        ) from error
    if not hasattr(clients, "dtype"):
        ids = np.array(ids.tolist())
    _check_finite(rows, lambda row: f" of client {shown(labels[row])}")
    if (codes[1:] >= codes[:-1]).all():
        stacked = rows
    else:
        stacked = rows[np.argsort(codes, kind="stable")]
    return ClientData(stacked, np.concatenate([[0], np.cumsum(np.bincount(codes))]), ids)


def _from_list(estimator, X):
    if not len(X):
        raise ValueError(f"Expected at least one client, got an empty list. {_HOW}")
    tables = [_table(table, k) for k, table in enumerate(X)]
    # scikit-learn's checks on the first client fix the number and the names of the features.
    names = _column_names(X[0])
    first = X[0] if names is not None else tables[0]
    validate_data(estimator, first, skip_check_array=True)
    for k, table in enumerate(tables):
        if table.shape[1] != estimator.n_features_in_:
            raise ValueError(
                f"Expected {estimator.n_features_in_} features for every client as for client 0, "
                f"got {table.shape[1]} for client {k} (shape {table.shape}). Give all clients the "
                "same columns."
            )
        own = _column_names(X[k])
        if (own is None) != (names is None) or (own is not None and own != names):
            raise ValueError(
                f"Expected the columns of client 0 ({_shorten(names)}) for every client, in that "
                f"order, got {_shorten(own)} for client {k}. Rename or reorder its columns."
            )
    lengths = [len(table) for table in tables]
    dtype = np.float32 if all(t.dtype == np.float32 for t in tables) else np.float64
    rows = tables[0] if len(tables) == 1 else np.concatenate(tables, dtype=dtype)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    owners = partial(np.searchsorted, offsets, side="right")
    _check_finite(rows, lambda row: f" of client {owners(row) - 1}", offsets)
    return ClientData(rows, offsets, np.arange(len(tables)))


def _is_missing(label):
    try:
        return label is None or bool(label != label)
    except TypeError:  # pandas.NA: whether it equals itself is NA, too
        return True


def shown(label):
    """A client's label as a person writes it."""
    return (
        repr(label.item())
        if isinstance(label, np.generic) and label.dtype.kind not in "mM"
        else (str(label) if isinstance(label, np.generic) else repr(label))
    )


def _table(table, k):
    """One client's rows as a 2-D array of float32 or float64."""
    if issparse(table):
        raise TypeError(
            f"Expected a dense table for client {k}, got a sparse {type(table).__name__}. Use "
            "`.toarray()` if it fits in memory."
        )
    try:
        array = np.asarray(table)
        if array.dtype.kind == "c":
            raise ValueError(f"Complex data not supported: client {k} has dtype {array.dtype}.")
        if array.dtype not in (np.float32, np.float64):
            if array.dtype.kind in "USmM":
                raise ValueError(f"dtype {array.dtype}")
            array = array.astype(np.float64)
    except (TypeError, ValueError) as error:
        if "Complex" in str(error):
            raise
        raise ValueError(
            f"Expected numbers in the table of client {k}, got {error}. Encode or drop the columns "
            "that are not numbers."
        ) from error
    if array.ndim != 2:
        raise ValueError(
            f"Expected a 2-D table (rows by features) for client {k}, got {array.ndim} "
            f"dimension(s) and shape {array.shape}. {_HOW}"
        )
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


def _check_finite(rows, of_whom=lambda row: "", offsets=None):
    if np.isfinite(rows.sum(dtype=np.float64)) or np.isfinite(rows).all():
        return
    row, column = np.argwhere(~np.isfinite(rows))[0]
    within = (
        row if offsets is None else row - offsets[np.searchsorted(offsets, row, side="right") - 1]
    )
    raise ValueError(
        f"Input X contains NaN or infinity: expected finite numbers, got {rows[row, column]} in "
        f"row {within}, column {column}{of_whom(row)}. Drop or impute such rows."
    )


def _column_names(table):
    columns = getattr(table, "columns", None)
    return None if columns is None else list(columns)


def _shorten(names):
    return (
        "no column names"
        if names is None
        else f"[{', '.join(map(repr, names[:8]))}" + (", ...]" if len(names) > 8 else "]")
    )


def check_rows(estimator, X):
    """Validate one table against the fitted estimator."""
    return validate_data(estimator, X, dtype=[np.float64, np.float32], reset=False)


def federation_of(data, client_weights):
    """Stack validated clients with their weights w_i.

    ``client_weights`` is "n_samples" (w_i = m_i / N, the pooled likelihood) or "uniform" (1/n).
    """
    lengths = np.diff(data.offsets)
    if client_weights == "n_samples":
        weights = lengths / lengths.sum()
    else:
        weights = np.full(len(lengths), 1 / len(lengths))
    return Federation(data.rows, data.offsets, weights)


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
