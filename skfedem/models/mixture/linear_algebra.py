"""Triangular factors and packed symmetric matrices."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy.linalg import lapack

from ..._typing import FloatArray, IntArray

# Rounding error of a moment in standard units, and thus the accuracy of masses and variances.
ROUNDING = 64 * np.finfo(np.float64).eps


def inverse_triangular(triangles: FloatArray, *, lower: bool) -> FloatArray:
    """Inverses of triangular matrices (..., d, d), lower or upper ones, with a nonzero diagonal."""
    stack = triangles.reshape(-1, *triangles.shape[-2:])
    inverses = [lapack.dtrtri(triangle, lower=lower)[0] for triangle in stack]
    return np.reshape(inverses, triangles.shape)


def lq_factor(matrices: FloatArray) -> FloatArray:
    """Lower-triangular L with L Lᵀ = M Mᵀ and a positive diagonal, for matrices M (..., d, d)."""
    # M = L Q with Q orthogonal, from the QR decomposition of the transpose. Q may permute columns:
    # in decreasing order, QR keeps the digits of the smallest as well.
    order = np.argsort(-np.abs(matrices).max(axis=-2), axis=-1, kind="stable")
    ordered = np.take_along_axis(matrices, order[..., None, :], axis=-1)
    lower = np.swapaxes(np.linalg.qr(np.swapaxes(ordered, -1, -2), mode="r"), -1, -2)
    return lower * np.sign(np.diagonal(lower, axis1=-2, axis2=-1))[..., None, :]


def nearest_semidefinite(matrices: FloatArray) -> FloatArray:
    """Nearest positive semi-definite matrices to symmetric matrices (n, d, d)."""
    variances, axes = np.linalg.eigh(matrices)
    if (variances >= 0).all():
        return matrices
    return (axes * np.maximum(variances, 0)[:, None, :]) @ np.swapaxes(axes, 1, 2)


def outer(left: FloatArray, right: FloatArray) -> FloatArray:
    """Outer products (n, d, d) of the rows of two matrices (n, d)."""
    return left[:, :, None] * right[:, None, :]


def block_matrices(
    corner: FloatArray | float, row: FloatArray, column: FloatArray, rest: FloatArray
) -> FloatArray:
    """Matrices (n, 1 + d, 1 + d) from their four blocks."""
    n, d = row.shape
    matrices = np.empty((n, 1 + d, 1 + d))
    matrices[:, :1, 0], matrices[:, 0, 1:], matrices[:, 1:, 0] = corner, row, column
    matrices[:, 1:, 1:] = rest
    return matrices


def n_moments(d: int, matrix: bool) -> int:
    """Number of distinct second moments of d features: of a matrix, or of its diagonal."""
    return d * (d + 1) // 2 if matrix else d


@lru_cache(8)
def upper_indices(d: int) -> tuple[IntArray, IntArray]:
    """Rows and columns of the upper triangle of a (d, d) matrix, row by row."""
    return np.triu_indices(d)


@lru_cache(8)
def flat_upper_indices(d: int) -> IntArray:
    """Indices of the upper triangle in a flattened (d, d) matrix, row by row."""
    return np.ravel_multi_index(upper_indices(d), (d, d))


@lru_cache(8)
def packed_indices(d: int) -> IntArray:
    """Index in the packed upper triangle of each entry of a symmetric (d, d) matrix."""
    indices = np.empty((d, d), dtype=np.intp)
    indices[upper_indices(d)] = indices.T[upper_indices(d)] = np.arange(n_moments(d, True))
    return indices


def unpack(triangles: FloatArray, d: int) -> FloatArray:
    """Symmetric (n, d, d) matrices from their packed upper triangles."""
    return triangles.take(packed_indices(d), axis=1)
