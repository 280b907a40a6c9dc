"""Fits that are saved and go on, and their data."""

import joblib
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from skfedem import FederatedGaussianMixture, FederatedMatrixImputer

NAN = np.nan


def make_clients(n_clients=6, seed=0):
    generator = np.random.default_rng(seed)
    return [generator.normal(3.0 * (k % 2), 1.0, size=(12 + k, 3)) for k in range(n_clients)]


def matrices(n_clients=5, seed=0):
    generator = np.random.default_rng(seed)
    counts = generator.poisson(4.0, size=(9, 7)).astype(float)
    return [np.where(generator.random(counts.shape) < 0.4, counts, NAN) for _ in range(n_clients)]


ROUGH = {"omega": 1.0, "participation": 0.6, "tol": 0.0}
CASES = {
    "mixture": (FederatedGaussianMixture(2, tol=0.0, max_iter=12), make_clients),
    "mixture-rough": (FederatedGaussianMixture(2, max_iter=30, **ROUGH), make_clients),
    "mixture-vr_fedem": (
        FederatedGaussianMixture(
            2, covariance_type="tied", solver="vr_fedem", batch_size=3, max_iter=30, **ROUGH
        ),
        make_clients,
    ),
    "imputer": (FederatedMatrixImputer(3, family="poisson", tol=0.0, max_iter=12), matrices),
    "imputer-rough": (FederatedMatrixImputer(2, family="poisson", max_iter=30, **ROUGH), matrices),
    "imputer-vr_fedem": (
        FederatedMatrixImputer(
            2, family="bernoulli", solver="vr_fedem", batch_size=3, max_iter=30, **ROUGH
        ),
        lambda: [np.minimum(client, 1) for client in matrices()],
    ),
}
every_case = pytest.mark.parametrize(("estimator", "data"), CASES.values(), ids=CASES)


def assert_same_fit(one, other):
    for name, value in vars(one).items():
        if name in ("checkpoint", "checkpoint_every", "max_iter", "n_jobs"):
            continue
        if name == "_memory" and value is not None:
            value, other_value = value.server, other._memory.server
            assert_array_equal(value.statistics, other_value.statistics)
            assert_array_equal(value.control, other_value.control)
            continue
        if isinstance(value, tuple):
            assert joblib.hash(getattr(other, name)) == joblib.hash(value), name
        elif isinstance(value, dict):
            for key, column in value.items():
                assert_array_equal(getattr(other, name)[key], column, err_msg=key)
        else:
            assert_array_equal(getattr(other, name), value, err_msg=name)
