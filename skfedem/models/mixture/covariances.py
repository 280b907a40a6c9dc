"""Roots and packed form of one or several covariance matrices."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from scipy.linalg import lapack

from ..._typing import CovarianceType, FloatArray, IntArray

# Covariance types with full matrices; the others have variances along the axes.
MATRICES = ("full", "tied")
COLLAPSED = (
    "Expected positive definite covariances, got one that is not: a feature is constant or a sum "
    "of others, a component has collapsed on too few or too similar rows, or outliers are so far "
    "away that the differences between other rows are lost to rounding. Increase reg_covar, "
    "decrease n_components, drop dependent features, or look for outliers."
)


def roots_and_inverses(
    covariance_type: CovarianceType, covariances: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Lower-triangular L with L Lᵀ = Σ, and inverses; standard deviations if Σ is diagonal.

    Both have the shape of the covariances.

    Raises
    ------
    LinAlgError
        If a covariance matrix is not positive definite.
    """
    if covariance_type not in MATRICES:
        deviations = np.sqrt(covariances)
        return deviations, 1 / deviations
    roots = cholesky(covariances)
    if roots is None:
        raise np.linalg.LinAlgError(COLLAPSED)
    return roots, inverses_of_triangles(roots, lower=True)


def variances_of(covariance_type: CovarianceType, covariances: FloatArray) -> FloatArray:
    """Variances along the axes, which are the diagonals of covariance matrices."""
    has_matrices = covariance_type in MATRICES
    return np.diagonal(covariances, axis1=-2, axis2=-1) if has_matrices else covariances


def cholesky(matrices: FloatArray) -> FloatArray | None:
    """Lower-triangular Cholesky factors of matrices (..., d, d); None if one has none."""
    try:
        lower: Any = np.linalg.cholesky(matrices)
    except np.linalg.LinAlgError:
        return None
    return lower


def inverses_of_triangles(triangles: FloatArray, *, lower: bool) -> FloatArray:
    """Inverses of triangular matrices (..., d, d), lower or upper ones, with a nonzero diagonal."""
    stack = triangles.reshape(-1, *triangles.shape[-2:])
    inverses = [lapack.dtrtri(triangle, lower=lower)[0] for triangle in stack]
    return np.reshape(inverses, triangles.shape)


def triangle_of(matrices: FloatArray) -> FloatArray:
    """Lower-triangular L with L Lᵀ = M Mᵀ and a positive diagonal, for matrices M (..., d, d)."""
    # M = L Q with Q orthogonal, from the QR decomposition of the transpose. Q may permute columns:
    # in decreasing order, QR keeps the digits of the smallest as well.
    order = np.argsort(-np.abs(matrices).max(axis=-2), axis=-1, kind="stable")
    ordered = np.take_along_axis(matrices, order[..., None, :], axis=-1)
    lower = np.swapaxes(np.linalg.qr(np.swapaxes(ordered, -1, -2), mode="r"), -1, -2)
    return lower * np.sign(np.diagonal(lower, axis1=-2, axis2=-1))[..., None, :]


def without_negative_variance(matrices: FloatArray) -> FloatArray:
    """Nearest positive semi-definite matrices to symmetric matrices (n, d, d)."""
    variances, axes = np.linalg.eigh(matrices)
    if (variances >= 0).all():
        return matrices
    return (axes * np.maximum(variances, 0)[:, None, :]) @ np.swapaxes(axes, 1, 2)


@lru_cache(8)
def upper(d: int) -> tuple[IntArray, IntArray]:
    """Rows and columns of the upper triangle of a (d, d) matrix, row by row."""
    return np.triu_indices(d)


@lru_cache(8)
def upper_places(d: int) -> IntArray:
    """Positions of the upper triangle in a flattened (d, d) matrix, row by row."""
    return np.ravel_multi_index(upper(d), (d, d))


@lru_cache(8)
def packed(d: int) -> IntArray:
    """Position in the upper triangle of each entry of a symmetric (d, d) matrix."""
    places = np.empty((d, d), dtype=np.intp)
    places[upper(d)] = places.T[upper(d)] = np.arange(d * (d + 1) // 2)
    return places


def unpack(triangles: FloatArray, d: int) -> FloatArray:
    """Symmetric (n, d, d) matrices from their upper triangles, row by row."""
    return triangles.take(packed(d), axis=1)
