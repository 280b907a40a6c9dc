"""Special features of streams: moments of changing rows, and components without rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from ..._federation import Federation, read
from ..._typing import BoolArray, FloatArray, IntArray
from .._base import Estimate, Step
from ..client_rows import multiplied_by_client, segment_products, segment_sums, sum_of_rows
from .component_units import MIN_WEIGHT
from .domain import satisfies_boundary_rule, with_frozen
from .linear_algebra import flat_upper_indices, nearest_semidefinite, packed_indices, unpack
from .m_step import MStep
from .parameters import Parameters
from .units import Units

_Model = TypeVar("_Model", bound=MStep)
_State = TypeVar("_State", bound=Any)


def for_stream(model: _Model, state: _State) -> tuple[_Model, _State]:
    """Model of a stream, and a ``Start`` or ``ServerState`` for it.

    If the model is "tied", Ŝ is followed by the second moment of the rows.
    """
    if model.in_stream:
        return model, state
    statistics, (weights, means, covariances, *_) = state.statistics, state.parameters
    if model.covariance_type == "tied":
        statistics = np.append(statistics, model.moment(statistics))
    model = replace(model, in_stream=True, second_moment=None)
    parameters = model.parameters(weights, means, covariances)
    return model, state._replace(statistics=statistics, parameters=parameters)


def with_scatter(
    model: MStep,
    federation: Federation,
    parameters: Parameters,
    clients: IntArray,
    estimate: Estimate,
) -> Estimate:
    """Estimate of a "tied" model, with what clients know of the second moment of their rows.

    In a fit, the server knows the second moment of all rows, and adds its term to log p(y; θ).
    Here, clients do this. Unless the covariance is known, they send their scatter about the means
    of θ: the second moment of their rows minus ``_between`` of their statistics.
    """
    squares = np.zeros(len(clients))
    moments = np.zeros((len(clients), model.n_features**2))
    for group, rows, lengths, weights in read(federation, clients, model.block_rows):
        y = model.units.standardize(rows, lengths)
        white = multiplied_by_client(parameters.inverse_cholesky[None], y, lengths)
        distances = sum_of_rows(np.square(white))
        if weights is not None:
            distances *= weights
        squares[group] += segment_sums(distances, lengths)
        if model.is_total_minus_between:
            weighted = y if weights is None else y * weights
            moments[group] += segment_products(weighted, y, lengths)
    assert estimate.log_likelihood is not None  # all rows were read
    totals = federation.totals_of(clients)
    estimate = estimate._replace(log_likelihood=estimate.log_likelihood - 0.5 * squares / totals)
    if not model.is_total_minus_between:
        return estimate
    between = [_between(model, parameters.means, own).ravel() for own in estimate.statistics]
    scatters = moments / totals[:, None] - between
    return estimate._replace(uncompressed=scatters[:, flat_upper_indices(model.n_features)])


def field_with_moment(
    model: MStep,
    parameters: Parameters,
    statistics: FloatArray,
    field: FloatArray,
    scatter: FloatArray | float,
    step_size: float,
) -> FloatArray:
    """H, followed by the field of the second moment of the rows; see ``Model.stream_field``.

    The moment is the clients' ``scatter`` plus ``_between`` of the server's estimate Ŝ + H of their
    statistics. Errors of H then cancel in the covariance, which is the moment minus that of the
    means.
    """
    # The covariance subtracts the means of frozen components too: keep their share in the moment.
    before = model.reference(statistics)
    vanishes = _vanishes(model, before + step_size * field, before)
    estimate = with_frozen(model, before + field, before, vanishes)
    (matrix,) = unpack(np.atleast_2d(scatter), model.n_features)
    moment = matrix + _between(model, parameters.means, estimate)
    return np.append(field, moment - model.moment(statistics))


def with_moment_of(model: MStep, statistics: FloatArray, parameters: Parameters) -> FloatArray:
    """Statistics with the second moment under these parameters, whose covariance was known.

    Where the regularisation exceeds this covariance, it takes its place.
    """
    _, means, _ = model.split(statistics)
    scatter = parameters.covariances - model.regularization(means)
    (scatter,) = nearest_semidefinite(scatter[None])
    moment = scatter + (parameters.weights[:, None] * means).T @ means
    return np.append(model.reference(statistics), moment)


def _between(model: MStep, means: FloatArray, statistics: FloatArray) -> FloatArray:
    """Σ_g E[r_g (y yᵀ - (y - μ_g) (y - μ_g)ᵀ)], shape (n_features, n_features)."""
    table = model.table(statistics)
    mass, first = table[:, :1], table[:, 1 : 1 + model.n_features]
    return means.T @ first + (first - mass * means).T @ means


def with_variance_along_new_axes(
    model: MStep, statistics: FloatArray, units_before: Units, share: float
) -> FloatArray:
    """Statistics in which a share of the rows varies along new axes.

    Clients have sent this variance, which is 1 in standard units. With a variance of 0, messages
    would consist of noise, as their units are those of the components. "tied" and "spherical"
    components already have a variance along these axes.
    """
    if model.covariance_type not in ("full", "diag"):
        return statistics
    d, is_new = model.n_features, model.units.has_variance & ~units_before.has_variance
    squares = np.diagonal(packed_indices(d)) if model.covariance_type == "full" else np.arange(d)
    table = model.table(statistics).copy()
    table[:, 1 + d + squares[is_new]] += share * table[:, :1]
    return table.ravel()


def with_vanishing_ones_frozen(model: MStep, step: Step, statistics: FloatArray) -> Step:
    """The step, but with unchanged statistics of components that would lose their last mass.

    Later rows then find these components unchanged. With less mass, the noise of messages would
    change mean and covariance; without noise, the first few new rows would determine them, and the
    component would be too narrow for the others. The step is not modified if the "tied" covariance
    is too small for means at such a distance.
    """
    vanishes = _vanishes(model, step.statistics, statistics)
    if not vanishes.any():
        return step
    kept = with_frozen(model, step.statistics, statistics, vanishes)
    is_allowed = satisfies_boundary_rule(model, kept, statistics, 0.0)
    return step._replace(statistics=kept) if is_allowed else step


def _vanishes(model: MStep, proposal: FloatArray, statistics: FloatArray) -> BoolArray:
    """Whether the mass of each component falls below ``MIN_WEIGHT``, or further if it was below."""
    mass, mass_before = model.table(proposal)[:, 0], model.table(statistics)[:, 0]
    return mass < np.minimum(mass_before, MIN_WEIGHT)
