"""Display of the fits of a population model to single subjects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np

from .._data.long_tables import Columns, numbers
from .._error_messages import repr_of
from .._mixed_effects.fitted import FittedMixedEffects
from .._optional import check_installed
from .._parameters import check_choice
from .._typing import FloatArray
from ._figures import ax_and_figure, draw_legend, given_axes, new_grid, with_options
from ._population import LEVELS, joined, population_model, tables_of, x_column

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

# Number of subjects that are drawn unless some are named.
_FIRST = 12
# Points of a curve, besides those at the times of responses.
_POINTS = 200


class IndividualFit(NamedTuple):
    """Responses of a subject, and curves of predictions.

    Attributes
    ----------
    x, observed : ndarray of shape (n_observations,)
    grid : ndarray of shape (n_points,)
        Times of the curves.
    individual, population : ndarray of shape (n_points,)
        Predictions at the mode of the subject's parameters, and for a typical subject with the same
        regressors and covariates.
    """

    x: FloatArray
    observed: FloatArray
    grid: FloatArray
    individual: FloatArray
    population: FloatArray


class IndividualFitDisplay:
    """Responses of single subjects with their individual and population predictions.

    Use ``from_estimator`` to create a display.

    Read more in :doc:`/mixed_effects`.

    Parameters
    ----------
    fits : dict of tuple
        Of each subject, by its label: the times and values of its responses, the times of curves,
        and individual and population predictions at these times.
    subject_name : str, default="id"
        Label of subjects, before that of each.
    x_name : str, default="time"
        Label of the times.
    y_name : str, default="dv"
        Label of the responses.

    Attributes
    ----------
    figure_ : matplotlib Figure
    ax_ : matplotlib Axes, or ndarray of them
        One for each subject.
    lines_ : list of list of Line2D
        Responses, individual and population prediction of each subject.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, or X lacks columns or subjects or has invalid values.
    NotFittedError
        If the estimator is not fitted.
    ImportError
        If matplotlib is not installed.

    See Also
    --------
    GoodnessOfFitDisplay : Predictions and residuals of all subjects.

    Examples
    --------
    >>> from skfedem import FederatedNonlinearMixedEffects
    >>> from skfedem.datasets import load_theophylline
    >>> from skfedem.inspection import IndividualFitDisplay
    >>> from skfedem.pharmacokinetics import one_compartment_oral
    >>> data = load_theophylline().data
    >>> nlme = FederatedNonlinearMixedEffects(
    ...     one_compartment_oral, start={"ka": 1.0, "V": 20.0, "CL": 0.5}
    ... )
    >>> display = IndividualFitDisplay.from_estimator(nlme.fit(data), data, subjects=[1, 9])
    >>> [axis.get_title() for axis in display.ax_]
    ['id 1', 'id 9']
    """

    figure_: Figure
    ax_: Any
    lines_: list[list[Line2D]]

    def __init__(
        self,
        fits: Mapping[Any, tuple[FloatArray, ...]],
        *,
        subject_name: str = "id",
        x_name: str = "time",
        y_name: str = "dv",
    ) -> None:
        self.fits = {label: IndividualFit(*fit) for label, fit in fits.items()}
        if not self.fits:
            raise ValueError("Expected at least one subject, got none. Name some.")
        self.subject_name = subject_name
        self.x_name = x_name
        self.y_name = y_name

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        *,
        subjects: Iterable[Any] | None = None,
        x: str | None = None,
        yscale: Literal["linear", "log"] = "linear",
        ax: Axes | Iterable[Axes] | None = None,
        line_kw: dict[str, Any] | None = None,
    ) -> Self:
        """Plot the fits of a population model to single subjects.

        Between its rows, the regressors of a subject are those of the row before.

        Parameters
        ----------
        estimator : FederatedNonlinearMixedEffects
            Fitted model, or a fitted search for one.
        X : DataFrame or dict of array-likes, or a list of them
            Tables with the columns of the fit.
        subjects : list of labels, default=None
            Subjects to draw; None for the first twelve.
        x : str, default=None
            Regressor on the x axis; None for the first one, the time.
        yscale, ax, line_kw
            See ``plot``.

        Returns
        -------
        display : IndividualFitDisplay

        Raises
        ------
        NotFittedError, TypeError, ValueError, ImportError
            See the class.
        """
        check_installed(f"{cls.__name__}.from_estimator", "matplotlib")
        model = population_model(estimator)
        x, design = x_column(model, x), model._design
        owners: dict[Any, Columns] = {}
        for table in tables_of(X):
            for label in table[design.subject].tolist():
                owners.setdefault(label, table)
        labels = list(owners)[:_FIRST] if subjects is None else list(subjects)
        for label in labels:
            if label not in owners:
                raise ValueError(
                    f"Expected subjects with rows in X, got {repr_of(label)}. Give labels of "
                    f"column {design.subject!r}."
                )
        fits = {label: _fit_of(model, owners[label], label, x) for label in labels}
        names = {"subject_name": design.subject, "x_name": x, "y_name": design.response}
        return cls(fits, **names).plot(ax, yscale=yscale, line_kw=line_kw)

    def plot(
        self,
        ax: Axes | Iterable[Axes] | None = None,
        *,
        yscale: Literal["linear", "log"] = "linear",
        line_kw: dict[str, Any] | None = None,
    ) -> Self:
        """Draw the responses and the curves of each subject.

        Parameters
        ----------
        ax : matplotlib Axes, or several, default=None
            Axes to draw on, one for each subject; None for a new figure.
        yscale : {"linear", "log"}, default="linear"
            Scale of the responses. A logarithmic one omits those that are not positive.
        line_kw : dict, default=None
            Keyword arguments of matplotlib's ``plot``, for the curves.

        Returns
        -------
        self : IndividualFitDisplay

        Raises
        ------
        TypeError, ValueError, ImportError
            See the class.
        """
        check_installed(f"{type(self).__name__}.plot", "matplotlib")
        check_choice("yscale", yscale, ("linear", "log"))
        n, is_new = len(self.fits), ax is None
        n_columns = min(n, 3 if n <= 9 else 4)
        if ax is None:
            axes = new_grid(n, n_columns, panel=(2.1, 1.7), sharex=True, sharey=True)
        else:
            axes = given_axes(ax, n, "subject")
        self.lines_ = []
        for k, (axis, (label, fit)) in enumerate(zip(axes, self.fits.items(), strict=True)):
            self.lines_.append(_draw(axis, fit, line_kw))
            axis.set_title(f"{self.subject_name} {label}", fontsize="medium")
            if not is_new or k >= n - n_columns:
                axis.set_xlabel(self.x_name)
            if not is_new or k % n_columns == 0:
                axis.set_ylabel(self.y_name)
            if yscale == "log":
                axis.set_yscale("log", nonpositive="mask")
            axis.grid(alpha=0.3)
        self.ax_, self.figure_ = ax_and_figure(axes)
        if is_new:
            handles = self.lines_[0]
            self.figure_.legend(handles=handles, loc="outside upper left", ncols=3, frameon=False)
        else:
            draw_legend(axes[0], above=False)
        return self


def _fit_of(model: FittedMixedEffects, table: Columns, label: Any, x: str) -> IndividualFit:
    """Responses of a subject, and curves, predicted from its rows and further ones without one."""
    design = model._design
    labels = table[design.subject]
    rows = np.flatnonzero([own == label for own in labels.tolist()])
    times = numbers(table, x, where="")[rows]
    order = np.argsort(times, kind="stable")
    rows, times = rows[order], times[order]
    grid = np.union1d(np.linspace(times[0], times[-1], _POINTS), times)
    before = rows[np.searchsorted(times, grid, side="right") - 1]
    names = (design.subject, *design.regressors, *design.covariates)
    every = {name: table[name][np.append(rows, before)] for name in names}
    every[x] = np.append(times, grid)
    observed = numbers(table, design.response, where="")[rows]
    every[design.response] = np.append(observed, np.full(len(grid), np.nan))
    population, individual = (joined(model.predict(every, level))[len(rows) :] for level in LEVELS)
    return IndividualFit(times, observed, grid, individual, population)


def _draw(axis: Axes, fit: IndividualFit, line_kw: dict[str, Any] | None) -> list[Line2D]:
    from matplotlib.lines import Line2D

    style: dict[str, Any] = {"linestyle": "", "marker": "o", "markersize": 3.5, "label": "observed"}
    lines = axis.plot(fit.x, fit.observed, color="#0072B2", **style)
    looks: dict[str, dict[str, Any]] = {
        "individual": {"color": "#D55E00", "linestyle": "-", "linewidth": 1.5},
        "population": {"color": "0.45", "linestyle": "--", "linewidth": 1.2},
    }
    for level, look in looks.items():
        options = with_options({"label": f"{level} prediction", **look}, line_kw, Line2D)
        lines += axis.plot(fit.grid, getattr(fit, level), **options)
    return lines
