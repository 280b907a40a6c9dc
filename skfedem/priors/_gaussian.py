"""Gaussian prior: FedAvg and FedProx."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .._parameters import check_not_negative
from .._typing import FloatArray
from ._base import Array, Local, Prior, Shared, Update, mean_difference


@dataclass(frozen=True)
class GaussianPrior(Prior):
    """Gaussian prior around the server's parameters: FedAvg, and FedProx if it has a precision.

    p(φ_s | w) ∝ exp(-λ/2 ||φ_s - w||²), so that w is the mean of the φ_s (Section 2 of [1]_). The
    penalty is applied as a proximal step after each gradient step, ``φ = (φ - η g + η λ w) /
    (1 + η λ)``, which is stable for any λ.

    Parameters
    ----------
    precision : float >= 0, default=0.0
        λ; 0 is FedAvg, any other FedProx.

    References
    ----------
    .. [1] C. Louizos, M. Reisser, J. Soriaga and M. Welling, "An Expectation-Maximization
       perspective on federated learning", 2021.

    Examples
    --------
    >>> from skfedem import FederatedMLPRegressor
    >>> from skfedem.priors import GaussianPrior
    >>> fedprox = FederatedMLPRegressor(prior=GaussianPrior(precision=0.1))
    """

    precision: float = 0.0
    remembers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_not_negative(precision=self.precision)

    def proximal(self, shared: Shared, local: Local, moved: Array, learning_rate: float) -> Array:
        """Weighted mean of the moved parameters and w."""
        if not self.precision:
            return moved
        return towards(shared.weights, moved, self.precision * learning_rate)

    def closed_form(self, shared: Shared, update: Update, weights: FloatArray) -> FloatArray:
        """Mean of the clients' parameters."""
        return shared.weights + self.direction(shared, update, weights)

    def direction(self, shared: Shared, update: Update, weights: FloatArray) -> FloatArray:
        """Mean of φ_s - w."""
        return mean_difference(update, weights)[None]


def towards(centres: Array, moved: Array, pull: Array | float) -> Array:
    """Minimum over φ of ||φ - moved||² + pull ||φ - centre||²; the same for a pull of 0."""
    return (moved + pull * centres) / (1 + pull)
