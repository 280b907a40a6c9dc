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

from typing import Any, NamedTuple

import numpy as np

from ..._typing import BoolArray, FloatArray, IntArray
from .covariances import CovarianceStructure
from .linear_algebra import block_matrices, outer, packed_indices

# Components with a smaller weight are rare: their statistics are mostly noise. Here, weights are at
# least this: otherwise, rows of a rare component would make messages so large that the other
# components suffer.
MIN_WEIGHT = 1e-3
# Number of clients whose moments are mapped at once.
_TILE = 32


class ComponentUnits(NamedTuple):
    """Maps of statistics to the units of their components and back.

    A row y in standard units is z in those of a component. Moments of y are replaced by those of z,
    then squares are centred, and all are divided by their deviation.

    ``forward`` and ``backward`` are arguments of ``structure.map_moments`` for the map from y to z
    and back; or to R z, see ``_maps_of_total_minus_between``. ``squares`` are the functions z_j² or
    ||z||², and ``expected`` (n_squares,) their means. ``deviation`` (n_components, n_functions) is
    the root mean square of a row's contribution to a statistic. Statistics with ``is_zero``
    (n_functions,) are 0 for all rows, and stay 0.
    """

    structure: CovarianceStructure
    forward: Any
    backward: Any
    squares: IntArray | slice
    expected: FloatArray
    deviation: FloatArray
    is_zero: BoolArray

    def to_components(self, statistics: FloatArray) -> FloatArray:
        """Convert statistics (n, q) from standard units to the units of the components."""
        moments = statistics.reshape(len(statistics), *self.deviation.shape)
        mapped = self._mapped(self.forward, moments)
        mapped[:, :, self.squares] -= mapped[:, :, :1] * self.expected
        mapped /= self.deviation
        return mapped.reshape(statistics.shape)

    def to_standard(self, statistics: FloatArray) -> FloatArray:
        """Convert statistics (n, q) from the units of the components to standard units."""
        moments = statistics.reshape(len(statistics), *self.deviation.shape) * self.deviation
        moments[:, :, self.squares] += moments[:, :, :1] * self.expected
        moments = self._mapped(self.backward, moments)
        moments[:, :, self.is_zero] = 0.0
        return moments.reshape(statistics.shape)

    def _mapped(self, maps: Any, moments: FloatArray) -> FloatArray:
        """Moments (n, n_components, n_functions) under ``maps``, as many at once for any n.

        The rounding of a matrix product depends on its shape, and would on who else is in a group.
        """
        n = len(moments)
        padded = np.zeros((-(-n // _TILE), _TILE, *moments.shape[1:]))
        padded.reshape(-1, *moments.shape[1:])[:n] = moments
        self.structure.map_moments(maps, padded)
        return padded.reshape(-1, *moments.shape[1:])[:n]


def component_units(
    structure: CovarianceStructure,
    weights: FloatArray,
    means: FloatArray,
    cholesky: FloatArray,
    inverse_cholesky: FloatArray,
    is_zero: BoolArray,
    *,
    is_total_minus_between: bool,
) -> ComponentUnits:
    """Units of components with these weights, means and Cholesky factors, in standard units.

    ``is_total_minus_between`` says that a shared covariance is a known second moment minus that of
    the means.
    """
    d = means.shape[1]
    weights = np.maximum(weights, MIN_WEIGHT)[:, None]
    squares: IntArray | slice = slice(1 + d, None)  # of a row: z_j², or their sum
    if structure.n_squares(d) > d:
        squares = 1 + d + np.diagonal(packed_indices(d))
    # 1, z_j and z_j z_l have mean square 1; a sum of n squares z_j² has mean n and variance 2 n.
    n_terms = d if structure.is_isotropic else 1
    expected = np.where(is_zero[squares], 0.0, n_terms)
    deviation = np.repeat(np.sqrt(weights), len(is_zero), axis=1)
    deviation[:, squares] *= np.sqrt(2 * n_terms)
    centers = structure.whiten(means, inverse_cholesky)
    if is_total_minus_between:
        maps = _maps_of_total_minus_between(weights, means, centers, cholesky, inverse_cholesky)
    else:
        forward = structure.affine(-centers, inverse_cholesky)
        maps = forward, structure.affine(means, cholesky)
    return ComponentUnits(structure, *maps, squares, expected, deviation, is_zero)


def limited_by_rows(
    structure: CovarianceStructure,
    covariances: FloatArray,
    regularization: FloatArray,
    weights: FloatArray,
) -> FloatArray:
    """Limit variances along the axes to those that the rows of a component can have.

    Covariances may be much larger due to regularisation, which does not depend on the rows. The
    second moment of all rows is 1.
    """
    variances, added = structure.variances(covariances), structure.variances(regularization)
    most = np.ones(1)
    if not structure.is_shared:
        most = (1 / np.maximum(weights, MIN_WEIGHT)).reshape(-1, *[1] * (variances.ndim - 1))
    # Variances within the limit are unchanged; ``variances - added`` exceeds it for initial
    # covariances that no rows can have.
    shares = np.minimum(np.maximum(variances - added, most) / variances, 1.0)
    if structure.has_matrices:
        factors = np.sqrt(shares)
        shares = factors[..., :, None] * factors[..., None, :]
    return covariances * shares


def _maps_of_total_minus_between(
    weights: FloatArray,
    means: FloatArray,
    centers: FloatArray,
    cholesky: FloatArray,
    inverse_cholesky: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Maps of (1, y) to units for a covariance that is a moment minus another, and inverses.

    In units of a component, noise m in its mass and v in its first moment changes the covariance
    ``M - Σ_g π_g μ_g μ_gᵀ`` by ``√π (v tᵀ + t vᵀ + m t tᵀ)``, where t is the component's mean
    relative to the centre of all rows. The cost of this and of m and v themselves, in nats to
    second order, is

        ½ m² + ½ |v|² + ¼ π ||v tᵀ + t vᵀ + m t tᵀ||² = ½ (m, v) A (m, v)ᵀ

    minus ½ π m², because weights are divided by their sum; this term is neglected here. With c = π
    |t|², A is 1 + c across t, and ``[[1 + c |t|² / 2, c |t|], [c |t|, 1 + 2 c]]`` for m and v along
    t. If x is isotropic, the noise of an operator applied to R x, which is proportional to R x,
    costs least if ``RᵀR = √A``: R is the fourth root of A.

    ``weights`` (n_components, 1) are π, ``means`` and ``centers`` μ and t. Returns
    ``R [[1, 0], [-t, L⁻¹]]`` and its inverse, of shape (n_components, 1 + d, 1 + d).
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
    rows, beyond = centers @ inverse_cholesky, (along - across) / nonzero
    forward = block_matrices(
        mass - mixed * squared,
        mixed * rows,
        (mixed - along) * centers,
        across[:, :, None] * inverse_cholesky,
    )
    forward[:, 1:, 1:] += outer(beyond * centers, rows)
    mass, mixed, along, across = along / det, -mixed / det, mass / det, 1 / across
    beyond = (along - across) / nonzero
    across = across[:, :, None] * cholesky
    backward = block_matrices(mass, mixed * centers, (mass + mixed) * means, across)
    backward[:, 1:, 1:] += outer((mixed + beyond) * means, centers)
    return forward, backward
