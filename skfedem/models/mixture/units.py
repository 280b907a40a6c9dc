"""Standard units: the affine map under which the rows of all clients have unit second moments.

EM is invariant under affine maps of the rows, but its statistics are not. Without centring,
``E[yyᵀ] - E[y]E[y]ᵀ`` would lose digits for rows far from the origin. And because the error of a
compressed message is relative to its norm, features in large units, or the sum of correlated
features, would bury the information about other features.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import orthogonal_procrustes

from ..._serialization import serializable
from ..._typing import BoolArray, CovarianceType, FloatArray, IntArray
from ..client_rows import multiplied_by_client
from .covariances import COVARIANCES, CovarianceStructure
from .linear_algebra import ROUNDING

# Variance below which an axis is constant: reg_covar over it would overflow.
LEAST_VARIANCE = 1e-290


class _Tolerances(NamedTuple):
    """Which axes are constant, equal or independent; ``tests/models/mixture/test_units.py``."""

    # Variances with a smaller relative difference are equal: rounding rotates other axes by at most
    # parts in 1e13, unless their variances are small themselves.
    equal: float = 1e-3
    # Share of the largest squared length above which a rest is independent. Not a simple fraction,
    # because the lengths of similar features may have such ratios.
    independent: float = 1 / np.pi


_TOLERANCES = _Tolerances()


@serializable
class Units(NamedTuple):
    """``standard = (((row - center) / scale) @ rotation) * has_variance``.

    Attributes
    ----------
    center, scale : ndarray of shape (n_features,)
    rotation : ndarray of shape (n_features, n_features) or None
        Principal axes of the scaled rows, divided by the standard deviations along them; axes of
        equal variance are rotated towards the features' axes. None unless covariances are matrices.
    has_variance : ndarray of bool, shape (n_features,)
        Axes along which rows vary. Values along other axes are set to 0: they are rounding errors,
        which the large precisions there would amplify, and exact zeros have no compression noise.
    structure : CovarianceStructure
        The covariance type, which the map preserves.
    """

    center: FloatArray
    scale: FloatArray
    rotation: FloatArray | None
    has_variance: BoolArray
    structure: CovarianceStructure

    def standardize(
        self, rows: NDArray[Any], lengths: IntArray, out: FloatArray | None = None
    ) -> FloatArray:
        """Rows (n_rows, n_features) in standard units, as columns (n_features, n_rows).

        ``lengths`` are the numbers of rows of each client, by which products are taken.
        """
        # Transposed first, so that the following operations run along the long axis.
        y = np.array(rows.T, dtype=np.float64, order="C")
        y -= self.center[:, None]
        if self.rotation is None:
            standard = np.multiply(y, 1 / self.scale[:, None], out=out)
        else:
            standard = multiplied_by_client(self.whitening.T[None], y, lengths, out)
        standard[~self.has_variance] = 0.0
        return standard

    def means_to_standard(self, means: FloatArray) -> FloatArray:
        """Points (n, n_features) in standard units."""
        return (means - self.center) @ self.whitening

    def means_to_rows(self, means: FloatArray) -> FloatArray:
        """Points (n, n_features) in the rows' units."""
        return means @ self.inverse_whitening + self.center

    def covariances_to_standard(self, covariances: FloatArray) -> FloatArray:
        """Covariances, of the shape of their type, in standard units."""
        if self.rotation is None:
            return covariances / self.squared_scale
        scaled = covariances / np.outer(self.scale, self.scale)
        return self.rotation.T @ scaled @ self.rotation

    def moment_to_standard(self, second_moment: FloatArray) -> FloatArray:
        """Second moment (n_features, n_features) of rows about the centre, in standard units."""
        standard = self.covariances_to_standard(second_moment)
        standard[~self.has_variance] = standard[:, ~self.has_variance] = 0.0
        return standard

    @property
    def whitening(self) -> FloatArray:
        """Matrix W with ``standard = (row - center) @ W``."""
        if self.rotation is None:
            return np.diag(1 / self.scale)
        return self.rotation / self.scale[:, None]

    @property
    def inverse_whitening(self) -> FloatArray:
        """Matrix W⁻¹ with ``row - center = standard @ W⁻¹``."""
        if self.rotation is None:
            return np.diag(self.scale)
        inverse: Any = np.linalg.solve(self.rotation, np.diag(self.scale))
        return inverse

    @property
    def squared_scale(self) -> FloatArray | float:
        """Ratio of variances in the rows' units to standard units: of each feature, or of all."""
        squares = self.scale**2
        return squares[0] if self.structure.is_isotropic else squares

    @property
    def standard_deviations(self) -> FloatArray:
        """Of each feature of the rows; if isotropic, their root mean square deviation."""
        return np.sqrt(np.square(self.inverse_whitening[self.has_variance]).sum(axis=0))

    @property
    def log_volume(self) -> float:
        """Log |det| of the map from rows to standard units."""
        volume = -np.log(self.scale).sum()
        return volume if self.rotation is None else volume + np.linalg.slogdet(self.rotation)[1]


def standard_units(
    center: FloatArray,
    second_moment: FloatArray,
    covariance_type: CovarianceType,
    reg_covar: float = 0.0,
) -> Units:
    """Standard units that preserve the type of covariances.

    ``second_moment`` is that of the rows about ``center``; its diagonal suffices unless covariances
    are matrices. Features with a variance below ``reg_covar`` keep their own axes.
    """
    structure = COVARIANCES[covariance_type]
    variances = np.diagonal(second_moment) if structure.has_matrices else second_moment
    variances = np.where(variances > _rounding_variance(center), variances, 0.0)
    if structure.is_isotropic:
        variances = np.full(len(variances), variances.mean())
    scale = np.sqrt(np.where(variances > 0, variances, 1.0))
    if not structure.has_matrices:
        return Units(center, scale, None, variances > 0, structure)
    correlations = second_moment / np.outer(scale, scale)
    # Features that vary less than reg_covar would be lost in its rounding on axes in common with
    # others, and constant features would inherit rounding errors of the others.
    common = np.flatnonzero((variances > 0) & (variances >= reg_covar))
    rotation, has_variance = np.eye(len(center)), variances > 0
    if len(common):
        square = np.ix_(common, common)
        rotation[square], has_variance[common] = pca_whitening(correlations[square], ROUNDING)
    return Units(center, scale, rotation, has_variance, structure)


def pca_whitening(second_moment: FloatArray, least: float) -> tuple[FloatArray, BoolArray]:
    """Whitening map along principal axes that do not depend on rounding.

    Principal axes with equal variances, as of scaled features after a PCA, are only determined up
    to a rotation. Which ones LAPACK returns depends on rounding, and would change a seeded run from
    one machine to the next. The ones here are the nearest to the features' axes.

    Variances up to ``least`` are rounding errors, as are small shares of the largest variance.
    Returns the axes divided by the standard deviations along them, and along which axes rows vary;
    the other axes have length 1.
    """
    variances, axes = np.linalg.eigh(second_moment)
    limit = max(least, ROUNDING * variances.max(), LEAST_VARIANCE)
    has_variance = variances > limit
    variances = np.where(has_variance, variances, 1.0)
    is_split = np.diff(variances) > _TOLERANCES.equal * variances[1:]
    is_split |= np.diff(has_variance)
    rotation = np.empty_like(axes)
    for equal in np.split(np.arange(len(axes)), np.flatnonzero(is_split) + 1):
        principal = axes[:, equal]
        turn, _ = orthogonal_procrustes(principal[independent_rows(principal)], np.eye(len(equal)))
        rotation[:, equal] = principal / np.sqrt(variances[equal]) @ turn
    return rotation, has_variance


def independent_rows(axes: FloatArray) -> list[int]:
    """Rows, in order, of a matrix with orthonormal columns that are a basis of its row space.

    Each is the first row that is long, compared with the longest, after the parts along the
    previous ones are removed.
    """
    chosen, rest = [], axes.copy()
    for _ in range(axes.shape[1]):
        squares = np.square(rest).sum(axis=1)
        row = int(np.argmax(squares > _TOLERANCES.independent * squares.max()))
        direction = rest[row] / np.sqrt(squares[row])
        rest -= np.outer(rest @ direction, direction)
        chosen.append(row)
    return sorted(chosen)


def with_new_axes(units: Units, second_moment: FloatArray) -> Units:
    """Units that include the axes along which only these rows vary.

    Previous statistics are 0 along such axes, for any direction and scale, which can therefore be
    chosen from the second moment of the new rows about the units' centre, as in ``standard_units``.
    Without new axes, the units are returned unchanged.
    """
    center, scale, rotation, has_variance, structure = units
    fixed, limit = ~has_variance, _rounding_variance(center)
    if rotation is None:
        new = fixed & (second_moment > limit)
        if not structure.is_isotropic:
            scale = np.where(new, np.sqrt(second_moment), scale)
    else:
        constant = np.diagonal(second_moment) <= limit
        second_moment = np.where(constant | constant[:, None], 0.0, second_moment)
        standard = units.covariances_to_standard(second_moment)[fixed][:, fixed]
        largest = np.linalg.eigvalsh(second_moment / np.outer(scale, scale)).max()
        new, rotation = np.zeros_like(has_variance), rotation.copy()
        axes, new[fixed] = pca_whitening(standard, ROUNDING * largest)
        rotation[:, fixed] = rotation[:, fixed] @ axes
    new_axes = Units(center, scale, rotation, has_variance | new, structure)
    return new_axes if new.any() else units


def _rounding_variance(center: FloatArray) -> FloatArray:
    """Largest variance that a constant feature may seem to have due to rounding of its mean."""
    return np.maximum((ROUNDING * center) ** 2, LEAST_VARIANCE)
