"""What estimators are fitted to: rows of clients that live on the workers of a Dask cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4
from weakref import WeakSet

from distributed import Client, Future
from numpy.typing import NDArray

from .._data.cells import CellData, CellReading
from .._error_messages import plural
from .._federation import Elsewhere
from .._typing import FloatArray, IntArray
from ._cells import read_cells
from ._clients import DaskClients
from ._cluster import results_of, where
from ._load import report, transformed


class DaskFederation(Elsewhere):
    """Rows of clients on the workers of a Dask cluster, in place of their tables.

    Made by ``read_clients``. Estimators with clients are fitted to it as to a list of tables;
    ``transform`` returns another one. Rows are freed when it is deleted.

    Attributes
    ----------
    client : distributed.Client
    rows : list of Future
        The rows by shard. Dask reads those of a lost worker again.
    shards : ndarray of int, shape (n_shards + 1,)
        First client of each shard, and the number of clients.
    lengths : ndarray of int, shape (n_clients,)
        Numbers of rows.
    ids : ndarray of shape (n_clients,)
        Labels of the clients.
    columns : list of str or int
        Names of the features, or their number if they have none.
    snapshot_every : int
        Number of rounds between snapshots of the clients' states.
    """

    def __init__(
        self,
        client: Client,
        rows: list[Future],
        shards: IntArray,
        lengths: IntArray,
        ids: NDArray[Any],
        columns: list[str] | int,
        snapshot_every: int,
        missing: str | None = None,
    ) -> None:
        self.client, self.rows, self.shards = client, rows, shards
        self.lengths, self.ids, self.snapshot_every = lengths, ids, snapshot_every
        self.name, self.fits = uuid4().hex, WeakSet[DaskClients]()
        self.columns, self._missing = columns, missing
        self._places: list[str] | None = None

    def __repr__(self) -> str:
        n_rows, n_shards = int(self.lengths.sum()), len(self.rows)
        return (
            f"<DaskFederation: {plural(len(self.ids), 'client')}, {plural(n_rows, 'row')}, "
            f"{plural(n_shards, 'shard')}>"
        )

    def places(self) -> list[str]:
        """Address of the worker of each shard; waits for shards that are read again."""
        if self._places is None:
            self._places = where(self.client, self.rows)
        return self._places

    def look_again(self) -> None:
        """Find out where shards are, because a worker was lost."""
        self._places = None

    def clients(self, weights: FloatArray) -> DaskClients:
        """``Clients`` of a fit, with these weights."""
        return DaskClients(self, weights)

    def check_finite(self, *, allow_nan: bool) -> None:
        """Raise if values are missing."""
        if self._missing and not allow_nan:
            raise ValueError(self._missing)

    def transformed(self, function: Callable[[Any], NDArray[Any]]) -> DaskFederation:
        """The same clients with the tables that a function makes of theirs, on their workers."""
        columns = None if isinstance(self.columns, int) else self.columns
        rows = [
            self.client.submit(
                transformed,
                own,
                function,
                columns,
                key=f"transform-{uuid4().hex}",
            )
            for own in self.rows
        ]
        same = self.shards, self.lengths, self.ids
        return federation_of(self.client, rows, *same, None, self.snapshot_every)

    def read(self, reading: Any = None) -> CellData:
        """Cells of an imputer, whose triplets the rows are; they stay on the workers."""
        if not isinstance(reading, CellReading):
            super().read(reading)
        self.check_finite(allow_nan=False)
        rows, shards, federation, data = read_cells(
            self.client, self.rows, self.shards, self.ids, reading
        )
        lengths, every = federation.lengths, self.snapshot_every
        place = DaskFederation(self.client, rows, shards, lengths, self.ids, 3, every)
        place.federation = federation
        return data._replace(place=place)


def federation_of(
    client: Client,
    rows: list[Future],
    shards: IntArray,
    lengths: IntArray,
    ids: NDArray[Any],
    columns: list[str] | None,
    snapshot_every: int,
) -> DaskFederation:
    """Federation of these rows, after a look at them."""
    asked = [client.submit(report, own, key=f"report-{uuid4().hex}") for own in rows]
    told = results_of(client, asked)
    missing = next((own.missing for own in told if own.missing), None)
    named = told[0].n_columns if columns is None else columns
    return DaskFederation(client, rows, shards, lengths, ids, named, snapshot_every, missing)
