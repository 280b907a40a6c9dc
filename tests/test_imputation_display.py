"""Imputation: what is drawn is what was observed and fitted; other data are refused."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from scipy.sparse import coo_array
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from displays import COLUMNS, NAN, ROUNDING, SHAPE, counts_of_clients, points, pooled_means
from skfedem import FederatedMatrixImputer
from skfedem.inspection import ImputationDisplay, _matrix

# ---- arrays of one's own

ARRAYS = {
    "trend": np.arange(1.0, 6),
    "fitted": np.ones((4, 5)),
    "n_rows": 4,
    "observed": np.ones((4, 5)),
    "band_observed_share": np.ones((4, 5)),
    "observed_share": np.ones(5),
    "observed_total": np.ones(5),
    "unobserved_columns": [4],
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("trend", 3.0), ("trend", None), ("trend", np.ones((5, 2))), ("trend", list("abcde")),
        ("fitted", np.ones(5)), ("fitted", np.ones((4, 4))), ("n_rows", 3), ("n_rows", 0),
        ("observed", np.ones((2, 5))), ("band_observed_share", np.ones((1, 5))),
        ("observed_share", 1.0), ("observed_total", np.ones(4)), ("unobserved_columns", [7]),
        ("unobserved_columns", [True, False]), ("unobserved_columns", [1.0]),
    ],
)  # fmt: skip
def test_arrays_of_other_shapes(name, value):
    assert ImputationDisplay(**ARRAYS).observed.shape == (4, 5)
    with pytest.raises(ValueError, match=f"Expected {name} to be (an integer|numbers)"):
        ImputationDisplay(**ARRAYS | {name: value})


def test_arrays_may_come_from_tables_and_files(tmp_path):
    np.savez(tmp_path / "display.npz", **ARRAYS)
    with np.load(tmp_path / "display.npz") as file:
        display = ImputationDisplay(**dict(file) | {"observed_total": [None, 1, 2, 3, 4]})
    assert display.n_rows == 4
    assert_array_equal(display.observed_total, [NAN, 1, 2, 3, 4])
    assert ImputationDisplay(**ARRAYS | {"unobserved_columns": []}).unobserved_columns.size == 0


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"trend": list("abcde")}, r"numbers of shape \(any,\), got dtype <U1 and shape \(5,\)"),
        ({"observed_share": np.ones(4)}, r"numbers of shape \(5,\), got dtype float64 and shape"),
        ({"observed_share": [None, "a", 1, 1, 1]}, r"shape \(5,\), got dtype object and shape"),
        ({"fitted": np.ones((2, 3))}, r"numbers of shape \(any, 5\)"),
        ({"unobserved_columns": [False, True]}, "numpy.flatnonzero"),
        ({"trend": [1, 2, 3, 4, NAN]}, r"trend to be finite .* \(5,\) with 1 values that are not"),
        ({"fitted": np.full((4, 5), np.inf)}, "fitted to be finite .* with 20 values"),
        ({"trend": np.ma.masked_equal([1, 2, 3, 4, 5], 3)}, "trend to be finite .* with 1 values"),
        ({"fitted": np.empty((0, 5))}, r"fitted to be finite and not empty, got shape \(0, 5\)"),
    ],
)
def test_messages_about_arrays(arrays, says):
    with pytest.raises(ValueError, match=says):
        ImputationDisplay(**ARRAYS | arrays)


def test_a_plot_that_fails_leaves_the_one_before(pyplot):
    display = ImputationDisplay(**ARRAYS).plot()
    lines = display.lines_
    with pytest.raises(ValueError, match="yscale"):
        display.plot(yscale="cubic")
    assert display.lines_ is lines and len(lines)


def test_what_a_display_is_given_may_be_lists(pyplot):
    display = ImputationDisplay(
        trend=[1.0, 2.0], fitted=[[1.0, 2.0]], n_rows=1, observed_share=[1.0, 1.0],
        observed_total=[1.0, 3.0], unobserved_columns=[1],
    )  # fmt: skip
    display.plot()
    assert_array_equal(display.lines_[0].get_ydata(), [1, 2])
    assert display.effort_ is not None
    alone = ImputationDisplay(trend=[1.0, 2.0], fitted=[[1.0, 2.0]], n_rows=1).plot()
    assert alone.ax_.get_legend() is None


# ---- fitted means and observed cells


def test_trend_is_the_sum_of_the_fitted_means(pyplot, imputer, monkeypatch):
    expected = imputer.fitted_mean().sum(axis=0)
    display = ImputationDisplay.from_estimator(imputer)
    np.testing.assert_allclose(points(display.lines_[0])[1], expected, **ROUNDING)
    monkeypatch.setattr(_matrix, "_BLOCK", 3 * SHAPE[1])
    in_blocks = ImputationDisplay.from_estimator(imputer, max_rows=5)
    np.testing.assert_allclose(in_blocks.trend, expected, **ROUNDING)
    whole = ImputationDisplay.from_estimator(imputer)
    np.testing.assert_allclose(whole.fitted, display.fitted, **ROUNDING)


def test_effort_and_observed_cells(pyplot, imputer):
    clients = counts_of_clients()
    pooled = pooled_means(clients)
    display = ImputationDisplay.from_estimator(imputer, clients, row_order="given")
    np.testing.assert_allclose(display.observed, pooled, **ROUNDING)
    seen = ~np.isnan(pooled)
    np.testing.assert_allclose(display.observed_share, seen.mean(axis=0), **ROUNDING)
    total = np.where(seen.any(axis=0), np.nansum(pooled, axis=0), NAN)
    np.testing.assert_allclose(display.observed_total, total, **ROUNDING)
    steps = display.effort_.get_paths()[0].vertices
    np.testing.assert_allclose(steps[:, 1].max(), seen.mean(axis=0).max(), **ROUNDING)
    labels = [text.get_text() for text in display.ax_[0].get_legend().get_texts()]
    assert labels == ["fitted", "observed rows alone", "nothing observed"]
    complete = np.nan_to_num(pooled).round()
    whole = ImputationDisplay.from_estimator(clone(imputer).fit(complete), complete)
    assert whole.ax_[1].get_ylim() == (0, 1)


def test_cells_of_a_huge_matrix_are_told_apart():
    # Of these rows and columns, the products are no 32-bit integers.
    shape, rows, columns = (70_000, 70_000), [0, 40_000, 69_999], [5, 69_999, 1]
    cells = coo_array(([1.0, 2.0, 3.0], (rows, columns)), shape=shape)
    fitted = FederatedMatrixImputer(1, family="poisson", penalty=10.0).fit([cells])
    observed = _matrix.observed_cells(fitted, [cells, cells])
    assert_array_equal(observed.rows, rows)
    assert_array_equal(observed.columns, columns)
    assert_array_equal(observed.values, [1, 2, 3])


def test_every_form_of_the_data_gives_the_same_picture(pyplot, imputer):
    clients = counts_of_clients()
    expected = ImputationDisplay.from_estimator(imputer, clients)
    sparse = []
    for table in clients:
        rows, columns = np.nonzero(~np.isnan(table))
        sparse.append(coo_array((table[rows, columns], (rows, columns)), shape=SHAPE))
    triplets = [np.column_stack([t.row, t.col, t.data]) for t in sparse]
    by_triplets = clone(imputer).fit(triplets, shape=SHAPE)
    for fitted, data in (
        (imputer, sparse),
        (imputer, np.stack(clients)),
        (imputer, [np.stack(clients)]),
        (by_triplets, triplets),
    ):
        display = ImputationDisplay.from_estimator(fitted, data)
        np.testing.assert_allclose(display.observed, expected.observed, **ROUNDING)
        np.testing.assert_allclose(display.observed_share, expected.observed_share, **ROUNDING)


def test_clients_with_rows_of_their_own(pyplot):
    clients = [table[3 * k + 4 : 3 * k + 7] for k, table in enumerate(counts_of_clients())]
    model = FederatedMatrixImputer(1, family="poisson", rows="disjoint", random_state=0)
    display = ImputationDisplay.from_estimator(model.fit(clients), clients, row_order="given")
    np.testing.assert_array_equal(display.observed, np.concatenate(clients))


def test_without_data_there_are_only_fitted_means(pyplot, imputer):
    display = ImputationDisplay.from_estimator(imputer, kind="heatmap")
    assert display.ax_.get_title() == "fitted mean"
    trend = display.plot()
    assert trend.effort_ is None
    # What nobody observed is known all the same.
    hollow = trend.ax_.lines[-1]
    np.testing.assert_array_equal(points(hollow)[0], [5])
    with pytest.raises(ValueError, match="Expected the observed cells with mark_missing=True"):
        display.plot(kind="heatmap", mark_missing=True)


def test_pipelines_transform_the_data_on_the_way(pyplot):
    clients = counts_of_clients()
    pooled = pooled_means(clients)
    pipeline = make_pipeline(FunctionTransformer(np.log1p), FederatedMatrixImputer(1))
    display = ImputationDisplay.from_estimator(pipeline.fit(pooled), pooled, row_order="given")
    np.testing.assert_allclose(display.observed, np.log1p(pooled), **ROUNDING)
    pipeline = make_pipeline(FederatedMatrixImputer(1)).fit(pooled)
    display = ImputationDisplay.from_estimator(pipeline, pooled, row_order="given")
    np.testing.assert_allclose(display.observed, pooled, **ROUNDING)


def test_one_long_table_of_triplets_is_shown_as_a_list_is(pyplot, imputer):
    clients = counts_of_clients()
    cells = [coo_array(np.nan_to_num(table)) for table in clients]
    triplets = [np.column_stack([own.row, own.col, own.data]) for own in cells]
    table, owners = np.concatenate(triplets), np.repeat(range(3), [own.nnz for own in cells])
    listed = clone(imputer).fit(triplets, shape=SHAPE)
    long = clone(imputer).fit(table, clients=owners, shape=SHAPE)
    want = ImputationDisplay.from_estimator(listed, triplets)
    names = ["site", "month", "count"]  # of the columns of triplets, not of the matrix
    frames = [pd.DataFrame(own, columns=names) for own in triplets]
    for got in (
        ImputationDisplay.from_estimator(listed, frames),
        ImputationDisplay.from_estimator(long, table),
        ImputationDisplay.from_estimator(long, triplets),
    ):
        np.testing.assert_allclose(got.trend, want.trend, **ROUNDING)
        np.testing.assert_allclose(got.observed_total, want.observed_total, **ROUNDING)
        assert_array_equal(got.observed_share, want.observed_share)


def test_observed_cells_are_read_by_the_marker_of_the_fit(pyplot):
    clients = counts_of_clients()
    marked = [np.nan_to_num(table, nan=-1) for table in clients]
    model = FederatedMatrixImputer(1, family="poisson", missing_values=-1, random_state=0)
    display = ImputationDisplay.from_estimator(model.fit(marked), marked, row_order="given")
    np.testing.assert_allclose(display.observed, pooled_means(clients), **ROUNDING)


# ---- trend


@pytest.mark.parametrize("window", [1, 3, 12])
def test_moving_mean(pyplot, imputer, window):
    display = ImputationDisplay.from_estimator(imputer, window=window, column_name="months")
    _, smooth = points(display.lines_[1])
    half = window // 2
    for at in range(SHAPE[1]):
        if half <= at < SHAPE[1] - half:
            # An even window: the mean of the two that lie half a column off.
            shifts = (0,) if window % 2 else (0, 1)
            means = [
                display.trend[at - half + shift : at - half + shift + window].mean()
                for shift in shifts
            ]
            np.testing.assert_allclose(smooth[at], np.mean(means), **ROUNDING)
        else:
            assert np.isnan(smooth[at])
    assert display.lines_[1].get_label() == f"mean over {window} months"


@pytest.mark.parametrize("n_columns", [1, 2, 3, 4])
def test_every_window_that_is_drawn_has_a_mean(pyplot, n_columns):
    display = ImputationDisplay(trend=np.ones(n_columns), fitted=np.ones((1, n_columns)), n_rows=1)
    for window in range(1, n_columns + 1):
        if window == n_columns and window % 2 == 0:
            with pytest.raises(ValueError, match="Expected window to be odd"):
                display.plot(window=window)
        else:
            line = display.plot(window=window).lines_[1]
            _, smooth = points(line)
            assert np.isfinite(smooth).any()
            # No line reaches a single one.
            (seen,) = np.nonzero(np.isfinite(smooth))
            is_marked = line.get_marker() != "None"
            assert is_marked == (len(seen) == 1)
            assert not is_marked or line.get_markevery() == seen.tolist()


@pytest.mark.parametrize(("family", "is_drawn"), [("poisson", True), ("gaussian", False)])
def test_sums_of_measurements_leave_the_trend_its_room(pyplot, family, is_drawn):
    generator = np.random.default_rng(0)
    cells = 280.0 + generator.poisson(5, size=(30, 12))
    cells[generator.random(cells.shape) < 0.5] = np.nan
    imputer = FederatedMatrixImputer(1, family=family, penalty=100.0).fit([cells])
    axis = ImputationDisplay.from_estimator(imputer, [cells]).ax_[0]
    assert ("observed rows alone" in axis.get_legend_handles_labels()[1]) == is_drawn
    low, high = axis.get_ylim()
    assert ((high - low) < 2 * np.ptp(axis.lines[0].get_ydata())) == (not is_drawn)


def test_a_window_takes_the_season_out():
    months = np.arange(60)
    season = 100 + 2 * months + 30 * np.cos(2 * np.pi * months / 12)
    smooth = _matrix.moving_mean(season, 12)
    np.testing.assert_allclose(smooth[6:-6], 100 + 2 * months[6:-6], **ROUNDING)


def test_axes_of_ones_own(pyplot, imputer):
    clients = counts_of_clients()
    figure, axes = pyplot.subplots(2)
    display = ImputationDisplay.from_estimator(imputer, clients, ax=axes)
    assert display.effort_ in axes[1].collections
    assert display.figure_ is figure
    _, axis = pyplot.subplots()
    alone = ImputationDisplay.from_estimator(imputer, clients, ax=axis)
    assert alone.effort_ is None
    assert alone.ax_ is axis
    says = "Expected 2 matplotlib Axes .* each map.*or draw one map with mark_missing=True"
    with pytest.raises(ValueError, match=says):
        display.plot(ax=axis, kind="heatmap")
    red = ImputationDisplay.from_estimator(imputer, ax=axis, line_kw={"color": "red"})
    assert red.lines_[0].get_color() == "red"


@pytest.mark.parametrize("family", ["poisson", "bernoulli"])
def test_trends_on_the_same_axes_are_all_in_view(pyplot, family):
    axis = pyplot.subplots()[1]

    def draw(*trend):
        fitted = np.array([trend])
        ImputationDisplay(trend=trend, fitted=fitted, n_rows=1, family=family).plot(axis)

    for trend in ([3.0, 4.0], [30.0, 40.0], [2.0, 2.0]):
        draw(*trend)
        assert axis.get_ylim()[0] == 0
        assert axis.get_ylim()[1] > axis.dataLim.y1
    axis.plot([0, 1], [50, 60])
    assert axis.get_ylim()[0] == 0
    assert axis.get_ylim()[1] > 60


def test_a_level_trend_is_within_its_axes(pyplot):
    values = np.full((1, 3), 7.0)
    axis = ImputationDisplay(trend=values[0], fitted=values, n_rows=1).plot().ax_
    assert axis.get_ylim() == pytest.approx((0, 7 * 1.05))  # matplotlib's margin


def test_logarithmic_trend(pyplot, imputer):
    display = ImputationDisplay.from_estimator(imputer, yscale="log")
    assert display.ax_.get_yscale() == "log"
    for least in (-1, 0):
        flat = ImputationDisplay(
            trend=[least, 2.0], fitted=[[least, 2.0]], n_rows=1, family="gaussian"
        )
        message = f"positive sums over rows for yscale='log', got {least}"
        with pytest.raises(ValueError, match=message):
            flat.plot(yscale="log")
        flat.plot()


def test_effort_is_in_percent(pyplot, imputer):
    display = ImputationDisplay.from_estimator(imputer, counts_of_clients())
    written = display.ax_[1].yaxis.get_major_formatter()
    assert [written(share, None) for share in (0.25, 0.005, 1.0)] == ["25%", "0.5%", "100%"]


@pytest.mark.parametrize(
    ("family", "says"),
    [
        ("poisson", "expected counts, all sites"),
        ("bernoulli", "expected number of sites\nwith presence"),
        ("gaussian", "sum of fitted means,\nall sites"),
    ],
)
def test_a_trend_says_what_is_summed(pyplot, family, says):
    display = ImputationDisplay(trend=[0.5], fitted=[[0.5]], n_rows=1, family=family)
    assert display.plot(row_name="sites").ax_.get_ylabel() == says


@pytest.mark.parametrize(("total", "is_drawn"), [(4.0, False), (6.0, True)])
def test_observed_sums_are_drawn_where_they_can_be_told_from_the_axis(pyplot, total, is_drawn):
    display = ImputationDisplay(
        trend=[100.0] * 2, fitted=[[50.0] * 2], n_rows=2, observed_total=np.array([total, 0])
    ).plot()
    labels = [line.get_label() for line in display.ax_.lines]
    assert ("observed rows alone" in labels) == is_drawn


def test_observed_sums_of_zero_are_not_on_a_logarithmic_axis(pyplot):
    display = ImputationDisplay(
        trend=[10.0] * 3, fitted=[[5.0] * 3], n_rows=2, observed_total=np.array([4, 0, NAN])
    )
    for yscale, shown in (("linear", [4, 0, NAN]), ("log", [4, NAN, NAN])):
        axis = display.plot(yscale=yscale).ax_
        (line,) = (line for line in axis.lines if line.get_label() == "observed rows alone")
        assert_array_equal(points(line)[1], shown)


# ---- bad input


def test_other_data_than_those_of_the_fit_are_refused(pyplot, imputer):
    clients = counts_of_clients()
    with pytest.raises(ValueError, match=r"matrix of shape \(14, 24\), got shape \(13, 24\)"):
        ImputationDisplay.from_estimator(imputer, [table[1:] for table in clients])
    frames = [
        pd.DataFrame(table, columns=COLUMNS, index=list("abcdefghijklmn")) for table in clients
    ]
    named = clone(imputer).fit(frames)
    ImputationDisplay.from_estimator(named, frames)
    with pytest.raises(ValueError, match="row labels of the fit.*'a' for row 0, got 'n'"):
        ImputationDisplay.from_estimator(named, [frame[::-1] for frame in frames])
    with pytest.raises(ValueError, match="column labels of the fit.*'2000-01' for column 0"):
        ImputationDisplay.from_estimator(named, [frame[COLUMNS[::-1]] for frame in frames])
    triplets = [np.column_stack([*np.nonzero(t >= 0), t[t >= 0]]) for t in clients]
    numbered = clone(imputer).fit(triplets, shape=SHAPE)
    with pytest.raises(ValueError, match="got one ndarray. Give the X of the fit: a list of tri"):
        ImputationDisplay.from_estimator(numbered, clients[0])
    with pytest.raises(ValueError, match=r"Expected triplets .* got shape \(14, 24\) .*client 0"):
        ImputationDisplay.from_estimator(numbered, clients[:1])
    with pytest.raises(ValueError, match="one label for each of the 24 columns"):
        ImputationDisplay.from_estimator(imputer, column_labels=["a", "b"])


def test_what_is_no_imputer_is_refused(pyplot, mixtures, imputer):
    with pytest.raises(TypeError, match="Expected a FederatedMatrixImputer.*got FederatedGauss"):
        ImputationDisplay.from_estimator(mixtures[0])
    with pytest.raises(NotFittedError):
        ImputationDisplay.from_estimator(FederatedMatrixImputer())
    for options, error, match in (
        ({"kind": "pie"}, ValueError, "kind to be one of 'trend', 'heatmap'"),
        ({"window": 25}, ValueError, "window to be an integer >= 1 and <= 24"),
        ({"window": 24}, ValueError, "odd, or less than the 24 columns, got 24: .* Use 23"),
        ({"window": 2.5}, TypeError, "window to be an integer"),
        ({"row_name": 3}, TypeError, "row_name to be a string, got 3 of type int"),
        ({"column_name": 3}, TypeError, "column_name to be a string, got 3 of type int"),
        ({"max_rows": 0}, ValueError, "max_rows to be an integer >= 1"),
        ({"yscale": "auto"}, ValueError, "yscale to be one of"),
        ({"mark_missing": "grey"}, TypeError, "mark_missing to be True or False"),
        ({"kind": "heatmap", "color_scale": "sqrt"}, ValueError, "color_scale to be one of"),
    ):
        with pytest.raises(error, match=match):
            ImputationDisplay.from_estimator(imputer, **options)
    assert not pyplot.get_fignums()


def test_a_frame_alone_is_compared_with_the_sites_of_a_list(pyplot):
    sites = [f"site {k}" for k in range(12)]
    table = pd.DataFrame(np.random.default_rng(0).poisson(4.0, (12, 5)) * 1.0, index=sites)
    imputer = FederatedMatrixImputer(2, random_state=0).fit([table])
    display = ImputationDisplay.from_estimator(imputer, table)
    np.testing.assert_array_equal(display.observed_total, table.sum(axis=0))
    with pytest.raises(ValueError, match="row labels of the fit"):
        ImputationDisplay.from_estimator(imputer, table[::-1])


def test_rows_of_one_frame_are_compared_with_those_of_the_fit(pyplot):
    sites = [f"site {k}" for k in range(12)]
    table = pd.DataFrame(np.random.default_rng(0).poisson(4.0, (12, 5)) * 1.0, index=sites)
    imputer = FederatedMatrixImputer(1, random_state=0).fit(table)
    display = ImputationDisplay.from_estimator(imputer, table)
    np.testing.assert_array_equal(display.observed_total, table.sum(axis=0))
    for other in (table[::-1], [table[::-1]]):
        with pytest.raises(ValueError, match="row labels of the fit.*'site 0' for row 0"):
            ImputationDisplay.from_estimator(imputer, other)
    # Rows alone are taken one by one, in any order.
    np.testing.assert_array_equal(
        imputer.transform(table[::-1])[::-1], imputer.transform(table), strict=True
    )
    own = FederatedMatrixImputer(1, rows="disjoint", random_state=0).fit([table[:5], table[5:]])
    display = ImputationDisplay.from_estimator(own, [table[:5], table[5:]])
    np.testing.assert_array_equal(display.observed_total, table.sum(axis=0))
    with pytest.raises(ValueError, match="labels of the fit.*'site 5' for row 5, got 'site 11'"):
        ImputationDisplay.from_estimator(own, [table[:5], table[:4:-1]])
