"""A client: its rows, its state, and what it answers."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._data.rows import check_weights, row_weights
from .._error_messages import repr_of
from .._parallel import single_threaded_libraries
from .._parameters import check_number
from .._random import seeds_of_runs
from .._serialization import from_bytes, to_bytes
from .._typing import FilePath, MatricesLike, RowWeights, Table
from ._functions import with_function
from ._local_answers import Held, LocalAnswers, Policy
from ._messages import NEVER, Kind, Message, Refused, digest_of, mark_of, printable, seal, unseal
from ._reader import OwnData
from ._readers import fitted_of, reader_of
from ._storage import write


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
    sample_weight : array-like of shape (n_samples,), default=None
        Weight of each row, for mixtures and networks, as for their ``fit``. Either all clients have
        weights, or none has.
    offset : array-like, default=None
        Offset of each observation of a FederatedMatrixImputer, such as the logarithm of its effort,
        in the form of X: a matrix, or a number for each triplet or row of a long table. Either all
        clients have offsets, or none has.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid. Tables and offsets are read when a server tells what for; a wrong
        one is then refused, and the log says why.
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
        *,
        sample_weight: RowWeights | None = None,
        offset: MatricesLike | None = None,
    ) -> None:
        if not isinstance(name, str):
            raise TypeError(f"Expected name to be a string, got {repr_of(name)}.")
        if not isinstance(key, bytes):
            raise TypeError(f"Expected key to be bytes, got a {type(key).__name__}.")
        if seed is not None:
            check_number("seed", seed, kind=Integral, low=0, high=2**32 - 1)
        if sample_weight is not None:
            check_weights(row_weights(X, sample_weight))
        self.name, self.policy, self.over = name, policy or Policy(), False
        self.has_ended = False  # whether the last request said so
        self.refusal = ""  # why the last request was refused; may quote the table
        self._key, self._folder = key, Path(state)
        self._own_seed = secrets.randbits(128) if seed is None else None
        self._seed = seed
        self._run = self._lost = b""
        self._held, self._prepared = Held(), None
        data = OwnData(X, sample_weight, offset)
        self._answers = LocalAnswers(name, data, self.policy, model, self._seed_of)
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
        self.has_ended, before, self.refusal = False, self.refusal, ""
        asked = Message(Kind.QUESTION, self._run, 0, 0, NEVER, bytes(16), b"")
        try:
            asked = unseal(request, self._key)
            reply = self._answered(asked)
        except OSError:  # a full disk is not the server's fault
            raise
        except Refused as reason:
            self.refusal = printable(str(reason))
            reply = self._sealed(asked, Kind.REFUSAL, self.refusal.encode())
        except Exception as error:  # whatever a malformed question, or the table, leads to
            self.refusal = printable(f"{type(error).__name__}: {error}")
            told = f"error: {type(error).__name__}, which the client's log tells"
            reply = self._sealed(asked, Kind.REFUSAL, told.encode())
        if not self.refusal or self.refusal != before:
            self._note(asked, reply)
        return reply

    @property
    def ending(self) -> str:
        """How a fit has ended, in words."""
        is_fitted = (self._folder / "result").exists()
        return "the fit has ended" if is_fitted else "the fit has failed; the server says why"

    def result(self) -> Any:
        """The fitted estimator, without what it knows of other clients and of the fit's course.

        A network has this client's own model, ``predict([X], personal=True)``.

        Raises
        ------
        ValueError
            If the fit has not ended, or failed.
        """
        plan, path = self._held.plan, self._folder / "result"
        if not self.over or plan is None or not path.exists():
            raise ValueError("Expected a fit that has ended well, got none. See the log.")
        told, table = from_bytes(path.read_bytes()), self._answers.table(plan)
        plan, held = with_function(plan, self._answers.model), self._held
        return fitted_of(plan, told, table, held.agreed, held.states)

    def personal_result(self) -> dict[str, Any] | None:
        """What the fit says of this client's own rows, which stays here.

        Returns
        -------
        columns : dict of array-likes, or None
            Of a matrix, the sites where this client was, with their missing cells filled; of a
            population, the parameters of its subjects; of a network, the predictions of the
            client's own model. None for estimators that say nothing of single rows.

        Raises
        ------
        ValueError
            If the fit has not ended, or failed.
        """
        estimator, plan = self.result(), self._held.plan
        assert plan is not None  # there is a result
        personal = reader_of(plan["estimator"]).personal
        plan = with_function(plan, self._answers.model)
        return None if personal is None else personal(estimator, plan, self._answers.data)

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
        has_plan = held.plan is not None  # else, a table that was corrected is described again
        if prepared and is_known and has_plan and key == (prepared.phase, prepared.digest):
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
                held = self._answers.again(held, question["again"])
            body, after = self._answers.compute(question, held)
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
            what = f"refusal, {self.refusal}"
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
