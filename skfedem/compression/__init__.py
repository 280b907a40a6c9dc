"""Compression of client vectors: operators, and their relative variance omega.

An operator Q is unbiased and has a bounded relative variance (assumption A6 of Dieuleveut, Fort,
Moulines, Robin, "Federated Expectation Maximization with heterogeneity mitigation and variance
reduction", NeurIPS 2021): ``E Q(x) = x`` and ``E ||Q(x)||^2 <= (1 + omega) ||x||^2``.

The encoding of values as bytes is defined in `skfedem.compression._codec`.
"""

from ._base import Compressor
from ._block import BlockQuantizer
from ._dithering import Dithering
from ._identity import Identity
from ._rand_k import RandK

__all__ = ["BlockQuantizer", "Compressor", "Dithering", "Identity", "RandK"]
