"""Fits that are stopped from the keyboard: they are what had been reached."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from skfedem import FederatedGaussianMixture, FederatedMatrixImputer
from skfedem._history import History
from skfedem.clients.local import LocalClients
from skfedem.models.mixture.initialization import start_run
from skfedem.solvers import _loop
from watched import interrupted


@pytest.mark.parametrize(
    "estimator",
    [
        FederatedGaussianMixture(2, omega=1.0, random_state=0, verbose=2),
        FederatedGaussianMixture(2, random_state=0, tol=0, verbose=2),
        FederatedMatrixImputer(1, omega=1.0, tol=0, random_state=0, verbose=2),
    ],
    ids=["mixture", "mixture-exact", "imputer"],
)
def test_a_fit_stopped_from_the_keyboard_is_what_had_been_reached(estimator, monkeypatch):
    generator = np.random.default_rng(0)
    clients = [generator.normal(size=(20, 3)) for _ in range(4)]
    whole = clone(estimator).set_params(max_iter=6)
    with pytest.warns(ConvergenceWarning, match="Not converged"):
        whole.fit(clients)

    monkeypatch.setattr(LocalClients, "round", interrupted(LocalClients.round, at=7))
    with pytest.warns(ConvergenceWarning, match="Interrupted from the keyboard after 6 rounds"):
        estimator.fit(clients)
    assert (estimator.n_iter_, estimator.converged_) == (6, False)
    for name, column in estimator.history_.items():
        assert len(column) == 7, name
        assert_array_equal(column, whole.history_[name], err_msg=name)
    assert_array_equal(estimator.score(clients), whole.score(clients))


def test_an_interrupted_evaluation_keeps_the_round_before_it(monkeypatch):
    generator = np.random.default_rng(0)
    clients = [generator.normal(size=(20, 3)) for _ in range(4)]
    gm = FederatedGaussianMixture(2, omega=1.0, eval_every=1, random_state=0)
    with pytest.warns(ConvergenceWarning, match="Not converged"):
        whole = clone(gm).set_params(max_iter=3).fit(clients)
    monkeypatch.setattr(_loop, "evaluate", interrupted(_loop.evaluate, at=3))
    with pytest.warns(ConvergenceWarning, match="after 3 rounds"):
        gm.fit(clients)
    assert gm.n_iter_ == 3
    for name, column in gm.history_.items():  # also of the last row, by the end of the fit
        assert_array_equal(column, whole.history_[name], err_msg=name)
    assert_array_equal(gm.means_, whole.means_)


@pytest.mark.parametrize("omega", [0.0, 1.0])
def test_a_second_interrupt_while_the_fit_ends_loses_no_round(omega, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    def interrupted(*args):
        if args[1].round_index == 4:
            monkeypatch.setattr(_loop, "evaluate", interrupt)  # the one at the end
            interrupt()
        return open_round(*args)

    open_round = _loop.open_round
    monkeypatch.setattr(_loop, "open_round", interrupted)
    gm = FederatedGaussianMixture(2, omega=omega, tol=0, eval_every=3, random_state=0)
    rows = np.random.default_rng(0).normal(size=(50, 2))
    with pytest.warns(ConvergenceWarning, match="Interrupted from the keyboard after 4 rounds"):
        gm.fit(rows)
    assert gm.n_iter_ == 4 and np.isnan(gm.lower_bound_) == (omega > 0)
    assert np.isnan(gm.history_["log_likelihood"][-1]) and np.isfinite(gm.score(rows))


def test_an_interrupt_after_a_round_leaves_the_stopping_rule_where_the_fit_is(monkeypatch):
    # The next warm start compared the last round with itself, and had converged.
    rows = np.random.default_rng(0).normal([[0.0], [1.0], [2.0]], 1, size=(3, 100))[..., None]
    gm = FederatedGaussianMixture(3, tol=1e-6, max_iter=500, warm_start=True, random_state=0)
    whole = clone(gm).fit(list(rows))
    row = History.row

    def interrupted(history, number):
        if len(history.column("round")) == 5:
            monkeypatch.setattr(History, "row", row)
            raise KeyboardInterrupt
        return row(history, number)

    monkeypatch.setattr(History, "row", interrupted)
    with pytest.warns(ConvergenceWarning, match="Interrupted from the keyboard after 4 rounds"):
        gm.fit(list(rows))
    assert gm.fit(list(rows)).n_iter_ == whole.n_iter_ - 4
    assert gm.lower_bound_ == pytest.approx(whole.lower_bound_, rel=1e-12)  # up to rounding


def test_a_keyboard_interrupt_begins_no_other_start(monkeypatch):
    gm = FederatedGaussianMixture(2, n_init=3, tol=0, max_iter=5, random_state=0)
    in_round_8 = interrupted(LocalClients.round, at=8)
    monkeypatch.setattr(LocalClients, "round", in_round_8)
    with pytest.warns(ConvergenceWarning, match="Interrupted from the keyboard"):
        gm.fit(np.random.default_rng(0).normal(size=(50, 2)))
    assert in_round_8.n_calls == 8
    assert gm.n_iter_ in (2, 5)


def test_a_keyboard_interrupt_in_the_k_means_of_a_start_keeps_those_before(monkeypatch):
    clients = np.random.default_rng(0).normal(size=(50, 2))
    gm = FederatedGaussianMixture(2, n_init=3, tol=0, max_iter=5, random_state=0)
    with pytest.warns(ConvergenceWarning, match="Not converged"):
        of_two = clone(gm).set_params(n_init=2).fit(clients)
    starts = interrupted(start_run, at=3)
    monkeypatch.setattr("skfedem._mixture.fit_steps.start_run", starts)
    with pytest.warns(ConvergenceWarning, match="Interrupted from the keyboard after 5 rounds"):
        gm.fit(clients)
    assert_array_equal(gm.means_, of_two.means_)
    # There is nothing to keep yet.
    starts.at = 4
    with pytest.raises(KeyboardInterrupt):
        gm.fit(clients)
    assert_array_equal(gm.means_, of_two.means_)
