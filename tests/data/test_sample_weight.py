"""Weights of rows: integer weights are repeated rows."""

import numpy as np
import pandas as pd
import pytest
import sklearn
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from problems import COVARIANCE_TYPES
from problems import quiet_fit as fit
from skfedem import FederatedGaussianMixture, _random
from skfedem._data.clients import read_clients
from skfedem._data.rows import check_weights
from skfedem._federation import (
    Federation,
    offsets_of,
    sample_weight_of,
)
from skfedem._minibatches import draw_minibatches, draw_weighted_minibatches
from skfedem._parallel import Workers
from skfedem.clients.local import LocalClients
from skfedem.models.mixture import assignment
from skfedem.models.mixture.gaussian_mixture import GaussianMixtureModel
from skfedem.models.mixture.initial_parameters import InitialParameters
from skfedem.models.mixture.initialization import standardise

LENGTHS = (31, 12, 25, 40)
CENTERS = np.array([[-4.0, 0.0], [4.0, 0.0], [0.0, 6.0]])
# Rounding of a few dozen EM iterations on as many rows; the issue is one of order of sums.
ALMOST = {"rtol": 1e-10, "atol": 1e-10}


def make_clients():
    rng = np.random.default_rng(0)
    clients = [
        CENTERS[rng.integers(3, size=length)] + rng.normal(size=(length, 2)) + [100.0, 0.0]
        for length in LENGTHS
    ]
    weights = [rng.integers(0, 5, size=length, dtype=np.intp) for length in LENGTHS]
    return clients, weights


CLIENTS, WEIGHTS = make_clients()
REPEATED = [np.repeat(rows, v, axis=0) for rows, v in zip(CLIENTS, WEIGHTS, strict=True)]
X, OWNERS = np.concatenate(CLIENTS), np.repeat(range(len(LENGTHS)), LENGTHS)
WEIGHT = np.concatenate(WEIGHTS)
GIVEN = {"n_components": 3, "means_init": CENTERS / 2 + [100.0, 0.0], "random_state": 0}


def assert_same_fit(one, other, **tolerance):
    tolerance = tolerance or ALMOST
    assert one.n_iter_ == other.n_iter_
    for name in ("weights_", "means_", "covariances_", "precisions_", "lower_bounds_"):
        assert_allclose(getattr(one, name), getattr(other, name), err_msg=name, **tolerance)


# ---- integer weights are repeated rows


def test_criteria_count_integer_weights_as_repeated_rows():
    gm = fit(FederatedGaussianMixture(**GIVEN), CLIENTS)
    for criterion in (gm.aic, gm.bic):
        assert_allclose(criterion(X, sample_weight=WEIGHT), criterion(np.concatenate(REPEATED)))
        assert_allclose(criterion(CLIENTS, sample_weight=WEIGHTS), criterion(REPEATED))
        # Unlike the score, they depend on how many rows there are.
        assert abs(criterion(X, sample_weight=2 * WEIGHT) - criterion(X)) > 100


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
@pytest.mark.parametrize("client_weights", ["n_samples", "uniform"])
def test_integer_weights_are_repeated_rows(covariance_type, client_weights):
    gm = FederatedGaussianMixture(
        **GIVEN, covariance_type=covariance_type, client_weights=client_weights
    )
    repeated = sklearn.clone(gm).fit(REPEATED)
    weighted = gm.fit(CLIENTS, sample_weight=WEIGHTS)
    assert_same_fit(weighted, repeated)
    assert_allclose(weighted.client_drift_, repeated.client_drift_, **ALMOST)
    for name in ("log_likelihood", "mean_field_sq_norm", "weights"):
        assert_allclose(weighted.history_[name], repeated.history_[name], **ALMOST)
    # The weights matter.
    plain = sklearn.clone(gm).fit(CLIENTS)
    assert np.abs(plain.means_ - weighted.means_).max() > 1e-3
    assert_allclose(
        weighted.score(CLIENTS, sample_weight=WEIGHTS), repeated.score(REPEATED), rtol=1e-12
    )


@pytest.mark.parametrize("has_ties", [False, True])
@pytest.mark.parametrize("n_rows", [6, 60])
@pytest.mark.parametrize("init_params", ["kmeans", "k-means++"])
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=10, deadline=None, derandomize=True)
def test_a_start_from_rows_is_that_of_repeated_rows_in_any_order(
    init_params, n_rows, has_ties, seed
):
    rng = np.random.default_rng(seed)
    clients = [rng.normal(2 * client, 1, size=(n_rows, 2)) for client in range(4)]
    if has_ties:
        for rows in clients:
            rows[:, 0] = rows[:, 0].round()
    weights = [1 + rng.integers(0, 4, size=n_rows, dtype=np.intp) for _ in clients]
    repeated = [  # in any order
        rng.permutation(np.repeat(rows, v, axis=0))
        for rows, v in zip(clients, weights, strict=True)
    ]
    gm = FederatedGaussianMixture(3, init_params=init_params, random_state=3, max_iter=0)
    weighted = fit(sklearn.clone(gm), clients, sample_weight=weights)
    fit(gm, repeated)
    assert_allclose(weighted.weights_, gm.weights_, **ALMOST)
    assert_allclose(weighted.means_, gm.means_, **ALMOST)


def test_centroids_and_their_tolerance_are_those_of_repeated_rows():
    rng = np.random.default_rng(0)
    # Overlapping rows: where a centre ends depends on every count.
    clients = [rng.normal(size=(400, 2)) for _ in range(4)]
    weights = [1 + 40 * (np.abs(rows).max(axis=1) > 2) for rows in clients]
    repeated = [np.repeat(rows, v, axis=0) for rows, v in zip(clients, weights, strict=True)]
    centers = []
    for data, weight in ((clients, weights), (repeated, None)):
        estimator = FederatedGaussianMixture(3)
        federation = read_clients(estimator, data, sample_weight=weight).federation
        with Workers() as workers:
            local = LocalClients(federation, workers)
            model = standardise(estimator, local, InitialParameters())
            centers.append(assignment._kmeans_centers(model, local, 0))
    assert_allclose(centers[0], centers[1], rtol=1e-10)
    for rows, v, copies in zip(clients, weights, repeated, strict=True):
        share = assignment._weighted_tol(rows, v) * rows.var(axis=0).mean()
        assert share == pytest.approx(1e-4 * copies.var(axis=0).mean(), rel=1e-12)


def test_k_means_of_a_client_stops_by_the_variance_of_weighted_rows():
    # With the tolerance of rows that count alike, it would take a step more here.
    rows = np.random.default_rng(5).normal(size=(400, 2))
    weights = 1.0 + 40 * (np.abs(rows).max(axis=1) > 2)
    rows, weights = assignment._distinct(rows, weights)
    tol = assignment._weighted_tol(rows, weights)
    options = {"n_init": 1, "sample_weight": weights}
    want, longer = (assignment._kmeans(rows, 3, 0, **options, tol=tol) for tol in (tol, 1e-4))
    assert want.n_iter_ < longer.n_iter_
    centroids, _ = assignment._centroids_to_send(rows, 3, 0, weights)
    assert_array_equal(centroids, want.cluster_centers_)


def test_centroids_are_sent_with_the_weight_of_their_rows():
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(center, 0.1, size=(20, 2)) for center in (0, 5)])
    weights = np.repeat([1.0, 3.0], 20)
    centroids, mass = assignment._centroids_to_send(rows, 2, 0, weights)
    assert_allclose(mass[np.argsort(centroids[:, 0])], [0.25, 0.75], rtol=1e-12)
    assert_allclose(mass @ centroids, np.average(rows, axis=0, weights=weights), rtol=1e-12)


@pytest.mark.parametrize("init_params", ["random", "random_from_data"])
def test_a_start_that_draws_for_rows_uses_the_weights(init_params):
    gm = FederatedGaussianMixture(3, init_params=init_params, random_state=0, max_iter=0)
    started = fit(gm, CLIENTS, sample_weight=WEIGHTS)
    # Whatever is drawn, the rows are shared out among the components, each with its weight.
    mean = np.average(X, axis=0, weights=WEIGHT)
    assert_allclose(started.weights_ @ started.means_, mean, **ALMOST)
    assert np.abs(mean - X.mean(axis=0)).max() > 1e-2


def test_rows_of_a_start_are_drawn_by_weight():
    # Ten rows of each client, below 20, have almost all the weight.
    is_heavy = np.arange(100) < 10
    rows = [np.where(is_heavy, 10 * k, 1000)[:, None] + np.arange(100.0)[:, None] for k in (0, 1)]
    weights = np.where(is_heavy, 1e9, 1.0)
    gm = FederatedGaussianMixture(4, init_params="random_from_data", max_iter=0)
    for seed in range(5):
        fit(gm.set_params(random_state=seed), rows, sample_weight=[weights, weights])
        assert gm.means_.max() < 20


@pytest.mark.filterwarnings("ignore:The variance of feature")  # of a component's two rows
def test_clients_are_asked_for_rows_by_their_weight():
    # Rows of clients of negligible weight start no component, unless the others have too few.
    rows = [10.0 * k + np.arange(20.0)[:, None] / 20 for k in range(6)]
    weights = [np.full(20, 1.0 if k == 2 else 1e-12) for k in range(6)]
    gm = FederatedGaussianMixture(4, init_params="random_from_data", max_iter=0)
    for seed in range(5):
        fit(gm.set_params(random_state=seed), rows, sample_weight=weights)
        assert_allclose(np.average(gm.means_[:, 0], weights=gm.weights_), 20.475, rtol=1e-9)
        assert (gm.weights_ > 0.01).all()
    few = [rows[2][:2], *rows[:2]]
    fit(gm, few, sample_weight=[weights[2][:2], *weights[:2]])
    assert np.isfinite(gm.means_).all()


@pytest.mark.parametrize("init_params", ["kmeans", "k-means++", "random", "random_from_data"])
def test_rows_whose_share_underflows_may_start_components(init_params):
    rows = np.array([[0.0, 1.0], [2.0, 0.0], [0.0, 3.0]])
    gm = FederatedGaussianMixture(3, init_params=init_params, max_iter=0, random_state=0)
    fit(gm, rows, sample_weight=[1e150, 1e-200, 1e-200])
    assert np.isfinite(gm.means_).all()


STOCHASTIC = {
    **GIVEN,
    "covariance_type": "tied",
    "step_size": 0.1,
    "omega": 1.0,
    "participation": 0.7,
    "batch_size": 5,
    "n_inner": 4,
    "max_iter": 40,
    "tol": 0.0,
    "eval_every": 10,
}


@pytest.mark.parametrize("solver", ["fedem", "vr_fedem"])
def test_minibatches_of_weighted_rows_are_those_of_repeated_rows(solver):
    gm = FederatedGaussianMixture(**STOCHASTIC, solver=solver)
    weighted = fit(sklearn.clone(gm), CLIENTS, sample_weight=WEIGHTS)
    repeated = fit(sklearn.clone(gm), REPEATED)
    assert_same_fit(weighted, repeated, rtol=1e-9, atol=1e-9)
    for name in ("n_active", "safeguarded"):
        assert_array_equal(weighted.history_[name], repeated.history_[name])
    # In VR-FedEM's first round all rows say what V_i says already: messages of rounding errors.
    later = {"fedem": slice(None), "vr_fedem": np.arange(41) != 1}[solver]
    bits, expected = (gm.history_["uplink_bits"][later] for gm in (weighted, repeated))
    assert_array_equal(bits, expected)
    # Epochs count distinct rows.
    assert weighted.history_["epoch"][-1] > repeated.history_["epoch"][-1]


def federation_of_lengths(lengths, weights):
    offsets = offsets_of(lengths)
    return Federation(
        np.zeros((offsets[-1], 1)),
        offsets,
        np.full(len(lengths), 1 / len(lengths)),
        sample_weight_of(np.asarray(weights, dtype=float), offsets),
    )


@settings(deadline=None, derandomize=True)
@given(data=st.data())
def test_draws_are_those_of_repeated_rows(data):
    lengths = np.array(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=6)))
    weights = data.draw(
        st.lists(st.integers(1, 1000), min_size=int(lengths.sum()), max_size=int(lengths.sum()))
    )
    edges = st.sampled_from([0.0, 0.5, 1 / 3, 1 - 2.0**-53])
    size = data.draw(st.integers(1, 5))
    uniforms = np.array(
        [
            [data.draw(st.one_of(edges, st.floats(0, 1 - 2.0**-53))) for _ in range(size)]
            for _ in lengths
        ]
    )
    federation = federation_of_lengths(lengths, weights)
    drawn = draw_weighted_minibatches(uniforms, federation, np.arange(len(lengths)))
    starts = federation.offsets[:-1]
    totals = np.add.reduceat(weights, starts)
    positions = draw_minibatches(uniforms, totals, replacement=True)
    for k, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        original = np.repeat(np.arange(length), weights[start : start + length])
        assert_array_equal(drawn[k], original[positions[k]])
    # A client draws the same alone.
    alone = draw_weighted_minibatches(uniforms[-1:], federation, np.array([len(lengths) - 1]))
    assert_array_equal(alone[0], drawn[-1])


def test_a_share_that_ends_a_row_is_of_the_next_one():
    # As where rows are repeated: the k-th of eight begins at k / 8. Products with 8 are exact.
    weights = np.array([1, 3, 2, 2])
    federation = federation_of_lengths([4], weights)
    drawn = draw_weighted_minibatches(np.arange(8)[None] / 8, federation, np.array([0]))
    assert_array_equal(drawn, [np.repeat(np.arange(4), weights)])


def test_rounding_of_a_sum_draws_no_row_of_the_next_client():
    # The running sums may end below the client's total, and the largest uniform in between.
    rng, n_short = np.random.default_rng(0), 0
    for _ in range(20):
        federation = federation_of_lengths([100, 1], rng.random(101) + 0.1)
        ends, total = federation.sample_weight.cumulative[99], federation.totals[0]
        n_short += ends <= (1 - 2.0**-53) * total
        drawn = draw_weighted_minibatches(np.array([[1 - 2.0**-53]]), federation, np.array([0]))
        assert_array_equal(drawn, 99)
    assert n_short > 0


def test_a_small_weight_is_not_lost_beside_large_clients():
    lengths = np.array([1, 1000, 2, 1])
    weights = np.concatenate([[1e300], np.full(1000, 1e100), [1e-200, 3e-200], [5e-310]])
    federation = federation_of_lengths(lengths, weights)
    assert_allclose(federation.totals, [1e300, 1e103, 4e-200, 5e-310], rtol=1e-12)
    uniforms = np.array([[0.0, 0.2499, 0.2501, 0.9999]])
    assert_array_equal(
        draw_weighted_minibatches(uniforms, federation, np.array([2])), [[0, 0, 1, 1]]
    )
    for client in (0, 3):
        drawn = draw_weighted_minibatches(uniforms, federation, np.array([client]))
        assert_array_equal(drawn, np.zeros((1, 4)))


def test_rows_are_drawn_in_proportion_to_their_weights():
    shares = np.array([0.05, 0.5, 0.15, 0.3])
    federation = federation_of_lengths([4], shares)
    n_draws = 20000
    uniforms = _random.client_uniforms(0, _random.MINIBATCH, 0, np.array([0]), n_draws)
    counts = np.bincount(draw_weighted_minibatches(uniforms, federation, np.array([0]))[0])
    # Five standard deviations of a binomial count.
    assert (np.abs(counts - n_draws * shares) < 5 * np.sqrt(n_draws * shares * (1 - shares))).all()


# ---- what changes nothing


@pytest.mark.parametrize("parameters", [GIVEN, STOCHASTIC])
def test_only_ratios_of_weights_matter(parameters):
    plain = fit(FederatedGaussianMixture(**parameters), CLIENTS)
    equal = fit(
        FederatedGaussianMixture(**parameters),
        CLIENTS,
        sample_weight=[np.full(length, 0.3) for length in LENGTHS],
    )
    for name in ("weights_", "means_", "covariances_", "lower_bounds_"):
        assert_array_equal(getattr(equal, name), getattr(plain, name))
    weighted = fit(FederatedGaussianMixture(**parameters), CLIENTS, sample_weight=WEIGHTS)
    scaled = fit(
        FederatedGaussianMixture(**parameters), CLIENTS, sample_weight=[v * 0.37 for v in WEIGHTS]
    )
    assert_same_fit(scaled, weighted, rtol=1e-9, atol=1e-9)


def test_forms_of_weights_and_their_order():
    shuffled = np.random.default_rng(0).permutation(len(X))
    by_list = FederatedGaussianMixture(**GIVEN).fit(CLIENTS, sample_weight=WEIGHTS)
    for rows, weight in (
        (X[shuffled], WEIGHT[shuffled]),
        (X[shuffled], WEIGHT[shuffled].tolist()),
        (pd.DataFrame(X[shuffled], columns=["a", "b"]), pd.Series(WEIGHT[shuffled])),
    ):
        gm = FederatedGaussianMixture(**GIVEN)
        before = np.array(weight)
        gm.fit(rows, clients=OWNERS[shuffled], sample_weight=weight)
        assert_array_equal(np.array(weight), before)
        assert_same_fit(gm, by_list)
        assert gm.score(rows, sample_weight=weight) == pytest.approx(
            by_list.score(CLIENTS, sample_weight=tuple(WEIGHTS)), rel=1e-12
        )
    one = FederatedGaussianMixture(**GIVEN).fit(X, sample_weight=WEIGHT)
    assert_same_fit(one, by_list)


class OnlyAnArray:
    """A table that knows nothing but how to become an array."""

    def __array__(self, dtype=None, copy=None):
        return X.copy()


def test_weights_of_a_table_without_length():
    gm = fit(FederatedGaussianMixture(**GIVEN), X, sample_weight=WEIGHT)
    same = fit(FederatedGaussianMixture(**GIVEN), OnlyAnArray(), sample_weight=WEIGHT)
    assert_array_equal(same.means_, gm.means_)
    assert gm.score(OnlyAnArray(), sample_weight=WEIGHT) == gm.score(X, sample_weight=WEIGHT)


def test_rows_of_weight_zero_are_left_out():
    weight = np.r_[1.0, 0.0, np.ones(len(X) - 2)]
    far = X.copy()
    far[1] = 1e6
    kept = np.delete(X, 1, axis=0)
    one = FederatedGaussianMixture(**GIVEN).fit(far, sample_weight=weight)
    assert_same_fit(one, FederatedGaussianMixture(**GIVEN).fit(kept), rtol=1e-13, atol=1e-13)
    assert len(one.fit_predict(far, sample_weight=weight)) == len(X)
    assert_array_equal(one.fit_predict(far, sample_weight=weight), one.predict(far))
    assert one.score(far, sample_weight=weight) == pytest.approx(one.score(kept), rel=1e-12)
    assert one.score(far) < one.score(kept)


@pytest.mark.parametrize("as_table", [False, True])
def test_clients_whose_rows_all_have_weight_zero_are_left_out(as_table):
    # As in two thirds of bootstraps with Poisson weights.
    weights = [*WEIGHTS[:2], 0 * WEIGHTS[2], WEIGHTS[3]]
    settings = {**GIVEN, "omega": 1.0, "random_state": 0}
    if as_table:
        gm = FederatedGaussianMixture(**settings)
        gm.fit(X, clients=OWNERS, sample_weight=np.concatenate(weights))
    else:
        gm = FederatedGaussianMixture(**settings).fit(CLIENTS, sample_weight=weights)
    assert gm.n_clients_ == 3
    assert gm.client_ids_.tolist() == [0, 1, 3]
    kept = [CLIENTS[k] for k in (0, 1, 3)], [WEIGHTS[k] for k in (0, 1, 3)]
    same = FederatedGaussianMixture(**settings).fit(kept[0], sample_weight=kept[1])
    assert_same_fit(gm, same, rtol=1e-12, atol=1e-12)
    labels = gm.fit_predict(CLIENTS, sample_weight=weights)
    assert [len(own) for own in labels] == [len(own) for own in CLIENTS]


def test_results_do_not_depend_on_n_jobs(monkeypatch, threads_always_pay):
    monkeypatch.setattr(GaussianMixtureModel, "block_rows", 7)  # clients in groups of their own
    fits = [
        fit(FederatedGaussianMixture(**STOCHASTIC, n_jobs=k), CLIENTS, sample_weight=WEIGHTS)
        for k in (None, 2)
    ]
    assert set(threads_always_pay) == {2}
    assert_array_equal(fits[0].means_, fits[1].means_)
    assert_array_equal(fits[0].history_["log_likelihood"], fits[1].history_["log_likelihood"])


def test_checkpoints_know_the_weights(tmp_path):
    path = tmp_path / "run.npz"
    gm = FederatedGaussianMixture(**{**STOCHASTIC, "max_iter": 20}, checkpoint=path)
    fit(gm, CLIENTS, sample_weight=WEIGHTS)
    gm.set_params(max_iter=40)
    # As many rows and the same totals, but two rows of a client have changed weights.
    others = [v.copy() for v in WEIGHTS]
    low, high = np.argmax(others[0] == 1), np.argmax(others[0] == 4)
    others[0][[low, high]] = 4, 1
    with pytest.raises(ValueError, match="got one of other data"):
        fit(gm, CLIENTS, sample_weight=others, resume_from=path)
    resumed = fit(gm, CLIENTS, sample_weight=WEIGHTS, resume_from=path)
    whole = fit(FederatedGaussianMixture(**STOCHASTIC), CLIENTS, sample_weight=WEIGHTS)
    assert_array_equal(resumed.means_, whole.means_)


# ---- in scikit-learn's tools


def test_metadata_routing():
    with sklearn.config_context(enable_metadata_routing=True):
        pipeline = make_pipeline(
            StandardScaler().set_fit_request(sample_weight=True),
            FederatedGaussianMixture(2, random_state=0),
        )
        fitted = pipeline.fit(X, clients=OWNERS, sample_weight=WEIGHT)
        scaler = StandardScaler().fit(X, sample_weight=WEIGHT)
        direct = FederatedGaussianMixture(2, random_state=0).fit(
            scaler.transform(X), clients=OWNERS, sample_weight=WEIGHT
        )
        assert_array_equal(fitted[-1].means_, direct.means_)
        assert fitted.score(X, sample_weight=WEIGHT) == direct.score(
            scaler.transform(X), sample_weight=WEIGHT
        )
        search = GridSearchCV(
            FederatedGaussianMixture(random_state=0), {"n_components": [1, 3]}, cv=2
        ).fit(X, clients=OWNERS, sample_weight=WEIGHT)
        assert search.best_params_ == {"n_components": 3}
        lists = cross_validate(
            FederatedGaussianMixture(**GIVEN),
            CLIENTS,
            cv=2,
            params={"sample_weight": [v + 1.0 for v in WEIGHTS]},
        )
    held_out = FederatedGaussianMixture(**GIVEN).fit(
        CLIENTS[2:], sample_weight=[v + 1.0 for v in WEIGHTS[2:]]
    )
    expected = held_out.score(CLIENTS[:2], sample_weight=[v + 1.0 for v in WEIGHTS[:2]])
    assert lists["test_score"][0] == pytest.approx(expected, rel=1e-12)


# ---- bad input


def bad(position, value):
    weight = WEIGHT.astype(float)
    weight[position] = value
    return weight


@pytest.mark.parametrize(
    ("weight", "says"),
    [
        (bad(33, -1.0), "to be >= 0 and at most .*, got -1.0 in row 33 of client 'b'"),
        (bad(33, 1e200), "at most 1e.150, got 1e.200 in row 33 of client 'b'"),
        (np.full(len(X), 1e-300), "all zero, or below 1e-150. Give some rows a larger weight"),
        (bad(33, np.nan), "to be >= 0 and at most .*, got nan in row 33 of client 'b'"),
        (bad(33, np.inf), "got inf in row 33 of client 'b'"),
        (np.zeros(len(X)), "weights that are all zero"),
        (WEIGHT[:-1], r"one number for each of the 108 rows, got shape \(107,\)"),
        (np.ones((len(X), 1)), r"got shape \(108, 1\)"),
        (3.0, r"got shape \(\)"),
        (WEIGHTS, "Expected numbers|got shape"),
        (["much"] * len(X), r"numbers in sample_weight, got other values .* 'much'"),
        (np.ma.masked_equal(bad(33, 9e9), 9e9), "sample_weight without masked entries, got 1"),
        ([10**400] * len(X), r"got other values \(int too large to convert"),
        ([1.0] * 33 + [pd.NA] + [1.0] * 74, "got nan in row 33 .* give them weight 0"),
        (np.array([1.0] * 33 + [pd.NaT] + [1.0] * 74), "got nan in row 33 .* give them weight 0"),
        (WEIGHT + 1j, r"got other values \(dtype complex128\)"),
        (np.datetime64("2020-01-01") + np.arange(len(WEIGHT)), r"other values \(dtype datetime64"),
    ],
)
def test_bad_weights_of_a_table(weight, says):
    gm = FederatedGaussianMixture(**GIVEN)
    with pytest.raises(ValueError, match=says):
        gm.fit(X, clients=np.array(list("abcd"))[OWNERS], sample_weight=weight)
    assert not hasattr(gm, "means_")


@pytest.mark.parametrize("value", [-1.0, np.nan])
def test_bad_weights_of_a_table_alone(value):
    with pytest.raises(ValueError, match=f"got {value} in row 33. Drop such rows"):
        FederatedGaussianMixture(**GIVEN).fit(X, sample_weight=bad(33, value))


def test_the_largest_and_the_smallest_weights_are_allowed():
    for weight in (1e150, 1e-150):
        check_weights(np.array([0.0, weight]))
    for weight in (1.01e150, 0.99e-150):
        with pytest.raises(ValueError, match="^Expected .*sample_weight"):
            check_weights(np.array([0.0, weight]))


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        (WEIGHTS[:-1], "list with one array for each of the 4 clients of X, got a list of 3"),
        (WEIGHT, "list with one array for each of the 4 clients of X, got a ndarray"),
        ([*WEIGHTS[:2], WEIGHTS[2][1:], WEIGHTS[3]], "each of the 25 rows of client 2, got shape"),
        ([*WEIGHTS[:2], -WEIGHTS[2] - 1, WEIGHTS[3]], ">= 0 and .*, got -.* in row 0 of client 2"),
        ([*WEIGHTS[:2], ["x"] * 25, WEIGHTS[3]], "numbers in sample_weight of client 2"),
    ],
)
def test_bad_weights_of_a_list(weights, says):
    gm = FederatedGaussianMixture(**GIVEN)
    with pytest.raises(ValueError, match=says):
        gm.fit(CLIENTS, sample_weight=weights)
    fitted = FederatedGaussianMixture(**GIVEN).fit(CLIENTS)
    with pytest.raises(ValueError, match=says):
        fitted.score(CLIENTS, sample_weight=weights)


def test_weights_without_replacement_are_refused():
    gm = FederatedGaussianMixture(**GIVEN, batch_size=3, replacement=False, step_size=0.1)
    with pytest.raises(ValueError, match="replacement=True with batch_size=3 and a sample_weight"):
        gm.fit(CLIENTS, sample_weight=WEIGHTS)


def test_fewer_rows_with_a_weight_than_components():
    weight = np.zeros(len(X))
    weight[:2] = 1, 2
    with pytest.raises(ValueError, match="n_samples = 2 and n_components = 3"):
        FederatedGaussianMixture(**GIVEN).fit(X, sample_weight=weight)


def test_scores_without_weight_raise():
    gm = FederatedGaussianMixture(**GIVEN).fit(CLIENTS)
    with pytest.raises(ValueError, match="all zero"):
        gm.score(X, sample_weight=np.zeros(len(X)))
    with pytest.raises(ValueError, match="each of the 108 rows"):
        gm.score(X, sample_weight=WEIGHT[1:])


def test_weights_that_nearly_vanish():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(500, 2)) * [3.0, 1.0]
    kernel = np.exp(-0.5 * (rows**2).sum(axis=1) / 0.2**2)
    assert 0 <= kernel.min() < 1e-150
    gm = FederatedGaussianMixture(1, reg_covar=0).fit(rows, sample_weight=kernel)
    assert_allclose(gm.means_[0], np.average(rows, axis=0, weights=kernel), rtol=1e-9, atol=1e-12)
    expected = np.cov(rows.T, aweights=kernel, ddof=0)
    assert_allclose(gm.covariances_[0], expected, rtol=1e-9, atol=1e-12)
