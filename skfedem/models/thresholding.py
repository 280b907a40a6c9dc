"""Soft-thresholding of the singular values of a low-rank matrix plus another."""

from __future__ import annotations

import numpy as np
from scipy.linalg import lapack
from scipy.sparse.linalg import ArpackError, LinearOperator

from .._compat import dominant_eigenvectors
from .low_rank_theta import LowRank, zero_low_rank

# Columns beyond the wanted rank: they catch directions that may enter next.
_SPARE = 5
# Of a larger rank, so many directions are followed, or some more than were kept, if that is more:
# where a rank has no bound, few directions are above the threshold in the end. With room for a
# quarter more, one pass a round is enough for those near the threshold. But while all that were
# followed are kept, as after a penalty is lowered, most are noise, which leaves only slowly: then
# there is room for a twentieth more.
_ROOM = 32
_QUARTER, _TWENTIETH = 4, 20
# Share of all other directions that is added to these columns.
_STIRRED = 0.01
_ROUNDING = 1e-12
_POWER_ITERATIONS = 30


def threshold_singular_values(low_rank, matrix, threshold, rank, block=None):
    """``SVT(low_rank + matrix)``: singular values shrunk by the threshold, cut to a rank.

    Given the dominant right singular vectors of a matrix that was nearly the same, one pass of
    block power iteration is enough to follow it. Without them, ARPACK iterates to convergence. From
    one call to the next, the number of these vectors follows that of the values that are kept.

    Parameters
    ----------
    low_rank : LowRank
        Its factors need not be orthonormal here, nor its values positive.
    matrix : sparse array or ndarray of shape (n_rows, n_columns)
    threshold : float
    rank : int
        Largest rank of the result.
    block : ndarray of shape (n_columns, m), default=None
        Approximate right singular vectors. None finds as many as the rank asks for, an array of
        shape (0, m) finds m.

    Returns
    -------
    thresholded : LowRank
    block : ndarray of shape (n_columns, m)
        For the next call.
    """
    if not (np.any(matrix.data) or low_rank.singular_values.any()):
        return zero_low_rank(matrix.shape), block
    scaled = low_rank.left * low_rank.singular_values
    transposed = matrix.T  # made once: ARPACK asks for hundreds of products

    def times(vectors):
        return matrix @ vectors + scaled @ (low_rank.right.T @ vectors)

    def transposed_times(vectors):
        return transposed @ vectors + low_rank.right @ (scaled.T @ vectors)

    if block is None or len(block) == 0:
        size = min(rank + _SPARE, *matrix.shape) if block is None else block.shape[1]
        operator = LinearOperator(matrix.shape, times, transposed_times, dtype=np.float64)
        block = _dominant_directions(operator, size)
    left = orthonormal(times(block))
    block, singular_values, turned = np.linalg.svd(transposed_times(left), full_matrices=False)
    shrunk = singular_values[:rank] - threshold
    kept = np.flatnonzero(shrunk > _ROUNDING * singular_values[0])
    thresholded = LowRank(left @ turned.T[:, kept], shrunk[kept], block[:, kept])
    # LAPACK makes up the vectors of singular values that are 0: noise takes their place.
    found = singular_values > _ROUNDING * singular_values[0]
    are_all_kept = len(kept) == len(singular_values)
    followed = _n_followed(rank, len(kept), _TWENTIETH if are_all_kept else _QUARTER)
    size = min(followed + _SPARE, *matrix.shape)
    next_block = np.zeros((len(block), size))
    next_block[:, : len(found)] = (block * found)[:, :size]
    return thresholded, _with_spares_stirred(next_block, min(followed, np.count_nonzero(found)))


def block_to_find(low_rank, rank):
    """Array of shape (0, m) for ``threshold_singular_values``: m directions, and none known yet.

    Random directions would not do. Of many alike singular values, one pass shows those just above
    the threshold below it: a fit in which no factor enters for some rounds has converged.
    """
    size = _n_followed(rank, len(low_rank.singular_values), _TWENTIETH) + _SPARE
    return np.empty((0, min(size, len(low_rank.left), len(low_rank.right))))


def _n_followed(rank, n_kept, part):
    return min(rank, max(_ROOM, n_kept + n_kept // part))


def _with_spares_stirred(block, rank):
    """Singular vectors, with a little of every direction added to the spare columns.

    Power iteration stays in the parts of a matrix where its vectors are: if parts share neither
    rows nor columns, it would never find what has become dominant in another part.
    """
    spare = block[:, rank:]
    noise = np.random.default_rng(0).standard_normal(spare.shape)
    # LAPACK chooses signs, and axes among alike ones, which must not decide what is spanned: turned
    # towards the noise, they are definite. SciPy's ``orthogonal_procrustes`` is slow for so few.
    left, _, right = np.linalg.svd(spare.T @ noise)
    turned = spare @ left @ right
    return np.hstack([block[:, :rank], turned + _STIRRED / np.sqrt(len(block)) * noise])


def _dominant_directions(matrix, size):
    """Right singular vectors of the largest singular values, shape (n_columns, size)."""
    generator = np.random.default_rng(0)
    if size == min(matrix.shape):
        # Any directions in general position span all there is.
        return generator.standard_normal((matrix.shape[1], size))
    wide = matrix.shape[0] < matrix.shape[1]
    gram = matrix @ matrix.T if wide else matrix.T @ matrix
    v0 = generator.standard_normal(gram.shape[0])
    try:
        # Not svds: if a matrix has a smaller rank than asked for, svds draws without a seed.
        vectors = dominant_eigenvectors(gram, size, v0=v0, generator=generator)
    except ArpackError:
        # Either many singular values are alike, and any of their directions will do, or squares
        # underflow.
        block = generator.standard_normal((matrix.shape[1], size))
        for _ in range(_POWER_ITERATIONS):
            block = orthonormal(matrix.T @ orthonormal(matrix @ block))
        return block
    return orthonormal(matrix.T @ vectors) if wide else vectors


def orthonormal(vectors):
    """Orthonormal basis of the span of some long vectors, shape (n, m).

    Cholesky QR, twice where once leaves rounding (Yamamoto and others 2015). Of a million rows it
    takes a quarter of the time of Householder QR, which steps in if the vectors are nearly
    dependent.
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
