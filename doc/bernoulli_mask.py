"""A compression operator in one file."""

import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from skfedem._typing import FloatArray, IntArray
from skfedem.compression import Compressor, _vectors

# First byte of a message: no other class begins with it.
TAG = 0xBE


@dataclass(frozen=True)
class BernoulliMask(Compressor):
    """Keep each coordinate with probability 1 / (1 + omega), and multiply it by 1 + omega.

    The variance of a coordinate is omega times its square, so that omega is exact: ``E ||Q(x) -
    x||^2 = omega ||x||^2``. A message consists of a tag, the length, a bitmap of the non-zero
    coordinates, their values as float64, and a checksum.

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
    >>> operator.decode(data, length=3)
    array([ 2., -4.,  0.])
    """

    omega: float

    def omega_for(self, length: ArrayLike) -> Any:
        return _vectors.for_each_length(lambda q: float(self.omega) if q else 0.0, length)

    def compress(
        self, values: ArrayLike, uniforms: ArrayLike, lengths: ArrayLike | None = None
    ) -> FloatArray:
        x, _ = _finite_vectors(values, lengths)
        kept = _vectors.as_uniforms(uniforms, x) * (1 + self.omega) < 1
        with np.errstate(over="ignore"):
            scaled = (1 + self.omega) * x
        _vectors.check_finite(scaled, "values times 1 + omega", "Rescale the values.")
        return np.where(kept, scaled, 0.0) + 0.0  # never -0.0

    def variance(self, values: ArrayLike, lengths: ArrayLike | None = None) -> FloatArray:
        x, sizes = _finite_vectors(values, lengths)
        with np.errstate(over="ignore"):  # inf in case of overflow
            return _vectors.reduce_segments(np.add, self.omega * x.ravel() ** 2, sizes)

    def n_bytes(self, values: ArrayLike, lengths: ArrayLike | None = None) -> IntArray:
        x, sizes = _finite_vectors(values, lengths)
        return 13 - (-sizes // 8) + 8 * _vectors.reduce_segments(np.add, x.ravel() != 0, sizes)

    def encode(self, values: ArrayLike) -> bytes:
        x, _ = _finite_vectors(values)
        if x.ndim != 1:
            raise ValueError(f"Expected one vector, got shape {x.shape}. Encode them one by one.")
        bitmap, nonzeros = np.packbits(x != 0), x[x != 0].astype("<f8")
        body = struct.pack("<BQ", TAG, len(x)) + bitmap.tobytes() + nonzeros.tobytes()
        return body + struct.pack("<I", zlib.crc32(body))

    def decode(self, data: bytes, length: int) -> FloatArray:
        data = bytes(memoryview(data))  # TypeError if it has no buffer
        body, checksum = data[:-4], data[-4:]
        if len(data) < 13 or struct.pack("<I", zlib.crc32(body)) != checksum:
            raise ValueError("Expected a message of BernoulliMask, got damaged bytes.")
        tag, n_values = struct.unpack("<BQ", body[:9])
        if tag != TAG:
            raise ValueError(f"Expected a message of BernoulliMask, got one with tag {tag:#04x}.")
        if n_values != length:  # before anything of this length is allocated
            raise ValueError(f"Expected {length} coordinates, got {n_values}.")
        start = 9 - (-length // 8)
        bitmap = np.unpackbits(np.frombuffer(body[9:start], np.uint8)).astype(bool)
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


def _finite_vectors(values: ArrayLike, lengths: ArrayLike | None = None) -> Any:
    """Values as float64, and the lengths of the vectors; raises if they are invalid."""
    x, sizes = _vectors.as_vectors(values, lengths)
    _vectors.check_finite(x)
    return x, sizes
