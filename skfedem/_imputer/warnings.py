"""Warnings of imputers: how a run ended, too large means, cells that slow others down."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import issparse
from sklearn.exceptions import ConvergenceWarning

from .._compat import row_count
from .._input.cells import CellData
from .._input.matrices import holds_clients, is_cell_list
from .._input.table_labels import label_text
from .._messages import join_alternatives, label_repr, warn
from .._parameters import in_python_numbers, is_auto
from .._typing import ClientWeights, FloatArray, MatricesLike
from ..models.matrix.families import MAX_LOG_MEAN
from ..solvers._base import Problem
from ..solvers._estimator import FederatedEstimator
from ..solvers._from_parameters import step_schedule
from ..solvers._loop import Run
from ..solvers._report import Wording, against_noise, warn_outcome

if TYPE_CHECKING:
    from ..impute import FederatedMatrixImputer

# If the curvature of a cell is this many times the median, other cells converge too slowly. One
# flock among small counts, 60 sites in 36 months: with momentum the fit was 0.02 nats above the
# optimum at a spread of 3,400, but 1 to 33 nats at 30,000. Rounds without momentum came within
# 0.001 nats at 340, and were up to 70 nats above after 500 rounds at 1,000. One cell of 40 x 24
# that was observed N times, normal or binary: with automatic steps 0.04 nats or less above at N =
# 10,000, and up to 0.7, as if converged, at 100,000; with a fixed step 0.1 at 100, and 65 or more
# at 1,000.
_LARGEST_SPREAD = 1e4
_LARGEST_SPREAD_OF_SLOW_ROUNDS = 500
# Largest mean of Gaussian cells, in standard deviations: the squared mean times ``tol`` is then the
# variance. Up to 1e3 fits without effects were right, at 1e4 they said that they had not converged,
# at 1e6 they stopped as if converged, and missing cells were off by the whole mean.
_LARGEST_OFFSET = 1e3
# Warn if the objective ends this much, relatively, above its value at the start.
_LARGE_RISE = 0.1
# Means this many times larger than those of all observed cells are extrapolated. With the default
# penalty, counts of wading birds in the hundreds gave means of missing cells of 1e10; with the
# penalty that cross-validation chose, the largest was that of an observed cell.
_EXTRAPOLATED = 100
# Advised second, because a larger effects_penalty alone may harm: in three tables of 40 x 30 with
# penalty=1, effects_penalty=10 or 1000 in place of 0.1 made the largest mean 15 to
# 1,800 times as large, as the low-rank part took over. In four of 200 x 150, with 0.8 % of the
# cells observed, no larger penalty helped.
_OR_RIDGE = ", or if that changes little a larger effects_penalty"


def instead_of_more_rounds(estimator: FederatedEstimator) -> list[str]:
    """Further advice, as a list, if a fit of cells does not converge."""
    return [] if is_auto(estimator.step_size) else ["use step_size='auto'"]


def warn_of_fit(
    imputer: FederatedMatrixImputer, X: MatricesLike, cells: CellData, problem: Problem, result: Run
) -> None:
    """Warn of unusual data, extreme results, and how the run ended.

    X is the user's data, and ``cells`` are the validated cells.
    """
    _warn_of_silent(cells)
    _warn_of_lines(imputer, X, cells)
    _warn_of_repeated_labels(imputer, X)
    if imputer.family == "gaussian" and imputer.effects == "none":
        _warn_of_offset(cells)
    if imputer.family == "poisson":
        warn_of_guard(result.server.statistics.iterate.theta)
    _warn_of_spread(imputer, problem, result)
    _warn_of_end(imputer, problem, result)


def _warn_of_end(imputer: FederatedMatrixImputer, problem: Problem, result: Run) -> None:
    """Warn if a run ended above its start, was interrupted, or has not converged."""
    initial, final, rise = result.initial_criterion, imputer.objective_, 0.0
    if final > initial:
        rise = problem.model.change(final, initial)
    is_worse = not rise <= _LARGE_RISE  # NaN, if the objective has overflowed
    if is_worse:
        ways = join_alternatives(against_noise(imputer, "a smaller step_size"))
        warn(
            f"The objective ended at {final:.3g}, above its value at the start, {initial:.3g}: do "
            f"not use this fit. Use {ways}.",
            ConvergenceWarning,
        )
    wording = Wording(
        iteration="natural steps",
        left="were too long for the curvature",
        remedy="",
        # Not a larger tol, with which fits of counts would stop far from the optimum.
        otherwise=instead_of_more_rounds(imputer),
    )
    schedule = step_schedule(in_python_numbers(imputer), problem)
    warn_outcome(imputer, problem, result, schedule, wording, is_worse=is_worse)


def _warn_of_silent(cells: CellData) -> None:
    """Warn of clients without an observed cell."""
    ids, silent = cells.ids, np.flatnonzero(np.diff(cells.offsets) == 0)
    if len(silent):
        names = ", ".join(label_repr(ids[k]) for k in silent[:5])
        warn(
            f"{len(silent)} of {len(ids)} clients have no observed cell and contribute nothing: "
            f"{names}{', ...' if len(silent) > 5 else '.'}",
            UserWarning,
        )


def _warn_of_repeated_labels(imputer: FederatedMatrixImputer, X: MatricesLike) -> None:
    """Warn of rows with the same label, which are nevertheless treated as different sites."""
    labels = imputer._row_labels
    if labels is None or labels.is_unique or imputer.rows == "disjoint":
        return
    # With labels of clients, rows are different sites, regardless of their names.
    if len(imputer.client_ids_) > 1 and not holds_clients(X):
        return
    counted: Counter[object] = Counter(labels)
    ((label, times),) = counted.most_common(1)
    warn(
        f"{times} rows have the label {label_text(label)}: each was treated as a separate site. If "
        "they are visits to the same site, give one row per site, or triplets with shape=, which "
        "may have several values for a cell. If they are different sites, give them different "
        "labels.",
        UserWarning,
    )


def _warn_of_offset(cells: CellData) -> None:
    """Warn of cells so far from 0 that fits without an intercept stop too early."""
    mean = np.average(cells.values, weights=cells.counts)
    deviation = np.sqrt(np.average((cells.values - mean) ** 2, weights=cells.counts))
    # Equal cells differ from their mean by rounding.
    if 1e-12 * abs(mean) < deviation < abs(mean) / _LARGEST_OFFSET:
        warn(
            f"The observed cells have mean {mean:.3g} and standard deviation {deviation:.3g}. With "
            "effects='none', the low-rank part has to fit this mean, and missing cells may still "
            "be far from their limit when the fit reaches tol. Subtract the mean, or use "
            "effects='both'.",
            UserWarning,
        )


def _warn_of_lines(imputer: FederatedMatrixImputer, X: MatricesLike, cells: CellData) -> None:
    """Warn if tables look like lines (site, month, value) whose ``shape`` was not given.

    The first two columns of dense tables are then numbers of sites and months. Besides, rows are
    complete and without names, since a complete matrix would have nothing to impute; or sites and
    months recur, but no pair of them.
    """
    tables = X if is_cell_list(X) else [X]
    if cells.shape[1] != 3 or any(map(issparse, tables)):
        return
    n_lines = sum(map(row_count, tables))
    numbers = cells.values[cells.columns < 2]
    are_numbers = (numbers >= 0).all() and (numbers == np.floor(numbers)).all()
    # Presences are 0 or 1, which would be at most two sites.
    if len(numbers) != 2 * n_lines or not are_numbers or numbers.max() <= 1:
        return
    are_complete = len(cells.columns) == 3 * n_lines
    if (are_complete and not _has_names(imputer._row_labels)) or _are_cells(numbers.reshape(-1, 2)):
        warn(
            "The three columns were treated as three months. If the rows are triplets (site, "
            "month, value), as the whole numbers in the first two columns suggest, give "
            "shape=(number of sites, number of months).",
            UserWarning,
        )


def _are_cells(pairs: FloatArray) -> bool:
    """Whether sites and months recur, each twice on average, but no pair of them.

    Pairs of simulated counts never did, in 400 matrices each of 4 to 200 rows, with means of 1 to
    300.
    """
    n_sites, n_months = (len(np.unique(numbers)) for numbers in pairs.T)
    return 2 * (n_sites + n_months) <= len(pairs) == len(np.unique(pairs, axis=0))


def _has_names(labels: object) -> bool:
    """Whether rows have names, other than the row numbers with gaps that filtering leaves."""
    if labels is None:
        return False
    kind = getattr(getattr(labels, "dtype", None), "kind", "O")
    is_named = kind not in "iu" or getattr(labels, "name", None) is not None
    return is_named or bool((np.diff(np.asarray(labels)) == 1).all())  # years


def warn_of_guard(theta: FloatArray) -> None:
    """Warn if Poisson means are capped before exp overflows."""
    n_cut = np.count_nonzero(theta > MAX_LOG_MEAN)
    if n_cut:
        warn(
            f"The fitted means of {n_cut} of {theta.size} cells are above "
            f"{np.exp(MAX_LOG_MEAN):.3g} and were capped there, as exp would overflow. Use a "
            f"larger penalty or a smaller rank{_OR_RIDGE}.",
            UserWarning,
        )


def warn_of_means(theta: FloatArray, largest: FloatArray) -> None:
    """Warn if Poisson means are capped, or far above those of all observed cells.

    ``largest`` is the largest θ of an observed cell, in each row or in the fit.
    """
    largest = np.clip(largest, 0.0, MAX_LOG_MEAN)
    bound = largest + np.log(_EXTRAPOLATED)
    bound[bound >= MAX_LOG_MEAN] = np.inf  # larger means are reported by warn_of_guard
    is_far = theta > bound[:, None]
    if ((theta > MAX_LOG_MEAN) & ~is_far).any():
        warn_of_guard(theta)
    if not is_far.any():
        return
    farthest = np.where(is_far, np.minimum(theta, MAX_LOG_MEAN), -np.inf)
    row, top = int(farthest.max(axis=1).argmax()), farthest.max()
    warn(
        f"The fitted means of {is_far.sum()} of {theta.size} cells, up to "
        f"{np.exp(top):.3g}{', where they are capped' if top == MAX_LOG_MEAN else ''}, are more "
        f"than {_EXTRAPOLATED} times the largest fitted mean of an observed cell, "
        f"{np.exp(largest[row]):.3g}: sums over such cells are meaningless. Use a larger "
        f"penalty{_OR_RIDGE}. FederatedMatrixImputerCV chooses both.",
        UserWarning,
    )


def _warn_of_spread(imputer: FederatedMatrixImputer, problem: Problem, result: Run) -> None:
    """Warn if one cell requires steps that are too short for the others.

    This may be a large count, or a cell that was observed very often.
    """
    model: Any = problem.model  # a LowRankModel
    theta = result.server.statistics.iterate.theta
    support, family = model.pooled.support, model.pooled.family
    is_bounded, has_momentum = family.max_variance is not None, problem.exact and model.adaptive
    counts = support.counts
    variances = np.ones(len(theta)) if is_bounded else np.maximum(family.variance(theta), 1.0)
    curvatures = counts * variances
    top = int(np.argmax(curvatures))
    spread = curvatures[top] / float(np.median(curvatures))
    is_slow = not (has_momentum or (model.adaptive and is_bounded))
    if spread <= (_LARGEST_SPREAD_OF_SLOW_ROUNDS if is_slow else _LARGEST_SPREAD):
        return
    where = _where(imputer, int(support.rows[top]), int(support.columns[top]))
    by_count, by_mean = (of_cells[top] / np.median(of_cells) for of_cells in (counts, variances))
    if by_count > by_mean:
        what, check = _often_observed(where, by_count, imputer.client_weights)
    else:
        what, check = _large_mean(where, by_mean, float(family.mean(theta[top])))
    danger, remedy = _danger(has_momentum, result.converged)
    warn(
        f"The {what} of other cells. This limits the step size, so that the others change slowly: "
        f"the fit may be {danger}. {remedy} {check}.",
        UserWarning,
    )


def _often_observed(where: str, ratio: float, client_weights: ClientWeights) -> tuple[str, str]:
    """Subject of the warning of a cell that was observed often, and what to check."""
    what = f"observations of the cell {where} weigh about {ratio:,.0f} times as much as those"
    check = "Keep fewer observations of this cell"
    if client_weights == "uniform":
        check += " or, if its client has few observations in all, use client_weights='n_samples'"
    return what, check


def _large_mean(where: str, ratio: float, mean: float) -> tuple[str, str]:
    """Subject of the warning of a cell with a large count, and what to check."""
    what = f"fitted mean {mean:.3g} {where} is about {ratio:,.0f} times that"
    check = "Check the counts of this row and column, or impute log1p of the counts with "
    return what, f"{check}family='gaussian'"


def _where(imputer: FederatedMatrixImputer, row: int, column: int) -> str:
    """Description of a cell in terms of the user's data."""
    offsets, own_row, whose = imputer.row_offsets_, row, ""
    if offsets is not None:
        client = int(np.searchsorted(offsets, row, side="right")) - 1
        own_row = row - int(offsets[client])
        whose = f" of client {label_repr(imputer.client_ids_[client])}"
    of_row, of_column = _name(imputer._row_labels, row), _name(imputer._column_labels, column)
    return f"in row {own_row}{of_row}, column {column}{of_column}{whose}"


def _name(labels: Any, place: int) -> str:
    return "" if labels is None else f" ({label_text(labels[place])})"


def _danger(has_momentum: bool, converged: bool) -> tuple[str, str]:
    """Possible state of a fit that one cell slowed down, and advice."""
    if not has_momentum:
        return (
            "far from the optimum, converged or not",
            'Raise max_iter, not tol, or fit in exact rounds with step_size="auto", whose momentum '
            "helps.",
        )
    if converged:
        return "short of the optimum", "Compare with a fit with a smaller tol."
    # Beside one huge count among 80 cells, 500 rounds ended 5 nats above the optimum at a spread of
    # 60,000, and 280 at 200,000.
    return "far from the optimum", "Raise max_iter, not tol."
