"""What an imputer contributes to the steps of its ``fit``."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._data.cells import CellData
from .._data.frame_labels import fit_labels, labels_of_shape
from .._data.matrices import holds_clients
from .._federation import Federation
from .._parameters import is_auto
from .._typing import MatricesLike, Shape
from ..models._base import Start
from ..models.matrix.client_effects import client_penalty
from ..models.matrix.covariates import Covariates
from ..models.matrix.low_rank import LowRankModel
from ..models.matrix.start import (
    low_rank_model,
    start_again,
    start_run,
    with_automatic_penalty,
)
from ..models.matrix.theta import Effects, Theta
from ..solvers._fitted_state import FittedState, continued, fitted_state, same_rows
from ..solvers._from_parameters import federated_problem, options_of
from ..solvers._loop import Options
from ..solvers._state import RunState, evaluate
from ..solvers.base import Clients, Problem
from .covariates import (
    NO_COVARIATES,
    GivenCovariates,
    check_client_effects,
    n_client_effects,
    read_given,
)
from .residuals import moments_of_fit
from .warnings import warn_of_fit


class MatrixFit(NamedTuple):
    """Steps of a fit, see ``FitSteps``; ``theta`` and ``memory`` are those of a warm start.

    ``known`` are the attributes that parameters and data determine before the first round.
    """

    settings: Any
    X: MatricesLike
    data: CellData
    federation: Federation
    known: dict[str, Any]
    theta: Theta | None
    memory: FittedState | None
    covariates: Covariates | None = None
    rows: str = "observed cells"
    n_starts: int = 1

    @property
    def ids(self) -> NDArray[Any]:
        """Labels of the clients with observed cells."""
        return self.data.ids[self.data.observers]

    def problem(self, clients: Clients) -> Problem:
        """Problem for the model of these clients."""
        return federated_problem(self.settings, self._model(clients), clients.sizes)

    def options(self, problem: Problem) -> Options:
        """Options of a run."""
        return options_of(self.settings, problem)

    def _model(self, clients: Clients) -> LowRankModel:
        """Model from the clients' cells, counts and margins."""
        # Σ y and Σ N of each client determine the origin and the weights.
        clients.tell("origin", 1, n_sent=3)
        adaptive = is_auto(self.settings.step_size)
        model = low_rank_model(self.settings, clients, self.data.shape, adaptive, self.covariates)
        if is_auto(self.settings.penalty) and model.pooled.rank:
            return with_automatic_penalty(clients, model)
        return model

    def start(self, problem: Problem, clients: Clients) -> Start:
        """The end of the last fit if it had these cells, its θ, or a new start."""
        model: Any = problem.model  # a LowRankModel
        theta, memory, totals = self.theta, self.memory, self.federation.totals
        # Unless clients have effects now, and had none, or the reverse.
        if theta is not None and memory and memory.model.n_statistics == model.n_statistics:
            digest = clients.fingerprint()
            if same_rows(memory, totals, self.ids, digest):
                clients.messages.clear()  # the server knows these cells already
                start = start_again(model, memory.model, memory.server, theta)
                return continued(memory, problem, clients, start, totals, self.ids, digest)
        return start_run(model, theta)

    def so_far(self, problem: Problem, state: RunState) -> dict[str, Any]:
        """Fitted attributes after a round."""
        server, origin = state.server, self.data.origin  # to which its θ is relative
        model: Any = problem.model  # a LowRankModel
        penalty, support = float(model.pooled.penalty), model.pooled.support
        effects, low_rank, _ = server.parameters.natural  # copied: the memory keeps them
        return {
            **self.known,
            **self.known["_covariates"].attributes(effects.coefficients),
            "penalty_": penalty,
            "_fitted_penalty": penalty,
            "negative_binomial_size_": float(model.pooled.size),
            **self._client_effects(model, effects),
            "unobserved_rows_": np.flatnonzero(~support.is_observed[0]),
            "unobserved_columns_": np.flatnonzero(~support.is_observed[1]),
            "intercept_": float(effects.intercept) + origin,
            "row_effects_": effects.rows.copy(),
            "column_effects_": effects.columns.copy(),
            "row_factors_": low_rank.left.copy(),
            "singular_values_": low_rank.singular_values.copy(),
            "column_factors_": low_rank.right.copy(),
            "_largest_theta": float(server.statistics.iterate.theta.max()),
            "n_iter_": state.n_rounds,
            "converged_": False,
            "_memory": None,  # the memory of an earlier fit belongs to another θ
        }

    def fitted(self, problem: Problem, state: RunState, clients: Clients) -> dict[str, Any]:
        """Fitted attributes after the run."""
        objective, memory, settings = state.final_criterion, None, self.settings
        if np.isnan(objective):
            objective = evaluate(problem, state.server, clients).criterion
        if settings.warm_start:  # only if asked for: it is as large as the data
            totals, digest = self.federation.totals, clients.fingerprint()
            memory = fitted_state(self.ids, totals, problem, state, digest)
        model: Any = problem.model  # a LowRankModel
        residuals = moments_of_fit(clients, model, state.server)
        return {
            **self.so_far(problem, state),
            "dispersion_": residuals.dispersion,
            "serial_correlation_": residuals.serial_correlation,
            "objective_": float(objective),
            "converged_": state.converged,
            "history_": {**state.history.as_dict(), "singular_values": np.array(state.trace)},
            "client_drift_": self._drift(model, state),
            "_stopped_by": state.stopped_by,
            "_memory": memory,
        }

    def warn(self, problem: Problem, state: RunState, fitted: dict[str, Any]) -> None:
        """Give the warnings that apply to this fit."""
        warn_of_fit(self.settings, self.X, self.data, fitted, problem, state)

    def _client_effects(self, model: LowRankModel, effects: Effects) -> dict[str, Any]:
        """Effects of all clients, which are 0 without observed cells."""
        penalty = client_penalty(model.pooled)
        if penalty is None:
            return {"client_effects_": None, "client_effects_penalty_": None}
        of_all = np.zeros(len(self.data.ids))
        of_all[self.data.observers] = effects.coefficients[-len(self.data.observers) :]
        return {"client_effects_": of_all, "client_effects_penalty_": penalty}

    def _drift(self, model: LowRankModel, state: RunState) -> NDArray[np.float64]:
        """Root mean square of the residuals of each client, from its control variate."""
        drift = np.zeros(len(self.data.ids))
        assert state.clients is not None  # the run has ended
        if state.clients["controls"].size:
            # Divided by the number of visits, so that many visits alone do not look like drift.
            squares = state.clients["controls"] ** 2 / model.numbers
            sums = np.add.reduceat(squares, self.federation.offsets[:-1])
            drift[self.data.observers] = np.sqrt(self.federation.lengths * sums)
        return drift


def known_attributes(
    settings: Any,
    X: MatricesLike,
    clients: ArrayLike | None,
    shape: Shape | None,
    data: CellData,
    offset: MatricesLike | None = None,
    given: GivenCovariates = NO_COVARIATES,
) -> dict[str, Any]:
    """Attributes that the data and the parameters determine before the first round."""
    labels = fit_labels(X, settings.rows) if shape is None else labels_of_shape(shape)
    # If labels divide a matrix among clients, they do not share their rows.
    has_sites = settings.rows == "shared" and (clients is None or shape is not None)
    check_client_effects(settings, share_rows=has_sites)
    n_clients = n_client_effects(settings, data)
    covariates = read_given(given, data.shape, labels, settings.effects, n_clients)
    return {
        "row_covariate_names_": covariates.rows.names,
        "column_covariate_names_": covariates.columns.names,
        "row_groups_": covariates.groups,
        "_covariates": covariates,
        "_given_covariates": given,
        "n_clients_": len(data.ids),
        "client_ids_": data.ids,
        "row_offsets_": data.row_offsets,
        # Parameters of this fit, which set_params may change later.
        "_fitted_family": settings.family,
        "_fitted_effects": settings.effects,
        "_fitted_effects_penalty": float(settings.effects_penalty),
        "_shape": data.shape,
        "_has_offset": offset is not None or (data.place is not None and data.place.has_offset),
        "_digest": data.digest() if data.place is None else "",  # "" of clients elsewhere
        "_has_triplets": shape is not None,
        "_has_triplets_alone": shape is not None and not holds_clients(X),
        "_has_sites": has_sites,
        "_row_labels": labels[0],
        "_column_labels": labels[1],
    }
