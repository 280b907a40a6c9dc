"""Groups of rows in estimating equations: each has effects of the columns of its own.

The equations are then those of a matrix in which each group has columns of its own, so that all
groups have one dispersion and one serial correlation.
"""

from __future__ import annotations

import numpy as np

from .._data.cells import CellData
from .._typing import IntArray
from .estimating_equations import Estimate, Information
from .residuals import Observed


def with_own_columns(data: CellData, groups: IntArray, n_groups: int) -> CellData:
    """Cells in which each group of rows has columns of its own, one group's after the other's."""
    n_rows, n_columns = data.shape
    columns = (data.columns + n_columns * groups[data.rows]).astype(np.int32)
    return data._replace(columns=columns, shape=(n_rows, n_groups * n_columns))


def part_of_group(observed: Observed, estimate: Estimate, group: int) -> tuple[Observed, Estimate]:
    """What concerns the rows of a group, with the columns of the matrix."""
    support, information = observed.support, estimate.information
    n_columns = support.shape[1] // observed.n_groups
    block = slice(group * n_columns, (group + 1) * n_columns)
    own = support._replace(
        columns=support.columns % n_columns,
        is_observed=(support.is_observed[0], support.is_observed[1][block]),
        shape=(support.shape[0], n_columns),
    )
    part = Information(
        information.rows,
        information.rows_columns[:, block],
        information.columns_inverse[block, block],
    )
    return (
        observed._replace(support=own, n_groups=1),
        estimate._replace(columns=estimate.columns[block], information=part),
    )
