"""Where a run stands, all of which a checkpoint holds, and where it begins."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .._bits import FLOAT_BITS
from .._history import History
from ._base import ServerState
from ._evaluation import columns_at, evaluate, evaluation_columns
from ._stopping import Gains, Sweep, first_sweep, no_gains


class Progress(NamedTuple):
    """Where a run stands after a round; ``first_round`` is where its rounds began.

    ``n_expectations`` counts the conditional expectations that were computed so far.
    """

    server: ServerState
    n_expectations: int
    n_samples: int
    converged: bool = False
    first_round: int = 0

    @property
    def epoch(self):
        """Passes over all rows so far: of counts, as shares would not add up to whole ones."""
        return self.n_expectations / self.n_samples

    @property
    def n_rounds(self):
        """Rounds of this run."""
        return self.server.round_index - self.first_round


class RunState(NamedTuple):
    """All that a run needs to go on after a round, and all that a checkpoint holds.

    ``stopping`` is what the stopping rule goes by. ``criteria`` are those that exact rounds have
    yielded; ``begun`` is that of the start, NaN where it is not known or comes with the first
    round. A round changes ``states``, ``history``, ``trace`` and ``criteria`` in place.
    """

    progress: Progress
    states: NamedTuple
    history: History
    trace: list
    stopping: Gains | Sweep
    criteria: list
    begun: float


def initialise(solver, problem, start, workers, *, control_init, watched=False):
    """State that a run begins in; row 0 of the history has what was sent and read before.

    ``watched`` rows have an evaluation where rounds will not give it. The criterion of the start is
    NaN where nothing needs it.
    """
    # In exact rounds the field does not depend on V, and α = 1 sets V_i to h_i(Ŝ) in the first one.
    # With another α, later rounds that are not exact would start from what was left of V_i = 0.
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
        criteria=[],
        begun=np.nan if evaluation is None else evaluation[0],
    )


def _first_history(problem, start, progress, evaluation, n_up):
    """History with row 0: what was sent and read before the first round, and what is seen there.

    ``n_up`` counts the numbers in the fields that clients have sent.
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
    """States of server and clients before the first round, and the evaluation that fields gave."""
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
