import sys

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

from skfedem.datasets import read_counts

NOTES = {
    "observer": ["bob", "ann", "ann", "bob", "bob"],
    "site": ["pond", "wood", "pond", "lake", "pond"],
    "month": ["2024-02", "2024-01", "2024-01", "2024-04", "2024-02"],
    "count": [5, 0, 3, 2, 1],
}
NAMES = dict(site="site", time="month", count="count", observer="observer")


def test_names_become_numbers_of_sites_and_periods():
    counts = read_counts(pd.DataFrame(NOTES), **NAMES, freq="M")
    assert counts.sites.tolist() == ["lake", "pond", "wood"]
    assert list(counts.times.astype(str)) == ["2024-01", "2024-02", "2024-03", "2024-04"]
    assert counts.client_ids.tolist() == ["ann", "bob"]
    assert counts.shape == (3, 4)
    ann, bob = counts.clients
    assert_array_equal(ann, [[1, 0, 3], [2, 0, 0]])
    assert_array_equal(bob, [[0, 3, 2], [1, 1, 1], [1, 1, 5]])
    assert ann.dtype == np.float64
    assert counts.n_missing_counts == 0


def test_without_a_period_times_are_the_distinct_values():
    counts = read_counts(NOTES, **NAMES)
    assert counts.times.tolist() == ["2024-01", "2024-02", "2024-04"]
    assert_array_equal(counts.clients[1][:, 1], [2, 1, 1])


def test_without_an_observer_there_is_one_client():
    names = {**NAMES, "observer": None}
    counts = read_counts(NOTES, **names)
    assert_array_equal(counts.client_ids, [0])
    assert len(counts.clients) == 1
    assert len(counts.clients[0]) == 5


@pytest.mark.parametrize("as_table", [dict, pd.DataFrame, "polars"])
@pytest.mark.parametrize("missing", [None, np.nan])
def test_rows_without_a_count_are_left_out(as_table, missing):
    if as_table == "polars":
        as_table = pytest.importorskip("polars").DataFrame
    notes = {**NOTES, "count": [5, missing, 3, 2, missing]}
    if missing is np.nan and as_table is not dict:
        notes["count"] = np.array(notes["count"], dtype=float)
    counts = read_counts(as_table(notes), **NAMES)
    assert counts.n_missing_counts == 2
    assert counts.sites.tolist() == ["lake", "pond"]  # nobody knows how many were in the wood
    assert sum(len(own) for own in counts.clients) == 3


@pytest.mark.parametrize(
    "times",
    [
        [2022, 2024, 2022, 2024, 2024],
        ["2022", "2024", "2022", "2024", "2024"],
        pd.to_datetime(["2022-03-01", "2024-01-01", "2022-12-31", "2024-05-05", "2024-12-31"]),
        pd.PeriodIndex(["2022-03", "2024-01", "2022-12", "2024-05", "2024-12"], freq="M").asfreq(
            "Y"
        ),
    ],
    ids=["integers", "text", "dates", "periods"],
)
def test_years_may_be_numbers_text_dates_or_periods(times):
    counts = read_counts(pd.DataFrame({**NOTES, "month": times}), **NAMES, freq="Y")
    assert list(counts.times.astype(str)) == ["2022", "2023", "2024"]
    assert_array_equal(counts.clients[0][:, 1], [0, 2])


@pytest.mark.parametrize(
    "change, error, message",
    [
        (dict(site=["pond", None, "pond", "lake", "pond"]), ValueError, "'site', .* at row 1"),
        (dict(month=["2024-01", "spring"] + 3 * ["2024-02"]), ValueError, "dates in .*'month'"),
        (dict(count=["5", "0", "3", "2", "1"]), TypeError, "numbers in column 'count'"),
        (dict(count=5 * [None]), ValueError, "numbers in column 'count', got none"),
        (dict(observer=["ann", 3, "ann", "bob", 4]), TypeError, "'observer' to .* int, str"),
        (dict(site=["pond"]), ValueError, "columns of one length"),
    ],
)
def test_bad_columns(change, error, message):
    with pytest.raises(error, match=message):
        read_counts({**NOTES, **change}, **NAMES, freq="M")


def test_bad_parameters():
    with pytest.raises(ValueError, match="Expected a column 'place' .* got the columns"):
        read_counts(NOTES, **{**NAMES, "site": "place"})
    with pytest.raises(ValueError, match="freq .*got 'month'"):
        read_counts(NOTES, **NAMES, freq="month")
    with pytest.raises(TypeError, match="a DataFrame or a dict of columns"):
        read_counts(np.ones((3, 3)), **NAMES)


def test_periods_require_pandas(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)  # importing it raises ImportError
    assert read_counts(NOTES, **NAMES).shape == (3, 3)
    with pytest.raises(ImportError, match="pip install pandas"):
        read_counts(NOTES, **NAMES, freq="M")


def test_efforts_become_offsets_in_the_order_of_the_observations():
    hours = [1.0, 2.0, 4.0, 8.0, 16.0]
    counts = read_counts(NOTES | {"hours": hours}, **NAMES, effort="hours")
    ann, bob = counts.offset
    assert_array_equal(ann, np.log([4.0, 2.0]))
    assert_array_equal(bob, np.log([8.0, 16.0, 1.0]))
    for rest, own in zip(counts.clients, read_counts(NOTES, **NAMES).clients, strict=True):
        assert_array_equal(rest, own)
    assert "offset" not in read_counts(NOTES, **NAMES)


@pytest.mark.parametrize("effort", [0.0, -1.0, np.nan, np.inf])
def test_an_effort_has_to_be_positive(effort):
    hours = [1.0, 2.0, effort, 8.0, 16.0]
    with pytest.raises(ValueError, match="positive efforts in column 'hours'"):
        read_counts(NOTES | {"hours": hours}, **NAMES, effort="hours")


def test_dates_whose_day_and_month_may_be_confused_are_errors():
    for date in ("15.01.2020", "05/01/2020", "1-2-20"):
        notes = {**NOTES, "month": ["2024-01"] * 4 + [date]}
        for freq in ("M", None):
            with pytest.raises(ValueError, match=f"year first in column 'month'.*'{date}'"):
                read_counts(notes, **NAMES, freq=freq)
    for date in ("2024/2/1", "1 Feb 2024", "Feb 2024", "20240201", "2024-02-01 10:30"):
        notes = {**NOTES, "month": ["2024-01"] * 4 + [date]}
        assert len(read_counts(notes, **NAMES, freq="M").times) == 2


@pytest.mark.parametrize(
    "times",
    [
        ["1", "2", "10", "1", "2"],
        ["2024-1", "2024-2", "2024-10", "2024-1", "2024-1"],
        ["Jan 2024", "Feb 2024", "Mar 2024", "Jan 2024", "Jan 2024"],
        ["1/2024", "2/2024", "1/2024", "1/2024", "1/2024"],
    ],
)
def test_text_that_is_not_in_the_order_of_time_needs_a_period(times):
    with pytest.raises(ValueError, match="'month' whose text is in the order of time.*Give freq="):
        read_counts({**NOTES, "month": times}, **NAMES)


def test_text_in_the_order_of_time_needs_no_period():
    for times in (["2020Q2", "2020Q1"], ["2020-10", "2020-02"], ["summer", "spring"]):
        assert len(read_counts({**NOTES, "month": [*times, *times, times[0]]}, **NAMES).times) == 2
    years = read_counts({**NOTES, "month": ["2021", "2020", "2021", "2020", "2020"]}, **NAMES)
    assert years.times.tolist() == ["2020", "2021"]
