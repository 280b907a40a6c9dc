"""What is kept of a run, so that another can go on from it: Ŝ, V, and who the clients were."""

from __future__ import annotations

from math import inf
from typing import Any, NamedTuple

import numpy as np

from .._federation import fingerprint
from .._input.known_labels import check_kinds, find_labels
from ..models._base import Model
from . import fedem
from ._base import ServerState, mean_control
from ._stopping import Gains

# Rounding moves V by less in a long run, as a share of the largest number in the V_i, or of 1, the
# size of a mixture's Ŝ in standard units, where the V_i have become small.
_ROUNDING = 1e-12


class Setting(NamedTuple):
    """What made the rounds of a run noisy; their ``kind`` is the solver's module, or "stream"."""

    kind: str
    omega: float
    participation: float
    batch_size: int | None


class Memory(NamedTuple):
    """What server and clients keep after a run.

    Attributes
    ----------
    ids : ndarray of shape (n_clients,)
        Labels of the clients.
    totals : ndarray of shape (n_clients,)
        Sum of the weights of each client's rows; their number if rows have no weights.
    weights : ndarray of shape (n_clients,)
        w_i.
    n_samples : float
        Rows of all clients in a fit; in a stream, those that were read, at its start or in rounds.
    n_inner : int
        k_in.
    data : str
        Fingerprint of the rows, where it matters; else "".
    model : Model
        With the units of Ŝ and V.
    server : ServerState
    states : NamedTuple
        Clients' states, as ``_base`` describes them.
    setting : Setting
        To which the limit of automatic steps belongs.
    gains : Gains or None
        Of the last rounds, where they were exact and the last was evaluated.
    row_weight : float, default=1.0
        Of each row of a fit, where all had the same: ``totals`` do without it.
    average : ndarray or None
        Of Ŝ in the rounds of a stream with automatic steps, if there were any.
    """

    ids: np.ndarray
    totals: np.ndarray
    weights: np.ndarray
    n_samples: float
    n_inner: int
    data: str
    model: Model
    server: ServerState
    states: NamedTuple
    setting: Setting
    gains: Gains | None = None
    row_weight: float = 1.0
    average: Any = None


class Kept(NamedTuple):
    """Server and clients' states that a run begins with, and what the rounds before have gained."""

    server: ServerState
    states: NamedTuple
    gains: Gains | None


def memory_of(ids, problem, server, states, gains=None, data=""):
    """Memory of a run, to the rows of which ``rows_that_matter`` gave ``data`` before it began."""
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


def rows_that_matter(federation, solver):
    """Fingerprint of the rows, if what clients keep belongs to these: no others may take it over.

    A mixture's control variates do not: those of FedEM, who keeps nothing else, have "".
    """
    matter = isinstance(federation.rows, tuple) or solver is not fedem
    return fingerprint(federation) if matter else ""


def same_rows(memory, federation, ids):
    """Whether these are the clients of the memory, with the rows that they had."""
    return (
        np.array_equal(memory.ids, ids)
        and np.array_equal(memory.totals, federation.totals)
        and (not memory.data or memory.data == fingerprint(federation))
    )


def go_on(memory, solver, problem, start, ids):
    """Start of a run that goes on with V, the count of rounds and so the random streams of another.

    The problem is in the units of the memory. Known clients keep their control variates; new ones
    begin with V_i = 0. If nothing has changed, clients keep all they have; otherwise the estimates
    of VR-FedEM begin anew. If clients' vectors are laid out on their own rows, the rows must be the
    same. ValueError if labels are of another kind than known ones.
    """
    states = solver.init(problem, problem.vectors.zeros())
    memory = in_setting(memory, problem, type(states).__module__)
    same_solver = memory.n_inner == problem.n_inner and type(memory.states) is type(states)
    if same_solver and same_rows(memory, problem.federation, ids):
        states = type(states)(*(kept.copy() for kept in memory.states))
    elif np.array_equal(memory.ids, ids):
        states.controls[:] = memory.states.controls
    else:
        check_kinds(memory.ids, ids)
        at = find_labels(memory.ids, ids)
        states.controls[at >= 0] = memory.states.controls[at[at >= 0]]
    server = memory.server._replace(control=_control_again(memory, problem, states.controls, ids))
    # Where a run begins as the other one ended, ``start_again`` gives the very same parameters.
    gains = memory.gains if start.parameters is server.parameters else None
    server = server._replace(
        statistics=start.statistics, parameters=start.parameters, has_field=start.has_field
    )
    return start._replace(kept=Kept(server, states, gains))


def _control_again(memory, problem, controls, ids):
    """V as it was, unless it is another sum or keeps the rounding of V_i that were once large."""
    control, control_before = mean_control(problem, controls), memory.server.control
    # Not by their absolute values, a temporary array as large as all V_i.
    largest = max(controls.max(initial=0), -controls.min(initial=0))
    rounding = _ROUNDING * max(1.0, largest)
    same_weights = np.array_equal(memory.weights, problem.federation.weights)
    same_terms = same_weights and np.array_equal(memory.ids, ids)
    same = same_terms and np.allclose(control, control_before, rtol=0, atol=rounding)
    return control_before if same else control


def in_setting(memory, problem, kind):
    """Memory without a limit of steps that was learnt in rounds of another kind."""
    setting = _setting(problem, kind)
    if memory.setting == setting:
        return memory
    server = memory.server._replace(step_limit=inf, rest_until=0)
    return memory._replace(setting=setting, server=server)


def _setting(problem, kind):
    return Setting(kind, problem.omega, problem.participation, problem.batch_size)


def of_stream(memory):
    """Whether the last rounds were those of a stream."""
    return memory.setting.kind == "stream"


def at_estimate(memory):
    """Memory whose Ŝ is what a stream estimates, to be read, or for a fit to begin with."""
    if memory.average is None:
        return memory
    parameters = memory.model.maximization(memory.average)
    server = memory.server._replace(statistics=memory.average, parameters=parameters)
    return memory._replace(server=server, average=None)
