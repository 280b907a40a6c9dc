"""Rows of three components at six clients, and settings of fits, for all ``mixture/*.py``.

``X`` has all rows, mixed up, ``COMPONENTS`` and ``OWNERS`` say of each where it is from, and
``CLIENTS`` has them client by client.
"""

import numpy as np
import pandas as pd

from skfedem import FederatedGaussianMixture
from skfedem.compression import Compressor

CENTERS = np.array([[-6.0, 0.0], [6.0, 0.0], [0.0, 8.0]])
# Rows of each component at each client: label-skewed, and of different lengths.
ROWS_OF_COMPONENTS = [(20, 0, 0), (31, 0, 0), (0, 25, 0), (0, 12, 0), (0, 0, 30), (9, 8, 7)]
LENGTHS = np.array(ROWS_OF_COMPONENTS).sum(axis=1)
N_CLIENTS, N_FEATURES, N_SAMPLES = len(LENGTHS), 2, int(LENGTHS.sum())
# Random in every way at once. With this tolerance it converges, and says nothing, after the three
# sweeps of ten rounds that are the least.
STOCHASTIC = {
    "n_components": 3,
    "covariance_type": "tied",
    "solver": "vr_fedem",
    "step_size": 0.125,
    "omega": 1.0,
    "participation": 0.7,
    "batch_size": 4,
    "means_init": CENTERS / 2,
    "tol": 20.0,
    "max_iter": 2000,
    "random_state": 0,
}
EXACT = {"n_components": 3, "means_init": CENTERS / 2, "random_state": 0}


def make_rows():
    """Rows, and of each of them its component and its owner."""
    rng = np.random.default_rng(0)
    components = np.concatenate([np.repeat(range(3), counts) for counts in ROWS_OF_COMPONENTS])
    owners = np.repeat(np.arange(N_CLIENTS), LENGTHS)
    shuffled = rng.permutation(N_SAMPLES)
    components, owners = components[shuffled], owners[shuffled]
    rows = CENTERS[components] + rng.normal(size=(N_SAMPLES, N_FEATURES))
    for array in (rows, components, owners):
        array.setflags(write=False)
    return rows, components, owners


# Rows of all clients, mixed up; read-only, so that no fit may change them.
X, COMPONENTS, OWNERS = make_rows()
CLIENTS = [X[owner == OWNERS] for owner in range(N_CLIENTS)]
FRAMES = [pd.DataFrame(client, columns=["length", "width"]) for client in CLIENTS]
NAMES = np.array(["ash", "birch", "cedar", "elm", "fir", "oak"])


def evaluated_rows(estimator, column="log_likelihood"):
    """Rounds at which a column of the history has a value."""
    return np.flatnonzero(~np.isnan(estimator.history_[column])).tolist()


class WithKeywords(FederatedGaussianMixture):
    """scikit-learn does not see parameters that are passed on like these."""

    def __init__(self, name="", **parameters):
        super().__init__(**parameters)
        self.name = name


class Forwarding(Compressor):
    """A compressor of a user's that leaves everything to another one; it has no repr."""

    def __init__(self, inner):
        self.inner = inner

    def compress(self, values, uniforms, lengths=None):
        return self.inner.compress(values, uniforms, lengths)

    def omega_for(self, length):
        return self.inner.omega_for(length)

    def variance(self, values, lengths=None):
        return self.inner.variance(values, lengths)

    def n_bytes(self, values, lengths=None):
        return self.inner.n_bytes(values, lengths)

    def encode(self, values):
        return self.inner.encode(values)

    def decode(self, data, length):
        return self.inner.decode(data, length)


class Recording(Forwarding):
    """A compressor that keeps what it returned."""

    def __init__(self, inner):
        super().__init__(inner)
        self.sent = []

    def compress(self, values, uniforms, lengths=None):
        compressed = super().compress(values, uniforms, lengths)
        self.sent.append(compressed.copy())
        return compressed
