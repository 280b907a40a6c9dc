"""scikit-learn's callbacks on both estimators: what they are told, and that they may stop a fit."""

import warnings

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from skfedem import FederatedGaussianMixture, FederatedMatrixImputer
from skfedem.solvers import _loop
from skfedem.solvers._state import initial_state
from watched import interrupted

callback = pytest.importorskip("sklearn.callback", reason="this scikit-learn has no callbacks")

ESTIMATORS = {
    "mixture": FederatedGaussianMixture(2, omega=1.0, max_iter=12, random_state=0),
    "mixture-exact": FederatedGaussianMixture(2, max_iter=12, tol=0, random_state=0),
    "imputer": FederatedMatrixImputer(2, participation=0.5, max_iter=12, random_state=0),
}
every_estimator = pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS)
not_converged = pytest.mark.filterwarnings(
    "ignore:Not converged:sklearn.exceptions.ConvergenceWarning"
)


@pytest.fixture
def clients():
    rng = np.random.default_rng(0)
    return [rng.normal(size=(25, 3)) + 3 * (k % 2) for k in range(4)]


class Recorder:
    """Notes every call; asks for the end after some rounds."""

    max_propagation_depth = None

    def __init__(self, stop_after=None):
        self.stop_after = stop_after
        self.n_setups, self.begun, self.ended, self.parameters = 0, [], [], []
        self.starts = []

    def setup(self, estimator, context):
        self.n_setups += 1

    def teardown(self, estimator, context):
        self.n_setups -= 1

    def on_fit_task_begin(self, estimator, context):
        self.begun.append(self._path(context))

    def on_fit_task_end(self, estimator, context, *, X=None, fitted_estimator=None):
        self.ended.append(self._path(context))
        if context.task_name == "start":
            self.starts.append(fitted_estimator)
        if context.task_name == "round":
            self.parameters.append(fitted_estimator)
            return self.stop_after is not None and context.task_id + 1 == self.stop_after
        return False

    @staticmethod
    def _path(context):
        path = []
        while context is not None:
            path.append((context.task_name, context.task_id))
            context = context.parent
        return tuple(reversed(path))

    @property
    def rounds(self):
        return [path for path in self.ended if path[-1][0] == "round"]


def log_likelihood(estimator, X, y):
    return {"log_likelihood": estimator.score(X)}


@not_converged
@every_estimator
def test_a_round_is_a_task(estimator, clients):
    recorder = Recorder()
    watched = clone(estimator).set_callbacks(recorder).fit(clients)
    assert [path[-1] for path in recorder.rounds] == [("round", k) for k in range(watched.n_iter_)]
    assert recorder.begun[0] == recorder.ended[-1] == (("fit", 0),)
    assert sorted(recorder.begun) == sorted(recorder.ended)
    assert recorder.n_setups == 0


@not_converged
def test_a_task_knows_how_many_tasks_it_has(clients):
    sizes = {}

    class Sizes(Recorder):
        def on_fit_task_begin(self, estimator, context):
            sizes.setdefault(context.task_name, set()).add(context.max_subtasks)

    gm = FederatedGaussianMixture(2, max_iter=3, tol=0, random_state=0)
    clone(gm).set_callbacks(Sizes()).fit(clients)
    assert sizes["fit"] == {3}
    sizes.clear()
    clone(gm).set_params(n_init=2).set_callbacks(Sizes()).fit(clients)
    assert sizes["fit"] == {2} and sizes["start"] == {3}


@not_converged
@every_estimator
def test_watching_changes_nothing(estimator, clients):
    alone = clone(estimator).fit(clients)
    watched = clone(estimator).set_callbacks(Recorder()).fit(clients)
    for name, column in alone.history_.items():
        assert_array_equal(column, watched.history_[name], err_msg=name)


@not_converged
@every_estimator
def test_what_a_round_ends_with_answers_as_a_fit_does(estimator, clients):
    recorder = Recorder()
    last = clone(estimator).set_callbacks(recorder).fit(clients)
    for fitted in recorder.parameters:
        answers = fitted.transform(clients)
        assert all(np.isfinite(answer).all() for answer in answers)
        assert np.isfinite(fitted.score(clients))
    for one, other in zip(answers, last.transform(clients), strict=True):
        assert_array_equal(one, other)


@not_converged
@every_estimator
def test_what_a_round_ends_with_knows_the_rounds_so_far(estimator, clients):
    recorder = Recorder()
    watched = clone(estimator).fit(clients[:2])  # of which nothing is to be left
    watched.set_callbacks(recorder).fit(clients)
    for fitted in recorder.parameters:
        assert fitted.n_clients_ == len(fitted.client_ids_) == len(clients)
        for name, column in fitted.history_.items():
            assert len(column) == fitted.n_iter_ + 1
            # An exact round gives these for the row before.
            seen = slice(fitted.n_iter_ + (name in ("round", "uplink_bits", "n_active")))
            assert_array_equal(column[seen], watched.history_[name][seen], err_msg=name)


@not_converged
@every_estimator
def test_what_a_round_ends_with_has_no_attribute_of_an_earlier_fit(estimator, clients):
    recorder, first = Recorder(), Recorder()
    tables = [pd.DataFrame(rows, columns=["a", "b", "c"]) for rows in clients]
    watched = clone(estimator).fit(tables)
    if isinstance(estimator, FederatedGaussianMixture):
        watched.partial_fit(tables)
    watched.set_callbacks(recorder).fit(clients)
    clone(estimator).set_callbacks(first).fit(clients)
    for fitted, fresh in zip(recorder.parameters, first.parameters, strict=True):
        names, wanted = ({k for k in vars(of) if k.endswith("_")} for of in (fitted, fresh))
        assert names == wanted
        fitted.score(clients)  # warns nothing: clients have no names of columns


@not_converged
@every_estimator
def test_what_a_round_ends_with_goes_on_from_no_earlier_fit(estimator, clients):
    recorder = Recorder()
    watched = clone(estimator).set_params(warm_start=True, max_iter=3, tol=0).fit(clients)
    watched.set_callbacks(recorder).fit(clients)
    last = recorder.parameters[-1].set_callbacks()
    if isinstance(last, FederatedGaussianMixture):
        for go_on in (last.fit, last.partial_fit):
            with pytest.raises(ValueError, match="fit has ended, .* callback .* checkpoint=path"):
                go_on(clients)
        last.set_params(warm_start=False).fit(clients)
    else:
        last.fit(clients)
        # From its own θ, whose factors were multiplied again: that rounds off some digits.
        assert_allclose(last.history_["objective"][0], watched.objective_, rtol=1e-12)
    assert last.history_["round"][-1] == last.n_iter_ == 3


@not_converged
@every_estimator
@pytest.mark.parametrize("fresh", [False, True])
def test_a_run_that_is_resumed_counts_its_rounds(estimator, clients, fresh, tmp_path):
    path = tmp_path / "run.npz"
    gm = clone(estimator).set_params(warm_start=True, max_iter=3).fit(clients)
    gm.set_params(max_iter=5, checkpoint=path).fit(clients)
    recorder = Recorder()
    gm = clone(gm) if fresh else gm
    gm.set_params(max_iter=8).set_callbacks(recorder).fit(clients, resume_from=path)
    assert [fitted.n_iter_ for fitted in recorder.parameters] == [6, 7, 8]
    assert gm.n_iter_ == 8


@not_converged
@every_estimator
def test_scores_on_the_way_are_those_of_shorter_fits(estimator, clients):
    monitor = callback.ScoringMonitor(scoring=log_likelihood)
    watched = clone(estimator).set_callbacks(monitor).fit(clients)
    log = monitor.get_logs().data
    rounds = {row["task_id"]: row["log_likelihood"] for row in log if row["task_name"] == "round"}
    assert len(rounds) == watched.n_iter_
    for n_rounds in (1, 4, watched.n_iter_):
        shorter = clone(estimator).set_params(max_iter=n_rounds).fit(clients)
        assert rounds[n_rounds - 1] == shorter.score(clients)


@every_estimator
def test_a_callback_may_end_a_fit(estimator, clients):
    recorder = Recorder(stop_after=3)
    stopped = clone(estimator).set_callbacks(recorder).fit(clients)  # warns nothing
    assert (stopped.n_iter_, stopped.converged_) == (3, False)
    assert len(recorder.rounds) == 3
    with pytest.warns(match="Not converged"):
        shorter = clone(estimator).set_params(max_iter=3).fit(clients)
    assert_array_equal(stopped.score(clients), shorter.score(clients))


@not_converged
@every_estimator
@pytest.mark.parametrize("settings", [{}, {"participation": 0.5, "eval_every": 100}])
def test_what_a_callback_ended_is_evaluated_like_any_fit(estimator, clients, settings):
    estimator = clone(estimator).set_params(tol=0, **settings)
    stopped = clone(estimator).set_callbacks(Recorder(stop_after=3)).fit(clients)
    shorter = clone(estimator).set_params(max_iter=3).fit(clients)
    for name, column in shorter.history_.items():
        assert_array_equal(stopped.history_[name], column, err_msg=name)
    if isinstance(estimator, FederatedGaussianMixture):
        assert stopped.lower_bounds_ == shorter.lower_bounds_


@not_converged
def test_the_best_of_several_starts_that_a_callback_ended_is_kept(clients):
    gm = FederatedGaussianMixture(
        3, init_params="random", participation=0.5, eval_every=100, n_init=4, tol=0, random_state=0
    )
    stopped = clone(gm).set_callbacks(Recorder(stop_after=20)).fit(clients)
    shorter = clone(gm).set_params(max_iter=20).fit(clients)
    assert_array_equal(stopped.means_, shorter.means_)


@not_converged
def test_starts_are_tasks_where_there_are_several(clients):
    recorder = Recorder()
    gm = FederatedGaussianMixture(2, n_init=2, max_iter=3, tol=0, random_state=0)
    gm.set_callbacks(recorder).fit(clients)
    assert [path[1:] for path in recorder.rounds] == [
        (("start", start), ("round", number)) for start in range(2) for number in range(3)
    ]
    assert sorted(recorder.begun) == sorted(recorder.ended)
    assert max(start.score(clients) for start in recorder.starts) == gm.score(clients)


def test_a_start_that_is_interrupted_before_its_first_round_ends_all_the_same(clients, monkeypatch):
    monkeypatch.setattr(_loop, "initial_state", interrupted(initial_state, at=2))
    recorder = Recorder()
    gm = FederatedGaussianMixture(2, n_init=3, max_iter=3, tol=0, random_state=0)
    with pytest.warns(ConvergenceWarning, match="Interrupted from the keyboard"):
        gm.set_callbacks(recorder).fit(clients)
    assert sum(path[-1][0] == "start" for path in recorder.begun) == 2
    assert sorted(recorder.begun) == sorted(recorder.ended)


@not_converged
@every_estimator
def test_in_a_pipeline_and_a_grid_search(estimator, clients):
    recorder = Recorder()
    pipeline = make_pipeline(FunctionTransformer(), clone(estimator))
    pipeline[0].set_params(func=tuple)
    with warnings.catch_warnings():
        # The transformer of scikit-learn knows nothing of callbacks.
        warnings.filterwarnings("ignore", "The estimator .* does not support callbacks")
        pipeline.set_callbacks(recorder).fit(clients)
    assert len(recorder.rounds) == pipeline[-1].n_iter_

    recorder = Recorder()
    search = GridSearchCV(clone(estimator), {"omega": [0.0, 2.0]}, cv=2)
    search.set_callbacks(recorder).fit(clients)
    # Two candidates on two splits, and the best on all clients.
    fits = {path[:-1] for path in recorder.rounds}
    assert len(fits) == 5
    assert recorder.n_setups == 0


@not_converged
@pytest.mark.filterwarnings("ignore:The estimator FunctionTransformer does not support")
@every_estimator
@pytest.mark.parametrize("tool", ["alone", "pipeline", "search"])
def test_progress_bars_name_the_estimator(tool, estimator, clients, capsys, monkeypatch):
    pytest.importorskip("rich")
    monkeypatch.setenv("COLUMNS", "80")  # names are cut where a terminal is narrow
    watched = clone(estimator)
    if tool == "pipeline":
        watched = make_pipeline(FunctionTransformer(), watched)
    elif tool == "search":
        watched = GridSearchCV(watched, {"omega": [0.0, 2.0]}, cv=2)
    watched.set_callbacks(callback.ProgressBar(max_propagation_depth=None)).fit(clients)
    assert type(estimator).__name__[:12] in capsys.readouterr().out


@every_estimator
def test_a_fit_that_fails_leaves_no_callback_behind(estimator, clients):
    recorder = Recorder()
    watched = clone(estimator).set_callbacks(recorder).set_params(omega=-1.0)
    with pytest.raises(ValueError, match="omega to be a number >= 0, got -1.0"):
        watched.fit(clients)
    assert recorder.n_setups == 0
    assert not [name for name in vars(watched) if name.startswith("_callback")]


@not_converged
def test_scores_on_the_way_are_weighted(clients):
    rng = np.random.default_rng(1)
    weights = [rng.integers(1, 9, size=len(rows)) for rows in clients]

    def scored(estimator, X, y, sample_weight=None):
        return {"log_likelihood": estimator.score(X, sample_weight=sample_weight)}

    monitor = callback.ScoringMonitor(scoring=scored)
    gm = FederatedGaussianMixture(2, max_iter=3, tol=0, random_state=0).set_callbacks(monitor)
    gm.fit(clients, sample_weight=weights)
    last = [row for row in monitor.get_logs().data if row["task_name"] == "round"][-1]
    assert last["log_likelihood"] == gm.score(clients, sample_weight=weights)
    assert last["log_likelihood"] != gm.score(clients)


@not_converged
def test_a_fit_that_a_callback_ends_is_saved(clients, tmp_path):
    gm = FederatedGaussianMixture(2, omega=1.0, max_iter=12, random_state=0)
    stopped = clone(gm).set_params(checkpoint=tmp_path / "run.npz", checkpoint_every=100)
    stopped.set_callbacks(Recorder(stop_after=3)).fit(clients)
    assert stopped.n_iter_ == 3
    resumed = clone(gm).fit(clients, resume_from=tmp_path / "run.npz")
    assert_array_equal(resumed.means_, gm.fit(clients).means_)
