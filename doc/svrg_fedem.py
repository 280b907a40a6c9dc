"""A solver in one file: FedEM with variance reduction by SVRG at the clients.

In each outer loop, a client reads all its rows once, at an anchor. Later minibatches correct the
statistics of the anchor: S_i = s̄_i(anchor) + mean over the batch of s̄_ij(now) - s̄_ij(anchor).
VR-FedEM instead adds up the differences from round to round.
"""

from typing import NamedTuple

import numpy as np

from skfedem.models._base import Estimate
from skfedem.solvers._base import draw_minibatch
from skfedem.solvers.fedem import send_innovation

PER_CLIENT = ("outer_loop",)
VARIANCE_REDUCED = True


class ClientStates(NamedTuple):
    """States of the clients between rounds."""

    controls: np.ndarray
    anchor_statistics: np.ndarray
    anchor_natural: np.ndarray
    outer_loop: np.ndarray


def init(problem, controls):
    """States of all clients before the first round."""
    never = np.full(problem.federation.n_clients, -1)
    return ClientStates(controls, np.zeros_like(controls), np.zeros_like(controls), never)


def client_half(problem, broadcast, clients, states):
    """The active clients' half of a round."""
    if problem.batch_size is None:
        estimate = problem.model.all_rows(problem.federation, broadcast.parameters, clients)
        message, controls = send_innovation(problem, broadcast, clients, estimate, states.controls)
        return message, states._replace(controls=controls)
    states, n_expectations = drop_anchors(problem, broadcast, clients, states)
    minibatch = draw_minibatch(problem, broadcast.round_index, clients)
    now = problem.model.minibatch_mean(broadcast.parameters.natural, minibatch)
    then = problem.model.minibatch_mean(states.anchor_natural, minibatch)
    n_expectations += 2 * problem.batch_size * len(clients)
    estimate = Estimate(states.anchor_statistics + now - then, None, n_expectations)
    message, controls = send_innovation(problem, broadcast, clients, estimate, states.controls)
    return message, states._replace(controls=controls)


def drop_anchors(problem, broadcast, clients, states):
    """Set new anchors, with a pass over all rows, for clients with one of an earlier outer loop."""
    late = states.outer_loop != broadcast.outer_loop
    if not late.any():
        return states, 0
    model, federation = problem.model, problem.federation
    full = model.all_rows(federation, broadcast.parameters, clients[late])
    own = problem.vectors.within(clients, late)
    statistics, natural = states.anchor_statistics.copy(), states.anchor_natural.copy()
    statistics[own] = full.statistics
    natural[own] = model.kept_natural(federation, broadcast.parameters.natural, clients[late])
    outer_loops = np.full(len(clients), broadcast.outer_loop)
    return ClientStates(states.controls, statistics, natural, outer_loops), full.n_expectations
