"""Start of a federated mixture: the one-off messages before the first round.

These are means and second moments of the clients, for the standard units of the model, and
statistics of an initial assignment of rows to components (see ``assignment.py``) or of
user-given initial values (see ``initial_parameters.py``). What clients compute is in
``messages.py``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ..._federation import SetUp
from ..._typing import FloatArray, InitParams
from .._base import Start
from . import messages
from .assignment import assign
from .covariances import COVARIANCES
from .domain import in_domain
from .gaussian_mixture import GaussianMixtureModel
from .initial_parameters import (
    InitialParameters,
    MixtureParameters,
    check_distance,
    check_regularization,
    check_size,
    check_spread,
)
from .linear_algebra import lq_factor, n_moments, unpack
from .parameters import Parameters, in_standard_units
from .quadratic_forms import use_quadratic_forms
from .stream_moments import with_variance_along_new_axes
from .units import standard_units, with_new_axes

# Largest statistics of a start. In standard units, moments of rows are about 1; a start with larger
# statistics, more than a hundred standard deviations wide or away, would cost the differences
# between rows more than four digits.
_FAR = 1e4


def n_moments_told(model: GaussianMixtureModel) -> int:
    """Number of moments that determine the model's units for a client."""
    d = model.n_features
    return d + n_moments(d, model.structure.has_matrices)


def standardise(
    settings: MixtureParameters,
    clients: SetUp,
    initial: InitialParameters,
    batch_size: int | None = None,
) -> GaussianMixtureModel:
    """Model in standard units.

    Each client sends two messages: the mean of its rows and, after it has received the mean of all
    rows, its second moment about that. The second moment then keeps its digits wherever the rows
    lie.
    """
    covariance_type, size, sizes = settings.covariance_type, settings.n_components, clients.sizes
    center = clients.mean(messages.mean_of_rows)
    second = _second_moment(clients, center, COVARIANCES[covariance_type].has_matrices)
    clients.tell("second moment", n_moments(len(center), second.ndim == 2))
    units = standard_units(center, second, covariance_type, settings.reg_covar)
    if settings.reg_covar == 0 and initial.fixed_covariance is None:
        check_size(units, second)
    n_rows = batch_size or sizes.n_samples / sizes.n_clients
    model = GaussianMixtureModel(
        n_components=size,
        covariance_type=covariance_type,
        units=units,
        second_moment=units.moment_to_standard(second) if covariance_type == "tied" else None,
        has_quadratic_forms=use_quadratic_forms(covariance_type, size, len(center), n_rows),
    )
    check_distance(model, initial.means)
    check_spread(model, "precisions_init", initial.covariances)
    return with_parameters(model, settings.reg_covar, initial.fixed_covariance)


def _second_moment(clients: SetUp, center: FloatArray, matrix: bool) -> FloatArray:
    """Σ_i w_i of the clients' second moments about a centre: a matrix, or its diagonal."""
    second = clients.mean(messages.second_moment, center, matrix)
    return unpack(second[None], len(center))[0] if matrix else second


def standardised_again(
    settings: MixtureParameters,
    model: GaussianMixtureModel,
    clients: SetUp,
    initial: InitialParameters,
) -> GaussianMixtureModel:
    """Model of an earlier fit with the current parameters and rows.

    The units are unchanged. Only two things have to be sent again: the second moment from which a
    "tied" covariance, or the domain of a known one, is computed; and moments for ``with_axes_of``.
    """
    second, units = None, model.units
    if model.covariance_type != "tied":
        model = with_axes_of(model, clients)
    else:  # one message for both
        moment = _second_moment(clients, units.center, True)
        if not units.has_variance.all():
            model = replace(model, units=with_new_axes(units, moment))
        second = model.units.moment_to_standard(moment)
    model = with_parameters(model, settings.reg_covar, initial.fixed_covariance)
    return replace(model, second_moment=second, in_stream=False)


def with_axes_of(model: GaussianMixtureModel, clients: SetUp) -> GaussianMixtureModel:
    """Model whose units include the axes along which only these rows vary.

    Along such an axis, all previous statistics are 0, as if rows were at the centre.
    """
    units = model.units
    if units.has_variance.all():
        return model
    second = _second_moment(clients, units.center, units.rotation is not None)
    return replace(model, units=with_new_axes(units, second))


def with_parameters(
    model: GaussianMixtureModel, reg_covar: float, fixed_covariance: FloatArray | None
) -> GaussianMixtureModel:
    """Model with the current parameters; ``fixed_covariance`` is in the rows' units."""
    check_spread(model, "fixed_covariance", fixed_covariance)
    model = replace(model, reg_covar=reg_covar, fixed_cholesky=None)
    if fixed_covariance is None:
        check_regularization(model)
        return model
    factor, _ = model.structure.cholesky_and_inverse(fixed_covariance)
    return replace(model, fixed_cholesky=lq_factor(model.units.whitening.T @ factor))


def start_again(
    model: GaussianMixtureModel,
    clients: SetUp,
    before: GaussianMixtureModel,
    server: Any,
    initial: InitialParameters,
) -> Start:
    """Start from the statistics of an earlier fit if possible, otherwise from its parameters.

    Both models have the same units. ``server`` is the final ``ServerState`` of the earlier fit, and
    ``given`` its parameters in the rows' units.
    """
    # Otherwise, Ŝ is inconsistent with the second moment of these rows.
    if _same(model.second_moment, before.second_moment):
        statistics = server.statistics
        if model.units is before.units and has_same_domain(model, before):
            return Start(statistics, server.parameters, has_field=server.has_field)
        if model.units is not before.units:
            statistics = with_variance_along_new_axes(model, statistics, before.units, 1.0)
        # Ŝ may only be in the domain of the earlier T, with a known covariance or more
        # regularisation.
        if in_domain(model, statistics):
            return Start(statistics, model.maximization(statistics))
    weights, means, covariances = _given_in_standard_units(model, initial)
    assert weights is not None and means is not None and covariances is not None  # all are given
    return _start_at(model, clients, (weights, means, covariances))


def has_same_domain(model: GaussianMixtureModel, before: GaussianMixtureModel) -> bool:
    """Whether T has the same domain for both models."""
    is_same = _same(model.fixed_cholesky, before.fixed_cholesky)
    return model.reg_covar == before.reg_covar and is_same


def _same(one: FloatArray | None, other: FloatArray | None) -> bool:
    return one is other if one is None or other is None else np.array_equal(one, other)


def start_run(
    model: GaussianMixtureModel,
    clients: SetUp,
    init_params: InitParams,
    initial: InitialParameters,
    seed: int,
) -> Start:
    """Start of a run: Ŝ_0, and the parameters of the first broadcast."""
    weights, means, covariances = _given_in_standard_units(model, initial)
    if weights is None or means is None or covariances is None:
        first = assign(model, clients, init_params, initial.means, seed)
        parameters = model.maximization(first)
        if initial.weights is None and initial.means is None and initial.covariances is None:
            return Start(first, parameters)
        weights = parameters.weights if weights is None else weights
        means = parameters.means if means is None else means
        if covariances is None:
            covariances = _covariances_about(model, parameters, means)
    return _start_at(model, clients, (weights, means, covariances))


def _given_in_standard_units(
    model: GaussianMixtureModel, initial: InitialParameters
) -> tuple[FloatArray | None, FloatArray | None, FloatArray | None]:
    """Given weights, means and covariances in standard units; None for those not given."""
    weights, means, covariances = in_standard_units(
        model.units, initial.weights, initial.means, initial.covariances
    )
    if initial.fixed_covariance is not None:
        covariances = model.fixed_covariance
    return weights, means, covariances


def _covariances_about(
    model: GaussianMixtureModel, parameters: Parameters, means: FloatArray
) -> FloatArray:
    """Second moments about other means, from the covariances of ``parameters``.

    With covariances about the component's own mean, rows of a narrow component could be hundreds of
    standard deviations away from the given mean, and would be assigned to other components.
    """
    shift = parameters.means - means
    if model.structure.has_matrices:
        apart = shift[:, :, None] * shift[:, None, :]
        if model.covariance_type == "tied":
            apart = np.tensordot(parameters.weights, apart, 1)
        return parameters.covariances + apart
    apart = np.square(shift)
    if model.covariance_type == "spherical":
        apart = apart.mean(axis=1)
    return parameters.covariances + apart


def _start_at(
    model: GaussianMixtureModel,
    clients: SetUp,
    theta: tuple[FloatArray, FloatArray, FloatArray],
) -> Start:
    """Start at weights, means and covariances in standard units, which are sent to clients."""
    parameters = model.parameters(*theta)
    # θ has to be sent as well, because it does not follow from Ŝ_0.
    clients.tell("parameters", model.n_statistics)
    statistics = model.statistics_of(parameters)
    if np.abs(statistics).max() <= _FAR and in_domain(model, statistics):
        return Start(statistics, parameters)
    # No data have such statistics, or they are so large that the rows' moments would be lost in
    # rounding. Ŝ_0 is then computed from the clients' rows.
    statistics = clients.mean(messages.expected_statistics, model, parameters)
    return Start(statistics, parameters, n_passes=1, has_field=False)
