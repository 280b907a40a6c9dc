"""Clients of a stream: who is there, who joins, who stays away, and how they are known."""

import warnings
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from problems import quiet_fit as fit
from skfedem import FederatedGaussianMixture
from skfedem.compression import Dithering
from skfedem.datasets import split_clients
from streams import (
    CENTERS,
    CENTERS_OF_X,
    CLIENTS,
    GIVEN,
    NOISY,
    OWNERS,
    PARAMETERS,
    X,
    assert_same,
    make_rows,
    memory_error,
    streamed,
)


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
    controls = before.controls.copy()
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
    assert_allclose(after.controls, controls, atol=1e-12)


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


def test_one_client_in_place_of_another_is_no_certain_step():
    rng = np.random.default_rng(0)
    near, far = rng.normal(size=(50, 2)), 20 + rng.normal(size=(50, 2))
    gm = FederatedGaussianMixture(2, step_size=1.0, control_step=1.0, random_state=0)
    gm.fit(np.concatenate([near, far]), clients=np.repeat([0, 1], 50))
    gm.partial_fit(near, clients=np.ones(50, int))
    # A whole step would have left nothing of the component that client 1 used to see.
    assert gm.history_["safeguarded"][-1] > 0
    assert (gm.weights_ > 0.1).all()


@pytest.mark.parametrize(("covariance_type", "moments"), [("tied", 2 + 3), ("diag", 2 + 2)])
def test_clients_who_join_are_told_the_units(covariance_type, moments):
    gm = FederatedGaussianMixture(**GIVEN, covariance_type=covariance_type)
    gm.partial_fit(CLIENTS[:3]).partial_fit(CLIENTS[:3])
    of_three = gm.history_["downlink_bits"][-1]
    gm.partial_fit(X[:20], clients=np.repeat([1, 2, 8, 9], 5))
    assert_array_equal(gm.new_client_ids_, [8, 9])
    assert gm.history_["downlink_bits"][-1] == of_three * 4 / 3 + 64 * 2 * moments


def test_a_fit_knows_clients_of_a_stream_in_whatever_order_they_came():
    gm = FederatedGaussianMixture(**NOISY, warm_start=True)
    for first in (3, 0):
        gm.partial_fit(X[first <= OWNERS], clients=OWNERS[first <= OWNERS])
    assert gm.client_ids_.tolist() == [3, 4, 0, 1, 2]
    controls = gm._memory.controls
    fit(gm.set_params(max_iter=0), X, clients=OWNERS)
    assert gm.client_ids_.tolist() == [0, 1, 2, 3, 4]
    assert_array_equal(gm._memory.controls, controls[[2, 3, 4, 0, 1]])


@pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="new in NumPy 2")
def test_labels_of_any_type_of_text_are_the_same():
    rows, names = np.random.default_rng(0).normal(size=(30, 2)), np.array(["a", "b", "c"] * 10)
    gm = FederatedGaussianMixture(random_state=0)
    gm.partial_fit(rows, clients=names.astype(np.dtypes.StringDType()))
    for labels in (names, names.astype(object)):
        assert not len(gm.partial_fit(rows, clients=labels).new_client_ids_)
    assert gm.n_clients_ == 3


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
