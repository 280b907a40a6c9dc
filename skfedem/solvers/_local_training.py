"""Training of clients' own parameters by minibatch gradient descent, several clients at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import _random
from .._federation import Federation
from .._rows import take_rows
from .._typing import FloatArray, IntArray
from ..priors import Local, Prior, Shared

Array = NDArray[Any]

# Number of features in the minibatches of clients that are trained together.
_TOGETHER = 2**20
# Rows of clients are padded with rows of weight 0, by at most one of this many.
_PADDED = 8
# Number of features in a block of rows whose losses are computed at once.
_BLOCK = 2**21


class Training(NamedTuple):
    """What clients do with their rows in a round.

    Attributes
    ----------
    model : Perceptron, or another model with its methods
    targets : ndarray of shape (n_samples,) or (n_samples, n_outputs)
        Targets of the federation's rows.
    local_epochs : int
        Number of passes over a client's rows.
    batch_size : int or None
        Number of rows in a minibatch; None for all rows of a client.
    learning_rate : float
    seed : int
    """

    model: Any
    targets: NDArray[Any]
    local_epochs: int
    batch_size: int | None
    learning_rate: float
    seed: int

    def n_steps(self, lengths: IntArray) -> IntArray:
        """Number of steps of clients with these numbers of rows."""
        size = lengths if self.batch_size is None else self.batch_size
        return self.local_epochs * -(-lengths // size)


def stacks(training: Training, federation: Federation, active: IntArray) -> list[IntArray]:
    """Positions in ``active`` of clients that are trained together, in increasing order.

    They have the same number of steps, and minibatches of the same padded size.
    """
    lengths = federation.lengths_of(active)
    widths, n_steps = _widths(training, lengths), training.n_steps(lengths)
    n_features = sum(training.model.sizes)
    is_shallow = len(training.model.sizes) == 2
    _, kinds = np.unique(np.stack([widths, n_steps]), axis=1, return_inverse=True)
    kinds = kinds.ravel()  # numpy 2.0 returns another shape
    groups: list[IntArray] = []
    for kind in range(kinds.max(initial=-1) + 1):
        own = np.flatnonzero(kinds == kind)
        # Stacks only pay where products are small; the others are left to threads.
        most = max(1, _TOGETHER // int(widths[own[0]] * n_features)) if is_shallow else 1
        groups += [own[start : start + most] for start in range(0, len(own), most)]
    return groups


def _widths(training: Training, lengths: IntArray) -> IntArray:
    """Number of rows to which the minibatches of clients are padded.

    It depends on the client alone, and so do the rounding errors of sums over its rows.
    """
    unit = 1 << np.maximum(np.frexp(lengths)[1] - 1 - _PADDED.bit_length() + 1, 0).astype(np.intp)
    padded = -(-lengths // unit) * unit
    return padded if training.batch_size is None else np.minimum(padded, training.batch_size)


def train(
    training: Training,
    prior: Prior,
    federation: Federation,
    round_index: int,
    clients: IntArray,
    shared: Shared,
    local: Local,
    correction: Array | float,
) -> tuple[Local, FloatArray]:
    """Own parameters after a round's gradient steps, and each client's mean loss during them.

    Parameters
    ----------
    training : Training
    prior : Prior
    federation : Federation
    round_index : int
    clients : ndarray of int, shape (n,)
        One of the groups of ``stacks``: clients, in increasing order.
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
    total, n_steps = np.zeros(len(clients)), 0
    for rows, targets, weights in _minibatches(training, federation, round_index, clients):
        n_steps += 1
        uniforms = gate_uniforms(training, prior, shared, round_index, clients, n_steps)
        parameters, gates = prior.relaxed(shared, local, uniforms)
        dtype = parameters.dtype
        losses, gradient = training.model.loss_and_gradient(
            parameters, rows.astype(dtype, copy=False), targets, weights.astype(dtype, copy=False)
        )
        local = prior.step(shared, local, gates, gradient, correction, training.learning_rate)
        total += losses
    return local, total / n_steps


def gate_uniforms(
    training: Training,
    prior: Prior,
    shared: Shared,
    round_index: int,
    clients: IntArray,
    step: int,
) -> FloatArray | None:
    """Uniform numbers for the gates of a step, (n, n_groups); step 0 is the end of the round."""
    if not prior.gated:
        return None
    size = len(shared.gates.alive)
    return _random.client_uniforms(
        training.seed, _random.GATES, round_index, clients, size, kind=step
    )


def _minibatches(
    training: Training, federation: Federation, round_index: int, clients: IntArray
) -> Iterator[tuple[Array, Array, FloatArray]]:
    """Yield rows (n, width, n_features), targets, and weights (n, width) that sum to 1."""
    lengths = federation.lengths_of(clients)
    n, width = len(clients), int(_widths(training, lengths)[0])
    n_epochs, n_steps = training.local_epochs, int(training.n_steps(lengths)[0])
    order = _orders(training, round_index, clients, lengths, n_steps // n_epochs * width)
    present = np.arange(order.shape[2]) < lengths[:, None]
    positions = federation.offsets[clients][:, None, None] + order
    weights = np.broadcast_to(present[:, None], order.shape).astype(np.float64)
    if federation.sample_weight is not None:
        weights *= federation.sample_weight.values[positions]
    positions = positions.reshape(n, n_steps, width)
    weights = weights.reshape(n, n_steps, width)
    weights /= weights.sum(axis=2, keepdims=True)
    for step in range(n_steps):
        at = positions[:, step].ravel()
        rows = take_rows(federation.rows, at).reshape(n, width, -1)
        targets = training.targets[at].reshape(n, width, *training.targets.shape[1:])
        yield rows, targets, weights[:, step]


def _orders(
    training: Training, round_index: int, clients: IntArray, lengths: IntArray, size: int
) -> IntArray:
    """Rows of each client in the order of each epoch, and zeros: shape (n, n_epochs, size)."""
    n_epochs = training.local_epochs
    orders = np.zeros((len(clients), n_epochs, size), dtype=np.intp)
    if training.batch_size is None:
        for own, length in zip(orders, lengths.tolist(), strict=True):
            own[:, :length] = np.arange(length)
        return orders
    keys = _random.ragged_client_uniforms(
        training.seed, _random.MINIBATCH, round_index, clients, n_epochs * lengths
    )
    start = 0
    for own, length in zip(orders, lengths.tolist(), strict=True):
        stop = start + n_epochs * length
        own[:, :length] = keys[start:stop].reshape(n_epochs, length).argsort(axis=1)
        start = stop
    return orders


def mean_losses(
    training: Training, federation: Federation, clients: IntArray, parameters: Array
) -> FloatArray:
    """Mean loss of all rows of each client for some models, of shape (n, n_models).

    Parameters
    ----------
    training : Training
    federation : Federation
    clients : ndarray of int, shape (n,)
    parameters : ndarray of shape (n_models, n_parameters)
    """
    size = max(1, _BLOCK // sum(training.model.sizes))
    losses = np.zeros((len(clients), len(parameters)))
    for own, client in zip(losses, clients.tolist(), strict=True):
        first, last = federation.offsets[client : client + 2].tolist()
        total = federation.totals_of(np.array([client]))[0]
        for start in range(first, last, size):
            chosen = slice(start, min(start + size, last))
            rows = np.asarray(federation.rows[chosen], dtype=parameters.dtype)
            weighted = federation.sample_weight
            ones = np.ones(len(rows))
            weights = (ones if weighted is None else weighted.values[chosen]) / total
            for k, vector in enumerate(parameters):
                own[k] += training.model.losses(
                    vector, rows, training.targets[chosen], weights.astype(rows.dtype)
                )
    return losses
