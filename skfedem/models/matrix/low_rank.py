"""FedMissEM: low-rank natural parameters of a matrix with cells observed by clients.

Appendix F.2 of Dieuleveut, Fort, Moulines and Robin (NeurIPS 2021), without large dense matrices.
Client ``i`` sends its statistic minus the part known to the server: the residual ``y - ψ'(θ)`` in
its observed cells and 0 elsewhere. The server's M-step is a proximal step

    Θ⁺ = SVT_{γηλ}(Θ + γη W),

where W is the sum of the residuals over the clients, λ the nuclear-norm penalty, η the natural
step, and SVT soft-thresholds the singular values. After each step, the main effects are solved for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..._client_vectors import RaggedLayout, row_indices
from ..._federation import ClientSizes, Federation
from ..._serialization import serializable
from ..._typing import FloatArray, IntArray
from .._base import Estimate, Model, Step
from ..client_rows import segment_sums
from .main_effects import ridge
from .minibatch_bounds import STEP_BOUNDS, sampling_fraction
from .pooled import Pooled
from .proximal import (
    MAX_HALVINGS,
    Iterate,
    extrapolate,
    largest_curvature,
    objective,
    proximal_step,
    with_optimal_effects,
)
from .theta import Cells, Theta, at_clients, low_rank_at

# Growth factor of an adaptive natural step per round, until the curvature limits it.
_GROWTH = 1.3
# An objective below this share of its value at θ = 0 counts as 0: all cells are fitted.
_NEGLIGIBLE = 1e-6
# Without constants, an objective is accurate down to this share of its value with constants.
_ROUNDING = 1e-9


@serializable
class NaturalParameters(NamedTuple):
    """θ, which is its own natural parameter."""

    natural: Theta


class ServerIterate(NamedTuple):
    """State of the server; its statistics Ŝ are θ itself.

    Attributes
    ----------
    iterate : Iterate
    previous : Iterate
        Iterate of the previous round, for the momentum.
    momentum : float
        FISTA's t; 1 means no momentum.
    natural_step : float
        η.
    sums : ndarray of shape (n_observed,)
        Sums of all observations of the observed cells, according to the last field.
    block : ndarray or None
        Approximate right singular vectors; of shape (0, m) if m of them are still to be found.
    """

    iterate: Iterate
    previous: Iterate
    momentum: float
    natural_step: float
    sums: FloatArray
    block: FloatArray | None


class Minibatch(NamedTuple):
    """Drawn cells of some clients, and their indices in the clients' vectors."""

    cells: Cells
    indices: IntArray
    n_numbers: int
    batch_size: int
    clients: IntArray


@serializable
@dataclass(frozen=True)
class LowRankModel(Model):
    """Cells of an exponential family, with natural parameters of low rank plus main effects.

    ``F(θ) = Σ -log p(y; θ) + penalty * ||low-rank part||_* + ridge(effects)``; the sum is over all
    observations of all clients (weighted, unless ``client_weights="n_samples"``).

    Parameters
    ----------
    pooled : Pooled
    scale : float
        Factor from a weighted mean over clients' cells to the sum over all observations: the number
        of cells, if clients are weighted by their observations.
    log_base_measure : float
        Weighted sum of ``log ρ(y)`` over all observations; nats.
    adaptive : bool
        Whether η follows the curvature, with momentum in exact rounds, and singular vectors are
        updated from round to round. Otherwise, η is ``1 / max(N ψ'')``, steps have no momentum, and
        singular value decompositions are computed to convergence.
    is_dense : bool
        Whether a client computes θ in all cells for a message on all of its own. Products of
        matrices round by their shapes, so that this must not depend on who else is in the group.
    positions : ndarray of int, shape (n_samples,)
        Index of each cell of each client, client after client, among the distinct observed cells;
        empty at the clients, like ``numbers``.
    numbers : ndarray of shape (n_samples,)
        Number of observations of each of these cells.
    """

    pooled: Pooled
    scale: float
    log_base_measure: float
    adaptive: bool
    is_dense: bool
    positions: IntArray
    numbers: FloatArray

    block_rows = 2**17
    criterion = "objective"
    n_quiet = 5

    @property
    def n_statistics(self) -> int:
        """Number of distinct observed cells (of each client, if these have effects).

        This is the length of the server's vectors.
        """
        return len(self.pooled.support.counts)

    # ---- clients

    def for_clients(self) -> LowRankModel:
        """The model without what other clients sent."""
        none = np.empty(0, dtype=np.intp)
        pooled = self.pooled.without_cells()
        cells: dict[str, Any] = {"positions": none, "numbers": np.empty(0)}
        return replace(self, pooled=pooled, scale=1.0, log_base_measure=0.0, **cells)

    def message_lengths(self, sizes: ClientSizes) -> IntArray:
        """Numbers of observed cells of the clients."""
        return np.unique(sizes.lengths)

    def vectors(self, clients: Federation | ClientSizes) -> RaggedLayout:
        """One number for each cell that a client observed."""
        positions = self.positions if len(self.positions) else None  # at clients
        return RaggedLayout(clients.offsets, positions, self.n_statistics)

    def reference(self, statistics: ServerIterate) -> float:
        """0, because residuals are fields already."""
        return 0.0

    def all_rows(
        self, federation: Federation, parameters: NaturalParameters, clients: IntArray
    ) -> Estimate:
        """Residuals ``counts * (y - ψ'(θ))`` in all cells of a client, divided by their number."""
        lengths = federation.lengths_of(clients)
        cells = self._cells(federation, clients)
        theta = at_clients(parameters.natural, cells, clients, lengths, dense=self.is_dense)
        log_likelihoods = cells.counts * (
            cells.values * theta - self.pooled.family.log_partition(theta)
        )
        sums = segment_sums(log_likelihoods, lengths)
        residuals = self._residuals(cells, theta) / np.repeat(lengths, lengths)
        return Estimate(residuals, sums / lengths, len(theta))

    def minibatch(self, federation: Federation, clients: IntArray, batches: IntArray) -> Minibatch:
        """Draw cells."""
        lengths = federation.lengths_of(clients)
        drawn = batches + federation.offsets[clients][:, None]
        indices = batches + (np.cumsum(lengths) - lengths)[:, None]
        cells = self.pooled.working(federation.rows.take(drawn.ravel()))
        return Minibatch(cells, indices.ravel(), int(lengths.sum()), batches.shape[1], clients)

    def minibatch_mean(self, natural: Theta | FloatArray, minibatch: Minibatch) -> FloatArray:
        """Residuals in the drawn cells, divided by their number; 0 in other cells of the client."""
        cells, indices, n_numbers, batch_size, clients = minibatch
        if isinstance(natural, Theta):  # of a broadcast
            theta = at_clients(natural, cells, clients, batch_size, dense=False)
        else:  # from kept_natural
            theta = natural[indices]
        sums = np.bincount(indices, self._residuals(cells, theta), minlength=n_numbers)
        return sums / batch_size

    def kept_natural(self, federation: Federation, natural: Theta, clients: IntArray) -> FloatArray:
        """θ in the cells that the clients observed."""
        cells, lengths = self._cells(federation, clients), federation.lengths_of(clients)
        return at_clients(natural, cells, clients, lengths, dense=self.is_dense)

    def _cells(self, federation: Federation, clients: IntArray) -> Cells:
        cells: Cells = federation.rows
        return self.pooled.working(cells.take(row_indices(federation.offsets, clients)))

    def _residuals(self, cells: Cells, theta: FloatArray) -> FloatArray:
        return cells.counts * (cells.values - self.pooled.family.mean(theta))

    def averaging_bound(self, sizes: ClientSizes) -> float:
        """0, because few clients observe the same cell, so that errors do not average out."""
        return 0.0

    def noise_bound(self, sizes: ClientSizes, batch_size: float, omega_p: float) -> float:
        """Bound by the share of cells that a client reads, as errors do not average out."""
        return STEP_BOUNDS.noise * sampling_fraction(sizes, batch_size) / (1 + 5 * omega_p)

    def spider_bound(self, sizes: ClientSizes, batch_size: float, omega_p: float) -> float:
        """Bound by the same share."""
        return STEP_BOUNDS.spider * np.sqrt(sampling_fraction(sizes, batch_size) / (1 + omega_p))

    def uplink_numbers(self, sizes: ClientSizes) -> int:
        """Number of observed cells of all clients."""
        return sizes.n_samples

    def downlink_numbers(
        self, sizes: ClientSizes, clients: IntArray, parameters: NaturalParameters
    ) -> int:
        """Number of values of θ in the clients' cells, or of all factors and effects if fewer."""
        return int(np.minimum(sizes.lengths[clients], parameters.natural.n_told).sum())

    def constants(self) -> NDArray[np.int64]:
        """Shape of the matrix, and the covariates and groups, which no client holds."""
        shape = np.array(self.pooled.support.shape, dtype=np.int64)
        if self.pooled.covariates is None:
            return shape
        known = self.pooled.covariates.known
        values = np.concatenate([known.rows.ravel(), known.columns.ravel()])
        sizes = [*known.sizes, known.n_groups]
        return np.concatenate([shape, sizes, known.groups, values.view(np.int64)])

    # ---- server

    def maximization(self, statistics: ServerIterate) -> NaturalParameters:
        """θ, as the server's step already includes the M-step."""
        effects, low_rank = statistics.iterate.effects, statistics.iterate.low_rank
        return NaturalParameters(Theta(effects, low_rank, self.pooled.covariate_terms(effects)))

    def server_step(
        self, statistics: ServerIterate, field: FloatArray, step_size: float, *, exact: bool
    ) -> Step:
        """Proximal step along W, with FISTA's momentum if rounds are exact.

        With momentum, a step starts from ``Θ + β (Θ - Θ_before)``, from the second step on, one
        earlier than in FISTA (Beck and Teboulle 2009). If it would increase the objective, it is
        repeated without momentum, which then restarts.
        """
        current, step = statistics.iterate, None
        if self._would_overflow(field):
            return _no_step(statistics)
        sums = self._sums(current, field)
        if not self.adaptive:
            statistics = statistics._replace(natural_step=self._safe_step(current), block=None)
        elif exact and statistics.momentum > 1:
            step = self._momentum_step(statistics, sums, step_size)
        step = step or self._step_from(current, statistics, sums, step_size)
        return step or _no_step(statistics._replace(natural_step=self._safe_step(current)))

    def _would_overflow(self, field: FloatArray) -> bool:
        """Whether singular values of the field may overflow, or are NaN."""
        with np.errstate(over="ignore"):
            return not np.isfinite(len(field) * (self.scale * np.abs(field).max()) ** 2)

    def _momentum_step(
        self, statistics: ServerIterate, sums: FloatArray, step_size: float
    ) -> Step | None:
        """Step from ``Θ + β (Θ - Θ_before)``; None if it fails or increases the objective."""
        pooled, current = self.pooled, statistics.iterate
        beta = (statistics.momentum - 1) / _next_momentum(statistics.momentum)
        origin = extrapolate(current, statistics.previous, beta)
        step = self._step_from(origin, statistics, sums, step_size, statistics.momentum)
        if step is None:
            return None
        rise = objective(pooled, step.statistics.iterate, sums) - objective(pooled, current, sums)
        return step if rise <= 0 else None

    def _step_from(
        self,
        origin: Iterate,
        statistics: ServerIterate,
        sums: FloatArray,
        step_size: float,
        momentum: float = 1.0,
    ) -> Step | None:
        """Proximal step from an iterate, then the effects; None if it fails."""
        pooled = self.pooled
        proximal = proximal_step(
            pooled, origin, sums, step_size, statistics.natural_step, statistics.block
        )
        if proximal is None:
            return None
        # A step of length 0 provides no information on the curvature.
        growth = _GROWTH if proximal.sq_norm > 0 else 1.0
        after = ServerIterate(
            iterate=with_optimal_effects(
                pooled, proximal.low_rank, proximal.low_rank_values, origin.effects, origin.factor
            ),
            previous=statistics.iterate,
            momentum=_next_momentum(momentum),
            natural_step=growth * proximal.natural_step,
            sums=sums,
            block=proximal.block,
        )
        halvings = 0 if self.adaptive else proximal.halvings
        return Step(after, proximal.sq_norm, halvings, step_size * 0.5**halvings)

    def _safe_step(self, iterate: Iterate) -> float:
        """Natural step allowed by the curvature: everywhere, or at θ if it is unbounded."""
        return 1 / largest_curvature(self.pooled, iterate.theta)

    def field_sq_norm(self, statistics: ServerIterate, field: FloatArray) -> float:
        """Squared norm of ``(Θ⁺ - Θ) / η`` for the step along the field W."""
        current = statistics.iterate
        proximal = proximal_step(
            self.pooled,
            current,
            self._sums(current, field),
            1.0,
            self._safe_step(current),
            statistics.block if self.adaptive else None,
        )
        return np.nan if proximal is None else proximal.sq_norm

    def _sums(self, iterate: Iterate, field: FloatArray) -> FloatArray:
        """Sums of the observations from the residuals at an iterate."""
        expected = self.pooled.support.counts * self.pooled.family.mean(iterate.theta)
        return self.scale * field + expected

    def surrogate(self, statistics: ServerIterate, parameters: NaturalParameters) -> float:
        """Negative objective at θ, with the server's estimate of the observations; nats."""
        effects, low_rank, _ = parameters.natural
        values = low_rank_at(low_rank, self.pooled.support.rows, self.pooled.support.columns)
        theta = values + self.pooled.effects_at_cells(effects)
        iterate = Iterate(low_rank, values, effects, theta, factor=None)
        return self.log_base_measure - objective(self.pooled, iterate, statistics.sums)

    def criterion_value(self, mean_log_likelihood: float, parameters: NaturalParameters) -> float:
        """Objective F, in nats."""
        theta = parameters.natural
        log_likelihood = self.scale * mean_log_likelihood + self.log_base_measure
        penalty = self.pooled.penalty * float(theta.low_rank.singular_values.sum())
        penalty += ridge(self.pooled, theta.effects)
        return penalty - float(log_likelihood)

    def change(self, now: float, before: float) -> float:
        """Relative change of the objective without its constants."""
        size = max(abs(now) - self._constant, self._negligible, _ROUNDING * abs(now))
        return abs(now - before) / max(size, np.finfo(float).tiny)

    @cached_property
    def _constant(self) -> float:
        """Terms of the objective that depend on neither θ nor the observations; nats."""
        return -self.pooled.support.counts.sum() * self.pooled.family.log_normalizer

    @cached_property
    def _negligible(self) -> float:
        """Objective, without these terms, that counts as 0; nats."""
        loss = self.pooled.support.counts.sum() * self.pooled.family.log_partition(0.0)
        return _NEGLIGIBLE * (loss - self.log_base_measure - self._constant)

    def trace(self, parameters: NaturalParameters) -> FloatArray:
        """Singular values, padded with zeros to the maximum rank."""
        singular_values = parameters.natural.low_rank.singular_values
        return np.pad(singular_values, (0, self.pooled.rank - len(singular_values)))


def _no_step(statistics: ServerIterate) -> Step:
    """Step if none was short enough."""
    return Step(statistics, np.nan, MAX_HALVINGS, 0.0)


def _next_momentum(momentum: float) -> float:
    return 0.5 * (1 + np.sqrt(1 + 4 * momentum**2))
