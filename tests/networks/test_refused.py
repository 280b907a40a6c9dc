"""Bad input of federated perceptrons."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.exceptions import NotFittedError

from perceptrons import QUICK
from skfedem import FederatedMLPClassifier, FederatedMLPRegressor

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
