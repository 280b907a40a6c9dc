"""Columns of clients' tables, as they are compared and sent."""

from __future__ import annotations

import json
import struct
from math import isfinite
from typing import Any

from ._messages import Refused

# Number of rows and of columns, and what else a client has, before the names.
_COLUMNS = struct.Struct("<QIB")
_BETWEEN = b"\0"
_MOST_ROWS = 2**40
GIVEN = ("sample_weight", "offset")
"""What clients may have in addition to their tables; each has a bit in their messages."""
_OPTIONS = {"sample_weight": "--sample-weight", "offset": "--effort"}
LARGEST_COLUMNS = LARGEST_LABELS = 2**16
"""Largest length of the columns, or of the labels of classes, in a message, in bytes."""


def check_columns(want: Any, got: list[str] | int) -> None:
    """Refuse columns other than the server's, which are None if it does not know them."""
    want = [*want] if isinstance(want, tuple) else want  # as it is read from bytes
    if want is None or want == got:
        return
    if isinstance(want, list) and isinstance(got, list) and len(want) == len(got):
        at = next(k for k, pair in enumerate(zip(want, got, strict=True)) if pair[0] != pair[1])
        raise Refused(f"columns: expected {want[at]!r} as column {at}, got {got[at]!r}")
    raise Refused(f"columns: expected {_in_words(want)}, got {_in_words(got)}")


def _in_words(columns: list[str] | int) -> str:
    return f"{columns} without names" if isinstance(columns, int) else f"{len(columns)} with names"


def check_given(want: list[str] | None, got: list[str]) -> None:
    """Refuse a client that has weights or offsets if others have none, or the other way round."""
    if want is None:
        return
    for name in GIVEN:
        option = _OPTIONS[name]
        if name in want and name not in got:
            raise Refused(f"{name}: expected one ({option}), as other clients have, got none")
        if name in got and name not in want:
            raise Refused(f"{name}: expected none ({option}), as other clients have, got one")


def columns_to_bytes(n_rows: int, columns: list[str] | int, given: list[str]) -> bytes:
    """Number of rows, columns, and what else there is, as they are sent."""
    bits = sum(1 << GIVEN.index(name) for name in given)
    if isinstance(columns, int):
        return _COLUMNS.pack(n_rows, columns, bits)
    names = _BETWEEN.join(name.encode() for name in columns)
    return _COLUMNS.pack(n_rows, len(columns), bits) + names


def columns_from_bytes(body: bytes) -> tuple[int, list[str] | int, list[str]]:
    """Inverse of ``columns_to_bytes``."""
    if len(body) < _COLUMNS.size:
        raise Refused("length")
    n_rows, n_columns, bits = _COLUMNS.unpack_from(body)
    if bits >> len(GIVEN):
        raise Refused("damaged: what there is beside the table")
    given = [name for k, name in enumerate(GIVEN) if bits >> k & 1]
    if not (0 < n_rows <= _MOST_ROWS and 0 < n_columns <= LARGEST_COLUMNS):
        raise Refused("too large: number of rows or columns")
    names = body[_COLUMNS.size :]
    if not names:
        return n_rows, n_columns, given
    if names.count(_BETWEEN) != n_columns - 1:
        raise Refused("length: expected as many names as columns")
    try:
        columns = names.decode().split(_BETWEEN.decode())
    except UnicodeDecodeError as error:
        raise Refused("damaged: names of columns") from error
    if not all(columns) or len({*columns}) < n_columns:
        raise Refused("damaged: names of columns")
    return n_rows, columns, given


def labels_to_bytes(labels: list[Any]) -> bytes:
    """Labels of classes, as they are sent."""
    return json.dumps(labels).encode()


def labels_from_bytes(body: bytes) -> list[Any]:
    """Inverse of ``labels_to_bytes``."""
    try:
        labels = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refused("damaged: labels of classes") from error
    kinds = {type(own) for own in labels} if isinstance(labels, list) else set()
    if kinds == {float} and not all(map(isfinite, labels)):
        raise Refused("not finite")
    if len(kinds) != 1 or not kinds <= {str, int, float, bool} or labels != sorted({*labels}):
        raise Refused("damaged: labels of classes")
    return labels
