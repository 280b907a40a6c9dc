"""The M-step of a mixture: literal, optimal, invertible; odd components and features."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.mixture import GaussianMixture

import literal
from mixture_models import (
    at_rows,
    every_covariance_type,
    plain,
    small_model,
    table,
    unit_covariances,
)
from problems import (
    COVARIANCE_TYPES,
    client_means,
    mean_statistics,
    mixture_model,
    mixture_parameters,
    standard_reg_covar,
    standard_rows,
)
from skfedem import FederatedGaussianMixture
from skfedem.models.mixture.domain import in_domain
from skfedem.models.mixture.linear_algebra import ROUNDING
from skfedem.models.mixture.parameters import in_row_units, in_standard_units


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
    if model.fixed_covariance is None and model.structure.has_matrices:
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


@every_covariance_type
@pytest.mark.parametrize("varies", [(True, False, True), (False, False, False)])
def test_statistics_are_zero_where_functions_are_zero_for_all_rows(covariance_type, varies):
    _, federation = small_model(covariance_type)
    rows = np.where(varies, federation.rows, 2.0)
    model = mixture_model(federation._replace(rows=rows), covariance_type, reg_covar=1e-3)
    covariances = unit_covariances(covariance_type, 2, 3)
    parameters = model.parameters(np.array([0.4, 0.6]), np.ones((2, 3)), covariances)
    found = table(model, model.statistics_of(parameters))
    is_zero = (model.features(rows) == 0).all(axis=1)
    assert_array_equal(found == 0, np.stack([is_zero, is_zero]))


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


def edge_start(covariance_type, means):
    precisions = unit_covariances(covariance_type, 2, 2)
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


@pytest.mark.parametrize(
    ("covariance_type", "factor", "constant"),
    [*product(["full", "tied", "diag"], [0.0], [0.0, 0.1, 1e6]), ("full", 3, 1), ("tied", 3, 1)],
)
def test_dependent_features_without_regularisation_are_refused(covariance_type, factor, constant):
    rows = np.random.default_rng(0).standard_normal((60, 2))
    wide = np.column_stack([rows, factor * rows[:, 0] + constant])
    fit = FederatedGaussianMixture(2, covariance_type=covariance_type, reg_covar=0, random_state=0)
    with pytest.raises(ValueError, match="collapsed.*Increase reg_covar"):
        fit.fit(np.split(wide, 3))
    assert not hasattr(fit, "means_")


@pytest.mark.parametrize("covariance_type", ["full", "diag", "spherical"])
@pytest.mark.filterwarnings("ignore:The variance of")
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


@every_covariance_type
def test_units_there_and_back(covariance_type):
    model, _ = small_model(covariance_type)
    parameters = mixture_parameters(model)
    back = in_standard_units(model.units, *in_row_units(model.units, parameters)[:3])
    for got, want in zip(back, plain(model, parameters), strict=True):
        assert_allclose(got, want, rtol=1e-13, atol=1e-13)
    nothing = in_standard_units(model.units, None, None, None)
    assert nothing == (None, None, None)
