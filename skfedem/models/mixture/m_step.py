"""M-step of a mixture: the map T from statistics to parameters, and its inverse.

A statistic is a table with one row for each component: its mass s⁽¹⁾, its first moment s⁽²⁾ and its
second moments s⁽³⁾, see ``covariances.py``. All quantities are in *standard units*, see
``units.py``: those of a row after a map that gives the rows of all clients unit second moments.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..._typing import BoolArray, CovarianceType, FloatArray, IntArray
from .._base import RowModel
from .covariances import COVARIANCES, NOT_POSITIVE_DEFINITE, CovarianceStructure
from .linear_algebra import ROUNDING, inverse_triangular, n_moments
from .parameters import Parameters, in_row_units, natural_parameter
from .units import Units

# Weight below which a component counts as empty, as in scikit-learn's mixtures.
_EMPTY = 10 * np.finfo(np.float64).eps
# Variances below this many rounding errors of a second moment are inaccurate.
_ACCURATE = 10
# Variances up to so many times ``reg_covar`` are due to it rather than to the rows.
_COLLAPSED = 10


@dataclass(frozen=True)
class MStep(RowModel):
    """The part of ``GaussianMixtureModel`` that computes parameters from statistics.

    ``reg_covar`` is added to every variance, in the rows' units squared. If covariances are shared,
    ``second_moment`` is E[y yᵀ] of all rows; in a stream it is appended to Ŝ instead, and clients
    send theirs in every round. ``fixed_cholesky`` is the Cholesky factor of a known shared
    covariance, in which a variance has few digits if others are much larger.
    """

    n_components: int
    covariance_type: CovarianceType
    units: Units
    reg_covar: float = 0.0
    second_moment: FloatArray | None = None
    fixed_cholesky: FloatArray | None = None
    in_stream: bool = False

    @cached_property
    def structure(self) -> CovarianceStructure:
        """Functions of the covariance type."""
        return COVARIANCES[self.covariance_type]

    @cached_property
    def n_features(self) -> int:
        """Number of columns of a row, d."""
        return len(self.units.center)

    @cached_property
    def n_functions(self) -> int:
        """Number of sufficient functions f(y) of a row."""
        return 1 + self.n_features + self.structure.n_squares(self.n_features)

    @cached_property
    def n_statistics(self) -> int:
        """Length q of the statistic vector."""
        return self.n_components * self.n_functions

    @property
    def is_total_minus_between(self) -> bool:
        """Whether the covariance is the second moment of all rows minus that of the means."""
        return self.structure.is_shared and self.fixed_cholesky is None

    @property
    def n_uncompressed(self) -> int:
        """Size of the scatter of rows that clients send in a stream."""
        has_scatter = self.in_stream and self.is_total_minus_between
        return n_moments(self.n_features, True) if has_scatter else 0

    # ---- statistics

    def table(self, statistics: FloatArray) -> FloatArray:
        """View of a statistic with one row per component: its mass, then its sums."""
        return statistics[: self.n_statistics].reshape(self.n_components, self.n_functions)

    def moment(self, statistics: FloatArray) -> FloatArray:
        """Second moment of all rows, if shared: sent once, or in a stream appended to Ŝ."""
        if not self.in_stream:
            assert self.second_moment is not None  # as described
            return self.second_moment
        return statistics[self.n_statistics :].reshape(self.n_features, self.n_features)

    def split(self, statistics: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Mass, mean and second moment of each component; if shared, the moment of all rows."""
        d = self.n_features
        table = self.table(statistics)
        mass = np.maximum(table[:, 0], _EMPTY)
        moments = table[:, 1:] / mass[:, None]
        moments[table[:, 0] <= ROUNDING] = 0.0
        is_shared = self.structure.is_shared
        return mass, moments[:, :d], self.moment(statistics) if is_shared else moments[:, d:]

    # ---- regularisation

    @cached_property
    def standard_reg_covar(self) -> FloatArray:
        """``reg_covar`` in standard units: a matrix, or a variance of each axis or of all."""
        identity = np.eye(self.n_features) if self.structure.has_matrices else np.ones(())
        return self.units.covariances_to_standard(self.reg_covar * identity)

    def regularization(self, means: FloatArray) -> FloatArray:
        """Regularisation added to the covariances, in standard units."""
        if self.reg_covar == 0:
            return np.zeros(())
        return self.structure.regularization(self.standard_reg_covar, means)

    # ---- T and its inverse

    @cached_property
    def fixed_covariance(self) -> FloatArray | None:
        """The known shared covariance in standard units, or None."""
        return None if self.fixed_cholesky is None else self.fixed_cholesky @ self.fixed_cholesky.T

    @cached_property
    def _fixed_factors(self) -> tuple[FloatArray, FloatArray] | None:
        if self.fixed_cholesky is None:
            return None
        return self.fixed_cholesky, inverse_triangular(self.fixed_cholesky, lower=True)

    def maximization(self, statistics: FloatArray) -> Parameters:
        """T(s), equations (60)-(62) of the paper and their analogues for other covariance types."""
        mass, means, second = self.split(statistics)
        weights = mass / mass.sum()
        if self.fixed_covariance is not None:
            return self.parameters(weights, means, self.fixed_covariance)
        scatter = self.structure.scatter(mass, means, second)
        if self.reg_covar == 0:
            has_matrices = self.structure.has_matrices
            variances = np.linalg.eigvalsh(scatter) if has_matrices else scatter
            if variances.min() <= ROUNDING * (1 + (means**2).max()):
                raise np.linalg.LinAlgError(NOT_POSITIVE_DEFINITE)
        if not self.structure.is_shared:
            scatter = self.structure.without_negative_variance(scatter, mass)
        return self.parameters(weights, means, scatter + self.regularization(means))

    def parameters(
        self, weights: FloatArray, means: FloatArray, covariances: FloatArray
    ) -> Parameters:
        """Parameters θ with φ(θ) and ψ(θ), from weights, means and covariances."""
        factors = self._fixed_factors or self.structure.cholesky_and_inverse(covariances)
        natural = natural_parameter(self.structure, weights, means, factors[1], self.second_moment)
        return Parameters(weights, means, covariances, *natural, *factors)

    def statistics_of(self, parameters: Parameters) -> FloatArray:
        """Inverse of T: the expected statistic under these parameters (the mean parameters).

        Along axes on which rows do not vary, it is 0, as for the rows.
        """
        means = parameters.means
        moments = self._moments(means, parameters.covariances - self.regularization(means))
        moments[:, self.is_zero] = 0.0
        return (parameters.weights[:, None] * moments).ravel()

    @cached_property
    def is_zero(self) -> BoolArray:
        """Functions f(y) that are 0 for all rows, because these do not vary along an axis."""
        # A row that is 1 along the axes on which rows vary, as a component without scatter.
        row = self.units.has_variance[None].astype(float)
        return self._moments(row, scatter=0.0)[0] == 0

    def _moments(self, means: FloatArray, scatter: FloatArray | float) -> FloatArray:
        """Means of f(y) in components with these means and covariances."""
        second = self.structure.second_moments(means, scatter)
        return np.hstack([np.ones((len(means), 1)), means, second])

    def inaccurate_components(self, parameters: Parameters) -> IntArray:
        """Indices of components with a variance of about the size of rounding errors.

        Rows are so far apart that their second moments do not determine the variance, and
        ``reg_covar`` is smaller than the rounding errors.
        """
        if self.reg_covar == 0 or self.fixed_cholesky is not None:
            return np.empty(0, dtype=np.intp)  # refused by T, or not estimated
        axes, reg_covar = self.units.has_variance, self.standard_reg_covar
        variances, rounding = (
            parameters.covariances,
            ROUNDING * (1 + parameters.means[:, axes] ** 2),
        )
        if self.structure.is_isotropic:
            # The mean over all features: perhaps none of them varies.
            rounding = rounding.sum(axis=1, keepdims=True) / self.n_features
            cases: list[tuple[Any, Any, Any]] = [(variances[:, None], rounding, reg_covar)]
        elif not self.structure.has_matrices:
            cases = [(variances[:, axes], rounding, reg_covar[axes])]
        else:
            # If axes mix features in different units, reg_covar may be large along axes but smaller
            # than the rounding errors of features in large units.
            to_rows = self.units.inverse_whitening
            of_features = np.square(to_rows.T @ parameters.cholesky).sum(axis=-1)
            variances, principal = np.linalg.eigh(variances[..., axes, :][..., axes])
            added = (principal * (reg_covar[axes, :][:, axes] @ principal)).sum(axis=-2)
            cases = [
                (variances, rounding.max(axis=1, keepdims=True, initial=0), added),
                (of_features, rounding @ np.square(to_rows[axes]), self.reg_covar),
            ]
        is_lost = [((v < _ACCURATE * r) & (added < r)).any(axis=1) for v, r, added in cases]
        return np.flatnonzero(np.any(is_lost, axis=0))

    def collapsed_variances(self, parameters: Parameters) -> BoolArray:
        """Variances that are due to ``reg_covar``, of features that vary far more over all rows.

        Shape (n_components, n_features); (1, n_features) if covariances are shared.
        """
        if self.reg_covar == 0 or self.fixed_cholesky is not None:
            return np.zeros((1, self.n_features), dtype=bool)
        weights, _, covariances, _ = in_row_units(self.units, parameters)
        variances = self.structure.variances(covariances)
        if self.structure.is_isotropic:
            variances = variances[:, None]
        is_small = np.atleast_2d(variances) <= _COLLAPSED * self.reg_covar
        if not self.structure.is_shared:
            is_small &= weights[:, None] > ROUNDING  # empty components have no scatter
        return is_small & (self.units.standard_deviations**2 > _COLLAPSED**2 * self.reg_covar)
