"""Streams: each batch of rows is read once, in a round of its own (the online case of A7).

A round is one of FedEM (``fedem``, Algorithm 1). With the weights w_i of all rows so far:

1. Of the clients with rows in the batch, draw the set A of those that take part.
2. Each i in A: Δ_i = s̄_i(T(Ŝ)) - V_i - Ŝ, for its rows in the batch; V_i += α Quant(Δ_i).
3. Server: H = V + Σ_A w_i Quant(Δ_i) / Σ_A w_i; Ŝ += γ H; V += α Σ_A w_i Quant(Δ_i); T(Ŝ).
4. With automatic steps, an average of Ŝ moves towards Ŝ. It is the estimate of the stream.

V = Σ_i w_i V_i covers all known clients, including absent ones. Messages are divided by the share
of the total weight that takes part, not by the probability p of taking part: if clients are
similar, H is then correct whichever clients are absent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._federation import (
    ClientSizes,
    Federation,
    offsets_of,
    positions_of,
    sample_weight_of,
    weights_of_clients,
)
from .._history import History
from .._rows import ReorderedRows, Rows, take_rows
from .._typing import ClientWeights, FloatArray, IntArray, Schedule
from ._fitted_state import FittedState, at_average, joined, with_noise
from ._loop import active_clients, close_round
from ._state import RunState, checked_criterion, evaluation_columns, history_row
from ._step_size import averaging_rate, stream_step_size
from ._stopping import first_sweep
from .base import Clients, NoStates, Problem, RoundInfo, ServerState
from .fedem import FEDEM
from .server import broadcast_of


def batches(
    federation: Federation, batch_size: int | None
) -> Iterator[tuple[IntArray, Federation]]:
    """Cut the rows of a call into batches of at most ``batch_size`` rows per client, in order.

    Parameters
    ----------
    federation : Federation
    batch_size : int or None
        None for one batch.

    Yields
    ------
    clients : ndarray of int
        Clients with rows in the batch, in increasing order.
    batch : Federation
        Their rows. The client weights are those of the call and have to be replaced, because the
        weights in a batch depend on all rows so far.
    """
    lengths, starts = federation.lengths, federation.offsets[:-1]
    clients = np.arange(federation.n_clients)
    if batch_size is None or lengths.max() <= batch_size:
        yield clients, federation
        return
    for first in range(0, int(lengths.max()), batch_size):
        clients = clients[lengths[clients] > first]
        own = np.minimum(lengths[clients] - first, batch_size)
        yield clients, _part(federation, clients, starts[clients] + first, own, take_rows)


def _part(
    federation: Federation,
    clients: IntArray,
    starts: IntArray,
    lengths: IntArray,
    chosen_rows: Callable[[Rows, IntArray], Rows],
) -> Federation:
    """Federation of some clients with ``lengths`` of their rows, from the rows ``starts`` on."""
    chosen, offsets = positions_of(starts, lengths), offsets_of(lengths)
    weights = federation.sample_weight
    if weights is not None:
        weights = sample_weight_of(weights.values[chosen], offsets)
    rows = chosen_rows(federation.rows, chosen)
    return Federation(rows, offsets, federation.weights[clients], weights)


def stream(
    problem: Problem,
    federation: Federation,
    memory: FittedState,
    ids: NDArray[Any],
    schedule: Schedule | None,
    clients_of: Callable[[Federation], Clients],
    client_weights: ClientWeights,
) -> tuple[FittedState, History, list[NDArray[Any]]]:
    """Run a round of FedEM on each batch of a call.

    Parameters
    ----------
    problem : Problem
        Problem of the rows of the call.
    federation : Federation
        These rows.
    memory : FittedState
        States of server and known clients, with the model of the problem.
    ids : ndarray
        Labels of the clients of the call. New clients are appended to the known ones.
    schedule : callable or None
        None for automatic steps.
    clients_of : callable
        The clients with rows in a federation.
    client_weights : {"n_samples", "uniform"}

    Returns
    -------
    memory : FittedState
    history : History
        One row per round; ``log_likelihood`` is that of the parameters *before* the round, and
        ``epoch`` counts from the start of the call.
    trace : list

    Raises
    ------
    ValueError
        If labels are of another kind than the known ones.
    """
    memory, at = joined(with_noise(memory, problem, "stream"), ids)
    mass, n_before = float(memory.totals.sum()), memory.n_samples
    if mass > 0:  # otherwise, V = 0
        memory = _weighed(memory, client_weights)
    if schedule is not None:
        # Users give steps to follow a stream that changes, behind which an average would lag. The
        # first of them starts from the last average, as Ŝ is noisier.
        memory = at_average(memory)
    state = _first_state(problem, memory.server, federation.n_samples)
    for clients, batch in batches(federation, problem.task.batch_size):
        here = at[clients]
        memory, mass, weights = _with_more_rows(memory, mass, here, batch.totals, client_weights)
        batch = batch._replace(weights=weights)
        drawn = problem_of_some(problem, batch.sizes)
        active = active_clients(drawn, memory.server.round_index)
        if not len(active):
            state = _without_clients(problem, state, memory.server)
            memory = memory._replace(server=state.server)
        else:
            share = drawn.inclusion_probability
            answered = _answered(batch.weights, active, share)
            here, batch = here[active], _of_those(batch, active)
            of_batch = _problem_of_batch(problem, batch, n_known=len(memory.totals))
            step_size = answered * _step_to_ask(of_batch, memory, schedule)
            memory, state = _round(
                of_batch, memory, state, here, clients_of(batch), step_size, schedule is None
            )
        memory = memory._replace(n_samples=n_before + state.n_expectations)
        state.trace[-1] = memory.model.trace(at_average(memory).server.parameters)
    weights = weights_of_clients(memory.totals, client_weights)
    return memory._replace(weights=weights, gains=None), state.history, state.trace


def _first_state(problem: Problem, server: ServerState, n_samples: int) -> RunState:
    """State before the first round of a call."""
    return RunState(
        server=server,
        stopping=first_sweep(problem, server),
        history=History(),
        trace=[],
        criteria_before=[],
        n_expectations=0,
        n_samples=n_samples,
        first_round=server.round_index,
    )


def _without_clients(problem: Problem, state: RunState, before: ServerState) -> RunState:
    """State after a round in which nobody took part: nothing changes but the count."""
    server = before._replace(round_index=before.round_index + 1)
    state = state._replace(server=server)
    info = RoundInfo(before.control, np.nan, safeguarded=0, step_taken=0.0)
    row = history_row(problem, state, info, 0, uplink_bits=0, downlink_bits=0)
    state.history.append(**row, **evaluation_columns(problem.model))
    state.trace.append(problem.model.trace(server.parameters))
    return state


def _weighed(memory: FittedState, client_weights: ClientWeights) -> FittedState:
    """State with V = Σ_i w_i V_i over the known clients.

    The sum is computed again in each call: a stream has no end, and the rounding error from one
    huge row would stay in V for ever. (Within a call of several rounds, it does stay.)
    """
    control = weights_of_clients(memory.totals, client_weights) @ memory.controls
    return memory._replace(server=memory.server._replace(control=control))


def _with_more_rows(
    memory: FittedState,
    mass: float,
    here: IntArray,
    own: IntArray | FloatArray,
    client_weights: ClientWeights,
) -> tuple[FittedState, float, FloatArray]:
    """State, and weight of all rows, after some clients got ``own`` more; w_i of these clients."""
    memory.totals[here] += own
    mass_before, mass = mass, mass + own.sum()
    if client_weights == "uniform":
        return memory, mass, np.full(len(here), 1 / len(memory.totals))
    # V = Σ_i w_i V_i with the new weights.
    control = mass_before * memory.server.control + own @ memory.controls[here]
    server = memory.server._replace(control=control / mass)
    return memory._replace(server=server), mass, memory.totals[here] / mass


def _round(
    problem: Problem,
    memory: FittedState,
    state: RunState,
    here: IntArray,
    clients: Clients,
    step_size: float,
    is_averaged: bool,
) -> tuple[FittedState, RunState]:
    """Round of FedEM on the rows of a batch.

    Parameters
    ----------
    problem : Problem
        Problem of the clients that take part.
    memory : FittedState
        Its V_i are overwritten.
    state : RunState
    here : ndarray of int
        Positions in the memory of these clients.
    clients : Clients
    step_size : float
    is_averaged : bool
        Whether Ŝ is averaged over the rounds.

    Returns
    -------
    memory : FittedState
    state : RunState
    """
    before, every = memory.server, np.arange(len(here))
    clients.join(FEDEM, problem.task)
    if problem.task.has_controls:
        clients.restore({"controls": memory.controls[here], "states": NoStates()})
    aggregated = clients.round(broadcast_of(problem, before), every)
    state = state._replace(server=before)
    state = close_round(problem, state, every, aggregated, step_size)
    clients.commit(before.round_index)
    if problem.task.has_controls:
        memory.controls[here] = clients.save()["controls"]
    # The criterion is that of the parameters before the round.
    log_likelihood = aggregated.log_likelihood / problem.participating_weight
    criterion = checked_criterion(problem.model, log_likelihood, before.parameters)
    state.history.update(-1, **{problem.model.criterion: criterion})
    if is_averaged:
        average = before.statistics if memory.average is None else memory.average
        rate = averaging_rate(problem.sizes.n_samples, memory.n_samples)
        average = average + rate * (state.server.statistics - average)
        memory = memory._replace(average=average)
    return memory._replace(server=state.server), state


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


def _of_those(batch: Federation, active: IntArray) -> Federation:
    """Rows of a batch of the clients that take part, not copied, as they may exceed memory."""
    if len(active) == batch.n_clients:
        return batch
    starts, lengths = batch.offsets[active], batch.lengths_of(active)
    return _part(batch, active, starts, lengths, ReorderedRows)


def _problem_of_batch(problem: Problem, batch: Federation, n_known: int) -> Problem:
    """Problem of the clients that take part in a round, out of ``n_known`` known ones."""
    everybody = batch.n_clients == n_known
    return problem._replace(
        task=problem.task._replace(batch_size=None),
        sizes=batch.sizes,
        participation=1.0,
        persistent_noise=True,
        participating_weight=1.0 if everybody else float(batch.weights.sum()),
    )


def _step_to_ask(problem: Problem, memory: FittedState, schedule: Schedule | None) -> float:
    """γ of the next round: by the schedule, or by the round's share of all rows read so far."""
    server = memory.server
    if schedule is None:
        return min(stream_step_size(problem, memory.n_samples), server.step_limit)
    return schedule(server.round_index + 1)
