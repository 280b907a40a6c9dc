"""Plot of the trend: sums over the rows of a fitted matrix, and the share observed."""

from __future__ import annotations

from numbers import Integral
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .._parameters import check_choice, check_number
from .._typing import FloatArray
from ._columns import in_cells, unbroken
from ._common import given_axes, marked, new_axes, with_options, wrapped
from ._legends import legend_above
from ._matrix import moving_mean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PolyCollection
    from matplotlib.lines import Line2D

    from ._imputation import ImputationDisplay

_TOTALS = {
    "poisson": "expected counts, all {rows}",
    "bernoulli": "expected number of {rows}\nwith presence",
    "gaussian": "sum of fitted means,\nall {rows}",
}
# Up to this number of columns, each has a marker.
_FEW_COLUMNS = 36
# Sums over observed cells are drawn if their maximum exceeds this share of the trend's maximum:
# smaller ones would coincide with the axis.
_VISIBLE = 0.05
_LABEL_LENGTH = 32  # characters that fit along the trend's y axis


def check_window(window: int, positions: FloatArray) -> None:
    """Raise unless a moving mean with this window has at least one value."""
    n_columns = max(run.stop - run.start for run in unbroken(positions))
    has_gaps = n_columns < len(positions)
    hint = "The upper bound is the longest run of columns without a gap." if has_gaps else ""
    check_number("window", window, kind=Integral, low=1, high=n_columns, hint=hint)
    if window == n_columns and window % 2 == 0:
        raise ValueError(
            f"Expected window to be odd, or less than the {n_columns} "
            f"columns{' without a gap' if has_gaps else ''}, got {window}: to be centred, an even "
            f"window also needs half a column at each end. Use {n_columns - 1}."
        )


def draw_trend(
    display: ImputationDisplay,
    ax: Any,
    positions: FloatArray,
    *,
    window: int | None,
    unit: str,
    yscale: Literal["linear", "log"],
    row_name: str,
    line_kw: dict[str, Any],
) -> tuple[list[Axes], list[Line2D], PolyCollection | None]:
    """Draw the trend of a display, and the effort below it if there are axes for it.

    ``ax`` are axes given by the user, or None. ``positions`` are those of the columns, ``unit`` is
    their name, and ``window`` the number of columns in the moving mean. Returns lists of axes and
    lines, and the effort or None.
    """
    check_choice("yscale", yscale, ("linear", "log"))
    if yscale == "log" and not (display.trend > 0).all():
        raise ValueError(
            f"Expected positive sums over {row_name} for yscale='log', got "
            f"{display.trend.min():.3g}. Use yscale='linear'."
        )
    knows_effort = display.observed_share is not None
    if ax is not None:
        axes = given_axes(ax, 1 + (knows_effort and np.size(ax) > 1), "panel")
    elif knows_effort:
        axes = new_axes(2, height=4.8, gridspec_kw={"height_ratios": (5, 2)})
    else:
        axes = new_axes(1, height=3.6)
    lines = _draw_total(axes[0], positions, display.trend, window, unit, line_kw)
    _draw_points(axes[0], positions, display, row_name, yscale)
    _furnish(axes[0], display, yscale, row_name)
    effort = None
    if len(axes) > 1:
        effort = _draw_effort(axes[1], positions, display.observed_share, row_name)
    if len(axes[0].get_legend_handles_labels()[1]) > 1:
        # Above the axes, which are filled with data.
        legend_above(axes[0], ours=ax is None, handlelength=1.2, columnspacing=1.2)
    return axes, lines, effort


def _draw_total(
    axis: Axes,
    positions: FloatArray,
    trend: FloatArray,
    window: int | None,
    unit: str,
    line_kw: dict[str, Any],
) -> list[Line2D]:
    """Draw the sum of the fitted means, as a thin line if there is a moving mean."""
    from matplotlib.lines import Line2D

    style: dict[str, Any] = {"color": "#0072B2", "linestyle": "-", "label": "fitted"}
    style["linewidth"] = 0.8 if window else 1.5
    style = with_options(style, line_kw, Line2D)
    at, total = _interrupted(positions, trend)
    lines = axis.plot(at, total, **marked(style, total, _FEW_COLUMNS))
    if window:
        style = {"color": lines[0].get_color(), "linestyle": "-", "linewidth": 2.5}
        style |= {"label": f"mean over {window} {unit}", "markersize": 10}
        runs = [moving_mean(trend[run], window) for run in unbroken(positions)]
        # No line across gaps: means on both sides belong to different times.
        at, smooth = _interrupted(positions, np.concatenate(runs))
        lines += axis.plot(at, smooth, **marked(style, smooth))
    return lines


def _interrupted(positions: FloatArray, values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Positions and values of columns, with a NaN in each gap."""
    gaps = [run.start for run in unbroken(positions)[1:]]
    return np.insert(positions, gaps, positions[gaps]), np.insert(values, gaps, np.nan)


def _draw_points(
    axis: Axes, positions: FloatArray, display: ImputationDisplay, row_name: str, yscale: str
) -> None:
    """Draw sums over observed cells, and mark columns without observed cells."""
    trend, total, unseen = display.trend, display.observed_total, display.unobserved_columns
    points: dict[str, Any] = {"linestyle": "", "marker": ".", "markersize": 4}
    # Not for measurements: if they are far from 0, their sum mainly reflects their number.
    has_total = total is not None and display.family != "gaussian"
    if has_total and np.nanmax(total) > _VISIBLE * trend.max():
        shown = np.where(total > 0, total, np.nan) if yscale == "log" else total
        axis.plot(positions, shown, color="0.55", label=f"observed {row_name} alone", **points)
    if unseen is not None and len(unseen):
        points |= {"marker": "o", "markersize": 5, "markerfacecolor": "white", "color": "#D55E00"}
        axis.plot(positions[unseen], trend[unseen], label="nothing observed", **points)


def _furnish(
    axis: Axes, display: ImputationDisplay, yscale: Literal["linear", "log"], row_name: str
) -> None:
    """Scale and labels of the trend."""
    axis.set_yscale(yscale)
    if yscale == "linear":
        if display.family != "gaussian":
            # Zero is added to the data limits instead of fixing them, so that later artists stay in
            # view.
            axis.update_datalim([(0, 0)], updatex=False)
            axis.lines[-1].sticky_edges.y.append(0)
            axis.set_ylim(bottom=0, auto=None)
        low, high = axis.get_ylim()
        # On a narrower range, ticks are not integers, and matplotlib's offset is better.
        if high - low >= 10 and np.abs(display.trend).max() >= 1000:
            axis.yaxis.set_major_formatter("{x:,.0f}")
    axis.set_ylabel(wrapped(_TOTALS[display.family].format(rows=row_name), _LABEL_LENGTH))
    axis.grid(alpha=0.3)


def _draw_effort(
    axis: Axes, positions: FloatArray, share: FloatArray, row_name: str
) -> PolyCollection:
    """Draw the share of rows that were observed in each column."""
    edges, heights = in_cells(positions, share)
    heights = np.append(np.nan_to_num(heights), heights[-1])  # NaN hides the previous step
    effort = axis.fill_between(edges, heights, step="post", color="0.6", linewidth=0)
    axis.set_ylim(0, min(1.0, 1.15 * share.max()))
    axis.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g}%")
    axis.set_ylabel(f"observed\n{fill(row_name, _LABEL_LENGTH // 2)}")
    axis.grid(alpha=0.3)
    return effort
