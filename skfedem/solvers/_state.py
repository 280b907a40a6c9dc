"""State of a run after a round, which is what a checkpoint saves, and its initialisation."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._history import FLOAT_BITS, History
from .._typing import ControlInit, FloatArray
from ..models._base import Model, Parameters, Start
from ._stopping import StoppingByCriterion, StoppingBySurrogate, first_stopping
from .base import Clients, Problem, ServerState
from .server import columns_of_steps

StoppedBy = Literal["keyboard", "callback"]


class RunState(NamedTuple):
    """Complete state of a run after a round; a checkpoint saves it with the clients' states.

    A round extends ``history``, ``trace`` and ``criteria_before`` in place.

    Attributes
    ----------
    server : ServerState
    stopping : StoppingByCriterion, StoppingBySurrogate or None
        State of the stopping rule; None without one.
    history : History
    trace : list of ndarray
        ``model.trace(parameters)`` for each row of the history.
    criteria_before : list of float
        For each exact round, the criterion of the iterate before it, which the round yields.
    n_expectations, n_samples : int
        Number of conditional expectations computed so far, and of all rows.
    first_round : int
        Index of the first round of this run.
    converged : bool
    initial_criterion, final_criterion : float
        Criterion at the start and at the end; NaN if it is unknown, not needed or yet to come.
    stopped_by : {"keyboard", "callback"} or None
    clients : dict or None
        The clients' controls and states at the end of a run.
    """

    server: ServerState
    stopping: StoppingByCriterion | StoppingBySurrogate | None
    history: History
    trace: list[NDArray[Any]]
    criteria_before: list[float]
    n_expectations: int
    n_samples: int
    first_round: int = 0
    converged: bool = False
    initial_criterion: float = np.nan
    final_criterion: float = np.nan
    stopped_by: StoppedBy | None = None
    clients: dict[str, Any] | None = None

    @property
    def epoch(self) -> float:
        """Number of passes over all rows so far, from counts, which add up without rounding."""
        return self.n_expectations / self.n_samples

    @property
    def n_rounds(self) -> int:
        """Number of rounds of this run."""
        return self.server.round_index - self.first_round

    def criteria(self, name: str) -> list[float]:
        """Values of the criterion: of each exact round's E-step, or those that were evaluated."""
        if self.criteria_before:
            return self.criteria_before
        earlier = self.history.column(name)[:-1]
        return [*(value for value in earlier if not np.isnan(value)), self.final_criterion]


def initial_state(
    problem: Problem,
    start: Start,
    clients: Clients,
    *,
    control_init: ControlInit,
    watched: bool = False,
) -> RunState:
    """Initial state of a run; row 0 of the history has the costs before the first round.

    If ``watched``, the start is evaluated unless rounds will do so. The criterion of the start is
    NaN if it is not needed.
    """
    # In exact rounds, the field does not depend on V, and the first one sets V_i to h_i(Ŝ) if α =
    # 1. With a smaller α, V_i would still be biased towards 0 when later rounds are random.
    needs_controls = not problem.exact or problem.task.control_step < 1
    model, evaluation, gains = problem.model, None, None
    watched = watched and bool(model.criterion)
    if start.kept is not None:  # the FittedState of a run that is continued
        server, gains = start.kept.server, start.kept.gains
    else:
        server = first_server(problem, start)
        if needs_controls and control_init == "field":
            evaluation = evaluate(problem, server, clients, initial=True)
            server = server._replace(control=evaluation.mean_field)
            start = _after_fields(problem, start)
    if evaluation is None and watched and not problem.exact:
        evaluation = evaluate(problem, server, clients)
    n_samples = problem.sizes.n_samples
    state = RunState(
        server=server,
        stopping=first_stopping(problem, server, gains),
        history=History(),
        trace=[model.trace(server.parameters)],
        criteria_before=[],
        n_expectations=start.n_passes * n_samples,
        n_samples=n_samples,
        first_round=server.round_index,
        initial_criterion=np.nan if evaluation is None else evaluation.criterion,
    )
    evaluated = evaluation_columns(model)
    if watched and evaluation is not None:
        evaluated = columns_at(model, server, evaluation)
    bits = start.uplink_bits, start.downlink_bits
    state.history.append(**history_row(problem, state, None, 0, *bits), **evaluated)
    return state


def first_server(problem: Problem, start: Start) -> ServerState:
    """State of the server at a new start, with V = 0."""
    return ServerState(
        round_index=0,
        statistics=start.statistics,
        parameters=start.parameters,
        control=np.zeros(problem.model.n_statistics),
        has_field=start.has_field,
        memory=start.memory,
    )


def _after_fields(problem: Problem, start: Start) -> Start:
    """The same start, including the costs of the clients' fields."""
    model, sizes, every = problem.model, problem.sizes, np.arange(problem.sizes.n_clients)
    n_up = model.uplink_numbers(sizes)
    downlink_bits = model.downlink_bits(sizes, every, start.parameters)
    start = start.after(FLOAT_BITS * n_up, downlink_bits)
    return start._replace(n_passes=start.n_passes + 1)


# ---- history


def history_row(
    problem: Problem,
    state: RunState,
    info: Any,
    n_active: int,
    uplink_bits: int,
    downlink_bits: int,
) -> dict[str, float]:
    """Row of the history after a round, without what an evaluation fills."""
    own = (problem.solver.columns or columns_of_steps)(state.server, info)
    return {
        "round": state.n_rounds,
        "epoch": state.epoch,
        **own,
        "n_active": n_active,
        "uplink_bits": uplink_bits,
        "downlink_bits": downlink_bits,
    }


class Evaluation(NamedTuple):
    """Criterion and mean field h(Ŝ) over all rows of all clients."""

    criterion: float
    mean_field: FloatArray


def evaluate(
    problem: Problem, server: ServerState, clients: Clients, *, initial: bool = False
) -> Evaluation:
    """Evaluate the server's state on all rows of all clients; V_i := h_i(Ŝ) if ``initial``."""
    model, reference = problem.model, problem.model.reference(server.statistics)
    field, log_likelihood = clients.mean_field(model, server.parameters, reference, initial=initial)
    criterion = np.nan
    if model.criterion:
        criterion = checked_criterion(model, log_likelihood, server.parameters)
    return Evaluation(criterion, field)


def checked_criterion(model: Model, log_likelihood: float, parameters: Parameters) -> float:
    """Value of the model's criterion; raise if it is NaN, which no stopping rule would notice."""
    criterion = model.criterion_value(log_likelihood, parameters)
    if np.isnan(criterion):
        raise ValueError(
            f"Expected a number as {model.criterion} of {type(model).__name__}, got NaN from a "
            f"mean log-likelihood of {log_likelihood:.6g}. Check the E-step for logarithms of 0, "
            "and the M-step for statistics outside its domain."
        )
    return criterion


def columns_at(model: Model, server: ServerState, evaluation: Evaluation) -> dict[str, float]:
    """Columns of the history at Ŝ, from its evaluation."""
    criterion, mean_field = evaluation
    if not server.has_field:
        return evaluation_columns(model, criterion)
    return evaluation_columns(model, criterion, model.field_sq_norm(server.statistics, mean_field))


def evaluation_columns(
    model: Model, criterion: float = np.nan, mean_field_sq_norm: float = np.nan
) -> dict[str, float]:
    """Columns of the history that an evaluation fills; NaN without one."""
    if not model.criterion:
        return {}
    return {model.criterion: criterion, "mean_field_sq_norm": mean_field_sq_norm}
