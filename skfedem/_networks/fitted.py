"""Predictions of a fitted network: those of the global model, and of the clients' own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from .._data.by_client import each_table, each_table_stacked
from .._data.clients import read_rows
from .._data.labels import (
    check_kinds,
    check_no_labels,
    check_not_name,
    find_labels,
    group_rows,
)
from .._data.rows import row_weights
from .._data.tables import is_client_list
from .._data.targets import targets_of_rows
from .._rows import Rows, in_blocks, take_rows
from .._typing import ClientsLike, FloatArray, RowWeights, Table
from ..models._network import Network

# Number of activations that are computed at once.
_BLOCK = 2**21
Array = NDArray[Any]
Answer = Any
"""An array for one table, or a tuple of arrays for a list of clients."""


class FittedNetwork(BaseEstimator):
    """Predictions by the attributes that ``fit`` has set."""

    _loss: Literal["log_loss", "squared_error"]

    def _responses(
        self, X: ClientsLike, clients: ArrayLike | None = None, personal: bool = False
    ) -> Answer:
        """Probabilities of classes, or predicted targets, of shape (n_samples, n_outputs)."""
        check_is_fitted(self)
        check_not_name(clients)
        model, centres = self._fitted_network()
        answer = partial(self._of_table, model=model, centres=centres)
        if is_client_list(X):
            check_no_labels(clients)
            if not personal:
                return each_table_stacked(X, answer)
            own = self._own_models(np.arange(len(X)), model, centres)
            pairs = iter(own)
            return each_table(X, lambda table: self._of_table(table, model, next(pairs)))
        if clients is None:
            if personal:
                raise ValueError(
                    "Expected clients with personal=True and one table, got None. Give the label "
                    "of the client of each row, or a list of tables."
                )
            return answer(X)
        rows = read_rows(self, X)
        ids, order, offsets = group_rows(clients, len(rows))
        order = np.arange(len(rows)) if order is None else order
        parts = [
            self._of_rows(take_rows(rows, order[offsets[k] : offsets[k + 1]]), model, own)
            for k, own in enumerate(self._own_models(ids, model, centres))
        ]
        return np.concatenate(parts)[np.argsort(order)]

    def _of_table(self, table: object, model: Network, centres: Array) -> Array:
        """Responses for the rows of one table, from one model or the mean of several."""
        return self._of_rows(read_rows(self, table), model, centres)

    def _of_rows(self, rows: Rows, model: Network, centres: Array) -> Array:
        def of_block(block: Array) -> Array:
            outputs = [model.outputs(own.astype(block.dtype), block) for own in centres]
            return np.mean([self._of_outputs(own, model) for own in outputs], axis=0)

        return in_blocks(rows, max(1, _BLOCK // model.n_activations), of_block)

    def _score(
        self,
        measure: Callable[..., float],
        X: ClientsLike,
        y: Any,
        sample_weight: RowWeights | None,
        clients: ArrayLike | None,
        personal: bool,
    ) -> float:
        """Score of the predictions for all rows."""
        predicted = self.predict(X, clients=clients, personal=personal)
        if isinstance(predicted, tuple):
            predicted = np.concatenate(predicted)
        targets = targets_of_rows(X, y, classes=self._loss == "log_loss")
        weights = None if sample_weight is None else row_weights(X, sample_weight)
        return float(measure(targets, predicted, sample_weight=weights))

    def _mean_own_score(self, X: Sequence[Table], y: Sequence[Any]) -> float:
        """Mean over clients of the scores of their own models."""
        n = len(X)
        scores = [self.score(X[k], y[k], clients=np.full(len(y[k]), k)) for k in range(n)]
        return float(np.mean(scores))

    def predict(
        self, X: ClientsLike, *, clients: ArrayLike | None = None, personal: bool = False
    ) -> Answer:
        """Predicted class or target of each row.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or a list of them
        clients : array-like of shape (n_samples,), default=None
            Label of the client of each row of one table, whose own model predicts it. A client that
            never took part has the global model.
        personal : bool, default=False
            For a list, whether the clients' own models predict their rows.

        Returns
        -------
        predictions : ndarray, or a tuple with one for each client of a list
            Most probable classes (n_samples,), or targets of the shape that they had in ``fit``. An
            ensemble averages the probabilities or the targets of its models.

        Raises
        ------
        NotFittedError
            Before ``fit``.
        TypeError, ValueError
            If X is no such table, contains NaN or inf, or has other features than the data of the
            fit; or if own models were not kept.
        """
        responses = self._responses(X, clients, personal)
        if isinstance(responses, tuple):
            return tuple(self._predicted(own) for own in responses)
        return self._predicted(responses)

    def _predicted(self, responses: Array) -> Array:
        """Predictions from the responses of one table."""
        raise NotImplementedError

    def _of_outputs(self, outputs: Array, model: Any) -> Array:
        """Responses of one model, from its outputs."""
        raise NotImplementedError

    def _fitted_network(self) -> tuple[Any, FloatArray]:
        """Network, and the parameters of the models, of shape (n_models, d)."""
        raise NotImplementedError

    def _own_models(self, ids: NDArray[Any], model: Any, centres: FloatArray) -> list[Array]:
        """Own model of each client, (1, d); all global models for one that never took part."""
        memory = self._memory
        if not memory.states.parameters.shape[1]:
            raise ValueError(
                "Expected an estimator that was fitted with keep_local=True for personal=True, got "
                "one without the clients' own models. Fit with keep_local=True."
            )
        check_kinds(memory.ids, ids)
        places = find_labels(memory.ids, ids).tolist()
        own, took_part = memory.states.parameters, memory.states.took_part
        models = [own[[k]] if k >= 0 and took_part[k] else None for k in places]
        if self._units is not None:
            mean, scale = self._units
            models = [
                None if own is None else model.with_outputs_in(own, mean, scale) for own in models
            ]
        return [centres if own is None else own for own in models]
