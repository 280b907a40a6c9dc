"""Uncertainty of fitted matrices: totals with standard errors, and multiple imputation."""

from __future__ import annotations

from numbers import Integral
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from .._data.cells import CellData, read_cells
from .._data.effort import by_mean_client
from .._data.frame_labels import label_text
from .._data.matrices import checked_index
from .._error_messages import label_repr, plural
from .._parameters import check_choice, check_counts, check_number
from .._random import seeds_of_runs
from .._typing import FloatArray, IntArray, MatricesLike, Seed
from .._warnings import warn
from .bootstrap import Replicate, Unit, domain_of_dispersion, draw, drawn_totals, replicates
from .imputation import MatrixImputation
from .totals import Totals, estimated_totals, numbers_of_groups, observed_groups

_DRAW = "Give errors='parametric', 'rows' or 'clients'"


class MatrixWithErrors(MatrixImputation):
    """Fitted matrix imputer that knows how uncertain its totals are."""

    def totals(
        self,
        X: MatricesLike,
        *,
        clients: ArrayLike | None = None,
        offset: MatricesLike | None = None,
        rows: ArrayLike | None = None,
        columns: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        interval: float = 0.95,
        errors: Literal["equations", "parametric", "rows", "clients"] = "equations",
        overdispersion: bool = True,
        serial_correlation: bool = True,
        n_draws: int = 100,
        random_state: Seed = None,
        n_jobs: int | None = None,
    ) -> Totals | dict[Any, Totals]:
        """Sums over rows for each column, with standard errors.

        Without low-rank part (``rank=0``), the effects are estimated again by generalised
        estimating equations, as TRIM [1]_ does for its model 3: without ridge, with a common
        dispersion, and with correlations of the cells of a row that decrease with the number of
        columns between them. Clients send sums of weighted residuals over rows and columns, and
        sums of products of residuals. With a low-rank part, the standard errors are those of fits
        to drawn data, with the same penalties. These do not include the bias of the penalties.

        Parameters
        ----------
        X : list of clients, or array-like
            Data of the fit.
        clients : array-like of shape (n_rows,), default=None
            Client labels of the fit. Serial correlation is estimated from neighbouring cells that
            one client observed.
        offset : list of array-likes, or array-like, default=None
            Offset of the fit. Totals are those of one unit of effort: observed cells count as
            their observations divided by their effort, and as if by a client without effect.
        rows, columns : array-like of int, default=None
            Positions of rows to sum over, and of columns; None for all. Rows without an observed
            cell are left out.
        groups : array-like of shape (n_rows,), default=None
            Label of each row of the matrix, for totals by group. Groups without an observed cell
            are left out.
        interval : float in (0, 1), default=0.95
            Coverage of the confidence limits.
        errors : {"equations", "parametric", "rows", "clients"}, default="equations"
            Where standard errors come from: from estimating equations; or from fits to observations
            drawn from this fit, to rows drawn with replacement, or to clients drawn with
            replacement. Draw what is independent: sites, if they are a sample; clients, if the
            observers are.
        overdispersion : bool, default=True
            Whether variances are ``dispersion`` times those of the family, or equal to them.
        serial_correlation : bool, default=True
            Whether cells of a row are correlated in the estimating equations.
        n_draws : int, default=100
            Number of fits to drawn data, at least 2.
        random_state : int, RandomState instance or None, default=None
            Seed of the draws.
        n_jobs : int, default=None
            Number of processes that fit drawn data, as in joblib.

        Returns
        -------
        totals : skfedem.results.Totals, or dict of them by group
            Its ``table`` has observed cells plus means of the others ("imputed") and means of all
            cells ("model"), with standard errors and limits; ``index(base)`` and ``trend()`` give
            indices and the overall slope. A column without observations has NaN.

        Raises
        ------
        NotFittedError
            If called before ``fit``.
        TypeError, ValueError
            If X is not the data of the fit; or, with estimating equations, if the fit has a
            low-rank part or effects of clients, or lacks effects, or rows and columns fall into
            parts without a common cell; or if there are fewer than two rows or clients to draw
            from; or if ``groups`` is a Series with other row labels than the matrix.

        Warns
        -----
        ConvergenceWarning
            If the estimating equations are not solved, or fits to drawn data have not converged.
        UserWarning
            If more than 5 % of a total is the mean of a single missing cell, in a row with fewer
            than three observed cells, or more than four times the mean of any observed cell
            of the row; or if a group of ``row_groups`` has no observation in a column.

        References
        ----------
        .. [1] J. Pannekoek and A. van Strien, "TRIM 3 manual", Statistics Netherlands, 2005.
        """
        check_is_fitted(self)
        check_number("interval", interval, low=0, high=1, low_open=True, high_open=True)
        check_choice("errors", errors, ("equations", *get_args(Unit)))
        n_rows, n_columns = self._shape
        selected = np.arange(n_columns)[checked_index("columns", columns, n_columns)]
        names, numbers = numbers_of_groups(groups, rows, self._row_labels, n_rows)
        labels = self._row_labels, self._column_labels
        labels = labels[0], None if labels[1] is None else labels[1][selected]
        if errors == "equations":
            self._check_effects_alone()
        data = self._data_of_fit(X, clients, offset)
        names, numbers = observed_groups(names, numbers, data)
        if errors == "equations":
            self._warn_of_unknown_columns(data, numbers, selected)
            by_group = self.column_effects_
            if self.group_effects_ is not None:
                by_group = by_group + self.group_effects_
            effects = self.row_effects_ + self.intercept_ - data.origin, np.atleast_2d(by_group)
            solver = dict(overdispersion=overdispersion, serial_correlation=serial_correlation)
            found = estimated_totals(
                data,
                self._family(),
                effects,
                self._covariates.numbers,
                numbers,
                selected,
                labels,
                interval,
                **solver,
            )
        else:
            check_number("n_draws", n_draws, kind=Integral, low=2)
            dispersion = self.dispersion_ if overdispersion else 1.0
            dispersion = domain_of_dispersion(self._fitted_family, dispersion)
            fits = self._replicates(data, errors, dispersion, n_draws, random_state, n_jobs)
            found = drawn_totals(self, data, fits, dispersion, numbers, selected, labels, interval)
        return found[0] if groups is None else dict(zip(names, found, strict=True))

    def impute(
        self,
        X: MatricesLike,
        *,
        clients: ArrayLike | None = None,
        offset: MatricesLike | None = None,
        n_imputations: int = 5,
        errors: Unit = "parametric",
        overdispersion: bool = True,
        random_state: Seed = None,
        n_jobs: int | None = None,
    ) -> FloatArray:
        """Draw the missing cells several times: multiple imputation.

        Each imputation has a fit to drawn data, as in :meth:`totals`, and observations drawn from
        this fit, so that their spread includes the uncertainty of the fit. Analyse each matrix
        like complete data, and combine the results by Rubin's rules [1]_.

        Parameters
        ----------
        X : list of clients, or array-like
            Data of the fit.
        clients : array-like of shape (n_rows,), default=None
            Client labels of the fit.
        offset : list of array-likes, or array-like, default=None
            Offset of the fit. All cells are drawn, or divided, for one unit of effort.
        n_imputations : int, default=5
            Number of imputations.
        errors : {"parametric", "rows", "clients"}, default="parametric"
            What is drawn for the fits, see :meth:`totals`.
        overdispersion : bool, default=True
            Whether variances are ``dispersion_`` times those of the family.
        random_state : int, RandomState instance or None, default=None
            Seed of the draws.
        n_jobs : int, default=None
            Number of processes, as in joblib.

        Returns
        -------
        matrices : ndarray of shape (n_imputations, n_rows, n_columns)
            Observed cells have the mean of their observations, as if by a client without effect.

        Raises
        ------
        NotFittedError
            If called before ``fit``.
        TypeError, ValueError
            If X is not the data of the fit.

        References
        ----------
        .. [1] D. B. Rubin, "Multiple imputation for nonresponse in surveys", Wiley, 1987.
        """
        check_is_fitted(self)
        check_choice("errors", errors, get_args(Unit))
        data, family = self._data_of_fit(X, clients, offset), self._family()
        dispersion = self.dispersion_ if overdispersion else 1.0
        dispersion = domain_of_dispersion(self._fitted_family, dispersion)
        fits = self._replicates(data, errors, dispersion, n_imputations, random_state, n_jobs)
        matrices = np.empty((len(fits), *self._shape))
        for matrix, own in zip(matrices, fits, strict=True):
            matrix[:] = draw(family, own.means, dispersion, own.generator)
        counts, sums = np.zeros(self._shape), np.zeros(self._shape)
        cells = data.rows, data.columns
        effects = self._effects_of_clients(data)
        values, efforts = by_mean_client(self._fitted_family, data.values, data.counts, effects)
        np.add.at(counts, cells, efforts)
        np.add.at(sums, cells, efforts * values)
        matrices[:, counts > 0] = sums[counts > 0] / counts[counts > 0]
        return matrices

    def _warn_of_unknown_columns(
        self, data: CellData, numbers: IntArray, columns: IntArray
    ) -> None:
        """Warn if a group of row_groups has no observation in a column that others have."""
        groups = self._covariates.numbers
        seen = np.zeros((int(groups.max()) + 1, self._shape[1]), dtype=bool)
        seen[groups[data.rows], data.columns] = True
        seen = seen[np.unique(groups[numbers >= 0])][:, columns]
        missing = np.argwhere(seen.any(axis=0) & ~seen)
        if len(missing):
            group, column = missing[0]
            label = self.row_groups_[np.unique(groups[numbers >= 0])[group]]
            known, position = self._column_labels, columns[column]
            name = position if known is None else label_text(known[position])
            warn(
                f"Group {label_repr(label)} of row_groups has no observation in column "
                f"{name}, whose effect there and total are unknown (NaN): draw rows, "
                "clients or observations, or leave such columns out.",
                UserWarning,
            )

    def _check_effects_alone(self) -> None:
        if self.client_effects_ is not None:
            raise ValueError(
                "Expected a fit without effects of clients for errors='equations', got some. Draw "
                "rows, clients or observations."
            )
        if self._fitted_family == "negative_binomial":
            raise ValueError(
                "Expected another family than 'negative_binomial' for errors='equations', whose "
                f"dispersion stands for it. {_DRAW}, or fit 'poisson'."
            )
        n_factors = len(self.singular_values_)
        if n_factors or self._fitted_effects != "both":
            got, want = f"effects={self._fitted_effects!r}", "effects='both'"
            if n_factors:
                got, want = plural(n_factors, "factor"), "rank=0"
            raise ValueError(
                "Expected a fit of effects='both' without low-rank part for errors='equations', "
                f"got {got}. {_DRAW}, or fit with {want}."
            )

    def _replicates(
        self,
        data: CellData,
        unit: Unit,
        dispersion: float,
        n_draws: int,
        random_state: Seed,
        n_jobs: int | None,
    ) -> list[Replicate]:
        check_counts(n_draws=n_draws)
        seeds = seeds_of_runs(random_state, n_draws)
        return replicates(self, data, unit, dispersion, seeds, n_jobs)

    def _data_of_fit(
        self, X: MatricesLike, clients: ArrayLike | None, offset: MatricesLike | None
    ) -> CellData:
        """Cells of the data of the fit."""
        if (offset is not None) != self._has_offset:
            raise ValueError(
                f"Expected the data of the fit, {'with' if self._has_offset else 'without'} "
                "offset, got others. Give X and offset of the fit."
            )
        data = read_cells(
            clone(self).set_params(rows="shared" if self.row_offsets_ is None else "disjoint"),
            X,
            clients,
            shape=self._shape if self._has_triplets else None,
            family=self._family(),
            keep_observations=True,
            offset=offset,
        )
        if data.shape != self._shape:
            raise ValueError(
                f"Expected the data of the fit, a matrix of shape {self._shape}, got shape "
                f"{data.shape}. Give the X of the fit."
            )
        self._check_clients(data)
        if self._digest not in ("", data.digest()):
            raise ValueError(
                "Expected the data of the fit, got the same cells with other values, or in another "
                "order. Give X, clients and offset of the fit."
            )
        return data
