"""What a stream refuses, and what it leaves as it was."""

import sys
from copy import copy

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from problems import COVARIANCE_TYPES
from problems import quiet_fit as fit
from skfedem import FederatedGaussianMixture
from skfedem._data.features import store
from streams import CLIENTS, GIVEN, OWNERS, X, memory_error, streamed


def state(gm):
    memory = gm._memory
    return memory.controls.tobytes(), gm.means_.tobytes(), gm.n_iter_, len(gm.lower_bounds_)


@pytest.mark.parametrize(
    ("args", "kwargs", "error", "says"),
    [
        ((X[:, :1],), {"clients": OWNERS}, ValueError, "1 features.*expecting 2 features"),
        (([X[:, :1]],), {}, ValueError, "1 features.*expecting 2 features"),
        ((X * np.nan,), {"clients": OWNERS}, ValueError, "NaN or infinity"),
        ((X,), {"clients": OWNERS[1:]}, ValueError, "one label for each of the 600 rows"),
        ((X,), {"clients": OWNERS.astype(str)}, ValueError, "labels of the same kind"),
        ((X,), {"sample_weight": -np.ones(600)}, ValueError, "sample_weight to be >= 0"),
        ((), {}, TypeError, "missing 1 required positional argument: 'X'"),
    ],
)
def test_bad_data(args, kwargs, error, says):
    gm = FederatedGaussianMixture(**GIVEN).partial_fit(X, clients=OWNERS)
    before = state(gm)
    with pytest.raises(error, match=says):
        gm.partial_fit(*args, **kwargs)
    assert state(gm) == before


@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag"])
def test_a_constant_feature_cannot_do_without_regularisation(covariance_type):
    constant = np.hstack([X, np.ones((600, 1))])
    gm = FederatedGaussianMixture(2, covariance_type=covariance_type, random_state=0)
    gm.partial_fit(constant, clients=OWNERS).set_params(reg_covar=0.0)
    before = state(gm)
    with pytest.raises(ValueError, match="a feature is constant.*Increase reg_covar"):
        gm.partial_fit(constant, clients=OWNERS)
    assert state(gm) == before


@pytest.mark.parametrize(
    ("parameters", "error", "says"),
    [
        ({"n_components": 2, "means_init": None}, ValueError, "n_components=3, .* fit, got 2"),
        ({"covariance_type": "diag"}, ValueError, "covariance_type='full', as in the last fit"),
        ({"step_size": 2.0}, ValueError, "step_size to be a number > 0 and <= 1, got 2.0"),
        ({"step_size": lambda k: -1.0}, ValueError, r"step_size\(2\)"),
        ({"solver": "vr_fedem"}, AttributeError, "has no attribute 'partial_fit'"),
    ],
)
def test_bad_parameters(parameters, error, says):
    gm = FederatedGaussianMixture(**GIVEN).partial_fit(X, clients=OWNERS)
    before = state(gm)
    with pytest.raises(error, match=says):
        gm.set_params(**parameters).partial_fit(X, clients=OWNERS)
    assert state(gm) == before


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_rows_beyond_all_measure_are_refused_and_named(covariance_type):
    rng = np.random.default_rng(0)
    gm = FederatedGaussianMixture(2, covariance_type=covariance_type, random_state=0)
    owners = np.repeat(["ash", "birch", "cedar"], 30)
    before = gm.partial_fit(rng.normal(size=(90, 2)), clients=owners).means_
    for row, whose in ((29, "ash"), (30, "birch"), (59, "birch"), (60, "cedar")):
        rows = rng.normal(size=(90, 2))
        rows[row, 1] = -1e40
        says = rf"within 1e\+37 standard .* got 1 beyond for client '{whose}'\. Drop such rows"
        with pytest.raises(ValueError, match=says):
            gm.partial_fit(rows, clients=owners)
    assert gm.means_ is before


@pytest.mark.parametrize("column", range(3))
@pytest.mark.parametrize("covariance_type", ["full", "tied"])
def test_rows_of_dependent_features_may_not_lie_there_either(covariance_type, column):
    rng = np.random.default_rng(0)
    one, other = rng.normal(size=(2, 60))
    rows = np.column_stack([one, 2 * one, other])
    gm = FederatedGaussianMixture(1, covariance_type=covariance_type, random_state=0)
    gm.partial_fit(rows)
    rows[0, column] = 1e40
    with pytest.raises(ValueError, match="got 1 beyond for client 0"):
        gm.partial_fit(rows)


@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag"])
def test_a_feature_that_was_constant_may_take_any_value(covariance_type):
    rng = np.random.default_rng(0)
    gm = FederatedGaussianMixture(1, covariance_type=covariance_type, random_state=0)
    gm.partial_fit(np.column_stack([rng.normal(size=50), np.full(50, 7.0)]))
    gm.partial_fit(np.column_stack([rng.normal(size=50), 1e40 * rng.normal(size=50)]))
    assert np.isfinite(gm.covariances_).all()
    assert 1e38 < abs(gm.means_[0, 1]) < 1e40


def test_a_feature_that_was_constant_may_not_take_any_value_beside_a_known_covariance():
    rng = np.random.default_rng(0)
    gm = FederatedGaussianMixture(1, covariance_type="tied", fixed_covariance=np.eye(2))
    gm.partial_fit(np.column_stack([rng.normal(size=50), np.full(50, 7.0)]))
    with pytest.raises(ValueError, match="got 1 beyond for client 0"):
        gm.partial_fit([[0.0, 1e38]])


def test_the_first_call_needs_as_many_rows_as_components():
    gm = FederatedGaussianMixture(3)
    with pytest.raises(ValueError, match="n_samples = 2 and n_components = 3"):
        gm.partial_fit(X[:2])
    assert not hasattr(gm, "means_")
    gm.partial_fit(X[:50]).partial_fit(X[50:51])
    assert gm.n_iter_ == 2


def test_weights_of_clients_may_change_their_kind():
    rng = np.random.default_rng(0)
    clients = [rng.normal(3.0 * k, 1.0, size=(n, 1)) for k, n in enumerate([20, 200, 2000])]
    means = np.array([rows.mean() for rows in clients])
    gm = fit(FederatedGaussianMixture(1, random_state=0, step_size=0.5), clients)
    gm.set_params(client_weights="uniform")
    for _ in range(60):
        gm.partial_fit(clients)
    # One component is the mean, from which 2^-60 is left.
    assert_allclose(gm.means_.ravel(), means.mean(), rtol=1e-9)
    assert memory_error(gm) < 1e-12
    gm.set_params(client_weights="n_samples")
    for _ in range(60):
        gm.partial_fit(clients)
    assert_allclose(gm.means_.ravel(), np.concatenate(clients).mean(), rtol=1e-9)


def test_a_bound_is_finite_after_a_call_that_nobody_answers():
    gm = FederatedGaussianMixture(
        2, participation=0.05, eval_every=None, max_iter=1, random_state=0
    )
    fit(gm, CLIENTS).partial_fit(CLIENTS)
    assert gm.n_iter_ == 2
    assert np.isfinite(gm.lower_bound_)


def test_features_are_those_of_the_first_call():
    frame = pd.DataFrame(X, columns=["a", "b"])
    gm = FederatedGaussianMixture(2, random_state=0).partial_fit(frame)
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        gm.partial_fit(X)
    assert gm.feature_names_in_.tolist() == ["a", "b"]


def test_another_thread_copies_one_fit_at_any_moment():
    frame = pd.DataFrame(X, columns=["a", "b"])
    gm, copies = FederatedGaussianMixture(2, random_state=0).partial_fit(frame), []

    def watch(frame, event, argument):  # before each line of `store`
        if frame.f_code is store.__code__:
            copies.append(vars(copy(gm)))
            return watch

    before, others = vars(copy(gm)), sys.gettrace()
    sys.settrace(watch)
    try:
        gm.partial_fit(frame)
    finally:
        sys.settrace(others)
    assert len(copies) > 2
    for seen in copies:
        whole = before if seen["n_iter_"] == 1 else vars(gm)
        assert seen.keys() == whole.keys()
        assert all(seen[name] is whole[name] for name in whole)


def test_what_was_copied_before_a_call_is_left_alone():
    gm = streamed(FederatedGaussianMixture(**GIVEN), 200)
    memory = gm._memory
    before = memory.controls, memory.totals, memory.weights
    kept = [array.copy() for array in before]
    gm.partial_fit(CLIENTS)
    for array, was in zip(before, kept, strict=True):
        assert_array_equal(array, was)
