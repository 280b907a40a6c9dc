"""Exact code of 32-bit messages from which groups of numbers are left out.

A message of all numbers is their little-endian float32s and nothing else: both sides know how many.
If groups may be missing, the message has the count of groups and the subset that is present, in the
code of ``_bits``, followed by their numbers. Groups that both sides know to be pruned are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._typing import BoolArray, IntArray
from . import _bits

# First byte of a message with a subset; operators have others.
FORM = 0x24


def size_of_dense(n_numbers: int) -> int:
    """Number of bytes of a message of all numbers."""
    return 4 * n_numbers


def size_of_survivors(n_groups: Any, n_kept: Any, n_numbers: Any) -> IntArray:
    """Number of bytes of messages with ``n_numbers`` numbers of ``n_kept`` out of ``n_groups``."""
    n_groups, n_kept = np.asarray(n_groups), np.asarray(n_kept)
    n_bits = _bits.size_of_count(n_groups) + _bits.size_of_subset(n_groups, n_kept)
    return _bits.size_of_message(n_bits, 4 * np.asarray(n_numbers))


def encode_survivors(kept: BoolArray, numbers: NDArray[np.float32]) -> bytes:
    """Message of the kept groups and of their numbers."""
    bits = [_bits.count_bits(len(kept)), *_bits.subset_bits(kept)]
    return _bits.message(FORM, bits, numbers.astype("<f4"))


def decode_survivors(
    data: bytes, n_groups: int, count: Callable[[BoolArray], int]
) -> tuple[BoolArray, NDArray[np.float32]]:
    """Kept groups and their numbers; ValueError if the message is damaged.

    ``count`` maps the kept groups to the number of their numbers.
    """
    reader = _bits.Reader(FORM, data, n_groups)
    kept = reader.subset(n_groups)
    numbers = reader.floats(count(kept), "<f4").astype(np.float32)
    reader.end()
    return kept, numbers
