"""Vectors of parameters θ = (B, Ω, squares), and of the statistics that T maps to them.

With x the covariates of a subject (the first is 1) and φ its parameters, minus a centre, the
statistics are::

    S1 = x φᵀ                  S2 = φ φᵀ                  Sr, of the residual error

Vectors have the numbers that T needs. If Ω is diagonal, these are the entries of S1 of the mask,
which says what covariate acts on what parameter, and the diagonal of S2; otherwise, all of S1 and
the upper triangle of S2. θ has the entries of B and Ω in the same places.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..._typing import BoolArray, FloatArray, IntArray


@dataclass(frozen=True)
class Layout:
    """Places of numbers in vectors.

    Parameters
    ----------
    mask : ndarray of bool, shape (c, p)
        Whether a covariate acts on a parameter; the first row is True.
    is_full : bool
        Whether random effects may be correlated.
    n_squares : int
        Number of parameters of the residual error.
    """

    mask: BoolArray
    is_full: bool
    n_squares: int

    @property
    def n_parameters(self) -> int:
        """Number of parameters of a subject, p."""
        return self.mask.shape[1]

    @property
    def n_covariates(self) -> int:
        """Number of covariates, c, the constant included."""
        return self.mask.shape[0]

    @cached_property
    def of_coefficients(self) -> tuple[IntArray, IntArray]:
        """Rows and columns of S1, and of B, in a vector."""
        rows, columns = np.nonzero(self.mask | self.is_full)
        return rows, columns

    @cached_property
    def of_covariance(self) -> tuple[IntArray, IntArray]:
        """Rows and columns of S2, and of Ω, in a vector."""
        if self.is_full:
            return np.triu_indices(self.n_parameters)
        each = np.arange(self.n_parameters)
        return each, each

    @cached_property
    def cuts(self) -> tuple[int, int]:
        """Starts of S2 and Sr in a vector."""
        first = len(self.of_coefficients[0])
        return first, first + len(self.of_covariance[0])

    @property
    def size(self) -> int:
        """Length q of a vector."""
        return self.cuts[1] + self.n_squares

    def join(self, first: FloatArray, second: FloatArray, last: FloatArray) -> FloatArray:
        """Vectors (..., q) of matrices (..., c, p) and (..., p, p), and of numbers (..., r)."""
        parts = first[..., *self.of_coefficients], second[..., *self.of_covariance], last
        return np.concatenate(parts, axis=-1)

    def split(self, vectors: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Inverse of ``join``; what a vector lacks is 0."""
        cut, last = self.cuts
        p = self.n_parameters
        first = np.zeros((*vectors.shape[:-1], self.n_covariates, p))
        first[..., *self.of_coefficients] = vectors[..., :cut]
        second = np.zeros((*vectors.shape[:-1], p, p))
        rows, columns = self.of_covariance
        second[..., rows, columns] = second[..., columns, rows] = vectors[..., cut:last]
        return first, second, vectors[..., last:]
