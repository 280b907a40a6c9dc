"""FedAvg and its relatives on MNIST: accuracy, sparsity and bytes of logistic regression.

The data are those of Appendix E of Louizos, Reisser, Soriaga and Welling (2021): 100 clients with
images of one digit each; ten clients take part in each of 400 rounds, with one epoch of minibatches
of 64 and a learning rate of 0.05. Everything else is the estimator's default. With --validation, a
sixth of the training images takes the place of the test images: that is how the defaults were
chosen. Rows of the table, mean and range over seeds:

- FedAvg, SCAFFOLD, FedSparse with a target of 47 % and, with SCAFFOLD, of 35 %; FedAvg with
  compressed updates;
- the median where 20 of 100 clients with images at random send -5 times their update, and the
  mean; all clients take part in 60 rounds;
- an ensemble of two models, and one, where half of 100 clients with images at random have reversed
  the labels.

"personal" is the mean over clients of the accuracy of their own model on test images of their
digit; "ms" is the time of a round on one thread.

    python examples/benchmarks/hard_em.py [--data DATA] [--seeds 3] [--rows NAME ...]
"""

import argparse
import gzip
import os
import time
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from skfedem import FederatedMLPClassifier
from skfedem.priors import LaplacePrior

SETTINGS = {
    "hidden_layer_sizes": (),
    "local_epochs": 1,
    "batch_size": 64,
    "learning_rate_init": 0.05,
    "participation": 10,
    "max_iter": 400,
    "n_jobs": 1,
}
SPARSE = {"prior": "spike_slab"}
ROWS = {
    "FedAvg": {},
    "FedProx 0.1": {"prior_precision": 0.1},
    "SCAFFOLD": {"control_variates": True},
    "FedSparse .47": {**SPARSE, "target_sparsity": 0.47},
    "FedSparse .35 + SCAFFOLD": {**SPARSE, "target_sparsity": 0.35, "control_variates": True},
    "FedAvg, omega 1": {"omega": 1.0},
    "FedAvg, omega 10": {"omega": 10.0},
    "FedSparse .47, omega 1": {**SPARSE, "target_sparsity": 0.47, "omega": 1.0},
}
FILES = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


def mnist(folder):
    """Training and test images with values in [0, 1], and their digits."""
    arrays = []
    for name in FILES:
        content = gzip.decompress((folder / f"{name}-ubyte.gz").read_bytes())
        if "images" in name:
            pixels = np.frombuffer(content, np.uint8, offset=16).reshape(-1, 784)
            arrays.append(pixels.astype(np.float32) / 255)
        else:
            arrays.append(np.frombuffer(content, np.uint8, offset=8).astype(int))
    return arrays


def options_and_images(description, n_seeds):
    """Options of the command line; training images, and those on which accuracy is measured."""
    parser = argparse.ArgumentParser(description=description.split("\n")[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("SKFEDEM_DATA", "data"))
    parser.add_argument("--seeds", type=int, default=n_seeds)
    parser.add_argument("--rows", nargs="*", help="names of rows; default: all")
    parser.add_argument("--validation", action="store_true", help="do not use the test images")
    options = parser.parse_args()
    X, y, X_test, y_test = mnist(Path(options.data) / "mnist")
    if options.validation:
        order = np.random.default_rng(99).permutation(len(X))
        X_test, y_test = X[order[50_000:]], y[order[50_000:]]
        X, y = X[order[:50_000]], y[order[:50_000]]
    return options, (X, y, X_test, y_test)


def by_digit(y, seed):
    """Rows of 100 clients with one digit each, ten for each digit."""
    generator, clients = np.random.default_rng(seed), []
    for digit in range(10):
        rows = generator.permutation(np.flatnonzero(y == digit))
        clients += np.split(rows[: len(rows) // 10 * 10], 10)
    return clients


def at_random(y, seed):
    """Rows of 100 clients."""
    return np.array_split(np.random.default_rng(seed).permutation(len(y)), 100)


class Attacked(LaplacePrior):
    """Median of updates of which those of the first clients are reversed and enlarged."""

    def closed_form(self, shared, update, weights):
        """As the prior's, with 20 of 100 updates replaced."""
        return super().closed_form(shared, attacked(update), weights)


def attacked(update):
    """Updates of 100 clients, of which 20 send -5 times theirs."""
    factors = np.where(np.arange(100) < 20, -5.0, 1.0)[:, None]
    return update._replace(differences=factors * update.differences)


class AttackedMean(Attacked):
    """The same, with the mean."""

    def closed_form(self, shared, update, weights):
        """Mean of the updates."""
        return shared.weights + weights @ attacked(update).differences / weights.sum()


def one_digit_each(settings, data, seed):
    """Figures of a row with one digit for each client."""
    X, y, X_test, y_test = data
    train, test = by_digit(y, seed), by_digit(y_test, seed)
    clf = FederatedMLPClassifier(**SETTINGS, **settings, random_state=seed)
    tables, targets = [X[rows] for rows in train], [y[rows] for rows in train]
    start = time.perf_counter()
    clf.fit(tables, targets)
    seconds = time.perf_counter() - start
    own = clf.predict([X_test[rows] for rows in test], personal=True)
    hits = [(found == y_test[rows]).mean() for found, rows in zip(own, test, strict=True)]
    sent = {name: clf.history_[f"{name}_bits"].sum() / 8e6 for name in ("uplink", "downlink")}
    return {
        "global": clf.score(X_test, y_test),
        "personal": np.mean(hits),
        "sparsity": clf.sparsity_,
        "up MB": sent["uplink"],
        "down MB": sent["downlink"],
        "ms": 1e3 * seconds / SETTINGS["max_iter"],
    }


def median(prior, data, seed):
    """Accuracy if 20 of 100 clients attack."""
    X, y, X_test, y_test = data
    rows = at_random(y, seed)
    settings = {**SETTINGS, "participation": 1.0, "max_iter": 60}
    clf = FederatedMLPClassifier(**settings, prior=prior, random_state=seed)
    clf.fit([X[own] for own in rows], [y[own] for own in rows])
    return {"global": clf.score(X_test, y_test)}


def ensemble(settings, data, seed):
    """Accuracy of the better model for each of two populations."""
    X, y, X_test, y_test = data
    rows = at_random(y, seed)
    targets = [y[own] if k % 2 else 9 - y[own] for k, own in enumerate(rows)]
    clf = FederatedMLPClassifier(**SETTINGS, **settings, random_state=seed)
    clf.fit([X[own] for own in rows], targets)
    coefs, intercepts = clf.coefs_[0], clf.intercepts_[0]
    if coefs.ndim == 2:
        coefs, intercepts = coefs[None], intercepts[None]
    found = [(X_test @ c + i).argmax(axis=1) for c, i in zip(coefs, intercepts, strict=True)]
    best = [max((own == goal).mean() for own in found) for goal in (y_test, 9 - y_test)]
    return {"first": best[0], "second": best[1]}


def main():
    options, data = options_and_images(__doc__, n_seeds=3)
    table = {name: (one_digit_each, settings) for name, settings in ROWS.items()}
    table["median, attacked"] = (median, Attacked())
    table["mean, attacked"] = (median, AttackedMean())
    table["ensemble of two"] = (ensemble, {"prior": "mixture"})
    table["one model"] = (ensemble, {})
    with threadpool_limits(1):
        for name in options.rows or table:
            run, settings = table[name]
            runs = [run(settings, data, seed) for seed in range(options.seeds)]
            parts = []
            for figure in runs[0]:
                values = [run[figure] for run in runs]
                digits = 4 if max(values) <= 1 else 2
                low, high = round(min(values), digits), round(max(values), digits)
                parts.append(f"{figure} {np.mean(values):.{digits}f} ({low} to {high})")
            print(f"{name}: {', '.join(parts)}", flush=True)


if __name__ == "__main__":
    main()
