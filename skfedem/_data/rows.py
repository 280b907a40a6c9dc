"""Values and weights of rows: checks with messages that name the row and its client."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._compat import row_count
from .._error_messages import label_repr
from .._federation import Elsewhere, offsets_of, owners_of
from .._rows import Rows
from .._typing import ClientsLike, FloatArray, IntArray, RowWeights, Table
from .labels import warn_of_another_order
from .tables import LARGEST, check_not_masked, floats_of_objects, is_client_list

# Number of values checked at once: 2 MB, the size of a second-level cache.
_BLOCK = 2**18

Locate = Callable[[int], tuple[int, str]]
"""Row number in the user's table of a row, and " of client ..." or "", for messages."""


def row_alone(row: int) -> tuple[int, str]:
    """``Locate`` for one table without labels."""
    return row, ""


def row_in_list(offsets: IntArray) -> Locate:
    """``Locate`` for the stacked tables of a list."""

    def locate(row: int) -> tuple[int, str]:
        client = owners_of(offsets, row)
        return int(row - offsets[client]), f" of client {client}"

    return locate


def row_with_label(ids: NDArray[Any], order: IntArray | None, offsets: IntArray) -> Locate:
    """``Locate`` for a table with client labels, whose groups are as by ``group_rows``."""

    def locate(row: int) -> tuple[int, str]:
        position = row if order is None else int(np.flatnonzero(order == row)[0])
        return row, f" of client {label_repr(ids[owners_of(offsets, position)])}"

    return locate


def check_finite(
    rows: Rows, names: NDArray[Any] | None, locate: Locate, *, allow_nan: bool
) -> None:
    """Raise if values are missing, infinite, or too large to be squared.

    ``names`` are those of the columns, or None.
    """
    n_rows = max(1, _BLOCK // rows.shape[1])
    for start in range(0, len(rows), n_rows):
        block = rows[start : start + n_rows]
        if float(block.min()) >= -LARGEST and float(block.max()) <= LARGEST:
            continue
        finite = ~np.isinf(block) if allow_nan else np.isfinite(block)
        # In double precision: as a float32, the bound would overflow, with a warning.
        bad = np.abs(block) > np.float64(LARGEST) if finite.all() else ~finite
        if not bad.any():
            continue
        row, column = np.argwhere(bad)[0]
        number, whose = locate(start + int(row))
        name = "" if names is None else f" ({names[column]!r})"
        got = f"got {block[row, column]} in row {number}, column {column}{name}{whose}"
        if finite.all():
            raise ValueError(
                f"Expected numbers of at most {LARGEST:g} in size, {got}: their squares are too "
                "large for a double. Divide such a feature by a power of ten."
            )
        what, wanted = ("", " or missing (NaN)") if allow_nan else ("NaN or ", "")
        raise ValueError(
            f"Input X contains {what}infinity: expected finite{wanted} numbers, {got}. Drop or "
            "impute such rows."
        )


def row_weights(X: ClientsLike, sample_weight: RowWeights) -> FloatArray:
    """Weights of the rows of a table, or of a list of tables, concatenated, as float64."""
    if not is_client_list(X):
        return _weights_of_table(X, sample_weight)
    if not isinstance(sample_weight, list | tuple) or len(sample_weight) != len(X):
        length = f" of {len(sample_weight)}" if isinstance(sample_weight, list | tuple) else ""
        raise ValueError(
            f"Expected sample_weight to be a list with one array for each of the {len(X)} clients "
            f"of X, got a {type(sample_weight).__name__}{length}. Give it in the same form as X."
        )
    return np.concatenate(
        [
            _weights_of_table(table, weights, f" of client {k}")
            for k, (table, weights) in enumerate(zip(X, sample_weight, strict=True))
        ]
    )


def _weights_of_table(table: Table, sample_weight: RowWeights, whose: str = "") -> FloatArray:
    check_not_masked(f"sample_weight{whose}", sample_weight)
    try:
        dtype = getattr(sample_weight, "dtype", None)
        if getattr(dtype, "kind", "f") in "cmM":
            raise TypeError(f"dtype {dtype}")
        weights = floats_of_objects(sample_weight)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"Expected numbers in sample_weight{whose}, got other values ({error}). Give one for "
            "each row."
        ) from error
    n_rows = row_count(table)
    if weights.shape != (n_rows,):
        raise ValueError(
            f"Expected sample_weight to hold one number for each of the {n_rows} rows{whose}, got "
            f"shape {weights.shape}. Give it in the same form as X: one array for one table, or a "
            "list with one array for each client."
        )
    warn_of_another_order(table, f"`sample_weight`{whose}", sample_weight)
    return weights


def check_weights(weights: FloatArray, locate: Locate = row_alone) -> None:
    """Raise if weights are negative, missing, infinite, or all zero."""
    bad = np.flatnonzero(~((weights >= 0) & (weights <= LARGEST)))
    if len(bad):
        number, whose = locate(int(bad[0]))
        raise ValueError(
            f"Expected sample_weight to be >= 0 and at most {LARGEST:g}, got {weights[bad[0]]} in "
            f"row {number}{whose}. Drop such rows or give them weight 0."
        )
    if not weights.max() >= 1 / LARGEST:
        raise ValueError(
            "Expected a row with a positive sample_weight, got weights that are all zero, or below "
            f"{1 / LARGEST:g}. Give some rows a larger weight."
        )


def check_no_weights(sample_weight: RowWeights | None) -> None:
    """Raise if weights are given for clients elsewhere."""
    if sample_weight is not None:
        raise TypeError(
            "Expected sample_weight=None with clients elsewhere, got weights. Name their column "
            "when you read the clients."
        )


def sum_of_rows(
    values: FloatArray | Sequence[FloatArray] | Elsewhere,
    X: ClientsLike,
    sample_weight: RowWeights | None,
) -> tuple[float, float]:
    """Weighted sum of a value for each row of X, and the number or total weight of the rows."""
    if isinstance(values, Elsewhere):
        check_no_weights(sample_weight)
        return values.sum_of_rows()
    stacked = np.concatenate(values) if isinstance(values, tuple) else np.asarray(values)
    if sample_weight is None:
        return float(stacked.sum()), len(stacked)
    weights = row_weights(X, sample_weight)
    locate = row_in_list(offsets_of(list(map(len, X)))) if is_client_list(X) else row_alone
    check_weights(weights, locate)
    return float((stacked * weights).sum()), float(weights.sum())
