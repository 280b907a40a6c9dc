"""What do two workers gain, and what do they cost where there is nothing to gain?

Fits with n_jobs=None and n_jobs=2 take turns, so that both see the same machine. Ratios are of the
shortest rounds, which says what the processors can do, and of the median rounds, which others who
use the machine disturb. With ``--patience``, a round begins when the processors are idle, or after
so many seconds (Linux only). The fits are compared bit for bit.

    python examples/benchmarks/cores.py [--repeats 5] [--patience 10]
"""

import argparse
import os
import time
import warnings

import numpy as np

from skfedem import FederatedGaussianMixture


def table(n_samples, n_features, n_clients):
    """Rows of clients with equally many, and their labels."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(n_samples, n_features))
    X += 3.0 * generator.integers(4, size=n_samples)[:, None]
    return X, np.arange(n_samples) * n_clients // n_samples


def start(X, n_components, covariance_type):
    """Parameters of a start that takes no time to find."""
    precision = np.eye(X.shape[1]) / X.var(axis=0)
    shapes = {"tied": precision, "full": np.array([precision] * n_components)}
    return {
        "n_components": n_components,
        "covariance_type": covariance_type,
        "weights_init": np.full(n_components, 1 / n_components),
        "means_init": X[:: len(X) // n_components][:n_components],
        "precisions_init": shapes[covariance_type],
        "eval_every": None,
        "tol": 0,
        "random_state": 0,
    }


def idle_seconds():
    """Time that the processors have spent idle since the machine was started, added up."""
    with open("/proc/stat") as file:
        return int(file.readline().split()[4]) / os.sysconf("SC_CLK_TCK")


def wait_until_idle(patience):
    """Wait until nobody else uses the processors, or for so many seconds."""
    until = time.perf_counter() + patience
    while time.perf_counter() < until:
        before = idle_seconds()
        time.sleep(0.1)
        if idle_seconds() - before > 0.09 * os.cpu_count():
            return


def timed(X, clients, n_jobs, parameters, patience):
    """Seconds of each round, and the fit."""
    begun, over = [], []

    def step_size(round_number):  # asked for once a round
        over.append(time.perf_counter())
        wait_until_idle(patience)
        begun.append(time.perf_counter())
        return 1.0 if "batch_size" not in parameters else 0.01

    mixture = FederatedGaussianMixture(**parameters, step_size=step_size, n_jobs=n_jobs)
    mixture.fit(X, clients=clients)
    # The first round tells what one takes.
    return np.subtract(over[2:], begun[1:-1]).tolist(), mixture


def cases():
    """Name, table, parameters of the fit."""
    heavy = table(10**6, 20, 100)
    yield "10^6 rows, d=20, G=10, tied", heavy, {**start(heavy[0], 10, "tied"), "max_iter": 7}
    few = heavy[0][: 4 * 10**5], heavy[1][: 4 * 10**5]
    yield "4 10^5 rows, d=20, G=10, full", few, {**start(few[0], 10, "full"), "max_iter": 7}
    for n_samples, rounds in ((10**5, 20), (10**4, 60)):
        data = table(n_samples, 10, 100)
        rounds = {"max_iter": rounds}
        yield f"{n_samples:,d} rows, d=10, G=5, tied", data, {**start(data[0], 5, "tied"), **rounds}
    data = table(10**5, 10, 1000)
    minibatch = {"batch_size": 20, "max_iter": 500}
    yield "minibatches, 1000 x 20", data, {**start(data[0], 5, "tied"), **minibatch}
    few = {**minibatch, "participation": 0.1, "omega": 1.0}
    yield "minibatches, 100 x 20, omega=1", data, {**start(data[0], 5, "tied"), **few}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--patience", type=float, default=0)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"{os.cpu_count()} processors")
    print(f"{'the shortest round of':34s} n_jobs=None    n_jobs=2  ratio  medians'  same bits")
    for name, (X, clients), parameters in cases():
        seconds = {None: [], 2: []}
        same = True
        for _ in range(options.repeats):
            fits = []
            for n_jobs, taken in seconds.items():
                rounds, fit = timed(X, clients, n_jobs, parameters, options.patience)
                taken.extend(rounds)
                fits.append(fit.means_)
            same = same and np.array_equal(*fits)
        alone, shared = min(seconds[None]), min(seconds[2])
        medians = np.median(seconds[None]) / np.median(seconds[2])
        print(
            f"{name:34s} {1e3 * alone:8.2f} ms {1e3 * shared:8.2f} ms {alone / shared:5.2f}x "
            f"{medians:8.2f}x  {'yes' if same else 'NO'}",
            flush=True,
        )


if __name__ == "__main__":
    main()
