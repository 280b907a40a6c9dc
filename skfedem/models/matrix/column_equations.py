"""Equations of Newton's method for the column effects, from which the rows were eliminated."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.linalg import lapack
from scipy.sparse import csr_array
from scipy.sparse.linalg import LinearOperator

from ... import _compat
from ..._typing import FloatArray

_Product = Callable[[FloatArray], FloatArray]


class Sizes(NamedTuple):
    """Sizes for speed, see examples/benchmarks/imputation_speed.py.

    Attributes
    ----------
    cholesky_columns : int
        Up to this number of columns, normal equations of a dense matrix are solved by a Cholesky
        factorization.
    preconditioned_columns, cg_steps : int
        Up to this number of columns, an earlier factor preconditions conjugate gradients; it is
        recomputed if these take more than ``cg_steps``.
    """

    cholesky_columns: int = 64
    preconditioned_columns: int = 2000
    cg_steps: int = 8


_SIZES = Sizes()


def solve_for_columns(
    matrix: FloatArray | csr_array,
    transposed: FloatArray | csr_array,
    row_curvature: FloatArray,
    column_curvature: FloatArray,
    right: FloatArray,
    factor: FloatArray | None,
) -> tuple[FloatArray, FloatArray | None]:
    """Solution c of ``(C - Wᵀ R⁻¹ W) c = right``, and a factor for the next equations, or None."""
    is_small = len(right) <= _SIZES.cholesky_columns and isinstance(matrix, np.ndarray)
    if is_small or (factor is None and len(right) <= _SIZES.preconditioned_columns):
        factor = _column_factor(matrix, row_curvature, column_curvature)
    if is_small and factor is not None:
        return _solve(factor, right), None

    def times(c: FloatArray) -> FloatArray:
        return column_curvature * c - transposed @ ((matrix @ c) / row_curvature)

    def precondition(c: FloatArray) -> FloatArray:
        return c / column_curvature if factor is None else _solve(factor, c)

    solution, n_steps = conjugate_gradients(times, right, precondition)
    if n_steps > _SIZES.cg_steps and factor is not None:
        factor = _column_factor(matrix, row_curvature, column_curvature)
    return solution, factor


def _column_factor(
    matrix: FloatArray | csr_array, row_curvature: FloatArray, column_curvature: FloatArray
) -> FloatArray | None:
    """Upper Cholesky factor of ``C - Wᵀ R⁻¹ W``, which the ridge keeps positive definite.

    None if it is indefinite due to rounding, because all curvature is as small as the ridge.
    """
    scaled = matrix / np.sqrt(row_curvature)[:, None]
    factor, info = lapack.dpotrf(np.diag(column_curvature) - scaled.T @ scaled)
    return factor if info == 0 else None


def _solve(factor: FloatArray, right: FloatArray) -> FloatArray:
    """Solve equations, given their Cholesky factor; cho_solve is slower for few equations."""
    return lapack.dpotrs(factor, right)[0]


def conjugate_gradients(
    times: _Product, right: FloatArray, precondition: _Product
) -> tuple[FloatArray, int]:
    """Solution of ``times(c) = right``, and the number of steps."""
    size, n_steps = len(right), 0

    def count(_: FloatArray) -> None:
        nonlocal n_steps
        n_steps += 1

    solution, _ = _compat.conjugate_gradients(
        LinearOperator((size, size), matvec=times, dtype=np.float64),
        right,
        rtol=1e-6,
        maxiter=100,
        M=LinearOperator((size, size), matvec=precondition, dtype=np.float64),
        callback=count,
    )
    return solution, n_steps
