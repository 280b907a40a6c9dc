"""What a server knows of a matrix before the first round: observed cells, margins, parameters."""

from __future__ import annotations

from typing import Any, NamedTuple, get_args

import numpy as np
from scipy.sparse import csr_array

from ..._cells import cell_codes
from ..._serialization import serializable
from ..._typing import BoolArray, EffectsName, FamilyName, FloatArray, IntArray
from .covariates import CovariateData, CovariateTerms
from .families import Family, family_of, working_family
from .theta import Cells, Effects, cell_blocks

EFFECTS = get_args(EffectsName)

# Smallest ridge on the effects: without it, the effect of a site with only zeros would be -inf.
LEAST_PENALTY = 1e-7


class Sizes(NamedTuple):
    """Sizes for speed, see examples/benchmarks/imputation_speed.py.

    Attributes
    ----------
    dense_entries, dense_share : int, float
        Up to this number of entries, or with at least this share of them observed, matrices are
        dense: SciPy's checks of a sparse matrix take as long as products with so many numbers, and
        its products are several times as slow as those of a dense one.
    bincount_cells : int
        Up to this number of cells, these checks take longer than NumPy's bincount.
    """

    dense_entries: int = 2**17
    dense_share: float = 0.5
    bincount_cells: int = 2**12


_SIZES = Sizes()


@serializable
class Margins(NamedTuple):
    """Sums over each row, shape (n_rows,), and over each column, shape (n_columns,)."""

    rows: FloatArray
    columns: FloatArray


@serializable
class Support(NamedTuple):
    """Cells observed by any client, in row-major order, and how often each was observed.

    If clients have effects, a cell has an entry for each client that observed it.

    Attributes
    ----------
    rows, columns : ndarray of int32, shape (n_cells,)
    counts : ndarray of shape (n_cells,)
        N_jl: total weight of the observations of a cell; their number if weights are equal.
    row_starts : ndarray of int32 or int64, shape (n_rows + 1,)
        Row ``j`` has the cells ``row_starts[j]:row_starts[j + 1]``.
    is_observed : tuple of two ndarray of bool
        Whether rows, and columns, have observed cells.
    shape : tuple of two int
    by_client : bool
        Whether a cell may have several entries.
    """

    rows: IntArray
    columns: IntArray
    counts: FloatArray
    row_starts: IntArray
    is_observed: tuple[BoolArray, BoolArray]
    shape: tuple[int, int]
    by_client: bool = False

    def sums_of_cells(self, values: FloatArray) -> FloatArray:
        """Sums of values over the entries of each cell."""
        if not self.by_client:
            return values
        codes = cell_codes(self.rows, self.columns, self.shape[1])
        sums: FloatArray = np.add.reduceat(values, np.flatnonzero(np.diff(codes, prepend=-1)))
        return sums

    def matrix(self, values: FloatArray, factor: float = 1.0) -> FloatArray | csr_array:
        """Matrix of values times a factor in the observed cells; sparse if large and with few."""
        n_rows, n_columns = self.shape
        n_entries = n_rows * n_columns
        if n_entries > _SIZES.dense_entries and len(values) < _SIZES.dense_share * n_entries:
            return self._sparse(factor * values)
        array = np.zeros(self.shape)
        for block in cell_blocks(len(values)):
            codes = cell_codes(self.rows[block], self.columns[block], n_columns)
            if self.by_client:
                np.add.at(array.ravel(), codes, factor * values[block])
            else:
                array.ravel()[codes] = factor * values[block]
        return array

    def margins(self, values: FloatArray) -> Margins:
        """Sums of values in the observed cells over each row and each column."""
        n_rows, n_columns = self.shape
        if len(values) <= _SIZES.bincount_cells:
            row_sums: Any = np.bincount(self.rows, values, n_rows)
            column_sums: Any = np.bincount(self.columns, values, n_columns)
            return Margins(row_sums, column_sums)
        matrix = self._sparse(values)  # up to five times as fast here
        return Margins(matrix @ np.ones(n_columns), matrix.T @ np.ones(n_rows))

    def _sparse(self, values: FloatArray) -> csr_array:
        return csr_array((values, self.columns, self.row_starts), shape=self.shape)


@serializable
class Pooled(NamedTuple):
    """Data that the server received before the first round, and parameters of the model.

    ``margins`` are the sums of the observations over rows and over columns, 0 where there are no
    such ``effects``, ``rank`` bounds that of the low-rank part, ``penalty`` is λ, and
    ``effects_penalty`` the ridge on the effects. ``covariates`` are None if there are none.

    For negative binomial counts of a ``size`` k, the support counts trials: the sum of the
    observations of a cell, plus k for each.
    """

    support: Support
    margins: Margins
    family_name: FamilyName
    rank: int
    penalty: float
    effects: EffectsName
    effects_penalty: float
    covariates: CovariateData | None = None
    size: float = np.inf

    @property
    def family(self) -> Family:
        """Family of the working cells."""
        return working_family(self.observed_family)

    @property
    def observed_family(self) -> Family:
        """Family of the observations."""
        return family_of(self.family_name, self.size)

    def working(self, cells: Cells) -> Cells:
        """Cells that fits read in place of the observed ones."""
        return working_cells(cells, self.observed_family)

    @property
    def ridge_penalty(self) -> float:
        """Ridge on the effects that is used, which is never 0."""
        return max(self.effects_penalty, LEAST_PENALTY)

    @property
    def total(self) -> float:
        """Sum of all observations."""
        known = self.margins.columns if self.effects == "columns" else self.margins.rows
        return float(known.sum())

    def effects_at_cells(self, effects: Effects) -> FloatArray:
        """Sum of effects and covariates in the observed cells."""
        values = effects.at(self.support.rows, self.support.columns)
        if self.covariates is None:
            return values
        return values + self.covariates.design @ effects.coefficients

    def covariate_terms(self, effects: Effects) -> CovariateTerms | None:
        """What covariates add to θ, if there are any."""
        known = self.covariates
        return None if known is None else known.known.terms(effects.coefficients)

    def without_cells(self) -> Pooled:
        """The parameters of the model alone, as if nobody had observed anything."""
        none, shape = np.empty(0, dtype=np.int32), self.support.shape
        support = Support(none, none, np.empty(0), none, (none > 0, none > 0), shape)
        margins = Margins(np.empty(0), np.empty(0))
        return self._replace(support=support, margins=margins, covariates=None)


def working_cells(cells: Cells, family: Family) -> Cells:
    """Cells with the likelihood of negative binomial cells: shares of successes, and trials."""
    if family.name != "negative_binomial":
        return cells
    means = cells.values + family.size
    return cells._replace(values=cells.values / means, counts=cells.counts * means)
