"""What clients of a matrix send before the first round: functions of their own cells.

Each takes the ``ClientRows`` of some clients. The server learns which cells they observed and how
often, and the sums of their observations over rows and columns, but no single observation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csr_array

from ..._cells import cell_codes
from ..._client_vectors import row_indices
from ..._federation import ClientRows, offsets_of
from ..._typing import FamilyName, FloatArray, IntArray
from ..client_rows import segment_sums
from .families import family_of, working_family
from .negative_binomial import size_log_likelihood
from .pooled import working_cells
from .theta import Cells, Theta, at_clients

Sums = tuple[IntArray, IntArray, FloatArray]
"""Numbers of rows (or columns) that each client visited, these, and the sums in them."""


def observed_cells(rows: ClientRows, n_columns: int) -> IntArray:
    """Codes of each client's cells, client after client."""
    cells = _cells(rows)
    return cell_codes(cells.rows, cells.columns, n_columns)


def numbers_of_observations(rows: ClientRows) -> FloatArray:
    """Number of observations of each of these cells, or their total effort."""
    return _cells(rows).counts


def log_base_measure(rows: ClientRows) -> FloatArray:
    """Sum of ``log ρ(y)`` over each client's observations; nats."""
    assert rows.federation.log_base_measure is not None  # cells have one
    return rows.federation.log_base_measure[rows.clients]


def row_sums(rows: ClientRows, n_rows: int) -> Sums:
    """Sums of each client's observations in the rows that it visited."""
    cells = _cells(rows)
    return _sums(rows, cells, cells.rows, n_rows)


def column_sums(rows: ClientRows, n_columns: int) -> Sums:
    """Sums of each client's observations in the columns that it visited."""
    cells = _cells(rows)
    return _sums(rows, cells, cells.columns, n_columns)


def group_sums(rows: ClientRows, n_lines: int, groups: IntArray, n_columns: int) -> Sums:
    """Sums of each client's observations by group of rows and column, where it has any."""
    cells = _cells(rows)
    return _sums(rows, cells, cell_codes(groups[cells.rows], cells.columns, n_columns), n_lines)


def client_sums(rows: ClientRows) -> FloatArray:
    """Sum of each client's observations."""
    cells, lengths = _cells(rows), rows.federation.lengths_of(rows.clients)
    return segment_sums(cells.counts * cells.values, lengths)


def residuals(
    rows: ClientRows, family_name: FamilyName, natural: Theta, size: float = np.inf
) -> FloatArray:
    """Residuals ``counts * (y - ψ'(θ))`` in each client's cells, client after client."""
    family = family_of(family_name, size)
    cells = working_cells(_cells(rows), family)
    lengths = rows.federation.lengths_of(rows.clients)
    theta = at_clients(natural, cells, rows.clients, lengths, dense=False)
    return cells.counts * (cells.values - working_family(family).mean(theta))


def cell_sums(rows: ClientRows) -> FloatArray:
    """Sum of the observations of each of each client's cells."""
    cells = _cells(rows)
    return cells.counts * cells.values


def size_moments(rows: ClientRows, size: float, natural: Theta) -> FloatArray:
    """Each client's terms of ``log ρ`` that depend on the size, and two derivatives by it.

    Three numbers, client after client: sums of ``size_log_likelihood`` over its cells.
    """
    cells = _cells(rows)
    lengths = rows.federation.lengths_of(rows.clients)
    theta = at_clients(natural, cells, rows.clients, lengths, dense=False)
    clients = np.repeat(np.arange(len(lengths)), lengths)
    terms = size_log_likelihood(cells.counts * cells.values, cells.counts, theta, size)
    sums: list[Any] = [np.bincount(clients, own, len(lengths)) for own in terms]
    return np.column_stack(sums).ravel()


def _cells(rows: ClientRows) -> Cells:
    cells: Cells = rows.federation.rows
    return cells.take(row_indices(rows.federation.offsets, rows.clients))


def _sums(rows: ClientRows, cells: Cells, lines: IntArray, n_lines: int) -> Sums:
    """Sums of each client's observations by row or column, where it has any."""
    offsets = offsets_of(rows.federation.lengths_of(rows.clients))
    # Sums are formed in place.
    terms = cells.counts * cells.values, lines.copy(), offsets
    sums = csr_array(terms, shape=(len(rows.clients), n_lines))
    sums.sum_duplicates()
    return np.diff(sums.indptr), sums.indices, sums.data
