"""Rows, random streams, participation, minibatches, workers, stopping rules and the history."""

from collections import Counter
from hashlib import sha256
from itertools import pairwise
from math import comb
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from problems import ragged_clients, stack
from skfedem._federation import (
    client_groups,
    draw_minibatches,
    fingerprint,
    offsets_of,
    read,
    sample_weight_of,
)
from skfedem._history import History
from skfedem.compression import Identity
from skfedem.solvers._stopping import (
    CriterionGains,
    first_sweep,
    next_gains,
    next_sweep,
    no_gains,
)
from skfedem.solvers.base import Problem, Task, outer_loop_of

LARGEST_UNIFORM = 1 - 2.0**-53

# ---- rows and offsets


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 12), max_size=30), st.integers(1, 20), st.integers(1, 6))
def test_groups_cover_the_clients_within_their_bounds(lengths, n_rows, n_clients):
    found = client_groups(offsets_of(np.array(lengths, dtype=int)), n_rows, n_clients)
    assert [k for group in found for k in range(group.start, group.stop)] == list(
        range(len(lengths))
    )
    for group in found:
        size = group.stop - group.start
        assert 1 <= size <= n_clients
        assert size == 1 or sum(lengths[group]) <= n_rows
    # And no shorter than need be.
    for first, second in pairwise(found):
        one_more = sum(lengths[first]) + lengths[second.start]
        assert one_more > n_rows or first.stop - first.start == n_clients


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.data())
def test_read_gives_each_row_of_the_clients_once(data):
    lengths = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=12))
    chosen = data.draw(st.sets(st.integers(0, len(lengths) - 1), min_size=1))
    n_rows = data.draw(st.integers(1, 25))
    offsets = offsets_of(lengths)
    rows = np.arange(offsets[-1])[:, None]
    federation = stack(np.split(rows, offsets[1:-1]))
    clients = np.array(sorted(chosen))
    got = {int(client): [] for client in clients}
    for reading in read(federation, clients, n_rows):
        assert len(reading.rows) == reading.lengths.sum()
        assert len(reading.rows) <= n_rows
        own = np.split(reading.rows[:, 0], np.cumsum(reading.lengths)[:-1])
        for client, piece in zip(clients[reading.group], own, strict=True):
            got[int(client)].extend(piece.tolist())
    for client, piece in got.items():
        assert piece == list(range(offsets[client], offsets[client + 1]))


def test_neighbouring_clients_are_read_without_a_copy():
    federation = stack(ragged_clients((3, 1, 5, 2)))
    (reading,) = read(federation, np.array([1, 2]), 100)
    assert np.shares_memory(reading.rows, federation.rows)


# ---- minibatches


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 15), min_size=1, max_size=8), st.data())
def test_minibatches_hold_rows_of_their_client(lengths, data):
    lengths = np.array(lengths)
    replacement = data.draw(st.booleans())
    size = data.draw(st.integers(1, 20 if replacement else int(lengths.min())))
    edges = st.sampled_from([0.0, 0.5, LARGEST_UNIFORM])
    uniform = st.one_of(edges, st.floats(0, LARGEST_UNIFORM))
    uniforms = np.array(
        data.draw(
            st.lists(
                st.lists(uniform, min_size=size, max_size=size),
                min_size=len(lengths),
                max_size=len(lengths),
            )
        )
    )
    batches = draw_minibatches(uniforms, lengths, replacement=replacement)
    assert batches.shape == (len(lengths), size)
    assert (batches >= 0).all() and (batches < lengths[:, None]).all()
    if not replacement:
        assert all(len(set(batch)) == size for batch in batches.tolist())


@pytest.mark.parametrize("length", [3, 1000, 2**20 - 1, 2**40 - 1, 2**40])
def test_the_largest_uniform_is_a_row_of_the_client(length):
    batch = draw_minibatches(np.array([[LARGEST_UNIFORM]]), np.array([length]), replacement=True)
    assert batch[0, 0] == length - 1


def test_without_replacement_every_subset_is_as_likely():
    n_draws, length, size = 20000, 5, 3
    uniforms = np.random.default_rng(0).random((n_draws, size))
    batches = draw_minibatches(uniforms, np.full(n_draws, length), replacement=False)
    counts = Counter(map(frozenset, batches.tolist()))
    assert len(counts) == comb(length, size)
    expected = n_draws / comb(length, size)
    # Five standard deviations of a count of 2000.
    assert all(abs(count - expected) < 5 * np.sqrt(expected) for count in counts.values())


def test_with_replacement_every_row_is_as_likely():
    n_draws, length = 8000, 5
    uniforms = np.random.default_rng(0).random((n_draws, 2))
    batches = draw_minibatches(uniforms, np.full(n_draws, length), replacement=True)
    counts = np.bincount(batches[:, 0] * length + batches[:, 1])
    expected = n_draws / length**2
    assert len(counts) == length**2
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected)).all()


def test_a_minibatch_does_not_depend_on_the_other_clients():
    lengths, uniforms = np.array([4, 9, 6]), np.random.default_rng(0).random((3, 4))
    for replacement in (True, False):
        together = draw_minibatches(uniforms, lengths, replacement=replacement)
        for k in range(3):
            alone = draw_minibatches(
                uniforms[k : k + 1], lengths[k : k + 1], replacement=replacement
            )
            assert_array_equal(alone[0], together[k])


# ---- stopping rules


def stops(values, steps, tol=0.1, n_quiet=1):
    """After which criteria exact rounds stop, given the steps that led from one to the next."""
    model, stopped = Quadratic(), []
    model.n_quiet = n_quiet
    gains = no_gains(model)
    for value, step_size in zip(values, [*steps, 1.0], strict=True):
        gains = next_gains(gains, value, step_size, model)
        stopped.append(gains.converged(tol))
    return stopped


@pytest.mark.parametrize(("latest", "converged"), [([2e-4, 1e-4], True), ([1e-4, 2e-4], False)])
def test_small_gains_that_grow_do_not_stop_exact_rounds(latest, converged):
    assert CriterionGains(np.array(latest)).converged(1e-3) is converged


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
    problem = Problem(task, stack(ragged_clients((1, 1, 1))).sizes, n_inner=n_inner)
    server = At(0.0)
    sweep = first_sweep(problem, server)
    for round_number, move in enumerate(moves, start=1):
        server = server._replace(statistics=server.statistics + move, round_index=round_number)
        sweep = next_sweep(sweep, problem, server, step_size, n_messages, tol)
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


# ---- history


def test_a_long_history_is_cut_and_goes_on():
    history = History()
    for k in range(200):
        history.append(round=k, field_sq_norm=k / 2)
    history.keep(150)
    history = History.of_dict(history.as_dict())
    before = history.as_dict()
    for k in range(150, 400):
        history.append(round=k, field_sq_norm=np.nan)
        history.update(k, field_sq_norm=k / 2)
    columns = history.as_dict()
    assert_array_equal(columns["round"], range(400))
    assert_array_equal(columns["field_sq_norm"], np.arange(400) / 2)
    assert history.column("round")[-2:] == [398, 399]
    assert_array_equal(before["round"], range(150))  # a copy
    with pytest.raises(KeyError, match="field_sq_norm"):
        history.append(round=400)
    assert history.row(-1)["round"] == 399


def test_history_keeps_one_column_a_name():
    history = History()
    history.append(round=0, field_sq_norm=np.nan, n_active=0)
    history.append(round=1, field_sq_norm=0.5, n_active=3)
    history.update(0, field_sq_norm=2)
    history.update(-1, n_active=4)
    assert history.row(-1) == {"round": 1, "field_sq_norm": 0.5, "n_active": 4}
    columns = history.as_dict()
    assert columns["round"].dtype == columns["n_active"].dtype == np.int64
    assert columns["field_sq_norm"].dtype == np.float64
    assert_allclose(columns["field_sq_norm"], [2.0, 0.5])
    assert_array_equal(history.column("n_active"), [0, 4])


def test_fingerprints_know_the_rows_of_clients_and_their_weights():
    clients = ragged_clients((4, 1, 3))
    fingerprints = {fingerprint(stack(clients))}
    for client, row in [(0, 0), (0, -1), (1, 0), (2, -1)]:
        changed = [rows.copy() for rows in clients]
        changed[client][row, 1] += 1e-9
        fingerprints.add(fingerprint(stack(changed)))
    federation = stack(clients)
    for weights in (np.arange(1.0, 9), np.arange(8.0, 0, -1)):
        of_rows = sample_weight_of(weights, federation.offsets)
        fingerprints.add(fingerprint(federation._replace(sample_weight=of_rows)))
    assert len(fingerprints) == 7


def test_a_fingerprint_is_that_of_little_endian_rows_on_any_machine():
    federation = stack(ragged_clients((4, 1, 3)))
    little = sha256(federation.rows.astype("<f8").tobytes()).hexdigest()
    for order in "<>":
        rows = federation.rows.astype(f"{order}f8")
        assert fingerprint(federation._replace(rows=rows)) == little


def test_counts_of_a_history_are_integers():
    counts = ("round", "n_active", "uplink_bits", "downlink_bits", "safeguarded")
    history = History()
    history.append(**dict.fromkeys(counts, 2**53 + 1), step_size=0.5)
    for columns in (history.as_dict(), History.of_dict(history.as_dict()).as_dict()):
        for name in counts:
            assert columns[name].dtype == np.int64 and columns[name][0] == 2**53 + 1
        assert columns["step_size"].dtype == np.float64
