"""What is watched beside results: warnings, memory, threads of libraries; and Ctrl+C."""

import tracemalloc
import warnings

from threadpoolctl import threadpool_info


def said_by(function, *arguments, **keywords):
    """Messages of all warnings of a call."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function(*arguments, **keywords)
    return [str(warning.message) for warning in caught]


def peak_memory(function, *arguments, **keywords):
    """Largest memory that a call allocates, in bytes."""
    tracemalloc.start()
    try:
        function(*arguments, **keywords)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def library_threads():
    """Number of threads of each library that has some of its own."""
    return [library["num_threads"] for library in threadpool_info()]


def interrupted(function, at):
    """The function, with Ctrl+C in place of the call of this number; ``n_calls`` counts them."""

    def pressed(*arguments, **keywords):
        pressed.n_calls += 1
        if pressed.n_calls == pressed.at:
            raise KeyboardInterrupt
        return function(*arguments, **keywords)

    pressed.n_calls, pressed.at = 0, at
    return pressed
