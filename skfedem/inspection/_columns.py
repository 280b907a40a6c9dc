"""Where the columns of a matrix lie on an axis: at dates, at numbers, or one after another."""

from __future__ import annotations

import re
from datetime import date
from itertools import pairwise, takewhile
from typing import Any, NamedTuple

import numpy as np

from ._common import characters_in, wrapped

_ISO_DATE = re.compile(r"\d{4}-\d{2}(-\d{2})?")
_MIDNIGHT = re.compile(r"(?<=\d)[T ]00:00(:00(\.0+)?)?$")
_LAST_WORD = re.compile(r"[^\W_]*$")
_UNITS: dict[str, Any] = {
    "d": np.timedelta64(1, "D"),
    "h": np.timedelta64(1, "h"),
    "min": np.timedelta64(1, "m"),
    "s": np.timedelta64(1, "s"),
    "ms": np.timedelta64(1, "ms"),
    "µs": np.timedelta64(1, "us"),
    "ns": np.timedelta64(1, "ns"),
}
_LONG_LABEL = 5
_TICKS_PER_INCH = 1.9
_NAMES_PER_INCH = 2.2  # twice as many, where they are long and written at an angle
_MOST_CHARACTERS = 13  # of a name


class Columns(NamedTuple):
    """Columns of a matrix on an axis.

    Attributes
    ----------
    positions : ndarray of shape (n_columns,)
        Increasing: numbers, matplotlib's day numbers, or 0, 1, 2, ...
    kind : {"dates", "numbers", "names"}
    names : list of str
        What to write at the positions; for "names" only.
    """

    positions: np.ndarray
    kind: str
    names: list


def known_labels(estimator, X):
    """Labels of the columns: those of a DataFrame (or a list of them), else of the fit, or None."""
    first = X[0] if isinstance(X, list | tuple) and len(X) else X
    labels = getattr(first, "columns", None)
    if not estimator._has_triplets and labels is not None:
        return labels
    return estimator._column_labels


def checked_labels(labels, n_columns):
    """Labels of the columns as an array; positions where there are none.

    Periods become the times at which they begin; times with a zone become local clock times.

    Raises
    ------
    ValueError
        Unless there is one for each column.
    """
    if labels is None:
        return np.arange(n_columns)
    # Whatever held them, pandas's periods and times with a zone are objects in an array.
    array = np.asarray(labels)
    if array.shape != (n_columns,):
        raise ValueError(
            f"Expected column_labels to hold one label for each of the {n_columns} columns, got "
            f"shape {array.shape}."
        )
    return np.frompyfunc(_moment, 1, 1)(array) if array.dtype.kind == "O" else array


def _moment(label):
    """Start of a period, or date without its time zone; any other label is returned as it is."""
    label = label.to_timestamp() if hasattr(label, "to_timestamp") else label
    return label.replace(tzinfo=None) if getattr(label, "tzinfo", None) is not None else label


def place(labels):
    """Columns with these labels on an axis.

    Dates, also as text like 1995-01 or 1995-01-31, or all as numbers like 199501, and numbers are
    placed to scale if they increase; all other labels are placed one after another.
    """
    from matplotlib.dates import date2num

    labels = _months(labels)
    dated = all(isinstance(label, date) or _ISO_DATE.fullmatch(str(label)) for label in labels)
    if labels.dtype.kind == "M" or dated:
        try:
            days = date2num(labels.astype("datetime64[s]"))
        except (TypeError, ValueError):  # pandas' NaT; there is no 1995-13
            days = np.zeros(0)
        if len(days) and _fits_an_axis(days) and (np.diff(days) > 0).all():
            return Columns(days, "dates", [])
    if labels.dtype.kind in "iuf" and np.isfinite(labels).all() and (np.diff(labels) > 0).all():
        return Columns(labels.astype(np.float64), "numbers", [])
    if labels.dtype.kind == "m" and not np.isnat(labels).any():
        labels = _durations(labels)
    # Of dates that are placed one after another, a time of midnight says nothing.
    names = [_MIDNIGHT.sub("", str(label)) for label in labels]
    return Columns(np.arange(len(labels), dtype=np.float64), "names", names)


def _months(labels):
    """Dates instead of whole numbers that all look like 199501; other labels as they are."""
    if labels.dtype.kind not in "iu" or len(labels) < 2:
        return labels
    years, months = np.divmod(labels.astype(np.int64), 100)
    if not (((years >= 1700) & (years < 2200)).all() and ((months >= 1) & (months <= 12)).all()):
        return labels
    return (12 * (years - 1970) + months - 1).astype("datetime64[M]")


def _fits_an_axis(days):
    """Whether an axis of dates, which ends in the years 1 and 9999, has room around these days."""
    from matplotlib.dates import date2num

    first, last = date2num(np.array(["0001-01-01", "9999-12-31"], dtype="datetime64[D]"))
    # Cells reach half a gap beyond the ends, axes of lines a twentieth of all; a single day, some.
    gaps = np.diff(days)
    margin = max(366.0, 0.1 * (days.max() - days.min()), 0.5 * np.abs(gaps).max(initial=0))
    return first + margin <= days.min() and days.max() + margin <= last


def _durations(labels):
    """Durations in the largest unit of which all are multiples, as text."""
    if np.datetime_data(labels.dtype)[0] not in ("Y", "M", "generic"):  # no number of days
        for name, unit in _UNITS.items():
            numbers, rests = np.divmod(labels, unit)
            if not rests.any():
                return [f"{number} {name}" for number in numbers]
    return labels


def unbroken(positions):
    """Runs of columns with no gap between them, a list of slices.

    Where steps are regular, one of more than one and a half of the usual is a gap: a month is
    missing, or some years. Columns at irregular distances have none, and interruptions that come
    again and again, such as weekends, are none.
    """
    steps = np.diff(positions)
    usual = np.median(steps) if len(steps) else 1.0
    is_irregular = (steps < 0.5 * usual).any()
    cuts = np.flatnonzero(steps > 1.5 * usual) + 1
    lengths = np.diff(cuts)  # of the runs between gaps
    come_again = len(lengths) > 1 and lengths.max() <= 1.5 * lengths.min()
    ends = [] if is_irregular or come_again else cuts.tolist()
    return [slice(*run) for run in pairwise([0, *ends, len(positions)])]


def in_cells(positions, values):
    """Edges of cells around columns, and their values, with a cell of NaN for each gap.

    ``values`` are of shape (..., n_columns).
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


def _edges(positions):
    """Edges of cells around increasing positions: halfway to the neighbours."""
    if len(positions) == 1:
        return positions[0] + np.array([-0.5, 0.5])
    half = np.diff(positions) / 2
    return np.concatenate(
        [[positions[0] - half[0]], positions[:-1] + half, [positions[-1] + half[-1]]]
    )


def _shortened(names):
    """Names without their middle, if they are long, and without what several of them begin with."""
    by_short: dict[str, set[str]] = {}
    for name in names:
        by_short.setdefault(_without_middle(name), set()).add(name)
    short = {}
    for form, alike in by_short.items():
        n_first = _n_first_in_common(alike) if len(alike) > 1 else 0
        for name in alike:
            short[name] = _without_middle(f"…{name[n_first:]}") if n_first else form
    return [short[name] for name in names]


def _n_first_in_common(names):
    """Number of letters of the words with which all begin."""
    letters = zip(*names, strict=False)
    n_alike = sum(1 for _ in takewhile(lambda at: len(set(at)) == 1, letters))
    return len(_LAST_WORD.sub("", next(iter(names))[:n_alike]))


def _without_middle(name):
    if len(name) <= _MOST_CHARACTERS:
        return name
    half = (_MOST_CHARACTERS - 1) // 2
    return f"{name[:half]}…{name[-half:]}"


def furnish(axis, columns, name):
    """Ticks and label of an x axis."""
    from matplotlib import dates, ticker

    line = axis.xaxis
    width = axis.get_window_extent().width / axis.figure.dpi  # inches
    most = int(np.clip(_TICKS_PER_INCH * width, 2, 10))
    if columns.kind == "dates":
        # With fewer than five, no interval is right for a little less than two years.
        locator = dates.AutoDateLocator(minticks=2, maxticks=max(most, 5))
        line.set_major_locator(locator)
        line.set_major_formatter(dates.ConciseDateFormatter(locator))
        if most < 3:  # labels of the five that there may be would collide
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
