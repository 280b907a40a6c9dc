"""Vectors as bytes: three codes, which know nothing of the operators that use them.

`Plain` takes 8 bytes a coordinate; `Sparse` 8 bytes a non-zero, and where these are; `Scaled`,
whole multiples of one step per block, about log2(mean) + 2 bits a coordinate and 4 bytes a block.

A message is one byte, `form`, which says whose it is; a stream of bits, the first bit of a byte its
highest, zeros after the last; little-endian floats; and the CRC-16 of all this. A CRC-16 finds
every one- or two-bit error of a message below 4 kB and every burst of at most 16 bits; other damage
passes once in 65536 times at most. Three things are written as bits:

- a *number* of a given width, its lowest bit first;
- a *count*: its width, a number of 6 bits, and itself;
- *heights*, small integers >= 0: which of N items exceed 0, then which of those exceed 1, and so
  on until no item is left. Each is a subset: its size n, a number as wide as N, and which items.
  With r the smaller of n and N - n, and k = floor(log2(N / r)) <= 12, the r rarer items are a
  bitmap of N bits if k < 2, and else an Elias-Fano code: for each range of 2^k indexes a one for
  each of the r in it, then a zero; after these the k low bits of each index.

The bits begin with the count of coordinates. `Sparse` goes on with their heights, 1 for a
non-zero; the non-zeros are its floats. `Scaled` goes on with the count of a block's coordinates
(0: one block); whether steps are float64, not float32 (1 bit); m (5 bits); the heights
ceil(|integer| / 2^m); and of each non-zero the sign (1: negative) and the m low bits of
|integer| - 1. Its floats are the steps of the blocks that are not zero.
"""

from __future__ import annotations

from binascii import crc_hqx
from typing import NamedTuple

import numpy as np

from ._vectors import MAX_LENGTH, check_finite, from_blocks, in_blocks, reduce_blocks

# Of a number that is sent as it is, a double.
FLOAT_BITS = 64
# N items take at least N / 2**12 bits: damaged bytes cannot ask for a huge vector.
_MOST_LOW_BITS = 12
# All but the highest bits of integers are written as they are: at most 2**4 heights.
_HEIGHT_BITS = 4
# What messages to the user advise.
_GIVE_COMPRESSED = "Give what compress of this operator returned."
_SEND_AGAIN = "Bytes were damaged or lost: have the message sent again."


class Plain(NamedTuple):
    """Code of any finite float64 numbers."""

    form: int

    def sizes(self, rows):
        """Return the number of bytes of the message of each row, shape (n,)."""
        n, q = rows.shape
        return np.full(n, _n_bytes(_count_size(q), 8 * q))

    def encode(self, vector):
        """Return the message of a vector; ValueError for NaN or inf."""
        check_finite(vector)
        return _seal(self.form, [_count_bits(len(vector))], vector.astype("<f8"))

    def decode(self, data):
        """Return the vector of a message; ValueError if `encode` cannot have written it."""
        message = _Message(self.form, data)
        return message.floats(message.count(), "<f8")


class Sparse(NamedTuple):
    """Code of finite float64 numbers, at most `most` of them non-zero."""

    form: int
    most: int = MAX_LENGTH

    def sizes(self, rows):
        """Return the number of bytes of the message of each row, shape (n,)."""
        n_nonzero = (rows != 0).sum(axis=1)
        n_bits = _count_size(rows.shape[1]) + _heights_size(rows.shape[1], [n_nonzero])
        return _n_bytes(n_bits, 8 * n_nonzero)

    def encode(self, vector):
        """Return the message of a vector; ValueError for NaN, inf or too many non-zeros."""
        check_finite(vector)
        chosen = vector != 0
        if np.count_nonzero(chosen) > self.most:
            raise ValueError(
                f"Expected at most {self.most} non-zeros, got {np.count_nonzero(chosen)}. "
                f"{_GIVE_COMPRESSED}"
            )
        bits = [_count_bits(len(vector)), *_height_bits(chosen.astype(np.int64))]
        return _seal(self.form, bits, vector[chosen].astype("<f8"))

    def decode(self, data):
        """Return the vector of a message; ValueError if `encode` cannot have written it."""
        message = _Message(self.form, data)
        chosen = message.heights(message.count()) > 0
        nonzero = message.floats(np.count_nonzero(chosen), "<f8")
        if not nonzero.all():
            raise _damaged("non-zero numbers", "a zero")
        vector = np.zeros(len(chosen))
        vector[chosen] = nonzero
        return vector


class Scaled(NamedTuple):
    """Code of integers times one step, of at most 24 bits, per block; nobody needs to know it.

    Parameters
    ----------
    form : int
        First byte of a message.
    block_length : int, optional
        Coordinates in a block; by default a vector is one block.
    most : int, default=2**22
        Largest magnitude of an integer.
    """

    form: int
    block_length: int | None = None
    most: int = 2**22

    def sizes(self, rows):
        """Return the number of bytes of the message of each row, shape (n,)."""
        return self._sizes(*self._factors(rows))

    def sizes_of(self, integers, steps, q):
        """Return `sizes` of the rows whose magnitudes are integers times steps.

        Parameters
        ----------
        integers : ndarray of shape (n, n_blocks, length)
            In blocks, see `_vectors.in_blocks`.
        steps : ndarray of shape (n, n_blocks, 1)
            Of at most 24 bits, or of any where all integers of a block are 0 or 1.
        q : int
            Length of a row.
        """
        integers, steps = _lowest_terms(integers, steps)
        return self._sizes(from_blocks(integers, q), steps[:, :, 0])

    def _sizes(self, integers, steps):
        q = integers.shape[1]
        n_low = _low_widths(integers.max(axis=1, initial=0))
        heights = np.ceil(integers * np.ldexp(1.0, -n_low)[:, None]) if n_low.any() else integers
        reached = _reached(heights)
        n_bits = _count_size(q) + _count_size(self.block_length or 0) + 6
        n_bits = n_bits + _heights_size(q, reached) + reached[0] * (1 + n_low)
        n_steps = (steps > 0).sum(axis=1)
        return _n_bytes(n_bits, n_steps * np.where(_need_doubles(steps), 8, 4))

    def encode(self, vector):
        """Return the message of a vector; ValueError if there are no such integers and steps."""
        (integers,), (steps,) = self._factors(vector[None])
        integers = integers.astype(np.int64)
        nonzero = integers > 0
        n_low = int(_low_widths(integers.max(initial=0)))
        wide = _need_doubles(steps)
        bits = [
            _count_bits(len(vector)),
            _count_bits(self.block_length or 0),
            _number_bits([wide], 1),
            _number_bits([n_low], 5),
            *_height_bits(-(-integers >> n_low)),
            vector[nonzero] < 0,
            _number_bits(integers[nonzero] - 1, n_low),
        ]
        return _seal(self.form, bits, steps[steps > 0].astype("<f8" if wide else "<f4"))

    def decode(self, data):
        """Return the vector of a message; ValueError if `encode` cannot have written it."""
        message = _Message(self.form, data)
        length = message.count()
        block_length = message.count() or max(length, 1)
        wide, n_low = message.number(1), message.number(5)
        heights = message.heights(length)
        places = np.flatnonzero(heights)
        negative = message.numbers(len(places), 1)
        integers = (heights[places] - 1 << n_low) + message.numbers(len(places), n_low) + 1
        blocks, block = np.unique(places // block_length, return_inverse=True)
        steps = message.floats(len(blocks), "<f8" if wide else "<f4")
        with np.errstate(over="ignore"):
            magnitudes = integers * steps[block]
        if not ((steps > 0).all() and np.isfinite(magnitudes).all()):
            raise _damaged("positive steps and finite values", "others")
        vector = np.zeros(length)
        vector[places] = np.where(negative, -magnitudes, magnitudes)
        return vector

    def _factors(self, rows):
        """Return magnitudes of integers, (n, q), and steps, (n, n_blocks), 0 for a zero block."""
        magnitudes = in_blocks(np.abs(rows), self.block_length)
        steps = _least_nonzero(magnitudes)  # right wherever some integer is 1
        integers, wrong = _divide(magnitudes, steps)
        if wrong.any():
            odd = wrong.any(axis=2)
            steps[odd] = _common_divisors(magnitudes[odd])
            integers, wrong = _divide(magnitudes, steps)
        if wrong.any() or not integers.max(initial=0) <= self.most:
            raise ValueError(
                f"Expected whole multiples, at most {self.most}, of one step per block, got other "
                f"values. {_GIVE_COMPRESSED}"
            )
        return from_blocks(integers, rows.shape[1]), steps[:, :, 0]


def _least_nonzero(magnitudes):
    # The bits of floats >= 0, as integers, are in the order of the floats; 0 - 1 is the largest.
    least = reduce_blocks(np.minimum, magnitudes.view(np.uint64) - 1)
    return (least + 1).view(np.float64)


def _lowest_terms(integers, steps):
    """Divide the integers of each block by what they have in common, and multiply its step by it.

    The steps of zero blocks become 0.
    """
    common = reduce_blocks(np.logical_or, integers == 1).astype(np.float64)
    without = common[:, :, 0] == 0
    if without.any():
        common[without] = np.gcd.reduce(integers[without].astype(np.int64), axis=1, keepdims=True)
        integers = integers / np.maximum(common, 1.0)
    return integers, steps * common


def _divide(magnitudes, steps):
    """Return the nearest integers of steps, and where they are not exact."""
    spread = np.repeat(np.where(steps > 0, steps, 1.0), magnitudes.shape[2], axis=2)
    with np.errstate(over="ignore", invalid="ignore"):  # the caller refuses what comes of it
        integers = magnitudes / spread
        np.rint(integers, out=integers)
        spread *= integers
    return integers, spread != magnitudes


def _common_divisors(magnitudes):
    # Steps of 24 bits times integers of 22 are whole when the largest is scaled to 62 bits.
    shifts = 62 - np.frexp(magnitudes.max(axis=1, keepdims=True))[1]
    with np.errstate(invalid="ignore"):  # NaN and inf: the caller refuses them
        whole = np.ldexp(magnitudes, shifts).astype(np.int64)
    return np.ldexp(np.gcd.reduce(whole, axis=1, keepdims=True).astype(np.float64), -shifts)


def _need_doubles(steps):
    with np.errstate(over="ignore"):
        return (steps.astype(np.float32) != steps).any(axis=-1)


def _low_widths(largest):
    return np.maximum(_widths(largest - 1) - _HEIGHT_BITS, 0)


# ---- how many bits


def _widths(numbers):
    return np.frexp(numbers)[1]


def _count_size(count):
    return 6 + int(count).bit_length()


def _low_bits(n_items, n_rare):
    k = np.minimum(_widths(n_items // np.maximum(n_rare, 1)) - 1, _MOST_LOW_BITS)
    return np.where(n_rare > 0, k, _MOST_LOW_BITS)


def _reached(heights):
    """Return how many items of each row are at least 1, at least 2, and so on to the highest."""
    n, q = heights.shape
    reached = [(heights >= 1).sum(axis=1)]
    # Few are higher: only these are looked at again.
    places = np.flatnonzero(heights > 1)
    rows, higher = places // max(q, 1), heights.ravel()[places]
    while len(rows):
        reached.append(np.bincount(rows, minlength=n))
        taller = higher > len(reached)
        rows, higher = rows[taller], higher[taller]
    return reached


def _heights_size(n_items, reached):
    """Return the bits for the heights of rows of items: reached[h - 1] of a row are >= h."""
    counts = np.zeros((len(reached) + 2, len(reached[0])), dtype=np.int64)
    counts[0], counts[1:-1] = n_items, reached
    items, chosen = counts[:-1], counts[1:]
    n_rare = np.minimum(chosen, items - chosen)
    k = _low_bits(items, n_rare)
    subsets = np.where(k < 2, items, n_rare * (1 + k) - (-items >> k))
    return (_widths(items) + subsets).sum(axis=0)


def _n_bytes(n_bits, n_float_bytes):
    return 3 - (-n_bits // 8) + n_float_bytes


# ---- writing


def _number_bits(numbers, width):
    return (np.asarray(numbers, dtype=np.int64)[:, None] >> np.arange(width) & 1 > 0).ravel()


def _count_bits(count):
    width = int(count).bit_length()
    return np.concatenate([_number_bits([width], 6), _number_bits([count], width)])


def _height_bits(heights):
    while len(heights):
        higher = heights > 0
        n_chosen = np.count_nonzero(higher)
        yield _number_bits([n_chosen], len(heights).bit_length())
        yield from _rare_bits(higher if 2 * n_chosen <= len(heights) else ~higher)
        heights = heights[higher] - 1


def _rare_bits(rare):
    places = np.flatnonzero(rare)
    k = int(_low_bits(len(rare), len(places)))
    if k < 2:
        return [rare]
    ranges = np.zeros(len(places) - (-len(rare) >> k), dtype=bool)
    ranges[(places >> k) + np.arange(len(places))] = True
    return [ranges, _number_bits(places, k)]


def _seal(form, bits, floats):
    body = bytes([form]) + np.packbits(np.concatenate(bits)).tobytes() + floats.tobytes()
    return body + crc_hqx(body, 0xFFFF).to_bytes(2, "little")


# ---- reading


def _damaged(expected, got):
    """Error for a message that nobody can have written so."""
    return ValueError(f"Expected {expected}, got {got}. {_SEND_AGAIN}")


class _Message:
    """Reads a message from front to back; what cannot be right is a ValueError."""

    def __init__(self, form, data):
        data = bytes(data)
        if len(data) < 4:
            raise _damaged("at least 4 bytes", len(data))
        expected, got = crc_hqx(data[:-2], 0xFFFF), int.from_bytes(data[-2:], "little")
        if got != expected:
            raise _damaged(f"checksum {expected:#06x}", f"{got:#06x}")
        if data[0] != form:
            raise ValueError(
                f"Expected format byte {form:#04x}, got {data[0]:#04x}. Decode with the operator "
                "that encoded."
            )
        self._body = data[1:-2]
        self._bits = np.unpackbits(np.frombuffer(self._body, np.uint8))
        self._start = 0

    def _take(self, n_bits):
        start, self._start = self._start, self._start + n_bits
        if self._start > len(self._bits):
            raise _damaged(f"at least {self._start} bits", len(self._bits))
        return self._bits[start : self._start]

    def numbers(self, n_numbers, width):
        digits = self._take(n_numbers * width).reshape(n_numbers, width).astype(np.int64)
        return (digits << np.arange(width)).sum(axis=1)

    def number(self, width):
        return int(self.numbers(1, width)[0])

    def count(self):
        count = self.number(self.number(6))
        if count >= MAX_LENGTH:
            raise _damaged("a length below 2**52", count)
        return count

    def heights(self, n_items):
        chosen = self._subset(n_items)
        heights = chosen.astype(np.int64)
        places = np.flatnonzero(chosen)
        while len(places):
            places = places[self._subset(len(places))]
            heights[places] += 1
        return heights

    def _subset(self, n_items):
        n_chosen = self.number(n_items.bit_length())
        n_rare = min(n_chosen, n_items - n_chosen)
        if n_rare < 0:
            raise _damaged(f"at most {n_items} items", n_chosen)
        rare = self._rare(n_items, n_rare)
        return rare if n_rare == n_chosen else ~rare

    def _rare(self, n_items, n_rare):
        k = int(_low_bits(n_items, n_rare))
        bits = self._take(n_items if k < 2 else n_rare - (-n_items >> k)).astype(bool)
        ones = np.flatnonzero(bits)
        if len(ones) != n_rare:
            raise _damaged(f"{n_rare} ones", len(ones))
        if k < 2:
            return bits
        places = (ones - np.arange(n_rare) << k) + self.numbers(n_rare, k)
        if (np.diff(places) <= 0).any() or (places >= n_items).any():
            raise _damaged(f"increasing places below {n_items}", places)
        rare = np.zeros(n_items, dtype=bool)
        rare[places] = True
        return rare

    def floats(self, n_floats, dtype):
        """Read the rest."""
        if self._take(-self._start % 8).any():
            raise _damaged("zeros after the last bit", "a one")
        rest = self._body[self._start // 8 :]
        if len(rest) != n_floats * np.dtype(dtype).itemsize:
            raise _damaged(f"{n_floats} floats of type {dtype}", f"{len(rest)} bytes")
        with np.errstate(invalid="ignore"):  # NaN: refused below
            floats = np.frombuffer(rest, dtype).astype(np.float64)
        check_finite(floats, hint=_SEND_AGAIN)
        return floats
