"""Fitted attributes of a federated network from the state of a run, and its warnings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import nan
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from .._error_messages import label_repr
from .._warnings import warn
from ..solvers._report import warn_interrupted
from ..solvers._state import RunState
from ..solvers.base import Problem
from ..solvers.hard_em import DivergedError, sparsity


def history_after(
    before: dict[str, NDArray[Any]], history: dict[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """History of earlier calls, followed by the rounds of this one."""
    rows = {name: column[1:].copy() for name, column in history.items()}
    for name in ("round", "epoch"):
        rows[name] += before[name][-1]
    return {name: np.concatenate([before[name], rows[name]]) for name in history}


def last_known(losses: NDArray[Any]) -> float:
    """Loss of the last round with clients; NaN if there was none."""
    known = losses[~np.isnan(losses)]
    return float(known[-1]) if len(known) else nan


def warn_of_fit(problem: Problem, state: RunState, *, in_stream: bool) -> None:
    """Give the warnings that apply to a fit, or to a call of ``partial_fit``."""
    if state.stopped_by == "keyboard":
        warn_interrupted(state)
    shared = state.server.statistics
    target = getattr(problem.model.prior, "target_sparsity", None)
    reached = sparsity(problem.model.prior, shared)
    if target is not None and reached < target and not in_stream:
        warn(
            f"target_sparsity={target:g} was not reached, but {reached:.2g}. Use a larger max_iter "
            "or l0_penalty.",
            ConvergenceWarning,
        )
    if problem.model.prior.sent(shared) is None:
        return
    layers = problem.model.network.split(shared.weights[0])
    for depth, (coefficients, _) in enumerate(layers):
        if not coefficients.any():
            warn(
                f"All coefficients of layer {depth} were pruned, so that predictions do not depend "
                "on X. Use a smaller l0_penalty or target_sparsity, or more warmup_rounds.",
                ConvergenceWarning,
            )
            return


@contextmanager
def naming_clients(ids: NDArray[Any]) -> Iterator[None]:
    """Context in which the error about a client whose training diverged has its label."""
    try:
        yield
    except DivergedError as error:
        label = "" if error.client is None else f"client {label_repr(ids[error.client])}"
        raise ValueError(error.message(label)) from None
