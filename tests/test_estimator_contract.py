"""Every row of ``problems.ESTIMATORS`` against what all estimators promise."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from contracts import (
    every_estimator,
)
from problems import (
    many_clients,
    ragged_clients,
)


def assert_same_history(got, want, rounding=0.0):
    assert got.history_.keys() == want.history_.keys()
    for name, column in want.history_.items():
        assert_allclose(got.history_[name], column, rtol=rounding, atol=rounding, err_msg=name)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@every_estimator
def test_estimator_gives_the_same_fit_from_a_list_and_from_labels(case):
    clients = ragged_clients((30, 20, 40, 15))
    labels = np.repeat(np.arange(4), [30, 20, 40, 15])
    mixed = np.random.default_rng(0).permutation(len(labels))
    # A stable sort by label gives every client its rows in the order that they have here.
    rows = np.concatenate(clients)[mixed]
    own = [rows[labels[mixed] == k] for k in range(4)]
    from_list = case.make(max_iter=10).fit(own)
    from_labels = case.make(max_iter=10).fit(rows, clients=labels[mixed])
    assert from_list.n_clients_ == 4
    assert_same_history(from_labels, from_list, case.rounding)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@every_estimator
def test_estimator_does_not_depend_on_the_number_of_workers(case, small_blocks, threads_always_pay):
    clients = many_clients()
    fits = [
        case.make(max_iter=3, n_jobs=n_jobs, **case.quick).fit(clients) for n_jobs in (None, 2, 3)
    ]
    assert set(threads_always_pay) == {2, 3}
    for fit in fits[1:]:
        for name in case.fitted:
            assert_array_equal(getattr(fit, name), getattr(fits[0], name))
        assert_same_history(fit, fits[0])


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@every_estimator
def test_estimator_is_the_same_when_fitted_again(case):
    clients = ragged_clients((30, 20, 40, 15))
    first = case.make(max_iter=10).fit(clients)
    again = clone(first).fit(clients)
    refitted = clone(first).fit(clients[:2]).fit(clients)
    for other in (again, refitted):
        for name in case.fitted:
            assert_array_equal(getattr(other, name), getattr(first, name))
        assert_same_history(other, first)
