import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import norm

from skfedem.models.mixed_effects.residual_errors import (
    ERRORS,
    information,
    minus_log_density,
    score,
)

SQUARES = {"constant": [0.3], "proportional": [0.04], "combined": [0.3, 0.04], "exponential": [0.1]}
every_error = pytest.mark.parametrize("name", ERRORS)


def some():
    generator = np.random.default_rng(0)
    predicted = generator.uniform(0.5, 9.0, 50)
    return predicted, generator.standard_normal(50)


@every_error
def test_densities_are_normal_with_the_variance_of_the_error(name):
    error, (f, r), squares = ERRORS[name], some(), np.array(SQUARES[name])[:, None]
    a, b = {"combined": (0.3, 0.04), "proportional": (0.0, 0.04)}.get(name, (squares[0], 0.0))
    want = -norm(0, np.sqrt(a + b * f**2)).logpdf(r)
    got = minus_log_density(r, f, squares, error) + 0.5 * np.log(2 * np.pi)
    assert_allclose(got, want, rtol=1e-12, atol=1e-12)


@every_error
def test_scores_are_derivatives_and_informations_their_variances(name):
    error, (f, r), squares = ERRORS[name], some(), np.array(SQUARES[name])[:, None]
    size, y = 1e-6, f + r

    def loss(moved):
        return minus_log_density(y - moved, moved, squares, error)

    slope = (loss(f - size) - loss(f + size)) / (2 * size)
    assert_allclose(score(r, f, squares, error), slope, rtol=1e-6, atol=1e-7)
    # The expectation of the square over y, by quadrature.
    points, weights = np.polynomial.hermite_e.hermegauss(9)
    residuals = np.sqrt(error.variance(f, squares)) * points[:, None]
    mean = weights @ (score(residuals + 0 * f, f, squares, error) ** 2) / weights.sum()
    assert_allclose(information(f, squares, error) + 0 * f, mean, rtol=1e-10)


@every_error
def test_the_true_squares_are_the_mean_statistics(name):
    # E over y of each statistic is its square: EM stays at the truth.
    error, (f, _), squares = ERRORS[name], some(), np.array(SQUARES[name])[:, None]
    points, weights = np.polynomial.hermite_e.hermegauss(9)
    residuals = np.sqrt(error.variance(f, squares)) * points[:, None] + 0 * f
    for statistic, square in zip(error.statistics(residuals, f, squares), squares, strict=True):
        assert_allclose(weights @ statistic / weights.sum(), np.full(len(f), square), rtol=1e-10)
