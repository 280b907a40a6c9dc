"""Does the automatic step size work? Runs a grid of settings and prints a table.

Every run has the same start as pooled EM. The gap is the log-likelihood of pooled EM minus that of
the run, in nats per row. The claim is that there is no NaN, and that the gap is at most 0.01 for
VR-FedEM and at most 0.05 for FedEM.

Simulated clients are homogeneous or have rows from one component only. "digits" are scikit-learn's
handwritten digits on 30 or 100 label-skewed clients, with 10 components in 10 features. "many" are
simulated data with 10 components in 20 features, which are 2,310 statistics with full covariances.

    python examples/benchmarks/step_size_grid.py            # digits, centre, corners (half an hour)
    python examples/benchmarks/step_size_grid.py --full     # every combination (hours)
    python examples/benchmarks/step_size_grid.py --quick    # the centre alone (minutes)
"""

import argparse
import csv
import itertools
import sys
import time
import warnings
from functools import cache

import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from threadpoolctl import threadpool_limits

from skfedem import FederatedGaussianMixture
from skfedem.compression import Dithering, RandK
from skfedem.datasets import client_labels

COVARIANCE_TYPES = ("full", "tied", "diag", "spherical")
SPLITS = ("homogeneous", "one_component")
SOLVERS = ("fedem", "vr_fedem")
OPERATORS = {"dithering": Dithering, "rand_k": RandK}
N_ROWS, N_COMPONENTS, N_FEATURES = 50, 3, 3
ALLOWED_GAP = {"fedem": 0.05, "vr_fedem": 0.01}
# Number of EM iterations that the steps of a run add up to: fewer for FedEM with minibatches, whose
# steps are small.
TRAVEL, NOISY_TRAVEL, FEWEST_ROUNDS, MOST_ROUNDS = 150, 50, 300, 400_000


@cache
def make_clients(n_clients, split, seed=0):
    """Rows, client labels, and a start for the means."""
    if split == "digits":
        images, digits = load_digits(return_X_y=True)
        X = PCA(n_components=10, random_state=0).fit_transform(images)
        clients = client_labels(X, n_clients, scheme="label", y=digits, random_state=0)
        return X, clients, None
    rng = np.random.default_rng(seed)
    if split == "many":
        # Overlapping components of unlike shapes, on homogeneous clients of 1000 rows.
        shapes = [np.cov(rng.normal(size=(60, 20)).T) * rng.uniform(0.5, 2) for _ in range(10)]
        means = 0.6 * rng.normal(size=(10, 20))
        components = rng.integers(10, size=1000 * n_clients)
        X = means[components]
        for g, shape in enumerate(shapes):
            own = components == g
            X[own] += rng.normal(size=(own.sum(), 20)) @ np.linalg.cholesky(shape).T
        return X, np.repeat(np.arange(n_clients), 1000), None
    # Three components, 3 standard deviations apart, and a start well away from their means.
    means = np.array([[0.0, 0, 0], [3, 0, 0], [0, 3, 1.5]])
    clients = np.repeat(np.arange(n_clients), N_ROWS)
    if split == "homogeneous":
        components = rng.integers(N_COMPONENTS, size=len(clients))
    else:
        components = clients % N_COMPONENTS
    X = means[components] + rng.normal(size=(len(clients), N_FEATURES))
    return X, clients, means + 0.7 * np.array([[1, -1, 0.5], [-1, 0.3, 1], [0.5, 1, -1]])


def start(X, clients, means, covariance_type):
    """The start that pooled EM and the run share."""
    n_components = 10 if means is None else N_COMPONENTS
    first = FederatedGaussianMixture(
        n_components,
        covariance_type=covariance_type,
        means_init=means,
        max_iter=0,
        random_state=0,
    ).fit(X, clients=clients)
    return {
        "n_components": n_components,
        "covariance_type": covariance_type,
        "weights_init": first.weights_,
        "means_init": first.means_,
        "precisions_init": first.precisions_,
    }


def settings(which):
    """Combinations (n, ω, p, b, covariance type, split, solver, operator)."""
    chosen = []
    for covariance_type in COVARIANCE_TYPES:
        for split in SPLITS:
            chosen += [(55, 2.0, 0.5, 5, covariance_type, split, solver) for solver in SOLVERS]
    if which == "quick":
        return chosen
    for covariance_type in COVARIANCE_TYPES:
        for omega, participation, batch_size in ((1.2, 0.5, 20), (1.0, 0.75, None)):
            chosen += [
                (30, omega, participation, batch_size, covariance_type, "digits", solver)
                for solver in SOLVERS
            ]
        chosen.append((30, 3.0, 0.3, 1, covariance_type, "digits", "vr_fedem"))
        chosen += [
            (100, omega, participation, None, covariance_type, "digits", "fedem")
            for omega, participation in ((1.0, 1.0), (2.0, 0.5))
        ]
    for n_clients in (10, 30):
        for batch_size in (50, 10):
            chosen.append((n_clients, 0.0, 1.0, batch_size, "full", "many", "vr_fedem"))
        for batch_size, solver in ((50, "vr_fedem"), (50, "fedem"), (None, "fedem")):
            chosen.append((n_clients, 1.0, 0.5, batch_size, "full", "many", solver))
    chosen.append((5, 4.0, 1.0, 10, "full", "many", "vr_fedem", "rand_k"))
    chosen.append((3, 0.0, 0.1, 20, "full", "many", "vr_fedem"))
    if which == "full":
        levels = ((10, 55, 300), (0.5, 2.0, 8.0), (0.1, 0.5, 1.0), (1, 5, 20, None))
        return chosen + list(itertools.product(*levels, COVARIANCE_TYPES, SPLITS, SOLVERS))
    turn = itertools.cycle(COVARIANCE_TYPES)
    for corner in itertools.product((10, 300), (0.5, 8.0), (1.0, 0.1), (None, 20, 1)):
        for solver in SOLVERS:
            chosen += [(*corner, next(turn), split, solver) for split in SPLITS]
        next(turn)
    # Dithering with its fewest levels stays further below an ω of 8 than this operator does.
    for corner in itertools.product((10, 300), (8.0,), (1.0, 0.1), (None, 20, 1)):
        for solver, split in zip(SOLVERS, SPLITS, strict=True):
            chosen.append((*corner, next(turn), split, solver, "rand_k"))
        next(turn)
    return chosen


def length_of_messages(n_components, n_features, covariance_type):
    """How many statistics clients send, q."""
    squares = {
        "full": n_features * (n_features + 1) // 2,
        "tied": 0,
        "diag": n_features,
        "spherical": 1,
    }
    return n_components * (1 + n_features + squares[covariance_type])


def run(
    n_clients,
    omega,
    participation,
    batch_size,
    covariance_type,
    split,
    solver,
    operator="dithering",
):
    """One run; a row of the table."""
    X, clients, means = make_clients(n_clients, split)
    common = start(X, clients, means, covariance_type)
    pooled = FederatedGaussianMixture(**common, tol=1e-9, max_iter=5000).fit(X).score(X)

    def fit(max_iter):
        federated = FederatedGaussianMixture(
            **common,
            solver=solver,
            compressor=operator,
            omega=omega,
            participation=participation,
            batch_size=batch_size,
            max_iter=max_iter,
            tol=0,
            eval_every=None,
            random_state=0,
        )
        return federated.fit(X, clients=clients)

    # The largest, as the safeguard may cut the first step; automatic steps do not grow.
    step_size = np.nanmax(fit(5).history_["step_size"])
    travel = NOISY_TRAVEL if solver == "fedem" and batch_size is not None else TRAVEL
    rounds = int(min(max(FEWEST_ROUNDS, travel / step_size), MOST_ROUNDS))
    started = time.perf_counter()
    federated = fit(rounds)
    fitted = (federated.weights_, federated.means_, federated.covariances_)
    length = length_of_messages(*federated.means_.shape, covariance_type)
    return {
        "solver": solver,
        "n": n_clients,
        "ω": omega,
        "operator": operator,
        "its ω": f"{OPERATORS[operator](omega=omega).omega_for(length) if omega else 0:.2f}",
        "p": participation,
        "b": batch_size or "all",
        "covariance": covariance_type,
        "split": split,
        "γ at first": f"{step_size:.2g}",
        "rounds": federated.n_iter_,
        "epochs": round(federated.history_["epoch"][-1]),
        "gap": f"{pooled - federated.score(X):.5f}",
        "safeguarded": int((federated.history_["safeguarded"] > 0).sum()),
        "finite": all(np.isfinite(values).all() for values in fitted),
        "seconds": round(time.perf_counter() - started, 1),
    }


def main():
    """Run the grid; the exit status says whether the claim held."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", dest="which", action="store_const", const="full")
    parser.add_argument("--quick", dest="which", action="store_const", const="quick")
    which = parser.parse_args().which or "corners"
    warnings.simplefilter("ignore")
    sys.stdout.reconfigure(encoding="utf-8")  # whatever the console's encoding is
    table, failed = None, 0
    with threadpool_limits(limits=1):
        for setting in settings(which):
            row = run(*setting)
            if table is None:
                table = csv.DictWriter(sys.stdout, row, lineterminator="\n")
                table.writeheader()
            table.writerow(row)
            sys.stdout.flush()
            failed += not row["finite"] or float(row["gap"]) > ALLOWED_GAP[row["solver"]]
    print(f"{failed} of {len(settings(which))} runs failed the claim", file=sys.stderr)
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
