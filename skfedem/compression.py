"""Compression of client vectors: operators, their relative variance omega, and their exact bytes.

An operator Q is unbiased and has a bounded relative variance (assumption A6 of Dieuleveut, Fort,
Moulines, Robin, "Federated Expectation Maximization with heterogeneity mitigation and variance
reduction", NeurIPS 2021): ``E Q(x) = x`` and ``E ||Q(x)||^2 <= (1 + omega) ||x||^2``.

Bytes of a message, in order (integers are LEB128 varints, floats little-endian, bits packed with
the most significant first, the last byte filled with zeros):

- 1 byte: high half the version of the format, low half the operator;
- `RandK`: 1 byte, how the places of the non-zeros are written. `Dithering`, `BlockQuantizer`:
  the same byte with flags (64: a block length follows; 128: steps take 8 bytes, not 4), and
  1 byte, how the sizes are written;
- the length of the vector and, if flagged, the block length;
- `Identity`: the float64 values; `RandK`: the bits of the places, then the non-zero float64 values;
- `Dithering`, `BlockQuantizer`: the bits of the places, of the sizes, and of the signs (1:
  negative), then one step for each block that has a non-zero;
- 2 bytes: the CRC-16 of all before it. It refuses every single or double bit flip of a message
  below 4 kB and every burst of at most 16 bits; other damage passes once in 65536 times at most
  if it also keeps to the format.

Places code ``1``: a bitmap; ``1 + k``: Elias-Fano, the k low bits of an index as they are and the
rest as counts per 2^k indexes; ``0``: none, the sizes of all coordinates follow, zeros included.
Sizes code ``0``: all non-zeros have size 1; ``1 + m``: Rice code, ``size >> m`` in unary and m low
bits, of size - 1 (of the size itself if there is no places code).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from binascii import crc_hqx
from dataclasses import KW_ONLY, dataclass, replace
from numbers import Integral, Real
from typing import ClassVar, NamedTuple

import numpy as np

__all__ = ["BlockQuantizer", "Compressor", "Dithering", "Identity", "RandK"]

# With 24-bit steps, level * step is exact in float64 for all levels below 2**29.
_MAX_LEVELS = 2**20
# A message of b bits describes at most 2**12 * b coordinates: damaged bytes cannot ask for more.
_MAX_LOW_BITS = 12
_MAX_LENGTH = 2**62
_MAX_NORM = 2.0**1022
_LARGEST = np.finfo(np.float64).max


class Compressor(ABC):
    """What every compression operator provides.

    An operator is a frozen, stateless value: all randomness comes in as `uniforms`, so the same
    inputs give the same output on any machine, in any grouping of the vectors. Every method takes
    one vector (q,), n vectors of one length (n, q), or, with `lengths` (n,), a flat array that
    holds n vectors of these lengths back to back; the result for a vector does not depend on the
    others. A new operator implements the methods below and keeps to these rules:

    - unbiased: the mean of ``compress(x, uniforms)`` over uniform draws is x;
    - bounded: the mean of its squared norm is at most ``(1 + omega_for(q)) * ||x||^2``;
    - a zero coordinate stays 0.0, -0.0 is never returned, inputs are never changed;
    - ``decode(encode(v))`` is v bit for bit, and ``len(encode(v)) == n_bytes(v)``, for every v
      that `compress` returned; `decode` refuses all other bytes with ValueError.
    """

    @abstractmethod
    def omega_for(self, length):
        """Return the relative variance omega that holds for vectors of this length.

        Parameters
        ----------
        length : int or array of int
            Number of coordinates q of a vector, >= 0.

        Returns
        -------
        float or ndarray of float64
            omega, without unit, in the shape of `length`.
        """

    @abstractmethod
    def with_omega(self, omega):
        """Return a copy whose level follows a wanted `omega` > 0 (each length its own level)."""

    @abstractmethod
    def compress(self, values, uniforms, lengths=None):
        """Return the compressed vectors, decoded: what the server will see.

        Parameters
        ----------
        values : array of shape (q,), (n, q) or, with `lengths`, (sum(lengths),)
            The vectors, finite; norms at most 2**1022.
        uniforms : array of the shape of `values`
            Independent draws of the uniform law on [0, 1).
        lengths : array of int of shape (n,), optional
            Lengths >= 0 of the vectors in a flat `values`.

        Returns
        -------
        ndarray of float64, of the shape of `values`

        Raises
        ------
        ValueError
            Shapes that do not fit, values that are not finite, uniforms outside [0, 1).
        TypeError
            Arrays that are not of real numbers.
        """

    @abstractmethod
    def variance(self, values, lengths=None):
        """Return the exact E ||Q(x) - x||^2 of each vector x, shape (n,); (1,) for one vector."""

    @abstractmethod
    def n_bytes(self, values, lengths=None):
        """Return the length of the encoding of each *compressed* vector, without encoding it.

        Parameters
        ----------
        values : array of shape (q,), (n, q) or, with `lengths`, (sum(lengths),)
            Vectors that `compress` returned.
        lengths : array of int of shape (n,), optional
            Lengths >= 0 of the vectors in a flat `values`.

        Returns
        -------
        ndarray of int64 of shape (n,), or (1,) for one vector of shape (q,)
            Bytes, header and checksum included.
        """

    @abstractmethod
    def encode(self, values):
        """Return the bytes that stand for one compressed vector.

        Parameters
        ----------
        values : array of shape (q,)
            A vector that `compress` returned.

        Raises
        ------
        ValueError
            Values that this operator cannot have returned.
        """

    @abstractmethod
    def decode(self, data):
        """Return the vector, shape (q,), that `encode` turned into `data`.

        Parameters
        ----------
        data : bytes
            A whole message. It describes itself: it may come from an operator of the same class
            with another level.

        Raises
        ------
        ValueError
            Truncated, over-long or damaged bytes, or the message of another operator.
        """


class _Blocks(NamedTuple):
    """Consecutive non-empty pieces of a flat array: `owner` is the vector of each piece."""

    owner: np.ndarray
    sizes: np.ndarray
    starts: np.ndarray


def _real_array(name, array):
    array = np.asarray(array)
    if array.dtype.kind not in "fiub" and array.size:
        raise TypeError(f"{name} must be an array of real numbers, got dtype {array.dtype}")
    return np.asarray(array, dtype=np.float64)


def _as_lengths(name, lengths):
    array = np.asarray(lengths)
    if array.dtype.kind not in "iu" and array.size:
        raise TypeError(f"{name} must be integers, got dtype {array.dtype}")
    if array.size and not (array.min() >= 0 and array.max() < _MAX_LENGTH):
        raise ValueError(f"{name} must lie in [0, 2**62), got {array.min()} .. {array.max()}")
    return array.astype(np.int64)


def _as_vectors(values, lengths):
    """Return (values as given but float64, the same flat, the length of each vector)."""
    values = _real_array("values", values)
    if lengths is None:
        if values.ndim not in (1, 2):
            raise ValueError(
                f"values must have shape (q,) or (n, q), got {values.shape}; "
                "give vectors of different lengths as a flat array with lengths"
            )
        n, q = (1, len(values)) if values.ndim == 1 else values.shape
        return values, values.ravel(), np.full(n, q, dtype=np.int64)
    sizes = _as_lengths("lengths", lengths)
    if values.ndim != 1 or sizes.ndim != 1 or sizes.sum() != len(values):
        raise ValueError(
            "with lengths, values must be flat and hold sum(lengths) numbers: got values of shape "
            f"{values.shape}, lengths of shape {sizes.shape} and sum {sizes.sum()}"
        )
    return values, values, sizes


def _one_vector(values):
    values, flat, sizes = _as_vectors(values, None)
    if values.ndim != 1:
        raise ValueError(f"encode takes one vector of shape (q,), got shape {values.shape}")
    return flat, sizes


def _as_uniforms(uniforms, values):
    uniforms = _real_array("uniforms", uniforms)
    if uniforms.shape != values.shape:
        raise ValueError(
            f"uniforms must have the shape of values, {values.shape}, got {uniforms.shape}"
        )
    if uniforms.size and not (uniforms.min() >= 0 and uniforms.max() < 1):
        raise ValueError(f"uniforms must lie in [0, 1), got {uniforms.min()} .. {uniforms.max()}")
    return uniforms.ravel()


def _check_finite(flat):
    if not np.isfinite(flat).all():
        bad = flat[~np.isfinite(flat)]
        raise ValueError(f"values must be finite, got {len(bad)} NaN or inf, first {bad[0]}")


def _check_size(flat, largest):
    """Refuse NaN, infinite or too large numbers, given the largest norm (or NaN) found."""
    if not largest <= _MAX_NORM:
        _check_finite(flat)
        raise ValueError(f"norms of values must be at most 2**1022, got {largest}: rescale them")


def _split(sizes, block_length):
    """Cut each vector into blocks of `block_length` (None: one block), the last one shorter."""
    if block_length is None:
        owner = np.flatnonzero(sizes)
        block_sizes = sizes[owner]
    else:
        n_blocks = -(-sizes // block_length)
        owner = np.repeat(np.arange(len(sizes)), n_blocks)
        block_sizes = np.full(len(owner), block_length, dtype=np.int64)
        filled = n_blocks > 0
        last = np.cumsum(n_blocks)[filled] - 1
        block_sizes[last] = sizes[filled] - (n_blocks[filled] - 1) * block_length
    return _Blocks(owner, block_sizes, np.cumsum(block_sizes) - block_sizes)


def _sums(flat, sizes):
    """Sum each vector of a flat array; an empty vector gives 0."""
    blocks = _split(sizes, None)
    sums = np.zeros(len(sizes))
    sums[blocks.owner] = np.add.reduceat(flat, blocks.starts)
    return sums


def _norms(magnitudes, blocks, norm):
    """Return the 2-norm or inf-norm of each block of absolute values."""
    if norm == np.inf:
        norms = np.maximum.reduceat(magnitudes, blocks.starts)
    else:
        with np.errstate(over="ignore"):
            squares = np.add.reduceat(magnitudes * magnitudes, blocks.starts)
        norms = np.sqrt(squares)
        # Squares of tiny or huge numbers under- or overflow; NaN fails the comparison too.
        unsafe = ~((squares > 1e-280) & (squares < 1e300))
        if unsafe.any():
            norms[unsafe] = _scaled_norms(magnitudes, blocks, unsafe)
    _check_size(magnitudes, norms.max(initial=0.0))
    return norms


def _scaled_norms(magnitudes, blocks, chosen):
    sizes = blocks.sizes[chosen]
    part = magnitudes[np.repeat(chosen, blocks.sizes)]
    starts = np.cumsum(sizes) - sizes
    peaks = np.maximum.reduceat(part, starts)
    _check_size(part, peaks.max())
    part = part / np.repeat(np.where(peaks > 0, peaks, 1.0), sizes)
    with np.errstate(over="ignore"):
        return peaks * np.sqrt(np.add.reduceat(part * part, starts))


def _shorten(steps, rounding):
    """Round to 24 significant bits, so that a float32 holds the step unless out of its range."""
    mantissas, exponents = np.frexp(steps)
    return np.ldexp(rounding(np.ldexp(mantissas, 24)), exponents - 24)


def _varint(number):
    groups = [number & 127]
    while number := number >> 7:
        groups[-1] |= 128
        groups.append(number & 127)
    return bytes(groups)


def _varint_sizes(numbers):
    return 1 + np.searchsorted(2 ** (7 * np.arange(1, 9)), numbers, side="right")


def _read_varint(body, start):
    """Return (number, where the next item starts)."""
    for stop in range(start, min(start + 9, len(body))):
        if body[stop] < 128:
            number = sum((byte & 127) << 7 * i for i, byte in enumerate(body[start : stop + 1]))
            if number >= _MAX_LENGTH or (stop > start and body[stop] == 0):
                raise ValueError(f"expected a length below 2**62 in shortest form, got {number}")
            return number, stop + 1
    raise ValueError(f"expected a length at byte {start}, got the end of the message or no end")


def _seal(body):
    return body + crc_hqx(body, 0xFFFF).to_bytes(2, "little")


def _unseal(data, form, n_head):
    """Return a message without its checksum; refuse damage and messages of another operator."""
    data = bytes(data)
    if len(data) < n_head + 3:
        raise ValueError(f"expected at least {n_head + 3} bytes, got {len(data)}")
    body, got = data[:-2], int.from_bytes(data[-2:], "little")
    expected = crc_hqx(body, 0xFFFF)
    if got != expected:
        raise ValueError(
            f"expected checksum {expected:#06x}, got {got:#06x}: bytes were damaged or lost"
        )
    if body[0] != form:
        raise ValueError(f"expected format byte {form:#04x}, got {body[0]:#04x}")
    return body


def _read_floats(body, start, count, dtype):
    """Read the rest of a message as `count` finite numbers."""
    n_bytes = count * np.dtype(dtype).itemsize
    if len(body) - start != n_bytes:
        raise ValueError(f"expected {n_bytes} bytes of floats, got {len(body) - start}")
    with np.errstate(invalid="ignore"):  # NaN: refused below
        floats = np.frombuffer(body, dtype, offset=start).astype(np.float64)
    if not np.isfinite(floats).all():
        raise ValueError("expected finite numbers, got NaN or inf")
    return floats


def _pack(pieces):
    return np.packbits(np.concatenate(pieces).astype(bool)).tobytes()


def _end_of_bits(bits, used, start):
    """Return the byte where the bit section that began at byte `start` ends."""
    n_used_bytes = -(-used // 8)
    if bits[used : 8 * n_used_bytes].any():
        raise ValueError("expected zeros after the last bit, got a one")
    return start + n_used_bytes


def _need_bits(bits, stop):
    if stop > len(bits):
        raise ValueError(f"expected at least {stop} bits, got {len(bits)}")


def _fixed_bits(numbers, width):
    return (numbers[:, None] >> np.arange(width)) & 1


def _read_fixed(bits, start, count, width):
    stop = start + count * width
    _need_bits(bits, stop)
    digits = bits[start:stop].reshape(count, width).astype(np.int64)
    return (digits << np.arange(width)).sum(axis=1), stop


def _place_code(sizes, n_nonzero):
    """Return (low bits k, bits in all) of the cheapest code of the places; k = 0 is the bitmap."""
    low_bits = np.arange(1, _MAX_LOW_BITS + 1)[:, None]
    costs = np.empty((1 + _MAX_LOW_BITS, len(sizes)), dtype=np.int64)
    costs[0] = sizes
    costs[1:] = n_nonzero * (1 + low_bits) - (-sizes >> low_bits)
    k = costs.argmin(axis=0)
    return k, costs[k, np.arange(len(sizes))]


def _place_bits(indices, length, k):
    if k == 0:
        bitmap = np.zeros(length, dtype=bool)
        bitmap[indices] = True
        return [bitmap]
    counts = np.zeros(len(indices) - (-length >> k), dtype=bool)
    counts[(indices >> k) + np.arange(len(indices))] = True
    return [counts, _fixed_bits(indices, k).ravel()]


def _read_places(bits, length, k):
    """Return (indices of the non-zeros, bits used)."""
    if not 0 <= k <= _MAX_LOW_BITS:
        raise ValueError(f"expected a places code in [1, {1 + _MAX_LOW_BITS}], got {1 + k}")
    n_groups = -(-length >> k)
    _need_bits(bits, n_groups)
    if k == 0:
        return np.flatnonzero(bits[:length]), length
    stops = np.flatnonzero(bits == 0)[:n_groups]
    if len(stops) < n_groups:
        raise ValueError(f"expected {n_groups} groups of places, got {len(stops)}")
    stop = int(stops[-1]) + 1 if n_groups else 0
    ones = np.flatnonzero(bits[:stop])
    low, stop = _read_fixed(bits, stop, len(ones), k)
    indices = (ones - np.arange(len(ones)) << k) + low
    if (np.diff(indices) <= 0).any() or (indices >= length).any():
        raise ValueError(f"expected increasing indexes below {length}, got {indices}")
    return indices, stop


def _rice_parameter(totals, counts):
    """Return the least m >= 0 with mean + 1/2 <= 2**(m + 1).

    A further low bit costs one bit a number and saves E[n >> m] - E[n >> (m + 1)], which is about
    (mean + 1/2) / 2**(m + 1) for geometric as for half-normal numbers.
    """
    means = totals / np.maximum(counts, 1)
    return np.ceil(np.log2(np.maximum(means + 0.5, 2.0))).astype(np.int64) - 1


def _rice_bits(numbers, m):
    quotients = numbers >> m
    unary = np.zeros(int(quotients.sum()) + len(numbers), dtype=bool)
    unary[np.cumsum(quotients + 1) - 1] = True
    return [unary, _fixed_bits(numbers, m).ravel()]


def _read_rice(bits, start, count, m):
    """Return (numbers, where the next bits start)."""
    if m > 1 + _MAX_LEVELS.bit_length():
        raise ValueError(f"expected at most {1 + _MAX_LEVELS.bit_length()} low bits, got {m}")
    _need_bits(bits, start + count * (1 + m))
    stops = np.flatnonzero(bits[start:])[:count]
    if len(stops) < count:
        raise ValueError(f"expected {count} sizes, got {len(stops)}")
    low, stop = _read_fixed(bits, start + (int(stops[-1]) + 1 if count else 0), count, m)
    return (np.diff(stops, prepend=-1) - 1 << m) + low, stop


class _Plan(NamedTuple):
    """How compressed vectors are written: per coordinate, per block, and per vector."""

    levels: np.ndarray
    steps: np.ndarray
    used: np.ndarray
    wide: np.ndarray
    k: np.ndarray
    m: np.ndarray
    n_bytes: np.ndarray


def _least_nonzero(magnitudes, starts):
    """Return the least non-zero number of each block, _LARGEST if there is none."""
    # Four times as fast as np.where, which mispredicts its branches on random zeros.
    filled = (magnitudes == 0) * _LARGEST
    return np.minimum.reduceat(np.maximum(magnitudes, filled, out=filled), starts)


def _quotients(magnitudes, spread):
    with np.errstate(over="ignore", invalid="ignore"):  # values that the caller then refuses
        ratios = magnitudes / spread
    return np.rint(ratios, out=ratios)


def _find_levels(magnitudes, blocks, most):
    """Return (levels, steps): the greatest step of which each number of a block is a multiple."""
    steps = _least_nonzero(magnitudes, blocks.starts)
    steps[steps == _LARGEST] = 1.0
    spread = np.repeat(steps, blocks.sizes)
    levels = _quotients(magnitudes, spread)
    spread *= levels
    odd = spread != magnitudes
    if odd.any():
        blocks_left = np.logical_or.reduceat(odd, blocks.starts)
        chosen = np.repeat(blocks_left, blocks.sizes)
        steps[blocks_left] = _common_steps(magnitudes[chosen], blocks.sizes[blocks_left], most)
        spread = np.repeat(steps, blocks.sizes)
        levels = _quotients(magnitudes, spread)
    if not levels.max(initial=0.0) <= most:
        raise _not_multiples(most)
    return levels, steps


def _common_steps(magnitudes, sizes, most):
    """Return the greatest common divisor of each block: Euclid, with exact remainders."""
    _check_finite(magnitudes)
    starts = np.cumsum(sizes) - sizes
    least_allowed = np.maximum.reduceat(magnitudes, starts) / most
    steps = _least_nonzero(magnitudes, starts)
    while True:
        spread = np.repeat(steps, sizes)
        remainders = np.fmod(magnitudes, spread)
        smaller = _least_nonzero(remainders, starts)
        if (smaller == _LARGEST).all():
            return steps
        magnitudes = np.where(remainders > 0, remainders, spread)
        steps = np.minimum(steps, smaller)
        # Half a step of slack: the quotient is rounded.
        if (steps < least_allowed * (1 - 0.5 / most)).any():
            raise _not_multiples(most)


def _not_multiples(most):
    return ValueError(
        f"expected whole multiples, at most {most}, of one step per block, got other values: "
        "give what compress of this operator returned"
    )


def _quotient_sums(levels, less, sizes, totals, m):
    """Sum ``(levels - less) >> m`` over each vector; `totals` are the sums for m = 0."""
    if not m.any():
        return totals
    return _sums(np.floor((levels - less) * np.repeat(2.0**-m, sizes)), sizes).astype(np.int64)


def _plan(flat, sizes, block_length, most):
    """Decide how each of the compressed vectors is written."""
    blocks = _split(sizes, block_length)
    magnitudes = np.abs(flat)
    levels, steps = _find_levels(magnitudes, blocks, most)
    nonzero = levels > 0
    n_nonzero = _sums(nonzero.astype(np.float64), sizes).astype(np.int64)
    totals = _sums(levels, sizes).astype(np.int64)
    extra = totals - n_nonzero

    k, bits = _place_code(sizes, n_nonzero)
    m = _rice_parameter(extra, n_nonzero)
    sizes_bits = n_nonzero * (1 + m) + _quotient_sums(levels, nonzero, sizes, extra, m)
    bits += np.where(extra > 0, sizes_bits, 0)
    m_all = _rice_parameter(totals, sizes)
    bits_all = sizes * (1 + m_all) + _quotient_sums(levels, 0, sizes, totals, m_all)
    dense = bits_all < bits

    used = np.logical_or.reduceat(nonzero, blocks.starts)
    with np.errstate(over="ignore"):
        narrow = steps.astype(np.float32) == steps
    wide = np.bincount(blocks.owner[used & ~narrow], minlength=len(sizes)) > 0
    n_used = np.bincount(blocks.owner[used], minlength=len(sizes))
    n_bits = np.where(dense, bits_all, bits) + n_nonzero
    return _Plan(
        levels=levels,
        steps=steps,
        used=used,
        wide=wide,
        k=np.where(dense, -1, k),
        m=np.where(dense, m_all, np.where(extra > 0, m, -1)),
        n_bytes=-(-n_bits // 8) + n_used * np.where(wide, 8, 4),
    )


class _Stepped(Compressor):
    """Operators that return whole multiples of one step per block."""

    _form: ClassVar[int]

    @abstractmethod
    def _block_length(self):
        """Return the length of a block; None: a vector is one block."""

    @abstractmethod
    def _most(self, sizes):
        """Return the largest level that `compress` may give to a vector of these lengths."""

    @abstractmethod
    def _steps(self, magnitudes, sizes, blocks):
        """Return the step of each block, > 0."""

    @abstractmethod
    def _round(self, ratios, uniforms):
        """Round |x| / step at random, in place."""

    def compress(self, values, uniforms, lengths=None):
        """Return the compressed vectors; see `Compressor.compress`."""
        values, flat, sizes = _as_vectors(values, lengths)
        uniforms = _as_uniforms(uniforms, values)
        blocks = _split(sizes, self._block_length())
        out = np.abs(flat)
        steps = np.repeat(self._steps(out, sizes, blocks), blocks.sizes)
        out /= steps
        self._round(out, uniforms)
        out *= steps
        np.copysign(out, flat, out=out)
        out += 0.0  # turns -0.0 into 0.0
        return out.reshape(values.shape)

    def variance(self, values, lengths=None):
        """Return the sum of ``step^2 f (1 - f)``, f the fractional part of |x| / step.

        For levels 0 and 1 this is the sum over blocks of ``step ||x||_1 - ||x||^2``.
        """
        _, flat, sizes = _as_vectors(values, lengths)
        blocks = _split(sizes, self._block_length())
        magnitudes = np.abs(flat)
        steps = np.repeat(self._steps(magnitudes, sizes, blocks), blocks.sizes)
        fractions = magnitudes / steps
        fractions -= np.floor(fractions)
        return _sums((steps * fractions) * (steps * (1 - fractions)), sizes)

    def n_bytes(self, values, lengths=None):
        """Return bytes per compressed vector, shape (n,); see `Compressor.n_bytes`."""
        _, flat, sizes = _as_vectors(values, lengths)
        plan = _plan(flat, sizes, self._block_length(), self._most(sizes))
        n_head = 5 + len(self._block_length_bytes())
        return n_head + _varint_sizes(sizes) + plan.n_bytes

    def _block_length_bytes(self):
        block_length = self._block_length()
        return b"" if block_length is None else _varint(block_length)

    def encode(self, values):
        """Return the bytes of one compressed vector; see `Compressor.encode`."""
        flat, sizes = _one_vector(values)
        plan = _plan(flat, sizes, self._block_length(), self._most(sizes))
        k, m = int(plan.k[0]), int(plan.m[0])
        block_length = self._block_length_bytes()
        flags = 64 * (block_length != b"") + 128 * bool(plan.wide[0])
        head = bytes([self._form, 1 + k + flags, 1 + m]) + _varint(len(flat)) + block_length
        indices = np.flatnonzero(plan.levels)
        levels = plan.levels.astype(np.int64)
        bits = [] if k < 0 else _place_bits(indices, len(flat), k)
        if m >= 0:
            bits += _rice_bits(levels if k < 0 else levels[indices] - 1, m)
        bits.append(flat[indices] < 0)
        steps = plan.steps[plan.used].astype("<f8" if plan.wide[0] else "<f4")
        return _seal(head + _pack(bits) + steps.tobytes())

    def decode(self, data):
        """Return the vector that `encode` turned into `data`; see `Compressor.decode`."""
        body = _unseal(data, self._form, 3)
        flags, k, m = body[1] & 192, (body[1] & 63) - 1, body[2] - 1
        length, start = _read_varint(body, 3)
        block_length, start = _read_varint(body, start) if flags & 64 else (max(length, 1), start)
        if block_length == 0 or (k < 0 and m < 0):
            raise ValueError("expected blocks of length >= 1 and a code of places or sizes")
        bits = np.unpackbits(np.frombuffer(body, np.uint8, offset=start))
        if k < 0:
            levels, used = _read_rice(bits, 0, length, m)
            indices = np.flatnonzero(levels)
            levels = levels[indices]
        else:
            indices, used = _read_places(bits, length, k)
            levels = 1
            if m >= 0:
                levels, used = _read_rice(bits, used, len(indices), m)
                levels += 1
        _need_bits(bits, used + len(indices))
        negative = bits[used : used + len(indices)]
        start = _end_of_bits(bits, used + len(indices), start)
        blocks, owner = np.unique(indices // block_length, return_inverse=True)
        steps = _read_floats(body, start, len(blocks), "<f8" if flags & 128 else "<f4")
        with np.errstate(over="ignore"):
            magnitudes = levels * steps[owner]
        if not ((steps > 0).all() and np.isfinite(magnitudes).all()):
            raise ValueError("expected positive steps and finite values, got others")
        values = np.zeros(length)
        values[indices] = np.where(negative, -magnitudes, magnitudes)
        return values


def _check_norm(norm):
    if norm not in (2, np.inf):
        raise ValueError(f"norm must be 2 or numpy.inf, got {norm!r}")


def _check_count(name, count, most=_MAX_LENGTH):
    if isinstance(count, bool) or not isinstance(count, Integral):
        raise TypeError(f"{name} must be an integer, got {count!r}")
    if not 1 <= count <= most:
        raise ValueError(f"{name} must lie in [1, {most}], got {count}")


def _check_omega(omega):
    if isinstance(omega, bool) or not isinstance(omega, Real):
        raise TypeError(f"omega must be a real number, got {omega!r}")
    if not 0 < omega < np.inf:
        raise ValueError(
            f"omega must be positive and finite, got {omega}; for no compression use Identity()"
        )


def _check_one_of(name, level, omega, most=_MAX_LENGTH):
    if (level is None) == (omega is None):
        raise ValueError(
            f"give exactly one of {name} and omega, got {name}={level!r} and omega={omega!r}"
        )
    if level is None:
        _check_omega(omega)
    else:
        _check_count(name, level, most)


def _item(array):
    """Return a Python number for a single value, the array otherwise."""
    return array.item() if array.ndim == 0 else array


@dataclass(frozen=True)
class Identity(Compressor):
    """No compression: Q(x) = x, omega = 0, 8 bytes a coordinate.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedem.compression import Identity
    >>> Identity().compress([1.5, -2.0], np.zeros(2))
    array([ 1.5, -2. ])
    >>> Identity().n_bytes([1.5, -2.0])
    array([20])
    """

    _form: ClassVar[int] = 0x10

    def omega_for(self, length):
        """Return 0 in the shape of `length`."""
        return _item(np.zeros(_as_lengths("length", length).shape))

    def with_omega(self, omega):
        """Return the operator itself: its omega is below any wanted one."""
        _check_omega(omega)
        return self

    def compress(self, values, uniforms, lengths=None):
        """Return a copy of the vectors; see `Compressor.compress`."""
        values, flat, _ = _as_vectors(values, lengths)
        _as_uniforms(uniforms, values)
        _check_finite(flat)
        return values + 0.0

    def variance(self, values, lengths=None):
        """Return 0 for each vector, shape (n,)."""
        return np.zeros(len(_as_vectors(values, lengths)[2]))

    def n_bytes(self, values, lengths=None):
        """Return ``8 q`` and the header for each vector, shape (n,); see `Compressor.n_bytes`."""
        sizes = _as_vectors(values, lengths)[2]
        return 3 + _varint_sizes(sizes) + 8 * sizes

    def encode(self, values):
        """Return the bytes of one vector; see `Compressor.encode`."""
        flat, _ = _one_vector(values)
        _check_finite(flat)
        return _seal(bytes([self._form]) + _varint(len(flat)) + flat.astype("<f8").tobytes())

    def decode(self, data):
        """Return the vector that `encode` turned into `data`; see `Compressor.decode`."""
        body = _unseal(data, self._form, 1)
        length, start = _read_varint(body, 1)
        return _read_floats(body, start, length, "<f8")


@dataclass(frozen=True)
class Dithering(_Stepped):
    """Random dithering: round each coordinate at random to a neighbouring multiple of a step.

    ``Q(x)_j = step * sign(x_j) * floor(|x_j| / step + xi_j)``, xi_j uniform on [0, 1), with
    ``step = ||x|| / levels``, rounded down to 24 significant bits so that it travels as a float32
    (as a float64 out of float32's range). Any step keeps Q unbiased, and a smaller one only lowers
    the variance: ``omega = min(q / (4 levels^2), sqrt(q) / levels)`` holds for both norms, as
    ``||x||_inf <= ||x||_2``. The factor 4, absent from the source, is ours: a rounding's variance
    f (1 - f) is at most 1/4.

    Parameters
    ----------
    levels : int, optional
        Number of steps in the norm of a vector, 1 .. 2**20. Give this or `omega`.
    omega : float, optional
        Wanted relative variance, > 0: each length gets the fewest levels that reach it.
    norm : {2, numpy.inf}, default=2
        Norm that sets the step.
    bucket_length : int, optional
        Cut vectors into buckets of this many coordinates, each with its own step; q is then the
        length of a bucket. By default a vector is one bucket.

    Raises
    ------
    ValueError, TypeError
        Both or none of `levels` and `omega`; a parameter out of its range or of another type.

    References
    ----------
    D. Alistarh, D. Grubic, J. Li, R. Tomioka, M. Vojnovic, "QSGD: communication-efficient SGD via
    gradient quantization and encoding", NeurIPS 2017.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedem.compression import Dithering
    >>> operator = Dithering(levels=5)
    >>> operator.omega_for(2)
    0.02
    >>> sent = operator.compress([3.0, -4.0], [0.5, 0.5])
    >>> sent
    array([ 3., -4.])
    >>> data = operator.encode(sent)
    >>> len(data), operator.n_bytes(sent)
    (12, array([12]))
    >>> operator.decode(data)
    array([ 3., -4.])
    """

    levels: int | None = None
    omega: float | None = None
    _: KW_ONLY
    norm: float = 2
    bucket_length: int | None = None

    _form: ClassVar[int] = 0x11

    def __post_init__(self):
        """Check the parameters."""
        _check_one_of("levels", self.levels, self.omega, _MAX_LEVELS)
        _check_norm(self.norm)
        if self.bucket_length is not None:
            _check_count("bucket_length", self.bucket_length)

    def _bucket_sizes(self, length):
        return np.minimum(_as_lengths("length", length), self.bucket_length or _MAX_LENGTH)

    def _levels(self, sizes):
        if self.levels is not None:
            return np.full(sizes.shape, self.levels)
        real = np.minimum(np.sqrt(sizes / (4 * self.omega)), np.sqrt(sizes) / self.omega)
        _check_levels(real, self.omega)
        levels = np.maximum(np.ceil(real), 1.0)
        # The ceiling of a rounded number may be one off.
        levels -= (levels > 1) & (_dithering_omega(sizes, np.maximum(levels - 1, 1)) <= self.omega)
        levels += _dithering_omega(sizes, levels) > self.omega
        return levels.astype(np.int64)

    def levels_for(self, length):
        """Return the number of levels for vectors of this length: int, or array of its shape."""
        return _item(self._levels(self._bucket_sizes(length)))

    def omega_for(self, length):
        """Return ``min(q / (4 levels^2), sqrt(q) / levels)``; see `Compressor.omega_for`."""
        sizes = self._bucket_sizes(length)
        return _item(_dithering_omega(sizes, self._levels(sizes)))

    def with_omega(self, omega):
        """Return a copy with the fewest levels that reach a wanted `omega` > 0."""
        return replace(self, levels=None, omega=omega)

    def _block_length(self):
        return self.bucket_length

    def _most(self, sizes):
        # Random rounding adds one; a denormal step may be almost twice too small.
        return 2 * int(self._levels(self._bucket_sizes(sizes)).max(initial=1)) + 1

    def _steps(self, magnitudes, sizes, blocks):
        norms = _norms(magnitudes, blocks, self.norm)
        levels = self._levels(self._bucket_sizes(sizes))[blocks.owner]
        steps = np.maximum(_shorten(norms / levels, np.floor), np.nextafter(0.0, 1.0))
        return np.where(norms > 0, steps, 1.0)

    def _round(self, ratios, uniforms):
        ratios += uniforms
        np.floor(ratios, out=ratios)


def _dithering_omega(sizes, levels):
    return np.minimum(sizes / (4.0 * levels * levels), np.sqrt(sizes) / levels)


def _check_levels(levels, omega):
    if levels.max(initial=0.0) > _MAX_LEVELS:
        raise ValueError(
            f"omega={omega} needs {levels.max():.3g} levels, more than the {_MAX_LEVELS} there "
            "are: ask for a larger omega, set bucket_length, or use Identity()"
        )


@dataclass(frozen=True)
class BlockQuantizer(_Stepped):
    """Block-p quantization: keep each sign with a probability proportional to the size.

    Per block: ``Q(x)_j = ||x||_p * sign(x_j) * U_j``, U_j a Bernoulli draw of probability
    ``|x_j| / ||x||_p`` (1 where a uniform is below it), with
    ``omega = sqrt(B) - 1`` (p = 2) or ``(sqrt(B) - 1) / 2`` (p = inf) for blocks of B coordinates,
    and variance ``||x||_1 ||x||_p - ||x||^2``. The norm is rounded up to 24 significant bits to
    travel as a float32, which may exceed omega by ``(1 + omega) 2**-23``. A block of one coordinate
    is sent as it is.

    Parameters
    ----------
    block_length : int, optional
        Coordinates in a block, B >= 1; the last block of a vector may be shorter. Give this or
        `omega`.
    omega : float, optional
        Wanted relative variance, > 0: the longest block that reaches it, ``floor((1 + omega)^2)``
        (p = 2) or ``floor((1 + 2 omega)^2)`` (p = inf).
    norm : {2, numpy.inf}, default=2
        The norm p.

    Raises
    ------
    ValueError, TypeError
        Both or none of `block_length` and `omega`; a parameter out of its range or of another type.

    References
    ----------
    A. Dieuleveut, G. Fort, E. Moulines, G. Robin, "Federated Expectation Maximization with
    heterogeneity mitigation and variance reduction", NeurIPS 2021, Appendix B, Lemma 5.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedem.compression import BlockQuantizer
    >>> operator = BlockQuantizer(omega=1.0)
    >>> operator.block_length_for(100)
    4
    >>> operator.compress([3.0, 0.0, -4.0, 0.0, 7.0], [0.7, 0.1, 0.7, 0.1, 0.9])
    array([ 0.,  0., -5.,  0.,  7.])
    """

    block_length: int | None = None
    omega: float | None = None
    _: KW_ONLY
    norm: float = 2

    _form: ClassVar[int] = 0x12

    def __post_init__(self):
        """Check the parameters."""
        _check_one_of("block_length", self.block_length, self.omega)
        _check_norm(self.norm)

    def _block_length(self):
        if self.block_length is not None:
            return self.block_length
        # Beyond 2**30 every block is the whole vector.
        root = 1 + min(self.omega, 2.0**30) * (1 if self.norm == 2 else 2)
        block_length = int(root**2)
        # The square of a rounded number may be one off.
        block_length += self._omega(block_length + 1) <= self.omega
        return block_length - int(self._omega(block_length) > self.omega)

    def _omega(self, sizes):
        return np.maximum(np.sqrt(sizes) - 1, 0) / (1 if self.norm == 2 else 2)

    def block_length_for(self, length):
        """Return the length of the longest block in vectors of this length."""
        return _item(np.minimum(_as_lengths("length", length), self._block_length()))

    def omega_for(self, length):
        """Return ``sqrt(B) - 1`` or half of it; see `Compressor.omega_for`."""
        return _item(self._omega(np.asarray(self.block_length_for(length))))

    def with_omega(self, omega):
        """Return a copy with the longest blocks that reach a wanted `omega` > 0."""
        return replace(self, block_length=None, omega=omega)

    def _most(self, sizes):
        return 1

    def _steps(self, magnitudes, sizes, blocks):
        norms = _norms(magnitudes, blocks, self.norm)
        steps = np.where(blocks.sizes > 1, _shorten(norms, np.ceil), norms)
        return np.where(norms > 0, steps, 1.0)

    def _round(self, ratios, uniforms):
        np.less(uniforms, ratios, out=ratios)


@dataclass(frozen=True)
class RandK(Compressor):
    """Random sparsification: keep k coordinates, drawn without replacement, times q / k.

    The coordinates with the k smallest uniforms stay (the first ones in a tie);
    ``omega = q / k - 1`` is exact: ``E ||Q(x) - x||^2 = omega ||x||^2``.

    Parameters
    ----------
    k : int, optional
        Coordinates to keep, >= 1; a shorter vector is kept as it is. Give this or `omega`.
    omega : float, optional
        Wanted relative variance, > 0: ``k = ceil(q / (1 + omega))`` for each length q.

    Raises
    ------
    ValueError, TypeError
        Both or none of `k` and `omega`; a parameter out of its range or of another type.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedem.compression import RandK
    >>> operator = RandK(omega=1.0)
    >>> operator.omega_for([4, 5]).round(3)
    array([1.   , 0.667])
    >>> operator.compress([1.0, 2.0, 3.0, 4.0], [0.3, 0.9, 0.1, 0.5])
    array([2., 0., 6., 0.])
    """

    k: int | None = None
    omega: float | None = None

    _form: ClassVar[int] = 0x13

    def __post_init__(self):
        """Check the parameters."""
        _check_one_of("k", self.k, self.omega)

    def _kept(self, sizes):
        if self.k is not None:
            return np.minimum(sizes, self.k)
        kept = np.ceil(sizes / (1 + self.omega)).astype(np.int64)
        # The ceiling of a rounded number may be one off.
        kept -= (kept > 1) & (_sparse_omega(sizes, kept - 1) <= self.omega)
        return kept + (_sparse_omega(sizes, kept) > self.omega)

    def k_for(self, length):
        """Return how many coordinates of vectors of this length stay: int, or array."""
        return _item(self._kept(_as_lengths("length", length)))

    def omega_for(self, length):
        """Return ``q / k - 1``, 0 for an empty vector; see `Compressor.omega_for`."""
        sizes = _as_lengths("length", length)
        return _item(_sparse_omega(sizes, self._kept(sizes)))

    def with_omega(self, omega):
        """Return a copy with the fewest kept coordinates that reach a wanted `omega` > 0."""
        return replace(self, k=None, omega=omega)

    def compress(self, values, uniforms, lengths=None):
        """Return the compressed vectors; see `Compressor.compress`."""
        values, flat, sizes = _as_vectors(values, lengths)
        uniforms = _as_uniforms(uniforms, values)
        _check_finite(flat)
        kept = self._kept(sizes)
        chosen = _ranks(uniforms, sizes) < np.repeat(kept, sizes)
        with np.errstate(over="ignore"):
            out = np.where(chosen, flat * np.repeat(sizes / np.maximum(kept, 1), sizes), 0.0)
        if not np.isfinite(out).all():
            raise ValueError("values times q / k must be finite, got an overflow: rescale them")
        out += 0.0  # turns -0.0 into 0.0
        return out.reshape(values.shape)

    def variance(self, values, lengths=None):
        """Return ``(q / k - 1) ||x||^2`` for each vector x, shape (n,)."""
        _, flat, sizes = _as_vectors(values, lengths)
        return _sparse_omega(sizes, self._kept(sizes)) * _sums(flat * flat, sizes)

    def n_bytes(self, values, lengths=None):
        """Return bytes per compressed vector, shape (n,); see `Compressor.n_bytes`."""
        _, flat, sizes = _as_vectors(values, lengths)
        n_nonzero = _sums((flat != 0).astype(np.float64), sizes).astype(np.int64)
        n_bits = _place_code(sizes, n_nonzero)[1]
        return 4 + _varint_sizes(sizes) - (-n_bits // 8) + 8 * n_nonzero

    def encode(self, values):
        """Return the bytes of one compressed vector; see `Compressor.encode`."""
        flat, sizes = _one_vector(values)
        _check_finite(flat)
        indices = np.flatnonzero(flat)
        if len(indices) > self._kept(sizes)[0]:
            raise ValueError(
                f"expected at most {self._kept(sizes)[0]} non-zeros, got {len(indices)}: "
                "give what compress of this operator returned"
            )
        k = int(_place_code(sizes, np.array([len(indices)]))[0][0])
        head = bytes([self._form, 1 + k]) + _varint(len(flat))
        places = _pack(_place_bits(indices, len(flat), k))
        return _seal(head + places + flat[indices].astype("<f8").tobytes())

    def decode(self, data):
        """Return the vector that `encode` turned into `data`; see `Compressor.decode`."""
        body = _unseal(data, self._form, 2)
        length, start = _read_varint(body, 2)
        bits = np.unpackbits(np.frombuffer(body, np.uint8, offset=start))
        indices, used = _read_places(bits, length, body[1] - 1)
        start = _end_of_bits(bits, used, start)
        nonzero = _read_floats(body, start, len(indices), "<f8")
        if not nonzero.all():
            raise ValueError("expected non-zero numbers, got a zero")
        values = np.zeros(length)
        values[indices] = nonzero
        return values


def _sparse_omega(sizes, kept):
    return np.maximum(sizes / np.maximum(kept, 1) - 1, 0.0)


def _ranks(uniforms, sizes):
    """Return the rank of each uniform within its vector, ties in order."""
    places = np.arange(len(uniforms)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    if len(sizes) and (sizes == sizes[0]).all():  # twice as fast as the general sort
        within = uniforms.reshape(len(sizes), -1).argsort(axis=1, kind="stable")
        order = (within + np.arange(len(sizes))[:, None] * sizes[0]).ravel()
    else:
        order = np.lexsort((uniforms, np.repeat(np.arange(len(sizes)), sizes)))
    ranks = np.empty_like(places)
    ranks[order] = places
    return ranks
