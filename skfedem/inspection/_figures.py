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
# Of a legend as wide as the axes of a new figure; besides its label, an entry needs room for a
# handle and a gap.
_LEGEND_CHARACTERS = 72
_HANDLE_CHARACTERS = 7
_ROW_HEIGHT = 0.2  # inches, of a legend


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


def with_markers(style: dict[str, Any], values: FloatArray, few: int = 0) -> dict[str, Any]:
    """Style of a line through values, with markers unless it has some.

    They are at all known values if these are at most ``few``, otherwise only at those between NaNs,
    which no line would show.
    """
    if "marker" in style:
        return style
    known = np.isfinite(values)
    if known.sum() <= few:
        return {"marker": "."} | style
    beside = np.append(known[1:], False) | np.append(False, known[:-1])
    isolated = np.flatnonzero(known & ~beside).tolist()
    return {"marker": ".", "markevery": isolated} | style if isolated else style


def draw_legend(axis: Axes, *, above: bool) -> None:
    """Draw a legend above the axes of a new figure, which grows by its rows, or inside the axes."""
    labels = axis.get_legend_handles_labels()[1]
    if not above:
        axis.legend(loc="best", fontsize="small").set_in_layout(False)
        return
    widths = [len(label) + _HANDLE_CHARACTERS for label in labels]
    ncols = max(1, _LEGEND_CHARACTERS // max(widths))
    if sum(widths) <= _LEGEND_CHARACTERS:
        ncols = len(labels)
    axis.legend(
        loc="lower left", bbox_to_anchor=(0, 1.04), ncols=ncols, frameon=False, handlelength=1.5
    )
    figure, n_rows = axis.figure.figure, ceil(len(labels) / ncols)
    figure.set_figheight(figure.get_figheight() + _ROW_HEIGHT * (n_rows - 1))


def ax_and_figure(axes: list[Axes]) -> tuple[Any, Any]:
    """The axes itself if there is one, otherwise an array of them; and their (sub)figure."""
    return axes[0] if len(axes) == 1 else np.array(axes, dtype=object), axes[0].figure


def _cycle() -> Cycler:
    from cycler import cycler
    from matplotlib import rcParams

    return cycler(linestyle=_DASHES) * cycler(color=[*_COLORS, rcParams["text.color"]])
