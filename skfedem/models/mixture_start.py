"""Where a federated mixture starts: the one-off messages before the first round.

Means and second moments of the clients (for the standard units of the model), and statistics of a
first assignment of rows to components, which ``mixture_assignment.py`` finds, or of what the user
gave. Counted in bits, as all that is sent.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from .._codec import FLOAT_BITS
from .._federation import read
from .._parameters import check_shape
from ._base import Start
from .covariances import whiten
from .gaussian_mixture import GaussianMixtureModel
from .mixture_assignment import assign
from .mixture_domain import in_domain
from .mixture_parameters import in_standard_units
from .units import (
    mean_of_rows,
    n_moments,
    rows_at_once,
    second_moment,
    standard_units,
    with_new_axes,
)

# What messages advise where a fit or a stream cannot go on.
TO_BEGIN_ANEW = "Call fit with warm_start=False, or partial_fit on a clone, after such a change."


class Moments(NamedTuple):
    """Centre, second moment about it (a matrix, or its diagonal alone), and their cost."""

    center: np.ndarray
    second_moment: np.ndarray
    uplink_bits: int
    downlink_bits: int


def moments(federation, block_rows, *, matrix):
    """Weighted mean of all clients' rows and their second moment about it.

    Two messages a client: its mean, then, told the mean of all, its second moment about that. So
    the second moment keeps its digits wherever the rows lie.

    Parameters
    ----------
    federation : Federation
    block_rows : int
        Rows to read at once.
    matrix : bool
        Whether the full matrix is wanted, or its diagonal.
    """
    center = mean_of_rows(federation, block_rows)
    second = second_moment(federation, center, block_rows, matrix=matrix)
    bits = _bits_of_moments(federation.n_clients, len(center), matrix)
    return Moments(center, second, bits, bits)


def bits_of_units(model, n_clients):
    """Bits that tell so many clients the model's units: the moments that these follow from."""
    return _bits_of_moments(n_clients, model.n_features, model.covariance_type in ("full", "tied"))


def _bits_of_moments(n_clients, n_features, matrix):
    return FLOAT_BITS * n_clients * (n_features + n_moments(n_features, matrix))


def standardise(estimator, federation, given):
    """Model in standard units, and what the clients sent for it.

    Parameters
    ----------
    estimator : FederatedGaussianMixture
        Its ``n_components``, ``covariance_type`` and ``reg_covar`` are read.
    federation : Federation
    given : Given

    Returns
    -------
    model : GaussianMixtureModel
    cost : (int, int)
        Bits up and down.
    """
    covariance_type = estimator.covariance_type
    block_rows = rows_at_once(federation.rows.shape[1])
    center, second, uplink, downlink = moments(
        federation, block_rows, matrix=covariance_type in ("full", "tied")
    )
    units = standard_units(center, second, covariance_type, estimator.reg_covar)
    fixed = given.fixed_covariance
    model = GaussianMixtureModel(
        n_components=estimator.n_components,
        covariance_type=covariance_type,
        units=units,
        reg_covar=estimator.reg_covar,
        second_moment=units.moment_to_standard(second) if covariance_type == "tied" else None,
        fixed_covariance=None if fixed is None else units.matrices_to_standard(fixed),
    )
    return model, (uplink, downlink)


def standardised_again(estimator, model, federation, given):
    """Model of an earlier fit, in its units, for what the parameters and the rows are now.

    Only a second moment that server and clients compute covariances from has to be sent anew, and
    what ``with_axes_of`` asks for.

    Parameters
    ----------
    estimator : FederatedGaussianMixture
        Its ``reg_covar`` is read.
    model : GaussianMixtureModel
    federation : Federation
    given : Given

    Returns
    -------
    model : GaussianMixtureModel
    cost : (int, int)
        Bits up and down.
    """
    model, bits = with_axes_of(model, federation)
    second = None
    if model.covariance_type == "tied":
        second = second_moment(
            federation, model.units.center, rows_at_once(model.n_features), matrix=True
        )
        second = model.units.moment_to_standard(second)
        bits += FLOAT_BITS * federation.n_clients * n_moments(model.n_features, True)
    model = with_parameters(model, estimator.reg_covar, given.fixed_covariance)
    return replace(model, second_moment=second), (bits, bits)


def with_axes_of(model, federation):
    """Model in whose units the axes count along which these rows are the first to vary.

    Statistics so far are 0 along such an axis, as they are of rows that lie in the centre.

    Returns
    -------
    model : GaussianMixtureModel
    bits : int
        That clients send of their second moments along axes that did not count, and get back.
    """
    units = model.units
    if units.varies is None:
        return model, 0
    matrix = units.rotation is not None
    block_rows = rows_at_once(model.n_features)
    second = second_moment(federation, units.center, block_rows, matrix=matrix)
    n_numbers = n_moments(np.count_nonzero(~units.varies), matrix)
    units = with_new_axes(units, second, model.covariance_type)
    return replace(model, units=units), FLOAT_BITS * federation.n_clients * n_numbers


def with_parameters(model, reg_covar, fixed_covariance):
    """Model of an earlier fit with what the parameters are now; the covariance in rows' units."""
    if fixed_covariance is not None:
        fixed_covariance = model.units.matrices_to_standard(fixed_covariance)
    return replace(model, reg_covar=reg_covar, fixed_covariance=fixed_covariance)


def start_again(model, federation, before, server, given, cost):
    """Start from the statistics of an earlier fit, where they fit the rows, else its parameters.

    Parameters
    ----------
    model, before : GaussianMixtureModel
        Of this fit and of the earlier one, in the same units.
    federation : Federation
    server : ServerState
        Where the earlier fit ended.
    given : Given
        Its parameters in the rows' units.
    cost : (int, int)
        Bits sent before, up and down.

    Returns
    -------
    start : Start
    """
    if not _same(model.second_moment, before.second_moment):
        # Ŝ is no statistic of these rows' second moment.
        return start_run(model, federation, None, given, 0, cost)
    unchanged = model.reg_covar == before.reg_covar and model.units is before.units
    if unchanged and _same(model.fixed_covariance, before.fixed_covariance):
        return Start(server.statistics, server.parameters, *cost)
    statistics = server.statistics
    if model.units is not before.units:
        statistics = model.told_of_axes(statistics, before.units, 1.0)
    return Start(statistics, model.maximization(statistics), *cost)


def _same(one, other):
    return one is other if one is None or other is None else np.array_equal(one, other)


class Given(NamedTuple):
    """What the user gave of a start, validated, in the rows' units; None where not given."""

    weights: np.ndarray | None = None
    means: np.ndarray | None = None
    covariances: np.ndarray | None = None
    fixed_covariance: np.ndarray | None = None


def check_start(estimator, n_features, *, warm):
    """Validate ``weights_init``, ``means_init``, ``precisions_init`` and ``fixed_covariance``.

    With ``warm``, the estimator's fitted parameters are what is given.
    """
    fixed = _known_covariance(estimator, n_features)
    if warm:
        _check_sizes_of_fit(estimator, n_features)
        return Given(estimator.weights_, estimator.means_, estimator.covariances_, fixed)
    size, weights, means = estimator.n_components, estimator.weights_init, estimator.means_init
    if weights is not None:
        weights = check_shape("weights_init", weights, (size,))
        if (weights < 0).any() or not np.isclose(weights.sum(), 1):
            raise ValueError(
                "Expected weights_init to be non-negative and to sum to 1, got a smallest of "
                f"{weights.min():.3g} and a sum of {weights.sum():.6g}. Normalise them."
            )
    if means is not None:
        means = check_shape("means_init", means, (size, n_features))
    return Given(weights, means, _inverses_of_precisions(estimator, n_features), fixed)


def _known_covariance(estimator, d):
    """Validated ``fixed_covariance``, or None."""
    if estimator.fixed_covariance is None:
        return None
    if estimator.covariance_type != "tied":
        raise ValueError(
            'Expected covariance_type="tied" with a fixed_covariance, got '
            f"{estimator.covariance_type!r}. It is shared by all components."
        )
    if estimator.precisions_init is not None:
        raise ValueError(
            "Expected precisions_init=None with a fixed_covariance, got both. Give one."
        )
    fixed = check_shape("fixed_covariance", estimator.fixed_covariance, (d, d))
    _check_positive_definite("fixed_covariance", fixed)
    return fixed


def _check_sizes_of_fit(estimator, n_features):
    """Raise if there are other numbers of components or features than in the last fit."""
    names, fitted = ("n_components", "n_features"), estimator.means_.shape
    for name, before, now in zip(names, fitted, (estimator.n_components, n_features), strict=True):
        if now != before:
            raise ValueError(
                f"Expected {name}={before}, as in the last fit, got {now}. {TO_BEGIN_ANEW}"
            )


def _inverses_of_precisions(estimator, d):
    """Covariances that the validated ``precisions_init`` give, or None."""
    if estimator.precisions_init is None:
        return None
    size = estimator.n_components
    shapes = {"full": (size, d, d), "tied": (d, d), "diag": (size, d), "spherical": (size,)}
    shape = shapes[estimator.covariance_type]
    precisions = check_shape("precisions_init", estimator.precisions_init, shape)
    if estimator.covariance_type in ("full", "tied"):
        _check_positive_definite("precisions_init", precisions)
        whitening = whiten(precisions)
        return np.swapaxes(whitening, -1, -2) @ whitening
    if (precisions <= 0).any():
        raise ValueError(
            f"Expected positive precisions_init, got {precisions.min():.3g}. They are inverses of "
            "variances: give 1 / variance."
        )
    return 1 / precisions


def _check_positive_definite(name, matrices):
    expected = f"Expected {name} to be symmetric and positive definite"
    transposed = np.swapaxes(matrices, -1, -2)
    if not np.allclose(matrices, transposed):
        apart = np.abs(matrices - transposed).max()
        raise ValueError(
            f"{expected}, got entries that are {apart:.3g} from those across the diagonal. Give "
            "the mean of the matrix and its transpose."
        )
    smallest = np.linalg.eigvalsh(matrices).min()
    if smallest <= 0:
        raise ValueError(
            f"{expected}, got the eigenvalue {smallest:.3g}. Drop features that are constant or "
            "follow from others, or add a positive number to the diagonal."
        )


def start_run(model, federation, init_params, given, seed, cost):
    """Start of a run: Ŝ_0, the parameters of the first broadcast, and what was sent.

    Parameters
    ----------
    model : GaussianMixtureModel
    federation : Federation
    init_params : str
    given : Given
    seed : int
    cost : (int, int)
        Bits sent before, up and down.

    Returns
    -------
    start : Start
    """
    weights, means, covariances = in_standard_units(
        model, given.weights, given.means, given.covariances
    )
    if given.fixed_covariance is not None:
        covariances = model.fixed_covariance
    uplink, downlink = cost
    if weights is None or means is None or covariances is None:
        how = init_params if given.means is None else given.means
        first = assign(model, federation, how, seed)
        uplink, downlink = uplink + first.uplink_bits, downlink + first.downlink_bits
        parameters = model.maximization(first.statistics)
        if given.weights is None and given.means is None and given.covariances is None:
            return Start(first.statistics, parameters, uplink, downlink)
        weights = parameters.weights if weights is None else weights
        means = parameters.means if means is None else means
        covariances = parameters.covariances if covariances is None else covariances
    parameters = model.parameters(weights, means, covariances)
    statistics, n_passes = model.statistics_of(parameters), 0
    if not in_domain(model, statistics):
        # No data has these means under this covariance: what the clients' data have, then.
        statistics, n_passes = expected_statistics(model, federation, parameters), 1
        uplink += FLOAT_BITS * federation.n_clients * model.n_statistics
    # θ, which does not follow from Ŝ_0.
    downlink += FLOAT_BITS * federation.n_clients * model.n_statistics
    return Start(statistics, parameters, uplink, downlink, n_passes)


def expected_statistics(model, federation, parameters):
    """Σ_i w_i s̄_i(θ)."""
    every = np.arange(federation.n_clients)
    statistics = np.zeros(model.n_statistics)
    row_weights = federation.weights / federation.totals
    for run, rows, lengths, weights in read(federation, every, model.block_rows):
        sums = model.expectation(parameters.natural, model.features(rows), lengths, weights)
        statistics += row_weights[run] @ sums.statistics
    return statistics
