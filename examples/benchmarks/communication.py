"""How many bytes does it take to come within 0.01 nats of pooled EM's optimum?

Costs are relative to uncompressed federated EM: exact rounds in which all clients send their
statistics as float64. All runs of a start begin with the same parameters. A run is said to arrive
in the first round from which its log-likelihood is never more than 0.01 nats per row below the
optimum that the exact rounds reach. The bytes are all those that the clients have sent by then,
including what they send before the first round. The bytes in both directions are printed as well,
because broadcasts are not compressed.

A start either has random rows as means, equal weights and the covariance of all rows, as in the
paper, or comes from one-shot federated k-means, the estimator's default, which is close to the
optimum.

- MNIST's 70,000 images reduced to 20 features, on 100 clients with 700 rows each, if the four idx
  files are in DATA/mnist.
- scikit-learn's digits reduced to 10 features, on 30 clients with a few kinds of digit each.

    python examples/benchmarks/communication.py [--data DATA] [--starts 3]
"""

import argparse
import itertools
import warnings

import numpy as np
from mixture_speed import DATA, mnist
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from skfedem import FederatedGaussianMixture
from skfedem.datasets import client_labels

N_COMPONENTS, WITHIN = 10, 0.01
OPERATORS = ("dithering", "block", "rand_k")
OMEGAS = (1.0, 2.0, 4.0, 8.0)
STEP_SIZES = (1.0, 0.5, "auto")
# A run may take this many times the rounds of uncompressed EM.
PATIENCE = 4


def tables(folder):
    """Name, rows and client labels of each data set."""
    if (folder / "mnist" / "train-images-idx3-ubyte.gz").exists():
        X = mnist(folder / "mnist")
        yield "MNIST, 100 clients", X, client_labels(X, 100, random_state=0)
    images, digits = load_digits(return_X_y=True)
    X = PCA(n_components=10, random_state=0).fit_transform(images)
    labels = client_labels(X, 30, scheme="label", y=digits, random_state=0)
    yield "digits, 30 clients", X, labels


def start_of(X, labels, how, seed):
    """Parameters that all runs of a start share."""
    start = {"n_components": N_COMPONENTS, "covariance_type": "tied", "random_state": seed}
    if how == "kmeans":
        first = FederatedGaussianMixture(**start, max_iter=0).fit(X, clients=labels)
        weights, means, precisions = first.weights_, first.means_, first.precisions_
    else:
        weights = np.full(N_COMPONENTS, 1 / N_COMPONENTS)
        means = X[np.random.default_rng(seed).choice(len(X), N_COMPONENTS, replace=False)]
        precisions = np.linalg.inv(np.cov(X.T, bias=True))
    start |= {"weights_init": weights, "means_init": means, "precisions_init": precisions}
    return start | {"tol": 0}


def arrival(history, optimum):
    """Round, uplink bytes and bytes both ways on arrival; None if the run does not arrive."""
    log_likelihood = history["log_likelihood"]
    evaluated = np.flatnonzero(np.isfinite(log_likelihood))
    outside = evaluated[log_likelihood[evaluated] < optimum - WITHIN]
    inside = evaluated[evaluated > outside[-1]] if len(outside) else evaluated
    if not len(inside):
        return None
    sent = np.cumsum(history["uplink_bits"]) / 8
    received = np.cumsum(history["downlink_bits"]) / 8
    return inside[0], sent[inside[0]], sent[inside[0]] + received[inside[0]]


def uncompressed(X, labels, start):
    """Optimum of exact rounds, and their arrival."""
    model = FederatedGaussianMixture(**start, max_iter=1000).fit(X, clients=labels)
    optimum = model.history_["log_likelihood"].max()
    return optimum, arrival(model.history_, optimum)


def compressed(X, labels, start, operator, omega, step_size, max_iter):
    """History of a run with all rows and all clients in each round."""
    return (
        FederatedGaussianMixture(
            **start,
            compressor=operator,
            omega=omega,
            step_size=step_size,
            control_init="zeros",
            max_iter=max_iter,
            eval_every=1,
        )
        .fit(X, clients=labels)
        .history_
    )


def measure(X, labels, starts):
    """Rows (setting, arrivals over those of uncompressed EM, gaps at the end) of one data set."""
    references = [uncompressed(X, labels, start) for start in starts]
    for optimum, (rounds, up, both) in references:
        print(
            f"  uncompressed: optimum {optimum:.4f} nats per row, {rounds} rounds, "
            f"{up / 1e6:.3f} MB from the clients, {both / 1e6:.3f} MB both ways"
        )
    for setting in itertools.product(OPERATORS, OMEGAS, STEP_SIZES):
        ratios, gaps = [], []
        for start, (optimum, reference) in zip(starts, references, strict=True):
            history = compressed(X, labels, start, *setting, PATIENCE * int(reference[0]) + 10)
            arrived = arrival(history, optimum)
            gaps.append(optimum - history["log_likelihood"][-1])
            if arrived is not None:
                ratios.append(np.divide(arrived, reference))
        yield setting, np.array(ratios), gaps


def print_table(X, labels, starts):
    """Print what was measured on one data set."""
    rows = measure(X, labels, starts)
    first = next(rows)
    print("  relative to uncompressed EM: median over the starts that arrived (range)")
    print(
        "  operator   omega  gamma  arrived  rounds  bytes from clients     both ways  gaps at end"
    )
    for (operator, omega, step_size), ratios, gaps in itertools.chain([first], rows):
        line = f"  {operator:10} {omega:5}  {step_size:5}  {len(ratios)} of {len(starts)}"
        if len(ratios):
            rounds, up, both = np.median(ratios, axis=0)
            spread = f"({ratios[:, 1].min():.3f}-{ratios[:, 1].max():.3f})"
            line += f"  {rounds:7.1f}  {up:6.3f} {spread:14} {both:6.2f}    "
        print(f"{line:69}" + " ".join(f"{gap:7.4f}" for gap in gaps), flush=True)


def main():
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=type(DATA), default=DATA)
    parser.add_argument("--starts", type=int, default=3)
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    with threadpool_limits(limits=1):
        for how in ("random rows", "kmeans"):
            for name, X, labels in tables(options.data):
                print(f"{name}, tied covariance, start: {how}")
                seeds = range(options.starts)
                print_table(X, labels, [start_of(X, labels, how, seed) for seed in seeds])


if __name__ == "__main__":
    main()
