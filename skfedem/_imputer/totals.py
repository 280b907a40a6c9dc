"""Totals of a fitted matrix by column, with the covariances of the estimating equations."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._data.cells import CellData
from .._data.frame_labels import as_dates, check_labels, label_text, series_labels
from .._data.labels import group_rows
from .._data.long_tables import as_table
from .._data.matrices import checked_index
from .._error_messages import plural, repr_of
from .._federation import SetUp
from .._parallel import Workers
from .._parameters import check_choice
from .._typing import FloatArray, IntArray
from .._warnings import warn
from ..clients.local import LocalClients
from ..models.matrix.families import Family
from ..models.matrix.start import cell_federation
from .estimating_equations import Estimate, observed_sums, solve
from .residuals import Observed, observed_cells
from .row_groups import part_of_group, with_own_columns
from .row_sums import added, sums_of_rows
from .trend import Trend, index_of, limits, overall_trend, standard_errors

# Share of a total that warns if it hangs on a single row or cell.
_LARGE_SHARE = 0.05
_DAYS_OF_A_YEAR = 365.25


@dataclass(frozen=True)
class Totals:
    """Sums over rows for each column, with standard errors; the result of ``totals``.

    Parameters
    ----------
    columns : ndarray of shape (n_columns,), or Index
        Labels of the columns, or their positions.
    imputed, model : ndarray of shape (n_columns,)
        Observed cells plus the means of the others; and the means of all cells.
    imputed_covariance, model_covariance : ndarray of shape (n_columns, n_columns)
        Covariances of the errors.
    dispersion, serial_correlation : float
        Of the Pearson residuals; 1 and 0 if the errors ignore them.
    row_shares : ndarray of shape (n_rows,)
        Share of each row in the sum of the means of all cells; 0 for rows that are left out.
    interval : float
        Coverage of the confidence limits.
    is_positive : bool
        Whether totals are those of counts or presences.

    Examples
    --------
    >>> from skfedem import FederatedMatrixImputer
    >>> counts = [[[8, 9, 6], [4, None, 3]], [[None, 8, 7], [5, 4, 3]]]  # of two observers
    >>> imputer = FederatedMatrixImputer(rank=0, family="poisson", effects_penalty=0)
    >>> totals = imputer.fit(counts).totals(counts)
    >>> totals.imputed.round(1).tolist()
    [12.5, 12.5, 9.5]
    >>> totals.trend().multiplicative < 1
    True
    """

    columns: Any
    imputed: FloatArray
    model: FloatArray
    imputed_covariance: FloatArray
    model_covariance: FloatArray
    dispersion: float
    serial_correlation: float
    row_shares: FloatArray
    interval: float
    is_positive: bool

    @property
    def table(self) -> Any:
        """Totals, standard errors and confidence limits, as a DataFrame (or a dict without pandas).

        Limits of counts are those of log-normal distributions.
        """
        named: dict[str, Any] = {"column": self.columns}
        for name, values, covariance in (
            ("imputed", self.imputed, self.imputed_covariance),
            ("model", self.model, self.model_covariance),
        ):
            errors = standard_errors(covariance)
            low, high = limits(values, errors, self.interval, positive=self.is_positive)
            parts = {"": values, "_error": errors, "_low": low, "_high": high}
            named |= {f"{name}{part}": numbers for part, numbers in parts.items()}
        return as_table(named)

    def index(self, base: Any = None) -> Any:
        """Totals divided by the total of a base column, with standard errors and limits.

        Parameters
        ----------
        base : label, default=None
            Column whose index is 1, as ``columns`` names it: 1990, or "2010-05" of months. None is
            the first.

        Returns
        -------
        table : DataFrame, or dict of arrays where pandas is not installed

        Raises
        ------
        ValueError
            If there is no such column, or its total is not positive; or after a fit of numbers that
            are neither counts nor presences.
        """
        position = 0 if base is None else self._position(base)
        self._check_positive("an index", [position])
        named: dict[str, Any] = {"column": self.columns}
        for name, values, covariance in (
            ("imputed", self.imputed, self.imputed_covariance),
            ("model", self.model, self.model_covariance),
        ):
            ratios, errors = index_of(values, covariance, position)
            low, high = limits(ratios, errors, self.interval, positive=True)
            parts = {"": ratios, "_error": errors, "_low": low, "_high": high}
            named |= {f"{name}{part}": numbers for part, numbers in parts.items()}
        return as_table(named)

    def trend(self, kind: str = "imputed") -> Trend:
        """Overall slope of the log totals over time, with its error and TRIM's words.

        Parameters
        ----------
        kind : {"imputed", "model"}, default="imputed"
            Totals to use. TRIM's manual recommends the imputed ones.

        Returns
        -------
        trend : Trend
            Per year if the columns are dates or periods, otherwise per unit of their numbers, or
            per column. The words are meant for years. Columns without a total are left out.

        Raises
        ------
        ValueError
            If `kind` is another; or if a total is not positive, or fewer than two are known.
        """
        check_choice("kind", kind, ("imputed", "model"))
        known = np.flatnonzero(~np.isnan(self.imputed))
        self._check_positive("a trend", known.tolist())
        if len(known) < 2:
            raise ValueError(f"Expected at least two known totals for a trend, got {len(known)}.")
        values = self.imputed if kind == "imputed" else self.model
        covariance = self.imputed_covariance if kind == "imputed" else self.model_covariance
        return overall_trend(
            values[known],
            covariance[np.ix_(known, known)],
            times_of(self.columns)[known],
            self.interval,
        )

    def _position(self, base: Any) -> int:
        """Position of the column with a label, which may be the text of a period."""
        labels = list(self.columns)
        for k, own in enumerate(labels):
            if own == base or (isinstance(base, str) and str(own) == base):
                return k
        raise ValueError(
            f"Expected base to be a column, from {label_text(labels[0])} to "
            f"{label_text(labels[-1])}, got {repr_of(base)}."
        )

    def _check_positive(self, what: str, positions: list[int]) -> None:
        """Raise unless these totals are positive."""
        if not self.is_positive:
            raise ValueError(
                f"Expected totals of counts or presences for {what}, got those of "
                "family='gaussian'. Fit counts with family='poisson'."
            )
        for k in positions:
            if not (self.imputed[k] > 0 and self.model[k] > 0):
                raise ValueError(
                    f"Expected a positive total in column {label_text(self.columns[k])} for "
                    f"{what}, got {self.imputed[k]:g}. Leave it out with columns=."
                )


def times_of(labels: Any) -> FloatArray:
    """Times of columns: in years for dates, different numbers as they are, else positions."""
    if hasattr(labels, "to_timestamp"):
        labels = labels.to_timestamp()
    array = as_dates(np.asarray(labels))
    if array.dtype.kind == "M":
        days = array.astype("datetime64[D]").astype(np.float64)
        return days / _DAYS_OF_A_YEAR
    if array.dtype.kind in "iuf" and len(np.unique(array)) == len(array):
        return array.astype(np.float64)
    return np.arange(len(array), dtype=np.float64)


def estimated_totals(
    data: CellData,
    family: Family,
    start: tuple[FloatArray, FloatArray],
    row_groups: IntArray,
    groups: IntArray,
    columns: IntArray,
    labels: tuple[Any, Any],
    interval: float,
    *,
    overdispersion: bool,
    serial_correlation: bool,
) -> list[Totals]:
    """Solve the estimating equations for all cells, and sum over the rows of each group.

    ``start`` are effects of rows, and of columns in each of the ``row_groups`` of the fit.
    """
    n_groups = len(start[1])
    data = with_own_columns(data, row_groups, n_groups)
    with Workers(None) as workers:
        clients = LocalClients(cell_federation(data, "n_samples"), workers)
        observed, margins = observed_cells(clients, data.shape, family)
        observed = observed._replace(n_groups=n_groups)
        estimate = solve(
            clients,
            observed,
            family,
            margins,
            (start[0], start[1].ravel()),
            overdispersion=overdispersion,
            serial_correlation=serial_correlation,
        )
        return totals_of_groups(
            clients,
            observed,
            family,
            estimate,
            data.origin,
            row_groups,
            groups,
            columns,
            labels,
            interval,
        )


def numbers_of_groups(
    groups: ArrayLike | None, rows: ArrayLike | None, row_labels: Any, n_rows: int
) -> tuple[list[Any], IntArray]:
    """Labels of groups, and the number of each row's group; -1 for rows that are not selected."""
    labels: NDArray[Any] = np.zeros(1)
    numbers = np.zeros(n_rows, dtype=np.intp)
    if groups is not None:
        check_labels("row", row_labels, series_labels(groups), "Reindex groups", "the matrix")
        labels, order, offsets = group_rows(groups, n_rows, "groups")
        numbers[slice(None) if order is None else order] = np.repeat(
            np.arange(len(labels)), np.diff(offsets)
        )
    selected = np.zeros(n_rows, dtype=bool)
    selected[checked_index("rows", rows, n_rows)] = True
    return labels.tolist(), np.where(selected, numbers, -1)


def observed_groups(
    names: list[Any], numbers: IntArray, data: CellData
) -> tuple[list[Any], IntArray]:
    """The same of groups with an observed row; -1 for rows without an observed cell as well."""
    is_observed = np.zeros(len(numbers), dtype=bool)
    is_observed[data.rows] = True
    kept, numbers = np.unique(np.where(is_observed, numbers, -1), return_inverse=True)
    if kept[-1] < 0:
        raise ValueError(
            "Expected rows with an observed cell to sum over, got none. Choose others."
        )
    n_left_out = int(kept[0] < 0)
    return [names[k] for k in kept[n_left_out:]], numbers - n_left_out


def totals_of_groups(
    clients: SetUp,
    observed: Observed,
    family: Family,
    estimate: Estimate,
    origin: float,
    row_groups: IntArray,
    groups: IntArray,
    columns: IntArray,
    labels: tuple[Any, Any],
    interval: float,
) -> list[Totals]:
    """Totals of each group of rows, for some columns.

    Rows in group -1, or without observed cells, are left out. ``labels`` are those of rows and of
    these columns, or None.
    """
    groups = np.where(observed.support.is_observed[0], groups, -1)
    n_groups = int(groups.max()) + 1
    n_cells = np.bincount(observed.support.rows, minlength=len(groups))
    counted = clients.sum(observed_sums, observed, groups, n_groups)
    results = []
    for group, in_observed in enumerate(counted):
        parts = [
            sums_of_rows(
                *part_of_group(observed, estimate, own),
                family,
                (groups == group) & (row_groups == own),
                columns,
            )
            for own in np.unique(row_groups[groups == group])
        ]
        sums = reduce(added, parts)
        offset = origin * np.count_nonzero(groups == group)
        imputed = in_observed + sums.missing + offset
        shares = np.divide(sums.largest, imputed, out=np.zeros(len(imputed)), where=imputed > 0)
        warn_of_shares(n_cells, shares, sums.largest_rows, columns, labels)
        block, total = np.ix_(columns, columns), sums.rows.sum()
        results.append(
            Totals(
                columns if labels[1] is None else labels[1],
                imputed[columns],
                (sums.model + offset)[columns],
                sums.imputed_covariance[block],
                sums.model_covariance[block],
                *estimate.residuals,
                sums.rows / total if total > 0 else sums.rows,
                interval,
                is_positive=family.name != "gaussian",
            )
        )
    return results


def warn_of_shares(
    n_cells: IntArray,
    shares: FloatArray,
    rows: IntArray,
    columns: IntArray,
    labels: tuple[Any, Any],
) -> None:
    """Warn if a total hangs on a single missing cell about which little is known.

    ``n_cells`` counts the observed cells of each row; ``shares`` and ``rows`` are those of the
    largest such cell of each column.
    """
    shares, rows = shares[columns], rows[columns]
    if not len(shares) or shares.max() <= _LARGE_SHARE:
        return
    k = int(shares.argmax())
    row = int(rows[k])
    seen = plural(int(n_cells[row]), "observed cell")
    row_text = f"{row}" if labels[0] is None else label_text(labels[0][row])
    column_text = f"{columns[k]}" if labels[1] is None else label_text(labels[1][k])
    warn(
        f"{np.count_nonzero(shares > _LARGE_SHARE)} of {len(shares)} totals hang on one missing "
        f"cell by more than {_LARGE_SHARE:.0%}: the mean of row {row_text} in column {column_text} "
        f"is {shares[k]:.0%} of the total, extrapolated from {seen}. "
        "Give rows= without such rows.",
        UserWarning,
    )
