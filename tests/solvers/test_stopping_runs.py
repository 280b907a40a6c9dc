"""When runs stop, and the criteria that they compute on the way."""

import copy

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.datasets import load_iris

from problems import (
    SOLVERS,
    mixture_parameters,
    problem_of_alike,
    start_at,
)
from skfedem import FederatedGaussianMixture, FederatedMatrixImputer
from skfedem._parallel import Workers
from skfedem.clients.local import LocalClients
from skfedem.models._base import Step
from skfedem.models.mixture.gaussian_mixture import GaussianMixtureModel
from skfedem.solvers._loop import Options, run

not_converged = pytest.mark.filterwarnings(
    "ignore:Not converged:sklearn.exceptions.ConvergenceWarning"
)


def jumping(round_number):
    return 0.001 if round_number <= 8 else 1.0


@pytest.mark.parametrize(
    ("estimator", "n_quiet"),
    [
        (FederatedGaussianMixture(3, init_params="random_from_data", max_iter=1000), 1),
        (FederatedMatrixImputer(1, rows="disjoint", penalty=1.0, tol=0.01), 5),
    ],
    ids=["mixture", "imputer"],
)
def test_a_gain_is_judged_by_the_step_that_made_it(estimator, n_quiet):
    # A whole step that follows a tiny one says nothing about what that one gained.
    rows, species = load_iris(return_X_y=True)
    estimator.set_params(step_size=jumping, random_state=0).fit(rows, clients=species)
    history = estimator.history_
    if n_quiet == 1:
        gains = np.diff(history["log_likelihood"])
    else:
        gains = -np.diff(history["objective"]) / history["objective"][1:]
    is_quiet = np.abs(gains) < estimator.tol * history["step_size"][1:]
    last = np.lib.stride_tricks.sliding_window_view(is_quiet, n_quiet).all(axis=1)
    # What the last round gained is told by a round that did not come.
    assert np.flatnonzero(last[:-1]).tolist() == [len(gains) - 1 - n_quiet]
    assert estimator.converged_
    assert estimator.n_iter_ > 8 + n_quiet


def run_of_fedem(problem, federation, start, options):
    """Run of FedEM with the clients in this process."""
    with Workers(1) as workers:
        clients = LocalClients(federation, workers)
        clients.join(SOLVERS["fedem"], problem.task)
        return run(problem, start, options, clients, lambda row: None)


def criteria_of(state):
    return state.criteria("log_likelihood")


@pytest.mark.parametrize("participation", [0.5, 1.0])
def test_a_run_has_the_criteria_that_it_computes_whether_it_is_watched_or_not(participation):
    problem, federation = problem_of_alike(participation=participation)
    start = start_at(problem.model, federation, mixture_parameters(problem.model))
    watched, unwatched = (
        run_of_fedem(
            problem,
            federation,
            start,
            Options(lambda k: 0.5, max_iter=4, tol=0.0, eval_every=eval_every),
        )
        for eval_every in (1, None)
    )
    values = watched.history["log_likelihood"].tolist()
    for result in (watched, unwatched):
        assert result.initial_criterion == values[0]
    assert watched.final_criterion == values[4]
    if problem.exact:  # a round yields the criterion of the iterate before it
        assert criteria_of(watched) == criteria_of(unwatched) == values[:4]
        assert np.isnan(unwatched.final_criterion)
    else:
        assert criteria_of(watched) == values
        assert criteria_of(unwatched) == [unwatched.final_criterion] == values[4:]


def quiet_run(monkeypatch, step_taken, participation):
    """Run of at most 100 rounds with 20 clients and steps of 1, which lead nowhere."""
    problem, federation = problem_of_alike(participation=participation)
    model = problem.model

    def stays(statistics, field, step_size, *, exact):
        return Step(statistics, 0.0, 0, step_taken)

    monkeypatch.setattr(type(model), "server_step", staticmethod(stays))
    start = start_at(model, federation, mixture_parameters(model))
    return run_of_fedem(problem, federation, start, Options(lambda k: 1.0, eval_every=None))


@pytest.mark.parametrize("participation", [0.9, 1.0])
def test_a_model_without_a_likelihood_does_not_converge(participation, monkeypatch):
    monkeypatch.setattr(GaussianMixtureModel, "criterion_value", lambda self, mean, theta: np.nan)
    says = r"number as log_likelihood of GaussianMixtureModel, got NaN from .* of -\d"
    with pytest.raises(ValueError, match=says):
        quiet_run(monkeypatch, step_taken=1.0, participation=participation)


def test_a_stream_without_a_likelihood_keeps_what_it_had(monkeypatch):
    rows = np.random.default_rng(0).normal(size=(40, 2))
    mixture = FederatedGaussianMixture(2, random_state=0).partial_fit(rows)
    monkeypatch.setattr(GaussianMixtureModel, "criterion_value", lambda self, mean, theta: np.nan)
    kept = copy.deepcopy(vars(mixture))
    with pytest.raises(ValueError, match="log_likelihood of GaussianMixtureModel, got NaN"):
        mixture.partial_fit(rows)
    assert vars(mixture).keys() == kept.keys()
    assert_array_equal(mixture.means_, kept["means_"])
    assert_array_equal(mixture.history_["log_likelihood"], kept["history_"]["log_likelihood"])


@pytest.mark.parametrize("participation", [0.9, 1.0])
def test_rounds_whose_steps_are_not_taken_do_not_converge(participation, monkeypatch):
    assert quiet_run(monkeypatch, step_taken=1.0, participation=participation).converged
    assert not quiet_run(monkeypatch, step_taken=0.0, participation=participation).converged


def test_messages_that_do_not_come_make_no_sweep(monkeypatch):
    result = quiet_run(monkeypatch, step_taken=1.0, participation=0.04)
    # Three sweeps, each of which has to hear as many messages as there are clients.
    n_active = result.history["n_active"]
    assert result.converged
    assert n_active[:-1].sum() < n_active.sum()
    assert 60 <= n_active.sum() < 60 + 3 * n_active.max()
