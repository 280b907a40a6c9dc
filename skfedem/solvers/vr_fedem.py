"""VR-FedEM: Algorithm 2 of Dieuleveut, Fort, Moulines and Robin (NeurIPS 2021).

This is FedEM with SPIDER estimates of s̄_i(T(Ŝ)) at the clients. With partial participation, an
absent client computes nothing; on its return, it computes the difference to the last iterate that
it received. It reads all its rows in its first active round of each outer loop.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .._typing import FloatArray, IntArray
from ..models._base import Estimate
from ._base import Broadcast, Message, Problem, draw_minibatch
from .fedem import send_innovation

PER_CLIENT = ("outer_loop",)
VARIANCE_REDUCED = True


class ClientStates(NamedTuple):
    """What clients keep between rounds.

    Attributes
    ----------
    controls : ndarray, client vectors
        Control variates V_i.
    estimates : ndarray, client vectors
        S_i, the running estimate of s̄_i(T(Ŝ)).
    natural : ndarray, client vectors
        φ(T(Ŝ)) at the iterate of the client's last active round.
    outer_loop : ndarray of int, shape (n_clients,)
        Outer loop t in which the client last read all its rows; -1 before the first.
    """

    controls: FloatArray
    estimates: FloatArray
    natural: FloatArray
    outer_loop: IntArray


def init(problem: Problem, controls: FloatArray) -> ClientStates:
    """States of all clients before the first round, from V_{1,0,i}."""
    n_clients = problem.federation.n_clients
    return ClientStates(
        controls=controls,
        # zeros_like would allocate memory at once, although these arrays may be replaced unused.
        estimates=np.zeros(controls.shape),
        natural=np.zeros(controls.shape),
        outer_loop=np.full(n_clients, -1),
    )


def client_half(
    problem: Problem, broadcast: Broadcast, clients: IntArray, states: ClientStates
) -> tuple[Message, ClientStates]:
    """The active clients' half of a round (lines 7-11 of Algorithm 2).

    Parameters
    ----------
    problem : Problem
    broadcast : Broadcast
        Ŝ_{t,k} and T(Ŝ_{t,k}).
    clients : ndarray of int, shape (n,)
        Indices of a group of active clients, in increasing order.
    states : ClientStates
        States of these clients.

    Returns
    -------
    message : Message
    states : ClientStates
    """
    estimate = spider(problem, broadcast, clients, states)
    message, controls = send_innovation(problem, broadcast, clients, estimate, states.controls)
    return message, ClientStates(
        controls=controls,
        estimates=estimate.statistics,
        natural=problem.model.kept_natural(
            problem.federation, broadcast.parameters.natural, clients
        ),
        outer_loop=np.full(len(clients), broadcast.outer_loop),
    )


def spider(
    problem: Problem, broadcast: Broadcast, clients: IntArray, states: ClientStates
) -> Estimate:
    """S_{t,k+1,i} (lines 3, 8 and 20 of Algorithm 2).

    In a client's first active round of an outer loop, this is the mean over all its rows. In later
    rounds, the mean of ``s̄_ij(T(Ŝ)) - s̄_ij(T(last iterate))`` over a minibatch is added, with the
    same minibatch for both iterates.
    """
    model, federation = problem.model, problem.federation
    if problem.batch_size is None:
        return model.all_rows(federation, broadcast.parameters, clients)
    statistics, n_expectations = states.estimates.copy(), 0
    refresh = states.outer_loop != broadcast.outer_loop
    if refresh.any():
        full = model.all_rows(federation, broadcast.parameters, clients[refresh])
        statistics[problem.vectors.within(clients, refresh)] = full.statistics
        n_expectations += full.n_expectations
    if not refresh.all():
        minibatch = draw_minibatch(problem, broadcast.round_index, clients[~refresh])
        update = problem.vectors.within(clients, ~refresh)
        now = model.minibatch_mean(broadcast.parameters.natural, minibatch)
        last = model.minibatch_mean(states.natural[update], minibatch)
        statistics[update] += now - last
        n_expectations += 2 * problem.batch_size * int((~refresh).sum())
    return Estimate(statistics, None, n_expectations)
