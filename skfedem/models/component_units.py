"""Statistics of a mixture in the units of its components, in which messages are compressed.

The noise of compression is isotropic. In standard units, which are those of all rows together, it
is large compared with the moments of a narrow or rare component. In the units of a component, its
rows ``z`` have mean 0 and covariance I, and 1, ``z_j``, ``z_j z_l`` and ``(z_j² - 1) / √2`` are
uncorrelated with mean square 1; divided by the root of the component's weight, this holds for the
mean over all rows. In these units, the noise of compression is proportional to that of the rows: it
affects all components and directions equally.

A "tied" covariance may be computed as a known moment minus that of the means. It is then affected
by the noise of all components, and most by that of components far from the centre. In this case,
the units are finer in directions in which noise costs more.

The maps are linear, so that unbiased compression stays unbiased. They are determined by the
broadcast parameters, which server and clients know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .covariances import MATRICES, packed, upper

# Lower bound for weights: otherwise, rows of a rare component would make messages so large that the
# other components suffer.
RAREST = 1e-3


class MatrixUnits(NamedTuple):
    """Maps of "full" statistics to the units of their components and back.

    Attributes
    ----------
    forward, backward : ndarray of shape (n_components, 1 + n_features, 1 + n_features)
        Matrices that map (1, y) to (1, z) and back.
    squares : ndarray of int
        Indices of the functions that are ``z_j²``, ...
    expected : ndarray
        ... and their means.
    deviation : ndarray of shape (n_components, n_functions)
        Root mean square of a row's contribution to a statistic.
    is_zero : ndarray of bool, shape (n_functions,)
        Statistics that are 0 for all rows, and stay 0.
    """

    forward: np.ndarray
    backward: np.ndarray
    squares: np.ndarray
    expected: np.ndarray
    deviation: np.ndarray
    is_zero: np.ndarray

    def to_components(self, statistics):
        """Convert statistics (n, q) from standard units to the units of the components."""
        table = statistics.reshape(len(statistics), *self.deviation.shape)
        table = _congruent(self.forward, table, np.empty_like(table))
        table[:, :, self.squares] -= table[:, :, :1] * self.expected
        table /= self.deviation
        return table.reshape(statistics.shape)

    def to_standard(self, statistics):
        """Convert statistics (n, q) from the units of the components to standard units."""
        table = statistics.reshape(len(statistics), *self.deviation.shape) * self.deviation
        table[:, :, self.squares] += table[:, :, :1] * self.expected
        table = _congruent(self.backward, table, table)
        table[:, :, self.is_zero] = 0.0
        return table.reshape(statistics.shape)


def _congruent(matrices, table, mapped):
    """Fill in ``M U Mᵀ``, where U is the moment of (1, y), given by its upper triangle.

    ``mapped`` may be the table (n, n_components, n_functions) itself.
    """
    size = matrices.shape[1]
    rows, columns = upper(size)
    # One component fits into the cache; with clients on the last axis, products are few and large.
    for component, matrix in enumerate(matrices):
        moments = np.ascontiguousarray(table[:, component].T)[packed(size)]
        moments = (matrix @ moments.reshape(size, -1)).reshape(moments.shape)
        moments = np.swapaxes(moments, 0, 1).reshape(size, -1)
        moments = (matrix @ moments).reshape(size * size, -1)
        mapped[:, component] = moments[rows * size + columns].T
    return mapped


class LinearUnits(NamedTuple):
    """Maps of "tied", "diag" and "spherical" statistics to the units of their components and back.

    Attributes
    ----------
    mapped : callable
        ``mapped(statistics, by)``: ``_of_first_moments`` for "tied", else ``_of_squares``.
    forward, backward : ndarray or Coefficients
        The argument ``by`` for the map and its inverse; for "tied", matrices of shape
        (n_components, 1 + n_features, 1 + n_features).
    """

    mapped: Callable
    forward: Any
    backward: Any

    def to_components(self, statistics):
        """Convert statistics (n, q) from standard units to the units of the components."""
        return self.mapped(statistics, self.forward)

    def to_standard(self, statistics):
        """Convert statistics (n, q) from the units of the components to standard units."""
        return self.mapped(statistics, self.backward)


def _of_first_moments(statistics, matrices):
    table = statistics.reshape(len(statistics), *matrices.shape[:2])
    mapped = np.empty_like(table)
    # matmul with a transposed second factor is slow.
    transposed = np.swapaxes(matrices, 1, 2).copy()
    np.matmul(np.swapaxes(table, 0, 1), transposed, out=np.swapaxes(mapped, 0, 1))
    return mapped.reshape(statistics.shape)


class Coefficients(NamedTuple):
    """Coefficients of a linear map of mass, first and second moments along each axis.

    ``mass_to_first`` times the mass is added to the first moments, and so on. All have shape
    (n_components, n_features), or (n_components, 1) if they are the same for all axes.
    """

    mass: np.ndarray
    mass_to_first: np.ndarray
    first: np.ndarray
    mass_to_second: np.ndarray
    first_to_second: np.ndarray
    second: np.ndarray


def _of_squares(statistics, by):
    n_components, d = by.first.shape
    table = statistics.reshape(len(statistics), n_components, -1)
    mass, first, second = table[:, :, :1], table[:, :, 1 : 1 + d], table[:, :, 1 + d :]
    mapped = np.empty_like(table)
    np.multiply(mass, by.mass, out=mapped[:, :, :1])
    np.multiply(first, by.first, out=mapped[:, :, 1 : 1 + d])
    mapped[:, :, 1 : 1 + d] += mass * by.mass_to_first
    mixed = first * by.first_to_second
    if second.shape[2] < d:
        mixed = mixed.sum(axis=2, keepdims=True)
    own = mapped[:, :, 1 + d :]
    np.multiply(second, by.second, out=own)
    own += mixed
    own += mass * by.mass_to_second
    return mapped.reshape(statistics.shape)


def component_units(covariance_type, weights, means, roots, inverses, is_zero, *, is_rest):
    """Units of components with these weights, means and roots of covariances, in standard units.

    ``is_rest`` says that a "tied" covariance is a known second moment minus that of the means.
    """
    n_components, d = means.shape
    root_weight = np.sqrt(np.maximum(weights, RAREST))[:, None]
    if covariance_type not in MATRICES:
        roots, inverses = roots.reshape(n_components, -1), inverses.reshape(n_components, -1)
        n_squares = d if covariance_type == "spherical" else 1
        return _of_variances(root_weight, means, roots, inverses, is_zero, n_squares)
    roots, inverses = roots.reshape(-1, d, d), inverses.reshape(-1, d, d)
    centers = np.matmul(inverses, means[:, :, None])[:, :, 0]
    if covariance_type == "full":
        return _of_matrices(root_weight, means, centers, roots, inverses, is_zero)
    if is_rest:
        forward, backward = _of_a_rest(root_weight, means, centers, roots[0], inverses[0])
    else:
        forward = _homogeneous(-centers, inverses) / root_weight[:, :, None]
        backward = _homogeneous(means, roots) * root_weight[:, :, None]
    # Statistics that are 0 for all rows, along axes without variance, stay 0.
    return LinearUnits(_of_first_moments, forward=forward, backward=backward * ~is_zero[:, None])


def _of_matrices(root_weight, means, centers, roots, inverses, is_zero):
    """Units of "full" components."""
    d = means.shape[1]
    squares = 1 + d + np.flatnonzero(np.eye(d)[upper(d)])
    # z_j² has mean 1 and variance 2; 1, z_j and z_j z_l have the mean square 1.
    deviation = np.repeat(root_weight, len(is_zero), axis=1)
    deviation[:, squares] *= np.sqrt(2)
    return MatrixUnits(
        forward=_homogeneous(-centers, inverses),
        backward=_homogeneous(means, roots),
        squares=squares,
        expected=1.0 * ~is_zero[squares],
        deviation=deviation,
        is_zero=is_zero,
    )


def _of_variances(root_weight, means, roots, inverses, is_zero, n_squares):
    """Units of "diag" and "spherical" components; moments are sums of ``n_squares`` squares."""
    varies, d = ~is_zero, means.shape[1]
    # A sum of n squares has mean n and variance 2 n.
    expected, deviation = n_squares * varies[1 + d :], np.sqrt(2 * n_squares)
    shift = -(inverses * means)
    return LinearUnits(
        _of_squares,
        forward=_normalised(shift, inverses, root_weight, expected, deviation),
        backward=_denormalised(means, roots, root_weight, expected, deviation, varies),
    )


def within_rows(covariances, regularization, weights, covariance_type):
    """Limit variances along the axes to those that the rows of a component can have.

    Covariances may be much larger due to regularisation, which does not depend on the rows. The
    second moment of all rows is 1.
    """
    variances, added = covariances, regularization
    if covariance_type in MATRICES:
        variances, added = (
            np.diagonal(matrices, axis1=-2, axis2=-1) for matrices in (covariances, regularization)
        )
    most = np.ones(1)
    if covariance_type != "tied":
        most = (1 / np.maximum(weights, RAREST)).reshape(-1, *[1] * (variances.ndim - 1))
    # Variances within the limit are unchanged; ``variances - added`` exceeds it for initial
    # covariances that no rows can have.
    shares = np.minimum(np.maximum(variances - added, most) / variances, 1.0)
    if covariance_type in MATRICES:
        roots = np.sqrt(shares)
        shares = roots[..., :, None] * roots[..., None, :]
    return covariances * shares


def _homogeneous(shift, scale):
    """Matrices of the maps, for (1, y)."""
    return _blocks(1.0, np.zeros_like(shift), shift, scale)


def _of_a_rest(root_weight, means, centers, root, inverse):
    """Maps of (1, y) to units for a covariance that is the rest of a moment, and inverses.

    In units of a component, noise m in its mass and v in its first moment changes the covariance
    ``M - Σ_g π_g μ_g μ_gᵀ`` by ``√π (v tᵀ + t vᵀ + m t tᵀ)``, where t is the component's mean
    relative to the centre of all rows. The cost of this and of m and v themselves, in nats to
    second order, is

        ½ m² + ½ |v|² + ¼ π ||v tᵀ + t vᵀ + m t tᵀ||² = ½ (m, v) A (m, v)ᵀ

    minus ½ π m², because weights are divided by their sum; this term is neglected here. With c = π
    |t|², A is 1 + c across t, and ``[[1 + c |t|² / 2, c |t|], [c |t|, 1 + 2 c]]`` for m and v along
    t. If x is isotropic, the noise of an operator applied to R x, which is proportional to R x,
    costs least if ``RᵀR = √A``: R is the fourth root of A.

    Parameters
    ----------
    root_weight : ndarray of shape (n_components, 1)
        √π.
    means, centers : ndarray of shape (n_components, n_features)
        μ and t.
    root, inverse : ndarray of shape (n_features, n_features)
        L with L Lᵀ = Σ, and its inverse.

    Returns
    -------
    forward, backward : ndarray of shape (n_components, 1 + n_features, 1 + n_features)
        ``R [[1, 0], [-t, L⁻¹]] / √π`` and its inverse.
    """
    squared = (centers**2).sum(axis=1, keepdims=True)
    c = root_weight**2 * squared
    mass, mixed, along, across = 1 + 0.5 * c * squared, c, 1 + 2 * c, 1 + c
    det = 1 + 2 * c + 0.5 * c * squared
    for _ in range(2):
        # The root of a 2 x 2 matrix A is (A + √det I) / √(trace + 2 √det).
        det, across = np.sqrt(det), np.sqrt(across)
        scale = np.sqrt(mass + along + 2 * det)
        mass, mixed, along = (mass + det) / scale, mixed / scale, (along + det) / scale
    nonzero = np.maximum(squared, np.finfo(float).tiny)
    rows, beyond = centers @ inverse, (along - across) / nonzero
    forward = _blocks(
        (mass - mixed * squared) / root_weight,
        mixed / root_weight * rows,
        (mixed - along) / root_weight * centers,
        (across / root_weight)[:, :, None] * inverse,
    )
    forward[:, 1:, 1:] += _outer(beyond / root_weight * centers, rows)
    mass, mixed, along, across = along / det, -mixed / det, mass / det, 1 / across
    beyond = (along - across) / nonzero
    backward = _blocks(
        mass * root_weight,
        mixed * root_weight * centers,
        (mass + mixed) * root_weight * means,
        (across * root_weight)[:, :, None] * root,
    )
    backward[:, 1:, 1:] += _outer((mixed + beyond) * root_weight * means, centers)
    return forward, backward


def _outer(left, right):
    return left[:, :, None] * right[:, None, :]


def _blocks(corner, row, column, rest):
    """Block matrices from their four blocks."""
    n_components, d = row.shape
    matrices = np.empty((n_components, 1 + d, 1 + d))
    matrices[:, :1, 0], matrices[:, 0, 1:], matrices[:, 1:, 0] = corner, row, column
    matrices[:, 1:, 1:] = rest
    return matrices


def _normalised(shift, scale, root_weight, expected, deviation):
    """``z = shift + scale y`` and ``(z² - expected) / deviation``, divided by ``root_weight``."""
    return Coefficients(
        mass=1 / root_weight,
        mass_to_first=shift / root_weight,
        first=np.broadcast_to(scale / root_weight, shift.shape),
        mass_to_second=(_squared(shift, expected) - expected) / (deviation * root_weight),
        first_to_second=2 * shift * scale / (deviation * root_weight),
        second=scale**2 / (deviation * root_weight),
    )


def _denormalised(shift, scale, root_weight, expected, deviation, varies):
    """``y = shift + scale z`` and y², from the results of ``_normalised``."""
    d = shift.shape[1]
    first, second = varies[1 : 1 + d], varies[1 + d :]
    return Coefficients(
        mass=root_weight,
        mass_to_first=shift * root_weight * first,
        first=scale * root_weight * first,
        mass_to_second=(_squared(shift, expected) + scale**2 * expected) * root_weight * second,
        first_to_second=2 * shift * scale * root_weight * second,
        second=scale**2 * deviation * root_weight * second,
    )


def _squared(shift, expected):
    """``shift²``, or its sum if the second moment is a sum."""
    squared = shift**2
    return squared if len(expected) == shift.shape[1] else squared.sum(axis=1, keepdims=True)
