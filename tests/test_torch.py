"""Federated training of PyTorch modules; skipped where torch is not installed."""

import doctest
import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV

from skfedem import FederatedMLPClassifier
from skfedem._random import seeds_of_runs
from skfedem.models.perceptron import Perceptron
from skfedem.priors import SpikeSlabPrior
from skfedem.torch import FederatedTorchClassifier, _classifier

torch = pytest.importorskip("torch")
nn = torch.nn

QUICK = {"learning_rate_init": 0.2, "batch_size": 16, "max_iter": 6, "random_state": 0}
PRUNING = SpikeSlabPrior(
    warmup_rounds=4, l0_penalty=1e-2, target_sparsity=0.4, threshold_rates=(0.2, 0.5)
)


@pytest.fixture(scope="module")
def digits():
    """Tables and targets of five clients, most with two digits, and all of them in one table."""
    X, y = load_digits(return_X_y=True)
    X, y = X[:300] / 16, y[:300]
    owners = np.where(np.arange(300) % 5, y, (y + 1) % 10) // 2
    tables = [X[owners == k] for k in range(5)]
    return tables, [y[owners == k] for k in range(5)], X, y, owners


def perceptron(n_units=12, n_inputs=64, n_outputs=10, activation=nn.Tanh):
    return nn.Sequential(nn.Linear(n_inputs, n_units), activation(), nn.Linear(n_units, n_outputs))


def convolutions():
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        *(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(27, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 10)),
    )


def coefficients(module):
    return [own.weight.detach().numpy().T for own in module if isinstance(own, nn.Linear)]


# ---- the same as perceptrons


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"prior_precision": 0.3, "local_epochs": 2, "server_optimizer": "adam"},
        {"control_variates": True, "participation": 3},
        {"prior": "laplace", "prior_precision": 0.01},
        {"prior": "mixture"},
        {"prior": PRUNING, "max_iter": 15},
        {"prior": "spike_slab", "warmup_rounds": 0, "control_variates": True},
    ],
)
def test_a_perceptron_is_that_of_numpy(digits, settings):
    tables, targets, X, _, _ = digits
    settings = {**QUICK, "eval_every": 2, **settings}
    network, module = Perceptron((64, 12, 10), "tanh"), perceptron().double()
    first = network.split(network.initial(seeds_of_runs(settings["random_state"], 1)[0]))
    for layer, (own, intercepts) in zip((module[0], module[2]), first, strict=True):
        layer.weight.data, layer.bias.data = torch.tensor(own.T.copy()), torch.tensor(intercepts)
    validation = {"X_val": tables, "y_val": targets}
    mlp = FederatedMLPClassifier((12,), "tanh", alpha=0, **settings)
    mlp.fit(tables, targets, **validation)
    clf = FederatedTorchClassifier(module, **settings).fit(tables, targets, **validation)
    # Numbers in messages have 32 bits; where gradients differ in the last digit of 64, these may.
    modules = clf.module_ if settings.get("prior") == "mixture" else [clf.module_]
    for k, own in enumerate(modules):
        for ours, theirs in zip(coefficients(own), mlp.coefs_, strict=True):
            assert_allclose(ours, theirs[k] if theirs.ndim == 3 else theirs, atol=1e-6)
    for name, column in mlp.history_.items():
        assert_allclose(clf.history_[name], column, atol=1e-6, err_msg=name)
    assert clf.sparsity_ == mlp.sparsity_
    assert clf.sparsity_ or settings.get("prior") is not PRUNING
    assert_allclose(clf.predict_proba(X), mlp.predict_proba(X), atol=1e-6)
    own, theirs = (fitted.predict_proba(tables, personal=True) for fitted in (clf, mlp))
    assert_allclose(np.concatenate(own), np.concatenate(theirs), atol=1e-6)


# ---- modules


def test_convolutions_with_dropout_and_compression_learn_the_digits(digits):
    tables, targets, X, y, owners = digits
    clf = FederatedTorchClassifier(
        convolutions, omega=1.0, learning_rate_init=0.3, batch_size=8, max_iter=15, random_state=0
    ).fit([table.astype(np.float32) for table in tables], targets)
    assert clf.score(X, y) > 0.6
    assert clf.score(X, y, clients=owners) > 0.9
    assert clf.history_["uplink_bits"].sum() < clf.history_["downlink_bits"].sum() / 4
    assert not clf.module_.training


@pytest.mark.parametrize("settings", [{}, {"prior": "spike_slab", "warmup_rounds": 2}])
def test_threads_do_not_change_a_bit(digits, settings, threads_always_pay):
    tables, targets, X, _, _ = digits
    clf = FederatedTorchClassifier(convolutions, **QUICK, **settings)
    before, n_threads = torch.get_rng_state(), torch.get_num_threads()
    alone, shared = clone(clf).fit(tables, targets), clone(clf).set_params(n_jobs=3)
    shared.fit(tables, targets)
    assert_array_equal(alone.predict_proba(X), shared.predict_proba(X))
    assert threads_always_pay
    # The caller's random numbers and threads are as they were.
    assert torch.equal(torch.get_rng_state(), before) and torch.get_num_threads() == n_threads


def test_dropout_draws_other_units_in_each_step(digits):
    tables, targets, *_ = digits
    network = FederatedTorchClassifier(convolutions)._new_network(64, 10)
    data = tables[0][None], targets[0][None], np.full((1, len(targets[0])), 1 / len(targets[0]))
    start = network.initial(0)[None]
    assert network.is_random
    one, other = (network.loss_and_gradient(start, *data, np.array([u])) for u in (0.1, 0.7))
    again = network.loss_and_gradient(start, *data, np.array([0.1]))
    assert_array_equal(one[1], again[1])
    assert (one[1] != other[1]).any()


def test_parameters_that_do_not_require_gradients_stay(digits):
    tables, targets, *_ = digits
    module = perceptron()
    module[0].weight.requires_grad_(False)
    clf = FederatedTorchClassifier(module, **QUICK).fit(tables, targets)
    assert torch.equal(clf.module_[0].weight, module[0].weight)
    assert not torch.equal(clf.module_[2].weight, module[2].weight)
    assert_array_equal(clf.history_["uplink_bits"][1:], 5 * 32 * (12 + 12 * 10 + 10))


def test_modules_start_at_their_parameters_and_classes_at_random(digits):
    tables, targets, X, _, _ = digits
    still = {**QUICK, "learning_rate_init": 1e-12}
    module = perceptron()
    kept = {name: own.clone() for name, own in module.state_dict().items()}
    clf = FederatedTorchClassifier(module, **still).fit(tables, targets)
    for fitted in (clf.module_, module):  # which the fit does not change
        assert all(torch.equal(own, kept[name]) for name, own in fitted.state_dict().items())
    first, again, other = (
        FederatedTorchClassifier(perceptron, **{**still, "random_state": seed})
        .fit(tables, targets)
        .predict_proba(X)
        for seed in (0, 0, 1)
    )
    assert_array_equal(first, again)
    assert (first != other).all()


def test_criteria(digits):
    tables, targets, X, _, _ = digits
    first = perceptron()
    logs = nn.Sequential(first, nn.LogSoftmax(dim=1))
    outputs = FederatedTorchClassifier(first, **QUICK).fit(tables, targets)
    log_probabilities = FederatedTorchClassifier(logs, nn.NLLLoss, **QUICK).fit(tables, targets)
    assert_allclose(log_probabilities.predict_proba(X), outputs.predict_proba(X), rtol=1e-5)
    weights = torch.arange(10.0) > 4
    for criterion in (
        {"criterion__weight": weights.float()},
        {"criterion": nn.CrossEntropyLoss, "criterion__weight": weights.float()},
        {"criterion": nn.CrossEntropyLoss(weight=weights.float(), reduction="none")},
    ):
        clf = FederatedTorchClassifier(first, **criterion, **{**QUICK, "max_iter": 30})
        assert clf.fit(tables, targets).predict(X).min() == 5
    assert isinstance(clf.criterion_, nn.CrossEntropyLoss)


# ---- groups of parameters


def groups_of(module, kind, n_features=64, n_outputs=10):
    network = FederatedTorchClassifier(module)._new_network(n_features, n_outputs)
    return network, network.groups(kind)


def test_units_feature_maps_and_what_they_feed():
    _, groups = groups_of(convolutions(), "units")
    assert_array_equal(groups.layers, [0] * 3 + [1] * 8)
    n_first, n_second = 3 * 9 + 3, 8 * 27 + 8
    units = np.concatenate([np.repeat(np.arange(3), 9), np.arange(3)])
    assert_array_equal(groups.members[:n_first], units)
    units = np.concatenate([np.repeat(np.arange(8), 27), np.arange(8)])
    assert_array_equal(groups.members[n_first : n_first + n_second], 3 + units)
    assert (groups.members[n_first + n_second :] == -1).all()
    # A map of 3 by 3 feeds nine inputs of the linear layer.
    fed = np.concatenate([np.tile(np.repeat(np.arange(3), 9), 8), np.full(8, -1)])
    assert (groups.feeding[:n_first] == -1).all()
    assert_array_equal(groups.feeding[n_first : n_first + n_second], fed)
    fed = np.concatenate([np.tile(3 + np.arange(8), 10), np.full(10, -1)])
    assert_array_equal(groups.feeding[n_first + n_second :], fed)
    assert groups_of(convolutions(), "weights")[1].members.max() == 27 + 216 + 80 - 1


class Residual(nn.Module):
    """A block beside which its input passes, and channels of convolutions that are apart."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 6)
        self.apart, self.last = nn.Conv1d(6, 6, 1, groups=6), nn.Linear(6, 2)

    def forward(self, rows):
        inner = torch.relu(self.first(rows))
        inner = inner + torch.relu(self.second(inner))
        return self.last(torch.tanh(self.apart(inner[..., None]))[..., 0])


@pytest.mark.parametrize(
    ("module", "n_features", "n_outputs"),
    [
        (convolutions(), 64, 10),
        (Residual(), 4, 2),
        (perceptron(5, 3, 2, nn.Sigmoid), 3, 2),
        (nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5), nn.ReLU(), nn.Linear(5, 2)), 3, 2),
        (nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.LayerNorm(5), nn.Linear(5, 2)), 3, 2),
    ],
)
def test_parameters_without_a_feeding_unit_have_no_effect(module, n_features, n_outputs):
    network, groups = groups_of(module, "units", n_features, n_outputs)
    generator = np.random.default_rng(1)
    rows = generator.normal(size=(20, n_features))
    parameters = generator.normal(size=network.n_parameters)
    for group in range(len(groups.layers)):
        pruned = np.where(groups.members == group, 0, parameters)
        without = np.where(groups.feeding == group, 0, pruned)
        assert_allclose(network.outputs(pruned, rows), network.outputs(without, rows), atol=1e-12)


def test_only_inputs_that_are_zero_are_fed():
    # Of the residual block, the inner layer's input is fed by the first, the sum by neither.
    network, groups = groups_of(Residual(), "units", 4, 2)
    fed = [
        (groups.feeding[own] >= 0).all() for own, _ in network.split(np.arange(groups.feeding.size))
    ]
    assert fed == [False, True, False, True]
    for activation, is_fed in ((nn.Tanh, True), (nn.Sigmoid, False)):
        network, groups = groups_of(perceptron(5, 3, 2, activation), "units", 3, 2)
        assert (groups.feeding >= 0).sum() == (10 if is_fed else 0)


def test_pruned_maps_and_units_are_zero_and_cost_nothing(digits):
    tables, targets, *_ = digits
    clf = FederatedTorchClassifier(
        convolutions, prior=PRUNING, **{**QUICK, "max_iter": 15, "batch_size": 8}
    ).fit(tables, targets)
    assert 0.4 <= clf.sparsity_ < 0.75
    n_zeros = sum(int((own == 0).sum()) for own in clf.module_.parameters())
    n_parameters = sum(own.numel() for own in clf.module_.parameters())
    assert n_zeros / n_parameters == pytest.approx(clf.sparsity_, rel=1e-12)
    last = clf.history_["downlink_bits"][-1] / 5
    # Numbers, thresholds of the units that are left, and which these are.
    assert last < 32 * (n_parameters - n_zeros + 11) + 8 * 16


def test_features_are_pruned_where_the_first_layer_takes_them(digits):
    tables, targets, *_ = digits
    prior = SpikeSlabPrior(gates="features", warmup_rounds=2, l0_penalty=1e-2, target_sparsity=0.1)
    clf = FederatedTorchClassifier(nn.Linear(64, 10), prior=prior, **{**QUICK, "max_iter": 60})
    columns = clf.fit(tables, targets).module_.weight == 0
    assert (columns.all(dim=0) == columns.any(dim=0)).all() and columns.any()
    with pytest.raises(ValueError, match="first layer is linear and takes the features"):
        FederatedTorchClassifier(convolutions, prior=prior, **QUICK).fit(tables, targets)


# ---- as an estimator


def test_labels_weights_and_a_single_class(digits):
    tables, targets, X, y, owners = digits
    names = np.array([f"digit {k}" for k in range(10)])
    clf = FederatedTorchClassifier(perceptron, **QUICK).fit(X, names[y], clients=owners)
    plain = FederatedTorchClassifier(perceptron, **QUICK).fit(tables, targets)
    assert_array_equal(clf.predict(X), names[plain.predict(X)])
    assert_array_equal(clf.classes_, names)
    two = clone(clf).set_params(module__n_outputs=2).fit(X, y > 4, clients=owners)
    assert two.predict(X).dtype == bool and two.predict_proba(X).shape == (300, 2)
    one = clone(clf).set_params(module__n_outputs=1).fit(X, ["a"] * 300, clients=owners)
    assert_array_equal(one.predict_proba(X), np.ones((300, 1)))
    counts = np.arange(300) % 3
    full = clone(clf).set_params(batch_size=None)
    weighted = clone(full).fit(X, y, clients=owners, sample_weight=counts)
    chosen = np.repeat(np.arange(300), counts)
    repeated = full.fit(X[chosen], y[chosen], clients=owners[chosen])
    assert_allclose(weighted.predict_proba(X), repeated.predict_proba(X), atol=1e-6)


def test_parameters_are_those_of_an_estimator(digits):
    _, _, X, y, owners = digits
    clf = FederatedTorchClassifier(perceptron, module__n_units=3, omega=2.0, random_state=0)
    assert clf.get_params()["module__n_units"] == 3 and clf.get_params()["omega"] == 2
    assert set(FederatedMLPClassifier().get_params()) - set(clf.get_params()) == {
        *("hidden_layer_sizes", "activation", "alpha")
    }
    copied = clone(clf.set_params(module__n_units=4, omega=0.0))
    assert copied.get_params() == clf.get_params()
    grid = {"module__n_units": [2, 8], "prior": ["gaussian", "spike_slab"]}
    search = GridSearchCV(copied.set_params(**QUICK), grid, cv=2, error_score="raise")
    assert search.fit(X, y, clients=owners).best_params_["module__n_units"] == 8
    assert "module__n_units=8" in repr(search.best_estimator_)
    fitted = pickle.loads(pickle.dumps(search.best_estimator_))
    assert_array_equal(fitted.predict_proba(X), search.predict_proba(X))
    for wrong in (
        lambda: FederatedTorchClassifier(perceptron, n_units=3),
        lambda: clf.set_params(alpha=1),
    ):
        with pytest.raises((TypeError, ValueError), match="Expected .*parameters"):
            wrong()


@pytest.mark.parametrize("settings", [{}, {"prior": "spike_slab", "warmup_rounds": 2}])
def test_fits_continue_from_the_last_and_from_checkpoints(digits, settings, tmp_path):
    tables, targets, X, _, _ = digits
    settings, path = {**QUICK, **settings}, tmp_path / "run.npz"
    clf = FederatedTorchClassifier(convolutions, **settings)
    whole = clone(clf).fit(tables, targets)
    twice = clone(clf).set_params(max_iter=3, warm_start=True)
    twice.fit(tables, targets).fit(tables, targets)
    clone(clf).set_params(max_iter=4, checkpoint=path).fit(tables, targets)
    resumed = clone(clf).set_params(random_state=None).fit(tables, targets, resume_from=path)
    for other in (twice, resumed):
        assert_allclose(other.predict_proba(X), whole.predict_proba(X), atol=1e-6)
    stream = clone(clf)
    for _ in range(6):
        stream.partial_fit(tables, targets, classes=np.arange(10))
    assert_allclose(stream.predict_proba(X), whole.predict_proba(X), atol=1e-6)


class Scaled(nn.Module):
    """A module with parameters, but without layers."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, rows):
        return rows * self.scale


class Counting(Scaled):
    """A module that counts rows."""

    def __init__(self):
        super().__init__()
        self.register_buffer("n_rows", torch.zeros(()))

    def forward(self, rows):
        self.n_rows += len(rows)
        return super().forward(rows)


REFUSED = {
    "batch normalisation": (
        {"module": nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3))},
        "without running statistics, got the BatchNorm1d '0'.*Use GroupNorm",
    ),
    "other running statistics": (
        {"module": Counting},
        "without running statistics, got the buffer 'n_rows'",
    ),
    "nothing to train": ({"module": nn.Tanh()}, "parameters that require gradients"),
    "other rows": ({"module": nn.Linear(4, 3)}, r"take rows of shape \(n, 3\)"),
    "other classes": ({"module": nn.Linear(3, 4)}, r"give 3 outputs for each row.*\(4, 4\)"),
    "no module": ({"module": "linear"}, "Expected module to be a torch.nn.Module"),
    "not what makes one": ({"module": lambda: 3}, "Expected module to make a torch.nn.Module"),
    "parameters of an object": ({"module__bias": False}, "an object and .'bias'."),
    "a mean": ({"criterion": nn.CrossEntropyLoss()}, r"the loss of each row, got the shape \(\)"),
    "no criterion": ({"criterion": 3}, "Expected criterion to be"),
    "no device": ({"device": "gpu"}, "Expected device to be a device of torch, got 'gpu'"),
    "nothing to prune": (
        {"module": Scaled, "prior": "spike_slab"}, "linear layers or convolutions to prune"
    ),
    "no rounds": ({"max_iter": 0}, "Expected max_iter"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    settings, message = REFUSED[case]
    clf = FederatedTorchClassifier(**{"module": nn.Linear(3, 3), **settings})
    with pytest.raises((TypeError, ValueError), match=message):
        clf.fit([np.eye(3), np.ones((2, 3))], [[0, 1, 2], [0, 1]])
    assert not any(name.endswith("_") for name in vars(clf))


def test_examples_of_the_docstring():
    result = doctest.testmod(_classifier)
    assert result.attempted >= 9 and result.failed == 0
