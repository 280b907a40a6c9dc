"""Base classes of the operators here: argument checks, levels, and quantization by blocks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from itertools import count
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from .._compat import divide_in_place
from .._error_messages import repr_of
from .._parameters import check_number, python_number
from .._typing import FloatArray, IntArray
from . import _codec, _vectors
from ._base import Compressor


class Operator(Compressor):
    """All methods of `Compressor`, implemented by functions of vectors concatenated in `x`.

    A subclass is a frozen dataclass. It defines `_level_name`, the name of the parameter that
    `omega` can replace, and the abstract methods below.
    """

    omega: float | None  # of all operators that have a level

    _level_name: ClassVar[str]
    _most_levels: ClassVar[int] = _vectors.MAX_LENGTH - 1

    def __post_init__(self) -> None:
        """Check the parameters: either a level, or omega, which sets a level for each length."""
        name, level = self._level_name, getattr(self, self._level_name)
        if (level is None) == (self.omega is None):
            raise ValueError(
                f"Expected exactly one of {name} and omega, got {name}={repr_of(level)} and "
                f"omega={repr_of(self.omega)}. Give the level, or the omega that determines it."
            )
        if level is None:
            hint = "For no compression use Identity()."
            check_number("omega", self.omega, low=0, low_open=True, hint=hint)
        else:
            check_number(name, level, kind=Integral, low=1, high=self._most_levels)
        for given, value in list(vars(self).items()):
            object.__setattr__(self, given, python_number(value))

    @abstractmethod
    def _level(self, q: int) -> int:
        """Level for vectors of length q: as given, or the cheapest one that attains `omega`."""

    @abstractmethod
    def _omega(self, q: int, level: int) -> float:
        """Relative variance of vectors of length q with this level."""

    @abstractmethod
    def _compress(self, x: FloatArray, uniforms: FloatArray, lengths: IntArray) -> FloatArray:
        """Compressed vectors."""

    @abstractmethod
    def _variance(self, x: FloatArray, lengths: IntArray) -> FloatArray:
        """Variance of each compressed vector."""

    @abstractmethod
    def _code(self, q: Any) -> _codec.Plain | _codec.Sparse | _codec.Scaled:
        """Code from `_codec` that encodes vectors of length q, or of lengths q.

        The first byte of a message is the version of the format (high half) and a number for the
        operator.
        """

    def level_for(self, length: ArrayLike) -> Any:
        """Level of compression of vectors of the given lengths.

        Parameters
        ----------
        length : int or array of int
            Lengths q >= 0 of vectors.

        Returns
        -------
        level : int, or ndarray of int of the shape of `length`
            `levels` of :class:`Dithering`, `block_length` of :class:`BlockQuantizer`, and the
            number of coordinates that :class:`RandK` and :class:`Identity` keep.

        Raises
        ------
        TypeError, ValueError
            If a length is not an integer >= 0, or `Dithering` needs more than 2**20 levels.
        """
        return _vectors.for_each_length(self._level, length)

    def omega_for(self, length: ArrayLike) -> Any:
        return _vectors.for_each_length(lambda q: self._omega(q, self._level(q)), length)

    def compress(
        self, values: ArrayLike, uniforms: ArrayLike, lengths: ArrayLike | None = None
    ) -> FloatArray:
        x, sizes = _vectors.as_vectors(values, lengths)
        xi = _vectors.as_uniforms(uniforms, x)
        return self._compress(x.ravel(), xi.ravel(), sizes).reshape(x.shape)

    def variance(self, values: ArrayLike, lengths: ArrayLike | None = None) -> FloatArray:
        x, sizes = _vectors.as_vectors(values, lengths)
        with np.errstate(over="ignore"):  # inf if it overflows
            return self._variance(x.ravel(), sizes)

    def n_bytes(self, values: ArrayLike, lengths: ArrayLike | None = None) -> IntArray:
        x, sizes = _vectors.as_vectors(values, lengths)
        return self._code(sizes).sizes(x.ravel(), sizes)

    def encode(self, values: ArrayLike) -> bytes:
        vector, _ = _vectors.as_vectors(values)
        if vector.ndim != 1:
            raise ValueError(f"Expected one vector of shape (q,), got shape {vector.shape}.")
        return self._code(len(vector)).encode(vector)

    def decode(self, data: bytes, length: int) -> FloatArray:
        check_number("length", length, kind=Integral, low=0)
        return self._code(0).decode(data, int(length))


class Quantizer(Operator):
    """Operator that rounds |x| / step at random, with one step per block of a vector.

    A subclass also implements the abstract methods below.
    """

    norm: float

    def __post_init__(self) -> None:
        """Check the parameters."""
        super().__post_init__()
        if self.norm not in (2, np.inf):
            raise ValueError(f"Expected norm to be 2 or numpy.inf, got {self.norm!r}.")

    @abstractmethod
    def _block_length(self) -> int | None:
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
        blocks, ratios = _vectors.blocks_of(lengths, self._block_length()), np.abs(x)
        norms = _vectors.norms(ratios, blocks, self.norm)
        steps = self._steps(norms, np.repeat(lengths, blocks.per_vector))
        steps = np.where(norms > 0, steps, 1.0)
        scale = blocks.repeat(steps)
        divide_in_place(ratios, scale)
        return ratios, scale, steps, blocks

    def _variance(self, x: FloatArray, lengths: IntArray) -> FloatArray:
        # Rounding t steps at random has the variance step^2 f (1 - f), where f is the fractional
        # part of t.
        ratios, scale, _, _ = self._ratios(x, lengths)
        fractions = ratios - np.floor(ratios)
        variances = (scale * fractions) * (scale * (1 - fractions))
        return _vectors.reduce_segments(np.add, variances, lengths)


def _product(integers: FloatArray, scale: FloatArray, x: FloatArray) -> FloatArray:
    """Integers times steps, with the signs of x; overwrites the integers."""
    integers *= scale
    np.copysign(integers, x, out=integers)
    integers += 0.0  # turns -0.0 into 0.0
    return integers


def round_to_24_bits(steps: FloatArray, rounding: np.ufunc) -> FloatArray:
    """Round to 24 significant bits, so that steps within the range of float32 are float32s."""
    mantissas, exponents = np.frexp(steps)
    return np.ldexp(rounding(np.ldexp(mantissas, 24)), exponents - 24)


def smallest_integer(guess: int, holds: Callable[[int], bool]) -> int:
    """Smallest integer >= 1 for which `holds`; `guess` may exceed it by one, by rounding."""
    return next(level for level in count(max(guess - 1, 1)) if holds(level))
