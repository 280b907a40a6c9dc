"""Positions of a matrix's columns on an axis: dates, numbers, or one after another."""

from __future__ import annotations

import re
from datetime import date
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._imputer.fitted import FittedMatrix
from .._input.clients import first_table
from .._typing import FloatArray, MatricesLike
from ._common import characters_in, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ISO_DATE = re.compile(r"\d{4}-\d{2}(-\d{2})?")
_MIDNIGHT = re.compile(r"(?<=\d)[T ]00:00(:00(\.0+)?)?$")
_LAST_WORD = re.compile(r"[^\W_]*$")
# SI's symbols of the units of time, from the largest, and NumPy's codes.
_UNITS: dict[str, Any] = {
    "d": "D",
    "h": "h",
    "min": "m",
    "s": "s",
    "ms": "ms",
    "µs": "us",
    "ns": "ns",
}
# Codes of units that can be converted to these: years and months have no fixed length, and a day is
# too many picoseconds for an integer.
_CONVERTED = ("W", *_UNITS.values())
_LONG_LABEL = 5
_TICKS_PER_INCH = 1.9
_NAMES_PER_INCH = 2.2  # twice as many if they are long, and thus rotated
_MOST_CHARACTERS = 13  # in a name


class Columns(NamedTuple):
    """Columns of a matrix on an axis.

    Attributes
    ----------
    positions : ndarray of shape (n_columns,)
        Increasing numbers: the labels, matplotlib's day numbers, or 0, 1, 2, ...
    kind : {"dates", "numbers", "names"}
    names : list of str
        Tick labels at the positions; only for "names".
    """

    positions: FloatArray
    kind: Literal["dates", "numbers", "names"]
    names: list[str]


def known_labels(estimator: FittedMatrix, X: MatricesLike | None) -> ArrayLike | None:
    """Column labels of a DataFrame (or a list of them), or else of the fit; may be None."""
    labels = getattr(first_table(X), "columns", None)
    if not estimator._has_triplets and labels is not None:
        return labels
    return estimator._column_labels


def checked_labels(labels: ArrayLike | None, n_columns: int) -> NDArray[Any]:
    """Labels of the columns as an array; their positions if there are none.

    Periods become their start times; times with a time zone become local times.

    Raises
    ------
    ValueError
        If there is not one label per column.
    """
    if labels is None:
        return np.arange(n_columns)
    # In an array, pandas's periods and times with a time zone are objects.
    array = np.asarray(labels)
    if array.shape != (n_columns,):
        raise ValueError(
            f"Expected column_labels to hold one label for each of the {n_columns} columns, got "
            f"shape {array.shape}."
        )
    return np.frompyfunc(_moment, 1, 1)(array) if array.dtype.kind == "O" else array


def _moment(label: Any) -> Any:
    """Start of a period, or date without its time zone; any other label is returned as it is."""
    label = label.to_timestamp() if hasattr(label, "to_timestamp") else label
    return label.replace(tzinfo=None) if getattr(label, "tzinfo", None) is not None else label


def place(labels: NDArray[Any]) -> Columns:
    """Positions on an axis of columns with these labels.

    Increasing numbers or dates (possibly text like 1995-01 or 1995-01-31, or all numbers like
    199501) are drawn to scale; all other labels are placed one after another.
    """
    labels = _months(labels)
    days = _days(labels)
    if len(days) and (np.diff(days) > 0).all() and _fits_an_axis(days):
        return Columns(days, "dates", [])
    if labels.dtype.kind in "iuf" and np.isfinite(labels).all() and (np.diff(labels) > 0).all():
        return Columns(labels.astype(np.float64), "numbers", [])
    if labels.dtype.kind == "m" and not np.isnat(labels).any():
        labels = _durations(labels)
    # For dates placed one after another, midnight carries no information.
    names = [_MIDNIGHT.sub("", str(label)) for label in labels]
    return Columns(np.arange(len(labels), dtype=np.float64), "names", names)


def _months(labels: NDArray[Any]) -> NDArray[Any]:
    """Dates, if all labels are integers like 199501; otherwise, the labels unchanged."""
    if labels.dtype.kind not in "iu" or len(labels) < 2:
        return labels
    years, months = np.divmod(labels.astype(np.int64), 100)
    if not (((years >= 1700) & (years < 2200)).all() and ((months >= 1) & (months <= 12)).all()):
        return labels
    return (12 * (years - 1970) + months - 1).astype("datetime64[M]")


def _days(labels: NDArray[Any]) -> FloatArray:
    """Day numbers of dates, or of text like dates; none if some label is anything else."""
    from matplotlib.dates import date2num

    try:
        if labels.dtype.kind == "M" or all(map(_is_date, labels)):
            return date2num(labels.astype("datetime64[s]"))
    except (TypeError, ValueError):  # NaT, or invalid such as 1995-13
        pass
    return np.zeros(0)


def _is_date(label: object) -> bool:
    return isinstance(label, date) or bool(_ISO_DATE.fullmatch(str(label)))


def _fits_an_axis(days: FloatArray) -> bool:
    """Whether increasing days and a margin fit on an axis of dates, from the year 1 to 9999."""
    from matplotlib.dates import date2num

    first, last = date2num(np.array(["0001-01-01", "9999-12-31"], dtype="datetime64[D]"))
    # Cells extend half a gap beyond the ends, axes of lines a twentieth of the range.
    margin = max(366.0, 0.1 * (days[-1] - days[0]), 0.5 * np.diff(days).max(initial=0))
    return first + margin <= days[0] and days[-1] + margin <= last


def _durations(labels: NDArray[np.timedelta64]) -> NDArray[Any]:
    """Durations as text such as "6 h", in the largest unit of which all of them are multiples.

    Labels without such a unit are returned as they are.
    """
    if np.datetime_data(labels.dtype)[0] in _CONVERTED:
        for symbol, code in _UNITS.items():
            numbers, rests = np.divmod(labels, np.timedelta64(1, code))
            if not rests.any():
                return np.array([f"{number} {symbol}" for number in numbers])
    return labels


def unbroken(positions: FloatArray) -> list[slice]:
    """Runs of columns without a gap, as a list of slices.

    If steps are regular, a step of more than 1.5 times the usual one is a gap, such as a missing
    month. Columns at irregular distances have no gaps, and interruptions that recur regularly, such
    as weekends, are not gaps.
    """
    steps = np.diff(positions)
    usual = np.median(steps) if len(steps) else 1.0
    is_irregular = (steps < 0.5 * usual).any()
    cuts = np.flatnonzero(steps > 1.5 * usual) + 1
    lengths = np.diff(cuts)  # of the runs between gaps
    come_again = len(lengths) > 1 and lengths.max() <= 1.5 * lengths.min()
    ends = [] if is_irregular or come_again else cuts.tolist()
    return [slice(*run) for run in pairwise([0, *ends, len(positions)])]


def in_cells(positions: FloatArray, values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Edges and values of cells around the columns, with one cell of NaN for each gap.

    ``values`` have shape (..., n_columns).
    """
    runs = unbroken(positions)
    if len(runs) == 1:
        return _edges(positions), values
    half = np.median(np.diff(positions)) / 2
    nothing = np.full((*values.shape[:-1], 1), np.nan)
    edges, cells = [], []
    for run in runs:
        around = _edges(positions[run])
        around[[0, -1]] = positions[run][[0, -1]] + [-half, half]
        edges.append(around)
        cells += [values[..., run], nothing]
    return np.concatenate(edges), np.concatenate(cells[:-1], axis=-1)


def _edges(positions: FloatArray) -> FloatArray:
    """Edges of cells around increasing positions: halfway to the neighbours."""
    if len(positions) == 1:
        return positions[0] + np.array([-0.5, 0.5])
    half = np.diff(positions) / 2
    return np.concatenate(
        [[positions[0] - half[0]], positions[:-1] + half, [positions[-1] + half[-1]]]
    )


def _shortened(names: list[str]) -> list[str]:
    """Names without their middle if long; if that makes some alike, without their shared start."""
    by_short: dict[str, set[str]] = {}
    for name in names:
        by_short.setdefault(_without_middle(name), set()).add(name)
    short = {}
    for form, alike in by_short.items():
        n_first = _n_first_in_common(alike) if len(alike) > 1 else 0
        for name in alike:
            short[name] = _without_middle(f"…{name[n_first:]}") if n_first else form
    return [short[name] for name in names]


def _n_first_in_common(names: set[str]) -> int:
    """Number of letters of the words with which all names begin."""
    letters = zip(*names, strict=False)
    n_alike = sum(1 for _ in takewhile(lambda at: len(set(at)) == 1, letters))
    return len(_LAST_WORD.sub("", next(iter(names))[:n_alike]))


def _without_middle(name: str) -> str:
    if len(name) <= _MOST_CHARACTERS:
        return name
    half = (_MOST_CHARACTERS - 1) // 2
    return f"{name[:half]}…{name[-half:]}"


def furnish(axis: Axes, columns: Columns, name: str) -> None:
    """Ticks and label of an x axis."""
    from matplotlib import dates, ticker

    line = axis.xaxis
    width = axis.get_window_extent().width / axis.figure.dpi  # inches
    most = int(np.clip(_TICKS_PER_INCH * width, 2, 10))
    if columns.kind == "dates":
        # With fewer than five, no interval suits a range of just under two years.
        locator = dates.AutoDateLocator(minticks=2, maxticks=max(most, 5))
        line.set_major_locator(locator)
        line.set_major_formatter(dates.ConciseDateFormatter(locator))
        if most < 3:  # up to five labels would collide
            axis.tick_params(axis="x", rotation=40)
    elif columns.kind == "numbers":
        whole = bool((columns.positions == np.round(columns.positions)).all())
        line.set_major_locator(
            ticker.MaxNLocator(nbins=most, integer=whole, min_n_ticks=1 if whole else 2)
        )
    else:
        names = _shortened(columns.names)
        are_long = max(map(len, names)) > _LONG_LABEL
        most = int((2 if are_long else 1) * _NAMES_PER_INCH * width)
        line.set_major_locator(ticker.MaxNLocator(nbins=max(most, 2), integer=True, min_n_ticks=1))
        line.set_major_formatter(
            ticker.FuncFormatter(
                lambda at, _: names[round(at)] if 0 <= round(at) < len(names) else ""
            )
        )
        if are_long:
            axis.tick_params(axis="x", rotation=40)
            for label in axis.get_xticklabels():
                label.set(horizontalalignment="right", rotation_mode="anchor")
    axis.set_xlabel(wrapped(name, characters_in(width)))
