"""How long does an epoch of FedEM take, relative to an iteration of scikit-learn's GaussianMixture?

Times are measured alternately in this process, on one thread. The rows are MNIST's 70,000 images
without 67 constant pixels, reduced to 20 features, if the four idx files are in DATA/mnist, and
otherwise as many simulated rows. There are 100 clients with 700 rows each, and 10 components.

    python examples/benchmarks/mixture_speed.py [--data DATA] [--covariance-type tied] [--repeats 7]
    python examples/benchmarks/mixture_speed.py --covariance-type full --features 50 --components 3
"""

import argparse
import gzip
import os
import time
import warnings
from pathlib import Path

import numpy as np
from sklearn.decomposition import PCA
from sklearn.mixture import GaussianMixture
from threadpoolctl import threadpool_limits

from skfedem import FederatedGaussianMixture

DATA = Path(os.environ.get("SKFEDEM_DATA", Path(__file__).parents[3] / "shared" / "data"))
N_CLIENTS, N_SAMPLES, BATCH_SIZE = 100, 70_000, 20
ROUNDS_PER_EPOCH = N_SAMPLES // (N_CLIENTS * BATCH_SIZE)


def mnist(folder, n_features=20):
    """MNIST's images as (70000, n_features) principal components."""
    images = []
    for name in ("train-images-idx3-ubyte.gz", "t10k-images-idx3-ubyte.gz"):
        with gzip.open(folder / name) as file:
            images.append(np.frombuffer(file.read(), dtype=np.uint8, offset=16).reshape(-1, 784))
    pixels = np.concatenate(images).astype(np.float32)
    pixels = pixels[:, pixels.std(axis=0) > 0]
    return PCA(n_features, random_state=0).fit_transform(pixels).astype(np.float64)


def rows(folder, n_features):
    """MNIST, or rows of its size."""
    if (folder / "train-images-idx3-ubyte.gz").exists():
        return mnist(folder, n_features), "MNIST"
    rng = np.random.default_rng(0)
    means = 2 * rng.normal(size=(10, n_features))
    components = rng.integers(10, size=N_SAMPLES)
    return means[components] + rng.normal(size=(N_SAMPLES, n_features)), "simulated rows"


def seconds(make, few, many):
    """Time of one round, from the difference between fits with many rounds and with few."""

    def timed(max_iter):
        model, arguments = make(max_iter)
        started = time.perf_counter()
        model.fit(*arguments[0], **arguments[1])
        return time.perf_counter() - started

    return (timed(many) - timed(few)) / (many - few)


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--covariance-type", default="tied")
    parser.add_argument("--features", type=int, default=20)
    parser.add_argument("--components", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    n_components, n_features = options.components, options.features
    X, what = rows(options.data / "mnist", n_features)
    clients = np.random.default_rng(0).permutation(
        np.repeat(np.arange(N_CLIENTS), N_SAMPLES // N_CLIENTS)
    )
    X, clients = X[np.argsort(clients, kind="stable")], np.sort(clients)
    eye = np.eye(n_features) / X.var(axis=0)
    shapes = {
        "full": np.array([eye] * n_components),
        "tied": eye,
        "diag": np.array([np.diag(eye)] * n_components),
        "spherical": np.full(n_components, eye.mean()),
    }
    common = {
        "n_components": n_components,
        "covariance_type": options.covariance_type,
        "weights_init": np.full(n_components, 1 / n_components),
        "means_init": X[:: N_SAMPLES // n_components][:n_components],
        "precisions_init": shapes[options.covariance_type],
        "tol": 0,
        "random_state": 0,
    }

    def sklearn(max_iter):
        return GaussianMixture(**common, max_iter=max_iter), ((X,), {})

    def federated(**settings):
        def make(max_iter):
            model = FederatedGaussianMixture(
                **common, **settings, max_iter=max_iter, eval_every=None, step_size=1e-3
            )
            return model, ((X,), {"clients": clients})

        return make

    def exact(max_iter):
        model = FederatedGaussianMixture(**common, max_iter=max_iter)
        return model, ((X,), {"clients": clients})

    minibatch = {"batch_size": BATCH_SIZE}
    contenders = {
        "exact round (federated EM)": (exact, 1),
        "FedEM epoch, b=20": (federated(**minibatch), ROUNDS_PER_EPOCH),
        "FedEM epoch, b=20, omega=1": (federated(**minibatch, omega=1.0), ROUNDS_PER_EPOCH),
        "VR-FedEM 35 rounds, b=20, omega=1": (
            federated(**minibatch, omega=1.0, solver="vr_fedem"),
            ROUNDS_PER_EPOCH,
        ),
    }
    ratios = {name: [] for name in contenders}
    iterations = []
    with threadpool_limits(limits=1):
        for _ in range(options.repeats):
            iteration = seconds(sklearn, 2, 6)
            iterations.append(iteration)
            for name, (make, rounds) in contenders.items():
                few, many = (2, 12) if rounds == 1 else (rounds, 5 * rounds)
                ratios[name].append(rounds * seconds(make, few, many) / iteration)
    print(f"{what}, {options.covariance_type} covariance, {options.repeats} repeats")
    print(f"scikit-learn, one EM iteration: {1e3 * np.median(iterations):.0f} ms")
    print(f"{'relative to an EM iteration':36s} median   min    max")
    for name, values in ratios.items():
        print(f"{name:36s} {np.median(values):6.3f} {min(values):6.3f} {max(values):6.3f}")


if __name__ == "__main__":
    main()
