"""The round loop: draws active clients, runs both halves of a round, records it, and stops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import _random
from .._client_vectors import ClientVectors, as_slice
from .._federation import client_groups, offsets_of
from .._history import FLOAT_BITS
from .._parallel import Workers
from .._parameters import is_auto
from .._typing import ControlInit, IntArray, Schedule
from ..models._base import Start
from ..participation import draw_active
from ._base import (
    Broadcast,
    Message,
    Problem,
    Received,
    RoundInfo,
    ServerState,
    Solver,
    States,
    after_short_step,
    mean_control,
    message_units_of,
    outer_loop_of,
    server_half,
)
from ._evaluation import checked_criterion, columns_at, evaluate, evaluation_columns
from ._fit_task import FitTask
from ._resume import Checkpoint
from ._run_state import Progress, RunState, initialise
from ._stopping import Gains, Sweep, next_gains, next_sweep, of_these_rows

StoppedBy = Literal["keyboard", "callback"]


class Options(NamedTuple):
    """Options of a run: steps, stopping and evaluations.

    ``cautious`` steps respect the server's limit. ``eval_every`` is a number of rounds, "auto" for
    once per epoch, or None.
    """

    step_size: Schedule
    cautious: bool = False
    control_init: ControlInit = "field"
    max_iter: int | None = 100
    max_epochs: float | None = None
    tol: float = 1e-3
    eval_every: int | Literal["auto"] | None = "auto"


class Run(NamedTuple):
    """Outcome of a run.

    ``criteria`` are values of the model's criterion (log-likelihood or objective): with exact
    rounds, those by which convergence was judged; otherwise those that were evaluated, at least the
    last. ``initial_criterion`` and ``final_criterion`` are the values at the start and at the end,
    NaN if they were not computed. ``trace`` has ``model.trace(parameters)`` for each row of the
    history. ``gains``, with which a continued run judges its first round, is None unless rounds are
    exact and the last one was evaluated.
    """

    server: ServerState
    states: States
    history: dict[str, NDArray[Any]]
    trace: NDArray[Any]
    criteria: list[float]
    initial_criterion: float
    final_criterion: float
    converged: bool
    gains: Gains | None
    stopped_by: StoppedBy | None = None

    @property
    def n_rounds(self) -> int:
        """Number of rounds of this run."""
        return len(self.history["step_size"]) - 1


def run(
    solver: Solver,
    problem: Problem,
    start: Start,
    options: Options,
    workers: Workers,
    report: Callable[[dict[str, float]], None],
    checkpoint: Checkpoint | None = None,
    tasks: FitTask | None = None,
) -> Run:
    """Run a solver until it converges, or reaches the maximum number of rounds or epochs.

    Parameters
    ----------
    solver : Solver
    problem : Problem
    start : Start
    options : Options
    workers : Workers
    report : callable
        Called after each round with the last row of the history. If rounds are exact, it also
        contains ``criterion_before``, the criterion of the previous row, which the round yields.
    checkpoint : Checkpoint, default=None
        Where to resume from, and where to save the run regularly.
    tasks : FitTask, default=None
        Notified when rounds begin and end; may stop the run.

    Returns
    -------
    run : Run
    """
    run_state = checkpoint.resumed(solver, problem, start, workers) if checkpoint else None
    if run_state is None:
        run_state = initialise(
            solver,
            problem,
            start,
            workers,
            control_init=options.control_init,
            watched=options.eval_every is not None,
        )
    stopped_by: StoppedBy | None = None
    try:
        while not (stopped_by or _is_over(run_state.progress, options)):
            if tasks:
                tasks.begin_round(run_state)
            run_state = one_round(solver, problem, run_state, options, workers)
            row = run_state.history.row(-1)
            if problem.exact:
                row = {**row, "criterion_before": run_state.criteria_before[-1]}
            report(row)
            if tasks and tasks.end_round(run_state):
                stopped_by = "callback"
            if checkpoint:
                over = stopped_by is not None or _is_over(run_state.progress, options)
                checkpoint.after_round(run_state, over)
    except KeyboardInterrupt:
        stopped_by, run_state = "keyboard", _after_whole_rounds(problem, run_state)
    return _outcome(problem, run_state, options, workers, tasks, stopped_by)


def _after_whole_rounds(problem: Problem, run_state: RunState) -> RunState:
    """State of an interrupted run after the last round that the server has completed."""
    n_rows, server = run_state.progress.n_rounds + 1, run_state.progress.server
    run_state.history.keep(n_rows)
    del run_state.trace[n_rows:]
    # Some clients may have updated V_i in a round that the server has not completed.
    server = server._replace(control=mean_control(problem, run_state.states.controls))
    return run_state._replace(progress=run_state.progress._replace(server=server))


def _outcome(
    problem: Problem,
    run_state: RunState,
    options: Options,
    workers: Workers,
    tasks: FitTask | None,
    stopped_by: StoppedBy | None,
) -> Run:
    """Outcome of a run after its last round, which is evaluated unless it was already."""
    progress, history, model = run_state.progress, run_state.history, problem.model
    server, watched = progress.server, options.eval_every is not None
    initial_criterion = run_state.initial_criterion
    if run_state.criteria_before:
        initial_criterion = run_state.criteria_before[0]
    *earlier, criterion = history.column(model.criterion)
    if not progress.n_rounds:
        criterion = initial_criterion
    try:
        if tasks:
            tasks.end_start(run_state)
        # If nothing is to be evaluated, the criteria that exact rounds yield are enough.
        if np.isnan(criterion) and (watched or not run_state.criteria_before):
            evaluation = evaluate(problem, server, workers)
            criterion = evaluation.criterion
            if watched:
                history.update(-1, **columns_at(model, server, evaluation))
    except KeyboardInterrupt:
        if not progress.n_rounds:
            raise
        stopped_by = "keyboard"
    gains = None
    if isinstance(run_state.stopping, Gains) and not np.isnan(criterion):
        # If no round was completed, the gains may be those of other rows.
        gains = of_these_rows(run_state.stopping, criterion, model)
        gains = gains._replace(next_criterion=criterion)
    evaluated = [*(value for value in earlier if not np.isnan(value)), criterion]
    return Run(
        server=server,
        states=run_state.states,
        history=history.as_dict(),
        trace=np.array(run_state.trace),
        criteria=run_state.criteria_before or evaluated,
        initial_criterion=initial_criterion,
        final_criterion=criterion,
        converged=progress.converged,
        gains=gains,
        stopped_by=stopped_by,
    )


def one_round(
    solver: Solver, problem: Problem, run_state: RunState, options: Options, workers: Workers
) -> RunState:
    """Run both halves of a round and record it in the history; return the new state."""
    model, progress, history = problem.model, run_state.progress, run_state.history
    before = progress.server
    step_size = _step_to_ask(problem, before, options)
    active = active_clients(problem, before.round_index)
    n_downlink = model.downlink_numbers(problem.federation, active, before.parameters)
    received = client_round(solver, problem, before, run_state.states, active, workers)
    server, info = server_half(problem, before, received, step_size)
    if options.cautious and info.step_taken < step_size:
        server = after_short_step(problem, server)
    server, stopping, converged = _judged(problem, run_state, received, server, info, options)
    after = progress._replace(
        server=server,
        n_expectations=progress.n_expectations + received.n_expectations,
        converged=converged,
    )
    history.append(
        round=after.n_rounds,
        epoch=after.epoch,
        field_sq_norm=info.field_sq_norm,
        step_size=info.step_taken,
        n_active=received.n_active,
        uplink_bits=8 * received.n_bytes,
        downlink_bits=FLOAT_BITS * n_downlink,
        safeguarded=info.safeguarded,
        **evaluation_columns(model),
    )
    run_state.trace.append(model.trace(server.parameters))
    if options.eval_every is not None and (
        _is_over(after, options)
        or _is_evaluation_due(problem, progress.epoch, after, options.eval_every)
    ):
        history.update(-1, **columns_at(model, server, evaluate(problem, server, workers)))
    return run_state._replace(progress=after, stopping=stopping)


def _step_to_ask(problem: Problem, server: ServerState, options: Options) -> float:
    """γ of the next round: that of the schedule, with the server's limit if it is automatic."""
    step_size = options.step_size(server.round_index + 1)
    if problem.exact or not options.cautious:
        return step_size
    return 0.0 if server.round_index < server.rest_until else min(step_size, server.step_limit)


def _judged(
    problem: Problem,
    run_state: RunState,
    received: Received,
    server: ServerState,
    info: RoundInfo,
    options: Options,
) -> tuple[ServerState, Gains | Sweep, bool]:
    """Server's state, that of the stopping rule, and whether the run has converged, after a round.

    The E-steps of an exact round yield the criterion of the previous row, which is filled in here.
    """
    model, history, stopping = problem.model, run_state.history, run_state.stopping
    if isinstance(stopping, Gains):
        parameters = run_state.progress.server.parameters
        criterion = checked_criterion(model, received.log_likelihood, parameters)
        if options.eval_every is not None:
            history.update(-1, **evaluation_columns(model, criterion, info.field_sq_norm))
        run_state.criteria_before.append(criterion)
        gains = next_gains(stopping, criterion, info.step_taken, model)
        return server, gains, gains.settled(options.tol)
    sweep = next_sweep(stopping, problem, server, info.step_taken, received.n_active, options.tol)
    if sweep.unconfirmed:
        server = server._replace(n_restarts=server.n_restarts + 1)
        sweep = sweep._replace(outer_loop=outer_loop_of(problem, server))
    return server, sweep, sweep.converged


def active_clients(problem: Problem, round_index: int) -> IntArray:
    """Indices of the clients that take part in a round, in increasing order."""
    if problem.participation == 1:
        return np.arange(problem.federation.n_clients)
    generator = _random.generator(problem.seed, _random.PARTICIPATION, round_index)
    return draw_active(generator, problem.federation.n_clients, problem.participation)


def broadcast_of(problem: Problem, server: ServerState) -> Broadcast:
    """Message of the server to the clients at the start of a round."""
    model, parameters = problem.model, server.parameters
    reference = model.reference(server.statistics)
    units = message_units_of(problem, parameters)
    outer_loop = outer_loop_of(problem, server)
    return Broadcast(server.round_index, outer_loop, reference, parameters, units)


def client_round(
    solver: Solver,
    problem: Problem,
    server: ServerState,
    states: States,
    active: IntArray,
    workers: Workers,
) -> Received:
    """Run the clients' half of a round in groups, and sum their messages.

    The active clients' entries in ``states`` are overwritten.
    """
    broadcast = broadcast_of(problem, server)

    def half(group: slice) -> Received:
        clients = active[group]
        indices = _places(solver, problem.vectors, states, clients)
        group_states = type(states)(*(field[at] for field, at in zip(states, indices, strict=True)))
        message, group_states = solver.client_half(problem, broadcast, clients, group_states)
        for field, at, new in zip(states, indices, group_states, strict=True):
            field[at] = new
        return _summed(solver, problem, clients, message)

    if problem.batch_size is None:
        n_rows = problem.federation.lengths_of(active)
    else:
        n_rows = np.full(len(active), problem.batch_size)
    groups = client_groups(offsets_of(n_rows), problem.model.block_rows)
    parts = workers.map(half, groups, "round")
    return Received(
        message_sum=problem.vectors.total(active, [part.message_sum for part in parts]),
        n_active=len(active),
        n_bytes=sum(part.n_bytes for part in parts),
        n_expectations=sum(part.n_expectations for part in parts),
        log_likelihood=sum(part.log_likelihood for part in parts),
        uncompressed=sum(part.uncompressed for part in parts),
    )


def _places(
    solver: Solver, vectors: ClientVectors, states: States, clients: IntArray
) -> list[slice | IntArray]:
    """Indices of some clients' entries in each field of the states."""
    numbers, own = as_slice(clients), vectors.places(clients)
    return [numbers if name in solver.PER_CLIENT else own for name in states._fields]


def _summed(solver: Solver, problem: Problem, clients: IntArray, message: Message) -> Received:
    """Sums of a group's messages, its contribution to ``Received``."""
    weights = problem.federation.weights[clients]
    log_likelihood: Any = 0.0
    if message.log_likelihood is not None:
        log_likelihood = weights @ message.log_likelihood
    elif problem.exact:
        raise ValueError(
            f"Expected {solver.__name__}.client_half to give log_likelihood where rounds are "
            "exact, got None: convergence is judged by it. Give that of model.all_rows."
        )
    return Received(
        message_sum=problem.vectors.weighted(weights, clients, message.quantized),
        n_bytes=message.n_bytes,
        n_expectations=message.n_expectations,
        log_likelihood=log_likelihood,
        uncompressed=message.uncompressed,
    )


def _is_evaluation_due(
    problem: Problem, last_epoch: float, progress: Progress, eval_every: int | Literal["auto"]
) -> bool:
    """Whether a row of the history has to be evaluated separately."""
    if problem.exact:
        return False
    if is_auto(eval_every):
        return int(progress.epoch) > int(last_epoch)
    return progress.n_rounds % eval_every == 0


def _is_over(progress: Progress, options: Options) -> bool:
    """Whether a run has converged, or reached the maximum number of rounds or epochs."""
    return (
        progress.converged
        or (options.max_iter is not None and progress.n_rounds >= options.max_iter)
        or (options.max_epochs is not None and progress.epoch >= options.max_epochs)
    )
