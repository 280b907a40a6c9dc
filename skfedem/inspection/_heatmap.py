"""Heat maps of observed cells and fitted means, in the same colours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .._typing import FamilyName, FloatArray
from ._columns import cell_edges, with_gaps

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from matplotlib.colorbar import Colorbar
    from matplotlib.colors import Normalize

_COUNTS = ("poisson", "negative_binomial")
_QUANTITIES = {"bernoulli": "probability", "gaussian": "value"} | dict.fromkeys(_COUNTS, "count")
_MISSING = "0.88"


def is_log_scale(color_scale: Literal["auto", "linear", "log"], family: FamilyName) -> bool:
    """Whether colours are on the scale of log(1 + value)."""
    return color_scale == "log" or (color_scale == "auto" and family in _COUNTS)


def color_norm(maps: list[FloatArray], family: FamilyName, *, is_log: bool) -> Normalize:
    """Scale of the colours of all maps."""
    from matplotlib.colors import FuncNorm, Normalize

    low = float(min(np.nanmin(values) for values in maps))
    high = float(max(np.nanmax(values) for values in maps))
    if family == "bernoulli":
        low, high = 0.0, 1.0
    elif family in _COUNTS:
        high = max(high, 1.0)  # means that are 0 up to rounding then look like 0
    if not is_log:
        return Normalize(low, high)
    if low < 0:
        raise ValueError(
            f"Expected no negative values for color_scale='log', got {low:.3g}. Use "
            "color_scale='linear'."
        )
    return FuncNorm((np.log1p, np.expm1), 0.0, high)


def draw_map(
    axis: Axes, positions: FloatArray, rows: FloatArray, values: FloatArray, norm: Normalize
) -> QuadMesh:
    """Draw the cells of a grid of column positions and row edges, grey where NaN."""
    from matplotlib.ticker import MaxNLocator

    _, cells = with_gaps(positions, values)
    image = axis.pcolormesh(
        cell_edges(positions), rows, np.ma.masked_invalid(cells), norm=norm, rasterized=True
    )
    axis.set_facecolor(_MISSING)
    axis.set_ylim(rows[-1], rows[0])
    axis.yaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))
    axis.yaxis.set_major_formatter("{x:,.0f}")
    return image


def row_label(row_name: str, rows: FloatArray, row_order: Literal["total", "given"]) -> str:
    """Label of the rows: their name, the size of bands if there are some, and their order."""
    sizes = np.unique(np.diff(rows))
    bands = f" in bands of {' or '.join(f'{size:,.0f}' for size in sizes)}" if sizes[-1] > 1 else ""
    if row_order == "given":
        return row_name + bands
    return f"{row_name}{bands or ' by rank'},\nlargest total on top"


def add_colorbar(
    image: QuadMesh, axes: list[Axes], family: FamilyName, *, is_log: bool
) -> Colorbar:
    """Colour bar of all maps."""
    options: dict[str, Any] = {"label": _QUANTITIES[family]}
    if is_log:
        # For small counts, powers of ten alone would give only two or three ticks.
        _, highest = image.get_clim()
        steps = (1, 2, 5) if highest < 100 else (1,)
        ticks = np.outer(10.0 ** np.arange(17), steps).ravel()
        options["label"] += ", log(1 + x) scale"
        options |= {"ticks": [0, *ticks[ticks <= highest]], "format": "{x:,.0f}"}
    bar = axes[0].figure.colorbar(image, ax=axes, aspect=30, pad=0.02, **options)
    bar.minorticks_off()
    return bar
