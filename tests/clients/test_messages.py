"""What the server's half of a solver sees: the sum of the messages, or each of them."""

import numpy as np
from numpy.testing import assert_allclose

from contracts import assert_same
from places import Places
from problems import SETTINGS, make_problem, model_case, run_rounds
from skfedem._parallel import Workers
from skfedem.clients.local import LocalClients
from skfedem.solvers._loop import Options, run
from skfedem.solvers.fedem import FEDEM
from skfedem.solvers.server import server_half


def half_of_each(problem, server, aggregated, step_size):
    """The server's half of FedEM, which sums the messages itself."""
    weights, total = problem.sizes.weights[aggregated.active], 0.0
    if aggregated.n_active:
        total = weights @ aggregated.each.quantized
        assert aggregated.each.n_bytes == aggregated.n_bytes
    return server_half(problem, server, aggregated._replace(message_sum=total), step_size)


ONE_BY_ONE = FEDEM._replace(aggregates=False, server_half=half_of_each)


def test_messages_one_by_one_are_those_that_are_summed(monkeypatch):
    case = model_case("mixture-full")
    monkeypatch.setattr(type(case.model), "block_rows", 3)  # several groups of clients
    problem = make_problem(case.model, case.federation, SETTINGS["everything"])
    options = Options(step_size=lambda k: 0.05, max_iter=5, tol=0.0, eval_every=2)
    states = []

    def run_with(solver, clients):
        clients.join(solver, problem.task)
        states.append(
            run(problem._replace(solver=solver), case.starts[0], options, clients, lambda row: None)
        )

    for n_jobs, solver in ((1, FEDEM), (1, ONE_BY_ONE), (3, ONE_BY_ONE)):
        with Workers(n_jobs) as workers:
            run_with(solver, LocalClients(case.federation, workers))
    run_with(ONE_BY_ONE, Places(case.federation, [[0, 2, 5], [1, 3, 4]]))
    want, *others = (state.server.statistics for state in states)
    assert_allclose(others[0], want, rtol=0, atol=1e-14)
    for state in states[2:]:
        assert_same(state.server, states[1].server)


def test_a_round_without_clients_has_no_messages():
    case = model_case("mixture-full")
    problem = make_problem(case.model, case.federation, SETTINGS["partial"])
    problem = problem._replace(participation=0.05)
    rounds = [*run_rounds(ONE_BY_ONE, problem, case.federation, case.starts[0], 4)][1:]
    empty = [now.aggregated for now in rounds if not len(now.active)]
    assert empty and all(own.each is None and own.n_bytes == 0 for own in empty)
    assert np.isfinite(rounds[-1].server.control).all()
