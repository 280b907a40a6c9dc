"""Base class of the operators here: argument checks, and levels."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from itertools import count
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from .._messages import repr_of
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
                f"omega={repr_of(self.omega)}. Give the level, or the relative variance omega that "
                "determines it."
            )
        if level is None:
            hint = "For no compression use Identity()."
            check_number("omega", self.omega, low=0, low_open=True, hint=hint)
        else:
            check_number(name, level, kind=Integral, low=1, high=self._most_levels)
        for given, value in list(vars(self).items()):
            object.__setattr__(self, given, python_number(value))

    @abstractmethod
    def _level(self, q: int) -> Any:
        """Level for vectors of length q: as given, or the cheapest one that attains `omega`."""

    @abstractmethod
    def _omega(self, q: int, level: Any) -> float:
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
            raise ValueError(
                f"Expected one vector of shape (q,), got shape {vector.shape}. Encode vectors one "
                "by one."
            )
        return self._code(len(vector)).encode(vector)

    def decode(self, data: bytes, length: int) -> FloatArray:
        check_number("length", length, kind=Integral, low=0)
        return self._code(0).decode(data, int(length))


def least(guess: int, holds: Callable[[int], bool]) -> int:
    """Smallest integer >= 1 for which `holds`; `guess` may exceed it by one, by rounding."""
    return next(level for level in count(max(guess - 1, 1)) if holds(level))
