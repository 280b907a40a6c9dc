"""E-step by adaptive Gauss-Hermite quadrature.

With ẑ the mode of a subject's z and C the Cholesky factor of the curvature there, the nodes are
``ẑ + C⁻ᵀ t`` for the nodes t of a product rule [1]_. An integral over φ is a weighted sum over
them, and so are the likelihood and the conditional means of the statistics.

References
----------
.. [1] J. C. Pinheiro and D. M. Bates, "Approximations to the log-likelihood function in the
   nonlinear mixed-effects model", Journal of Computational and Graphical Statistics 4, 1995.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from ..._typing import FloatArray
from .conditional import Fit, Modes, Population, find_modes, fit_of
from .subjects import Subjects, sum_in_order

_LOG_2_PI = float(np.log(2 * np.pi))


class Conditional(NamedTuple):
    """Distribution of each subject's φ given y, on K nodes.

    Attributes
    ----------
    log_likelihood : ndarray of shape (N,)
        log p(y; θ) in nats.
    weights : ndarray of shape (K, N)
        Probabilities of the nodes.
    effects : ndarray of shape (p, K, N)
        η at the nodes.
    fit : Fit
        At the nodes.
    modes : Modes
    """

    log_likelihood: FloatArray
    weights: FloatArray
    effects: FloatArray
    fit: Fit
    modes: Modes


@cache
def product_rule(n_nodes: int, n_dimensions: int) -> tuple[FloatArray, FloatArray]:
    """Nodes (d, K) and the logarithms of ``weight * exp(½ |t|²)`` of a product rule."""
    points, weights = np.polynomial.hermite_e.hermegauss(n_nodes)
    grid = np.stack(np.meshgrid(*[points] * n_dimensions, indexing="ij"))
    log_weights = np.log(weights) + 0.5 * points**2
    of_grid = np.stack(np.meshgrid(*[log_weights] * n_dimensions, indexing="ij"))
    return grid.reshape(n_dimensions, -1), of_grid.reshape(n_dimensions, -1).sum(axis=0)


def conditional(population: Population, subjects: Subjects, n_nodes: int) -> Conditional:
    """Conditional distributions of all subjects, with ``n_nodes`` nodes in each dimension.

    The likelihood of a subject that no φ can explain is 0, and its nodes have equal weights.
    """
    modes = find_modes(population, subjects)
    p = len(modes.z)
    nodes, log_weights = product_rule(n_nodes, p)
    usable = np.isfinite(modes.curvature).all(axis=(1, 2), keepdims=True)
    curvature = np.where(usable, modes.curvature, np.eye(p))
    factors = np.linalg.cholesky(curvature)
    moved = np.linalg.solve(np.swapaxes(factors, 1, 2), nodes[None])
    z = modes.z[:, None, :] + moved.transpose(1, 2, 0)
    effects = population.effects(np.ascontiguousarray(z))
    fit = fit_of(population, subjects, population.means[:, None] + effects)
    log_joint = log_weights[:, None] - fit.loss - 0.5 * (z**2).sum(axis=0)
    highest = log_joint.max(axis=0)
    is_possible = np.isfinite(highest)
    weights = np.where(is_possible, log_joint - np.where(is_possible, highest, 0.0), 0.0)
    weights = np.exp(weights, out=weights)
    sums = sum_in_order(weights)
    weights /= sums
    total = highest + np.log(sums)
    log_likelihood = total - np.log(np.einsum("nii->ni", factors)).sum(axis=1)
    log_likelihood += log_constants(population, subjects)
    return Conditional(log_likelihood, weights, effects, fit, modes)


def log_constants(population: Population, subjects: Subjects) -> FloatArray:
    """Terms of log p(y, z; θ) of each subject that depend on neither θ nor z."""
    constants = -0.5 * _LOG_2_PI * (len(population.means) + subjects.n_observations)
    if population.error.is_on_logarithms:
        logarithms = np.where(subjects.observed, subjects.response, 0.0)
        constants = constants - sum_in_order(logarithms)
    return constants


def mean_statistics(
    population: Population, subjects: Subjects, distribution: Conditional, centred: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Conditional means of S1 (N, c, p), S2 (N, p, p) and Sr (N, r).

    ``centred``, of shape (p, N), are the means of φ minus the centre of the statistics.
    """
    phi, weights = centred[:, None] + distribution.effects, distribution.weights
    weighted = [weights * own for own in phi]
    mean = np.stack([sum_in_order(own) for own in weighted])
    first = (subjects.covariates[:, None] * mean).transpose(2, 0, 1)
    second = np.empty((subjects.n_subjects, len(phi), len(phi)))
    for i, own in enumerate(weighted):
        for j in range(i + 1):
            second[:, i, j] = second[:, j, i] = sum_in_order(own * phi[j])
    fit = distribution.fit
    with np.errstate(all="ignore"):
        of_nodes = population.error.statistics(fit.residuals, fit.predicted, population.squares)
    observed, counted = subjects.observed[:, None], weights > 0
    last = [
        sum_in_order(weights * sum_in_order(np.where(observed & counted, squares, 0.0)))
        for squares in of_nodes
    ]
    return first, second, np.stack(last, axis=1)
