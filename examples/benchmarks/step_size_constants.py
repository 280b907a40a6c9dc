"""Are the constants of the automatic step size well chosen? Fits random mixtures with other values.

Each mixture has 3 to 100 clients, homogeneous or with one component each, and two to six components
that overlap or are well separated, and that are round or up to 20 times as long as wide. Covariance
types alternate, and starts are random rows. Two constants are varied: that of the largest steps
that control variates can follow, in fits on all rows, and that of FedEM's steps with minibatches.
The gap is the log-likelihood of pooled EM from the same start minus that of the run after 60
epochs, in nats per row.

    python examples/benchmarks/step_size_constants.py [--mixtures 24]    (ten minutes)
"""

import argparse
import warnings
from unittest.mock import patch

import numpy as np
from threadpoolctl import threadpool_limits

from skfedem import FederatedGaussianMixture
from skfedem.models.mixture import gaussian_mixture
from skfedem.solvers import _step_size

COVARIANCE_TYPES = ("full", "tied", "diag", "spherical")
# Factors by which the constants are multiplied.
FACTORS = {"control variates": (0.5, 1.0, 1.5, 2.0), "minibatches": (0.2, 0.5, 1.0, 2.0)}
# ω, p and b.
SETTINGS = {
    "control variates": ((0.5, 1.0, None), (1.0, 0.5, None), (4.0, 1.0, None), (0.0, 0.1, None)),
    "minibatches": ((0.0, 1.0, 20), (0.0, 0.5, 5), (1.0, 0.5, 20), (4.0, 1.0, 20)),
}
N_ROWS, N_EPOCHS, CLOSE = 3000, 60, 0.01


def mixture(seed):
    """Rows, labels of clients, and a start, for one of the random mixtures."""
    rng = np.random.default_rng(seed)
    n_clients = int(rng.choice([3, 5, 10, 30, 100]))
    n_components, d = int(rng.integers(2, 7)), int(rng.integers(2, 7))
    means = rng.choice([0.7, 1.5, 3.0]) * rng.normal(size=(n_components, d))
    lengths = np.ones((n_components, d))
    lengths[:, 0] = rng.choice([1.0, 5.0, 20.0])
    turns = np.linalg.qr(rng.normal(size=(n_components, d, d)))[0]
    components = rng.choice(n_components, N_ROWS, p=rng.dirichlet(np.full(n_components, 3.0)))
    noise = rng.normal(size=(N_ROWS, d)) * lengths[components]
    X = means[components] + np.einsum("nij,nj->ni", turns[components], noise)
    order = np.argsort(components, kind="stable") if rng.random() < 0.5 else np.arange(N_ROWS)
    clients = np.empty(N_ROWS, dtype=int)
    clients[order] = np.arange(N_ROWS) * n_clients // N_ROWS
    first = FederatedGaussianMixture(
        n_components,
        covariance_type=COVARIANCE_TYPES[seed % 4],
        init_params="random_from_data",
        max_iter=0,
        random_state=seed,
    ).fit(X, clients=clients)
    start = first.get_params() | {
        "weights_init": first.weights_,
        "means_init": first.means_,
        "precisions_init": first.precisions_,
        "tol": 0,
    }
    return X, clients, start


def with_factor(constant, factor):
    """Context in which a constant is multiplied by a factor."""
    if constant == "minibatches":
        bounds = gaussian_mixture._STEP_BOUNDS
        bounds = bounds._replace(noise=factor * bounds.noise)
        return patch.object(gaussian_mixture, "_STEP_BOUNDS", bounds)
    return patch.object(_step_size, "_FOLLOWED", factor * _step_size._FOLLOWED)


def run(X, clients, start, omega, participation, batch_size):
    """Log-likelihood at the end, and whether the safeguard acted."""
    gm = FederatedGaussianMixture(
        **start
        | {
            "omega": omega,
            "participation": participation,
            "batch_size": batch_size,
            "max_iter": None,
            "max_epochs": N_EPOCHS,
            "eval_every": None,
        }
    ).fit(X, clients=clients)
    return gm.score(X), bool(gm.history_["safeguarded"].any())


def main():
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mixtures", type=int, default=24)
    n_mixtures = parser.parse_args().mixtures
    warnings.simplefilter("ignore")
    results = {}
    with threadpool_limits(limits=1):
        for seed in range(n_mixtures):
            X, clients, start = mixture(seed)
            pooled = FederatedGaussianMixture(**start | {"max_iter": 3000, "tol": 1e-9}).fit(X)
            optimum = pooled.score(X)
            for constant, factors in FACTORS.items():
                for setting in SETTINGS[constant]:
                    for factor in factors:
                        with with_factor(constant, factor):
                            score, guarded = run(X, clients, start, *setting)
                        key = constant, setting, factor
                        results.setdefault(key, []).append((optimum - score, guarded))
    print("constant          omega    p     b  factor  mean gap  largest  within 0.01  safeguarded")
    for (constant, (omega, p, b), factor), found in results.items():
        gaps, guarded = np.array(found).T
        print(
            f"{constant:16}  {omega:5}  {p:3}  {b or 'all':>4}  {factor:6}  "
            f"{np.maximum(gaps, 0).mean():8.4f}  {gaps.max():7.3f}  {(gaps < CLOSE).mean():11.0%}  "
            f"{guarded.mean():11.0%}"
        )


if __name__ == "__main__":
    main()
