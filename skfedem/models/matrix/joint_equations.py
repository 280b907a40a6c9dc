"""Newton's equations for all effects with covariates and groups, from which rows are eliminated.

A row is in one group. Without the rows, coefficients of a group therefore have equations with the
common ones (intercept, columns, covariates of rows), and among themselves, but none with those of
other groups, so that the groups are eliminated one after the other.
"""

from __future__ import annotations

from itertools import pairwise

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


def joint_direction(
    pooled: Pooled, covariates: CovariateData, slopes: Effects, weights: FloatArray
) -> Effects:
    """Newton's direction for all effects and coefficients."""
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
    right = np.concatenate(
        [[slopes.intercept], slopes.columns[:n_columns], slopes.coefficients[order]]
    )
    own = covariates.penalties[order]
    penalties = np.concatenate([[LEAST_PENALTY], np.full(n_columns, ridge_penalty), own])
    least = _LEAST_RIDGE * float(hessian.diagonal().max())
    hessian += diags(np.maximum(penalties, least))
    starts = starts + 1 + n_columns
    row_change = np.zeros(support.shape[0])
    if pooled.effects != "columns":
        shape = support.shape[0], n_cells
        of_rows = csr_array((np.ones(n_cells), every[:-1], support.row_starts), shape=shape)
        curvature = of_rows @ weights + max(ridge_penalty, least)
        across = csr_array(of_rows @ weighted)
        scaled = csr_array(across.multiply(1 / curvature[:, None]))
        solution = _solution(hessian - across.T @ scaled, right - scaled.T @ slopes.rows, starts)
        row_change = (slopes.rows - across @ solution) / curvature
    else:
        solution = _solution(hessian, right, starts)
    columns, coefficients = np.zeros(support.shape[1]), np.empty_like(slopes.coefficients)
    columns[:n_columns] = solution[1 : 1 + n_columns]
    coefficients[order] = solution[1 + n_columns :]
    return Effects(float(solution[0]), row_change, columns, coefficients)


def _by_group(known: Covariates) -> tuple[IntArray, IntArray]:
    """Coefficients in the order common ones, then group by group; and where each group starts."""
    n_common, *of_groups = known.sizes
    groups = np.arange(known.n_groups)
    owners = np.concatenate([np.repeat(groups, n // known.n_groups) for n in of_groups])
    order = np.concatenate([np.arange(n_common), n_common + np.argsort(owners, kind="stable")])
    return order, n_common + offsets_of(np.bincount(owners, minlength=known.n_groups))


def _solution(matrix: csr_array, right: FloatArray, starts: IntArray) -> FloatArray:
    """Solution of positive definite equations in which groups only meet in the common unknowns.

    Group ``g`` has the unknowns ``starts[g]:starts[g + 1]``; those before ``starts[0]`` are common.
    """
    n_common, solution = starts[0], np.empty_like(right)
    rows = csr_array(matrix)[:n_common, :n_common].toarray()
    common = np.column_stack([rows, right[:n_common]])
    factors = []
    groups = [(start, stop) for start, stop in pairwise(starts.tolist()) if start < stop]
    for start, stop in groups:
        own = matrix[start:stop]
        factor = _factor(own[:, start:stop].toarray())
        border = np.column_stack([own[:, :n_common].toarray(), right[start:stop]])
        border, _ = lapack.dtrtrs(factor, border, lower=1)
        common -= border[:, :-1].T @ border
        factors.append((factor, border))
    factor = _factor(common[:, :-1])
    solution[:n_common], _ = lapack.dpotrs(factor, common[:, -1], lower=1)
    for (start, stop), (factor, border) in zip(groups, factors, strict=True):
        rest = border[:, -1] - border[:, :-1] @ solution[:n_common]
        solution[start:stop], _ = lapack.dtrtrs(factor, rest, lower=1, trans=1)
    return solution


def _factor(matrix: FloatArray) -> FloatArray:
    """Lower Cholesky factor, of a matrix nearby if rounding has made it indefinite."""
    factor, info = lapack.dpotrf(matrix, lower=1)
    if info:
        nearby = matrix + 1e-6 * np.abs(matrix.diagonal()).max() * np.eye(len(matrix))
        factor = np.linalg.cholesky(nearby)
    return factor
