"""Heat maps of the imputation: bands of rows, colours, and which cells were observed."""

import itertools

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from displays import NAN, ROUNDING, SHAPE, counts_of_clients, pooled_means
from skfedem import FederatedMatrixImputer
from skfedem.inspection import ImputationDisplay, _matrix

# ---- bands of rows


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


# ---- colours and cells


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


def test_thousands_of_rows_have_commas(pyplot):
    display = ImputationDisplay(trend=[3e3], fitted=np.ones((3, 1)), n_rows=3000)
    axis = display.plot(kind="heatmap").ax_
    axis.figure.canvas.draw()
    assert "1,200" in [text.get_text() for text in axis.get_yticklabels()]


@pytest.mark.parametrize("rounding", [4e-15, 4e-12])
def test_equal_values_have_one_color(pyplot, rounding):
    fitted = np.array([[7.0, 7 + rounding]])
    display = ImputationDisplay(trend=fitted[0], fitted=fitted, n_rows=1, family="gaussian")
    image = display.plot(kind="heatmap").images_[0]
    display.figure_.canvas.draw()
    left, right = image.get_facecolor()
    # At most neighbours of 256 colours; the ends of the map differ by 0.9.
    np.testing.assert_allclose(left, right, atol=0.01)


@pytest.mark.parametrize("family", ["bernoulli", "gaussian"])
def test_colors_of_other_families_reach_as_far_as_their_values(pyplot, family):
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
