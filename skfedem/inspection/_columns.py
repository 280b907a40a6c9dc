"""Positions of a matrix's columns on an axis: dates, numbers, or one after another."""

from __future__ import annotations

from datetime import date
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._data.frame_labels import as_dates
from .._typing import FloatArray, IntArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LONG_NAME = 5  # characters: longer tick labels are rotated
_MAX_NAME = 13  # characters: of longer names, the middle is left out
_MAX_DATE_TICKS = 8


class Columns(NamedTuple):
    """Columns of a matrix on an axis, at increasing positions; day numbers for dates."""

    positions: FloatArray
    kind: Literal["dates", "numbers", "names"]
    names: list[str]  # tick labels, only for "names"


def check_column_labels(labels: ArrayLike | None, n_columns: int) -> NDArray[Any]:
    """Labels of the columns as an array, periods as their start times; 0, 1, ... for None."""
    if labels is None:
        return np.arange(n_columns)
    array = np.asarray(labels)
    if array.shape != (n_columns,):
        raise ValueError(
            f"Expected column_labels to hold one label for each of the {n_columns} columns, got "
            f"shape {array.shape}."
        )
    if all(hasattr(label, "to_timestamp") for label in array):
        return np.array([label.to_timestamp() for label in array], dtype="datetime64[s]")
    return array


def locate_columns(labels: NDArray[Any]) -> Columns:
    """Increasing dates or numbers to scale, all other labels one after another."""
    days = _day_numbers(labels)
    if _is_increasing(days):
        return Columns(days, "dates", [])
    if labels.dtype.kind in "iuf" and _is_increasing(labels):
        return Columns(labels.astype(np.float64), "numbers", [])
    positions = np.arange(len(labels), dtype=np.float64)
    return Columns(positions, "names", [_without_middle(str(label)) for label in labels])


def _is_increasing(numbers: NDArray[Any]) -> bool:
    return bool(np.isfinite(numbers).all() and (np.diff(numbers) > 0).all())


def _day_numbers(labels: NDArray[Any]) -> FloatArray:
    """Day numbers of dates, or of text or integers like dates; NaN if some label is no date."""
    from matplotlib.dates import date2num

    if labels.dtype.kind in "iu" and len(labels) > 1:
        years, months = np.divmod(labels.astype(np.int64), 100)
        if (abs(years - 1950) < 250).all() and (abs(months - 6.5) < 6).all():
            labels = (12 * (years - 1970) + months - 1).astype("datetime64[M]")
    try:
        labels = as_dates(labels)
        if labels.dtype.kind == "M" or all(isinstance(label, date) for label in labels):
            return date2num(labels)
    except (TypeError, ValueError):
        pass
    return np.full(len(labels), np.nan)


def gaps(positions: FloatArray) -> IntArray:
    """Numbers of the columns that follow a gap, such as a missing month.

    If steps are regular, a step of more than 1.5 times the usual one is a gap. Interruptions that
    recur regularly, such as weekends, are not gaps.
    """
    steps = np.diff(positions)
    if len(steps) == 0 or steps.min() < 0.5 * np.median(steps):
        return np.zeros(0, dtype=np.intp)
    starts = np.flatnonzero(steps > 1.5 * np.median(steps)) + 1
    lengths = np.diff(starts)  # of the runs between gaps
    recur = len(lengths) > 1 and lengths.max() <= 1.5 * lengths.min()
    return starts[:0] if recur else starts


def runs_between_gaps(positions: FloatArray) -> list[slice]:
    """Slices of the columns without a gap."""
    return [slice(*ends) for ends in pairwise([0, *gaps(positions).tolist(), len(positions)])]


def with_gaps(positions: FloatArray, values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Positions, and values of shape (..., n_columns), with a column of NaN in each gap."""
    starts = gaps(positions)
    return (
        np.insert(positions, starts, positions[starts]),
        np.insert(values, starts, np.nan, axis=-1),
    )


def cell_edges(positions: FloatArray) -> FloatArray:
    """Edges of cells around the columns, halfway to the neighbours, with a cell for each gap."""
    if len(positions) == 1:
        return positions[0] + np.array([-0.5, 0.5])
    starts, half = gaps(positions), np.diff(positions) / 2
    half[starts - 1] = np.median(half)
    edges = np.append(positions - np.insert(half, 0, half[0]), positions[-1] + half[-1])
    return np.insert(edges, starts, positions[starts - 1] + half[starts - 1])


def format_columns(axis: Axes, columns: Columns, name: str) -> None:
    """Ticks and label of an x axis with columns."""
    from matplotlib import dates, ticker

    line = axis.xaxis
    axis.set_xlabel(name)
    if columns.kind == "dates":
        locator = dates.AutoDateLocator(minticks=2, maxticks=_MAX_DATE_TICKS)
        line.set_major_locator(locator)
        line.set_major_formatter(dates.ConciseDateFormatter(locator))
        return
    is_whole = bool((columns.positions % 1 == 0).all())
    line.set_major_locator(
        ticker.MaxNLocator("auto", integer=is_whole, min_n_ticks=1 if is_whole else 2)
    )
    if columns.kind == "names":
        names = dict(enumerate(columns.names))
        line.set_major_formatter(ticker.FuncFormatter(lambda at, _: names.get(round(at), "")))
        if max(map(len, columns.names)) > _LONG_NAME:
            axis.tick_params(axis="x", rotation=90)


def _without_middle(name: str) -> str:
    half = (_MAX_NAME - 1) // 2
    return name if len(name) <= _MAX_NAME else f"{name[:half]}…{name[-half:]}"
