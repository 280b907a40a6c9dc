"""The Gaussian mixture as a model: E-step, M-step, domain, units."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.mixture import GaussianMixture

import literal
from problems import (
    COVARIANCE_TYPES,
    KNOWN_COVARIANCE,
    client_means,
    mean_statistics,
    mixture_log_likelihoods,
    mixture_model,
    mixture_parameters,
    ragged_clients,
    stack,
    standard_reg_covar,
    standard_rows,
)
from skfedem import FederatedGaussianMixture
from skfedem.models._base import Start
from skfedem.models.mixture import gaussian_mixture
from skfedem.models.mixture.assignment import sums_of_nearest
from skfedem.models.mixture.covariances import COVARIANCES
from skfedem.models.mixture.domain import in_domain, satisfies_boundary_rule
from skfedem.models.mixture.linear_algebra import ROUNDING
from skfedem.models.mixture.parameters import in_row_units, in_standard_units
from skfedem.models.mixture.stream import for_stream

every_covariance_type = pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)


def small_model(covariance_type, n_components=3, n_features=3, **params):
    """A model in units of its own, and rows in more than two dimensions."""
    generator = np.random.default_rng(1)
    rows = generator.standard_normal((40, n_features)) @ np.diag([1.0, 2.0, 0.5][:n_features])
    federation = stack(np.split(rows + [3.0, 0.0, -1.0][:n_features], [5, 6, 20]))
    return mixture_model(federation, covariance_type, n_components, **params), federation


def table(model, statistics):
    return statistics.reshape(model.n_components, model.n_functions)


def plain(model, parameters):
    """Parameters as the literal functions and scikit-learn take them, in standard units."""
    return parameters.weights, parameters.means, parameters.covariances


# ---- E-step


@every_covariance_type
def test_expected_statistics_are_the_literal_ones(covariance_type):
    model, federation = small_model(covariance_type)
    parameters = mixture_parameters(model)
    rows = standard_rows(model, federation.rows)
    statistics, _ = client_means(model, federation, parameters)
    pieces = np.split(rows, federation.offsets[1:-1])
    for own, found in zip(pieces, statistics, strict=True):
        expected = literal.expected_statistics(own, *plain(model, parameters), covariance_type)
        assert_allclose(table(model, found), expected, rtol=1e-11, atol=1e-13)


@every_covariance_type
def test_features_are_the_literal_ones_in_standard_units(covariance_type):
    model, federation = small_model(covariance_type)
    features = model.features(federation.rows)
    rows = standard_rows(model, federation.rows)
    expected = np.transpose([literal.features(row, covariance_type) for row in rows])
    assert features.shape == (model.n_functions, 40)
    assert_allclose(features, expected, rtol=1e-13, atol=1e-15)


@every_covariance_type
@pytest.mark.parametrize("varies", [(True, False, True), (False, False, False)])
def test_statistics_are_zero_where_functions_are_zero_for_all_rows(covariance_type, varies):
    _, federation = small_model(covariance_type)
    rows = np.where(varies, federation.rows, 2.0)
    model = mixture_model(federation._replace(rows=rows), covariance_type, reg_covar=1e-3)
    shape = {"full": (2, 1, 1), "tied": (1, 1), "diag": (2, 3), "spherical": 2}[covariance_type]
    covariances = np.ones(shape) * (np.eye(3) if covariance_type in ("full", "tied") else 1)
    parameters = model.parameters(np.array([0.4, 0.6]), np.ones((2, 3)), covariances)
    found = table(model, model.statistics_of(parameters))
    is_zero = (model.features(rows) == 0).all(axis=1)
    assert_array_equal(found == 0, np.stack([is_zero, is_zero]))


@every_covariance_type
def test_log_likelihood_of_any_parameters_is_scipys(covariance_type):
    # Also of covariances that T would not give: what a user may start from.
    model, federation = small_model(covariance_type)
    weights, means, covariances = plain(model, mixture_parameters(model, seed=3, spread=0.2))
    parameters = model.parameters(weights, means, 1.7 * covariances)
    in_rows = in_row_units(model.units, parameters)[:3]
    expected = mixture_log_likelihoods(federation.rows, *in_rows, covariance_type).mean()
    _, log_likelihoods = client_means(model, federation, parameters)
    found = model.criterion_value(federation.weights @ log_likelihoods, parameters)
    assert_allclose(found, expected, rtol=1e-12)


def test_log_likelihood_far_in_the_tails_does_not_underflow():
    model, federation = small_model("full")
    parameters = mixture_parameters(model)
    far = federation._replace(rows=federation.rows + 1e4 * model.units.scale)
    statistics, log_likelihoods = client_means(model, far, parameters)
    assert np.isfinite(statistics).all()
    in_rows = in_row_units(model.units, parameters)[:3]
    expected = mixture_log_likelihoods(far.rows, *in_rows, "full").mean()
    found = model.criterion_value(federation.weights @ log_likelihoods, parameters)
    # Squares of 1e4 of either sign: eight of sixteen digits, at worst.
    assert_allclose(found, expected, rtol=1e-8)


@every_covariance_type
def test_the_nearest_centre_is_that_of_the_rows_own_units(covariance_type):
    model, federation = small_model(covariance_type)
    centers = federation.rows[[0, 11, 25]]
    sums = sums_of_nearest(model, centers, federation.rows, federation.lengths)
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
    sums = sums_of_nearest(model, centers, federation.rows, federation.lengths)
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
    sums = sums_of_nearest(model, centers, rows, np.array([50]))
    assert_array_equal(table(model, sums)[:, 0], [50, 0])


@every_covariance_type
def test_rounding_does_not_change_the_constants(covariance_type):
    # Seconds since 1970, of one day; and a feature that is another's but for a millionth.
    rng = np.random.default_rng(0)
    rows = np.column_stack([1.7e9 + rng.uniform(0, 86400, 100), rng.normal(size=100)])
    rows = np.column_stack([rows, rows[:, 1] + 1e-6 * rng.normal(size=100)])
    # Half zeros, half ones: the mean is the standard deviation; and ten times that.
    halves = np.arange(100) % 2
    rows = np.column_stack([rows, halves, 9 + 2 * halves])

    def constants(rows):
        return mixture_model(stack([rows]), covariance_type).constants()

    first = constants(rows)
    for _ in range(20):
        nudged = rows * (1 + 1e-15 * rng.normal(size=rows.shape))
        assert_array_equal(constants(nudged), first)
    assert not np.array_equal(constants(1.001 * rows), first)


def test_large_clients_are_read_in_pieces(monkeypatch):
    size = gaussian_mixture._BLOCK_SIZE._replace(cache=1)
    monkeypatch.setattr(gaussian_mixture, "_BLOCK_SIZE", size)
    federation = stack(ragged_clients((300, 64, 65, 10)))
    model = mixture_model(federation, "full")
    assert model.block_rows == 64
    monkeypatch.undo()
    assert model.block_rows > 1000


@pytest.mark.parametrize("has_quadratic_forms", [False, True])
def test_rows_read_at_once_may_be_clients_of_their_own(has_quadratic_forms, monkeypatch):
    model = replace(small_model("full")[0], has_quadratic_forms=has_quadratic_forms)
    size = gaussian_mixture._BLOCK_SIZE._replace(statistics=100 * model.n_statistics)
    monkeypatch.setattr(gaussian_mixture, "_BLOCK_SIZE", size)
    assert model.block_rows == 100


# ---- M-step


@every_covariance_type
@pytest.mark.parametrize("total_mass", [1.0, 1.2])
def test_t_is_the_literal_m_step(covariance_type, total_mass):
    # Noise lets the masses sum to something else than one.
    model, federation = small_model(covariance_type, reg_covar=0.02)
    statistics = mean_statistics(model, federation, mixture_parameters(model))
    statistics[:: model.n_functions] *= total_mass
    found = model.maximization(statistics)
    expected = literal.m_step(
        table(model, statistics), covariance_type, standard_reg_covar(model), model.second_moment
    )
    for got, want in zip(found[:3], expected, strict=True):
        assert_allclose(got, want, rtol=1e-12, atol=1e-13)


@every_covariance_type
def test_t_inverts_the_expected_statistic_with_regularisation(covariance_type):
    model, _ = small_model(covariance_type, reg_covar=0.1)
    parameters = mixture_parameters(model)
    found = model.maximization(model.statistics_of(parameters))
    for got, want in zip(found, parameters, strict=True):
        assert_allclose(got, want, rtol=1e-11, atol=1e-11)


def test_regularisation_is_in_the_rows_units_squared():
    # The covariance in the rows' units is that of the rows plus reg_covar, for one component.
    for covariance_type in COVARIANCE_TYPES:
        model, federation = small_model(covariance_type, n_components=1, reg_covar=0.3)
        rows = federation.rows - federation.rows.mean(axis=0)
        parameters = mixture_parameters(model, spread=0.0)
        fitted = model.maximization(mean_statistics(model, federation, parameters))
        _, means, covariances, _ = in_row_units(model.units, fitted)
        moment = rows.T @ rows / len(rows)
        expected = {
            "full": [moment + 0.3 * np.eye(3)],
            "tied": moment + 0.3 * np.eye(3),
            "diag": [np.diag(moment) + 0.3],
            "spherical": [np.diag(moment).mean() + 0.3],
        }[covariance_type]
        assert_allclose(means[0], federation.rows.mean(axis=0), rtol=1e-12)
        assert_allclose(covariances, expected, rtol=1e-12, atol=1e-12)


def perturbed(model, parameters, generator, size):
    """Other parameters near by, also such as T never gives."""
    weights = parameters.weights * np.exp(size * generator.standard_normal(model.n_components))
    means = parameters.means + size * generator.standard_normal(parameters.means.shape)
    covariances = parameters.covariances
    if model.fixed_covariance is None and model.covariance_type in ("full", "tied"):
        d = model.n_features
        turn = np.eye(d) + size * generator.standard_normal((*covariances.shape[:-2], d, d))
        covariances = turn @ covariances @ np.swapaxes(turn, -1, -2)
    elif model.fixed_covariance is None:
        covariances = covariances * np.exp(size * generator.standard_normal(covariances.shape))
    return model.parameters(weights / weights.sum(), means, covariances)


@pytest.mark.parametrize("total_mass", [1.0, 1.2, 0.8])
@pytest.mark.parametrize("covariance_type", [*COVARIANCE_TYPES, "fixed"])
def test_no_parameters_beat_those_of_t(covariance_type, total_mass):
    fixed = np.eye(3) + 0.2 if covariance_type == "fixed" else None
    model, federation = small_model(covariance_type.replace("fixed", "tied"), fixed=fixed)
    statistics = mean_statistics(model, federation, mixture_parameters(model))
    # Noise lets the masses sum to something else than one.
    statistics[:: model.n_functions] *= total_mass
    best = model.maximization(statistics)
    value = model.surrogate(statistics, best)
    generator = np.random.default_rng(0)
    for size in (1e-3, 1e-2, 0.1):
        for _ in range(50):
            other = model.surrogate(statistics, perturbed(model, best, generator, size))
            # At a maximum the loss is quadratic: at least 1e-3 of the square of the step here,
            # which at 1e-3 is 1e-9, far above the rounding of numbers of order 10.
            assert other < value - 1e-4 * size**2


def test_the_surrogate_is_what_em_gains_at_the_e_step():
    # At the statistic of θ itself, log p(θ) - Q(θ) is the entropy of the posterior.
    model, federation = small_model("tied")
    parameters = mixture_parameters(model)
    statistics, log_likelihoods = client_means(model, federation, parameters)
    gap = federation.weights @ log_likelihoods - parameters.log_partition
    gap -= model.surrogate(federation.weights @ statistics, parameters)
    rows = standard_rows(model, federation.rows)
    shares = np.array(literal.responsibilities(rows, *plain(model, parameters), "tied"))
    entropy = -(shares * np.log(shares)).sum(axis=1).mean()
    assert_allclose(gap, entropy, rtol=1e-11)


# ---- the domain of T


def at_rows(covariance_type, **params):
    model, federation = small_model(covariance_type, **params)
    return model, mean_statistics(model, federation, mixture_parameters(model))


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


@pytest.mark.parametrize("covariance_type", ["diag", "spherical"])
def test_a_variance_that_is_negative_by_rounding_counts_as_none(covariance_type):
    # Over the mass of a rare component, this rounding is many times what reg_covar adds.
    model, statistics = at_rows(covariance_type, reg_covar=1e-10)
    there, mass = table(model, statistics.copy()), 1e-6
    there[0] *= mass / there[0, 0]
    second = {"diag": there[0, 1:4] ** 2, "spherical": (there[0, 1:4] ** 2).sum()}[covariance_type]
    there[0, 4:] = second / mass - 0.5 * ROUNDING
    assert in_domain(model, there.ravel())
    parameters = model.maximization(there.ravel())
    added = model.regularization(parameters.means)[0]
    assert_array_equal(parameters.covariances[0], added)
    assert np.all(added < 0.5 * ROUNDING / mass / 3)


@pytest.mark.parametrize(("share", "is_lost"), [(0.5, True), (2.0, False)])
def test_a_variance_that_reg_covar_gives_is_not_lost_in_rounding(share, is_lost):
    model, _ = small_model("diag", n_components=2)
    rounding = ROUNDING * (1 + 10.0**2)
    model = replace(model, reg_covar=share * rounding * model.units.scale[0] ** 2)
    means = np.array([[10.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    covariances = np.ones((2, 3))
    covariances[0, 0] = model.regularization(means)[0, 0]  # no scatter
    parameters = model.parameters(np.array([0.5, 0.5]), means, covariances)
    assert model.inaccurate_components(parameters).tolist() == ([0] if is_lost else [])


@every_covariance_type
def test_a_component_of_rounding_alone_has_the_mean_of_all_rows(covariance_type):
    # Steps leave as much of its sums as of its mass, or more: their quotient says nothing.
    model, statistics = at_rows(covariance_type, reg_covar=1e-6)
    there = table(model, statistics.copy())
    there[0], there[0, 0] = 1e-15, 1e-17
    assert_array_equal(model.maximization(there.ravel()).means[0], 0.0)


@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag"])
def test_statistics_are_zero_along_axes_without_variance(covariance_type):
    # As those of rows are, wherever the given means lie and however wide the components are.
    generator = np.random.default_rng(1)
    rows = generator.standard_normal((40, 3)) * [1.0, 0.0, 2.0] + 3.0
    model = mixture_model(stack(np.split(rows, [5, 20])), covariance_type, 2)
    shape = {"full": (2, 1, 1), "tied": (1, 1), "diag": (2, 1)}[covariance_type]
    one = np.ones(3) if covariance_type == "diag" else np.eye(3)
    parameters = model.parameters(
        np.array([0.3, 0.7]), generator.standard_normal((2, 3)), np.tile(one, shape)
    )
    of_rows = (model.features(rows) != 0).any(axis=1)
    assert not of_rows.all()
    statistics = table(model, model.statistics_of(parameters))
    assert_array_equal(statistics != 0, np.tile(of_rows, (2, 1)))


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


def test_correlations_beyond_one_are_outside():
    model, statistics = at_rows("full")
    outside = table(model, statistics.copy())
    outside[0, 5] += 5.0 * outside[0, 0]  # y_1 y_2
    assert not in_domain(model, outside.ravel())


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


# ---- components, features and covariances at the edge


def edge_start(covariance_type, means):
    precisions = {
        "full": np.array([np.eye(2)] * 2),
        "tied": np.eye(2),
        "diag": np.ones((2, 2)),
        "spherical": np.ones(2),
    }[covariance_type]
    return {"weights_init": [0.5, 0.5], "means_init": means, "precisions_init": precisions}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@every_covariance_type
@pytest.mark.parametrize("distance", [20.0, 50.0, 500.0])
def test_an_empty_component_does_not_harm_the_others(covariance_type, distance):
    rows = np.random.default_rng(0).standard_normal((60, 2)) * [1.0, 2.0]
    params = {"max_iter": 6, "tol": 0.0}
    params.update(edge_start(covariance_type, [[0.0, 0.0], [distance, distance]]))
    pooled = GaussianMixture(2, covariance_type=covariance_type, **params).fit(rows)
    fit = FederatedGaussianMixture(2, covariance_type=covariance_type, **params)
    fit.fit(np.split(rows, [10, 35]))
    assert fit.weights_[1] < 1e-12
    # doc/user_guide.rst: the one difference between the two packages.
    assert_allclose(fit.means_[1], rows.mean(axis=0), rtol=1e-12)
    assert_allclose(fit.weights_, pooled.weights_, rtol=0, atol=1e-12)
    assert_allclose(fit.means_[0], pooled.means_[0], rtol=1e-8)
    if covariance_type == "tied":
        assert_allclose(fit.covariances_, pooled.covariances_, rtol=1e-8)
    else:
        assert_allclose(fit.covariances_[0], pooled.covariances_[0], rtol=1e-8)
    assert_allclose(fit.lower_bound_, pooled.lower_bound_, rtol=1e-8)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@every_covariance_type
@pytest.mark.parametrize("constant", [0.0, 0.1, 1e5 / 3, 1e6])
def test_a_constant_feature_changes_no_other(covariance_type, constant):
    rows = np.random.default_rng(0).standard_normal((60, 2)) + np.repeat([[0.0], [3.0]], 30, 0)
    wide = np.column_stack([rows, np.full(60, constant)])
    params = {"max_iter": 8, "tol": 0.0, "reg_covar": 1e-6}
    means = np.array([[0.0, 0.0], [3.0, 3.0]])
    start = edge_start(covariance_type, means)
    start.pop("precisions_init")
    narrow = FederatedGaussianMixture(2, covariance_type=covariance_type, **params, **start)
    narrow.fit(np.split(rows, 3))
    start["means_init"] = np.column_stack([means, np.full(2, constant)])
    fit = FederatedGaussianMixture(2, covariance_type=covariance_type, **params, **start)
    fit.fit(np.split(wide, 3))
    if covariance_type == "spherical":
        # One variance for all features: a third feature without spread does change it.
        assert_allclose(fit.means_[:, 2], constant, rtol=1e-12)
        return
    # It has no part in the statistics either: their norm is that without it.
    norms = fit.history_["mean_field_sq_norm"]
    assert_allclose(norms, narrow.history_["mean_field_sq_norm"], rtol=1e-6)
    assert_allclose(fit.weights_, narrow.weights_, rtol=1e-8)
    assert_allclose(fit.means_[:, :2], narrow.means_, rtol=1e-8, atol=1e-9)
    assert_allclose(fit.means_[:, 2], constant, rtol=1e-12)
    variances = fit.covariances_ if covariance_type == "diag" else fit.covariances_[..., 2, 2]
    # With matrices, rounding (64 eps) is added.
    got = variances[..., 2] if covariance_type == "diag" else variances
    assert_allclose(got, 1e-6, rtol=1e-8 if covariance_type == "diag" else 1.5e-8)


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_rows_that_are_all_the_same_have_reg_covar(covariance_type):
    clients = [np.full((4, 2), 7.0), np.full((1, 2), 7.0)]
    gm = FederatedGaussianMixture(covariance_type=covariance_type).fit(clients)  # warns nothing
    assert_allclose(gm.means_, 7.0, rtol=1e-15)
    # -1/2 log det(2π Σ), with the rounding of unit second moments beside reg_covar.
    assert gm.score(clients) == pytest.approx(-np.log(2 * np.pi * 1e-6), abs=1e-7)


@pytest.mark.parametrize(("mass", "is_rounding"), [(1e-9, True), (0.1, False)])
def test_only_of_rare_components_a_negative_variance_is_rounding(mass, is_rounding):
    model, _ = small_model("full", n_components=2, reg_covar=1e-9)
    covariance = np.eye(3) + 0.5
    covariances = np.array([covariance, covariance])
    parameters = model.parameters(np.array([mass, 1 - mass]), np.zeros((2, 3)), covariances)
    statistics = table(model, model.statistics_of(parameters)).copy()
    # Along the first of its axes, the first component loses more than it has: 1e-6 too much.
    least, axes = np.linalg.eigh(covariance)
    less = (least[0] + 1e-6) * np.outer(axes[:, 0], axes[:, 0])[np.triu_indices(3)]
    statistics[0, 4:] -= mass * less
    if not is_rounding:
        with pytest.raises(ValueError, match="positive definite covariances"):
            model.maximization(statistics.ravel())
        return
    got = model.maximization(statistics.ravel()).covariances
    left = covariance - least[0] * np.outer(axes[:, 0], axes[:, 0])
    regularization = model.regularization(np.zeros((1, 3)))[0]
    # 1e-16 of a moment over the mass.
    assert_allclose(got[0], left + regularization, atol=1e-6)
    assert np.linalg.eigvalsh(got[0])[0] > 0
    assert_allclose(got[1], parameters.covariances[1], rtol=1e-12)


@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag"])
@pytest.mark.parametrize("constant", [0.0, 0.1, 1e6])
def test_a_constant_feature_without_regularisation_is_refused(covariance_type, constant):
    rows = np.random.default_rng(0).standard_normal((60, 2))
    wide = np.column_stack([rows, np.full(60, constant)])
    fit = FederatedGaussianMixture(2, covariance_type=covariance_type, reg_covar=0, random_state=0)
    with pytest.raises(ValueError, match="collapsed.*Increase reg_covar"):
        fit.fit(np.split(wide, 3))
    assert not hasattr(fit, "means_")


@pytest.mark.parametrize("covariance_type", ["full", "diag", "spherical"])
def test_a_component_on_one_row_without_regularisation_is_refused(covariance_type):
    rows = np.random.default_rng(0).standard_normal((60, 2))
    rows[7] = [9.0, -9.0]
    start = edge_start(covariance_type, [[0.0, 0.0], [9.0, -9.0]])
    fit = FederatedGaussianMixture(2, covariance_type=covariance_type, reg_covar=0, **start)
    with pytest.raises(ValueError, match="collapsed.*Increase reg_covar"):
        fit.fit(np.split(rows, 3))
    assert not hasattr(fit, "means_")
    fit.set_params(reg_covar=1e-3).fit(np.split(rows, 3))
    assert_allclose(fit.means_[1], [9.0, -9.0], rtol=1e-6)
    assert_allclose(fit.weights_[1], 1 / 60, rtol=1e-6)


@pytest.mark.parametrize("covariance_type", ["full", "tied"])
def test_two_equal_features_without_regularisation_are_refused(covariance_type):
    rows = np.random.default_rng(0).standard_normal((60, 2))
    wide = np.column_stack([rows, 3.0 * rows[:, 0] + 1.0])
    fit = FederatedGaussianMixture(
        2, covariance_type=covariance_type, reg_covar=0.0, random_state=0
    )
    with pytest.raises(ValueError, match="collapsed.*Increase reg_covar"):
        fit.fit(np.split(wide, 3))


# ---- units


@every_covariance_type
def test_units_there_and_back(covariance_type):
    model, _ = small_model(covariance_type)
    parameters = mixture_parameters(model)
    back = in_standard_units(model.units, *in_row_units(model.units, parameters)[:3])
    for got, want in zip(back, plain(model, parameters), strict=True):
        assert_allclose(got, want, rtol=1e-13, atol=1e-13)
    nothing = in_standard_units(model.units, None, None, None)
    assert nothing == (None, None, None)


def test_roots_of_covariances_and_their_inverses():
    several = np.array([KNOWN_COVARIANCE, 4.0 * np.eye(2)])
    roots, inverses = COVARIANCES["full"].cholesky_and_inverse(several)
    assert_allclose(roots @ np.swapaxes(roots, -1, -2), several, rtol=1e-15)
    assert_allclose(inverses @ roots, [np.eye(2)] * 2, atol=1e-14)
    assert_array_equal(roots[:, 0, 1], 0.0)
    assert_array_equal(inverses[:, 0, 1], 0.0)
    for one, first in zip(
        COVARIANCES["tied"].cholesky_and_inverse(KNOWN_COVARIANCE),
        (roots[0], inverses[0]),
        strict=True,
    ):
        assert_allclose(one, first, rtol=1e-15)
    deviations, inverses = COVARIANCES["diag"].cholesky_and_inverse(np.array([[4.0, 0.25]]))
    assert_array_equal(deviations, [[2.0, 0.5]])
    assert_array_equal(inverses, [[0.5, 2.0]])
    with pytest.raises(ValueError, match="positive definite.*decrease n_components"):
        COVARIANCES["tied"].cholesky_and_inverse(np.array([[1.0, 2.0], [2.0, 1.0]]))


# ---- what clients of a stream send


@pytest.mark.parametrize("is_known", [False, True])
def test_clients_of_a_stream_know_the_second_moment_of_their_rows(is_known):
    # In a fit, the server knows that of all rows, and its term of the log-likelihood.
    model, federation = small_model("tied")
    if is_known:
        model = replace(model, fixed_cholesky=np.tril([[2.0, 0, 0], [1, 3, 0], [0, 1, 1]]))
    parameters, every = mixture_parameters(model), np.arange(federation.n_clients)
    in_fit = model.all_rows(federation, parameters, every)
    assert in_fit.uncompressed == 0
    of_stream, start = for_stream(model, Start(model.statistics_of(parameters), parameters))
    in_stream = of_stream.all_rows(federation, start.parameters, every)
    assert_array_equal(in_stream.statistics, in_fit.statistics)
    means = [
        each.criterion_value(federation.weights @ estimate.log_likelihood, theta)
        for each, estimate, theta in (
            (model, in_fit, parameters),
            (of_stream, in_stream, start.parameters),
        )
    ]
    # Here and below: sums of 40 logarithms, or products, of order 10.
    assert means[1] == pytest.approx(means[0], rel=1e-13)
    parts = [of_stream.all_rows(federation, start.parameters, every[[i]]) for i in every]
    log_likelihoods = np.concatenate([part.log_likelihood for part in parts])
    assert_allclose(log_likelihoods, in_stream.log_likelihood, rtol=1e-13)
    # The scatter is not sent where the covariance is known.
    sent = sum(part.uncompressed for part in parts)
    assert np.shape(sent) == (() if is_known else 2 * (model.n_features,))
    assert of_stream.n_uncompressed == (0 if is_known else 6)
    assert_allclose(sent, in_stream.uncompressed, rtol=1e-13, atol=1e-13)


def test_errors_of_an_estimate_are_in_the_second_moment_too_and_cancel():
    # After a whole step, whatever the field, the covariance is the rows' scatter about the means
    # that were broadcast, less that of the new means about these: products of errors.
    model, federation = small_model("tied")
    parameters = mixture_parameters(model)
    model, start = for_stream(model, Start(model.statistics_of(parameters), parameters))
    statistics, parameters = start.statistics, start.parameters
    field = 0.05 * np.random.default_rng(0).standard_normal(model.n_statistics)
    sent = model.all_rows(federation, parameters, np.arange(federation.n_clients))
    whole = model.stream_field(parameters, statistics, field, sent.uncompressed, 1.0)
    assert_array_equal(whole[: model.n_statistics], field)
    assert model.field_sq_norm(statistics, whole) == model.field_sq_norm(statistics, field)
    found = model.maximization(statistics + whole)
    rows, (_, means, _) = standard_rows(model, federation.rows), plain(model, parameters)
    shares = np.array(literal.responsibilities(rows, *plain(model, parameters), "tied"))
    shares *= np.repeat(federation.row_weights, federation.lengths)[:, None]
    apart = rows[:, None] - means
    expected = np.einsum("ig,igj,igl->jl", shares, apart, apart)
    mass, moved = table(model, model.reference(statistics) + field)[:, 0], found.means - means
    expected -= (mass[:, None] * moved).T @ moved
    # Sums of 40 products of order 1. The field moves them by a hundredth.
    assert_allclose(found.covariances, expected, rtol=0, atol=1e-12)
