"""Federated perceptrons under each prior, with SCAFFOLD, compression and participation."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.exceptions import ConvergenceWarning

from perceptrons import QUICK
from skfedem import FederatedMLPClassifier
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


@pytest.mark.filterwarnings("ignore:target_sparsity")  # of which forty rounds reach .23 of .3
@pytest.mark.parametrize(
    "settings",
    [
        {"prior": "laplace", "prior_precision": 0.001},
        {"prior": "mixture", "participation": 0.7},
        {"prior": "spike_slab", "target_sparsity": 0.3, "warmup_rounds": 5},
        {"prior": "spike_slab", "gates": "weights", "control_variates": True, "warmup_rounds": 5},
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
