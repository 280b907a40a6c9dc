"""Helpers for messages, and warnings that point to the user's line."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

Advice = tuple[str, type[Warning]]
"""A warning: its message and its category."""

# List that collects this context's warnings, if they are held back.
_KEPT: ContextVar[list[Advice] | None] = ContextVar("kept", default=None)
# Maximum number of characters of a wrong value in a message.
_LONGEST = 100


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def join_alternatives(ways: Sequence[str]) -> str:
    """Join alternatives: "a", "a or b", "a, b or c"."""
    return " or ".join([", ".join(ways[:-1]), ways[-1]] if len(ways) > 1 else ways)


def label_repr(label: object) -> str:
    """Client label, without NumPy's type name."""
    if not isinstance(label, np.generic):
        return repr(label)
    if label.dtype.kind in "mM":
        return str(label)
    return repr(label.item())


def repr_of(value: object) -> str:
    """A value as by ``repr``, without NumPy's type names, shortened if it is long."""
    with np.printoptions(legacy="1.21"):  # without type names of NumPy's scalars
        return truncate(repr(value))


def truncate(text: object) -> str:
    """Text on one line, shortened if it is long."""
    text = " ".join(str(text).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


@contextmanager
def error_context(where: str) -> Iterator[None]:
    """Context that puts ``where`` before type and value errors, and adds it as a note to others."""
    try:
        yield
    except (TypeError, ValueError, OverflowError) as error:
        # Not type(error), whose constructor may take other arguments.
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{where}: {error}") from error
    except Exception as error:
        if where not in getattr(error, "__notes__", ()):  # the same error may pass several times
            error.add_note(where)
        raise


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
