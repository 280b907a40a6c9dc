"""Base class of the operators that send integers, and one step per block of a vector."""

from __future__ import annotations

from abc import abstractmethod
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .._compat import divide_in_place
from .._typing import FloatArray, IntArray
from . import _codec, _vectors
from ._operator import Operator


class Stepped(Operator):
    """Operator that rounds |x| / step at random, with one step per block of a vector.

    A subclass also implements the abstract methods below.
    """

    norm: float

    def __post_init__(self) -> None:
        """Check the parameters."""
        super().__post_init__()
        if not isinstance(self.norm, Real) or self.norm not in (2, np.inf):
            raise ValueError(
                f"Expected norm to be 2 or numpy.inf, got {self.norm!r}. Give one of these."
            )

    @abstractmethod
    def _cut(self) -> int | None:
        """Length of a block; None if a vector is one block."""

    @abstractmethod
    def _steps(self, norms: FloatArray, q: IntArray) -> FloatArray:
        """Steps of blocks with the given norms, in vectors with the given lengths."""

    @abstractmethod
    def _round(self, ratios: FloatArray, uniforms: FloatArray) -> FloatArray:
        """Ratios rounded without bias, in place."""

    @abstractmethod
    def _code(self, q: Any) -> _codec.Scaled:
        """Code of the values: integers, and one step per block."""

    def send(
        self, values: ArrayLike, uniforms: ArrayLike, lengths: ArrayLike | None = None
    ) -> tuple[FloatArray, IntArray]:
        if (type(self).compress, type(self).n_bytes) != (Operator.compress, Operator.n_bytes):
            return super().send(values, uniforms, lengths)  # a subclass overrides one of them
        x, sizes = _vectors.as_vectors(values, lengths)
        xi = _vectors.as_uniforms(uniforms, x)
        ratios, scale, steps, blocks = self._ratios(x.ravel(), sizes)
        integers = self._round(ratios, xi.ravel())
        code = self._code(0)  # sizes do not depend on the bound on the integers
        n_bytes = code.sizes_of(integers, steps, blocks)
        return _product(integers, scale, x.ravel()).reshape(x.shape), n_bytes

    def _compress(self, x: FloatArray, uniforms: FloatArray, lengths: IntArray) -> FloatArray:
        ratios, scale, _, _ = self._ratios(x, lengths)
        return _product(self._round(ratios, uniforms), scale, x)

    def _ratios(
        self, x: FloatArray, lengths: IntArray
    ) -> tuple[FloatArray, FloatArray, FloatArray, _vectors.Blocks]:
        """Ratios |x| / step; steps by coordinate and by block; the blocks."""
        blocks, ratios = _vectors.cut(lengths, self._cut()), np.abs(x)
        norms = _vectors.norms(ratios, blocks, self.norm)
        steps = self._steps(norms, np.repeat(lengths, blocks.per_vector))
        steps = np.where(norms > 0, steps, 1.0)
        scale = blocks.spread(steps)
        divide_in_place(ratios, scale)
        return ratios, scale, steps, blocks

    def _variance(self, x: FloatArray, lengths: IntArray) -> FloatArray:
        # Rounding t steps at random has the variance step^2 f (1 - f), f being the fractional part
        # of t.
        ratios, scale, _, _ = self._ratios(x, lengths)
        fractions = ratios - np.floor(ratios)
        variances = (scale * fractions) * (scale * (1 - fractions))
        return _vectors.reduce_each(np.add, variances, lengths)


def _product(integers: FloatArray, scale: FloatArray, x: FloatArray) -> FloatArray:
    """Integers times steps, with the signs of x; overwrites the integers."""
    integers *= scale
    np.copysign(integers, x, out=integers)
    integers += 0.0  # turns -0.0 into 0.0
    return integers


def shorten(steps: FloatArray, rounding: np.ufunc) -> FloatArray:
    """Round to 24 significant bits, so that steps within the range of float32 are float32s."""
    mantissas, exponents = np.frexp(steps)
    return np.ldexp(rounding(np.ldexp(mantissas, 24)), exponents - 24)
