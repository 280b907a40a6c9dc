"""Main effects beside a fixed low-rank part, from margins that the server was told once.

The margins ``Σ_l Σ y_jl`` and ``Σ_j Σ y_jl`` over observed cells are sufficient for the effects:
their likelihood equations hold no other function of the observations. The server therefore solves
for the effects by itself, whatever the clients send in a round.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.linalg import LinearOperator, cg

EFFECTS = ("both", "rows", "columns", "none")

# Ridge on the effects: a site where nothing was ever seen would have the effect -inf. It is part
# of the objective, and far below the noise of any data.
RIDGE = 1e-7
_TOLERANCE = 1e-12
_MAX_NEWTON_STEPS = 50
_MAX_HALVINGS = 30
# A Newton step may change no effect by more: further away its quadratic model says nothing.
_LONGEST = 4.0


class Support(NamedTuple):
    """The cells that anyone observed, row by row, and how often.

    Attributes
    ----------
    rows, columns : ndarray of int32, shape (n_cells,)
    counts : ndarray of shape (n_cells,)
        N_jl: weight of all observations of a cell, their number when all count alike.
    row_starts : ndarray of int, shape (n_rows + 1,)
        Row ``j`` has the cells ``row_starts[j]:row_starts[j + 1]``.
    shape : tuple of two int
    """

    rows: np.ndarray
    columns: np.ndarray
    counts: np.ndarray
    row_starts: np.ndarray
    shape: tuple

    def matrix(self, values):
        """Sparse matrix with these values in the observed cells; they are not copied."""
        return csr_array((values, self.columns, self.row_starts), shape=self.shape)

    def margins(self, values):
        """Sums of such values over each row and over each column."""
        n_rows, n_columns = self.shape
        return Margins(
            np.bincount(self.rows, values, minlength=n_rows),
            np.bincount(self.columns, values, minlength=n_columns),
        )


class Margins(NamedTuple):
    """Sums over each row, shape (n_rows,), and over each column, shape (n_columns,)."""

    rows: np.ndarray
    columns: np.ndarray


class Effects(NamedTuple):
    """Intercept, row effects and column effects, each sum of effects being 0."""

    intercept: float
    rows: np.ndarray
    columns: np.ndarray

    def at(self, rows, columns):
        """Their sum at some cells."""
        return self.intercept + self.rows[rows] + self.columns[columns]


def ridge(effects):
    """The effects' share of the objective; nats."""
    return 0.5 * RIDGE * float(effects.rows @ effects.rows + effects.columns @ effects.columns)


def fit_effects(support, margins, low_rank_values, start, kind, family):
    """Minimise the objective over the effects, by Newton's method with step halving.

    Parameters
    ----------
    support : Support
    margins : Margins
        Of the observations.
    low_rank_values : ndarray of shape (n_cells,)
        Low-rank part in the observed cells.
    start : Effects
    kind : {"both", "rows", "columns", "none"}
        Which effects there are; "none" has no intercept either.
    family : Family

    Returns
    -------
    effects : Effects
    theta : ndarray of shape (n_cells,)
        θ in the observed cells.
    """
    cells = support.rows, support.columns
    effects, theta = start, low_rank_values + start.at(*cells)
    if kind == "none":
        return effects, theta
    value = _objective(support, margins, effects, theta, family)
    for _ in range(_MAX_NEWTON_STEPS):
        gradient, direction = _newton(support, margins, effects, theta, kind, family)
        decrease = gradient.rows @ direction.rows + gradient.columns @ direction.columns
        if decrease <= _TOLERANCE * abs(value):
            break
        longest = max(np.abs(direction.rows).max(), np.abs(direction.columns).max())
        length = min(1.0, _LONGEST / longest)
        for _ in range(_MAX_HALVINGS):
            proposal = _centred(
                Effects(
                    effects.intercept,
                    effects.rows + length * direction.rows,
                    effects.columns + length * direction.columns,
                )
            )
            proposed_theta = low_rank_values + proposal.at(*cells)
            proposed = _objective(support, margins, proposal, proposed_theta, family)
            if proposed <= value - 1e-4 * length * decrease:
                break
            length = length / 2
        else:
            break
        effects, theta, value = proposal, proposed_theta, proposed
    return effects, theta


def _objective(support, margins, effects, theta, family):
    """What depends on the effects: ``Σ N ψ(θ) - Σ y (effects) + ridge``."""
    loss = support.counts @ family.log_partition(theta)
    linear = effects.intercept * margins.rows.sum()
    linear += effects.rows @ margins.rows + effects.columns @ margins.columns
    return float(loss - linear) + ridge(effects)


def _newton(support, margins, effects, theta, kind, family):
    """Minus the gradient, and the Newton direction for it; the intercept moves by centring."""
    expected = support.margins(support.counts * family.mean(theta))
    weights = support.counts * family.variance(theta)
    curvature = support.margins(weights)
    rows = margins.rows - expected.rows - RIDGE * effects.rows
    columns = margins.columns - expected.columns - RIDGE * effects.columns
    by_row, by_column = curvature.rows + RIDGE, curvature.columns + RIDGE
    none_rows, none_columns = np.zeros_like(rows), np.zeros_like(columns)
    if kind == "rows":
        return Margins(rows, none_columns), Margins(rows / by_row, none_columns)
    if kind == "columns":
        return Margins(none_rows, columns), Margins(none_rows, columns / by_column)
    # Eliminate the rows: (C - Wᵀ R⁻¹ W) c = g_c - Wᵀ R⁻¹ g_r, then r = R⁻¹ (g_r - W c).
    matrix = support.matrix(weights)
    n_columns = len(columns)
    schur = LinearOperator(
        (n_columns, n_columns),
        matvec=lambda c: by_column * c - matrix.T @ ((matrix @ c) / by_row),
        dtype=np.float64,
    )
    preconditioner = LinearOperator(
        (n_columns, n_columns), matvec=lambda c: c / by_column, dtype=np.float64
    )
    solution, _ = cg(
        schur, columns - matrix.T @ (rows / by_row), rtol=1e-6, maxiter=100, M=preconditioner
    )
    return Margins(rows, columns), Margins((rows - matrix @ solution) / by_row, solution)


def _centred(effects):
    """The same θ with effects that sum to 0, which the ridge prefers."""
    row_mean, column_mean = effects.rows.mean(), effects.columns.mean()
    return Effects(
        effects.intercept + row_mean + column_mean,
        effects.rows - row_mean,
        effects.columns - column_mean,
    )
