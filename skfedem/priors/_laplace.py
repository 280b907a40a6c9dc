"""Laplace prior: the median of the clients' parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from .._parameters import check_not_negative
from .._typing import BoolArray, FloatArray
from ._base import Array, Local, Prior, Shared, Update, total


@dataclass(frozen=True)
class LaplacePrior(Prior):
    """Laplace prior around the server's parameters: each coordinate of w is a median.

    p(φ_s | w) ∝ exp(-λ ||φ_s - w||_1), so that w is the coordinate-wise weighted median of the φ_s
    (Appendix J.1 of [1]_), which a minority of clients cannot move far. The penalty is applied as a
    proximal step: with λ > 0, coordinates that would move by less than η λ in a step stay equal to
    w, and those that end so are not sent.

    Parameters
    ----------
    precision : float >= 0, default=0.0
        λ.

    References
    ----------
    .. [1] C. Louizos, M. Reisser, J. Soriaga and M. Welling, "An Expectation-Maximization
       perspective on federated learning", 2021.

    Examples
    --------
    >>> from skfedem import FederatedMLPRegressor
    >>> from skfedem.priors import LaplacePrior
    >>> median = FederatedMLPRegressor(prior=LaplacePrior())
    """

    precision: float = 0.0
    corrects: ClassVar[bool] = False
    compresses: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_not_negative(precision=self.precision)

    def proximal(self, shared: Shared, local: Local, moved: Array, learning_rate: float) -> Array:
        """Soft thresholding of the distance to w."""
        threshold = self.precision * learning_rate
        distance = moved - shared.weights
        shrunk = moved - threshold * np.sign(distance)
        return np.where(np.abs(distance) <= threshold, shared.weights, shrunk)

    def update(self, shared: Shared, local: Local, uniforms: Array | None) -> Update:
        """Differences of the coordinates that left w, each of which is a group by itself."""
        update = super().update(shared, local, uniforms)
        if not self.precision:
            return update
        moved = update.differences != 0
        return update._replace(kept=moved, survivors=moved)

    def closed_form(self, shared: Shared, update: Update, weights: FloatArray) -> FloatArray:
        """Weighted median of each coordinate."""
        return shared.weights + weighted_median(update.differences, weights)

    def direction(self, shared: Shared, update: Update, weights: FloatArray) -> FloatArray:
        """Mean sign of φ_s - w."""
        return (weights @ np.sign(update.differences) / total(weights))[None]

    def groups(self, shared: Shared) -> BoolArray | None:
        """Each coordinate, if any may stay equal to w."""
        return np.ones(shared.weights.shape[1], bool) if self.precision else None


def weighted_median(values: Array, weights: FloatArray) -> FloatArray:
    """Median over the first axis, the midpoint if two values qualify.

    Parameters
    ----------
    values : ndarray of shape (n, d)
    weights : ndarray of shape (n,)

    Returns
    -------
    median : ndarray of shape (d,)
    """
    if (weights == weights[0]).all():
        return np.median(values, axis=0)
    order = np.argsort(values, axis=0, kind="stable")
    values, own = np.take_along_axis(values, order, axis=0), weights[order]
    # Half of the weight, with sums from both sides, which are equal where weights are.
    from_below, from_above = np.cumsum(own, axis=0), np.cumsum(own[::-1], axis=0)[::-1]
    lower = np.argmax(from_below >= from_above - own, axis=0)
    upper = len(values) - 1 - np.argmax((from_above >= from_below - own)[::-1], axis=0)
    columns = np.arange(values.shape[1])
    return (values[lower, columns] + values[upper, columns]) / 2
