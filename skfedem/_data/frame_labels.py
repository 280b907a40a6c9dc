"""Labels of the rows and the columns of DataFrames."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._typing import MatricesLike, RowsName, Table
from .tables import is_client_list, is_frame, is_missing

_ISO_DATE = re.compile(r"\d{4}(-\d{2}(-\d{2})?)?")

Labels = Any
"""Labels of rows or columns, such as an Index of pandas; None if there are none, or 0, 1, 2, ..."""


def table_labels(table: Table) -> tuple[Labels, Labels]:
    """Row and column labels of a DataFrame; None if they are 0, 1, 2, ..."""
    if not is_frame(table):
        return None, None
    rows, columns = getattr(table, "index", None), table.columns
    return None if _only_count(rows) else rows, None if _only_count(columns) else columns


def series_labels(values: Any) -> Labels:
    """Labels of a Series; None if they are 0, 1, 2, ..., or for other values."""
    return table_labels(values.to_frame())[0] if hasattr(values, "to_frame") else None


def _only_count(labels: Labels) -> bool:
    kind = getattr(getattr(labels, "dtype", None), "kind", "O")
    return kind in "iu" and np.array_equal(labels, np.arange(len(labels)))


def fit_labels(X: MatricesLike, rows: RowsName) -> tuple[Labels, Labels]:
    """Row and column labels, or None, of the matrix of the fit, from validated data."""
    tables = X if is_client_list(X) else [X]
    of_rows, of_columns = zip(*map(table_labels, tables), strict=True)
    if rows == "shared":
        return of_rows[0], of_columns[0]
    if any(labels is None for labels in of_rows):
        return None, of_columns[0]
    return of_rows[0].append(list(of_rows[1:])), of_columns[0]


def sizes_of_shape(shape: Any) -> Any:
    """A shape with numbers in place of names of rows and columns."""
    if not (isinstance(shape, list | tuple) and len(shape) == 2):
        return shape
    for names in filter(_are_names, shape):
        recurring = Counter(list(names)).most_common(1)
        if recurring and recurring[0][1] > 1:
            raise ValueError(
                f"Expected different names in `shape`, got {label_text(recurring[0][0])} "
                f"{recurring[0][1]} times. Give each row and each column a name of its own."
            )
    return tuple(len(size) if _are_names(size) else size for size in shape)


def labels_of_shape(shape: Any) -> tuple[Labels, Labels]:
    """Names of rows and columns in a valid shape; None where it has a number, or 0, 1, 2, ..."""
    rows, columns = (_index(size) if _are_names(size) else None for size in shape)
    return None if _only_count(rows) else rows, None if _only_count(columns) else columns


def named_table(columns: Labels) -> Table:
    """Empty DataFrame whose columns have these labels; None without an Index of pandas."""
    return columns.to_frame().T if hasattr(columns, "to_frame") else None


def _are_names(size: Any) -> bool:
    return not isinstance(size, str) and hasattr(size, "__len__") and np.ndim(size) == 1


def _index(labels: Any) -> Labels:
    """Labels as pandas's Index, or as an array where pandas is not installed."""
    try:
        import pandas
    except ImportError:
        return np.asarray(labels)
    return pandas.Index(labels)


def check_same_labels(X: Sequence[Table], rows: RowsName) -> None:
    """Raise unless all DataFrames have the labels of client 0; rows only if they are shared."""
    if not any(map(is_frame, X)):
        return
    first = table_labels(X[0])
    for k, table in enumerate(X):
        for axis, want, got in zip(("row", "column"), first, table_labels(table), strict=True):
            if (axis == "row" and rows == "disjoint") or (want is None and got is None):
                continue
            remedy = "Give DataFrames with the same labels, in one order, or none"
            if axis == "row":
                remedy += ", or rows='disjoint' if clients have rows of their own"
            if want is None or got is None:
                raise ValueError(
                    f"Expected {_described(axis, want)} for every client as for client 0, got "
                    f"{_described(axis, got)} for client {k}. {remedy}."
                )
            check_labels(axis, want, got, remedy, "client 0 for every client", f" for client {k}")


def _described(axis: str, labels: Labels) -> str:
    return f"no {axis} labels" if labels is None else f"{axis} labels from {label_text(labels[0])}"


def check_labels(
    axis: str,
    want: Labels,
    got: Labels,
    what_to_do: str,
    source: str = "the fit",
    whose: str = "",
) -> None:
    """Raise if row or column labels differ from those of the fit, or of another client.

    Tables without labels are accepted.
    """
    if want is None or got is None or (hasattr(want, "equals") and want.equals(got)):
        return
    for k, (one, other) in enumerate(zip(want, got, strict=True)):
        if _differ(one, other):
            raise ValueError(
                f"Expected the {axis} labels of {source}, in that order: {label_text(one)} for "
                f"{axis} {k}, got {label_text(other)}{whose}. {what_to_do}."
            )


def _differ(one: object, other: object) -> bool:
    if is_missing(one) or is_missing(other):
        return is_missing(one) != is_missing(other)
    return bool(one != other)


def label_text(label: object) -> str:
    return repr(label) if isinstance(label, str) else str(label)


def as_dates(labels: NDArray[Any]) -> NDArray[Any]:
    """Text like 2024, 2024-05 or 2024-05-31 as dates; other labels as they are."""
    if not all(isinstance(label, str) and _ISO_DATE.fullmatch(label) for label in labels):
        return labels
    try:
        return labels.astype("datetime64[D]")
    except ValueError:  # such as 1995-13
        return labels
