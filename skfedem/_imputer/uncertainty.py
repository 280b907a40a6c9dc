"""Uncertainty of fitted matrices: totals with standard errors."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from .._data.cells import CellData, read_cells
from .._data.matrices import checked_index
from .._parameters import check_number
from .._typing import MatricesLike
from .imputation import FittedMatrix
from .totals import Totals, estimated_totals, numbers_of_groups


class MatrixWithErrors(FittedMatrix):
    """Fitted matrix imputer that knows how uncertain its totals are."""

    def totals(
        self,
        X: MatricesLike,
        *,
        clients: ArrayLike | None = None,
        rows: ArrayLike | None = None,
        columns: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        interval: float = 0.95,
        overdispersion: bool = True,
        serial_correlation: bool = True,
    ) -> Totals | dict[Any, Totals]:
        """Sums over rows for each column, with standard errors, of a fit without low-rank part.

        The effects are estimated again by generalised estimating equations, as TRIM [1]_ does for
        its model 3: without ridge, with a common dispersion, and with correlations of the cells of
        a row that decrease with the number of columns between them. Clients send sums of weighted
        residuals over rows and columns, and sums of products of residuals.

        Parameters
        ----------
        X : list of clients, or array-like
            Data of the fit.
        clients : array-like of shape (n_rows,), default=None
            Client labels of the fit. Serial correlation is estimated from neighbouring cells that
            one client observed.
        rows, columns : array-like of int, default=None
            Positions of rows to sum over, and of columns; None for all. Rows without an observed
            cell are left out.
        groups : array-like of shape (n_rows,), default=None
            Label of each row of the matrix, for totals by group.
        interval : float in (0, 1), default=0.95
            Coverage of the confidence limits.
        overdispersion : bool, default=True
            Whether variances are ``dispersion`` times those of the family, or equal to them.
        serial_correlation : bool, default=True
            Whether cells of a row are correlated.

        Returns
        -------
        totals : Totals, or dict of Totals by group
            Its ``table`` has observed cells plus means of the others ("imputed") and means of all
            cells ("model"), with standard errors and limits; ``index(base)`` and ``trend()`` give
            indices and the overall slope. A column without observations has NaN.

        Raises
        ------
        NotFittedError
            If called before ``fit``.
        TypeError, ValueError
            If X is not the data of the fit, the fit has a low-rank part or lacks effects, or rows
            and columns fall into parts without a common cell.

        Warns
        -----
        ConvergenceWarning
            If the estimating equations are not solved.
        UserWarning
            If more than 5 % of a total is the mean of a single missing cell, in a row with fewer
            than three observed cells, or more than four times the mean of any observed cell
            of the row.

        References
        ----------
        .. [1] J. Pannekoek and A. van Strien, "TRIM 3 manual", Statistics Netherlands, 2005.
        """
        check_is_fitted(self)
        if len(self.singular_values_) or self._fitted_effects != "both":
            raise ValueError(
                "Expected a fit of effects='both' without low-rank part, got effects="
                f"{self._fitted_effects!r} and {len(self.singular_values_)} factors. Fit with "
                "rank=0."
            )
        check_number("interval", interval, low=0, high=1, low_open=True, high_open=True)
        data = self._data_of_fit(X, clients)
        n_rows, n_columns = self._shape
        selected = np.arange(n_columns)[checked_index("columns", columns, n_columns)]
        labels, numbers = numbers_of_groups(groups, rows, n_rows)
        column_labels = self._column_labels
        found = estimated_totals(
            data,
            self._family(),
            (self.row_effects_ + self.intercept_ - data.origin, self.column_effects_),
            numbers,
            selected,
            (self._row_labels, None if column_labels is None else column_labels[selected]),
            interval,
            overdispersion=overdispersion,
            serial_correlation=serial_correlation,
        )
        return found[0] if groups is None else dict(zip(labels, found, strict=True))

    def _data_of_fit(self, X: MatricesLike, clients: ArrayLike | None) -> CellData:
        """Cells of the data of the fit."""
        data = read_cells(
            clone(self).set_params(rows="shared" if self.row_offsets_ is None else "disjoint"),
            X,
            clients,
            shape=self._shape if self._has_triplets else None,
            family=self._family(),
        )
        if data.shape != self._shape:
            raise ValueError(
                f"Expected the data of the fit, a matrix of shape {self._shape}, got shape "
                f"{data.shape}. Give the X of the fit."
            )
        return data
