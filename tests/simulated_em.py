"""Stochastic approximation EM from the pure functions of chains, without a solver."""

import numpy as np

from skfedem import _random
from skfedem.models.mixed_effects.chains import (
    chain_statistics,
    first_chains,
    n_uniforms,
    sweep,
)
from skfedem.models.mixed_effects.maximization import Theta

_STREAM = 17


def uniforms(seed, round_index, addresses, n_chains, size):
    """Numbers (size, M, N) that belong to a seed, a round and a subject."""
    order = np.argsort(addresses)
    drawn = np.empty((len(addresses), n_chains * size))
    drawn[order] = _random.client_uniforms(
        seed, _STREAM, round_index, addresses[order], n_chains * size
    )
    return drawn.reshape(-1, n_chains, size).transpose(2, 1, 0).copy()


def swept(population, subjects, phi, chains, seed, round_index, addresses):
    """Chains that stay where φ was, when the means have moved, after a sweep."""
    chains = chains._replace(effects=phi - population.means[:, None])
    size = n_uniforms(len(phi))
    numbers = uniforms(seed, 1 + round_index, addresses, phi.shape[1], size)
    return sweep(population, subjects, chains, numbers, round_index)


def simulated_em(model, subjects, parameters, seed, n_chains=5, n_exploratory=300, n_smoothing=300):
    """Parameters after K1 rounds of step 1 and K2 of (k - K1)^-0.7, with annealing at first."""
    addresses = np.arange(subjects.n_subjects)
    population = model.population(parameters.natural, subjects)
    p = len(population.means)
    chains = first_chains(population, uniforms(seed, 0, addresses, n_chains, p))
    phi, statistics = population.gaussian(chains.effects * 0) + chains.effects, None
    for k in range(n_exploratory + n_smoothing):
        population = model.population(parameters.natural, subjects)
        chains = swept(population, subjects, phi, chains, seed, k, addresses)
        phi = population.means[:, None] + chains.effects
        if k < 5:
            continue
        centred = population.means - model.center[:, None]
        of_subjects = model.layout.join(*chain_statistics(population, subjects, chains, centred))
        mean = of_subjects.mean(axis=0)
        step_size = 1.0 if k < n_exploratory else (k - n_exploratory + 1) ** -0.7
        statistics = mean if statistics is None else statistics + step_size * (mean - statistics)
        before, parameters = parameters, model.maximization(statistics)
        if k < n_exploratory // 2:
            variances = np.diagonal(parameters.covariance), 0.97 * np.diagonal(before.covariance)
            squares = np.maximum(parameters.squares, 0.97**2 * before.squares)
            cooled = Theta(parameters.coefficients, np.diag(np.maximum(*variances)), squares)
            parameters = model.parameters(cooled)
    return parameters
