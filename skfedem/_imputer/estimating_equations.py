"""Generalised estimating equations for row and column effects, from sums that clients send.

The model 3 of TRIM (Pannekoek and van Strien 2005, "TRIM 3 manual", Statistics Netherlands) for
cells of an exponential family with the natural parameter ``η = a_j + b_l``: a cell's mean of N
observations has the mean ``ψ'(η)`` and the variance ``φ ψ''(η) / N``, with dispersion φ, and two
cells of a row ``t`` columns apart have the correlation ``ρ ** t``. The estimating equations of
Liang and Zeger (1986, Biometrika 73, equation 6),

    Σ_j D_jᵀ V_j⁻¹ (y_j - ψ'(η_j)) = 0,

are linear in the observations, so that their left side is a sum over the clients. The weights only
depend on which cells were observed, which the server knows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import solve as solve_equations
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from sklearn.exceptions import ConvergenceWarning

from .._federation import ClientRows, SetUp
from .._typing import FloatArray, IntArray
from .._warnings import warn
from ..models.matrix.families import Family
from ..models.matrix.pooled import Margins
from .residuals import Observed, Residuals, each, own_cells, pearson_moments, with_cells


class Settings(NamedTuple):
    """Settings of Fisher's scoring.

    Attributes
    ----------
    tolerance : float
        It stops when no column effect changes by more.
    max_iter : int
    largest_step : float
        Largest change of an effect per step.
    """

    tolerance: float = 1e-10
    max_iter: int = 200
    largest_step: float = 2.0


_SETTINGS = Settings()


class Weights(NamedTuple):
    """Weights of the estimating equations in the observed cells, and what they depend on.

    With ``S = diag(roots)``, ``V = φ S⁻¹ D R D S⁻¹`` and ``D = diag(ψ'')``. The inverse of the
    correlation matrix R is tridiagonal.

    Attributes
    ----------
    means, roots : ndarray of shape (n_cells,)
        ψ'(η) and the roots of N ψ''(η); the roots are 0 in cells that are not kept.
    diagonal, off_diagonal : ndarray of shape (n_cells,)
        R⁻¹; the second is that of a cell and the next one.
    """

    means: FloatArray
    roots: FloatArray
    diagonal: FloatArray
    off_diagonal: FloatArray

    def times(self, vector: FloatArray) -> FloatArray:
        """R⁻¹ times a vector."""
        product = self.diagonal * vector
        product[:-1] += self.off_diagonal[:-1] * vector[1:]
        product[1:] += self.off_diagonal[:-1] * vector[:-1]
        return product


class Information(NamedTuple):
    """Fisher information of the effects, with the rows eliminated.

    Attributes
    ----------
    rows : ndarray of shape (n_rows,)
        Diagonal block of the rows.
    rows_columns : csr_array of shape (n_rows, n_columns)
        Block of rows and columns.
    columns_inverse : ndarray of shape (n_columns, n_columns)
        Covariance of the column effects, given that of the first column (of each group of rows);
        0 for columns without an effect.
    """

    rows: FloatArray
    rows_columns: csr_array
    columns_inverse: FloatArray


class Estimate(NamedTuple):
    """Solution of the estimating equations: effects, residuals and Fisher information."""

    rows: FloatArray
    columns: FloatArray
    residuals: Residuals
    information: Information


# ---- what clients send: sums over their own cells


@each
def scores(rows: ClientRows, observed: Observed, weights: Weights) -> FloatArray:
    """``Dᵀ V⁻¹ (y - ψ')`` times φ, summed over each row, then over each column."""
    cells, own = own_cells(rows, observed)
    kept = observed.is_kept[own]
    cells, own = cells.take(kept), own[kept]
    scaled = cells.counts * (cells.values - weights.means[own]) / weights.roots[own]
    # R⁻¹ is tridiagonal: a residual counts in its cell, the next and the one before.
    # That of the last cell with a next one is 0, so that indices may wrap around.
    after, before = (own + 1) % len(weights.roots), own - 1
    at = np.concatenate([own, after, before])
    factors = (weights.diagonal[own], weights.off_diagonal[own], weights.off_diagonal[before])
    terms = weights.roots[at] * np.concatenate([factor * scaled for factor in factors])
    support = observed.support
    return np.concatenate(
        [
            np.bincount(lines[at], terms, size)
            for lines, size in zip((support.rows, support.columns), support.shape, strict=True)
        ]
    )


@each
def observed_sums(
    rows: ClientRows, observed: Observed, groups: IntArray, n_groups: int
) -> FloatArray:
    """Sums of observed cells over the rows of each group, for each column.

    A cell with several observations, of whatever clients, counts as their mean.
    """
    cells, own = own_cells(rows, observed)
    n_columns = observed.support.shape[1] // observed.n_groups
    codes = groups[cells.rows] * n_columns + cells.columns % n_columns
    values = cells.values * cells.counts / observed.support.counts[own]
    in_group = codes >= 0
    sums: Any = np.bincount(codes[in_group], values[in_group], n_groups * n_columns)
    return sums.reshape(n_groups, n_columns)


# ---- what the server computes


def solve(
    clients: SetUp,
    observed: Observed,
    family: Family,
    margins: Margins,
    start: tuple[FloatArray, FloatArray],
    *,
    overdispersion: bool,
    serial_correlation: bool,
) -> Estimate:
    """Solve the estimating equations by Fisher's scoring.

    ``margins`` are sums of the observations, and ``start`` are effects of rows and columns. In each
    step, clients send the sums ``residual_products`` and ``scores``.

    Raises
    ------
    ValueError
        If rows and columns fall into parts without a common cell.
    """
    support = observed.support
    _check_connected(observed)
    n_parameters = int(with_cells(observed)[0].sum()) + len(_free_columns(observed))
    rows, columns = start
    for _ in range(_SETTINGS.max_iter):
        natural = rows[support.rows] + columns[support.columns]
        found = pearson_moments(clients, observed, family, natural, n_parameters)
        if not found.dispersion >= 0:
            raise ValueError(
                "Expected more cells of rows and columns that are not constant than effects, of "
                f"which there are {n_parameters}, got {np.count_nonzero(observed.is_kept)}. Leave "
                "out rows with one cell, or give errors='parametric'."
            )
        residuals = Residuals(
            found.dispersion if overdispersion else 1.0,
            found.serial_correlation if serial_correlation else 0.0,
        )
        weights = _weights(observed, family, natural, residuals.serial_correlation)
        information = _information(observed, weights)
        summed = clients.sum(scores, observed, weights)
        row_scores, column_scores = np.split(summed, [support.shape[0]])
        by_row = _divided(row_scores, information.rows)
        right = column_scores - information.rows_columns.T @ by_row
        change = information.columns_inverse @ right
        row_change = _divided(row_scores - information.rows_columns @ change, information.rows)
        largest = max(np.abs(change).max(), np.abs(row_change).max())
        share = min(1.0, _SETTINGS.largest_step / largest) if largest > 0 else 1.0
        rows, columns = rows + share * row_change, columns + share * change
        if np.abs(change).max() <= _SETTINGS.tolerance:
            break
    else:
        warn(
            f"The estimating equations have not converged after {_SETTINGS.max_iter} steps: the "
            "last one changed effects of columns by up to "
            f"{np.abs(change).max():.1g}. Set serial_correlation=False.",
            ConvergenceWarning,
        )
    information = Information(
        information.rows / residuals.dispersion,
        information.rows_columns / residuals.dispersion,
        information.columns_inverse * residuals.dispersion,
    )
    return Estimate(*_with_constants(observed, rows, columns, margins), residuals, information)


def _with_constants(
    observed: Observed, rows: FloatArray, columns: FloatArray, margins: Margins
) -> tuple[FloatArray, FloatArray]:
    """Effects that are infinite where all observations are 0, or 1; NaN for unobserved columns."""
    constant = [np.where(sums > 0, np.inf, -np.inf) for sums in margins]
    have_rows, have_columns = with_cells(observed)
    rows = np.where(have_rows, rows, constant[0])
    columns = np.where(have_columns, columns, constant[1])
    return rows, np.where(observed.support.is_observed[1], columns, np.nan)


def _check_connected(observed: Observed) -> None:
    """Raise if effects cannot be compared across all rows and columns."""
    support, kept = observed.support, observed.is_kept
    n_rows, n_columns = support.shape
    ends = support.rows[kept], n_rows + support.columns[kept]
    size = n_rows + n_columns
    graph = csr_array((np.ones(len(ends[0])), ends), shape=(size, size))
    _, parts = connected_components(graph, directed=False)
    n_parts = len(np.unique(parts[ends[0]]))
    n_groups = len(np.unique(observed.groups_of_columns[support.columns[kept]]))
    if n_parts != n_groups:
        within = f"the {n_groups} groups of rows" if n_groups > 1 else "one part"
        raise ValueError(
            "Expected rows and columns that are connected by observed cells, other than rows of "
            f"zeros, got {n_parts} parts without a common row or column, not {within}. Give totals "
            "of one part."
        )


def _free_columns(observed: Observed) -> IntArray:
    """Columns whose effects are estimated: all but the first of each group of rows."""
    estimated = np.flatnonzero(with_cells(observed)[1])
    _, first = np.unique(observed.groups_of_columns[estimated], return_index=True)
    return np.delete(estimated, first)


def _weights(
    observed: Observed, family: Family, natural: FloatArray, serial_correlation: float
) -> Weights:
    support = observed.support
    roots = np.sqrt(support.counts * family.variance(natural)) * observed.is_kept
    # Correlation of a cell and the next one, ρ to the power of the columns between them.
    neighbours = np.zeros(len(roots))
    gaps = np.diff(support.columns)
    in_row = (np.diff(support.rows) == 0) & observed.is_kept[1:] & observed.is_kept[:-1]
    neighbours[:-1][in_row] = serial_correlation ** gaps[in_row]
    squares = neighbours**2
    diagonal = 1 + squares / (1 - squares)
    diagonal[1:] += (squares / (1 - squares))[:-1]
    return Weights(family.mean(natural), roots, diagonal, -neighbours / (1 - squares))


def _information(observed: Observed, weights: Weights) -> Information:
    """Fisher information times φ."""
    support, roots = observed.support, weights.roots
    n_rows, n_columns = support.shape
    sums = roots * weights.times(roots)
    rows = support.margins(sums).rows
    rows_columns = csr_array((sums, (support.rows, support.columns)), shape=support.shape)
    beside = roots[:-1] * weights.off_diagonal[:-1] * roots[1:]
    pairs = support.columns[:-1], support.columns[1:]
    columns = np.diag(support.margins(roots**2 * weights.diagonal).columns)
    np.add.at(columns, pairs, beside)
    np.add.at(columns, pairs[::-1], beside)
    inverse = _divided(np.ones(n_rows), rows)
    columns -= (rows_columns.T @ (rows_columns * inverse[:, None])).toarray()
    estimated = _free_columns(observed)
    columns_inverse = np.zeros((n_columns, n_columns))
    for group in range(observed.n_groups):  # which have no rows in common
        own = estimated[observed.groups_of_columns[estimated] == group]
        block = np.ix_(own, own)
        columns_inverse[block] = solve_equations(columns[block], np.eye(len(own)), assume_a="pos")
    return Information(rows, rows_columns, columns_inverse)


def _divided(values: FloatArray, divisors: FloatArray) -> FloatArray:
    """Quotients, 0 where the divisor is not positive."""
    return np.divide(values, divisors, out=np.zeros(len(values)), where=divisors > 0)
