"""Evaluations over all rows of all clients."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .._federation import client_groups
from .._parallel import Workers
from .._typing import FloatArray
from ..models._base import Model, Parameters
from ._base import Problem, ServerState


class Evaluation(NamedTuple):
    """Criterion and mean field h(Ŝ) over all rows of all clients."""

    criterion: float
    mean_field: FloatArray


def evaluate(
    problem: Problem, server: ServerState, workers: Workers, controls: FloatArray | None = None
) -> Evaluation:
    """Evaluate the server's state on all rows of all clients.

    ``controls``, if given, is an array of client vectors that is overwritten by the fields h_i(Ŝ).
    """
    model, federation, vectors = problem.model, problem.federation, problem.vectors
    every = np.arange(federation.n_clients)
    reference = model.reference(server.statistics)

    def part(group: slice) -> tuple[FloatArray, float]:
        clients = every[group]
        estimate = model.all_rows(federation, server.parameters, clients)
        assert estimate.log_likelihood is not None  # all rows were read
        fields = estimate.statistics - reference
        if controls is not None:
            controls[vectors.places(clients)] = fields
        weights = federation.weights[group]
        log_likelihood: Any = weights @ estimate.log_likelihood  # a number
        return vectors.weighted(weights, clients, fields), log_likelihood

    groups = client_groups(federation.offsets, model.block_rows)
    parts = workers.map(part, groups, "evaluation")
    mean_field = vectors.total(every, [field for field, _ in parts])
    log_likelihood = sum(value for _, value in parts)
    return Evaluation(checked_criterion(model, log_likelihood, server.parameters), mean_field)


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
    return {model.criterion: criterion, "mean_field_sq_norm": mean_field_sq_norm}
