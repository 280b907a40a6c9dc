"""Parts of messages to the user, and warnings that point to the user's line."""

from __future__ import annotations

import sys
import warnings
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

# Where this thread's advice is kept instead of being given, if it is.
_KEPT: ContextVar[list | None] = ContextVar("kept", default=None)
# Characters of a wrong value that a message shows.
_LONGEST = 100


def plural(count, noun):
    return f"{count} {noun}{'' if count == 1 else 's'}"


def either(ways):
    """Ways to choose from: "a", "a or b", "a, b or c"."""
    return " or ".join([", ".join(ways[:-1]), ways[-1]] if len(ways) > 1 else ways)


def shown(label):
    """A client's label as a person writes it."""
    if not isinstance(label, np.generic):
        return repr(label)
    if label.dtype.kind in "mM":
        return str(label)
    return repr(label.item())


def short(value):
    """A value as a person writes it, without the end of a long one, as of a table."""
    with np.printoptions(legacy="1.21"):  # without the names of NumPy's scalars
        return cut(repr(value))


def cut(text):
    """A text on one line, without the end of a long one."""
    text = " ".join(str(text).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


@contextmanager
def naming(where):
    """Errors begin with whose data they are about; those that users raise have it as a note."""
    try:
        yield
    except (TypeError, ValueError, OverflowError) as error:
        # Not the error's own type: that of a user's transformer may take other arguments.
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{where}: {error}") from error
    except Exception as error:
        if where not in getattr(error, "__notes__", ()):  # it may be raised again and again
            error.add_note(where)
        raise


def warn(message, category):
    """Warn at the user's line: that of the nearest caller outside this package and scikit-learn."""
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
def kept_back():
    """Keep the package's advice back, in a list of messages and their categories.

    That of steps on the way to a result is not for the user. Other threads give theirs: this is not
    ``warnings.catch_warnings``, whose filters are those of all threads, and stay for good if it
    ends in another order than it began.
    """
    advice: list = []
    token = _KEPT.set(advice)
    try:
        yield advice
    finally:
        _KEPT.reset(token)
