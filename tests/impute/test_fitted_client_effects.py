"""Forms of data, scores, totals, searches and warm starts with effects of clients."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from observers import N_CLIENTS, SHAPE, J, L, densities, exact, theta_of, triplets
from skfedem import FederatedMatrixImputer, FederatedMatrixImputerCV
from skfedem.inspection import ImputationDisplay


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


def test_a_client_drawn_twice_is_two_clients():
    """Of equally many visits by observers whose effects differ, errors are those of their mean."""
    rng = np.random.default_rng(0)
    effects = rng.normal(0, 3, 40)
    X = list(effects[:, None, None] + rng.normal(size=(40, 2, 3)))
    imputer = FederatedMatrixImputer(0, client_effects_penalty=0.1).fit(X)
    totals = imputer.totals(X, errors="clients", n_draws=120, random_state=0)
    # An observer who counts once, however often it was drawn, makes it a third smaller.
    assert 0.9 < np.diag(totals.model_covariance).mean() / (4 * effects.var() / 40) < 1.35


def test_drawn_observations_are_those_of_other_clients():
    """Errors include the differences of the observers, of whom each visits all cells."""
    rng = np.random.default_rng(0)
    X = list(rng.normal(0, 3, (30, 1, 1)) + rng.normal(size=(30, 2, 3)))
    imputer = FederatedMatrixImputer(0, client_effects_penalty=0.1).fit(X)
    totals = imputer.totals(X, errors="parametric", n_draws=50, random_state=0)
    # The variance of a mean over 30 observers and 2 rows; it is known to a fifth.
    want = 4 * (1 / 0.1 / 30 + imputer.dispersion_ / 60)
    assert 0.6 < np.diag(totals.model_covariance).mean() / want < 1.5


def test_drawn_observations_are_those_of_the_clients_without_a_prior():
    """The error of the mean observer's level is that of the observers' own sums."""
    rng = np.random.default_rng(0)
    X = list(rng.poisson(10 * np.exp([[[3.0]], [[-3.0]]]), (2, 20, 20)).astype(float))
    imputer = exact(client_effects_penalty=1e-3, tol=1e-6).fit(X)
    totals = imputer.totals(X, errors="parametric", n_draws=60, random_state=0)
    of_level = np.sqrt(sum(1 / own.sum() for own in X)) / 2
    # All columns have the error of the level, and hardly any of their own.
    errors = np.sqrt(totals.model_covariance.mean()) / totals.model.mean()
    assert 0.75 < errors / of_level < 1.3
