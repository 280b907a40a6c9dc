"""Newton's equations for all effects with covariates and groups, from which rows are eliminated.

A row is in one group. Without the rows, coefficients of a group therefore have equations with the
common ones (intercept, columns, covariates of rows, clients), and among themselves, but none with
those of other groups, so that the groups are eliminated one after the other.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import lapack
from scipy.sparse import csr_array, diags, hstack

from ..._federation import offsets_of
from ..._typing import EffectsName, FloatArray, IntArray
from .column_equations import conjugate_gradients
from .covariates import CovariateData, Covariates, JointDesign
from .pooled import LEAST_PENALTY, Pooled, Support
from .theta import Effects

# The ridge is at least this share of the largest curvature: covariates may be collinear.
_LEAST_RIDGE = 1e-10
# Largest number of common unknowns whose equations are factored.
_MOST_FACTORED = 1000
# Share of the entries of a matrix that are not 0, above which it is dense.
_DENSE_SHARE = 0.1
# Number of vectors of random signs for a trace.
_N_SIGNS = 8


class _Equations(NamedTuple):
    """Equations without the rows, ``(H - Wᵀ R⁻¹ W) x = right``.

    Attributes
    ----------
    hessian : csr_array of shape (n_unknowns, n_unknowns)
        H.
    across : csr_array of shape (n_rows, n_unknowns)
        W, of rows and the unknowns; 0 without row effects.
    curvature : ndarray of shape (n_rows,)
        Diagonal of R, the Hessian of the rows.
    order, starts : ndarray of int
        Coefficients in the order of the unknowns, and where those of each group start.
    """

    hessian: csr_array
    across: csr_array
    curvature: FloatArray
    order: IntArray
    starts: IntArray

    @property
    def is_large(self) -> bool:
        """Whether conjugate gradients are faster than a factorization."""
        return bool(self.starts[0] > _MOST_FACTORED)

    @property
    def matrix(self) -> csr_array:
        """``H - Wᵀ R⁻¹ W``."""
        across: Any = self.across
        if across.nnz > _DENSE_SHARE * np.prod(across.shape):  # a product of dense ones is faster
            across = across.toarray()
            product = across.T @ (across / self.curvature[:, None])
        else:
            product = across.T @ csr_array(across.multiply(1 / self.curvature[:, None]))
        return csr_array(self.hessian - product)

    def solution(self, right: FloatArray) -> FloatArray:
        """Solution x."""
        if not self.is_large:
            return _solution(self.matrix, right, self.starts)
        hessian, across, curvature = self.hessian, self.across, self.curvature
        diagonal = hessian.diagonal() - across.power(2).T @ (1 / curvature)

        def times(x: FloatArray) -> FloatArray:
            return hessian @ x - across.T @ ((across @ x) / curvature)

        solution, _ = conjugate_gradients(times, right, lambda x: x / diagonal)
        return solution


def joint_direction(
    pooled: Pooled, covariates: CovariateData, slopes: Effects, weights: FloatArray
) -> Effects:
    """Newton's direction for all effects and coefficients."""
    equations = _equations(pooled, covariates, weights)
    _, across, curvature, order, _ = equations
    n_columns = pooled.support.shape[1] * (pooled.effects != "rows")
    of_columns, of_rows = slopes.columns[:n_columns], slopes.rows * (pooled.effects != "columns")
    right = np.concatenate([[slopes.intercept], of_columns, slopes.coefficients[order]])
    solution = equations.solution(right - across.T @ (of_rows / curvature))
    row_change = (of_rows - across @ solution) / curvature
    columns, coefficients = np.zeros(pooled.support.shape[1]), np.empty_like(slopes.coefficients)
    columns[:n_columns] = solution[1 : 1 + n_columns]
    coefficients[order] = solution[1 + n_columns :]
    return Effects(float(solution[0]), row_change, columns, coefficients)


def trace_of_clients(pooled: Pooled, covariates: CovariateData, weights: FloatArray) -> float:
    """Trace of the block of clients of the inverse Hessian.

    For many clients, this is Hutchinson's estimate (1990), a mean of ``zᵀ C z`` with random signs.
    """
    equations = _equations(pooled, covariates, weights)
    n_common = equations.starts[0]
    clients = slice(n_common - covariates.known.n_clients, n_common)
    if equations.is_large:
        signs = np.zeros((_N_SIGNS, equations.hessian.shape[0]))
        random = np.random.default_rng(0).choice(
            [-1.0, 1.0], (_N_SIGNS, covariates.known.n_clients)
        )
        signs[:, clients] = random
        return float(np.mean([own @ equations.solution(own) for own in signs]))
    matrix = equations.matrix
    common, _ = _without_groups(matrix, np.zeros(matrix.shape[0]), equations.starts)
    unit = np.eye(n_common)[:, clients]
    inverse, _ = lapack.dpotrs(_factor(common[:, :-1]), unit, lower=1)
    return float(np.trace(inverse[clients]))


def _equations(pooled: Pooled, covariates: CovariateData, weights: FloatArray) -> _Equations:
    cells, unknowns, rows, order, starts = covariates.joint
    n_columns = pooled.support.shape[1] * (pooled.effects != "rows")
    entries = cells.data * np.repeat(weights, np.diff(cells.indptr))
    weighted = csr_array((entries, cells.indices, cells.indptr), shape=cells.shape)
    hessian = csr_array(unknowns @ weighted)
    own = covariates.penalties[order]
    penalties = np.concatenate([[LEAST_PENALTY], np.full(n_columns, pooled.ridge_penalty), own])
    least = _LEAST_RIDGE * float(hessian.diagonal().max())
    hessian += diags(np.maximum(penalties, least))
    if pooled.effects == "columns":
        across, curvature = csr_array((rows.shape[0], len(penalties))), np.ones(rows.shape[0])
    else:
        across = csr_array(rows @ weighted)
        curvature = rows @ weights + max(pooled.ridge_penalty, least)
    return _Equations(csr_array(hessian), across, curvature, order, starts)


def joint_design(
    support: Support, effects: EffectsName, known: Covariates, design: csr_array
) -> JointDesign:
    """Design of all effects, given that of the coefficients."""
    n_cells, (n_rows, n_columns) = len(support.rows), support.shape
    ones, every = np.ones(n_cells), np.arange(n_cells + 1)
    order, starts = _by_group(known)
    parts = [csr_array(ones[:, None]), design[:, order]]
    if effects == "rows":
        n_columns = 0
    else:
        shape = n_cells, n_columns
        parts.insert(1, csr_array((ones, support.columns, every), shape=shape))
    cells = csr_array(hstack(parts, format="csr"))
    rows = csr_array((ones, every[:-1], support.row_starts), shape=(n_rows, n_cells))
    return JointDesign(cells, csr_array(cells.T), rows, order, starts + 1 + n_columns)


def _by_group(known: Covariates) -> tuple[IntArray, IntArray]:
    """Coefficients in the order common ones, then group by group; and where each group starts."""
    n_covariates, *of_groups, n_clients = known.sizes
    groups = np.arange(known.n_groups)
    owners = np.concatenate([np.repeat(groups, n // known.n_groups) for n in of_groups])
    common = np.r_[:n_covariates, sum(known.sizes) - n_clients : sum(known.sizes)]
    order = np.concatenate([common, n_covariates + np.argsort(owners, kind="stable")])
    ends = offsets_of(np.bincount(owners, minlength=known.n_groups))
    return order, len(common) + np.unique(ends)  # groups may have none


def _solution(matrix: csr_array, right: FloatArray, starts: IntArray) -> FloatArray:
    """Solution of positive definite equations in which groups only meet in the common unknowns.

    Group ``g`` has the unknowns ``starts[g]:starts[g + 1]``; those before ``starts[0]`` are common.
    """
    n_common, solution = starts[0], np.empty_like(right)
    common, factors = _without_groups(matrix, right, starts)
    factor = _factor(common[:, :-1])
    solution[:n_common], _ = lapack.dpotrs(factor, common[:, -1], lower=1)
    for (start, stop), (factor, border) in zip(pairwise(starts.tolist()), factors, strict=True):
        rest = border[:, -1] - border[:, :-1] @ solution[:n_common]
        solution[start:stop], _ = lapack.dtrtrs(factor, rest, lower=1, trans=1)
    return solution


def _without_groups(
    matrix: csr_array, right: FloatArray, starts: IntArray
) -> tuple[FloatArray, list[tuple[FloatArray, FloatArray]]]:
    """Equations of the common unknowns, with their right side, and each group's factors."""
    n_common = starts[0]
    rows = csr_array(matrix)[:n_common, :n_common].toarray()
    common = np.column_stack([rows, right[:n_common]])
    factors = []
    for start, stop in pairwise(starts.tolist()):
        own = matrix[start:stop]
        factor = _factor(own[:, start:stop].toarray())
        border = np.column_stack([own[:, :n_common].toarray(), right[start:stop]])
        border, _ = lapack.dtrtrs(factor, border, lower=1)
        common -= border[:, :-1].T @ border
        factors.append((factor, border))
    return common, factors


def _factor(matrix: FloatArray) -> FloatArray:
    """Lower Cholesky factor, of a matrix nearby if rounding has made it indefinite."""
    factor, info = lapack.dpotrf(matrix, lower=1)
    if info:
        nearby = matrix + 1e-6 * np.abs(matrix.diagonal()).max() * np.eye(len(matrix))
        factor = np.linalg.cholesky(nearby)
    return factor
