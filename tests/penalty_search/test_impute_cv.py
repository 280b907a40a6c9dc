"""Rank and penalty by held-out cells: the search, what it says, and real counts."""

import os
import threading
import warnings
from copy import copy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from joblib import parallel_config
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import coo_array
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks
from threadpoolctl import threadpool_limits

from searches import QUICK, SHAPE, Recorder, clients_of, every_family, observed_by
from skfedem import (
    FederatedMatrixImputer,
    FederatedMatrixImputerCV,
    impute_cv,
)
from skfedem._penalty_search import penalty_path
from skfedem._penalty_search.penalty_path import Trial, _ranking, index_of_best, largest_of_path
from skfedem.clients.local import LocalClients
from watched import interrupted, library_threads

DATA = Path(os.environ.get("SKFEDEM_DATA", Path(__file__).parents[3] / "shared" / "data"))
# Most paths are short here.
pytestmark = pytest.mark.filterwarnings("ignore:The best penalty.* is the smallest that was tried")


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
    assert_array_equal(_ranking(scores), [5, 1, 1, 4, 1, 6])
    # A likelihood of small numbers is a constant but for their squares.
    assert_array_equal(_ranking(-0.9 - 1e-10 * np.array([2.0, 1.0, 3.0, 1.0 + 1e-6])), [3, 1, 4, 1])
    # Penalties leave fewer factors than any of these ranks allows: the first one is as good.
    search = FederatedMatrixImputerCV((8, 9, None), 3, **QUICK | {"tol": 1e-6})
    search.fit(clients_of())
    assert (search.cv_results_["mean_n_factors"] < 8).all()
    assert search.best_params_["rank"] == 8


# These counts are far from Poisson counts around penalised effects.
@pytest.mark.filterwarnings("ignore:The dispersion of the counts")
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
        largest, _ = largest_of_path(beginning, observed_by(clients, "poisson"))
        assert alone.penalty_max_ == largest
        here = search.cv_results_["param_effects_penalty"] == effects_penalty
        for name in ("param_penalty", "mean_test_score"):
            assert_array_equal(alone.cv_results_[name], search.cv_results_[name][here])
        if effects_penalty == best:
            assert alone.penalty_max_ == search.penalty_max_
            assert_array_equal(alone.fitted_mean(), search.fitted_mean())


# These counts are far from Poisson counts around penalised effects.
@pytest.mark.filterwarnings("ignore:The dispersion of the counts")
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
    monkeypatch.setattr("skfedem._penalty_search.penalty_grid._LARGEST_RIDGE", 100.0)
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
    of_all_cells = [
        fit["penalty"] for fit in recorded[2 * (5 + 1) :]
    ]  # with those of effects alone
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
    trials = [Trial(None, 1.0, 9.0, np.array([score]), *[None] * 5) for score in scores]
    assert index_of_best(trials) == 1


def test_number_of_fits_without_convergence_is_in_the_warning():
    search = FederatedMatrixImputerCV(
        penalties=[9.0, 1.0], effects_penalties=[0.1, 1.0], n_splits=2, random_state=0, max_iter=2
    )
    with pytest.warns(ConvergenceWarning) as caught:
        search.fit(clients_of())
    assert {w.filename for w in caught} == {__file__}
    (said,) = (str(w.message) for w in caught if "of the search" in str(w.message))
    assert said.startswith("8 of 8 fits of the search did not converge")
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
    with pytest.warns(UserWarning, match=r"smaller eps \(it was 0.1\)"):
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
    expected = "smallest that was tried: a smaller eps (it was 0.01)"
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
    # The residuals that the largest penalty is found by, once: the ranks have it in common.
    alone = FederatedMatrixImputerCV((2,), penalties=[9.0, 3.0, 1.0], **QUICK).fit(clients_of())
    more = alone.cv_results_["uplink_bits"] - results["uplink_bits"][3:]
    assert more[0] >= 64 * sum(np.isfinite(client).sum() for client in clients_of())
    assert_array_equal(more[1:], 0)


@pytest.mark.parametrize(
    ("parameters", "error", "says"),
    [
        ({"ranks": 3}, TypeError, "Expected ranks to be a list .* got 3"),
        ({"ranks": None}, TypeError, "Expected ranks .* got None"),
        ({"ranks": "auto"}, TypeError, "Expected ranks .* got 'auto'"),
        ({"ranks": ()}, ValueError, r"Expected ranks .* got \[\]"),
        ({"ranks": (2, 0)}, ValueError, "Expected each of ranks to be an integer >= 1, got 0"),
        ({"ranks": (2, 10)}, ValueError, r"ranks .* got 10 for a matrix of shape \(14, 9\)"),
        ({"ranks": np.array(2)}, TypeError, "Expected ranks to be a list .* got array"),
        ({"effects_penalties": "all"}, TypeError, "^Expected effects_penalties to be a list"),
        ({"effects_penalties": 1.0}, TypeError, "list of .* got 1.0"),
        ({"effects_penalties": 0}, TypeError, "list of .* got 0"),
        ({"effects_penalties": [-1]}, ValueError, r">= 0, got \[-1\]"),
        ({"effects_penalties": ()}, ValueError, "at least one"),
        ({"penalties": 0}, ValueError, "penalties to be an integer >= 1 and <= 10000, got 0"),
        ({"penalties": 2.5}, TypeError, "Expected penalties to be an integer"),
        ({"penalties": []}, ValueError, "Expected penalties .* at least one"),
        ({"penalties": [1.0, -1.0]}, ValueError, r"numbers >= 0, got \[1.0, -1.0\]"),
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
    in_round_12 = interrupted(LocalClients.round, at=12)
    monkeypatch.setattr(LocalClients, "round", in_round_12)
    with pytest.raises(KeyboardInterrupt):
        imputer.fit(clients_of("gaussian"))
    assert in_round_12.n_calls == 12  # no other fit was begun
    with pytest.raises(NotFittedError):
        imputer.transform(clients_of("gaussian"))


def test_a_last_fit_stopped_from_the_keyboard_has_a_complete_search(monkeypatch):
    imputer = FederatedMatrixImputerCV([2], penalties=3, **QUICK)
    whole, rounds = clone(imputer), interrupted(LocalClients.round, at=None)
    monkeypatch.setattr(LocalClients, "round", rounds)
    whole.fit(clients_of("gaussian"))
    rounds.n_calls, rounds.at = 0, rounds.n_calls
    with pytest.warns(ConvergenceWarning) as caught:
        imputer.fit(clients_of("gaussian"))
    interrupted_fit, of_search = (str(w.message) for w in caught)
    assert f"after {whole.n_iter_ - 1} rounds" in interrupted_fit
    assert of_search.startswith("The search was complete")
    assert imputer.best_params_ == whole.best_params_
    assert imputer.n_iter_ == whole.n_iter_ - 1


@pytest.mark.parametrize("n_rounds", [0, 1])
def test_a_path_to_the_last_fit_stopped_from_the_keyboard_has_a_complete_search(
    n_rounds, monkeypatch
):
    imputer = FederatedMatrixImputerCV(
        [2], penalties=3, effects_penalties=[1.0], n_splits=2, random_state=0
    )
    whole, fit_step, left = clone(imputer).fit(clients_of("gaussian")), penalty_path._fit_step, []

    def interrupted(*args):
        if left and not left.pop():
            raise KeyboardInterrupt
        return client_round(*args)

    client_round = LocalClients.round

    def begun(imputer, penalty, X, **data):
        if X is cells:  # those of all folds
            left.extend([False] + n_rounds * [True])
        return fit_step(imputer, penalty, X, **data)

    cells = clients_of("gaussian")
    monkeypatch.setattr(LocalClients, "round", interrupted)
    monkeypatch.setattr(penalty_path, "_fit_step", begun)
    with pytest.warns(ConvergenceWarning, match="The search was complete"):
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
    message = "Expected ranks to be a list .* got "
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
