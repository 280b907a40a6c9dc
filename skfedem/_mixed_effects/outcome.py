"""Fitted attributes and warnings after a run of a population model."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from .._error_messages import label_repr, plural
from .._typing import FloatArray, IntArray
from .._warnings import warn
from ..models.mixed_effects.maximization import Theta
from ..solvers._from_parameters import step_schedule
from ..solvers._report import Wording, warn_outcome
from ..solvers._state import RunState
from ..solvers.base import Problem
from .design import Design
from .estimates import fitted_of, names_of, shrinkage_of, standard_errors_of, values_of
from .records import ClientRecords
from .report import SiteSums
from .settings import schedule_of

# Fewer subjects of a site are told apart by their sum.
_FEWEST_SUBJECTS = 3
# Movement of the estimates at the end, in root mean square of standard errors, that is small.
_SETTLED = 0.25


def so_far_fitted(
    design: Design, data: ClientRecords, parameters: Any, n_rounds: int
) -> dict[str, Any]:
    """Fitted attributes from the parameters after ``n_rounds`` rounds."""
    return {
        **fitted_of(design, parameters.theta),
        "n_subjects_": int(data.offsets[-1]),
        "n_observations_": data.n_observations,
        "n_missing_": data.n_missing,
        "n_clients_": len(data.ids),
        "client_ids_": data.ids.copy(),
        "n_iter_": n_rounds,
        "converged_": False,
    }


def fitted_after(
    settings: Any,
    design: Design,
    data: ClientRecords,
    problem: Problem,
    run: RunState,
    sums: SiteSums,
    drift: FloatArray,
) -> dict[str, Any]:
    """Fitted attributes after a run, with what the sites reported."""
    theta = run.server.parameters.theta
    names = names_of(design)
    errors = standard_errors_of(design, theta, sums.information)
    settled = settings.e_step == "mcmc" and _has_settled(settings, problem, run)
    return {
        **so_far_fitted(design, data, run.server.parameters, run.n_rounds),
        "converged_": run.converged or settled,
        "standard_errors_": dict(zip(names, errors.tolist(), strict=True)),
        "log_likelihood_": sums.log_likelihood,
        "log_likelihood_error_": float(np.sqrt(sums.variance)),
        "shrinkage_": shrinkage_of(design, theta, sums),
        "history_": {**run.history.as_dict(), **_traces(names, design, run.trace)},
        "client_drift_": drift.copy(),
    }


def _has_settled(settings: Any, problem: Problem, run: RunState) -> bool:
    """Whether chains moved the estimates little in the second half of the smoothing rounds.

    With s' the statistic in the middle and s the last one, ``2 N |Q(s; T(s)) - Q(s; T(s'))|`` is
    the squared distance of the estimates in standard errors of complete data, over all of them.
    """
    model: Any = problem.model
    schedule, server = schedule_of(settings), run.server
    if run.n_rounds < schedule.n_rounds or not schedule.n_smoothing:
        return False
    then = run.trace[schedule.n_exploratory + schedule.n_smoothing // 2]
    before = model.parameters(Theta(*model.layout.split(then)))
    moved = [model.surrogate(server.statistics, own) for own in (server.parameters, before)]
    squared = 2 * problem.sizes.n_samples * abs(moved[0] - moved[1])
    return bool(squared < _SETTLED**2 * model.n_statistics)


def _traces(names: list[str], design: Design, trace: list[FloatArray]) -> dict[str, FloatArray]:
    """A column of the history for each estimate."""
    return dict(zip(names, values_of(design, np.asarray(trace)).T.copy(), strict=True))


def warn_of_fit(settings: Any, problem: Problem, state: RunState, *, converged: bool) -> None:
    """Give the warnings that apply to a fit with these parameters."""
    wording = Wording("left the domain of the M-step", ("fewer random effects",))
    schedule = step_schedule(settings, problem)
    if settings.e_step == "quadrature":
        warn_outcome(settings, problem, state, schedule, wording, is_worse=False)
        return
    warn_outcome(settings, problem, state, schedule, wording, is_worse=True)
    if not converged and state.stopped_by is None and state.n_rounds:
        warn(
            "Not converged: there were fewer rounds than n_exploratory + n_smoothing, or the "
            "estimates still moved by more than a quarter of a standard error in the second half "
            "of the smoothing rounds. Increase n_exploratory, or both.",
            ConvergenceWarning,
        )


def warn_of_small_sites(
    settings: Any,
    design: Design,
    n_subjects: IntArray,
    ids: NDArray[Any],
) -> None:
    """Warn of sites whose messages show persons, or whose parameters are not determined."""
    if len(ids) == 1:
        return
    smallest = int(np.argmin(n_subjects))
    example = f"client {label_repr(ids[smallest])} has {n_subjects[smallest]}"
    n_few = int((n_subjects < _FEWEST_SUBJECTS).sum())
    if n_few:
        warn(
            f"{plural(n_few, 'client')} with fewer than {_FEWEST_SUBJECTS} subjects ({example}): "
            "what such a site sends is nearly the parameters of a person. Join sites, or leave "
            "them out.",
            UserWarning,
        )
    p = len(design.names)
    n_few = int((n_subjects < p + 1).sum())
    if n_few and settings.aggregate == "parameters":
        warn(
            f"{plural(n_few, 'client')} with fewer subjects than parameters + 1 = {p + 1} "
            f"({example}): these do not determine a covariance of random effects, and a single "
            "subject has none, so that the average is far too small. Average statistics.",
            UserWarning,
        )
