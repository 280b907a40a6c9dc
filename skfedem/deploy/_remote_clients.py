"""Clients as a fit knows them, wherever they are: every question is handed to a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial, reduce
from itertools import pairwise
from operator import add
from typing import Any, NamedTuple

import numpy as np

from .._data.frame_labels import sizes_of_shape
from .._federation import (
    ClientMessage,
    ClientSizes,
    Elsewhere,
    Federation,
    MessageBits,
    offsets_of,
)
from .._history import FLOAT_BITS
from .._serialization import to_bytes
from .._typing import FloatArray, IntArray
from ..clients.group import decoded
from ..clients.local import SetUpMessage
from ..clients.sums import (
    ROWS_OF_A_MEAN,
    aggregate,
    mean_of_terms,
    mean_term,
    segments_of,
    segments_of_all,
    shards_of,
    sum_in_order,
    sum_of_shards,
    weighted_total,
)
from ..models._base import Model, Parameters
from ..solvers.base import Broadcast, NoStates, Problem, Solver, Task
from ..solvers.messages import AggregatedMessages, Message
from ._messages import Refused
from ._questions import ROUND, SET_UP, check_values, message_from_bytes, numbers
from ._readers import reader_of
from ._tables import LARGEST_COLUMNS, check_columns, columns_from_bytes

# Bytes of an encoded message beyond nine for each number, and of numbers for the history.
_MOST_OVERHEAD = 256


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


class _Deployed(Elsewhere):
    """What an estimator is fitted to in place of tables."""

    def __init__(self, clients: RemoteClients, columns: list[str] | int, data: Any) -> None:
        self._clients, self.columns, self._data = clients, columns, data
        self.federation = clients.federation
        self.lengths, self.ids = clients.sizes.lengths, np.array(clients.names)

    def clients(self, weights: FloatArray) -> RemoteClients:
        """The only ones there are; the plan says how they are weighed."""
        return self._clients

    def read(self, reading: Any = None) -> Any:
        """Facts of the clients' tables."""
        return self._data


class RemoteClients:
    """Clients that are reached by messages; implements ``Clients``.

    The server can follow all V_i, because V_i changes by α times what client i sends.

    Parameters
    ----------
    plan : dict
        What clients have to agree to before they are asked.
    ask : callable
        Answers of the clients to a ``Question``.
    """

    def __init__(
        self,
        plan: dict[str, Any],
        ask: Callable[[Question], Answers],
    ) -> None:
        self.plan, self.names, self._ask_clients = plan, plan["roster"], ask
        self.messages: list[SetUpMessage] = []
        self.solver: Solver | None = None
        self.task: Task | None = None
        self.controls: FloatArray = np.empty(0)
        self._start = self._n_joined = 0
        self._agreed_on: dict[str, Any] = {}
        self._gathered: dict[str, list[Any]] = {}
        self._reset_control: FloatArray | None = None
        self.columns: list[str] | int | None = plan["features"]
        self._reader = reader_of(plan["estimator"])
        most = 8 * self._reader.n_facts + LARGEST_COLUMNS
        replies = self._ask("plan", {"plan": plan}, self._columns, most)
        found = [replies[client] for client in sorted(replies)]
        lengths = np.array([n_rows for n_rows, _ in found], dtype=np.intp)
        agreed = self._reader.agree(plan, lengths, np.array([facts for _, facts in found]))
        if agreed.told:
            self._agreed_on = agreed.told
            self._ask("table", {"agreed": agreed.told}, _nothing, 0)
        d = self.columns if isinstance(self.columns, int) else len(self.columns or ())
        # Without rows: what a layout of vectors needs to know.
        self.federation = Federation(np.empty((0, d)), offsets_of(lengths), agreed.weights)
        self.every, self.n_features, self._data = np.arange(len(lengths)), d, agreed.data

    @property
    def sizes(self) -> ClientSizes:
        """Weights and numbers of rows of the clients."""
        return self.federation.sizes

    def elsewhere(self) -> Elsewhere:
        """What an estimator is fitted to in place of tables."""
        assert self.columns is not None
        return _Deployed(self, self.columns, self._data)

    def again(self) -> dict[str, Any]:
        """What a client has to know that starts afresh."""
        solver = None if self.solver is None else self.solver.name
        return {
            "plan": self.plan,
            "agreed": self._agreed_on,
            "start": self._start,
            "solver": solver,
            "task": None if self.task is None else self.task.for_clients(),
        }

    def _ask(
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
        if answers.reset and self.controls.size:
            self.controls[self.layout.indices(np.array(answers.reset))] = 0
            self._reset_control = self.control()
        return answers.contents

    def _columns(self, client: int, body: bytes) -> tuple[int, FloatArray]:
        """Number of rows and facts of a client whose columns are those of the others."""
        size = 8 * self._reader.n_facts
        n_rows, columns = columns_from_bytes(body[size:])
        facts = numbers(body[:size], (self._reader.n_facts,))
        if not self._reader.are_possible(facts):
            raise Refused("facts")
        check_columns(self.columns, columns)
        self.columns = columns
        return n_rows, facts

    # ---- set-up

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
        return self._ask("set-up", told, read, most, clients)

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
                return gathered.decode(body, lengths[client], shape, known)
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

    # ---- rounds

    def join(self, solver: Solver, task: Task) -> None:
        """Tell all clients solver and task; their states are those before the first round."""
        self.solver, self.task = solver, task._replace(seed=0)
        self.layout = task.model.vectors(self.sizes)
        self.controls = self.layout.zeros() if task.has_controls else np.empty(0)
        self._start, self._n_joined = self._n_joined, self._n_joined + 1
        participation = self.plan["parameters"].get("participation", 1.0)
        is_random = solver.is_random or task.model.is_random
        problem = Problem(task, self.sizes, solver, participation, random_estimates=is_random)
        self._is_exact = problem.exact
        told = {"start": self._start, "solver": solver.name, "task": self.task.for_clients()}
        self._ask("task", told, _nothing, 0)
        self._reset_control = None  # all V_i are 0

    def round(self, broadcast: Broadcast, active: IntArray) -> AggregatedMessages:
        """Clients' half of a round, of those who answer; exact rounds are not without all."""
        solver, task = self._agreed()
        told = broadcast._asdict()
        del told["message_units"]
        most = ROUND.size + 9 * task.model.n_statistics + _MOST_OVERHEAD
        found = self._ask(
            "round",
            {"arguments": told},
            partial(self._message, broadcast),
            most,
            active,
            everyone=self._is_exact,
        )
        who = np.array(sorted(found), dtype=np.intp)
        messages = [found[client] for client in who.tolist()]
        if task.has_controls and len(who):
            own, sent = self.layout.indices(who), [message.quantized for message in messages]
            self.controls[own] = self.controls[own] + task.control_step * np.concatenate(sent)
        return aggregate(solver, task, self.sizes, who, messages)

    def _message(self, broadcast: Broadcast, client: int, body: bytes) -> Message:
        """Message of a client in a round."""
        solver, task = self._agreed()
        most = 2 * max(int(self.sizes.lengths[client]), task.batch_size or 0)
        encoded = message_from_bytes(body, most)
        try:
            message = decoded(solver, task, broadcast, self.layout, client, encoded)
        except ValueError as error:
            raise Refused(f"damaged: {error}") from error
        check_values(message.quantized)
        return message

    def _agreed(self) -> tuple[Solver, Task]:
        """Solver and task of clients that have joined."""
        assert self.solver is not None and self.task is not None
        return self.solver, self.task

    def commit(self, round_index: int) -> None:
        """Nothing: the next request says which replies were used."""

    def reset_control(self) -> FloatArray | None:
        """V if some V_i were set to 0 since the last call, else None."""
        control, self._reset_control = self._reset_control, None
        return control

    def control(self) -> FloatArray:
        """V = Σ_i w_i V_i."""
        _, task = self._agreed()
        if not task.has_controls:
            return self.layout.total(self.every[:0], [], [])
        segments = segments_of_all(self.sizes.lengths, task.model.block_rows)
        return weighted_total(self.layout, self.sizes, self.every, self.controls, segments)

    def mean_field(
        self, model: Model, parameters: Parameters, reference: Any, *, initial: bool = False
    ) -> tuple[FloatArray, float]:
        """h(Ŝ) and the mean log-likelihood, from all rows; V_i := h_i(Ŝ) if ``initial``.

        Without some of the clients, those of the others.
        """
        layout = model.vectors(self.sizes)
        told = {"parameters": parameters, "reference": reference, "initial": initial}

        def read(client: int, body: bytes) -> FloatArray:
            return numbers(body, (1 + int(np.prod(layout.shape_of(client))),))

        name, question = "field" if initial else "evaluation", {"arguments": told}
        most = 8 * (1 + model.n_statistics)
        found = self._ask(name, question, read, most, everyone=initial)
        who = np.array(sorted(found))
        sent = [found[client] for client in who.tolist()]
        likelihoods = np.array([own[0] for own in sent])
        fields = np.concatenate(
            [own[1:].reshape(layout.shape_of(k)) for own, k in zip(sent, who.tolist(), strict=True)]
        )
        if initial:
            self.controls[layout.indices(who)] = fields
            self._reset_control = None
        weights, lengths = self.sizes
        shards = shards_of(lengths)
        segments = segments_of(who, lengths[who], shards, model.block_rows)
        field = weighted_total(layout, self.sizes, who, fields, segments)
        own_shards, share = np.searchsorted(who, shards), weights[who].sum()
        log_likelihood = float(sum_of_shards(weights[who], likelihoods, own_shards))
        if len(who) < len(weights):
            return field / share, log_likelihood / share
        return field, log_likelihood

    # ---- states

    def fingerprint(self) -> str:
        """Nothing that depends on rows: clients do not tell a digest of them."""
        return "deployed"

    def save(self) -> dict[str, Any]:
        """V_i of all clients; everything else stays with them, and would start afresh."""
        states: Any = NoStates()
        if self.solver is not None and self.task is not None:
            states = self.solver.init(self.task, self.federation)
        return {"controls": self.controls.copy(), "states": states}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Not possible: states are the clients' own."""
        raise ValueError("Expected a new fit, got one that resumes. Deployed clients keep states.")


def _for_clients(argument: Any) -> Any:
    """An argument of a message without what only the server may know."""
    return argument.for_clients() if hasattr(argument, "for_clients") else argument


def _nothing(client: int, body: bytes) -> None:
    """Content of a reply that only agrees."""
    if body:
        raise Refused("length")
