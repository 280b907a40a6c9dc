"""Methods of a fitted population model: predictions, likelihoods, residuals and simulations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from .._data.by_client import each_table
from .._data.long_tables import as_table, columns_of, is_long_table
from .._parameters import check_choice, check_counts
from .._random import random_numbers
from .._typing import ByClient, FloatArray, Seed
from ..models.mixed_effects.conditional import find_modes, predict
from ..models.mixed_effects.information import linearised
from ..models.mixed_effects.maximization import Theta
from .design import Design
from .estimates import names_of, values_of, variability_of
from .fitted_subjects import SubjectTable, read_subjects

# Number of predictions that a simulation makes at once.
_BLOCK = 2**20


class FittedMixedEffects(BaseEstimator):
    """Methods of a fitted population model, which use the attributes that ``fit`` has set."""

    population_parameters_: dict[str, float]
    coef_: FloatArray
    random_effects_cov_: FloatArray
    residual_: dict[str, float]
    standard_errors_: dict[str, float]
    log_likelihood_: float
    log_likelihood_error_: float
    shrinkage_: dict[str, float]
    history_: dict[str, NDArray[Any]]
    n_iter_: int
    converged_: bool
    n_subjects_: int
    n_observations_: int
    n_missing_: int
    n_clients_: int
    client_ids_: NDArray[Any]
    client_drift_: FloatArray
    _design: Design
    _theta: Theta
    _n_nodes: int

    def predict(
        self, X: Any, level: Literal["population", "individual"] = "population"
    ) -> ByClient:
        """Predict the response of each row.

        Parameters
        ----------
        X : DataFrame or dict of array-likes, or a list of them
            Tables with the columns of the fit. The response is only needed for ``"individual"``; it
            may be missing in some rows.
        level : {"population", "individual"}, default="population"
            ``f(h(Bᵀ x), x_ij)``, the prediction for a subject whose random effects are 0; or that
            at the mode of the subject's parameters, given all of its responses in X.

        Returns
        -------
        predicted : ndarray of shape (n_rows,), or a tuple with one for each client

        Raises
        ------
        NotFittedError
            Before ``fit``.
        TypeError, ValueError
            If X lacks columns or has invalid values.
        """
        check_is_fitted(self)
        check_choice("level", level, ("population", "individual"))

        def answer(table: SubjectTable) -> FloatArray:
            population, subjects = table.population, table.subjects
            z = np.zeros_like(population.means)
            if level == "individual":
                z = find_modes(population, subjects).z
            predicted = predict(population, subjects, population.gaussian(z))
            return table.in_rows(predicted)

        return self._by_client(X, answer)

    def individual_parameters(self, X: Any, kind: Literal["mode", "mean"] = "mode") -> Any:
        """Parameters of each subject, given its responses.

        Parameters
        ----------
        X : DataFrame or dict of array-likes, or a list of them
            Tables with the columns of the fit.
        kind : {"mode", "mean"}, default="mode"
            ``h(φ̂)`` at the mode φ̂ of the conditional density of φ, the empirical Bayes estimate; or
            the conditional mean ``E[h(φ) | y]``.

        Returns
        -------
        parameters : DataFrame, or dict of ndarray where pandas is not installed
            A row for each subject, in the order of their first rows in X: its label, and its
            parameters. For a list of clients, a tuple of tables.

        Raises
        ------
        NotFittedError
            Before ``fit``.
        TypeError, ValueError
            As in ``predict``.
        """
        check_is_fitted(self)
        check_choice("kind", kind, ("mode", "mean"))

        def answer(table: SubjectTable) -> Any:
            population = table.population
            names = population.transforms
            if kind == "mode":
                phi = population.gaussian(find_modes(population, table.subjects).z)
                pairs = zip(names.values(), phi, strict=True)
                found = [transform.to_subject(own) for transform, own in pairs]
            else:
                found = table.mean_parameters()
            values = dict(zip(names, found, strict=True))
            return as_table({self._design.subject: table.records.labels, **values})

        return self._by_client(X, answer)

    def score(self, X: Any, y: object = None) -> float:
        """Mean log-likelihood per subject, in nats.

        Parameters
        ----------
        X : DataFrame or dict of array-likes, or a list of them
            In a list, all subjects have the same weight, whichever client has them. Subjects
            without a response do not count.
        y : Ignored

        Returns
        -------
        log_likelihood : float
            By quadrature, or by importance sampling with more than four parameters.

        Raises
        ------
        NotFittedError
            Before ``fit``.
        TypeError, ValueError
            As in ``predict``; and if there are no responses.
        """
        log_likelihood, n_subjects = self._sum_of_subjects(X)
        return log_likelihood / n_subjects

    def aic(self, X: Any) -> float:
        """Akaike information criterion on X (the lower the better).

        Parameters
        ----------
        X : DataFrame or dict of array-likes, or a list of them

        Returns
        -------
        aic : float
            ``-2 * log_likelihood + 2 * n_parameters``.

        Raises
        ------
        NotFittedError, TypeError, ValueError
            As in ``score``.
        """
        return -2 * self._sum_of_subjects(X)[0] + 2 * len(names_of(self._design))

    def bic(self, X: Any) -> float:
        """Bayesian information criterion on X (the lower the better).

        Parameters
        ----------
        X : DataFrame or dict of array-likes, or a list of them

        Returns
        -------
        bic : float
            ``-2 * log_likelihood + log(n_subjects) * n_parameters``.

        Raises
        ------
        NotFittedError, TypeError, ValueError
            As in ``score``.
        """
        log_likelihood, n_subjects = self._sum_of_subjects(X)
        return -2 * log_likelihood + float(np.log(n_subjects)) * len(names_of(self._design))

    def residuals(self, X: Any) -> Any:
        """Weighted residuals of each row, about standard normal under the model.

        ``individual`` are ``(y - f(ψ̂)) / √v`` at the mode of the subject's parameters.
        ``population`` are the conditional weighted residuals of [1]_: ``U⁻¹ (y - f(ψ̂) + J η̂)``,
        where U is the Cholesky factor of V, the covariance of a subject's responses under the model
        linearised at the mode. With ``error="exponential"``, y and f are logarithms.

        Parameters
        ----------
        X : DataFrame or dict of array-likes, or a list of them

        Returns
        -------
        residuals : DataFrame, or dict of ndarray where pandas is not installed
            Columns ``population`` and ``individual``, with a row for each row of X; NaN where the
            response is missing. For a list of clients, a tuple of tables.

        Raises
        ------
        NotFittedError
            Before ``fit``.
        TypeError, ValueError
            As in ``predict``.

        References
        ----------
        .. [1] A. C. Hooker, C. E. Staatz and M. O. Karlsson, "Conditional weighted residuals
           (CWRES): a model diagnostic for the FOCE method", Pharmaceutical Research 24, 2007.
        """
        check_is_fitted(self)

        def answer(table: SubjectTable) -> Any:
            population, subjects = table.population, table.subjects
            model = linearised(population, subjects, find_modes(population, subjects).z)
            factors = np.linalg.cholesky(model.covariance)
            whitened = np.linalg.solve(factors, model.population_residuals[:, :, None])[:, :, 0]
            variance = population.error.variance(model.predicted, population.squares[:, :, None])
            with np.errstate(all="ignore"):
                individual = model.residuals / np.sqrt(variance)
            columns = {"population": whitened, "individual": individual}
            return as_table(
                {
                    name: table.in_rows(np.where(subjects.observed, values.T, np.nan))
                    for name, values in columns.items()
                }
            )

        return self._by_client(X, answer)

    def simulate(self, X: Any, n_samples: int = 1, random_state: Seed = None) -> ByClient:
        """Simulate responses of new subjects with the regressors and covariates of X.

        Parameters
        ----------
        X : DataFrame or dict of array-likes, or a list of them
            Tables with the columns of the fit; the response is not needed.
        n_samples : int, default=1
            Number of data sets.
        random_state : int, RandomState instance or None, default=None
            Pass an int for reproducible results.

        Returns
        -------
        responses : ndarray of shape (n_samples, n_rows), or a tuple with one for each client

        Raises
        ------
        NotFittedError
            Before ``fit``.
        TypeError, ValueError
            As in ``predict``, and if ``n_samples`` is not an integer >= 1.
        """
        check_is_fitted(self)
        check_counts(n_samples=n_samples)
        rng = random_numbers(random_state)

        def answer(table: SubjectTable) -> FloatArray:
            population, subjects = table.population, table.subjects
            n, n_subjects = subjects.response.shape
            responses = np.empty((n_samples, len(table.records.order)))
            block = max(1, _BLOCK // (n * n_subjects))
            for first in range(0, n_samples, block):
                size = min(block, n_samples - first)
                z = rng.standard_normal((len(population.means), size, n_subjects))
                predicted = predict(population, subjects, population.gaussian(z))
                if population.error.is_on_logarithms:
                    with np.errstate(all="ignore"):
                        predicted = np.log(predicted)
                deviation = np.sqrt(population.error.variance(predicted, population.squares))
                drawn = predicted + deviation * rng.standard_normal(predicted.shape)
                drawn = table.on_response(drawn).transpose(1, 0, 2)
                responses[first : first + size] = table.in_rows(drawn)
            return responses

        return self._by_client(X, answer)

    def summary(self) -> Any:
        """Table of all estimates.

        Returns
        -------
        table : DataFrame, or dict of ndarray where pandas is not installed
            A row for each estimate: ``name``, ``estimate``, ``rse_percent``, the standard error in
            per cent of the estimate; and for parameters with random effects ``cv_percent``, the
            variability between subjects as a coefficient of variation, and ``shrinkage_percent``.
            What does not apply is NaN.

        Raises
        ------
        NotFittedError
            Before ``fit``.
        """
        check_is_fitted(self)
        design, theta = self._design, self._theta
        names, values = names_of(design), values_of(design, design.layout.join(*theta))
        errors = np.array([self.standard_errors_[name] for name in names])
        p = len(design.names)
        of_subjects = np.full((2, len(names)), np.nan)
        of_subjects[0, :p] = variability_of(design, theta)
        of_subjects[1, :p] = [100 * self.shrinkage_[name] for name in design.names]
        with np.errstate(divide="ignore", invalid="ignore"):
            relative = 100 * errors / np.abs(values)
        return as_table(
            {
                "name": np.array(names),
                "estimate": values,
                "rse_percent": relative,
                "cv_percent": of_subjects[0],
                "shrinkage_percent": of_subjects[1],
            }
        )

    def _by_client(self, X: Any, answer: Callable[[SubjectTable], Any]) -> Any:
        """Apply a function to the subjects of one table, or of each table of a list."""

        def of_table(table: Any) -> Any:
            return answer(self._table(table))

        return of_table(X) if is_long_table(X) else each_table(_as_list(X), of_table)

    def _table(self, X: Any) -> SubjectTable:
        return read_subjects(X, self._design, self._theta, self._n_nodes)

    def _sum_of_subjects(self, X: Any) -> tuple[float, int]:
        """Total log-likelihood of the subjects with a response, and their number."""
        check_is_fitted(self)

        def answer(table: SubjectTable) -> tuple[float, int]:
            counted = table.subjects.observed.any(axis=0)
            return float(table.log_likelihoods()[counted].sum()), int(counted.sum())

        sums = self._by_client(X, answer)
        pairs = [sums] if is_long_table(X) else sums
        n_subjects = sum(n for _, n in pairs)
        if not n_subjects:
            raise ValueError(
                f"Expected responses in column {self._design.response!r}, got none. Give a table "
                "with measurements."
            )
        return sum(value for value, _ in pairs), n_subjects


def _as_list(X: Any) -> list[Any]:
    """A list of tables; raise TypeError for what is neither a table nor a list."""
    if not isinstance(X, list | tuple):
        columns_of(X)  # says what is expected
    return list(X)
