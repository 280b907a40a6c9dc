"""Streams: each batch of rows is read once, in a round of its own (the online case of A7).

Rounds are those of FedEM. What differs is who is there: the federation consists of the clients with
rows in the batch, and V, which covers all known clients, speaks for the others, as in a round in
which they take no part.
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
from .._rows import take_rows
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
    if batch_size is None or lengths.max() <= batch_size:
        yield np.arange(federation.n_clients), federation
        return
    for first in range(0, int(lengths.max()), batch_size):
        clients = np.flatnonzero(lengths > first)
        own = np.minimum(lengths[clients] - first, batch_size)
        chosen, offsets = positions_of(starts[clients] + first, own), offsets_of(own)
        weights = federation.sample_weight
        if weights is not None:
            weights = sample_weight_of(weights.values[chosen], offsets)
        rows, own_weights = take_rows(federation.rows, chosen), federation.weights[clients]
        yield clients, Federation(rows, offsets, own_weights, weights)


def stream(problem, memory, at, schedule, workers, client_weights):
    """Run a round of FedEM on each batch of a call.

    Parameters
    ----------
    problem : Problem
        That of the rows of the call.
    memory : Memory
        That of all known clients, which include those of the call.
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
    server, model, n_samples = memory.server, memory.model, memory.n_samples
    # Of all known clients, by their positions in the memory.
    controls, totals = memory.states.controls.copy(), memory.totals.astype(np.float64)
    mass, n_expectations, history, trace = totals.sum(), 0, History(), []
    for clients, batch in batches(problem.federation, problem.batch_size):
        here, own = at[clients], batch.totals
        totals[here] += own
        if client_weights == "uniform":
            weights = np.full(len(here), 1 / len(totals))
        else:
            server = _reweighed(server, mass, own, controls[here])
            mass += own.sum()
            weights = totals[here] / mass
        now = _problem_of_batch(problem, model, batch, weights, n_known=len(totals))
        step_size = _step_to_ask(now, server, schedule, n_samples)
        n_samples += batch.n_samples
        states = fedem.ClientStates(controls[here])
        server, model, n_read, row = _round(now, server, states, step_size, workers)
        controls[here] = states.controls
        n_expectations += n_read
        history.append(epoch=n_expectations / problem.federation.n_samples, **row)
        trace.append(model.trace(server.parameters))
    memory = memory._replace(
        totals=totals,
        weights=weights_of_clients(totals, client_weights),
        n_samples=n_samples,
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


def _problem_of_batch(problem, model, batch, weights, n_known):
    """Problem of one batch: of all known clients, those with rows in it have these weights."""
    return problem._replace(
        model=model,
        federation=batch._replace(weights=weights),
        batch_size=None,
        lasting_noise=True,
        presence=1.0 if len(weights) == n_known else float(weights.sum()),
    )


def _step_to_ask(problem, server, schedule, n_samples):
    """γ of the next round, by the schedule or by the share of its rows in all rows so far."""
    if schedule is None:
        return min(stream_step_size(problem, n_samples), server.step_limit)
    return schedule(server.round_index + 1)


def _round(problem, server, states, step_size, workers):
    """Round of FedEM on the rows of a batch, about which the model may be told anew.

    The active clients' entries in ``states`` are overwritten.

    Parameters
    ----------
    problem : Problem
        That of the batch.
    server : ServerState
    states : ClientStates
        Of the clients of the batch.
    step_size : float
        γ.
    workers : Workers

    Returns
    -------
    server : ServerState
    model : Model
    n_expectations : int
    row : dict
        Of the history, without the epoch.
    """
    model, federation = problem.model, problem.federation
    active = active_clients(problem, server.round_index)
    received = client_round(fedem, problem, server, states, active, workers)
    field = mean_field(problem, server, received)
    of_batch, before, n_numbers = model.with_batch_constants(
        federation, active, server.parameters, server.statistics, field
    )
    server, info = server_half(problem._replace(model=of_batch), server, received, step_size)
    model = of_batch.after_step(info.step_taken)
    criterion = np.nan
    if len(active):
        mean = received.log_likelihood / federation.weights[active].sum()
        criterion = model.evaluated(mean, before)
    # What the model learnt has to go back to the clients.
    n_downlink = model.downlink_numbers(federation, active) + n_numbers * len(active)
    row = {
        "round": server.round_index,
        "field_sq_norm": info.field_sq_norm,
        "step_size": info.step_taken,
        "n_active": len(active),
        "uplink_bits": 8 * received.n_bytes + FLOAT_BITS * n_numbers * len(active),
        "downlink_bits": FLOAT_BITS * n_downlink,
        "safeguarded": info.safeguarded,
        **evaluation_columns(model, criterion),
    }
    return server, model, received.n_expectations, row
