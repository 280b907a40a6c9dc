import numpy as np
import pandas as pd
import polars as pl
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from skfedem.pharmacokinetics import doses, one_compartment_bolus

RECORDS = {
    "id": np.array(["b", "b", "b", "a", "a", "b"]),
    "time": np.array([0.0, 3.0, 30.0, 1.0, 2.0, 26.0]),
    "amt": np.array([100.0, np.nan, np.nan, 50.0, 0.0, 80.0]),
    "addl": np.array([2, 0, 0, 0, 0, 0]),
    "ii": np.array([12.0, 0.0, 0.0, 0.0, 0.0, 0.0]),
    "dv": np.array([np.nan, 4.0, 2.0, np.nan, 1.0, np.nan]),
    "site": np.array([1, 1, 1, 2, 2, 1]),
}
WANT = {
    "id": ["b", "b", "a"],
    "time": [3.0, 30.0, 2.0],
    "dv": [4.0, 2.0, 1.0],
    "site": [1, 1, 2],
    "dose_1": [100.0, 100.0, 50.0],
    "dose_time_1": [0.0, 0.0, 1.0],
    "dose_2": [100.0, 100.0, 0.0],
    "dose_time_2": [12.0, 12.0, 0.0],
    "dose_3": [100.0, 100.0, 0.0],
    "dose_time_3": [24.0, 24.0, 0.0],
    "dose_4": [80.0, 80.0, 0.0],
    "dose_time_4": [26.0, 26.0, 0.0],
}


@pytest.mark.parametrize("kind", [dict, pd.DataFrame, pl.DataFrame])
def test_doses_become_columns_of_the_observations(kind):
    table, regressors = doses(kind(RECORDS))
    assert type(table) is kind
    assert list(table) == list(WANT) if kind is dict else list(table.columns) == list(WANT)
    for name, values in WANT.items():
        assert_array_equal(table[name], values)
    assert regressors == ("time", *list(WANT)[4:])


def test_rates_come_along_and_events_decide():
    records = {
        "subject": [7, 7, 7, 7],
        "t": [0, 0, 1, 5],
        "amt": [100, 0, 30, 0],
        "rate": [20, 0, 0, 0],
        "evid": [1, 0, 2, 0],
    }
    table, regressors = doses(records, subject="subject", time="t", n_doses=2)
    assert_array_equal(table["t"], [0, 5])
    assert_array_equal(table["dose_rate_1"], [20, 20])
    assert_array_equal(table["dose_2"], [0, 0])
    assert regressors[:4] == ("t", "dose_1", "dose_time_1", "dose_rate_1")
    assert len(regressors) == 7


def test_absent_doses_add_nothing():
    parameters = {"V": 20.0, "CL": 2.0}
    few, many = (doses(RECORDS, n_doses=n).table for n in (4, 9))
    assert_array_equal(
        one_compartment_bolus(parameters, many), one_compartment_bolus(parameters, few)
    )
    alone = 50.0 / 20.0 * np.exp(-0.1)
    assert_allclose(one_compartment_bolus(parameters, few)[2], alone, rtol=1e-14)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"evid": [1, 0, 0, 4, 0, 1]}, "evid 0 .* got 4 in row 3. Recode"),
        ({"amt": ["x"] * 6}, "Expected numbers in column 'amt' of the table, got 'x'"),
        ({"time": [0.0]}, "Expected columns of one length"),
        (
            {"time": [0, 3, 30, None, 2, 26]},
            "finite times in column 'time' of doses, got nan in row 3",
        ),
        (
            {"amt": [-5, 0, 0, 50, 0, 80], "evid": [1, 0, 0, 1, 0, 1]},
            "amounts >= 0 .* got -5 in row 0",
        ),
        ({"evid": [1, 1, 0, 1, 0, 1]}, "amounts >= 0 .* got nan in row 1"),
        ({"rate": [0, 0, 0, -2, 0, 0]}, "rates >= 0 .* got -2 in row 3"),
        ({"addl": [1.5, 0, 0, 0, 0, 0]}, "integers >= 0 .* got 1.5 in row 0"),
        ({"ii": [0.0] * 6}, "times > 0 between .* 'ii' of doses, got 0 in row 0"),
        ({"ss": [0, 0, 0, 0, 0, 1]}, "no steady states .* got 1 in row 5"),
    ],
)
def test_bad_records_are_refused(changes, message):
    with pytest.raises((TypeError, ValueError), match=message):
        doses({**RECORDS, **changes})


def test_records_of_observations_may_lack_all_about_doses():
    blank = {**RECORDS, "rate": [None] * 6, "ss": [0, None, None, 0, None, 0]}
    blank["ii"] = [12.0, None, None, None, None, None]
    blank["addl"] = [2.0, None, None, None, None, None]
    table, _ = doses(blank)
    for name, values in WANT.items():
        assert_array_equal(table[name], values)
    assert "ss" not in table


def test_missing_columns_and_too_many_doses_are_named():
    with pytest.raises(ValueError, match="Expected a column 'amt'"):
        doses({name: RECORDS[name] for name in ("id", "time", "dv")})
    with pytest.raises(ValueError, match=r"Expected a column 'subject' \(subjects\)"):
        doses(RECORDS, subject="subject")
    with pytest.raises(ValueError, match="at most n_doses=3 doses, got 4 for subject 'b'"):
        doses(RECORDS, n_doses=3)
    with pytest.raises(TypeError, match="Expected a DataFrame or a dict of columns"):
        doses(np.zeros((3, 4)))
