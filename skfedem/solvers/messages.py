"""Messages of clients in a round: of a group, as bytes, and as the server's half sees them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._serialization import serializable
from .._typing import FloatArray, IntArray


class Message(NamedTuple):
    """Messages of a group of clients to the server.

    Attributes
    ----------
    quantized : ndarray or NamedTuple of arrays
        What the server decodes: Quant(Δ_i) as client vectors, or what a solver with its own
        ``client_half`` defines, with one entry per client.
    sent : ndarray or None
        Quant(Δ_i) in the ``message_units`` of the broadcast, if any: what the compressor encodes.
    n_bytes : int
        Total length of the encoded messages.
    n_expectations : int
        Number of conditional expectations that were computed.
    log_likelihood : ndarray of shape (n_clients,) or None
        Mean log-likelihood of each client's rows in nats, if all rows were read.
    uncompressed : ndarray of shape (n_clients, n_uncompressed) or None
        What else the clients send in a stream, see ``Model.n_uncompressed``.
    reported : ndarray of shape (n_clients, n_reported) or None
        Numbers for the history alone, which are not counted among the bits.
    """

    quantized: Any
    sent: Any
    n_bytes: int
    n_expectations: int
    log_likelihood: FloatArray | None = None
    uncompressed: FloatArray | None = None
    reported: FloatArray | None = None


def stacked(parts: list[Any], order: IntArray | None = None) -> Any:
    """Join nested tuples of arrays, whose first axis counts clients, and add up their numbers.

    Clients are reordered if an ``order`` is given.
    """
    first = parts[0]
    if first is None:
        return None
    if isinstance(first, int):
        return sum(parts)
    if isinstance(first, np.ndarray):
        whole = np.concatenate(parts)
        return whole if order is None or not whole.size else whole[order]
    fields = (stacked([*own], order) for own in zip(*parts, strict=True))
    return type(first)(*fields) if hasattr(first, "_fields") else tuple(fields)


@serializable
class EncodedMessage(NamedTuple):
    """What leaves a client in a round, and can be decoded without those of others.

    Attributes
    ----------
    content : ndarray of uint8
        ``Message.quantized`` as bytes, whose number the history counts.
    n_expectations, log_likelihood, uncompressed, reported
        As in ``Message``.
    """

    content: NDArray[np.uint8]
    n_expectations: int
    log_likelihood: FloatArray | None = None
    uncompressed: FloatArray | None = None
    reported: FloatArray | None = None


class AggregatedMessages(NamedTuple):
    """What the server's half sees of the messages of the clients that answered, ``active``.

    ``message_sum`` is Σ w_i Quant(Δ_i). ``log_likelihood`` is the weighted sum of the clients'
    means if they read all rows, otherwise None, and ``uncompressed`` that of what they also sent in
    a stream. The numbers are plain sums. If the solver does not aggregate, ``each`` has the
    messages of all, stacked in the order of the clients (None if there are none), and
    ``message_sum`` is empty.
    """

    message_sum: FloatArray
    active: IntArray
    n_bytes: int
    n_expectations: int
    log_likelihood: float | None = None
    uncompressed: FloatArray | float = 0.0
    each: Message | None = None

    @property
    def n_active(self) -> int:
        """Number of these clients."""
        return len(self.active)
