"""Federations on the workers of a Dask cluster: rows and states of clients stay there."""

from .._optional import check_installed

check_installed("skfedem.dask", "distributed")

from ._clients import DaskClients  # noqa: E402
from ._cluster import NoWorkersError  # noqa: E402
from ._federation import DaskFederation  # noqa: E402
from ._read import read_clients  # noqa: E402

__all__ = ["DaskClients", "DaskFederation", "NoWorkersError", "read_clients"]
