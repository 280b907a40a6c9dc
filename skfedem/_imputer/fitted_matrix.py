"""Fitted matrices: attributes, natural parameters and means."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from .._data.cells import CellData
from .._data.frame_labels import check_labels
from .._data.matrices import checked_index
from .._error_messages import plural
from .._typing import FamilyName, FloatArray, IntArray
from ..clients.local import SetUpMessage
from ..models.matrix.families import Family, family_of
from ..models.matrix.theta import Effects, LowRank, Theta, dense, row_blocks
from .warnings import warn_of_means


class FittedMatrix(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Methods of a fitted matrix imputer, based on the attributes set by ``fit``."""

    row_factors_: FloatArray
    singular_values_: FloatArray
    column_factors_: FloatArray
    row_effects_: FloatArray
    column_effects_: FloatArray
    intercept_: float
    penalty_: float
    client_effects_: FloatArray | None
    client_effects_penalty_: float | None
    row_coef_: FloatArray
    column_coef_: FloatArray
    group_effects_: FloatArray | None
    row_covariate_names_: NDArray[Any]
    column_covariate_names_: NDArray[Any]
    row_groups_: NDArray[Any]
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
    negative_binomial_size_: float
    serial_correlation_: float
    n_clients_: int
    client_ids_: NDArray[Any]
    n_features_in_: int
    feature_names_in_: NDArray[Any]

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

    def _family(self) -> Family:
        return family_of(self._fitted_family, self.negative_binomial_size_)

    def _reading(self) -> tuple[float, Family, float]:
        """How to read cells: marker of missing ones, family, and origin (see ``CellData``)."""
        origin = self.intercept_ if self._fitted_family == "gaussian" else 0.0
        return self.missing_values, self._family(), origin

    def _theta(self) -> Theta:
        effects = Effects(self.intercept_, self.row_effects_, self.column_effects_)
        low_rank = LowRank(self.row_factors_, self.singular_values_, self.column_factors_)
        design = self._covariates.design
        terms = None if design is None else design.terms(self._coefficients)
        return Theta(effects._replace(coefficients=self._coefficients), low_rank, terms)

    def _effects_of_clients(self, data: CellData) -> FloatArray:
        """Effect of the client of each cell; 0 for clients that the fit did not know."""
        if self.client_effects_ is None:
            return np.zeros(len(data.rows))
        known = dict(zip(self.client_ids_.tolist(), self.client_effects_, strict=True))
        own = np.array([known.get(label, 0.0) for label in data.ids.tolist()])
        return np.repeat(own, np.diff(data.offsets))

    def _check_clients(self, data: CellData) -> None:
        """Raise if clients have effects, and these are not the clients of the fit."""
        if self.client_effects_ is not None and not np.array_equal(data.ids, self.client_ids_):
            raise ValueError(
                f"Expected the {plural(self.n_clients_, 'client')} of the fit, which have effects, "
                f"got {plural(len(data.ids), 'client')} with other labels. Give a list of them, or "
                "their labels."
            )

    def _warm_theta(self, data: CellData, known: dict[str, Any]) -> Theta | None:
        """θ from which a warm start continues, minus the origin of the data; None without one."""
        if not (self.warm_start and hasattr(self, "converged_")):
            return None
        self._check_matrix_of_fit(data, known)
        effects, low_rank, _ = self._theta().minus(data.origin)
        design = known["_covariates"].design
        n_coefficients = 0 if design is None else sum(design.sizes)
        same = len(effects.coefficients) == n_coefficients
        allowed = Effects(
            0.0 if self.effects == "none" else effects.intercept,
            effects.rows * (self.effects in ("both", "rows")),
            effects.columns * (self.effects in ("both", "columns")),
            effects.coefficients if same else np.zeros(n_coefficients),
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
        if self._family().is_of_counts:
            warn_of_means(theta, largest)
        for block in row_blocks(theta):
            theta[block] = self._family().mean(theta[block])
        return theta


def tags_of_matrices(tags: Tags, family: FamilyName) -> Tags:
    """scikit-learn's tags for imputers of a family."""
    tags.input_tags.allow_nan = True
    tags.input_tags.sparse = True
    tags.input_tags.positive_only = family != "gaussian"
    tags.transformer_tags.preserves_dtype = ["float64"]
    return tags
