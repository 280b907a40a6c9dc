"""Wrapper that applies any row-wise transformer of scikit-learn to clients."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.frozen import FrozenEstimator
from sklearn.utils import Tags, get_tags
from sklearn.utils.validation import check_is_fitted, validate_data

from .._compat import row_count, rows_of
from .._data.by_client import each_table
from .._data.features import set_features, store
from .._data.labels import check_no_labels, check_not_name, group_rows, warn_of_labels
from .._data.tables import (
    GIVE_TABLES,
    check_is_table,
    check_not_empty,
    check_not_vectors,
    is_client_list,
    unmasked,
)
from .._error_messages import error_context, label_repr, repr_of
from .._parameters import unfitted
from .._typing import ClientsLike, Transformed, available_if
from ._transformer import fitted_clients


def _inner_has(name: str) -> Callable[[Any], bool]:
    def has(estimator: PerClient) -> bool:
        getattr(getattr(estimator, "transformer_", estimator.transformer), name)
        return True

    return has


class PerClient(
    TransformerMixin,
    BaseEstimator,
    auto_wrap_output_keys=None,  # type: ignore[call-arg]
):
    """Apply one row-wise transformer of scikit-learn to the rows of each client.

    All clients share one transformer, as if their rows were pooled, and each client applies it to
    its own rows. The transformer has to treat every row independently.

    How it is fitted depends on the transformer:

    - *Stateless* transformers (``Normalizer``, ``Binarizer``, ``FunctionTransformer``, ...: those
      whose tag ``requires_fit`` is False) learn nothing from data, and nothing leaves a client.
    - Transformers with ``partial_fit`` (``MinMaxScaler``, ``MaxAbsScaler``, ``IncrementalPCA``,
      ...) are fitted in turn: each client updates the transformer with its rows and passes its
      state on. **The state contains everything that the transformer stores, and it is passed on
      uncompressed.** For ``MinMaxScaler``, these are the smallest and largest values so far; the
      state after the first client describes that client's rows only. The fit is exact if
      ``partial_fit`` is (as for the scalers); otherwise, it depends on the order of the clients. If
      a client without values in some column would leave NaN in the state for all clients, an error
      is raised.
    - Fitted transformers in a ``FrozenEstimator`` are used as they are.
    - All other transformers need all rows at once: they raise TypeError.

    Read more in :doc:`/preprocessing`.

    Parameters
    ----------
    transformer : estimator
        Transformer of scikit-learn, or with the same interface. ``fit`` fits a clone of it;
        ``set_output`` also changes the given transformer.

    Attributes
    ----------
    transformer_ : estimator
        The fitted transformer.
    uplink_bits_ : int
        Bits of the states that the clients passed on, to or through the server: 8 times the size in
        bytes of the pickled fitted attributes. 0 if nothing is learnt.
    downlink_bits_ : int
        Bits of the states that the clients received, to update and finally to apply them.
    n_clients_ : int
        Number of clients.
    client_ids_ : ndarray of shape (`n_clients_`,)
        Label of each client: the sorted labels from ``clients``, or else its position in the list.
        The transformer is fitted in this order.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, if the data had string names.

    See Also
    --------
    FederatedStandardScaler : Standardises from sums, without loss of digits.
    FederatedPCA : Principal components from sums.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.preprocessing import MinMaxScaler
    >>> from skfedem.preprocessing import PerClient
    >>> clients = [np.array([[0.0], [1.0]]), np.array([[4.0]])]
    >>> scaler = PerClient(MinMaxScaler()).fit(clients)
    >>> [rows.ravel().tolist() for rows in scaler.transform(clients)]
    [[0.0, 0.25], [1.0]]
    """

    transformer_: Any
    uplink_bits_: int
    downlink_bits_: int
    n_clients_: int
    client_ids_: NDArray[Any]
    n_features_in_: int
    feature_names_in_: NDArray[Any]

    __metadata_request__fit = {"clients": True}

    def __init__(self, transformer: Any) -> None:
        self.transformer = transformer

    def fit(self, X: ClientsLike, y: object = None, *, clients: ArrayLike | None = None) -> Self:
        """Fit the transformer to the rows of all clients, one client after the other.

        Parameters
        ----------
        X : list of tables, or table of shape (n_samples, n_features)
            A list with one table for each client; one table, with ``clients``; or one table alone,
            which is a single client. A table is two-dimensional, and of any type that the
            transformer accepts.
        y : Ignored
            Not used, present for scikit-learn's API. Pass client labels by keyword:
            ``clients=labels``.
        clients : array-like of shape (n_samples,), default=None
            Client label of each row of X, if X is one table.

        Returns
        -------
        self : PerClient

        Raises
        ------
        TypeError
            If the transformer can only be fitted to all rows at once.
        TypeError, ValueError
            If data are invalid; an earlier fit is then kept unchanged.

        Warns
        -----
        UserWarning
            If X has a column of the name of ``clients``, or if these have the index of X in another
            order, or look like measurements.
        """
        in_turn = _is_fitted_in_turn(self.transformer)
        checked = unfitted(self)
        tables, ids = _tables(checked, X, clients)
        transformer = clone(self.transformer)
        uplink = downlink = 0
        if in_turn:
            uplink, downlink = _fit_in_turn(transformer, tables, ids)
        else:
            if isinstance(transformer, FrozenEstimator):
                # The first table must have the features that the frozen transformer was fitted to.
                with _client_context(ids[0], len(tables)):
                    validate_data(transformer, tables[0], skip_check_array=True, reset=False)
            # Only the features are learnt, which all clients share.
            for label, table in zip(ids, tables, strict=True):
                with _client_context(label, len(tables)):
                    transformer.fit(table, None)
        store(
            self,
            fitted_clients(checked, ids),
            transformer_=transformer,
            uplink_bits_=uplink,
            downlink_bits_=downlink,
        )
        return self

    def transform(self, X: ClientsLike) -> Transformed:
        """Apply the transformer to rows.

        Parameters
        ----------
        X : table of shape (n_samples, n_features), or a list of them

        Returns
        -------
        X_new : table of shape (n_samples, n_features_new), or a tuple with one for each client

        Raises
        ------
        NotFittedError
            Before ``fit``.
        TypeError, ValueError
            If the transformer rejects the rows, or they have other features than the data of the
            fit; for a list, the error names the client.
        """
        check_is_fitted(self)
        if is_client_list(X):
            return each_table(X, self.transform)
        check_is_table(X)
        X = unmasked(X)
        if len(getattr(X, "shape", (0, 0))) == 2:  # else the transformer says what is wrong
            validate_data(self, X, skip_check_array=True, reset=False)
        new = self.transformer_.transform(X)
        if hasattr(X, "shape") and np.shape(new)[:1] != X.shape[:1]:
            got = np.shape(new)[0] if np.shape(new) else f"a {type(new).__name__}"
            raise ValueError(
                f"Expected a row for each of the {X.shape[0]} rows, got {got} from "
                f"{type(self.transformer_).__name__}. It has to transform each row by itself."
            )
        return new

    @available_if(_inner_has("inverse_transform"))
    def inverse_transform(self, X: ClientsLike) -> Transformed:
        """Undo ``transform``, if the transformer supports this.

        Parameters
        ----------
        X : table of shape (n_samples, n_features_new), or a list of them

        Returns
        -------
        X_original : table of shape (n_samples, n_features), or a tuple with one for each client

        Raises
        ------
        NotFittedError, TypeError, ValueError
            As in ``transform``.
        """
        check_is_fitted(self)
        if is_client_list(X):
            return each_table(X, self.inverse_transform)
        check_is_table(X)
        return self.transformer_.inverse_transform(unmasked(X))

    @available_if(_inner_has("get_feature_names_out"))
    def get_feature_names_out(self, input_features: ArrayLike | None = None) -> NDArray[Any]:
        """Names of the transformed features, as returned by the transformer.

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
        return self.transformer_.get_feature_names_out(input_features)

    @available_if(_inner_has("set_output"))
    def set_output(
        self, *, transform: Literal["default", "pandas", "polars"] | None = None
    ) -> Self:
        """Set the type of output of ``transform``, by the transformer's ``set_output``.

        Parameters
        ----------
        transform : {"default", "pandas", "polars"} or None, default=None

        Returns
        -------
        self : PerClient

        Raises
        ------
        ValueError
            If scikit-learn does not know this type of output.
        """
        for name in ("transformer", "transformer_"):
            if hasattr(self, name):
                getattr(self, name).set_output(transform=transform)
        return self

    def __sklearn_tags__(self) -> Tags:
        """Use the transformer's tags of its input and output."""
        tags, inner = super().__sklearn_tags__(), get_tags(self.transformer)
        tags.input_tags = inner.input_tags
        tags.transformer_tags = inner.transformer_tags
        tags.no_validation = inner.no_validation
        return tags


def _is_fitted_in_turn(transformer: Any) -> bool:
    """Whether clients fit the transformer in turn; raise if they cannot, but it needs a fit."""
    name = type(transformer).__name__
    if isinstance(transformer, type) or not hasattr(transformer, "transform"):
        raise TypeError(
            f"Expected a transformer, an object with `transform`, got {repr_of(transformer)}. Give "
            "an instance, as PerClient(MinMaxScaler())."
        )
    if isinstance(transformer, FrozenEstimator):
        check_is_fitted(transformer)
        return False
    if not get_tags(transformer).requires_fit:
        return False
    if not hasattr(transformer, "partial_fit"):
        raise TypeError(
            f"Expected a transformer with `partial_fit`, or one that needs no fit, got {name}: its "
            "`fit` cannot be continued at the next client. Use FederatedStandardScaler, "
            "FederatedPCA or a transformer with `partial_fit`, wrap the steps of a Pipeline one by "
            f"one, or fit {name} to rows that may be shared and give it in a FrozenEstimator."
        )
    return True


def _tables(
    checked: PerClient, X: Any, clients: ArrayLike | None
) -> tuple[list[Any], NDArray[Any]]:
    """Table and label of each client; the features are stored in ``checked``."""
    if is_client_list(X):
        check_no_labels(clients)
        check_not_empty(X, GIVE_TABLES)
        tables = [unmasked(table) for table in X]
        shapes = [_shape(table, f" for client {k}") for k, table in enumerate(tables)]
        set_features(checked, tables, shapes)
        return tables, np.arange(len(X))
    check_not_name(clients)
    check_not_vectors(X, clients)
    X = unmasked(X)
    _shape(X)
    validate_data(checked, X, skip_check_array=True)
    if clients is None:
        return [X], np.arange(1)
    warn_of_labels(X, clients)
    ids, order, offsets = group_rows(clients, row_count(X))
    rows = np.arange(offsets[-1]) if order is None else order
    if issparse(X):
        X = X.tocsr()  # not every format supports row indexing
    return [rows_of(X, part) for part in np.split(rows, offsets[1:-1])], ids


def _shape(table: Any, whose: str = "") -> tuple[int, ...]:
    """Shape of a table; raise if it is not a table, or has no rows."""
    check_is_table(table, whose)
    shape = table.shape if hasattr(table, "shape") else np.asarray(table).shape
    if len(shape) != 2 or not shape[0]:
        raise ValueError(
            f"Expected a 2-D table (rows by features) with rows{whose}, got shape {shape}. "
            f"{GIVE_TABLES}"
        )
    return shape


def _fit_in_turn(transformer: Any, tables: list[Any], ids: NDArray[Any]) -> tuple[int, int]:
    """Fit to one client after the other; return uplink and downlink bits of the states."""
    sizes: list[int] = []
    nan_since: dict[str, Any] = {}
    for label, table in zip(ids, tables, strict=True):
        with _client_context(label, len(tables)):
            transformer.partial_fit(table)
        state = _state(transformer)
        sizes.append(8 * len(pickle.dumps(state, protocol=5)))
        # Missing values are harmless if a later client replaces them.
        missing = [name for name, value in state.items() if _has_nan(value)]
        nan_since = {name: nan_since.get(name, label) for name in missing}
    _check_no_nan(transformer, nan_since)
    # Every state goes to the next client; the last one to all clients except the last client.
    return sum(sizes), sum(sizes[:-1]) + (len(sizes) - 1) * sizes[-1]


def _client_context(label: Any, n_clients: int) -> AbstractContextManager[None]:
    """Context in which error messages name the client, if there are several."""
    return nullcontext() if n_clients == 1 else error_context(f"At client {label_repr(label)}")


def _has_nan(value: Any) -> bool:
    return getattr(getattr(value, "dtype", None), "kind", None) == "f" and np.isnan(value).any()


def _check_no_nan(transformer: Any, nan_since: dict[str, Any]) -> None:
    """Raise if the last state has missing values; `nan_since` has where they arose."""
    if nan_since:
        name, label = next(iter(nan_since.items()))
        raise ValueError(
            f"Expected numbers in the state of {type(transformer).__name__} after client "
            f"{label_repr(label)}, got NaN in {name}, which would spread to all clients. Impute "
            "columns without a value at this client first, or use FederatedStandardScaler."
        )


def _state(transformer: Any) -> dict[str, Any]:
    """Fitted attributes; the parameters are known to all clients from the beginning."""
    given = set(transformer.get_params(deep=False))
    return {
        name: value
        for name, value in vars(transformer).items()
        if name not in given and not name.startswith("_sklearn")
    }
