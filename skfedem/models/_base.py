"""What a solver asks of a model: a curved exponential family, as pure functions of arrays.

The complete-data density is ``p(y, z; θ) = ρ(y, z) exp(<s(y, z), φ(θ)> - ψ(θ))``. A model holds
sizes, hyper-parameters and the constants that the server was told once (a centre, a second moment);
it never holds fitted values. Statistics, fields, controls and messages are vectors of the same
length q, one row a client where there are several.

A solver never imports a concrete model: it calls what is written here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np


class ClientSums(NamedTuple):
    """E-step of some clients' rows.

    Attributes
    ----------
    statistics : ndarray of shape (n_clients, n_statistics)
        Sum over the rows of E[s(y, Z) given y; θ].
    log_likelihood : ndarray of shape (n_clients,)
        Sum over the rows of log p(y; θ), up to what ``Model.log_likelihood`` adds; nats.
    """

    statistics: np.ndarray
    log_likelihood: np.ndarray


class Start(NamedTuple):
    """Where a run begins.

    Attributes
    ----------
    statistics : ndarray of shape (n_statistics,)
        Ŝ_0.
    parameters : NamedTuple
        Those of the first broadcast, T(Ŝ_0) unless the caller gave others.
    uplink_bits, downlink_bits : int
        What was sent to get there.
    n_passes : int
        E-steps over all rows that it took.
    """

    statistics: np.ndarray
    parameters: NamedTuple
    uplink_bits: int = 0
    downlink_bits: int = 0
    n_passes: int = 0


class Model(ABC):
    """Contract between a model and the solvers.

    Parameters (θ) are a NamedTuple of the model's own with at least the field ``natural``, which is
    φ(θ) as a vector of length ``n_statistics``.
    """

    n_statistics: int
    """Length q of the statistic vector."""

    block_rows: int
    """Number of rows whose E-step fits a processor's cache."""

    @abstractmethod
    def features(self, rows):
        """Return what the E-step reads of some rows, so that two E-steps can share it."""

    @abstractmethod
    def expectation(self, natural, features, lengths):
        """E-step: sums over each client's rows.

        ``natural`` is φ(θ), of shape (q,), or (n_clients, q) with one parameter a client;
        ``features`` are those of the clients' rows, client after client; ``lengths`` says how many
        rows each client has. Returns ``ClientSums``.
        """

    def expected_statistics(self, natural, features, lengths):
        """Return the statistics of ``expectation``, where nobody needs the log-likelihood."""
        return self.expectation(natural, features, lengths).statistics

    @abstractmethod
    def maximization(self, statistics):
        """M-step, the map T: the parameters that a statistic gives. It never sees data."""

    @abstractmethod
    def known_field(self, server_statistics, parameters):
        """Part of the mean field that the server knows by itself, shape (q,) or 0."""

    @abstractmethod
    def server_step(self, statistics, field, step_size):
        """Stochastic-approximation step ``statistics + step_size * field``, kept in T's domain.

        Returns the new statistics and how often the step was halved to stay in the domain.
        """

    @abstractmethod
    def minorizer(self, statistics, parameters):
        """``<s, φ(θ)> - ψ(θ)``, what the M-step maximises; nats per row."""

    @abstractmethod
    def log_likelihood(self, mean_log_likelihood, parameters):
        """Mean log-likelihood per row, in nats, from the weighted mean of the clients' sums."""

    @abstractmethod
    def trace(self, parameters):
        """Return what the history keeps of the parameters after each round, an array."""
