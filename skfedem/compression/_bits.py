"""Building blocks of messages: numbers as bits, floats and a checksum.

A message is one byte, `form`, which says whose it is; a stream of bits, where the first bit of a
byte is its highest and zeros follow the last bit; little-endian floats; and the CRC-16 of all this,
big-endian. A CRC-16 finds every one- or two-bit error of a message below 4 kB and every burst of at
most 16 bits; other damage passes at most once in 65536 times. Three things are written as bits:

- a *number* of a given width, its lowest bit first;
- a *count*: its width, a number of 6 bits, and itself;
- *heights*, small integers >= 0: which of N items exceed 0, then which of those exceed 1, and so
  on until no item is left. Each is a subset: its size n, a number as wide as N, and which items.
  With r the smaller of n and N - n, and k = floor(log2(N / r)) <= 12, the r rarer items are a
  bitmap of N bits if k < 2, and else an Elias-Fano code: for each range of 2^k indexes a one for
  each of the r in it, then a zero; after these the k low bits of each index.
"""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._typing import BoolArray, FloatArray, IntArray
from ._vectors import check_finite, reduce_segments

# N items then take at least N / 2**12 bits, so that damaged bytes cannot request a huge vector.
_MOST_LOW_BITS = 12
_SEND_AGAIN = "Bytes were damaged or lost: have the message sent again."

# ---- how many bits


def bit_widths(numbers: Any) -> Any:
    """Number of bits of the integer parts of positive numbers, 0 for 0."""
    return np.frexp(numbers)[1]


def size_of_count(count: Any) -> Any:
    """Bits of a count."""
    return 6 + bit_widths(count)


def _low_bits(n_items: Any, n_rare: Any) -> Any:
    """Number k of low bits in the code of a subset with ``n_rare`` of ``n_items`` items."""
    # For counts below 2**52, quotients only round to a power of two if they are one.
    ratio = n_items / np.maximum(n_rare, 2.0**-_MOST_LOW_BITS)
    return np.minimum(bit_widths(ratio) - 1, _MOST_LOW_BITS)


def n_reaching(heights: FloatArray, lengths: IntArray) -> list[IntArray]:
    """Numbers of items of each run that are at least 1, at least 2, and so on."""
    n = len(lengths)
    reached = [reduce_segments(np.add, heights >= 1, lengths)]
    # Only the few higher ones are counted again.
    positions = np.flatnonzero(heights > 1)
    runs, higher = np.repeat(np.arange(n), lengths)[positions], heights[positions]
    while len(runs):
        reached.append(np.bincount(runs, minlength=n))
        taller = (higher > len(reached)).nonzero()[0]  # a mask takes longer to apply
        runs, higher = runs[taller], higher[taller]
    return reached


def size_of_subset(n_items: IntArray, n_chosen: IntArray) -> IntArray:
    """Number of bits of a subset with n_chosen of n_items items."""
    n_rare = np.minimum(n_chosen, n_items - n_chosen)
    k = _low_bits(n_items, n_rare)
    return bit_widths(n_items) + np.where(k < 2, n_items, n_rare * (1 + k) - (-n_items >> k))


def size_of_heights(n_items: IntArray, reached: list[IntArray]) -> IntArray:
    """Number of bits of the heights of runs of n_items; reached[h - 1] of each are >= h."""
    counts = np.zeros((len(reached) + 2, len(reached[0])), dtype=np.int64)
    counts[0], counts[1:-1] = n_items, reached
    return size_of_subset(counts[:-1], counts[1:]).sum(axis=0)


def size_of_message(n_bits: IntArray, n_float_bytes: IntArray) -> IntArray:
    """Number of bytes of a message, from its numbers of bits and of bytes of floats."""
    return 3 - (-n_bits // 8) + n_float_bytes


# ---- writing


def number_bits(numbers: ArrayLike, width: int) -> BoolArray:
    """Numbers of a width as bits."""
    return (np.asarray(numbers, dtype=np.int64)[:, None] >> np.arange(width) & 1 > 0).ravel()


def count_bits(count: int) -> BoolArray:
    """A count as bits."""
    width = int(count).bit_length()
    return np.concatenate([number_bits([width], 6), number_bits([count], width)])


def height_bits(heights: IntArray) -> Iterator[BoolArray]:
    """Yield heights as bits."""
    while len(heights):
        higher = heights > 0
        yield from subset_bits(higher)
        heights = heights[higher] - 1


def subset_bits(chosen: BoolArray) -> Iterator[BoolArray]:
    """Yield which items are chosen as bits."""
    n_items, n_chosen = len(chosen), np.count_nonzero(chosen)
    yield number_bits([n_chosen], n_items.bit_length())
    yield from _rare_bits(chosen if 2 * n_chosen <= n_items else ~chosen)


def _rare_bits(rare: BoolArray) -> list[BoolArray]:
    """Rarer items of a subset as bits."""
    positions = np.flatnonzero(rare)
    k = int(_low_bits(len(rare), len(positions)))
    if k < 2:
        return [rare]
    ranges = np.zeros(len(positions) - (-len(rare) >> k), dtype=bool)
    ranges[(positions >> k) + np.arange(len(positions))] = True
    return [ranges, number_bits(positions, k)]


def message(form: int, bits: Sequence[BoolArray], *floats: FloatArray | bytes) -> bytes:
    """Message of arrays of bits and arrays of floats."""
    body = bytes([form]) + np.packbits(np.concatenate(bits)).tobytes()
    body += b"".join(bytes(array) for array in floats)
    # In the other order, some bursts of 13 bits at the end would pass.
    return body + crc_hqx(body, 0xFFFF).to_bytes(2, "big")


# ---- reading


def damage(expected: str, got: object) -> ValueError:
    """Error for a message that nobody can have written."""
    return ValueError(f"Expected {expected}, got {got}. {_SEND_AGAIN}")


class Reader:
    """Reads a message from front to back; raises ValueError for what cannot be right.

    What is read of a message of n bytes for a vector of q numbers takes less than 10 n + 8 q bytes
    of memory, so that forged messages cannot ask for more. The vector itself is allocated when its
    message has turned out to be right.
    """

    def __init__(self, form: int, data: bytes, length: int) -> None:
        try:
            data = bytes(memoryview(data))
        except TypeError as error:
            raise TypeError(
                f"Expected bytes, got {type(data).__name__}. Give what encode returned."
            ) from error
        if len(data) < 4:
            raise damage("at least 4 bytes", len(data))
        expected, got = crc_hqx(data[:-2], 0xFFFF), int.from_bytes(data[-2:], "big")
        if got != expected:
            raise damage(f"checksum {expected:#06x}", f"{got:#06x}")
        if data[0] != form:
            raise ValueError(
                f"Expected format byte {form:#04x}, got {data[0]:#04x}. Decode with the operator "
                "that encoded."
            )
        self._body = data[1:-2]
        self._start = 0
        got = self.count()
        if got != length:
            raise ValueError(
                f"Expected a vector of length {length}, got one of length {got}. Decode with the "
                "length that was encoded."
            )

    def skip(self, n_bits: int) -> int:
        """Pass over bits, and return where they start."""
        start, self._start = self._start, self._start + n_bits
        if self._start > 8 * len(self._body):
            raise damage(f"at least {self._start} bits", 8 * len(self._body))
        return start

    def _bits(self, start: int, n_bits: int) -> NDArray[np.uint8]:
        # Only the bytes with these bits, because most of a message may be floats.
        own = np.frombuffer(self._body, np.uint8)[start // 8 : -(-(start + n_bits) // 8)]
        return np.unpackbits(own)[start % 8 :][:n_bits]

    def numbers(self, n_numbers: int, width: int, start: int | None = None) -> IntArray:
        """Read numbers: those that were skipped at a start, or by default the next ones."""
        start = self.skip(n_numbers * width) if start is None else start
        bits = self._bits(start, n_numbers * width).reshape(n_numbers, width)
        dtype = np.dtype("<u2" if width <= 16 else "<i8")
        packed = np.packbits(bits, axis=1, bitorder="little")
        numbers = np.zeros((n_numbers, dtype.itemsize), np.uint8)
        numbers[:, : packed.shape[1]] = packed
        return numbers.view(dtype)[:, 0]

    def number(self, width: int) -> int:
        return int(self.numbers(1, width)[0])

    def count(self) -> int:
        return self.number(self.number(6))

    def heights(self, n_items: int, highest: int) -> tuple[BoolArray, NDArray[np.uint8]]:
        """Read which heights exceed 0, and these heights.

        Without the bound, forged heights would take a minute per megabyte.
        """
        chosen = self.subset(n_items)
        n_higher = int(np.count_nonzero(chosen))
        heights = np.ones(n_higher, np.uint8)
        for height in range(1, highest + 1):
            if not n_higher:
                break
            higher = self.subset(n_higher)
            heights[heights == height] += higher
            n_higher = int(np.count_nonzero(higher))
        if n_higher:
            raise damage(f"heights of at most {highest}", "higher ones")
        return chosen, heights

    def subset(self, n_items: int) -> BoolArray:
        n_chosen = self.number(n_items.bit_length())
        n_rare = min(n_chosen, n_items - n_chosen)
        if n_rare < 0:
            raise damage(f"at most {n_items} items", n_chosen)
        rare = self._rare(n_items, n_rare)
        return rare if n_rare == n_chosen else np.logical_not(rare, out=rare)

    def _rare(self, n_items: int, n_rare: int) -> BoolArray:
        k = int(_low_bits(n_items, n_rare))
        n_bits = n_items if k < 2 else n_rare - (-n_items >> k)
        bits = self._bits(self.skip(n_bits), n_bits).view(bool)
        if np.count_nonzero(bits) != n_rare:
            raise damage(f"{n_rare} ones", np.count_nonzero(bits))
        if k < 2:
            return bits
        positions = np.flatnonzero(bits)
        positions -= np.arange(n_rare)
        positions <<= k
        positions += self.numbers(n_rare, k)
        if (positions[1:] <= positions[:-1]).any() or (positions >= n_items).any():
            raise damage(f"increasing positions below {n_items}", "others")
        rare = np.zeros(n_items, dtype=bool)
        rare[positions] = True
        return rare

    def floats(self, n_floats: int, dtype: str) -> FloatArray:
        """Read floats, which start at a whole byte."""
        self._pad()
        start, size = self._start // 8, n_floats * np.dtype(dtype).itemsize
        chosen = self._body[start : start + size]
        if len(chosen) != size:
            raise damage(f"{n_floats} floats of type {dtype}", f"{len(chosen)} bytes")
        self._start += 8 * size
        with np.errstate(invalid="ignore"):  # NaN: refused below
            floats = np.frombuffer(chosen, dtype).astype(np.float64)
        check_finite(floats, hint=_SEND_AGAIN)
        return floats

    def _pad(self) -> None:
        """Pass over the bits to the next whole byte."""
        n_padding = -self._start % 8
        if self._bits(self.skip(n_padding), n_padding).any():
            raise damage("zeros after the last bit", "a one")

    def rest(self) -> bytes:
        """Read the bytes from the next whole one to the end."""
        self._pad()
        start, self._start = self._start // 8, 8 * len(self._body)
        return self._body[start:]

    def end(self) -> None:
        """Raise if there is more to read."""
        n_left = len(self._body) - self._start // 8
        if n_left:
            raise damage("the end of the message", f"{n_left} bytes more")
