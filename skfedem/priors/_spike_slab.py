"""Spike-and-slab prior: FedSparse."""

from __future__ import annotations

from bisect import bisect_left
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from numbers import Integral
from typing import ClassVar, Literal, Self

import numpy as np
from scipy.special import expit, logit

from .._optimizers import Moments, adamax, no_moments
from .._parameters import check_choice, check_not_negative, check_number, check_positive
from .._typing import BoolArray, FloatArray, IntArray
from ..compression._survivors import size_of_survivors
from ..models._network import Network
from ._base import Array, Local, Prior, Shared, Update, kept_differences, total
from ._gates import (
    Gates,
    Grouping,
    OwnGates,
    Relaxed,
    grouping,
    inverse_softplus,
    open_probabilities,
    relaxed_gates,
    softplus,
)
from ._gaussian import towards

GATES = ("auto", "units", "features", "weights")
# Smallest initial threshold τ, relative to the mean norm of a layer.
_LEAST_THRESHOLD = 1e-3


@dataclass(frozen=True)
class SpikeSlabPrior(Prior):
    """Spike-and-slab prior: FedSparse, which learns to prune groups of parameters.

    p(φ_s | w, θ): each group of parameters is zero with probability 1 - θ, and otherwise Gaussian
    around w (Section 3 of [1]_). With τ = softplus(v) and a temperature T, the probabilities are
    ``θ = σ((||w_g|| - τ_g) / T)`` at the server and π_s likewise at a client, where v_s is trained
    beside w_s: by the hard-concrete relaxation of the gates, with the penalty ``l0_penalty * Σ_g
    |g| R_g`` on their probabilities to be open. At the end of a round, gates are drawn, and only
    the surviving parameters are sent. The server moves v along ``-Σ_s (z_s - θ) σ(v) / T`` by
    AdaMax, and prunes groups with θ <= ``prune_threshold`` for good; these cost no bits.

    Four things differ from the paper, whose penalty is a switch rather than a dial: norms are
    relative to their layer's mean at the end of the warm-up, so that one temperature suits all
    layers, with T = 0.035 instead of 0.001 and larger rates of v; gates are closed during
    ``warmup_rounds``; the cross-entropy between π_s and θ has the weight 0 instead of 1e-4; and
    once ``target_sparsity`` is reached, by the groups with the smallest θ, the penalty is dropped,
    and neither thresholds nor the set of pruned groups change any more. Losses and penalties are
    per row, not sums over rows.

    Parameters
    ----------
    l0_penalty : float >= 0, default=1e-6
        λ₀, in nats per row and parameter.
    target_sparsity : float in (0, 1), default=None
        Least share of the parameters to prune; None to leave it to the penalty.
    warmup_rounds : int >= 0, default=20
        Number of rounds before gates act.
    gates : {"auto", "units", "features", "weights"}, default="auto"
        What is pruned: hidden units, with the coefficients of their inputs and their intercept (and
        with them the coefficients that they feed, which are not sent); input features; or single
        coefficients. "auto" is units, or features if there are no hidden layers.
    gate_temperature : float > 0, default=0.035
        T, relative to the mean norm of a layer.
    prune_threshold : float in [0, 1), default=0.1
        Groups are pruned when θ is at most this.
    precision : float >= 0, default=0.0
        λ of the slab.
    cross_entropy : float >= 0, default=0.0
        Weight κ of the cross-entropy between π_s and θ.
    initial_probability : float in (0, 1), default=0.99
        θ when gates begin to act.
    threshold_rates : tuple of two floats > 0, default=(0.05, 0.1)
        Learning rates of v at the clients and at the server.

    References
    ----------
    .. [1] C. Louizos, M. Reisser, J. Soriaga and M. Welling, "An Expectation-Maximization
       perspective on federated learning", 2021, Section 3 and Appendices G to I.

    Examples
    --------
    >>> from skfedem import FederatedMLPClassifier
    >>> from skfedem.priors import SpikeSlabPrior
    >>> fedsparse = FederatedMLPClassifier(prior=SpikeSlabPrior(target_sparsity=0.5))
    """

    l0_penalty: float = 1e-6
    target_sparsity: float | None = None
    warmup_rounds: int = 20
    gates: Literal["auto", "units", "features", "weights"] = "auto"
    gate_temperature: float = 0.035
    prune_threshold: float = 0.1
    precision: float = 0.0
    cross_entropy: float = 0.0
    initial_probability: float = 0.99
    threshold_rates: tuple[float, float] = (0.05, 0.1)
    grouping: Grouping | None = field(default=None, init=False, repr=False, compare=False)
    gated: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_not_negative(
            l0_penalty=self.l0_penalty, precision=self.precision, cross_entropy=self.cross_entropy
        )
        if self.target_sparsity is not None:
            _check_inside("target_sparsity", self.target_sparsity, hint="Use None for no target.")
        check_number("warmup_rounds", self.warmup_rounds, kind=Integral, low=0)
        check_choice("gates", self.gates, GATES)
        check_positive(
            gate_temperature=self.gate_temperature,
            client_threshold_rate=self.threshold_rates[0],
            server_threshold_rate=self.threshold_rates[1],
        )
        check_number("prune_threshold", self.prune_threshold, low=0, high=1, high_open=True)
        _check_inside("initial_probability", self.initial_probability)

    def for_network(self, network: Network) -> Self:
        """Prior for the groups of parameters of a network."""
        kind, has_units = self.gates, network.has_units
        if kind == "units" and not has_units:
            raise ValueError(
                "Expected a network with hidden layers for gates='units', got one without. Use "
                "gates='features', or 'weights'."
            )
        if kind == "auto":
            kind = "units" if has_units else "features"
        prior = copy(self)
        object.__setattr__(prior, "grouping", grouping(network.groups(kind)))  # as it is frozen
        most = prior._sparsity(np.arange(prior._groups.n_groups))
        if self.target_sparsity is not None and self.target_sparsity > most:
            raise ValueError(
                f"Expected target_sparsity to be at most {most:.3g}, the share of the parameters "
                f"that belong to {kind}, got {self.target_sparsity:g}. Use a smaller one."
            )
        return prior

    @property
    def _groups(self) -> Grouping:
        assert self.grouping is not None  # set by for_network
        return self.grouping

    def initial(self, centres: FloatArray) -> Shared:
        """Θ before the first round."""
        n = self._groups.n_groups
        gates = Gates(0, False, np.zeros(n), np.ones(n), np.ones(n, bool), no_moments((n,)))
        return self._begun(Shared(centres, gates))

    def _begun(self, shared: Shared) -> Shared:
        """Θ with initial thresholds if the warm-up is over."""
        gates, groups = shared.gates, self._groups
        if gates.n_rounds != self.warmup_rounds:
            return shared
        norms = self._norms(shared.weights[0])
        means = np.bincount(groups.layers, norms) / np.maximum(np.bincount(groups.layers), 1)
        scales = 1 / np.where(means > 0, means, 1.0)[groups.layers]
        margin = self.gate_temperature * logit(self.initial_probability)
        thresholds = np.maximum(scales * norms - margin, _LEAST_THRESHOLD)
        gates = gates._replace(scales=scales, thresholds=inverse_softplus(thresholds))
        return shared._replace(gates=gates)

    def _acts(self, shared: Shared) -> bool:
        return shared.gates.n_rounds >= self.warmup_rounds

    def _norms(self, parameters: Array) -> Array:
        """Norm of each group, of shape (..., n_groups)."""
        return np.sqrt(self._groups.add(parameters**2))

    def _logits(self, gates: Gates, parameters: Array, thresholds: Array) -> Array:
        """(||w_g|| - τ_g) / T."""
        scales = gates.scales.astype(parameters.dtype)
        return (scales * self._norms(parameters) - softplus(thresholds)) / self.gate_temperature

    def probabilities(self, shared: Shared) -> FloatArray:
        """θ, 0 for pruned groups.

        Parameters
        ----------
        shared : Shared

        Returns
        -------
        probabilities : ndarray of shape (n_groups,)
        """
        gates = shared.gates
        logits = self._logits(gates, shared.weights[0], gates.thresholds)
        return np.where(gates.alive, expit(logits), 0.0)

    # ---- the client's half

    def start(self, shared: Shared, models: IntArray, sizes: Array) -> Local:
        """w_s = w and v_s = v."""
        local = super().start(shared, models, sizes)
        shape = len(models), self._groups.n_groups
        thresholds = shared.gates.thresholds.astype(local.parameters.dtype)
        zeros = np.zeros(shape, local.parameters.dtype)
        own = OwnGates(np.broadcast_to(thresholds, shape), Moments(0, zeros, zeros))
        return local._replace(gates=own)

    def relaxed(
        self, shared: Shared, local: Local, uniforms: Array | None
    ) -> tuple[Array, Relaxed | None]:
        """w_s ⊙ z with hard-concrete gates z."""
        if not self._acts(shared):
            return local.parameters, None
        assert uniforms is not None  # the prior is gated
        logits = self._logits(shared.gates, local.parameters, local.gates.thresholds)
        values, slopes = relaxed_gates(logits, uniforms.astype(logits.dtype))
        alive = shared.gates.alive
        relaxed = Relaxed(np.where(alive, values, 0), np.where(alive, slopes, 0), logits)
        return local.parameters * self._groups.spread(relaxed.values), relaxed

    def step(
        self,
        shared: Shared,
        local: Local,
        gates: Relaxed | None,
        gradient: Array,
        correction: Array | float,
        learning_rate: float,
    ) -> Local:
        """Step of w_s by SGD, and of v_s by AdaMax, from the gradient at w_s ⊙ z."""
        if gates is None:
            return super().step(shared, local, gates, gradient, correction, learning_rate)
        groups, parameters = self._groups, local.parameters
        by_parameters = gradient * groups.spread(gates.values)
        if not np.isscalar(correction):
            survivors = groups.survivors(shared.gates.alive)
            by_parameters += np.where(survivors, correction, 0)
        moved = parameters - learning_rate * by_parameters
        # Derivatives by the gates, the probabilities to be open, the logits and the thresholds.
        by_gates = groups.add(gradient * parameters)
        probabilities = open_probabilities(gates.logits)
        by_logits = by_gates * gates.slopes
        by_logits += self._penalty(shared, parameters) * probabilities * (1 - probabilities)
        by_logits *= shared.gates.alive
        own = local.gates
        direction = by_logits * expit(own.thresholds) / self.gate_temperature
        change, moments = adamax(own.moments, direction, self.threshold_rates[0])
        own = OwnGates(own.thresholds + change, moments)
        if self.precision:
            pull = self.precision * learning_rate * groups.spread(probabilities)
            moved = towards(shared.weights, moved, pull)
        return local._replace(parameters=moved, gates=own)

    def _penalty(self, shared: Shared, parameters: Array) -> Array:
        """Derivative of the local objective by the probabilities R_g, without the loss."""
        gates, groups = shared.gates, self._groups
        penalty = np.zeros(groups.n_groups)
        if not gates.settled:
            penalty += self.l0_penalty * groups.sizes
        if self.cross_entropy:
            logits = self._logits(
                gates, shared.weights[0], gates.thresholds.astype(parameters.dtype)
            )
            penalty -= self.cross_entropy * logits
        penalties: Array = penalty.astype(parameters.dtype)
        if self.precision:
            drift = groups.add((parameters - shared.weights) ** 2)
            penalties = penalties + self.precision / 2 * drift
        return penalties

    def update(self, shared: Shared, local: Local, uniforms: Array | None) -> Update:
        """Differences of the groups whose gates, drawn with the probabilities π_s, are open."""
        update = super().update(shared, local, uniforms)
        if not self._acts(shared):
            return update
        assert uniforms is not None  # the prior is gated
        alive = shared.gates.alive
        logits = self._logits(shared.gates, local.parameters, local.gates.thresholds)
        probabilities = np.where(alive, expit(logits), 0)
        kept = uniforms < probabilities
        apart = np.abs(probabilities - self.probabilities(shared))[:, alive]
        return update._replace(
            kept=kept,
            survivors=self._groups.survivors(kept),
            disagreement=apart.sum(axis=1) / max(apart.shape[1], 1),
        )

    def own_parameters(self, shared: Shared, local: Local, update: Update) -> Array:
        """w_s of the surviving parameters, and zeros."""
        if update.survivors is None:
            return local.parameters
        return np.where(update.survivors, local.parameters, 0)

    # ---- the server's half

    def closed_form(self, shared: Shared, update: Update, weights: FloatArray) -> FloatArray:
        """Σ z φ / Σ z; w where no client kept a parameter."""
        sums = weights @ kept_differences(update)
        if update.survivors is None:
            return shared.weights + sums / total(weights)
        divisors = weights @ update.survivors
        divisors[update.survivors.all(axis=0)] = total(weights)
        return shared.weights + sums / np.where(divisors > 0, divisors, 1.0)

    def direction(self, shared: Shared, update: Update, weights: FloatArray) -> FloatArray:
        """Mean of z (φ_s - w)."""
        return (weights @ kept_differences(update) / total(weights))[None]

    def after_step(
        self, shared: Shared, update: Update, weights: FloatArray, centres: FloatArray
    ) -> Shared:
        """Θ after a round: a step of v, and pruning."""
        gates = shared.gates
        if update.kept is not None and not gates.settled:
            probabilities = self.probabilities(shared)
            excess = weights @ (update.kept - probabilities) / total(weights)
            direction = -excess * expit(gates.thresholds) / self.gate_temperature
            change, moments = adamax(gates.moments, direction, self.threshold_rates[1])
            gates = gates._replace(thresholds=gates.thresholds + change, moments=moments)
        gates = gates._replace(n_rounds=gates.n_rounds + 1)
        after = Shared(centres, gates)
        return self._pruned(after) if self._acts(shared) else self._begun(after)

    def _pruned(self, shared: Shared) -> Shared:
        """Θ without the groups that have a small probability, up to the target sparsity."""
        gates = shared.gates
        if not gates.settled:
            probabilities = self.probabilities(shared)
            rarest = np.argsort(probabilities)
            n = int(np.count_nonzero(probabilities <= self.prune_threshold))
            if self.target_sparsity is not None:
                goal = self.target_sparsity
                n_enough = bisect_left(range(n + 1), goal, key=lambda k: self._sparsity(rarest[:k]))
                gates = gates._replace(settled=n_enough <= n)
                n = min(n, n_enough)
            gates = gates._replace(alive=self._alive(rarest[:n]))
        survivors = self._groups.survivors(gates.alive)
        return Shared(np.where(survivors, shared.weights, 0.0), gates)

    def _alive(self, pruned: IntArray) -> BoolArray:
        alive = np.ones(self._groups.n_groups, dtype=bool)
        alive[pruned] = False
        return alive

    def _sparsity(self, pruned: IntArray) -> float:
        """Share of the parameters that these groups take away."""
        return 1 - float(self._groups.survivors(self._alive(pruned)).mean())

    # ---- messages

    def sent(self, shared: Shared) -> BoolArray | None:
        """Parameters of the groups that are not pruned."""
        return self._groups.survivors(shared.gates.alive) if self._acts(shared) else None

    def groups(self, shared: Shared) -> BoolArray | None:
        """Groups that are not pruned, after the warm-up."""
        return shared.gates.alive if self._acts(shared) else None

    def survivors(self, kept: BoolArray) -> BoolArray:
        """Parameters that have an effect if only these groups are kept."""
        return self._groups.survivors(kept)

    def downlink_bytes(self, shared: Shared) -> int:
        """Bytes of w and v of the groups that are not pruned, and of which these are."""
        survivors = self.sent(shared)
        if survivors is None:
            return super().downlink_bytes(shared)
        alive = shared.gates.alive
        n_alive = int(np.count_nonzero(alive))
        n_numbers = int(np.count_nonzero(survivors)) + n_alive
        return int(size_of_survivors(len(alive), n_alive, n_numbers))


_check_inside = partial(check_number, low=0, high=1, low_open=True, high_open=True)
