"""The same bits for any number of workers, of every solver on every model."""

import threading

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from contracts import (
    assert_same,
    every_setting,
    every_solver,
)
from problems import (
    SETTINGS,
    SOLVERS,
    make_problem,
    many_clients,
    mixture_model,
    mixture_parameters,
    stack,
    start_at,
)
from skfedem import _parallel
from skfedem.clients.local import LocalClients
from skfedem.solvers._loop import Options, run


def run_of(solver, problem, federation, start, options, workers):
    """Run of a solver with the clients in this process."""
    clients = LocalClients(federation, workers)
    clients.join(solver, problem.task)
    return run(problem._replace(solver=solver), start, options, clients, lambda row: None)


def assert_workers_change_nothing(problem, federation, solver, start, numbers):
    """Runs with so many workers, which are sure to work, are those of one, bit for bit."""
    options = Options(step_size=lambda k: 0.05, max_iter=3, tol=0.0, eval_every=2)
    main, threads = threading.get_ident(), set()

    def recorded(*args):
        threads.add(threading.get_ident())
        if threading.get_ident() != main:
            helped.set()
        elif n_jobs > 1:
            helped.wait(60)  # not all of it before the others are awake
        return solver.estimate(*args)

    spied, results = solver._replace(estimate=recorded), []
    for n_jobs in (1, *numbers):
        threads.clear()
        helped = threading.Event()
        with _parallel.Workers(n_jobs) as workers:
            workers._seconds["round"] = np.inf  # the first round, too
            results.append(run_of(spied, problem, federation, start, options, workers))
        assert (len(threads) > 1) == (n_jobs > 1)
    assert_same_runs(results[0], results[1:])


@every_solver
@every_setting
def test_results_are_bitwise_the_same_for_any_number_of_workers(
    case, solver, setting, monkeypatch, threads_always_pay
):
    # At most three rows at a time: groups of a few clients, and the larger ones read in pieces.
    monkeypatch.setattr(type(case.model), "block_rows", 3)
    problem = make_problem(case.model, case.federation, setting)
    assert_workers_change_nothing(problem, case.federation, solver, case.starts[0], (2,))


@every_solver
@pytest.mark.parametrize("setting", ["exact", "everything"])
def test_many_clients_are_bitwise_the_same_for_any_number_of_workers(
    solver, setting, small_blocks, threads_always_pay
):
    federation = stack(many_clients())
    model = mixture_model(federation, "full")
    problem = make_problem(model, federation, SETTINGS[setting])
    start = start_at(model, federation, mixture_parameters(model))
    assert_workers_change_nothing(problem, federation, solver, start, (2, 3))


def assert_same_runs(first, others):
    for other in others:
        assert_same(other.server, first.server)
        assert_array_equal(other.clients["controls"], first.clients["controls"])
        assert_same(other.clients["states"], first.clients["states"])
        want, got = first.history.as_dict(), other.history.as_dict()
        assert got.keys() == want.keys()
        for name, column in want.items():
            assert_array_equal(got[name], column, err_msg=name)


def test_linear_algebra_rounds_the_same_for_any_number_of_workers(threads_always_pay):
    # Large enough for a threaded BLAS to split the products where it is allowed to.
    federation = stack([np.random.default_rng(0).standard_normal((3000, 20))] * 2)
    model = mixture_model(federation, "full", n_components=10)
    problem = make_problem(model, federation)
    start = start_at(model, federation, mixture_parameters(model))
    options = Options(step_size=lambda k: 1.0, max_iter=3, tol=0.0)
    results = []
    for n_jobs in (1, 2):
        with _parallel.Workers(n_jobs) as workers:
            results.append(run_of(SOLVERS["fedem"], problem, federation, start, options, workers))
    assert threads_always_pay == [2, 2]  # the first of three rounds is done alone
    assert_same_runs(results[0], results[1:])
