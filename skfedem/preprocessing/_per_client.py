"""Any row-wise transformer of scikit-learn, for client lists."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from inspect import signature
from typing import Any, Literal, Self

import numpy as np
import sklearn
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.utils import Tags, get_tags
from sklearn.utils.metadata_routing import get_routing_for_object
from sklearn.utils.validation import check_is_fitted, validate_data

from .._compat import row_count, rows_of
from .._input.client_labels import grouped
from .._input.clients import check_columns, each_client, refuse_labels_of_a_list, store
from .._input.tables import (
    GIVE_TABLES,
    is_client_list,
    refuse_no_clients,
    refuse_other_frames,
    refuse_uneven_rows,
    refuse_vectors,
    refuse_what_is_no_table,
    unmasked,
)
from .._messages import naming, short, shown
from .._parameters import unfitted
from .._typing import ClientsLike, Transformed, available_if
from ._fitted import describe


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

    There is one transformer for all clients, as if their rows were pooled; each client applies it
    to its own rows. It has to treat rows one by one.

    How it is fitted depends on what it is:

    - *Stateless* ones, which learn nothing from data (``Normalizer``, ``Binarizer``,
      ``FunctionTransformer``, ...: those whose tag ``requires_fit`` is False), need no fit, and
      nothing leaves a client.
    - Those with ``partial_fit`` (``MinMaxScaler``, ``MaxAbsScaler``, ``IncrementalPCA``, ...)
      travel: the first client fits the transformer to its rows and hands its state on, the next
      client updates it by its own rows, and so on to the last. **The state is whatever the
      transformer keeps, and it is handed on uncompressed.** That of ``MinMaxScaler`` holds the
      smallest and the largest value seen so far; the state after the first client is about its
      rows alone. Where ``partial_fit`` is exact (as for the scalers), so is this fit; elsewhere it
      depends on the order of the clients. A client that has no value in some column is refused if
      this would leave NaN in the state for all clients.
    - A fitted transformer in a ``FrozenEstimator`` is used as it is.
    - Others need all rows at once, and raise TypeError.

    Read more in :doc:`/preprocessing`.

    Parameters
    ----------
    transformer : estimator
        Transformer of scikit-learn, or one with the same interface. ``fit`` fits a clone of it;
        ``set_output`` applies to the given transformer, too.

    Attributes
    ----------
    transformer_ : estimator
        The fitted transformer.
    uplink_bits_ : int
        Bits of the states that the clients handed on, to the server or by way of it: 8 times the
        bytes of what ``fit`` set, pickled. 0 if nothing is learnt.
    downlink_bits_ : int
        Bits of the states that the clients got, to update them and, at the end, to apply them.
    n_clients_ : int
        Number of clients.
    client_ids_ : ndarray of shape (`n_clients_`,)
        Label of each client: sorted labels with ``clients=``, else positions in the list. The
        transformer travels in this order.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, if the data had string names.

    See Also
    --------
    FederatedStandardScaler : Needs sums only, and keeps all digits.
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
        """Fit the transformer to one client after the other.

        Parameters
        ----------
        X : list of tables, or table of shape (n_samples, n_features)
            One table for each client; or one table with ``clients``; or one table alone, which is
            one client. A table is two-dimensional; beyond that, it is whatever the transformer
            takes.
        y : Ignored
            By scikit-learn's convention. Pass labels of clients by keyword: ``clients=labels``.
        clients : array-like of shape (n_samples,), default=None
            Client label of each row of X, when X is one table.

        Returns
        -------
        self : PerClient

        Raises
        ------
        TypeError
            For a transformer that can only be fitted to all rows at once.
        TypeError, ValueError
            For invalid data, or a transformer that requests ``sample_weight``; an earlier fit is
            then kept.
        """
        travels = _has_to_travel(self.transformer)
        if travels:
            _refuse_requests(self.transformer)
        checked = unfitted(self)
        tables, ids = _tables(checked, X, clients)
        transformer = clone(self.transformer)
        uplink = downlink = 0
        if travels:
            uplink, downlink = _travel(transformer, tables, ids)
        else:
            if isinstance(transformer, FrozenEstimator):
                # The features have to be those of the rows that it was fitted to.
                with _naming(ids[0], len(tables)):
                    validate_data(transformer, tables[0], skip_check_array=True, reset=False)
            # Only the features are learnt. The first client comes last, so that they are its own.
            for label, table in [*zip(ids, tables, strict=True)][::-1]:
                with _naming(label, len(tables)):
                    transformer.fit(table, None)
        store(
            self,
            describe(checked, ids),
            transformer_=transformer,
            uplink_bits_=uplink,
            downlink_bits_=downlink,
        )
        return self

    def transform(self, X: ClientsLike) -> Transformed:
        """Transform rows.

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
            For rows that the transformer refuses, or of other features than those of the fit;
            errors in a list name the client.
        """
        check_is_fitted(self)
        if is_client_list(X):
            return each_client(X, self.transform)
        refuse_what_is_no_table(X)
        X = unmasked(X)
        if len(getattr(X, "shape", (0, 0))) == 2:  # else the transformer says what is wrong
            validate_data(self, X, skip_check_array=True, reset=False)
        new = self.transformer_.transform(X)
        if hasattr(X, "shape") and np.shape(new)[:1] != X.shape[:1]:
            got = np.shape(new)[0] if np.shape(new) else f"a {type(new).__name__}"
            raise ValueError(
                f"Expected a row for each of the {X.shape[0]} rows, got {got} from "
                f"{type(self.transformer_).__name__}. It has to treat rows one by one."
            )
        return new

    @available_if(_inner_has("inverse_transform"))
    def inverse_transform(self, X: ClientsLike) -> Transformed:
        """Undo ``transform``, where the transformer can.

        Parameters
        ----------
        X : table of shape (n_samples, n_features_new), or a list of them

        Returns
        -------
        X_original : table of shape (n_samples, n_features), or a tuple with one for each client

        Raises
        ------
        NotFittedError
            Before ``fit``.
        TypeError, ValueError
            For rows that the transformer refuses; errors in a list name the client.
        """
        check_is_fitted(self)
        if is_client_list(X):
            return each_client(X, self.inverse_transform)
        refuse_what_is_no_table(X)
        return self.transformer_.inverse_transform(unmasked(X))

    @available_if(_inner_has("get_feature_names_out"))
    def get_feature_names_out(self, input_features: ArrayLike | None = None) -> NDArray[Any]:
        """Names of the transformed features, as the transformer gives them.

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
            For names that are not those of the fit.
        """
        check_is_fitted(self)
        return self.transformer_.get_feature_names_out(input_features)

    @available_if(_inner_has("set_output"))
    def set_output(
        self, *, transform: Literal["default", "pandas", "polars"] | None = None
    ) -> Self:
        """Choose what ``transform`` gives, by the transformer's own ``set_output``.

        Parameters
        ----------
        transform : {"default", "pandas", "polars"}, default=None
            None changes nothing.

        Returns
        -------
        self : PerClient

        Raises
        ------
        ValueError
            For a container that scikit-learn does not have.
        """
        for name in ("transformer", "transformer_"):
            if hasattr(self, name):
                getattr(self, name).set_output(transform=transform)
        return self

    def __sklearn_tags__(self) -> Tags:
        """Take the transformer's tags where they are about its input and output."""
        tags, inner = super().__sklearn_tags__(), get_tags(self.transformer)
        tags.input_tags = inner.input_tags
        tags.transformer_tags = inner.transformer_tags
        tags.no_validation = inner.no_validation
        return tags


def _has_to_travel(transformer: Any) -> bool:
    """Whether the transformer is fitted by clients in turn; raise if it cannot be."""
    name = type(transformer).__name__
    if isinstance(transformer, type) or not hasattr(transformer, "transform"):
        raise TypeError(
            f"Expected a transformer, an object with `transform`, got {short(transformer)}. Give "
            "an instance, as PerClient(MinMaxScaler())."
        )
    if isinstance(transformer, FrozenEstimator):
        check_is_fitted(transformer)
        return False
    if not get_tags(transformer).requires_fit:
        return False
    if not hasattr(transformer, "partial_fit"):
        if "clients" in signature(transformer.fit).parameters:
            raise TypeError(
                f"Expected a transformer of scikit-learn, got {name}, which takes the clients' "
                "tables itself. Use it without PerClient."
            )
        if isinstance(transformer, SimpleImputer) and transformer.strategy == "mean":
            raise TypeError(
                f"Expected a transformer with `partial_fit`, or one that needs no fit, got {name}. "
                "To fill in the mean of all clients, use FederatedStandardScaler and, after it, "
                "PerClient(FunctionTransformer(numpy.nan_to_num))."
            )
        raise TypeError(
            f"Expected a transformer with `partial_fit`, or one that needs no fit, got {name}: its "
            "`fit` cannot go on at the next client. Wrap the steps of a Pipeline one by one; use "
            "FederatedStandardScaler or FederatedPCA, a transformer with `partial_fit`, or fit "
            f"{name} to rows that may be shared (one of zeros, if it learns nothing from them but "
            f"the columns) and give it as PerClient(FrozenEstimator({name.lower()}))."
        )
    return True


def _refuse_requests(transformer: Any) -> None:
    """Raise for a transformer that asks for weights of rows: it would be fitted without them."""
    if not sklearn.get_config()["enable_metadata_routing"]:
        return  # nobody can have asked
    routing = get_routing_for_object(transformer)
    for method in ("fit", "partial_fit"):
        asked = getattr(routing, method, None)
        if asked is not None and asked.requests.get("sample_weight") not in (None, False):
            raise ValueError(
                f"Expected a transformer without weights of rows, got {short(transformer)}, which "
                f"requests sample_weight for {method}. Every row counts alike here: withdraw the "
                f"request with set_{method}_request(sample_weight=False)."
            )


def _tables(
    checked: PerClient, X: Any, clients: ArrayLike | None
) -> tuple[list[Any], NDArray[Any]]:
    """Each client's table as given, and the clients' labels; ``checked`` notes the features."""
    if is_client_list(X):
        refuse_labels_of_a_list(clients)
        refuse_no_clients(X, GIVE_TABLES)
        tables = [unmasked(table) for table in X]
        shapes = [_shape(table, f" for client {k}") for k, table in enumerate(tables)]
        check_columns(checked, tables, shapes)
        return tables, np.arange(len(X))
    refuse_vectors(X, clients)
    refuse_what_is_no_table(X)
    X = unmasked(X)
    _shape(X)
    validate_data(checked, X, skip_check_array=True)
    if clients is None:
        return [X], np.arange(1)
    ids, order, offsets = grouped(clients, row_count(X))
    rows = np.arange(offsets[-1]) if order is None else order
    if issparse(X):
        X = X.tocsr()  # not every format has rows to take
    return [rows_of(X, own) for own in np.split(rows, offsets[1:-1])], ids


def _shape(table: Any, whose: str = "") -> tuple[int, ...]:
    """Shape of a table; raise for what is no table, or has no rows."""
    refuse_other_frames(table, whose)
    if isinstance(table, list | tuple):
        refuse_uneven_rows(table, f" of the table{whose}")
    shape = table.shape if hasattr(table, "shape") else np.asarray(table).shape
    if len(shape) != 2 or not shape[0]:
        got = f"shape {shape}" if shape else f"a {type(table).__name__}"
        raise ValueError(
            f"Expected a 2-D table (rows by features) with rows{whose}, got {got}. {GIVE_TABLES}"
        )
    return shape


def _travel(transformer: Any, tables: list[Any], ids: NDArray[Any]) -> tuple[int, int]:
    """Fit to one client after the other; return the bits of the states, up and down."""
    sizes: list[int] = []
    spoiled: dict[str, Any] = {}
    for label, table in zip(ids, tables, strict=True):
        with _naming(label, len(tables)):
            transformer.partial_fit(table)
        # Missing values that a later client replaces do no harm.
        spoiled = {name: spoiled.get(name, label) for name in _missing(transformer)}
        sizes.append(8 * len(pickle.dumps(_state(transformer), protocol=5)))
    _refuse_missing(transformer, spoiled)
    # Each state but the last goes to the next client; the last, to all but the one who made it.
    return sum(sizes), sum(sizes[:-1]) + (len(sizes) - 1) * sizes[-1]


def _naming(label: Any, n_clients: int) -> AbstractContextManager[None]:
    """Context in which errors name the client, if there are several."""
    return nullcontext() if n_clients == 1 else naming(f"At client {shown(label)}")


def _missing(transformer: Any) -> list[str]:
    """Names of the parts of a state that have missing values."""
    return [
        name
        for name, value in _state(transformer).items()
        if getattr(getattr(value, "dtype", None), "kind", None) == "f" and np.isnan(value).any()
    ]


def _refuse_missing(transformer: Any, spoiled: dict[str, Any]) -> None:
    """Raise if missing values are left in the last state; `spoiled` says where they came in."""
    if spoiled:
        name, label = next(iter(spoiled.items()))
        raise ValueError(
            f"Expected numbers in the state of {type(transformer).__name__} after client "
            f"{shown(label)}, got NaN in {name}, and all clients would get it: a column of which "
            "this client has no value does that. Impute the column first, leave the client out, "
            "or use FederatedStandardScaler, which counts the values there are."
        )


def _state(transformer: Any) -> dict[str, Any]:
    """What ``fit`` set; the parameters are known to everyone from the beginning."""
    given = set(transformer.get_params(deep=False))
    return {
        name: value
        for name, value in vars(transformer).items()
        if name not in given and not name.startswith("_sklearn")
    }
