"""Exponential families of a single cell: ``log p(y; θ) = y θ - ψ(θ) + log ρ(y)``, in nats.

θ is the natural parameter; the mean of y is ψ'(θ) and its variance ψ''(θ). Likelihoods include all
constants. All functions work elementwise on arrays and accept any float without a warning: overflow
gives inf, and NaN stays NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy.special import betaln, expit, gammaln, log_expit, logit

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
    it, so that Newton steps can divide by it), ``log_base_measure`` log ρ(y) given the log effort,
    ``log_normalizer`` its part that does not depend on y or its unit, and ``link`` the inverse of
    ψ'. ``size`` is the k of negative binomial counts.
    ``max_variance`` is the largest ψ'' (None if unbounded), and ``log_variance_slope`` the largest
    |third derivative| / ψ'', which bounds the relative change of curvature.
    """

    name: FamilyName
    domain: str
    log_partition: _Elementwise
    mean: _Elementwise
    variance: _Elementwise
    log_base_measure: Callable[..., Any]
    log_normalizer: float
    link: _Elementwise
    is_valid: Callable[[FloatArray], BoolArray]
    max_variance: float | None
    log_variance_slope: float
    size: float = np.inf

    @property
    def is_of_counts(self) -> bool:
        """Whether observations are counts, with the log link."""
        return self.name in ("poisson", "negative_binomial")

    @property
    def merges_visits(self) -> bool:
        """Whether a fit may read several observations of a cell by a client as their mean."""
        return self.name != "negative_binomial"  # whose size also depends on each of them


_GAUSSIAN_LOG_NORMALIZER = -0.5 * float(np.log(2 * np.pi))


# Named functions instead of lambdas, because families are pickled for worker processes.


@np.errstate(over="ignore")
def _gaussian_log_partition(theta: FloatArray) -> FloatArray:
    return 0.5 * np.square(theta)


def _gaussian_variance(theta: FloatArray) -> FloatArray:
    return np.ones(np.shape(theta))


@np.errstate(over="ignore")
def _gaussian_log_base_measure(values: FloatArray, log_effort: Any = 0.0) -> FloatArray:
    return -0.5 * np.square(values) + _GAUSSIAN_LOG_NORMALIZER


def _bernoulli_log_partition(theta: FloatArray) -> FloatArray:
    return -log_expit(-theta)


def _bernoulli_variance(theta: FloatArray) -> FloatArray:
    # Not mean (1 - mean), which is 0 from θ = 37 on.
    return expit(theta) * expit(-theta)


def _bernoulli_log_base_measure(values: FloatArray, log_effort: Any = 0.0) -> FloatArray:
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


def _poisson_log_base_measure(values: FloatArray, log_effort: Any = 0.0) -> FloatArray:
    return -gammaln(values + 1) + values * log_effort


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


LARGEST_SIZE = 1e6
"""Largest size of negative binomial counts. Beyond it, they differ from Poisson counts by less than
rounding."""


def negative_binomial(size: float) -> Family:
    """Count with log-mean θ and variance ``μ + μ² / size``, whose size k is given.

    Domain: 0, 1, 2, ... Link: log. This is not the natural parameter: the likelihood is that of
    :func:`working_family`. With the effort e, mean and size are ``e μ`` and ``e k``, those of the
    sum of e independent counts.
    """
    return POISSON._replace(
        name="negative_binomial",
        variance=partial(_negative_binomial_variance, size=size),
        log_base_measure=partial(_negative_binomial_log_base_measure, size=size),
        size=size,
    )


@np.errstate(over="ignore")
def _negative_binomial_variance(theta: FloatArray, size: float) -> FloatArray:
    means = _poisson_mean(theta)
    return means + np.square(means) / size


def _negative_binomial_log_base_measure(
    values: FloatArray, log_effort: Any = 0.0, *, size: float
) -> FloatArray:
    """``log Γ(y + e k) / (Γ(e k) y!) - y log k``; Poisson's for an infinite size."""
    if size == np.inf:
        return _poisson_log_base_measure(values, log_effort)
    sizes = size * np.exp(log_effort)
    return -betaln(values + 1, sizes) - np.log(values + sizes) - values * np.log(size)


def working_family(family: Family) -> Family:
    """Family of the cells that fits read in place of the observed ones, see ``working_cells``.

    For a size k, ``log p(y; θ) = y θ - (y + k) log(1 + exp(θ) / k) + log ρ(y)`` is the likelihood
    of y successes in y + k trials with the log-odds ``θ - log k``. It is convex in θ, and its
    slope is ``(y - μ) / (1 + μ / k)``.
    """
    if family.name != "negative_binomial":
        return family
    shift = float(np.log(family.size))
    return family._replace(
        log_partition=partial(_shifted, BERNOULLI.log_partition, shift=-shift),
        mean=partial(_shifted, BERNOULLI.mean, shift=-shift),
        variance=partial(_shifted, BERNOULLI.variance, shift=-shift),
        link=partial(_shifted_link, shift=shift),
    )


def _shifted(function: _Elementwise, theta: FloatArray, shift: float) -> FloatArray:
    shifted: FloatArray = function(theta + shift)
    return shifted


@np.errstate(divide="ignore")
def _shifted_link(shares: FloatArray, shift: float) -> FloatArray:
    return logit(shares) + shift


FAMILIES = {family.name: family for family in (GAUSSIAN, BERNOULLI, POISSON)}
"""The families without a size, by name."""


def family_of(name: FamilyName, size: float = np.inf) -> Family:
    """Family of a name; ``size`` is that of negative binomial counts."""
    return negative_binomial(size) if name == "negative_binomial" else FAMILIES[name]


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
