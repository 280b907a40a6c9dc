"""Negative binomial counts against SciPy's distribution and numerical derivatives."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from skfedem.models.matrix.families import LARGEST_SIZE, POISSON, family_of, working_family
from skfedem.models.matrix.negative_binomial import most_likely_size, size_log_likelihood
from skfedem.models.matrix.pooled import working_cells
from skfedem.models.matrix.theta import Cells

COUNTS = np.array([0.0, 1.0, 2.0, 30.0, 1e6])
SIZES = [1e-3, 0.7, 4.0, 1e5]


def scipy_log_density(counts, means, sizes):
    return stats.nbinom.logpmf(counts, sizes, sizes / (sizes + means))


def working_log_density(family, counts, theta, effort=1.0):
    """Log-likelihood of counts, from the cells and the family that fits read."""
    efforts = np.full(len(counts), effort)
    nowhere = np.zeros(len(counts), dtype=int)
    cells = working_cells(Cells(nowhere, nowhere, counts / efforts, efforts), family)
    terms = cells.values * theta - working_family(family).log_partition(theta)
    return cells.counts * terms + family.log_base_measure(counts, np.log(efforts))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("effort", [1.0, 0.2, 3.0])
def test_likelihood_is_that_of_scipy(size, effort):
    for theta in (-4.0, 0.5, 6.0):
        ours = working_log_density(family_of("negative_binomial", size), COUNTS, theta, effort)
        theirs = scipy_log_density(COUNTS, effort * np.exp(theta), effort * size)
        # SciPy loses digits of 1 - share for large sizes.
        assert_allclose(ours, theirs, rtol=1e-8, atol=1e-6)


def test_large_sizes_are_poisson():
    counts, theta = COUNTS[:-1], 1.3
    ours = working_log_density(family_of("negative_binomial", 1e9), counts, theta)
    poisson = counts * theta - POISSON.log_partition(theta) + POISSON.log_base_measure(counts)
    assert_allclose(ours, poisson, atol=1e-6)  # the difference is about 900 / 2e9


@pytest.mark.parametrize("size", SIZES)
def test_moments_and_slope(size):
    family = family_of("negative_binomial", size)
    theta = np.array([-3.0, 0.0, 2.0])
    means = np.exp(theta)
    assert_allclose(family.mean(theta), means)
    assert_allclose(family.variance(theta), means + means**2 / size)
    assert_allclose(family.link(means), theta, atol=1e-15)
    working, counts = working_family(family), np.array([4.0, 0.0, 9.0])
    slope = counts - (counts + size) * working.mean(theta)
    assert_allclose(slope, (counts - means) / (1 + means / size), rtol=1e-9, atol=1e-12)
    assert_allclose(working.link(working.mean(theta)), theta, atol=1e-9)


@pytest.mark.parametrize("size", [0.3, 2.0, 40.0])
def test_derivatives_by_the_size(size):
    sums, efforts = np.array([0.0, 3.0, 41.0]), np.array([1.0, 2.0, 0.4])
    theta, step = np.array([0.2, 1.0, 3.5]), 1e-4 * size

    def log_likelihood(size):
        return scipy_log_density(sums, efforts * np.exp(theta), efforts * size)

    terms = size_log_likelihood(sums, efforts, theta, size)
    below, at, above = (log_likelihood(size + own) for own in (-step, 0.0, step))
    assert_allclose(terms[1], (above - below) / (2 * step), rtol=1e-5, atol=1e-8)
    assert_allclose(terms[2], (above - 2 * at + below) / step**2, rtol=1e-3, atol=1e-5)


def test_terms_of_the_likelihood_that_are_not_poisson():
    sums, efforts = np.array([0.0, 3.0, 41.0]), np.array([1.0, 2.0, 0.4])
    theta, family = np.array([0.2, 1.0, 3.5]), family_of("negative_binomial", 1.7)
    measures = size_log_likelihood(sums, efforts, theta, 1.7)[0]
    poisson = POISSON.log_base_measure(sums, np.log(efforts))
    assert_allclose(measures + poisson, family.log_base_measure(sums, np.log(efforts)))


@pytest.mark.parametrize("size", [0.05, 1.0, 30.0])
def test_size_of_a_sample(size):
    counts = stats.nbinom.rvs(size, size / (size + 8.0), size=4000, random_state=1).astype(float)
    theta = np.full(len(counts), np.log(counts.mean()))

    def derivatives(size):
        _, slopes, curvatures = size_log_likelihood(counts, np.ones(len(counts)), theta, size)
        return slopes.sum(), curvatures.sum()

    found = most_likely_size(derivatives)
    trials = found * np.array([0.98, 1.0, 1.02])
    values = [scipy_log_density(counts, counts.mean(), own).sum() for own in trials]
    assert np.argmax(values) == 1
    assert_allclose(found, size, rtol=0.2)  # about three standard errors of the largest size


def test_counts_that_vary_less_than_poisson_counts_have_the_largest_size():
    counts = np.full(50, 6.0)

    def derivatives(size):
        terms = size_log_likelihood(counts, np.ones(50), np.full(50, np.log(6.0)), size)
        return terms[1].sum(), terms[2].sum()

    assert_allclose(most_likely_size(derivatives), LARGEST_SIZE)
