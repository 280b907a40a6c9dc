"""Tables of clients: how they are read for an estimator, and their columns in messages."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from .._data.clients import read_clients
from .._federation import Federation
from .._typing import Table
from ..mixture import FederatedGaussianMixture
from ..preprocessing import FederatedPCA, FederatedStandardScaler
from ._messages import Refused

# Number of rows and of columns, before the names.
_COLUMNS = struct.Struct("<QI")
_BETWEEN = b"\0"
_MOST_ROWS = 2**40
LARGEST_COLUMNS = 2**16
"""Largest length of the columns in a message, in bytes."""


_READERS: dict[str, Any] = {
    own.__name__: own for own in (FederatedGaussianMixture, FederatedStandardScaler, FederatedPCA)
}


class ClientTable(NamedTuple):
    """Rows of one client.

    ``columns`` are the names, or the number of columns without names.
    """

    federation: Federation
    columns: list[str] | int


def read_table(estimator: str, X: Table) -> ClientTable:
    """Table of a client for an estimator, read as in a simulation."""
    if estimator not in _READERS:
        raise Refused(f"estimator: {estimator} is unknown")
    reader = _READERS[estimator]()
    allow_nan = isinstance(reader, FederatedStandardScaler)
    federation, _, _ = read_clients(reader, [X], allow_nan=allow_nan)
    names = getattr(reader, "feature_names_in_", None)
    return ClientTable(federation, reader.n_features_in_ if names is None else names.tolist())


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


def columns_to_bytes(n_rows: int, columns: list[str] | int) -> bytes:
    """Number of rows, and columns, as they are sent."""
    if isinstance(columns, int):
        return _COLUMNS.pack(n_rows, columns)
    return _COLUMNS.pack(n_rows, len(columns)) + _BETWEEN.join(name.encode() for name in columns)


def columns_from_bytes(body: bytes) -> tuple[int, list[str] | int]:
    """Inverse of ``columns_to_bytes``."""
    if len(body) < _COLUMNS.size:
        raise Refused("length")
    n_rows, n_columns = _COLUMNS.unpack_from(body)
    if not (0 < n_rows <= _MOST_ROWS and 0 < n_columns <= LARGEST_COLUMNS):
        raise Refused("too large: number of rows or columns")
    names = body[_COLUMNS.size :]
    if not names:
        return n_rows, n_columns
    if names.count(_BETWEEN) != n_columns - 1:
        raise Refused("length: expected as many names as columns")
    try:
        return n_rows, names.decode().split(_BETWEEN.decode())
    except UnicodeDecodeError as error:
        raise Refused("damaged: names of columns") from error
