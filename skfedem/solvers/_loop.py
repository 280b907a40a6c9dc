"""The one round loop: draws who takes part, runs both halves of a round, traces, stops."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .. import _random
from .._federation import runs
from .._history import History
from ..participation import draw_active
from ._base import Broadcast, Received, ServerState, all_rows, server_half
from ._stopping import Exact, Sweeps

_FLOAT_BITS = 64


class Options(NamedTuple):
    """How to step, when to stop, and what to look at on the way.

    ``step_size`` maps a round, counted from 1, to γ; ``cautious`` steps are multiplied by the
    server's caution. ``eval_every`` is a number of rounds, "auto" for once an epoch, or None.
    """

    step_size: Callable[[int], float]
    cautious: bool = False
    control_init: str = "field"
    max_iter: int | None = 100
    max_epochs: float | None = None
    tol: float = 1e-3
    eval_every: int | str | None = "auto"


class Run(NamedTuple):
    """Outcome of a run.

    ``log_likelihoods`` are those that convergence was judged by on exact rounds, else those
    evaluated (at least the last); nats per row. ``trace`` has ``model.trace(parameters)`` for each
    row of the history.
    """

    server: ServerState
    states: NamedTuple
    history: dict
    trace: np.ndarray
    log_likelihoods: list
    converged: bool


def run(solver, problem, start, options, workers, report):
    """Run a solver until it converges or its rounds or epochs are used up.

    Parameters
    ----------
    solver : module
        ``fedem``, ``vr_fedem``, or another with their two functions.
    problem : Problem
    start : Start
    options : Options
    workers : Workers
    report : callable
        Called with the history's last row after each round.

    Returns
    -------
    run : Run
    """
    model = problem.model
    server, states, first_row = initialise(solver, problem, start, options, workers)
    history, trace = History(), [model.trace(server.parameters)]
    history.append(**first_row)
    if problem.exact:
        stopping = Exact(options.tol)
    else:
        stopping = Sweeps(options.tol, model, problem.federation.n_clients, server)
    watched = options.eval_every is not None
    epoch, converged = first_row["epoch"], False

    while not converged and not used_up(server.round_index, epoch, options):
        before, last_epoch = server, epoch
        step_size = options.step_size(server.round_index + 1)
        if options.cautious:
            step_size *= server.caution
        active = active_clients(problem, server.round_index)
        received = client_round(solver, problem, server, states, active, workers)
        server, info = server_half(problem, server, received, step_size)
        epoch += received.n_expectations / problem.federation.n_samples

        if problem.exact:
            # The E-steps of this round told what the row before lacks.
            log_likelihood = model.log_likelihood(received.log_likelihood, before.parameters)
            if watched:
                history.update(-1, **evaluated(log_likelihood, info.field))
            converged = stopping.converged(log_likelihood)
        else:
            converged = stopping.converged(server, info.step_taken, received.n_active)
        history.append(
            round=server.round_index,
            epoch=epoch,
            log_likelihood=np.nan,
            field_sq_norm=info.field @ info.field,
            mean_field_sq_norm=np.nan,
            step_size=step_size,
            n_active=received.n_active,
            uplink_bits=8 * received.n_bytes,
            downlink_bits=_FLOAT_BITS * model.n_statistics * received.n_active,
            safeguarded=info.safeguarded,
        )
        trace.append(model.trace(server.parameters))
        over = converged or used_up(server.round_index, epoch, options)
        if watched and (over or evaluation_due(problem, server, last_epoch, epoch, options)):
            history.update(-1, **evaluated(*evaluate(problem, server, workers)))
        row = history.row(-1)
        report({**row, "log_likelihood": log_likelihood} if problem.exact else row)

    if problem.exact:
        log_likelihoods = stopping.log_likelihoods
    else:
        log_likelihoods = [value for value in history.column("log_likelihood") if value == value]
    if not log_likelihoods or not (watched or problem.exact):
        log_likelihoods = [evaluate(problem, server, workers)[0]]
    return Run(server, states, history.as_dict(), np.array(trace), log_likelihoods, converged)


def initialise(solver, problem, start, options, workers):
    """Server and client states before the first round, and row 0 of the history."""
    model, federation = problem.model, problem.federation
    controls = np.zeros((federation.n_clients, model.n_statistics))
    server = ServerState(0, start.statistics, start.parameters, np.zeros(model.n_statistics))
    nothing = np.nan, np.full(1, np.nan)
    seen, uplink_bits, epoch = nothing, start.uplink_bits, start.n_passes
    if not problem.exact:
        # Exact rounds need neither: their field holds no V, and it is h_i(Ŝ) after the first.
        if options.control_init == "field":
            seen = evaluate(problem, server, workers, controls)
            known = model.known_field(server.statistics, server.parameters)
            server = server._replace(control=seen[1] - known)
            uplink_bits += _FLOAT_BITS * model.n_statistics * federation.n_clients
            epoch += 1
        elif options.eval_every is not None:
            seen = evaluate(problem, server, workers)
    row = {
        "round": 0,
        "epoch": float(epoch),
        "field_sq_norm": np.nan,
        "step_size": np.nan,
        "n_active": 0,
        "uplink_bits": uplink_bits,
        "downlink_bits": start.downlink_bits,
        "safeguarded": 0,
        **evaluated(*(nothing if options.eval_every is None else seen)),
    }
    return server, solver.init(problem, controls), row


def active_clients(problem, round_index):
    """Indices of the clients that take part in a round, increasing."""
    if problem.participation == 1:
        return np.arange(problem.federation.n_clients)
    generator = _random.generator(problem.seed, _random.PARTICIPATION, round_index)
    return draw_active(generator, problem.federation.n_clients, problem.participation)


def client_round(solver, problem, server, states, active, workers):
    """Run the clients' half of a round, group by group, and add their messages up.

    The rows of ``states`` that belong to active clients are overwritten.
    """
    broadcast = Broadcast(server.round_index, server.statistics, server.parameters.natural)
    if problem.batch_size is None:
        n_rows = problem.federation.offsets[active + 1] - problem.federation.offsets[active]
    else:
        n_rows = np.full(len(active), problem.batch_size)

    def half(run):
        clients = active[run]
        own = _as_slice(clients)
        mine = type(states)(*(kept[own] for kept in states))
        message, mine = solver.client_half(problem, broadcast, clients, mine)
        for kept, new in zip(states, mine, strict=True):
            kept[own] = new
        weights = problem.federation.weights[clients]
        return Received(
            innovation=weights @ message.innovation,
            n_active=len(clients),
            n_bytes=message.n_bytes,
            n_expectations=message.n_expectations,
            log_likelihood=0.0
            if message.log_likelihood is None
            else weights @ message.log_likelihood,
        )

    parts = workers.map(half, runs(n_rows, problem.model.block_rows), "round")
    return _total(parts, problem.model.n_statistics)


def evaluate(problem, server, workers, controls=None):
    """Log-likelihood (nats per row) and mean field h(Ŝ) over all rows of all clients.

    ``controls``, shape (n_clients, n_statistics), is overwritten with the clients' fields h_i(Ŝ).
    """
    model, federation = problem.model, problem.federation
    every = np.arange(federation.n_clients)

    def part(run):
        estimate = all_rows(problem, server.parameters.natural, every[run])
        fields = estimate.statistics - server.statistics
        if controls is not None:
            controls[run] = fields
        weights = federation.weights[run]
        return Received(weights @ fields, log_likelihood=weights @ estimate.log_likelihood)

    parts = workers.map(part, runs(federation.lengths, model.block_rows), "evaluation")
    total = _total(parts, model.n_statistics)
    log_likelihood = model.log_likelihood(total.log_likelihood, server.parameters)
    known = model.known_field(server.statistics, server.parameters)
    return log_likelihood, total.innovation + known


def evaluated(log_likelihood, mean_field):
    """Columns of the history that an evaluation fills."""
    return {"log_likelihood": log_likelihood, "mean_field_sq_norm": mean_field @ mean_field}


def evaluation_due(problem, server, last_epoch, epoch, options):
    """Whether this row of the history wants an evaluation of its own."""
    if problem.exact:
        return False
    if options.eval_every == "auto":
        return int(epoch) > int(last_epoch)
    return server.round_index % options.eval_every == 0


def used_up(n_rounds, epoch, options):
    """Whether the rounds or the epochs allowed are used up."""
    return (options.max_iter is not None and n_rounds >= options.max_iter) or (
        options.max_epochs is not None and epoch >= options.max_epochs
    )


def _as_slice(clients):
    """Neighbouring clients as a slice, so that their rows are read without a copy."""
    first, last = int(clients[0]), int(clients[-1])
    return slice(first, last + 1) if last - first + 1 == len(clients) else clients


def _total(parts, n_statistics):
    """Sum of what groups of clients sent, in client order."""
    total = Received(innovation=np.zeros(n_statistics))
    for part in parts:
        total = Received(*(a + b for a, b in zip(total, part, strict=True)))
    return total
