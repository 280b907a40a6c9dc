"""Columns of a matrix on an axis: dates, numbers or names, and gaps between them."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from displays import COLUMNS, SHAPE
from skfedem.inspection import ImputationDisplay, _columns

pytest.importorskip("matplotlib")
MONTHS = np.arange("1995-01", "1998-01", dtype="datetime64[M]")


def located(labels):
    return _columns.locate_columns(_columns.check_column_labels(labels, len(labels)))


@pytest.mark.parametrize(
    ("labels", "starts"),
    [
        (MONTHS, []),  # of unequal lengths
        (np.delete(MONTHS, [7, 8]), [7]),
        ([1990, 1991, 1993, 1994], [2]),
        ([1990, 2000], []),
        ([3], []),
        ([1, 2, 4, 8, 16, 32], []),  # at irregular distances
        ([day for day in range(30) if day % 7 < 5], []),  # weekends
        ([day for day in range(28) if day % 7 < 5 and day != 11], []),  # and a holiday
        ([0, 2, 4, 6, 9, 11], []),  # one and a half of the usual step
        ([0, 2, 4, 6, 10, 11, 13], [4]),
        ([1, 2, 4, 5, 6, 7, 8, 9, 12, 13], [2, 8]),
        (["a", "b", "c"], []),
    ],
)
def test_gaps_are_longer_than_the_usual_step(labels, starts):
    positions = located(labels).positions
    assert _columns.gaps(positions).tolist() == starts
    runs = [(run.start, run.stop) for run in _columns.runs_between_gaps(positions)]
    assert runs == list(pairwise([0, *starts, len(labels)]))


def test_a_gap_has_a_cell_of_its_own():
    years, nan = np.array([1.0, 2.0, 5.0, 6.0, 7.0]), np.nan
    assert_array_equal(_columns.cell_edges(years), [0.5, 1.5, 2.5, 4.5, 5.5, 6.5, 7.5])
    _, values = _columns.with_gaps(years, np.arange(10.0).reshape(2, 5))
    assert_array_equal(values, [[0, 1, nan, 2, 3, 4], [5, 6, nan, 7, 8, 9]])
    # A column between gaps is as wide as the others.
    days = 30.0 * np.array([0, 1, 2, 3, 6, 9, 10, 11])
    edges = [-15, 15, 45, 75, 105, 165, 195, 255, 285, 315, 345]
    assert_array_equal(_columns.cell_edges(days), edges)
    assert_array_equal(_columns.cell_edges(np.array([1.0, 2.0, 4.0])), [0.5, 1.5, 3, 5])
    assert_array_equal(_columns.cell_edges(np.array([3.0])), [2.5, 3.5])


@pytest.mark.parametrize(
    "labels",
    [
        COLUMNS,
        pd.to_datetime(COLUMNS),
        list(pd.to_datetime(COLUMNS)),
        pd.PeriodIndex(COLUMNS, freq="M"),
        [day.date() for day in pd.to_datetime(COLUMNS)],
        [int(month.replace("-", "")) for month in COLUMNS],
    ],
)
def test_dates_are_drawn_to_scale(labels):
    columns = located(labels)
    assert columns.kind == "dates"
    days = np.array(COLUMNS, dtype="datetime64[M]").astype("datetime64[D]")
    assert_array_equal(columns.positions, days.astype(int))


@pytest.mark.parametrize("freq", ["M", "Q", "Y", "W"])
def test_a_period_is_drawn_where_it_begins(freq):
    from matplotlib.dates import date2num

    periods = pd.period_range("2000-01", periods=5, freq=freq)
    days = date2num(periods.to_timestamp(how="start").to_numpy())
    assert_array_equal(located(periods).positions, days)


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        (2000 + np.arange(24) / 12, "numbers"),
        ([199511, 199512, 199600], "numbers"),
        ([199511], "numbers"),
        (np.arange(24)[::-1], "names"),
        (np.append(np.arange(23.0), np.inf), "names"),
        ([f"item {k}" for k in range(24)], "names"),
        (["2000-13", "2000-14"], "names"),
        (["2000-01", "2000-01", "2000-02"], "names"),
        (COLUMNS[::-1], "names"),
        ([*pd.date_range("2020-01-01", periods=3), pd.NaT], "names"),
        (np.array(["NaT"], dtype="M8[D]"), "names"),
    ],
)
def test_increasing_numbers_are_positions_and_names_are_numbered(labels, kind):
    columns = located(labels)
    assert columns.kind == kind
    assert_array_equal(columns.positions, labels if kind == "numbers" else range(len(labels)))


def test_ticks_of_names_are_at_their_columns(pyplot):
    names = [f"Haematopus {k:02d} (count)" for k in range(20)]
    axis = (
        ImputationDisplay(trend=np.ones(20), fitted=np.ones((1, 20)), n_rows=1, column_labels=names)
        .plot(kind="heatmap")
        .ax_
    )
    axis.figure.draw_without_rendering()
    written = {label.get_position()[0]: label.get_text() for label in axis.get_xticklabels()}
    assert sum(map(bool, written.values())) > 3
    for at, text in written.items():
        assert text == ("Haemat…count)" if 0 <= at < 20 else "")


@pytest.mark.parametrize("kind", ["trend", "heatmap"])
def test_nothing_is_drawn_in_a_gap(pyplot, kind):
    years = [*range(1960, 1970), *range(2004, 2010)]
    table = np.random.default_rng(0).normal(size=(20, 16))
    display = ImputationDisplay(
        trend=table.sum(axis=0),
        fitted=table,
        n_rows=20,
        observed=table,
        observed_share=np.ones(16),
        family="gaussian",
        column_labels=years,
    ).plot(kind=kind, window=5)
    if kind == "heatmap":
        for image in display.images_:
            assert np.flatnonzero(np.ma.getmaskarray(image.get_array()).all(axis=0)) == [10]
            edges = image.get_coordinates()[0, :, 0]
            assert_allclose(edges[9:13], [1968.5, 1969.5, 2003.5, 2004.5])
        return
    fitted, smooth = (line.get_ydata() for line in display.lines_)
    assert np.flatnonzero(np.isnan(fitted)).tolist() == [10]
    assert_array_equal(np.delete(fitted, 10), display.trend)
    expected = np.full(16, np.nan)
    for first in (*range(6), 10, 11):
        expected[first + 2] = display.trend[first : first + 5].mean()
    assert_allclose(np.delete(smooth, 10), expected, rtol=1e-12)
    (outline,) = display.effort_.get_paths()
    assert not outline.contains_point((1985, 0.01))
    assert outline.contains_point((1969.4, 0.9))


def test_there_is_a_label_for_each_column():
    with pytest.raises(ValueError, match=f"one label for each of the {SHAPE[1]} columns"):
        _columns.check_column_labels(["a", "b"], SHAPE[1])
