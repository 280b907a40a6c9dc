"""SAEM: FedEM with an E-step by Markov chains, one or several for each row.

This is Algorithm 2 of "Federated Stochastic Approximation of the EM Algorithm" (submitted to
NeurIPS 2020), with the stochastic approximation that its printed form lacks (Kuhn and Lavielle,
2004), compression and control variates. The chains stay with the client and go on in its next
active round.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from .. import _random
from .._federation import Federation, positions_of, take_rows
from .._typing import FloatArray, Schedule
from ..models._base import Estimate, Step
from .base import Broadcast, ClientGroup, Problem, RoundInfo, ServerState, Solver, Task, row_keys
from .messages import AggregatedMessages
from .server import after_step, mean_field, round_info

# Rounds of simulation only, in which the chains and the control variates begin.
N_FIRST_ROUNDS = 5
# Share of the exploratory rounds in which variances are annealed.
_ANNEALED = 0.5


class SaemSchedule(NamedTuple):
    """Rounds and steps.

    Attributes
    ----------
    n_exploratory, n_smoothing : int
        Rounds with the first step, and with decreasing ones.
    exponent : float
        Steps decrease as (rounds)^-exponent.
    """

    n_exploratory: int
    n_smoothing: int
    exponent: float

    @property
    def n_rounds(self) -> int:
        """Number of all rounds."""
        return self.n_exploratory + self.n_smoothing

    def step(self, round_number: int, first: float) -> float:
        """γ: 0 in the first five rounds, then ``first``.

        In smoothing round k, it is ``first * (1 + (k - 1) * first)^-exponent``.
        """
        if round_number <= N_FIRST_ROUNDS:
            return 0.0
        later = max(0, round_number - self.n_exploratory - 1)
        return float(first * (1 + later * first) ** -self.exponent)

    def anneals(self, round_number: int) -> bool:
        """Whether variances are annealed."""
        return round_number <= _ANNEALED * self.n_exploratory

    def steps(self, problem: Problem) -> Schedule:
        """Steps from p / (1 + ω) on, which is 1 if everybody sends exact messages."""
        first = problem.inclusion_probability / (1 + problem.omega)
        return partial(self.step, first=first)


def init(task: Task, federation: Federation) -> Any:
    """Chains of all rows before the first round."""
    model: Any = task.model
    return model.first_chains(federation.n_samples)


def estimate(task: Task, broadcast: Broadcast, group: ClientGroup) -> tuple[Estimate, Any]:
    """S_i, the mean over a client's rows of their statistics after a sweep of their chains."""
    statistics, chains = simulated(task, broadcast.parameters.natural, broadcast.round_index, group)
    lengths = group.federation.lengths_of(group.clients)
    sums = np.add.reduceat(statistics, np.cumsum(lengths) - lengths)
    return Estimate(sums / lengths[:, None], None, len(statistics)), chains


def simulated(
    task: Task, natural: FloatArray, sweep_index: int, group: ClientGroup
) -> tuple[FloatArray, Any]:
    """Statistics of the rows of a group, client after client, and their chains.

    ``natural`` has shape (q,), or (n_clients, q).
    """
    model: Any = task.model
    federation, clients = group.federation, group.clients
    lengths = federation.lengths_of(clients)
    rows = positions_of(federation.offsets[clients], lengths)
    features = model.features(take_rows(federation.rows, rows))
    address = task.seed, _random.CHAINS, sweep_index
    uniforms = _random.row_uniforms(*address, row_keys(group), model.n_uniforms)
    return model.simulate(natural, features, lengths, group.states, uniforms, sweep_index)


def saem_half(
    schedule: SaemSchedule,
    problem: Problem,
    server: ServerState,
    aggregated: AggregatedMessages,
    step_size: float,
) -> tuple[ServerState, RoundInfo]:
    """The server's half of a round: variances are annealed in the first half of the exploration.

    If everybody sends exact messages, Ŝ is an average of statistics of data: no step is too long.
    """
    model: Any = problem.model
    field = mean_field(problem, server, aggregated)
    if step_size == 0:
        step = Step(server.statistics, model.field_sq_norm(server.statistics, field), 0, 0.0)
    elif schedule.anneals(server.round_index + 1):
        step = model.annealed_step(server.statistics, field, step_size, server.parameters)
    else:
        exact = problem.omega == 0 and problem.inclusion_probability == 1
        step = model.server_step(server.statistics, field, step_size, exact=exact)
    return after_step(problem, server, aggregated, step), round_info(server, field, step)


def saem(schedule: SaemSchedule) -> Solver:
    """The solver with a schedule, for models with ``first_chains`` and ``simulate``."""
    return Solver(
        "saem",
        estimate,
        init,
        per_row=("positions", "scales"),
        is_random=True,
        server_half=partial(saem_half, schedule),
        schedule=schedule.steps,
    )
