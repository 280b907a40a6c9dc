"""Rounds of a federated perceptron: their start, their history, and checkpoints.

``settings`` is the estimator, of which only parameters are read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from math import nan
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import _checkpoint
from .._data.labels import check_kinds, find_labels, labels_together
from .._federation import Federation, fingerprint, little_endian
from .._history import History
from .._messages import repr_of, warn
from .._parallel import Workers
from .._parameters import parameters_of
from .._rows import precision_of
from .._typing import FilePath, FloatArray
from ..solvers._fit_task import FitTask
from ..solvers.hard_em import (
    ClientStates,
    RoundInfo,
    ServerState,
    Task,
    active_clients,
    initial_server,
    initial_states,
    one_round,
)

# Parameters that may differ between a run and its continuation.
_FREE = {
    "checkpoint",
    "checkpoint_every",
    "max_iter",
    "n_jobs",
    "random_state",
    "verbose",
    "warm_start",
}


class Units(NamedTuple):
    """Units in which targets are learned: differences from a mean, divided by a scale.

    They make the learning rate independent of the scale of the targets. One scale for all outputs
    keeps the objective, up to a factor.
    """

    mean: FloatArray
    scale: float


def units_of(federation: Federation, targets: FloatArray) -> Units:
    """Units from the mean and the variance of all targets, of shape (n_samples, n_outputs)."""
    weights = np.repeat(federation.row_weights, federation.lengths)
    if federation.sample_weight is not None:
        weights = weights * federation.sample_weight.values
    mean = weights @ targets
    variance = float((weights @ (targets - mean) ** 2).sum() / targets.shape[1])
    return Units(mean, variance**0.5 if variance > 0 else 1.0)


def in_units(targets: FloatArray, units: Units) -> FloatArray:
    """Targets as they are learned."""
    return (targets - units.mean) / units.scale


class Memory(NamedTuple):
    """What the next fit needs to continue a run.

    Attributes
    ----------
    ids : ndarray
        Labels of the known clients.
    server : ServerState
    states : ClientStates
    seed : int
    units : Units or None
    """

    ids: NDArray[Any]
    server: ServerState
    states: ClientStates
    seed: int
    units: Units | None


class Progress(NamedTuple):
    """A run between two rounds."""

    server: ServerState
    states: ClientStates
    history: History

    @property
    def progress(self) -> Progress:
        """The run itself, for ``FitTask``."""
        return self


Scores = Callable[[ServerState, ClientStates], tuple[float, float]]
"""Global and mean local score on validation data."""


def begin(task: Task, units: Units | None = None) -> Progress:
    """New run of a task, for which clients have sent what their units take."""
    first = task.training.model.initial(task.training.seed)
    centres = np.tile(first, (task.prior.n_models, 1))
    states = initial_states(task, precision_of(task.federation.rows))
    server = initial_server(task, centres)
    history = History()
    # A sum for each output, and a sum of squares; the mean and the scale come back.
    n_bytes = 0 if units is None else 4 * (len(units.mean) + 1) * task.federation.n_clients
    history.append(**_row(task, server, 0, 0.0, RoundInfo(0, 0, nan, nan, n_bytes, n_bytes)))
    return Progress(server, states, history)


def go_on(task: Task, ids: NDArray[Any], memory: Memory) -> Progress:
    """Run of a task that continues an earlier one, for the clients with these labels."""
    check_kinds(memory.ids, ids)
    fresh, places = begin(task), find_labels(memory.ids, ids)
    known = places >= 0
    for field, before in zip(fresh.states, memory.states, strict=True):
        if field.shape[1:] == before.shape[1:]:
            field[known] = before[places[known]]
    server = memory.server
    if server.shared.weights.shape != fresh.server.shared.weights.shape:
        raise ValueError(
            "Expected a network of the size of the last fit to continue from, got other layers or "
            "another number of components. Fit with warm_start=False, or a clone."
        )
    if (server.shared.gates is None) != (fresh.server.shared.gates is None):
        server = server._replace(shared=task.prior.initial(server.shared.weights))
    if len(server.control) != len(fresh.server.control):  # other parameters than before
        server = server._replace(control=fresh.server.control)
    # Weights of clients may have changed: c = Σ w_s c_s.
    if task.has_controls:
        controls = fresh.states.controls
        server = server._replace(control=task.federation.weights @ controls)
    return fresh._replace(server=server)


def remember(
    ids: NDArray[Any], task: Task, run: Progress, units: Units | None, before: Memory | None
) -> Memory:
    """Memory after a run; clients of earlier calls that it did not know are kept."""
    memory = Memory(ids, run.server, run.states, task.training.seed, units)
    if before is None:
        return memory
    places = find_labels(before.ids, ids)
    new = places < 0
    n = len(before.ids)
    places = np.where(new, n + np.cumsum(new) - 1, places)
    size = n + int(new.sum())

    def merged(old: NDArray[Any], own: NDArray[Any]) -> NDArray[Any]:
        if old.shape[1:] != own.shape[1:]:
            old = np.zeros((n, *own.shape[1:]), own.dtype)
        array = np.zeros((size, *own.shape[1:]), own.dtype)
        array[:n] = old
        array[places] = own
        return array

    states = ClientStates(*map(merged, before.states, run.states))
    return memory._replace(
        ids=labels_together(before.ids, ids[new]),
        states=states,
    )


def run_rounds(
    settings: Any,
    task: Task,
    run: Progress,
    n_rounds: int,
    workers: Workers,
    scores: Scores | None,
    tasks: FitTask | None,
    checkpoint: Checkpoint | None,
) -> tuple[Progress, bool]:
    """Run up to a number of rounds; return the state and whether the user interrupted it."""
    n_before = len(run.history.column("round")) - 1
    try:
        for number in range(n_before + 1, n_rounds + 1):
            if tasks:
                tasks.begin_round(run)  # type: ignore[arg-type]
            run = _round(task, run, number, workers)
            if scores and (number % settings.eval_every == 0 or number == n_rounds):
                names = ("score", "local_score")
                values = scores(run.server, run.states)
                run.history.update(-1, **dict(zip(names, values, strict=True)))
            if settings.verbose > 1 or (settings.verbose and number % 10 == 0):
                _print(run.history.row(-1))
            stopped = bool(tasks and tasks.end_round(run))  # type: ignore[arg-type]
            if checkpoint:
                checkpoint.after_round(run, number, over=stopped or number == n_rounds)
            if stopped:
                break
    except KeyboardInterrupt:
        return run, True
    return run, False


def _round(task: Task, run: Progress, number: int, workers: Workers) -> Progress:
    """Run a round and record it."""
    active = active_clients(task, run.server.round_index)
    server, states, info = one_round(task, run.server, run.states, active, workers)
    epoch = run.history.row(-1)["epoch"] + info.n_rows / task.federation.n_samples
    run.history.append(**_row(task, server, number, epoch, info))
    return Progress(server, states, run.history)


def _row(
    task: Task, server: ServerState, number: int, epoch: float, info: RoundInfo
) -> dict[str, float]:
    """Row of the history."""
    return {
        "round": number,
        "epoch": epoch,
        "loss": info.loss,
        "sparsity": sparsity(task, server),
        "gate_disagreement": info.gate_disagreement,
        "score": nan,
        "local_score": nan,
        "n_active": info.n_active,
        "uplink_bits": 8 * info.uplink_bytes,
        "downlink_bits": 8 * info.downlink_bytes,
    }


def sparsity(task: Task, server: ServerState) -> float:
    """Share of the parameters that are pruned."""
    sent = task.prior.sent(server.shared)
    return 0.0 if sent is None else 1 - float(sent.mean())


def _print(row: dict[str, float]) -> None:
    pruned = f", sparsity {row['sparsity']:.2f}" if row["sparsity"] else ""
    print(f"  Round {row['round']}: epoch {row['epoch']:.1f}, loss {row['loss']:.6g}{pruned}")


# ---- checkpoints


class Checkpoint(NamedTuple):
    """Where to save a run, and how to recognise it."""

    identity: _checkpoint.Identity
    path: Path | None
    every: int

    def after_round(self, run: Progress, number: int, over: bool) -> None:
        """Save the state after a round if this is due; warn if it is not possible."""
        if self.path is None or not (over or number % self.every == 0):
            return
        try:
            _checkpoint.save(self.path, self.identity, _as_state(run))
        except OSError as error:  # a full disk must not end a fit of many hours
            warn(
                f"Round {number} could not be saved at {self.path} ({error}). The fit continues, "
                "and the file is unchanged. Free disk space, or check that the folder still "
                "exists.",
                UserWarning,
            )

    def resumed(self, path: FilePath, template: Progress) -> Progress:
        """Saved run, of the same types as the template."""
        state = _checkpoint.load(path, self.identity, _as_state(template))
        history = History.of_dict(state["history"])
        return Progress(state["server"], state["states"], history)


def _as_state(run: Progress) -> dict[str, Any]:
    return {"server": run.server, "states": run.states, "history": run.history.as_dict()}


def checkpoint_of(settings: Any, task: Task) -> Checkpoint:
    """Checkpoint of a fit with the estimator's parameters."""
    federation, targets = task.federation, task.training.targets
    parameters = {
        name: repr_of(value) for name, value in parameters_of(settings).items() if name not in _FREE
    }
    identity = {
        "estimator": type(settings).__name__,
        **parameters,
        "seed": task.training.seed,
        "n_clients": federation.n_clients,
        "lengths of clients": _digest(federation.lengths.astype(np.int64)),
        "data": fingerprint(federation),
        "targets": _digest(targets),
    }
    path = settings.checkpoint
    return Checkpoint(
        identity, None if path is None else Path(path).absolute(), settings.checkpoint_every
    )


def _digest(array: NDArray[Any]) -> str:
    return hashlib.sha256(little_endian(array).tobytes()).hexdigest()[:16]
