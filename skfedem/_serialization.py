"""Records of arrays as bytes, without pickle: what server and clients tell each other.

A record is a nested structure of NamedTuples, frozen dataclasses, compressors, tuples, lists,
dictionaries, arrays, numbers, strings and None. Its bytes are a JSON header, which names the types,
and the arrays in little-endian order. Only types that ``serializable`` has registered are read.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

_Type = TypeVar("_Type", bound=type[Any])
_TYPES: dict[str, type[Any]] = {}
_LENGTH = struct.Struct("<Q")


def serializable(kind: _Type) -> _Type:
    """Class decorator that registers a type whose attributes are its constructor's arguments."""
    _TYPES[kind.__name__] = kind
    return kind


def to_bytes(value: object) -> bytes:
    """Bytes of a record; TypeError if a part is of a type that is not registered."""
    arrays: list[NDArray[Any]] = []
    header = json.dumps(_described(value, arrays)).encode()
    return b"".join([_LENGTH.pack(len(header)), header, *(own.tobytes() for own in arrays)])


def from_bytes(data: bytes) -> Any:
    """Record from its bytes; ValueError if they are cut off, none, or name an unknown type."""
    try:
        (length,) = _LENGTH.unpack_from(data)
        start = _LENGTH.size + length
        value, end = _restored(json.loads(data[_LENGTH.size : start]), data, start)
    except (struct.error, KeyError, TypeError, UnicodeDecodeError) as error:
        raise ValueError(f"Expected the bytes of a record, got others ({error!r}).") from error
    if end != len(data):
        raise ValueError(f"Expected {end} bytes of a record, got {len(data)}.")
    return value


def digest(value: object) -> str:
    """SHA-256 of a record, by which server and clients compare what they agreed on."""
    return hashlib.sha256(to_bytes(value)).hexdigest()


def _described(value: Any, arrays: list[NDArray[Any]]) -> Any:
    """JSON of a value, whose arrays are appended to a list."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        array = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
        arrays.append(array)
        return {"array": array.dtype.str, "shape": array.shape}
    if isinstance(value, dict):
        return {"dict": {name: _described(own, arrays) for name, own in value.items()}}
    if isinstance(value, slice):
        return {"slice": [value.start, value.stop, value.step]}
    name = type(value).__name__
    if _TYPES.get(name) is type(value):
        parts = _attributes(value).items()
        return {"type": name, "parts": {key: _described(own, arrays) for key, own in parts}}
    if isinstance(value, tuple | list):
        return {"items": [_described(own, arrays) for own in value]}
    raise TypeError(f"Expected a record of arrays and registered types, got a {name}.")


def _attributes(value: Any) -> dict[str, Any]:
    """Arguments of the constructor of an object of a registered type."""
    if isinstance(value, tuple):
        return dict(value._asdict())  # type: ignore[attr-defined]
    if is_dataclass(value):
        return {own.name: getattr(value, own.name) for own in fields(value) if own.init}
    return dict(vars(value))


def _restored(described: Any, data: bytes, position: int) -> tuple[Any, int]:
    """Value from its JSON and the arrays from a position on, and the position after them."""
    if not isinstance(described, dict):
        return described, position
    if "array" in described:
        dtype, shape = np.dtype(described["array"]), tuple(described["shape"])
        end = position + dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        if dtype.kind not in "biuf" or not position <= end <= len(data):
            raise ValueError(f"Expected an array of shape {shape}, got too few bytes.")
        array = np.frombuffer(data, dtype, offset=position, count=int(np.prod(shape)))
        return array.reshape(shape).astype(dtype.newbyteorder("=")), end
    if "slice" in described:
        return slice(*described["slice"]), position
    named = described.get("dict", described.get("parts"))
    if named is None:
        named = dict(enumerate(described["items"]))
    values = {}
    for name, own in named.items():
        values[name], position = _restored(own, data, position)
    if "type" in described:
        return _registered(described["type"])(**values), position
    return (values if "dict" in described else tuple(values.values())), position


def _registered(name: str) -> type[Any]:
    """Type of a name; modules that are imported when they are asked for register theirs then."""
    if name not in _TYPES:
        package = import_module("skfedem")
        for estimator in package.__all__:
            getattr(package, estimator)
    return _TYPES[name]
