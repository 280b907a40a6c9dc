"""Natural parameter φ(θ) of a mixture, and ψ(θ).

``φ(θ) f(y)`` is, up to a constant, the log of a component's weight times its density at a row y.
"""

from __future__ import annotations

import numpy as np

from .covariances import MATRICES, upper


def natural_parameter(model, weights, means, inverses):
    """φ(θ) as (n_components, n_functions), and ψ(θ), from weights, means and inverses of roots."""
    d = model.n_features
    has_matrices = model.covariance_type in MATRICES
    log_density = _of_matrices if has_matrices else _of_variances
    linear, squares, quadratic, log_height, log_partition = log_density(model, means, inverses)
    natural = np.empty((model.n_components, model.n_functions))
    natural[:, 1 : 1 + d], natural[:, 1 + d :] = linear, squares
    log_weights = np.log(np.maximum(weights, np.finfo(np.float64).tiny))
    natural[:, 0] = log_weights + log_height - 0.5 * quadratic
    return natural, log_partition


def _of_matrices(model, means, whitening):
    """Coefficients of the components' log-densities.

    Returns
    -------
    linear : ndarray of shape (n_components, n_features)
        Coefficients of y.
    squares : ndarray of shape (n_components, n_functions - 1 - n_features)
        Coefficients of the functions after y.
    quadratic : ndarray of shape (n_components,)
        ``μᵀ Σ⁻¹ μ``.
    log_height : ndarray of shape (n_components,), or 0.0
        Log-density at the mean, ``½ log det(Σ⁻¹ / 2π)``, unless it is in ψ(θ).
    log_partition : float
        ψ(θ).
    """
    d = model.n_features
    log_height = np.log(np.diagonal(whitening, axis1=-2, axis2=-1)).sum(axis=-1)
    log_height = log_height - 0.5 * d * np.log(2 * np.pi)
    precisions = np.swapaxes(whitening, -1, -2) @ whitening
    white_means = (whitening @ means[:, :, None])[:, :, 0]
    quadratic = (white_means**2).sum(axis=1)
    linear = (precisions @ means[:, :, None])[:, :, 0]
    if model.covariance_type == "full":
        # y_j y_l with j < l stands for both off-diagonal entries.
        precisions = precisions * (0.5 * np.eye(d) - 1.0)
        squares = precisions[:, *upper(d)]
        return linear, squares, quadratic, log_height, 0.0
    # The height is in ψ: in φ, it would be multiplied by the sum of the masses, which is noisy.
    log_partition = -float(log_height)
    if model.second_moment is not None:  # in a stream it changes
        log_partition += 0.5 * float((precisions * model.second_moment).sum())
    no_squares = np.empty((model.n_components, 0))
    return linear, no_squares, quadratic, 0.0, log_partition


def _of_variances(model, means, inverses):
    """Coefficients as in ``_of_matrices``, for "diag" and "spherical"."""
    precisions = inverses**2
    if model.covariance_type == "spherical":
        precisions = precisions[:, None]
    linear = precisions * means
    quadratic = (linear * means).sum(axis=1)
    log_height = 0.5 * np.log(np.broadcast_to(precisions, means.shape) / (2 * np.pi)).sum(axis=1)
    return linear, -0.5 * precisions, quadratic, log_height, 0.0
