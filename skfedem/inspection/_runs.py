"""Series from the histories of runs, and their mean and band."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._input.table_labels import is_frame
from .._messages import repr_of
from .._typing import FloatArray
from ._common import as_list, last_step

History = Mapping[str, NDArray[Any]]
XAxis = Literal["round", "epoch", "bits"]
Points = tuple[NDArray[Any], FloatArray]
"""Positions on the x axis, and values of shape (n_points, n_components)."""

X_AXES = ("round", "epoch", "bits")
# Series that are only defined for rounds: the entry of the start, 0, is meaningless.
_OF_ROUNDS = ("n_active", "safeguarded")
# Series that describe a round, not the state after it.
_PER_ROUND = (*_OF_ROUNDS, "uplink_bits", "downlink_bits")
# Largest number of points at which a mean over runs is drawn.
_MOST_POINTS = 1000


class Curve(NamedTuple):
    """Curve of a group of runs.

    Attributes
    ----------
    label : str or None
    x : ndarray of shape (n_points,)
    middle : ndarray of shape (n_points, n_components)
        Values of the run, or means over the runs.
    band : ndarray of shape (2, n_points, n_components), or None
        Its lower and upper edge; None for a single run.
    per_component : bool
        Whether the series has a column for each component.
    """

    label: str | None
    x: FloatArray
    middle: FloatArray
    band: FloatArray | None
    per_component: bool


def checked_histories(histories: Any) -> list[History]:
    """One or several histories as a list; raise if something else is given.

    A polars DataFrame, which has no keys, is converted to a dictionary.
    """
    histories = [histories] if _is_history(histories) else as_list(histories)
    if not histories:
        raise ValueError("Expected the history of at least one run, got none. Give history_.")
    for history in histories:
        if not _is_history(history):
            raise TypeError(
                "Expected histories to be dictionaries, the history_ of a fit or several of "
                f"them, got {type(history).__name__}. For estimators use from_estimators."
            )
    return [
        {name: history[name].to_numpy() for name in history.columns}
        if _is_polars(history)
        else history
        for history in histories
    ]


def _is_history(value: object) -> bool:
    return hasattr(value, "keys") or _is_polars(value)


def _is_polars(value: object) -> bool:
    return hasattr(value, "columns") and hasattr(value, "to_dicts")


def history_of(estimator: Any) -> History:
    """``history_`` of a fitted estimator."""
    if isinstance(estimator, Mapping) or is_frame(estimator):
        raise TypeError(
            f"Expected fitted estimators, got a {type(estimator).__name__}. Give histories to the "
            "class itself: ConvergenceDisplay([...], labels=[...]).plot()."
        )
    estimator, _ = last_step(estimator)
    if not isinstance(getattr(estimator, "history_", None), Mapping):
        raise TypeError(
            "Expected an estimator with a history_, a FederatedGaussianMixture or a "
            f"FederatedMatrixImputer, or a Pipeline that ends in one, got "
            f"{type(estimator).__name__}."
        )
    return estimator.history_


def check_names(histories: list[History], x: XAxis, y: list[str]) -> None:
    """Raise unless each history has the x column, and series y of the same length."""
    for number, history in enumerate(histories):
        whose = "the history" if len(histories) == 1 else f"the history of run {number}"
        if _column(x) not in history:
            raise ValueError(
                f"Expected {whose} to have {_column(x)!r} for x={x!r}, got "
                f"{', '.join(map(repr, history))}. Add it, or choose another x."
            )
        for name in y:
            if not isinstance(name, str) or name not in history:
                raise ValueError(
                    f"Expected y to name series of {whose}, got {repr_of(name)}. It has "
                    f"{', '.join(map(repr, history))}."
                )
            n_rows, shape = len(history[_column(x)]), np.shape(history[name])
            if shape[:1] != (n_rows,):
                raise ValueError(
                    f"Expected {name!r} of {whose} to have an entry for each of the {n_rows} in "
                    f"{_column(x)!r}, got shape {shape}. Give the columns of one fit."
                )


def _column(x: XAxis) -> str:
    return "uplink_bits" if x == "bits" else x


def positions(history: History, x: XAxis) -> NDArray[Any]:
    """Positions of the rows of a history on the x axis."""
    column = np.asarray(history[_column(x)])
    return np.cumsum(column, dtype=np.float64) if x == "bits" else column


def evaluated(history: History, x: XAxis, y: str, *, log_x: bool = False) -> Points:
    """Nondecreasing positions at which a series was evaluated, and its values.

    Values have shape (n_points, n_components). A logarithmic x axis omits position 0.
    """
    at, values = positions(history, x), np.asarray(history[y], dtype=np.float64)
    if values.ndim == 1:
        values = values[:, None]
    known = np.isfinite(values).all(axis=1)
    if y in _OF_ROUNDS:
        known &= np.asarray(history["round"]) > 0
    if log_x:
        known &= at > 0
    return at[known], values[known]


def check_quantiles(quantiles: object) -> None:
    if quantiles is None:
        return
    numbers = list(quantiles) if np.iterable(quantiles) else []
    if (
        len(numbers) != 2
        or not all(isinstance(number, Real) for number in numbers)
        or not 0 <= numbers[0] <= numbers[1] <= 1
    ):
        raise ValueError(
            "Expected quantiles to be two numbers from 0 to 1, the lower first, or None for no "
            f"band, got {repr_of(quantiles)}."
        )


def group_curve(
    label: str | None,
    histories: list[History],
    x: XAxis,
    y: str,
    *,
    log_x: bool,
    log_y: bool,
    quantiles: tuple[float, float] | None,
) -> Curve:
    """Curve of a group of runs with the same label, restricted to what the axes can show."""
    runs = [evaluated(history, x, y, log_x=log_x) for history in histories]
    _check_runs(runs, histories, label, x, y, log_x=log_x)
    per_component = np.ndim(histories[0][y]) > 1
    if len(runs) == 1:
        at, values = runs[0]
        curve = Curve(label, at, values, None, per_component)
    else:
        grid = _common_grid(runs, label, x, y)
        # The numbering of components differs between runs: they are matched by size.
        per_round = y in _PER_ROUND
        values = np.stack([_on_grid(grid, _by_final_size(*run), log_y, per_round) for run in runs])
        band = None if quantiles is None else np.quantile(values, quantiles, axis=0)
        curve = Curve(label, grid, values.mean(axis=0), band, per_component)
    return _positive(curve) if log_y else curve


def _positive(curve: Curve) -> Curve:
    """Curve with NaN in place of values that a logarithmic axis cannot show."""

    def positive(values: FloatArray) -> FloatArray:
        return np.where(values > 0, values, np.nan)

    band = None if curve.band is None else positive(curve.band)
    return curve._replace(middle=positive(curve.middle), band=band)


def _check_runs(
    runs: list[Points],
    histories: list[History],
    label: str | None,
    x: XAxis,
    y: str,
    *,
    log_x: bool,
) -> None:
    """Raise unless every run was evaluated and has the same number of components."""
    whose = "" if label is None else f" of {label!r}"
    for (at, values), history in zip(runs, histories, strict=True):
        if not len(at):
            known = [name for name in history if len(evaluated(history, x, name, log_x=log_x)[0])]
            what_to_do = f"Draw one of {', '.join(map(repr, known))}, or fit" if known else "Fit"
            raise ValueError(
                f"Expected values of {y!r} to draw, got none{whose}: it was never evaluated in "
                f"this run, or only at a position of 0 on a logarithmic x axis. {what_to_do} (not "
                "partial_fit) with eval_every='auto', for at least one round."
            )
        if values.shape[1] != runs[0][1].shape[1]:
            raise ValueError(
                f"Expected runs of one group to have as many components in {y!r}, got "
                f"{runs[0][1].shape[1]} and {values.shape[1]}{whose}. Give them different labels."
            )


def _by_final_size(at: NDArray[Any], values: FloatArray) -> Points:
    return at, values[:, np.argsort(-values[-1], kind="stable")]


def _common_grid(runs: list[Points], label: str | None, x: XAxis, y: str) -> NDArray[Any]:
    """Increasing positions, at most _MOST_POINTS, in the range common to all runs."""
    first = max(at[0] for at, _ in runs)
    last = min(at[-1] for at, _ in runs)
    if first > last:
        raise ValueError(
            f"Expected runs of one group to overlap along {x!r}, got some that end at {last:.4g} "
            f"and some whose {y!r} begins at {first:.4g}"
            f"{'' if label is None else f', all of them {label!r}'}. Give them different labels."
        )
    grid = np.unique(np.concatenate([at for at, _ in runs]))
    grid = grid[(first <= grid) & (grid <= last)]
    if len(grid) > _MOST_POINTS:
        grid = grid[np.linspace(0, len(grid) - 1, _MOST_POINTS).round().astype(int)]
    return grid


def _on_grid(grid: NDArray[Any], run: Points, log_y: bool, per_round: bool) -> FloatArray:
    """Values at the points of a grid, interpolated linearly on the scale of the axis."""
    at, values = run
    # Several rounds may have one position, if no bits were sent. The last one then counts, or for
    # series that describe rounds, their mean.
    first = np.flatnonzero(np.append(True, at[1:] != at[:-1]))
    sizes = np.diff(first, append=len(at))
    if per_round:
        values = np.add.reduceat(values, first) / sizes[:, None]
    else:
        values = values[first + sizes - 1]
    at = at[first]
    if np.array_equal(at, grid):
        return values
    log_y = log_y and bool((values > 0).all())
    scaled = np.log(values) if log_y else values
    columns = [np.interp(grid, at, column) for column in scaled.T]
    interpolated = np.stack(columns, axis=1)
    return np.exp(interpolated) if log_y else interpolated
