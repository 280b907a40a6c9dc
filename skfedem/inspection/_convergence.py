"""Display of the histories of fits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from .._optional import check_installed
from .._parameters import check_choice
from ._curves import (
    X_AXES,
    Curve,
    History,
    Quantiles,
    XAxis,
    check_histories,
    check_quantiles,
    check_series,
    evaluated,
    mean_curve,
)
from ._figures import (
    as_list,
    ax_and_figure,
    draw_legend,
    given_axes,
    last_step,
    new_axes,
    new_grid,
)
from ._lines import draw_component_legend, draw_curves, format_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PolyCollection
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

ScaleName = Literal["auto", "linear", "log"]

# Up to this number of series, one is below the other; more are in two columns.
_MOST_BELOW = 5
_SQUARED_NORMS = ("field_sq_norm", "mean_field_sq_norm")


class ConvergenceDisplay:
    """Plot of the histories of one or several fits against rounds, epochs or bits.

    Use ``from_estimator`` or ``from_estimators`` to create a display. A series is only drawn at
    rounds in which it was evaluated.

    Read more in :doc:`/plots`.

    Parameters
    ----------
    histories : dict of ndarray or DataFrame, or list of them
        ``history_`` of every run.
    x : {"round", "epoch", "bits"}, default="round"
        Quantity on the x axis: rounds; epochs, which are passes over all rows or observed cells
        (for ``partial_fit``, calls); or the bits that all clients together have sent so far,
        including one-off messages such as those of the start.
    y : str or list of str, default=None
        Names of the series to draw, each on its own axes: log-likelihoods, squared norms of the
        field, weights of the components, estimates of a population model, ... None: the
        log-likelihood (or the objective of an imputer) and the mean field, if all runs have them.
    labels : list of str, default=None
        Label of each run. Runs with the same label form a group, for which the mean and a band are
        drawn. None: all runs form one group.

    Attributes
    ----------
    figure_ : matplotlib Figure
    ax_ : matplotlib Axes, or ndarray of them
        An array if ``y`` names several series.
    lines_ : dict of list of Line2D
        Lines of each series, by its name: one per group, or one per component of each group.
    fill_between_ : dict of list of PolyCollection
        Bands of each series, likewise; a group of a single run has no band.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, if a history lacks the column of ``x`` or ``y``, or if there
        is nothing to draw: the series was never evaluated, or is not positive on a log axis.
    NotFittedError
        If an estimator is not fitted.
    ImportError
        If matplotlib is not installed.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedem import FederatedGaussianMixture
    >>> from skfedem.inspection import ConvergenceDisplay
    >>> rng = np.random.default_rng(0)
    >>> clients = [rng.normal(center, 1, size=(50, 2)) for center in (-4, 0, 4)]
    >>> gm = FederatedGaussianMixture(3, omega=1.0, random_state=0).fit(clients)
    >>> display = ConvergenceDisplay.from_estimator(gm, x="bits", y=["log_likelihood", "weights"])
    >>> [axis.get_ylabel() for axis in display.ax_]
    ['log-likelihood (nats per row)', 'weights π']
    >>> len(display.lines_["weights"])
    3
    """

    figure_: Figure
    ax_: Any  # Axes, or an array of them
    lines_: dict[str, list[Line2D]]
    fill_between_: dict[str, list[PolyCollection]]

    def __init__(
        self,
        histories: History | Iterable[History],
        *,
        x: XAxis = "round",
        y: str | Iterable[str] | None = None,
        labels: str | Iterable[str] | None = None,
    ) -> None:
        check_choice("x", x, X_AXES)
        self.histories = check_histories(histories)
        self.x = x
        self.y = _default_series(self.histories) if y is None else as_list(y)
        if not self.y:
            raise ValueError("Expected y to name at least one series, got none. Name some.")
        check_series(self.histories, x, self.y)
        self.labels = None if labels is None else [str(label) for label in as_list(labels)]
        if self.labels is not None and len(self.labels) != len(self.histories):
            raise ValueError(
                f"Expected a label for each of the {len(self.histories)} runs, got "
                f"{len(self.labels)}. Runs of one setting have the same label."
            )

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        *,
        x: XAxis = "round",
        y: str | Iterable[str] | None = None,
        name: str | None = None,
        ax: Axes | Iterable[Axes] | None = None,
        xscale: Literal["linear", "log"] = "linear",
        yscale: ScaleName | Iterable[ScaleName] = "auto",
        line_kw: dict[str, Any] | None = None,
    ) -> Self:
        """Plot the history of one fitted estimator.

        Parameters
        ----------
        estimator : estimator with ``history_``
            Fitted estimator of this package; or a fitted Pipeline that ends in one, or a fitted
            search for one.
        x, y
            See the class.
        name : str, default=None
            Label of the run in the legend.
        ax, xscale, yscale, line_kw
            See ``plot``.

        Returns
        -------
        display : ConvergenceDisplay
        """
        check_installed(f"{cls.__name__}.from_estimator", "matplotlib")
        display = cls(_history(estimator), x=x, y=y, labels=None if name is None else [name])
        return display.plot(ax, xscale=xscale, yscale=yscale, line_kw=line_kw)

    @classmethod
    def from_estimators(
        cls,
        estimators: Iterable[Any],
        *,
        x: XAxis = "round",
        y: str | Iterable[str] | None = None,
        labels: str | Iterable[str] | None = None,
        ax: Axes | Iterable[Axes] | None = None,
        xscale: Literal["linear", "log"] = "linear",
        yscale: ScaleName | Iterable[ScaleName] = "auto",
        quantiles: Quantiles | None = (0.1, 0.9),
        line_kw: dict[str, Any] | None = None,
        fill_between_kw: dict[str, Any] | None = None,
    ) -> Self:
        """Plot the mean and a band of the histories of several fits, for each group.

        The mean is arithmetic, even on a logarithmic axis, over the range that is common to all
        runs of the group. Runs that were evaluated at different positions are interpolated
        linearly, on the scale of the axis. As the numbering of components differs between runs,
        they are matched by their final values, in decreasing order.

        Parameters
        ----------
        estimators : list of estimators
            Fitted estimators, as in ``from_estimator``.
        x, y, labels
            See the class. Runs of one setting with several seeds have the same label.
        ax, xscale, yscale, quantiles, line_kw, fill_between_kw
            See ``plot``.

        Returns
        -------
        display : ConvergenceDisplay
        """
        check_installed(f"{cls.__name__}.from_estimators", "matplotlib")
        if hasattr(estimators, "fit") or isinstance(estimators, Mapping):
            raise TypeError(
                f"Expected a list of fitted estimators, got one {type(estimators).__name__}. Use "
                "from_estimator, or give the values of a dict, and its keys as labels."
            )
        histories = [_history(estimator) for estimator in estimators]
        return cls(histories, x=x, y=y, labels=labels).plot(
            ax,
            xscale=xscale,
            yscale=yscale,
            quantiles=quantiles,
            line_kw=line_kw,
            fill_between_kw=fill_between_kw,
        )

    def plot(
        self,
        ax: Axes | Iterable[Axes] | None = None,
        *,
        xscale: Literal["linear", "log"] = "linear",
        yscale: ScaleName | Iterable[ScaleName] = "auto",
        quantiles: Quantiles | None = (0.1, 0.9),
        line_kw: dict[str, Any] | None = None,
        fill_between_kw: dict[str, Any] | None = None,
    ) -> Self:
        """Draw the series.

        Parameters
        ----------
        ax : matplotlib Axes, or several, default=None
            Axes to draw on, one for each series. None: a new figure, with one series below the
            other.
        xscale : {"linear", "log"}, default="linear"
            Scale of the x axis. A logarithmic axis omits points at 0, such as round 0.
        yscale : {"auto", "linear", "log"} or list of them, default="auto"
            Scale of the y axis, for all series or for each. "auto" is logarithmic for squared
            norms. A logarithmic axis omits values that are not positive.
        quantiles : tuple of two float, or None, default=(0.1, 0.9)
            Quantiles of the runs of a group between which the band is drawn; None for no band.
        line_kw : dict, default=None
            Keyword arguments of matplotlib's ``plot``, for all lines.
        fill_between_kw : dict, default=None
            Keyword arguments of matplotlib's ``fill_between``, for all bands.

        Returns
        -------
        self : ConvergenceDisplay
        """
        check_installed(f"{type(self).__name__}.plot", "matplotlib")
        check_choice("xscale", xscale, ("linear", "log"))
        check_quantiles(quantiles)
        log_x = xscale == "log"
        scales = self._scales(yscale, log_x=log_x)
        series = [
            self._curves(name, log_x=log_x, log_y=scale == "log", quantiles=quantiles)
            for name, scale in zip(self.y, scales, strict=True)
        ]
        if ax is None and len(self.y) > _MOST_BELOW:
            axes = new_grid(len(self.y), 2, panel=(3.6, 1.7), sharex=True)
        elif ax is None:
            axes = new_axes(len(self.y), height=1.2 + 2.3 * len(self.y))
        else:
            axes = given_axes(ax, len(self.y), "series in y")
        self.ax_, self.figure_ = ax_and_figure(axes)
        self.lines_, self.fill_between_ = {}, {}
        for name, scale, curves, axis in zip(self.y, scales, series, axes, strict=True):
            self.lines_[name], self.fill_between_[name] = draw_curves(
                axis, curves, line_kw, fill_between_kw
            )
            axis.set(xscale=xscale, yscale=scale)
            format_axis(axis.xaxis, self.x, xscale)
            format_axis(axis.yaxis, name, scale)
            axis.grid(alpha=0.3)
        if ax is None:
            for axis in axes[: -2 if len(axes) > _MOST_BELOW else -1]:
                axis.set_xlabel("")
        self._add_legends(axes, series, is_new=ax is None)
        return self

    def _scales(
        self, yscale: ScaleName | Iterable[ScaleName], *, log_x: bool
    ) -> list[Literal["linear", "log"]]:
        """Scale of each series, "linear" or "log"."""
        scales = as_list(yscale, len(self.y))
        if len(scales) != len(self.y):
            raise ValueError(
                f"Expected yscale to be one scale, or one for each of the {len(self.y)} series, "
                f"got {len(scales)}."
            )
        chosen: list[Literal["linear", "log"]] = []
        for name, scale in zip(self.y, scales, strict=True):
            check_choice("yscale", scale, ("auto", "linear", "log"))
            runs = [evaluated(history, self.x, name, log_x=log_x) for history in self.histories]
            is_positive = any((values > 0).any() for _, values in runs)
            if scale == "log" and not is_positive:
                raise ValueError(
                    f"Expected positive values of {name!r} for yscale='log', got none. Use "
                    "yscale='linear'."
                )
            is_log = scale == "log" or (scale == "auto" and name in _SQUARED_NORMS and is_positive)
            chosen.append("log" if is_log else "linear")
        return chosen

    def _curves(
        self, name: str, *, log_x: bool, log_y: bool, quantiles: Quantiles | None
    ) -> list[Curve]:
        """Curves of a series, one for each group, in the order in which labels first appear."""
        groups: dict[str | None, list[History]] = {}
        labels: list[Any] = self.labels or [None] * len(self.histories)
        for label, history in zip(labels, self.histories, strict=True):
            groups.setdefault(label, []).append(history)
        return [
            mean_curve(label, runs, self.x, name, log_x=log_x, log_y=log_y, quantiles=quantiles)
            for label, runs in groups.items()
        ]

    def _add_legends(self, axes: list[Axes], series: list[list[Curve]], *, is_new: bool) -> None:
        """Draw legends of components, and one of the groups, or one on each of the user's axes."""
        is_drawn = False
        for axis, name, curves in zip(axes, self.y, series, strict=True):
            if not axis.get_legend_handles_labels()[1]:
                continue
            if len(curves) == 1 and np.ndim(self.histories[0][name]) > 1:
                draw_component_legend(axis, name)
            elif not (is_new and is_drawn):
                draw_legend(axis, above=is_new)
                is_drawn = True


def _history(estimator: Any) -> History:
    """``history_`` of a fitted estimator, possibly in a pipeline or search."""
    estimator, _ = last_step(estimator)
    if not hasattr(estimator, "history_"):
        raise TypeError(
            "Expected an estimator with history_, such as a FederatedGaussianMixture, or a "
            f"Pipeline that ends in one, got {type(estimator).__name__}."
        )
    return estimator.history_


def _default_series(histories: list[History]) -> list[str]:
    """The criterion and the mean field, if all runs have them."""
    criterion = "objective" if "objective" in histories[0] else "log_likelihood"
    usual = [criterion, "mean_field_sq_norm"]
    known = [
        name for name in usual if all(np.isfinite(run.get(name, np.nan)).any() for run in histories)
    ]
    return known or usual
