"""Clients as a fit knows them, wherever they are: every question is handed to a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from .._federation import (
    Elsewhere,
    Federation,
    offsets_of,
)
from .._rows import LabelledRows
from .._typing import FloatArray, IntArray
from ..clients.group import decoded
from ..clients.local import SetUpMessage
from ..clients.sums import (
    aggregate,
    segments_of,
    segments_of_all,
    shards_of,
    sum_of_shards,
    weighted_total,
)
from ..models._base import Model, Parameters
from ..solvers.base import Broadcast, NoStates, Problem, Solver, Task
from ..solvers.messages import AggregatedMessages, Message, stacked
from ._broadcasts import told_of
from ._messages import Refused
from ._questions import (
    LARGEST,
    LARGEST_UPDATE,
    ROUND,
    check_values,
    message_from_bytes,
    numbers,
)
from ._readers import reader_of
from ._remote_set_up import Answers, Question, RemoteSetUp
from ._tables import (
    LARGEST_COLUMNS,
    LARGEST_LABELS,
    check_columns,
    check_given,
    columns_from_bytes,
    labels_from_bytes,
    labels_to_bytes,
)

# Bytes of an encoded message beyond nine for each number, and of numbers for the history.
_MOST_OVERHEAD = 256


class _Deployed(Elsewhere):
    """What an estimator is fitted to in place of tables."""

    def __init__(self, clients: RemoteClients, columns: list[str] | int, data: Any) -> None:
        self._clients, self.columns, self._data = clients, columns, data
        self.federation = clients.federation
        self.lengths, self.ids = clients.sizes.lengths, np.array(clients.names)
        self.totals, self.row_weight = clients.totals, clients.row_weight
        self.has_offset = "offset" in (clients.given or ())

    def clients(self, weights: FloatArray) -> RemoteClients:
        """The only ones there are; the plan says how they are weighed."""
        return self._clients

    def read(self, reading: Any = None) -> Any:
        """Facts of the clients' tables."""
        return self._data


class RemoteClients(RemoteSetUp):
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
        super().__init__(plan, ask)
        self.solver: Solver | None = None
        self.task: Task | None = None
        self.controls: FloatArray = np.empty(0)
        self._agreed_on: dict[str, Any] = {}
        self._reset_control: FloatArray | None = None
        self._control_after: FloatArray | None = None
        self.columns: list[str] | int | None = plan["features"]
        self.given: list[str] | None = None
        self._reader = reader_of(plan["estimator"])
        self._n_facts = self._reader.n_facts(plan)
        most = 8 * self._n_facts + LARGEST_COLUMNS
        replies = self.ask("plan", {"plan": plan}, self._columns, most)
        found = [replies[client] for client in sorted(replies)]
        lengths = np.array([n_rows for n_rows, _ in found], dtype=np.intp)
        if self._reader.has_classes and plan["classes"] is None:
            plan = {**plan, "classes": self._classes()}
        agreed = self._reader.agree(plan, lengths, np.array([facts for _, facts in found]))
        if agreed.told:
            self._agreed_on = agreed.told
            self.ask("table", {"agreed": agreed.told}, _nothing, 0)
        d = self.columns if isinstance(self.columns, int) else len(self.columns or ())
        # Without rows: what a layout of vectors needs to know.
        rows: Any = np.empty((0, d))
        if self._reader.has_target:
            rows = LabelledRows(rows, np.empty(0))
        self.federation = Federation(rows, offsets_of(lengths), agreed.weights)
        self.every, self.n_features, self._data = np.arange(len(lengths)), d, agreed.data
        self.totals, self.row_weight = agreed.totals, agreed.row_weight

    def elsewhere(self) -> Elsewhere:
        """What an estimator is fitted to in place of tables."""
        assert self.columns is not None
        return _Deployed(self, self.columns, self._data)

    def again(self, client: int) -> dict[str, Any]:
        """What a client has to know that starts afresh, and what is known of its table."""
        solver = None if self.solver is None else self.solver.name
        return {
            "plan": {**self.plan, "features": self.columns},
            "given": self.given,
            "n_rows": int(self.sizes.lengths[client]),
            "agreed": self._agreed_on,
            "start": self._start,
            "solver": solver,
            "task": None if self.task is None else self.task.for_clients(),
        }

    def start_afresh(self, clients: IntArray) -> None:
        """Set V_i := 0 of clients that have lost their states."""
        if self.controls.size:
            self.controls[self.layout.indices(clients)] = 0
            self._reset_control = self.control()

    def _classes(self) -> list[Any]:
        """Classes of all clients, in order; labels of all are text, or numbers of one type."""
        kinds = set[type]()

        def read(client: int, body: bytes) -> list[Any]:
            labels = labels_from_bytes(body)
            kinds.add(type(labels[0]))
            if len(kinds) > 1:
                kinds.remove(type(labels[0]))
                raise Refused(f"classes: expected a {kinds.pop().__name__}, got {labels[0]!r}")
            return labels

        replies = self.ask("classes", {}, read, LARGEST_LABELS)
        classes = sorted({label for labels in replies.values() for label in labels})
        n_bytes = sum(len(labels_to_bytes(labels)) for labels in replies.values())
        told = len(replies) * len(labels_to_bytes(classes))
        self.messages.append(SetUpMessage("classes", len(replies), 8 * n_bytes, 8 * told))
        return classes

    def _columns(self, client: int, body: bytes) -> tuple[int, FloatArray]:
        """Number of rows and facts of a client whose columns are those of the others."""
        size = 8 * self._n_facts
        n_rows, columns, given = columns_from_bytes(body[size:])
        facts = numbers(body[:size], (self._n_facts,))
        if not self._reader.are_possible(facts):
            raise Refused("facts")
        check_columns(self.columns, columns)
        check_given(self.given, given)
        self.columns, self.given = columns, given
        return n_rows, facts

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
        self.ask("task", told, _nothing, 0)
        self._reset_control = None  # all V_i are 0

    def round(self, broadcast: Broadcast, active: IntArray) -> AggregatedMessages:
        """Clients' half of a round, of those who answer; exact rounds are not without all."""
        solver, task = self._agreed()
        model = task.model
        parameters, reference = told_of(model, broadcast.parameters, broadcast.reference)
        told = broadcast._asdict() | {"parameters": parameters, "reference": reference}
        del told["message_units"]
        most = ROUND.size + 9 * task.model.n_statistics + _MOST_OVERHEAD
        found = self.ask(
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
            own, sent = self.layout.indices(who), stacked([own.quantized for own in messages])
            if solver.control_changes:
                changes = solver.control_changes(task, broadcast, self.sizes.lengths[who], sent)
            else:
                changes = task.control_step * sent
            self.controls[own] = self.controls[own] + changes
            if solver.control_changes and self._reset_control is not None:
                # These changes depend on what was sent, which was the V before the reset.
                self._control_after = self.control()
        return aggregate(solver, task, self.sizes, who, messages)

    def _message(self, broadcast: Broadcast, client: int, body: bytes) -> Message:
        """Message of a client in a round."""
        solver, task = self._agreed()
        most = 2 * max(int(self.sizes.lengths[client]), task.batch_size or 0)
        most *= getattr(task.model, "local_epochs", 1)
        encoded = message_from_bytes(body, most, solver.n_reported)
        if not self._is_exact:  # the likelihood is not read
            encoded = encoded._replace(log_likelihood=None)
        elif encoded.log_likelihood is None:
            raise Refused("likelihood")
        try:
            message = decoded(solver, task, broadcast, self.layout, client, encoded)
        except ValueError as error:
            raise Refused(f"damaged: {error}") from error
        is_update = isinstance(message.quantized, tuple)
        for part in message.quantized if is_update else (message.quantized,):
            if part is not None and part.dtype.kind == "f":
                check_values(part, LARGEST_UPDATE if is_update else LARGEST)
        return message

    def _agreed(self) -> tuple[Solver, Task]:
        """Solver and task of clients that have joined."""
        assert self.solver is not None and self.task is not None
        return self.solver, self.task

    def commit(self, round_index: int) -> None:
        """Follow V of a round in which states were lost; requests say which replies were used."""
        if self._control_after is not None:
            self._reset_control, self._control_after = self._control_after, None

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
        parameters, reference = told_of(model, parameters, reference)
        told = {"parameters": parameters, "reference": reference, "initial": initial}

        def read(client: int, body: bytes) -> FloatArray:
            return numbers(body, (1 + int(np.prod(layout.shape_of(client))),))

        name, question = "field" if initial else "evaluation", {"arguments": told}
        most = 8 * (1 + model.n_statistics)
        found = self.ask(name, question, read, most, everyone=initial)
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


def _nothing(client: int, body: bytes) -> None:
    """Content of a reply that only agrees."""
    if body:
        raise Refused("length")
