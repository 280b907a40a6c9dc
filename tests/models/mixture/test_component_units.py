"""Statistics in the units of the components, in which messages of mixtures are compressed."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.linalg import sqrtm

import literal
from problems import COVARIANCE_TYPES
from skfedem import FederatedGaussianMixture
from skfedem.models.mixture.component_units import limited_by_rows
from skfedem.models.mixture.covariances import COVARIANCES as STRUCTURES
from skfedem.models.mixture.gaussian_mixture import GaussianMixtureModel
from skfedem.models.mixture.units import Units

D, G = 3, 4
WEIGHTS = np.array([0.1, 0.2, 0.3, 0.4])
MEANS = np.random.default_rng(0).normal(size=(G, D))
NOISE = 0.3 * np.random.default_rng(1).normal(size=(G, D, D))
COVARIANCES = NOISE @ np.swapaxes(NOISE, 1, 2) + 0.01 * np.eye(D)


# "between": a "tied" covariance that is a known second moment minus that between the means.
KINDS = (*COVARIANCE_TYPES, "between")


def case(kind, varies=None):
    """A model in standard units, parameters and the components' units."""
    covariance_type = "tied" if kind == "between" else kind
    covariances = {
        "full": COVARIANCES,
        "tied": COVARIANCES[0],
        "diag": np.diagonal(COVARIANCES, axis1=1, axis2=2),
        "spherical": COVARIANCES[:, 0, 0],
    }[covariance_type]
    structure = STRUCTURES[covariance_type]
    rotation = np.eye(D) if structure.has_matrices else None
    varies = np.ones(D, bool) if varies is None else varies
    units = Units(np.zeros(D), np.ones(D), rotation, varies, structure)
    moment = COVARIANCES[0] + (WEIGHTS * MEANS.T) @ MEANS
    model = GaussianMixtureModel(
        G, covariance_type, units, second_moment=moment, in_stream=kind != "between"
    )
    parameters = model.parameters(WEIGHTS, MEANS, covariances)
    return model, parameters, model.message_units(parameters)


def in_units_of(component, covariance_type, rows):
    """Rows counted from a component's mean, in units of its covariance."""
    centered = rows - MEANS[component]
    if covariance_type in ("full", "tied"):
        covariance = COVARIANCES[component if covariance_type == "full" else 0]
        return np.linalg.solve(np.linalg.cholesky(covariance), centered.T).T
    variances = np.diagonal(COVARIANCES[component])
    return centered / np.sqrt(variances if covariance_type == "diag" else variances[0])


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_they_are_the_statistics_of_the_rows_in_these_units(covariance_type):
    rng = np.random.default_rng(2)
    model, _, units = case(covariance_type)
    rows, posterior = rng.normal(size=(7, D)), rng.dirichlet(np.ones(G), size=7).T
    statistics = model.assigned(posterior, model.features(rows), np.array([3, 4]))
    expected = []
    for g in range(G):
        own = in_units_of(g, covariance_type, rows)
        own = np.transpose([literal.normalised(row, covariance_type) for row in own])
        of_rows = posterior[g] * own / np.sqrt(WEIGHTS[g])
        expected.append([of_rows[:, :3].sum(axis=1), of_rows[:, 3:].sum(axis=1)])
    expected = np.transpose(expected, (1, 0, 2)).reshape(2, -1)
    # Variances down to 0.01 make rounding a hundred times what it was.
    assert_allclose(units.to_components(statistics), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_there_rows_are_noise_alike_in_all_directions(covariance_type):
    # A row that is certainly of this component, with the probability that it is.
    # Gauss-Hermite quadrature is exact for the products of two second moments.
    nodes, weights = np.polynomial.hermite_e.hermegauss(3)
    z = np.stack(np.meshgrid(*[nodes] * D), axis=-1).reshape(-1, D)
    weights = np.prod(np.meshgrid(*[weights / weights.sum()] * D), axis=0).ravel()
    model, _, units = case(covariance_type)
    component = 2
    sizes = COVARIANCES[0 if covariance_type == "tied" else component]
    root = {
        "diag": np.diag(np.sqrt(np.diagonal(sizes))),
        "spherical": np.sqrt(sizes[0, 0]) * np.eye(D),
    }.get(covariance_type, np.linalg.cholesky(sizes))
    posterior = np.zeros((G, len(z)))
    posterior[component] = 1
    each = np.ones(len(z), dtype=int)
    features = model.features(MEANS[component] + z @ root.T)
    statistics = units.to_components(model.assigned(posterior, features, each))
    own = statistics.reshape(len(z), G, -1)[:, component]
    weights *= WEIGHTS[component]
    assert_allclose((weights[:, None] * own).T @ own, np.eye(own.shape[1]), atol=1e-11)


def test_units_of_a_moment_minus_another_are_finer_where_noise_costs_more():
    model, parameters, units_of_difference = case("between")
    _, _, units_of_rows = case("tied")
    best = model.statistics_of(parameters)
    component = np.arange(1 + D) + 2 * (1 + D)
    # Second differences, in which odd orders cancel.
    size, unit = 1e-5, np.eye(1 + D)

    def cost_in(units):
        """Second derivatives of what is lost by noise in one component's units."""

        def lost(noise):
            values = np.zeros(model.n_statistics)
            values[component] = noise
            estimate = best + units.to_standard(values[None])[0]
            return model.surrogate(best, parameters) - model.surrogate(
                best, model.maximization(estimate)
            )

        def even(noise):
            return lost(size * noise) + lost(-size * noise)

        cost = [
            [(even(one + other) - even(one - other)) / (4 * size**2) for one in unit]
            for other in unit
        ]
        # Weights are divided by their sum: noise of all masses alike costs nothing. The units
        # leave that to the others.
        at = np.eye(model.n_statistics)[component]
        masses = units.to_standard(at)[:, component[0]]
        return cost + np.outer(masses, masses)

    center = in_units_of(2, "tied", np.zeros((1, D)))[0]
    cost = literal.cost_of_noise(WEIGHTS[2], -center)
    assert np.linalg.cond(cost) > 100
    assert_allclose(cost_in(units_of_rows), cost, rtol=1e-4, atol=0.1)
    # What acts on R x alike in all directions costs least if R'R is the root of the cost.
    assert_allclose(cost_in(units_of_difference), sqrtm(cost), rtol=0, atol=0.01)


@pytest.mark.parametrize("covariance_type", KINDS)
def test_the_way_back(covariance_type):
    rng = np.random.default_rng(2)
    model, _, units = case(covariance_type)
    values = rng.normal(size=(5, model.n_statistics))
    before = values.copy()
    assert_allclose(units.to_standard(units.to_components(values)), values, rtol=0, atol=1e-11)
    assert_allclose(units.to_components(units.to_standard(values)), values, rtol=0, atol=1e-11)
    assert_array_equal(values, before)


@pytest.mark.parametrize("covariance_type", KINDS)
def test_nothing_is_made_of_features_that_do_not_vary(covariance_type):
    rng = np.random.default_rng(2)
    model, _, units = case(covariance_type, varies=np.array([True, False, True]))
    values = rng.normal(size=(5, model.n_statistics))
    table = units.to_standard(values).reshape(5, G, -1)
    unknown = model.features(np.array([[1.0, 0.0, 1.0]]))[:, 0] == 0
    assert (table[:, :, unknown] == 0).all() and (table[:, :, ~unknown] != 0).all()


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_a_constant_feature_is_0_there_too(covariance_type):
    rng = np.random.default_rng(2)
    rows = np.column_stack([rng.normal(size=(60, 2)), np.full(60, 7.0)])
    gm = FederatedGaussianMixture(2, covariance_type=covariance_type, random_state=0)
    memory = gm.partial_fit(rows)._memory
    model, parameters = memory.model, memory.server.parameters
    features = model.features(rows)
    statistics = model.assigned(rng.dirichlet(np.ones(2), size=60).T, features, np.array([60]))
    table = model.message_units(parameters).to_components(statistics).reshape(2, -1)
    assert_array_equal(table[:, ~features.any(axis=1)], 0.0)


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_weights_below_0_001_count_as_0_001(covariance_type):
    rng = np.random.default_rng(2)
    # A row of a component without weight must not be all of a message.
    model, parameters, _ = case(covariance_type)
    values = rng.normal(size=(5, model.n_statistics))
    mapped = [
        model.message_units(
            model.parameters(np.array([weight, 0.2, 0.3, 0.4]), *parameters[1:3])
        ).to_components(values)
        for weight in (0.0, 1e-9, 1e-3, 2e-3)
    ]
    assert_array_equal(mapped[0], mapped[2])
    assert_array_equal(mapped[1], mapped[2])
    # Only of the first component, whose units are longer by the root of its weight.
    first = np.arange(values.shape[1]) < values.shape[1] // G
    assert_array_equal(mapped[3][:, ~first], mapped[2][:, ~first])
    assert_allclose(mapped[3][:, first], mapped[2][:, first] / np.sqrt(2), rtol=1e-12)


def test_units_of_a_shared_covariance_follow_what_clients_tell():
    # In a stream they tell the second moment anew, and errors of the means cancel.
    rows = np.random.default_rng(2).normal(3.0, size=(60, 2))
    clients = np.arange(60) % 3
    gm = FederatedGaussianMixture(
        2, covariance_type="tied", omega=1.0, warm_start=True, tol=10.0, random_state=0
    )
    told = [
        step(rows, clients=clients)._memory.model.in_stream
        for step in (gm.fit, gm.partial_fit, gm.partial_fit, gm.fit)
    ]
    assert told == [False, True, True, False]


def test_units_of_a_known_covariance_do_not_depend_on_a_reg_covar_that_exceeds_the_rows():
    known = 100 * COVARIANCES[0]
    model = replace(case("tied")[0], fixed_cholesky=np.linalg.cholesky(known))
    parameters = model.parameters(WEIGHTS, MEANS, known)
    expected = model.message_units(parameters)
    units = replace(model, reg_covar=2.0).message_units(parameters)
    for values, others in zip(units, expected, strict=True):
        assert_array_equal(values, others)


def test_rows_of_a_component_may_vary_as_much_as_its_weight_allows():
    diagonal = STRUCTURES["diag"]
    # Its variance times its weight is at most that of all rows, whose part within is 1 here.
    weights = np.array([0.1])
    assert_allclose(limited_by_rows(diagonal, np.full((1, 1), 50.0), 49.0, weights), [[10.0]])
    # An axis along which it varies less stays as it is, beside one to which much was added.
    added = np.array([49.0, 1e-6])
    assert_allclose(
        limited_by_rows(diagonal, np.array([[50.0, 0.5]]), added, weights), [[10.0, 0.5]]
    )
    # No rows have this one, and what was added is all that can be wrong with it.
    assert_allclose(limited_by_rows(diagonal, np.full((1, 1), 50.0), 9.0, weights), [[41.0]])
    # A component without rows counts as one of the weight 0.001.
    assert_allclose(
        limited_by_rows(diagonal, np.full((1, 1), 5e4), 5e4 - 1, np.zeros(1)), [[1000.0]]
    )


def test_a_component_may_have_its_mean_in_the_centre_of_all_rows():
    # These are symmetric about it, to the last digit.
    clients = [np.array([[-1.0, 0.5], [1.0, -0.5]]), np.array([[2.0, 3.0], [-2.0, -3.0]])]
    gm = FederatedGaussianMixture(covariance_type="tied", omega=0.5, tol=1e9, random_state=0)
    assert np.isfinite(gm.fit(clients).covariances_).all()
    assert not gm._memory.server.parameters.means.any()
