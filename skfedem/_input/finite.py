"""Check that the values of all rows are finite and not too large to be squared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._federation import owners_of
from .._rows import Rows
from .._typing import IntArray
from .tables import LARGEST

# Number of values checked at once: 2 MB, the size of a second-level cache.
_BLOCK = 2**18


def check_finite(
    rows: Rows,
    names: NDArray[Any] | None,
    of_whom: Callable[[int], str] = lambda row: "",
    offsets: IntArray | None = None,
    *,
    allow_nan: bool = False,
) -> None:
    """Raise if values are missing, infinite, or too large to be squared.

    ``names`` are those of the columns, or None.
    """
    n_rows = max(1, _BLOCK // rows.shape[1])
    for start in range(0, len(rows), n_rows):
        block = rows[start : start + n_rows]
        if not (float(block.min()) >= -LARGEST and float(block.max()) <= LARGEST):
            _check_each(block, start, names, of_whom, offsets, allow_nan)


def _check_each(
    block: NDArray[Any],
    start: int,
    names: NDArray[Any] | None,
    of_whom: Callable[[int], str],
    offsets: IntArray | None,
    allow_nan: bool,
) -> None:
    """Raise for the first invalid value of a block, whose first row is ``start``."""
    finite = ~np.isinf(block) if allow_nan else np.isfinite(block)
    # In double precision: as a float32, the bound would overflow, with a warning.
    bad = np.abs(block) > np.float64(LARGEST) if finite.all() else ~finite
    if not bad.any():
        return
    row, column = np.argwhere(bad)[0]
    value, row = block[row, column], row + start
    within = row if offsets is None else row - offsets[owners_of(offsets, row)]
    name = "" if names is None else f" ({names[column]!r})"
    got = f"got {value} in row {within}, column {column}{name}{of_whom(row)}"
    if finite.all():
        raise ValueError(
            f"Expected numbers of at most {LARGEST:g} in size, {got}: their squares are too "
            "large for a double. Divide such a feature by a power of ten."
        )
    what, wanted = ("", " or missing (NaN)") if allow_nan else ("NaN or ", "")
    raise ValueError(
        f"Input X contains {what}infinity: expected finite{wanted} numbers, {got}. Drop or impute "
        "such rows."
    )
