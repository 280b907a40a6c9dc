"""No compression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .._serialization import serializable
from .._typing import FloatArray, IntArray
from . import _codec, _vectors
from ._operator import Operator


@serializable
@dataclass(frozen=True)
class Identity(Operator):
    """No compression: Q(x) = x with omega = 0, at 8 bytes per coordinate.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedem.compression import Identity
    >>> Identity().compress([1.5, -2.0], np.zeros(2))
    array([ 1.5, -2. ])
    >>> Identity().n_bytes([1.5, -2.0]).tolist()
    [20]
    """

    def __post_init__(self) -> None:
        """Do nothing: there are no parameters."""

    def _level(self, q: int) -> int:
        return q

    def _omega(self, q: int, level: int) -> float:
        return 0.0

    def _compress(self, x: FloatArray, uniforms: FloatArray, lengths: IntArray) -> FloatArray:
        _vectors.check_finite(x)
        return x + 0.0  # turns -0.0 into 0.0

    def _variance(self, x: FloatArray, lengths: IntArray) -> FloatArray:
        _vectors.check_finite(x)
        return np.zeros(len(lengths))

    def _code(self, q: Any) -> _codec.Plain:
        return _codec.Plain(0x20)
