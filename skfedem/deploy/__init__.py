"""Deployment: the simulated federation on machines of its clients, by messages of bytes."""

from ._client import Client, Policy
from ._server import Server, Verdict

__all__ = ["Client", "Policy", "Server", "Verdict"]
