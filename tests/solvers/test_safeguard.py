"""Steps that are shortened, and what follows them."""

from math import ceil

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning

from fits import iris_by_label
from problems import (
    COVARIANCE_TYPES,
    SETTINGS,
    SOLVERS,
    make_problem,
    mixture_model,
    mixture_parameters,
    problem_of_alike,
    quiet_fit,
    ragged_clients,
    run_rounds,
    stack,
    start_at,
)
from skfedem import FederatedGaussianMixture, FederatedMatrixImputer
from skfedem.compression import Dithering
from skfedem.datasets import make_federated_mixture
from skfedem.solvers import _from_parameters
from skfedem.solvers.base import ServerState
from skfedem.solvers.server import after_short_step

every_solver = pytest.mark.parametrize("solver", SOLVERS)

every_covariance_type_and_both_solvers = pytest.mark.parametrize(
    ("covariance_type", "solver"), list(zip(COVARIANCE_TYPES, 2 * list(SOLVERS), strict=True))
)

not_converged = pytest.mark.filterwarnings(
    "ignore:Not converged:sklearn.exceptions.ConvergenceWarning"
)


@pytest.mark.filterwarnings("ignore:Components .* ended with a weight of less than half a row")
@every_covariance_type_and_both_solvers
@pytest.mark.filterwarnings("ignore:The variance of")
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


@pytest.mark.filterwarnings("ignore:The variance of")
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


@pytest.mark.parametrize("seed", [182, 199])
@pytest.mark.filterwarnings("ignore:The variance of")
def test_steps_that_nearly_leave_the_domain_do_not_add_up_to_one_that_does(seed):
    # Twelve rows on a grid: each step was in order, and a covariance ended below zero.
    rows = np.array([[k, j] for k in range(1, 4) for j in range(1, 5)], dtype=float)
    gm = FederatedGaussianMixture(
        2, solver="vr_fedem", batch_size=3, omega=1.0, participation=0.5, step_size=0.05, tol=10.0,
        random_state=seed,
    )  # fmt: skip
    quiet_fit(gm, rows, sample_weight=np.ones(12))
    assert np.linalg.eigvalsh(gm.covariances_).min() > 0
