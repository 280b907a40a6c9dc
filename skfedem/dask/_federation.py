"""What estimators are fitted to: rows of clients that live on the workers of a Dask cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4
from weakref import WeakSet

import numpy as np
from distributed import Client, Future
from numpy.typing import NDArray

from .._data.cells import CellData, CellReading
from .._error_messages import plural
from .._federation import Elsewhere
from .._typing import FloatArray, IntArray
from ._cells import read_cells
from ._clients import DaskClients
from ._cluster import on_each, results_of, where
from ._load import report, sums_of, table_of, transformed
from ._weights import with_weights


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
        given = function, columns
        rows = on_each(self.client, transformed, self.rows, "transform", *given)
        same = self.shards, self.lengths, self.ids
        found = federation_of(self.client, rows, *same, None, self.snapshot_every)
        found.totals, found.row_weight = self.totals, self.row_weight
        return found

    def weighted(self, name: str) -> DaskFederation:
        """The same clients with a column as weights of their rows."""
        if isinstance(self.columns, int) or name not in self.columns or len(self.columns) < 2:
            raise ValueError(
                f"Expected sample_weight= the name of a column beside features, got {name!r} and "
                f"the columns {self.columns}. Name a column."
            )
        rows, totals, unit = with_weights(self.client, self.rows, self.columns.index(name))
        columns, same = [own for own in self.columns if own != name], (self.lengths, self.ids)
        found = federation_of(self.client, rows, self.shards, *same, columns, self.snapshot_every)
        found.totals, found.row_weight = totals, unit
        return found

    def sum_of_rows(self) -> tuple[float, float]:
        """Weighted sum of the only number in each row, and the total weight of the rows."""
        asked = on_each(self.client, sums_of, self.rows, "sum-rows")
        total, weight = np.sum(results_of(self.client, asked), axis=0) * self.row_weight
        return float(total), float(weight)

    def to_dataframe(self) -> Any:
        """Rows as a DataFrame of Dask, which stay where they are.

        Returns
        -------
        frame : dask.dataframe.DataFrame
            A partition for each shard; its index has the clients' labels. Columns without names are
            called "0", "1" and so on.
        """
        from dask.dataframe import from_delayed

        named = self.columns
        names = [str(k) for k in range(named)] if isinstance(named, int) else named
        with self.client.as_current():
            tables = on_each(self.client, table_of, self.rows, "table", names)
            return from_delayed(tables, verify_meta=False)

    def read(self, reading: Any = None) -> CellData:
        """Cells of an imputer, whose triplets the rows are; they stay on the workers."""
        if not isinstance(reading, CellReading):
            super().read(reading)
        self.check_finite(allow_nan=False)
        if self.totals is not None or self.row_weight != 1:
            raise TypeError(
                "Expected observations without sample_weight for an imputer, got weights. Read the "
                "clients without."
            )
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
    told = results_of(client, on_each(client, report, rows, "report"))
    missing = next((own.missing for own in told if own.missing), None)
    named = told[0].n_columns if columns is None else columns
    return DaskFederation(client, rows, shards, lengths, ids, named, snapshot_every, missing)
