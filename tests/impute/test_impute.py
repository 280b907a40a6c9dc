"""The imputer: what is fitted, scikit-learn's ways, and memory for no dense matrix."""

import pickle
import warnings
from fractions import Fraction

import numpy as np
import pytest
import sklearn
from joblib import parallel_config
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from scipy.sparse import coo_array
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer

from imputations import (
    CLIENTS,
    EXACT,
    FAMILIES,
    N_CLIENTS,
    N_COLUMNS,
    N_ROWS,
    NAN,
    NOTHING,
    OWNERS,
    QUICK,
    SHAPE,
    STACKED,
    STOCHASTIC,
    TRIPLETS,
    assert_finite,
    every_family,
    make_clients,
    observed,
    of_family,
)
from problems import assert_same_fit, fit_unconverged
from skfedem import FederatedMatrixImputer
from skfedem.compression import Dithering
from skfedem.models.matrix import main_effects
from watched import peak_memory

LOG_LIKELIHOODS = {
    "gaussian": stats.norm.logpdf,
    "bernoulli": stats.bernoulli.logpmf,
    "poisson": stats.poisson.logpmf,
}


# ------------------------------------------------------------------ what is fitted


@every_family
@pytest.mark.parametrize("effects_penalty", [0.0, 0.01, 2.0])
def test_the_objective_is_that_of_the_docstring(family, effects_penalty):
    X = of_family(family)
    imputer = FederatedMatrixImputer(
        2, family=family, penalty=0.7, effects_penalty=effects_penalty
    ).fit(X)
    values, means = observed(X, imputer.fitted_mean())
    log_likelihood = LOG_LIKELIHOODS[family](values, means).sum()
    want = -log_likelihood + 0.7 * imputer.singular_values_.sum()
    squares = (imputer.row_effects_**2).sum() + (imputer.column_effects_**2).sum()
    assert_allclose(imputer.objective_, want + max(effects_penalty, 1e-7) / 2 * squares, rtol=1e-12)
    assert_allclose(imputer.history_["objective"][-1], imputer.objective_, rtol=1e-12)


@pytest.mark.parametrize("number", [np.int8, np.float16, np.longdouble, Fraction])
def test_numbers_of_any_type_are_used_as_pythons(number):
    # The numbers of 8 factors leave 8 bits, 2**9 squared and summed over cells 16.
    if number is np.int8:
        plain = {"rank": 8, "batch_size": 5, "max_iter": 4}
    else:
        plain = {"penalty": 512.0, "effects_penalty": 0.5, "step_size": 0.25, "omega": 1.5}
    rest = {"family": "gaussian", "omega": 1.0, "tol": 0, "random_state": 0, "max_iter": 4}
    odd = {name: number(value) for name, value in plain.items()}
    got, want = (
        fit_unconverged(FederatedMatrixImputer(**rest | parameters), CLIENTS)
        for parameters in (odd, plain)
    )
    assert_same_fit(got, want)
    assert type(got.objective_) is float
    assert got.score(CLIENTS) == want.score(CLIENTS)


@every_family
def test_score_is_the_mean_log_likelihood_of_the_observations(family):
    X = of_family(family)
    imputer = FederatedMatrixImputer(2, family=family, penalty=0.7).fit(X[:3])
    held_out = X[3:]
    values, means = observed(held_out, imputer.fitted_mean())
    assert isinstance(imputer.score(held_out), float)
    assert_allclose(
        imputer.score(held_out), LOG_LIKELIHOODS[family](values, means).mean(), rtol=1e-12
    )
    assert_allclose(imputer.score([*held_out, NOTHING]), imputer.score(held_out), rtol=1e-14)
    assert_allclose(imputer.score([np.stack(held_out)]), imputer.score(held_out), rtol=1e-14)
    # So it is after a fit to a matrix alone, whose rows are the sites of one client.
    alone, listed = (clone(imputer).fit(train) for train in (X[0], [X[0]]))
    assert_allclose(alone.score(held_out), listed.score(held_out), rtol=1e-12)
    assert_allclose(alone.transform(held_out)[0], listed.transform(held_out)[0], rtol=1e-12)
    with pytest.raises(ValueError, match=f"Expected the {N_ROWS} rows of the fit"):
        alone.score([held_out[0][1:]])


@every_family
def test_each_cell_of_other_rows_is_scored_without_a_look_at_it(family):
    X = of_family(family)
    imputer = FederatedMatrixImputer(2, family=family, penalty=0.7).fit(X[:3])
    table = X[3].copy()
    table[0] = np.nan  # nothing to score
    table[1, 1:] = np.nan  # a single cell, for which the fit alone speaks
    seen = ~np.isnan(table)
    is_second = seen & (seen.cumsum(axis=1) % 2 == 0)
    means = np.full(table.shape, np.nan)
    for asked in (is_second, seen & ~is_second):
        means[asked] = imputer.transform(np.where(asked, np.nan, table))[asked]
    log_likelihoods = LOG_LIKELIHOODS[family](table[seen], means[seen])
    # Newton's method ends where gradients are rounding.
    assert_allclose(imputer.score(table), log_likelihoods.mean(), rtol=1e-9)
    assert_allclose(imputer.score(table[1:]), imputer.score(table), rtol=1e-9)


def test_grid_search_over_rows_of_one_matrix_does_not_take_the_smallest_penalty():
    rng = np.random.default_rng(0)
    low_rank = rng.normal(size=(60, 2)) @ rng.normal(size=(2, 20))
    X = low_rank + rng.normal(size=low_rank.shape)
    X[rng.random(X.shape) < 0.5] = np.nan
    search = GridSearchCV(
        FederatedMatrixImputer(3), {"penalty": [0.01, 3.0, 1000.0]}, cv=3, error_score="raise"
    )
    assert search.fit(X).best_params_ == {"penalty": 3.0}


@pytest.mark.parametrize("effects", ["both", "rows", "columns", "none"])
def test_theta_is_the_sum_of_its_parts(effects):
    imputer = FederatedMatrixImputer(**{**EXACT, "effects": effects}).fit(CLIENTS)
    n_factors = len(imputer.singular_values_)
    assert 0 < n_factors <= 4
    assert (np.diff(imputer.singular_values_) <= 0).all()
    assert imputer.row_factors_.shape == (N_ROWS, n_factors)
    assert imputer.column_factors_.shape == (N_COLUMNS, n_factors)
    for factors in (imputer.row_factors_, imputer.column_factors_):
        assert_allclose(factors.T @ factors, np.eye(n_factors), atol=1e-12)
    theta = imputer.intercept_ + imputer.row_effects_[:, None] + imputer.column_effects_
    theta = theta + imputer.row_factors_ * imputer.singular_values_ @ imputer.column_factors_.T
    assert_allclose(imputer.fitted_mean(), np.exp(theta), rtol=1e-12)
    assert isinstance(imputer.intercept_, float)
    assert (imputer.intercept_ == 0) == (effects == "none")
    for own, name in ((imputer.row_effects_, "rows"), (imputer.column_effects_, "columns")):
        assert abs(own.mean()) < 1e-12
        assert own.any() == (effects in ("both", name))


def test_fitted_mean_of_some_cells_is_a_part_of_all(fitted):
    means = fitted.fitted_mean()
    assert means.shape == SHAPE
    assert_allclose(fitted.fitted_mean([3, 1, 3]), means[[3, 1, 3]], rtol=1e-12)
    assert_allclose(fitted.fitted_mean(columns=[0, -1]), means[:, [0, -1]], rtol=1e-12)
    assert_allclose(fitted.fitted_mean([-N_ROWS], [-N_COLUMNS]), means[:1, :1], rtol=1e-12)
    assert_allclose(
        fitted.fitted_mean(np.array([2, -1]), (0, 5)), means[np.ix_([2, -1], [0, 5])], rtol=1e-12
    )
    assert_allclose(fitted.fitted_mean(3, 4), means[3:4, 4:5], rtol=1e-12)
    assert fitted.fitted_mean([], [1, 2]).shape == (0, 2)


@pytest.mark.parametrize(
    ("index", "error", "says"),
    [
        ([12], IndexError, "rows from 0 to 11, or from -12 to -1 .* got 12"),
        ([0, -13], IndexError, "got -13"),
        ([0.5], TypeError, "Expected rows to be a list of integers, .* float64"),
        (np.zeros(N_ROWS, bool), TypeError, "numpy.flatnonzero of a mask"),
        (np.ma.array([0, 1], mask=[0, 1]), ValueError, "rows without masked entries"),
        ([[0, 1]], TypeError, r"shape \(1, 2\)"),
        ("a", TypeError, "list of integers"),
    ],
)
def test_fitted_mean_of_cells_that_are_not_there_is_refused(fitted, index, error, says):
    with pytest.raises(error, match=says):
        fitted.fitted_mean(index)
    with pytest.raises(error):
        fitted.fitted_mean(columns=index)


@pytest.mark.parametrize("offset", [1e6, -1e9])
@pytest.mark.parametrize(
    "noise", [{}, {"omega": 1.0, "participation": 0.7, "tol": 1e-3, "max_iter": 2000}]
)
def test_an_offset_of_normal_cells_changes_the_intercept_alone(noise, offset):
    rng = np.random.default_rng(0)
    table = 2 * rng.normal(size=(30, 2)) @ rng.normal(size=(2, 20)) + rng.normal(size=(30, 20))
    # Sixty-fourths, which an offset leaves as they are.
    table = np.round(64 * table) / 64
    clients = [np.where(rng.random(table.shape) < 0.3, table, NAN) for _ in range(3)]
    there = [own + offset for own in clients]
    imputer = FederatedMatrixImputer(None, penalty=3.0, random_state=0, **noise)
    near, far = clone(imputer).fit(clients), clone(imputer).fit(there)
    # What an offset has digits for, a few times.
    digits = {"rtol": 0, "atol": 1e-15 * abs(offset)}
    assert far.n_iter_ == near.n_iter_
    assert_allclose(far.objective_, near.objective_, rtol=1e-9)
    assert_allclose(far.intercept_ - offset, near.intercept_, **digits)
    assert_allclose(far.fitted_mean() - offset, near.fitted_mean(), **digits)
    assert_allclose(far.score(there), near.score(clients), rtol=1e-6)
    others = clients[0][::-1].copy()
    assert_allclose(far.transform(others + offset) - offset, near.transform(others), **digits)
    assert_allclose(far.score(others + offset), near.score(others), rtol=1e-6)
    again = clone(imputer).set_params(warm_start=True, max_iter=2000).fit(there)
    assert again.fit(clients[::-1]).converged_
    assert_allclose(again.objective_, near.objective_, rtol=1e-3)


def test_rounds_do_not_stop_while_momentum_gathers_pace():
    # Gains of the first rounds are below tol, and a thousand times as large in sum.
    counts = np.array([[588.0, 44.0, 32.0, 1.0]])
    clients = [np.where(mask, counts, NAN) for mask in np.eye(4, dtype=bool)[[0]]]
    clients.append(np.where(np.arange(4) > 0, counts, NAN))
    imputer = FederatedMatrixImputer(None, family="poisson", penalty=0.009, max_iter=3000)
    fit = clone(imputer).fit(clients)
    optimum = imputer.set_params(tol=1e-10).fit(clients).objective_
    # A hundred times tol at most, as its docstring says.
    assert fit.converged_ and fit.objective_ < optimum * (1 + 1e-4)


@pytest.mark.parametrize("effects", ["none", "both"])
@pytest.mark.parametrize("noise", [{}, {"omega": 1.0, "participation": 0.7, "max_iter": 2000}])
def test_units_of_normal_cells_do_not_matter(effects, noise):
    rng = np.random.default_rng(0)
    table = rng.normal(size=(30, 3)) @ rng.normal(size=(3, 20)) + rng.normal(size=(30, 20))
    table[rng.random(table.shape) < 0.5] = np.nan
    tables = np.split(table, [5, 12, 20])
    # Powers of two change no digit but in sums with the constant log(2 π) / 2.
    large, small = (
        FederatedMatrixImputer(
            4, penalty=3 * unit, effects=effects, rows="disjoint", random_state=0, **noise
        ).fit([unit * own for own in tables])
        for unit in (1.0, 2.0**-12)
    )
    assert abs(large.n_iter_ - small.n_iter_) <= 10
    assert large.n_iter_ > 15
    # Within what tol leaves; main effects are solved for to 1e-5.
    assert_allclose(2.0**12 * small.fitted_mean(), large.fitted_mean(), atol=0.01)


@pytest.mark.parametrize("effects", ["both", "rows", "columns"])
def test_effects_follow_the_smallest_units(effects):
    table = np.array([[15.0, 17.0, 18.0], [14.0, NAN, 16.5]])
    large, small = (
        FederatedMatrixImputer(1, penalty=100 * unit, effects=effects).fit(unit * table)
        for unit in (1.0, 2.0**-80)
    )
    assert_allclose(2.0**80 * small.fitted_mean(), large.fitted_mean(), rtol=1e-6)


def test_units_of_cells_that_were_observed_again_and_again_do_not_matter():
    rng = np.random.default_rng(0)
    rows, columns = rng.integers(12, size=600), rng.integers(9, size=600)
    values = rng.normal(size=(12, 2))[rows] @ rng.normal(size=(2, 9))
    values = values[np.arange(600), columns] + rng.normal(size=600)
    clients = rng.integers(4, size=600)

    def fit(unit):
        tables = [np.column_stack([rows, columns, unit * values])[clients == k] for k in range(4)]
        imputer = FederatedMatrixImputer(3, penalty=5 * unit, effects="none")
        return imputer.fit(tables, shape=(12, 9))

    large, small = fit(1.0), fit(2.0**-12)
    assert large.n_iter_ > 10
    assert large.n_iter_ == small.n_iter_
    assert_allclose(2.0**12 * small.fitted_mean(), large.fitted_mean(), rtol=1e-9)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("step_size", [lambda k: 1e-8**k, 1e-300])
def test_steps_whose_squares_vanish_leave_means_finite(step_size):
    imputer = FederatedMatrixImputer(
        2, family="poisson", omega=1.0, step_size=step_size, max_iter=22, random_state=0
    )
    imputer.fit(make_clients())
    assert np.isfinite(imputer.fitted_mean()).all()


def test_effects_that_fit_to_rounding_are_let_be(monkeypatch):
    calls = []
    linear = main_effects._linear

    def counted(*args):
        calls.append(1)
        return linear(*args)

    monkeypatch.setattr(main_effects, "_linear", counted)
    imputer = FederatedMatrixImputer(1, family="bernoulli", tol=0, max_iter=250)
    fit_unconverged(imputer, np.ones((1, 1)))
    # A step of Newton's in a round, now and then another: none is halved for what is rounding.
    assert len(calls) < 5 * imputer.n_iter_


def test_a_penalty_that_leaves_only_effects():
    imputer = FederatedMatrixImputer(**{**EXACT, "penalty": 1e6}).fit(CLIENTS)
    assert imputer.singular_values_.shape == (0,)
    assert imputer.row_factors_.shape == (N_ROWS, 0)
    assert imputer.column_factors_.shape == (N_COLUMNS, 0)
    assert imputer.history_["singular_values"].shape == (imputer.n_iter_ + 1, 4)
    assert not imputer.history_["singular_values"].any()
    # The margins of a log-linear model fit exactly, but for the ridge.
    values, means = observed(CLIENTS, imputer.fitted_mean())
    assert_allclose(means.sum(), values.sum(), rtol=1e-6)
    assert imputer.transform(CLIENTS)[0].shape == SHAPE
    assert imputer.transform(STACKED[:3]).shape == (3, N_COLUMNS)
    assert_finite(pickle.loads(pickle.dumps(imputer)))
    imputer.set_params(warm_start=True, penalty=2.0).fit(CLIENTS)
    assert len(imputer.singular_values_) > 0


def test_rank_none_is_no_bound_and_rank_is_one():
    free = FederatedMatrixImputer(**{**EXACT, "rank": None}).fit(CLIENTS)
    assert free.history_["singular_values"].shape[1] == N_COLUMNS
    assert len(free.singular_values_) > 2
    bound = FederatedMatrixImputer(**{**EXACT, "rank": 2}).fit(CLIENTS)
    assert bound.singular_values_.shape == (2,)
    assert free.objective_ < bound.objective_


@pytest.mark.parametrize("rank", [3, 8])
def test_a_rank_that_does_not_bind_loses_no_client_with_sites_and_months_of_its_own(rank):
    generator = np.random.default_rng(0)

    def signs(*shape):
        return generator.choice([-1.0, 1.0], size=shape)

    # At the start the few cells of the large pattern have many singular values above those of the
    # small one; in the end they have one.
    X = np.full((120, 80), np.nan)
    X[:60, :40] = np.where(generator.random((60, 40)) < 0.12, 5 * signs(60, 1) * signs(40), np.nan)
    small = 0.8 * signs(60, 1) * signs(40)
    X[60:, 40:] = np.where(generator.random((60, 40)) < 0.3, small, np.nan)
    first, second = X.copy(), X.copy()
    first[60:], second[:60] = np.nan, np.nan
    bounded, unbounded = (
        FederatedMatrixImputer(rank, effects="none", penalty=9.0).fit([first, second])
        for rank in (rank, None)
    )
    assert len(bounded.singular_values_) == len(unbounded.singular_values_) == 2
    # tol leaves an objective up to a hundred times 1e-6 above its minimum.
    assert_allclose(bounded.objective_, unbounded.objective_, rtol=1e-4)


def test_a_fit_without_a_penalty_is_finite_and_closer():
    imputer = FederatedMatrixImputer(2, family="poisson", penalty=0.0, max_iter=1000)
    imputer.fit(CLIENTS)
    assert_finite(imputer)
    assert imputer.objective_ < FederatedMatrixImputer(**EXACT).fit(CLIENTS).objective_


def test_clients_count_by_their_cells_or_all_alike():
    # Client 0 has a cell, client 1 has three: alike, the one counts as much as the three.
    one, three = (
        coo_array(([0.0], ([0], [0])), (2, 2)),
        coo_array(([3.0] * 3, ([0, 0, 1], [0, 1, 0])), (2, 2)),
    )
    parameters = {"rank": 1, "penalty": 1e6, "effects": "rows", "effects_penalty": 0, "tol": 1e-12}
    pooled = FederatedMatrixImputer(**parameters).fit([one, three])
    uniform = FederatedMatrixImputer(**parameters, client_weights="uniform").fit([one, three])
    # Row 0: 0 weighs 1 or 2, two times 3 weigh 2 or 4/3.
    assert_allclose(pooled.fitted_mean()[0], 2.0, rtol=1e-6)
    assert_allclose(uniform.fitted_mean()[0], 3 * (4 / 3) / (2 + 4 / 3), rtol=1e-6)
    assert_allclose(uniform.fitted_mean()[1], 3.0, rtol=1e-6)


def test_clients_count_alike_however_often_they_looked():
    often, once = np.array([[0, 0, 2.0]] * 100), np.array([[0, 0, 20.0]])
    parameters = {"rank": 1, "penalty": 1e-9, "effects": "none", "tol": 1e-12}
    pooled, alike = (
        FederatedMatrixImputer(**parameters, client_weights=weights).fit(
            [often, once], shape=(2, 2)
        )
        for weights in ("n_samples", "uniform")
    )
    assert_allclose(pooled.fitted_mean()[0, 0], (100 * 2 + 20) / 101, rtol=1e-8)
    assert_allclose(alike.fitted_mean()[0, 0], (2 + 20) / 2, rtol=1e-8)
    # The objective counts as many observations as there are: 50.5 of either client.
    theta = alike.fitted_mean()[0, 0]
    minus_log_likelihood = 0.5 * 50.5 * ((2 - theta) ** 2 + (20 - theta) ** 2)
    expected = minus_log_likelihood + 0.5 * 101 * np.log(2 * np.pi)
    assert_allclose(alike.objective_, expected, rtol=1e-6)  # but for the penalty


BIG = [1000] + [50] * 60


@pytest.fixture(scope="module")
def one_big_observer():
    """Clients, one of whom has a fourth of the cells; parameters; and the least objective."""
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(100, 3)) @ rng.normal(size=(3, 80)) / 1.5
    matrix += rng.normal(size=matrix.shape)
    order, clients = rng.permutation(8000), []
    for cells in np.split(order[: sum(BIG)], np.cumsum(BIG)[:-1]):
        clients.append(coo_array((matrix.ravel()[cells], (cells // 80, cells % 80)), (100, 80)))
    common = {"rank": 5, "penalty": 3.0, "random_state": 0}
    exact = FederatedMatrixImputer(**common, tol=1e-9, max_iter=1000).fit(clients)
    return clients, common, exact.objective_


@pytest.mark.parametrize(
    ("settings", "gap"),
    [
        ({"solver": "vr_fedem", "batch_size": 100}, 1e-3),
        ({"solver": "vr_fedem", "batch_size": 100, "omega": 1.0, "compressor": "rand_k"}, 1e-2),
        ({"batch_size": 100}, 0.05),
        ({"batch_size": 10}, 0.2),
    ],
)
def test_an_observer_with_a_fourth_of_the_cells_makes_no_minibatches_diverge(
    settings, gap, one_big_observer
):
    # Of the mean length, steps were too long for her cells: the objectives rose to 1e5 and 1e26.
    clients, common, least = one_big_observer
    imputer = FederatedMatrixImputer(**common, **settings, max_iter=200, eval_every=100)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Not converged", ConvergenceWarning)
        imputer.fit(clients)
    # Nats a cell; FedEM's noise keeps its floor.
    assert imputer.objective_ - least < gap * sum(BIG)


def test_who_is_unlike_the_others_drifts():
    unlike = CLIENTS[0] + 20
    imputer = FederatedMatrixImputer(**EXACT).fit([*CLIENTS, unlike])
    assert imputer.client_drift_.shape == (5,)
    assert imputer.client_drift_.argmax() == 4
    assert (imputer.client_drift_ > 0).all()


def test_drift_is_that_of_residuals_whoever_looks_more_often():
    # Two observers of the same noise: the one saw each cell once, the other sixteen times.
    rng = np.random.default_rng(0)
    once, often = rng.normal(size=(30, 20)), rng.normal(size=(16, 30, 20))
    imputer = FederatedMatrixImputer(rank=1, penalty=1e3, tol=1e-12).fit([once, often])
    own = once - imputer.fitted_mean(), 4 * (often.mean(axis=0) - imputer.fitted_mean())
    root_mean_squares = [np.sqrt(np.mean(residuals**2)) for residuals in own]
    assert_allclose(imputer.client_drift_, root_mean_squares, rtol=1e-6)
    assert_allclose(imputer.client_drift_, 1.0, atol=0.15)


# ------------------------------------------------------------------ scikit-learn's ways


def test_grid_search_holds_out_observers():
    # Rank 1 beside effects, well observed: a penalty in the middle is best, and no penalty worst.
    clients = make_clients(9, share=0.5, seed=3)
    grid = {"rank": [1, 4], "penalty": [0.01, 10.0, 1000.0]}
    imputer = FederatedMatrixImputer(family="poisson", max_iter=500, tol=1e-2)
    search = GridSearchCV(imputer, grid, cv=3).fit(clients)
    assert search.best_params_["penalty"] == 10.0
    folds = KFold(3).split(clients)
    by_hand = [
        clone(imputer)
        .set_params(**search.best_params_)
        .fit([clients[k] for k in train])
        .score([clients[k] for k in test])
        for train, test in folds
    ]
    assert_allclose(search.best_score_, np.mean(by_hand), rtol=1e-12)
    scores, is_rank_4 = (search.cv_results_[name] for name in ("mean_test_score", "param_rank"))
    least, _, largest = scores[is_rank_4 == 4]
    assert max(least, largest) < search.best_score_ - 0.05
    assert search.best_estimator_.n_clients_ == 9
    with parallel_config("threading"):
        in_threads = GridSearchCV(imputer, grid | {"penalty": [10.0]}, cv=3, n_jobs=2).fit(clients)
    assert_array_equal(in_threads.cv_results_["mean_test_score"], scores[2:4])


def test_grid_search_tunes_the_federation():
    grid = [
        {"omega": [0.0, 1.0], "participation": [0.75, 1.0]},
        {"step_size": [0.3], "omega": [1.0]},
    ]
    imputer = FederatedMatrixImputer(**{**EXACT, "tol": 1e-3, "max_iter": 2000})
    search = GridSearchCV(imputer, grid, cv=2).fit(CLIENTS)
    scores = search.cv_results_["mean_test_score"]
    # All of them go to the same optimum, near enough.
    assert np.isfinite(scores).all()
    assert np.ptp(scores) < 0.05
    assert len(np.unique(scores)) == 5


@pytest.mark.parametrize("routing", [False, True])
def test_cross_validation_of_triplets(routing):
    with sklearn.config_context(enable_metadata_routing=routing):
        scores = cross_val_score(
            FederatedMatrixImputer(**QUICK), TRIPLETS, cv=2, params={"shape": SHAPE}
        )
    want = cross_val_score(FederatedMatrixImputer(**QUICK), CLIENTS, cv=2)
    assert_array_equal(scores, want)


@pytest.mark.parametrize(
    ("routing", "key"), [(False, "impute__clients"), (True, "clients")], ids=["prefix", "routing"]
)
def test_the_last_step_of_a_pipeline_is_fitted_as_it_is_alone(routing, key):
    steps = [("as is", FunctionTransformer()), ("impute", FederatedMatrixImputer(**QUICK))]
    direct = FederatedMatrixImputer(**QUICK).fit(STACKED, clients=OWNERS)
    with sklearn.config_context(enable_metadata_routing=routing):
        pipe = Pipeline(steps).fit(STACKED, **{key: OWNERS})
        filled = clone(pipe).fit_transform(STACKED, **{key: OWNERS})
        score = pipe.score(STACKED)
        search = GridSearchCV(clone(pipe), {"impute__penalty": [1.0, 5.0]}, cv=2)
        search.fit(STACKED, **{key: OWNERS})
    assert_same_fit(pipe["impute"], direct)
    assert pipe["impute"].client_ids_.tolist() == ["ann", "bob", "cid", "dan"]
    assert_array_equal(filled, direct.transform(STACKED))
    assert score == direct.score(STACKED)
    assert search.best_estimator_["impute"].n_clients_ == N_CLIENTS


def test_a_clone_has_the_parameters_and_a_pickle_the_fit():
    parameters = {**STOCHASTIC, "compressor": Dithering(levels=3), "omega": 3.0, "tol": 1e-2}
    imputer = FederatedMatrixImputer(**parameters).fit(CLIENTS)
    copy = clone(imputer)
    assert not [name for name in vars(copy) if name.endswith("_")]
    assert_same_fit(copy.fit(CLIENTS), imputer)
    loaded = pickle.loads(pickle.dumps(imputer))
    assert_same_fit(loaded, imputer)
    assert_array_equal(loaded.transform(CLIENTS)[0], imputer.transform(CLIENTS)[0])


def test_before_a_fit():
    with pytest.raises(NotFittedError):
        FederatedMatrixImputer().fitted_mean()


def test_a_fit_is_what_it_was_after_set_params():
    imputer = FederatedMatrixImputer(**QUICK).fit(CLIENTS)
    want = imputer.fitted_mean(), imputer.score(CLIENTS), imputer.transform(STACKED)
    imputer.set_params(family="gaussian", penalty=99.0, effects="none", rows="disjoint", rank=1)
    assert_array_equal(imputer.fitted_mean(), want[0])
    assert imputer.score(CLIENTS) == want[1]
    assert_array_equal(imputer.transform(STACKED), want[2])


@pytest.mark.parametrize("family", FAMILIES)
def test_negative_numbers_are_a_matter_of_the_family(family):
    tags = FederatedMatrixImputer(family=family).__sklearn_tags__().input_tags
    assert tags.positive_only == (family != "gaussian")
    assert tags.allow_nan
    assert tags.sparse


# ------------------------------------------------------------------ memory


def test_no_dense_matrix_is_ever_built():
    shape, n_cells = (20_000, 5_000), 5_000
    generator = np.random.default_rng(0)
    clients = []
    for _ in range(4):
        # Every fiftieth site and month, so that the effects are soon found.
        cells = (
            50 * generator.integers(400, size=n_cells),
            50 * generator.integers(100, size=n_cells),
        )
        clients.append(coo_array((generator.poisson(2.0, n_cells) * 1.0, cells), shape))
    imputer = FederatedMatrixImputer(2, family="poisson", penalty=3.0, max_iter=3)

    def used():
        fit_unconverged(imputer, clients).score(clients)
        assert imputer.fitted_mean([19_999], [0, 4_999]).shape == (1, 2)

    # A dense matrix of doubles is 800 MB; a twentieth of it is a few copies of cells and factors.
    assert peak_memory(used) < 40e6
