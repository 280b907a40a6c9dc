"""Fitted attributes and the check of transformed tables shared by the transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_array

from .._data.features import features_of
from .._data.tables import as_numbers
from .._typing import Table


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
