"""What a mixture contributes to the steps of its ``fit``.

Streams, which have one run that never ends, are in ``partial_fit.py``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._data.clients import ClientData
from .._data.labels import find_labels
from .._federation import Federation
from ..models._base import Start
from ..models.mixture.gaussian_mixture import GaussianMixtureModel
from ..models.mixture.initial_parameters import (
    InitialParameters,
    check_distance_of_rows,
    check_initial_parameters,
    check_same_kind,
)
from ..models.mixture.initialization import (
    n_moments_told,
    standardise,
    standardised_again,
    start_again,
    start_run,
)
from ..solvers._fitted_state import FittedState, continued, fitted_state
from ..solvers._from_parameters import federated_problem, options_of
from ..solvers._loop import Options
from ..solvers._state import RunState
from ..solvers.base import Clients, Problem
from .outcome import fitted_attributes, so_far_fitted, warn_of_fit


class MixtureFit(NamedTuple):
    """Steps of a fit, see ``FitSteps``: a new one, or one that continues from ``memory``."""

    settings: Any
    data: ClientData
    features: dict[str, Any]
    initial: InitialParameters
    memory: FittedState | None
    rows: str = "rows"

    @property
    def federation(self) -> Federation:
        return self.data.federation

    @property
    def ids(self) -> NDArray[Any]:
        return self.data.ids

    @property
    def n_starts(self) -> int:
        return self.settings.n_init if self.memory is None else 1

    def problem(self, clients: Clients) -> Problem:
        """Problem for the model of these clients."""
        return federated_problem(self.settings, self._model(clients), clients.sizes)

    def options(self, problem: Problem) -> Options:
        """Options of a run."""
        return options_of(self.settings, problem)

    def _model(self, clients: Clients) -> GaussianMixtureModel:
        """Model in the units of these rows, or in those of the fit that is continued."""
        settings, initial, memory = self.settings, self.initial, self.memory
        if memory is None:
            return standardise(settings, clients, initial, settings.batch_size)
        check_distance_of_rows(memory.model, initial, clients, self.ids)
        return standardised_again(settings, memory.model, clients, initial)

    def start(self, problem: Problem, clients: Clients) -> Start:
        """Start of a run; a continued one takes over the clients' states."""
        model: Any = problem.model  # a GaussianMixtureModel
        initial, memory = self.initial, self.memory
        if memory is None:
            seed = problem.task.seed
            return start_run(model, clients, self.settings.init_params, initial, seed)
        start = start_again(model, clients, memory.model, memory.server, initial)
        n_new = int(np.count_nonzero(find_labels(memory.ids, self.ids) < 0))
        clients.tell("units", n_moments_told(model), n_new)
        totals, digest = self.federation.totals, self._digest(clients)
        return continued(memory, problem, clients, start, totals, self.ids, digest)

    def so_far(self, problem: Problem, state: RunState) -> dict[str, Any]:
        """Fitted attributes after a round."""
        model: Any = problem.model  # a GaussianMixtureModel
        own = so_far_fitted(model, state.server, state.n_rounds, self.settings)
        return {
            **own,
            **self.features,
            "n_clients_": len(self.ids),
            "client_ids_": self.ids.copy(),
        }

    def fitted(self, problem: Problem, state: RunState, clients: Clients) -> dict[str, Any]:
        """Fitted attributes after the run."""
        totals, digest = self.federation.totals, self._digest(clients)
        memory = fitted_state(self.ids, totals, problem, state, digest)
        memory = memory._replace(row_weight=self.data.row_weight)
        history = {**state.history.as_dict(), "weights": np.array(state.trace)}
        criteria = state.criteria("log_likelihood")
        fitted = fitted_attributes(memory, history, criteria, self.settings)
        return {**fitted, **self.features, "converged_": state.converged}

    def warn(self, problem: Problem, state: RunState, fitted: dict[str, Any]) -> None:
        """Give the warnings that apply to this fit."""
        warn_of_fit(self.settings, problem, state, self.features)

    def _digest(self, clients: Clients) -> str:
        """Digest of the rows if the clients' states are only valid for them.

        Control variates are valid for other rows too, and FedEM's clients keep nothing else.
        """
        return "" if self.settings.solver == "fedem" else clients.fingerprint()


def memory_of_fit(estimator: Any) -> FittedState | None:
    """Memory of the last fit or None; raise for the unfinished copy that a callback gets."""
    memory = getattr(estimator, "_memory", None)
    if memory is None and hasattr(estimator, "converged_"):
        raise ValueError(
            "Expected an estimator whose fit has ended, got one that a callback received "
            "during a fit, which lacks the control variates needed to continue. To save a run, "
            "use checkpoint=path. To start over, fit with warm_start=False."
        )
    return memory


def initial_parameters(
    estimator: Any, settings: Any, n_features: int, memory: FittedState | None
) -> InitialParameters:
    """Validated initial values, or the fitted parameters to continue from."""
    if memory is None:
        return check_initial_parameters(settings, n_features)
    check_same_kind(settings, n_features, memory.model)
    fitted = InitialParameters(estimator.weights_, estimator.means_, estimator.covariances_)
    return check_initial_parameters(settings, n_features, fitted)
