"""Covariates of rows and columns, and effects by groups of rows: against regressions."""

import re
from functools import cache

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from skfedem import FederatedMatrixImputer, FederatedMatrixImputerCV

J, L, N_CLIENTS = 12, 8, 3
FAMILIES = {
    "gaussian": sm.families.Gaussian(),
    "bernoulli": sm.families.Binomial(),
    "poisson": sm.families.Poisson(),
}
NOISY = dict(omega=1.0, participation=0.75, random_state=1)
YEARS, MONTHS = np.repeat(["a", "b"], L // 2), np.tile(["q", "r", "s", "t"], 2)
SEASONS = pd.DataFrame({"year": YEARS, "month": MONTHS})
HABITAT = np.array(["heath", "dunes", "farm"])[np.arange(J) % 3]
ALTITUDE = np.random.default_rng(5).uniform(0, 400, J)


def exact(rank=0, **settings):
    """Imputer with hardly any ridge, that converges to rounding."""
    settings = dict(effects_penalty=0.0, tol=1e-13, max_iter=3000, random_state=0) | settings
    return FederatedMatrixImputer(rank, **settings)


@cache
def tables(family="poisson"):
    """Clients' matrices with trends by habitat, seasons, and a gradient of altitude."""
    rng = np.random.default_rng(1)
    theta = 0.8 + 0.002 * ALTITUDE[:, None] + rng.normal(0, 0.4, (3, L))[np.arange(J) % 3]
    theta = theta - 1.0 * (family == "bernoulli")
    shape = (N_CLIENTS, J, L)
    X = {
        "gaussian": theta + rng.normal(size=shape),
        "bernoulli": (rng.random(shape) < 1 / (1 + np.exp(-theta))) * 1.0,
        "poisson": rng.poisson(np.exp(theta), shape) * 1.0,
    }[family]
    return list(np.where(rng.random(shape) < 0.7, X, np.nan))


def long_table(family="poisson"):
    X = np.stack(tables(family))
    client, site, time = np.nonzero(~np.isnan(X))
    named = dict(y=X[client, site, time], site=site, time=time, client=client)
    named |= dict(habitat=HABITAT[site], altitude=ALTITUDE[site])
    return pd.DataFrame(named | dict(year=YEARS[time], month=MONTHS[time]))


def regression(formula, family="poisson", habitats=slice(None)):
    """Fitted means of all cells, and the fit, of a regression of observations in some habitats."""
    table = long_table(family)
    table = table[table["habitat"].isin(np.atleast_1d(HABITAT[habitats]))]
    fit = smf.glm(formula, table, family=FAMILIES[family]).fit(tol=1e-13)
    site, time = np.divmod(np.arange(J * L), L)
    cells = pd.DataFrame(dict(site=site, time=time, habitat=HABITAT[site]))
    cells = cells.assign(altitude=ALTITUDE[site], year=YEARS[time], month=MONTHS[time])
    cells = cells[cells["habitat"].isin(np.atleast_1d(HABITAT[habitats]))]
    return fit.predict(cells).to_numpy().reshape(-1, L), fit


MODELS = {
    "season": ("C(site) + year + month", dict(effects="rows"), dict(column_covariates=SEASONS)),
    "groups": ("C(site) + C(time)", {}, dict(row_groups=HABITAT)),
    "season by groups": (
        "C(site) + year + month",
        dict(effects="rows"),
        dict(column_covariates=SEASONS, row_groups=HABITAT),
    ),
    "altitude": ("C(time) + altitude", dict(effects="columns"), dict(row_covariates=ALTITUDE)),
    "altitude and season": (
        "C(time) + altitude + habitat",
        dict(effects="columns"),
        dict(row_covariates=pd.DataFrame({"altitude": ALTITUDE, "habitat": HABITAT})),
    ),
}


@pytest.mark.parametrize("noise", [{}, NOISY], ids=["exact", "noisy"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("model", MODELS)
def test_regressions(model, family, noise):
    formula, settings, covariates = MODELS[model]
    means = np.empty((J, L))
    # With effects of sites, groups of rows are independent.
    for parts in range(3) if "row_groups" in covariates else [slice(None)]:
        rows = np.isin(HABITAT, HABITAT[parts])
        means[rows], _ = regression("y ~ " + formula, family, parts)
    imputer = exact(family=family, **settings | noise).fit(tables(family), **covariates)
    assert_allclose(imputer.fitted_mean(), means, rtol=1e-4, atol=1e-4)


def test_coefficients_are_per_unit():
    covariates = pd.DataFrame({"altitude": ALTITUDE, "habitat": HABITAT})
    _, fit = regression("y ~ C(time) + altitude + habitat")
    imputer = exact(family="poisson", effects="columns")
    imputer.fit(tables(), row_covariates=covariates)
    names = ["altitude", "habitat=farm", "habitat=heath"]
    assert imputer.row_covariate_names_.tolist() == names
    want = fit.params[["altitude", "habitat[T.farm]", "habitat[T.heath]"]]
    assert_allclose(imputer.row_coef_, want, rtol=1e-5)
    _, seasons = regression("y ~ C(site) + year + month")
    imputer = exact(family="poisson", effects="rows").fit(tables(), column_covariates=SEASONS)
    assert imputer.column_covariate_names_[0] == "year=b"
    assert_allclose(imputer.column_coef_[0], seasons.params["year[T.b]"], rtol=1e-5)


def test_attributes_add_up_to_theta():
    imputer = FederatedMatrixImputer(1, family="poisson", penalty=2.0)
    imputer.fit(
        tables(), row_covariates=ALTITUDE, column_covariates=np.arange(L), row_groups=HABITAT
    )
    groups = np.searchsorted(imputer.row_groups_, HABITAT)
    theta = imputer.intercept_ + imputer.row_effects_[:, None] + imputer.column_effects_
    theta += ((ALTITUDE - ALTITUDE.mean()) * imputer.row_coef_)[:, None]
    theta += imputer.column_coef_[groups] * (np.arange(L) - np.arange(L).mean())
    theta += imputer.group_effects_[groups]
    theta += imputer.row_factors_ * imputer.singular_values_ @ imputer.column_factors_.T
    assert_allclose(imputer.fitted_mean(), np.exp(theta), rtol=1e-12)
    assert_allclose(
        imputer.transform(tables())[0][np.isnan(tables()[0])],
        np.exp(theta)[np.isnan(tables()[0])],
        rtol=1e-12,
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_effects_solve_their_equations_beside_a_low_rank_part(family):
    imputer = FederatedMatrixImputer(2, family=family, penalty=1.5, effects_penalty=0.7)
    imputer.fit(tables(family), row_groups=HABITAT, row_covariates=ALTITUDE)
    X = np.stack(tables(family))
    residuals = np.where(np.isnan(X), 0.0, X - imputer.fitted_mean()).sum(axis=0)
    by_group = np.stack([residuals[own == HABITAT].sum(axis=0) for own in imputer.row_groups_])
    scale = np.nansum(np.abs(X))
    assert_allclose(by_group, 0.7 * imputer.group_effects_, atol=1e-6 * scale)
    assert_allclose(residuals.sum(axis=1), 0.7 * imputer.row_effects_, atol=1e-6 * scale)
    assert abs((ALTITUDE - ALTITUDE.mean()) @ residuals.sum(axis=1)) < 1e-5 * scale * 400


def test_noise_ends_where_exact_rounds_do():
    settings = dict(family="poisson", penalty=2.0, tol=1e-10, max_iter=5000)
    covariates = dict(row_groups=HABITAT, column_covariates=SEASONS, row_covariates=ALTITUDE)
    one = FederatedMatrixImputer(2, effects="rows", **settings).fit(tables(), **covariates)
    other = FederatedMatrixImputer(2, effects="rows", **settings | NOISY)
    other.fit(tables(), **covariates)
    assert_allclose(other.objective_, one.objective_, rtol=1e-5)


def test_the_objective_never_rises_and_the_start_is_the_optimum_of_the_effects():
    imputer = FederatedMatrixImputer(2, family="poisson", penalty=1.0)
    imputer.fit(tables(), row_groups=HABITAT, column_covariates=SEASONS)
    objective = imputer.history_["objective"]
    assert (np.diff(objective) <= 1e-9 * np.abs(objective[1:])).all()


def test_sums_by_group_are_counted_messages():
    without = FederatedMatrixImputer(1, penalty=1.0).fit(tables("gaussian"))
    imputer = clone(without).fit(tables("gaussian"), row_groups=HABITAT)
    new = [own for own in imputer.setup_messages_ if own not in without.setup_messages_]
    named = {own.name: own for own in new if own.name != "theta"}  # which has coefficients
    assert set(named) == {"group_sums"}
    assert named["group_sums"].downlink_bits == N_CLIENTS * J * 64  # the group of each row
    assert named["group_sums"].uplink_bits > 0
    season = clone(without).fit(tables("gaussian"), column_covariates=SEASONS)
    named, others = (
        [own for own in fit.setup_messages_ if own.name != "theta"] for fit in (season, without)
    )
    assert named == others  # the margins suffice


def test_category_codes_and_pandas_categories_are_indicators():
    settings = dict(family="poisson", effects="rows")
    text = exact(**settings).fit(tables(), column_covariates=SEASONS)
    categories = exact(**settings).fit(tables(), column_covariates=SEASONS.astype("category"))
    dummies = pd.get_dummies(SEASONS, drop_first=True)
    indicators = exact(**settings).fit(tables(), column_covariates=dummies)
    assert_array_equal(categories.column_coef_, text.column_coef_)
    assert_allclose(indicators.column_coef_, text.column_coef_, rtol=1e-10)


def test_constant_and_collinear_covariates():
    covariates = np.column_stack([ALTITUDE, 2 * ALTITUDE + 1, np.full(J, 7.0)])
    settings = dict(family="poisson", effects="columns")
    one = exact(**settings).fit(tables(), row_covariates=ALTITUDE)
    other = exact(**settings).fit(tables(), row_covariates=covariates)
    assert_allclose(other.fitted_mean(), one.fitted_mean(), rtol=1e-6)
    assert other.row_coef_[2] == 0


def test_rows_of_groups_without_observations():
    X = [table.copy() for table in tables()]
    for table in X:
        table[HABITAT == "farm", :3] = np.nan
    imputer = exact(family="poisson", effects_penalty=0.1).fit(X, row_groups=HABITAT)
    farm = imputer.row_groups_.tolist().index("farm")
    assert_allclose(imputer.group_effects_[farm, :3], 0, atol=1e-8)
    assert np.isfinite(imputer.fitted_mean()).all()


def test_column_covariates_are_known_of_new_rows():
    imputer = FederatedMatrixImputer(0, family="poisson", effects="rows", effects_penalty=1e-3)
    imputer.fit(tables(), column_covariates=SEASONS)
    new = np.full((1, L), np.nan)
    new[0, 0] = 40.0
    filled = imputer.transform(new)
    ratios = imputer.fitted_mean([0])[0] / imputer.fitted_mean([0])[0, 0]
    assert_allclose(filled[0, 1:], 40 * ratios[1:], rtol=1e-3)


def test_warm_starts_search_and_bootstrap_know_covariates():
    covariates = dict(row_groups=HABITAT, row_covariates=ALTITUDE, column_covariates=SEASONS)
    settings = dict(family="poisson", penalty=2.0)
    imputer = FederatedMatrixImputer(1, warm_start=True, **settings).fit(tables(), **covariates)
    objective = imputer.objective_
    assert imputer.fit(tables(), **covariates).objective_ <= objective * (1 + 1e-6)
    imputer.fit(tables())
    fresh = FederatedMatrixImputer(1, **settings).fit(tables())
    assert_allclose(imputer.objective_, fresh.objective_, rtol=1e-4)
    search = FederatedMatrixImputerCV(
        [1], 2, family="poisson", effects_penalties=[0.1], n_splits=2, random_state=0
    )
    search.fit(tables(), **covariates)
    assert len(search.best_estimator_.row_coef_) == 1
    imputer = FederatedMatrixImputer(1, **settings).fit(tables(), **covariates)
    totals = imputer.totals(tables(), errors="parametric", n_draws=3, random_state=0)
    assert_allclose(totals.model, imputer.fitted_mean().sum(axis=0))


def test_uninterrupted_runs_and_resumed_ones_are_equal(tmp_path):
    covariates = dict(row_groups=HABITAT, row_covariates=ALTITUDE)
    settings = dict(family="poisson", random_state=0, omega=1.0, tol=1e-12)
    path = tmp_path / "run"
    with pytest.warns(match="Not converged"):
        FederatedMatrixImputer(1, max_iter=5, checkpoint=path, **settings).fit(
            tables(), **covariates
        )
        resumed = FederatedMatrixImputer(1, max_iter=10, **settings).fit(
            tables(), **covariates, resume_from=path
        )
        whole = FederatedMatrixImputer(1, max_iter=10, **settings).fit(tables(), **covariates)
    assert_array_equal(resumed.fitted_mean(), whole.fitted_mean())
    assert_array_equal(resumed.row_coef_, whole.row_coef_)


BAD = [
    (dict(row_covariates=ALTITUDE[:-1]), "row_covariates with 12 rows"),
    (dict(column_covariates=np.full(L, np.nan)), "finite numbers in column_covariates"),
    (dict(row_groups=HABITAT[:-1]), "row_groups to hold one label for each of the 12 rows"),
    (dict(row_groups=HABITAT[:, None]), "row_groups to hold one label"),
    (dict(row_groups=12), "row_groups to hold one label"),
    (dict(row_groups=[*HABITAT[:-1], np.nan]), "no missing values in row_groups"),
]


@pytest.mark.parametrize(("covariates", "message"), BAD)
def test_bad_covariates(covariates, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        FederatedMatrixImputer(family="poisson").fit(tables(), **covariates)


def test_groups_may_be_numbers_but_not_mixed():
    numbers = np.unique(HABITAT, return_inverse=True)[1] + 0.5
    by_number, by_name = (
        FederatedMatrixImputer(0).fit(tables(), row_groups=own) for own in (numbers, HABITAT)
    )
    assert_array_equal(by_number.group_effects_, by_name.group_effects_)
    with pytest.raises(TypeError, match="row_groups to hold labels of one type .* got int, str"):
        FederatedMatrixImputer().fit(tables(), row_groups=[0, *HABITAT[1:].tolist()])
    with pytest.raises(TypeError, match="row_groups to hold one label .* got the string 'habitat'"):
        FederatedMatrixImputer().fit(tables(), row_groups="habitat")
    with pytest.warns(UserWarning, match="row_groups holds 12 different numbers for 12 rows"):
        FederatedMatrixImputer(0).fit(tables(), row_groups=ALTITUDE)


def test_covariates_need_effects():
    with pytest.raises(ValueError, match="effects='none'"):
        FederatedMatrixImputer(effects="none").fit(tables(), row_covariates=ALTITUDE)
    with pytest.raises(ValueError, match="column_covariates, or effects of columns"):
        FederatedMatrixImputer(effects="rows").fit(tables(), row_groups=HABITAT)


def test_other_rows_have_unknown_covariates():
    imputer = FederatedMatrixImputer(1, family="poisson").fit(tables(), row_covariates=ALTITUDE)
    with pytest.raises(ValueError, match="whose covariates are unknown"):
        imputer.transform(tables()[0])


def test_labels_of_covariates_are_those_of_the_matrix():
    sites = [f"s{j}" for j in range(J)]
    X = [pd.DataFrame(table, index=sites) for table in tables()]
    known = pd.DataFrame({"altitude": ALTITUDE}, index=sites[::-1])
    with pytest.raises(ValueError, match="row labels of the matrix"):
        FederatedMatrixImputer(family="poisson").fit(X, row_covariates=known)


def test_labels_of_series_are_those_of_the_matrix():
    X = pd.DataFrame(tables("gaussian")[0], [f"site {k}" for k in range(J)])
    for name, own in (("row_covariates", ALTITUDE), ("row_groups", HABITAT)):
        series = pd.Series(own, X.index)
        one, other = exact().fit(X, **{name: series}), exact().fit(X, **{name: own})
        assert_array_equal(one.fitted_mean(), other.fitted_mean())
        with pytest.raises(ValueError, match=f"row labels of the matrix.*Reindex {name}"):
            exact().fit(X, **{name: series[::-1]})


def test_numbers_among_objects_are_numbers():
    mixed = [[habitat, altitude] for habitat, altitude in zip(HABITAT, ALTITUDE, strict=True)]
    frame = pd.DataFrame({"x0": HABITAT, "x1": ALTITUDE})
    one, other = (exact().fit(tables(), row_covariates=own) for own in (mixed, frame))
    assert_array_equal(one.row_covariate_names_, other.row_covariate_names_)
    assert_array_equal(one.row_coef_, other.row_coef_)


def test_other_covariates_are_not_resumed(tmp_path):
    path = tmp_path / "run.npz"
    settings = dict(family="poisson", max_iter=3, checkpoint=path)
    with pytest.warns(UserWarning, match="Not converged"):
        FederatedMatrixImputer(1, **settings).fit(tables(), row_covariates=ALTITUDE)
    for other in (dict(row_covariates=-ALTITUDE), dict(row_groups=HABITAT), {}):
        with pytest.raises(ValueError, match="Expected"):
            FederatedMatrixImputer(1, **settings).fit(tables(), resume_from=path, **other)
