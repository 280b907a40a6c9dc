"""What a fitted matrix model computes: filled cells, means and scores."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from ._compat import in_container, in_containers
from ._federation import client_groups, offsets_of
from ._input.cells import (
    check_clients_of_sites,
    check_matrix,
    check_triplets,
    refuse_triplets_alone,
)
from ._input.clients import stacks, together
from ._input.matrices import checked_index, each_matrix, holds_clients
from ._input.table_labels import check_labels, is_frame, table_labels
from ._matrix_warnings import warn_of_means
from ._typing import FamilyName, FloatArray, MatricesLike, Transformed
from .models.families import FAMILIES
from .models.low_rank_theta import LowRank, Theta, at, dense, in_parts
from .models.main_effects import LEAST_PENALTY, Effects
from .models.row_regression import fit_rows

# Numbers of a list that are scored at once, so that little memory is needed beyond them.
_SCORED_TOGETHER = 2**20


class FittedMatrix(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Methods of a fitted matrix imputer, which use the attributes that ``fit`` has set."""

    def transform(self, X: MatricesLike) -> Transformed:
        """Fill the missing cells with their fitted means; observed cells are kept.

        Parameters
        ----------
        X : list of clients, or array-like of shape (n_rows, n_columns)
            In a list of clients who share their rows (``rows="shared"``), and in triplets alone if
            `fit` was given such, missing cells get ``fitted_mean``. Other rows are taken one by
            one, so that they may be new: the row's effect and factor are solved for from its
            observed cells, with the column side fixed. Labels of columns must be those of the fit,
            in the same order; so must those of shared rows.

        Returns
        -------
        filled : ndarray of shape (n_rows, n_columns), or a tuple with one for each client
            For triplets, a matrix of the shape of the fit; for a client that is a 3-D array, an
            array of shape (n_observers, n_rows, n_columns). Means are never rounded. A cell with
            several observations by one client (in triplets alone, by anybody) gets their mean.

        Raises
        ------
        NotFittedError
            Before ``fit``.
        TypeError, ValueError
            For what is no matrix of the fit's columns (and rows, where they are shared), or cells
            that the family does not have; errors in a list name the client.

        Warns
        -----
        UserWarning
            For Poisson means that are far above those of all observed cells, or are capped because
            exp would overflow.
        """
        check_is_fitted(self)
        form = self._form(X)
        # Those of sites are the same for all tables, and warn once.
        site_means = None if form == "rows" else self.fitted_mean()
        fill = partial(self._filled, site_means=site_means)
        # The index of triplets labels no sites.
        if not holds_clients(X):
            filled = fill(X, form)
            return in_container(self, filled) if form == "triplets" else filled
        each = each_matrix if form == "sites" else partial(together, one_by_one=each_matrix)
        tables = [None] * len(X) if self._has_triplets else X
        return in_containers(self, self._answers(X, fill, each, self._stacked), tables)

    def get_feature_names_out(self, input_features: ArrayLike | None = None) -> NDArray[Any]:
        """Names of the columns: those of the fit, as text where they were dates or numbers.

        Parameters
        ----------
        input_features : array-like of str, default=None
            Must be the names of the fit, if that had names of text.

        Returns
        -------
        names : ndarray of str
            "x0", "x1", ... where the columns of the fit had no labels.

        Raises
        ------
        NotFittedError
            Before ``fit``.
        ValueError
            For names that are not those of the fit.
        """
        check_is_fitted(self)
        labels = self._column_labels
        if input_features is None and not hasattr(self, "feature_names_in_") and labels is not None:
            return np.array([str(label) for label in labels], dtype=object)
        return super().get_feature_names_out(input_features)

    def fitted_mean(
        self, rows: ArrayLike | None = None, columns: ArrayLike | None = None
    ) -> FloatArray:
        """Fitted means of the fitted rows, or of some of them.

        Parameters
        ----------
        rows, columns : array-like of int, default=None
            Which rows and columns, with negative numbers counting from the end; None for all. If
            the whole matrix is too large, ask for parts of it.

        Returns
        -------
        means : ndarray of shape (len(rows), len(columns))
            Expected values, probabilities or counts, by the family.

        Raises
        ------
        NotFittedError
            Before ``fit``.
        IndexError
            For numbers of rows or columns that there are not.
        TypeError, ValueError
            For numbers that are no integers, or masked.

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
            Clients who share their rows, and triplets alone if `fit` was given such, are scored
            under the fitted model, so that observers can be held out and scored. Other rows (all of
            them, if `fit` was given one matrix with ``clients``, so that each row was its
            client's own) are solved for as in ``transform``, but no cell from itself: every second
            observed cell of a row is predicted from the others, and these from it.
        y : Ignored

        Returns
        -------
        log_likelihood : float
            Gaussian cells have variance 1: where values differ by more than 1e7, the rounding of
            their squares leaves few digits of the result.

        Raises
        ------
        NotFittedError
            Before ``fit``.
        TypeError, ValueError
            As ``transform``, and if there is no observed cell at all. A single client without one
            does no harm.
        """
        check_is_fitted(self)
        log_likelihood, n_observations = self._scored(X)
        if not n_observations:
            raise ValueError(
                "Expected at least one observed cell to score, got none: all cells are missing. "
                "Check what marks missing cells (missing_values)."
            )
        return float(log_likelihood / n_observations)

    def _family(self):
        return FAMILIES[self._fitted_family]

    def _origin(self):
        """Origin of cells where they are scored or regressed on, see ``CellData``."""
        return self.intercept_ if self._fitted_family == "gaussian" else 0.0

    def _theta(self):
        effects = Effects(self.intercept_, self.row_effects_, self.column_effects_)
        low_rank = LowRank(self.row_factors_, self.singular_values_, self.column_factors_)
        return Theta(effects, low_rank)

    def _means(self, theta, largest):
        """Means of cells, in place of θ; ``largest`` is that of an observed one, for each row."""
        if self._fitted_family == "poisson":
            warn_of_means(theta, largest)
        for own in in_parts(theta):
            theta[own] = self._family().mean(theta[own])
        return theta

    def _form(self, X):
        """Form of a table that is in no list, or of the matrices of a list, see ``_cells``."""
        if holds_clients(X):
            return "sites" if self._has_sites else "rows"
        return "triplets" if self._has_triplets_alone and not issparse(X) else "rows"

    def _answers(self, X, answer, each, joined):
        """Answers for the tables of a list, by a function of a table and its form.

        ``each``, as ``each_matrix``, applies a function to all tables. ``joined`` makes one answer
        of those for the matrices of a client's 3-D array.
        """
        of_matrix = self._form(X)

        def of_client(table):
            if holds_clients(table):
                return joined(each(table, lambda matrix: answer(matrix, of_matrix)))
            is_matrix = issparse(table) or not self._has_triplets
            return answer(table, of_matrix if is_matrix else "triplets")

        return each(X, of_client)

    def _cells(self, table, form):
        """Cells of one table; its form is "sites" of the fit, other "rows", or "triplets"."""
        given = self.missing_values, self._family(), self._origin()
        if form == "triplets":
            return check_triplets(table, self._shape, *given)
        if form == "rows" and self._has_triplets:
            refuse_triplets_alone(table, self._shape[1])
        cells = check_matrix(self, table, *given)
        rows, columns = table_labels(table)
        check_labels("column", self._column_labels, columns, "Reindex it")
        if form == "sites":
            self._check_sites(rows, cells.shape[0])
        return cells

    def _check_sites(self, labels, n_rows):
        """Raise unless a table has the rows of the fit."""
        if n_rows != self._shape[0]:
            raise ValueError(
                f"Expected the {self._shape[0]} rows of the fit, got {n_rows}. Give a matrix "
                "alone, not in a list, to impute other rows."
            )
        what_to_do = "Reindex it, or give it alone, not in a list, to impute other rows"
        check_labels("row", self._row_labels, labels, what_to_do)

    def _filled(self, table, form, site_means):
        """Matrix of one table, whose missing cells have their means."""
        cells = self._cells(table, form)
        filled = self._solved_means(cells) if form == "rows" else site_means.copy()
        filled[cells.rows, cells.columns] = cells.values
        return filled

    def _stacked(self, filled):
        """A client's filled matrices as one 3-D array, if ``set_output`` asks for arrays."""
        asked = in_container(self, filled[0])
        if asked is not filled[0]:
            raise ValueError(
                f"a 3-D array does not fit a {type(asked).__name__}, as set_output asks for. Give "
                "each of its matrices as a client."
            )
        return np.stack(filled)

    def _solved_means(self, cells):
        """Means of rows that are not those of the fit."""
        theta = dense(self._solved_rows(cells))
        largest = np.full(len(theta), self._largest_theta)
        np.maximum.at(largest, cells.rows, theta[cells.rows, cells.columns])
        return self._means(theta, largest)

    def _solved_rows(self, cells):
        """θ of rows that are not those of the fit, from their observed cells."""
        root = np.sqrt(self.singular_values_)
        row_effects, factors = fit_rows(
            cells._replace(values=cells.values - cells.origin),
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

    def _solved_across(self, cells):
        """θ of each cell of other rows: every second of a row's cells, from the rest of the row."""
        first = offsets_of(np.bincount(cells.rows, minlength=cells.shape[0]))
        is_second = (np.arange(len(cells.rows)) - first[cells.rows]) % 2 == 1
        natural = np.empty(len(cells.rows))
        for asked in (is_second, ~is_second):
            theta = self._solved_rows(_those(cells, ~asked))
            natural[asked] = _natural(theta, _those(cells, asked))
        return natural

    def _scored_cells(self, natural, cells):
        """Log-likelihood and number of all observations, under θ of each cell, less the origin."""
        log_partition = self._family().log_partition(natural)
        terms = (cells.values - cells.origin) * natural - log_partition
        log_likelihood = cells.counts @ terms + cells.log_base_measure.sum()
        return np.array([log_likelihood, cells.counts.sum()])

    def _scored(self, X):
        """Log-likelihood and number of all observations; tables go together where they may."""
        if not holds_clients(X):
            return self._scored_table(X, self._form(X))
        has_labels = hasattr(self, "feature_names_in_") or any(map(is_frame, X))
        if self._has_sites and len(X) and not has_labels:
            with suppress(TypeError, ValueError):  # one by one, errors name the client
                return self._scored_under_fit(X)
        each = each_matrix if self._has_sites else _each_stack
        return _total(self._answers(X, self._scored_table, each, _total))

    def _scored_table(self, table, form):
        """As ``_scored``, of one table."""
        cells = self._cells(table, form)
        if form == "rows":
            return self._scored_cells(self._solved_across(cells), cells)
        return self._scored_cells(_natural(self._theta(), cells), cells)

    def _scored_under_fit(self, X):
        """As ``_scored``, of clients who share the sites of the fit, in tables without labels."""
        theta, total = self._theta(), np.zeros(2)
        sizes = [table.nnz if issparse(table) else np.size(table) for table in X]
        for group in client_groups(offsets_of(sizes), _SCORED_TOGETHER):
            cells = check_clients_of_sites(
                X[group],
                self._shape,
                self.missing_values,
                self._family(),
                self._origin(),
                are_triplets=self._has_triplets,
            )
            total += self._scored_cells(_natural(theta, cells), cells)
        return total


def _those(cells, chosen):
    """Some of the cells of one table."""
    rows, columns = cells.rows[chosen], cells.columns[chosen]
    values, counts = cells.values[chosen], cells.counts[chosen]
    return cells._replace(rows=rows, columns=columns, values=values, counts=counts)


def _natural(theta, cells):
    """θ of each cell, counted from the cells' origin."""
    effects = theta.effects._replace(intercept=theta.effects.intercept - cells.origin)
    return at(theta._replace(effects=effects), cells.rows, cells.columns)


def tags_of_matrices(tags: Tags, family: FamilyName) -> Tags:
    """scikit-learn's tags of estimators of matrices with missing cells, for a named family."""
    tags.input_tags.allow_nan = True
    tags.input_tags.sparse = True
    tags.input_tags.positive_only = family != "gaussian"
    tags.transformer_tags.preserves_dtype = ["float64"]
    return tags


def _total(scored):
    """Log-likelihood and number of all observations, of those in parts."""
    return np.sum(scored, axis=0)


def _each_stack(X, answer):
    """As ``each_matrix``, of tables whose rows have nothing in common: small ones go together."""
    try:
        return [answer(rows) for rows, _ in stacks(X)]
    except (TypeError, ValueError):  # one by one, errors name the client
        return each_matrix(X, answer)
