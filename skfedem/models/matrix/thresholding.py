"""Soft-thresholding of the singular values of a low-rank matrix plus another matrix."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.linalg import lapack
from scipy.sparse import csr_array
from scipy.sparse.linalg import ArpackError, LinearOperator

from ..._compat import dominant_eigenvectors
from ..._typing import FloatArray
from .theta import LowRank, zero_low_rank

_ROUNDING = 1e-12


class BlockIteration(NamedTuple):
    """Settings of block power iteration.

    Attributes
    ----------
    oversampling : int
        Spare columns beyond the rank, for directions that may enter next.
    least_tracked : int
        If the rank is larger, only this many directions are tracked, or slightly more than exceeded
        the threshold if that is more: without a bound on the rank, few exceed it in the end.
    extra, extra_if_all : int
        Divisors of the number of these further directions. With a quarter more, one pass per round
        suffices for directions near the threshold. But while all tracked directions exceed it, as
        after the penalty was lowered, most of them are noise, which vanishes slowly.
    noise : float
        Share of random directions that is mixed into the spare columns.
    n_iter : int
        Iterations if ARPACK fails.
    """

    oversampling: int = 5
    least_tracked: int = 32
    extra: int = 4
    extra_if_all: int = 20
    noise: float = 0.01
    n_iter: int = 30


_BLOCK = BlockIteration()


def threshold_singular_values(
    low_rank: LowRank,
    matrix: FloatArray | csr_array,
    threshold: float,
    rank: int,
    block: FloatArray | None = None,
) -> tuple[LowRank, FloatArray | None]:
    """``SVT(low_rank + matrix)``: singular values shrunk by the threshold, cut to a rank.

    Given ``block``, the dominant right singular vectors of a nearly equal matrix, one pass of block
    power iteration suffices. Without them, ARPACK iterates to convergence: None computes as many as
    ``rank`` requires, an array of shape (0, m) computes m. The second result is the block for the
    next call, its number adapted to that of the singular values above the threshold. The factors of
    ``low_rank`` need not be orthonormal, nor its singular values positive.
    """
    if not (np.any(matrix.data) or low_rank.singular_values.any()):
        return zero_low_rank(matrix.shape), block
    scaled = low_rank.left * low_rank.singular_values
    transposed = matrix.T  # computed once, for hundreds of products in ARPACK

    def times(vectors: FloatArray) -> FloatArray:
        return matrix @ vectors + scaled @ (low_rank.right.T @ vectors)

    def transposed_times(vectors: FloatArray) -> FloatArray:
        return transposed @ vectors + low_rank.right @ (scaled.T @ vectors)

    if block is None or len(block) == 0:
        size = min(rank + _BLOCK.oversampling, *matrix.shape) if block is None else block.shape[1]
        operator = LinearOperator(matrix.shape, times, transposed_times, dtype=np.float64)
        block = _dominant_directions(operator, size)
    left = orthonormal(times(block))
    block, singular_values, turned = np.linalg.svd(transposed_times(left), full_matrices=False)
    shrunk = singular_values[:rank] - threshold
    kept = np.flatnonzero(shrunk > _ROUNDING * singular_values[0])
    thresholded = LowRank(left @ turned.T[:, kept], shrunk[kept], block[:, kept])
    return thresholded, _next_block(matrix.shape, block, singular_values, len(kept), rank)


def unset_block(low_rank: LowRank, rank: int) -> FloatArray:
    """Array of shape (0, m), with which ``threshold_singular_values`` computes m directions.

    Random directions would not suffice. With many similar singular values, a single pass
    underestimates those just above the threshold, and a fit without any factors for some rounds
    would be taken for converged.
    """
    size = (
        _n_tracked(rank, len(low_rank.singular_values), _BLOCK.extra_if_all) + _BLOCK.oversampling
    )
    return np.empty((0, min(size, len(low_rank.left), len(low_rank.right))))


def _next_block(
    shape: tuple[int, int], block: FloatArray, singular_values: FloatArray, n_kept: int, rank: int
) -> FloatArray:
    """Right singular vectors for the next call, their number adapted to that of those kept."""
    # The vectors of zero singular values are arbitrary: they are replaced by noise.
    nonzero = singular_values > _ROUNDING * singular_values[0]
    are_all_kept = n_kept == len(singular_values)
    n_tracked = _n_tracked(rank, n_kept, _BLOCK.extra_if_all if are_all_kept else _BLOCK.extra)
    size = min(n_tracked + _BLOCK.oversampling, *shape)
    next_block = np.zeros((len(block), size))
    next_block[:, : len(nonzero)] = (block * nonzero)[:, :size]
    return _with_noisy_spares(next_block, min(n_tracked, int(np.count_nonzero(nonzero))))


def _n_tracked(rank: int, n_kept: int, part: int) -> int:
    return min(rank, max(_BLOCK.least_tracked, n_kept + n_kept // part))


def _with_noisy_spares(block: FloatArray, rank: int) -> FloatArray:
    """Singular vectors, with some noise added to the spare columns.

    Power iteration stays within the blocks of a block-diagonal matrix that its vectors cover:
    without noise, it would never find directions that have become dominant in another block.
    """
    spare = block[:, rank:]
    noise = np.random.default_rng(0).standard_normal(spare.shape)
    # LAPACK's choice of signs, and of axes for equal singular values, must not affect the span: the
    # vectors are rotated towards the noise. SciPy's ``orthogonal_procrustes`` is slow for so few.
    left, _, right = np.linalg.svd(spare.T @ noise)
    turned = spare @ left @ right
    return np.hstack([block[:, :rank], turned + _BLOCK.noise / np.sqrt(len(block)) * noise])


def _dominant_directions(matrix: LinearOperator, size: int) -> FloatArray:
    """Right singular vectors of the largest singular values, shape (n_columns, size)."""
    generator = np.random.default_rng(0)
    if size == min(matrix.shape):
        # Any directions in general position span the whole space.
        return generator.standard_normal((matrix.shape[1], size))
    wide = matrix.shape[0] < matrix.shape[1]
    gram = matrix @ matrix.T if wide else matrix.T @ matrix
    v0 = generator.standard_normal(gram.shape[0])
    try:
        # Not svds, which draws without a seed if the matrix has a smaller rank than requested.
        vectors = dominant_eigenvectors(gram, size, v0=v0, generator=generator)
    except ArpackError:
        # Either many singular values are similar, so that any of their directions will do, or
        # squares underflow.
        block = generator.standard_normal((matrix.shape[1], size))
        for _ in range(_BLOCK.n_iter):
            block = orthonormal(matrix.T @ orthonormal(matrix @ block))
        return block
    return orthonormal(matrix.T @ vectors) if wide else vectors


def orthonormal(vectors: FloatArray) -> FloatArray:
    """Orthonormal basis of the span of a few long vectors, shape (n, m).

    Cholesky QR, repeated if the first pass leaves rounding errors (Yamamoto et al. 2015). For a
    million rows, it takes a quarter of the time of Householder QR, which is used if the vectors are
    nearly dependent.
    """
    norms = np.linalg.norm(vectors, axis=0)
    basis = vectors / np.where(norms > 0, norms, 1.0)
    gram = basis.T @ basis
    try:
        for allowed in (_ROUNDING / 100, _ROUNDING):
            factor = np.linalg.cholesky(gram)
            basis = lapack.dtrtrs(factor, basis.T, lower=True)[0].T
            gram = basis.T @ basis
            if np.abs(gram - np.eye(len(gram))).max() <= allowed:
                return basis
    except np.linalg.LinAlgError:
        pass
    return np.linalg.qr(vectors)[0]
