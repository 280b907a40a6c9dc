"""Answers for each table of a list, from functions of one table; small tables are stacked."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse, vstack

from .._federation import MOST_CLIENTS, client_groups, offsets_of
from .._messages import error_context
from .._typing import Table
from .table_labels import is_frame
from .tables import is_client_list, refuse_no_clients

_Answer = TypeVar("_Answer")

# Number of values in small tables that are processed together, which fit into a cache.
_TOGETHER = 2**17
# Sparse formats that store single entries, except DOK, which scipy < 1.13 does not stack.
_ENTRIES = ("coo", "csr", "csc", "lil")


def each_client(
    X: Sequence[Table], answer: Callable[[Table], _Answer], first: int = 0
) -> tuple[_Answer, ...]:
    """Apply ``answer`` to each table of a list; errors number the clients from ``first`` on."""
    refuse_no_clients(X)
    answers = []
    for k, table in enumerate(X, first):
        if is_client_list(table):
            raise ValueError(
                f"Expected a 2-D table (rows by features) for client {k}, got a list of "
                f"{len(table)} tables. Give one list with all tables."
            )
        with error_context(f"In the table of client {k}"):
            answers.append(answer(table))
    return tuple(answers)


def each_client_stacked(
    X: Sequence[Table],
    answer: Callable[[Table], NDArray[Any]],
    one_by_one: Callable[..., tuple[NDArray[Any], ...]] = each_client,
) -> tuple[NDArray[Any], ...]:
    """As ``each_client``, for row-wise answers: small tables are processed together.

    For a few rows, checks take longer than arithmetic. After an error, tables are processed one by
    one, so that errors name the client.
    """
    answers = []
    for first in range(0, len(X) or 1, MOST_CLIENTS):
        tables = X[first : first + MOST_CLIENTS]
        own: list[NDArray[Any]] = []
        try:
            for rows, lengths in stacks(tables):
                own += np.split(answer(rows), np.cumsum(lengths)[:-1])
        except (TypeError, ValueError):
            own = [*one_by_one(tables, answer, first)]
        answers += own
    return tuple(answers)


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
    for group in client_groups(offsets_of(lengths), max(1, _TOGETHER // max(1, width))):
        tables = X[group]
        yield concatenate(tables) if len(tables) > 1 else tables[0], lengths[group]


def _kind(table: Table) -> tuple[Any, ...]:
    """Key that is equal for tables that can be stacked; raise ValueError for other tables."""
    if type(table) is np.ndarray and table.ndim == 2 and len(table):
        return _read_as(table.dtype), table.shape[1]
    if issparse(table) and table.format in _ENTRIES and table.ndim == 2 and table.shape[0]:
        return type(table), table.dtype, table.shape[1]
    if _library(table) in ("pandas", "polars") and is_frame(table) and len(table):
        return type(table), tuple(table.columns), tuple(map(_read_as, table.dtypes))
    raise ValueError("expected a table with two dimensions and with rows")


def _read_as(dtype: Any) -> Any:
    """Dtype after stacking with doubles; float64 for integers of at least 32 bits."""
    is_integer = isinstance(dtype, np.dtype) and dtype.kind in "iu" and dtype.itemsize >= 4
    return np.dtype(np.float64) if is_integer else dtype


def _library(table: Table) -> str:
    return type(table).__module__.partition(".")[0]
