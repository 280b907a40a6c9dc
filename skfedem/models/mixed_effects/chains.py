"""Markov chains of the subjects' parameters: the E-step by simulation.

The state of a chain is φ. Three kernels leave the conditional density of φ given y invariant [1]_:

1. a draw from the prior, ``η* = L z``, accepted by the likelihood;
2. a random walk in one coordinate after the other;
3. a random walk in some coordinates at once.

The scales of the random walks belong to a subject, and follow the acceptance of its chains: those
of one subject do not depend on the others. All functions are elementwise and take the random
numbers that they use: a subject's chains have the same bits in any company.

References
----------
.. [1] E. Kuhn and M. Lavielle, "Coupling a stochastic approximation version of EM with an MCMC
   procedure", ESAIM: Probability and Statistics 8, 2004.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri

from ..._typing import BoolArray, FloatArray
from .conditional import Population, fit_of
from .subjects import Subjects, sum_in_order

# How often each kernel runs in a sweep.
REPEATS = 2
# Acceptance at which scales stay as they are, and the rate at which they follow it.
_WANTED, _GAIN = 0.4, 0.4
# First deviations of the random walks, as shares of the prior's.
_FIRST_SCALE = 0.5
# Uniform numbers in [0, 1) become numbers in (0, 1).
_HALF = 2.0**-54


class Chains(NamedTuple):
    """State of M chains for each of N subjects.

    Attributes
    ----------
    positions : ndarray of shape (N, p, M)
        φ.
    scales : ndarray of shape (N, 2, p)
        Deviations of the random walks of kernels 2 and 3, as multiples of those of η.
    """

    positions: FloatArray
    scales: FloatArray


def n_uniforms(n_parameters: int) -> int:
    """Number of uniform numbers that a sweep takes for each chain."""
    p = n_parameters
    return REPEATS * ((p + 1) + 2 * p + (p + 2))


def first_chains(center: FloatArray, n_subjects: int, n_chains: int) -> Chains:
    """Chains that all begin at the centre."""
    positions = np.repeat(center[:, None], n_chains, axis=1)
    scales = np.full((n_subjects, 2, len(center)), _FIRST_SCALE)
    return Chains(np.tile(positions, (n_subjects, 1, 1)), scales)


class _Position(NamedTuple):
    """η, its losses by likelihood and prior, and z = L⁻¹ η."""

    effects: FloatArray
    loss: FloatArray
    prior: FloatArray


def sweep(
    population: Population,
    subjects: Subjects,
    chains: Chains,
    uniforms: FloatArray,
    round_index: int,
) -> Chains:
    """Chains after ``REPEATS`` runs of each kernel.

    ``uniforms`` has shape (n_uniforms(p), M, N). The third kernel moves 2 + ``round_index`` mod
    (p - 1) coordinates that follow each other in a circle, from a random one on.
    """
    taken = iter(uniforms + _HALF)
    deviations = np.sqrt((population.root**2).sum(axis=1))
    position = _position(population, subjects, effects_of(population, chains))
    p = len(position.effects)
    for _ in range(REPEATS):
        z = ndtri(np.stack([next(taken) for _ in range(p)]))
        proposal = _position(population, subjects, population.effects(z))
        # The prior is that of the proposal, too.
        accepted = proposal.loss - position.loss < -np.log(next(taken))
        position = _chosen(accepted, proposal, position)
    scales = chains.scales.transpose(1, 2, 0).copy()
    walks = deviations * scales
    position, acceptance = _by_coordinate(population, subjects, position, walks[0], taken)
    scales[0] *= np.exp(_GAIN * acceptance)
    size = 2 + round_index % (p - 1) if p > 1 else 1
    position, acceptance = _by_block(population, subjects, position, walks[1], taken, size)
    scales[1] *= np.exp(_GAIN * acceptance)
    positions = population.means[:, None] + position.effects
    return Chains(
        np.ascontiguousarray(positions.transpose(2, 0, 1)),
        np.ascontiguousarray(scales.transpose(2, 0, 1)),
    )


def effects_of(population: Population, chains: Chains) -> FloatArray:
    """η of all chains, of shape (p, M, N)."""
    positions = np.ascontiguousarray(chains.positions.transpose(1, 2, 0))
    return positions - population.means[:, None]


def _by_coordinate(
    population: Population,
    subjects: Subjects,
    position: _Position,
    walks: FloatArray,
    taken: Any,
) -> tuple[_Position, FloatArray]:
    """Kernel 2 with walks of these deviations, and by how much more often than wanted it moved."""
    acceptance = np.zeros_like(walks)
    for _ in range(REPEATS):
        for j in range(len(walks)):
            effects = position.effects.copy()
            effects[j] += walks[j] * ndtri(next(taken))
            position, accepted = _moved(population, subjects, position, effects, next(taken))
            acceptance[j] += accepted.mean(axis=0)
    return position, acceptance / REPEATS - _WANTED


def _by_block(
    population: Population,
    subjects: Subjects,
    position: _Position,
    walks: FloatArray,
    taken: Any,
    size: int,
) -> tuple[_Position, FloatArray]:
    """Kernel 3, likewise; 0 for coordinates that it did not try to move."""
    p = len(walks)
    moves, acceptance = np.zeros_like(walks), np.zeros_like(walks)
    for _ in range(REPEATS):
        z = ndtri(np.stack([next(taken) for _ in range(p)]))
        uniform = next(taken)
        first = np.floor(p * next(taken))
        within: BoolArray = (np.arange(p)[:, None, None] - first) % p < size
        effects = position.effects + np.where(within, walks[:, None] * z, 0.0)
        position, accepted = _moved(population, subjects, position, effects, uniform)
        moves += within.mean(axis=1)
        acceptance += (within & accepted).mean(axis=1)
    excess = acceptance / np.where(moves > 0, moves, 1.0) - _WANTED
    return position, np.where(moves > 0, excess, 0.0)


def _moved(
    population: Population,
    subjects: Subjects,
    position: _Position,
    effects: FloatArray,
    uniform: FloatArray,
) -> tuple[_Position, BoolArray]:
    """Position after a symmetric proposal, and whether each chain accepted it."""
    proposal = _position(population, subjects, effects)
    rise = proposal.loss - position.loss + proposal.prior - position.prior
    accepted = rise < -np.log(uniform)
    return _chosen(accepted, proposal, position), accepted


def _position(population: Population, subjects: Subjects, effects: FloatArray) -> _Position:
    fit = fit_of(population, subjects, population.means[:, None] + effects)
    z = np.empty_like(effects)
    for i in range(len(z)):
        rest = effects[i]
        for j in range(i):
            rest = rest - population.root[i, j] * z[j]
        z[i] = rest / population.root[i, i]
    prior = z[0] ** 2
    for own in z[1:]:
        prior = prior + own**2
    return _Position(effects, fit.loss, 0.5 * prior)


def _chosen(accepted: BoolArray, new: _Position, old: _Position) -> _Position:
    return _Position(*(np.where(accepted, a, b) for a, b in zip(new, old, strict=True)))


def chain_statistics(
    population: Population, subjects: Subjects, chains: Chains, centred: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Means over the chains of S1 (N, c, p), S2 (N, p, p) and Sr (N, r).

    Statistics of the mean of the chains would lack their dispersion, and let Ω shrink to 0.
    ``centred``, of shape (p, N), are the means of φ minus the centre of the statistics.
    """
    effects = effects_of(population, chains)
    phi = centred[:, None] + effects
    mean = _mean_of_chains(phi, axis=1)
    first = (subjects.covariates[:, None] * mean).transpose(2, 0, 1)
    second = _mean_of_chains(phi[:, None] * phi, axis=2).transpose(2, 0, 1)
    fit = fit_of(population, subjects, population.means[:, None] + effects)
    observed = subjects.observed[:, None]
    with np.errstate(all="ignore"):
        of_chains = population.error.statistics(fit.residuals, fit.predicted, population.squares)
    last = [
        _mean_of_chains(sum_in_order(np.where(observed, each, 0.0)), axis=0) for each in of_chains
    ]
    return first, second, np.stack(last, axis=1)


def _mean_of_chains(values: FloatArray, axis: int) -> FloatArray:
    """Mean over an axis, one by one: NumPy's order of a sum depends on the other axes."""
    n_chains = values.shape[axis]
    return sum_in_order(np.moveaxis(values, axis, 0)) / n_chains
