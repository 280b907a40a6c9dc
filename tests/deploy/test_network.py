"""A deployed network is that of the simulation, bit for bit; its clients keep their own models."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from deployed import Deployment
from skfedem import FederatedGaussianMixture, FederatedMLPClassifier, FederatedMLPRegressor
from skfedem.deploy import Server
from skfedem.deploy._messages import seal, unseal
from skfedem.deploy._questions import ROUND

pd = pytest.importorskip("pandas")

NOISY = {"omega": 1.0, "participation": 0.7}
CLASSIFIERS = {
    "exact": {},
    "noisy": NOISY,
    "logistic": {"hidden_layer_sizes": (), "batch_size": None, "local_epochs": 5},
    "absent clients": {"participation": 2, "control_step": 0.5},
    "SCAFFOLD": {"control_variates": True, "participation": 0.7},
    "FedSparse": {"prior": "spike_slab", "l0_penalty": 1e-3, "warmup_rounds": 2, **NOISY},
    "medians": {"prior": "laplace", "prior_precision": 0.1, "client_weights": "uniform"},
    "ensemble": {"prior": "mixture"},
    "Adam": {"server_optimizer": "adam", **NOISY},
}
REGRESSORS = {
    "exact": {},
    "noisy": NOISY,
    "linear": {"hidden_layer_sizes": (), "client_weights": "uniform", "control_step": 0.5},
}


def tables_of(n_clients=3, seed=0):
    """Tables with two features, a class and two numbers to predict."""
    generator, tables = np.random.default_rng(seed), []
    for k in range(n_clients):
        x = generator.normal(k, 1.0, (18 + 5 * k, 2))
        label = np.array(["low", "mid", "high"])[np.digitize(x.sum(axis=1), [0.5, 2.0])]
        columns = {"u": x[:, 0], "v": x[:, 1], "label": label, "y": 1e3 + 5 * x[:, 0]}
        tables.append(pd.DataFrame({**columns, "z": x[:, 1] ** 2}))
    return tables


def without(tables, *names):
    return [table.drop(columns=[*names]) for table in tables]


def held(deployment, name):
    """State of a client as it is on its disk."""
    return deployment.client(name)._held


def assert_equal_fits(deployment, got, want):
    for name, value in vars(want).items():
        if name == "coefs_" or name == "intercepts_":
            for own, other in zip(getattr(got, name), value, strict=True):
                assert_array_equal(own, other, err_msg=name)
        elif name.endswith("_") and name not in ("client_ids_", "history_"):
            assert_array_equal(getattr(got, name), value, err_msg=name)
    for name, column in want.history_.items():
        assert_array_equal(got.history_[name], column, err_msg=name)
    memory = want._memory
    assert_array_equal(got._memory.server.control, memory.server.control)
    assert_array_equal(got._memory.server.statistics.weights, memory.server.statistics.weights)
    if memory.controls.size:
        controls = [held(deployment, name).controls for name in deployment.tables]
        assert_array_equal(np.concatenate(controls), memory.controls)
        assert_array_equal(deployment.server._clients.controls, memory.controls)
    for k, name in enumerate(deployment.tables):
        parameters, took_part = held(deployment, name).states
        assert_array_equal(parameters[0], memory.states.parameters[k])
        assert_array_equal(took_part[0], memory.states.took_part[k])


@pytest.mark.parametrize("case", CLASSIFIERS)
def test_classifiers_equal_those_of_the_simulation(case, tmp_path):
    options = {"hidden_layer_sizes": (3,), "batch_size": 8, **CLASSIFIERS[case]}
    classifier = FederatedMLPClassifier(max_iter=5, random_state=1, **options)
    tables = without(tables_of(), "y", "z")
    deployment = Deployment(classifier, tables, tmp_path, target="label")
    got = deployment.run().end()
    X, y = without(tables, "label"), [own["label"] for own in tables]
    want = classifier.fit(X, y)
    assert got.classes_.tolist() == ["high", "low", "mid"]
    assert got.feature_names_in_.tolist() == ["u", "v"]
    assert_equal_fits(deployment, got, want)
    for k, name in enumerate("abc"):
        client = deployment.clients[name]
        own, personal = client.result(), client.personal_result()
        for part in zip(own.predict_proba(X), want.predict_proba(X), strict=True):
            assert_array_equal(*part)
        expected = want.predict(X, personal=True)[k]
        assert_array_equal(own.predict([X[k]], personal=True)[0], expected)
        assert_array_equal(personal["label"], expected)
        shares = np.column_stack([personal[f"P({own})"] for own in got.classes_])
        assert_array_equal(shares, want.predict_proba(X, personal=True)[k])
        assert not hasattr(own, "history_") and not hasattr(own, "loss_curve_")


@pytest.mark.parametrize("target", ["y", ["z", "y"]], ids=str)
@pytest.mark.parametrize("case", REGRESSORS)
def test_regressors_equal_those_of_the_simulation(case, target, tmp_path):
    options = {"hidden_layer_sizes": (3,), "batch_size": 8, **REGRESSORS[case]}
    regressor = FederatedMLPRegressor(max_iter=5, random_state=1, **options)
    tables = without(tables_of(), "label", *({"y", "z"} - {*np.atleast_1d(target)}))
    deployment = Deployment(regressor, tables, tmp_path, target=target)
    got = deployment.run().end()
    X, y = without(tables, *np.atleast_1d(target)), [own[target] for own in tables]
    want = regressor.fit(X, y)
    assert_equal_fits(deployment, got, want)
    for k, name in enumerate("abc"):
        personal = deployment.clients[name].personal_result()
        expected = want.predict(X, personal=True)[k].reshape(len(X[k]), -1)
        assert [*personal] == [*np.atleast_1d(target)]
        assert_array_equal(np.column_stack([*personal.values()]), expected)


@pytest.mark.parametrize("kind", [FederatedMLPClassifier, FederatedMLPRegressor])
def test_weighted_rows_are_those_of_the_simulation(kind, tmp_path):
    generator = np.random.default_rng(0)
    weights = [generator.uniform(0.5, 2.0, 18 + 5 * k) for k in range(3)]
    weights[1][3:6] = 0.0
    weights[2][:] = 0.7
    target = "label" if kind is FederatedMLPClassifier else "y"
    tables = without(tables_of(), *({"label", "y", "z"} - {target}))
    network = kind((3,), batch_size=8, max_iter=5, random_state=1, **NOISY)
    own = {"sample_weight": weights}
    deployment = Deployment(network, tables, tmp_path, target=target, own=own)
    got = deployment.run().end()
    X, y = without(tables, target), [own[target] for own in tables]
    assert_equal_fits(deployment, got, network.fit(X, y, sample_weight=weights))
    personal = deployment.clients["b"].personal_result()[target]
    assert_array_equal(personal, network.predict(X, personal=True)[1])


def test_payloads_are_as_long_as_the_history_says(tmp_path):
    tables = without(tables_of(), "label", "z")
    regressor = FederatedMLPRegressor((3,), max_iter=6, random_state=0, **NOISY)
    deployment = Deployment(regressor, tables, tmp_path, target="y").run()
    got, phases = deployment.end(), deployment.server.history_
    (units,) = got.setup_messages_
    assert units.uplink_bits == 8 * 3 * 16  # two facts of three clients
    rounds = [own for own in phases if own["question"] == "round"]
    bits = [8 * (own["uplink_bytes"] - (ROUND.size + 16) * own["n_used"]) for own in rounds]
    assert_array_equal(got.history_["uplink_bits"][1:], bits)


def test_classes_of_the_plan_are_not_asked_for(tmp_path):
    tables = without(tables_of(), "y", "z")
    classifier = FederatedMLPClassifier((), max_iter=2, random_state=0)
    classes = ["low", "mid", "high", "top"]
    deployment = Deployment(classifier, tables, tmp_path, target="label", classes=classes)
    assert deployment.run().end().classes_.tolist() == ["high", "low", "mid", "top"]
    assert "classes" not in [own["question"] for own in deployment.server.history_]


def test_labels_that_the_plan_lacks_are_refused(tmp_path):
    tables = without(tables_of(), "y", "z")
    classifier = FederatedMLPClassifier((), max_iter=2, random_state=0)
    deployment = Deployment(classifier, tables, tmp_path, target="label", classes=["low", "mid"])
    deployment.until("task")
    assert not deployment.phase()["c"].used
    assert "labels of the plan's classes, got 'high'" in deployment.clients["c"].refusal


def test_classes_of_another_kind_are_refused(tmp_path):
    tables = without(tables_of(), "y", "z")
    tables[1]["label"] = np.arange(len(tables[1])) % 2
    classifier = FederatedMLPClassifier((), max_iter=2, random_state=0)
    deployment = Deployment(classifier, tables, tmp_path, target="label").until("classes")
    verdicts = deployment.phase()
    assert verdicts["a"].used and verdicts["b"].reason == "classes: expected a str, got 0"


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b"[[1]]", b'["b", "a"]', b"[1, true]", b"[NaN]"]
)
def test_damaged_classes_are_refused(body, tmp_path):
    tables = without(tables_of(), "y", "z")
    classifier = FederatedMLPClassifier((), max_iter=2, random_state=0)
    deployment = Deployment(classifier, tables, tmp_path, target="label").until("classes")
    request = deployment.server.request("a")
    reply = unseal(deployment.clients["a"].answer(request))
    verdict = deployment.server.receive("a", seal(reply._replace(body=body)))
    assert verdict.reason in ("damaged: labels of classes", "not finite")
    assert deployment.server.receive("a", seal(reply)).used
    deployment.server.stop()


def test_tables_without_the_target_are_refused(tmp_path):
    tables = without(tables_of(), "y", "z", "label")
    tables[1] = tables[1].to_numpy()
    classifier = FederatedMLPClassifier((), max_iter=2, random_state=0)
    verdicts = Deployment(classifier, tables, tmp_path, target="label").phase()
    assert "target: the table has no column 'label'" in verdicts["a"].reason
    assert "target: expected a table with names of columns" in verdicts["b"].reason


@pytest.mark.parametrize(
    ("estimator", "options", "said"),
    [
        (FederatedMLPClassifier(), {}, "target to be a name of a column"),
        (FederatedMLPClassifier(), {"target": ["u", "v"]}, "target to be a name of a column"),
        (FederatedMLPClassifier(), {"target": "u", "classes": [1, "a"]}, "labels of one type"),
        (FederatedMLPRegressor(), {"target": 3}, "target to be names of columns"),
        (FederatedMLPRegressor(), {"target": "u", "classes": [1]}, "classes to be None"),
        (FederatedGaussianMixture(), {"target": "u"}, "target to be None"),
    ],
)
def test_what_is_no_target(estimator, options, said, tmp_path):
    with pytest.raises(TypeError, match=said):
        Server(estimator, ["a"], tmp_path, **options)
