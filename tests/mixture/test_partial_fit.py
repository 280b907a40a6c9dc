"""Streams: each call of partial_fit is a round, or some, on rows that are read once."""

import pickle
from copy import deepcopy
from dataclasses import replace

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

from problems import COVARIANCE_TYPES
from problems import quiet_fit as fit
from skfedem import FederatedGaussianMixture, _random
from skfedem.clients.local import LocalClients
from skfedem.models.mixture.gaussian_mixture import GaussianMixtureModel
from skfedem.solvers import _loop
from skfedem.solvers._stream import lengths_in_batch
from streams import (
    ALMOST,
    CENTERS,
    CLIENTS,
    GIVEN,
    NOISY,
    OWNERS,
    PARAMETERS,
    X,
    assert_same,
    batches_of,
    make_rows,
    streamed,
)
from watched import interrupted

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
    lengths = np.array([5, 2, 4])
    for number, want in enumerate(([2, 2, 2], [2, 0, 2], [1, 0, 0], [0, 0, 0])):
        assert_array_equal(lengths_in_batch(lengths, number, 2), want)
    for size in (None, 5):
        assert_array_equal(lengths_in_batch(lengths, 0, size), lengths)


def test_streams_without_control_variates():
    gm = FederatedGaussianMixture(**GIVEN, control_step=0.0, control_init="zeros", batch_size=40)
    gm.partial_fit(CLIENTS[:3], clients=None).partial_fit(CLIENTS)
    with_controls = clone(gm).set_params(control_init="field")
    with_controls.partial_fit(CLIENTS[:3]).partial_fit(CLIENTS)
    assert_same(gm, with_controls, **ALMOST)


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


def test_weights_that_all_rows_of_a_client_share_change_no_mean_of_its_batches():
    gm = FederatedGaussianMixture(**NOISY, batch_size=20, client_weights="uniform")
    weights = [np.full(len(rows), 1.0 + k) for k, rows in enumerate(CLIENTS)]
    plain = clone(gm).partial_fit(CLIENTS)
    assert plain.history_["round"][-1] > 1
    weighted = clone(gm).partial_fit(CLIENTS, sample_weight=weights)
    assert_same(weighted, plain, **ALMOST)


# ---- the first call


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
        random_state = np.random.RandomState(0)
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

    monkeypatch.setattr(_loop, "open_round", damaged)  # which no stream calls
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
    monkeypatch.setattr(LocalClients, "round", interrupted(LocalClients.round, at=3))
    with pytest.raises(KeyboardInterrupt):
        gm.partial_fit(CLIENTS)
    assert not any(name.endswith("_") for name in vars(gm))
    assert gm.partial_fit(CLIENTS).n_iter_ == 1


def test_the_first_call_is_one_of_a_stream():
    # Messages are in other units than those of a fit, where clients tell no second moment.
    given = {**NOISY, "covariance_type": "tied", "client_weights": "uniform"}
    begun = fit(FederatedGaussianMixture(**given, max_iter=0), CLIENTS)
    first = FederatedGaussianMixture(**given).partial_fit(CLIENTS)
    assert_same(first, begun.partial_fit(CLIENTS), **ALMOST)


# ---- history and epochs


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


def test_calls_of_a_stream_end_at_whole_epochs():
    # Twenty rounds, each of a row of 20: shares of 0.05 do not add up to 1.
    gm = FederatedGaussianMixture(**GIVEN, batch_size=1)
    for first in range(0, 600, 200):
        gm.partial_fit(np.split(X[first : first + 200], 10))
    assert_array_equal(gm.history_["epoch"][::20], range(4))


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


# ---- what is sent


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


def test_what_the_server_learns_goes_back_to_the_clients():
    gm = streamed(FederatedGaussianMixture(**GIVEN, covariance_type="tied"), 100)
    # Ŝ, and the second moment that covariances are computed from.
    numbers = 3 * 3 + 3
    assert_array_equal(gm.history_["downlink_bits"][1:], 64 * numbers * gm.history_["n_active"][1:])
    full = streamed(FederatedGaussianMixture(**GIVEN), 100)
    statistics = 64 * 3 * 6 * full.history_["n_active"][1:]
    assert_array_equal(full.history_["downlink_bits"][1:], statistics)


# ---- absences, and components whose rows stay away


def test_a_shared_covariance_stands_absences_and_small_batches():
    # Ŝ and the second moment of the rows, from which the covariance is taken, go one step.
    gm = FederatedGaussianMixture(**GIVEN, participation=0.5, covariance_type="tied")
    gm.partial_fit(X[:150], clients=OWNERS[:150])
    streamed(gm, 3)
    assert (np.linalg.eigvalsh(gm.covariances_) > 0).all()
    assert np.isfinite(gm.score(X))


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


# ---- composing with everything else


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


def test_a_fit_after_a_stream_is_no_stream():
    # Its clients tell the second moment once, so that messages are in the units of a fit again.
    given = {**NOISY, "covariance_type": "tied", "warm_start": True, "max_iter": 3}
    streamed = FederatedGaussianMixture(**given).partial_fit(CLIENTS)
    other = deepcopy(streamed)
    model = replace(other._memory.model, in_stream=False)
    other._memory = other._memory._replace(model=model)
    assert_same(fit(streamed, CLIENTS), fit(other, CLIENTS), rtol=0, atol=0)


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
    if weighted:  # absent clients tell the weight of their rows, a double each
        gm.history_["uplink_bits"][-1] += 64 * (~active).sum()
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
