"""Effect and factor of each row of a matrix, given the columns: one regression per row.

With fixed column effects and factors, the rows are independent. All of them are solved by one
vectorised Newton's method, each with its own steps and number of iterations, so that the result for
a row does not depend on the other rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from sklearn.exceptions import ConvergenceWarning

from ..._federation import offsets_of
from ..._typing import BoolArray, FloatArray, IntArray
from ..._warnings import warn
from .families import Family, safe_share
from .theta import Cells, products

# Number of cells whose regressions are solved together; every entry of a Hessian counts as a cell.
_BLOCK = 2**18
# Relative increase of the curvature: without a penalty, there are directions without curvature if a
# row has fewer cells than coefficients. This only affects the steps, not the objective.
_LEAST_CURVATURE = 1e-12
# A row has converged when each derivative of its objective is at most this share of Σ_l counts_l (1
# + |values_l|) |x_l|, where x is the column's factor, or 1 for the effect.
_TOLERANCE = 1e-10
_SUFFICIENT_DECREASE = 1e-4
_MAX_TRIALS = 30
# For a quadratic objective, Newton's step gains half of the decrease predicted by the initial
# slope. If a step gains more than this share, a longer one is tried.
_NEARLY_LINEAR = 0.6
# Relative rounding of a row's objective.
_ROUNDING = 1e-14


_Scalar = TypeVar("_Scalar", bound=np.generic)


class _Regressions(NamedTuple):
    """Rows with at least one cell each, their cells row after row, and the current θ.

    Attributes
    ----------
    design : ndarray of shape (n_columns, n_coefficients)
        Regressors of each column: 1 for the effect, and the column's factor.
    penalties : ndarray of shape (n_coefficients,)
        Penalties on the squares of the coefficients.
    family : Family
    starts : ndarray of int, shape (n_rows + 1,)
        Row ``j`` has the cells ``starts[j]:starts[j + 1]``.
    columns, values, counts : ndarray of shape (n_cells,)
    theta : ndarray of shape (n_cells,)
    """

    design: FloatArray
    penalties: FloatArray
    family: Family
    starts: IntArray
    columns: IntArray
    values: FloatArray
    counts: FloatArray
    theta: FloatArray

    @property
    def n_rows(self) -> int:
        return len(self.starts) - 1

    def repeat_for_cells(self, row_values: NDArray[_Scalar]) -> NDArray[_Scalar]:
        """Values of rows, repeated for each of their cells."""
        return np.repeat(row_values, np.diff(self.starts), axis=0)

    def sums(self, cell_values: FloatArray) -> FloatArray:
        """Sums over the cells of each row."""
        return np.add.reduceat(cell_values, self.starts[:-1])

    def column_sums(self, cell_values: FloatArray, column_values: FloatArray) -> FloatArray:
        """Σ_l cell_values_jl column_values_l for each row j, shape (n_rows, n_values)."""
        shape = self.n_rows, len(column_values)
        return csr_array((cell_values, self.columns, self.starts), shape=shape) @ column_values

    def select(self, kept: BoolArray) -> _Regressions:
        """The rows marked by a boolean array."""
        cells = self.repeat_for_cells(kept)
        return self._replace(
            starts=offsets_of(np.diff(self.starts)[kept]),
            columns=self.columns[cells],
            values=self.values[cells],
            counts=self.counts[cells],
            theta=self.theta[cells],
        )


def fit_rows(
    cells: Cells,
    n_rows: int,
    offset_columns: FloatArray,
    column_factors: FloatArray,
    penalty: float,
    family: Family,
    *,
    row_effects: bool,
    ridge: float,
    max_iter: int = 200,
) -> tuple[FloatArray, FloatArray]:
    """Effect e and factor f of each row, for fixed column effects and factors.

    For each row the convex objective, in nats,

    ``Σ_l counts_l (ψ(θ_l) - values_l θ_l) + penalty/2 ‖f‖² + ridge/2 e²`` with
    ``θ_l = offset_columns_l + e + <f, column_factors_l>``

    is minimised over e (0 unless ``row_effects``) and f; the sum runs over the observed cells of
    the row. If the minimum is not unique (no penalty, and fewer cells than coefficients), a small
    solution is returned. If it is at infinity (only presences), θ stops where the gradient is
    negligible. Rows need about twenty of the ``max_iter`` Newton steps, except with extremely large
    counts. Rows without observed cells have zeros.
    """
    design, penalties = _design(column_factors, penalty, row_effects, ridge)
    coefficients = np.zeros((n_rows, len(penalties)))
    n_left = 0
    if len(penalties) > 0:
        blocks = _blocks(cells, n_rows, offset_columns, design, penalties, family)
        for rows, regressions in blocks:
            coefficients[rows], n_unfinished = _minimise(regressions, max_iter)
            n_left += n_unfinished
    if n_left:
        warn(
            f"Effects and factors of {n_left} of {n_rows} rows did not converge within {max_iter} "
            "Newton steps: the fitted means of these rows are inaccurate. Look for extreme values "
            "in them, or fit with larger penalties.",
            ConvergenceWarning,
        )
    if row_effects:
        return coefficients[:, 0], coefficients[:, 1:]
    return np.zeros(n_rows), coefficients


def _design(
    column_factors: FloatArray, penalty: float, row_effects: bool, ridge: float
) -> tuple[FloatArray, FloatArray]:
    """Regressors of each column, and penalties of their coefficients."""
    n_columns, rank = column_factors.shape
    penalties = np.full(rank, float(penalty))
    if not row_effects:
        return column_factors, penalties
    return np.column_stack([np.ones(n_columns), column_factors]), np.append(ridge, penalties)


def _blocks(
    cells: Cells,
    n_rows: int,
    offset_columns: FloatArray,
    design: FloatArray,
    penalties: FloatArray,
    family: Family,
) -> Iterator[tuple[IntArray, _Regressions]]:
    """Yield blocks of observed rows, with their regressions at coefficients 0."""
    order = np.argsort(cells.rows, kind="stable")
    sizes = np.bincount(cells.rows, minlength=n_rows)
    observed = np.flatnonzero(sizes)
    sizes = sizes[observed]
    starts = offsets_of(sizes)
    block_of_row = np.cumsum(sizes + len(penalties) ** 2) // _BLOCK
    edges = np.flatnonzero(np.diff(block_of_row)) + 1
    for rows in np.split(np.arange(len(observed)), edges):
        if len(rows) == 0:
            continue
        first = starts[rows[0]]
        chosen = order[first : starts[rows[-1] + 1]]
        columns = cells.columns[chosen]
        regressions = _Regressions(
            design=design,
            penalties=penalties,
            family=family,
            starts=offsets_of(sizes[rows]),
            columns=columns,
            values=cells.values[chosen],
            counts=cells.counts[chosen],
            theta=offset_columns[columns],
        )
        yield observed[rows], regressions


def _minimise(regressions: _Regressions, max_iter: int) -> tuple[FloatArray, int]:
    """Coefficients of the rows by Newton's method, and the number of rows not converged.

    Rows that have converged are dropped from the iteration.
    """
    coefficients = np.zeros((regressions.n_rows, len(regressions.penalties)))
    active = np.arange(regressions.n_rows)
    weights = regressions.counts * (1 + np.abs(regressions.values))
    tolerance = _TOLERANCE * regressions.column_sums(weights, np.abs(regressions.design))
    gradient = _gradient(regressions, coefficients)
    for _ in range(max_iter):
        hessian = _hessian(regressions)
        direction: Any = -np.linalg.solve(hessian, gradient[:, :, None])[:, :, 0]
        decrease = -np.einsum("jk,jk->j", gradient, direction)
        rounding = _rounding(regressions)
        along = _penalty_along(coefficients[active], direction, regressions.penalties)
        lengths, theta = _line_search(regressions, direction, along, decrease, rounding)
        coefficients[active] += lengths[:, None] * direction
        regressions = regressions._replace(theta=theta)
        gradient = _gradient(regressions, coefficients[active])
        # Stop if the predicted decrease is no larger than rounding errors.
        is_active = (np.abs(gradient) > tolerance).any(axis=1) & (decrease > rounding)
        if not is_active.any():
            return coefficients, 0
        if not is_active.all():
            active, regressions = active[is_active], regressions.select(is_active)
            gradient, tolerance = gradient[is_active], tolerance[is_active]
    return coefficients, len(active)


def _gradient(regressions: _Regressions, coefficients: FloatArray) -> FloatArray:
    """Gradient of each row's objective, shape (n_rows, n_coefficients)."""
    means = regressions.family.mean(regressions.theta)
    residuals = regressions.counts * (means - regressions.values)
    sums = regressions.column_sums(residuals, regressions.design)
    return sums + regressions.penalties * coefficients


def _hessian(regressions: _Regressions) -> FloatArray:
    """Hessian of each row's objective, its diagonal increased to make it positive definite.

    It is linear in the outer products ``x_l x_lᵀ`` of the columns, which all rows share.
    """
    design, n_coefficients = regressions.design, len(regressions.penalties)
    first, second = np.triu_indices(n_coefficients)
    outer_products = design[:, first] * design[:, second]
    weights = regressions.counts * regressions.family.variance(regressions.theta)
    triangles = regressions.column_sums(weights, outer_products)
    hessian = np.empty((regressions.n_rows, n_coefficients, n_coefficients))
    hessian[:, first, second] = hessian[:, second, first] = triangles

    # If the curvature vanishes, as for extreme θ of presences, the squared design sets the scale.
    squares = regressions.column_sums(regressions.counts, design**2)
    squares = np.where(squares > 0, squares, 1.0)
    diagonal = np.arange(n_coefficients)
    curvature = hessian[:, diagonal, diagonal]
    hessian[:, diagonal, diagonal] += regressions.penalties + _LEAST_CURVATURE * (
        curvature + squares
    )
    return hessian


def _rounding(regressions: _Regressions) -> FloatArray:
    """Rounding error of each row's objective: a share of the sum of its absolute terms."""
    theta = regressions.theta
    terms = np.abs(regressions.family.log_partition(theta)) + np.abs(regressions.values * theta)
    return _ROUNDING * regressions.sums(regressions.counts * terms)


def _penalty_along(
    coefficients: FloatArray, direction: FloatArray, penalties: FloatArray
) -> FloatArray:
    """Increase of the penalty along a step: ``slope t + square t²``, of shape (2, n_rows)."""
    slope = (penalties * coefficients * direction).sum(axis=1)
    square = 0.5 * (penalties * direction * direction).sum(axis=1)
    return np.array([slope, square])


def _change_of_loss(regressions: _Regressions, step: FloatArray) -> FloatArray:
    """Change of each row's negative log-likelihood if θ changes by a step."""
    log_partition, theta = regressions.family.log_partition, regressions.theta
    change = log_partition(theta + step) - log_partition(theta)
    return regressions.sums(regressions.counts * (change - regressions.values * step))


def _line_search(
    regressions: _Regressions,
    direction: FloatArray,
    penalty_along: FloatArray,
    decrease: FloatArray,
    rounding: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Share of Newton's step to take for each row (0 if none decreases the objective), and θ then.

    Each row starts with a safe share, see `safe_share`. A step is doubled while this helps; one
    that does not decrease the objective, due to rounding, is halved.
    """
    family, columns = regressions.family, regressions.columns
    rows_of_cells = regressions.repeat_for_cells(np.arange(regressions.n_rows))
    change_of_theta = products(direction, regressions.design, rows_of_cells, columns)
    reach = np.maximum.reduceat(np.abs(change_of_theta), regressions.starts[:-1])
    lengths, best = np.zeros(regressions.n_rows), np.full(regressions.n_rows, np.inf)
    active, active_regressions, change = np.arange(regressions.n_rows), regressions, change_of_theta
    trial = safe_share(family, reach)
    for _ in range(_MAX_TRIALS):
        slope, square = penalty_along[:, active]
        objective_change = _change_of_loss(
            active_regressions, active_regressions.repeat_for_cells(trial) * change
        )
        objective_change += trial * slope + trial**2 * square
        predicted, tolerance = trial * decrease[active], rounding[active]
        better = objective_change <= tolerance - _SUFFICIENT_DECREASE * predicted
        better &= objective_change < best[active]
        lengths[active[better]] = trial[better]
        best[active[better]] = objective_change[better]
        doubled = better & (objective_change < -_NEARLY_LINEAR * predicted - tolerance)
        is_active = doubled | (lengths[active] == 0)
        if not is_active.any():
            break
        trial = np.where(doubled, 2 * trial, trial / 2)[is_active]
        if not is_active.all():
            change = change[active_regressions.repeat_for_cells(is_active)]
            active, active_regressions = active[is_active], active_regressions.select(is_active)
    return lengths, regressions.theta + regressions.repeat_for_cells(lengths) * change_of_theta
