"""What does a round cost on the workers of a Dask cluster, and does it have the same bits?

Workers are processes of this machine, with a thread each. The parts:

bits      fits on 1, 2 and 3 workers, and with two workers killed, against fits in this process
rounds    exact rounds (20 features, 10 full covariances): seconds, and seconds of processor time of
          this process and of the workers; the last line has the thresholds of Dask's nanny
overhead  rounds of eight shards with few rows: what scheduling adds; sizes of messages
start     seconds and bytes until 40 files are read, with the packages already imported
memory    a table larger than the memory limit of each worker
imputer   fits of an imputer here and on 1, 2 and 3 workers, bits and seconds of a round

    python examples/benchmarks/dask_rounds.py [--parts bits rounds ...] [--rows 1000000]
"""

import argparse
import ctypes
import os
import pickle
import resource
import signal
import tempfile
import time
import warnings
from contextlib import contextmanager
from pathlib import Path

import distributed.comm.tcp
import numpy as np
import pandas as pd
from distributed import Client, LocalCluster

import dask
from skfedem import FederatedGaussianMixture, FederatedMatrixImputer
from skfedem.dask import read_clients

NAMES = "weights_", "means_", "covariances_"
NAMES_OF_IMPUTER = "row_effects_", "column_effects_", "row_factors_", "column_factors_"
NOISY = {"omega": 1.0, "participation": 0.5}
SETTINGS = {
    "exact": {},
    "compressed": NOISY,
    "minibatches": {**NOISY, "batch_size": 20},
    "VR-FedEM": {**NOISY, "batch_size": 20, "solver": "vr_fedem"},
}
MEGABYTE = 2**20


def write(folder, n_files, n_rows, n_features=20):
    """Write as many files, with so many rows in all, of ten groups; return the tables."""
    generator, tables = np.random.default_rng(0), []
    centers = generator.normal(scale=4, size=(10, n_features))
    for k in range(n_files):
        size = n_rows // n_files
        rows = centers[generator.integers(10, size=size)] + generator.normal(
            size=(size, n_features)
        )
        tables.append(pd.DataFrame(rows, columns=[f"x{j}" for j in range(n_features)]))
        tables[-1].to_parquet(folder / f"{k:03d}.parquet")
    return tables


@contextmanager
def cluster_of(n_workers, **settings):
    """Client of a cluster whose workers have imported the package."""
    settings = {"threads_per_worker": 1, "dashboard_address": ":0", **settings}
    # Or else a worker that is lost twice within this time may not be started again.
    patient = dask.config.set({"distributed.deploy.lost-worker-timeout": "1h"})
    with (
        patient,
        LocalCluster(n_workers=n_workers, **settings) as cluster,
        Client(cluster) as client,
    ):
        client.run(lambda: (__import__("skfedem.dask"), __import__("pyarrow.parquet")))
        yield client


def mixture(tables, n_rounds, n_components=10, steps=lambda k: 1.0, **settings):
    """A mixture that starts from rows of the first client."""
    means = tables[0].to_numpy()[:n_components]
    given = {"max_iter": n_rounds, "tol": 0, "step_size": steps, "random_state": 0, **settings}
    return FederatedGaussianMixture(n_components, means_init=means, **given)


def same(one, other, names=NAMES):
    """Whether two fits and their histories have the same bits."""
    equal = [np.array_equal(getattr(one, name), getattr(other, name)) for name in names]
    for name, column in other.history_.items():
        equal.append(np.array_equal(one.history_[name], column, equal_nan=True))
    return "equal" if all(equal) else "DIFFERENT"


def killing(client):
    """Steps of 0.3 that kill one of three workers before two rounds."""

    def steps(k):
        if k in (4, 9):
            client.wait_for_workers(3, timeout=120)
            pids = client.run(os.getpid)
            os.kill(pids[min(pids)], signal.SIGKILL)
        return 0.3

    return steps


def bits(folder):
    """Fits here and on clusters."""
    tables = write(folder, 24, 48_000, 4)
    wanted = {
        name: mixture(tables, 15, 3, lambda k: 0.3, **own).fit(tables)
        for name, own in SETTINGS.items()
    }
    for n_workers in (1, 2, 3):
        with cluster_of(n_workers) as client:
            federation = read_clients(client, f"{folder}/*.parquet")
            for name, want in wanted.items():
                got = mixture(tables, 15, 3, lambda k: 0.3, **SETTINGS[name]).fit(federation)
                print(f"{n_workers} workers, {name}: {same(got, want)}")
    with cluster_of(3) as client:
        federation = read_clients(client, f"{folder}/*.parquet")
        for name, want in wanted.items():
            got = mixture(tables, 15, 3, killing(client), **SETTINGS[name]).fit(federation)
            print(f"3 workers, of which two are killed, {name}: {same(got, want)}")


def used(client):
    """Seconds of processor time and page faults of all workers so far, or of this process."""

    def own():
        return time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt

    return np.sum([*client.run(own).values()], axis=0) if client else np.array(own())


def cost(tables, X, client, n_rounds, **settings):
    """Median seconds of a round, processor seconds and page faults of a round."""
    starts, counted = [], []

    def steps(k):
        if k in (3, n_rounds):
            counted.append(used(client))
        starts.append(time.perf_counter())
        return 1.0

    mixture(tables, n_rounds, steps=steps, eval_every=None, **settings).fit(X)
    seconds = np.median(np.diff(starts)[2:-1])
    processor, faults = (counted[1] - counted[0]) / (n_rounds - 3)
    return seconds, processor, faults


def returned_at_once():
    """Set the allocator's thresholds as Dask's nanny does, in a worker that is at work."""
    from skfedem.dask import _shard

    _shard._keep_buffers()  # which is done once
    ctypes.CDLL(None).mallopt(-1, 2**16)
    ctypes.CDLL(None).mallopt(-3, 2**17)


def rounds(folder, n_rows):
    """Exact rounds here and on clusters."""
    tables = write(folder, 16, n_rows)
    here = cost(tables, tables, None, 12)
    print(
        f"in process: {here[0]:.3f} s a round, {here[1]:.3f} s of processor, {here[2]:.0f} faults"
    )
    walls = []
    for n_workers, note in ((1, ""), (2, ""), (3, ""), (1, ", nanny's thresholds")):
        with cluster_of(n_workers) as client:
            X = read_clients(client, f"{folder}/*.parquet")
            if note:
                client.run(returned_at_once)
            wall, processor, faults = cost(tables, X, client, 12)
        walls.append(wall)
        print(
            f"{n_workers} workers{note}: {wall:.3f} s a round ({wall / walls[0]:.2f} of one "
            f"worker), {processor:.3f} s of processor ({processor / here[1]:.2f} of in process), "
            f"{faults:.0f} faults",
            flush=True,
        )


@contextmanager
def received():
    """Context with a list of the sizes of messages that the scheduler and this process get."""
    read, sizes = distributed.comm.tcp.read_bytes_rw, []

    async def counting(stream, n):
        sizes.append(n)
        return await read(stream, n)

    distributed.comm.tcp.read_bytes_rw = counting
    try:
        yield sizes
    finally:
        distributed.comm.tcp.read_bytes_rw = read


def overhead(folder):
    """Rounds with hardly any arithmetic."""
    tables = write(folder, 8, 8 * 4_200, 2)
    here, *_ = cost(tables, tables, None, 60, n_components=2)
    for n_workers in (1, 2):
        with cluster_of(n_workers) as client:
            X = read_clients(client, f"{folder}/*.parquet")
            starts = []
            for k in range(60):
                starts.append(time.perf_counter())
                client.submit(lambda number: number, k, pure=False).result()
            task = np.median(np.diff(starts))
            with received() as sizes:
                wall, *_ = cost(tables, X, client, 60, n_components=2)
            print(
                f"{len(X.rows)} shards, {n_workers} workers: {1e3 * wall:.1f} ms a round, in "
                f"process {1e3 * here:.1f}, an empty task {1e3 * task:.1f}; "
                f"{sum(sizes) / 60 / 1000:.1f} kB a round received here and by the scheduler"
            )
    for d, G in ((2, 2), (20, 10)):
        q = G * (1 + d + d * (d + 1) // 2)
        length = len(pickle.dumps(np.zeros(q)))
        print(f"d = {d}, G = {G}: {q} statistics, {length / 1000:.1f} kB for a shard")


def start(folder):
    """Reading 40 files."""
    tables = write(folder, 40, 400_000)
    n_bytes = sum(own.to_numpy().nbytes for own in tables)
    with cluster_of(2) as client, received() as sizes:
        began = time.perf_counter()
        federation = read_clients(client, f"{folder}/*.parquet")
        seconds = time.perf_counter() - began
        print(f"{federation}: {seconds:.2f} s, {sum(sizes) / n_bytes:.2%} of the rows' bytes")


def memory(folder):
    """A table of 1.2 GB on three workers of 1.1 GB: 0.2 GB of each are its libraries."""
    tables = write(folder, 64, 8_000_000)
    n_bytes = sum(own.to_numpy().nbytes for own in tables)
    limit = int(0.9 * n_bytes)
    with cluster_of(3, memory_limit=limit) as client:
        pids = client.run(os.getpid)
        fitted = mixture(tables, 3, 4).fit(read_clients(client, f"{folder}/*.parquet"))
        lost = len(set(pids.values()) - set(client.run(os.getpid).values()))
        print(
            f"{n_bytes / MEGABYTE:.0f} MB of rows, {limit / MEGABYTE:.0f} MB for each of three "
            f"workers: {fitted.n_iter_} rounds, {lost} workers lost"
        )


def write_counts(folder, n_clients, n_counts, shape):
    """Write counts of clients as triplets; return them."""
    generator, tables = np.random.default_rng(0), []
    low_rank = generator.normal(size=(shape[0], 2)) @ generator.normal(size=(2, shape[1]))
    for k in range(n_clients):
        sites, months = (generator.integers(size, size=n_counts // n_clients) for size in shape)
        counts = generator.poisson(np.exp(0.5 * low_rank[sites, months]))
        table = pd.DataFrame({"site": sites, "month": months, "count": counts})
        tables.append(table.to_numpy())
        table.to_parquet(folder / f"{k:03d}.parquet")
    return tables


def imputer(folder):
    """Fits of an imputer here and on clusters."""
    shape = 2000, 200
    tables = write_counts(folder, 24, 480_000, shape)

    def fitted(X, name, steps=lambda k: 0.3):
        starts = []

        def timed(k):
            starts.append(time.perf_counter())
            return steps(k)

        given = {"max_iter": 15, "tol": 0, "random_state": 0, "penalty": 30.0, **SETTINGS[name]}
        model = FederatedMatrixImputer(2, family="poisson", step_size=timed, **given)
        return model.fit(X, shape=shape), np.median(np.diff(starts))

    wanted = {name: fitted(tables, name) for name in SETTINGS}
    for n_workers in (1, 2, 3):
        with cluster_of(n_workers) as client:
            federation = read_clients(client, f"{folder}/*.parquet")
            for name, (want, here) in wanted.items():
                got, seconds = fitted(federation, name)
                print(
                    f"{n_workers} workers, {name}: {same(got, want, NAMES_OF_IMPUTER)}, "
                    f"{1e3 * seconds:.0f} ms a round, in process {1e3 * here:.0f}",
                    flush=True,
                )
    with cluster_of(3) as client:
        federation = read_clients(client, f"{folder}/*.parquet")
        for name, (want, _) in wanted.items():
            got, _ = fitted(federation, name, killing(client))
            print(
                f"3 workers, of which two are killed, {name}: {same(got, want, NAMES_OF_IMPUTER)}"
            )


def main():
    """Run the parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--parts",
        nargs="+",
        default=["bits", "rounds", "overhead", "start", "memory", "imputer"],
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    for part in arguments.parts:
        print(f"== {part}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            more = [arguments.rows] if part == "rounds" else []
            globals()[part](Path(folder), *more)


if __name__ == "__main__":
    main()
