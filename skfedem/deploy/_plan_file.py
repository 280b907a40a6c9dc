"""Plans of fits, as users write them in TOML."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Callable
from importlib import import_module
from numbers import Integral
from pathlib import Path
from typing import Any

from .._data.long_tables import as_table
from .._parameters import check_number
from ._readers import READERS
from ._server import Server

_DATA = ("columns", "shape", "target", "classes")
_TABLES = ("row_covariates", "column_covariates", "row_groups")
_SECTIONS = ("estimator", "server", "keys", "certificates")
_CERTIFICATES = ("certificate", "private_key", "authority")
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


def read_plan(text: str) -> dict[str, Any]:
    """Plan from its TOML, whose sections and options are those that there are."""
    plan = tomllib.loads(text)
    _check_names("sections", plan, _SECTIONS)
    for section in plan:
        if not isinstance(plan[section], dict):
            raise ValueError(f"Expected a section [{section}] in the plan, got {plan[section]!r}.")
    options = plan.get("server", {})
    if not {"class", "roster"} <= {*plan.get("estimator", ()), *options}:
        raise ValueError("Expected a class in [estimator] and a roster in [server] of the plan.")
    _check_names("options in [server]", options, _OPTIONS)
    if "certificates" in plan:
        _check_names("entries in [certificates]", plan["certificates"], _CERTIFICATES, every=True)
    if plan["estimator"]["class"] not in READERS:
        name = plan["estimator"]["class"]
        raise ValueError(f"Expected one of {', '.join(READERS)} in the plan, got {name!r}.")
    check_number("timeout", options.get("timeout", 1), low=0, low_open=True)
    check_number("port", options.get("port", 0), kind=Integral, low=0, high=65535)
    return plan


def _check_names(what: str, got: Any, wanted: tuple[str, ...], *, every: bool = False) -> None:
    """Raise unless a plan has only names that are wanted, or all of them."""
    wrong = [repr(name) for name in got if name not in wanted]
    if every:
        wrong += [f"no {name!r}" for name in wanted if name not in got]
    if wrong:
        raise ValueError(f"Expected {what} {', '.join(wanted)}, got {wrong[0]}.")


def server_of(plan: dict[str, Any], folder: Path) -> Server:
    """Server of a plan, whose paths are relative to a folder."""
    options, estimator = plan["server"], dict(plan["estimator"])
    name = estimator.pop("class")
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
