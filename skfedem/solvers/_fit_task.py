"""What scikit-learn's callbacks are told of a fit: its tasks, and the attributes so far."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from sklearn.base import BaseEstimator

from ._state import RunState

# Passed as targets, because scikit-learn's ScoringMonitor only scores if these are not None.
_NO_TARGETS = ()


class FitTask:
    """The task "fit" of an estimator, and one subtask for each round.

    Parameters
    ----------
    estimator : estimator
        The estimator that is being fitted.
    X, y : object
        Data that it is fitted to, as passed by the user.
    max_rounds : int or None
        Maximum number of rounds of a start.
    sample_weight : object, default=None
        Row weights, as passed by the user.
    n_starts : int, default=1
        Number of starts; if there are several, each is a subtask.
    """

    def __init__(
        self,
        estimator: BaseEstimator,
        X: object,
        y: object,
        max_rounds: int | None,
        sample_weight: object = None,
        n_starts: int = 1,
    ) -> None:
        self._estimator = estimator
        self._data = {
            "estimator": estimator,
            "X": X,
            "y": _NO_TARGETS if y is None else y,
            "metadata": None if sample_weight is None else {"sample_weight": sample_weight},
        }
        self._max_rounds, self._n_starts = max_rounds, n_starts
        # Tasks of scikit-learn: the fit, a start among several while it is open, and a round.
        self._root: Any = None
        self._start: Any = None
        self._round: Any = None
        if hasattr(estimator, "_init_callback_context"):
            self._root = estimator._init_callback_context(
                max_subtasks=max_rounds if n_starts == 1 else n_starts
            )
            self._root.call_on_fit_task_begin(**self._data)

    def begin_start(self, fitted: Callable[[RunState], dict[str, Any]]) -> Self | None:
        """Begin the next start; return this task, or None if there are no callbacks.

        ``fitted`` maps the state of the run to the current fitted attributes.
        """
        if not getattr(self._estimator, "_skl_callbacks", None):
            return None
        self._fitted = fitted
        if self._n_starts > 1:
            self._start = self._root.subcontext(task_name="start", max_subtasks=self._max_rounds)
            self._start.call_on_fit_task_begin(**self._data)
        return self

    def begin_round(self, state: RunState) -> None:
        """Begin a round, from the current state of the run."""
        self._round = (self._start or self._root).subcontext(task_name="round")
        self._round.call_on_fit_task_begin(
            **self._data, reconstruction_attributes=lambda: self._so_far(state)
        )

    def end_round(self, state: RunState) -> bool:
        """End a round; return whether a callback stops the fit."""
        return self._round.call_on_fit_task_end(
            **self._data, reconstruction_attributes=lambda: self._so_far(state)
        )

    def _so_far(self, state: RunState) -> dict[str, Any]:
        """Current attributes of the estimator, without the trace, which is slow to convert."""
        # scikit-learn sets them on a copy of the estimator, which may have attributes of an earlier
        # fit.
        given = {k: value for k, value in vars(self._estimator).items() if not k.endswith("_")}
        history = state.history.as_dict()
        return {"__dict__": {**given, **self._fitted(state), "history_": history}}

    def end_start(self, state: RunState | None = None) -> None:
        """End the task of the start, if there is one."""
        if self._start is not None:
            start, self._start = self._start, None
            attributes = {} if state is None else self._so_far(state)
            start.call_on_fit_task_end(**self._data, reconstruction_attributes=attributes)

    def end(self) -> None:
        """End the task, when the estimator is fitted."""
        self.end_start()  # if a start was interrupted before its first round
        if self._root is not None:
            self._root.call_on_fit_task_end(**self._data, reconstruction_attributes={})
