"""Federated perceptrons that continue from a fit, a checkpoint or an earlier call of a stream."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from perceptrons import QUICK
from skfedem import FederatedMLPClassifier, FederatedMLPRegressor


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
