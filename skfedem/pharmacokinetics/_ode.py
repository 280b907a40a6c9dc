"""Structural models given by ordinary differential equations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from .._parameters import check_counts, check_positive
from .._typing import BoolArray, FloatArray
from ._events import given_doses

Arrays = Mapping[str, FloatArray]
RightHandSide = Callable[[FloatArray, FloatArray, Arrays], FloatArray]

# Coefficients of Dormand and Prince's method of order 5(4), Table 2 of their paper, ...
_NODES = (0.0, 1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0)
_STAGES: tuple[tuple[float, ...], ...] = (
    (),
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
)
_WEIGHTS = (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84)
_ERRORS = (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)
# ... and Hairer's for dense output of order 4 (Hairer, Nørsett and Wanner, II.6; code DOPRI5).
_DENSE = (
    -12715105075 / 11282082432,
    0.0,
    87487479700 / 32700410799,
    -10690763975 / 1880347072,
    701980252875 / 199316789632,
    -1453857185 / 822651844,
    69997945 / 29380423,
)
# Bounds of the change of a step, and its safety factor.
_LEAST, _MOST, _SAFETY = 0.2, 5.0, 0.9


def ode_model(
    rhs: RightHandSide,
    *,
    n_states: int,
    output: Callable[[FloatArray, Arrays], FloatArray],
    dose_state: int = 0,
    rtol: float = 1e-6,
    atol: float = 1e-8,
    max_steps: int = 2000,
) -> OdeModel:
    """Structural model given by an ordinary differential equation.

    All states are 0 at first. A dose is added to one of them at its time, or an infusion at its
    rate. The equation is integrated by Dormand and Prince's method of order 5 [1]_ with dense
    output [2]_. All subjects and parameters are integrated together, each with a step size of its
    own: the results for a subject do not depend on the others, to the bit.

    Parameters
    ----------
    rhs : callable
        ``rhs(time, states, parameters)``, the derivatives of the states. ``states`` has shape
        (n_states, ...), and so have the derivatives; ``time`` and the values of the dict
        ``parameters`` broadcast with ``states[0]``. It has to work elementwise.
    n_states : int
        Number of states.
    output : callable
        ``output(states, parameters)``, the prediction; ``states`` has shape (n_states,
        n_observations, ...) here.
    dose_state : int, default=0
        State that doses are added to.
    rtol : float, default=1e-6
        Relative tolerance for the error of a step: the root mean square over the states of
        ``error / (atol + rtol * |state|)`` is at most 1.
    atol : float, default=1e-8
        Absolute tolerance, in units of the states.
    max_steps : int, default=2000
        Maximum number of steps between two doses. Where more are needed, because the equation is
        stiff, the prediction is NaN.

    Returns
    -------
    model : callable
        ``model(parameters, regressors)``. The observations of a subject are along the first axis of
        the regressors, which are those of :mod:`skfedem.pharmacokinetics`.

    Raises
    ------
    TypeError, ValueError
        If a number is out of its range.

    References
    ----------
    .. [1] J. R. Dormand and P. J. Prince, "A family of embedded Runge-Kutta formulae", Journal of
       Computational and Applied Mathematics 6, 1980.
    .. [2] E. Hairer, S. P. Nørsett and G. Wanner, "Solving Ordinary Differential Equations I",
       2nd edition, Springer, 1993, section II.6.

    Examples
    --------
    Absorption by first order, and elimination that is saturated at high concentrations:

    >>> import numpy as np
    >>> from skfedem.pharmacokinetics import ode_model
    >>> def michaelis_menten(time, amounts, parameters):
    ...     absorbed = parameters["ka"] * amounts[0]
    ...     concentration = amounts[1] / parameters["V"]
    ...     eliminated = parameters["Vmax"] * concentration / (parameters["Km"] + concentration)
    ...     return np.stack([-absorbed, absorbed - eliminated])
    >>> def concentration(amounts, parameters):
    ...     return amounts[1] / parameters["V"]
    >>> model = ode_model(michaelis_menten, n_states=2, output=concentration)
    >>> parameters = {"ka": 1.5, "V": 32.0, "Vmax": 30.0, "Km": 5.0}
    >>> model(parameters, {"time": np.array([0.0, 1.0, 10.0]), "dose": 320.0}).round(3)
    array([0.   , 7.346, 4.728])
    """
    check_counts(n_states=n_states, max_steps=max_steps)
    check_positive(rtol=rtol, atol=atol)
    if not 0 <= dose_state < n_states:
        raise ValueError(
            f"Expected dose_state from 0 to {n_states - 1}, got {dose_state}. Name a state."
        )
    return OdeModel(rhs, n_states, output, dose_state, rtol, atol, max_steps)


class OdeModel(NamedTuple):
    """Structural model that :func:`ode_model` returns; call it like a function."""

    rhs: RightHandSide
    n_states: int
    output: Callable[[FloatArray, Arrays], FloatArray]
    dose_state: int
    rtol: float
    atol: float
    max_steps: int

    def __call__(self, parameters: Arrays, regressors: Arrays) -> FloatArray:
        """Predictions at the times of the regressors."""
        parameters = {name: np.asarray(value, float) for name, value in parameters.items()}
        regressors = {name: np.asarray(value, float) for name, value in regressors.items()}
        of_regressors = np.broadcast_shapes(*(value.shape for value in regressors.values()))
        of_parameters = np.broadcast_shapes(*(value.shape for value in parameters.values()))
        shape = np.broadcast_shapes(of_regressors[1:], of_parameters)
        times = np.broadcast_to(regressors["time"], (of_regressors[0], *shape))
        events = _events(regressors, shape)
        with np.errstate(all="ignore"):
            states = self._integrated(parameters, times, events, shape)
            return self.output(states, parameters)

    def _integrated(
        self, parameters: Arrays, times: FloatArray, events: _Events, shape: tuple[int, ...]
    ) -> FloatArray:
        """States at the times, of shape (n_states, n_times, ...)."""
        states = np.zeros((self.n_states, *shape))
        rate = np.zeros(shape)
        found = np.zeros((self.n_states, *times.shape))
        stops = np.concatenate([events.times[1:], times.max(axis=0, keepdims=True)])
        for start, stop, amount, change in zip(
            events.times, stops, events.amounts, events.rates, strict=True
        ):
            states = states.copy()
            states[self.dose_state] += amount
            rate = rate + change
            found = np.where(times == start, states[:, None], found)

            def slope(time: FloatArray, states: FloatArray, rate: FloatArray = rate) -> FloatArray:
                slope = np.array(self.rhs(time, states, parameters), dtype=float)
                slope[self.dose_state] += rate
                return slope

            states, found = self._segment(slope, states, found, times, start, stop)
        return found

    def _segment(
        self,
        slope: Callable[[FloatArray, FloatArray], FloatArray],
        states: FloatArray,
        found: FloatArray,
        times: FloatArray,
        now: FloatArray,
        stop: FloatArray,
    ) -> tuple[FloatArray, FloatArray]:
        """States at the end of a segment without doses, and at the times in it."""
        first = slope(now, states)
        step = self._first_step(states, first)
        for _ in range(self.max_steps):
            running = now < stop
            if not running.any():
                return states, found
            is_last = step >= stop - now
            size = np.where(running, np.where(is_last, stop - now, step), 0.0)
            proposal, slopes, error = self._step(slope, now, states, first, size)
            good = running & (error <= 1)
            then = np.where(good, np.where(is_last, stop, now + size), now)
            passed = good & (now < times) & (times <= then)
            if passed.any():
                share = np.where(passed, (times - now) / np.where(size > 0, size, 1.0), 0.0)
                inside = _dense(states, proposal, slopes, size, share)
                found = np.where(passed, inside, found)
            factor = np.clip(_SAFETY * np.maximum(error, 1e-10) ** -0.2, _LEAST, _MOST)
            # NaN, such as that of an overflow, asks for a shorter step.
            factor = np.where(np.isfinite(error), factor, _LEAST)
            # A step that was cut short by the end says little about the next one.
            step = np.where(running & ~(good & is_last), size * factor, step)
            states = np.where(good, proposal, states)
            first = np.where(good, slopes[-1], first)
            now = then
        failed = now < stop
        late = (times > now) & failed
        return np.where(failed, np.nan, states), np.where(late, np.nan, found)

    def _step(
        self,
        slope: Callable[[FloatArray, FloatArray], FloatArray],
        now: FloatArray,
        states: FloatArray,
        first: FloatArray,
        size: FloatArray,
    ) -> tuple[FloatArray, list[FloatArray], FloatArray]:
        """States after a step, the seven slopes, and the error relative to the tolerances."""
        slopes = [first]
        for node, stage in zip(_NODES[1:], _STAGES[1:], strict=True):
            slopes.append(slope(now + node * size, states + size * _combined(stage, slopes)))
        proposal = states + size * _combined(_WEIGHTS, slopes)
        slopes.append(slope(now + size, proposal))
        scale = self.atol + self.rtol * np.maximum(np.abs(states), np.abs(proposal))
        errors = size * _combined(_ERRORS, slopes) / scale
        return proposal, slopes, _root_mean_square(errors)

    def _first_step(self, states: FloatArray, slope: FloatArray) -> FloatArray:
        """A hundredth of the time in which the states would change by their size."""
        scale = self.atol + self.rtol * np.abs(states)
        sizes, changes = _root_mean_square(states / scale), _root_mean_square(slope / scale)
        is_small = (sizes < 1e-5) | (changes < 1e-5)
        return np.where(is_small, 1e-6, 0.01 * sizes / np.where(is_small, 1.0, changes))


class _Events(NamedTuple):
    """Doses and ends of infusions of each row by time, each of shape (n_events, ...)."""

    times: FloatArray
    amounts: FloatArray
    rates: FloatArray


def _events(regressors: Arrays, shape: tuple[int, ...]) -> _Events:
    """Events of all doses, in order of time; before the first, nothing happens."""
    pieces = []
    for dose in given_doses(regressors):
        # The same for all observations of a subject.
        of_subject = dose.start, dose.amount, dose.duration
        time, amount, duration = (
            np.broadcast_to(value[0] if np.ndim(value) > len(shape) else value, shape)
            for value in of_subject
        )
        is_infusion = duration > 0
        rate = np.where(is_infusion, amount / np.where(is_infusion, duration, 1.0), 0.0)
        pieces.append((time, np.where(is_infusion, 0.0, amount), rate))
        if is_infusion.any():
            pieces.append((time + duration, np.zeros(shape), -rate))
    times, amounts, rates = (np.stack(values) for values in zip(*pieces, strict=True))
    order = np.argsort(times, axis=0, kind="stable")
    return _Events(*(np.take_along_axis(each, order, axis=0) for each in (times, amounts, rates)))


def _combined(weights: tuple[float, ...], slopes: list[FloatArray]) -> FloatArray:
    """Weighted sum of slopes."""
    total: Any = 0.0
    for weight, slope in zip(weights, slopes, strict=True):
        if weight:
            total = total + weight * slope
    return total


def _root_mean_square(values: FloatArray) -> FloatArray:
    """Over the states, one after the other: the same bits in any company."""
    total: Any = 0.0
    for value in values:
        total = total + value**2
    return np.sqrt(total / len(values))


def _dense(
    before: FloatArray,
    after: FloatArray,
    slopes: list[FloatArray],
    size: FloatArray,
    share: FloatArray,
) -> FloatArray:
    """States at shares of a step, of shape (n_states, n_times, ...)."""
    change = after - before
    bent = size * slopes[0] - change
    curved = change - size * slopes[-1] - bent
    last = size * _combined(_DENSE, slopes)
    parts: list[BoolArray | FloatArray] = [part[:, None] for part in (before, change, bent, curved)]
    inner = parts[3] + (1 - share) * last[:, None]
    return parts[0] + share * (parts[1] + (1 - share) * (parts[2] + share * inner))
