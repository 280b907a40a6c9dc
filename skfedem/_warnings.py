"""Warnings that point to the user's line, and can be held back."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Advice = tuple[str, type[Warning]]
"""A warning: its message and its category."""

# List that collects this context's warnings, if they are held back.
_KEPT: ContextVar[list[Advice] | None] = ContextVar("kept", default=None)


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the line of the nearest caller outside this package, scikit-learn and joblib."""
    kept = _KEPT.get()
    if kept is not None:
        kept.append((message, category))
        return
    frame, level = sys._getframe(1), 2
    ours = ("skfedem", "sklearn", "joblib")
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in ours:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


@contextmanager
def collect_warnings() -> Iterator[list[Advice]]:
    """Context that collects this package's warnings in a list.

    Warnings of intermediate steps are not for the user. Other threads are not affected, unlike with
    ``warnings.catch_warnings``, whose filters are global and remain if contexts do not end in
    reverse order.
    """
    advice: list[Advice] = []
    token = _KEPT.set(advice)
    try:
        yield advice
    finally:
        _KEPT.reset(token)
