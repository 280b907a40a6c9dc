"""Runs of a mixture's ``fit``: new ones, continued ones, and the best of several.

Streams, which have one run that never ends, are in ``partial_fit.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .._data.labels import find_labels
from .._typing import FilePath, FloatArray, IntArray
from ..models._base import Start
from ..models.mixture.initial_parameters import InitialParameters, check_distance_of_rows
from ..models.mixture.initialization import (
    n_moments_told,
    standardise,
    standardised_again,
    start_again,
    start_run,
)
from ..solvers._fit_task import FitTask
from ..solvers._fitted_state import FittedState, continued
from ..solvers._from_parameters import SOLVERS, federated_problem, run_solver
from ..solvers._resume import seed_of
from ..solvers._state import RunState
from ..solvers.base import Clients, Problem

if TYPE_CHECKING:
    from ..mixture import FederatedGaussianMixture

# Relative differences of likelihoods that may be due to rounding.
_ROUNDING = 1e-9


def new_runs(
    settings: FederatedGaussianMixture, clients: Clients, initial: InitialParameters
) -> tuple[Problem, Callable[[Problem], Start]]:
    """Problem of new runs, in the units of these rows, and a function for their starts.

    The function returns a ``Start`` for the problem with the seed of a run.
    """
    model = standardise(settings, clients, initial)
    n_common = len(clients.messages)

    def start(problem: Problem) -> Start:
        del clients.messages[n_common:]  # those of an earlier start
        first = start_run(model, clients, settings.init_params, initial, problem.task.seed)
        return first.after(*clients.bits())

    return federated_problem(settings, model, clients.sizes, seed=0), start


def next_run(
    settings: FederatedGaussianMixture,
    ids: NDArray[Any],
    totals: IntArray | FloatArray,
    clients: Clients,
    initial: InitialParameters,
    memory: FittedState,
    data: str,
) -> tuple[Problem, Callable[[Problem], Start]]:
    """As ``new_runs``, for a run that continues an earlier fit, in the units of that fit.

    ``data`` is as in ``FittedState``.
    """
    before, server = memory.model, memory.server
    check_distance_of_rows(before, initial, clients, ids)
    clients.messages.clear()
    model = standardised_again(settings, before, clients, initial)
    n_new = int(np.count_nonzero(find_labels(memory.ids, ids) < 0))

    def start(problem: Problem) -> Start:
        first = start_again(model, clients, before, server, initial)
        clients.tell("units", n_moments_told(model), n_new)
        first = first.after(*clients.bits())
        clients.join(SOLVERS[settings.solver], problem.task)
        return continued(memory, settings.solver, problem, clients, first, totals, ids, data)

    return federated_problem(settings, model, clients.sizes, seed=0), start


def best_run(
    settings: FederatedGaussianMixture,
    problem: Problem,
    start: Callable[[Problem], Start],
    seeds: list[int],
    clients: Clients,
    resume_from: FilePath | None,
    begin_start: Callable[[], FitTask | None],
) -> RunState:
    """Run from a start for each seed, and return the run with the largest likelihood.

    ``begin_start`` notifies callbacks of the next start, and returns the task of its rounds or
    None.
    """
    best: RunState | None = None
    for number, seed in enumerate(seeds):
        result = None  # frees the memory of the last result
        if settings.verbose:
            print(f"Start {number}")
        seed = seed_of(settings, seed, resume_from)
        seeded = problem._replace(task=problem.task._replace(seed=seed))
        try:
            first, tasks = start(seeded), begin_start()
            result = run_solver(settings, seeded, first, clients, resume_from, tasks)
        except KeyboardInterrupt:
            # Interrupted between starts: keep the best of those that ended.
            if best is None:
                raise
            return best._replace(stopped_by="keyboard")
        if best is None or is_better(_last(result), _last(best)):
            best = result
        if result.stopped_by == "keyboard":
            return best._replace(stopped_by="keyboard")
    assert best is not None  # there is a seed
    return best


def _last(state: RunState) -> float:
    """Last log-likelihood of a run that is known."""
    return state.criteria("log_likelihood")[-1]


def is_better(likelihood: float, best: float) -> bool:
    """Whether a likelihood is larger by more than rounding, which must not choose an optimum."""
    return likelihood > best + _ROUNDING * max(1.0, abs(best))
