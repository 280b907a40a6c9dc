"""Statistics of a population in units in which those of subjects are similarly noisy.

In these units, with z = L⁻¹ (φ - Bᵀ x) and x̃ the whitened covariates, the statistics are::

    x̃ zᵀ        z_i z_j, divided by √2 for i = j        Sr / (squares n̄) √(n̄ / 2)

Each has variance 1 for the complete data of a subject. In raw units, the noise of compression at
ω = 1 cost about 40 times as many nats.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular

from ..._typing import FloatArray
from .layout import Layout
from .maximization import Constants, Theta
from .subjects import sum_in_order


class MessageUnits(NamedTuple):
    """Matrices (q, q) of the linear map to these units, and of its inverse.

    Products are sums of one term after the other: a client's do not depend on its group.
    """

    forward: FloatArray
    backward: FloatArray

    def to_components(self, statistics: FloatArray) -> FloatArray:
        """Convert statistics (n, q) to these units."""
        return _products(self.forward, statistics)

    def to_standard(self, statistics: FloatArray) -> FloatArray:
        """Convert statistics (n, q) from these units."""
        return _products(self.backward, statistics)


def _products(matrix: FloatArray, vectors: FloatArray) -> FloatArray:
    return sum_in_order(matrix.T[:, None] * vectors.T[:, :, None])


def message_units(layout: Layout, constants: Constants, theta: Theta) -> MessageUnits:
    """Units at θ, by the images of all unit vectors."""
    first, second, last = layout.split(np.eye(layout.size))
    root = np.linalg.cholesky(theta.covariance)
    mixed = np.swapaxes(first, 1, 2) @ theta.coefficients
    scatter = second - mixed - np.swapaxes(mixed, 1, 2)
    whitened = np.linalg.solve(root, np.swapaxes(np.linalg.solve(root, scatter), 1, 2))
    whitened = whitened / np.where(np.eye(len(root)) > 0, np.sqrt(2), 1.0)
    crossed = np.linalg.solve(root, np.swapaxes(_whitened(layout, constants, first), 1, 2))
    n_observations = constants.n_observations
    scaled = last / theta.squares / np.sqrt(2 * n_observations)
    forward = layout.join(np.swapaxes(crossed, 1, 2), whitened, scaled).T
    backward = np.linalg.solve(forward, np.eye(layout.size))
    return MessageUnits(forward, backward.astype(np.float64))


def _whitened(layout: Layout, constants: Constants, first: FloatArray) -> FloatArray:
    """S1 with whitened covariates: those of each column, or all of them where vectors have all."""
    whitened = np.zeros_like(first)
    present = layout.mask | layout.is_full
    for j in range(layout.n_parameters):
        own = np.flatnonzero(present[:, j])
        factor = np.linalg.cholesky(constants.moment[np.ix_(own, own)])
        whitened[:, own, j] = solve_triangular(factor, first[:, own, j].T, lower=True).T
    return whitened
