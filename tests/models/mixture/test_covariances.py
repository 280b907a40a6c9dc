"""Covariance types: shapes and numbers of parameters, Cholesky factors."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.mixture import GaussianMixture

from mixture_models import every_covariance_type
from problems import KNOWN_COVARIANCE
from skfedem.models.mixture.covariances import COVARIANCES


@every_covariance_type
def test_shapes_and_numbers_of_parameters_are_scikit_learns(covariance_type):
    rows = np.random.default_rng(0).normal(size=(60, 4))
    theirs = GaussianMixture(3, covariance_type=covariance_type).fit(rows)
    structure, n_weights_and_means = COVARIANCES[covariance_type], 2 + 3 * 4
    assert structure.shape(3, 4) == theirs.covariances_.shape
    assert structure.n_parameters(3, 4) + n_weights_and_means == theirs._n_parameters()


def test_cholesky_factors_and_their_inverses():
    several = np.array([KNOWN_COVARIANCE, 4.0 * np.eye(2)])
    for covariance_type, covariances in (("full", several), ("tied", KNOWN_COVARIANCE)):
        factors, inverses = COVARIANCES[covariance_type].cholesky_and_inverse(covariances)
        assert_allclose(factors @ np.swapaxes(factors, -1, -2), covariances, rtol=1e-15)
        assert_allclose(inverses @ factors, 0 * covariances + np.eye(2), atol=1e-14)
        assert_array_equal(factors[..., 0, 1], 0.0)
        assert_array_equal(inverses[..., 0, 1], 0.0)
    deviations, inverses = COVARIANCES["diag"].cholesky_and_inverse(np.array([[4.0, 0.25]]))
    assert_array_equal(deviations, [[2.0, 0.5]])
    assert_array_equal(inverses, [[0.5, 2.0]])
    with pytest.raises(ValueError, match="positive definite.*decrease n_components"):
        COVARIANCES["tied"].cholesky_and_inverse(np.array([[1.0, 2.0], [2.0, 1.0]]))
