"""What server and clients agree on in a round, and what is theirs: the contract of solvers.

A round is: broadcast, the clients' half (``estimate`` of the solver, then innovation, compression
and control variates, which ``skfedem.clients`` has for all solvers), messages, the server's half.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import inf
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from .. import _random
from .._federation import (
    ClientSizes,
    Federation,
    SetUp,
    positions_of,
)
from .._minibatches import draw_minibatches, draw_weighted_minibatches
from .._serialization import serializable
from .._typing import FloatArray, IntArray, Participation, Schedule
from ..compression import Compressor
from ..models._base import Estimate, Model, Parameters
from ..participation import share_of
from .messages import AggregatedMessages, Message


@serializable
class Task(NamedTuple):
    """What server and clients have to agree on.

    Attributes
    ----------
    model : BaseModel
        A ``Model``, unless the solver has its own half of the clients.
    compressor : Compressor
    omega : float
        ω of the compressor for messages of this length (the largest ω, if lengths differ).
    control_step : float
        Step size α of the control variates.
    has_controls : bool
        Whether clients keep control variates; without them, V = 0.
    batch_size : int or None
        Minibatch size b, in rows per client and round; None for all rows.
    replacement : bool
        Whether minibatches are drawn with replacement.
    seed : int
        Seed of all random streams.
    """

    model: Any
    compressor: Compressor
    omega: float = 0.0
    control_step: float = 1.0
    has_controls: bool = True
    batch_size: int | None = None
    replacement: bool = True
    seed: int = 0

    def for_clients(self) -> Task:
        """The task as clients get it, without what only the server may know."""
        return self._replace(model=self.model.for_clients())


class Problem(NamedTuple):
    """The task, the sizes of the clients, and what only the server knows of a run.

    Attributes
    ----------
    task : Task
    sizes : ClientSizes
        Weights and numbers of rows of the clients.
    solver : Solver
    participation : float or int
        Probability p that a client takes part in a round, or the number of clients that do.
    n_inner : int
        Number k_in of inner rounds between two passes over all rows; 1 without such rounds or
        passes.
    participating_weight : float
        Σ w_i over the clients of ``sizes``. Below 1 in a stream, if other clients have no rows at
        the moment or do not take part; they then contribute only through V.
    persistent_noise : bool
        Whether messages are noisy even at the optimum: with minibatches without variance reduction,
        random estimates, and in streams.
    random_estimates : bool
        Whether estimates from all rows are random, because of the model or the solver.
    """

    task: Task
    sizes: ClientSizes
    solver: Solver
    participation: Participation = 1.0
    n_inner: int = 1
    participating_weight: float = 1.0
    persistent_noise: bool = False
    random_estimates: bool = False

    @property
    def model(self) -> Any:
        """The model of the task."""
        return self.task.model

    @property
    def omega(self) -> float:
        """ω of the task."""
        return self.task.omega

    @property
    def inclusion_probability(self) -> float:
        """p, also if ``participation`` is a number of clients."""
        return share_of(self.participation, self.sizes.n_clients)

    @property
    def exact(self) -> bool:
        """Whether the server's field is the exact mean field, without randomness."""
        everybody = self.inclusion_probability == 1 and self.participating_weight == 1
        is_random = self.random_estimates or self.model.is_random
        all_rows = self.task.batch_size is None and not is_random
        return self.omega == 0 and everybody and all_rows


@serializable
class Broadcast(NamedTuple):
    """Message of the server to the active clients at the start of round ``round_index``.

    ``outer_loop`` numbers the outer loops of VR-FedEM. ``parameters`` are T(Ŝ), which a client can
    compute from Ŝ; ``reference``, Ŝ or 0, is subtracted from s̄_i to get the client's field.
    ``message_units``, determined by T(Ŝ), convert client vectors to the units in which they are
    compressed (``to_components``) and back (``to_standard``); None without conversion or
    compression.
    """

    round_index: int
    outer_loop: int
    reference: FloatArray | float
    parameters: Parameters
    message_units: Any = None


class States(Protocol):
    """States of clients: a NamedTuple of arrays that the solver defines, possibly empty."""

    def __init__(self, *fields: NDArray[Any]) -> None: ...

    def __iter__(self) -> Iterator[NDArray[Any]]: ...

    @property
    def _fields(self) -> tuple[str, ...]: ...


class NoStates(NamedTuple):
    """States of a solver whose clients keep nothing but control variates."""


class ClientGroup(NamedTuple):
    """Some clients at one place: their rows, numbers and states.

    Attributes
    ----------
    federation : Federation
        Rows of the clients at this place; a deployed client is alone in its own.
    clients : ndarray of int, shape (n,)
        Positions in this federation of the clients of the group, in increasing order.
    ids : ndarray of int, shape (n,)
        Their numbers among all clients, which address their random numbers.
    controls : ndarray, client vectors
        V_i of the group; empty without control variates.
    states : States
        What else the solver keeps of them.
    """

    federation: Federation
    clients: IntArray
    ids: IntArray
    controls: FloatArray
    states: Any


class ServerState(NamedTuple):
    """State of the server: Ŝ, T(Ŝ), V, and what limits its automatic steps.

    Automatic steps are at most ``step_limit``, which shrinks when the safeguard acts, or when
    persistent noise is too large for the step. ``has_field`` is False if h(Ŝ) is meaningless,
    because Ŝ_0 is s̄ at parameters that are not T of any statistic. ``n_restarts`` counts the outer
    loops that started before k_in rounds were over: after a step that the safeguard shortened, and
    to confirm convergence. Before round ``frozen_until``, automatic steps are 0, so that control
    variates can adapt to the fields at Ŝ. ``memory`` is what else the server of a solver keeps.
    """

    round_index: int
    statistics: Any
    parameters: Parameters
    control: FloatArray
    step_limit: float = inf
    n_restarts: int = 0
    frozen_until: int = 0
    has_field: bool = True
    memory: Any = None


class RoundInfo(NamedTuple):
    """Summary of a round: H, how often the step was halved, and the step that was taken."""

    field: FloatArray
    field_sq_norm: float
    safeguarded: int
    step_taken: float


class Clients(SetUp, Protocol):
    """Where rows and states of clients live, as the server knows it.

    The server reads no rows: it opens rounds, asks for messages, and has states saved and restored.
    """

    def join(self, solver: Solver, task: Task) -> None:
        """Tell all clients solver and task; their states are those before the first round."""

    def weigh(self, weights: FloatArray) -> None:
        """Give the clients other weights, from the next round on; for streams."""

    def round(self, broadcast: Broadcast, active: IntArray) -> AggregatedMessages:
        """Clients' half of a round; new states are only prepared."""

    def commit(self, round_index: int) -> None:
        """Replace the states by those prepared in this round; drop those of another round.

        The server calls it when it has closed the round, again if it was interrupted meanwhile.
        """

    def mean_field(
        self, model: Model, parameters: Parameters, reference: Any, *, initial: bool = False
    ) -> tuple[FloatArray, float]:
        """h(Ŝ) and the mean log-likelihood, from all rows; V_i := h_i(Ŝ) if ``initial``."""

    def control(self) -> FloatArray:
        """V = Σ_i w_i V_i."""

    def reset_control(self) -> FloatArray | None:
        """V if the states of some clients were lost since the last call, else None.

        Their V_i are 0 now, so that V has changed without a message.
        """

    def fingerprint(self) -> str:
        """Digest of all rows and their weights, to recognise other data of the same sizes."""

    def save(self) -> dict[str, Any]:
        """Controls and states of all clients."""

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Replace controls and states by saved ones."""


class Codec(NamedTuple):
    """Messages as bytes: of one client, so that each can be decoded alone.

    ``encode(task, broadcast, message)`` returns the bytes, as many as ``message.n_bytes`` says, and
    ``decode(task, broadcast, data)`` what ``message.quantized`` was.
    """

    encode: Callable[[Task, Broadcast, Message], bytes]
    decode: Callable[[Task, Broadcast, bytes], Any]


class Solver(NamedTuple):
    """How clients estimate s̄_i(T(Ŝ)), and what they keep for it; a record of functions.

    Attributes
    ----------
    name : str
    estimate : callable
        ``estimate(task, broadcast, group)`` returns the ``Estimate`` of the clients of a group and
        their new states. It does not modify their states, so that a round that the server does not
        accept has no effect.
    init : callable
        ``init(task, federation)`` returns the states of all clients of a place before round 0.
    per_client, per_row : tuple of str
        Fields of the states with one entry (or row) per client, and per row of each client; the
        others are client vectors.
    keeps_states : bool
        Whether states remain valid for other rows: in a run that continues another one, those of
        known clients follow their labels.
    variance_reduced : bool
        Whether the noise of minibatches in the estimates vanishes in the limit.
    is_random : bool
        Whether estimates from all rows are random, as those of Markov chains are.
    broadcast : callable or None
        ``broadcast(problem, server)`` in place of ``broadcast_of``.
    server_half : callable or None
        The server's half of a round in place of ``server_half``.
    columns : callable or None
        ``columns(server, info)`` returns columns of the history in place of ``columns_of_steps``;
        ``info`` is what the server's half returned, or None before the first round.
    schedule : callable or None
        ``schedule(problem)`` returns the automatic schedule of γ in place of that for all solvers;
        it may contain steps of 0.
    client_half : callable or None
        ``client_half(task, broadcast, group)`` in place of that of ``skfedem.clients.group``, which
        sends innovations; ``estimate`` is not used then.
    codec : Codec or None
        How these messages become bytes, unless they are client vectors for the compressor.
    aggregates : bool
        Whether the server's half only gets the sum of the messages; else, it gets each of them.
    control_changes : callable or None
        ``control_changes(task, broadcast, lengths, quantized)`` are the changes of the V_i of
        clients with these numbers of rows, in place of α times what they sent.
    n_reported : int
        Number of numbers for the history in a message, see ``Message.reported``.
    """

    name: str
    estimate: Callable[[Task, Broadcast, ClientGroup], tuple[Estimate, Any]] | None = None
    init: Callable[[Task, Federation], Any] = lambda task, federation: NoStates()
    per_client: tuple[str, ...] = ()
    per_row: tuple[str, ...] = ()
    keeps_states: bool = False
    variance_reduced: bool = False
    is_random: bool = False
    broadcast: Callable[[Problem, ServerState], Broadcast] | None = None
    server_half: Callable[..., tuple[ServerState, Any]] | None = None
    columns: Callable[[ServerState, Any], dict[str, float]] | None = None
    schedule: Callable[[Problem], Schedule] | None = None
    client_half: Callable[[Task, Broadcast, ClientGroup], tuple[Message, Any, Any]] | None = None
    codec: Codec | None = None
    aggregates: bool = True
    control_changes: Callable[[Task, Broadcast, IntArray, Any], FloatArray] | None = None
    n_reported: int = 0


def row_keys(group: ClientGroup) -> NDArray[np.uint64]:
    """Keys of the rows of a group, client after client, for ``_random.row_uniforms``."""
    federation, clients = group.federation, group.clients
    starts, lengths = federation.offsets[clients], federation.lengths_of(clients)
    rows = positions_of(starts, lengths)
    if federation.row_keys is not None:
        return federation.row_keys[rows]
    numbers = rows - np.repeat(starts, lengths)
    keys: NDArray[np.uint64] = (np.repeat(group.ids, lengths) << 32 | numbers).astype(np.uint64)
    return keys


def draw_minibatch(task: Task, round_index: int, group: ClientGroup) -> Any:
    """Draw a minibatch of each client of a group; return the E-step's input."""
    federation, clients, size = group.federation, group.clients, task.batch_size
    assert size is not None  # else, solvers read all rows
    uniforms = _random.client_uniforms(task.seed, _random.MINIBATCH, round_index, group.ids, size)
    if federation.sample_weight is None:
        lengths = federation.lengths_of(clients)
        batches = draw_minibatches(uniforms, lengths, replacement=task.replacement)
    else:
        batches = draw_weighted_minibatches(uniforms, federation, clients)
    return task.model.minibatch(federation, clients, batches)
