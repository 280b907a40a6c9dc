"""Workers that process groups of clients, sequentially or in threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, ExitStack, suppress
from contextvars import copy_context
from functools import cache, partial
from queue import SimpleQueue
from time import perf_counter
from typing import Any, Literal, Self, TypeVar

from joblib import Parallel, cpu_count, delayed
from joblib.parallel import get_active_backend
from threadpoolctl import ThreadpoolController

# Seconds. In shorter calls, threads lose more time to the GIL than they gain.
_WORTH_SHARING = 0.005

_Group = TypeVar("_Group")
_Result = TypeVar("_Result")
_Tasks = SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]


class Workers:
    """Runs a function over groups of clients; a context manager around a whole fit.

    Results are in the order of the groups and do not depend on ``n_jobs``. The first call is timed
    on one worker; later calls use threads if this is worth it. If a call in threads was not faster,
    because it was short or the processors are busy, the next call is timed on one worker again.
    Libraries are limited to one thread throughout: the workers share the processors, and the
    rounding of linear algebra depends on its number of threads.

    The workers are this thread and joblib's threads, which wait for tasks from the first call in
    threads to the end of the fit: starting them in each call would be slow, because joblib only
    checks every 10 ms whether a task has ended.

    Parameters
    ----------
    n_jobs : int or None
        As in joblib, limited by ``n_workers``.
    """

    def __init__(self, n_jobs: int | None = None) -> None:
        self.n_jobs = n_jobs
        self._seconds: dict[Hashable, float] = {}
        self._tasks: _Tasks | None = None

    def __enter__(self) -> Self:
        self._n_workers = n_workers(self.n_jobs)  # may raise
        self._stack = ExitStack()
        self._stack.enter_context(single_threaded_libraries())
        return self

    def __exit__(self, *exception: Any) -> bool | None:
        return self._stack.__exit__(*exception)

    def map(
        self, function: Callable[[_Group], _Result], groups: Sequence[_Group], kind: Hashable
    ) -> list[_Result]:
        """``[function(group) for group in groups]``.

        Parameters
        ----------
        function : callable
        groups : list
        kind : hashable
            Kind of call; calls of one kind have a similar cost per group.
        """
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
        if self._tasks is None:
            self._tasks = self._call_helpers()
        waiting = deque(enumerate(groups))
        work = partial(_work, function, waiting)
        helpers: list[Future[dict[int, _Result]]] = [Future() for _ in range(self._n_workers - 1)]
        try:
            for helper in helpers:
                # In the context of the fit, for the user's settings such as numpy.errstate.
                self._tasks.put((helper, partial(copy_context().run, work)))
            results = work()
        finally:
            waiting.clear()  # if the sending was interrupted
            started = _join(helpers)
        for helper in started:
            results |= helper.result()
        return [results[position] for position in range(len(groups))]

    def _call_helpers(self) -> _Tasks:
        """Let joblib's threads run the tasks in a queue until the end of the fit."""
        tasks: _Tasks = SimpleQueue()
        n_helpers = self._n_workers - 1
        threads = {"prefer": "threads", "require": "sharedmem", "return_as": "generator"}
        pool = Parallel(n_jobs=self._n_workers, **threads)
        running = self._stack.enter_context(pool)(delayed(_help)(tasks) for _ in range(n_helpers))

        def dismiss() -> None:
            for _ in range(n_helpers):
                tasks.put(None)
            list(running)

        self._stack.callback(dismiss)
        return tasks


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
    """Wait for the helpers that have started, even if interrupted, and return them."""
    try:
        started = [helper for helper in helpers if not helper.cancel()]
        wait(started)
    except KeyboardInterrupt:
        _join(helpers)
        raise
    return started


def _help(tasks: _Tasks) -> None:
    """Run tasks, pairs of a future and its function, from a queue until None arrives."""
    single_threaded_libraries()  # OpenMP has a separate limit in each thread
    for future, function in iter(tasks.get, None):
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)


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
