"""Questions to deployed clients before the first round, and the sums of what they answer."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import reduce
from itertools import pairwise
from operator import add
from typing import Any, NamedTuple

import numpy as np

from .._data.frame_labels import sizes_of_shape
from .._federation import ClientMessage, ClientSizes, Federation, MessageBits
from .._history import FLOAT_BITS
from .._serialization import to_bytes
from .._typing import FloatArray, IntArray
from ..clients.local import SetUpMessage
from ..clients.sums import (
    ROWS_OF_A_MEAN,
    mean_of_terms,
    mean_term,
    segments_of_all,
    shards_of,
    sum_in_order,
)
from ._broadcasts import without_terms
from ._messages import Refused
from ._questions import SET_UP, numbers


class Question(NamedTuple):
    """What a fit asks.

    Attributes
    ----------
    name : str
    body : bytes
        As it is sent.
    clients : list of int
        Positions in the roster of those who are asked.
    read : callable
        ``read(client, body)`` is the content of a reply; raises ``Refused``.
    most : int
        Largest length of a reply, in bytes.
    everyone : bool
        Whether the fit cannot go on without one of them.
    """

    name: str
    body: bytes
    clients: list[int]
    read: Callable[[int, bytes], Any]
    most: int
    everyone: bool


class Answers(NamedTuple):
    """Contents of replies by client, in increasing order, and who was reset after this phase."""

    contents: dict[int, Any]
    reset: list[int]


class RemoteSetUp:
    """Clients that are reached by messages, before the first round; implements ``SetUp``.

    Parameters
    ----------
    plan : dict
    ask : callable
        Answers of the clients to a ``Question``.
    """

    federation: Federation
    every: IntArray
    n_features: int

    def __init__(self, plan: dict[str, Any], ask: Callable[[Question], Answers]) -> None:
        self.plan, self.names, self._ask_clients = plan, plan["roster"], ask
        self.messages: list[SetUpMessage] = []
        self._start = self._n_joined = 0
        self._gathered: dict[str, list[Any]] = {}

    @property
    def sizes(self) -> ClientSizes:
        """Weights and numbers of rows of the clients."""
        return self.federation.sizes

    def ask(
        self,
        name: str,
        told: dict[str, Any],
        read: Callable[[int, bytes], Any],
        most: int,
        clients: IntArray | None = None,
        *,
        everyone: bool = True,
    ) -> dict[int, Any]:
        """Contents of the replies to a question."""
        numbered = [*range(len(self.names))] if clients is None else clients.tolist()
        body = to_bytes({"ask": name, **told})
        if not numbered:
            return {}
        answers = self._ask_clients(Question(name, body, numbered, read, most, everyone))
        if answers.reset:
            self.start_afresh(np.array(answers.reset))
        return answers.contents

    def start_afresh(self, clients: IntArray) -> None:
        """Note that these clients have lost their states."""

    def mean(self, message: ClientMessage, *arguments: Any) -> FloatArray:
        """Σ_i w_i m_i over all clients, relative to m_0: equal messages have an exact mean."""
        sent = np.array(self.collect(message, self.every, *arguments))
        segments = segments_of_all(self.sizes.lengths, ROWS_OF_A_MEAN)
        weights = self.sizes.weights
        terms = [mean_term(weights[own], sent[own]) for own in segments.slices]
        return mean_of_terms(terms, segments.shards)

    def sum(
        self, message: ClientMessage, *arguments: Any, n_bits: MessageBits | None = None
    ) -> FloatArray:
        """Σ_i m_i over all clients: in order, by shard."""
        sent = self._collected(message, self.every, arguments)
        shards = pairwise(shards_of(self.sizes.lengths).tolist())
        total = reduce(add, (sum_in_order(np.array(sent[first:last])) for first, last in shards))
        uplink_bits = n_bits(total) if n_bits else FLOAT_BITS * len(sent) * total.size
        self._count(message, len(sent), uplink_bits, arguments)
        return total

    def collect(self, message: ClientMessage, clients: IntArray, *arguments: Any) -> list[Any]:
        """Messages of some clients, one by one."""
        sent = self._collected(message, clients, arguments)
        uplink_bits = FLOAT_BITS * sum(own.size for own in sent)
        self._count(message, len(sent), uplink_bits, arguments)
        return sent

    def _collected(
        self, message: ClientMessage, clients: IntArray, arguments: tuple[Any, ...]
    ) -> list[FloatArray]:
        """Messages of some clients."""
        known = SET_UP[message.__name__]
        shape = known.shape(self.n_features, *arguments)

        def read(client: int, body: bytes) -> FloatArray:
            return numbers(body, shape, at_most=known.at_most)

        most = 8 * int(np.prod(shape))
        found = self._asked(message, clients, arguments, read, most)
        return [found[client] for client in clients.tolist()]

    def _asked(
        self,
        message: ClientMessage,
        clients: IntArray,
        arguments: tuple[Any, ...],
        read: Callable[[int, bytes], Any],
        most: int,
    ) -> dict[int, Any]:
        """Messages of some clients by their numbers."""
        # Clients draw with seeds of their own.
        names = [*inspect.signature(message).parameters][1:]
        told_arguments = [
            0 if name == "seed" else _for_clients(own)
            for name, own in zip(names, arguments, strict=True)
        ]
        self._start = max(0, self._n_joined - 1)
        told = {"message": message.__name__, "arguments": told_arguments, "start": self._start}
        return self.ask("set-up", told, read, most, clients)

    def _count(
        self, message: ClientMessage, n_clients: int, uplink_bits: int, arguments: tuple[Any, ...]
    ) -> None:
        told = sum(own.size for own in arguments if isinstance(own, np.ndarray))
        bits = FLOAT_BITS * n_clients * told
        self.messages.append(SetUpMessage(message.__name__, n_clients, uplink_bits, bits))

    def gather(
        self, message: ClientMessage, *arguments: Any, n_bits: MessageBits | None = None
    ) -> Any:
        """Messages of all clients in order, as one array or a tuple of arrays."""
        gathered, lengths = SET_UP[message.__name__].gathered, self.sizes.lengths.tolist()
        assert gathered is not None  # of every message that is kept
        shape = sizes_of_shape(self.plan["shape"])

        def read(client: int, body: bytes) -> Any:
            known = {name: each[client] for name, each in self._gathered.items()}
            try:
                return gathered.decode(body, lengths[client], shape, known, *arguments)
            except ValueError as error:
                raise Refused(f"damaged: {error}") from error

        most = max(gathered.most(n_rows, shape) for n_rows in lengths)
        found = self._asked(message, self.every, arguments, read, most)
        each = self._gathered[message.__name__] = [found[client] for client in sorted(found)]
        if isinstance(each[0], tuple):
            messages: Any = tuple(np.concatenate(parts) for parts in zip(*each, strict=True))
        else:
            messages = np.concatenate(each)
        own = messages if isinstance(messages, tuple) else (messages,)
        uplink_bits = n_bits(messages) if n_bits else FLOAT_BITS * sum(part.size for part in own)
        self._count(message, len(each), uplink_bits, arguments)
        return messages

    def tell(
        self, name: str, n_numbers: int, n_clients: int | None = None, n_sent: int = 0
    ) -> None:
        """Count numbers that all clients, or so many, receive, and those that each has sent."""
        n_clients = len(self.every) if n_clients is None else n_clients
        bits = FLOAT_BITS * n_clients
        self.messages.append(SetUpMessage(name, n_clients, bits * n_sent, bits * n_numbers))

    def bits(self, first: int = 0) -> tuple[int, int]:
        """Bits that clients sent and received in messages of the set-up, from one of them on."""
        new = self.messages[first:]
        return sum(own.uplink_bits for own in new), sum(own.downlink_bits for own in new)


def _for_clients(argument: Any) -> Any:
    """An argument of a message without what only the server may know, or clients can compute."""
    return argument.for_clients() if hasattr(argument, "for_clients") else without_terms(argument)
