"""Validation of the client labels of rows."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
import sklearn
from numpy.typing import ArrayLike, NDArray

from .._messages import repr_of, warn
from .._typing import IntArray, Table
from .table_labels import is_frame
from .tables import are_plain, missing_labels, refuse_masked


def refuse_name(clients: object) -> None:
    """Raise if the client labels are a string, such as the name of a column.

    Called before X is checked, because that column, usually of text, is still in X.
    """
    if isinstance(clients, str):
        name = repr_of(clients)
        raise TypeError(
            f"Expected `clients` to hold one label for each row, got the string {name}. If that is "
            f"a column of X, give the column itself, X[{name}], and drop it from X."
        )


def warn_of_labels(X: Table, labels: ArrayLike | None) -> None:
    """Warn if the labels are a column that was not dropped from X, or in another order than X."""
    warn_of_another_order(X, "`clients`", labels)
    name = getattr(labels, "name", None)
    # A number as the name, such as 0, may only be the default.
    if is_frame(X) and isinstance(name, str) and name in X.columns:
        warn(
            f"Column {name!r}, which has the client labels, is still in X and was fitted like the "
            "other columns. Drop it from X if it only tells who owns a row.",
            UserWarning,
        )


def warn_of_another_order(X: Table, name: str, values: Any) -> None:
    """Warn if a Series with a value for each row of X has the index of X in another order."""
    if not (is_frame(X) and hasattr(X, "index") and hasattr(values, "iloc")):
        return
    index, own = X.index, values.index
    if index.equals(own) or len(index) != len(own):
        return
    # pandas compares only labels of one kind.
    if index.nlevels != own.nlevels or index.inferred_type != own.inferred_type:
        return
    if index.is_unique and own.is_unique and index.isin(own).all():
        warn(
            f"{name} has the index of X in another order, but is read by position, like an array. "
            "Reorder it with .loc[X.index] if the index tells the row; otherwise give its "
            ".to_numpy().",
            UserWarning,
        )


def grouped(labels: ArrayLike, n_rows: int) -> tuple[NDArray[Any], IntArray | None, IntArray]:
    """Group rows by client.

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
        Row numbers in the order of clients; None if the rows are in this order.
    offsets : ndarray of int, shape (n_clients + 1,)
        Client ``i`` owns ``order[offsets[i]:offsets[i + 1]]``.
    """
    array = _label_array(labels, n_rows)
    order = None
    try:
        if not (array[1:] >= array[:-1]).all():
            order = np.argsort(sort_keys(array), kind="stable")
            array = array[order]
    except TypeError as error:
        kinds = sorted({type(label).__name__ for label in array})
        expected = "of one type" if len(kinds) > 1 else "that can be sorted"
        raise TypeError(
            f"Expected client labels {expected}, got {', '.join(kinds)}, which cannot be sorted. "
            "Convert them, for example with str."
        ) from error
    starts = np.flatnonzero(np.concatenate([[True], array[1:] != array[:-1]]))
    ids = array[starts]
    refuse_partial_order(ids, "client labels")
    if not (hasattr(labels, "dtype") or any(isinstance(label, tuple) for label in ids)):
        plain = np.array(ids.tolist())
        # Large integers would be rounded by a conversion to floats.
        ids = plain if (plain == ids).all() else ids
    _warn_of_measurements(ids, n_rows)
    return ids, order, np.append(starts, n_rows)


def sort_keys(labels: NDArray[Any]) -> NDArray[Any]:
    """Array in the order of labels, faster to sort: numbers in place of strings that recur."""
    distinct = set(labels.flat) if are_plain(labels) else labels
    if 2 * len(distinct) > len(labels):
        return labels
    numbers = {label: number for number, label in enumerate(sorted(distinct))}
    return np.fromiter(map(numbers.__getitem__, labels.flat), np.intp, len(labels))


def _warn_of_measurements(ids: NDArray[Any], n_rows: int) -> None:
    """Warn if most rows have a label of their own, and labels are numbers with fractions."""
    fractions = ids[ids != np.floor(ids)] if ids.dtype.kind == "f" else np.empty(0)
    if len(fractions) and 2 * len(ids) > n_rows:
        warn(
            f"`clients` holds {len(ids)} different numbers for {n_rows} rows, such as "
            f"{fractions[0]}, and each of them is a client. If these are measurements, give the "
            "labels that tell who owns a row instead.",
            UserWarning,
        )


def refuse_partial_order(ids: NDArray[Any], what: str) -> None:
    """Raise for labels without a total order, such as sets, which sorting does not group."""
    if ids.dtype != object:
        return
    try:
        n_distinct = len(set(ids.tolist()))
    except TypeError as error:
        raise TypeError(
            f"Expected {what} that can be told apart by their hash, got {error}. Convert them, for "
            "example with str."
        ) from error
    if n_distinct < len(ids):
        raise TypeError(
            f"Expected {what} that can be sorted, got {type(ids[0]).__name__} labels, of which "
            "some are neither smaller nor larger than others. Convert them, for example with str."
        )


def _label_array(labels: ArrayLike, n_rows: int) -> NDArray[Any]:
    """Array with one label for each row, none missing; of objects unless an array was given."""
    refuse_name(labels)
    refuse_masked("clients", labels)
    # As objects, because NumPy would convert [3, "a", nan] to strings.
    array = np.asarray(labels, dtype=None if hasattr(labels, "dtype") else object)
    if array.ndim != 1 or len(array) != n_rows:
        hint = "Give one for each row, in a list or an array."
        if isinstance(labels, Integral):
            hint = "To split rows over a number of clients, use skfedem.datasets.split_clients."
        elif array.shape == (n_rows, 1):
            hint = (
                "Give them in one dimension, as numpy.ravel(labels), or X['name'] for X[['name']]."
            )
        elif array.ndim == 2:
            hint = "Tuples are labels in a pandas Series."
        elif array.ndim == 1 and sklearn.get_config()["enable_metadata_routing"]:
            hint = (
                "If earlier steps of a Pipeline change the rows, do not request labels for this "
                "step: call set_fit_request(clients=False)."
            )
        got = f"shape {array.shape}" if array.ndim else f"type {type(labels).__name__}"
        raise ValueError(
            f"Expected `clients` to hold one label for each of the {n_rows} rows, got {got}. Give "
            f"the client of each row, not the lengths or the rows of clients. {hint}"
        )
    missing = missing_labels(array)
    if len(missing):
        raise ValueError(
            f"Expected a client label for each row, got a missing one at row {missing[0]}. Drop "
            "the row or give it to a client."
        )
    # Arrays of two calls may have different markers for missing strings, which cannot be mixed.
    return array.astype(np.dtypes.StringDType()) if array.dtype.kind == "T" else array
