"""Indices and overall slopes of totals, with standard errors by the delta method."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.stats import norm

from .._typing import FloatArray


class Trend(NamedTuple):
    """Overall slope of the logarithms of totals over time.

    Parameters
    ----------
    slope, slope_error : float
        Additive slope, per unit of time (a year if the columns are dates), and its standard error.
    multiplicative, multiplicative_error : float
        ``exp(slope)``: 1.05 is a growth by 5 % a year; and its standard error.
    low, high : float
        Confidence limits of ``multiplicative``.
    meaning : str
        TRIM's words: "strong increase" or "moderate increase" (significant, by more than 5 % a year
        or not), "stable", "uncertain", "moderate decline" or "steep decline".
    """

    slope: float
    slope_error: float
    multiplicative: float
    multiplicative_error: float
    low: float
    high: float
    meaning: str


# Change per year, as a factor, that is called strong or steep.
_STRONG = 0.05


def index_of(
    totals: FloatArray, covariance: FloatArray, base: int
) -> tuple[FloatArray, FloatArray]:
    """Totals divided by one of them, and standard errors; NaN of those that are unknown."""
    known = np.flatnonzero(~np.isnan(totals))
    errors = np.full(len(totals), np.nan)
    errors[known] = _errors_of_ratios(
        totals[known], covariance[np.ix_(known, known)], int(np.searchsorted(known, base))
    )
    return totals / totals[base], errors


def _errors_of_ratios(totals: FloatArray, covariance: FloatArray, base: int) -> FloatArray:
    gradient = np.diag(np.full(len(totals), 1 / totals[base]))
    gradient[:, base] -= totals / totals[base] ** 2
    return standard_errors(gradient @ covariance @ gradient.T)


def overall_trend(
    totals: FloatArray, covariance: FloatArray, times: FloatArray, interval: float
) -> Trend:
    """Slope of the regression of log totals on times, with equal weights.

    The confidence limits are ``multiplicative ± z multiplicative_error``, as in TRIM's
    classification of trends.
    """
    centred = times - times.mean()
    weights = centred / (centred @ centred)
    slope = float(weights @ np.log(totals))
    gradient = weights / totals
    error = float(np.sqrt(max(gradient @ covariance @ gradient, 0.0)))
    factor = float(np.exp(slope))
    half_width = normal_quantile(interval) * factor * error
    low, high = factor - half_width, factor + half_width
    return Trend(slope, error, factor, factor * error, low, high, meaning_of(low, high))


def meaning_of(low: float, high: float) -> str:
    """TRIM's words for the confidence limits of a multiplicative slope per year."""
    if low > 1:
        return "strong increase" if low > 1 + _STRONG else "moderate increase"
    if high < 1:
        return "steep decline" if high < 1 - _STRONG else "moderate decline"
    return "stable" if low > 1 - _STRONG and high < 1 + _STRONG else "uncertain"


def normal_quantile(interval: float) -> float:
    """Half width of a central interval of the standard normal distribution."""
    return float(norm.ppf(0.5 + interval / 2))


def limits(
    values: FloatArray, errors: FloatArray, interval: float, *, positive: bool
) -> tuple[FloatArray, FloatArray]:
    """Confidence limits; of positive values those of a log-normal distribution."""
    z = normal_quantile(interval)
    if not positive:
        return values - z * errors, values + z * errors
    ratio = np.divide(errors, values, out=np.zeros(len(values)), where=values > 0)
    return values * np.exp(-z * ratio), values * np.exp(z * ratio)


def standard_errors(covariance: FloatArray) -> FloatArray:
    """Roots of the variances."""
    return np.sqrt(np.maximum(np.diag(covariance), 0.0))
