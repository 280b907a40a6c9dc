"""Runs of a mixture's ``fit``: new ones, continued ones, and the best of several.

Streams, which have one run that never ends, are in ``stream.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .._federation import Federation
from .._input.known_labels import find_labels
from .._parallel import Workers
from .._typing import FilePath
from ..models._base import Start
from ..models.mixture.given import Given, check_distance_of_rows
from ..models.mixture.start import (
    bits_of_units,
    standardise,
    standardised_again,
    start_again,
    start_run,
)
from ..solvers._base import Problem
from ..solvers._fit_task import FitTask
from ..solvers._from_parameters import SOLVERS, federated_problem, run_solver
from ..solvers._loop import Run
from ..solvers._memory import Memory, go_on
from ..solvers._resume import seed_of

if TYPE_CHECKING:
    from ..mixture import FederatedGaussianMixture

# Relative differences of likelihoods that may be due to rounding.
_ROUNDING = 1e-9


def new_runs(
    settings: FederatedGaussianMixture, federation: Federation, given: Given
) -> tuple[Problem, Callable[[Problem], Start]]:
    """Problem of new runs, in the units of these rows, and a function for their starts.

    The function returns a ``Start`` for the problem with the seed of a run.
    """
    model, bits = standardise(settings, federation, given)

    def start(problem: Problem) -> Start:
        first = start_run(model, federation, settings.init_params, given, problem.seed)
        return first.after(bits, bits)

    return federated_problem(settings, model, federation, seed=0), start


def next_run(
    settings: FederatedGaussianMixture,
    ids: NDArray[Any],
    federation: Federation,
    given: Given,
    memory: Memory,
    data: str,
) -> tuple[Problem, Callable[[Problem], Start]]:
    """As ``new_runs``, for a run that continues an earlier fit, in the units of that fit.

    ``data`` is as in ``Memory``.
    """
    before, server = memory.model, memory.server
    check_distance_of_rows(before, given, federation, ids)
    model, bits = standardised_again(settings, before, federation, given)
    n_new = int(np.count_nonzero(find_labels(memory.ids, ids) < 0))

    def start(problem: Problem) -> Start:
        first = start_again(model, federation, before, server, given)
        first = first.after(bits, bits + bits_of_units(model, n_new))
        return go_on(memory, SOLVERS[settings.solver], problem, first, ids, data)

    return federated_problem(settings, model, federation, seed=0), start


def best_run(
    settings: FederatedGaussianMixture,
    problem: Problem,
    start: Callable[[Problem], Start],
    seeds: list[int],
    workers: Workers,
    resume_from: FilePath | None,
    begin_start: Callable[[], FitTask | None],
) -> Run:
    """Run from a start for each seed, and return the run with the largest likelihood.

    ``begin_start`` notifies callbacks of the next start, and returns the task of its rounds or
    None.
    """
    best: Run | None = None
    for number, seed in enumerate(seeds):
        result = None  # frees the memory of the last result
        if settings.verbose:
            print(f"Start {number}")
        seeded = problem._replace(seed=seed_of(settings, seed, resume_from))
        try:
            first, tasks = start(seeded), begin_start()
            result = run_solver(settings, seeded, first, workers, resume_from, tasks)
        except KeyboardInterrupt:
            # Interrupted between starts: keep the best of those that ended.
            if best is None:
                raise
            return best._replace(stopped_by="keyboard")
        if best is None or is_better(result.criteria[-1], best.criteria[-1]):
            best = result
        if result.stopped_by == "keyboard":
            return best._replace(stopped_by="keyboard")
    assert best is not None  # there is a seed
    return best


def is_better(likelihood: float, best: float) -> bool:
    """Whether a likelihood is larger by more than rounding, which must not choose an optimum."""
    return likelihood > best + _ROUNDING * max(1.0, abs(best))
