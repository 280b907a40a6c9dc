"""Clients in this process: groups of them are processed in threads."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial, reduce
from itertools import pairwise
from operator import add
from typing import Any, NamedTuple

import numpy as np

from .._client_vectors import ClientVectors, as_slice, row_indices
from .._federation import (
    MOST_CLIENTS,
    ClientMessage,
    ClientRows,
    ClientSizes,
    Elsewhere,
    Federation,
    MessageBits,
    client_groups,
    digest_of,
    fingerprint,
)
from .._history import FLOAT_BITS
from .._parallel import Workers
from .._typing import FloatArray, IntArray
from ..models._base import Model, Parameters
from ..solvers.base import Broadcast, ClientGroup, NoStates, Solver, Task
from ..solvers.messages import AggregatedMessages, Message
from .group import client_half
from .sums import (
    ROWS_OF_A_MEAN,
    MeanTerm,
    Segments,
    aggregated,
    joined_terms,
    mean_term,
    segments_of_all,
    segments_of_round,
    shards_of,
    sum_in_order,
    sum_of_shards,
    terms_of_shards,
    weighted_terms,
)

# Numbers of messages that are added up at once; they fit into the cache of a processor.
_SUMMED_AT_ONCE = 2**17


class SetUpMessage(NamedTuple):
    """What clients sent and received at once before the first round.

    Parameters
    ----------
    name : str
    n_clients : int
        Number of clients that sent or received it.
    uplink_bits, downlink_bits : int
        Bits that they sent and received, all together.
    """

    name: str
    n_clients: int
    uplink_bits: int
    downlink_bits: int


class _Prepared(NamedTuple):
    """New controls and states of a block of clients, with their indices in the arrays of all."""

    controls: tuple[slice | IntArray, FloatArray]
    states: list[tuple[slice | IntArray, Any]]


class CountedMessages:
    """Messages before the first round, with their names and sizes; a base of ``Clients``."""

    def __init__(self) -> None:
        self.messages: list[SetUpMessage] = []

    @property
    def sizes(self) -> ClientSizes:
        """Weights and numbers of rows of the clients."""
        raise NotImplementedError

    def tell(
        self, name: str, n_numbers: int, n_clients: int | None = None, n_sent: int = 0
    ) -> None:
        """Count numbers that all clients, or so many, receive, and those that each has sent."""
        n_clients = self.sizes.n_clients if n_clients is None else n_clients
        bits = FLOAT_BITS * n_clients
        self.messages.append(SetUpMessage(name, n_clients, bits * n_sent, bits * n_numbers))

    def count(
        self, name: str, n_clients: int, uplink_bits: int, arguments: tuple[Any, ...]
    ) -> None:
        """Count messages, and the arrays that their clients receive for them."""
        told = sum(value.size for value in arguments if isinstance(value, np.ndarray))
        downlink_bits = FLOAT_BITS * n_clients * told
        self.messages.append(SetUpMessage(name, n_clients, uplink_bits, downlink_bits))

    def bits(self, first: int = 0) -> tuple[int, int]:
        """Bits that clients sent and received in messages of the set-up, from one of them on."""
        new = self.messages[first:]
        return sum(own.uplink_bits for own in new), sum(own.downlink_bits for own in new)


class LocalClients(CountedMessages):
    """All clients of a federation, in this process; implements ``Clients``.

    Parameters
    ----------
    federation : Federation
    workers : Workers
    ids : ndarray of int, default=None
        Numbers of the clients, if they are one shard of those there are: these address random
        numbers.
    """

    def __init__(
        self, federation: Federation, workers: Workers, ids: IntArray | None = None
    ) -> None:
        super().__init__()
        self.federation, self.workers = federation, workers
        self.ids = np.arange(federation.n_clients) if ids is None else ids
        whole = np.array([0, federation.n_clients])
        self.shards = shards_of(federation.lengths) if ids is None else whole
        self.controls: FloatArray = np.empty(0)
        self.states: Any = NoStates()
        self._prepared: tuple[int, list[_Prepared]] | None = None

    @property
    def sizes(self) -> ClientSizes:
        """Weights and numbers of rows of the clients."""
        return self.federation.sizes

    def join(self, solver: Solver, task: Task) -> None:
        """Tell all clients solver and task; their states are those before the first round."""
        self.solver, self.task = solver, task
        self.vectors = task.model.vectors(self.federation)
        self.controls = np.empty(0)  # frees those of an earlier run
        if task.has_controls:
            self.controls = self.vectors.zeros()
        self.states = solver.init(task, self.federation)

    def weigh(self, weights: FloatArray) -> None:
        """Give the clients other weights, from the next round on."""
        self.federation = self.federation._replace(weights=weights)

    # ---- rounds

    def round(self, broadcast: Broadcast, active: IntArray) -> AggregatedMessages:
        """Clients' half of a round; new states are only prepared."""
        federation, block_rows = self.federation, self.task.model.block_rows
        n_rows = federation.lengths_of(active)
        segments = segments_of_round(self.task, n_rows, self.shards, active)
        half = partial(self._half, broadcast, active, segments)
        parts = self.workers.map(half, segments.blocks(block_rows), "round")
        self._prepared = broadcast.round_index, [prepared for _, _, prepared in parts]
        messages, total = [message for message, _, _ in parts], np.empty(0)
        if self.solver.aggregates:
            terms = [term for _, own, _ in parts for term in own]
            total = self.vectors.total(active, terms, segments.shards)
        return aggregated(self.solver, federation.weights, self.shards, active, messages, total)

    def _half(
        self, broadcast: Broadcast, active: IntArray, segments: Segments, block: slice
    ) -> tuple[Message, list[FloatArray], _Prepared]:
        """Messages of a block of segments, the terms of these in the sum, and new states."""
        first, last = segments.slices[block][0].start, segments.slices[block][-1].stop
        group, own, indices = self._group(active[first:last])
        message, controls, states = client_half(self.solver, self.task, broadcast, group)
        prepared = _Prepared((own, controls), list(zip(indices, states, strict=True)))
        terms: list[FloatArray] = []
        if self.solver.aggregates:
            slices = segments.slices[block]
            terms = self._terms(self.vectors, group.clients, message.quantized, first, slices)
            message = message._replace(quantized=None)
        return message._replace(sent=None), terms, prepared

    def _group(
        self, clients: IntArray
    ) -> tuple[ClientGroup, slice | IntArray, list[slice | IntArray]]:
        """Group of some clients, and the indices of their controls and states."""
        numbers, own = as_slice(clients), self.vectors.indices(clients)
        solver, indices = self.solver, []
        for name in self.states._fields:
            if name in solver.per_row:
                indices.append(row_indices(self.federation.offsets, clients))
            else:
                indices.append(numbers if name in solver.per_client else own)
        states = type(self.states)(
            *(field[at] for field, at in zip(self.states, indices, strict=True))
        )
        controls = self.controls[own] if self.task.has_controls else self.controls
        group = ClientGroup(self.federation, clients, self.ids[clients], controls, states)
        return group, own, indices

    def _terms(
        self,
        layout: ClientVectors,
        clients: IntArray,
        vectors: FloatArray,
        first: int,
        slices: list[slice],
    ) -> list[FloatArray]:
        """Weighted sums of the segments of a block, whose first client has the number ``first``."""
        segments = [slice(own.start - first, own.stop - first) for own in slices]
        return weighted_terms(layout, self.federation.weights[clients], clients, vectors, segments)

    def commit(self, round_index: int) -> None:
        """Replace the states by those prepared in this round; drop those of another round."""
        if self._prepared is not None and self._prepared[0] == round_index:
            for (own, controls), states in self._prepared[1]:
                if self.task.has_controls:
                    self.controls[own] = controls
                for field, (at, new) in zip(self.states, states, strict=True):
                    field[at] = new
        self._prepared = None

    # ---- set-up and evaluation

    def mean(self, message: ClientMessage, *arguments: Any) -> FloatArray:
        """Σ_i w_i m_i over all clients, relative to m_0: equal messages have an exact mean."""
        terms = self.mean_terms(message, *arguments)
        n_clients = self.federation.n_clients
        uplink_bits = FLOAT_BITS * n_clients * terms[0].first.size
        self.count(message.__name__, n_clients, uplink_bits, arguments)
        whole = joined_terms(terms)
        return whole.first + whole.deviation

    def mean_terms(self, message: ClientMessage, *arguments: Any) -> list[MeanTerm]:
        """Part of each shard in a mean."""
        federation = self.federation
        segments = segments_of_all(federation.lengths, ROWS_OF_A_MEAN, self.shards)

        def part(block: slice) -> list[MeanTerm]:
            terms = []
            for own in segments.slices[block]:
                sent = message(self._rows(own.start, own.stop), *arguments)
                terms.append(mean_term(federation.weights[own], sent))
            return terms

        parts = self.workers.map(part, segments.blocks(ROWS_OF_A_MEAN), message.__name__)
        terms = [term for own in parts for term in own]
        return terms_of_shards(terms, segments.shards)

    def sum(
        self, message: ClientMessage, *arguments: Any, n_bits: MessageBits | None = None
    ) -> FloatArray:
        """Σ_i m_i over all clients: in order, by shard."""
        federation, n_clients = self.federation, self.federation.n_clients

        def sent(first: int, last: int) -> FloatArray:
            return message(self._rows(first, last), *arguments)

        def part(shard: tuple[int, int]) -> FloatArray:
            first, last = shard
            (total,) = sent(first, first + 1)
            first, at_once = first + 1, max(1, _SUMMED_AT_ONCE // total.size)
            offsets = federation.offsets[first : last + 1]
            for group in client_groups(offsets, ROWS_OF_A_MEAN, min(at_once, MOST_CLIENTS)):
                total = sum_in_order(sent(first + group.start, first + group.stop), total)
            return total

        shards = pairwise(self.shards.tolist())
        total = reduce(add, self.workers.map(part, list(shards), message.__name__))
        uplink_bits = n_bits(total) if n_bits else FLOAT_BITS * n_clients * total.size
        self.count(message.__name__, n_clients, uplink_bits, arguments)
        return total

    def collect(self, message: ClientMessage, clients: IntArray, *arguments: Any) -> list[Any]:
        """Messages of some clients, one by one."""

        def answer(client: int) -> Any:
            return message(self._rows(client, client + 1), *arguments)[0]

        answers = self.workers.map(answer, clients.tolist(), message.__name__)
        uplink_bits = FLOAT_BITS * sum(np.size(own) for own in answers)
        self.count(message.__name__, len(answers), uplink_bits, arguments)
        return answers

    def gather(
        self, message: ClientMessage, *arguments: Any, n_bits: MessageBits | None = None
    ) -> Any:
        """Messages of all clients in order, as one array or a tuple of arrays."""
        every = self._rows(0, self.federation.n_clients)
        (messages,) = self.workers.map(
            lambda rows: message(rows, *arguments), [every], message.__name__
        )
        own = messages if isinstance(messages, tuple) else (messages,)
        uplink_bits = n_bits(messages) if n_bits else FLOAT_BITS * sum(part.size for part in own)
        self.count(message.__name__, len(every.ids), uplink_bits, arguments)
        return messages

    def _rows(self, first: int, last: int) -> ClientRows:
        """Rows of the clients ``first`` to ``last - 1``."""
        return ClientRows(self.federation, np.arange(first, last), self.ids[first:last])

    def mean_field(
        self, model: Model, parameters: Parameters, reference: Any, *, initial: bool = False
    ) -> tuple[FloatArray, float]:
        """h(Ŝ) and the mean log-likelihood, from all rows; V_i := h_i(Ŝ) if ``initial``."""
        federation, layout = self.federation, model.vectors(self.federation)
        segments = segments_of_all(federation.lengths, model.block_rows, self.shards)

        def part(block: slice) -> tuple[list[FloatArray], FloatArray]:
            slices = segments.slices[block]
            first, last = slices[0].start, slices[-1].stop
            clients = np.arange(first, last)
            estimate = model.all_rows(federation, parameters, clients)
            fields = estimate.statistics - reference
            if initial:
                self.controls[layout.indices(clients)] = fields
            assert estimate.log_likelihood is not None  # all rows were read
            return self._terms(layout, clients, fields, first, slices), estimate.log_likelihood

        parts = self.workers.map(part, segments.blocks(model.block_rows), "evaluation")
        terms = [term for own, _ in parts for term in own]
        likelihoods = np.concatenate([own for _, own in parts])
        log_likelihood = sum_of_shards(federation.weights, likelihoods, self.shards)
        every = np.arange(federation.n_clients)
        return layout.total(every, terms, segments.shards), float(log_likelihood)

    def reset_control(self) -> FloatArray | None:
        """V if some V_i were lost since the last call: none is in this process."""
        return None

    def control(self) -> FloatArray:
        """V = Σ_i w_i V_i."""
        every = np.arange(self.federation.n_clients)
        lengths, block_rows = self.federation.lengths, self.task.model.block_rows
        segments = segments_of_all(lengths, block_rows, self.shards)
        if not self.task.has_controls:
            return self.vectors.total(every[:0], [], [])
        terms = self._terms(self.vectors, every, self.controls, 0, segments.slices)
        return self.vectors.total(every, terms, segments.shards)

    # ---- states

    def fingerprint(self) -> str:
        """Digest of all rows and their weights, to recognise other data of the same sizes."""
        return digest_of(self.fingerprints())

    def fingerprints(self) -> list[str]:
        """Digest of the rows of each shard."""
        shards = pairwise(self.shards.tolist())
        return [fingerprint(self.federation, *shard) for shard in shards]

    def save(self) -> dict[str, Any]:
        """Controls and states of all clients."""
        return {"controls": self.controls, "states": self.states}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Replace controls and states by saved ones."""
        self.controls, self.states = saved["controls"], saved["states"]


def clients_of(X: object, federation: Federation, workers: Workers) -> Any:
    """``Clients`` of a fit to X: those elsewhere, if X names them, else in this process."""
    if isinstance(X, Elsewhere):
        return X.clients(federation.weights)
    return LocalClients(federation, workers)
