"""Cells and numbers of observations as the bytes that a client sends before the first round."""

from __future__ import annotations

import numpy as np

from ..._federation import offsets_of
from ..._typing import FloatArray, IntArray

# Larger numbers, and efforts, are sent as doubles.
_MOST = 2.0**49
# Number of codes that are read at once: they fill whole bytes.
_BLOCK = 256


def bits_of_codes(lengths: IntArray, shape: tuple[int, int]) -> int:
    """Bits of the codes of all clients' cells, which fill whole bytes of each client."""
    return 8 * int((-(-lengths * _code_length(shape) // 8)).sum())


def _code_length(shape: tuple[int, int]) -> int:
    """Bits of the code of a cell."""
    return (shape[0] * shape[1] - 1).bit_length()


def codes_to_bytes(codes: IntArray, shape: tuple[int, int]) -> bytes:
    """Codes of one client's cells, in as many bits each as the largest takes."""
    places = np.arange(_code_length(shape))
    bits = (codes[:, None] >> places & 1).astype(np.uint8)
    return np.packbits(bits, bitorder="little").tobytes()


def codes_from_bytes(data: bytes, n_codes: int, shape: tuple[int, int]) -> IntArray:
    """Inverse of ``codes_to_bytes``; ValueError if they are no sorted codes of cells."""
    length = _code_length(shape)
    if len(data) != -(-n_codes * length // 8):
        raise ValueError("length")
    # In blocks, as bits and places take more memory than the message.
    packed, blocks, last = np.frombuffer(data, np.uint8), [np.empty(0, np.int64)], 0
    for start in range(0, n_codes, _BLOCK):
        n_block = min(_BLOCK, n_codes - start)
        own = packed[start * length // 8 : -(-(start + n_block) * length // 8)]
        bits = np.unpackbits(own, bitorder="little")
        codes = np.zeros((n_block, 64), np.uint8)
        codes[:, :length] = bits[: n_block * length].reshape(n_block, length)
        block = np.packbits(codes, axis=1, bitorder="little").view("<i8")[:, 0].astype(np.int64)
        is_sorted = last <= block[0] and (np.diff(block) >= 0).all()
        last = block[-1]
        if not is_sorted or last >= shape[0] * shape[1] or bits[n_block * length :].any():
            raise ValueError("codes of cells")
        blocks.append(block)
    return np.concatenate(blocks)


def bits_of_counts(counts: FloatArray, lengths: IntArray) -> int:
    """Bits of the numbers of observations of all clients: a byte for 7 bits, or doubles."""
    n_bytes, starts = _n_bytes(counts), offsets_of(lengths)[:-1]
    as_doubles = np.maximum.reduceat(~_are_whole(counts), starts)
    return 8 * int(np.where(as_doubles, 8 * lengths, np.add.reduceat(n_bytes, starts)).sum())


def _n_bytes(counts: FloatArray) -> IntArray:
    return np.ceil(np.log2(counts + 1) / 7).astype(np.intp)


def _are_whole(counts: FloatArray) -> np.ndarray:
    return (counts % 1 == 0) & (counts < _MOST)


def counts_to_bytes(counts: FloatArray) -> bytes:
    """Numbers of observations of one client's cells: 7 bits in a byte, the lowest first."""
    if not _are_whole(counts).all():
        return counts.astype("<f8").tobytes()
    n_bytes, numbers = _n_bytes(counts), counts.astype(np.int64)
    ends = np.cumsum(n_bytes)
    places = np.arange(ends[-1]) - np.repeat(ends - n_bytes, n_bytes)
    digits = np.repeat(numbers, n_bytes) >> 7 * places & 127
    digits[ends - 1] |= 128  # marks the last one
    return digits.astype(np.uint8).tobytes()


def counts_from_bytes(data: bytes, n_counts: int) -> FloatArray:
    """Inverse of ``counts_to_bytes``; ValueError if they are not positive numbers."""
    packed = np.frombuffer(data, np.uint8)
    if np.count_nonzero(packed >= 128) == n_counts and (not n_counts or packed[-1] >= 128):
        if (packed == 128).any():  # a highest digit of 0
            raise ValueError("numbers of observations")
        digits, ends = packed.astype(np.int64), np.flatnonzero(packed >= 128) + 1
        n_bytes = np.diff(ends, prepend=0)
        if n_bytes.max(initial=0) > 7:
            raise ValueError("numbers of observations")
        places = np.arange(len(data)) - np.repeat(ends - n_bytes, n_bytes)
        counts = np.add.reduceat((digits & 127) << 7 * places, ends - n_bytes).astype(np.float64)
    elif len(data) == 8 * n_counts:
        counts = np.frombuffer(data, "<f8").astype(np.float64)
    else:
        raise ValueError("length")
    if not (np.isfinite(counts) & (counts > 0)).all():
        raise ValueError("numbers of observations")
    return counts
