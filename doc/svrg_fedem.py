"""A solver in one file: FedEM whose clients reduce their variance by SVRG.

Each outer loop a client reads all its rows once, at an anchor. Later minibatches correct the
anchor's statistics, S_i = s̄_i(anchor) + mean over the batch of s̄_ij(now) - s̄_ij(anchor), where
VR-FedEM adds up the differences from round to round.
"""

from typing import NamedTuple

import numpy as np

from skfedem.solvers._base import Estimate, all_rows, minibatch_features
from skfedem.solvers.fedem import send_innovation


class ClientStates(NamedTuple):
    """What clients keep between rounds, one row a client."""

    controls: np.ndarray
    anchor_statistics: np.ndarray
    anchor_natural: np.ndarray
    outer_loop: np.ndarray


def init(problem, controls):
    """States of all clients before the first round."""
    zeros = np.zeros_like(controls)
    return ClientStates(controls, zeros, zeros.copy(), np.full(len(controls), -1))


def client_half(problem, broadcast, clients, states):
    """Half of a round that happens at the active clients."""
    outer_loop = broadcast.round_index // problem.n_inner
    states, n_expectations = drop_anchors(problem, broadcast, clients, states, outer_loop)
    features, lengths = minibatch_features(problem, broadcast.round_index, clients)
    now = problem.model.expectation(broadcast.natural, features, lengths)
    then = problem.model.expectation(states.anchor_natural, features, lengths)
    difference = (now.statistics - then.statistics) / problem.batch_size
    estimate = Estimate(
        states.anchor_statistics + difference, None, n_expectations + 2 * int(lengths.sum())
    )
    message, controls = send_innovation(problem, broadcast, clients, estimate, states.controls)
    return message, states._replace(controls=controls)


def drop_anchors(problem, broadcast, clients, states, outer_loop):
    """Read all rows of the clients whose anchor is of an earlier outer loop."""
    late = states.outer_loop != outer_loop
    if not late.any():
        return states, 0
    full = all_rows(problem, broadcast.natural, clients[late])
    statistics, natural = states.anchor_statistics.copy(), states.anchor_natural.copy()
    statistics[late], natural[late] = full.statistics, broadcast.natural
    outer_loops = np.full(len(clients), outer_loop)
    return ClientStates(states.controls, statistics, natural, outer_loops), full.n_expectations
