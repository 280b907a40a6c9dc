"""Workers that process groups of clients, sequentially or in threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, suppress
from contextvars import copy_context
from functools import cache
from time import perf_counter
from typing import Any, Literal, Self, TypeVar

from joblib import cpu_count
from joblib.parallel import get_active_backend
from threadpoolctl import ThreadpoolController

# Seconds. In shorter calls, threads lose more time to the GIL than they gain.
_WORTH_SHARING = 0.005

_Group = TypeVar("_Group")
_Result = TypeVar("_Result")


class Workers:
    """Runs a function over groups of clients; a context manager around a whole fit.

    Results are in the order of the groups and do not depend on ``n_jobs``. The first call is timed
    on one worker; later calls use threads if this is worth it. If a call in threads was not faster,
    because it was short or the processors are busy, the next call is timed on one worker again.
    Libraries are limited to one thread throughout: the workers share the processors, and the
    rounding of linear algebra depends on its number of threads.

    The workers are this thread and those of a pool, from the first call in threads to the end of
    the fit.

    Parameters
    ----------
    n_jobs : int or None
        As in joblib, limited by ``n_workers``.
    """

    def __init__(self, n_jobs: int | None = None) -> None:
        self.n_jobs = n_jobs
        self._seconds: dict[Hashable, float] = {}
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> Self:
        self._n_workers = n_workers(self.n_jobs)  # may raise
        self._stack = ExitStack()
        self._stack.enter_context(single_threaded_libraries())
        return self

    def __exit__(self, *exception: Any) -> bool | None:
        self._pool = None  # it ends with the context, which may be entered again
        return self._stack.__exit__(*exception)

    def map(
        self, function: Callable[[_Group], _Result], groups: Sequence[_Group], kind: Hashable
    ) -> list[_Result]:
        """``[function(group) for group in groups]``; those of one ``kind`` have similar costs."""
        if self._n_workers == 1 or len(groups) < 2:
            return [function(group) for group in groups]
        alone = self._seconds.get(kind, 0.0) * len(groups)
        start = perf_counter()
        if kind not in self._seconds or alone < _WORTH_SHARING:
            results = [function(group) for group in groups]
            self._seconds[kind] = (perf_counter() - start) / len(groups)
            return results
        results = self._share(function, groups)
        taken = perf_counter() - start
        if taken > alone or taken * self._n_workers < _WORTH_SHARING:
            del self._seconds[kind]
        return results

    def _share(
        self, function: Callable[[_Group], _Result], groups: Sequence[_Group]
    ) -> list[_Result]:
        """As ``map``, in threads: every worker takes the next group when it has finished one."""
        n_helpers = self._n_workers - 1
        if self._pool is None:
            # OpenMP has a separate limit in each thread.
            pool = ThreadPoolExecutor(n_helpers, initializer=single_threaded_libraries)
            self._pool = self._stack.enter_context(pool)
        waiting = deque(enumerate(groups))
        helpers: list[Future[dict[int, _Result]]] = []
        try:
            for _ in range(n_helpers):
                # In the context of the fit, for the user's settings such as numpy.errstate.
                helpers.append(self._pool.submit(copy_context().run, _work, function, waiting))
            results = _work(function, waiting)
        finally:
            waiting.clear()  # if the submission was interrupted
            started = _join(helpers)
        for helper in started:
            results |= helper.result()
        return [results[position] for position in range(len(groups))]


def _work(
    function: Callable[[_Group], _Result], waiting: deque[tuple[int, _Group]]
) -> dict[int, _Result]:
    """Results, by position, of the groups that a worker takes until none is waiting."""
    try:
        return {position: function(group) for position, group in _taken_from(waiting)}
    finally:
        waiting.clear()  # after an error, no worker starts another group


def _taken_from(waiting: deque[_Group]) -> Iterator[_Group]:
    """Remove and yield the first item of a deque until it is empty; threads may share it."""
    with suppress(IndexError):
        while True:
            yield waiting.popleft()


def _join(helpers: list[Future[_Result]]) -> list[Future[_Result]]:
    """Wait for the helpers that have started, even if interrupted, and return them.

    In a call inside another one, the pool may be too busy to start any.
    """
    try:
        started = [helper for helper in helpers if not helper.cancel()]
        wait(started)
    except KeyboardInterrupt:
        _join(helpers)
        raise
    return started


def single_threaded_libraries() -> AbstractContextManager[Any]:
    """Context with single-threaded libraries, as rounding depends on the number of threads.

    If contexts overlap in threads, one of them has to enclose all others, because each restores the
    state at its beginning.
    """
    return _libraries().limit(limits=1)


@cache
def _libraries() -> ThreadpoolController:
    """Libraries that use threads; finding them takes milliseconds."""
    return ThreadpoolController()


def n_workers(n_jobs: int | None, prefer: Literal["threads", "processes"] = "threads") -> int:
    """Number of workers for a fit (in threads) or a search (in processes).

    Joblib's number of workers for ``n_jobs``, but at most the number of processors. 1 inside a
    worker of another ``Parallel``, such as that of a grid search, which already uses the
    processors.
    """
    _, from_context = get_active_backend()
    # Processes are not available everywhere, for example not inside those of multiprocessing.
    backend, _ = get_active_backend(prefer=prefer)
    if backend.nesting_level or n_jobs == 1:
        return 1
    wanted = backend.effective_n_jobs(from_context if n_jobs is None else n_jobs)
    return min(wanted, cpu_count()) if wanted > 1 else wanted
