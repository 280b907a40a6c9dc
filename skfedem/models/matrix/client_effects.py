"""Effects of clients: random effects ``u_i ~ N(0, 1 / penalty)``, such as the skill of observers.

In mixed models of counts by observers (Link and Sauer 2002, Ecology 83), effects are predicted by
their most likely values, which minimise the objective with ``penalty / 2 * Σ u_i²``. The penalty is
given, or estimated by Schall's algorithm (1991, Biometrika 78): restricted maximum likelihood for
Gaussian cells, and penalised quasi-likelihood (Breslow and Clayton 1993) for others.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from ..._parameters import is_auto
from .covariates import CovariateData
from .joint_equations import trace_of_clients
from .main_effects import fit_effects, intercept_only
from .pooled import LEAST_PENALTY, Pooled


class Search(NamedTuple):
    """Settings of Schall's algorithm.

    Attributes
    ----------
    tolerance : float
        It stops when the penalty changes by a smaller share.
    max_iter : int
    smallest, largest : float
        Range of the penalty.
    """

    tolerance: float = 1e-6
    max_iter: int = 200
    smallest: float = 1e-6
    largest: float = 1e6


_SEARCH = Search()


def with_client_penalty(pooled: Pooled, penalty: float | Literal["auto"] | None) -> Pooled:
    """Data with the penalty of client effects, if there are any, given or estimated."""
    covariates = pooled.covariates
    if covariates is None or not covariates.known.n_clients:
        return pooled
    if is_auto(penalty):
        return pooled._replace(covariates=_with_estimated_penalty(pooled, covariates))
    assert isinstance(penalty, (int, float))  # as there are effects
    return pooled._replace(covariates=_with_penalty(covariates, max(penalty, LEAST_PENALTY)))


def client_penalty(pooled: Pooled) -> float | None:
    """Penalty of client effects; None without effects."""
    if pooled.covariates is None or not pooled.covariates.known.n_clients:
        return None
    return float(pooled.covariates.penalties[-1])


def _with_penalty(covariates: CovariateData, penalty: float) -> CovariateData:
    penalties = covariates.penalties.copy()
    penalties[-covariates.known.n_clients :] = penalty
    return covariates._replace(penalties=penalties)


def _with_estimated_penalty(pooled: Pooled, covariates: CovariateData) -> CovariateData:
    """The penalty whose inverse is the variance of the effects, around effects alone.

    A fit with the penalty τ has ``d = n - τ tr C`` effective numbers of client effects, with their
    block C of the inverse Hessian, and the next τ is ``d / Σ u_i²``.
    """
    n_clients, penalty = covariates.known.n_clients, 1.0
    no_low_rank, effects = np.zeros(len(pooled.support.counts)), intercept_only(pooled).effects
    for _ in range(_SEARCH.max_iter):
        covariates = _with_penalty(covariates, penalty)
        pooled = pooled._replace(covariates=covariates)
        effects, theta, _ = fit_effects(pooled, no_low_rank, effects)
        weights = pooled.support.counts * pooled.family.variance(theta)
        degrees = n_clients - penalty * trace_of_clients(pooled, covariates, weights)
        squares = float(effects.coefficients[-n_clients:] @ effects.coefficients[-n_clients:])
        after = degrees / max(squares, np.finfo(float).tiny)
        after = float(np.clip(after, _SEARCH.smallest, _SEARCH.largest))
        if abs(after - penalty) <= _SEARCH.tolerance * penalty:
            break
        penalty = after
    return _with_penalty(covariates, penalty)
