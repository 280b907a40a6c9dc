"""What solvers share: the problem, the states, the messages, and the server's half of a round.

A solver is a module with two functions::

    init(problem, controls) -> client states
    client_half(problem, broadcast, clients, states) -> (Message, client states)

Both work on many clients at once. States are NamedTuples of arrays: client vectors, laid out as
the model's ``vectors`` says, or one number (or one row of numbers) per client for the fields named
in the solver's ``PER_CLIENT``. ``client_half`` is pure: it gets the states of some clients and
returns the new ones, so that a message that never arrives leaves no trace. The solver's
``VARIANCE_REDUCED`` says whether its minibatches leave no noise in the limit. In which groups and
on how many workers clients run is the round loop's business.
"""

from __future__ import annotations

from math import ceil, inf, nan
from typing import Any, NamedTuple

import numpy as np

from .. import _random
from .._client_vectors import ClientVectors, weighted_sum
from .._federation import Federation, draw_minibatches, draw_weighted_minibatches
from .._typing import FloatArray, IntArray
from ..compression import Compressor
from ..compression._base import check_sent
from ..models._base import Model, Parameters, Step

# The limit of automatic steps shrinks by this factor after a step that had to be shortened, ...
_CAUTION = 0.7
# ... and by this one after a step that was too random to be followed by many of its size.
_PATIENCE = 0.95
# After a shortened step Ŝ rests for this many times (1 + ω) / p rounds, in which control variates
# learn. With 1 in place of 3, up to eight shortened steps followed each other; 6 was like 3.
_REST = 3.0
# Larger innovations come of control variates that diverge, not of data.
_DIVERGED = 1e200


class Problem(NamedTuple):
    """What does not change during a run.

    Attributes
    ----------
    model : Model
    federation : Federation
    compressor : Compressor
    omega : float
        ω of the compressor for messages of this length (the largest, if lengths differ).
    participation : float
        Probability p that a client takes part in a round.
    control_step : float
        Step α of the control variates.
    batch_size : int or None
        Rows per client and round, b; None for all rows.
    replacement : bool
        Whether a minibatch may hold a row twice.
    n_inner : int
        Rounds between two passes over all rows, k_in; 1 where there are no rounds in between, or no
        passes.
    seed : int
        Of all random streams.
    presence : float
        Σ w_i over the federation; below 1 in a stream, where other clients have no rows for the
        time being, or take no part, and only V speaks for them.
    lasting_noise : bool
        Whether messages stay random at the optimum: minibatches without variance reduction, and
        streams.
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
        """How the clients' vectors lie in memory."""
        return self.model.vectors(self.federation)

    @property
    def exact(self) -> bool:
        """Whether the server's field is the mean field itself: nothing random in a round."""
        everybody = self.participation == 1 and self.presence == 1
        all_rows = self.batch_size is None and not self.model.is_random
        return self.omega == 0 and everybody and all_rows


class Broadcast(NamedTuple):
    """What the server tells the active clients at the start of round ``round_index``.

    ``outer_loop`` numbers the outer loops of VR-FedEM. ``natural`` is φ(T(Ŝ)), which a client can
    compute from Ŝ; ``reference`` is what clients subtract from s̄_i to get their field: Ŝ, or 0.
    ``message_units``, which follow from T(Ŝ), map client vectors to the units that they are
    compressed in (``to_components``) and back (``to_standard``); None where they are sent as they
    are, as where nothing is compressed.
    """

    round_index: int
    outer_loop: int
    reference: FloatArray | float
    natural: Any
    message_units: Any = None


class Message(NamedTuple):
    """What a group of clients sends back.

    Attributes
    ----------
    quantized : ndarray
        Quant(Δ_i), as the server reads it; client vectors.
    sent : ndarray
        The same in the ``message_units`` of the broadcast, if it has any: as they travel, and what
        the compressor encodes. The simulation does not read it.
    n_bytes : int
        Length of the encoded messages.
    n_expectations : int
        Conditional expectations that were computed for it.
    log_likelihood : ndarray of shape (n_clients,) or None
        Mean log-likelihood of each client's rows, where it read them all; nats.
    """

    quantized: FloatArray
    sent: FloatArray
    n_bytes: int
    n_expectations: int
    log_likelihood: FloatArray | None = None


class Received(NamedTuple):
    """What the server adds up over the messages of the active clients, in client order.

    ``message_sum`` is Σ w_i Quant(Δ_i) and ``log_likelihood`` Σ w_i times the clients' means, where
    they read all rows, else 0; the others are plain sums. For a group of clients, the group's part,
    without ``n_active``.
    """

    message_sum: FloatArray
    n_active: int = 0
    n_bytes: int = 0
    n_expectations: int = 0
    log_likelihood: float = 0.0


class ServerState(NamedTuple):
    """All that the server needs for the next round: Ŝ, T(Ŝ), V, and what it learnt of steps.

    Automatic steps are at most ``step_limit``; it shrinks when the safeguard acts, and where
    lasting noise is too much for the step. ``has_field`` says whether h(Ŝ) says anything: not where
    Ŝ_0 is s̄ of parameters that no statistic gives. ``n_restarts`` counts the outer loops that were
    begun before k_in rounds were over: after a step that the safeguard shortened, and to see
    whether a run that seems to have converged has. Before the round ``rest_until``, automatic steps
    are 0, so that control variates can learn the fields where Ŝ is.
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
    """What the server saw of a round: H, how often its step was halved, and the step taken."""

    field: FloatArray
    field_sq_norm: float
    safeguarded: int
    step_taken: float


def draw_minibatch(problem: Problem, round_index: int, clients: IntArray) -> Any:
    """Draw a minibatch of each client; return what the E-step reads of it."""
    federation, size = problem.federation, problem.batch_size
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
    """Quant(Δ_i) with each client's own random numbers, the same as sent, and bytes of each."""
    vectors, units = problem.vectors, broadcast.message_units
    lengths = vectors.lengths(clients)
    if problem.omega == 0:
        return innovations, innovations, problem.compressor.n_bytes(innovations, lengths)
    if units is not None:
        innovations = units.to_components(innovations)
    address = problem.seed, _random.COMPRESSION, broadcast.round_index
    uniforms = vectors.uniforms(*address, clients)
    try:
        sent, n_bytes = problem.compressor.send(innovations, uniforms, lengths)
    except ValueError as error:
        _raise_if_diverged(problem.compressor, innovations, broadcast.round_index, error)
        raise
    check_sent(problem.compressor, sent, n_bytes, innovations.shape, len(clients))
    quantized = sent if units is None else units.to_standard(sent)
    return quantized, sent, n_bytes


def _raise_if_diverged(
    compressor: Compressor, innovations: FloatArray, round_index: int, error: ValueError
) -> None:
    """Say what made innovations too large for the compressor, which cannot know."""
    largest = np.abs(innovations).max()
    if largest >= _DIVERGED:  # NaN is another matter
        raise ValueError(
            f"Expected messages of moderate size in round {round_index + 1}, got {largest:.3g}: "
            f"control variates have diverged. Is {compressor!r} unbiased, and its variance within "
            "its omega?"
        ) from error


def outer_loop_of(problem: Problem, server: ServerState) -> int:
    """Number of the outer loop that the next round is in."""
    return server.round_index // problem.n_inner + server.n_restarts


def message_units_of(problem: Problem, parameters: Parameters) -> Any:
    """Units that messages are compressed in; None for those of the statistics."""
    return problem.model.message_units(parameters) if problem.omega else None


def mean_control(problem: Problem, controls: FloatArray) -> FloatArray:
    """V = Σ_i w_i V_i, as a server's vector."""
    return weighted_sum(problem.vectors, problem.federation.weights, controls)


def mean_field(problem: Problem, server: ServerState, received: Received) -> FloatArray:
    """H, the server's estimate of the mean field (line 14 of Algorithm 1)."""
    return server.control + received.message_sum / (problem.participation * problem.presence)


def after_short_step(problem: Problem, server: ServerState) -> ServerState:
    """What follows an automatic step that had to be shortened: a new outer loop, and a rest.

    Estimates that add up what happened on the way here would carry its error on. So would V where
    messages are compressed or clients away: the next steps would fail as well, and each of them
    shorten all later ones.
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
        H, with what a stream appends to it; None for H alone.

    Returns
    -------
    server : ServerState
    info : RoundInfo
    """
    model = problem.model
    if field is None:
        field = mean_field(problem, server, received)
    if step_size == 0:  # Ŝ rests, and V learns
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
    """Limit of the automatic steps after one of γ that was shortened, or too random, or neither."""
    if step.step_taken < step_size:
        return min(limit, _CAUTION * step_size)
    if step.noisy and problem.lasting_noise:
        return min(limit, _PATIENCE * step_size)
    return limit
