"""Statistics of a mixture in the units of its components, in which a stream compresses them.

Compression makes noise that is alike in all directions of a vector. In standard units, those of all
rows together, it is large beside the moments of a narrow component. In the units of a component its
rows ``z`` have mean 0 and covariance I, and 1, ``z_j``, ``z_j z_l`` and ``(z_j² - 1) / √2`` are
uncorrelated with variance 1: there compression adds what so many more rows less would, and no
direction loses more than another.

The maps are linear: what is compressed without bias stays unbiased. They follow from the broadcast
parameters, which server and clients know.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .covariances import cholesky, unpack, whiten


class Affine(NamedTuple):
    """``y ↦ shift + scale y`` for each component.

    Attributes
    ----------
    shift : ndarray of shape (n_components, n_features)
    scale : ndarray
        Matrices, (n_components, d, d) for "full" and (1, d, d) for "tied"; else numbers,
        (n_components, d) for "diag" and (n_components, 1) for "spherical".
    """

    shift: np.ndarray
    scale: np.ndarray


class ComponentUnits(NamedTuple):
    """Maps of statistics to the units of their components and back.

    Attributes
    ----------
    covariance_type : {"full", "tied", "diag", "spherical"}
    forward, backward : Affine
        Maps of rows to these units and back.
    expected, deviation : ndarray of shape (n_second,)
        Mean and standard deviation of the second moments ``z_j z_l`` that the statistic has.
    is_zero : ndarray of bool, shape (n_functions,)
        Which statistics are 0 of all rows; nothing is made of them.
    """

    covariance_type: str
    forward: Affine
    backward: Affine
    expected: np.ndarray
    deviation: np.ndarray
    is_zero: np.ndarray

    def to_components(self, statistics):
        """Statistics (n, q) in standard units, in the units of the components."""
        table = self._mapped(self.forward, self._table(statistics))
        second = self._second(table)
        second -= table[:, :, :1] * self.expected
        second /= self.deviation
        return table.reshape(statistics.shape)

    def to_standard(self, statistics):
        """Statistics (n, q) in the units of the components, in standard units."""
        table = self._table(statistics).copy()
        second = self._second(table)
        second *= self.deviation
        second += table[:, :, :1] * self.expected
        table = self._mapped(self.backward, table)
        table[:, :, self.is_zero] = 0.0
        return table.reshape(statistics.shape)

    def _table(self, statistics):
        return statistics.reshape(len(statistics), len(self.forward.shift), -1)

    def _second(self, table):
        return table[:, :, table.shape[2] - len(self.expected) :]

    def _mapped(self, affine, table):
        """Statistics (n, n_components, n_functions) of mapped rows, from those of the rows."""
        shift, scale = affine
        n_components, d = shift.shape
        if self.covariance_type == "full":
            # The upper triangle of (1, y) (1, y)ᵀ; and (1, z) is a matrix times (1, y).
            matrices = np.zeros((n_components, 1 + d, 1 + d))
            matrices[:, 0, 0], matrices[:, 1:, 0], matrices[:, 1:, 1:] = 1, shift, scale
            moments = unpack(table.reshape(-1, table.shape[2]), 1 + d)
            moments = moments.reshape(*table.shape[:2], 1 + d, 1 + d)
            moments = matrices @ moments @ np.swapaxes(matrices, 1, 2)
            return moments[:, :, *np.triu_indices(1 + d)]
        mass, first, second = table[:, :, :1], table[:, :, 1 : 1 + d], self._second(table)
        if self.covariance_type == "tied":
            scaled = np.matmul(scale, first[:, :, :, None])[:, :, :, 0]
            return np.concatenate([mass, mass * shift + scaled], axis=2)
        mixed = shift * (mass * shift + 2 * scale * first)
        if self.covariance_type == "spherical":
            mixed = mixed.sum(axis=2, keepdims=True)
        moments = [mass, mass * shift + scale * first, mixed + scale**2 * second]
        return np.concatenate(moments, axis=2)


def component_units(covariance_type, means, covariances, is_zero):
    """Units of components with these means and covariances, all in standard units."""
    n_components, d = means.shape
    if covariance_type in ("full", "tied"):
        roots = np.array(cholesky(covariances)).reshape(-1, d, d)
        inverses = whiten(covariances).reshape(-1, d, d)
        centers = np.matmul(inverses, means[:, :, None])[:, :, 0]
    else:
        roots = np.sqrt(covariances).reshape(n_components, -1)
        inverses = 1 / roots
        centers = inverses * means
    is_square = {
        "full": np.eye(d)[np.triu_indices(d)],
        "tied": np.empty(0),
        "diag": np.ones(d),
        "spherical": np.ones(1),
    }[covariance_type]
    # z_j² has mean 1 and variance 2, z_j z_l has 0 and 1.
    n_squares = d if covariance_type == "spherical" else 1
    return ComponentUnits(
        covariance_type,
        forward=Affine(-centers, inverses),
        backward=Affine(means, roots),
        # None along axes on which no row varies: what is 0 of all rows stays 0.
        expected=n_squares * is_square * ~is_zero[len(is_zero) - len(is_square) :],
        deviation=np.sqrt(np.where(is_square, 2 * n_squares, 1)),
        is_zero=is_zero,
    )
