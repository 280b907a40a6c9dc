import inspect
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from scipy.stats import beta

from skfedem.datasets import (
    client_labels,
    make_fedem_mixture,
    make_federated_mixture,
    split_clients,
)

SCHEMES = ("iid", "label", "dirichlet", "size")
X = np.arange(400.0).reshape(200, 2)
Y = np.arange(200) % 4


def n_labels_seen(labels, y, n_clients):
    return [len(np.unique(y[labels == client])) for client in range(n_clients)]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    scheme=st.sampled_from(SCHEMES),
    n_clients=st.integers(1, 12),
    rows_per_client=st.integers(2, 8),
    extra_rows=st.integers(0, 11),
    n_classes=st.integers(1, 5),
    min_rows=st.integers(1, 2),
    alpha=st.sampled_from([1e-6, 0.1, 1.0, 1e6]),
    seed=st.integers(0, 2**31),
)
def test_every_row_goes_to_exactly_one_client(
    scheme, n_clients, rows_per_client, extra_rows, n_classes, min_rows, alpha, seed
):
    n_samples = n_clients * rows_per_client + extra_rows
    rows = np.arange(n_samples)[:, None]
    clients = split_clients(
        rows,
        n_clients,
        scheme=scheme,
        y=rows[:, 0] % n_classes,
        alpha=alpha,
        min_rows=min_rows,
        random_state=seed,
    )
    assert len(clients) == n_clients
    assert min(len(client) for client in clients) >= min_rows
    assert_array_equal(np.sort(np.concatenate(clients)[:, 0]), rows[:, 0])
    for client in clients:
        assert np.all(np.diff(client[:, 0]) > 0)  # in the order of X


@pytest.mark.parametrize("scheme", SCHEMES)
def test_lists_and_labels_tell_the_same(scheme):
    clients = split_clients(X, 7, scheme=scheme, y=Y, random_state=3)
    labels = client_labels(X, 7, scheme=scheme, y=Y, random_state=3)
    assert labels.shape == (200,)
    assert labels.dtype.kind == "i"
    for client in range(7):
        assert_array_equal(clients[client], X[labels == client])


def test_both_splitters_take_the_same_parameters():
    of_labels, of_rows = inspect.signature(client_labels), inspect.signature(split_clients)
    assert of_labels.parameters == of_rows.parameters


@pytest.mark.parametrize("scheme", SCHEMES)
def test_seeds_reproduce(scheme):
    def labels(seed):
        return client_labels(X, 5, scheme=scheme, y=Y, random_state=seed)

    assert_array_equal(labels(0), labels(0))
    assert_array_equal(labels(0), labels(np.random.RandomState(0)))
    assert not np.array_equal(labels(0), labels(1))


@pytest.mark.parametrize("scheme", ["iid", "label"])
@pytest.mark.parametrize("shards_per_client", [1, 2, 3])
def test_sizes_differ_by_at_most_one_row(scheme, shards_per_client):
    sizes = np.bincount(
        client_labels(X, 7, scheme=scheme, y=Y, shards_per_client=shards_per_client, random_state=0)
    )
    assert sizes.sum() == 200
    assert set(sizes) == {28, 29}


def test_iid_clients_are_alike():
    y = np.repeat([0, 1], 5000)
    labels = client_labels(y, 10, random_state=0)
    shares = np.array([y[labels == client].mean() for client in range(10)])
    # A share is a mean of 1,000 draws without replacement: sd sqrt(0.9 / 4 / 1000) = 0.015.
    assert np.all(np.abs(shares - 0.5) < 4.5 * 0.015)
    assert np.ptp(shares) > 0


def test_label_one_shard_is_one_label():
    labels = client_labels(X, 8, scheme="label", y=Y, shards_per_client=1, random_state=0)
    assert n_labels_seen(labels, Y, 8) == [1] * 8


def test_label_shards_are_dealt_at_random():
    # 8 clients of 2 shards of 12 rows, and 4 shards to a label: none straddles two labels.
    y = np.arange(192) % 4
    labels = client_labels(y, 8, scheme="label", y=y, random_state=0)
    assert set(n_labels_seen(labels, y, 8)) == {1, 2}
    counts = np.array([np.bincount(y[labels == client], minlength=4) for client in range(8)])
    assert set(counts.ravel()) == {0, 12, 24}


def test_label_is_random_within_a_label():
    labels = client_labels(
        X, 8, scheme="label", y=np.repeat([0, 1], 100), shards_per_client=1, random_state=0
    )
    # Not cut in the rows' order: neighbours with one label are with several clients.
    assert len(set(labels[:25])) > 1


def test_alpha_sets_the_heterogeneity():
    y = np.arange(4000) % 4
    rows = y[:, None]

    def shares(alpha):
        labels = client_labels(rows, 4, scheme="dirichlet", y=y, alpha=alpha, random_state=0)
        return np.array([np.bincount(labels[y == code], minlength=4) for code in range(4)]) / 1000

    assert_allclose(shares(1e8), 0.25, atol=2e-3)
    # At 1e-4 a label has one holder, except for rows moved to clients that got none.
    assert np.all(shares(1e-4).max(axis=1) > 0.99)


@pytest.mark.parametrize("scheme", ["dirichlet", "size"])
def test_at_the_smallest_alpha_one_client_holds_all_it_can(scheme):
    y = np.arange(400) % 2
    labels = client_labels(y, 4, scheme=scheme, y=y, alpha=5e-324, random_state=0)
    # Each client has a row at least.
    assert np.bincount(2 * labels + y if scheme == "dirichlet" else labels).max() >= 197


@pytest.mark.parametrize("y", [np.repeat(np.arange(10), 60), np.arange(600)], ids=["60", "1"])
def test_dirichlet_clients_have_like_sizes_whatever_the_rounding(y):
    # Shares are all but equal: 6 rows of 100 clients, rounded for each label anew.
    sizes = [
        np.bincount(client_labels(y, 100, scheme="dirichlet", y=y, alpha=1e6, random_state=seed))
        for seed in range(40)
    ]
    # Of each of up to 600 labels, a client gets 0 or 1 row more than its share: five standard
    # errors of the mean over 40 seeds.
    assert_allclose(np.mean(sizes, axis=0), 6.0, atol=5 * np.sqrt(6 / 40))


def assert_dirichlet(shares, alpha):
    """2,000 draws from Dirichlet(a, a, a, a), whose margins are Beta(a, 3a), rounded to 1/500."""
    mean, variance, excess = beta(alpha, 3 * alpha).stats("mvk")
    assert_allclose(shares.mean(axis=0), mean, atol=4.5 * np.sqrt(variance / 2000))
    rounding = 2 * np.sqrt(variance) / 500
    error = variance * np.sqrt((excess + 2) / 2000)
    assert_allclose(shares.var(axis=0), variance, atol=4.5 * error + rounding)


def test_dirichlet_shares_have_the_dirichlet_law():
    # Of 2,000 labels of 500 rows each.
    y = np.repeat(np.arange(2000), 500)
    labels = client_labels(y, 4, scheme="dirichlet", y=y, alpha=0.5, random_state=0)
    assert_dirichlet(np.bincount(4 * y + labels, minlength=8000).reshape(2000, 4) / 500, alpha=0.5)


def test_unequal_sizes_have_the_dirichlet_law():
    # Of 2,000 splits of 500 rows, but for clients that got a first row.
    options = {"scheme": "size", "alpha": 2.0, "random_state": np.random.RandomState(0)}
    sizes = [np.bincount(client_labels(np.zeros(500), 4, **options)) for _ in range(2000)]
    assert_dirichlet(np.array(sizes) / 500, alpha=2.0)


def test_clients_of_unequal_sizes_are_alike_otherwise():
    y = np.repeat([0, 1], 5000)
    labels = client_labels(y, 5, scheme="size", alpha=1.0, random_state=0)
    sizes = np.bincount(labels)
    assert sizes.max() > 2 * sizes.min()
    shares = np.array([y[labels == client].mean() for client in range(5)])
    # A share is a mean of so many draws without replacement: sd at most sqrt(1 / 4 / size).
    assert np.all(np.abs(shares - 0.5) < 4.5 * np.sqrt(0.25 / sizes))


@pytest.mark.parametrize("scheme", ["iid", "size"])
def test_labels_that_are_not_needed_are_not_read(scheme):
    without = client_labels(X, 5, scheme=scheme, random_state=0)
    assert_array_equal(client_labels(X, 5, scheme=scheme, y=Y, random_state=0), without)


def test_clients_that_are_short_get_rows_at_random():
    # One client has all rows at first.
    options = {"scheme": "size", "alpha": 1e-300, "min_rows": 100, "random_state": 0}
    labels = client_labels(np.zeros(1000), 2, **options)
    moved = np.flatnonzero(labels == np.argmin(np.bincount(labels)))
    assert len(moved) == 100
    # The mean of 100 of the numbers to 1000 has a standard deviation of 27.
    assert abs(moved.mean() - 500) < 4 * 27


@pytest.mark.parametrize("scheme", ["dirichlet", "size"])
@pytest.mark.parametrize("min_rows", [1, 5, 20])
def test_clients_that_are_short_are_filled_up(min_rows, scheme):
    labels = client_labels(X, 10, scheme=scheme, y=Y, alpha=0.01, min_rows=min_rows, random_state=0)
    sizes = np.bincount(labels, minlength=10)
    assert sizes.min() >= min_rows
    assert sizes.sum() == 200
    assert (np.ptp(sizes) == 0) == (min_rows == 20)


@pytest.mark.parametrize(
    "y",
    [
        np.array(list("abcd"))[Y],
        pd.Series(Y).astype("category"),
        [("ant", "bee", "cat", "dog")[code] for code in Y],
        pd.to_datetime(Y, unit="D"),
        Y / 3,
    ],
)
@pytest.mark.parametrize("scheme", ["label", "dirichlet"])
def test_labels_of_any_type_that_sorts(scheme, y):
    labels = client_labels(X, 4, scheme=scheme, y=y, random_state=0)
    assert_array_equal(labels, client_labels(X, 4, scheme=scheme, y=Y, random_state=0))


@pytest.mark.parametrize("kind", [pd.Series, pd.Categorical, pd.CategoricalIndex])
def test_ordered_categories_sort_in_their_order(kind):
    sizes = pd.Categorical(["low", "mid", "high"] * 10, ["low", "mid", "high"], ordered=True)
    labels = client_labels(
        np.zeros(30), 3, scheme="label", y=kind(sizes), shards_per_client=1, random_state=0
    )
    assert n_labels_seen(labels, np.asarray(sizes), 3) == [1, 1, 1]
    # Of the two clients, one has the lower half.
    labels = client_labels(
        np.zeros(30), 2, scheme="label", y=kind(sizes), shards_per_client=1, random_state=0
    )
    seen = [set(np.asarray(sizes)[labels == client]) for client in range(2)]
    assert sorted(map(sorted, seen)) == [["high", "mid"], ["low", "mid"]]


@pytest.mark.parametrize("format", ["csr", "csc", "coo", "dia", "bsr", "lil"])
def test_sparse_rows_are_split(format):
    rows = sparse.csr_array(np.where(Y[:36] > 1, Y[:36], 0).reshape(12, 3))
    clients = split_clients(rows.asformat(format), 2, random_state=0)
    whole = split_clients(rows.toarray(), 2, random_state=0)
    for client, table in zip(clients, whole, strict=True):
        assert client.format == "csr"
        assert_array_equal(client.toarray(), table)


def test_data_frames_keep_columns_types_and_index():
    frame = pd.DataFrame({"height": np.arange(20.0), "count": np.arange(20)}, index=range(100, 120))
    clients = split_clients(frame, 3, random_state=0)
    for client in clients:
        assert list(client.columns) == ["height", "count"]
        assert_array_equal(client.dtypes, frame.dtypes)
        pd.testing.assert_frame_equal(client, frame.loc[client.index])
    assert sorted(index for client in clients for index in client.index) == list(range(100, 120))


def test_the_callers_data_stay_as_they_were():
    rows, y = X.copy(), Y.copy()
    rows.flags.writeable = y.flags.writeable = False
    for scheme in SCHEMES:
        clients = split_clients(rows, 5, scheme=scheme, y=y, random_state=0)
        for client in clients:
            client += 1
    assert_array_equal(rows, X)
    assert_array_equal(y, Y)


def test_lists_and_vectors_can_be_split():
    clients = split_clients([[1, 2], [3, 4], [5, 6]], 3, random_state=0)
    assert sorted(client.tolist() for client in clients) == [[[1, 2]], [[3, 4]], [[5, 6]]]
    assert [len(client) for client in split_clients(Y, 4, random_state=0)] == [50] * 4


@pytest.mark.parametrize("splitter", [client_labels, split_clients])
@pytest.mark.parametrize(
    "kwargs, error, message",
    [
        (dict(scheme="random"), ValueError, "'iid', 'label', 'dirichlet', 'size', got 'random'"),
        (dict(n_clients=0), ValueError, "n_clients to be an integer >= 1, got 0"),
        (dict(n_clients=2.0), TypeError, "n_clients to be an integer >= 1, got 2.0"),
        (dict(n_clients=True), TypeError, "n_clients to be an integer >= 1, got True"),
        (dict(n_clients=201), ValueError, "got 200. Lower n_clients or min_rows"),
        (dict(min_rows=21), ValueError, r"10 \* 21 = 210 rows, got 200"),
        (dict(scheme="label"), ValueError, "got y=None. Give y"),
        (dict(scheme="label", y=Y[1:]), ValueError, "one label per row of X, 200, got 199"),
        (dict(scheme="label", y=Y, shards_per_client=0), ValueError, "an integer >= 1, got 0"),
        (dict(scheme="label", y=Y, shards_per_client=21), ValueError, "Lower n_clients or shards"),
        (dict(scheme="dirichlet", y=["a", None] * 100), ValueError, "missing one in row 1 of"),
        (dict(scheme="dirichlet", y=["a", np.nan] * 100), ValueError, "missing one in row 1 of"),
        (dict(scheme="label", y=[1.0, np.nan] * 100), ValueError, "got a missing one in row"),
        (dict(scheme="dirichlet", y=np.where(Y > 0, Y, np.nan)), ValueError, "got a missing one"),
        (dict(scheme="label", y=np.ma.masked_equal(Y, 2)), ValueError, "got masked ones in y"),
        (
            dict(scheme="label", y=pd.Categorical(["a", None] * 100, ordered=True)),
            ValueError,
            "got a missing one in row",
        ),
        (
            dict(scheme="label", y=[frozenset([owner]) for owner in Y.tolist()]),
            TypeError,
            "labels in y that can be sorted, got frozenset labels",
        ),
        (
            dict(scheme="label", y=pd.Series([{owner} for owner in Y.tolist()])),
            TypeError,
            "labels in y that can be told apart by their hash, got .*unhashable type: 'set'",
        ),
        (dict(scheme="label", y=[1, "a"] * 100), TypeError, "labels of one type"),
        (dict(scheme="size", alpha=0.0), ValueError, "alpha to be a number > 0, got 0.0"),
        (dict(scheme="dirichlet", y=Y, alpha=0.0), ValueError, "alpha to be a number > 0, got 0.0"),
        (dict(scheme="size", alpha=np.inf), ValueError, "alpha to be a finite number > 0, got inf"),
        (dict(scheme="size", alpha=np.nan), ValueError, "alpha to be a finite number > 0, got nan"),
        (dict(scheme="dirichlet", y=Y, alpha="0.5"), TypeError, "alpha .* > 0, got '0.5' of type"),
    ],
)
def test_bad_parameters(splitter, kwargs, error, message):
    with pytest.raises(error, match=message):
        splitter(X, **kwargs)


@pytest.mark.parametrize("splitter", [client_labels, split_clients])
@pytest.mark.parametrize(
    "rows, message",
    [
        ([X[:5], X[:6]], "nothing to split"),
        ([X, X], "got 3 dimensions"),
        (3.0, "got 0 dimensions"),
    ],
)
def test_bad_rows(splitter, rows, message):
    with pytest.raises(ValueError, match=message):
        splitter(rows, 2)


COVARIANCE_SHAPES = {"full": (3, 2, 2), "tied": (2, 2), "diag": (3, 2), "spherical": (3,)}


@pytest.mark.parametrize("covariance_type", COVARIANCE_SHAPES)
def test_simulated_rows_have_the_parameters_moments(covariance_type):
    weights = [0.5, 0.3, 0.2]
    data = make_federated_mixture(
        n_clients=20,
        n_samples=2000,
        covariance_type=covariance_type,
        weights=weights,
        random_state=0,
    )
    rows, components = np.concatenate(data.clients), np.concatenate(data.labels)
    assert data.covariances.shape == COVARIANCE_SHAPES[covariance_type]
    assert_array_equal(data.weights, weights)
    shares = np.bincount(components) / len(rows)
    assert_allclose(shares, weights, atol=4.5 * np.sqrt(0.25 / len(rows)))
    for g in range(3):
        drawn = rows[components == g]
        covariance = {
            "full": lambda g=g: data.covariances[g],
            "tied": lambda: data.covariances,
            "diag": lambda g=g: np.diag(data.covariances[g]),
            "spherical": lambda g=g: data.covariances[g] * np.eye(2),
        }[covariance_type]()
        # Variances are at most 1.5: a mean's is 1.5/n, a second moment's at most 2 * 1.5²/n.
        mean_error = 4.5 * np.sqrt(1.5 / len(drawn))
        assert_allclose(drawn.mean(axis=0), data.means[g], atol=mean_error)
        covariance_error = 4.5 * np.sqrt(2 * 1.5**2 / len(drawn))
        assert_allclose(np.cov(drawn.T), covariance, atol=covariance_error)
        eigenvalues = np.linalg.eigvalsh(covariance)
        assert np.all((eigenvalues > 0.5 - 1e-12) & (eigenvalues < 1.5 + 1e-12))
        # Equal variances would be no likelier than any others.
        assert (np.ptp(eigenvalues) > 0.01) == (covariance_type != "spherical")


@pytest.mark.parametrize("n_components, n_features", [(2, 1), (3, 2), (10, 2), (10, 20)])
def test_separation_is_the_distance_of_the_closest_means(n_components, n_features):
    data = make_federated_mixture(5, 4, n_features, n_components, separation=2.5, random_state=0)
    distances = np.linalg.norm(data.means[:, None] - data.means, axis=2)
    assert_allclose(distances[np.triu_indices(n_components, 1)].min(), 2.5)


def test_no_mean_is_far_from_all_others():
    # Of single draws, one in ten would have two means that are 38 or more apart.
    for seed in range(50):
        means = make_federated_mixture(1, 1, 2, 5, separation=3.0, random_state=seed).means
        assert np.linalg.norm(means[:, None] - means, axis=2).max() < 25


def test_weights_that_were_rounded_are_made_to_sum_to_1():
    data = make_federated_mixture(5, 4, weights=[0.33333] * 3, random_state=0)
    assert_allclose(data.weights, 1 / 3, rtol=1e-15)


def sorted_rows(clients):
    rows = np.concatenate(clients)
    return rows[np.lexsort(rows.T)]


KNOB = (0.0, 0.3, 0.7, 1.0)


def component_shares(data):
    """Shares of the components of each client, as rows."""
    n_components = len(data.weights)
    return np.array([np.bincount(own, minlength=n_components) / len(own) for own in data.labels])


@pytest.mark.parametrize("make", [make_federated_mixture, make_fedem_mixture])
def test_heterogeneity_moves_rows_and_changes_none(make):
    made = [make(8, 50, heterogeneity=h, random_state=0) for h in KNOB]
    for data in made:
        assert len(data.clients) == 8
        assert min(len(rows) for rows in data.clients) >= 1
        assert_array_equal(sorted_rows(data.clients), sorted_rows(made[0].clients))
        assert_array_equal(data.means, made[0].means)
        for rows, components in zip(data.clients, data.labels, strict=True):
            assert len(rows) == len(components)


def test_the_ends_of_heterogeneity():
    arguments = {"n_clients": 6, "n_samples": 40, "weights": [0.5, 0.3, 0.2], "random_state": 0}
    alike = make_federated_mixture(**arguments, heterogeneity=0)
    assert [len(rows) for rows in alike.clients] == [40] * 6
    assert [set(components) for components in alike.labels] == [{0, 1, 2}] * 6
    unlike = make_federated_mixture(**arguments, heterogeneity=1.0)
    assert [len(set(components)) for components in unlike.labels] == [1] * 6
    assert {components[0] for components in unlike.labels} == {0, 1, 2}


def test_identical_clients_may_be_fewer_than_components():
    data = make_federated_mixture(2, 50, heterogeneity=0.0, random_state=0)
    assert [set(components) for components in data.labels] == [{0, 1, 2}] * 2


def test_heterogeneity_interpolates_the_clients_distributions():
    weights = np.array([0.5, 0.3, 0.2])
    arguments = {"n_clients": 10, "n_samples": 2000, "weights": weights, "random_state": 0}
    own = component_shares(make_federated_mixture(**arguments, heterogeneity=1))
    for heterogeneity in KNOB:
        data = make_federated_mixture(**arguments, heterogeneity=heterogeneity)
        expected = (1 - heterogeneity) * weights + heterogeneity * own
        # 5, 3 and 2 clients hold the components: the drawn shares of 20,000 rows make sizes at h=1
        # differ by 4.5 * sqrt(0.5 / 20000) / 0.5 = 3% at most, which moves a share by 3% of 1/4;
        # the counts of 2,000 rows add 4.5 standard deviations of at most sqrt(1 / 4 / 1900).
        atol = 0.03 / 4 + 4.5 * np.sqrt(0.25 / 1900)
        assert_allclose(component_shares(data), expected, atol=atol)


@pytest.mark.parametrize(("weights", "n_samples"), [([0, 0, 1.0], 100), ([1.0, 0, 0], 5)])
def test_components_without_rows_take_no_client_away(weights, n_samples):
    data = make_federated_mixture(4, n_samples, weights=weights, heterogeneity=1.0, random_state=0)
    assert [len(client) for client in data.clients] == [n_samples] * 4


def test_rows_that_moved_stay_moved():
    arguments = {"n_clients": 5, "n_samples": 200, "random_state": 0}

    def holders(heterogeneity):
        data = make_federated_mixture(**arguments, heterogeneity=heterogeneity)
        rows = np.concatenate(data.clients)
        owners = np.repeat(np.arange(5), [len(client) for client in data.clients])
        return owners[np.lexsort(rows.T)]

    alike, less, more, unlike = (holders(h) for h in KNOB)
    assert np.any(less != alike)
    assert_array_equal(more[less != alike], unlike[less != alike])
    # A row with another holder at both ends has moved with probability 0.7.
    changed = unlike != alike
    share = (more != alike)[changed].mean()
    assert abs(share - 0.7) < 4.5 * np.sqrt(0.25 / changed.sum())


def test_no_client_is_without_rows_whatever_the_heterogeneity():
    for seed in range(20):
        data = make_federated_mixture(12, 1, heterogeneity=0.5, random_state=seed)
        assert [len(rows) for rows in data.clients] == [1] * 12


@pytest.mark.parametrize(
    "kwargs, error, message",
    [
        (
            dict(heterogeneity=1.1),
            ValueError,
            "heterogeneity to be a number >= 0 and <= 1, got 1.1. It is the share",
        ),
        (dict(heterogeneity=-0.1), ValueError, "got -0.1"),
        (dict(heterogeneity=np.nan), ValueError, "got nan"),
        (dict(heterogeneity="iid"), TypeError, "heterogeneity to be a number .* got 'iid'"),
        (dict(heterogeneity=0.5, n_clients=2), ValueError, "got n_clients=2. Raise n_clients"),
        (dict(heterogeneity=None), TypeError, "heterogeneity to be a number .* got None"),
    ],
)
def test_bad_heterogeneity(kwargs, error, message):
    with pytest.raises(error, match=message):
        make_federated_mixture(**kwargs)


def test_labels_stay_with_their_rows():
    for heterogeneity in (0.0, 0.5, 1.0):
        data = make_federated_mixture(
            6, 30, separation=200.0, heterogeneity=heterogeneity, random_state=0
        )
        for rows, components in zip(data.clients, data.labels, strict=True):
            distances = np.linalg.norm(rows[:, None] - data.means, axis=2)
            assert_array_equal(distances.argmin(axis=1), components)


@pytest.mark.parametrize("n_clients", [3, 4, 30, 45])
def test_one_component_clients(n_clients):
    data = make_federated_mixture(
        n_clients,
        40,
        weights=[0.6, 0.3, 0.1],
        heterogeneity=1.0,
        random_state=0,
    )
    held = [set(components) for components in data.labels]
    assert all(len(components) == 1 for components in held)
    assert set.union(*held) == {0, 1, 2}
    n_holders = np.bincount([components.pop() for components in held])
    n_rows = np.bincount(np.concatenate(data.labels))
    # No other way to share the clients out leaves the fullest of them with fewer rows.
    others = [(a, b, n_clients - a - b) for a in range(1, n_clients) for b in range(1, n_clients)]
    fullest = [max(n_rows / other) for other in others if min(other) > 0]
    assert max(n_rows / n_holders) == min(fullest)
    if n_clients >= 30:
        sizes = [len(rows) for rows in data.clients]
        assert_allclose(n_holders / n_clients, data.weights, atol=0.05)
        assert max(sizes) < 2 * min(sizes)


@pytest.mark.parametrize("make", [make_federated_mixture, make_fedem_mixture])
def test_simulators_seeds_reproduce(make):
    first, again, other = make(random_state=0), make(random_state=0), make(random_state=1)
    assert_array_equal(np.concatenate(first.clients), np.concatenate(again.clients))
    assert not np.array_equal(first.clients[0], other.clients[0])


def test_fedem_mixture_is_the_papers_size():
    data = make_fedem_mixture(random_state=0)
    assert [rows.shape for rows in data.clients] == [(100, 2)] * 100
    assert_array_equal(data.weights, [0.4, 0.6])
    assert_array_equal(data.means, [[-1.5, -1.0], [1.5, 1.0]])
    rows, components = np.concatenate(data.clients), np.concatenate(data.labels)
    for g in range(2):
        # A second moment of 4,000 rows with unit variances has a variance of at most 2 / 4,000.
        covariance = np.cov(rows[components == g].T)
        assert_allclose(covariance, data.covariances, atol=4.5 * np.sqrt(2 / 4000))
    other = make_fedem_mixture(random_state=1)
    assert_array_equal(data.means, other.means)
    other.means[:] = 0
    assert_array_equal(make_fedem_mixture(random_state=0).means, data.means)


def test_one_component_needs_no_separation():
    data = make_federated_mixture(2, 5, n_components=1, random_state=0)
    assert_array_equal(data.means, [[0.0, 0.0]])


@pytest.mark.parametrize(
    "kwargs, error, message",
    [
        (dict(n_clients=0), ValueError, "n_clients to be an integer >= 1, got 0"),
        (dict(n_samples=0), ValueError, "n_samples to be an integer >= 1, got 0"),
        (dict(n_features=0), ValueError, "n_features to be an integer >= 1, got 0"),
        (dict(n_components=0), ValueError, "n_components to be an integer >= 1, got 0"),
        (dict(covariance_type="ball"), ValueError, "'spherical', got 'ball'"),
        (dict(separation=-1.0), ValueError, "separation to be a number >= 0, got -1.0"),
        (dict(separation=np.nan), ValueError, "separation to be a finite number >= 0, got nan"),
        (dict(weights=[0.5, 0.5]), ValueError, r"weights to have shape \(3,\), got \(2,\)"),
        (dict(weights="abc"), ValueError, "Expected weights to be numbers of shape .*, got 'abc'"),
        (dict(weights={}), ValueError, "Expected weights to be numbers of shape .*, got {}"),
        (dict(weights=[0.5, 0.4, 0.4]), ValueError, "a sum of 1.3. Normalise them"),
        (dict(weights=[0.5, 0.3, 0.201]), ValueError, "a sum of 1.001. Normalise them"),
        (dict(weights=[1.5, -0.25, -0.25]), ValueError, "smallest of -0.25 .* share >= 0 for each"),
        (dict(weights=np.ma.masked_less([0.2, 0.3, 0.5], 0.25)), ValueError, "weights contains Na"),
    ],
)
def test_bad_simulations(kwargs, error, message):
    with pytest.raises(error, match=message):
        make_federated_mixture(**kwargs)


@pytest.mark.parametrize("kind", [Fraction, np.longdouble, np.float32])
def test_parameters_of_simulators_are_any_numbers(kind):
    for make, parameters in (
        (make_federated_mixture, {"separation": 2.5}),
        (make_federated_mixture, {"heterogeneity": 0.5}),
    ):
        given = {name: kind(value) for name, value in parameters.items()}
        want, got = (make(**each, random_state=0) for each in (parameters, given))
        assert got.means.dtype == np.float64
        for one, other in zip(got.clients, want.clients, strict=True):
            assert_array_equal(one, other)
    for scheme in ("dirichlet", "size"):
        options = {"scheme": scheme, "y": np.arange(60) % 3, "random_state": 0}
        want, got = (
            client_labels(np.zeros((60, 1)), 4, alpha=alpha, **options)
            for alpha in (0.5, kind(0.5))
        )
        assert_array_equal(got, want)
