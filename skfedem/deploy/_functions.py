"""Functions in plans: a client has its own copy, which is compared; no code is sent."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from types import CodeType
from typing import Any

import numpy as np

from .. import pharmacokinetics
from ._messages import Refused


def described(function: Callable[..., Any]) -> dict[str, str]:
    """Name and digest of a function, as they are sent."""
    return {"function": function.__name__, "digest": _digest(function)}


def _digest(function: Callable[..., Any]) -> str:
    """SHA-256 of the source of a function, and of what it closes over."""
    try:
        parts = [inspect.getsource(function)]
    except (OSError, TypeError):  # typed at a prompt
        parts = [_of_code(function.__code__)]
    for cell in function.__closure__ or ():
        parts.append(_of_value(cell.cell_contents))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _of_value(own: object) -> str:
    if inspect.isfunction(own):
        return _digest(own)
    if isinstance(own, np.ndarray):  # whose repr leaves numbers out
        return f"{own.dtype} {own.shape} {hashlib.sha256(own.tobytes()).hexdigest()}"
    return repr(own)


def _of_code(code: CodeType) -> str:
    constants = [_of_code(own) if isinstance(own, CodeType) else own for own in code.co_consts]
    return repr((code.co_code, constants, code.co_names))


def with_function(plan: dict[str, Any], own: Callable[..., Any] | None) -> dict[str, Any]:
    """Plan with the client's function in place of the description of the server's.

    Raises Refused if the client has none, or another one.
    """
    wanted = plan["parameters"].get("model")
    if not isinstance(wanted, dict) or "function" not in wanted:
        return plan
    name, function = wanted["function"], own
    if function is None and name in pharmacokinetics.__all__:
        function = getattr(pharmacokinetics, name)
    if function is None:
        raise Refused(f"model: expected Client(..., model={name}), as the plan has")
    if described(function) != wanted:
        raise Refused(f"model: {function.__name__} differs from the server's {name}")
    return {**plan, "parameters": {**plan["parameters"], "model": function}}
