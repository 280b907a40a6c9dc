"""What solvers share: the problem, the states, the messages, and the server's half of a round.

A solver is a module with two functions::

    init(problem, controls) -> client states
    client_half(problem, broadcast, clients, states) -> (Message, client states)

Both work on many clients at once, one row a client. ``client_half`` is pure: it gets the rows of
the states of some clients and returns the new ones, so that a message that never arrives leaves no
trace. Who runs the clients, in which groups and on how many workers, is the round loop's business.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .. import _random
from .._federation import Federation, draw_minibatches, read
from ..compression import Compressor
from ..models._base import Model

# Automatic steps shrink by this factor in a round whose step had to be shortened.
_CAUTION = 0.7


class Problem(NamedTuple):
    """What does not change during a run.

    Attributes
    ----------
    model : Model
    federation : Federation
    compressor : Compressor
    omega : float
        ω of the compressor for messages of this length.
    participation : float
        Probability p that a client takes part in a round.
    control_step : float
        Step α of the control variates.
    batch_size : int or None
        Rows per client and round, b; None for all rows.
    replacement : bool
        Whether a minibatch may hold a row twice.
    n_inner : int
        Rounds between two passes over all rows, k_in; VR-FedEM only.
    seed : int
        Of all random streams.
    """

    model: Model
    federation: Federation
    compressor: Compressor
    omega: float = 0.0
    participation: float = 1.0
    control_step: float = 1.0
    batch_size: int | None = None
    replacement: bool = True
    n_inner: int = 1
    seed: int = 0

    @property
    def exact(self):
        """Whether the server's field is the mean field itself: nothing random in a round."""
        return self.omega == 0 and self.participation == 1 and self.batch_size is None


class Broadcast(NamedTuple):
    """What the server tells the active clients at the start of round ``round_index``.

    ``natural`` is φ(T(Ŝ)), which a client can compute from Ŝ.
    """

    round_index: int
    statistics: np.ndarray
    natural: np.ndarray


class Message(NamedTuple):
    """What a group of clients sends back.

    Attributes
    ----------
    innovation : ndarray of shape (n_clients, n_statistics)
        Quant(Δ_i), as the server reads it.
    n_bytes : int
        Length of the encoded messages.
    n_expectations : int
        Conditional expectations that were computed for it.
    log_likelihood : ndarray of shape (n_clients,) or None
        Mean log-likelihood of each client's rows, where it read them all; nats.
    """

    innovation: np.ndarray
    n_bytes: int
    n_expectations: int
    log_likelihood: np.ndarray | None = None


class Received(NamedTuple):
    """Weighted sums over the active clients' messages, in client order."""

    innovation: np.ndarray
    n_active: int = 0
    n_bytes: int = 0
    n_expectations: int = 0
    log_likelihood: float = 0.0


class ServerState(NamedTuple):
    """All that the server needs for the next round: Ŝ, T(Ŝ), V, and its caution.

    ``caution`` multiplies automatic steps; it shrinks when the safeguard acts.
    """

    round_index: int
    statistics: np.ndarray
    parameters: NamedTuple
    control: np.ndarray
    caution: float = 1.0


class RoundInfo(NamedTuple):
    """What the server saw of a round: H, how often its step was halved, and the step taken."""

    field: np.ndarray
    safeguarded: int
    step_taken: float


class Estimate(NamedTuple):
    """Mean statistics of some clients, and what they cost."""

    statistics: np.ndarray
    log_likelihood: np.ndarray | None
    n_expectations: int


def all_rows(problem, natural, clients):
    """s̄_i(θ): mean over all rows of each client."""
    model, federation = problem.model, problem.federation
    statistics = np.zeros((len(clients), model.n_statistics))
    log_likelihood = np.zeros(len(clients))
    for run, rows, lengths in read(federation, clients, model.block_rows):
        sums = model.expectation(natural, model.features(rows), lengths)
        statistics[run] += sums.statistics
        log_likelihood[run] += sums.log_likelihood
    n_rows = federation.offsets[clients + 1] - federation.offsets[clients]
    statistics /= n_rows[:, None]
    return Estimate(statistics, log_likelihood / n_rows, int(n_rows.sum()))


def minibatch_features(problem, round_index, clients):
    """Features of a minibatch of each client, and the number of rows of each."""
    federation, size = problem.federation, problem.batch_size
    uniforms = _random.client_uniforms(problem.seed, _random.MINIBATCH, round_index, clients, size)
    starts = federation.offsets[clients]
    lengths = federation.offsets[clients + 1] - starts
    batches = draw_minibatches(uniforms, lengths, replacement=problem.replacement)
    batches += starts[:, None]
    features = problem.model.features(np.take(federation.rows, batches.ravel(), axis=0))
    return features, np.full(len(batches), size)


def compress(problem, round_index, clients, innovations):
    """Quant(Δ_i) with each client's own random numbers, and the bytes of each message."""
    if problem.omega == 0:
        return innovations, problem.compressor.n_bytes(innovations)
    uniforms = _random.client_uniforms(
        problem.seed, _random.COMPRESSION, round_index, clients, innovations.shape[1]
    )
    return problem.compressor.send(innovations, uniforms)


def server_half(problem, server, received, step_size):
    """Server's half of a round: H, Ŝ, V (lines 13-16 of Algorithm 1, 13-16 of Algorithm 2).

    Parameters
    ----------
    problem : Problem
    server : ServerState
    received : Received
        Σ over the active clients of w_i Quant(Δ_i).
    step_size : float
        γ.

    Returns
    -------
    server : ServerState
    info : RoundInfo
    """
    model = problem.model
    field = server.control + received.innovation / problem.participation
    field = field + model.known_field(server.statistics, server.parameters)
    if problem.exact:
        # A mixture of statistics that data have: always in the domain of T.
        statistics, safeguarded = server.statistics + step_size * field, 0
    else:
        statistics, safeguarded = model.server_step(server.statistics, field, step_size)
    step_taken = 0.0 if statistics is server.statistics else step_size * 0.5**safeguarded
    server = ServerState(
        round_index=server.round_index + 1,
        statistics=statistics,
        parameters=model.maximization(statistics),
        control=server.control + problem.control_step * received.innovation,
        caution=server.caution * (_CAUTION if safeguarded else 1.0),
    )
    return server, RoundInfo(field, safeguarded, step_taken)
