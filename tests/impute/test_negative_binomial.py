"""Negative binomial counts: against statsmodels, the Poisson limit, and where results use them."""

from functools import cache

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

from skfedem import FederatedMatrixImputer, FederatedMatrixImputerCV
from skfedem.datasets import make_site_counts

J, L, N_CLIENTS, NAN = 12, 8, 3, np.nan
SIZE = 2.0
NOISY = dict(omega=1.0, participation=0.75, random_state=0)
EXACT = dict(family="negative_binomial", tol=1e-12, max_iter=3000)
EFFECTS = dict(rank=0, effects_penalty=0.0, **EXACT)
LOW_RANK = dict(rank=None, penalty=2.0, negative_binomial_size=SIZE, **EXACT)


@cache
def tables():
    """Matrices of clients, who have some cells in common."""
    rng = np.random.default_rng(0)
    means = np.exp(1.5 + rng.normal(size=J)[:, None] + 0.5 * rng.normal(size=L))
    shape = (N_CLIENTS, J, L)
    counts = rng.poisson(rng.gamma(SIZE, means / SIZE, shape)).astype(float)
    counts[rng.random(shape) > 0.5] = NAN
    counts.setflags(write=False)
    return list(counts)


def regression(size):
    """Means, log-likelihood and size of a regression of all observations with dummies."""
    X = np.stack(tables())
    _, site, month = np.nonzero(~np.isnan(X))
    counts = X[~np.isnan(X)]
    design = np.column_stack([np.eye(J)[site], np.eye(L)[month][:, 1:]])
    if size is None:
        fit = sm.NegativeBinomial(counts, design).fit(disp=0, method="bfgs", maxiter=500, gtol=1e-8)
        size, parameters = 1 / fit.params[-1], fit.params[:-1]
    else:
        fit = sm.GLM(counts, design, family=sm.families.NegativeBinomial(alpha=1 / size)).fit(
            tol=1e-13
        )
        parameters = fit.params
    rows, columns = parameters[:J], np.append(0.0, parameters[J:])
    return np.exp(rows[:, None] + columns), fit.llf, size, len(counts)


@pytest.mark.parametrize("size", [SIZE, 0.3, None], ids=["size 2", "size 0.3", "estimated"])
@pytest.mark.parametrize("settings", [{}, NOISY], ids=["exact", "noisy"])
def test_effects_alone_are_a_regression(size, settings):
    given = "auto" if size is None else size
    imputer = FederatedMatrixImputer(negative_binomial_size=given, **EFFECTS, **settings)
    imputer.fit(tables())
    means, log_likelihood, size, n_observations = regression(size)
    assert_allclose(imputer.negative_binomial_size_, size, rtol=1e-5)  # the ridge is 1e-7
    assert_allclose(imputer.fitted_mean(), means, rtol=1e-4)
    assert_allclose(-imputer.objective_, log_likelihood, rtol=1e-8)
    assert_allclose(imputer.score(tables()), log_likelihood / n_observations, rtol=1e-8)


@cache
def low_rank_fit():
    return FederatedMatrixImputer(**LOW_RANK).fit(tables())


def slopes(imputer):
    """Sums over clients of ``(y - mean) / (1 + mean / size)`` in each cell."""
    X, means = np.stack(tables()), imputer.fitted_mean()
    return np.nansum((X - means) / (1 + means / SIZE), axis=0)


def test_low_rank_fit_is_optimal():
    # Subgradients of the nuclear norm: U Vᵀ plus a matrix orthogonal to both, of norm <= 1.
    imputer = low_rank_fit()
    left, right = imputer.row_factors_, imputer.column_factors_
    field = slopes(imputer) / LOW_RANK["penalty"]
    assert len(imputer.singular_values_) >= 2
    assert_allclose(left.T @ field, right.T, atol=1e-4)
    assert_allclose(field @ right, left, atol=1e-4)
    rest = field - left @ right.T
    assert np.linalg.norm(rest, 2) <= 1.0
    effects = 0.1 * imputer.row_effects_, 0.1 * imputer.column_effects_
    assert_allclose(slopes(imputer).sum(axis=1), effects[0], atol=1e-4)
    assert_allclose(slopes(imputer).sum(axis=0), effects[1], atol=1e-4)


def test_objective_falls():
    assert np.diff(low_rank_fit().history_["objective"]).max() <= 1e-9


@pytest.mark.parametrize(
    "settings", [NOISY, dict(solver="vr_fedem", batch_size=8, **NOISY)], ids=["FedEM", "VR-FedEM"]
)
def test_noisy_rounds_reach_the_optimum(settings):
    noisy = FederatedMatrixImputer(**(LOW_RANK | settings | dict(tol=1e-7))).fit(tables())
    assert_allclose(noisy.objective_, low_rank_fit().objective_, rtol=1e-5)


def test_one_client_with_all_observations():
    own = dict(LOW_RANK, negative_binomial_size="auto")
    together = np.concatenate([np.column_stack([*np.nonzero(~np.isnan(x)), x[~np.isnan(x)]])
                               for x in tables()])  # fmt: skip
    owners = np.repeat(range(N_CLIENTS), [np.sum(~np.isnan(x)) for x in tables()])
    apart = FederatedMatrixImputer(**own).fit(together, shape=(J, L), clients=owners)
    fit = FederatedMatrixImputer(**own).fit(tables())
    assert_allclose(apart.fitted_mean(), fit.fitted_mean(), rtol=1e-6)


def test_large_size_is_poisson():
    settings = dict(rank=2, penalty=2.0, tol=1e-12, max_iter=3000)
    poisson = FederatedMatrixImputer(family="poisson", **settings).fit(tables())
    large = FederatedMatrixImputer(
        family="negative_binomial", negative_binomial_size=1e8, **settings
    ).fit(tables())
    assert_allclose(large.fitted_mean(), poisson.fitted_mean(), rtol=1e-5)
    assert_allclose(large.objective_, poisson.objective_, rtol=1e-6)
    assert_allclose(large.dispersion_, poisson.dispersion_, rtol=1e-5)


def test_dispersion_is_that_of_the_family():
    imputer = FederatedMatrixImputer(negative_binomial_size=SIZE, **EFFECTS).fit(tables())
    X, means = np.stack(tables()), imputer.fitted_mean()
    pearson = np.nansum((X - means) ** 2 / (means + means**2 / SIZE))
    want = pearson / (np.sum(~np.isnan(X)) - J - L + 1)
    assert_allclose(imputer.dispersion_, want, rtol=1e-8)


@cache
def with_effort():
    return make_site_counts(
        20, 12, 3, observed=1.5, rank=0, family="negative_binomial", negative_binomial_size=3.0,
        offset_deviation=0.7, intercept=2.0, random_state=0,
    )  # fmt: skip


def test_effort_adds_sizes():
    # An observation with effort e is the sum of e independent ones: mean and size are e times.
    data = with_effort()
    settings = EFFECTS | dict(negative_binomial_size=3.0)
    imputer = FederatedMatrixImputer(**settings).fit(
        data.clients, shape=data.shape, offset=data.offset
    )
    site, month, counts = np.concatenate(data.clients).T
    effort = np.exp(np.concatenate(data.offset))
    means = imputer.fitted_mean()[site.astype(int), month.astype(int)] * effort
    log_density = stats.nbinom.logpmf(counts, 3.0 * effort, 3.0 / (3.0 + means / effort))
    score = imputer.score(data.clients, offset=data.offset)
    assert_allclose(score, log_density.mean(), rtol=1e-10)
    field = (counts - means) / (1 + means / effort / 3.0)  # the slope of this by θ
    assert_allclose(np.bincount(site.astype(int), field), 0, atol=1e-4)
    assert_allclose(np.bincount(month.astype(int), field), 0, atol=1e-4)


def test_size_of_simulated_counts():
    data = with_effort()
    imputer = FederatedMatrixImputer(**(EFFECTS | dict(tol=1e-6)))
    imputer.fit(data.clients, shape=data.shape, offset=data.offset)
    assert 2.2 < imputer.negative_binomial_size_ < 4.5  # about three standard errors around 3
    settings = dict(errors="parametric", n_draws=20, random_state=0)
    totals = imputer.totals(data.clients, offset=data.offset, **settings).table
    poisson = FederatedMatrixImputer(0, family="poisson", effects_penalty=0.0)
    poisson.fit(data.clients, shape=data.shape, offset=data.offset)
    other = poisson.totals(data.clients, offset=data.offset, overdispersion=False, **settings).table
    assert (totals["model_error"] > other["model_error"]).all()


def test_imputations_vary_as_the_family():
    rng = np.random.default_rng(0)
    X = rng.poisson(rng.gamma(SIZE, 50 / SIZE, (40, 30))).astype(float)
    is_missing = rng.random(X.shape) < 0.5
    X[is_missing] = NAN
    imputer = FederatedMatrixImputer(rank=0, family="negative_binomial", effects_penalty=1e6).fit(X)
    filled = imputer.impute(X, n_imputations=4, overdispersion=False, random_state=0)
    drawn = filled[:, is_missing]
    want = drawn.mean() + drawn.mean() ** 2 / imputer.negative_binomial_size_
    assert_allclose(drawn.var(), want, rtol=0.15)  # of 2,400 draws
    assert_array_equal(filled[0][~is_missing], X[~is_missing])


def test_rows_that_are_new():
    imputer = low_rank_fit()
    new = np.stack(tables())[0][:3].copy()
    filled = imputer.transform(new)
    assert_array_equal(filled[~np.isnan(new)], new[~np.isnan(new)])
    assert (filled > 0).sum() >= np.isnan(new).sum()
    assert np.isfinite(imputer.score(new))


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::sklearn.exceptions.ConvergenceWarning")
def test_search_beats_poisson():
    data = make_site_counts(
        30, 24, 4, observed=1.0, family="negative_binomial", intercept=2.0, random_state=0
    )
    scores = {}
    for family in ("poisson", "negative_binomial"):
        search = FederatedMatrixImputerCV(
            ranks=[2], penalties=3, effects_penalties=[1.0], n_splits=2, period=12, family=family,
            random_state=0,
        )  # fmt: skip
        search.fit(data.clients, shape=data.shape)
        scores[family] = np.append(search.baselines_["mean_test_score"], search.best_score_)
    assert (scores["negative_binomial"] > scores["poisson"] + 0.5).all()


@pytest.mark.parametrize("size", [0.0, -1.0, np.inf, NAN, "large"])
def test_sizes_that_are_not_positive_numbers(size):
    with pytest.raises((TypeError, ValueError), match="negative_binomial_size"):
        FederatedMatrixImputer(negative_binomial_size=size).fit(tables())


@pytest.mark.parametrize("count", [-1.0, 0.5])
def test_values_that_are_not_counts(count):
    X = [own.copy() for own in tables()]
    X[1][np.nonzero(~np.isnan(X[1]))[0][0]] = count
    with pytest.raises(ValueError, match=r"Expected non-negative integers.*client 1"):
        FederatedMatrixImputer(family="negative_binomial").fit(X)


def test_equations_are_refused():
    imputer = FederatedMatrixImputer(**EFFECTS).fit(tables())
    with pytest.raises(ValueError, match="Give errors='parametric', .* or fit 'poisson'"):
        imputer.totals(tables())


def test_fit_with_groups_and_covariates():
    groups, altitude = np.arange(J) % 2, pd.DataFrame({"altitude": np.linspace(0, 1, J) ** 2})
    imputer = FederatedMatrixImputer(**(EFFECTS | dict(negative_binomial_size=SIZE)))
    imputer.fit(tables(), row_groups=groups, row_covariates=altitude)
    field = slopes(imputer)
    for group in range(2):  # the equations of each group's columns
        assert_allclose(field[groups == group].sum(axis=0), 0, atol=1e-4)


def test_resumed_and_continued(tmp_path):
    settings = LOW_RANK | dict(tol=0.0, max_iter=30, negative_binomial_size="auto") | NOISY
    settings |= dict(checkpoint=tmp_path / "fit", checkpoint_every=10)
    with pytest.warns(match="Not converged"):
        want = FederatedMatrixImputer(**settings).fit(tables())
        FederatedMatrixImputer(**(settings | dict(max_iter=10))).fit(tables())
        got = FederatedMatrixImputer(**settings).fit(tables(), resume_from=tmp_path / "fit")
    assert_array_equal(got.fitted_mean(), want.fitted_mean())
    assert got.negative_binomial_size_ == want.negative_binomial_size_


def test_observations_count_alike_whoever_made_them():
    generator = np.random.default_rng(0)
    means = np.exp(generator.normal(1.5, 0.7, (20, 1)) + generator.normal(0, 0.5, (1, 6)))
    visits = generator.negative_binomial(1.5, 1.5 / (1.5 + means), (4, 20, 6)).astype(float)
    settings = dict(rank=0, family="negative_binomial", effects_penalty=0, tol=1e-10)
    alone, apart = (FederatedMatrixImputer(**settings).fit(X) for X in ([visits], list(visits)))
    assert_allclose(alone.negative_binomial_size_, apart.negative_binomial_size_, rtol=1e-6)
    assert_allclose(alone.fitted_mean(), apart.fitted_mean(), rtol=1e-5)
    ridge = 1e-7 / 2 * sum((own**2).sum() for own in (alone.row_effects_, alone.column_effects_))
    for imputer, X in ((alone, [visits]), (apart, list(visits))):
        assert_allclose(imputer.objective_ - ridge, -imputer.score(X) * visits.size, rtol=1e-9)


@pytest.mark.parametrize("unit", [1e-8, 1e7])
def test_the_unit_of_effort_does_not_matter(unit):
    generator = np.random.default_rng(0)
    effort = np.exp(generator.normal(0, 0.5, (20, 8)))
    counts = generator.negative_binomial(1.5 * effort, 0.2).astype(float)
    settings = dict(rank=0, family="negative_binomial", effects_penalty=0, tol=1e-10)
    by_one, by_unit = (
        FederatedMatrixImputer(**settings).fit(counts, offset=np.log(own))
        for own in (effort, effort * unit)
    )
    # With the intercept, effects of a ridge of 1e-7 hardly change.
    assert_allclose(by_unit.negative_binomial_size_ * unit, by_one.negative_binomial_size_, 1e-4)
    assert_allclose(by_unit.fitted_mean() * unit, by_one.fitted_mean(), rtol=1e-4)
