"""Streams: each batch of rows is read once, in a round of its own (the online case of A7).

A round is one of FedEM (``fedem``, Algorithm 1). With the weights w_i of all rows so far:

1. Of the clients with rows in the batch, draw the set A of those that take part.
2. Each i in A: Δ_i = s̄_i(T(Ŝ)) - V_i - Ŝ, for its rows in the batch; V_i += α Quant(Δ_i).
3. Server: H = V + Σ_A w_i Quant(Δ_i) / Σ_A w_i; Ŝ += γ H; V += α Σ_A w_i Quant(Δ_i); T(Ŝ).
4. With automatic steps, an average of Ŝ moves towards Ŝ. It is the estimate of the stream.

V = Σ_i w_i V_i covers all known clients, including absent ones. Messages are divided by the share
of the total weight that takes part, not by the probability p of taking part: if clients are
similar, H is then correct whichever clients are absent.

Clients cut their rows into batches, which ``Broadcast.outer_loop`` numbers within a call.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._federation import (
    ClientRows,
    ClientSizes,
    Federation,
    offsets_of,
    positions_of,
    sample_weight_of,
    weights_of_clients,
)
from .._history import History
from .._rows import take_rows
from .._typing import ClientWeights, FloatArray, IntArray, Schedule
from ..models._base import Estimate
from ._fitted_state import FittedState, at_average, joined, with_noise
from ._loop import close_round, open_round
from ._state import RunState, checked_criterion
from ._step_size import averaging_rate, stream_step_size
from .base import (
    Broadcast,
    ClientGroup,
    Clients,
    NoStates,
    Problem,
    RoundInfo,
    ServerState,
    Solver,
    Task,
)
from .messages import AggregatedMessages
from .server import broadcast_of, server_half


def streaming(first_round: int) -> Solver:
    """FedEM on the batches of a call whose first round has this index."""
    return Solver(
        "stream", estimate, broadcast=partial(_broadcast, first_round), server_half=_server_half
    )


# ---- the clients' half


def estimate(task: Task, broadcast: Broadcast, group: ClientGroup) -> tuple[Estimate, NoStates]:
    """s̄_i(T(Ŝ)): mean over a client's rows in the batch."""
    federation, clients = group.federation, group.clients
    if task.batch_size is not None:
        number, size = broadcast.outer_loop, task.batch_size
        lengths = lengths_in_batch(federation.lengths_of(clients), number, size)
        federation = _part(federation, clients, number * size, lengths)
        clients = np.arange(len(clients))
    return task.model.all_rows(federation, broadcast.parameters, clients), NoStates()


def lengths_in_batch(lengths: IntArray, number: int, batch_size: int | None) -> IntArray:
    """Numbers of rows that clients have in a batch, from those of a call."""
    if batch_size is None:
        return lengths
    return np.clip(lengths - number * batch_size, 0, batch_size)


def totals_in_batch(rows: ClientRows, number: int, batch_size: int | None) -> FloatArray:
    """Message: weight of each client's rows in a batch."""
    federation = rows.federation
    weights = federation.sample_weight
    assert weights is not None  # else, the server knows the numbers of rows
    if batch_size is None:
        return weights.totals[rows.clients]
    lengths = lengths_in_batch(federation.lengths_of(rows.clients), number, batch_size)
    totals, here = np.zeros(len(lengths)), lengths > 0
    batch = _part(federation, rows.clients[here], number * batch_size, lengths[here])
    totals[here] = batch.totals
    return totals


def _part(federation: Federation, clients: IntArray, first: int, lengths: IntArray) -> Federation:
    """Federation of some clients with ``lengths`` of their rows, from row ``first`` of each on."""
    chosen = positions_of(federation.offsets[clients] + first, lengths)
    offsets, weights = offsets_of(lengths), federation.sample_weight
    if weights is not None:
        weights = sample_weight_of(weights.values[chosen], offsets)
    rows = take_rows(federation.rows, chosen)
    return Federation(rows, offsets, federation.weights[clients], weights)


# ---- the server


def _broadcast(first_round: int, problem: Problem, server: ServerState) -> Broadcast:
    """What the server sends, with the number of the batch."""
    number = server.round_index - first_round
    return broadcast_of(problem, server)._replace(outer_loop=number)


def _server_half(
    problem: Problem, server: ServerState, aggregated: AggregatedMessages, step_size: float
) -> tuple[ServerState, RoundInfo]:
    """The server's half of a round; one without clients only advances its number."""
    if aggregated.n_active:
        return server_half(problem, server, aggregated, step_size)
    after = server._replace(round_index=server.round_index + 1)
    return after, RoundInfo(server.control, np.nan, safeguarded=0, step_taken=0.0)


def stream(
    problem: Problem,
    clients: Clients,
    memory: FittedState,
    ids: NDArray[Any],
    schedule: Schedule | None,
    client_weights: ClientWeights,
    *,
    weighted: bool,
) -> tuple[FittedState, History, list[NDArray[Any]]]:
    """Run a round of FedEM on each batch of a call of the clients with these labels.

    ``memory`` has the states of server and known clients, with the model of the problem; new
    clients are appended. Without a ``schedule``, steps are automatic; if rows are ``weighted``,
    clients send the sums. In the history, ``log_likelihood`` is that of the parameters *before* the
    round, and ``epoch`` counts from the start of the call. Raises ValueError if labels are of
    another kind than the known ones.
    """
    problem = problem._replace(solver=streaming(memory.server.round_index))
    memory, at = joined(with_noise(memory, problem), ids)
    mass, n_before = float(memory.totals.sum()), memory.n_samples
    has_controls, size = problem.task.has_controls, problem.task.batch_size
    if mass > 0 and has_controls:  # otherwise, V = 0
        memory = _weighed(memory, client_weights)
    if schedule is not None:
        # Users give steps to follow a stream that changes, behind which an average would lag. The
        # first of them starts from the last average, as Ŝ is noisier.
        memory = at_average(memory)
    lengths = clients.sizes.lengths
    clients.join(problem.solver, problem.task)
    if has_controls:
        clients.restore({"controls": memory.controls[at], "states": NoStates()})
    state = _first_state(problem, memory.server, int(lengths.sum()))
    for number in range(1 if size is None else -(-int(lengths.max()) // size)):
        own = lengths_in_batch(lengths, number, size)
        here = np.flatnonzero(own)
        totals = clients.gather(totals_in_batch, number, size) if weighted else own
        control = state.server.control
        if has_controls and client_weights == "n_samples":  # V = Σ_i w_i V_i with the new weights
            control = mass * control + totals[here] @ clients.save()["controls"][here]
            control /= mass + totals.sum()
        memory.totals[at] += totals
        mass += totals.sum()
        weights = memory.totals[at] / mass
        if client_weights == "uniform":
            weights = np.full(len(at), 1 / len(memory.totals))
        clients.weigh(weights)
        state = state._replace(server=state.server._replace(control=control))
        drawn = problem_of_some(problem, ClientSizes(weights[here], own[here]))
        broadcast, active = open_round(drawn, state.server)
        answered = _answered(weights[here], active, drawn.inclusion_probability)
        active, before = here[active], state.server
        of_batch = _problem_of_batch(problem, weights[active], own[active], len(memory.totals))
        step_size = answered * _step_to_ask(of_batch, memory, before, schedule)
        aggregated = clients.round(broadcast, active)
        state = close_round(of_batch, state, active, aggregated, step_size)
        clients.commit(broadcast.round_index)
        if aggregated.log_likelihood is not None:  # of those who answered, if anybody did
            # The criterion is that of the parameters before the round.
            log_likelihood = aggregated.log_likelihood / of_batch.participating_weight
            criterion = checked_criterion(problem.model, log_likelihood, before.parameters)
            state.history.update(-1, **{problem.model.criterion: criterion})
            if schedule is None:
                memory = _averaged(memory, of_batch.sizes.n_samples, before, state.server)
        memory = memory._replace(server=state.server, n_samples=n_before + state.n_expectations)
        state.trace[-1] = memory.model.trace(at_average(memory).server.parameters)
    if has_controls:
        memory.controls[at] = clients.save()["controls"]
    weights = weights_of_clients(memory.totals, client_weights)
    return memory._replace(weights=weights, gains=None), state.history, state.trace


def _first_state(problem: Problem, server: ServerState, n_samples: int) -> RunState:
    """State before the first round of a call."""
    return RunState(
        server=server,
        stopping=None,
        history=History(),
        trace=[],
        criteria_before=[],
        n_expectations=0,
        n_samples=n_samples,
        first_round=server.round_index,
    )


def _weighed(memory: FittedState, client_weights: ClientWeights) -> FittedState:
    """State with V = Σ_i w_i V_i over the known clients.

    The sum is computed again in each call: a stream has no end, and the rounding error from one
    huge row would stay in V for ever. (Within a call of several rounds, it does stay.)
    """
    control = weights_of_clients(memory.totals, client_weights) @ memory.controls
    return memory._replace(server=memory.server._replace(control=control))


def _averaged(
    memory: FittedState, n_rows: int, before: ServerState, after: ServerState
) -> FittedState:
    """State whose average of Ŝ has moved towards that after a round on ``n_rows`` rows."""
    average = before.statistics if memory.average is None else memory.average
    rate = averaging_rate(n_rows, memory.n_samples)
    return memory._replace(average=average + rate * (after.statistics - average))


def problem_of_some(problem: Problem, sizes: ClientSizes) -> Problem:
    """Problem of the clients with rows, of whom at most a given number take part."""
    participation = problem.participation
    if isinstance(participation, int):
        participation = min(participation, sizes.n_clients)
    return problem._replace(sizes=sizes, participation=participation)


def _answered(weights: FloatArray, active: IntArray, participation: float) -> float:
    """Weight of the clients that take part as a share of the expected weight, at most 1.

    A few small clients are noisier than many, and must not have the same effect: small clients that
    took part alone have moved a stream far from the optimum.
    """
    if len(active) == len(weights):
        return 1.0
    return min(1.0, float(weights[active].sum() / (participation * weights.sum())))


def _problem_of_batch(
    problem: Problem, weights: FloatArray, lengths: IntArray, n_known: int
) -> Problem:
    """Problem of the clients that take part in a round, out of ``n_known`` known ones."""
    everybody = len(weights) == n_known
    return problem._replace(
        task=problem.task._replace(batch_size=None),
        sizes=ClientSizes(weights, lengths),
        participation=1.0,
        persistent_noise=True,
        participating_weight=1.0 if everybody else float(weights.sum()),
    )


def _step_to_ask(
    problem: Problem, memory: FittedState, server: ServerState, schedule: Schedule | None
) -> float:
    """γ of the next round: by the schedule, or by the round's share of all rows read so far."""
    if not problem.sizes.n_clients:
        return 0.0
    if schedule is None:
        return min(stream_step_size(problem, memory.n_samples), server.step_limit)
    return schedule(server.round_index + 1)
