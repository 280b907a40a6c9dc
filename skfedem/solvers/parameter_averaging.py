"""SAEM with averaged parameters, for comparison with averaged statistics.

Algorithm 1 of "Federated Stochastic Approximation of the EM Algorithm" (submitted to NeurIPS 2020):
in each round, a client runs some iterations of SAEM on its own rows, from the parameters of the
server, which then averages the clients' parameters. The average lacks what differs between clients:
with one local iteration, the variance of random effects is too small by that of the clients' means.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from .._federation import Federation
from .._typing import FloatArray
from ..models._base import Estimate, Step
from .base import Broadcast, ClientGroup, Problem, RoundInfo, ServerState, Solver, Task
from .messages import AggregatedMessages
from .saem import SaemSchedule, simulated
from .server import after_step, round_info


class LocalStates(NamedTuple):
    """What clients keep between rounds.

    Attributes
    ----------
    positions, scales : ndarray
        Chains of the rows.
    statistics : ndarray, client vectors
        S_i, the client's own stochastic approximation; NaN before its first round.
    """

    positions: FloatArray
    scales: FloatArray
    statistics: FloatArray


def init(task: Task, federation: Federation) -> LocalStates:
    """States of all clients before the first round."""
    model: Any = task.model
    chains = model.first_chains(federation.n_samples)
    statistics = model.vectors(federation).zeros() + np.nan
    return LocalStates(chains.positions, chains.scales, statistics)


def estimate(
    schedule: SaemSchedule, n_local: int, task: Task, broadcast: Broadcast, group: ClientGroup
) -> tuple[Estimate, LocalStates]:
    """Ŝ + θ_i - θ, so that the innovation is θ_i - θ, and the clients' states.

    A client repeats ``n_local`` times: simulate at θ_i, S_i += γ (s_i - S_i), θ_i = T_i(S_i). In
    rounds with γ = 0 it only simulates.
    """
    model: Any = task.model
    round_number, n_clients = broadcast.round_index + 1, len(group.clients)
    step_size = schedule.step(round_number, first=1.0)
    natural = broadcast.parameters.natural
    lengths = group.federation.lengths_of(group.clients)
    starts = np.cumsum(lengths) - lengths
    own = np.broadcast_to(natural, (n_clients, len(natural)))
    states = group.states
    for iteration in range(n_local):
        address = broadcast.round_index * n_local + iteration
        of_rows, chains = simulated(task, own, address, group._replace(states=states))
        means = np.add.reduceat(of_rows, starts) / lengths[:, None]
        states = states._replace(positions=chains.positions, scales=chains.scales)
        if step_size == 0:
            continue
        kept = np.where(np.isnan(states.statistics), means, states.statistics)
        states = states._replace(statistics=kept + step_size * (means - kept))
        found = model.local_maximization(
            states.statistics, group.federation, group.clients, broadcast.parameters
        )
        own = model.annealed(found, own) if schedule.anneals(round_number) else found
    moved = broadcast.reference + own - natural
    return Estimate(moved, None, n_local * int(lengths.sum())), states


def average(
    problem: Problem, server: ServerState, aggregated: AggregatedMessages, step_size: float
) -> tuple[ServerState, RoundInfo]:
    """The server's half of a round: θ is the weighted mean of the active clients' θ_i."""
    model: Any = problem.model
    weight = problem.sizes.weights[aggregated.active].sum()
    statistics, field = server.statistics, np.zeros(model.n_statistics)
    if step_size > 0 and weight > 0:
        natural = server.parameters.natural + aggregated.message_sum / weight
        statistics = model.statistics_of(model.parameters_of(natural))
        field = statistics - server.statistics
    step = Step(statistics, model.field_sq_norm(server.statistics, field), 0, step_size)
    return after_step(problem, server, aggregated, step), round_info(server, field, step)


def parameter_averaging(schedule: SaemSchedule, n_local: int) -> Solver:
    """The solver with a schedule and a number of local iterations, for models with chains."""
    return Solver(
        "parameter_averaging",
        partial(estimate, schedule, n_local),
        init,
        per_row=("positions", "scales"),
        is_random=True,
        server_half=average,
        schedule=lambda problem: partial(schedule.step, first=1.0),
    )
