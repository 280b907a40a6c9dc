"""The contract of compression operators."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from .._typing import FloatArray, IntArray


class Compressor(ABC):
    """Base class of the compression operators.

    An operator is immutable and stateless: all randomness is passed in as `uniforms`, so that the
    same inputs give the same output on any machine, however vectors are grouped. Methods take one
    vector (q,). All but `encode` also take n vectors of equal length (n, q), or, with `lengths`
    (n,), a flat array of n vectors of these lengths, one after the other; the result for a vector
    does not depend on the others. A new operator implements the methods below and obeys these
    rules:

    - unbiased: the mean of ``compress(x, uniforms)`` over the uniforms is x;
    - bounded: the mean of its squared norm is at most ``(1 + omega_for(q)) * ||x||^2`` (these two
      are assumption A6 of [1]_);
    - a coordinate of 0 stays 0.0, -0.0 is never returned, and inputs are not modified;
    - for every v that `compress` returned, ``decode(encode(v), len(v))`` is v bit for bit and
      ``len(encode(v)) == n_bytes(v)``;
    - `decode` refuses damaged bytes, and those of another class or length, before it allocates more
      than 10 bytes for each of the message and 8 for each expected coordinate.

    References
    ----------
    .. [1] A. Dieuleveut, G. Fort, E. Moulines, G. Robin, "Federated Expectation Maximization with
       heterogeneity mitigation and variance reduction", NeurIPS 2021.

    Examples
    --------
    A client compresses and encodes a vector, and the server decodes it:

    >>> import numpy as np
    >>> from skfedem.compression import Compressor, Dithering
    >>> operator: Compressor = Dithering(omega=1.0)
    >>> sent, n_bytes = operator.send([3.0, 0.0, -4.0], [0.2, 0.2, 0.2])
    >>> data = operator.encode(sent)
    >>> bool(len(data) == n_bytes[0]), np.array_equal(operator.decode(data, 3), sent)
    (True, True)
    >>> bool(operator.variance([3.0, 0.0, -4.0])[0] <= operator.omega_for(3) * 25.0)
    True
    """

    @abstractmethod
    def omega_for(self, length: ArrayLike) -> Any:
        """Relative variance omega of vectors of the given lengths.

        Parameters
        ----------
        length : int or array of int
            Lengths q >= 0 of vectors.

        Returns
        -------
        float, or ndarray of float64 of the shape of `length`

        Raises
        ------
        TypeError, ValueError
            If a length is not an integer >= 0.
        """

    @abstractmethod
    def compress(
        self, values: ArrayLike, uniforms: ArrayLike, lengths: ArrayLike | None = None
    ) -> FloatArray:
        """Compress vectors, after checking all arguments.

        Parameters
        ----------
        values : array of shape (q,), (n, q) or, with `lengths`, (sum(lengths),)
            The vectors. Values have to be finite, and norms at most 2**998 if the operator
            computes norms.
        uniforms : array of the shape of `values`
            Independent draws from the uniform distribution on [0, 1).
        lengths : array of int of shape (n,), optional
            Lengths >= 0 of the vectors in a flat `values`.

        Returns
        -------
        ndarray of float64, of the shape of `values`

        Raises
        ------
        TypeError, ValueError
            If an argument is not as above.
        """

    @abstractmethod
    def variance(self, values: ArrayLike, lengths: ArrayLike | None = None) -> FloatArray:
        """Exact variance ``E ||Q(x) - x||^2`` of each vector x.

        Parameters
        ----------
        values, lengths
            As in `compress`.

        Returns
        -------
        ndarray of float64, of shape (n,); (1,) for one vector

        Raises
        ------
        TypeError, ValueError
            If an argument is not as in `compress`.
        """

    @abstractmethod
    def n_bytes(self, values: ArrayLike, lengths: ArrayLike | None = None) -> IntArray:
        """Length of each encoded vector in bytes, ``len(encode(v))``, without encoding it.

        Parameters
        ----------
        values, lengths
            As in `compress`, but *compressed* vectors, as returned by `compress`.

        Returns
        -------
        ndarray of int64, of shape (n,); (1,) for one vector

        Raises
        ------
        TypeError, ValueError
            If `compress` cannot have returned these values, or lengths do not add up.
        """

    def send(
        self, values: ArrayLike, uniforms: ArrayLike, lengths: ArrayLike | None = None
    ) -> tuple[FloatArray, IntArray]:
        """Compress vectors and return their `n_bytes` too; operators may share the work of both.

        Parameters
        ----------
        values, uniforms, lengths
            As in `compress`.

        Returns
        -------
        compressed, n_bytes : ndarray
            Results of `compress` and `n_bytes`.

        Raises
        ------
        TypeError, ValueError
            As in `compress`; also if `compress` returns something else, such as None.
        """
        compressed = self.compress(values, uniforms, lengths)
        _check_array(self, "compress", compressed, np.shape(values), "f", "float64")
        return compressed, self.n_bytes(compressed, lengths)

    @abstractmethod
    def encode(self, values: ArrayLike) -> bytes:
        """Encode one compressed vector as a message.

        Parameters
        ----------
        values : array of shape (q,)
            Compressed vector, as returned by `compress`.

        Returns
        -------
        bytes
            The message. Its first byte identifies the class of the operator.

        Raises
        ------
        TypeError, ValueError
            If `compress` cannot have returned these values.
        """

    @abstractmethod
    def decode(self, data: bytes, length: int) -> FloatArray:
        """Decode the vector in a message.

        Parameters
        ----------
        data : bytes
            Message from `encode` of an operator of this class, with any level.
        length : int
            Length q >= 0 of the vector, as the receiver expects it.

        Returns
        -------
        ndarray of float64, of shape (q,)

        Raises
        ------
        TypeError
            If `data` is not bytes-like, or `length` is not an integer.
        ValueError
            If the message is damaged, or of another class or length, after at most ``10 *
            len(data) + 8 * length`` bytes of memory and some kilobytes. A CRC-16 detects all damage
            except in one of 65,536 heavily damaged messages; it does not protect against forged
            ones.
        """

    def __sklearn_clone__(self) -> Self:
        return self  # it is immutable


def check_compressed(compressor: Compressor, values: FloatArray, shape: tuple[int, ...]) -> None:
    """Raise if `compress` of a class broke its rules."""
    _check_array(compressor, "compress", values, shape, "f", "float64")
    if not np.isfinite(values).all():
        raise broken(compressor, "compress", "finite values", "NaN or inf")


def check_n_bytes(compressor: Compressor, n_bytes: IntArray, n_clients: int) -> None:
    """Raise if `n_bytes` of a class broke its rules."""
    _check_array(compressor, "n_bytes", n_bytes, (n_clients,), "iu", "integers")
    if not (n_bytes >= 0).all():
        raise broken(compressor, "n_bytes", "lengths >= 0", str(n_bytes.min()))


def _check_array(
    compressor: Compressor,
    method: str,
    returned: Any,
    shape: tuple[int, ...],
    kinds: str,
    expected: str,
) -> None:
    is_array = isinstance(returned, np.ndarray)
    if not is_array or returned.shape != shape:
        got = f"shape {returned.shape}" if is_array else f"type {type(returned).__name__}"
        raise broken(compressor, method, f"an array of shape {shape}", got)
    if returned.dtype.kind not in kinds:
        raise broken(compressor, method, expected, f"dtype {returned.dtype}")


def broken(compressor: Compressor, method: str, expected: str, got: str) -> ValueError:
    """Error for a class, which users may write themselves, that broke the rules of a method."""
    name = f"{type(compressor).__name__}.{method}"
    return ValueError(f"Expected {expected} from {name}, got {got}. Correct this class.")
