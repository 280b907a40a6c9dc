"""Assignment of rows to the nearest centre."""

import numpy as np
from numpy.testing import assert_allclose, assert_array_equal

from mixture_models import every_covariance_type, small_model, table
from skfedem._federation import ClientRows, Federation
from skfedem.models.mixture.messages import statistics_of_nearest


def sums_of_nearest(model, centers, federation):
    """Statistics of each client times its number of rows."""
    every = np.arange(federation.n_clients)
    means = statistics_of_nearest(ClientRows(federation, every, every), model, centers)
    return means * federation.lengths[:, None]


@every_covariance_type
def test_the_nearest_centre_is_that_of_the_rows_own_units(covariance_type):
    model, federation = small_model(covariance_type)
    centers = federation.rows[[0, 11, 25]]
    sums = sums_of_nearest(model, centers, federation)
    distances = ((federation.rows[:, None] - centers) ** 2).sum(axis=2)
    closest = distances.argmin(axis=1)
    pieces = np.split(closest, federation.offsets[1:-1])
    counts = [np.bincount(piece, minlength=3) for piece in pieces]
    mass = sums.reshape(4, 3, -1)[:, :, 0]
    assert_array_equal(mass, counts)
    means = sums.reshape(4, 3, -1).sum(axis=0)[:, 1:4] / mass.sum(axis=0)[:, None]
    expected = [federation.rows[closest == g].mean(axis=0) for g in range(3)]
    assert_allclose(model.units.means_to_rows(means), expected, rtol=1e-12)


def test_a_centre_at_an_outlier_takes_no_digits_from_the_others():
    model, federation = small_model("diag", n_components=4)
    centers = np.concatenate([np.full((1, 3), 1e20), federation.rows[[0, 11, 25]]])
    sums = sums_of_nearest(model, centers, federation)
    distances = ((federation.rows[:, None] - centers[1:]) ** 2).sum(axis=2)
    expected = np.bincount(1 + distances.argmin(axis=1), minlength=4)
    assert_array_equal(table(model, sums.sum(axis=0))[:, 0], expected)


@every_covariance_type
def test_rounding_does_not_choose_between_centres_that_are_equally_near(covariance_type):
    model, _ = small_model(covariance_type, n_components=2)
    one, other = centers = np.array([[1.0, 2.0, 3.0], [3.0, 1.0, 3.0]])
    across = np.array([[1.0, 2.0, 0.0], [0.0, 0.0, 1.0]])
    rng = np.random.default_rng(0)
    halfway = (one + other) / 2 + rng.normal(size=(50, 2)) @ across
    rows = halfway * (1 + 1e-15 * rng.normal(size=halfway.shape))
    sums = sums_of_nearest(model, centers, Federation(rows, np.array([0, 50]), np.ones(1)))
    assert_array_equal(table(model, sums)[:, 0], [50, 0])
