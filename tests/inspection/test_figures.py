"""Figures are legible at the size of the documentation and on small axes; examples run."""

import doctest
import itertools
import sys

import numpy as np
import pytest

from displays import COLUMNS, counts_of_clients, made_history
from skfedem import FederatedGaussianMixture, FederatedMatrixImputer
from skfedem.inspection import (
    ConvergenceDisplay,
    GoodnessOfFitDisplay,
    ImputationDisplay,
    IndividualFitDisplay,
    VisualPredictiveCheckDisplay,
    _convergence,
    _goodness_of_fit,
    _imputation,
    _individual_fit,
    _predictive_check,
)

MONTHS = np.arange("1995-01", "2015-01", dtype="datetime64[M]")


def assert_legible(figure):
    """Tick labels are apart, and nothing is outside of the figure."""
    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()
    for axis in figure.axes:
        low, high = sorted(axis.get_xlim())
        labels = [
            label.get_window_extent(renderer)
            for label in axis.get_xticklabels()
            if label.get_text() and low <= label.get_position()[0] <= high
        ]
        if axis.xaxis.get_tick_params().get("labelrotation", 0) == 0 and all(
            label.get_rotation() == 0 for label in axis.get_xticklabels()
        ):
            boxes = sorted(labels, key=lambda box: box.x0)
            assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))
        extent = axis.get_tightbbox(renderer)
        # Rounding to pixels.
        assert extent.x0 >= -1 and extent.y0 >= -1
        assert extent.x1 <= figure.bbox.x1 + 1 and extent.y1 <= figure.bbox.y1 + 1


@pytest.mark.slow
def test_convergence_of_groups_is_legible(pyplot, mixtures):
    labels = ["participation 0.5, ω = 1", "participation 1.0, ω = 1", "all"]
    y = ["log_likelihood", "mean_field_sq_norm", "weights"]
    figure = ConvergenceDisplay.from_estimators(mixtures, labels=labels, x="bits", y=y).figure_
    assert_legible(figure)
    for axis in figure.axes:
        assert axis.get_position().width >= 0.7
        assert axis.get_position().height * figure.get_figheight() >= 1.5  # inches


@pytest.mark.slow
def test_legends_above_the_axes_leave_them_their_width(pyplot):
    labels = [f"a setting of this length {k}" for k in range(9)]
    display = ConvergenceDisplay([made_history(range(9), range(9))] * 9, y="loss", labels=labels)
    axis = display.plot().ax_
    assert_legible(axis.figure)
    assert axis.get_position().width >= 0.7
    assert len(axis.get_legend().get_texts()) == 9


@pytest.mark.slow
def test_legends_of_components_leave_the_axes_their_size(pyplot):
    weights = np.full((9, 60), 0.1)
    history = made_history(range(9), range(9), weights=weights)
    display = ConvergenceDisplay(history, y=["loss", "weights"]).plot()
    assert_legible(display.figure_)
    assert display.ax_[1].get_position().width > 0.7


@pytest.mark.slow
@pytest.mark.parametrize("bits", [[1000, 50, 60, 50], [10, 10**7]])
@pytest.mark.parametrize("xscale", ["linear", "log"])
def test_labels_of_bits_differ(pyplot, bits, xscale):
    history = made_history(range(len(bits)), range(len(bits)), uplink_bits=np.array(bits))
    axis = ConvergenceDisplay(history, x="bits", y="loss").plot(xscale=xscale).ax_
    assert_legible(axis.figure)
    low, high = axis.get_xlim()
    labels = [*axis.get_xticklabels(), *axis.get_xticklabels(minor=True)]
    texts = [
        label.get_text()
        for label in labels
        if label.get_text() and low <= label.get_position()[0] <= high
    ]
    assert texts and len(set(texts)) == len(texts)
    assert not any(text.endswith("m") for text in texts)  # no thousandths of a bit


@pytest.mark.slow
@pytest.mark.parametrize("window", [None, 12])
def test_a_trend_is_legible(pyplot, imputer, window):
    display = ImputationDisplay.from_estimator(
        imputer, counts_of_clients(), column_labels=COLUMNS, window=window, row_name="sites"
    )
    figure, (trend, effort) = display.figure_, display.ax_
    assert_legible(figure)
    assert len(trend.get_legend().get_texts()) == 3 + (window is not None)
    assert trend.get_position().width >= 0.7
    assert trend.get_position().height * figure.get_figheight() >= 2.4  # inches
    upper, lower = (axis.yaxis.label.get_window_extent() for axis in (trend, effort))
    assert lower.y1 < upper.y0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_rows", "labels"), [(400, MONTHS), (40, [f"Haematopus {k}" for k in range(240)])]
)
def test_heat_maps_are_legible(pyplot, n_rows, labels):
    values = np.random.default_rng(0).poisson(30_000, (n_rows, 240)).astype(float)
    display = ImputationDisplay(
        trend=values.sum(axis=0),
        fitted=values,
        n_rows=n_rows,
        observed=values,
        column_labels=labels,
    ).plot(kind="heatmap", row_name="sites")
    assert_legible(display.figure_)
    assert all(axis.get_position().width > 0.28 for axis in display.ax_)


@pytest.mark.slow
@pytest.mark.parametrize("n_months", [2, 23, 25, 400])
def test_small_axes_have_ticks_for_any_span_of_dates(pyplot, n_months):
    months = (np.datetime64("2000-01") + np.arange(n_months)).astype("M8[D]")
    values = np.ones((3, n_months))
    display = ImputationDisplay(trend=values[0], fitted=values, n_rows=3, column_labels=months)
    figure, axis = pyplot.subplots(figsize=(1.8, 2), layout="constrained")
    display.plot(ax=axis)  # matplotlib warns if it finds no ticks
    figure.draw_without_rendering()
    assert any(label.get_text() for label in axis.get_xticklabels())


@pytest.mark.slow
def test_displays_on_parts_of_a_figure_stay_there(pyplot, mixtures, imputer):
    left, right = pyplot.figure(figsize=(9, 4), layout="constrained").subfigures(1, 2)
    curves = ConvergenceDisplay.from_estimator(mixtures[0], y="weights", ax=left.subplots())
    ImputationDisplay.from_estimator(imputer, ax=right.subplots())
    assert_legible(left.figure)
    assert curves.ax_.get_legend().get_window_extent().x1 <= right.bbox.x0


@pytest.mark.slow
@pytest.mark.parametrize(
    "draw",
    [
        lambda model, X: GoodnessOfFitDisplay.from_estimator(model, X),
        lambda model, X: GoodnessOfFitDisplay.from_estimator(model, X, kind="residuals"),
        lambda model, X: IndividualFitDisplay.from_estimator(model, X),
        lambda model, X: IndividualFitDisplay.from_estimator(model, X, subjects=[1, 2, 3, 4]),
        lambda model, X: VisualPredictiveCheckDisplay.from_estimator(model, X, yscale="log"),
        lambda model, X: ConvergenceDisplay.from_estimator(model, y=list(model.standard_errors_)),
    ],
)
def test_displays_of_populations_are_legible(pyplot, population, theophylline, draw):
    assert_legible(draw(population, theophylline).figure_)


def test_matrices_and_histories_of_one_value(pyplot):
    zeros = np.zeros((1, 1))
    display = ImputationDisplay(
        trend=[0.0], fitted=zeros, n_rows=1, observed=zeros, observed_share=[1], observed_total=[0]
    )
    for kind in ("trend", "heatmap"):
        display.plot(kind=kind).figure_.draw_without_rendering()
    one = ConvergenceDisplay(made_history([0], [1.0]), y="loss").plot()
    one.figure_.draw_without_rendering()
    # A single point is seen only if it has a marker.
    assert one.lines_["loss"][0].get_marker() == "."


@pytest.mark.parametrize(
    "module", [_convergence, _goodness_of_fit, _imputation, _individual_fit, _predictive_check]
)
def test_examples_of_the_docstrings(pyplot, module):
    result = doctest.testmod(module)
    assert result.attempted >= 5
    assert result.failed == 0


def test_without_matplotlib_all_but_drawing_works(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # importing it raises ImportError
    gm = FederatedGaussianMixture(random_state=0).fit(np.arange(20.0).reshape(10, 2))
    imputer = FederatedMatrixImputer(1, random_state=0).fit(np.eye(4))
    drawing = {
        "ConvergenceDisplay.from_estimator": lambda: ConvergenceDisplay.from_estimator(gm),
        "ConvergenceDisplay.from_estimators": lambda: ConvergenceDisplay.from_estimators([gm]),
        "ConvergenceDisplay.plot": ConvergenceDisplay(gm.history_).plot,
        "ImputationDisplay.from_estimator": lambda: ImputationDisplay.from_estimator(imputer),
        "ImputationDisplay.plot": ImputationDisplay(trend=[1.0], fitted=[[1.0]], n_rows=1).plot,
    }
    for caller, draw in drawing.items():
        with pytest.raises(ImportError, match=f"^{caller} requires matplotlib"):
            draw()
