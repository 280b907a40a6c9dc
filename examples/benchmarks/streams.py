"""How far below EM's optimum on the same rows does one pass over a stream end, in nats per row?

    python examples/benchmarks/streams.py [--data DATA]

EM starts from the parameters at the end of the stream.

- Four clusters in five dimensions, with 20,000 rows in random order. The first call has 500 rows,
  or as many as a round if that is more. With heterogeneous clients, each client has one cluster.
- The same clusters, with means that move by 3 in every feature, in rounds of 100 rows, with
  automatic and with constant steps. Here the comparison is with the stream in random order, on rows
  like the last ones.
- Noisy copies of scikit-learn's handwritten digits, with four overlapping components and 20 clients
  with 25 rows each in the first call, which is fitted or not, from five seeds.
- MNIST's 70,000 images reduced to 20 features, with ten components, 100 clients and 1,000 to 20,000
  rows in the first call, if the four idx files are in DATA/mnist: the median and range of seven
  starts.
"""

import argparse
import warnings
from itertools import pairwise, product

import numpy as np
from mixture_speed import DATA, mnist
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.mixture import GaussianMixture

from skfedem import FederatedGaussianMixture

N_ROWS, N_FIRST, N_COMPONENTS = 20_000, 500, 4
# On MNIST.
N_STARTS = 7
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


def after_one_pass(
    rows, owners, batch, n_components=N_COMPONENTS, random_state=0, first=N_FIRST, **parameters
):
    """Mixture after one pass in batches of so many rows, of which the first may be larger."""
    gm = FederatedGaussianMixture(n_components, random_state=random_state, **parameters)
    edges = [0, *range(max(first, batch), len(rows), batch), len(rows)]
    for start, stop in pairwise(edges):
        gm.partial_fit(rows[start:stop], clients=owners[start:stop])
    return gm


def lacking(gm, rows):
    """How far a mixture is below the result of EM on these rows from there, in nats per row."""
    em = GaussianMixture(
        gm.n_components,
        covariance_type=gm.covariance_type,
        weights_init=gm.weights_,
        means_init=gm.means_,
        precisions_init=gm.precisions_,
        tol=1e-6,
        max_iter=500,
    ).fit(rows)
    return em.score(rows) - gm.score(rows)


def clusters():
    """Print the table of the four clusters."""
    rows, labels = make_rows()
    sizes = (50, 100, 200, 500, 1000, 2500)
    print(f"{'covariance':11}{'clients':11}{'setting':16}", *(f"{size:>8}" for size in sizes))
    for kind, who, setting in product(("full", "tied"), CLIENTS, SETTINGS):
        owners = owners_of(labels, *CLIENTS[who])
        parameters = {"covariance_type": kind, **SETTINGS[setting]}
        gaps = [lacking(after_one_pass(rows, owners, size, **parameters), rows) for size in sizes]
        print(f"{kind:11}{who:11}{setting:16}", *(f"{gap:8.3f}" for gap in gaps), flush=True)


def changing():
    """Print the gaps of streams whose rows change over time, and of one whose rows do not."""
    rows, _ = make_rows()
    nobody = np.zeros(N_ROWS, dtype=int)
    best = after_one_pass(rows, nobody, 100).score(rows)
    moves = {
        "none": 0.0,
        "even": np.linspace(0, 3, N_ROWS),
        "at half": 3 * np.repeat((0, 1), 10_000),
    }
    for move, step_size in product(moves, ("auto", 0.03, 0.1, 0.3)):
        shifts = np.broadcast_to(moves[move], N_ROWS)
        gm = after_one_pass(rows + shifts[:, None], nobody, 100, step_size=step_size)
        gap = best - gm.score(rows + shifts[-1])
        print(f"move {move}, step_size={step_size}: {gap:.3f}", flush=True)


def digits():
    """Print the gaps on noisy digits, with and without a fit of the first call."""
    rng = np.random.default_rng(0)
    rows = np.tile(PCA(10, random_state=0).fit_transform(load_digits().data), (6, 1))
    rows = rng.permutation(rows) + rng.normal(size=rows.shape)
    owners = rng.integers(20, size=len(rows))
    for max_iter in (100, 0):
        gaps = [
            lacking(
                after_one_pass(
                    rows, owners, 300, covariance_type="tied", max_iter=max_iter, random_state=seed
                ),
                rows,
            )
            for seed in range(5)
        ]
        print(f"digits, tied, max_iter={max_iter}:", *(f"{gap:.3f}" for gap in gaps), flush=True)


def images(folder):
    """Print the gaps on MNIST, in rounds of 1,000 rows after the first, from several starts."""
    rng = np.random.default_rng(0)
    rows = rng.permutation(mnist(folder))
    owners = rng.integers(100, size=len(rows))
    firsts = 1_000, 10_000, 20_000
    for kind, setting, first in product(("full", "tied"), ("plain", "omega=1"), firsts):
        parameters = {"covariance_type": kind, "first": first, **SETTINGS[setting]}
        gaps = [
            lacking(after_one_pass(rows, owners, 1000, 10, random_state=seed, **parameters), rows)
            for seed in range(N_STARTS)
        ]
        low, median, high = np.quantile(gaps, [0, 0.5, 1])
        gap = f"{median:.3f} ({low:.3f}-{high:.3f})"
        print(f"MNIST, {kind}, {setting}, first call of {first}: {gap}", flush=True)


def main():
    """Print the table, and MNIST where it is there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=type(DATA), default=DATA)
    folder = parser.parse_args().data / "mnist"
    warnings.simplefilter("ignore")
    clusters()
    changing()
    digits()
    if (folder / "train-images-idx3-ubyte.gz").exists():
        images(folder)


if __name__ == "__main__":
    main()
