"""The M-step T of a population model, its inverse and its surrogate.

All statistics are means over the subjects. With G the mean of x xᵀ and n̄ that of the number of
observations, which the clients send once, and with m the covariates of parameter j::

    G[m, m] B[m, j] = S1[m, j]
    Ω = S2 - S1ᵀ B - Bᵀ S1 + Bᵀ G B,    diagonal or full
    squares = Sr / n̄

If Ω is full and covariates differ between parameters, B solves the normal equations of generalised
least squares for this Ω, and the two are iterated.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..._typing import FloatArray
from .layout import Layout

# Generalised least squares have converged at this relative change of Ω, or after so many rounds.
_ACCURACY = 1e-14
_MOST_ROUNDS = 200


class Constants(NamedTuple):
    """Means over the subjects, sent once: of x xᵀ, and of the number of observations."""

    moment: FloatArray
    n_observations: float


class Theta(NamedTuple):
    """Coefficients B (c, p), covariance Ω (p, p), and squares of the residual error (r,)."""

    coefficients: FloatArray
    covariance: FloatArray
    squares: FloatArray


def maximization(layout: Layout, constants: Constants, statistics: FloatArray) -> Theta:
    """T of a vector of statistics in its domain."""
    first, second, last = layout.split(statistics)
    coefficients = _least_squares(layout, constants, first)
    covariance = _covariance(layout, constants, first, second, coefficients)
    if layout.is_full and not (layout.mask == layout.mask[:, :1]).all():
        coefficients, covariance = _generalised(
            layout, constants, first, second, coefficients, covariance
        )
    return Theta(coefficients, covariance, last / constants.n_observations)


def _least_squares(layout: Layout, constants: Constants, first: FloatArray) -> FloatArray:
    coefficients, mask = np.zeros_like(first), layout.mask
    each = np.arange(layout.n_parameters)
    # At once, if all parameters have the same covariates.
    for group in each[None] if (mask == mask[:, :1]).all() else each[:, None]:
        own = np.flatnonzero(mask[:, group[0]])
        places = np.ix_(own, group)
        coefficients[places] = np.linalg.solve(constants.moment[np.ix_(own, own)], first[places])
    return coefficients


def _covariance(
    layout: Layout,
    constants: Constants,
    first: FloatArray,
    second: FloatArray,
    coefficients: FloatArray,
) -> FloatArray:
    mixed = first.T @ coefficients
    covariance = second - mixed - mixed.T + coefficients.T @ constants.moment @ coefficients
    return covariance if layout.is_full else np.diag(np.diagonal(covariance))


def _generalised(
    layout: Layout,
    constants: Constants,
    first: FloatArray,
    second: FloatArray,
    coefficients: FloatArray,
    covariance: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """B and Ω that maximise the surrogate together, from those of least squares."""
    rows, columns = np.nonzero(layout.mask)
    for _ in range(_MOST_ROUNDS):
        if not is_positive(covariance):
            break
        precision = np.linalg.solve(covariance, np.eye(len(covariance)))
        system = constants.moment[np.ix_(rows, rows)] * precision[np.ix_(columns, columns)]
        coefficients = np.zeros_like(first)
        coefficients[rows, columns] = np.linalg.solve(system, (first @ precision)[rows, columns])
        before = covariance
        covariance = _covariance(layout, constants, first, second, coefficients)
        if np.abs(covariance - before).max() <= _ACCURACY * np.abs(covariance).max():
            break
    return coefficients, covariance


def is_positive(matrix: FloatArray) -> bool:
    """Whether a matrix is finite and positive definite."""
    if not np.isfinite(matrix).all():
        return False
    try:
        np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return False
    return True


def statistics_of(layout: Layout, constants: Constants, theta: Theta) -> FloatArray:
    """Inverse of T: S1 = G B, S2 = Bᵀ G B + Ω, Sr = n̄ squares."""
    first = constants.moment @ theta.coefficients
    second = theta.coefficients.T @ first + theta.covariance
    return layout.join(first, second, constants.n_observations * theta.squares)


def annealed(theta: Theta, before: Theta, share: float) -> Theta:
    """θ with variances and squares of at least this share of those before."""
    variances = np.diagonal(theta.covariance)
    raised = np.maximum(variances, share * np.diagonal(before.covariance)) - variances
    squares = np.maximum(theta.squares, share * before.squares)
    return theta._replace(covariance=theta.covariance + np.diag(raised), squares=squares)


def surrogate(layout: Layout, constants: Constants, statistics: FloatArray, theta: Theta) -> float:
    """``<s, φ(θ)> - ψ(θ)``, nats per subject, without the terms that do not depend on θ.

    ::

        -½ log det Ω - ½ tr(Ω⁻¹ (S2 - S1ᵀ B - Bᵀ S1 + Bᵀ G B))
            - ½ Σ (n̄ log squares + Sr / squares)
    """
    first, second, last = layout.split(statistics)
    scatter = _covariance(layout, constants, first, second, theta.coefficients)
    value = np.linalg.slogdet(theta.covariance)[1]
    value += np.trace(np.linalg.solve(theta.covariance, scatter))
    value += (constants.n_observations * np.log(theta.squares) + last / theta.squares).sum()
    return float(-0.5 * value)


def keeps(layout: Layout, constants: Constants, proposal: FloatArray, least: Any) -> bool:
    """Whether a statistic is in the domain of T, with Ω and squares larger than ``least``.

    ``least``, a covariance and squares, is a share of those before a step: Ω and the squares are
    concave in the statistic, so that a step γ towards the statistic of any data keeps at least a
    share 1 - γ of both.
    """
    if not np.isfinite(proposal).all():
        return False
    theta = maximization(layout, constants, proposal)
    return bool((theta.squares > least[1]).all()) and is_positive(theta.covariance - least[0])
