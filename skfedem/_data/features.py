"""Number and names of the features of a fit, and its fitted attributes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data

from .._typing import ClientsLike, Table
from .tables import check_is_table, first_table, is_client_list, is_frame

Names = Sequence[Any] | NDArray[Any] | None
"""Names of columns, None unless they are strings."""


def features_of(estimator: BaseEstimator) -> dict[str, Any]:
    """Dict of ``n_features_in_`` and, if it exists, ``feature_names_in_``."""
    names = ("n_features_in_", "feature_names_in_")
    return {name: vars(estimator)[name] for name in names if name in vars(estimator)}


def store(estimator: BaseEstimator, known: dict[str, Any], **attributes: Any) -> None:
    """Set all fitted attributes at once, including those of ``features_of``.

    A copy made by another thread meanwhile then has the attributes of a single fit.
    """
    vars(estimator).update({**known, **attributes})
    if "feature_names_in_" not in known:
        vars(estimator).pop("feature_names_in_", None)  # of an earlier fit


def column_names(table: Table, k: int) -> list[str] | None:
    """Column names of a client's table, None unless they are strings, as in scikit-learn."""
    names = list(table.columns) if is_frame(table) else []
    are_strings = [isinstance(name, str) for name in names]
    if any(are_strings) and not all(are_strings):
        raise TypeError(
            f"Expected the column names of client {k} to be strings, all of them or none, got "
            f"{shorten(names)}. Convert them with X.columns.astype(str)."
        )
    return names if any(are_strings) else None


def set_features(
    estimator: BaseEstimator, X: Sequence[Table], shapes: list[tuple[int, ...]]
) -> None:
    """Set the features to those of the first client; raise if another client's differ.

    ``shapes`` are those of the tables in the list X.
    """
    if not shapes[0][1]:
        raise ValueError(
            "Expected at least one feature for every client, got 0 features for client 0 (shape "
            f"{shapes[0]}). Give all clients the same columns."
        )
    names = column_names(X[0], 0)
    first = X[0] if names is not None else np.empty((0, shapes[0][1]))
    validate_data(estimator, first, skip_check_array=True)
    for k, (table, shape) in enumerate(zip(X, shapes, strict=True)):
        want, got = names, column_names(table, k)
        if shape[1] != estimator.n_features_in_ and not (want and got):
            raise ValueError(
                f"Expected {estimator.n_features_in_} features for every client as for client 0, "
                f"got {shape[1]} for client {k} (shape {shape}). Give all clients the same columns."
            )
        if are_reordered(X[0], table):  # perhaps by names that are no strings
            want, got = list(X[0].columns), list(table.columns)
        if want != got:
            raise ValueError(
                f"Expected the columns of client 0 ({shorten(want, got)}) for every client, in "
                f"that order, got {shorten(got, want)} for client {k}. Name and order all clients' "
                "columns alike, or name none."
            )


def set_columns(estimator: BaseEstimator, columns: list[str] | int) -> None:
    """Set the features to columns of which only the names, or the number, is known."""
    vars(estimator).pop("feature_names_in_", None)
    if isinstance(columns, int):
        estimator.n_features_in_ = columns
    else:
        estimator.n_features_in_ = len(columns)
        estimator.feature_names_in_ = np.array(columns, dtype=object)


def are_reordered(table: Table, other: Table) -> bool:
    """Whether two tables have the same columns in a different order."""
    if not (is_frame(table) and is_frame(other)):
        return False
    first, second = list(table.columns), list(other.columns)
    return first != second and set(first) == set(second)


def check_columns_of_fit(estimator: BaseEstimator, X: ClientsLike) -> None:
    """Raise if column names differ from those of the last fit, which is to be continued.

    Called before values are checked, because misspelt columns of joined tables contain NaN.
    """
    want, table = getattr(estimator, "feature_names_in_", None), first_table(X)
    if want is None:
        return
    check_is_table(table, " of client 0" if is_client_list(X) else "")
    got = column_names(table, 0)
    if got is not None and list(want) != got:
        raise ValueError(
            f"Expected the columns of the last fit, {shorten(want, got)}, in that order, got "
            f"{shorten(got, want)}. Rename or reorder them, or start over: fit with "
            "warm_start=False, or call partial_fit on a clone."
        )


def shorten(names: Names, other: Names = None) -> str:
    """Up to eight names, with the first one that differs from those of another table."""
    if names is None:
        return "no string column names"
    pairs = zip(names, () if other is None else other, strict=False)
    n_equal = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    start = n_equal - 1 if n_equal >= 8 else 0
    some = ", ".join(map(repr, names[start : start + 8]))
    return f"[{'..., ' * (start > 0)}{some}{', ...' * (len(names) > start + 8)}]"
