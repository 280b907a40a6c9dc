"""Heat maps of observed cells and fitted means share colours that fit the family."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from displays import ROUNDING, SHAPE, counts_of_clients
from skfedem.inspection import ImputationDisplay


def test_maps_show_observed_cells_and_fitted_means_on_one_scale(pyplot, imputer):
    display = ImputationDisplay.from_estimator(imputer, counts_of_clients(), kind="heatmap")
    observed, fitted = display.images_
    assert observed.norm is fitted.norm
    highest = max(np.nanmax(display.observed), display.fitted.max())
    assert_allclose(fitted.norm([0.0, highest]), [0, 1], **ROUNDING)
    assert_allclose(fitted.norm(1.0), np.log(2) / np.log1p(highest), **ROUNDING)
    assert_array_equal(observed.get_array().filled(np.nan), display.observed)
    assert np.isnan(display.observed).any()
    assert_array_equal(fitted.get_array(), display.fitted)
    assert display.lines_ == []
    # Rows go downwards, each around its number.
    assert display.ax_[0].get_ylim() == (SHAPE[0] - 0.5, -0.5)
    linear = display.plot(kind="heatmap", color_scale="linear").images_[0]
    assert_allclose(linear.norm(highest), 1, **ROUNDING)
    assert_allclose(linear.norm(highest / 2), 0.5, atol=0.1)  # the scale may begin above 0


def test_titles_and_labels_name_bands(pyplot, imputer):
    options = {"kind": "heatmap", "row_name": "sites"}
    display = ImputationDisplay.from_estimator(imputer, counts_of_clients(), **options)
    titles = [axis.get_title() for axis in display.ax_]
    assert titles == ["observed (grey: missing)", "fitted mean"]
    assert display.ax_[0].get_ylabel() == "sites by rank,\nlargest total on top"
    assert display.colorbar_.ax.get_ylabel() == "count, log(1 + x) scale"
    options["max_rows"] = 4
    display = ImputationDisplay.from_estimator(imputer, counts_of_clients(), **options)
    titles = [axis.get_title() for axis in display.ax_]
    assert titles == ["mean over observed (grey: none)", "fitted mean over all"]
    assert display.ax_[0].get_ylabel() == "sites in bands of 3 or 4,\nlargest total on top"
    alone = ImputationDisplay.from_estimator(imputer, row_order="given", **options).ax_
    assert alone.get_ylabel() == "sites in bands of 3 or 4"


@pytest.mark.parametrize("color_scale", ["log", "linear"])
def test_zeros_and_means_near_zero_look_alike(pyplot, color_scale):
    zeros = np.zeros((6, 4))
    display = ImputationDisplay(trend=zeros[0], fitted=zeros + 1e-11, n_rows=6, observed=zeros)
    display.plot(kind="heatmap", color_scale=color_scale).figure_.canvas.draw()
    observed, fitted = (image.get_facecolor() for image in display.images_)
    assert_array_equal(observed, fitted)
    assert display.colorbar_.vmax == 1
    assert {0, 1} <= set(display.colorbar_.get_ticks())


@pytest.mark.parametrize(
    ("family", "fitted", "observed", "limits"),
    [
        ("poisson", [3.0, 5.0], [3.0, 5.0], (0, 5)),
        ("bernoulli", [0.3, 0.5], [0.0, 0.5], (0, 1)),
        ("gaussian", [1.0, 2.0], [-1.0, 5.0], (-1, 5)),
        ("gaussian", [-1.0, 5.0], [1.0, np.nan], (-1, 5)),
    ],
)
def test_colors_reach_as_far_as_the_values(pyplot, family, fitted, observed, limits):
    display = ImputationDisplay(
        trend=fitted, fitted=[fitted], n_rows=1, observed=[observed], family=family
    ).plot(kind="heatmap")
    norm = display.images_[0].norm
    assert (norm.vmin, norm.vmax) == limits
    if limits[0] < 0:
        with pytest.raises(ValueError, match=r"no negative values for color_scale='log', got -1"):
            display.plot(kind="heatmap", color_scale="log")


def test_rows_and_columns_have_integer_ticks(pyplot):
    one, twenty = np.ones((1, 1)), np.ones((20, 3))
    for values, labels in ((one, ["a"]), (one, [2001]), (twenty, [1, 2, 3]), (twenty, "abc")):
        axis = (
            ImputationDisplay(
                trend=values[0], fitted=values, n_rows=len(values), column_labels=list(labels)
            )
            .plot(kind="heatmap")
            .ax_
        )
        axis.figure.draw_without_rendering()
        assert_array_equal(axis.get_yticks(), np.round(axis.get_yticks()))
        texts = [text.get_text() for text in axis.get_xticklabels()]
        assert [text for text in texts if text in map(str, labels)] == list(map(str, labels))
