"""Numbers of the cells of a matrix.

A cell (j, l) of a J x L matrix has the code ``j * L + l``, so that codes in increasing order are
cells in row-major order.
"""

from __future__ import annotations

import numpy as np


def cell_codes(rows, columns, n_columns):
    """Codes of cells as int64, in which those of int32 rows and columns do not overflow."""
    return rows.astype(np.int64, copy=False) * n_columns + columns


def distinct_cells(rows, columns, n_columns):
    """Distinct cells among some, in row-major order, and which of them each given one is."""
    codes, positions = np.unique(cell_codes(rows, columns, n_columns), return_inverse=True)
    return *np.divmod(codes, n_columns), positions
