"""Lines, bands, labels and legends of curves."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

from ._curves import Curve
from ._figures import with_markers, with_options

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.collections import PolyCollection
    from matplotlib.lines import Line2D

# Names, symbols and units as in the notation table.
_LABELS = {
    "epoch": "epochs",
    "bits": "uplink (bits)",
    "log_likelihood": "log-likelihood (nats per row)",
    "objective": "objective F (nats)",
    "field_sq_norm": "‖H‖², field",
    "mean_field_sq_norm": "‖h(Ŝ)‖², mean field",
    "step_size": "step size γ",
    "n_active": "active clients",
    "uplink_bits": "uplink (bits per round)",
    "downlink_bits": "downlink (bits per round)",
    "safeguarded": "times the safeguard acted",
    "weights": "weights π",
    "singular_values": "singular values",
}
_INTEGERS = ("round", "n_active", "safeguarded")
# Up to this number of points, markers show where a series was evaluated.
_FEW_POINTS = 30
_MAX_LEGEND_ENTRIES = 12


def draw_curves(
    axis: Axes,
    curves: list[Curve],
    line_kw: dict[str, Any] | None,
    fill_between_kw: dict[str, Any] | None,
) -> tuple[list[Line2D], list[PolyCollection]]:
    """Draw lines and bands; with several groups, all components of a group look alike."""
    from matplotlib.collections import PolyCollection
    from matplotlib.lines import Line2D

    lines: list[Line2D] = []
    bands: list[PolyCollection] = []
    for curve in curves:
        style: dict[str, Any] = {}
        labels = _labels(curve) if len(curves) == 1 else [curve.label]
        for component, values in enumerate(curve.values.T):
            label = labels[component] if component < len(labels) else None
            options = with_options({"label": label, **style}, line_kw, Line2D)
            (line,) = axis.plot(curve.x, values, **with_markers(options, values, _FEW_POINTS))
            lines.append(line)
            if len(curves) > 1:
                style = {"color": line.get_color(), "linestyle": line.get_linestyle()}
            if curve.band is not None:
                band_style = {"color": line.get_color(), "alpha": 0.2, "linewidth": 0}
                options = with_options(band_style, fill_between_kw, PolyCollection)
                bands.append(axis.fill_between(curve.x, *curve.band[:, :, component], **options))
    return lines, bands


def _labels(curve: Curve) -> list[str | None]:
    """Labels of the lines of the only group: that of the run, or one for each component."""
    n_components = curve.values.shape[1]
    if n_components == 1:
        return [curve.label]
    name = "" if curve.label is None else f"{curve.label} "
    return [f"{name}{component}" for component in range(n_components)]


def draw_component_legend(axis: Axes, name: str) -> None:
    """Draw a legend of the components, of many an even selection, beside new axes."""
    handles, labels = axis.get_legend_handles_labels()
    step = ceil(len(labels) / _MAX_LEGEND_ENTRIES)
    place: dict[str, Any] = {"loc": "best"}
    if axis.figure.get_layout_engine() is not None:  # it makes room
        place = {"loc": "upper left", "bbox_to_anchor": (1, 1)}
    title = "factor" if name == "singular_values" else "component"
    axis.legend(handles[::step], labels[::step], title=title, frameon=False, **place)


def format_axis(line: Axis, name: str, scale: str) -> None:
    """Label and ticks of an axis with a series or the quantity ``x``."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    line.set_label_text(_LABELS.get(name, name))
    is_bits = name.endswith("bits")
    if scale == "linear" and (is_bits or name in _INTEGERS):
        line.set_major_locator(MaxNLocator(5 if is_bits else "auto", integer=True, min_n_ticks=1))
        if is_bits:
            line.set_major_formatter(EngFormatter())
