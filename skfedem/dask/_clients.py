"""Clients on workers, as a fit knows them: shard by shard, the sums of one process."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from itertools import pairwise
from operator import add
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import numpy as np

from .._client_vectors import row_indices
from .._federation import ClientMessage, ClientSizes, MessageBits, digest_of, offsets_of
from .._history import FLOAT_BITS
from .._typing import FloatArray, IntArray
from ..clients.local import CountedMessages
from ..clients.sums import aggregated, joined, joined_terms
from ..models._base import BaseModel, Model, Parameters
from ..solvers.base import Broadcast, Solver, Task
from ..solvers.messages import AggregatedMessages, stacked
from ._cluster import Lost, answers_of
from ._shard import Behind, Call, Fit, Told, answer

if TYPE_CHECKING:
    from ._federation import DaskFederation


class _Entry(NamedTuple):
    """A call that changes states, for all shards, or by shard with those that it does not ask."""

    common: Call | None
    by_shard: dict[int, Call]

    def of(self, shard: int) -> Call | None:
        return self.by_shard.get(shard, self.common)


class DaskClients(CountedMessages):
    """Clients on the workers of a cluster; implements ``Clients``.

    It keeps the states of the last snapshot, and the calls since then. A shard whose worker was
    lost is read again by another one, which gets both, and then has the same states.

    Parameters
    ----------
    federation : DaskFederation
    weights : ndarray of shape (n_clients,)
    """

    def __init__(self, federation: DaskFederation, weights: FloatArray) -> None:
        super().__init__()
        self._federation, self._name = federation, uuid4().hex
        self._sizes, self._n_tasks = ClientSizes(weights, federation.lengths), 0
        self._shards = [*pairwise(federation.shards.tolist())]
        by_shard = self._cut(weights)
        weigh = {k: Call("weigh", (own,)) for k, own in enumerate(by_shard)}
        self._snapshot: list[_Entry] = []
        self._since = [_Entry(None, weigh)]
        self._n_before = 0  # number of calls before those since the snapshot
        self._known: dict[int, tuple[str, int]] = {}  # worker of a shard, calls that it has had
        self._n_rounds = 0
        federation.fits.add(self)

    @property
    def name(self) -> str:
        """Name of the fit."""
        return self._name

    @property
    def sizes(self) -> ClientSizes:
        """Weights and numbers of rows of the clients."""
        return self._sizes

    def _cut(self, values: FloatArray) -> list[FloatArray]:
        """Values of all clients, by shard."""
        return [values[first:last] for first, last in self._shards]

    # ---- questions

    def _ask(
        self, name: str, question: Call | dict[int, Call] | None, shards: list[int] | None = None
    ) -> list[Any]:
        """Answers of some shards, all by default, to a question or else to the last call."""
        waiting = [*range(len(self._shards))] if shards is None else shards
        wanted = list(waiting)
        found: dict[int, Any] = {}
        while waiting:
            answers = self._answers(name, question, waiting)
            found |= {k: own for k, own in answers.items() if not isinstance(own, Behind)}
            waiting = [k for k in waiting if k not in found]
        return [found[k] for k in wanted]

    def _answers(
        self, name: str, question: Call | dict[int, Call] | None, shards: list[int]
    ) -> dict[int, Any]:
        """Answers of those shards whose workers are there: a task for each worker."""
        federation, client = self._federation, self._federation.client
        places, n_calls = federation.places(), self._n_before + len(self._since)
        at: dict[str, list[int]] = {}
        for k in shards:
            at.setdefault(places[k], []).append(k)
        fit = Fit(self._name, federation.name, [own.name for own in federation.fits])
        asked = {}
        for address, own in at.items():
            rows = [federation.rows[k] for k in own]
            told = [self._told(k, address, question) for k in own]
            self._n_tasks += 1
            asked[address] = client.submit(
                answer,
                rows,
                [future.key for future in rows],
                fit,
                told,
                key=f"{name}-{self._name}-{self._n_tasks}",
                workers=[address],
                allow_other_workers=False,
                pure=False,
            )
        try:
            by_worker = answers_of(client, asked)
        except BaseException:  # also of the keyboard
            client.cancel([*asked.values()])
            self._known.clear()
            raise
        answers: dict[int, Any] = {}
        for address, own in at.items():
            if isinstance(by_worker[address], Lost):
                federation.look_again()
                for k in own:
                    self._known.pop(k, None)
                continue
            for k, one in zip(own, by_worker[address], strict=True):
                answers[k] = one
                self._known[k] = address, n_calls
                if isinstance(one, Behind):
                    del self._known[k]
        return answers

    def _told(self, shard: int, address: str, question: Call | dict[int, Call] | None) -> Told:
        """What a worker has to be told of a shard: everything if it is new there."""
        place, n_told = self._known.get(shard, ("", -1))
        is_known = place == address and n_told >= self._n_before
        since = self._since[n_told - self._n_before :] if is_known else self._snapshot + self._since
        calls, after = [entry.of(shard) for entry in since], self._n_before + len(self._since)
        own = question.get(shard) if isinstance(question, dict) else question
        return Told(shard, n_told if is_known else None, calls, after, own)

    def _shards_of(self, clients: IntArray) -> dict[int, IntArray]:
        """Shards that have some of these clients, and their positions there."""
        bounds = np.searchsorted(clients, self._federation.shards)
        return {
            k: clients[a:b] - self._shards[k][0]
            for k, (a, b) in enumerate(pairwise(bounds.tolist()))
            if a < b
        }

    # ---- set-up

    def mean(self, message: ClientMessage, *arguments: Any) -> FloatArray:
        """Σ_i w_i m_i over all clients, relative to m_0: equal messages have an exact mean."""
        told = _message("mean_terms", message, arguments)
        whole = joined_terms([own for (own,) in self._ask(message.__name__, told)])
        n_clients = self.sizes.n_clients
        uplink_bits = FLOAT_BITS * n_clients * whole.first.size
        self.count(message.__name__, n_clients, uplink_bits, arguments)
        return whole.first + whole.deviation

    def sum(
        self, message: ClientMessage, *arguments: Any, n_bits: MessageBits | None = None
    ) -> FloatArray:
        """Σ_i m_i over all clients: in order, by shard."""
        told = _message("sum", message, arguments)
        total = reduce(add, self._ask(message.__name__, told))
        n_clients = self.sizes.n_clients
        uplink_bits = n_bits(total) if n_bits else FLOAT_BITS * n_clients * total.size
        self.count(message.__name__, n_clients, uplink_bits, arguments)
        return total

    def collect(self, message: ClientMessage, clients: IntArray, *arguments: Any) -> list[Any]:
        """Messages of some clients, one by one."""
        order = np.argsort(clients, kind="stable")
        told = {
            k: _message("collect", message, (own, *arguments))
            for k, own in self._shards_of(clients[order]).items()
        }
        sent = [one for own in self._ask(message.__name__, told, [*told]) for one in own]
        answers = [sent[k] for k in np.argsort(order)]
        uplink_bits = FLOAT_BITS * sum(np.size(own) for own in answers)
        self.count(message.__name__, len(answers), uplink_bits, arguments)
        return answers

    def gather(
        self, message: ClientMessage, *arguments: Any, n_bits: MessageBits | None = None
    ) -> Any:
        """Messages of all clients in order, as one array or a tuple of arrays."""
        told = _message("gather", message, arguments)
        messages = stacked(self._ask(message.__name__, told))
        own = messages if isinstance(messages, tuple) else (messages,)
        uplink_bits = n_bits(messages) if n_bits else FLOAT_BITS * sum(part.size for part in own)
        self.count(message.__name__, self.sizes.n_clients, uplink_bits, arguments)
        return messages

    # ---- rounds

    def join(self, solver: Solver, task: Task) -> None:
        """Tell all clients solver and task; their states are those before the first round."""
        self.solver, self.task = solver, task
        self._layout = task.model.vectors(self.sizes)
        weigh = self._snapshot[0] if self._snapshot else self._since[0]
        self._restart([weigh, _Entry(Call("join", (solver, task.for_clients())), {})])

    def _restart(self, entries: list[_Entry]) -> None:
        """Take these calls as those that determine all states; workers are told what is new."""
        self._n_before += len(self._since)
        self._snapshot, self._since, self._n_rounds = entries, [], 0
        self._known = {}

    def weigh(self, weights: FloatArray) -> None:
        """Not asked in fits to rows that stay."""
        raise NotImplementedError

    def round(self, broadcast: Broadcast, active: IntArray) -> AggregatedMessages:
        """Clients' half of a round; new states are only prepared."""
        asked = self._shards_of(active)
        told = {
            k: Call("round", (broadcast, None if len(own) == last - first else own))
            for k, own in asked.items()
            for first, last in [self._shards[k]]
        }
        self._since.append(_Entry(None, told))
        parts = self._ask(f"{self.solver.name}-round", None, [*asked])
        total = np.empty(0)
        if self.solver.aggregates:
            sums = [own.message_sum for own in parts]
            total = self._layout.total(active, sums, [*range(len(sums))])
        if not parts:
            weights, shards = self.sizes.weights, self._federation.shards
            return aggregated(self.solver, weights, shards, active, [], total)
        return joined(parts, active, total)

    def commit(self, round_index: int) -> None:
        """Replace the states by those prepared in this round; drop those of another round."""
        self._since.append(_Entry(Call("commit", (round_index,)), {}))
        self._n_rounds += 1
        if self._n_rounds >= self._federation.snapshot_every:
            self._keep(self._ask("snapshot", Call("save")))

    def _keep(self, saved: list[dict[str, Any]]) -> None:
        """Take these states as the last snapshot: clients that go on have them already."""
        known, weigh, join = self._known, *self._snapshot[:2]
        restore = {k: Call("restore", (own,)) for k, own in enumerate(saved)}
        self._restart([weigh, join, _Entry(None, restore)])
        self._known = known

    def mean_field(
        self, model: Model, parameters: Parameters, reference: Any, *, initial: bool = False
    ) -> tuple[FloatArray, float]:
        """h(Ŝ) and the mean log-likelihood, from all rows; V_i := h_i(Ŝ) if ``initial``."""
        told = Call("mean_field", (model.for_clients(), parameters, reference, initial))
        if initial:
            self._since.append(_Entry(told, {}))
        parts = self._ask("evaluation", None if initial else told)
        fields, likelihoods = zip(*parts, strict=True)
        every, layout = np.arange(self.sizes.n_clients), model.vectors(self.sizes)
        field = layout.total(every, [*fields], [*range(len(fields))])
        return field, float(reduce(add, likelihoods))

    def reset_control(self) -> FloatArray | None:
        """V if some V_i were lost since the last call: they are restored."""
        return None

    def control(self) -> FloatArray:
        """V = Σ_i w_i V_i."""
        every = np.arange(self.sizes.n_clients)
        if not self.task.has_controls:
            return self._layout.total(every[:0], [], [])
        parts = self._ask("control", Call("control"))
        return self._layout.total(every, parts, [*range(len(parts))])

    # ---- states

    def fingerprint(self) -> str:
        """Digest of all rows and their weights, to recognise other data of the same sizes."""
        return digest_of(own for one in self._ask("digest", Call("fingerprints")) for own in one)

    def save(self) -> dict[str, Any]:
        """Controls and states of all clients."""
        saved = self._ask("save", Call("save"))
        return {
            "controls": np.concatenate([own["controls"] for own in saved]),
            "states": stacked([own["states"] for own in saved]),
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Replace controls and states by saved ones."""
        offsets, solver, states = offsets_of(self.sizes.lengths), self.solver, saved["states"]
        parts = []
        for first, last in self._shards:
            clients = np.arange(first, last)
            vectors = self._layout.indices(clients)
            at: dict[str, Any] = dict.fromkeys(solver.per_client, slice(first, last))
            at |= dict.fromkeys(solver.per_row, row_indices(offsets, clients))
            own = (
                field[at.get(name, vectors)]
                for name, field in zip(states._fields, states, strict=True)
            )
            controls = saved["controls"]
            controls = controls[vectors] if controls.size else controls
            parts.append({"controls": controls, "states": type(states)(*own)})
        self._keep(parts)
        self._known.clear()


def _message(name: str, message: ClientMessage, arguments: tuple[Any, ...]) -> Call:
    """Call for messages; models go without what only the server may know."""
    told = (own.for_clients() if isinstance(own, BaseModel) else own for own in arguments)
    return Call(name, (message, *told))
