"""Block-p quantization."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from math import sqrt
from typing import Any, ClassVar

import numpy as np

from .._serialization import serializable
from .._typing import FloatArray, IntArray
from . import _codec, _vectors
from ._operator import Quantizer, round_to_24_bits, smallest_integer


@serializable
@dataclass(frozen=True)
class BlockQuantizer(Quantizer):
    """Block-p quantization: send each sign with a probability proportional to the magnitude.

    In each block x, ``Q(x)_j = ||x||_p * sign(x_j) * U_j``, where U_j is a Bernoulli draw with
    probability ``|x_j| / ||x||_p`` (1 if the uniform is below it). For blocks of B coordinates,
    ``omega = sqrt(B) - 1`` (p = 2) or ``(sqrt(B) - 1) / 2`` (p = inf); the variance is ``||x||_1
    ||x||_p - ||x||^2``. The norm is rounded up to 24 significant bits and sent as a float32, which
    may add ``(1 + omega) 2**-23`` to omega. If all blocks have one coordinate, coordinates are sent
    unchanged.

    Parameters
    ----------
    block_length : int, optional
        Number of coordinates in a block, B >= 1; the last block of a vector may be shorter. Give
        either this or `omega`.
    omega : float, optional
        Desired relative variance, > 0. It sets the longest block that attains it, ``floor((1 +
        omega)^2)`` (p = 2) or ``floor((1 + 2 omega)^2)`` (p = inf).
    norm : {2, numpy.inf}, default=2
        The norm p.

    Raises
    ------
    TypeError, ValueError
        If not exactly one of `block_length` and `omega` is given, or a parameter is out of range.

    References
    ----------
    A. Dieuleveut, G. Fort, E. Moulines, G. Robin, "Federated Expectation Maximization with
    heterogeneity mitigation and variance reduction", NeurIPS 2021, Appendix B, Lemma 5.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedem.compression import BlockQuantizer
    >>> operator = BlockQuantizer(omega=1.0)
    >>> operator.level_for(100)
    4
    >>> operator.compress([3.0, 0.0, -4.0, 0.0, 7.0], [0.7, 0.1, 0.7, 0.1, 0.9])
    array([ 0.,  0., -5.,  0.,  7.])
    """

    block_length: int | None = None
    omega: float | None = None
    _: KW_ONLY
    norm: float = 2

    _level_name: ClassVar[str] = "block_length"

    def _omega(self, q: int, block_length: int) -> float:
        return _block_omega(block_length, self.norm)

    def _level(self, q: int) -> int:
        return min(q, self._block_length())

    def _block_length(self) -> int:
        if self.block_length is not None:
            return self.block_length
        omega = self.omega
        assert omega is not None  # checked by __post_init__
        root = 1 + omega * (1 if self.norm == 2 else 2)
        if root >= sqrt(_vectors.MAX_LENGTH):
            return self._most_levels
        # The longest block that attains omega: with one more coordinate, it would not.
        return smallest_integer(
            int(root**2), lambda block: _block_omega(block + 1, self.norm) > omega
        )

    def _steps(self, norms: FloatArray, q: IntArray) -> FloatArray:
        return np.where(self.level_for(q) == 1, norms, round_to_24_bits(norms, np.ceil))

    def _round(self, ratios: FloatArray, uniforms: FloatArray) -> FloatArray:
        return np.less(uniforms, ratios, out=ratios)

    def _code(self, q: Any) -> _codec.Scaled:
        return _codec.Scaled(0x22, self._block_length(), most=1)


def _block_omega(block_length: int, norm: float) -> float:
    return max(sqrt(block_length) - 1, 0.0) / (1 if norm == 2 else 2)
