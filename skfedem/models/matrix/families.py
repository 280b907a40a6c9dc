"""Exponential families of a single cell: ``log p(y; θ) = y θ - ψ(θ) + log ρ(y)``, in nats.

θ is the natural parameter; the mean of y is ψ'(θ) and its variance ψ''(θ). Likelihoods include all
constants. All functions work elementwise on arrays and accept any float without a warning: overflow
gives inf, and NaN stays NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit, gammaln, log_expit, logit

from ..._typing import BoolArray, FamilyName, FloatArray

MAX_LOG_MEAN = 30.0
"""Limit of Poisson log-means. Beyond a mean of exp(30), about 1e13, ψ is continued by its tangent,
so that no step of a solver overflows. Solvers report when they reach it."""

LARGEST_COUNT = 1e13
"""Largest Poisson observation, whose most likely mean is below the limit."""

# e^x - x - 1 < x² up to 1.79.
_WHOLE_STEP = 1.5


# Of an array, or of a single number.
_Elementwise = Callable[[Any], Any]


class Family(NamedTuple):
    """One exponential family, as functions of arrays.

    ``domain`` describes valid observations in error messages, and ``is_valid`` finds them.
    ``log_partition`` is ψ, ``mean`` ψ', ``variance`` ψ'' (at the limit of Poisson log-means beyond
    it, so that Newton steps can divide by it), ``log_base_measure`` log ρ(y), ``log_normalizer``
    its part that does not depend on y or its unit, and ``link`` the inverse of ψ'.
    ``max_variance`` is the largest ψ'' (None if unbounded), and ``log_variance_slope`` the largest
    |third derivative| / ψ'', which bounds the relative change of curvature.
    """

    name: FamilyName
    domain: str
    log_partition: _Elementwise
    mean: _Elementwise
    variance: _Elementwise
    log_base_measure: _Elementwise
    log_normalizer: float
    link: _Elementwise
    is_valid: Callable[[FloatArray], BoolArray]
    max_variance: float | None
    log_variance_slope: float


_GAUSSIAN_LOG_NORMALIZER = -0.5 * float(np.log(2 * np.pi))


# Named functions instead of lambdas, because families are pickled for worker processes.


@np.errstate(over="ignore")
def _gaussian_log_partition(theta: FloatArray) -> FloatArray:
    return 0.5 * np.square(theta)


def _gaussian_variance(theta: FloatArray) -> FloatArray:
    return np.ones(np.shape(theta))


@np.errstate(over="ignore")
def _gaussian_log_base_measure(values: FloatArray) -> FloatArray:
    return -0.5 * np.square(values) + _GAUSSIAN_LOG_NORMALIZER


def _bernoulli_log_partition(theta: FloatArray) -> FloatArray:
    return -log_expit(-theta)


def _bernoulli_variance(theta: FloatArray) -> FloatArray:
    # Not mean (1 - mean), which is 0 from θ = 37 on.
    return expit(theta) * expit(-theta)


def _bernoulli_log_base_measure(values: FloatArray) -> FloatArray:
    return np.zeros(np.shape(values))


def _is_zero_or_one(values: FloatArray) -> BoolArray:
    return (values == 0) | (values == 1)


@np.errstate(over="ignore")
def _poisson_log_partition(theta: FloatArray) -> FloatArray:
    means = _poisson_mean(theta)
    if np.all(theta <= MAX_LOG_MEAN):
        return means
    return means * (1 + np.maximum(theta - MAX_LOG_MEAN, 0))


def _poisson_mean(theta: FloatArray) -> FloatArray:
    capped = np.minimum(theta, MAX_LOG_MEAN)
    return np.exp(capped, out=capped if np.ndim(capped) else None)


def _poisson_log_base_measure(values: FloatArray) -> FloatArray:
    return -gammaln(values + 1)


@np.errstate(divide="ignore", invalid="ignore")
def _poisson_link(means: FloatArray) -> FloatArray:
    return np.log(means)


def _is_count(values: FloatArray) -> BoolArray:
    return (values >= 0) & (values == np.floor(values)) & (values <= LARGEST_COUNT)


GAUSSIAN = Family(
    name="gaussian",
    domain="finite numbers",
    log_partition=_gaussian_log_partition,
    mean=np.positive,
    variance=_gaussian_variance,
    log_base_measure=_gaussian_log_base_measure,
    log_normalizer=_GAUSSIAN_LOG_NORMALIZER,
    link=np.positive,
    is_valid=np.isfinite,
    max_variance=1.0,
    log_variance_slope=0.0,
)
"""Normal with mean θ and variance 1.

Domain: real numbers. Link: identity. ψ(θ) = θ²/2, log ρ(y) = -y²/2 - log(2π)/2.
"""


BERNOULLI = Family(
    name="bernoulli",
    domain="0 or 1",
    log_partition=_bernoulli_log_partition,
    mean=expit,
    variance=_bernoulli_variance,
    log_base_measure=_bernoulli_log_base_measure,
    log_normalizer=0.0,
    link=logit,
    is_valid=_is_zero_or_one,
    max_variance=0.25,
    log_variance_slope=1.0,
)
"""Presence with log-odds θ.

Domain: 0 and 1. Link: logit. ψ(θ) = log(1 + exp θ), log ρ(y) = 0.
"""


POISSON = Family(
    name="poisson",
    domain=f"non-negative integers up to {LARGEST_COUNT:g}",
    log_partition=_poisson_log_partition,
    mean=_poisson_mean,
    variance=_poisson_mean,
    log_base_measure=_poisson_log_base_measure,
    log_normalizer=0.0,
    link=_poisson_link,
    is_valid=_is_count,
    max_variance=None,
    log_variance_slope=1.0,
)
"""Count with log-mean θ.

Domain: 0, 1, 2, ... Link: log. ψ(θ) = exp θ up to ``MAX_LOG_MEAN``, log ρ(y) = -log y!.
"""


FAMILIES = {family.name: family for family in (GAUSSIAN, BERNOULLI, POISSON)}


def safe_share(family: Family, change: FloatArray) -> FloatArray:
    """Share of Newton's step that is guaranteed to decrease a convex objective of θ.

    The curvature only describes the objective locally: a whole step from far down the logistic
    curve may end so far up that there is no way back. If the slopes of log ψ'' are at most R and no
    θ would change by more than ``change`` s, a step that changes θ by ``log(1 + R s) / R``
    decreases the objective (Bach 2010, "Self-concordant analysis for logistic regression"). So does
    a whole step if ``e^x - x - 1 < x²`` with x = R s; near the optimum, it converges fast.
    """
    change = np.maximum(family.log_variance_slope * change, _WHOLE_STEP)
    return np.maximum(np.log1p(change), _WHOLE_STEP) / change
