"""Does the automatic step size hold? Runs a grid of settings and prints a table.

Every run starts where pooled EM starts. The gap is pooled EM's log-likelihood minus the run's, in
nats per row; the claim is no NaN, a gap of at most 0.01 for VR-FedEM and of at most 0.05 for FedEM.

    python examples/benchmarks/step_size_grid.py            # corners and centre (an hour)
    python examples/benchmarks/step_size_grid.py --full     # every combination (hours)
    python examples/benchmarks/step_size_grid.py --quick    # the centre alone (a minute)
"""

import argparse
import csv
import itertools
import sys
import time
import warnings

import numpy as np
from threadpoolctl import threadpool_limits

from skfedem import FederatedGaussianMixture

COVARIANCE_TYPES = ("full", "tied", "diag", "spherical")
SPLITS = ("homogeneous", "one_component")
SOLVERS = ("fedem", "vr_fedem")
N_ROWS, N_COMPONENTS, N_FEATURES = 50, 3, 3
ALLOWED_GAP = {"fedem": 0.05, "vr_fedem": 0.01}
# A run lasts until its steps would add up to this many EM iterations, but for very small steps.
TRAVEL, FEWEST_ROUNDS, MOST_ROUNDS = 50, 300, 400_000


def make_clients(n_clients, split, seed=0):
    """Rows, client labels and true means: three components, 3 standard deviations apart."""
    rng = np.random.default_rng(seed)
    means = np.array([[0.0, 0, 0], [3, 0, 0], [0, 3, 1.5]])
    clients = np.repeat(np.arange(n_clients), N_ROWS)
    if split == "homogeneous":
        components = rng.integers(N_COMPONENTS, size=len(clients))
    else:
        components = clients % N_COMPONENTS
    return means[components] + rng.normal(size=(len(clients), N_FEATURES)), clients, means


def start(covariance_type, means):
    """A start well away from the optimum, the same for all runs."""
    eye = np.eye(N_FEATURES)
    precisions = {
        "full": np.array([eye] * N_COMPONENTS),
        "tied": eye,
        "diag": np.ones((N_COMPONENTS, N_FEATURES)),
        "spherical": np.ones(N_COMPONENTS),
    }
    shift = np.array([[1, -1, 0.5], [-1, 0.3, 1], [0.5, 1, -1]])
    return {
        "covariance_type": covariance_type,
        "weights_init": np.full(N_COMPONENTS, 1 / N_COMPONENTS),
        "means_init": means + 0.7 * shift,
        "precisions_init": precisions[covariance_type],
    }


def settings(which):
    """Combinations (n, ω, p, b, covariance type, split, solver)."""
    corners = itertools.product((10, 300), (0.5, 8.0), (0.1, 1.0), (1, 20, None))
    centre = [(55, 2.0, 0.5, 5)]
    if which == "full":
        corners = itertools.product(
            (10, 55, 300), (0.5, 2.0, 8.0), (0.1, 0.5, 1.0), (1, 5, 20, None)
        )
        return [(*c, *rest) for c in corners
                for rest in itertools.product(COVARIANCE_TYPES, SPLITS, SOLVERS)]  # fmt: skip
    chosen = [(*c, *rest) for c in centre
              for rest in itertools.product(COVARIANCE_TYPES, SPLITS, SOLVERS)]  # fmt: skip
    if which == "corners":
        turn = itertools.cycle(COVARIANCE_TYPES)
        for corner in corners:
            for solver in SOLVERS:
                chosen += [(*corner, next(turn), split, solver) for split in SPLITS]
            next(turn)
    return chosen


def run(n_clients, omega, participation, batch_size, covariance_type, split, solver):
    """One run; a row of the table."""
    X, clients, means = make_clients(n_clients, split)
    common = {"n_components": N_COMPONENTS, **start(covariance_type, means)}
    pooled = FederatedGaussianMixture(**common, tol=1e-9, max_iter=5000).fit(X).score(X)

    def fit(max_iter):
        federated = FederatedGaussianMixture(
            **common,
            solver=solver,
            omega=omega,
            participation=participation,
            batch_size=batch_size,
            max_iter=max_iter,
            tol=0,
            eval_every=None,
            random_state=0,
        )
        return federated.fit(X, clients=clients)

    step_size = fit(1).history_["step_size"][1]
    rounds = int(min(max(FEWEST_ROUNDS, TRAVEL / step_size), MOST_ROUNDS))
    begun = time.perf_counter()
    federated = fit(rounds)
    fitted = (federated.weights_, federated.means_, federated.covariances_)
    return {
        "solver": solver,
        "n": n_clients,
        "omega": omega,
        "p": participation,
        "b": batch_size or "all",
        "covariance": covariance_type,
        "split": split,
        "step_size": f"{step_size:.2g}",
        "rounds": rounds,
        "epochs": round(federated.history_["epoch"][-1]),
        "gap": round(pooled - federated.score(X), 5),
        "safeguarded": int((federated.history_["safeguarded"] > 0).sum()),
        "finite": all(np.isfinite(values).all() for values in fitted),
        "seconds": round(time.perf_counter() - begun, 1),
    }


def main():
    """Run the grid; the exit status says whether the claim held."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", dest="which", action="store_const", const="full")
    parser.add_argument("--quick", dest="which", action="store_const", const="quick")
    which = parser.parse_args().which or "corners"
    warnings.simplefilter("ignore")
    table, failed = None, 0
    with threadpool_limits(limits=1):
        for setting in settings(which):
            row = run(*setting)
            if table is None:
                table = csv.DictWriter(sys.stdout, row, lineterminator="\n")
                table.writeheader()
            table.writerow(row)
            sys.stdout.flush()
            failed += not row["finite"] or row["gap"] > ALLOWED_GAP[row["solver"]]
    print(f"{failed} of {len(settings(which))} runs failed the claim", file=sys.stderr)
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
