"""The clients' half of a round, of every solver on every model."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from contracts import assert_same, every_setting, every_setting_of_rows, every_solver, frozen
from places import Lossy
from problems import (
    SETTINGS,
    federation_of,
    first_rounds,
    group_of,
    kept_by,
    make_problem,
    run_rounds,
    weighted_sum,
)
from skfedem._serialization import from_bytes, to_bytes
from skfedem.clients.group import client_half, decoded, encoded
from skfedem.clients.local import LocalClients
from skfedem.models._base import RowModel
from skfedem.solvers.server import broadcast_of


@every_solver
@every_setting
def test_client_half_is_pure(case, solver, setting):
    problem, (_, _, last, *_) = first_rounds(case, solver, setting)
    group = group_of(solver, case.model, case.federation, last, [0, 2, 3])
    broadcast = broadcast_of(problem, last.server)
    model = tuple(vars(case.model).values())
    inputs, before = frozen(group, broadcast, model)
    first = client_half(solver, problem.task, broadcast, group)
    second = client_half(solver, problem.task, broadcast, group)
    for value, was in zip(inputs, before, strict=True):
        assert_array_equal(value, was)
    assert len(inputs) >= 6
    assert_same(second, first)


@every_solver
@every_setting
def test_a_client_does_alone_what_it_does_in_a_group(case, solver, setting, rounding=0.0):
    problem, (_, _, last, *_) = first_rounds(case, solver, setting)
    model, federation, broadcast = case.model, case.federation, broadcast_of(problem, last.server)
    clients = np.array([0, 1, 3, 5])
    group = group_of(solver, model, federation, last, clients)
    together, controls, states = client_half(solver, problem.task, broadcast, group)
    after = {"controls": controls, **states._asdict()}
    n_bytes = n_expectations = 0
    for k, client in enumerate(clients):
        group = group_of(solver, model, federation, last, client)
        alone, controls, states = client_half(solver, problem.task, broadcast, group)
        own = np.arange(len(clients)) == k
        here = model.vectors(federation).submask(clients, own)
        where = dict.fromkeys(solver.per_client, own)
        where |= dict.fromkeys(solver.per_row, np.repeat(own, federation.lengths[clients]))
        assert_same(alone.quantized, together.quantized[here], atol=rounding)
        for name, field in {"controls": controls, **states._asdict()}.items():
            assert_same(field, after[name][where.get(name, here)], atol=rounding)
        if together.log_likelihood is not None:
            one = together.log_likelihood[k : k + 1]
            assert_same(alone.log_likelihood, one, rtol=rounding)
        n_bytes, n_expectations = n_bytes + alone.n_bytes, n_expectations + alone.n_expectations
    assert (n_bytes, n_expectations) == (together.n_bytes, together.n_expectations)


@every_solver
@every_setting
def test_a_client_needs_nobody_elses_rows(case, solver, setting):
    # A node has its own rows, and knows its number among the clients.
    problem, (_, _, last, *_) = first_rounds(case, solver, setting)
    broadcast = broadcast_of(problem, last.server)
    for client in range(6):
        group = group_of(solver, case.model, case.federation, last, client)
        want = client_half(solver, problem.task, broadcast, group)
        alone = federation_of(case.federation, group.clients)
        node = group._replace(federation=alone, clients=np.array([0]))
        got = client_half(solver, problem.task, broadcast, node)
        assert_same(got, want)


def message_of_three(case, solver, setting):
    """Problem, broadcast, clients and message of a later round, and what stood before it."""
    problem, (_, _, last, *_) = first_rounds(case, solver, setting)
    broadcast, clients = broadcast_of(problem, last.server), np.array([0, 2, 3])
    group = group_of(solver, case.model, case.federation, last, clients)
    message, *_ = client_half(solver, problem.task, broadcast, group)
    return problem, broadcast, clients, message, last


@every_solver
@every_setting
def test_what_is_sent_is_what_the_server_reads_and_as_long_as_is_said(case, solver, setting):
    problem, broadcast, clients, message, last = message_of_three(case, solver, setting)
    layout, n_bytes = case.model.vectors(case.federation.sizes), 0
    for k, client in enumerate(clients.tolist()):
        group = group_of(solver, case.model, case.federation, last, client)
        alone, *_ = client_half(solver, problem.task, broadcast, group)
        data = to_bytes(encoded(solver, problem.task, broadcast, alone))
        read = decoded(solver, problem.task, broadcast, layout, client, from_bytes(data))
        assert_same(read, alone)
        own = case.model.vectors(case.federation).submask(clients, np.arange(len(clients)) == k)
        assert_array_equal(read.quantized, message.quantized[own])
        n_bytes += read.n_bytes
    assert message.n_bytes == n_bytes


@every_solver
@every_setting
def test_clients_tell_the_log_likelihood_of_all_their_rows(case, solver, setting):
    problem, broadcast, clients, message, _ = message_of_three(case, solver, setting)
    # Convergence of exact rounds is judged by it; elsewhere it may be left out.
    assert message.log_likelihood is not None or not problem.exact
    if message.log_likelihood is not None:
        estimate = case.model.all_rows(case.federation, broadcast.parameters, clients)
        assert_allclose(message.log_likelihood, estimate.log_likelihood, rtol=1e-12)


@every_solver
@pytest.mark.parametrize("setting", ["compressed", "minibatch", "minibatch-distinct"])
def test_each_round_draws_anew(case, solver, setting):
    # After a first round, in which everyone takes part, so that nobody reads all rows any more.
    problem = make_problem(case.model, case.federation, SETTINGS[setting], n_inner=10)
    *_, now = run_rounds(solver, problem, case.federation, case.starts[0], n_rounds=1)
    group = group_of(solver, case.model, case.federation, now, np.arange(6))
    broadcast = broadcast_of(problem, now.server)
    one, other = (
        client_half(solver, problem.task, told, group)[0].quantized
        for told in (broadcast, broadcast._replace(round_index=broadcast.round_index + 1))
    )
    # Rows are of order 1, and parameters a step of 0.05 from the last: 1e-6 is far from both.
    assert np.abs(one - other).max() > 1e-6


def next_round(solver, task, broadcast, group):
    """Message of a group, and the group afterwards."""
    message, controls, states = client_half(solver, task, broadcast, group)
    return message, group._replace(controls=controls, states=states)


@every_solver
def test_a_client_that_was_away_is_unbiased_when_it_is_back(case, solver):
    # Client 3 has a single row: its minibatches are all rows, and nothing is random.
    problem = make_problem(case.model, case.federation, SETTINGS["minibatch"], n_inner=20)
    *_, now = run_rounds(solver, problem, case.federation, case.starts[0], n_rounds=0)
    broadcast, alone = broadcast_of(problem, now.server), np.array([3])
    rest = np.delete(np.arange(6), alone)
    mine, others = (
        group_of(solver, case.model, case.federation, now, group) for group in (alone, rest)
    )
    assert np.abs(mine.controls).max() > 1e-2
    for round_index in range(13):
        parameters = case.parameters[round_index % len(case.parameters)]
        told = broadcast._replace(round_index=round_index, parameters=parameters)
        _, others = next_round(solver, problem.task, told, others)
        if round_index in (0, 2, 3, 12):  # away for one round, and for eight
            before = mine.controls
            message, mine = next_round(solver, problem.task, told, mine)
            got = message.quantized + before + told.reference
            want = case.model.all_rows(case.federation, parameters, alone).statistics
            # A few additions of numbers of order 10, in each of four rounds.
            assert_allclose(got, want, rtol=0, atol=1e-12)
            assert_allclose(mine.controls, before + message.quantized, rtol=0, atol=1e-12)


@every_solver
@every_setting_of_rows
def test_the_cost_is_the_number_of_rows_that_e_steps_read(row_case, solver, setting, monkeypatch):
    problem, rounds = first_rounds(row_case, solver, setting)
    model, read = type(row_case.model), []

    def counting(e_step):
        def counted(self, natural, features, lengths, *rest):
            read.append(int(np.sum(lengths)))
            return e_step(self, natural, features, lengths, *rest)

        return counted

    monkeypatch.setattr(model, "expectation", counting(model.expectation))
    if model.expected_statistics is not RowModel.expected_statistics:  # which calls the other
        monkeypatch.setattr(model, "expected_statistics", counting(model.expected_statistics))
    for now in rounds[:3]:
        read.clear()
        group = group_of(solver, row_case.model, row_case.federation, now, [0, 2, 3])
        broadcast = broadcast_of(problem, now.server)
        message, *_ = client_half(solver, problem.task, broadcast, group)
        assert message.n_expectations == sum(read) > 0


@every_solver
def test_minibatches_have_no_noise_at_rest_if_the_solver_says_so(case, solver):
    # Told the same parameters again, a client knows its statistics: its differences are 0.
    problem = make_problem(case.model, case.federation, SETTINGS["minibatch"])
    every, start = np.arange(6), case.starts[0]
    *_, now = run_rounds(solver, problem, case.federation, start, 0)
    broadcast = broadcast_of(problem, now.server)
    group = group_of(solver, case.model, case.federation, now, every)
    all_rows = case.model.all_rows(case.federation, broadcast.parameters, every).statistics
    for round_index in range(3):
        told = broadcast._replace(round_index=round_index)
        before = group.controls
        message, group = next_round(solver, problem.task, told, group)
        errors = np.abs(message.quantized + before + told.reference - all_rows)
    assert solver.variance_reduced in (True, False)
    # A few additions of numbers of order 10.
    assert (errors.max() < 1e-12) == solver.variance_reduced


@every_solver
@every_setting
def test_a_round_that_is_not_committed_leaves_no_trace(case, solver, setting):
    problem, undisturbed = first_rounds(case, solver, setting)

    class Interrupted(LocalClients):
        """All clients, each of which computes every round twice, at first without a commit."""

        def round(self, broadcast, active):
            before = self.save()
            kept = frozen(before["controls"], before["states"])
            lost = super().round(broadcast, np.arange(6))
            self.commit(broadcast.round_index - 1)  # of another round
            assert lost.n_active == 6
            for value, was in zip(*kept, strict=True):
                assert_array_equal(value, was)
                value.setflags(write=True)
            assert self.save()["states"] is before["states"]
            return super().round(broadcast, active)

    rounds = run_rounds(
        solver, problem, case.federation, case.starts[0], n_rounds=4, places=Interrupted
    )
    for k, now in enumerate(rounds):
        assert_same(now, undisturbed[k])
    assert k == 4


@every_solver
@every_setting
def test_controls_of_both_sides_agree_when_messages_are_lost(case, solver, setting):
    problem = make_problem(case.model, case.federation, setting, random_estimates=solver.is_random)
    lossy, before, n_lost = [], None, 0

    def places(federation, workers):
        lossy.append(Lossy(federation, workers))
        return lossy[0]

    for now in run_rounds(
        solver, problem, case.federation, case.starts[0], n_rounds=6, places=places
    ):
        pooled = weighted_sum(case.model, case.federation, now.controls)
        assert_allclose(now.server.control, pooled, rtol=0, atol=1e-12)
        if before is not None:
            assert now.aggregated.n_active == len(lossy[0].accepted)
            lost = np.setdiff1d(np.arange(6), lossy[0].accepted)
            n_lost += len(np.intersect1d(lost, now.active))
            for name, was in kept_by(solver, case.model, case.federation, before, lost).items():
                kept = kept_by(solver, case.model, case.federation, now, lost)[name]
                assert_array_equal(kept, was, err_msg=name)
        before = now
    assert n_lost > 6
