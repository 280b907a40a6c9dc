"""Fits of a mixture from a given start, and their comparison."""

import numpy as np
from numpy.testing import assert_allclose
from sklearn.datasets import load_iris

from skfedem import FederatedGaussianMixture

FITTED = ("weights_", "means_", "covariances_", "precisions_", "precisions_cholesky_")


def start_of(covariance_type, scale=1.0, shift=0.0):
    """A start within the rows of ``ragged_clients``, times ``scale`` plus ``shift``."""
    precisions = {
        "full": np.array([[[1.0, 0.1], [0.1, 0.2]], [[0.7, -0.1], [-0.1, 0.15]]]),
        "tied": np.array([[0.8, 0.1], [0.1, 0.2]]),
        "diag": np.array([[1.0, 0.2], [0.7, 0.15]]),
        "spherical": np.array([0.5, 0.3]),
    }[covariance_type]
    return {
        "weights_init": np.array([0.4, 0.6]),
        "means_init": np.array([[1.0, -7.0], [3.0, -3.0]]) * scale + shift,
        "precisions_init": precisions / scale**2,
    }


def federated(covariance_type, **params):
    params = {"n_components": 2, "tol": 0.0, "random_state": 0, **params}
    return FederatedGaussianMixture(covariance_type=covariance_type, **params)


def assert_same_fit(got, want, rtol=1e-8, atol=1e-9, names=FITTED):
    for name in names:
        assert_allclose(getattr(got, name), getattr(want, name), rtol=rtol, atol=atol, err_msg=name)


def iris_by_label(n_clients, extra=None):
    """Iris on clients that have one species each; ``extra`` is a fifth feature."""
    rows, species = load_iris(return_X_y=True)
    if extra is not None:
        noise = np.random.default_rng(0).standard_normal(len(rows))
        rows = np.column_stack([rows, rows[:, 0] + rows[:, 1] + extra * noise])
    parts = [np.array_split(rows[species == k], n_clients // 3) for k in range(3)]
    return [part for own in parts for part in own]
