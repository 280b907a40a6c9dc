"""Helpers of all displays: the estimator in a pipeline, axes, options of artists, legends."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from .._typing import FloatArray

if TYPE_CHECKING:
    from cycler import Cycler
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

# Colour-blind safe palette of Okabe and Ito, without yellow, which is too pale for lines. Instead
# of black, the text colour is used, which is white in dark styles. After the last colour, the cycle
# repeats with other dashes.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_DASHES = ("-", "--", ":", "-.")
_WIDTH = 6.4  # inches, matplotlib's default
# Of the labels in a row of a legend, each with room for its handle.
_LEGEND_CHARACTERS, _HANDLE_CHARACTERS = 84, 7


def last_step(estimator: Any, X: Any = None) -> tuple[Any, Any]:
    """Fitted estimator at the end of pipelines and searches, and its input data."""
    while True:
        if isinstance(estimator, Pipeline):
            check_is_fitted(estimator.steps[-1][1])
            if X is not None and len(estimator) > 1:
                X = estimator[:-1].transform(X)
            estimator = estimator.steps[-1][1]
        elif hasattr(estimator, "best_estimator_"):
            estimator = estimator.best_estimator_
        elif isinstance(estimator, FrozenEstimator):
            estimator = estimator.estimator
        else:
            check_is_fitted(estimator)
            return estimator, X


def new_axes(n_axes: int, *, height: float, beside: bool = False, **options: Any) -> list[Axes]:
    """Axes of a new figure, one below or beside the other, with a common x axis."""
    import matplotlib.pyplot as plt

    shape = (1, n_axes) if beside else (n_axes, 1)
    size = (_WIDTH, height)
    _, axes = plt.subplots(
        *shape, figsize=size, layout="constrained", squeeze=False, sharex=True, **options
    )
    for axis in axes.flat:
        axis.set_prop_cycle(_cycle())
    return list(axes.flat)


def new_grid(
    n_axes: int, n_columns: int, *, panel: tuple[float, float], **options: Any
) -> list[Axes]:
    """Axes of a new figure, row by row; the last row may be shorter.

    If they share the x axis, only the lowest of each column, ``axes[-n_columns:]``, have labels.
    """
    import matplotlib.pyplot as plt

    n_rows = ceil(n_axes / n_columns)
    size = (max(_WIDTH, panel[0] * n_columns), 0.5 + panel[1] * n_rows)
    _, grid = plt.subplots(
        n_rows, n_columns, figsize=size, layout="constrained", squeeze=False, **options
    )
    axes = list(grid.flat)
    for axis in axes[n_axes:]:
        axis.remove()
    for axis in axes[n_axes - n_columns : n_axes]:
        axis.tick_params(labelbottom=True)
    for axis in axes[:n_axes]:
        axis.set_prop_cycle(_cycle())
    return axes[:n_axes]


def given_axes(ax: Axes | Iterable[Axes], n_axes: int, what: str) -> list[Axes]:
    """Axes given by the user, as a list; raise unless there is one for each ``what``."""
    from matplotlib.axes import Axes

    axes = np.ravel(np.array(as_list(ax), dtype=object)).tolist()
    for axis in axes:
        if not isinstance(axis, Axes):
            raise TypeError(
                f"Expected ax to be matplotlib Axes, or several, got {type(axis).__name__}. "
                "matplotlib.pyplot.subplots makes some."
            )
    if len(axes) != n_axes:
        raise ValueError(
            f"Expected {n_axes} matplotlib Axes in ax, one for each {what}, got {len(axes)}. Give "
            "that many, or ax=None for a new figure."
        )
    return axes


def as_list(value: Any, times: int = 1) -> list[Any]:
    """Convert an iterable to a list; repeat a single value or string ``times`` times."""
    several = isinstance(value, Iterable) and not isinstance(value, str)
    return list(value) if several else [value] * times


def with_options(
    style: dict[str, Any], options: dict[str, Any] | None, artist: type[Artist]
) -> dict[str, Any]:
    """Style of an artist, updated with the user's options and their aliases, such as lw."""
    from matplotlib.cbook import normalize_kwargs

    return style | normalize_kwargs(options or {}, artist)


def with_markers(style: dict[str, Any], values: FloatArray, few: int) -> dict[str, Any]:
    """Style of a line through values, with markers at them unless there are more than ``few``."""
    return {"marker": "."} | style if np.isfinite(values).sum() <= few else style


def draw_legend(axis: Axes, *, above: bool) -> None:
    """Draw a legend above the axes of a new figure, or inside the axes of the user."""
    if not above:
        axis.legend(loc="best", fontsize="small").set_in_layout(False)
        return
    longest = max(map(len, axis.get_legend_handles_labels()[1]))
    ncols = max(1, _LEGEND_CHARACTERS // (longest + _HANDLE_CHARACTERS))
    axis.legend(
        loc="lower left", bbox_to_anchor=(0, 1), ncols=ncols, frameon=False, fontsize="small"
    )


def ax_and_figure(axes: list[Axes]) -> tuple[Any, Any]:
    """The axes itself if there is one, otherwise an array of them; and their (sub)figure."""
    return axes[0] if len(axes) == 1 else np.array(axes, dtype=object), axes[0].figure


def _cycle() -> Cycler:
    from cycler import cycler
    from matplotlib import rcParams

    return cycler(linestyle=_DASHES) * cycler(color=[*_COLORS, rcParams["text.color"]])
