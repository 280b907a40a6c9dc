"""Closed forms against scipy's integration of the differential equations."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.integrate import solve_ivp

from skfedem import pharmacokinetics

PARAMETERS = {"ka": 1.3, "V": 20.0, "V1": 20.0, "CL": 3.0, "Q": 5.0, "V2": 45.0, "tlag": 0.4}
TIMES = np.array([0.0, 0.3, 0.5, 1.0, 2.5, 4.0, 7.9, 8.0, 11.0, 24.0])
ONCE = {"time": TIMES, "dose": 100.0, "rate": 40.0}
THRICE = {
    "time": TIMES,
    "dose_1": 100.0,
    "dose_time_1": 0.0,
    "dose_rate_1": 40.0,
    "dose_2": 50.0,
    "dose_time_2": 3.1,
    "dose_rate_2": 0.0,
    "dose_3": 70.0,
    "dose_time_3": 3.7,
    "dose_rate_3": 25.0,
}
NAMES = [name for name in pharmacokinetics.__all__ if "compartment" in name]


def by_integration(name, parameters, regressors):
    """Concentrations by LSODA, segment by segment between doses, their lags and infusion ends."""
    is_oral, n_states = name.endswith("oral"), 3
    volume = parameters["V" if name.startswith("one") else "V1"]
    lag = parameters.get("tlag", 0.0) if is_oral else 0.0
    numbers = [""] if "dose" in regressors else ["_1", "_2", "_3"]
    events = []
    for number in numbers:
        amount, start = regressors["dose" + number], regressors.get("dose_time" + number, 0.0) + lag
        rate = regressors["rate" if number == "" else "dose_rate" + number]
        if rate and name.endswith("infusion"):
            events += [(start, 0.0, rate), (start + amount / rate, 0.0, -rate)]
        else:
            events.append((start, amount, 0.0))
    exchange = parameters["Q"] if name.startswith("two") else 0.0

    def rhs(time, amounts, rate):
        absorbed = parameters["ka"] * amounts[0]
        across = exchange * (amounts[1] / volume - amounts[2] / parameters["V2"])
        eliminated = parameters["CL"] * amounts[1] / volume
        return [-absorbed, absorbed + rate - eliminated - across, across]

    amounts, rate, found = np.zeros(n_states), 0.0, np.zeros(len(TIMES))
    events.sort()
    for k, (start, amount, change) in enumerate(events):
        stop = events[k + 1][0] if k + 1 < len(events) else max(TIMES[-1], start)
        amounts[0 if is_oral else 1] += amount
        rate += change
        found[start == TIMES] = amounts[1]  # what is given at this time is included
        own = (start <= TIMES) & (stop >= TIMES)
        points = np.unique(np.concatenate([[start, stop], TIMES[own]]))
        if stop > start:
            solution = solve_ivp(
                rhs, (start, stop), amounts, "LSODA", points, args=(rate,), rtol=1e-10, atol=1e-12
            )
            found[own] = solution.y[1][np.searchsorted(points, TIMES[own])]
            amounts = solution.y[:, -1].copy()
    return found / volume


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("regressors", [ONCE, THRICE], ids=["once", "thrice"])
@pytest.mark.parametrize("changes", [{}, {"ka": 60.0}, {"V2": 2.0, "Q": 0.1}, {"CL": 1e-6}])
def test_closed_forms_solve_their_equations(name, regressors, changes):
    parameters = {**PARAMETERS, **changes}
    got = getattr(pharmacokinetics, name)(parameters, regressors)
    # The tolerance of the integration, on concentrations of order 1.
    assert_allclose(got, by_integration(name, parameters, regressors), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_equal_rate_constants_are_a_limit_without_a_jump(name):
    model = getattr(pharmacokinetics, name)
    k = PARAMETERS["CL"] / PARAMETERS["V"]
    if name.startswith("two"):
        # The slow and the fast rate constant of elimination.
        matrix = np.array([[-(k + 0.25), 5 / 45], [0.25, -5 / 45]])
        k = -np.linalg.eigvals(matrix)[0]
    at = model({**PARAMETERS, "ka": k}, ONCE)
    for relative in (1e-4, 1e-7, 1e-10, 1e-13):
        near = model({**PARAMETERS, "ka": k * (1 + relative)}, ONCE)
        # The derivative is of order 10, and rounding of order 1e-14.
        assert_allclose(near, at, rtol=0, atol=20 * relative + 1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_extreme_parameters_give_finite_concentrations(name):
    model = getattr(pharmacokinetics, name)
    for parameter in ("ka", "V", "V1", "CL", "Q", "V2"):
        for value in (1e-12, 1e-6, 1e6, 1e12):
            concentration = model({**PARAMETERS, parameter: value}, THRICE)
            assert np.isfinite(concentration).all()
            assert concentration.min() >= -1e-6 * concentration.max()


def test_fast_absorption_is_a_bolus():
    oral = pharmacokinetics.one_compartment_oral({**PARAMETERS, "ka": 1e9, "tlag": 0.0}, ONCE)
    bolus = pharmacokinetics.one_compartment_bolus(PARAMETERS, ONCE)
    assert_allclose(oral[1:], bolus[1:], rtol=1e-8)
    assert oral[0] == 0.0


def test_nothing_is_there_before_a_dose():
    later = {"time": TIMES, "dose_1": 100.0, "dose_time_1": 2.0, "dose_rate_1": 50.0}
    for name in NAMES:
        concentration = getattr(pharmacokinetics, name)({**PARAMETERS, "tlag": 0.0}, later)
        assert_array_equal(concentration[TIMES < 2.0], 0.0)
        assert concentration[TIMES > 2.0].min() > 0


def test_arrays_broadcast_and_each_element_is_computed_for_itself():
    generator = np.random.default_rng(0)
    shapes = {name: generator.uniform(0.5, 2, (4, 3)) * PARAMETERS[name] for name in PARAMETERS}
    regressors = {"time": TIMES[:, None, None], "dose": np.array([50.0, 100.0, 200.0])}
    regressors["rate"] = np.array([0.0, 20.0, 40.0])
    for name in NAMES:
        model = getattr(pharmacokinetics, name)
        together = model(shapes, regressors)
        assert together.shape == (len(TIMES), 4, 3)
        alone = model(
            {name: values[1, 2] for name, values in shapes.items()},
            {"time": TIMES, "dose": 200.0, "rate": 40.0},
        )
        assert_allclose(together[:, 1, 2], alone, rtol=1e-14)


def test_what_a_model_lacks_is_named():
    with pytest.raises(KeyError, match="dose"):
        pharmacokinetics.one_compartment_bolus(PARAMETERS, {"time": TIMES})
    for name in ("one_compartment_infusion", "two_compartment_infusion"):
        with pytest.raises(KeyError, match="rate"):
            getattr(pharmacokinetics, name)(PARAMETERS, {"time": TIMES, "dose": 100.0})
