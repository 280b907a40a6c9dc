"""Lines, bands and legends of curves."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

from ._common import lay_out, marked, with_options
from ._legends import fitting_legend, legend_above
from ._runs import Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PolyCollection
    from matplotlib.lines import Line2D

# Up to this number of points, markers show where a series was evaluated.
_FEW_POINTS = 30
_MOST_LEGEND_ROWS = 8
_MOST_LEGEND_ENTRIES = 24
_INSIDE_SHARE = 0.9  # of the width of the axes, for a legend inside them
_BESIDE_SHARE = 0.36  # likewise, for a legend beside the axes
_BESIDE: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.01, 1), "borderaxespad": 0}
_COMPONENTS = {"singular_values": "factor"}


def draw_curves(
    axis: Axes, curves: list[Curve], line_kw: dict[str, Any], fill_between_kw: dict[str, Any]
) -> tuple[list[Line2D], list[PolyCollection]]:
    """Draw lines and bands; with several groups, all components of a group look alike."""
    from matplotlib.collections import PolyCollection
    from matplotlib.lines import Line2D

    lines: list[Line2D] = []
    bands: list[PolyCollection] = []
    for curve in curves:
        style: dict[str, Any] = {}
        labels = _component_labels(curve) if len(curves) == 1 else [curve.label]
        for component, middle in enumerate(curve.middle.T):
            label = labels[component] if component < len(labels) else None
            options = with_options({"label": label, **style}, line_kw, Line2D)
            (line,) = axis.plot(curve.x, middle, **marked(options, middle, _FEW_POINTS))
            lines.append(line)
            if len(curves) > 1:
                style |= {
                    "color": line.get_color(),
                    "linestyle": line.get_linestyle(),
                    "linewidth": line.get_linewidth(),
                }
            if curve.band is not None:
                band_style = {"color": line.get_color(), "alpha": 0.2, "linewidth": 0}
                options = with_options(band_style, fill_between_kw, PolyCollection)
                low, high = curve.band[:, :, component]
                bands.append(axis.fill_between(curve.x, low, high, **options))
    return lines, bands


def _component_labels(curve: Curve) -> list[str | None]:
    """Labels of the components, if there is one group."""
    if not curve.per_component:
        return [curve.label]
    name = "" if curve.label is None else f"{curve.label} "
    return [f"{name}{component}" for component in range(curve.middle.shape[1])]


def add_legends(
    axes: list[Axes], names: list[str], series: list[list[Curve]], *, ours: bool
) -> None:
    """Draw legends: inside the axes given by the user, or above the first of a new figure.

    Those of the components of a single group are beside their axes, if a layout makes room there.
    """
    if not ours:
        for figure in dict.fromkeys(axis.figure.figure for axis in axes):
            lay_out(figure)  # once: legends inside the axes do not move them
    is_shown = False
    for axis, name, curves in zip(axes, names, series, strict=True):
        n_labels = len(axis.get_legend_handles_labels()[1])
        if not n_labels:
            continue
        if curves[0].per_component and len(curves) == 1:
            _list_components(axis, name, n_labels, frameon=not ours)
        elif not ours:
            legend = fitting_legend(axis, _INSIDE_SHARE, ncols=1, loc="best")
            legend.set_in_layout(False)  # it is inside the axes and needs no room beside them
        elif not is_shown:  # one legend serves all axes
            legend_above(axis, ours=True)
            is_shown = True


def _list_components(axis: Axes, name: str, n_labels: int, *, frameon: bool) -> None:
    """Draw a legend of the components; of many, an even selection, as their colours repeat."""
    share, place = _INSIDE_SHARE, {"loc": "best"}
    if axis.figure.get_layout_engine() is not None:  # it makes room beside the axes
        lay_out(axis.figure)
        share, place = _BESIDE_SHARE, _BESIDE
    step = ceil(n_labels / _MOST_LEGEND_ENTRIES)
    ncols = ceil(n_labels / (step * _MOST_LEGEND_ROWS))
    title = _COMPONENTS.get(name, "component")
    fitting_legend(axis, share, ncols=ncols, step=step, title=title, frameon=frameon, **place)
