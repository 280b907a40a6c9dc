"""Fits that go on from the statistics and the control variates of the last one."""

import pickle

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.mixture import GaussianMixture

from problems import COVARIANCE_TYPES
from problems import quiet_fit as fit
from skfedem import (
    FederatedGaussianMixture,
    FederatedMatrixImputer,
    FederatedMatrixImputerCV,
)
from skfedem._federation import Federation
from skfedem._imputer import fit_steps as fit_of_imputers
from skfedem._imputer.fit_steps import MatrixFit
from skfedem._mixture.fit_steps import MixtureFit
from skfedem.models.mixture.gaussian_mixture import GaussianMixtureModel
from skfedem.solvers import _loop, _state
from watched import interrupted

LENGTHS = (30, 12, 25, 40, 18)
CENTERS = np.array([[-4.0, 0.0], [4.0, 0.0]])
GIVEN = {"n_components": 2, "means_init": CENTERS / 2, "random_state": 0, "tol": 0.0}
NOISY = {**GIVEN, "step_size": 0.1, "omega": 1.0, "participation": 0.6, "batch_size": 4}
SETTINGS = {
    "exact": GIVEN,
    "all rows": {**GIVEN, "step_size": 0.1, "omega": 1.0, "participation": 0.6},
    "minibatches": NOISY,
    "decreasing": {**NOISY, "step_size": "auto"},
    "schedule": {**NOISY, "step_size": lambda k: 0.5 / k**0.6},
    "variance reduced": {**NOISY, "solver": "vr_fedem", "n_inner": 7},
    "without memory": {**NOISY, "control_step": 0.0, "control_init": "zeros"},
}


def make_clients(lengths=LENGTHS, seed=0):
    rng = np.random.default_rng(seed)
    return [
        CENTERS[(rng.random(length) < (k + 1) / 6).astype(int)] + rng.normal(size=(length, 2))
        for k, length in enumerate(lengths)
    ]


CLIENTS = make_clients()
X, OWNERS = np.concatenate(CLIENTS), np.repeat(range(len(LENGTHS)), LENGTHS)


def assert_memory_is_the_mean(gm):
    memory = gm._memory
    mean = memory.weights @ memory.controls
    # Rounding of sums of a few numbers, round after round.
    assert_allclose(memory.server.control, mean, rtol=0, atol=1e-12)
    assert memory.weights.sum() == pytest.approx(1, abs=1e-14)


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
@pytest.mark.parametrize("setting", SETTINGS)
def test_two_fits_are_one_of_twice_the_rounds(covariance_type, setting):
    gm = FederatedGaussianMixture(**SETTINGS[setting], covariance_type=covariance_type)
    whole = fit(clone(gm).set_params(max_iter=20), CLIENTS)
    warm = fit(clone(gm).set_params(max_iter=13, warm_start=True), CLIENTS)
    fit(warm.set_params(max_iter=7), CLIENTS)
    for name in ("weights_", "means_", "covariances_", "precisions_", "client_drift_"):
        assert_array_equal(getattr(warm, name), getattr(whole, name), err_msg=name)
    assert warm.n_iter_ == 7
    assert_array_equal(warm.history_["round"], np.arange(8))
    for name in ("field_sq_norm", "step_size", "n_active", "uplink_bits", "safeguarded", "weights"):
        assert_array_equal(warm.history_[name][1:], whole.history_[name][14:], err_msg=name)
    if setting != "without memory":
        assert_memory_is_the_mean(warm)


@pytest.mark.parametrize("max_iter", [1, 2, 3, 50])
@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag", "spherical"])
def test_warm_starts_converge_when_those_of_scikit_learn_do(covariance_type, max_iter):
    ones = {"full": np.array([np.eye(2)] * 2), "tied": np.eye(2), "diag": np.ones((2, 2))}
    given = {
        **GIVEN,
        "covariance_type": covariance_type,
        "weights_init": [0.5, 0.5],
        "precisions_init": ones.get(covariance_type, np.ones(2)),
        "max_iter": max_iter,
        "tol": 1e-3,
        "warm_start": True,
    }
    ours, theirs = FederatedGaussianMixture(**given), GaussianMixture(**given)
    for _ in range(2 + 20 // max_iter):
        fit(ours, CLIENTS)
        fit(theirs, X)
        assert (ours.n_iter_, ours.converged_) == (theirs.n_iter_, theirs.converged_)
        assert ours.lower_bound_ == pytest.approx(theirs.lower_bound_, rel=1e-12)
        assert len(ours.lower_bounds_) == ours.n_iter_
    assert ours.converged_


@pytest.mark.parametrize("step_size", [0.5, lambda k: 1 / k**0.3])
def test_many_short_fits_converge_where_a_long_one_does(step_size):
    gm = FederatedGaussianMixture(**{**GIVEN, "tol": 1e-3}, step_size=step_size, warm_start=True)
    whole = fit(clone(gm).set_params(max_iter=500), CLIENTS)
    short, n_rounds = gm.set_params(max_iter=1), 0
    while n_rounds < whole.n_iter_:
        assert n_rounds == 0 or not short.converged_
        n_rounds += fit(short, CLIENTS).n_iter_
    assert short.converged_ and n_rounds == whole.n_iter_ > 2


@pytest.mark.parametrize("stop", ["no rounds", "keyboard"])
def test_a_fit_without_a_round_hands_on_no_gains_of_other_rows(stop, monkeypatch):
    gm = FederatedGaussianMixture(**{**GIVEN, "tol": 1e-3}, warm_start=True)
    others = [client + 1e-5 for client in CLIENTS]
    fit(gm, CLIENTS)
    if stop == "no rounds":
        fit(clone_of(gm), others)
        fit(gm.set_params(max_iter=0), others)
    else:
        with monkeypatch.context() as patch:
            patch.setattr(_loop, "server_half", interrupted(_loop.server_half, at=1))
            fit(gm, others)
    assert gm.n_iter_ == 0
    assert fit(gm.set_params(max_iter=100), others).n_iter_ == 2


@pytest.mark.parametrize("eval_every", ["auto", None])
def test_a_fit_without_a_round_hands_on_the_gains_of_its_rows(eval_every):
    gm = FederatedGaussianMixture(**{**GIVEN, "tol": 1e-3}, warm_start=True)
    fit(gm, CLIENTS)
    fit(gm.set_params(max_iter=0, eval_every=eval_every), CLIENTS)
    assert fit(gm.set_params(max_iter=100), CLIENTS).n_iter_ == 1


@pytest.mark.parametrize("change", [{"solver": "vr_fedem"}, "labels"], ids=["solver", "labels"])
def test_the_same_rows_have_the_same_gains_whoever_has_them(change):
    gm = FederatedGaussianMixture(**{**GIVEN, "tol": 1e-3}, warm_start=True)
    fit(gm, X, clients=OWNERS)
    if change == "labels":
        assert fit(gm, X, clients=OWNERS + 7).n_iter_ == 1
    else:
        assert fit(gm.set_params(**change), X, clients=OWNERS).n_iter_ == 1


@pytest.mark.parametrize("change", ["rows", "weights", "steps", "unwatched"])
def test_what_an_earlier_fit_has_gained_counts_for_the_same_rows_alone(change):
    gm = FederatedGaussianMixture(**{**GIVEN, "tol": 1e-3}, warm_start=True)
    fit(gm, CLIENTS)
    assert gm.converged_ and fit(clone_of(gm).set_params(max_iter=9), CLIENTS).n_iter_ == 1
    changed, weights = CLIENTS, None
    if change == "rows":  # by less than tol
        changed = [CLIENTS[0] + 1e-5, *CLIENTS[1:]]
    elif change == "weights":
        weights = [np.ones(length) for length in LENGTHS]
        weights[0][:2] = [1.001, 0.999]
    elif change == "steps":
        gm.set_params(step_size=0.5)
    else:
        fit(gm.set_params(eval_every=None), CLIENTS)
    fit(gm, changed, sample_weight=weights)
    # A step of another size needs no other: the one before it is judged by its own.
    assert gm.n_iter_ == (1 if change == "steps" else 2)
    assert abs(gm.lower_bounds_[-1] - gm.lower_bounds_[0]) < 1e-3


@pytest.mark.parametrize("participation", [0.5, 1.0])
def test_two_fits_are_one_where_control_variates_end_at_zero(participation):
    # V keeps the rounding of numbers of order 1, while the V_i of clients that are alike vanish.
    alike = [CLIENTS[0]] * 3
    gm = FederatedGaussianMixture(2, participation=participation, tol=0, random_state=0)
    whole = fit(clone(gm).set_params(max_iter=400), alike)
    warm = fit(clone(gm).set_params(max_iter=200, warm_start=True), alike)
    fit(warm, alike)
    assert max(warm.client_drift_) < 1e-6
    assert_array_equal(warm.means_, whole.means_)
    got, want = (each.history_["field_sq_norm"] for each in (warm, whole))
    assert_array_equal(got[1:], want[201:])


def test_control_variates_are_summed_again_if_rounding_errors_have_added_up():
    gm = fit(FederatedGaussianMixture(**SETTINGS["all rows"], max_iter=5, warm_start=True), CLIENTS)
    server = gm._memory.server
    gm._memory = gm._memory._replace(server=server._replace(control=server.control + 1e-9))
    assert_memory_is_the_mean(fit(gm.set_params(max_iter=0), CLIENTS))


def test_going_on_reads_no_rows(monkeypatch):
    gm = FederatedGaussianMixture(**SETTINGS["all rows"], max_iter=5, warm_start=True)
    fit(gm, CLIENTS)
    assert gm.history_["epoch"][0] == 1  # the first control variates
    counts = []
    features = GaussianMixtureModel.client_features

    def counted(self, rows, lengths):
        counts.append(len(rows))
        return features(self, rows, lengths)

    monkeypatch.setattr(GaussianMixtureModel, "client_features", counted)
    fit(gm.set_params(max_iter=0, eval_every=None), CLIENTS)
    # The log-likelihood at the end is the experimenter's.
    assert sum(counts) == len(X)
    for name in ("epoch", "uplink_bits", "downlink_bits"):
        assert gm.history_[name][0] == 0


def test_known_clients_keep_their_control_variates():
    names = np.array(["a", "b", "c", "d", "e"])[OWNERS]
    gm = FederatedGaussianMixture(**SETTINGS["all rows"], max_iter=8, warm_start=True)
    fit(gm, X, clients=names)
    drift = gm.client_drift_
    gm.set_params(max_iter=0)
    fit(gm, X, clients=np.where(names == "b", "x", names))
    assert_array_equal(gm.client_ids_, ["a", "c", "d", "e", "x"])
    assert_array_equal(gm.client_drift_, [*drift[[0, 2, 3, 4]], 0.0])
    assert_memory_is_the_mean(gm)
    # Who has left is forgotten; to come back is to join.
    fit(gm, X[names != "c"], clients=names[names != "c"])
    assert_array_equal(gm.client_drift_, [drift[0], 0.0, *drift[[3, 4]]])
    assert_memory_is_the_mean(gm)


def test_labels_of_another_kind_are_nobodys():
    gm = FederatedGaussianMixture(**SETTINGS["all rows"], max_iter=8, warm_start=True)
    fit(gm, X, clients=OWNERS)
    before, means = gm.client_drift_, gm.means_
    for labels in (OWNERS.astype(str), OWNERS.astype(str).astype(object)):
        with pytest.raises(ValueError, match="Expected client labels of the same kind.*dtype int"):
            gm.fit(X, clients=labels)
    assert gm.client_drift_ is before and gm.means_ is means
    # Numbers are numbers, and a list has positions.
    for labels in (OWNERS.astype(np.int8), OWNERS.astype(float), OWNERS.astype(object)):
        assert_array_equal(fit(clone_of(gm), X, clients=labels).client_drift_, before)
    assert_array_equal(fit(clone_of(gm), CLIENTS).client_drift_, before)
    # Dates in nanoseconds are listed as numbers.
    dated = FederatedGaussianMixture(**SETTINGS["all rows"], max_iter=0, warm_start=True)
    fit(dated, X, clients=OWNERS.astype("datetime64[ns]"))
    with pytest.raises(ValueError, match="of the same kind"):
        dated.fit(X, clients=(OWNERS + 9).astype(object))


def clone_of(gm):
    """The fitted estimator over, to take no more rounds."""
    return pickle.loads(pickle.dumps(gm)).set_params(max_iter=0)


@pytest.mark.parametrize(("covariance_type", "moments"), [("full", 2 + 3), ("diag", 2 + 2)])
def test_clients_who_join_a_fit_are_told_the_units(covariance_type, moments):
    gm = FederatedGaussianMixture(3, covariance_type=covariance_type, max_iter=0, random_state=0)
    fit(gm.set_params(warm_start=True), CLIENTS[:3])
    fit(gm, X, clients=np.where(OWNERS < 3, OWNERS, 9))
    assert_array_equal(gm.client_ids_, [0, 1, 2, 9])
    assert gm.history_["downlink_bits"][0] == 64 * moments
    fit(gm, X[OWNERS > 0], clients=OWNERS[OWNERS > 0])
    assert gm.history_["downlink_bits"][0] == 64 * 2 * moments
    assert gm.history_["uplink_bits"][0] == 0


def overwrite(estimator):
    for name, value in vars(estimator).items():
        if name.endswith("_") and isinstance(value, np.ndarray):
            value[...] = 0
    for column in estimator.history_.values():
        column[...] = 0


@pytest.mark.parametrize("max_iter", [0, 3])
def test_fitted_arrays_are_the_users(max_iter):
    given = np.full(2, 0.5), CENTERS.copy(), np.ones((2, 2))
    gm = FederatedGaussianMixture(
        2, covariance_type="diag", max_iter=max_iter, warm_start=True, tol=0,
        weights_init=given[0], means_init=given[1], precisions_init=given[2],
    )  # fmt: skip
    imputer = FederatedMatrixImputer(2, max_iter=max_iter, warm_start=True)
    for estimator, clients in ((gm, CLIENTS), (imputer, MATRICES)):
        memory = pickle.dumps(fit(estimator, clients)._memory)
        overwrite(estimator)
        assert pickle.dumps(estimator._memory) == memory
    streamed = clone(gm).partial_fit(CLIENTS)
    memory = pickle.dumps(streamed._memory)
    overwrite(streamed)
    assert pickle.dumps(streamed._memory) == memory
    assert_array_equal(given[0], 0.5)
    assert_array_equal(given[1], CENTERS)
    # Nor is what was given before the memory's.
    gm.weights_init[:] = 0
    assert gm._memory.server.parameters.weights.min() > 0


def test_columns_are_those_of_the_last_fit():
    table = pd.DataFrame(X, columns=["a", "b"])
    gm = fit(FederatedGaussianMixture(2, warm_start=True, random_state=0), table, clients=OWNERS)
    before = pickle.dumps(gm)
    with pytest.raises(ValueError, match=r"columns of the last fit, \['a', 'b'\], in that order"):
        fit(gm, table[["b", "a"]], clients=OWNERS)
    # A misspelt column of joined tables holds NaN, but that is not what is wrong.
    joined = pd.concat([table[:30], table[30:].rename(columns={"b": "B"})])
    for data, owners in ((joined, OWNERS), ([joined[k == OWNERS] for k in range(5)], None)):
        for method in (gm.fit, gm.partial_fit):
            says = r"columns of the last fit.*got \['a', 'b', 'B'\]"
            with pytest.raises(ValueError, match=says):
                method(data, clients=owners)
    with pytest.raises(TypeError, match="column names of client 0 to be strings"):
        gm.partial_fit([table.rename(columns={"b": 2})])
    for method in (gm.fit, gm.partial_fit):
        with pytest.raises(ValueError, match="at least one client, got an empty list"):
            method([])
    assert pickle.dumps(gm) == before
    fit(gm, X, clients=OWNERS)  # an array has no names to compare


def test_it_converges_to_the_same_fit_with_other_rows_of_other_clients():
    gm = FederatedGaussianMixture(**{**GIVEN, "tol": 1e-9}, covariance_type="tied", max_iter=500)
    gm.set_params(warm_start=True).fit(make_clients((50, 60), seed=3))
    others = [client + np.array([0.3, -0.2]) for client in CLIENTS]
    cold = clone(gm).set_params(warm_start=False).fit(others)
    gm.fit(others)
    # Both stop within about tol of the optimum, in which the log-likelihood is quadratic.
    assert gm.lower_bound_ == pytest.approx(cold.lower_bound_, abs=1e-7)
    assert_allclose(gm.means_, cold.means_, atol=1e-3)


@pytest.mark.parametrize("setting", ["exact", "all rows"])
@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag", "spherical"])
def test_rows_beyond_all_measure_are_refused_and_named(covariance_type, setting):
    gm = FederatedGaussianMixture(
        **SETTINGS[setting], covariance_type=covariance_type, max_iter=5, warm_start=True
    )
    before = fit(gm, CLIENTS).means_
    others = [rows.copy() for rows in CLIENTS]
    others[2][3, 1] = 1e80
    says = r"got 1 beyond for client 2\. .* warm_start=False"
    with pytest.raises(ValueError, match=says):
        gm.fit(others)
    assert gm.means_ is before
    fit(gm.set_params(warm_start=False), others[:2])


def test_another_solver_goes_on_from_the_control_variates():
    gm = FederatedGaussianMixture(**SETTINGS["variance reduced"], max_iter=9, warm_start=True)
    drift = fit(gm, CLIENTS).client_drift_
    fit(gm.set_params(solver="fedem", max_iter=0), CLIENTS)
    assert_array_equal(gm.client_drift_, drift)
    fit(gm.set_params(solver="vr_fedem", max_iter=30), CLIENTS)
    assert_memory_is_the_mean(gm)


def test_another_regularisation_acts_at_once():
    gm = FederatedGaussianMixture(**GIVEN, max_iter=5, warm_start=True)
    before = fit(gm, CLIENTS).covariances_
    fit(gm.set_params(reg_covar=0.5, max_iter=0), CLIENTS)
    # 0.5 in place of 1e-6, in the rows' units.
    assert_allclose(gm.covariances_, before + (0.5 - 1e-6) * np.eye(2), atol=1e-9)


def wide_of_the_rows(max_iter, **parameters):
    """Rows, and a fit of them whose means, beside a known covariance, are too far apart."""
    rng = np.random.default_rng(0)
    centers = 4.0 * np.array([[-1, -1], [0, 0], [1, 1]])
    rows = centers[rng.integers(3, size=300)] + rng.normal(size=(300, 2))
    known = {"covariance_type": "tied", "fixed_covariance": np.eye(2), "means_init": 1.1 * centers}
    gm = FederatedGaussianMixture(
        3, **known, omega=1.0, max_iter=max_iter, warm_start=True, random_state=0, **parameters
    )
    return gm, [rows[k::6] for k in range(6)]


def test_a_known_covariance_may_be_released_where_means_are_too_far_apart():
    # The rest that they leave of the second moment is no covariance. (Longer steps would have
    # brought them nearer in three rounds.)
    gm, clients = wide_of_the_rows(3, step_size=0.3)
    fit(gm, clients)
    gm.set_params(step_size="auto")
    cold = FederatedGaussianMixture(
        3, covariance_type="tied", weights_init=gm.weights_, means_init=gm.means_
    ).fit(clients)
    gm.set_params(fixed_covariance=None, max_iter=100).fit(clients)
    assert gm.score(clients) == pytest.approx(cold.score(clients), abs=1e-5)
    # Statistics for a new Ŝ, besides the second moments of two features.
    assert gm.history_["uplink_bits"][0] == 64 * 6 * (3 * (1 + 2) + 3)
    assert_memory_is_the_mean(gm)


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("first", ["fit", "partial_fit"])
@pytest.mark.parametrize("rows", ["all", "of one component", "one"])
def test_a_stream_may_release_a_known_covariance_with_any_rows(rows, first, participation):
    gm, clients = wide_of_the_rows(3, participation=participation)
    together = np.concatenate(clients)
    batch = {
        "all": clients,
        "of one component": [together[together.sum(axis=1) > 6][:20]],
        "one": [together[:1]],
    }[rows]
    if first == "fit":
        fit(gm, clients)
    else:
        gm.partial_fit(clients)
    gm.set_params(fixed_covariance=None).partial_fit(batch)
    em = FederatedGaussianMixture(3, covariance_type="tied", random_state=0).fit(clients)
    # Of a moment of 12, a tenth is left in place of 1.
    assert gm.score(clients) > em.score(clients) - 0.2
    assert_memory_is_the_mean(gm)
    for _ in range(20):
        gm.partial_fit(clients)
    assert gm.score(clients) > em.score(clients) - 0.01


def test_a_stream_may_release_a_known_covariance_beside_a_constant_feature():
    # The second moment is 0 along that axis: what reg_covar adds keeps it positive.
    gm, clients = wide_of_the_rows(3)
    clients = [np.column_stack([rows, np.full(len(rows), 7.0)]) for rows in clients]
    means = np.column_stack([gm.means_init, np.full(3, 7.0)])
    fit(gm.set_params(fixed_covariance=np.eye(3), means_init=means), clients)
    gm.set_params(fixed_covariance=None).partial_fit(clients)
    assert np.isfinite(gm.score(clients))
    assert_allclose(gm.means_[:, 2], 7.0, rtol=1e-12)


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
@pytest.mark.filterwarnings("ignore:The variance of")
def test_regularisation_may_be_less_after_noisy_rounds(method):
    # Noise may take a variance to minus half of what reg_covar adds.
    rng = np.random.default_rng(1)
    component = rng.integers(3, size=300)
    rows = 4.0 * (component[:, None] - 1) + rng.normal(size=(300, 3))
    rows[:, 2] = rng.random(300) < np.array([0.01, 0.5, 0.99])[component]
    clients = [rows[k::6] for k in range(6)]
    gm = FederatedGaussianMixture(
        3, omega=1.0, participation=0.5, reg_covar=1e-2, max_iter=60, warm_start=True
    )
    for seed in (2, 4, 5):
        before = fit(clone(gm).set_params(random_state=seed), clients)
        score = before.score(clients)
        after = before.set_params(reg_covar=1e-6)
        if method == "fit":
            fit(after, clients)
        else:
            after.partial_fit(clients)
        assert after.score(clients) > score


def test_a_warm_run_is_resumed_bit_for_bit(tmp_path):
    path = tmp_path / "run.npz"
    gm = FederatedGaussianMixture(**NOISY, max_iter=6, warm_start=True)
    fit(gm, CLIENTS)
    fit(gm.set_params(checkpoint=path, max_iter=4), CLIENTS)
    fresh = clone(gm).set_params(max_iter=9)
    fit(fresh, CLIENTS, resume_from=path)
    whole = fit(clone(gm).set_params(max_iter=15, checkpoint=None), CLIENTS)
    assert fresh.n_iter_ == 9
    assert_array_equal(fresh.means_, whole.means_)
    # In other units the saved statistics would be others.
    moved = fit(clone(gm).set_params(checkpoint=None), [client * 2 for client in CLIENTS])
    fit(moved.set_params(checkpoint=path), CLIENTS)
    with pytest.raises(ValueError, match="constants of the model"):
        fit(clone(gm), CLIENTS, resume_from=path)


@pytest.mark.parametrize("stop", [-1, 0, 1])
def test_runs_go_on_where_an_outer_loop_was_begun_early(tmp_path, stop):
    images, digits = load_digits(return_X_y=True)
    rows = PCA(15, svd_solver="full").fit_transform(images)
    settings = {"n_components": 5, "reg_covar": 0.1, "tol": 0.0, "random_state": 9}
    settings |= {"solver": "vr_fedem", "batch_size": 5}
    whole = fit(FederatedGaussianMixture(**settings, max_iter=90), rows, clients=digits)
    (cut,) = np.flatnonzero(whole.history_["safeguarded"])
    first = int(cut) + stop  # rounds until the checkpoint
    path = tmp_path / "run.npz"
    begun = FederatedGaussianMixture(
        **settings, max_iter=first, warm_start=True, checkpoint=path, checkpoint_every=first
    )
    fit(begun, rows, clients=digits)
    resumed = clone(begun).set_params(max_iter=90)
    fit(resumed, rows, clients=digits, resume_from=path)
    warm = fit(begun.set_params(max_iter=90 - first), rows, clients=digits)
    for gm in (resumed, warm):
        assert_array_equal(gm.means_, whole.means_)
        assert_array_equal(gm.covariances_, whole.covariances_)


def test_a_failing_fit_leaves_the_last_one():
    gm = FederatedGaussianMixture(**NOISY, max_iter=6, warm_start=True)
    fit(gm, CLIENTS)
    controls, means = gm._memory.controls.copy(), gm.means_.copy()

    def fails(round_number):
        if round_number == 9:
            raise RuntimeError("on the way")
        return 0.1

    with pytest.raises(RuntimeError, match="on the way"):
        fit(gm.set_params(step_size=fails), CLIENTS)
    assert_array_equal(gm._memory.controls, controls)
    assert_array_equal(gm.means_, means)


def test_variance_reduction_begins_anew_on_other_rows():
    rng = np.random.default_rng(0)
    first = [rng.choice([-3, 3], size=(200, 1)) + rng.normal(size=(200, 1)) for _ in range(4)]
    other = [1.5 * rows + 10 for rows in first]
    gm = FederatedGaussianMixture(
        2, solver="vr_fedem", batch_size=20, n_inner=500, step_size=0.3, max_iter=100, tol=0,
        control_init="zeros", warm_start=True, random_state=0,
    )  # fmt: skip
    fit(fit(gm, first), other)
    # Their mean is 10, of which 500 rounds would hear nothing otherwise.
    assert abs(gm.weights_ @ gm.means_ - 10).max() < 1


@pytest.mark.parametrize("change", ["rows", "weights"])
def test_variance_reduction_begins_anew_where_rows_changed_between_the_first_and_the_last(change):
    # The estimates of the clients, kept, would agree with the fit that they come from.
    rng = np.random.default_rng(0)
    clients = [rng.normal(size=(400, 1)) for _ in range(5)]
    before, weights = [rows.copy() for rows in clients], [rng.integers(1, 9, 400) for _ in clients]
    weighted = [{"sample_weight": weights}] * 2
    if change == "rows":
        for rows in before:
            rows[5:200] += 10
        weighted = [{}] * 2
    else:
        weighted[0] = {"sample_weight": [weight[::-1] for weight in weights]}
    gm = FederatedGaussianMixture(
        1, solver="vr_fedem", batch_size=20, n_inner=200, participation=0.5, max_iter=2000,
        warm_start=True, random_state=0,
    )  # fmt: skip
    gm.fit(before, **weighted[0]).fit(clients, **weighted[1])
    pooled = np.concatenate(clients)[:, 0]
    mean = np.average(pooled, weights=np.concatenate(weights) if change == "weights" else None)
    assert_allclose(gm.means_[0, 0], mean, atol=0.01)


SPIDER = {
    "n_components": 1,
    "solver": "vr_fedem",
    "batch_size": 20,
    "n_inner": 500,
    "step_size": 0.3,
    "control_init": "zeros",
    "warm_start": True,
    "tol": 0.0,
    "random_state": 0,
}


def test_estimates_of_clients_begin_anew_with_other_weights_of_the_same_rows():
    rng = np.random.default_rng(0)
    clients = [rng.normal(size=(200, 1)) for _ in range(4)]
    weights = [np.where(rows[:, 0] > 0, 9.0, 1.0) for rows in clients]
    gm = fit(FederatedGaussianMixture(**SPIDER), clients, sample_weight=[w[::-1] for w in weights])
    fit(gm, clients, sample_weight=weights)
    mean = np.average(np.concatenate(clients)[:, 0], weights=np.concatenate(weights))
    # A quarter of the way from the mean of the other weights, -0.67 off, would be further.
    assert abs(gm.means_[0, 0] - mean) < 0.1


def test_estimates_of_clients_begin_anew_when_rows_change_hands():
    rows = np.sort(np.random.default_rng(0).normal(size=(400, 1)) * 3, axis=0)
    gm = FederatedGaussianMixture(**SPIDER, max_iter=1)
    fit(gm, rows, clients=np.repeat([0, 1], [300, 100]))
    fit(gm, rows, clients=np.repeat([0, 1], [100, 300]))
    assert gm.history_["epoch"][-1] == 1  # all rows, not a minibatch


def test_a_day_in_other_units_leaves_nothing_in_the_servers_control():
    rng = np.random.default_rng(0)
    gm = FederatedGaussianMixture(
        2, covariance_type="diag", warm_start=True, tol=1e-6, max_iter=1000, random_state=0
    )
    for unit in (1, 1e7, 1, 1):
        fit(gm, [unit * rng.normal(center, 1, size=(100, 2)) for center in (-3, 3, 0, 1)])
    memory = gm._memory
    # The day after still had the rounding of numbers of 1e14.
    assert_allclose(memory.weights @ memory.controls, memory.server.control, atol=1e-12)


def test_another_loop_length_begins_an_outer_loop():
    gm = FederatedGaussianMixture(**{**SPIDER, "batch_size": 4}, max_iter=3)
    fit(gm, CLIENTS)
    assert fit(gm, CLIENTS).history_["epoch"][1] < 1  # the loop goes on
    assert fit(gm.set_params(n_inner=60), CLIENTS).history_["epoch"][1] == 1


def test_frozen_rounds_end_if_other_messages_are_sent():
    gm = FederatedGaussianMixture(**GIVEN, omega=1.0, max_iter=3, warm_start=True)
    fit(gm, CLIENTS)
    gm._memory = gm._memory._replace(server=gm._memory.server._replace(frozen_until=100))
    goes_on = fit(pickle.loads(pickle.dumps(gm)), CLIENTS)
    assert (goes_on.history_["step_size"][1:] == 0).all()
    fit(gm.set_params(omega=0.5), CLIENTS)
    assert (gm.history_["step_size"][1:] > 0).all()


@pytest.mark.parametrize("change", [{"omega": 0.5}, {"batch_size": 9}, {"participation": 0.9}])
def test_a_limit_of_steps_ends_where_rounds_are_of_another_kind(change):
    gm = FederatedGaussianMixture(**{**NOISY, "step_size": "auto"}, max_iter=3, warm_start=True)
    fit(gm, CLIENTS)
    gm._memory = gm._memory._replace(server=gm._memory.server._replace(step_limit=1e-6))
    goes_on = fit(pickle.loads(pickle.dumps(gm)), CLIENTS)
    assert (goes_on.history_["step_size"][1:] <= 1e-6).all()
    fit(gm.set_params(**change), CLIENTS)
    assert (gm.history_["step_size"][1:] > 1e-4).all()


# ------------------------------------------------------------------ imputers


def make_matrices(seed=0):
    rng = np.random.default_rng(seed)
    rates = np.exp(rng.normal(size=(12, 2)) @ rng.normal(size=(2, 8)) / 2)
    seen = rng.random((4, *rates.shape)) < 0.5
    return [np.where(cells, rng.poisson(rates), np.nan) for cells in seen]


MATRICES = make_matrices()
COUNTS = {"rank": 3, "family": "poisson", "penalty": 2.0, "tol": 0.0, "random_state": 0}
NOISY_COUNTS = {**COUNTS, "omega": 1.0, "participation": 0.6}
IMPUTERS = {
    "exact": COUNTS,
    "fixed step": {**COUNTS, "step_size": 0.7},
    "all cells": NOISY_COUNTS,
    "minibatches": {**NOISY_COUNTS, "batch_size": 5},
    "variance reduced": {**NOISY_COUNTS, "batch_size": 5, "solver": "vr_fedem", "n_inner": 7},
}
FITTED = ("intercept_", "row_effects_", "column_effects_", "row_factors_", "singular_values_")


def assert_imputer_memory_is_the_mean(imputer):
    memory = imputer._memory
    offsets = np.concatenate([[0], np.cumsum(memory.totals)])
    vectors = memory.model.vectors(Federation(None, offsets, memory.weights))
    every = np.arange(len(memory.ids))
    parts = [vectors.weighted(memory.weights, every, memory.controls)]
    # Rounding of sums of a few numbers, round after round.
    assert_allclose(memory.server.control, vectors.total(every, parts, [0]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("setting", IMPUTERS)
def test_two_imputations_are_one_of_twice_the_rounds(setting):
    imputer = FederatedMatrixImputer(**IMPUTERS[setting], max_iter=20)
    whole = fit(clone(imputer), MATRICES)
    warm = fit(clone(imputer).set_params(max_iter=13, warm_start=True), MATRICES)
    fit(warm.set_params(max_iter=7), MATRICES)
    for name in (*FITTED, "column_factors_", "client_drift_"):
        assert_array_equal(getattr(warm, name), getattr(whole, name), err_msg=name)
    assert warm.n_iter_ == 7
    assert_array_equal(warm.history_["round"], np.arange(8))
    names = ["field_sq_norm", "step_size", "n_active", "uplink_bits", "singular_values"]
    for name in names:
        assert_array_equal(warm.history_[name][1:], whole.history_[name][14:], err_msg=name)
    # The server knows the cells, and the clients have their control variates.
    for name in ("epoch", "uplink_bits", "downlink_bits"):
        assert warm.history_[name][0] == 0
    assert_imputer_memory_is_the_mean(warm)


@pytest.mark.parametrize("max_iter", [1, 4])
def test_imputers_converge_in_many_short_fits_where_a_long_one_does(max_iter):
    imputer = FederatedMatrixImputer(family="poisson", rank=2, penalty=2.0, warm_start=True)
    whole = fit(clone(imputer).set_params(max_iter=1000), MATRICES)
    short, n_rounds = imputer.set_params(max_iter=max_iter), 0
    while n_rounds < whole.n_iter_:
        assert n_rounds == 0 or not short.converged_
        n_rounds += fit(short, MATRICES).n_iter_
    assert short.converged_ and n_rounds == whole.n_iter_ > max_iter


def test_a_smaller_penalty_does_not_converge_where_the_larger_left_nothing():
    imputer = FederatedMatrixImputer(rank=2, penalty=1e6, warm_start=True)
    fit(fit(imputer, MATRICES), MATRICES)
    assert imputer.converged_ and imputer.n_iter_ == 1 and not imputer.singular_values_.any()
    # The objective is the same, as there is nothing that is penalised.
    fit(imputer.set_params(penalty=1e-3), MATRICES)
    assert imputer.n_iter_ > 5 and imputer.singular_values_.all()


@pytest.mark.parametrize(
    "change",
    [{"penalty": 3.0}, {"rank": 2}, {"effects": "rows"}, {"effects_penalty": 0.5},
     {"client_weights": "uniform"}, {"solver": "vr_fedem", "batch_size": 5}],
    ids=lambda change: next(iter(change)),
)  # fmt: skip
def test_imputers_keep_control_variates_when_parameters_change(change):
    imputer = FederatedMatrixImputer(**NOISY_COUNTS, max_iter=9, warm_start=True)
    drift = fit(imputer, MATRICES).client_drift_
    fit(imputer.set_params(**change, max_iter=0), MATRICES)
    assert_array_equal(imputer.client_drift_, drift)
    assert imputer.history_["uplink_bits"][0] == 0
    fit(imputer.set_params(max_iter=5), MATRICES)
    assert_imputer_memory_is_the_mean(imputer)


def test_the_unit_of_cells_does_not_decide_whether_other_weights_are_noticed():
    settings = {**NOISY_COUNTS, "family": "gaussian", "effects": "none", "max_iter": 9}

    def control(unit):
        matrices = [matrix * unit for matrix in MATRICES]
        imputer = FederatedMatrixImputer(**{**settings, "penalty": 2 * unit}, warm_start=True)
        fit(imputer, matrices)
        fit(imputer.set_params(client_weights="uniform", max_iter=0), matrices)
        return imputer._memory.server.control / unit

    usual = control(1.0)
    # Powers of two change no digit, but for what is compared with a number that has a unit.
    assert_allclose(control(2.0**-40), usual, rtol=0, atol=1e-6 * np.abs(usual).max())


@pytest.mark.parametrize("others", [make_matrices(seed=1), [matrix + 1 for matrix in MATRICES]])
def test_imputers_begin_from_the_parameters_with_other_cells_or_other_values(others):
    imputer = FederatedMatrixImputer(**NOISY_COUNTS, max_iter=9, warm_start=True)
    factors = fit(imputer, MATRICES).singular_values_
    fit(imputer.set_params(max_iter=0), others)
    assert_array_equal(imputer.singular_values_, factors)
    # Control variates and cells are sent anew.
    assert imputer.history_["epoch"][0] == 1
    assert imputer.history_["uplink_bits"][0] > 0


def test_rows_and_columns_of_imputers_are_those_of_the_last_fit():
    sites = [f"site {k}" for k in range(MATRICES[0].shape[0])]
    months = [f"month {k}" for k in range(MATRICES[0].shape[1])]
    tables = [pd.DataFrame(matrix, sites, months) for matrix in MATRICES]
    imputer = fit(FederatedMatrixImputer(**COUNTS, max_iter=3, warm_start=True), tables)
    with pytest.raises(ValueError, match="row labels of the fit, in that order: 'site 0' for row"):
        fit(imputer, [table[::-1] for table in tables])
    with pytest.raises(ValueError, match="column labels of the fit.*warm_start=False"):
        fit(imputer, [table[months[::-1]] for table in tables])
    fit(imputer, tables)


def test_a_warm_imputation_is_resumed_bit_for_bit(tmp_path):
    path = tmp_path / "run.npz"
    imputer = FederatedMatrixImputer(**NOISY_COUNTS, max_iter=6, warm_start=True)
    fit(imputer, MATRICES)
    fit(imputer.set_params(checkpoint=path, max_iter=4), MATRICES)
    resumed = fit(clone(imputer).set_params(max_iter=9), MATRICES, resume_from=path)
    whole = fit(clone(imputer).set_params(max_iter=15, checkpoint=None), MATRICES)
    assert resumed.n_iter_ == 9
    for name in FITTED:
        assert_array_equal(getattr(resumed, name), getattr(whole, name), err_msg=name)


def test_a_fit_of_rows_that_have_no_such_covariance_begins_without_a_field():
    # The means are farther apart than the new rows: no statistic of these gives them.
    rng = np.random.default_rng(0)
    far = [rng.normal(size=(50, 2)) + shift for shift in (-8, 8)]
    near = [0.5 * rng.normal(size=(50, 2)) for _ in range(2)]
    gm = FederatedGaussianMixture(
        2, covariance_type="tied", warm_start=True, max_iter=5, tol=0, random_state=0
    )
    history = fit(fit(gm, far), near).history_
    assert np.isnan(history["mean_field_sq_norm"][0]) and np.isnan(history["field_sq_norm"][1])
    assert np.isfinite(history["mean_field_sq_norm"][1:]).all()
    # Without a round, the next fit begins there as well; with one, it begins from a statistic.
    fit(clone(gm).set_params(max_iter=0), far)
    start = {"means_init": gm.means_ + np.array([[9.0], [-9.0]]), "precisions_init": np.eye(2)}
    again = fit(clone(gm).set_params(max_iter=0, **start), near)
    for max_iter in (2, 1):
        history = fit(again.set_params(max_iter=max_iter), near).history_
        assert np.isnan(history["mean_field_sq_norm"][0]) == (max_iter == 2)


def test_imputers_keep_what_warm_starts_need_and_no_more():
    imputer = fit(FederatedMatrixImputer(**COUNTS, max_iter=5), MATRICES)
    assert imputer._memory is None
    means = imputer.fitted_mean()
    fit(imputer.set_params(warm_start=True, max_iter=0), MATRICES)
    assert_allclose(imputer.fitted_mean(), means, rtol=1e-6)
    copied = pickle.loads(pickle.dumps(imputer))
    fit(imputer.set_params(max_iter=5), MATRICES)
    fit(copied.set_params(max_iter=5), MATRICES)
    assert_array_equal(copied.fitted_mean(), imputer.fitted_mean())
    search = FederatedMatrixImputerCV(
        [2], penalties=[2.0], effects_penalties=[1.0], n_splits=2, tol=0.1, random_state=0
    )
    assert fit(search, MATRICES).best_estimator_._memory is None


def test_fits_go_on_after_a_round_that_the_server_did_not_finish(monkeypatch):
    # Clients have moved their control variates then.
    in_round_5 = interrupted(_loop.server_half, at=5)
    monkeypatch.setattr(_loop, "server_half", in_round_5)
    gm = FederatedGaussianMixture(**NOISY, warm_start=True)
    imputer = FederatedMatrixImputer(**NOISY_COUNTS, warm_start=True)
    fit(gm, CLIENTS)
    in_round_5.n_calls = 0
    fit(imputer, MATRICES)
    assert gm.n_iter_ == imputer.n_iter_ == 4
    assert_memory_is_the_mean(gm)
    assert_imputer_memory_is_the_mean(imputer)


@pytest.mark.parametrize(
    ("estimator", "steps"),
    [
        (FederatedGaussianMixture(2, random_state=0), MixtureFit),
        (FederatedMatrixImputer(1), MatrixFit),
    ],
)
def test_a_fit_that_is_stopped_while_it_is_stored_leaves_the_earlier_one(
    estimator, steps, monkeypatch
):
    estimator = clone(estimator).set_params(warm_start=True).fit(CLIENTS[:1])
    earlier = dict(vars(estimator))

    monkeypatch.setattr(steps, "fitted", interrupted(None, at=1))
    with pytest.raises(KeyboardInterrupt):
        estimator.fit([CLIENTS[0] + 1])
    assert vars(estimator).keys() == earlier.keys()
    assert all(vars(estimator)[name] is value for name, value in earlier.items())


def test_imputers_whose_clients_count_in_another_way_begin_with_other_effects():
    imputer = FederatedMatrixImputer(**{**COUNTS, "rank": 2}, warm_start=True, max_iter=5)
    before = fit(imputer, MATRICES).intercept_
    imputer.set_params(client_weights="uniform", max_iter=0).fit(MATRICES)
    assert abs(imputer.intercept_ - before) > 1e-4


def test_a_fixed_step_does_not_take_over_how_far_an_automatic_one_had_grown():
    imputer = FederatedMatrixImputer(**COUNTS, warm_start=True, max_iter=30)
    grown = fit(imputer, MATRICES)._memory.server.statistics.natural_step
    imputer.set_params(step_size=1.0, max_iter=0).fit(MATRICES)
    assert imputer._memory.server.statistics.natural_step < grown


def test_a_fit_that_goes_on_is_evaluated_every_so_many_rounds_of_its_own():
    gm = FederatedGaussianMixture(**NOISY, eval_every=4, max_iter=6, warm_start=True)
    for fitted in (fit(gm, CLIENTS), fit(gm, CLIENTS)):
        evaluated = np.flatnonzero(np.isfinite(fitted.history_["log_likelihood"]))
        assert evaluated.tolist() == [0, 4, 6]


def test_of_exact_rounds_only_the_last_is_evaluated_by_itself(monkeypatch):
    evaluate, asked = _loop.evaluate, []
    monkeypatch.setattr(_loop, "evaluate", lambda *args: asked.append(args) or evaluate(*args))
    gm = fit(FederatedGaussianMixture(**GIVEN, max_iter=5), CLIENTS)
    assert len(asked) == 1
    assert np.isfinite(gm.history_["log_likelihood"]).all()


@pytest.mark.parametrize("control_step", [0.5, 1.0])  # with 0.5, V_i = h_i(Ŝ) are sent first
@pytest.mark.parametrize("eval_every", ["auto", None])
@pytest.mark.parametrize("estimator", [FederatedGaussianMixture(**GIVEN), FederatedMatrixImputer()])
def test_a_start_without_a_round_is_evaluated_once(
    estimator, eval_every, control_step, monkeypatch
):
    asked = []
    for module in (_loop, _state, fit_of_imputers):
        evaluate = module.evaluate
        monkeypatch.setattr(
            module,
            "evaluate",
            lambda *args, do=evaluate, **options: asked.append(args) or do(*args, **options),
        )
    estimator = clone(estimator).set_params(
        max_iter=0, eval_every=eval_every, control_step=control_step
    )
    is_mixture = isinstance(estimator, FederatedGaussianMixture)
    fitted = fit(estimator, CLIENTS if is_mixture else MATRICES)
    assert len(asked) == 1
    assert np.isfinite(fitted.lower_bound_ if is_mixture else fitted.objective_)
    criterion = fitted.history_["log_likelihood" if is_mixture else "objective"]
    assert np.isfinite(criterion).all() == (eval_every is not None)
