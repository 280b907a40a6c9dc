"""Memory of a run, from which another run can continue: Ŝ, V and the clients."""

from __future__ import annotations

from math import inf
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._federation import Federation
from .._input.known_labels import check_kinds, find_labels
from .._typing import FloatArray, IntArray
from ..models._base import Start
from ._base import Problem, ServerState, Solver, States, mean_control
from ._stopping import Gains

# Bound of the rounding error of V after a long run, relative to the largest number in the V_i, or
# to 1, the size of a mixture's Ŝ in standard units, if the V_i have become small.
_ROUNDING = 1e-12


class Setting(NamedTuple):
    """Sources of noise in the rounds of a run; ``kind`` is the solver's module, or "stream"."""

    kind: str
    omega: float
    participation: float
    batch_size: int | None


class Memory(NamedTuple):
    """State of server and clients after a run.

    Attributes
    ----------
    ids : ndarray of shape (n_clients,)
        Labels of the clients.
    totals : ndarray of shape (n_clients,)
        Sum of the weights of each client's rows; their number if rows have no weights.
    weights : ndarray of shape (n_clients,)
        w_i.
    n_samples : float
        Number of rows of all clients in a fit; in a stream, of rows read so far, at its start or
        in rounds.
    n_inner : int
        k_in.
    data : str
        Fingerprint of the rows if the clients' states are only valid for these rows, otherwise "".
    model : Model
        The estimator's model, with the units of Ŝ and V.
    server : ServerState
    states : States
    setting : Setting
        Setting in which the limit of automatic steps was learnt.
    gains : Gains or None
        Gains of the last rounds, if these were exact and the last one was evaluated.
    row_weight : float, default=1.0
        Weight of each row of a fit if all weights were equal; not included in ``totals``.
    average : ndarray or None
        Average of Ŝ over the rounds of a stream with automatic steps, if there were any.
    """

    ids: NDArray[Any]
    totals: IntArray | FloatArray
    weights: FloatArray
    n_samples: float
    n_inner: int
    data: str
    model: Any
    server: ServerState
    states: States
    setting: Setting
    gains: Gains | None = None
    row_weight: float = 1.0
    average: FloatArray | None = None


class Kept(NamedTuple):
    """States of server and clients at the start of a run, and gains of the rounds before it."""

    server: ServerState
    states: States
    gains: Gains | None


def memory_of(
    ids: NDArray[Any],
    problem: Problem,
    server: ServerState,
    states: States,
    gains: Gains | None = None,
    data: str = "",
) -> Memory:
    """Memory of a run; ``data`` as in ``Memory``."""
    return Memory(
        ids=ids,
        totals=problem.federation.totals,
        weights=problem.federation.weights,
        n_samples=problem.federation.n_samples,
        n_inner=problem.n_inner,
        data=data,
        model=problem.model,
        server=server,
        states=states,
        setting=_setting(problem, type(states).__module__),
        gains=gains,
    )


def same_rows(memory: Memory, federation: Federation, ids: NDArray[Any], data: str) -> bool:
    """Whether clients and rows are those of the memory; ``data`` as in ``Memory``."""
    return (
        np.array_equal(memory.ids, ids)
        and np.array_equal(memory.totals, federation.totals)
        and memory.data == data
    )


def go_on(
    memory: Memory, solver: Solver, problem: Problem, start: Start, ids: NDArray[Any], data: str
) -> Start:
    """Start of a run that continues another one: its V, its count of rounds, its random streams.

    The problem is in the units of the memory. Known clients keep their control variates; new ones
    start with V_i = 0. If nothing has changed, clients keep all states; otherwise VR-FedEM's
    estimates are reset. Vectors on the clients' own rows require the same rows. ``data`` is as in
    ``Memory``. Raises ValueError if labels are of another kind than the known ones.
    """
    states = solver.init(problem, problem.vectors.zeros())
    memory = in_setting(memory, problem, type(states).__module__)
    same_solver = memory.n_inner == problem.n_inner and type(memory.states) is type(states)
    if same_solver and same_rows(memory, problem.federation, ids, data):
        states = type(states)(*(kept.copy() for kept in memory.states))
    elif np.array_equal(memory.ids, ids):
        states.controls[:] = memory.states.controls
    else:
        check_kinds(memory.ids, ids)
        at = find_labels(memory.ids, ids)
        states.controls[at >= 0] = memory.states.controls[at[at >= 0]]
    server = memory.server._replace(
        statistics=start.statistics,
        parameters=start.parameters,
        control=_control_again(memory, problem, states.controls, ids),
        has_field=start.has_field,
    )
    # ``start_again`` returns this very object if the run starts where the other one ended.
    gains = memory.gains if start.parameters is memory.server.parameters else None
    return start._replace(kept=Kept(server, states, gains))


def _control_again(
    memory: Memory, problem: Problem, controls: FloatArray, ids: NDArray[Any]
) -> FloatArray:
    """V of the memory, unless clients or weights changed or its rounding errors are large."""
    control, control_before = mean_control(problem, controls), memory.server.control
    # Without np.abs, which would need a temporary array as large as all V_i.
    largest = max(controls.max(initial=0), -controls.min(initial=0))
    is_same = (
        np.array_equal(memory.ids, ids)
        and np.array_equal(memory.weights, problem.federation.weights)
        and np.allclose(control, control_before, rtol=0, atol=_ROUNDING * max(1.0, largest))
    )
    return control_before if is_same else control


def in_setting(memory: Memory, problem: Problem, kind: str) -> Memory:
    """Memory with the limit of steps reset if it was learnt in rounds of another kind."""
    setting = _setting(problem, kind)
    if memory.setting == setting:
        return memory
    server = memory.server._replace(step_limit=inf, rest_until=0)
    return memory._replace(setting=setting, server=server)


def _setting(problem: Problem, kind: str) -> Setting:
    return Setting(kind, problem.omega, problem.participation, problem.batch_size)


def of_stream(memory: Memory) -> bool:
    """Whether the last rounds belonged to a stream."""
    return memory.setting.kind == "stream"


def at_estimate(memory: Memory) -> Memory:
    """Memory with the average of a stream in place of Ŝ: the estimate, from which fits start."""
    if memory.average is None:
        return memory
    parameters = memory.model.maximization(memory.average)
    server = memory.server._replace(statistics=memory.average, parameters=parameters)
    return memory._replace(server=server, average=None)
