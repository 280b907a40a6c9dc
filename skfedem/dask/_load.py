"""What workers do to read rows: from files, or from pieces of tables, to shards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._data.by_client import each_table_stacked
from .._data.labels import group_rows
from .._data.rows import check_finite
from .._data.tables import as_numbers
from .._error_messages import error_context
from .._federation import Federation, offsets_of
from .._rows import precision_of
from .._typing import IntArray
from ._shard import Shard


class Described(NamedTuple):
    """What a table is like: its columns, type of its numbers, and clients.

    ``labels`` are sorted and distinct, ``counts`` their numbers of rows.
    """

    columns: list[str]
    dtype: str
    labels: NDArray[Any]
    counts: IntArray


class Report(NamedTuple):
    """Number of columns of a shard, and what is wrong if values may not be missing."""

    n_columns: int
    missing: str | None


class Target(NamedTuple):
    """What a shard consists of.

    Attributes
    ----------
    first : int
        Number of its first client.
    labels : ndarray of shape (n,)
    lengths : ndarray of int, shape (n,)
    columns : list of str
    dtype : str
        Type of the rows of all clients.
    """

    first: int
    labels: NDArray[Any]
    lengths: IntArray
    columns: list[str]
    dtype: str


def describe_files(paths: list[str]) -> list[Described]:
    """What files in Parquet format are like, from their footers."""
    import fsspec
    import pyarrow.parquet

    described = []
    for path in paths:
        with fsspec.open(path, "rb") as file:
            read = pyarrow.parquet.ParquetFile(file)
            schema, n_rows = read.schema_arrow, read.metadata.num_rows
        empty = schema.empty_table().to_pandas()
        with error_context(f"In {path}"):
            if not n_rows:
                raise ValueError("Expected at least one row for every client, got none.")
            dtype = precision_of(as_numbers(empty)).name
        described.append(Described([*empty.columns], dtype, np.array([path]), np.array([n_rows])))
    return described


def read_files(paths: list[str], target: Target) -> Shard:
    """Shard of clients that have a file each."""
    import pandas as pd

    rows = np.empty((int(target.lengths.sum()), len(target.columns)), target.dtype)
    start = 0
    for path, length in zip(paths, target.lengths.tolist(), strict=True):
        with error_context(f"In {path}"):
            rows[start : start + length] = as_numbers(pd.read_parquet(path, columns=target.columns))
        start += length
    return _shard_of(rows, target)


def read_table(path: str) -> Any:
    """All rows of a file."""
    import pandas as pd

    return pd.read_parquet(path)


def describe_table(table: Any, label: str) -> Described:
    """What a table is like that has the client's label in a column."""
    if label not in table.columns:
        raise ValueError(
            f"Expected the column {label!r} with the client of each row, got the columns "
            f"{[*table.columns]}. Give the name of a column."
        )
    rows = table.drop(columns=label)
    ids, _, offsets = group_rows(table[label].to_numpy(), len(table))
    return Described([*rows.columns], precision_of(as_numbers(rows)).name, ids, np.diff(offsets))


def cut_table(table: Any, label: str, bounds: NDArray[Any]) -> list[Any]:
    """Rows of a table by shard, whose first labels are the bounds."""
    shard = np.searchsorted(bounds, table[label].to_numpy(), side="right") - 1
    return [table[shard == k] for k in range(len(bounds))]


def piece_of(pieces: list[Any], shard: int) -> Any:
    """Rows of one shard."""
    return pieces[shard]


def join_pieces(pieces: list[Any], label: str, target: Target) -> Shard:
    """Shard from the pieces of all tables, in their order."""
    labels = np.concatenate([own[label].to_numpy() for own in pieces])
    rows = np.concatenate([as_numbers(own[target.columns]) for own in pieces], dtype=target.dtype)
    _, order, _ = group_rows(labels, len(labels))
    return _shard_of(rows if order is None else rows[order], target)


def transformed(
    shard: Shard, function: Callable[[Any], NDArray[Any]], columns: list[str] | None
) -> Shard:
    """The shard with the tables that a function makes of its clients'."""
    federation = shard.federation
    tables: list[Any] = np.split(federation.rows, federation.offsets[1:-1])
    if columns is not None:
        import pandas as pd

        tables = [pd.DataFrame(own, columns=columns) for own in tables]
    rows = np.concatenate(each_table_stacked(tables, function))
    rows = rows[:, None] if rows.ndim == 1 else rows
    return _checked(shard.with_rows(rows, federation.sample_weight), [])


def sums_of(shard: Shard) -> tuple[float, float]:
    """Weighted sum of the only number in each row, and the total weight of the rows."""
    values, weighted = shard.federation.rows[:, 0], shard.federation.sample_weight
    if weighted is None:
        return float(values.sum()), len(values)
    return float((values * weighted.values).sum()), float(weighted.totals.sum())


def table_of(shard: Shard, columns: list[str]) -> Any:
    """Rows as a DataFrame of pandas, whose index is the client."""
    import pandas as pd

    clients = pd.Index(np.repeat(shard.labels, shard.federation.lengths), name="client")
    return pd.DataFrame(shard.federation.rows, clients, columns)


def report(shard: Shard) -> Report:
    """What the client has to know of a shard."""
    return Report(shard.federation.rows.shape[1], shard.missing)


def _shard_of(rows: NDArray[Any], target: Target) -> Shard:
    """Shard of these rows."""
    n, offsets = len(target.lengths), offsets_of(target.lengths)
    ids = np.arange(target.first, target.first + n)
    federation = Federation(rows, offsets, np.zeros(n))
    return _checked(Shard(federation, ids, target.labels, None), target.columns)


def _checked(shard: Shard, columns: list[str]) -> Shard:
    """The shard, whose rows are finite or missing."""
    rows, missing = shard.federation.rows, None
    names = np.array(columns, dtype=object) if columns else None
    check_finite(rows, names, shard.locate, allow_nan=True)
    try:
        check_finite(rows, names, shard.locate, allow_nan=False)
    except ValueError as error:
        missing = str(error)
    return shard._replace(missing=missing)
