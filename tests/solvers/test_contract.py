"""Rounds, and the server's half of them, of every solver on every model."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from contracts import assert_same, every_setting, every_solver, frozen
from problems import (
    MODELS,
    SETTINGS,
    first_rounds,
    kept_by,
    make_problem,
    mean_field,
    model_case,
    run_rounds,
    weighted_sum,
)
from skfedem import _parallel
from skfedem._federation import offsets_of, sample_weight_of
from skfedem.clients.local import LocalClients
from skfedem.solvers.messages import AggregatedMessages
from skfedem.solvers.server import broadcast_of, server_half


@every_solver
@every_setting
def test_the_servers_control_is_the_weighted_sum_of_the_clients(case, solver, setting):
    problem, rounds = first_rounds(case, solver, setting)
    before, n_away = None, 0
    for now in rounds:
        pooled = weighted_sum(case.model, case.federation, now.controls)
        assert_allclose(now.server.control, pooled, rtol=0, atol=1e-12)
        if before is not None:
            away = np.setdiff1d(np.arange(case.federation.n_clients), now.active)
            n_away += len(away)
            kept, was = (
                kept_by(solver, case.model, case.federation, x, away) for x in (now, before)
            )
            for name, value in was.items():
                assert_array_equal(kept[name], value, err_msg=name)
        before = now
    assert (n_away > 0) == (problem.inclusion_probability < 1)
    assert np.abs(now.server.control).max() > 1e-3


@every_solver
@pytest.mark.parametrize("control_step", [0.0, 0.3])
def test_clients_move_their_controls_by_the_step_of_the_problem(case, solver, control_step):
    setting = SETTINGS["everything"]
    problem = make_problem(case.model, case.federation, setting, control_step=control_step)
    *_, now = run_rounds(solver, problem, case.federation, case.starts[0], n_rounds=3)
    pooled = weighted_sum(case.model, case.federation, now.controls)
    assert_allclose(now.server.control, pooled, rtol=0, atol=1e-12)


@every_solver
@pytest.mark.parametrize("setting", ["exact", "everything"])
def test_without_controls_rounds_are_those_of_controls_that_stay_zero(case, solver, setting):
    problem = make_problem(case.model, case.federation, SETTINGS[setting], control_step=0.0)
    without = problem._replace(task=problem.task._replace(has_controls=False))
    runs = (
        run_rounds(solver, either, case.federation, case.starts[0], 5, control_init="zeros")
        for either in (problem, without)
    )
    for one, other in zip(*runs, strict=True):
        assert_same(other._replace(controls=one.controls), one)
        assert one.controls.size > other.controls.size == 0
        assert not (one.controls.any() or other.server.control.any())


@every_solver
@pytest.mark.parametrize("setting", ["exact", "minibatch", "everything"])
def test_rounds_with_integer_weights_of_rows_are_those_of_repeated_rows(row_case, solver, setting):
    federation = row_case.federation
    copies = np.random.default_rng(0).integers(1, 4, len(federation.rows))
    of_rows = sample_weight_of(copies.astype(float), federation.offsets)
    weighted = federation._replace(sample_weight=of_rows)
    repeated = federation._replace(
        rows=np.repeat(federation.rows, copies, axis=0), offsets=offsets_of(of_rows.totals)
    )
    runs = (
        run_rounds(
            solver,
            make_problem(row_case.model, rows, SETTINGS[setting]),
            rows,
            row_case.starts[0],
            n_rounds=5,
        )
        for rows in (weighted, repeated)
    )
    for one, other in zip(*runs, strict=True):
        # Sums over 51 rows of numbers of order 10, in another order; far below a level of the
        # operator.
        assert_same(one.server.statistics, other.server.statistics, atol=1e-11)
        assert_allclose(one.server.control, other.server.control, rtol=0, atol=1e-11)


def server_half_of_a_message(case, solver, setting):
    """Problem, the server before, the message, and what the server's half makes of them."""
    problem, (_, last, *_) = first_rounds(case, solver, setting)
    server = last.server._replace(step_limit=np.inf)  # the first step may have been cut
    length = case.model.vectors(case.federation).length
    message = aggregated(0.01 * np.random.default_rng(0).standard_normal(length))
    inputs, before = frozen(server, message, tuple(vars(case.model).values()))
    after, info = server_half(problem, server, message, 0.1)
    again = server_half(problem, server, message, 0.1)
    assert_same(again, (after, info))
    for value, was in zip(inputs, before, strict=True):
        assert_array_equal(value, was)
    return problem, server, message, after, info


def aggregated(message_sum):
    """Messages of six clients with this sum."""
    return AggregatedMessages(message_sum, np.arange(6), n_bytes=0, n_expectations=0)


@every_solver
@every_setting
def test_server_half_is_pure_and_does_what_the_algorithm_says(case, solver, setting):
    problem, before, message, after, info = server_half_of_a_message(case, solver, setting)
    # One expression each, perhaps rounded in another order.
    field = before.control + message.message_sum / problem.inclusion_probability
    assert_allclose(info.field, field, rtol=1e-12, atol=1e-15)
    control = before.control + message.message_sum / (1 + problem.omega)
    assert_allclose(after.control, control, rtol=1e-12, atol=1e-15)
    step = case.model.server_step(before.statistics, field, 0.1, exact=problem.exact)
    assert_same(after.statistics, step.statistics, rtol=1e-12, atol=1e-14)
    assert_same(after.parameters, case.model.maximization(after.statistics), rtol=1e-12, atol=1e-14)
    assert after.round_index == before.round_index + 1
    assert info[1:] == step[1:4]
    shortened = 0.7 * 0.1 if step.safeguarded else np.inf
    noisy = 0.95 * 0.1 if step.noisy else np.inf
    for persistent, limit in ((False, shortened), (True, min(shortened, noisy))):
        other = problem._replace(persistent_noise=persistent)
        after, _ = server_half(other, before, message, 0.1)
        assert_allclose(after.step_limit, limit, rtol=1e-12)


@every_solver
def test_a_step_of_0_moves_nothing_but_the_control(case, solver):
    problem, before, message, moved, _ = server_half_of_a_message(
        case, solver, SETTINGS["compressed"]
    )
    problem = problem._replace(persistent_noise=True)
    after, info = server_half(problem, before, message, 0.0)
    assert after.statistics is before.statistics
    assert_array_equal(after.control, moved.control)
    assert info[1:] == (case.model.field_sq_norm(before.statistics, info.field), 0, 0.0)
    assert after.step_limit == np.inf  # it was not too long


@every_solver
def test_a_round_without_active_clients_follows_the_control(case, solver):
    problem = make_problem(case.model, case.federation, participation=1e-9)
    before, first, second = run_rounds(solver, problem, case.federation, case.starts[0], n_rounds=2)
    sums = first.aggregated
    assert sums.n_active == sums.n_bytes == sums.n_expectations == 0
    assert_array_equal(first.info.field, before.server.control)
    assert_array_equal(second.server.control, before.server.control)
    assert_same(second.states, before.states)
    assert_array_equal(second.controls, before.controls)
    step = case.model.server_step(
        before.server.statistics, before.server.control, 0.05, exact=False
    )
    assert_same(first.server.statistics, step.statistics)
    assert np.abs(before.server.control).max() > 1e-3


# All settings on one model with vectors of one length and on one without.
@every_solver
@pytest.mark.parametrize(
    ("name", "setting"),
    [(name, "everything") for name in MODELS]
    + [
        (name, setting)
        for name in ("mixture-full", "low-rank-poisson")
        for setting in SETTINGS
        if setting not in ("exact", "everything")
    ],
)
def test_the_field_is_unbiased_for_the_mean_field(name, setting, solver):
    case, n_draws, participation = model_case(name), 200, SETTINGS[setting].participation
    model, federation = case.model, case.federation
    problem = make_problem(model, federation, SETTINGS[setting], n_inner=10)
    # Everyone takes part in round 0, so that every estimate is exact or, for variance-reduced
    # solvers, starts from an exact one. Controls and iterate are those of no fixed point.
    everyone = problem._replace(participation=1.0)
    _, now = run_rounds(solver, everyone, federation, case.starts[0], n_rounds=1, step_size=0.2)
    server, share = now.server, problem.inclusion_probability
    fields = np.empty((n_draws, len(server.control)))
    generator = np.random.default_rng(0)
    with _parallel.Workers(1) as workers:
        clients = LocalClients(federation, workers)
        for draw in range(n_draws):
            clients.join(solver, problem.task._replace(seed=draw))
            clients.restore({"controls": now.controls, "states": now.states})
            if isinstance(participation, int):
                active = np.sort(generator.choice(6, participation, replace=False))
            else:
                active = np.flatnonzero(generator.random(6) < participation)
            aggregated = clients.round(broadcast_of(problem, server), active)
            fields[draw] = server.control + aggregated.message_sum / share
    expected = mean_field(model, federation, server)
    standard_error = fields.std(axis=0) / np.sqrt(n_draws)
    assert standard_error.max() > 1e-6
    # At most 28 coordinates, each beyond 5 standard errors once in two million seeds. A coordinate
    # that an operator hardly ever sends, being small, is known from a handful of draws: it gets a
    # share of the largest error.
    error = 5 * np.maximum(standard_error, 0.05 * standard_error.max())
    assert (np.abs(fields.mean(axis=0) - expected) <= error + 1e-12).all()


@every_solver
def test_reordering_clients_changes_nothing_where_nothing_is_drawn(case, solver):
    order = np.array([3, 0, 5, 2, 4, 1])
    model, federation = case.reordered(order)
    straight = run_rounds(
        solver, make_problem(case.model, case.federation), case.federation, case.starts[0], 15, 0.7
    )
    mixed = run_rounds(solver, make_problem(model, federation), federation, case.starts[0], 15, 0.7)
    for one, other in zip(straight, mixed, strict=True):
        assert_same(other.server.statistics, one.server.statistics, atol=1e-10)
        assert_allclose(other.server.control, one.server.control, rtol=0, atol=1e-10)
        for k, client in enumerate(order):
            here = kept_by(solver, model, federation, other, k)["controls"]
            there = kept_by(solver, case.model, case.federation, one, client)["controls"]
            assert_allclose(here, there, rtol=0, atol=1e-10)
