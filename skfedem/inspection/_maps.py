"""Heat maps: observed cells beside fitted means, in the same colours."""

from __future__ import annotations

import numpy as np

from .._parameters import check_choice
from ._columns import edges
from ._common import given_axes, new_axes
from ._matrix import band_edges

_QUANTITIES = {"poisson": "count", "bernoulli": "probability", "gaussian": "value"}
_MISSING = "0.88"
_COLORS = "viridis"


def draw_maps(display, ax, positions, *, mark_missing, color_scale, row_name):
    """Draw observed cells and fitted means of a display, or one map of the latter.

    Parameters
    ----------
    display : ImputationDisplay
    ax : Axes, or several, or None
    positions : ndarray of shape (n_columns,)
    mark_missing : bool
    color_scale : {"auto", "linear", "log"}
    row_name : str

    Returns
    -------
    axes : list of Axes
    images : list of QuadMesh
    colorbars : list of Colorbar
    """
    if mark_missing and display.observed is None:
        raise ValueError(
            "Expected the observed cells with mark_missing=True, got none. Give X, what the "
            "imputer was fitted to, to from_estimator."
        )
    norm = _norm(display, color_scale)
    maps = _marked(display) if mark_missing else _beside(display)
    axes = _axes(ax, 1 if mark_missing else len(maps), display.fitted.shape)
    # Row k of the matrix lies around k.
    rows = band_edges(display.n_rows, len(display.fitted)) - 0.5
    for axis in axes:
        axis.set_facecolor(_MISSING)
        order = ", largest total on top" if display.row_order == "total" else ""
        axis.set(ylim=(rows[-1], rows[0]), ylabel=row_name + order)
        if display.n_rows >= 1000:
            axis.yaxis.set_major_formatter("{x:,.0f}")
    images = []
    for number, (title, color_map, values) in enumerate(maps):
        axis = axes[min(number, len(axes) - 1)]
        shown, options = np.ma.masked_invalid(values), {"cmap": color_map, "rasterized": True}
        images.append(axis.pcolormesh(edges(positions), rows, shown, norm=norm, **options))
        if not mark_missing:
            axis.set_title(title, fontsize="medium")
    if not mark_missing:
        return axes, images, [_colorbar(images[-1], axes, norm, _quantity(display, norm))]
    # Both have the same scale, written beside the first, which is farther out.
    observed = _colorbar(
        images[0], axes, norm, f"fitted where observed: {_quantity(display, norm)}"
    )
    missing = _colorbar(images[1], axes, norm, "fitted where missing")
    missing.set_ticks([])
    return axes, images, [observed, missing]


def _beside(display):
    """Title, colours and values of two maps, or of one where observed cells are not known."""
    fitted = [("fitted mean", _COLORS, display.fitted)]
    if display.observed is None:
        return fitted
    return [("observed (grey: missing)", _COLORS, display.observed), *fitted]


def _marked(display):
    """Fitted means of observed and of missing cells."""
    missing = np.isnan(display.observed)
    return [
        ("observed", _COLORS, np.where(missing, np.nan, display.fitted)),
        ("missing", _pale(_COLORS), np.where(missing, display.fitted, np.nan)),
    ]


def _axes(ax, n_panels, shape):
    if ax is not None:
        return given_axes(ax, n_panels, "map")
    # Many columns want the width of the page; many rows its height.
    beside = shape[0] > shape[1]
    height = 4.2 if beside or n_panels == 1 else 5.6
    return new_axes(n_panels, height=height, beside=beside, sharex=True, sharey=True)


def _norm(display, color_scale):
    """Colour scale that observed and fitted values share."""
    from matplotlib.colors import FuncNorm, Normalize

    check_choice("color_scale", color_scale, ("auto", "linear", "log"))
    shown = [display.fitted] if display.observed is None else [display.fitted, display.observed]
    low = float(min(np.nanmin(values) for values in shown))
    high = float(max(np.nanmax(values) for values in shown))
    if display.family == "bernoulli":
        low, high = 0.0, 1.0
    elif display.family == "poisson":
        high = max(high, 1.0)  # means that differ from 0 by rounding alone look like it
    if color_scale == "linear" or (color_scale == "auto" and display.family != "poisson"):
        return Normalize(low, high)
    if low < 0:
        raise ValueError(
            f"Expected no negative values for color_scale='log', got {low:.3g}. Use "
            "color_scale='linear'."
        )
    return FuncNorm((np.log1p, np.expm1), 0.0, high)


def _quantity(display, norm):
    """What the colours stand for."""
    scale = ", log(1 + x) scale" if _is_logarithmic(norm) else ""
    return _QUANTITIES[display.family] + scale


def _is_logarithmic(norm):
    from matplotlib.colors import FuncNorm

    return isinstance(norm, FuncNorm)


def _colorbar(image, axes, norm, label):
    from matplotlib.ticker import FixedLocator

    bar = axes[0].figure.colorbar(image, ax=axes, aspect=30, pad=0.02, label=label)
    if _is_logarithmic(norm):
        powers = 10.0 ** np.arange(17)
        bar.ax.yaxis.set_major_locator(FixedLocator([0, *powers[powers <= max(norm.vmax, 1)]]))
        bar.ax.yaxis.set_major_formatter("{x:,.0f}")
        bar.ax.minorticks_off()
    return bar


def _pale(name):
    """Colour map of this name, more than half way to white."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    return ListedColormap(0.4 * colormaps[name](np.linspace(0, 1, 256)) + 0.6, name=f"pale {name}")
