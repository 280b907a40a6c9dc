"""Deployed fits over Flower, which carries the messages between its server and its nodes.

Flower starts a Python process for each message that a node receives. That of ``relay`` imports
neither NumPy nor skfedem's estimators: it passes the request on to a client that stays alive, see
``python -m skfedem.deploy join --socket``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from . import relay as sockets
from ._phases import run_phases

if TYPE_CHECKING:
    from ._server import Server

# Name of the record in Flower's messages.
_RECORD = "skfedem"
# Seconds that a node has to say its name.
_INTRODUCTION = 60.0


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


class _Nodes:
    """Transport over a grid."""

    def __init__(self, grid: Any, names: Mapping[int, str] | None) -> None:
        self._grid, self._says_names = grid, names is None
        self._names = dict(names or {})
        self._unsent: dict[str, tuple[bytes, float]] = {}
        self._sent: dict[str, int] = {}  # node of a message

    def send(self, name: str, request: bytes, seconds: float) -> None:
        self._unsent[name] = request, seconds

    def received(self) -> list[tuple[str, bytes]]:
        online = [*self._grid.get_node_ids()]
        if self._says_names:
            self._names = {node: own for node, own in self._names.items() if node in online}
            for node in {*online} - {*self._names} - {*self._sent.values()}:
                self._push(node, b"", _INTRODUCTION)
        for node, name in self._names.items():
            if name in self._unsent and node in online:
                self._push(node, *self._unsent.pop(name))
        return [reply for message in self._pulled() if (reply := self._read(message))]

    def _push(self, node: int, data: bytes, seconds: float) -> None:
        from flwr.app import ConfigRecord, Message, RecordDict

        content = RecordDict({_RECORD: ConfigRecord({"data": data})})
        message = Message(content, dst_node_id=node, message_type="query", ttl=seconds)
        (identifier,) = self._grid.push_messages([message])
        self._sent[identifier] = node

    def _pulled(self) -> Any:
        return self._grid.pull_messages([*self._sent]) if self._sent else ()

    def _read(self, message: Any) -> tuple[str, bytes] | None:
        """Name and reply of a client, unless a node has introduced itself."""
        node, data = self._sent.pop(message.metadata.reply_to_message_id), None
        if not message.has_error() and _RECORD in message.content:
            data = message.content[_RECORD].get("data")
        data = data if isinstance(data, bytes) else b""
        if node in self._names:
            return self._names[node], data
        name = data.decode(errors="replace")
        if name and name not in self._names.values():  # else, the node is asked again
            self._names[node] = name
        return None
