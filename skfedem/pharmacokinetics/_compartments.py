"""Closed forms of one and two compartments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from .._typing import FloatArray
from ._events import given_doses

Arrays = Mapping[str, FloatArray]

# Smallest difference of the two rate constants of elimination, relative to the larger.
_APART = 1e-7


def one_compartment_bolus(parameters: Arrays, regressors: Arrays) -> FloatArray:
    """Concentration in one compartment after intravenous bolus doses.

    ``dose / V * exp(-CL / V * time)``, chapter 1 of [1]_.

    Parameters
    ----------
    parameters : dict of ndarray
        ``V`` and ``CL``.
    regressors : dict of ndarray
        ``time`` and ``dose``, or repeated doses.

    Returns
    -------
    concentration : ndarray

    Raises
    ------
    KeyError
        If a parameter or a regressor is missing.

    References
    ----------
    .. [1] M. Gibaldi and D. Perrier, "Pharmacokinetics", 2nd edition, Marcel Dekker, 1982.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedem.pharmacokinetics import one_compartment_bolus
    >>> regressors = {"time": np.array([0.0, 10.0]), "dose": 100.0}
    >>> one_compartment_bolus({"V": 20.0, "CL": 2.0}, regressors).round(3)
    array([5.   , 1.839])
    """
    one = _one_compartment(parameters)
    return _superposed(regressors, lambda dose: one.infused(dose.time, 0.0), one.volume)


def one_compartment_infusion(parameters: Arrays, regressors: Arrays) -> FloatArray:
    """Concentration in one compartment after infusions at a constant rate.

    ``rate / CL * (1 - exp(-CL / V * time))`` during the infusion, which takes ``dose / rate``;
    exponential decay thereafter, chapter 1 of [1]_. A rate of 0 is a bolus.

    Parameters
    ----------
    parameters : dict of ndarray
        ``V`` and ``CL``.
    regressors : dict of ndarray
        ``time``, ``dose`` and ``rate``, or repeated doses.

    Returns
    -------
    concentration : ndarray

    Raises
    ------
    KeyError
        If a parameter or a regressor is missing.

    References
    ----------
    .. [1] M. Gibaldi and D. Perrier, "Pharmacokinetics", 2nd edition, Marcel Dekker, 1982.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedem.pharmacokinetics import one_compartment_infusion
    >>> regressors = {"time": np.array([0.0, 2.0, 10.0]), "dose": 100.0, "rate": 50.0}
    >>> one_compartment_infusion({"V": 20.0, "CL": 2.0}, regressors).round(3)
    array([0.   , 4.532, 2.036])
    """
    _check_rates(regressors)
    one = _one_compartment(parameters)
    return _superposed(regressors, lambda dose: one.infused(dose.time, dose.duration), one.volume)


def one_compartment_oral(parameters: Arrays, regressors: Arrays) -> FloatArray:
    """Concentration in one compartment after oral doses with first-order absorption.

    ``dose * ka / (V * (ka - k)) * (exp(-k * time) - exp(-ka * time))`` with ``k = CL / V``,
    chapter 1 of [1]_; its limit where ``ka = k``.

    Parameters
    ----------
    parameters : dict of ndarray
        ``ka``, ``V`` and ``CL``, maybe ``tlag``.
    regressors : dict of ndarray
        ``time`` and ``dose``, or repeated doses.

    Returns
    -------
    concentration : ndarray

    Raises
    ------
    KeyError
        If a parameter or a regressor is missing.

    References
    ----------
    .. [1] M. Gibaldi and D. Perrier, "Pharmacokinetics", 2nd edition, Marcel Dekker, 1982.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedem.pharmacokinetics import one_compartment_oral
    >>> regressors = {"time": np.array([0.0, 1.0, 10.0]), "dose": 320.0}
    >>> one_compartment_oral({"ka": 1.5, "V": 32.0, "CL": 2.8}, regressors).round(3)
    array([0.   , 7.36 , 4.427])
    """
    one, ka = _one_compartment(parameters), parameters["ka"]
    lag = parameters.get("tlag", 0.0)
    return _superposed(regressors, lambda dose: ka * one.absorbed(ka, dose.time - lag), one.volume)


def two_compartment_bolus(parameters: Arrays, regressors: Arrays) -> FloatArray:
    """Concentration in the first of two compartments after intravenous bolus doses.

    ``dose / V1 * (A * exp(-alpha * time) + B * exp(-beta * time))``, where alpha and beta are the
    roots of ``s² - (k10 + k12 + k21) s + k10 k21`` with ``k10 = CL / V1``, ``k12 = Q / V1`` and
    ``k21 = Q / V2``, ``B = (k21 - beta) / (alpha - beta)`` and ``A = 1 - B``, chapter 2 of
    [1]_.

    Parameters
    ----------
    parameters : dict of ndarray
        ``V1``, ``CL``, ``Q`` and ``V2``.
    regressors : dict of ndarray
        ``time`` and ``dose``, or repeated doses.

    Returns
    -------
    concentration : ndarray

    Raises
    ------
    KeyError
        If a parameter or a regressor is missing.

    References
    ----------
    .. [1] M. Gibaldi and D. Perrier, "Pharmacokinetics", 2nd edition, Marcel Dekker, 1982.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedem.pharmacokinetics import two_compartment_bolus
    >>> parameters = {"V1": 20.0, "CL": 2.0, "Q": 4.0, "V2": 40.0}
    >>> regressors = {"time": np.array([0.0, 10.0]), "dose": 100.0}
    >>> two_compartment_bolus(parameters, regressors).round(3)
    array([5.   , 0.903])
    """
    two = _two_compartments(parameters)
    return _superposed(regressors, lambda dose: two.infused(dose.time, 0.0), two.volume)


def two_compartment_infusion(parameters: Arrays, regressors: Arrays) -> FloatArray:
    """Concentration in the first of two compartments after infusions at a constant rate.

    The integral of :func:`two_compartment_bolus` over the duration ``dose / rate``, times
    ``rate / dose``, chapter 2 of [1]_. A rate of 0 is a bolus.

    Parameters
    ----------
    parameters : dict of ndarray
        ``V1``, ``CL``, ``Q`` and ``V2``.
    regressors : dict of ndarray
        ``time``, ``dose`` and ``rate``, or repeated doses.

    Returns
    -------
    concentration : ndarray

    Raises
    ------
    KeyError
        If a parameter or a regressor is missing.

    References
    ----------
    .. [1] M. Gibaldi and D. Perrier, "Pharmacokinetics", 2nd edition, Marcel Dekker, 1982.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedem.pharmacokinetics import two_compartment_infusion
    >>> parameters = {"V1": 20.0, "CL": 2.0, "Q": 4.0, "V2": 40.0}
    >>> regressors = {"time": np.array([0.0, 10.0]), "dose": 100.0, "rate": 50.0}
    >>> two_compartment_infusion(parameters, regressors).round(3)
    array([0.   , 0.971])
    """
    _check_rates(regressors)
    two = _two_compartments(parameters)
    return _superposed(regressors, lambda dose: two.infused(dose.time, dose.duration), two.volume)


def two_compartment_oral(parameters: Arrays, regressors: Arrays) -> FloatArray:
    """Concentration in the first of two compartments after oral doses, absorbed by first order.

    The convolution of :func:`two_compartment_bolus` and ``ka * exp(-ka * time)``, chapter 2 of
    [1]_.

    Parameters
    ----------
    parameters : dict of ndarray
        ``ka``, ``V1``, ``CL``, ``Q`` and ``V2``, maybe ``tlag``.
    regressors : dict of ndarray
        ``time`` and ``dose``, or repeated doses.

    Returns
    -------
    concentration : ndarray

    Raises
    ------
    KeyError
        If a parameter or a regressor is missing.

    References
    ----------
    .. [1] M. Gibaldi and D. Perrier, "Pharmacokinetics", 2nd edition, Marcel Dekker, 1982.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedem.pharmacokinetics import two_compartment_oral
    >>> parameters = {"ka": 1.5, "V1": 20.0, "CL": 2.0, "Q": 4.0, "V2": 40.0}
    >>> regressors = {"time": np.array([0.0, 1.0, 10.0]), "dose": 100.0}
    >>> two_compartment_oral(parameters, regressors).round(3)
    array([0.   , 3.25 , 0.949])
    """
    two, ka = _two_compartments(parameters), parameters["ka"]
    lag = parameters.get("tlag", 0.0)
    return _superposed(regressors, lambda dose: ka * two.absorbed(ka, dose.time - lag), two.volume)


def _check_rates(regressors: Arrays) -> None:
    """Raise KeyError without rates, which would make a bolus of an infusion."""
    if "rate" not in regressors and "dose_rate_1" not in regressors:
        raise KeyError("rate")


def _superposed(
    regressors: Arrays, response: Callable[[Any], FloatArray], volume: FloatArray
) -> FloatArray:
    """Sum over the doses of their amounts times a response, divided by the volume."""
    total: Any = 0.0
    for dose in given_doses(regressors):
        total = total + dose.amount * response(dose)
    return total / volume


class _OneCompartment(NamedTuple):
    """Responses to a unit amount in one compartment."""

    volume: FloatArray
    k: FloatArray

    def infused(self, time: FloatArray, duration: FloatArray | float) -> FloatArray:
        """Amount left of a unit that is infused over a duration; 0 is a bolus."""
        return _mean_decay(self.k, time, duration)

    def absorbed(self, ka: FloatArray, time: FloatArray) -> FloatArray:
        """Amount left of a unit that is absorbed by first order, divided by ``ka``."""
        return _difference(ka, self.k, time)


class _TwoCompartments(NamedTuple):
    """Responses to a unit amount in the first of two compartments.

    That to a bolus is ``exp(-α t) + (k21 - β) (exp(-β t) - exp(-α t)) / (α - β)``.
    """

    volume: FloatArray
    alpha: FloatArray
    beta: FloatArray
    k21: FloatArray

    def infused(self, time: FloatArray, duration: FloatArray | float) -> FloatArray:
        """Amount left of a unit that is infused over a duration; 0 is a bolus."""
        fast, slow = (_mean_decay(k, time, duration) for k in (self.alpha, self.beta))
        return fast + (self.k21 - self.beta) * (slow - fast) / (self.alpha - self.beta)

    def absorbed(self, ka: FloatArray, time: FloatArray) -> FloatArray:
        """Amount left of a unit that is absorbed by first order, divided by ``ka``."""
        fast, slow = (_difference(ka, k, time) for k in (self.alpha, self.beta))
        return fast + (self.k21 - self.beta) * (slow - fast) / (self.alpha - self.beta)


def _one_compartment(parameters: Arrays) -> _OneCompartment:
    volume = parameters["V"]
    return _OneCompartment(volume, parameters["CL"] / volume)


def _two_compartments(parameters: Arrays) -> _TwoCompartments:
    volume, exchange = parameters["V1"], parameters["Q"]
    k10, k12, k21 = parameters["CL"] / volume, exchange / volume, exchange / parameters["V2"]
    apart = np.sqrt((k10 + k12 - k21) ** 2 + 4 * k12 * k21)
    alpha = (k10 + k12 + k21 + apart) / 2
    beta = np.minimum(k10 * k21 / alpha, (1 - _APART) * alpha)
    return _TwoCompartments(volume, alpha, beta, k21)


def _difference(a: FloatArray, b: FloatArray, time: FloatArray) -> FloatArray:
    """``(exp(-b t) - exp(-a t)) / (a - b)``, its limit where a = b, and 0 before t = 0."""
    time = np.maximum(time, 0.0)
    return time * np.exp(-np.minimum(a, b) * time) * _mean_of_exp(np.abs(a - b) * time)


def _mean_decay(k: FloatArray, time: FloatArray, duration: FloatArray | float) -> FloatArray:
    """Mean of ``exp(-k (t - s))`` over s from 0 to a duration, counted as 0 for s > t."""
    during = np.clip(time, 0.0, duration)
    after = np.maximum(time - duration, 0.0)
    share = np.where(time >= 0, 1.0, 0.0)
    share = np.where(during < duration, during / np.where(duration > 0, duration, 1.0), share)
    return share * _mean_of_exp(k * during) * np.exp(-k * after)


def _mean_of_exp(x: FloatArray) -> FloatArray:
    """Mean of exp(-s) over s from 0 to x, ``(1 - exp(-x)) / x``."""
    positive = np.where(x > 0, x, 1.0)
    return np.where(x > 0, -np.expm1(-positive) / positive, 1.0)
