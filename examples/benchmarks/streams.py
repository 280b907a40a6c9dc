"""One pass over a stream: how far below EM's optimum on the same rows it ends, in nats.

    python examples/benchmarks/streams.py

Four clusters in five dimensions; 20,000 rows in random order, the first 500 in the first call. With
unlike clients, each has a cluster of its own. EM goes on from where the stream ended.
"""

import warnings
from itertools import pairwise, product

import numpy as np
from sklearn.mixture import GaussianMixture

from skfedem import FederatedGaussianMixture

N_ROWS, N_FIRST, N_COMPONENTS = 20_000, 500, 4
CLIENTS = {"1 client": (1, False), "10 unlike": (10, True), "200 alike": (200, False)}
SETTINGS = {
    "plain": {},
    "omega=0.3": {"omega": 0.3},
    "omega=1": {"omega": 1.0},
    "omega=1, p=0.5": {"omega": 1.0, "participation": 0.5},
}


def make_rows(separation=2.5, n_features=5, seed=0):
    """Rows of clusters with unlike covariances, and the cluster of each."""
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(N_COMPONENTS, n_features)) * separation
    mixing = rng.normal(size=(N_COMPONENTS, n_features, n_features)) * 0.4 + np.eye(n_features)
    labels = rng.integers(N_COMPONENTS, size=N_ROWS)
    noise = rng.normal(size=(N_ROWS, n_features))
    return means[labels] + np.einsum("nij,nj->ni", mixing[labels], noise), labels


def owners_of(labels, n_clients, unlike):
    """Who has each row."""
    rng = np.random.default_rng(1)
    if not unlike:
        return rng.integers(n_clients, size=len(labels))
    return (labels + N_COMPONENTS * rng.integers(n_clients, size=len(labels))) % n_clients


def after_one_pass(rows, owners, batch, **parameters):
    """Mixture after one pass in batches of so many rows."""
    gm = FederatedGaussianMixture(N_COMPONENTS, random_state=0, **parameters)
    edges = [0, *range(max(N_FIRST, batch), len(rows), batch), len(rows)]
    for first, last in pairwise(edges):
        gm.partial_fit(rows[first:last], clients=owners[first:last])
    return gm


def main():
    """Print the table."""
    warnings.simplefilter("ignore")
    rows, labels = make_rows()
    sizes = (50, 100, 200, 500, 1000, 2500)
    print(f"{'covariance':11}{'clients':11}{'setting':16}", *(f"{size:>8}" for size in sizes))
    for kind, who, setting in product(("full", "tied"), CLIENTS, SETTINGS):
        owners = owners_of(labels, *CLIENTS[who])
        lacking = []
        for batch in sizes:
            gm = after_one_pass(rows, owners, batch, covariance_type=kind, **SETTINGS[setting])
            em = GaussianMixture(
                N_COMPONENTS,
                covariance_type=kind,
                weights_init=gm.weights_,
                means_init=gm.means_,
                precisions_init=gm.precisions_,
                tol=1e-6,
                max_iter=500,
            ).fit(rows)
            lacking.append(em.score(rows) - gm.score(rows))
        print(f"{kind:11}{who:11}{setting:16}", *(f"{value:8.3f}" for value in lacking), flush=True)


if __name__ == "__main__":
    main()
