"""Display of a fitted matrix: its trend, or a heat map of its cells."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike

from .._input.matrices import as_numbers
from .._optional import check_installed
from .._parameters import check_choice, check_counts, check_number, check_switch
from .._typing import FamilyName, FloatArray, IntArray, MatricesLike
from ..models.matrix.families import FAMILIES
from ._columns import checked_labels, furnish, known_labels, place
from ._common import (
    ax_and_figure,
    check_options,
    check_text,
    last_step,
    lay_out,
)
from ._maps import draw_maps
from ._matrix import drawn
from ._trend import check_window, draw_trend

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PolyCollection, QuadMesh
    from matplotlib.colorbar import Colorbar
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

_KINDS = ("trend", "heatmap")
_ORDERS = ("total", "given")


class ImputationDisplay:
    """Trend or heat map of a matrix with missing cells that was fitted by an imputer.

    Use ``from_estimator`` to create a display. The *trend* is the sum of the fitted means over all
    rows (sites) for each column (month): the national total, as if every site had been visited. The
    effort, which is the share of observed cells, is drawn below it. The *heat map* shows the
    observed cells and the fitted means, in the same colours. If rows are grouped into bands,
    observed values are means over the observed rows of a band, but fitted values are means over all
    its rows: even if the fit is perfect, the two differ unless all rows were observed.

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
    band_observed_share : ndarray of shape (n_bands, n_columns), default=None
        Share of the rows of a band that were observed, 0 to 1. None: 1 wherever ``observed`` has a
        value.
    observed_share : ndarray of shape (n_columns,), default=None
        Share of the rows that were observed in each column, 0 to 1.
    observed_total : ndarray of shape (n_columns,), default=None
        Sum over the observed cells of each column; NaN if there are none.
    unobserved_columns : ndarray of int, default=None
        Numbers of the columns without an observed cell.
    family : {"poisson", "bernoulli", "gaussian"}, default="poisson"
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
        Maps of the observed cells and of the fitted means; with ``mark_missing``, maps of the
        fitted means of observed and of missing cells. The opacity of the former is the share of
        their band that was observed.
    colorbars_ : list of Colorbar

    Raises
    ------
    TypeError, ValueError
        If arrays have wrong shapes, if sums or fitted means are not finite, or if ``family`` or
        ``row_order`` is unknown.

    See Also
    --------
    ConvergenceDisplay : Plot of the history of a fit.
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
    (2, 'expected counts, all sites')
    >>> display = display.plot(kind="heatmap")
    >>> [axis.get_title() for axis in display.ax_]
    ['observed (grey: missing)', 'fitted mean']
    """

    figure_: Figure
    ax_: Any  # Axes, or an array of them
    lines_: list[Line2D]
    effort_: PolyCollection | None
    images_: list[QuadMesh]
    colorbars_: list[Colorbar]

    def __init__(
        self,
        *,
        trend: ArrayLike,
        fitted: ArrayLike,
        n_rows: int,
        observed: FloatArray | None = None,
        band_observed_share: FloatArray | None = None,
        observed_share: FloatArray | None = None,
        observed_total: FloatArray | None = None,
        unobserved_columns: IntArray | None = None,
        family: FamilyName = "poisson",
        column_labels: ArrayLike | None = None,
        row_order: Literal["total", "given"] = "total",
    ) -> None:
        self.trend: FloatArray = _numbers("trend", np.asanyarray(trend), (None,))
        columns = self.trend.shape
        self.fitted: FloatArray = _numbers("fitted", np.asanyarray(fitted), (None, *columns))
        bands = self.fitted.shape
        for name, means in (("trend", self.trend), ("fitted", self.fitted)):
            if not (means.size and np.isfinite(means).all()):
                raise ValueError(
                    f"Expected {name} to be finite and not empty, got shape {means.shape} with "
                    f"{means.size - np.isfinite(means).sum()} values that are not finite. Every "
                    "cell has a fitted mean; from_estimator makes these arrays."
                )
        if isinstance(n_rows, np.ndarray) and not n_rows.ndim:  # as returned by numpy.load
            n_rows = n_rows.item()
        check_number("n_rows", n_rows, kind=Integral, low=bands[0])
        self.n_rows = n_rows
        self.observed = _numbers("observed", observed, bands)
        self.band_observed_share = _numbers("band_observed_share", band_observed_share, bands)
        self.observed_share = _numbers("observed_share", observed_share, columns)
        self.observed_total = _numbers("observed_total", observed_total, columns)
        self.unobserved_columns = _numbers("unobserved_columns", unobserved_columns, (None,))
        unseen = self.unobserved_columns
        any_unseen = unseen is not None and len(unseen) > 0
        if any_unseen and not (
            unseen.dtype.kind in "iu" and np.isin(unseen, np.arange(*columns)).all()
        ):
            raise ValueError(
                "Expected unobserved_columns to be numbers of columns, integers from 0 to "
                f"{columns[0] - 1}, got {unseen} of dtype {unseen.dtype}. numpy.flatnonzero makes "
                "them of a mask."
            )
        check_choice("family", family, tuple(FAMILIES))
        self.family = family
        self.column_labels = checked_labels(column_labels, len(self.trend))
        check_choice("row_order", row_order, _ORDERS)
        self.row_order = row_order

    @classmethod
    def from_estimator(
        cls,
        imputer: Any,
        X: MatricesLike | None = None,
        *,
        kind: Literal["trend", "heatmap"] = "trend",
        row_order: Literal["total", "given"] = "total",
        max_rows: int = 300,
        column_labels: ArrayLike | None = None,
        window: int | None = None,
        yscale: Literal["linear", "log"] = "linear",
        mark_missing: bool = False,
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
            them look like 199501. In a Pipeline, the steps before the imputer lose column names,
            unless these are strings and ``set_output(transform="pandas")`` was used.
        window, yscale, mark_missing, color_scale, row_name, column_name, ax, line_kw
            See ``plot``.

        Returns
        -------
        display : ImputationDisplay

        Raises
        ------
        NotFittedError
            If the imputer is not fitted.
        TypeError, ValueError
            If `imputer` is not an imputer, if X has another shape or other names than the data of
            the fit, or if an argument is out of range.
        ImportError
            If matplotlib is not installed.
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
        data = drawn(imputer, X, row_order, max_rows)
        display = cls(
            **data,
            family=imputer._fitted_family,
            column_labels=column_labels,
            row_order=row_order,
        )
        return display.plot(
            ax,
            kind=kind,
            window=window,
            yscale=yscale,
            mark_missing=mark_missing,
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
        mark_missing: bool = False,
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
            removes the season. The moving mean ends half a window before both ends, and before gaps
            in otherwise regular columns, such as missing months or years.
        yscale : {"linear", "log"}, default="linear"
            For the trend: scale of the y axis.
        mark_missing : bool, default=False
            For the heat map: whether to draw one map of the fitted means, with missing cells in
            paler colours, instead of two maps. The fewer rows of a band were observed, the paler it
            is.
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

        Raises
        ------
        TypeError, ValueError
            If an argument is out of range, if observed cells are unknown with ``mark_missing``, or
            if there are negative values on a logarithmic scale.
        ImportError
            If matplotlib is not installed.
        """
        check_installed(f"{type(self).__name__}.plot", "matplotlib")
        check_choice("kind", kind, _KINDS)
        check_switch("mark_missing", mark_missing)
        check_options("line_kw", line_kw)
        check_text("row_name", row_name)
        if column_name is not None:
            check_text("column_name", column_name)
        columns = place(self.column_labels)
        if window is not None:
            check_window(window, columns.positions)
        if kind == "trend":
            axes, self.lines_, self.effort_ = draw_trend(
                self,
                ax,
                columns.positions,
                window=window,
                unit=column_name or "columns",
                yscale=yscale,
                row_name=row_name,
                line_kw=line_kw or {},
            )
            self.images_, self.colorbars_ = [], []
        else:
            axes, self.images_, self.colorbars_ = draw_maps(
                self,
                ax,
                columns.positions,
                mark_missing=mark_missing,
                color_scale=color_scale,
                row_name=row_name,
            )
            self.lines_, self.effort_ = [], None
        self.ax_, self.figure_ = ax_and_figure(axes)
        if column_name is None:
            column_name = "date" if columns.kind == "dates" else "columns"
        for _ in range(2):  # tick labels may shrink the axes, which leaves room for fewer ticks
            lay_out(self.figure_)  # the size of the axes limits the number of ticks
            for axis in axes:
                furnish(axis, columns, column_name)
                if ax is None:
                    axis.label_outer()
        return self


def _numbers(name: str, values: Any, shape: tuple[int | None, ...]) -> Any:
    """Convert to an array of a shape, in which None is any length; None stays None."""
    if values is None:
        return None
    try:
        array = as_numbers(values)
    except (TypeError, ValueError):  # reported below
        array = np.asarray(values)
    fits = array.ndim == len(shape) and all(
        length in (None, got) for length, got in zip(shape, array.shape, strict=True)
    )
    if array.dtype.kind not in "biuf" or not fits:
        lengths = ", ".join("any" if length is None else str(length) for length in shape)
        wanted = f"({lengths},)" if len(shape) == 1 else f"({lengths})"
        raise ValueError(
            f"Expected {name} to be numbers of shape {wanted}, got dtype {array.dtype} and shape "
            f"{array.shape}. from_estimator makes these arrays."
        )
    return array
