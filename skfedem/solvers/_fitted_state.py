"""State of server and clients after a fit, from which another one can continue."""

from __future__ import annotations

from math import inf
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._data.labels import check_kinds, find_labels, labels_together
from .._federation import ClientSizes
from .._typing import FloatArray, IntArray
from ..models._base import Start
from ._state import RunState
from ._stopping import StoppingByCriterion
from .base import Clients, Problem, ServerState, Solver

# Bound of the rounding error of V after a long run, relative to the largest number in the V_i, or
# to 1, the size of a mixture's Ŝ in standard units, if the V_i have become small.
_ROUNDING = 1e-12


class NoiseSources(NamedTuple):
    """What makes rounds noisy; ``solver`` is a name, or "stream"."""

    solver: str
    omega: float
    participation: float
    batch_size: int | None


class FittedState(NamedTuple):
    """State of server and clients after a fit or a call of a stream.

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
    controls : ndarray
        V_i of all clients; client vectors.
    states : States
        What else the solver keeps of them.
    noise : NoiseSources
        Noise with which the limit of automatic steps was learnt.
    gains : StoppingByCriterion or None
        Gains of the last rounds, if these were exact and the last one was evaluated.
    row_weight : float, default=1.0
        Weight of each row of a fit if all weights were equal; not included in ``totals``.
    average : ndarray or None
        Average of Ŝ over the rounds of a stream with automatic steps, if there were any.
    row_keys : ndarray of uint64, shape (n_samples,), or None
        Keys of the rows' labels, by which their states follow them to other clients.
    """

    ids: NDArray[Any]
    totals: IntArray | FloatArray
    weights: FloatArray
    n_samples: float
    n_inner: int
    data: str
    model: Any
    server: ServerState
    controls: FloatArray
    states: Any
    noise: NoiseSources
    gains: StoppingByCriterion | None = None
    row_weight: float = 1.0
    average: FloatArray | None = None
    row_keys: NDArray[np.uint64] | None = None


def fitted_state(
    ids: NDArray[Any],
    totals: IntArray | FloatArray,
    problem: Problem,
    state: RunState,
    data: str = "",
    row_keys: NDArray[np.uint64] | None = None,
) -> FittedState:
    """State after a run; the other arguments as in ``FittedState``."""
    assert state.clients is not None  # a run has ended
    gains = state.stopping if isinstance(state.stopping, StoppingByCriterion) else None
    if gains is not None and np.isnan(gains.next_criterion):
        gains = None
    return FittedState(
        ids=ids,
        totals=totals,
        weights=problem.sizes.weights,
        n_samples=problem.sizes.n_samples,
        n_inner=problem.n_inner,
        data=data,
        model=problem.model,
        server=state.server,
        controls=state.clients["controls"],
        states=state.clients["states"],
        noise=_noise_sources(problem),
        gains=gains,
        row_keys=row_keys,
    )


def same_rows(
    fitted: FittedState, totals: IntArray | FloatArray, ids: NDArray[Any], data: str | None
) -> bool:
    """Whether clients and rows are those of the fit; ``data`` as in ``FittedState``."""
    return (
        np.array_equal(fitted.ids, ids)
        and np.array_equal(fitted.totals, totals)
        and fitted.data == data
    )


def continued(
    fitted: FittedState,
    problem: Problem,
    clients: Clients,
    start: Start,
    totals: IntArray | FloatArray,
    ids: NDArray[Any],
    data: str | None,
    row_keys: NDArray[np.uint64] | None = None,
) -> Start:
    """Start of a run that continues another one: its V, its count of rounds, its random streams.

    The problem is in the units of the fit. Known clients keep their control variates; new ones
    start with V_i = 0. States of rows follow the rows' keys. If nothing has changed, clients keep
    all states; otherwise, or if ``data`` is None, those that depend on the rows, as VR-FedEM's
    estimates, are reset. Vectors on the clients' own rows require the same rows. The clients have
    joined. Raises ValueError if labels are of another kind than the known ones.
    """
    fitted = with_noise(fitted, problem)
    saved = clients.save()
    controls, states = saved["controls"], saved["states"]
    same_solver = fitted.n_inner == problem.n_inner and type(fitted.states) is type(states)
    if problem.solver.keeps_states:
        _follow_clients(fitted, states, ids)
    elif same_solver and same_rows(fitted, totals, ids, data):
        states = type(states)(*(kept.copy() for kept in fitted.states))
    _follow_rows(problem.solver, fitted, states, row_keys)
    if problem.task.has_controls and fitted.controls.size:
        if np.array_equal(fitted.ids, ids):
            controls[:] = fitted.controls
        else:
            at = positions_among(fitted, ids)
            controls[at >= 0] = fitted.controls[at[at >= 0]]
    clients.restore({"controls": controls, "states": states})
    server = fitted.server._replace(
        statistics=start.statistics,
        parameters=start.parameters,
        control=_continued_control(fitted, problem.sizes, clients, controls, ids),
        has_field=start.has_field,
    )
    # ``start_again`` returns this very object if the run starts where the other one ended.
    gains = fitted.gains if start.parameters is fitted.server.parameters else None
    return start._replace(kept=fitted._replace(server=server, gains=gains))


def positions_among(fitted: FittedState, ids: NDArray[Any]) -> IntArray:
    """Positions of clients among the known ones; -1 for new ones.

    Raises ValueError if labels are of another kind than the known ones.
    """
    check_kinds(fitted.ids, ids)
    return find_labels(fitted.ids, ids)


def _follow_clients(fitted: FittedState, states: Any, ids: NDArray[Any]) -> None:
    """Write the states of known clients into those of a run."""
    at = positions_among(fitted, ids)
    for name, before in fitted.states._asdict().items():
        field = getattr(states, name, None)
        if field is not None and field.shape[1:] == before.shape[1:]:
            field[at >= 0] = before[at[at >= 0]]


def _follow_rows(
    solver: Solver, fitted: FittedState, states: Any, row_keys: NDArray[np.uint64] | None
) -> None:
    """Write the states of known rows into those of a run."""
    if row_keys is None or fitted.row_keys is None:
        return
    _, known, own = np.intersect1d(fitted.row_keys, row_keys, return_indices=True)
    for name in solver.per_row:
        field, before = getattr(states, name), getattr(fitted.states, name, None)
        if before is not None and field.shape[1:] == before.shape[1:]:
            field[own] = before[known]


def joined(fitted: FittedState, ids: NDArray[Any]) -> tuple[FittedState, IntArray]:
    """State in which all these clients are known, and their positions in it.

    New ones have V_i = 0, empty states and no rows so far. All are copies, which rounds may
    overwrite.
    """
    at = positions_among(fitted, ids)
    new = np.flatnonzero(at < 0)
    at[new] = len(fitted.ids) + np.arange(len(new))

    def extended(array: NDArray[Any]) -> NDArray[Any]:
        if not len(array):  # without control variates
            return array
        return np.concatenate([array, np.zeros((len(new), *array.shape[1:]), array.dtype)])

    return fitted._replace(
        ids=labels_together(fitted.ids, ids[new]),
        totals=extended(fitted.totals.astype(np.float64)),
        controls=extended(fitted.controls),
        states=type(fitted.states)(*map(extended, fitted.states)),
    ), at


def _continued_control(
    fitted: FittedState,
    sizes: ClientSizes,
    clients: Clients,
    controls: FloatArray,
    ids: NDArray[Any],
) -> FloatArray:
    """V of the fit, unless clients or weights changed or its rounding errors are large."""
    control, control_before = clients.control(), fitted.server.control
    # Without np.abs, which would need a temporary array as large as all V_i.
    largest = max(controls.max(initial=0), -controls.min(initial=0))
    is_same = (
        np.array_equal(fitted.ids, ids)
        and np.array_equal(fitted.weights, sizes.weights)
        and np.allclose(control, control_before, rtol=0, atol=_ROUNDING * max(1.0, largest))
    )
    return control_before if is_same else control


def with_noise(fitted: FittedState, problem: Problem) -> FittedState:
    """The state with the limit of steps reset if it was learnt in rounds of another kind."""
    noise = _noise_sources(problem)
    if fitted.noise == noise:
        return fitted
    server = fitted.server._replace(step_limit=inf, frozen_until=0)
    return fitted._replace(noise=noise, server=server)


def _noise_sources(problem: Problem) -> NoiseSources:
    return NoiseSources(
        problem.solver.name, problem.omega, problem.participation, problem.task.batch_size
    )


def of_stream(fitted: FittedState) -> bool:
    """Whether the last rounds belonged to a stream."""
    return fitted.noise.solver == "stream"


def at_average(fitted: FittedState) -> FittedState:
    """State with the average of a stream in place of Ŝ: the estimate, from which fits start."""
    if fitted.average is None:
        return fitted
    parameters = fitted.model.maximization(fitted.average)
    server = fitted.server._replace(statistics=fitted.average, parameters=parameters)
    return fitted._replace(server=server, average=None)
