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

from ..._typing import BoolArray, CovarianceType, FloatArray, IntArray
from .covariances import MATRICES, packed, upper_places, variances_of

# Components with a smaller weight are rare: their statistics are mostly noise. Here, weights are at
# least this: otherwise, rows of a rare component would make messages so large that the other
# components suffer.
RAREST = 1e-3


class Axes(NamedTuple):
    """The map ``shift + scale y`` along each axis.

    Attributes
    ----------
    shift : ndarray of shape (n_components, n_features)
    factors : ndarray of shape (n_components, n_functions)
        1, scale and scale², by which moments are multiplied without a shift.
    """

    shift: FloatArray
    factors: FloatArray


_Map = FloatArray | Axes
_MapMoments = Callable[[Any, FloatArray, FloatArray], None]


class ComponentUnits(NamedTuple):
    """Maps of statistics to the units of their components and back.

    A row y in standard units is z in those of a component. Moments of y are replaced by those of z,
    then squares are centred, and all are divided by their deviation.

    Attributes
    ----------
    map_moments : callable
        ``map_moments(by, moments, out)`` fills in the moments of z from those of y, or the reverse.
        Both have shape (n, n_components, n_functions), and may be the same array.
    forward, backward : ndarray or Axes
        The argument ``by`` for the map from y to z, and for its inverse; or from y to R z, see
        ``_of_a_rest``.
    squares : ndarray of int, or slice
        Functions that are ``z_j²`` or ``||z||²``, ...
    expected : ndarray of shape (n_squares,)
        ... and their means.
    deviation : ndarray of shape (n_components, n_functions)
        Root mean square of a row's contribution to a statistic.
    is_zero : ndarray of bool, shape (n_functions,)
        Statistics that are 0 for all rows, and stay 0.
    """

    map_moments: _MapMoments
    forward: _Map
    backward: _Map
    squares: IntArray | slice
    expected: FloatArray
    deviation: FloatArray
    is_zero: BoolArray

    def to_components(self, statistics: FloatArray) -> FloatArray:
        """Convert statistics (n, q) from standard units to the units of the components."""
        moments = statistics.reshape(len(statistics), *self.deviation.shape)
        mapped = np.empty_like(moments)
        self.map_moments(self.forward, moments, mapped)
        mapped[:, :, self.squares] -= mapped[:, :, :1] * self.expected
        mapped /= self.deviation
        return mapped.reshape(statistics.shape)

    def to_standard(self, statistics: FloatArray) -> FloatArray:
        """Convert statistics (n, q) from the units of the components to standard units."""
        moments = statistics.reshape(len(statistics), *self.deviation.shape) * self.deviation
        moments[:, :, self.squares] += moments[:, :, :1] * self.expected
        self.map_moments(self.backward, moments, moments)
        moments[:, :, self.is_zero] = 0.0
        return moments.reshape(statistics.shape)


def _map_matrices(matrices: FloatArray, moments: FloatArray, out: FloatArray) -> None:
    """``M U Mᵀ`` for "full", where U is the moment of (1, y), given by its upper triangle."""
    size = matrices.shape[1]
    # One component fits into the cache; with clients on the last axis, products are few and large.
    for component, matrix in enumerate(matrices):
        own = moments[:, component].T.take(packed(size), axis=0)
        own = (matrix @ own.reshape(size, -1)).reshape(own.shape)
        own = matrix @ np.swapaxes(own, 0, 1).reshape(size, -1)
        out[:, component] = own.reshape(size * size, -1).take(upper_places(size), axis=0).T


def _map_vectors(matrices: FloatArray, moments: FloatArray, out: FloatArray) -> None:
    """``M u`` for "tied", where u is the mean of (1, y)."""
    # matmul with a transposed second factor is slow.
    transposed = np.swapaxes(matrices, 1, 2).copy()
    np.matmul(np.swapaxes(moments, 0, 1), transposed, out=np.swapaxes(out, 0, 1))


def _axes(shift: FloatArray, scale: FloatArray, n_functions: int) -> Axes:
    """Axes; ``scale`` may have the shape (n_components, 1)."""
    d, factors = shift.shape[1], np.ones((len(shift), n_functions))
    factors[:, 1 : 1 + d], factors[:, 1 + d :] = scale, scale**2
    return Axes(shift, factors)


def _map_squares(axes: Axes, moments: FloatArray, out: FloatArray) -> None:
    """Mass, first and second moments for "diag"; for "spherical" the sum of the latter."""
    shift, d = axes.shift, axes.shift.shape[1]
    np.multiply(moments, axes.factors, out=out)
    mass, first, second = out[:, :, :1], out[:, :, 1 : 1 + d], out[:, :, 1 + d :]
    # (shift + x)² = x² + shift (x + (shift + x))
    mixed = first.copy()
    first += mass * shift
    mixed += first
    mixed *= shift
    second += mixed if second.shape[2] == d else mixed.sum(axis=2, keepdims=True)


def component_units(
    covariance_type: CovarianceType,
    weights: FloatArray,
    means: FloatArray,
    roots: FloatArray,
    inverses: FloatArray,
    is_zero: BoolArray,
    *,
    is_rest: bool,
) -> ComponentUnits:
    """Units of components with these weights, means and roots of covariances, in standard units.

    ``is_rest`` says that a "tied" covariance is a known second moment minus that of the means.
    """
    n_components, d = means.shape
    weights = np.maximum(weights, RAREST)[:, None]
    squares: IntArray | slice = slice(1 + d, None)
    if covariance_type == "full":
        squares = 1 + d + np.diagonal(packed(d))
    # 1, z_j and z_j z_l have mean square 1; a sum of n squares z_j² has mean n and variance 2 n.
    n_terms = d if covariance_type == "spherical" else 1
    expected = np.where(is_zero[squares], 0.0, n_terms)
    deviation = np.repeat(np.sqrt(weights), len(is_zero), axis=1)
    deviation[:, squares] *= np.sqrt(2 * n_terms)
    if covariance_type in MATRICES:
        map_moments: _MapMoments = _map_matrices if covariance_type == "full" else _map_vectors
        roots, inverses = roots.reshape(-1, d, d), inverses.reshape(-1, d, d)
        centers = np.matmul(inverses, means[:, :, None])[:, :, 0]
        if is_rest:
            maps: tuple[_Map, _Map] = _of_a_rest(weights, means, centers, roots[0], inverses[0])
        else:
            maps = _homogeneous(-centers, inverses), _homogeneous(means, roots)
    else:
        map_moments = _map_squares
        roots, inverses = roots.reshape(n_components, -1), inverses.reshape(n_components, -1)
        n_functions = len(is_zero)
        maps = _axes(-inverses * means, inverses, n_functions), _axes(means, roots, n_functions)
    return ComponentUnits(map_moments, *maps, squares, expected, deviation, is_zero)


def within_rows(
    covariances: FloatArray,
    regularization: FloatArray,
    weights: FloatArray,
    covariance_type: CovarianceType,
) -> FloatArray:
    """Limit variances along the axes to those that the rows of a component can have.

    Covariances may be much larger due to regularisation, which does not depend on the rows. The
    second moment of all rows is 1.
    """
    variances = variances_of(covariance_type, covariances)
    added = variances_of(covariance_type, regularization)
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


def _homogeneous(shift: FloatArray, scale: FloatArray) -> FloatArray:
    """Matrices of the maps, for (1, y)."""
    return _blocks(1.0, np.zeros_like(shift), shift, scale)


def _of_a_rest(
    weights: FloatArray,
    means: FloatArray,
    centers: FloatArray,
    root: FloatArray,
    inverse: FloatArray,
) -> tuple[FloatArray, FloatArray]:
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
    weights : ndarray of shape (n_components, 1)
        π.
    means, centers : ndarray of shape (n_components, n_features)
        μ and t.
    root, inverse : ndarray of shape (n_features, n_features)
        L with L Lᵀ = Σ, and its inverse.

    Returns
    -------
    forward, backward : ndarray of shape (n_components, 1 + n_features, 1 + n_features)
        ``R [[1, 0], [-t, L⁻¹]]`` and its inverse.
    """
    squared = (centers**2).sum(axis=1, keepdims=True)
    c = weights * squared
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
        mass - mixed * squared,
        mixed * rows,
        (mixed - along) * centers,
        across[:, :, None] * inverse,
    )
    forward[:, 1:, 1:] += _outer(beyond * centers, rows)
    mass, mixed, along, across = along / det, -mixed / det, mass / det, 1 / across
    beyond = (along - across) / nonzero
    backward = _blocks(mass, mixed * centers, (mass + mixed) * means, across[:, :, None] * root)
    backward[:, 1:, 1:] += _outer((mixed + beyond) * means, centers)
    return forward, backward


def _outer(left: FloatArray, right: FloatArray) -> FloatArray:
    return left[:, :, None] * right[:, None, :]


def _blocks(
    corner: FloatArray | float, row: FloatArray, column: FloatArray, rest: FloatArray
) -> FloatArray:
    """Block matrices from their four blocks."""
    n_components, d = row.shape
    matrices = np.empty((n_components, 1 + d, 1 + d))
    matrices[:, :1, 0], matrices[:, 0, 1:], matrices[:, 1:, 0] = corner, row, column
    matrices[:, 1:, 1:] = rest
    return matrices
