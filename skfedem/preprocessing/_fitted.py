"""Input checks and fitted attributes shared by the transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_array

from .._federation import Federation
from .._input.clients import check_clients, features_of, federation_of
from .._input.entries import table_of_numbers
from .._parameters import unfitted
from .._typing import ClientsLike, Table


def read_clients(
    estimator: BaseEstimator,
    X: ClientsLike,
    clients: ArrayLike | None,
    *,
    allow_nan: bool = False,
) -> tuple[Federation, dict[str, Any]]:
    """Validate the arguments of ``fit``, without modifying the estimator.

    Returns the federation, and fitted attributes that describe clients and features, for ``store``.
    """
    checked = unfitted(estimator)
    data = check_clients(checked, X, clients, allow_nan=allow_nan)
    return federation_of(data, "n_samples"), describe(checked, data.ids)


def describe(checked: BaseEstimator, ids: NDArray[Any]) -> dict[str, Any]:
    """Fitted attributes that describe the clients and the features, which ``checked`` knows."""
    return {"n_clients_": len(ids), "client_ids_": ids, **features_of(checked)}


def check_transformed(X: Table, n_columns: int, *, allow_nan: bool = False) -> NDArray[Any]:
    """Validate the table passed to ``inverse_transform``."""
    with table_of_numbers(X) as table:
        rows = check_array(
            table,
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
