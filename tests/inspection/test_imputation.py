"""ImputationDisplay: arrays, axes and options."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from displays import COLUMNS, NAN, SHAPE, counts_of_clients, points, pooled_means
from skfedem import FederatedMatrixImputer, FederatedMatrixImputerCV
from skfedem.inspection import ImputationDisplay

ARRAYS = {
    "trend": np.arange(1.0, 6),
    "fitted": np.ones((4, 5)),
    "n_rows": 4,
    "observed": np.ones((4, 5)),
    "observed_share": np.ones(5),
    "observed_total": np.ones(5),
    "unobserved_columns": [4],
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("trend", [1, 2, 3, 4, NAN]), ("trend", list("abcde")), ("trend", np.ones(4)),
        ("fitted", np.ones(5)), ("fitted", np.full((4, 5), np.inf)), ("fitted", np.empty((0, 5))),
        ("n_rows", 3), ("observed", np.ones((2, 5))), ("observed_share", np.ones(4)),
        ("observed_total", np.ones(4)), ("family", "binomial"), ("row_order", "size"),
    ],
)  # fmt: skip
def test_arrays_are_checked(name, value):
    assert ImputationDisplay(**ARRAYS).observed.shape == (4, 5)
    with pytest.raises(ValueError):
        ImputationDisplay(**ARRAYS | {name: value})


def test_arrays_may_be_lists_without_some_values(pyplot):
    display = ImputationDisplay(
        trend=[1, 2], fitted=[[1, 2]], n_rows=1, observed_share=[1, 1], observed_total=[1, None]
    ).plot()
    assert_array_equal(display.lines_[0].get_ydata(), [1, 2])
    assert_array_equal(display.observed_total, [1, NAN])


def test_a_plot_that_fails_leaves_the_previous_one(pyplot):
    display = ImputationDisplay(**ARRAYS).plot()
    lines = display.lines_
    with pytest.raises(ValueError, match="yscale"):
        display.plot(yscale="cubic")
    assert display.lines_ is lines and len(lines)


@pytest.mark.parametrize("estimator", ["imputer", "search"])
def test_the_trend_is_drawn_at_the_columns_of_the_fit(pyplot, estimator):
    parameters = {"family": "poisson", "tol": 0.1, "random_state": 0}
    model = {
        "imputer": FederatedMatrixImputer(1, penalty=2.0, **parameters),
        "search": FederatedMatrixImputerCV([1], penalties=[2.0], n_splits=2, **parameters),
    }[estimator]
    table = pd.DataFrame(pooled_means(counts_of_clients()).round(), columns=COLUMNS)
    display = ImputationDisplay.from_estimator(model.fit([table]))
    days = np.array(COLUMNS, dtype="datetime64[M]").astype("datetime64[D]").astype(int)
    assert_array_equal(points(display.lines_[0]), [days, display.trend])
    assert display.ax_.get_xlabel() == "date"


def test_a_pipeline_keeps_names_of_columns_that_are_text(pyplot):
    days = pd.to_datetime(COLUMNS)
    for columns, kept in ((COLUMNS, "date"), (days, "columns")):
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


def test_without_data_there_are_fitted_means_alone(pyplot, imputer):
    display = ImputationDisplay.from_estimator(imputer, kind="heatmap")
    assert display.ax_.get_title() == "fitted mean"
    trend = display.plot()
    assert trend.effort_ is None
    # Columns that nobody observed are known all the same.
    assert_array_equal(points(trend.ax_.lines[-1])[0], [5])


def test_given_axes_are_drawn_on(pyplot, imputer):
    clients = counts_of_clients()
    figure, axes = pyplot.subplots(2)
    display = ImputationDisplay.from_estimator(imputer, clients, ax=axes)
    assert display.effort_ in axes[1].collections
    assert display.figure_ is figure
    _, axis = pyplot.subplots()
    alone = ImputationDisplay.from_estimator(imputer, clients, ax=axis)
    assert alone.effort_ is None
    assert alone.ax_ is axis
    with pytest.raises(ValueError, match="Expected 2 matplotlib Axes .* each map, got 1"):
        display.plot(ax=axis, kind="heatmap")
    red = ImputationDisplay.from_estimator(imputer, ax=axis, line_kw={"c": "red"})
    assert red.lines_[0].get_color() == "red"


def test_parameters_are_checked_before_a_figure_is_made(pyplot, mixtures, imputer):
    with pytest.raises(TypeError, match="Expected a FederatedMatrixImputer.*got FederatedGauss"):
        ImputationDisplay.from_estimator(mixtures[0])
    with pytest.raises(NotFittedError):
        ImputationDisplay.from_estimator(FederatedMatrixImputer())
    for options, error, match in (
        ({"kind": "pie"}, ValueError, "kind to be one of 'trend', 'heatmap'"),
        ({"window": 24}, ValueError, "window to be an integer >= 1 and <= 23"),
        ({"window": 2.5}, TypeError, "window to be an integer"),
        ({"max_rows": 0}, ValueError, "max_rows to be an integer >= 1"),
        ({"yscale": "auto"}, ValueError, "yscale to be one of"),
        ({"color_scale": "sqrt"}, ValueError, "color_scale to be one of"),
        ({"row_order": "size"}, ValueError, "row_order to be one of"),
        ({"column_labels": ["a", "b"]}, ValueError, f"each of the {SHAPE[1]} columns"),
    ):
        with pytest.raises(error, match=match):
            ImputationDisplay.from_estimator(imputer, **options)
    assert not pyplot.get_fignums()
