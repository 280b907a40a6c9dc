"""Base class of the federated networks: ``fit``, and the rounds of ``partial_fit``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import nan
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import validate_data

from .._callbacks import CallbackSupportMixin, with_callbacks
from .._data.by_client import by_client
from .._data.clients import read_clients, read_rows
from .._data.features import check_columns_of_fit, features_of, store
from .._data.tables import first_table, is_client_list
from .._data.targets import stacked_targets, targets_of_rows
from .._estimators.fit import fit
from .._federation import Elsewhere, Federation
from .._parameters import read_parameters, unfitted
from .._rows import LabelledRows, precision_of
from .._typing import ClientsLike, FilePath, FloatArray, RowWeights
from ..clients.local import SetUpMessage
from ..models._network import Network
from ..solvers._fitted_state import FittedState
from .fit_steps import NetworkFit
from .fitted import FittedNetwork
from .outcome import naming_clients
from .run import Units, in_units, labels_told, moments_of, units_of, with_known_clients
from .settings import check_parameters

Targets = Any
"""Targets of one table, or a list with those of each client."""


class FederatedNetwork(CallbackSupportMixin, FittedNetwork):
    """Base class of estimators that train networks by hard EM, whose parameters a subclass has."""

    loss_: float
    loss_curve_: list[float]
    n_iter_: int
    setup_messages_: list[SetUpMessage]
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
        settings, checked = self._settings(X, y, memory is not None), unfitted(self)
        settings.max_iter = n_rounds
        federation, ids, _ = read_clients(
            checked,
            X,
            clients,
            sample_weight,
            client_weights=settings.client_weights,
            drop_equal_weights=True,
        )
        labels = None
        if isinstance(X, Elsewhere):
            n_outputs, known, units = X.read()
            federation = federation._replace(rows=LabelledRows(federation.rows, np.empty(0)))
        else:
            is_classes = self._loss == "log_loss"
            y = stacked_targets(
                X, y, classes=is_classes, clients=clients, sample_weight=sample_weight
            )
            federation, n_outputs, known, units = self._labelled(federation, y, memory is not None)
            if is_classes and not in_stream:
                labels = labels_told(federation, known["classes_"])
        if in_stream:
            settings.checkpoint = None
            if memory is not None:
                weights = settings.client_weights
                memory, federation = with_known_clients(memory, federation, ids, weights)
        steps = NetworkFit(
            settings,
            federation,
            ids,
            network=self._new_network(checked.n_features_in_, n_outputs),
            network_attributes=self._network_attributes,
            known={**features_of(checked), **known},
            units=units,
            memory=memory,
            history=self.history_ if in_stream and memory is not None else None,
            in_stream=in_stream,
            scores=self._scores(checked, X_val, y_val, len(ids)),
            labels=labels,
        )
        with naming_clients(ids):
            return fit(self, steps, X, y, sample_weight, resume_from)

    def _settings(self, X: ClientsLike, y: Targets, continued: bool) -> Any:
        """Parameters, once they are valid, there are targets, and X has the columns of the fit."""
        self._check_own_parameters()
        check_parameters(self)
        if y is None and not isinstance(X, Elsewhere):
            raise ValueError(
                f"Expected targets: {type(self).__name__} requires y to be passed, but the target "
                "y is None. Give one for each row of X."
            )
        if continued:
            check_columns_of_fit(self, X)
            validate_data(self, first_table(X), reset=False, skip_check_array=True)
        return read_parameters(self)

    def _labelled(
        self, federation: Federation, y: NDArray[Any], continued: bool
    ) -> tuple[Federation, int, dict[str, Any], Units | None]:
        """Rows with targets for the network, the other results of ``_encoded``, and the units."""
        targets, n_outputs, known = self._encoded(y, continued)
        units = None
        if self._loss == "squared_error":
            units = (
                self._units
                if continued
                else units_of(federation.weights, moments_of(federation, targets))
            )
            targets = in_units(targets, units).astype(precision_of(federation.rows), copy=False)
        rows = LabelledRows(federation.rows, targets)
        return federation._replace(rows=rows), n_outputs, known, units

    def _check_own_parameters(self) -> None:
        """Raise TypeError or ValueError for an invalid parameter of the subclass."""
        raise NotImplementedError

    def _new_network(self, n_features: int, n_outputs: int) -> Network:
        """Network for a fit, from validated parameters.

        ``n_outputs`` is the number of classes, or of columns of the targets.
        """
        raise NotImplementedError

    def _network_attributes(self, network: Any, centres: FloatArray) -> dict[str, Any]:
        """Fitted attributes of the network for the parameters of its models, (n_models, d)."""
        raise NotImplementedError

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
        self, checked: Self, X_val: Any, y_val: Targets, n_clients: int
    ) -> Callable[[dict[str, Any]], dict[str, float]] | None:
        """Scores on validation data of a model with given attributes; None without."""
        if X_val is None and y_val is None:
            return None
        if X_val is None or y_val is None:
            missing = "X_val" if X_val is None else "y_val"
            raise ValueError(f"Expected both X_val and y_val, got None for {missing}. Give both.")
        # Both raise for what does not match, before the first round.
        by_client(X_val, partial(read_rows, checked))
        targets_of_rows(X_val, y_val, classes=self._loss == "log_loss")
        has_own = is_client_list(X_val) and self.keep_local
        if has_own and len(X_val) != n_clients:
            raise ValueError(
                f"Expected validation data of the {n_clients} clients of X, got a list of "
                f"{len(X_val)} tables. Give one for each, or one table."
            )

        def scores(fitted: dict[str, Any]) -> dict[str, float]:
            numbers = np.arange(n_clients)
            model, memory = unfitted(self), fitted["_memory"]._replace(ids=numbers)
            store(model, {**fitted, "_memory": memory})
            own = model._mean_own_score(X_val, y_val) if has_own else nan
            return {"score": model.score(X_val, y_val), "local_score": own}

        return scores
