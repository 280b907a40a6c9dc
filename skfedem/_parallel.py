"""Simulated workers: groups of clients, one after the other or in threads."""

from __future__ import annotations

from contextlib import ExitStack
from time import perf_counter

from joblib import Parallel, delayed, effective_n_jobs
from threadpoolctl import threadpool_limits

# joblib looks for finished tasks every 10 ms: below a few times that, waiting costs more than
# a second worker gains.
_WORTH_SHARING = 0.05


class Workers:
    """Runs a function over groups of clients; a context manager around a whole fit.

    Results come in the order of the groups, and a group is computed the same way whoever does it,
    so that nothing depends on ``n_jobs``. The first call is timed on one worker; later calls use
    ``n_jobs`` threads when a call is long enough to pay for them. Libraries are held to one thread
    throughout: several workers share the processor, and how linear algebra rounds depends on its
    threads.

    Parameters
    ----------
    n_jobs : int or None
        As in joblib.
    """

    def __init__(self, n_jobs=None):
        self.n_jobs = n_jobs
        self._seconds = {}

    def __enter__(self):
        self._stack = ExitStack()
        self._stack.enter_context(threadpool_limits(limits=1))
        self._n_workers = effective_n_jobs(self.n_jobs)
        if self._n_workers > 1:
            self._pool = self._stack.enter_context(
                Parallel(n_jobs=self.n_jobs, require="sharedmem")
            )
        return self

    def __exit__(self, *exception):
        return self._stack.__exit__(*exception)

    def map(self, function, groups, kind):
        """Return ``[function(group) for group in groups]``.

        Parameters
        ----------
        function : callable
        groups : list
        kind : hashable
            What the call does: calls of one kind are alike in their cost per group.
        """
        if self._n_workers == 1 or len(groups) < 2:
            return [function(group) for group in groups]
        expected = self._seconds.get(kind)
        if expected is None or expected * len(groups) < _WORTH_SHARING:
            start = perf_counter()
            results = [function(group) for group in groups]
            self._seconds[kind] = (perf_counter() - start) / len(groups)
            return results
        # One task a worker: every n-th group, put back in order afterwards.
        shares = [groups[k :: self._n_workers] for k in range(self._n_workers)]
        done = self._pool(delayed(_run_share)(function, share) for share in shares)
        results = [None] * len(groups)
        for k, share in enumerate(done):
            results[k :: self._n_workers] = share
        return results


def _run_share(function, share):
    return [function(group) for group in share]
