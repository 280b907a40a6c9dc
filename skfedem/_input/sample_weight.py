"""Validation of row weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from .._compat import row_count
from .._federation import offsets_of, owners_of
from .._typing import ClientsLike, FloatArray, IntArray, RowWeights, Table
from .client_labels import warn_of_another_order
from .tables import LARGEST, is_client_list, refuse_masked

if TYPE_CHECKING:
    from .clients import ClientData


def check_row_weights(X: ClientsLike, sample_weight: RowWeights) -> FloatArray:
    """Validated weights of the rows of a table, or of a list of tables, concatenated."""
    if is_client_list(X):
        weights = _weights_of_list(X, sample_weight)
        offsets = offsets_of([len(table) for table in X])
        check_weights(weights, lambda row: f" of client {owners_of(offsets, row)}", offsets)
        return weights
    weights = weights_of_table(X, sample_weight, row_count(X))
    check_weights(weights)
    return weights


def _weights_of_list(X: Sequence[Table], sample_weight: RowWeights) -> FloatArray:
    """Weights of the rows of a list of tables, stacked."""
    if not isinstance(sample_weight, list | tuple) or len(sample_weight) != len(X):
        length = f" of {len(sample_weight)}" if isinstance(sample_weight, list | tuple) else ""
        raise ValueError(
            f"Expected sample_weight to be a list with one array for each of the {len(X)} clients "
            f"of X, got a {type(sample_weight).__name__}{length}. Give it in the same form as X."
        )
    return np.concatenate(
        [
            weights_of_table(table, weights, len(table), f" of client {k}")
            for k, (table, weights) in enumerate(zip(X, sample_weight, strict=True))
        ]
    )


def weights_of_table(
    table: Table, sample_weight: RowWeights, n_rows: int, whose: str = ""
) -> FloatArray:
    """Weights of a table's rows as float64."""
    refuse_masked(f"sample_weight{whose}", sample_weight)
    try:
        dtype = getattr(sample_weight, "dtype", None)
        if getattr(dtype, "kind", "f") in "cmM":
            raise TypeError(f"dtype {dtype}")
        weights = np.asarray(sample_weight, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"Expected numbers in sample_weight{whose}, got other values ({error}). Give one for "
            "each row."
        ) from error
    if weights.shape != (n_rows,):
        raise ValueError(
            f"Expected sample_weight to hold one number for each of the {n_rows} rows{whose}, got "
            f"shape {weights.shape}. Give it in the same form as X: one array for one table, or a "
            "list with one array for each client."
        )
    warn_of_another_order(table, f"`sample_weight`{whose}", sample_weight)
    return weights


def check_weights(
    weights: FloatArray | None,
    of_whom: Callable[[int], str] = lambda row: "",
    offsets: IntArray | None = None,
) -> None:
    """Raise if weights are negative, missing, infinite, or all zero; None is accepted.

    ``of_whom`` describes the owner of a row; ``offsets`` are those of the clients' rows.
    """
    if weights is None:
        return
    bad = np.flatnonzero(~((weights >= 0) & (weights <= LARGEST)))
    if len(bad):
        row = bad[0]
        within = row if offsets is None else row - offsets[owners_of(offsets, row)]
        raise ValueError(
            f"Expected sample_weight to be >= 0 and at most {LARGEST:g}, got {weights[row]} in row "
            f"{within}{of_whom(row)}. Drop such rows or give them weight 0."
        )
    if not weights.max() >= 1 / LARGEST:
        raise ValueError(
            "Expected a row with a positive sample_weight, got weights that are all zero, or below "
            f"{1 / LARGEST:g}. Give some rows a larger weight."
        )


def without_equal_weights(data: ClientData) -> tuple[ClientData, float]:
    """Drop equal weights, if only their ratios matter; return the data and this weight.

    If weights differ, they are kept, and 1 is returned.
    """
    weights = data.sample_weight
    if weights is None or (weights != weights[0]).any():
        return data, 1.0
    return data._replace(sample_weight=None), float(weights[0])
