"""Natural parameter φ(θ) of a mixture, and ψ(θ).

``φ(θ) f(y)`` is, but for a constant, the log of a component's weight times its density in a row y.
"""

from __future__ import annotations

import numpy as np

from .covariances import upper, whiten


def natural_parameter(model, weights, means, covariances):
    """φ(θ) as (n_components, n_functions), and ψ(θ), from weights, means and covariances."""
    d = model.n_features
    has_matrices = model.covariance_type in ("full", "tied")
    log_density = _of_matrices if has_matrices else _of_variances
    linear, squares, quadratic, half_log_det, log_partition = log_density(model, means, covariances)
    natural = np.empty((model.n_components, model.n_functions))
    natural[:, 1 : 1 + d], natural[:, 1 + d :] = linear, squares
    natural[:, 0] = (
        np.log(np.maximum(weights, np.finfo(np.float64).tiny))
        + half_log_det
        - 0.5 * quadratic
        - 0.5 * d * np.log(2 * np.pi)
    )
    return natural, log_partition


def _of_matrices(model, means, covariances):
    """What the log-densities of the components are made of.

    Returns
    -------
    linear : ndarray of shape (n_components, n_features)
        Coefficients of y.
    squares : ndarray of shape (n_components, n_functions - 1 - n_features)
        Coefficients of the functions after it.
    quadratic : ndarray of shape (n_components,)
        ``μᵀ Σ⁻¹ μ``.
    half_log_det : ndarray of shape (n_components,), or float
        Half of the log-determinant of Σ⁻¹.
    log_partition : float
        ψ(θ).
    """
    d = model.n_features
    whitening = whiten(covariances)
    half_log_det = np.log(np.diagonal(whitening, axis1=-2, axis2=-1)).sum(axis=-1)
    precisions = np.swapaxes(whitening, -1, -2) @ whitening
    white_means = (whitening @ means[:, :, None])[:, :, 0]
    quadratic = (white_means**2).sum(axis=1)
    linear = (precisions @ means[:, :, None])[:, :, 0]
    if model.covariance_type == "full":
        # y_j y_l with j < l stands for both off-diagonal entries.
        precisions = precisions * (0.5 * np.eye(d) - 1.0)
        squares = precisions[:, *upper(d)]
        return linear, squares, quadratic, half_log_det, 0.0
    # The determinant and the constant are not in φ: they would be multiplied by the sum of the
    # masses, which noise moves. What is given for the former cancels the latter.
    log_partition = 0.5 * float((precisions * model.second_moment).sum())
    log_partition += 0.5 * d * np.log(2 * np.pi) - float(half_log_det)
    no_squares = np.empty((model.n_components, 0))
    return linear, no_squares, quadratic, 0.5 * d * np.log(2 * np.pi), log_partition


def _of_variances(model, means, covariances):
    """The same for variances alone, see ``_of_matrices``."""
    precisions = 1.0 / covariances
    if model.covariance_type == "spherical":
        precisions = precisions[:, None]
    linear = precisions * means
    quadratic = (linear * means).sum(axis=1)
    half_log_det = 0.5 * np.log(np.broadcast_to(precisions, means.shape)).sum(axis=1)
    return linear, -0.5 * precisions, quadratic, half_log_det, 0.0
