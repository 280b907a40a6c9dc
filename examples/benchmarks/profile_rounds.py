"""Where is the time of a round spent, and how much memory does it allocate?

There are three workloads: minibatch rounds of FedEM (100 clients, minibatches of 20 rows,
dithering), exact rounds on a million rows, and the imputer at the size of the paper (9,721 sites,
525 months, 12,185 cells). For each of them, the script prints

- the time of a round;
- the time of a round with the same calls on almost no data, which is the overhead of Python and of
  the calls, once as it is, and once with other data filling the processor's caches before each
  round, as large data would;
- the peak memory allocated during a round;
- the functions that take most of the time, according to a profiler, which overstates the cost of
  calls.

    python examples/benchmarks/profile_rounds.py [--lines 12]
"""

import argparse
import cProfile
import pstats
import time
import tracemalloc
import warnings
from unittest.mock import patch

import numpy as np
from threadpoolctl import threadpool_limits

from skfedem import FederatedGaussianMixture, FederatedMatrixImputer
from skfedem.clients.local import LocalClients
from skfedem.solvers import _loop

# 8 MB: more than the caches that a processor has to itself.
others = np.zeros(2**20)


def rows(n_clients, n_rows, n_features, n_components):
    """Labelled rows of simulated clients, and a start."""
    rng = np.random.default_rng(0)
    means = 2 * rng.normal(size=(n_components, n_features))
    components = rng.integers(n_components, size=n_clients * n_rows)
    X = means[components] + rng.normal(size=(len(components), n_features))
    start = {
        "weights_init": np.full(n_components, 1 / n_components),
        "means_init": X[:n_components],
        "precisions_init": np.eye(n_features),
    }
    return X, np.repeat(np.arange(n_clients), n_rows), start


def mixture(n_clients, n_rows, n_features, n_components, max_iter, **settings):
    """Return a function that runs rounds of a mixture with one shared covariance."""
    X, clients, start = rows(n_clients, n_rows, n_features, n_components)
    gm = FederatedGaussianMixture(
        n_components, covariance_type="tied", tol=0, eval_every=None, random_state=0,
        max_iter=max_iter, **start, **settings,
    )  # fmt: skip
    return lambda: gm.fit(X, clients=clients)


def imputer(n_rows, n_columns, n_cells, n_clients, max_iter):
    """Return a function that runs exact rounds of an imputer of counts."""
    rng = np.random.default_rng(0)
    clients = []
    for _ in range(n_clients):
        cells = rng.choice(n_rows * n_columns, n_cells // n_clients, replace=False)
        counts = rng.poisson(rng.gamma(2, 2, size=len(cells)))
        clients.append(np.column_stack([cells // n_columns, cells % n_columns, counts]))
    model = FederatedMatrixImputer(
        2, family="poisson", penalty=5.0, tol=0, eval_every=None, random_state=0, max_iter=max_iter
    )
    return lambda: model.fit(clients, shape=(n_rows, n_columns))


def load(name, small):
    """Return a function that runs rounds; a small one makes the same calls on almost no data."""
    minibatch = {"batch_size": 1 if small else 20, "omega": 1.0, "step_size": 1e-3}
    return {
        "minibatch rounds": lambda: mixture(*(2, 30, 2, 2) if small else (100, 700, 20, 10), 400,
                                            **minibatch),
        "exact rounds": lambda: mixture(*(2, 5, 2, 2) if small else (100, 10_000, 20, 10), 5),
        "imputer": lambda: imputer(*(8, 6, 30, 2) if small else (9721, 525, 12_180, 10), 20),
    }[name]()  # fmt: skip


def watched(fit, begin, end):
    """Run a fit, calling ``begin`` before each round is opened and ``end`` after its commit."""
    open_round, commit = _loop.open_round, LocalClients.commit

    def opened(*arguments):
        begin()
        return open_round(*arguments)

    def committed(*arguments):
        commit(*arguments)
        end()

    with (
        patch.object(_loop, "open_round", opened),
        patch.object(LocalClients, "commit", committed),
        warnings.catch_warnings(),
        threadpool_limits(limits=1),
    ):
        warnings.simplefilter("ignore")
        fit()


def seconds(fit, *, cold=False):
    """Time of each round but the first; with ``cold``, caches hold other data before each round."""
    starts, times = [], []

    def begin():
        if cold:
            np.add(others, 1.0, out=others)
        starts.append(time.perf_counter())

    watched(fit, begin, lambda: times.append(time.perf_counter() - starts[-1]))
    return np.array(times[1:])


def peak(fit):
    """Peak memory during a round beyond that held before it, in bytes."""
    before, peaks = [], []

    def begin():
        tracemalloc.reset_peak()
        before.append(tracemalloc.get_traced_memory()[0])

    tracemalloc.start()
    watched(fit, begin, lambda: peaks.append(tracemalloc.get_traced_memory()[1] - before[-1]))
    tracemalloc.stop()
    return max(peaks[1:])


def main():
    """Print a profile of each load."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lines", type=int, default=12)
    options = parser.parse_args()
    for name in ("minibatch rounds", "exact rounds", "imputer"):
        fit = load(name, small=False)
        small = load(name, small=True)
        times, overhead, cold = seconds(fit), seconds(small), seconds(small, cold=True)
        profile = cProfile.Profile()
        watched(fit, profile.enable, profile.disable)
        stats = pstats.Stats(profile)
        print(f"\n== {name}")
        print(f"a round: {1e3 * np.median(times):.3f} ms, at best {1e3 * times.min():.3f} ms")
        for what, calls in (("on almost no data", overhead), ("with cold caches", cold)):
            share = 1 - np.median(calls) / np.median(times)
            print(f"{what}: {1e3 * np.median(calls):.3f} ms, {share:.0%} due to the data")
        print(f"peak memory allocated during a round: {peak(fit) / 2**20:.1f} MB")
        print(f"calls: {stats.total_calls / (len(times) + 1):.0f} a round")
        stats.sort_stats("tottime").print_stats(options.lines)


if __name__ == "__main__":
    main()
