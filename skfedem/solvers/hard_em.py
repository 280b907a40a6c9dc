"""Hard EM: FedAvg, FedProx, SCAFFOLD, medians, ensembles and FedSparse.

Clients train parameters of their own under a prior whose parameters the server broadcasts (the
E-step), and the server fits the prior to what they found (the M-step): C. Louizos, M. Reisser, J.
Soriaga and M. Welling, "An Expectation-Maximization perspective on federated learning", 2021.

Both halves of a round are pure functions; the clients' states are replaced when the server's half
is over.
"""

from __future__ import annotations

from functools import partial
from math import nan
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .. import _random
from .._federation import Federation
from .._optimizers import OPTIMIZERS, Moments, no_moments
from .._parallel import Workers
from .._typing import BoolArray, FloatArray, IntArray, Participation
from ..compression import Compressor
from ..compression._survivors import size_of_dense
from ..participation import draw_active
from ..priors import Prior, Shared, Update
from ._local_training import Training, gate_uniforms, mean_losses, stacks, train

Array = NDArray[Any]


class Task(NamedTuple):
    """What clients and server agree on for a run.

    Attributes
    ----------
    federation : Federation
    training : Training
    prior : Prior
    server_optimizer : {"average", "sgd", "adam", "adamax"}
    server_learning_rate, server_momentum : float
    control_variates : bool
        Whether gradients are corrected by SCAFFOLD's c - c_s.
    participation : float or int
        Probability that a client takes part in a round, or the number of clients that do.
    compressor : Compressor or None
        Operator for the updates; None to send all numbers.
    control_step : float
        Step size α of FedEM's memories V_i of the updates, with which differences from them are
        sent; 0 without them.
    keep_local : bool
        Whether the clients' own models are kept.
    message_type : dtype
        Type of the numbers in uncompressed messages.
    """

    federation: Federation
    training: Training
    prior: Prior
    server_optimizer: str = "average"
    server_learning_rate: float = 1.0
    server_momentum: float = 0.9
    control_variates: bool = False
    participation: Participation = 1.0
    compressor: Compressor | None = None
    control_step: float = 0.0
    keep_local: bool = True
    message_type: DTypeLike = np.float32

    @property
    def has_controls(self) -> bool:
        """Whether clients keep control variates: c_s of SCAFFOLD, or V_i of FedEM."""
        return self.control_variates or self.control_step > 0


class ServerState(NamedTuple):
    """State of the server: Θ, the memory of its optimizer, and c or V, of shape (d,) or (0,)."""

    round_index: int
    shared: Shared
    moments: Moments
    control: FloatArray


class ClientStates(NamedTuple):
    """States of clients.

    Attributes
    ----------
    parameters : ndarray of shape (n_clients, d), or (n_clients, 0)
        Own model of each client that took part in a round; nothing without ``keep_local``.
    took_part : ndarray of bool, shape (n_clients,)
    controls : ndarray of shape (n_clients, d), or (n_clients, 0)
        c_s or V_i.
    """

    parameters: Array
    took_part: BoolArray
    controls: FloatArray


class Reply(NamedTuple):
    """What some clients send, and what is recorded of their training.

    Attributes
    ----------
    update : Update
        Updates as decoded by the server.
    control_changes : ndarray of shape (n, d), or (n, 0)
        Changes of c_s or V_i, which the server can compute from the updates.
    losses : ndarray of shape (n,)
        Mean loss during training.
    n_bytes : ndarray of int, shape (n,)
    """

    update: Update
    control_changes: FloatArray
    losses: FloatArray
    n_bytes: IntArray


class RoundInfo(NamedTuple):
    """Summary of a round; means over the clients that took part are NaN if there were none."""

    n_active: int
    n_rows: int
    loss: float
    gate_disagreement: float
    uplink_bytes: int
    downlink_bytes: int


def initial_server(task: Task, centres: FloatArray) -> ServerState:
    """State of the server before the first round, from centres of shape (n_models, d)."""
    shared = _rounded(task, task.prior.initial(centres))
    n_controls = centres.shape[1] if task.has_controls else 0
    return ServerState(0, shared, no_moments(centres.shape), np.zeros(n_controls))


def initial_states(task: Task, dtype: DTypeLike) -> ClientStates:
    """States of clients that have not taken part in a round."""
    n, d = task.federation.n_clients, task.training.model.n_parameters
    return ClientStates(
        np.zeros((n, d if task.keep_local else 0), dtype),
        np.zeros(n, bool),
        np.zeros((n, d if task.has_controls else 0)),
    )


def active_clients(task: Task, round_index: int) -> IntArray:
    """Clients that take part in a round, in increasing order."""
    source = _random.generator(task.training.seed, _random.PARTICIPATION, round_index)
    return draw_active(source, task.federation.n_clients, task.participation)


def one_round(
    task: Task, server: ServerState, states: ClientStates, active: IntArray, workers: Workers
) -> tuple[ServerState, ClientStates, RoundInfo]:
    """Both halves of a round; returns the new states, and changes those of the clients in place.

    A round without clients only advances the number of the round.
    """
    if not len(active):
        return server._replace(round_index=server.round_index + 1), states, _no_clients()
    broadcast = broadcast_of(task, server, states.parameters.dtype)
    groups = stacks(task.training, task.federation, active)
    half = partial(_half_of_group, task, broadcast, active, states)
    replies = workers.map(half, groups, "round")
    order = np.argsort(np.concatenate(groups))
    reply: Reply = _joined([reply for reply, _ in replies], order)
    own: ClientStates = _joined([own for _, own in replies], order)
    n_bytes = _downlink_bytes(task, server) * len(active)
    after = server_half(task, server, reply, active)
    for field, new in zip(states, own, strict=True):
        field[active] = new
    return after, states, _info(task, reply, active, n_bytes)


def _half_of_group(
    task: Task, broadcast: ServerState, active: IntArray, states: ClientStates, group: IntArray
) -> tuple[Reply, ClientStates]:
    clients = active[group]
    own = ClientStates(
        states.parameters[clients], states.took_part[clients], states.controls[clients]
    )
    return client_half(task, broadcast, clients, own)


def broadcast_of(task: Task, server: ServerState, dtype: DTypeLike) -> ServerState:
    """What the server sends: its state in the types of messages and of computations."""
    weights = server.shared.weights.astype(dtype)
    shared = server.shared._replace(weights=weights)
    return server._replace(shared=shared, control=_as_sent(task, server.control))


def client_half(
    task: Task, broadcast: ServerState, clients: IntArray, states: ClientStates
) -> tuple[Reply, ClientStates]:
    """The half of a round of some clients that are trained together.

    Parameters
    ----------
    task : Task
    broadcast : ServerState
    clients : ndarray of int, shape (n,)
        Increasing.
    states : ClientStates
        States of these clients.

    Returns
    -------
    reply : Reply
    states : ClientStates
        Their new states.
    """
    training, prior, shared = task.training, task.prior, broadcast.shared
    correction: Array | float = 0.0
    if task.control_variates:
        correction = (broadcast.control - states.controls).astype(shared.weights.dtype)
    models = np.zeros(len(clients), dtype=np.intp)
    if len(shared.weights) > 1:
        models = mean_losses(training, task.federation, clients, shared.weights).argmin(axis=1)
    where = training, prior, task.federation, broadcast.round_index, clients, shared
    with np.errstate(over="ignore", invalid="ignore"):  # refused below
        start = prior.start(shared, models, task.federation.totals_of(clients))
        local, losses = train(*where, start, correction)
        uniforms = gate_uniforms(training, prior, shared, broadcast.round_index, clients, 0)
        update = prior.update(shared, local, uniforms)
        values = update.differences.astype(np.float64)
        if task.control_step > 0:
            values -= states.controls
        values = values if task.compressor else _as_sent(task, values)
    _check_finite(values, broadcast.round_index, clients)
    shares = None if update.shares is None else _as_sent(task, update.shares)
    update = update._replace(differences=values, shares=shares)
    n_bytes = prior.uplink_bytes(shared, update)
    if task.compressor:
        update, n_bytes = _compressed(task, broadcast.round_index, clients, update, n_bytes)
    changes = states.controls  # without numbers, unless there are control variates
    if task.control_variates:
        changes = _scaffold_changes(task, broadcast.control, clients, update)
    elif task.control_step > 0:
        changes = task.control_step * update.differences
    kept = prior.own_parameters(shared, local, update) if task.keep_local else states.parameters
    after = ClientStates(kept, np.ones(len(clients), bool), states.controls + changes)
    return Reply(update, changes, losses, n_bytes), after


def _scaffold_changes(
    task: Task, control: FloatArray, clients: IntArray, update: Update
) -> FloatArray:
    """c_s⁺ - c_s = (w - φ_s) / (K η) - c of option II, where parameters are sent."""
    n_steps = task.training.n_steps(task.federation.lengths_of(clients))
    travelled = (n_steps * task.training.learning_rate)[:, None]
    changes = -update.differences / travelled - control
    return changes if update.survivors is None else np.where(update.survivors, changes, 0)


def _as_sent(task: Task, numbers: FloatArray) -> FloatArray:
    """Numbers as an uncompressed message holds them."""
    return numbers.astype(task.message_type).astype(np.float64)


def _compressed(
    task: Task, round_index: int, clients: IntArray, update: Update, n_bytes: IntArray
) -> tuple[Update, IntArray]:
    """Update with compressed differences, and the numbers of bytes."""
    assert task.compressor is not None  # as the caller knows
    values, survivors = update.differences, update.survivors
    sent = np.ones(values.shape, bool) if survivors is None else survivors
    address = task.training.seed, _random.COMPRESSION, round_index
    uniforms = _random.client_uniforms(*address, clients, values.shape[1])
    lengths = sent.sum(axis=1)
    quantized, n_compressed = task.compressor.send(values[sent], uniforms[sent], lengths)
    differences = np.zeros(values.shape)
    differences[sent] = quantized
    others = n_bytes - size_of_dense(1) * lengths  # which groups survive
    return update._replace(differences=differences), others + n_compressed


def server_half(task: Task, server: ServerState, reply: Reply, active: IntArray) -> ServerState:
    """The server's half of a round: Θ, and c or V.

    Parameters
    ----------
    task : Task
    server : ServerState
    reply : Reply
        Of all clients that took part.
    active : ndarray of int, shape (n,)
        Their indices; at least one.
    """
    prior, shared, weights = task.prior, server.shared, task.federation.weights[active]
    remembered = server.control if task.control_step > 0 else 0.0
    moments, centres = server.moments, shared.weights
    if task.server_optimizer == "average" and task.control_step == 0:
        centres = prior.closed_form(shared, reply.update, weights)
    else:
        direction = remembered + prior.direction(shared, reply.update, weights)
        if task.server_optimizer != "average":
            direction, moments = OPTIMIZERS[task.server_optimizer](
                moments, direction, task.server_learning_rate, task.server_momentum
            )
        centres = centres + direction
    control = server.control
    if task.has_controls:
        control = control + weights @ reply.control_changes
    with np.errstate(over="ignore"):  # refused below
        after = _rounded(task, prior.after_step(shared, reply.update, weights, centres))
    _check_finite(after.weights, server.round_index)
    return ServerState(server.round_index + 1, after, moments, control)


def _rounded(task: Task, shared: Shared) -> Shared:
    """Θ with centres that a message can hold, so that clients start from those of the server."""
    return shared._replace(weights=_as_sent(task, shared.weights))


def _downlink_bytes(task: Task, server: ServerState) -> int:
    """Number of bytes of the broadcast to a client."""
    n_bytes = task.prior.downlink_bytes(server.shared)
    if task.control_variates:
        sent = task.prior.sent(server.shared)
        n_bytes += size_of_dense(len(server.control) if sent is None else int(sent.sum()))
    return n_bytes


def _check_finite(numbers: FloatArray, round_index: int, clients: IntArray | None = None) -> None:
    """Raise if the parameters of a client, or the server's, are not finite."""
    bad = ~np.isfinite(numbers).all(axis=1)
    if bad.any():
        whose = "server" if clients is None else f"client at position {clients[np.argmax(bad)]}"
        raise ValueError(
            f"Expected finite parameters, got NaN or inf for the {whose} in round "
            f"{round_index + 1}: its training diverged. Use a smaller learning_rate_init, and "
            "standardise the features."
        )


def _joined(parts: list[Any], order: IntArray) -> Any:
    """Concatenate NamedTuples of arrays, whose first axis counts clients, and reorder these."""
    first = parts[0]
    if first is None:
        return None
    if isinstance(first, np.ndarray):
        return np.concatenate(parts)[order]
    return type(first)(*(_joined([*field], order) for field in zip(*parts, strict=True)))


def _info(task: Task, reply: Reply, active: IntArray, n_bytes_down: int) -> RoundInfo:
    weights = task.federation.weights[active]
    shares = weights / weights.sum()
    apart = reply.update.disagreement
    return RoundInfo(
        n_active=len(active),
        n_rows=task.training.local_epochs * int(task.federation.lengths_of(active).sum()),
        loss=float(shares @ reply.losses),
        gate_disagreement=nan if apart is None else float(shares @ apart),
        uplink_bytes=int(reply.n_bytes.sum()),
        downlink_bytes=n_bytes_down,
    )


def _no_clients() -> RoundInfo:
    return RoundInfo(0, 0, nan, nan, 0, 0)
