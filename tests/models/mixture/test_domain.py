"""The domain of the M-step, and steps that stay in it."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from mixture_models import at_rows, every_covariance_type, table
from problems import COVARIANCE_TYPES, standard_reg_covar
from skfedem import FederatedGaussianMixture
from skfedem.models.mixture.domain import in_domain, satisfies_boundary_rule
from skfedem.models.mixture.linear_algebra import ROUNDING


@pytest.mark.parametrize("covariance_type", [*COVARIANCE_TYPES, "fixed"])
def test_components_without_mass_are_outside(covariance_type):
    fixed = np.eye(3) if covariance_type == "fixed" else None
    model, statistics = at_rows(covariance_type.replace("fixed", "tied"), fixed=fixed)
    assert in_domain(model, statistics)
    for mass in (0.0, -0.1, np.nan):
        outside = table(model, statistics.copy())
        outside[1, 0] = mass
        assert not in_domain(model, outside.ravel())


@every_covariance_type
def test_negative_variances_are_outside(covariance_type):
    model, statistics = at_rows(covariance_type)
    if covariance_type == "tied":
        # Means that are further apart than the rows are spread.
        outside = table(model, statistics.copy())
        outside[:, 1:4] += 2 * outside[:, :1] * [[3.0, 0, 0], [-3.0, 0, 0], [0, 0, 0]]
    else:
        outside = table(model, statistics.copy())
        outside[1, 4] -= 10.0 * outside[1, 0]
    assert not in_domain(model, outside.ravel())


def test_variances_that_are_negative_by_rounding_alone_are_inside():
    model, statistics = at_rows("diag")
    mass, total, square = table(model, statistics)[0, [0, 1, 4]]
    for below, is_inside in ((0.5, True), (2.0, False)):
        there = table(model, statistics.copy())
        there[0, 4] -= square - total**2 / mass + below * ROUNDING
        assert in_domain(model, there.ravel()) == is_inside


def test_correlations_beyond_one_are_outside():
    model, statistics = at_rows("full")
    outside = table(model, statistics.copy())
    outside[0, 5] += 5.0 * outside[0, 0]  # y_1 y_2
    assert not in_domain(model, outside.ravel())


def test_a_step_does_not_carry_means_beyond_the_rows_of_a_known_covariance():
    model, statistics = at_rows("tied", fixed=np.eye(3))
    # Up to where the means take up all the second moment along an axis; then no data are there.
    field = table(model, np.zeros_like(statistics))
    field[:, 1] = [10.0, -10.0, 0.0]
    far = statistics + field.ravel()
    assert in_domain(model, far)  # T itself does not mind
    assert not satisfies_boundary_rule(model, far, statistics, 0.0)
    after, _, halvings, *_ = model.server_step(statistics, field.ravel(), 1.0, exact=False)
    assert 0 < halvings < 20
    assert satisfies_boundary_rule(model, after, statistics, 0.0)
    # Where given means lie beyond already, steps are free; a stream does not know where that is.
    assert satisfies_boundary_rule(model, 2 * far, far, 0.0)
    assert satisfies_boundary_rule(replace(model, in_stream=True), far, statistics, 0.0)


@every_covariance_type
@pytest.mark.parametrize(
    "step_size, losses",
    [
        # Component 0 keeps at least half of 1 - γ, here 0.45, of its mass m: it may lose 0.55 m.
        (0.1, [(0.5, 0), (0.6, 1), (1.2, 2), (40.0, 7)]),
        # It keeps a quarter whatever γ is.
        (1.0, [(0.7, 0), (0.8, 1), (1.6, 2)]),
    ],
)
def test_a_step_is_halved_until_it_stays(covariance_type, step_size, losses):
    model, statistics = at_rows(covariance_type)
    mass = statistics[0]
    for loss, halvings in losses:
        field = -(loss / step_size) * table(model, statistics) * [[1.0], [0.0], [0.0]]
        # The lost rows go to component 1, so that every moment stays that of some rows.
        field[1] = -field[0]
        after, _, found, *_ = model.server_step(statistics, field.ravel(), step_size, exact=False)
        assert found == halvings
        kept = 1 - loss / 2**halvings
        assert_allclose(after[0], kept * mass, rtol=1e-12)


@pytest.mark.parametrize("covariance_type", ["full", "diag", "spherical"])
def test_a_step_keeps_its_share_of_every_components_scatter(covariance_type):
    # One whose mass stays: component 0 keeps at least 0.45 of its scatter at a step of 0.1.
    model, statistics = at_rows(covariance_type)
    here = model.maximization(statistics)
    for loss, halvings in ((0.5, 0), (0.6, 1), (0.95, 1), (1.2, 2)):
        share = np.reshape([loss, 0.0, 0.0], (3, *[1] * (here.covariances.ndim - 1)))
        less = here._replace(covariances=(1 - share) * here.covariances)
        field = (model.statistics_of(less) - statistics) / 0.1
        after, _, found, *_ = model.server_step(statistics, field, 0.1, exact=False)
        assert found == halvings
        kept = 1 - loss / 2**halvings
        found_covariance = model.maximization(after).covariances[0]
        assert_allclose(found_covariance, kept * here.covariances[0], rtol=1e-9, atol=1e-11)


def test_a_step_to_nowhere_is_not_taken():
    model, statistics = at_rows("diag")
    nowhere = np.full_like(statistics, np.nan)
    after, _, halvings, step_size, noisy = model.server_step(statistics, nowhere, 0.5, exact=False)
    assert_array_equal(after, statistics)
    assert (halvings, step_size, noisy) == (20, 0.0, True)
    far = table(model, statistics.copy())
    far[:, 4:] = np.inf  # second moments
    assert not satisfies_boundary_rule(model, far.ravel(), statistics, 0.0)


@every_covariance_type
def test_a_step_keeps_more_than_the_share_of_a_mass(covariance_type):
    model, statistics = at_rows(covariance_type)
    for share in (0.0, 0.5):
        for rest, is_kept in ((share, False), (share + 0.01, True)):
            assert satisfies_boundary_rule(model, rest * statistics, statistics, share) == is_kept


@every_covariance_type
@pytest.mark.parametrize("mass", [0.0, -1e-17])
def test_a_component_that_died_does_not_stop_the_others(covariance_type, mass):
    # Exact rounds leave its Ŝ at 0, or at rounding of either sign. Noise may ask for any step.
    model, statistics = at_rows(covariance_type, reg_covar=1e-6)
    statistics = table(model, statistics.copy())
    statistics[0], statistics[0, 0] = 0.0, mass
    for noise, safeguarded in ((0.0, 0), (-1e-3, 1)):
        field = 0.5 * statistics * [[0.0], [1.0], [-1.0]]
        field[0, 0] = noise
        after, _, found, step_size, _ = model.server_step(
            statistics.ravel(), field.ravel(), 0.1, exact=False
        )
        assert (found, step_size) == (safeguarded, 0.1)
        field[0, 0] = 0.0
        assert_array_equal(table(model, after), statistics + 0.1 * field)


def test_half_of_the_regularisation_counts_as_scatter_at_both_ends_of_a_step():
    model, statistics = at_rows("diag", reg_covar=0.5)
    added = standard_reg_covar(model)
    variances = model.maximization(statistics).covariances - added  # of the rows
    # Of v + r / 2, half is kept where v' > v / 2 - r / 4.
    for less, is_kept in ((0.24, True), (0.26, False)):
        proposal = table(model, statistics.copy())
        lost = 0.5 * variances[0, 0] + less * added[0]
        proposal[0, 4] -= proposal[0, 0] * lost
        assert satisfies_boundary_rule(model, proposal.ravel(), statistics, 0.5) == is_kept


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@every_covariance_type
def test_a_constant_feature_stays_in_the_domain(covariance_type):
    rows = np.random.default_rng(0).standard_normal((30, 3))
    rows[:, 1] = 5.0
    fit = FederatedGaussianMixture(
        2, covariance_type=covariance_type, omega=0.5, participation=0.7, random_state=0
    )
    fit.fit(np.split(rows, 3))
    # Minus its mean it is zero, and a zero is never compressed to anything else.
    assert_allclose(fit.means_[:, 1], 5.0, rtol=1e-12)
    assert np.isfinite(fit.lower_bound_)
