"""How long does a round of FederatedMatrixImputer take, and how much memory does a fit need?

Times are processor times on one thread. Each measurement runs in its own process. Peak memory is
what the process needs beyond the interpreter and its imports; it includes the simulated data.

paper      the size of the paper's eBird data, 9,721 sites by 525 months with 12,185 observations,
           compared with the paper's own algorithm on dense matrices (alternating in one process)
scale      a million sites by 240 months, 100 clients, up to ten million observations
observers  rounds on small matrices with more and more observers, each of them a client
mostly     a large Gaussian matrix of which three quarters are observed, rank 3, without effects,
           compared with plain soft-impute (Mazumder, Hastie and Tibshirani 2010) to the same
           objective
rounds     number of rounds until the relative error of the objective is 1e-6, on real counts
           (oystercatcher_138x240.csv in DATA; skipped if there is no such file)

    python examples/benchmarks/imputation_speed.py [paper] [scale] [observers] [mostly]
        [rounds] [--data DATA]
"""

import argparse
import multiprocessing
import os
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from dense_fedmissem import dense_client, dense_round, threshold_singular_values
from threadpoolctl import threadpool_limits

from skfedem import FederatedMatrixImputer
from skfedem.datasets import make_site_counts

DATA = Path(os.environ.get("SKFEDEM_DATA", Path(__file__).parents[3] / "shared" / "data"))
SECTIONS = ("paper", "scale", "observers", "mostly", "rounds")
PAPER = {"n_sites": 9_721, "n_months": 525, "n_clients": 10, "observed": 12_185}
GAUSSIAN = {"family": "gaussian", "effects": "none", "penalty": 1.0}
POISSON = {"family": "poisson", "effects": "both", "penalty": 10.0}
MILLION = 1_000_000
# Sites, observations, rank.
SIZES = [
    (MILLION, 100_000, 5),
    (MILLION, MILLION, 5),
    (MILLION, 10 * MILLION, 5),
    (MILLION // 4, MILLION, 5),
    (MILLION // 2, MILLION, 5),
    (MILLION, MILLION, 10),
    (MILLION, MILLION, 20),
]
# Sites, months, observers, observations.
OBSERVERS = [
    (40, 24, 4, 800),
    (138, 240, 10, 13_000),
    (138, 240, 100, 13_000),
    (400, 240, 1000, 40_000),
    (2000, 240, 2500, 75_000),
]
# Rows and columns, share of observed cells.
MOSTLY = [(60_000, 60, 0.75), (100_000, 60, 0.75)]
MOSTLY_PENALTY = 300.0
ACCURACY = 1e-6


def apart(function, *arguments):
    """Call a function in a new process, whose memory nothing else has used."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(limited, function, *arguments).result()


def limited(function, *arguments):
    """Call a function on one thread, without warnings that few rounds do not converge."""
    warnings.simplefilter("ignore")
    with threadpool_limits(limits=1):
        return function(*arguments)


def peak_megabytes():
    """Most memory that this process has ever held; NaN on Windows, which does not tell."""
    try:
        import resource
    except ImportError:
        return np.nan
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def seconds(function):
    """Processor time of a call, which depends least on what else the machine does."""
    started = time.process_time()
    function()
    return time.process_time() - started


def fit(data, settings, max_iter, tol=0.0):
    """Fit to simulated triplets; exact rounds."""
    imputer = FederatedMatrixImputer(**settings, max_iter=max_iter, tol=tol)
    return imputer.fit(data.clients, shape=data.shape)


def round_seconds(data, settings, few, many):
    """Time of one round, from the difference between a fit with many rounds and one with few."""
    times = [seconds(lambda rounds=rounds: fit(data, settings, rounds)) for rounds in (few, many)]
    return (times[1] - times[0]) / (many - few)


# -------------------------------------------------------------------- paper


def paper_rounds(repeats):
    """Fastest of several times of a round, in seconds, by name."""
    data = make_site_counts(**PAPER, random_state=0)
    clients = [
        dense_client(*cells.T.astype(int), len(np.unique(who)), data.shape[1])
        for cells, who in zip(data.clients, data.observers, strict=True)
    ]
    n_observers = np.array([client.n_observers for client in clients])
    weights = n_observers / n_observers.sum()
    penalty = GAUSSIAN["penalty"] / n_observers.sum()
    statistics = theta = np.zeros(data.shape)
    names = ("dense", "singular value decomposition", "gaussian", "poisson")
    times = {name: [] for name in names}
    for _ in range(repeats):
        started = time.process_time()
        statistics, theta = dense_round(clients, weights, statistics, theta, 2, penalty)
        times["dense"].append(time.process_time() - started)
        times["singular value decomposition"].append(
            seconds(lambda matrix=statistics: threshold_singular_values(matrix, penalty, 2))
        )
        times["gaussian"].append(round_seconds(data, {"rank": 2, **GAUSSIAN}, 2, 42))
        times["poisson"].append(round_seconds(data, {"rank": 2, **POISSON}, 2, 42))
    return {name: min(values) for name, values in times.items()}


def paper_fit(settings):
    """Seconds, rounds and peak megabytes of a whole fit."""
    before = peak_megabytes()
    data = make_site_counts(**PAPER, random_state=0)
    started = time.process_time()
    imputer = fit(data, settings, max_iter=10_000, tol=1e-4)
    return time.process_time() - started, imputer.n_iter_, peak_megabytes() - before


def print_paper(options):
    """Rounds beside the dense algorithm's, then whole fits."""
    times = apart(paper_rounds, options.repeats)
    print(f"9,721 x 525, 10 clients, 12,185 observations, rank 2; fastest of {options.repeats}")
    print(f"{'one exact round':44s}{'ms':>9s}{'of a dense round':>19s}")
    labels = {
        "dense": "dense Algorithm 7, gaussian",
        "singular value decomposition": "  of which the singular value decomposition",
        "gaussian": "skfedem, gaussian, no effects",
        "poisson": "skfedem, poisson, both effects",
    }
    for name, label in labels.items():
        share = times["dense"] / times[name]
        print(f"{label:44s}{1e3 * times[name]:9.1f}{f'1/{share:.1f}':>19s}")
    print()
    print(f"{'whole fit, to 1e-4':44s}{'s':>9s}{'rounds':>10s}{'peak MB':>9s}")
    for name, settings in (("gaussian", GAUSSIAN), ("poisson", POISSON)):
        taken, rounds, megabytes = apart(paper_fit, {"rank": 2, **settings})
        print(f"{labels[name]:44s}{taken:9.2f}{rounds:10d}{megabytes:9.0f}")
    print()


# -------------------------------------------------------------------- scale


def scale_fit(n_sites, n_observations, rank, n_rounds):
    """Observed cells; seconds of start and first round, and of a later round; peak megabytes."""
    before = peak_megabytes()
    data = make_site_counts(n_sites, 240, 100, observed=n_observations, random_state=0)
    settings = {"rank": rank, **POISSON}
    first = seconds(lambda: fit(data, settings, 1))
    started = time.process_time()
    fit(data, settings, 1 + n_rounds)
    later = (time.process_time() - started - first) / n_rounds
    codes = [
        cells[:, 0].astype(np.int64) * 240 + cells[:, 1].astype(np.int64) for cells in data.clients
    ]
    return len(np.unique(np.concatenate(codes))), first, later, peak_megabytes() - before


def print_scale(options):
    """Growth with cells, with sites and with the rank."""
    print("240 months, 100 clients, poisson, both effects")
    print(
        f"{'sites':>10s}{'observations':>14s}{'cells':>12s}{'rank':>6s}"
        f"{'start s':>9s}{'round s':>9s}{'peak MB':>9s}"
    )
    for n_sites, n_observations, rank in SIZES:
        if n_observations > options.most_observations:
            continue
        n_cells, first, later, megabytes = apart(
            scale_fit, n_sites, n_observations, rank, options.rounds
        )
        print(
            f"{n_sites:10,d}{n_observations:14,d}{n_cells:12,d}{rank:6d}"
            f"{first:9.1f}{later:9.2f}{megabytes:9.0f}",
            flush=True,
        )
    print()


# -------------------------------------------------------------------- observers


def observers_round(n_sites, n_months, n_observers, n_observations, repeats):
    """Seconds of a round without compression and at ω = 1, the fastest of several times."""
    data = make_site_counts(n_sites, n_months, n_observers, observed=n_observations, random_state=0)
    settings = {"rank": 2, **POISSON, "eval_every": None, "random_state": 0}
    return [
        min(round_seconds(data, {**settings, "omega": omega}, 2, 22) for _ in range(repeats))
        for omega in (0.0, 1.0)
    ]


def print_observers(options):
    """Small matrices, and many observers with different numbers of cells."""
    print(f"poisson, both effects, rank 2; a round in ms, fastest of {options.repeats}")
    print(f"{'sites':>6s}{'months':>8s}{'observers':>11s}{'cells':>8s}{'exact':>9s}{'omega 1':>9s}")
    for sizes in OBSERVERS:
        exact, compressed = apart(observers_round, *sizes, options.repeats)
        n_sites, n_months, n_observers, n_observations = sizes
        print(
            f"{n_sites:6d}{n_months:8d}{n_observers:11d}{n_observations:8,d}"
            f"{1e3 * exact:9.1f}{1e3 * compressed:9.1f}",
            flush=True,
        )
    print()


# -------------------------------------------------------------------- mostly


def mostly_observed(n_rows, n_columns, observed):
    """Rank 3 plus noise, with missing cells; in blocks, so that it needs no further memory."""
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(n_rows, 3)) @ rng.normal(size=(3, n_columns))
    for block in np.array_split(matrix, 20):
        block += rng.normal(size=block.shape)
        block[rng.random(block.shape) > observed] = np.nan
    return matrix


def soft_impute(matrix, rank, penalty, tol):
    """Objective without constants and number of iterations of plain soft-impute."""
    missing = np.isnan(matrix)
    filled, before, n_iter = np.where(missing, 0.0, matrix), np.inf, 0
    while True:
        n_iter += 1
        squares, right = np.linalg.eigh(filled.T @ filled)
        values, right = np.sqrt(squares[-rank:]), right[:, -rank:]
        shrunk = np.maximum(values - penalty, 0)
        fitted = (filled @ right * (shrunk / values)) @ right.T
        residuals = np.where(missing, 0.0, matrix - fitted)
        objective = 0.5 * np.vdot(residuals, residuals) + penalty * shrunk.sum()
        if before - objective <= tol * objective:
            return objective, n_iter
        before = objective
        np.copyto(filled, fitted, where=missing)


def mostly_fit(which, sizes):
    """Objective, seconds, iterations, and peak megabytes beside the data."""
    matrix = mostly_observed(*sizes)
    before, started = peak_megabytes(), time.process_time()
    if which == "soft-impute":
        objective, n_iter = soft_impute(matrix, 3, MOSTLY_PENALTY, ACCURACY)
    else:
        imputer = FederatedMatrixImputer(3, effects="none", penalty=MOSTLY_PENALTY, tol=ACCURACY)
        imputer.fit(matrix)
        n_cells = np.count_nonzero(~np.isnan(matrix))
        objective, n_iter = imputer.objective_ - 0.5 * np.log(2 * np.pi) * n_cells, imputer.n_iter_
    return objective, time.process_time() - started, n_iter, peak_megabytes() - before


def print_mostly(options):
    """Time and memory beside plain soft-impute's."""
    print("gaussian, no effects, rank 3, one client, to 1e-6")
    print(f"{'':24s}{'':14s}{'objective':>12s}{'s':>8s}{'rounds':>8s}{'peak MB':>9s}")
    for sizes in MOSTLY:
        for which in ("soft-impute", "skfedem"):
            objective, taken, rounds, megabytes = apart(mostly_fit, which, sizes)
            label = f"{sizes[0]:,d} x {sizes[1]}, {sizes[2]:.0%}"
            print(
                f"{label:24s}{which:14s}{objective:12.1f}{taken:8.2f}{rounds:8d}{megabytes:9.0f}",
                flush=True,
            )
    print()


# -------------------------------------------------------------------- rounds


def rounds_to_accuracy(counts, family, penalty):
    """Rounds until the relative error of the objective is 1e-6, and the rank of the fit."""
    values = np.log1p(counts) if family == "gaussian" else counts
    histories = {}
    for step_size in ("auto", 1.0):
        imputer = FederatedMatrixImputer(
            # No bound that binds: the problem is convex, and there is one optimum.
            rank=60,
            family=family,
            penalty=penalty,
            step_size=step_size,
            max_iter=5000,
            tol=1e-11,
        )
        histories[step_size] = imputer.fit(values).history_
        rank = len(imputer.singular_values_)
    best = min(np.nanmin(history["objective"]) for history in histories.values())
    needed = [
        int(np.argmax(history["objective"] - best <= ACCURACY * abs(best)))
        for history in histories.values()
    ]
    return (*needed, rank)


def print_rounds(options):
    """Momentum and a natural step that follows the curvature, against the safe step."""
    path = options.data / "oystercatcher_138x240.csv"
    if not path.exists():
        print(f"no {path}: skipping the section on rounds")
        return
    counts = np.loadtxt(path, delimiter=",")
    print("oystercatcher, 138 x 240, 13,240 observed cells: rounds to 1e-6 of the objective")
    print(f"{'family':18s}{'penalty':>9s}{'rank':>6s}{'step auto':>11s}{'step 1.0':>10s}")
    for family, penalties in (("gaussian", (30, 20, 10)), ("poisson", (20_000, 8_000))):
        for penalty in penalties:
            automatic, safe, rank = limited(rounds_to_accuracy, counts, family, penalty)
            name = "gaussian on log1p" if family == "gaussian" else family
            print(f"{name:18s}{penalty:9,d}{rank:6d}{automatic:11d}{safe:10d}", flush=True)


def main():
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sections", nargs="*", help=f"of {', '.join(SECTIONS)}; all by default")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--repeats", type=int, default=5, help="of the paper's size")
    parser.add_argument("--rounds", type=int, default=10, help="averaged over, in the scale table")
    parser.add_argument("--most-observations", type=int, default=10 * MILLION)
    options = parser.parse_args()
    unknown = set(options.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"unknown section {', '.join(sorted(unknown))}: choose from {SECTIONS}")
    printers = {
        "paper": print_paper,
        "scale": print_scale,
        "observers": print_observers,
        "mostly": print_mostly,
        "rounds": print_rounds,
    }
    for section in options.sections or SECTIONS:
        printers[section](options)


if __name__ == "__main__":
    main()
