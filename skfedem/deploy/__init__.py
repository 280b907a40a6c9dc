"""Deployment: the simulated federation on machines of its clients, by messages of bytes."""

from importlib import import_module
from typing import TYPE_CHECKING

__all__ = ["Client", "Policy", "Server", "Verdict"]

if TYPE_CHECKING:
    from ._client import Client as Client
    from ._client import Policy as Policy
    from ._server import Server as Server
    from ._server import Verdict as Verdict
else:
    # Imported when first asked for: a process that only passes messages on needs neither.
    def __getattr__(name):
        if name in __all__:
            side = "_client" if name in ("Client", "Policy") else "_server"
            return getattr(import_module(f"skfedem.deploy.{side}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
