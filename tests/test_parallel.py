"""Groups of clients in threads: results, errors, Ctrl+C, numbers of workers."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from math import inf
from time import sleep

import numpy as np
import pytest
from joblib import Parallel, cpu_count, delayed, parallel_config
from threadpoolctl import threadpool_limits

from skfedem import _parallel
from skfedem._parallel import Workers, n_workers
from watched import library_threads

# ---- calls


@pytest.mark.parametrize("n_jobs", [None, 1, 2, 3])
def test_workers_return_results_in_order(n_jobs, threads_always_pay):
    with Workers(n_jobs) as workers:
        for n_groups in (0, 1, 2, 7, 5):
            groups = list(range(n_groups))
            assert workers.map(lambda k: k * k, groups, "squares") == [k * k for k in groups]


def test_an_error_of_a_worker_reaches_the_caller(threads_always_pay):
    def fails_late(k):
        calls.append(k)
        if len(calls) > 3:
            raise ValueError("a client's own message")
        return k

    calls = []
    with Workers(2) as workers:
        assert workers.map(fails_late, [0, 1, 2], "kind") == [0, 1, 2]
        with pytest.raises(ValueError, match="a client's own message"):
            workers.map(fails_late, [0, 1, 2], "kind")


def test_workers_work_at_the_same_time_and_leave(threads_always_pay):
    before = set(threading.enumerate())
    meeting = threading.Barrier(3, timeout=60)

    def thread_of(group):
        meeting.wait()  # passes when three threads are here
        return threading.get_ident()

    with Workers(3) as workers:
        workers._seconds["kind"] = inf  # in the first call, too
        for _ in range(2):
            threads = workers.map(thread_of, range(3), "kind")
            assert len(set(threads)) == 3
            assert threading.get_ident() in threads
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize("fails_in_caller", [True, False])
def test_workers_go_on_after_an_error(fails_in_caller, threads_always_pay):
    failed = threading.Event()

    def fails_once(group):
        if (threading.current_thread() is threading.main_thread()) == fails_in_caller:
            failed.set()
            raise ValueError("a client's own message")
        failed.wait(60)
        done.append(group)

    done = []
    with Workers(2) as workers:
        workers._seconds["kind"] = inf
        with pytest.raises(ValueError, match="a client's own message"):
            workers.map(fails_once, range(50), "kind")
        assert len(done) < 49
        assert workers.map(str, range(50), "kind") == [str(k) for k in range(50)]


def test_a_helper_that_is_told_to_exit_tells_the_caller(threads_always_pay):
    met = threading.Barrier(2, timeout=60)

    def exits_in_helper(group):
        met.wait()
        if threading.current_thread() is not caller:
            sys.exit(group)

    def call():
        with Workers(2) as workers:
            workers._seconds["kind"] = inf
            with pytest.raises(SystemExit):
                workers.map(exits_in_helper, range(2), "kind")
        told.append(True)

    told = []
    caller = threading.Thread(target=call, daemon=True)  # so that waiting for ever would be seen
    caller.start()
    caller.join(60)
    assert told


def test_libraries_have_one_thread_beside_workers():
    with threadpool_limits(limits=2):
        before = library_threads()
        with Workers(1):
            assert set(library_threads()) <= {1}  # there may be none that can be asked
        assert library_threads() == before


@pytest.fixture
def interruptible():
    """SIGINT as Python has it: a shell's background jobs ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.skipif(os.name == "nt", reason="os.kill ends the process on Windows")
def test_an_interrupted_caller_waits_for_its_helpers(threads_always_pay, interruptible):
    helped, done = threading.Event(), []

    def group(number):
        if threading.current_thread() is threading.main_thread():
            helped.wait(60)
        else:
            helped.set()
            time.sleep(0.1)  # the caller has done its group and waits
            for _ in range(2):  # users press Ctrl+C again
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.1)
            done.append(number)

    with Workers(2) as workers:
        workers._seconds["kind"] = inf
        with pytest.raises(KeyboardInterrupt):
            workers.map(group, range(2), "kind")
        assert len(done) == 1


def test_an_interrupt_while_groups_are_handed_out_leaves_no_thread(threads_always_pay):
    helped, done = threading.Event(), []

    def group(number):
        helped.set()
        time.sleep(0.1)
        done.append(number)

    class Interrupted(ThreadPoolExecutor):
        def submit(self, *call):
            super().submit(*call)
            helped.wait(60)
            raise KeyboardInterrupt

    before = threading.active_count()
    with Workers(2) as workers:
        workers._seconds["kind"] = inf
        workers._pool = workers._stack.enter_context(Interrupted(1))
        with pytest.raises(KeyboardInterrupt):
            workers.map(group, range(2), "kind")
    assert done == [0] and threading.active_count() == before


def test_an_inner_call_does_not_wait_for_helpers_that_are_busy(threads_always_pay):
    met = threading.Barrier(2, timeout=60)

    def outer(number):
        met.wait()
        return workers.map(lambda k: number + k * k, range(5), "inner")

    def call():
        nonlocal workers
        with Workers(2) as workers:
            workers._seconds |= {"outer": inf, "inner": inf}
            results.extend(workers.map(outer, range(2), "outer"))

    workers, results = None, []
    caller = threading.Thread(target=call, daemon=True)  # so that waiting for ever would be seen
    caller.start()
    caller.join(60)
    assert results == [[number + k * k for k in range(5)] for number in range(2)]


# ---- numbers of workers, and when they share a call


def test_no_more_workers_than_processors_and_one_inside_of_a_worker():
    assert n_workers(None) == n_workers(1) == 1
    assert n_workers(10_000) == n_workers(-1) == cpu_count()
    with parallel_config("loky", n_jobs=2):
        assert n_workers(None) == min(2, cpu_count())
    for backend in ("loky", "threading"):
        assert Parallel(2, backend=backend)(delayed(n_workers)(2) for _ in range(2)) == [1, 1]
    # A Parallel with one job has no workers: the processors are free.
    assert Parallel(1)([delayed(n_workers)(2)]) == [min(2, cpu_count())]


def test_a_process_that_may_not_start_others_has_threads(monkeypatch):
    # As the workers of multiprocessing.Pool are, and of what builds on it.
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)
    assert n_workers(2) == min(2, cpu_count())
    with parallel_config(n_jobs=2):
        assert n_workers(None) == min(2, cpu_count())
    with pytest.warns(UserWarning, match="Loky"):
        assert n_workers(2, prefer="processes") == 1


def test_libraries_are_left_alone_where_the_number_of_workers_is_refused(monkeypatch):
    def refuse(n_jobs):
        raise ValueError("no such backend")

    monkeypatch.setattr(_parallel, "n_workers", refuse)
    with threadpool_limits(limits=2):
        before = library_threads()
        with pytest.raises(ValueError, match="no such backend"), Workers(2):
            pass
        assert library_threads() == before


class Clock:
    """A clock that a test moves, in place of the processor's."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(_parallel, "perf_counter", clock := Clock())
    monkeypatch.setattr(_parallel, "cpu_count", lambda: 2)
    return clock


def shares_of_calls(clock, alone, shared):
    """Which calls of so many seconds, alone and in threads, went to the threads."""
    were_shared = []

    class Watched(Workers):
        def _share(self, function, groups):
            were_shared[-1] = True
            return super()._share(function, groups)

    def group(seconds):
        clock.now += seconds[int(were_shared[-1])]

    with Watched(2) as workers:
        for each in zip(alone, shared, strict=True):
            were_shared.append(False)
            workers.map(group, [np.array(each) / 4] * 4, "round")
    return were_shared


@pytest.mark.parametrize(
    ("alone", "shared", "which"),
    [
        ([1.0] * 4, [0.6] * 4, [0, 1, 1, 1]),  # long ones from the second on
        ([0.004] * 4, [0.003] * 4, [0, 0, 0, 0]),
        ([1, 1, 0.001, 0.001], [0.6, 0.001] * 2, [0, 1, 0, 0]),  # that have become short
        ([0.02, 0.001, 0.001, 0.001], [0.002] * 4, [0, 1, 0, 0]),  # a first one slow by chance
        ([1.0] * 5, [1.2] * 5, [0, 1, 0, 1, 0]),  # threads made them slower
    ],
)
def test_calls_are_shared_where_that_pays(clock, alone, shared, which):
    assert shares_of_calls(clock, alone, shared) == which


def test_after_an_error_no_group_is_begun(threads_always_pay):
    begun = []

    def group(number):
        begun.append(number)
        sleep(0.005)
        if number == 1000:
            raise ValueError("in group 1000")

    with Workers(2) as workers:
        workers.map(group, [0, 1], "round")
        with pytest.raises(ValueError, match="in group 1000"):
            workers.map(group, list(range(1000, 1400)), "round")
        n_begun = len(begun)
        sleep(0.1)  # time for twenty groups
    assert len(begun) == n_begun


def test_workers_have_the_context_of_the_fit(threads_always_pay):
    setting, both = ContextVar("setting", default="another thread's"), threading.Barrier(2)

    def group(number):
        both.wait(60)  # until each of two threads has one
        return setting.get()

    setting.set("the user's")
    with Workers(2) as workers:
        workers.map(str, [0, 1], "round")
        assert workers.map(group, [0, 1], "round") == ["the user's"] * 2


NESTED = """
import os, sys, threading, warnings
from pathlib import Path
import numpy as np
from sklearn.model_selection import GridSearchCV
from threadpoolctl import threadpool_info
from skfedem import FederatedGaussianMixture

warnings.simplefilter("ignore")

def step_size(round_number):
    # Asked for once a round, where the fit runs; every round is shared if any may be.
    import skfedem._parallel
    skfedem._parallel._WORTH_SHARING = 0.0
    blas = max((library["num_threads"] for library in threadpool_info()), default=1)
    with open(Path(sys.argv[1], str(os.getpid())), "a", encoding="utf-8") as file:
        print(threading.active_count(), blas, file=file)
    return 0.5

generator = np.random.default_rng(0)
clients = [generator.normal(size=(4000, 4)) for _ in range(20)]
mixture = FederatedGaussianMixture(
    2, n_jobs=2, step_size=step_size, init_params="random", max_iter=5, tol=0, random_state=0
)
print(os.getpid())
for n_jobs in (2, 1):
    search = GridSearchCV(mixture, {"reg_covar": [1e-6, 1e-3]}, cv=2, n_jobs=n_jobs, refit=False)
    print(search.fit(clients).cv_results_["mean_test_score"].tolist())
"""


@pytest.mark.slow
def test_a_grid_search_in_processes_has_one_thread_in_each(tmp_path):
    found = subprocess.run(
        [sys.executable, "-c", NESTED, str(tmp_path)],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    main, in_processes, one_by_one = found.stdout.splitlines()
    assert in_processes == one_by_one
    recorded = {
        file.name: [tuple(map(int, line.split())) for line in file.read_text("utf-8").splitlines()]
        for file in tmp_path.iterdir()
    }
    assert {blas for lines in recorded.values() for _, blas in lines} == {1}
    # One by one, fits have threads of their own, if there is a second processor.
    counts = {count for count, _ in recorded.pop(main)}
    assert (len(counts) > 1) == (cpu_count() > 1)
    # A worker process has as many threads in every round as before the first.
    assert 1 <= len(recorded) <= 2
    for lines in recorded.values():
        assert len({count for count, _ in lines}) == 1
