"""Stopping rules: by the criterion of exact rounds, by the surrogate of others."""

from typing import NamedTuple

import numpy as np
import pytest

from problems import ragged_clients, stack
from skfedem.compression import Identity
from skfedem.solvers._stopping import (
    StoppingByCriterion,
    first_by_criterion,
    first_by_surrogate,
    next_by_criterion,
    next_by_surrogate,
)
from skfedem.solvers.base import Problem, Task
from skfedem.solvers.fedem import FEDEM
from skfedem.solvers.server import outer_loop_of


def stops(values, steps, tol=0.1, n_quiet=1):
    """After which criteria exact rounds stop, given the steps that led from one to the next."""
    model, stopped = Quadratic(), []
    model.n_quiet = n_quiet
    gains = first_by_criterion(model)
    for value, step_size in zip(values, [*steps, 1.0], strict=True):
        gains = next_by_criterion(gains, value, step_size, model)
        stopped.append(gains.converged(tol))
    return stopped


@pytest.mark.parametrize(("latest", "converged"), [([2e-4, 1e-4], True), ([1e-4, 2e-4], False)])
def test_small_gains_that_grow_do_not_stop_exact_rounds(latest, converged):
    assert StoppingByCriterion(np.array(latest)).converged(1e-3) is converged


def test_exact_rounds_stop_at_the_first_small_change():
    assert stops([-3.0, -2.0, -1.5, -1.45], [1.0] * 3) == [0, 0, 0, 1]
    assert stops([-1.0, -1.5, -1.55], [1.0] * 2) == [0, 0, 1]
    assert stops([-1.0] * 3, [1.0] * 2, tol=0.0) == [0, 0, 0]


def test_short_exact_steps_stop_at_smaller_changes():
    assert stops([-3.0, -2.95, -2.945], [0.1] * 2) == [0, 0, 1]


def test_a_step_that_was_not_taken_does_not_stop_exact_rounds():
    assert stops([-3.0, -2.0, -2.0, -2.0], [1.0, 0.0, 1.0]) == [0, 0, 0, 1]


def test_where_several_changes_have_to_be_small_each_is_judged_by_its_own_step():
    # Changes of 0.005 and 0.04.
    values = [-3.0, -2.995, -2.955]
    assert stops(values, [0.1, 1.0], n_quiet=2) == [0, 0, 1]
    assert stops(values, [1.0, 0.1], n_quiet=2) == [0, 0, 0]


def test_where_several_changes_have_to_be_small_they_must_not_grow():
    for changes, last in (([0.01, 0.05, 0.01], True), ([0.01, 0.05, 0.02], False)):
        values = -3.0 + np.cumsum([0.0, *changes])
        assert stops(values.tolist(), [1.0] * 3, n_quiet=3) == [0, 0, 0, last]


class Quadratic:
    """A model of one number; along a plateau its criterion gains a squared distance."""

    def surrogate(self, statistics, parameters):
        return -((statistics - parameters) ** 2) / 2

    n_quiet = 1

    def change(self, now, before):
        return abs(now - before)


class At(NamedTuple):
    """A server with Ŝ = T(Ŝ)."""

    statistics: float
    round_index: int = 0
    n_restarts: int = 0

    @property
    def parameters(self):
        return self.statistics


def first_stop(moves, step_size, tol=0.01, n_messages=3, n_inner=1, can_restart=False):
    task = Task(Quadratic(), Identity())
    problem = Problem(task, stack(ragged_clients((1, 1, 1))).sizes, FEDEM, n_inner=n_inner)
    server = At(0.0)
    sweep = first_by_surrogate(problem, server)
    for round_number, move in enumerate(moves, start=1):
        server = server._replace(statistics=server.statistics + move, round_index=round_number)
        sweep = next_by_surrogate(sweep, problem, server, step_size, n_messages, tol)
        if can_restart and sweep.unconfirmed:
            server = server._replace(n_restarts=server.n_restarts + 1)
            sweep = sweep._replace(outer_loop=outer_loop_of(problem, server))
        if sweep.converged:
            return round_number
    return None


def test_a_noisy_run_stops_after_three_quiet_sweeps():
    # A sweep is 20 rounds at steps of 0.05.
    assert first_stop([0.0] * 100, step_size=0.05) == 60
    # It has heard from three clients, which takes 30 rounds where one in ten is heard a round.
    assert first_stop([0.0] * 100, step_size=1.0, n_messages=0.1) == 90
    # Steps that are not taken, and rounds that nobody takes part in, say nothing.
    assert first_stop([0.0] * 100, step_size=0.0) is None
    assert first_stop([0.0] * 100, step_size=1.0, n_messages=0) is None
    # Ten steps of 0.1 add up to a little less than 1 in doubles, and are a sweep.
    assert first_stop([0.0] * 100, step_size=0.1) == 30
    # Ten rounds at least, whatever the step.
    assert first_stop([0.0] * 100, step_size=1.0) == 30
    # 0.01 a round is 0.1 a sweep: a gain of 0.01, which is tol itself.
    assert first_stop([0.0101] * 100, step_size=1.0) is None
    assert first_stop([0.0099] * 100, step_size=1.0) == 30


def test_a_lucky_sweep_does_not_stop_a_noisy_run():
    noisy = [0.3] * 10 + [0.0] * 10 + [0.3] * 10 + [0.0] * 20
    assert first_stop(noisy, step_size=1.0) is None
    assert first_stop(noisy + [0.0] * 10, step_size=1.0) == 60
    # A sweep is judged by its ends: what goes there and back again has gained nothing.
    assert first_stop([0.3, -0.3] * 15, step_size=1.0) == 30


def test_a_run_that_reads_all_rows_now_and_then_stops_after_it_has_read_them():
    still = [0.0] * 200
    # A sweep is 10 rounds; the last of the quiet ones is one that began after a pass.
    assert [first_stop(still, 1.0, n_inner=k) for k in (5, 10, 20, 25, 60)] == [30, 30, 30, 40, 70]
    # It can be made at once, where nothing else is lacking.
    assert first_stop(still, 1.0, n_inner=60, can_restart=True) == 40
    assert first_stop([0.0] * 35 + [0.3] * 5 + still, 1.0, n_inner=60, can_restart=True) == 70
    # What the pass at 60 sets going is no convergence, nor what is quiet from then on to the next.
    moved = [0.0] * 60 + [0.3] * 10 + [0.0] * 130
    assert first_stop(moved, 1.0, n_inner=60) == 130
