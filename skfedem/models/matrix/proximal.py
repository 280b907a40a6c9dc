"""Proximal step of the server for low-rank parameters, without access to clients' cells.

The server knows which cells were observed and how often (N), the margins of the observations, and
θ. In each round, it receives the residuals ``W = Σ y - N ψ'(θ)`` in the observed cells, summed over
the clients; they are exact if the round is.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..._typing import FloatArray
from .main_effects import fit_effects, ridge
from .pooled import Pooled
from .theta import Effects, LowRank, cell_blocks, low_rank_at, squared_distance
from .thresholding import threshold_singular_values

MAX_HALVINGS = 60
# For smaller changes of θ, ψ is quadratic up to rounding.
_NEARLY_QUADRATIC = 1e-4
# A change of Θ by a smaller share of its norm is rounding.
_ROUNDING = 1e-13
# Relative rounding of the test of η: for Gaussian cells, the largest η meets it with equality.
_EQUALITY = 1e-9
# Largest η, so that η and its square do not overflow: if means tend to 0, as for zeros without a
# penalty, the curvature does not bound it.
_LARGEST_STEP = 1e100


class Iterate(NamedTuple):
    """Low-rank part and effects, with their values in the observed cells.

    Attributes
    ----------
    low_rank : LowRank
    low_rank_values : ndarray of shape (n_observed,)
    effects : Effects
    theta : ndarray of shape (n_observed,)
        Sum of effects and low-rank part.
    factor : ndarray or None
        Cholesky factor that speeds up the next search for effects.
    """

    low_rank: LowRank
    low_rank_values: FloatArray
    effects: Effects
    theta: FloatArray
    factor: FloatArray | None


class ProximalStep(NamedTuple):
    """Result of a proximal step, before the effects are updated.

    Attributes
    ----------
    low_rank : LowRank
        Θ⁺.
    low_rank_values : ndarray of shape (n_observed,)
    natural_step : float
        The η that the curvature allowed.
    block : ndarray or None
        Approximate right singular vectors, for the next step.
    sq_norm : float
        Squared norm of ``(Θ⁺ - Θ) / (γη)``; 0 if this is rounding.
    halvings : int
    """

    low_rank: LowRank
    low_rank_values: FloatArray
    natural_step: float
    block: FloatArray | None
    sq_norm: float
    halvings: int


def with_optimal_effects(
    pooled: Pooled,
    low_rank: LowRank,
    low_rank_values: FloatArray,
    effects: Effects,
    factor: FloatArray | None = None,
) -> Iterate:
    """Iterate of a low-rank part and its optimal effects, searched from the given ones."""
    effects, theta, factor = fit_effects(pooled, low_rank_values, effects, factor)
    return Iterate(low_rank, low_rank_values, effects, theta, factor)


def objective(pooled: Pooled, iterate: Iterate, sums: FloatArray) -> float:
    """``F = Σ N ψ(θ) - sums θ + λ ||Θ||_* + ridge``, in nats, without constants."""
    loss = pooled.support.counts @ pooled.family.log_partition(iterate.theta)
    linear = sums @ iterate.theta
    penalty = pooled.penalty * iterate.low_rank.singular_values.sum()
    return float(loss - linear + penalty) + ridge(pooled, iterate.effects)


def extrapolate(iterate: Iterate, previous: Iterate, momentum: float) -> Iterate:
    """``Θ + momentum (Θ - previous)``, and the effects likewise.

    Solving for the effects here would not save rounds: this is done after the step.
    """
    now, last = iterate.low_rank, previous.low_rank
    low_rank = LowRank(
        np.hstack([now.left, last.left]),
        np.concatenate([(1 + momentum) * now.singular_values, -momentum * last.singular_values]),
        np.hstack([now.right, last.right]),
    )

    def extrapolated(one: Any, other: Any) -> Any:
        return (1 + momentum) * one - momentum * other

    values = extrapolated(iterate.low_rank_values, previous.low_rank_values)
    effects = Effects._make(map(extrapolated, iterate.effects, previous.effects))
    is_theta = iterate.theta is iterate.low_rank_values  # without effects
    theta = values if is_theta else extrapolated(iterate.theta, previous.theta)
    return Iterate(low_rank, values, effects, theta, iterate.factor)


def proximal_step(
    pooled: Pooled,
    origin: Iterate,
    sums: FloatArray,
    step_size: float,
    natural_step: float,
    block: FloatArray | None,
) -> ProximalStep | None:
    """``Θ⁺ = SVT_{γηλ}(Θ + γη W)``; η is halved until the curvature allows it.

    η is allowed if the loss at Θ⁺ is below its tangent plus ``||Θ⁺ - Θ||² / (2η)``. The height of
    the loss above its tangent only depends on ψ and N, so that noise in W does not affect this
    test. A change that is rounding is always allowed. ``sums`` are the observed cells' sums as the
    server estimates them, ``step_size`` is γ, ``natural_step`` the largest η. None if no step was
    short enough.
    """
    support, family = pooled.support, pooled.family
    residual = sums - support.counts * family.mean(origin.theta)
    natural_step = min(natural_step, _LARGEST_STEP)
    for halvings in range(MAX_HALVINGS):
        length = step_size * natural_step
        low_rank, next_block = threshold_singular_values(
            origin.low_rank,
            support.matrix(residual, length),
            length * pooled.penalty,
            pooled.rank,
            block,
        )
        values = low_rank_at(low_rank, support.rows, support.columns)
        sq_distance = squared_distance(low_rank, origin.low_rank)
        if sq_distance < _squared_rounding(low_rank):
            return ProximalStep(low_rank, values, natural_step, next_block, 0.0, halvings)
        change = values - origin.low_rank_values
        height = _above_tangent(pooled, origin.theta, change)
        if 2 * natural_step * height <= (1 + _EQUALITY) * sq_distance:
            # A user's step function may return steps whose square underflows.
            sq_norm = sq_distance / length**2 if length**2 else np.nan
            return ProximalStep(low_rank, values, natural_step, next_block, sq_norm, halvings)
        natural_step = natural_step / 2
    return None


def _squared_rounding(low_rank: LowRank) -> float:
    """Squared distance to a low-rank matrix below which it is rounding."""
    size = _ROUNDING * low_rank.singular_values
    return float(size @ size)


def _above_tangent(pooled: Pooled, theta: FloatArray, change: FloatArray) -> float:
    """``Σ N (ψ(θ + change) - ψ(θ) - ψ'(θ) change)``: how far the loss lies above its tangent."""
    family, counts, total = pooled.family, pooled.support.counts, 0.0
    # The difference of squares of large numbers would be dominated by rounding errors.
    is_small = np.abs(change).max(initial=0) < _NEARLY_QUADRATIC
    is_parabola = family.log_variance_slope == 0 or is_small
    for block in cell_blocks(len(theta)):
        own, step = theta[block], change[block]
        if is_parabola:
            height = 0.5 * family.variance(own) * step**2
        else:
            height = family.log_partition(own + step) - family.log_partition(own)
            height -= family.mean(own) * step
        total += float(counts[block] @ height)
    return total


def largest_curvature(pooled: Pooled, theta: FloatArray) -> float:
    """Largest ``N ψ''`` of a cell: over all θ if ψ'' is bounded, else at this θ.

    At least 1e-300, so that its inverse, a step, can be multiplied.
    """
    support, family = pooled.support, pooled.family
    bound = family.max_variance
    variance = family.variance(theta) if bound is None else bound
    return max(float(support.sums_of_cells(support.counts * variance).max()), 1e-300)
