"""Convergence: what is drawn is the history of the fit; what cannot be drawn is refused."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from sklearn.cluster import KMeans
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from displays import NAN, made_history, points, rows_of_clients
from skfedem import FederatedGaussianMixture, FederatedMatrixImputer
from skfedem.inspection import ConvergenceDisplay, _runs
from skfedem.preprocessing import PerClient

# ---- one run


@pytest.mark.parametrize("x", ["round", "epoch", "bits"])
@pytest.mark.parametrize(
    "y", ["log_likelihood", "mean_field_sq_norm", "field_sq_norm", "step_size", "uplink_bits"]
)
def test_a_series_is_drawn_where_it_was_evaluated(pyplot, mixtures, x, y):
    history = mixtures[0].history_
    display = ConvergenceDisplay.from_estimator(mixtures[0], x=x, y=y)
    known = ~np.isnan(history[y].astype(float))
    assert known.any()
    along = np.cumsum(history["uplink_bits"]) if x == "bits" else history[x]
    (line,) = display.lines_[y]
    drawn = points(line)
    np.testing.assert_array_equal(drawn[0], along[known])
    np.testing.assert_array_equal(drawn[1], history[y][known])
    assert display.fill_between_[y] == []


def test_evaluations_are_sparse_in_the_runs_of_these_tests(mixtures):
    known = np.isfinite(mixtures[0].history_["log_likelihood"])
    assert 3 < known.sum() < len(known) / 2


def test_every_component_has_a_line(pyplot, mixtures):
    display = ConvergenceDisplay.from_estimator(mixtures[0], y=["weights", "n_active"])
    lines = display.lines_["weights"]
    assert [line.get_label() for line in lines] == ["0", "1", "2"]
    for line, weights in zip(lines, mixtures[0].history_["weights"].T, strict=True):
        np.testing.assert_array_equal(points(line)[1], weights)
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 3
    assert display.ax_[0].get_legend().get_title().get_text() == "component"


def test_the_criterion_and_the_field_are_drawn_unless_others_are_named(pyplot, mixtures, imputer):
    assert ConvergenceDisplay.from_estimator(mixtures[0]).y == [
        "log_likelihood",
        "mean_field_sq_norm",
    ]
    display = ConvergenceDisplay.from_estimator(imputer)
    assert display.y == ["objective", "mean_field_sq_norm"]
    np.testing.assert_array_equal(
        points(display.lines_["objective"][0])[1], imputer.history_["objective"]
    )


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
    xlabels = [axis.get_xlabel() for axis in display.ax_]
    assert xlabels == [""] * 4 + ["epochs"]
    display = ConvergenceDisplay.from_estimator(imputer, x="bits", y="singular_values")
    assert display.ax_.get_xlabel() == "uplink (bits)"


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


def test_a_logarithmic_axis_leaves_out_what_it_cannot_show(pyplot):
    history = made_history([0, 1, 2, 3], [1.0, 0.1, 0.0, 0.01])
    display = ConvergenceDisplay(history, x="epoch", y="loss").plot(yscale="log")
    np.testing.assert_array_equal(points(display.lines_["loss"][0])[1], [1, 0.1, NAN, 0.01])
    zeros = {**made_history([0, 1], [1.0, 2.0]), "field_sq_norm": np.zeros(2)}
    display = ConvergenceDisplay(zeros, y="field_sq_norm").plot()
    assert display.ax_.get_yscale() == "linear"
    some = {**made_history([0, 1], [1.0, 2.0]), "field_sq_norm": np.array([0.0, 1.0])}
    display = ConvergenceDisplay([zeros, some], y="field_sq_norm", labels=["a", "b"]).plot()
    assert display.ax_.get_yscale() == "log"
    with pytest.raises(ValueError, match="Expected positive values of 'loss' for yscale='log'"):
        ConvergenceDisplay(made_history([0, 1], [-1.0, 0.0]), y="loss").plot(yscale="log")


def test_what_is_positive_at_the_start_alone_is_not_on_two_logarithmic_axes(pyplot):
    history = {**made_history([0, 1], [1.0, 0.0]), "field_sq_norm": np.array([1.0, 0.0])}
    display = ConvergenceDisplay(history, y="field_sq_norm").plot(xscale="log")
    display.figure_.canvas.draw()
    assert display.ax_.get_yscale() == "linear"
    with pytest.raises(ValueError, match="Expected positive values of 'loss' for yscale='log'"):
        ConvergenceDisplay(history, y="loss").plot(xscale="log", yscale="log")


def test_pipelines_and_searches_are_their_last_step_and_best_estimator(pyplot):
    rows = np.concatenate(rows_of_clients())
    pipeline = make_pipeline(StandardScaler(), FederatedGaussianMixture(2, random_state=0))
    search = GridSearchCV(pipeline, {"federatedgaussianmixture__n_components": [2]}, cv=2)
    for estimator in (pipeline.fit(rows), search.fit(rows)):
        last = getattr(estimator, "best_estimator_", estimator)[-1]
        display = ConvergenceDisplay.from_estimator(estimator, y="log_likelihood")
        values = last.history_["log_likelihood"]
        np.testing.assert_array_equal(points(display.lines_["log_likelihood"][0])[1], values)


def test_runs_may_be_added_to_axes_of_ones_own(pyplot, mixtures):
    figure, axes = pyplot.subplots(1, 2)
    y = ["log_likelihood", "weights"]
    display = ConvergenceDisplay.from_estimator(mixtures[0], y=y, ax=axes, name="one")
    assert display.figure_ is figure
    assert list(display.ax_) == list(axes)
    ConvergenceDisplay.from_estimator(mixtures[1], y=y, ax=display.ax_, name="other")
    assert len(axes[0].lines) == 2
    assert axes[0].lines[0].get_color() != axes[0].lines[1].get_color()
    assert [text.get_text() for text in axes[0].get_legend().get_texts()] == ["one", "other"]
    assert [text.get_text() for text in axes[1].get_legend().get_texts()][2:4] == [
        "one 2",
        "other 0",
    ]
    single = ConvergenceDisplay.from_estimator(mixtures[0], y="weights", ax=axes[1])
    assert single.ax_ is axes[1]


def test_options_of_lines_reach_them(pyplot, mixtures):
    options = {"color": "red", "linewidth": 3}
    display = ConvergenceDisplay.from_estimator(mixtures[0], y="step_size", line_kw=options)
    (line,) = display.lines_["step_size"]
    assert (line.get_color(), line.get_linewidth()) == ("red", 3)


def test_points_that_no_line_leads_to_are_marked(pyplot):
    # Of a long series with zeros on a log axis, a line has what is positive at two in a row.
    loss = np.zeros(100)
    loss[[3, 10, 11, 20, 21, 22, 40, *range(50, 80), 99]] = 1.0
    display = ConvergenceDisplay(made_history(range(100), loss), y="loss").plot(yscale="log")
    (line,) = display.lines_["loss"]
    assert line.get_marker() == "."
    x = points(line)[0]
    assert x[np.array(line.get_markevery())].tolist() == [3, 40, 99]
    # With a marker of one's own, all are marked.
    display.plot(yscale="log", line_kw={"marker": "s"})
    (line,) = display.lines_["loss"]
    assert (line.get_marker(), line.get_markevery()) == ("s", None)
    # Few points are all marked, however many are not drawn.
    loss[20:] = 0.0
    display = ConvergenceDisplay(made_history(range(100), loss), y="loss").plot(yscale="log")
    (line,) = display.lines_["loss"]
    assert (line.get_marker(), line.get_markevery()) == (".", None)


def test_a_stream_is_drawn_by_what_it_has(pyplot):
    gm = FederatedGaussianMixture(2, random_state=0)
    for _ in range(4):
        gm.partial_fit(rows_of_clients())
    assert ConvergenceDisplay.from_estimator(gm).y == ["log_likelihood"]
    # ... and so it is beside a fit, which has more.
    fitted = FederatedGaussianMixture(2, random_state=0).fit(rows_of_clients())
    for runs in ([fitted, gm], [gm, fitted]):
        display = ConvergenceDisplay.from_estimators(runs, labels=["fit", "stream"])
        assert display.y == ["log_likelihood"]


def test_frozen_pipelines_are_drawn_and_searches_without_a_fit_refused(pyplot):
    clients = rows_of_clients()
    pipeline = make_pipeline(PerClient(StandardScaler()), FederatedGaussianMixture(random_state=0))
    display = ConvergenceDisplay.from_estimator(FrozenEstimator(pipeline.fit(clients)))
    np.testing.assert_array_equal(
        points(display.lines_["log_likelihood"][0])[1], pipeline[-1].history_["log_likelihood"]
    )
    search = GridSearchCV(FederatedGaussianMixture(), {"n_components": [1, 2]}, cv=2, refit=False)
    with pytest.raises(TypeError, match="got GridSearchCV with refit=False.*refit=True"):
        ConvergenceDisplay.from_estimator(search.fit(clients))
    with pytest.raises(TypeError, match="Expected a list .*, got a dict.* keys as labels"):
        ConvergenceDisplay.from_estimators({"one": pipeline[-1]})


def test_bits_are_added_up_without_rounding():
    # Single precision has no 2**24 + 1.
    history = made_history(range(3), range(3), uplink_bits=np.array([2**24, 1, 1]))
    assert_array_equal(_runs.positions(history, "bits"), 2**24 + np.arange(3))


@pytest.mark.parametrize("y", ["n_active", "safeguarded"])
def test_the_start_is_no_point_of_what_only_rounds_have(y):
    history = made_history(range(3), np.zeros(3), **{y: np.array([0, 2, 3])})
    at, values = _runs.evaluated(history, "round", y)
    assert (at.tolist(), values.tolist()) == ([1, 2], [[2], [3]])


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("objective", "objective F (nats)"),
        ("n_active", "active clients"),
        ("uplink_bits", "uplink (bits per round)"),
        ("downlink_bits", "downlink (bits per round)"),
        ("safeguarded", "times the safeguard acted"),
        ("singular_values", "singular values"),
        ("of_my_own", "of my own"),
    ],
)
def test_other_series_are_labelled_by_what_they_are(pyplot, name, label):
    history = made_history(range(3), range(3)) | {name: np.arange(3)}
    assert ConvergenceDisplay(history, y=name).plot().ax_.get_ylabel() == label


@pytest.mark.parametrize("name", ["n_active", "safeguarded"])
def test_small_counts_of_rounds_have_whole_ticks(pyplot, name):
    history = made_history(range(3), range(3)) | {name: np.array([0, 0, 1])}
    ticks = ConvergenceDisplay(history, y=name).plot().ax_.get_yticks()
    assert_array_equal(ticks, np.round(ticks))


# ---- histories


@pytest.mark.parametrize(
    ("histories", "error", "says"),
    [
        (3, TypeError, "the history_ of a fit or several of them, got int"),
        (None, TypeError, "got NoneType"),
        ([made_history([0, 1], [1, 2.0]), 3], TypeError, "got int"),
        ([made_history([0, 1], [1, 2, 3.0])], ValueError, r"entry for each of the 2 in 'round'"),
        ([made_history([0, 1], 3.0)], ValueError, r"got shape \(\)"),
    ],
)
def test_what_is_no_history(histories, error, says):
    with pytest.raises(error, match=says):
        ConvergenceDisplay(histories, y="loss")


def test_histories_of_other_methods_need_the_column_of_their_x_axis(pyplot):
    own = {"uplink_bits": np.array([0, 10, 20]), "log_likelihood": np.array([-3.0, -2.0, -1.5])}
    display = ConvergenceDisplay([own], x="bits").plot()
    (line,) = display.lines_["log_likelihood"]
    assert_array_equal(line.get_xdata(), [0, 10, 30])
    for x in ("round", "epoch"):
        with pytest.raises(ValueError, match=f"run 1 to have '{x}' for x='{x}', got 'uplink_bits'"):
            ConvergenceDisplay([own | {x: np.arange(3)}, own], x=x)


def test_histories_may_be_frames_of_polars(pyplot, mixtures):
    polars = pytest.importorskip("polars")
    plain = [gm.history_ for gm in mixtures[:2]]
    for given, runs in ((plain[0], plain[:1]), (plain, plain)):
        frames = [polars.DataFrame(dict(run)) for run in runs]
        drawn = [
            ConvergenceDisplay(histories, y=["log_likelihood", "weights"], x="bits").plot()
            for histories in (given, frames[0] if given is plain[0] else frames)
        ]
        for name in drawn[0].lines_:
            want, got = ([points(line) for line in display.lines_[name]] for display in drawn)
            assert_array_equal(got, want)


@pytest.mark.parametrize("x", ["round", "bits"])
@pytest.mark.parametrize("kind", ["frames", "slices of frames", "lists"])
def test_histories_may_be_data_frames_or_lists(pyplot, mixtures, kind, x):
    plain = [{k: v for k, v in gm.history_.items() if k != "weights"} for gm in mixtures[:2]]
    given = {
        "frames": [pd.DataFrame(history) for history in plain],
        "slices of frames": [pd.DataFrame(history, index=range(5, 5 + len(history["round"])))
                             for history in plain],
        "lists": [{name: column.tolist() for name, column in run.items()} for run in plain],
    }[kind]  # fmt: skip
    want, got = (
        ConvergenceDisplay(runs, y="log_likelihood", x=x).plot() for runs in (plain, given)
    )
    assert_array_equal(
        points(got.lines_["log_likelihood"][0]), points(want.lines_["log_likelihood"][0])
    )


# ---- bad input


def test_unknown_series_are_answered_by_what_the_history_has(pyplot, mixtures, imputer):
    with pytest.raises(ValueError, match="got 'loglik'. It has 'round', 'epoch'.*'weights'"):
        ConvergenceDisplay.from_estimator(mixtures[0], y=["weights", "loglik"])
    with pytest.raises(ValueError, match="history of run 1, got 'weights'.*'singular_values'"):
        ConvergenceDisplay.from_estimators([mixtures[0], imputer], y="weights")
    with pytest.raises(ValueError, match="x to be one of 'round', 'epoch', 'bits', got 'time'"):
        ConvergenceDisplay.from_estimator(mixtures[0], x="time")
    with pytest.raises(ValueError, match="at least one series, got none. The history has 'round'"):
        ConvergenceDisplay.from_estimator(mixtures[0], y=[])
    with pytest.raises(ValueError, match="y to name series of the history, got 5. It has 'round'"):
        ConvergenceDisplay.from_estimator(mixtures[0], y=5)


def test_what_is_no_fitted_estimator_is_refused(pyplot):
    rows = np.concatenate(rows_of_clients())
    for unfitted in (
        FederatedGaussianMixture(),
        FederatedMatrixImputer(),
        make_pipeline(StandardScaler(), FederatedGaussianMixture()),
        GridSearchCV(FederatedGaussianMixture(), {}),
    ):
        with pytest.raises(NotFittedError):
            ConvergenceDisplay.from_estimator(unfitted)
    with pytest.raises(TypeError, match="a history_.*got KMeans"):
        ConvergenceDisplay.from_estimator(KMeans(2).fit(rows))
    fitted = FederatedGaussianMixture(random_state=0).fit(rows)
    for single in (fitted, None):
        with pytest.raises(TypeError, match="Expected a list of fitted estimators, got one"):
            ConvergenceDisplay.from_estimators(single)
    with pytest.raises(ValueError, match="at least one run, got none"):
        ConvergenceDisplay.from_estimators([])
    with pytest.raises(NotFittedError):
        ConvergenceDisplay.from_estimators([fitted, FederatedGaussianMixture()])


def test_a_series_that_was_never_evaluated_is_refused(pyplot):
    gm = FederatedGaussianMixture(2, eval_every=None, random_state=0).fit(rows_of_clients())
    with pytest.raises(ValueError, match="Draw one of 'round'.*or fit .* with eval_every='auto'"):
        ConvergenceDisplay.from_estimator(gm, y="log_likelihood")
    assert not pyplot.get_fignums()
    ConvergenceDisplay.from_estimator(gm, y="field_sq_norm")


def test_bad_options_draw_nothing(pyplot, mixtures):
    display = ConvergenceDisplay([gm.history_ for gm in mixtures])
    for options, match in (
        ({"yscale": "cubic"}, "yscale to be one of"),
        ({"yscale": 5}, "yscale to be one of .* got 5"),
        ({"yscale": ["log"]}, "one for each of the 2 series, got 1"),
        ({"xscale": "auto"}, "xscale to be one of 'linear', 'log'"),
        ({"quantiles": (0.9, 0.1)}, "quantiles to be two numbers"),
        ({"quantiles": (-0.1, 0.9)}, "quantiles to be two numbers"),
        ({"quantiles": (0.1, 1.1)}, "quantiles to be two numbers"),
        ({"quantiles": 0.9}, "quantiles to be two numbers"),
        ({"quantiles": np.array([0.9, 0.1])}, "quantiles to be two numbers"),
    ):
        with pytest.raises(ValueError, match=match):
            display.plot(**options)
    assert not pyplot.get_fignums()
    _, axes = pyplot.subplots(3)
    with pytest.raises(ValueError, match="Expected 2 matplotlib Axes .* got 3.*new figure.$"):
        display.plot(ax=axes)
    with pytest.raises(ValueError, match="got 1.*or draw one series, as with y='log_likelihood'"):
        display.plot(ax=axes[0])
    with pytest.raises(TypeError, match="Expected ax to be matplotlib Axes, or several, got str"):
        display.plot(ax=["left", "right"])


def test_histories_among_estimators_are_sent_to_the_class(pyplot, mixtures):
    for history in (mixtures[0].history_, pd.DataFrame({"round": [0, 1]})):
        kind = type(history).__name__
        with pytest.raises(TypeError, match=f"got a {kind}. Give histories to the class itself"):
            ConvergenceDisplay.from_estimators([mixtures[0], history])


def test_an_empty_history_was_never_evaluated(pyplot):
    history = {"round": [], "log_likelihood": []}
    with pytest.raises(ValueError, match="to draw, got none: it was never evaluated"):
        ConvergenceDisplay(history, y="log_likelihood").plot()


def test_a_list_is_sent_to_from_estimators(pyplot, mixtures):
    with pytest.raises(TypeError, match="Use from_estimators"):
        ConvergenceDisplay.from_estimator(list(mixtures))


def test_what_to_draw_instead_can_be_drawn(pyplot):
    gm = FederatedGaussianMixture(2, max_iter=0, random_state=0).fit(rows_of_clients())
    with pytest.raises(ValueError, match="Draw one of 'round', 'epoch',") as caught:
        ConvergenceDisplay.from_estimator(gm, y="n_active")
    assert "Draw one of" in str(caught.value)
    named = str(caught.value).split("Draw one of ")[1].split(", or fit")[0].split(", ")
    ConvergenceDisplay.from_estimator(gm, y=[name.strip("'") for name in named])
    with pytest.raises(ValueError, match=r"logarithmic x axis\. Fit .* for at least one round\."):
        ConvergenceDisplay.from_estimator(gm, y="log_likelihood", xscale="log")
