"""Simulated mixtures: moments, separation of means, and heterogeneity of clients."""

from fractions import Fraction

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from skfedem.datasets import make_fedem_mixture, make_federated_mixture

COVARIANCE_SHAPES = {"full": (3, 2, 2), "tied": (2, 2), "diag": (3, 2), "spherical": (3,)}


@pytest.mark.parametrize("covariance_type", COVARIANCE_SHAPES)
def test_rows_have_the_moments_of_the_mixture(covariance_type):
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


def test_no_mean_is_an_outlier():
    # Of single draws, one in ten would have two means that are 38 or more apart.
    for seed in range(50):
        means = make_federated_mixture(1, 1, 2, 5, separation=3.0, random_state=seed).means
        assert np.linalg.norm(means[:, None] - means, axis=2).max() < 25


def test_rounded_weights_are_normalised():
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
def test_heterogeneity_changes_only_who_holds_a_row(make):
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


def test_rows_move_monotonically():
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


def test_labels_are_components_of_rows():
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
def test_seeds_reproduce(make):
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
