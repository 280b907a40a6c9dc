"""Where a federated mixture starts: the one-off messages before the first round.

These are means and second moments of the clients (for the standard units of the model), and
statistics of a first assignment of rows to components, which ``mixture_assignment.py`` finds, or of
what the user gave, which ``mixture_given.py`` checks. They count as bits, like all that is sent.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .._bits import FLOAT_BITS
from ._base import Start
from .covariances import MATRICES
from .gaussian_mixture import GaussianMixtureModel
from .mixture_assignment import assign, pooled_statistics
from .mixture_domain import in_domain
from .mixture_given import check_distance, check_regularization, check_spread
from .mixture_parameters import in_standard_units
from .mixture_stream import with_variance_along_new_axes
from .units import (
    mean_of_rows,
    n_moments,
    second_moment,
    standard_units,
    with_new_axes,
)
from .wide_rows import are_worth_it

# In standard units, rows have moments of about 1. If a start had larger statistics than this, as
# wide or as far as a hundred standard deviations of all rows, rounding would leave fewer than
# twelve digits of the rows' difference from it.
_FAR = 1e4


def bits_of_units(model, n_clients):
    """Bits to tell ``n_clients`` clients the model's units: the moments that these follow from."""
    d = model.n_features
    return FLOAT_BITS * n_clients * (d + n_moments(d, model.covariance_type in MATRICES))


def standardise(estimator, federation, given):
    """Model in standard units, and the bits that clients send and get back for it.

    Each client sends two messages: the mean of its rows and, once it knows the mean of all, their
    second moment about that. So the second moment keeps its digits wherever the rows lie.
    """
    covariance_type, size = estimator.covariance_type, estimator.n_components
    center = mean_of_rows(federation)
    second = second_moment(federation, center, matrix=covariance_type in MATRICES)
    units = standard_units(center, second, covariance_type, estimator.reg_covar)
    n_rows = estimator.batch_size or federation.n_samples / federation.n_clients
    model = GaussianMixtureModel(
        n_components=size,
        covariance_type=covariance_type,
        units=units,
        second_moment=units.moment_to_standard(second) if covariance_type == "tied" else None,
        is_wide=are_worth_it(covariance_type, size, len(center), n_rows),
    )
    check_distance(model, given.means)
    check_spread(model, "precisions_init", given.covariances)
    model = with_parameters(model, estimator.reg_covar, given.fixed_covariance)
    return model, bits_of_units(model, federation.n_clients)


def standardised_again(estimator, model, federation, given):
    """Model of an earlier fit, in its units, for the current parameters and rows, and bits for it.

    All that has to be sent anew is the second moment that "tied" covariances, or the domain of a
    known one, are computed from, and what ``with_axes_of`` asks for.
    """
    model, bits = with_axes_of(model, federation)
    second = None
    if model.covariance_type == "tied":
        second = second_moment(federation, model.units.center, matrix=True)
        second = model.units.moment_to_standard(second)
        bits += FLOAT_BITS * federation.n_clients * n_moments(model.n_features, True)
    model = with_parameters(model, estimator.reg_covar, given.fixed_covariance)
    return replace(model, second_moment=second, in_stream=False), bits


def with_axes_of(model, federation):
    """Model in whose units the axes along which these rows are the first to vary count as well.

    So far, statistics are 0 along such an axis, like those of rows that lie in the centre.

    Returns
    -------
    model : GaussianMixtureModel
    bits : int
        Of the second moments along axes that did not count, which clients send and get back.
    """
    units = model.units
    if units.varies.all():
        return model, 0
    matrix = units.rotation is not None
    second = second_moment(federation, units.center, matrix=matrix)
    n_numbers = n_moments(np.count_nonzero(~units.varies), matrix)
    units = with_new_axes(units, second, model.covariance_type)
    return replace(model, units=units), FLOAT_BITS * federation.n_clients * n_numbers


def with_parameters(model, reg_covar, fixed_covariance):
    """Model with the current parameters; ``fixed_covariance`` is in the rows' units."""
    check_spread(model, "fixed_covariance", fixed_covariance)
    if fixed_covariance is not None:
        fixed_covariance = model.units.matrices_to_standard(fixed_covariance)
    model = replace(model, reg_covar=reg_covar, fixed_covariance=fixed_covariance)
    if fixed_covariance is None:
        check_regularization(model)
    return model


def start_again(model, federation, before, server, given):
    """Start from the statistics of an earlier fit if they fit the rows, else from its parameters.

    Both models are in the same units. The server is where the earlier fit ended; ``given`` are its
    parameters in the rows' units.
    """
    # Else Ŝ does not go with the second moment of these rows.
    if _same(model.second_moment, before.second_moment):
        statistics = server.statistics
        if model.units is before.units and has_same_domain(model, before):
            return Start(statistics, server.parameters, has_field=server.has_field)
        if model.units is not before.units:
            statistics = with_variance_along_new_axes(model, statistics, before.units, 1.0)
        # Else it was in that of the earlier T, with a known covariance or more regularisation.
        if in_domain(model, statistics):
            return Start(statistics, model.maximization(statistics))
    return _start_at(model, federation, _given_in_standard_units(model, given))


def has_same_domain(model, before):
    """Whether T of both has the same parameters."""
    return model.reg_covar == before.reg_covar and _same(
        model.fixed_covariance, before.fixed_covariance
    )


def _same(one, other):
    return one is other if one is None or other is None else np.array_equal(one, other)


def start_run(model, federation, init_params, given, seed):
    """Start of a run: Ŝ_0, the parameters of the first broadcast, and what was sent."""
    weights, means, covariances = _given_in_standard_units(model, given)
    uplink = downlink = 0
    if weights is None or means is None or covariances is None:
        first, uplink, downlink = assign(model, federation, init_params, given.means, seed)
        parameters = model.maximization(first)
        if given.weights is None and given.means is None and given.covariances is None:
            return Start(first, parameters, uplink, downlink)
        weights = parameters.weights if weights is None else weights
        means = parameters.means if means is None else means
        if covariances is None:
            covariances = _covariances_about(model, parameters, means)
    start = _start_at(model, federation, (weights, means, covariances))
    return start.after(uplink, downlink)


def _given_in_standard_units(model, given):
    """Weights, means and covariances that were given, each None where it was not."""
    weights, means, covariances = in_standard_units(
        model, given.weights, given.means, given.covariances
    )
    if given.fixed_covariance is not None:
        covariances = model.fixed_covariance
    return weights, means, covariances


def _covariances_about(model, parameters, means):
    """Covariances of ``parameters``, counted from other means.

    About its own mean, rows of a narrow component may be hundreds of standard deviations away from
    the mean that was given, and other components would take them.
    """
    shift = parameters.means - means
    if model.covariance_type in MATRICES:
        apart = shift[:, :, None] * shift[:, None, :]
        if model.covariance_type == "tied":
            apart = np.tensordot(parameters.weights, apart, 1)
        return parameters.covariances + apart
    apart = np.square(shift)
    if model.covariance_type == "spherical":
        apart = apart.mean(axis=1)
    return parameters.covariances + apart


def _start_at(model, federation, theta):
    """Start at weights, means and covariances in standard units, which clients are told."""
    parameters = model.parameters(*theta)
    # For θ, which does not follow from Ŝ_0.
    bits = FLOAT_BITS * federation.n_clients * model.n_statistics
    statistics = model.statistics_of(parameters)
    if np.abs(statistics).max() <= _FAR and in_domain(model, statistics):
        return Start(statistics, parameters, downlink_bits=bits)

    # No data have these means with this covariance, or the rows' moments would be lost in the
    # rounding of Ŝ_0. Then Ŝ_0 is what the clients' data have.
    def sums(rows, *lengths_and_weights):
        features = model.features(rows)
        return model.expectation(parameters.natural, features, *lengths_and_weights).statistics

    statistics = pooled_statistics(model, federation, sums)
    return Start(statistics, parameters, bits, bits, n_passes=1, has_field=False)
