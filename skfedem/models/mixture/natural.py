"""Natural parameter φ(θ) of a mixture, and ψ(θ).

``φ(θ) f(y)`` is, up to a constant, the log of a component's weight times its density at a row y.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..._typing import FloatArray
from .covariances import MATRICES, upper

if TYPE_CHECKING:
    from .gaussian_mixture import GaussianMixtureModel


def natural_parameter(
    model: GaussianMixtureModel, weights: FloatArray, means: FloatArray, inverses: FloatArray
) -> tuple[FloatArray, float]:
    """φ(θ) as (n_components, n_functions), and ψ(θ), from weights, means and inverses of roots."""
    d = model.n_features
    density = _with_matrices if model.covariance_type in MATRICES else _with_variances
    precisions, linear, quadratic, log_height = density(means, inverses)
    log_partition = 0.0
    if model.covariance_type == "full":
        # y_j y_l with j < l stands for both off-diagonal entries.
        squares = (precisions * (0.5 * np.eye(d) - 1.0))[:, *upper(d)]
    elif model.covariance_type == "tied":
        squares = np.empty((model.n_components, 0))
        # The height is in ψ: in φ, it would be multiplied by the sum of the masses, which is noisy.
        log_height, log_partition = 0.0, -float(log_height)
        if model.second_moment is not None:  # in a stream it changes
            log_partition += 0.5 * float((precisions * model.second_moment).sum())
    else:
        squares = -0.5 * precisions
    log_weights = np.log(np.maximum(weights, np.finfo(np.float64).tiny))
    natural = np.empty((model.n_components, model.n_functions))
    natural[:, 0] = log_weights + log_height - 0.5 * quadratic
    natural[:, 1 : 1 + d], natural[:, 1 + d :] = linear, squares
    return natural, log_partition


def _with_matrices(
    means: FloatArray, whitening: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray | float]:
    """Σ⁻¹, ``Σ⁻¹ μ``, ``μᵀ Σ⁻¹ μ``, and the log-density at the mean, ``½ log det(Σ⁻¹ / 2π)``."""
    precisions = np.swapaxes(whitening, -1, -2) @ whitening
    linear = (precisions @ means[:, :, None])[:, :, 0]
    white_means = (whitening @ means[:, :, None])[:, :, 0]
    quadratic = (white_means**2).sum(axis=1)
    log_height = np.log(np.diagonal(whitening, axis1=-2, axis2=-1)).sum(axis=-1)
    log_height = log_height - 0.5 * means.shape[1] * np.log(2 * np.pi)
    return precisions, linear, quadratic, log_height


def _with_variances(
    means: FloatArray, inverses: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray | float]:
    """As ``_with_matrices``, with one precision for each axis or for all."""
    precisions = (inverses**2).reshape(len(means), -1)
    linear = precisions * means
    quadratic = (linear * means).sum(axis=1)
    log_height = 0.5 * np.log(np.broadcast_to(precisions, means.shape) / (2 * np.pi)).sum(axis=1)
    return precisions, linear, quadratic, log_height
