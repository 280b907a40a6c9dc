"""State of a run, which is what a checkpoint saves, and its initialisation."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._history import FLOAT_BITS, History
from .._parallel import Workers
from .._typing import ControlInit
from ..models._base import Model, Start
from ._base import Problem, ServerState, Solver, States
from ._evaluation import Evaluation, columns_at, evaluate, evaluation_columns
from ._memory import Kept
from ._stopping import Gains, Sweep, first_sweep, no_gains


class Progress(NamedTuple):
    """Progress of a run after a round; ``first_round`` is the index of its first round.

    ``n_expectations`` is the number of conditional expectations computed so far.
    """

    server: ServerState
    n_expectations: int
    n_samples: int
    converged: bool = False
    first_round: int = 0

    @property
    def epoch(self) -> float:
        """Number of passes over all rows so far, from counts, which add up without rounding."""
        return self.n_expectations / self.n_samples

    @property
    def n_rounds(self) -> int:
        """Number of rounds of this run."""
        return self.server.round_index - self.first_round


class RunState(NamedTuple):
    """Complete state of a run after a round, as saved in a checkpoint.

    ``stopping`` is the state of the stopping rule. ``criteria_before`` has, for each exact round,
    the criterion of the iterate before it, which the round yields; ``initial_criterion`` is that of
    the start, NaN if it is unknown or the first round will yield it. A round modifies ``states``,
    ``history``, ``trace`` and ``criteria_before`` in place.
    """

    progress: Progress
    states: States
    history: History
    trace: list[NDArray[Any]]
    stopping: Gains | Sweep
    criteria_before: list[float]
    initial_criterion: float


def initialise(
    solver: Solver,
    problem: Problem,
    start: Start,
    workers: Workers,
    *,
    control_init: ControlInit,
    watched: bool = False,
) -> RunState:
    """Initial state of a run; row 0 of the history has the costs before the first round.

    If ``watched``, the start is evaluated unless rounds will do so. The criterion of the start is
    NaN if it is not needed.
    """
    # In exact rounds, the field does not depend on V, and the first one sets V_i to h_i(Ŝ) if α =
    # 1. With a smaller α, V_i would still be biased towards 0 when later rounds are random.
    needs_controls = not problem.exact or problem.control_step < 1
    model, evaluation, gains = problem.model, None, None
    if isinstance(start.kept, Kept):
        server, states, gains = start.kept
    else:
        server, controls = _first_server(problem, start), problem.vectors.zeros()
        if needs_controls and control_init == "field":
            evaluation = evaluate(problem, server, workers, controls)
            server = server._replace(control=evaluation.mean_field)
            start = _after_fields(problem, start, controls.size)
        states = solver.init(problem, controls)
    if evaluation is None and watched and not problem.exact:
        evaluation = evaluate(problem, server, workers)
    if problem.exact:
        stopping: Gains | Sweep = gains or no_gains(model)
    else:
        stopping = first_sweep(problem, server)
    n_samples = problem.federation.n_samples
    progress = Progress(
        server,
        n_expectations=start.n_passes * n_samples,
        n_samples=n_samples,
        first_round=server.round_index,
    )
    return RunState(
        progress,
        states,
        _first_history(model, start, progress, evaluation if watched else None),
        trace=[model.trace(server.parameters)],
        stopping=stopping,
        criteria_before=[],
        initial_criterion=np.nan if evaluation is None else evaluation.criterion,
    )


def _first_server(problem: Problem, start: Start) -> ServerState:
    """State of the server at a new start, with V = 0."""
    return ServerState(
        round_index=0,
        statistics=start.statistics,
        parameters=start.parameters,
        control=problem.vectors.server_zeros(),
        has_field=start.has_field,
    )


def _after_fields(problem: Problem, start: Start, n_numbers: int) -> Start:
    """The same start, including the costs of the clients' fields, ``n_numbers`` in total."""
    every = np.arange(problem.federation.n_clients)
    n_down = problem.model.downlink_numbers(problem.federation, every, start.parameters)
    start = start.after(FLOAT_BITS * n_numbers, FLOAT_BITS * n_down)
    return start._replace(n_passes=start.n_passes + 1)


def _first_history(
    model: Model, start: Start, progress: Progress, evaluation: Evaluation | None
) -> History:
    """History with row 0: costs before the first round, and the evaluation of the start if any."""
    if evaluation is None:
        evaluated = evaluation_columns(model)
    else:
        evaluated = columns_at(model, progress.server, evaluation)
    history = History()
    history.append(
        round=0,
        epoch=progress.epoch,
        field_sq_norm=np.nan,
        step_size=np.nan,
        n_active=0,
        uplink_bits=start.uplink_bits,
        downlink_bits=start.downlink_bits,
        safeguarded=0,
        **evaluated,
    )
    return history
