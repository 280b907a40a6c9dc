"""The contract of compression operators."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from .._typing import FloatArray, IntArray


class Compressor(ABC):
    """What every compression operator provides.

    An operator is a frozen, stateless value: all randomness comes in as `uniforms`, so the same
    inputs give the same output on any machine, in any grouping of the vectors. Methods take one
    vector (q,), but for `encode` also n vectors of one length (n, q), or, with `lengths` (n,), a
    flat array that holds n vectors of these lengths back to back; the result for a vector does not
    depend on the others. A new operator implements the methods below and keeps to these rules:

    - unbiased: the mean of ``compress(x, uniforms)`` over uniform draws is x;
    - bounded: the mean of its squared norm is at most ``(1 + omega_for(q)) * ||x||^2`` (these two
      are assumption A6 of [1]_);
    - a zero coordinate stays 0.0, -0.0 is never returned, inputs are never changed;
    - ``decode(encode(v))`` is v bit for bit, and ``len(encode(v)) == n_bytes(v)``, for every v
      that `compress` returned; `decode` refuses damaged bytes, and those of another class, with
      ValueError.

    References
    ----------
    .. [1] A. Dieuleveut, G. Fort, E. Moulines, G. Robin, "Federated Expectation Maximization with
       heterogeneity mitigation and variance reduction", NeurIPS 2021.

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
        """Relative variance, omega.

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
            For lengths that are no integers >= 0.
        """

    @abstractmethod
    def compress(
        self, values: ArrayLike, uniforms: ArrayLike, lengths: ArrayLike | None = None
    ) -> FloatArray:
        """Compressed vectors as the server will decode them. Checks its arguments.

        Parameters
        ----------
        values : array of shape (q,), (n, q) or, with `lengths`, (sum(lengths),)
            The vectors, finite; norms at most 2**1022, where the operator computes norms.
        uniforms : array of the shape of `values`
            Independent draws of the uniform law on [0, 1).
        lengths : array of int of shape (n,), optional
            Lengths >= 0 of the vectors in a flat `values`.

        Returns
        -------
        ndarray of float64, of the shape of `values`

        Raises
        ------
        TypeError, ValueError
            For values that are no such vectors, NaN, inf or what is too large for the operator,
            uniforms outside [0, 1) or of another shape, or lengths that do not add up.
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
            For values that are no such vectors, NaN, inf or what is too large for the operator, or
            lengths that do not add up.
        """

    @abstractmethod
    def n_bytes(self, values: ArrayLike, lengths: ArrayLike | None = None) -> IntArray:
        """``len(encode(v))`` of each vector v, without encoding it.

        Parameters
        ----------
        values, lengths
            As in `compress`, but for *compressed* vectors: what `compress` returned.

        Returns
        -------
        ndarray of int64, of shape (n,); (1,) for one vector

        Raises
        ------
        TypeError, ValueError
            For values whose code has no length, as `compress` cannot have returned them, or lengths
            that do not add up.
        """

    def send(
        self, values: ArrayLike, uniforms: ArrayLike, lengths: ArrayLike | None = None
    ) -> tuple[FloatArray, IntArray]:
        """What `compress` returns, and `n_bytes` of that; an operator may share their work.

        Parameters
        ----------
        values, uniforms, lengths
            As in `compress`.

        Returns
        -------
        compressed : ndarray of float64, of the shape of `values`
        n_bytes : ndarray of int64, of shape (n,)

        Raises
        ------
        TypeError, ValueError
            As `compress`.
        """
        compressed = self.compress(values, uniforms, lengths)
        return compressed, self.n_bytes(compressed, lengths)

    @abstractmethod
    def encode(self, values: ArrayLike) -> bytes:
        """Message of one vector.

        Parameters
        ----------
        values : array of shape (q,)
            What `compress` returned.

        Returns
        -------
        bytes
            The first one tells the class: messages of no other class begin with it.

        Raises
        ------
        TypeError, ValueError
            For values that `compress` cannot have returned.
        """

    @abstractmethod
    def decode(self, data: bytes) -> FloatArray:
        """Vector of a message.

        Parameters
        ----------
        data : bytes
            From `encode` of an operator of this class, whatever its level.

        Returns
        -------
        ndarray of float64, of shape (q,)

        Raises
        ------
        TypeError
            For what holds no bytes.
        ValueError
            For bytes that were damaged, or are from another class. A CRC-16 finds all damage but
            one heavily damaged message in 65,536; against forged messages it is no protection.
        """

    def __sklearn_clone__(self) -> Self:
        return self  # it never changes


def check_sent(
    compressor: Compressor,
    sent: FloatArray,
    n_bytes: IntArray,
    shape: tuple[int, ...],
    n_clients: int,
) -> None:
    """Raise for messages that no compressor may give; users write their own."""
    shapes = getattr(sent, "shape", None), getattr(n_bytes, "shape", None)
    if shapes != (shape, (n_clients,)):
        both = f"compress and n_bytes of {compressor!r} to return arrays of shapes"
        expected, got = f"{both} {shape} and {(n_clients,)}", f"{shapes[0]} and {shapes[1]}"
    elif sent.dtype.kind != "f":
        expected, got = f"float64 from compress of {compressor!r}", f"dtype {sent.dtype}"
    elif not np.isfinite(sent).all():
        expected, got = f"finite values from compress of {compressor!r}", "NaN or inf"
    elif n_bytes.dtype.kind not in "iu":
        expected, got = f"integers from n_bytes of {compressor!r}", f"dtype {n_bytes.dtype}"
    elif not (n_bytes >= 0).all():
        expected, got = f"lengths >= 0 from n_bytes of {compressor!r}", str(n_bytes.min())
    else:
        return
    raise ValueError(f"Expected {expected}, got {got}. Correct this class.")
