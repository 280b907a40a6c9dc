"""Parameters of a mixture in standard units and in the rows' units."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..._typing import FloatArray, IntArray
from .covariances import MATRICES, inverses_of_triangles, triangle_of
from .units import ROUNDING

if TYPE_CHECKING:
    from .gaussian_mixture import GaussianMixtureModel

# Variances below this many rounding errors of a second moment are inaccurate.
_FAITHFUL = 10

_Cases = list[tuple[FloatArray, FloatArray, FloatArray | float]]


class Parameters(NamedTuple):
    """Parameters θ of a mixture, in standard units, with φ(θ) and ψ(θ).

    Attributes
    ----------
    weights : ndarray of shape (n_components,)
    means : ndarray of shape (n_components, n_features)
    covariances : ndarray
        Of scikit-learn's shape for the covariance type.
    natural : ndarray of shape (n_statistics,)
        φ(θ), one coefficient for each coordinate of the statistic.
    log_partition : float
        ψ(θ) in nats; 0 if it is part of φ.
    roots, inverses : ndarray
        Lower-triangular L with L Lᵀ = Σ, and L⁻¹, for each covariance matrix; standard deviations
        and their inverses for "diag" and "spherical". Of the covariances' shape.
    """

    weights: FloatArray
    means: FloatArray
    covariances: FloatArray
    natural: FloatArray
    log_partition: float
    roots: FloatArray
    inverses: FloatArray


def in_row_units(
    model: GaussianMixtureModel, parameters: Parameters
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Weights, means, covariances and square roots of precisions in the rows' units.

    All are new arrays. The roots have scikit-learn's shape: upper-triangular P with P Pᵀ = Σ⁻¹ for
    "full" and "tied", else inverse standard deviations.
    """
    weights, means = parameters.weights.copy(), model.units.means_to_rows(parameters.means)
    if model.covariance_type not in MATRICES:
        variances = parameters.covariances * squared_scale(model)
        return weights, means, variances, 1 / np.sqrt(variances)
    # From the roots in standard units: in the rows' units, a covariance may be singular up to
    # rounding.
    roots = model.units.unmixing @ np.swapaxes(parameters.inverses, -1, -2)
    upper = triangle_of(roots[..., ::-1, :])[..., ::-1, ::-1]
    # Pickling does not preserve other layouts, on which the rounding of BLAS depends.
    precisions_cholesky = np.ascontiguousarray(upper)
    # Computed from the roots of the precisions, covariances are inverses of the precisions, and
    # symmetric, even if the features have very different units.
    roots = inverses_of_triangles(precisions_cholesky, lower=False)
    return weights, means, np.swapaxes(roots, -1, -2) @ roots, precisions_cholesky


def lost_in_rounding(model: GaussianMixtureModel, parameters: Parameters) -> IntArray:
    """Indices of components with a variance of about the size of rounding errors.

    Rows are so far apart that their second moments do not determine the variance, and ``reg_covar``
    is smaller than the rounding errors.
    """
    if model.reg_covar == 0 or model.fixed_covariance is not None:
        return np.empty(0, dtype=np.intp)  # not estimated, or refused by the M-step
    means, covariances, varies = parameters.means, parameters.covariances, model.units.varies
    rounding = ROUNDING * (1 + means[:, varies] ** 2)
    if model.covariance_type == "diag":
        cases: _Cases = [(covariances[:, varies], rounding, model.given_regularization[varies])]
    elif model.covariance_type == "spherical":
        # The mean over all features: perhaps none of them varies.
        rounding = rounding.sum(axis=1, keepdims=True) / model.n_features
        cases = [(covariances[:, None], rounding, model.given_regularization)]
    else:
        variances, axes = np.linalg.eigh(covariances[..., varies, :][..., varies])
        matrix = model.given_regularization[varies, :][:, varies]
        given = (axes * (matrix @ axes)).sum(axis=-2)
        along_axes = variances, rounding.max(axis=1, keepdims=True, initial=0), given
        # If axes mix features in different units, reg_covar may be large along axes but smaller
        # than the rounding errors of features in large units.
        mixing = model.units.mixing
        variances = np.square(mixing.T @ parameters.roots).sum(axis=-1)
        of_features = variances, rounding @ np.square(mixing[varies]), model.reg_covar
        cases = [along_axes, of_features]
    is_lost = [
        ((variances < _FAITHFUL * rounding) & (given < rounding)).any(axis=1)
        for variances, rounding, given in cases
    ]
    return np.flatnonzero(np.any(is_lost, axis=0))


def in_standard_units(
    model: GaussianMixtureModel,
    weights: FloatArray | None,
    means: FloatArray | None,
    covariances: FloatArray | None,
) -> tuple[FloatArray | None, FloatArray | None, FloatArray | None]:
    """Weights, means and covariances in standard units, as new arrays.

    None stays None.
    """
    if weights is not None:
        weights = weights.copy()
    if means is not None:
        means = model.units.means_to_standard(means)
    if covariances is not None:
        covariances = covariances_to_standard(model, covariances)
    return weights, means, covariances


def covariances_to_standard(model: GaussianMixtureModel, covariances: FloatArray) -> FloatArray:
    """Covariances in standard units, from those in the rows' units."""
    if model.covariance_type in MATRICES:
        return model.units.matrices_to_standard(covariances)
    return covariances / squared_scale(model)


def squared_scale(model: GaussianMixtureModel) -> FloatArray | float:
    """Ratio of variances in the rows' units to standard units: of each feature, or of all."""
    squares = model.units.scale**2
    return squares if model.covariance_type == "diag" else squares[0]
