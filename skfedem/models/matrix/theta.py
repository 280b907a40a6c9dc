"""Natural parameters of a matrix: main effects plus a low-rank part, never stored dense."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..._cells import cell_codes
from ..._data.cells import CellData
from ..._serialization import serializable
from ..._typing import FloatArray, IntArray
from .covariates import CovariateTerms


class Sizes(NamedTuple):
    """Sizes for speed, see examples/benchmarks/imputation_speed.py.

    Attributes
    ----------
    gathered : int
        Numbers of each factor that are gathered at once. They fit into the cache and take less than
        128 KiB; for more, the C library may request new pages each time, which is much slower.
    dense_share, dense_entries : float, int
        If this share of a matrix's entries is needed, computing all of them is faster than
        gathering, up to this number of entries.
    block_entries : int
        Entries of a dense matrix that are computed at once.
    long, mostly : int, float
        Of more cells than ``long``, which no group of several clients has, blocks of rows are
        computed whole if at least this share of their entries is needed.
    """

    gathered: int = 15_000
    dense_share: float = 0.1
    dense_entries: int = 2**20
    block_entries: int = 2**18
    long: int = 2**17
    mostly: float = 0.3


_SIZES = Sizes()


class Cells(NamedTuple):
    """Observed cells.

    Attributes
    ----------
    rows, columns : ndarray of int, shape (n_cells,)
    values : ndarray of shape (n_cells,)
        Mean of the observations of a cell, by one client or by all.
    counts : ndarray of shape (n_cells,)
        Number of these observations.
    """

    rows: IntArray
    columns: IntArray
    values: FloatArray
    counts: FloatArray

    def take(self, index: NDArray[Any] | slice) -> Cells:
        """Some of the cells."""
        return Cells._make(column[index] for column in self)


@serializable
class Effects(NamedTuple):
    """Intercept, row effects and column effects, which sum to 0; coefficients of covariates."""

    intercept: float
    rows: FloatArray
    columns: FloatArray
    coefficients: FloatArray = np.empty(0)

    def at(self, rows: IntArray, columns: IntArray) -> FloatArray:
        """Their sum at some cells, without covariates."""
        if not (self.rows.any() or self.columns.any()):  # as without effects
            return np.full(len(rows), self.intercept, dtype=np.float64)
        return (self.intercept + self.rows).take(rows) + self.columns.take(columns)


@serializable
class LowRank(NamedTuple):
    """``left @ diag(singular_values) @ right.T``.

    The factors of a fit, or of a proximal step, have orthonormal columns. Those of an extrapolated
    matrix, or of rows solved for later, need not.

    Attributes
    ----------
    left : ndarray of shape (n_rows, rank)
    singular_values : ndarray of shape (rank,)
        Positive and decreasing if the factors are orthonormal.
    right : ndarray of shape (n_columns, rank)
    """

    left: FloatArray
    singular_values: FloatArray
    right: FloatArray


@serializable
class Theta(NamedTuple):
    """``θ_jl = intercept + effects.rows_j + effects.columns_l + low_rank_jl + covariates_jl``.

    ``covariates`` also have the effects of clients, which add to it.
    """

    effects: Effects
    low_rank: LowRank
    covariates: CovariateTerms | None = None

    @property
    def n_told(self) -> int:
        """Number of numbers that a client receives: all, but no effect of other clients."""
        n_factors = len(self.low_rank.singular_values)
        n_lines = len(self.effects.rows) + len(self.effects.columns)
        n_others = 0 if self.covariates is None else max(len(self.covariates.clients) - 1, 0)
        return (n_factors + 1) * (1 + n_lines) + len(self.effects.coefficients) - n_others

    def minus(self, number: float) -> Theta:
        """θ minus a number in every cell."""
        intercept = self.effects.intercept - number
        return self._replace(effects=self.effects._replace(intercept=intercept))


def relative_cells(data: CellData) -> Cells:
    """Cells of validated data, with values relative to the origin of the data."""
    values = data.values - data.origin if data.origin else data.values
    return Cells(data.rows, data.columns, values, data.counts)


def zero_low_rank(shape: tuple[int, int]) -> LowRank:
    """The zero matrix of a shape, with rank 0."""
    n_rows, n_columns = shape
    return LowRank(np.empty((n_rows, 0)), np.empty(0), np.empty((n_columns, 0)))


def is_dense(n_cells: int, n_entries: int) -> bool:
    """Whether it is faster to compute all entries of a matrix than so many cells one by one."""
    return n_entries <= _SIZES.dense_entries and n_cells >= _SIZES.dense_share * n_entries


def products(
    left: FloatArray,
    right: FloatArray,
    rows: IntArray,
    columns: IntArray,
    *,
    dense: bool | None = None,
) -> FloatArray:
    """Entries of ``left @ right.T`` at some cells.

    ``dense`` tells whether all entries are computed, which rounds otherwise; None if it is faster.
    """
    left, right = map(np.ascontiguousarray, (left, right))  # products round by the layout as well
    if is_dense(len(rows), len(left) * len(right)) if dense is None else dense:
        return (left @ right.T).ravel().take(cell_codes(rows, columns, len(right)))
    values = np.empty(len(rows))
    if len(rows) > _SIZES.long:
        for block in cell_blocks(len(rows)):
            values[block] = _products_of_rows(left, right, rows[block], columns[block])
        return values
    return _gathered_products(left, right, rows, columns, values)


def cell_blocks(n_cells: int) -> list[slice]:
    """Slices of a few cells each, so that temporary arrays stay in the cache."""
    n = _SIZES.block_entries // 8
    return [slice(first, first + n) for first in range(0, n_cells, n)]


def _products_of_rows(
    left: FloatArray, right: FloatArray, rows: IntArray, columns: IntArray
) -> FloatArray:
    """As ``products``, from all entries of the rows between the first and the last one if few."""
    first, last = int(rows.min()), int(rows.max()) + 1
    if len(rows) < _SIZES.mostly * (last - first) * len(right):
        return _gathered_products(left, right, rows, columns, np.empty(len(rows)))
    entries = left[first:last] @ right.T
    return entries.ravel().take(cell_codes(rows - first, columns, len(right)))


def _gathered_products(
    left: FloatArray, right: FloatArray, rows: IntArray, columns: IntArray, values: FloatArray
) -> FloatArray:
    """As ``products``, one by one, into ``values``."""
    block_cells = 1 + _SIZES.gathered // (1 + left.shape[1])
    for first in range(0, len(rows), block_cells):
        block = slice(first, first + block_cells)
        values[block] = np.einsum(
            "ck,ck->c", left.take(rows[block], axis=0), right.take(columns[block], axis=0)
        )
    return values


def low_rank_at(
    low_rank: LowRank, rows: IntArray, columns: IntArray, *, dense: bool | None = None
) -> FloatArray:
    """Entries of the low-rank part at some cells; ``dense`` as in ``products``."""
    scaled = low_rank.left * low_rank.singular_values
    return products(scaled, low_rank.right, rows, columns, dense=dense)


def at(theta: Theta, rows: IntArray, columns: IntArray, *, dense: bool | None = None) -> FloatArray:
    """θ at some cells, for a client without an effect; ``dense`` as in ``products``."""
    effects, low_rank, covariates = theta
    natural = effects.at(rows, columns) + low_rank_at(low_rank, rows, columns, dense=dense)
    return natural if covariates is None else natural + covariates.at(rows, columns)


def at_clients(
    theta: Theta, cells: Cells, clients: IntArray, lengths: IntArray | int, *, dense: bool
) -> FloatArray:
    """θ of so many cells of each of some clients, client after client."""
    natural, covariates = at(theta, cells.rows, cells.columns, dense=dense), theta.covariates
    if covariates is None or not len(covariates.clients):
        return natural
    return natural + np.repeat(covariates.clients[clients], lengths)


def dense(
    theta: Theta, rows: IntArray | slice = slice(None), columns: IntArray | slice = slice(None)
) -> FloatArray:
    """θ of some rows and columns, as a matrix."""
    effects, low_rank, covariates = theta
    scaled = low_rank.left[rows] * low_rank.singular_values
    natural = scaled @ low_rank.right[columns].T
    row_effects, column_effects = effects.rows[rows], effects.columns[columns]
    for block in row_blocks(natural):
        natural[block] += row_effects[block, None] + column_effects + effects.intercept
    return natural if covariates is None else natural + covariates.block(rows, columns)


def row_blocks(matrix: FloatArray) -> list[slice]:
    """Slices of a few rows each, so that temporary arrays are small beside a dense matrix."""
    n_rows = max(1, _SIZES.block_entries // max(1, matrix.shape[1]))
    return [slice(first, first + n_rows) for first in range(0, len(matrix), n_rows)]


def squared_distance(one: LowRank, other: LowRank) -> float:
    """Squared Frobenius norm of the difference of two low-rank matrices.

    The difference is split into its part in the row space of ``one``, whose right factor has
    orthonormal columns, and the rest; for nearly equal matrices, expanding the square would lose
    all digits to cancellation.
    """
    rotation = other.right.T @ one.right
    projected = one.left * one.singular_values - other.left @ (
        other.singular_values[:, None] * rotation
    )
    orthogonal = (other.right - one.right @ rotation.T) * other.singular_values
    gram = other.left.T @ other.left
    return float(np.vdot(projected, projected) + np.vdot(orthogonal @ gram, orthogonal))
