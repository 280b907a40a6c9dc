"""Plans of fits, as users write them in TOML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import skfedem

from ._server import Server


def server_of(plan: dict[str, Any], folder: Path) -> Server:
    """Server of a plan, whose paths are relative to a folder."""
    options, estimator = plan["server"], dict(plan["estimator"])
    name = estimator.pop("class")
    if name not in skfedem.__all__:
        raise SystemExit(f"Expected a class of skfedem in the plan, got {name!r}.")
    keys = plan.get("keys")
    if keys is not None:
        keys = {client: (folder / own).read_bytes() for client, own in keys.items()}
    return Server(
        getattr(skfedem, name)(**estimator),
        options["roster"],
        state_of(plan, folder),
        keys=keys,
        columns=options.get("columns"),
        min_replies=options.get("min_replies", 1),
    )


def state_of(plan: dict[str, Any], folder: Path) -> Path:
    """Folder of the server's state."""
    return folder / plan["server"].get("state", "server")


def timeout_of(plan: dict[str, Any]) -> float:
    """Seconds after which a round closes with the replies that have come."""
    return float(plan["server"].get("timeout", 60.0))
