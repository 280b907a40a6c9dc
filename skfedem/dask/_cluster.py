"""Waiting for results of a cluster whose workers may be lost meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any
from uuid import uuid4

from dask.utils import parse_timedelta
from distributed import Client, Future
from distributed.scheduler import KilledWorker

import dask

# Seconds between looks at the set of workers.
_PERIOD = 0.5


class NoWorkersError(RuntimeError):
    """No worker of the cluster is left to do the work of a fit.

    A checkpoint that the fit has written is intact.
    """


class Lost(Exception):
    """Answer of a worker that is no longer there."""


def answers_of(client: Client, asked: dict[str, Future]) -> dict[str, Any]:
    """Results of tasks that only these workers can run, by address.

    A task whose worker is lost would wait forever; its result is ``Lost``. Other errors are raised.
    """
    with _explained():
        answers: dict[str, Any] = client.sync(_answers, client, asked)
    for own in answers.values():
        if isinstance(own, MemoryError):
            raise MemoryError(
                "Expected workers whose memory holds the rows of their clients, and what a fit "
                f"keeps for these, got too little: {own} Add workers or memory, and read the "
                "clients again."
            ) from own
        if isinstance(own, BaseException) and not isinstance(own, Lost):
            raise own
    return answers


async def _answers(client: Client, asked: dict[str, Future]) -> dict[str, Any]:
    waiting = {
        asyncio.ensure_future(client.gather(future, asynchronous=True)): address
        for address, future in asked.items()
    }
    pending, answers, gone = set(waiting), {}, set()
    while pending:
        done, pending = await asyncio.wait(pending, timeout=_PERIOD)
        for one in done:
            address = waiting[one]
            error = asyncio.CancelledError() if one.cancelled() else one.exception()
            if address in gone or isinstance(error, KilledWorker):
                error = Lost()
            answers[address] = one.result() if error is None else error
        if pending and not done:
            gone = {waiting[one] for one in pending} - set(await client.scheduler.ncores())
            if gone:  # which ends their waiting
                await client.cancel([asked[address] for address in gone], asynchronous=True)
    return answers


def on_each(
    client: Client, function: Callable[..., Any], futures: list[Any], name: str, *arguments: Any
) -> list[Future]:
    """Tasks ``function(result, *arguments)``, under a name that Dask's dashboard shows."""
    return [
        client.submit(function, own, *arguments, key=f"{name}-{uuid4().hex}") for own in futures
    ]


def results_of(client: Client, futures: list[Future]) -> list[Any]:
    """Results of tasks that any worker can run."""
    wait_for(client, futures)
    results: list[Any] = client.gather(futures)
    return results


def wait_for(client: Client, futures: list[Future]) -> None:
    """Wait for tasks that any worker can run; raise their errors, or ``NoWorkersError``."""
    with _explained():
        client.sync(_finished, futures, client)
    for future in futures:
        if future.status == "error":
            future.result()


async def _finished(futures: list[Future], client: Client) -> None:
    longest, last_seen = patience(), monotonic()
    pending = {asyncio.ensure_future(future._state.wait()) for future in futures}
    while pending:
        _, pending = await asyncio.wait(pending, timeout=_PERIOD)
        if pending and await client.scheduler.ncores():
            last_seen = monotonic()
        elif pending and monotonic() - last_seen > longest:
            for one in pending:
                one.cancel()
            raise NoWorkersError(
                f"Expected workers in the cluster, got none for {longest:g} seconds. Add workers, "
                "and fit again with resume_from= the last checkpoint."
            )


def patience() -> float:
    """Seconds to wait for a worker: as long as Dask waits for a connection."""
    return float(parse_timedelta(dask.config.get("distributed.comm.timeouts.connect")))


def where(client: Client, futures: list[Future]) -> list[str]:
    """Address of a worker that has the result of each task, after a wait if it was lost."""
    while True:
        wait_for(client, futures)
        with _explained():
            holders = client.who_has(futures)
        places = [holders.get(future.key) for future in futures]
        if all(places):
            return [min(own) for own in places]
        sleep(_PERIOD / 10)  # until the scheduler has seen that they are lost


@contextmanager
def _explained() -> Iterator[None]:
    """Context in which a cluster that was closed or restarted is an error with advice."""
    try:
        yield
    except (CancelledError, asyncio.CancelledError) as error:
        raise NoWorkersError(
            "Expected the cluster that has read the clients, got one that was closed or restarted. "
            "Read the clients again, and fit again with resume_from= the last checkpoint."
        ) from error
