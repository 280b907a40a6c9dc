"""Conversion of tables to numbers; an error names the first entry that is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from .._messages import plural
from .._typing import Table
from .tables import (
    GIVE_TABLES,
    holds_tables,
    is_masked,
    refuse_other_frames,
    refuse_sparse,
    refuse_uneven_rows,
    refuse_what_is_no_table,
    unmasked,
)

Conversion = Callable[[Table], NDArray[Any]]

# Kinds of NumPy's dtypes for text, times, raw memory and complex numbers.
_NO_NUMBERS = "USTmMVc"
_ENCODE = (
    "Encode or drop columns that are not measurements, such as names of clients or identifiers."
)


def client_rows(table: Table, k: int) -> NDArray[Any]:
    """One client's rows as a 2-D array of real numbers, mostly of float32 or float64."""
    if issparse(table):
        refuse_sparse(table, f" for client {k}")
    if isinstance(table, np.matrix):
        raise TypeError(
            f"Expected an array or a DataFrame for client {k}, got a numpy.matrix. Convert it with "
            "numpy.asarray."
        )
    refuse_odd_entries(table, f" of client {k}", "")
    refuse_sparse_columns(table, f" for client {k}")
    try:
        table = unmasked(table)
        array = as_array(table)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"Expected a 2-D table for client {k}: {str(error).rstrip('.')}. {GIVE_TABLES}"
        ) from error
    expected = f"Expected a 2-D table (rows by features) for client {k}"
    check_dimensions(table, array, (2,), expected, GIVE_TABLES)
    if array.dtype not in (np.float32, np.float64):
        array = _as_numbers(table, array, f" in the table of client {k}")
    if not len(array):
        raise ValueError(
            f"Expected at least one row for every client, got none for client {k} (shape "
            f"{array.shape}). Leave clients without rows out of the list."
        )
    return array


def as_array(table: Table) -> NDArray[Any]:
    """NumPy array of a table."""
    # For a small DataFrame of pandas, numpy.asarray takes ten times as long.
    return table.to_numpy() if hasattr(table, "to_numpy") else np.asarray(table)


@contextmanager
def table_of_numbers(X: Table) -> Iterator[Table]:
    """Context with an unmasked table, in which errors about non-numbers come with advice."""
    refuse_what_is_no_table(X)
    refuse_odd_columns(X)
    refuse_sparse_columns(X)
    try:
        table = unmasked(X)
        if isinstance(table, list | tuple):
            table = np.asarray(table)
        if isinstance(table, np.ndarray):  # NumPy converts some of these
            refuse_dtype(X, table)
            refuse_times(table)
        yield table
    except (TypeError, ValueError, OverflowError) as error:
        if _first_refusal(X, np.asarray):
            raise no_numbers(X, error) from error
        raise


def refuse_odd_entries(table: Table, whose: str, or_else: str, advice: str = _ENCODE) -> None:
    """Raise if a client's table is lazy, or if its entries are not numbers.

    ``or_else`` is further advice in the message if entries are tables, and ``advice`` that if they
    are times or complex.
    """
    refuse_other_frames(table, whose)
    refuse_odd_columns(table, f" in the table{whose}", advice)
    if holds_tables(table):
        raise ValueError(
            f"Expected numbers in the table{whose}, got entries that are tables or lists "
            f"themselves. Give each of them as a client of its own{or_else}."
        )
    if isinstance(table, list | tuple):
        refuse_uneven_rows(table, f" of the table{whose}")


def refuse_odd_columns(table: Table, where: str = "", advice: str = _ENCODE) -> None:
    """Raise for a DataFrame with complex numbers, or times, which NumPy would make numbers."""
    for k, dtype in enumerate(_column_dtypes(table)):
        is_polars_time = hasattr(dtype, "is_temporal") and dtype.is_temporal()
        if is_polars_time or getattr(dtype, "kind", "O") in "mMc":
            column = f"column {table.columns[k]!r}"
            raise ValueError(f"Expected numbers{where}, got dtype {dtype} in {column}. {advice}")


def refuse_sparse_columns(table: Table, whose: str = "") -> None:
    """Raise for a DataFrame with sparse columns, whose fill value may not be 0."""
    dtypes = _column_dtypes(table)
    if dtypes and all(hasattr(dtype, "fill_value") for dtype in dtypes):
        refuse_sparse(table, whose, ".sparse.to_dense()")


def _column_dtypes(table: Table) -> list[Any]:
    """Types of a DataFrame's columns; none for other tables."""
    return list(getattr(table, "dtypes", ())) if hasattr(table, "columns") else []


def check_dimensions(
    table: Table, array: NDArray[Any], allowed: tuple[int, ...], expected: str, advice: str
) -> None:
    """Raise if the array of a client's table has a wrong number of dimensions."""
    if array.ndim not in allowed:
        got = f"{plural(array.ndim, 'dimension')} and shape {array.shape}"
        if not array.ndim:
            got = f"a {type(table).__name__}, which is not a table"
        raise ValueError(f"{expected}, got {got}. {advice}")


def refuse_dtype(table: Table, array: NDArray[Any], where: str = "", advice: str = _ENCODE) -> None:
    """Raise for a table whose array is of text, times, raw memory or complex numbers."""
    if array.dtype.kind not in _NO_NUMBERS:
        return
    if isinstance(table, list | tuple) and (reason := _refused_entry(table, np.asarray)):
        raise ValueError(f"Expected numbers{where}: {reason}. {advice}")
    why = "Complex data not supported. " if array.dtype.kind == "c" else ""
    raise ValueError(f"{why}Expected numbers{where}, got dtype {array.dtype}. {advice}")


def refuse_times(array: NDArray[Any]) -> None:
    """Raise for times among objects, which NumPy would make numbers, as Python does not."""
    types = set(map(type, array.flat)) if array.dtype == object else set()
    for time in types & {np.datetime64, np.timedelta64}:
        raise TypeError(
            f"float() argument must be a string or a real number, not {time.__name__!r}"
        )


def _as_numbers(table: Table, array: NDArray[Any], where: str) -> NDArray[Any]:
    """Array of a table as numbers; integers are only converted when stacked or read."""
    refuse_dtype(table, array, where)
    try:
        refuse_times(array)
        if hasattr(table, "isna"):  # converts pandas.NA to NaN
            return table.to_numpy(np.float64, na_value=np.nan)
        return array if array.dtype.kind in "biuf" else array.astype(np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise no_numbers(table, error, where) from error


def no_numbers(
    table: Table,
    error: Exception,
    where: str = "",
    advice: str = _ENCODE,
    convert: Conversion = np.asarray,
) -> TypeError | ValueError:
    """Error for a table that cannot be converted, which names the first such entry."""
    reason = _first_refusal(table, convert) or str(error).rstrip(".")
    # scikit-learn's checks of estimators expect NumPy's type of error for arrays.
    is_array = not hasattr(table, "columns")
    kind = TypeError if is_array and isinstance(error, TypeError) else ValueError
    return kind(f"Expected numbers{where}: {reason}. {advice}")


def _first_refusal(table: Table, convert: Conversion) -> str | None:
    """Reason and place of the first entry of a table that cannot be converted, None without one."""
    if hasattr(table, "columns"):
        return _refused_column(table, convert)
    is_object = getattr(getattr(table, "dtype", None), "kind", "O") == "O"
    return _refused_entry(table, convert) if is_object else None


def _refused_column(table: Table, convert: Conversion) -> str | None:
    for k, name in enumerate(table.columns):
        column = table.iloc[:, k] if hasattr(table, "iloc") else table[name]
        is_numeric = getattr(column.dtype, "kind", "O") in "biuf"  # perhaps with pandas.NA
        if not is_numeric and (reason := _refusal(column, convert)):
            return f"{reason} in column {name!r}"
    return None


def _refused_entry(table: Table, convert: Conversion) -> str | None:
    entries = np.ma.filled(table.astype(object), np.nan) if is_masked(table) else table
    entries = np.asarray(entries, dtype=object)
    flat, first, end = entries.ravel(), 0, entries.size
    while end - first > 1:  # one by one, a million entries would take seconds
        middle = (first + end) // 2
        first, end = (first, middle) if _refusal(flat[first:middle], convert) else (middle, end)
    reason = _refusal(flat[first:end], convert)
    if not (entries.ndim and reason):
        return None
    axes = ("row", "column") if entries.ndim < 3 else ("observer", "row", "column")
    index = np.unravel_index(first, entries.shape)
    return f"{reason} in {', '.join(map('{} {}'.format, axes, index))}"


def _refusal(entries: Table, convert: Conversion) -> str | None:
    """Reason why entries cannot be converted, None if they can."""
    try:
        # As objects, because NumPy's errors would show text of an array with the name of its type.
        converted = np.asarray(convert(entries), object)
        refuse_times(converted)
        is_sequence = converted.astype(np.float64).ndim != 1
    except (TypeError, ValueError, OverflowError) as error:
        return str(error).rstrip(".")
    return "setting an array element with a sequence" if is_sequence else None
