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


class ComponentUnits(NamedTuple):
    """``z = (y - mean) / root`` for each component: maps of statistics to these units and back.

    Attributes
    ----------
    covariance_type : {"full", "tied", "diag", "spherical"}
    means : ndarray of shape (n_components, n_features)
    roots : ndarray
        Lower-triangular Cholesky factors of the covariances, (n_components, d, d), or (1, d, d) for
        "tied"; standard deviations, (n_components, d), or (n_components, 1) for "spherical".
    inverses : ndarray
        Their inverses.
    expected, deviation : ndarray of shape (n_second,)
        Mean and standard deviation of the second moments ``z_j z_l`` that the statistic has.
    is_zero : ndarray of bool, shape (n_functions,)
        Which statistics are 0 of all rows; nothing is made of them.
    """

    covariance_type: str
    means: np.ndarray
    roots: np.ndarray
    inverses: np.ndarray
    expected: np.ndarray
    deviation: np.ndarray
    is_zero: np.ndarray

    def to_components(self, statistics):
        """Statistics (n, q) in standard units, in the units of the components."""
        mass, first, second = self._split(statistics)
        centered = first - mass * self.means
        second = self._unpacked(second) - self._about_mean(centered, first)
        first, second = self._scaled(self.inverses, centered, second)
        second = (self._packed(second) - mass * self.expected) / self.deviation
        return np.concatenate([mass, first, second], axis=2).reshape(statistics.shape)

    def to_standard(self, statistics):
        """Statistics (n, q) in the units of the components, in standard units."""
        mass, first, second = self._split(statistics)
        second = self._unpacked(second * self.deviation + mass * self.expected)
        centered, second = self._scaled(self.roots, first, second)
        first = centered + mass * self.means
        second = self._packed(second + self._about_mean(centered, first))
        table = np.concatenate([mass, first, second], axis=2)
        table[:, :, self.is_zero] = 0.0
        return table.reshape(statistics.shape)

    def _split(self, statistics):
        """Mass (n, n_components, 1), first and second moments of each component."""
        d = self.means.shape[1]
        table = statistics.reshape(len(statistics), len(self.means), -1)
        return table[:, :, :1], table[:, :, 1 : 1 + d], table[:, :, 1 + d :]

    def _unpacked(self, second):
        """Second moments; as matrices where there are some between features."""
        if self.covariance_type != "full":
            return second
        d = self.means.shape[1]
        matrices = unpack(second.reshape(-1, second.shape[2]), d)
        return matrices.reshape(*second.shape[:2], d, d)

    def _packed(self, second):
        """Undo ``_unpacked``."""
        if self.covariance_type != "full":
            return second
        return second[:, :, *np.triu_indices(self.means.shape[1])]

    def _about_mean(self, centered, first):
        """What second moments about 0 have more than those about the means."""
        if self.covariance_type == "tied":
            return np.empty((*first.shape[:2], 0))
        if self.covariance_type == "full":
            return (
                centered[:, :, :, None] * self.means[:, None, :]
                + self.means[:, :, None] * first[:, :, None, :]
            )
        more = (centered + first) * self.means
        return more.sum(axis=2, keepdims=True) if self.covariance_type == "spherical" else more

    def _scaled(self, roots, first, second):
        """First moments times the roots, and second moments times both of them."""
        if self.covariance_type in ("diag", "spherical"):
            return first * roots, second * roots**2
        first = np.matmul(roots, first[:, :, :, None])[:, :, :, 0]
        if self.covariance_type == "tied":
            return first, second
        return first, roots @ second @ np.swapaxes(roots, 1, 2)


def component_units(covariance_type, means, covariances, is_zero):
    """Units of components with these means and covariances, all in standard units."""
    d = means.shape[1]
    is_square = {
        "full": np.eye(d)[np.triu_indices(d)],
        "tied": np.empty(0),
        "diag": np.ones(d),
        "spherical": np.ones(1),
    }[covariance_type]
    n_squares = d if covariance_type == "spherical" else 1
    expected, deviation = n_squares * is_square, np.sqrt(1 + (2 * n_squares - 1) * is_square)
    if covariance_type in ("diag", "spherical"):
        roots = np.sqrt(covariances).reshape(len(means), -1)
        inverses = 1 / roots
    else:
        roots = np.array(cholesky(covariances)).reshape(-1, d, d)
        inverses = whiten(covariances).reshape(-1, d, d)
    return ComponentUnits(covariance_type, means, roots, inverses, expected, deviation, is_zero)
