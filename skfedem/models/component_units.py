"""Statistics of a mixture in the units of its components, in which messages are compressed.

Compression makes noise that is alike in all directions of a vector. In standard units, those of all
rows together, it is large beside the moments of a narrow or rare component. In the units of a
component its rows ``z`` have mean 0 and covariance I, and 1, ``z_j``, ``z_j z_l`` and
``(z_j² - 1) / √2`` are uncorrelated with mean square 1. Divided by the root of its weight, they are
so for all rows. There compression adds what so many more rows less would, and no component and no
direction loses more than another.

The maps are linear: what is compressed without bias stays unbiased. They follow from the broadcast
parameters, which server and clients know.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .covariances import cholesky, whiten

# Rows of a component that is rarer than this come as a surprise, of which the others would suffer.
_RAREST = 1e-3


class Affine(NamedTuple):
    """``y ↦ shift + scale y`` for each component.

    Attributes
    ----------
    shift : ndarray of shape (n_components, n_features)
    scale : ndarray
        Matrices, (n_components, d, d), for "full"; else numbers, (n_components, d) for "diag" and
        (n_components, 1) for "spherical".
    """

    shift: np.ndarray
    scale: np.ndarray


class FirstMomentUnits(NamedTuple):
    """Maps of statistics without second moments, to the units of their components and back.

    Attributes
    ----------
    forward, backward : ndarray of shape (n_components, n_functions, n_functions)
        A component's statistic times its matrix is mapped.
    """

    forward: np.ndarray
    backward: np.ndarray

    def to_components(self, statistics):
        """Statistics (n, q) in standard units, in the units of the components."""
        return self._mapped(statistics, self.forward)

    def to_standard(self, statistics):
        """Statistics (n, q) in the units of the components, in standard units."""
        return self._mapped(statistics, self.backward)

    def _mapped(self, statistics, matrices):
        table = statistics.reshape(len(statistics), *matrices.shape[:2])
        mapped = np.matmul(np.swapaxes(table, 0, 1), matrices)
        return np.swapaxes(mapped, 0, 1).reshape(statistics.shape)


class ComponentUnits(NamedTuple):
    """Maps of statistics to the units of their components and back.

    Attributes
    ----------
    covariance_type : {"full", "diag", "spherical"}
    forward, backward : Affine
        Maps of rows to these units and back.
    squares : ndarray of int or slice
        Which functions are ``z_j²`` or their sum, ...
    expected : ndarray
        ... and their means.
    deviation : ndarray of shape (n_components, n_functions)
        Root of the mean square of what a row adds to a statistic.
    is_zero : ndarray of bool, shape (n_functions,)
        Which statistics are 0 of all rows; nothing is made of them.
    """

    covariance_type: str
    forward: Affine
    backward: Affine
    squares: np.ndarray | slice
    expected: np.ndarray
    deviation: np.ndarray
    is_zero: np.ndarray

    def to_components(self, statistics):
        """Statistics (n, q) in standard units, in the units of the components."""
        table = self._table(statistics)
        table = self._mapped(self.forward, table, np.empty_like(table))
        table[:, :, self.squares] -= table[:, :, :1] * self.expected
        table /= self.deviation
        return table.reshape(statistics.shape)

    def to_standard(self, statistics):
        """Statistics (n, q) in the units of the components, in standard units."""
        table = self._table(statistics) * self.deviation
        table[:, :, self.squares] += table[:, :, :1] * self.expected
        table = self._mapped(self.backward, table, table)
        table[:, :, self.is_zero] = 0.0
        return table.reshape(statistics.shape)

    def _table(self, statistics):
        return statistics.reshape(len(statistics), *self.deviation.shape)

    def _mapped(self, affine, table, mapped):
        """Fill in the statistics of mapped rows, from those (n, n_components, n_functions) of rows.

        ``mapped`` may be the table itself.
        """
        map_moments = _map_matrices if self.covariance_type == "full" else _map_squares
        map_moments(affine.shift, affine.scale, table, mapped)
        return mapped


def _map_matrices(shift, scale, table, mapped):
    """``M U Mᵀ``, where U is the moment of (1, y), of which the statistic is the upper triangle."""
    size = 1 + shift.shape[1]
    upper = np.triu_indices(size)
    place = np.empty((size, size), dtype=int)
    place[upper] = place.T[upper] = np.arange(len(upper[0]))
    # A component at a time stays in the cache, and clients last makes large products of small ones.
    for component, (vector, matrix) in enumerate(zip(shift, scale, strict=True)):
        affine = np.eye(size)
        affine[1:, 0], affine[1:, 1:] = vector, matrix
        moments = np.ascontiguousarray(table[:, component].T)[place]
        moments = (affine @ moments.reshape(size, -1)).reshape(moments.shape)
        moments = np.swapaxes(moments, 0, 1).reshape(size, -1)
        moments = (affine @ moments).reshape(size * size, -1)
        mapped[:, component] = moments[upper[0] * size + upper[1]].T


def _map_squares(shift, scale, table, mapped):
    """``shift + scale y`` and its squares, or their sum."""
    d = shift.shape[1]
    mass, first, second = table[:, :, :1], table[:, :, 1 : 1 + d], table[:, :, 1 + d :]
    mapped[:, :, :1] = mass
    own, own_second = mapped[:, :, 1 : 1 + d], mapped[:, :, 1 + d :]
    np.multiply(first, scale, out=own)
    # (shift + scale y)² = scale² y² + shift (shift + 2 scale y)
    shifted = mass * shift
    mixed = shifted + 2 * own
    mixed *= shift
    own += shifted
    np.multiply(second, scale**2, out=own_second)
    own_second += mixed if second.shape[2] == d else mixed.sum(axis=2, keepdims=True)


def component_units(covariance_type, weights, means, covariances, is_zero):
    """Units of components with these weights, means and covariances, all in standard units."""
    n_components, d = means.shape
    frequency = np.sqrt(np.maximum(weights, _RAREST))
    if covariance_type in ("full", "tied"):
        inverses = whiten(covariances).reshape(-1, d, d)
        roots = np.array(cholesky(covariances)).reshape(-1, d, d)
        centers = np.matmul(inverses, means[:, :, None])[:, :, 0]
    else:
        roots = np.sqrt(covariances).reshape(n_components, -1)
        inverses = 1 / roots
        centers = inverses * means
    forward, backward = Affine(-centers, inverses), Affine(means, roots)
    if covariance_type == "tied":
        return FirstMomentUnits(
            forward=_of_first_moments(forward) / frequency[:, None, None],
            backward=_of_first_moments(backward) * frequency[:, None, None] * ~is_zero,
        )
    squares = slice(1 + d, None)
    if covariance_type == "full":
        squares = 1 + d + np.flatnonzero(np.eye(d)[np.triu_indices(d)])
    # z_j² has mean 1 and variance 2; 1, z_j and z_j z_l have the mean square 1.
    n_squares = d if covariance_type == "spherical" else 1
    deviation = np.ones(len(is_zero))
    deviation[squares] = np.sqrt(2 * n_squares)
    return ComponentUnits(
        covariance_type,
        forward=forward,
        backward=backward,
        squares=squares,
        # None along axes on which no row varies: what is 0 of all rows stays 0.
        expected=n_squares * ~is_zero[squares],
        deviation=frequency[:, None] * deviation,
        is_zero=is_zero,
    )


def _of_first_moments(affine):
    """What ``(1, y)`` is to be multiplied by from the right, for each component."""
    n_components, d = affine.shift.shape
    matrices = np.zeros((n_components, 1 + d, 1 + d))
    matrices[:, 0, 0], matrices[:, 0, 1:] = 1, affine.shift
    matrices[:, 1:, 1:] = np.swapaxes(affine.scale, 1, 2)
    return matrices
