"""Fitted attributes and warnings after a run of a population model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .._typing import FloatArray
from ..solvers._from_parameters import step_schedule
from ..solvers._report import Wording, warn_outcome
from ..solvers._state import RunState
from ..solvers.base import Problem
from .design import Design
from .estimates import fitted_of, names_of, shrinkage_of, standard_errors_of, values_of
from .records import ClientRecords
from .report import SiteSums

if TYPE_CHECKING:
    from ..mixed_effects import FederatedNonlinearMixedEffects


def so_far_fitted(
    design: Design, data: ClientRecords, parameters: Any, n_rounds: int
) -> dict[str, Any]:
    """Fitted attributes from the parameters after ``n_rounds`` rounds."""
    return {
        **fitted_of(design, parameters.theta),
        "n_subjects_": data.subjects.n_subjects,
        "n_observations_": int(data.subjects.n_observations.sum()),
        "n_missing_": data.n_missing,
        "n_clients_": len(data.ids),
        "client_ids_": data.ids.copy(),
        "n_iter_": n_rounds,
        "converged_": False,
    }


def fitted_after(
    design: Design, data: ClientRecords, run: RunState, sums: SiteSums, drift: FloatArray
) -> dict[str, Any]:
    """Fitted attributes after a run, with what the sites reported."""
    theta = run.server.parameters.theta
    names = names_of(design)
    errors = standard_errors_of(design, theta, sums.information)
    return {
        **so_far_fitted(design, data, run.server.parameters, run.n_rounds),
        "converged_": run.converged,
        "standard_errors_": dict(zip(names, errors.tolist(), strict=True)),
        "log_likelihood_": sums.log_likelihood,
        "shrinkage_": shrinkage_of(design, theta, sums),
        "history_": {**run.history.as_dict(), **_traces(names, design, run.trace)},
        "client_drift_": drift.copy(),
    }


def _traces(names: list[str], design: Design, trace: list[FloatArray]) -> dict[str, FloatArray]:
    """A column of the history for each estimate."""
    return dict(zip(names, values_of(design, np.asarray(trace)).T.copy(), strict=True))


def warn_of_fit(
    estimator: FederatedNonlinearMixedEffects, problem: Problem, state: RunState
) -> None:
    """Give the warnings that apply to a fit with these parameters."""
    wording = Wording("EM iterations", "left the domain of the M-step", ("fewer random effects",))
    schedule = step_schedule(estimator, problem)
    warn_outcome(estimator, problem, state, schedule, wording, is_worse=False)
