"""Log-likelihoods by importance sampling, for more parameters than quadrature can have.

The proposal for z is a t distribution with 4 degrees of freedom, at the mode and with the inverse
curvature there as its scale.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import gammaln, logsumexp

from ..._typing import FloatArray
from .conditional import Modes, Population, fit_of
from .quadrature import log_constants
from .subjects import Subjects

_FREEDOM = 4


class Sampled(NamedTuple):
    """Log-likelihood of each subject in nats, and the variance of its error, shape (N,)."""

    log_likelihood: FloatArray
    variance: FloatArray


def sampled_log_likelihood(
    population: Population,
    subjects: Subjects,
    modes: Modes,
    normals: FloatArray,
    chi_squares: FloatArray,
) -> Sampled:
    """Log-likelihoods from draws.

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
    return Sampled(
        log_likelihood + log_constants(population, subjects), shares.var(axis=0) / n_draws
    )
