"""Mixture of Gaussian priors: an ensemble of models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.special import softmax

from .._parameters import check_counts, check_positive
from .._typing import FloatArray
from ._base import Array, Local, Prior, Shared, Update, total
from ._gaussian import towards


@dataclass(frozen=True)
class MixturePrior(Prior):
    """Mixture of Gaussian priors with equal shares: the server trains an ensemble of models.

    p(φ_s | w_1, ..., w_K) ∝ Σ_k exp(-n_s λ/2 ||φ_s - w_k||²) (Appendix J.2 of [1]_), where n_s is
    the client's number of rows, because λ is relative to the mean loss of a row. A client starts
    from the model with the least loss on its rows, and moves the models in proportion to their
    responsibilities r_sk for what it found: w_k = Σ_s r_sk φ_s / Σ_s r_sk. (Equation 52 of [1]_ has
    another denominator, and (51) a norm that is not squared.) A model for which nobody is
    responsible stays where it is.

    All models start from the same parameters. The first M-step separates them: it clusters the
    parameters of the clients of the first round by Ward's method.

    Parameters
    ----------
    n_components : int, default=2
        Number K of models.
    precision : float > 0, default=0.1
        λ. Small values make all models alike.

    References
    ----------
    .. [1] C. Louizos, M. Reisser, J. Soriaga and M. Welling, "An Expectation-Maximization
       perspective on federated learning", 2021.

    Examples
    --------
    >>> from skfedem import FederatedMLPRegressor
    >>> from skfedem.priors import MixturePrior
    >>> ensemble = FederatedMLPRegressor(prior=MixturePrior(n_components=3))
    """

    n_components: int = 2
    precision: float = 0.1
    corrects: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_counts(n_components=self.n_components)
        check_positive(precision=self.precision)

    @property
    def n_models(self) -> int:
        """Number K of centres."""
        return self.n_components

    def proximal(self, shared: Shared, local: Local, moved: Array, learning_rate: float) -> Array:
        """As for one Gaussian, around the mean of the centres by their responsibilities."""
        if self.n_components == 1:
            return towards(shared.weights, moved, self.precision * learning_rate)
        shares = self._shares(shared, local).astype(moved.dtype)
        pairs = zip(shares.T, shared.weights, strict=True)
        centres: Array = sum(share[:, None] * centre for share, centre in pairs)
        return towards(centres, moved, self.precision * learning_rate)

    def update(self, shared: Shared, local: Local, uniforms: Array | None) -> Update:
        """Responsibilities, and the difference from the centre with the largest one."""
        if self.n_components == 1:
            return super().update(shared, local, uniforms)
        shares = self._shares(shared, local).astype(np.float32).astype(np.float64)  # as sent
        nearest = local._replace(models=shares.argmax(axis=1))
        return super().update(shared, nearest, uniforms)._replace(shares=shares)

    def _shares(self, shared: Shared, local: Local) -> FloatArray:
        precisions = self.precision * local.sizes
        return responsibilities(local.parameters, shared.weights, precisions)

    def closed_form(self, shared: Shared, update: Update, weights: FloatArray) -> FloatArray:
        """Means of the clients' parameters by their responsibilities."""
        sums, totals = self._sums(shared, update, weights)
        return shared.weights + sums / np.where(totals > 0, totals, 1.0)[:, None]

    def direction(self, shared: Shared, update: Update, weights: FloatArray) -> FloatArray:
        """Mean of r_sk (φ_s - w_k), for each k."""
        return self._sums(shared, update, weights)[0] / total(weights)

    def _sums(
        self, shared: Shared, update: Update, weights: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Sums over clients of w_s r_sk (φ_s - w_k), and of w_s r_sk, for each k."""
        centres, shares = shared.weights, update.shares
        if shares is None:  # with a single model
            shares = np.ones((len(weights), 1))
        elif (centres == centres[0]).all():
            shares = self._clusters(update)
        shares = weights[:, None] * shares
        # From each centre, so that no digits are lost where it is the nearest.
        sums = np.stack(
            [
                own @ (centres[update.models] - centre + update.differences)
                for own, centre in zip(shares.T, centres, strict=True)
            ]
        )
        return sums, np.array([total(own) for own in shares.T])

    def _clusters(self, update: Update) -> FloatArray:
        """Shares of 0 or 1 from clusters of the clients, which separate equal centres."""
        labels = np.zeros(len(update.differences), dtype=np.intp)
        if len(labels) > 1:
            tree = linkage(update.differences, "ward")
            labels = fcluster(tree, self.n_components, "maxclust") - 1
        return np.eye(self.n_components)[labels]


def responsibilities(parameters: Array, centres: Array, precisions: Array) -> FloatArray:
    """Posterior probability r_sk of each centre for each vector of parameters.

    Parameters
    ----------
    parameters : ndarray of shape (n, d)
    centres : ndarray of shape (n_components, d)
    precisions : ndarray of shape (n,)
        n_s λ.

    Returns
    -------
    responsibilities : ndarray of shape (n, n_components)
    """
    squares = [((parameters - centre) ** 2).sum(axis=1, dtype=np.float64) for centre in centres]
    return softmax(-precisions[:, None] / 2 * np.stack(squares, axis=1), axis=1)
