"""Main effects for a fixed low-rank part, from the margins sent before the first round.

The margins ``Σ_l Σ y_jl`` and ``Σ_j Σ y_jl`` over observed cells are sufficient statistics for the
effects: their likelihood equations contain no other function of the observations. The server can
therefore solve for the effects without any further messages.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, get_args

import numpy as np
from scipy.linalg import lapack
from scipy.sparse import csr_array
from scipy.sparse.linalg import LinearOperator

from ..._cells import cell_codes
from ..._compat import conjugate_gradients
from ..._serialization import serializable
from ..._typing import BoolArray, EffectsName, FamilyName, FloatArray, IntArray
from .families import FAMILIES, Family, safe_share
from .theta import Effects, cell_blocks

EFFECTS = get_args(EffectsName)

# Smallest ridge on the effects: without it, the effect of a site with only zeros would be -inf.
LEAST_PENALTY = 1e-7
# Relative rounding of the objective's terms.
_ROUNDING = 1e-15


class Newton(NamedTuple):
    """Settings of Newton's method.

    Attributes
    ----------
    tolerance, nats : float
        It stops when a step promises to gain less than this share of the objective and less than
        this many nats. (Without constants, an objective may be 1e13 at its minimum.)
    last_decrease : float
        It converges quadratically: after a decrement of this many nats, the next is negligible.
    max_iter : int
        Fits from scratch took up to 35 steps, a warm start with a new count of 1e13 up to 600:
        effects overshoot MAX_LOG_MEAN, from where each comes back by at most 1 per step.
    max_halvings, sufficient_decrease : int, float
        Of the line search.
    least_ridge : float
        Only the ridge determines a constant added to all rows and subtracted from all columns. It
        is at least this share of the curvature, in whose rounding errors it would be lost.
    """

    tolerance: float = 1e-12
    nats: float = 1e-9
    last_decrease: float = 1e-5
    max_iter: int = 1000
    max_halvings: int = 30
    sufficient_decrease: float = 1e-4
    least_ridge: float = 1e-12


class Sizes(NamedTuple):
    """Sizes for speed, see examples/benchmarks/imputation_speed.py.

    Attributes
    ----------
    dense_entries, dense_share : int, float
        Up to this number of entries, or with at least this share of them observed, matrices are
        dense: SciPy's checks of a sparse matrix take as long as products with so many numbers, and
        its products are several times as slow as those of a dense one.
    bincount_cells : int
        Up to this number of cells, these checks take longer than NumPy's bincount.
    cholesky_columns : int
        Up to this number of columns, normal equations of a dense matrix are solved by a Cholesky
        factorization.
    preconditioned_columns, cg_steps : int
        Up to this number of columns, an earlier factor preconditions conjugate gradients; it is
        recomputed if these take more than ``cg_steps``.
    """

    dense_entries: int = 2**17
    dense_share: float = 0.5
    bincount_cells: int = 2**12
    cholesky_columns: int = 64
    preconditioned_columns: int = 2000
    cg_steps: int = 8


_NEWTON, _SIZES = Newton(), Sizes()


_Product = Callable[[FloatArray], FloatArray]


@serializable
class Margins(NamedTuple):
    """Sums over each row, shape (n_rows,), and over each column, shape (n_columns,)."""

    rows: FloatArray
    columns: FloatArray


@serializable
class Support(NamedTuple):
    """Cells observed by any client, in row-major order, and how often each was observed.

    Attributes
    ----------
    rows, columns : ndarray of int32, shape (n_cells,)
    counts : ndarray of shape (n_cells,)
        N_jl: total weight of the observations of a cell; their number if weights are equal.
    row_starts : ndarray of int32 or int64, shape (n_rows + 1,)
        Row ``j`` has the cells ``row_starts[j]:row_starts[j + 1]``.
    is_observed : tuple of two ndarray of bool
        Whether rows, and columns, have observed cells.
    shape : tuple of two int
    """

    rows: IntArray
    columns: IntArray
    counts: FloatArray
    row_starts: IntArray
    is_observed: tuple[BoolArray, BoolArray]
    shape: tuple[int, int]

    def matrix(self, values: FloatArray, factor: float = 1.0) -> FloatArray | csr_array:
        """Matrix of values times a factor in the observed cells; sparse if large and with few."""
        n_rows, n_columns = self.shape
        n_entries = n_rows * n_columns
        if n_entries > _SIZES.dense_entries and len(values) < _SIZES.dense_share * n_entries:
            return self._sparse(factor * values)
        array = np.zeros(self.shape)
        for block in cell_blocks(len(values)):
            codes = cell_codes(self.rows[block], self.columns[block], n_columns)
            array.ravel()[codes] = factor * values[block]
        return array

    def margins(self, values: FloatArray) -> Margins:
        """Sums of values in the observed cells over each row and each column."""
        n_rows, n_columns = self.shape
        if len(values) <= _SIZES.bincount_cells:
            row_sums: Any = np.bincount(self.rows, values, n_rows)
            column_sums: Any = np.bincount(self.columns, values, n_columns)
            return Margins(row_sums, column_sums)
        matrix = self._sparse(values)  # up to five times as fast here
        return Margins(matrix @ np.ones(n_columns), matrix.T @ np.ones(n_rows))

    def _sparse(self, values: FloatArray) -> csr_array:
        return csr_array((values, self.columns, self.row_starts), shape=self.shape)


class _EffectsIterate(NamedTuple):
    """Effects, with their θ in the observed cells, ``Σ N ψ(θ)`` and the objective."""

    effects: Effects
    theta: FloatArray
    loss: float
    objective: float


@serializable
class Pooled(NamedTuple):
    """Data that the server received before the first round, and parameters of the model.

    ``margins`` are the sums of the observations over rows and over columns, 0 where there are no
    such ``effects``, ``rank`` bounds that of the low-rank part, ``penalty`` is λ, and
    ``effects_penalty`` the ridge on the effects.
    """

    support: Support
    margins: Margins
    family_name: FamilyName
    rank: int
    penalty: float
    effects: EffectsName
    effects_penalty: float

    @property
    def family(self) -> Family:
        """Family of the cells."""
        return FAMILIES[self.family_name]

    @property
    def ridge_penalty(self) -> float:
        """Ridge on the effects that is used, which is never 0."""
        return max(self.effects_penalty, LEAST_PENALTY)

    @property
    def total(self) -> float:
        """Sum of all observations."""
        known = self.margins.columns if self.effects == "columns" else self.margins.rows
        return float(known.sum())

    def without_cells(self) -> Pooled:
        """The parameters of the model alone, as if nobody had observed anything."""
        none, shape = np.empty(0, dtype=np.int32), self.support.shape
        support = Support(none, none, np.empty(0), none, (none > 0, none > 0), shape)
        return self._replace(support=support, margins=Margins(np.empty(0), np.empty(0)))


def ridge(pooled: Pooled, effects: Effects) -> float:
    """Ridge penalty of the effects; nats."""
    squares = effects.rows @ effects.rows + effects.columns @ effects.columns
    return 0.5 * pooled.ridge_penalty * float(squares)


def fit_effects(
    pooled: Pooled, low_rank_values: FloatArray, start: Effects, factor: FloatArray | None = None
) -> tuple[Effects, FloatArray, FloatArray | None]:
    """Minimise ``Σ N ψ(θ) - Σ y (effects) + ridge`` by Newton's method with step halving.

    Returns the effects, θ in the observed cells, and the Cholesky factor for the next call, which
    speeds it up. ``low_rank_values`` is the low-rank part in the observed cells.
    """
    support = pooled.support
    if pooled.effects == "none":
        return start, low_rank_values, None  # which are θ
    current = _effects_iterate(pooled, low_rank_values, start)
    for _ in range(_NEWTON.max_iter):
        slopes, weights = _derivatives(pooled, current.effects, current.theta)
        direction, factor = _newton_direction(pooled, slopes, weights, factor)
        direction = _shortened(pooled.family, slopes, direction)
        decrease = _decrease(slopes, direction)
        size = abs(current.objective)
        if decrease <= min(_NEWTON.tolerance * size, _NEWTON.nats) + np.finfo(float).tiny:
            break
        if decrease <= _ROUNDING * (current.loss + size):
            # Rounding hides the gain, but the slopes are accurate, and matter for the penalties.
            whole = _centred(support, current.effects, direction, 1.0)
            current = _effects_iterate(pooled, low_rank_values, whole)
            break
        step = _line_search(pooled, low_rank_values, current, direction, decrease)
        if step is None:
            break
        current, length = step
        if length == 1 and decrease <= _NEWTON.last_decrease:
            break
    return current.effects, current.theta, factor


def _effects_iterate(
    pooled: Pooled, low_rank_values: FloatArray, effects: Effects
) -> _EffectsIterate:
    support = pooled.support
    theta = low_rank_values + effects.at(support.rows, support.columns)
    loss = float(support.counts @ pooled.family.log_partition(theta))
    objective = loss - _linear(pooled, effects) + ridge(pooled, effects)
    return _EffectsIterate(effects, theta, loss, objective)


def _decrease(slopes: Effects, direction: Effects) -> float:
    """Decrease that the slope predicts for a direction; for Newton's, Newton's decrement."""
    pairs: Any = zip(slopes, direction, strict=True)
    return sum(np.vdot(slope, change) for slope, change in pairs)


def _shortened(family: Family, slopes: Effects, direction: Effects) -> Effects:
    """Newton's direction, shortened to safe shares.

    Each effect has its own share: with a common share, a row far down the logistic curve would
    shorten all other steps, or overshoot while these gain. But if effects that compensate each
    other, such as the intercept and the rows, have unequal shares, the direction may hardly
    descend, or ascend: then the share is that of the largest change of θ.
    """
    largest_change = sum(np.abs(change).max() for change in direction)
    common = safe_share(family, largest_change)
    together = Effects._make(common * change for change in direction)
    separate = Effects._make(safe_share(family, np.abs(change)) * change for change in direction)
    return max(separate, together, key=partial(_decrease, slopes))


def _line_search(
    pooled: Pooled,
    low_rank_values: FloatArray,
    current: _EffectsIterate,
    direction: Effects,
    decrease: float,
) -> tuple[_EffectsIterate, float] | None:
    """Iterate after halving a step until it decreases the objective, and the share of it; or None.

    ``decrease`` is what the slope predicts for the whole direction.
    """
    length = 1.0
    for _ in range(_NEWTON.max_halvings):
        effects = _centred(pooled.support, current.effects, direction, length)
        trial = _effects_iterate(pooled, low_rank_values, effects)
        if trial.objective <= current.objective - _NEWTON.sufficient_decrease * length * decrease:
            return trial, length
        length = length / 2
    return None


def _linear(pooled: Pooled, effects: Effects) -> float:
    """``Σ y (effects)``, from the margins."""
    margins = pooled.margins
    linear = effects.intercept * pooled.total
    return float(linear + effects.rows @ margins.rows + effects.columns @ margins.columns)


def _derivatives(pooled: Pooled, effects: Effects, theta: FloatArray) -> tuple[Effects, FloatArray]:
    """Slopes of descent (minus the gradient), and the weights ``N ψ''(θ)`` of the curvature."""
    support, margins, family = pooled.support, pooled.margins, pooled.family
    expected = support.margins(support.counts * family.mean(theta))
    slopes = Effects(
        pooled.total - expected.rows.sum(),
        margins.rows - expected.rows - pooled.ridge_penalty * effects.rows,
        margins.columns - expected.columns - pooled.ridge_penalty * effects.columns,
    )
    return slopes, support.counts * family.variance(theta)


def _newton_direction(
    pooled: Pooled, slopes: Effects, weights: FloatArray, factor: FloatArray | None
) -> tuple[Effects, FloatArray | None]:
    """Newton's direction for the intercept, then for the effects (Gauss-Seidel).

    The effects could also change the intercept, by centring, but not if the ridge is large.
    """
    matrix = pooled.support.matrix(weights)
    transposed = matrix.T  # computed once: for a sparse matrix, it is a copy
    n_rows, n_columns = matrix.shape
    curvature = Margins(matrix @ np.ones(n_columns), transposed @ np.ones(n_rows))
    intercept = slopes.intercept / (curvature.rows.sum() + LEAST_PENALTY)
    least = max(pooled.ridge_penalty, _NEWTON.least_ridge * float(curvature.rows.max()))
    row_curvature, column_curvature = curvature.rows + least, curvature.columns + least
    rows = slopes.rows - intercept * curvature.rows
    columns = slopes.columns - intercept * curvature.columns
    if pooled.effects == "rows":
        return Effects(intercept, rows / row_curvature, np.zeros_like(columns)), None
    if pooled.effects == "columns":
        return Effects(intercept, np.zeros_like(rows), columns / column_curvature), None
    # Eliminate the rows: (C - Wᵀ R⁻¹ W) c = g_c - Wᵀ R⁻¹ g_r, then r = R⁻¹ (g_r - W c).
    right = columns - transposed @ (rows / row_curvature)
    solution, factor = _solve_for_columns(
        matrix, transposed, row_curvature, column_curvature, right, factor
    )
    return Effects(intercept, (rows - matrix @ solution) / row_curvature, solution), factor


def _solve_for_columns(
    matrix: FloatArray | csr_array,
    transposed: FloatArray | csr_array,
    row_curvature: FloatArray,
    column_curvature: FloatArray,
    right: FloatArray,
    factor: FloatArray | None,
) -> tuple[FloatArray, FloatArray | None]:
    """Solution c of ``(C - Wᵀ R⁻¹ W) c = right``, and a factor for the next equations, or None."""
    is_small = len(right) <= _SIZES.cholesky_columns and isinstance(matrix, np.ndarray)
    if is_small or (factor is None and len(right) <= _SIZES.preconditioned_columns):
        factor = _column_factor(matrix, row_curvature, column_curvature)
    if is_small and factor is not None:
        return _solve(factor, right), None

    def times(c: FloatArray) -> FloatArray:
        return column_curvature * c - transposed @ ((matrix @ c) / row_curvature)

    def precondition(c: FloatArray) -> FloatArray:
        return c / column_curvature if factor is None else _solve(factor, c)

    solution, n_steps = _conjugate_gradients(times, right, precondition)
    if n_steps > _SIZES.cg_steps and factor is not None:
        factor = _column_factor(matrix, row_curvature, column_curvature)
    return solution, factor


def _column_factor(
    matrix: FloatArray | csr_array, row_curvature: FloatArray, column_curvature: FloatArray
) -> FloatArray | None:
    """Upper Cholesky factor of ``C - Wᵀ R⁻¹ W``, which the ridge keeps positive definite.

    None if it is indefinite due to rounding, because all curvature is as small as the ridge.
    """
    scaled = matrix / np.sqrt(row_curvature)[:, None]
    factor, info = lapack.dpotrf(np.diag(column_curvature) - scaled.T @ scaled)
    return factor if info == 0 else None


def _solve(factor: FloatArray, right: FloatArray) -> FloatArray:
    """Solve equations, given their Cholesky factor; cho_solve is slower for few equations."""
    return lapack.dpotrs(factor, right)[0]


def _conjugate_gradients(
    times: _Product, right: FloatArray, precondition: _Product
) -> tuple[FloatArray, int]:
    """Solution of ``times(c) = right``, and the number of steps."""
    size, n_steps = len(right), 0

    def count(_: FloatArray) -> None:
        nonlocal n_steps
        n_steps += 1

    solution, _ = conjugate_gradients(
        LinearOperator((size, size), matvec=times, dtype=np.float64),
        right,
        rtol=1e-6,
        maxiter=100,
        M=LinearOperator((size, size), matvec=precondition, dtype=np.float64),
        callback=count,
    )
    return solution, n_steps


def _centred(support: Support, effects: Effects, direction: Effects, length: float) -> Effects:
    """Effects after a step, centred over observed rows and columns without changing θ."""
    rows = effects.rows + length * direction.rows
    columns = effects.columns + length * direction.columns
    observed_rows, observed_columns = support.is_observed
    row_mean, column_mean = rows[observed_rows].mean(), columns[observed_columns].mean()
    return Effects(
        effects.intercept + length * direction.intercept + row_mean + column_mean,
        np.where(observed_rows, rows - row_mean, 0.0),
        np.where(observed_columns, columns - column_mean, 0.0),
    )
