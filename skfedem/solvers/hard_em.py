"""Hard EM: FedAvg, FedProx, SCAFFOLD, medians, ensembles and FedSparse.

Clients train parameters of their own under a prior whose parameters Θ the server broadcasts (the
E-step), and the server fits the prior to what they found (the M-step): C. Louizos, M. Reisser, J.
Soriaga and M. Welling, "An Expectation-Maximization perspective on federated learning", 2021.

In the terms of FedEM, Ŝ is Θ and T the identity. V_i are FedEM's memories of the updates, or the
control variates c_s of SCAFFOLD.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import nan
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._federation import ClientSizes, Federation
from .._optimizers import OPTIMIZERS, no_moments
from .._rows import precision_of
from .._serialization import serializable
from .._typing import BoolArray, FloatArray, IntArray
from ..compression._survivors import size_of_dense
from ..models._base import BaseModel, Start
from ..models._network import Network
from ..priors import Prior, Shared, Update
from ._local_training import block_rows, gate_uniforms, mean_losses, n_steps, stacks, train
from ._updates import compressed, decode, encode
from .base import Broadcast, ClientGroup, Codec, Problem, ServerState, Solver, Task
from .messages import AggregatedMessages, Message, stacked
from .server import broadcast_of

Array = NDArray[Any]


@serializable
@dataclass(frozen=True)
class HierarchicalModel(BaseModel):
    """Networks of clients under a prior, and how clients train them.

    Parameters
    ----------
    network : Network
    prior : Prior
    local_epochs : int
        Number of passes over a client's rows in a round.
    learning_rate : float
    control_variates : bool
        Whether gradients are corrected by SCAFFOLD's c - c_s.
    keep_local : bool
        Whether the clients' own parameters are kept.
    message_type : {"float32", "float64"}
        Type of the numbers in uncompressed messages.
    """

    network: Network
    prior: Prior
    local_epochs: int = 1
    learning_rate: float = 0.05
    control_variates: bool = False
    keep_local: bool = True
    message_type: str = "float32"
    is_random = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "prior", self.prior.for_network(self.network))  # as it is frozen

    @property
    def n_statistics(self) -> int:
        """Number d of parameters of a network."""
        return int(self.network.n_parameters)

    @property
    def block_rows(self) -> int:
        """Number of rows in the minibatches of clients that are trained together."""
        return block_rows(self.network)

    def reference(self, statistics: Shared) -> float:
        """0: updates are differences from Θ already."""
        return 0.0

    def maximization(self, statistics: Shared) -> Shared:
        """Θ itself."""
        return statistics

    def as_sent(self, numbers: FloatArray) -> FloatArray:
        """Numbers as an uncompressed message holds them."""
        return numbers.astype(self.message_type).astype(np.float64)

    def downlink_bits(self, sizes: ClientSizes, clients: IntArray, parameters: Shared) -> int:
        """Number of bits of Θ, and of SCAFFOLD's c, to some clients."""
        n_bytes = self.prior.downlink_bytes(parameters)
        if self.control_variates:
            sent = self.prior.sent(parameters)
            n_bytes += size_of_dense(self.n_statistics if sent is None else int(sent.sum()))
        return 8 * n_bytes * len(clients)


class ClientStates(NamedTuple):
    """States of clients.

    Attributes
    ----------
    parameters : ndarray of shape (n_clients, d), or (n_clients, 0)
        Own parameters of each client that took part in a round; nothing without ``keep_local``.
    took_part : ndarray of bool, shape (n_clients,)
    """

    parameters: Array
    took_part: BoolArray


class ServerOptimizer(NamedTuple):
    """How the server moves its centres: to the M-step's ("average"), or by a step towards it."""

    name: str = "average"
    learning_rate: float = 1.0
    momentum: float = 0.9


class RoundOutcome(NamedTuple):
    """Summary of a round; means over the clients that took part are NaN if there were none."""

    loss: float
    gate_disagreement: float
    sparsity: float


class DivergedError(ValueError):
    """Training that diverged; ``client`` is the number of the client, or None for the server."""

    def __init__(self, client: int | None, round_index: int) -> None:
        self.client, self.round_index = client, round_index
        super().__init__(self.message(f"client {client}"))

    def message(self, name: str) -> str:
        """Message of the error with a name of the client."""
        whose = "server" if self.client is None else name
        return (
            f"Expected finite parameters and losses, got NaN or inf for the {whose} in round "
            f"{self.round_index + 1}: its training diverged. Use a smaller learning_rate_init, and "
            "standardise the features."
        )


def start_at(model: HierarchicalModel, centres: FloatArray) -> Start:
    """Start of a run from centres of shape (n_models, d)."""
    shared = model.prior.initial(centres)
    shared = shared._replace(weights=model.as_sent(shared.weights))
    return Start(shared, shared, memory=no_moments(centres.shape))


def init(task: Task, federation: Federation) -> ClientStates:
    """States of clients that have not taken part in a round."""
    n, d = federation.n_clients, task.model.n_statistics if task.model.keep_local else 0
    return ClientStates(np.zeros((n, d), precision_of(federation.rows.features)), np.zeros(n, bool))


def broadcast(problem: Problem, server: ServerState) -> Broadcast:
    """What the server sends: Θ, and as ``reference`` SCAFFOLD's c."""
    own = broadcast_of(problem, server)
    if not problem.model.control_variates:
        return own
    return own._replace(reference=problem.model.as_sent(server.control))


# ---- the clients' half


def client_half(
    task: Task, broadcast: Broadcast, group: ClientGroup
) -> tuple[Message, FloatArray, ClientStates]:
    """The half of a round of a group of clients, of which those alike are trained together."""
    kinds = stacks(task, group.federation.lengths_of(group.clients))
    parts = [_half_of_stack(task, broadcast, _members(task, group, own)) for own in kinds]
    if len(parts) == 1:
        return parts[0]
    whole: Any = stacked(parts, np.argsort(np.concatenate(kinds)))
    return whole


def _members(task: Task, group: ClientGroup, own: IntArray) -> ClientGroup:
    """Some clients of a group."""
    return group._replace(
        clients=group.clients[own],
        ids=group.ids[own],
        controls=group.controls[own] if task.has_controls else group.controls,
        states=ClientStates(*(field[own] for field in group.states)),
    )


def _half_of_stack(
    task: Task, broadcast: Broadcast, group: ClientGroup
) -> tuple[Message, FloatArray, ClientStates]:
    """The half of a round of clients that are trained together."""
    model, prior, federation = task.model, task.model.prior, group.federation
    dtype = precision_of(federation.rows.features)
    shared = broadcast.parameters._replace(weights=broadcast.parameters.weights.astype(dtype))
    correction: Array | float = 0.0
    if model.control_variates:
        correction = (broadcast.reference - group.controls).astype(dtype)
    centres = np.zeros(len(group.clients), dtype=np.intp)
    if len(shared.weights) > 1:
        centres = mean_losses(task, group, shared.weights).argmin(axis=1)
    with np.errstate(over="ignore", invalid="ignore"):  # refused below
        start = prior.start(shared, centres, federation.totals_of(group.clients))
        local, losses = train(task, broadcast.round_index, group, shared, start, correction)
        uniforms = gate_uniforms(task, broadcast.round_index, group, shared, 0)
        update = prior.update(shared, local, uniforms)
        values = update.differences.astype(np.float64)
        if _has_memories(task):
            values -= group.controls
        values = values if task.omega else model.as_sent(values)
    for numbers in (values, losses[:, None]):
        _check_finite(numbers, broadcast.round_index, group.ids)
    apart = np.full(len(values), nan) if update.disagreement is None else update.disagreement
    update = update._replace(differences=values, disagreement=None)
    update, n_bytes = compressed(task, broadcast, group, update)
    controls = group.controls
    if task.has_controls:
        lengths = federation.lengths_of(group.clients)
        controls = controls + _control_changes(task, broadcast.reference, lengths, update)
    kept = group.states.parameters
    if model.keep_local:
        kept = prior.own_parameters(shared, local, update)
    message = Message(
        quantized=update,
        sent=None,
        n_bytes=int(n_bytes.sum()),
        n_expectations=model.local_epochs * int(federation.lengths_of(group.clients).sum()),
        reported=np.stack([losses, apart], axis=1),
    )
    return message, controls, ClientStates(kept, np.ones(len(kept), bool))


def _has_memories(task: Task) -> bool:
    """Whether V_i are memories of the updates."""
    return task.control_step > 0 and not task.model.control_variates


def _control_changes(
    task: Task, control: FloatArray | float, lengths: IntArray, update: Update
) -> FloatArray:
    """Changes of V_i, which the server can compute from the updates.

    In SCAFFOLD they are c_s⁺ - c_s = (w - φ_s) / (K η) - c of option II, where parameters are sent.
    """
    if _has_memories(task):
        return task.control_step * update.differences
    travelled = (n_steps(task, lengths) * task.model.learning_rate)[:, None]
    changes = -update.differences / travelled - control
    return changes if update.survivors is None else np.where(update.survivors, changes, 0)


def _changes_of_controls(
    task: Task, broadcast: Broadcast, lengths: IntArray, update: Update
) -> FloatArray:
    return _control_changes(task, broadcast.reference, lengths, update)


def _check_finite(numbers: FloatArray, round_index: int, ids: IntArray | None = None) -> None:
    """Raise if the parameters or the loss of a client, or the server's, are not finite."""
    bad = ~np.isfinite(numbers).all(axis=1)
    if bad.any():
        raise DivergedError(None if ids is None else int(ids[np.argmax(bad)]), round_index)


# ---- the server's half


def server_half(
    optimizer: ServerOptimizer,
    problem: Problem,
    server: ServerState,
    aggregated: AggregatedMessages,
    step_size: float,
) -> tuple[ServerState, RoundOutcome]:
    """The server's half of a round: Θ, and c or V. One without clients only advances its number."""
    task, each, shared = problem.task, aggregated.each, server.statistics
    model, prior = task.model, task.model.prior
    if each is None:
        after = server._replace(round_index=server.round_index + 1)
        return after, RoundOutcome(nan, nan, sparsity(prior, shared))
    update, weights = each.quantized, problem.sizes.weights[aggregated.active]
    remembered = server.control if _has_memories(task) else 0.0
    moments, centres = server.memory, shared.weights
    if optimizer.name == "average" and not _has_memories(task):
        centres = prior.closed_form(shared, update, weights)
    else:
        direction = remembered + prior.direction(shared, update, weights)
        if optimizer.name != "average":
            direction, moments = OPTIMIZERS[optimizer.name](
                moments, direction, optimizer.learning_rate, optimizer.momentum
            )
        centres = centres + direction
    control = server.control
    if task.has_controls:
        lengths, told = problem.sizes.lengths[aggregated.active], model.as_sent(control)
        control = control + weights @ _control_changes(task, told, lengths, update)
    with np.errstate(over="ignore"):  # refused below
        shared = prior.after_step(shared, update, weights, centres)
        shared = shared._replace(weights=model.as_sent(shared.weights))
    _check_finite(shared.weights, server.round_index)
    after = server._replace(
        round_index=server.round_index + 1,
        statistics=shared,
        parameters=shared,
        control=control,
        memory=moments,
    )
    assert each.reported is not None  # by every client
    shares = weights / weights.sum()
    loss, apart = (float(shares @ own) for own in each.reported.T.copy())
    return after, RoundOutcome(loss, apart, sparsity(prior, shared))


def sparsity(prior: Prior, shared: Shared) -> float:
    """Share of the parameters that are pruned."""
    sent = prior.sent(shared)
    return 0.0 if sent is None else 1 - float(sent.mean())


def columns(server: ServerState, outcome: RoundOutcome | None) -> dict[str, float]:
    """Columns of the history; scores are those of an evaluation."""
    outcome = outcome or RoundOutcome(nan, nan, 0.0)
    return {
        "loss": outcome.loss,
        "sparsity": outcome.sparsity,
        "gate_disagreement": outcome.gate_disagreement,
        "score": nan,
        "local_score": nan,
    }


def hard_em(optimizer: ServerOptimizer) -> Solver:
    """The solver with an optimizer of the server, for a ``HierarchicalModel``."""
    return Solver(
        "hard_em",
        init=init,
        per_client=("parameters", "took_part"),
        keeps_states=True,
        is_random=True,
        broadcast=broadcast,
        server_half=partial(server_half, optimizer),
        columns=columns,
        client_half=client_half,
        codec=Codec(encode, decode),
        aggregates=False,
        control_changes=_changes_of_controls,
        n_reported=2,
    )
