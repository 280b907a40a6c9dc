"""Main effects for a fixed low-rank part, from the margins sent before the first round.

The margins ``Σ_l Σ y_jl`` and ``Σ_j Σ y_jl`` over observed cells are sufficient statistics for the
effects: their likelihood equations contain no other function of the observations. The server can
therefore solve for the effects without any further messages.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..._typing import FloatArray
from .column_equations import solve_for_columns
from .families import safe_share
from .joint_equations import joint_direction
from .pooled import LEAST_PENALTY, Margins, Pooled
from .theta import Effects, Theta, zero_low_rank

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


_NEWTON = Newton()


class _EffectsIterate(NamedTuple):
    """Effects, with their θ in the observed cells, ``Σ N ψ(θ)`` and the objective."""

    effects: Effects
    theta: FloatArray
    loss: float
    objective: float


def ridge(pooled: Pooled, effects: Effects) -> float:
    """Ridge penalty of effects and coefficients; nats."""
    squares = effects.rows @ effects.rows + effects.columns @ effects.columns
    penalty = 0.5 * pooled.ridge_penalty * float(squares)
    if pooled.covariates is None:
        return penalty
    return penalty + 0.5 * float(pooled.covariates.penalties @ effects.coefficients**2)


def fit_effects(
    pooled: Pooled, low_rank_values: FloatArray, start: Effects, factor: FloatArray | None = None
) -> tuple[Effects, FloatArray, FloatArray | None]:
    """Minimise ``Σ N ψ(θ) - Σ y (effects) + ridge`` by Newton's method with step halving.

    Returns the effects, θ in the observed cells, and the Cholesky factor for the next call, which
    speeds it up. ``low_rank_values`` is the low-rank part in the observed cells.
    """
    if pooled.effects == "none":
        return start, low_rank_values, None  # which are θ
    current = _effects_iterate(pooled, low_rank_values, start)
    for _ in range(_NEWTON.max_iter):
        slopes, weights = _derivatives(pooled, current.effects, current.theta)
        if pooled.covariates is None:
            direction, factor = _newton_direction(pooled, slopes, weights, factor)
        else:
            direction = joint_direction(pooled, pooled.covariates, slopes, weights)
        direction = _shortened(pooled, slopes, direction)
        decrease = _decrease(slopes, direction)
        size = abs(current.objective)
        if decrease <= min(_NEWTON.tolerance * size, _NEWTON.nats) + np.finfo(float).tiny:
            break
        if decrease <= _ROUNDING * (current.loss + size):
            # Rounding hides the gain, but the slopes are accurate, and matter for the penalties.
            whole = _centred(pooled, current.effects, direction, 1.0)
            current = _effects_iterate(pooled, low_rank_values, whole)
            break
        step = _line_search(pooled, low_rank_values, current, direction, decrease)
        if step is None:
            break
        current, length = step
        if length == 1 and decrease <= _NEWTON.last_decrease:
            break
    return current.effects, current.theta, factor


def intercept_only(pooled: Pooled) -> Theta:
    """θ with the mean of all observations as intercept, and everything else 0."""
    family, n_observations = pooled.family, pooled.support.counts.sum()
    # Half an observation is only added if the link is infinite for all-zero counts; otherwise, it
    # would make the start depend on the unit of the cells.
    half = 0.0 if np.isfinite(family.link(0.0)) else 0.5
    mean = (pooled.total + half) / (n_observations + 2 * half)
    intercept = 0.0 if pooled.effects == "none" else float(family.link(mean))
    n_rows, n_columns = pooled.support.shape
    n_coefficients = 0 if pooled.covariates is None else len(pooled.covariates.sums)
    coefficients = np.zeros(n_coefficients)
    effects = Effects(intercept, np.zeros(n_rows), np.zeros(n_columns), coefficients)
    return Theta(effects, zero_low_rank(pooled.support.shape))


def _effects_iterate(
    pooled: Pooled, low_rank_values: FloatArray, effects: Effects
) -> _EffectsIterate:
    support = pooled.support
    theta = low_rank_values + pooled.effects_at_cells(effects)
    loss = float(support.counts @ pooled.family.log_partition(theta))
    objective = loss - _linear(pooled, effects) + ridge(pooled, effects)
    return _EffectsIterate(effects, theta, loss, objective)


def _decrease(slopes: Effects, direction: Effects) -> float:
    """Decrease that the slope predicts for a direction; for Newton's, Newton's decrement."""
    pairs: Any = zip(slopes, direction, strict=True)
    return sum(np.vdot(slope, change) for slope, change in pairs)


def _shortened(pooled: Pooled, slopes: Effects, direction: Effects) -> Effects:
    """Newton's direction, shortened to safe shares.

    Each effect has its own share: with a common share, a row far down the logistic curve would
    shorten all other steps, or overshoot while these gain. But if effects that compensate each
    other, such as the intercept and the rows, have unequal shares, the direction may hardly
    descend, or ascend: then the share is that of the largest change of θ.
    """
    family, coefficients = pooled.family, direction.coefficients
    main: list[Any] = [*direction[:3]]
    largest_change = sum(np.abs(change).max() for change in main)
    by_covariates = np.zeros(())
    if pooled.covariates is not None:
        by_covariates = np.abs(pooled.covariates.design @ coefficients).max()
    common = safe_share(family, largest_change + by_covariates)
    together = Effects._make(common * change for change in direction)
    shares = [safe_share(family, np.abs(change)) for change in main]
    shares.append(safe_share(family, by_covariates))
    pairs: Any = zip(shares, direction, strict=True)
    separate = Effects._make(share * change for share, change in pairs)
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
        effects = _centred(pooled, current.effects, direction, length)
        trial = _effects_iterate(pooled, low_rank_values, effects)
        if trial.objective <= current.objective - _NEWTON.sufficient_decrease * length * decrease:
            return trial, length
        length = length / 2
    return None


def _linear(pooled: Pooled, effects: Effects) -> float:
    """``Σ y (effects)``, from the margins."""
    margins = pooled.margins
    linear = effects.intercept * pooled.total
    linear = float(linear + effects.rows @ margins.rows + effects.columns @ margins.columns)
    if pooled.covariates is None:
        return linear
    return linear + float(effects.coefficients @ pooled.covariates.sums)


def _derivatives(pooled: Pooled, effects: Effects, theta: FloatArray) -> tuple[Effects, FloatArray]:
    """Slopes of descent (minus the gradient), and the weights ``N ψ''(θ)`` of the curvature."""
    support, margins, family = pooled.support, pooled.margins, pooled.family
    means = support.counts * family.mean(theta)
    expected = support.margins(means)
    slopes = Effects(
        pooled.total - expected.rows.sum(),
        margins.rows - expected.rows - pooled.ridge_penalty * effects.rows,
        margins.columns - expected.columns - pooled.ridge_penalty * effects.columns,
    )
    if pooled.covariates is not None:
        known = pooled.covariates
        rest = known.sums - known.design.T @ means - known.penalties * effects.coefficients
        slopes = slopes._replace(coefficients=rest)
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
    solution, factor = solve_for_columns(
        matrix, transposed, row_curvature, column_curvature, right, factor
    )
    return Effects(intercept, (rows - matrix @ solution) / row_curvature, solution), factor


def _centred(pooled: Pooled, effects: Effects, direction: Effects, length: float) -> Effects:
    """Effects after a step, centred over observed rows and columns, and clients; θ is the same."""
    rows = effects.rows + length * direction.rows
    columns = effects.columns + length * direction.columns
    coefficients = effects.coefficients + length * direction.coefficients
    observed_rows, observed_columns = pooled.support.is_observed
    row_mean, column_mean = rows[observed_rows].mean(), columns[observed_columns].mean()
    client_mean = 0.0
    if pooled.covariates is not None and pooled.covariates.known.n_clients:
        of_clients = coefficients[-pooled.covariates.known.n_clients :]
        client_mean = of_clients.mean()
        of_clients -= client_mean
    return Effects(
        effects.intercept + length * direction.intercept + row_mean + column_mean + client_mean,
        np.where(observed_rows, rows - row_mean, 0.0),
        np.where(observed_columns, columns - column_mean, 0.0),
        coefficients,
    )
