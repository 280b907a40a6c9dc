"""Displays: what is drawn is what was fitted, readably; nothing needs matplotlib but drawing."""

import doctest
import itertools
import sys

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy.sparse import coo_array
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from skfedem import (
    FederatedGaussianMixture,
    FederatedMatrixImputer,
    FederatedMatrixImputerCV,
)
from skfedem.inspection import (
    ConvergenceDisplay,
    ImputationDisplay,
    _columns,
    _convergence,
    _imputation,
    _matrix,
    _runs,
)
from skfedem.preprocessing import PerClient

NAN = np.nan
SHAPE = (14, 24)
COLUMNS = [f"{2000 + month // 12}-{month % 12 + 1:02d}" for month in range(SHAPE[1])]
# Sums of the same few hundred numbers in another order.
ROUNDING = {"rtol": 1e-12, "atol": 1e-12}


@pytest.fixture
def paper():
    """matplotlib without a screen, for what is measured; figures are closed afterwards."""
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    yield plt
    plt.close("all")


@pytest.fixture
def pyplot(paper, monkeypatch):
    """The same without layouts, most of the time that a figure takes, for all but what is measured.

    Axes stay where they are made; what is drawn in them does not depend on it.
    """
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    monkeypatch.setattr(ConstrainedLayoutEngine, "execute", lambda engine, figure: None)
    return paper


def rows_of_clients():
    generator = np.random.default_rng(0)
    return [generator.normal(center, 1, size=(30, 2)) for center in (-3, 0, 3)]


@pytest.fixture(scope="module")
def mixtures():
    """Runs with evaluations here and there, of unlike lengths in epochs and bits."""
    gm = FederatedGaussianMixture(3, omega=1.0, participation=0.7, max_iter=25, tol=0, eval_every=4)
    clients = rows_of_clients()
    with pytest.warns(Warning, match="Not converged"):
        return [clone(gm).set_params(random_state=seed).fit(clients) for seed in range(3)]


def counts_of_clients(n_clients=3):
    """Matrices with holes; some cells have several observers, column 5 and row 3 have none."""
    generator = np.random.default_rng(1)
    means = np.exp(generator.normal(1, 1, (SHAPE[0], 1)) + generator.normal(0, 0.3, SHAPE[1]))
    clients = []
    for _ in range(n_clients):
        table = generator.poisson(means).astype(float)
        table[generator.random(SHAPE) < 0.7] = NAN
        table[:, 5] = table[3] = NAN
        clients.append(table)
    return clients


@pytest.fixture(scope="module")
def imputer():
    model = FederatedMatrixImputer(2, family="poisson", penalty=2.0, random_state=0)
    return model.fit(counts_of_clients())


def pooled_means(clients):
    """Mean of the observations of each cell, NaN without one, by plain loops."""
    pooled = np.full(SHAPE, NAN)
    for cell in np.ndindex(SHAPE):
        seen = [table[cell] for table in clients if not np.isnan(table[cell])]
        if seen:
            pooled[cell] = sum(seen) / len(seen)
    return pooled


def made_history(at, values, **others):
    """History with a series that has these values at these epochs."""
    at = np.asarray(at, dtype=float)
    return {"round": np.arange(len(at)), "epoch": at, "loss": np.asarray(values), **others}


def points(line):
    return np.asarray(line.get_xdata(), dtype=float), np.asarray(line.get_ydata(), dtype=float)


# ---- convergence: one run


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


def test_what_only_rounds_have_begins_at_the_first_round(pyplot, mixtures):
    display = ConvergenceDisplay.from_estimator(mixtures[0], y="n_active")
    x, y = points(display.lines_["n_active"][0])
    np.testing.assert_array_equal(x, np.arange(1, 26))
    np.testing.assert_array_equal(y, mixtures[0].history_["n_active"][1:])


def test_default_series(pyplot, mixtures, imputer):
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


@pytest.mark.parametrize(
    "bits",
    [
        [1000, 50, 60, 50],
        [1868800960, 4000, 4000, 4100],
        [10**9, 5000, 5000, 5000],
        [10**9, 1, 0, 0],
        [0, 1],
        [10, 10**7],
    ],
    ids=["few", "most in the set-up", "in the seventh digit", "next to none", "one", "decades"],
)
@pytest.mark.parametrize("xscale", ["linear", "log"])
def test_labels_of_bits_are_apart(paper, bits, xscale):
    history = made_history(range(len(bits)), range(len(bits)), uplink_bits=np.array(bits))
    display = ConvergenceDisplay(history, x="bits", y="loss").plot(xscale=xscale)
    renderer = display.figure_.canvas.get_renderer()
    display.figure_.draw(renderer)
    low, high = display.ax_.get_xlim()
    labels = [
        label
        for label in [*display.ax_.get_xticklabels(), *display.ax_.get_xticklabels(minor=True)]
        if label.get_text() and low <= label.get_position()[0] <= high
    ]
    texts = [label.get_text() for label in labels]
    assert len(texts) >= 1 and len(set(texts)) == len(texts)
    assert not any(text.endswith("m") for text in texts)  # no thousandths of a bit
    boxes = sorted((label.get_window_extent(renderer) for label in labels), key=lambda box: box.x0)
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))


def test_scales(pyplot, mixtures):
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


def test_own_axes_and_runs_added_to_them(pyplot, mixtures):
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


def test_line_options(pyplot, mixtures):
    options = {"color": "red", "linewidth": 3}
    display = ConvergenceDisplay.from_estimator(mixtures[0], y="step_size", line_kw=options)
    (line,) = display.lines_["step_size"]
    assert (line.get_color(), line.get_linewidth()) == ("red", 3)


@pytest.mark.parametrize(
    ("options", "attribute", "value"),
    [
        ({"c": "red"}, "color", "red"),
        ({"ls": ":"}, "linestyle", ":"),
        ({"lw": 3}, "linewidth", 3),
        ({"mec": "red"}, "markeredgecolor", "red"),
    ],
)
def test_short_names_of_options_are_matplotlibs(
    pyplot, mixtures, imputer, options, attribute, value
):
    runs = ConvergenceDisplay.from_estimators(
        mixtures, labels=["a", "b", "b"], y="weights", line_kw=options
    )
    trend = ImputationDisplay.from_estimator(imputer, window=3, line_kw=options)
    for line in [*runs.lines_["weights"], trend.lines_[0]]:
        assert pyplot.getp(line, attribute) == value


@pytest.mark.parametrize(
    ("options", "face", "edge", "width"),
    [
        ({"lw": 2}, "C0", "C0", 2),
        ({"facecolor": "red"}, "red", "C0", 0),
        ({"edgecolor": "red", "linewidth": 1}, "C0", "red", 1),
        ({"facecolors": "red"}, "red", "C0", 0),
        ({"color": "red"}, "red", "red", 0),
    ],
)
def test_options_of_bands(pyplot, mixtures, options, face, edge, width):
    from matplotlib.colors import to_rgba

    display = ConvergenceDisplay.from_estimators(
        mixtures, y="step_size", line_kw={"color": "C0"}, fill_between_kw=options
    )
    (band,) = display.fill_between_["step_size"]
    np.testing.assert_array_equal(band.get_facecolor(), [to_rgba(face, 0.2)])
    np.testing.assert_array_equal(band.get_edgecolor(), [to_rgba(edge, 0.2)])
    assert band.get_linewidth() == width


# ---- convergence: several runs


def test_mean_and_band_over_seeds(pyplot, mixtures):
    display = ConvergenceDisplay.from_estimators(
        mixtures, y="step_size", quantiles=(0.25, 0.75), fill_between_kw={"alpha": 0.5}
    )
    stacked = np.stack([gm.history_["step_size"][1:] for gm in mixtures])
    ((line,), (band,)) = display.lines_["step_size"], display.fill_between_["step_size"]
    np.testing.assert_allclose(points(line)[1], stacked.mean(axis=0), **ROUNDING)
    corners = band.get_paths()[0].vertices
    low, high = np.quantile(stacked, [0.25, 0.75], axis=0)
    np.testing.assert_allclose(corners[:, 1].min(), low.min(), **ROUNDING)
    np.testing.assert_allclose(corners[:, 1].max(), high.max(), **ROUNDING)
    assert band.get_alpha() == 0.5
    display.plot(quantiles=(0.5, 0.5))
    again = display.plot(quantiles=np.array([0.25, 0.75])).fill_between_["step_size"][0]
    np.testing.assert_array_equal(again.get_paths()[0].vertices, corners)


def test_band_is_between_the_quantiles_at_every_point():
    histories = [made_history([0, 1, 2], values) for values in ([1, 5, 2], [3, 4, 8], [2, 9, 5.0])]
    curve = _runs.group_curve(
        None, histories, "epoch", "loss", log_x=False, log_y=False, quantiles=(0, 0.5)
    )
    np.testing.assert_array_equal(curve.middle[:, 0], [2, 6, 5])
    np.testing.assert_array_equal(curve.low[:, 0], [1, 4, 2])
    np.testing.assert_array_equal(curve.high[:, 0], [2, 5, 5])


@pytest.mark.parametrize("log_y", [False, True])
def test_runs_evaluated_elsewhere_are_interpolated_on_the_drawn_scale(log_y):
    # Straight lines on the scale that is drawn are met exactly, whatever the positions.
    straight = (lambda x: 10.0**-x) if log_y else (lambda x: 3.0 - x)
    at = [0, 1, 2.5, 4], [0.5, 0.75, 3, 6]
    histories = [made_history(places, straight(np.array(places))) for places in at]
    curve = _runs.group_curve(
        None, histories, "epoch", "loss", log_x=False, log_y=log_y, quantiles=None
    )
    # As far as both go.
    np.testing.assert_array_equal(curve.x, [0.5, 0.75, 1, 2.5, 3, 4])
    np.testing.assert_allclose(curve.middle[:, 0], straight(curve.x), **ROUNDING)
    assert curve.low is None


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


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ("red", TypeError, "Expected line_kw to be a dict"),
        ({"nokey": 1}, ValueError, "options of matplotlib's Line2D, .*'nokey'"),
        ({"color": "no colour"}, ValueError, "not a valid value for color"),
    ],
)
def test_bad_options_leave_no_figure(options, error, says, pyplot, mixtures, imputer):
    with pytest.raises(error, match=says):
        ConvergenceDisplay.from_estimator(mixtures[0], line_kw=options)
    with pytest.raises(error, match=says):
        ImputationDisplay.from_estimator(imputer, line_kw=options)
    with pytest.raises(error, match="Expected fill_between_kw to"):
        ConvergenceDisplay.from_estimators(mixtures, fill_between_kw=options)
    assert not pyplot.get_fignums()


@pytest.mark.parametrize(
    ("name", "options"), [("line_kw", {"step": "mid"}), ("fill_between_kw", {"scalex": True})]
)
def test_options_of_the_other_method_leave_no_figure(name, options, pyplot, mixtures):
    with pytest.raises(ValueError, match=f"Expected {name} to have options"):
        ConvergenceDisplay.from_estimators(mixtures, **{name: options})
    assert not pyplot.get_fignums()


def test_options_of_the_methods_may_be_given(pyplot, mixtures):
    display = ConvergenceDisplay.from_estimators(
        mixtures, line_kw={"scaley": True, "lw": 3}, fill_between_kw={"step": "mid"}
    )
    assert {line.get_linewidth() for lines in display.lines_.values() for line in lines} == {3}


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


def test_runs_that_share_one_position_have_their_mean_there():
    histories = [made_history([0, 1, 2], [4, 2, 1.0]), made_history([2, 3, 4], [3, 2, 1.0])]
    curve = _runs.group_curve(
        None, histories, "epoch", "loss", log_x=False, log_y=False, quantiles=None
    )
    assert (curve.x.tolist(), curve.middle.tolist()) == ([2], [[2]])


def test_long_runs_are_drawn_to_their_end():
    histories = [made_history(np.arange(3001), np.arange(3001) * slope) for slope in (1.0, 2.0)]
    curve = _runs.group_curve(
        None, histories, "round", "loss", log_x=False, log_y=False, quantiles=None
    )
    assert curve.x[0] == 0 and curve.x[-1] == 3000 and len(curve.x) == 1000
    np.testing.assert_allclose(curve.middle[:, 0], 1.5 * curve.x, **ROUNDING)


def test_bits_of_rounds_at_one_position_are_their_mean():
    bits = np.array([0, 10, 30, 10, 30, 10, 30.0])
    history = made_history([0, 1, 1, 2, 2, 3, 3], np.zeros(7), uplink_bits=bits)
    curve = _runs.group_curve(
        None, [history] * 2, "epoch", "uplink_bits", log_x=False, log_y=False, quantiles=None
    )
    np.testing.assert_array_equal(curve.middle[:, 0], [0, 20, 20, 20])


def test_a_run_that_reaches_zero_is_interpolated_without_logarithms():
    histories = [made_history([0, 2], [4, 0.0]), made_history([0, 1, 2], [1, 1, 1.0])]
    curve = _runs.group_curve(
        None, histories, "epoch", "loss", log_x=False, log_y=True, quantiles=None
    )
    np.testing.assert_allclose(curve.middle[:, 0], [2.5, 1.5, 0.5], **ROUNDING)


def test_rounds_at_one_position_count_by_the_last(pyplot):
    histories = [made_history([0, 1, 1, 2], [4, 3, 1, 0.0]), made_history([0, 1, 2], [4, 1, 0.0])]
    display = ConvergenceDisplay(histories, x="epoch", y="loss").plot()
    np.testing.assert_array_equal(points(display.lines_["loss"][0])[1], [4, 1, 0])


def test_what_belongs_to_rounds_at_one_position_is_their_mean(pyplot):
    # A round without clients sends nothing: it is where the one before it was.
    history = made_history([0, 1, 1, 2, 2], [0, 3, 0, 4, 0.0]) | {"n_active": [0, 3, 0, 4, 0]}
    display = ConvergenceDisplay([history, history], x="epoch", y="n_active").plot()
    np.testing.assert_array_equal(points(display.lines_["n_active"][0])[1], [1.5, 2])


def test_points_that_no_line_leads_to_are_marked(pyplot):
    # Of a long series with zeros on a log axis, a line has what is positive at two in a row.
    loss = np.zeros(100)
    loss[[3, 10, 11, 20, 21, 22, 40, *range(50, 80), 99]] = 1.0
    display = ConvergenceDisplay(made_history(range(100), loss), y="loss").plot(yscale="log")
    (line,) = display.lines_["loss"]
    assert line.get_marker() == "."
    x = points(line)[0]
    assert x[np.array(line.get_markevery())].tolist() == [3, 40, 99]
    # Few points are all marked, however many are not drawn.
    loss[20:] = 0.0
    display = ConvergenceDisplay(made_history(range(100), loss), y="loss").plot(yscale="log")
    (line,) = display.lines_["loss"]
    assert (line.get_marker(), line.get_markevery()) == (".", None)


def test_what_every_run_has_is_drawn_where_nothing_is_named():
    known, unknown = np.arange(3.0), np.full(3, np.nan)
    both, one, none = (
        made_history(range(3), known, log_likelihood=first, mean_field_sq_norm=second)
        for first, second in ((known, known), (known, unknown), (unknown, unknown))
    )
    usual = ["log_likelihood", "mean_field_sq_norm"]
    assert ConvergenceDisplay([both, both]).y == usual
    assert ConvergenceDisplay([both, one]).y == usual[:1]
    assert ConvergenceDisplay([both, none]).y == usual  # for the message


def test_long_labels_of_an_axis_are_wrapped(paper):
    imputer = FederatedMatrixImputer(1, family="poisson", max_iter=3)
    with pytest.warns(ConvergenceWarning):
        imputer.fit(counts_of_clients())
    imputer.history_["share of the cells that were read by anybody"] = imputer.history_["epoch"]
    display = ConvergenceDisplay.from_estimator(imputer, y=[[*imputer.history_][-1], "objective"])
    assert "\n" in display.ax_[0].get_ylabel()
    display.figure_.draw_without_rendering()
    for axis in display.ax_:
        extent = axis.yaxis.label.get_window_extent()
        assert extent.y0 >= 0 and extent.y1 <= display.figure_.bbox.y1


def test_long_runs_are_drawn_at_few_points(pyplot):
    generator = np.random.default_rng(0)
    histories = []
    for _ in range(3):
        at = np.sort(generator.random(3000))
        histories.append(made_history(at, 2 * at))
    display = ConvergenceDisplay(histories, x="epoch", y="loss").plot()
    x, y = points(display.lines_["loss"][0])
    assert len(x) == _runs._MOST_POINTS
    np.testing.assert_allclose(y, 2 * x, **ROUNDING)


def test_components_of_several_runs_are_ordered_by_their_last_values(pyplot):
    weights = np.array([[0.5, 0.5], [0.8, 0.2]])
    histories = [
        made_history([0, 1], [0.0, 0.0], weights=weights),
        made_history([0, 1], [0.0, 0.0], weights=weights[:, ::-1]),
    ]
    display = ConvergenceDisplay(histories, x="epoch", y="weights").plot()
    ends = [points(line)[1][-1] for line in display.lines_["weights"]]
    np.testing.assert_allclose(ends, [0.8, 0.2], **ROUNDING)


def test_groups_by_label(pyplot, mixtures):
    display = ConvergenceDisplay.from_estimators(
        mixtures, labels=["b", "a", "b"], y=["mean_field_sq_norm", "weights"]
    )
    lines = display.lines_["mean_field_sq_norm"]
    assert [line.get_label() for line in lines] == ["b", "a"]
    assert len(display.fill_between_["mean_field_sq_norm"]) == 1
    np.testing.assert_array_equal(
        points(lines[1])[1],
        [v for v in mixtures[1].history_["mean_field_sq_norm"] if not np.isnan(v)],
    )
    # A group's components look alike, and groups have one look on all axes.
    colors = [line.get_color() for line in display.lines_["weights"]]
    assert colors == [lines[0].get_color()] * 3 + [lines[1].get_color()] * 3
    first, second = (axis.get_legend() for axis in display.ax_)
    assert [text.get_text() for text in first.get_texts()] == ["b", "a"]
    assert second is None


def test_histories_are_not_changed(pyplot, mixtures):
    before = {name: column.copy() for name, column in mixtures[0].history_.items()}
    ConvergenceDisplay.from_estimators(mixtures, x="bits", y=list(before)).plot(xscale="log")
    for name, column in before.items():
        np.testing.assert_array_equal(mixtures[0].history_[name], column)


# ---- convergence: bad input


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
    with pytest.raises(TypeError, match="Expected a list of fitted estimators, got one"):
        ConvergenceDisplay.from_estimators(fitted)
    with pytest.raises(ValueError, match="at least one run, got none"):
        ConvergenceDisplay.from_estimators([])
    with pytest.raises(NotFittedError):
        ConvergenceDisplay.from_estimators([fitted, FederatedGaussianMixture()])


def test_histories_of_other_methods_need_the_column_of_their_x_axis(pyplot):
    own = {"uplink_bits": np.array([0, 10, 20]), "log_likelihood": np.array([-3.0, -2.0, -1.5])}
    display = ConvergenceDisplay([own], x="bits").plot()
    (line,) = display.lines_["log_likelihood"]
    assert_array_equal(line.get_xdata(), [0, 10, 30])
    for x in ("round", "epoch"):
        with pytest.raises(ValueError, match=f"run 1 to have '{x}' for x='{x}', got 'uplink_bits'"):
            ConvergenceDisplay([own | {x: np.arange(3)}, own], x=x)


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
    with pytest.raises(ValueError, match="Expected 2 matplotlib Axes .* got 3"):
        display.plot(ax=axes)
    with pytest.raises(TypeError, match="Expected ax to be matplotlib Axes, or several, got str"):
        display.plot(ax=["left", "right"])


def test_runs_that_do_not_fit_together_are_refused(pyplot, mixtures):
    with pytest.raises(ValueError, match="a label for each of the 3 runs, got 2"):
        ConvergenceDisplay.from_estimators(mixtures, labels=["a", "b"])
    with pytest.raises(ValueError, match="a label for each of the 3 runs, got 1"):
        ConvergenceDisplay.from_estimators(mixtures, labels=5)
    other = FederatedGaussianMixture(2, random_state=0).fit(rows_of_clients())
    with pytest.raises(ValueError, match=r"as many components in 'weights', got 3 and 2"):
        ConvergenceDisplay.from_estimators([mixtures[0], other], y="weights")
    ConvergenceDisplay.from_estimators([mixtures[0], other], y="weights", labels=["3", "2"])
    apart = [made_history([0, 1], [1.0, 2.0]), made_history([5, 6], [1.0, 2.0])]
    with pytest.raises(ValueError, match="overlap along 'epoch'"):
        ConvergenceDisplay(apart, x="epoch", y="loss").plot()


# ---- imputation


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


def test_rows_are_ordered_by_their_totals_and_put_into_bands(pyplot, imputer):
    clients = counts_of_clients()
    means, pooled = imputer.fitted_mean(), pooled_means(clients)
    order = np.argsort(-means.sum(axis=1))
    display = ImputationDisplay.from_estimator(imputer, clients)
    np.testing.assert_allclose(display.fitted, means[order], **ROUNDING)
    np.testing.assert_allclose(display.observed, pooled[order], **ROUNDING)
    banded = ImputationDisplay.from_estimator(imputer, clients, max_rows=7)
    by_two = means[order].reshape(7, 2, -1)
    np.testing.assert_allclose(banded.fitted, by_two.mean(axis=1), **ROUNDING)
    by_two = pooled[order].reshape(7, 2, -1)
    for band, column in np.ndindex(7, SHAPE[1]):
        seen = by_two[band, :, column][~np.isnan(by_two[band, :, column])]
        expected = seen.mean() if len(seen) else NAN
        np.testing.assert_allclose(banded.observed[band, column], expected, **ROUNDING)
    share = (~np.isnan(by_two)).mean(axis=1)
    np.testing.assert_array_equal(banded.band_observed_share, share)
    assert set(np.unique(share)) == {0, 0.5, 1}
    assert len(_matrix.band_edges(1000, 300)) == 301
    assert set(np.diff(_matrix.band_edges(1000, 300))) == {3, 4}


def test_bands_with_uneven_rows(pyplot, imputer, monkeypatch):
    means = imputer.fitted_mean()
    edges = _matrix.band_edges(SHAPE[0], 4)
    expected = [means[a:b].mean(axis=0) for a, b in itertools.pairwise(edges)]
    for block in (1, 200, 2**21):
        monkeypatch.setattr(_matrix, "_BLOCK", block)
        bands = _matrix.fitted_bands(imputer, np.arange(SHAPE[0]), edges)
        np.testing.assert_allclose(bands, expected, **ROUNDING)


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


def test_a_moving_mean_does_not_run_across_a_gap(pyplot):
    years = [*range(1960, 1970), *range(2004, 2010)]
    imputer = FederatedMatrixImputer(1, random_state=0)
    imputer.fit(np.random.default_rng(0).normal(size=(20, 16)))
    display = ImputationDisplay.from_estimator(imputer, window=5, column_labels=years)
    at, smooth = display.lines_[1].get_data()
    np.testing.assert_array_equal(at, years)
    expected = np.full(16, np.nan)
    for first in (*range(6), 10, 11):
        expected[first + 2] = display.trend[first : first + 5].mean()
    np.testing.assert_allclose(smooth, expected, rtol=1e-12)
    display.plot(window=9)
    with pytest.raises(ValueError, match="window .*<= 10, got 11. So many columns are without"):
        display.plot(window=11)


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
def test_gaps_between_columns(labels, lengths):
    pytest.importorskip("matplotlib")
    positions = _columns.place(np.asarray(labels)).positions
    assert [run.stop - run.start for run in _columns.unbroken(positions)] == lengths


def test_cells_of_columns_with_gaps():
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


def test_a_window_takes_the_season_out():
    months = np.arange(60)
    season = 100 + 2 * months + 30 * np.cos(2 * np.pi * months / 12)
    smooth = _matrix.moving_mean(season, 12)
    np.testing.assert_allclose(smooth[6:-6], 100 + 2 * months[6:-6], **ROUNDING)


def test_heat_maps_share_a_scale_with_room_for_zeros(pyplot, imputer):
    clients = counts_of_clients()
    display = ImputationDisplay.from_estimator(imputer, clients, kind="heatmap")
    observed, fitted = display.images_
    assert observed.norm is fitted.norm
    highest = max(np.nanmax(display.observed), display.fitted.max())
    np.testing.assert_allclose(fitted.norm([0.0, highest]), [0, 1], **ROUNDING)
    np.testing.assert_allclose(fitted.norm(1.0), np.log(2) / np.log1p(highest), **ROUNDING)
    missing = np.ma.getmaskarray(observed.get_array())
    np.testing.assert_array_equal(missing, np.isnan(display.observed))
    np.testing.assert_array_equal(fitted.get_array(), display.fitted)
    assert missing.any()
    assert display.lines_ == []
    # Rows go downwards, each around its number.
    assert display.ax_[0].get_ylim() == (SHAPE[0] - 0.5, -0.5)
    linear = display.plot(kind="heatmap", color_scale="linear")
    np.testing.assert_allclose(linear.images_[0].norm(highest / 2), 0.5, atol=0.1)


@pytest.mark.parametrize("color_scale", ["log", "linear"])
def test_zeros_and_means_next_to_zero_look_alike(pyplot, color_scale):
    zeros = np.zeros((6, 4))
    display = ImputationDisplay(
        trend=zeros.sum(axis=0), fitted=zeros + 1e-11, n_rows=6, observed=zeros
    ).plot(kind="heatmap", color_scale=color_scale)
    display.figure_.canvas.draw()
    observed, fitted = (image.get_facecolor() for image in display.images_)
    np.testing.assert_array_equal(observed, fitted)
    assert display.colorbars_[0].vmax == 1
    assert {0, 1} <= set(display.colorbars_[0].get_ticks())


def test_missing_cells_can_be_marked_in_one_map(pyplot, imputer):
    clients = counts_of_clients()
    display = ImputationDisplay.from_estimator(imputer, clients, kind="heatmap", mark_missing=True)
    observed, missing = (np.ma.getmaskarray(image.get_array()) for image in display.images_)
    np.testing.assert_array_equal(observed, ~missing)
    np.testing.assert_array_equal(observed, np.isnan(display.observed))
    assert len(display.colorbars_) == 2
    assert not isinstance(display.ax_, np.ndarray)


@pytest.mark.parametrize("max_rows", [1, 4, 7, 13, 14])
def test_a_band_is_marked_as_observed_by_the_share_that_was(pyplot, imputer, max_rows):
    clients = counts_of_clients()
    display = ImputationDisplay.from_estimator(
        imputer, clients, kind="heatmap", mark_missing=True, max_rows=max_rows
    )
    observed, missing = display.images_
    share = display.band_observed_share
    np.testing.assert_array_equal(np.ma.getmaskarray(observed.get_array()), share == 0)
    np.testing.assert_array_equal(np.ma.getmaskarray(missing.get_array()), share == 1)
    np.testing.assert_array_equal(observed.get_alpha(), share)
    # As much of the map as of the matrix, and on top.
    heights = np.diff(_matrix.band_edges(SHAPE[0], max_rows))
    area = np.average(observed.get_alpha().mean(axis=1), weights=heights)
    np.testing.assert_allclose(area, (~np.isnan(pooled_means(clients))).mean(), **ROUNDING)
    drawn = list(display.ax_.collections)
    assert drawn.index(missing) < drawn.index(observed)


def test_a_band_fades_from_observed_to_missing(pyplot):
    shares = np.array([[0.0, 0.25, 1.0]])
    display = ImputationDisplay(
        trend=[20.0] * 3,
        fitted=np.full((1, 3), 5.0),
        n_rows=4,
        observed=np.array([[NAN, 5.0, 5.0]]),
        band_observed_share=shares,
    ).plot(kind="heatmap", mark_missing=True)
    display.figure_.canvas.draw()
    pixels = np.asarray(display.figure_.canvas.buffer_rgba())[::-1, :, :3].astype(float)
    x, y = display.ax_.transData.transform([[0, 1.5], [1, 1.5], [2, 1.5]]).astype(int).T
    none, some, every = pixels[y, x]
    assert np.abs(none - every).max() > 50
    # Colours are whole numbers up to 255, rounded at every step.
    np.testing.assert_allclose(some, 0.75 * none + 0.25 * every, atol=2)


def test_a_display_of_ones_own_needs_no_shares(pyplot):
    observed = np.array([[1.0, NAN]])
    display = ImputationDisplay(trend=[4.0, 4.0], fitted=[[1.0, 1.0]], n_rows=4, observed=observed)
    display.plot(kind="heatmap", mark_missing=True)
    np.testing.assert_array_equal(display.images_[0].get_alpha(), [[1, 0]])


def test_maps_say_what_a_band_shows(paper, imputer):
    options = {"kind": "heatmap", "max_rows": 4, "row_name": "sites"}
    display = ImputationDisplay.from_estimator(imputer, counts_of_clients(), **options)
    titles = [axis.get_title() for axis in display.ax_]
    assert titles == ["mean over observed (grey: none)", "fitted mean over all"]
    sizes = "sites in bands of 3 or 4"
    assert display.ax_[0].get_ylabel() == f"{sizes},\nlargest total on top"
    marked = display.plot(kind="heatmap", mark_missing=True)
    labels = [bar.ax.get_ylabel() for bar in marked.colorbars_]
    assert labels[0].startswith("fitted where all observed: count")
    assert labels[1] == "fitted where none observed"
    alone = ImputationDisplay.from_estimator(imputer, row_order="given", **options).ax_
    assert (alone.get_title(), alone.get_ylabel()) == ("fitted mean", sizes)
    rows = ImputationDisplay.from_estimator(imputer, **options | {"max_rows": 14}).ax_
    assert rows.get_ylabel() == "sites by rank, largest total on top"


@pytest.mark.parametrize("height", [2.4, 4.2])
def test_labels_of_colors_are_no_longer_than_the_figure_is_high(paper, imputer, height):
    figure, axis = paper.subplots(figsize=(4, height), layout="constrained")
    display = ImputationDisplay.from_estimator(
        imputer, counts_of_clients(), kind="heatmap", mark_missing=True, max_rows=4, ax=axis
    )
    figure.draw_without_rendering()
    for bar in display.colorbars_:
        box = bar.ax.yaxis.label.get_window_extent()
        assert 0 <= box.y0 < box.y1 <= figure.bbox.y1
    assert ("\n" in display.colorbars_[0].ax.get_ylabel()) == (height < 3)


@pytest.mark.parametrize("max_rows", [4, 14])
def test_labels_of_rows_do_not_run_into_each_other(paper, imputer, max_rows):
    figure, axes = paper.subplots(2, 1, figsize=(6.4, 5.6), layout="constrained")
    ImputationDisplay.from_estimator(
        imputer,
        counts_of_clients(),
        kind="heatmap",
        row_name="monitoring localities",
        max_rows=max_rows,
        ax=axes,
    )
    figure.draw_without_rendering()
    above, below = (axis.yaxis.label.get_window_extent() for axis in axes)
    assert below.y1 < above.y0
    assert above.y1 <= figure.bbox.y1


def test_rows_and_columns_have_whole_ticks(pyplot):
    one, twenty = np.ones((1, 1)), np.ones((20, 3))
    for values, labels in ((one, ["a"]), (one, [2001]), (twenty, [1, 2, 3]), (twenty, "abc")):
        display = ImputationDisplay(
            trend=values.sum(axis=0),
            fitted=values,
            n_rows=len(values),
            column_labels=list(labels),
        )
        axis = display.plot(kind="heatmap").ax_
        axis.figure.canvas.draw()
        rows = axis.get_yticks()
        np.testing.assert_array_equal(rows, np.round(rows))
        texts = [text.get_text() for text in axis.get_xticklabels() if text.get_text()]
        assert [text for text in texts if text in map(str, labels)] == list(map(str, labels))


@pytest.mark.parametrize("rounding", [4e-15, 4e-12])
def test_equal_values_have_one_color(pyplot, rounding):
    fitted = np.array([[7.0, 7 + rounding]])
    display = ImputationDisplay(trend=fitted[0], fitted=fitted, n_rows=1, family="gaussian")
    image = display.plot(kind="heatmap").images_[0]
    display.figure_.canvas.draw()
    left, right = image.get_facecolor()
    # At most neighbours of 256 colours; the ends of the map differ by 0.9.
    np.testing.assert_allclose(left, right, atol=0.01)


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


@pytest.mark.parametrize("family", ["bernoulli", "gaussian"])
def test_other_families(pyplot, family):
    clients = counts_of_clients()
    if family == "bernoulli":
        clients = [np.where(np.isnan(table), NAN, table > 2) for table in clients]
    else:
        clients = [np.log1p(table) - 1 for table in clients]
    model = FederatedMatrixImputer(1, family=family, random_state=0).fit(clients)
    display = ImputationDisplay.from_estimator(model, clients, kind="heatmap")
    norm = display.images_[0].norm
    if family == "bernoulli":
        # Whatever was observed or fitted.
        alone = ImputationDisplay.from_estimator(model, kind="heatmap").images_[0].norm
        assert (norm.vmin, norm.vmax) == (alone.vmin, alone.vmax) == (0, 1)
    else:
        assert norm.vmin == np.nanmin([np.nanmin(display.observed), display.fitted.min()]) < 0
        with pytest.raises(ValueError, match="no negative values for color_scale='log'"):
            display.plot(kind="heatmap", color_scale="log")
        with pytest.raises(ValueError, match="row_order to be one of"):
            ImputationDisplay.from_estimator(model, row_order="size")


def test_columns_of_a_data_frame_are_dates(pyplot):
    pandas = pytest.importorskip("pandas")
    from matplotlib.dates import date2num

    expected = date2num(np.array(COLUMNS, dtype="datetime64[M]"))
    for columns in (
        COLUMNS,
        pandas.to_datetime(COLUMNS),
        pandas.to_datetime(COLUMNS).tz_localize("UTC"),
        pandas.PeriodIndex(COLUMNS, freq="M"),
        [day.date() for day in pandas.to_datetime(COLUMNS)],
    ):
        frames = [pandas.DataFrame(table, columns=columns) for table in counts_of_clients()]
        model = FederatedMatrixImputer(1, family="poisson", max_iter=50, tol=1.0)
        model.fit(frames)
        display = ImputationDisplay.from_estimator(model, frames)
        np.testing.assert_array_equal(points(display.lines_[0])[0], expected)
        assert display.ax_[1].get_xlabel() == "date"
    # Strings are known to the fit.
    frames = [pandas.DataFrame(table, columns=COLUMNS) for table in counts_of_clients()]
    display = ImputationDisplay.from_estimator(model.fit(frames))
    np.testing.assert_array_equal(points(display.lines_[0])[0], expected)
    # A fit of arrays knows none: what is drawn has them.
    model.fit(counts_of_clients())
    display = ImputationDisplay.from_estimator(model, frames)
    np.testing.assert_array_equal(points(display.lines_[0])[0], expected)


@pytest.mark.parametrize("kind", ["periods", "dates", "years", "text"])
@pytest.mark.parametrize("estimator", ["imputer", "search", "pipeline"])
def test_labels_of_columns_are_known_to_the_fit(pyplot, kind, estimator):
    pandas = pytest.importorskip("pandas")
    from matplotlib.dates import date2num

    months = pandas.period_range("2000-01", periods=SHAPE[1], freq="M")
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
    table = pandas.DataFrame(pooled_means(counts_of_clients()).round(), columns=labels)
    X = table if estimator == "pipeline" else [table]
    model.fit(X)
    for given in (None, X, table.to_numpy()):
        display = ImputationDisplay.from_estimator(model, given)
        line = display.lines_[0]
        np.testing.assert_array_equal(points(line)[0], expected)


@pytest.mark.parametrize("hold", ["index", "list", "to_numpy", "Series"])
@pytest.mark.parametrize("freq", ["M", "Q", "Y", "W"])
def test_a_period_is_drawn_where_it_begins(pyplot, imputer, hold, freq):
    pandas = pytest.importorskip("pandas")
    periods = pandas.period_range("2000-01", periods=SHAPE[1], freq=freq)
    holders = {
        "index": periods,
        "list": list(periods),
        "to_numpy": periods.to_numpy(),
        "Series": pandas.Series(periods),
    }
    display = ImputationDisplay.from_estimator(imputer, column_labels=holders[hold])
    from matplotlib.dates import date2num

    expected = date2num(periods.to_timestamp(how="start").to_numpy())
    np.testing.assert_array_equal(points(display.lines_[0])[0], expected)


@pytest.mark.parametrize("zone", [None, "UTC", "America/Lima"])
def test_times_are_those_of_the_clock_where_they_are(pyplot, imputer, zone):
    pandas = pytest.importorskip("pandas")
    from matplotlib.dates import date2num

    days = pandas.date_range("2000-01-01", periods=SHAPE[1], freq="D")
    local = days.tz_localize(zone)
    for labels in (
        local,
        list(local),
        [day.to_pydatetime() for day in local],
        pandas.Series(local, index=range(100, 100 + SHAPE[1])),
        pandas.CategoricalIndex(local),
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
def test_other_column_labels(pyplot, imputer, labels, expected):
    display = ImputationDisplay.from_estimator(imputer, column_labels=labels)
    np.testing.assert_array_equal(points(display.lines_[0])[0], expected)
    display.figure_.canvas.draw()
    if isinstance(labels, list):
        shown = [text.get_text() for text in display.ax_.get_xticklabels()]
        assert labels[0] in shown
        assert set(shown) <= {*labels, ""}


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
    pandas = pytest.importorskip("pandas")
    days = pandas.date_range("2000-01-01", periods=SHAPE[1], freq="D")[::-1]
    expected = [str(day.date()) for day in days]
    for labels in (days, list(days), days.tz_localize("UTC"), days.to_period("D"), days.to_numpy()):
        display = ImputationDisplay.from_estimator(imputer, column_labels=labels)
        shown = [text.get_text() for text in display.ax_.get_xticklabels()]
        assert expected[0] in shown
        assert set(shown) <= {*expected, ""}


def test_names_may_be_in_a_series(pyplot, imputer):
    pandas = pytest.importorskip("pandas")
    names = [f"item {k}" for k in range(SHAPE[1])]
    display = ImputationDisplay.from_estimator(imputer, column_labels=pandas.Series(names))
    assert display.column_labels.tolist() == names


def test_pipelines_transform_the_data_on_the_way(pyplot):
    clients = counts_of_clients()
    pooled = pooled_means(clients)
    pipeline = make_pipeline(FunctionTransformer(np.log1p), FederatedMatrixImputer(1))
    display = ImputationDisplay.from_estimator(pipeline.fit(pooled), pooled, row_order="given")
    np.testing.assert_allclose(display.observed, np.log1p(pooled), **ROUNDING)
    pipeline = make_pipeline(FederatedMatrixImputer(1)).fit(pooled)
    display = ImputationDisplay.from_estimator(pipeline, pooled, row_order="given")
    np.testing.assert_allclose(display.observed, pooled, **ROUNDING)


def test_a_pipeline_keeps_names_of_columns_that_are_text(pyplot):
    pandas = pytest.importorskip("pandas")
    days = pandas.to_datetime(COLUMNS)
    for columns, kept in ((COLUMNS, "date"), (days, "columns"), (days.to_period("M"), "columns")):
        table = pandas.DataFrame(pooled_means(counts_of_clients()), columns=columns)
        table = table.drop(columns=columns[5])  # of nothing there is no standard deviation
        pipeline = make_pipeline(StandardScaler(), FederatedMatrixImputer(1, random_state=0))
        display = ImputationDisplay.from_estimator(pipeline.fit(table), table)
        assert display.ax_[1].get_xlabel() == "columns"
        display = ImputationDisplay.from_estimator(pipeline, table, column_labels=table.columns)
        assert display.ax_[1].get_xlabel() == "date"
        pipeline.set_output(transform="pandas").fit(table)
        display = ImputationDisplay.from_estimator(pipeline, table)
        assert display.ax_[1].get_xlabel() == kept


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
    with pytest.raises(ValueError, match="Expected 2 matplotlib Axes in ax, one for each map"):
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


def test_other_data_than_those_of_the_fit_are_refused(pyplot, imputer):
    pandas = pytest.importorskip("pandas")
    clients = counts_of_clients()
    with pytest.raises(ValueError, match=r"matrix of shape \(14, 24\), got shape \(13, 24\)"):
        ImputationDisplay.from_estimator(imputer, [table[1:] for table in clients])
    frames = [
        pandas.DataFrame(table, columns=COLUMNS, index=list("abcdefghijklmn")) for table in clients
    ]
    named = clone(imputer).fit(frames)
    ImputationDisplay.from_estimator(named, frames)
    with pytest.raises(ValueError, match="row labels of the fit.*'a' for row 0, got 'n'"):
        ImputationDisplay.from_estimator(named, [frame[::-1] for frame in frames])
    with pytest.raises(ValueError, match="column labels of the fit.*'2000-01' for column 0"):
        ImputationDisplay.from_estimator(named, [frame[COLUMNS[::-1]] for frame in frames])
    triplets = [np.column_stack([*np.nonzero(t >= 0), t[t >= 0]]) for t in clients]
    numbered = clone(imputer).fit(triplets, shape=SHAPE)
    with pytest.raises(ValueError, match="got one ndarray. Give what fit was given: a list of tri"):
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


def test_smallest_pictures(paper):
    zeros = np.zeros((1, 1))
    data = {"trend": [0.0], "fitted": zeros, "n_rows": 1, "observed": zeros}
    display = ImputationDisplay(**data, observed_share=np.ones(1), observed_total=np.zeros(1))
    for kind in ("trend", "heatmap"):
        display.plot(kind=kind).figure_.canvas.draw()
    assert points(display.plot().lines_[0])[1].tolist() == [0]
    one = ConvergenceDisplay(made_history([0], [1.0]), y="loss").plot()
    one.figure_.canvas.draw()
    # A single point is seen only if it is marked.
    assert one.lines_["loss"][0].get_marker() == "."


@pytest.mark.parametrize("n_months", [2, 14, 23, 24, 25, 400])
def test_narrow_axes_have_ticks_for_any_span_of_dates(paper, n_months):
    months = (np.datetime64("2000-01") + np.arange(n_months)).astype("M8[D]")
    values = np.ones((3, n_months))
    display = ImputationDisplay(
        trend=values.sum(axis=0), fitted=values, n_rows=3, column_labels=months
    )
    figure, axis = paper.subplots(figsize=(1.8, 2), layout="constrained")
    display.plot(kind="heatmap", ax=axis)  # matplotlib warns where it finds no ticks
    figure.draw_without_rendering()
    assert len(drawn_texts(axis, figure.canvas.get_renderer())) >= 1


# ---- readable, at the size of the documentation


def drawn_texts(axis, renderer):
    return [
        text.get_window_extent(renderer)
        for text in axis.get_xticklabels()
        if text.get_visible() and text.get_text()
    ]


@pytest.mark.parametrize("options", [{}, {"kind": "heatmap"}, {"kind": "heatmap", "mark": True}])
@pytest.mark.parametrize("n_rows", [40, 400])
def test_ticks_and_legends_do_not_collide(paper, options, n_rows):
    generator = np.random.default_rng(0)
    shape = (n_rows, 240)
    values = np.where(generator.random(shape) < 0.4, generator.poisson(30_000, shape), NAN)
    months = np.arange("1995-01", "2015-01", dtype="datetime64[M]")
    display = ImputationDisplay(
        trend=np.nan_to_num(values).sum(axis=0),
        fitted=np.nan_to_num(values),
        n_rows=n_rows,
        observed=values,
        observed_share=(~np.isnan(values)).mean(axis=0),
        observed_total=np.nansum(values, axis=0),
        column_labels=months,
    )
    options = {"mark_missing": options.get("mark", False), "kind": options.get("kind", "trend")}
    display.plot(window=12, row_name="sites", **options)
    figure = display.figure_
    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()
    width, height = figure.canvas.get_width_height()
    assert width <= 800
    n_texts = 0
    for axis in np.atleast_1d(display.ax_):
        boxes = sorted(drawn_texts(axis, renderer), key=lambda box: box.x0)
        n_texts += len(boxes)
        for left, right in itertools.pairwise(boxes):
            assert left.x1 < right.x0
        legend = axis.get_legend()
        if legend is not None:
            box = legend.get_window_extent(renderer)
            assert box.y0 >= axis.get_window_extent(renderer).y1
            assert box.x1 <= width
        inside = axis.get_tightbbox(renderer)
        # Rounding to pixels.
        assert inside.x0 >= -1 and inside.y0 >= -1
        assert inside.x1 <= width + 1 and inside.y1 <= height + 1
    assert n_texts >= 3


@pytest.mark.parametrize(
    ("name", "width"),
    [("column", 6.4), ("a month and", 6.4), ("a long name of column", 5), ("wide" * 50, 6.4)],
)
@pytest.mark.parametrize("options", [{}, {"kind": "heatmap"}])
def test_long_names_of_columns_neither_touch_nor_push_the_axes_away(paper, name, options, width):
    names = [f"{name} {k}" for k in range(48)]
    values = np.random.default_rng(0).poisson(30, (60, 48)).astype(float)
    display = ImputationDisplay(
        trend=values.sum(axis=0), fitted=values, n_rows=60, observed=values, column_labels=names
    )
    figure, axes = paper.subplots(1, 2 if options else 1, figsize=(width, 4), layout="constrained")
    display.plot(ax=axes, **options)
    figure.draw_without_rendering()
    for axis in np.atleast_1d(axes):
        assert axis.get_position().width > (0.25 if options else 0.7)  # of the figure's
        labels = [label for label in axis.get_xticklabels() if label.get_text()]
        assert len(labels) >= 4
        for label in labels:
            text, whole = label.get_text(), names[round(label.get_position()[0])]
            assert (text == whole) == (len(whole) <= 13)
            assert len(text) <= 13
            assert text == whole or (text[:6], text[6], text[7:]) == (whole[:6], "…", whole[-6:])
        places = axis.transData.transform([(label.get_position()[0], 0) for label in labels])
        # Lines of text at an angle are apart if they are farther apart than they are high.
        apart = np.diff(places[:, 0]).min() * np.sin(np.radians(labels[0].get_rotation()))
        assert apart > labels[0].get_fontsize() / 72 * figure.dpi


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


@pytest.mark.parametrize("names", ["sites months", "monitoring_localities calendar_months"])
@pytest.mark.parametrize("window", [None, 12])
def test_a_trend_keeps_its_width_whatever_its_legend_says(paper, imputer, window, names):
    row_name, column_name = (name.replace("_", " ") for name in names.split())
    display = ImputationDisplay.from_estimator(
        imputer,
        counts_of_clients(),
        column_labels=COLUMNS,
        window=window,
        row_name=row_name,
        column_name=column_name,
    )
    figure, (trend, effort) = display.figure_, display.ax_
    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()
    assert len(trend.get_legend().get_texts()) == 3 + (window is not None)
    assert trend.get_legend().get_window_extent(renderer).x1 <= figure.bbox.x1
    assert trend.get_position().width >= 0.7
    assert trend.get_position().height * figure.get_figheight() >= 2.4  # inches
    upper, lower = (axis.yaxis.label.get_window_extent(renderer) for axis in (trend, effort))
    assert lower.y1 < upper.y0 or lower.x1 < upper.x0
    for left, right in itertools.pairwise(drawn_texts(effort, renderer)):
        assert left.x1 < right.x0


def test_no_curve_has_the_colour_of_the_page(pyplot, mixtures):
    from matplotlib.colors import to_hex

    runs, labels = [mixtures[0]] * 7, list("abcdefg")
    with pyplot.style.context("dark_background"):
        axis = ConvergenceDisplay.from_estimators(runs, labels=labels).ax_[0]
        colors = {to_hex(line.get_color()) for line in axis.get_lines()}
        assert len(colors) == 7
        assert to_hex(axis.get_facecolor()) not in colors


@pytest.mark.parametrize("n_runs", [3, 9])
@pytest.mark.parametrize("label", ["a", "a setting of this length", "a long label " * 5, "x" * 200])
def test_curves_keep_their_width_whatever_the_labels(paper, mixtures, label, n_runs):
    labels = [f"{label} {run}" for run in range(n_runs)]
    runs = [mixtures[0]] * n_runs
    display = ConvergenceDisplay.from_estimators(runs, labels=labels, y=["log_likelihood"])
    figure, axis = display.figure_, display.ax_
    figure.draw_without_rendering()
    legend = axis.get_legend()
    assert len(legend.get_texts()) == n_runs
    assert legend.get_window_extent().x1 <= figure.bbox.x1
    assert axis.get_position().width >= 0.7
    assert axis.get_position().height * figure.get_figheight() >= 1.9  # inches
    assert [line.get_label() for line in display.lines_["log_likelihood"]] == labels


def test_short_labels_stand_in_a_row(paper, mixtures):
    display = ConvergenceDisplay.from_estimators(mixtures, labels=["a", "b", "c"], y="step_size")
    display.figure_.draw_without_rendering()
    heights = {text.get_window_extent().y0 for text in display.ax_.get_legend().get_texts()}
    assert len(heights) == 1
    assert display.figure_.get_size_inches().tolist() == [6.4, 3.5]


def test_components_of_a_run_with_a_long_name_leave_room_for_the_axes(paper, mixtures):
    name = "a mixture whose name is longer than its weights are wide"
    axis = ConvergenceDisplay.from_estimator(mixtures[0], y="weights", name=name).ax_
    axis.figure.draw_without_rendering()
    assert axis.get_position().width >= 0.5


def test_a_part_of_a_figure(paper, mixtures, imputer):
    left, right = paper.figure(figsize=(9, 4), layout="constrained").subfigures(1, 2)
    curves = ConvergenceDisplay.from_estimator(mixtures[0], y="weights", ax=left.subplots())
    ImputationDisplay.from_estimator(imputer, ax=right.subplots())
    left.figure.draw_without_rendering()
    # The legend beside the axes stays in its half.
    legend = curves.ax_.get_legend().get_window_extent()
    assert legend.x1 <= right.bbox.x0


def test_legends_of_components_are_beside_the_axes(paper, mixtures):
    display = ConvergenceDisplay.from_estimator(mixtures[0], y=["weights", "step_size"])
    display.figure_.draw_without_rendering()
    renderer = display.figure_.canvas.get_renderer()
    legend = display.ax_[0].get_legend().get_window_extent(renderer)
    assert legend.x0 >= display.ax_[0].get_window_extent(renderer).x1
    assert legend.x1 <= display.figure_.canvas.get_width_height()[0]


# ---- documentation, and no matplotlib


@pytest.mark.parametrize("module", [_convergence, _imputation])
def test_examples_of_the_docstrings(pyplot, module):
    result = doctest.testmod(module)
    assert result.attempted > 5
    assert result.failed == 0


def test_without_matplotlib_all_but_drawing_works(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # importing it raises ImportError
    gm = FederatedGaussianMixture(random_state=0).fit(np.arange(20.0).reshape(10, 2))
    imputer = FederatedMatrixImputer(1, random_state=0).fit(np.eye(4))
    display = ConvergenceDisplay(gm.history_)
    drawing = {
        "ConvergenceDisplay.from_estimator": lambda: ConvergenceDisplay.from_estimator(gm),
        "ConvergenceDisplay.from_estimators": lambda: ConvergenceDisplay.from_estimators([gm]),
        "ConvergenceDisplay.plot": display.plot,
        "ImputationDisplay.from_estimator": lambda: ImputationDisplay.from_estimator(imputer),
        "ImputationDisplay.plot": ImputationDisplay(trend=[1.0], fitted=[[1.0]], n_rows=1).plot,
    }
    for caller, draw in drawing.items():
        says = f"^{caller} requires matplotlib.*pip install matplotlib"
        with pytest.raises(ImportError, match=says):
            draw()


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


def test_a_frame_alone_is_compared_with_the_sites_of_a_list(pyplot):
    pandas = pytest.importorskip("pandas")
    sites = [f"site {k}" for k in range(12)]
    table = pandas.DataFrame(np.random.default_rng(0).poisson(4.0, (12, 5)) * 1.0, index=sites)
    imputer = FederatedMatrixImputer(2, random_state=0).fit([table])
    display = ImputationDisplay.from_estimator(imputer, table)
    np.testing.assert_array_equal(display.observed_total, table.sum(axis=0))
    with pytest.raises(ValueError, match="row labels of the fit"):
        ImputationDisplay.from_estimator(imputer, table[::-1])


def test_dates_of_columns_are_compared_with_those_of_the_fit(pyplot):
    pandas = pytest.importorskip("pandas")
    months = pandas.period_range("2000-01", periods=SHAPE[1], freq="M")
    frames = [pandas.DataFrame(table, columns=months) for table in counts_of_clients()]
    imputer = FederatedMatrixImputer(1, family="poisson", penalty=2.0).fit(frames)
    display = ImputationDisplay.from_estimator(imputer, frames)
    assert display.column_labels.tolist() == months.to_timestamp().tolist()
    turned = [frame.iloc[:, ::-1] for frame in frames]
    with pytest.raises(ValueError, match="labels of the fit.*2000-01 for column 0, got 2001-12"):
        ImputationDisplay.from_estimator(imputer, turned)


def test_rows_of_one_frame_are_compared_with_those_of_the_fit(pyplot):
    pandas = pytest.importorskip("pandas")
    sites = [f"site {k}" for k in range(12)]
    table = pandas.DataFrame(np.random.default_rng(0).poisson(4.0, (12, 5)) * 1.0, index=sites)
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


def test_counts_have_whole_ticks(pyplot):
    gm = FederatedGaussianMixture(2, tol=1.0, random_state=0).fit(rows_of_clients())
    axis = ConvergenceDisplay.from_estimator(gm, y="n_active").ax_
    ticks = np.ravel([one.get_yticks() for one in np.ravel(axis)])
    assert (ticks == np.round(ticks)).all()


def test_histories_among_estimators_are_sent_to_the_class(pyplot, mixtures):
    pandas = pytest.importorskip("pandas")
    for history in (mixtures[0].history_, pandas.DataFrame({"round": [0, 1]})):
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


@pytest.mark.parametrize("n_components", [10, 40, 400])
def test_legends_of_many_components_leave_the_axes_their_room(n_components, paper):
    rows = np.random.default_rng(0).normal(size=(800, 1))
    gm = FederatedGaussianMixture(
        n_components, init_params="random_from_data", max_iter=2, tol=0, random_state=0
    )
    with pytest.warns(ConvergenceWarning):
        gm.fit(rows)
    display = ConvergenceDisplay.from_estimator(gm, y=["log_likelihood", "weights"])
    display.figure_.draw_without_rendering()
    axis = display.ax_[1]
    assert axis.get_position().width > 0.55
    assert axis.get_position().height > 0.35
    legend = axis.get_legend()
    assert legend.get_window_extent().y0 >= 0
    labels = [text.get_text() for text in legend.get_texts()]
    assert labels[0] == "0"
    assert len(labels) == min(n_components, 10) or 10 < len(labels) <= 24


@pytest.mark.parametrize("name", [None, "twenty", "a name of several words, and as many lines"])
@pytest.mark.parametrize("size", [None, (3, 2)])
def test_a_legend_of_components_is_no_higher_than_its_axes(paper, mixtures, name, size):
    weights = np.full((5, 20), 0.05)
    history = mixtures[0].history_ | {"round": np.arange(5), "weights": weights}
    axis = None if size is None else paper.subplots(figsize=size, layout="constrained")[1]
    labels = None if name is None else [name]
    axis = ConvergenceDisplay(history, y="weights", labels=labels).plot(axis).ax_
    axis.figure.draw_without_rendering()
    legend, figure = axis.get_legend(), axis.figure
    assert axis.get_position().height * figure.get_figheight() >= 0.6 * figure.get_figheight()
    assert legend.get_window_extent().y0 >= 0
    assert legend.get_window_extent().x1 <= figure.bbox.x1
    shown = [int(text.get_text().split()[-1]) for text in legend.get_texts()]
    assert shown[0] == 0 and len(set(np.diff(shown))) <= 1


def test_formulas_in_legends_are_not_cut(paper):
    rows = np.random.default_rng(0).normal(size=(60, 1))
    runs = [FederatedGaussianMixture(2, random_state=k).fit(rows) for k in range(2)]
    labels = [
        rf"$\gamma = 0.0{k},\ \omega = {k},\ p = 0.5$ and some more words to be wide"
        for k in (1, 2)
    ]
    display = ConvergenceDisplay.from_estimators(runs, labels=labels)
    display.figure_.draw_without_rendering()
    axis = np.ravel(display.ax_)[0]
    assert [text.get_text() for text in axis.get_legend().get_texts()] == labels


# ------------------------------------------------------------------ what was hard to read once


def test_runs_look_unlike_each_other(pyplot):
    histories = [made_history(range(3), np.arange(3.0) + k) for k in range(50)]
    display = ConvergenceDisplay(histories, y="loss", labels=range(50)).plot()
    looks = {
        (line.get_color(), line.get_linestyle(), line.get_linewidth())
        for line in display.lines_["loss"]
    }
    assert len(looks) == 50
    assert [line.get_label() for line in display.lines_["loss"][:2]] == ["0", "1"]


def test_labels_of_runs_may_be_any_objects(pyplot):
    history = made_history(range(3), np.arange(3.0))
    display = ConvergenceDisplay([history] * 2, y="loss", labels=[("a", 1), ("b", 2)]).plot()
    assert display.labels == ["('a', 1)", "('b', 2)"]


def test_bits_of_rounds_have_prefixes(paper):
    history = made_history(range(3), range(3), uplink_bits=np.array([10**6, 5000, 6000]))
    display = ConvergenceDisplay(history, y="uplink_bits").plot()
    display.figure_.draw_without_rendering()
    assert any(label.get_text().endswith("k") for label in display.ax_.get_yticklabels())


def test_one_long_table_of_triplets_is_shown_as_a_list_is(pyplot, imputer):
    clients = counts_of_clients()
    cells = [coo_array(np.nan_to_num(table)) for table in clients]
    triplets = [np.column_stack([own.row, own.col, own.data]) for own in cells]
    table, owners = np.concatenate(triplets), np.repeat(range(3), [own.nnz for own in cells])
    listed = clone(imputer).fit(triplets, shape=SHAPE)
    long = clone(imputer).fit(table, clients=owners, shape=SHAPE)
    want = ImputationDisplay.from_estimator(listed, triplets)
    pandas = pytest.importorskip("pandas")
    names = ["site", "month", "count"]  # of the columns of triplets, not of the matrix
    frames = [pandas.DataFrame(own, columns=names) for own in triplets]
    for got in (
        ImputationDisplay.from_estimator(listed, frames),
        ImputationDisplay.from_estimator(long, table),
        ImputationDisplay.from_estimator(long, triplets),
    ):
        np.testing.assert_allclose(got.trend, want.trend, **ROUNDING)
        np.testing.assert_allclose(got.observed_total, want.observed_total, **ROUNDING)
        assert_array_equal(got.observed_share, want.observed_share)


def test_a_history_may_be_a_data_frame(pyplot):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(made_history(range(3), [3.0, 2.0, 1.0]))
    display = ConvergenceDisplay(frame, y="loss").plot()
    assert_array_equal(points(display.lines_["loss"][0])[1], [3, 2, 1])


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
    pandas = pytest.importorskip("pandas")
    plain = [{k: v for k, v in gm.history_.items() if k != "weights"} for gm in mixtures[:2]]
    given = {
        "frames": [pandas.DataFrame(history) for history in plain],
        "slices of frames": [pandas.DataFrame(history, index=range(5, 5 + len(history["round"])))
                             for history in plain],
        "lists": [{name: column.tolist() for name, column in run.items()} for run in plain],
    }[kind]  # fmt: skip
    want, got = (
        ConvergenceDisplay(runs, y="log_likelihood", x=x).plot() for runs in (plain, given)
    )
    assert_array_equal(
        points(got.lines_["log_likelihood"][0]), points(want.lines_["log_likelihood"][0])
    )


def test_legends_fit_the_users_axes_in_each_of_several_figures(paper, mixtures):
    one, alone = paper.subplots(figsize=(4, 3), layout="tight")
    other, (first, *beside) = paper.subplots(1, 3, figsize=(9, 3), layout="tight")
    for axis in beside:
        axis.set_ylabel("room\nthat only\na layout\ngives\nthem")
    labels = ["a rather long name of a fit", "another rather long name"]
    series = ["log_likelihood", "step_size"]
    ConvergenceDisplay.from_estimators(mixtures[:2], labels=labels, y=series, ax=[alone, first])
    for figure, axis in ((one, alone), (other, first)):
        figure.draw_without_rendering()
        legend = axis.get_legend().get_window_extent()
        assert legend.width < 0.91 * axis.get_window_extent().width  # nine tenths


@pytest.mark.parametrize("n_columns", [1, 2, 3])
def test_legends_take_no_room_from_the_users_axes(paper, mixtures, n_columns):
    size = (3.2 * n_columns, 5)
    figure, axes = paper.subplots(2, n_columns, figsize=size, layout="constrained", squeeze=False)
    series = ["log_likelihood", "step_size", "n_active"][:n_columns]
    for run in range(3):
        labels = [f"uncompressed, every client takes part, step {run}", f"b {run}"]
        for row in axes:
            ConvergenceDisplay.from_estimators(mixtures[:2], labels=labels, y=series, ax=row)
    figure.draw_without_rendering()
    for axis in figure.axes:
        width, height = axis.get_window_extent().size / figure.dpi  # inches
        assert width > 2 and height > 1.5
        legend = axis.get_legend().get_window_extent()
        assert axis.get_window_extent().x0 <= legend.x0
        assert legend.x1 <= axis.get_window_extent().x1


def test_what_to_draw_instead_can_be_drawn(pyplot):
    gm = FederatedGaussianMixture(2, max_iter=0, random_state=0).fit(rows_of_clients())
    with pytest.raises(ValueError, match="Draw one of 'round', 'epoch',") as caught:
        ConvergenceDisplay.from_estimator(gm, y="n_active")
    assert "Draw one of" in str(caught.value)
    named = str(caught.value).split("Draw one of ")[1].split(", or fit")[0].split(", ")
    ConvergenceDisplay.from_estimator(gm, y=[name.strip("'") for name in named])
    with pytest.raises(ValueError, match=r"logarithmic x axis\. Fit .* for a round at least\."):
        ConvergenceDisplay.from_estimator(gm, y="log_likelihood", xscale="log")


def fit_to_sums(offset, spread, **parameters):
    generator = np.random.default_rng(0)
    table = offset + spread * generator.normal(size=(20, 24))
    return FederatedMatrixImputer(random_state=0, **parameters).fit(table), table


@pytest.mark.parametrize(("offset", "spread"), [(60, 0.01), (60, 10.0), (0, 1000.0), (3e-7, 2e-8)])
def test_ticks_of_a_trend_tell_its_scale(paper, offset, spread):
    model, table = fit_to_sums(offset, spread, penalty=1e-8)
    display = ImputationDisplay.from_estimator(model, table)
    axis = np.ravel(display.ax_)[0]
    renderer = display.figure_.canvas.get_renderer()
    display.figure_.draw(renderer)
    texts = [label.get_text() for label in axis.get_yticklabels()]
    assert len(set(texts)) == len(texts)
    multiplier, legend = axis.yaxis.get_offset_text(), axis.get_legend()
    if multiplier.get_text() and legend is not None:
        assert not multiplier.get_window_extent(renderer).overlaps(
            legend.get_window_extent(renderer)
        )


def test_a_long_name_of_columns_is_wrapped(paper):
    name = "months since the first survey of the coast, which was in the spring of the year 1995"
    fitted = np.random.default_rng(0).random((60, 12))
    display = ImputationDisplay(
        trend=fitted.sum(axis=0), fitted=fitted, n_rows=60, observed=fitted,
        band_observed_share=np.ones((60, 12)),
    )  # fmt: skip
    display.plot(kind="heatmap", column_name="months\n(since 1995)")
    assert display.figure_.axes[0].get_xlabel() == "months\n(since 1995)"
    for kind in ("heatmap", "trend"):
        display.plot(kind=kind, column_name=name)
        renderer = display.figure_.canvas.get_renderer()
        display.figure_.draw(renderer)
        boxes = [
            axis.xaxis.label.get_window_extent(renderer)
            for axis in display.figure_.axes
            if axis.get_xlabel()
        ]
        assert boxes and all(box.x0 >= 0 and box.x1 <= display.figure_.bbox.x1 for box in boxes)
        assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))


def test_missing_dates_come_one_after_another(pyplot, imputer):
    pandas = pytest.importorskip("pandas")
    dates = [*pandas.date_range("2020-01-01", periods=SHAPE[1] - 1), pandas.NaT]
    clients = counts_of_clients()
    display = ImputationDisplay.from_estimator(imputer, clients, column_labels=dates)
    assert_array_equal(display.lines_[0].get_xdata(), np.arange(SHAPE[1]))


def test_what_a_display_is_given_may_be_lists(pyplot):
    display = ImputationDisplay(
        trend=[1.0, 2.0], fitted=[[1.0, 2.0]], n_rows=1, observed_share=[1.0, 1.0],
        observed_total=[1.0, 3.0], unobserved_columns=[1],
    )  # fmt: skip
    display.plot()
    assert_array_equal(display.lines_[0].get_ydata(), [1, 2])
    assert display.effort_ is not None


def test_bits_are_added_up_without_rounding():
    # Single precision has no 2**24 + 1.
    history = made_history(range(3), range(3), uplink_bits=np.array([2**24, 1, 1]))
    assert_array_equal(_runs.positions(history, "bits"), 2**24 + np.arange(3))


@pytest.mark.parametrize("y", ["n_active", "safeguarded"])
def test_the_start_is_no_point_of_what_only_rounds_have(y):
    history = made_history(range(3), np.zeros(3), **{y: np.array([0, 2, 3])})
    at, values = _runs.evaluated(history, "round", y)
    assert (at.tolist(), values.tolist()) == ([1, 2], [[2], [3]])


@pytest.mark.parametrize("y", ["n_active", "safeguarded", "uplink_bits", "downlink_bits"])
def test_what_describes_rounds_at_one_position_is_their_mean(y):
    history = made_history([1, 2, 2], np.zeros(3)) | {"round": np.arange(1, 4)}
    history[y] = np.array([0, 10, 30])
    curve = _runs.group_curve(
        None, [history] * 2, "epoch", y, log_x=False, log_y=False, quantiles=None
    )
    assert_array_equal(curve.middle[:, 0], [0, 20])


def test_a_band_on_a_logarithmic_axis_leaves_out_what_is_not_positive():
    histories = [made_history([0, 1], values) for values in ([4, 0.0], [4, 2.0])]
    curve = _runs.group_curve(
        None, histories, "epoch", "loss", log_x=False, log_y=True, quantiles=(0, 1)
    )
    assert_array_equal(curve.low[:, 0], [4, NAN])
    assert_array_equal(curve.high[:, 0], [4, 2])


def test_dates_that_are_there_twice_are_placed_one_after_another():
    pytest.importorskip("matplotlib")
    columns = _columns.place(np.array(["2000-01", "2000-01", "2000-02"]))
    assert (columns.positions.tolist(), columns.kind) == ([0, 1, 2], "names")


def test_dates_so_far_apart_that_their_cells_leave_the_axis_are_placed_one_after_another():
    pytest.importorskip("matplotlib")
    # Cells reach half the 1,720 years before the year 300.
    columns = _columns.place(np.array(["0300-01-01", "2020-01-01"], dtype="M8[D]"))
    assert (columns.positions.tolist(), columns.kind) == ([0, 1], "names")


def test_observed_cells_are_read_by_the_marker_of_the_fit(pyplot):
    clients = counts_of_clients()
    marked = [np.nan_to_num(table, nan=-1) for table in clients]
    model = FederatedMatrixImputer(1, family="poisson", missing_values=-1, random_state=0)
    display = ImputationDisplay.from_estimator(model.fit(marked), marked, row_order="given")
    np.testing.assert_allclose(display.observed, pooled_means(clients), **ROUNDING)


@pytest.mark.parametrize(("fitted", "observed"), [([1.0, 2.0], [-1.0, 5.0]), ([-1.0, 5.0], [1, 2])])
def test_colors_reach_from_the_smallest_value_to_the_largest(pyplot, fitted, observed):
    display = ImputationDisplay(
        trend=fitted, fitted=[fitted], n_rows=1, observed=np.array([observed]), family="gaussian"
    ).plot(kind="heatmap")
    norm = display.images_[0].norm
    assert (norm.vmin, norm.vmax) == (-1, 5)


def test_colors_of_counts_begin_at_zero(pyplot):
    display = ImputationDisplay(trend=[3.0, 5.0], fitted=[[3.0, 5.0]], n_rows=1)
    norm = display.plot(kind="heatmap").images_[0].norm
    assert (norm.vmin, norm.vmax) == (0, 5)


def test_no_negative_value_is_on_a_logarithmic_color_scale(pyplot):
    display = ImputationDisplay(trend=[1.0, -0.5], fitted=[[1, -0.5]], n_rows=1, family="gaussian")
    with pytest.raises(ValueError, match=r"color_scale='log', got -0.5\."):
        display.plot(kind="heatmap", color_scale="log")


def test_a_map_with_marks_shows_fitted_means_and_says_which_are_of_missing_cells(pyplot, imputer):
    display = ImputationDisplay.from_estimator(
        imputer, counts_of_clients(), kind="heatmap", mark_missing=True
    )
    seen = ~np.isnan(display.observed)
    for image, shown in zip(display.images_, (seen, ~seen), strict=True):
        assert_array_equal(image.get_array().compressed(), display.fitted[shown])
    labels = [bar.ax.get_ylabel().replace("\n", " ") for bar in display.colorbars_]
    assert labels == ["fitted where observed: count, log(1 + x) scale", "fitted where missing"]


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
def test_labels_of_other_series(pyplot, name, label):
    history = made_history(range(3), range(3)) | {name: np.arange(3)}
    assert ConvergenceDisplay(history, y=name).plot().ax_.get_ylabel() == label


@pytest.mark.parametrize("name", ["n_active", "safeguarded"])
def test_small_counts_of_rounds_have_whole_ticks(pyplot, name):
    history = made_history(range(3), range(3)) | {name: np.array([0, 0, 1])}
    ticks = ConvergenceDisplay(history, y=name).plot().ax_.get_yticks()
    assert_array_equal(ticks, np.round(ticks))


def test_every_component_has_a_band_of_its_own(pyplot):
    weights = [np.array([[0.7, 0.3]] * 2), np.array([[0.9, 0.1]] * 2)]
    histories = [made_history([0, 1], [1, 2]) | {"weights": run} for run in weights]
    display = ConvergenceDisplay(histories, y="weights").plot(quantiles=(0, 1))
    heights = [band.get_paths()[0].vertices[:, 1] for band in display.fill_between_["weights"]]
    assert [(low.min(), low.max()) for low in heights] == [(0.7, 0.9), (0.1, 0.3)]


@pytest.mark.parametrize(("n_components", "size"), [(60, None), (20, (3, 2))])
def test_a_legend_of_some_components_has_the_lines_of_these(paper, n_components, size):
    history = made_history([0, 1], [1, 2]) | {"weights": np.full((2, n_components), 0.1)}
    axis = None if size is None else paper.subplots(figsize=size, layout="constrained")[1]
    display = ConvergenceDisplay(history, y="weights").plot(axis)
    legend, lines = display.ax_.get_legend(), display.lines_["weights"]
    shown = [int(text.get_text()) for text in legend.get_texts()]
    assert shown == list(range(0, n_components, shown[1])) and shown[1] > 1
    look = [(line.get_color(), line.get_linestyle(), line.get_linewidth()) for line in lines]
    of_legend = [
        (line.get_color(), line.get_linestyle(), line.get_linewidth())
        for line in legend.legend_handles
    ]
    assert of_legend == [look[component] for component in shown]
