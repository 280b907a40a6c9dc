"""One function for one table or for each table of a list; small tables are stacked."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse, vstack
from sklearn.base import BaseEstimator

from .._compat import in_containers
from .._error_messages import error_context
from .._federation import MOST_CLIENTS, Elsewhere, client_groups, offsets_of
from .._typing import ClientsLike, Table
from .tables import check_not_empty, is_client_list, is_frame

# Number of values in small tables that are processed together, which fit into a cache.
_STACKED_VALUES = 2**17
# Sparse formats that store single entries, except DOK, which scipy < 1.13 does not stack.
_ENTRIES = ("coo", "csr", "csc", "lil")


def by_client(
    X: ClientsLike,
    function: Callable[[Table], NDArray[Any]],
    container: BaseEstimator | None = None,
) -> Any:
    """Result of a row-wise function for one table, or a tuple for a list of clients' tables.

    If an estimator is given as the ``container``, results for a list are in the containers that its
    ``set_output`` requests; scikit-learn wraps those for one table.
    """
    if isinstance(X, Elsewhere):
        return X.transformed(function)
    if not is_client_list(X):
        return function(X)
    results = each_table_stacked(X, function)
    return results if container is None else in_containers(container, results, X)


def each_table(
    X: Sequence[Table], function: Callable[[Table], Any], first: int = 0
) -> tuple[Any, ...]:
    """Apply a function to the tables of a list, or to the observers of a 3-D array.

    Errors number the clients from ``first`` on.
    """
    check_not_empty(X)
    owner = "observer" if getattr(X, "ndim", 1) == 3 else "client"
    results = []
    for k, table in enumerate(X, first):
        with error_context(f"In the table of {owner} {k}"):
            if is_client_list(table):
                raise ValueError(f"Expected one table, got a list of {len(table)} tables.")
            results.append(function(table))
    return tuple(results)


def each_table_stacked(
    X: Sequence[Table], function: Callable[[Table], NDArray[Any]]
) -> tuple[NDArray[Any], ...]:
    """As ``each_table``, for row-wise functions: small tables are processed together.

    For a few rows, checks take longer than arithmetic. After an error, tables are processed one by
    one, so that errors name the client.
    """
    results: list[NDArray[Any]] = []
    for first in range(0, len(X) or 1, MOST_CLIENTS):
        tables = X[first : first + MOST_CLIENTS]
        part: list[NDArray[Any]] = []
        try:
            for rows, lengths in stacks(tables):
                part += np.split(function(rows), np.cumsum(lengths)[:-1])
        except (TypeError, ValueError):
            part = [*each_table(tables, function, first)]
        results += part
    return tuple(results)


def stacks(X: Sequence[Table]) -> Iterator[tuple[Table, list[int]]]:
    """Yield the rows of tables in a list, small ones stacked, with the lengths of the tables.

    Large tables are not copied. Raises ValueError unless all tables are plain arrays, sparse
    matrices, or DataFrames of one library, with the same columns and types; integers and doubles
    may be mixed.
    """
    if len({_kind(table) for table in X}) != 1:
        raise ValueError("expected tables of one kind with the same columns and types")
    lengths, width = [table.shape[0] for table in X], X[0].shape[1]
    if issparse(X[0]):
        concatenate = vstack
    elif type(X[0]) is np.ndarray:
        concatenate = np.concatenate
    else:
        concatenate = sys.modules[_library(X[0])].concat
    for group in client_groups(offsets_of(lengths), max(1, _STACKED_VALUES // max(1, width))):
        tables = X[group]
        yield concatenate(tables) if len(tables) > 1 else tables[0], lengths[group]


def _kind(table: Table) -> tuple[Any, ...]:
    """Key that is equal for tables that can be stacked; raise ValueError for other tables."""
    if type(table) is np.ndarray and table.ndim == 2 and len(table):
        return _stacked_dtype(table.dtype), table.shape[1]
    if issparse(table) and table.format in _ENTRIES and table.ndim == 2 and table.shape[0]:
        return type(table), table.dtype, table.shape[1]
    if _library(table) in ("pandas", "polars") and is_frame(table) and len(table):
        return type(table), tuple(table.columns), tuple(map(_stacked_dtype, table.dtypes))
    raise ValueError("expected a table with two dimensions and with rows")


def _stacked_dtype(dtype: Any) -> Any:
    """Dtype after stacking with doubles; float64 for integers of at least 32 bits."""
    is_integer = isinstance(dtype, np.dtype) and dtype.kind in "iu" and dtype.itemsize >= 4
    return np.dtype(np.float64) if is_integer else dtype


def _library(table: Table) -> str:
    return type(table).__module__.partition(".")[0]
