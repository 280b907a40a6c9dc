"""What a federated network contributes to the steps of its ``fit``, or to a call of a stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from numpy.typing import NDArray

from .._federation import Federation
from .._typing import FloatArray
from ..clients.local import SetUpMessage
from ..models._base import Start
from ..models._network import Network
from ..solvers._fitted_state import FittedState, fitted_state
from ..solvers._loop import Options
from ..solvers._state import RunState
from ..solvers._stream import problem_of_some
from ..solvers.base import Clients, Problem
from ..solvers.hard_em import sparsity
from .outcome import history_after, last_known, warn_of_fit
from .run import Units, first_start, next_start, with_absent_clients
from .settings import problem_of


class NetworkFit(NamedTuple):
    """Steps of a fit, see ``FitSteps``, or of a call of a stream, which is one round.

    Attributes
    ----------
    settings, federation, ids
        As in ``FitSteps``; a stream's settings have ``max_iter=1``.
    network : Network
    network_attributes : callable
        Maps the network and the parameters of its models to fitted attributes.
    known : dict
        Fitted attributes that are known before the first round.
    units : Units or None
        Units of the targets of a regression.
    memory : FittedState or None
        State of the last fit or call, to continue from.
    history : dict of ndarray or None
        History of the earlier calls of a stream.
    in_stream : bool
    scores : callable or None
        Maps fitted attributes to columns of the history, from validation data.
    labels : SetUpMessage or None
        Messages of labels before the first round, unless they were counted already.
    """

    settings: Any
    federation: Federation
    ids: NDArray[Any]
    network: Network
    network_attributes: Callable[[Any, FloatArray], dict[str, Any]]
    known: dict[str, Any]
    units: Units | None
    memory: FittedState | None
    history: dict[str, NDArray[Any]] | None
    in_stream: bool
    scores: Callable[[dict[str, Any]], dict[str, float]] | None
    labels: SetUpMessage | None = None
    rows: str = ""
    n_starts: int = 1

    def problem(self, clients: Clients) -> Problem:
        """Problem of hard EM; a stream's, for those clients that are present."""
        problem = problem_of(self.settings, self.network, clients.sizes)
        return problem_of_some(problem, clients.sizes) if self.in_stream else problem

    def options(self, problem: Problem) -> Options:
        """Options of a run: all of its rounds."""

        def evaluate(state: RunState, clients: Clients) -> dict[str, float]:
            assert self.scores is not None
            return self.scores(self._attributes(problem, state._replace(clients=clients.save())))

        return Options(
            step_size=lambda round_number: 1.0,
            control_init="zeros",
            max_iter=self.settings.max_iter,
            eval_every=self.settings.eval_every,
            evaluate=evaluate if self.scores else None,
        )

    def start(self, problem: Problem, clients: Clients) -> Start:
        """Start of a new run, or of one that continues the last."""
        if self.memory is None:
            return first_start(problem, clients, self.units, self.labels)
        return next_start(problem, clients, self.memory, self.federation.totals, self.ids)

    def so_far(self, problem: Problem, state: RunState) -> dict[str, Any]:
        """Fitted attributes after a round."""
        network, shared = problem.model.network, state.server.statistics
        centres = shared.weights
        if self.units is not None:
            centres = network.with_outputs_in(centres, self.units.mean, self.units.scale)
        return {
            **self.network_attributes(network, centres),
            **self.known,
            "sparsity_": sparsity(problem.model.prior, shared),
            "n_clients_": len(self.ids),
            "client_ids_": self.ids.copy(),
            "_units": self.units,
            "_memory": None,
        }

    def _attributes(self, problem: Problem, state: RunState) -> dict[str, Any]:
        """Fitted attributes after a round, with the clients' own models."""
        memory = fitted_state(self.ids, self.federation.totals, problem, state)
        return {**self.so_far(problem, state), "_memory": memory}

    def fitted(self, problem: Problem, state: RunState, clients: Clients) -> dict[str, Any]:
        """Fitted attributes after the run."""
        fitted = self._attributes(problem, state)
        if self.in_stream and self.memory is not None:
            memory = with_absent_clients(fitted["_memory"], self.memory)
            ids = memory.ids.copy()
            fitted |= {"_memory": memory, "client_ids_": ids, "n_clients_": len(ids)}
        history = state.history.as_dict()
        if self.units is not None:
            history["loss"] *= self.units.scale**2
        if self.history is not None:
            history = history_after(self.history, history)
        return {
            **fitted,
            "history_": history,
            "n_iter_": len(history["round"]) - 1,
            "loss_curve_": history["loss"][1:].tolist(),
            "loss_": last_known(history["loss"]),
        }

    def warn(self, problem: Problem, state: RunState, fitted: dict[str, Any]) -> None:
        """Give the warnings that apply to this fit."""
        warn_of_fit(problem, state, in_stream=self.in_stream)
