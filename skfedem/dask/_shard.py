"""What workers do: they hold the rows of shards, and answer for their clients."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache
from threading import RLock
from typing import Any, NamedTuple

import numpy as np
from distributed import get_worker
from numpy.typing import NDArray

from .._error_messages import label_repr
from .._federation import Federation, SampleWeight, owners_of
from .._parallel import Workers
from .._typing import IntArray
from ..clients.local import LocalClients


class Shard(NamedTuple):
    """Rows of consecutive clients, which no task modifies; a worker keeps them as a result.

    Attributes
    ----------
    federation : Federation
        Its weights are those of clients in a fit, which are told then.
    ids : ndarray of int, shape (n,)
        Numbers of the clients among all.
    labels : ndarray of shape (n,)
    missing : str or None
        What is wrong with these rows if values may not be missing.
    """

    federation: Federation
    ids: IntArray
    labels: NDArray[Any]
    missing: str | None

    def with_rows(self, rows: NDArray[Any], weights: SampleWeight | None) -> Shard:
        """The same clients with other rows and weights of rows, as many as before."""
        federation = self.federation._replace(rows=rows, sample_weight=weights)
        return self._replace(federation=federation)

    def locate(self, row: int) -> tuple[int, str]:
        """Number of a row among its client's, and the client in words."""
        offsets = self.federation.offsets
        client = owners_of(offsets, row)
        return int(row - offsets[client]), f" of client {label_repr(self.labels[client])}"

    def part(self, first: int, last: int) -> Shard:
        """Shard of the clients with the numbers ``first`` to ``last - 1``."""
        federation, own = self.federation, slice(first - self.ids[0], last - self.ids[0])
        start, stop = federation.offsets[[own.start, own.stop]]
        offsets = federation.offsets[own.start : own.stop + 1] - start
        part = Federation(federation.rows[start:stop], offsets, federation.weights[own])
        return Shard(part, self.ids[own], self.labels[own], self.missing)


class Call(NamedTuple):
    """A method of ``LocalClients`` and its arguments."""

    name: str
    arguments: tuple[Any, ...] = ()


class Told(NamedTuple):
    """What is asked of the clients of a shard, in one fit.

    Attributes
    ----------
    shard : int
    before : int or None
        Number of calls that they must have answered already; None to begin afresh.
    calls : list of Call or None
        Those that follow, and change their states; None has nothing for this shard.
    after : int
        Number of calls that they have answered then.
    question : Call or None
        What they are asked thereafter; None for the answer to the last of ``calls``.
    """

    shard: int
    before: int | None
    calls: list[Call | None]
    after: int
    question: Call | None


class Behind(NamedTuple):
    """Answer of clients that have not got, or have lost, the calls before."""


class Fit(NamedTuple):
    """Which fit is asking, and which fits to the same rows have not ended."""

    name: str
    federation: str
    others: list[str]


class _Kept:
    """Clients of a shard in one fit, without their rows, and how many calls they have answered."""

    def __init__(self, federation: str, rows: str, clients: LocalClients) -> None:
        self.federation, self.rows, self.clients, self.n_calls = federation, rows, clients, 0


# Parameters of mallopt and bytes: M_TRIM_THRESHOLD, and M_MMAP_THRESHOLD at its largest value.
_ALLOCATOR = {-1: 2**26, -3: 2**25}
# What a fit keeps at this place: beside the rows, because Dask takes results of tasks as constant.
# By worker, fit, and shard.
_KEPT: dict[tuple[str, str, int], _Kept] = {}
# One task at a time: threads of libraries are limited for the whole process.
_ALONE = RLock()
_THREADS = Workers(1)


def answer(shards: list[Shard], rows: list[str], fit: Fit, told: list[Told]) -> list[Any]:
    """Answers of the clients of some shards, whose results ``rows`` names.

    A shard that was lost with its worker answers ``Behind``. A task that runs twice has the effect
    of one.
    """
    worker = get_worker()
    _keep_buffers()
    with _ALONE:
        _forget(worker, fit)
        _THREADS.n_jobs = worker.state.nthreads
        with _THREADS:
            return [
                _answer_of_shard(worker.address, fit, *own)
                for own in zip(shards, rows, told, strict=True)
            ]


def _answer_of_shard(address: str, fit: Fit, shard: Shard, rows: str, told: Told) -> Any:
    key = address, fit.name, told.shard
    kept = _KEPT.get(key)
    if told.before is None:
        kept = _KEPT[key] = _Kept(
            fit.federation, rows, LocalClients(shard.federation, _THREADS, shard.ids)
        )
        calls = told.calls
    elif kept is None or kept.n_calls not in (told.before, told.after):
        return Behind()
    else:  # the last call again, if its answer has been lost
        calls = told.calls if kept.n_calls == told.before else told.calls[-1:]
    clients = kept.clients
    clients.federation = shard.federation._replace(weights=clients.federation.weights)
    result = None
    kept.n_calls = -1  # until all of them are answered
    for call in calls:
        result = None if call is None else _called(clients, call)
    kept.n_calls = told.after
    if told.question is not None:
        result = _called(clients, told.question)
    # Rows are Dask's, which may move them to disk.
    clients.federation = clients.federation._replace(rows=None)
    return result


def _called(clients: LocalClients, call: Call) -> Any:
    """Answer to one call, with arrays that are not states."""
    name, arguments = call
    if name == "round":
        broadcast, active = arguments
        active = np.arange(clients.federation.n_clients) if active is None else active
        aggregated = clients.round(broadcast, active)
        return aggregated._replace(active=np.empty(0, dtype=np.intp))
    if name == "mean_field":
        return clients.mean_field(*arguments[:-1], initial=arguments[-1])
    if name == "restore":
        return clients.restore(copied(arguments[0]))
    result = getattr(clients, name)(*arguments)
    return copied(result) if name == "save" else result


def copied(saved: dict[str, Any]) -> dict[str, Any]:
    """Controls and states that others do not modify, and that may be modified."""
    states = saved["states"]
    return {
        "controls": np.array(saved["controls"]),
        "states": type(states)(*(np.array(own) for own in states)),
    }


@cache
def _keep_buffers() -> None:
    """Have glibc keep the memory of buffers for the next ones, which E-steps need all the time.

    Dask's nanny sets a threshold at which it is returned to the system at once: three times the
    processor time, for page faults.
    """
    with suppress(AttributeError, OSError):  # another library
        system = ctypes.CDLL(None)
        for parameter, threshold in _ALLOCATOR.items():
            system.mallopt(parameter, threshold)


def _forget(worker: Any, fit: Fit) -> None:
    """Free what is kept for fits that have ended, or without rows."""
    for key, kept in list(_KEPT.items()):
        address, name, _ = key
        is_over = kept.federation == fit.federation and name not in fit.others
        if is_over or (address == worker.address and kept.rows not in worker.state.tasks):
            del _KEPT[key]
