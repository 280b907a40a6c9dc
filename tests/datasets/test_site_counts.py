from fractions import Fraction

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from skfedem.datasets import make_site_counts
from watched import peak_memory

MEANS = {
    "poisson": np.exp,
    "gaussian": lambda theta: theta,
    "bernoulli": lambda theta: 1 / (1 + np.exp(-theta)),
}
VARIANCES = {
    "poisson": lambda mean: mean,
    "gaussian": np.ones_like,
    "bernoulli": lambda mean: mean * (1 - mean),
}


def natural_parameters(data):
    """Theta, sites by months: dense, for small sizes."""
    effects = data.intercept + data.row_effects[:, None] + data.column_effects
    return effects + data.row_factors @ data.column_factors.T


def cells_of(data):
    cells = np.concatenate(data.clients)
    return cells[:, 0].astype(int), cells[:, 1].astype(int), cells[:, 2]


@pytest.mark.parametrize("family", MEANS)
@pytest.mark.parametrize("grouping", ["random", "region"])
def test_clients_have_triplets_of_site_month_count(family, grouping):
    data = make_site_counts(
        40, 30, 7, observed=700, family=family, grouping=grouping, random_state=0
    )
    assert data.shape == (40, 30)
    assert len(data.clients) == len(data.observers) == 7
    for cells, observers in zip(data.clients, data.observers, strict=True):
        assert cells.dtype == np.float64
        assert cells.shape == (len(observers), 3)
        assert len(cells) > 0
    sites, months, counts = cells_of(data)
    assert len(counts) == 700
    assert_array_equal(np.concatenate(data.clients)[:, :2], np.column_stack([sites, months]))
    assert sites.min() >= 0 and sites.max() < 40
    assert months.min() >= 0 and months.max() < 30
    if family != "gaussian":
        assert_array_equal(counts, np.round(counts))
        assert counts.min() == 0
        assert counts.max() == 1 if family == "bernoulli" else counts.max() > 1


@pytest.mark.parametrize("family", MEANS)
def test_observations_follow_the_true_parameters(family):
    data = make_site_counts(
        20, 24, 3, observed=60_000, family=family, intercept=0.5, home_range=5.0, random_state=0
    )
    sites, months, counts = cells_of(data)
    means = MEANS[family](natural_parameters(data))
    variances = VARIANCES[family](means)
    # Squares of standardised residuals: their mean is 1, their variance 2 plus the excess kurtosis,
    # which is 1/mean for Poisson counts and at most 1/variance for Bernoulli ones.
    standardised = (counts - means[sites, months]) / np.sqrt(variances[sites, months])
    kurtosis = 0 if family == "gaussian" else np.mean(1 / variances[sites, months])
    error = np.sqrt((2 + kurtosis) / len(counts))
    assert_allclose(np.mean(standardised**2), 1, atol=4.5 * error)
    # Means by site and by month see an effect that is left out or added twice.
    for labels in (sites, months, sites % 5 * 12 + months % 12):
        n_rows = np.bincount(labels)
        sums = np.bincount(labels, weights=standardised)
        assert np.max(np.abs(sums / np.sqrt(n_rows))) < 4.5


@pytest.mark.parametrize("family", MEANS)
@pytest.mark.parametrize("rank", [0, 1, 2, 3, 5])
def test_parameters_are_low_rank_and_centred(family, rank):
    data = make_site_counts(30, 25, 2, rank=rank, family=family, interaction=0.4, random_state=0)
    assert data.row_factors.shape == (30, rank)
    assert data.column_factors.shape == (25, rank)
    for centred in (data.row_effects, data.column_effects, data.row_factors, data.column_factors):
        assert_allclose(centred.mean(axis=0), 0, atol=1e-12)
    squares = data.column_factors.T @ data.column_factors
    assert_allclose(squares, 25 * np.eye(rank), atol=1e-10)
    interaction = data.row_factors @ data.column_factors.T
    assert np.linalg.matrix_rank(interaction) == rank
    if rank:
        assert_allclose(np.sqrt(np.mean(interaction**2)), 0.4)
    assert_allclose(data.trend, MEANS[family](natural_parameters(data)).sum(axis=0))


def test_season_and_trend():
    data = make_site_counts(
        5, 36, 1, intercept=2.0, seasonality=0.7, trend=-0.3, site_deviation=0.0, rank=0
    )
    assert data.intercept == 2.0
    assert_array_equal(data.row_effects, 0)
    # From a year to the next, the same month of the year loses 0.3.
    assert_allclose(np.diff(data.column_effects[::12]), -0.3)
    deviations = data.column_effects + 0.3 * np.arange(36) / 12
    assert_allclose(deviations[:12], deviations[12:24])
    assert np.argmax(deviations[:12]) == 5  # June
    assert_allclose(np.ptp(deviations), 2 * 0.7)


def test_interaction_has_local_trends_and_seasons_first():
    data = make_site_counts(10, 48, 1, rank=4, random_state=0)
    months = np.arange(48)
    angles = 2 * np.pi * months / 12
    curves = np.column_stack([months, np.cos(angles), np.sin(angles)])
    curves = curves - curves.mean(axis=0)
    for k in range(1, 4):
        coefficients, *_ = np.linalg.lstsq(data.column_factors[:, :k], curves[:, k - 1], rcond=None)
        assert_allclose(data.column_factors[:, :k] @ coefficients, curves[:, k - 1], atol=1e-10)


def test_number_of_observations():
    for observed, expected in [(500, 500), (0.25, 300), (2.0, 2400), (1e-9, 1), (np.int64(7), 7)]:
        data = make_site_counts(40, 30, 1, observed=observed, random_state=0)
        assert sum(map(len, data.clients)) == expected


def test_cells_may_be_visited_several_times():
    data = make_site_counts(50, 24, 4, observed=2000, effort_tail=1.0, random_state=0)
    visitors = {}
    for cells, observers in zip(data.clients, data.observers, strict=True):
        for (site, month, _), observer in zip(cells, observers, strict=True):
            visitors.setdefault((site, month), []).append(observer)
    assert max(len(set(who)) for who in visitors.values()) > 1
    assert any(len(who) > len(set(who)) for who in visitors.values())
    assert len(visitors) < 50 * 24  # and others never


def test_an_observer_belongs_to_one_client():
    for grouping in ("random", "region"):
        data = make_site_counts(
            60, 24, 6, observed=4000, n_observers=100, grouping=grouping, random_state=0
        )
        members = [set(observers) for observers in data.observers]
        assert sorted(map(len, members)) == [16, 16, 17, 17, 17, 17]
        assert set.union(*members) == set(range(100))
        assert data.homes.shape == (100,)


@pytest.mark.parametrize("effort_tail", [1.5, 3.0])
def test_efforts_have_a_pareto_tail(effort_tail):
    data = make_site_counts(
        100,
        24,
        1,
        observed=1_000_000,
        n_observers=5000,
        effort_tail=effort_tail,
        random_state=0,
    )
    n_visits = np.bincount(data.observers[0])
    # Logarithms of efforts are exponential with mean 1/effort_tail. Its quantile p is estimated
    # with variance p/(1 - p)/n times the square of the mean: 10/n at most for 0.9 and 0.5 together.
    spread = np.log(np.quantile(n_visits, 0.9) / np.quantile(n_visits, 0.5))
    error = np.sqrt(10 / 5000) / effort_tail
    assert_allclose(spread, np.log(5) / effort_tail, atol=4.5 * error)


def test_extreme_efforts():
    options = dict(observed=10_000, n_observers=1000, random_state=0)
    n_visits = np.bincount(make_site_counts(100, 24, 1, effort_tail=1e9, **options).observers[0])
    # One each, and a multinomial share of 9,000 with variance 9.
    assert_allclose(n_visits, 10, atol=6 * 3)
    n_visits = np.bincount(make_site_counts(100, 24, 1, effort_tail=1e-3, **options).observers[0])
    assert sorted(n_visits)[-2:] == [1, 9001]


def test_distances_from_home_have_a_laplace_distribution():
    data = make_site_counts(1000, 12, 3, observed=20_000, home_range=8.0, random_state=0)
    sites = cells_of(data)[0]
    homes = data.homes[np.concatenate(data.observers)]
    distances = np.abs((sites - homes + 500) % 1000 - 500)
    # |Laplace(8)| has mean and deviation 8; rounding moves the mean by 1/(24 * 8) at most.
    assert_allclose(distances.mean(), 8, atol=4.5 * 8 / np.sqrt(20_000) + 0.01)
    at_home = make_site_counts(1000, 12, 3, observed=500, home_range=0.0, random_state=0)
    assert_array_equal(cells_of(at_home)[0], at_home.homes[np.concatenate(at_home.observers)])
    anywhere = make_site_counts(1000, 12, 3, observed=500, home_range=1e300, random_state=0)
    assert cells_of(anywhere)[0].max() < 1000


def test_effort_grows_by_its_rate_every_year():
    options = dict(n_months=36, n_clients=1, observed=40_000, random_state=0)
    n_visits = np.bincount(cells_of(make_site_counts(50, effort_growth=0.5, **options))[1])
    years = n_visits.reshape(3, 12).sum(axis=1)
    # Of 40,000, the first year gets 1/(1 + e^0.5 + e) or 7,450. A count's logarithm has a deviation
    # of at most 1/sqrt(7,000).
    assert years.min() > 7000
    assert_allclose(np.diff(np.log(years)), 0.5, atol=4.5 * np.sqrt(2 / 7000))
    n_visits = np.bincount(cells_of(make_site_counts(50, effort_growth=0.0, **options))[1])
    assert_allclose(n_visits / 40_000, 1 / 36, atol=4.5 * np.sqrt(1 / 36 / 40_000))
    data = make_site_counts(50, effort_growth=1e5, **options)  # all in the last month
    assert_array_equal(cells_of(data)[1], 35)


def test_regions_see_different_sites():
    def mean_overlap(grouping):
        data = make_site_counts(400, 24, 4, observed=6000, grouping=grouping, random_state=0)
        held = [set(cells[:, 0]) for cells in data.clients]
        pairs = [(a, b) for k, a in enumerate(held) for b in held[k + 1 :]]
        return np.mean([len(a & b) / len(a | b) for a, b in pairs])

    assert mean_overlap("region") < 0.2
    assert mean_overlap("random") > 0.5


def test_seeds_reproduce():
    options = dict(n_sites=50, n_months=24, observed=600)
    first, again, other = (make_site_counts(**options, random_state=k) for k in (0, 0, 1))
    for name in ("clients", "observers"):
        for one, two in zip(first[name], again[name], strict=True):
            assert_array_equal(one, two)
    for name in ("row_effects", "row_factors", "column_factors", "trend", "homes"):
        assert_array_equal(first[name], again[name])
    assert not np.array_equal(first.row_effects, other.row_effects)


def test_observations_are_drawn_in_blocks_that_leave_no_gap():
    n_samples = 2**18 + 3
    data = make_site_counts(1000, 24, 2, observed=n_samples, seasonality=3.0, random_state=0)
    sites, months, counts = cells_of(data)
    assert len(counts) == n_samples
    # Three rows of zeros, or of another site's counts, would be left at the end.
    assert_array_equal(counts, np.round(counts))
    distances = np.abs((sites - data.homes[np.concatenate(data.observers)] + 500) % 1000 - 500)
    assert distances[-3:].max() < 10 * np.log(2e3)
    assert months[-1000:].max() == 23


def test_memory_follows_the_observations():
    options = dict(n_sites=50_000, n_months=240, observed=50_000, random_state=0)
    make_site_counts(100, 24)  # imports and caches
    # Sites by months in float64 would be 96 MB.
    assert peak_memory(make_site_counts, **options) < 50_000 * 240 * 8 / 5


@pytest.mark.parametrize("n_months", [1, 2, 3, 4])
@pytest.mark.parametrize("n_sites", [1, 2, 3])
def test_smallest_sizes(n_sites, n_months):
    rank = min(n_sites, n_months) - 1
    data = make_site_counts(n_sites, n_months, 1, observed=5, rank=rank, random_state=0)
    theta = natural_parameters(data)
    assert theta.shape == (n_sites, n_months)
    assert np.all(np.isfinite(theta))
    interaction = data.row_factors @ data.column_factors.T
    assert np.linalg.matrix_rank(interaction, tol=1e-8) == rank
    assert sum(map(len, data.clients)) == 5


def test_sizes_may_be_small_numpy_integers():
    sizes = np.array([300, 200, 10], dtype=np.int16)
    data = make_site_counts(*sizes, observed=0.1, random_state=0)
    expected = make_site_counts(300, 200, 10, observed=0.1, random_state=0)
    assert sum(map(len, data.clients)) == 6000
    assert_array_equal(np.concatenate(data.clients), np.concatenate(expected.clients))


@pytest.mark.parametrize("kind", [Fraction, np.longdouble, np.float32])
@pytest.mark.parametrize("family", ["poisson", "gaussian"])
def test_parameters_are_any_numbers(kind, family):
    names = ["intercept", "site_deviation", "seasonality", "trend", "interaction"]
    names += ["home_range", "effort_tail", "effort_growth", "observed"]
    sizes = {"n_sites": 9, "n_months": 6, "n_clients": 2, "family": family, "random_state": 0}
    want = make_site_counts(**sizes, **dict.fromkeys(names, 0.5))
    got = make_site_counts(**sizes, **dict.fromkeys(names, kind(0.5)))
    for name, value in want.items():
        ours = got[name]
        if name not in ("clients", "observers"):  # which have arrays of unlike lengths
            ours, value = [np.asarray(ours)], [np.asarray(value)]
        for one, other in zip(ours, value, strict=True):
            assert one.dtype == other.dtype
            assert_array_equal(one, other)


def test_limits_of_observers():
    everywhere = make_site_counts(home_range=1e308, random_state=0)
    assert len(np.unique(cells_of(everywhere)[0])) > 100
    one_does_all = make_site_counts(effort_tail=1e-310, random_state=0)
    *others, most = sorted(map(len, one_does_all.clients))
    assert len(set(others)) == 1 and most > sum(others)


def test_large_parameters_of_presences_do_not_overflow():
    data = make_site_counts(10, 12, 1, family="bernoulli", intercept=1e4, random_state=0)
    assert_array_equal(cells_of(data)[2], 1)
    assert_allclose(data.trend, 10)
    data = make_site_counts(10, 12, 1, family="bernoulli", intercept=-1e4, random_state=0)
    assert_array_equal(cells_of(data)[2], 0)


@pytest.mark.skipif(np.iinfo("l").max < 2**53, reason="NumPy draws Poisson numbers as C's long")
def test_the_largest_poisson_mean():
    level = dict(site_deviation=0, seasonality=0, trend=0, rank=0, random_state=0)
    largest = 53 * np.log(2)
    data = make_site_counts(3, 2, 1, observed=6, intercept=largest - 1e-9, **level)
    assert_allclose(data.trend, 3 * 2.0**53, rtol=2e-9)
    with pytest.raises(ValueError, match=r"means up to 2\*\*53"):
        make_site_counts(3, 2, 1, observed=6, intercept=largest + 1e-9, **level)


@pytest.mark.parametrize(
    "kwargs, error, message",
    [
        (dict(n_sites=0), ValueError, "n_sites .*>= 1, got 0"),
        (dict(n_months=2.0), TypeError, "n_months .*integer"),
        (dict(n_clients=0), ValueError, "Expected n_clients to be an integer >= 1, got 0"),
        (dict(rank=60), ValueError, "rank .*<= 59, got 60"),
        (dict(rank=-1), ValueError, "Expected rank to be an integer >= 0 and <= 59, got -1"),
        (dict(family="binomial"), ValueError, "'negative_binomial', got 'binomial'"),
        (dict(grouping="county"), ValueError, "'random', 'region', got 'county'"),
        (dict(observed=0), ValueError, "Expected observed to be an integer >= 1, got 0"),
        (dict(observed=0.0), ValueError, "observed .*> 0, got 0.0.*observations per cell"),
        (dict(observed=np.inf), ValueError, "Expected observed to be a finite number > 0, got inf"),
        (dict(observed="all"), TypeError, "Expected observed to be a number > 0, got 'all'"),
        (dict(observed=True), TypeError, "Expected observed to be an integer >= 1, got True"),
        (dict(intercept=np.nan), ValueError, "Expected intercept to be a finite number, got nan"),
        (dict(site_deviation=-1.0), ValueError, "site_deviation to be a number >= 0, got -1.0"),
        (dict(seasonality=-1.0), ValueError, "Expected seasonality to be a number >= 0, got -1.0"),
        (dict(interaction=-1.0), ValueError, "Expected interaction to be a number >= 0, got -1.0"),
        (dict(trend=np.inf), ValueError, "Expected trend to be a finite number, got inf"),
        (dict(effort_growth=np.nan), ValueError, "effort_growth to be a finite number, got nan"),
        (dict(effort_tail=0.0), ValueError, "effort_tail .*> 0"),
        (dict(client_deviation=-1.0), ValueError, "client_deviation to be a number >= 0, got -1.0"),
        (dict(home_range=-1.0), ValueError, "Expected home_range to be a number >= 0, got -1.0"),
        (dict(n_observers=9), ValueError, "got 10, 9 and 1800"),
        (dict(n_observers=1801), ValueError, "got 10, 1801 and 1800. Lower"),
        (dict(observed=9), ValueError, "got 10, 10 and 9"),
        (dict(observed=1), ValueError, "got 10, 10 and 1. Lower"),
        (dict(intercept=100.0), ValueError, r"up to 2\*\*53, got exp\(1\d\d.*Lower intercept"),
        (dict(intercept=1e6), ValueError, r"got exp\(1e\+06\) in month 0"),
    ],
)
def test_bad_parameters(kwargs, error, message):
    with pytest.raises(error, match=message):
        make_site_counts(**kwargs, random_state=0)


def test_offsets_are_added_to_theta():
    settings = dict(n_sites=40, n_months=24, observed=20_000, n_clients=2, random_state=0)
    data = make_site_counts(**settings, offset_deviation=0.8)
    offset = np.concatenate(data.offset)
    assert [len(own) for own in data.offset] == [len(own) for own in data.clients]
    np.testing.assert_allclose(offset.std(), 0.8, rtol=0.03)
    sites, months, counts = np.concatenate(data.clients).T
    sites, months = sites.astype(int), months.astype(int)
    theta = data.intercept + data.row_effects[sites] + data.column_effects[months] + offset
    theta += (data.row_factors[sites] * data.column_factors[months]).sum(axis=1)
    pearson = (counts - np.exp(theta)) / np.exp(theta / 2)
    assert abs(np.mean(pearson**2) - 1) < 0.05  # 20,000 squares of variance 2 + 1 / mean
    assert "offset" not in make_site_counts(**settings)


def test_clients_have_effects():
    settings = dict(n_clients=4, observed=40_000, interaction=0.0, random_state=0)
    data = make_site_counts(**settings, client_deviation=0.8)
    assert abs(data.client_effects.mean()) < 1e-12
    for cells, effect in zip(data.clients, data.client_effects, strict=True):
        sites, months = cells[:, :2].astype(int).T
        theta = data.intercept + data.row_effects[sites] + data.column_effects[months] + effect
        # Of 10,000 counts, sums are known to a few standard deviations of their root.
        expected = np.exp(theta).sum()
        assert abs(cells[:, 2].sum() - expected) < 5 * np.sqrt(expected)
    assert "client_effects" not in make_site_counts(**settings)
