"""Perceptrons on flat vectors: gradients, scikit-learn's, layouts and groups."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier, MLPRegressor

from skfedem.models.perceptron import ACTIVATIONS, Perceptron

OUTPUTS = [(1, "log_loss"), (4, "log_loss"), (2, "squared_error")]


def problem(model, seed=0, n=2, n_rows=7):
    generator = np.random.default_rng(seed)
    rows = generator.normal(size=(n, n_rows, model.sizes[0]))
    weights = generator.random((n, n_rows))
    weights /= weights.sum(axis=1, keepdims=True)
    if model.loss == "squared_error":
        targets = generator.normal(size=(n, n_rows, model.sizes[-1]))
    else:
        targets = generator.integers(max(model.sizes[-1], 2), size=(n, n_rows))
    parameters = np.stack([model.initial(seed + k) for k in range(n)])
    return parameters, rows, targets, weights


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("hidden", [(), (5,), (4, 3)])
@pytest.mark.parametrize(("n_outputs", "loss"), OUTPUTS)
def test_gradients_are_those_of_finite_differences(activation, hidden, n_outputs, loss):
    model = Perceptron((3, *hidden, n_outputs), activation, loss, alpha=0.1)
    parameters, *data = problem(model)
    losses, gradients = model.loss_and_gradient(parameters, *data)
    assert_allclose(losses, model.losses(parameters, *data), rtol=1e-14)
    for j in range(model.n_parameters):
        step = np.zeros(model.n_parameters)
        step[j] = 1e-6
        rise = model.losses(parameters + step, *data) - model.losses(parameters - step, *data)
        # The third derivative times 1e-12, and rounding errors of losses divided by 2e-6.
        assert_allclose(gradients[:, j], rise / 2e-6, atol=1e-8)


@pytest.mark.parametrize("hidden", [(), (5,)])
@pytest.mark.parametrize(("n_outputs", "loss"), OUTPUTS)
def test_floats_of_32_bits_stay_so(hidden, n_outputs, loss):
    model = Perceptron((3, *hidden, n_outputs), loss=loss)
    doubles = problem(model)
    singles = [a.astype(np.float32) if a.dtype == np.float64 else a for a in doubles]
    expected, results = model.loss_and_gradient(*doubles), model.loss_and_gradient(*singles)
    for double, single in zip(expected, results, strict=True):
        assert single.dtype == np.float32
        assert_allclose(single, double, rtol=1e-4, atol=1e-6)


def test_each_client_has_its_own_gradient_and_rows_without_weight_none():
    model = Perceptron((3, 4, 3))
    parameters, rows, targets, weights = problem(model, n=3)
    weights[1, 4:] = 0
    weights /= weights.sum(axis=1, keepdims=True)
    losses, gradients = model.loss_and_gradient(parameters, rows, targets, weights)
    for k in range(3):
        own = slice(k, k + 1)
        data = rows[own], targets[own], weights[own]
        loss, gradient = model.loss_and_gradient(parameters[own], *data)
        assert_array_equal(loss[0], losses[k])
        assert_array_equal(gradient[0], gradients[k])
    short = rows[1:2, :4], targets[1:2, :4], weights[1:2, :4]
    assert_allclose(model.loss_and_gradient(parameters[1:2], *short)[1][0], gradients[1])


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("n_classes", [2, 3])
def test_classifiers_take_the_steps_of_scikit_learn(activation, n_classes):
    generator = np.random.default_rng(0)
    X, y = generator.normal(size=(30, 4)), np.arange(30) % n_classes
    pooled = MLPClassifier(
        (5, 3),
        activation=activation,
        solver="sgd",
        learning_rate_init=0.1,
        momentum=0.0,
        alpha=0.3,
        batch_size=30,
        shuffle=False,
        max_iter=1,
        random_state=0,
    )
    with pytest.warns(ConvergenceWarning):
        pooled.fit(X, y)
    n_outputs = 1 if n_classes == 2 else n_classes
    # Their penalty is divided by the number of rows.
    model = Perceptron((4, 5, 3, n_outputs), activation, alpha=0.3 / 30)
    flat = parameters_of(pooled)
    assert_allclose(probabilities(model, flat, X), pooled.predict_proba(X), atol=1e-14)
    weights = np.full((1, 30), 1 / 30)
    loss, gradient = model.loss_and_gradient(flat[None], X[None], y[None], weights)
    pooled.set_params(warm_start=True)
    with pytest.warns(ConvergenceWarning):
        pooled.fit(X, y)
    assert_allclose(pooled.loss_curve_[-1], loss[0], rtol=1e-12)
    assert_allclose(parameters_of(pooled), flat - 0.1 * gradient[0], atol=1e-13)


def test_regressors_take_the_steps_of_scikit_learn():
    generator = np.random.default_rng(0)
    X, y = generator.normal(size=(30, 4)), generator.normal(size=30)
    settings = {"momentum": 0.0, "alpha": 0.0, "batch_size": 30, "max_iter": 1}
    pooled = MLPRegressor(
        hidden_layer_sizes=(5,), solver="sgd", learning_rate_init=0.1, **settings, random_state=0
    )
    with pytest.warns(ConvergenceWarning):
        pooled.fit(X, y)
    model, flat = Perceptron((4, 5, 1), loss="squared_error"), parameters_of(pooled)
    assert_allclose(model.outputs(flat, X)[:, 0], pooled.predict(X), atol=1e-14)
    weights = np.full((1, 30), 1 / 30)
    _, gradient = model.loss_and_gradient(flat[None], X[None], y[None, :, None], weights)
    pooled.set_params(warm_start=True)
    with pytest.warns(ConvergenceWarning):
        pooled.fit(X, y)
    assert_allclose(parameters_of(pooled), flat - 0.1 * gradient[0], atol=1e-13)


def parameters_of(pooled):
    pairs = zip(pooled.coefs_, pooled.intercepts_, strict=True)
    return np.concatenate([np.concatenate([c.ravel(), i]) for c, i in pairs])


def probabilities(model, flat, X):
    own = model.probabilities(model.outputs(flat, X))
    return np.hstack([1 - own, own]) if own.shape[1] == 1 else own


def test_losses_of_hopeless_outputs_are_finite():
    for n_outputs in (1, 3):
        model = Perceptron((1, n_outputs))
        parameters = np.full((1, model.n_parameters), 1e4)
        parameters[0, 0] = -1e6
        rows, targets = np.array([[[1.0], [-1.0]]]), np.array([[0, 1]])
        for numbers in model.loss_and_gradient(parameters, rows, targets, np.full((1, 2), 0.5)):
            assert np.isfinite(numbers).all()


def test_layers_split_the_vector_and_initial_parameters_are_bounded():
    model = Perceptron((3, 4, 2), "logistic")
    flat = np.arange(model.n_parameters, dtype=float)
    (first, first_intercepts), (second, second_intercepts) = model.split(flat)
    assert first.shape, second.shape == ((3, 4), (4, 2))
    joined = [first.ravel(), first_intercepts, second.ravel(), second_intercepts]
    assert_array_equal(np.concatenate(joined), flat)
    bounds = [np.sqrt(2 / 7)] * 16 + [np.sqrt(2 / 6)] * 10
    drawn = np.stack([model.initial(seed) for seed in range(200)])
    assert (np.abs(drawn) <= bounds).all()
    # The largest of 200 uniform numbers is below 0.9 times the bound once in 1e9 draws.
    assert (np.abs(drawn).max(axis=0) > 0.9 * np.array(bounds)).all()
    assert_array_equal(model.initial(3), drawn[3])


def test_units_and_what_they_feed():
    groups = Perceptron((2, 3, 1)).groups("units")
    members, feeding = Perceptron((2, 3, 1)).split(groups.members), groups.feeding
    assert_array_equal(members[0][0], [[0, 1, 2], [0, 1, 2]])
    assert_array_equal(members[0][1], [0, 1, 2])
    assert (members[1][0] == -1).all() and (members[1][1] == -1).all()
    (into, of), (fed, last) = Perceptron((2, 3, 1)).split(feeding)
    assert (into == -1).all() and (of == -1).all() and (last == -1).all()
    assert_array_equal(fed[:, 0], [0, 1, 2])
    assert_array_equal(groups.layers, [0, 0, 0])


def test_units_of_several_layers_have_numbers_of_their_own():
    model = Perceptron((2, 3, 4, 2))
    groups = model.groups("units")
    assert_array_equal(groups.layers, [0] * 3 + [1] * 4)
    members, feeding = model.split(groups.members), model.split(groups.feeding)
    assert_array_equal(members[1][0][0], [3, 4, 5, 6])
    assert_array_equal(feeding[1][0][:, 0], [0, 1, 2])
    assert_array_equal(feeding[2][0][:, 0], [3, 4, 5, 6])


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_closed_unit_silences_what_it_feeds(activation):
    model = Perceptron((2, 3, 4, 1), activation, loss="squared_error")
    groups, flat = model.groups("units"), model.initial(0)
    flat[groups.members == 1] = 0
    rows = np.random.default_rng(0).normal(size=(5, 2))
    silenced = np.where(groups.feeding == 1, 7.0, flat)
    assert_array_equal(model.outputs(flat, rows), model.outputs(silenced, rows))


def test_features_and_weights():
    model = Perceptron((2, 3))
    coefficients, intercepts = model.split(model.groups("features").members)[0]
    assert_array_equal(coefficients, [[0] * 3, [1] * 3])
    assert_array_equal(intercepts, [-1] * 3)
    model = Perceptron((2, 2, 1))
    groups = model.groups("weights")
    assert_array_equal(groups.members, [0, 1, 2, 3, -1, -1, 4, 5, -1])
    assert_array_equal(groups.layers, [0] * 4 + [1] * 2)


def test_outputs_in_other_units():
    model = Perceptron((2, 3, 2), loss="squared_error")
    flat, rows = model.initial(0), np.random.default_rng(0).normal(size=(5, 2))
    other = model.with_outputs_in(flat, np.array([1.0, -2.0]), 3.0)
    expected = [1.0, -2.0] + 3.0 * model.outputs(flat, rows)
    assert_allclose(model.outputs(other, rows), expected, rtol=1e-13)
