"""Modes, quadrature and the linearised information, beside what the contract tests."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize
from scipy.stats import multivariate_normal

from populations import (
    linear_model,
    linear_parameters,
    linear_subjects,
    means_of,
    oral_model,
    oral_subjects,
)
from skfedem.datasets import load_theophylline
from skfedem.models.mixed_effects.conditional import find_modes, fit_of
from skfedem.models.mixed_effects.information import information_of
from skfedem.models.mixed_effects.maximization import Theta
from skfedem.models.mixed_effects.quadrature import conditional
from skfedem.models.mixed_effects.subjects import pack, sum_in_order, unpack

THETA = Theta(
    np.log([[1.6, 1.6, 5.5]]) * [[1.0, 1.0, 1.0]], np.diag([0.4, 0.02, 0.07]), np.array([0.5])
)


@pytest.fixture(scope="module")
def subjects():
    return oral_subjects(load_theophylline().data)


def population_of(subjects, theta=THETA, **options):
    model = oral_model(subjects, **options)
    return model, model.population(model.parameters(theta).natural, subjects)


@pytest.mark.parametrize("error", ["constant", "proportional", "combined", "exponential"])
def test_modes_are_those_of_scipy(error, subjects):
    squares = {"constant": [0.5], "combined": [0.3, 0.02]}.get(error, [0.04])
    if error == "exponential":
        subjects = subjects._replace(response=np.log(subjects.response))
    theta = THETA._replace(squares=np.array(squares))
    _, population = population_of(subjects, theta, error=error)
    modes = find_modes(population, subjects)
    for i in range(subjects.n_subjects):
        own, mine = subjects.take([i]), population.take([i])

        def loss(z, own=own, mine=mine):
            return fit_of(mine, own, mine.gaussian(z[:, None])).loss[0] + 0.5 * (z @ z)

        best = minimize(
            loss,
            np.zeros(3),
            method="Nelder-Mead",
            options={"xatol": 1e-9, "fatol": 1e-12, "maxiter": 4000, "maxfev": 4000},
        )
        assert loss(modes.z[:, i]) <= best.fun + 1e-7
        assert_allclose(modes.z[:, i], best.x, atol=1e-3)


def test_modes_are_found_from_far_away(subjects):
    # All random effects far out, where predictions under- and overflow at first.
    theta = Theta(np.array([[3.0, -4.0, 4.0]]), np.eye(3), np.array([1.0]))
    _, population = population_of(subjects, theta)
    modes = find_modes(population, subjects)
    at_zero = fit_of(population, subjects, population.means).loss
    loss = fit_of(population, subjects, population.gaussian(modes.z)).loss
    loss = loss + 0.5 * (modes.z**2).sum(axis=0)
    assert (loss < at_zero).all()
    assert np.isfinite(modes.curvature).all()


def test_more_nodes_change_the_likelihood_less_and_less(subjects):
    _, population = population_of(subjects)
    exact = conditional(population, subjects, 21).log_likelihood
    errors = [
        np.abs(conditional(population, subjects, n).log_likelihood - exact).max()
        for n in (1, 3, 5, 9)
    ]
    assert errors[3] < 1e-4 < errors[0]
    assert (np.diff(errors) < 0).all()


def test_a_subject_that_no_parameters_explain_has_the_likelihood_0(subjects):
    _, population = population_of(subjects)
    impossible = population._replace(
        structure=lambda parameters, regressors: np.nan * (parameters["ka"] + regressors["time"])
    )
    distribution = conditional(impossible, subjects, 3)
    assert_array_equal(distribution.log_likelihood, -np.inf)
    assert_allclose(distribution.weights.sum(axis=0), 1.0)


def test_a_model_that_is_not_elementwise_is_told_so(subjects):
    _, population = population_of(subjects)
    odd = population._replace(structure=lambda parameters, regressors: np.ones(7))
    with pytest.raises(
        ValueError, match=r"Expected the structural model to give an array of shape"
    ):
        conditional(odd, subjects, 3)


def test_packed_subjects_are_unpacked():
    subjects = linear_subjects(7)
    again = unpack(pack(subjects), 5, ("time",))
    for one, other in zip(again, subjects, strict=True):
        if isinstance(one, dict):
            one, other = one["time"], other["time"]
        assert_array_equal(one, other)


@pytest.mark.parametrize("shape", [(20, 1, 1), (20, 3, 1), (20, 1, 5), (20, 7)])
def test_sums_do_not_depend_on_company_or_padding(shape):
    values = np.random.default_rng(0).standard_normal(shape)
    want = np.add.accumulate(values, axis=0)[-1]
    assert_array_equal(sum_in_order(values), want)
    turned = np.asfortranarray(values)
    assert_array_equal(sum_in_order(turned), want)
    padded = np.concatenate([values, np.zeros((9, *shape[1:]))])
    assert_array_equal(sum_in_order(padded), want)


@pytest.mark.parametrize("is_full", [False, True])
def test_the_information_of_lines_is_that_of_normal_distributions(is_full):
    # Minus the expected second derivatives of multivariate normal log-densities, from differences
    # of means and covariances: I = dm' V^-1 dm + tr(V^-1 dV V^-1 dV) / 2.
    subjects = linear_subjects(12)
    model = linear_model(subjects, means_of(subjects, np.full(12, 1 / 12)), is_full)
    parameters = linear_parameters(model, 0)
    population = model.population(parameters.natural, subjects)
    z = find_modes(population, subjects).z
    got = information_of(model.layout, population, subjects, z)

    def moments(vector, i):
        own = subjects.observed[:, i]
        design = np.column_stack([np.ones(own.sum()), subjects.regressors["time"][own, i]])
        level, slope, beta = vector[:3]
        x = subjects.covariates[1, i]
        off = vector[4] if is_full else 0.0
        omega = np.array([[vector[3], off], [off, vector[-2]]])
        covariance = design @ omega @ design.T + vector[-1] ** 2 * np.eye(own.sum())
        return design @ [level, slope + beta * x], covariance

    b, omega = parameters.coefficients, parameters.covariance
    middle = [omega[0, 1]] if is_full else []
    vector = np.array([b[0, 0], b[0, 1], b[1, 1], omega[0, 0], *middle, omega[1, 1]])
    vector = np.append(vector, np.sqrt(parameters.squares))
    want = np.zeros_like(got)
    for i in range(12):
        steps = 1e-6 * np.eye(len(vector))
        above = [moments(vector + step, i) for step in steps]
        below = [moments(vector - step, i) for step in steps]
        means = [(one[0] - other[0]) / 2e-6 for one, other in zip(above, below, strict=True)]
        changes = [(one[1] - other[1]) / 2e-6 for one, other in zip(above, below, strict=True)]
        inverse = np.linalg.inv(moments(vector, i)[1])
        for j in range(len(vector)):
            for k in range(len(vector)):
                want[j, k] += means[j] @ inverse @ means[k]
                want[j, k] += 0.5 * np.trace(inverse @ changes[j] @ inverse @ changes[k])
    # Differences of numbers of order 1 by a millionth.
    assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_quadrature_agrees_with_brute_force_on_one_subject(subjects):
    # Means over a million draws of the prior, without modes or nodes.
    _, population = population_of(subjects)
    one, own = population.take([3]), subjects.take([3])
    distribution = conditional(one, own, 9)
    generator = np.random.default_rng(0)
    z = generator.standard_normal((3, 400_000, 1))
    loss = fit_of(one, own, one.gaussian(z)).loss[:, 0]
    likelihoods = np.exp(-loss - 0.5 * np.log(2 * np.pi) * own.n_observations[0])
    error = likelihoods.std() / np.sqrt(len(likelihoods)) / likelihoods.mean()
    assert error < 0.05
    assert abs(distribution.log_likelihood[0] - np.log(likelihoods.mean())) < 5 * error
    weights = likelihoods / likelihoods.sum()
    mean = distribution.weights[:, 0] @ distribution.effects[:, :, 0].T
    effects = one.effects(z)[:, :, 0]
    spread = np.sqrt((weights**2 * (effects - mean[:, None]) ** 2).sum(axis=1))
    assert (np.abs(mean - effects @ weights) < 5 * spread).all()


def test_lines_have_normal_posteriors():
    subjects = linear_subjects(5)
    model = linear_model(subjects, means_of(subjects, np.full(5, 0.2)), True)
    parameters = linear_parameters(model, 1)
    population = model.population(parameters.natural, subjects)
    distribution = conditional(population, subjects, 3)
    for i in range(5):
        own = subjects.observed[:, i]
        design = np.column_stack([np.ones(own.sum()), subjects.regressors["time"][own, i]])
        omega, square = parameters.covariance, parameters.squares[0]
        joint = design @ omega @ design.T + square * np.eye(own.sum())
        residual = subjects.response[own, i] - design @ population.means[:, i]
        mean = omega @ design.T @ np.linalg.solve(joint, residual)
        covariance = omega - omega @ design.T @ np.linalg.solve(joint, design @ omega)
        weights, effects = distribution.weights[:, i], distribution.effects[:, :, i]
        assert_allclose(effects @ weights, mean, rtol=1e-9, atol=1e-10)
        centred = effects - mean[:, None]
        assert_allclose(centred * weights @ centred.T, covariance, rtol=1e-9, atol=1e-10)
        density = multivariate_normal(np.zeros(own.sum()), joint).logpdf(residual)
        assert_allclose(distribution.log_likelihood[i], density, rtol=1e-10)
