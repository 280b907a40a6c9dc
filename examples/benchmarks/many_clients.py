"""What does a federation of a million clients cost if a hundred of them take part in a round?

Federations of 10^3 to 10^6 clients are given as one table with labels (10 features, 5 components,
tied covariance). A round has 100 active clients on average, each of which draws a minibatch of 20
rows from its five. Each size runs in its own process. The script prints the set-up time, the time
of a round (the median, and that of the fastest tenth, which depends less on other users of the
machine), and the peak memory beyond the data and the control variates.

    python examples/benchmarks/many_clients.py [--clients 1000 10000 100000 1000000]
"""

import argparse
import mmap
import multiprocessing
import sys
import time
import warnings

import numpy as np

N_FEATURES, N_COMPONENTS, N_ACTIVE, BATCH_SIZE = 10, 5, 100, 20
MEGABYTE = 2**20


def table(n_clients, rows_each, *, shuffled):
    """Rows of all clients, and their labels."""
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(n_clients), rows_each)
    if shuffled:
        generator.shuffle(labels)
    X = generator.normal(size=(len(labels), N_FEATURES))
    X += 3.0 * (np.arange(len(X)) % N_COMPONENTS)[:, None]
    return X, labels


def peak():
    """Largest memory this process has had so far, in bytes."""
    import resource

    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def resident():
    """Memory of this process now, in bytes."""
    with open("/proc/self/statm", encoding="utf-8") as file:
        return int(file.read().split()[1]) * mmap.PAGESIZE


def measured(n_clients, rows_each, shuffled, rounds, repeats):
    """Set-up and two times of a round in seconds, data, controls and peak memory in bytes."""
    from skfedem import FederatedGaussianMixture

    warnings.simplefilter("ignore")

    def fitted(X, labels, rounds, n_clients):
        """Seconds before the first round, of the median round and of the fastest tenth."""
        started, round_starts = time.perf_counter(), []

        def step_size(round_number):  # asked for once a round
            round_starts.append(time.perf_counter())
            return 0.01

        FederatedGaussianMixture(
            N_COMPONENTS,
            covariance_type="tied",
            batch_size=BATCH_SIZE,
            participation=min(1, N_ACTIVE / n_clients),
            step_size=step_size,
            tol=0,
            max_iter=rounds,
            eval_every=None,
            random_state=0,
        ).fit(X, clients=labels)
        return round_starts[0] - started, *np.quantile(np.diff(round_starts), [0.5, 0.1])

    fitted(*table(10, rows_each, shuffled=False), 2, 10)  # what is imported late
    X, labels = table(n_clients, rows_each, shuffled=shuffled)
    before = resident()
    times = [fitted(X, labels, rounds, n_clients) for _ in range(repeats)]
    extra = peak() - before
    controls = 8 * n_clients * N_COMPONENTS * (1 + N_FEATURES)
    return *np.min(times, axis=0).tolist(), X.nbytes + labels.nbytes, controls, extra


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, nargs="*", default=[10**3, 10**4, 10**5, 10**6])
    parser.add_argument("--rows-each", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--shuffled", action="store_true", help="labels in no order")
    options = parser.parse_args()
    if sys.platform != "linux":
        parser.error("memory is read from /proc, which needs Linux")
    print("  clients  set-up   round  (fastest)    data + controls   beyond them")
    for n_clients in options.clients:
        arguments = (
            n_clients, options.rows_each, options.shuffled, options.rounds, options.repeats,
        )  # fmt: skip
        # A process that is spawned begins without this one's memory.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            set_up, median, fastest, data, controls, extra = pool.apply(measured, arguments)
        beyond = extra - controls
        print(
            f"{n_clients:9,d} {set_up:5.2f} s {1e3 * median:5.2f} ms ({1e3 * fastest:5.2f} ms) "
            f"{data / MEGABYTE:6.0f} + {controls / MEGABYTE:4.0f} MB "
            f"{beyond / MEGABYTE:6.0f} MB = {beyond / (data + controls):6.1%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
