"""Displays are readable, at the size of the documentation and on small axes: this is measured."""

import itertools
from io import BytesIO

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from displays import COLUMNS, NAN, counts_of_clients, made_history
from skfedem import FederatedGaussianMixture, FederatedMatrixImputer
from skfedem.inspection import ConvergenceDisplay, ImputationDisplay


def drawn_texts(axis, renderer):
    return [
        text.get_window_extent(renderer)
        for text in axis.get_xticklabels()
        if text.get_visible() and text.get_text()
    ]


# ---- convergence


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


@pytest.mark.parametrize(
    ("label", "n_runs"),
    [("a", 9), ("a setting of this length", 3), ("a long label " * 5, 9), ("x" * 200, 3)],
)
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


@pytest.mark.parametrize("n_runs", [2, 6])
def test_labels_in_several_rows_do_not_push_those_of_the_axis_out(paper, n_runs):
    # The figure grows by the rows of the legend, and its ticks get a digit more.
    loss = -3.8445 - 0.0038 * np.exp(-np.arange(41) / 6)
    histories = [made_history(range(41), loss)] * n_runs
    labels = [f"participation p = 0.{k}, dithering, omega = 1" for k in range(n_runs)]
    display = ConvergenceDisplay(histories, y="loss", labels=labels).plot()
    display.figure_.savefig(BytesIO())
    assert display.ax_.yaxis.label.get_window_extent().x0 >= 0


def test_components_of_a_run_with_a_long_name_leave_room_for_the_axes(paper, mixtures):
    name = "a mixture whose name is longer than its weights are wide"
    axis = ConvergenceDisplay.from_estimator(mixtures[0], y="weights", name=name).ax_
    axis.figure.draw_without_rendering()
    assert axis.get_position().width >= 0.5


def test_legends_of_components_are_beside_the_axes(paper, mixtures):
    display = ConvergenceDisplay.from_estimator(mixtures[0], y=["weights", "step_size"])
    display.figure_.draw_without_rendering()
    renderer = display.figure_.canvas.get_renderer()
    legend = display.ax_[0].get_legend().get_window_extent(renderer)
    assert legend.x0 >= display.ax_[0].get_window_extent(renderer).x1
    assert legend.x1 <= display.figure_.canvas.get_width_height()[0]


@pytest.mark.parametrize("n_components", [10, 400])
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


@pytest.mark.parametrize(
    ("name", "size"),
    [(None, None), ("twenty", (3, 2)), ("a name of several words, and as many lines", (3, 2))],
)
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


def test_a_legend_of_components_fits_into_axes_without_a_layout(paper):
    history = made_history([0, 1], [1, 2]) | {"weights": np.full((2, 20), 0.05)}
    axis = ConvergenceDisplay(history, y="weights").plot(paper.subplots(figsize=(3, 2))[1]).ax_
    axis.figure.draw_without_rendering()
    legend, axes = axis.get_legend().get_window_extent(), axis.get_window_extent()
    assert axes.x0 <= legend.x0 and legend.x1 <= axes.x1
    assert axes.y0 <= legend.y0 and legend.y1 <= axes.y1


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


def test_bits_of_rounds_have_prefixes(paper):
    history = made_history(range(3), range(3), uplink_bits=np.array([10**6, 5000, 6000]))
    display = ConvergenceDisplay(history, y="uplink_bits").plot()
    display.figure_.draw_without_rendering()
    assert any(label.get_text().endswith("k") for label in display.ax_.get_yticklabels())


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


@pytest.mark.parametrize("n_columns", [1, 3])
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


# ---- imputation


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


@pytest.mark.parametrize("n_months", [2, 23, 25, 400])
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


@pytest.mark.parametrize(
    ("n_rows", "options"),
    [
        (40, {"kind": "trend"}),
        (40, {"kind": "heatmap", "mark_missing": False}),
        (400, {"kind": "heatmap", "mark_missing": True}),
    ],
)
def test_ticks_and_legends_do_not_collide(paper, n_rows, options):
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
    ("kind", "name", "width"),
    [
        ("trend", "column", 6.4),
        ("trend", "a month and", 6.4),
        ("trend", "wide" * 50, 6.4),
        ("heatmap", "column", 6.4),
        ("heatmap", "a long name of column", 5),
    ],
)
def test_long_names_of_columns_neither_touch_nor_push_the_axes_away(paper, kind, name, width):
    names = [f"{name} {k}" for k in range(48)]
    values = np.random.default_rng(0).poisson(30, (60, 48)).astype(float)
    display = ImputationDisplay(
        trend=values.sum(axis=0), fitted=values, n_rows=60, observed=values, column_labels=names
    )
    n_axes, least_width = {"trend": (1, 0.7), "heatmap": (2, 0.25)}[kind]
    figure, axes = paper.subplots(1, n_axes, figsize=(width, 4), layout="constrained")
    display.plot(kind=kind, ax=axes)
    figure.draw_without_rendering()
    for axis in np.atleast_1d(axes):
        assert axis.get_position().width > least_width  # of the figure's
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
    ("window", "row_name", "column_name"),
    [(None, "sites", "months"), (12, "monitoring localities", "calendar months")],
)
def test_a_trend_keeps_its_width_whatever_its_legend_says(
    paper, imputer, window, row_name, column_name
):
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


def fit_to_sums(offset, spread, **parameters):
    generator = np.random.default_rng(0)
    table = offset + spread * generator.normal(size=(20, 24))
    return FederatedMatrixImputer(random_state=0, **parameters).fit(table), table


@pytest.mark.parametrize(("offset", "spread"), [(60, 0.01), (60, 10.0), (0, 1000.0), (3e-7, 2e-8)])
def test_ticks_of_a_trend_tell_its_scale(paper, offset, spread):
    model, table = fit_to_sums(offset, spread, penalty=1e-8)
    axis = ImputationDisplay.from_estimator(model, table, window=3).ax_[0]
    axis.figure.draw_without_rendering()
    texts = [label.get_text() for label in axis.get_yticklabels()]
    assert len(set(texts)) == len(texts)
    # What is added to all of them, or multiplies them, stands above the axis, as the legend does.
    multiplier, legend = axis.yaxis.get_offset_text(), axis.get_legend()
    assert bool(multiplier.get_text()) == (spread < 1)
    assert not multiplier.get_text() or not overlap(multiplier, legend)


def overlap(*artists):
    one, other = (artist.get_window_extent() for artist in artists)
    return one.overlaps(other)


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


# ---- both


def test_a_part_of_a_figure(paper, mixtures, imputer):
    left, right = paper.figure(figsize=(9, 4), layout="constrained").subfigures(1, 2)
    curves = ConvergenceDisplay.from_estimator(mixtures[0], y="weights", ax=left.subplots())
    ImputationDisplay.from_estimator(imputer, ax=right.subplots())
    left.figure.draw_without_rendering()
    # The legend beside the axes stays in its half.
    legend = curves.ax_.get_legend().get_window_extent()
    assert legend.x1 <= right.bbox.x0
