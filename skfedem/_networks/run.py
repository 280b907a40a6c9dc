"""Runs of a federated network: their start, new or continued, and their rounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._federation import Federation, weights_of_clients
from .._typing import FilePath, FloatArray
from ..models._base import Start
from ..solvers._fit_task import FitTask
from ..solvers._fitted_state import FittedState, continued, joined, positions_among
from ..solvers._loop import Options, run
from ..solvers._resume import checkpoint_of
from ..solvers._state import RunState
from ..solvers.base import Clients, Problem
from ..solvers.hard_em import start_at

Scores = Callable[[RunState, Clients], dict[str, float]]
"""Columns ``score`` and ``local_score`` of the history."""


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


def first_start(problem: Problem, clients: Clients, units: Units | None) -> Start:
    """Start of a new run, for which clients have sent what their units take."""
    clients.join(problem.solver, problem.task)
    model, seed = problem.model, problem.task.seed
    centres = np.tile(model.network.initial(seed), (model.prior.n_models, 1))
    # A sum for each output, and a sum of squares; the mean and the scale come back.
    n_bits = 0 if units is None else 32 * (len(units.mean) + 1) * problem.sizes.n_clients
    return start_at(model, centres).after(n_bits, n_bits)


def next_start(
    problem: Problem, clients: Clients, memory: FittedState, totals: Any, ids: NDArray[Any]
) -> Start:
    """Start of a run that continues another one, for the clients with these labels."""
    clients.join(problem.solver, problem.task)
    shared, model = memory.server.statistics, problem.model
    if shared.weights.shape != (model.prior.n_models, model.n_statistics):
        raise ValueError(
            "Expected a network of the size of the last fit to continue from, got other layers or "
            "another number of components. Fit with warm_start=False, or a clone."
        )
    if (shared.gates is None) == model.prior.gated:
        shared = model.prior.initial(shared.weights)
    start = continued(memory, problem, clients, Start(shared, shared), totals, ids, data="")
    if len(memory.ids) > len(ids) and problem.task.has_controls and memory.controls.size:
        # c or V is the mean over all known clients, also those that are absent now.
        kept: Any = start.kept  # a FittedState, as the run continues
        server = kept.server._replace(control=memory.weights @ memory.controls)
        start = start._replace(kept=kept._replace(server=server))
    return start


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


def run_rounds(
    settings: Any,
    name: str,
    problem: Problem,
    start: Start,
    clients: Clients,
    n_rounds: int,
    scores: Scores | None,
    tasks: FitTask | None,
    resume_from: FilePath | None = None,
) -> RunState:
    """Run up to a number of rounds; ``name`` is that of the estimator."""
    options = Options(
        step_size=lambda round_number: 1.0,
        control_init="zeros",
        max_iter=n_rounds,
        eval_every=settings.eval_every,
        evaluate=scores,
    )
    checkpoint = checkpoint_of(settings, name, problem, clients, options.step_size, resume_from)

    def report(row: dict[str, float]) -> None:
        if settings.verbose > 1 or (settings.verbose and row["round"] % 10 == 0):
            pruned = f", sparsity {row['sparsity']:.2f}" if row["sparsity"] else ""
            print(
                f"  Round {row['round']}: epoch {row['epoch']:.1f}, loss {row['loss']:.6g}{pruned}"
            )

    return run(problem, start, options, clients, report, checkpoint, tasks)
