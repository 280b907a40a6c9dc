"""The server's half of a round, as it is for all solvers without one of their own."""

from __future__ import annotations

from math import ceil, nan
from typing import Any, NamedTuple

from .._typing import FloatArray
from ..models._base import Parameters, Step
from .base import Broadcast, Problem, RoundInfo, ServerState, Task
from .messages import AggregatedMessages


class StepLimits(NamedTuple):
    """Limits of automatic steps.

    Attributes
    ----------
    shrinkage_of_short, shrinkage_of_noisy : float
        Factor for the limit after a step that had to be shortened, and after one that was too noisy
        to be repeated many times.
    frozen_rounds : float
        After a shortened step, Ŝ is frozen for this many times (1 + ω) / p rounds, in which control
        variates adapt. With 1, up to eight steps in a row were shortened; 6 was no better than 3.
    """

    shrinkage_of_short: float = 0.7
    shrinkage_of_noisy: float = 0.95
    frozen_rounds: float = 3.0


STEP_LIMITS = StepLimits()


def outer_loop_of(problem: Problem, server: ServerState) -> int:
    """Number of the outer loop of the next round."""
    return server.round_index // problem.n_inner + server.n_restarts


def broadcast_of(problem: Problem, server: ServerState) -> Broadcast:
    """Message of the server to the clients at the start of a round."""
    model, parameters = problem.model, server.parameters
    return Broadcast(
        server.round_index,
        outer_loop_of(problem, server),
        model.reference(server.statistics),
        parameters,
        message_units_of(problem.task, parameters),
    )


def message_units_of(task: Task, parameters: Parameters) -> Any:
    """Units in which messages are compressed; None for those of the statistics."""
    return task.model.message_units(parameters) if task.omega else None


def mean_field(problem: Problem, server: ServerState, aggregated: AggregatedMessages) -> FloatArray:
    """H, the server's estimate of the mean field (line 14 of Algorithm 1)."""
    share = problem.inclusion_probability * problem.participating_weight
    return server.control + aggregated.message_sum / share


def after_short_step(problem: Problem, server: ServerState) -> ServerState:
    """State after a shortened automatic step: a new outer loop, and rounds with step 0.

    SPIDER's running estimates would keep the errors accumulated so far. So would V, if messages are
    compressed or clients absent: the next steps would fail as well, each shortening all later ones.
    """
    server = server._replace(n_restarts=server.n_restarts + 1)
    p = problem.inclusion_probability
    uses_control = problem.task.control_step > 0 and (problem.omega > 0 or p < 1)
    if problem.persistent_noise or not uses_control:
        return server
    frozen = ceil(STEP_LIMITS.frozen_rounds * (1 + problem.omega) / p)
    return server._replace(frozen_until=server.round_index + frozen)


def server_half(
    problem: Problem, server: ServerState, aggregated: AggregatedMessages, step_size: float
) -> tuple[ServerState, RoundInfo]:
    """The server's half: H, Ŝ, V, T(Ŝ) (lines 14-17 of Algorithm 1, 13-16 of Algorithm 2)."""
    model = problem.model
    field = model.stream_field(
        server.parameters,
        server.statistics,
        mean_field(problem, server, aggregated),
        aggregated.uncompressed / problem.participating_weight,
        step_size,
    )
    if step_size == 0:  # Ŝ is fixed while V adapts
        step = Step(server.statistics, model.field_sq_norm(server.statistics, field), 0, 0.0)
    else:
        step = model.server_step(server.statistics, field, step_size, exact=problem.exact)
    after = after_step(problem, server, aggregated, step)
    after = after._replace(step_limit=_limit_after(problem, server.step_limit, step_size, step))
    return after, round_info(server, field, step)


def after_step(
    problem: Problem, server: ServerState, aggregated: AggregatedMessages, step: Step
) -> ServerState:
    """State after a step: Ŝ, T(Ŝ) and V."""
    control = server.control
    if problem.task.has_controls:
        control = control + problem.task.control_step * aggregated.message_sum
    return server._replace(
        round_index=server.round_index + 1,
        statistics=step.statistics,
        parameters=problem.model.maximization(step.statistics),
        control=control,
        has_field=True,
    )


def round_info(server: ServerState, field: FloatArray, step: Step) -> RoundInfo:
    """Summary of a round that began with this state."""
    sq_norm = step.field_sq_norm if server.has_field else nan
    return RoundInfo(field, sq_norm, step.safeguarded, step.step_taken)


def _limit_after(problem: Problem, limit: float, step_size: float, step: Step) -> float:
    """Limit of automatic steps after a step γ, smaller if that was shortened or too noisy."""
    if step.step_taken < step_size:
        return min(limit, STEP_LIMITS.shrinkage_of_short * step_size)
    if step.noisy and problem.persistent_noise:
        return min(limit, STEP_LIMITS.shrinkage_of_noisy * step_size)
    return limit


def columns_of_steps(server: ServerState, info: RoundInfo | None) -> dict[str, float]:
    """Columns of the history about the step of a round; ``info`` is None before the first."""
    info = info or RoundInfo(server.control, nan, 0, nan)
    return {
        "field_sq_norm": info.field_sq_norm,
        "step_size": info.step_taken,
        "safeguarded": info.safeguarded,
    }
