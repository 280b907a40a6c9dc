"""What all displays share: estimators behind pipelines, axes, and options of artists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from textwrap import fill
from typing import Any

import numpy as np
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

# Okabe and Ito's colours, which people who see red and green alike can tell apart; yellow, too pale
# for a line, is left out. Their black is the colour of text, white in dark styles. After the last
# colour, they come again with other dashes.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_DASHES = ("-", "--", ":", "-.")
# After the last dashes, they come again bolder.
_BOLDNESS = (1, 2)
_CHARACTERS_PER_INCH = 14
# Options that plot and fill_between take themselves, and no line and no band.
_OF_METHODS = {
    "line_kw": ("scalex", "scaley", "data", "xunits", "yunits"),
    "fill_between_kw": ("where", "interpolate", "step", "data", "xunits", "yunits"),
}
_WIDTH = 6.4  # inches, matplotlib's own: 640 pixels


def last_step(estimator, X=None):
    """Fitted estimator at the end of pipelines and searches, and the data that reach it.

    Parameters
    ----------
    estimator : estimator, Pipeline, search with ``best_estimator_``, or one of these frozen
    X : object, default=None
        What the whole was fitted to.

    Returns
    -------
    estimator : estimator
    X : object
        X as the earlier steps of pipelines transform it; None stays None.

    Raises
    ------
    NotFittedError
    TypeError
        If this is no estimator, or a search without ``best_estimator_``.
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
        else:
            check_is_fitted(estimator)
            return estimator, X


def new_axes(n_axes, *, height, beside=False, **options):
    """Axes of a new figure, one above the other, or beside each other; a list."""
    import matplotlib.pyplot as plt

    n_rows, n_columns = (1, n_axes) if beside else (n_axes, 1)
    _, axes = plt.subplots(
        n_rows,
        n_columns,
        figsize=(_WIDTH, height),
        layout="constrained",
        squeeze=False,
        **options,
    )
    for axis in axes.flat:
        axis.set_prop_cycle(_cycle())
    return list(axes.flat)


def given_axes(ax, n_axes, what):
    """Axes that the user gave, as a list.

    Raises
    ------
    TypeError, ValueError
        If these are not axes, or not one for each ``what`` that is drawn.
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
            "that many, or ax=None for a new figure."
        )
    return axes


def as_list(value, times=1):
    """Several things as a list; a single one, such as a string, ``times`` times."""
    several = isinstance(value, Iterable) and not isinstance(value, str)
    return list(value) if several else [value] * times


def check_text(name, value):
    """Raise if what is to be written is not a string."""
    if not isinstance(value, str):
        raise TypeError(
            f"Expected {name} to be a string, got {value!r} of type {type(value).__name__}. Give "
            "what to write, in the plural, as 'sites'."
        )


def check_options(name, options):
    """Raise for options that a line or a band of matplotlib does not have; None is none.

    So do most values that it refuses. This is done before a figure is made: matplotlib would leave
    it half drawn.
    """
    from matplotlib.cbook import normalize_kwargs
    from matplotlib.collections import PolyCollection
    from matplotlib.lines import Line2D

    if options is None:
        return
    if not isinstance(options, Mapping):
        raise TypeError(
            f"Expected {name} to be a dict of matplotlib's options, or None, got {options!r}. "
            "Write {'linewidth': 2}."
        )
    artist: Any = Line2D if name == "line_kw" else PolyCollection
    no_data: list[list] = [[], []] if name == "line_kw" else [[]]
    of_artist = {key: value for key, value in options.items() if key not in _OF_METHODS[name]}
    try:
        artist(*no_data, **normalize_kwargs(of_artist, artist))
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(
            f"Expected {name} to have options of matplotlib's {artist.__name__}, got "
            f"{dict(options)!r} ({error}). Correct these."
        ) from error


def with_options(style, options, artist):
    """Our style of an artist, overruled by the user's options under any of their names.

    The artist, matplotlib's class of what is drawn, knows aliases such as lw for linewidth; the
    style has full names.
    """
    from matplotlib.cbook import normalize_kwargs

    return style | normalize_kwargs(options, artist)


def isolated(values):
    """Indices of numbers between NaNs, which no line reaches; a list."""
    known = np.isfinite(values)
    beside = np.append(known[1:], False) | np.append(False, known[:-1])
    return np.flatnonzero(known & ~beside).tolist()


def one_or_all(axes):
    """The only one of some axes, or all of them as an array."""
    return axes[0] if len(axes) == 1 else np.array(axes, dtype=object)


def wrapped(text, length):
    """Text in lines of at most so many characters; its own line breaks stay."""
    return "\n".join(fill(line, length) for line in text.splitlines())


def characters_in(inches):
    """How many characters of an axis' label there is room for."""
    return max(1, int(_CHARACTERS_PER_INCH * inches))


def lay_out(figure):
    """Move the axes to the places where they will be drawn."""
    layout = figure.get_layout_engine()
    if layout is not None:
        layout.execute(figure.figure)  # the whole one, where this is a part of it


def _cycle():
    from cycler import cycler
    from matplotlib import rcParams

    widths = [bold * rcParams["lines.linewidth"] for bold in _BOLDNESS]
    colors = [*_COLORS, rcParams["text.color"]]
    return cycler(linewidth=widths) * cycler(linestyle=_DASHES) * cycler(color=colors)
