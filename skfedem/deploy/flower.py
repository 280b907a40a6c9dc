"""Deployed fits over Flower, which carries the messages between its server and its nodes.

Flower starts a Python process for each message that a node receives. That of ``relay`` imports
neither NumPy nor skfedem's estimators: it passes the request on to a client that stays alive, see
``python -m skfedem.deploy join --socket``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from . import relay as sockets
from ._phases import run_phases

if TYPE_CHECKING:
    from ._server import Server

# Name of the record in Flower's messages.
_RECORD = "skfedem"
# Seconds that a node has to say its name, and until it is asked again that has not.
_INTRODUCTION = 60.0
_AGAIN = 2.0
# Seconds after which a message is given up whose time is over, and of which nothing was heard.
_LATE = 5.0


def relay(message: Any, context: Any) -> Any:
    """Pass a message on to the client at this node's socket; for ``ClientApp.query``.

    Parameters
    ----------
    message : flwr.app.Message
    context : flwr.app.Context
        The configuration of the node has ``name``, that in the roster, and ``socket``, where the
        client listens.

    Returns
    -------
    reply : flwr.app.Message
    """
    from flwr.app import ConfigRecord, Message, RecordDict

    request, node = message.content[_RECORD]["data"], context.node_config
    data = sockets.ask(request, node["socket"]) if request else node["name"].encode()
    return Message(RecordDict({_RECORD: ConfigRecord({"data": data})}), reply_to=message)


def run(
    server: Server,
    grid: Any,
    *,
    nodes: Mapping[int, str] | None = None,
    timeout: float = 60.0,
    report: Callable[[str], None] = print,
) -> Any:
    """Run a fit over the nodes of a Flower federation; for ``ServerApp.main``.

    Parameters
    ----------
    server : Server
    grid : flwr.serverapp.Grid
    nodes : dict, default=None
        Name in the roster of each node, by the number that ``flwr supernode register`` prints. By
        default nodes say their names, which Flower does not check: then give client and server
        keys.
    timeout : float, default=60.0
        Seconds after which a round closes with the replies that have come.
    report : callable, default=print
        Called with lines on the progress.

    Returns
    -------
    fitted : estimator
    """
    return run_phases(server, _Nodes(grid, nodes), timeout, report)


class _Sent(NamedTuple):
    """A request to a node, or to say its name, in which case ``name`` and ``data`` are empty."""

    node: int
    name: str
    data: bytes
    end: float


class _Nodes:
    """Transport over a grid."""

    def __init__(self, grid: Any, names: Mapping[int, str] | None) -> None:
        self._grid, self._says_names = grid, names is None
        self._names = dict(names or {})
        self._unsent: dict[str, tuple[bytes, float]] = {}
        self._sent: dict[str, _Sent] = {}  # by the number of the message
        self._asked_names: dict[int, float] = {}  # when nodes may be asked for their names again

    def send(self, name: str, request: bytes, seconds: float) -> None:
        self._unsent[name] = request, seconds

    def received(self) -> list[tuple[str, bytes, bytes]]:
        online, now = [*self._grid.get_node_ids()], time.monotonic()
        if self._says_names:
            self._names = {node: own for node, own in self._names.items() if node in online}
            for node in online:
                if node not in self._names and self._asked_names.get(node, now) <= now:
                    self._asked_names[node] = now + _INTRODUCTION
                    self._push(node, "", b"", _INTRODUCTION)
        for node, name in self._names.items():
            if name in self._unsent and node in online:
                self._push(node, name, *self._unsent.pop(name))
        return [*filter(None, (self._read(*own) for own in self._pulled()))]

    def _push(self, node: int, name: str, data: bytes, seconds: float) -> None:
        from flwr.app import ConfigRecord, Message, RecordDict

        content = RecordDict({_RECORD: ConfigRecord({"data": data})})
        message = Message(content, dst_node_id=node, message_type="query", ttl=seconds)
        (identifier,) = self._grid.push_messages([message])
        self._sent[identifier] = _Sent(node, name, data, time.monotonic() + seconds + _LATE)

    def _pulled(self) -> list[tuple[_Sent, bytes]]:
        """Messages that were answered, or not in time, with the replies."""
        pulled = self._grid.pull_messages([*self._sent]) if self._sent else ()
        found = [
            (self._sent.pop(own.metadata.reply_to_message_id), _data_of(own)) for own in pulled
        ]
        now = time.monotonic()
        late = [identifier for identifier, own in self._sent.items() if own.end < now]
        return found + [(self._sent.pop(identifier), b"") for identifier in late]

    def _read(self, sent: _Sent, data: bytes) -> tuple[str, bytes, bytes] | None:
        """Client, request and reply, unless a node was asked for its name."""
        if sent.name:
            return sent.name, sent.data, data
        name = data.decode(errors="replace")
        if name and name not in self._names.values():
            self._names[sent.node] = name
        self._asked_names[sent.node] = time.monotonic() + _AGAIN  # unless it has one now
        return None


def _data_of(message: Any) -> bytes:
    """Bytes of a reply; none if it is an error."""
    if message.has_error() or _RECORD not in message.content:
        return b""
    data = message.content[_RECORD].get("data")
    return data if isinstance(data, bytes) else b""
