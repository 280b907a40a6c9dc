"""What ConvergenceDisplay draws is the history of the fit."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.cluster import KMeans
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from displays import NAN, ROUNDING, made_history, points, rows_of_clients
from skfedem import FederatedGaussianMixture, FederatedMatrixImputer
from skfedem.inspection import ConvergenceDisplay
from skfedem.preprocessing import PerClient

# ---- one run


@pytest.mark.parametrize("x", ["round", "epoch", "bits"])
@pytest.mark.parametrize("y", ["log_likelihood", "field_sq_norm", "uplink_bits"])
def test_a_series_is_drawn_where_it_was_evaluated(pyplot, mixtures, x, y):
    history = mixtures[0].history_
    display = ConvergenceDisplay.from_estimator(mixtures[0], x=x, y=y)
    known = ~np.isnan(history[y].astype(float))
    assert known.any()
    along = np.cumsum(history["uplink_bits"]) if x == "bits" else history[x]
    (line,) = display.lines_[y]
    assert_array_equal(points(line), [along[known], history[y][known]])
    assert display.fill_between_[y] == []


def test_evaluations_are_sparse_in_the_runs_of_these_tests(mixtures):
    known = np.isfinite(mixtures[0].history_["log_likelihood"])
    assert 3 < known.sum() < len(known) / 2


def test_every_component_has_a_line(pyplot, mixtures):
    display = ConvergenceDisplay.from_estimator(mixtures[0], y=["weights", "n_active"])
    lines = display.lines_["weights"]
    assert [line.get_label() for line in lines] == ["0", "1", "2"]
    for line, weights in zip(lines, mixtures[0].history_["weights"].T, strict=True):
        assert_array_equal(points(line)[1], weights)
    assert len({line.get_color() for line in lines}) == 3
    assert display.ax_[0].get_legend().get_title().get_text() == "component"


def test_the_criterion_and_the_mean_field_are_the_default_series(pyplot, mixtures, imputer):
    usual = ["log_likelihood", "mean_field_sq_norm"]
    assert ConvergenceDisplay.from_estimator(mixtures[0]).y == usual
    assert ConvergenceDisplay.from_estimator(imputer).y == ["objective", "mean_field_sq_norm"]
    stream = FederatedGaussianMixture(2, random_state=0).partial_fit(rows_of_clients())
    for runs in ([mixtures[0], stream], [stream, mixtures[0]]):
        display = ConvergenceDisplay.from_estimators(runs, labels=["a", "b"])
        assert display.y == ["log_likelihood"]


def test_labels_have_units_and_symbols(pyplot, mixtures, imputer):
    y = ["log_likelihood", "mean_field_sq_norm", "field_sq_norm", "weights", "step_size"]
    display = ConvergenceDisplay.from_estimator(mixtures[0], x="epoch", y=y)
    assert [axis.get_ylabel() for axis in display.ax_] == [
        "log-likelihood (nats per row)",
        "‖h(Ŝ)‖², mean field",
        "‖H‖², field",
        "weights π",
        "step size γ",
    ]
    assert [axis.get_xlabel() for axis in display.ax_] == [""] * 4 + ["epochs"]
    display = ConvergenceDisplay.from_estimator(imputer, x="bits", y="singular_values")
    assert (display.ax_.get_xlabel(), display.ax_.get_ylabel()) == (
        "uplink (bits)",
        "singular values",
    )


@pytest.mark.parametrize("name", ["n_active", "safeguarded"])
def test_counts_of_rounds_have_integer_ticks(pyplot, name):
    history = made_history(range(3), range(3)) | {name: np.array([0, 0, 1])}
    ticks = ConvergenceDisplay(history, y=name).plot().ax_.get_yticks()
    assert_array_equal(ticks, np.round(ticks))


def test_scales_are_those_of_the_series_unless_given(pyplot, mixtures):
    y = ["log_likelihood", "mean_field_sq_norm"]
    display = ConvergenceDisplay.from_estimator(mixtures[0], y=y)
    assert [axis.get_yscale() for axis in display.ax_] == ["linear", "log"]
    display.plot(yscale="linear", xscale="log")
    assert [axis.get_yscale() for axis in display.ax_] == ["linear", "linear"]
    assert [axis.get_xscale() for axis in display.ax_] == ["log", "log"]
    assert points(display.lines_["log_likelihood"][0])[0].min() > 0
    display.plot(yscale=["linear", "log"])
    assert [axis.get_yscale() for axis in display.ax_] == ["linear", "log"]


def test_a_logarithmic_axis_has_positive_values(pyplot):
    history = made_history([0, 1, 2, 3], [1.0, 0.1, 0.0, 0.01])
    display = ConvergenceDisplay(history, x="epoch", y="loss").plot(yscale="log")
    assert_array_equal(points(display.lines_["loss"][0])[1], [1, 0.1, NAN, 0.01])
    zeros = made_history([0, 1], [1.0, 2.0], field_sq_norm=np.zeros(2))
    assert ConvergenceDisplay(zeros, y="field_sq_norm").plot().ax_.get_yscale() == "linear"
    start = made_history([0, 1], [1.0, 0.0], field_sq_norm=np.array([1.0, 0.0]))
    display = ConvergenceDisplay(start, y="field_sq_norm").plot(xscale="log")
    assert display.ax_.get_yscale() == "linear"
    with pytest.raises(ValueError, match="Expected positive values of 'loss' for yscale='log'"):
        ConvergenceDisplay(start, y="loss").plot(xscale="log", yscale="log")


def test_few_points_have_markers(pyplot):
    for n_points, marker in ((30, "."), (31, "None")):
        history = made_history(range(n_points), np.arange(float(n_points)))
        (line,) = ConvergenceDisplay(history, y="loss").plot().lines_["loss"]
        assert line.get_marker() == marker
    (line,) = ConvergenceDisplay(history, y="loss").plot(line_kw={"marker": "s"}).lines_["loss"]
    assert line.get_marker() == "s"


# ---- several runs


def test_mean_and_band_over_seeds(pyplot, mixtures):
    display = ConvergenceDisplay.from_estimators(mixtures, y="step_size", quantiles=(0.25, 0.75))
    stacked = np.stack([gm.history_["step_size"][1:] for gm in mixtures])
    ((line,), (band,)) = display.lines_["step_size"], display.fill_between_["step_size"]
    assert_allclose(points(line)[1], stacked.mean(axis=0), **ROUNDING)
    corners = band.get_paths()[0].vertices[:, 1]
    low, high = np.quantile(stacked, [0.25, 0.75], axis=0)
    assert_allclose([corners.min(), corners.max()], [low.min(), high.max()], **ROUNDING)
    assert display.plot(quantiles=None).fill_between_ == {"step_size": []}


def test_every_component_has_a_band(pyplot):
    weights = [np.array([[0.7, 0.3]] * 2), np.array([[0.9, 0.1]] * 2)]
    histories = [made_history([0, 1], [1, 2], weights=run) for run in weights]
    display = ConvergenceDisplay(histories, y="weights").plot(quantiles=(0, 1))
    heights = [band.get_paths()[0].vertices[:, 1] for band in display.fill_between_["weights"]]
    assert [(low.min(), low.max()) for low in heights] == [(0.7, 0.9), (0.1, 0.3)]


def test_runs_with_one_label_form_a_group(pyplot, mixtures):
    display = ConvergenceDisplay.from_estimators(
        mixtures, labels=["b", "a", "b"], y=["mean_field_sq_norm", "weights"]
    )
    lines = display.lines_["mean_field_sq_norm"]
    assert [line.get_label() for line in lines] == ["b", "a"]
    assert len(display.fill_between_["mean_field_sq_norm"]) == 1
    alone = mixtures[1].history_["mean_field_sq_norm"]
    assert_array_equal(points(lines[1])[1], alone[~np.isnan(alone)])
    # A group's components look alike, and groups have one look on all axes.
    colors = [line.get_color() for line in display.lines_["weights"]]
    assert colors == [lines[0].get_color()] * 3 + [lines[1].get_color()] * 3


@pytest.mark.parametrize("n_groups", [1, 3])
def test_legends_of_components_and_of_groups(pyplot, mixtures, n_groups):
    names = ["a", "b", "c"][:n_groups]
    display = ConvergenceDisplay.from_estimators(
        mixtures[:n_groups], labels=names, y=["weights", "log_likelihood", "step_size"]
    )
    texts = [
        [text.get_text() for text in axis.get_legend().get_texts()] if axis.get_legend() else []
        for axis in display.ax_
    ]
    # Components are told apart in a single group; otherwise, one legend of groups serves all axes.
    assert texts == ([["a 0", "a 1", "a 2"], ["a"], []] if n_groups == 1 else [names, [], []])


def test_a_legend_of_many_components_lists_some_of_them(pyplot):
    history = made_history([0, 1], [1, 2], weights=np.full((2, 60), 0.1))
    display = ConvergenceDisplay(history, y="weights").plot()
    legend, lines = display.ax_.get_legend(), display.lines_["weights"]
    assert [int(text.get_text()) for text in legend.get_texts()] == list(range(0, 60, 5))
    colors = [line.get_color() for line in legend.legend_handles]
    assert colors == [line.get_color() for line in lines[::5]]


def test_runs_are_added_to_given_axes(pyplot, mixtures):
    figure, axes = pyplot.subplots(1, 2)
    y = ["log_likelihood", "weights"]
    display = ConvergenceDisplay.from_estimator(mixtures[0], y=y, ax=axes, name="one")
    assert display.figure_ is figure
    assert list(display.ax_) == list(axes)
    ConvergenceDisplay.from_estimator(mixtures[1], y=y, ax=display.ax_, name="other")
    assert axes[0].lines[0].get_color() != axes[0].lines[1].get_color()
    texts = [[text.get_text() for text in axis.get_legend().get_texts()] for axis in axes]
    assert texts[0] == ["one", "other"]
    assert texts[1] == ["one 0", "one 1", "one 2", "other 0", "other 1", "other 2"]


def test_histories_are_not_changed(pyplot, mixtures):
    before = {name: column.copy() for name, column in mixtures[0].history_.items()}
    ConvergenceDisplay.from_estimators(mixtures, x="bits", y=list(before)).plot(xscale="log")
    for name, column in before.items():
        assert_array_equal(mixtures[0].history_[name], column)


def test_colors_differ_from_each_other_and_from_the_background(pyplot):
    from matplotlib.colors import to_hex

    histories = [made_history(range(3), np.arange(3.0) + k) for k in range(28)]
    with pyplot.style.context("dark_background"):
        display = ConvergenceDisplay(histories, y="loss", labels=range(28)).plot()
    lines = display.lines_["loss"]
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 28
    assert to_hex(display.ax_.get_facecolor()) not in {to_hex(line.get_color()) for line in lines}
    assert [line.get_label() for line in lines[:2]] == ["0", "1"]


# ---- options


@pytest.mark.parametrize(
    ("options", "attribute", "value"),
    [({"c": "red"}, "color", "red"), ({"linewidth": 3}, "linewidth", 3)],
)
def test_options_of_lines_and_their_aliases(pyplot, mixtures, options, attribute, value):
    display = ConvergenceDisplay.from_estimators(
        mixtures, labels=["a", "b", "b"], y="weights", line_kw=options
    )
    for line in display.lines_["weights"]:
        assert pyplot.getp(line, attribute) == value


def test_options_of_bands_and_their_aliases(pyplot, mixtures):
    from matplotlib.colors import to_rgba

    display = ConvergenceDisplay.from_estimators(
        mixtures, y="step_size", fill_between_kw={"fc": "red", "lw": 2, "alpha": 0.5}
    )
    (band,) = display.fill_between_["step_size"]
    assert_array_equal(band.get_facecolor(), [to_rgba("red", 0.5)])
    assert band.get_linewidth() == 2


# ---- input


def test_pipelines_and_searches_are_drawn_by_their_last_step(pyplot):
    rows = np.concatenate(rows_of_clients())
    pipeline = make_pipeline(StandardScaler(), FederatedGaussianMixture(2, random_state=0))
    search = GridSearchCV(pipeline, {"federatedgaussianmixture__n_components": [2]}, cv=2)
    per_client = make_pipeline(
        PerClient(StandardScaler()), FederatedGaussianMixture(random_state=0)
    ).fit(rows_of_clients())
    for estimator, last in (
        (pipeline.fit(rows), pipeline[-1]),
        (search.fit(rows), search.best_estimator_[-1]),
        (FrozenEstimator(per_client), per_client[-1]),
    ):
        display = ConvergenceDisplay.from_estimator(estimator, y="log_likelihood")
        values = last.history_["log_likelihood"]
        assert_array_equal(points(display.lines_["log_likelihood"][0])[1], values)


@pytest.mark.parametrize("kind", ["frames", "lists"])
def test_histories_may_be_data_frames_or_lists(pyplot, mixtures, kind):
    plain = [{k: v for k, v in gm.history_.items() if k != "weights"} for gm in mixtures[:2]]
    given = {
        "frames": [pd.DataFrame(run, index=range(5, 5 + len(run["round"]))) for run in plain],
        "lists": [{name: column.tolist() for name, column in run.items()} for run in plain],
    }[kind]
    want, got = (
        ConvergenceDisplay(runs, y="log_likelihood", x="bits").plot() for runs in (plain, given)
    )
    assert_array_equal(
        points(got.lines_["log_likelihood"][0]), points(want.lines_["log_likelihood"][0])
    )


@pytest.mark.parametrize(
    ("histories", "error", "says"),
    [
        (3, TypeError, "the history_ of a fit or several of them, got int"),
        ([], ValueError, "at least one run, got none"),
        ([made_history([0, 1], [1, 2, 3.0])], ValueError, r"entry for each of the 2 in 'round'"),
        ([made_history([0, 1], 3.0)], ValueError, r"got shape \(\)"),
        ([{"epoch": [1], "loss": [1]}], ValueError, "run 0 to have 'round' for x='round'"),
    ],
)
def test_histories_are_checked(histories, error, says):
    with pytest.raises(error, match=says):
        ConvergenceDisplay(histories, y="loss")


def test_parameters_of_the_class_are_checked(mixtures, imputer):
    runs = [gm.history_ for gm in mixtures]
    for histories, parameters, says in (
        (runs, {"y": ["weights", "loglik"]}, "got 'loglik'. It has 'round', 'epoch'.*'weights'"),
        ([runs[0], imputer.history_], {"y": "weights"}, "run 1, got 'weights'.*'singular_values'"),
        (runs, {"x": "time"}, "x to be one of 'round', 'epoch', 'bits', got 'time'"),
        (runs, {"y": []}, "at least one series, got none"),
        (runs, {"y": 5}, "y to name series of the history of run 0, got 5. It has 'round'"),
        (runs, {"labels": ["a", "b"]}, "a label for each of the 3 runs, got 2"),
    ):
        with pytest.raises(ValueError, match=says):
            ConvergenceDisplay(histories, **parameters)


def test_options_of_plots_are_checked_before_a_figure_is_made(pyplot, mixtures):
    display = ConvergenceDisplay([gm.history_ for gm in mixtures])
    for options, match in (
        ({"yscale": "cubic"}, "yscale to be one of"),
        ({"yscale": ["log"]}, "one for each of the 2 series, got 1"),
        ({"xscale": "auto"}, "xscale to be one of 'linear', 'log'"),
        ({"quantiles": (0.9, 0.1)}, "quantiles to be two numbers"),
        ({"quantiles": (0.1, 1.1)}, "quantiles to be two numbers"),
        ({"quantiles": 0.9}, "quantiles to be two numbers"),
    ):
        with pytest.raises(ValueError, match=match):
            display.plot(**options)
    assert not pyplot.get_fignums()
    _, axes = pyplot.subplots(3)
    with pytest.raises(ValueError, match="Expected 2 matplotlib Axes .* got 3.*new figure.$"):
        display.plot(ax=axes)
    with pytest.raises(TypeError, match="Expected ax to be matplotlib Axes, or several, got str"):
        display.plot(ax=["left", "right"])


def test_estimators_are_checked(pyplot):
    rows = np.concatenate(rows_of_clients())
    for unfitted in (
        FederatedGaussianMixture(),
        FederatedMatrixImputer(),
        make_pipeline(StandardScaler(), FederatedGaussianMixture()),
        GridSearchCV(FederatedGaussianMixture(), {}),
    ):
        with pytest.raises(NotFittedError):
            ConvergenceDisplay.from_estimator(unfitted)
    for other in (KMeans(2).fit(rows), np.zeros((50, 50)), FederatedGaussianMixture):
        with pytest.raises(TypeError):
            ConvergenceDisplay.from_estimator(other)
    fitted = FederatedGaussianMixture(random_state=0).fit(rows)
    for single in (fitted, {"one": fitted}):
        with pytest.raises(TypeError, match="Expected a list of fitted estimators, got one"):
            ConvergenceDisplay.from_estimators(single)


def test_a_series_without_values_is_an_error(pyplot, mixtures):
    gm = FederatedGaussianMixture(2, eval_every=None, random_state=0).fit(rows_of_clients())
    says = "'log_likelihood' to draw, got none: it was never evaluated. .*eval_every='auto'"
    with pytest.raises(ValueError, match=says):
        ConvergenceDisplay.from_estimator(gm, y="log_likelihood")
    assert not pyplot.get_fignums()
    with pytest.raises(ValueError, match=r"as many components in 'weights', got 2 and 3"):
        ConvergenceDisplay.from_estimators([mixtures[0], gm], y="weights")
