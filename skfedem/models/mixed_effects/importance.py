"""Log-likelihoods by importance sampling, for more parameters than quadrature can have.

The proposal for z is a t distribution with 4 degrees of freedom, at the mode and with the inverse
curvature there as its scale.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp, ndtri

from ... import _random
from ..._typing import FloatArray
from .conditional import Modes, Population, fit_of
from .quadrature import log_constants
from .subjects import Subjects

_FREEDOM = 4
_N_DRAWS = 5000
# Number of subjects whose draws fit into memory.
AT_ONCE = 32
# Uniform numbers in [0, 1) become numbers in (0, 1).
_HALF = 2.0**-54


class Sampled(NamedTuple):
    """Distribution of each subject's z given y, by K draws.

    Attributes
    ----------
    log_likelihood, variance : ndarray of shape (N,)
        log p(y; θ) in nats, and the variance of its error.
    weights : ndarray of shape (K, N)
        Probabilities of the draws.
    z : ndarray of shape (p, K, N)
    """

    log_likelihood: FloatArray
    variance: FloatArray
    weights: FloatArray
    z: FloatArray


def sampled(
    population: Population,
    subjects: Subjects,
    modes: Modes,
    normals: FloatArray,
    chi_squares: FloatArray,
) -> Sampled:
    """Distributions and log-likelihoods from draws.

    Parameters
    ----------
    population : Population
    subjects : Subjects
    modes : Modes
    normals : ndarray of shape (p, K, N)
        Standard normal numbers.
    chi_squares : ndarray of shape (K, N)
        Numbers of the chi-square distribution with 4 degrees of freedom.
    """
    p, n_draws = normals.shape[:2]
    t = normals / np.sqrt(chi_squares / _FREEDOM)
    factors = np.linalg.cholesky(modes.curvature)
    moved = np.linalg.solve(np.swapaxes(factors, 1, 2), t.transpose(2, 0, 1))
    z = np.ascontiguousarray(modes.z[:, None] + moved.transpose(1, 2, 0))
    loss = fit_of(population, subjects, population.gaussian(z)).loss
    log_proposal = gammaln((_FREEDOM + p) / 2) - gammaln(_FREEDOM / 2)
    log_proposal -= p / 2 * np.log(_FREEDOM * np.pi)
    log_proposal = log_proposal - (_FREEDOM + p) / 2 * np.log1p((t**2).sum(axis=0) / _FREEDOM)
    log_proposal += np.log(np.einsum("nii->ni", factors)).sum(axis=1)
    log_weights = -loss - 0.5 * (z**2).sum(axis=0) - log_proposal
    log_likelihood = logsumexp(log_weights, axis=0) - np.log(n_draws)
    shares = np.exp(log_weights - log_likelihood)
    log_likelihood += log_constants(population, subjects)
    return Sampled(log_likelihood, shares.var(axis=0) / n_draws, shares / n_draws, z)


def importance_sampled(
    population: Population,
    subjects: Subjects,
    modes: Modes,
    seed: int,
    keys: NDArray[np.uint64],
) -> Sampled:
    """5,000 draws for each subject, with random numbers of its own."""
    p, n_subjects = modes.z.shape
    size = _N_DRAWS * (p + 2)
    uniforms = _random.row_uniforms(seed, _random.IMPORTANCE, 0, keys, size) + _HALF
    numbers = uniforms.reshape(n_subjects, p + 2, _N_DRAWS).transpose(1, 2, 0)
    # The sum of two exponential numbers, doubled.
    chi_squares = -2 * np.log(numbers[p] * numbers[p + 1])
    return sampled(population, subjects, modes, ndtri(numbers[:p]), chi_squares)
