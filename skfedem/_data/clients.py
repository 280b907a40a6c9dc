"""Rows of all clients, from a list of tables, or one table and labels, to a federation.

The user's data are never modified.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_array, validate_data

from .._federation import (
    Elsewhere,
    Federation,
    SampleWeight,
    offsets_of,
    sample_weight_of,
    weights_of_clients,
)
from .._rows import JoinedRows, ReorderedRows, Rows, precision_of
from .._typing import ClientsLike, ClientWeights, FloatArray, IntArray, RowWeights, Table
from .features import set_columns, set_features
from .labels import check_no_labels, check_not_name, group_rows, warn_of_labels
from .rows import (
    Locate,
    check_finite,
    check_no_weights,
    check_weights,
    row_alone,
    row_in_list,
    row_weights,
    row_with_label,
)
from .tables import (
    GIVE_TABLES,
    as_numbers,
    check_dimensions,
    check_not_empty,
    check_not_vectors,
    is_client_list,
    is_frame,
    is_mapped,
)

# Up to this number of bytes, unordered tables are copied in the order of clients, which is faster
# to read; larger tables are not copied.
_LARGEST_COPY = 2**28
# Weights are divided by a power of two, which is exact, if the largest has no smaller exponent.
_USUAL_EXPONENT = 20


class ClientData(NamedTuple):
    """Validated rows of all clients, and the clients' labels.

    ``row_weight`` is the unit of the rows' weights: of every row if equal weights were dropped.
    """

    federation: Federation
    ids: NDArray[Any]
    row_weight: float = 1.0


def read_clients(
    estimator: BaseEstimator,
    X: ClientsLike,
    clients: ArrayLike | None = None,
    sample_weight: RowWeights | None = None,
    *,
    client_weights: ClientWeights = "n_samples",
    drop_equal_weights: bool = False,
    allow_nan: bool = False,
) -> ClientData:
    """Validate training data; set ``n_features_in_`` and ``feature_names_in_``.

    Arguments are those of ``fit``. Rows of weight zero are dropped, and equal weights if only their
    ratios matter (``drop_equal_weights``). Errors name the client.
    """
    if isinstance(X, Elsewhere):
        check_no_labels(clients)
        check_no_weights(sample_weight)
        X.check_finite(allow_nan=allow_nan)
        set_columns(estimator, X.columns)
        return ClientData(_elsewhere(X, client_weights), X.ids, X.row_weight)
    order: IntArray | None = None
    locate: Locate = row_alone
    if is_client_list(X):
        check_no_labels(clients)
        rows, offsets = _stacked_tables(estimator, X)
        ids: NDArray[Any] = np.arange(len(X))
        locate = row_in_list(offsets)
    else:
        check_not_name(clients)
        _check_not_3d(X)
        check_not_vectors(X, clients)
        rows = _one_table(estimator, X, reset=True)
        ids, offsets = np.arange(1), np.array([0, len(rows)])
        if clients is not None:
            warn_of_labels(X, clients)
            ids, order, offsets = group_rows(clients, len(rows))
            locate = row_with_label(ids, order, offsets)
    weights = None if sample_weight is None else row_weights(X, sample_weight)
    check_finite(rows, _names(estimator), locate, allow_nan=allow_nan)
    if order is not None:
        rows = _selected(rows, order)
    if weights is None:
        return ClientData(_federation(rows, offsets, None, client_weights), ids)
    check_weights(weights, locate)
    weights = weights if order is None else weights[order]
    rows, offsets, weights, ids = _positive(rows, offsets, weights, ids)
    if (weights == 1).all():
        return ClientData(_federation(rows, offsets, None, client_weights), ids)
    if not drop_equal_weights:
        return ClientData(_federation(rows, offsets, weights, client_weights), ids)
    if (weights == weights[0]).all():
        federation = _federation(rows, offsets, None, client_weights)
        return ClientData(federation, ids, row_weight=float(weights[0]))
    unit = unit_of(weights.max())
    return ClientData(_federation(rows, offsets, weights / unit, client_weights), ids, unit)


def read_rows(estimator: BaseEstimator, X: Table, *, allow_nan: bool = False) -> NDArray[Any]:
    """Validate one table against the fitted estimator."""
    rows = _one_table(estimator, X, reset=False)
    check_finite(rows, _names(estimator), row_alone, allow_nan=allow_nan)
    return rows


def _names(estimator: BaseEstimator) -> NDArray[Any] | None:
    return getattr(estimator, "feature_names_in_", None)


def _check_not_3d(X: Table) -> None:
    n_dimensions = getattr(X, "ndim", 2)
    if n_dimensions > 2:
        raise ValueError(
            f"Expected 2-D data, got one array with {n_dimensions} dimensions and shape {X.shape}. "
            f"If its first axis counts clients, give list(X). {GIVE_TABLES}"
        )


def _one_table(estimator: BaseEstimator, X: Table, *, reset: bool) -> NDArray[Any]:
    """Rows of one table, whose values are not checked yet."""
    table = X if issparse(X) else as_numbers(X)  # scikit-learn refuses sparse ones
    # Memory-mapped integers are converted when they are read, not all at once.
    dtype = "numeric" if is_mapped(table) else [np.float64, np.float32]
    if not is_frame(X):
        return validate_data(estimator, table, dtype=dtype, reset=reset, ensure_all_finite=False)
    validate_data(estimator, X, reset=reset, skip_check_array=True)
    return check_array(
        table, dtype=dtype, ensure_all_finite=False, estimator=estimator, input_name="X"
    )


def _stacked_tables(estimator: BaseEstimator, X: Sequence[Table]) -> tuple[Rows, IntArray]:
    """Rows of a list of tables, and the offsets of the clients."""
    check_not_empty(X, GIVE_TABLES)
    tables = [_client_table(table, k) for k, table in enumerate(X)]
    set_features(estimator, X, [table.shape for table in tables])
    offsets = offsets_of([len(table) for table in tables])
    if len(tables) == 1:
        return _as_floats(tables[0]), offsets
    if any(map(is_mapped, tables)):
        return JoinedRows([_as_floats(table) for table in tables]), offsets
    dtype = np.float32 if all(t.dtype == np.float32 for t in tables) else np.float64
    return np.concatenate(tables, dtype=dtype), offsets


def _client_table(table: Table, k: int) -> NDArray[Any]:
    """One client's rows as a 2-D array of real numbers."""
    if issparse(table):
        raise TypeError(
            f"Expected a dense table for client {k}, got a sparse {type(table).__name__}. Use "
            "`.toarray()` if it fits in memory."
        )
    array = as_numbers(table, f" for client {k}")
    expected = f"Expected a 2-D table (rows by features) for client {k}"
    check_dimensions(array, (2,), expected, GIVE_TABLES)
    if not len(array):
        raise ValueError(
            f"Expected at least one row for every client, got none for client {k} (shape "
            f"{array.shape}). Leave clients without rows out of the list."
        )
    return array


def _as_floats(table: NDArray[Any]) -> NDArray[Any]:
    """Rows as float32 or float64; memory-mapped ones are converted when they are read."""
    return table if is_mapped(table) else table.astype(precision_of(table), copy=False)


def _selected(rows: Rows, positions: IntArray) -> Rows:
    """Rows in another order, or a subset; large or memory-mapped tables are not copied."""
    if isinstance(rows, np.ndarray) and rows.nbytes <= _LARGEST_COPY and not is_mapped(rows):
        return rows.take(positions, axis=0)
    half = np.min_scalar_type(-len(rows))  # usually half the memory
    return ReorderedRows(rows, positions.astype(half))


def _positive(
    rows: Rows, offsets: IntArray, weights: FloatArray, ids: NDArray[Any]
) -> tuple[Rows, IntArray, FloatArray, NDArray[Any]]:
    """Rows with positive weights, and the clients that have any."""
    kept = weights > 0
    if kept.all():
        return rows, offsets, weights, ids
    counts = np.add.reduceat(kept, offsets[:-1], dtype=np.intp)
    has_rows = counts > 0
    offsets = offsets_of(counts[has_rows])
    return _selected(rows, np.flatnonzero(kept)), offsets, weights[kept], ids[has_rows]


def unit_of(largest: float) -> float:
    """1, or a power of two with which products of weights and squares do not overflow."""
    exponent = int(np.frexp(largest)[1])
    return 1.0 if abs(exponent) < _USUAL_EXPONENT else 2.0**exponent


def _elsewhere(X: Elsewhere, client_weights: ClientWeights) -> Federation:
    """What is known of clients elsewhere, without their rows."""
    n_features, none = len(X.columns) if isinstance(X.columns, list) else X.columns, np.empty(0)
    rows, offsets = np.empty((0, n_features)), offsets_of(X.lengths)
    if X.totals is None:
        return _federation(rows, offsets, None, client_weights)
    weights = weights_of_clients(X.totals, client_weights)
    return Federation(rows, offsets, weights, SampleWeight(none, X.totals, none))


def _federation(
    rows: Rows, offsets: IntArray, weights: FloatArray | None, client_weights: ClientWeights
) -> Federation:
    """Federation with weights w_i of the clients."""
    if weights is None:
        return Federation(rows, offsets, weights_of_clients(np.diff(offsets), client_weights))
    sample_weight = sample_weight_of(weights, offsets)
    client_shares = weights_of_clients(sample_weight.totals, client_weights)
    return Federation(rows, offsets, client_shares, sample_weight)
