"""Heat maps of observed cells and fitted means, in the same colours."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import cycle
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._parameters import check_choice
from .._typing import FloatArray
from ._columns import in_cells
from ._common import characters_in, given_axes, lay_out, new_axes, wrapped
from ._matrix import band_edges

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from matplotlib.colorbar import Colorbar
    from matplotlib.colors import Colormap, ListedColormap, Normalize

    from ._imputation import ImputationDisplay

_QUANTITIES = {"poisson": "count", "bernoulli": "probability", "gaussian": "value"}
_MISSING = "0.88"
_COLORS = "viridis"
_ROUNDING = 1e-9


class _Map(NamedTuple):
    """Cells, blank where NaN, in a colour map; ``bar`` is the label of its colour bar, if any."""

    values: FloatArray
    colors: str | Colormap = _COLORS
    opacity: FloatArray | None = None
    title: str = ""
    bar: str = ""


def draw_maps(
    display: ImputationDisplay,
    ax: Axes | Iterable[Axes] | None,
    positions: FloatArray,
    *,
    mark_missing: bool,
    color_scale: Literal["auto", "linear", "log"],
    row_name: str,
) -> tuple[list[Axes], list[QuadMesh], list[Colorbar]]:
    """Draw maps of the observed cells and the fitted means, or one map of the latter."""
    if mark_missing and display.observed is None:
        raise ValueError(
            "Expected the observed cells with mark_missing=True, got none. Pass the X of the fit "
            "to from_estimator."
        )
    check_choice("color_scale", color_scale, ("auto", "linear", "log"))
    is_log = color_scale == "log" or (color_scale == "auto" and display.family == "poisson")
    norm = _norm(display, is_log)
    quantity = _QUANTITIES[display.family] + (", log(1 + x) scale" if is_log else "")
    maps = (_marked if mark_missing else _side_by_side)(display, quantity)
    axes = _axes(ax, 1 if mark_missing else len(maps), display.fitted.shape)
    # Cells of row k are centred at k.
    rows: NDArray[Any] = band_edges(display.n_rows, len(display.fitted)) - 0.5
    layers = [*zip(cycle(axes), maps, strict=False)]
    # Drawn from the last to the first, which is on top if they share their axes.
    images = [_draw_map(axis, positions, rows, each, norm) for axis, each in layers[::-1]][::-1]
    bars = [(image, each.bar) for image, each in zip(images, maps, strict=True) if each.bar]
    colorbars = [_colorbar(image, axes, is_log) for image, _ in bars]
    for axis in axes:
        _furnish_rows(axis, display.n_rows, rows)
    lay_out(axes[0].figure)  # the height of the axes, to which labels are wrapped
    for axis in axes:
        axis.set_ylabel(_along(_row_label(display, row_name, np.diff(rows)), axis))
    for colorbar, (_, label) in zip(colorbars, bars, strict=True):
        colorbar.set_label(_along(label, colorbar.ax))
    for colorbar in colorbars[1:]:  # its scale is written beside the first, outer one
        colorbar.set_ticks([])
    return axes, images, colorbars


def _side_by_side(display: ImputationDisplay, quantity: str) -> list[_Map]:
    """Maps of the observed cells (if known) and of the fitted means."""
    if display.observed is None:
        return [_Map(display.fitted, title="fitted mean", bar=quantity)]
    observed, fitted = "observed (grey: missing)", "fitted mean"
    if _has_bands(display):
        observed, fitted = "mean over observed (grey: none)", "fitted mean over all"
    return [
        _Map(display.observed, title=observed),
        _Map(display.fitted, title=fitted, bar=quantity),
    ]


def _marked(display: ImputationDisplay, quantity: str) -> list[_Map]:
    """Maps of the fitted means of observed cells and, paler and below, of those of missing cells.

    The opacity of the former is the share of their band that was observed.
    """
    share = display.band_observed_share
    if share is None:
        share = np.where(np.isnan(display.observed), 0.0, 1.0)
    observed, missing = "observed", "missing"
    if _has_bands(display):
        observed, missing = "all observed", "none observed"
    return [
        _Map(
            np.where(share > 0, display.fitted, np.nan),
            opacity=share,
            bar=f"fitted where {observed}: {quantity}",
        ),
        _Map(
            np.where(share < 1, display.fitted, np.nan),
            _pale(_COLORS),
            bar=f"fitted where {missing}",
        ),
    ]


def _draw_map(
    axis: Axes, positions: FloatArray, rows: FloatArray, each: _Map, norm: Normalize
) -> QuadMesh:
    """Draw the cells of a grid of column positions and row edges, leaving NaN blank."""
    columns, values = in_cells(positions, each.values)
    alpha: Any = None
    if each.opacity is not None:
        alpha = np.nan_to_num(in_cells(positions, each.opacity)[1])
    if each.title:
        axis.set_title(each.title, fontsize="medium")
    shown = np.ma.masked_invalid(values)
    return axis.pcolormesh(
        columns, rows, shown, norm=norm, cmap=each.colors, alpha=alpha, rasterized=True
    )


def _has_bands(display: ImputationDisplay) -> bool:
    """Whether rows are grouped into bands."""
    return len(display.fitted) < display.n_rows


def _furnish_rows(axis: Axes, n_rows: int, rows: FloatArray) -> None:
    """Set limits and ticks of the y axis of a map with these row edges."""
    from matplotlib.ticker import MaxNLocator

    axis.set_facecolor(_MISSING)
    axis.set_ylim(rows[-1], rows[0])
    axis.yaxis.set_major_locator(MaxNLocator(nbins="auto", integer=True, min_n_ticks=1))
    if n_rows >= 1000:
        axis.yaxis.set_major_formatter("{x:,.0f}")


def _along(text: str, axis: Axes) -> str:
    """Wrap text to the height of the axes."""
    height = axis.get_window_extent().height / axis.figure.dpi  # inches
    return wrapped(text, characters_in(height))


def _row_label(display: ImputationDisplay, row_name: str, sizes: FloatArray) -> str:
    """Label of the rows: their name, the size of bands, and their order."""
    label, order = row_name, "largest total on top"
    if _has_bands(display):
        label += f" in bands of {' or '.join(f'{size:,.0f}' for size in np.unique(sizes))}"
    if display.row_order == "given":
        return label
    return f"{label},\n{order}" if _has_bands(display) else f"{label} by rank, {order}"


def _axes(ax: Axes | Iterable[Axes] | None, n_panels: int, shape: tuple[int, ...]) -> list[Axes]:
    if ax is not None:
        return given_axes(ax, n_panels, "map", ", or draw one map with mark_missing=True")
    # Many columns need the full width, many rows the full height.
    beside = shape[0] > shape[1]
    height = 4.2 if beside or n_panels == 1 else 5.6
    return new_axes(n_panels, height=height, beside=beside, sharey=True)


def _norm(display: ImputationDisplay, is_log: bool) -> Normalize:
    """Colour scale that observed and fitted values share."""
    from matplotlib.colors import FuncNorm, Normalize

    shown = [display.fitted] if display.observed is None else [display.fitted, display.observed]
    low = float(min(np.nanmin(values) for values in shown))
    high = float(max(np.nanmax(values) for values in shown))
    if display.family == "bernoulli":
        low, high = 0.0, 1.0
    elif display.family == "poisson":
        high = max(high, 1.0)  # means that are 0 up to rounding then look like 0
    if is_log and low < 0:
        raise ValueError(
            f"Expected no negative values for color_scale='log', got {low:.3g}. Use "
            "color_scale='linear'."
        )
    if is_log:
        return FuncNorm((np.log1p, np.expm1), 0.0, high)
    largest = max(abs(low), abs(high))
    if high - low < _ROUNDING * largest:  # values that are equal up to rounding look equal
        low, high = low - 0.1 * largest, high + 0.1 * largest
    return Normalize(low, high)


def _colorbar(image: QuadMesh, axes: list[Axes], is_log: bool) -> Colorbar:
    from matplotlib.ticker import FixedLocator

    bar = axes[0].figure.colorbar(image, ax=axes, aspect=30, pad=0.02)
    if is_log:
        # For small counts, powers of ten alone would give only two or three ticks.
        _, highest = image.get_clim()
        steps = (1, 2, 5) if highest < 100 else (1,)
        ticks = np.outer(10.0 ** np.arange(17), steps).ravel()
        bar.ax.yaxis.set_major_locator(FixedLocator([0, *ticks[ticks <= max(highest, 1)]]))
        bar.ax.yaxis.set_major_formatter("{x:,.0f}")
        bar.ax.minorticks_off()
    return bar


def _pale(name: str) -> ListedColormap:
    """Paler version of a colour map, mixed with 60% of white."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    return ListedColormap(0.4 * colormaps[name](np.linspace(0, 1, 256)) + 0.6, name=f"pale {name}")
