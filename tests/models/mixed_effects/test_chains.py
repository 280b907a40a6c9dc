"""Chains against quadrature, and their bits in any company."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from populations import oral_model, oral_subjects
from skfedem import _random
from skfedem._federation import Federation
from skfedem.datasets import load_theophylline
from skfedem.models.mixed_effects.chains import chain_statistics, first_chains, n_uniforms, sweep
from skfedem.models.mixed_effects.conditional import find_modes
from skfedem.models.mixed_effects.importance import sampled
from skfedem.models.mixed_effects.maximization import Theta
from skfedem.models.mixed_effects.quadrature import conditional, mean_statistics
from skfedem.models.mixed_effects.subjects import pack

# Maximum likelihood for the measurements after the dose.
MEANS, VARIANCES, SQUARE = (1.5794, 31.626, 2.7480), (0.3947, 0.01789, 0.07075), 0.7380**2


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


KEYS = (np.arange(12) * 2**40 + 7).astype(np.uint64)


def simulated(model, parameters, subjects, chains, seed, round_index, keys=KEYS):
    """Statistics and chains after a sweep."""
    address = seed, _random.CHAINS, round_index
    uniforms = _random.row_uniforms(*address, keys, model.n_uniforms)
    lengths = np.array([subjects.n_subjects])
    return model.simulate(parameters.natural, subjects, lengths, chains, uniforms, round_index)


CORRELATED = np.array([[0.4, 0.02, 0.05], [0.02, 0.02, 0.01], [0.05, 0.01, 0.07]])


@pytest.mark.parametrize("covariance", [None, CORRELATED], ids=["diag", "full"])
def test_chains_have_the_conditional_distribution(covariance, subjects, model):
    if covariance is not None:
        model = oral_model(subjects, n_nodes=9, is_full=True)
    model = replace(model, n_chains=100)
    parameters = parameters_of(model, covariance)
    population = model.population(parameters.natural, subjects)
    centred = population.means - model.center[:, None]
    want = mean_statistics(population, subjects, conditional(population, subjects, 9), centred)
    want = model.layout.join(*want)
    chains, kept = model.first_chains(12), []
    for k in range(220):
        statistics, chains = simulated(model, parameters, subjects, chains, 0, k)
        if k >= 20:
            kept.append(statistics)
    # Means of ten batches of twenty sweeps are nearly independent; five standard errors each.
    batches = np.array(kept).reshape(10, 20, 12, -1).mean(axis=1)
    error = batches.std(axis=0, ddof=1) / np.sqrt(10)
    wrong = np.abs(batches.mean(axis=0) - want) / error
    # 100 numbers of Student's t with nine degrees of freedom: one in 1e5 exceeds 8.
    assert wrong.max() < 8
    assert (error < 0.05 * np.maximum(np.abs(want), 1.0)).all()


def test_a_subjects_chains_have_the_same_bits_in_any_company(subjects, model):
    model, parameters = replace(model, n_chains=2), parameters_of(model)

    def run(own):
        chains = model.first_chains(len(own))
        for k in range(4):
            some = subjects.take(own)
            statistics, chains = simulated(model, parameters, some, chains, 3, k, KEYS[own])
        return statistics, chains

    statistics, chains = run(np.arange(12))
    for own in ([5], [11, 0], [3, 4, 5, 6, 7, 8, 9], list(range(11, -1, -1))):
        mine, alone = run(np.array(own))
        assert_array_equal(alone.positions, chains.positions[own])
        assert_array_equal(alone.scales, chains.scales[own])
        assert_array_equal(mine, statistics[own])


def test_the_last_bits_of_the_parameters_do_not_reach_the_chains(subjects, model):
    parameters, chains = parameters_of(model), model.first_chains(12)
    nearly = parameters._replace(natural=parameters.natural * (1 + 2e-16))
    one, other = (simulated(model, own, subjects, chains, 0, 0)[1] for own in (parameters, nearly))
    assert_array_equal(one.positions, other.positions)


def test_scales_follow_the_acceptance_of_each_subject(subjects, model):
    model, parameters = replace(model, n_chains=20), parameters_of(model)
    chains = model.first_chains(12)
    factor = np.where(np.arange(12) < 6, 100.0, 0.01)[:, None, None]
    chains = chains._replace(scales=chains.scales * factor)
    for k in range(30):
        after = simulated(model, parameters, subjects, chains, 0, k)[1]
        if k == 0:
            # Too long steps are shortened, too short ones lengthened.
            assert (after.scales[:6] < chains.scales[:6]).all()
            assert (after.scales[6:] > chains.scales[6:]).all()
        chains = after
    assert (chains.scales < 20).all() and (chains.scales > 0.02).all()
    # One scale for all subjects would not tell them apart.
    assert (np.ptp(chains.scales, axis=0) > 0.1 * chains.scales.mean(axis=0)).all()


def test_the_dispersion_of_the_chains_counts(subjects, model):
    population = model.population(parameters_of(model).natural, subjects)
    chains = first_chains(model.center, 12, 50)
    generator = np.random.default_rng(0)
    numbers = generator.random((n_uniforms(3), 50, 12))
    chains = sweep(population, subjects, chains, numbers, 0)
    first, second, _ = chain_statistics(population, subjects, chains, population.means)
    spread = chains.positions.var(axis=2)
    assert_allclose(np.einsum("njj->nj", second) - first[:, 0] ** 2, spread, rtol=1e-9)


@pytest.mark.parametrize("is_full", [False, True])
def test_the_mean_of_local_covariances_lacks_that_of_the_local_means(is_full, subjects):
    model = oral_model(subjects, is_full=is_full)
    offsets, weights = np.array([0, 5, 12]), np.array([5, 7]) / 12
    federation = Federation(pack(subjects), offsets, weights)
    parameters = parameters_of(model, CORRELATED if is_full else None)
    chains = simulated(model, parameters, subjects, model.first_chains(12), 0, 0)
    own = np.add.reduceat(chains[0], [0, 5]) / np.array([[5], [7]])
    locals_ = model.local_maximization(own, federation, np.arange(2), parameters)
    coefficients, covariance, squares = model.layout.split(locals_)
    pooled = model.maximization(weights @ own)
    apart = coefficients[:, 0] - pooled.coefficients[0]
    between = np.einsum("i,ij,ik->jk", weights, apart, apart)
    want = pooled.covariance - (between if is_full else np.diag(np.diagonal(between)))
    # A millionth is that of the broadcast.
    assert_allclose(np.einsum("i,ijk->jk", weights, covariance), want, rtol=1e-4, atol=1e-6)
    assert_allclose(weights @ coefficients[:, 0], pooled.coefficients[0], rtol=1e-5)
    assert_allclose(weights @ squares, pooled.squares, rtol=1e-5)


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
    found = sampled(
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
