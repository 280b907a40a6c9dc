"""Concatenated vectors: checks of arguments, and blocks of vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._typing import BoolArray, FloatArray, IntArray

# Lengths are below this, so that they are exact in float64.
MAX_LENGTH = 2**52
# Steps are then at most 2**1000, which the codec allows.
_MAX_NORM = 2.0**998


class Blocks(NamedTuple):
    """Blocks of n concatenated vectors."""

    vector_lengths: IntArray  # of shape (n,)
    per_vector: IntArray  # numbers of blocks of the vectors; 0 if empty
    lengths: IntArray  # of the blocks, >= 1, shape (n_blocks,)
    starts: IntArray

    def reduce(self, ufunc: np.ufunc, values: NDArray[Any]) -> NDArray[Any]:
        """Reduce the values of each block to one."""
        return ufunc.reduceat(values, self.starts)

    def repeat(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """Repeat the number of each block for all of its values."""
        return np.repeat(numbers, self.lengths)

    def select(self, mask: BoolArray) -> Blocks:
        """Blocks selected by a mask, each as a vector."""
        return blocks_of(self.lengths[mask])


def as_vectors(values: ArrayLike, lengths: ArrayLike | None = None) -> tuple[FloatArray, IntArray]:
    """Values as float64, and the checked lengths of the vectors."""
    values = _real_array("values", values)
    if lengths is None:
        if values.ndim not in (1, 2):
            raise ValueError(f"Expected values of shape (q,) or (n, q), got shape {values.shape}.")
        n = values.shape[0] if values.ndim == 2 else 1
        return values, np.full(n, values.shape[-1], dtype=np.intp)
    sizes = _as_lengths("lengths", lengths)
    if values.ndim != 1 or sizes.ndim != 1 or sizes.sum() != len(values):
        raise ValueError(
            "Expected flat values, sum(lengths) numbers, with lengths, got values of shape "
            f"{values.shape} and lengths of shape {sizes.shape} with the sum {sizes.sum()}."
        )
    return values, sizes.astype(np.intp, copy=False)


def as_uniforms(uniforms: ArrayLike, values: FloatArray) -> FloatArray:
    """Checked uniforms in [0, 1), in the shape of the values."""
    uniforms = _real_array("uniforms", uniforms)
    if uniforms.shape != values.shape:
        raise ValueError(
            f"Expected uniforms of the shape of values, {values.shape}, got {uniforms.shape}."
        )
    if uniforms.size and not (uniforms.min() >= 0 and uniforms.max() < 1):
        got = f"{uniforms.min()} .. {uniforms.max()}"
        raise ValueError(f"Expected uniforms in [0, 1), got {got}. Draw them by Generator.random.")
    return uniforms


def _as_lengths(name: str, lengths: ArrayLike) -> IntArray:
    """Lengths of vectors as int64."""
    array, advice = np.asarray(lengths), "Give numbers of coordinates."
    if array.dtype.kind not in "iu" and array.size:
        raise TypeError(f"Expected {name} to be integers, got dtype {array.dtype}. {advice}")
    if array.size and not (array.min() >= 0 and array.max() < MAX_LENGTH):
        got = f"{array.min()} .. {array.max()}"
        raise ValueError(f"Expected {name} in [0, 2**52), got {got}. {advice}")
    return array.astype(np.int64)


def _real_array(name: str, array: ArrayLike) -> FloatArray:
    array = np.asarray(array)
    if array.dtype.kind not in "fiub" and array.size:
        raise TypeError(
            f"Expected {name} to be real numbers, got dtype {array.dtype}. Convert them to float64."
        )
    return np.asarray(array, dtype=np.float64, order="C")


def for_each_length(function: Callable[[int], Any], lengths: ArrayLike) -> Any:
    """``function(q)``, a number, for one length or elementwise for an array of lengths."""
    array = _as_lengths("length", lengths)
    if array.ndim == 0:
        return function(array.item())
    if array.size and (array == array.flat[0]).all():
        return np.full(array.shape, function(int(array.flat[0])))
    distinct, positions = np.unique(array, return_inverse=True)
    return np.array([function(q) for q in distinct.tolist()])[positions].reshape(array.shape)


def for_rows(
    function: Callable[[FloatArray, FloatArray], FloatArray],
    values: FloatArray,
    uniforms: FloatArray,
    lengths: IntArray,
) -> FloatArray:
    """Apply ``function(rows, uniforms)`` to all vectors of each length at once."""
    if len(lengths) and (lengths == lengths[0]).all():
        shape = len(lengths), lengths[0]
        return function(values.reshape(shape), uniforms.reshape(shape)).ravel()
    results = np.empty_like(values)
    starts = np.cumsum(lengths) - lengths
    for length in np.unique(lengths):
        positions = starts[lengths == length, None] + np.arange(length)
        results[positions] = function(values[positions], uniforms[positions])
    return results


def blocks_of(lengths: IntArray, block_length: int | None = None) -> Blocks:
    """Blocks of a length in vectors (the last one may be shorter); None: one per vector."""
    some = lengths > 0
    if block_length is None:
        per_vector, blocks = np.minimum(lengths, 1), lengths[some]
    else:
        per_vector = -(-lengths // block_length)
        blocks = np.full(per_vector.sum(), block_length)
        last = np.cumsum(per_vector)[some] - 1
        blocks[last] = (lengths - (per_vector - 1) * block_length)[some]
    return Blocks(lengths, per_vector, blocks, np.cumsum(blocks) - blocks)


def reduce_segments(ufunc: np.ufunc, values: NDArray[Any], lengths: IntArray) -> NDArray[Any]:
    """Reduce consecutive segments of values to one each; 0 if a segment is empty."""
    dtype = np.int64 if values.dtype == bool else values.dtype
    starts, some = np.cumsum(lengths) - lengths, lengths > 0
    if some.all():
        return ufunc.reduceat(values, starts, dtype=dtype)
    results = np.zeros(len(lengths), dtype)
    results[some] = ufunc.reduceat(values, starts[some], dtype=dtype)
    return results


def norms(magnitudes: FloatArray, blocks: Blocks, p: float) -> FloatArray:
    """Norm of each block of absolute values, p = 2 or inf, shape (n_blocks,)."""
    if p == 2:
        with np.errstate(over="ignore"):
            squares = blocks.reduce(np.add, np.square(magnitudes))
        if 1e-200 < squares.min(initial=1.0) <= squares.max(initial=1.0) < 1e200:
            return np.sqrt(squares)
    results = largest = blocks.reduce(np.maximum, magnitudes)
    if p == 2:
        # Squares would underflow or overflow. Scaling by powers of two is exact.
        scales = np.ldexp(1.0, np.minimum(-np.frexp(largest)[1], 1000))
        with np.errstate(over="ignore"):
            squares = blocks.reduce(np.add, np.square(magnitudes * blocks.repeat(scales)))
            results = np.sqrt(squares) / scales
    if not results.max(initial=0.0) <= _MAX_NORM:
        check_finite(largest)
        raise ValueError(
            f"Expected norms of at most 2**998, got {results.max()}. Rescale the values."
        )
    return results


def mask_of_smallest(uniforms: FloatArray, k: int) -> BoolArray:
    """Mask of the k smallest numbers of each row, the first ones in a tie."""
    if k == uniforms.shape[1]:
        return np.ones(uniforms.shape, dtype=bool)
    mask = uniforms <= np.partition(uniforms, k - 1, axis=1)[:, k - 1, None]
    if np.count_nonzero(mask) > len(mask) * k:  # a tie
        mask = uniforms.argsort(axis=1, kind="stable").argsort(axis=1) < k
    return mask


def check_finite(
    values: NDArray[Any],
    name: str = "values",
    hint: str = "Look for overflow and divisions by 0.",
) -> None:
    """Raise for NaN and infinite numbers."""
    if not np.isfinite(values).all():
        bad = values[~np.isfinite(values)]
        raise ValueError(
            f"Expected finite {name}, got {len(bad)} NaN or inf, the first {bad[0]}. {hint}"
        )
