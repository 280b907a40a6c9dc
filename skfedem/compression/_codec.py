"""Encoding of vectors as bytes: three codes, independent of the operators that use them.

`Plain` takes 8 bytes per coordinate; `Sparse` takes 8 bytes per non-zero, and the bits that say
where these are; `Scaled`, for whole multiples of one step per block, takes about log2(mean) + 2
bits per coordinate and 4 bytes per block, or 8 where a float32 does not hold the step.

Numbers, counts and heights are written as bits, and the rest of a message around them, as described
in `_bits`. The bits begin with the count of coordinates. In `Sparse`, their heights follow,
1 for a non-zero; the non-zeros are its floats. In `Scaled`, there follow the count of a block's
coordinates (0: one block); whether some steps are float64, not float32 (1 bit); m (5 bits); the
heights ceil(|integer| / 2^m); if there are float64s, the subset of them among the steps; and for
each non-zero the sign (1: negative) and the m low bits of |integer| - 1. Its floats are the steps
of the blocks that are not zero: first the float32s, then the float64s.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .._typing import BoolArray, FloatArray, IntArray
from . import _bits
from ._bits import bit_widths, damage
from ._vectors import MAX_LENGTH, Blocks, blocks_of, check_finite, reduce_segments

# All but the highest bits of integers are written verbatim: at most 2**4 heights.
_HEIGHT_BITS = 4
# Largest integer, and its number of low bits.
_MOST = 2**22
_MOST_LOW_BITS = 22 - _HEIGHT_BITS
# Largest step: products with the largest integer are finite.
_LARGEST_STEP = 2.0**1000
_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
_ADVICE = "Give what compress of this operator returned."


class Plain(NamedTuple):
    """Code of any finite float64 numbers."""

    form: int

    def sizes(self, values: FloatArray, lengths: IntArray) -> IntArray:
        """Number of bytes of the message of each vector, shape (n,)."""
        return _bits.size_of_message(_bits.size_of_count(lengths), 8 * lengths)

    def encode(self, vector: FloatArray) -> bytes:
        """Message of a vector; ValueError for NaN or inf."""
        check_finite(vector)
        return _bits.message(self.form, [_bits.count_bits(len(vector))], vector.astype("<f8"))

    def decode(self, data: bytes, length: int) -> FloatArray:
        """Vector of a message; ValueError if damaged, or of another length."""
        reader = _bits.Reader(self.form, data, length)
        vector = reader.floats(length, "<f8")
        reader.end()
        return vector


class Sparse(NamedTuple):
    """Code of finite float64 numbers, at most `most` of them non-zero."""

    form: int
    most: int = MAX_LENGTH

    def sizes(self, values: FloatArray, lengths: IntArray) -> IntArray:
        """Number of bytes of the message of each vector, shape (n,)."""
        n_nonzero = reduce_segments(np.add, values != 0, lengths)
        n_bits = _bits.size_of_count(lengths) + _bits.size_of_heights(lengths, [n_nonzero])
        return _bits.size_of_message(n_bits, 8 * n_nonzero)

    def encode(self, vector: FloatArray) -> bytes:
        """Message of a vector; ValueError for NaN, inf or too many non-zeros."""
        check_finite(vector)
        chosen = vector != 0
        if (n_nonzero := np.count_nonzero(chosen)) > self.most:
            raise ValueError(f"Expected at most {self.most} non-zeros, got {n_nonzero}. {_ADVICE}")
        bits = [_bits.count_bits(len(vector)), *_bits.height_bits(chosen.astype(np.int64))]
        return _bits.message(self.form, bits, vector[chosen].astype("<f8"))

    def decode(self, data: bytes, length: int) -> FloatArray:
        """Vector of a message; ValueError if damaged, or of another length."""
        reader = _bits.Reader(self.form, data, length)
        chosen, ones = reader.heights(length, 1)
        nonzero = reader.floats(len(ones), "<f8")
        reader.end()
        if not nonzero.all():
            raise damage("non-zero numbers", "a zero")
        vector = np.zeros(length)
        vector[chosen] = nonzero
        return vector


class Scaled(NamedTuple):
    """Code of integers times one step per block, of at most 24 bits; both follow from the values.

    `block_length` None is one block per vector; `most` is the largest magnitude of an integer, or
    an array of it, for each vector.
    """

    form: int
    block_length: int | None = None
    most: Any = _MOST

    def sizes(self, values: FloatArray, lengths: IntArray) -> IntArray:
        """Number of bytes of the message of each vector, shape (n,)."""
        return self._sizes(*self._factors(values, lengths))

    def sizes_of(self, integers: FloatArray, steps: FloatArray, blocks: Blocks) -> IntArray:
        """`sizes` of vectors whose magnitudes are integers times the steps of their blocks.

        Steps have at most 24 bits, or any number of bits if all integers of a block are 0 or 1.
        """
        return self._sizes(*_lowest_terms(integers, steps, blocks), blocks)

    def _sizes(self, integers: FloatArray, steps: FloatArray, blocks: Blocks) -> IntArray:
        lengths, heights, n_low = blocks.vector_lengths, integers, 0
        if integers.max(initial=0) > 2**_HEIGHT_BITS:
            n_low = _low_bits_of(reduce_segments(np.maximum, integers, lengths))
            heights = np.ceil(np.ldexp(integers, np.repeat(-n_low, lengths)))
        reached = _bits.n_reaching(heights, lengths)
        n_bits = _bits.size_of_count(lengths) + _bits.size_of_count(self.block_length or 0) + 6
        n_bits = n_bits + _bits.size_of_heights(lengths, reached) + reached[0] * (1 + n_low)
        n_steps, wide = reduce_segments(np.add, steps > 0, blocks.per_vector), _needs_float64(steps)
        if not wide.any():
            return _bits.size_of_message(n_bits, 4 * n_steps)
        n_wide = reduce_segments(np.add, wide, blocks.per_vector)
        n_bits += np.where(n_wide > 0, _bits.size_of_subset(n_steps, n_wide), 0)
        return _bits.size_of_message(n_bits, 4 * (n_steps + n_wide))

    def encode(self, vector: FloatArray) -> bytes:
        """Message of a vector; ValueError if there are no such integers and steps."""
        multiples, steps, _ = self._factors(vector, np.array([len(vector)]))
        integers = multiples.astype(np.int64)
        nonzero = integers > 0
        n_low = int(_low_bits_of(integers.max(initial=0)))
        steps = steps[steps > 0]
        wide = _needs_float64(steps)
        bits = [
            _bits.count_bits(len(vector)),
            _bits.count_bits(self.block_length or 0),
            _bits.number_bits([wide.any()], 1),
            _bits.number_bits([n_low], 5),
            *_bits.height_bits(-(-integers >> n_low)),
            *(_bits.subset_bits(wide) if wide.any() else ()),
            vector[nonzero] < 0,
            _bits.number_bits(integers[nonzero] - 1, n_low),
        ]
        return _bits.message(self.form, bits, steps[~wide].astype("<f4"), steps[wide].astype("<f8"))

    def decode(self, data: bytes, length: int) -> FloatArray:
        """Vector of a message; ValueError if damaged, or of another length."""
        reader = _bits.Reader(self.form, data, length)
        block_length = min(reader.count() or length, length)
        some_wide, n_low = reader.number(1), reader.number(5)
        if n_low > _MOST_LOW_BITS:
            raise damage(f"at most {_MOST_LOW_BITS} low bits", n_low)
        chosen, heights = reader.heights(length, 2**_HEIGHT_BITS)
        nonzero = _any_of_each_block(chosen, block_length)
        n_steps = int(np.count_nonzero(nonzero))
        wide = reader.subset(n_steps) if some_wide else np.zeros(n_steps, dtype=bool)
        n_wide = int(np.count_nonzero(wide))
        signs, lows = reader.skip(len(heights)), reader.skip(len(heights) * n_low)
        steps = np.empty(n_steps)
        steps[~wide] = reader.floats(n_steps - n_wide, "<f4")
        steps[wide] = reader.floats(n_wide, "<f8")
        reader.end()
        if not ((steps > 0) & (steps <= _LARGEST_STEP)).all():
            raise damage("steps above 0 and at most 2**1000", "others")
        negative = reader.numbers(len(heights), 1, signs).astype(bool)
        magnitudes = np.ldexp(heights - 1.0, n_low) + 1
        magnitudes += reader.numbers(len(heights), n_low, lows)
        vector = np.zeros(length)
        vector[chosen] = np.where(negative, -magnitudes, magnitudes)
        of_blocks = np.zeros(len(nonzero))
        of_blocks[nonzero] = steps
        vector *= np.repeat(of_blocks, block_length)[:length]
        vector += 0.0  # turns -0.0 into 0.0
        return vector

    def _factors(
        self, values: FloatArray, lengths: IntArray
    ) -> tuple[FloatArray, FloatArray, Blocks]:
        """Magnitudes as integers, a step for each block (0 for a zero block), and the blocks."""
        magnitudes, blocks = np.abs(values), blocks_of(lengths, self.block_length)
        steps = _smallest_positive(magnitudes, blocks)  # correct where some integer is 1
        integers, wrong = _divide(magnitudes, steps, blocks)
        if wrong.any():
            odd = blocks.reduce(np.logical_or, wrong)
            steps[odd] = _common_divisors(magnitudes[blocks.repeat(odd)], blocks.select(odd))
            integers, wrong = _divide(magnitudes, steps, blocks)
        largest = reduce_segments(np.maximum, integers, lengths)
        if wrong.any() or not (largest <= self.most).all() or (steps > _LARGEST_STEP).any():
            expected = f"whole multiples, at most {np.max(self.most)}, of one step per block"
            raise ValueError(f"Expected {expected}, got other values. {_ADVICE}")
        return integers, steps, blocks


def _any_of_each_block(chosen: BoolArray, block_length: int) -> BoolArray:
    """Mask of the blocks with a chosen item."""
    if block_length <= 1:
        return chosen
    return np.logical_or.reduceat(chosen, np.arange(0, len(chosen), block_length))


def _smallest_positive(magnitudes: FloatArray, blocks: Blocks) -> FloatArray:
    """Smallest positive number of each block; 0 if there is none."""
    # Floats >= 0 have the same order as their bits read as integers, and 0 - 1 wraps to the largest
    # integer.
    least = blocks.reduce(np.minimum, magnitudes.view(np.uint64) - 1)
    return (least + 1).view(np.float64)


def _lowest_terms(
    integers: FloatArray, steps: FloatArray, blocks: Blocks
) -> tuple[FloatArray, FloatArray]:
    """Divide the integers of each block by their common divisor, and multiply its step by it.

    The steps of zero blocks become 0.
    """
    # Of bytes, as logical_or of random truth values takes twice as long.
    has_one = blocks.reduce(np.bitwise_or, (integers == 1).view(np.uint8)) > 0
    if has_one.all():
        return integers, steps
    common, without = has_one.astype(np.float64), ~has_one
    if integers.max() > 1:  # otherwise, blocks without a one are zero
        whole = integers[blocks.repeat(without)].astype(np.int64)
        common[without] = blocks.select(without).reduce(np.gcd, whole)
        integers = integers / blocks.repeat(np.maximum(common, 1.0))
    return integers, steps * common


def _divide(
    magnitudes: FloatArray, steps: FloatArray, blocks: Blocks
) -> tuple[FloatArray, BoolArray]:
    """Nearest integers of magnitudes / steps, and a mask of those that are not exact."""
    spread = blocks.repeat(np.where(steps > 0, steps, 1.0))
    with np.errstate(over="ignore", invalid="ignore"):  # the caller raises for the results
        integers = magnitudes / spread
        np.rint(integers, out=integers)
        spread *= integers
    return integers, spread != magnitudes


def _common_divisors(magnitudes: FloatArray, blocks: Blocks) -> FloatArray:
    """Largest common divisor of the numbers of each block."""
    # Products of 24-bit steps and 22-bit integers are integers if the largest is scaled to 62 bits.
    shifts = 62 - np.frexp(blocks.reduce(np.maximum, magnitudes))[1]
    with np.errstate(invalid="ignore"):  # the caller raises for NaN and inf
        whole = np.ldexp(magnitudes, blocks.repeat(shifts)).astype(np.int64)
    return np.ldexp(blocks.reduce(np.gcd, whole).astype(np.float64), -shifts)


def _needs_float64(steps: FloatArray) -> BoolArray:
    """Mask of steps that a float32 cannot represent."""
    return np.minimum(steps, _LARGEST_FLOAT32).astype(np.float32) != steps


def _low_bits_of(largest: Any) -> Any:
    """Number m of low bits that are written verbatim, from the largest integer."""
    return np.maximum(bit_widths(largest - 1) - _HEIGHT_BITS, 0)
