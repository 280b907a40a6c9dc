"""What a client computes from its rows when a server asks."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._data.frame_labels import sizes_of_shape
from .._federation import ClientRows, Federation
from ..clients.group import client_half, encoded
from ..solvers._from_parameters import SOLVERS
from ..solvers.base import Broadcast, ClientGroup, Solver, Task
from ..solvers.server import message_units_of
from ._broadcasts import heard_of
from ._functions import with_function
from ._messages import NEVER, Refused
from ._questions import SET_UP, message_to_bytes
from ._reader import OwnData, OwnTable
from ._readers import reader_of
from ._tables import check_columns, check_given, columns_to_bytes, labels_to_bytes


@dataclass(frozen=True)
class Policy:
    """What the owner of a table allows a server to ask.

    Parameters
    ----------
    min_rows : int, default=10
        Smallest table that takes part: statistics of few rows reveal them.
    max_rounds : int, default=500
        Largest number of rounds that are answered. Evaluations, which ask for exact statistics and
        likelihoods, are not counted.
    allow_init : tuple of str, default=("kmeans", "random")
        Values of ``init_params`` that are answered; the others reveal rows.
    allow_estimators : tuple of str or None, default=None
        Names of estimators; None for all.
    """

    min_rows: int = 10
    max_rounds: int = 500
    allow_init: tuple[str, ...] = ("kmeans", "random")
    allow_estimators: tuple[str, ...] | None = None


# Where messages and models of an estimator are defined.
_PACKAGES = {
    "FederatedGaussianMixture": ("skfedem.models.mixture.",),
    "FederatedMatrixImputer": ("skfedem.models.matrix.", "skfedem._imputer."),
    "FederatedNonlinearMixedEffects": ("skfedem.models.mixed_effects.", "skfedem._mixed_effects."),
    "FederatedMLPClassifier": ("skfedem.solvers.hard_em",),
    "FederatedMLPRegressor": ("skfedem.solvers.hard_em",),
    "FederatedStandardScaler": ("skfedem.preprocessing.",),
    "FederatedPCA": ("skfedem.preprocessing.",),
}


def _check_asked(held: Held, asked: Any) -> None:
    """Refuse what the estimator of the plan, which the owner has allowed, does not ask."""
    assert held.plan is not None  # a plan was agreed on
    if not asked.__module__.startswith(_PACKAGES[held.plan["estimator"]]):
        raise Refused(f"question: {held.plan['estimator']} does not ask this")


class Held(NamedTuple):
    """State of a client; a phase replaces it when the server has used the reply.

    Attributes
    ----------
    mark : int
        Mark of the last reply that the server has used.
    plan : dict or None
        What the server wants to fit, with the parameters and the roster.
    agreed : dict
        What follows from the facts that all clients sent of their tables.
    start : int
        Number of the start, as an estimator may have several.
    n_rounds : int
        Number of rounds answered.
    solver : str or None
    task : Task or None
    controls : ndarray
        V_i.
    states : tuple
        What else the solver keeps.
    rows : str
        Digest of the table that was described to the server.
    """

    mark: int = NEVER
    plan: dict[str, Any] | None = None
    agreed: dict[str, Any] = {}
    start: int = 0
    n_rounds: int = 0
    solver: str | None = None
    task: Task | None = None
    controls: NDArray[Any] = np.empty(0)
    states: tuple[Any, ...] = ()
    rows: str = ""


class LocalAnswers:
    """Answers from the rows of one client, as its owner's policy allows.

    Parameters
    ----------
    name : str
    data : OwnData
    policy : Policy
    model : callable or None
    seed_of : callable
        ``seed_of(start)`` is the seed of the random numbers of a start.
    """

    def __init__(
        self,
        name: str,
        data: OwnData,
        policy: Policy,
        model: Callable[..., Any] | None,
        seed_of: Callable[[int], int],
    ) -> None:
        self.name, self.data, self.policy, self.model = name, data, policy, model
        self._seed_of = seed_of
        self._read: tuple[dict[str, Any], OwnTable] | None = None
        self._federation: tuple[dict[str, Any], Federation] | None = None

    def compute(self, question: dict[str, Any], held: Held) -> tuple[bytes, Held]:
        """Body of the reply to a question, and the state after it."""
        match question["ask"]:
            case "plan":
                return self._agree(held, question["plan"])
            case "classes":
                return self._labels(held), held
            case "table":
                return b"", held._replace(agreed=question["agreed"])
            case "set-up":
                return self._set_up(question, held), held._replace(start=question["start"])
            case "task":
                return b"", self._join(held, question)
            case "field" | "evaluation":
                return self._field(held, **question["arguments"])
            case "round":
                return self._round(held, question["arguments"])
        raise Refused(f"question: {question['ask']!r} is unknown")

    def _agree(self, held: Held, plan: dict[str, Any]) -> tuple[bytes, Held]:
        """Compare a plan with the policy and the table; numbers of rows, names of columns."""
        policy, parameters = self.policy, plan["parameters"]
        allowed = policy.allow_estimators
        if allowed is not None and plan["estimator"] not in allowed:
            raise Refused(f"policy: {plan['estimator']} is not allowed")
        if (parameters.get("max_iter") or 0) > policy.max_rounds:
            raise Refused(f"policy: expected at most {policy.max_rounds} rounds")
        table = self.table(plan)
        if table.n_rows < policy.min_rows:
            raise Refused(f"policy: the table has less than {policy.min_rows} rows")
        check_columns(plan["features"], table.columns)
        facts = table.facts.astype("<f8").tobytes()
        columns = columns_to_bytes(table.n_rows, table.columns, self.data.given)
        return facts + columns, held._replace(plan=plan, rows=table.digest)

    def _labels(self, held: Held) -> bytes:
        """Labels of the classes in the table, of an estimator that has classes."""
        classes = self._own(held).classes
        if classes is None:
            raise Refused("question: the estimator of the plan does not ask this")
        return labels_to_bytes(classes)

    def table(self, plan: dict[str, Any]) -> OwnTable:
        """Table of this client, as the estimator reads it."""
        if self._read is None or self._read[0] is not plan:
            reader = reader_of(plan["estimator"])
            for name in self.data.given:
                if name not in reader.takes:
                    raise Refused(f"{name}: {plan['estimator']} takes none")
            own = reader.read(with_function(plan, self.model), self.data)
            self._read, self._federation = (plan, own), None
        return self._read[1]

    def _own(self, held: Held) -> OwnTable:
        """Table of this client, if it is the one that was described to the server."""
        assert held.plan is not None  # a plan was agreed on
        table = self.table(held.plan)
        if table.digest != held.rows:
            raise Refused("table: it is not the one with which the fit began")
        return table

    def _set_up(self, question: dict[str, Any], held: Held) -> bytes:
        """Message before the first round."""
        known = SET_UP.get(question["message"])
        if known is None:
            raise Refused(f"question: message {question['message']!r} is unknown")
        if known.init and known.init not in self.policy.allow_init:
            raise Refused(f"policy: init_params={known.init!r} is not allowed")
        _check_asked(held, known.message)
        names = [*inspect.signature(known.message).parameters][1:]
        arguments = dict(zip(names, question["arguments"], strict=True))
        if "seed" in arguments:
            arguments["seed"] = self._seed_of(question["start"])
            if known.init == "kmeans":
                arguments["seed"] %= 2**32  # the largest that scikit-learn accepts
        assert held.plan is not None  # a plan was agreed on
        complete = self._own(held).complete
        arguments = {name: complete(own) for name, own in arguments.items()}
        sent = known.message(self._rows(held), **arguments)
        if known.gathered:
            return known.gathered.encode(sent, sizes_of_shape(held.plan["shape"]))
        return np.ascontiguousarray(sent[0], "<f8").tobytes()

    def _join(self, held: Held, question: dict[str, Any]) -> Held:
        """Agree on solver and task; the state is that before the first round."""
        _check_asked(held, type(question["task"].model))
        start = question["start"]
        held = held._replace(start=start, solver=question["solver"])
        held = held._replace(task=question["task"]._replace(seed=self._seed_of(start)))
        solver, task = self._joined(held)
        federation = self._rows(held).federation
        vectors = task.model.vectors(federation)
        controls = vectors.zeros() if task.has_controls else np.empty(0)
        states = tuple(solver.init(task, federation))
        return held._replace(controls=controls, states=states)

    def again(self, held: Held, told: dict[str, Any]) -> Held:
        """State of a client that starts afresh while others go on."""
        _, held = self._agree(held, told["plan"])
        check_given(told["given"], self.data.given)
        n_rows = self.table(told["plan"]).n_rows
        if n_rows != told["n_rows"]:
            raise Refused(f"table: expected {told['n_rows']} rows, as before, got {n_rows}")
        held = held._replace(agreed=told["agreed"])
        return held if told["task"] is None else self._join(held, told)

    def _field(
        self, held: Held, parameters: Any, reference: Any, initial: bool
    ) -> tuple[bytes, Held]:
        """h_i(Ŝ) and the mean log-likelihood; V_i := h_i(Ŝ) if ``initial``."""
        rows, (_, task) = self._rows(held), self._joined(held)
        parameters, reference = self._heard(held, task, parameters, reference)
        estimate = task.model.all_rows(rows.federation, parameters, rows.clients)
        assert estimate.log_likelihood is not None  # all rows were read
        field = estimate.statistics - reference
        body = np.append(estimate.log_likelihood, field).astype("<f8").tobytes()
        return body, held._replace(controls=field) if initial else held

    def _round(self, held: Held, told: dict[str, Any]) -> tuple[bytes, Held]:
        """The client's half of a round."""
        if held.n_rounds >= self.policy.max_rounds:
            raise Refused(f"policy: {held.n_rounds} rounds were answered")
        rows, (solver, task) = self._rows(held), self._joined(held)
        states = type(solver.init(task, rows.federation))(*held.states)
        heard = self._heard(held, task, told["parameters"], told["reference"])
        told = told | dict(zip(("parameters", "reference"), heard, strict=True))
        broadcast = Broadcast(**told, message_units=message_units_of(task, heard[0]))
        group = ClientGroup(*rows, held.controls, states)
        message, controls, states = client_half(solver, task, broadcast, group)
        sent = encoded(solver, task, broadcast, message)
        after = held._replace(n_rounds=held.n_rounds + 1, controls=controls, states=tuple(states))
        return message_to_bytes(sent), after

    def _heard(self, held: Held, task: Task, parameters: Any, reference: Any) -> tuple[Any, Any]:
        """Parameters and reference, from what the server tells of them."""
        parameters, reference = heard_of(task.model, parameters, reference)
        return self._own(held).complete(parameters), reference

    def _joined(self, held: Held) -> tuple[Solver, Task]:
        """Solver and task that were agreed on."""
        if held.task is None or held.plan is None:
            raise Refused("question: no task was agreed on")
        table = self._own(held)
        solver = table.solver or SOLVERS[str(held.solver)]
        if solver.name != held.solver:
            raise Refused(f"question: solver {held.solver!r} is not that of the plan")
        return solver, held.task._replace(model=table.complete(held.task.model))

    def _rows(self, held: Held) -> ClientRows:
        """Rows of this client, and its number among all."""
        assert held.plan is not None  # a plan was agreed on
        table = self._own(held)
        if self._federation is None or self._federation[0] is not held.agreed:
            self._federation = held.agreed, table.federation(held.agreed)
        number = held.plan["roster"].index(self.name)
        return ClientRows(self._federation[1], np.array([0]), np.array([number]))
