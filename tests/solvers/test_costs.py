"""What is counted: bytes, expectations, evaluations."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.exceptions import ConvergenceWarning

from problems import (
    SETTINGS,
    SOLVERS,
    Setting,
    group_of,
    make_problem,
    mixture_model,
    mixture_parameters,
    model_case,
    ragged_clients,
    run_rounds,
    stack,
    start_at,
)
from skfedem import FederatedGaussianMixture
from skfedem.clients.group import client_half, compress
from skfedem.compression import Dithering
from skfedem.solvers.base import Broadcast
from skfedem.solvers.server import broadcast_of

every_solver = pytest.mark.parametrize("solver", SOLVERS)


@every_solver
@pytest.mark.parametrize("setting", [name for name in SETTINGS if name != "exact"])
def test_bytes_are_those_of_the_encoded_messages(solver, setting):
    case = model_case("mixture-diag")
    problem = make_problem(case.model, case.federation, SETTINGS[setting])
    start = start_at(case.model, case.federation, case.parameters[0])
    *_, last = run_rounds(SOLVERS[solver], problem, case.federation, start, n_rounds=2)
    # As they are: otherwise the server has them in other units than were encoded.
    broadcast = broadcast_of(problem, last.server)._replace(message_units=None)
    group = group_of(SOLVERS[solver], case.model, case.federation, last, np.arange(6))
    message, *_ = client_half(SOLVERS[solver], problem.task, broadcast, group)
    encoded = [problem.task.compressor.encode(vector) for vector in message.quantized]
    assert message.n_bytes == sum(map(len, encoded))
    for data, vector in zip(encoded, message.quantized, strict=True):
        assert_array_equal(problem.task.compressor.decode(data, len(vector)), vector)


def test_expectations_are_those_of_the_algorithms():
    # Clients of 8 rows, minibatches of 3. VR-FedEM reads all rows once in three rounds and
    # evaluates a minibatch at two iterates in the others.
    federation = stack(ragged_clients((8, 8, 8)))
    model = mixture_model(federation, "tied")
    setting = Setting(Dithering(omega=1.0), batch_size=3)
    problem = make_problem(model, federation, setting, n_inner=3)
    start = start_at(model, federation, mixture_parameters(model))
    counts = {
        name: [
            now.aggregated.n_expectations
            for now in run_rounds(solver, problem, federation, start, 6, 1e-3)
            if now.aggregated
        ]
        for name, solver in SOLVERS.items()
    }
    assert counts == {"fedem": [9] * 6, "vr_fedem": [24, 18, 18, 24, 18, 18]}


def test_a_client_that_was_away_refreshes_when_it_is_back():
    federation = stack(ragged_clients((8,) * 5))
    model = mixture_model(federation, "tied")
    setting = Setting(participation=0.5, batch_size=3)
    problem = make_problem(model, federation, setting, n_inner=4, seed=3)
    start = start_at(model, federation, mixture_parameters(model))
    last_loop = np.full(5, -1)
    late = 0
    rounds = run_rounds(SOLVERS["vr_fedem"], problem, federation, start, 16, step_size=1e-3)
    for k, now in enumerate(rounds, start=-1):
        if now.aggregated is None:
            continue
        refreshing = last_loop[now.active] != k // 4
        late += (refreshing & (k % 4 > 0)).sum()
        expected = 8 * refreshing.sum() + 6 * (~refreshing).sum()
        assert now.aggregated.n_expectations == expected
        last_loop[now.active] = k // 4
    assert late > 3


def test_evaluations_are_of_the_state_of_their_row():
    params = {"omega": 1.0, "participation": 0.6, "step_size": 0.02, "tol": 0.0, "random_state": 0}
    clients = ragged_clients()
    with pytest.warns(ConvergenceWarning, match="Not converged"):
        longest = FederatedGaussianMixture(2, eval_every=1, max_iter=8, **params).fit(clients)
        for max_iter in (1, 4, 8):
            fit = FederatedGaussianMixture(2, max_iter=max_iter, **params).fit(clients)
            value = longest.history_["log_likelihood"][max_iter]
            assert_allclose(value, fit.score(clients), rtol=1e-10)


@pytest.mark.parametrize(
    ("size", "says"),
    [
        (1e308, r"messages of moderate size in round 8, got 1e\+308: .* that Dithering"),
        (np.inf, r"^Expected messages of moderate size in round 8, got inf: .* that Dithering.*"),
        (np.nan, "^Expected finite values, got 1 NaN"),
    ],
)
def test_messages_beyond_all_measure_are_those_of_a_wrong_operator(size, says):
    # With a wrong sign, say, control variates grow from round to round. NaN comes of a model.
    case = model_case("mixture-full")
    problem = make_problem(case.model, case.federation, SETTINGS["compressed"])
    broadcast = Broadcast(7, 0, 0.0, case.parameters[0])
    *_, now = run_rounds(SOLVERS["fedem"], problem, case.federation, case.starts[0], 0)
    group = group_of(SOLVERS["fedem"], case.model, case.federation, now, np.arange(6))
    innovations = np.zeros_like(now.controls)
    innovations[3, 1] = size
    with pytest.raises(ValueError, match=says):
        compress(problem.task, broadcast, group, innovations)
