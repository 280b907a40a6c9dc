"""Columns of the imputation: dates, numbers and names along the axis, and gaps between them."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from displays import COLUMNS, SHAPE, counts_of_clients, points, pooled_means
from skfedem import FederatedMatrixImputer, FederatedMatrixImputerCV
from skfedem.inspection import ImputationDisplay, _columns

# ---- gaps


def test_neither_line_of_the_trend_runs_across_a_gap(pyplot):
    years = [*range(1960, 1970), *range(2004, 2010)]
    imputer = FederatedMatrixImputer(1, random_state=0)
    imputer.fit(np.random.default_rng(0).normal(size=(20, 16)))
    display = ImputationDisplay.from_estimator(imputer, window=5, column_labels=years)
    fitted, smooth = (line.get_ydata() for line in display.lines_)
    assert np.flatnonzero(np.isnan(fitted)).tolist() == [10]
    assert_array_equal(np.delete(fitted, 10), display.trend)
    expected = np.full(16, np.nan)
    for first in (*range(6), 10, 11):
        expected[first + 2] = display.trend[first : first + 5].mean()
    np.testing.assert_allclose(np.delete(smooth, 10), expected, rtol=1e-12)
    for line in display.lines_:
        assert_array_equal(np.delete(line.get_xdata(), 10), years)
    display.plot(line_kw={"marker": "s"})
    assert display.lines_[0].get_marker() == "s" and display.lines_[0].get_markevery() is None
    display.plot(window=1)
    assert np.isnan(display.lines_[1].get_ydata()[10])
    display.plot(window=9)
    with pytest.raises(ValueError, match="window .*<= 10, got 11. The upper bound is"):
        display.plot(window=11)


def test_a_column_between_gaps_has_a_marker(pyplot):
    years = [1900, *range(1910, 1960)]
    imputer = FederatedMatrixImputer(1, random_state=0)
    imputer.fit(np.random.default_rng(0).normal(size=(20, 51)))
    display = ImputationDisplay.from_estimator(imputer, column_labels=years)
    assert (display.lines_[0].get_marker(), display.lines_[0].get_markevery()) == (".", [0])
    display.plot(line_kw={"ms": 9, "markevery": 3})
    line = display.lines_[0]
    assert (line.get_marker(), line.get_markersize(), line.get_markevery()) == (".", 9, 3)


@pytest.mark.parametrize(
    ("labels", "lengths"),
    [
        (np.arange("1995-01", "1998-01", dtype="datetime64[M]"), [36]),  # months are unlike
        (np.delete(np.arange("1995-01", "1997-01", dtype="datetime64[M]"), [7, 8]), [7, 15]),
        ([1990, 1991, 1993, 1994], [2, 2]),
        ([1990, 2000], [2]),
        ([3], [1]),
        ([1, 2, 4, 8, 16, 32], [6]),  # at irregular distances: no gaps
        (np.arange("2024-01-01", "2024-01-31", dtype="datetime64[D]")[:5], [5]),
        ([day for day in range(30) if day % 7 < 5], [22]),  # weekends
        ([day for day in range(28) if day % 7 < 5 and day != 11], [19]),  # and a holiday
        ([12 * year + month for year in range(4) for month in range(4)], [16]),  # seasons
        ([0, 2, 4, 6, 9, 11], [6]),  # one and a half of the usual step
        ([0, 2, 4, 6, 10, 11, 13], [4, 3]),  # a gap, and half of the usual step
        ([0, 2, 4, 6, 10, 10.9, 12.9], [7]),  # and less than half
        ([1, 2, 4, 5, 6, 7, 8, 9, 12, 13], [2, 6, 2]),  # two that have nothing in common
        ([1, 2, 3, 5, 6, 8, 9, 10, 11, 12, 13, 15, 16], [3, 2, 6, 2]),  # nor have three
        (["a", "b", "c"], [3]),
    ],
)
def test_gaps_are_longer_than_the_usual_steps_of_columns(labels, lengths):
    pytest.importorskip("matplotlib")
    positions = _columns.place(np.asarray(labels)).positions
    assert [run.stop - run.start for run in _columns.unbroken(positions)] == lengths


def test_cells_of_columns_with_gaps_leave_them_empty():
    years = np.array([1.0, 2.0, 5.0, 6.0, 7.0])
    edges, values = _columns.in_cells(years, np.arange(10).reshape(2, 5))
    np.testing.assert_array_equal(edges, [0.5, 1.5, 2.5, 4.5, 5.5, 6.5, 7.5])
    gap = np.nan
    np.testing.assert_array_equal(values, [[0, 1, gap, 2, 3, 4], [5, 6, gap, 7, 8, 9]])
    days = 30.0 * np.array([0, 1, 2, 3, 6, 9, 10, 11])
    edges, _ = _columns.in_cells(days, np.arange(8))
    # One column alone is as wide as the others.
    np.testing.assert_array_equal(edges, [-15, 15, 45, 75, 105, 165, 195, 255, 285, 315, 345])
    edges, values = _columns.in_cells(np.array([1.0, 2.0, 4.0]), np.arange(3))
    np.testing.assert_array_equal(edges, [0.5, 1.5, 3.0, 5.0])
    np.testing.assert_array_equal(values, np.arange(3))


@pytest.mark.parametrize("mark_missing", [False, True])
def test_nothing_is_drawn_in_a_gap(pyplot, mark_missing):
    years = [*range(1960, 1970), *range(2004, 2010)]
    table = np.random.default_rng(0).normal(size=(20, 16))
    table[:10, :3] = np.nan
    imputer = FederatedMatrixImputer(1, random_state=0).fit(table)
    shown = {"column_labels": years, "kind": "heatmap", "mark_missing": mark_missing}
    display = ImputationDisplay.from_estimator(imputer, table, **shown)
    for image in display.images_:
        assert image.get_array().shape == (20, 17)
        assert np.ma.getmaskarray(image.get_array())[:, 10].all()
        edges = image.get_coordinates()[0, :, 0]
        np.testing.assert_allclose(edges[9:13], [1968.5, 1969.5, 2003.5, 2004.5])
    effort = ImputationDisplay.from_estimator(imputer, table, column_labels=years).effort_
    (outline,) = effort.get_paths()
    inside = (outline.vertices[:, 0] > 1969.5) & (outline.vertices[:, 0] < 2003.5)
    assert not inside.any()
    assert not outline.contains_point((1985, 0.01))
    assert outline.contains_point((1969.4, 0.9))


# ---- labels


def test_columns_of_a_data_frame_are_dates(pyplot):
    from matplotlib.dates import date2num

    expected = date2num(np.array(COLUMNS, dtype="datetime64[M]"))
    for columns in (
        COLUMNS,
        pd.to_datetime(COLUMNS),
        pd.to_datetime(COLUMNS).tz_localize("UTC"),
        pd.PeriodIndex(COLUMNS, freq="M"),
        [day.date() for day in pd.to_datetime(COLUMNS)],
    ):
        frames = [pd.DataFrame(table, columns=columns) for table in counts_of_clients()]
        model = FederatedMatrixImputer(1, family="poisson", max_iter=50, tol=1.0)
        model.fit(frames)
        display = ImputationDisplay.from_estimator(model, frames)
        np.testing.assert_array_equal(points(display.lines_[0])[0], expected)
        assert display.ax_[1].get_xlabel() == "date"
    # Strings are known to the fit.
    frames = [pd.DataFrame(table, columns=COLUMNS) for table in counts_of_clients()]
    display = ImputationDisplay.from_estimator(model.fit(frames))
    np.testing.assert_array_equal(points(display.lines_[0])[0], expected)
    # A fit of arrays knows none: what is drawn has them.
    model.fit(counts_of_clients())
    display = ImputationDisplay.from_estimator(model, frames)
    np.testing.assert_array_equal(points(display.lines_[0])[0], expected)


@pytest.mark.parametrize("kind", ["periods", "dates", "years", "text"])
@pytest.mark.parametrize("estimator", ["imputer", "search", "pipeline"])
def test_labels_of_columns_are_known_to_the_fit(pyplot, kind, estimator):
    from matplotlib.dates import date2num

    months = pd.period_range("2000-01", periods=SHAPE[1], freq="M")
    days = date2num(months.to_timestamp().to_numpy())
    labels, expected = {
        "periods": (months, days),
        "dates": (months.to_timestamp(), days),
        "years": (np.arange(1995, 1995 + SHAPE[1]), np.arange(1995, 1995 + SHAPE[1])),
        "text": (COLUMNS, days),
    }[kind]
    parameters = {"family": "poisson", "tol": 0.1, "random_state": 0}
    imputer = FederatedMatrixImputer(1, penalty=2.0, **parameters)
    model = {
        "imputer": imputer,
        "search": FederatedMatrixImputerCV([1], penalties=[2.0], n_splits=2, **parameters),
        "pipeline": make_pipeline(FunctionTransformer(), imputer),
    }[estimator]
    table = pd.DataFrame(pooled_means(counts_of_clients()).round(), columns=labels)
    X = table if estimator == "pipeline" else [table]
    model.fit(X)
    for given in (None, X, table.to_numpy()):
        display = ImputationDisplay.from_estimator(model, given)
        line = display.lines_[0]
        np.testing.assert_array_equal(points(line)[0], expected)


@pytest.mark.parametrize("hold", ["index", "list", "to_numpy", "Series"])
@pytest.mark.parametrize("freq", ["M", "Q", "Y", "W"])
def test_a_period_is_drawn_where_it_begins(pyplot, imputer, hold, freq):
    periods = pd.period_range("2000-01", periods=SHAPE[1], freq=freq)
    holders = {
        "index": periods,
        "list": list(periods),
        "to_numpy": periods.to_numpy(),
        "Series": pd.Series(periods),
    }
    display = ImputationDisplay.from_estimator(imputer, column_labels=holders[hold])
    from matplotlib.dates import date2num

    expected = date2num(periods.to_timestamp(how="start").to_numpy())
    np.testing.assert_array_equal(points(display.lines_[0])[0], expected)


@pytest.mark.parametrize("zone", [None, "UTC", "America/Lima"])
def test_times_are_those_of_the_clock_where_they_are(pyplot, imputer, zone):
    from matplotlib.dates import date2num

    days = pd.date_range("2000-01-01", periods=SHAPE[1], freq="D")
    local = days.tz_localize(zone)
    for labels in (
        local,
        list(local),
        [day.to_pydatetime() for day in local],
        pd.Series(local, index=range(100, 100 + SHAPE[1])),
        pd.CategoricalIndex(local),
    ):
        display = ImputationDisplay.from_estimator(imputer, column_labels=labels)
        np.testing.assert_array_equal(points(display.lines_[0])[0], date2num(days.to_numpy()))


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (2000 + np.arange(SHAPE[1]) / 12, 2000 + np.arange(SHAPE[1]) / 12),
        (np.arange(SHAPE[1])[::-1], np.arange(SHAPE[1])),
        ([f"item {k}" for k in range(SHAPE[1])], np.arange(SHAPE[1])),
        (["2000-13"] * SHAPE[1], np.arange(SHAPE[1])),
        # An axis of dates has no room before the year 1 and after 9999, which often means never.
        ([*COLUMNS[:-1], "9999-12"], np.arange(SHAPE[1])),
        ([f"{year:04}-01" for year in range(1, 1 + SHAPE[1])], np.arange(SHAPE[1])),
        (COLUMNS[::-1], np.arange(SHAPE[1])),
        (np.append(np.arange(SHAPE[1] - 1.0), np.inf), np.arange(SHAPE[1])),
        (None, np.arange(SHAPE[1])),
    ],
)
def test_increasing_numbers_place_columns_and_other_labels_are_counted(
    pyplot, imputer, labels, expected
):
    display = ImputationDisplay.from_estimator(imputer, column_labels=labels)
    np.testing.assert_array_equal(points(display.lines_[0])[0], expected)
    display.figure_.canvas.draw()
    if isinstance(labels, list):
        shown = [text.get_text() for text in display.ax_.get_xticklabels()]
        assert labels[0] in shown
        assert set(shown) <= {*labels, ""}


@pytest.mark.parametrize("dtype", [np.int64, np.uint32])
def test_numbers_of_years_and_months_are_dates(pyplot, dtype):
    labels = np.array([199511, 199512, 199601, 199602], dtype=dtype)
    columns = _columns.place(labels)
    assert columns.kind == "dates"
    days = np.arange("1995-11", "1996-03", dtype="datetime64[M]").astype("datetime64[D]")
    assert_array_equal(columns.positions, days.astype(int))
    for number in (199600, 199613, 1996):
        assert _columns.place(np.sort(np.append(labels, number))).kind == "numbers"
    assert _columns.place(labels[:1]).kind == "numbers"


@pytest.mark.parametrize("ends", [("0900-01-01", "2020-01-01"), ("2020-01-01", "6000-01-01")])
def test_dates_of_any_year_that_leaves_room_are_placed_to_scale(pyplot, ends):
    days = np.linspace(*np.array(ends, "M8[D]").astype(int), SHAPE[1]).astype("M8[D]")
    for labels in (days, np.array(ends, "M8[D]")):
        columns = _columns.place(labels)
        assert columns.kind == "dates"
        shape = (3, len(labels))
        display = ImputationDisplay(
            trend=np.ones(len(labels)), fitted=np.ones(shape), n_rows=3, column_labels=labels
        )
        for kind in ("trend", "heatmap"):
            display.plot(kind=kind)
            display.figure_.canvas.draw()  # where an axis ends beyond all dates, this raises


def test_one_column_without_a_date_has_a_name():
    pytest.importorskip("matplotlib")
    columns = _columns.place(np.array(["NaT"], dtype="M8[D]"))
    assert (columns.positions.tolist(), columns.kind, columns.names) == ([0], "names", ["NaT"])


def test_dates_that_do_not_increase_are_written_without_midnight(pyplot, imputer):
    days = pd.date_range("2000-01-01", periods=SHAPE[1], freq="D")[::-1]
    expected = [str(day.date()) for day in days]
    for labels in (days, list(days), days.tz_localize("UTC"), days.to_period("D"), days.to_numpy()):
        display = ImputationDisplay.from_estimator(imputer, column_labels=labels)
        shown = [text.get_text() for text in display.ax_.get_xticklabels()]
        assert expected[0] in shown
        assert set(shown) <= {*expected, ""}


def test_names_may_be_in_a_series(pyplot, imputer):
    names = [f"item {k}" for k in range(SHAPE[1])]
    display = ImputationDisplay.from_estimator(imputer, column_labels=pd.Series(names))
    assert display.column_labels.tolist() == names


def test_a_pipeline_keeps_names_of_columns_that_are_text(pyplot):
    days = pd.to_datetime(COLUMNS)
    for columns, kept in ((COLUMNS, "date"), (days, "columns"), (days.to_period("M"), "columns")):
        table = pd.DataFrame(pooled_means(counts_of_clients()), columns=columns)
        table = table.drop(columns=columns[5])  # of nothing there is no standard deviation
        pipeline = make_pipeline(StandardScaler(), FederatedMatrixImputer(1, random_state=0))
        display = ImputationDisplay.from_estimator(pipeline.fit(table), table)
        assert display.ax_[1].get_xlabel() == "columns"
        display = ImputationDisplay.from_estimator(pipeline, table, column_labels=table.columns)
        assert display.ax_[1].get_xlabel() == "date"
        pipeline.set_output(transform="pandas").fit(table)
        display = ImputationDisplay.from_estimator(pipeline, table)
        assert display.ax_[1].get_xlabel() == kept


@pytest.mark.parametrize(
    ("labels", "written"),
    [
        (
            ["Haematopus moquini (count)", "Haematopus ostralegus (count)", "Haematopus (count)"],
            ["…moqui…count)", "…ostra…count)", "…(count)"],
        ),
        # Their middles are all that differs, from the first letter on.
        (["first in the row", "forth in the row"], ["first …he row", "forth …he row"]),
        (["alpha to omega__", "alphb to omega__"], ["alpha …mega__", "alphb …mega__"]),
        (np.array([1, 10, 1000], dtype="m8[D]"), ["1 d", "10 d", "1000 d"]),
        (np.array([90, 30, 60], dtype="m8[m]").astype("m8[ns]"), ["90 min", "30 min", "60 min"]),
        (np.array([1500, 500], dtype="m8[us]"), ["1500 µs", "500 µs"]),
        (np.array([1, "NaT"], dtype="m8[D]"), ["1 days", "NaT"]),
        (np.array([1, 5], dtype="m8[M]"), ["1 months", "5 months"]),
        (np.array([1, 5], dtype="m8[ps]"), ["1 picoseconds", "5 picoseconds"]),
        # Another name does not hide what two begin with.
        (
            ["Haematopus moquini (count)", "Sterna hirundo", "Haematopus ostralegus (count)"],
            ["…moqui…count)", "Sterna hirundo"[:6] + "…" + "hirundo"[-6:], "…ostra…count)"],
        ),
    ],
)
def test_columns_of_different_names_have_different_ticks(pyplot, labels, written):
    values = np.ones((3, len(labels)))
    display = ImputationDisplay(
        trend=values.sum(axis=0), fitted=values, n_rows=3, column_labels=labels
    ).plot()
    display.figure_.draw_without_rendering()
    texts = [label.get_text() for label in display.ax_.get_xticklabels()]
    assert [text for text in texts if text] == written


def test_dates_of_columns_are_compared_with_those_of_the_fit(pyplot):
    months = pd.period_range("2000-01", periods=SHAPE[1], freq="M")
    frames = [pd.DataFrame(table, columns=months) for table in counts_of_clients()]
    imputer = FederatedMatrixImputer(1, family="poisson", penalty=2.0).fit(frames)
    display = ImputationDisplay.from_estimator(imputer, frames)
    assert display.column_labels.tolist() == months.to_timestamp().tolist()
    turned = [frame.iloc[:, ::-1] for frame in frames]
    with pytest.raises(ValueError, match="labels of the fit.*2000-01 for column 0, got 2001-12"):
        ImputationDisplay.from_estimator(imputer, turned)


def test_missing_dates_come_one_after_another(pyplot, imputer):
    dates = [*pd.date_range("2020-01-01", periods=SHAPE[1] - 1), pd.NaT]
    clients = counts_of_clients()
    display = ImputationDisplay.from_estimator(imputer, clients, column_labels=dates)
    assert_array_equal(display.lines_[0].get_xdata(), np.arange(SHAPE[1]))


def test_dates_that_are_there_twice_are_placed_one_after_another():
    pytest.importorskip("matplotlib")
    columns = _columns.place(np.array(["2000-01", "2000-01", "2000-02"]))
    assert (columns.positions.tolist(), columns.kind) == ([0, 1, 2], "names")


def test_dates_so_far_apart_that_their_cells_leave_the_axis_are_placed_one_after_another():
    pytest.importorskip("matplotlib")
    # Cells reach half the 1,720 years before the year 300.
    columns = _columns.place(np.array(["0300-01-01", "2020-01-01"], dtype="M8[D]"))
    assert (columns.positions.tolist(), columns.kind) == ([0, 1], "names")
