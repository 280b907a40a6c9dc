"""Convergence of several runs: their means and bands, their groups, and how they look."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from displays import NAN, ROUNDING, made_history, points, rows_of_clients
from skfedem import FederatedGaussianMixture
from skfedem.inspection import ConvergenceDisplay, _runs

# ---- means and bands


def curve_of(histories, x="epoch", y="loss", log_y=False, quantiles=None):
    return _runs.group_curve(None, histories, x, y, log_x=False, log_y=log_y, quantiles=quantiles)


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
    assert display.plot(quantiles=None).fill_between_ == {"step_size": []}
    again = display.plot(quantiles=np.array([0.25, 0.75])).fill_between_["step_size"][0]
    np.testing.assert_array_equal(again.get_paths()[0].vertices, corners)


def test_band_is_between_the_quantiles_at_every_point():
    histories = [made_history([0, 1, 2], values) for values in ([1, 5, 2], [3, 4, 8], [2, 9, 5.0])]
    curve = curve_of(histories, quantiles=(0, 0.5))
    np.testing.assert_array_equal(curve.middle[:, 0], [2, 6, 5])
    np.testing.assert_array_equal(curve.band[0, :, 0], [1, 4, 2])
    np.testing.assert_array_equal(curve.band[1, :, 0], [2, 5, 5])


@pytest.mark.parametrize("log_y", [False, True])
def test_runs_evaluated_elsewhere_are_interpolated_on_the_drawn_scale(log_y):
    # Straight lines on the scale that is drawn are met exactly, whatever the positions.
    straight = (lambda x: 10.0**-x) if log_y else (lambda x: 3.0 - x)
    at = [0, 1, 2.5, 4], [0.5, 0.75, 3, 6]
    histories = [made_history(places, straight(np.array(places))) for places in at]
    curve = curve_of(histories, log_y=log_y)
    # As far as both go.
    np.testing.assert_array_equal(curve.x, [0.5, 0.75, 1, 2.5, 3, 4])
    np.testing.assert_allclose(curve.middle[:, 0], straight(curve.x), **ROUNDING)
    assert curve.band is None


def test_runs_that_share_one_position_have_their_mean_there():
    histories = [made_history([0, 1, 2], [4, 2, 1.0]), made_history([2, 3, 4], [3, 2, 1.0])]
    curve = curve_of(histories)
    assert (curve.x.tolist(), curve.middle.tolist()) == ([2], [[2]])


def test_long_runs_are_drawn_to_their_end():
    histories = [made_history(np.arange(3001), np.arange(3001) * slope) for slope in (1.0, 2.0)]
    curve = curve_of(histories, x="round")
    assert curve.x[0] == 0 and curve.x[-1] == 3000 and len(curve.x) == 1000
    np.testing.assert_allclose(curve.middle[:, 0], 1.5 * curve.x, **ROUNDING)


def test_a_run_that_reaches_zero_is_interpolated_without_logarithms():
    histories = [made_history([0, 2], [4, 0.0]), made_history([0, 1, 2], [1, 1, 1.0])]
    curve = curve_of(histories, log_y=True)
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


@pytest.mark.parametrize("y", ["n_active", "safeguarded", "uplink_bits", "downlink_bits"])
def test_what_describes_rounds_at_one_position_is_their_mean(y):
    history = made_history([1, 2, 2], np.zeros(3)) | {"round": np.arange(1, 4)}
    history[y] = np.array([0, 10, 30])
    curve = curve_of([history] * 2, y=y)
    assert_array_equal(curve.middle[:, 0], [0, 20])


def test_a_band_on_a_logarithmic_axis_leaves_out_what_is_not_positive():
    histories = [made_history([0, 1], values) for values in ([4, 0.0], [4, 2.0])]
    curve = curve_of(histories, log_y=True, quantiles=(0, 1))
    assert_array_equal(curve.band[0, :, 0], [4, NAN])
    assert_array_equal(curve.band[1, :, 0], [4, 2])


# ---- groups and components


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


@pytest.mark.parametrize("n_groups", [1, 3])
def test_one_legend_serves_all_axes_after_those_of_components(pyplot, mixtures, n_groups):
    names = ["a", "b", "c"][:n_groups]
    display = ConvergenceDisplay.from_estimators(
        mixtures[:n_groups], labels=names, y=["weights", "log_likelihood", "step_size"]
    )
    texts = [
        [text.get_text() for text in axis.get_legend().get_texts()] if axis.get_legend() else []
        for axis in display.ax_
    ]
    # Components are told apart in a single group; otherwise, groups are, on whichever axes.
    want = [["a 0", "a 1", "a 2"], ["a"], []] if n_groups == 1 else [names, [], []]
    assert texts == want


def test_histories_are_not_changed(pyplot, mixtures):
    before = {name: column.copy() for name, column in mixtures[0].history_.items()}
    ConvergenceDisplay.from_estimators(mixtures, x="bits", y=list(before)).plot(xscale="log")
    for name, column in before.items():
        np.testing.assert_array_equal(mixtures[0].history_[name], column)


def test_every_component_has_a_band_of_its_own(pyplot):
    weights = [np.array([[0.7, 0.3]] * 2), np.array([[0.9, 0.1]] * 2)]
    histories = [made_history([0, 1], [1, 2]) | {"weights": run} for run in weights]
    display = ConvergenceDisplay(histories, y="weights").plot(quantiles=(0, 1))
    heights = [band.get_paths()[0].vertices[:, 1] for band in display.fill_between_["weights"]]
    assert [(low.min(), low.max()) for low in heights] == [(0.7, 0.9), (0.1, 0.3)]


# ---- looks and options


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


def test_no_curve_has_the_colour_of_the_page(pyplot, mixtures):
    from matplotlib.colors import to_hex

    runs, labels = [mixtures[0]] * 7, list("abcdefg")
    with pyplot.style.context("dark_background"):
        axis = ConvergenceDisplay.from_estimators(runs, labels=labels).ax_[0]
        colors = {to_hex(line.get_color()) for line in axis.get_lines()}
        assert len(colors) == 7
        assert to_hex(axis.get_facecolor()) not in colors


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


# ---- bad input


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
