"""Fitted attributes and warnings after a run of a mixture."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from .._client_vectors import DenseLayout
from .._error_messages import join_alternatives
from .._warnings import warn
from ..models.mixture.gaussian_mixture import GaussianMixtureModel
from ..models.mixture.parameters import Parameters, in_row_units
from ..solvers._fitted_state import FittedState, at_average
from ..solvers._from_parameters import step_schedule
from ..solvers._report import Wording, against_noise, warn_outcome
from ..solvers._state import RunState
from ..solvers.base import Problem, ServerState

# Nats per row. Starting at the optimum, the noise of minibatches costs less than this.
_LARGE_FALL = 0.1


def so_far_fitted(
    model: GaussianMixtureModel, server: ServerState, n_rounds: int, settings: Any
) -> dict[str, Any]:
    """Fitted attributes from the server's state after ``n_rounds`` rounds."""
    weights, means, covariances, factors = in_row_units(model.units, server.parameters)
    if model.fixed_covariance is not None:
        given = np.asarray(settings.fixed_covariance, dtype=np.float64)
        covariances = (given + given.T) / 2  # exact in all digits
        _, inverse = model.structure.cholesky_and_inverse(covariances)
        factors = np.ascontiguousarray(inverse.T)
    return {
        "weights_": weights,
        "means_": means,
        "covariances_": covariances,
        "precisions_cholesky_": factors,
        "precisions_": model.structure.precisions(factors),
        "n_iter_": n_rounds,
        "converged_": False,
        "_memory": None,  # the memory of an earlier fit belongs to other parameters
        # Parameters of this fit, which set_params may change later.
        "_fitted_type": model.covariance_type,
        "_covariance_is_known": model.fixed_covariance is not None,
        "_n_features_out": len(weights),
    }


def fitted_attributes(
    memory: FittedState, history: dict[str, NDArray[Any]], criteria: list[float], settings: Any
) -> dict[str, Any]:
    """Fitted attributes after a fit, or a call of ``partial_fit``."""
    lower_bounds = np.asarray(criteria, dtype=np.float64).tolist()
    fitted, drift = at_average(memory), np.zeros(len(memory.ids))
    if memory.controls.size:
        drift = DenseLayout(*memory.controls.shape).norms(memory.controls)
    return {
        **so_far_fitted(fitted.model, fitted.server, len(history["round"]) - 1, settings),
        "lower_bounds_": lower_bounds,
        "lower_bound_": lower_bounds[-1],
        "history_": history,
        "n_clients_": len(memory.ids),
        "client_ids_": memory.ids.copy(),  # the memory has its own
        "client_drift_": drift,
        "_memory": memory,
    }


def warn_of_fit(settings: Any, problem: Problem, state: RunState, features: dict[str, Any]) -> None:
    """Give the warnings that apply to a fit with these parameters."""
    fall = 0.0 if problem.exact else state.initial_criterion - state.final_criterion
    remedies = ["fewer components"] if settings.n_components > 1 else []
    if settings.fixed_covariance is None:
        remedies.append("drop linearly dependent features")
    wording = Wording("left the domain of the M-step", tuple(remedies))
    schedule = step_schedule(settings, problem)
    warn_outcome(settings, problem, state, schedule, wording, is_worse=fall > _LARGE_FALL)
    if not problem.exact:
        ways = against_noise(settings, "a smaller step_size")
        _warn_of_noise(ways, state, problem.sizes.n_samples, fall)
    model: Any = problem.model  # a GaussianMixtureModel
    lost = model.inaccurate_components(state.server.parameters)
    if len(lost):
        warn(
            f"Covariances of components {lost.tolist()} are too small, relative to the distances "
            "between rows, to be computed in float64, and were increased. Look for outliers and "
            "for features that are constant within a component, increase reg_covar, or fit groups "
            "of rows that are far apart separately.",
            UserWarning,
        )
    else:
        _warn_of_collapse(model, state.server.parameters, features)


def _warn_of_collapse(
    model: GaussianMixtureModel, parameters: Parameters, features: dict[str, Any]
) -> None:
    """Warn of variances that consist of ``reg_covar``, as of values that rows repeat."""
    collapsed = np.argwhere(model.collapsed_variances(parameters))
    if not len(collapsed):
        return
    component, feature = collapsed[0].tolist()
    is_shared = model.structure.is_shared
    whose = "all components" if is_shared else f"component {component}"
    names = features.get("feature_names_in_")
    name = f"feature {feature}" if names is None else f"feature {names[feature]!r}"
    others = f" (and {len(collapsed) - 1} others)" * (len(collapsed) > 1)
    tied = "" if is_shared else 'covariance_type="tied", '
    warn(
        f"The variance of {name} in {whose}{others} is within 10 times reg_covar="
        f"{model.reg_covar:g}, which then determines likelihood and BIC: its rows have nearly the "
        f"same value. Use {tied}a larger reg_covar, or drop the feature.",
        UserWarning,
    )


def _warn_of_noise(ways: list[str], state: RunState, n_samples: int, fall: float) -> None:
    """Warn of components or likelihood lost to noise, with advice that reduces noise."""
    initial, final = n_samples * state.trace[0], n_samples * state.trace[-1]
    # In units of rows: a component of a single row has the weight 1, up to noise and ``tol``.
    vanished = np.flatnonzero((initial >= 0.5) & (final < 0.5))
    if len(vanished):
        warn(
            f"Components {vanished.tolist()} ended with a weight of less than half a row. The "
            "noise of minibatches and messages can make rare components vanish: use "
            f"{join_alternatives(ways)}, or fewer components if EM on all rows loses them as well.",
            ConvergenceWarning,
        )
    if fall > _LARGE_FALL:
        warn(
            f"The log-likelihood ended {fall:.3g} nats per row below its value at the start: do "
            f"not use this fit. Use {join_alternatives(ways)}, and look for outliers.",
            ConvergenceWarning,
        )
