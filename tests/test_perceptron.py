"""Federated perceptrons as their users see them."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skfedem import FederatedMLPClassifier, FederatedMLPRegressor
from skfedem.clients.local import LocalClients
from skfedem.compression import Dithering
from skfedem.priors import GaussianPrior, LaplacePrior, SpikeSlabPrior

COLUMNS = {
    "round",
    "epoch",
    "loss",
    "sparsity",
    "gate_disagreement",
    "score",
    "local_score",
    "n_active",
    "uplink_bits",
    "downlink_bits",
}
QUICK = {"learning_rate_init": 0.2, "batch_size": 16, "max_iter": 12, "random_state": 0}


@pytest.fixture(scope="module")
def digits():
    """Tables and targets of ten clients, most with two digits, and all of them in one table."""
    X, y = load_digits(return_X_y=True)
    X, y = X[:1000] / 16, y[:1000]
    owners = np.where(np.arange(1000) % 5, y, (y + 1) % 10)
    tables = [X[owners == k] for k in range(10)]
    return tables, [y[owners == k] for k in range(10)], X, y, owners


@pytest.fixture(scope="module")
def fitted(digits):
    tables, targets, *_ = digits
    return FederatedMLPClassifier((), **{**QUICK, "max_iter": 60}).fit(tables, targets)


# ---- fits


def test_digits_of_clients_with_two_digits_each(digits, fitted):
    tables, targets, X, y, _ = digits
    assert fitted.score(X, y) > 0.85
    assert fitted.score(tables, targets) == fitted.score(X, y)
    assert fitted.score(tables, targets, personal=True) > 0.93
    assert fitted.n_iter_ == 60 and len(fitted.loss_curve_) == 60
    assert fitted.loss_ == fitted.loss_curve_[-1] < fitted.loss_curve_[0]
    assert fitted.coefs_[0].shape == (64, 10) and fitted.intercepts_[0].shape == (10,)
    assert (fitted.n_layers_, fitted.n_outputs_, fitted.out_activation_) == (2, 10, "softmax")
    assert fitted.sparsity_ == 0 and fitted.n_clients_ == 10


def test_lists_and_labels_are_one(digits):
    tables, targets, X, y, owners = digits
    clf = FederatedMLPClassifier((8,), **QUICK)
    one, other = clone(clf).fit(tables, targets), clone(clf).fit(X, y, clients=owners)
    assert_array_equal(one.coefs_[0], other.coefs_[0])
    own = other.predict(X, clients=owners)
    stacked = np.concatenate(one.predict(tables, personal=True))
    assert_array_equal(own[np.argsort(owners, kind="stable")], stacked)
    names = np.array([f"site {k}" for k in range(10)])[owners]
    named = clone(clf).fit(X, y, clients=names)
    assert_array_equal(named.coefs_[0], one.coefs_[0])
    assert_array_equal(named.predict(X, clients=names), own)
    assert named.client_ids_[3] == "site 3"


def test_labels_of_any_type(digits):
    _, _, X, y, owners = digits
    plain = FederatedMLPClassifier((), **QUICK).fit(X, y, clients=owners)
    for labels in (np.array([f"digit {k}" for k in range(10)]), np.arange(10) * 2.0 - 3):
        clf = FederatedMLPClassifier((), **QUICK).fit(X, labels[y], clients=owners)
        assert_array_equal(clf.classes_, labels)
        assert_array_equal(clf.predict(X), labels[plain.predict(X)])
    flags = FederatedMLPClassifier((), **QUICK).fit(X, y > 4, clients=owners)
    assert flags.predict(X).dtype == bool and flags.out_activation_ == "logistic"
    assert_allclose(flags.predict_proba(X).sum(axis=1), 1)
    assert_array_equal(flags.predict_proba(X)[:, 1] > 0.5, flags.predict(X))


def test_a_single_class():
    clf = FederatedMLPClassifier((3,), **QUICK).fit(
        [np.eye(3), np.ones((1, 3))], [["a"] * 3, ["a"]]
    )
    assert_array_equal(clf.predict(np.eye(3)), ["a"] * 3)
    assert_array_equal(clf.predict_proba(np.eye(3)), np.ones((3, 1)))


def test_clients_with_fewer_rows_than_a_minibatch():
    generator = np.random.default_rng(0)
    tables = [generator.normal(size=(n, 2)) for n in (1, 2, 70, 200)]
    targets = [(table[:, 0] > 0).astype(int) for table in tables]
    clf = FederatedMLPClassifier((), learning_rate_init=0.5, max_iter=60, random_state=0)
    assert clf.fit(tables, targets).score(tables, targets) > 0.97


def test_linear_regression_with_targets_in_any_units():
    generator = np.random.default_rng(0)
    tables = [generator.normal(size=(n, 3)) + n / 50 for n in (20, 30, 50)]
    targets = [table @ [1.0, -2.0, 0.5] + generator.normal(size=len(table)) for table in tables]
    pooled = Ridge(alpha=0).fit(np.vstack(tables), np.concatenate(targets))
    for factor, shift in ((1.0, 0.0), (1e6, -3e8)):
        reg = FederatedMLPRegressor((), alpha=0, batch_size=None, max_iter=800, random_state=0)
        reg.set_params(learning_rate_init=0.3)
        goals = [factor * own + shift for own in targets]
        reg.fit(tables, goals)
        assert_allclose(reg.coefs_[0][:, 0], factor * pooled.coef_, rtol=1e-5)
        best = pooled.score(np.vstack(tables), np.concatenate(targets))
        assert_allclose(reg.score(tables, goals), best, rtol=1e-6)
        residual = np.concatenate(goals) - np.concatenate(reg.predict(tables))
        assert_allclose(reg.loss_, (residual**2).mean() / 2, rtol=1e-5)


def test_several_targets():
    generator = np.random.default_rng(0)
    tables = [generator.normal(size=(40, 3)) for _ in range(3)]
    targets = [table @ [[1.0, 200.0], [0.5, 0.0], [0.0, 300.0]] + [5.0, -7.0] for table in tables]
    reg = FederatedMLPRegressor((), alpha=0, batch_size=None, max_iter=300, random_state=0)
    reg.set_params(learning_rate_init=0.3).fit(tables, targets)
    assert_allclose(reg.predict(tables[0]), targets[0], atol=1e-2)
    assert_allclose(reg.predict(tables, personal=True)[0], targets[0], atol=1e-2)
    assert FederatedMLPRegressor((), **QUICK).fit(tables[0], targets[0][:, 0]).predict(
        tables[0]
    ).shape == (40,)


def test_constant_targets_and_features():
    tables = [np.full((5, 2), 3.0), np.full((4, 2), 3.0)]
    reg = FederatedMLPRegressor((4,), **QUICK).fit(tables, [np.full(5, 7.0), np.full(4, 7.0)])
    assert np.isfinite(reg.predict(tables[0])).all()


def test_32_bit_rows_are_computed_in_32_bits(digits):
    tables, targets, X, _, _ = digits
    clf = FederatedMLPClassifier((5,), **QUICK).fit([t.astype(np.float32) for t in tables], targets)
    exact = FederatedMLPClassifier((5,), **QUICK).fit(tables, targets)
    assert clf.predict_proba(X.astype(np.float32)).dtype == np.float32
    assert_allclose(clf.coefs_[0], exact.coefs_[0], atol=1e-3)


def test_row_weights_are_repetitions_in_full_batches():
    generator = np.random.default_rng(0)
    X, owners = generator.normal(size=(30, 3)), np.repeat([0, 1, 2], 10)
    y, counts = (X[:, 0] > 0).astype(int), generator.integers(0, 3, size=30)
    clf = FederatedMLPClassifier((4,), batch_size=None, max_iter=30, random_state=0)
    weighted = clone(clf).fit(X, y, clients=owners, sample_weight=counts)
    chosen = np.repeat(np.arange(30), counts)
    repeated = clone(clf).fit(X[chosen], y[chosen], clients=owners[chosen])
    assert_allclose(weighted.coefs_[0], repeated.coefs_[0], atol=1e-6)
    shuffled = generator.permutation(30)
    again = clone(clf).fit(
        X[shuffled], y[shuffled], clients=owners[shuffled], sample_weight=counts[shuffled]
    )
    assert_allclose(again.coefs_[0], weighted.coefs_[0], atol=1e-6)
    score = clf.fit(X, y).score(X, y, sample_weight=counts)
    assert_allclose(score, np.average(clf.predict(X) == y, weights=counts))


# ---- priors, SCAFFOLD, compression, participation


@pytest.mark.filterwarnings("ignore:target_sparsity")  # of which forty rounds reach .23 of .3
@pytest.mark.parametrize(
    "settings",
    [
        {"prior": "laplace", "prior_precision": 0.001},
        {"prior": "mixture", "participation": 0.7},
        {"prior": "spike_slab", "target_sparsity": 0.3, "warmup_rounds": 5},
        {"prior": "spike_slab", "gates": "weights", "control_variates": True},
        {"control_variates": True, "participation": 5},
        {"omega": 1.0},
        {"omega": 1.0, "prior": "spike_slab"},
        {"compressor": Dithering(levels=4), "omega": 10.0, "control_step": 0.5},
        {"server_optimizer": "adam", "server_learning_rate": 0.05},
        {"server_optimizer": "sgd"},
        {"client_weights": "uniform", "local_epochs": 2, "prior_precision": 0.1},
    ],
)
@pytest.mark.parametrize("hidden", [(), (16,)])
def test_every_way_learns_the_digits(digits, settings, hidden):
    tables, targets, X, y, _ = digits
    clf = FederatedMLPClassifier(hidden, **{**QUICK, "max_iter": 40}, **settings)
    clf.fit(tables, targets)
    # The median of clients with two digits each learns least.
    assert clf.score(X, y) > 0.45
    assert clf.score(tables, targets, personal=True) > 0.7
    assert set(clf.history_) == COLUMNS and (clf.history_["uplink_bits"][1:] > 0).any()
    zeros = sum((own == 0).sum() for own in (*clf.coefs_, *clf.intercepts_))
    size = sum(own.size for own in (*clf.coefs_, *clf.intercepts_))
    assert_allclose(clf.sparsity_, zeros / size)


def test_names_and_objects_of_priors_are_one(digits):
    tables, targets, *_ = digits
    pairs = [
        ({"prior_precision": 0.3}, GaussianPrior(0.3)),
        ({"prior": "laplace", "prior_precision": 0.02}, LaplacePrior(0.02)),
        (
            {"prior": "spike_slab", "l0_penalty": 1e-3, "warmup_rounds": 3, "gates": "features"},
            SpikeSlabPrior(l0_penalty=1e-3, warmup_rounds=3, gates="features"),
        ),
    ]
    for settings, prior in pairs:
        named = FederatedMLPClassifier((), **QUICK, **settings).fit(tables, targets)
        given = FederatedMLPClassifier((), **QUICK, prior=prior).fit(tables, targets)
        assert_array_equal(named.coefs_[0], given.coefs_[0])


def test_a_target_that_was_missed_is_told(digits):
    tables, targets, *_ = digits
    clf = FederatedMLPClassifier((), prior="spike_slab", target_sparsity=0.9, **QUICK)
    with pytest.warns(ConvergenceWarning, match="target_sparsity=0.9 was not reached, but 0"):
        clf.fit(tables, targets)
    assert clf.sparsity_ < 0.9


@pytest.mark.filterwarnings("ignore:target_sparsity")
def test_history_of_fedsparse(digits):
    tables, targets, X, y, _ = digits
    clf = FederatedMLPClassifier(
        (), prior="spike_slab", target_sparsity=0.3, warmup_rounds=6, participation=4,
        l0_penalty=1e-3, eval_every=5, **{**QUICK, "max_iter": 60},
    )  # fmt: skip
    clf.fit(tables, targets, X_val=tables, y_val=targets)
    history = clf.history_
    assert_array_equal(history["round"], np.arange(61))
    assert_array_equal(history["n_active"], [0] + [4] * 60)
    assert (np.diff(history["sparsity"]) >= 0).all() and history["sparsity"][-1] == clf.sparsity_
    assert not history["sparsity"][:7].any()
    assert np.isnan(history["gate_disagreement"][:7]).all()
    assert ((history["gate_disagreement"][7:] >= 0) & (history["gate_disagreement"][7:] < 1)).all()
    evaluated = np.flatnonzero(~np.isnan(history["score"]))
    assert_array_equal(evaluated, np.arange(5, 61, 5))
    assert history["score"][-1] == clf.score(X, y)
    own = [
        clf.score(t, g, clients=[k] * len(g))
        for k, (t, g) in enumerate(zip(tables, targets, strict=True))
    ]
    assert_allclose(history["local_score"][-1], np.mean(own))
    assert_array_equal(history["uplink_bits"][1:7], 4 * 32 * 650)
    assert history["uplink_bits"][-1] < 0.8 * 4 * 32 * 650


def test_bits_of_fedavg_and_scaffold(digits):
    tables, targets, *_ = digits
    for scaffold in (False, True):
        clf = FederatedMLPClassifier((7,), **QUICK, participation=3, control_variates=scaffold)
        history = clf.fit(tables, targets).history_
        d = 64 * 7 + 7 + 7 * 10 + 10
        assert_array_equal(history["uplink_bits"][1:], 3 * 32 * d)
        assert_array_equal(history["downlink_bits"][1:], 3 * (64 if scaffold else 32) * d)
        assert history["epoch"][-1] > 0


def test_a_client_that_never_took_part_has_the_global_model(digits):
    tables, targets, *_ = digits
    clf = FederatedMLPClassifier((), **{**QUICK, "max_iter": 1}, participation=1).fit(
        tables, targets
    )
    own, everyone = clf.predict_proba(tables, personal=True), clf.predict_proba(tables)
    same = [np.array_equal(a, b) for a, b in zip(own, everyone, strict=True)]
    # The server has the parameters of the only client, too, but those of 32 bits.
    assert sum(same) >= 9
    assert_array_equal(
        clf.predict(tables[0], clients=[77] * len(tables[0])), clf.predict(tables[0])
    )


def test_rounds_without_clients_are_recorded(digits):
    tables, targets, *_ = digits
    clf = FederatedMLPClassifier((), **{**QUICK, "max_iter": 40}, participation=0.05)
    history = clf.fit(tables, targets).history_
    empty = history["n_active"][1:] == 0
    assert 0 < empty.sum() < 40
    assert_array_equal(np.isnan(history["loss"][1:]), empty)
    assert not history["uplink_bits"][1:][empty].any() and np.isfinite(clf.loss_)


def test_a_layer_that_is_pruned_away_is_a_warning(digits):
    tables, targets, X, _, _ = digits
    prior = SpikeSlabPrior(l0_penalty=1.0, warmup_rounds=0, threshold_rates=(1.0, 1.0))
    with pytest.warns(ConvergenceWarning, match="All coefficients of layer 0 were pruned"):
        clf = FederatedMLPClassifier((4,), prior=prior, **QUICK).fit(tables, targets)
    assert np.isfinite(clf.predict_proba(X)).all()
    assert (clf.predict_proba(X) == clf.predict_proba(X)[0]).all()


def test_ensembles_have_an_axis_of_models_and_average_probabilities(digits):
    tables, targets, X, _, _ = digits
    clf = FederatedMLPClassifier((), prior="mixture", n_components=3, **QUICK).fit(tables, targets)
    assert clf.coefs_[0].shape == (3, 64, 10)
    odds = np.exp(X @ clf.coefs_[0] + clf.intercepts_[0][:, None])
    mean = (odds / odds.sum(axis=2, keepdims=True)).mean(axis=0)
    assert_allclose(clf.predict_proba(X), mean, rtol=1e-10)
    assert_allclose(clf.predict_log_proba(X), np.log(mean), atol=1e-10)


# ---- continuing


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"control_variates": True, "participation": 0.6},
        {"omega": 1.0, "participation": 4},
        {"prior": "spike_slab", "warmup_rounds": 4, "l0_penalty": 1e-3},
        {"prior": "mixture", "server_optimizer": "adam", "server_learning_rate": 0.05},
    ],
)
def test_two_fits_of_k_rounds_are_one_of_2k_and_so_is_a_checkpoint(digits, settings, tmp_path):
    tables, targets, *_ = digits
    settings = {**QUICK, **settings}
    whole = FederatedMLPClassifier((6,), **settings).fit(tables, targets)
    twice = FederatedMLPClassifier((6,), **{**settings, "max_iter": 6}, warm_start=True)
    twice.fit(tables, targets).fit(tables, targets)
    path = tmp_path / "run.npz"
    saved = FederatedMLPClassifier((6,), **{**settings, "max_iter": 7}, checkpoint=path)
    saved.set_params(checkpoint_every=3).fit(tables, targets)
    resumed = FederatedMLPClassifier((6,), **{**settings, "random_state": None})
    resumed.set_params(n_jobs=2).fit(tables, targets, resume_from=path)
    for other in (twice, resumed):
        for one, two in zip(whole.coefs_, other.coefs_, strict=True):
            assert_allclose(two, one, rtol=0, atol=1e-6 if other is twice else 0)
    assert_array_equal(resumed.history_["loss"], whole.history_["loss"])
    assert_array_equal(resumed.history_["uplink_bits"], whole.history_["uplink_bits"])
    assert_array_equal(
        np.concatenate(resumed.predict(tables, personal=True)),
        np.concatenate(whole.predict(tables, personal=True)),
    )
    with pytest.raises(ValueError, match="Expected a checkpoint of this run"):
        FederatedMLPClassifier((6,), **settings, alpha=0.5).fit(tables, targets, resume_from=path)


def test_calls_of_partial_fit_are_rounds(digits):
    tables, targets, *_ = digits
    whole = FederatedMLPClassifier((), **QUICK).fit(tables, targets)
    stream = FederatedMLPClassifier((), **QUICK)
    for _ in range(12):
        stream.partial_fit(tables, targets, classes=np.arange(10))
    assert_allclose(stream.coefs_[0], whole.coefs_[0], atol=1e-6)
    assert stream.n_iter_ == 12
    assert_array_equal(stream.history_["round"], np.arange(13))
    assert_allclose(stream.history_["epoch"], whole.history_["epoch"])


def test_clients_join_and_stay_away(digits):
    _, _, X, y, owners = digits
    stream = FederatedMLPClassifier((), **QUICK, control_variates=True)
    early = owners < 5
    stream.partial_fit(X[early], y[early], classes=np.arange(10), clients=owners[early])
    before = stream.predict_proba(X, clients=owners)
    late = owners > 2
    stream.partial_fit(X[late], y[late], clients=owners[late])
    assert_array_equal(stream.client_ids_, np.arange(10))
    after = stream.predict_proba(X, clients=owners)
    assert_array_equal(after[owners <= 2], before[owners <= 2])
    assert (after[owners > 2] != before[owners > 2]).any(axis=1).all()


@pytest.mark.parametrize("settings", [{"control_variates": True}, {"omega": 1.0}])
@pytest.mark.parametrize("client_weights", ["n_samples", "uniform"])
def test_control_variates_of_a_stream_are_means_over_all_known_clients(
    digits, settings, client_weights
):
    _, _, X, y, owners = digits
    stream = FederatedMLPClassifier((), **QUICK, **settings, client_weights=client_weights)
    n_rows = np.zeros(10)
    for present in (owners < 7, owners > 2, owners == 4):
        stream.partial_fit(X[present], y[present], classes=np.arange(10), clients=owners[present])
        n_rows += np.bincount(owners[present], minlength=10)
        memory, known = stream._memory, np.isin(np.arange(10), stream.client_ids_)
        weights = n_rows[known] / n_rows.sum()
        if client_weights == "uniform":
            weights = np.full(known.sum(), 1 / known.sum())
        want = weights @ memory.controls
        assert_allclose(memory.server.control, want, rtol=0, atol=1e-12 * abs(want).max())
        assert want.any()


def test_parameters_may_change_between_calls_of_a_stream(digits):
    _, _, X, y, owners = digits
    stream = FederatedMLPClassifier((), **QUICK)
    early = owners < 5
    stream.partial_fit(X[early], y[early], classes=np.arange(10), clients=owners[early])
    for change in ({"control_variates": True}, {"keep_local": False}, {"keep_local": True}):
        stream.set_params(**change).partial_fit(X[~early], y[~early], clients=owners[~early])
    assert stream.n_iter_ == 4 and np.isfinite(stream.predict_proba(X, clients=owners)).all()


def test_other_priors_and_gates_begin_anew_in_the_next_fit(digits):
    tables, targets, X, y, _ = digits
    clf = FederatedMLPClassifier((), **QUICK, warm_start=True).fit(tables, targets)
    first = clf.coefs_[0].copy()
    sparse = {"prior": "spike_slab", "warmup_rounds": 0}
    for change in (sparse, {"gates": "weights"}, {"prior": "gaussian"}, {"prior": "laplace"}):
        clf.set_params(**change).fit(tables, targets)
        assert clf.score(X, y) > 0.8
    assert (clf.coefs_[0] != first).any()


def test_regressions_in_streams_keep_their_units():
    generator = np.random.default_rng(0)
    reg = FederatedMLPRegressor((), learning_rate_init=0.1, random_state=0)
    for _ in range(60):
        X = generator.normal(size=(50, 2))
        reg.partial_fit(X, 1000 * X[:, 0] - 400, clients=np.arange(50) % 5)
    assert_allclose(reg.coefs_[0][:, 0], [1000, 0], atol=5)
    assert_allclose(reg.intercepts_[0], -400, atol=5)


# ---- what results do not depend on, and scikit-learn's tools


def test_threads_do_not_change_a_bit(digits, threads_always_pay):
    tables, targets, X, _, _ = digits
    clf = FederatedMLPClassifier((6,), **QUICK, prior="spike_slab", warmup_rounds=2)
    alone, shared = clone(clf).fit(tables, targets), clone(clf).set_params(n_jobs=3)
    shared.fit(tables, targets)
    assert_array_equal(alone.predict_proba(X), shared.predict_proba(X))
    assert threads_always_pay


def test_grid_searches(digits):
    _, _, X, y, owners = digits
    grid = {
        "prior": ["gaussian", "spike_slab"],
        "prior_precision": [0.0, 0.1],
        "omega": [0.0, 1.0],
        "participation": [1.0, 5],
    }
    clf = FederatedMLPClassifier((), **{**QUICK, "max_iter": 3})
    search = GridSearchCV(clf, grid, cv=2, error_score="raise").fit(X, y, clients=owners)
    assert search.best_score_ > 0.3 and len(search.cv_results_["params"]) == 16


def test_pipelines(digits):
    _, _, X, y, _ = digits
    pipe = make_pipeline(StandardScaler(), FederatedMLPClassifier((), **QUICK)).fit(X, y)
    assert pipe.score(X, y) > 0.9


def test_own_models_can_be_left_out(digits):
    tables, targets, X, _, _ = digits
    kept = FederatedMLPClassifier((), **QUICK).fit(tables, targets)
    without = FederatedMLPClassifier((), **QUICK, keep_local=False).fit(
        tables, targets, X_val=tables, y_val=targets
    )
    assert_array_equal(kept.predict(X), without.predict(X))
    assert np.isnan(without.history_["local_score"]).all()
    with pytest.raises(
        ValueError, match="Expected an estimator that was fitted with keep_local=True"
    ):
        without.predict(tables, personal=True)


def test_printed_rounds(digits, capsys):
    tables, targets, *_ = digits
    FederatedMLPClassifier((), **QUICK, verbose=1).fit(tables, targets)
    assert capsys.readouterr().out.splitlines()[0].startswith("  Round 10: epoch 10.0, loss ")
    FederatedMLPClassifier((), **QUICK, verbose=2).fit(tables, targets)
    *rounds, end = capsys.readouterr().out.splitlines()
    assert len(rounds) == 12 and end.startswith("  Ended after 12 rounds, ")


def test_an_interruption_keeps_the_rounds_so_far(digits, monkeypatch):
    tables, targets, X, _, _ = digits
    one_round, calls = LocalClients.round, []

    def interrupted(*args):
        calls.append(None)
        if len(calls) > 5:
            raise KeyboardInterrupt
        return one_round(*args)

    expected = FederatedMLPClassifier((), **{**QUICK, "max_iter": 5}).fit(tables, targets)
    monkeypatch.setattr(LocalClients, "round", interrupted)
    with pytest.warns(ConvergenceWarning, match="Interrupted from the keyboard after 5 rounds"):
        clf = FederatedMLPClassifier((), **QUICK).fit(tables, targets)
    assert_array_equal(clf.predict_proba(X), expected.predict_proba(X))


# ---- bad input

TABLES, GOALS = [np.eye(3), np.ones((2, 3))], [[0, 1, 2], [0, 1]]
REFUSED = {
    "no list of targets": (GOALS[0], {}, "y to be a list with one array for each of the 2"),
    "too few lists": (GOALS[:1], {}, "got a list of 1"),
    "too few targets": ([[0, 1], [0, 1]], {}, "In the targets of client 0: .*3 rows, got 2"),
    "numbers and text": ([[0, 1, 2], ["a", "b"]], {}, "targets of one kind.*text for client 1"),
    "measurements": ([[0.5, 1, 2], [0, 1]], {}, "In the targets of client 0: Unknown label type"),
    "SCAFFOLD of a median": (
        GOALS, {"prior": "laplace", "control_variates": True}, "control_variates=False with Laplace"
    ),
    "SCAFFOLD and memories": (GOALS, {"control_variates": True, "omega": 1.0}, "Use one of them"),
    "a compressed median": (GOALS, {"prior": "laplace", "omega": 1.0}, "median of noisy messages"),
    "memories of gates": (
        GOALS, {"prior": "spike_slab", "omega": 1.0, "control_step": 0.5}, "memories V_i presume"
    ),
    "rate of an average": (GOALS, {"server_learning_rate": 0.5}, "server_optimizer='sgd'"),
    "units without layers": (GOALS, {"prior": "spike_slab", "gates": "units"}, "gates='features'"),
    "unknown prior": (GOALS, {"prior": "spike"}, "Expected prior to be one of 'gaussian'"),
    "no clients": (GOALS, {"participation": 0}, "Expected participation to be an integer >= 1"),
    "too many": (GOALS, {"participation": 1.5}, "Give a probability as a float"),
    "more than all": (GOALS, {"participation": 3}, "at most the number of clients, 2, got 3"),
    "no rounds": (GOALS, {"max_iter": 0}, "Expected max_iter to be an integer >= 1"),
    "no units": (GOALS, {"hidden_layer_sizes": (3, 0)}, "Expected hidden_layer_sizes"),
    "mixture of equals": (GOALS, {"prior": "mixture", "prior_precision": 0.0}, "a number > 0"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    targets, settings, message = REFUSED[case]
    clf = FederatedMLPClassifier(**{"hidden_layer_sizes": (), **settings})
    with pytest.raises((TypeError, ValueError), match=message):
        clf.fit(TABLES, targets)
    assert not any(name.endswith("_") for name in vars(clf))
    with pytest.raises(NotFittedError):
        clf.predict(TABLES)


def test_refused_in_continued_fits(digits):
    clf = FederatedMLPClassifier((), **QUICK)
    with pytest.raises(ValueError, match="Expected classes in the first call"):
        clf.partial_fit(TABLES, GOALS)
    with pytest.raises(ValueError, match=r"Expected labels among the classes .*got 2"):
        clf.partial_fit(TABLES, GOALS, classes=[0, 1])
    clf.partial_fit(TABLES, GOALS, classes=[0, 1, 2])
    with pytest.raises(ValueError, match="Expected the classes of earlier calls"):
        clf.partial_fit(TABLES, GOALS, classes=[0, 1, 2, 3])
    before = clf.coefs_[0].copy()
    with pytest.raises(ValueError, match="has 2 features"):
        clf.partial_fit(np.eye(2), [0, 1], clients=[0, 1])
    clf.set_params(hidden_layer_sizes=(4,), warm_start=True)
    with pytest.raises(ValueError, match="Expected a network of the size of the last fit"):
        clf.fit(TABLES, GOALS)
    assert_array_equal(clf.coefs_[0], before)
    with pytest.raises(ValueError, match="Expected clients with personal=True"):
        clf.predict(np.eye(3), personal=True)


VALIDATION = {
    "other clients": (TABLES[:1], GOALS[:1], "Expected validation data of the 2 clients"),
    "no targets": (TABLES, None, "Expected both X_val and y_val, got None for y_val"),
    "no rows": (None, GOALS, "Expected both X_val and y_val, got None for X_val"),
    "other features": (np.eye(2), [0, 1], "X has 2 features"),
    "too few targets": (np.eye(3), [0, 1], "a target for each of the 3 rows, got 2"),
    "a client without rows": ([TABLES[0], np.empty((0, 3))], GOALS, "In the table of client 1"),
}


@pytest.mark.parametrize("case", VALIDATION)
def test_validation_data_are_refused_before_the_first_round(case, capsys):
    X_val, y_val, message = VALIDATION[case]
    clf = FederatedMLPClassifier((), verbose=2, **QUICK)
    with pytest.raises(ValueError, match=message):
        clf.fit(TABLES, GOALS, X_val=X_val, y_val=y_val)
    assert not capsys.readouterr().out


def test_targets_that_messages_cannot_hold_are_refused():
    X = np.random.default_rng(0).normal(size=(40, 2))
    reg = FederatedMLPRegressor((), **QUICK)
    with pytest.raises(ValueError, match=r"Expected targets up to 1e\+30, .* got .*e\+200"):
        reg.fit(X, X[:, 0] * 1e200)
    assert not hasattr(reg, "coefs_")
    own, before = np.arange(40) % 2, reg.fit(X, X[:, 0]).coefs_[0].copy()
    with pytest.raises(ValueError, match="Give them in other units"):
        reg.partial_fit(X, X[:, 0] * 1e200)
    assert_array_equal(reg.coefs_[0], before)
    rows, goals = X.astype(np.float32), X[:, 0] * 1e29
    reg.fit(rows, goals, clients=own)
    assert np.isfinite([reg.loss_, *reg.loss_curve_, *reg.intercepts_[0]]).all()
    assert reg.score(rows, goals) > 0.9 and reg.score(rows, goals, clients=own) > 0.9


def test_losses_that_overflow_are_an_error():
    # The squared error exceeds the largest float32, but its gradient, times the rate, does not.
    X = np.full((8, 100), 1e19, dtype=np.float32)
    reg = FederatedMLPRegressor((), learning_rate_init=1e-38, max_iter=1, random_state=5)
    with pytest.raises(ValueError, match="Expected finite parameters and losses"):
        reg.fit(X, np.arange(8.0))


def test_diverged_training_is_an_error():
    X = np.random.default_rng(0).normal(size=(50, 2)) * 1e4
    reg = FederatedMLPRegressor((20,), learning_rate_init=10.0, max_iter=50, random_state=0)
    owners = np.repeat(["Ghent", "Graz"], 25)
    X[owners == "Ghent"] /= 1e6
    with pytest.raises(
        ValueError, match=r"client '(Ghent|Graz)' in round \d+: its training diverged. Use a"
    ):
        reg.fit(X, X[:, 0] ** 2, clients=owners)
    assert not hasattr(reg, "coefs_")
