"""What a fit keeps of sites and subjects, from which another one can start."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._data.labels import check_kinds, find_labels
from .._typing import FloatArray
from ..models._base import Start
from ..models.mixed_effects.maximization import Theta
from ..solvers._state import Continuation
from ..solvers.base import Clients, Problem, ServerState
from .design import Design


class Memory(NamedTuple):
    """Where a fit ended.

    Attributes
    ----------
    theta : Theta
    ids : ndarray of shape (n_clients,)
        Labels of the clients.
    controls : ndarray of shape (n_clients, q), or empty
        V_i.
    keys : ndarray of uint64, shape (n_subjects,)
        Keys of the subjects' labels.
    chains : tuple of ndarray
        Positions and scales of their chains; none after quadrature.
    """

    theta: Theta
    ids: NDArray[Any]
    controls: FloatArray
    keys: NDArray[np.uint64]
    chains: tuple[FloatArray, ...]


def memory_of(
    theta: Theta, ids: NDArray[Any], keys: NDArray[np.uint64], saved: dict[str, Any]
) -> Memory:
    """Memory of a run, from what its clients have saved."""
    states = saved["states"]
    names = [name for name in ("positions", "scales") if name in states._fields]
    chains = tuple(getattr(states, name) for name in names)
    return Memory(theta, ids, saved["controls"], keys, chains)


def design_again(design: Design, fitted: Design) -> Design:
    """Design of a fit that starts where another one ended, with its centre of φ.

    Raises ValueError if the two do not have the same estimates.
    """
    same = (
        design.names == fitted.names
        and design.covariates == fitted.covariates
        and np.array_equal(design.mask, fitted.mask)
        and (design.is_full, design.error_name) == (fitted.is_full, fitted.error_name)
        and [own.name for own in design.transforms.values()]
        == [own.name for own in fitted.transforms.values()]
    )
    if not same:
        raise ValueError(
            "Expected the parameters, transforms, covariates, covariance_type and error of the "
            "last fit with warm_start=True, got others. Use warm_start=False."
        )
    return design._replace(start=fitted.start)


def start_again(
    memory: Memory,
    problem: Problem,
    clients: Clients,
    ids: NDArray[Any],
    keys: NDArray[np.uint64],
) -> Start:
    """Start at the estimates of a fit.

    Chains follow their subjects, also to other sites. With chains, sites keep their V_i, and V is
    their mean; otherwise, fields are computed exactly.
    """
    model: Any = problem.model  # a MixedEffectsModel
    saved = clients.save()
    parameters = model.parameters(memory.theta)
    start = Start(model.statistics_of(parameters), parameters)
    states, controls = saved["states"], saved["controls"]
    names = [name for name in ("positions", "scales") if name in states._fields]
    _, known, own = np.intersect1d(memory.keys, keys, return_indices=True)
    for name, kept in zip(names, memory.chains, strict=False):
        field = getattr(states, name)
        if field.shape[1:] == kept.shape[1:]:
            field[own] = kept[known]
    if not problem.random_estimates:
        return start
    if problem.task.has_controls and memory.controls.size:
        check_kinds(memory.ids, ids)
        at = find_labels(memory.ids, ids)
        controls[at >= 0] = memory.controls[at[at >= 0]]
    clients.restore({"controls": controls, "states": states})
    server = ServerState(0, start.statistics, parameters, clients.control())
    return start._replace(kept=Continuation(server, None))
