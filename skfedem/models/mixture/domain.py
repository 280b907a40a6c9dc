"""The domain of a mixture's M-step T, and steps of the server that stay in it.

The noise of compression, participation and minibatches may move Ŝ to a point that no data can have,
where the mass of a component is not positive, or its scatter not positive definite. Steps are
backtracked by the fraction-to-the-boundary rule of interior-point methods. This only uses the
statistics. With a known covariance, T does not need the scatter; but the part of the rows' second
moment that is not due to the means still keeps these from diverging.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.linalg import eigh

from ..._typing import BoolArray, FloatArray
from .._base import Step
from .component_units import MIN_WEIGHT
from .covariances import NOT_POSITIVE_DEFINITE
from .m_step import MStep
from .parameters import Parameters


class _Boundary(NamedTuple):
    """Constants of the safeguard."""

    # A step γ towards the statistics of any data keeps at least 1 - γ of each component's mass and
    # scatter. A step that keeps less than this share of that is rejected, ...
    fraction: float = 0.5
    # ... as is a step of any size that keeps less than this share of both.
    least: float = 0.25
    max_halvings: int = 20
    # Largest share of the second moment, in any direction, for means that were too far apart.
    most_between: float = 0.9
    # Steps γ that each change mass or scatter by a random share δ add up to a deviation of
    # δ / √(2 γ), which may be at most this share of them.
    largest_deviation: float = 0.6


_BOUNDARY = _Boundary()


def safeguarded_step(
    model: MStep, statistics: FloatArray, field: FloatArray, step_size: float
) -> Step:
    """Take ``step_size * field``, halved until it stays in the domain of T; return a ``Step``.

    If this suffices, rare components are left unchanged instead.
    """
    field_sq_norm, noisy = model.field_sq_norm(statistics, field), False
    rare = model.table(statistics)[:, 0] < MIN_WEIGHT  # their field is mostly noise
    fraction = max(_BOUNDARY.fraction * (1 - step_size), _BOUNDARY.least)
    without_noise = 1 - step_size - _BOUNDARY.largest_deviation * np.sqrt(2 * step_size)
    if without_noise > fraction:
        whole = statistics + step_size * field
        if satisfies_boundary_rule(model, whole, statistics, without_noise):
            return Step(whole, field_sq_norm, 0, step_size)
        frozen = with_frozen(model, whole, statistics, rare)
        noisy = not satisfies_boundary_rule(model, frozen, statistics, without_noise)
    for halvings in range(_BOUNDARY.max_halvings):
        whole = statistics + step_size * field
        if satisfies_boundary_rule(model, whole, statistics, fraction):
            return Step(whole, field_sq_norm, halvings, step_size, noisy)
        frozen = with_frozen(model, whole, statistics, rare)
        if satisfies_boundary_rule(model, frozen, statistics, fraction):
            return Step(frozen, field_sq_norm, halvings + 1, step_size, noisy)
        step_size = step_size / 2
    return Step(statistics, field_sq_norm, _BOUNDARY.max_halvings, 0.0, noisy=True)


def with_frozen(
    model: MStep, proposal: FloatArray, statistics: FloatArray, frozen: BoolArray
) -> FloatArray:
    """The proposal, but with unchanged statistics of some components."""
    kept = proposal.copy()
    model.table(kept)[frozen] = model.table(statistics)[frozen]
    return kept


def in_domain(model: MStep, statistics: FloatArray) -> bool:
    """Whether T is defined: all components have mass and, if T needs it, scatter."""
    if not np.isfinite(statistics).all() or (model.table(statistics)[:, 0] <= 0).any():
        return False
    is_known = model.fixed_covariance is not None
    return is_known or model.structure.is_positive_definite(_scatter(model, statistics))


def shrunk_into_domain(model: MStep, statistics: FloatArray, parameters: Parameters) -> FloatArray:
    """Statistics in the domain of T, close to these or to those of the parameters.

    The model has another regularisation than the one of the parameters, or no longer a known
    covariance. All components have mass. Raises LinAlgError if no statistics are in the domain,
    because a feature is constant and there is no regularisation.
    """
    if not model.structure.is_shared:
        return model.statistics_of(parameters)
    # Shrink the means towards the centre of all rows until they leave a share of the moment.
    mass, means, second = model.split(statistics)
    moment = second + 0.5 * model.regularization(means)
    if not model.structure.is_positive_definite(moment):
        raise np.linalg.LinAlgError(NOT_POSITIVE_DEFINITE)
    between = (mass[:, None] * means).T @ means
    largest = eigh(between, moment, eigvals_only=True)[-1]
    shrunk = statistics.copy()
    model.table(shrunk)[:, 1:] *= np.sqrt(_BOUNDARY.most_between / largest)
    return shrunk


def satisfies_boundary_rule(
    model: MStep, proposal: FloatArray, statistics: FloatArray, fraction: float
) -> bool:
    """Whether a step keeps more than a fraction of each component's mass and scatter.

    Mass and scatter of a component are concave in the statistic, so that a step γ towards the
    statistic of any data keeps at least a fraction 1 - γ of both. If it keeps far less, this is due
    to noise.
    """
    mass, mass_before = model.table(proposal)[:, 0], model.table(statistics)[:, 0]
    # In exact rounds, the mass of a vanished component may be 0, or rounding of either sign.
    lost = (mass <= fraction * mass_before) & (mass < mass_before)
    if not np.isfinite(proposal).all() or lost.any():
        return False
    is_known, is_positive = model.fixed_covariance is not None, model.structure.is_positive_definite
    if is_known and model.in_stream:
        return True  # clients do not send second moments in a stream with a known covariance
    scatter_before = _scatter(model, statistics)
    if is_known and not is_positive(scatter_before):
        return True  # initial means may be far from all rows
    return is_positive(_scatter(model, proposal) - fraction * scatter_before)


def _scatter(model: MStep, statistics: FloatArray) -> FloatArray:
    """Scatter of each component times its mass, plus half of the regularisation that T adds.

    This half keeps constant features, which have no scatter, in the domain. It is added before and
    after a step, so that several steps cannot leave the domain together.
    """
    mass, means, second = model.split(statistics)
    scatter = model.structure.scatter(mass, means, second) + 0.5 * model.regularization(means)
    if model.structure.is_shared:
        return scatter
    return scatter * mass.reshape(-1, *[1] * (scatter.ndim - 1))
