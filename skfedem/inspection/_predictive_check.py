"""Display of a visual predictive check: quantiles of responses, and of simulated ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import rankdata

from .._error_messages import repr_of
from .._optional import check_installed
from .._parameters import check_choice, check_counts, check_number
from .._typing import FloatArray, IntArray, Seed
from ._figures import ax_and_figure, draw_legend, given_axes, new_axes, with_options
from ._population import joined, joined_column, population_model, tables_of, x_column

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PathCollection, PolyCollection
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

# Largest number of bins unless one is given.
_MOST_BINS = 12


class _Check(NamedTuple):
    """Quantiles in bins, see ``VisualPredictiveCheckDisplay``."""

    bin_centers: FloatArray
    observed_quantiles: FloatArray
    bands: FloatArray


class VisualPredictiveCheckDisplay:
    """Visual predictive check [1]_: whether responses are like those that a model simulates.

    Times are grouped in bins with about equally many responses. In each bin, lines show quantiles
    of the responses. Bands show where these quantiles are in most of the data sets that the model
    simulates with the same regressors and covariates: lines that leave their band say what the
    model misses.

    Use ``from_estimator`` to create a display. Read more in :doc:`/mixed_effects`.

    Parameters
    ----------
    x, observed : array-like of shape (n_observations,)
        Times and responses.
    bin_centers : array-like of shape (n_bins,)
        Median time of each bin.
    observed_quantiles : array-like of shape (n_quantiles, n_bins)
        Quantiles of the responses of each bin.
    bands : array-like of shape (n_quantiles, 2, n_bins)
        Lower and upper limit of each quantile over simulated data sets.
    quantiles : tuple of float, default=(0.05, 0.5, 0.95)
        The quantiles.
    level : float, default=0.9
        Share of the simulated data sets in a band.
    x_name : str, default="time"
        Label of the times.
    y_name : str, default="dv"
        Label of the responses.

    Attributes
    ----------
    figure_ : matplotlib Figure
    ax_ : matplotlib Axes
    lines_ : list of Line2D
        Quantiles of the responses.
    fill_between_ : list of PolyCollection
        Bands.
    scatter_ : PathCollection
        Responses.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, or X lacks columns or responses or has invalid values.
    NotFittedError
        If the estimator is not fitted.
    ImportError
        If matplotlib is not installed.

    See Also
    --------
    skfedem.FederatedNonlinearMixedEffects.simulate : The simulated data sets as an array.

    References
    ----------
    .. [1] N. H. G. Holford, "The visual predictive check: superiority to standard diagnostic
       (Rorschach) plots", PAGE 14, abstract 738, 2005.

    Examples
    --------
    >>> from skfedem import FederatedNonlinearMixedEffects
    >>> from skfedem.datasets import load_theophylline
    >>> from skfedem.inspection import VisualPredictiveCheckDisplay
    >>> from skfedem.pharmacokinetics import one_compartment_oral
    >>> data = load_theophylline().data
    >>> nlme = FederatedNonlinearMixedEffects(
    ...     one_compartment_oral, start={"ka": 1.0, "V": 20.0, "CL": 0.5}
    ... )
    >>> display = VisualPredictiveCheckDisplay.from_estimator(nlme.fit(data), data, random_state=0)
    >>> len(display.bin_centers)
    11
    """

    figure_: Figure
    ax_: Axes
    lines_: list[Line2D]
    fill_between_: list[PolyCollection]
    scatter_: PathCollection

    def __init__(
        self,
        *,
        x: ArrayLike,
        observed: ArrayLike,
        bin_centers: ArrayLike,
        observed_quantiles: ArrayLike,
        bands: ArrayLike,
        quantiles: tuple[float, ...] = (0.05, 0.5, 0.95),
        level: float = 0.9,
        x_name: str = "time",
        y_name: str = "dv",
    ) -> None:
        self.x = np.asarray(x, dtype=np.float64)
        self.observed = np.asarray(observed, dtype=np.float64)
        self.bin_centers = np.asarray(bin_centers, dtype=np.float64)
        self.observed_quantiles = np.asarray(observed_quantiles, dtype=np.float64)
        self.bands = np.asarray(bands, dtype=np.float64)
        self.quantiles = quantiles
        self.level = level
        self.x_name = x_name
        self.y_name = y_name

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        *,
        n_samples: int = 500,
        n_bins: int | None = None,
        quantiles: tuple[float, ...] = (0.05, 0.5, 0.95),
        level: float = 0.9,
        random_state: Seed = None,
        x: str | None = None,
        yscale: Literal["linear", "log"] = "linear",
        ax: Axes | None = None,
        line_kw: dict[str, Any] | None = None,
        fill_between_kw: dict[str, Any] | None = None,
    ) -> Self:
        """Plot quantiles of responses and of responses that a fitted population model simulates.

        Parameters
        ----------
        estimator : FederatedNonlinearMixedEffects
            Fitted model, or a fitted search for one.
        X : DataFrame or dict of array-likes, or a list of them
            Tables with the columns of the fit. Rows without a response are left out.
        n_samples : int, default=500
            Number of simulated data sets.
        n_bins : int, default=None
            Number of bins; None for the mean number of responses of a subject, but at most twelve.
        quantiles : tuple of float, default=(0.05, 0.5, 0.95)
            Quantiles of the responses in a bin.
        level : float in (0, 1), default=0.9
            Share of the simulated data sets in a band.
        random_state : int, RandomState instance or None, default=None
            Pass an int for reproducible results.
        x : str, default=None
            Column on the x axis; None for the first regressor, the time.
        yscale, ax, line_kw, fill_between_kw
            See ``plot``.

        Returns
        -------
        display : VisualPredictiveCheckDisplay

        Raises
        ------
        NotFittedError, TypeError, ValueError, ImportError
            See the class.
        """
        check_installed(f"{cls.__name__}.from_estimator", "matplotlib")
        model = population_model(estimator)
        check_number("level", level, low=0, high=1, low_open=True, high_open=True)
        if n_bins is not None:
            check_counts(n_bins=n_bins)
        _check_quantiles(quantiles)
        x, response = x_column(model, x), model._design.response
        observed = joined_column(X, response)
        known = ~np.isnan(observed)
        if not known.any():
            raise ValueError(
                f"Expected responses in column {response!r}, got none. Give a table with "
                "measurements."
            )
        at, observed = joined_column(X, x)[known], observed[known]
        if n_bins is None:
            labels = [table[model._design.subject].tolist() for table in tables_of(X)]
            n_bins = min(_MOST_BINS, round(len(observed) / sum(len(set(own)) for own in labels)))
        simulated = joined(model.simulate(X, n_samples, random_state))[:, known]
        check = _check_of(at, observed, simulated, bins_of(at, n_bins), quantiles, level)
        display = cls(
            x=at,
            observed=observed,
            **check._asdict(),
            quantiles=quantiles,
            level=level,
            x_name=x,
            y_name=response,
        )
        return display.plot(ax, yscale=yscale, line_kw=line_kw, fill_between_kw=fill_between_kw)

    def plot(
        self,
        ax: Axes | None = None,
        *,
        yscale: Literal["linear", "log"] = "linear",
        line_kw: dict[str, Any] | None = None,
        fill_between_kw: dict[str, Any] | None = None,
    ) -> Self:
        """Draw the responses, their quantiles and the bands.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on; None for a new figure.
        yscale : {"linear", "log"}, default="linear"
            Scale of the responses. A logarithmic one omits those that are not positive.
        line_kw : dict, default=None
            Keyword arguments of matplotlib's ``plot``, for the quantiles of the responses.
        fill_between_kw : dict, default=None
            Keyword arguments of matplotlib's ``fill_between``, for the bands.

        Returns
        -------
        self : VisualPredictiveCheckDisplay

        Raises
        ------
        TypeError, ValueError, ImportError
            See the class.
        """
        check_installed(f"{type(self).__name__}.plot", "matplotlib")
        from matplotlib.collections import PolyCollection
        from matplotlib.lines import Line2D

        check_choice("yscale", yscale, ("linear", "log"))
        (axis,) = new_axes(1, height=4.0) if ax is None else given_axes(ax, 1, "check")
        self.scatter_ = axis.scatter(
            self.x, self.observed, s=10, color="0.5", linewidths=0, label="observed"
        )
        self.lines_, self.fill_between_ = [], []
        middle = len(self.quantiles) // 2
        colors = ["#D55E00" if k == middle else "#0072B2" for k in range(len(self.quantiles))]
        for k, color in enumerate(colors):
            label = "simulated" if k == middle else None
            band: dict[str, Any] = {"color": color, "alpha": 0.25, "linewidth": 0, "label": label}
            band = with_options(band, fill_between_kw, PolyCollection)
            self.fill_between_.append(axis.fill_between(self.bin_centers, *self.bands[k], **band))
        for k, color in enumerate(colors):
            style: dict[str, Any] = {
                "color": color,
                "linestyle": "-" if k == middle else "--",
                "marker": ".",
            }
            style["label"] = f"{100 * self.quantiles[k]:g}% quantile"
            style = with_options(style, line_kw, Line2D)
            line = self.observed_quantiles[k]
            line = np.where(line > 0, line, np.nan) if yscale == "log" else line
            self.lines_ += axis.plot(self.bin_centers, line, **style)
        axis.set_yscale(yscale)
        axis.set(xlabel=self.x_name, ylabel=self.y_name)
        axis.grid(alpha=0.3)
        draw_legend(axis, above=ax is None)
        self.ax_, self.figure_ = ax_and_figure([axis])
        return self


def _check_quantiles(quantiles: tuple[float, ...]) -> None:
    values = np.asarray(quantiles, dtype=np.float64)
    if values.ndim != 1 or not len(values) or not ((values >= 0) & (values <= 1)).all():
        raise ValueError(
            f"Expected quantiles to be numbers from 0 to 1, got {repr_of(quantiles)}. Give some, "
            "as (0.05, 0.5, 0.95)."
        )


def bins_of(x: FloatArray, n_bins: int) -> IntArray:
    """Bin of each value: bins have about equally many, and equal values share one."""
    bins = np.floor((rankdata(x) - 0.5) / len(x) * n_bins)
    return np.unique(bins, return_inverse=True)[1]


def _check_of(
    x: FloatArray,
    observed: FloatArray,
    simulated: FloatArray,
    bins: IntArray,
    quantiles: tuple[float, ...],
    level: float,
) -> _Check:
    """Quantiles of the responses of each bin, and their bands over simulated data sets."""
    limits = (1 - level) / 2, (1 + level) / 2
    centers, lines, bands = [], [], []
    for k in range(bins.max() + 1):
        own = bins == k
        centers.append(np.median(x[own]))
        lines.append(np.quantile(observed[own], quantiles))
        bands.append(np.quantile(np.quantile(simulated[:, own], quantiles, axis=1), limits, axis=1))
    return _Check(np.array(centers), np.array(lines).T, np.array(bands).transpose(2, 1, 0))
