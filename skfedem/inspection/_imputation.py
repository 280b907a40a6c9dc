"""Display of a fitted matrix: its trend, or a heat map of its cells."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import check_array

from .._optional import check_installed
from .._parameters import check_choice, check_counts, check_number
from .._typing import FamilyName, FloatArray, IntArray, MatricesLike
from ._columns import check_column_labels, format_columns, locate_columns
from ._figures import as_list, ax_and_figure, draw_legend, given_axes, last_step, new_axes
from ._heatmap import add_colorbar, color_norm, draw_map, is_log_scale, row_label
from ._matrix import band_edges, known_labels, matrix_summary
from ._trend import (
    check_window,
    draw_effort,
    draw_observed_total,
    draw_trend,
    format_trend,
    mark_unobserved,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PolyCollection, QuadMesh
    from matplotlib.colorbar import Colorbar
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

_KINDS = ("trend", "heatmap")
_ORDERS = ("total", "given")


class ImputationDisplay:
    r"""Trend or heat map of a matrix with missing cells that was fitted by an imputer.

    Use ``from_estimator`` to create a display. The *trend* is the sum of the fitted means over all
    rows (sites) for each column (month): the national total, as if every site had been visited. The
    effort, which is the share of observed cells, is drawn below it. The *heat map* shows the
    observed cells and the fitted means, in the same colours. If rows are grouped into bands,
    observed values are means over the observed rows of a band, fitted values over all its rows.

    Read more in :doc:`/plots`.

    Parameters
    ----------
    trend : ndarray of shape (n_columns,)
        Sum of the fitted means over all rows.
    fitted : ndarray of shape (n_bands, n_columns)
        Fitted means; averaged over bands of neighbouring rows if there are fewer bands than rows.
    n_rows : int
        Number of rows of the matrix.
    observed : ndarray of shape (n_bands, n_columns), default=None
        Means of the observed cells, NaN if there are none. None if unknown.
    observed_share : ndarray of shape (n_columns,), default=None
        Share of the rows that were observed in each column, 0 to 1.
    observed_total : ndarray of shape (n_columns,), default=None
        Sum over the observed cells of each column; NaN if there are none.
    unobserved_columns : ndarray of int, default=None
        Numbers of the columns without an observed cell.
    family : {"poisson", "negative_binomial", "bernoulli", "gaussian"}, default="poisson"
        Distribution of a cell.
    column_labels : array-like of shape (n_columns,), default=None
        Dates, numbers or names of the columns; None numbers them from 0.
    row_order : {"total", "given"}, default="total"
        Order of the rows of ``fitted`` and ``observed``, for the label of the axis.

    Attributes
    ----------
    figure_ : matplotlib Figure
    ax_ : matplotlib Axes, or ndarray of two
    lines_ : list of Line2D
        Lines of the trend: the fitted total, and its moving mean if requested.
    effort_ : PolyCollection or None
        The share of observed cells, below the trend.
    images_ : list of QuadMesh
        Maps of the observed cells, if they are known, and of the fitted means.
    colorbar_ : Colorbar or None

    Raises
    ------
    TypeError, ValueError
        If arrays have wrong shapes or are not finite, if X is not like the data of the fit, if an
        argument is out of range, or if there are negative values on a logarithmic scale.
    NotFittedError
        If the imputer is not fitted.
    ImportError
        If matplotlib is not installed.

    See Also
    --------
    skfedem.FederatedMatrixImputer.fitted_mean : The fitted means as an array.

    Examples
    --------
    >>> from skfedem import FederatedMatrixImputer
    >>> from skfedem.datasets import make_site_counts
    >>> from skfedem.inspection import ImputationDisplay
    >>> counts = make_site_counts(40, 36, n_clients=4, observed=0.4, random_state=0)
    >>> imputer = FederatedMatrixImputer(family="poisson", penalty=10.0, random_state=0)
    >>> imputer = imputer.fit(counts.clients, shape=counts.shape)
    >>> display = ImputationDisplay.from_estimator(imputer, counts.clients, row_name="sites")
    >>> len(display.ax_), display.ax_[0].get_ylabel()
    (2, 'expected counts,\nall sites')
    >>> display = display.plot(kind="heatmap")
    >>> [axis.get_title() for axis in display.ax_]
    ['observed (grey: missing)', 'fitted mean']
    """

    figure_: Figure
    ax_: Any  # Axes, or an array of them
    lines_: list[Line2D]
    effort_: PolyCollection | None
    images_: list[QuadMesh]
    colorbar_: Colorbar | None

    def __init__(
        self,
        *,
        trend: ArrayLike,
        fitted: ArrayLike,
        n_rows: int,
        observed: FloatArray | None = None,
        observed_share: FloatArray | None = None,
        observed_total: FloatArray | None = None,
        unobserved_columns: IntArray | None = None,
        family: FamilyName = "poisson",
        column_labels: ArrayLike | None = None,
        row_order: Literal["total", "given"] = "total",
    ) -> None:
        self.fitted = check_array(fitted, dtype=np.float64, input_name="fitted")
        cells = self.fitted.shape
        columns = cells[1:]
        self.trend = check_array(trend, dtype=np.float64, ensure_2d=False, input_name="trend")
        if self.trend.shape != columns:
            raise ValueError(f"Expected trend to have shape {columns}, got {self.trend.shape}.")
        check_number("n_rows", n_rows, kind=Integral, low=cells[0])
        self.n_rows = n_rows
        self.observed = _check_values("observed", observed, cells)
        self.observed_share = _check_values("observed_share", observed_share, columns)
        self.observed_total = _check_values("observed_total", observed_total, columns)
        self.unobserved_columns = np.array(
            [] if unobserved_columns is None else unobserved_columns, dtype=np.intp
        )
        check_choice("family", family, get_args(FamilyName))
        self.family = family
        self.column_labels = check_column_labels(column_labels, cells[1])
        check_choice("row_order", row_order, _ORDERS)
        self.row_order = row_order

    @classmethod
    def from_estimator(
        cls,
        imputer: Any,
        X: MatricesLike | None = None,
        *,
        offset: MatricesLike | None = None,
        kind: Literal["trend", "heatmap"] = "trend",
        row_order: Literal["total", "given"] = "total",
        max_rows: int = 300,
        column_labels: ArrayLike | None = None,
        window: int | None = None,
        yscale: Literal["linear", "log"] = "linear",
        color_scale: Literal["auto", "linear", "log"] = "auto",
        row_name: str = "rows",
        column_name: str | None = None,
        ax: Axes | Iterable[Axes] | None = None,
        line_kw: dict[str, Any] | None = None,
    ) -> Self:
        """Plot the matrix that an imputer has fitted.

        Parameters
        ----------
        imputer : FederatedMatrixImputer
            Fitted imputer; or a fitted Pipeline that ends in one, or a fitted search for one.
        X : list of clients, or array-like of shape (n_rows, n_columns), default=None
            Data that the imputer was fitted to. None: observed cells are not drawn.
        offset : list of array-likes, or array-like, default=None
            Offset of the fit, if it had one. All cells are drawn for one unit of effort.
        kind : {"trend", "heatmap"}, default="trend"
            What to draw, see the class.
        row_order : {"total", "given"}, default="total"
            Order of the rows in the heat map: by decreasing sum of their fitted means, or as given.
        max_rows : int, default=300
            Maximum number of lines in the heat map. If there are more rows, neighbouring rows are
            averaged in bands; see the class.
        column_labels : array-like of shape (n_columns,), default=None
            Dates, numbers or names of the columns. None: the column names of X or, if it has none,
            those of the fit. Text like 1995-01 is read as a date, and so are integers if all of
            them look like 199501.
        window, yscale, color_scale, row_name, column_name, ax, line_kw
            See ``plot``.

        Returns
        -------
        display : ImputationDisplay
        """
        check_installed(f"{cls.__name__}.from_estimator", "matplotlib")
        imputer, X = last_step(imputer, X)
        if not hasattr(imputer, "fitted_mean"):
            raise TypeError(
                "Expected a FederatedMatrixImputer, or a Pipeline that ends in one, got "
                f"{type(imputer).__name__}."
            )
        check_choice("row_order", row_order, _ORDERS)
        check_counts(max_rows=max_rows)
        if column_labels is None:
            column_labels = known_labels(imputer, X)
        display = cls(
            **matrix_summary(imputer, X, row_order, max_rows, offset),
            family=imputer._fitted_family,
            column_labels=column_labels,
            row_order=row_order,
        )
        return display.plot(
            ax,
            kind=kind,
            window=window,
            yscale=yscale,
            color_scale=color_scale,
            row_name=row_name,
            column_name=column_name,
            line_kw=line_kw,
        )

    def plot(
        self,
        ax: Axes | Iterable[Axes] | None = None,
        *,
        kind: Literal["trend", "heatmap"] = "trend",
        window: int | None = None,
        yscale: Literal["linear", "log"] = "linear",
        color_scale: Literal["auto", "linear", "log"] = "auto",
        row_name: str = "rows",
        column_name: str | None = None,
        line_kw: dict[str, Any] | None = None,
    ) -> Self:
        """Draw the trend or the heat map.

        Parameters
        ----------
        ax : matplotlib Axes, or two of them, default=None
            Axes to draw on; None for a new figure. The trend takes one, or two with the effort on
            the second; the heat map takes one for each of its maps.
        kind : {"trend", "heatmap"}, default="trend"
            What to draw, see the class.
        window : int, default=None
            For the trend: number of columns in a moving mean that is drawn on top; with months, 12
            removes the season. It ends half a window before both ends and before missing months.
        yscale : {"linear", "log"}, default="linear"
            For the trend: scale of the y axis.
        color_scale : {"auto", "linear", "log"}, default="auto"
            For the heat map: scale of the colours. "log" is log(1 + value), which includes zeros;
            "auto" is "log" for counts.
        row_name : str, default="rows"
            What the rows are, in the plural and for the labels, such as "sites".
        column_name : str, default=None
            What the columns are, likewise, such as "months". None: "date" for dates, otherwise
            "columns".
        line_kw : dict, default=None
            Keyword arguments of matplotlib's ``plot``, for the line of the trend.

        Returns
        -------
        self : ImputationDisplay
        """
        check_installed(f"{type(self).__name__}.plot", "matplotlib")
        check_choice("kind", kind, _KINDS)
        check_choice("yscale", yscale, ("linear", "log"))
        check_choice("color_scale", color_scale, ("auto", "linear", "log"))
        columns = locate_columns(self.column_labels)
        if window is not None:
            check_window(window, columns.positions)
        self.lines_, self.effort_, self.images_, self.colorbar_ = [], None, [], None
        if kind == "trend":
            axes = self._plot_trend(
                ax,
                columns.positions,
                window=window,
                unit=column_name or "columns",
                yscale=yscale,
                row_name=row_name,
                line_kw=line_kw,
            )
        else:
            is_log = is_log_scale(color_scale, self.family)
            axes = self._plot_heatmap(ax, columns.positions, is_log=is_log, row_name=row_name)
        self.ax_, self.figure_ = ax_and_figure(axes)
        if column_name is None:
            column_name = "date" if columns.kind == "dates" else "columns"
        for axis in axes:
            format_columns(axis, columns, column_name)
            if ax is None:
                axis.label_outer()
        return self

    def _plot_trend(
        self,
        ax: Axes | Iterable[Axes] | None,
        positions: FloatArray,
        *,
        window: int | None,
        unit: str,
        yscale: Literal["linear", "log"],
        row_name: str,
        line_kw: dict[str, Any] | None,
    ) -> list[Axes]:
        """Draw the trend, and the effort below it if there are axes for it."""
        if yscale == "log" and not (self.trend > 0).all():
            raise ValueError(
                f"Expected positive sums over {row_name} for yscale='log', got "
                f"{self.trend.min():.3g}. Use yscale='linear'."
            )
        trend, total, unobserved = self.trend, self.observed_total, self.unobserved_columns
        share = self.observed_share
        if ax is not None:
            axes = given_axes(ax, 2 if share is not None and len(as_list(ax)) > 1 else 1, "panel")
        elif share is not None:
            axes = new_axes(2, height=4.8, gridspec_kw={"height_ratios": (5, 2)})
        else:
            axes = new_axes(1, height=3.6)
        self.lines_ = draw_trend(
            axes[0], positions, trend, window=window, unit=unit, line_kw=line_kw
        )
        # Not for measurements: if they are far from 0, their sum mainly reflects their number.
        if total is not None and self.family != "gaussian":
            draw_observed_total(axes[0], positions, total, row_name)
        if len(unobserved):
            mark_unobserved(axes[0], positions[unobserved], trend[unobserved])
        format_trend(axes[0], self.family, yscale, row_name)
        if share is not None and len(axes) > 1:
            self.effort_ = draw_effort(axes[1], positions, share, row_name)
        if len(axes[0].lines) > 1:
            draw_legend(axes[0], above=ax is None)
        return axes

    def _plot_heatmap(
        self,
        ax: Axes | Iterable[Axes] | None,
        positions: FloatArray,
        *,
        is_log: bool,
        row_name: str,
    ) -> list[Axes]:
        """Draw maps of the observed cells, if they are known, and of the fitted means."""
        has_bands = len(self.fitted) < self.n_rows
        maps = {"fitted mean over all" if has_bands else "fitted mean": self.fitted}
        if self.observed is not None:
            title = "mean over observed (grey: none)" if has_bands else "observed (grey: missing)"
            maps = {title: self.observed} | maps
        norm = color_norm(list(maps.values()), self.family, is_log=is_log)
        if ax is not None:
            axes = given_axes(ax, len(maps), "map")
        else:  # many columns need the full width, many rows the full height
            beside = self.fitted.shape[0] > self.fitted.shape[1]
            height = 4.2 if beside or len(maps) == 1 else 5.6
            axes = new_axes(len(maps), height=height, beside=beside, sharey=True)
        # Cells of row k are centred at k.
        rows: FloatArray = band_edges(self.n_rows, len(self.fitted)).astype(np.float64) - 0.5
        for axis, (title, values) in zip(axes, maps.items(), strict=True):
            self.images_.append(draw_map(axis, positions, rows, values, norm))
            axis.set_title(title, fontsize="medium")
            axis.set_ylabel(row_label(row_name, rows, self.row_order))
        self.colorbar_ = add_colorbar(self.images_[-1], axes, self.family, is_log=is_log)
        return axes


def _check_values(name: str, values: Any, shape: tuple[int, ...]) -> FloatArray | None:
    """Float array of a shape, which may hold NaN; None stays None."""
    if values is None:
        return None
    array = check_array(
        values, dtype=np.float64, ensure_2d=False, ensure_all_finite="allow-nan", input_name=name
    )
    if array.shape != shape:
        raise ValueError(f"Expected {name} to have shape {shape}, got {array.shape}.")
    return array
