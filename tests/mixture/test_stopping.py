"""When a fit ends, and what it warns of then."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning

from mixtures import CENTERS, CLIENTS, COMPONENTS, EXACT, N_SAMPLES, STOCHASTIC, X, evaluated_rows
from problems import quiet_fit
from skfedem import FederatedGaussianMixture
from skfedem._history import History
from skfedem.solvers._report import Wording, _warn_of_steps, against_noise
from skfedem.solvers._state import RunState
from skfedem.solvers.base import ServerState
from watched import said_by

# ------------------------------------------------------------------ when a fit ends


def test_max_iter_is_said_when_reached():
    gm = FederatedGaussianMixture(**{**EXACT, "tol": 0.0, "max_iter": 3})
    says = r"tol=0.0 after 3 rounds\. Increase max_iter or tol\.$"
    with pytest.warns(ConvergenceWarning, match=says):
        gm.fit(CLIENTS)
    assert gm.n_iter_ == 3
    assert not gm.converged_
    assert gm.history_["round"].tolist() == [0, 1, 2, 3]


def test_one_round_is_one_round():
    gm = FederatedGaussianMixture(**{**EXACT, "tol": 1e-9, "max_iter": 1})
    says = r"after 1 round\. Increase max_iter or tol\.$"
    with pytest.warns(ConvergenceWarning, match=says):
        gm.fit(CLIENTS)


@pytest.mark.parametrize("noise", [{"omega": 0.3}, {"participation": 0.95}, {"participation": 1}])
def test_rounds_without_control_variates_name_them(noise):
    few = {"control_step": 0.0, "step_size": 0.02, "max_iter": 510, "tol": 1e-9}
    gm = FederatedGaussianMixture(**EXACT, **noise, **few)
    says = r"after 510 rounds\. Set control_step='auto'\.$"
    with pytest.warns(ConvergenceWarning, match=says):
        gm.fit(CLIENTS)


def test_exact_rounds_have_no_noise_that_control_variates_take_away():
    few = {"control_step": 0.0, "step_size": 0.02, "max_iter": 510, "tol": 1e-13}
    (message,) = said_by(FederatedGaussianMixture(**EXACT, **few).fit, CLIENTS)
    assert message.startswith("Not converged") and "control_step" not in message


@pytest.mark.parametrize(
    "settings",
    [{"max_iter": 30}, {"step_size": 0.01}, {"step_size": 0.5}],
)
def test_more_rounds_are_no_remedy_for_the_noise_of_minibatches(settings):
    gm = FederatedGaussianMixture(
        **{**EXACT, "tol": 1e-7, "max_iter": 60} | settings, batch_size=4, covariance_type="tied"
    )
    (message,) = [text for text in said_by(gm.fit, CLIENTS) if "Not converged" in text]
    assert message.endswith("rounds. Use solver='vr_fedem'.")


@pytest.mark.parametrize("method", ["fit", "fit_predict", "fit_transform"])
def test_warnings_show_the_line_of_the_user(method):
    gm = FederatedGaussianMixture(**{**EXACT, "tol": 0.0, "max_iter": 3})
    with pytest.warns(ConvergenceWarning) as caught:
        getattr(gm, method)(CLIENTS)
    assert [warning.filename for warning in caught] == [__file__]


def test_no_rounds_are_not_a_failure_to_converge():
    gm = FederatedGaussianMixture(3, max_iter=0, random_state=0).fit(CLIENTS)  # warns nothing
    assert gm.n_iter_ == 0
    assert gm.predict(X).shape == (N_SAMPLES,)


@pytest.mark.parametrize("parameters", [{"omega": 1.0}, {"batch_size": 4, "solver": "vr_fedem"}])
def test_epochs_that_the_start_uses_up(parameters):
    gm = FederatedGaussianMixture(3, max_iter=None, max_epochs=1, random_state=0, **parameters)
    gm.set_params(step_size=0.01)
    says = r"the initialisation took 1 of max_epochs=1\. Increase max_epochs\.$"
    with pytest.warns(ConvergenceWarning, match=says):
        gm.fit(CLIENTS)
    assert gm.n_iter_ == 0
    gm.set_params(control_init="zeros")
    with pytest.warns(ConvergenceWarning, match="Not converged"):
        gm.fit(CLIENTS)
    assert gm.n_iter_ > 0


def test_a_start_that_no_rows_have_uses_up_an_epoch_whatever_the_control_variates():
    # Means so far apart leave no covariance: the statistic is computed from the rows.
    start = {"means_init": [[-100.0] * X.shape[1], [100.0] * X.shape[1]], "control_init": "zeros"}
    gm = FederatedGaussianMixture(2, covariance_type="tied", **start, max_iter=None, max_epochs=1)
    with pytest.warns(ConvergenceWarning, match=r"took 1 of max_epochs=1\. Increase max_epochs\.$"):
        gm.fit(CLIENTS)
    assert gm.n_iter_ == 0


def test_variance_reduction_does_not_converge_before_it_has_read_all_rows_again():
    # Three clients of 2,000 rows, most of each in a cluster of its own; long inner loops.
    rng = np.random.default_rng(0)
    centers, labels = 2.0 * rng.normal(size=(4, 5)), rng.integers(4, size=6000)
    rows = centers[labels] + rng.normal(size=(6000, 5))
    owners = (labels + 4 * rng.integers(3, size=6000)) % 3
    gm = FederatedGaussianMixture(4, random_state=0)
    exact = clone(gm).set_params(tol=1e-6, max_iter=1000).fit(rows, clients=owners)
    reduced = gm.set_params(solver="vr_fedem", batch_size=2, n_inner=700, max_iter=20000)
    reduced.fit(rows, clients=owners)
    assert reduced.converged_
    # A pass was made early, to see, and not in every round from then on.
    assert reduced.n_iter_ < 700
    assert reduced._memory.server.n_restarts == 1
    assert exact.score(rows) - reduced.score(rows) < 0.002


def test_short_exact_steps_do_not_pass_for_convergence():
    tight = {**EXACT, "max_iter": 20_000}
    best = FederatedGaussianMixture(**tight, tol=1e-9).fit(CLIENTS).lower_bound_
    gaps = []
    for step_size in (1.0, 0.1, 0.01):
        gm = FederatedGaussianMixture(**tight, step_size=step_size, tol=1e-4).fit(CLIENTS)
        assert gm.converged_
        gaps.append(best - gm.lower_bound_)
    # A round of γ gains γ of what EM does: without that, the gap would grow by 1/γ.
    assert max(gaps) < 3 * max(gaps[0], 1e-4)


@pytest.mark.parametrize("max_iter", [None, 10_000])
def test_max_epochs_ends_with_the_round_that_completes_them(max_iter):
    gm = FederatedGaussianMixture(
        **{**STOCHASTIC, "tol": 0.0, "max_iter": max_iter, "max_epochs": 4.5}
    )
    with pytest.warns(ConvergenceWarning, match="Not converged"):
        gm.fit(CLIENTS)
    assert gm.history_["epoch"][-1] >= 4.5
    assert gm.history_["epoch"][-2] < 4.5
    assert gm.n_iter_ == len(gm.history_["epoch"]) - 1


@pytest.mark.parametrize(
    ("batch_size", "n_rounds", "evaluated"),
    [(5, 60, [0, 20, 40, 60]), (30, 10, [0, 4, 7, 10]), (7, 43, [0, 15, 29, 43])],
)
def test_epochs_are_counted_in_rows_not_in_rounded_shares(batch_size, n_rounds, evaluated):
    # Each of ten clients reads ``batch_size`` of its 100 rows in a round.
    rng = np.random.default_rng(0)
    gm = FederatedGaussianMixture(
        batch_size=batch_size,
        control_init="zeros",
        max_iter=None,
        max_epochs=3,
        tol=0,
        random_state=0,
    )
    with pytest.warns(ConvergenceWarning, match="Not converged to tol=0"):
        gm.fit([rng.normal(size=(100, 1)) for _ in range(10)])
    assert gm.n_iter_ == n_rounds
    assert evaluated_rows(gm) == evaluated
    assert_array_equal(gm.history_["epoch"], np.arange(n_rounds + 1) * batch_size / 100)


@pytest.fixture(scope="module")
def overlapping():
    """Model and start, clients that overlap, so that EM needs many rounds, and where EM ends."""
    common = {"n_components": 3, "covariance_type": "tied", "means_init": CENTERS / 3}
    rng = np.random.default_rng(5)
    clients = [client / 2 + rng.normal(size=client.shape) for client in CLIENTS]
    pooled = quiet_fit(FederatedGaussianMixture(**common, tol=0.0, max_iter=2000), clients)
    return common, clients, pooled.score(clients)


@pytest.mark.parametrize(
    "parameters",
    [
        {"participation": 0.5},
        {"omega": 1.0, "step_size": 0.3},
        {"solver": "vr_fedem", "batch_size": 5, "omega": 1.0, "participation": 0.7},
    ],
    ids=["participation", "compression", "vr_fedem"],
)
def test_stochastic_fits_stop_neither_early_nor_away_from_em(overlapping, parameters):
    common, clients, pooled = overlapping
    for seed in range(3):
        gm = FederatedGaussianMixture(**common, **parameters, max_iter=5000, random_state=seed).fit(
            clients
        )
        assert gm.converged_
        # Three sweeps of at least ten rounds.
        assert gm.n_iter_ >= 30
        assert abs(gm.lower_bound_ - pooled) < 0.01


def test_tol_governs_stochastic_fits():
    rounds = [
        FederatedGaussianMixture(
            **{**STOCHASTIC, "solver": "fedem", "batch_size": None, "tol": tol, "max_iter": 5000}
        )
        .fit(CLIENTS)
        .n_iter_
        for tol in (1e-1, 1e-3, 1e-5)
    ]
    assert rounds[0] < rounds[1] < rounds[2]


@pytest.mark.parametrize("solver", ["fedem", "vr_fedem"])
def test_stochastic_rounds_leave_a_plateau_that_exact_ones_leave(solver):
    # Means nearly alike: an iteration gains little, the next ones more, and then nothing.
    draws = np.random.default_rng(0).normal(size=(200, 1))
    X = draws + np.repeat([-2.0, 2.0], 100)[:, None]
    clients = [X[k::4] for k in range(4)]
    settings = {"n_components": 2, "covariance_type": "tied", "max_iter": 1000}
    with pytest.warns(ConvergenceWarning):
        start = FederatedGaussianMixture(
            **settings | {"max_iter": 2}, means_init=[[-0.3], [0.3]]
        ).fit(clients)
    settings |= {
        "weights_init": start.weights_,
        "means_init": start.means_,
        "precisions_init": start.precisions_,
    }
    optimum = FederatedGaussianMixture(**settings, tol=1e-10).fit(clients)
    tol = 0.67 * (optimum.lower_bounds_[1] - optimum.lower_bounds_[0])
    exact = FederatedGaussianMixture(**settings, tol=tol).fit(clients)
    noisy = FederatedGaussianMixture(
        **settings, tol=tol, solver=solver, omega=1e-6, step_size=0.1, random_state=0
    ).fit(clients)
    for gm in (exact, noisy):
        assert gm.converged_
        # 0.006 tol and 0.02 tol; a sweep of half that gain was quiet, and lost 1.06 tol.
        assert gm.score(X) > optimum.score(X) - 0.05 * tol


# ------------------------------------------------------------------ what is warned of


@pytest.mark.filterwarnings("ignore:The log-likelihood ended")  # without the component
def test_components_that_noise_took_are_named():
    # Fifty of 20,000 rows; of 400 that a round reads, one is of them.
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(size=(19_950, 2)), 0.3 * rng.normal(size=(50, 2)) + [0, 9]])
    start = {
        "weights_init": [0.9975, 0.0025],
        "means_init": [[0, 0], [0, 9]],
        "precisions_init": [np.eye(2), 9 * np.eye(2)],
        "random_state": 0,
    }
    clients = np.arange(len(rows)) % 20
    exact = FederatedGaussianMixture(2, **start).fit(rows, clients=clients)
    assert_allclose(exact.weights_[1], 0.0025, rtol=1e-6)
    noisy = FederatedGaussianMixture(2, batch_size=2, step_size=0.5, tol=1.0, **start)
    with pytest.warns(
        ConvergenceWarning, match=r"Components \[1\] ended with a weight of less than"
    ):
        noisy.fit(rows, clients=clients)
    assert len(rows) * noisy.weights_[1] < 0.5
    # What began with nothing was taken by nobody.
    lost = clone(noisy).set_params(warm_start=True)
    with pytest.warns(ConvergenceWarning, match="Components"):
        lost.fit(rows, clients=clients)
    said = said_by(lost.fit, rows, clients=clients)
    assert not [text for text in said if text.startswith("Components")]
    kept = noisy.set_params(solver="vr_fedem", step_size="auto").fit(rows, clients=clients)
    assert_allclose(kept.weights_[1], 0.0025, rtol=0.1)


@pytest.mark.parametrize("seed", [0, 2])
@pytest.mark.filterwarnings("ignore:The variance of")
def test_a_row_of_its_own_is_a_whole_component(seed):
    rows, species = load_iris(return_X_y=True)
    rows[5, 0] *= 10
    components = np.where(species > 0, 1, 0)
    components[5] = 2
    gm = FederatedGaussianMixture(
        3, weights_init=np.bincount(components) / 150,
        means_init=[rows[components == g].mean(axis=0) for g in range(3)], omega=0.5,
        participation=0.1, max_iter=1000, random_state=seed,
    )  # fmt: skip
    gm.fit(rows, clients=species + 10 * (np.arange(150) % 3))  # a warning would be an error
    assert_allclose(150 * gm.weights_[2], 1, atol=1e-3)


def test_a_fit_that_ends_below_its_start_is_told():
    clients = [X[g == COMPONENTS] for g in range(3)]
    exact = FederatedGaussianMixture(3, random_state=0).fit(clients)
    worse = FederatedGaussianMixture(
        3, weights_init=exact.weights_, means_init=exact.means_, precisions_init=exact.precisions_,
        batch_size=1, step_size=0.5, max_iter=40, random_state=0,
    )  # fmt: skip
    (message,) = [text for text in said_by(worse.fit, clients) if "below its value" in text]
    fall = exact.score(clients) - worse.score(clients)
    assert fall > 0.1 and f"ended {fall:.3g} nats per row" in message
    # Nor does it take a history, where the first control variates tell what the start was worth.
    for control_init, n_told in (("field", 1), ("zeros", 0)):
        unseen = clone(worse).set_params(eval_every=None, control_init=control_init)
        said = said_by(unseen.fit, clients)
        assert ["below its value" in text for text in said].count(True) == n_told
    assert len(unseen.lower_bounds_) == 1
    said = said_by(worse.set_params(step_size="auto", batch_size=10).fit, clients)
    assert not any("below its value" in text for text in said)


def test_rare_components_that_wait_shorten_no_step_and_begin_no_outer_loop():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(3000, 3))
    rows[:2] = 2 + 0.1 * rng.normal(size=(2, 3))
    gm = FederatedGaussianMixture(
        2, weights_init=[0.9993, 0.0007], means_init=[[0] * 3, [2] * 3],
        precisions_init=[np.eye(3)] * 2, solver="vr_fedem", batch_size=20, n_inner=50,
        omega=2.0, eval_every=None, max_iter=40, random_state=4,
    )  # fmt: skip
    with pytest.warns(ConvergenceWarning) as caught:
        gm.fit(rows, clients=np.arange(3000) % 10)
    assert gm.history_["safeguarded"][-1] == 1
    assert len(set(gm.history_["step_size"][1:])) == 1
    assert np.flatnonzero(np.diff(gm.history_["epoch"]) > 0.99).tolist() == [0]  # passes
    assert "did not update rare components" in str(caught[0].message)
    assert "shortened" not in str(caught[0].message)


@pytest.mark.parametrize(
    ("setting", "ways"),
    [
        ({}, "solver='vr_fedem', a larger batch_size"),
        ({"omega": 4.0}, "solver='vr_fedem', a larger batch_size, a smaller omega"),
        (
            {"omega": 8.0, "participation": 0.3, "solver": "vr_fedem", "n_inner": 30},
            "a larger batch_size, a smaller omega",
        ),
    ],
)
def test_advice_is_about_what_is_random(setting, ways):
    rows, species = load_iris(return_X_y=True)
    gm = FederatedGaussianMixture(
        3, step_size=1.0, batch_size=1, max_iter=30, random_state=0, **setting
    )
    said = said_by(gm.fit, rows, clients=species)
    (message,) = [text for text in said if "left the domain" in text]
    others = "fewer components or drop linearly dependent features."
    assert message.endswith(f"Use a smaller step_size, {ways}, {others}")


def test_steps_out_of_the_domain_are_counted_and_said():
    clients = [X[g == COMPONENTS] for g in range(3)]
    gm = FederatedGaussianMixture(
        3, step_size=1.0, batch_size=1, omega=4.0, max_iter=30, random_state=0
    )
    messages = said_by(gm.fit, clients)
    # More rounds would not help it.
    assert len(messages) == 2 and "below its value at the start: do not use" in messages[1]
    assert "left the domain" in messages[0]
    assert "smaller step_size" in messages[0]
    assert gm.history_["safeguarded"].sum() > 0
    assert gm.history_["safeguarded"][0] == 0
    assert np.isfinite(gm.means_).all()
    assert np.isfinite(gm.score(X))


def outcome_of(step_size, safeguarded, *, round_index):
    """An estimator of exact rounds with automatic steps, and how its run ended."""
    history = History()
    history.append(step_size=np.nan, safeguarded=0)
    for step, halvings in zip(step_size, safeguarded, strict=True):
        history.append(step_size=step, safeguarded=int(halvings))
    server = ServerState(round_index, None, None, None, step_limit=0.9)
    state = RunState(server, None, history, [], [], n_expectations=10, n_samples=1)
    return FederatedGaussianMixture(max_iter=10), state


@pytest.mark.parametrize(("last", "warns"), [(19, True), (18, True), (17, False)])
def test_steps_are_looked_at_in_the_last_tenth_of_the_rounds(last, warns):
    safeguarded = np.arange(20) == last
    estimator, result = outcome_of(np.ones(20), safeguarded, round_index=20)
    wording = Wording(left="were too long")
    said = said_by(_warn_of_steps, estimator, result, lambda number: 1.0, wording)
    assert [text.startswith("Steps were too long in 1 of the last 2 rounds") for text in said] == (
        [True] * warns
    )


@pytest.mark.parametrize(
    "limit, said", [(0.0011, []), (0.0009, ["Step sizes were reduced from 0.01 to"])]
)
def test_steps_that_their_schedule_made_small_are_not_said_to_be_cut(limit, said):
    # 0.0011 is a thousandth of the first step, but the plan itself comes to 0.01 in round 100.
    estimator, result = outcome_of(np.ones(100), np.zeros(100), round_index=100)
    result = result._replace(server=result.server._replace(step_limit=limit))
    wording = Wording(left="")
    says = said_by(_warn_of_steps, estimator, result, lambda number: 1 / number, wording)
    assert [text[:36] for text in says] == said


@pytest.mark.parametrize(
    ("control_step", "is_ill"),
    [(0, True), (0.3, False), (0.5, False), (0.6, True), ("auto", False)],
)
def test_control_variates_that_do_not_learn_or_diverge_are_named(control_step, is_ill):
    ways = against_noise(
        FederatedGaussianMixture(omega=1.0, control_step=control_step), "another step"
    )
    learning = ["control_step='auto'"] if is_ill else []  # up to 1 / (1 + ω) it contracts
    assert ways == [*learning, "another step", "a smaller omega"]
    one = FederatedGaussianMixture(participation=1, control_step=control_step)  # client a round
    assert ("control_step='auto'" in against_noise(one)) == (control_step == 0)
    # Where nothing is compressed and nobody away, V_i cancels.
    assert against_noise(FederatedGaussianMixture(batch_size=5, control_step=0)) == [
        "solver='vr_fedem'",
        "a larger batch_size",
    ]


def test_remedies_are_for_what_the_mixture_has():
    rng = np.random.default_rng(0)
    clients = [rng.normal(k, 1, size=(20, 5)) for k in range(6)]
    gm = FederatedGaussianMixture(
        1, covariance_type="tied", fixed_covariance=np.eye(5), participation=0.3, batch_size=2,
        step_size=0.5, control_step=0, control_init="zeros", max_iter=200, random_state=0,
    )  # fmt: skip
    with pytest.warns(ConvergenceWarning) as caught:
        gm.fit(clients)
    said = " ".join(str(warning.message) for warning in caught)
    assert "Steps left the domain" in said and "The log-likelihood ended" in said
    assert said.count("control_step='auto'") == 2
    assert "fewer components" not in said and "dependent features" not in said
