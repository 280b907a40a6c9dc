"""Parameters of a mixture in standard units and in the rows' units."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..._serialization import serializable
from ..._typing import FloatArray
from .covariances import CovarianceStructure
from .linear_algebra import inverse_triangular, lq_factor
from .units import Units


@serializable
class Parameters(NamedTuple):
    """Parameters θ of a mixture, in standard units, with φ(θ) and ψ(θ)."""

    weights: FloatArray
    means: FloatArray
    covariances: FloatArray  # of scikit-learn's shape for the covariance type
    natural: FloatArray  # φ(θ), one coefficient for each coordinate of the statistic
    log_partition: float  # ψ(θ) in nats; 0 if it is part of φ
    cholesky: FloatArray  # of the covariances, see ``CovarianceStructure``
    inverse_cholesky: FloatArray


def natural_parameter(
    structure: CovarianceStructure,
    weights: FloatArray,
    means: FloatArray,
    inverse_cholesky: FloatArray,
    second_moment: FloatArray | None,
) -> tuple[FloatArray, float]:
    """φ(θ), flattened, and ψ(θ); ``second_moment`` is that of all rows if the server knows it.

    ``φ(θ) f(y)`` is, up to a constant, the log of a component's weight times its density at a row.
    """
    n_components, d = means.shape
    precisions, linear, quadratic, log_height = structure.log_density(means, inverse_cholesky)
    natural = np.empty((n_components, 1 + d + structure.n_squares(d)))
    log_partition = 0.0
    if not structure.is_shared:
        natural[:, 1 + d :] = structure.coefficients(precisions)
    else:
        # The height is in ψ: in φ, it would be multiplied by the sum of the masses, which is noisy.
        log_height, log_partition = 0.0, -float(log_height)
        if second_moment is not None:  # in a stream it changes
            log_partition += 0.5 * float((precisions * second_moment).sum())
    log_weights = np.log(np.maximum(weights, np.finfo(np.float64).tiny))
    natural[:, 0] = log_weights + log_height - 0.5 * quadratic
    natural[:, 1 : 1 + d] = linear
    return natural.ravel(), log_partition


def in_row_units(
    units: Units, parameters: Parameters
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Weights, means, covariances and scikit-learn's ``precisions_cholesky_`` in the rows' units.

    All are new arrays.
    """
    weights, means = parameters.weights.copy(), units.means_to_rows(parameters.means)
    if not units.structure.has_matrices:
        variances = parameters.covariances * units.squared_scale
        return weights, means, variances, 1 / np.sqrt(variances)
    # From the factors in standard units: in the rows' units, a covariance may be singular up to
    # rounding.
    factors = units.whitening @ np.swapaxes(parameters.inverse_cholesky, -1, -2)
    upper = lq_factor(factors[..., ::-1, :])[..., ::-1, ::-1]
    # Pickling does not preserve other layouts, on which the rounding of BLAS depends.
    precisions_cholesky = np.ascontiguousarray(upper)
    # Computed from the factors of the precisions, covariances are inverses of the precisions, and
    # symmetric, even if the features have very different units.
    factors = inverse_triangular(precisions_cholesky, lower=False)
    return weights, means, np.swapaxes(factors, -1, -2) @ factors, precisions_cholesky


def in_standard_units(
    units: Units,
    weights: FloatArray | None,
    means: FloatArray | None,
    covariances: FloatArray | None,
) -> tuple[FloatArray | None, FloatArray | None, FloatArray | None]:
    """Weights, means and covariances in standard units, as new arrays; None stays None."""
    return (
        None if weights is None else weights.copy(),
        None if means is None else units.means_to_standard(means),
        None if covariances is None else units.covariances_to_standard(covariances),
    )
