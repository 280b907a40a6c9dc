"""Phases of a fit whose messages a framework carries."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ._server import Server

# Seconds between two looks at what has come, and until a client is asked again that did not help.
_LOOK = 0.1
_AGAIN = 2.0


class Transport(Protocol):
    """What carries messages: nothing waits in it."""

    def send(self, name: str, request: bytes, seconds: float) -> None:
        """Pass a request on to a client, who has some seconds for its reply."""

    def received(self) -> Iterable[tuple[str, bytes, bytes]]:
        """Client, request and reply of what has come; the reply is empty if the request failed."""


def run_phases(
    server: Server, transport: Transport, timeout: float, report: Callable[[str], None]
) -> Any:
    """Close phases until the fit has ended, and clients know; its result."""
    try:
        while not server.done:
            _run_phase(server, transport, timeout, report)
    finally:
        if server.done:  # also if the fit failed
            _exchange(server, transport, timeout, report)
    return server.result()


def _run_phase(
    server: Server, transport: Transport, timeout: float, report: Callable[[str], None]
) -> None:
    """Ask until all replies have come, or the deadline has; close the phase."""
    question, start = server.question, time.monotonic()
    _exchange(server, transport, timeout, report)
    missing = server.waiting
    if not server.close():
        report(f"{question}: waiting for {', '.join(missing)}")
        return
    closed, taken = server.history_[-1], time.monotonic() - start
    if question == "round":
        question = f"round {sum(own['question'] == 'round' for own in server.history_)}"
    report(f"{question}: {closed['n_used']} of {closed['n_asked']} replies, {taken:.1f} s")


def _exchange(
    server: Server, transport: Transport, timeout: float, report: Callable[[str], None]
) -> None:
    """Ask the clients whose replies are missing, until none is or the deadline has come.

    A request that is sent late outlives the deadline: if the phase stays open, its reply is used.
    """
    end, asked_again = time.monotonic() + timeout, dict[str, float]()
    while (waiting := server.waiting) and (now := time.monotonic()) < end:
        for name in waiting:
            if asked_again.get(name, 0.0) <= now:
                asked_again[name] = end
                transport.send(name, server.request(name), timeout)
        for name, request, reply in transport.received():
            if request != server.request(name):
                continue  # of an earlier phase, or a second reply
            used, reason = server.receive(name, reply) if reply else (False, "no reply")
            is_lost = reason.startswith("lost")
            asked_again[name] = time.monotonic() + (0.0 if used or is_lost else _AGAIN)
            if not (used or is_lost):
                report(f"reply of {name} not used: {reason}")
        time.sleep(_LOOK)
