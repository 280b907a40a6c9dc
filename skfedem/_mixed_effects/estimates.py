"""Names and values of a population's estimates, and their standard errors."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from .._typing import FloatArray
from .._warnings import warn
from ..models.mixed_effects.maximization import Theta
from .design import Design
from .report import SiteSums

# Smallest eigenvalue of an information with ones on its diagonal that allows standard errors.
_SINGULAR = 1e-12


def names_of(design: Design) -> list[str]:
    """Names of all estimates, in the order of the information."""
    columns = ("", *design.covariates)
    names = [
        f"beta_{design.names[j]}_{columns[k]}" if k else design.names[j]
        for k, j in zip(*np.nonzero(design.mask), strict=True)
    ]
    for i, j in zip(*design.layout.of_covariance, strict=True):
        one, other = design.names[i], design.names[j]
        names.append(f"omega2_{one}" if i == j else f"cov_{one}_{other}")
    return names + [f"residual_{name}" for name in design.error.names]


def values_of(design: Design, natural: FloatArray) -> FloatArray:
    """Values of all estimates, of shape (..., n_estimates), from vectors (..., q)."""
    layout = design.layout
    coefficients, covariance, squares = layout.split(natural)
    rows, columns = np.nonzero(design.mask)
    of_means = coefficients[..., rows, columns].copy()
    for j, transform in enumerate(design.transforms.values()):
        of_means[..., j] = transform.to_subject(design.start[j] + of_means[..., j])
    parts = of_means, covariance[..., *layout.of_covariance], np.sqrt(squares)
    return np.concatenate(parts, axis=-1)


def standard_errors_of(design: Design, theta: Theta, information: FloatArray) -> FloatArray:
    """Standard errors of all estimates, by the delta method for the transformed ones.

    They are infinite, with a warning, if the information is singular.
    """
    scale = np.sqrt(np.diagonal(information))
    errors = np.full(len(scale), np.inf)
    is_usable = bool(np.isfinite(scale).all() and (scale > 0).all())
    if is_usable:
        values, vectors = np.linalg.eigh(information / scale / scale[:, None])
        is_usable = bool(values[0] > _SINGULAR)
    if not is_usable:
        warn(
            "The Fisher information is singular: the data do not determine all parameters, and "
            "standard errors are infinite. Use fewer parameters or covariates.",
            ConvergenceWarning,
        )
        return errors
    errors = np.sqrt((vectors**2 / values).sum(axis=1)) / scale
    for j, transform in enumerate(design.transforms.values()):
        phi = design.start[j] + theta.coefficients[0, j]
        errors[j] *= abs(float(transform.slope(phi)))
    return errors


def fitted_of(design: Design, theta: Theta) -> dict[str, Any]:
    """Fitted attributes that only depend on θ."""
    natural = design.layout.join(*theta)
    values = values_of(design, natural).tolist()
    p = len(design.names)
    return {
        "population_parameters_": dict(zip(design.names, values[:p], strict=True)),
        "coef_": theta.coefficients[1:].copy(),
        "random_effects_cov_": theta.covariance.copy(),
        "residual_": dict(zip(design.error.names, np.sqrt(theta.squares).tolist(), strict=True)),
        "_design": design,
        "_theta": theta,
    }


def shrinkage_of(design: Design, theta: Theta, sums: SiteSums) -> dict[str, float]:
    """``1 - Var(η̂) / ω²`` of each random effect."""
    mean = sums.effects / sums.n_subjects
    variance = sums.squared_effects / sums.n_subjects - mean**2
    shares = 1 - variance / np.diagonal(theta.covariance)
    return dict(zip(design.names, shares.tolist(), strict=True))


def variability_of(design: Design, theta: Theta) -> FloatArray:
    """Coefficient of variation of each parameter, in per cent.

    ``√(exp(ω²) - 1)`` for logarithms; otherwise ``ω |h'(φ)| / |ψ|`` to first order.
    """
    variances = np.diagonal(theta.covariance)
    shares = np.empty(len(variances))
    for j, transform in enumerate(design.transforms.values()):
        phi = design.start[j] + theta.coefficients[0, j]
        if transform.name == "log":
            shares[j] = np.sqrt(np.expm1(variances[j]))
        else:
            with np.errstate(divide="ignore"):
                slope = np.abs(transform.slope(phi) / transform.to_subject(phi))
            shares[j] = np.sqrt(variances[j]) * slope
    return 100 * shares
