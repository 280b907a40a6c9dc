"""A deployed population model is that of the simulation, bit for bit."""

import sys

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from deployed import Deployment
from skfedem import FederatedNonlinearMixedEffects
from skfedem.datasets import load_theophylline
from skfedem.deploy import Client, Policy
from skfedem.deploy._functions import described
from skfedem.deploy._messages import seal, unseal
from skfedem.pharmacokinetics import one_compartment_oral

DATA = load_theophylline().data
START = {"ka": 1.0, "V": 20.0, "CL": 0.5}
NOISY = {"omega": 1.0, "participation": 0.7}
CASES = {
    "exact": {},
    "noisy": NOISY,
    "covariate": {"covariates": {"CL": ["weight"]}, "error": "combined"},
    "minibatches": {"solver": "vr_fedem", "batch_size": 2, **NOISY},
    "chains": {"e_step": "mcmc", "n_exploratory": 8, "n_smoothing": 4, "n_chains": 2, **NOISY},
}


def sites(n_sites=3):
    """Theophylline at some sites, as dicts of columns."""
    owners = (np.asarray(DATA["id"]) - 1) * n_sites // 12
    return [{name: np.asarray(DATA[name])[owners == k] for name in DATA} for k in range(n_sites)]


def exponential_decay(parameters, regressors):
    return regressors["dose"] / parameters["V"] * np.exp(-parameters["k"] * regressors["time"])


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("case", CASES)
def test_fits_equal_those_of_the_simulation(case, tmp_path):
    parameters = {"max_iter": 4, "random_state": 1, **CASES[case]}
    if case == "chains":
        parameters["max_iter"] = None
    population = FederatedNonlinearMixedEffects(one_compartment_oral, START, **parameters)
    deployment = Deployment(population, sites(), tmp_path)
    got = deployment.run().end()
    want = population.fit(sites())
    for name, value in vars(want).items():
        if name.endswith("_") and name not in ("client_ids_", "history_"):
            assert_array_equal(getattr(got, name), value, err_msg=name)
    for name, column in want.history_.items():
        assert_array_equal(got.history_[name], column, err_msg=name)
    server = deployment.server._clients
    assert_array_equal(server.controls.ravel(), deployment.controls().ravel())


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_clients_know_the_parameters_of_their_subjects(tmp_path):
    population = FederatedNonlinearMixedEffects(one_compartment_oral, START, max_iter=2)
    deployment = Deployment(population, sites(), tmp_path, seed=0)
    got = deployment.run().end()
    for name, own in zip("abc", sites(), strict=True):
        personal = deployment.clients[name].personal_result()
        want = got.individual_parameters(own)
        assert [*personal] == [*want]
        for column, values in personal.items():
            assert_array_equal(values, want[column])


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_functions_are_the_clients_own_and_compared(tmp_path):
    start = {"V": 20.0, "k": 0.1}
    population = FederatedNonlinearMixedEffects(exponential_decay, start, max_iter=1)
    deployment = Deployment(population, sites(), tmp_path, seed=0)
    assert "expected Client(..., model=exponential_decay)" in deployment.phase()["a"].reason
    for name, model in {"a": exponential_decay, "b": one_compartment_oral}.items():
        folder = tmp_path / f"{name} with model"
        client = Client(name, sites()[0], folder, policy=Policy(min_rows=4), model=model)
        verdict = deployment.server.receive(name, client.answer(deployment.server.request(name)))
        assert verdict.used == (name == "a")
    assert "one_compartment_oral differs" in verdict.reason


def test_functions_that_close_over_other_numbers_differ():
    def scaled(factors):
        return lambda parameters, regressors: factors[500] * parameters[0]

    one = np.zeros(2000)  # of which repr leaves most out
    other = np.where(np.arange(2000) == 500, 9.0, one)
    assert described(scaled(one)) == described(scaled(one.copy()))
    assert described(scaled(one)) != described(scaled(other))


PLACE = 1
SCALES = {"dose": [1000.0, np.arange(2000.0)]}


def half(values):
    return values / 2 if len(values) else whole(values)


def whole(values):
    return half(values) * 2


def scaled_dose(parameters, regressors):
    doses = [SCALES["dose"][0] * own for own in half(regressors["dose"])]
    return sum(own[PLACE] for own in doses)


def test_functions_that_use_other_globals_differ(monkeypatch):
    module, seen = sys.modules[__name__], {described(scaled_dose)["digest"]}
    for name, value in {
        "PLACE": 2,
        "SCALES": {"dose": [1000.0, np.append(np.arange(1999.0), 0.0)]},
        "half": lambda values: values / 3,
        "whole": lambda values: values,  # which half uses
    }.items():
        with monkeypatch.context() as changed:
            changed.setattr(module, name, value)
            seen.add(described(scaled_dose)["digest"])
    assert len(seen) == 5
    with monkeypatch.context() as changed:
        changed.setattr(module, "DATA", None)  # which it does not use
        assert described(scaled_dose)["digest"] in seen


@pytest.mark.parametrize(
    "facts", [[3e9, 4e9, 0], [1001, 2000, 0], [5, 4, 0], [2.5, 40, 0], [5, -40, 100]]
)
def test_facts_that_no_table_has_are_not_used(facts, tmp_path):
    # All clients make room for the largest number of rows of a subject.
    population = FederatedNonlinearMixedEffects(one_compartment_oral, START, max_iter=1)
    deployment = Deployment(population, sites(), tmp_path, seed=0)
    request = dict(deployment.server.open())["a"]
    reply = unseal(deployment.clients["a"].answer(request))
    body = np.array(facts, "<f8").tobytes() + reply.body[24:]
    forged = seal(reply._replace(body=body))
    verdict = deployment.server.receive("a", forged)
    assert not verdict.used and "facts" in verdict.reason
    assert deployment.server.receive("a", seal(reply)).used
    deployment.server.stop()
