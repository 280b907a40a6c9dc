"""What the transformers from sums have in common."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_array, check_is_fitted

from .._data.by_client import by_client
from .._data.features import features_of
from .._data.tables import as_numbers
from .._typing import ClientsLike, FloatArray, Table, Transformed
from ..clients.local import SetUpMessage


class FederatedTransformer(TransformerMixin, BaseEstimator):
    """Base class of the transformers that are fitted from sums over the clients' rows."""

    setup_messages_: list[SetUpMessage]
    uplink_bits_: int
    downlink_bits_: int
    n_clients_: int
    client_ids_: NDArray[Any]
    n_features_in_: int
    feature_names_in_: NDArray[Any]

    __metadata_request__fit = {"clients": True}

    def fit(self, X: ClientsLike, y: object = None, *, clients: ArrayLike | None = None) -> Self:
        """Fit the transformation to the rows of all clients.

        Parameters
        ----------
        X : list of array-likes, or array-like of shape (n_samples, n_features)
            A list with one table (n_i, n_features) for each client; one table, with ``clients``; or
            one table alone, which is a single client.
        y : Ignored
            Not used, present for scikit-learn's API. Pass client labels by keyword:
            ``clients=labels``.
        clients : array-like of shape (n_samples,), default=None
            Client label of each row of X, if X is one table.

        Returns
        -------
        self : FederatedTransformer

        Raises
        ------
        TypeError, ValueError
            If data or parameters are invalid; an earlier fit is then kept unchanged.

        Warns
        -----
        UserWarning
            If a feature has no value at any client; if X has a column of the name of ``clients``,
            or if these have the index of X in another order, or look like measurements.
        """
        self._fit(X, clients)
        return self

    def transform(self, X: ClientsLike) -> Transformed:
        """Apply the fitted transformation to rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or a list of them

        Returns
        -------
        X_new : ndarray of shape (n_samples, n_features_new), or a tuple with one for each client
            Transformed rows, in the precision of X.

        Raises
        ------
        NotFittedError
            Before ``fit``.
        TypeError, ValueError
            If X is no such table, has invalid values, or other features than the data of the fit;
            for a list, the error names the client.
        """
        check_is_fitted(self)
        return by_client(X, self._transformed, container=self)

    def inverse_transform(self, X: ClientsLike) -> Transformed:
        """Map transformed rows back to the units of the fit.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features_new), or a list of them

        Returns
        -------
        X_original : ndarray of shape (n_samples, n_features), or a tuple with one for each client
            Rows that ``transform`` maps to X, in the precision of X.

        Raises
        ------
        NotFittedError, TypeError, ValueError
            As in ``transform``.
        """
        check_is_fitted(self)
        return by_client(X, self._inverse_transformed)

    @abstractmethod
    def _fit(self, X: ClientsLike, clients: ArrayLike | None) -> None:
        """``fit``."""

    @abstractmethod
    def _transformed(self, X: Any) -> FloatArray:
        """``transform`` of one table."""

    @abstractmethod
    def _inverse_transformed(self, X: Any) -> FloatArray:
        """``inverse_transform`` of one table."""

    def __sklearn_tags__(self) -> Tags:
        """float32 stays float32."""
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def fitted_clients(checked: BaseEstimator, ids: NDArray[Any]) -> dict[str, Any]:
    """Fitted attributes that describe the clients and the features, which ``checked`` knows."""
    return {"n_clients_": len(ids), "client_ids_": ids, **features_of(checked)}


def read_transformed(X: Table, n_columns: int, *, allow_nan: bool = False) -> NDArray[Any]:
    """Validate the table passed to ``inverse_transform``."""
    rows = check_array(
        as_numbers(X),
        dtype=[np.float64, np.float32],
        ensure_all_finite="allow-nan" if allow_nan else True,
        ensure_min_features=0,  # as returned by a PCA without components
        input_name="X",
    )
    if rows.shape[1] != n_columns:
        raise ValueError(
            f"Expected {n_columns} columns, as transform gives them, got {rows.shape[1]}."
        )
    return rows
