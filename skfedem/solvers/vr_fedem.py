"""VR-FedEM: Algorithm 2 of Dieuleveut, Fort, Moulines and Robin (NeurIPS 2021).

FedEM whose clients estimate s̄_i(T(Ŝ)) by SPIDER. With partial participation, a client that is
away computes nothing; back again, it takes the difference against the iterate it last saw. The
pass over all rows happens at its first active round of an outer loop.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ._base import Estimate, all_rows, minibatch_features
from .fedem import send_innovation


class ClientStates(NamedTuple):
    """What clients keep between rounds, one row a client.

    Attributes
    ----------
    controls : ndarray of shape (n_clients, n_statistics)
        Control variates V_i.
    estimates : ndarray of shape (n_clients, n_statistics)
        S_i, the running estimate of s̄_i(T(Ŝ)).
    natural : ndarray of shape (n_clients, n_statistics)
        φ(T(Ŝ)) of the iterate that the client last took part with.
    outer_loop : ndarray of int, shape (n_clients,)
        Outer loop t in which the client last read all its rows; -1 before the first.
    """

    controls: np.ndarray
    estimates: np.ndarray
    natural: np.ndarray
    outer_loop: np.ndarray


def init(problem, controls):
    """States of all clients before the first round, from V_{1,0,i}."""
    n_clients = len(controls)
    return ClientStates(
        controls=controls,
        estimates=np.zeros_like(controls),
        natural=np.zeros_like(controls),
        outer_loop=np.full(n_clients, -1),
    )


def client_half(problem, broadcast, clients, states):
    """Half of a round that happens at the active clients (lines 7-11 of Algorithm 2).

    Parameters
    ----------
    problem : Problem
    broadcast : Broadcast
        Ŝ_{t,k} and φ(T(Ŝ_{t,k})).
    clients : ndarray of int, shape (n,)
        Indices of a group of active clients, increasing.
    states : ClientStates
        Their rows of the client states.

    Returns
    -------
    message : Message
    states : ClientStates
    """
    outer_loop = broadcast.round_index // problem.n_inner
    estimate = spider(problem, broadcast, clients, states, outer_loop)
    message, controls = send_innovation(problem, broadcast, clients, estimate, states.controls)
    return message, ClientStates(
        controls=controls,
        estimates=estimate.statistics,
        natural=np.broadcast_to(broadcast.natural, states.natural.shape),
        outer_loop=np.full(len(controls), outer_loop),
    )


def spider(problem, broadcast, clients, states, outer_loop):
    """S_{t,k+1,i} (lines 4 and 8 of Algorithm 2).

    Over all rows at a client's first active round of an outer loop; afterwards the minibatch
    mean of ``s̄_ij(T(Ŝ)) - s̄_ij(T(last iterate))`` is added, one minibatch for both iterates.
    """
    if problem.batch_size is None:
        return all_rows(problem, broadcast.natural, clients)
    statistics = np.empty_like(states.estimates)
    refresh = states.outer_loop != outer_loop
    n_expectations = 0
    if refresh.any():
        full = all_rows(problem, broadcast.natural, clients[refresh])
        statistics[refresh] = full.statistics
        n_expectations += full.n_expectations
    if not refresh.all():
        update = ~refresh
        features, lengths = minibatch_features(problem, broadcast.round_index, clients[update])
        now = problem.model.expected_statistics(broadcast.natural, features, lengths)
        last = problem.model.expected_statistics(states.natural[update], features, lengths)
        difference = (now - last) / problem.batch_size
        statistics[update] = states.estimates[update] + difference
        n_expectations += 2 * int(lengths.sum())
    return Estimate(statistics, None, n_expectations)
