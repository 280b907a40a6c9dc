"""Fisher information of a population's parameters, with the model linearised at the modes.

Near the mode of a subject, y is about normal with mean ``f + J (φ - φ̂)`` and covariance
``V = J Ω Jᵀ + diag(v)``, so that, with D the derivatives of the mean and V_a those of V::

    I(B, B) = Dᵀ V⁻¹ D        I(a, b) = ½ tr(V⁻¹ V_a V⁻¹ V_b)

The information is a sum over subjects.

References
----------
.. [1] S. Retout, F. Mentré and R. Bruno, "Fisher information matrix for non-linear mixed-effects
   models: evaluation and application for optimal design of enoxaparin population pharmacokinetics",
   Statistics in Medicine 21, 2002.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..._typing import FloatArray
from .conditional import Population, fit_of, slopes_at
from .layout import Layout
from .subjects import Subjects


class Linearised(NamedTuple):
    """The model of each subject, linearised at z.

    Attributes
    ----------
    slopes : ndarray of shape (N, n, p)
        J, derivatives in φ.
    covariance : ndarray of shape (N, n, n)
        V; 1 on the diagonal where nothing was observed.
    predicted, residuals : ndarray of shape (N, n)
        f and y - f at z; 0 where nothing was observed.
    population_residuals : ndarray of shape (N, n)
        y minus the mean, ``f - J η``.
    """

    slopes: FloatArray
    covariance: FloatArray
    predicted: FloatArray
    residuals: FloatArray
    population_residuals: FloatArray


def linearised(population: Population, subjects: Subjects, z: FloatArray) -> Linearised:
    """Linearise the model of each subject at z, of shape (p, N)."""
    observed = subjects.observed.T
    scaled = slopes_at(population, subjects, z).transpose(2, 0, 1)
    roots = population.root.transpose(2, 0, 1)
    slopes = np.linalg.solve(np.swapaxes(roots, 1, 2), np.swapaxes(scaled, 1, 2))
    fit = fit_of(population, subjects, population.gaussian(z))
    predicted = np.where(observed, fit.predicted.T, 0.0)
    residuals = np.where(observed, fit.residuals.T, 0.0)
    squares = population.squares[:, :, None]
    variance = np.where(observed, population.error.variance(predicted, squares), 1.0)
    covariance = scaled @ np.swapaxes(scaled, 1, 2)
    covariance = covariance + variance[:, :, None] * np.eye(len(subjects.response))
    shift = (scaled @ z.T[:, :, None])[:, :, 0]
    return Linearised(
        np.swapaxes(slopes, 1, 2), covariance, predicted, residuals, residuals + shift
    )


def information_of(
    layout: Layout, population: Population, subjects: Subjects, z: FloatArray
) -> FloatArray:
    """Sum over the subjects of their information, at the modes z.

    The parameters are B by the mask, the entries of Ω and the roots of the squares.
    """
    model = linearised(population, subjects, z)
    observed = subjects.observed.T
    rows, columns = np.nonzero(layout.mask)
    x = subjects.covariates.T
    of_means = model.slopes[:, :, columns] * x[:, None, rows]
    of_covariance = [
        _covariance_slope(model.slopes, i, j) for i, j in zip(*layout.of_covariance, strict=True)
    ]
    n = len(subjects.response)
    for slope in _error_slopes(population, model.predicted):
        diagonal = np.where(observed, slope, 0.0)
        of_covariance.append(diagonal[:, :, None] * np.eye(n))
    weighted = [np.linalg.solve(model.covariance, change) for change in of_covariance]
    n_means, n_others = len(rows), len(weighted)
    information = np.zeros((n_means + n_others, n_means + n_others))
    solved = np.linalg.solve(model.covariance, of_means)
    information[:n_means, :n_means] = (np.swapaxes(of_means, 1, 2) @ solved).sum(axis=0)
    for a, one in enumerate(weighted):
        for b, other in enumerate(weighted[: a + 1]):
            value = 0.5 * float((one * np.swapaxes(other, 1, 2)).sum())
            information[n_means + a, n_means + b] = information[n_means + b, n_means + a] = value
    return information


def _covariance_slope(slopes: FloatArray, i: int, j: int) -> FloatArray:
    """Derivative of ``J Ω Jᵀ`` in an entry of Ω and its mirror image."""
    product = slopes[:, :, None, i] * slopes[:, None, :, j]
    return product if i == j else product + np.swapaxes(product, 1, 2)


def _error_slopes(population: Population, predicted: FloatArray) -> list[FloatArray]:
    """Derivatives of v in the roots of the squares: v is linear in the squares."""
    squares = population.squares[:, :, None]
    slopes = []
    for k in range(len(squares)):
        only = np.zeros_like(squares)
        only[k] = 2 * np.sqrt(squares[k])
        slopes.append(population.error.variance(predicted, only) + np.zeros_like(predicted))
    return slopes
