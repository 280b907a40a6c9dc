"""Exponential families against SciPy's distributions, their derivatives, domains and extremes."""

import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

from skfedem.models.matrix.families import (
    BERNOULLI,
    FAMILIES,
    GAUSSIAN,
    LARGEST_COUNT,
    MAX_LOG_MEAN,
    POISSON,
    safe_share,
)

ROUNDING = np.finfo(float).eps
EXTREMES = np.array([-np.inf, -1e308, -800.0, -1e-308, 0.0, 5e-324, 40.0, 800.0, 1e308, np.inf])

each_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)


def log_density(family, values, theta):
    return values * theta - family.log_partition(theta) + family.log_base_measure(values)


def some_values(family):
    return {
        "gaussian": np.array([-3.0, -0.1, 0.0, 2.5]),
        "bernoulli": np.array([0.0, 1.0]),
        "poisson": np.array([0.0, 1.0, 2.0, 50.0, 1e6]),
    }[family.name]


def scipy_log_density(family, values, theta):
    if family is GAUSSIAN:
        return stats.norm.logpdf(values, loc=theta)
    if family is POISSON:
        return stats.poisson.logpmf(values, np.exp(theta))
    # SciPy's Bernoulli takes a probability, and loses digits where it is close to 1.
    probability = 1 / (1 + np.exp(-theta))
    return stats.bernoulli.logpmf(values, probability)


@each_family
def test_likelihood_is_that_of_scipy(family):
    values, theta = np.meshgrid(some_values(family), np.linspace(-8, 8, 33))
    ours, theirs = log_density(family, values, theta), scipy_log_density(family, values, theta)
    # Terms of size 1e7 cancel; 1 - probability has an error of eps e⁸, relative to itself.
    scale = 1 + np.abs(values * theta) + family.log_partition(theta) + np.abs(theirs)
    scale += np.abs(family.log_base_measure(values))
    tolerance = 16 * ROUNDING * scale
    if family is BERNOULLI:
        tolerance += 4 * ROUNDING * np.exp(8)
    assert np.all(np.abs(ours - theirs) <= tolerance)


@each_family
def test_the_normalizer_is_what_remains_at_0(family):
    assert family.log_normalizer == family.log_base_measure(0.0)


@each_family
def test_densities_add_up_to_one(family):
    theta = 1.3
    if family is GAUSSIAN:
        values, width = np.linspace(-12, 15, 2_701), 0.01
    else:
        values, width = np.arange(2.0 if family is BERNOULLI else 100.0), 1.0
    # The trapezoidal rule converges faster than any power here; what is left is rounding.
    total = width * np.exp(log_density(family, values, theta)).sum()
    assert_allclose(total, 1.0, rtol=1e-13)


@each_family
@pytest.mark.parametrize(
    ("function", "derivative"), [("log_partition", "mean"), ("mean", "variance")]
)
def test_means_and_variances_are_derivatives(family, function, derivative):
    theta, step = np.linspace(-12, 12, 97), 1e-4
    function, derivative = getattr(family, function), getattr(family, derivative)
    slope = (function(theta + step) - function(theta - step)) / (2 * step)
    # Truncation is step² f'''/6, and |f'''| <= f' in all three; rounding is eps |f| / step.
    tolerance = step**2 / 6 * 1.01 * np.abs(derivative(theta))
    tolerance += 4 * ROUNDING * (np.abs(function(theta)) + np.abs(theta * derivative(theta))) / step
    assert np.all(np.abs(slope - derivative(theta)) <= tolerance)


def test_poisson_derivative_by_a_complex_step():
    theta = np.linspace(-20, 20, 41)
    assert_allclose(POISSON.mean(theta), np.exp(theta + 1e-30j).imag / 1e-30, rtol=1e-14)
    assert_array_equal(POISSON.variance(theta), POISSON.mean(theta))


@each_family
def test_link_inverts_the_mean(family):
    theta = np.linspace(-12, 12, 49)
    # The mean has a relative error of eps; near 1, its distance from 1 has eps e¹².
    tolerance = 4 * ROUNDING * np.exp(12) if family is BERNOULLI else 1e-14
    assert_allclose(family.link(family.mean(theta)), theta, rtol=1e-14, atol=tolerance)


def test_link_on_the_boundary():
    assert_array_equal(BERNOULLI.link(np.array([0.0, 1.0])), [-np.inf, np.inf])
    assert_array_equal(POISSON.link(np.array([0.0])), [-np.inf])


@each_family
def test_the_largest_variance_is_reached(family):
    variances = family.variance(np.linspace(-20, 20, 401))
    if family.max_variance is None:
        assert variances.max() == np.exp(20)
    else:
        assert variances.max() == family.max_variance


@each_family
def test_slope_of_the_logarithm_of_the_variance(family):
    slopes = np.abs(np.diff(np.log(family.variance(np.linspace(-20, 20, 401))))) / 0.1
    assert_allclose(slopes.max(), family.log_variance_slope, atol=1e-8)


# ---- extremes


@each_family
def test_functions_of_any_theta_are_numbers(family):
    for function in (family.log_partition, family.mean, family.variance):
        result = function(EXTREMES)
        assert result.dtype == np.float64
        assert not np.isnan(result).any()
    assert np.all(family.variance(EXTREMES) >= 0)


@each_family
def test_not_a_number_stays_so(family):
    for function in (family.log_partition, family.mean, family.log_base_measure, family.link):
        constant = family is BERNOULLI and function is family.log_base_measure
        assert_array_equal(np.isnan(function(np.array([np.nan, 0.5]))), [not constant, False])


@pytest.mark.parametrize("family", [BERNOULLI, POISSON], ids=["bernoulli", "poisson"])
def test_no_number_overflows(family):
    theta = np.array([-1e200, -800.0, 800.0, 1e200])
    for function in (family.log_partition, family.mean, family.variance):
        assert np.isfinite(function(theta)).all()


def test_bernoulli_keeps_its_tails():
    theta = np.array([-700.0, -50.0])
    assert_allclose(BERNOULLI.log_partition(theta), np.exp(theta), rtol=1e-13)
    assert_allclose(BERNOULLI.log_partition(-theta), -theta, rtol=1e-15)
    # The same in both tails, although the mean is 1 to all digits in one.
    assert_allclose(BERNOULLI.variance(-theta), np.exp(theta), rtol=1e-13)
    assert_allclose(BERNOULLI.variance(theta), np.exp(theta), rtol=1e-13)


@each_family
def test_any_value(family):
    result = family.log_base_measure(np.array([0.0, 1.0, 1e15, 1e200, 1e308]))
    assert result.dtype == np.float64
    assert not np.isnan(result).any()


# ---- Poisson's guard


@each_family
def test_a_safe_share_of_newtons_step_lowers_the_objective(family):
    theta = np.linspace(-12, 12, 481)
    for mean in family.mean(theta):
        step = (mean - family.mean(theta)) / family.variance(theta)
        share = safe_share(family, np.abs(step))
        # Near the optimum, whole steps are fast.
        assert (share[np.abs(step) <= 1.5] == 1).all()
        change = share * step
        rise = family.log_partition(theta + change) - family.log_partition(theta) - mean * change
        assert (rise[step != 0] < 0).all()


def test_the_mean_of_the_largest_count_is_short_of_the_guard():
    assert np.log(LARGEST_COUNT) < MAX_LOG_MEAN


def test_poisson_is_exact_up_to_the_guard():
    theta = np.linspace(-MAX_LOG_MEAN, MAX_LOG_MEAN, 61)
    for function in (POISSON.log_partition, POISSON.mean, POISSON.variance):
        assert_array_equal(function(theta), np.exp(theta))


def test_poisson_is_convex_and_smooth_beyond_the_guard():
    theta = MAX_LOG_MEAN + np.linspace(-3, 60, 1001)
    slopes = np.diff(POISSON.log_partition(theta)) / np.diff(theta)
    rounding = 8 * ROUNDING * POISSON.log_partition(theta).max() / np.diff(theta)[0]
    assert np.all(np.diff(slopes) >= -rounding)
    # A slope between two points lies between the derivatives at them: ψ' is that of ψ throughout.
    means = POISSON.mean(theta)
    assert np.all(slopes >= means[:-1] - rounding)
    assert np.all(slopes <= means[1:] + rounding)
    assert means.max() == np.exp(MAX_LOG_MEAN)
    # A Newton step divides by it.
    assert POISSON.variance(np.array([1e6])) == np.exp(MAX_LOG_MEAN)


# ---- domains


@pytest.mark.parametrize(
    ("family", "inside", "outside"),
    [
        (GAUSSIAN, [-1e300, -0.5, 0, 3], [np.nan, np.inf, -np.inf]),
        (BERNOULLI, [0, 1], [np.nan, -1, 0.5, 2, np.inf]),
        (POISSON, [0, 1, 7, 1e13], [np.nan, -1, 0.5, 2e13, -np.inf, np.inf]),
    ],
    ids=FAMILIES,
)
def test_domain(family, inside, outside):
    assert_array_equal(family.is_valid(np.array(inside, dtype=float)), True)
    assert_array_equal(family.is_valid(np.array(outside)), False)
    assert_array_equal(family.is_valid(np.array([True, False])), True)
    assert_array_equal(family.is_valid(np.array([0, 1])), True)


# ---- what callers rely on


@each_family
def test_integers_are_taken_and_nothing_is_aliased(family):
    integers, floats = np.array([0, 1, 1]), np.array([0.0, 1.0, 1.0])
    for name in ("log_partition", "mean", "variance", "log_base_measure"):
        function = getattr(family, name)
        assert_array_equal(function(integers), function(floats))
        assert not np.shares_memory(function(floats), floats)
    assert family.variance(integers).dtype == np.float64


@each_family
def test_families_travel_to_other_processes(family):
    assert pickle.loads(pickle.dumps(family)) == family


def test_families_are_found_by_their_names():
    assert list(FAMILIES) == ["gaussian", "bernoulli", "poisson"]
    assert all(family.name == name for name, family in FAMILIES.items())
