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
from ._memory import in_setting
from .step_size import stream_step_size


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
    memory = in_setting(memory, problem, "stream")
    server, model, federation = memory.server, memory.model, problem.federation
    # Of all known clients, by their positions in the memory.
    controls, totals = memory.states.controls, memory.totals
    mass, n_expectations, history, trace = totals.sum(), 0, History(), []
    for clients, batch in batches(federation, problem.batch_size):
        here, own = at[clients], batch.totals
        totals[here] += own
        if client_weights == "uniform":
            weights = np.full(len(here), 1 / len(totals))
        else:
            server = _reweighed(server, mass, own, controls[here])
            mass += own.sum()
            weights = totals[here] / mass
        batch = batch._replace(weights=weights)
        active = active_clients(problem._replace(federation=batch), server.round_index)
        if len(active):
            here, batch = here[active], _of_those(batch, active)
            now = _problem_of_batch(problem, model, batch, n_known=len(totals))
            n_before = memory.n_samples + n_expectations
            step_size = _step_to_ask(now, server, schedule, n_before)
            step_size *= _answered(weights, active, problem.participation)
            states = fedem.ClientStates(controls[here])
            server, model, row = _round(now, server, states, step_size, workers)
            controls[here] = states.controls
            n_expectations += batch.n_samples
        else:
            server, row = _round_of_nobody(server, model)
        history.append(epoch=n_expectations / federation.n_samples, **row)
        trace.append(model.trace(server.parameters))
    memory = memory._replace(
        totals=totals,
        weights=weights_of_clients(totals, client_weights),
        n_samples=memory.n_samples + n_expectations,
        model=model,
        server=server,
        states=fedem.ClientStates(controls),
        gains=None,
    )
    return memory, history, trace


def _reweighed(server, mass, own, controls):
    """Server with V = Σ_i w_i V_i of the weights that follow when some clients have more rows.

    All known clients had rows of weight ``mass``; these have ``own`` more.
    """
    control = mass * server.control + own @ controls
    return server._replace(control=control / (mass + own.sum()))


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


def _round(problem, server, states, step_size, workers):
    """Round of FedEM on the rows of a batch, about which the model may be told anew.

    Parameters
    ----------
    problem : Problem
        That of those who take part.
    server : ServerState
    states : ClientStates
        Of these clients; overwritten.
    step_size : float
        γ.
    workers : Workers

    Returns
    -------
    server : ServerState
    model : Model
    row : dict
        Of the history, without the epoch.
    """
    model, federation = problem.model, problem.federation
    clients = np.arange(federation.n_clients)
    received = client_round(fedem, problem, server, states, clients, workers)
    field = mean_field(problem, server, received)
    of_batch, before, n_numbers = model.with_batch_constants(
        federation,
        server.parameters,
        server.statistics,
        field,
        step_size,
        exact=problem.exact,
    )
    server, info = server_half(problem._replace(model=of_batch), server, received, step_size)
    model = of_batch.after_step(info.step_taken)
    criterion = model.evaluated(received.log_likelihood / federation.weights.sum(), before)
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
    return server, model, row


def _round_of_nobody(server, model):
    """Server and row of the history, without the epoch, after a round that changes nothing."""
    row = {
        "round": server.round_index + 1,
        "field_sq_norm": np.nan,
        "step_size": 0.0,
        "n_active": 0,
        "uplink_bits": 0,
        "downlink_bits": 0,
        "safeguarded": 0,
        **evaluation_columns(model),
    }
    return server._replace(round_index=row["round"]), row
