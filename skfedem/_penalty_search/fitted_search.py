"""Methods of a fitted search, which are those of its best estimator."""

from __future__ import annotations

from copy import copy
from typing import Any

from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from .._typing import FloatArray, MatricesLike, Transformed
from ..impute import FederatedMatrixImputer


class FittedSearch(TransformerMixin, BaseEstimator):
    """Methods of a search that has set ``best_estimator_``."""

    best_estimator_: FederatedMatrixImputer
    best_params_: dict[str, Any]
    best_score_: float
    best_index_: int
    baselines_: dict[str, Any]
    cv_results_: dict[str, Any]
    n_iter_: int
    penalty_max_: float
    n_splits_: int
    n_features_in_: int
    feature_names_in_: NDArray[Any]

    def transform(self, X: MatricesLike, *, offset: MatricesLike | None = None) -> Transformed:
        """Fill the missing cells, as :meth:`FederatedMatrixImputer.transform` does.

        Parameters
        ----------
        X : list of clients, or array-like of shape (n_rows, n_columns)
        offset : list of array-likes, or array-like, default=None

        Returns
        -------
        filled : ndarray of shape (n_rows, n_columns), or a tuple with one for each client

        Raises
        ------
        NotFittedError
            Before ``fit``.
        TypeError, ValueError
            If a table is invalid, or does not fit the data of the fit.
        """
        check_is_fitted(self)
        # By the imputer's own set_output: that of this class would only wrap the first table of a
        # tuple.
        imputer = copy(self.best_estimator_)
        imputer._sklearn_output_config = getattr(self, "_sklearn_output_config", {})
        return imputer.transform(X, offset=offset)

    def get_feature_names_out(self, input_features: ArrayLike | None = None) -> NDArray[Any]:
        """Names of the columns, as by :meth:`FederatedMatrixImputer.get_feature_names_out`.

        Parameters
        ----------
        input_features : array-like of str, default=None

        Returns
        -------
        names : ndarray of str

        Raises
        ------
        NotFittedError
            Before ``fit``.
        ValueError
            If the names differ from those of the fit.
        """
        check_is_fitted(self)
        return self.best_estimator_.get_feature_names_out(input_features)

    def fitted_mean(
        self, rows: ArrayLike | None = None, columns: ArrayLike | None = None
    ) -> FloatArray:
        """Fitted means, as by :meth:`FederatedMatrixImputer.fitted_mean`.

        Parameters
        ----------
        rows, columns : array-like of int, default=None
            Positions of rows and columns, negative ones from the end; None for all.

        Returns
        -------
        means : ndarray of shape (len(rows), len(columns))

        Raises
        ------
        NotFittedError
            Before ``fit``.
        IndexError, TypeError, ValueError
            If positions are out of range, or no integers.
        """
        check_is_fitted(self)
        return self.best_estimator_.fitted_mean(rows, columns)

    def score(
        self, X: MatricesLike, y: object = None, *, offset: MatricesLike | None = None
    ) -> float:
        """Mean log-likelihood per observation, in nats, under ``best_estimator_``.

        Parameters
        ----------
        X : list of clients, or array-like of shape (n_rows, n_columns)
            As in :meth:`FederatedMatrixImputer.score`.
        y : Ignored
        offset : list of array-likes, or array-like, default=None

        Returns
        -------
        log_likelihood : float

        Raises
        ------
        NotFittedError
            Before ``fit``.
        TypeError, ValueError
            If a table is invalid, or no cell is observed.
        """
        check_is_fitted(self)
        return self.best_estimator_.score(X, offset=offset)
