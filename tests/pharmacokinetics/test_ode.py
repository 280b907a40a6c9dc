import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.integrate import solve_ivp

from skfedem.pharmacokinetics import (
    ode_model,
    one_compartment_infusion,
    one_compartment_oral,
)

TIMES = np.array([0.0, 0.3, 0.5, 1.0, 2.5, 3.0, 3.1, 7.9, 8.0, 11.0, 24.0])


def first_order(time, amounts, parameters):
    absorbed = parameters["ka"] * amounts[0]
    eliminated = parameters["CL"] / parameters["V"] * amounts[1]
    return np.stack([-absorbed, absorbed - eliminated])


def saturated(time, amounts, parameters):
    absorbed = parameters["ka"] * amounts[0]
    concentration = amounts[1] / parameters["V"]
    eliminated = parameters["Vmax"] * concentration / (parameters["Km"] + concentration)
    return np.stack([-absorbed, absorbed - eliminated])


def concentration(amounts, parameters):
    return amounts[1] / parameters["V"]


def subjects(shape, seed=0):
    """Parameters of subjects, among them fast absorption."""
    generator = np.random.default_rng(seed)
    typical = {"ka": 1.5, "V": 30.0, "CL": 3.0, "Vmax": 30.0, "Km": 5.0}
    spread = {name: np.exp(0.7 * generator.standard_normal(shape)) for name in typical}
    values = {name: typical[name] * spread[name] for name in typical}
    values["ka"].flat[0] = 200.0
    return values


REPEATED = {
    "time": TIMES[:, None],
    "dose_1": np.array([100.0, 0.0, 50.0, 10.0]),
    "dose_time_1": 0.0,
    "dose_2": np.array([100.0, 90.0, 0.0, 10.0]),
    "dose_time_2": np.array([3.1, 2.5, 0.0, 0.2]),
}


@pytest.mark.parametrize("tolerance", [1e-5, 1e-9])
def test_linear_equations_have_the_closed_form(tolerance):
    model = ode_model(
        first_order, n_states=2, output=concentration, rtol=tolerance, atol=tolerance / 100
    )
    parameters = subjects(4)
    got = model(parameters, REPEATED)
    # Errors of some tens of steps add up.
    want = one_compartment_oral(parameters, REPEATED)
    assert_allclose(got, want, rtol=0, atol=30 * tolerance * want.max())


def test_infusions_are_added_at_their_rate():
    regressors = {**REPEATED, "dose_rate_1": 20.0, "dose_rate_2": np.array([0.0, 30.0, 9.0, 4.0])}
    model = ode_model(
        first_order, n_states=2, output=concentration, dose_state=1, rtol=1e-9, atol=1e-11
    )
    parameters = subjects(4)
    want = one_compartment_infusion(parameters, regressors)
    assert_allclose(model(parameters, regressors), want, rtol=0, atol=1e-7)


def test_saturated_elimination_is_that_of_scipy():
    parameters = subjects(3)
    model = ode_model(saturated, n_states=2, output=concentration, rtol=1e-8, atol=1e-10)
    got = model(parameters, {"time": TIMES[:, None], "dose": 320.0})
    for k in range(3):
        own = {name: values[k] for name, values in parameters.items()}
        solution = solve_ivp(
            saturated, (0, 24), [320.0, 0.0], "DOP853", TIMES, args=(own,), rtol=1e-11, atol=1e-13
        )
        assert_allclose(got[:, k], solution.y[1] / own["V"], rtol=0, atol=1e-6)


def test_a_subject_does_not_depend_on_its_company_to_the_bit():
    model = ode_model(saturated, n_states=2, output=concentration)
    parameters = subjects((3, 4))
    regressors = {name: np.atleast_1d(value) for name, value in REPEATED.items()}
    regressors["time"] = TIMES[:, None, None]
    regressors["dose_rate_2"] = np.array([0.0, 0.0, 0.0, 3.0])
    together = model(parameters, regressors)
    for i in range(3):
        for j in range(4):
            own = {name: values[i : i + 1, j] for name, values in parameters.items()}
            alone = {
                name: value[:, 0] if name == "time" else value[j if len(value) > 1 else 0]
                for name, value in regressors.items()
            }
            assert_array_equal(model(own, alone)[:, 0], together[:, i, j])


def test_times_may_come_in_any_order_and_repeatedly():
    model = ode_model(saturated, n_states=2, output=concentration)
    order = np.random.default_rng(0).integers(0, len(TIMES), 20)
    parameters = subjects(4)
    mixed = model(parameters, {**REPEATED, "time": np.append(TIMES[order], 24.0)[:, None]})
    assert_array_equal(mixed[:-1], model(parameters, REPEATED)[order])


def test_too_stiff_an_equation_gives_nan_and_nothing_else_does():
    parameters = {"ka": np.array([1.0, 1e7]), "V": 30.0, "CL": 3.0}
    model = ode_model(first_order, n_states=2, output=concentration, max_steps=200)
    found = model(parameters, {"time": TIMES[:, None], "dose": 100.0})
    assert np.isfinite(found[:, 0]).all()
    assert np.isnan(found[-1, 1])


def test_models_can_be_pickled():
    model = ode_model(first_order, n_states=2, output=concentration)
    again = pickle.loads(pickle.dumps(model))
    parameters = subjects(4)
    assert_array_equal(again(parameters, REPEATED), model(parameters, REPEATED))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_states": 0}, "Expected n_states"),
        ({"dose_state": 2}, "Expected dose_state from 0 to 1, got 2"),
        ({"rtol": 0.0}, "Expected rtol"),
        ({"max_steps": 1.5}, "Expected max_steps"),
    ],
)
def test_numbers_out_of_range_are_refused(changes, message):
    with pytest.raises((TypeError, ValueError), match=message):
        ode_model(first_order, **{"n_states": 2, "output": concentration, **changes})
