"""Steps that are too noisy to be repeated, and rare components."""

import copy
from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from problems import (
    COVARIANCE_TYPES,
    SOLVERS,
    make_problem,
    mixture_model,
    mixture_parameters,
    ragged_clients,
    stack,
    start_at,
)
from skfedem import FederatedGaussianMixture
from skfedem.models.mixture import gaussian_mixture
from skfedem.solvers import _from_parameters
from skfedem.solvers.base import ServerState
from skfedem.solvers.messages import AggregatedMessages
from skfedem.solvers.server import server_half

every_solver = pytest.mark.parametrize("solver", SOLVERS)

not_converged = pytest.mark.filterwarnings(
    "ignore:Not converged:sklearn.exceptions.ConvergenceWarning"
)


def test_a_step_is_noisy_if_many_like_it_would_leave_the_domain():
    # Steps of γ that take a share δ of a mass add up to δ / sqrt(2γ) of it; 0.6 is too much.
    federation = stack(ragged_clients((30, 20)))
    model = mixture_model(federation, "diag", 2)
    statistics = start_at(model, federation, mixture_parameters(model)).statistics
    step_size = 1e-4
    for share, noisy in ((0.59, False), (0.61, True), (-1.0, False)):
        # A step towards data may take γ of it.
        taken = step_size + share * np.sqrt(2 * step_size)
        field = np.zeros((2, model.n_functions))
        field[0] = -taken / step_size * statistics.reshape(2, -1)[0]
        step = model.server_step(statistics, field.ravel(), step_size, exact=False)
        assert (step.noisy, step.safeguarded, step.step_taken) == (noisy, 0, step_size)


def after_noise(step_size, persistent_noise=True, step_limit=np.inf):
    """Server after a step along a field that takes 90 times a component's statistics away."""
    federation = stack(ragged_clients((30, 20)))
    model = mixture_model(federation, "diag", 2)
    start = start_at(model, federation, mixture_parameters(model))
    problem = make_problem(model, federation, omega=1.0, persistent_noise=persistent_noise)
    field = np.zeros((2, model.n_functions))
    field[0] = -90 * start.statistics.reshape(2, -1)[0]
    server = ServerState(
        0, start.statistics, start.parameters, np.zeros(model.n_statistics), step_limit
    )
    aggregated = AggregatedMessages(field.ravel(), np.arange(2), 0, 0)
    return server_half(problem, server, aggregated, step_size)


# Of 90 times a mass, 0.6 sqrt(2 / γ) times it is too much for such steps to add up.
NOISY_STEP = 1e-4


@pytest.mark.parametrize("persistent_noise", [True, False])
def test_a_noisy_step_limits_those_that_follow_only_if_noise_is_persistent(persistent_noise):
    after, info = after_noise(NOISY_STEP, persistent_noise)
    assert info.step_taken == NOISY_STEP
    assert after.step_limit == (0.95 * NOISY_STEP if persistent_noise else np.inf)


@pytest.mark.parametrize("step_size", [NOISY_STEP, 1.0])
def test_a_given_step_above_the_limit_of_automatic_ones_does_not_raise_it(step_size):
    after, info = after_noise(step_size, step_limit=1e-5)
    assert (info.step_taken < step_size) == (step_size == 1.0)
    assert after.step_limit == 1e-5


def test_a_step_that_only_rare_components_cannot_stand_is_not_noisy():
    federation = stack(ragged_clients((30, 20)))
    model = mixture_model(federation, "diag", 2)
    _, means, covariances = mixture_parameters(model)[:3]
    for weight, noisy in ((9e-4, False), (1.1e-3, True)):
        parameters = model.parameters(np.array([weight, 1 - weight]), means, covariances)
        statistics = model.statistics_of(parameters)
        # At most γ + 0.6 √(2 γ) of a mass may be lost, here 0.0086.
        field = np.where(np.arange(len(statistics)) < model.n_functions, -100.0, 0.0) * statistics
        step = model.server_step(statistics, field, 1e-4, exact=False)
        assert (step.noisy, step.safeguarded, step.step_taken) == (noisy, 0, 1e-4)


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_a_component_that_hardly_any_row_has_waits_alone(covariance_type):
    federation = stack(ragged_clients((30, 20)))
    model = mixture_model(federation, covariance_type, 2)
    weights, means, covariances = mixture_parameters(model)[:3]
    for weight, waits in ((9e-4, True), (1.1e-3, False)):
        parameters = model.parameters(np.array([weight, 1 - weight]), means, covariances)
        statistics = model.statistics_of(parameters)
        field = 0.01 * statistics
        field[: model.n_functions] = -30 * statistics[: model.n_functions]  # its mass would be < 0
        step = model.server_step(statistics, field, 0.1, exact=False)
        if waits:
            assert (step.safeguarded, step.step_taken) == (1, 0.1)
            assert_array_equal(
                step.statistics[: model.n_functions], statistics[: model.n_functions]
            )
            # One expression, perhaps rounded in another order.
            there = 1.001 * statistics[model.n_functions :]
            assert_allclose(step.statistics[model.n_functions :], there, rtol=1e-14)
        else:
            assert step.safeguarded > 1 > step.step_taken / 0.1
    assert weights.min() > 1e-3


@pytest.mark.filterwarnings("ignore:Steps left the domain:sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore:Components .* ended with a weight of less than half a row")
@pytest.mark.parametrize("covariance_type", ["full", "diag", "spherical"])
@pytest.mark.filterwarnings("ignore:The variance of")
def test_a_component_too_many_does_not_hold_up_the_others(covariance_type):
    # Two answers of three kinds: nine distinct rows, and three components that die. They used to
    # shorten all automatic steps, to 1e-4 of the first, and the fit stayed 2 nats below.
    answers = np.random.default_rng(0).integers(0, 3, size=(300, 2)).astype(float)
    clients = np.arange(300) % 6
    gm = FederatedGaussianMixture(12, covariance_type=covariance_type, random_state=0)
    exact = clone(gm).fit(answers, clients=clients)
    fit = gm.set_params(omega=1.0, max_iter=400).fit(answers, clients=clients)
    assert fit.converged_ and fit.history_["safeguarded"].any()
    assert fit.history_["step_size"][-1] > 0.3 * fit.history_["step_size"][1]
    assert fit.score(answers) > exact.score(answers) - 0.01


@pytest.mark.parametrize(
    ("covariance_type", "units"),
    [
        ("full", [1e-6, 1, 1]),
        ("tied", [1e-6, 1, 1]),
        ("diag", [1e-8] * 3),
        ("spherical", [1e-8] * 3),
        ("full", [1e-140] * 3),
    ],
)
def test_messages_know_nothing_of_reg_covar(units, covariance_type):
    # In units of covariances of which it is most, noise was large beside all that clients say.
    rng = np.random.default_rng(0)
    kinds = rng.integers(3, size=600)
    rows = (4 * rng.normal(size=(3, 3)))[kinds] + rng.normal(size=(600, 3))
    rows, clients = rows * units, np.arange(600) % 8
    gm = FederatedGaussianMixture(3, covariance_type=covariance_type, random_state=0)
    gm.set_params(means_init=[rows[kinds == k][0] for k in range(3)])
    drift = gm.fit(rows, clients=clients).client_drift_
    gm.set_params(omega=1.0, participation=0.5, max_iter=300).fit(rows, clients=clients)
    assert gm.history_["safeguarded"].sum() <= 2
    # Control variates still learn; the drift was 5 to 1e6 times as large, or infinite.
    assert_allclose(gm.client_drift_.mean(), drift.mean(), rtol=0.5)


EXACT_ROUNDS = {"omega": 0.0, "participation": 1.0, "batch_size": None}


def needles(seed):
    """Rows of two narrow clusters that cross, and a start."""
    generator = np.random.default_rng(seed)
    needle = generator.normal(size=(1200, 2)) * [2.0, 0.1]
    rows = np.where(generator.integers(2, size=(1200, 1)), needle, needle[:, ::-1])
    return rows, start_of([0.5, 0.5], [[0.1, 0], [0, 0.1]])


def with_a_rare_cluster(seed, n_rows):
    """1,200 rows, a few of which are a small cluster far from the others, and a start."""
    rows = np.random.default_rng(seed).normal(size=(1200, 2))
    rows[:n_rows] = 8 + 0.1 * rows[:n_rows]
    return rows, start_of([0.99, 0.01], [[0, 0], [8, 8]])


def start_of(weights, means):
    precisions = [np.eye(2)] * 2
    return {"weights_init": weights, "means_init": means, "precisions_init": precisions}


SIX_CLIENTS = np.arange(1200) % 6

NOISY = {"omega": 1.0, "participation": 0.5, "batch_size": 10, "tol": 0}


@not_converged
@pytest.mark.parametrize("rows_of", [needles, partial(with_a_rare_cluster, n_rows=12)])
@pytest.mark.parametrize("seed", [0, 1])
def test_compression_spares_narrow_and_rare_components(rows_of, seed):
    # In standard units, where they drown in its noise, 0.05 to 0.6 nats were missing.
    rows, start = rows_of(seed)
    pooled = FederatedGaussianMixture(2, max_iter=2000, tol=1e-9, **start).fit(rows)
    gm = FederatedGaussianMixture(2, **NOISY, **start, max_iter=300, random_state=seed)
    assert gm.fit(rows, clients=SIX_CLIENTS).score(rows) > pooled.score(rows) - 0.01
    # The first steps may be too long for twelve rows.
    assert np.mean(gm.history_["safeguarded"] > 0) < 0.01


def long_run_with_three_rare_rows():
    """Rows, a start, and a run of 2000 noisy rounds."""
    rows, start = with_a_rare_cluster(0, n_rows=3)
    gm = FederatedGaussianMixture(2, **NOISY, **start, max_iter=2000, random_state=0)
    return rows, start, gm.set_params(eval_every=1000).fit(rows, clients=SIX_CLIENTS)


@not_converged
@pytest.mark.slow
def test_noise_that_adds_up_does_not_destroy_rare_components():
    # Three rows, and hardly any single step leaves the domain: in the end many would.
    rows, start, gm = long_run_with_three_rare_rows()
    pooled = FederatedGaussianMixture(2, max_iter=2000, tol=1e-9, **start).fit(rows)
    assert np.mean(gm.history_["safeguarded"] > 0) < 0.01
    steps = gm.history_["step_size"][1:]
    assert steps[-1] < 0.5 * steps[0] * (2000 * steps[0] / 5) ** -0.7  # the plan
    gaps = pooled.score(rows) - gm.history_["log_likelihood"][[0, 1000, 2000]]
    assert gaps[0] > 20 * gaps[1] > 0 and gaps[0] > 20 * gaps[2] > 0


@not_converged
@pytest.mark.slow
def test_the_limit_of_steps_does_not_add_to_their_decrease(monkeypatch):
    # A fifth of the automatic steps, none of which leaves the domain.
    bounds = gaussian_mixture._STEP_BOUNDS._replace(noise=0.02)
    monkeypatch.setattr(gaussian_mixture, "_STEP_BOUNDS", bounds)
    _, _, gm = long_run_with_three_rare_rows()
    assert not gm.history_["safeguarded"].any()
    steps = gm.history_["step_size"][1:]
    planned = steps[0] * np.maximum(1.0, np.arange(1, 2001) * steps[0] / 5) ** -0.7
    limits = np.minimum.accumulate(steps)
    assert_array_equal(steps, limits)
    limited = steps < planned * (1 - 1e-12)
    assert limited.any() and planned[limited].min() < 0.9 * steps[0]
    assert set((steps[1:] / steps[:-1])[limited[1:] & limited[:-1]].round(12)) <= {1.0, 0.95}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@every_solver
def test_a_solver_is_known_by_what_it_says_of_itself(solver, monkeypatch):
    monkeypatch.setitem(_from_parameters.SOLVERS, "another", _from_parameters.SOLVERS[solver])
    rows, start = with_a_rare_cluster(0, n_rows=3)
    gm = FederatedGaussianMixture(2, **NOISY, **start, random_state=0, eval_every=None)
    steps = [
        clone(gm).set_params(solver=name, max_iter=200).fit(rows, clients=SIX_CLIENTS).history_
        for name in (solver, "another")
    ]
    assert_array_equal(*(history["step_size"] for history in steps))
    # Minibatches of FedEM are too much for them.
    assert (steps[0]["step_size"][-1] < steps[0]["step_size"][1]) == (solver == "fedem")


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_limit_of_steps_ends_with_the_noise_that_made_it():
    rows, start = with_a_rare_cluster(0, n_rows=3)
    gm = FederatedGaussianMixture(2, **NOISY, **start, random_state=0, eval_every=None)
    gm.set_params(max_iter=600).fit(rows, clients=SIX_CLIENTS)
    first, last = gm.history_["step_size"][[1, -1]]
    assert last < 0.8 * first

    def next_step(**parameters):
        again = copy.deepcopy(gm).set_params(warm_start=True, max_iter=1, **parameters)
        return again.fit(rows, clients=SIX_CLIENTS).history_["step_size"][1]

    assert next_step() <= last
    assert next_step(**EXACT_ROUNDS) == 1.0
    # Five times as long as the first, unless it is shortened itself.
    assert next_step(batch_size=None) > first
    anew = clone(gm).set_params(solver="vr_fedem", max_iter=1).fit(rows, clients=SIX_CLIENTS)
    assert next_step(solver="vr_fedem") == anew.history_["step_size"][1] > 2 * last
    streamed = copy.deepcopy(gm).set_params(**EXACT_ROUNDS)
    streamed.partial_fit(with_a_rare_cluster(1, n_rows=3)[0], clients=SIX_CLIENTS)
    assert streamed.history_["step_size"][-1] > 0.1


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_checkpoints_and_warm_starts_keep_the_limit_of_steps(tmp_path):
    rows, start = with_a_rare_cluster(0, n_rows=3)
    path = tmp_path / "run.npz"
    gm = FederatedGaussianMixture(2, **NOISY, **start, random_state=0, eval_every=100)

    def fit(max_iter, resume_from=None, **parameters):
        again = clone(gm).set_params(max_iter=max_iter, **parameters)
        return again.fit(rows, clients=SIX_CLIENTS, resume_from=resume_from)

    whole, half = fit(700), fit(500, checkpoint=path, warm_start=True)
    assert half.history_["step_size"][-1] < half.history_["step_size"][1]
    resumed, warm = fit(700, resume_from=path), half.set_params(max_iter=200, checkpoint=None)
    warm.fit(rows, clients=SIX_CLIENTS)
    for name, other in (("resumed", resumed), ("warm", warm)):
        assert_array_equal(other.means_, whole.means_, err_msg=name)
        steps = other.history_["step_size"][-200:]
        assert_array_equal(steps, whole.history_["step_size"][-200:], err_msg=name)
