"""VR-FedEM: Algorithm 2 of Dieuleveut, Fort, Moulines and Robin (NeurIPS 2021).

This is FedEM with SPIDER estimates of s̄_i(T(Ŝ)) at the clients. With partial participation, an
absent client computes nothing; on its return, it computes the difference to the last iterate that
it received. It reads all its rows in its first active round of each outer loop.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .._federation import Federation
from .._typing import FloatArray, IntArray
from ..models._base import Estimate
from .base import Broadcast, ClientGroup, Solver, Task, draw_minibatch


class SpiderStates(NamedTuple):
    """What clients keep between rounds.

    Attributes
    ----------
    estimates : ndarray, client vectors
        S_i, the running estimate of s̄_i(T(Ŝ)).
    natural : ndarray, client vectors
        φ(T(Ŝ)) at the iterate of the client's last active round.
    outer_loop : ndarray of int, shape (n_clients,)
        Outer loop t in which the client last read all its rows; -1 before the first.
    """

    estimates: FloatArray
    natural: FloatArray
    outer_loop: IntArray


def init(task: Task, federation: Federation) -> SpiderStates:
    """States of all clients before the first round."""
    vectors = task.model.vectors(federation)
    return SpiderStates(vectors.zeros(), vectors.zeros(), np.full(federation.n_clients, -1))


def estimate(task: Task, broadcast: Broadcast, group: ClientGroup) -> tuple[Estimate, SpiderStates]:
    """S_{t,k+1,i}, and what the clients keep of it (lines 3, 8 and 20 of Algorithm 2)."""
    found = spider(task, broadcast, group)
    natural = broadcast.parameters.natural
    kept = task.model.kept_natural(group.federation, natural, group.clients)
    outer_loop = np.full(len(group.clients), broadcast.outer_loop)
    return found, SpiderStates(found.statistics, kept, outer_loop)


def spider(task: Task, broadcast: Broadcast, group: ClientGroup) -> Estimate:
    """SPIDER's estimate.

    In a client's first active round of an outer loop, this is the mean over all its rows. In later
    rounds, the mean of ``s̄_ij(T(Ŝ)) - s̄_ij(T(last iterate))`` over a minibatch is added, with the
    same minibatch for both iterates.
    """
    model, federation, clients, states = task.model, group.federation, group.clients, group.states
    parameters = broadcast.parameters
    if task.batch_size is None:
        return model.all_rows(federation, parameters, clients)
    vectors, statistics = model.vectors(federation), states.estimates.copy()
    refresh, n_expectations = states.outer_loop != broadcast.outer_loop, 0
    if refresh.any():
        full = model.all_rows(federation, parameters, clients[refresh])
        statistics[vectors.submask(clients, refresh)] = full.statistics
        n_expectations += full.n_expectations
    if not refresh.all():
        others = group._replace(clients=clients[~refresh], ids=group.ids[~refresh])
        minibatch = draw_minibatch(task, broadcast.round_index, others)
        update = vectors.submask(clients, ~refresh)
        now = model.minibatch_mean(parameters.natural, minibatch)
        last = model.minibatch_mean(states.natural[update], minibatch)
        statistics[update] += now - last
        n_expectations += 2 * task.batch_size * len(others.clients)
    return Estimate(statistics, None, n_expectations)


VR_FEDEM = Solver("vr_fedem", estimate, init, per_client=("outer_loop",), variance_reduced=True)
