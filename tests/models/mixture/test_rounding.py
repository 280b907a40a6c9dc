"""Rows far apart, outliers, constant features: what rounding changes, and what is told."""

import warnings

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import norm
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture

from problems import COVARIANCE_TYPES, fit_unconverged
from skfedem import FederatedGaussianMixture


@pytest.mark.parametrize("covariance_type", ["full", "tied"])
def test_rounding_of_whitened_rows_does_not_change_a_run(covariance_type):
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(center, 1, size=(100, 4)) for center in (-3, 0, 3)])
    rows = PCA(whiten=True).fit_transform(rows)
    start = {"covariance_type": covariance_type, "means_init": rows[[0, 100, 200]]}
    gm = FederatedGaussianMixture(
        3, **start, omega=1.0, participation=0.5, batch_size=5, random_state=0, tol=0, max_iter=30
    )
    fits = []
    for size in (0, 1e-15):
        nudged = rows * (1 + size * rng.normal(size=rows.shape))
        fits.append(fit_unconverged(clone(gm), nudged, clients=np.arange(300) % 6).means_)
    # Messages are rounded at random, by the same draws; 30 rounds add roundings up, and no more.
    assert_allclose(*fits, rtol=0, atol=1e-12)


def apart(distance, seed=0):
    """Clients with one component each, of variance 1 and so far apart."""
    rng = np.random.default_rng(seed)
    clients = [rng.normal(k * distance, 1, size=(60, 2)) for k in (-1, 0, 1)]
    return clients, np.array([client.mean(axis=0) for client in clients])


@pytest.mark.parametrize("covariance_type", ["full", "tied"])
def test_components_far_apart_keep_their_covariances(covariance_type):
    clients, means = apart(1e6)
    given = {"covariance_type": covariance_type, "means_init": means}
    gm = FederatedGaussianMixture(3, **given).fit(clients)  # warns nothing
    rows = np.concatenate(clients)
    theirs = GaussianMixture(3, **given).fit(rows)
    # Second moments in units of 1e6 have four digits of a variance left.
    assert gm.score(rows) == pytest.approx(theirs.score(rows), abs=3e-3)
    assert gm.lower_bound_ == pytest.approx(gm.score(rows), abs=3e-3)


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_covariances_that_rounding_widens_are_told(covariance_type):
    clients, means = apart(1e8)
    gm = FederatedGaussianMixture(3, covariance_type=covariance_type, means_init=means)
    says = r"Covariances of components \[0, 1, 2\] are too small, relative to the distances"
    with pytest.warns(UserWarning, match=says):
        gm.fit(clients)
    assert np.isfinite(gm.covariances_).all()
    # A known covariance needs no second moment.
    gm.set_params(covariance_type="tied", fixed_covariance=np.eye(2)).fit(clients)


@pytest.mark.parametrize("seed", range(4))
def test_one_wrong_cell_is_no_error(seed):
    rng = np.random.default_rng(5)
    rows = np.concatenate([rng.normal(center, 1, size=(50, 3)) for center in (-4, 0, 4)])
    rows[7, 1] = 1e5
    gm = FederatedGaussianMixture(4, random_state=seed)
    with pytest.warns(UserWarning, match="Look for outliers"):
        gm.fit([rows[:75], rows[75:]])
    assert np.isfinite(gm.score(rows))


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
@pytest.mark.parametrize("wrong", [1e17, 1e20, 1e36])
def test_one_fill_value_does_not_make_all_components_alike(covariance_type, wrong):
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(center, 1, size=(50, 3)) for center in (-4, 0, 4)])
    rows[7, 1] = wrong
    gm = FederatedGaussianMixture(4, covariance_type=covariance_type, random_state=0)
    with warnings.catch_warnings():  # covariances may be widened
        warnings.simplefilter("ignore", UserWarning)
        gm.fit(rows, clients=np.arange(150) % 5)
    # If they were, no round could tell them apart, and every row would be in the largest one.
    assert len(np.unique(gm.predict(rows))) > 1


@pytest.mark.parametrize("seed", range(3))
def test_a_code_for_what_is_missing_is_no_error(seed):
    # Components die out between it and the rows: rounding of Ŝ over their mass is a large variance.
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(200, 1))
    rows[rng.random(200) < 0.2] = 99999
    gm = FederatedGaussianMixture(5, random_state=0)
    with pytest.warns(UserWarning, match="Look for outliers"):
        gm.fit(rows, clients=np.arange(200) % 4)
    log_likelihood = gm.history_["log_likelihood"]
    assert np.isfinite(gm.covariances_).all()
    # Far better than the start, unless that had converged already.
    assert log_likelihood[-1] > log_likelihood[0] + 5


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
@pytest.mark.filterwarnings("ignore:The variance of")
def test_features_that_are_constant_within_a_component_have_reg_covar(covariance_type):
    rng = np.random.default_rng(0)
    gains = np.where(rng.random(2000) < 0.9, 0.0, np.exp(rng.normal(6, 1, 2000)))
    rows = np.column_stack([rng.integers(17, 90, 2000), gains, rng.integers(1, 99, 2000)])
    means = np.array([[50.0, 0.0, 50.0], [50.0, 1000.0, 50.0]])
    given = {"covariance_type": covariance_type, "means_init": means, "tol": 1e-2}
    gm = FederatedGaussianMixture(2, **given, random_state=0).fit(rows)  # warns nothing
    if covariance_type == "diag":
        # What rounding leaves of a second moment, about the mean of all rows.
        rounding = 4 * np.finfo(float).eps * gains.var()
        assert_allclose(gm.covariances_[0, 1], 1e-6, rtol=0, atol=rounding)


@pytest.mark.parametrize("covariance_type", ["full", "tied"])
@pytest.mark.filterwarnings("ignore:The variance of")
def test_widened_features_are_told_where_axes_mix_unlike_units(covariance_type):
    # In metres and micrometres: reg_covar is much along their common axis, and little beside the
    # rounding of the micrometres.
    steps = np.arange(30.0) % 3
    far, near = np.column_stack([steps, 1e6 * steps]), np.column_stack([steps, 10 * steps])
    gm = FederatedGaussianMixture(3, covariance_type=covariance_type)
    # Of so few different rows a client sends one centroid, and random ones may find two of them.
    with pytest.warns(
        UserWarning, match=r"Covariances of components \[0, 1, 2\] .* were increased"
    ):
        gm.set_params(means_init=far[:3]).fit(far)
    gm.set_params(means_init=near[:3]).fit(near)  # nothing to tell, and warnings are errors


@pytest.mark.parametrize("covariance_type", ["full", "tied"])
@pytest.mark.filterwarnings("ignore:The variance of")
def test_covariances_are_inverses_of_precisions_whatever_the_units(covariance_type):
    rows = np.random.default_rng(0).normal(size=(200, 4))
    rows[7, 0] = 1e6
    gm = FederatedGaussianMixture(2, covariance_type=covariance_type, random_state=0, reg_covar=10)
    gm.fit(rows)
    covariances = gm.covariances_.reshape(-1, 4, 4)
    assert_array_equal(covariances, np.swapaxes(covariances, 1, 2))
    for covariance, precision in zip(covariances, gm.precisions_.reshape(-1, 4, 4), strict=True):
        scale = np.sqrt(np.diagonal(covariance))
        correlations, inverse = (
            covariance / np.outer(scale, scale),
            precision * np.outer(scale, scale),
        )
        # The correlations are well conditioned.
        assert_allclose(correlations @ inverse, np.eye(4), atol=1e-13)


def test_an_outlier_along_a_new_axis_takes_no_digits_from_covariances():
    rng = np.random.default_rng(0)
    one = rng.normal(size=(60, 1)) + 5 * rng.integers(2, size=(60, 1))
    first = np.hstack([one, one])
    shares = []
    for far in 2.0 ** np.array([30, 60, 100]):
        then = first.copy()
        then[0] = [far, -2 * far]
        gm = FederatedGaussianMixture(2, random_state=0).partial_fit(first).partial_fit(then)
        covariances = gm.covariances_
        shares.append(covariances[np.argmin(covariances[:, 0, 0])] / far**2)
    # The component without this row varies as much along the new axis, the difference of both
    # features, relative to the row. Along their sum, it is at most 25 / far**2.
    assert_allclose(shares[2], shares[2][0, 0] * np.array([[1, -1], [-1, 1]]), rtol=1e-13)
    assert_allclose(shares[1], shares[2], rtol=1e-13)
    assert_allclose(shares[0], shares[2], rtol=1e-13)


def test_constant_features_of_tiny_rows_stay_constant():
    rows = np.random.default_rng(0).normal(size=(200, 5))
    rows[:, 1] = 1
    unit = 2.0**-59
    gm = FederatedGaussianMixture(2, random_state=0, reg_covar=1e-6 * unit**2).fit(rows * unit)
    assert_allclose(gm.means_[:, 1], unit, rtol=1e-14)


@pytest.mark.parametrize("covariance_type", ["diag", "spherical"])
def test_large_constant_features_leave_the_digits_of_others(covariance_type):
    rows = np.random.default_rng(0).normal(size=(120, 12))
    scores = []
    for constants in (0.0, 1e30 * np.arange(1, 11)):
        rows[:, 2:] = constants
        gm = FederatedGaussianMixture(3, covariance_type=covariance_type, means_init=rows[:3])
        scores.append(gm.fit(rows).score_samples(rows))
    # Counted from a mean of the means, which is off by its rounding, rows would be 1e14 away, and
    # lose all digits of the other features. Counted from a mean itself, they are the same rows.
    assert_array_equal(*scores)


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_rounding_of_constant_rows_is_no_new_axis(covariance_type):
    # 0.1 + 0.2 is not 0.3.
    rows = np.where(np.arange(40)[:, None] % 2, 0.3, 0.1 + 0.2)
    settings = {"covariance_type": covariance_type, "tol": 1e-300, "random_state": 0}
    gm = FederatedGaussianMixture(1, warm_start=True, **settings).fit(rows).fit(rows)
    once = FederatedGaussianMixture(1, **settings).fit(rows)
    assert_array_equal(gm.covariances_, once.covariances_)


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_a_regularization_beyond_the_range_of_doubles(covariance_type):
    rows = np.random.default_rng(0).normal(size=(50, 1)) * 1e-110
    gm = FederatedGaussianMixture(1, reg_covar=1e100, covariance_type=covariance_type)
    with pytest.raises(ValueError, match=r"Expected reg_covar to be at most 1e\+300 times the var"):
        gm.fit(rows)
    assert not hasattr(gm, "weights_")


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_rows_whose_squares_overflow_have_probabilities(covariance_type):
    rows = np.random.default_rng(0).normal(size=(100, 2)) * 1e-6
    rows[50:, 0] += 1e-4
    gm = FederatedGaussianMixture(2, covariance_type=covariance_type, reg_covar=1e-18)
    gm.set_params(random_state=0).fit(rows)
    near = np.array([[1.0, 0.0], [-1.0, 0.0]])
    for far in (1e149, 1e145):
        probabilities = gm.predict_proba(far * near)
        assert_allclose(probabilities.sum(axis=1), 1.0, rtol=1e-15)
        assert (gm.score_samples(far * near) < -1e280).all()
        if covariance_type != "tied":  # whose components are equally far, up to rounding
            assert_array_equal(probabilities, gm.predict_proba(near))
            assert_array_equal(gm.predict(far * near), gm.predict(near))


@pytest.mark.parametrize("covariance_type", ["diag", "spherical"])
def test_an_outliers_component_takes_no_digits_from_the_scores_of_other_rows(covariance_type):
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(center, 1, size=(100, 2)) for center in (-4, 4)])
    gm = FederatedGaussianMixture(2, covariance_type=covariance_type, random_state=0)
    gm.fit(rows).set_params(warm_start=True)
    rows[0, 1] = 1e12
    with warnings.catch_warnings():  # covariances may be widened
        warnings.simplefilter("ignore", UserWarning)
        gm.fit(rows)
    pooled = GaussianMixture(2, covariance_type=covariance_type)
    for name in ("weights_", "means_", "precisions_cholesky_"):
        setattr(pooled, name, getattr(gm, name))
    # Near the origin scikit-learn's rounding is that of numbers of a few units.
    assert_allclose(gm.score_samples(rows[1:]), pooled.score_samples(rows[1:]), rtol=1e-12)


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_a_stream_that_has_drifted_is_scored_where_it_is(covariance_type):
    rng = np.random.default_rng(0)
    gm = FederatedGaussianMixture(1, covariance_type=covariance_type, step_size=1.0)
    for second in (0.0, 1e7, 3e7):  # time stamps, say
        rows = rng.normal(second, 17, size=(500, 1))
        gm.set_params(random_state=0).partial_fit(rows)
    expected = norm(gm.means_[0, 0], 1 / gm.precisions_cholesky_.item()).logpdf(rows[:, 0])
    # The difference of a row and the mean has lost 3e7 of 2e16 of a unit.
    assert_allclose(gm.score_samples(rows), expected, rtol=1e-7)


@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag"])
def test_features_in_units_as_unlike_as_doubles_allow(covariance_type):
    rng = np.random.default_rng(0)
    rows, component = rng.normal(size=(200, 2)), np.arange(200) % 2
    rows[:, 0] += 8 * component
    gm = FederatedGaussianMixture(2, covariance_type=covariance_type, reg_covar=0, random_state=0)
    gm.fit(rows * [1e80, 1e-80])
    assert adjusted_rand_score(component, gm.predict(rows * [1e80, 1e-80])) == 1
    assert_allclose(gm.score(rows * [1e80, 1e-80]), gm.lower_bound_, rtol=1e-3)


def test_a_known_covariance_is_the_one_that_was_given():
    rng = np.random.default_rng(0)
    axes = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    given = (axes * [1.0, 1e-4, 1e-8, 1e-12]) @ axes.T
    given = (given + given.T) / 2
    rows = rng.normal(size=(60, 4)) @ np.linalg.cholesky(given).T
    gm = FederatedGaussianMixture(1, covariance_type="tied", fixed_covariance=given).fit(rows)
    assert_array_equal(gm.covariances_, given)
    assert gm.covariances_ is not given
    assert_array_equal(gm.partial_fit(rows).covariances_, given)
    askew = np.array([[1.0, 0.5], [0.500004, 1.0]])  # which is close enough to be accepted
    covariance = gm.set_params(fixed_covariance=askew).fit(rows[:, :2]).covariances_
    assert_array_equal(covariance, covariance.T)


@pytest.mark.parametrize("ratio", [1e6, 1e10, 1e14])
def test_a_known_covariance_far_narrower_than_the_rows_keeps_its_digits(ratio):
    # Clusters that are apart in all features, and in one of them by far more than it varies.
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(300, 3)) + 6 * (np.arange(300) % 3)[:, None]
    rows[:, 0] *= ratio
    variances = np.array([1.0, 2.0, 0.5])
    gm = FederatedGaussianMixture(3, covariance_type="tied", fixed_covariance=np.diag(variances))
    gm.set_params(random_state=0).fit(rows)
    # Unlike its entries, the diagonal does not depend on the units of other features.
    assert_allclose(np.diagonal(gm.precisions_), 1 / variances, rtol=1e-9)
    assert_allclose(np.diagonal(gm.partial_fit(rows).precisions_), 1 / variances, rtol=1e-9)


# ---- components of a single value


def rows_with_zeros():
    """Three features; 40 % of the second one are exact zeros."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(400, 3))
    rows[rng.random(400) < 0.4, 1] = 0.0
    return rows


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("covariance_type", ["diag", "full"])
def test_a_component_on_a_value_that_rows_repeat_is_told(covariance_type):
    rows = rows_with_zeros()
    gm = FederatedGaussianMixture(3, covariance_type=covariance_type, random_state=0)
    says = "variance of feature 1 in component . is within 10 times reg_covar=1e-06.*tied"
    with pytest.warns(UserWarning, match=says):
        gm.fit(rows)
    frame = pd.DataFrame(rows, columns=["age", "dose", "weight"])
    with pytest.warns(UserWarning, match="variance of feature 'dose' in component"):
        gm.fit(frame)
    # The remedies help, and ask for nothing further.
    clone(gm).set_params(covariance_type="tied").fit(rows)
    clone(gm).set_params(reg_covar=0.1).fit(rows)
    gm.fit(rows[:, [0, 2]])


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_constant_and_drowned_features_are_no_collapse(covariance_type):
    rows = rows_with_zeros() * [1.0, 0.0, 1e-3]
    gm = FederatedGaussianMixture(2, covariance_type=covariance_type, random_state=0)
    gm.set_params(max_iter=5).fit(rows)  # warns nothing of variances
    assert np.isfinite(gm.covariances_).all()
