"""Lines, bands and legends of curves."""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np

from ._common import isolated, lay_out, with_options
from ._legends import fitting_legend, legend_above

# Up to this number of points, markers show where a series was evaluated.
_FEW_POINTS = 30
_MOST_LEGEND_ROWS = 8
_MOST_LEGEND_ENTRIES = 24
_LEGEND_SHARE = 0.36  # of the width of the axes, for a legend beside them
_INSIDE_SHARE = 0.9  # likewise, for a legend inside the axes
_COMPONENTS = {"singular_values": "factor"}


def draw_curves(axis, curves, line_kw, fill_between_kw):
    """Draw lines and bands; with several groups, all components of a group look alike."""
    from matplotlib.collections import PolyCollection
    from matplotlib.lines import Line2D

    lines, bands = [], []
    for curve in curves:
        style: dict[str, Any] = {}
        labels = _component_labels(curve) if len(curves) == 1 else [curve.label]
        for component, middle in enumerate(curve.middle.T):
            label = labels[component] if component < len(labels) else None
            options = with_options({"label": label, **style, **_marks(middle)}, line_kw, Line2D)
            (line,) = axis.plot(curve.x, middle, **options)
            lines.append(line)
            if len(curves) > 1:
                style |= {
                    "color": line.get_color(),
                    "linestyle": line.get_linestyle(),
                    "linewidth": line.get_linewidth(),
                }
            if curve.low is not None:
                band_style = {"color": line.get_color(), "alpha": 0.2, "linewidth": 0}
                options = with_options(band_style, fill_between_kw, PolyCollection)
                low, high = curve.low[:, component], curve.high[:, component]
                bands.append(axis.fill_between(curve.x, low, high, **options))
    return lines, bands


def _marks(values):
    """Markers for all points if they are few, otherwise only for isolated points."""
    if np.isfinite(values).sum() <= _FEW_POINTS:
        return {"marker": "."}
    alone = isolated(values)
    return {"marker": ".", "markevery": alone} if alone else {}


def _component_labels(curve):
    """Labels of the components, if there is one group."""
    if not curve.per_component:
        return [curve.label]
    name = "" if curve.label is None else f"{curve.label} "
    return [f"{name}{component}" for component in range(curve.middle.shape[1])]


def add_legends(axes, names, series, *, ours):
    """Draw legends: beside the axes of a new figure, or inside those given by the user."""
    if not ours:
        for figure in dict.fromkeys(axis.figure.figure for axis in axes):
            lay_out(figure)  # once: legends inside the axes do not move them
    for axis, name, curves in zip(axes, names, series, strict=True):
        handles, labels = axis.get_legend_handles_labels()
        if not labels:
            continue
        if curves[0].per_component and len(curves) == 1:
            # Only an even selection of many components: their colours repeat anyway.
            some = slice(None, None, ceil(len(labels) / _MOST_LEGEND_ENTRIES))
            handles, labels = handles[some], labels[some]
            options: dict[str, Any] = {
                "title": _COMPONENTS.get(name, "component"),
                "ncols": ceil(len(labels) / _MOST_LEGEND_ROWS),
                "frameon": not ours,
            }
            if axis.figure.get_layout_engine() is None:
                axis.legend(handles, labels, loc="best", **options)
            else:  # the layout makes room beside the axes
                lay_out(axis.figure)
                options |= {"loc": "upper left", "bbox_to_anchor": (1.01, 1), "borderaxespad": 0}
                fitting_legend(axis, _LEGEND_SHARE, handles, labels, thinned=True, **options)
        elif not ours:
            legend = fitting_legend(axis, _INSIDE_SHARE, handles, labels, ncols=1, loc="best")
            legend.set_in_layout(False)  # it is inside the axes and needs no room beside them
        elif axis is axes[0] or series[0][0].per_component:  # otherwise one legend serves all axes
            legend_above(axis, ours=True, bbox_to_anchor=(0, 1.04), frameon=False)
