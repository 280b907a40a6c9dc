"""A client that stays alive, and processes on its machine that pass messages on to it.

A framework's process at a client passes requests on, and needs neither the table nor the policy.
They stay with the process that the owner of the table has started.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from multiprocessing.connection import Client as connection_to
from multiprocessing.connection import Listener
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .._typing import FilePath
    from ._client import Client

# Largest length of a message, in bytes.
_LONGEST = 2**31 - 1


def listen(client: Client, socket: FilePath, *, report: Callable[[str], None] = print) -> None:
    """Answer requests that arrive at a socket, until the fit has ended.

    Parameters
    ----------
    client : Client
    socket : path-like
        Where to listen: a new Unix socket, which only this user can open.
    report : callable, default=print
        Called with lines on the progress.
    """
    if Path(socket).is_socket():
        Path(socket).unlink()  # of a process that was killed
    before = os.umask(0o077)
    try:
        listener = Listener(os.fspath(socket))
    finally:
        os.umask(before)
    with listener:
        has_ended = False
        while not has_ended:
            try:
                with listener.accept() as connection:
                    reply = client.answer(connection.recv_bytes(_LONGEST))
                    has_ended = client.has_ended
                    connection.send_bytes(reply)
            except (EOFError, ConnectionError):  # who asked is gone; the server asks again
                continue
    report(client.ending)


def ask(request: bytes, socket: FilePath) -> bytes:
    """Reply of the client that listens at a socket.

    Parameters
    ----------
    request : bytes
        For ``Client.answer``.
    socket : path-like

    Returns
    -------
    reply : bytes

    Raises
    ------
    OSError
        If no client listens there.
    """
    with connection_to(os.fspath(socket)) as connection:
        connection.send_bytes(request)
        return connection.recv_bytes(_LONGEST)
