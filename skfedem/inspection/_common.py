"""Helpers of all displays: estimators inside pipelines, axes, and options of artists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from .._messages import repr_of, truncate
from .._typing import FloatArray

if TYPE_CHECKING:
    from cycler import Cycler
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

# Colour-blind safe palette of Okabe and Ito, without yellow, which is too pale for lines. Instead
# of black, the text colour is used, which is white in dark styles. After the last colour, the cycle
# repeats with other dashes.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_DASHES = ("-", "--", ":", "-.")
# After the last dashes, the cycle repeats with bolder lines.
_BOLDNESS = (1, 2)
_CHARACTERS_PER_INCH = 14
# Options of the methods plot and fill_between that are not properties of the artists.
_OF_METHODS = {
    "line_kw": ("scalex", "scaley", "data", "xunits", "yunits"),
    "fill_between_kw": ("where", "interpolate", "step", "data", "xunits", "yunits"),
}
_WIDTH = 6.4  # inches, matplotlib's default: 640 pixels


def last_step(estimator: Any, X: Any = None) -> tuple[Any, Any]:
    """Fitted estimator at the end of pipelines and searches, and its input data.

    Parameters
    ----------
    estimator : estimator, Pipeline, search with ``best_estimator_``, or one of these frozen
    X : object, default=None
        Data that the outermost estimator was fitted to.

    Returns
    -------
    estimator : estimator
    X : object
        X after the previous steps of pipelines; None stays None.

    Raises
    ------
    NotFittedError
    TypeError
        If this is not an estimator, or is a search without ``best_estimator_``.
    """
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
        elif getattr(estimator, "refit", True) is False:
            raise TypeError(
                f"Expected a search that fits its best estimator, got {type(estimator).__name__} "
                "with refit=False. Search with refit=True, or fit an estimator with best_params_."
            )
        elif isinstance(estimator, type) or not hasattr(estimator, "fit"):
            is_class = isinstance(estimator, type)
            got = f"the class {estimator.__name__}" if is_class else type(estimator).__name__
            raise TypeError(
                f"Expected a fitted estimator, got {got}. Give the object whose `fit` was called."
            )
        else:
            check_is_fitted(estimator)
            return estimator, X


def new_axes(n_axes: int, *, height: float, beside: bool = False, **options: Any) -> list[Axes]:
    """Axes of a new figure, one below or beside the other, with a common x axis, as a list."""
    import matplotlib.pyplot as plt

    n_rows, n_columns = (1, n_axes) if beside else (n_axes, 1)
    _, axes = plt.subplots(
        n_rows,
        n_columns,
        figsize=(_WIDTH, height),
        layout="constrained",
        squeeze=False,
        sharex=True,
        **options,
    )
    for axis in axes.flat:
        axis.set_prop_cycle(_cycle())
    return list(axes.flat)


def given_axes(ax: Axes | Iterable[Axes], n_axes: int, what: str, or_else: str = "") -> list[Axes]:
    """Axes given by the user, as a list; ``or_else`` is further advice if there are too few.

    Raises
    ------
    TypeError, ValueError
        If these are not axes, or not ``n_axes`` of them, one for each ``what``.
    """
    from matplotlib.axes import Axes

    axes = list(np.ravel(np.array(list(ax), dtype=object))) if isinstance(ax, Iterable) else [ax]
    for axis in axes:
        if not isinstance(axis, Axes):
            raise TypeError(
                f"Expected ax to be matplotlib Axes, or several, got {type(axis).__name__}. "
                "matplotlib.pyplot.subplots makes some."
            )
    if len(axes) != n_axes:
        raise ValueError(
            f"Expected {n_axes} matplotlib Axes in ax, one for each {what}, got {len(axes)}. Give "
            f"that many, or ax=None for a new figure{or_else if len(axes) < n_axes else ''}."
        )
    return axes


def as_list(value: Any, times: int = 1) -> list[Any]:
    """Convert an iterable to a list; repeat a single value or string ``times`` times."""
    several = isinstance(value, Iterable) and not isinstance(value, str)
    return list(value) if several else [value] * times


def check_text(name: str, value: object) -> None:
    """Raise if a text to be drawn is not a string."""
    if not isinstance(value, str):
        raise TypeError(
            f"Expected {name} to be a string, got {repr_of(value)} of type {type(value).__name__}. "
            "Give what to write, in the plural, as 'sites'."
        )


def check_options(name: str, options: object) -> None:
    """Raise for options that matplotlib's lines or bands do not have; None is no options.

    Also raise for most invalid values. Checked before a figure is created, as matplotlib would
    leave it half drawn.
    """
    from matplotlib.cbook import normalize_kwargs
    from matplotlib.collections import PolyCollection
    from matplotlib.lines import Line2D

    if options is None:
        return
    if not isinstance(options, Mapping):
        raise TypeError(
            f"Expected {name} to be a dict of matplotlib's options, or None, got "
            f"{repr_of(options)}. "
            "Write {'linewidth': 2}."
        )
    artist: Any = Line2D if name == "line_kw" else PolyCollection
    no_data: list[list[float]] = [[], []] if name == "line_kw" else [[]]
    of_artist = {key: value for key, value in options.items() if key not in _OF_METHODS[name]}
    try:
        artist(*no_data, **normalize_kwargs(of_artist, artist))
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(
            f"Expected {name} to have options of matplotlib's {artist.__name__}, got "
            f"{repr_of(dict(options))} ({truncate(error)}). Correct these."
        ) from error


def with_options(
    style: dict[str, Any], options: dict[str, Any], artist: type[Artist]
) -> dict[str, Any]:
    """Default style of an artist, updated with the user's options, aliases included.

    ``artist`` is matplotlib's class, which knows aliases such as lw for linewidth; the style uses
    full names.
    """
    from matplotlib.cbook import normalize_kwargs

    return style | normalize_kwargs(options, artist)


def marked(style: dict[str, Any], values: FloatArray, few: int = 0) -> dict[str, Any]:
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
    alone = np.flatnonzero(known & ~beside).tolist()
    return {"marker": ".", "markevery": alone} | style if alone else style


def ax_and_figure(axes: list[Axes]) -> tuple[Any, Any]:
    """The axes itself if there is one, otherwise an array of them; and their (sub)figure."""
    return axes[0] if len(axes) == 1 else np.array(axes, dtype=object), axes[0].figure


def wrapped(text: str, length: int) -> str:
    """Wrap text to lines of at most ``length`` characters, keeping its line breaks."""
    return "\n".join(fill(line, length) for line in text.splitlines())


def characters_in(inches: float) -> int:
    """Number of characters of an axis label that fit into a length."""
    return max(1, int(_CHARACTERS_PER_INCH * inches))


def lay_out(figure: Figure | SubFigure) -> None:
    """Run the layout, so that the axes get their final position and size."""
    layout = figure.get_layout_engine()
    if layout is not None:
        layout.execute(figure.figure)  # the whole figure, if this is a subfigure


def _cycle() -> Cycler:
    from cycler import cycler
    from matplotlib import rcParams

    widths = [bold * rcParams["lines.linewidth"] for bold in _BOLDNESS]
    colors = [*_COLORS, rcParams["text.color"]]
    return cycler(linewidth=widths) * cycler(linestyle=_DASHES) * cycler(color=colors)
