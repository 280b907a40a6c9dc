"""Training of clients' own parameters by minibatch gradient descent, several clients at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _random
from .._federation import read
from .._typing import FloatArray, IntArray
from ..models._network import Network
from ..priors import Local, Shared
from .base import ClientGroup, Task

Array = NDArray[Any]

# Number of features in the minibatches of clients that are trained together.
_TOGETHER = 2**20
# Rows of clients are padded with rows of weight 0, by at most one of this many.
_PADDED = 8
# Number of features in a block of rows whose losses are computed at once.
_BLOCK = 2**21


def n_steps(task: Task, lengths: IntArray) -> IntArray:
    """Number of steps in a round of clients with these numbers of rows."""
    size = lengths if task.batch_size is None else task.batch_size
    return task.model.local_epochs * -(-lengths // size)


def block_rows(network: Network) -> int:
    """Number of rows in the minibatches of clients that are trained together."""
    # Stacks only pay where products are small; the others are left to threads.
    return 1 if network.has_units else max(1, _TOGETHER // network.n_activations)


def stacks(task: Task, lengths: IntArray) -> list[IntArray]:
    """Positions of clients that are trained together, from the numbers of rows of a group.

    They have the same number of steps, and minibatches of the same padded size.
    """
    if len(lengths) == 1:  # as of networks with hidden layers
        return [np.zeros(1, dtype=np.intp)]
    widths, most = _widths(task, lengths), block_rows(task.model.network)
    _, kinds = np.unique(np.stack([widths, n_steps(task, lengths)]), axis=1, return_inverse=True)
    kinds = kinds.ravel()  # numpy 2.0 returns another shape
    groups: list[IntArray] = []
    for kind in range(kinds.max(initial=-1) + 1):
        own = np.flatnonzero(kinds == kind)
        size = max(1, most // int(widths[own[0]]))
        groups += [own[start : start + size] for start in range(0, len(own), size)]
    return groups


def _widths(task: Task, lengths: IntArray) -> IntArray:
    """Number of rows to which the minibatches of clients are padded.

    It depends on the client alone, and so do the rounding errors of sums over its rows.
    """
    unit = 1 << np.maximum(np.frexp(lengths)[1] - 1 - _PADDED.bit_length() + 1, 0).astype(np.intp)
    padded = -(-lengths // unit) * unit
    return padded if task.batch_size is None else np.minimum(padded, task.batch_size)


def train(
    task: Task,
    round_index: int,
    group: ClientGroup,
    shared: Shared,
    local: Local,
    correction: Array | float,
) -> tuple[Local, FloatArray]:
    """Own parameters after a round's gradient steps, and each client's mean loss during them.

    Parameters
    ----------
    task : Task
        Of a ``HierarchicalModel``.
    round_index : int
    group : ClientGroup
        Clients of one of the ``stacks``.
    shared : Shared
        What the server broadcast.
    local : Local
        Own parameters at the start of the round.
    correction : ndarray of shape (n, n_parameters), or 0.0
        c - c_s of SCAFFOLD.

    Returns
    -------
    local : Local
    losses : ndarray of shape (n,)
    """
    model, total, step = task.model, np.zeros(len(group.clients)), 0
    network = model.network
    for rows, targets, weights in _minibatches(task, round_index, group):
        step += 1
        uniforms = gate_uniforms(task, round_index, group, shared, step)
        parameters, gates = model.prior.relaxed(shared, local, uniforms)
        dtype = parameters.dtype
        data = rows.astype(dtype, copy=False), targets, weights.astype(dtype, copy=False)
        noise = (_noise(task, round_index, group, step),) if network.is_random else ()
        losses, gradient = network.loss_and_gradient(parameters, *data, *noise)
        local = model.prior.step(shared, local, gates, gradient, correction, model.learning_rate)
        total += losses
    return local, total / step


def _noise(task: Task, round_index: int, group: ClientGroup, step: int) -> FloatArray:
    """Numbers from which random networks draw in a step, (n,)."""
    address = task.seed, _random.DROPOUT, round_index, group.ids
    return _random.client_uniforms(*address, 1, kind=step)[:, 0]


def gate_uniforms(
    task: Task, round_index: int, group: ClientGroup, shared: Shared, step: int
) -> FloatArray | None:
    """Uniform numbers for the gates of a step, (n, n_groups); step 0 is the end of the round."""
    if not task.model.prior.gated:
        return None
    size = len(shared.gates.alive)
    return _random.client_uniforms(
        task.seed, _random.GATES, round_index, group.ids, size, kind=step
    )


def _minibatches(
    task: Task, round_index: int, group: ClientGroup
) -> Iterator[tuple[Array, Array, FloatArray]]:
    """Yield rows (n, width, n_features), targets, and weights (n, width) that sum to 1."""
    federation, clients = group.federation, group.clients
    lengths = federation.lengths_of(clients)
    n, width, steps = len(clients), int(_widths(task, lengths)[0]), int(n_steps(task, lengths)[0])
    size = steps // task.model.local_epochs * width
    order = _orders(task, round_index, group.ids, lengths, size)
    present = np.arange(order.shape[2]) < lengths[:, None]
    positions = federation.offsets[clients][:, None, None] + order
    weights = np.broadcast_to(present[:, None], order.shape).astype(np.float64)
    if federation.sample_weight is not None:
        weights *= federation.sample_weight.values[positions]
    positions = positions.reshape(n, steps, width)
    weights = weights.reshape(n, steps, width)
    weights /= weights.sum(axis=2, keepdims=True)
    for step in range(steps):
        rows, targets = federation.rows.take(positions[:, step].ravel())
        targets = targets.reshape(n, width, *targets.shape[1:])
        yield rows.reshape(n, width, -1), targets, weights[:, step]


def _orders(task: Task, round_index: int, ids: IntArray, lengths: IntArray, size: int) -> IntArray:
    """Rows of each client in the order of each epoch, and zeros: shape (n, n_epochs, size)."""
    n_epochs = task.model.local_epochs
    orders = np.zeros((len(ids), n_epochs, size), dtype=np.intp)
    if task.batch_size is None:
        for own, length in zip(orders, lengths.tolist(), strict=True):
            own[:, :length] = np.arange(length)
        return orders
    keys = _random.ragged_client_uniforms(
        task.seed, _random.MINIBATCH, round_index, ids, n_epochs * lengths
    )
    start = 0
    for own, length in zip(orders, lengths.tolist(), strict=True):
        stop = start + n_epochs * length
        own[:, :length] = keys[start:stop].reshape(n_epochs, length).argsort(axis=1)
        start = stop
    return orders


def mean_losses(task: Task, group: ClientGroup, parameters: Array) -> FloatArray:
    """Mean loss of all rows of each client for some models, of shape (n, n_models).

    Parameters
    ----------
    task : Task
    group : ClientGroup
    parameters : ndarray of shape (n_models, n_parameters)
    """
    network, federation = task.model.network, group.federation
    size = max(1, _BLOCK // network.n_activations)
    losses = np.zeros((len(group.clients), len(parameters)))
    for k, client in enumerate(group.clients):
        own = np.array([client])
        total = federation.totals_of(own)[0]
        for _, (rows, targets), (length,), weights in read(federation, own, size):
            rows = np.asarray(rows, dtype=parameters.dtype)
            weights = (np.ones(length) if weights is None else weights) / total
            weights = weights.astype(rows.dtype)
            losses[k] += [network.losses(own, rows, targets, weights) for own in parameters]
    return losses
