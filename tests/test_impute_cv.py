"""Rank and penalty by held-out cells: the path, the split, the scores, and real counts."""

import os
import threading
import warnings
from copy import copy
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from joblib import Parallel, parallel_config
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import coo_array
from scipy.stats import bernoulli, norm, poisson
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks
from threadpoolctl import threadpool_limits

from skfedem import (
    FederatedMatrixImputer,
    FederatedMatrixImputerCV,
    _penalty_grid,
    _penalty_path,
    impute_cv,
)
from skfedem._held_out import Triplets, deal_cells, split_cells
from skfedem._input.cells import check_cells
from skfedem._penalty_path import (
    Trial,
    _places,
    index_of_best,
    largest_penalty,
    tabulated,
    trials_together,
)
from skfedem.models.families import FAMILIES
from skfedem.solvers import _loop
from skfedem.solvers._loop import client_round
from watched import interrupted, library_threads

DATA = Path(os.environ.get("SKFEDEM_DATA", Path(__file__).parents[2] / "shared" / "data"))
# Most paths are short here.
pytestmark = pytest.mark.filterwarnings("ignore:The best penalty.* is the smallest that was tried")
SHAPE = (14, 9)
LOG_DENSITIES = {
    "gaussian": lambda y, mean: norm.logpdf(y, mean),
    "bernoulli": lambda y, mean: bernoulli.logpmf(y, mean),
    "poisson": lambda y, mean: poisson.logpmf(y, mean),
}
every_family = pytest.mark.parametrize("family", FAMILIES)
# For what depends neither on how far fits go nor on which penalties on the effects are tried.
QUICK = {"effects_penalties": [0.1], "n_splits": 2, "tol": 1e-2, "random_state": 0}


def path_trials(imputer, splits, penalties, patience):
    """Trials of one path."""
    return trials_together([(imputer, penalties)], splits, patience, Parallel(n_jobs=1), verbose=0)


def clients_of(family="gaussian", n_clients=4, share=0.35, seed=0):
    """Matrices with missing cells; several clients may have seen one."""
    rng = np.random.default_rng(seed)
    low_rank = rng.normal(size=(SHAPE[0], 2)) @ rng.normal(size=(2, SHAPE[1]))
    mean = FAMILIES[family].mean(0.5 + 0.7 * low_rank)
    clients = []
    for _ in range(n_clients):
        values = {
            "gaussian": lambda: mean + rng.normal(size=SHAPE),
            "bernoulli": lambda: rng.binomial(1, mean).astype(float),
            "poisson": lambda: rng.poisson(mean).astype(float),
        }[family]()
        clients.append(np.where(rng.random(SHAPE) < share, values, np.nan))
    return clients


def observed_by(clients, family="gaussian"):
    imputer = FederatedMatrixImputer(effects="none")
    return check_cells(imputer, clients, family=FAMILIES[family], keep_observations=True)


def folds_of(observed, n_splits, seed=0):
    return deal_cells(observed, n_splits, seed)


class Recorder(FederatedMatrixImputer):
    """Keeps what was fitted, as others look on."""

    fits = []

    def fit(self, X, y=None, *, clients=None, shape=None):
        super().fit(X, clients=clients, shape=shape)
        self.fits.append({**self.get_params(), "objective": self.objective_})
        return self


def fit_to(training, imputer):
    return imputer.fit(training.table, clients=training.clients, shape=training.shape)


class StubbedFit(FederatedMatrixImputer):
    """What a trial reads of a fit, but for its factors and scores."""

    n_iter_, converged_, _stopped_by = 1, True, None
    history_ = {"uplink_bits": np.zeros(1)}


def stubbed(table):
    """What a stub is given for observations."""
    return Triplets(table, None, None)


@pytest.fixture
def recorded(monkeypatch):
    monkeypatch.setattr(Recorder, "fits", [])
    monkeypatch.setattr(impute_cv, "FederatedMatrixImputer", Recorder)
    return Recorder.fits


# Fewer, shorter and simpler fits than by default: what is checked does not depend on them, and the
# imputer itself is checked with the effects of its default.
@parametrize_with_checks(
    [
        FederatedMatrixImputerCV(
            effects="rows", penalties=1, effects_penalties=(0.1,), n_splits=2, tol=0.1
        )
    ]
)
def test_the_contract_of_scikit_learn(estimator, check):
    check(estimator)


# ---- the path


@every_family
@pytest.mark.parametrize("effects", ["both", "rows", "columns", "none"])
@pytest.mark.parametrize("client_weights", ["n_samples", "uniform"])
def test_the_low_rank_part_vanishes_from_the_largest_penalty_on(family, effects, client_weights):
    # Not all alike, so that uniform weights differ from the others.
    clients = clients_of(family)
    clients[0][3:] = np.nan
    cells = observed_by(clients, family)
    options = {"family": family, "effects": effects, "client_weights": client_weights}
    threshold = largest_penalty(FederatedMatrixImputer(**options), cells)
    for factor, n_factors in ((1 + 1e-6, 0), (1 - 1e-3, 1)):
        imputer = FederatedMatrixImputer(None, penalty=factor * threshold, tol=1e-9, **options)
        assert len(imputer.fit(clients).singular_values_) == n_factors


def test_the_path_of_clients_who_count_alike_begins_there_too():
    # One of them looked often, so that observations weigh other than cells do.
    rng = np.random.default_rng(0)
    often, once = (
        np.column_stack([rng.integers(12, size=n), rng.integers(8, size=n), rng.poisson(4, n)])
        for n in (600, 80)
    )
    options = {"family": "poisson", "client_weights": "uniform"}
    search = FederatedMatrixImputerCV(penalties=1, n_splits=2, random_state=0, **options)
    search.fit([often, once], shape=(12, 8))
    options["effects_penalty"] = search.best_params_["effects_penalty"]
    for factor, n_factors in ((1 + 1e-6, 0), (1 - 1e-3, 1)):
        penalty = factor * search.penalty_max_
        imputer = FederatedMatrixImputer(None, penalty=penalty, tol=1e-9, **options)
        assert len(imputer.fit([often, once], shape=(12, 8)).singular_values_) == n_factors


def test_the_path_of_normal_cells_does_not_know_their_offset():
    rng = np.random.default_rng(0)
    # Sixty-fourths, which an offset leaves as they are.
    cells = np.round(64 * rng.normal(size=(40, 12))) / 64
    cells[rng.random(cells.shape) < 0.4] = np.nan
    searches = [
        FederatedMatrixImputerCV(penalties=3, n_splits=2, tol=0.1, random_state=0).fit(
            [cells + offset]
        )
        for offset in (0, 1e6)
    ]
    near, far = (search.cv_results_["param_penalty"] for search in searches)
    assert_allclose(near, far, rtol=1e-12)


def test_the_path_is_a_log_scale_from_the_largest_penalty():
    options = {"n_splits": 2, "random_state": 0, "tol": 0.1, "effects_penalties": [0.1]}
    search = FederatedMatrixImputerCV(penalties=4, eps=0.064, patience=None, **options)
    search.fit(clients_of())
    penalties = search.cv_results_["param_penalty"] / search.penalty_max_
    assert_allclose(penalties, [1, 0.4, 0.16, 0.064])
    given = FederatedMatrixImputerCV(penalties=[2.0, 5.0, 2.0], **options).fit(clients_of())
    assert_array_equal(given.cv_results_["param_penalty"], [5.0, 2.0])
    assert given.penalty_max_ == search.penalty_max_


def test_a_matrix_that_effects_explain_has_a_path():
    # One column: nothing is left beside its effects.
    table = np.random.default_rng(0).normal(size=(20, 1))
    search = FederatedMatrixImputerCV(effects="rows", effects_penalties=[0], random_state=0)
    assert search.fit(table).penalty_max_ < 1e-5
    zeros = FederatedMatrixImputerCV(effects="none").fit(np.zeros((6, 5)))
    assert zeros.best_params_ == {"rank": None, "effects_penalty": 0.1, "penalty": 0.0}


@every_family
def test_fits_down_the_path_are_those_from_nothing(family):
    observed = observed_by(clients_of(family), family)
    training, held_out = split_cells(observed, folds_of(observed, 4) == 0)
    beginning = FederatedMatrixImputer(family=family, effects_penalty=0.01)
    threshold = largest_penalty(beginning, observed)
    imputer = FederatedMatrixImputer(None, family=family, warm_start=True, tol=1e-11, max_iter=2000)
    penalties = threshold * np.geomspace(1, 0.34, 8)
    n_rounds, n_rounds_cold = 0, 0
    for trial in path_trials(imputer, [(training, held_out)], penalties, None):
        cold = fit_to(training, clone(imputer).set_params(penalty=trial.penalty))
        assert_allclose(trial.score, cold.score(held_out.table), rtol=1e-4)
        assert trial.converged.all()
        n_rounds += np.sum(trial.n_iter)
        n_rounds_cold += cold.n_iter_
    # And they begin where the last one ended.
    assert n_rounds < n_rounds_cold


@pytest.mark.parametrize("n_effects_alone", [0, 5])
def test_a_path_ends_after_so_many_trials_that_are_no_better(n_effects_alone):
    scores = [1.0] * n_effects_alone + [1.0, 3.0, 2.0, 3.0, 2.9, 4.0]
    fits = iter(scores)

    class Stub(StubbedFit):
        def fit(self, X, *, clients, shape):
            self.singular_values_ = np.ones(int(self.penalty < 6))
            return self

        def score(self, X):
            return next(fits)

    penalties = np.arange(float(len(scores)))[::-1]
    trials = path_trials(Stub(), [(stubbed(0.0), stubbed(0.0))], penalties, 3)
    assert [trial.score for trial in trials] == scores[:-1]
    assert tabulated(trials)["rank_test_score"][-5:].tolist() == [5, 1, 4, 1, 3]
    nothing = trials[0]._replace(scores=np.zeros(2))
    assert tabulated([nothing])["std_test_score"] == [0]


def test_of_a_penalty_that_is_too_large_for_one_fold_the_others_count():
    class Stub(StubbedFit):
        def fit(self, X, *, clients, shape):
            self.singular_values_ = np.ones(int(self.penalty < X))
            return self

        def score(self, X):
            return self.penalty + X

    # The fold whose largest penalty is 3 has effects alone throughout.
    penalties = np.array([9.0, 8, 7, 6, 5, 4])
    splits = [tuple(map(stubbed, split)) for split in ((3.0, 0.0), (7.5, 0.0), (3.0, 12.0))]
    trials = path_trials(Stub(), splits, penalties, 2)
    assert [trial.score for trial in trials] == [13.0, 12.0, 11.0, 10.0]
    assert [trial.n_factors.tolist() for trial in trials] == [[0] * 3, [0] * 3, *[[0, 1, 0]] * 2]


def test_paths_side_by_side_are_those_one_after_the_other():
    observed = observed_by(clients_of("poisson"), "poisson")
    folds = folds_of(observed, 2)
    splits = [split_cells(observed, folds == fold) for fold in range(2)]
    imputer = FederatedMatrixImputer(None, family="poisson", warm_start=True)
    lengths = (2, 8, 5)
    plans = [
        (clone(imputer).set_params(rank=rank, effects_penalty=ridge), np.geomspace(20, 0.1, n))
        for rank, ridge, n in zip((1, None, 2), (0.1, 1.0, 10.0), lengths, strict=True)
    ]
    together = tabulated(trials_together(plans, splits, 2, Parallel(n_jobs=1), verbose=0))
    alone = [path_trials(imputer, splits, path, 2) for imputer, path in plans]
    one_by_one = tabulated(list(chain.from_iterable(alone)))
    for name, column in one_by_one.items():
        assert_array_equal(together[name], column, err_msg=name)
    # One came to its end, and another gave up before.
    assert len(alone[0]) == lengths[0] and 2 < len(alone[1]) < lengths[1]


def test_an_error_names_the_fold_that_raised_it():
    class Stub(FederatedMatrixImputer):
        def fit(self, X, *, clients, shape):
            raise ValueError("the message of a fit")

    with pytest.raises(ValueError, match="^Without the cells of fold 0: the message of a fit$"):
        path_trials(Stub(), [(stubbed(0.0), stubbed(0.0))], np.ones(1), None)


@pytest.mark.parametrize("n_penalties, n_trials", [(10, 4), (40, 13), (41, 14), (4, 4), (3, 3)])
def test_automatic_patience_is_three_in_ten_penalties_and_at_least_three(n_penalties, n_trials):
    class Stub(StubbedFit):
        singular_values_ = np.ones(1)

        def fit(self, X, *, clients, shape):
            return self

        def score(self, X):
            return self.penalty

    penalties = np.arange(float(n_penalties))[::-1]
    trials = path_trials(Stub(), [(stubbed(0.0), stubbed(0.0))], penalties, "auto")
    assert len(trials) == n_trials


def test_penalties_above_the_largest_of_all_do_not_end_the_path():
    rng = np.random.default_rng(0)
    counts = rng.poisson(np.exp(1 + 0.7 * rng.normal(size=(30, 2)) @ rng.normal(size=(2, 12))))
    X = [np.where(rng.random(counts.shape) < 0.2, counts, np.nan) for _ in range(4)]
    search = FederatedMatrixImputerCV(penalties=np.logspace(6, 0, 7), family="poisson", **QUICK)
    search.fit(X)
    whole = clone(search).set_params(patience=None).fit(X)
    assert search.best_params_ == whole.best_params_
    assert search.best_params_["penalty"] < search.penalty_max_
    assert len(search.best_estimator_.singular_values_) > 0


# ---- what clients hold out


def test_distinct_cells_are_dealt_evenly():
    clients = clients_of()
    folds = folds_of(observed_by(clients), 5)
    seen = ~np.isnan(clients).all(axis=0)
    distinct = folds_of(observed_by([np.where(seen, 1.0, np.nan)]), 5)
    assert np.ptp(np.bincount(distinct)) <= 1 and len(np.unique(folds)) == 5
    assert (folds != folds_of(observed_by(clients), 5, seed=1)).any()
    # Not one fold after the other, nor by rows or columns.
    dense = observed_by([np.zeros((40, 50))])
    dealt = folds_of(dense, 5)
    assert np.bincount(np.diff(dealt) % 5, minlength=5).min() > 300
    for lines in (dense.rows, dense.columns):
        counts = np.bincount(5 * lines + dealt, minlength=5)
        assert 0.8 < counts.var() / (counts.mean() * 0.8) < 1.3  # that of random dealing is 1


def test_all_clients_hold_a_cell_out_for_the_same_fold():
    observed = observed_by(clients_of())
    fold_of_cell = {}
    folds = folds_of(observed, 4)
    for row, column, fold in zip(observed.rows, observed.columns, folds, strict=True):
        assert fold_of_cell.setdefault((row, column), fold) == fold
    # So whoever saw a cell, the folds are those of one client with all the cells.
    together = observed_by([np.stack(clients_of())])
    pooled = dict(
        zip(zip(together.rows, together.columns, strict=True), folds_of(together, 4), strict=True)
    )
    assert pooled == fold_of_cell


def test_what_others_saw_of_a_flock_tells_nothing_about_it():
    # Three observers count the same flocks, whose sizes are noise beside sites and months. If fits
    # knew what others counted in held-out cells, small penalties would seem to predict these well.
    rng = np.random.default_rng(0)
    means = np.exp(rng.normal(3, 1, (40, 1)) + rng.normal(0, 0.3, 15))
    flocks = means * rng.gamma(3, 1 / 3, means.shape)
    visited = rng.random(flocks.shape) < 0.4
    party = [np.where(visited, rng.poisson(flocks), np.nan) for _ in range(3)]
    search = FederatedMatrixImputerCV(
        penalties=4, family="poisson", **QUICK | {"effects_penalties": [1.0], "tol": 1e-6}
    ).fit(party)
    alone = clone(search).fit([np.stack(party)])
    assert_allclose(search.best_score_, alone.best_score_, rtol=1e-4)
    assert search.best_params_ == pytest.approx(alone.best_params_)


def test_held_out_cells_are_not_read():
    clients = clients_of("poisson")
    observed = observed_by(clients, "poisson")
    held_out = folds_of(observed, 3) == 1
    owners = np.repeat(np.arange(len(clients)), np.diff(observed.offsets))
    for owner, row, column in zip(
        owners[held_out], observed.rows[held_out], observed.columns[held_out], strict=True
    ):
        clients[owner][row, column] += 50
    changed = observed_by(clients, "poisson")
    imputer = Recorder(None, family="poisson", warm_start=True)
    trials, objectives = [], []
    for each in (observed, changed):
        Recorder.fits = []
        trials.append(path_trials(imputer, [split_cells(each, held_out)], np.array([9.0, 3.0]), 9))
        objectives.append([fit["objective"] for fit in Recorder.fits])
    assert objectives[0] == objectives[1]
    for before, after in zip(*trials, strict=True):
        assert before.n_iter == after.n_iter
        assert before.score > after.score + 1


def test_several_observations_of_a_cell_are_held_out_as_one():
    visits = np.random.default_rng(0).poisson(3.0, (3, *SHAPE)).astype(float)
    observed = observed_by([visits, visits[0]], "poisson")
    parts = split_cells(observed, folds_of(observed, 4) == 2)
    assert [part.shape for part in parts] == [SHAPE, SHAPE]
    for client, full in enumerate((visits, visits[:1])):
        kept, out = (part.table[part.clients == client] for part in parts)
        kept_cells, out_cells = (set(map(tuple, table[:, :2])) for table in (kept, out))
        assert not kept_cells & out_cells
        assert len(kept_cells) + len(out_cells) == SHAPE[0] * SHAPE[1]
        # Values as they came, none of them averaged.
        rows, columns, values = np.concatenate([kept, out]).T
        came = np.sort(full.reshape(len(full), -1), axis=0)
        order = np.lexsort((values, columns, rows))
        assert_array_equal(values[order].reshape(-1, len(full)).T, came)


@every_family
def test_scores_are_mean_log_likelihoods_of_held_out_observations(family):
    clients = clients_of(family)
    visits = np.stack(clients_of(family, 3, seed=1))
    observed = observed_by([visits, *clients], family)
    training, held_out = split_cells(observed, folds_of(observed, 3) == 0)
    imputer = FederatedMatrixImputer(None, family=family, warm_start=True)
    (trial,) = path_trials(imputer, [(training, held_out)], np.array([3.0]), None)
    mean = fit_to(training, clone(imputer).set_params(penalty=3.0)).fitted_mean()
    rows, columns, values = held_out.table.T
    means = mean[rows.astype(int), columns.astype(int)]
    assert_allclose(trial.score, LOG_DENSITIES[family](values, means).mean())


# ---- the search


def test_results_are_those_of_the_folds():
    search = FederatedMatrixImputerCV(
        (1, None),
        3,
        effects_penalties=(0.1, 1.0),
        n_splits=3,
        patience=None,
        tol=1e-3,
        random_state=0,
    )
    search.fit(clients_of())
    results = search.cv_results_
    assert [entry["rank"] for entry in results["params"]] == [1] * 6 + [None] * 6
    assert_array_equal(
        results["param_effects_penalty"], [0.1] * 3 + [1.0] * 3 + [0.1] * 3 + [1.0] * 3
    )
    for name in ("rank", "effects_penalty", "penalty"):
        assert [entry[name] for entry in results["params"]] == results[f"param_{name}"].tolist()
    scores = np.array([results[f"split{fold}_test_score"] for fold in range(3)])
    assert_allclose(results["mean_test_score"], scores.mean(axis=0))
    assert_allclose(results["std_test_score"], scores.std(axis=0))
    assert search.best_index_ == np.argmax(results["mean_test_score"])
    assert results["rank_test_score"][search.best_index_] == 1
    assert search.best_score_ == results["mean_test_score"].max()
    assert search.best_params_ == results["params"][search.best_index_]
    assert (results["mean_n_factors"][:6] <= 1).all()
    assert (results["n_converged"] == 3).all()
    assert {len(column) for column in results.values()} == {12}
    best = search.best_estimator_
    assert search.best_params_ == {name: getattr(best, name) for name in search.best_params_}
    assert not best.warm_start


def test_the_best_trial_does_not_depend_on_the_unit_of_the_cells():
    clients = clients_of()
    search = FederatedMatrixImputerCV((2, 4), 3, **QUICK)
    best = clone(search).fit(clients).best_index_
    for unit in (1e3, 1e-4):
        assert search.fit([unit * client for client in clients]).best_index_ == best


def test_rounding_does_not_choose_among_alike_trials():
    scores = np.array([-1.2, -1.0 - 1e-14, -1.0, -1.0 - 1e-6, -1.0 + 1e-14, -1e300])
    assert_array_equal(_places(scores), [5, 1, 1, 4, 1, 6])
    # A likelihood of small numbers is a constant but for their squares.
    assert_array_equal(_places(-0.9 - 1e-10 * np.array([2.0, 1.0, 3.0, 1.0 + 1e-6])), [3, 1, 4, 1])
    # Penalties leave fewer factors than any of these ranks allows: the first one is as good.
    search = FederatedMatrixImputerCV((8, 9, None), 3, **QUICK | {"tol": 1e-6})
    search.fit(clients_of())
    assert (search.cv_results_["mean_n_factors"] < 8).all()
    assert search.best_params_["rank"] == 8


@pytest.mark.parametrize(("spread", "best"), [(0.1, 100.0), (2.0, 1.0)])
def test_the_penalty_on_the_effects_is_the_one_that_predicts_best(spread, best):
    # Sites that hardly differ, and sites that differ by an order of magnitude; two cells of each.
    rng = np.random.default_rng(0)
    rates = np.exp(1 + spread * rng.normal(size=(60, 1)) + np.zeros(12))
    clients = [np.where(rng.random(rates.shape) < 0.1, rng.poisson(rates), np.nan) for _ in "ab"]
    search = FederatedMatrixImputerCV(
        penalties=3,
        effects_penalties=(1.0, 100.0),
        n_splits=3,
        family="poisson",
        tol=1e-2,
        random_state=0,
    )
    assert search.fit(clients).best_params_["effects_penalty"] == best
    # Each of them is tried with the same folds and a path of its own.
    for effects_penalty in search.effects_penalties:
        alone = clone(search).set_params(effects_penalties=[effects_penalty]).fit(clients)
        beginning = FederatedMatrixImputer(family="poisson", effects_penalty=effects_penalty)
        assert alone.penalty_max_ == largest_penalty(beginning, observed_by(clients, "poisson"))
        here = search.cv_results_["param_effects_penalty"] == effects_penalty
        for name in ("param_penalty", "mean_test_score"):
            assert_array_equal(alone.cv_results_[name], search.cv_results_[name][here])
        if effects_penalty == best:
            assert alone.penalty_max_ == search.penalty_max_
            assert_array_equal(alone.fitted_mean(), search.fitted_mean())


def test_larger_penalties_on_the_effects_are_tried_as_long_as_they_are_better():
    # One large flock: scores of folds differ by far more than those of penalties.
    rng = np.random.default_rng(0)
    rates = np.exp(3 + rng.normal(size=(40, 1))) * rng.gamma(2, 0.5, (40, 12))
    counts = np.where(rng.random(rates.shape) < 0.4, rng.poisson(rates), np.nan)
    counts[0, 0] = 1000
    search = FederatedMatrixImputerCV(
        penalties=[1e9], family="poisson", n_splits=3, tol=1e-3, random_state=0
    ).fit(counts)
    ridges, scores = (
        search.cv_results_[name] for name in ("param_effects_penalty", "mean_test_score")
    )
    assert_array_equal(ridges, 10.0 ** np.arange(-1, len(ridges) - 1))
    assert search.best_params_["effects_penalty"] == ridges[-2] >= 10
    assert_array_equal(np.diff(scores) > 0, ridges[1:] < ridges[-1])
    # They come after those of all ranks; and given penalties are all that is tried.
    both = clone(search).set_params(ranks=[1, None]).fit(counts)
    assert_array_equal(both.cv_results_["param_rank"][:4], [1, 1, None, None])
    assert_array_equal(both.cv_results_["param_effects_penalty"][:6], [0.1, 1, 0.1, 1, 10, 10])
    given = clone(search).set_params(effects_penalties=[0.1, 1.0]).fit(counts)
    assert_array_equal(given.cv_results_["mean_test_score"], scores[:2])
    without = clone(search).set_params(effects="none").fit(counts)
    assert_array_equal(without.cv_results_["param_effects_penalty"], [0.1])


def test_larger_penalties_on_the_effects_end_where_no_effect_is_left(monkeypatch):
    # Alternating signs: effects are 0, and the less of them is fitted, the better.
    table = (-1.0) ** np.add.outer(np.arange(20), np.arange(16))
    table[np.random.default_rng(0).random(table.shape) < 0.5] = np.nan
    search = FederatedMatrixImputerCV(penalties=[1e9], random_state=0).fit(table)
    assert search.cv_results_["param_effects_penalty"].max() == 1e5
    monkeypatch.setattr(_penalty_grid, "_LARGEST_RIDGE", 100.0)
    search.fit(table)
    assert search.best_params_["effects_penalty"] == 100
    assert search.cv_results_["param_effects_penalty"].max() == 100


@every_family
def test_the_best_estimator_is_fitted_to_all_cells(family):
    clients = clients_of(family)
    options = {"family": family, "tol": 1e-8, "max_iter": 2000}
    search = FederatedMatrixImputerCV(
        penalties=3, effects_penalties=[1.0], eps=0.2, n_splits=2, random_state=0, **options
    ).fit(clients)
    alone = FederatedMatrixImputer(**search.best_params_, **options).fit(clients)
    assert_allclose(search.best_estimator_.objective_, alone.objective_, rtol=1e-6)
    means = search.fitted_mean([2, 3], [1])
    assert_array_equal(means, search.best_estimator_.fitted_mean([2, 3], [1]))
    for filled, table in zip(search.transform(clients), clients, strict=True):
        assert_array_equal(filled, np.where(np.isnan(table), search.fitted_mean(), table))
    assert search.score(clients) == search.best_estimator_.score(clients)


def test_the_best_estimator_has_what_the_fits_on_the_way_go_without(capsys):
    options = {"penalties": [8.0, 1.0, 0.5], "n_splits": 2, "verbose": 2, "random_state": 0}
    options["effects_penalties"] = [1.0]
    search = FederatedMatrixImputerCV(**options).fit(clients_of())
    assert search.best_index_ > 0
    assert search.best_estimator_.eval_every == "auto" and search.best_estimator_.verbose == 1
    assert np.isfinite(search.best_estimator_.history_["objective"]).all()
    assert "Round 10:" in capsys.readouterr().out


def test_the_last_fit_comes_down_the_path_to_the_best_penalty(recorded):
    penalties = [16.0, 8.0, 4.0, 2.0, 1.0]
    search = FederatedMatrixImputerCV(
        penalties=penalties, effects_penalties=[100.0], n_splits=2, patience=None, random_state=0
    ).fit(clients_of())
    best = search.best_params_["penalty"]
    assert 16.0 > best > 1.0
    of_all_cells = [fit["penalty"] for fit in recorded[2 * 5 :]]
    assert of_all_cells == penalties[: penalties.index(best) + 1]


def test_names_of_columns_are_those_of_the_last_search():
    frames = [pd.DataFrame(client, columns=list("abcdefghi")) for client in clients_of()]
    search = FederatedMatrixImputerCV(penalties=1, n_splits=2, tol=0.1)
    assert search.fit(frames).feature_names_in_.tolist() == list("abcdefghi")
    assert not hasattr(search.fit(clients_of()), "feature_names_in_")


def test_set_output_makes_every_client_a_frame():
    clients = clients_of()
    search = FederatedMatrixImputerCV(penalties=[1.0], **QUICK).set_output(transform="pandas")
    filled = search.fit(clients).transform(clients)
    assert [type(table) for table in filled] == [pd.DataFrame] * len(clients)
    # It is the search that was asked, not the best estimator.
    for table, plain in zip(filled, search.best_estimator_.transform(clients), strict=True):
        assert_array_equal(table.to_numpy(), plain)
        assert isinstance(plain, np.ndarray)
    search.set_output(transform="default")
    assert all(isinstance(table, np.ndarray) for table in search.transform(clients))


def test_every_fit_is_federated_as_asked(recorded):
    wanted = {
        "omega": 1.0, "participation": 0.5, "compressor": "block", "solver": "vr_fedem",
        "batch_size": 5, "client_weights": "uniform", "effects": "rows", "tol": 1e-2,
        "max_iter": 400,
    }  # fmt: skip
    search = FederatedMatrixImputerCV(penalties=[20.0, 10.0], **QUICK | wanted)
    search.fit(clients_of())
    # Two folds at two penalties, and the last fits down the path.
    assert len(recorded) >= 5
    for fit in recorded:
        assert {name: fit[name] for name in wanted} == wanted
    assert [fit["warm_start"] for fit in recorded] == [True] * len(recorded)
    assert len(search.best_estimator_.history_["round"]) > 2


def test_noise_changes_the_choice_little():
    clients = clients_of("gaussian", n_clients=6)
    exact, noisy = (
        FederatedMatrixImputerCV(
            penalties=[30.0, 1.0], **QUICK | {"tol": 1e-4}, max_iter=600, **setting
        ).fit(clients)
        for setting in ({}, {"omega": 1.0, "participation": 0.75})
    )
    assert_allclose(
        noisy.cv_results_["mean_test_score"], exact.cv_results_["mean_test_score"], rtol=5e-3
    )
    assert noisy.best_params_ == exact.best_params_


def test_another_seed_is_another_search():
    options = {"penalties": [5.0], **QUICK, "omega": 0.5}
    one, other = (
        FederatedMatrixImputerCV(**options | {"random_state": seed}).fit(clients_of())
        for seed in (3, 4)
    )
    assert one.best_score_ != other.best_score_


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    "config", [{"backend": "loky", "inner_max_num_threads": 2}, {"backend": "threading"}]
)
def test_a_search_in_parallel_is_that_of_one_job_and_leaves_libraries_as_they_were(
    config, threads_always_pay
):
    # Large enough for the libraries to use their threads.
    rng = np.random.default_rng(0)
    clients = [rng.poisson(2.0, size=(200, 150)).astype(float) for _ in range(2)]
    search = FederatedMatrixImputerCV(
        (3,), penalties=2, family="poisson", **QUICK | {"effects_penalties": [0.1, 1.0, 10.0]},
        max_iter=4, omega=0.5,
        step_size=lambda k: 0.5 + 0.5 / k,  # travels to the processes
    )  # fmt: skip

    with threadpool_limits(limits=2):
        before = library_threads()
        alone = clone(search).fit(clients)
        with parallel_config(**config, n_jobs=2):
            search.fit(clients)
        assert library_threads() == before
    for name, column in alone.cv_results_.items():
        assert_array_equal(column, search.cv_results_[name], err_msg=name)
    assert_array_equal(alone.fitted_mean(), search.fitted_mean())


def test_every_form_of_data_gives_the_same_search():
    clients = clients_of("poisson")
    seen = [np.nonzero(~np.isnan(table)) for table in clients]
    values = [table[cells] for table, cells in zip(clients, seen, strict=True)]
    sparse = [coo_array((v, cells), shape=SHAPE) for v, cells in zip(values, seen, strict=True)]
    triplets = [np.column_stack([*cells, v]) for v, cells in zip(values, seen, strict=True)]
    search = FederatedMatrixImputerCV(family="poisson", penalties=[30.0, 10.0], **QUICK)
    want = clone(search).fit(clients).cv_results_["mean_test_score"]
    filled = [np.nan_to_num(table, nan=-1) for table in clients]
    for got in (
        clone(search).fit(sparse),
        clone(search).fit(triplets, shape=SHAPE),
        clone(search).set_params(missing_values=-1).fit(filled),
    ):
        assert_array_equal(got.cv_results_["mean_test_score"], want)


def test_labelled_rows_and_rows_of_clients_own_give_one_search():
    clients = clients_of()
    stacked, owners = np.vstack(clients), np.repeat(np.arange(4), SHAPE[0])
    search = FederatedMatrixImputerCV(penalties=[5.0, 2.0], **QUICK)
    by_label = clone(search).fit(stacked, clients=owners)
    disjoint = clone(search).set_params(rows="disjoint").fit(clients)
    for name, column in by_label.cv_results_.items():
        assert_array_equal(column, disjoint.cv_results_[name], err_msg=name)
    assert by_label.fitted_mean().shape == disjoint.fitted_mean().shape == (4 * SHAPE[0], SHAPE[1])
    assert by_label.transform(stacked[:2]).shape == (2, SHAPE[1])


# ---- what it says


@pytest.fixture(scope="module")
def searched():
    """A search of two penalties; whoever sets its parameters does so in a copy."""
    return FederatedMatrixImputerCV(penalties=2, **QUICK).fit(clients_of())


def test_warnings_that_the_last_fit_does_not_repeat_are_given(recorded, monkeypatch):
    fit = Recorder.fit

    def warns(self, *args, **kwargs):
        if not Recorder.fits:
            warnings.warn("of a library", RuntimeWarning, stacklevel=1)
        return fit(self, *args, **kwargs)

    monkeypatch.setattr(Recorder, "fit", warns)
    with pytest.warns(RuntimeWarning, match="of a library"):
        FederatedMatrixImputerCV(penalties=1, n_splits=2, tol=0.1).fit(clients_of())


def test_it_warns_once():
    clients = [*clients_of(), np.full(SHAPE, np.nan)]
    with pytest.warns(UserWarning) as caught:
        FederatedMatrixImputerCV(penalties=[9.0, 1.0], **QUICK).fit(clients)
    (warning,) = caught
    assert str(warning.message).startswith("1 of 5 clients have no observed cell")
    assert warning.filename == __file__


def test_a_search_leaves_the_warnings_of_other_threads_alone():
    begun, said = threading.Event(), []

    def another():
        begun.wait()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            FederatedMatrixImputer(max_iter=1).fit(clients_of())
        said.extend(str(warning.message) for warning in caught)

    def step_size(k):  # of rounds of the search, and of the last fit
        begun.set()
        thread.join()
        filters.append(list(warnings.filters))
        return 1.0

    filters = [list(warnings.filters)]
    thread = threading.Thread(target=another, daemon=True)
    thread.start()
    FederatedMatrixImputerCV(penalties=[9.0], **QUICK, step_size=step_size).fit(clients_of())
    assert len(said) == 1 and said[0].startswith("Not converged")
    assert len(filters) > 3 and all(seen == filters[0] for seen in filters)


def test_advice_of_a_search_in_threads_is_that_of_one_after_the_other():
    said = []
    for n_jobs in (1, 2):
        search = FederatedMatrixImputerCV(
            [1, 2], penalties=[9.0, 1.0], n_splits=2, max_iter=2, random_state=0, n_jobs=n_jobs
        )
        with parallel_config("threading"), pytest.warns(ConvergenceWarning) as caught:
            search.fit(clients_of())
        said.append([str(warning.message) for warning in caught])
    assert said[0] == said[1]


def test_of_trials_that_only_rounding_tells_apart_the_first_is_best():
    scores = [-2.0, -1.0, -1.0 + 1e-15, -3.0]
    trials = [Trial(None, 1.0, 9.0, np.array([score]), *[None] * 4) for score in scores]
    assert index_of_best(trials) == 1


@pytest.mark.parametrize(
    ("says", "parameters"),
    [
        ("Increase max_iter, or leave", {"max_iter": 2, "tol": 1e-9}),
        ("Increase max_epochs, or leave", {"max_iter": None, "max_epochs": 3, "tol": 1e-9}),
        ("Increase max_iter or max_epochs, or", {"max_iter": 2, "max_epochs": 3, "tol": 1e-9}),
        ("Increase tol.", {"max_iter": 2, "tol": 0.0}),
        ("Use step_size='auto', or increase max_iter, or", {"max_iter": 2, "step_size": 0.05}),
        (
            "Use solver='vr_fedem' or a larger batch_size, or increase max_iter, or leave",
            {"max_iter": 2, "batch_size": 2},
        ),
        ("Increase max_iter, or leave", {"max_iter": 2, "batch_size": 2, "solver": "vr_fedem"}),
    ],
)
def test_it_says_how_many_fits_did_not_converge(says, parameters):
    search = FederatedMatrixImputerCV(
        penalties=[9.0, 1.0], effects_penalties=[0.1, 1.0], n_splits=2, random_state=0, **parameters
    )
    with pytest.warns(ConvergenceWarning) as caught:
        search.fit(clients_of())
    assert {w.filename for w in caught} == {__file__}
    (said,) = (str(w.message) for w in caught if "of the search" in str(w.message))
    assert said.startswith("8 of 8 fits of the search did not converge") and says in said
    assert_array_equal(search.cv_results_["n_converged"], [0] * 4)


@pytest.mark.parametrize("max_iter", [10, 60])
def test_a_search_is_kept_where_warnings_are_errors(max_iter):
    # The last fit did not converge after 10 rounds; after 60, only some of the search did not.
    search = FederatedMatrixImputerCV(
        penalties=[9.0, 0.1],
        effects_penalties=[0.1, 1.0],
        n_splits=2,
        max_iter=max_iter,
        random_state=0,
    )
    says = "^Not converged" if max_iter == 10 else "^. of 8 fits of the search"
    with pytest.raises(ConvergenceWarning, match=says):
        search.fit(clients_of())
    assert len(search.cv_results_["mean_test_score"]) == 4
    assert np.isfinite(search.score(clients_of()))


def test_a_path_that_ends_too_early_says_so():
    rng = np.random.default_rng(0)
    signal = 30 * rng.normal(size=(14, 2)) @ rng.normal(size=(2, 9))
    clients = [np.where(rng.random(SHAPE) < 0.4, rng.normal(signal), np.nan) for _ in range(4)]
    search = FederatedMatrixImputerCV(penalties=3, eps=0.1, **QUICK)
    with pytest.warns(UserWarning, match=r"smaller eps \(it was 0.1\) or a bound in ranks"):
        search.fit(clients)
    assert search.best_params_["penalty"] == pytest.approx(0.1 * search.penalty_max_)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clone(search).set_params(penalties=search.cv_results_["param_penalty"]).fit(clients)
        clone(search).set_params(penalties=1).fit(clients)
        search.fit([rng.normal(size=SHAPE) for _ in range(4)])  # noise, of which nothing is best
    assert search.best_params_["penalty"] == search.penalty_max_


@pytest.mark.parametrize("signal, has_settled", [(10, True), (30, False)])
def test_below_a_bound_a_path_ends_too_early_where_its_last_step_gained(signal, has_settled):
    rng = np.random.default_rng(0)
    matrix = rng.normal(signal * np.outer(rng.normal(size=40), rng.normal(size=30)))
    matrix[rng.random(matrix.shape) < 0.5] = np.nan
    search = FederatedMatrixImputerCV([1], effects_penalties=[1.0], random_state=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        search.fit([matrix])
    assert search.best_params_["penalty"] == pytest.approx(0.01 * search.penalty_max_)
    gain = np.diff(search.cv_results_["mean_test_score"])[-1]
    assert 0 < gain < 0.1 if has_settled else gain > 0.1
    expected = "smallest that was tried. A smaller eps (it was 0.01) may predict better."
    said = [str(warning.message) for warning in caught]
    assert len(said) == (not has_settled) and all(expected in message for message in said)


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_it_prints_what_it_tried(n_jobs, capsys, threads_always_pay):
    options = {
        "penalties": [9.0, 1.0],
        "effects_penalties": [0.1, 1.0],
        "n_splits": 2,
        "verbose": 1,
    }
    with parallel_config("threading"):
        FederatedMatrixImputerCV(**options, n_jobs=n_jobs).fit(clients_of())
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("  Rank None, penalty 9, effects_penalty 0.1: held-out log-likeliho")


def test_which_messages_are_counted():
    # The set-up with the first fit of each path, as docstring and doc/what_leaves_a_client.rst say.
    search = FederatedMatrixImputerCV((1, 2), penalties=[9.0, 3.0, 1.0], **QUICK)
    search.fit(clients_of())
    results, of_last = search.cv_results_, search.best_estimator_.history_["uplink_bits"]
    assert search.best_params_["penalty"] < 9.0
    assert of_last[0] == 0 < of_last[1]
    # Folds are halves of the cells, in twice as many messages, of which 7 bytes are no numbers.
    rounding = 7 / (8 * min(np.isfinite(client).sum() for client in clients_of()))
    of_rounds = results["mean_n_iter"] * of_last[1]
    has_set_up = results["param_penalty"] == 9.0
    assert_allclose(results["uplink_bits"][~has_set_up], of_rounds[~has_set_up], rtol=rounding)
    assert (results["uplink_bits"][has_set_up] > 1.1 * of_rounds[has_set_up]).all()


@pytest.mark.parametrize(
    ("parameters", "error", "says"),
    [
        ({"ranks": 3}, TypeError, r"Expected ranks to be a list .* got 3. Give \[2\] or"),
        ({"ranks": None}, TypeError, r"got None. Give \[2\] or \[None\], say, for a single one\.$"),
        ({"ranks": "auto"}, TypeError, r"got 'auto'. Give \[2\] or \[None\]"),
        ({"ranks": ()}, ValueError, "Expected ranks .* got none"),
        ({"ranks": (2, 0)}, ValueError, "Expected each of ranks to be an integer >= 1, got 0"),
        ({"ranks": (2, 10)}, ValueError, r"ranks .* got 10 for a matrix of shape \(14, 9\)"),
        ({"ranks": np.array(2)}, TypeError, "Expected ranks to be a list .* got array"),
        ({"effects_penalties": "all"}, TypeError, '^Expected effects_penalties to be "auto", or'),
        ({"effects_penalties": 1.0}, TypeError, r"list of .* got 1.0. Give \[1.0\] for a single"),
        ({"effects_penalties": 0}, TypeError, r"list of .* got 0. Give \[0\] for a single"),
        ({"effects_penalties": [-1]}, ValueError, r">= 0, got \[-1\]\.$"),
        ({"effects_penalties": ()}, ValueError, "got none. Give at least one"),
        ({"penalties": 0}, ValueError, "penalties to be an integer >= 1 and <= 10000, got 0"),
        ({"penalties": 2.5}, TypeError, "Expected penalties to be an integer"),
        ({"penalties": []}, ValueError, "Expected penalties .* Give at least one"),
        ({"penalties": [1.0, -1.0]}, ValueError, r"numbers >= 0, got \[1.0, -1.0\]\.$"),
        ({"penalties": [np.inf]}, ValueError, "finite numbers"),
        ({"penalties": "few"}, TypeError, "Expected penalties .* got 'few'"),
        ({"eps": 0}, ValueError, "Expected eps to be a number > 0 and < 1, got 0. The smallest"),
        ({"eps": 1}, ValueError, "Expected eps to be a number > 0 and < 1, got 1. The smallest"),
        ({"eps": 2}, ValueError, "Expected eps to be a number > 0 and < 1, got 2. The smallest"),
        ({"n_splits": 1}, ValueError, "Expected n_splits to be an integer >= 2"),
        ({"n_splits": 10_000}, ValueError, "at least n_splits=10000 .* Use a smaller"),
        ({"patience": 0}, ValueError, "Expected patience .* None to try all"),
        ({"family": "gamma"}, ValueError, "Expected family to be one of"),
        ({"family": "poisson"}, ValueError, "Expected non-negative integers .* of client 0"),
        ({"effects": "all"}, ValueError, "Expected effects to be one of"),
        ({"solver": "em"}, ValueError, "Expected solver to be one of"),
        ({"omega": -1}, ValueError, "Expected omega"),
        (
            {"batch_size": 40, "replacement": False},
            ValueError,
            "Without the cells of fold 0: Expected batch_size=40",
        ),
    ],
)
def test_bad_parameters(parameters, error, says, searched):
    search = copy(searched)
    kept = search.best_estimator_
    with pytest.raises(error, match=says):
        search.set_params(**parameters).fit(clients_of())
    assert search.best_estimator_ is kept


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_client_that_holds_out_too_many_cells_is_named_as_it_is_labelled():
    notes = np.column_stack([*np.indices((6, 4)).reshape(2, -1), np.arange(24.0) % 5])
    observers = np.where(np.arange(24) < 5, "ann", "bob")
    search = FederatedMatrixImputerCV(
        penalties=2, **QUICK | {"n_splits": 5}, max_iter=3, batch_size=5, replacement=False
    )
    with pytest.raises(ValueError, match=r"of fold 0: Expected .* got 4 for client 'ann'\."):
        search.fit(notes, clients=observers, shape=(6, 4))
    search.set_params(batch_size=3).fit(notes, clients=observers, shape=(6, 4))
    # Who has seen nothing draws nothing.
    with pytest.warns(UserWarning, match="1 of 3 clients have no observed cell"):
        search.fit([notes[:5], notes[5:], np.empty((0, 3))], shape=(6, 4))


def test_scores_whose_squares_overflow_have_a_deviation():
    wide = [1e120 * client for client in clients_of()]
    search = FederatedMatrixImputerCV(penalties=2, **QUICK).fit(wide)
    folds = [search.cv_results_[f"split{fold}_test_score"] for fold in range(2)]
    want = np.abs(folds[0] - folds[1]) / 2  # a tenth of what is subtracted
    assert_allclose(search.cv_results_["std_test_score"], want, rtol=1e-9)


def test_too_few_cells_to_hold_out_are_refused():
    with pytest.raises(ValueError, match="at least n_splits=2 distinct .*, got 1: .*more cells"):
        FederatedMatrixImputerCV(n_splits=2).fit([np.array([[1.0, np.nan]])] * 3)
    with pytest.raises(NotFittedError):
        FederatedMatrixImputerCV().fitted_mean()
    with pytest.raises(ValueError, match="at least one observed cell"):
        FederatedMatrixImputerCV().fit([np.full(SHAPE, np.nan)])


# ---- real counts


@pytest.mark.skipif(
    not (DATA / "oystercatcher_138x240.csv").exists(), reason="needs the oystercatcher counts"
)
def test_held_out_error_on_oystercatchers_is_below_that_of_effects_alone():
    table = np.log1p(np.genfromtxt(DATA / "oystercatcher_138x240.csv", delimiter=","))
    observed = np.flatnonzero(~np.isnan(table))
    held_out = np.random.default_rng(0).choice(observed, len(observed) // 10, replace=False)
    truth = table.ravel()[held_out].copy()
    table.ravel()[held_out] = np.nan
    few = {"penalties": 6, "eps": 0.1, **QUICK, "effects_penalties": [1.0], "tol": 1e-3}
    search = FederatedMatrixImputerCV(**few).fit([table])
    error = search.fitted_mean().ravel()[held_out] - truth
    # Site and month effects alone: 1.775.
    assert np.sqrt(np.mean(error**2)) <= 1.59


def test_a_search_stopped_from_the_keyboard_fits_nothing(monkeypatch):
    imputer = FederatedMatrixImputerCV([2], penalties=3, **QUICK, eval_every=None)
    in_round_12 = interrupted(client_round, at=12)
    monkeypatch.setattr(_loop, "client_round", in_round_12)
    with pytest.raises(KeyboardInterrupt):
        imputer.fit(clients_of("gaussian"))
    assert in_round_12.n_calls == 12  # no other fit was begun
    with pytest.raises(NotFittedError):
        imputer.transform(clients_of("gaussian"))


def test_a_last_fit_stopped_from_the_keyboard_has_a_complete_search(monkeypatch):
    imputer = FederatedMatrixImputerCV([2], penalties=3, **QUICK)
    whole, rounds = clone(imputer), interrupted(client_round, at=None)
    monkeypatch.setattr(_loop, "client_round", rounds)
    whole.fit(clients_of("gaussian"))
    rounds.n_calls, rounds.at = 0, rounds.n_calls
    with pytest.warns(ConvergenceWarning) as caught:
        imputer.fit(clients_of("gaussian"))
    assert [str(w.message).partition(".")[0] for w in caught] == [
        f"Interrupted from the keyboard after {whole.n_iter_ - 1} rounds: the estimator has the "
        "parameters reached by then",
        "The search itself was complete; the fit to all cells was stopped after "
        f"{whole.n_iter_ - 1} rounds",
    ]
    assert imputer.best_params_ == whole.best_params_
    assert imputer.n_iter_ == whole.n_iter_ - 1


@pytest.mark.parametrize("n_rounds", [0, 1])
def test_a_path_to_the_last_fit_stopped_from_the_keyboard_has_a_complete_search(
    n_rounds, monkeypatch
):
    imputer = FederatedMatrixImputerCV(
        [2], penalties=3, effects_penalties=[1.0], n_splits=2, random_state=0
    )
    whole, fit_step, left = clone(imputer).fit(clients_of("gaussian")), _penalty_path._fit_step, []

    def interrupted(*args):
        if left and not left.pop():
            raise KeyboardInterrupt
        return client_round(*args)

    def begun(imputer, penalty, X, **data):
        if X is cells:  # those of all folds
            left.extend([False] + n_rounds * [True])
        return fit_step(imputer, penalty, X, **data)

    cells = clients_of("gaussian")
    monkeypatch.setattr(_loop, "client_round", interrupted)
    monkeypatch.setattr(_penalty_path, "_fit_step", begun)
    with pytest.warns(
        ConvergenceWarning, match="The search itself was complete; .* larger penalty"
    ):
        imputer.fit(cells)
    assert imputer.best_params_ == whole.best_params_
    assert imputer.best_estimator_.get_params() == whole.best_estimator_.get_params()
    assert np.isfinite(imputer.score(cells))


def test_a_rank_that_is_given_twice_is_tried_once():
    search = FederatedMatrixImputerCV([1, 1], penalties=[9.0], effects_penalties=[1.0], n_splits=2)
    assert len(search.fit(clients_of()).cv_results_["params"]) == 1


@pytest.mark.parametrize(
    "ranks",
    [(rank for rank in (1, 2)), map(int, "12"), {1: 2}.keys()],
    ids=lambda r: type(r).__name__,
)
def test_ranks_that_cannot_be_copied_are_refused(ranks):
    search = FederatedMatrixImputerCV(ranks, penalties=2, n_splits=2)
    message = f"Expected ranks to be a list .* got a {type(ranks).__name__}. Give a list"
    for _ in range(2):
        with pytest.raises(TypeError, match=message):
            search.fit(clients_of("gaussian"))


def test_ranks_may_be_any_collection():
    for ranks in (range(1, 3), np.array([1, 2]), {1, 2}):
        search = FederatedMatrixImputerCV(ranks, penalties=2, **QUICK)
        assert set(search.fit(clients_of("gaussian")).cv_results_["param_rank"]) == {1, 2}
        assert type(search.best_params_["rank"]) is int


def test_a_subclass_may_have_parameters_of_its_own(searched):
    class Search(FederatedMatrixImputerCV):
        def __init__(self, *, penalties=2, comment=""):
            super().__init__(penalties=penalties, **QUICK)
            self.comment = comment

    search = clone(Search(comment="fewer")).fit(clients_of())
    assert search.best_params_ == searched.best_params_
