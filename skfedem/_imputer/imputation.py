"""Methods of fitted imputers: filled cells, means and scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils import Tags
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
from .._data.frame_labels import check_labels, table_labels
from .._data.matrices import checked_index, holds_clients
from .._data.tables import is_frame
from .._federation import client_groups, offsets_of
from .._typing import (
    BoolArray,
    FamilyName,
    FloatArray,
    IntArray,
    MatricesLike,
    Table,
    Transformed,
)
from ..clients.local import SetUpMessage
from ..models.matrix.families import FAMILIES, Family
from ..models.matrix.main_effects import LEAST_PENALTY
from ..models.matrix.row_regression import fit_rows
from ..models.matrix.theta import Effects, LowRank, Theta, at, dense, relative_cells, row_blocks
from .warnings import warn_of_means

_Form = Literal["rows", "sites", "triplets"]

# Numbers in the tables of a list that are scored at once, to limit the memory.
_SCORED_TOGETHER = 2**20


class FittedMatrix(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Methods of a fitted matrix imputer, based on the attributes set by ``fit``."""

    row_factors_: FloatArray
    singular_values_: FloatArray
    column_factors_: FloatArray
    row_effects_: FloatArray
    column_effects_: FloatArray
    intercept_: float
    objective_: float
    n_iter_: int
    converged_: bool
    history_: dict[str, NDArray[Any]]
    setup_messages_: list[SetUpMessage]
    unobserved_rows_: IntArray
    unobserved_columns_: IntArray
    row_offsets_: IntArray | None
    client_drift_: FloatArray
    dispersion_: float
    serial_correlation_: float
    n_clients_: int
    client_ids_: NDArray[Any]
    n_features_in_: int
    feature_names_in_: NDArray[Any]

    def transform(self, X: MatricesLike) -> Transformed:
        """Fill the missing cells with their fitted means; observed cells are kept.

        Parameters
        ----------
        X : list of clients, or array-like of shape (n_rows, n_columns)
            After a fit to triplets, tables of three columns are triplets, others are matrices.
            In a list of clients with shared rows (``rows="shared"``), and in a single array of
            triplets if `fit` had one, missing cells get ``fitted_mean``. All other rows may be new:
            their effect and factor are estimated from their observed cells, given the columns.
            Labels of columns, and of shared rows, have to be those of the fit, in the same order.

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
        check_is_fitted(self)
        form = self._form(X)
        # The means of the sites are the same for all tables: compute them once, with one warning.
        site_means = None if form == "rows" else self.fitted_mean()
        fill = partial(self._filled, site_means=site_means)
        if not holds_clients(X):
            filled = fill(X, form)
            return in_container(self, filled, self._sites()) if form == "triplets" else filled
        each = each_table_stacked if form == "rows" else each_table
        # The index of a table of triplets does not label sites.
        tables = [self._sites()] * len(X) if self._has_triplets else X
        return in_containers(self, self._map_tables(X, fill, each, self._stacked), tables)

    def get_feature_names_out(self, input_features: ArrayLike | None = None) -> NDArray[Any]:
        """Names of the columns of the fit, converted to text if they were dates or numbers.

        Parameters
        ----------
        input_features : array-like of str, default=None
            Names of the columns, which have to be those of the fit.

        Returns
        -------
        names : ndarray of str
            "x0", "x1", ... if the columns of the fit had no labels.

        Raises
        ------
        NotFittedError
            If called before ``fit``.
        ValueError
            If the names are not those of the fit.
        """
        check_is_fitted(self)
        labels = self._column_labels
        if input_features is None and not hasattr(self, "feature_names_in_") and labels is not None:
            return np.array([str(label) for label in labels], dtype=object)
        return super().get_feature_names_out(input_features)

    def fitted_mean(
        self, rows: ArrayLike | None = None, columns: ArrayLike | None = None
    ) -> FloatArray:
        """Fitted means of all cells, or of some rows and columns.

        Parameters
        ----------
        rows, columns : array-like of int, default=None
            Positions of rows and columns, negative ones from the end; None for all.

        Returns
        -------
        means : ndarray of shape (len(rows), len(columns))
            Expected values: means, probabilities or counts, depending on the family.

        Raises
        ------
        NotFittedError
            If called before ``fit``.
        IndexError
            If a position is out of range.
        TypeError, ValueError
            If positions are not integers, or are masked.

        Warns
        -----
        UserWarning
            As ``transform``.
        """
        check_is_fitted(self)
        n_rows, n_columns = self._shape
        theta = dense(
            self._theta(),
            checked_index("rows", rows, n_rows),
            checked_index("columns", columns, n_columns),
        )
        return self._means(theta, np.full(len(theta), self._largest_theta))

    def score(self, X: MatricesLike, y: object = None) -> float:
        """Mean log-likelihood per observation, in nats.

        Parameters
        ----------
        X : list of clients, or array-like of shape (n_rows, n_columns)
            Clients with shared rows, and a single array of triplets if `fit` had one, are scored
            under the fitted model. All other rows are estimated as in ``transform``, but every
            second observed cell of a row is predicted from the others, and these from the former.
        y : Ignored

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
        check_is_fitted(self)
        log_likelihood, n_observations = self._scored(X)
        if not n_observations:
            raise ValueError(
                "Expected at least one observed cell to score, got none: all cells are missing. "
                "Check what marks missing cells (missing_values)."
            )
        return float(log_likelihood / n_observations)

    def _family(self) -> Family:
        return FAMILIES[self._fitted_family]

    def _reading(self) -> tuple[float, Family, float]:
        """How to read cells: marker of missing ones, family, and origin (see ``CellData``)."""
        origin = self.intercept_ if self._fitted_family == "gaussian" else 0.0
        return self.missing_values, self._family(), origin

    def _theta(self) -> Theta:
        effects = Effects(self.intercept_, self.row_effects_, self.column_effects_)
        low_rank = LowRank(self.row_factors_, self.singular_values_, self.column_factors_)
        return Theta(effects, low_rank)

    def _warm_theta(self, data: CellData, known: dict[str, Any]) -> Theta | None:
        """θ from which a warm start continues, minus the origin of the data; None without one."""
        if not (self.warm_start and hasattr(self, "converged_")):
            return None
        self._check_matrix_of_fit(data, known)
        effects, low_rank = self._theta().minus(data.origin)
        allowed = Effects(
            0.0 if self.effects == "none" else effects.intercept,
            effects.rows * (self.effects in ("both", "rows")),
            effects.columns * (self.effects in ("both", "columns")),
        )
        left, singular_values, right = low_rank
        rank = self.rank
        return Theta(allowed, LowRank(left[:, :rank], singular_values[:rank], right[:, :rank]))

    def _check_matrix_of_fit(self, data: CellData, known: dict[str, Any]) -> None:
        """Raise unless the matrix has the shape, labels and family of the last fit."""
        if self._shape != data.shape or self._fitted_family != self.family:
            raise ValueError(
                f"Expected a matrix of shape {self._shape} and family={self._fitted_family!r} as "
                f"in the last fit with warm_start=True, got shape {data.shape} and "
                f"family={self.family!r}. Fit with warm_start=False."
            )
        for axis in ("row", "column"):
            labels = f"_{axis}_labels"
            what_to_do = "Reindex the tables, or fit with warm_start=False"
            check_labels(axis, getattr(self, labels), known[labels], what_to_do)

    def _means(self, theta: FloatArray, largest: FloatArray) -> FloatArray:
        """Turn θ into means, in place; ``largest`` is the largest observed θ for each row."""
        if self._fitted_family == "poisson":
            warn_of_means(theta, largest)
        for block in row_blocks(theta):
            theta[block] = self._family().mean(theta[block])
        return theta

    def _form(self, X: MatricesLike) -> _Form:
        """Form of a single table, or of the matrices of a list, see ``_cells``."""
        if holds_clients(X):
            return "sites" if self._has_sites else "rows"
        return "triplets" if self._has_triplets_alone and self._are_triplets(X) else "rows"

    def _are_triplets(self, table: Table) -> bool:
        """Whether a table is read as triplets: not if it only fits as a matrix."""
        if not self._has_triplets or issparse(table):
            return False
        n_columns = np.shape(table)[-1:]
        return n_columns == (3,) or n_columns != (self._shape[1],)

    def _sites(self) -> Any:
        """Empty table with the names of the sites as its index, if they have names."""
        return self._row_labels.to_frame() if hasattr(self._row_labels, "to_frame") else None

    def _map_tables(
        self,
        X: MatricesLike,
        function: Callable[..., Any],
        map_function: Callable[[Any, Callable[[Any], Any]], Any],
        combine: Callable[[Any], Any],
    ) -> Any:
        """Results of ``function(table, form)`` for the tables of a list.

        ``map_function`` applies a function to all tables, like ``each_table``; ``combine`` joins
        the results for the matrices of a client's 3-D array.
        """
        as_matrix = partial(function, form=self._form(X))

        def of_table(table: MatricesLike) -> Any:
            if holds_clients(table):
                return combine(map_function(table, as_matrix))
            if self._are_triplets(table):
                return function(table, form="triplets")
            return as_matrix(table)

        return map_function(X, of_table)

    def _cells(self, table: MatricesLike, form: _Form) -> CellData:
        """Cells of a table with the "sites" of the fit, with other "rows", or of "triplets"."""
        if form == "triplets":
            return read_triplets(table, self._shape, *self._reading())
        if form == "rows" and self._has_triplets:
            check_not_triplets(table, self._shape[1])
        cells = read_matrix(self, table, *self._reading())
        rows, columns = table_labels(table)
        check_labels("column", self._column_labels, columns, "Reindex it")
        if form == "sites":
            self._check_sites(rows, cells.shape[0])
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
        self, table: MatricesLike, form: _Form, site_means: FloatArray | None
    ) -> FloatArray:
        """Matrix of a table, with missing cells filled with their means."""
        cells = self._cells(table, form)
        filled = self._solved_means(cells) if site_means is None else site_means.copy()
        filled[cells.rows, cells.columns] = cells.values
        return filled

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
        root = np.sqrt(self.singular_values_)
        row_effects, factors = fit_rows(
            relative_cells(cells).take(is_train),
            cells.shape[0],
            self.intercept_ - cells.origin + self.column_effects_,
            self.column_factors_ * root,
            self._fitted_penalty,
            self._family(),
            row_effects=self._fitted_effects in ("both", "rows"),
            ridge=max(self._fitted_effects_penalty, LEAST_PENALTY),
        )
        effects = Effects(self.intercept_, row_effects, self.column_effects_)
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
        log_partition = self._family().log_partition(natural)
        terms = (cells.values - cells.origin) * natural - log_partition
        log_likelihood = cells.counts @ terms + cells.log_base_measure.sum()
        return np.array([log_likelihood, cells.counts.sum()])

    def _scored(self, X: MatricesLike) -> FloatArray:
        """Log-likelihood and number of all observations; tables are stacked if possible."""
        if not holds_clients(X):
            return self._scored_table(X, self._form(X))
        has_labels = hasattr(self, "feature_names_in_") or any(map(is_frame, X))
        if self._has_sites and len(X) and not has_labels:
            with suppress(TypeError, ValueError):  # processed one by one, errors name the client
                return self._scored_under_fit(X)
        each = each_table if self._has_sites else _map_stacks
        return _total(self._map_tables(X, self._scored_table, each, _total))

    def _scored_table(self, table: MatricesLike, form: _Form) -> FloatArray:
        """As ``_scored``, for one table."""
        cells = self._cells(table, form)
        is_new = form == "rows"
        natural = self._cross_predicted(cells) if is_new else _natural(self._theta(), cells)
        return self._scored_cells(natural, cells)

    def _scored_under_fit(self, X: MatricesLike) -> FloatArray:
        """As ``_scored``, for tables without labels of clients who share the sites of the fit."""
        theta, total = self._theta(), np.zeros(2)
        sizes = [table.nnz if issparse(table) else np.size(table) for table in X]
        for group in client_groups(offsets_of(sizes), _SCORED_TOGETHER):
            cells = read_clients_of_sites(
                X[group], self._shape, *self._reading(), are_triplets=self._has_triplets
            )
            total += self._scored_cells(_natural(theta, cells), cells)
        return total


def _natural(theta: Theta, cells: CellData) -> FloatArray:
    """θ of each cell, minus the origin of the cells."""
    return at(theta.minus(cells.origin), cells.rows, cells.columns)


def tags_of_matrices(tags: Tags, family: FamilyName) -> Tags:
    """scikit-learn's tags for imputers of a family."""
    tags.input_tags.allow_nan = True
    tags.input_tags.sparse = True
    tags.input_tags.positive_only = family != "gaussian"
    tags.transformer_tags.preserves_dtype = ["float64"]
    return tags


def _total(scored: Sequence[FloatArray]) -> FloatArray:
    """Sum of log-likelihoods and of numbers of observations."""
    return np.sum(scored, axis=0)


def _map_stacks(X: MatricesLike, function: Callable[[Any], FloatArray]) -> Sequence[FloatArray]:
    """As ``each_table``, for tables with unrelated rows: small tables are stacked."""
    try:
        return [function(rows) for rows, _ in stacks(X)]
    except (TypeError, ValueError):  # processed one by one, errors name the client
        return each_table(X, function)
