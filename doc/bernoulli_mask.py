"""A compression operator in one file."""

import struct
import zlib
from dataclasses import dataclass

import numpy as np

from skfedem.compression import Compressor


@dataclass(frozen=True)
class BernoulliMask(Compressor):
    """Keep each coordinate with probability 1 / (1 + omega), times 1 + omega.

    A coordinate's variance is omega times its square, so omega is exact: ``E ||Q(x) - x||^2 =
    omega ||x||^2``.

    Parameters
    ----------
    omega : float
        Relative variance, > 0.

    Examples
    --------
    >>> import numpy as np
    >>> operator = BernoulliMask(omega=1.0)
    >>> values = operator.compress([1.0, -2.0, 3.0], [0.1, 0.4, 0.8])
    >>> values
    array([ 2., -4.,  0.])
    >>> data = operator.encode(values)
    >>> len(data) == int(operator.n_bytes(values)[0])
    True
    >>> operator.decode(data)
    array([ 2., -4.,  0.])
    """

    omega: float

    def omega_for(self, length):
        """Return omega, which holds for every length but the empty one."""
        omegas = np.where(np.asarray(length) > 0, float(self.omega), 0.0)
        return omegas if omegas.ndim else float(omegas)

    def compress(self, values, uniforms, lengths=None):
        """Return the compressed vectors; coordinates are independent, whatever the lengths."""
        values, uniforms = np.asarray(values, float), np.asarray(uniforms, float)
        if uniforms.shape != values.shape:
            raise ValueError(f"Expected uniforms of shape {values.shape}, got {uniforms.shape}.")
        if not np.isfinite(values).all():
            raise ValueError("Expected finite values, got NaN or inf.")
        kept = uniforms * (1 + self.omega) < 1
        return np.where(kept, values * (1 + self.omega), 0.0) + 0.0  # never -0.0

    def variance(self, values, lengths=None):
        """Return ``omega ||x||^2`` for each vector."""
        return np.array([self.omega * (x @ x) for x in _vectors(values, lengths)])

    def n_bytes(self, values, lengths=None):
        """Return 12 bytes of header and checksum, a bitmap, and a float64 for each non-zero."""
        return np.array(
            [12 + -(-len(x) // 8) + 8 * np.count_nonzero(x) for x in _vectors(values, lengths)]
        )

    def encode(self, values):
        """Return length, bitmap, non-zeros and checksum as bytes."""
        values = np.asarray(values, float)
        bitmap = np.packbits(values != 0).tobytes()
        body = struct.pack("<Q", len(values)) + bitmap + values[values != 0].astype("<f8").tobytes()
        return body + struct.pack("<I", zlib.crc32(body))

    def decode(self, data):
        """Return the vector; refuse everything that `encode` cannot have written."""
        body, checksum = data[:-4], data[-4:]
        if len(data) < 12 or struct.pack("<I", zlib.crc32(body)) != checksum:
            raise ValueError("Expected a message of BernoulliMask, got damaged bytes.")
        length = struct.unpack("<Q", body[:8])[0]
        start = 8 + -(-length // 8)
        bitmap = np.unpackbits(np.frombuffer(body[8:start], np.uint8)).astype(bool)
        if len(body) < start or bitmap[length:].any():
            raise ValueError(f"Expected a bitmap of {length} bits, got {len(bitmap)}.")
        if len(body) - start != 8 * bitmap.sum():
            raise ValueError(f"Expected {bitmap.sum()} numbers, got {len(body) - start} bytes.")
        nonzeros = np.frombuffer(body, "<f8", offset=start)
        if not (np.isfinite(nonzeros).all() and nonzeros.all()):
            raise ValueError("Expected finite non-zero numbers, got others.")
        values = np.zeros(length)
        values[bitmap[:length]] = nonzeros
        return values


def _vectors(values, lengths):
    values = np.asarray(values, float)
    return np.atleast_2d(values) if lengths is None else np.split(values, np.cumsum(lengths)[:-1])
