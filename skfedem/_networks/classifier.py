"""Base class of classifiers that train networks by hard EM."""

from __future__ import annotations

from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils import Tags
from sklearn.utils.validation import column_or_1d

from .._error_messages import repr_of
from .._typing import ClientsLike, RowWeights
from .estimator import FederatedNetwork, Targets

Array = NDArray[Any]
Answer = Any
"""An array for one table, or a tuple with one for each client of a list."""


class NetworkClassifier(ClassifierMixin, FederatedNetwork):
    """Base class of classifiers: classes, predictions and streams."""

    _loss: Literal["log_loss"] = "log_loss"
    classes_: NDArray[Any]

    def partial_fit(
        self,
        X: ClientsLike,
        y: Targets,
        classes: ArrayLike | None = None,
        *,
        clients: ArrayLike | None = None,
        sample_weight: RowWeights | None = None,
    ) -> Self:
        """Run one round on these rows.

        Parameters
        ----------
        X, y
            As in ``fit``.
        classes : array-like of shape (n_classes,), default=None
            All classes of all calls; required in the first call unless it follows ``fit``.
        clients, sample_weight
            As in ``fit``. Clients are recognised by their labels (in a list, by their positions);
            new ones join, and those without rows in this call do not take part.

        Returns
        -------
        self : object
            Fitted estimator.

        Raises
        ------
        TypeError, ValueError
            If data or parameters are invalid; the estimator is then left unchanged.
        """
        memory = self._last_memory()
        if memory is None and classes is None:
            raise ValueError(
                "Expected classes in the first call of partial_fit, got None. Give the labels of "
                "all classes."
            )
        self._given_classes = None if classes is None else np.unique(column_or_1d(classes))
        try:
            return self._fit(X, y, memory, 1, clients, sample_weight, in_stream=True)
        finally:
            del self._given_classes

    def _encoded(self, y: Array, continued: bool) -> tuple[Array, int, dict[str, Any]]:
        """Numbers of classes."""
        given = getattr(self, "_given_classes", None)
        classes, codes = np.unique(y, return_inverse=True)
        known = self.classes_ if continued else classes if given is None else given
        if given is not None and not np.array_equal(given, known):
            raise ValueError(
                f"Expected the classes of earlier calls, {repr_of(known)}, got {repr_of(given)}. "
                "Omit classes, or start over on a clone."
            )
        unknown = ~np.isin(classes, known)
        if unknown.any():
            raise ValueError(
                f"Expected labels among the classes {repr_of(known)}, got "
                f"{repr_of(classes[unknown][0])}. Give all classes in the first call, or fit with "
                "warm_start=False."
            )
        codes = np.searchsorted(known, classes)[codes]
        return codes, len(known), {"classes_": known}

    def predict_proba(
        self, X: ClientsLike, *, clients: ArrayLike | None = None, personal: bool = False
    ) -> Answer:
        """Probability of each class for each row.

        Parameters
        ----------
        X, clients, personal
            As in ``predict``.

        Returns
        -------
        probabilities : ndarray of shape (n_samples, n_classes), or a tuple with one for each client
            For an ensemble, the mean over its models.

        Raises
        ------
        NotFittedError, TypeError, ValueError
            As in ``predict``.
        """
        return self._responses(X, clients, personal)

    def predict_log_proba(
        self, X: ClientsLike, *, clients: ArrayLike | None = None, personal: bool = False
    ) -> Answer:
        """Logarithms of ``predict_proba``.

        Parameters
        ----------
        X, clients, personal
            As in ``predict``.

        Returns
        -------
        log_probabilities : ndarray of shape (n_samples, n_classes), or a tuple of them

        Raises
        ------
        NotFittedError, TypeError, ValueError
            As in ``predict``.
        """
        probabilities = self.predict_proba(X, clients=clients, personal=personal)
        with np.errstate(divide="ignore"):
            if isinstance(probabilities, tuple):
                return tuple(np.log(own) for own in probabilities)
            return np.log(probabilities)

    def score(
        self,
        X: ClientsLike,
        y: Targets,
        sample_weight: RowWeights | None = None,
        *,
        clients: ArrayLike | None = None,
        personal: bool = False,
    ) -> float:
        """Accuracy: the share of rows whose class is predicted.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or a list of them
        y : array-like of shape (n_samples,), or a list of them
        sample_weight : array-like of shape (n_samples,), or a list of them, default=None
        clients, personal
            As in ``predict``.

        Returns
        -------
        accuracy : float
            Over all rows, whichever client holds them.

        Raises
        ------
        NotFittedError, TypeError, ValueError
            As in ``predict``; and if ``y`` or ``sample_weight`` does not match X.
        """
        return self._score(accuracy_score, X, y, sample_weight, clients, personal)

    def _predicted(self, responses: Array) -> Array:
        return self.classes_[responses.argmax(axis=1)]

    def _of_outputs(self, outputs: Array, model: Any) -> Array:
        if len(self.classes_) == 1:
            return np.ones((len(outputs), 1))
        probabilities: Array = model.probabilities(outputs)
        if probabilities.shape[1] == 1:
            probabilities = np.concatenate([1 - probabilities, probabilities], axis=1)
        return probabilities

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = False
        return tags
