"""Checks of one table: its form, values and column names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Sized
from contextlib import contextmanager
from mmap import mmap
from os import PathLike
from typing import Any, TypeGuard

import numpy as np
from scipy.sparse import issparse

from .._messages import plural, short

GIVE_TABLES = (
    "Give a list with one 2-D array or DataFrame for each client, one 2-D array with `clients=` "
    "(a client label for each row), or one 2-D array alone for a single client."
)
# Kinds of NumPy's dtypes for text, times, raw memory and complex numbers.
_NO_NUMBERS = "USTmMVc"
_ENCODE = (
    "Encode or drop columns that are not measurements, such as names of clients or identifiers."
)
# Method names of pyarrow and Hugging Face, Spark, DuckDB, and pyarrow's datasets.
_CONVERT = ("to_pandas", "toPandas", "df", "to_table")
_OF_GROUPS = "[table for _, table in X] if it comes from groupby"
# Squares of larger numbers, and quotients by them in EM, would overflow or underflow.
LARGEST = 1e150


def is_client_list(X: object) -> TypeGuard[Sequence[Any]]:
    """Whether X is a list of clients' tables rather than one table.

    A list of 2-D objects is; a list of rows (1-D objects or numbers) is a single table.
    """
    if not isinstance(X, list | tuple):
        return False
    return not X or any(n_dimensions(table) > 1 for table in X)


def refuse_no_clients(X, advice="Give one table, or a list with one table for each client."):
    """Raise for an empty list or 3-D array."""
    if not len(X):
        raise ValueError(f"Expected at least one client, got an empty {type(X).__name__}. {advice}")


def n_dimensions(table):
    depth = 0
    while isinstance(table, list | tuple):
        depth, table = depth + 1, table[0] if table else None
    return depth + len(getattr(table, "shape", ()))


def is_mapped(X):
    """Whether X is a memory-mapped array, which may be larger than memory."""
    while isinstance(X, np.ndarray):
        if isinstance(X, np.memmap):
            return True
        X = X.base
    return isinstance(getattr(X, "obj", X), mmap)  # numpy.frombuffer has a view of it


def unmasked(table):
    """Table with NaN in place of masked entries, which NumPy would otherwise read.

    This includes masked rows in a list.
    """
    if isinstance(table, list | tuple) and any(map(_is_masked, table)):
        table = np.ma.array(table)
    if _is_masked(table) and table.dtype.kind in "biufO":
        return np.ma.filled(table.astype(np.float64), np.nan)
    return table


def _is_masked(values):
    # np.ma.is_masked alone would take a DataFrame's column called "_mask" for a mask.
    return isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values)


def refuse_masked(name, values):
    """Raise if labels or weights have masked entries, which NumPy would read."""
    if _is_masked(values):
        raise ValueError(
            f"Expected {name} without masked entries, got {np.ma.count_masked(values)} of them. "
            "Leave these rows out, or fill the entries in."
        )


def refuse_other_frames(table, where=""):
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


def refuse_odd_columns(table, where="", advice=_ENCODE):
    """Raise for a DataFrame with complex numbers, or times, which NumPy would make numbers."""
    dtypes = getattr(table, "dtypes", None)
    if dtypes is None or not hasattr(table, "columns"):
        return
    for k, dtype in enumerate(dtypes):
        is_polars_time = hasattr(dtype, "is_temporal") and dtype.is_temporal()
        if is_polars_time or getattr(dtype, "kind", "O") in "mMc":
            column = f"column {table.columns[k]!r}"
            raise ValueError(f"Expected numbers{where}, got dtype {dtype} in {column}. {advice}")


def refuse_sparse_columns(table, whose=""):
    """Raise for a DataFrame with sparse columns, whose fill value may not be 0."""
    # Series and tables without columns also have the accessor.
    if hasattr(table, "sparse") and len(getattr(table, "columns", ())):
        refuse_sparse(table, whose, ".sparse.to_dense()")


def refuse_sparse(table, whose, dense=".toarray()"):
    raise TypeError(
        f"Expected a dense table{whose}, got a sparse {type(table).__name__}. Use `{dense}` if it "
        "fits in memory."
    )


def client_rows(table, k):
    """One client's rows as a 2-D array of real numbers, mostly of float32 or float64."""
    if issparse(table):
        refuse_sparse(table, f" for client {k}")
    refuse_sparse_columns(table, f" for client {k}")
    if isinstance(table, np.matrix):
        raise TypeError(
            f"Expected an array or a DataFrame for client {k}, got a numpy.matrix. Convert it with "
            "numpy.asarray."
        )
    refuse_odd_entries(table, f" of client {k}", "")
    try:
        table = unmasked(table)
        array = np.asarray(table)
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


def refuse_odd_entries(table, whose, or_else, advice=_ENCODE):
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


def check_dimensions(table, array, allowed, expected, advice):
    """Raise if the array of a client's table has a wrong number of dimensions."""
    if array.ndim not in allowed:
        got = f"{plural(array.ndim, 'dimension')} and shape {array.shape}"
        if not array.ndim:
            got = f"a {type(table).__name__}, which is not a table"
        raise ValueError(f"{expected}, got {got}. {advice}")


def _as_numbers(table, array, where):
    """Array of a table as numbers; integers are only converted when stacked or read."""
    refuse_dtype(array, where)
    try:
        if hasattr(table, "isna"):  # converts pandas.NA to NaN
            return table.to_numpy(np.float64, na_value=np.nan)
        return array if array.dtype.kind in "biuf" else array.astype(np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise no_numbers(table, error, where) from error


def refuse_dtype(array, where="", advice=_ENCODE):
    """Raise for an array of text, times, raw memory or complex numbers."""
    if array.dtype.kind in _NO_NUMBERS:
        why = "Complex data not supported. " if array.dtype.kind == "c" else ""
        raise ValueError(f"{why}Expected numbers{where}, got dtype {array.dtype}. {advice}")


def no_numbers(table, error, where="", advice=_ENCODE, convert=np.asarray):
    """Error for a table that cannot be converted, which names the first such entry."""
    reason = _first_refusal(table, convert) or str(error).rstrip(".")
    # scikit-learn's checks of estimators expect NumPy's type of error for arrays.
    is_array = not hasattr(table, "columns")
    kind = TypeError if is_array and isinstance(error, TypeError) else ValueError
    return kind(f"Expected numbers{where}: {reason}. {advice}")


def _first_refusal(table, convert):
    """Reason and place of the first entry of a table that cannot be converted, None without one."""
    if hasattr(table, "columns"):
        return _refused_column(table, convert)
    is_object = getattr(getattr(table, "dtype", None), "kind", "O") == "O"
    return _refused_entry(table, convert) if is_object else None


def _refused_column(table, convert):
    for k, name in enumerate(table.columns):
        column = table.iloc[:, k] if hasattr(table, "iloc") else table[name]
        is_numeric = getattr(column.dtype, "kind", "O") in "biuf"  # perhaps with pandas.NA
        if not is_numeric and (reason := _refusal(column, convert)):
            return f"{reason} in column {name!r}"
    return None


def _refused_entry(table, convert):
    entries = table.astype(object).filled(np.nan) if _is_masked(table) else table
    entries = np.asarray(entries, dtype=object)
    flat = entries.ravel()
    axes = ("row", "column") if entries.ndim < 3 else ("observer", "row", "column")
    for k in range(len(flat) if entries.ndim and _refusal(flat, convert) else 0):
        if reason := _refusal(flat[k : k + 1], convert):
            index = np.unravel_index(k, entries.shape)
            return f"{reason} in {', '.join(map('{} {}'.format, axes, index))}"
    return None


def _refusal(entries, convert):
    """Reason why entries cannot be converted, None if they can."""
    try:
        # As objects, because NumPy's errors would show text of an array with the name of its type.
        is_sequence = np.asarray(convert(entries), object).astype(np.float64).ndim != 1
    except (TypeError, ValueError, OverflowError) as error:
        return str(error).rstrip(".")
    return "setting an array element with a sequence" if is_sequence else None


@contextmanager
def table_of_numbers(X):
    """Context with an unmasked table, in which errors about non-numbers come with advice."""
    refuse_what_is_no_table(X)
    refuse_odd_columns(X)
    refuse_sparse_columns(X)
    if isinstance(X, np.ndarray):  # NumPy converts some of these
        refuse_dtype(X)
    try:
        yield unmasked(X)
    except (TypeError, ValueError, OverflowError) as error:
        if _first_refusal(X, np.asarray):
            raise no_numbers(X, error) from error
        raise


def refuse_what_is_no_table(X):
    """Raise for containers of tables or rows that are neither lists nor tables."""
    kind = type(X).__name__
    if issparse(X):
        return  # scikit-learn reports it
    refuse_other_frames(X)
    is_file = isinstance(X, str | bytes | PathLike)
    if is_file or not (isinstance(X, Iterable | Sized) or hasattr(X, "__array__")):
        first = "If this names a file, read it first. " if is_file else ""
        raise TypeError(
            f"Expected a table or a list of tables, got {short(X)} of type {kind}. {first}Give "
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
    if isinstance(X, list | tuple):
        if len(X):
            refuse_other_frames(X[0], " of client 0")
        if len(X) and holds_tables(X[0]):
            raise TypeError(
                f"Expected a table or a list of tables, got a {kind} whose entries contain tables. "
                f"Give {_OF_GROUPS}."
            )
        refuse_uneven_rows(X)
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


def refuse_vectors(X, clients):
    """Raise for a list of Series or 1-D arrays, which may be rows or clients."""
    first = X[0] if isinstance(X, list | tuple) and len(X) else None
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


def refuse_uneven_rows(rows, of_whom=""):
    """Raise if a list of rows has rows of different lengths."""
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
    if issparse(row):
        refuse_sparse(row, " in the list")
    return len(row) if n_dimensions(row) > 0 else None


def _counted(length):
    return "a bare number" if length is None else plural(length, "number")


def holds_tables(table):
    """Whether a list holds tables, or an array or a pandas Series holds tables or lists."""
    if isinstance(table, list | tuple):
        return any(n_dimensions(entry) > 1 for entry in table)
    if getattr(getattr(table, "dtype", None), "kind", None) != "O":
        return False
    return any(n_dimensions(entry) > 0 for entry in np.asarray(table, dtype=object).ravel())


def is_missing(label):
    try:
        return label is None or bool(label != label)
    except TypeError:  # pandas.NA != pandas.NA is NA as well
        return True


def missing_labels(labels):
    """Positions of missing labels in an array."""
    if labels.dtype.kind in {"O", "T"}:  # a missing string equals itself in StringDType
        # fromiter instead of a list, which would take eight bytes per row.
        return np.flatnonzero(np.fromiter(map(is_missing, labels.flat), bool, len(labels)))
    return np.flatnonzero(labels != labels)


def column_names(table, k):
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


def are_reordered(table, other):
    """Whether two tables have the same columns in a different order."""
    first, second = (list(getattr(each, "columns", ())) for each in (table, other))
    try:
        return first != second and set(first) == set(second)
    except (TypeError, ValueError):
        return False  # columns of arrays instead of names


def _refuse_repeated(names, whose=""):
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


def shorten(names):
    return (
        "no string column names"
        if names is None
        else f"[{', '.join(map(repr, names[:8]))}" + (", ...]" if len(names) > 8 else "]")
    )
