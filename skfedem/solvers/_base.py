"""The contract of solvers, and what they share: problem, messages, the server's half of a round."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, inf, nan
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from .. import _random
from .._client_vectors import ClientVectors, weighted_sum
from .._federation import Federation, draw_minibatches, draw_weighted_minibatches
from .._typing import FloatArray, IntArray
from ..compression import Compressor
from ..compression._base import check_compressed, check_n_bytes
from ..models._base import Model, Parameters, Step

# Factor for the limit of automatic steps after a step that had to be shortened, ...
_CAUTION = 0.7
# ... and after a step that was too noisy to be repeated many times.
_PATIENCE = 0.95
# After a shortened step, Ŝ is fixed for this many times (1 + ω) / p rounds, in which control
# variates adapt. With 1, up to eight steps in a row were shortened; 6 was no better than 3.
_REST = 3.0
# Larger innovations are due to diverging control variates, not to data.
_DIVERGED = 1e200


class Problem(NamedTuple):
    """Everything that is constant during a run.

    Attributes
    ----------
    model : Model
    federation : Federation
    compressor : Compressor
    omega : float
        ω of the compressor for messages of this length (the largest ω, if lengths differ).
    participation : float
        Probability p that a client takes part in a round.
    control_step : float
        Step size α of the control variates.
    batch_size : int or None
        Minibatch size b, in rows per client and round; None for all rows.
    replacement : bool
        Whether minibatches are drawn with replacement.
    n_inner : int
        Number k_in of inner rounds between two passes over all rows; 1 without such rounds or
        passes.
    seed : int
        Seed of all random streams.
    presence : float
        Σ w_i over the federation. Below 1 in a stream, if other clients have no rows at the moment
        or do not take part; they then contribute only through V.
    lasting_noise : bool
        Whether messages are noisy even at the optimum, with minibatches without variance reduction
        and in streams.
    """

    model: Model
    federation: Federation
    compressor: Compressor
    omega: float = 0.0
    participation: float = 1.0
    control_step: float = 1.0
    batch_size: int | None = None
    replacement: bool = True
    n_inner: int = 1
    seed: int = 0
    presence: float = 1.0
    lasting_noise: bool = False

    @property
    def vectors(self) -> ClientVectors:
        """Memory layout of the clients' vectors."""
        return self.model.vectors(self.federation)

    @property
    def exact(self) -> bool:
        """Whether the server's field is the exact mean field, without randomness."""
        everybody = self.participation == 1 and self.presence == 1
        all_rows = self.batch_size is None and not self.model.is_random
        return self.omega == 0 and everybody and all_rows


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


class Message(NamedTuple):
    """Messages of a group of clients to the server.

    Attributes
    ----------
    quantized : ndarray
        Quant(Δ_i) as decoded by the server; client vectors.
    sent : ndarray
        The same in the ``message_units`` of the broadcast, if any, as the compressor would encode
        it. Not used by the simulation.
    n_bytes : int
        Total length of the encoded messages.
    n_expectations : int
        Number of conditional expectations that were computed.
    log_likelihood : ndarray of shape (n_clients,) or None
        Mean log-likelihood of each client's rows in nats, if all rows were read.
    uncompressed : ndarray or 0.0
        What else the clients send in a stream, see ``Estimate``.
    """

    quantized: FloatArray
    sent: FloatArray
    n_bytes: int
    n_expectations: int
    log_likelihood: FloatArray | None = None
    uncompressed: FloatArray | float = 0.0


class Received(NamedTuple):
    """Sums over the messages of the active clients, in the order of clients.

    ``message_sum`` is Σ w_i Quant(Δ_i). ``log_likelihood`` is the weighted sum of the clients'
    means if they read all rows, otherwise 0, and ``uncompressed`` that of what they also sent in a
    stream. The others are plain sums. For a group of clients, partial sums without ``n_active``.
    """

    message_sum: FloatArray
    n_active: int = 0
    n_bytes: int = 0
    n_expectations: int = 0
    log_likelihood: float = 0.0
    uncompressed: FloatArray | float = 0.0


class ServerState(NamedTuple):
    """State of the server: Ŝ, T(Ŝ), V, and what limits its automatic steps.

    Automatic steps are at most ``step_limit``, which shrinks when the safeguard acts, or when
    lasting noise is too large for the step. ``has_field`` is False if h(Ŝ) is meaningless, because
    Ŝ_0 is s̄ at parameters that are not T of any statistic. ``n_restarts`` counts the outer loops
    that started before k_in rounds were over: after a step that the safeguard shortened, and to
    confirm convergence. Before round ``rest_until``, automatic steps are 0, so that control
    variates can adapt to the fields at Ŝ.
    """

    round_index: int
    statistics: Any
    parameters: Parameters
    control: FloatArray
    step_limit: float = inf
    n_restarts: int = 0
    rest_until: int = 0
    has_field: bool = True


class RoundInfo(NamedTuple):
    """Summary of a round: H, how often the step was halved, and the step that was taken."""

    field: FloatArray
    field_sq_norm: float
    safeguarded: int
    step_taken: float


class States(Protocol):
    """States of clients: a NamedTuple of arrays that the solver defines.

    Its fields are client vectors in the layout of the model's ``vectors``; those that the solver's
    ``PER_CLIENT`` names have one number (or row of numbers) per client.
    """

    def __init__(self, *fields: NDArray[Any]) -> None: ...

    def __iter__(self) -> Iterator[NDArray[Any]]: ...

    @property
    def _fields(self) -> tuple[str, ...]: ...

    @property
    def controls(self) -> FloatArray:
        """Control variates V_i, client vectors."""


class Solver(Protocol):
    """Contract of the module of a solver.

    Its functions work on many clients at once: the round loop decides how clients are grouped, and
    on how many workers they run. The argument ``states`` is what ``init`` returned, for some
    clients.
    """

    __name__: str

    @property
    def PER_CLIENT(self) -> tuple[str, ...]:
        """Fields of the states that are not client vectors."""

    @property
    def VARIANCE_REDUCED(self) -> bool:
        """Whether the noise of minibatches in the clients' estimates vanishes in the limit."""

    def init(self, problem: Problem, controls: FloatArray) -> States:
        """States of all clients before the first round, from V_{0,i}."""

    def client_half(
        self, problem: Problem, broadcast: Broadcast, clients: IntArray, states: Any
    ) -> tuple[Message, States]:
        """Messages of some active clients, in increasing order, and their new states.

        It does not modify their states, so that a message that never arrives has no effect.
        """


def draw_minibatch(problem: Problem, round_index: int, clients: IntArray) -> Any:
    """Draw a minibatch of each client; return the E-step's input."""
    federation, size = problem.federation, problem.batch_size
    assert size is not None  # else, solvers read all rows
    uniforms = _random.client_uniforms(problem.seed, _random.MINIBATCH, round_index, clients, size)
    if federation.sample_weight is None:
        lengths = federation.lengths_of(clients)
        batches = draw_minibatches(uniforms, lengths, replacement=problem.replacement)
    else:
        batches = draw_weighted_minibatches(uniforms, federation, clients)
    return problem.model.minibatch(federation, clients, batches)


def compress(
    problem: Problem, broadcast: Broadcast, clients: IntArray, innovations: FloatArray
) -> tuple[FloatArray, FloatArray, IntArray]:
    """Quant(Δ_i) with each client's random numbers; the same in message units; lengths in bytes."""
    vectors, units = problem.vectors, broadcast.message_units
    lengths = vectors.lengths(clients)
    if problem.omega == 0:
        n_bytes = problem.compressor.n_bytes(innovations, lengths)
        check_n_bytes(problem.compressor, n_bytes, len(clients))
        return innovations, innovations, n_bytes
    if units is not None:
        innovations = units.to_components(innovations)
    address = problem.seed, _random.COMPRESSION, broadcast.round_index
    uniforms = vectors.uniforms(*address, clients)
    try:
        sent, n_bytes = problem.compressor.send(innovations, uniforms, lengths)
    except ValueError as error:
        _raise_if_diverged(problem.compressor, innovations, broadcast.round_index, error)
        raise
    check_compressed(problem.compressor, sent, innovations.shape)
    check_n_bytes(problem.compressor, n_bytes, len(clients))
    quantized = sent if units is None else units.to_standard(sent)
    return quantized, sent, n_bytes


def _raise_if_diverged(
    compressor: Compressor, innovations: FloatArray, round_index: int, error: ValueError
) -> None:
    """Raise an error that explains innovations too large for the compressor."""
    largest = np.abs(innovations).max()
    if largest >= _DIVERGED:  # False for NaN, which has other causes
        raise ValueError(
            f"Expected messages of moderate size in round {round_index + 1}, got {largest:.3g}: "
            f"control variates have diverged. Check that {compressor!r} is unbiased, and that its "
            "relative variance is at most its omega."
        ) from error


def outer_loop_of(problem: Problem, server: ServerState) -> int:
    """Number of the outer loop of the next round."""
    return server.round_index // problem.n_inner + server.n_restarts


def message_units_of(problem: Problem, parameters: Parameters) -> Any:
    """Units in which messages are compressed; None for those of the statistics."""
    return problem.model.message_units(parameters) if problem.omega else None


def mean_control(problem: Problem, controls: FloatArray) -> FloatArray:
    """V = Σ_i w_i V_i, as a server vector."""
    return weighted_sum(problem.vectors, problem.federation.weights, controls)


def mean_field(problem: Problem, server: ServerState, received: Received) -> FloatArray:
    """H, the server's estimate of the mean field (line 14 of Algorithm 1)."""
    return server.control + received.message_sum / (problem.participation * problem.presence)


def after_short_step(problem: Problem, server: ServerState) -> ServerState:
    """State after a shortened automatic step: a new outer loop, and rounds with step 0.

    SPIDER's running estimates would keep the errors accumulated so far. So would V, if messages are
    compressed or clients absent: the next steps would fail as well, each shortening all later ones.
    """
    server = server._replace(n_restarts=server.n_restarts + 1)
    uses_control = problem.control_step > 0 and (problem.omega > 0 or problem.participation < 1)
    if problem.lasting_noise or not uses_control:
        return server
    learning = (1 + problem.omega) / problem.participation
    return server._replace(rest_until=server.round_index + ceil(_REST * learning))


def server_half(
    problem: Problem,
    server: ServerState,
    received: Received,
    step_size: float,
    field: FloatArray | None = None,
) -> tuple[ServerState, RoundInfo]:
    """Server's half of a round: H, Ŝ, V, T(Ŝ) (lines 14-17 of Algorithm 1, 13-16 of Algorithm 2).

    Parameters
    ----------
    problem : Problem
    server : ServerState
    received : Received
        Σ over the active clients of w_i Quant(Δ_i).
    step_size : float
        γ.
    field : ndarray, default=None
        H, followed by what ``Model.stream_field`` appends in a stream; None to compute H.

    Returns
    -------
    server : ServerState
    info : RoundInfo
    """
    model = problem.model
    if field is None:
        field = mean_field(problem, server, received)
    if step_size == 0:  # Ŝ is fixed while V adapts
        step = Step(server.statistics, model.field_sq_norm(server.statistics, field), 0, 0.0)
    else:
        step = model.server_step(server.statistics, field, step_size, exact=problem.exact)
    after = server._replace(
        round_index=server.round_index + 1,
        statistics=step.statistics,
        parameters=model.maximization(step.statistics),
        control=server.control + problem.control_step * received.message_sum,
        step_limit=_limit_after(problem, server.step_limit, step_size, step),
        has_field=True,
    )
    sq_norm = step.field_sq_norm if server.has_field else nan
    return after, RoundInfo(field, sq_norm, step.safeguarded, step.step_taken)


def _limit_after(problem: Problem, limit: float, step_size: float, step: Step) -> float:
    """Limit of automatic steps after a step γ, smaller if that was shortened or too noisy."""
    if step.step_taken < step_size:
        return min(limit, _CAUTION * step_size)
    if step.noisy and problem.lasting_noise:
        return min(limit, _PATIENCE * step_size)
    return limit
