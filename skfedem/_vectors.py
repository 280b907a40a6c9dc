"""Many vectors at once: checks of what is given, rows of one length, blocks of a row."""

from __future__ import annotations

import numpy as np

MAX_LENGTH = 2**52
_MAX_NORM = 2.0**1022
_LONG_BLOCK = 64


def as_vectors(values, lengths=None):
    """Values as float64 and, if they are flat, the checked lengths of the vectors (or None)."""
    values = _real_array("values", values)
    if lengths is None:
        if values.ndim not in (1, 2):
            raise ValueError(
                f"Expected values of shape (q,) or (n, q), got shape {values.shape}. Give vectors "
                "of different lengths as a flat array with lengths."
            )
        return values, None
    sizes = _as_lengths("lengths", lengths)
    if values.ndim != 1 or sizes.ndim != 1 or sizes.sum() != len(values):
        raise ValueError(
            "Expected flat values, sum(lengths) numbers, with lengths, got values of shape "
            f"{values.shape} and lengths of shape {sizes.shape} with the sum {sizes.sum()}. Give "
            "the vectors back to back, and the length of each."
        )
    return values, sizes


def as_uniforms(uniforms, values):
    """Uniforms in [0, 1), as many as there are values."""
    uniforms = _real_array("uniforms", uniforms)
    if uniforms.shape != values.shape:
        raise ValueError(
            f"Expected uniforms of the shape of values, {values.shape}, got {uniforms.shape}. Draw "
            "one for each value."
        )
    if uniforms.size and not (uniforms.min() >= 0 and uniforms.max() < 1):
        raise ValueError(
            f"Expected uniforms in [0, 1), got {uniforms.min()} .. {uniforms.max()}. Draw them as "
            "numpy.random.Generator.random does."
        )
    return uniforms


def _as_lengths(name, lengths):
    """Lengths of vectors as int64."""
    array = np.asarray(lengths)
    if array.dtype.kind not in "iu" and array.size:
        raise TypeError(
            f"Expected {name} to be integers, got dtype {array.dtype}. Give numbers of coordinates."
        )
    if array.size and not (array.min() >= 0 and array.max() < MAX_LENGTH):
        raise ValueError(
            f"Expected {name} in [0, 2**52), got {array.min()} .. {array.max()}. Give numbers of "
            "coordinates."
        )
    return array.astype(np.int64)


def _real_array(name, array):
    array = np.asarray(array)
    if array.dtype.kind not in "fiub" and array.size:
        raise TypeError(
            f"Expected {name} to be real numbers, got dtype {array.dtype}. Convert them to float64."
        )
    return np.asarray(array, dtype=np.float64, order="C")


def for_each_length(function, lengths):
    """``function(q)``, a number, for one length or for each of an array of them."""
    array = _as_lengths("length", lengths)
    if array.ndim == 0:
        return function(array.item())
    return np.array([function(q) for q in array.ravel().tolist()]).reshape(array.shape)


def per_vector(function, dtype, values, sizes):
    """``function(rows)``, one number a row, for all vectors; rows have shape (n, q)."""
    if sizes is None:
        return function(np.atleast_2d(values))
    results = np.empty(len(sizes), dtype=dtype)
    for chosen, places in _equal_lengths(sizes):
        results[chosen] = function(values[places])
    return results


def per_coordinate(function, values, uniforms, sizes):
    """``function(rows, their uniforms)``, of the shape of the rows, for all vectors."""
    if sizes is None:
        return function(np.atleast_2d(values), np.atleast_2d(uniforms)).reshape(values.shape)
    results = np.empty_like(values)
    for _, places in _equal_lengths(sizes):
        results[places] = function(values[places], uniforms[places])
    return results


def per_coordinate_and_vector(function, dtype, values, uniforms, sizes):
    """Both results of ``function(rows, their uniforms)``, see the two functions above."""
    if sizes is None:
        results, numbers = function(np.atleast_2d(values), np.atleast_2d(uniforms))
        return results.reshape(values.shape), numbers
    results, numbers = np.empty_like(values), np.empty(len(sizes), dtype=dtype)
    for chosen, places in _equal_lengths(sizes):
        results[places], numbers[chosen] = function(values[places], uniforms[places])
    return results, numbers


def _equal_lengths(sizes):
    """Yield, for each length, which vectors have it and where their coordinates are."""
    starts = np.cumsum(sizes) - sizes
    for size in np.unique(sizes):
        chosen = np.flatnonzero(sizes == size)
        yield chosen, starts[chosen, None] + np.arange(size)


def in_blocks(rows, block_length=None):
    """Cut rows into blocks, the last one filled with zeros: (n, q) to (n, n_blocks, length).

    A row is one block by default, or if it is shorter than `block_length`.
    """
    n, q = rows.shape
    length = max(min(q, block_length or q), 1)
    n_blocks = -(-q // length)
    if q < n_blocks * length:
        filled = np.zeros((n, n_blocks * length))
        filled[:, :q] = rows
        rows = filled
    return rows.reshape(n, n_blocks, length)


def from_blocks(blocks, q):
    """Undo `in_blocks`."""
    n, n_blocks, length = blocks.shape
    return blocks.reshape(n, n_blocks * length)[:, :q]


def spread(numbers, length):
    """One number a block, (n, n_blocks, 1), in a shape that blocks broadcast with."""
    # Broadcasting is slow in short blocks.
    return np.repeat(numbers, length, axis=2) if length < _LONG_BLOCK else numbers


def reduce_blocks(ufunc, blocks):
    """Reduce over the last axis, and keep it with length 1."""
    # Up to twice as fast as ufunc.reduce along an axis.
    starts = np.arange(0, blocks.size, blocks.shape[2])
    return ufunc.reduceat(blocks.ravel(), starts).reshape(*blocks.shape[:2], 1)


def norms(magnitudes, p):
    """Norm of each block of absolute values, p = 2 or inf, shape (n, n_blocks, 1)."""
    if p == 2:
        squares = np.einsum("ijk,ijk->ij", magnitudes, magnitudes)[:, :, None]
        if 1e-200 < squares.min(initial=1.0) <= squares.max(initial=1.0) < 1e200:
            return np.sqrt(squares)
    results = peaks = reduce_blocks(np.maximum, magnitudes)
    if p == 2:
        # Squares would underflow or overflow. Powers of two change only a norm's exponent.
        scales = np.ldexp(1.0, np.minimum(-np.frexp(peaks)[1], 1000))
        magnitudes = magnitudes * scales
        with np.errstate(over="ignore"):
            squares = np.einsum("ijk,ijk->ij", magnitudes, magnitudes)[:, :, None]
            results = np.sqrt(squares) / scales
    if not results.max(initial=0.0) <= _MAX_NORM:
        check_finite(peaks)
        raise ValueError(
            f"Expected norms of at most 2**1022, got {results.max()}. Rescale the values."
        )
    return results


def smallest(uniforms, k):
    """Where the k smallest numbers of each row are, the first ones in a tie."""
    n, q = uniforms.shape
    if k == q:
        return np.ones((n, q), dtype=bool)
    chosen = uniforms <= np.partition(uniforms, k - 1, axis=1)[:, k - 1, None]
    if np.count_nonzero(chosen) > n * k:  # a tie
        chosen = uniforms.argsort(axis=1, kind="stable").argsort(axis=1) < k
    return chosen


def check_finite(values, name="values", hint="Look for overflow and divisions by 0."):
    """Refuse NaN and infinite numbers."""
    if not np.isfinite(values).all():
        bad = values[~np.isfinite(values)]
        raise ValueError(
            f"Expected finite {name}, got {len(bad)} NaN or inf, the first {bad[0]}. {hint}"
        )
