"""Client labels: of the rows of one table, and among those of earlier calls."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._compat import row_count
from .._error_messages import label_repr, repr_of
from .._typing import ClientsLike, IntArray, Table
from .._warnings import warn
from .tables import GIVE_TABLES, check_not_masked, is_client_list, is_frame, is_missing


def check_no_labels(clients: ArrayLike | None, advice: str = GIVE_TABLES) -> None:
    """Raise if row labels are given together with a list of clients."""
    if clients is not None:
        raise ValueError(
            "Expected `clients=None` with a list of clients, got both: the list already tells the "
            f"client of each row. {advice}"
        )


def check_not_name(labels: object, name: str = "`clients`") -> None:
    """Raise if labels are a string, such as the name of a column.

    Called before X is checked, because that column, usually of text, is still in X.
    """
    if isinstance(labels, str):
        column = repr_of(labels)
        hint = f"If that is a column of X, give the column itself, X[{column}], and drop it from X."
        hint = hint if name == "`clients`" else "Give the labels themselves."
        raise TypeError(
            f"Expected {name} to hold one label for each row, got the string {column}. {hint}"
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


def warn_of_ignored_labels(X: ClientsLike, y: object, clients: ArrayLike | None) -> None:
    """Warn if y, which is ignored, looks like labels of the rows: most of its values recur."""
    if y is None or clients is not None or is_client_list(X):
        return
    values = np.asarray(y)
    if values.ndim != 1 or len(values) != row_count(X):
        return
    n_distinct = len(set(values.tolist()))
    if 1 < n_distinct <= len(values) // 2:
        warn(
            f"y, which has {n_distinct} different values, is ignored, and all rows are one client. "
            "If it has the clients' labels, write fit(X, clients=labels).",
            UserWarning,
        )


def warn_of_another_order(X: Table, name: str, values: Any) -> None:
    """Warn if a Series with a value for each row of X has the index of X in another order."""
    if not (is_frame(X) and hasattr(X, "index") and hasattr(values, "iloc")):
        return
    index, other = X.index, values.index
    if index.equals(other) or len(index) != len(other):
        return
    # pandas compares only labels of one kind.
    if index.nlevels != other.nlevels or index.inferred_type != other.inferred_type:
        return
    if index.is_unique and other.is_unique and index.isin(other).all():
        warn(
            f"{name} has the index of X in another order, but is read by position, like an array. "
            "Reorder it with .loc[X.index] if the index tells the row; otherwise give its "
            ".to_numpy().",
            UserWarning,
        )


def group_rows(
    labels: ArrayLike, n_rows: int, name: str = "`clients`"
) -> tuple[NDArray[Any], IntArray | None, IntArray]:
    """Group rows by label: distinct ones, order and offsets; messages call the labels ``name``.

    The distinct labels are sorted; label ``i`` has the rows ``order[offsets[i]:offsets[i + 1]]``.
    The order is None if rows are in it already.
    """
    array = _label_array(labels, n_rows, name)
    order = None
    try:
        if not (array[1:] >= array[:-1]).all():
            order = np.argsort(sort_keys(array), kind="stable")
            array = array[order]
    except TypeError as error:
        kinds = ", ".join(sorted({type(label).__name__ for label in array}))
        raise TypeError(
            f"Expected {name} to hold labels of one type that can be sorted, got {kinds}. Convert "
            "them, for example with str."
        ) from error
    starts = np.flatnonzero(np.concatenate([[True], array[1:] != array[:-1]]))
    ids = array[starts]
    check_distinct(ids, f"{name} to hold labels")
    if not (hasattr(labels, "dtype") or any(isinstance(label, tuple) for label in ids)):
        plain = np.array(ids.tolist())
        # Large integers would be rounded by a conversion to floats.
        ids = plain if (plain == ids).all() else ids
    _warn_of_measurements(ids, n_rows, name)
    return ids, order, np.append(starts, n_rows)


def _label_array(labels: ArrayLike, n_rows: int, name: str) -> NDArray[Any]:
    """Array with one label for each row, none missing; of objects unless an array was given."""
    check_not_name(labels, name)
    check_not_masked(name.strip("`"), labels)
    # As objects, because NumPy would convert [3, "a", nan] to strings.
    array = np.asarray(labels, dtype=None if hasattr(labels, "dtype") else object)
    if array.ndim != 1 or len(array) != n_rows:
        got = f"shape {array.shape}" if array.ndim else f"type {type(labels).__name__}"
        raise ValueError(
            f"Expected {name} to hold one label for each of the {n_rows} rows, got {got}. Give the "
            "label of each row, in a list or an array of one dimension."
        )
    missing = missing_labels(array)
    if len(missing):
        raise ValueError(
            f"Expected {name} to hold a label for each row, got a missing one at row {missing[0]}. "
            "Drop the row, or label it."
        )
    # Arrays of two calls may have different markers for missing strings, which cannot be mixed.
    return array.astype(np.dtypes.StringDType()) if array.dtype.kind == "T" else array


def missing_labels(labels: NDArray[Any]) -> IntArray:
    """Positions of missing labels in an array."""
    if _are_plain(labels):
        return np.empty(0, dtype=np.intp)
    if labels.dtype.kind in {"O", "T"}:  # a missing string equals itself in StringDType
        # fromiter instead of a list, which would take eight bytes per row.
        return np.flatnonzero(np.fromiter(map(is_missing, labels.flat), bool, len(labels)))
    return np.flatnonzero(labels != labels)


def _are_plain(labels: NDArray[Any]) -> bool:
    """Whether an array has Python's strings only, or its integers only: none is missing."""
    return labels.dtype.kind in {"O", "T"} and set(map(type, labels.flat)) in ({str}, {int})


def sort_keys(labels: NDArray[Any]) -> NDArray[Any]:
    """Array in the order of labels, faster to sort: numbers in place of strings that recur."""
    distinct = set(labels.flat) if _are_plain(labels) else labels
    if 2 * len(distinct) > len(labels):
        return labels
    numbers = {label: number for number, label in enumerate(sorted(distinct))}
    return np.fromiter(map(numbers.__getitem__, labels.flat), np.intp, len(labels))


def check_distinct(ids: NDArray[Any], what: str) -> None:
    """Raise for sorted labels that recur, as those without a total order do, such as sets."""
    if ids.dtype != object:
        return
    try:
        are_distinct = len(set(ids.tolist())) == len(ids)
    except TypeError:  # lists, which have no hash
        are_distinct = False
    if not are_distinct:
        raise TypeError(
            f"Expected {what} that can be sorted, got {type(ids[0]).__name__}. Convert them, for "
            "example with str."
        )


def _warn_of_measurements(ids: NDArray[Any], n_rows: int, name: str) -> None:
    """Warn if most rows have a label of their own, and labels are numbers with fractions."""
    fractions = ids[ids != np.floor(ids)] if ids.dtype.kind == "f" else np.empty(0)
    if len(fractions) and 2 * len(ids) > n_rows:
        warn(
            f"{name} holds {len(ids)} different numbers for {n_rows} rows, such as {fractions[0]}, "
            "and each of them is a label. If these are measurements, give labels that rows share.",
            UserWarning,
        )


# ---- labels of earlier calls


def check_kinds(known: NDArray[Any], ids: NDArray[Any]) -> None:
    """Raise if labels cannot be compared with known ones, so that all would look new."""
    if _are_comparable(known, ids):
        return
    raise ValueError(
        "Expected client labels of the same kind as in earlier calls, such as "
        f"{_described(known)}, got {_described(ids)}. Use the same labels in every call, or start "
        "over: call fit with warm_start=False, or partial_fit on a clone."
    )


def _are_comparable(known: NDArray[Any], ids: NDArray[Any]) -> bool:
    """Whether labels are of the same kind, or are objects that can be compared."""
    kinds = {_kind(known), _kind(ids)}
    if "O" not in kinds or kinds & {"M", "m"}:  # dates as objects would not be found among dates
        return len(kinds) == 1
    try:
        _ = known.tolist()[0] < ids.tolist()[0]
    except (TypeError, ValueError):  # such as pandas' periods with different frequencies
        return False
    return True


def _kind(labels: NDArray[Any]) -> str:
    kind = labels.dtype.kind
    return "number" if kind in "biuf" else "text" if kind in "UT" else kind


def _described(labels: NDArray[Any]) -> str:
    """First label and its type, for a message."""
    is_object = labels.dtype == object
    kind = f"type {type(labels[0]).__name__}" if is_object else f"dtype {labels.dtype}"
    return f"{label_repr(labels[0])} of {kind}"


def find_labels(known: NDArray[Any], ids: NDArray[Any]) -> IntArray:
    """Position of each client among the known ones, -1 if it is new; labels are distinct."""
    if len(known) == len(ids) and np.array_equal(known, ids):
        return np.arange(len(ids))
    if known.dtype.kind in "mM" and known.dtype.kind == ids.dtype.kind:
        # In the same unit: otherwise, one list would have dates and the other integers.
        known, ids = (labels.astype(np.result_type(known, ids)) for labels in (known, ids))
    if {known.dtype.kind, ids.dtype.kind} not in ({"i"}, {"u"}):  # mixed, they would be floats
        labels = ids.tolist()
        where = dict.fromkeys(labels, -1)  # usually few, compared with the known ones
        for k, label in enumerate(known.tolist()):
            if label in where:
                where[label] = k
        return np.array([where[label] for label in labels])
    order = np.argsort(known)
    found = order[np.searchsorted(known, ids, sorter=order).clip(max=len(known) - 1)]
    return np.where(known[found] == ids, found, -1)


def labels_together(known: NDArray[Any], new: NDArray[Any]) -> NDArray[Any]:
    """Known and new labels; as objects if conversion to floats would round large integers."""
    if not len(new):
        return known
    labels = np.concatenate([known, new])
    if labels.dtype.kind != "f":
        return labels
    exact = np.concatenate([known.astype(object), new.astype(object)])
    return labels if (labels == exact).all() else exact
