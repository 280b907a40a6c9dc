"""How the solvers behave: where they converge, what they count, and when they need help."""

import copy
from functools import cache, partial
from math import ceil

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning

from problems import (
    COVARIANCE_TYPES,
    SETTINGS,
    SOLVERS,
    Setting,
    group_of,
    make_problem,
    mixture_model,
    mixture_parameters,
    model_case,
    problem_of_alike,
    quiet_fit,
    ragged_clients,
    run_rounds,
    stack,
    start_at,
)
from skfedem import FederatedGaussianMixture, FederatedMatrixImputer
from skfedem._parallel import Workers
from skfedem.clients.group import client_half, compress
from skfedem.clients.local import LocalClients
from skfedem.compression import Dithering
from skfedem.datasets import make_fedem_mixture, make_federated_mixture
from skfedem.models._base import Step
from skfedem.models.mixture import gaussian_mixture
from skfedem.models.mixture.gaussian_mixture import GaussianMixtureModel
from skfedem.solvers import _from_parameters
from skfedem.solvers._loop import Options, run
from skfedem.solvers.base import (
    AggregatedMessages,
    Broadcast,
    ServerState,
    after_short_step,
    broadcast_of,
    server_half,
)

every_solver = pytest.mark.parametrize("solver", SOLVERS)
every_covariance_type_and_both_solvers = pytest.mark.parametrize(
    ("covariance_type", "solver"), list(zip(COVARIANCE_TYPES, 2 * list(SOLVERS), strict=True))
)
not_converged = pytest.mark.filterwarnings(
    "ignore:Not converged:sklearn.exceptions.ConvergenceWarning"
)

# ---- the paper's experiments


@not_converged
@pytest.mark.slow
def test_variance_reduction_removes_the_noise_floor():
    # The paper's synthetic experiment, shorter. ||h||² starts near 1e-3. A step of 0.01
    # makes VR-FedEM halve it every 10 epochs here: 210 epochs are 21 halvings, 5e-10, so that
    # 1e-8 is passed with 4 halvings to spare. FedEM's minibatches keep it near 5e-6, to which 120
    # epochs are enough.
    data = make_fedem_mixture(random_state=0)
    final, floor = {}, {}
    for solver, batch_size, epochs in (("fedem", 20, 120), ("vr_fedem", 5, 210)):
        fit = FederatedGaussianMixture(
            2, covariance_type="tied", fixed_covariance=data.covariances, solver=solver,
            step_size=1e-2, omega=1.0, control_step=1e-2, participation=0.75, batch_size=batch_size,
            n_inner=20, max_iter=None, max_epochs=epochs, tol=0.0, random_state=0,
        ).fit(data.clients)  # fmt: skip
        values = fit.history_["mean_field_sq_norm"]
        values = values[np.isfinite(values)]
        assert len(values) > 0.8 * epochs
        final[solver] = values[-10:].max()
        floor[solver] = values[len(values) // 2 :].min()
        assert not fit.history_["safeguarded"].any()
        assert abs(fit.history_["epoch"][-1] - epochs) < 2
    assert final["vr_fedem"] < 1e-8
    assert floor["fedem"] > 1e-7


@not_converged
@pytest.mark.filterwarnings("ignore:Steps left:sklearn.exceptions.ConvergenceWarning")  # naive
@pytest.mark.parametrize(("seed", "participation"), [(0, 1.0), (1, 0.5)])
def test_control_variates_remove_the_error_of_unlike_clients(seed, participation):
    # Clients of one component each: their fields are large at the solution, and so is what
    # compression makes of them, unless control variates take it away. No minibatches, so that
    # FedEM has no other noise: it reaches pooled EM, at a rate of 1 - 0.03 a round at best.
    data = make_federated_mixture(
        n_clients=12, n_samples=60, n_components=3, heterogeneity=1.0, random_state=seed
    )
    shifts = 0.3 * np.random.default_rng(seed).standard_normal(data.means.shape)
    start = {"weights_init": np.full(3, 1 / 3), "means_init": data.means + shifts}
    pooled = FederatedGaussianMixture(3, covariance_type="tied", max_iter=500, tol=1e-10, **start)
    pooled.fit(data.clients)
    gaps = []
    for naive in (False, True):
        fit = FederatedGaussianMixture(
            3, covariance_type="tied", omega=2.0, participation=participation, step_size=0.03,
            control_step=0.0 if naive else "auto", control_init="zeros" if naive else "field",
            max_iter=600, tol=0.0, eval_every=None, random_state=seed, **start,
        ).fit(data.clients)  # fmt: skip
        gaps.append(pooled.score(data.clients) - fit.score(data.clients))
    controlled, naive = gaps
    # 600 rounds leave exp(-0.06 * 600 * rate) of the first gap, which is of order 1: 1e-4 where
    # EM's rate is 0.25. A noise floor of naive FedEM at ω = 2 is of the order of γ ω / n, 5e-3, and
    # varies: a run may end well below it, but not near what the other may be off by.
    assert abs(controlled) < 1e-4
    assert naive > 3e-4
    assert naive > 20 * abs(controlled)


@not_converged
@every_covariance_type_and_both_solvers
def test_noisy_runs_end_where_pooled_em_ends(covariance_type, solver):
    # With the automatic step: the promise is 0.05 nats for FedEM, 0.01 for VR-FedEM, but runs begin
    # 0.006 to 0.018 nats away.
    data = make_federated_mixture(
        n_clients=20, n_samples=50, covariance_type=covariance_type, heterogeneity=0.5,
        random_state=1,
    )  # fmt: skip
    start = {"means_init": data.means, "weights_init": data.weights}
    pooled = FederatedGaussianMixture(
        3, covariance_type=covariance_type, max_iter=500, tol=1e-8, **start
    ).fit(data.clients)
    fit = FederatedGaussianMixture(
        3, covariance_type=covariance_type, solver=solver, omega=0.5, participation=0.7,
        batch_size=10, max_iter=None, max_epochs=50, random_state=0, **start,
    ).fit(data.clients)  # fmt: skip
    gap = pooled.score(data.clients) - fit.score(data.clients)
    assert gap < {"fedem": 0.004, "vr_fedem": 0.001}[solver]


@pytest.fixture(scope="module")
def noise_at_rest():
    """How large H is, squared, at a fixed point of EM, where steps are next to nothing."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1000, 2))
    X[:, 0] += 3 * rng.integers(2, size=1000)
    clients = np.repeat(np.arange(10), 100)
    known = FederatedGaussianMixture(
        2, covariance_type="tied", fixed_covariance=np.eye(2), tol=1e-12, max_iter=3000,
        compressor="rand_k", random_state=0,
    )  # fmt: skip
    known.fit(X, clients=clients)
    known.set_params(
        weights_init=known.weights_, means_init=known.means_, step_size=1e-12, batch_size=20,
        tol=0, max_iter=1000, eval_every=None,
    )  # fmt: skip

    @cache
    def noise(**settings):
        gm = clone(known).set_params(**settings).fit(X, clients=clients)
        return gm.history_["field_sq_norm"][100:].mean()

    return noise


@not_converged
@pytest.mark.parametrize("control_step", ["auto", 0.05])
@pytest.mark.parametrize(("omega", "participation"), [(0.0, 0.25), (1.0, 0.5)])
def test_control_variates_add_the_noise_that_they_hold(
    noise_at_rest, omega, participation, control_step
):
    # doc/theory.rst, below Theorem 4. The means of 900 rounds vary by some percent, as V_i does
    # over 20 rounds; and ω = 1 is relative to norms in the units of the components.
    omega_p = (1 + omega) / participation - 1
    share = 1.0 if control_step == "auto" else control_step * (1 + omega)
    wanted = 1 + 2 * omega_p / (2 - share)
    settings = {"omega": omega, "participation": participation, "control_step": control_step}
    assert_allclose(noise_at_rest(**settings) / noise_at_rest(), wanted, rtol=0.12)


# ---- when exact rounds stop


def jumping(round_number):
    return 0.001 if round_number <= 8 else 1.0


@pytest.mark.parametrize(
    ("estimator", "n_quiet"),
    [
        (FederatedGaussianMixture(3, init_params="random_from_data", max_iter=1000), 1),
        (FederatedMatrixImputer(1, rows="disjoint", penalty=1.0, tol=0.01), 5),
    ],
    ids=["mixture", "imputer"],
)
def test_a_gain_is_judged_by_the_step_that_made_it(estimator, n_quiet):
    # A whole step that follows a tiny one says nothing about what that one gained.
    rows, species = load_iris(return_X_y=True)
    estimator.set_params(step_size=jumping, random_state=0).fit(rows, clients=species)
    history = estimator.history_
    if n_quiet == 1:
        gains = np.diff(history["log_likelihood"])
    else:
        gains = -np.diff(history["objective"]) / history["objective"][1:]
    is_quiet = np.abs(gains) < estimator.tol * history["step_size"][1:]
    last = np.lib.stride_tricks.sliding_window_view(is_quiet, n_quiet).all(axis=1)
    # What the last round gained is told by a round that did not come.
    assert np.flatnonzero(last[:-1]).tolist() == [len(gains) - 1 - n_quiet]
    assert estimator.converged_
    assert estimator.n_iter_ > 8 + n_quiet


def run_of_fedem(problem, federation, start, options):
    """Run of FedEM with the clients in this process."""
    with Workers(1) as workers:
        clients = LocalClients(federation, workers)
        clients.join(SOLVERS["fedem"], problem.task)
        return run(SOLVERS["fedem"], problem, start, options, clients, lambda row: None)


def criteria_of(state):
    return state.criteria("log_likelihood")


@pytest.mark.parametrize("participation", [0.5, 1.0])
def test_a_run_has_the_criteria_that_it_computes_whether_it_is_watched_or_not(participation):
    problem, federation = problem_of_alike(participation=participation)
    start = start_at(problem.model, federation, mixture_parameters(problem.model))
    watched, unwatched = (
        run_of_fedem(
            problem,
            federation,
            start,
            Options(lambda k: 0.5, max_iter=4, tol=0.0, eval_every=eval_every),
        )
        for eval_every in (1, None)
    )
    values = watched.history["log_likelihood"].tolist()
    for result in (watched, unwatched):
        assert result.initial_criterion == values[0]
    assert watched.final_criterion == values[4]
    if problem.exact:  # a round yields the criterion of the iterate before it
        assert criteria_of(watched) == criteria_of(unwatched) == values[:4]
        assert np.isnan(unwatched.final_criterion)
    else:
        assert criteria_of(watched) == values
        assert criteria_of(unwatched) == [unwatched.final_criterion] == values[4:]


# ---- when others do


def quiet_run(monkeypatch, step_taken, participation):
    """Run of at most 100 rounds with 20 clients and steps of 1, which lead nowhere."""
    problem, federation = problem_of_alike(participation=participation)
    model = problem.model

    def stays(statistics, field, step_size, *, exact):
        return Step(statistics, 0.0, 0, step_taken)

    monkeypatch.setattr(type(model), "server_step", staticmethod(stays))
    start = start_at(model, federation, mixture_parameters(model))
    return run_of_fedem(problem, federation, start, Options(lambda k: 1.0, eval_every=None))


@pytest.mark.parametrize("participation", [0.9, 1.0])
def test_a_model_without_a_likelihood_does_not_converge(participation, monkeypatch):
    monkeypatch.setattr(GaussianMixtureModel, "criterion_value", lambda self, mean, theta: np.nan)
    says = r"number as log_likelihood of GaussianMixtureModel, got NaN from .* of -\d"
    with pytest.raises(ValueError, match=says):
        quiet_run(monkeypatch, step_taken=1.0, participation=participation)


def test_a_stream_without_a_likelihood_keeps_what_it_had(monkeypatch):
    rows = np.random.default_rng(0).normal(size=(40, 2))
    mixture = FederatedGaussianMixture(2, random_state=0).partial_fit(rows)
    monkeypatch.setattr(GaussianMixtureModel, "criterion_value", lambda self, mean, theta: np.nan)
    kept = copy.deepcopy(vars(mixture))
    with pytest.raises(ValueError, match="log_likelihood of GaussianMixtureModel, got NaN"):
        mixture.partial_fit(rows)
    assert vars(mixture).keys() == kept.keys()
    assert_array_equal(mixture.means_, kept["means_"])
    assert_array_equal(mixture.history_["log_likelihood"], kept["history_"]["log_likelihood"])


@pytest.mark.parametrize("participation", [0.9, 1.0])
def test_rounds_whose_steps_are_not_taken_do_not_converge(participation, monkeypatch):
    assert quiet_run(monkeypatch, step_taken=1.0, participation=participation).converged
    assert not quiet_run(monkeypatch, step_taken=0.0, participation=participation).converged


def test_messages_that_do_not_come_make_no_sweep(monkeypatch):
    result = quiet_run(monkeypatch, step_taken=1.0, participation=0.04)
    # Three sweeps, each of which has to hear as many messages as there are clients.
    n_active = result.history["n_active"]
    assert result.converged
    assert n_active[:-1].sum() < n_active.sum()
    assert 60 <= n_active.sum() < 60 + 3 * n_active.max()


# ---- the safeguard


@pytest.mark.filterwarnings("ignore:Components .* ended with a weight of less than half a row")
@every_covariance_type_and_both_solvers
def test_a_step_far_too_large_is_shortened_counted_and_reported(covariance_type, solver):
    data = make_federated_mixture(
        n_clients=30, n_samples=50, n_features=3, n_components=5, separation=2.0, heterogeneity=1.0,
        random_state=0,
    )  # fmt: skip
    fit = FederatedGaussianMixture(
        5, covariance_type=covariance_type, solver=solver, omega=3.0, participation=0.3,
        batch_size=5, step_size=1.0, max_iter=100, tol=0.0, random_state=3,
    )  # fmt: skip
    with (
        pytest.warns(ConvergenceWarning, match="below its value at the start: do not use"),
        pytest.warns(ConvergenceWarning, match="left the domain.*smaller step_size"),
    ):
        fit.fit(data.clients)
    # A step of 1 along a field whose noise is three times itself leaves much of the time.
    assert np.count_nonzero(fit.history_["safeguarded"]) > 30
    assert np.isfinite(fit.lower_bound_) and np.isfinite(fit.means_).all()
    assert np.isfinite(fit.history_["log_likelihood"]).sum() > 2
    assert (fit.weights_ > 0).all()
    assert_allclose(fit.weights_.sum(), 1.0, rtol=1e-12)
    assert np.isfinite(fit.score_samples(data.clients[0])).all()


@not_converged
@every_solver
def test_a_small_step_needs_no_safeguard_and_no_warning(solver):
    data = make_federated_mixture(n_clients=30, n_samples=50, random_state=0)
    fit = FederatedGaussianMixture(
        3, solver=solver, omega=1.0, participation=0.5, batch_size=20, step_size=1e-3, max_iter=50,
        tol=0.0, random_state=0,
    )  # fmt: skip
    fit.fit(data.clients)
    assert_array_equal(fit.history_["safeguarded"], 0)


def test_the_safeguard_shortens_the_step_but_not_the_control_variates():
    # What was sent is remembered on both sides, whatever the server makes of it.
    federation = stack(ragged_clients((7, 12, 4, 9)))
    model = mixture_model(federation, "full")
    problem = make_problem(model, federation, SETTINGS["everything"], seed=1)
    start = start_at(model, federation, mixture_parameters(model))
    safeguarded = 0
    before, *rounds = run_rounds(SOLVERS["fedem"], problem, federation, start, 20, step_size=1.0)
    for now in rounds:
        step = now.server.statistics - before.server.statistics
        assert_allclose(step, now.info.field / 2.0**now.info.safeguarded, atol=1e-13)
        moved = problem.task.control_step * now.aggregated.message_sum
        control = before.server.control + moved
        assert_allclose(now.server.control, control, atol=1e-13)
        safeguarded += now.info.safeguarded > 0
        before = now
    assert safeguarded > 3


@pytest.mark.parametrize("setting", [{"control_step": 0.0}, {"persistent_noise": True}])
def test_rounds_are_frozen_only_if_control_variates_then_take_noise_away(setting):
    problem, _ = problem_of_alike(n_clients=4, omega=1.0)
    server = ServerState(7, None, None, None)
    assert after_short_step(problem, server).frozen_until > 7
    without, _ = problem_of_alike(n_clients=4, omega=1.0, **setting)
    assert after_short_step(without, server).frozen_until == 0


@pytest.mark.parametrize("participation", [1.0, 0.5, 2])
def test_rounds_are_frozen_as_long_as_control_variates_of_absent_clients_need(participation):
    problem, _ = problem_of_alike(n_clients=4, participation=participation)
    # α = 1 and no compression: V_i is up to date once the client has come.
    n_rounds = 0 if participation == 1 else 6
    frozen_until = after_short_step(problem, ServerState(7, None, None, None)).frozen_until
    assert frozen_until == (7 + n_rounds if n_rounds else 0)


# ---- what is counted


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


# ---- real rows


def digits_by_label(n_features):
    """Principal components of the handwritten digits, on ten clients with one digit each."""
    images, labels = load_digits(return_X_y=True)
    rows = PCA(n_features, svd_solver="full").fit_transform(images)
    return [rows[labels == digit] for digit in range(10)]


@pytest.mark.parametrize("n_components", [5, 10])
def test_a_step_too_long_for_many_statistics_spoils_no_outer_loop(n_components):
    # 680 or 1360 statistics of 180 rows a client. The step out of the domain spoils the running
    # estimates; each later round of the loop left the domain, too, and shortened all later steps.
    clients = digits_by_label(15)
    common = {"n_components": n_components, "reg_covar": 0.1, "tol": 1e-5, "random_state": 0}
    pooled = FederatedGaussianMixture(**common, max_iter=1000).fit(clients)
    batch_size = 5 if n_components == 5 else 10
    gm = FederatedGaussianMixture(
        **common, solver="vr_fedem", batch_size=batch_size, max_iter=None, max_epochs=60
    ).fit(clients)  # warnings are errors: it converges, and hardly cuts its steps
    n_cuts = np.count_nonzero(gm.history_["safeguarded"])
    assert 1 <= n_cuts <= 4
    steps = gm.history_["step_size"][1:]
    assert_allclose(steps[-1], steps[0] * 0.7**n_cuts, rtol=1e-12)
    assert abs(gm.lower_bound_ - pooled.lower_bound_) < 0.01  # what the grid of steps asks for
    # Each of them has the clients read all their rows in the round after.
    passes = np.flatnonzero(np.diff(gm.history_["epoch"]) > 0.99)
    k_in = np.ceil(np.sqrt(1797 / 10 / 2))
    cut = np.flatnonzero(gm.history_["safeguarded"])
    assert_array_equal(passes, np.union1d(np.arange(0, gm.n_iter_, k_in), cut))


def test_steps_given_by_a_number_keep_to_the_outer_loops_of_the_algorithm():
    gm = FederatedGaussianMixture(
        10, reg_covar=0.1, solver="vr_fedem", batch_size=5, step_size=0.5, max_iter=40, tol=0.0,
        random_state=0,
    )  # fmt: skip
    with pytest.warns(ConvergenceWarning):
        gm.fit(digits_by_label(15))
    assert gm.history_["safeguarded"].any()
    passes = np.flatnonzero(np.diff(gm.history_["epoch"]) > 0.99)
    assert_array_equal(passes, np.arange(0, 40, np.ceil(np.sqrt(1797 / 10 / 2))))


def iris_by_label(n_clients, extra=None):
    """Iris on clients that have one species each; ``extra`` is a fifth feature."""
    rows, species = load_iris(return_X_y=True)
    if extra is not None:
        noise = np.random.default_rng(0).standard_normal(len(rows))
        rows = np.column_stack([rows, rows[:, 0] + rows[:, 1] + extra * noise])
    parts = [np.array_split(rows[species == k], n_clients // 3) for k in range(3)]
    return [part for own in parts for part in own]


def gap_to_pooled_em(clients, seed, omega, max_iter):
    start = FederatedGaussianMixture(3, max_iter=0, random_state=seed).fit(clients)
    common = {
        "weights_init": start.weights_,
        "means_init": start.means_,
        "precisions_init": start.precisions_,
    }
    pooled = FederatedGaussianMixture(3, max_iter=5000, tol=1e-9, **common).fit(clients)
    # All rows are read: nothing but compression, whose noise goes to 0 with the innovations.
    fit = FederatedGaussianMixture(
        3, omega=omega, max_iter=max_iter, tol=0, eval_every=None, random_state=seed, **common
    ).fit(clients)
    return pooled.score(clients) - fit.score(clients)


@not_converged
@pytest.mark.parametrize(("n_clients", "omega", "seed"), [(3, 1.0, 0), (12, 0.5, 1), (24, 2.0, 0)])
def test_automatic_steps_stand_on_iris_sorted_by_label(n_clients, omega, seed):
    # 1e-9; without control variates 5e-3.
    assert abs(gap_to_pooled_em(iris_by_label(n_clients), seed, omega, max_iter=150)) < 1e-6


def test_features_that_are_constant_within_a_component_hardly_shorten_steps():
    # Pixels that a digit never inks: variances of 0, which noise makes negative.
    images, digits = load_digits(return_X_y=True)
    gm = FederatedGaussianMixture(
        4, covariance_type="diag", omega=1.0, participation=0.5, max_iter=40, random_state=0
    )
    for step_size, most in ((0.13, 0), ("auto", 1)):  # "auto" is twice as long
        with pytest.warns(ConvergenceWarning, match="Not converged"):
            gm.set_params(step_size=step_size).fit(images[:600], clients=digits[:600])
        assert np.count_nonzero(gm.history_["safeguarded"]) <= most


@not_converged
@pytest.mark.parametrize("seed", [0, 2])
def test_an_outlier_does_not_destroy_a_shared_covariance(seed):
    rng = np.random.default_rng(seed)
    components = rng.integers(3, size=600)
    rows = rng.normal(size=(600, 3))
    rows[:, 0] += 4 * components
    rows[0, 0] = 1000.0
    clients = 3 * components + rng.integers(3, size=600)
    # The start gives all components a little of all rows.
    posterior = np.eye(4)[np.append(3, components[1:])]
    posterior = 0.95 * posterior + 0.05 / 4
    mass = posterior.sum(axis=0)
    means = posterior.T @ rows / mass[:, None]
    covariance = (rows.T @ rows - (mass * means.T) @ means) / 600 + 1e-6 * np.eye(3)
    start = FederatedGaussianMixture(
        4, covariance_type="tied", weights_init=mass / 600, means_init=means,
        precisions_init=np.linalg.inv(covariance), max_iter=300, random_state=0,
    )  # fmt: skip
    exact = clone(start).fit(rows, clients=clients)
    noisy = clone(start).set_params(omega=0.5, participation=0.1).fit(rows, clients=clients)
    # Compressed in units that know nothing of the distance to the outlier, these two end 1e7 nats
    # lower.
    assert abs(exact.score(rows) - noisy.score(rows)) < 0.01
    assert np.mean(noisy.history_["safeguarded"] > 0) < 0.01


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_near_components_far_from_the_centre_may_exchange_rows(seed):
    # Two pairs, 30 standard deviations apart. In units in which all errors cost alike large moves
    # of mass within a pair, which cost little, made noise that took 7e-3 to 4e-2 nats; in units
    # that know nothing of the distance noise took 9e-4 to 9e-3.
    rng = np.random.default_rng(seed)
    components = rng.integers(4, size=1500)
    rows = rng.normal(size=(1500, 3))
    rows[:, 0] += 30 * (components // 2) + 2.5 * (components % 2)
    clients = np.random.default_rng(seed + 50).integers(9, size=1500)
    start = FederatedGaussianMixture(
        4, covariance_type="tied", weights_init=np.bincount(components) / 1500,
        means_init=[rows[components == g].mean(axis=0) + 0.3 for g in range(4)],
        precisions_init=np.eye(3), max_iter=200, tol=1e-6, random_state=0,
    )  # fmt: skip
    exact = clone(start).fit(rows, clients=clients)
    noisy = clone(start).set_params(omega=1.0, participation=0.3)
    with pytest.warns(ConvergenceWarning, match="Not converged"):
        noisy.fit(rows, clients=clients)
    assert abs(exact.score(rows) - noisy.score(rows)) < 2e-4


@not_converged
@pytest.mark.parametrize(("extra", "seed"), [(0.1, 0), (0.001, 0), (0.0, 1)])
def test_a_feature_that_others_determine_does_no_harm(extra, seed):
    clients = iris_by_label(12, extra)
    assert abs(gap_to_pooled_em(clients, seed, omega=1.0, max_iter=200)) < 1e-6


def left_of(asked, history):
    """What halving leaves of steps: nothing, in the end."""
    halvings = history["safeguarded"][1:]
    return np.where(halvings < 20, asked * 0.5**halvings, 0.0)


RESTLESS = FederatedGaussianMixture(
    3, solver="vr_fedem", n_inner=200, omega=8.0, batch_size=1, participation=0.3, max_iter=200,
    eval_every=None, random_state=5,
)  # fmt: skip


def test_the_history_has_the_steps_as_taken():
    # From V_i = 0 nobody knows what the start was worth, and a warning of that would come first.
    gm = clone(RESTLESS).set_params(step_size=0.9, control_init="zeros")
    with pytest.warns(ConvergenceWarning) as caught:
        gm.fit(iris_by_label(3))
    history, steps = gm.history_, gm.history_["step_size"][1:]
    assert_allclose(steps, left_of(0.9, history), rtol=1e-12)
    assert 5 < np.count_nonzero(history["safeguarded"]) < 200
    # What to make smaller is the parameter; the last step was not taken at all.
    messages = " ".join(str(warning.message) for warning in caught)
    assert steps[-1] == 0 and "Use a smaller step_size" in messages
    assert f"the steps added up to only {steps.sum():.2g} EM iterations" in messages


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_automatic_steps_are_shorter_after_frozen_rounds(monkeypatch):
    # No automatic step of ours is that long.
    monkeypatch.setattr(
        _from_parameters, "automatic_step_size", lambda *_, **__: lambda number: 0.9
    )
    gm = clone(RESTLESS).fit(iris_by_label(3))
    n_statistics = 3 * (1 + 4 + 10)
    frozen = ceil(3 * (1 + Dithering(omega=8.0).omega_for(n_statistics)) / 0.3)
    asked, limit, frozen_until = [], 0.9, 0
    for number, halvings in enumerate(gm.history_["safeguarded"][1:]):
        asked.append(0.0 if number < frozen_until else limit)
        if halvings:
            limit, frozen_until = 0.7 * limit, number + 1 + frozen
    taken = gm.history_["step_size"][1:]
    assert_allclose(taken, left_of(np.array(asked), gm.history_), rtol=1e-12)
    assert np.count_nonzero(gm.history_["safeguarded"]) > 1


def test_a_step_too_long_does_not_spoil_those_that_follow_it():
    # V holds the error of the estimates before, and coarse messages take it away by and by. Steps
    # of these rounds would leave the domain one after the other: the limit fell to 0.0008 of the
    # first step, and the fit ended 2.8 nats short.
    rows = np.concatenate(digits_by_label(20))
    clients = np.random.default_rng(0).permutation(np.arange(len(rows)) % 5)
    start = FederatedGaussianMixture(8, max_iter=0, random_state=1).fit(rows, clients=clients)
    given = {
        "n_components": 8,
        "weights_init": start.weights_,
        "means_init": start.means_,
        "precisions_init": start.precisions_,
    }
    pooled = FederatedGaussianMixture(**given, max_iter=300, tol=1e-6).fit(rows)
    gm = FederatedGaussianMixture(
        **given, solver="vr_fedem", batch_size=10, omega=4.0, compressor="rand_k", max_iter=600,
        tol=0.0, eval_every=None, random_state=1,
    )  # fmt: skip
    with pytest.warns(ConvergenceWarning, match="Not converged"):
        gm.fit(rows, clients=clients)
    cuts = np.flatnonzero(gm.history_["safeguarded"])
    assert 1 <= len(cuts) <= 4 and (np.diff(cuts) > 15).all()  # 3 (1 + 4) / 1 frozen rounds
    steps = gm.history_["step_size"][1:]
    assert_allclose(steps[-1], steps[0] * 0.7 ** len(cuts), rtol=1e-12)
    assert_array_equal(np.count_nonzero(steps == 0), 15 * len(cuts))
    assert gm.score(rows) > pooled.score(rows) - 0.05


@not_converged
def test_the_history_has_the_steps_of_streams_and_imputers_as_taken():
    gm = FederatedGaussianMixture(3, omega=8.0, step_size=0.9, random_state=0)
    for _ in range(5):
        gm.partial_fit(iris_by_label(3))
    assert_allclose(gm.history_["step_size"][1:], left_of(0.9, gm.history_))
    assert gm.history_["safeguarded"].any()
    # The curvature grows with the mean of one cell.
    counts = np.random.default_rng(0).poisson(1.0, size=(20, 10)).astype(float)
    counts[0, 0] = 100.0
    imputer = FederatedMatrixImputer(2, family="poisson", effects="none", step_size=1.0)
    imputer.set_params(max_iter=10, tol=0, random_state=0).fit([counts, counts])
    assert_allclose(imputer.history_["step_size"][1:], left_of(1.0, imputer.history_))
    assert imputer.history_["safeguarded"].any()


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
    return server_half(problem, server, AggregatedMessages(field.ravel(), 2, 0, 0), step_size)


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


@pytest.mark.parametrize("seed", [182, 199])
def test_steps_that_nearly_leave_the_domain_do_not_add_up_to_one_that_does(seed):
    # Twelve rows on a grid: each step was in order, and a covariance ended below zero.
    rows = np.array([[k, j] for k in range(1, 4) for j in range(1, 5)], dtype=float)
    gm = FederatedGaussianMixture(
        2, solver="vr_fedem", batch_size=3, omega=1.0, participation=0.5, step_size=0.05, tol=10.0,
        random_state=seed,
    )  # fmt: skip
    quiet_fit(gm, rows, sample_weight=np.ones(12))
    assert np.linalg.eigvalsh(gm.covariances_).min() > 0


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
