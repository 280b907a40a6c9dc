"""Validation of targets, in the form and order of the clients' rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import assert_all_finite, check_array, column_or_1d
from sklearn.utils.multiclass import check_classification_targets

from .._compat import row_count
from .._error_messages import error_context
from .._typing import ClientsLike, RowWeights, Table
from .._warnings import collect_warnings
from .labels import group_rows, warn_of_another_order
from .rows import row_weights
from .tables import is_client_list


def stacked_targets(
    X: ClientsLike,
    y: Any,
    *,
    classes: bool,
    clients: ArrayLike | None = None,
    sample_weight: RowWeights | None = None,
) -> NDArray[Any]:
    """Targets in the order of the rows of ``read_clients``, whose arguments have been checked.

    ``classes`` tells whether they are labels, in one dimension, or numbers, in one or two. Errors
    name the client.
    """
    targets = targets_of_rows(X, y, classes=classes)
    weights = None if sample_weight is None else row_weights(X, sample_weight)
    if clients is not None:
        with collect_warnings():  # they were given by read_clients
            _, order, _ = group_rows(clients, len(targets))
        if order is not None:
            targets = targets[order]
            weights = None if weights is None else weights[order]
    return targets if weights is None else targets[weights > 0]


def targets_of_rows(X: ClientsLike, y: Any, *, classes: bool) -> NDArray[Any]:
    """Targets in the order of the rows as given."""
    if not is_client_list(X):
        return _of_table(X, y, classes)
    if not isinstance(y, list | tuple) or len(y) != len(X):
        length = f" of {len(y)}" if isinstance(y, list | tuple) else ""
        raise ValueError(
            f"Expected y to be a list with one array for each of the {len(X)} clients of X, got a "
            f"{type(y).__name__}{length}. Give it in the same form as X."
        )
    parts = []
    for k, (table, own) in enumerate(zip(X, y, strict=True)):
        with error_context(f"In the targets of client {k}"):
            parts.append(_of_table(table, own, classes))
    return _concatenated(parts)


def _of_table(X: Table, y: Any, classes: bool) -> NDArray[Any]:
    """Targets of the rows of one table."""
    if classes:
        targets = column_or_1d(y, warn=True)
        assert_all_finite(targets, input_name="y")
        check_classification_targets(targets)
    else:
        targets = check_array(y, dtype=np.float64, ensure_2d=False, input_name="y")
        if targets.ndim == 2 and targets.shape[1] == 1:
            targets = column_or_1d(targets, warn=True)
    n_rows = row_count(X)
    if len(targets) != n_rows:
        raise ValueError(
            f"Expected y to hold a target for each of the {n_rows} rows, got {len(targets)}: found "
            "input variables with inconsistent numbers of samples. Give one for each row of X."
        )
    warn_of_another_order(X, "`y`", y)
    return targets


def _concatenated(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Targets of all clients, which have one kind and one shape."""
    kinds = [_kind(part) for part in parts]
    for k, kind in enumerate(kinds):
        if kind != kinds[0]:
            raise ValueError(
                f"Expected targets of one kind for all clients, got {kinds[0][0]} for client 0 and "
                f"{kind[0]} for client {k}, or other numbers of columns. Convert them."
            )
    return np.concatenate(parts)


def _kind(targets: NDArray[Any]) -> tuple[str, tuple[int, ...]]:
    names = {"U": "text", "T": "text", "S": "bytes", "O": "objects"}
    return names.get(targets.dtype.kind, "numbers"), targets.shape[1:]
