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
    Federation,
    offsets_of,
    positions_of,
    sample_weight_of,
    weights_of_clients,
)
from .._history import FLOAT_BITS, History
from .._input.known_labels import check_kinds, find_labels, labels_together
from .._parallel import Workers
from .._rows import ReorderedRows, Rows, take_rows
from .._typing import ClientWeights, FloatArray, IntArray, Schedule
from ..models._base import Model
from . import fedem
from ._base import Problem, RoundInfo, ServerState, mean_field, server_half
from ._evaluation import checked_criterion, evaluation_columns
from ._loop import active_clients, client_round
from ._memory import Memory, at_estimate, in_setting
from .step_size import averaging_rate, stream_step_size


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
    memory: Memory,
    ids: NDArray[Any],
    schedule: Schedule | None,
    workers: Workers,
    client_weights: ClientWeights,
) -> tuple[Memory, History, list[NDArray[Any]]]:
    """Run a round of FedEM on each batch of a call.

    Parameters
    ----------
    problem : Problem
        Problem of the rows of the call.
    memory : Memory
        States of server and known clients, with the model of the problem.
    ids : ndarray
        Labels of the clients of the call. New clients are appended to the known ones.
    schedule : callable or None
        None for automatic steps.
    workers : Workers
    client_weights : {"n_samples", "uniform"}

    Returns
    -------
    memory : Memory
    history : History
        One row per round; ``log_likelihood`` is that of the parameters *before* the round, and
        ``epoch`` counts from the start of the call.
    trace : list

    Raises
    ------
    ValueError
        If labels are of another kind than the known ones.
    """
    memory, at = _joined(in_setting(memory, problem, "stream"), ids)
    mass, n_before, n_read = float(memory.totals.sum()), memory.n_samples, 0
    if mass > 0:  # otherwise, V = 0
        memory = _weighed(memory, client_weights)
    if schedule is not None:
        # Users give steps to follow a stream that changes, behind which an average would lag. The
        # first of them starts from the last average, as Ŝ is noisier.
        memory = at_estimate(memory)
    history, trace = History(), []
    for clients, batch in batches(problem.federation, problem.batch_size):
        here = at[clients]
        memory, mass, weights = _with_more_rows(memory, mass, here, batch.totals, client_weights)
        batch = batch._replace(weights=weights)
        active = active_clients(problem._replace(federation=batch), memory.server.round_index)
        memory, row = _round(problem, memory, here, batch, active, schedule, workers)
        n_read += int(batch.lengths_of(active).sum())
        memory = memory._replace(n_samples=n_before + n_read)
        history.append(epoch=n_read / problem.federation.n_samples, **row)
        trace.append(memory.model.trace(at_estimate(memory).server.parameters))
    weights = weights_of_clients(memory.totals, client_weights)
    return memory._replace(weights=weights, gains=None), history, trace


def _joined(memory: Memory, ids: NDArray[Any]) -> tuple[Memory, IntArray]:
    """Memory in which all these clients are known, and their positions in it.

    New ones have V_i = 0 and no rows so far. V_i and totals are copies, which rounds may overwrite.
    """
    known, controls = memory.ids, memory.states.controls
    check_kinds(known, ids)
    at = find_labels(known, ids)
    new = np.flatnonzero(at < 0)
    at[new] = len(known) + np.arange(len(new))
    controls = np.concatenate([controls, np.zeros((len(new), controls.shape[1]))])
    return memory._replace(
        ids=labels_together(known, ids[new]),
        totals=np.concatenate([memory.totals, np.zeros(len(new))]),
        states=fedem.ClientStates(controls),
    ), at


def _weighed(memory: Memory, client_weights: ClientWeights) -> Memory:
    """Memory with V = Σ_i w_i V_i over the known clients.

    The sum is computed again in each call: a stream has no end, and the rounding error from one
    huge row would stay in V for ever. (Within a call of several rounds, it does stay.)
    """
    control = weights_of_clients(memory.totals, client_weights) @ memory.states.controls
    return memory._replace(server=memory.server._replace(control=control))


def _with_more_rows(
    memory: Memory,
    mass: float,
    here: IntArray,
    own: IntArray | FloatArray,
    client_weights: ClientWeights,
) -> tuple[Memory, float, FloatArray]:
    """Memory, and weight of all rows, after some clients got ``own`` more; w_i of these clients."""
    memory.totals[here] += own
    mass_before, mass = mass, mass + own.sum()
    if client_weights == "uniform":
        return memory, mass, np.full(len(here), 1 / len(memory.totals))
    # V = Σ_i w_i V_i with the new weights.
    control = mass_before * memory.server.control + own @ memory.states.controls[here]
    server = memory.server._replace(control=control / mass)
    return memory._replace(server=server), mass, memory.totals[here] / mass


def _round(
    problem: Problem,
    memory: Memory,
    here: IntArray,
    batch: Federation,
    active: IntArray,
    schedule: Schedule | None,
    workers: Workers,
) -> tuple[Memory, dict[str, float]]:
    """Round of FedEM on the rows of a batch.

    Parameters
    ----------
    problem, memory, schedule, workers
        As in ``stream``. V_i are overwritten.
    here : ndarray of int
        Positions in the memory of the clients with rows in the batch.
    batch : Federation
    active : ndarray of int
        Indices of the clients of the batch that take part.

    Returns
    -------
    memory : Memory
    row : dict
        Row of the history, without the epoch.
    """
    model, before, controls = problem.model, memory.server, memory.states.controls
    if not len(active):
        after = before._replace(round_index=before.round_index + 1)
        info = RoundInfo(before.control, np.nan, safeguarded=0, step_taken=0.0)
        return memory._replace(server=after), _row(model, after, info)
    answered = _answered(batch.weights, active, problem.participation)
    here, batch = here[active], _of_those(batch, active)
    problem = _problem_of_batch(problem, batch, n_known=len(memory.totals))
    step_size = answered * _step_to_ask(problem, before, schedule, memory.n_samples)

    states, clients = fedem.ClientStates(controls[here]), np.arange(len(here))
    received = client_round(fedem, problem, before, states, clients, workers)
    controls[here] = states.controls

    field = mean_field(problem, before, received)
    uncompressed = received.uncompressed / problem.presence
    field = model.stream_field(before.parameters, before.statistics, field, uncompressed, step_size)
    after, info = server_half(problem, before, received, step_size, field)
    if schedule is None:
        average = before.statistics if memory.average is None else memory.average
        rate = averaging_rate(batch.n_samples, memory.n_samples)
        memory = memory._replace(average=average + rate * (after.statistics - average))

    log_likelihood = received.log_likelihood / batch.weights.sum()
    n_uncompressed = model.n_uncompressed * len(clients)
    # Clients also receive the constants appended to Ŝ, as they may have been absent.
    n_downlink = model.downlink_numbers(batch, clients, before.parameters) + n_uncompressed
    row = _row(
        model,
        after,
        info,
        n_active=len(clients),
        uplink_bits=8 * received.n_bytes + FLOAT_BITS * n_uncompressed,
        downlink_bits=FLOAT_BITS * n_downlink,
        criterion=checked_criterion(model, log_likelihood, before.parameters),
    )
    return memory._replace(server=after), row


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
        federation=batch,
        participation=1.0,
        batch_size=None,
        lasting_noise=True,
        presence=1.0 if everybody else float(batch.weights.sum()),
    )


def _step_to_ask(
    problem: Problem, server: ServerState, schedule: Schedule | None, n_before: float
) -> float:
    """γ of the next round: by the schedule, or by the round's share of all rows read so far."""
    if schedule is None:
        return min(stream_step_size(problem, n_before), server.step_limit)
    return schedule(server.round_index + 1)


def _row(
    model: Model,
    server: ServerState,
    info: RoundInfo,
    n_active: int = 0,
    uplink_bits: int = 0,
    downlink_bits: int = 0,
    criterion: float = np.nan,
) -> dict[str, float]:
    """Row of the history after a round, without the epoch."""
    return {
        "round": server.round_index,
        "field_sq_norm": info.field_sq_norm,
        "step_size": info.step_taken,
        "n_active": n_active,
        "uplink_bits": uplink_bits,
        "downlink_bits": downlink_bits,
        "safeguarded": info.safeguarded,
        **evaluation_columns(model, criterion),
    }
