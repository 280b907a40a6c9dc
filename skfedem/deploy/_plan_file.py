"""Plans of fits, as users write them in TOML."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from .._data.long_tables import as_table
from ._readers import READERS
from ._server import Server

_DATA = ("columns", "shape", "target", "classes")
_TABLES = ("row_covariates", "column_covariates", "row_groups")
_OPTIONS = ("roster", "state", *_DATA, *_TABLES, "min_replies", "timeout", "host", "port")


def function_of(text: str) -> Callable[..., Any]:
    """Function from its module and name, ``module:name``."""
    module, _, name = text.partition(":")
    try:
        function: Callable[..., Any] = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"Expected a function as module:name, got {text!r} ({error}).") from error
    if not inspect.isfunction(function):
        raise ValueError(f"Expected a function as module:name, got {text!r}.")
    return function


def server_of(plan: dict[str, Any], folder: Path) -> Server:
    """Server of a plan, whose paths are relative to a folder."""
    if not {"class", "roster"} <= {*plan.get("estimator", ()), *plan.get("server", ())}:
        raise ValueError("Expected a class in [estimator] and a roster in [server] of the plan.")
    options, estimator = plan["server"], dict(plan["estimator"])
    name = estimator.pop("class")
    if name not in READERS:
        raise ValueError(f"Expected one of {', '.join(READERS)} in the plan, got {name!r}.")
    if unknown := [*({*options} - {*_OPTIONS})]:
        raise ValueError(f"Expected options {', '.join(_OPTIONS)} in [server], got {unknown[0]!r}.")
    if "model" in estimator:
        estimator["model"] = function_of(estimator["model"])
    keys = plan.get("keys")
    if keys is not None:
        keys = {client: (folder / own).read_bytes() for client, own in keys.items()}
    return Server(
        READERS[name].kind(**estimator),
        options["roster"],
        state_of(plan, folder),
        keys=keys,
        **{name: options[name] for name in _DATA if name in options},
        **{name: _table_of(options[name]) for name in _TABLES if name in options},
        min_replies=options.get("min_replies", 1),
    )


def _table_of(own: Any) -> Any:
    """Columns by their names as a table; groups are a list."""
    return as_table(own) if isinstance(own, dict) else own


def state_of(plan: dict[str, Any], folder: Path) -> Path:
    """Folder of the server's state."""
    return folder / plan["server"].get("state", "server")


def timeout_of(plan: dict[str, Any]) -> float:
    """Seconds after which a round closes with the replies that have come."""
    return float(plan["server"].get("timeout", 60.0))
