"""Covariates of rows and columns, effects of columns by groups of rows, and effects of clients.

They add to the natural parameter of the cell (j, l), whose row is in the group g, for client i,

    U_j a + V_l b_g + c_gl + u_i,

with covariates U of rows and V of columns, their coefficients a and b, effects c of columns by
groups, and effects u of clients. All of these are linear in coefficients β, so that a sparse matrix
of the observed cells (of each client, if clients have effects), the design, has everything that the
server needs; and the sums of the observations over rows, over columns, over groups and columns, and
over clients are sufficient statistics for β.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array, diags, hstack

from ..._serialization import serializable
from ..._typing import FloatArray, IntArray


@serializable
class CovariateTerms(NamedTuple):
    """What they add to θ: ``rows_j + by_group[groups_j, l] + clients_i``.

    ``clients`` is empty if clients have no effects.
    """

    rows: FloatArray
    groups: IntArray
    by_group: FloatArray
    clients: FloatArray

    def at(self, rows: IntArray, columns: IntArray) -> FloatArray:
        """Their sum at some cells, for a client without an effect."""
        return self.rows.take(rows) + self.by_group[self.groups.take(rows), columns]

    def block(self, rows: IntArray | slice, columns: IntArray | slice) -> FloatArray:
        """The same in some rows and columns, as a matrix."""
        return self.rows[rows, None] + self.by_group[:, columns][self.groups[rows]]


@serializable
class Covariates(NamedTuple):
    """What is known of rows, columns and clients.

    Attributes
    ----------
    rows : ndarray of shape (n_rows, n_row_covariates)
    columns : ndarray of shape (n_columns, n_column_covariates)
    groups : ndarray of int, shape (n_rows,)
        Group of each row; all 0 if there are none.
    n_groups : int
    with_effects : bool
        Whether each group has its own effects of columns.
    n_clients : int
        Number of clients with an effect.
    """

    rows: FloatArray
    columns: FloatArray
    groups: IntArray
    n_groups: int
    with_effects: bool
    n_clients: int

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Numbers of coefficients: of rows, of columns by groups, effects by groups, of clients."""
        n_columns, n_column_covariates = self.columns.shape
        n_effects = self.n_groups * n_columns * self.with_effects
        return self.rows.shape[1], self.n_groups * n_column_covariates, n_effects, self.n_clients

    def split(self, coefficients: FloatArray) -> tuple[FloatArray, ...]:
        """Coefficients a; b and c, with a row for each group; u."""
        n_columns, n_column_covariates = self.columns.shape
        ends = np.cumsum(self.sizes)[:-1]
        of_rows, of_columns, effects, of_clients = np.split(coefficients, ends)
        shape = (self.n_groups, n_columns)
        return (
            of_rows,
            of_columns.reshape(self.n_groups, n_column_covariates),
            effects.reshape(shape) if self.with_effects else np.zeros(shape),
            of_clients,
        )

    def terms(self, coefficients: FloatArray) -> CovariateTerms:
        """What the coefficients add to θ."""
        of_rows, of_columns, effects, of_clients = self.split(coefficients)
        by_group = of_columns @ self.columns.T + effects
        return CovariateTerms(self.rows @ of_rows, self.groups, by_group, of_clients)

    def design(self, rows: IntArray, columns: IntArray, clients: IntArray) -> csr_array:
        """Derivatives of θ by the coefficients at some cells, shape (n_cells, n_coefficients).

        ``clients`` are those of the cells, if clients have effects.
        """
        groups = self.groups[rows]
        n_columns = len(self.columns)
        parts = [csr_array(self.rows[rows])]
        of_columns = csr_array(self.columns[columns])
        for group in range(self.n_groups):
            parts.append(csr_array(diags((groups == group).astype(np.float64))) @ of_columns)
        if self.with_effects:
            parts.append(_indicators(groups * n_columns + columns, self.n_groups * n_columns))
        if self.n_clients:
            parts.append(_indicators(clients, self.n_clients))
        return csr_array(hstack(parts, format="csr"))

    def sums(
        self,
        row_sums: FloatArray,
        column_sums: FloatArray,
        group_sums: FloatArray,
        client_sums: FloatArray,
    ) -> FloatArray:
        """Sums of observations times derivatives, from those over rows, columns, groups, clients.

        ``group_sums``, of shape (n_groups, n_columns), are only needed if there are several groups,
        and ``client_sums`` if clients have effects; they are empty otherwise.
        """
        by_group = group_sums if self.n_groups > 1 else column_sums[None]
        parts = [self.rows.T @ row_sums, (by_group @ self.columns).ravel()]
        return np.concatenate([*parts, *[by_group.ravel()] * self.with_effects, client_sums])


def _indicators(numbers: IntArray, size: int) -> csr_array:
    """Matrix with a row for each number, in whose column it has a 1."""
    every = np.arange(len(numbers) + 1)
    return csr_array((np.ones(len(numbers)), numbers, every), shape=(len(numbers), size))


class JointDesign(NamedTuple):
    """Derivatives of θ by all effects and coefficients, for their joint equations.

    Attributes
    ----------
    cells : csr_array of shape (n_cells, n_unknowns)
        By intercept, columns (if they have effects), and coefficients.
    unknowns : csr_array of shape (n_unknowns, n_cells)
        Its transpose.
    rows : csr_array of shape (n_rows, n_cells)
        By the rows, which are no unknowns; transposed.
    order, starts : ndarray of int
        Coefficients in the order of the unknowns, and the unknowns where those of each group start.
    """

    cells: csr_array
    unknowns: csr_array
    rows: csr_array
    order: IntArray
    starts: IntArray


class CovariateData(NamedTuple):
    """Covariates in the observed cells, and what clients sent about them.

    Attributes
    ----------
    known : Covariates
    sums : ndarray of shape (n_coefficients,)
        Sums of the observations times their derivatives.
    penalties : ndarray of shape (n_coefficients,)
        Ridge penalties.
    design : csr_array of shape (n_cells, n_coefficients)
        Derivatives of θ by the coefficients.
    joint : JointDesign
    """

    known: Covariates
    sums: FloatArray
    penalties: FloatArray
    design: csr_array
    joint: JointDesign
