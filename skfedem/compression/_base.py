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
    same inputs give the same output on any machine, however vectors are grouped. A new operator
    implements the methods below and obeys these rules:

    - unbiased: the mean of ``compress(x, uniforms)`` over the uniforms is x;
    - bounded: the mean of its squared norm is at most ``(1 + omega_for(q)) * ||x||^2`` (these two
      are assumption A6 of [1]_);
    - a coordinate of 0 stays 0.0, -0.0 is never returned, and inputs are not modified;
    - for every v that `compress` returned, ``decode(encode(v), len(v))`` is v bit for bit and
      ``len(encode(v)) == n_bytes(v)``;
    - `decode` refuses damaged bytes, and those of another class or length, before it allocates more
      than 10 bytes for each of the message and 8 for each expected coordinate.

    The arguments of all methods but `encode` and `decode` are:

    - ``values``: one vector (q,), n vectors of equal length (n, q), or, with ``lengths`` (n,), a
      flat array of n vectors of these lengths, one after the other. The result for a vector does
      not depend on the others. Values have to be finite, and norms at most 2**998 if the operator
      computes norms.
    - ``uniforms``, of the shape of ``values``: independent draws from the uniform distribution on
      [0, 1).

    Raises
    ------
    TypeError, ValueError
        By all methods, if an argument is not as described, or if `compress` cannot have returned
        the values that `n_bytes` and `encode` take.

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
        """

    @abstractmethod
    def compress(
        self, values: ArrayLike, uniforms: ArrayLike, lengths: ArrayLike | None = None
    ) -> FloatArray:
        """Compress vectors, after checking all arguments.

        Parameters
        ----------
        values, uniforms, lengths
            See the class.

        Returns
        -------
        ndarray of float64, of the shape of `values`
        """

    @abstractmethod
    def variance(self, values: ArrayLike, lengths: ArrayLike | None = None) -> FloatArray:
        """Exact variance ``E ||Q(x) - x||^2`` of each vector x.

        Parameters
        ----------
        values, lengths
            See the class.

        Returns
        -------
        ndarray of float64, of shape (n,); (1,) for one vector
        """

    @abstractmethod
    def n_bytes(self, values: ArrayLike, lengths: ArrayLike | None = None) -> IntArray:
        """Length of each encoded vector in bytes, ``len(encode(v))``, without encoding it.

        Parameters
        ----------
        values, lengths
            See the class; *compressed* vectors, as returned by `compress`.

        Returns
        -------
        ndarray of int64, of shape (n,); (1,) for one vector
        """

    def send(
        self, values: ArrayLike, uniforms: ArrayLike, lengths: ArrayLike | None = None
    ) -> tuple[FloatArray, IntArray]:
        """Results of `compress` and `n_bytes`; operators may share the work of both.

        Parameters
        ----------
        values, uniforms, lengths
            See the class.
        """
        compressed = self.compress(values, uniforms, lengths)
        _check_array(self, "compress", compressed, np.shape(values), "f")
        return compressed, self.n_bytes(compressed, lengths)

    @abstractmethod
    def encode(self, values: ArrayLike) -> bytes:
        """Message of one compressed vector; its first byte identifies the operator's class.

        Parameters
        ----------
        values : array of shape (q,)
            Compressed vector, as returned by `compress`.
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
            If the message is damaged, or of another class or length. A CRC-16 detects all damage
            except in one of 65,536 heavily damaged messages; it does not protect against forged
            ones.
        """

    def __sklearn_clone__(self) -> Self:
        return self  # it is immutable


def check_compressed(compressor: Compressor, values: FloatArray, shape: tuple[int, ...]) -> None:
    """Raise if `compress` of a class broke its rules."""
    _check_array(compressor, "compress", values, shape, "f")
    if not np.isfinite(values).all():
        raise broken(compressor, "compress", "finite values", "NaN or inf")


def check_n_bytes(compressor: Compressor, n_bytes: IntArray, n_clients: int) -> None:
    """Raise if `n_bytes` of a class broke its rules."""
    _check_array(compressor, "n_bytes", n_bytes, (n_clients,), "iu")
    if not (n_bytes >= 0).all():
        raise broken(compressor, "n_bytes", "lengths >= 0", str(n_bytes.min()))


def _check_array(
    compressor: Compressor, method: str, returned: Any, shape: tuple[int, ...], kinds: str
) -> None:
    is_array = isinstance(returned, np.ndarray)
    if not is_array or returned.shape != shape or returned.dtype.kind not in kinds:
        expected = f"an array of {'float64' if kinds == 'f' else 'integers'} of shape {shape}"
        got = f"{returned.dtype} of shape {returned.shape}" if is_array else type(returned).__name__
        raise broken(compressor, method, expected, got)


def broken(compressor: Compressor, method: str, expected: str, got: str) -> ValueError:
    """Error for a class, which users may write themselves, that broke the rules of a method."""
    name = f"{type(compressor).__name__}.{method}"
    return ValueError(f"Expected {expected} from {name}, got {got}. Correct this class.")
