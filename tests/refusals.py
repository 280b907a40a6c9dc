"""Rows of three clients, a fit of them, and the check that bad input is refused without a trace."""

import copy
import re

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from sklearn.exceptions import NotFittedError

from skfedem import FederatedGaussianMixture

RNG = np.random.default_rng(0)
CLIENTS = [RNG.normal(g, 1, size=(rows, 2)) for g, rows in enumerate((9, 12, 7))]
X = np.concatenate(CLIENTS)
OWNERS = np.repeat(["ash", "birch", "cedar"], [9, 12, 7])
N_SAMPLES = len(X)
GOOD = {"n_components": 2, "random_state": 0}
FITTED = FederatedGaussianMixture(**GOOD).fit(CLIENTS)


def frames(*names):
    return [
        pd.DataFrame(client[:, : len(own)], columns=own)
        for client, own in zip(CLIENTS, names, strict=True)
    ]


NAMED = frames(["a", "b"], ["a", "b"], ["a", "b"])
THREE_WAYS = ["list with one 2-D array or DataFrame", "`clients=`", "alone"]


def with_value(value, client=1, row=3, column=1):
    tables = [table.copy() for table in CLIENTS]
    tables[client][row, column] = value
    return tables


def objects(tables):
    array = np.empty(len(tables), dtype=object)
    array[:] = tables
    return array


def fitted_attributes(gm):
    return {name: value for name, value in vars(gm).items() if name.endswith("_")}


def assert_unchanged(got, want):
    assert got.keys() == want.keys()
    for name, value in want.items():
        if isinstance(value, dict):
            assert_unchanged(got[name], value)
        else:
            assert_array_equal(got[name], value, err_msg=name)


def check_refused(error, says, tables, clients=None, **parameters):
    """Refuse with a message that says what a pattern or several say, and change nothing."""
    never = FederatedGaussianMixture(**{**GOOD, **parameters})
    given = never.get_params()
    kept = {name: copy.deepcopy(value) for name, value in given.items() if not callable(value)}
    kept_tables, kept_clients = copy.deepcopy(tables), copy.deepcopy(clients)
    with pytest.raises(error) as caught:
        never.fit(tables, clients=clients)
    with pytest.raises(NotFittedError):
        never.predict(X)
    assert not fitted_attributes(never)

    before = copy.deepcopy(FITTED)
    attributes = fitted_attributes(FITTED)
    before.set_params(**parameters)
    with pytest.raises(error):
        before.fit(tables, clients=clients)
    assert_unchanged(fitted_attributes(before), attributes)
    if not parameters:
        assert_array_equal(before.predict_proba(X), FITTED.predict_proba(X))

    after = never.get_params()
    assert all(after[name] is value for name, value in given.items())
    for name, value in kept.items():
        np.testing.assert_equal(after[name], value, err_msg=name)
    np.testing.assert_equal(repr(tables), repr(kept_tables))
    np.testing.assert_equal(repr(clients), repr(kept_clients))

    message = str(caught.value)
    for fragment in [says] if isinstance(says, str) else says:
        assert re.search(fragment, message), f"{fragment!r} is not in {message!r}"
    # As a person reads it: no doubled or dangling space, no name of a NumPy type.
    assert "  " not in message.strip()
    assert message == message.strip()
    assert "np." not in message
    return message
