"""A client: its rows, its state, and what it answers."""

from __future__ import annotations

import inspect
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._data.frame_labels import sizes_of_shape
from .._error_messages import repr_of
from .._federation import ClientRows, Federation
from .._parallel import single_threaded_libraries
from .._parameters import check_number
from .._random import seeds_of_runs
from .._serialization import from_bytes, to_bytes
from .._typing import FilePath, Table
from ..clients.group import client_half, encoded
from ..solvers._from_parameters import SOLVERS
from ..solvers.base import Broadcast, ClientGroup, Solver, Task
from ..solvers.server import message_units_of
from ._functions import with_function
from ._messages import NEVER, Kind, Message, Refused, digest_of, mark_of, seal, unseal
from ._questions import SET_UP, message_to_bytes
from ._readers import OwnTable, fitted_of, reader_of
from ._storage import write
from ._tables import check_columns, columns_to_bytes


@dataclass(frozen=True)
class Policy:
    """What the owner of a table allows a server to ask.

    Parameters
    ----------
    min_rows : int, default=10
        Smallest table that takes part: statistics of few rows reveal them.
    max_rounds : int, default=500
        Largest number of rounds that are answered.
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


class Prepared(NamedTuple):
    """A reply that was sent, and the state that follows if the server uses it."""

    phase: int
    digest: str
    mark: int
    reply: NDArray[np.uint8]
    after: tuple[Any, ...]


class Client:
    """A client of a deployed fit: it answers requests from its rows, as its policy allows.

    Replies are stored before they are returned, and are returned again, not computed again, if a
    request is repeated. A client goes on where the files in ``state`` stand.

    Parameters
    ----------
    name : str
        Name in the server's roster.
    X : table
        Rows, as a table for the estimator that the server fits.
    state : path-like
        Folder for the state; created if it does not exist.
    seed : int or None, default=None
        Seed of the random numbers that hide rows in messages; None to draw it from the operating
        system. With the ``random_state`` of the estimator, the fit is that of a simulation.
        **Whoever knows the seed can compute rows from messages.**
    policy : Policy, default=Policy()
    key : bytes, default=b""
        Key shared with the server, for the tags of messages; without one, messages are only
        protected against damage.
    model : callable, default=None
        Structural model of a FederatedNonlinearMixedEffects, if it is a function of your own. It
        has to be that of the server; those of ``skfedem.pharmacokinetics`` are known.
    """

    def __init__(
        self,
        name: str,
        X: Table,
        state: FilePath,
        seed: int | None = None,
        policy: Policy | None = None,
        key: bytes = b"",
        model: Callable[..., Any] | None = None,
    ) -> None:
        if not isinstance(name, str):
            raise TypeError(f"Expected name to be a string, got {repr_of(name)}.")
        if not isinstance(key, bytes):
            raise TypeError(f"Expected key to be bytes, got a {type(key).__name__}.")
        if seed is not None:
            check_number("seed", seed, kind=Integral, low=0, high=2**32 - 1)
        self.name, self.policy, self.over = name, policy or Policy(), False
        self.has_ended = False  # whether the last request said so
        self._X, self._key, self._folder, self._model = X, key, Path(state), model
        self._own_seed = secrets.randbits(128) if seed is None else None
        self._seed = seed
        self._run = self._lost = b""
        self._held, self._prepared = Held(), None
        self._read: tuple[dict[str, Any], OwnTable] | None = None
        self._federation: tuple[dict[str, Any], Federation] | None = None
        self._folder.mkdir(parents=True, exist_ok=True)
        if (self._folder / "client").exists():
            self._load()

    _prepared: Prepared | None

    def answer(self, request: bytes) -> bytes:
        """Reply to a request.

        Parameters
        ----------
        request : bytes
            What the server's ``open`` gave for this client.

        Returns
        -------
        reply : bytes
            For the server's ``receive``. A request that is damaged, not allowed or not understood
            is answered by a refusal with the reason.
        """
        self.has_ended = False
        asked = Message(Kind.QUESTION, self._run, 0, 0, NEVER, bytes(16), b"")
        try:
            asked = unseal(request, self._key)
            reply = self._answered(asked)
        except OSError:  # a full disk is not the server's fault
            raise
        except Refused as reason:
            reply = self._sealed(asked, Kind.REFUSAL, str(reason).encode())
        except Exception as error:  # whatever a malformed question leads to
            reply = self._sealed(asked, Kind.REFUSAL, f"question: {error!r}"[:500].encode())
        self._note(asked, reply)
        return reply

    def result(self) -> Any:
        """The fitted estimator, without what it knows of other clients and of the fit's course.

        Raises
        ------
        ValueError
            If the fit has not ended, or failed.
        """
        plan, path = self._held.plan, self._folder / "result"
        if not self.over or plan is None or not path.exists():
            raise ValueError("Expected a fit that has ended well, got none. See the log.")
        told, table = from_bytes(path.read_bytes()), self._table(plan)
        return fitted_of(with_function(plan, self._model), told, table)

    def personal_result(self) -> dict[str, Any] | None:
        """What the fit says of this client's own rows, which stays here.

        Returns
        -------
        columns : dict of array-likes, or None
            Of a matrix, the sites where this client was, with their missing cells filled; None for
            estimators that say nothing of single rows.

        Raises
        ------
        ValueError
            If the fit has not ended, or failed.
        """
        estimator, plan = self.result(), self._held.plan
        assert plan is not None  # there is a result
        personal, plan = reader_of(plan["estimator"]).personal, with_function(plan, self._model)
        return None if personal is None else personal(estimator, plan, self._X)

    # ---- phases

    def _answered(self, asked: Message) -> bytes:
        """Reply to a request whose tag is right."""
        if asked.kind not in (Kind.QUESTION, Kind.RESET, Kind.END):
            raise Refused(f"kind: {asked.kind.name}")
        if asked.digest != digest_of(asked.body):
            raise Refused("digest")
        held, prepared = self._of_run(asked.run)
        key = asked.phase, asked.digest.hex()
        if prepared and asked.accepted == prepared.mark:
            held, prepared = Held(*prepared.after), None
        if asked.kind == Kind.END:
            return self._end(asked, held)
        is_reset = asked.kind == Kind.RESET
        is_known = is_reset or asked.accepted == held.mark
        if prepared and is_known and key == (prepared.phase, prepared.digest):
            return prepared.reply.tobytes()
        is_old = prepared and asked.phase < prepared.phase and asked.accepted == held.mark
        if is_old and held.mark != NEVER:  # else, a server that was restored could wait for ever
            raise Refused("old request")
        if is_reset and held.mark != NEVER and self._lost != asked.run:
            is_reset = False  # a late copy, unless this client has lost its state again
        if not is_reset and asked.accepted != held.mark:
            self._lost = asked.run
            return self._sealed(asked, Kind.LOST, b"")
        return self._prepare(asked, Held(n_rounds=held.n_rounds) if is_reset else held)

    def _of_run(self, run: bytes) -> tuple[Held, Prepared | None]:
        """State in a run; that before the first phase if the run is new."""
        if run == self._run:
            return self._held, self._prepared
        if self._run and not self.over:
            raise Refused(f"run: this client takes part in {self._run.hex()}, see its state folder")
        return Held(), None

    def _end(self, asked: Message, held: Held) -> bytes:
        """Commit for the last time."""
        if asked.run == self._run:
            path = self._folder / "result"
            if asked.body:
                write(path, asked.body)
            else:
                path.unlink(missing_ok=True)  # of an earlier run
            self._held, self._prepared, self.over = held, None, True
            self._save()
            self.has_ended = True
        return self._sealed(asked, Kind.REPLY, b"")

    def _prepare(self, asked: Message, held: Held) -> bytes:
        """Compute a reply and the state after it, and store both before the reply is sent."""
        question = from_bytes(asked.body)
        with single_threaded_libraries():
            if question.get("again"):
                held = self._again(held, question["again"])
            body, after = self._compute(question, held)
        assert after.plan is not None  # else, the server was told that the state is lost
        if after.plan["roster"].index(self.name) != asked.client:
            raise Refused("sender")
        replied = asked._replace(kind=Kind.REPLY, accepted=held.mark, body=body)
        mark, reply = mark_of(replied), seal(replied, self._key)
        prepared = Prepared(
            asked.phase,
            asked.digest.hex(),
            mark,
            np.frombuffer(reply, np.uint8),
            tuple(after._replace(mark=mark)),
        )
        self._run, self._held, self._prepared = asked.run, held, prepared
        self._lost, self.over = b"", False
        self._save()
        return reply

    def _sealed(self, asked: Message, kind: Kind, body: bytes) -> bytes:
        """Bytes of a message that changes nothing."""
        return seal(asked._replace(kind=kind, body=body), self._key)

    # ---- questions

    def _compute(self, question: dict[str, Any], held: Held) -> tuple[bytes, Held]:
        """Body of the reply to a question, and the state after it."""
        match question["ask"]:
            case "plan":
                return self._agree(held, question["plan"])
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
        table = self._table(plan)
        if table.n_rows < policy.min_rows:
            raise Refused(f"policy: the table has less than {policy.min_rows} rows")
        check_columns(plan["features"], table.columns)
        facts = table.facts.astype("<f8").tobytes()
        return facts + columns_to_bytes(table.n_rows, table.columns), held._replace(plan=plan)

    def _table(self, plan: dict[str, Any]) -> OwnTable:
        """Table of this client, as the estimator reads it."""
        if self._read is None or self._read[0] is not plan:
            reader = reader_of(plan["estimator"])
            self._read = plan, reader.read(with_function(plan, self._model), self._X)
            self._federation = None
        return self._read[1]

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
        complete = self._table(held.plan).complete
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

    def _again(self, held: Held, told: dict[str, Any]) -> Held:
        """State of a client that starts afresh while others go on."""
        _, held = self._agree(held, told["plan"])
        held = held._replace(agreed=told["agreed"])
        return held if told["task"] is None else self._join(held, told)

    def _field(
        self, held: Held, parameters: Any, reference: Any, initial: bool
    ) -> tuple[bytes, Held]:
        """h_i(Ŝ) and the mean log-likelihood; V_i := h_i(Ŝ) if ``initial``."""
        rows, (_, task) = self._rows(held), self._joined(held)
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
        broadcast = Broadcast(**told, message_units=message_units_of(task, told["parameters"]))
        group = ClientGroup(*rows, held.controls, states)
        message, controls, states = client_half(solver, task, broadcast, group)
        sent = encoded(solver, task, broadcast, message)
        after = held._replace(n_rounds=held.n_rounds + 1, controls=controls, states=tuple(states))
        return message_to_bytes(sent), after

    def _joined(self, held: Held) -> tuple[Solver, Task]:
        """Solver and task that were agreed on."""
        if held.task is None or held.plan is None:
            raise Refused("question: no task was agreed on")
        table = self._table(held.plan)
        solver = table.solver or SOLVERS[str(held.solver)]
        if solver.name != held.solver:
            raise Refused(f"question: solver {held.solver!r} is not that of the plan")
        return solver, held.task._replace(model=table.complete(held.task.model))

    def _rows(self, held: Held) -> ClientRows:
        """Rows of this client, and its number among all."""
        assert held.plan is not None  # a plan was agreed on
        table = self._table(held.plan)
        if self._federation is None or self._federation[0] is not held.agreed:
            self._federation = held.agreed, table.federation(held.agreed)
        number = held.plan["roster"].index(self.name)
        return ClientRows(self._federation[1], np.array([0]), np.array([number]))

    def _seed_of(self, start: int) -> int:
        """Seed of a start."""
        if self._seed is not None:
            return seeds_of_runs(self._seed, start + 1)[start]
        assert self._own_seed is not None
        return self._own_seed + start

    # ---- files

    def _save(self) -> None:
        """Write the state."""
        prepared = None if self._prepared is None else tuple(self._prepared)
        seed = None if self._own_seed is None else str(self._own_seed)
        state = (self._run.hex(), seed, self.over, tuple(self._held), prepared)
        write(self._folder / "client", to_bytes(state))

    def _load(self) -> None:
        """Read the state."""
        state = from_bytes((self._folder / "client").read_bytes())
        run, seed, self.over, held, prepared = state
        self._run, self._held = bytes.fromhex(run), Held(*held)
        self._prepared = None if prepared is None else Prepared(*prepared)
        if self._own_seed is not None and seed is not None:
            self._own_seed = int(seed)

    def _note(self, asked: Message, reply: bytes) -> None:
        """Say in the log what leaves, when, and how large it is."""
        sent = unseal(reply, self._key)
        if sent.kind == Kind.REFUSAL:
            what = f"refusal, {sent.body.decode(errors='replace')}"
        else:
            what = "lost" if sent.kind == Kind.LOST else _name_of(asked)
        when = time.strftime("%Y-%m-%d %H:%M:%S")
        with open(self._folder / "log.txt", "a", encoding="utf-8") as file:
            file.write(f"{when} phase {sent.phase} {what}: {len(sent.body)} bytes\n")


def _name_of(asked: Message) -> str:
    """Name of a question that was answered."""
    if asked.kind == Kind.END:
        return "end"
    question = from_bytes(asked.body)
    return str(question.get("message", question["ask"]))
