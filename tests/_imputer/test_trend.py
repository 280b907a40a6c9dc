import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from skfedem._imputer.totals import times_of
from skfedem._imputer.trend import index_of, limits, meaning_of, overall_trend


@pytest.mark.parametrize(
    ("low", "high", "meaning"),
    [
        (1.06, 1.09, "strong increase"),
        (1.02, 1.09, "moderate increase"),
        (0.96, 1.04, "stable"),
        (0.94, 1.04, "uncertain"),
        (0.96, 1.06, "uncertain"),
        (0.94, 0.99, "moderate decline"),
        (0.90, 0.94, "steep decline"),
    ],
)
def test_words_for_trends(low, high, meaning):
    assert meaning_of(low, high) == meaning


def test_a_constant_growth_is_the_slope():
    times = np.array([2000.0, 2001, 2003, 2004])
    trend = overall_trend(50 * 1.03**times, np.zeros((4, 4)), times, 0.95)
    assert trend.multiplicative == pytest.approx(1.03)
    assert trend.slope == pytest.approx(np.log(1.03))
    assert trend.slope_error == 0
    assert trend.meaning == "moderate increase"


def test_errors_are_those_of_simulated_totals():
    # Independent of the delta method: small errors, drawn.
    generator = np.random.default_rng(0)
    totals, times = np.array([100.0, 120, 90, 150, 160]), np.arange(5.0)
    factor = generator.normal(size=(5, 5))
    covariance = 0.01 * factor @ factor.T
    drawn = generator.multivariate_normal(totals, covariance, 40_000)
    _, errors = index_of(totals, covariance, 1)
    assert_allclose(errors, (drawn / drawn[:, 1:2]).std(axis=0), rtol=0.03)
    slopes = np.polyfit(times, np.log(drawn).T, 1)[0]
    trend = overall_trend(totals, covariance, times, 0.9)
    assert_allclose(trend.slope_error, slopes.std(), rtol=0.03)
    assert_allclose(trend.multiplicative_error, np.exp(slopes).std(), rtol=0.03)
    share = np.mean((trend.low < np.exp(slopes)) & (np.exp(slopes) < trend.high))
    assert share == pytest.approx(0.9, abs=0.01)


def test_limits_of_positive_numbers_are_positive():
    low, high = limits(np.array([1.0, 0.0]), np.array([2.0, 0.0]), 0.95, positive=True)
    assert_allclose(low * high, [1.0, 0.0])
    assert (low >= 0).all()
    low, high = limits(np.array([1.0]), np.array([2.0]), 0.95, positive=False)
    assert_allclose([low, high], [[1 - 3.92], [1 + 3.92]], rtol=1e-3)


@pytest.mark.parametrize(
    ("labels", "years"),
    [
        (pd.period_range("2000", "2002", freq="Y"), [0, 1, 2]),
        (pd.period_range("2000-01", "2000-03", freq="M"), [0, 1 / 12, 2 / 12]),
        (np.array([1990, 1992, 1995]), [0, 2, 5]),
        (np.array(["first", "second"]), [0, 1]),
        (np.array([3, 1, 2]), [3, 1, 2]),
        (np.array([3, 1, 3]), [0, 1, 2]),
    ],
    ids=["years", "months", "numbers", "names", "unordered", "repeated"],
)
def test_times_are_in_years(labels, years):
    assert_allclose(np.diff(times_of(labels)), np.diff(years), atol=0.01)
