"""State of a run, which is what a checkpoint saves, and its initialisation."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .._bits import FLOAT_BITS
from .._history import History
from ._base import ServerState
from ._evaluation import columns_at, evaluate, evaluation_columns
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
    def epoch(self):
        """Number of passes over all rows so far, from counts, which add up without rounding."""
        return self.n_expectations / self.n_samples

    @property
    def n_rounds(self):
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
    states: NamedTuple
    history: History
    trace: list
    stopping: Gains | Sweep
    criteria_before: list
    initial_criterion: float


def initialise(solver, problem, start, workers, *, control_init, watched=False):
    """Initial state of a run; row 0 of the history has the costs before the first round.

    If ``watched``, the start is evaluated unless rounds will do so. The criterion of the start is
    NaN if it is not needed.
    """
    # In exact rounds, the field does not depend on V, and the first one sets V_i to h_i(Ŝ) if α =
    # 1. With a smaller α, V_i would still be biased towards 0 when later rounds are random.
    needs_controls = not problem.exact or problem.control_step < 1
    sends_fields = needs_controls and start.kept is None and control_init == "field"
    server, states, evaluation = _first_states(solver, problem, start, workers, sends_fields)
    if evaluation is None and watched and not problem.exact:
        evaluation = evaluate(problem, server, workers)
    n_samples = problem.federation.n_samples
    progress = Progress(
        server,
        n_expectations=(start.n_passes + int(sends_fields)) * n_samples,
        n_samples=n_samples,
        first_round=server.round_index,
    )
    if problem.exact:
        before = start.kept.gains if start.kept else None
        stopping = before or no_gains(problem.model)
    else:
        stopping = first_sweep(problem, server)
    seen, n_up = evaluation if watched else None, states.controls.size if sends_fields else 0
    return RunState(
        progress,
        states,
        _first_history(problem, start, progress, seen, n_up),
        trace=[problem.model.trace(server.parameters)],
        stopping=stopping,
        criteria_before=[],
        initial_criterion=np.nan if evaluation is None else evaluation[0],
    )


def _first_history(problem, start, progress, evaluation, n_up):
    """History with row 0: costs before the first round, and the evaluation of the start.

    ``n_up`` is the total number of values in the fields that clients have sent.
    """
    model, server, n_down = problem.model, progress.server, 0
    if n_up:
        every = np.arange(problem.federation.n_clients)
        n_down = model.downlink_numbers(problem.federation, every, server.parameters)
    seen = evaluation_columns(model)
    if evaluation is not None:
        seen = columns_at(model, server, *evaluation)
    history = History()
    history.append(
        round=0,
        epoch=progress.epoch,
        field_sq_norm=np.nan,
        step_size=np.nan,
        n_active=0,
        uplink_bits=start.uplink_bits + FLOAT_BITS * n_up,
        downlink_bits=start.downlink_bits + FLOAT_BITS * n_down,
        safeguarded=0,
        **seen,
    )
    return history


def _first_states(solver, problem, start, workers, sends_fields):
    """Initial states of server and clients, and the evaluation that the fields yield."""
    if start.kept is not None:
        return start.kept.server, start.kept.states, None
    controls, evaluation = problem.vectors.zeros(), None
    server = ServerState(
        0,
        start.statistics,
        start.parameters,
        problem.vectors.server_zeros(),
        has_field=start.has_field,
    )
    if sends_fields:
        evaluation = evaluate(problem, server, workers, controls)
        _, mean_field = evaluation
        server = server._replace(control=mean_field)
    return server, solver.init(problem, controls), evaluation
