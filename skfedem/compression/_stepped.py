"""Base of the operators that send integers, and a step for each block of a vector."""

from __future__ import annotations

from abc import abstractmethod
from numbers import Real

import numpy as np
from numpy.typing import ArrayLike

from .. import _codec, _vectors
from .._compat import divide_in_place
from .._typing import FloatArray, IntArray
from ._operator import Operator


class Stepped(Operator):
    """Operators that round |x| / step at random, with one step for each block of a vector.

    A subclass also gives the methods below that are abstract.
    """

    norm: float

    def __post_init__(self) -> None:
        """Check the parameters."""
        super().__post_init__()
        if not isinstance(self.norm, Real) or self.norm not in (2, np.inf):
            raise ValueError(f"Expected norm to be 2 or numpy.inf, got {self.norm!r}. Give one.")

    @abstractmethod
    def _cut(self) -> int | None:
        """Length of a block; None if a vector is one block."""

    @abstractmethod
    def _steps(self, norms: FloatArray, q: int) -> FloatArray:
        """Steps of blocks."""

    @abstractmethod
    def _round(self, ratios: FloatArray, uniforms: FloatArray) -> FloatArray:
        """Ratios rounded without bias, in place."""

    @abstractmethod
    def _code(self, q: int) -> _codec.Scaled:
        """How its values are written: as integers, with a step for each block."""

    def send(
        self, values: ArrayLike, uniforms: ArrayLike, lengths: ArrayLike | None = None
    ) -> tuple[FloatArray, IntArray]:
        if (type(self).compress, type(self).n_bytes) != (Operator.compress, Operator.n_bytes):
            return super().send(values, uniforms, lengths)  # a subclass overrides one of them
        values, sizes = _vectors.as_vectors(values, lengths)
        uniforms = _vectors.as_uniforms(uniforms, values)
        return _vectors.per_coordinate_and_vector(self._send, np.int64, values, uniforms, sizes)

    def _send(self, x: FloatArray, uniforms: FloatArray) -> tuple[FloatArray, IntArray]:
        integers, steps = self._factors(x, uniforms)
        n_bytes = self._code(x.shape[1]).sizes_of(integers, steps, x.shape[1])
        return self._product(integers, steps, x), n_bytes

    def _compress(self, x: FloatArray, uniforms: FloatArray) -> FloatArray:
        integers, steps = self._factors(x, uniforms)
        return self._product(integers, steps, x)

    def _factors(self, x: FloatArray, uniforms: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Magnitudes of Q(x) as integers and a step for each block."""
        ratios, steps = self._ratios(x)
        return self._round(ratios, _vectors.in_blocks(uniforms, self._cut())), steps

    def _product(self, integers: FloatArray, steps: FloatArray, x: FloatArray) -> FloatArray:
        """Integers times steps, which overwrites the integers, with the signs of x."""
        integers *= _vectors.spread(steps, integers.shape[2])
        compressed = np.copysign(_vectors.from_blocks(integers, x.shape[1]), x)
        compressed += 0.0  # turns -0.0 into 0.0
        return compressed

    def _ratios(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """|x| / step in blocks, see `_vectors.in_blocks`, and a step for each block."""
        ratios = _vectors.in_blocks(np.abs(x), self._cut())
        norms = _vectors.norms(ratios, self.norm)
        steps = np.where(norms > 0, self._steps(norms, x.shape[1]), 1.0)
        divide_in_place(ratios, _vectors.spread(steps, ratios.shape[2]))
        return ratios, steps

    def _variance(self, x: FloatArray) -> FloatArray:
        # Rounding a number of fractional part f, in steps, has the variance step^2 f (1 - f).
        ratios, steps = self._ratios(x)
        fractions = ratios - np.floor(ratios)
        return ((steps * fractions) * (steps * (1 - fractions))).sum(axis=(1, 2))


def shorten(steps: FloatArray, rounding: np.ufunc) -> FloatArray:
    """Round to 24 significant bits, so that a float32 holds the step unless out of its range."""
    mantissas, exponents = np.frexp(steps)
    return np.ldexp(rounding(np.ldexp(mantissas, 24)), exponents - 24)
