"""A model in one file: a mixture of products of Poisson laws, for tables of counts."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln, logsumexp

from skfedem.models._base import ClientSums, RowModel, Step

# A step is halved at most this often.
MAX_HALVINGS = 20


class Parameters(NamedTuple):
    """Weights (n_components,), rates (n_components, n_features), and φ(θ)."""

    weights: np.ndarray
    rates: np.ndarray
    natural: np.ndarray


@dataclass(frozen=True)
class PoissonMixtureModel(RowModel):
    """Rows of independent counts, with the rates of one of ``n_components`` components.

    A row y adds ``r_g (1, y)`` to the statistic, for each component g, where r_g is the posterior
    probability of g. So the statistic is a matrix of shape (n_components, 1 + n_features): masses,
    and sums of counts. As ``log π_g + Σ_j (y_j log λ_gj - λ_gj)`` is linear in (1, y), φ(θ) has
    its coefficients, and ψ(θ) = 0. Rates are at least ``least_rate``: φ(θ) has their logarithms.
    """

    n_components: int
    n_features: int
    least_rate: float = 1e-10

    # ---- clients

    @property
    def n_statistics(self):
        """Length q of the statistic vector."""
        return self.n_components * (1 + self.n_features)

    def features(self, rows):
        """``(1, y)`` of some rows."""
        return np.column_stack([np.ones(len(rows)), rows])

    def expectation(self, natural, features, lengths, sample_weight=None):
        """E-step: sums over each client's rows."""
        coefficients = natural.reshape(-1, self.n_components, 1 + self.n_features)
        if len(coefficients) == 1:
            log_joint = features @ coefficients[0].T
        else:  # one φ(θ) for each client
            log_joint = np.einsum("igj,ij->ig", np.repeat(coefficients, lengths, axis=0), features)
        log_sum = logsumexp(log_joint, axis=1)
        posterior = np.exp(log_joint - log_sum[:, None])
        log_likelihood = log_sum - gammaln(features[:, 1:] + 1).sum(axis=1)
        if sample_weight is not None:
            posterior *= sample_weight[:, None]
            log_likelihood *= sample_weight
        of_rows = posterior[:, :, None] * features[:, None, :]
        starts = np.cumsum(lengths) - lengths
        return ClientSums(
            statistics=np.add.reduceat(of_rows.reshape(len(features), -1), starts),
            log_likelihood=np.add.reduceat(log_likelihood, starts),
        )

    # ---- server

    def maximization(self, statistics):
        """T: weights are shares of the mass, rates are mean counts."""
        table = statistics.reshape(self.n_components, -1)
        mass = table[:, 0]
        return self.parameters(mass / mass.sum(), table[:, 1:] / mass[:, None])

    def parameters(self, weights, rates):
        """θ, including φ(θ)."""
        rates = np.maximum(rates, self.least_rate)
        natural = np.column_stack([np.log(weights) - rates.sum(axis=1), np.log(rates)])
        return Parameters(weights, rates, natural.ravel())

    def statistics_of(self, parameters):
        """Inverse of T: the expected statistic under the parameters."""
        weights, rates, _ = parameters
        return (weights[:, None] * np.column_stack([np.ones(len(rates)), rates])).ravel()

    def server_step(self, statistics, field, step_size, *, exact):
        """``statistics + step_size * field``, with the step halved until it is in T's domain.

        In the domain, masses are > 0 and sums >= 0. A step γ towards the statistic of any data
        keeps at least a share 1 - γ of each number; if it keeps less than half of that, this is due
        to noise.
        """
        field_sq_norm = self.field_sq_norm(statistics, field)
        for halvings in range(MAX_HALVINGS):
            proposal = statistics + step_size * field
            least = 0.5 * (1 - step_size) * statistics
            masses = proposal.reshape(self.n_components, -1)[:, 0]
            if (masses > 0).all() and (proposal >= least).all() and np.isfinite(proposal).all():
                return Step(proposal, field_sq_norm, halvings, step_size)
            step_size = step_size / 2
        return Step(statistics, field_sq_norm, MAX_HALVINGS, 0.0, noisy=True)

    def surrogate(self, statistics, parameters):
        """``<s, φ(θ)>``, nats per row."""
        return float(statistics @ parameters.natural)

    def trace(self, parameters):
        """Weights of the components."""
        return parameters.weights
