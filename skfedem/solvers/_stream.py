"""Streams: each batch of rows is read once, in a round of its own (the online case of A7).

Rounds are those of FedEM. What differs is who is there: the federation consists of the clients with
rows in the batch that take part, and V, which covers all known clients, speaks for the others.
Messages are divided by these clients' share of all weight, not by the probability p of taking part:
where clients are alike, H is then right whoever is away.
"""

from __future__ import annotations

import numpy as np

from .._bits import FLOAT_BITS
from .._federation import (
    Federation,
    offsets_of,
    positions_of,
    sample_weight_of,
    weights_of_clients,
)
from .._history import History
from .._rows import ReorderedRows, take_rows
from . import fedem
from ._base import mean_field, server_half
from ._evaluation import evaluation_columns
from ._loop import active_clients, client_round
from ._memory import at_estimate, in_setting
from .step_size import averaging_rate, stream_step_size


def batches(federation, batch_size):
    """Cut the rows of a call into batches of at most ``batch_size`` rows per client, in order.

    Parameters
    ----------
    federation : Federation
    batch_size : int or None
        None for one batch.

    Yields
    ------
    clients : ndarray of int
        Who has rows in the batch; increasing.
    batch : Federation
        Their rows. Its client weights are those of the call, and nobody's yet: what they are in the
        batch depends on all rows so far.
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


def _part(federation, clients, starts, lengths, chosen_rows):
    """Federation of some clients and of so many of their rows, from where these start."""
    chosen, offsets = positions_of(starts, lengths), offsets_of(lengths)
    weights = federation.sample_weight
    if weights is not None:
        weights = sample_weight_of(weights.values[chosen], offsets)
    rows = chosen_rows(federation.rows, chosen)
    return Federation(rows, offsets, federation.weights[clients], weights)


def stream(problem, memory, at, schedule, workers, client_weights):
    """Run a round of FedEM on each batch of a call.

    Parameters
    ----------
    problem : Problem
        That of the rows of the call.
    memory : Memory
        That of all known clients, which include those of the call. V_i and totals are overwritten.
    at : ndarray of int
        Positions of the clients of the call in the memory.
    schedule : callable or None
        From the round, counted from 1, to γ; None for automatic steps.
    workers : Workers
    client_weights : {"n_samples", "uniform"}

    Returns
    -------
    memory : Memory
    history : History
        One row a round; ``log_likelihood`` is that of the parameters *before* the round, and
        ``epoch`` counts from the beginning of the call.
    trace : list
    """
    memory, federation = in_setting(memory, problem, "stream"), problem.federation
    mass, n_before, n_read = memory.totals.sum(), memory.n_samples, 0
    history, trace = History(), []
    if schedule is not None:
        # An average would lag behind the steps that a user gave, to follow a stream that changes.
        # They begin with what was estimated so far: Ŝ itself is noisier.
        memory = at_estimate(memory)
    for clients, batch in batches(federation, problem.batch_size):
        here = at[clients]
        memory, mass, weights = _with_more_rows(memory, mass, here, batch.totals, client_weights)
        batch = batch._replace(weights=weights)
        active = active_clients(problem._replace(federation=batch), memory.server.round_index)
        if len(active):
            memory, row = _round(problem, memory, here, batch, active, schedule, workers)
        else:
            memory, row = _round_of_nobody(memory)
        n_read += int(batch.lengths_of(active).sum())
        memory = memory._replace(n_samples=n_before + n_read)
        history.append(epoch=n_read / federation.n_samples, **row)
        trace.append(memory.model.trace(at_estimate(memory).server.parameters))
    weights = weights_of_clients(memory.totals, client_weights)
    return memory._replace(weights=weights, gains=None), history, trace


def _with_more_rows(memory, mass, here, own, client_weights):
    """Memory and weight of all rows once some clients have ``own`` more; w_i of these clients."""
    memory.totals[here] += own
    mass_before, mass = mass, mass + own.sum()
    if client_weights == "uniform":
        return memory, mass, np.full(len(here), 1 / len(memory.totals))
    # V = Σ_i w_i V_i of the weights that follow.
    control = mass_before * memory.server.control + own @ memory.states.controls[here]
    server = memory.server._replace(control=control / mass)
    return memory._replace(server=server), mass, memory.totals[here] / mass


def _of_those(batch, active):
    """What those who take part have of a batch, without a copy: it may be larger than memory."""
    if len(active) == batch.n_clients:
        return batch
    starts, lengths = batch.offsets[active], batch.lengths_of(active)
    return _part(batch, active, starts, lengths, ReorderedRows)


def _problem_of_batch(problem, model, batch, n_known):
    """Problem of those who take part in a round, of so many known clients."""
    everybody = batch.n_clients == n_known
    return problem._replace(
        model=model,
        federation=batch,
        participation=1.0,
        batch_size=None,
        lasting_noise=True,
        presence=1.0 if everybody else float(batch.weights.sum()),
    )


def _step_to_ask(problem, server, schedule, n_before):
    """γ of the next round, by the schedule or by the share of its rows in all that were read."""
    if schedule is None:
        return min(stream_step_size(problem, n_before), server.step_limit)
    return schedule(server.round_index + 1)


def _answered(weights, active, participation):
    """What answers of the weight that was expected to, at most 1.

    Few who answer in place of many are noisier, and are not to count for more: small clients that
    answered alone drove a stream off.
    """
    if len(active) == len(weights):
        return 1.0
    return min(1.0, float(weights[active].sum() / (participation * weights.sum())))


def _round(problem, memory, here, batch, active, schedule, workers):
    """Round of FedEM on the rows of a batch.

    Parameters
    ----------
    problem, memory, schedule, workers
        As for ``stream``.
    here : ndarray of int
        Positions in the memory of the clients with rows in the batch.
    batch : Federation
    active : ndarray of int
        Which of these clients take part.

    Returns
    -------
    memory : Memory
    row : dict
        Of the history, without the epoch.
    """
    server, controls = memory.server, memory.states.controls
    answered = _answered(batch.weights, active, problem.participation)
    here, batch = here[active], _of_those(batch, active)
    problem = _problem_of_batch(problem, memory.model, batch, n_known=len(memory.totals))
    step_size = answered * _step_to_ask(problem, server, schedule, memory.n_samples)
    states = fedem.ClientStates(controls[here])
    server, row = _both_halves(problem, server, states, step_size, workers)
    controls[here] = states.controls
    if schedule is None:
        before = memory.server.statistics if memory.average is None else memory.average
        rate = averaging_rate(batch.n_samples, memory.n_samples)
        memory = memory._replace(average=before + rate * (server.statistics - before))
    return memory._replace(server=server), row


def _both_halves(problem, server, states, step_size, workers):
    """Server's state and row of the history after both halves; ``states`` are overwritten."""
    model, federation = problem.model, problem.federation
    clients = np.arange(federation.n_clients)
    received = client_round(fedem, problem, server, states, clients, workers)
    field = mean_field(problem, server, received)
    field, before, n_numbers = model.stream_field(
        federation, server.parameters, server.statistics, field, step_size
    )
    server, info = server_half(problem, server, received, step_size, field)
    criterion = model.criterion_value(received.log_likelihood / federation.weights.sum(), before)
    # With Ŝ goes what the model has learnt so far: clients may have been away.
    n_downlink = model.downlink_numbers(federation, clients, before) + n_numbers * len(clients)
    row = {
        "round": server.round_index,
        "field_sq_norm": info.field_sq_norm,
        "step_size": info.step_taken,
        "n_active": len(clients),
        "uplink_bits": 8 * received.n_bytes + FLOAT_BITS * n_numbers * len(clients),
        "downlink_bits": FLOAT_BITS * n_downlink,
        "safeguarded": info.safeguarded,
        **evaluation_columns(model, criterion),
    }
    return server, row


def _round_of_nobody(memory):
    """Memory and row of the history, without the epoch, after a round that changes nothing."""
    server = memory.server._replace(round_index=memory.server.round_index + 1)
    row = {
        "round": server.round_index,
        "field_sq_norm": np.nan,
        "step_size": 0.0,
        "n_active": 0,
        "uplink_bits": 0,
        "downlink_bits": 0,
        "safeguarded": 0,
        **evaluation_columns(memory.model),
    }
    return memory._replace(server=server), row
