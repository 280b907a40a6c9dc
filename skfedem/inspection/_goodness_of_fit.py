"""Display of the predictions and the residuals of a population model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike

from .._optional import check_installed
from .._parameters import check_choice
from .._typing import FloatArray
from ._figures import ax_and_figure, given_axes, new_axes, new_grid, with_options
from ._population import LEVELS, joined, joined_column, population_model, x_column

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PathCollection
    from matplotlib.figure import Figure

_KINDS = ("predictions", "residuals")
# Quantile of the standard normal distribution: one in twenty residuals lies outside.
_NORMAL_975 = 1.96


class GoodnessOfFitDisplay:
    """Observed against predicted responses of a population model, or its weighted residuals.

    Use ``from_estimator`` to create a display. *Predictions* are those of the population and those
    at the individual parameters: responses should scatter around the line of identity. *Residuals*
    are weighted, see :meth:`~skfedem.FederatedNonlinearMixedEffects.residuals`, and drawn against
    time and against the prediction: nineteen in twenty should be within the dashed lines, whatever
    the time and the prediction.

    Read more in :doc:`/mixed_effects`.

    Parameters
    ----------
    x : array-like of shape (n_observations,)
        Time of each response.
    observed : array-like of shape (n_observations,)
        Responses.
    predictions : dict of array-like of shape (n_observations,)
        Predictions, with the keys "population" and "individual".
    residuals : dict of array-like of shape (n_observations,)
        Weighted residuals, with the same keys.
    x_name : str, default="time"
        Label of the times.
    y_name : str, default="dv"
        Label of the responses.

    Attributes
    ----------
    figure_ : matplotlib Figure
    ax_ : ndarray of matplotlib Axes
        Two for predictions, population first; four for residuals, those of the population first,
        against time and against the prediction.
    scatter_ : list of PathCollection
        Points on each of the axes.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, or X lacks columns or has invalid values.
    NotFittedError
        If the estimator is not fitted.
    ImportError
        If matplotlib is not installed.

    See Also
    --------
    IndividualFitDisplay : Curves of single subjects.
    VisualPredictiveCheckDisplay : Quantiles of responses, and of simulated ones.

    Examples
    --------
    >>> from skfedem import FederatedNonlinearMixedEffects
    >>> from skfedem.datasets import load_theophylline
    >>> from skfedem.inspection import GoodnessOfFitDisplay
    >>> from skfedem.pharmacokinetics import one_compartment_oral
    >>> data = load_theophylline().data
    >>> nlme = FederatedNonlinearMixedEffects(
    ...     one_compartment_oral, start={"ka": 1.0, "V": 20.0, "CL": 0.5}
    ... )
    >>> display = GoodnessOfFitDisplay.from_estimator(nlme.fit(data), data)
    >>> [axis.get_xlabel() for axis in display.ax_]
    ['population prediction', 'individual prediction']
    >>> display = display.plot(kind="residuals")
    """

    figure_: Figure
    ax_: Any
    scatter_: list[PathCollection]

    def __init__(
        self,
        *,
        x: ArrayLike,
        observed: ArrayLike,
        predictions: Mapping[str, ArrayLike],
        residuals: Mapping[str, ArrayLike],
        x_name: str = "time",
        y_name: str = "dv",
    ) -> None:
        self.x = np.asarray(x, dtype=np.float64)
        self.observed = np.asarray(observed, dtype=np.float64)
        self.predictions = _of_levels("predictions", predictions, self.observed)
        self.residuals = _of_levels("residuals", residuals, self.observed)
        self.x_name = x_name
        self.y_name = y_name

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        *,
        kind: Literal["predictions", "residuals"] = "predictions",
        x: str | None = None,
        scale: Literal["linear", "log"] = "linear",
        ax: Iterable[Axes] | None = None,
        scatter_kw: dict[str, Any] | None = None,
    ) -> Self:
        """Plot the predictions or the residuals of a fitted population model.

        Parameters
        ----------
        estimator : FederatedNonlinearMixedEffects
            Fitted model, or a fitted search for one.
        X : DataFrame or dict of array-likes, or a list of them
            Tables with the columns of the fit. Rows without a response are left out.
        kind : {"predictions", "residuals"}, default="predictions"
            What to draw, see the class.
        x : str, default=None
            Column against which residuals are drawn; None for the first regressor, the time.
        scale, ax, scatter_kw
            See ``plot``.

        Returns
        -------
        display : GoodnessOfFitDisplay

        Raises
        ------
        NotFittedError, TypeError, ValueError, ImportError
            See the class.
        """
        check_installed(f"{cls.__name__}.from_estimator", "matplotlib")
        model = population_model(estimator)
        x, response = x_column(model, x), model._design.response
        observed = joined_column(X, response)
        known = ~np.isnan(observed)
        tables = model.residuals(X)
        each = tables if isinstance(tables, tuple) else (tables,)
        display = cls(
            x=joined_column(X, x)[known],
            observed=observed[known],
            predictions={level: joined(model.predict(X, level))[known] for level in LEVELS},
            residuals={
                level: np.concatenate([np.asarray(table[level]) for table in each])[known]
                for level in LEVELS
            },
            x_name=x,
            y_name=response,
        )
        return display.plot(ax, kind=kind, scale=scale, scatter_kw=scatter_kw)

    def plot(
        self,
        ax: Iterable[Axes] | None = None,
        *,
        kind: Literal["predictions", "residuals"] = "predictions",
        scale: Literal["linear", "log"] = "linear",
        scatter_kw: dict[str, Any] | None = None,
    ) -> Self:
        """Draw the predictions or the residuals.

        Parameters
        ----------
        ax : two or four matplotlib Axes, default=None
            Axes to draw on, see ``ax_``; None for a new figure.
        kind : {"predictions", "residuals"}, default="predictions"
            What to draw, see the class.
        scale : {"linear", "log"}, default="linear"
            Scale of responses and predictions. A logarithmic one omits those that are not positive.
        scatter_kw : dict, default=None
            Keyword arguments of matplotlib's ``scatter``, for all points.

        Returns
        -------
        self : GoodnessOfFitDisplay

        Raises
        ------
        TypeError, ValueError, ImportError
            See the class.
        """
        check_installed(f"{type(self).__name__}.plot", "matplotlib")
        check_choice("kind", kind, _KINDS)
        check_choice("scale", scale, ("linear", "log"))
        if kind == "predictions":
            if ax is None:
                axes = new_axes(2, height=3.5, beside=True, sharey=True)
            else:
                axes = given_axes(ax, 2, "level")
            self.scatter_ = [
                self._draw_predictions(axis, level, scale, scatter_kw)
                for axis, level in zip(axes, LEVELS, strict=True)
            ]
        else:
            if ax is None:
                axes = new_grid(4, 2, panel=(3.2, 2.5))
            else:
                axes = given_axes(ax, 4, "level, against time and prediction")
            self.scatter_ = []
            for level, own in zip(LEVELS, (axes[:2], axes[2:]), strict=True):
                self.scatter_ += self._draw_residuals(own, level, scale, scatter_kw)
        self.ax_, self.figure_ = ax_and_figure(axes)
        return self

    def _draw_predictions(
        self, axis: Axes, level: str, scale: str, scatter_kw: dict[str, Any] | None
    ) -> PathCollection:
        predicted = self.predictions[level]
        points = _scatter(axis, predicted, self.observed, scatter_kw)
        drawn = np.stack([predicted, self.observed])
        drawn = drawn[:, (drawn > 0).all(axis=0)] if scale == "log" else drawn
        ends = [drawn.min(initial=np.inf), drawn.max(initial=-np.inf)]
        axis.plot(ends, ends, color="0.4", linewidth=1, zorder=1)
        if scale == "log":
            axis.set_xscale("log", nonpositive="mask")
            axis.set_yscale("log", nonpositive="mask")
        axis.set(xlabel=f"{level} prediction", ylabel=f"observed {self.y_name}")
        if level == "individual":
            axis.label_outer()
        axis.grid(alpha=0.3)
        return points

    def _draw_residuals(
        self, axes: list[Axes], level: str, scale: str, scatter_kw: dict[str, Any] | None
    ) -> list[PathCollection]:
        residuals, predicted = self.residuals[level], self.predictions[level]
        points = [
            _scatter(axis, values, residuals, scatter_kw)
            for axis, values in zip(axes, (self.x, predicted), strict=True)
        ]
        for axis in axes:
            axis.axhline(0, color="0.4", linewidth=1, zorder=1)
            for bound in (-_NORMAL_975, _NORMAL_975):
                axis.axhline(bound, color="0.4", linewidth=1, linestyle="--", zorder=1)
            axis.grid(alpha=0.3)
        axes[0].set(xlabel=self.x_name, ylabel=f"{level} residual")
        axes[1].set(xlabel=f"{level} prediction")
        if scale == "log":
            axes[1].set_xscale("log", nonpositive="mask")
        return points


def _of_levels(
    name: str, given: Mapping[str, ArrayLike], observed: FloatArray
) -> dict[str, FloatArray]:
    """Arrays by level; raise ValueError unless both have the shape of the responses."""
    arrays: dict[str, FloatArray] = {
        level: np.asarray(given.get(level, ()), dtype=np.float64) for level in LEVELS
    }
    shapes = [values.shape for values in arrays.values()]
    if observed.ndim != 1 or shapes != [observed.shape] * 2:
        raise ValueError(
            f"Expected {name} of both levels with the shape of the responses, {observed.shape}, "
            f"got the shapes {shapes}."
        )
    return arrays


def _scatter(
    axis: Axes, x: FloatArray, y: FloatArray, scatter_kw: dict[str, Any] | None
) -> PathCollection:
    from matplotlib.collections import PathCollection

    style: dict[str, Any] = {"s": 14, "alpha": 0.7, "linewidths": 0}
    if "c" not in (scatter_kw or {}):
        style["color"] = "#0072B2"
    return axis.scatter(x, y, **with_options(style, scatter_kw, PathCollection))
