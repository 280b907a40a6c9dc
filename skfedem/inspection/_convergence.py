"""Display of the histories of fits."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from .._optional import check_installed
from .._parameters import check_choice
from ._common import (
    as_list,
    ax_and_figure,
    check_options,
    given_axes,
    new_axes,
)
from ._labels import mark_bits, series_label
from ._lines import add_legends, draw_curves
from ._runs import (
    X_AXES,
    Curve,
    History,
    XAxis,
    check_names,
    check_quantiles,
    checked_histories,
    evaluated,
    group_curve,
    history_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PolyCollection
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

ScaleName = Literal["auto", "linear", "log"]

_POSITIVE = ("field_sq_norm", "mean_field_sq_norm")
_INTEGERS = ("round", "n_active", "safeguarded")
# Longer labels do not fit beside one of several panels.
_LABEL_LENGTH = 32


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
        field, weights of the components, ... None: the log-likelihood (or the objective of an
        imputer) and the mean field, if all runs have them.
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
        If ``histories`` are not histories, if ``x`` is unknown, if a history lacks the column of
        ``x`` or ``y`` or their lengths differ, or if there is not one label per run.

    See Also
    --------
    ImputationDisplay : Plot of a fitted matrix.

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
        self.histories: list[Any] = checked_histories(histories)
        check_choice("x", x, X_AXES)
        if y is None:
            first = self.histories[0]
            criterion = "objective" if "objective" in first else "log_likelihood"
            usual = (criterion, "mean_field_sq_norm")
            y = [
                name
                for name in usual
                if all(np.isfinite(run.get(name, np.nan)).any() for run in self.histories)
            ]
            y = y or usual
        self.y = as_list(y)
        if not self.y:
            raise ValueError(
                f"Expected y to name at least one series, got none. The history has "
                f"{', '.join(map(repr, self.histories[0]))}."
            )
        check_names(self.histories, x, self.y)
        self.labels = None if labels is None else [str(label) for label in as_list(labels)]
        if self.labels is not None and len(self.labels) != len(self.histories):
            raise ValueError(
                f"Expected a label for each of the {len(self.histories)} runs, got "
                f"{len(self.labels)}. Runs of one setting have the same label."
            )
        self.x = x

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
        estimator : FederatedGaussianMixture or FederatedMatrixImputer
            Fitted estimator; or a fitted Pipeline that ends in one, or a fitted search for one.
        x : {"round", "epoch", "bits"}, default="round"
            See the class.
        y : str or list of str, default=None
            See the class.
        name : str, default=None
            Label of the run in the legend.
        ax, xscale, yscale, line_kw
            See ``plot``.

        Returns
        -------
        display : ConvergenceDisplay

        Raises
        ------
        NotFittedError
            If the estimator is not fitted.
        TypeError, ValueError
            If the estimator has no history, or the history lacks a requested series.
        ImportError
            If matplotlib is not installed.
        """
        check_installed(f"{cls.__name__}.from_estimator", "matplotlib")
        if isinstance(estimator, list | tuple):
            raise TypeError(
                f"Expected one fitted estimator, got a {type(estimator).__name__}. Use "
                "from_estimators for several."
            )
        display = cls([history_of(estimator)], x=x, y=y, labels=None if name is None else [name])
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
        quantiles: tuple[float, float] | None = (0.1, 0.9),
        line_kw: dict[str, Any] | None = None,
        fill_between_kw: dict[str, Any] | None = None,
    ) -> Self:
        """Plot the mean and a band of the histories of several fits, for each group.

        The mean is arithmetic, even on a logarithmic axis, where a single run far above the others
        can move it out of the band. It is drawn over the range that is common to all runs of the
        group. Runs that were evaluated at different positions are interpolated linearly, on the
        scale of the axis. The components of runs in a group are matched by their final values, in
        decreasing order, because the numbering of components differs between runs.

        Parameters
        ----------
        estimators : list of estimators
            Fitted estimators, as in ``from_estimator``.
        x : {"round", "epoch", "bits"}, default="round"
            See the class.
        y : str or list of str, default=None
            See the class.
        labels : list of str, default=None
            Label of each estimator. Estimators with the same label, such as runs of one setting
            with several seeds, form a group. None: all estimators form one group.
        ax, xscale, yscale, quantiles, line_kw, fill_between_kw
            See ``plot``.

        Returns
        -------
        display : ConvergenceDisplay

        Raises
        ------
        NotFittedError, TypeError, ValueError, ImportError
            As in ``from_estimator``.
        """
        check_installed(f"{cls.__name__}.from_estimators", "matplotlib")
        if hasattr(estimators, "fit") or not isinstance(estimators, Iterable):
            raise TypeError(
                f"Expected a list of fitted estimators, got one {type(estimators).__name__}. Use "
                "from_estimator."
            )
        if isinstance(estimators, Mapping):
            raise TypeError(
                f"Expected a list of fitted estimators, got a {type(estimators).__name__}. Give "
                "its values, and its keys as labels."
            )
        histories = [history_of(estimator) for estimator in estimators]
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
        quantiles: tuple[float, float] | None = (0.1, 0.9),
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

        Raises
        ------
        TypeError, ValueError
            If an argument is out of range, or if there is nothing to draw: the series was never
            evaluated, or has no positive value for a logarithmic axis.
        ImportError
            If matplotlib is not installed.
        """
        check_installed(f"{type(self).__name__}.plot", "matplotlib")
        check_choice("xscale", xscale, ("linear", "log"))
        check_quantiles(quantiles)
        check_options("line_kw", line_kw)
        check_options("fill_between_kw", fill_between_kw)
        scales = [
            self._checked_scale(name, scale, log_x=xscale == "log")
            for name, scale in zip(self.y, self._scales(yscale), strict=True)
        ]
        series = [
            self._curves(name, xscale == "log", scale == "log", quantiles)
            for name, scale in zip(self.y, scales, strict=True)
        ]
        if ax is None:
            axes = new_axes(len(self.y), height=1.2 + 2.3 * len(self.y))
        else:
            or_else = f", or draw one series, as with y={self.y[0]!r}"
            axes = given_axes(ax, len(self.y), "series in y", or_else)
        self.ax_, self.figure_ = ax_and_figure(axes)
        self.lines_, self.fill_between_ = {}, {}
        for name, scale, curves, axis in zip(self.y, scales, series, axes, strict=True):
            self.lines_[name], self.fill_between_[name] = draw_curves(
                axis, curves, line_kw or {}, fill_between_kw or {}
            )
            self._furnish(axis, name, xscale, scale)
        if ax is None:
            for axis in axes[:-1]:
                axis.set_xlabel("")
        add_legends(axes, self.y, series, ours=ax is None)
        return self

    def _groups(self) -> dict[str | None, list[History]]:
        """Histories by label, in the order in which the labels first appear."""
        groups: dict[str | None, list[History]] = {}
        labels = self.labels or itertools.repeat(None, len(self.histories))
        for label, history in zip(labels, self.histories, strict=True):
            groups.setdefault(label, []).append(history)
        return groups

    def _curves(
        self, name: str, log_x: bool, log_y: bool, quantiles: tuple[float, float] | None
    ) -> list[Curve]:
        """Curves of a series, one for each group."""
        return [
            group_curve(label, runs, self.x, name, log_x=log_x, log_y=log_y, quantiles=quantiles)
            for label, runs in self._groups().items()
        ]

    def _scales(self, yscale: ScaleName | Iterable[ScaleName]) -> list[ScaleName]:
        scales = as_list(yscale, len(self.y))
        if len(scales) != len(self.y):
            raise ValueError(
                f"Expected yscale to be one scale, or one for each of the {len(self.y)} series, "
                f"got {len(scales)}."
            )
        return scales

    def _checked_scale(
        self, name: str, scale: ScaleName, *, log_x: bool
    ) -> Literal["linear", "log"]:
        """Scale of a series, "linear" or "log"."""
        check_choice("yscale", scale, ("auto", "linear", "log"))
        if scale == "linear" or (scale == "auto" and name not in _POSITIVE):
            return "linear"
        runs = [evaluated(history, self.x, name, log_x=log_x) for history in self.histories]
        if any((values > 0).any() for _, values in runs):
            return "log"
        if scale == "log":
            raise ValueError(
                f"Expected positive values of {name!r} for yscale='log', got none. Use "
                "yscale='linear'."
            )
        return "linear"

    def _furnish(self, axis: Axes, name: str, xscale: str, yscale: str) -> None:
        """Labels, scales, ticks and grid of the axes of a series."""
        from matplotlib.ticker import MaxNLocator

        axis.set(
            xscale=xscale,
            yscale=yscale,
            xlabel=series_label(self.x),
            ylabel=fill(series_label(name), _LABEL_LENGTH),
        )
        for line, quantity, scale in (
            (axis.xaxis, self.x, xscale),
            (axis.yaxis, name, yscale),
        ):
            if scale == "linear" and quantity in _INTEGERS:
                line.set_major_locator(MaxNLocator(nbins="auto", integer=True, min_n_ticks=1))
            if quantity.endswith("bits"):
                mark_bits(line, scale)
        axis.grid(alpha=0.3)
