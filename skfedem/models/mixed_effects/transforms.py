"""Transforms h of the parameters of a subject: ψ = h(φ), where φ is Gaussian.

=====================  ===========================================  ==============
name                   ψ = h(φ)                                     domain of ψ
=====================  ===========================================  ==============
identity               φ                                            real numbers
log                    exp(φ)                                       ψ > 0
("logit", low, high)   low + (high - low) / (1 + exp(-φ))           low < ψ < high
probit                 Φ(φ), the normal distribution function       0 < ψ < 1
=====================  ===========================================  ==============
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit, logit, ndtr, ndtri

from ..._error_messages import repr_of
from ..._typing import FloatArray

_Function = Callable[[Any], Any]


class Transform(NamedTuple):
    """A transform, elementwise.

    Attributes
    ----------
    name : str
    to_subject : callable
        ψ = h(φ).
    to_gaussian : callable
        φ = h⁻¹(ψ).
    slope : callable
        dψ/dφ as a function of φ.
    low, high : float
        Bounds of ψ, which are not attained.
    """

    name: str
    to_subject: _Function
    to_gaussian: _Function
    slope: _Function
    low: float = -inf
    high: float = inf


def _normal_density(phi: FloatArray) -> FloatArray:
    return np.exp(-0.5 * np.square(phi)) / np.sqrt(2 * np.pi)


def _itself(phi: FloatArray) -> FloatArray:
    return phi


IDENTITY = Transform("identity", _itself, _itself, np.ones_like)
LOG = Transform("log", np.exp, np.log, np.exp, low=0.0)
PROBIT = Transform("probit", ndtr, ndtri, _normal_density, 0.0, 1.0)
_NAMED = {"identity": IDENTITY, "log": LOG, "probit": PROBIT}
_EXPECTED = 'to be "identity", "log", "probit" or ("logit", low, high)'


def logit_between(low: float, high: float) -> Transform:
    """The logit of the share of the way from ``low`` to ``high``."""
    return Transform(
        "logit",
        to_subject=partial(_bounded, low, high),
        to_gaussian=partial(_log_odds, low, high),
        slope=partial(_bounded_slope, low, high),
        low=low,
        high=high,
    )


def _bounded(low: float, high: float, phi: FloatArray) -> FloatArray:
    return low + (high - low) * expit(phi)


def _log_odds(low: float, high: float, psi: FloatArray) -> FloatArray:
    return logit((psi - low) / (high - low))


def _bounded_slope(low: float, high: float, phi: FloatArray) -> FloatArray:
    return (high - low) * expit(phi) * expit(-phi)


def transform_of(given: object, parameter: str) -> Transform:
    """Transform of a parameter, as users give it; raise ValueError if it is none."""
    if isinstance(given, str) and given in _NAMED:
        return _NAMED[given]
    if isinstance(given, tuple | list) and len(given) == 3 and given[0] == "logit":
        low, high = given[1:]
        numbers = all(isinstance(bound, int | float | np.number) for bound in (low, high))
        if numbers and -inf < low < high < inf:
            return logit_between(float(low), float(high))
    raise ValueError(
        f"Expected transform of {parameter!r} {_EXPECTED}, got {repr_of(given)}. Give one of these."
    )
