"""Federated perceptrons as their users see them: rows, targets, weights, and searches."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from perceptrons import QUICK
from skfedem import FederatedMLPClassifier, FederatedMLPRegressor
from skfedem.clients.local import LocalClients


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
