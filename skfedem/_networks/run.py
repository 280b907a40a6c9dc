"""Starts of runs of a federated network, new or continued, and the clients of a stream."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._federation import Federation, weights_of_clients
from .._history import FLOAT_BITS
from .._typing import FloatArray
from ..clients.local import SetUpMessage
from ..models._base import Start
from ..priors import Shared
from ..solvers._fitted_state import FittedState, continued, joined, positions_among
from ..solvers.base import Clients, Problem
from ..solvers.hard_em import start_at


class Units(NamedTuple):
    """Units in which targets are learned: differences from a mean, divided by a scale.

    They make the learning rate independent of the scale of the targets. One scale for all outputs
    keeps the objective, up to a factor.
    """

    mean: FloatArray
    scale: float


def moments_of(federation: Federation, targets: FloatArray) -> FloatArray:
    """Mean of each output, and mean square of the deviations, of each client's rows.

    From targets of shape (n_samples, n_outputs) to moments of shape (n_clients, n_outputs + 1).
    """
    lengths, n_clients = federation.lengths, federation.n_clients
    owners = np.repeat(np.arange(n_clients), lengths)
    weights = 1.0 if federation.sample_weight is None else federation.sample_weight.values

    def means(values: FloatArray) -> FloatArray:
        # ``bincount`` adds up row by row, so that a sum does not depend on the other clients.
        sums = [np.bincount(owners, weights * own, n_clients) for own in values.T]
        return np.stack(sums, axis=1) / federation.totals[:, None]

    first = targets[federation.offsets[:-1]]
    mean = first + means(targets - np.repeat(first, lengths, axis=0))
    squares = ((targets - np.repeat(mean, lengths, axis=0)) ** 2).sum(axis=1, keepdims=True)
    return np.concatenate([mean, means(squares)], axis=1)


def units_of(weights: FloatArray, moments: FloatArray) -> Units:
    """Units from the mean and the variance of all targets, by the weights w_i of the clients."""
    means, squares = moments[:, :-1], moments[:, -1]
    mean = means[0] + weights @ (means - means[0])
    total = weights @ (squares + ((means - mean) ** 2).sum(axis=1))
    variance = float(total) / len(mean)
    return Units(mean, variance**0.5 if variance > 0 else 1.0)


def in_units(targets: FloatArray, units: Units) -> FloatArray:
    """Targets as they are learned."""
    return (targets - units.mean) / units.scale


def labels_told(federation: Federation, classes: NDArray[Any]) -> SetUpMessage:
    """Clients' messages of the labels of their classes, from which they learn those of all.

    Targets are numbers of classes. Labels are sent as JSON lists.
    """
    n_clients, n_classes = federation.n_clients, len(classes)
    owners = np.repeat(np.arange(n_clients), federation.lengths)
    own = np.unique(owners * n_classes + federation.rows.targets) % n_classes
    # With a separator of two bytes, or brackets.
    n_bytes = np.array([len(json.dumps(label, default=str)) + 2 for label in classes.tolist()])
    bits = 8 * int(n_bytes[own].sum()), 8 * n_clients * int(n_bytes.sum())
    return SetUpMessage("classes", n_clients, *bits)


def first_start(
    problem: Problem, clients: Clients, units: Units | None, labels: SetUpMessage | None
) -> Start:
    """Start of a new run, for which clients have sent what their units take, or their labels."""
    model, seed = problem.model, problem.task.seed
    if labels is not None:
        clients.messages.append(labels)
    centres = np.tile(model.network.initial(seed), (model.prior.n_models, 1))
    if units is None:
        return start_at(model, centres)
    # A mean for each output, and one of squares; the mean and the scale of all come back.
    n_clients = problem.sizes.n_clients
    n_bits = FLOAT_BITS * (len(units.mean) + 1) * n_clients
    clients.messages.append(SetUpMessage("units_of_targets", n_clients, n_bits, n_bits))
    return start_at(model, centres)


def next_start(
    problem: Problem, clients: Clients, memory: FittedState, totals: Any, ids: NDArray[Any]
) -> Start:
    """Start of a run that continues another one, for the clients with these labels."""
    shared, model = memory.server.statistics, problem.model
    if shared.weights.shape != (model.prior.n_models, model.n_statistics):
        raise ValueError(
            "Expected a network of the size of the last fit to continue from, got other layers or "
            "another number of components. Fit with warm_start=False, or a clone."
        )
    first = model.prior.initial(shared.weights)
    if _gates_of(shared) != _gates_of(first):
        shared = first
    start = continued(memory, problem, clients, Start(shared, shared), totals, ids, data="")
    if len(memory.ids) > len(ids) and problem.task.has_controls and memory.controls.size:
        # c or V is the mean over all known clients, also those that are absent now.
        kept: Any = start.kept  # a FittedState, as the run continues
        server = kept.server._replace(control=memory.weights @ memory.controls)
        start = start._replace(kept=kept._replace(server=server))
    return start


def _gates_of(shared: Shared) -> tuple[type, int]:
    """Kind and number of gates; those of another prior or network are not continued."""
    gates = shared.gates
    return type(gates), 0 if gates is None else len(gates.alive)


def with_known_clients(
    memory: FittedState, federation: Federation, ids: NDArray[Any], client_weights: Any
) -> tuple[FittedState, Federation]:
    """State of a stream with the clients of a call, and these with their weights among all."""
    memory, at = joined(memory, ids)
    memory.totals[at] += federation.totals
    weights = weights_of_clients(memory.totals, client_weights)
    return memory._replace(weights=weights), federation._replace(weights=weights[at])


def with_absent_clients(after: FittedState, memory: FittedState) -> FittedState:
    """State of a stream after a call, with the clients that were known before but absent."""
    at = positions_among(memory, after.ids)

    def merged(before: NDArray[Any], own: NDArray[Any]) -> NDArray[Any]:
        if not len(own):  # without control variates
            return own
        whole = np.zeros((len(memory.ids), *own.shape[1:]), own.dtype)
        if before.shape == whole.shape:  # otherwise, other parameters than before
            whole[:] = before
        whole[at] = own
        return whole

    return after._replace(
        ids=memory.ids,
        totals=memory.totals,
        weights=memory.weights,
        controls=merged(memory.controls, after.controls),
        states=type(after.states)(*map(merged, memory.states, after.states)),
    )
