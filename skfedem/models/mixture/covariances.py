"""Covariance types of a mixture: the functions in which "full", "tied", "diag", "spherical" differ.

With the sufficient functions ``f(y) = (1, y, squares(y))`` of a row y in standard units, and its
posterior probability ``r_g(y)`` of component g, the statistic of the row is ``r_g(y) f(y)`` for
every g (Appendix F.1 of the paper).

================  ==========================================  ============================
covariance_type   ``squares(y)``                              known to the server
================  ==========================================  ============================
full              y_j y_l for j <= l
tied                                                          second moment of the rows
diag              y_j²
spherical         ||y||²
================  ==========================================  ============================

A new type is a class with what differs from its base, and an entry in ``COVARIANCES``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..._serialization import serializable
from ..._typing import CovarianceType, FloatArray
from ..client_rows import sum_of_rows
from .linear_algebra import (
    ROUNDING,
    block_matrices,
    flat_upper_indices,
    inverse_triangular,
    n_moments,
    nearest_semidefinite,
    outer,
    packed_indices,
    unpack,
    upper_indices,
)

# Below this weight, rounding errors of a component's moments may exceed ROUNDING.
_RARE = 0.01
NOT_POSITIVE_DEFINITE = (
    "Expected positive definite covariances, got one that is not: a feature is constant or a sum "
    "of others, a component has collapsed on too few or too similar rows, or outliers are so far "
    "away that the differences between other rows are lost to rounding. Increase reg_covar, "
    "decrease n_components, drop dependent features, or look for outliers."
)


class CovarianceStructure:
    """One matrix for each component: "full", of which the other types are special cases.

    Arrays of covariances have scikit-learn's shape for the type. For matrices, their Cholesky
    factors are lower-triangular L with L Lᵀ = Σ; for variances, these are standard deviations.
    """

    has_matrices = True  # as opposed to variances along the axes, which must not be rotated
    is_shared = False  # by all components
    is_isotropic = False  # the same variance along all axes

    def shape(self, n_components: int, d: int) -> tuple[int, ...]:
        """Shape of the covariances."""
        axes = (d, d) if self.has_matrices else () if self.is_isotropic else (d,)
        return axes if self.is_shared else (n_components, *axes)

    def n_parameters(self, n_components: int, d: int) -> int:
        """Number of free parameters of the covariances."""
        size = math.prod(self.shape(n_components, d))
        return size * (d + 1) // (2 * d) if self.has_matrices else size

    # ---- statistics

    def n_squares(self, d: int) -> int:
        """Number of functions ``squares(y)``: none if shared, as they cancel in the posterior."""
        return 0 if self.is_shared else 1 if self.is_isotropic else n_moments(d, self.has_matrices)

    def squares(self, y: FloatArray, out: FloatArray) -> None:
        """Fill in ``squares(y)`` of rows y (d, n_rows), shape (n_squares, n_rows)."""
        start, d = 0, len(y)
        for j in range(d):
            np.multiply(y[j:], y[j], out=out[start : start + d - j])
            start += d - j

    def scatter(self, mass: FloatArray, means: FloatArray, second: FloatArray) -> FloatArray:
        """Covariances of components with these masses, means and second moments.

        ``second`` is the mean of ``squares(y)`` in each component; if shared, E[y yᵀ] of all rows.
        """
        return unpack(second, means.shape[1]) - outer(means, means)

    def second_moments(self, means: FloatArray, scatter: FloatArray | float) -> FloatArray:
        """Means of ``squares(y)`` in components with these means and covariances."""
        return (scatter + outer(means, means))[:, *upper_indices(means.shape[1])]

    def coefficients(self, precisions: FloatArray) -> FloatArray:
        """Coefficients of ``squares(y)`` in ``-½ yᵀ Σ⁻¹ y``; unless shared."""
        # y_j y_l with j < l stands for both off-diagonal entries.
        d = precisions.shape[-1]
        return (precisions * (0.5 * np.eye(d) - 1.0))[:, *upper_indices(d)]

    # ---- covariances

    def variances(self, covariances: FloatArray) -> FloatArray:
        """Variances along the axes."""
        return np.diagonal(covariances, axis1=-2, axis2=-1)

    def is_positive_definite(self, covariances: FloatArray) -> bool:
        """Whether all variances are positive; for variances along the axes, up to rounding."""
        try:
            np.linalg.cholesky(covariances)
        except np.linalg.LinAlgError:
            return False
        return True

    def cholesky_and_inverse(self, covariances: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Cholesky factors and their inverses; raise LinAlgError if there are none."""
        try:
            factors: Any = np.linalg.cholesky(covariances)
        except np.linalg.LinAlgError:
            raise np.linalg.LinAlgError(NOT_POSITIVE_DEFINITE) from None
        return factors, inverse_triangular(factors, lower=True)

    def without_negative_variance(self, scatter: FloatArray, mass: FloatArray) -> FloatArray:
        """Covariances without variances that are negative due to rounding; unless shared."""
        if mass.min() < _RARE:  # divided by a small mass, they may exceed the regularisation
            rare = mass < _RARE
            scatter[rare] = nearest_semidefinite(scatter[rare])
        return scatter

    def regularization(self, reg_covar: FloatArray, means: FloatArray) -> FloatArray:
        """``reg_covar`` plus the rounding error of the second moments."""
        # The sum: the smallest eigenvalue of reg_covar may be far below its diagonal here.
        rounding = ROUNDING * (1 + means**2)
        return reg_covar + rounding[:, :, None] * np.eye(means.shape[1])

    def log_density(
        self, means: FloatArray, inverse_cholesky: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray | float]:
        """Σ⁻¹, Σ⁻¹ μ, μᵀ Σ⁻¹ μ, and the log-density at the mean, ``½ log det(Σ⁻¹ / 2π)``."""
        precisions = self.precisions(np.swapaxes(inverse_cholesky, -1, -2))
        linear = (precisions @ means[:, :, None])[:, :, 0]
        quadratic = (self.whiten(means, inverse_cholesky) ** 2).sum(axis=1)
        log_height = np.log(self.variances(inverse_cholesky)).sum(axis=-1)
        log_height = log_height - 0.5 * means.shape[1] * np.log(2 * np.pi)
        return precisions, linear, quadratic, log_height

    def precisions(self, precisions_cholesky: FloatArray) -> FloatArray:
        """Precisions from P with P Pᵀ = Σ⁻¹, or from inverse standard deviations."""
        return precisions_cholesky @ np.swapaxes(precisions_cholesky, -1, -2)

    # ---- affine maps

    def whiten(self, means: FloatArray, inverse_cholesky: FloatArray) -> FloatArray:
        """``L⁻¹ μ`` of each component."""
        return (inverse_cholesky @ means[:, :, None])[:, :, 0]

    def affine(self, shift: FloatArray, scale: FloatArray) -> Any:
        """Argument of ``map_moments`` for the maps ``shift + scale y`` of the components."""
        d = shift.shape[1]
        return block_matrices(1.0, np.zeros_like(shift), shift, scale.reshape(-1, d, d))

    def map_moments(self, matrices: Any, moments: FloatArray) -> None:
        """Map the moments of rows, shape (n_tiles, n, n_components, n_functions), in place.

        Here, ``M U Mᵀ``, where U is the moment of (1, y), given by its upper triangle.
        """
        size = matrices.shape[1]
        packed, upper = packed_indices(size), flat_upper_indices(size)
        # One component fits into the cache; with clients on the last axis, products are large.
        for tile in moments:
            for component, matrix in enumerate(matrices):
                own = tile[:, component].T.take(packed, axis=0)
                own = (matrix @ own.reshape(size, -1)).reshape(own.shape)
                own = matrix @ np.swapaxes(own, 0, 1).reshape(size, -1)
                tile[:, component] = own.reshape(size * size, -1).take(upper, axis=0).T


class _Tied(CovarianceStructure):
    """One matrix for all components: E[y yᵀ] of all rows minus that of the means."""

    is_shared = True

    def scatter(self, mass: FloatArray, means: FloatArray, second: FloatArray) -> FloatArray:
        return second - (mass[:, None] * means).T @ means

    def second_moments(self, means: FloatArray, scatter: FloatArray | float) -> FloatArray:
        return np.empty((len(means), 0))

    def regularization(self, reg_covar: FloatArray, means: FloatArray) -> FloatArray:
        return reg_covar + ROUNDING * np.eye(means.shape[1])

    def map_moments(self, matrices: Any, moments: FloatArray) -> None:
        """``M u``, where u is the mean of (1, y)."""
        # matmul with a transposed second factor is slow.
        transposed = np.swapaxes(matrices, 1, 2).copy()
        by_component = np.swapaxes(moments, 1, 2)
        np.matmul(by_component, transposed, out=by_component)


class _Diagonal(CovarianceStructure):
    """One variance for each component and axis."""

    has_matrices = False

    def squares(self, y: FloatArray, out: FloatArray) -> None:
        np.square(y, out=out)

    def scatter(self, mass: FloatArray, means: FloatArray, second: FloatArray) -> FloatArray:
        return second - means**2

    def second_moments(self, means: FloatArray, scatter: FloatArray | float) -> FloatArray:
        return scatter + means**2

    def coefficients(self, precisions: FloatArray) -> FloatArray:
        return -0.5 * precisions

    def variances(self, covariances: FloatArray) -> FloatArray:
        return covariances

    def is_positive_definite(self, covariances: FloatArray) -> bool:
        return bool((covariances + ROUNDING > 0).all())

    def cholesky_and_inverse(self, covariances: FloatArray) -> tuple[FloatArray, FloatArray]:
        deviations = np.sqrt(covariances)
        return deviations, 1 / deviations

    def without_negative_variance(self, scatter: FloatArray, mass: FloatArray) -> FloatArray:
        return np.maximum(scatter, 0)

    def regularization(self, reg_covar: FloatArray, means: FloatArray) -> FloatArray:
        """The larger of ``reg_covar`` and the rounding error of the second moments."""
        return np.maximum(reg_covar, ROUNDING * (1 + means**2))

    def log_density(
        self, means: FloatArray, inverse_cholesky: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray | float]:
        precisions = self.precisions(inverse_cholesky).reshape(len(means), -1)
        linear = precisions * means
        heights = np.log(np.broadcast_to(precisions, means.shape) / (2 * np.pi))
        return precisions, linear, (linear * means).sum(axis=1), 0.5 * heights.sum(axis=1)

    def precisions(self, precisions_cholesky: FloatArray) -> FloatArray:
        return precisions_cholesky**2

    def whiten(self, means: FloatArray, inverse_cholesky: FloatArray) -> FloatArray:
        return inverse_cholesky.reshape(len(means), -1) * means

    def affine(self, shift: FloatArray, scale: FloatArray) -> Any:
        """Shift, and factors 1, scale and scale² of the moments."""
        n_components, d = shift.shape
        scale, factors = scale.reshape(n_components, -1), np.ones((n_components, 1 + d))
        factors[:, 1:] = scale
        squares = np.broadcast_to(scale**2, (n_components, self.n_squares(d)))
        return shift, np.hstack([factors, squares])

    def map_moments(self, axes: Any, moments: FloatArray) -> None:
        """Mass, first and second moments; the sum of the latter if all axes have one variance."""
        (shift, factors), d = axes, axes[0].shape[1]
        moments *= factors
        mass, first, second = moments[..., :1], moments[..., 1 : 1 + d], moments[..., 1 + d :]
        # (shift + x)² = x² + shift (x + (shift + x))
        mixed = first.copy()
        first += mass * shift
        mixed += first
        mixed *= shift
        second += mixed.sum(axis=-1, keepdims=True) if self.is_isotropic else mixed


class _Spherical(_Diagonal):
    """One variance for each component."""

    is_isotropic = True

    def squares(self, y: FloatArray, out: FloatArray) -> None:
        out[0] = sum_of_rows(np.square(y))

    def scatter(self, mass: FloatArray, means: FloatArray, second: FloatArray) -> FloatArray:
        return (second[:, 0] - (means**2).sum(axis=1)) / means.shape[1]

    def second_moments(self, means: FloatArray, scatter: FloatArray | float) -> FloatArray:
        return (means.shape[1] * scatter + (means**2).sum(axis=1))[:, None]

    def regularization(self, reg_covar: FloatArray, means: FloatArray) -> FloatArray:
        return np.maximum(reg_covar, (ROUNDING * (1 + means**2)).mean(axis=1))


COVARIANCES: dict[CovarianceType, CovarianceStructure] = {
    "full": CovarianceStructure(),
    "tied": _Tied(),
    "diag": _Diagonal(),
    "spherical": _Spherical(),
}
for _structure in COVARIANCES.values():
    serializable(type(_structure))
