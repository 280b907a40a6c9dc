"""What is special in a stream, whose rows come and go: moments, and components without rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .component_units import RAREST
from .covariances import upper
from .mixture_domain import keeps, with_some_frozen
from .units import n_moments, second_moment


def for_stream(model, statistics):
    """Model of a stream, and Ŝ followed by the second moment of rows where that is "tied"'s."""
    if model.in_stream:
        return model, statistics
    if model.covariance_type == "tied":
        statistics = np.append(statistics, model.second_moment)
    return replace(model, in_stream=True, second_moment=None), statistics


def field_with_moment(model, federation, parameters, statistics, field, step_size):
    """H and the field of the second moment of the rows, as ``Model.stream_field``.

    Clients send their scatter about the broadcast means. The server adds the second moment of the
    means from its own estimate, errors included: in the covariance, which is the difference of the
    two, these errors cancel.
    """
    weights, clients = federation.weights, np.arange(federation.n_clients)
    batch = second_moment(federation, model.units.center, matrix=True)
    batch = model.units.moment_to_standard(batch / weights.sum())
    alone = replace(model, second_moment=batch).parameters(*parameters[:3])
    sent = model.all_rows(federation, parameters.natural, clients).statistics
    sent = weights @ sent / weights.sum()
    # Of a component that is frozen, the second moment has to keep what the means take from it.
    before = model.reference(statistics)
    vanishes = _vanishes(model, before + step_size * field, before)
    moved = with_some_frozen(model, before + field, before, vanishes)
    moment = batch + _between(model, parameters.means, moved - sent)
    # Beside a known covariance the log-likelihood alone needs it, and evaluations are not sent.
    n_numbers = n_moments(model.n_features, True) if model.covariance_is_rest else 0
    return np.append(field, moment - model.moment(statistics)), alone, n_numbers


def _between(model, means, statistics):
    """Σ_g E[r_g (y yᵀ - (y - μ_g) (y - μ_g)ᵀ)], shape (n_features, n_features)."""
    table = model.table(statistics)
    mass, first = table[:, :1], table[:, 1 : 1 + model.n_features]
    return means.T @ first + (first - mass * means).T @ means


def with_variance_along_new_axes(model, statistics, units_before, share):
    """Statistics in which a share of the rows has its variance along axes that are new.

    Clients have told this variance, and it is 1. If it were 0, there would be nothing but the
    noise of messages, as their units are those of the components. "tied" and "spherical"
    components have a variance there anyway.
    """
    if model.covariance_type not in ("full", "diag"):
        return statistics
    d, is_new = model.n_features, model.units.varies & ~units_before.varies
    squares = np.arange(d)
    if model.covariance_type == "full":
        squares = np.flatnonzero(np.eye(d)[upper(d)])
    table = model.table(statistics).copy()
    table[:, 1 + d + squares[is_new]] += share * table[:, :1]
    return table.ravel()


def with_vanishing_ones_frozen(model, step, statistics):
    """The step, except that components with next to no mass do not lose the rest of it.

    Their rows may come back, and find them where they were. With less mass, the noise of messages
    would move mean and covariance, and without noise the first few rows that come back would be all
    that a component is: too narrow to take the others. A step stays as it is where a "tied"
    covariance has become too small for means so far away.
    """
    vanishes = _vanishes(model, step.statistics, statistics)
    kept = with_some_frozen(model, step.statistics, statistics, vanishes)
    if not vanishes.any() or not keeps(model, kept, statistics, 0.0):
        return step
    return step._replace(statistics=kept)


def _vanishes(model, proposal, statistics):
    """Whether each component would lose the rest of its mass."""
    mass, mass_before = model.table(proposal)[:, 0], model.table(statistics)[:, 0]
    return mass < np.minimum(mass_before, RAREST)
