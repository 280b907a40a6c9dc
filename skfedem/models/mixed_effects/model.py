"""Nonlinear mixed effects as a curved exponential family whose rows are subjects.

For subject i and its observations j::

    φ_i = centre + Bᵀ x_i + η_i        η_i ~ N(0, Ω)        ψ_i = h(φ_i)
    y_ij = f(ψ_i, x_ij) + residual error

The statistics are those of ``layout``, of φ minus the centre: far from 0, φ φᵀ would lose digits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..._federation import ClientSizes, Federation
from ..._serialization import serializable
from ..._typing import FloatArray, IntArray
from .._base import ClientSums, RowModel, Step
from ..client_rows import segment_sums
from . import maximization as m_step
from .chains import Chains, chain_statistics, first_chains, n_uniforms, sweep
from .conditional import Population, Structure
from .layout import Layout
from .maximization import Constants, Theta
from .message_units import MessageUnits, message_units
from .quadrature import conditional, mean_statistics
from .residual_errors import ResidualError
from .subjects import Subjects, unpack
from .transforms import Transform

# Doubles in the predictions of a block, about 4 MB.
_CACHE_SIZE = 2**19
# A step γ towards the statistics of any data keeps at least 1 - γ of Ω and of the squares. A step
# that keeps less than half of this is rejected; so is one of any size that keeps less than a
# quarter.
_KEPT_SHARE, _FEWEST_KEPT = 0.5, 0.25
_MAX_HALVINGS = 20
# Steps γ that each change Ω or the squares by a random share δ add up to δ / √(2 γ), which may be
# at most this share of them.
_LARGEST_DEVIATION = 0.6
# Annealed variances keep at least this share in a round, as Monolix has it.
_ANNEALED_SHARE = 0.97
# Share of the broadcast parameters in those of a client, where these are averaged.
_PRIOR_SHARE = 1e-6
# Share of φ² below which variances are lost by rounding.
_ROUNDING = 1e-10
# Shares of n / ω_p, of n b / (q (1 + ω_p)) and of √(n b / (1 + ω_p)). The first two are a fifth of
# those of mixtures. With a fifth of the third, VR-FedEM's steps were too short, never too noisy.
_CLIENTS, _NOISE, _SPIDER = 0.006, 0.02, 0.1


@serializable
class PopulationParameters(NamedTuple):
    """θ: coefficients B (c, p), Ω (p, p), squares (r,), and all of them as a vector (q,)."""

    coefficients: FloatArray
    covariance: FloatArray
    squares: FloatArray
    natural: FloatArray

    @property
    def theta(self) -> Theta:
        """B, Ω and the squares."""
        return Theta(*self[:3])


@serializable
class SentModel(NamedTuple):
    """What the server tells of a model; clients have the functions themselves.

    Attributes are those of ``MixedEffectsModel``; moment and number of observations are those of
    ``Constants``.
    """

    moment: FloatArray
    mean_n_observations: float
    n_observations: int
    n_nodes: int
    n_chains: int


@dataclass(frozen=True, eq=False)
class MixedEffectsModel(RowModel):
    """Population model with E-steps by quadrature, ``expectation``, and by chains, ``simulate``.

    Parameters
    ----------
    structure : callable
        Structural model.
    transforms : dict of Transform
        By the names of the parameters.
    error : ResidualError
    layout : Layout
    sent : Constants
        What clients have sent once.
    center : ndarray of shape (p,)
        Centre of φ, which is not estimated.
    regressors : tuple of str
    n_observations : int
        Number of observations for which rows have places.
    n_nodes : int
        Number of nodes in each dimension.
    n_chains : int
        Number of Markov chains of each subject.
    criterion : str
        "" where there are too many parameters for quadrature.
    """

    structure: Structure
    transforms: Mapping[str, Transform]
    error: ResidualError
    layout: Layout
    sent: Constants
    center: FloatArray
    regressors: tuple[str, ...]
    n_observations: int
    n_nodes: int = 5
    n_chains: int = 1
    criterion: str = "log_likelihood"

    def for_clients(self) -> Any:
        """What ``received`` needs beside the design."""
        return SentModel(*self.sent, self.n_observations, self.n_nodes, self.n_chains)

    def received(self, sent: SentModel) -> MixedEffectsModel:
        """Model of the same design, as a server has told of it."""
        return replace(
            self,
            sent=Constants(sent.moment, sent.mean_n_observations),
            n_observations=sent.n_observations,
            n_nodes=sent.n_nodes,
            n_chains=sent.n_chains,
        )

    @property
    def n_statistics(self) -> int:
        """Length q of the statistic vector."""
        return self.layout.size

    @property
    def block_rows(self) -> int:
        """Number of subjects for which the predictions at all nodes fit into the cache."""
        n_nodes = self.n_nodes**self.layout.n_parameters if self.criterion else 1
        n_predictions = self.n_observations * max(n_nodes, self.n_chains)
        return max(1, _CACHE_SIZE // n_predictions)

    # ---- E-step

    def features(self, rows: NDArray[Any]) -> Subjects:
        """Subjects of packed rows."""
        return unpack(rows, self.n_observations, self.regressors)

    def expectation(
        self,
        natural: FloatArray,
        features: Subjects,
        lengths: IntArray,
        sample_weight: FloatArray | None = None,
    ) -> ClientSums:
        """Sums over each client's subjects of the conditional statistics and of log p(y; θ)."""
        population = self.population(natural, features, lengths)
        distribution = conditional(population, features, self.n_nodes)
        centred = population.means - self.center[:, None]
        parts = mean_statistics(population, features, distribution, centred)
        statistics, log_likelihood = self.layout.join(*parts), distribution.log_likelihood
        if sample_weight is not None:
            statistics = statistics * sample_weight[:, None]
            log_likelihood = log_likelihood * sample_weight
        starts = np.cumsum(lengths) - lengths
        return ClientSums(
            statistics=np.add.reduceat(statistics, starts),
            log_likelihood=segment_sums(log_likelihood, lengths),
        )

    def population(
        self, natural: FloatArray, subjects: Subjects, lengths: IntArray | None = None
    ) -> Population:
        """Population with the parameters of each subject's client.

        ``natural`` has shape (q,), or (n_clients, q) with the number of subjects of each client.
        """
        coefficients, covariance, squares = self.layout.split(np.atleast_2d(natural))
        roots = np.linalg.cholesky(covariance)
        covariates = subjects.covariates
        if len(coefficients) == 1:
            coefficients = coefficients[0, :, :, None]
        else:
            assert lengths is not None  # as described
            owners = np.repeat(np.arange(len(lengths)), lengths)
            roots, squares = roots[owners], squares[owners]
            coefficients = coefficients[owners].transpose(1, 2, 0)
        # One covariate after the other: a subject's means do not depend on its company.
        means = self.center[:, None] + np.zeros(subjects.n_subjects)
        for own, values in zip(coefficients, covariates, strict=True):
            means += own * values
        return Population(
            structure=self.structure,
            transforms=self.transforms,
            error=self.error,
            means=means,
            root=np.ascontiguousarray(roots.transpose(1, 2, 0)),
            squares=np.ascontiguousarray(squares.T),
        )

    # ---- E-step by simulation

    @property
    def n_uniforms(self) -> int:
        """Number of uniform numbers that ``simulate`` takes for each subject."""
        return self.n_chains * n_uniforms(self.layout.n_parameters)

    def first_chains(self, n_rows: int) -> Chains:
        """Chains of so many subjects before the first round."""
        return first_chains(self.center, n_rows, self.n_chains)

    def simulate(
        self,
        natural: FloatArray,
        features: Subjects,
        lengths: IntArray,
        chains: Any,
        uniforms: FloatArray,
        sweep_index: int,
    ) -> tuple[FloatArray, Chains]:
        """Statistics (N, q) of the subjects, means over their chains after a sweep, and these.

        ``natural`` and ``lengths`` are as in ``expectation``; ``chains`` has the fields of
        ``Chains``, and ``uniforms`` shape (N, ``n_uniforms``).
        """
        # In single precision, so that the order of sums over clients does not reach the chains.
        population = self.population(natural, features, lengths).rounded()
        of_chains = uniforms.reshape(len(uniforms), self.n_chains, -1).transpose(2, 1, 0)
        numbers = np.ascontiguousarray(of_chains)
        chains = sweep(population, features, chains, numbers, sweep_index)
        centred = population.means - self.center[:, None]
        return self.layout.join(*chain_statistics(population, features, chains, centred)), chains

    def annealed_step(
        self,
        statistics: FloatArray,
        field: FloatArray,
        step_size: float,
        before: PopulationParameters,
    ) -> Step:
        """``Step`` that keeps 0.97 of variances and squares: chains can leave a poor start."""
        field_sq_norm = self.field_sq_norm(statistics, field)
        for halvings in range(_MAX_HALVINGS):
            theta = m_step.maximization(self.layout, self.sent, statistics + step_size * field)
            annealed = m_step.annealed(theta, before.theta, _ANNEALED_SHARE)
            if m_step.is_positive(annealed.covariance) and np.isfinite(annealed.squares).all():
                raised = m_step.statistics_of(self.layout, self.sent, annealed)
                return Step(raised, field_sq_norm, halvings, step_size)
            step_size = step_size / 2
        return Step(statistics, field_sq_norm, _MAX_HALVINGS, 0.0)

    def annealed(self, natural: FloatArray, before: FloatArray) -> FloatArray:
        """Vectors (n, q) of θ with at least 0.97 of the variances and squares of others."""
        pairs = zip(natural, before, strict=True)
        each = [(Theta(*self.layout.split(a)), Theta(*self.layout.split(b))) for a, b in pairs]
        return np.stack(
            [self.layout.join(*m_step.annealed(a, b, _ANNEALED_SHARE)) for a, b in each]
        )

    # ---- M-step

    def local_maximization(
        self,
        statistics: FloatArray,
        federation: Federation,
        clients: IntArray,
        theta: PopulationParameters,
    ) -> FloatArray:
        """T_i(S_i), vectors (n, q) of θ, with what the clients themselves would send once.

        A millionth of the statistics, and of what was sent, is that under θ: few subjects do not
        determine all parameters.
        """
        expected, found, share = self.statistics_of(theta), [], _PRIOR_SHARE
        for client, own in zip(clients, statistics, strict=True):
            first, last = federation.offsets[client : client + 2]
            subjects = self.features(federation.rows[first:last])
            x, n_observations = subjects.covariates, float(subjects.n_observations.mean())
            sent = Constants(
                (1 - share) * x @ x.T / subjects.n_subjects + share * self.sent.moment,
                (1 - share) * n_observations + share * self.sent.n_observations,
            )
            mixed = (1 - share) * own + share * expected
            theta_i = m_step.maximization(self.layout, sent, mixed)
            squares_of_phi = np.diagonal(self.layout.split(mixed)[1])
            covariance = theta_i.covariance + _ROUNDING * np.diag(squares_of_phi)
            found.append(theta_i._replace(covariance=covariance))
        return np.stack([self.layout.join(*own) for own in found])

    def parameters_of(self, natural: FloatArray) -> PopulationParameters:
        """Parameters θ from their vector."""
        return self.parameters(Theta(*self.layout.split(natural)))

    def parameters(self, theta: Theta) -> PopulationParameters:
        """Parameters θ with their vector."""
        return PopulationParameters(*theta, self.layout.join(*theta))

    def maximization(self, statistics: FloatArray) -> PopulationParameters:
        """T(s), see ``maximization``."""
        return self.parameters(m_step.maximization(self.layout, self.sent, statistics))

    def statistics_of(self, parameters: PopulationParameters) -> FloatArray:
        """Inverse of T: the expected statistic under the parameters."""
        return m_step.statistics_of(self.layout, self.sent, parameters.theta)

    # ---- server

    def server_step(
        self, statistics: FloatArray, field: FloatArray, step_size: float, *, exact: bool
    ) -> Step:
        """``statistics + step_size * field``, halved until it stays in the domain of T."""
        field_sq_norm, noisy = self.field_sq_norm(statistics, field), False
        if exact:  # an average of statistics of data, and thus in the domain of T
            return Step(statistics + step_size * field, field_sq_norm, 0, step_size)
        before = m_step.maximization(self.layout, self.sent, statistics)
        share = max(_KEPT_SHARE * (1 - step_size), _FEWEST_KEPT)
        calm_share = 1 - step_size - _LARGEST_DEVIATION * np.sqrt(2 * step_size)
        if calm_share > share:
            noisy = not self._keeps(statistics + step_size * field, before, calm_share)
        for halvings in range(_MAX_HALVINGS):
            proposal = statistics + step_size * field
            if self._keeps(proposal, before, share):
                return Step(proposal, field_sq_norm, halvings, step_size, noisy)
            step_size = step_size / 2
        return Step(statistics, field_sq_norm, _MAX_HALVINGS, 0.0, noisy=True)

    def _keeps(self, proposal: FloatArray, before: Theta, share: float) -> bool:
        least = share * before.covariance, share * before.squares
        return m_step.keeps(self.layout, self.sent, proposal, least)

    def surrogate(self, statistics: FloatArray, parameters: PopulationParameters) -> float:
        """``<s, φ(θ)> - ψ(θ)``; nats per subject."""
        return m_step.surrogate(self.layout, self.sent, statistics, parameters.theta)

    def averaging_bound(self, sizes: ClientSizes) -> float:
        """Bound by the number of clients."""
        return _CLIENTS * sizes.effective_n_clients

    def noise_bound(self, sizes: ClientSizes, batch_size: float, omega_p: float) -> float:
        """Bound by the number of subjects read in a round, over q."""
        n_subjects = sizes.effective_n_clients * batch_size
        return _NOISE * n_subjects / (self.n_statistics * (1 + omega_p))

    def spider_bound(self, sizes: ClientSizes, batch_size: float, omega_p: float) -> float:
        """Bound by the number of subjects read in a round."""
        n_subjects = sizes.effective_n_clients * batch_size
        return _SPIDER * np.sqrt(n_subjects / (1 + omega_p))

    def message_units(self, parameters: PopulationParameters) -> MessageUnits:
        """Units in which subjects are similarly noisy."""
        return message_units(self.layout, self.sent, parameters.theta)

    def constants(self) -> FloatArray:
        """Sizes, the centre, and what clients have sent once, to six digits."""
        sent = np.append(self.sent.moment, self.sent.n_observations)
        sizes = [self.n_observations, self.n_nodes, self.n_chains]
        return np.concatenate([sizes, np.arcsinh(np.append(self.center, sent)).round(6)]) + 0.0

    def trace(self, parameters: PopulationParameters) -> FloatArray:
        """θ as a vector."""
        return parameters.natural
