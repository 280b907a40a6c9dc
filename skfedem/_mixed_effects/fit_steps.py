"""What a population model contributes to the steps of its ``fit``."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._federation import Federation, weights_of_clients
from .._typing import ClientWeights
from ..models._base import Start
from ..models.mixed_effects.maximization import Theta
from ..models.mixed_effects.model import MixedEffectsModel
from ..models.mixed_effects.subjects import pack
from ..solvers._fitted_state import FittedState, continued, fitted_state
from ..solvers._from_parameters import federated_problem, options_of
from ..solvers._loop import Options
from ..solvers._state import RunState
from ..solvers.base import Clients, Problem, ServerState
from .design import Design
from .outcome import fitted_after, so_far_fitted, warn_of_fit, warn_of_small_sites
from .records import ClientRecords
from .report import sums_of_sites
from .settings import n_chains_of, solver_of
from .start import model_of, start_of, with_constants


class PopulationFit(NamedTuple):
    """Steps of a fit, see ``FitSteps``; ``memory`` and ``theta`` are those of a warm start."""

    settings: Any
    design: Design
    data: ClientRecords
    federation: Federation
    memory: FittedState | None = None
    theta: Theta | None = None
    rows: str = "subjects"
    n_starts: int = 1

    @property
    def ids(self) -> NDArray[Any]:
        return self.data.ids

    def problem(self, clients: Clients) -> Problem:
        """Problem for the model of these subjects."""
        model, solver = self._model(clients), solver_of(self.settings)
        return federated_problem(self.settings, model, clients.sizes, solver=solver)

    def options(self, problem: Problem) -> Options:
        """Options of a run."""
        return options_of(self.settings, problem)

    def _model(self, clients: Clients) -> MixedEffectsModel:
        """Model of these subjects."""
        settings, n_subjects = self.settings, self.federation.n_samples
        n_chains = n_chains_of(settings, n_subjects)
        clients.tell("places", 1, n_sent=3)  # for observations of a subject; and how many there are
        model = model_of(self.design, self.data.n_places, settings.n_nodes, n_chains)
        return with_constants(self.design, model, clients)

    def start(self, problem: Problem, clients: Clients) -> Start:
        """Start at the values of the user, or at the estimates of the last fit.

        Chains follow their subjects, also to other sites. With chains, sites keep their V_i, and V
        is their mean; otherwise, fields are computed exactly.
        """
        model: Any = problem.model  # a MixedEffectsModel
        if self.memory is None or self.theta is None:
            return start_of(self.design, model, clients, self.ids)
        parameters = model.parameters(self.theta)
        start = Start(model.statistics_of(parameters), parameters)
        if not problem.random_estimates:
            return start
        totals, keys = self.federation.totals, self.data.keys
        start = continued(self.memory, problem, clients, start, totals, self.ids, None, keys)
        kept: Any = start.kept  # a FittedState
        server = ServerState(0, start.statistics, parameters, clients.control())
        return start._replace(kept=kept._replace(server=server))

    def so_far(self, problem: Problem, state: RunState) -> dict[str, Any]:
        """Fitted attributes after a round."""
        return so_far_fitted(self.design, self.data, state.server.parameters, state.n_rounds)

    def fitted(self, problem: Problem, state: RunState, clients: Any) -> dict[str, Any]:
        """Fitted attributes after the run."""
        model: Any = problem.model  # a MixedEffectsModel
        controls, natural = clients.controls, state.server.parameters.natural
        sums = sums_of_sites(model, clients, natural, problem.task.seed)
        drift = np.sqrt((controls**2).sum(axis=1)) if controls.size else np.zeros(len(self.ids))
        fitted = fitted_after(self.settings, self.design, self.data, problem, state, sums, drift)
        totals, keys = self.federation.totals, self.data.keys
        memory = fitted_state(self.ids, totals, problem, state, row_keys=keys)
        memory = memory._replace(model=None)  # its functions cannot be pickled
        return {**fitted, "_n_nodes": self.settings.n_nodes, "_memory": memory}

    def warn(self, problem: Problem, state: RunState, fitted: dict[str, Any]) -> None:
        """Give the warnings that apply to this fit."""
        warn_of_small_sites(self.settings, self.design, self.federation.lengths, self.ids)
        warn_of_fit(self.settings, problem, state, converged=fitted["converged_"])


def federation_of(data: ClientRecords, client_weights: ClientWeights) -> Federation:
    """Subjects of all clients, a row each."""
    assert data.subjects is not None  # in this process
    lengths = data.offsets[1:] - data.offsets[:-1]
    weights = weights_of_clients(lengths, client_weights)
    return Federation(pack(data.subjects), data.offsets, weights, row_keys=data.keys)
