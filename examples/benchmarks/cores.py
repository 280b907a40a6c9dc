"""How much faster are fits with several workers, and what is the overhead when they cannot help?

Fits with n_jobs=None and with each value of ``--n-jobs`` alternate, so that they run under the same
conditions. The script prints ratios of the shortest round, of the median round, and of the least
processor time of the busiest thread in a round. These are meaningful only if no other program uses
the processors. With ``--patience``, each round first waits until the processors are idle; once the
fit has taken this many seconds, rounds no longer wait (Linux only). The fits are compared bit for
bit.

Searches of FederatedMatrixImputerCV, which use processes, come last. Their time is the shorter of
two runs, as the second can use the processes that the first one started.

    python examples/benchmarks/cores.py [--n-jobs 2] [--repeats 5] [--patience 10]
"""

import argparse
import os
import threading
import time
import warnings

import numpy as np

from skfedem import FederatedGaussianMixture, FederatedMatrixImputerCV
from skfedem.datasets import make_site_counts


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
    """Total idle time of all processors since the machine was started."""
    with open("/proc/stat", encoding="utf-8") as file:
        return int(file.readline().split()[4]) / os.sysconf("SC_CLK_TCK")


def wait_until_idle(until):
    """Wait until no other program uses the processors, or until a given time."""
    while time.perf_counter() < until:
        before = idle_seconds()
        time.sleep(0.1)
        if idle_seconds() - before > 0.09 * os.cpu_count():
            return


def clocks():
    """Time now, and processor time of each thread."""
    return time.perf_counter(), {
        thread.ident: time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
        for thread in threading.enumerate()
    }


def timed(X, clients, n_jobs, parameters, patience):
    """Seconds of each round, processor time of its busiest thread, and the fit."""
    started, over, until = [], [], time.perf_counter() + patience

    def step_size(round_number):  # asked for once a round
        over.append(clocks())
        wait_until_idle(until)
        started.append(clocks())
        return 1.0 if "batch_size" not in parameters else 0.01

    mixture = FederatedGaussianMixture(**parameters, step_size=step_size, n_jobs=n_jobs)
    mixture.fit(X, clients=clients)
    # The first round is left out: in it, the fit measures how long a round takes.
    rounds = list(zip(started[1:-1], over[2:], strict=True))
    seconds = [stop - start for (start, _), (stop, _) in rounds]
    busiest = [
        max(after[thread] - before.get(thread, 0.0) for thread in after)
        for (_, before), (_, after) in rounds
    ]
    return seconds, busiest, mixture


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


def print_searches(all_n_jobs):
    """Print the time of searches for the penalties of an imputer."""
    print("\na search, 4 clients, Poisson, s         n_jobs     None  n_jobs      ratio  same bits")
    for n_sites, n_months, ranks in ((40, 24, (None,)), (200, 60, (None,)), (400, 120, (3, 8))):
        counts = make_site_counts(n_sites, n_months, 4, observed=0.3, random_state=0)
        seconds, scores = {n_jobs: [] for n_jobs in (None, *all_n_jobs)}, []
        for n_jobs in (*seconds, *seconds):
            search = FederatedMatrixImputerCV(
                ranks,
                effects_penalties=(0.1, 1.0),
                family="poisson",
                random_state=0,
                n_jobs=n_jobs,
            )
            started = time.perf_counter()
            search.fit(counts.clients, shape=(n_sites, n_months))
            seconds[n_jobs].append(time.perf_counter() - started)
            scores.append(search.cv_results_["mean_test_score"])
        same = all(np.array_equal(scores[0], other) for other in scores)
        name = f"{n_sites} x {n_months}, ranks={ranks}"
        for n_jobs in all_n_jobs:
            one, several = min(seconds[None]), min(seconds[n_jobs])
            print(
                f"{name:38s} {n_jobs:7d} {one:8.2f} {several:7.2f} {one / several:9.2f}x  "
                f"{'yes' if same else 'NO'}",
                flush=True,
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n-jobs", type=int, nargs="+", default=[2])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--patience", type=float, default=0)
    options = parser.parse_args()
    if not hasattr(time, "pthread_getcpuclockid"):
        parser.error("the clocks of threads are read, which needs Linux")
    warnings.simplefilter("ignore")
    print(f"{os.cpu_count()} processors")
    print(f"{'':38s}         shortest round, ms  ratio of   ratio of  busiest thread  same")
    print(f"{'a round of':38s}  n_jobs     None  n_jobs  shortest    medians           ratio  bits")
    for name, (X, clients), parameters in cases():
        seconds = {n_jobs: [] for n_jobs in (None, *options.n_jobs)}
        busiest, means = {n_jobs: [] for n_jobs in seconds}, []
        for _ in range(options.repeats):
            for n_jobs in seconds:
                rounds, threads, fit = timed(X, clients, n_jobs, parameters, options.patience)
                seconds[n_jobs].extend(rounds)
                busiest[n_jobs].extend(threads)
                means.append(fit.means_)
        same = all(np.array_equal(means[0], other) for other in means)
        for n_jobs in options.n_jobs:
            shortest, threads = (
                [min(each[n]) for n in (None, n_jobs)] for each in (seconds, busiest)
            )
            print(
                f"{name:38s} {n_jobs:7d} {1e3 * shortest[0]:8.2f} {1e3 * shortest[1]:7.2f} "
                f"{shortest[0] / shortest[1]:8.2f}x "
                f"{np.median(seconds[None]) / np.median(seconds[n_jobs]):9.2f}x "
                f"{threads[0] / threads[1]:14.2f}x  {'yes' if same else 'NO'}",
                flush=True,
            )
    print_searches(options.n_jobs)


if __name__ == "__main__":
    main()
