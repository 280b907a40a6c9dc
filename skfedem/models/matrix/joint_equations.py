"""Newton's equations for all effects with covariates and groups, from which rows are eliminated.

A row is in one group. Without the rows, coefficients of a group therefore have equations with the
common ones (intercept, columns, covariates of rows, clients), and among themselves, but none with
those of other groups, so that the groups are eliminated one after the other.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy.linalg import lapack
from scipy.sparse import csr_array, diags, hstack

from ..._federation import offsets_of
from ..._typing import FloatArray, IntArray
from .covariates import CovariateData, Covariates
from .pooled import LEAST_PENALTY, Pooled
from .theta import Effects

# The ridge is at least this share of the largest curvature: covariates may be collinear.
_LEAST_RIDGE = 1e-10


class _Equations(NamedTuple):
    """Equations without the rows.

    Attributes
    ----------
    matrix : csr_array of shape (n_unknowns, n_unknowns)
        Hessian, without the rows.
    across : csr_array of shape (n_rows, n_unknowns)
        Hessian of the rows and the unknowns; 0 without row effects.
    curvature : ndarray of shape (n_rows,)
        Hessian of the rows, which is diagonal.
    order, starts : ndarray of int
        Coefficients in the order of the unknowns, and where those of each group start.
    """

    matrix: csr_array
    across: csr_array
    curvature: FloatArray
    order: IntArray
    starts: IntArray


def joint_direction(
    pooled: Pooled, covariates: CovariateData, slopes: Effects, weights: FloatArray
) -> Effects:
    """Newton's direction for all effects and coefficients."""
    matrix, across, curvature, order, starts = _equations(pooled, covariates, weights)
    n_columns = pooled.support.shape[1] * (pooled.effects != "rows")
    of_columns, of_rows = slopes.columns[:n_columns], slopes.rows * (pooled.effects != "columns")
    right = np.concatenate([[slopes.intercept], of_columns, slopes.coefficients[order]])
    solution = _solution(matrix, right - across.T @ (of_rows / curvature), starts)
    row_change = (of_rows - across @ solution) / curvature
    columns, coefficients = np.zeros(pooled.support.shape[1]), np.empty_like(slopes.coefficients)
    columns[:n_columns] = solution[1 : 1 + n_columns]
    coefficients[order] = solution[1 + n_columns :]
    return Effects(float(solution[0]), row_change, columns, coefficients)


def variances_of_clients(
    pooled: Pooled, covariates: CovariateData, weights: FloatArray
) -> FloatArray:
    """Diagonal of the inverse Hessian, for the effects of clients."""
    matrix, *_, starts = _equations(pooled, covariates, weights)
    common, _ = _without_groups(matrix, np.zeros(matrix.shape[0]), starts)
    first = len(common) - covariates.known.n_clients
    unit = np.eye(len(common))[:, first:]
    inverse, _ = lapack.dpotrs(_factor(common[:, :-1]), unit, lower=1)
    return np.diag(inverse[first:])


def _equations(pooled: Pooled, covariates: CovariateData, weights: FloatArray) -> _Equations:
    support, ridge_penalty = pooled.support, pooled.ridge_penalty
    n_cells, n_columns = len(weights), support.shape[1] * (pooled.effects != "rows")
    every = np.arange(n_cells + 1)
    order, starts = _by_group(covariates.known)
    parts = [csr_array(np.ones((n_cells, 1))), covariates.design[:, order]]
    if n_columns:
        shape = n_cells, n_columns
        parts.insert(1, csr_array((np.ones(n_cells), support.columns, every), shape=shape))
    design = csr_array(hstack(parts, format="csr"))
    weighted = csr_array(design.multiply(weights[:, None]))
    hessian = csr_array(design.T @ weighted)
    own = covariates.penalties[order]
    penalties = np.concatenate([[LEAST_PENALTY], np.full(n_columns, ridge_penalty), own])
    least = _LEAST_RIDGE * float(hessian.diagonal().max())
    hessian += diags(np.maximum(penalties, least))
    starts = starts + 1 + n_columns
    if pooled.effects == "columns":
        none = csr_array((support.shape[0], len(penalties)))
        return _Equations(csr_array(hessian), none, np.ones(support.shape[0]), order, starts)
    shape = support.shape[0], n_cells
    of_rows = csr_array((np.ones(n_cells), every[:-1], support.row_starts), shape=shape)
    curvature = of_rows @ weights + max(ridge_penalty, least)
    across = csr_array(of_rows @ weighted)
    hessian = hessian - across.T @ csr_array(across.multiply(1 / curvature[:, None]))
    return _Equations(csr_array(hessian), across, curvature, order, starts)


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
