"""Clusters of Dask on this machine."""

import warnings
from contextlib import contextmanager


@contextmanager
def local_cluster(n_workers):
    """Client of a cluster whose workers are processes with a thread each, started again if lost."""
    from distributed import Client, LocalCluster

    with warnings.catch_warnings():
        # Of a port for the dashboard that is taken, or a slow disk: of the machine, not of us.
        warnings.simplefilter("ignore")
        cluster = LocalCluster(n_workers=n_workers, threads_per_worker=1, dashboard_address=":0")
    with cluster, Client(cluster) as client:
        yield client
