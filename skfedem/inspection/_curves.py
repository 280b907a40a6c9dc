"""Series from the histories of runs, and the mean and band of a group of runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._error_messages import repr_of
from .._typing import FloatArray
from ._figures import as_list

History = Mapping[str, NDArray[Any]]
XAxis = Literal["round", "epoch", "bits"]
Quantiles = tuple[float, float]
Points = tuple[NDArray[Any], FloatArray]
"""Positions on the x axis, and values of shape (n_points, n_components)."""

X_AXES = ("round", "epoch", "bits")
# Series of rounds, whose entry for the start, 0, is meaningless.
_OF_ROUNDS = ("n_active", "safeguarded")


class Curve(NamedTuple):
    """Values of a run, or their mean over the runs of a group, at n positions."""

    label: str | None
    x: FloatArray
    values: FloatArray  # of shape (n, n_components)
    band: FloatArray | None  # lower and upper edge, of shape (2, n, n_components)


def check_histories(histories: Any) -> list[History]:
    """One or several histories as a list."""
    histories = [histories] if hasattr(histories, "keys") else as_list(histories)
    if not histories:
        raise ValueError("Expected the history of at least one run, got none. Give history_.")
    for history in histories:
        if not hasattr(history, "keys"):
            raise TypeError(
                "Expected histories to be the history_ of a fit or several of them, got "
                f"{type(history).__name__}. For estimators use from_estimators."
            )
    return histories


def check_series(histories: list[History], x: XAxis, y: list[str]) -> None:
    """Raise unless each history has the x column, and series y of the same length."""
    for number, history in enumerate(histories):
        names = ", ".join(map(repr, history))
        if _column(x) not in history:
            raise ValueError(
                f"Expected the history of run {number} to have {_column(x)!r} for x={x!r}, got "
                f"{names}. Choose another x."
            )
        n_rows = len(history[_column(x)])
        for name in y:
            if not isinstance(name, str) or name not in history:
                raise ValueError(
                    f"Expected y to name series of the history of run {number}, got "
                    f"{repr_of(name)}. It has {names}."
                )
            if np.shape(history[name])[:1] != (n_rows,):
                raise ValueError(
                    f"Expected {name!r} to have an entry for each of the {n_rows} in "
                    f"{_column(x)!r}, got shape {np.shape(history[name])}. Give the columns of one "
                    "fit."
                )


def check_quantiles(quantiles: Quantiles | None) -> None:
    """Raise unless these are a lower and an upper quantile, or None."""
    if quantiles is not None and not (
        np.shape(quantiles) == (2,) and 0 <= quantiles[0] <= quantiles[1] <= 1
    ):
        raise ValueError(
            "Expected quantiles to be two numbers from 0 to 1, the lower first, or None for no "
            f"band, got {repr_of(quantiles)}."
        )


def _column(x: XAxis) -> str:
    return "uplink_bits" if x == "bits" else x


def evaluated(history: History, x: XAxis, y: str, *, log_x: bool = False) -> Points:
    """Positions at which a series was evaluated (but 0 on a logarithmic axis), and its values."""
    at, values = np.asarray(history[_column(x)]), np.asarray(history[y], dtype=np.float64)
    if x == "bits":
        at = np.cumsum(at, dtype=np.float64)
    values = values.reshape(len(values), -1)
    known = np.isfinite(values).all(axis=1)
    if y in _OF_ROUNDS:
        known &= np.asarray(history["round"]) > 0
    if log_x:
        known &= at > 0
    return at[known], values[known]


def mean_curve(
    label: str | None,
    histories: list[History],
    x: XAxis,
    y: str,
    *,
    log_x: bool,
    log_y: bool,
    quantiles: Quantiles | None,
) -> Curve:
    """Mean of a series over runs and its band, restricted to what the axes can show."""
    runs = [evaluated(history, x, y, log_x=log_x) for history in histories]
    _check_runs(runs, label, y)
    band = None
    if len(runs) == 1:
        grid, mean = runs[0]
    else:
        grid = _common_grid(runs, label, x)
        # The numbering of components differs between runs: they are matched by size.
        values = np.stack([_interpolate(grid, *_by_final_size(*run), log_y) for run in runs])
        mean = values.mean(axis=0)
        band = None if quantiles is None else np.quantile(values, quantiles, axis=0)
    if log_y:  # such an axis only shows positive values
        mean = np.where(mean > 0, mean, np.nan)
        band = None if band is None else np.where(band > 0, band, np.nan)
    return Curve(label, grid, mean, band)


def _check_runs(runs: list[Points], label: str | None, y: str) -> None:
    """Raise unless every run was evaluated and has the same number of components."""
    of_label = _of(label)
    n_components = [values.shape[1] for _, values in runs]
    if not all(len(at) for at, _ in runs):
        raise ValueError(
            f"Expected values of {y!r} to draw, got none{of_label}: it was never evaluated. Fit "
            "with eval_every='auto'."
        )
    if len(set(n_components)) > 1:
        raise ValueError(
            f"Expected runs of one group to have as many components in {y!r}, got "
            f"{min(n_components)} and {max(n_components)}{of_label}. Give them different labels."
        )


def _of(label: str | None) -> str:
    return "" if label is None else f" of {label!r}"


def _by_final_size(at: NDArray[Any], values: FloatArray) -> Points:
    return at, values[:, np.argsort(-values[-1], kind="stable")]


def _common_grid(runs: list[Points], label: str | None, x: XAxis) -> NDArray[Any]:
    """All positions in the range common to all runs."""
    first = max(at[0] for at, _ in runs)
    last = min(at[-1] for at, _ in runs)
    if first > last:
        raise ValueError(
            f"Expected runs of one group to overlap along {x!r}, got some{_of(label)} that end at "
            f"{last:.4g} and some that begin at {first:.4g}. Give them different labels."
        )
    grid = np.unique(np.concatenate([at for at, _ in runs]))
    return grid[(first <= grid) & (grid <= last)]


def _interpolate(
    grid: NDArray[Any], at: NDArray[Any], values: FloatArray, log_y: bool
) -> FloatArray:
    """Values at the points of a grid, interpolated linearly on the scale of the axis."""
    # Several rounds may have one position, if no bits were sent: the last one counts.
    last = np.append(at[1:] != at[:-1], True)
    at, values = at[last], values[last]
    if np.array_equal(at, grid):
        return values
    log_y = log_y and bool((values > 0).all())
    scaled = np.log(values) if log_y else values
    interpolated = np.stack([np.interp(grid, at, column) for column in scaled.T], axis=1)
    return np.exp(interpolated) if log_y else interpolated
