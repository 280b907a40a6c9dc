"""Standard units: unit second moments, there and back, and what is left of constant directions."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import ortho_group

from problems import COVARIANCE_TYPES
from skfedem import FederatedGaussianMixture
from skfedem.models.mixture.units import (
    independent_rows,
    pca_whitening,
    standard_units,
    with_new_axes,
)


def correlated_rows(offset=0.0):
    """Rows in unlike units, correlated, away from the origin."""
    generator = np.random.default_rng(0)
    return generator.standard_normal((200, 3)) @ [[1, 5, 0], [0, 2, 0.01], [0, 0, 0.02]] + offset


def units_of(rows, covariance_type, reg_covar=0.0):
    center = rows.mean(axis=0)
    second_moment = (rows - center).T @ (rows - center) / len(rows)
    if covariance_type in ("diag", "spherical"):
        second_moment = np.diagonal(second_moment)
    return standard_units(center, second_moment, covariance_type, reg_covar)


def standardized(units, rows):
    """Rows of one client in standard units, one a row."""
    return units.standardize(rows, np.array([len(rows)])).T


def moments_about(units, rows, covariance_type):
    """Second moments of rows about the units' centre, as ``with_new_axes`` wants them."""
    y = rows - units.center
    moments = y.T @ y / len(y)
    return np.diagonal(moments) if covariance_type in ("diag", "spherical") else moments


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_rows_have_unit_second_moments(covariance_type):
    rows = correlated_rows(offset=100.0)
    y = standardized(units_of(rows, covariance_type), rows)
    moments = y.T @ y / len(y)
    # The offset of 100 leaves 1e-14 of features of spread 0.02, in units of that: 1e-12.
    if covariance_type in ("full", "tied"):
        assert_allclose(moments, np.eye(3), atol=1e-10)
    elif covariance_type == "diag":
        assert_allclose(np.diagonal(moments), 1.0, atol=1e-10)
    else:
        assert_allclose(np.trace(moments), 3.0, atol=1e-10)
    assert_allclose(y.mean(axis=0), 0.0, atol=1e-10)


@pytest.mark.parametrize("covariance_type", ["full", "tied"])
def test_there_and_back(covariance_type):
    rows = correlated_rows()
    units = units_of(rows, covariance_type)
    assert_allclose(units.means_to_rows(units.means_to_standard(rows[:5])), rows[:5], rtol=1e-10)
    covariance = np.cov(rows[:50].T)
    back = (
        units.inverse_whitening.T
        @ units.covariances_to_standard(covariance)
        @ units.inverse_whitening
    )
    assert_allclose(back, covariance, rtol=1e-9)
    # A volume: the determinant of a covariance changes by its square.
    before, after = (
        np.linalg.slogdet(matrix)[1]
        for matrix in (covariance, units.covariances_to_standard(covariance))
    )
    assert_allclose(units.log_volume, (after - before) / 2, rtol=1e-10)


# Shares of variance along six axes: all alike, as a PCA with whitening leaves them; in pairs; less
# than a thousandth apart; some without variance; and all apart.
SHARES = {
    "alike": [1.0, 1, 1, 1, 1, 1],
    "pairs": [0.5, 0.5, 1, 1, 3, 3],
    "nearly alike": [1.0, 1.0005, 2, 2.001, 2.002, 5],
    "without variance": [0.0, 0, 0, 1, 1, 4],
    "apart": [0.1, 0.2, 0.4, 0.8, 1.6, 3.2],
}


@pytest.mark.parametrize("shares", SHARES.values(), ids=SHARES.keys())
@pytest.mark.parametrize("turned", [False, True])
def test_rounding_does_not_choose_the_axes(shares, turned):
    axes = ortho_group.rvs(6, random_state=0) if turned else np.eye(6)
    second_moment = axes * shares @ axes.T
    rotation, varies = pca_whitening(second_moment, 0.0)
    assert np.count_nonzero(varies) == np.count_nonzero(shares)
    assert_allclose(rotation.T @ second_moment @ rotation, np.diag(varies * 1.0), atol=1e-12)
    rng = np.random.default_rng(0)
    for _ in range(20):
        # LAPACK turns axes whose shares are alike by as much as it likes.
        nudge = 1e-15 * rng.normal(size=(6, 6))
        again, still = pca_whitening(second_moment + nudge + nudge.T, 0.0)
        assert_array_equal(still, varies)
        # Those of other shares are turned by the nudge over the gap, 0.1 or more.
        assert_allclose(again, rotation, atol=1e-12)


def test_axes_with_alike_variances_are_the_features_own():
    rotation, _ = pca_whitening(np.diag([2.0, 2.0, 2.0]), 0.0)
    assert_allclose(rotation, np.eye(3) / np.sqrt(2), atol=1e-15)
    # Of the plane across (1, 1, 1), the two axes nearest to the first two features.
    rotation, varies = pca_whitening(np.eye(3) - np.ones((3, 3)) / 3, 0.0)
    assert_array_equal(varies, [False, True, True])
    plane = rotation[:, 1:]
    assert_allclose(plane[:2], plane[:2].T, atol=1e-15)
    assert (np.linalg.eigvalsh(plane[:2]) > 0).all()


def test_axes_whose_variances_differ_by_a_hundredth_are_principal():
    turned = ortho_group.rvs(3, random_state=0)
    rotation, _ = pca_whitening(turned * [1.0, 1.01, 1.02] @ turned.T, 0.0)
    assert_allclose(np.abs(rotation), np.abs(turned) / np.sqrt([1.0, 1.01, 1.02]), atol=1e-10)


def test_features_that_span_the_axes_are_far_from_dependent():
    # Neighbouring points of smooth curves are nearly so: of 200, the first 51 are as good as 20.
    places = 2 * np.pi * np.arange(200)[:, None] / 200
    waves = np.arange(1, 26) * places
    axes = np.linalg.qr(np.hstack([np.ones((200, 1)), np.sin(waves), np.cos(waves)]))[0]
    chosen = independent_rows(axes)
    assert len(chosen) == 51
    assert np.linalg.cond(axes[:51]) > 1e9 > 1e4 * np.linalg.cond(axes[chosen])


def test_rounding_in_a_constant_feature_is_no_variance_where_others_vary_less_than_reg_covar():
    rng = np.random.default_rng(0)
    rows = np.column_stack([1e6 + 1e-10 * rng.normal(size=50), 1e-4 * rng.normal(size=50)])
    assert_array_equal(units_of(rows, "full", reg_covar=1e-6).has_variance, [False, True])


def test_axes_point_along_the_first_feature_that_has_a_part_in_them():
    rng = np.random.default_rng(0)
    for _ in range(20):
        factor = rng.normal(size=(5, 5))
        rotation, _ = pca_whitening(factor @ factor.T, 0.0)
        axes = rotation / np.linalg.norm(rotation, axis=0)
        first = np.argmax(axes**2 > (axes**2).max(axis=0) / np.pi, axis=0)
        assert (axes[first, np.arange(5)] > 0).all()


def test_directions_without_variance_keep_their_units():
    rows = correlated_rows()
    rows = np.column_stack([rows, rows[:, 0] + rows[:, 1], np.full(200, 0.1)])
    units = units_of(rows, "full")
    y = standardized(units, rows)
    variances = np.sort((y**2).mean(axis=0))
    assert_allclose(variances[2:], 1.0, rtol=1e-9)
    # A sum of two others and a constant: rounding, which is not blown up to a variance.
    assert (variances[:2] < 1e-20).all()
    assert_allclose(units.means_to_rows(y), rows, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("size", [1e3, 1e6, 3e6])
def test_directions_of_little_variance_are_whitened(size):
    rng = np.random.default_rng(0)
    common = size * rng.normal(size=200)
    rows = np.column_stack([common, common + rng.normal(size=200)])
    units = units_of(rows, "full")
    assert units.has_variance.all()
    # The share of variance, 1 / size², is known to some roundings.
    variances = (standardized(units, rows) ** 2).mean(axis=0)
    assert_allclose(variances, 1.0, rtol=1e-9 + 1e-15 * size**2)


@pytest.mark.parametrize("scale", [1e-3, 1e-30])
def test_a_feature_that_varies_less_than_reg_covar_keeps_an_axis_of_its_own(scale):
    rows = correlated_rows() * [1.0, scale, 1.0]  # of variances 1.03, 29.5 scale² and 5e-4
    turned = units_of(rows, "full", reg_covar=29 * scale**2)
    assert turned.whitening[1, [0, 2]].all() and turned.whitening[[0, 2], 1].all()
    units = units_of(rows, "full", reg_covar=30 * scale**2)
    own = [0, units_of(rows, "diag").whitening[1, 1], 0]
    assert_array_equal(units.whitening[1], own)
    assert_array_equal(units.whitening[:, 1], own)
    among_themselves = units_of(rows[:, [0, 2]], "full").whitening
    others = np.ix_([0, 2], [0, 2])
    assert_allclose(units.whitening[others], among_themselves, rtol=1e-12)


@pytest.mark.parametrize(
    ("covariance_type", "extra"),
    [("full", "dependent"), ("tied", "dependent"), ("full", "constant"), ("diag", "constant")],
)
def test_rows_are_zero_where_they_do_not_vary(covariance_type, extra):
    rows = correlated_rows(offset=100.0)
    last = rows[:, 0] + rows[:, 1] if extra == "dependent" else np.full(len(rows), 0.1)
    rows = np.column_stack([rows, last])
    units = units_of(rows, covariance_type)
    y = standardized(units, rows)
    assert np.count_nonzero(units.has_variance) == 3
    # Exactly: nothing is left that compression could make something of.
    assert_array_equal(y[:, ~units.has_variance], 0.0)
    assert (np.abs(y[:, units.has_variance]) > 0).all(axis=0).all()


@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag"])
def test_axes_that_are_new_have_unit_second_moments(covariance_type):
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(200, 2))
    first = np.column_stack([np.full(200, 7.0), rows, rows.sum(axis=1), np.full(200, 3.0)])
    units = units_of(first, covariance_type)
    same = with_new_axes(units, moments_about(units, first, covariance_type))
    assert same is units
    then = first + 1e3 * generator.normal(size=(200, 1)) * [1, 0, 0, 0, 0]
    after = with_new_axes(units, moments_about(units, then, covariance_type))
    is_new = after.has_variance & ~units.has_variance
    y, before = standardized(after, then), standardized(units, then)
    assert np.count_nonzero(is_new) == 1
    assert_allclose(np.square(y[:, is_new]).mean(axis=0), 1.0, rtol=1e-12)
    assert_allclose(y[:, units.has_variance], before[:, units.has_variance], rtol=0, atol=1e-12)
    assert_array_equal(y[:, ~after.has_variance], 0.0)
    # What still does not vary is rounding, in the rows' units as well.
    assert_allclose(after.means_to_rows(y), then, rtol=0, atol=1e-9)


@pytest.mark.parametrize("covariance_type", ["full", "tied"])
@pytest.mark.parametrize("seed", range(4))
def test_rounding_of_much_wider_rows_is_no_new_axis(covariance_type, seed):
    # The third feature follows from the others, up to rounding of rows that are 1e4 times as wide.
    rows = np.random.default_rng(seed).normal(size=(200, 2))
    rows = np.column_stack([rows, rows @ [0.3, 0.7]])
    units = units_of(rows, covariance_type)
    assert np.count_nonzero(units.has_variance) == 2
    wide = moments_about(units, 1e4 * rows, covariance_type)
    assert with_new_axes(units, wide) is units


def test_rows_of_a_constant_start_get_their_scale_later():
    rows = np.random.default_rng(0).normal(size=(200, 2)) * [1, 10]
    gm = FederatedGaussianMixture(1, covariance_type="spherical", warm_start=True)
    gm.fit(np.zeros((5, 2)))
    gm.fit(rows)
    # reg_covar adds a ten-millionth.
    assert_allclose(gm.covariances_, [rows.var(axis=0).mean()], rtol=1e-6)
