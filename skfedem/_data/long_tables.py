"""Columns of long tables: DataFrames of pandas or polars, and dicts of columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._error_messages import repr_of
from .._typing import FloatArray, Table
from .features import shorten
from .tables import is_frame, is_missing

Columns = dict[str, NDArray[Any]]
"""Columns by name, of one length."""


def is_long_table(X: object) -> bool:
    """Whether X is a DataFrame or a dict, rather than a list of these."""
    return isinstance(X, Mapping) or is_frame(X)


def columns_of(table: Table, where: str = "") -> Columns:
    """Columns of a DataFrame or dict as arrays; raise if it is neither, or lengths differ."""
    if not is_long_table(table):
        raise TypeError(
            f"Expected a DataFrame or a dict of columns as the table{where}, got "
            f"{type(table).__name__}. Give columns with names, a row for each observation."
        )
    names = list(table) if isinstance(table, Mapping) else list(table.columns)
    columns = {name: _array(table[name]) for name in names}
    lengths = {name: column.shape for name, column in columns.items()}
    if len(set(lengths.values())) > 1 or any(len(shape) != 1 for shape in lengths.values()):
        raise ValueError(
            f"Expected columns of one length in the table{where}, got the shapes "
            f"{repr_of(lengths)}. Give one value for each observation."
        )
    return columns


def _array(column: Any) -> NDArray[Any]:
    # As objects, because NumPy would convert [3, "a"] to strings.
    if not hasattr(column, "dtype"):
        values = np.asarray(column, dtype=object)
        plain = np.array(values.tolist())
        return plain if plain.dtype.kind in "iuf" and plain.shape == values.shape else values
    return column.to_numpy() if hasattr(column, "to_numpy") else np.asarray(column)


def column(columns: Columns, name: str, role: str, where: str) -> NDArray[Any]:
    """A column by its name, or raise ValueError that says what it is needed for."""
    if name not in columns:
        raise ValueError(
            f"Expected a column {name!r} ({role}) in the table{where}, got the columns "
            f"{shorten(list(columns))}. Add or rename it."
        )
    return columns[name]


def numbers(columns: Columns, name: str, where: str, role: str = "numbers") -> FloatArray:
    """A column as float64, with NaN for missing values; raise if it has other than numbers."""
    values = column(columns, name, role, where)
    if values.dtype.kind in "biuf":
        return values.astype(np.float64)
    missing = np.fromiter(map(is_missing, values), bool, len(values))
    known = values[~missing]
    wrong = [value for value in known if isinstance(value, str | bytes | complex)]
    result = np.full(len(values), np.nan)
    try:
        if not wrong and values.dtype.kind == "O":
            result[~missing] = known.astype(np.float64)
            return result
    except (TypeError, ValueError):
        wrong = list(known)
    got = repr_of(wrong[0]) if wrong else f"values of type {values.dtype}"
    raise TypeError(
        f"Expected numbers in column {name!r} of the table{where}, got {got}. Convert the column."
    )


def like_table(table: Table, columns: Columns) -> Any:
    """Columns as a table of the same kind as another one."""
    return columns if isinstance(table, Mapping) else type(table)(columns)


def as_table(columns: Columns) -> Any:
    """Columns as a DataFrame of pandas, or as they are where pandas is not installed."""
    try:
        import pandas
    except ImportError:
        return columns
    return pandas.DataFrame(columns)
