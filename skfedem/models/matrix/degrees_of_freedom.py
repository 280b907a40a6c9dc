"""Effective numbers of parameters of a low-rank fit.

The nuclear norm of Θ is the smallest ``(||A||² + ||B||²) / 2`` with ``Θ = A Bᵀ``, so that a fit is
a stationary point of a smooth objective of the effects, A and B. By implicit differentiation, the
fit depends on the observations like a linear smoother with the trace of ``M = H⁻¹ Jᵀ W J``, with
the Jacobian J of θ, ``W = N ψ''(θ)`` and the Hessian H of the objective. For complete Gaussian
matrices, tr M is the formula of Candès, Sing-Long and Trzasko (2013, IEEE Transactions on Signal
Processing 61, equation 9). Residuals of a linear smoother have the expected sum of squares
``n - tr(2 M - M²)``, apart from its bias (Buja, Hastie and Tibshirani 1989, Annals of Statistics
17, section 2.7).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.linalg import solve
from scipy.sparse import csr_array, hstack

from ..._typing import FloatArray, IntArray
from .pooled import LEAST_PENALTY, Pooled
from .proximal import Iterate

# Largest number of parameters for which equations are solved.
_MOST_PARAMETERS = 1500
# Relative increase of the curvature, in the directions in which A and B rotate without changing Θ.
_LEAST_CURVATURE = 1e-8


class EffectiveParameters(NamedTuple):
    """tr M, and tr(2 M - M²), which is subtracted from the number of residuals."""

    divergence: float
    of_residuals: float


def effective_parameters(
    pooled: Pooled, iterate: Iterate, sums: FloatArray
) -> EffectiveParameters | None:
    """Effective numbers of parameters; None for more than 1,500 parameters.

    ``sums`` are those of the observations in the observed cells.
    """
    support, (n_rows, n_columns) = pooled.support, pooled.support.shape
    root = np.sqrt(iterate.low_rank.singular_values)
    left, right = iterate.low_rank.left * root, iterate.low_rank.right * root
    design, penalties = _design_of_effects(pooled)
    n_effects, n_factors = len(penalties), len(root)
    n_parameters = n_effects + n_factors * (n_rows + n_columns)
    if n_parameters > _MOST_PARAMETERS:
        return None
    parts = [design]
    parts += [_column_of(support.rows, right[support.columns, k], n_rows) for k in range(n_factors)]
    parts += [
        _column_of(support.columns, left[support.rows, k], n_columns) for k in range(n_factors)
    ]
    jacobian = csr_array(hstack(parts, format="csr"))
    weights = support.counts * pooled.family.variance(iterate.theta)
    information = (jacobian.T @ jacobian.multiply(weights[:, None])).toarray()
    hessian = information.copy()
    ridge = np.concatenate([penalties, np.full(n_parameters - n_effects, pooled.penalty)])
    ridge += _LEAST_CURVATURE * information.diagonal().max(initial=0.0)
    hessian[np.diag_indices_from(hessian)] += ridge
    residuals = sums - support.counts * pooled.family.mean(iterate.theta)
    for k in range(n_factors):
        rows = n_effects + k * n_rows + support.rows
        columns = n_effects + n_factors * n_rows + k * n_columns + support.columns
        np.subtract.at(hessian, (rows, columns), residuals)  # as cells may recur
        np.subtract.at(hessian, (columns, rows), residuals)
    smoother = solve(hessian, information, assume_a="sym")
    trace, square = float(np.trace(smoother)), float((smoother * smoother.T).sum())
    return EffectiveParameters(trace, 2 * trace - square)


def _design_of_effects(pooled: Pooled) -> tuple[csr_array, FloatArray]:
    """Derivatives of θ by intercept, effects and coefficients, and the penalties of these."""
    support, effects, n_cells = pooled.support, pooled.effects, len(pooled.support.counts)
    ones = np.ones(n_cells)
    parts = [csr_array((n_cells, 0))]
    penalties = [np.empty(0)]
    if effects != "none":
        parts.append(csr_array(ones[:, None]))
        penalties.append(np.full(1, LEAST_PENALTY))
    for axis, lines in (("rows", support.rows), ("columns", support.columns)):
        if effects in ("both", axis):
            size = support.shape[axis == "columns"]
            parts.append(_column_of(lines, ones, size))
            penalties.append(np.full(size, pooled.ridge_penalty))
    if pooled.covariates is not None:
        parts.append(pooled.covariates.design)
        penalties.append(pooled.covariates.penalties)
    return csr_array(hstack(parts, format="csr")), np.concatenate(penalties)


def _column_of(lines: IntArray, values: FloatArray, size: int) -> csr_array:
    """Matrix with a value in the column of each cell's line."""
    return csr_array((values, lines, np.arange(len(lines) + 1)), shape=(len(lines), size))
