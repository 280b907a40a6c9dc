"""Size of negative binomial counts by maximum likelihood, around effects alone.

The effects and the size k are improved in turn, as by MASS::glm.nb (Venables and Ripley 2002,
"Modern applied statistics with S", section 7.4): the server fits the effects for a size, and
clients send the derivatives of their log-likelihood by the size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import digamma, polygamma

from ..._typing import FloatArray
from .families import LARGEST_SIZE, POISSON, negative_binomial


class Search(NamedTuple):
    """Settings of Newton's method for the logarithm of the size.

    Attributes
    ----------
    tolerance : float
        It stops when a step is smaller.
    largest_step : float
    max_iter : int
    smallest : float
        Smallest size.
    """

    tolerance: float = 1e-8
    largest_step: float = 2.0
    max_iter: int = 100
    smallest: float = 1e-6


_SEARCH = Search()


def size_log_likelihood(
    sums: FloatArray, efforts: FloatArray, theta: FloatArray, size: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Terms of ``log ρ`` less Poisson's, and two derivatives of the log-likelihood by the size.

    For sums of cells with numbers of observations (or efforts) N, whose means are ``N μ`` and
    sizes ``N k``.
    """
    log_effort = np.log(efforts)
    measures = negative_binomial(size).log_base_measure(sums, log_effort)
    measures = measures - POISSON.log_base_measure(sums, log_effort)
    means, sizes = POISSON.mean(theta), efforts * size
    share = means / (size * (size + means))
    slopes = efforts * (digamma(sums + sizes) - digamma(sizes) - np.log1p(means / size))
    slopes += (sums + sizes) * share - sums / size
    curvatures = efforts**2 * (polygamma(1, sums + sizes) - polygamma(1, sizes))
    curvatures += sums / size**2 + 2 * efforts * share
    curvatures -= (sums + sizes) * share * (2 * size + means) / (size * (size + means))
    return measures, slopes, curvatures


def most_likely_size(
    derivatives: Callable[[float], tuple[float, float]], effort: float = 1.0
) -> float:
    """Size where the first of two derivatives is 0, between 1e-6 and 1e6 for this effort.

    ``derivatives`` fits everything else for a size; this has little influence on the size, so
    that steps are almost Newton's.
    """
    log_size = 0.0
    for _ in range(_SEARCH.max_iter):
        size = float(np.exp(log_size)) / effort
        slope, curvature = derivatives(size)
        slope, curvature = size * slope, size**2 * curvature + size * slope  # by log k
        limit = _SEARCH.largest_step
        # Not Newton's step where the log-likelihood is not concave.
        step = -slope / curvature if curvature < 0 else limit * np.sign(slope)
        after = log_size + float(np.clip(step, -limit, limit))
        after = float(np.clip(after, np.log(_SEARCH.smallest), np.log(LARGEST_SIZE)))
        change, log_size = abs(after - log_size), after
        if change <= _SEARCH.tolerance:
            break
    return float(np.exp(log_size)) / effort
