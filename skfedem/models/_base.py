"""Contract between solvers and models: curved exponential families, as pure functions of arrays.

The complete-data density is ``p(y, z; θ) = ρ(y, z) exp(<s(y, z), φ(θ)> - ψ(θ))``. A model holds
sizes, hyper-parameters and the constants that clients sent once (a centre, a second moment,
margins), but never fitted values.

Solvers never import a concrete model: they only use the methods of ``Model``. ``RowModel`` is the
base class of models in which the statistics of all clients have the same length and are sums over
rows. Such a model defines its E-step for rows and inherits the clients' half.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas

from .._client_vectors import ClientVectors, DenseLayout
from .._federation import ClientSizes, Federation, read
from .._history import FLOAT_BITS
from .._rows import take_rows
from .._typing import FloatArray, IntArray

Parameters = Any
"""θ: a NamedTuple that the model defines. Its field ``natural`` is φ(θ), or values from which the
clients compute it."""


class ClientSums(NamedTuple):
    """Result of the E-step for the rows of some clients, of shape (n_clients, ...).

    ``statistics`` are sums over the rows of E[s(y, Z) given y; θ], and ``log_likelihood`` of
    log p(y; θ), without the terms that ``Model.criterion_value`` adds; in nats.
    """

    statistics: FloatArray
    log_likelihood: FloatArray


class Estimate(NamedTuple):
    """Mean statistics of some clients, and the cost of computing them.

    Attributes
    ----------
    statistics : ndarray
        Client vectors.
    log_likelihood : ndarray of shape (n_clients,) or None
        Mean log-likelihood of each client's rows in nats, if all rows were read.
    n_expectations : int
        Number of conditional expectations that were computed.
    uncompressed : ndarray of shape (n_clients, n_uncompressed) or None
        What the clients also send in a stream, see ``Model.stream_field``.
    """

    statistics: FloatArray
    log_likelihood: FloatArray | None
    n_expectations: int
    uncompressed: FloatArray | None = None


class Step(NamedTuple):
    """Step of the server: Ŝ_{k+1}, and the squared norm of the field.

    ``safeguarded`` says how often the step was halved to stay in the domain of T; one more if a
    part of the statistics was not updated for this reason. ``step_taken`` is γ after halving, 0 if
    no step was short enough, and ``noisy`` whether many steps with as much noise as this one would
    move Ŝ out of the domain of T.
    """

    statistics: Any
    field_sq_norm: float
    safeguarded: int
    step_taken: float
    noisy: bool = False


class Start(NamedTuple):
    """Start of a run.

    Attributes
    ----------
    statistics : ndarray or NamedTuple
        Ŝ_0.
    parameters : NamedTuple
        Parameters of the first broadcast: T(Ŝ_0), unless the caller gave others.
    uplink_bits, downlink_bits : int
        Bits that were sent to compute the start.
    n_passes : int
        Number of E-steps over all rows that were needed.
    memory : NamedTuple or None
        What a server's half of a solver's own keeps, before the first round.
    kept : NamedTuple or None
        States of server and clients of an earlier run that this one continues.
    has_field : bool
        Whether h(Ŝ_0) is defined: not if Ŝ_0 is s̄ at parameters outside the range of T.
    """

    statistics: Any
    parameters: Parameters
    uplink_bits: int = 0
    downlink_bits: int = 0
    n_passes: int = 0
    memory: Any = None
    kept: Any = None
    has_field: bool = True

    def after(self, uplink_bits: int, downlink_bits: int) -> Start:
        """The same start, including the bits that were sent before it."""
        return self._replace(
            uplink_bits=self.uplink_bits + uplink_bits,
            downlink_bits=self.downlink_bits + downlink_bits,
        )


class BaseModel(ABC):
    """What the round loop needs to know of any model.

    Parameters (θ) are a NamedTuple, and so may the server's statistics Ŝ be; solvers do not look
    inside. Control variates are vectors; ``vectors`` describes their layout in memory.
    """

    criterion: str = ""
    """Name of the criterion, see ``Model.criterion_value``; "" if the model has none."""

    is_random: bool = False
    """Whether estimates from all rows, such as those of a sampled E-step, are random. Then no round
    is exact, and automatic steps decrease. ``Model.all_rows`` has to be a pure function even so:
    its random numbers depend on φ(θ) and the rows only. Markov chains, which go on from round to
    round, belong to a solver."""

    def for_clients(self) -> BaseModel:
        """The model as clients get it, without what only the server may know."""
        return self

    @property
    @abstractmethod
    def n_statistics(self) -> int:
        """Length q of the server's vectors, and of the clients' unless ``vectors`` differs."""

    @abstractmethod
    def maximization(self, statistics: Any) -> Parameters:
        """M-step, the map T from statistics to parameters. It does not depend on the data."""

    @property
    def block_rows(self) -> int:
        """Number of rows for which an E-step fits into the processor's cache."""
        return max(64, 2**19 // self.n_statistics)

    def vectors(self, clients: Federation | ClientSizes) -> ClientVectors:
        """Layout of the clients' vectors in memory: one of length q for each client."""
        return DenseLayout(clients.n_clients, self.n_statistics)

    def message_lengths(self, sizes: ClientSizes) -> IntArray:
        """Distinct lengths of the clients' vectors, in increasing order."""
        return np.array([self.n_statistics])

    def reference(self, statistics: Any) -> FloatArray | float:
        """Ŝ, which clients subtract from s̄_i to obtain their field; 0 if s̄_i is a field."""
        return statistics

    def message_units(self, parameters: Parameters) -> Any:
        """Units for compression, in which the noise of rows should be similar in all directions.

        Returns
        -------
        message_units : object or None
            Object with methods ``to_components`` and ``to_standard``, which map client vectors to
            these units and back. None, the default, for the units of the statistics.
        """
        return None

    # ---- bits and records

    def uplink_numbers(self, sizes: ClientSizes) -> int:
        """Number of floats in one vector of each client."""
        return self.n_statistics * sizes.n_clients

    def downlink_numbers(
        self, sizes: ClientSizes, clients: IntArray, parameters: Parameters
    ) -> int:
        """Number of floats in the server's messages of φ(θ) and Ŝ to some clients.

        By default the size of Ŝ for each: φ(T(Ŝ)) follows from it and the model's constants.
        """
        return self.n_statistics * len(clients)

    def downlink_bits(self, sizes: ClientSizes, clients: IntArray, parameters: Parameters) -> int:
        """Number of bits of these messages."""
        return FLOAT_BITS * self.downlink_numbers(sizes, clients, parameters)

    @property
    def n_uncompressed(self) -> int:
        """Number of floats that each client also sends in a round of a stream, and receives."""
        return 0

    def constants(self) -> NDArray[Any]:
        """Array of the numbers that a saved statistic depends on.

        A checkpoint is refused if these numbers, the class of the model, or fixed parameters of the
        estimator differ. By default, these are the numbers among the model's attributes.
        """
        return np.array([value for value in vars(self).values() if isinstance(value, int | float)])

    def trace(self, parameters: Parameters) -> NDArray[Any]:
        """Array to be stored in the history after each round; by default an empty one."""
        return np.empty(0)


class Model(BaseModel):
    """Contract between a model and the solvers of EM.

    Parameters have at least the field ``natural``: φ(θ), or values from which the clients compute
    it. Fields and the clients' statistics are vectors, like control variates.

    Only the abstract methods are required. Without a criterion, nothing is evaluated; without a
    surrogate, runs end with ``max_iter``; without bounds, step sizes have to be given.
    """

    n_quiet: int = 1
    """Number of consecutive changes of the criterion below ``tol`` that end exact rounds."""

    # ---- clients

    @abstractmethod
    def all_rows(
        self, federation: Federation, parameters: Parameters, clients: IntArray
    ) -> Estimate:
        """``Estimate`` of s̄_i(θ), the mean over all rows of each client."""

    @abstractmethod
    def minibatch(self, federation: Federation, clients: IntArray, batches: IntArray) -> Any:
        """Input of the E-step for minibatches, which two E-steps can share.

        ``batches``, of shape (n_clients, batch_size), contains row numbers within each client.
        """

    @abstractmethod
    def minibatch_mean(self, natural: Any, minibatch: Any) -> FloatArray:
        """Mean of s̄_ij(θ) over each client's minibatch, as client vectors.

        ``natural`` comes from a broadcast or from ``kept_natural``.
        """

    def kept_natural(self, federation: Federation, natural: Any, clients: IntArray) -> FloatArray:
        """φ(θ) as client vectors, which clients store between rounds."""
        return np.broadcast_to(natural, (len(clients), self.n_statistics))

    # ---- server

    @abstractmethod
    def server_step(
        self, statistics: Any, field: FloatArray, step_size: float, *, exact: bool
    ) -> Step:
        """Stochastic-approximation ``Step`` from Ŝ along the field H, within the domain of T.

        ``exact`` tells whether the field is free of random errors.
        """

    def field_sq_norm(self, statistics: Any, field: FloatArray) -> float:
        """Squared norm of a field at Ŝ: Euclidean, or infinity in case of overflow."""
        field = field[: self.n_statistics]
        return float(blas.ddot(field, field))  # without NumPy's warnings of an overflow

    def stream_field(
        self,
        parameters: Parameters,
        statistics: Any,
        field: FloatArray,
        uncompressed: FloatArray | float,
        step_size: float,
    ) -> FloatArray:
        """H of a round of a stream, followed by the field of constants which a fit sends only once.

        Constants of the rows that T needs are then appended to Ŝ. In each round, clients send what
        the server needs for their field; ``uncompressed`` is its weighted mean over those that take
        part. By default, there are none.
        """
        return field

    # ---- stopping

    def criterion_value(self, mean_log_likelihood: float, parameters: Parameters) -> float:
        """Value of the criterion, given the weighted mean of the clients' log-likelihoods."""
        return float(mean_log_likelihood)

    def surrogate(self, statistics: Any, parameters: Parameters) -> float | None:
        """EM's surrogate, ``<s, φ(θ)> - ψ(θ)``, which the M-step maximises; None without one."""
        return None

    def change(self, now: float, before: float) -> float:
        """Absolute difference of two values of the criterion or the surrogate, in units of tol.

        It has no sign, since noise may let the surrogate decrease.
        """
        return abs(now - before)

    # ---- automatic steps

    def averaging_bound(self, sizes: ClientSizes) -> float:
        """Bound of γ, to be divided by ω_p, that applies if clients' errors average out.

        These errors come from compression and absent clients. 0 if they do not average out.
        """
        return 0.0

    def noise_bound(self, sizes: ClientSizes, batch_size: float, omega_p: float) -> float | None:
        """Bound of FedEM's γ due to the noise of minibatches and messages together.

        It is divided by ``1 + 5 ω_p`` in Theorem 4, and by ``1 + ω_p`` if ``message_units`` make
        the noise of compression similar to that of rows. None if it is unknown.
        """
        return None

    def spider_bound(self, sizes: ClientSizes, batch_size: float, omega_p: float) -> float | None:
        """Bound of VR-FedEM's γ, to be multiplied by ``√(p / k_in)``, due to the same noise.

        k_in is as in Proposition 25; p and ``1 + ω_p`` are ours. None if it is unknown.
        """
        return None


class RowModel(Model):
    """Model whose statistic is a vector of length ``n_statistics``, a mean over rows."""

    criterion = "log_likelihood"

    @abstractmethod
    def features(self, rows: Any) -> Any:
        """Input of the E-step for some rows, which two E-steps can share.

        Rows may be float32 and have to be converted to float64.
        """

    def client_features(self, rows: Any, lengths: IntArray) -> Any:
        """``features`` of rows that are client after client.

        Their rounding must not depend on the group: matrix products are to be taken by client.
        """
        return self.features(rows)

    @abstractmethod
    def expectation(
        self,
        natural: Any,
        features: Any,
        lengths: IntArray,
        sample_weight: FloatArray | None = None,
    ) -> ClientSums:
        """E-step: ``ClientSums`` over each client's rows.

        ``natural`` is φ(θ), of shape (q,), or (n_clients, q) with one parameter per client.
        ``features`` are those of the clients' rows, client after client, ``lengths`` the numbers of
        rows of the clients, and ``sample_weight`` the weights of the rows, or None for weights 1.
        """

    @abstractmethod
    def statistics_of(self, parameters: Any) -> FloatArray:
        """Inverse of T: the expected statistic under the parameters."""

    def expected_statistics(self, natural: Any, features: Any, lengths: IntArray) -> FloatArray:
        """Statistics of ``expectation``, without the log-likelihood."""
        return self.expectation(natural, features, lengths).statistics

    def reference(self, statistics: FloatArray) -> FloatArray:
        """Ŝ without the constants of a stream: h_i(s) = s̄_i(T(s)) - s."""
        return statistics[: self.n_statistics]

    def all_rows(
        self, federation: Federation, parameters: Parameters, clients: IntArray
    ) -> Estimate:
        """s̄_i(θ): mean over all rows of each client."""
        statistics = np.zeros((len(clients), self.n_statistics))
        log_likelihood = np.zeros(len(clients))
        for group, rows, lengths, weights in read(federation, clients, self.block_rows):
            features = self.client_features(rows, lengths)
            sums = self.expectation(parameters.natural, features, lengths, weights)
            statistics[group] += sums.statistics
            log_likelihood[group] += sums.log_likelihood
        totals = federation.totals_of(clients)
        statistics /= totals[:, None]
        n_rows = int(federation.lengths_of(clients).sum())
        return Estimate(statistics, log_likelihood / totals, n_rows)

    def minibatch(
        self, federation: Federation, clients: IntArray, batches: IntArray
    ) -> tuple[Any, IntArray]:
        """Features of the sampled rows, and the number of rows of each client."""
        drawn = batches + federation.offsets[clients][:, None]
        lengths = np.full(len(batches), batches.shape[1])
        rows = take_rows(federation.rows, drawn.ravel())
        return self.client_features(rows, lengths), lengths

    def minibatch_mean(self, natural: Any, minibatch: tuple[Any, IntArray]) -> FloatArray:
        """Mean of s̄_ij(θ) over each client's minibatch, shape (n_clients, q)."""
        features, lengths = minibatch
        return self.expected_statistics(natural, features, lengths) / lengths[0]
