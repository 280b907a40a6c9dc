"""Base class of the federated networks: ``fit``, and the rounds of ``partial_fit``."""

from __future__ import annotations

from math import nan
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import validate_data

from .._callbacks import CallbackSupportMixin, with_callbacks
from .._data.clients import read_clients
from .._data.features import check_columns_of_fit, features_of, store
from .._data.tables import first_table, is_client_list
from .._data.targets import stacked_targets, targets_of_rows
from .._parallel import Workers
from .._parameters import read_parameters, unfitted
from .._random import seeds_of_runs
from .._rows import LabelledRows, precision_of
from .._typing import ClientsLike, FilePath, FloatArray, RowWeights
from ..clients.local import LocalClients
from ..models._network import Network
from ..solvers._fit_task import FitTask
from ..solvers._fitted_state import FittedState, fitted_state
from ..solvers._resume import seed_of
from ..solvers._state import RunState
from ..solvers._stream import problem_of_some
from ..solvers.base import Clients, Problem
from .fitted import FittedNetwork
from .outcome import (
    history_after,
    last_known,
    naming_clients,
    so_far_fitted,
    warn_of_fit,
)
from .run import (
    Scores,
    Units,
    first_start,
    in_units,
    next_start,
    run_rounds,
    units_of,
    with_absent_clients,
    with_known_clients,
)
from .settings import check_parameters, problem_of

Targets = Any
"""Targets of one table, or a list with those of each client."""


class FederatedNetwork(CallbackSupportMixin, FittedNetwork):
    """Base class of estimators that train networks by hard EM, whose parameters a subclass has."""

    loss_: float
    loss_curve_: list[float]
    n_iter_: int
    sparsity_: float
    history_: dict[str, NDArray[Any]]
    n_clients_: int
    client_ids_: NDArray[Any]
    n_features_in_: int
    feature_names_in_: NDArray[Any]

    __metadata_request__fit = {"clients": True, "sample_weight": True}
    __metadata_request__partial_fit = {"clients": True, "sample_weight": True}
    __metadata_request__score = {"sample_weight": True}

    @with_callbacks
    def fit(
        self,
        X: ClientsLike,
        y: Targets,
        *,
        clients: ArrayLike | None = None,
        sample_weight: RowWeights | None = None,
        X_val: ClientsLike | None = None,
        y_val: Targets = None,
        resume_from: FilePath | None = None,
    ) -> Self:
        """Fit the network to the rows of all clients.

        Parameters
        ----------
        X : list of array-likes, or array-like of shape (n_samples, n_features)
            A list with one table (n_i, n_features) for each client; one table, with ``clients``; or
            one table alone, which is a single client.
        y : list of array-likes, or array-like of shape (n_samples,)
            Targets, in the same form as X; a client may lack classes.
        clients : array-like of shape (n_samples,), default=None
            Client label of each row of X, if X is one table.
        sample_weight : array-like of shape (n_samples,), or a list of them, default=None
            Weight of each row in the mean loss of a minibatch, in the same form as X. Rows of
            weight zero are ignored.
        X_val, y_val : as X and y, default=None
            Validation data for the columns ``score`` and, if they are lists with the clients of X,
            ``local_score`` of ``history_``.
        resume_from : path-like, default=None
            Checkpoint to resume from, of a run with the same data and parameters. The result is
            that of an uninterrupted run. ``max_iter``, ``checkpoint``, ``checkpoint_every``,
            ``n_jobs``, ``verbose`` and ``warm_start`` may differ, and ``random_state`` may be None.

        Returns
        -------
        self : object
            Fitted estimator.

        Raises
        ------
        TypeError, ValueError
            If data or parameters are invalid, or if the training of a client diverged; an earlier
            fit is then kept unchanged.
        FileNotFoundError
            If the file ``resume_from`` does not exist.

        Warns
        -----
        ConvergenceWarning
            If the fit was interrupted from the keyboard, or if all units of a layer were pruned.
        UserWarning
            If labels of clients look wrong, or a checkpoint could not be written.
        """
        memory = self._last_memory() if self.warm_start else None
        return self._fit(
            X, y, memory, self.max_iter, clients, sample_weight, X_val, y_val, resume_from
        )

    def _fit(
        self,
        X: ClientsLike,
        y: Targets,
        memory: FittedState | None,
        n_rounds: int,
        clients: ArrayLike | None,
        sample_weight: RowWeights | None,
        X_val: ClientsLike | None = None,
        y_val: Targets = None,
        resume_from: FilePath | None = None,
        *,
        in_stream: bool = False,
    ) -> Self:
        """Run rounds, from the start or from a memory, and set the fitted attributes."""
        self._check_own_parameters()
        check_parameters(self)
        settings, checked = read_parameters(self), unfitted(self)
        if y is None:
            raise ValueError(
                f"Expected targets: {type(self).__name__} requires y to be passed, but the target "
                "y is None. Give one for each row of X."
            )
        if memory is not None:
            check_columns_of_fit(self, X)
            validate_data(self, first_table(X), reset=False, skip_check_array=True)
        federation, ids, _ = read_clients(
            checked,
            X,
            clients,
            sample_weight,
            client_weights=settings.client_weights,
            drop_equal_weights=True,
        )
        is_classes = self._loss == "log_loss"
        y = stacked_targets(X, y, classes=is_classes, clients=clients, sample_weight=sample_weight)
        targets, n_outputs, attributes = self._encoded(y, memory is not None)
        units = None if memory is None else self._units
        if not is_classes:
            units = units or units_of(federation, targets)
            targets = in_units(targets, units).astype(precision_of(federation.rows), copy=False)
        federation = federation._replace(rows=LabelledRows(federation.rows, targets))
        (seed,) = seeds_of_runs(settings.random_state, 1)
        seed = seed_of(self, seed, resume_from)
        network = self._new_network(checked.n_features_in_, n_outputs, seed)
        if in_stream:
            settings.checkpoint = None
            if memory is not None:
                memory, federation = with_known_clients(
                    memory, federation, ids, settings.client_weights
                )
        problem = problem_of(settings, network, federation.sizes, seed)
        if in_stream:
            problem = problem_of_some(problem, federation.sizes)
        attributes |= features_of(checked)
        scores = self._scores(problem, attributes, units, X_val, y_val)
        tasks = FitTask(self, X, y, n_rounds, sample_weight)

        with Workers(settings.n_jobs) as workers, naming_clients(ids):
            local = LocalClients(federation, workers)
            if memory is None:
                start = first_start(problem, local, units)
            else:
                start = next_start(problem, local, memory, federation.totals, ids)
            begun = tasks.begin_start(
                lambda state: self._so_far(problem, state, attributes, ids, units)
            )
            name = type(self).__name__
            state = run_rounds(
                settings, name, problem, start, local, n_rounds, scores, begun, resume_from
            )
        after = fitted_state(ids, federation.totals, problem, state)
        if in_stream and memory is not None:
            after = with_absent_clients(after, memory)
        history = state.history.as_dict()
        if units is not None:
            history["loss"] *= units.scale**2
        if in_stream and memory is not None:
            history = history_after(self.history_, history)
        fitted = self._so_far(problem, state, attributes, after.ids, units)
        fitted |= {
            "history_": history,
            "n_iter_": len(history["round"]) - 1,
            "loss_curve_": history["loss"][1:].tolist(),
            "loss_": last_known(history["loss"]),
            "_memory": after,
        }
        store(self, fitted)
        tasks.end()
        warn_of_fit(problem, state)
        return self

    def _check_own_parameters(self) -> None:
        """Raise TypeError or ValueError for an invalid parameter of the subclass."""
        raise NotImplementedError

    def _new_network(self, n_features: int, n_outputs: int, seed: int) -> Network:
        """Network for a fit, from validated parameters; parts that are not trained may be random.

        ``n_outputs`` is the number of classes, or of columns of the targets.
        """
        raise NotImplementedError

    def _network_attributes(self, network: Any, centres: FloatArray) -> dict[str, Any]:
        """Fitted attributes of the network for the parameters of its models, (n_models, d)."""
        raise NotImplementedError

    def _so_far(
        self,
        problem: Problem,
        state: RunState,
        attributes: dict[str, Any],
        ids: NDArray[Any],
        units: Units | None,
    ) -> dict[str, Any]:
        """Fitted attributes after a round, and those that were known before the first one."""
        network, shared = problem.model.network, state.server.statistics
        centres = shared.weights
        if units is not None:
            centres = network.with_outputs_in(centres, units.mean, units.scale)
        return {
            **self._network_attributes(network, centres),
            **so_far_fitted(problem, shared, ids, units),
            **attributes,
        }

    def _encoded(
        self, y: NDArray[Any], continued: bool
    ) -> tuple[NDArray[Any], int, dict[str, Any]]:
        """Targets for the network, the number of their classes or columns, and fitted attributes.

        A fit that continues an earlier one keeps its attributes.
        """
        raise NotImplementedError

    def _last_memory(self) -> FittedState | None:
        return getattr(self, "_memory", None)

    def _scores(
        self,
        problem: Problem,
        attributes: dict[str, Any],
        units: Units | None,
        X_val: Any,
        y_val: Targets,
    ) -> Scores | None:
        """Function for the scores on validation data; None without."""
        if X_val is None:
            return None
        targets_of_rows(
            X_val, y_val, classes=self._loss == "log_loss"
        )  # raises for what does not match
        n_clients, totals = problem.sizes.n_clients, problem.sizes.lengths
        by_client = is_client_list(X_val) and problem.model.keep_local
        if by_client and len(X_val) != n_clients:
            raise ValueError(
                f"Expected validation data of the {n_clients} clients of X, got a list of "
                f"{len(X_val)} tables. Give one for each, or one table."
            )

        def scores(state: RunState, clients: Clients) -> dict[str, float]:
            model, numbers = unfitted(self), np.arange(n_clients)
            state = state._replace(clients=clients.save())
            memory = fitted_state(numbers, totals, problem, state)
            store(model, self._so_far(problem, state, attributes, numbers, units), _memory=memory)
            own = model._mean_own_score(X_val, y_val) if by_client else nan
            return {"score": model.score(X_val, y_val), "local_score": own}

        return scores
