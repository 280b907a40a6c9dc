"""Filled cells and scores of fitted imputers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import repeat
from typing import Any, Literal

import numpy as np
from scipy.sparse import issparse
from sklearn.utils.validation import check_is_fitted

from .._compat import in_container, in_containers
from .._data.by_client import each_table, each_table_stacked, stacks
from .._data.cells import (
    CellData,
    check_not_triplets,
    read_clients_of_sites,
    read_matrix,
    read_triplets,
)
from .._data.effort import LARGEST_OFFSET, check_offsets
from .._data.frame_labels import check_labels, table_labels
from .._data.matrices import holds_clients
from .._data.tables import as_numbers, is_frame
from .._federation import client_groups, offsets_of
from .._typing import BoolArray, FloatArray, IntArray, MatricesLike, Table, Transformed
from ..models.matrix.families import working_family
from ..models.matrix.pooled import LEAST_PENALTY, working_cells
from ..models.matrix.row_regression import fit_rows
from ..models.matrix.theta import Effects, LowRank, Theta, at, dense, relative_cells
from .fitted_matrix import FittedMatrix

_Form = Literal["rows", "sites", "triplets"]

# Numbers in the tables of a list that are scored at once, to limit the memory.
_SCORED_TOGETHER = 2**20


class MatrixImputation(FittedMatrix):
    """Fitted matrix imputer that fills and scores tables."""

    def transform(self, X: MatricesLike, *, offset: MatricesLike | None = None) -> Transformed:
        """Fill the missing cells with their fitted means; observed cells are kept.

        Parameters
        ----------
        X : list of clients, or array-like of shape (n_rows, n_columns)
            After a fit to triplets, tables of three columns are triplets, others are matrices.
            In a list of clients with shared rows (``rows="shared"``), and in a single array of
            triplets if `fit` had one, missing cells get ``fitted_mean``. All other rows may be new:
            their effect and factor are estimated from their observed cells, given the columns.
            Labels of columns, and of shared rows, have to be those of the fit, in the same order.
        offset : list of array-likes, or array-like, default=None
            As in `fit`. Missing cells get the mean for the offset that a matrix has there, 0 for
            one unit of effort if it is missing, or beside triplets.

        Returns
        -------
        filled : ndarray of shape (n_rows, n_columns), or a tuple with one for each client
            For triplets, a matrix of the shape of the fit; for a 3-D array of a client, an array of
            its shape. A cell that was observed several times gets the mean of its observations.

        Raises
        ------
        NotFittedError
            If called before ``fit``.
        TypeError, ValueError
            If a table is invalid, has other columns (or shared rows) than the fit, or cells that
            the family does not allow. Errors in a list name the client.

        Warns
        -----
        UserWarning
            If Poisson means are far above those of all observed cells, or capped.
        """
        self._check_offset(offset)
        form = self._form(X)
        # The means of the sites are the same for all tables: compute them once, with one warning.
        site_means = None if form == "rows" else self.fitted_mean()
        fill = partial(self._filled, site_means=site_means)
        if not holds_clients(X):
            filled = fill(X, form, offset)
            return in_container(self, filled, self._sites()) if form == "triplets" else filled
        each = each_table_stacked if form == "rows" else each_table
        # The index of a table of triplets does not label sites.
        tables = [self._sites()] * len(X) if self._has_triplets else X
        filled_tables = self._map_tables(X, offset, fill, each, self._stacked)
        return in_containers(self, filled_tables, tables)

    def score(
        self, X: MatricesLike, y: object = None, *, offset: MatricesLike | None = None
    ) -> float:
        """Mean log-likelihood per observation, in nats.

        Parameters
        ----------
        X : list of clients, or array-like of shape (n_rows, n_columns)
            Clients with shared rows, and a single array of triplets if `fit` had one, are scored
            under the fitted model, as clients without an effect. All other rows are estimated as in
            ``transform``, but every second observed cell of a row is predicted from the others, and
            these from the former.
        y : Ignored
        offset : list of array-likes, or array-like, default=None
            As in `fit`.

        Returns
        -------
        log_likelihood : float
            Gaussian cells have variance 1.

        Raises
        ------
        NotFittedError
            If called before ``fit``.
        TypeError, ValueError
            As ``transform``, and if no cell at all is observed.
        """
        self._check_offset(offset)
        log_likelihood, n_observations = self._scored(X, offset)
        if not n_observations:
            raise ValueError(
                "Expected at least one observed cell to score, got none: all cells are missing. "
                "Check what marks missing cells (missing_values)."
            )
        return float(log_likelihood / n_observations)

    def _check_offset(self, offset: MatricesLike | None) -> None:
        """Raise unless there is an offset if the fit had one: counts have other units without."""
        check_is_fitted(self)
        if self._has_offset and offset is None:
            raise ValueError(
                "Expected an offset, as the fit had one, got None. Give the offset of X, of zeros "
                "for one unit of effort."
            )

    def _form(self, X: MatricesLike) -> _Form:
        """Form of a single table, or of the matrices of a list, see ``_cells``."""
        if holds_clients(X):
            return "sites" if self._has_sites else "rows"
        return "triplets" if self._has_triplets_alone and self._are_triplets(X) else "rows"

    def _are_triplets(self, table: Table) -> bool:
        """Whether a table is read as triplets: not if its shape or names are a matrix's."""
        if not self._has_triplets or issparse(table):
            return False
        months = self._column_labels
        if months is not None and is_frame(table) and list(table.columns) == list(months):
            return False
        n_columns = np.shape(table)[-1:]
        return n_columns == (3,) or n_columns != (self._shape[1],)

    def _sites(self) -> Any:
        """Empty table with the names of the sites as its index, if they have names."""
        return self._row_labels.to_frame() if hasattr(self._row_labels, "to_frame") else None

    def _map_tables(
        self,
        X: MatricesLike,
        offset: MatricesLike | None,
        function: Callable[..., Any],
        map_function: Callable[[Any, Callable[[Any], Any]], Any],
        combine: Callable[[Any], Any],
    ) -> Any:
        """Results of ``function(table, form, offset)`` for the tables of a list.

        ``map_function`` applies a function to all tables, like ``each_table``; ``combine`` joins
        the results for the matrices of a client's 3-D array.
        """
        form, own = self._form(X), _each_offset(offset, X)
        if offset is not None:
            map_function = each_table  # tables that are stacked would lose their offsets

        def of_table(table: MatricesLike) -> Any:
            offset = next(own)
            if holds_clients(table):
                parts = _each_offset(offset, table)
                return combine(map_function(table, lambda part: function(part, form, next(parts))))
            return function(table, "triplets" if self._are_triplets(table) else form, offset)

        return map_function(X, of_table)

    def _cells(
        self, table: MatricesLike, form: _Form, offset: MatricesLike | None = None
    ) -> CellData:
        """Cells of a table with the "sites" of the fit, with other "rows", or of "triplets"."""
        if form == "triplets":
            return read_triplets(table, self._shape, *self._reading(), offset)
        if form == "rows" and self._has_triplets:
            check_not_triplets(table, self._shape[1])
        cells = read_matrix(self, table, *self._reading(), offset)
        rows, columns = table_labels(table)
        check_labels("column", self._column_labels, columns, "Reindex it")
        if form == "sites":
            self._check_sites(rows, cells.shape[0])
        elif len(self.row_coef_) or len(self.row_groups_) > 1:
            raise ValueError(
                "Expected the rows of a fit with row_covariates or row_groups, got a table of "
                "other rows, whose covariates are unknown. "
                + (
                    "Give a list of clients with all rows."
                    if self._has_sites
                    else "Use fitted_mean, or fit a list of clients with rows='shared'."
                )
            )
        return cells

    def _check_sites(self, labels: object, n_rows: int) -> None:
        """Raise unless a table has the rows of the fit."""
        if n_rows != self._shape[0]:
            raise ValueError(
                f"Expected the {self._shape[0]} rows of the fit, got {n_rows}. Give a matrix "
                "alone, not in a list, to impute other rows."
            )
        what_to_do = "Reindex it, or give it alone, not in a list, to impute other rows"
        check_labels("row", self._row_labels, labels, what_to_do)

    def _filled(
        self,
        table: MatricesLike,
        form: _Form,
        offset: MatricesLike | None = None,
        *,
        site_means: FloatArray | None,
    ) -> FloatArray:
        """Matrix of a table, with missing cells filled with their means."""
        cells = self._cells(table, form, offset)
        filled = self._solved_means(cells) if site_means is None else site_means.copy()
        if offset is not None:
            filled = self._at_offset(filled, offset)
            cells = self._cells(table, form)  # not per unit of effort
        filled[cells.rows, cells.columns] = cells.values
        return filled

    def _at_offset(self, means: FloatArray, offset: Any) -> FloatArray:
        """Means of cells for the offsets of a matrix; those of triplets tell nothing about them."""
        if np.ndim(offset) != 2 and not issparse(offset):
            return means
        dense: Any = offset.toarray() if issparse(offset) else as_numbers(offset)
        natural = np.where(np.isnan(dense), 0.0, dense)  # NaN is one unit of effort
        if self._fitted_family == "gaussian":
            return means + np.where(np.isfinite(natural), natural, 0.0)
        if (natural > LARGEST_OFFSET).any():  # while -inf is no effort, and no count
            raise ValueError(
                f"Expected an offset of at most {LARGEST_OFFSET:g} in each cell, got "
                f"{natural.max():g}. Give logarithms of efforts."
            )
        expected: FloatArray = means * np.exp(natural)
        return expected

    def _stacked(self, filled: Sequence[FloatArray]) -> FloatArray:
        """A client's filled matrices as one 3-D array; ``set_output`` has to be the default."""
        table = in_container(self, filled[0])
        if table is not filled[0]:
            raise ValueError(
                f"a 3-D array does not fit a {type(table).__name__}, as set_output asks for. Give "
                "each of its matrices as a client."
            )
        return np.stack(filled)

    def _solved_means(self, cells: CellData) -> FloatArray:
        """Means of rows that were not in the fit."""
        theta = dense(self._solved_rows(cells, slice(None)))
        largest = np.full(len(theta), self._largest_theta)
        np.maximum.at(largest, cells.rows, theta[cells.rows, cells.columns])
        return self._means(theta, largest)

    def _solved_rows(self, cells: CellData, is_train: BoolArray | slice) -> Theta:
        """θ of rows that were not in the fit, from some of their observed cells."""
        root, family = np.sqrt(self.singular_values_), self._family()
        terms, columns = self._theta().covariates, self.column_effects_
        if terms is not None:
            columns = columns + terms.by_group[0]
        row_effects, factors = fit_rows(
            working_cells(relative_cells(cells).take(is_train), family),
            cells.shape[0],
            self.intercept_ - cells.origin + columns,
            self.column_factors_ * root,
            self._fitted_penalty,
            working_family(family),
            row_effects=self._fitted_effects in ("both", "rows"),
            ridge=max(self._fitted_effects_penalty, LEAST_PENALTY),
        )
        effects = Effects(self.intercept_, row_effects, columns)
        return Theta(effects, LowRank(factors, root, self.column_factors_))

    def _cross_predicted(self, cells: CellData) -> FloatArray:
        """θ of observed cells of new rows, minus the origin: half of a row from the other half."""
        first = offsets_of(np.bincount(cells.rows, minlength=cells.shape[0]))
        is_second = (np.arange(len(cells.rows)) - first[cells.rows]) % 2 == 1
        natural = np.empty(len(cells.rows))
        for is_test in (is_second, ~is_second):
            theta = self._solved_rows(cells, ~is_test).minus(cells.origin)
            natural[is_test] = at(theta, cells.rows[is_test], cells.columns[is_test])
        return natural

    def _scored_cells(self, natural: FloatArray, cells: CellData) -> FloatArray:
        """Log-likelihood and number of observations, given θ of each cell minus the origin."""
        family = self._family()
        own = working_cells(relative_cells(cells), family)
        terms = own.values * natural - working_family(family).log_partition(natural)
        log_likelihood = own.counts @ terms + cells.log_base_measure.sum()
        return np.array([log_likelihood, cells.n_observations.sum()])

    def _held_out(
        self, triplets: FloatArray, clients: IntArray, offset: FloatArray | None
    ) -> FloatArray:
        """Log-likelihood, number and sum of other observations by clients, and sum of their means.

        Clients have their effects.
        """
        cells = read_triplets(triplets, self._shape, *self._reading(), offset, clients)
        natural = _natural(self._theta(), cells) + self._effects_of_clients(cells)
        means = self._family().mean(natural + cells.origin)
        sums = [cells.counts @ cells.values, cells.counts @ means]
        return np.concatenate([self._scored_cells(natural, cells), sums])

    def _scored(self, X: MatricesLike, offset: MatricesLike | None) -> FloatArray:
        """Log-likelihood and number of all observations; tables are stacked if possible."""
        if not holds_clients(X):
            return self._scored_table(X, self._form(X), offset)
        has_labels = hasattr(self, "feature_names_in_") or any(map(is_frame, X))
        if self._has_sites and len(X) and not has_labels:
            with suppress(TypeError, ValueError):  # processed one by one, errors name the client
                return self._scored_under_fit(X, offset)
        each = each_table if self._has_sites else _map_stacks
        return _total(self._map_tables(X, offset, self._scored_table, each, _total))

    def _scored_table(
        self, table: MatricesLike, form: _Form, offset: MatricesLike | None
    ) -> FloatArray:
        """As ``_scored``, for one table."""
        cells = self._cells(table, form, offset)
        is_new = form == "rows"
        natural = self._cross_predicted(cells) if is_new else _natural(self._theta(), cells)
        return self._scored_cells(natural, cells)

    def _scored_under_fit(self, X: MatricesLike, offset: Any) -> FloatArray:
        """As ``_scored``, for tables without labels of clients who share the sites of the fit."""
        theta, total = self._theta(), np.zeros(2)
        sizes = [table.nnz if issparse(table) else np.size(table) for table in X]
        for group in client_groups(offsets_of(sizes), _SCORED_TOGETHER):
            cells = read_clients_of_sites(
                X[group],
                self._shape,
                *self._reading(),
                are_triplets=self._has_triplets,
                offset=None if offset is None else offset[group],
            )
            total += self._scored_cells(_natural(theta, cells), cells)
        return total


def _each_offset(offset: Any, X: MatricesLike) -> Iterator[Any]:
    """Offset of each table of a list; None without end if there are none."""
    if offset is None:
        return repeat(None)
    check_offsets(offset, len(X))
    return iter(offset)


def _natural(theta: Theta, cells: CellData) -> FloatArray:
    """θ of each cell, minus the origin of the cells."""
    return at(theta.minus(cells.origin), cells.rows, cells.columns)


def _total(scored: Sequence[FloatArray]) -> FloatArray:
    """Sum of log-likelihoods and of numbers of observations."""
    return np.sum(scored, axis=0)


def _map_stacks(X: MatricesLike, function: Callable[[Any], FloatArray]) -> Sequence[FloatArray]:
    """As ``each_table``, for tables with unrelated rows: small tables are stacked."""
    try:
        return [function(rows) for rows, _ in stacks(X)]
    except (TypeError, ValueError):  # processed one by one, errors name the client
        return each_table(X, function)
