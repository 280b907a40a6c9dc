"""Automatic steps and loops, by the rules of the documentation."""

from math import sqrt

import numpy as np
import pytest
from numpy.testing import assert_allclose

from problems import make_problem, mixture_model, problem_of_alike, ragged_clients, stack
from skfedem.solvers._step_size import (
    MOST_AT_ONCE,
    automatic_n_inner,
    automatic_step_size,
    first_step_size,
    stream_step_size,
)


def test_automatic_steps_are_one_where_rounds_are_exact():
    schedule = automatic_step_size(problem_of_alike()[0])
    assert [schedule(k) for k in (1, 10, 10**6)] == [1.0] * 3


@pytest.mark.parametrize(("batch_size", "persistent_noise"), [(None, False), (3, False), (3, True)])
def test_automatic_steps_shrink_with_noise(batch_size, persistent_noise):
    def first(**changes):
        problem, _ = problem_of_alike(
            batch_size=batch_size, persistent_noise=persistent_noise, **changes
        )
        return first_step_size(problem)

    for noisy in (
        [first(omega=omega) for omega in (0.5, 2.0, 8.0)],
        [first(omega=1.0, participation=p) for p in (1.0, 0.5, 0.1)],
        [first(participation=p) for p in (1.0, 0.5, 0.1)],
        [first(omega=4.0, n_clients=n) for n in (3, 2, 1)],
    ):
        assert 1 >= noisy[0] > noisy[1] > noisy[2] > 0


def test_many_clients_allow_steps_that_control_variates_cannot_follow():
    def first(n_clients):
        return first_step_size(problem_of_alike(n_clients, omega=8.0)[0])

    learning = 1 / 9
    assert first(10) == learning
    assert first(10) < 0.03 * 100 / 8 == first(100)
    assert first(500) == first(1000) == 0.5


@pytest.mark.parametrize("p", [1.0, 0.5, 0.1])
def test_few_clients_step_as_theorem_4_has_it(p):
    # Where n is below ω_p, this is the least of the bounds.
    omega_p = 4 + (1 - p) * 5 / p
    problem, _ = problem_of_alike(n_clients=2, omega=4.0, participation=p)
    expected = p * sqrt(2) / (5 * sqrt(omega_p))
    assert_allclose(first_step_size(problem), expected, rtol=1e-14)


def test_clients_who_count_unlike_are_as_many_as_average_their_messages_as_well():
    # Of 3 and of 1 rows in 4, the mean is as noisy as that of 1 / (9 / 16 + 1 / 16) clients.
    federation = stack(ragged_clients((30, 10)))
    problem = make_problem(mixture_model(federation, "diag"), federation, omega=4.0)
    assert_allclose(first_step_size(problem), sqrt(1.6) / (5 * sqrt(4)), rtol=1e-14)


def test_minibatches_of_clients_who_count_unlike_average_as_those_of_as_many_as_their_messages():
    model, bounds = mixture_model(stack(ragged_clients((10,) * 4)), "diag"), []
    for lengths, batch_size in (((30, 10), 5), ((10,) * 4, 2)):  # 1.6 times 5 rows, and 4 times 2
        federation = stack(ragged_clients(lengths))
        minibatches = federation.sizes, batch_size, 1.0
        bounds.append([model.noise_bound(*minibatches), model.spider_bound(*minibatches)])
    assert_allclose(bounds[0], bounds[1], rtol=1e-14)


@pytest.mark.parametrize(
    ("covariance_type", "known", "factor"),
    [("diag", False, 1), ("tied", False, 5), ("tied", True, 1)],
)
def test_minibatches_step_as_the_documented_rule_has_it(covariance_type, known, factor):
    # Batches of one row, for which these bounds are the least.
    federation = stack(ragged_clients((10,) * 20))
    fixed = np.eye(federation.rows.shape[1]) if known else None
    model = mixture_model(federation, covariance_type, fixed=fixed)
    problem = make_problem(
        model, federation, omega=1.0, participation=0.5, batch_size=1, n_inner=40
    )
    omega_p = 1 + 0.5 * 2 / 0.5
    noise = 0.1 * 20 / (model.n_statistics * (1 + factor * omega_p))
    assert_allclose(first_step_size(problem._replace(persistent_noise=True)), noise, rtol=1e-12)
    spider = 0.1 * sqrt(20 * 0.5 / (40 * (1 + omega_p)))
    assert_allclose(first_step_size(problem), spider, rtol=1e-12)


def test_rounds_of_a_stream_with_few_rows_are_shortened_by_the_variance_of_messages():
    exact, noisy = (problem_of_alike(n_clients=4, n_rows=1, omega=omega)[0] for omega in (0.0, 1.0))
    # 1 + ω times the variance asks for as much shorter steps.
    rows_over_q = 4 / exact.model.n_statistics
    assert_allclose(stream_step_size(exact, 0), rows_over_q, rtol=1e-12)
    assert_allclose(stream_step_size(noisy, 0), rows_over_q / 2, rtol=1e-12)


@pytest.mark.parametrize("changes", [{"n_clients": 4, "n_rows": 1}, {"n_clients": 2, "omega": 4.0}])
def test_a_batch_of_a_stream_steps_by_who_is_there(changes):
    # Weights of all known clients add up to 1; those of the clients in the batch to less.
    alone, _ = problem_of_alike(**changes)
    sizes = alone.sizes._replace(weights=0.25 * alone.sizes.weights)
    beside_others = alone._replace(sizes=sizes, participating_weight=0.25)
    assert stream_step_size(beside_others, 0) == stream_step_size(alone, 0) < 0.5


def test_clients_average_no_more_than_their_rows_do():
    def bound(lengths):
        federation = stack(ragged_clients(lengths))
        return mixture_model(federation, "full").averaging_bound(federation.sizes)

    assert bound((100,) * 8) == bound((200,) * 8) == 0.24
    # 12 statistics of 40 rows.
    assert bound((1,) * 40) == bound((2,) * 20) == 0.15 * 40 / 12 < 0.6


def test_only_noise_that_stays_makes_the_step_decrease():
    reduced = automatic_step_size(problem_of_alike(batch_size=3, omega=1.0)[0])
    all_rows = automatic_step_size(problem_of_alike(omega=1.0)[0])
    for schedule in (reduced, all_rows):
        assert len({schedule(k) for k in (1, 100, 10**6)}) == 1
    noisy, _ = problem_of_alike(batch_size=3, omega=1.0, persistent_noise=True)
    schedule = automatic_step_size(noisy)
    steps = np.array([schedule(k) for k in range(1, 200001)])
    assert (np.diff(steps) <= 0).all()
    assert steps[-1] < 0.5 * steps[0]
    # They are held until their sum is 5.
    rounds = steps[0] * np.arange(1, 200001) / 5
    assert_allclose(steps / steps[0], np.where(rounds < 1, 1.0, rounds**-0.7), rtol=1e-12)
    # Robbins and Monro: their sum diverges, that of their squares does not. Over a factor of 4 in
    # the rounds, a power -0.7 gives the sum a factor 4^0.3 in the tail, and steps one of 4^-0.7.
    assert_allclose(steps[-1] / steps[len(steps) // 4 - 1], 4**-0.7, rtol=1e-3)


def test_automatic_loops_balance_passes_and_minibatches():
    # Appendix E.2: (1 + ω) √(m / 2) rounds; a client that is half of the time away needs twice.
    assert automatic_n_inner(10, 10 * 200, omega=0.0, participation=1.0) == 10
    assert automatic_n_inner(10, 10 * 200, omega=1.5, participation=1.0) == 25
    assert automatic_n_inner(10, 10 * 200, omega=1.5, participation=0.5) == 50
    assert automatic_n_inner(10, 10, omega=0.0, participation=1.0) == 1
    # Infinitely many in floating point.
    assert automatic_n_inner(10, 10, omega=0.0, participation=1e-320) == MOST_AT_ONCE
