"""What a solver asks of a model: a curved exponential family, as pure functions of arrays.

The complete-data density is ``p(y, z; θ) = ρ(y, z) exp(<s(y, z), φ(θ)> - ψ(θ))``. A model holds
sizes, hyper-parameters and the constants that the server was told once (a centre, a second moment,
margins); it never holds fitted values.

A solver never imports a concrete model: it calls only what is declared here. ``Model`` is all that
a solver knows. ``RowModel`` is the base of models in which the statistics of all clients have the
same length and are sums over rows; such a model defines its E-step for rows and inherits the
clients' half.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas

from .._client_vectors import ClientVectors, Rectangular
from .._federation import Federation, read
from .._rows import take_rows
from .._typing import FloatArray, IntArray


class Parameters(Protocol):
    """θ: a NamedTuple of the model's own."""

    @property
    def natural(self) -> Any:
        """φ(θ), or whatever the clients compute it from."""


class ClientSums(NamedTuple):
    """E-step of some clients' rows.

    Attributes
    ----------
    statistics : ndarray of shape (n_clients, n_statistics)
        Sum over the rows of E[s(y, Z) given y; θ].
    log_likelihood : ndarray of shape (n_clients,)
        Sum over the rows of log p(y; θ), up to what ``Model.criterion_value`` adds; nats.
    """

    statistics: FloatArray
    log_likelihood: FloatArray


class Estimate(NamedTuple):
    """Mean statistics of some clients, and what they cost.

    Attributes
    ----------
    statistics : ndarray
        Client vectors.
    log_likelihood : ndarray of shape (n_clients,) or None
        Mean log-likelihood of each client's rows, where all were read; nats.
    n_expectations : int
        Conditional expectations that were computed.
    """

    statistics: FloatArray
    log_likelihood: FloatArray | None
    n_expectations: int


class Step(NamedTuple):
    """A step of the server.

    Attributes
    ----------
    statistics : ndarray or NamedTuple
        Ŝ_{k+1}.
    field_sq_norm : float
        Squared norm of the field that was followed.
    safeguarded : int
        How often the step was halved to stay in the domain of T; one more where a part of it was
        left out for that.
    step_taken : float
        γ after halving; 0 if no step was short enough.
    noisy : bool
        Whether many steps as random as this one would carry Ŝ out of the domain of T.
    """

    statistics: Any
    field_sq_norm: float
    safeguarded: int
    step_taken: float
    noisy: bool = False


class Start(NamedTuple):
    """Where a run begins.

    Attributes
    ----------
    statistics : ndarray or NamedTuple
        Ŝ_0.
    parameters : NamedTuple
        Those of the first broadcast: T(Ŝ_0) unless the caller gave others.
    uplink_bits, downlink_bits : int
        Bits that were sent to get there.
    n_passes : int
        E-steps over all rows that it took.
    kept : NamedTuple or None
        Server and clients' states of an earlier run that this one goes on from.
    has_field : bool
        Whether h(Ŝ_0) says anything: not where Ŝ_0 is s̄ of parameters that no statistic gives.
    """

    statistics: Any
    parameters: Parameters
    uplink_bits: int = 0
    downlink_bits: int = 0
    n_passes: int = 0
    kept: NamedTuple | None = None
    has_field: bool = True

    def after(self, uplink_bits: int, downlink_bits: int) -> Start:
        """The same start, with what was sent before it."""
        return self._replace(
            uplink_bits=self.uplink_bits + uplink_bits,
            downlink_bits=self.downlink_bits + downlink_bits,
        )


class Model(ABC):
    """Contract between a model and the solvers.

    Parameters (θ) are a NamedTuple of the model's own with at least the field ``natural``: φ(θ), or
    whatever the clients compute it from. What the server calls its statistics Ŝ may be a vector or
    a NamedTuple; solvers only hand it on. Fields and control variates are vectors, and so are the
    clients' statistics; ``vectors`` says how they lie in memory.
    """

    criterion: str
    """Name of what ``criterion_value`` gives."""

    n_quiet: int
    """How many changes of the criterion in a row have to be below ``tol`` on exact rounds."""

    is_random: bool = False
    """Whether ``all_rows`` is a random estimate, as where the E-step is sampled: then no round is
    exact, and automatic steps decrease. It is a pure function all the same, whose random numbers
    follow from φ(θ) and the rows; to draw anew in each round, sample in a solver, whose broadcast
    has the round."""

    # ---- clients

    @property
    @abstractmethod
    def block_rows(self) -> int:
        """Number of rows whose E-step fits a processor's cache."""

    @abstractmethod
    def vectors(self, federation: Federation) -> ClientVectors:
        """How the clients' vectors lie in memory."""

    @abstractmethod
    def reference(self, statistics: Any) -> FloatArray | float:
        """What clients subtract from s̄_i to get their field: Ŝ, or 0 where s̄_i is a field."""

    @abstractmethod
    def all_rows(self, federation: Federation, natural: Any, clients: IntArray) -> Estimate:
        """s̄_i(θ), the mean over all rows of each client, as ``Estimate``."""

    @abstractmethod
    def minibatch(self, federation: Federation, clients: IntArray, batches: IntArray) -> Any:
        """What the E-step reads of minibatches, so that two E-steps can share it.

        ``batches``, shape (n_clients, batch_size), has row numbers within each client.
        """

    @abstractmethod
    def minibatch_mean(self, natural: Any, minibatch: Any) -> FloatArray:
        """Mean of s̄_ij(θ) over each client's minibatch, client vectors.

        ``natural`` is that of a broadcast, or what ``kept_natural`` gave.
        """

    @abstractmethod
    def kept_natural(self, federation: Federation, natural: Any, clients: IntArray) -> FloatArray:
        """φ(θ) as clients keep it between rounds, client vectors."""

    # ---- server

    @abstractmethod
    def maximization(self, statistics: Any) -> Parameters:
        """M-step, the map T: the parameters that a statistic gives. It never sees data."""

    @abstractmethod
    def server_step(
        self, statistics: Any, field: FloatArray, step_size: float, *, exact: bool
    ) -> Step:
        """Stochastic-approximation step from Ŝ along the field H, kept in T's domain: ``Step``.

        ``exact`` says that nothing in the field is random.
        """

    @abstractmethod
    def field_sq_norm(self, statistics: Any, field: FloatArray) -> float:
        """Squared norm of a field at Ŝ."""

    @abstractmethod
    def surrogate(self, statistics: Any, parameters: Parameters) -> float:
        """EM's surrogate, ``<s, φ(θ)> - ψ(θ)``, which the M-step maximises."""

    @abstractmethod
    def criterion_value(self, mean_log_likelihood: float, parameters: Parameters) -> float:
        """Value of the criterion, from the weighted mean of the clients' log-likelihoods."""

    @abstractmethod
    def change(self, now: float, before: float) -> float:
        """Size of the difference of two values of the criterion, or surrogate, in units of tol.

        Without a sign: noise may well make the surrogate fall.
        """

    @abstractmethod
    def averaging_bound(self, federation: Federation) -> float:
        """Bound of the step γ, after division by ω_p, where clients' errors cancel in the mean.

        These errors come from compression and absent clients. 0 if nothing is averaged.
        """

    @abstractmethod
    def minibatch_bounds(
        self, federation: Federation, batch_size: float, omega_p: float
    ) -> tuple[float, float]:
        """Bounds of the step γ from the noise of minibatches, together with that of messages.

        The first bounds FedEM's step. It is divided by ``1 + 5 ω_p`` in Theorem 4, and by
        ``1 + ω_p`` where ``message_units`` make the noise of compression like that of rows. The
        second, after multiplication by ``√(p / k_in)``, bounds VR-FedEM's step, with k_in as in
        Proposition 25; p and ``1 + ω_p`` are ours.
        """

    @abstractmethod
    def downlink_numbers(
        self, federation: Federation, clients: IntArray, parameters: Parameters
    ) -> int:
        """How many numbers the server sends to tell some clients φ(θ) and Ŝ."""

    def stream_field(
        self,
        federation: Federation,
        parameters: Parameters,
        statistics: Any,
        field: FloatArray,
        step_size: float,
    ) -> tuple[FloatArray, Parameters, int]:
        """Field of a stream's round, in which the server is told anew what a fit tells only once.

        What T needs beside Ŝ is then appended to it, and its own field, uncompressed, to H.

        Parameters
        ----------
        federation : Federation
            The batch, of those who answered.
        parameters : NamedTuple
            Those of the broadcast.
        statistics : ndarray or NamedTuple
            Ŝ before the step.
        field : ndarray
            H, along which it goes.
        step_size : float
            γ.

        Returns
        -------
        field : ndarray
            By default H alone.
        parameters : NamedTuple
            The given ones, for ``criterion_value`` on the batch alone.
        n_numbers : int
            How many numbers each client sent for this, and gets back as the result.
        """
        return field, parameters, 0

    def message_units(self, parameters: Parameters) -> Any:
        """Units for compression, in which the noise of rows should be alike in all directions.

        Returns
        -------
        message_units : object or None
            Has the methods ``to_components`` and ``to_standard``, which map client vectors to these
            units and back; by default None, for the units of the statistics.
        """
        return None

    @abstractmethod
    def constants(self) -> FloatArray:
        """Numbers that a saved statistic depends on, as an array.

        A checkpoint is refused where these differ, as where the model's class does or a parameter
        of the estimator that may not change. Sizes and hyper-parameters of a model belong here
        unless the estimator has them.
        """

    @abstractmethod
    def trace(self, parameters: Parameters) -> NDArray[Any]:
        """What the history keeps of the parameters after each round, an array."""


class RowModel(Model):
    """Models whose statistic is one vector of length ``n_statistics``, a mean over rows."""

    criterion = "log_likelihood"
    n_quiet = 1

    @property
    @abstractmethod
    def n_statistics(self) -> int:
        """Length q of the statistic vector."""

    @abstractmethod
    def features(self, rows: Any) -> Any:
        """What the E-step reads of some rows, so that two E-steps can share it.

        Rows may be float32, and have to be converted to float64.
        """

    @abstractmethod
    def expectation(
        self,
        natural: Any,
        features: Any,
        lengths: IntArray,
        sample_weight: FloatArray | None = None,
    ) -> ClientSums:
        """E-step: sums over each client's rows.

        ``natural`` is φ(θ), of shape (q,), or (n_clients, q) with one parameter per client;
        ``features`` are those of the clients' rows, client after client; ``lengths`` says how many
        rows each client has; ``sample_weight`` has the weight of each row, None for 1. Returns
        ``ClientSums``.
        """

    @abstractmethod
    def statistics_of(self, parameters: Any) -> FloatArray:
        """Inverse of T: the statistic that these parameters expect."""

    def expected_statistics(self, natural: Any, features: Any, lengths: IntArray) -> FloatArray:
        """Statistics of ``expectation``, where nobody needs the log-likelihood."""
        return self.expectation(natural, features, lengths).statistics

    def vectors(self, federation: Federation) -> Rectangular:
        """One vector of length q for each client."""
        return Rectangular(federation.n_clients, self.n_statistics)

    def reference(self, statistics: FloatArray) -> FloatArray:
        """Ŝ without what a stream appends: h_i(s) = s̄_i(T(s)) - s."""
        return statistics[: self.n_statistics]

    def all_rows(self, federation: Federation, natural: Any, clients: IntArray) -> Estimate:
        """s̄_i(θ): mean over all rows of each client."""
        statistics = np.zeros((len(clients), self.n_statistics))
        log_likelihood = np.zeros(len(clients))
        for group, rows, lengths, weights in read(federation, clients, self.block_rows):
            sums = self.expectation(natural, self.features(rows), lengths, weights)
            statistics[group] += sums.statistics
            log_likelihood[group] += sums.log_likelihood
        totals = federation.totals_of(clients)
        statistics /= totals[:, None]
        n_rows = int(federation.lengths_of(clients).sum())
        return Estimate(statistics, log_likelihood / totals, n_rows)

    def minibatch(
        self, federation: Federation, clients: IntArray, batches: IntArray
    ) -> tuple[Any, IntArray]:
        """Features of the drawn rows, and the number of rows of each client."""
        drawn = batches + federation.offsets[clients][:, None]
        features = self.features(take_rows(federation.rows, drawn.ravel()))
        return features, np.full(len(batches), batches.shape[1])

    def minibatch_mean(self, natural: Any, minibatch: tuple[Any, IntArray]) -> FloatArray:
        """Mean of s̄_ij(θ) over each client's minibatch, shape (n_clients, q)."""
        features, lengths = minibatch
        return self.expected_statistics(natural, features, lengths) / lengths[0]

    def kept_natural(self, federation: Federation, natural: Any, clients: IntArray) -> FloatArray:
        """φ(θ) once for each client."""
        return np.broadcast_to(natural, (len(clients), self.n_statistics))

    def field_sq_norm(self, statistics: Any, field: FloatArray) -> float:
        """Squared Euclidean norm of H, infinite if no double holds it."""
        field = field[: self.n_statistics]
        return float(blas.ddot(field, field))  # without NumPy's warnings of an overflow

    def change(self, now: float, before: float) -> float:
        """Difference in nats per row."""
        return abs(now - before)

    def downlink_numbers(
        self, federation: Federation, clients: IntArray, parameters: Parameters
    ) -> int:
        """Numbers in Ŝ: φ(T(Ŝ)) follows from it and what clients were told once."""
        return self.n_statistics * len(clients)
