"""The path of penalties, and the cells that clients hold out to score its fits."""

from itertools import chain

import numpy as np
import pytest
from joblib import Parallel
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import bernoulli, norm, poisson
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from searches import QUICK, SHAPE, Recorder, clients_of, every_family, observed_by
from skfedem import FederatedMatrixImputer, FederatedMatrixImputerCV
from skfedem._penalty_search.held_out import Split, Triplets, fold_of_cells, split_cells
from skfedem._penalty_search.penalty_path import (
    advance_together,
    cv_results_of,
    largest_of_path,
)

# Most paths are short here.
pytestmark = pytest.mark.filterwarnings("ignore:The best penalty.* is the smallest that was tried")
LOG_DENSITIES = {
    "gaussian": lambda y, mean: norm.logpdf(y, mean),
    "bernoulli": lambda y, mean: bernoulli.logpmf(y, mean),
    "poisson": lambda y, mean: poisson.logpmf(y, mean),
}


def path_trials(imputer, splits, penalties, patience):
    """Trials of one path."""
    return advance_together([(imputer, penalties)], splits, patience, Parallel(n_jobs=1), verbose=0)


def folds_of(observed, n_splits, seed=0):
    return fold_of_cells(observed, n_splits, seed)


def fit_to(training, imputer):
    return imputer.fit(training.table, clients=training.clients, shape=training.shape)


class StubbedFit(FederatedMatrixImputer):
    """What a trial reads of a fit, but for its factors and scores."""

    n_iter_, converged_, _stopped_by = 1, True, None
    history_ = {"uplink_bits": np.zeros(1)}

    def _held_out(self, triplets, clients, offset):
        return np.array([self.score(triplets, offset=offset), 1.0, 1.0, 1.0])


def stubbed(table):
    """What a stub is given for observations."""
    return Triplets(table, None, None)


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
    threshold, _ = largest_of_path(FederatedMatrixImputer(**options), cells)
    for factor, n_factors in ((1 + 1e-6, 0), (1 - 1e-3, 1)):
        imputer = FederatedMatrixImputer(None, penalty=factor * threshold, tol=1e-9, **options)
        assert len(imputer.fit(clients).singular_values_) == n_factors


def test_path_with_uniform_client_weights_starts_at_the_largest_penalty():
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


def test_penalties_of_gaussian_cells_do_not_depend_on_their_offset():
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
    threshold, _ = largest_of_path(beginning, observed)
    imputer = FederatedMatrixImputer(None, family=family, warm_start=True, tol=1e-11, max_iter=2000)
    penalties = threshold * np.geomspace(1, 0.34, 8)
    n_rounds, n_rounds_cold = 0, 0
    for trial in path_trials(imputer, [Split(training, held_out)], penalties, None):
        cold = fit_to(training, clone(imputer).set_params(penalty=trial.penalty))
        assert_allclose(trial.score, cold.score(held_out.table), rtol=1e-4)
        assert trial.converged.all()
        n_rounds += np.sum(trial.n_iter)
        n_rounds_cold += cold.n_iter_
    # And they begin where the last one ended.
    assert n_rounds < n_rounds_cold


@pytest.mark.parametrize("n_effects_alone", [0, 5])
def test_path_ends_after_patience_trials_without_improvement(n_effects_alone):
    scores = [1.0] * n_effects_alone + [1.0, 3.0, 2.0, 3.0, 2.9, 4.0]
    fits = iter(scores)

    class Stub(StubbedFit):
        def fit(self, X, *, clients, shape, **others):
            self.singular_values_ = np.ones(int(self.penalty < 6))
            return self

        def score(self, X, *, offset):
            return next(fits)

    penalties = np.arange(float(len(scores)))[::-1]
    trials = path_trials(Stub(), [Split(stubbed(0.0), stubbed(0.0))], penalties, 3)
    assert [trial.score for trial in trials] == scores[:-1]
    assert cv_results_of(trials)["rank_test_score"][-5:].tolist() == [5, 1, 4, 1, 3]
    nothing = trials[0]._replace(scores=np.zeros(2))
    assert cv_results_of([nothing])["std_test_score"] == [0]


def test_patience_counts_penalties_with_factors_in_any_fold():
    class Stub(StubbedFit):
        def fit(self, X, *, clients, shape, **others):
            self.singular_values_ = np.ones(int(self.penalty < X))
            return self

        def score(self, X, *, offset):
            return self.penalty + X

    # The fold whose largest penalty is 3 has effects alone throughout.
    penalties = np.array([9.0, 8, 7, 6, 5, 4])
    splits = [Split(*map(stubbed, split)) for split in ((3.0, 0.0), (7.5, 0.0), (3.0, 12.0))]
    trials = path_trials(Stub(), splits, penalties, 2)
    assert [trial.score for trial in trials] == [13.0, 12.0, 11.0, 10.0]
    assert [trial.n_factors.tolist() for trial in trials] == [[0] * 3, [0] * 3, *[[0, 1, 0]] * 2]


def test_paths_advanced_together_equal_paths_alone():
    observed = observed_by(clients_of("poisson"), "poisson")
    folds = folds_of(observed, 2)
    splits = [split_cells(observed, folds == fold) for fold in range(2)]
    imputer = FederatedMatrixImputer(None, family="poisson", warm_start=True)
    lengths = (2, 8, 5)
    plans = [
        (clone(imputer).set_params(rank=rank, effects_penalty=ridge), np.geomspace(20, 0.1, n))
        for rank, ridge, n in zip((1, None, 2), (0.1, 1.0, 10.0), lengths, strict=True)
    ]
    together = cv_results_of(advance_together(plans, splits, 2, Parallel(n_jobs=1), verbose=0))
    alone = [path_trials(imputer, splits, path, 2) for imputer, path in plans]
    one_by_one = cv_results_of(list(chain.from_iterable(alone)))
    for name, column in one_by_one.items():
        assert_array_equal(together[name], column, err_msg=name)
    # One came to its end, and another gave up before.
    assert len(alone[0]) == lengths[0] and 2 < len(alone[1]) < lengths[1]


def test_error_names_the_fold():
    class Stub(FederatedMatrixImputer):
        def fit(self, X, *, clients, shape, **others):
            raise ValueError("the message of a fit")

    with pytest.raises(ValueError, match="^Without the cells of fold 0: the message of a fit$"):
        path_trials(Stub(), [Split(stubbed(0.0), stubbed(0.0))], np.ones(1), None)


@pytest.mark.parametrize("n_penalties, n_trials", [(10, 4), (40, 13), (41, 14), (4, 4), (3, 3)])
def test_automatic_patience_is_three_in_ten_penalties_and_at_least_three(n_penalties, n_trials):
    class Stub(StubbedFit):
        singular_values_ = np.ones(1)

        def fit(self, X, *, clients, shape, **others):
            return self

        def score(self, X, *, offset):
            return self.penalty

    penalties = np.arange(float(n_penalties))[::-1]
    trials = path_trials(Stub(), [Split(stubbed(0.0), stubbed(0.0))], penalties, "auto")
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


def test_folds_are_balanced():
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


def test_a_cell_is_in_the_same_fold_for_all_clients():
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


def test_other_clients_observations_of_held_out_cells_are_not_used():
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


def test_repeated_observations_of_a_cell_are_held_out_together():
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
    (trial,) = path_trials(imputer, [Split(training, held_out)], np.array([3.0]), None)
    mean = fit_to(training, clone(imputer).set_params(penalty=3.0)).fitted_mean()
    rows, columns, values = held_out.table.T
    means = mean[rows.astype(int), columns.astype(int)]
    assert_allclose(trial.score, LOG_DENSITIES[family](values, means).mean())


def test_too_few_cells_to_hold_out_are_refused():
    with pytest.raises(ValueError, match="at least n_splits=2 distinct .*, got 1: .*more cells"):
        FederatedMatrixImputerCV(n_splits=2).fit([np.array([[1.0, np.nan]])] * 3)
    with pytest.raises(NotFittedError):
        FederatedMatrixImputerCV().fitted_mean()
    with pytest.raises(ValueError, match="at least one observed cell"):
        FederatedMatrixImputerCV().fit([np.full(SHAPE, np.nan)])


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
