"""FedEM: Algorithm 1 of Dieuleveut, Fort, Moulines and Robin (NeurIPS 2021).

The server's half of a round is ``_base.server_half``.
"""

from __future__ import annotations

from typing import NamedTuple

from .._typing import FloatArray, IntArray
from ..models._base import Estimate
from ._base import Broadcast, Message, Problem, compress, draw_minibatch

PER_CLIENT = ()
VARIANCE_REDUCED = False


class ClientStates(NamedTuple):
    """State of the clients between rounds: the control variates V_i."""

    controls: FloatArray


def init(problem: Problem, controls: FloatArray) -> ClientStates:
    """States of all clients before the first round, from V_{0,i}."""
    return ClientStates(controls)


def client_half(
    problem: Problem, broadcast: Broadcast, clients: IntArray, states: ClientStates
) -> tuple[Message, ClientStates]:
    """The active clients' half of a round (lines 5-9 of Algorithm 1).

    Parameters
    ----------
    problem : Problem
    broadcast : Broadcast
        Ŝ_k and T(Ŝ_k).
    clients : ndarray of int, shape (n,)
        Indices of a group of active clients, in increasing order.
    states : ClientStates
        States of these clients.

    Returns
    -------
    message : Message
    states : ClientStates
    """
    estimate = expected_statistics(problem, broadcast, clients)
    message, controls = send_innovation(problem, broadcast, clients, estimate, states.controls)
    return message, ClientStates(controls)


def expected_statistics(problem: Problem, broadcast: Broadcast, clients: IntArray) -> Estimate:
    """S_{k+1,i}: an unbiased estimate of s̄_i(T(Ŝ_k)), exact with all rows."""
    model = problem.model
    if problem.batch_size is None:
        return model.all_rows(problem.federation, broadcast.parameters, clients)
    minibatch = draw_minibatch(problem, broadcast.round_index, clients)
    statistics = model.minibatch_mean(broadcast.parameters.natural, minibatch)
    return Estimate(statistics, None, problem.batch_size * len(clients))


def send_innovation(
    problem: Problem,
    broadcast: Broadcast,
    clients: IntArray,
    estimate: Estimate,
    controls: FloatArray,
) -> tuple[Message, FloatArray]:
    """Δ_i = S_i - V_i - Ŝ, Quant(Δ_i), and V_i + α Quant(Δ_i) (lines 7-9)."""
    innovation = estimate.statistics - controls
    innovation -= broadcast.reference
    quantized, sent, n_bytes = compress(problem, broadcast, clients, innovation)
    controls = controls + problem.control_step * quantized
    message = Message(
        quantized=quantized,
        sent=sent,
        n_bytes=int(n_bytes.sum()),
        n_expectations=estimate.n_expectations,
        log_likelihood=estimate.log_likelihood,
        uncompressed=estimate.uncompressed,
    )
    return message, controls
