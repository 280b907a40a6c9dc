"""Validation and stacking of the rows of all clients. The user's data are never modified."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data

from .._federation import (
    Federation,
    offsets_of,
    owners_of,
    sample_weight_of,
    weights_of_clients,
)
from .._messages import label_repr, warn
from .._rows import JoinedRows, ReorderedRows, Rows, precision_of
from .._typing import (
    ClientsLike,
    ClientWeights,
    FloatArray,
    IntArray,
    RowWeights,
    Table,
)
from .client_labels import grouped, refuse_name, warn_of_labels
from .entries import client_rows, table_of_numbers
from .finite import check_finite
from .sample_weight import check_row_weights, check_weights, weights_of_table
from .tables import (
    GIVE_TABLES,
    are_reordered,
    column_names,
    is_client_list,
    is_mapped,
    refuse_no_clients,
    refuse_other_frames,
    refuse_vectors,
    shorten,
)

# Up to this number of bytes, unordered tables are copied in the order of clients, which is faster
# to read; larger tables are not copied.
_LARGEST_COPY = 2**28


class ClientData(NamedTuple):
    """Validated rows of all clients, stacked in client order, and the clients' labels.

    ``sample_weight`` has a positive weight for each row, or is None if all are equal.
    """

    rows: Rows
    offsets: IntArray
    ids: NDArray[Any]
    sample_weight: FloatArray | None = None


def check_clients(
    estimator: BaseEstimator,
    X: ClientsLike,
    clients: ArrayLike | None = None,
    sample_weight: RowWeights | None = None,
    *,
    allow_nan: bool = False,
) -> ClientData:
    """Validate training data; set ``n_features_in_`` and ``feature_names_in_``.

    Parameters
    ----------
    estimator : estimator
        Estimator for scikit-learn's checks of features and their names.
    X : list of 2-D arrays or DataFrames, or one 2-D array or DataFrame
    clients : array-like of shape (n_samples,), default=None
        Client label of each row, if X is one table.
    sample_weight : array-like of shape (n_samples,), or a list of them, default=None
        Weight of each row, as a list with one array for each client if X is a list. Rows of weight
        zero are dropped.
    allow_nan : bool, default=False
        Whether values may be NaN.

    Returns
    -------
    data : ClientData

    Raises
    ------
    TypeError, ValueError
        If the data are invalid; the message names the client.
    """
    if is_client_list(X):
        refuse_labels_of_a_list(clients)
        data = _from_list(estimator, X, allow_nan)
        weights = None if sample_weight is None else check_row_weights(X, sample_weight)
        return _weighted(data, weights)
    refuse_name(clients)
    n_dimensions, shape = getattr(X, "ndim", 2), getattr(X, "shape", ())
    if n_dimensions > 2:
        hint = "If its first axis counts clients, give `list(X)`. " if n_dimensions == 3 else ""
        raise ValueError(
            f"Expected 2-D data, got one array with {n_dimensions} dimensions and shape {shape}. "
            f"{hint}{GIVE_TABLES}"
        )
    refuse_vectors(X, clients)
    rows = _validated(estimator, X, reset=True)
    weights = None if sample_weight is None else weights_of_table(X, sample_weight, len(rows))
    if clients is None:
        check_finite(rows, _names(estimator), allow_nan=allow_nan)
        check_weights(weights)
        return _weighted(ClientData(rows, np.array([0, len(rows)]), np.arange(1)), weights)
    warn_of_labels(X, clients)
    return _from_labels(estimator, rows, clients, weights, allow_nan)


def _validated(estimator: BaseEstimator, X: Table, *, reset: bool) -> NDArray[Any]:
    """Rows of one table, whose values are not checked yet."""
    with table_of_numbers(X) as table:
        # Memory-mapped integers are converted when they are read, not all at once.
        dtype = "numeric" if is_mapped(table) else [np.float64, np.float32]
        return validate_data(estimator, table, dtype=dtype, reset=reset, ensure_all_finite=False)


def _names(estimator: BaseEstimator) -> NDArray[Any] | None:
    """Names of the features, or None."""
    return getattr(estimator, "feature_names_in_", None)


def refuse_labels_of_a_list(clients: ArrayLike | None) -> None:
    """Raise if row labels are given together with a list of clients."""
    if clients is not None:
        raise ValueError(
            "Expected `clients=None` with a list of clients, got both: the list already tells the "
            f"client of each row. {GIVE_TABLES}"
        )


def _from_labels(
    estimator: BaseEstimator,
    rows: Rows,
    clients: ArrayLike,
    weights: FloatArray | None,
    allow_nan: bool,
) -> ClientData:
    ids, order, offsets = grouped(clients, len(rows))

    def of_whom(row: int) -> str:
        """Owner of a row, for a message."""
        position = row if order is None else np.flatnonzero(order == row)[0]
        return f" of client {label_repr(ids[owners_of(offsets, position)])}"

    check_finite(rows, _names(estimator), of_whom, allow_nan=allow_nan)
    check_weights(weights, of_whom)
    if order is not None:
        rows, weights = _chosen(rows, order), None if weights is None else weights[order]
    return _weighted(ClientData(rows, offsets, ids), weights)


def _chosen(rows: Rows, numbers: IntArray) -> Rows:
    """Rows in another order, or a subset; large or memory-mapped tables are not copied."""
    if isinstance(rows, np.ndarray) and rows.nbytes <= _LARGEST_COPY and not is_mapped(rows):
        return rows.take(numbers, axis=0)
    half = np.min_scalar_type(-len(rows))  # usually half the memory
    return ReorderedRows(rows, numbers.astype(half))


def _weighted(data: ClientData, weights: FloatArray | None) -> ClientData:
    """Client data with weights of rows, without the rows of weight zero."""
    if weights is None:
        return data
    kept = weights > 0
    counts = np.add.reduceat(kept, data.offsets[:-1], dtype=np.intp)
    if not counts.all():
        raise ValueError(
            "Expected a row with a positive sample_weight for every client, got weights that are "
            f"all zero for client {label_repr(data.ids[np.argmin(counts)])}. Leave such clients "
            f"out."
        )
    rows, offsets = data.rows, data.offsets
    if not kept.all():
        rows = _chosen(rows, np.flatnonzero(kept))
        weights, offsets = weights[kept], offsets_of(counts)
    # Weights of 1 are dropped.
    weights = weights if (weights != 1).any() else None
    return ClientData(rows, offsets, data.ids, weights)


def _from_list(estimator: BaseEstimator, X: Sequence[Table], allow_nan: bool) -> ClientData:
    refuse_no_clients(X, GIVE_TABLES)
    tables = [client_rows(table, k) for k, table in enumerate(X)]
    check_columns(estimator, X, [table.shape for table in tables])
    offsets = offsets_of([len(table) for table in tables])
    if len(tables) == 1:
        rows: Rows = _as_floats(tables[0])
    elif any(is_mapped(table) for table in tables):
        rows = JoinedRows([_as_floats(table) for table in tables])
    else:
        dtype = np.float32 if all(t.dtype == np.float32 for t in tables) else np.float64
        rows = np.concatenate(tables, dtype=dtype)

    def of_whom(row: int) -> str:
        return f" of client {owners_of(offsets, row)}"

    check_finite(rows, _names(estimator), of_whom, offsets, allow_nan=allow_nan)
    return ClientData(rows, offsets, np.arange(len(tables)))


def _as_floats(table: NDArray[Any]) -> NDArray[Any]:
    """Rows as float32 or float64; memory-mapped ones are converted when they are read."""
    return table if is_mapped(table) else table.astype(precision_of(table), copy=False)


def check_columns(
    estimator: BaseEstimator, X: Sequence[Table], shapes: list[tuple[int, ...]]
) -> None:
    """Set the features to those of the first client; raise if another client's differ.

    They are set on the estimator. ``shapes`` are those of the tables in the list X.
    """
    if not shapes[0][1]:
        raise ValueError(
            "Expected at least one feature for every client, got 0 features for client 0 (shape "
            f"{shapes[0]}). Give all clients the same columns."
        )
    names = column_names(X[0], 0)
    first = X[0] if names is not None else np.empty((0, shapes[0][1]))
    # Sets the number and names of the features by those of the first client.
    validate_data(estimator, first, skip_check_array=True)
    for k, shape in enumerate(shapes):
        want, got = names, column_names(X[k], k)
        if shape[1] != estimator.n_features_in_ and not (want and got):
            raise ValueError(
                f"Expected {estimator.n_features_in_} features for every client as for client 0, "
                f"got {shape[1]} for client {k} (shape {shape}). Give all clients the same columns."
            )
        if are_reordered(X[0], X[k]):  # perhaps by names that are no strings
            want, got = list(X[0].columns), list(X[k].columns)
        if want != got:
            raise ValueError(
                f"Expected the columns of client 0 ({shorten(want, got)}) for every client, in "
                f"that order, got {shorten(got, want)} for client {k}. Name and order all clients' "
                "columns alike, or name none."
            )


def check_rows(estimator: BaseEstimator, X: Table, *, allow_nan: bool = False) -> NDArray[Any]:
    """Validate one table against the fitted estimator."""
    rows = _validated(estimator, X, reset=False)
    check_finite(rows, _names(estimator), allow_nan=allow_nan)
    return rows


def features_of(estimator: BaseEstimator) -> dict[str, Any]:
    """Dict of ``n_features_in_`` and, if it exists, ``feature_names_in_``."""
    names = ("n_features_in_", "feature_names_in_")
    return {name: vars(estimator)[name] for name in names if name in vars(estimator)}


def first_table(X: object) -> Table:
    """Table of the first client, or the only table."""
    return X[0] if is_client_list(X) and len(X) else X


def check_columns_of_fit(estimator: BaseEstimator, X: ClientsLike) -> None:
    """Raise if column names differ from those of the last fit, which is to be continued.

    Called before values are checked, because misspelt columns of joined tables contain NaN.
    """
    want, table = _names(estimator), first_table(X)
    if want is None:
        return
    refuse_other_frames(table, " of client 0" if is_client_list(X) else "")
    got = column_names(table, 0)
    if got is not None and list(want) != got:
        raise ValueError(
            f"Expected the columns of the last fit, {shorten(want, got)}, in that order, got "
            f"{shorten(got, want)}. Rename or reorder them, or start over: fit with "
            "warm_start=False, or call partial_fit on a clone."
        )


def store(estimator: BaseEstimator, known: dict[str, Any], **attributes: Any) -> None:
    """Set all fitted attributes at once, including those of ``features_of``.

    A copy made by another thread meanwhile then has the attributes of a single fit.
    """
    vars(estimator).update({**known, **attributes})
    if "feature_names_in_" not in known:
        vars(estimator).pop("feature_names_in_", None)  # of an earlier fit


def federation_of(data: ClientData, client_weights: ClientWeights) -> Federation:
    """Stack validated clients with their weights w_i, "n_samples" or "uniform"."""
    sample_weight = None
    totals: IntArray | FloatArray = np.diff(data.offsets)
    if data.sample_weight is not None:
        sample_weight = sample_weight_of(data.sample_weight, data.offsets)
        totals = sample_weight.totals
    weights = weights_of_clients(totals, client_weights)
    return Federation(data.rows, data.offsets, weights, sample_weight)


def check_enough_rows(data: ClientData, n_components: int) -> None:
    """Raise if there are fewer rows than components."""
    n_samples = int(data.offsets[-1])
    if n_samples < n_components:
        raise ValueError(
            f"Expected n_samples >= n_components, got n_samples = {n_samples} and n_components = "
            f"{n_components}. Use fewer components or more rows."
        )


def check_minibatches(
    estimator: BaseEstimator,
    lengths: IntArray,
    ids: NDArray[Any],
    what: str,
    sample_weight: FloatArray | None = None,
) -> None:
    """Raise if some client cannot draw minibatches without replacement.

    Warn if minibatches with replacement are larger than the data of every client. ``what`` is the
    plural noun for the ``lengths`` of clients.
    """
    batch_size = estimator.batch_size
    if batch_size is None:
        return
    if estimator.replacement:
        if batch_size > lengths.max():
            warn(
                f"batch_size={batch_size} is more {what} than any client has (at most "
                f"{lengths.max()}). Use batch_size=None, which reads each of them once: this is "
                "faster, and has no minibatch noise.",
                UserWarning,
            )
        return
    if sample_weight is not None:
        raise ValueError(
            f"Expected replacement=True with batch_size={batch_size} and a sample_weight: {what} "
            "are drawn in proportion to their weights, which is not possible without replacement. "
            "Use replacement=True, or batch_size=None."
        )
    short = np.flatnonzero(lengths < batch_size)
    if len(short):
        others = f" (and too few for {len(short) - 1} more)" if len(short) > 1 else ""
        raise ValueError(
            f"Expected batch_size={batch_size} {what} for every client with replacement=False, "
            f"got {lengths[short[0]]} for client {label_repr(ids[short[0]])}{others}. Use "
            f"replacement=True, or a batch_size of at most {lengths.min()}."
        )
