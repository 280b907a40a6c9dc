"""Clusters of Dask on this machine."""

import os
import signal
import warnings
from contextlib import contextmanager

from numpy.testing import assert_array_equal

NOISY = {"omega": 1.0, "participation": 0.5}
SETTINGS = {
    "exact": {},
    "compressed": NOISY,
    "minibatches": {**NOISY, "batch_size": 20},
    "variance-reduced": {**NOISY, "batch_size": 20, "solver": "vr_fedem"},
    "uniform": {"client_weights": "uniform"},
}


@contextmanager
def local_cluster(n_workers):
    """Client of a cluster whose workers are processes with a thread each, started again if lost."""
    from distributed import Client, LocalCluster

    import dask

    # A worker that is lost twice within this time is otherwise not started again, if it happens to
    # be starting when the time since the first loss is over.
    patient = dask.config.set({"distributed.deploy.lost-worker-timeout": "1h"})
    with warnings.catch_warnings():
        # Of a port for the dashboard that is taken, or a slow disk: of the machine, not of us.
        warnings.simplefilter("ignore")
        cluster = LocalCluster(n_workers=n_workers, threads_per_worker=1, dashboard_address=":0")
    with patient, cluster, Client(cluster) as client:
        yield client


def kill_a_worker(client, n_workers=2):
    """Kill the process of one of so many workers, once all are there."""
    client.wait_for_workers(n_workers, timeout=120)
    pids = client.run(os.getpid)
    os.kill(pids[min(pids)], signal.SIGKILL)


def assert_same_fit(got, want):
    """All fitted attributes have the same bits, but for labels of clients."""
    for name, value in vars(want).items():
        if not name.endswith("_") or name == "client_ids_":
            continue
        other = getattr(got, name)
        if isinstance(value, dict):
            assert value.keys() == other.keys()
            for key, own in value.items():
                assert_array_equal(other[key], own, err_msg=f"{name}[{key}]")
        else:
            assert_array_equal(other, value, err_msg=name)
