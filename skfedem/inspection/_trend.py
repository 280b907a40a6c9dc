"""Plot of the trend: sums over the rows of a fitted matrix, and the share observed."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .._parameters import check_number
from .._typing import FamilyName, FloatArray
from ._columns import cell_edges, runs_between_gaps, with_gaps
from ._figures import with_markers, with_options

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PolyCollection
    from matplotlib.lines import Line2D

_TOTALS = {
    "poisson": "expected counts,\nall {rows}",
    "negative_binomial": "expected counts,\nall {rows}",
    "bernoulli": "expected number of {rows}\nwith presence",
    "gaussian": "sum of fitted means,\nall {rows}",
}
# Up to this number of columns, each has a marker.
_FEW_COLUMNS = 36


def check_window(window: int, positions: FloatArray) -> None:
    """Raise unless a moving mean with this window has at least one value.

    To be centred, an even window also needs half a column at each end.
    """
    longest = max(run.stop - run.start for run in runs_between_gaps(positions))
    hint = "It must fit between the gaps of the columns; an even window needs one column more."
    check_number("window", window, kind=Integral, low=1, high=longest - 1 + longest % 2, hint=hint)


def moving_mean(values: FloatArray, window: int) -> FloatArray:
    """Centred moving mean over ``window`` values; NaN near both ends.

    If the window is even, the values at both of its ends have half weight, which centres it.
    """
    weights = np.ones(window) if window % 2 else np.r_[0.5, np.ones(window - 1), 0.5]
    smooth = np.full(len(values), np.nan)
    margin = len(weights) // 2
    if len(values) >= len(weights):
        smooth[margin : len(values) - margin] = np.convolve(
            values, weights / weights.sum(), mode="valid"
        )
    return smooth


def draw_trend(
    axis: Axes,
    positions: FloatArray,
    trend: FloatArray,
    *,
    window: int | None,
    unit: str,
    line_kw: dict[str, Any] | None,
) -> list[Line2D]:
    """Draw the sums of the fitted means, as a thin line if there is a moving mean over columns."""
    from matplotlib.lines import Line2D

    style: dict[str, Any] = {"color": "#0072B2", "linestyle": "-", "label": "fitted"}
    style["linewidth"] = 0.8 if window else 1.5
    style = with_options(style, line_kw, Line2D)
    at, total = with_gaps(positions, trend)
    lines = axis.plot(at, total, **with_markers(style, total, _FEW_COLUMNS))
    if window:
        style = {"color": lines[0].get_color(), "linewidth": 2.5}
        style["label"] = f"mean over {window} {unit}"
        # No mean across gaps, whose sides belong to different times.
        runs = [moving_mean(trend[run], window) for run in runs_between_gaps(positions)]
        _, smooth = with_gaps(positions, np.concatenate(runs))
        lines += axis.plot(at, smooth, **with_markers(style, smooth, 1))
    return lines


def draw_observed_total(
    axis: Axes, positions: FloatArray, total: FloatArray, row_name: str
) -> None:
    """Draw sums over observed cells."""
    style: dict[str, Any] = {"linestyle": "", "marker": ".", "markersize": 4, "color": "0.55"}
    axis.plot(positions, total, label=f"observed {row_name} alone", **style)


def mark_unobserved(axis: Axes, positions: FloatArray, trend: FloatArray) -> None:
    """Mark columns without observed cells."""
    style: dict[str, Any] = {"linestyle": "", "marker": "o", "markersize": 5, "color": "#D55E00"}
    axis.plot(positions, trend, markerfacecolor="white", label="nothing observed", **style)


def format_trend(
    axis: Axes, family: FamilyName, yscale: Literal["linear", "log"], row_name: str
) -> None:
    """Scale and labels of the trend."""
    axis.set_yscale(yscale)
    if yscale == "linear":
        if family != "gaussian":
            # Added to the data limits, not fixed, so that later artists stay in view.
            axis.update_datalim([(0, 0)], updatex=False)
            axis.lines[-1].sticky_edges.y.append(0)
            axis.set_ylim(bottom=0, auto=None)
        low, high = axis.get_ylim()
        # On a narrower range, ticks are not integers, and matplotlib's offset is better.
        if high - low >= 10 and high >= 1000:
            axis.yaxis.set_major_formatter("{x:,.0f}")
    axis.set_ylabel(_TOTALS[family].format(rows=row_name))
    axis.grid(alpha=0.3)


def draw_effort(
    axis: Axes, positions: FloatArray, share: FloatArray, row_name: str
) -> PolyCollection:
    """Draw the share of rows that were observed in each column."""
    _, heights = with_gaps(positions, share)
    heights = np.append(np.nan_to_num(heights), heights[-1])  # NaN hides the previous step
    effort = axis.fill_between(
        cell_edges(positions), heights, step="post", color="0.6", linewidth=0
    )
    axis.set_ylim(0, min(1.0, 1.15 * share.max()))
    axis.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g}%")
    axis.set_ylabel(f"observed\n{row_name}")
    axis.grid(alpha=0.3)
    return effort
