"""Rows of three clusters that five clients tell of, and streams of them."""

import numpy as np
from numpy.testing import assert_allclose

CENTERS = np.array([[-4.0, 0.0], [4.0, 0.0], [0.0, 6.0]])
GIVEN = {"n_components": 3, "means_init": CENTERS / 2 + [50.0, 0.0], "random_state": 0}
NOISY = {**GIVEN, "omega": 1.0, "participation": 0.6, "step_size": 0.05}
# Rounding of a few rounds of EM, which the order of sums decides.
ALMOST = {"rtol": 1e-10, "atol": 1e-10}


def make_rows(n_rows, seed=0):
    rng = np.random.default_rng(seed)
    return CENTERS[rng.integers(3, size=n_rows)] + rng.normal(size=(n_rows, 2)) + [50.0, 0.0]


X = make_rows(600)
CENTERS_OF_X = np.random.default_rng(0).integers(3, size=600)
OWNERS = np.random.default_rng(1).integers(5, size=600)
CLIENTS = [X[owner == OWNERS] for owner in range(5)]
PARAMETERS = ("weights_", "means_", "covariances_", "precisions_")


def assert_same(one, other, names=PARAMETERS, **tolerance):
    for name in names:
        assert_allclose(getattr(one, name), getattr(other, name), err_msg=name, **tolerance)


def batches_of(size, rows=X, owners=OWNERS):
    for first in range(0, len(rows), size):
        yield rows[first : first + size], owners[first : first + size]


def streamed(gm, size, rows=X, owners=OWNERS, **kwargs):
    for batch, labels in batches_of(size, rows, owners):
        gm.partial_fit(batch, clients=labels, **kwargs)
    return gm


def memory_error(gm):
    memory = gm._memory
    return np.abs(memory.server.control - memory.weights @ memory.controls).max()
