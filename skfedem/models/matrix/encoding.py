"""Cells and numbers of observations as the bytes that a client sends before the first round."""

from __future__ import annotations

import numpy as np

from ..._federation import offsets_of
from ..._typing import FloatArray, IntArray

# Larger numbers, and efforts, are sent as doubles.
_MOST = 2.0**49


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
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    if bits[n_codes * length :].any():
        raise ValueError("codes of cells")
    own = bits[: n_codes * length].reshape(n_codes, length).astype(np.int64)
    codes: IntArray = own @ (1 << np.arange(length, dtype=np.int64))
    if (np.diff(codes) < 0).any() or (n_codes and codes[-1] >= shape[0] * shape[1]):
        raise ValueError("codes of cells")
    return codes


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
    digits = np.frombuffer(data, np.uint8).astype(np.int64)
    ends = np.flatnonzero(digits >= 128) + 1
    n_bytes = np.diff(ends, prepend=0)
    if len(ends) == n_counts and len(data) == (ends[-1] if n_counts else 0) and n_bytes.max() <= 7:
        places = np.arange(len(data)) - np.repeat(ends - n_bytes, n_bytes)
        counts = np.add.reduceat((digits & 127) << 7 * places, ends - n_bytes).astype(np.float64)
    elif len(data) == 8 * n_counts:
        counts = np.frombuffer(data, "<f8").astype(np.float64)
    else:
        raise ValueError("length")
    if not (np.isfinite(counts) & (counts > 0)).all():
        raise ValueError("numbers of observations")
    return counts
