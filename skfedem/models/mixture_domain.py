"""The domain of a mixture's M-step T, and steps of the server that stay in it.

Compression, participation and minibatches move Ŝ to where no data could have it: the mass of a
component is not positive there, or its scatter not positive definite. Where to stop is decided by
the statistics alone. Beside a known covariance T needs no scatter, but what the means leave of the
rows' second moment keeps them from flying apart.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import eigh

from ._base import Step
from .component_units import RAREST
from .covariances import COLLAPSED, cholesky
from .units import ROUNDING

# A step of γ towards statistics that data could have keeps at least 1 - γ of each component's mass
# and scatter. One that keeps less than half of that leads to statistics that no data could have.
_KEPT_SHARE = 0.5
# Even a step of 1 may take away no more than three quarters of either.
_FEWEST_KEPT = 0.25
_MAX_HALVINGS = 20
# Most that means which were too far apart may take of a second moment, along any direction.
_MOST_BETWEEN = 0.9
# Steps of γ that each take away a random share δ build up a deviation of δ / √(2 γ). It may be at
# most this share of a component's mass and scatter.
_LARGEST_DEVIATION = 0.6


def safeguarded_step(model, statistics, field, step_size):
    """``statistics + step_size * field``, the step halved until it stays in T's domain: ``Step``.

    Components that hardly any row belongs to are left as they were if that is enough to stay in it.
    """
    field_sq_norm, noisy = model.field_sq_norm(statistics, field), False
    share = max(_KEPT_SHARE * (1 - step_size), _FEWEST_KEPT)
    calm_share = 1 - step_size - _LARGEST_DEVIATION * np.sqrt(2 * step_size)
    if calm_share > share:
        whole = statistics + step_size * field
        if keeps(model, whole, statistics, calm_share):
            return Step(whole, field_sq_norm, 0, step_size)
        frozen = _with_rare_ones_frozen(model, whole, statistics)
        noisy = not keeps(model, frozen, statistics, calm_share)
    for proposal, halvings, taken in _proposals(model, statistics, field, step_size):
        if keeps(model, proposal, statistics, share):
            return Step(proposal, field_sq_norm, halvings, taken, noisy)
    return Step(statistics, field_sq_norm, _MAX_HALVINGS, 0.0, noisy=True)


def _proposals(model, statistics, field, step_size):
    """Shorter and shorter steps, each also with rare components frozen; halvings and γ of each."""
    for halvings in range(_MAX_HALVINGS):
        proposal = statistics + step_size * field
        yield proposal, halvings, step_size
        yield _with_rare_ones_frozen(model, proposal, statistics), halvings + 1, step_size
        step_size = step_size / 2


def _with_rare_ones_frozen(model, proposal, statistics):
    """The proposal, except that the statistics of very rare components stay as they were.

    The field of such a component is little but noise, and the other components need not wait for
    one that died.
    """
    return with_some_frozen(model, proposal, statistics, model.table(statistics)[:, 0] < RAREST)


def with_some_frozen(model, proposal, statistics, frozen):
    """The proposal, except that the statistics of some components stay as they were."""
    kept = proposal.copy()
    model.table(kept)[frozen] = model.table(statistics)[frozen]
    return kept


def in_domain(model, statistics):
    """Whether T is defined here: all components have mass and, where T needs it, scatter."""
    if not np.isfinite(statistics).all() or (model.table(statistics)[:, 0] <= 0).any():
        return False
    is_known = model.fixed_covariance is not None
    return is_known or _is_positive(model, _scatter_to_keep(model, statistics))


def brought_into_domain(model, statistics, parameters):
    """Statistics like these, or those of the parameters, in the domain of T.

    The model has another regularisation than made the parameters, or is without their known
    covariance. Components have mass. ValueError if no statistics are in the domain: without
    regularisation, features have to vary.
    """
    if model.covariance_type != "tied":
        return model.statistics_of(parameters)
    # Means are drawn towards the centre of all rows until they leave a share of the second moment.
    mass, means, second = model.split(statistics)
    moment = second + 0.5 * model.regularization(means)
    if cholesky(moment) is None:
        raise ValueError(COLLAPSED)
    between = (mass[:, None] * means).T @ means
    largest = eigh(between, moment, eigvals_only=True)[-1]
    drawn = statistics.copy()
    model.table(drawn)[:, 1:] *= np.sqrt(_MOST_BETWEEN / largest)
    return drawn


def keeps(model, proposal, statistics, share):
    """Whether a step to a proposal keeps more than a share of each component's mass and scatter.

    Mass and scatter of a component are concave in the statistic, so that a step of size γ towards
    the statistic of any data keeps at least a share 1 - γ of both. If it keeps far less, noise has
    moved the statistic further than any data could.
    """
    mass, mass_before = model.table(proposal)[:, 0], model.table(statistics)[:, 0]
    # An exact round leaves a component that died with 0, or with rounding of either sign.
    lost = (mass <= share * mass_before) & (mass < mass_before)
    if not np.isfinite(proposal).all() or lost.any():
        return False
    is_known = model.fixed_covariance is not None
    if is_known and model.in_stream:
        return True  # streams of a known covariance do not tell the second moment
    scatter_before = _scatter_to_keep(model, statistics)
    if is_known and not _is_positive(model, scatter_before):
        return True  # given means may lie where no rows are
    return _is_positive(model, _scatter_to_keep(model, proposal) - share * scatter_before)


def _is_positive(model, scatter):
    if model.covariance_type in ("diag", "spherical"):
        return bool((scatter + ROUNDING > 0).all())
    return cholesky(scatter) is not None


def _scatter_to_keep(model, statistics):
    """Scatter of each component times its mass, plus half of the regularisation that T adds.

    Constant features have no scatter at all: this half keeps them in the domain. It is added at
    both ends of a step, so that steps which nearly leave the domain do not add up to one that does.
    """
    mass, means, second = model.split(statistics)
    scatter = model.scatter(mass, means, second) + 0.5 * model.regularization(means)
    if model.covariance_type == "tied":
        return scatter
    return scatter * mass.reshape(-1, *[1] * (scatter.ndim - 1))
