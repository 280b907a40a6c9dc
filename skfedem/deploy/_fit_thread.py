"""A fit that waits for replies, turned inside out: it runs in a thread, one step at a time."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple

from .._warnings import Advice, collect_warnings


class Outcome(NamedTuple):
    """How a fit ended: what it returned or raised, and the warnings it gave."""

    value: Any
    error: BaseException | None
    advice: list[Advice]


class _Stopped(BaseException):
    """The fit is given up."""


class FitThread:
    """Runs ``function(ask)``; either the thread or its owner runs, never both.

    ``ask(question)`` hands a question to the owner and returns what ``resume`` is given.
    """

    def __init__(self, function: Callable[[Callable[[Any], Any]], Any]) -> None:
        self._asked: SimpleQueue[Any] = SimpleQueue()
        self._answered: SimpleQueue[Any] = SimpleQueue()
        self._thread = Thread(target=self._run, args=(function,), daemon=True)

    def start(self) -> Any:
        """First question, or the ``Outcome``."""
        self._thread.start()
        return self._asked.get()

    def resume(self, answer: Any) -> Any:
        """Next question, or the ``Outcome``."""
        self._answered.put(answer)
        return self._asked.get()

    def stop(self) -> None:
        """Give up the fit, if it has not ended."""
        if self._thread.is_alive():
            self._answered.put(_Stopped())
            self._thread.join()

    def _ask(self, question: Any) -> Any:
        self._asked.put(question)
        answer = self._answered.get()
        if isinstance(answer, _Stopped):
            raise answer
        return answer

    def _run(self, function: Callable[[Callable[[Any], Any]], Any]) -> None:
        value: Any = None
        error: BaseException | None = None
        with collect_warnings() as advice:
            try:
                value = function(self._ask)
            except BaseException as raised:  # handed to the owner
                error = raised
        self._asked.put(Outcome(value, error, advice))
