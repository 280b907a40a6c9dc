"""Log efforts as offsets: against regressions, in every form of data, and where totals use them."""

import re
from functools import cache

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse, stats

from skfedem import FederatedMatrixImputer, FederatedMatrixImputerCV

J, L, N_CLIENTS, NAN = 8, 6, 3, np.nan
EFFECTS = dict(rank=0, effects_penalty=0.0, tol=1e-12, max_iter=2000, random_state=0)
POISSON = dict(family="poisson", **EFFECTS)


def visits(family="poisson", seed=0, n=140):
    """Triplets of each client and their offsets; most cells are visited several times."""
    rng = np.random.default_rng(seed)
    sites, months = rng.integers(J, size=n), rng.integers(L, size=n)
    log_effort = rng.normal(0.5, 0.8, n)
    theta = 1 + rng.normal(0, 0.5, J)[sites] + rng.normal(0, 0.5, L)[months] + log_effort
    counts = rng.poisson(np.exp(theta)) if family == "poisson" else theta + rng.normal(size=n)
    owners = np.sort(rng.integers(N_CLIENTS, size=n))
    table = np.column_stack([sites, months, counts]).astype(float)
    edges = np.searchsorted(owners, np.arange(1, N_CLIENTS))
    return np.split(table, edges), np.split(log_effort, edges)


def matrices(seed=0):
    """Matrices of the clients with missing cells, and of their offsets."""
    rng = np.random.default_rng(seed)
    X = rng.poisson(3, (N_CLIENTS, J, L)).astype(float)
    offset = rng.normal(0, 0.7, X.shape)
    missing = rng.random(X.shape) < 0.4
    X[missing], offset[missing] = NAN, NAN
    return X, offset


def same_fit(one, other):
    for name in ("intercept_", "row_effects_", "column_effects_", "objective_", "dispersion_"):
        assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    assert_array_equal(one.fitted_mean(), other.fitted_mean())


@cache
def regression():
    """Poisson regression of all visits with dummies of sites and months."""
    X, offset = (np.concatenate(parts) for parts in visits())
    sites, months, counts = X.T
    design = np.column_stack([np.eye(J)[sites.astype(int)], np.eye(L)[months.astype(int)][:, 1:]])
    fit = sm.GLM(counts, design, family=sm.families.Poisson(), offset=offset).fit(tol=1e-14)
    cells = np.column_stack([np.repeat(np.eye(J), L, axis=0), np.tile(np.eye(L)[:, 1:], (J, 1))])
    return fit, fit.predict(cells).reshape(J, L)


@pytest.mark.parametrize(
    "settings", [{}, dict(omega=1.0, participation=0.75, random_state=1)], ids=["exact", "noisy"]
)
def test_poisson_regression_with_offset(settings):
    X, offset = visits()
    fit, means = regression()
    imputer = FederatedMatrixImputer(**(POISSON | settings)).fit(X, shape=(J, L), offset=offset)
    assert_allclose(imputer.fitted_mean(), means, rtol=1e-5)
    assert_allclose(-imputer.objective_, fit.llf, rtol=1e-8)  # the ridge is 1e-7
    assert_allclose(imputer.score(X, offset=offset), fit.llf / sum(map(len, X)), rtol=1e-8)


def test_dispersion_with_offset():
    # Of cells, in which visits of a client are pooled: one visit of each client to a cell.
    X, offset = matrices()
    imputer = FederatedMatrixImputer(**POISSON).fit(list(X), offset=list(offset))
    seen = ~np.isnan(X)
    means = (imputer.fitted_mean() * np.exp(offset))[seen]
    pearson = ((X[seen] - means) ** 2 / means).sum() / (seen.sum() - J - L + 1)
    assert_allclose(imputer.dispersion_, pearson, rtol=1e-10)


@pytest.mark.filterwarnings("ignore:Not converged")  # thirty rounds
@pytest.mark.parametrize("family", ["gaussian", "poisson"])
def test_offset_zero_changes_nothing(family):
    X, offset = visits(family)
    settings = dict(rank=2, family=family, omega=1.0, participation=0.7, max_iter=30)
    settings = settings | dict(random_state=3)
    one, other = (FederatedMatrixImputer(**settings) for _ in range(2))
    one.fit(X, shape=(J, L))
    other.fit(X, shape=(J, L), offset=[np.zeros(len(own)) for own in offset])
    same_fit(one, other)


def test_gaussian_offset_is_subtracted():
    X, offset = visits("gaussian")
    rest = [np.column_stack([x[:, :2], x[:, 2] - o]) for x, o in zip(X, offset, strict=True)]
    with_offset = FederatedMatrixImputer(rank=2).fit(X, shape=(J, L), offset=offset)
    without = FederatedMatrixImputer(rank=2).fit(rest, shape=(J, L))
    same_fit(with_offset, without)
    assert with_offset.score(X, offset=offset) == without.score(rest)


@pytest.mark.parametrize("shift", [-6.0, 6.0])
def test_unit_of_effort(shift):
    X, offset = visits()
    settings = dict(rank=1, family="poisson", penalty=2.0, tol=1e-13, max_iter=2000)
    hours = FederatedMatrixImputer(**settings).fit(X, shape=(J, L), offset=offset)
    moved = [own + shift for own in offset]
    other = FederatedMatrixImputer(**settings).fit(X, shape=(J, L), offset=moved)
    assert_allclose(other.fitted_mean(), hours.fitted_mean() * np.exp(-shift), rtol=1e-4)
    assert_allclose(other.objective_, hours.objective_, rtol=1e-9)


def test_every_form_of_data():
    X, offset = matrices()
    want = FederatedMatrixImputer(**POISSON).fit(list(X), offset=list(offset))
    triplets, beside, stored = [], [], []
    for x, own in zip(X, offset, strict=True):
        rows, columns = np.nonzero(~np.isnan(x))
        triplets.append(np.column_stack([rows, columns, x[rows, columns]]))
        beside.append(own[rows, columns])
        stored.append(sparse.csr_array((x[rows, columns] + 1, (rows, columns)), shape=x.shape))
        stored[-1].data -= 1  # zeros are stored
    offsets = [sparse.coo_array(np.nan_to_num(own)) for own in offset]
    others = [
        (X, offset, {}),
        (triplets, beside, dict(shape=(J, L))),
        (np.concatenate(triplets)[::-1], np.concatenate(beside)[::-1], dict(shape=(J, L))),
        (stored, offsets, {}),
        (stored, list(offset), {}),
    ]
    others[2][2]["clients"] = np.repeat(np.arange(N_CLIENTS), [len(t) for t in triplets])[::-1]
    for X_form, offset_form, given in others:
        imputer = FederatedMatrixImputer(**POISSON).fit(X_form, offset=offset_form, **given)
        same_fit(want, imputer)
        score = imputer.score(X_form, offset=offset_form)
        assert_allclose(score, want.score(list(X), offset=list(offset)), rtol=1e-12)


def test_rows_of_clients_and_one_matrix():
    X, offset = matrices()
    rows, their_offset = X.reshape(-1, L), offset.reshape(-1, L)
    labels = np.repeat([2, 0, 1], J)
    by_label = FederatedMatrixImputer(**POISSON).fit(rows, clients=labels, offset=their_offset)
    alone = FederatedMatrixImputer(**POISSON).fit(rows, offset=their_offset)
    assert_allclose(by_label.fitted_mean(), alone.fitted_mean(), rtol=1e-9)
    disjoint = FederatedMatrixImputer(**POISSON, rows="disjoint").fit(X, offset=offset)
    assert_allclose(disjoint.fitted_mean(), alone.fitted_mean(), rtol=1e-9)


def test_transform_keeps_observations_and_uses_the_offset_of_missing_cells():
    X, offset = matrices()
    imputer = FederatedMatrixImputer(rank=1, family="poisson").fit(list(X), offset=list(offset))
    asked = np.where(np.isnan(offset), 0.3, offset)
    asked[0, 0] = NAN  # unknown: one unit
    X[0, 0] = NAN
    for filled, x, own in zip(imputer.transform(X, offset=asked), X, asked, strict=True):
        means = imputer.fitted_mean() * np.exp(np.nan_to_num(own))
        assert_allclose(filled, np.where(np.isnan(x), means, x), rtol=1e-12)


def test_new_rows():
    X, offset = matrices()
    imputer = FederatedMatrixImputer(rank=1, family="poisson", penalty=0.5)
    imputer.fit(X[0], offset=offset[0])
    filled = imputer.transform(X[1], offset=offset[1])
    again = imputer.transform(X[1], offset=offset[1] + np.log(2))  # half the rate
    missing = np.isnan(X[1])
    assert_array_equal(filled[~missing], X[1][~missing])
    # The ridge on the row effects keeps the rates from being exactly halved.
    assert (again[missing] < 0.75 * filled[missing]).all()


def test_score_of_one_matrix():
    X, offset = matrices()
    imputer = FederatedMatrixImputer(rank=1, family="poisson").fit(list(X), offset=list(offset))
    seen = ~np.isnan(X)
    means = (imputer.fitted_mean() * np.exp(offset))[seen]
    want = stats.poisson(means).logpmf(X[seen]).mean()
    assert_allclose(imputer.score(list(X), offset=list(offset)), want, rtol=1e-10)


def test_totals_are_those_of_one_unit():
    X, offset = visits(n=400)
    tables = []
    for shift in (0.0, 1.5):
        own = [part + shift for part in offset]
        imputer = FederatedMatrixImputer(**POISSON).fit(X, shape=(J, L), offset=own)
        tables.append(imputer.totals(X, offset=own).table)
    for name in ("imputed", "imputed_error", "model", "model_error"):
        assert_allclose(tables[1][name], tables[0][name] * np.exp(-1.5), rtol=1e-6)
    counts = np.zeros((2, J, L))
    for x, own in zip(X, offset, strict=True):
        cells = x[:, 0].astype(int), x[:, 1].astype(int)
        np.add.at(counts[0], cells, x[:, 2])
        np.add.at(counts[1], cells, np.exp(own))
    means = FederatedMatrixImputer(**POISSON).fit(X, shape=(J, L), offset=offset).fitted_mean()
    rates = np.divide(counts[0], counts[1], out=means, where=counts[1] > 0)
    assert_allclose(tables[0]["imputed"], rates.sum(axis=0), rtol=1e-6)


def test_parametric_errors_agree_with_the_equations():
    X, offset = visits(n=400)
    imputer = FederatedMatrixImputer(**POISSON | dict(tol=1e-8))
    imputer.fit(X, shape=(J, L), offset=offset)
    equations = imputer.totals(X, offset=offset, overdispersion=False, serial_correlation=False)
    drawn = imputer.totals(
        X, offset=offset, errors="parametric", overdispersion=False, n_draws=40, random_state=0
    )
    ratio = drawn.table["model_error"] / equations.table["model_error"]
    assert 0.8 < np.median(ratio) < 1.2  # 40 draws: within 11 %, and six columns


def test_imputations_are_drawn_for_one_unit():
    X, offset = visits()
    imputer = FederatedMatrixImputer(**POISSON).fit(X, shape=(J, L), offset=offset)
    (drawn,) = imputer.impute(X, offset=offset, n_imputations=1, random_state=0)
    site, month, _ = X[0][0]
    cell = [(x[:, 0] == site) & (x[:, 1] == month) for x in X]
    counts = sum(x[own, 2].sum() for x, own in zip(X, cell, strict=True))
    effort = sum(np.exp(o[own]).sum() for o, own in zip(offset, cell, strict=True))
    assert_allclose(drawn[int(site), int(month)], counts / effort)


def test_search_predicts_better_with_efforts():
    X, offset = visits(n=400)
    settings = dict(family="poisson", penalties=2, n_splits=2, effects_penalties=[0.1])
    settings = settings | dict(ranks=[1], random_state=0)
    search = FederatedMatrixImputerCV(**settings).fit(X, shape=(J, L), offset=offset)
    with pytest.warns(UserWarning, match="dispersion"):  # of the efforts
        without = FederatedMatrixImputerCV(**settings).fit(X, shape=(J, L))
    assert search.best_score_ > without.best_score_ + 0.5
    best = search.best_estimator_
    assert search.score(X, offset=offset) == best.score(X, offset=offset)
    assert_array_equal(search.transform(X, offset=offset)[0], best.transform(X, offset=offset)[0])


BAD = [
    (lambda o: o[:2], "list of 3 arrays, one for each client of X, got 2"),
    (lambda o: o[0], "one for each client of X, got a ndarray"),
    (lambda o: [o[0][:-1], *o[1:]], "for client 0, as the observations have"),
    (lambda o: [o[0], np.full_like(o[1], NAN), o[2]], "a finite offset for each observation"),
    (lambda o: [o[0], o[1] + 40, o[2]], "at most 30 in size"),
    (lambda o: [o[0], ["two"] * len(o[1]), o[2]], "Expected numbers for client 1"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_bad_offset(change, message):
    X, offset = visits()
    with pytest.raises(ValueError, match=re.escape(message)):
        FederatedMatrixImputer(**POISSON).fit(X, shape=(J, L), offset=change(offset))


def test_presences_have_no_offset():
    X = [np.array([[1.0, 0.0], [0.0, NAN]])]
    with pytest.raises(ValueError, match="got 'bernoulli'"):
        FederatedMatrixImputer(family="bernoulli").fit(X, offset=[np.zeros((2, 2))])


def test_totals_need_the_offset_of_the_fit():
    X, offset = visits()
    imputer = FederatedMatrixImputer(**POISSON).fit(X, shape=(J, L), offset=offset)
    with pytest.raises(ValueError, match="the data of the fit, with offset"):
        imputer.totals(X)


@pytest.mark.parametrize("axis", [0, 1])
def test_labels_of_offsets_are_those_of_the_matrix(axis):
    X, offset = (pd.DataFrame(own[0], list("abcdefgh"), list("uvwxyz")) for own in matrices())
    turned = offset.iloc[::-1] if axis == 0 else offset.iloc[:, ::-1]
    for table, given in ((X, turned), ([X, X], [offset, turned])):
        with pytest.raises(ValueError, match="labels of X, in that order.*Reindex offset"):
            FederatedMatrixImputer(**POISSON).fit(table, offset=given)


def test_an_offset_is_asked_for_after_a_fit_with_one():
    X, offset = matrices()
    imputer = FederatedMatrixImputer(**POISSON).fit(list(X), offset=list(offset))
    for method in (imputer.transform, imputer.score):
        with pytest.raises(ValueError, match="Expected an offset, as the fit had one"):
            method(list(X))


def test_offsets_of_missing_cells():
    X, offset = matrices()
    imputer = FederatedMatrixImputer(**POISSON).fit(list(X), offset=list(offset))
    site, month = np.argwhere(np.isnan(X[0]))[0]
    for own, factor in ((-np.inf, 0.0), (NAN, 1.0), (1.0, np.e)):
        offset[0, site, month] = own  # no effort, unknown effort, e units of it
        filled = imputer.transform(list(X), offset=list(offset))[0][site, month]
        assert_allclose(filled, factor * imputer.fitted_mean()[site, month], rtol=1e-12)
    offset[0, site, month] = 800.0
    with pytest.raises(ValueError, match="offset of at most 30 in each cell, got 800"):
        imputer.transform(list(X), offset=list(offset))


@pytest.mark.parametrize("shape", [(40,), (40, 3), (40, 1)])
def test_offsets_of_another_form(shape):
    X, _ = visits()
    table = np.concatenate(X)[:40]
    if len(shape) == 1:
        X, given = matrices()[0][0], {}  # a matrix, and one offset for each of so many triplets
    else:
        X, given = table, dict(shape=(J, L))
    with pytest.raises(ValueError, match="Expected an offset of shape"):
        FederatedMatrixImputer(**POISSON).fit(X, offset=np.zeros(shape), **given)
