"""The round loop: opens a round, has the clients answer, closes it, and stops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from .. import _random
from .._history import FLOAT_BITS
from .._parameters import is_auto
from .._typing import ControlInit, IntArray, Schedule
from ..models._base import Start
from ..participation import draw_active
from ._fit_task import FitTask
from ._resume import Checkpoint
from ._state import (
    RunState,
    StoppedBy,
    checked_criterion,
    columns_at,
    evaluate,
    evaluation_columns,
    history_row,
    initial_state,
)
from ._stopping import StoppingByCriterion, next_by_criterion, next_by_surrogate, of_these_rows
from .base import Broadcast, Clients, Problem, RoundInfo, ServerState
from .messages import AggregatedMessages
from .server import after_short_step, broadcast_of, outer_loop_of, server_half


class Options(NamedTuple):
    """Options of a run: steps, stopping and evaluations.

    ``cautious`` steps respect the server's limit. ``eval_every`` is a number of rounds, "auto" for
    once per epoch, or None. ``evaluate(state, clients)`` returns columns of the history, in place
    of the model's criterion.
    """

    step_size: Schedule
    cautious: bool = False
    control_init: ControlInit = "field"
    max_iter: int | None = 100
    max_epochs: float | None = None
    tol: float = 1e-3
    eval_every: int | Literal["auto"] | None = "auto"
    evaluate: Callable[[RunState, Clients], dict[str, float]] | None = None


def run(
    problem: Problem,
    start: Start,
    options: Options,
    clients: Clients,
    report: Callable[[dict[str, float]], None] = lambda row: None,
    checkpoint: Checkpoint | None = None,
    tasks: FitTask | None = None,
) -> RunState:
    """Run a solver until it converges, or reaches the maximum number of rounds or epochs.

    The clients have joined with the solver and the task of this problem. ``report`` is called after
    each round with the last row of the history; if rounds are exact, it also contains
    ``criterion_before``, the criterion of the previous row, which the round yields. ``tasks`` may
    stop the run.
    """
    watched = options.eval_every is not None
    state = checkpoint.resumed(problem, start, clients) if checkpoint else None
    if state is None:
        state = initial_state(
            problem, start, clients, control_init=options.control_init, watched=watched
        )
    stopped_by: StoppedBy | None = None
    try:
        if checkpoint and _is_over(state, options):
            checkpoint.after_round(state, clients, over=True)
        while not (stopped_by or _is_over(state, options)):
            if tasks:
                tasks.begin_round(state)
            step_size = _step_to_ask(problem, state.server, options)
            broadcast, active = open_round(problem, state.server)
            aggregated = clients.round(broadcast, active)
            state = _followed(state, clients)
            state = close_round(problem, state, active, aggregated, step_size, options)
            clients.commit(broadcast.round_index)
            state = _followed(state, clients)
            if watched and _is_evaluation_due(problem, state, options):
                columns = _evaluated(problem, state, options, clients)
                state.history.update(-1, **columns)
            row = state.history.row(-1)
            if state.criteria_before:
                row = {**row, "criterion_before": state.criteria_before[-1]}
            report(row)
            if tasks and tasks.end_round(state):
                stopped_by = "callback"
            if checkpoint:
                over = stopped_by is not None or _is_over(state, options)
                checkpoint.after_round(state, clients, over)
    except KeyboardInterrupt:
        # Both sides are as after the last round that the server has closed.
        clients.commit(state.server.round_index - 1)
        state.history.keep(state.n_rounds + 1)
        del state.trace[state.n_rounds + 1 :], state.criteria_before[state.n_rounds :]
        stopped_by = "keyboard"
    state = state._replace(stopped_by=stopped_by)
    state = _followed(_ended(problem, state, options, clients, tasks), clients)
    return state._replace(clients=clients.save())


def _followed(state: RunState, clients: Clients) -> RunState:
    """State with V = Σ w_i V_i if some clients have lost their V_i."""
    control = clients.reset_control()
    if control is None:
        return state
    return state._replace(server=state.server._replace(control=control))


def open_round(problem: Problem, server: ServerState) -> tuple[Broadcast, IntArray]:
    """The server's message to the clients, and the clients that are asked."""
    broadcast = problem.solver.broadcast or broadcast_of
    return broadcast(problem, server), active_clients(problem, server.round_index)


def active_clients(problem: Problem, round_index: int) -> IntArray:
    """Indices of the clients that take part in a round, in increasing order."""
    if problem.inclusion_probability == 1:
        return np.arange(problem.sizes.n_clients)
    generator = _random.generator(problem.task.seed, _random.PARTICIPATION, round_index)
    return draw_active(generator, problem.sizes.n_clients, problem.participation)


def close_round(
    problem: Problem,
    state: RunState,
    active: IntArray,
    aggregated: AggregatedMessages,
    step_size: float,
    options: Options | None = None,
) -> RunState:
    """Server's half of a round, from the messages that it accepts; extends the history.

    Without ``options``, as in a stream, neither steps are limited nor the run is stopped.
    """
    solver, model, before = problem.solver, problem.model, state.server
    server, info = (solver.server_half or server_half)(problem, before, aggregated, step_size)
    after = state._replace(
        server=server, n_expectations=state.n_expectations + aggregated.n_expectations
    )
    if options is not None:
        if options.cautious and info.step_taken < step_size:
            after = after._replace(server=after_short_step(problem, server))
        if state.stopping is not None:
            after = _judged(problem, before, after, aggregated, info, options)
    n_uncompressed = model.n_uncompressed * aggregated.n_active
    downlink_bits = model.downlink_bits(problem.sizes, active, before.parameters)
    row = history_row(
        problem,
        after,
        info,
        aggregated.n_active,
        uplink_bits=8 * aggregated.n_bytes + FLOAT_BITS * n_uncompressed,
        downlink_bits=downlink_bits + FLOAT_BITS * n_uncompressed,
    )
    after.history.append(**row, **evaluation_columns(model))
    after.trace.append(model.trace(server.parameters))
    return after


def _step_to_ask(problem: Problem, server: ServerState, options: Options) -> float:
    """γ of the next round: that of the schedule, with the server's limit if it is automatic."""
    step_size = options.step_size(server.round_index + 1)
    if problem.exact or not options.cautious:
        return step_size
    return 0.0 if server.round_index < server.frozen_until else min(step_size, server.step_limit)


def _judged(
    problem: Problem,
    before: ServerState,
    after: RunState,
    aggregated: AggregatedMessages,
    info: RoundInfo,
    options: Options,
) -> RunState:
    """State after a round with that of the stopping rule.

    The E-steps of an exact round yield the criterion of the previous row, which is filled in here.
    """
    model, stopping, step, tol = problem.model, after.stopping, info.step_taken, options.tol
    assert stopping is not None  # or nothing is judged
    if isinstance(stopping, StoppingByCriterion):
        if aggregated.log_likelihood is None:
            raise ValueError(
                f"Expected log-likelihoods of all rows from solver {problem.solver.name!r} in "
                "exact rounds, got None. Return them with its estimates, or set is_random."
            )
        criterion = checked_criterion(model, aggregated.log_likelihood, before.parameters)
        if options.eval_every is not None:
            columns = evaluation_columns(model, criterion, info.field_sq_norm)
            after.history.update(-1, **columns)
        after.criteria_before.append(criterion)
        gains = next_by_criterion(stopping, criterion, step, model)
        return after._replace(stopping=gains, converged=gains.converged(tol))
    sweep = next_by_surrogate(stopping, problem, after.server, step, aggregated.n_active, tol)
    if sweep.unconfirmed:
        server = after.server._replace(n_restarts=after.server.n_restarts + 1)
        sweep = sweep._replace(outer_loop=outer_loop_of(problem, server))
        after = after._replace(server=server)
    return after._replace(stopping=sweep, converged=sweep.converged)


def _is_evaluation_due(problem: Problem, state: RunState, options: Options) -> bool:
    """Whether the last row of the history has to be evaluated separately."""
    if not (problem.model.criterion or options.evaluate):
        return False
    if _is_over(state, options):
        return True
    if isinstance(state.stopping, StoppingByCriterion):
        return False
    if is_auto(options.eval_every):
        return int(state.epoch) > int(state.history.row(-2)["epoch"])
    return options.eval_every is not None and state.n_rounds % options.eval_every == 0


def _evaluated(
    problem: Problem, state: RunState, options: Options, clients: Clients
) -> dict[str, float]:
    """Columns of the history from an evaluation of the current state."""
    if options.evaluate:
        return options.evaluate(state, clients)
    return columns_at(problem.model, state.server, evaluate(problem, state.server, clients))


def _is_over(state: RunState, options: Options) -> bool:
    """Whether a run has converged, or reached the maximum number of rounds or epochs."""
    return (
        state.converged
        or (options.max_iter is not None and state.n_rounds >= options.max_iter)
        or (options.max_epochs is not None and state.epoch >= options.max_epochs)
    )


def _ended(
    problem: Problem,
    state: RunState,
    options: Options,
    clients: Clients,
    tasks: FitTask | None,
) -> RunState:
    """State at the end of a run, evaluated unless it was already."""
    history, model, server = state.history, problem.model, state.server
    watched, initial = options.eval_every is not None, state.initial_criterion
    if state.criteria_before:
        initial = state.criteria_before[0]
    criterion = history.row(-1)[model.criterion] if model.criterion else np.nan
    if not state.n_rounds:
        criterion = initial
    try:
        if tasks:
            tasks.end_start(state)
        # If nothing is to be evaluated, the criteria that exact rounds yield are enough.
        is_wanted = model.criterion and (watched or not state.criteria_before)
        if np.isnan(criterion) and is_wanted:
            evaluation = evaluate(problem, server, clients)
            criterion = evaluation.criterion
            if watched:
                history.update(-1, **columns_at(model, server, evaluation))
    except KeyboardInterrupt:
        if not state.n_rounds:
            raise
        state = state._replace(stopped_by="keyboard")
    stopping = state.stopping
    if isinstance(stopping, StoppingByCriterion) and not np.isnan(criterion):
        # If no round was completed, the gains may be those of other rows.
        stopping = of_these_rows(stopping, criterion, model)._replace(next_criterion=criterion)
    return state._replace(stopping=stopping, initial_criterion=initial, final_criterion=criterion)
