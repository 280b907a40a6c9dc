"""Functions in plans: a client has its own copy, which is compared; no code is sent."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from numbers import Number
from types import CodeType
from typing import Any

import numpy as np

from .. import pharmacokinetics
from ._messages import Refused


def described(function: Callable[..., Any]) -> dict[str, str]:
    """Name and digest of a function, as they are sent."""
    return {"function": function.__name__, "digest": _digest(function)}


def _digest(function: Callable[..., Any], within: tuple[Any, ...] = ()) -> str:
    """SHA-256 of the source of a function, of what it closes over, and of the globals it uses."""
    try:
        parts = [inspect.getsource(function)]
    except (OSError, TypeError):  # typed at a prompt
        parts = [_of_code(function.__code__)]
    known = function.__globals__
    used = [known[name] for name in sorted(_names(function.__code__)) if name in known]
    used += [cell.cell_contents for cell in function.__closure__ or ()]
    parts += [_of_value(own, (*within, function)) for own in used]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _names(code: CodeType) -> set[str]:
    """Global names in the code of a function, and in that of functions within."""
    within = [own for own in code.co_consts if isinstance(own, CodeType)]
    return {*code.co_names}.union(*map(_names, within))


def _of_value(own: object, within: tuple[Any, ...]) -> str:
    """Text that differs if a value does; of objects of other kinds, only their type."""
    if inspect.isfunction(own):
        is_own = own.__module__ == within[0].__module__ and own not in within
        return _digest(own, within) if is_own else f"{own.__module__}.{own.__qualname__}"
    if isinstance(own, np.ndarray):
        return f"{own.dtype} {own.shape} {hashlib.sha256(own.tobytes()).hexdigest()}"
    if isinstance(own, list | tuple):
        return f"[{', '.join(_of_value(part, within) for part in own)}]"
    if isinstance(own, dict):
        return _of_value([*own.items()], within)
    if own is None or isinstance(own, Number | str | bytes):
        return repr(own)
    return type(own).__qualname__


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
