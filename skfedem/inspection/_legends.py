"""Legends that fit above or beside their axes."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING, Any

from ._common import lay_out

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.legend import Legend

_MOST_COLUMNS = 4
_HEIGHT = 0.3  # inches: one row, for which new figures leave room


def legend_above(axis: Axes, *, ours: bool, **options: Any) -> None:
    """Draw a legend above the axes, no wider than they are.

    New figures (``ours``) grow by the height of the legend's rows after the first.
    """
    lay_out(axis.figure)
    n_labels = len(axis.get_legend_handles_labels()[1])
    place: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1.04), "frameon": False}
    legend = fitting_legend(axis, 1.0, ncols=min(n_labels, _MOST_COLUMNS), **place, **options)
    if ours:
        figure = axis.figure.figure  # never a part of one
        height = legend.get_window_extent().height / figure.dpi
        figure.set_figheight(figure.get_figheight() + max(0.0, height - _HEIGHT))
        lay_out(figure)  # on higher axes, ticks differ and may need more room


def fitting_legend(
    axis: Axes, share: float, *, ncols: int, step: int | None = None, **options: Any
) -> Legend:
    """Draw a legend no wider than a share of its axes, whose layout must be done.

    A legend that is too wide gets fewer columns, or else its labels are wrapped; otherwise the
    layout would shrink the axes. Formulas are not wrapped, and labels are not wrapped to less than
    the width of the title. A legend with a ``step`` only has every ``step``-th label, or fewer, so
    that it is no higher than its axes.
    """
    handles, labels = axis.get_legend_handles_labels()
    axes = axis.get_window_extent()
    room = share * axes.width
    longest = max((len(label) for label in labels if "$" not in label), default=1)
    shortest = max(1, len(options.get("title", "")))
    while True:
        wrapped = [label if "$" in label else fill(label, longest) for label in labels]
        legend = axis.legend(handles[::step], wrapped[::step], ncols=ncols, **options)
        size = legend.get_window_extent()
        if size.width > room and ncols > 1:
            ncols -= 1
        elif size.width > room and longest > shortest:
            longest = max(shortest, int(longest * room / size.width))
        elif step and size.height > axes.height and step < len(labels):
            step += 1
        else:
            return legend
