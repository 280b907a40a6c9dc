"""Splits of rows over clients: partitions, sizes, heterogeneity, and input of any type."""

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

from skfedem.datasets import client_labels, split_clients

SCHEMES = ("iid", "label", "dirichlet", "size")
X = np.arange(400.0).reshape(200, 2)
Y = np.arange(200) % 4


def n_labels_seen(labels, y, n_clients):
    return [len(np.unique(y[labels == client])) for client in range(n_clients)]


@settings(max_examples=40, deadline=None, derandomize=True)
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
def test_splits_are_partitions(
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
def test_lists_and_labels_agree(scheme):
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


def test_iid_clients_have_the_same_distribution():
    y = np.repeat([0, 1], 5000)
    labels = client_labels(y, 10, random_state=0)
    shares = np.array([y[labels == client].mean() for client in range(10)])
    # A share is a mean of 1,000 draws without replacement: sd sqrt(0.9 / 4 / 1000) = 0.015.
    assert np.all(np.abs(shares - 0.5) < 4.5 * 0.015)
    assert np.ptp(shares) > 0


def test_label_one_shard_is_one_label():
    labels = client_labels(X, 8, scheme="label", y=Y, shards_per_client=1, random_state=0)
    assert n_labels_seen(labels, Y, 8) == [1] * 8


def test_label_shards_are_assigned_at_random():
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
def test_at_the_smallest_alpha_one_client_has_nearly_all_rows(scheme):
    y = np.arange(400) % 2
    labels = client_labels(y, 4, scheme=scheme, y=y, alpha=5e-324, random_state=0)
    # Each client has a row at least.
    assert np.bincount(2 * labels + y if scheme == "dirichlet" else labels).max() >= 197


@pytest.mark.parametrize("y", [np.repeat(np.arange(10), 60), np.arange(600)], ids=["60", "1"])
def test_dirichlet_rounding_favours_no_client(y):
    # Shares are all but equal: 6 rows of 100 clients, rounded for each label anew.
    sizes = [
        np.bincount(client_labels(y, 100, scheme="dirichlet", y=y, alpha=1e6, random_state=seed))
        for seed in range(10)
    ]
    # Of each of up to 600 labels, a client gets 0 or 1 row more than its share: five standard
    # errors of the mean over 10 seeds.
    assert_allclose(np.mean(sizes, axis=0), 6.0, atol=5 * np.sqrt(6 / 10))


def assert_dirichlet(shares, alpha):
    """2,000 draws from Dirichlet(a, a, a, a), whose margins are Beta(a, 3a), rounded to 1/500."""
    mean, variance, excess = beta(alpha, 3 * alpha).stats("mvk")
    assert_allclose(shares.mean(axis=0), mean, atol=4.5 * np.sqrt(variance / 2000))
    rounding = 2 * np.sqrt(variance) / 500
    error = variance * np.sqrt((excess + 2) / 2000)
    assert_allclose(shares.var(axis=0), variance, atol=4.5 * error + rounding)


def test_dirichlet_shares_have_dirichlet_moments():
    # Of 2,000 labels of 500 rows each.
    y = np.repeat(np.arange(2000), 500)
    labels = client_labels(y, 4, scheme="dirichlet", y=y, alpha=0.5, random_state=0)
    assert_dirichlet(np.bincount(4 * y + labels, minlength=8000).reshape(2000, 4) / 500, alpha=0.5)


def test_unequal_sizes_have_dirichlet_moments():
    # Of 2,000 splits of 500 rows, but for clients that got a first row.
    options = {"scheme": "size", "alpha": 2.0, "random_state": np.random.RandomState(0)}
    sizes = [np.bincount(client_labels(np.zeros(500), 4, **options)) for _ in range(2000)]
    assert_dirichlet(np.array(sizes) / 500, alpha=2.0)


def test_clients_of_unequal_sizes_have_the_same_distribution():
    y = np.repeat([0, 1], 5000)
    labels = client_labels(y, 5, scheme="size", alpha=1.0, random_state=0)
    sizes = np.bincount(labels)
    assert sizes.max() > 2 * sizes.min()
    shares = np.array([y[labels == client].mean() for client in range(5)])
    # A share is a mean of so many draws without replacement: sd at most sqrt(1 / 4 / size).
    assert np.all(np.abs(shares - 0.5) < 4.5 * np.sqrt(0.25 / sizes))


@pytest.mark.parametrize("scheme", ["iid", "size"])
def test_iid_and_size_ignore_labels(scheme):
    without = client_labels(X, 5, scheme=scheme, random_state=0)
    assert_array_equal(client_labels(X, 5, scheme=scheme, y=Y, random_state=0), without)


def test_rows_moved_to_small_clients_are_random():
    # One client has all rows at first.
    options = {"scheme": "size", "alpha": 1e-300, "min_rows": 100, "random_state": 0}
    labels = client_labels(np.zeros(1000), 2, **options)
    moved = np.flatnonzero(labels == np.argmin(np.bincount(labels)))
    assert len(moved) == 100
    # The mean of 100 of the numbers to 1000 has a standard deviation of 27.
    assert abs(moved.mean() - 500) < 4 * 27


@pytest.mark.parametrize("scheme", ["dirichlet", "size"])
@pytest.mark.parametrize("min_rows", [1, 5, 20])
def test_clients_have_the_minimum_number_of_rows(min_rows, scheme):
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


def test_input_is_not_modified():
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
        (dict(scheme="label", y=np.ma.masked_equal(Y, 2)), ValueError, "got a missing one"),
        (
            dict(scheme="label", y=pd.Categorical(["a", None] * 100, ordered=True)),
            ValueError,
            "got a missing one in row",
        ),
        (dict(scheme="label", y=[1, "a"] * 100), TypeError, "Labels in y cannot be sorted"),
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
        ([X[:5], X[:6]], "not one array or DataFrame"),
        ([X, X], "got 3 dimensions"),
        (3.0, "got 0 dimensions"),
    ],
)
def test_bad_rows(splitter, rows, message):
    with pytest.raises(ValueError, match=message):
        splitter(rows, 2)


@pytest.mark.parametrize("kind", [Fraction, np.longdouble, np.float32])
@pytest.mark.parametrize("scheme", ["dirichlet", "size"])
def test_alpha_may_be_any_number(scheme, kind):
    options = {"scheme": scheme, "y": np.arange(60) % 3, "random_state": 0}
    want, got = (
        client_labels(np.zeros((60, 1)), 4, alpha=alpha, **options) for alpha in (0.5, kind(0.5))
    )
    assert_array_equal(got, want)
