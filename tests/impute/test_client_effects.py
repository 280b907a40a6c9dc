"""Effects of clients, such as the skill of observers: against an independent optimiser."""

import re
from functools import cache

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import optimize, stats
from scipy.sparse import csr_array
from scipy.special import expit, logit
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from skfedem import FederatedMatrixImputer, FederatedMatrixImputerCV
from skfedem.inspection import ImputationDisplay

J, L, N_CLIENTS, SIZE = 9, 6, 7, 1.7
SHAPE = (J, L)
FAMILIES = ["gaussian", "bernoulli", "poisson", "negative_binomial"]
NOISY = dict(omega=1.0, participation=0.75, random_state=1)
TRUE_EFFECTS = np.linspace(-1.1, 1.1, N_CLIENTS)
every_family = pytest.mark.parametrize("family", FAMILIES)


@cache
def triplets(family="poisson"):
    """Each observer's visits, some of them to the same cell; the last one counts nothing."""
    rng = np.random.default_rng(2)
    theta = rng.normal(0.5, 0.6, (J, 1)) + rng.normal(0, 0.4, L)
    tables = []
    for effect in TRUE_EFFECTS:
        sites, months = rng.integers(0, J, 25), rng.integers(0, L, 25)
        own = theta[sites, months] + effect
        values = {
            "gaussian": lambda own: own + rng.normal(size=len(own)),
            "bernoulli": lambda own: (rng.random(len(own)) < expit(own)) * 1.0,
            "poisson": lambda own: rng.poisson(np.exp(own)),
            "negative_binomial": lambda own: rng.negative_binomial(
                SIZE, SIZE / (SIZE + np.exp(own))
            ),
        }[family](own)
        tables.append(np.column_stack([sites, months, values]).astype(float))
    if family != "gaussian":
        tables[-1][:, 2] = 0
    return tables


def densities(family, values, theta):
    """Log-densities from SciPy."""
    if family == "gaussian":
        return stats.norm.logpdf(values, theta)
    if family == "bernoulli":
        return stats.bernoulli.logpmf(values, expit(theta))
    if family == "poisson":
        return stats.poisson.logpmf(values, np.exp(theta))
    return stats.nbinom.logpmf(values, SIZE, SIZE / (SIZE + np.exp(theta)))


def slopes(family, values, theta):
    """Derivatives of these by θ."""
    if family == "gaussian":
        return values - theta
    if family == "bernoulli":
        return values - expit(theta)
    means = np.exp(theta)
    return values - means if family == "poisson" else (values - means) / (1 + means / SIZE)


@cache
def optimum(family, penalty, effects_penalty=0.1):
    """Most likely θ of all cells and effects of clients, and the objective, by SciPy."""
    tables = triplets(family)
    sites, months, values = np.concatenate(tables).T
    client = np.repeat(np.arange(N_CLIENTS), [len(own) for own in tables])
    parts = [np.ones((len(values), 1)), np.eye(J)[sites.astype(int)]]
    design = np.hstack([*parts, np.eye(L)[months.astype(int)], np.eye(N_CLIENTS)[client]])
    ridge = np.repeat([0.0, effects_penalty, penalty], [1, J + L, N_CLIENTS])

    def objective(beta):
        theta = design @ beta
        loss = ridge @ beta**2 / 2 - densities(family, values, theta).sum()
        return loss, ridge * beta - design.T @ slopes(family, values, theta)

    start = np.zeros(design.shape[1])
    found = optimize.minimize(objective, start, jac=True, method="BFGS", options={"gtol": 1e-7})
    intercept, rows, columns, effects = np.split(found.x, [1, 1 + J, 1 + J + L])
    return intercept + rows[:, None] + columns, effects, found.fun


def exact(family="poisson", rank=0, **settings):
    settings = dict(tol=1e-12, max_iter=3000, client_effects_penalty=1.5) | settings
    return FederatedMatrixImputer(rank, family=family, negative_binomial_size=SIZE, **settings)


def theta_of(imputer):
    link = {"gaussian": np.positive, "bernoulli": logit}.get(imputer.family, np.log)
    return link(imputer.fitted_mean())


# ---- optima


@pytest.mark.parametrize("noise", [{}, NOISY], ids=["exact", "noisy"])
@every_family
def test_effects_alone_are_the_joint_optimum(family, noise):
    imputer = exact(family, **noise).fit(triplets(family), shape=SHAPE)
    theta, effects, objective = optimum(family, 1.5)
    assert_allclose(theta_of(imputer), theta, atol=1e-5)
    assert_allclose(imputer.client_effects_, effects, atol=1e-5)
    assert_allclose(imputer.objective_, objective, rtol=1e-9)
    assert imputer.converged_
    assert abs(imputer.client_effects_.sum()) < 1e-6


def test_gaussian_effects_are_a_ridge_regression():
    tables = triplets("gaussian")
    imputer = exact("gaussian", effects_penalty=0.3).fit(tables, shape=SHAPE)
    for client, own in enumerate(tables):
        residuals = own[:, 2] - theta_of(imputer)[own[:, 0].astype(int), own[:, 1].astype(int)]
        mean = residuals.sum() / (len(own) + 1.5)
        assert_allclose(imputer.client_effects_[client], mean, atol=1e-9)


@pytest.mark.parametrize("noise", [{}, NOISY], ids=["exact", "noisy"])
@every_family
def test_the_low_rank_part_satisfies_its_optimality_conditions(family, noise):
    penalty, tables = 1.2, triplets(family)
    imputer = exact(family, None, penalty=penalty, **noise).fit(tables, shape=SHAPE)
    theta, gradient, of_clients = theta_of(imputer), np.zeros(SHAPE), np.zeros(N_CLIENTS)
    for client, own in enumerate(tables):
        cells = own[:, 0].astype(int), own[:, 1].astype(int)
        slope = slopes(family, own[:, 2], theta[cells] + imputer.client_effects_[client])
        np.add.at(gradient, cells, slope)
        of_clients[client] = slope.sum()
    # Rounds stop at a relative change of the objective of 1e-12, distances at its root.
    left, right = imputer.row_factors_, imputer.column_factors_
    assert 0 < len(imputer.singular_values_) < L
    assert_allclose(left.T @ gradient @ right, penalty * np.eye(left.shape[1]), atol=1e-3)
    rest = gradient - left @ (left.T @ gradient)
    assert np.linalg.norm(rest, 2) <= penalty * (1 + 1e-3)
    assert_allclose(of_clients, 1.5 * imputer.client_effects_, atol=1e-3)
    assert_allclose(gradient.sum(axis=1), 0.1 * imputer.row_effects_, atol=1e-3)


@every_family
def test_a_huge_penalty_is_a_fit_without_effects(family):
    tables = triplets(family)
    imputer = exact(family, 1, client_effects_penalty=1e10, penalty=2.0).fit(tables, shape=SHAPE)
    without = clone(imputer).set_params(client_effects_penalty=None).fit(tables, shape=SHAPE)
    assert_allclose(imputer.fitted_mean(), without.fitted_mean(), rtol=1e-4)
    assert_allclose(imputer.client_effects_, 0, atol=1e-6)
    assert without.client_effects_ is None and without.client_effects_penalty_ is None


def test_an_observer_without_any_bird_has_a_finite_effect():
    for penalty in (0, 1e-3, "auto"):
        imputer = exact(client_effects_penalty=penalty).fit(triplets(), shape=SHAPE)
        assert np.isfinite(imputer.client_effects_).all()
        assert imputer.client_effects_.argmin() == N_CLIENTS - 1


def test_clients_without_cells_have_no_effect():
    empty = np.empty((0, 3))
    with pytest.warns(UserWarning, match="no observed cell|without"):
        imputer = exact().fit([empty, *triplets(), empty], shape=SHAPE)
    assert_array_equal(imputer.client_effects_[[0, -1]], 0)
    assert_allclose(imputer.client_effects_[1:-1], optimum("poisson", 1.5)[1], atol=1e-5)


def test_minibatches_and_few_clients_end_where_exact_rounds_do():
    want = exact(rank=1, penalty=2.0).fit(triplets(), shape=SHAPE)
    noise = dict(solver="vr_fedem", batch_size=5, random_state=0, participation=4, tol=1e-9)
    imputer = exact(rank=1, penalty=2.0, **noise).fit(triplets(), shape=SHAPE)
    assert_allclose(imputer.objective_, want.objective_, rtol=1e-4)
    assert_allclose(imputer.client_effects_, want.client_effects_, atol=0.02)


# ---- the penalty


def test_the_automatic_penalty_is_restricted_maximum_likelihood():
    """The likelihood of all observations, from which everything else was integrated out."""
    tables = triplets("gaussian")
    sites, months, values = np.concatenate(tables).T
    client = np.repeat(np.arange(N_CLIENTS), [len(own) for own in tables])
    rows, columns = np.eye(J)[sites.astype(int)], np.eye(L)[months.astype(int)]
    known = np.eye(len(values)) + (rows @ rows.T + columns @ columns.T) / 0.1
    known += 1e6  # the variance of the intercept, which has no penalty

    def loss(log_penalty):
        own = np.equal.outer(client, client) / np.exp(log_penalty)
        return -stats.multivariate_normal.logpdf(values, np.zeros(len(values)), known + own)

    best = optimize.minimize_scalar(loss, bounds=(-3, 5), method="bounded").x
    imputer = exact("gaussian", client_effects_penalty="auto").fit(tables, shape=SHAPE)
    assert_allclose(np.log(imputer.client_effects_penalty_), best, atol=1e-3)


@pytest.mark.parametrize("family", ["bernoulli", "poisson", "negative_binomial"])
def test_the_automatic_penalty_is_near_the_inverse_variance_of_many_observers(family):
    rng = np.random.default_rng(0)
    effects = rng.normal(0, 0.8, 100)
    shape, theta = (12, 10), rng.normal(1, 0.5, (12, 1)) + rng.normal(0, 0.3, 10)
    means = np.exp(theta + effects[:, None, None])
    X = rng.poisson(means * (rng.gamma(2, 0.5, means.shape) if "neg" in family else 1.0)) * 1.0
    X = (rng.random(X.shape) < means / (1 + means)) * 1.0 if family == "bernoulli" else X
    X[rng.random(X.shape) < 0.4] = np.nan
    imputer = FederatedMatrixImputer(0, family=family, client_effects_penalty="auto").fit(X)
    assert 0.7 < imputer.client_effects_penalty_ * effects.var() < 1.5
    assert np.corrcoef(imputer.client_effects_, effects)[0, 1] > 0.85
    assert imputer.fitted_mean().shape == shape


def test_equal_observers_have_hardly_any_effects():
    X = np.random.default_rng(0).poisson(5.0, (8, 20, 10))
    imputer = exact(client_effects_penalty="auto").fit(X)
    assert imputer.client_effects_penalty_ > 100
    assert_allclose(imputer.client_effects_, 0, atol=0.05)


# ---- what they are for


def test_a_trend_without_better_observers_is_no_trend():
    """Observers of factors from 0.3 to 3 follow each other, the better ones later."""
    rng = np.random.default_rng(3)
    sites, years, n = 40, 15, 24
    theta = rng.normal(2.5, 0.7, (sites, 1)) - 0.03 * np.arange(years)
    factors, X = np.geomspace(0.3, 3, n), np.full((n, sites, years), np.nan)
    for observer, factor in enumerate(factors):
        begin = observer * (years - 5) // n
        for site in rng.choice(sites, 10, replace=False):
            cells = site, slice(begin, begin + 6)
            X[observer][cells] = rng.poisson(factor * np.exp(theta[cells]))
    X[0][:, -1] = rng.poisson(factors[0] * np.exp(theta[:, -1]))  # until the last year
    slope = {}
    for penalty in (None, "auto"):
        imputer = FederatedMatrixImputer(
            0, family="poisson", effects_penalty=0, client_effects_penalty=penalty
        ).fit(list(X))
        log_totals = np.log(imputer.fitted_mean().sum(axis=0))
        slope[penalty] = np.polyfit(np.arange(years), log_totals, 1)[0]
    assert slope[None] > 0.05  # instead of -0.03
    assert_allclose(slope["auto"], -0.03, atol=0.015)
    skill = imputer.client_effects_ - imputer.client_effects_.mean()
    assert_allclose(skill, np.log(factors) - np.log(factors).mean(), atol=0.25)


# ---- forms of data, and what follows a fit


def test_forms_of_the_same_visits():
    tables = [own[np.unique(own[:, :2], axis=0, return_index=True)[1]] for own in triplets()]
    rows, columns = (np.concatenate(tables)[:, axis].astype(int) for axis in (0, 1))
    labels = np.repeat([f"o{k}" for k in range(N_CLIENTS)], [len(own) for own in tables])
    X = np.full((N_CLIENTS, *SHAPE), np.nan)
    sparse = []
    for matrix, own in zip(X, tables, strict=True):
        cells = own[:, 0].astype(int), own[:, 1].astype(int)
        matrix[cells] = own[:, 2]
        sparse.append(csr_array((own[:, 2], cells), shape=SHAPE))
    assert len(rows) == len(columns) == len(labels)
    want = exact().fit(tables, shape=SHAPE)
    shuffled = np.random.default_rng(0).permutation(len(labels))
    for fit in (
        exact().fit(list(X)),
        exact().fit(X),
        exact().fit(sparse),
        exact().fit(np.concatenate(tables)[shuffled], clients=labels[shuffled], shape=SHAPE),
        exact(n_jobs=2).fit(tables, shape=SHAPE),
    ):
        assert_array_equal(fit.fitted_mean(), want.fitted_mean())
        assert_array_equal(fit.client_effects_, want.client_effects_)


def test_means_and_scores_are_those_of_a_client_without_effect():
    imputer = exact().fit(triplets(), shape=SHAPE)
    theta = imputer.intercept_ + imputer.row_effects_[:, None] + imputer.column_effects_
    assert_allclose(theta_of(imputer), theta, rtol=1e-12)
    filled = imputer.transform(triplets())[0]
    cells = triplets()[0][:, :2].astype(int).T
    missing = np.ones(SHAPE, dtype=bool)
    missing[tuple(cells)] = False
    assert_allclose(filled[missing], np.exp(theta)[missing], rtol=1e-12)
    sites, months, values = np.concatenate(triplets()).T
    mean = densities("poisson", values, theta[sites.astype(int), months.astype(int)]).mean()
    assert_allclose(imputer.score(triplets()), mean)


def test_totals_are_drawn_and_count_birds_as_if_by_one_observer():
    imputer = exact(tol=1e-7).fit(triplets(), shape=SHAPE)
    with pytest.raises(ValueError, match="without effects of clients.*Draw rows"):
        imputer.totals(triplets())
    for errors in ("parametric", "rows", "clients"):
        totals = imputer.totals(triplets(), errors=errors, n_draws=4, random_state=0)
        assert_allclose(totals.model, imputer.fitted_mean().sum(axis=0))
        assert (np.diag(totals.model_covariance) > 0).all()
    sums, efforts = np.zeros(SHAPE), np.zeros(SHAPE)
    for own, effect in zip(triplets(), imputer.client_effects_, strict=True):
        cells = own[:, 0].astype(int), own[:, 1].astype(int)
        np.add.at(sums, cells, own[:, 2])
        np.add.at(efforts, cells, np.exp(effect))
    seen = efforts > 0
    filled = np.where(seen, sums / np.where(seen, efforts, 1), imputer.fitted_mean())
    assert_allclose(totals.imputed, filled.sum(axis=0))
    drawn = imputer.impute(triplets(), n_imputations=2, random_state=0)
    assert_allclose(drawn[:, seen], np.stack([filled[seen]] * 2))
    display = ImputationDisplay.from_estimator(imputer, triplets())
    assert_allclose(np.nansum(display.observed_total), filled[seen].sum())
    for other in (triplets()[:-1], np.concatenate(triplets())):
        with pytest.raises(ValueError, match="7 clients of the fit"):
            imputer.impute(other)


def test_searches():
    rng = np.random.default_rng(1)
    effects, theta = rng.normal(0, 1, (12, 1, 1)), 1.5 + rng.normal(0, 0.5, (10, 1))
    X = rng.poisson(np.exp(theta + rng.normal(0, 0.3, 6) + effects)).astype(float)
    X = list(np.where(rng.random(X.shape) < 0.4, X, np.nan))
    search = FederatedMatrixImputerCV(
        [1], 2, family="poisson", effects_penalties=[0.1], n_splits=3, random_state=0
    ).fit(X)
    known = clone(search).set_params(client_effects_penalty="auto").fit(X)
    # Held-out cells of a client are predicted with its effect.
    assert known.best_score_ > search.best_score_ + 0.5
    assert np.corrcoef(known.best_estimator_.client_effects_, effects.ravel())[0, 1] > 0.95
    assert abs(np.log(known.baselines_["observed_to_expected"][0])) < 0.1
    # Other clients, whose effects are unknown.
    grid = GridSearchCV(exact(tol=1e-6), {"client_effects_penalty": [0.1, 1e3]}, cv=3).fit(X)
    assert grid.best_params_ == {"client_effects_penalty": 1e3}


def test_warm_starts_and_resumed_runs(tmp_path):
    settings = dict(rank=1, penalty=2.0, omega=1.0, random_state=0, tol=1e-12)
    path = tmp_path / "run"
    with pytest.warns(match="Not converged"):
        exact(**settings | dict(max_iter=5, checkpoint=path)).fit(triplets(), shape=SHAPE)
        short = exact(**settings | dict(max_iter=10))
        resumed = clone(short).fit(triplets(), shape=SHAPE, resume_from=path)
        whole = clone(short).fit(triplets(), shape=SHAPE)
        with pytest.raises(ValueError, match="client_effects_penalty"):
            clone(short).set_params(client_effects_penalty=2.0).fit(
                triplets(), shape=SHAPE, resume_from=path
            )
    assert_array_equal(resumed.client_effects_, whole.client_effects_)
    assert_array_equal(resumed.fitted_mean(), whole.fitted_mean())
    imputer = exact(rank=1, penalty=2.0, warm_start=True, tol=1e-9).fit(triplets(), shape=SHAPE)
    objective, n_iter = imputer.objective_, imputer.n_iter_
    assert imputer.fit(triplets(), shape=SHAPE).objective_ <= objective * (1 + 1e-9)
    assert imputer.n_iter_ < n_iter
    imputer.set_params(client_effects_penalty=None).fit(triplets(), shape=SHAPE)
    assert imputer.client_effects_ is None
    imputer.set_params(client_effects_penalty=1.5).fit(triplets(), shape=SHAPE)
    assert_allclose(imputer.objective_, objective, rtol=1e-6)


def test_covariates_and_offsets_beside_effects():
    """An offset of each observer is its effect, if that has no penalty."""
    offset = [np.full(len(own), 0.3 * k) for k, own in enumerate(triplets())]
    kinds = np.arange(J) % 2
    free = exact(client_effects_penalty=0.0, effects_penalty=0.0)
    one = clone(free).fit(triplets()[:-1], shape=SHAPE, row_groups=kinds)
    other = clone(free).fit(triplets()[:-1], shape=SHAPE, row_groups=kinds, offset=offset[:-1])
    change = other.client_effects_ - one.client_effects_ + 0.3 * np.arange(N_CLIENTS - 1)
    assert_allclose(change, change.mean(), atol=1e-4)
    assert other.group_effects_.shape == (2, L)


# ---- messages


def test_messages_are_counted():
    imputer = exact(rank=1, penalty=2.0).fit(triplets(), shape=SHAPE)
    without = clone(imputer).set_params(client_effects_penalty=None).fit(triplets(), shape=SHAPE)
    named, others = (
        {own.name: own for own in fit.setup_messages_ if own.name != "theta"}
        for fit in (imputer, without)
    )
    assert {*named} - {*others} == {"client_sums"}
    assert named["client_sums"].uplink_bits == 64 * N_CLIENTS
    uplink, downlink = (
        imputer.history_[name][1:5] - without.history_[name][1:5]
        for name in ("uplink_bits", "downlink_bits")
    )
    assert_array_equal(uplink, 0)
    # θ in its cells includes the effect; all factors and effects do not.
    all_numbers = 1 + J + L
    lengths = [len(np.unique(own[:, :2], axis=0)) for own in triplets()]
    n_told = sum(own > all_numbers for own in lengths)
    assert downlink[0] in (0, 64 * n_told)


# ---- refusals

BAD = [
    (dict(client_effects_penalty=-1.0), {}, "client_effects_penalty"),
    (dict(client_effects_penalty="none"), {}, "client_effects_penalty"),
    (dict(effects="none"), {}, "effects='none'"),
    (dict(rows="disjoint"), {}, "rows='disjoint'"),
]


@pytest.mark.parametrize("estimator", [FederatedMatrixImputer, FederatedMatrixImputerCV])
@pytest.mark.parametrize(("settings", "arguments", "message"), BAD)
def test_bad_parameters(estimator, settings, arguments, message):
    settings = dict(client_effects_penalty=1.0) | settings
    X = [np.ones(SHAPE), np.ones(SHAPE)]
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        estimator(**settings).fit(X, **arguments)
    with pytest.raises((TypeError, ValueError), match="client_effects_penalty"):
        estimator(**settings).fit(pd.DataFrame(X[0]), clients=np.arange(J) % 3)
