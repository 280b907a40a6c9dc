"""Warnings of imputers: unusual data, extreme means, and how a run ended."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import issparse
from sklearn.exceptions import ConvergenceWarning

from .._compat import row_count
from .._data.cells import CellData
from .._data.frame_labels import label_text
from .._data.matrices import holds_clients
from .._data.tables import is_client_list
from .._error_messages import join_alternatives, label_repr
from .._federation import Elsewhere
from .._typing import FloatArray, MatricesLike
from .._warnings import warn
from ..models.matrix.families import MAX_LOG_MEAN, family_of
from ..solvers._from_parameters import step_schedule
from ..solvers._report import Wording, against_noise, warn_outcome
from ..solvers._state import RunState
from ..solvers.base import Problem


class Limits(NamedTuple):
    """Limits beyond which simulated fits were wrong.

    Attributes
    ----------
    curvature_ratio : float
        Curvature of a cell divided by the median. With momentum, fits of 60 x 36 counts were 0.02
        nats above the optimum at 3,400, but 1 to 33 nats at 30,000.
    curvature_ratio_without_momentum : float
        0.001 nats at 340, but up to 70 nats after 500 rounds at 1,000.
    rise : float
        Relative rise of the objective over its value at the start.
    extrapolation : float
        Mean of a cell divided by the largest mean of an observed cell.
    dispersion : float
        Variance of counts divided by that of Poisson counts.
    """

    curvature_ratio: float = 1e4
    curvature_ratio_without_momentum: float = 500
    rise: float = 0.1
    extrapolation: float = 100
    dispersion: float = 5


_LIMITS = Limits()


def warn_of_fit(
    settings: Any,
    X: MatricesLike,
    cells: CellData,
    fitted: dict[str, Any],
    problem: Problem,
    state: RunState,
) -> None:
    """Warn of unusual data, extreme results, and how the run ended.

    X is the user's data, ``cells`` are the validated cells, and ``fitted`` the fitted attributes.
    """
    _warn_of_clients_without_cells(cells)
    _warn_of_triplets(X, cells)
    _warn_of_repeated_labels(settings, X, cells, fitted["_row_labels"])
    if family_of(settings.family).is_of_counts:
        warn_of_capped_means(state.server.statistics.iterate.theta)
        if settings.family == "poisson" and not len(fitted["singular_values_"]):
            _warn_of_dispersion(fitted["dispersion_"])
    _warn_of_curvature(problem, state)
    _warn_of_end(settings, problem, state, fitted["objective_"])


def _warn_of_dispersion(dispersion: float) -> None:
    """Warn of counts that vary far more than Poisson counts."""
    if dispersion > _LIMITS.dispersion:
        warn(
            f"The dispersion of the counts is {dispersion:.3g}: their variance is that many times "
            f"a Poisson count's, and standard errors are {dispersion**0.5:.2g} times as large. "
            "Leave totals(overdispersion=True), or fit family='negative_binomial'.",
            UserWarning,
        )


def _warn_of_end(settings: Any, problem: Problem, state: RunState, final: float) -> None:
    """Warn if a run ended above its start, was interrupted, or has not converged."""
    initial, rise = state.initial_criterion, 0.0
    if final > initial:
        rise = problem.model.change(final, initial)
    is_worse = not rise <= _LIMITS.rise  # NaN, if the objective has overflowed
    if is_worse:
        ways = join_alternatives(against_noise(settings, "a smaller step_size"))
        warn(
            f"The objective ended at {final:.3g}, above its value at the start, {initial:.3g}: do "
            f"not use this fit. Use {ways}.",
            ConvergenceWarning,
        )
    wording = Wording("were too long for the curvature")
    schedule = step_schedule(settings, problem)
    warn_outcome(settings, problem, state, schedule, wording, is_worse=is_worse)


def _warn_of_clients_without_cells(cells: CellData) -> None:
    empty = cells.ids[np.diff(cells.offsets) == 0]
    if len(empty):
        names = ", ".join(map(label_repr, empty[:5]))
        warn(
            f"{len(empty)} of {len(cells.ids)} clients have no observed cell and contribute "
            f"nothing: {names}{', ...' if len(empty) > 5 else '.'}",
            UserWarning,
        )


def _warn_of_triplets(X: MatricesLike, cells: CellData) -> None:
    """Warn if complete tables look like triplets (site, month, value) without a ``shape``."""
    if isinstance(X, Elsewhere):
        return
    tables = X if is_client_list(X) else [X]
    if cells.shape[1] != 3 or any(map(issparse, tables)):
        return
    if len(cells.columns) != 3 * sum(map(row_count, tables)):
        return
    indices = cells.values[cells.columns < 2]
    # Presences are 0 or 1, which would be at most two sites.
    if indices.min() >= 0 and indices.max() > 1 and (indices == np.floor(indices)).all():
        warn(
            "The three columns were treated as three months: if the rows are triplets (site, "
            "month, value), give shape=(number of sites, number of months).",
            UserWarning,
        )


def _warn_of_repeated_labels(settings: Any, X: MatricesLike, cells: CellData, labels: Any) -> None:
    """Warn of rows with the same label, which are nevertheless treated as different sites."""
    if labels is None or len(set(labels)) == len(labels) or settings.rows == "disjoint":
        return
    # With labels of clients, rows are different sites, regardless of their names.
    if len(cells.ids) > 1 and not holds_clients(X):
        return
    counted: Counter[object] = Counter(labels)
    ((label, times),) = counted.most_common(1)
    warn(
        f"{times} rows have the label {label_text(label)}, and each was treated as a separate "
        "site: give visits to one site as triplets with shape=.",
        UserWarning,
    )


def warn_of_capped_means(theta: FloatArray) -> None:
    """Warn if Poisson means are capped before exp overflows."""
    n_capped = np.count_nonzero(theta > MAX_LOG_MEAN)
    if n_capped:
        warn(
            f"The fitted means of {n_capped} of {theta.size} cells are above "
            f"{np.exp(MAX_LOG_MEAN):.3g} and were capped there, as exp would overflow: use a "
            "larger penalty or a smaller rank.",
            UserWarning,
        )


def warn_of_means(theta: FloatArray, largest: FloatArray) -> None:
    """Warn if Poisson means are capped, or far above those of all observed cells.

    ``largest`` is the largest θ of an observed cell, in each row or in the fit.
    """
    largest = np.clip(largest, 0.0, MAX_LOG_MEAN)
    bound = largest + np.log(_LIMITS.extrapolation)
    bound[bound >= MAX_LOG_MEAN] = np.inf  # larger means are reported as capped
    is_far = theta > bound[:, None]
    if ((theta > MAX_LOG_MEAN) & ~is_far).any():
        warn_of_capped_means(theta)
    if not is_far.any():
        return
    row = int(np.where(is_far, theta, -np.inf).max(axis=1).argmax())
    top = min(theta[row].max(), MAX_LOG_MEAN)
    # A larger effects_penalty alone may make means larger still, as the low-rank part takes over.
    warn(
        f"The fitted means of {is_far.sum()} of {theta.size} cells, up to {np.exp(top):.3g}, are "
        f"more than {_LIMITS.extrapolation} times the largest fitted mean of an observed cell, "
        f"{np.exp(largest[row]):.3g}: use a larger penalty, or FederatedMatrixImputerCV.",
        UserWarning,
    )


def _warn_of_curvature(problem: Problem, state: RunState) -> None:
    """Warn if one cell, of a large count or many observations, makes steps short for all others."""
    model: Any = problem.model  # a LowRankModel
    support, family = model.pooled.support, model.pooled.family
    is_bounded, has_momentum = family.max_variance is not None, problem.exact and model.adaptive
    curvatures = support.counts
    if not is_bounded:
        theta = state.server.statistics.iterate.theta
        least = 1.0 if family.name == "poisson" else 0.0  # trials are not numbers of visits
        curvatures = curvatures * np.maximum(family.variance(theta), least)
    top = int(np.argmax(curvatures))
    ratio = curvatures[top] / float(np.median(curvatures))
    is_fast = has_momentum or (model.adaptive and is_bounded)
    if ratio > (_LIMITS.curvature_ratio if is_fast else _LIMITS.curvature_ratio_without_momentum):
        warn(
            f"The cell in row {support.rows[top]}, column {support.columns[top]} has {ratio:,.0f} "
            "times the curvature of other cells, so that these may be far from the optimum: check "
            "it, or fit in exact rounds with step_size='auto' and a smaller tol.",
            UserWarning,
        )
