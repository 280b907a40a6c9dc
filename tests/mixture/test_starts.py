"""Where a fit starts: every init, what clients send for it, given and warm starts, n_init."""

import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score

from mixtures import CENTERS, CLIENTS, COMPONENTS, EXACT, N_SAMPLES, X
from skfedem import FederatedGaussianMixture
from skfedem._federation import ClientRows, Federation, offsets_of, weights_of_clients
from skfedem._parallel import Workers
from skfedem._random import INITIALISATION, row_uniforms
from skfedem.clients.local import LocalClients
from skfedem.models.mixture import assignment, messages
from skfedem.models.mixture.gaussian_mixture import GaussianMixtureModel
from skfedem.models.mixture.initial_parameters import InitialParameters
from skfedem.models.mixture.initialization import standardise


@pytest.mark.parametrize("init_params", ["kmeans", "k-means++", "random_from_data", "random"])
def test_every_init_finds_well_separated_components(init_params):
    # The two that draw without looking may begin badly: the best of ten starts.
    n_init = 10 if init_params.startswith("random") else 1
    gm = FederatedGaussianMixture(3, init_params=init_params, n_init=n_init, random_state=0).fit(
        CLIENTS
    )
    assert adjusted_rand_score(COMPONENTS, gm.predict(X)) == 1


def test_kmeans_finds_components_that_no_client_has_alone():
    # Each client holds a single component: its own centroids split it.
    clients = [X[g == COMPONENTS] for g in range(3)]
    gm = FederatedGaussianMixture(3, max_iter=0, random_state=0).fit(clients)
    assert adjusted_rand_score(COMPONENTS, gm.predict(X)) == 1


@pytest.mark.filterwarnings("ignore:The variance of")
def test_kmeans_mutes_no_warning_but_its_own(monkeypatch):
    # Other threads have the same filters: what they warn of meanwhile is not muted either.
    fit = assignment.KMeans.fit

    def meanwhile(self, *arguments, **options):
        warnings.warn("Not converged, says another thread", ConvergenceWarning, stacklevel=1)
        return fit(self, *arguments, **options)

    monkeypatch.setattr(assignment.KMeans, "fit", meanwhile)
    alike = 1 + np.spacing(1.0) * np.arange(8)[:, None]  # of which k-means makes two clusters
    with pytest.warns(ConvergenceWarning) as caught:
        FederatedGaussianMixture(3, random_state=0).fit([alike, alike + 1])
    said = {str(warning.message) for warning in caught}
    # Beside what the estimator says of such components.
    said = {message for message in said if not message.startswith("The variance of")}
    assert said == {"Not converged, says another thread"}


def test_kmeans_does_not_see_a_column_of_fill_values():
    # 9.97e36 is that of NetCDF. What scikit-learn's mean of it is off by, 1e21, would drown the
    # distances between rows.
    rows, starts = np.column_stack([X, np.zeros(len(X))]), []
    for fill in (0.0, 9.97e36):
        rows[:, -1] = fill
        gm = FederatedGaussianMixture(3, max_iter=0, random_state=0)
        starts.append(gm.fit(rows, clients=np.arange(len(rows)) % 4).means_[:, :-1])
    assert_array_equal(*starts)


def test_random_probabilities_are_each_clients_own(monkeypatch):
    # Some clients are read together, and one in several pieces.
    monkeypatch.setattr(GaussianMixtureModel, "block_rows", 7)
    rng, lengths = np.random.default_rng(0), [2, 3, 1, 17, 5, 7]
    clients = [rng.normal(size=(length, 2)) for length in lengths]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    federation = Federation(np.concatenate(clients), offsets, np.full(6, 1 / 6))
    clients_of = local_clients(federation)
    model = standardise(FederatedGaussianMixture(3), clients_of, InitialParameters())
    posteriors = []
    for client, length in enumerate(lengths):
        keys = (np.uint64(client) << np.uint64(32)) + np.arange(length, dtype=np.uint64)
        posteriors.append(row_uniforms(4, INITIALISATION, 0, keys, 3).T)
    expected = 0.0
    for rows, drawn in zip(clients, posteriors, strict=True):
        posterior = drawn / drawn.sum(axis=0)
        sums = model.assigned(posterior, model.features(rows), np.array([len(rows)]), None)
        expected = expected + sums[0] / len(rows) / 6
    statistics = clients_of.mean(messages.random_statistics, model, 4)
    assert_allclose(statistics, expected, rtol=1e-12, atol=1e-14)


def local_clients(federation):
    """The clients of a federation, on this thread."""
    workers = Workers(1)
    with workers:
        return LocalClients(federation, workers)


def centroids_sent(client, n_clusters, seed):
    """What one client sends for init_params="kmeans": alone, its centroids are the centres."""
    federation = Federation(client, np.array([0, len(client)]), np.ones(1))
    (sent,) = assignment.centroids_of_rows(
        ClientRows(federation, np.array([0]), np.array([0])), n_clusters, seed
    )
    return sent[:, 1:], len(sent)


@pytest.mark.parametrize("n_clusters", [1, 3, 8])
def test_kmeans_reveals_no_row(n_clusters):
    rng = np.random.default_rng(1)
    for seed in range(20):
        client = rng.normal(size=(rng.integers(2, 12), 2)) * rng.lognormal(size=2)
        sent, n_sent = centroids_sent(client, n_clusters, seed)
        assert n_sent <= len(client) // 2
        distances = np.abs(sent[:, None] - client).max(axis=2)
        assert distances.size == 0 or distances.min() > 1e-6


@pytest.mark.parametrize("n_clusters", [2, 3, 8])
def test_what_centroids_leave_of_the_mean_is_no_row(n_clusters):
    n_alone = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        client = np.concatenate([rng.normal(size=(20, 2)), 30 * rng.normal(size=(seed % 3, 2))])
        n_alone += seed % 3 == 1
        weights = np.ones(len(client))
        sent, mass = assignment._centroids_to_send(client, n_clusters, seed, weights)
        counts = np.rint(len(client) * mass)
        # As few as possible are held back: the outliers, or else the smallest cluster. Beside an
        # outlier the two others may be of one size.
        assert n_clusters == 2 or counts.sum() >= len(client) // 2
        held_back = len(client) - counts.sum()
        assert held_back != 1
        if held_back > 1:
            mean_of_others = (client.sum(axis=0) - counts @ sent) / held_back
            assert np.abs(mean_of_others - client).max(axis=1).min() > 1e-6
    assert n_alone > 10


def test_a_few_copies_of_a_row_send_no_centroid():
    # Two clusters of forty rows, and three copies of a row: a cluster whose mean is that row.
    rng = np.random.default_rng(0)
    client = np.concatenate([rng.normal(center, 1, size=(40, 2)) for center in (0, 20)])
    client = np.concatenate([client, 3 * [[50.0, 0.0]]])
    sent, n_sent = centroids_sent(client, 3, 0)
    # Without one of the others, the row would follow from the mean of all rows.
    assert n_sent == 1
    assert np.abs(sent - [50, 0]).max(axis=1).min() > 1


def test_no_row_of_a_small_client_is_common():
    # One row in a cluster of its own, or four times, is half of what the rows are per component.
    for n_copies in (1, 4):
        client = np.array([[0.0, 0.0], [0.1, 0.0], [0.0, 0.1]] + n_copies * [[50.0, 50.0]])
        for seed in range(5):
            sent, _ = centroids_sent(client, 2, seed)
            assert np.abs(sent).max(initial=0) < 1
    sent, n_sent = centroids_sent(np.concatenate([client, client[-1:]]), 2, 0)
    # Five of them are common. The nearest row adds at most 0.1 to one of the sums.
    assert n_sent == 2
    assert_allclose(sent[sent[:, 0].argmax()], 5 * 50 / 6, rtol=0, atol=0.1 / 6 + 1e-12)


@pytest.mark.filterwarnings("ignore:The variance of")
def test_a_value_as_common_as_a_component_is_sent_with_the_nearest_row():
    rng = np.random.default_rng(0)
    rest = rng.normal(5, 1, size=(60, 2))
    nearest = rest[(rest**2).sum(axis=1).argmin()]
    sent, n_sent = centroids_sent(np.concatenate([np.zeros((40, 2)), rest]), 2, 0)
    assert n_sent == 2
    want = [nearest / 41, (rest.sum(axis=0) - nearest) / 59]
    assert_allclose(sent[sent[:, 0].argsort()], want, rtol=1e-10)
    # From half of what the client's two clusters weigh in the mean: 20 of 80 rows.
    for n_copies, n_expected in ((19, 0), (20, 2)):
        _, n_sent = centroids_sent(np.concatenate([np.zeros((n_copies, 2)), 15 + rest]), 2, 0)
        assert n_sent == n_expected
    # A component of zeros is found by every start.
    clients = [np.concatenate([np.zeros((50, 2)), rng.normal(5, 1, (50, 2))]) for _ in range(4)]
    for seed in range(5):
        start = start_of(clients, 2, reg_covar=0.01, random_state=seed)
        assert np.abs(np.sort(start.means_[:, 0]) - [0, 5]).max() < 0.5


def test_clusters_that_rounding_empties_have_no_mean_to_compute():
    # Beside a code for what is missing, k-means leaves some of its clusters without members.
    rng = np.random.default_rng(0)
    rows = np.concatenate([np.full(40, 1e10), rng.normal(size=12), [5e9]])[:, None]
    gm = FederatedGaussianMixture(4, random_state=0, max_iter=0).fit(rows)
    assert np.isfinite(gm.means_).all()


@pytest.mark.parametrize("seed", [0, 430])
def test_kmeans_plusplus_does_not_see_the_order_of_rows(seed):
    # Rounded rows, of which many are equal and many are equally far from each other, with weights.
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(16, 2)).round(1)
    labels, order = rng.integers(3, size=16), rng.permutation(16)
    start = FederatedGaussianMixture(
        3, init_params="k-means++", client_weights="uniform", max_iter=0, random_state=seed
    )
    one = start.fit(rows, clients=labels).means_
    other = start.fit(rows[order], clients=labels[order]).means_
    assert_allclose(one, other, rtol=1e-9)


def test_a_row_that_a_sample_consists_of_is_not_taken_for_the_mean(monkeypatch):
    monkeypatch.setattr(assignment, "_LARGEST_SAMPLE", 20)
    row = np.array([3.25, -1.5])
    client = np.repeat(row[None], 500, axis=0)
    client[77] = 5e4
    rows = np.concatenate([client, np.random.default_rng(0).normal(size=(15, 2))])
    federation = Federation(rows, np.array([0, 500, 515]), np.array([0.5, 0.5]))
    local = local_clients(federation)
    model = standardise(FederatedGaussianMixture(2), local, InitialParameters())
    clustered, kmeans = [], assignment._kmeans

    def watched(centroids, *arguments, **options):
        clustered.append(centroids)
        return kmeans(centroids, *arguments, **options)

    monkeypatch.setattr(assignment, "_kmeans", watched)
    for seed in range(5):
        assignment._kmeans_centers(model, local, seed)
    assert len(clustered) >= 10  # each time the second client, then the server
    assert np.abs(np.concatenate(clustered) - row).max(axis=1).min() > 0.1


def test_fewer_different_rows_than_components_leave_centres_to_draw():
    rows = np.repeat(np.random.default_rng(0).normal(size=(3, 2)), 20, axis=0)
    for init_params in ("kmeans", "k-means++"):
        means = start_of(rows, 5, init_params=init_params).means_
        assert np.isfinite(means).all()
    # All rows are centres, of which those that are drawn take no row.
    assert np.abs(rows[::20, None] - means).max(axis=2).min(axis=1).max() < 0.1


@pytest.mark.filterwarnings("ignore:The variance of")
def test_clients_whose_centroids_are_all_the_same_do_not_make_twins():
    # Two components that start at the same place would move as one for ever.
    gm = FederatedGaussianMixture(2, random_state=0).fit([[[-1.0], [1.0]]] * 10)
    assert abs(gm.means_[0, 0] - gm.means_[1, 0]) > 0.1


def start_of(clients, n_components=3, **parameters):
    """Where a fit begins, quietly."""
    parameters = {"random_state": 0, **parameters}
    return FederatedGaussianMixture(n_components, max_iter=0, **parameters).fit(clients)


def test_kmeans_plusplus_tells_rows_apart_that_are_far_from_the_origin():
    # Squares of 2**30 have no digits below 256, where distances of rows are. Sums are exact.
    clients = [np.round(rows * 2**16) / 2**16 for rows in CLIENTS]
    for seed in range(5):
        here, there = (
            start_of([rows + shift for rows in clients], init_params="k-means++", random_state=seed)
            for shift in (0.0, 2.0**30)
        )
        # Rounding of means of that size.
        assert_allclose(there.means_ - 2.0**30, here.means_, rtol=0, atol=1e-6)


def test_clients_of_one_row_send_it_as_their_centroid():
    # They send their row, which is their mean, once more: the start is k-means of all rows.
    assert_array_equal(centroids_sent(X[:1], 3, 0)[0], X[:1])
    rows = X[::3]
    start = start_of(list(rows[:, None]))
    bits = start.history_["uplink_bits"][0]
    # Mean, second moment, row with its share, assignment.
    assert bits == 64 * len(rows) * (2 + 3 + 3 + 3 * 6)
    best = KMeans(3, n_init=10, random_state=0).fit(rows)
    assert adjusted_rand_score(best.labels_, start.predict(rows)) > 0.95
    # Two far outliers are clusters of their own, and are not sent.
    client = np.concatenate([X[COMPONENTS == 0], [[1e3, 0.0], [0.0, -1e3]]])
    sent, n_sent = centroids_sent(client, 3, 0)
    assert n_sent == 1
    assert np.abs(sent).max() < 100


def test_a_federation_of_single_rows_is_fitted():
    gm = FederatedGaussianMixture(3, random_state=0).fit(X, clients=np.arange(N_SAMPLES))
    assert gm.n_clients_ == N_SAMPLES
    assert (np.diff(gm.lower_bounds_) > -1e-9).all()
    assert adjusted_rand_score(COMPONENTS, gm.predict(X)) == 1


def test_centres_that_are_drawn_have_no_spread_where_rows_have_none():
    # One client sends a single centroid; the other two centres are drawn.
    rows = np.column_stack([0.01 * X[:2], [5.0, 5.0]])
    one = Federation(rows, np.array([0, 2]), np.ones(1))
    for covariance_type in ("full", "diag"):
        estimator = FederatedGaussianMixture(3, covariance_type=covariance_type)
        local = local_clients(one)
        model = standardise(estimator, local, InitialParameters())
        assert_allclose(model.units.standard_deviations, rows.std(axis=0), rtol=1e-9, atol=1e-12)
        centers = assignment._CENTERS["kmeans"](model, local, 0)
        assert_allclose(centers[:, 2], 5.0, rtol=1e-12)
        assert np.ptp(centers[:, 0]) > 0.1 * rows[:, 0].std()


def test_a_large_client_among_many_small_ones_is_heard():
    rng = np.random.default_rng(0)
    many = [rng.normal(size=(10, 2)) for _ in range(400)]
    own = np.array([[20.0, 0.0], [0.0, 20.0]])
    one = own[rng.integers(2, size=4000)] + rng.normal(size=(4000, 2))
    for seed in range(5):
        start = start_of([*many, one], random_state=seed)
        distances = np.linalg.norm(start.means_[:, None] - own, axis=2)
        assert (distances.min(axis=0) < 1).all()


def test_clients_that_are_drawn_stand_for_all():
    rng = np.random.RandomState(0)
    few = np.append(np.full(4, 0.24), np.full(400, 0.04 / 400))
    for weights, n_large in ((np.append(0.9, np.full(400, 0.1 / 400)), 1), (few, 4)):
        cohort, shares = assignment._cohort(rng, weights)
        assert cohort[:n_large].tolist() == list(range(n_large))
        assert_allclose(shares[:n_large], weights[:n_large])
        assert_allclose(shares[n_large:], (1 - weights[:n_large].sum()) / (128 - n_large))
    _, shares = assignment._cohort(rng, np.full(500, 1 / 500))
    assert_allclose(shares, 1 / 128)
    # All weight that doubles can tell is with two clients.
    cohort, shares = assignment._cohort(rng, np.append([0.5, 0.5], np.zeros(300)))
    assert cohort.tolist() == [0, 1]
    assert shares.tolist() == [0.5, 0.5]


@pytest.mark.parametrize("client_weights", ["n_samples", "uniform"])
def test_centroids_count_as_much_as_the_clients_that_send_them(client_weights):
    rng = np.random.default_rng(0)
    clients = [rng.normal(k, 1, size=(length, 2)) for k, length in enumerate((10, 200, 45))]
    lengths = np.array([10, 200, 45])
    weights = weights_of_clients(lengths, client_weights)
    federation = Federation(np.concatenate(clients), offsets_of(lengths), weights)
    local = local_clients(federation)
    model = standardise(FederatedGaussianMixture(1), local, InitialParameters())
    centers = assignment._CENTERS["kmeans"](model, local, 0)
    # One centroid each: the client's mean.
    means = [rows.mean(axis=0) for rows in clients]
    assert_allclose(centers[0], weights @ means, rtol=1e-12)


def test_the_start_weighs_clients_as_the_fit_does():
    rng = np.random.default_rng(0)
    large = rng.normal([0, 0], 2, size=(3000, 2))
    small = [rng.normal(center, 1, size=(30, 2)) for center in ([3, 0], [0, 3], [4, 4]) * 4]
    clients = [large, *small]
    uniform = start_of(clients, 4, client_weights="uniform")
    shares = [np.full(len(rows), 1 / len(rows)) for rows in clients]
    weighted = FederatedGaussianMixture(4, max_iter=0, random_state=0)
    weighted.fit(clients, sample_weight=shares)
    assert_allclose(uniform.means_, weighted.means_, rtol=1e-9)


def test_a_given_start_is_where_the_fit_starts():
    weights, precisions = np.array([0.2, 0.3, 0.5]), np.array([0.5, 1.0, 2.0])
    gm = FederatedGaussianMixture(
        3,
        covariance_type="spherical",
        weights_init=weights,
        means_init=CENTERS,
        precisions_init=precisions,
        max_iter=0,
    ).fit(CLIENTS)
    assert gm.n_iter_ == 0
    assert not gm.converged_
    assert_allclose(gm.weights_, weights)
    assert_allclose(gm.means_, CENTERS, atol=1e-12)
    assert_allclose(gm.covariances_, 1 / precisions)
    assert_allclose(gm.precisions_, precisions)
    assert len(gm.history_["round"]) == 1
    assert_allclose(gm.lower_bound_, gm.score(X))


@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag", "spherical"])
def test_covariances_that_are_not_given_are_scatter_about_the_means_that_are(covariance_type):
    means = np.add(CENTERS, [0.5, -0.3])
    nearest = np.linalg.norm(X[:, None] - means, axis=2).argmin(axis=1)
    shares = np.bincount(nearest) / N_SAMPLES
    scatter = (
        np.stack([(X[nearest == g] - means[g]).T @ (X[nearest == g] - means[g]) for g in range(3)])
        / np.bincount(nearest)[:, None, None]
    )
    axes = np.diagonal(scatter, axis1=1, axis2=2)
    expected = {
        "full": scatter,
        "tied": np.tensordot(shares, scatter, 1),
        "diag": axes,
        "spherical": axes.mean(axis=1),
    }[covariance_type]
    gm = FederatedGaussianMixture(
        3, covariance_type=covariance_type, means_init=means, max_iter=0, reg_covar=0.0
    )
    gm.fit(CLIENTS)
    assert_allclose(gm.means_, means)
    assert_allclose(gm.weights_, shares)
    assert_allclose(gm.covariances_, expected)


@pytest.mark.parametrize("seed", [0, 2, 6])
def test_narrow_components_keep_their_rows_from_rough_means(seed):
    # Rounded, a mean is hundreds of standard deviations from its rows, in the narrow direction. The
    # scatter about the rows' own means made these fits end 3 to 5 nats below.
    rng = np.random.default_rng(seed)
    means, along = 6 * rng.normal(size=(3, 2)), rng.normal(size=(900, 1))
    rows = np.repeat(means, 300, axis=0) + along + 1e-3 * rng.normal(size=(900, 2)) * [0, 1]
    gm = FederatedGaussianMixture(3, means_init=means, tol=1e-7, max_iter=1000)
    exact = gm.fit([rows[::2], rows[1::2]]).score(rows)
    rough = gm.set_params(means_init=means.round()).fit([rows[::2], rows[1::2]]).score(rows)
    assert_allclose(rough, exact, atol=1e-3)


def test_warm_start_of_another_type_with_arrays_of_one_shape():
    gm = FederatedGaussianMixture(2, covariance_type="diag", warm_start=True, random_state=0)
    gm.fit(CLIENTS)
    gm.set_params(covariance_type="tied")  # (2, 2), too
    with pytest.raises(ValueError, match="covariance_type='diag', as in the last fit"):
        gm.fit(CLIENTS)


def test_warm_start_is_one_start(capsys):
    gm = FederatedGaussianMixture(**EXACT, n_init=3, warm_start=True, verbose=1)
    gm.fit(CLIENTS)
    assert capsys.readouterr().out.count("Start") == 3
    gm.fit(CLIENTS)
    assert "Start" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("init_params", "seed"),
    [("kmeans", 0), ("kmeans", 5), ("kmeans", 7), *(("random_from_data", k) for k in (0, 2, 3))],
)
def test_n_init_keeps_the_first_of_starts_that_end_alike(init_params, seed):
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(center, 1, size=(50, 2)) for center in CENTERS])
    parameters = {"init_params": init_params, "random_state": seed, "tol": 1e-12, "max_iter": 500}
    first, best = (
        FederatedGaussianMixture(3, n_init=n_init, **parameters).fit(rows) for n_init in (1, 10)
    )
    # All starts end in one optimum, up to rounding, with the components in another order.
    assert_array_equal(best.means_, first.means_)


def test_n_init_keeps_the_best_start(capsys):
    parameters = {"n_components": 3, "init_params": "random_from_data", "random_state": 1}
    n_init = 6
    best = FederatedGaussianMixture(**parameters, n_init=n_init, verbose=1).fit(CLIENTS)
    printed = capsys.readouterr().out
    assert all(f"Start {k}" in printed for k in range(n_init))
    # The first k starts are the same for any n_init: the best of them can only improve.
    bounds = [
        FederatedGaussianMixture(**parameters, n_init=k).fit(CLIENTS).lower_bound_
        for k in range(1, n_init + 1)
    ]
    assert best.lower_bound_ == bounds[-1] == max(bounds)
    assert bounds == sorted(bounds)
    assert bounds[-1] > bounds[0] + 0.1


def test_a_given_centre_without_rows_has_a_hundredth_of_the_mean_component():
    rows = np.random.default_rng(0).normal(size=(40, 2))
    federation = Federation(rows, offsets_of([15, 25]), np.array([0.4, 0.6]))
    local = local_clients(federation)
    model = standardise(FederatedGaussianMixture(2), local, InitialParameters())
    means = np.array([[0.0, 0.0], [99.0, 0.0]])
    statistics = assignment.assign(model, local, "kmeans", means, seed=0)
    assert_allclose(model.table(statistics)[:, 0], [0.995, 0.005], rtol=1e-12)
    assert_allclose(model.table(statistics).sum(axis=0)[1:3], 0.0, atol=1e-12)
