"""Methods of a fitted mixture: predictions, likelihoods, information criteria and samples."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    DensityMixin,
    TransformerMixin,
)
from sklearn.mixture import GaussianMixture
from sklearn.utils.validation import check_is_fitted

from .._data.by_client import by_client
from .._data.clients import read_rows
from .._data.rows import sum_of_rows
from .._federation import offsets_of
from .._parameters import check_counts
from .._random import random_numbers
from .._rows import in_blocks
from .._typing import (
    ByClient,
    ClientsLike,
    FloatArray,
    IntArray,
    LabelsByClient,
    OneTable,
    RowWeights,
    Transformed,
)
from ..clients.local import SetUpMessage
from ..models.mixture.covariances import COVARIANCES

_Method = Literal["predict", "predict_proba", "score_samples"]

# Number of doubles in the rows of a block; intermediate results take about four times as many.
_BLOCK = 2**20
# Distance, in standard deviations, whose square (and sums of such) does not overflow. Rows further
# away are clipped to it: their likelihood is negligible either way.
_FARTHEST = 1e150


class FittedMixture(
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    DensityMixin,
    BaseEstimator,
):
    """Methods of a fitted mixture, which use the attributes that ``fit`` has set."""

    weights_: FloatArray
    means_: FloatArray
    covariances_: FloatArray
    precisions_: FloatArray
    precisions_cholesky_: FloatArray
    converged_: bool
    n_iter_: int
    lower_bound_: float
    lower_bounds_: list[float]
    history_: dict[str, NDArray[Any]]
    setup_messages_: list[SetUpMessage]
    client_drift_: FloatArray
    new_client_ids_: NDArray[Any]
    n_clients_: int
    client_ids_: NDArray[Any]
    n_features_in_: int
    feature_names_in_: NDArray[Any]

    @overload
    def predict(self, X: OneTable) -> IntArray: ...
    @overload
    def predict(self, X: ClientsLike) -> LabelsByClient: ...
    def predict(self, X: ClientsLike) -> LabelsByClient:
        """Most probable component of each row.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or a list of them

        Returns
        -------
        labels : ndarray of int, shape (n_samples,), or a tuple with one for each client

        Raises
        ------
        NotFittedError
            Before ``fit``.
        TypeError, ValueError
            If X is no such table, contains NaN or inf, or has other features than the data of the
            fit; for a list, the error names the client.
        """
        return self._by_client(X, "predict")

    @overload
    def predict_proba(self, X: OneTable) -> FloatArray: ...
    @overload
    def predict_proba(self, X: ClientsLike) -> ByClient: ...
    def predict_proba(self, X: ClientsLike) -> ByClient:
        """Posterior probability of each component for each row.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or a list of them

        Returns
        -------
        posterior : ndarray of shape (n_samples, n_components), or a tuple with one for each client
        """
        return self._by_client(X, "predict_proba")

    def transform(self, X: ClientsLike) -> Transformed:
        """``predict_proba(X)``, in the containers that ``set_output`` chose.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or a list of them

        Returns
        -------
        posterior : array or DataFrame of shape (n_samples, n_components), or a tuple of them
        """
        return self._by_client(X, "predict_proba", container=self)

    @overload
    def score_samples(self, X: OneTable) -> FloatArray: ...
    @overload
    def score_samples(self, X: ClientsLike) -> ByClient: ...
    def score_samples(self, X: ClientsLike) -> ByClient:
        """Log-likelihood of each row, in nats.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or a list of them

        Returns
        -------
        log_likelihood : ndarray of shape (n_samples,), or a tuple with one for each client
        """
        return self._by_client(X, "score_samples")

    def score(
        self, X: ClientsLike, y: object = None, sample_weight: RowWeights | None = None
    ) -> float:
        """Mean log-likelihood per row, in nats.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or a list of them
            In a list, all rows have the same weight, whichever client holds them.
        y : Ignored
        sample_weight : array-like of shape (n_samples,), or a list of them, default=None
            Weight of each row in the mean: one array if X is a table, a list of arrays if X is a
            list.

        Returns
        -------
        log_likelihood : float
        """
        log_likelihood, n_samples = sum_of_rows(self.score_samples(X), X, sample_weight)
        return log_likelihood / n_samples

    def aic(self, X: ClientsLike, *, sample_weight: RowWeights | None = None) -> float:
        """Akaike information criterion on X (the lower the better).

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or a list of them
        sample_weight : array-like of shape (n_samples,), or a list of them, default=None
            Weight of each row, in the form of ``score``. Here the size of the weights matters, not
            only their ratios: an integer weight is equivalent to repeating the row.

        Returns
        -------
        aic : float
            ``-2 * log_likelihood + 2 * n_parameters``.
        """
        log_likelihood, _ = sum_of_rows(self.score_samples(X), X, sample_weight)
        return -2 * log_likelihood + 2 * self._n_parameters()

    def bic(self, X: ClientsLike, *, sample_weight: RowWeights | None = None) -> float:
        """Bayesian information criterion on X (the lower the better).

        Parameters
        ----------
        X, sample_weight
            As in ``aic``; ``n_samples`` is the sum of the weights.

        Returns
        -------
        bic : float
            ``-2 * log_likelihood + log(n_samples) * n_parameters``.
        """
        log_likelihood, n_samples = sum_of_rows(self.score_samples(X), X, sample_weight)
        return -2 * log_likelihood + float(np.log(n_samples)) * self._n_parameters()

    def sample(self, n_samples: int = 1) -> tuple[FloatArray, IntArray]:
        """Draw rows from the fitted mixture.

        Parameters
        ----------
        n_samples : int, default=1

        Returns
        -------
        X : ndarray of shape (n_samples, n_features)
        y : ndarray of int, shape (n_samples,)
            Component of each row.

        Raises
        ------
        NotFittedError
            Before ``fit``.
        TypeError, ValueError
            If ``n_samples`` is not an integer >= 1.
        """
        check_is_fitted(self)
        check_counts(n_samples=n_samples)
        rng = random_numbers(self.random_state)
        counts = rng.multinomial(n_samples, self.weights_)
        y, offsets = np.repeat(np.arange(len(counts)), counts), offsets_of(counts)
        rows = rng.standard_normal((n_samples, self.n_features_in_))
        # By the Cholesky factors of the precisions: covariances may be singular up to rounding if
        # features have different units.
        structure, factors = COVARIANCES[self._fitted_type], self.precisions_cholesky_
        for component, mean in enumerate(self.means_):
            drawn = slice(offsets[component], offsets[component + 1])
            factor = factors if structure.is_shared else factors[component]
            if structure.has_matrices:
                rows[drawn] = solve_triangular(factor, rows[drawn].T, trans="T").T
            else:
                rows[drawn] /= factor
            rows[drawn] += mean
        return rows, y

    def _by_client(
        self, X: ClientsLike, method: _Method, container: BaseEstimator | None = None
    ) -> Any:
        """Apply a method of scikit-learn's mixture to one table, or to each table of a list."""
        check_is_fitted(self)
        apply = partial(self._of_table, method=method)
        return by_client(X, apply, container)

    def _of_table(self, table: object, method: _Method) -> NDArray[Any]:
        """Apply a method of scikit-learn's mixture to one table, near the origin and in blocks."""
        rows = read_rows(self, table)
        scales = self._inverse_deviations()
        shift = self._precision_weighted_mean(scales)
        of_rows = getattr(self._shifted(shift), method)
        size = max(1, _BLOCK // max(self.means_.shape))
        with np.errstate(over="ignore"):  # an infinite one is no bound
            far = _FARTHEST / scales.max(axis=0)  # in each feature, or in all
        with np.errstate(divide="ignore"):  # the logarithm of a weight of 0
            found = in_blocks(rows, size, lambda block: of_rows(np.clip(block - shift, -far, far)))
        if method == "predict_proba":
            # Far from all components, rounding errors keep scikit-learn's probabilities from adding
            # up to 1.
            found /= found.sum(axis=1, keepdims=True)
        return found

    def _precision_weighted_mean(self, scales: FloatArray) -> FloatArray:
        """Mean of the components' means in each feature, weighted by their precisions.

        Rows minus this point lose the fewest digits, however far they are from the origin, and even
        if one component consists of outliers.
        """
        weights = np.maximum(self.weights_, np.finfo(np.float64).tiny)[:, None]
        shares = weights * (scales / scales.max(axis=0)) ** 2
        # Differences from the first mean: if all means are equal, their mean then has no rounding
        # error.
        first = self.means_[0]
        return first + (shares * (self.means_ - first)).sum(axis=0) / shares.sum(axis=0)

    def _inverse_deviations(self) -> FloatArray:
        """Inverse standard deviations by component and feature; their squares may overflow."""
        factors, structure = np.abs(self.precisions_cholesky_), COVARIANCES[self._fitted_type]
        if structure.has_matrices:
            factors = factors.max(axis=-1)
        return np.atleast_2d(factors[:, None] if structure.is_isotropic else factors)

    def _shifted(self, shift: FloatArray) -> GaussianMixture:
        """scikit-learn's mixture with the fitted parameters, moved by ``-shift``."""
        mixture = GaussianMixture(len(self.weights_), covariance_type=self._fitted_type)
        mixture.weights_, mixture.means_ = self.weights_, self.means_ - shift
        mixture.covariances_, mixture.precisions_ = self.covariances_, self.precisions_
        mixture.precisions_cholesky_ = self.precisions_cholesky_
        return mixture

    def _n_parameters(self) -> int:
        """Number of free parameters."""
        n_components, d = self.means_.shape
        in_covariances = COVARIANCES[self._fitted_type].n_parameters(n_components, d)
        return n_components * (1 + d) - 1 + (0 if self._covariance_is_known else in_covariances)
