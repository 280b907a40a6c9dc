"""Checks of the form of a table, and of its column names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Sized
from itertools import takewhile
from mmap import mmap
from os import PathLike
from typing import Any, NoReturn, TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse

from .._messages import plural, repr_of
from .._typing import IntArray, Table

GIVE_TABLES = (
    "Give a list with one 2-D array or DataFrame for each client, one 2-D array with `clients=` "
    "(a client label for each row), or one 2-D array alone for a single client."
)
# Method names of pyarrow and Hugging Face, Spark, DuckDB, and pyarrow's datasets.
_CONVERT = ("to_pandas", "toPandas", "df", "to_table")
_OF_GROUPS = "[table for _, table in X] if it comes from groupby"
Names = Sequence[Any] | NDArray[Any] | None
"""Names of columns, None unless they are strings."""

# Squares of larger numbers, and quotients by them in EM, would overflow or underflow.
LARGEST = 1e150


def is_client_list(X: object) -> TypeGuard[Sequence[Any]]:
    """Whether X is a list of clients' tables rather than one table.

    A list of 2-D objects is; a list of rows (1-D objects or numbers) is a single table.
    """
    if not isinstance(X, list | tuple):
        return False
    return not X or any(n_dimensions(table) > 1 for table in X)


def refuse_no_clients(
    X: Sized, advice: str = "Give one table, or a list with one table for each client."
) -> None:
    """Raise for an empty list or 3-D array."""
    if not len(X):
        raise ValueError(f"Expected at least one client, got an empty {type(X).__name__}. {advice}")


def n_dimensions(table: Table) -> int:
    depth = 0
    while isinstance(table, list | tuple):
        depth, table = depth + 1, table[0] if table else None
    return depth + len(getattr(table, "shape", ()))


def is_mapped(X: Table) -> bool:
    """Whether X is a memory-mapped array, which may be larger than memory."""
    while isinstance(X, np.ndarray):
        if isinstance(X, np.memmap):
            return True
        X = X.base
    return isinstance(getattr(X, "obj", X), mmap)  # numpy.frombuffer has a view of it


def unmasked(table: Table) -> Table:
    """Table with NaN in place of masked entries, which NumPy would otherwise read.

    This includes masked rows in a list.
    """
    if isinstance(table, list | tuple) and any(map(is_masked, table)):
        table = np.ma.array(table)
    if is_masked(table) and table.dtype.kind in "biufO":
        if table.dtype.kind != "O":
            table = table.astype(np.float64)
        return np.ma.filled(table, np.nan).astype(np.float64, copy=False)
    return table


def is_masked(values: object) -> TypeGuard[np.ma.MaskedArray[Any, Any]]:
    # np.ma.is_masked alone would take a DataFrame's column called "_mask" for a mask.
    return isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values)


def refuse_masked(name: str, values: object) -> None:
    """Raise if labels or weights have masked entries, which NumPy would read."""
    if is_masked(values):
        raise ValueError(
            f"Expected {name} without masked entries, got {np.ma.count_masked(values)} of them. "
            "Leave these rows out, or fill the entries in."
        )


def refuse_other_frames(table: Table, where: str = "") -> None:
    """Raise for structured arrays, lazy tables, and tables of pyarrow, databases and so on."""
    kind = type(table)
    fields = getattr(getattr(table, "dtype", None), "names", None)
    if isinstance(fields, tuple):
        raise TypeError(
            f"Expected an array of numbers or a DataFrame{where}, got records with the fields "
            f"{shorten(fields)}. Give structured_to_unstructured(X) of numpy.lib.recfunctions, or "
            "pandas.DataFrame(X)."
        )
    library = kind.__module__.partition(".")[0]
    if hasattr(kind, "__array__") and library != "pyarrow":  # whose `columns` are not names
        return
    convert = next((name for name in _CONVERT if hasattr(kind, name)), None)
    if convert is not None:
        raise TypeError(
            f"Expected an array or a DataFrame of pandas or polars{where}, got a {library} "
            f"{kind.__name__}. Give the result of its {convert} method."
        )
    if hasattr(kind, "collect_schema"):
        raise TypeError(
            f"Expected a table{where}, got a {kind.__name__}, which has not been computed yet. "
            "Give the result of its collect method."
        )


def refuse_sparse(table: Table, whose: str, dense: str = ".toarray()") -> NoReturn:
    raise TypeError(
        f"Expected a dense table{whose}, got a sparse {type(table).__name__}. Use `{dense}` if it "
        "fits in memory."
    )


def refuse_what_is_no_table(X: Table) -> None:
    """Raise unless X is a table with columns, a list of rows, or a list of tables."""
    kind = type(X).__name__
    if issparse(X):
        return  # scikit-learn reports it
    refuse_other_frames(X)
    _refuse_other_objects(X, kind)
    if isinstance(X, list | tuple):
        _refuse_odd_list(X, kind)
    elif holds_tables(X):
        raise ValueError(
            f"Expected numbers, got an object {kind} of shape {X.shape} whose entries are tables "
            "or lists. Give list(X) if they are the clients' tables."
        )
    if hasattr(X, "columns") and not len(X.columns):
        raise ValueError(
            f"Expected a table with at least one feature, got a {kind} without columns."
        )
    _refuse_repeated(list(getattr(X, "columns", ())))


def _refuse_other_objects(X: Any, kind: str) -> None:
    """Raise for files, numbers, dicts, and iterables that are neither lists nor tables."""
    is_file = isinstance(X, str | bytes | PathLike)
    if is_file or not (isinstance(X, Iterable | Sized) or hasattr(X, "__array__")):
        first = "If this names a file, read it first. " if is_file else ""
        raise TypeError(
            f"Expected a table or a list of tables, got {repr_of(X)} of type {kind}. {first}Give "
            "one table, or a list with one for each client."
        )
    if isinstance(X, Mapping):
        remedy = "list(X.values()) if it holds the clients' tables"
        if "clients" in X:  # as returned by skfedem.datasets
            remedy = "X['clients'], with shape=X['shape']" if "shape" in X else "X['clients']"
        raise TypeError(f"Expected a table or a list of tables, got a {kind}. Give {remedy}.")
    is_table = hasattr(X, "__array__") or hasattr(X, "shape") or isinstance(X, list | tuple)
    if isinstance(X, Sequence) and not is_table:  # of rows
        is_table = not any(n_dimensions(entry) > 1 for entry in X)
    if isinstance(X, Iterable) and not is_table:
        raise TypeError(
            f"Expected a table or a list of tables, got a {kind}. Give a list, as list(X), or "
            f"{_OF_GROUPS}."
        )


def _refuse_odd_list(X: Sequence[Any], kind: str) -> None:
    """Raise for a list of lazy tables, of lists of tables, or of rows of different lengths."""
    refuse_other_frames(X[0], " of client 0")
    if holds_tables(X[0]):
        raise TypeError(
            f"Expected a table or a list of tables, got a {kind} whose entries contain tables. "
            f"Give {_OF_GROUPS}."
        )
    refuse_uneven_rows(X)


def refuse_vectors(X: Table, clients: ArrayLike | None) -> None:
    """Raise for a list of Series or 1-D arrays, which may be rows or clients."""
    first = X[0] if isinstance(X, list | tuple) else None
    refuse_other_frames(first, " of client 0")
    if clients is not None or len(getattr(first, "shape", ())) != 1 or issparse(first):
        return  # labels make them rows
    if hasattr(first, "to_frame"):
        kind, as_table = type(first).__name__, "[series.to_frame() for series in X]"
        # polars reads a list of Series as columns
        of_rows = "DataFrame(X)" if hasattr(first, "index") else "numpy.array(X)"
    else:
        kind, as_table = "1-D arrays", "[values.reshape(-1, 1) for values in X]"
        of_rows = "numpy.array(X)"
    raise TypeError(
        f"Expected a table or a list of tables, got a {type(X).__name__} of {kind}. Give "
        f"{as_table} if each is a client's only feature, {of_rows} if each is a row."
    )


def refuse_uneven_rows(rows: Sequence[Any], of_whom: str = "") -> None:
    """Raise if a list of rows has rows of different lengths."""
    lengths = [_length(row) for row in rows]
    for k, length in enumerate(lengths):
        if length != lengths[0]:
            raise ValueError(
                f"Expected rows of one length, got {_counted(lengths[0])} in row 0 and "
                f"{_counted(length)} in row {k}{of_whom}. Give every row the same columns"
                + ("." if of_whom else ", or every client a 2-D table (rows by features).")
            )


def _length(row: Any) -> int | None:
    """Number of entries of a row, None for a number."""
    if issparse(row):
        refuse_sparse(row, " in the list")
    return len(row) if n_dimensions(row) > 0 else None


def _counted(length: int | None) -> str:
    return "a bare number" if length is None else plural(length, "number")


def holds_tables(table: Table) -> bool:
    """Whether a list holds tables, or an array or a pandas Series holds tables or lists."""
    if isinstance(table, list | tuple):
        return any(n_dimensions(entry) > 1 for entry in table)
    if getattr(getattr(table, "dtype", None), "kind", None) != "O":
        return False
    return any(n_dimensions(entry) > 0 for entry in np.asarray(table, dtype=object).ravel())


def is_missing(label: Any) -> bool:
    try:
        return label is None or bool(label != label)
    except TypeError:  # pandas.NA != pandas.NA is NA as well
        return True


def missing_labels(labels: NDArray[Any]) -> IntArray:
    """Positions of missing labels in an array."""
    if are_plain(labels):
        return np.empty(0, dtype=np.intp)
    if labels.dtype.kind in {"O", "T"}:  # a missing string equals itself in StringDType
        # fromiter instead of a list, which would take eight bytes per row.
        return np.flatnonzero(np.fromiter(map(is_missing, labels.flat), bool, len(labels)))
    return np.flatnonzero(labels != labels)


def are_plain(labels: NDArray[Any]) -> bool:
    """Whether an array has Python's strings only, or its integers only: none is missing."""
    return labels.dtype.kind in {"O", "T"} and set(map(type, labels.flat)) in ({str}, {int})


def column_names(table: Table, k: int) -> list[str] | None:
    """Column names of a table, None unless they are strings, as in scikit-learn."""
    columns = getattr(table, "columns", None)
    names = [] if columns is None else list(columns)
    are_strings = [isinstance(name, str) for name in names]
    if any(are_strings) and not all(are_strings):
        raise TypeError(
            f"Expected the column names of client {k} to be strings, all of them or none, got "
            f"{shorten(names)}. Convert them with X.columns.astype(str)."
        )
    _refuse_repeated(names, f" for client {k}")
    return names if any(are_strings) else None


def are_reordered(table: Table, other: Table) -> bool:
    """Whether two tables have the same columns in a different order."""
    first, second = (list(getattr(each, "columns", ())) for each in (table, other))
    try:
        return first != second and set(first) == set(second)
    except (TypeError, ValueError):
        return False  # columns of arrays instead of names


def _refuse_repeated(names: list[Any], whose: str = "") -> None:
    """Raise if two columns have the same name."""
    try:
        are_different = len(set(names)) == len(names)
    except TypeError:
        return  # these are the columns themselves, of pyarrow
    if not are_different:
        ((name, times),) = Counter(names).most_common(1)
        name = repr(name) if isinstance(name, str) else name
        raise ValueError(
            f"Expected columns with different names{whose}, got {name} {times} times. Rename them."
        )


def shorten(names: Names, other: Names = None) -> str:
    """Up to eight names, with the first one that differs from those of another table."""
    if names is None:
        return "no string column names"
    pairs = zip(names, () if other is None else other, strict=False)
    alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    start = alike - 1 if alike >= 8 else 0
    some = ", ".join(map(repr, names[start : start + 8]))
    return f"[{'..., ' * (start > 0)}{some}{', ...' * (len(names) > start + 8)}]"
