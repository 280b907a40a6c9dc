"""Special features of streams: moments of changing rows, and components without rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .component_units import RAREST
from .covariances import packed
from .domain import keeps, with_some_frozen
from .units import n_moments, second_moment


def for_stream(model, statistics):
    """Model of a stream, and Ŝ followed by the second moment of the rows if it is "tied"."""
    if model.in_stream:
        return model, statistics
    if model.covariance_type == "tied":
        statistics = np.append(statistics, model.second_moment)
    return replace(model, in_stream=True, second_moment=None), statistics


def field_with_moment(model, federation, parameters, statistics, field, step_size):
    """H, followed by the field of the second moment of the rows; see ``Model.stream_field``.

    Clients send their scatter about the broadcast means: the second moment of their rows minus
    ``_between`` of their statistics. The server adds ``_between`` of its estimate Ŝ + H of these
    statistics. Errors of H then cancel in the covariance, which is the moment minus that of the
    means.
    """
    weights, every = federation.weights, np.arange(federation.n_clients)
    of_rows = second_moment(federation, model.units.center, matrix=True)
    of_rows = model.units.moment_to_standard(of_rows / weights.sum())
    own = weights @ model.all_rows(federation, parameters.natural, every).statistics
    own = own / weights.sum()
    # The covariance subtracts the means of frozen components too: keep their share in the moment.
    before = model.reference(statistics)
    vanishes = _vanishes(model, before + step_size * field, before)
    estimate = with_some_frozen(model, before + field, before, vanishes)
    moment = of_rows + _between(model, parameters.means, estimate - own)
    field = np.append(field, moment - model.moment(statistics))
    of_batch = replace(model, second_moment=of_rows)
    parameters = of_batch.parameters(parameters.weights, parameters.means, parameters.covariances)
    # With a known covariance, only the log-likelihood needs it, and evaluations are not sent.
    n_numbers = n_moments(model.n_features, True) if model.covariance_is_rest else 0
    return field, parameters, n_numbers


def _between(model, means, statistics):
    """Σ_g E[r_g (y yᵀ - (y - μ_g) (y - μ_g)ᵀ)], shape (n_features, n_features)."""
    table = model.table(statistics)
    mass, first = table[:, :1], table[:, 1 : 1 + model.n_features]
    return means.T @ first + (first - mass * means).T @ means


def with_variance_along_new_axes(model, statistics, units_before, share):
    """Statistics in which a share of the rows varies along new axes.

    Clients have sent this variance, which is 1 in standard units. With a variance of 0, messages
    would consist of noise, as their units are those of the components. "tied" and "spherical"
    components already have a variance along these axes.
    """
    if model.covariance_type not in ("full", "diag"):
        return statistics
    d, is_new = model.n_features, model.units.varies & ~units_before.varies
    squares = np.diagonal(packed(d)) if model.covariance_type == "full" else np.arange(d)
    table = model.table(statistics).copy()
    table[:, 1 + d + squares[is_new]] += share * table[:, :1]
    return table.ravel()


def with_vanishing_ones_frozen(model, step, statistics):
    """The step, but with unchanged statistics of components that would lose their last mass.

    Later rows then find these components unchanged. With less mass, the noise of messages would
    change mean and covariance; without noise, the first few new rows would determine them, and the
    component would be too narrow for the others. The step is not modified if the "tied" covariance
    is too small for means at such a distance.
    """
    vanishes = _vanishes(model, step.statistics, statistics)
    if not vanishes.any():
        return step
    kept = with_some_frozen(model, step.statistics, statistics, vanishes)
    return step._replace(statistics=kept) if keeps(model, kept, statistics, 0.0) else step


def _vanishes(model, proposal, statistics):
    """Whether the mass of each component falls below ``RAREST``, or further if it was below."""
    mass, mass_before = model.table(proposal)[:, 0], model.table(statistics)[:, 0]
    return mass < np.minimum(mass_before, RAREST)
