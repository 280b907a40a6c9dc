"""Effects of clients: random effects ``u_i ~ N(0, 1 / penalty)``, such as the skill of observers.

In mixed models of counts by observers (Link and Sauer 2002, Ecology 83), effects are predicted by
their most likely values, which minimise the objective with ``penalty / 2 * Σ u_i²``. The penalty is
given, or estimated by Schall's algorithm (1991, Biometrika 78): restricted maximum likelihood for
Gaussian cells, and penalised quasi-likelihood (Breslow and Clayton 1993) for others.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from scipy.optimize import brentq

from ..._parameters import is_auto
from .covariates import CovariateData
from .joint_equations import trace_of_clients
from .main_effects import fit_effects, intercept_only
from .pooled import LEAST_PENALTY, Pooled


class Search(NamedTuple):
    """Settings of the search for the penalty, which begins at 1.

    Attributes
    ----------
    tolerance : float
        Of its logarithm.
    factor : float
        Between the penalties that are tried until one is too large, or too small.
    largest : float
        Largest penalty, and inverse of the smallest.
    """

    tolerance: float = 1e-6
    factor: float = 10.0
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
    block C of the inverse Hessian; the estimate is where ``τ = d / Σ u_i²``. Repeated, this step
    converges slowly where clients hardly differ, so that a root is looked for in log τ.
    """
    n_clients = covariates.known.n_clients
    no_low_rank, effects = np.zeros(len(pooled.support.counts)), intercept_only(pooled).effects

    def log_step(log_penalty: float) -> float:
        nonlocal effects
        penalty = float(np.exp(log_penalty))
        own = _with_penalty(covariates, penalty)
        given = pooled._replace(covariates=own)
        effects, theta, _ = fit_effects(given, no_low_rank, effects)
        weights = pooled.support.counts * pooled.family.variance(theta)
        degrees = n_clients - penalty * trace_of_clients(given, own, weights)
        squares = float(effects.coefficients[-n_clients:] @ effects.coefficients[-n_clients:])
        tiny = np.finfo(float).tiny
        return float(np.log(max(degrees, tiny) / max(squares, tiny))) - log_penalty

    direction = np.sign(log_step(0.0))
    before, after = 0.0, direction * np.log(_SEARCH.factor)
    while direction * log_step(after) > 0:
        if abs(after) >= np.log(_SEARCH.largest) - _SEARCH.tolerance:
            return _with_penalty(covariates, float(np.exp(after)))
        before, after = after, after + direction * np.log(_SEARCH.factor)
    root = brentq(log_step, before, after, xtol=_SEARCH.tolerance)
    return _with_penalty(covariates, float(np.exp(root)))
