"""A server: runs an estimator's fit, and turns its questions into requests."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, clone

from .._imputer.covariates import GivenCovariates
from .._parameters import check_number
from .._serialization import from_bytes, to_bytes
from .._typing import FilePath, Shape, Table
from .._warnings import warn
from ._fit_thread import FitThread, Outcome
from ._messages import (
    HEADER_BYTES,
    NEVER,
    TAG_BYTES,
    Kind,
    Message,
    Refused,
    digest_of,
    mark_of,
    printable,
    seal,
    unseal,
)
from ._plan import check_covariates, check_roster, check_shape, check_target, plan_of, seed_of
from ._readers import told_of
from ._remote_clients import RemoteClients
from ._remote_set_up import Answers, Question
from ._storage import Journal, write

# Longest reason of a refusal, in bytes.
_LONGEST_REASON = 1024


class Verdict(NamedTuple):
    """Whether a reply is used in the phase, and if not, why."""

    used: bool
    reason: str = ""


class Server:
    """Server of a deployed fit: bytes in, bytes out.

    The fit is that of a simulation: the same start, rounds, evaluations and stopping, bit for bit
    if all clients answer. The server's state is the journal of the replies that it has used, from
    which a restarted server computes where the fit stands.

    Parameters
    ----------
    estimator : estimator
        With its parameters; it is not modified.
    roster : list of str
        Names of the clients, in the order of a simulation's list.
    state : path-like
        Folder for the state; created if it does not exist. A run goes on where it stands.
    keys : dict of bytes, default=None
        Key of each client, for the tags of messages.
    columns : list of str, or int, default=None
        Names of the columns that all clients need to have, or their number; None for those of the
        first client that answers.
    shape : tuple of two int, or of two array-likes, default=None
        For a FederatedMatrixImputer: numbers of sites and times, or their names, as for ``fit``.
    target : str, or list of str, default=None
        For a network: name of the column with the target, or names of several of a regressor. The
        features are all other columns.
    classes : list of str, int, float or bool, default=None
        Labels of the classes of a FederatedMLPClassifier; None for those that clients have, who
        then tell them.
    row_covariates, column_covariates, row_groups : array-like, default=None
        For a FederatedMatrixImputer: what is known of sites and times, as for ``fit``. All clients
        are told.
    min_replies : int, default=1
        Least number of replies in a round, or all if fewer clients are asked.

    Attributes
    ----------
    done : bool
        Whether the fit has ended.
    history_ : list of dict
        One for each phase: ``question``, ``n_asked``, ``n_used``, ``n_reset`` (clients whose state
        was lost, and starts afresh), ``uplink_bytes``, ``downlink_bytes`` (without repetitions).
    faults_ : Counter
        Number of replies that were not used, by reason.
    """

    def __init__(
        self,
        estimator: BaseEstimator,
        roster: Sequence[str],
        state: FilePath,
        *,
        keys: Mapping[str, bytes] | None = None,
        columns: list[str] | int | None = None,
        shape: Shape | None = None,
        target: str | list[str] | None = None,
        classes: list[Any] | None = None,
        row_covariates: Table | None = None,
        column_covariates: Table | None = None,
        row_groups: ArrayLike | None = None,
        min_replies: int = 1,
    ) -> None:
        check_roster(roster)
        check_number("min_replies", min_replies, kind=Integral, low=0)
        self.roster, self.min_replies = [*roster], min_replies
        self._keys = {name: b"" for name in roster} if keys is None else {**keys}
        if {*self._keys} != {*roster}:
            raise ValueError(
                f"Expected a key for every client of the roster, got keys for {[*self._keys]}. "
                "Give a key for each, or no keys."
            )
        self._folder = Path(state)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._estimator = clone(estimator)
        self._journal = Journal(self._folder / "journal")
        check_shape(self._estimator, shape)
        check_target(self._estimator, target, classes)
        covariates = GivenCovariates(row_covariates, column_covariates, row_groups)
        check_covariates(self._estimator, covariates)
        self._known = {} if shape is None else {"shape": shape, **covariates._asdict()}
        if target is not None:
            self._known["y"] = None  # is with the clients
        self._run = self._begin(columns, shape, target, classes, covariates)
        self.done, self.history_, self.faults_ = False, [], Counter()
        self._phase, self._outcome = 0, None
        self._accepted = [NEVER] * len(self.roster)
        self._fit = FitThread(self._fitted)
        self._go_on(self._fit.start(), self._journal.read())

    history_: list[dict[str, Any]]
    faults_: Counter[str]
    _outcome: Outcome | None
    _clients: RemoteClients

    _known: dict[str, Any]

    def _begin(self, columns: list[str] | int | None, *data: Any) -> bytes:
        """Name of the run, whose plan is stored, or compared with the stored one."""
        path = self._folder / "run"
        run, seed = secrets.token_bytes(8), seed_of(self._estimator)
        if path.exists():
            before = from_bytes(path.read_bytes())
            run = bytes.fromhex(before["run"])
            if getattr(self._estimator, "random_state", None) is None:
                seed = before["seed"]
        if hasattr(self._estimator, "random_state"):
            self._estimator.set_params(random_state=seed)
        self._plan = plan_of(self._estimator, self.roster, columns, *data)
        if not self._journal.read():  # no plan was agreed on
            write(path, to_bytes({"run": run.hex(), "seed": seed, "digest": self._plan["digest"]}))
        elif before["digest"] != self._plan["digest"]:
            raise ValueError(
                f"Expected the estimator, roster and columns of the run in {self._folder}, got "
                "others. Give another folder, `state`, for another run."
            )
        return run

    def _fitted(self, ask: Any) -> Any:
        """The fit, which runs in a thread."""
        self._clients = RemoteClients(self._plan, ask)
        return self._estimator.fit(self._clients.elsewhere(), **self._known)

    # ---- phases

    def open(self) -> list[tuple[str, bytes]]:
        """Requests to clients: name and bytes, the same again until ``close``.

        When the fit has ended, they tell clients so.
        """
        asked = range(len(self.roster)) if self.done else self._question.clients
        return [(self.roster[client], self._request(client)) for client in asked]

    def request(self, name: str) -> bytes:
        """Request to one client whose reply is missing; empty for others."""
        return self._request(self.roster.index(name)) if name in self.waiting else b""

    def _request(self, client: int) -> bytes:
        kind = Kind.RESET if client in self._lost else Kind.QUESTION
        body = self._asked_of(client)
        if self.done:
            kind, body = Kind.END, self._told
        accepted, digest = self._accepted_of(client), digest_of(body)
        message = Message(kind, self._run, self._phase, client, accepted, digest, body)
        return seal(message, self._keys[self.roster[client]])

    def _asked_of(self, client: int) -> bytes:
        """Question as a client is asked, who may have lost its state."""
        if client not in self._lost:
            return self._question.body
        clients = getattr(self, "_clients", None)  # none before all have agreed
        again = None if clients is None else clients.again(client)
        return to_bytes({**from_bytes(self._question.body), "again": again})

    def _accepted_of(self, client: int) -> int:
        """Mark of the last reply of a client that was used, unless its state is lost."""
        return NEVER if client in self._lost else self._accepted[client]

    def receive(self, name: str, data: bytes) -> Verdict:
        """Check a reply.

        Parameters
        ----------
        name : str
            Who sent it, as the transport knows.
        data : bytes

        Returns
        -------
        verdict : Verdict
            Whatever the bytes are: nothing is raised.
        """
        try:
            self._check(name, data)
        except Refused as reason:
            self.faults_[str(reason).partition(":")[0]] += 1
            return Verdict(False, str(reason))
        return Verdict(True)

    def _check(self, name: str, data: bytes) -> None:
        """Use a reply, or raise ``Refused``."""
        if name not in self._keys:
            raise Refused("sender: not in the roster")
        client = self.roster.index(name)
        reply = unseal(data, self._keys[name], self.longest_reply)
        if reply.kind not in (Kind.REPLY, Kind.REFUSAL, Kind.LOST):
            raise Refused(f"kind: {reply.kind.name}")
        if reply.run != self._run:
            raise Refused("run")
        if reply.kind == Kind.REFUSAL:
            told = printable(reply.body.decode(errors="replace"))
            raise Refused(f"refused by the client: {told}")
        if reply.client != client:
            raise Refused("sender")
        if reply.phase != self._phase:
            raise Refused("phase: late, or of another client with this name")
        if self.done:
            self.ended.add(name)
            return
        if client not in self._question.clients:
            raise Refused("not asked")
        if reply.kind == Kind.LOST and client not in self._bodies:
            self._lost.add(client)
            raise Refused("lost: the client starts afresh, or is another one with its name")
        if reply.digest != digest_of(self._asked_of(client)):
            raise Refused("digest")
        if reply.accepted != self._accepted_of(client):
            raise Refused("state")
        if client in self._bodies:
            same = reply.kind == Kind.REPLY and self._bodies[client] == reply.body
            raise Refused("duplicate" if same else "contradictory")
        self._contents[client] = self._question.read(client, reply.body)
        self._bodies[client], self._marks[client] = reply.body, mark_of(reply)

    @property
    def longest_reply(self) -> int:
        """Largest length of a reply that is not refused for it, in bytes."""
        most = 0 if self.done else self._question.most
        return HEADER_BYTES + max(most, _LONGEST_REASON) + TAG_BYTES

    @property
    def question(self) -> str:
        """Name of the question that is open; "end" when the fit has ended."""
        return "end" if self.done else self._question.name

    @property
    def waiting(self) -> list[str]:
        """Names of the clients whose replies are missing in this phase."""
        if self.done:
            return [name for name in self.roster if name not in self.ended]
        asked = self._question.clients
        return [self.roster[client] for client in asked if client not in self._bodies]

    def close(self) -> bool:
        """Go on with the replies that were used; they are on the disk before.

        Returns
        -------
        closed : bool
            False if too few clients have answered: the phase is void, and goes on. Set-up needs all
            clients, a round ``min_replies``.

        Raises
        ------
        Exception
            That of the fit, if it fails.
        """
        if self.done or len(self._bodies) < self._least():
            return False
        clients = sorted(self._bodies)
        bodies = [self._bodies[client] for client in clients]
        record = {
            "run": self._run.hex(),
            "question": digest_of(self._question.body).hex(),
            "clients": np.array(clients, dtype=np.int64),
            "marks": np.array([self._marks[client] for client in clients], dtype=np.int64),
            "lengths": np.array([len(body) for body in bodies], dtype=np.int64),
            "bodies": np.frombuffer(b"".join(bodies), np.uint8),
            "lost": np.array(sorted(self._lost), dtype=np.int64),
        }
        self._journal.append(to_bytes(record))
        self._go_on(self._next_question(), [])
        if self._outcome is not None and self._outcome.error is not None:
            raise self._outcome.error
        return True

    def _least(self) -> int:
        """Number of replies that the phase needs."""
        question = self._question
        if question.everyone:
            return len(question.clients)
        return min(len(question.clients), max(self.min_replies, question.name == "evaluation"))

    def _next_question(self) -> Any:
        """Give the fit the replies of this phase; its next question, or the outcome."""
        clients = sorted(self._bodies)
        self.history_.append(
            {
                "question": self._question.name,
                "n_asked": len(self._question.clients),
                "n_used": len(clients),
                "n_reset": len(self._lost),
                "uplink_bytes": sum(map(len, self._bodies.values())),
                "downlink_bytes": sum(len(self._asked_of(k)) for k in self._question.clients),
            }
        )
        for client in clients:
            self._accepted[client] = self._marks[client]
        self._phase += 1
        answers = Answers({c: self._contents[c] for c in clients}, sorted(self._lost))
        return self._fit.resume(answers)

    def _go_on(self, asked: Any, records: list[bytes]) -> None:
        """Open the next phase, after those in the journal."""
        for record in [*records, None]:
            self._bodies: dict[int, bytes] = {}
            self._marks: dict[int, int] = {}
            self._contents: dict[int, Any] = {}
            self._lost: set[int] = set()
            if isinstance(asked, Outcome):
                self._outcome, self.done, self.ended = asked, True, set[str]()
                self._told = b"" if asked.error is not None else to_bytes(told_of(asked.value))
                return
            self._question: Question = asked
            if record is not None:
                self._replay(from_bytes(record))
                asked = self._next_question()

    def _replay(self, record: dict[str, Any]) -> None:
        """Take the replies of a phase from the journal."""
        question = digest_of(self._question.body).hex()
        if (record["run"], record["question"]) != (self._run.hex(), question):
            raise ValueError(
                f"Expected the question of phase {self._phase} in {self._folder} again, got "
                "another. Restart with the versions and on the kind of machine of the first start."
            )
        clients, position = record["clients"].tolist(), 0
        for client, length in zip(clients, record["lengths"].tolist(), strict=True):
            body = record["bodies"][position : position + length].tobytes()
            self._contents[client] = self._question.read(client, body)
            self._bodies[client], position = body, position + length
        self._marks = dict(zip(clients, record["marks"].tolist(), strict=True))
        self._lost = {*record["lost"].tolist()}

    def result(self) -> Any:
        """The fitted estimator.

        Raises
        ------
        ValueError
            If the fit has not ended.
        Exception
            That of the fit, if it failed.
        """
        if self._outcome is None:
            raise ValueError("Expected a fit that has ended, got one in progress. See `done`.")
        if self._outcome.error is not None:
            raise self._outcome.error
        for message, category in self._outcome.advice:
            warn(message, category)
        self._outcome = self._outcome._replace(advice=[])
        return self._outcome.value

    def stop(self) -> None:
        """Give up a fit in progress, which another server can go on with."""
        self._fit.stop()
