"""Exact code of messages from which groups of numbers are left out.

A message of all numbers is their little-endian float32s and nothing else: both sides know how many.
If groups may be missing, the message has the count of groups and the subset that is present, in the
code of ``_bits``, followed by their numbers, or the message of a compressor. Groups that both sides
know to be pruned are left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .._typing import BoolArray, FloatArray, IntArray
from . import _bits

# First byte of a message with a subset; operators have others.
FORM = 0x24


def size_of_dense(n_numbers: Any) -> Any:
    """Number of bytes of a message of all numbers."""
    return 4 * n_numbers


def size_of_survivors(n_groups: Any, n_kept: Any, n_numbers: Any) -> IntArray:
    """Number of bytes of messages with ``n_numbers`` numbers of ``n_kept`` out of ``n_groups``."""
    n_groups, n_kept = np.asarray(n_groups), np.asarray(n_kept)
    n_bits = _bits.size_of_count(n_groups) + _bits.size_of_subset(n_groups, n_kept)
    return _bits.size_of_message(n_bits, 4 * np.asarray(n_numbers))


def encode_dense(numbers: FloatArray) -> bytes:
    """Message of all numbers."""
    return numbers.astype("<f4").tobytes()


def decode_dense(data: bytes, n_numbers: int) -> FloatArray:
    """All numbers; ValueError for another number of them."""
    if len(data) != size_of_dense(n_numbers):
        raise _bits.damage(f"{size_of_dense(n_numbers)} bytes of numbers", len(data))
    return np.frombuffer(data, "<f4").astype(np.float64)


def encode_survivors(kept: BoolArray, numbers: bytes) -> bytes:
    """Message of the kept groups and of their numbers, which are encoded already."""
    bits = [_bits.count_bits(len(kept)), *_bits.subset_bits(kept)]
    return _bits.message(FORM, bits, numbers)


def decode_survivors(data: bytes, n_groups: int) -> tuple[BoolArray, bytes]:
    """Kept groups and their encoded numbers; ValueError if the message is damaged."""
    reader = _bits.Reader(FORM, data, n_groups)
    return reader.subset(n_groups), reader.rest()
