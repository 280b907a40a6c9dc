"""The table of a run."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from skfedem._history import History


def test_a_long_history_is_cut_and_goes_on():
    history = History()
    for k in range(200):
        history.append(round=k, field_sq_norm=k / 2)
    history.keep(150)
    history = History.of_dict(history.as_dict())
    before = history.as_dict()
    for k in range(150, 400):
        history.append(round=k, field_sq_norm=np.nan)
        history.update(k, field_sq_norm=k / 2)
    columns = history.as_dict()
    assert_array_equal(columns["round"], range(400))
    assert_array_equal(columns["field_sq_norm"], np.arange(400) / 2)
    assert history.column("round")[-2:] == [398, 399]
    assert_array_equal(before["round"], range(150))  # a copy
    with pytest.raises(KeyError, match="field_sq_norm"):
        history.append(round=400)
    assert history.row(-1)["round"] == 399


def test_history_keeps_one_column_a_name():
    history = History()
    history.append(round=0, field_sq_norm=np.nan, n_active=0)
    history.append(round=1, field_sq_norm=0.5, n_active=3)
    history.update(0, field_sq_norm=2)
    history.update(-1, n_active=4)
    assert history.row(-1) == {"round": 1, "field_sq_norm": 0.5, "n_active": 4}
    columns = history.as_dict()
    assert columns["round"].dtype == columns["n_active"].dtype == np.int64
    assert columns["field_sq_norm"].dtype == np.float64
    assert_allclose(columns["field_sq_norm"], [2.0, 0.5])
    assert_array_equal(history.column("n_active"), [0, 4])


def test_counts_of_a_history_are_integers():
    counts = ("round", "n_active", "uplink_bits", "downlink_bits", "safeguarded")
    history = History()
    history.append(**dict.fromkeys(counts, 2**53 + 1), step_size=0.5)
    for columns in (history.as_dict(), History.of_dict(history.as_dict()).as_dict()):
        for name in counts:
            assert columns[name].dtype == np.int64 and columns[name][0] == 2**53 + 1
        assert columns["step_size"].dtype == np.float64
