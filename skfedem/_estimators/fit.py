"""The steps of a fit, for all estimators: validate, announce the task, run, store, warn."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from .._data.features import store
from .._federation import Federation
from .._parallel import Workers
from .._parameters import check_minibatches
from .._random import seeds_of_runs
from .._typing import FilePath, RowWeights
from ..clients.local import clients_of
from ..models._base import Start
from ..participation import check_participation
from ..solvers._fit_task import FitTask
from ..solvers._loop import Options, run
from ..solvers._report import print_outcome, printer
from ..solvers._resume import checkpoint_of, seed_of
from ..solvers._state import RunState
from ..solvers.base import Clients, Problem

_Estimator = TypeVar("_Estimator", bound=BaseEstimator)

# Relative differences of likelihoods that may be due to rounding.
_ROUNDING = 1e-9


class FitSteps(Protocol):
    """What an estimator contributes to a fit, from its validated parameters and data.

    Attributes
    ----------
    settings : record
        All parameters, see ``read_parameters``.
    federation : Federation
    ids : ndarray of shape (n_clients,)
        Labels of its clients.
    rows : str
        Plural noun for its rows; "" if minibatches may be larger than a client.
    n_starts : int
    """

    @property
    def settings(self) -> Any: ...
    @property
    def federation(self) -> Federation: ...
    @property
    def ids(self) -> NDArray[Any]: ...
    @property
    def rows(self) -> str: ...
    @property
    def n_starts(self) -> int: ...

    def problem(self, clients: Clients) -> Problem:
        """Problem, from the first messages of the clients."""

    def options(self, problem: Problem) -> Options:
        """Options of a run."""

    def start(self, problem: Problem, clients: Clients) -> Start:
        """Start of a run of the solver, which the clients have joined."""

    def so_far(self, problem: Problem, state: RunState) -> dict[str, Any]:
        """Fitted attributes after a round."""

    def fitted(self, problem: Problem, state: RunState, clients: Clients) -> dict[str, Any]:
        """Fitted attributes after the run."""

    def warn(self, problem: Problem, state: RunState, fitted: dict[str, Any]) -> None:
        """Give the warnings that apply to this fit."""


class Outcome(NamedTuple):
    """Problem, and the state in which the best of its runs ended."""

    problem: Problem
    state: RunState


def fit(
    estimator: _Estimator,
    steps: FitSteps,
    X: object,
    y: object = None,
    sample_weight: RowWeights | None = None,
    resume_from: FilePath | None = None,
) -> _Estimator:
    """Fit an estimator; X, y and ``sample_weight`` are for its callbacks."""
    settings, federation = steps.settings, steps.federation
    if steps.rows:
        weighted = federation.sample_weight is not None
        check_minibatches(settings, federation.lengths, steps.ids, steps.rows, weighted=weighted)
    seeds = seeds_of_runs(settings.random_state, steps.n_starts)
    task = FitTask(estimator, X, y, settings.max_iter, sample_weight, len(seeds))
    with Workers(settings.n_jobs) as workers:
        clients = clients_of(X, federation, workers)
        problem, state = best_run(
            steps, clients, seeds, type(estimator).__name__, resume_from, task
        )
        fitted = steps.fitted(problem, state, clients)
    fitted["setup_messages_"] = list(clients.messages)
    store(estimator, fitted)
    task.end()
    steps.warn(problem, state, fitted)
    return estimator


def best_run(
    steps: FitSteps,
    clients: Clients,
    seeds: list[int],
    name: str = "",
    resume_from: FilePath | None = None,
    task: FitTask | None = None,
) -> Outcome:
    """Run from a start for each seed; the run with the largest likelihood.

    ``name`` is that of the estimator, which a checkpoint contains.
    """
    settings, problem = steps.settings, steps.problem(clients)
    check_participation(problem.participation, problem.sizes.n_clients)
    criterion, n_common, best = problem.model.criterion, len(clients.messages), None
    for number, seed in enumerate(seeds):
        state = None  # frees the memory of the last one
        if settings.verbose and len(seeds) > 1:
            print(f"Start {number}")
        try:
            seed = seed_of(settings, seed, resume_from)
            own = problem._replace(task=problem.task._replace(seed=seed))
            earlier = clients.bits(n_common)  # of earlier starts
            clients.join(problem.solver, own.task)
            start = steps.start(own, clients)
            sent, received = np.subtract(clients.bits(), earlier).tolist()
            start = start.after(sent, received)
            tasks = task and task.begin_start(lambda now: steps.so_far(problem, now))
            options = steps.options(own)
            checkpoint = checkpoint_of(settings, name, own, clients, options.step_size, resume_from)
            report = printer(settings.verbose, criterion)
            state = run(own, start, options, clients, report, checkpoint, tasks)
        except KeyboardInterrupt:
            # Interrupted between starts: keep the best of those that ended.
            if best is None:
                raise
            return Outcome(problem, best._replace(stopped_by="keyboard"))
        if settings.verbose:
            judged = bool(criterion) and problem.solver.schedule is None
            print_outcome(state, criterion, judged=judged)
        if best is None or is_better(*(own.criteria(criterion)[-1] for own in (state, best))):
            best = state
        if state.stopped_by == "keyboard":
            return Outcome(problem, best._replace(stopped_by="keyboard"))
    assert best is not None  # there is a seed
    return Outcome(problem, best)


def is_better(likelihood: float, largest: float) -> bool:
    """Whether a likelihood is larger by more than rounding, which must not choose an optimum."""
    return likelihood > largest + _ROUNDING * max(1.0, abs(largest))
