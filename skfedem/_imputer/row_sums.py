"""Sums over groups of rows of fitted cells, with the covariances of the estimating equations."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array

from .._typing import BoolArray, FloatArray, IntArray
from ..models.matrix.families import Family
from ..models.matrix.pooled import Support
from .estimating_equations import Estimate
from .residuals import Observed

# A row with fewer observed cells says little about itself.
_FEW_CELLS = 3
# A mean this many times as large as those of all observed cells of its row is extrapolated.
_EXTRAPOLATION = 4
# Number of cells that are computed at once.
_BLOCK = 2**20


class Sums(NamedTuple):
    """Sums over the rows of a group, for each column or pair of columns.

    Attributes
    ----------
    model, missing : ndarray of shape (n_columns,)
        Means of all cells, and of those that were not observed.
    model_covariance : ndarray of shape (n_columns, n_columns)
        Covariance of the first, from the errors of the effects.
    imputed_covariance : ndarray of shape (n_columns, n_columns)
        Covariance of the observed cells plus the means of the others.
    rows : ndarray of shape (n_rows,)
        Means summed over the columns of the result, for each row of the group.
    largest, largest_rows : ndarray of shape (n_columns,)
        Largest mean of a missing cell that hangs on a few cells or is extrapolated, and its row.
    """

    model: FloatArray
    missing: FloatArray
    model_covariance: FloatArray
    imputed_covariance: FloatArray
    rows: FloatArray
    largest: FloatArray
    largest_rows: IntArray


def added(one: Sums, other: Sums) -> Sums:
    """Sums over the rows of two groups, whose effects have independent errors."""
    is_larger = other.largest > one.largest
    return Sums(
        one.model + other.model,
        one.missing + other.missing,
        one.model_covariance + other.model_covariance,
        one.imputed_covariance + other.imputed_covariance,
        one.rows + other.rows,
        np.where(is_larger, other.largest, one.largest),
        np.where(is_larger, other.largest_rows, one.largest_rows),
    )


def sums_of_rows(
    observed: Observed, estimate: Estimate, family: Family, in_group: BoolArray, columns: IntArray
) -> Sums:
    """Sums over the rows that are in the group."""
    support, information = observed.support, estimate.information
    n_rows, n_columns = support.shape
    is_known = ~np.isnan(estimate.columns)
    column_effects = np.where(is_known, estimate.columns, 0.0)
    model, missing, noise = np.zeros(n_columns), np.zeros(n_columns), np.zeros(2 * (n_columns,))
    # Of all cells, and of the observed ones.
    within, across = np.zeros((2, n_columns, n_columns)), np.zeros((2, n_columns, n_columns))
    row_sums = np.zeros(n_rows)
    largest, largest_rows = np.zeros(n_columns), np.zeros(n_columns, dtype=np.intp)
    members = np.flatnonzero(in_group)
    for rows in np.array_split(members, 1 + len(members) * n_columns // _BLOCK):
        natural = _natural(estimate.rows[rows], column_effects)
        means, variances = family.mean(natural), family.variance(natural)
        counts = _counts(support, rows)
        is_seen = counts > 0
        model += means.sum(axis=0)
        missing += np.where(is_seen, 0.0, means).sum(axis=0)
        roots = np.sqrt(np.divide(variances, counts, out=np.zeros_like(means), where=is_seen))
        noise += roots.T @ roots
        inverse = _inverse(information.rows[rows])
        beside = information.rows_columns[rows].toarray() * inverse
        for kind, slopes in enumerate((variances, variances * is_seen)):
            within[kind] += slopes.T @ (slopes * inverse)
            across[kind] += np.diag(slopes.sum(axis=0)) - slopes.T @ beside
        row_sums[rows] = means[:, columns].sum(axis=1)
        hanging = np.where(hangs(means, is_seen), means, 0.0)
        best = hanging.argmax(axis=0)
        top = hanging[best, np.arange(n_columns)]
        largest_rows = np.where(top > largest, rows[best], largest_rows)
        largest = np.maximum(top, largest)
    of_effects = [
        own + both @ information.columns_inverse @ both.T
        for own, both in zip(within, across, strict=True)
    ]
    lags = np.abs(np.subtract.outer(np.arange(n_columns), np.arange(n_columns)))
    dispersion, correlation = estimate.residuals
    noise *= dispersion * correlation**lags
    covariances = of_effects[0], noise + of_effects[0] - of_effects[1]
    for own in (model, missing, *covariances, *(matrix.T for matrix in covariances)):
        own[~is_known] = np.nan
    return Sums(model, missing, *covariances, row_sums, largest, largest_rows)


def _natural(rows: FloatArray, columns: FloatArray) -> FloatArray:
    """η of some rows; infinite effects of rows outweigh those of columns."""
    return rows[:, None] + np.where(np.isinf(rows)[:, None], 0.0, columns)


def _counts(support: Support, rows: IntArray) -> FloatArray:
    """Numbers of observations of the cells of some rows."""
    shape = support.shape
    matrix = csr_array((support.counts, support.columns, support.row_starts), shape=shape)
    return matrix[rows].toarray()


def _inverse(information: FloatArray) -> FloatArray:
    positive = information > 0
    return np.divide(1, information, out=np.zeros(len(information)), where=positive)[:, None]


def hangs(means: FloatArray, is_seen: BoolArray) -> BoolArray:
    """Missing cells of rows with few observed cells, or far above all observed ones of the row."""
    most = np.where(is_seen, means, 0.0).max(axis=1, keepdims=True)
    is_few = is_seen.sum(axis=1, keepdims=True) < _FEW_CELLS
    return ~is_seen & (is_few | (means > _EXTRAPOLATION * most))
