"""Parts of error messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

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
