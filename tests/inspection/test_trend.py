"""The trend of a fitted matrix, its moving mean, and the effort."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from displays import NAN, ROUNDING, SHAPE, counts_of_clients, points
from skfedem.inspection import ImputationDisplay
from skfedem.inspection._trend import moving_mean


def flat(trend, **arrays):
    return ImputationDisplay(trend=trend, fitted=[trend], n_rows=1, **arrays)


@pytest.mark.parametrize("window", [1, 3, 12])
def test_a_moving_mean_is_centred(pyplot, imputer, window):
    display = ImputationDisplay.from_estimator(imputer, window=window, column_name="months")
    _, smooth = points(display.lines_[1])
    half = window // 2
    expected = np.full(SHAPE[1], NAN)
    for at in range(half, SHAPE[1] - half):
        # An even window: the mean of the two that lie half a column off.
        starts = {at - half, at + half + 1 - window}
        expected[at] = np.mean([display.trend[first : first + window].mean() for first in starts])
    assert_allclose(smooth, expected, **ROUNDING)
    assert display.lines_[1].get_label() == f"mean over {window} months"


def test_a_window_of_a_year_removes_the_season():
    months = np.arange(60)
    season = 100 + 2 * months + 30 * np.cos(2 * np.pi * months / 12)
    assert_allclose(moving_mean(season, 12)[6:-6], 100 + 2 * months[6:-6], **ROUNDING)


@pytest.mark.parametrize(("n_columns", "longest"), [(1, 1), (2, 1), (3, 3), (4, 3)])
def test_every_window_has_a_mean(pyplot, n_columns, longest):
    display = flat(np.ones(n_columns))
    for window in range(1, longest + 1):
        _, smooth = points(display.plot(window=window).lines_[1])
        assert np.isfinite(smooth).any()
    with pytest.raises(ValueError, match=f"window to be an integer >= 1 and <= {longest}"):
        display.plot(window=longest + 1)


def test_effort_is_the_share_of_observed_cells(pyplot, imputer):
    display = ImputationDisplay.from_estimator(imputer, counts_of_clients())
    steps = display.effort_.get_paths()[0].vertices
    assert_allclose(steps[:, 1].max(), display.observed_share.max(), **ROUNDING)
    written = display.ax_[1].yaxis.get_major_formatter()
    assert [written(share, None) for share in (0.25, 0.005, 1.0)] == ["25%", "0.5%", "100%"]
    whole = flat([1.0, 2.0], observed_share=[1.0, 1.0]).plot()
    assert whole.ax_[1].get_ylim() == (0, 1)


def test_the_legend_names_what_is_drawn(pyplot, imputer):
    display = ImputationDisplay.from_estimator(imputer, counts_of_clients(), window=3)
    legend = display.ax_[0].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == [
        "fitted",
        "mean over 3 columns",
        "observed rows alone",
        "nothing observed",
    ]
    assert_array_equal(points(display.ax_[0].lines[-1])[0], [5])
    assert flat([1.0, 2.0]).plot().ax_.get_legend() is None


@pytest.mark.parametrize(("family", "is_drawn"), [("poisson", True), ("gaussian", False)])
def test_sums_over_observed_cells_are_drawn_for_counts(pyplot, family, is_drawn):
    display = flat([100.0] * 2, observed_total=[6.0, 0], family=family).plot()
    labels = [line.get_label() for line in display.ax_.lines]
    assert ("observed rows alone" in labels) == is_drawn


@pytest.mark.parametrize("family", ["poisson", "bernoulli"])
def test_trends_on_the_same_axes_are_all_in_view(pyplot, family):
    axis = pyplot.subplots()[1]
    for trend in ([3.0, 4.0], [30.0, 40.0], [2.0, 2.0]):
        flat(trend, family=family).plot(axis)
        assert axis.get_ylim()[0] == 0
        assert axis.get_ylim()[1] > axis.dataLim.y1
    axis.plot([0, 1], [50, 60])
    assert axis.get_ylim()[0] == 0
    assert axis.get_ylim()[1] > 60


def test_a_logarithmic_trend_is_positive(pyplot, imputer):
    display = ImputationDisplay.from_estimator(imputer, yscale="log")
    assert display.ax_.get_yscale() == "log"
    for least in (-1, 0):
        display = flat([least, 2.0], family="gaussian")
        says = f"positive sums over rows for yscale='log', got {least}"
        with pytest.raises(ValueError, match=says):
            display.plot(yscale="log")


@pytest.mark.parametrize(
    ("family", "says"),
    [
        ("poisson", "expected counts,\nall sites"),
        ("bernoulli", "expected number of sites\nwith presence"),
        ("gaussian", "sum of fitted means,\nall sites"),
    ],
)
def test_the_label_says_what_is_summed(pyplot, family, says):
    assert flat([0.5], family=family).plot(row_name="sites").ax_.get_ylabel() == says
