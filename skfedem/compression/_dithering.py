"""Random dithering."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import cache
from math import ceil, sqrt
from numbers import Integral
from typing import Any, ClassVar

import numpy as np

from .._parameters import check_number
from .._serialization import serializable
from .._typing import FloatArray, IntArray
from . import _codec, _vectors
from ._operator import Quantizer, round_to_24_bits, smallest_integer

# With 24-bit steps, level * step is exact in float64 for all levels below 2**29.
_MAX_LEVELS = 2**20


@serializable
@dataclass(frozen=True)
class Dithering(Quantizer):
    """Random dithering: round each coordinate at random to a neighbouring multiple of a step.

    ``Q(x)_j = step * sign(x_j) * floor(|x_j| / step + xi_j)``, where xi_j is uniform on [0, 1) and
    ``step = ||x|| / levels`` is rounded down to 24 significant bits and sent as a float32 (or as a
    float64, outside the range of float32). With one level, Q is block quantization.

    A coordinate of t steps has the variance ``step^2 f (1 - f)``, where f is the fractional part of
    t. Its least upper bound that is concave in t^2 is largest in sum for equal coordinates: for the
    2-norm, ``omega = sqrt(q) / levels - 1`` if ``q >= 4 levels^2``, and ``q / (4 levels^2)``
    otherwise. For the maximum norm and q > 1, where one coordinate sets the step, ``omega = (sqrt(1
    + (q - 1) / levels^2) - 1) / 2``; rounding the step down may add ``2**-23`` to it. (The bound of
    the reference is ``min(q / levels^2, sqrt(q) / levels)``.)

    Parameters
    ----------
    levels : int, optional
        Number of steps in the norm of a vector, from 1 to 2**20. Give either this or `omega`.
    omega : float, optional
        Desired relative variance, > 0. For each length, the fewest levels that attain it are used.
    norm : {2, numpy.inf}, default=2
        Norm that determines the step.
    bucket_length : int, optional
        Number q of coordinates in a bucket, each of which has its own step. By default, a vector is
        one bucket.

    Raises
    ------
    TypeError, ValueError
        If not exactly one of `levels` and `omega` is given, or a parameter is out of range.

    References
    ----------
    D. Alistarh, D. Grubic, J. Li, R. Tomioka, M. Vojnovic, "QSGD: communication-efficient SGD via
    gradient quantization and encoding", NeurIPS 2017.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedem.compression import Dithering
    >>> operator = Dithering(levels=5)
    >>> operator.omega_for(2)
    0.02
    >>> sent = operator.compress([3.0, -4.0], [0.5, 0.5])
    >>> data = operator.encode(sent)
    >>> len(data), operator.n_bytes(sent).tolist()
    (12, [12])
    >>> operator.decode(data, length=2)
    array([ 3., -4.])
    """

    levels: int | None = None
    omega: float | None = None
    _: KW_ONLY
    norm: float = 2
    bucket_length: int | None = None

    _level_name: ClassVar[str] = "levels"
    _most_levels: ClassVar[int] = _MAX_LEVELS

    def __post_init__(self) -> None:
        """Check the parameters."""
        super().__post_init__()
        if self.bucket_length is not None:
            high = _vectors.MAX_LENGTH - 1
            check_number("bucket_length", self.bucket_length, kind=Integral, low=1, high=high)

    def _omega(self, q: int, levels: int) -> float:
        return _dithering_omega(min(q, self.bucket_length or q), levels, self.norm)

    def _level(self, q: int) -> int:
        if self.levels is not None:
            return self.levels
        return _fewest_levels(min(q, self.bucket_length or q), self.omega, self.norm)

    def _block_length(self) -> int | None:
        return self.bucket_length

    def _steps(self, norms: FloatArray, q: IntArray) -> FloatArray:
        # A step must not be 0, not even if the norm is denormal.
        return np.maximum(round_to_24_bits(norms / self.level_for(q), np.floor), 5e-324)

    def _round(self, ratios: FloatArray, uniforms: FloatArray) -> FloatArray:
        ratios += uniforms
        return np.floor(ratios, out=ratios)

    def _code(self, q: Any) -> _codec.Scaled:
        # Rounding up adds one; a denormal step may be as small as 2/3 of the exact one, which the
        # factor 2 allows for.
        return _codec.Scaled(0x21, self.bucket_length, most=2 * self.level_for(q) + 1)


def _dithering_omega(q: int, levels: int, norm: float) -> float:
    if norm != 2 and q > 1:
        spread = (q - 1) / levels**2
        return spread / (sqrt(1 + spread) + 1) / 2  # sqrt(1 + spread) - 1 would lose digits
    return sqrt(q) / levels - 1 if q >= 4 * levels**2 else q / (4 * levels**2)


@cache
def _fewest_levels(q: int, omega: float, norm: float) -> int:
    """Fewest levels with which dithering of q coordinates attains omega."""
    if norm != 2 and q > 1:
        levels = sqrt((q - 1) / omega / (1 + omega)) / 2
    else:
        levels = sqrt(q) / (1 + omega) if omega >= 1 else sqrt(q / (4 * omega))
    if levels > _MAX_LEVELS:
        raise ValueError(
            f"Expected an omega that {_MAX_LEVELS} levels can reach, got omega={omega}, which "
            f"needs {levels:.3g} levels. Use a larger omega, or Identity()."
        )
    return smallest_integer(ceil(levels), lambda s: _dithering_omega(q, s, norm) <= omega)
