"""Gaussian mixtures as a curved exponential family (Appendix F.1 of the paper).

With ``f(y)`` the sufficient functions of a row and ``r_g(y)`` the posterior probability of
component ``g``, the statistic of a row is ``r_g(y) f(y)`` for every ``g``: a matrix of shape
(n_components, n_functions), flattened. The E-step is two matrix products around a softmax::

    log r = φ(θ) f(y) + constant            s = r f(y)ᵀ

================  ==========================================  ============================
covariance_type   ``f(y)``                                    known to the server
================  ==========================================  ============================
full              1, y, y_j y_l for j <= l
tied              1, y                                        second moment of the rows
diag              1, y, y_j²
spherical         1, y, ||y||²
================  ==========================================  ============================

All quantities are in *standard units*, see ``units.py``: ``y`` is a row after a map that gives the
rows of all clients unit second moments.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from ..._federation import Federation
from ..._typing import BoolArray, CovarianceType, FloatArray, IntArray
from .. import client_rows
from .._base import ClientSums, Estimate, RowModel, Step
from . import wide_rows
from .component_units import ComponentUnits, component_units, within_rows
from .covariances import (
    COLLAPSED,
    MATRICES,
    inverses_of_triangles,
    roots_and_inverses,
    unpack,
    upper,
    variances_of,
    without_negative_variance,
)
from .domain import safeguarded_step
from .natural import natural_parameter
from .parameters import Parameters, covariances_to_standard
from .stream import field_with_moment, with_scatter, with_vanishing_ones_frozen
from .units import ROUNDING, Units, n_moments

COVARIANCE_TYPES = get_args(CovarianceType)
# Doubles in a block of an E-step, about 4 MB. Larger blocks exceed the cache; with smaller ones,
# threads spend their time waiting for each other.
_CACHE_SIZE = 2**19
# Maximum number of doubles in the statistics of a block's clients.
_MOST_STATISTICS = 2**23
# Weight below which a component counts as empty, as in scikit-learn's mixtures.
_EMPTY = 10 * np.finfo(np.float64).eps
# Below this weight, rounding errors of a component's moments may exceed ROUNDING.
_RARE = 0.01
# Lower bound of log-odds against the likeliest component: exp is ten times slower if it underflows.
_LEAST_LOG_ODDS = -500.0
# Shares of n / ω_p and N / (q ω_p): up to these steps, errors average out over clients and rows
# although control variates lag behind. With twice these shares, gaps after 200 rounds were 1.6
# times as large, on average over 180 random mixtures, half of them with narrow components.
_CLIENTS = 0.03
_ROWS = 0.15
# Share of n b / (q (1 + ω_p)), or of Theorem 4's n b / (q (1 + 5 ω_p)), for the first steps of
# FedEM: the noise of minibatches and messages must not carry Ŝ out of the domain of the M-step.
_NOISE = 0.1
# Share of √(n b p / (k_in (1 + ω_p))): SPIDER's errors accumulate over an inner loop. n, b and k_in
# are as in Proposition 25; p and ω_p are added here. 0.2 failed with batches of one row and 660
# statistics.
_SPIDER = 0.1


@dataclass(frozen=True)
class GaussianMixtureModel(RowModel):
    """Gaussian mixture with ``n_components`` components.

    Parameters
    ----------
    n_components : int
    covariance_type : {"full", "tied", "diag", "spherical"}
    units : Units
        Standard units for the covariance type.
    reg_covar : float
        Constant added to every variance, in the rows' units squared.
    second_moment : ndarray of shape (n_features, n_features), default=None
        Σ_i w_i mean of y yᵀ over client i's rows, in standard units; for ``"tied"``, except in a
        stream.
    fixed_root : ndarray of shape (n_features, n_features), default=None
        Lower-triangular L with L Lᵀ = Σ, for a known shared covariance Σ in standard units; with
        ``"tied"`` only. In Σ itself, a variance has few digits if others are much larger.
    in_stream : bool, default=False
        Whether rounds belong to a stream. With "tied", the second moment of the rows is then
        appended to Ŝ, and clients send theirs in every round, unless the covariance is known.
    is_wide : bool, default=False
        Whether products of features are summed without being stored, see ``wide_rows``.
    """

    n_components: int
    covariance_type: CovarianceType
    units: Units
    reg_covar: float = 0.0
    second_moment: FloatArray | None = None
    fixed_root: FloatArray | None = None
    in_stream: bool = False
    is_wide: bool = False

    @cached_property
    def n_features(self) -> int:
        """Number of columns of a row, d."""
        return len(self.units.center)

    @cached_property
    def n_functions(self) -> int:
        """Number of sufficient functions f(y) of a row."""
        d = self.n_features
        extra = {"full": d * (d + 1) // 2, "tied": 0, "diag": d, "spherical": 1}
        return 1 + d + extra[self.covariance_type]

    @cached_property
    def n_statistics(self) -> int:
        """Length q of the statistic vector."""
        return self.n_components * self.n_functions

    def table(self, statistics: FloatArray) -> FloatArray:
        """View of a statistic with one row per component: its mass, then its sums."""
        return statistics[: self.n_statistics].reshape(self.n_components, self.n_functions)

    def moment(self, statistics: FloatArray) -> FloatArray:
        """Second moment of all rows, for "tied": sent once, or in a stream appended to Ŝ."""
        if not self.in_stream:
            assert self.second_moment is not None  # as described
            return self.second_moment
        return statistics[self.n_statistics :].reshape(self.n_features, self.n_features)

    @property
    def block_rows(self) -> int:
        """Number of rows whose E-step fits into the cache of a processor."""
        if self.is_wide:
            n_rows = _CACHE_SIZE // (2 * (1 + self.n_features + self.n_components))
        else:
            n_rows = _CACHE_SIZE // (self.n_functions + 2 * self.n_components)
        # Every row may belong to a different client.
        return max(64, min(n_rows, _MOST_STATISTICS // self.n_statistics))

    @property
    def _products(self) -> ModuleType:
        """Module with products of the functions of rows."""
        return wide_rows if self.is_wide else client_rows

    def regularization(self, means: FloatArray) -> FloatArray:
        """Regularisation added to the covariances, in standard units.

        With "full" and "tied", this is ``reg_covar`` plus the rounding error of the second moments
        from which a variance is computed; otherwise, it is the larger of the two.
        """
        if self.reg_covar == 0:
            return np.zeros(())
        if self.covariance_type == "tied":
            return self._shared_regularization
        rounding = ROUNDING * (1 + means**2)
        if self.covariance_type == "full":
            # The sum: the smallest eigenvalue of reg_covar may be far below its diagonal here.
            return self.given_regularization + rounding[:, :, None] * np.eye(self.n_features)
        if self.covariance_type == "spherical":
            rounding = rounding.mean(axis=1)
        return np.maximum(self.given_regularization, rounding)

    @cached_property
    def given_regularization(self) -> FloatArray:
        """``reg_covar`` in standard units: a matrix, or a variance of each axis or of all."""
        identity = np.eye(self.n_features) if self.covariance_type in MATRICES else np.ones(())
        return covariances_to_standard(self, self.reg_covar * identity)

    @cached_property
    def _regularization_exceeds_rows(self) -> bool:
        """Whether ``reg_covar`` exceeds the variance of the rows along some axis."""
        return bool((variances_of(self.covariance_type, self.given_regularization) > 1).any())

    @cached_property
    def _shared_regularization(self) -> FloatArray:
        """Regularisation of a covariance that is shared by all components."""
        return self.given_regularization + ROUNDING * np.eye(self.n_features)

    @cached_property
    def fixed_covariance(self) -> FloatArray | None:
        """The known shared covariance in standard units, or None."""
        return None if self.fixed_root is None else self.fixed_root @ self.fixed_root.T

    @cached_property
    def _fixed_root_and_inverse(self) -> tuple[FloatArray, FloatArray] | None:
        if self.fixed_root is None:
            return None
        return self.fixed_root, inverses_of_triangles(self.fixed_root, lower=True)

    @property
    def covariance_is_rest(self) -> bool:
        """Whether the covariance is the second moment of all rows minus that of the means."""
        return self.covariance_type == "tied" and self.fixed_covariance is None

    @property
    def n_uncompressed(self) -> int:
        """Size of the scatter of rows that clients send in a stream."""
        return n_moments(self.n_features, True) if self.covariance_is_rest else 0

    # ---- E-step

    def features(self, rows: NDArray[Any]) -> FloatArray:
        """Sufficient functions f(y) of some rows.

        Parameters
        ----------
        rows : ndarray of shape (n_rows, n_features)

        Returns
        -------
        features : ndarray of shape (n_functions, n_rows)
            Only the functions 1 and y if the model is wide.
        """
        d = self.n_features
        features = np.empty((1 + d if self.is_wide else self.n_functions, len(rows)))
        features[0] = 1.0
        y = features[1 : 1 + d]
        self.units.standardize(rows, out=y)
        if self.covariance_type == "full" and not self.is_wide:
            start = 1 + d
            for j in range(d):
                np.multiply(y[j:], y[j], out=features[start : start + d - j])
                start += d - j
        elif self.covariance_type == "diag":
            np.square(y, out=features[1 + d :])
        elif self.covariance_type == "spherical":
            np.einsum("ji,ji->i", y, y, out=features[1 + d])
        return features

    def expectation(
        self,
        natural: FloatArray,
        features: FloatArray,
        lengths: IntArray,
        sample_weight: FloatArray | None = None,
    ) -> ClientSums:
        """Sums over each client's rows of the posterior statistics and of log p(y; θ)."""
        posterior, total, highest = self._posterior(natural, features, lengths, sample_weight)
        log_likelihood = np.log(total, out=total)
        log_likelihood += highest
        if sample_weight is not None:
            log_likelihood *= sample_weight
        return ClientSums(
            statistics=self._products.segment_products(posterior, features, lengths),
            log_likelihood=client_rows.segment_sums(log_likelihood, lengths),
        )

    def expected_statistics(
        self, natural: FloatArray, features: FloatArray, lengths: IntArray
    ) -> FloatArray:
        """Only the statistics of ``expectation``."""
        posterior, _, _ = self._posterior(natural, features, lengths)
        return self._products.segment_products(posterior, features, lengths)

    def all_rows(
        self, federation: Federation, parameters: Parameters, clients: IntArray
    ) -> Estimate:
        """s̄_i(θ); in a stream with "tied" covariances, also the scatter of the rows."""
        estimate = super().all_rows(federation, parameters, clients)
        if self.in_stream and self.covariance_type == "tied":
            return with_scatter(self, federation, parameters, clients, estimate)
        return estimate

    def _posterior(
        self,
        natural: FloatArray,
        features: FloatArray,
        lengths: IntArray,
        sample_weight: FloatArray | None = None,
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Posterior probabilities r, and ``total * exp(highest)``, the density of each row.

        r is multiplied by the row weights, if given.
        """
        coefficients = natural.reshape(-1, self.n_components, self.n_functions)
        log_joint = self._products.multiplied_by_client(coefficients, features, lengths)
        highest = log_joint.max(axis=0)
        log_joint -= highest
        # maximum of two arrays is three times as fast as with a scalar.
        np.maximum(log_joint, np.full_like(highest, _LEAST_LOG_ODDS), out=log_joint)
        posterior = np.exp(log_joint, out=log_joint)
        total = posterior.sum(axis=0)
        posterior *= (1 if sample_weight is None else sample_weight) / total
        return posterior, total, highest

    def assigned(
        self,
        posterior: FloatArray,
        features: FloatArray,
        lengths: IntArray,
        sample_weight: FloatArray | None = None,
    ) -> FloatArray:
        """Sums over each client's rows of the statistics under given posterior probabilities.

        ``posterior`` has shape (n_components, n_rows); returns shape (n_clients, n_statistics).
        """
        if sample_weight is not None:
            posterior = posterior * sample_weight
        return self._products.segment_products(posterior, features, lengths)

    # ---- M-step

    def maximization(self, statistics: FloatArray) -> Parameters:
        """T(s), equations (60)-(62) of the paper and their analogues for other covariance types."""
        mass, means, second = self.split(statistics)
        weights = mass / mass.sum()
        if self.fixed_covariance is not None:
            return self.parameters(weights, means, self.fixed_covariance)
        scatter = self.scatter(mass, means, second)
        if self.reg_covar == 0:
            self._check_scatter(scatter, means)
        if self.covariance_type not in MATRICES:
            scatter = np.maximum(scatter, 0)
        elif self.covariance_type == "full" and mass.min() < _RARE:
            # Rounding errors of a moment, divided by a small mass, may exceed the regularisation.
            rare = mass < _RARE
            scatter[rare] = without_negative_variance(scatter[rare])
        return self.parameters(weights, means, scatter + self.regularization(means))

    def parameters(
        self, weights: FloatArray, means: FloatArray, covariances: FloatArray
    ) -> Parameters:
        """Parameters θ with φ(θ) and ψ(θ), from weights, means and covariances."""
        roots, inverses = self._fixed_root_and_inverse or roots_and_inverses(
            self.covariance_type, covariances
        )
        natural, log_partition = natural_parameter(self, weights, means, inverses)
        return Parameters(
            weights, means, covariances, natural.ravel(), log_partition, roots, inverses
        )

    def statistics_of(self, parameters: Parameters) -> FloatArray:
        """Inverse of T: the expected statistic under these parameters (the mean parameters).

        Along axes on which rows do not vary, it is 0, as for the rows.
        """
        means = parameters.means
        moments = self._moments(means, parameters.covariances - self.regularization(means))
        moments[:, self._is_zero] = 0.0
        return (parameters.weights[:, None] * moments).ravel()

    @cached_property
    def _is_zero(self) -> BoolArray:
        """Functions f(y) that are 0 for all rows, because these do not vary along an axis."""
        # A row that is 1 along the axes on which rows vary, as a component without scatter.
        row = self.units.varies[None].astype(float)
        return self._moments(row, scatter=0.0)[0] == 0

    def split(self, statistics: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Mass, mean and second moment of each component; if "tied", the moment of all rows."""
        d = self.n_features
        table = self.table(statistics)
        mass = np.maximum(table[:, 0], _EMPTY)
        moments = table[:, 1:] / mass[:, None]
        moments[table[:, 0] <= ROUNDING] = 0.0
        is_tied = self.covariance_type == "tied"
        return mass, moments[:, :d], self.moment(statistics) if is_tied else moments[:, d:]

    def scatter(self, mass: FloatArray, means: FloatArray, second: FloatArray) -> FloatArray:
        """Covariances without regularisation, in scikit-learn's shape."""
        d = self.n_features
        if self.covariance_type == "full":
            return unpack(second, d) - means[:, :, None] * means[:, None, :]
        if self.covariance_type == "tied":
            return second - (mass[:, None] * means).T @ means
        if self.covariance_type == "diag":
            return second - means**2
        return (second[:, 0] - (means**2).sum(axis=1)) / d

    def _moments(self, means: FloatArray, scatter: FloatArray | float) -> FloatArray:
        """Means of f(y) in components with these means and scatter; the inverse of ``scatter``."""
        d = self.n_features
        if self.covariance_type == "full":
            second = (scatter + means[:, :, None] * means[:, None, :])[:, *upper(d)]
        elif self.covariance_type == "tied":
            second = np.empty((len(means), 0))
        elif self.covariance_type == "diag":
            second = scatter + means**2
        else:
            second = (d * scatter + (means**2).sum(axis=1))[:, None]
        return np.hstack([np.ones((len(means), 1)), means, second])

    def _check_scatter(self, scatter: FloatArray, means: FloatArray) -> None:
        """Raise if a variance is no larger than rounding errors."""
        variances = np.linalg.eigvalsh(scatter) if self.covariance_type in MATRICES else scatter
        if variances.min() <= ROUNDING * (1 + (means**2).max()):
            raise np.linalg.LinAlgError(COLLAPSED)

    # ---- server

    def server_step(
        self, statistics: FloatArray, field: FloatArray, step_size: float, *, exact: bool
    ) -> Step:
        """``statistics + step_size * field``, kept in the domain of T."""
        if exact:  # an average of statistics of data, and thus in the domain of T
            field_sq_norm = self.field_sq_norm(statistics, field)
            step = Step(statistics + step_size * field, field_sq_norm, 0, step_size)
        else:
            step = safeguarded_step(self, statistics, field, step_size)
        return with_vanishing_ones_frozen(self, step, statistics) if self.in_stream else step

    def averaging_bound(self, federation: Federation) -> float:
        """Bound by the number of clients, or of rows over q, as few rows make fields erratic."""
        of_rows = _ROWS * federation.n_samples / self.n_statistics
        return min(_CLIENTS * federation.effective_n_clients, of_rows)

    def noise_bound(self, federation: Federation, batch_size: float, omega_p: float) -> float:
        """Bound by the number of rows read in a round, over q."""
        n_rows = federation.effective_n_clients * batch_size
        # Noise of means affects such a covariance the more, the further they are from the centre.
        factor = 5 if self.covariance_is_rest else 1
        return _NOISE * n_rows / (self.n_statistics * (1 + factor * omega_p))

    def spider_bound(self, federation: Federation, batch_size: float, omega_p: float) -> float:
        """Bound by the number of rows read in a round."""
        n_rows = federation.effective_n_clients * batch_size
        return _SPIDER * np.sqrt(n_rows / (1 + omega_p))

    def surrogate(self, statistics: FloatArray, parameters: Parameters) -> float:
        """``<s, φ(θ)> - ψ(θ)``; nats per row."""
        return float(statistics @ parameters.natural) - parameters.log_partition

    def criterion_value(self, mean_log_likelihood: float, parameters: Parameters) -> float:
        """Mean log-likelihood per row in the rows' units; nats."""
        return float(mean_log_likelihood) - parameters.log_partition + self.units.log_volume

    def stream_field(
        self,
        parameters: Parameters,
        statistics: FloatArray,
        field: FloatArray,
        uncompressed: FloatArray | float,
        step_size: float,
    ) -> FloatArray:
        """H, followed by the field of the second moment of the rows if covariances are "tied".

        With a known covariance, T does not need this moment, and it is not updated.
        """
        if self.covariance_is_rest:
            return field_with_moment(self, parameters, statistics, field, uncompressed, step_size)
        unchanged = np.zeros(len(statistics) - self.n_statistics)
        return np.append(field, unchanged)

    def message_units(self, parameters: Parameters) -> ComponentUnits:
        """Units of the components."""
        weights, means = parameters.weights, parameters.means
        roots, inverses = parameters.roots, parameters.inverses
        if self.fixed_root is None and self._regularization_exceeds_rows:
            added = self.regularization(means)
            covariances = within_rows(parameters.covariances, added, weights, self.covariance_type)
            roots, inverses = roots_and_inverses(self.covariance_type, covariances)
        # In a stream, the clients' messages remove the noise of the means from the covariance.
        is_rest = self.covariance_is_rest and not self.in_stream
        return component_units(
            self.covariance_type, weights, means, roots, inverses, self._is_zero, is_rest=is_rest
        )

    def constants(self) -> FloatArray:
        """Centre and scale to six digits, because rounding differs between machines.

        The axes, which follow from the rows, may be less accurate and are left out.
        """
        center, scale = self.units.center, self.units.scale
        # arcsinh behaves like a logarithm for large numbers of either sign.
        return np.concatenate([np.arcsinh(center / scale), np.log(scale)]).round(6) + 0.0

    def trace(self, parameters: Parameters) -> FloatArray:
        """Component weights."""
        return parameters.weights
