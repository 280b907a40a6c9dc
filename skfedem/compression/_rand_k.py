"""Random sparsification."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any, ClassVar

import numpy as np

from .._serialization import serializable
from .._typing import FloatArray, IntArray
from . import _codec, _vectors
from ._operator import Operator, smallest_integer


@serializable
@dataclass(frozen=True)
class RandK(Operator):
    """Random sparsification: keep k random coordinates, multiplied by q / k.

    The coordinates with the k smallest uniforms are kept (the first ones in a tie), so that they
    are drawn without replacement; ``omega = q / k - 1`` is exact: ``E ||Q(x) - x||^2 = omega
    ||x||^2``.

    Parameters
    ----------
    k : int, optional
        Number of coordinates to keep, >= 1; shorter vectors are unchanged. Give either this or
        `omega`.
    omega : float, optional
        Desired relative variance, > 0; ``k = ceil(q / (1 + omega))`` for each length q.

    Raises
    ------
    TypeError, ValueError
        If not exactly one of `k` and `omega` is given, or a parameter is out of range.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedem.compression import RandK
    >>> operator = RandK(omega=1.0)
    >>> operator.omega_for([4, 5]).round(3)
    array([1.   , 0.667])
    >>> operator.compress([1.0, 2.0, 3.0, 4.0], [0.3, 0.9, 0.1, 0.5])
    array([2., 0., 6., 0.])
    """

    k: int | None = None
    omega: float | None = None

    _level_name: ClassVar[str] = "k"

    def _omega(self, q: int, k: int) -> float:
        return max(q / max(k, 1) - 1, 0.0)

    def _level(self, q: int) -> int:
        if self.k is not None:
            return min(q, self.k)
        omega = self.omega
        assert omega is not None  # checked by __post_init__
        k = smallest_integer(ceil(q / (1 + omega)), lambda k: self._omega(q, k) <= omega)
        return min(q, k)

    def _compress(self, x: FloatArray, uniforms: FloatArray, lengths: IntArray) -> FloatArray:
        return _vectors.for_rows(self._compress_rows, x, uniforms, lengths)

    def _compress_rows(self, x: FloatArray, uniforms: FloatArray) -> FloatArray:
        k = self._level(x.shape[1])
        with np.errstate(over="ignore"):
            compressed = x * (x.shape[1] / max(k, 1))
        if not np.isfinite(compressed).all():
            _vectors.check_finite(x)
            _vectors.check_finite(compressed, "values times q / k", "Rescale the values.")
        compressed *= _vectors.mask_of_smallest(uniforms, k)
        compressed += 0.0  # turns -0.0 into 0.0
        return compressed

    def _variance(self, x: FloatArray, lengths: IntArray) -> FloatArray:
        _vectors.check_finite(x)
        omega = np.repeat(self.omega_for(lengths), lengths)
        return _vectors.reduce_segments(np.add, omega * x * x, lengths)

    def _code(self, q: Any) -> _codec.Sparse:
        return _codec.Sparse(0x23, most=self.level_for(q))
