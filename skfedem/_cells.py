"""Numbers of the cells of a matrix.

A cell (j, l) of a J x L matrix has the code ``j * L + l``, so that codes in increasing order are
cells in row-major order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ._typing import IntArray


def cell_codes(rows: IntArray, columns: IntArray, n_columns: int) -> NDArray[np.int64]:
    """Codes of cells as int64, in which those of int32 rows and columns do not overflow."""
    return rows.astype(np.int64, copy=False) * n_columns + columns


def distinct_cells(
    rows: IntArray, columns: IntArray, n_columns: int
) -> tuple[IntArray, IntArray, IntArray]:
    """Distinct cells among some, in row-major order, and which of them each given one is."""
    codes, positions = np.unique(cell_codes(rows, columns, n_columns), return_inverse=True)
    return *np.divmod(codes, n_columns), positions
