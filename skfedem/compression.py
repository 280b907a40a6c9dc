"""Compression of client vectors: operators, and their relative variance omega.

An operator Q is unbiased and has a bounded relative variance (assumption A6 of Dieuleveut, Fort,
Moulines, Robin, "Federated Expectation Maximization with heterogeneity mitigation and variance
reduction", NeurIPS 2021): ``E Q(x) = x`` and ``E ||Q(x)||^2 <= (1 + omega) ||x||^2``.

How values become bytes is the matter of `skfedem._codec`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from functools import cache
from itertools import count
from math import ceil, sqrt
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from . import _codec, _vectors
from ._compat import divide_in_place
from ._parameters import check_number, python_number
from ._typing import FloatArray, IntArray

__all__ = ["BlockQuantizer", "Compressor", "Dithering", "Identity", "RandK"]

# With 24-bit steps, level * step is exact in float64 for all levels below 2**29.
_MAX_LEVELS = 2**20


class Compressor(ABC):
    """What every compression operator provides.

    An operator is a frozen, stateless value: all randomness comes in as `uniforms`, so the same
    inputs give the same output on any machine, in any grouping of the vectors. Every method takes
    one vector (q,), n vectors of one length (n, q), or, with `lengths` (n,), a flat array that
    holds n vectors of these lengths back to back; the result for a vector does not depend on the
    others. A new operator implements the methods below and keeps to these rules:

    - unbiased: the mean of ``compress(x, uniforms)`` over uniform draws is x;
    - bounded: the mean of its squared norm is at most ``(1 + omega_for(q)) * ||x||^2``;
    - a zero coordinate stays 0.0, -0.0 is never returned, inputs are never changed;
    - ``decode(encode(v))`` is v bit for bit, and ``len(encode(v)) == n_bytes(v)``, for every v
      that `compress` returned; `decode` refuses all other bytes with ValueError.

    Examples
    --------
    What a client sends, and what the server reads:

    >>> import numpy as np
    >>> from skfedem.compression import Compressor, Dithering
    >>> operator: Compressor = Dithering(omega=1.0)
    >>> sent, n_bytes = operator.send([3.0, 0.0, -4.0], [0.2, 0.2, 0.2])
    >>> data = operator.encode(sent)
    >>> bool(len(data) == n_bytes[0]), np.array_equal(operator.decode(data), sent)
    (True, True)
    >>> bool(operator.variance([3.0, 0.0, -4.0])[0] <= operator.omega_for(3) * 25.0)
    True
    """

    @abstractmethod
    def omega_for(self, length: ArrayLike) -> Any:
        """Return omega, the relative variance.

        Parameters
        ----------
        length : int or array of int
            Lengths q >= 0 of vectors.

        Returns
        -------
        float, or ndarray of float64 of the shape of `length`
        """

    @abstractmethod
    def with_omega(self, omega: float) -> Self:
        """Return a copy whose level follows a wanted relative variance.

        Parameters
        ----------
        omega : float
            > 0; each length of vectors gets the cheapest level that reaches it.

        Returns
        -------
        operator of the same class
        """

    @abstractmethod
    def compress(
        self, values: ArrayLike, uniforms: ArrayLike, lengths: ArrayLike | None = None
    ) -> FloatArray:
        """Return the compressed vectors, decoded: what the server will see. Checks its arguments.

        Parameters
        ----------
        values : array of shape (q,), (n, q) or, with `lengths`, (sum(lengths),)
            The vectors, finite; norms at most 2**1022.
        uniforms : array of the shape of `values`
            Independent draws of the uniform law on [0, 1).
        lengths : array of int of shape (n,), optional
            Lengths >= 0 of the vectors in a flat `values`.

        Returns
        -------
        ndarray of float64, of the shape of `values`
        """

    @abstractmethod
    def variance(self, values: ArrayLike, lengths: ArrayLike | None = None) -> FloatArray:
        """Return the exact variance ``E ||Q(x) - x||^2`` of each vector x.

        Parameters
        ----------
        values, lengths
            As in `compress`.

        Returns
        -------
        ndarray of float64, of shape (n,); (1,) for one vector
        """

    @abstractmethod
    def n_bytes(self, values: ArrayLike, lengths: ArrayLike | None = None) -> IntArray:
        """Return ``len(encode(v))`` of each vector v, without encoding it.

        Parameters
        ----------
        values, lengths
            As in `compress`, but *compressed* vectors: what that returned.

        Returns
        -------
        ndarray of int64, of shape (n,); (1,) for one vector
        """

    def send(
        self, values: ArrayLike, uniforms: ArrayLike, lengths: ArrayLike | None = None
    ) -> tuple[FloatArray, IntArray]:
        """Return what `compress` returns, and `n_bytes` of that; an operator may share their work.

        Parameters
        ----------
        values, uniforms, lengths
            As in `compress`.

        Returns
        -------
        compressed : ndarray of float64, of the shape of `values`
        n_bytes : ndarray of int64, of shape (n,)
        """
        compressed = self.compress(values, uniforms, lengths)
        return compressed, self.n_bytes(compressed, lengths)

    @abstractmethod
    def encode(self, values: ArrayLike) -> bytes:
        """Return the message of one vector.

        Parameters
        ----------
        values : array of shape (q,)
            What `compress` returned.

        Returns
        -------
        bytes

        Raises
        ------
        ValueError
            For values that `compress` cannot have returned.
        """

    @abstractmethod
    def decode(self, data: bytes) -> FloatArray:
        """Return the vector of a message.

        Parameters
        ----------
        data : bytes
            From `encode`, of an operator of this class with any level.

        Returns
        -------
        ndarray of float64, of shape (q,)

        Raises
        ------
        ValueError
            For bytes that `encode` cannot have returned: damaged, or another class's.
        """

    def __sklearn_clone__(self) -> Self:
        return self  # it never changes


class _Operator(Compressor):
    """All methods of `Compressor`, from functions of rows of one length, x of shape (n, q).

    A subclass is a frozen dataclass. It gives `_level_name`, the parameter that `omega` can
    replace, and the methods below that are abstract.
    """

    omega: float | None  # of all that have a level

    _level_name: ClassVar[str]
    _most_levels: ClassVar[int] = _vectors.MAX_LENGTH - 1

    def __post_init__(self) -> None:
        """Check the parameters: a level, or omega, which then gives each length its level."""
        name, level = self._level_name, getattr(self, self._level_name)
        if (level is None) == (self.omega is None):
            raise ValueError(
                f"Expected exactly one of {name} and omega, got {name}={level!r} and "
                f"omega={self.omega!r}. Give the level, or the relative variance that it follows."
            )
        if level is None:
            _check_omega(self.omega)
        else:
            check_number(name, level, kind=Integral, low=1, high=self._most_levels)
        for given, value in list(vars(self).items()):
            object.__setattr__(self, given, python_number(value))

    @abstractmethod
    def _level(self, q: int) -> Any:
        """Return the level for vectors of length q: the given one, or the cheapest for `omega`."""

    @abstractmethod
    def _omega(self, q: int, level: Any) -> float:
        """Return the relative variance."""

    @abstractmethod
    def _compress(self, x: FloatArray, uniforms: FloatArray) -> FloatArray:
        """Return the compressed rows."""

    @abstractmethod
    def _variance(self, x: FloatArray) -> FloatArray:
        """Return the variance of each compressed row."""

    @abstractmethod
    def _code(self, q: int) -> _codec.Plain | _codec.Sparse | _codec.Scaled:
        """Return how its values are written, a code of `_codec`.

        The first byte of a message is the version of the format (high half) and a number for the
        operator.
        """

    def omega_for(self, length: ArrayLike) -> Any:
        return _vectors.for_each_length(lambda q: self._omega(q, self._level(q)), length)

    def with_omega(self, omega: float) -> Self:
        operator: Any = self  # a dataclass, as all that are not abstract
        return replace(operator, **{self._level_name: None, "omega": omega})

    def compress(
        self, values: ArrayLike, uniforms: ArrayLike, lengths: ArrayLike | None = None
    ) -> FloatArray:
        values, sizes = _vectors.as_vectors(values, lengths)
        uniforms = _vectors.as_uniforms(uniforms, values)
        return _vectors.per_coordinate(self._compress, values, uniforms, sizes)

    def variance(self, values: ArrayLike, lengths: ArrayLike | None = None) -> FloatArray:
        values, sizes = _vectors.as_vectors(values, lengths)
        return _vectors.per_vector(self._variance, np.float64, values, sizes)

    def n_bytes(self, values: ArrayLike, lengths: ArrayLike | None = None) -> IntArray:
        values, sizes = _vectors.as_vectors(values, lengths)
        return _vectors.per_vector(
            lambda rows: self._code(rows.shape[1]).sizes(rows), np.int64, values, sizes
        )

    def encode(self, values: ArrayLike) -> bytes:
        vector, _ = _vectors.as_vectors(values)
        if vector.ndim != 1:
            raise ValueError(
                f"Expected one vector of shape (q,), got shape {vector.shape}. Encode vectors one "
                "by one."
            )
        return self._code(len(vector)).encode(vector)

    def decode(self, data: bytes) -> FloatArray:
        return self._code(0).decode(data)


@dataclass(frozen=True)
class Identity(_Operator):
    """No compression: Q(x) = x, omega = 0, 8 bytes a coordinate.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedem.compression import Identity
    >>> Identity().compress([1.5, -2.0], np.zeros(2))
    array([ 1.5, -2. ])
    >>> Identity().n_bytes([1.5, -2.0])
    array([20])
    """

    def __post_init__(self) -> None:
        """There is nothing to check."""

    def with_omega(self, omega: float) -> Self:
        """Return the operator itself: its omega is below any wanted one."""
        _check_omega(omega)
        return self

    def _level(self, q: int) -> None:
        return None

    def _omega(self, q: int, level: Any) -> float:
        return 0.0

    def _compress(self, x: FloatArray, uniforms: FloatArray) -> FloatArray:
        _vectors.check_finite(x)
        return x + 0.0  # turns -0.0 into 0.0

    def _variance(self, x: FloatArray) -> FloatArray:
        _vectors.check_finite(x)
        return np.zeros(len(x))

    def _code(self, q: int) -> _codec.Plain:
        return _codec.Plain(0x20)


class _Stepped(_Operator):
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
        """Return the length of a block; None if a vector is one block."""

    @abstractmethod
    def _steps(self, norms: FloatArray, q: int) -> FloatArray:
        """Return the steps of blocks."""

    @abstractmethod
    def _round(self, ratios: FloatArray, uniforms: FloatArray) -> FloatArray:
        """Return ratios rounded without bias, in place."""

    @abstractmethod
    def _code(self, q: int) -> _codec.Scaled:
        """Return how its values are written: as integers, with a step for each block."""

    def send(
        self, values: ArrayLike, uniforms: ArrayLike, lengths: ArrayLike | None = None
    ) -> tuple[FloatArray, IntArray]:
        if (type(self).compress, type(self).n_bytes) != (_Operator.compress, _Operator.n_bytes):
            return super().send(values, uniforms, lengths)  # a subclass has its own
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
        """Return the magnitudes of Q(x) as integers and a step for each block."""
        ratios, steps = self._ratios(x)
        return self._round(ratios, _vectors.in_blocks(uniforms, self._cut())), steps

    def _product(self, integers: FloatArray, steps: FloatArray, x: FloatArray) -> FloatArray:
        """Return integers times steps, which overwrites the integers, with the signs of x."""
        integers *= _vectors.spread(steps, integers.shape[2])
        compressed = np.copysign(_vectors.from_blocks(integers, x.shape[1]), x)
        compressed += 0.0  # turns -0.0 into 0.0
        return compressed

    def _ratios(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return |x| / step in blocks, see `_vectors.in_blocks`, and a step for each block."""
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


@dataclass(frozen=True)
class Dithering(_Stepped):
    """Random dithering: round each coordinate at random to a neighbouring multiple of a step.

    ``Q(x)_j = step * sign(x_j) * floor(|x_j| / step + xi_j)``, xi_j uniform on [0, 1), with
    ``step = ||x|| / levels``, rounded down to 24 significant bits so that it travels as a float32
    (as a float64 out of float32's range). Any step keeps Q unbiased, and a smaller one only lowers
    the variance: ``omega = min(q / (4 levels^2), sqrt(q) / levels)`` holds for both norms, as
    ``||x||_inf <= ||x||_2``. The factor 4, absent from the source, is ours: a rounding's variance
    f (1 - f) is at most 1/4.

    Parameters
    ----------
    levels : int, optional
        Number of steps in the norm of a vector, 1 .. 2**20. Give this or `omega`.
    omega : float, optional
        Wanted relative variance, > 0: each length gets the fewest levels that reach it.
    norm : {2, numpy.inf}, default=2
        Norm that sets the step.
    bucket_length : int, optional
        Cut vectors into buckets of this many coordinates, each with its own step; q is then the
        length of a bucket. By default a vector is one bucket.

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
    >>> len(data), operator.n_bytes(sent)
    (12, array([12]))
    >>> operator.decode(data)
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

    def levels_for(self, length: ArrayLike) -> Any:
        """Return the number of levels for vectors of this length: int, or array of its shape."""
        return _vectors.for_each_length(self._level, length)

    def _omega(self, q: int, levels: int) -> float:
        return _dithering_omega(min(q, self.bucket_length or q), levels)

    def _level(self, q: int) -> int:
        if self.levels is not None:
            return self.levels
        return _fewest_levels(min(q, self.bucket_length or q), self.omega)

    def _cut(self) -> int | None:
        return self.bucket_length

    def _steps(self, norms: FloatArray, q: int) -> FloatArray:
        # No step is 0, even of a denormal norm.
        return np.maximum(_shorten(norms / self._level(q), np.floor), 5e-324)

    def _round(self, ratios: FloatArray, uniforms: FloatArray) -> FloatArray:
        ratios += uniforms
        return np.floor(ratios, out=ratios)

    def _code(self, q: int) -> _codec.Scaled:
        # Rounding adds one to the levels; a denormal step may be almost twice too small.
        return _codec.Scaled(0x21, self.bucket_length, most=2 * self._level(q) + 1)


@dataclass(frozen=True)
class BlockQuantizer(_Stepped):
    """Block-p quantization: keep each sign with a probability proportional to the size.

    Per block: ``Q(x)_j = ||x||_p * sign(x_j) * U_j``, U_j a Bernoulli draw of probability
    ``|x_j| / ||x||_p`` (1 where a uniform is below it), with
    ``omega = sqrt(B) - 1`` (p = 2) or ``(sqrt(B) - 1) / 2`` (p = inf) for blocks of B coordinates,
    and variance ``||x||_1 ||x||_p - ||x||^2``. The norm is rounded up to 24 significant bits to
    travel as a float32, which may exceed omega by ``(1 + omega) 2**-23``. Where all blocks are of
    one coordinate, these are sent as they are.

    Parameters
    ----------
    block_length : int, optional
        Coordinates in a block, B >= 1; the last block of a vector may be shorter. Give this or
        `omega`.
    omega : float, optional
        Wanted relative variance, > 0: the longest block that reaches it, ``floor((1 + omega)^2)``
        (p = 2) or ``floor((1 + 2 omega)^2)`` (p = inf).
    norm : {2, numpy.inf}, default=2
        The norm p.

    References
    ----------
    A. Dieuleveut, G. Fort, E. Moulines, G. Robin, "Federated Expectation Maximization with
    heterogeneity mitigation and variance reduction", NeurIPS 2021, Appendix B, Lemma 5.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedem.compression import BlockQuantizer
    >>> operator = BlockQuantizer(omega=1.0)
    >>> operator.block_length_for(100)
    4
    >>> operator.compress([3.0, 0.0, -4.0, 0.0, 7.0], [0.7, 0.1, 0.7, 0.1, 0.9])
    array([ 0.,  0., -5.,  0.,  7.])
    """

    block_length: int | None = None
    omega: float | None = None
    _: KW_ONLY
    norm: float = 2

    _level_name: ClassVar[str] = "block_length"

    def block_length_for(self, length: ArrayLike) -> Any:
        """Return the length of the longest block in vectors of this length."""
        return _vectors.for_each_length(self._level, length)

    def _omega(self, q: int, block_length: int) -> float:
        return max(sqrt(block_length) - 1, 0.0) / (1 if self.norm == 2 else 2)

    def _level(self, q: int) -> int:
        return min(q, self._cut())

    def _cut(self) -> int:
        if self.block_length is not None:
            return self.block_length
        omega = self.omega
        assert omega is not None  # __post_init__ saw to it
        root = 1 + omega * (1 if self.norm == 2 else 2)
        if root >= 2**26:
            return self._most_levels
        return _least(int(root**2), lambda block: self._omega(block + 1, block + 1) > omega)

    def _steps(self, norms: FloatArray, q: int) -> FloatArray:
        return norms if self._level(q) == 1 else _shorten(norms, np.ceil)

    def _round(self, ratios: FloatArray, uniforms: FloatArray) -> FloatArray:
        return np.less(uniforms, ratios, out=ratios)

    def _code(self, q: int) -> _codec.Scaled:
        return _codec.Scaled(0x22, self._cut(), most=1)


@dataclass(frozen=True)
class RandK(_Operator):
    """Random sparsification: keep k coordinates, drawn without replacement, times q / k.

    The coordinates with the k smallest uniforms stay (the first ones in a tie);
    ``omega = q / k - 1`` is exact: ``E ||Q(x) - x||^2 = omega ||x||^2``.

    Parameters
    ----------
    k : int, optional
        Coordinates to keep, >= 1; a shorter vector is kept as it is. Give this or `omega`.
    omega : float, optional
        Wanted relative variance, > 0: ``k = ceil(q / (1 + omega))`` for each length q.

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

    def k_for(self, length: ArrayLike) -> Any:
        """Return how many coordinates of vectors of this length stay: int, or array."""
        return _vectors.for_each_length(self._level, length)

    def _omega(self, q: int, k: int) -> float:
        return max(q / max(k, 1) - 1, 0.0)

    def _level(self, q: int) -> int:
        if self.k is not None:
            return min(q, self.k)
        omega = self.omega
        assert omega is not None  # __post_init__ saw to it
        k = _least(ceil(q / (1 + omega)), lambda k: self._omega(q, k) <= omega)
        return min(q, k)

    def _compress(self, x: FloatArray, uniforms: FloatArray) -> FloatArray:
        k = self._level(x.shape[1])
        with np.errstate(over="ignore"):
            compressed = x * (x.shape[1] / max(k, 1))
        _vectors.check_finite(compressed, "values times q / k", "Rescale the values.")
        compressed *= _vectors.smallest(uniforms, k)
        compressed += 0.0  # turns -0.0 into 0.0
        return compressed

    def _variance(self, x: FloatArray) -> FloatArray:
        _vectors.check_finite(x)
        omega = self.omega_for(x.shape[1])
        return omega * (x * x).sum(axis=1) if omega else np.zeros(len(x))

    def _code(self, q: int) -> _codec.Sparse:
        return _codec.Sparse(0x23, most=self._level(q))


def _dithering_omega(q: int, levels: int) -> float:
    return min(q / (4 * levels**2), sqrt(q) / levels)


@cache
def _fewest_levels(q: int, omega: float) -> int:
    """Return the fewest levels with which dithering q coordinates reaches omega."""
    levels = min(sqrt(q / (4 * omega)), sqrt(q) / omega)
    if levels > _MAX_LEVELS:
        raise ValueError(
            f"Expected an omega that {_MAX_LEVELS} levels can reach, got omega={omega}, which "
            f"needs {levels:.3g} levels. Ask for a larger omega, set bucket_length, or use "
            "Identity()."
        )
    return _least(ceil(levels), lambda s: _dithering_omega(q, s) <= omega)


def _shorten(steps: FloatArray, rounding: np.ufunc) -> FloatArray:
    """Round to 24 significant bits, so that a float32 holds the step unless out of its range."""
    mantissas, exponents = np.frexp(steps)
    return np.ldexp(rounding(np.ldexp(mantissas, 24)), exponents - 24)


def _least(guess: int, holds: Callable[[int], bool]) -> int:
    """Return the least integer >= 1 that holds; `guess`, a rounded number, may be one above it."""
    return next(level for level in count(max(guess - 1, 1)) if holds(level))


def _check_omega(omega: object) -> None:
    check_number("omega", omega, low=0, low_open=True, hint="For no compression use Identity().")
