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

from ..._federation import Federation, Reading, read
from ..._typing import BoolArray, CovarianceType, FloatArray
from .covariances import MATRICES

# Rounding error of a moment in standard units, and thus the accuracy of masses and variances.
ROUNDING = 64 * np.finfo(np.float64).eps
# Relative variance of the correlations below which a direction is regarded as constant; rounding
# leaves a few parts in 1e15.
_NO_VARIANCE = ROUNDING
# Absolute variance below which it is regarded as constant: reg_covar over it would overflow.
_LEAST_VARIANCE = 1e-290
# Variances with a smaller relative difference are regarded as equal: rounding rotates other axes by
# at most parts in 1e13, unless their variances are small themselves.
_ALIKE = 1e-3
# A squared length is long if it exceeds this share of the largest. Not a simple fraction, because
# the lengths of similar features may have such ratios.
_LONG = 1 / np.pi


class Units(NamedTuple):
    """``standard = (((row - center) / scale) @ rotation) * varies``.

    Attributes
    ----------
    center, scale : ndarray of shape (n_features,)
    rotation : ndarray of shape (n_features, n_features) or None
        Principal axes of the scaled rows, divided by the standard deviations along them; axes of
        equal variance are rotated towards the features' axes. None if covariances are diagonal.
    varies : ndarray of bool, shape (n_features,)
        Axes along which rows vary. Values along other axes are set to 0: they are rounding errors,
        which the large precisions there would amplify, and exact zeros have no compression noise.
    """

    center: FloatArray
    scale: FloatArray
    rotation: FloatArray | None
    varies: BoolArray

    def standardize(self, rows: NDArray[Any], out: FloatArray | None = None) -> FloatArray:
        """Rows (n_rows, n_features) in standard units, as columns (n_features, n_rows)."""
        # Transposed first, so that the following operations run along the long axis.
        y = np.array(rows.T, dtype=np.float64, order="C")
        y -= self.center[:, None]
        if self.rotation is None:
            standard = np.multiply(y, 1 / self.scale[:, None], out=out)
        else:
            standard = np.matmul(self.unmixing.T, y, out=out)
        standard[~self.varies] = 0.0
        return standard

    def means_to_standard(self, means: FloatArray) -> FloatArray:
        """Points (n, n_features) in standard units."""
        return (means - self.center) @ self.unmixing

    def means_to_rows(self, means: FloatArray) -> FloatArray:
        """Points (n, n_features) in the rows' units."""
        return means @ self.mixing + self.center

    def matrices_to_standard(self, matrices: FloatArray) -> FloatArray:
        """Covariance matrices (..., n_features, n_features) in standard units."""
        scaled = matrices / np.outer(self.scale, self.scale)
        return scaled if self.rotation is None else self.rotation.T @ scaled @ self.rotation

    def moment_to_standard(self, second_moment: FloatArray) -> FloatArray:
        """Second moment (n_features, n_features) of rows about the centre, in standard units."""
        standard = self.matrices_to_standard(second_moment)
        standard[~self.varies] = standard[:, ~self.varies] = 0.0
        return standard

    @property
    def unmixing(self) -> FloatArray:
        """Matrix A with ``standard = (row - center) @ A``."""
        if self.rotation is None:
            return np.diag(1 / self.scale)
        return self.rotation / self.scale[:, None]

    @property
    def mixing(self) -> FloatArray:
        """Matrix B with ``row - center = standard @ B``."""
        if self.rotation is None:
            return np.diag(self.scale)
        mixing: Any = np.linalg.solve(self.rotation, np.diag(self.scale))
        return mixing

    @property
    def spread(self) -> FloatArray:
        """Standard deviation of each feature of the rows; 0 for constant ones.

        With one scale for all features, it is their root mean square deviation.
        """
        return np.sqrt(np.square(self.mixing[self.varies]).sum(axis=0))

    @property
    def log_volume(self) -> float:
        """Log |det| of the map from rows to standard units."""
        volume = -np.log(self.scale).sum()
        return volume if self.rotation is None else volume + np.linalg.slogdet(self.rotation)[1]


def mean_of_rows(federation: Federation) -> FloatArray:
    """Weighted mean of the clients' means, Σ_i w_i mean_i, shape (n_features,)."""
    # Relative to the first row, so that the mean of a constant feature has no rounding error.
    first = federation.rows[:1].astype(np.float64)
    mean = first[0]
    shares = federation.row_weights
    every = np.arange(federation.n_clients)
    for reading in read(federation, every, _rows_at_once(len(mean))):
        # In a fixed memory layout, so that the rounding of sums does not depend on that of the
        # rows.
        mean = mean + weights_of_rows(shares, reading) @ np.subtract(reading.rows, first, order="C")
    return mean


def second_moment(federation: Federation, center: FloatArray, *, matrix: bool) -> FloatArray:
    """Weighted mean of the clients' second moments about a centre.

    As a ``matrix`` of shape (n_features, n_features), or its diagonal.
    """
    d = len(center)
    second = np.zeros((d, d) if matrix else d)
    shares = federation.row_weights
    for reading in read(federation, np.arange(federation.n_clients), _rows_at_once(d)):
        y = np.subtract(reading.rows, center, order="C")  # as in ``mean_of_rows``
        y *= np.sqrt(weights_of_rows(shares, reading))[:, None]
        second += y.T @ y if matrix else np.einsum("ij,ij->j", y, y)
    return second


def weights_of_rows(shares: FloatArray, reading: Reading) -> FloatArray:
    """Weight of each row that was read, given the weight of one row of each client."""
    counts = np.repeat(shares[reading.group], reading.lengths)
    return counts if reading.sample_weight is None else counts * reading.sample_weight


def n_moments(n_features: int, matrix: bool) -> int:
    """Number of distinct second moments."""
    return n_features * (n_features + 1) // 2 if matrix else n_features


def _rows_at_once(n_features: int) -> int:
    """Number of rows that fit into the cache of a processor."""
    return max(64, 2**16 // n_features)


def standard_units(
    center: FloatArray,
    second_moment: FloatArray,
    covariance_type: CovarianceType,
    reg_covar: float = 0.0,
) -> Units:
    """Standard units that preserve the type of covariances.

    Parameters
    ----------
    center : ndarray of shape (n_features,)
    second_moment : ndarray of shape (n_features, n_features) or (n_features,)
        Second moment about the centre; the diagonal suffices unless "full" or "tied".
    covariance_type : {"full", "tied", "diag", "spherical"}
    reg_covar : float, default=0.0
        Constant added to every variance. Features with a smaller variance keep their own axes.

    Returns
    -------
    units : Units
    """
    rotates = covariance_type in MATRICES
    variances = np.diagonal(second_moment) if rotates else second_moment
    variances = np.where(variances > _seeming_variance(center), variances, 0.0)
    if covariance_type == "spherical":
        variances = np.full(len(variances), variances.mean())
    scale = np.sqrt(np.where(variances > 0, variances, 1.0))
    if not rotates:
        return Units(center, scale, None, variances > 0)
    correlations = second_moment / np.outer(scale, scale)
    # Features that vary less than reg_covar would be lost in its rounding on axes in common with
    # others, and constant features would inherit rounding errors of the others.
    common = np.flatnonzero((variances > 0) & (variances >= reg_covar))
    rotation, varies = np.eye(len(center)), variances > 0
    if len(common):
        rotation[np.ix_(common, common)], varies[common] = _whitening(
            correlations[np.ix_(common, common)], least=_NO_VARIANCE
        )
    return Units(center, scale, rotation, varies)


def _whitening(second_moment: FloatArray, least: float) -> tuple[FloatArray, BoolArray]:
    """Whitening map along principal axes that do not depend on rounding.

    Principal axes with equal variances, as of scaled features after a PCA, are only determined up
    to a rotation. Which ones LAPACK returns depends on rounding, and would change a seeded run from
    one machine to the next. The ones here are the nearest to the features' axes.

    Parameters
    ----------
    second_moment : ndarray of shape (n_features, n_features)
    least : float
        Variances up to this are rounding errors, as are small shares of the largest variance.

    Returns
    -------
    rotation : ndarray of shape (n_features, n_features)
        Axes divided by the standard deviations along them.
    varies : ndarray of bool, shape (n_features,)
        Axes along which rows vary; the other axes have length 1.
    """
    shares, axes = np.linalg.eigh(second_moment)
    varies = shares > max(least, _NO_VARIANCE * shares.max(), _LEAST_VARIANCE)
    shares = np.where(varies, shares, 1.0)
    is_split = (np.diff(shares) > _ALIKE * shares[1:]) | np.diff(varies)
    rotation = np.empty_like(axes)
    for alike in np.split(np.arange(len(axes)), np.flatnonzero(is_split) + 1):
        principal = axes[:, alike]
        turn, _ = orthogonal_procrustes(principal[_spanning(principal)], np.eye(len(alike)))
        rotation[:, alike] = principal / np.sqrt(shares[alike]) @ turn
    return rotation, varies


def _spanning(axes: FloatArray) -> list[int]:
    """Features, in order, whose projections on the span of orthonormal axes are a basis of it.

    Each is the first feature with a long projection, compared with the longest, after the parts
    along the previous ones are removed. The axes are columns; as many features are returned.
    """
    chosen, left = [], axes.copy()
    for _ in range(axes.shape[1]):
        squares = np.square(left).sum(axis=1)
        feature = int(np.argmax(squares > _LONG * squares.max()))
        direction = left[feature] / np.sqrt(squares[feature])
        left -= np.outer(left @ direction, direction)
        chosen.append(feature)
    return sorted(chosen)


def with_new_axes(
    units: Units, second_moment: FloatArray, covariance_type: CovarianceType
) -> Units:
    """Units that include the axes along which only these rows vary.

    Previous statistics are 0 along such axes, for any direction and scale, which can therefore be
    chosen from the second moment of the new rows about the units' centre, as in ``standard_units``.
    Without new axes, the units are returned unchanged.
    """
    center, scale, rotation, varies = units
    fixed = ~varies
    if rotation is None:
        new = fixed & (second_moment > _seeming_variance(center))
        if covariance_type == "diag":
            scale = np.where(new, np.sqrt(second_moment), scale)
    else:
        seeming = np.diagonal(second_moment) <= _seeming_variance(center)
        second_moment = np.where(seeming | seeming[:, None], 0.0, second_moment)
        spread = units.matrices_to_standard(second_moment)[fixed][:, fixed]
        largest = np.linalg.eigvalsh(second_moment / np.outer(scale, scale)).max()
        new, rotation = np.zeros_like(varies), rotation.copy()
        axes, new[fixed] = _whitening(spread, least=_NO_VARIANCE * largest)
        rotation[:, fixed] = rotation[:, fixed] @ axes
    return Units(center, scale, rotation, varies | new) if new.any() else units


def _seeming_variance(center: FloatArray) -> FloatArray:
    """Largest variance that a constant feature may seem to have due to rounding of its mean."""
    return np.maximum((ROUNDING * center) ** 2, _LEAST_VARIANCE)
