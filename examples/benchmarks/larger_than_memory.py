"""Can a mixture be fitted to files that are larger than the memory of the process?

The script writes a table to a folder, as a single file and as one file per client. It then fits the
memory-mapped table in processes with limited private memory (RLIMIT_DATA, which counts allocations
but not mapped files). The first process checks the limit: it tries to read the table into memory,
which has to fail. The files are deleted at the end.

    python examples/benchmarks/larger_than_memory.py [--gigabytes 2] [--limit-megabytes 512]
"""

import argparse
import multiprocessing
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

import numpy as np

N_FEATURES, N_COMPONENTS, N_CLIENTS = 20, 10, 200
MEGABYTE = 2**20
ROUNDS = {"exact": 3, "minibatches": 500}


def write(folder, n_rows):
    """One file a client, one file with all rows, and one with the label of each row."""
    generator = np.random.default_rng(0)
    means = 3 * generator.normal(size=(N_COMPONENTS, N_FEATURES))
    each = n_rows // N_CLIENTS
    shape = (N_CLIENTS * each, N_FEATURES)
    whole = np.lib.format.open_memmap(folder / "rows.npy", mode="w+", shape=shape)
    for k in range(N_CLIENTS):
        rows = generator.normal(size=(each, N_FEATURES))
        rows += means[generator.integers(N_COMPONENTS, size=each)]
        whole[k * each : (k + 1) * each] = rows
        np.save(folder / f"client_{k:03d}.npy", rows)
    np.save(folder / "labels.npy", np.repeat(np.arange(N_CLIENTS), each))
    return whole.nbytes


def private_memory():
    """Memory that this process holds for itself, in bytes: no pages of files."""
    with open("/proc/self/status", encoding="utf-8") as file:
        (line,) = (line for line in file if line.startswith("RssAnon"))
    return 1024 * int(line.split()[1])


class Peak(threading.Thread):
    """Largest private memory while the block runs, looked at every 5 ms."""

    def __enter__(self):
        self.largest, self.over = 0, threading.Event()
        self.start()
        return self

    def run(self):
        while not self.over.wait(0.005):
            self.largest = max(self.largest, private_memory())

    def __exit__(self, *exception):
        self.over.set()
        self.join()


def limited(limit):
    """Let this process allocate no more than so many bytes."""
    import resource

    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def refused(folder, limit):
    """Whether the table is too large to be read into memory."""
    limited(limit)
    try:
        np.load(folder / "rows.npy")
    except MemoryError:
        return True
    return False


def fitted(folder, limit, given, rounds):
    """Private memory before and during a fit, in bytes; set-up and a round in seconds."""
    from skfedem import FederatedGaussianMixture

    warnings.simplefilter("ignore")
    limited(limit)
    if given == "list":
        files = sorted(folder.glob("client_*.npy"))
        X, clients = [np.load(file, mmap_mode="r") for file in files], None
    else:
        X, clients = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("rows", "labels"))
    started = []

    def step_size(round_number):  # asked for once a round
        started.append(time.perf_counter())
        return 1.0 if rounds == "exact" else 0.05

    mixture = FederatedGaussianMixture(
        N_COMPONENTS,
        covariance_type="tied",
        batch_size=None if rounds == "exact" else 20,
        step_size=step_size,
        eval_every=None,
        tol=0,
        max_iter=ROUNDS[rounds],
        random_state=0,
    )
    before, start = private_memory(), time.perf_counter()
    with Peak() as peak:
        mixture.fit(X, clients=clients)
    return before, peak.largest, started[0] - start, float(np.median(np.diff(started)))


def in_a_process(function, *arguments):
    """Call a function in a process that begins without this one's memory."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--limit-megabytes", type=int, default=512)
    parser.add_argument("--folder", help="where to write; needs twice the gigabytes for a while")
    options = parser.parse_args()
    if sys.platform != "linux":
        parser.error("memory is limited, and read from /proc, which needs Linux")
    limit = options.limit_megabytes * MEGABYTE
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        size = write(folder, int(options.gigabytes * 2**30) // (8 * N_FEATURES))
        print(
            f"table {size / MEGABYTE:.0f} MB, {N_CLIENTS} clients; limit on private memory "
            f"{limit / MEGABYTE:.0f} MB"
        )
        print(f"reading it into memory is refused: {in_a_process(refused, folder, limit)}")
        print("given as   rounds       before     peak   set-up    a round")
        for given in ("list", "labels"):
            for rounds in ROUNDS:
                before, peak, set_up, one_round = in_a_process(fitted, folder, limit, given, rounds)
                print(
                    f"{given:10s} {rounds:11s} {before / MEGABYTE:4.0f} MB  {peak / MEGABYTE:4.0f} "
                    f"MB  {set_up:5.1f} s  {1e3 * one_round:6.1f} ms",
                    flush=True,
                )


if __name__ == "__main__":
    main()
