"""One table of any kind as an array of numbers, and lists of tables."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from mmap import mmap
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse

from .._error_messages import plural, repr_of
from .._typing import FloatArray, Table

GIVE_TABLES = (
    "Give a list with one 2-D array or DataFrame for each client, one 2-D array with `clients=` "
    "(a client label for each row), or one 2-D array alone for a single client."
)
ENCODE = (
    "Encode or drop columns that are not measurements, such as names of clients or identifiers."
)
# Squares of larger numbers, and quotients by them in EM, would overflow or underflow.
LARGEST = 1e150
# Kinds of NumPy's dtypes for text, times, raw memory and complex numbers.
_NO_NUMBERS = "USTmMVc"


def is_client_list(X: object) -> TypeGuard[Sequence[Any]]:
    """Whether X is a list of clients' tables rather than one table.

    A list of 2-D objects is; a list of rows (1-D objects or numbers) is a single table.
    """
    if not isinstance(X, list | tuple):
        return False
    return not X or any(n_dimensions(table) > 1 for table in X)


def n_dimensions(table: Table) -> int:
    depth = 0
    while isinstance(table, list | tuple):
        depth, table = depth + 1, table[0] if table else None
    return depth + len(getattr(table, "shape", ()))


def first_table(X: object) -> Table:
    """Table of the first client, or the only table."""
    return X[0] if is_client_list(X) and len(X) else X


def is_frame(table: Table) -> bool:
    return hasattr(type(table), "columns")  # on the type: a lazy table would compute its columns


def is_mapped(X: Table) -> bool:
    """Whether X is a memory-mapped array, which may be larger than memory."""
    while isinstance(X, np.ndarray):
        if isinstance(X, np.memmap):
            return True
        X = X.base
    return isinstance(getattr(X, "obj", X), mmap)  # numpy.frombuffer has a view of it


def check_not_empty(
    X: Sized, advice: str = "Give one table, or a list with one table for each client."
) -> None:
    """Raise for an empty list or 3-D array."""
    if not len(X):
        raise ValueError(f"Expected at least one client, got an empty {type(X).__name__}. {advice}")


def check_is_table(X: Table, where: str = "") -> None:
    """Raise unless X is an array, list, sparse matrix, or a DataFrame of pandas or polars."""
    if is_frame(X):
        is_table = hasattr(X, "to_numpy")  # not those of databases, or that are not computed yet
    else:
        is_table = isinstance(X, list | tuple) or hasattr(X, "__array__") or issparse(X)
    if not is_table:
        raise TypeError(
            f"Expected a table (an array, or a DataFrame of pandas or polars){where}, or a list of "
            f"tables, got {repr_of(X)} of type {type(X).__name__}. Convert it to one of these."
        )


def unmasked(table: Table) -> Table:
    """Table with NaN in place of masked entries, which NumPy would otherwise read.

    This includes masked rows in a list.
    """
    if isinstance(table, list | tuple) and any(map(_is_masked, table)):
        table = np.ma.array(table)
    if _is_masked(table) and table.dtype.kind in "biufO":
        if table.dtype.kind != "O":
            table = table.astype(np.float64)
        return np.ma.filled(table, np.nan).astype(np.float64, copy=False)
    return table


def _is_masked(values: object) -> TypeGuard[np.ma.MaskedArray[Any, Any]]:
    # np.ma.is_masked alone would take a DataFrame's column called "_mask" for a mask.
    return isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values)


def check_not_masked(name: str, values: object) -> None:
    """Raise if labels or weights have masked entries, which NumPy would read."""
    if _is_masked(values):
        raise ValueError(
            f"Expected {name} without masked entries, got {np.ma.count_masked(values)} of them. "
            "Leave these rows out, or fill the entries in."
        )


def as_numbers(table: Table, where: str = "", advice: str = ENCODE) -> NDArray[Any]:
    """Array with any number of dimensions; None, pandas.NA and masked entries become NaN.

    Integers and booleans stay what they are.
    """
    check_is_table(table, where)
    dtypes = list(table.dtypes) if is_frame(table) else []
    _check_column_types(table, dtypes, where, advice)
    try:
        if hasattr(table, "isna") and not all(isinstance(dtype, np.dtype) for dtype in dtypes):
            array = floats_of_objects(table)  # nullable columns, which would become objects first
        else:
            table = unmasked(table)
            # For a small DataFrame of pandas, numpy.asarray takes ten times as long.
            array = table.to_numpy() if hasattr(table, "to_numpy") else np.asarray(table)
            if array.dtype == object:
                array = floats_of_objects(table if is_frame(table) else array)
    except (TypeError, ValueError, OverflowError) as error:
        # scikit-learn's checks of estimators expect NumPy's type of error for arrays.
        is_type = isinstance(error, TypeError) and not is_frame(table)
        reason = f"{str(error).rstrip('.')}{_column_of_error(table)}"
        raise (TypeError if is_type else ValueError)(
            f"Expected numbers{where}: {reason}. {advice}"
        ) from error
    if array.dtype.kind in _NO_NUMBERS:
        why = "Complex data not supported. " if array.dtype.kind == "c" else ""
        raise ValueError(f"{why}Expected numbers{where}, got dtype {array.dtype}. {advice}")
    return array


def floats_of_objects(table: Any) -> FloatArray:
    """Array of float64 from objects or nullable columns; missing ones of any kind become NaN."""
    try:
        if hasattr(table, "isna"):  # pandas converts a frame of its NA faster as a whole
            return table.to_numpy(np.float64, na_value=np.nan)
        return np.asarray(table, dtype=np.float64)
    except TypeError:
        array = np.asarray(table, dtype=object)
        missing = np.asarray(np.frompyfunc(is_missing, 1, 1)(array), dtype=bool)
        if not missing.any():
            raise
        return np.where(missing, np.nan, array).astype(np.float64)


def _check_column_types(table: Table, dtypes: list[Any], where: str, advice: str) -> None:
    """Raise for a DataFrame with complex numbers, or times, which NumPy would make numbers."""
    for k, dtype in enumerate(dtypes):
        is_polars_time = hasattr(dtype, "is_temporal") and dtype.is_temporal()
        if is_polars_time or getattr(dtype, "kind", "O") in "mMc":
            column = f"column {table.columns[k]!r}"
            raise ValueError(f"Expected numbers{where}, got dtype {dtype} in {column}. {advice}")


def _column_of_error(table: Table) -> str:
    """First column of a DataFrame that cannot be converted to numbers, for a message."""
    for k, name in enumerate(table.columns if is_frame(table) else ()):
        try:
            column = table.iloc[:, k] if hasattr(table, "iloc") else table[name]
            if getattr(column.dtype, "kind", "O") not in "biuf":  # perhaps with pandas.NA
                np.asarray(column, dtype=object).astype(np.float64)
        except (TypeError, ValueError, OverflowError):
            return f" in column {name!r}"
    return ""


def check_dimensions(
    array: NDArray[Any], allowed: tuple[int, ...], expected: str, advice: str
) -> None:
    """Raise if the array of a client's table has a wrong number of dimensions."""
    if array.ndim not in allowed:
        got = f"{plural(array.ndim, 'dimension')} and shape {array.shape}"
        raise ValueError(f"{expected}, got {got}. {advice}")


def check_not_vectors(X: Table, clients: ArrayLike | None) -> None:
    """Raise for a list of vectors without labels, which may be rows or clients."""
    first = X[0] if isinstance(X, list | tuple) and X else None
    if clients is None and len(getattr(first, "shape", ())) == 1:
        raise TypeError(
            f"Expected a table or a list of tables, got a list of 1-D {type(first).__name__}. Give "
            "numpy.array(X) if each is a row, or 2-D tables of one column if each is a client."
        )


def is_missing(label: Any) -> bool:
    try:
        return label is None or bool(label != label)
    except TypeError:  # pandas.NA != pandas.NA is NA as well
        return True
