"""Chains against quadrature, and their bits in any company."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from populations import oral_model, oral_subjects
from simulated_em import simulated_em, swept, uniforms
from skfedem.datasets import load_theophylline
from skfedem.models.mixed_effects.chains import (
    chain_statistics,
    first_chains,
    n_uniforms,
    sweep,
)
from skfedem.models.mixed_effects.conditional import find_modes
from skfedem.models.mixed_effects.importance import sampled_log_likelihood
from skfedem.models.mixed_effects.maximization import Theta
from skfedem.models.mixed_effects.quadrature import conditional, mean_statistics

# Maximum likelihood for the measurements after the dose.
MEANS, VARIANCES, SQUARE = (1.5794, 31.626, 2.7480), (0.3947, 0.01789, 0.07075), 0.7380**2
EXACT = 345.4348


@pytest.fixture(scope="module")
def subjects():
    return oral_subjects(load_theophylline().data)


@pytest.fixture(scope="module")
def model(subjects):
    return oral_model(subjects, n_nodes=9)


def parameters_of(model, covariance=None):
    coefficients = np.log(MEANS)[None] - model.center
    covariance = np.diag(VARIANCES) if covariance is None else covariance
    return model.parameters(Theta(coefficients, covariance, np.array([SQUARE])))


CORRELATED = np.array([[0.4, 0.02, 0.05], [0.02, 0.02, 0.01], [0.05, 0.01, 0.07]])


@pytest.mark.parametrize("covariance", [None, CORRELATED], ids=["diag", "full"])
def test_chains_have_the_conditional_distribution(covariance, subjects, model):
    if covariance is not None:
        model = oral_model(subjects, n_nodes=9, is_full=True)
    population = model.population(parameters_of(model, covariance).natural, subjects)
    centred = population.means - model.center[:, None]
    want = mean_statistics(population, subjects, conditional(population, subjects, 9), centred)
    want = model.layout.join(*want)
    n_chains, addresses = 100, np.arange(12)
    chains = first_chains(population, uniforms(0, 0, addresses, n_chains, 3))
    phi, kept = population.means[:, None] + chains.effects, []
    for k in range(220):
        chains = swept(population, subjects, phi, chains, 0, k, addresses)
        phi = population.means[:, None] + chains.effects
        if k >= 20:
            parts = chain_statistics(population, subjects, chains, centred)
            kept.append(model.layout.join(*parts))
    kept = np.array(kept)
    # Means of ten batches of twenty sweeps are nearly independent; five standard errors each.
    batches = kept.reshape(10, 20, 12, -1).mean(axis=1)
    error = batches.std(axis=0, ddof=1) / np.sqrt(10)
    wrong = np.abs(batches.mean(axis=0) - want) / error
    # 100 numbers of Student's t with nine degrees of freedom: one in 1e5 exceeds 8.
    assert wrong.max() < 8
    assert (error < 0.05 * np.maximum(np.abs(want), 1.0)).all()


def test_a_subjects_chains_have_the_same_bits_in_any_company(subjects, model):
    population = model.population(parameters_of(model).natural, subjects)
    addresses = np.arange(12) * 2**40 + 7

    def run(own):
        own = np.array(own)
        one, some, at = population.take(own), subjects.take(own), addresses[own]
        chains = first_chains(one, uniforms(3, 0, at, 2, 3))
        for k in range(4):
            numbers = uniforms(3, 1 + k, at, 2, n_uniforms(3))
            chains = sweep(one, some, chains, numbers, k)
        return chains, chain_statistics(one, some, chains, one.means)

    (chains, parts) = run(range(12))
    for own in ([5], [11, 0], [3, 4, 5, 6, 7, 8, 9], list(range(11, -1, -1))):
        alone, mine = run(own)
        assert_array_equal(alone.effects, chains.effects[:, :, own])
        assert_array_equal(alone.scales, chains.scales[:, :, own])
        for one, all_of_them in zip(mine, parts, strict=True):
            assert_array_equal(one, all_of_them[own])


def test_scales_follow_the_acceptance_of_each_subject(subjects, model):
    population = model.population(parameters_of(model).natural, subjects)
    addresses = np.arange(12)
    chains = first_chains(population, uniforms(0, 0, addresses, 20, 3))
    factor = np.where(np.arange(12) < 6, 100.0, 0.01)
    chains = chains._replace(scales=chains.scales * factor)
    for k in range(30):
        numbers = uniforms(0, 1 + k, addresses, 20, n_uniforms(3))
        after = sweep(population, subjects, chains, numbers, k)
        if k == 0:
            # Too long steps are shortened, too short ones lengthened.
            assert (after.scales[..., :6] < chains.scales[..., :6]).all()
            assert (after.scales[..., 6:] > chains.scales[..., 6:]).all()
        chains = after
    deviations = np.sqrt(VARIANCES)[:, None]
    assert (chains.scales / deviations < 20).all() and (chains.scales / deviations > 0.02).all()


def test_the_dispersion_of_the_chains_counts(subjects, model):
    population = model.population(parameters_of(model).natural, subjects)
    chains = first_chains(population, uniforms(0, 0, np.arange(12), 50, 3))
    first, second, _ = chain_statistics(population, subjects, chains, 0 * population.means)
    spread = chains.effects.var(axis=1).T
    assert_allclose(np.einsum("njj->nj", second) - first[:, 0] ** 2, spread, rtol=1e-9)


@pytest.mark.slow
def test_theophylline_by_simulation_is_near_maximum_likelihood(subjects, model):
    start = model.parameters(Theta(np.zeros((1, 3)), np.eye(3), np.ones(1)))
    found = [simulated_em(model, subjects, start, seed) for seed in range(10)]
    excess = [
        -2 * conditional(model.population(each.natural, subjects), subjects, 9).log_likelihood.sum()
        - EXACT
        for each in found
    ]
    assert max(excess) <= 0.10
    assert np.mean(excess) <= 0.04
    # Standard errors of the fixed effects; those of variances are about 45 to 55 per cent.
    means = np.array([model.center + each.coefficients[0] for each in found])
    assert (np.abs(means - np.log(MEANS)) <= 0.3 * np.array([0.194, 0.0461, 0.0838])).all()
    variances = np.array([np.diagonal(each.covariance) for each in found])
    assert (np.abs(variances / VARIANCES - 1) <= 0.4 * np.array([0.446, 0.546, 0.482])).all()
    squares = np.array([each.squares[0] for each in found])
    assert (np.abs(np.sqrt(squares / SQUARE) - 1) <= 0.4 * 0.072).all()


@pytest.mark.parametrize("error", ["constant", "exponential"])
def test_importance_sampling_agrees_with_quadrature(error, subjects):
    model = oral_model(subjects, error=error)
    parameters = parameters_of(model)
    if error == "exponential":
        subjects = subjects._replace(response=np.log(subjects.response))
        theta = parameters.theta._replace(squares=np.array([0.04]))
        parameters = model.parameters(theta)
    population = model.population(parameters.natural, subjects)
    generator = np.random.default_rng(0)
    found = sampled_log_likelihood(
        population,
        subjects,
        find_modes(population, subjects),
        generator.standard_normal((3, 5000, 12)),
        generator.chisquare(4, (5000, 12)),
    )
    want = conditional(population, subjects, 9).log_likelihood
    assert np.sqrt(found.variance.sum()) < 0.1
    assert (np.abs(found.log_likelihood - want) <= 5 * np.sqrt(found.variance)).all()
    gap = abs(found.log_likelihood.sum() - want.sum())
    assert gap <= 4 * np.sqrt(found.variance.sum())
