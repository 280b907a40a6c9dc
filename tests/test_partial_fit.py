"""Streams: each call of partial_fit is a round, or some, on rows that are read once."""

import pickle
import sys
import warnings
from copy import copy, deepcopy
from dataclasses import replace
from decimal import Decimal
from functools import partial

import numpy as np
import pandas as pd
import pytest
import sklearn
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import multivariate_normal
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

from problems import COVARIANCE_TYPES, stack
from problems import quiet_fit as fit
from skfedem import FederatedGaussianMixture, _random
from skfedem._input.clients import store
from skfedem.compression import Dithering
from skfedem.datasets import split_clients
from skfedem.models.gaussian_mixture import GaussianMixtureModel
from skfedem.models.mixture_parameters import in_row_units
from skfedem.models.mixture_stream import for_stream
from skfedem.solvers import _loop, _stream
from skfedem.solvers._stream import batches
from watched import interrupted

CENTERS = np.array([[-4.0, 0.0], [4.0, 0.0], [0.0, 6.0]])
GIVEN = {"n_components": 3, "means_init": CENTERS / 2 + [50.0, 0.0], "random_state": 0}
NOISY = {**GIVEN, "omega": 1.0, "participation": 0.6, "step_size": 0.05}
# Rounding of a few rounds of EM, which the order of sums decides.
ALMOST = {"rtol": 1e-10, "atol": 1e-10}


def make_rows(n_rows, seed=0):
    rng = np.random.default_rng(seed)
    return CENTERS[rng.integers(3, size=n_rows)] + rng.normal(size=(n_rows, 2)) + [50.0, 0.0]


X = make_rows(600)
CENTERS_OF_X = np.random.default_rng(0).integers(3, size=600)
OWNERS = np.random.default_rng(1).integers(5, size=600)
CLIENTS = [X[owner == OWNERS] for owner in range(5)]
PARAMETERS = ("weights_", "means_", "covariances_", "precisions_")


def assert_same(one, other, names=PARAMETERS, **tolerance):
    for name in names:
        assert_allclose(getattr(one, name), getattr(other, name), err_msg=name, **tolerance)


def batches_of(size, rows=X, owners=OWNERS):
    for first in range(0, len(rows), size):
        yield rows[first : first + size], owners[first : first + size]


def streamed(gm, size, rows=X, owners=OWNERS, **kwargs):
    for batch, labels in batches_of(size, rows, owners):
        gm.partial_fit(batch, clients=labels, **kwargs)
    return gm


def memory_error(gm):
    memory = gm._memory
    return np.abs(memory.server.control - memory.weights @ memory.states.controls).max()


# ---- exact limits


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
@pytest.mark.parametrize("client_weights", ["n_samples", "uniform"])
def test_the_same_rows_again_and_again_are_em(covariance_type, client_weights):
    gm = FederatedGaussianMixture(
        **GIVEN,
        covariance_type=covariance_type,
        client_weights=client_weights,
        step_size=1.0,
        control_step=1.0,
    )
    whole = fit(clone(gm).set_params(max_iter=4, tol=0.0), CLIENTS)
    for k in range(4):
        gm.partial_fit(CLIENTS) if k % 2 else gm.partial_fit(tuple(CLIENTS))
    assert_same(gm, whole, (*PARAMETERS, "client_drift_"), **ALMOST)
    assert gm.n_iter_ == 4
    assert_allclose(
        gm.history_["log_likelihood"][:4], whole.history_["log_likelihood"][:4], **ALMOST
    )


@pytest.mark.parametrize("client_weights", ["n_samples", "uniform"])
def test_integer_weights_of_a_stream_are_repeated_rows(client_weights):
    gm = FederatedGaussianMixture(**GIVEN, client_weights=client_weights)
    weights = [np.arange(len(client)) % 3 for client in CLIENTS]
    repeated = [
        np.repeat(client, own, axis=0) for client, own in zip(CLIENTS, weights, strict=True)
    ]
    weighted = clone(gm)
    for _ in range(2):
        weighted.partial_fit(CLIENTS, sample_weight=weights)
        gm.partial_fit(repeated)
    assert_same(weighted, gm, **ALMOST)


def test_rows_of_weight_1_are_drawn_for_the_start_as_rows_without():
    plain = FederatedGaussianMixture(3, init_params="random_from_data", random_state=0)
    weighted = clone(plain)
    plain.partial_fit(CLIENTS)
    weighted.partial_fit(CLIENTS, sample_weight=[np.ones(len(rows)) for rows in CLIENTS])
    assert_array_equal(weighted.means_, plain.means_)


@pytest.mark.parametrize("first", ["partial_fit", "fit"])
def test_a_weight_that_all_rows_of_a_call_share_is_how_often_they_are_repeated(first):
    gm = FederatedGaussianMixture(**GIVEN, step_size=0.3, tol=1.0)  # automatic steps count rows
    weighted = clone(gm)
    calls = [first, "partial_fit", "partial_fit"]
    for call, weight, rows in zip(calls, (2, 3, 1), (CLIENTS, CLIENTS[:1], CLIENTS), strict=True):
        getattr(weighted, call)(rows, sample_weight=[np.full(len(own), weight) for own in rows])
        getattr(gm, call)([np.repeat(own, weight, axis=0) for own in rows])
    assert_same(weighted, gm, (*PARAMETERS, "client_drift_"), **ALMOST)


def expected_statistics(rows, weights, means, covariances):
    """Mean of (r, r y, r y²) over rows, diagonal covariances, by scikit-learn's E-step."""
    pooled = GaussianMixture(len(weights), covariance_type="diag")
    pooled.weights_, pooled.means_, pooled.covariances_ = weights, means, covariances
    pooled.precisions_cholesky_ = 1 / np.sqrt(covariances)
    r = pooled.predict_proba(rows)
    return r.mean(axis=0), r.T @ rows / len(rows), r.T @ rows**2 / len(rows)


def test_a_stream_is_online_em():
    steps = [0.6, 0.5, 0.4, 0.3, 0.2, 0.1]
    gm = FederatedGaussianMixture(
        **GIVEN, covariance_type="diag", step_size=lambda k: steps[k - 1], reg_covar=0.0
    )
    start = fit(clone(gm).set_params(max_iter=0), X[:100])
    weights, means, covariances = start.weights_, start.means_, start.covariances_
    s = weights, weights[:, None] * means, weights[:, None] * (covariances + means**2)
    for step, (batch, _) in zip(steps, batches_of(100), strict=True):
        new = expected_statistics(batch, weights, means, covariances)
        s = tuple((1 - step) * old + step * now for old, now in zip(s, new, strict=True))
        weights, means = s[0], s[1] / s[0][:, None]
        covariances = s[2] / s[0][:, None] - means**2
        gm.partial_fit(batch)
        assert_allclose(gm.weights_, weights, rtol=1e-9)
        assert_allclose(gm.means_, means, rtol=1e-9)
        # Rows lie 50 from the origin, where the literal formula loses four digits.
        assert_allclose(gm.covariances_, covariances, rtol=1e-7)


def test_in_a_batch_are_those_who_have_rows_left():
    federation = stack(np.split(np.arange(22.0).reshape(11, 2), [5, 7]))
    seen = list(batches(federation, 2))
    for (clients, batch), here, rows in zip(
        seen,
        ([0, 1, 2], [0, 2], [0]),
        ([[0, 1], [5, 6], [7, 8]], [[2, 3], [9, 10]], [[4]]),
        strict=True,
    ):
        assert_array_equal(clients, here)
        assert_array_equal(batch.lengths, [len(own) for own in rows])
        assert_array_equal(batch.rows[:, 0], 2.0 * np.concatenate(rows))
        assert_array_equal(batch.weights, federation.weights[here])
    for size in (None, 5):
        ((clients, batch),) = batches(federation, size)
        assert_array_equal(clients, [0, 1, 2])
        assert_array_equal(batch.rows, federation.rows)


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_a_batch_size_cuts_a_call_into_rounds(covariance_type):
    gm = FederatedGaussianMixture(**GIVEN, covariance_type=covariance_type)
    gm.partial_fit(CLIENTS)
    pieces = pickle.loads(pickle.dumps(gm))
    gm.set_params(batch_size=30).partial_fit(CLIENTS, sample_weight=None)
    longest = max(len(client) for client in CLIENTS)
    for first in range(0, longest, 30):
        here = [k for k, client in enumerate(CLIENTS) if len(client) > first]
        part = [CLIENTS[k][first : first + 30] for k in here]
        pieces.partial_fit(np.concatenate(part), clients=np.repeat(here, [len(p) for p in part]))
    assert gm.n_iter_ == pieces.n_iter_ == 1 + -(-longest // 30)
    assert_same(gm, pieces, (*PARAMETERS, "client_drift_"), **ALMOST)
    assert gm.history_["epoch"][-1] == pytest.approx(gm.history_["epoch"][1] + 1)
    for name in ("log_likelihood", "field_sq_norm", "step_size", "n_active", "uplink_bits"):
        assert_allclose(gm.history_[name], pieces.history_[name], err_msg=name, rtol=1e-8)


def test_after_one_pass_it_is_where_em_is():
    # Well within a fiftieth of a nat. After the first call alone it is 0.004 to 0.05 nats below.
    rows, owners = make_rows(10000, seed=5), np.random.default_rng(2).integers(20, size=10000)
    best = GaussianMixture(3, n_init=3, random_state=0).fit(rows).score(rows)
    for parameters, size in (({}, 200), ({}, 1000), ({"covariance_type": "tied"}, 100)):
        gm = FederatedGaussianMixture(3, random_state=0, **parameters)
        score = streamed(gm, size, rows, owners).score(rows)
        assert score > best - 0.003
    last = gm.history_["log_likelihood"][-100:-1].mean()
    # A row's log-likelihood varies by about 1, the mean of 9900 of them by 0.01; the first rounds
    # are worse.
    assert last == pytest.approx(best, abs=0.1)


@pytest.mark.parametrize(
    ("covariance_type", "participation"),
    [("full", 0.5), ("tied", 0.5), ("diag", 1.0), ("spherical", 0.5)],
)
def test_one_pass_of_compressed_messages_of_unlike_clients_ends_near_em(
    covariance_type, participation
):
    rng = np.random.default_rng(5)
    labels = rng.integers(3, size=10000)
    rows = CENTERS[labels] + rng.normal(size=(10000, 2)) + [50.0, 0.0]
    owners = labels + 3 * rng.integers(7, size=10000)  # each knows one component
    em = GaussianMixture(3, covariance_type=covariance_type, n_init=3, random_state=0)
    best = em.fit(rows).score(rows)
    gm = FederatedGaussianMixture(3, covariance_type=covariance_type, omega=1.0, random_state=0)
    streamed(gm.set_params(participation=participation), 200, rows, owners)
    assert gm.score(rows) > best - 0.01  # 0.015 to 0.022 below after the first call


# ---- who is there


@pytest.mark.parametrize("client_weights", ["n_samples", "uniform"])
@pytest.mark.parametrize("parameters", [GIVEN, NOISY])
def test_memory_is_the_mean_of_the_clients(parameters, client_weights):
    gm = FederatedGaussianMixture(**parameters, client_weights=client_weights)
    rng = np.random.default_rng(0)
    rows_of = np.zeros(9)
    for k in range(12):
        labels = rng.integers(3 + k // 2, size=40)
        gm.partial_fit(make_rows(40, seed=k), clients=labels)
        rows_of += np.bincount(labels, minlength=9)
        # Rounding of a few sums a round.
        assert memory_error(gm) < 1e-12
        rows = dict(zip(gm.client_ids_.tolist(), gm._memory.totals, strict=True))
        assert rows == {k: n for k, n in enumerate(rows_of) if n}
    expected = gm._memory.totals / gm._memory.totals.sum()
    if client_weights == "uniform":
        expected = np.full(gm.n_clients_, 1 / gm.n_clients_)
    assert_allclose(gm._memory.weights, expected, rtol=1e-14)


def test_those_who_are_away_count_as_much_as_before():
    parameters = {**GIVEN, "client_weights": "uniform", "step_size": 0.1, "control_step": 0.5}
    gm = FederatedGaussianMixture(**parameters).partial_fit(CLIENTS)
    before = gm.client_drift_.copy()
    gm.partial_fit(CLIENTS[:1])
    assert_array_equal(gm.client_drift_ != before, [True, False, False, False, False])
    assert memory_error(gm) < 1e-14


def test_new_clients_join_and_absent_ones_keep_what_they_have():
    gm = FederatedGaussianMixture(**NOISY | {"participation": 1.0})
    names = np.array(list("cabde"))[OWNERS]
    gm.partial_fit(X[:200], clients=names[:200])
    assert_array_equal(gm.client_ids_, list("abcde"))
    assert_array_equal(gm.new_client_ids_, list("abcde"))
    drift = gm.client_drift_.copy()
    gm.partial_fit(X[200:300], clients=np.where(names[200:300] < "c", "z", "b"))
    assert_array_equal(gm.client_ids_, list("abcdez"))
    assert_array_equal(gm.new_client_ids_, ["z"])
    assert gm.n_clients_ == len(gm.client_drift_) == 6
    assert_array_equal(gm.client_drift_[[0, 2, 3, 4]], drift[[0, 2, 3, 4]])
    assert gm.client_drift_[1] != drift[1]
    assert gm.client_drift_[5] > 0
    gm.partial_fit(X[:50], clients=names[:50])
    assert len(gm.new_client_ids_) == 0
    assert_array_equal(gm.history_["n_active"][1:], [5, 2, 5])


@pytest.mark.parametrize("unit", ["h", "us", "ns"])
def test_clients_are_known_by_their_date_in_any_unit(unit):
    days = np.array(["2020-01-01", "2020-01-02", "2020-01-03"], dtype="M8[D]")[np.arange(200) % 3]
    gm = FederatedGaussianMixture(2, random_state=0).partial_fit(X[:200], clients=days)
    some = np.arange(200) % 3 < 2
    gm.partial_fit(X[:200][some], clients=days[some].astype(f"M8[{unit}]"))
    assert gm.n_clients_ == 3
    assert len(gm.new_client_ids_) == 0
    assert_array_equal(gm.history_["n_active"][1:], [3, 2])


# As floats, the integers of each line are one.
LARGE = [
    (np.array([2**62 + 1, 2**62 + 3]), np.array([2**62 + 3, 2**63 + 5], dtype=np.uint64)),
    ([2**62 + 1, 2**63 + 5], [2**63 + 5, 2**63 + 7]),
    (np.array([2**53, 2**53 + 1]), np.array([2.0**53, 0.5])),
    (np.array([2**53, 2**53 + 1], dtype=object), np.array([2**53 + 1, 2**53 + 2])),
]


@pytest.mark.parametrize(("first", "then"), LARGE, ids=["signs", "list", "floats", "objects"])
def test_clients_are_known_by_large_integers(first, then):
    gm = FederatedGaussianMixture(2, random_state=0)
    rows, each = make_rows(40), np.arange(40) % 2
    labels = [
        [of[k] for k in each] if isinstance(of, list) else of[each] for of in (first, then, first)
    ]
    gm.partial_fit(rows, clients=labels[0]).partial_fit(rows, clients=labels[1])
    known = list(first) + [label for label in then if label not in list(first)]
    assert gm.client_ids_.tolist() == known
    assert gm.new_client_ids_.tolist() == known[2:]
    gm.partial_fit(rows, clients=labels[2])
    assert gm.n_clients_ == 3 and len(gm.new_client_ids_) == 0
    says = "same kind as in earlier calls.* call fit with warm_start=False, or partial_fit on"
    with pytest.raises(ValueError, match=says):
        gm.partial_fit(rows, clients=each.astype(str))


DAYS = pd.date_range("2026-01-01", periods=2)[np.arange(40) % 2]
TEXTS = DAYS.astype(str).to_numpy(dtype=str)
PAIRS = [pd.Series([(kind(k % 2), "a") for k in range(40)]) for kind in (int, str)]
OTHERS = {  # labels that look like the known ones, and can be none of them
    "text": (DAYS.to_pydatetime(), TEXTS, "got '2026-01-01' of dtype"),
    "periods": (DAYS.to_pydatetime(), DAYS.to_period("D"), "of type datetime, got .* type Period"),
    "zone": (DAYS.tz_localize("UTC"), DAYS.astype(object), "of type Timestamp, got"),
    "months": (DAYS.to_period("D"), DAYS.to_period("M"), "of type Period, got"),
    "tuples": (*PAIRS, "of type tuple, got"),
}


@pytest.mark.parametrize(("known", "others", "says"), OTHERS.values(), ids=OTHERS)
def test_labels_that_can_be_no_known_clients_are_refused(known, others, says):
    rows = make_rows(40)
    gm = FederatedGaussianMixture(2, random_state=0, warm_start=True)
    gm.partial_fit(rows, clients=known)
    for fitted in (gm.partial_fit, gm.fit):
        with pytest.raises(ValueError, match=f"same kind as in earlier calls, such as .*{says}"):
            fitted(rows, clients=others)


def test_clients_are_known_by_equal_labels_of_any_type():
    rows, numbers = make_rows(40), 2 + np.arange(40) % 2
    decimals = [Decimal(number) for number in numbers.tolist()]
    for first, then in (
        (DAYS.to_pydatetime(), list(DAYS)),
        (list(DAYS), list(DAYS.to_pydatetime())),
        ([DAYS[0].to_pydatetime(), *DAYS[1:]], DAYS.to_pydatetime()),
        ([2, *decimals[1:]], decimals),
        (decimals, numbers),
        (TEXTS, list(TEXTS)),
        (list(TEXTS), pd.Categorical(TEXTS)),
        (pd.Series(TEXTS), TEXTS),
        (numbers, 1.0 * numbers),
    ):
        gm = FederatedGaussianMixture(2, random_state=0).partial_fit(rows, clients=first)
        assert gm.partial_fit(rows, clients=then).n_clients_ == 2
        assert len(gm.new_client_ids_) == 0
    assert gm.client_ids_.dtype.kind == "i"  # as they were named first


@pytest.mark.parametrize("control_step", [1.0, 0.3])
def test_the_sum_is_divided_by_the_share_that_is_present(control_step):
    gm = FederatedGaussianMixture(**GIVEN, step_size=0.2, control_step=control_step)
    gm.partial_fit(X[:300], clients=OWNERS[:300])
    before = gm._memory
    controls = before.states.controls.copy()
    gm.partial_fit(X[300:], clients=OWNERS[300:] % 2)
    rows = [X[300:][OWNERS[300:] % 2 == k] for k in (0, 1)]
    totals = np.bincount(OWNERS[:300])
    totals[:2] += [len(rows[0]), len(rows[1])]
    w = totals / totals.sum()
    model, server = before.model, before.server
    field, memory = w @ controls, w @ controls
    for k in (0, 1):
        sums = model.expectation(
            server.parameters.natural, model.features(rows[k]), np.array([len(rows[k])])
        )
        innovation = sums.statistics[0] / len(rows[k]) - server.statistics - controls[k]
        field = field + w[k] / (w[0] + w[1]) * innovation
        memory = memory + control_step * w[k] * innovation
        controls[k] += control_step * innovation
    after = gm._memory
    assert_allclose(after.server.statistics, server.statistics + 0.2 * field, atol=1e-12)
    assert_allclose(after.server.control, memory, atol=1e-12)
    assert_allclose(after.states.controls, controls, atol=1e-12)


def test_memories_of_a_stream_begin_at_0_and_learn_slowly():
    gm = FederatedGaussianMixture(**GIVEN, step_size=0.2)
    at_once = clone(gm).set_params(control_step=1.0).partial_fit(CLIENTS)
    slowly = clone(gm).partial_fit(CLIENTS)
    assert (at_once.client_drift_ > 0.01).all()
    assert_allclose(slowly.client_drift_, 0.1 * at_once.client_drift_, rtol=1e-12)
    # A tenth of 1 / (1 + ω).
    noisy = clone(gm).set_params(omega=1.0, participation=0.6)
    slowly, given = (
        streamed(clone(noisy).set_params(**how), 100)
        for how in ({}, {"control_step": 0.1 / (1 + Dithering(omega=1.0).omega_for(3 * 6))})
    )
    assert_same(slowly, given, (*PARAMETERS, "client_drift_"), rtol=0)


def test_a_stream_after_a_fit_does_not_keep_the_fields_of_its_rows():
    # Each client of the fit has a component of its own; then one of them has rows of all.
    gm = FederatedGaussianMixture(3, random_state=0, tol=1e-6)
    gm.fit([X[k == CENTERS_OF_X] for k in (0, 1, 2)])
    assert (gm.client_drift_ > 0.1).all()
    test, before = make_rows(2000, seed=99), gm.client_drift_
    scores = [gm.score(test)]
    for call in range(100):
        gm.partial_fit(make_rows(200, seed=call))
        scores.append(gm.score(test))
    assert min(scores) > scores[0] - 0.05
    assert gm.history_["safeguarded"].sum() == 0
    assert (gm.client_drift_ < before).all()
    assert memory_error(gm) < 1e-14


@pytest.mark.parametrize("who", ["strangers", "few of many", "one after the other"])
def test_clients_that_do_not_come_back_leave_no_force_behind(who):
    rows, rng = make_rows(6000), np.random.default_rng(0)
    owners = {
        "strangers": np.arange(6000) // 20,  # five in a call, none of them twice
        "few of many": np.append(np.arange(2000) % 20, rng.integers(2, size=4000)),
        "one after the other": np.append(np.arange(2000) % 40, np.arange(4000) // 100),
    }[who]
    # The given means are two standard deviations off: about them, the scatter would be three times
    # that of the components, and few of many clients take longer than this stream to narrow it.
    gm = FederatedGaussianMixture(**GIVEN, precisions_init=[np.eye(2)] * 3)
    first = 100 if who == "strangers" else 2000
    streamed(
        gm.partial_fit(rows[:first], clients=owners[:first]), 100, rows[first:], owners[first:]
    )
    best = FederatedGaussianMixture(3, random_state=0).fit(rows)
    # With memories that learn at once, these streams ended 6.8, 9.2 and 0.5 nats below.
    assert best.score(rows) - gm.score(rows) < 0.02
    assert gm.history_["safeguarded"].sum() == 0


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
@pytest.mark.parametrize("control_step", [0.3, 1.0, "auto"])
def test_a_fit_sends_fields_where_exact_rounds_do_not_bring_the_memories_up_to_date(
    method, control_step
):
    gm = FederatedGaussianMixture(**GIVEN, control_step=control_step, step_size=0.2, max_iter=1)
    sent = []
    for control_init in ("field", "zeros"):
        fitted = clone(gm).set_params(control_init=control_init)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            getattr(fitted, method)(X[:300], clients=OWNERS[:300])
        sent.append(fitted.history_["uplink_bits"].sum())
    assert (sent[0] > sent[1]) == (method == "fit" and control_step == 0.3)


@pytest.mark.parametrize("client_weights", ["n_samples", "uniform"])
def test_a_stream_forgets_a_row_of_any_size(client_weights):
    gm = FederatedGaussianMixture(
        covariance_type="diag",
        client_weights=client_weights,
        step_size=0.9,
        control_step=1.0,
        random_state=0,
    )
    good, bad = gm, clone(gm)
    # Of 1e24 / 20 in a second moment 1e-13 is left after 36 calls.
    for call in range(50):
        rows = make_rows(20, seed=call)
        good.partial_fit(rows, clients=np.arange(20) % 4)
        if call == 2:
            rows[7, 0] = 1e12
        bad.partial_fit(rows, clients=np.arange(20) % 4)
    assert_same(bad, good, rtol=1e-9)
    assert memory_error(bad) < 1e-14


def test_a_stream_of_unlike_clients_that_come_in_turns_ends_where_a_fit_does():
    """Each call has one of two clients, each of which has one component only."""
    rows = CENTERS[:2, None] + np.random.default_rng(0).normal(size=(2, 6000, 2))
    gm = FederatedGaussianMixture(2, random_state=0, covariance_type="tied")
    gm.partial_fit(rows[:, :100].reshape(-1, 2), clients=np.repeat([0, 1], 100))
    pooled = np.concatenate(rows)
    best = FederatedGaussianMixture(2, random_state=0, covariance_type="tied").fit(pooled)
    gaps = [best.score(pooled) - gm.score(pooled)]
    for k in range(100, 6000, 100):
        for owner in (0, 1):
            gm.partial_fit(rows[owner, k : k + 100], clients=[owner] * 100)
    gaps.append(best.score(pooled) - gm.score(pooled))
    assert gaps[1] < 0.002 < 0.01 < gaps[0]


def test_the_log_likelihood_of_a_round_is_that_of_its_rows_whoever_is_away():
    gm = FederatedGaussianMixture(**GIVEN).partial_fit(CLIENTS)
    score = gm.score(X[:40])
    gm.partial_fit(X[:40], clients=np.zeros(40, dtype=int))
    assert gm.history_["log_likelihood"][1] == pytest.approx(score, rel=1e-10)


# ---- automatic steps


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


# ---- the average of Ŝ that a stream with automatic steps estimates


def averages(gm, size, rows, owners, mean, n_read):
    """Go on with a stream; yield what its parameters should be after each call."""
    for batch, labels in batches_of(size, rows, owners):
        before = gm.history_["epoch"][-1]
        gm.partial_fit(batch, clients=labels)
        n_rows = size * (gm.history_["epoch"][-1] - before)
        n_read += n_rows
        rate, memory = min(1.0, 4 * n_rows / n_read), gm._memory
        mean = mean + rate * (memory.server.statistics - mean)
        yield in_row_units(memory.model, memory.model.maximization(mean))[:3]


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
    _, mean = for_stream(gm._memory.model, gm._memory.server.statistics)
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
    rng = np.random.default_rng(0)
    centers = np.array([-5.0, 0.0, 20.0])
    gm = FederatedGaussianMixture(
        3, covariance_type="tied", means_init=centers[:, None], batch_size=20, random_state=0
    )
    for n_components, n_rows in ((3, 500), (2, 40_000)):
        rows = centers[rng.integers(n_components, size=n_rows)] + rng.normal(size=n_rows)
        gm.set_params(**noise).partial_fit(rows[:, None], clients=np.arange(n_rows) % 5)
    assert_allclose(gm.covariances_, 1.0, atol=0.05)
    assert_allclose(gm.means_.ravel()[:2], centers[:2], atol=0.05)


def test_ctrl_c_leaves_the_average_as_it_was(monkeypatch):
    gm = streamed(FederatedGaussianMixture(**GIVEN, batch_size=5), 100)
    undisturbed = pickle.loads(pickle.dumps(gm)).partial_fit(CLIENTS)
    before = dict(vars(gm))
    with monkeypatch.context() as patch:
        patch.setattr(_stream, "client_round", interrupted(_stream.client_round, at=3))
        with pytest.raises(KeyboardInterrupt):
            gm.partial_fit(CLIENTS)
    assert all(vars(gm)[name] is value for name, value in before.items())
    assert_same(gm.partial_fit(CLIENTS), undisturbed, rtol=0)


# ---- composing with everything else


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_history_grows_and_is_of_rows_not_seen_before(covariance_type):
    gm = FederatedGaussianMixture(**NOISY | {"participation": 1.0}, covariance_type=covariance_type)
    scores = []
    for batch, _ in batches_of(100):
        if scores:
            scores[-1] = gm.score(batch)
        scores.append(np.nan)
        gm.partial_fit(batch)
    history = gm.history_
    assert gm.n_iter_ == 6
    assert_array_equal(history["round"], range(7))
    assert_allclose(history["log_likelihood"][1:], scores, rtol=1e-10)
    assert gm.lower_bound_ == gm.lower_bounds_[-1] == history["log_likelihood"][5]
    assert len({len(column) for column in history.values()}) == 1
    assert (history["uplink_bits"] > 0).all()
    assert (np.diff(history["epoch"]) > 0).all()
    assert not gm.converged_


def test_columns_that_a_user_adds_to_the_history_do_not_end_a_stream():
    first, second = [batch for batch, _ in batches_of(100)][:2]
    gm = FederatedGaussianMixture(**NOISY).partial_fit(first)
    gm.history_["uplink_megabytes"] = gm.history_["uplink_bits"] / 8e6
    again = FederatedGaussianMixture(**NOISY).partial_fit(first).partial_fit(second)
    for name, column in gm.partial_fit(second).history_.items():
        assert_array_equal(column, again.history_[name], err_msg=name)


@pytest.mark.parametrize("is_known", [False, True])
def test_a_stream_sends_no_second_moment_beside_a_known_covariance(is_known):
    rng = np.random.default_rng(0)
    known = {"fixed_covariance": np.eye(3)} if is_known else {}
    gm = FederatedGaussianMixture(2, covariance_type="tied", warm_start=True, max_iter=2, **known)
    calls = [[rng.normal(center, 1, size=(40, 3)) for center in (-3, 3)] for _ in range(3)]
    for clients in calls:
        gm.partial_fit(clients)
    # Uncompressed: 6 bytes around 8 numbers, 2 (1 + 3), and of two clients 6 moments each.
    moments = 2 * 64 * 6
    in_stream = 0 if is_known else moments
    assert_array_equal(gm.history_["uplink_bits"][1:], 2 * 8 * (64 + 6 - 1) + in_stream)
    assert_array_equal(gm.history_["downlink_bits"][2:], 2 * 64 * 8 + in_stream)
    with pytest.warns(ConvergenceWarning):
        gm.fit([0.5 * rows for rows in calls[0]])
    # No rows with this second moment have these means: statistics are sent for a new Ŝ.
    assert gm.history_["uplink_bits"][0] == moments + (0 if is_known else 2 * 64 * 8)


def test_participation_and_compression_apply_to_a_stream():
    gm = streamed(FederatedGaussianMixture(**NOISY), 50)
    plain = streamed(FederatedGaussianMixture(**NOISY | {"omega": 0.0}), 50)
    active = gm.history_["n_active"][1:]
    assert active.min() < 5 and active.max() <= 5
    assert gm.history_["uplink_bits"][1:].sum() < 0.5 * plain.history_["uplink_bits"][1:].sum()
    for name in PARAMETERS:
        assert np.isfinite(getattr(gm, name)).all()


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
@pytest.mark.parametrize("weighted", [False, True])
def test_clients_that_take_no_part_are_as_if_they_had_no_rows(covariance_type, weighted):
    given = GIVEN | {"step_size": 0.3, "control_step": 0.5, "client_weights": "uniform"}
    gm = FederatedGaussianMixture(**given, covariance_type=covariance_type)
    gm.partial_fit(CLIENTS)
    row_weights = [1 + np.arange(len(rows)) % 3.0 for rows in CLIENTS] if weighted else None
    some, before = deepcopy(gm).set_params(participation=0.6, random_state=1), gm.client_drift_
    some.partial_fit(CLIENTS, sample_weight=row_weights)
    active = some.client_drift_ != before
    assert 0 < active.sum() < 5
    rows, owners = np.concatenate(CLIENTS), np.repeat(np.arange(5), [len(c) for c in CLIENTS])
    here = active[owners]
    if weighted:
        row_weights = np.concatenate(row_weights)[here]
    # Fewer than expected step by as much less.
    gm.set_params(step_size=0.3 * min(1, active.mean() / 0.6))
    gm.partial_fit(rows[here], clients=owners[here], sample_weight=row_weights)
    assert_same(some, gm, names=(*PARAMETERS, "client_drift_"), **ALMOST)
    for name in ("n_active", "uplink_bits", "downlink_bits", "log_likelihood", "field_sq_norm"):
        assert_allclose(some.history_[name], gm.history_[name], rtol=1e-10, err_msg=name)


@pytest.mark.parametrize(
    ("covariance_type", "omega"), [("full", 0.0), ("tied", 1.0), ("diag", 1.0), ("spherical", 0.0)]
)
def test_a_lone_client_that_misses_half_of_the_calls_ends_near_em(covariance_type, omega):
    rng = np.random.default_rng(5)
    rows = CENTERS[rng.integers(3, size=10000)] + 0.2 * rng.normal(size=(10000, 2))
    em = GaussianMixture(3, covariance_type=covariance_type, n_init=3, random_state=0)
    gm = FederatedGaussianMixture(
        3, covariance_type=covariance_type, participation=0.5, omega=omega, random_state=0
    )
    streamed(gm, 200, rows, np.zeros(len(rows), dtype=int))
    assert gm.score(rows) > em.fit(rows).score(rows) - 0.01  # 0.015 to 0.022 after the first call
    assert gm.history_["safeguarded"].sum() == 0


@pytest.mark.parametrize("parameters", [{}, {"omega": 1.0}, {"omega": 1.0, "eval_every": None}])
def test_the_first_rows_after_a_fit_count_as_not_seen_before(parameters):
    gm = fit(FederatedGaussianMixture(**GIVEN, **parameters, max_iter=5), CLIENTS)
    of_fit, shifted = gm.lower_bounds_, X + 1.0
    scores = [gm.score(shifted), gm.partial_fit(shifted, clients=OWNERS).score(X)]
    gm.partial_fit(X, clients=OWNERS)
    assert gm.lower_bounds_[:-2] == of_fit
    assert_allclose(gm.lower_bounds_[-2:], scores, rtol=1e-10)  # sums in another order
    assert gm.lower_bound_ == gm.lower_bounds_[-1]


def test_an_epoch_of_a_stream_is_of_the_rows_that_were_read():
    gm = FederatedGaussianMixture(**NOISY)
    for first in range(0, 600, 100):
        gm.partial_fit(np.split(X[first : first + 100], 5))  # 20 rows each
    n_active = gm.history_["n_active"][1:]
    assert len(set(n_active)) > 1
    assert_allclose(np.diff(gm.history_["epoch"]), n_active / 5, rtol=1e-12, atol=1e-12)


def test_a_call_that_nobody_takes_part_in_is_a_round_that_changes_nothing():
    gm = FederatedGaussianMixture(**NOISY | {"participation": 1e-9, "control_init": "zeros"})
    gm.partial_fit(X[:100])
    assert gm.history_["n_active"][1] == 0
    assert np.isfinite(gm.lower_bound_)
    before = gm.means_
    gm.partial_fit(X[100:200]).set_params(step_size=0.3, omega=0.0).partial_fit(X[200:])
    assert_array_equal(gm.means_, before)
    assert np.isfinite(gm.lower_bounds_).all()
    assert_array_equal(gm.history_["round"], [0, 1, 2, 3])
    for name in ("n_active", "step_size", "epoch", "safeguarded"):
        assert_array_equal(gm.history_[name][1:], 0)


@pytest.mark.parametrize("init_params", ["kmeans", "k-means++", "random_from_data", "random"])
def test_a_stream_from_any_kind_of_start_is_repeated_by_its_seed(init_params):
    gm = FederatedGaussianMixture(3, init_params=init_params, n_init=3, random_state=0)
    streamed(gm, 100)
    assert gm.n_iter_ == 6
    again = streamed(clone(gm), 100)
    assert_array_equal(gm.means_, again.means_)


def test_what_is_not_seen_before_the_first_round_are_its_rows():
    precisions = np.stack([np.eye(2)] * 3)
    gm = FederatedGaussianMixture(
        **GIVEN, weights_init=[0.5, 0.3, 0.2], precisions_init=precisions, batch_size=30
    ).partial_fit(CLIENTS)
    first = np.concatenate([rows[:30] for rows in CLIENTS])
    densities = [
        weight * multivariate_normal(mean, np.eye(2)).pdf(first)
        for weight, mean in zip([0.5, 0.3, 0.2], GIVEN["means_init"], strict=True)
    ]
    want = np.log(np.sum(densities, axis=0)).mean()
    assert_allclose(gm.history_["log_likelihood"][0], want, rtol=1e-10)


@pytest.mark.parametrize("max_iter", [0, 100])
def test_a_stream_begins_at_the_best_of_its_starts(max_iter):
    def start(n_init, n_skipped=0):
        random_state = np.random.RandomState(3)
        random_state.randint(2, size=n_skipped)  # the seeds before
        gm = FederatedGaussianMixture(
            7,
            init_params="random_from_data",
            n_init=n_init,
            max_iter=max_iter,
            random_state=random_state,
        )
        return gm.partial_fit(CLIENTS).history_["log_likelihood"][0]

    alone = [start(1, k) for k in range(6)]
    assert_allclose(start(6), max(alone), rtol=1e-12)
    assert max(alone) > max(alone[0], alone[-1])


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
@pytest.mark.parametrize("settings", [{}, {"participation": 0.3, "batch_size": 10}])
def test_the_first_call_fits_its_rows(covariance_type, settings):
    gm = FederatedGaussianMixture(
        3, covariance_type=covariance_type, init_params="random_from_data", random_state=0
    )
    whole = fit(clone(gm).set_params(tol=1e-4), CLIENTS)  # a tenth of that of the stream
    assert whole.n_iter_ > 5
    # All clients and all rows, whatever those of the rounds are.
    stream = gm.set_params(**settings).partial_fit(CLIENTS)
    assert_allclose(stream.history_["log_likelihood"][0], whole.score(X), rtol=1e-12)
    assert stream.history_["round"][0] == stream.history_["epoch"][0] == 0
    for name in ("uplink_bits", "downlink_bits"):
        assert stream.history_[name][0] == whole.history_[name].sum() > 0


def test_the_first_call_compresses_what_it_sends_and_draws_no_number_twice(monkeypatch):
    def drawn(seed, purpose, round_index, *arguments, **keywords):
        if purpose == _random.COMPRESSION:
            rounds.append((seed, round_index))
        return uniforms(seed, purpose, round_index, *arguments, **keywords)

    rounds, uniforms = [], _random.client_uniforms
    monkeypatch.setattr(_random, "client_uniforms", drawn)
    gm = FederatedGaussianMixture(3, omega=1.0, max_iter=7, random_state=0)
    gm.partial_fit(CLIENTS)
    assert len(rounds) == len(set(rounds)) == 8
    # By its own α, whatever that of the stream is.
    naive = clone(gm).set_params(control_step=0.0).partial_fit(CLIENTS)
    assert_array_equal(naive.history_["weights"][0], gm.history_["weights"][0])


def test_a_first_call_of_few_rows_or_from_given_means_is_not_fitted():
    def n_bits_of_rounds(rows, **settings):
        gm = FederatedGaussianMixture(3, random_state=0, **settings).partial_fit(rows)
        start = fit(clone(gm).set_params(max_iter=0), rows)
        return gm.history_["uplink_bits"][0] - start.history_["uplink_bits"][0]

    # Four rows for each of the six numbers in the means.
    assert n_bits_of_rounds(X[:24]) > 0
    assert n_bits_of_rounds(X[:23]) == 0
    assert n_bits_of_rounds(X[:24], max_iter=0) == 0
    assert n_bits_of_rounds(X[:24], means_init=X[:3]) == 0


@pytest.mark.parametrize("covariance_type", ["full", "diag"])
def test_without_regularisation_a_first_call_whose_fit_collapses_is_not_fitted(covariance_type):
    rng = np.random.default_rng(0)
    rows = np.exp(rng.normal(size=(200, 2)))
    rows[rng.random(rows.shape) < 0.5] = 0
    gm = FederatedGaussianMixture(3, covariance_type=covariance_type, reg_covar=0, random_state=0)
    with pytest.raises(ValueError, match="positive definite covariances"):
        clone(gm).fit(rows)
    unfitted = clone(gm).set_params(max_iter=0).partial_fit(rows)
    assert_same(gm.partial_fit(rows), unfitted, rtol=0)
    assert np.isfinite(streamed(gm, 50, rows).score(rows))


def test_other_errors_in_the_fit_of_a_first_call_are_raised(monkeypatch):
    def damaged(*args):
        raise ValueError("damaged")

    monkeypatch.setattr(_loop, "one_round", damaged)  # which no stream calls
    gm = FederatedGaussianMixture(3, reg_covar=0, random_state=0)
    with pytest.raises(ValueError, match="damaged"):
        gm.partial_fit(CLIENTS)


def test_a_first_call_spares_a_stream_a_long_way():
    # Noisy digits, on which it would end 0.095 and 0.099 nats below with these seeds.
    rng = np.random.default_rng(0)
    rows = np.tile(PCA(10, random_state=0).fit_transform(load_digits().data), (6, 1))
    rows = rng.permutation(rows) + rng.normal(size=rows.shape)
    owners = rng.integers(20, size=len(rows))
    for seed in (1, 3):
        gm = FederatedGaussianMixture(4, covariance_type="tied", random_state=seed)
        gm.partial_fit(rows[:500], clients=owners[:500])
        streamed(gm, 300, rows[500:], owners[500:])
        again = clone(gm).set_params(
            weights_init=gm.weights_, means_init=gm.means_, precisions_init=gm.precisions_
        )
        optimum = fit(again.set_params(tol=1e-5, max_iter=500), rows).score(rows)
        assert gm.score(rows) > optimum - 0.02


def test_ctrl_c_in_the_first_call_leaves_nothing_half_fitted(monkeypatch):
    gm = FederatedGaussianMixture(3, init_params="random_from_data", random_state=0)
    monkeypatch.setattr(_loop, "client_round", interrupted(_loop.client_round, at=3))
    with pytest.raises(KeyboardInterrupt):
        gm.partial_fit(CLIENTS)
    assert not any(name.endswith("_") for name in vars(gm))
    assert gm.partial_fit(CLIENTS).n_iter_ == 1


def test_fit_begins_anew_and_a_stream_goes_on_from_a_fit():
    gm = streamed(FederatedGaussianMixture(**GIVEN), 100)
    assert_same(gm.fit(CLIENTS), FederatedGaussianMixture(**GIVEN).fit(CLIENTS), rtol=0)
    assert len(gm.history_["round"]) == gm.n_iter_ + 1
    n_rounds, score = gm.n_iter_, gm.score(CLIENTS)
    gm.partial_fit(CLIENTS)
    assert gm.n_iter_ == n_rounds + 1
    assert gm.score(CLIENTS) >= score - 1e-9  # a step of EM, if a short one
    warm = streamed(FederatedGaussianMixture(**GIVEN, warm_start=True, max_iter=1), 100)
    before = warm.score(X)
    fit(warm, X, clients=OWNERS)
    assert warm.n_iter_ == 1
    assert not hasattr(warm, "new_client_ids_")
    assert warm.score(X) > before


def test_a_stream_takes_any_form_of_data_and_requests_its_metadata():
    frame = pd.DataFrame(X, columns=["length", "width"])
    gm = FederatedGaussianMixture(**GIVEN).partial_fit(frame, clients=OWNERS)
    assert_array_equal(gm.feature_names_in_, ["length", "width"])
    by_list = FederatedGaussianMixture(**GIVEN).partial_fit(
        [frame[owner == OWNERS] for owner in range(5)]
    )
    assert_same(gm, by_list, **ALMOST)
    with pytest.raises(ValueError, match="Expected the columns of the last fit"):
        gm.partial_fit(frame.rename(columns={"width": "height"}), clients=OWNERS)
    with sklearn.config_context(enable_metadata_routing=True):
        request = gm.get_metadata_routing().partial_fit.requests
    assert request == {"clients": True, "sample_weight": True}


@pytest.mark.parametrize("step_size", [0.05, "auto"])
def test_results_do_not_depend_on_n_jobs_or_on_pickling(step_size, monkeypatch, threads_always_pay):
    monkeypatch.setattr(GaussianMixtureModel, "block_rows", 7)  # clients in groups of their own
    # Some rounds a call: the first of them is done alone.
    parameters = {**NOISY, "step_size": step_size, "batch_size": 6}
    one, two = (FederatedGaussianMixture(**parameters, n_jobs=k) for k in (None, 2))
    for batch, labels in batches_of(100):
        one.partial_fit(batch, clients=labels)
        assert not threads_always_pay
        two = pickle.loads(pickle.dumps(two)).partial_fit(batch, clients=labels)
        assert set(threads_always_pay) == {2}
        threads_always_pay.clear()
    assert_array_equal(one.means_, two.means_)
    assert_array_equal(one.history_["field_sq_norm"], two.history_["field_sq_norm"])


def test_neither_the_origin_nor_the_units_of_rows_matter_to_a_stream():
    near, far = FederatedGaussianMixture(3, random_state=0), FederatedGaussianMixture(
        3, random_state=0, reg_covar=1e2
    )  # fmt: skip
    streamed(near, 100, X - [50.0, 0.0])
    streamed(far, 100, (X - [50.0, 0.0]) * 1e4 + 1e8)
    # Rows 1e8 from the origin have eight digits less; they vary by 1e4.
    assert_allclose((far.means_ - 1e8) / 1e4, near.means_, atol=1e-6)


# ---- bad input


def state(gm):
    memory = gm._memory
    return memory.states.controls.tobytes(), gm.means_.tobytes(), gm.n_iter_, len(gm.lower_bounds_)


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
        says = rf"within 1e\+37 standard .* got -1e\+40 in column 1 of client '{whose}'"
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
    with pytest.raises(ValueError, match=f"got 1e\\+40 in column {column} of client 0"):
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
    with pytest.raises(ValueError, match=r"got 1e\+38 in column 1 of client 0"):
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
    before = memory.states.controls, memory.totals, memory.weights
    kept = [array.copy() for array in before]
    gm.partial_fit(CLIENTS)
    for array, was in zip(before, kept, strict=True):
        assert_array_equal(array, was)


# ---- features that begin to vary

VARYING = {
    # What the first rows are: the second feature constant, or the sum of the others.
    "constant": lambda rows: np.column_stack([rows[:, 0], np.full(len(rows), 7.0), rows[:, 1]]),
    "dependent": lambda rows: np.column_stack([rows[:, 0], rows.sum(axis=1), rows[:, 1]]),
}


@pytest.mark.parametrize("covariance_type", ["full", "diag"])
def test_a_feature_begins_to_vary_by_the_share_of_those_who_vary(covariance_type):
    rng = np.random.default_rng(3)
    first = VARYING["constant"](rng.normal(size=(60, 2)))
    then = rng.normal([0.0, 9.0, 0.0], [1.0, 2.0, 3.0], size=(400, 3))
    # Steps by which nothing is learnt from the rows, but what clients tell of the new axis.
    gm = FederatedGaussianMixture(covariance_type=covariance_type, step_size=1e-15)
    gm.partial_fit(first, clients=np.arange(60) % 5).partial_fit(then, clients=np.arange(400) % 5)
    variance = np.reshape(gm.covariances_, -1)[4 if covariance_type == "full" else 1]
    # The rows of the first call, none of which varied, count twice.
    square = np.mean((then[:, 1] - 7.0) ** 2)
    assert_allclose(variance, 400 / (2 * 60 + 400) * square + 1e-6, rtol=1e-9)


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
@pytest.mark.parametrize("how", VARYING)
def test_a_whole_step_on_features_that_begin_to_vary_forgets_that_they_did_not(
    covariance_type, how
):
    rng = np.random.default_rng(3)
    first = VARYING[how](rng.normal(size=(60, 2)))
    then = rng.normal([0.0, 9.0, 0.0], [1.0, 2.0, 3.0], size=(400, 3))
    clients = np.arange(400) % 5
    want = fit(FederatedGaussianMixture(covariance_type=covariance_type), then)
    # A step of 1 forgets the first rows, and one component is what rows have.
    stream = FederatedGaussianMixture(covariance_type=covariance_type, step_size=1.0)
    unseen = stream.partial_fit(first, clients=clients[:60]).score(then)
    stream.partial_fit(then, clients=clients)
    assert_same(stream, want, **ALMOST)
    seen = stream.history_["log_likelihood"][1]
    if covariance_type == "full" or (covariance_type, how) == ("diag", "constant"):
        # Far out of a variance of 1e-6; but what clients tell of the new axis comes first.
        assert unseen < -1e4 < -30 < seen < want.score(then)
    else:
        # The variance is not taken from Ŝ, or no axis is new; 64 eps of it are on top of 1e-6.
        assert seen == pytest.approx(unseen, rel=1e-6)
    warm = fit(FederatedGaussianMixture(covariance_type=covariance_type, warm_start=True), first)
    fit(warm, then)
    assert_same(warm, want, **ALMOST)
    assert warm.lower_bound_ == pytest.approx(warm.score(then), abs=1e-10)


@pytest.mark.parametrize("covariance_type", ["full", "diag"])
@pytest.mark.parametrize("how", ["stream", "warm"])
@pytest.mark.parametrize("seed", [0, 2, 2000])
def test_compression_does_not_drown_components_when_a_feature_begins_to_vary(
    covariance_type, how, seed
):
    # Where nothing was known of the new axis, 1 to 3 nats were missing in some of such runs,
    # and 0.16 to 0.35 where messages of a stream were divided by ``participation``.
    rng = np.random.default_rng(seed)
    kinds = np.where(rng.integers(2, size=6100), 3, -3)
    rows, owners = rng.normal(kinds[:, None], 1, (6100, 3)), rng.integers(5, size=6100)
    first = rows * [1, 1, 0] + [0, 0, 5]
    em = fit(FederatedGaussianMixture(2, covariance_type=covariance_type, random_state=0), rows)
    gm = FederatedGaussianMixture(2, covariance_type=covariance_type, random_state=seed)
    gm.set_params(omega=1.0, participation=0.7, warm_start=True, max_iter=300)
    if how == "warm":
        fit(fit(gm, first, clients=owners), rows, clients=owners)
    else:
        gm.partial_fit(first[:100], clients=owners[:100])
        for start in range(100, 6100, 100):
            now = slice(start, start + 100)
            gm.partial_fit(rows[now], clients=owners[now])
    # A pass of 60 rounds ends within 0.02.
    assert gm.score(rows) > em.score(rows) - 0.05
    # Steps that are a large part of all may be too long, and those of later rounds may not; one of
    # a fit may, all of which are long.
    safeguarded = np.flatnonzero(gm.history_["safeguarded"])
    assert len(safeguarded) <= 1 if how == "warm" else safeguarded.max(initial=0) <= 3


@pytest.mark.parametrize(
    ("covariance_type", "scale", "how"),
    [
        ("full", 1e-3, "stream"),
        ("full", 1e3, "warm"),
        ("tied", 1e3, "stream"),
        ("tied", 1e-3, "warm"),
        ("diag", 1e-3, "stream"),
        ("diag", 1e3, "warm"),
    ],
)
def test_features_may_begin_to_vary_by_much_or_little_beside_some_that_still_do_not(
    covariance_type, scale, how
):
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=4000)
    known, new = CENTERS[labels] + rng.normal(size=(4000, 2)), scale * rng.normal(size=4000)
    owners = labels + 3 * rng.integers(4, size=4000)
    first = np.column_stack([np.full(4000, 7.0), known, known.sum(axis=1), np.full(4000, 3.0)])
    then = first + new[:, None] * [1, 0, 0, 0, 0]
    gm = FederatedGaussianMixture(
        3, covariance_type=covariance_type, omega=1.0, random_state=0, warm_start=True
    )
    if how == "warm":
        fit(fit(gm, first, clients=owners), then, clients=owners)
    else:
        streamed(gm.partial_fit(first[:500], clients=owners[:500]), 200, then, owners)
    assert gm.history_["safeguarded"].sum() == 0
    # EM from here; a start by k-means finds nothing beside a feature that is so large.
    start = {"weights_init": gm.weights_, "means_init": gm.means_}
    em = FederatedGaussianMixture(3, covariance_type=covariance_type, **start)
    assert gm.score(then) > fit(em, then).score(then) - 0.05


@pytest.mark.parametrize("how", VARYING)
def test_what_clients_send_of_features_that_may_begin_to_vary(how):
    rows = VARYING[how](np.random.default_rng(3).normal(size=(60, 2)))
    gm = FederatedGaussianMixture(warm_start=True, max_iter=1)
    owners = np.arange(60) % 5
    streamed = clone(gm).partial_fit(rows, clients=owners).partial_fit(rows, clients=owners)
    again = fit(fit(gm, rows, clients=owners), rows, clients=owners)
    assert again.history_["uplink_bits"][0] == 64 * 5  # a variance of each client
    units = gm._memory.model.units
    assert units.varies.tolist().count(False) == 1
    assert streamed.history_["uplink_bits"][-1] == again.history_["uplink_bits"].sum()
    assert streamed.history_["downlink_bits"][-1] == again.history_["downlink_bits"].sum()


@pytest.mark.parametrize(("covariance_type", "n_numbers"), [("full", 3), ("diag", 2)])
def test_of_two_constant_features_clients_send_the_covariance_where_covariances_count(
    covariance_type, n_numbers
):
    rows = np.random.default_rng(3).normal(size=(60, 3)) * [0.0, 1.0, 0.0]
    gm = FederatedGaussianMixture(covariance_type=covariance_type, warm_start=True, max_iter=1)
    again = fit(fit(gm, rows), rows)
    assert again.history_["uplink_bits"][0] == 64 * n_numbers


# Starts that tell the points apart leave nothing but rounding, and fits say so.
@pytest.mark.filterwarnings("ignore:Covariances of components:UserWarning")
@pytest.mark.parametrize("seed", range(4))
def test_rounding_along_axes_that_do_not_vary_is_no_covariance(seed):
    # Three points in four dimensions, so far from 0 that rounding is larger than reg_covar here.
    rng = np.random.default_rng(seed)
    points = 1e6 + rng.normal(size=(3, 4)) * [1.0, 100.0, 1e3, 1e4]
    rows = points[rng.integers(3, size=60)]
    given = {"covariance_type": "tied", "random_state": 0}
    gm = FederatedGaussianMixture(3, batch_size=1, **given).partial_fit(rows)
    assert np.isfinite(gm.score(rows))
    warm = fit(FederatedGaussianMixture(3, warm_start=True, **given), rows)
    assert np.isfinite(fit(warm, rows[:10]).score(rows))


# ---- the domain of the M-step


def test_a_shared_covariance_stands_absences_and_small_batches():
    # Ŝ and the second moment of the rows, from which the covariance is taken, go one step.
    gm = FederatedGaussianMixture(**GIVEN, participation=0.5, covariance_type="tied")
    gm.partial_fit(X[:150], clients=OWNERS[:150])
    streamed(gm, 3)
    assert (np.linalg.eigvalsh(gm.covariances_) > 0).all()
    assert np.isfinite(gm.score(X))


# ---- bits to the clients


def test_what_the_server_learns_goes_back_to_the_clients():
    gm = streamed(FederatedGaussianMixture(**GIVEN, covariance_type="tied"), 100)
    # Ŝ, and the second moment that covariances are computed from.
    numbers = 3 * 3 + 3
    assert_array_equal(gm.history_["downlink_bits"][1:], 64 * numbers * gm.history_["n_active"][1:])
    full = streamed(FederatedGaussianMixture(**GIVEN), 100)
    statistics = 64 * 3 * 6 * full.history_["n_active"][1:]
    assert_array_equal(full.history_["downlink_bits"][1:], statistics)


@pytest.mark.parametrize(("covariance_type", "moments"), [("tied", 2 + 3), ("diag", 2 + 2)])
def test_clients_who_join_are_told_the_units(covariance_type, moments):
    gm = FederatedGaussianMixture(**GIVEN, covariance_type=covariance_type)
    gm.partial_fit(CLIENTS[:3]).partial_fit(CLIENTS[:3])
    of_three = gm.history_["downlink_bits"][-1]
    gm.partial_fit(X[:20], clients=np.repeat([1, 2, 8, 9], 5))
    assert_array_equal(gm.new_client_ids_, [8, 9])
    assert gm.history_["downlink_bits"][-1] == of_three * 4 / 3 + 64 * 2 * moments


@pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="new in NumPy 2")
def test_labels_of_any_type_of_text_are_the_same():
    rows, names = np.random.default_rng(0).normal(size=(30, 2)), np.array(["a", "b", "c"] * 10)
    gm = FederatedGaussianMixture(random_state=0)
    gm.partial_fit(rows, clients=names.astype(np.dtypes.StringDType()))
    for labels in (names, names.astype(object)):
        assert not len(gm.partial_fit(rows, clients=labels).new_client_ids_)
    assert gm.n_clients_ == 3


def test_one_client_in_place_of_another_is_no_certain_step():
    rng = np.random.default_rng(0)
    near, far = rng.normal(size=(50, 2)), 20 + rng.normal(size=(50, 2))
    gm = FederatedGaussianMixture(2, step_size=1.0, control_step=1.0, random_state=0)
    gm.fit(np.concatenate([near, far]), clients=np.repeat([0, 1], 50))
    gm.partial_fit(near, clients=np.ones(50, int))
    # A whole step would have left nothing of the component that client 1 used to see.
    assert gm.history_["safeguarded"][-1] > 0
    assert (gm.weights_ > 0.1).all()


def test_weights_that_all_rows_of_a_client_share_change_no_mean_of_its_batches():
    gm = FederatedGaussianMixture(**NOISY, batch_size=20, client_weights="uniform")
    weights = [np.full(len(rows), 1.0 + k) for k, rows in enumerate(CLIENTS)]
    plain = clone(gm).partial_fit(CLIENTS)
    assert plain.history_["round"][-1] > 1
    weighted = clone(gm).partial_fit(CLIENTS, sample_weight=weights)
    assert_same(weighted, plain, **ALMOST)


@pytest.mark.parametrize(
    ("covariance_type", "settings"),
    [
        ("full", {"step_size": 0.1}),
        ("spherical", {"step_size": 0.1}),
        ("tied", {"step_size": 0.05, "omega": 1.0, "participation": 0.5}),
        ("diag", {"step_size": 0.05, "omega": 1.0, "participation": 0.5}),
    ],
)
def test_a_component_whose_rows_stay_away_for_long_waits_for_them(covariance_type, settings):
    rng = np.random.default_rng(0)
    centers = np.array([-20.0, 0.0, 20.0])

    def read(n_rounds, n_components):
        n_rows = 100 * n_rounds
        rows = centers[rng.integers(n_components, size=n_rows)] + rng.normal(size=n_rows)
        gm.partial_fit(rows[:, None], clients=np.arange(n_rows) % 5)

    gm = FederatedGaussianMixture(
        3,
        covariance_type=covariance_type,
        means_init=centers[:, None],
        batch_size=20,
        random_state=0,
        **settings,
    )
    read(50, 3)
    read(400, 2)  # 0.9**400 is 5e-19, and 0.95**400 1e-9
    assert 0.8e-3 < gm.weights_[2] < 1.2e-3  # a step takes away a tenth
    # A standard deviation of the rows, which the noise of messages may add up to on the way.
    assert_allclose(gm.means_.ravel(), centers, atol=1.0)
    read(100, 3)
    # Five standard errors. Steps of γ = 0.05 average over 100 (2 - γ) / γ = 3900 rows; compression
    # and absences, ω_p = 3, make their noise 1 + 2 ω_p = 7 times as large. (γ = 0.1 has 1900.)
    n_rows = 3900 / 7
    assert_allclose(gm.weights_, 1 / 3, atol=5 * np.sqrt(2 / 9 / n_rows))
    assert_allclose(gm.means_.ravel(), centers, atol=5 / np.sqrt(n_rows / 3))


def test_a_component_whose_first_rows_come_back_is_not_theirs_alone():
    # Five of them in each round, in four dimensions.
    rng = np.random.default_rng(0)
    centers = 3 * rng.normal(size=(4, 4))
    mixing = 0.3 * rng.normal(size=(4, 4, 4)) + np.eye(4)

    def draw(weights, n_rows):
        labels = rng.choice(4, size=n_rows, p=weights)
        noise = rng.normal(size=(n_rows, 4))
        return centers[labels] + np.einsum("nij,nj->ni", mixing[labels], noise)

    mixed, without = [0.4, 0.3, 0.2, 0.1], [0.45, 0.33, 0.22, 0]
    gm = FederatedGaussianMixture(4, random_state=0).partial_fit(draw(mixed, 400))
    for weights, n_rounds in ((mixed, 10), (without, 140), (mixed, 50)):
        for _ in range(n_rounds):
            gm.partial_fit(draw(weights, 50))
    rows = draw(mixed, 5000)
    em = GaussianMixture(4, means_init=centers, random_state=0).fit(rows)
    assert gm.score(rows) > em.score(rows) - 0.06


def test_a_component_that_waits_takes_nothing_from_a_covariance_that_others_share():
    # Its mass of 0.001 times the squared distance is 10; the rows' variance is 1.
    rng = np.random.default_rng(0)
    centers = np.array([-5.0, 0.0, 100.0])
    gm = FederatedGaussianMixture(
        3,
        covariance_type="tied",
        means_init=centers[:, None],
        step_size=0.05,
        omega=1.0,
        participation=0.5,
        batch_size=20,
        random_state=0,
    )
    for n_components, n_rows in ((3, 5000), (2, 40_000)):
        rows = centers[rng.integers(n_components, size=n_rows)] + rng.normal(size=n_rows)
        gm.partial_fit(rows[:, None], clients=np.arange(n_rows) % 5)
    # Half of 100 rows in each of 20 rounds: a standard error of 0.05.
    assert_allclose(gm.covariances_, 1.0, atol=0.15)
    assert not gm.history_["safeguarded"].any()


def test_the_next_call_begins_with_the_parameters_of_this_one():
    # Ŝ and the second moment of the rows went one step, also where the safeguard made it shorter.
    noise, n_shortened = {"step_size": 0.3, "omega": 4.0, "participation": 0.5}, 0
    gm = FederatedGaussianMixture(**GIVEN, **noise, covariance_type="tied")
    gm.partial_fit(X[:150], clients=OWNERS[:150])
    for batch, labels in batches_of(3):
        server, model = gm.partial_fit(batch, clients=labels)._memory.server, gm._memory.model
        n_shortened += gm.history_["safeguarded"][-1]
        parameters = model.maximization(server.statistics)
        assert_array_equal(parameters.covariances, server.parameters.covariances)
    assert n_shortened > 0


def test_the_first_call_is_one_of_a_stream():
    # Messages are in other units than those of a fit, where clients tell no second moment.
    given = {**NOISY, "covariance_type": "tied", "client_weights": "uniform"}
    begun = fit(FederatedGaussianMixture(**given, max_iter=0), CLIENTS)
    first = FederatedGaussianMixture(**given).partial_fit(CLIENTS)
    assert_same(first, begun.partial_fit(CLIENTS), **ALMOST)


def test_calls_of_a_stream_end_at_whole_epochs():
    # Twenty rounds, each of a row of 20: shares of 0.05 do not add up to 1.
    gm = FederatedGaussianMixture(**GIVEN, batch_size=1)
    for first in range(0, 600, 200):
        gm.partial_fit(np.split(X[first : first + 200], 10))
    assert_array_equal(gm.history_["epoch"][::20], range(4))


def test_a_fit_after_a_stream_is_no_stream():
    # Its clients tell the second moment once, so that messages are in the units of a fit again.
    given = {**NOISY, "covariance_type": "tied", "warm_start": True, "max_iter": 3}
    streamed = FederatedGaussianMixture(**given).partial_fit(CLIENTS)
    other = deepcopy(streamed)
    model = replace(other._memory.model, in_stream=False)
    other._memory = other._memory._replace(model=model)
    assert_same(fit(streamed, CLIENTS), fit(other, CLIENTS), rtol=0, atol=0)


def test_a_fit_knows_clients_of_a_stream_in_whatever_order_they_came():
    gm = FederatedGaussianMixture(**NOISY, warm_start=True)
    for first in (3, 0):
        gm.partial_fit(X[first <= OWNERS], clients=OWNERS[first <= OWNERS])
    assert gm.client_ids_.tolist() == [3, 4, 0, 1, 2]
    controls = gm._memory.states.controls
    fit(gm.set_params(max_iter=0), X, clients=OWNERS)
    assert gm.client_ids_.tolist() == [0, 1, 2, 3, 4]
    assert_array_equal(gm._memory.states.controls, controls[[2, 3, 4, 0, 1]])


@pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="new in NumPy 2")
@pytest.mark.parametrize("missing", [np.nan, None, pd.NA], ids=repr)
def test_missing_labels_among_numpys_strings_are_refused(missing):
    labels = np.array(list("abcd") * 10, dtype=object)
    labels[3] = missing
    strings = labels.astype(np.dtypes.StringDType(na_object=missing))
    gm, rows = FederatedGaussianMixture(2, random_state=0), make_rows(40)
    for fitted in (gm.fit, gm.partial_fit):
        with pytest.raises(ValueError, match="got a missing one at row 3"):
            fitted(rows, clients=strings)
    with pytest.raises(ValueError, match="got a missing one in row 3 of y"):
        split_clients(rows, 2, scheme="label", y=strings, random_state=0)
    labels[3] = "d"
    gm.partial_fit(rows, clients=labels.astype(np.dtypes.StringDType(na_object=missing)))
    assert gm.partial_fit(rows, clients=labels.astype(np.dtypes.StringDType())).n_clients_ == 4


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_stream_in_new_axes_has_a_field_where_its_start_had_none():
    # With means so far away Ŝ is s̄(θ), and no step was taken; with a new axis, Ŝ is counted anew.
    rows = make_rows(60)[:, :2]
    still = np.column_stack([rows, np.full(60, 7.0)])
    gm = FederatedGaussianMixture(
        2, means_init=[[900, 0, 7], [-900, 0, 7]], max_iter=0, random_state=0
    ).fit(still)
    assert np.isnan(gm.history_["mean_field_sq_norm"][0])
    moving = np.column_stack([rows, np.random.default_rng(0).normal(size=60)])
    assert np.isnan(clone(gm).fit(still).partial_fit(still).history_["field_sq_norm"][1])
    assert np.isfinite(gm.partial_fit(moving).history_["field_sq_norm"][1])
