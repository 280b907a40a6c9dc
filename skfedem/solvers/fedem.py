"""FedEM: Algorithm 1 of Dieuleveut, Fort, Moulines and Robin (NeurIPS 2021).

Innovation, compression and control variates are in ``skfedem.clients.group``, the server's half of
a round in ``base``.
"""

from __future__ import annotations

from ..models._base import Estimate
from .base import Broadcast, ClientGroup, NoStates, Solver, Task, draw_minibatch


def estimate(task: Task, broadcast: Broadcast, group: ClientGroup) -> tuple[Estimate, NoStates]:
    """S_{k+1,i}: an unbiased estimate of s̄_i(T(Ŝ_k)), exact with all rows (line 6)."""
    model, parameters = task.model, broadcast.parameters
    if task.batch_size is None:
        return model.all_rows(group.federation, parameters, group.clients), NoStates()
    minibatch = draw_minibatch(task, broadcast.round_index, group)
    statistics = model.minibatch_mean(parameters.natural, minibatch)
    return Estimate(statistics, None, task.batch_size * len(group.clients)), NoStates()


FEDEM = Solver("fedem", estimate)
