"""Gaussian mixtures as a curved exponential family (Appendix F.1 of the paper).

The E-step is two matrix products around a softmax, with f(y) and the statistics of
``covariances.py``, the M-step is in ``m_step.py``::

    log r = φ(θ) f(y) + constant            s = r f(y)ᵀ
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..._federation import ClientSizes, Federation
from ..._serialization import serializable
from ..._typing import FloatArray, IntArray
from .. import client_rows
from .._base import ClientSums, Estimate, Step
from . import quadratic_forms
from .component_units import ComponentUnits, component_units, limited_by_rows
from .domain import safeguarded_step
from .m_step import MStep
from .parameters import Parameters
from .stream_moments import field_with_moment, with_scatter, with_vanishing_ones_frozen


class _BlockSize(NamedTuple):
    """Sizes of the blocks of an E-step, in doubles."""

    # About 4 MB. Larger blocks exceed the cache; with smaller ones, threads wait for each other.
    cache: int = 2**19
    # Maximum of the statistics of a block's clients.
    statistics: int = 2**23


class _StepBounds(NamedTuple):
    """Shares of bounds of γ; ``examples/benchmarks/step_size_constants.py`` varies ``noise``."""

    # Of n / ω_p and N / (q ω_p): up to these steps, errors average out over clients and rows
    # although control variates lag behind. With twice these shares, gaps after 200 rounds were 1.6
    # times as large, on average over 180 random mixtures, half of them with narrow components.
    clients: float = 0.03
    rows: float = 0.15
    # Of n b / (q (1 + ω_p)), or of Theorem 4's n b / (q (1 + 5 ω_p)), for the first steps of FedEM:
    # the noise of minibatches and messages must not carry Ŝ out of the domain of the M-step.
    noise: float = 0.1
    # Of √(n b p / (k_in (1 + ω_p))): SPIDER's errors accumulate over an inner loop. n, b and k_in
    # are as in Proposition 25; p and ω_p are added here. 0.2 failed with batches of one row and 660
    # statistics.
    spider: float = 0.1


_BLOCK_SIZE, _STEP_BOUNDS = _BlockSize(), _StepBounds()
# Lower bound of log-odds against the likeliest component: exp is ten times slower if it underflows.
_LEAST_LOG_ODDS = -500.0


@serializable
@dataclass(frozen=True)
class GaussianMixtureModel(MStep):
    """Gaussian mixture with ``n_components`` components.

    Parameters
    ----------
    n_components, covariance_type, units, reg_covar, second_moment, fixed_cholesky, in_stream
        As in ``MStep``.
    has_quadratic_forms : bool, default=False
        Whether products of features are summed without being stored, see ``quadratic_forms``.
    """

    has_quadratic_forms: bool = False

    @property
    def block_rows(self) -> int:
        """Number of rows whose E-step fits into the cache of a processor."""
        if self.has_quadratic_forms:
            n_rows = _BLOCK_SIZE.cache // (2 * (1 + self.n_features + self.n_components))
        else:
            n_rows = _BLOCK_SIZE.cache // (self.n_functions + 2 * self.n_components)
        # Every row may belong to a different client.
        return max(64, min(n_rows, _BLOCK_SIZE.statistics // self.n_statistics))

    @property
    def _products(self) -> ModuleType:
        """Module with products of the functions of rows."""
        return quadratic_forms if self.has_quadratic_forms else client_rows

    # ---- E-step

    def features(self, rows: NDArray[Any]) -> FloatArray:
        """f(y) of the rows of one client, as ``client_features``."""
        return self.client_features(rows, np.array([len(rows)]))

    def client_features(self, rows: NDArray[Any], lengths: IntArray) -> FloatArray:
        """f(y) of rows (n_rows, n_features); only 1 and y with quadratic forms.

        Shape (n_functions, n_rows).
        """
        first = 1 + self.n_features
        features = np.empty((first if self.has_quadratic_forms else self.n_functions, len(rows)))
        features[0] = 1.0
        self.units.standardize(rows, lengths, out=features[1:first])
        if len(features) > first:
            self.structure.squares(features[1:first], out=features[first:])
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
        """s̄_i(θ); in a stream with shared covariances, also the scatter of the rows."""
        estimate = super().all_rows(federation, parameters, clients)
        if self.in_stream and self.structure.is_shared:
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
        total = client_rows.sum_of_rows(posterior)
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

    def averaging_bound(self, sizes: ClientSizes) -> float:
        """Bound by the number of clients, or of rows over q, as few rows make fields erratic."""
        of_rows = _STEP_BOUNDS.rows * sizes.n_samples / self.n_statistics
        return min(_STEP_BOUNDS.clients * sizes.effective_n_clients, of_rows)

    def noise_bound(self, sizes: ClientSizes, batch_size: float, omega_p: float) -> float:
        """Bound by the number of rows read in a round, over q."""
        n_rows = sizes.effective_n_clients * batch_size
        # Noise of means affects such a covariance the more, the further they are from the centre.
        factor = 5 if self.is_total_minus_between else 1
        return _STEP_BOUNDS.noise * n_rows / (self.n_statistics * (1 + factor * omega_p))

    def spider_bound(self, sizes: ClientSizes, batch_size: float, omega_p: float) -> float:
        """Bound by the number of rows read in a round."""
        n_rows = sizes.effective_n_clients * batch_size
        return _STEP_BOUNDS.spider * np.sqrt(n_rows / (1 + omega_p))

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
        """H, followed by the field of the second moment of the rows if covariances are shared.

        With a known covariance, T does not need this moment, and it is not updated.
        """
        if not self.in_stream:
            return field
        if self.is_total_minus_between:
            return field_with_moment(self, parameters, statistics, field, uncompressed, step_size)
        return np.append(field, np.zeros(len(statistics) - self.n_statistics))

    def message_units(self, parameters: Parameters) -> ComponentUnits:
        """Units of the components."""
        weights, means, covariances = parameters[:3]
        factors = parameters.cholesky, parameters.inverse_cholesky
        exceeds_rows = (self.structure.variances(self.standard_reg_covar) > 1).any()
        if self.fixed_cholesky is None and exceeds_rows:
            added = self.regularization(means)
            covariances = limited_by_rows(self.structure, covariances, added, weights)
            factors = self.structure.cholesky_and_inverse(covariances)
        return component_units(
            self.structure,
            weights,
            means,
            *factors,
            self.is_zero,
            # In a stream, the clients' messages remove the noise of the means from the covariance.
            is_total_minus_between=self.is_total_minus_between and not self.in_stream,
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
