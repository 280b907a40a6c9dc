"""Automatic steps of a stream, and the average of Ŝ that it estimates with them."""

import pickle
from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from problems import COVARIANCE_TYPES
from problems import quiet_fit as fit
from skfedem import FederatedGaussianMixture
from skfedem.clients.local import LocalClients
from skfedem.models.mixture.parameters import in_row_units
from skfedem.models.mixture.stream_moments import for_stream
from streams import (
    CLIENTS,
    GIVEN,
    OWNERS,
    PARAMETERS,
    X,
    assert_same,
    batches_of,
    make_rows,
    streamed,
)
from watched import interrupted


def test_plain_rounds_step_by_the_share_of_their_rows():
    gm = streamed(FederatedGaussianMixture(random_state=0), 100)
    # The rows of the first call count twice.
    n_so_far = 100 * (2 + np.arange(6))
    assert_allclose(gm.history_["step_size"][1:], (100 / n_so_far) ** 0.5, rtol=1e-14)


def test_short_rounds_are_averaged_so_that_one_pass_ends_near_the_optimum():
    gaps = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        centers = np.array([[0, 0], [2.5, 0], [0, 2.5]])
        rows = centers[rng.integers(3, size=6000)] + rng.normal(size=(6000, 2))
        gm = FederatedGaussianMixture(3, random_state=0, warm_start=True)
        for start in range(0, 6000, 50):
            gm.partial_fit(rows[start : start + 50])
        after_one_pass = gm.score(rows)
        # A warm fit goes on from the average.
        gaps.append(fit(gm, rows).score(rows) - after_one_pass)
    # The last Ŝ of shorter steps, in place of an average, lacked 0.0018.
    assert 0 < np.mean(gaps) < 0.0014


def test_a_round_that_less_than_the_expected_weight_answers_steps_as_much_less():
    given = {**GIVEN, "client_weights": "uniform", "step_size": 0.2, "participation": 0.7}
    gm = streamed(FederatedGaussianMixture(**given), 100)
    steps, n_active = (gm.history_[name][1:] for name in ("step_size", "n_active"))
    assert n_active.min() < 0.7 * 5 < n_active.max()
    assert_allclose(steps, 0.2 * np.minimum(1, n_active / (0.7 * 5)), rtol=1e-14)


def test_rows_that_nobody_has_read_do_not_shorten_later_steps():
    gm = streamed(FederatedGaussianMixture(random_state=0, participation=0.4), 100)
    streamed(gm.set_params(participation=1.0), 100)
    n_read = 100 * np.diff(gm.history_["epoch"])
    assert 0 < n_read[:6].sum() < 400
    # The start counts as a round that as many answer as is expected.
    steps = (n_read / (40 + np.cumsum(n_read))) ** 0.5
    # Epochs are sums of ratios, up to 12, and their differences have these sums' rounding.
    assert_allclose(gm.history_["step_size"][1:], steps, rtol=1e-12)


def test_rounds_that_were_too_random_limit_the_later_ones():
    # Six rows of 1,200 are a component of their own, to which the noise of messages is much.
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(1200, 2))
    rows[rng.permutation(1200)[:6]] += 8
    given = {"weights_init": [0.99, 0.01], "means_init": [[0, 0], [8, 8]], "omega": 4.0}
    gm = FederatedGaussianMixture(2, **given, precisions_init=[np.eye(2)] * 2, random_state=0)
    gm.partial_fit(rows[:300], clients=np.arange(300) % 6)
    n_patient = 0
    for batch, labels in batches_of(40, rows[300:], np.arange(900) % 40 % 6):
        before = gm._memory.server.step_limit
        gm.partial_fit(batch, clients=labels)
        step_size, now = gm.history_["step_size"][-1], gm._memory.server.step_limit
        assert step_size <= before
        if not gm.history_["safeguarded"][-1]:
            assert now in (before, 0.95 * step_size)
            n_patient += now < before
    assert n_patient > 2


def averages(gm, size, rows, owners, mean, n_read):
    """Go on with a stream; yield what its parameters should be after each call."""
    for batch, labels in batches_of(size, rows, owners):
        before = gm.history_["epoch"][-1]
        gm.partial_fit(batch, clients=labels)
        n_rows = size * (gm.history_["epoch"][-1] - before)
        n_read += n_rows
        rate, memory = min(1.0, 4 * n_rows / n_read), gm._memory
        mean = mean + rate * (memory.server.statistics - mean)
        yield in_row_units(memory.model.units, memory.model.maximization(mean))[:3]


@pytest.mark.parametrize(
    ("covariance_type", "settings", "first"),
    [
        ("full", {}, "fit"),
        ("tied", {}, "partial_fit"),
        ("tied", {"omega": 1.0, "participation": 0.4}, "fit"),
        ("diag", {"omega": 1.0, "participation": 0.4}, "partial_fit"),
        ("spherical", {}, "fit"),
    ],
)
def test_the_attributes_are_those_of_an_average(covariance_type, settings, first):
    gm = FederatedGaussianMixture(**GIVEN, covariance_type=covariance_type, max_iter=2)
    begin = partial(fit, gm) if first == "fit" else gm.partial_fit
    begin(X[:100], clients=OWNERS[:100])
    _, server = for_stream(gm._memory.model, gm._memory.server)
    mean = server.statistics
    n_read = 100 if first == "fit" else 200
    gm.set_params(**settings)
    for expected in averages(gm, 25, X[100:], OWNERS[100:], mean, n_read):
        for name, value in zip(PARAMETERS, expected, strict=False):
            assert_allclose(getattr(gm, name), value, err_msg=name, rtol=1e-9, atol=1e-9)
        assert_array_equal(gm.history_["weights"][-1], gm.weights_)
    # A warm fit begins with it.
    weights = gm.weights_
    fit(gm.set_params(warm_start=True, max_iter=0, omega=0.0, participation=1.0), X, clients=OWNERS)
    assert_allclose(gm.weights_, weights, rtol=1e-12)
    assert_allclose(gm.means_, expected[1], rtol=1e-9)


def test_given_steps_are_not_averaged():
    gm = streamed(FederatedGaussianMixture(**GIVEN), 100)
    for step_size in (0.3, lambda k: 0.2):
        gm.set_params(step_size=step_size).partial_fit(X[:50], clients=OWNERS[:50])
        assert_array_equal(gm.weights_, gm._memory.server.parameters.weights)
        assert_array_equal(gm.weights_, gm.history_["weights"][-1])
    # The next average begins where these steps led. Of 850 rows, the start counts for 100.
    memory = gm._memory
    gm.set_params(step_size="auto")
    for expected in averages(gm, 50, X[:50], OWNERS[:50], memory.server.statistics, 800):
        assert_allclose(gm.weights_, expected[0], rtol=1e-9)


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
@pytest.mark.parametrize("participation", [1.0, 1e-9])
def test_given_steps_go_on_from_the_average(covariance_type, participation):
    gm = streamed(FederatedGaussianMixture(**GIVEN, covariance_type=covariance_type), 100)
    before = {name: getattr(gm, name) for name in PARAMETERS}
    gm.set_params(step_size=1e-9, participation=participation)
    gm.partial_fit(X[:50], clients=OWNERS[:50])
    assert gm.history_["n_active"][-1] == (0 if participation < 1 else gm.n_clients_)
    for name, value in before.items():
        assert_allclose(getattr(gm, name), value, err_msg=name, rtol=1e-6, atol=1e-6)


def test_a_known_covariance_and_regularisation_are_those_of_the_last_call():
    gm = streamed(FederatedGaussianMixture(**GIVEN, covariance_type="tied"), 100)
    before = gm.covariances_
    # In this call nobody takes part.
    gm.set_params(reg_covar=0.5, participation=1e-9).partial_fit(X[:1])
    assert gm.history_["n_active"][-1] == 0
    assert_allclose(gm.covariances_, before + (0.5 - 1e-6) * np.eye(2), atol=1e-9)
    gm.set_params(fixed_covariance=2 * np.eye(2)).partial_fit(X[:1])
    assert_allclose(gm.covariances_, 2 * np.eye(2), atol=1e-9)


@pytest.mark.parametrize("step_size", ["auto", 0.5])
def test_a_known_covariance_and_regularisation_are_those_of_a_call_after_a_fit(step_size):
    gm = FederatedGaussianMixture(**GIVEN, covariance_type="tied", step_size=step_size)
    before = gm.fit(X).covariances_
    gm.set_params(reg_covar=0.5, participation=1e-9).partial_fit(X[:1])
    assert gm.history_["n_active"][-1] == 0
    assert_allclose(gm.covariances_, before + (0.5 - 1e-6) * np.eye(2), rtol=1e-9)
    gm.set_params(fixed_covariance=2 * np.eye(2)).partial_fit(X[:1])
    assert_allclose(gm.precisions_, np.eye(2) / 2, atol=1e-9)
    assert_allclose(gm.precisions_ @ gm.covariances_, np.eye(2), atol=1e-9)


@pytest.mark.parametrize("step_size", ["auto", 0.5])
def test_a_covariance_that_is_no_longer_known_starts_from_the_known_one(step_size):
    # Clients have not sent the scatter of their rows meanwhile.
    gm = FederatedGaussianMixture(**GIVEN, covariance_type="tied", step_size=step_size)
    streamed(gm.set_params(fixed_covariance=0.5 * np.eye(2)), 100)
    before = {name: getattr(gm, name) for name in PARAMETERS}
    # In this call nobody takes part.
    gm.set_params(fixed_covariance=None, participation=1e-9).partial_fit(X[:1])
    assert gm.history_["n_active"][-1] == 0
    for name, value in before.items():
        assert_allclose(getattr(gm, name), value, err_msg=name, rtol=1e-9, atol=1e-9)
    streamed(gm.set_params(participation=1.0), 100)
    assert np.abs(gm.covariances_ - 0.5 * np.eye(2)).max() > 0.1


def test_a_covariance_that_is_no_longer_known_starts_from_a_larger_regularisation():
    gm = FederatedGaussianMixture(**GIVEN, covariance_type="tied", reg_covar=0.5)
    streamed(gm.set_params(fixed_covariance=0.01 * np.eye(2)), 100)
    gm.set_params(fixed_covariance=None, participation=1e-9).partial_fit(X[:1])
    assert gm.history_["n_active"][-1] == 0
    assert_allclose(gm.covariances_, 0.5 * np.eye(2), atol=1e-9)


@pytest.mark.parametrize("covariance_type", ["full", "diag"])
def test_an_average_has_the_share_of_a_new_axis_too(covariance_type):
    rows, owners = make_rows(600), np.arange(600) % 5
    gm = FederatedGaussianMixture(3, covariance_type=covariance_type, random_state=0)
    streamed(gm, 100, np.column_stack([rows, np.full(600, 7.0)]), owners)
    before, varied = gm.covariances_, np.append(rows[0], 9.0)[None]
    # In this call nobody takes part. Half of its rows were expected, after 700 of others.
    gm.set_params(participation=0.5, random_state=1).partial_fit(varied)
    assert gm.history_["n_active"][-1] == 0
    added = 0.5 / 700.5 * (9 - 7) ** 2
    after = gm.covariances_
    if covariance_type == "full":
        before, after = (np.diagonal(c, axis1=1, axis2=2) for c in (before, after))
    assert_allclose(after - before, [[0, 0, added]] * 3, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("noise", [{}, {"omega": 1.0, "participation": 0.5}])
def test_an_average_of_shared_covariances_stands_components_that_wait(noise):
    centers, fits = np.array([-5.0, 0.0, 20.0]), []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        gm = FederatedGaussianMixture(
            3, covariance_type="tied", means_init=centers[:, None], batch_size=20, random_state=seed
        )
        for n_components, n_rows in ((3, 500), (2, 40_000)):
            rows = centers[rng.integers(n_components, size=n_rows)] + rng.normal(size=n_rows)
            gm.set_params(**noise).partial_fit(rows[:, None], clients=np.arange(n_rows) % 5)
        fits.append(gm)
    # Where the third component waits, its noise is in the covariance too, and one in forty streams
    # ends further away; the standard deviation of the others is .02.
    assert np.median([abs(gm.covariances_.item() - 1) for gm in fits]) < 0.05
    means = np.median([gm.means_.ravel()[:2] for gm in fits], axis=0)
    assert_allclose(means, centers[:2], atol=0.05)


def test_ctrl_c_leaves_the_average_as_it_was(monkeypatch):
    gm = streamed(FederatedGaussianMixture(**GIVEN, batch_size=5), 100)
    undisturbed = pickle.loads(pickle.dumps(gm)).partial_fit(CLIENTS)
    before = dict(vars(gm))
    with monkeypatch.context() as patch:
        patch.setattr(LocalClients, "round", interrupted(LocalClients.round, at=3))
        with pytest.raises(KeyboardInterrupt):
            gm.partial_fit(CLIENTS)
    assert all(vars(gm)[name] is value for name, value in before.items())
    assert_same(gm.partial_fit(CLIENTS), undisturbed, rtol=0)
