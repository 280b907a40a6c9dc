"""Reading a federation on the workers of a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from numbers import Integral
from pathlib import PurePosixPath
from typing import Any
from uuid import uuid4

import fsspec
import numpy as np
from distributed import Client
from numpy.typing import NDArray

from .. import __version__
from .._data.features import shorten
from .._error_messages import repr_of
from .._optional import check_installed
from .._parameters import check_number
from ..clients.sums import shards_of
from ._cluster import NoWorkersError, on_each, results_of
from ._federation import DaskFederation, federation_of
from ._load import (
    Described,
    Target,
    cut_table,
    describe_files,
    describe_table,
    join_pieces,
    piece_of,
    read_files,
    read_table,
)


def read_clients(
    client: Client,
    source: Any,
    clients: str | None = None,
    *,
    sample_weight: str | None = None,
    snapshot_every: int = 10,
) -> DaskFederation:
    """Read the rows of clients on the workers of a Dask cluster.

    The clients are cut into shards by their numbers of rows. Workers keep the rows of some, and in
    a fit their states. No row passes through the scheduler or this
    process.

    Parameters
    ----------
    client : distributed.Client
        Connection to the cluster; the workers need the same version of this package.
    source : str, list of str, or dask.dataframe.DataFrame
        Files in Parquet format, which all workers can read: a pattern such as
        ``trips/*.parquet``, a folder, or paths. Or a DataFrame of Dask, with ``clients``.
    clients : str, default=None
        Column with the client of each row: rows are then sent between workers, once. None for one
        client per file, whose label is the file's name without extension.
    sample_weight : str, default=None
        Column with the positive weight of each row, for mixtures, ``score``, ``aic`` and ``bic``.
    snapshot_every : int, default=10
        Number of rounds between copies of the clients' states to this process. If a worker is lost,
        another one reads its rows and repeats the rounds since then.

    Returns
    -------
    federation : DaskFederation
        What estimators are fitted to, in place of tables.

    Raises
    ------
    FileNotFoundError
        If no file matches the pattern.
    NoWorkersError
        If the cluster has no workers.
    RuntimeError
        If workers lack this package, or have another version.
    TypeError, ValueError
        If arguments are invalid; if a client has two files, or columns differ between files; or if
        values are not numbers, or infinite.

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> from distributed import Client
    >>> from skfedem import FederatedGaussianMixture
    >>> from skfedem.dask import read_clients
    >>> rows = np.random.default_rng(0).normal(size=(300, 2))
    >>> table = pd.DataFrame({"x": rows[:, 0], "y": rows[:, 1], "car": np.arange(300) % 3})
    >>> table.to_parquet("trips.parquet")
    >>> with Client(n_workers=2, threads_per_worker=1) as client:
    ...     federation = read_clients(client, "trips.parquet", clients="car")
    ...     mixture = FederatedGaussianMixture(2, random_state=0).fit(federation)
    >>> federation
    <DaskFederation: 3 clients, 300 rows, 1 shard>
    >>> mixture.n_clients_
    3
    """
    check_number("snapshot_every", snapshot_every, kind=Integral, low=1)
    check_installed("read_clients", "pyarrow")
    _check_workers(client)
    if clients is None:
        if not isinstance(source, str | list | tuple):
            raise TypeError(
                f"Expected files, or clients= the column with the labels, got "
                f"{repr_of(source)} alone. Name the column."
            )
        federation = _one_file_each(client, _paths_of(source), snapshot_every)
    else:
        federation = _by_label(client, source, clients, snapshot_every)
    return federation if sample_weight is None else federation.weighted(sample_weight)


def _check_workers(client: Client) -> None:
    """Raise unless all workers have this version of the package."""
    # A lambda, as a function of this package could not be sent to workers that lack it.
    versions = client.run(lambda: __import__("skfedem").__version__, on_error="return")
    if not versions:
        raise NoWorkersError("Expected a cluster with workers, got none. Add workers.")
    for address, version in versions.items():
        if version != __version__:
            got = version if isinstance(version, str) else f"{type(version).__name__}: {version}"
            raise RuntimeError(
                f"Expected skfedem {__version__} on all workers, got {got} on {address}. Install "
                "the version of this process there."
            )


def _paths_of(source: str | Sequence[str]) -> list[str]:
    """Paths of files, in order."""
    if not isinstance(source, str):
        if not len(source):
            raise ValueError("Expected at least one file, got none.")
        return [str(path) for path in source]
    system, path = fsspec.core.url_to_fs(source)
    found = system.glob(f"{path}/*.parquet" if system.isdir(path) else path)
    if not found:
        raise FileNotFoundError(f"Expected files that match {source!r}, got none.")
    is_url = "://" in source
    return [system.unstrip_protocol(own) if is_url else own for own in sorted(found)]


def _one_file_each(client: Client, paths: list[str], snapshot_every: int) -> DaskFederation:
    """Federation with a client for each file."""
    names = np.array([PurePosixPath(path).stem for path in paths])
    _, firsts, counts = np.unique(names, return_index=True, return_counts=True)
    if counts.max() > 1:
        name = names[firsts[counts.argmax()]]
        two = [path for path, own in zip(paths, names, strict=True) if own == name][:2]
        raise ValueError(
            f"Expected one file for each client, got two for client {str(name)!r}: {two[0]} and "
            f"{two[1]}. Rename one of them, or join their rows."
        )
    parts = [[*own] for own in np.array_split(paths, len(client.nthreads())) if len(own)]
    asked = on_each(client, describe_files, parts, "read-footers")
    described = [own for part in results_of(client, asked) for own in part]
    columns, dtype = _agreed(described, paths)
    lengths = np.array([own.counts[0] for own in described])
    shards = shards_of(lengths)
    # Not pinned: Dask would not read shards again whose workers were the last ones.
    rows = [
        client.submit(
            read_files,
            paths[first:last],
            Target(first, names[first:last], lengths[first:last], columns, dtype),
            key=_key("read-rows"),
        )
        for first, last in pairwise(shards)
    ]
    return federation_of(client, rows, shards, lengths, names, columns, snapshot_every)


def _by_label(client: Client, source: Any, label: str, snapshot_every: int) -> DaskFederation:
    """Federation of tables, with the client of each row in a column."""
    if hasattr(source, "to_delayed"):
        tables = client.compute(source.to_delayed())
        names = [f"partition {k}" for k in range(len(tables))]
    else:
        names = _paths_of(source)
        tables = on_each(client, read_table, names, "read-table")
    asked = on_each(client, describe_table, tables, "describe", label)
    described = results_of(client, asked)
    columns, dtype = _agreed(described, names)
    labels = np.concatenate([own.labels for own in described])
    try:
        ids, where = np.unique(labels, return_inverse=True)
    except TypeError as error:
        raise TypeError(
            f"Expected labels of one type in column {label!r}, got numbers and text. Write them as "
            "text in all files."
        ) from error
    counts = np.concatenate([own.counts for own in described])
    lengths = np.bincount(where, counts).astype(np.intp)
    shards = shards_of(lengths)
    bounds = ids[shards[:-1]]
    cut = on_each(client, cut_table, tables, "cut", label, bounds)
    rows = []
    for k, (first, last) in enumerate(pairwise(shards)):
        pieces = [
            client.submit(piece_of, own, k, key=_key("piece"))
            for own, known in zip(cut, described, strict=True)
            if _has_any(known.labels, ids[first], ids[last - 1])
        ]
        target = Target(int(first), ids[first:last], lengths[first:last], columns, dtype)
        rows.append(
            client.submit(
                join_pieces,
                pieces,
                label,
                target,
                key=_key("join-rows"),
            )
        )
    return federation_of(client, rows, shards, lengths, ids, columns, snapshot_every)


def _has_any(labels: NDArray[Any], first: Any, last: Any) -> bool:
    """Whether some of these sorted labels are in a range."""
    start = np.searchsorted(labels, first)
    return bool(start < len(labels) and labels[start] <= last)


def _agreed(described: list[Described], names: list[str]) -> tuple[list[str], str]:
    """Columns and type of numbers of all tables; raise if their columns differ."""
    want = described[0].columns
    for own, name in zip(described, names, strict=True):
        if own.columns != want:
            raise ValueError(
                f"Expected the columns of {names[0]}, {shorten(want, own.columns)}, in that order, "
                f"got {shorten(own.columns, want)} in {name}. Rename or reorder them."
            )
    is_single = all(own.dtype == "float32" for own in described)
    return want, "float32" if is_single else "float64"


def _key(name: str) -> str:
    """Name of a task, whose first part Dask's dashboard shows."""
    return f"{name}-{uuid4().hex}"
