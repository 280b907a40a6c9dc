"""A solver in one file: FedEM with variance reduction by SVRG at the clients.

In each outer loop, a client reads all its rows once, at an anchor. Later minibatches correct the
statistics of the anchor: S_i = s̄_i(anchor) + mean over the batch of s̄_ij(now) - s̄_ij(anchor).
VR-FedEM instead adds up the differences from round to round.
"""

from typing import NamedTuple

import numpy as np

from skfedem.models._base import Estimate
from skfedem.solvers.base import Solver, draw_minibatch


class Anchors(NamedTuple):
    """Anchors of clients: statistics and φ(θ) as client vectors, and the outer loop of each."""

    statistics: np.ndarray
    natural: np.ndarray
    outer_loop: np.ndarray


def init(task, federation):
    """States of all clients before the first round."""
    vectors = task.model.vectors(federation)
    return Anchors(vectors.zeros(), vectors.zeros(), np.full(federation.n_clients, -1))


def estimate(task, broadcast, group):
    """S_i of some active clients, and their anchors afterwards."""
    model, federation, parameters = task.model, group.federation, broadcast.parameters
    if task.batch_size is None:
        return model.all_rows(federation, parameters, group.clients), group.states
    anchors, n_expectations = group.states, 0
    is_old = anchors.outer_loop != broadcast.outer_loop
    if is_old.any():
        anchors = Anchors(*(field.copy() for field in anchors))
        clients, own = (
            group.clients[is_old],
            model.vectors(federation).submask(group.clients, is_old),
        )
        full = model.all_rows(federation, parameters, clients)
        anchors.statistics[own] = full.statistics
        anchors.natural[own] = model.kept_natural(federation, parameters.natural, clients)
        anchors.outer_loop[is_old] = broadcast.outer_loop
        n_expectations += full.n_expectations
    minibatch = draw_minibatch(task, broadcast.round_index, group)
    now = model.minibatch_mean(parameters.natural, minibatch)
    then = model.minibatch_mean(anchors.natural, minibatch)
    n_expectations += 2 * task.batch_size * len(group.clients)
    return Estimate(anchors.statistics + now - then, None, n_expectations), anchors


SVRG_FEDEM = Solver("svrg_fedem", estimate, init, per_client=("outer_loop",), variance_reduced=True)
