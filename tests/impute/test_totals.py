"""Totals with standard errors, against TRIM's and against dense matrices."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from numpy.testing import assert_allclose

from skfedem import FederatedMatrixImputer
from skfedem.datasets import read_counts

DATA = Path(os.environ.get("SKFEDEM_DATA", Path(__file__).parents[3] / "shared" / "data"))
NAN = np.nan
EFFECTS = dict(rank=0, family="poisson", effects_penalty=0, random_state=0)
RUNS = {"1a": (False, False), "1b": (True, False), "1c": (True, True)}
COLUMNS = {
    "index_model": "model",
    "index_model_se": "model_error",
    "index_imputed": "imputed",
    "index_imputed_se": "imputed_error",
}


@pytest.fixture(scope="module", params=["pooled", "5 clients"])
def skylarks(request):
    if not (DATA / "skylark_trim.csv").exists():
        pytest.skip("the counts of skylarks are not here")
    names = ["site", "time", "count", "habitat", "covariate"]
    table = pd.read_csv(DATA / "skylark.dat", sep=r"\s+", header=None, names=names)
    table = table.replace({"count": {999: NAN}}).assign(client=table["site"] % 5)
    observer, noise = None, {}
    if request.param == "5 clients":
        observer, noise = "client", dict(omega=1.0, participation=0.75)
    counts = read_counts(table, site="site", time="time", count="count", observer=observer)
    shape = (counts.sites, counts.times)
    return FederatedMatrixImputer(**EFFECTS, **noise).fit(counts.clients, shape=shape), counts


@pytest.mark.parametrize("run", RUNS)
def test_skylarks_are_those_of_trim(skylarks, run):
    imputer, counts = skylarks
    overdispersion, serial_correlation = RUNS[run]
    totals = imputer.totals(
        counts.clients, overdispersion=overdispersion, serial_correlation=serial_correlation
    )
    expected = pd.read_csv(DATA / "skylark_trim.csv").query("run == @run")
    table, index, trend = totals.table, totals.index(), totals.trend()
    for theirs, ours in COLUMNS.items():
        # Printed with four digits.
        assert_allclose(index[ours], expected[theirs], atol=6e-5)
        total = theirs.replace("index", "total")
        assert_allclose(table[ours], expected[total], atol=0.51)
    if overdispersion:
        assert_allclose(totals.dispersion, expected["overdispersion"].iloc[0], atol=6e-4)
    if serial_correlation:
        assert_allclose(
            totals.serial_correlation, expected["serial_correlation"].iloc[0], atol=6e-4
        )
    for ours, theirs in (
        (trend.slope, "slope_additive"),
        (trend.slope_error, "slope_additive_se"),
        (trend.multiplicative, "slope_multiplicative"),
        (trend.multiplicative_error, "slope_multiplicative_se"),
    ):
        assert_allclose(ours, expected[theirs].iloc[0], atol=6e-5)
    assert trend.meaning == "moderate increase"


def test_fits_have_the_dispersion_of_trim(skylarks):
    imputer, counts = skylarks
    assert imputer.dispersion_ == pytest.approx(1.344, abs=6e-4)
    # Of residuals of the maximum likelihood fit, not of the estimating equations.
    totals = imputer.totals(counts.clients)
    assert imputer.serial_correlation_ == pytest.approx(totals.serial_correlation, abs=0.05)


def simulated(seed=0, n_rows=15, n_columns=7, family="poisson"):
    generator = np.random.default_rng(seed)
    natural = 1.5 * (family != "bernoulli") + 0.5 * generator.normal(size=(n_rows, 1))
    natural = natural + 0.4 * generator.normal(size=n_columns)
    values = {
        "poisson": lambda: generator.poisson(np.exp(natural)),
        "gaussian": lambda: 1e3 + generator.normal(natural),
        "bernoulli": lambda: generator.random(natural.shape) < 1 / (1 + np.exp(-natural)),
    }[family]().astype(float)
    values[generator.random(values.shape) < 0.3] = NAN
    return values


MEANS = {"poisson": np.exp, "gaussian": lambda x: x, "bernoulli": lambda x: 1 / (1 + np.exp(-x))}
VARIANCES = {
    "poisson": lambda mean: mean,
    "gaussian": np.ones_like,
    "bernoulli": lambda mean: mean * (1 - mean),
}


def solved_densely(values, counts, family):
    """Totals with dense matrices: each row's V is inverted, sums are formed cell by cell.

    ``values`` are means of ``counts`` observations.
    """
    (n_rows, n_columns), seen = values.shape, counts > 0
    effects = np.zeros(n_rows + n_columns - 1)
    design = np.zeros((n_rows, n_columns, len(effects)))
    for j in range(n_rows):
        design[j, :, j] = 1
        design[j, 1:, n_rows:] = np.eye(n_columns - 1)
    lags = np.abs(np.subtract.outer(np.arange(n_columns), np.arange(n_columns)))
    effects[:n_rows] = {"gaussian": 1e3}.get(family, 0.0)
    for _ in range(100):
        mean = MEANS[family](design @ effects)
        variance = VARIANCES[family](mean)
        pearson = np.where(seen, np.sqrt(counts / variance) * (values - mean), 0)
        dispersion = (pearson**2).sum() / (seen.sum() - len(effects))
        pairs = seen[:, 1:] & seen[:, :-1]
        correlation = (pearson[:, 1:] * pearson[:, :-1])[pairs].mean() / dispersion
        score, information = np.zeros(len(effects)), np.zeros((len(effects),) * 2)
        noise = np.zeros((n_rows, n_columns, n_columns))
        for j in range(n_rows):
            own = np.flatnonzero(seen[j])
            root = np.sqrt(variance[j, own] / counts[j, own])
            covariance = dispersion * np.outer(root, root) * correlation ** lags[np.ix_(own, own)]
            noise[j][np.ix_(own, own)] = covariance
            slopes = variance[j, own, None] * design[j, own]
            weighted = slopes.T @ np.linalg.inv(covariance)
            score += weighted @ (values[j, own] - mean[j, own])
            information += weighted @ slopes
        effects += np.linalg.solve(information, score)
    errors = np.linalg.inv(information)
    slopes = variance[..., None] * design
    of_all, of_seen = slopes.sum(axis=0), (slopes * seen[..., None]).sum(axis=0)
    return {
        "model": mean.sum(axis=0),
        "imputed": np.where(seen, values, mean).sum(axis=0),
        "model_covariance": of_all @ errors @ of_all.T,
        "imputed_covariance": noise.sum(axis=0)
        + of_all @ errors @ of_all.T
        - of_seen @ errors @ of_seen.T,
        "dispersion": dispersion,
        "serial_correlation": correlation,
    }


def assert_same(totals, expected):
    for name, value in expected.items():
        assert_allclose(getattr(totals, name), value, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("family", MEANS)
def test_totals_are_those_of_dense_matrices(family):
    # Some cells are observed twice, by two observers.
    both = np.stack([simulated(seed, family=family) for seed in (4, 5)])
    both[1, :8] = NAN
    counts = (~np.isnan(both)).sum(axis=0)
    values = np.nansum(both, axis=0) / np.maximum(counts, 1)
    imputer = FederatedMatrixImputer(**{**EFFECTS, "family": family}).fit([both])
    expected = solved_densely(values, counts, family)
    # One client that has both observers' means of cells.
    assert_same(imputer.totals([both]), expected)


@pytest.mark.parametrize("rows", ["shared", "disjoint"])
def test_totals_do_not_depend_on_how_rows_are_divided(rows):
    values = simulated()
    alone = FederatedMatrixImputer(**EFFECTS).fit(values).totals(values)
    clients = [values[:4], values[4:9], values[9:]]
    if rows == "shared":
        owners = np.repeat([0, 1, 2], [4, 5, 6])[:, None]
        clients = [np.where(owners == k, values, NAN) for k in range(3)]
    imputer = FederatedMatrixImputer(**EFFECTS, rows=rows).fit(clients)
    divided = imputer.totals(clients)
    expected = solved_densely(np.nan_to_num(values), ~np.isnan(values), "poisson")
    assert_same(alone, expected)
    assert_same(divided, expected)
    labels = np.repeat(["a", "b", "c"], [4, 5, 6])
    labelled = FederatedMatrixImputer(**EFFECTS).fit(values, clients=labels)
    assert_same(labelled.totals(values, clients=labels), expected)


def test_groups_of_rows_sum_to_all():
    values = simulated()
    imputer = FederatedMatrixImputer(**EFFECTS).fit(values)
    habitat = np.where(np.arange(15) % 3 == 0, "heath", "dunes")
    groups = imputer.totals(values, groups=habitat)
    with pytest.raises(ValueError, match="Expected groups to hold one label for each of the 15"):
        imputer.totals(values, groups=habitat[1:])
    whole = imputer.totals(values)
    assert list(groups) == ["dunes", "heath"]
    assert_allclose(groups["dunes"].imputed + groups["heath"].imputed, whole.imputed)
    (heath,) = np.nonzero(habitat == "heath")
    some = imputer.totals(values, rows=heath, columns=[2, -1])
    assert_allclose(some.imputed, groups["heath"].imputed[[2, -1]])
    assert_allclose(
        some.imputed_covariance, groups["heath"].imputed_covariance[[2, -1]][:, [2, -1]]
    )
    assert some.table["column"].tolist() == [2, 6]
    assert_allclose(groups["heath"].row_shares.sum(), 1)
    assert_allclose(groups["heath"].row_shares[habitat == "dunes"], 0)


def test_rows_and_columns_of_zeros_add_nothing():
    values = simulated()
    expected = FederatedMatrixImputer(**EFFECTS).fit(values).totals(values)
    empty = np.full((2, 7), NAN)
    empty[0, 3] = 0.0  # once without birds; the other site was never visited
    padded = np.concatenate([values, empty])
    totals = FederatedMatrixImputer(**EFFECTS).fit(padded).totals(padded)
    assert_allclose(totals.imputed, expected.imputed)
    assert_allclose(totals.imputed_covariance, expected.imputed_covariance)
    assert totals.dispersion == pytest.approx(expected.dispersion)
    padded = np.concatenate([values, np.full((15, 1), 0.0)], axis=1)
    totals = FederatedMatrixImputer(**EFFECTS).fit(padded).totals(padded)
    assert_allclose(totals.imputed, [*expected.imputed, 0])
    assert_allclose(totals.imputed_covariance[:-1, :-1], expected.imputed_covariance)


def test_presences_everywhere_are_counted():
    values = simulated(4, family="bernoulli")
    settings = {**EFFECTS, "family": "bernoulli"}
    expected = FederatedMatrixImputer(**settings).fit(values).totals(values)
    padded = np.concatenate([values, [[1, 1, 1, 1, NAN, NAN, 1]], [[0, NAN, 0, 0, 0, 0, 0]]])
    totals = FederatedMatrixImputer(**settings).fit(padded).totals(padded)
    assert_allclose(totals.imputed, expected.imputed + 1)
    assert_allclose(totals.imputed_covariance, expected.imputed_covariance)


def test_a_column_without_observations_is_nan():
    values = simulated(n_rows=40)
    values[:, 5] = NAN
    imputer = FederatedMatrixImputer(**EFFECTS).fit(values)
    totals = imputer.totals(values)
    assert np.flatnonzero(np.isnan(totals.imputed)).tolist() == [5]
    assert np.flatnonzero(np.isnan(totals.table["imputed_error"])).tolist() == [5]
    # It is left out of what follows.
    known = imputer.totals(values, columns=[0, 1, 2, 3, 4, 6])
    assert_allclose(totals.index()["imputed_error"].dropna(), known.index()["imputed_error"])
    times = np.array([0.0, 1, 2, 3, 4, 6])
    slope = np.polyfit(times, np.log(known.imputed), 1)[0]
    assert_allclose(totals.trend().slope, slope)
    assert totals.trend().slope_error > 0
    with pytest.raises(ValueError, match="positive total in column 5 for an index, got nan"):
        totals.index(base=5)


def test_tables_have_names_and_limits():
    frame = pd.DataFrame(simulated(), columns=pd.period_range("2000", periods=7, freq="Y"))
    totals = FederatedMatrixImputer(**EFFECTS).fit(frame).totals(frame, interval=0.8)
    table = totals.table
    assert table["column"].astype(str).tolist() == [str(year) for year in range(2000, 2007)]
    assert (
        (table["imputed_low"] < table["imputed"]) & (table["imputed"] < table["imputed_high"])
    ).all()
    for base in ("2006", pd.Period("2006")):
        index = totals.index(base=base)
        assert index["imputed"].iloc[-1] == 1
    with pytest.raises(ValueError, match="a column, from 2000 to 2006, got 2007"):
        totals.index(base=2007)
    assert index["imputed_error"].iloc[-1] == pytest.approx(0, abs=1e-9)
    assert totals.trend("model").multiplicative != totals.trend().multiplicative
    with pytest.raises(ValueError, match="kind to be one of .*Did you mean 'imputed'"):
        totals.trend("imputed_")


def test_months_may_be_text():
    periods = pd.period_range("2000-01", periods=7, freq="M")
    frames = [pd.DataFrame(simulated(), columns=own) for own in (periods, periods.astype(str))]
    dates, text = (FederatedMatrixImputer(**EFFECTS).fit(own).totals(own).trend() for own in frames)
    assert text == dates
    frame = pd.DataFrame(simulated())
    monthly = FederatedMatrixImputer(**EFFECTS).fit(frame).totals(frame).trend()
    assert_allclose(dates.slope, 12 * monthly.slope, rtol=0.02)  # months differ in length


def test_columns_in_another_order_have_the_same_trend():
    values = simulated()
    years = np.array([1990, 1991, 1993, 1996, 2000, 2001, 2002])
    frame = pd.DataFrame(values, columns=years)
    imputer = FederatedMatrixImputer(**EFFECTS).fit(frame)
    for order in ([6, 5, 4, 3, 2, 1, 0], [0, 2, 1, 3, 4, 6, 5]):
        trend = imputer.totals(frame, columns=order).trend()
        assert_allclose(trend[:2], imputer.totals(frame).trend()[:2])


def test_labels_of_groups_are_those_of_the_rows():
    values = pd.DataFrame(simulated(), index=[f"site{k}" for k in range(len(simulated()))])
    imputer = FederatedMatrixImputer(**EFFECTS).fit(values)
    groups = pd.Series(np.arange(len(values)) % 2, values.index)
    assert imputer.totals(values, groups=groups).keys() == {0, 1}
    with pytest.raises(ValueError, match="row labels .*Reindex groups"):
        imputer.totals(values, groups=groups[::-1])


def test_totals_that_hang_on_a_single_cell_warn():
    values = simulated()
    values[0] = NAN
    values[0, 0] = 40
    imputer = FederatedMatrixImputer(**EFFECTS).fit(values)
    with pytest.warns(UserWarning, match="6 of 7 .* of row 0 .* from 1 observed cell"):
        totals = imputer.totals(values)
    assert totals.row_shares.argmax() == 0
    imputer.totals(values, rows=range(1, 15))  # does not warn


@pytest.mark.parametrize("family", MEANS)
@pytest.mark.parametrize("effects", ["both", "rows", "columns"])
def test_dispersion_is_that_of_pearson_residuals(family, effects):
    values = simulated(5, family=family) - 1e3 * (family == "gaussian")
    seen = ~np.isnan(values)
    imputer = FederatedMatrixImputer(rank=0, family=family, effects=effects)
    mean = imputer.fit(values).fitted_mean()
    residuals = np.where(seen, (values - mean) / np.sqrt(VARIANCES[family](mean)), 0)
    n_parameters = {"both": 21, "rows": 15, "columns": 7}[effects]
    dispersion = np.sum(residuals**2) / (seen.sum() - n_parameters)
    assert imputer.dispersion_ == pytest.approx(dispersion)
    pairs = seen[:, 1:] & seen[:, :-1]
    correlation = np.mean((residuals[:, 1:] * residuals[:, :-1])[pairs]) / dispersion
    assert imputer.serial_correlation_ == pytest.approx(correlation)


def test_counts_of_flocks_warn():
    values = simulated() * 10  # ten times the mean, a hundred times the variance
    with pytest.warns(UserWarning, match=r"dispersion of the counts is .* as large\. Leave totals"):
        imputer = FederatedMatrixImputer(**EFFECTS).fit(values)
    few = FederatedMatrixImputer(**EFFECTS).fit(simulated())
    assert imputer.dispersion_ == pytest.approx(10 * few.dispersion_, rel=1e-3)


def test_what_has_no_totals():
    values = simulated()
    low_rank = FederatedMatrixImputer(rank=1, family="poisson").fit(values)
    with pytest.raises(ValueError, match="got 1 factor. Give errors='parametric'.*rank=0"):
        low_rank.totals(values)
    columns = FederatedMatrixImputer(**{**EFFECTS, "effects": "columns"}).fit(values)
    with pytest.raises(ValueError, match="got effects='columns'.* or fit with effects='both'"):
        columns.totals(values)
    imputer = FederatedMatrixImputer(**EFFECTS).fit(values)
    with pytest.raises(ValueError, match=r"data of the fit, a matrix of shape \(15, 7\)"):
        imputer.totals(values[1:])
    for other in (values + 1, values[::-1], np.where(values == np.nanmax(values), 50, values)):
        for errors in ("equations", "parametric"):
            with pytest.raises(ValueError, match="data of the fit, got .* other values"):
                imputer.totals(other, errors=errors)
    with pytest.raises(ValueError, match="interval .* < 1"):
        imputer.totals(values, interval=95)
    parts = np.full((6, 4), NAN)
    parts[:3, :2], parts[3:, 2:] = 5, 7
    imputer = FederatedMatrixImputer(**EFFECTS).fit(parts)
    with pytest.raises(ValueError, match="got 2 parts without a common"):
        imputer.totals(parts)
    with pytest.raises(ValueError, match="than effects, of which there are 5, got 5"):
        FederatedMatrixImputer(**EFFECTS).fit(values[:1]).totals(values[:1])


HABITAT = np.array(["heath", "dunes", "farm"])[np.arange(15) % 3]


def test_groups_of_rows_have_own_equations(n_clients=3):
    values = simulated(n_rows=15)
    parts = np.array_split(np.arange(15), n_clients)
    clients = [np.where(np.isin(np.arange(15), own)[:, None], values, NAN) for own in parts]
    imputer = FederatedMatrixImputer(**EFFECTS).fit(clients, row_groups=HABITAT)
    plain = dict(overdispersion=False, serial_correlation=False)
    together = imputer.totals(clients, **plain)
    by_group = imputer.totals(clients, groups=HABITAT[::-1], **plain)  # across the row_groups
    model = imputed = covariance = model_covariance = 0
    for habitat in np.unique(HABITAT):
        own = values[habitat == HABITAT]
        alone = FederatedMatrixImputer(**EFFECTS).fit(own).totals(own, **plain)
        model, imputed = model + alone.model, imputed + alone.imputed
        covariance = covariance + alone.imputed_covariance
        model_covariance = model_covariance + alone.model_covariance
    assert_allclose(together.imputed, imputed, rtol=1e-8)
    assert_allclose(together.model, model, rtol=1e-8)
    assert_allclose(together.imputed_covariance, covariance, rtol=1e-7, atol=1e-9)
    assert_allclose(together.model_covariance, model_covariance, rtol=1e-7, atol=1e-9)
    assert_allclose(sum(own.imputed for own in by_group.values()), imputed, rtol=1e-8)


@pytest.mark.filterwarnings("ignore:.* totals hang on one missing cell")
def test_groups_of_rows_have_the_errors_of_a_regression():
    values = simulated(3, n_rows=15)
    imputer = FederatedMatrixImputer(**EFFECTS).fit(values, row_groups=HABITAT)
    totals = imputer.totals(values, serial_correlation=False)
    site, time = (own.ravel() for own in np.indices(values.shape))
    y, seen, group = values.ravel(), ~np.isnan(values.ravel()), site % 3
    by_group = [(group == own)[:, None] * np.eye(values.shape[1])[time][:, 1:] for own in range(3)]
    design = np.column_stack([np.eye(15)[site], *by_group])
    fit = sm.GLM(y[seen], design[seen], family=sm.families.Poisson()).fit(tol=1e-13, scale="X2")
    pearson, covariance, means = fit.scale, fit.cov_params(), fit.predict(design)
    assert_allclose(totals.dispersion, pearson, rtol=1e-6)
    assert_allclose(totals.model, np.bincount(time, means), rtol=1e-6)
    slopes = np.stack([(means * (time == k)) @ design for k in range(values.shape[1])])
    assert_allclose(totals.model_covariance, slopes @ covariance @ slopes.T, rtol=1e-5)


def test_index_and_trend_with_groups_and_effort():
    values = simulated(n_rows=15)
    log_effort = np.random.default_rng(0).normal(0, 0.3, values.shape)
    for effort in (None, log_effort):
        imputer = FederatedMatrixImputer(**EFFECTS).fit(values, offset=effort, row_groups=HABITAT)
        totals = imputer.totals(values, offset=effort)
        assert_allclose(totals.model, imputer.fitted_mean().sum(axis=0), rtol=0.05)
        assert np.isfinite(totals.trend().slope_error)
        assert totals.index()["model_error"][1:].min() > 0


def test_groups_in_parts_are_refused():
    values = np.full((4, 4), 1.0)
    values[:1, 2:], values[1:2, :2] = NAN, NAN
    imputer = FederatedMatrixImputer(**EFFECTS).fit(values, row_groups=["a", "a", "b", "b"])
    with pytest.raises(ValueError, match="got 3 parts .* not the 2 groups of rows"):
        imputer.totals(values)


def counts_of_sites(n_rows=20):
    return np.random.default_rng(3).poisson(5.0, (n_rows, 6)).astype(float)


@pytest.mark.parametrize("errors", ["equations", "rows"])
def test_groups_without_an_observed_row_are_left_out(errors):
    counts = counts_of_sites()
    counts[[4, 5]] = np.nan
    groups = np.repeat(["a", "b", "c"], [4, 2, 14])
    imputer = FederatedMatrixImputer(0, family="poisson").fit(counts)
    options = {"errors": errors, "n_draws": 3, "random_state": 0}
    totals = imputer.totals(counts, groups=groups, **options)
    assert [*totals] == ["a", "c"]
    whole = imputer.totals(counts, **options)
    assert_allclose(sum(own.model for own in totals.values()), whole.model)
    assert [*imputer.totals(counts, groups=groups, rows=[0, 4, 7], **options)] == ["a", "c"]
    for rows in ([4], []):
        with pytest.raises(ValueError, match="rows with an observed cell to sum over, got none"):
            imputer.totals(counts, rows=rows, groups=groups, **options)


@pytest.mark.parametrize(("errors", "counts"), [("clients", 20), ("rows", 1)])
def test_nothing_is_drawn_from_one(errors, counts):
    counts = counts_of_sites(counts)
    imputer = FederatedMatrixImputer(0, family="poisson", effects="columns").fit(counts)
    with pytest.raises(ValueError, match=f"at least two {errors} with observations"):
        imputer.totals(counts, errors=errors, n_draws=3)


def test_a_group_of_rows_without_observations_in_a_column_is_named():
    counts = counts_of_sites()
    counts[0, 2] = np.nan
    imputer = FederatedMatrixImputer(0, family="poisson")
    imputer.fit(counts, row_groups=["meadow"] + ["wood"] * 19)
    with pytest.warns(UserWarning, match="Group 'meadow' of row_groups .* in column 2"):
        totals = imputer.totals(counts)
    assert np.isnan(totals.model).tolist() == [False, False, True, False, False, False]
    imputer.totals(counts, columns=[0, 1, 3])  # without a warning
