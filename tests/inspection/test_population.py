"""Displays of population models show what the models answer."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from displays import points
from skfedem.inspection import (
    ConvergenceDisplay,
    GoodnessOfFitDisplay,
    IndividualFitDisplay,
    VisualPredictiveCheckDisplay,
)
from skfedem.inspection._predictive_check import bins_of

# Of modes that were found in another company.
ABOUT = {"rtol": 1e-6, "atol": 1e-6}


@pytest.fixture
def holes(theophylline):
    """A third of the responses is missing."""
    table = theophylline.copy()
    table.loc[table.index[::3], "dv"] = np.nan
    return table


def offsets(collection):
    return np.asarray(collection.get_offsets(), dtype=float).T


# ---- observed against predicted, and residuals


def test_responses_are_drawn_against_predictions(pyplot, population, holes):
    display = GoodnessOfFitDisplay.from_estimator(population, holes)
    known = holes["dv"].notna().to_numpy()
    for drawn, level in zip(display.scatter_, ("population", "individual"), strict=True):
        predicted, observed = offsets(drawn)
        assert_allclose(predicted, population.predict(holes, level)[known])
        assert_array_equal(observed, holes["dv"][known])


def test_residuals_are_drawn_against_time_and_prediction(pyplot, population, holes):
    display = GoodnessOfFitDisplay.from_estimator(population, holes, kind="residuals")
    known = holes["dv"].notna().to_numpy()
    residuals = population.residuals(holes)[known]
    for drawn, level in zip(display.scatter_[::2], residuals, strict=True):
        assert_allclose(offsets(drawn), [holes["time"][known], residuals[level]])
    for drawn, level in zip(display.scatter_[1::2], residuals, strict=True):
        predicted = population.predict(holes, level)[known]
        assert_allclose(offsets(drawn), [predicted, residuals[level]])
    assert [axis.get_xlabel() for axis in display.ax_][:2] == ["time", "population prediction"]
    by_weight = GoodnessOfFitDisplay.from_estimator(population, holes, kind="residuals", x="weight")
    assert_array_equal(offsets(by_weight.scatter_[0])[0], holes["weight"][known])


def test_logarithmic_axes_leave_out_what_is_not_positive(pyplot, population, theophylline):
    display = GoodnessOfFitDisplay.from_estimator(population, theophylline, scale="log")
    for axis in display.ax_:
        assert axis.get_xscale() == axis.get_yscale() == "log"
        assert axis.get_ylim()[0] > 0.05
    assert GoodnessOfFitDisplay.from_estimator(population, theophylline).ax_[0].get_ylim()[0] < 0


# ---- individual fits


def test_curves_of_a_subject_are_its_predictions(pyplot, population, holes):
    display = IndividualFitDisplay.from_estimator(population, holes, subjects=[9, 2])
    for lines, label in zip(display.lines_, (9, 2), strict=True):
        own = holes[holes["id"] == label]
        times, observed = points(lines[0])
        assert_array_equal(times, own["time"])
        assert_array_equal(observed, own["dv"])
        grid, _ = points(lines[1])
        assert grid[0] == own["time"].min() and grid[-1] == own["time"].max()
        individual, typical = (np.interp(own["time"], *points(line)) for line in lines[1:])
        assert_allclose(individual, population.predict(own, "individual"), **ABOUT)
        assert_allclose(typical, population.predict(own), **ABOUT)
    assert [axis.get_title() for axis in display.ax_] == ["id 9", "id 2"]


def test_regressors_keep_their_values_until_the_next_row(pyplot, population, theophylline):
    own = theophylline[theophylline["id"] == 3].sort_values("time", ascending=False)
    late = own["time"] > 10
    table = own.assign(dose=np.where(late, 2 * own["dose"], own["dose"]))
    display = IndividualFitDisplay.from_estimator(population, table)
    grid, typical = points(display.lines_[0][2])
    start = own["time"][late].min()
    jump = np.searchsorted(grid, start)
    assert_allclose(typical[jump] / typical[jump - 1], 2, rtol=0.05)


def test_the_first_twelve_subjects_are_drawn(pyplot, population, theophylline):
    more = pd.concat([theophylline, theophylline.assign(id=theophylline["id"] + 100)])
    display = IndividualFitDisplay.from_estimator(population, more)
    assert list(display.fits) == list(range(1, 13))
    assert not display.ax_[0].get_xlabel() and display.ax_[-1].get_xlabel() == "time"


# ---- visual predictive check


def test_bands_hold_most_simulated_quantiles(pyplot, population, theophylline):
    display = VisualPredictiveCheckDisplay.from_estimator(
        population, theophylline, n_samples=200, n_bins=4, level=0.8, random_state=0
    )
    drawn = population.simulate(theophylline, 200, random_state=0)
    bins = bins_of(theophylline["time"].to_numpy(), 4)
    for k in range(4):
        own = bins == k
        observed = theophylline["dv"][own]
        assert display.bin_centers[k] == theophylline["time"][own].median()
        for position, quantile in enumerate(display.quantiles):
            assert display.observed_quantiles[position, k] == observed.quantile(quantile)
            of_each = np.quantile(drawn[:, own], quantile, axis=1)
            low, high = display.bands[position, :, k]
            assert np.mean((low <= of_each) & (of_each <= high)) == 0.8


def test_data_of_the_model_stay_in_the_bands(pyplot, population, theophylline):
    many = pd.concat([theophylline.assign(id=theophylline["id"] + 100 * k) for k in range(10)])
    own = many.assign(dv=population.simulate(many, random_state=1)[0])
    options = {"n_samples": 100, "level": 0.99, "random_state": 2}
    shares = []
    for table in (own, own.assign(dv=own["dv"] + 1)):
        display = VisualPredictiveCheckDisplay.from_estimator(population, table, **options)
        low, high = display.bands.transpose(1, 0, 2)
        lines = display.observed_quantiles
        shares.append(np.mean((low <= lines) & (lines <= high)))
    # 33 quantiles, of which one in a hundred is outside; shifted data are elsewhere.
    assert shares[0] > 0.9
    assert shares[1] < 0.3


@pytest.mark.parametrize("n_bins", [1, 3, 7, 100])
def test_bins_have_equal_numbers_and_whole_ties(n_bins):
    times = np.repeat([0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0], 10)
    bins = bins_of(np.random.default_rng(0).permutation(times), n_bins)
    assert len(np.unique(bins)) == min(n_bins, 7)
    counts = np.bincount(bins_of(times, n_bins))
    assert counts.max() - counts.min() <= 10
    assert (counts % 10 == 0).all()


def test_simulated_quantiles_that_are_negative_leave_a_logarithmic_axis(
    pyplot, population, theophylline
):
    display = VisualPredictiveCheckDisplay.from_estimator(
        population, theophylline, yscale="log", random_state=0
    )
    assert display.ax_.get_yscale() == "log"
    assert 0.01 < display.ax_.get_ylim()[0] < 1
    display.figure_.draw_without_rendering()


# ---- all of them


def test_traces_are_columns_of_the_history(pyplot, population):
    names = list(population.standard_errors_)
    display = ConvergenceDisplay.from_estimator(population, y=names)
    for name, axis in zip(names, display.ax_, strict=True):
        _, values = points(display.lines_[name][0])
        assert_array_equal(values, population.history_[name])
        assert axis.get_ylabel() == name
    edges = [axis.get_subplotspec().colspan.start for axis in display.ax_]
    assert edges == [0, 1, 0, 1, 0, 1, 0]


@pytest.mark.parametrize(
    "display",
    [GoodnessOfFitDisplay, IndividualFitDisplay, VisualPredictiveCheckDisplay],
)
def test_tables_of_sites_are_drawn_together(pyplot, population, theophylline, display):
    own = [theophylline[theophylline["id"] <= 5], theophylline[theophylline["id"] > 5]]
    wholes = [theophylline, own, [pl.DataFrame(table.to_dict("list")) for table in own]]
    options = {"random_state": 0} if display is VisualPredictiveCheckDisplay else {}
    drawn = [display.from_estimator(population, X, **options) for X in wholes]
    for other in drawn[1:]:
        one, two = (
            each.fits[7].individual if display is IndividualFitDisplay else each.observed
            for each in (drawn[0], other)
        )
        assert_allclose(one, two, **ABOUT)


def test_own_axes_and_options_are_used(pyplot, population, theophylline):
    figure, grid = pyplot.subplots(2, 3)
    display = GoodnessOfFitDisplay.from_estimator(
        population, theophylline, ax=grid[0, :2], scatter_kw={"c": "red"}
    )
    assert display.figure_ is figure
    assert display.scatter_[0].get_facecolor()[0, :3].tolist() == [1, 0, 0]
    check = VisualPredictiveCheckDisplay.from_estimator(
        population, theophylline, ax=grid[0, 2], line_kw={"lw": 7}, fill_between_kw={"alpha": 0.5}
    )
    assert check.ax_ is grid[0, 2]
    assert [line.get_linewidth() for line in check.lines_] == [7] * 3
    assert [band.get_alpha() for band in check.fill_between_] == [0.5] * 3
    single = IndividualFitDisplay.from_estimator(
        population, theophylline, subjects=[4], ax=grid[1, 0], line_kw={"color": "k"}
    )
    assert single.ax_ is grid[1, 0]
    assert [line.get_color() for line in single.lines_[0][1:]] == ["k", "k"]


def test_bad_arguments_are_refused(pyplot, population, theophylline, imputer):
    fits, check = IndividualFitDisplay, VisualPredictiveCheckDisplay
    for display in (GoodnessOfFitDisplay, fits, check):
        with pytest.raises(TypeError, match="FederatedNonlinearMixedEffects, got FederatedMatrix"):
            display.from_estimator(imputer, theophylline)
        with pytest.raises(ValueError, match=r"a column 'hour'"):
            display.from_estimator(population, theophylline, x="hour")
        with pytest.raises(ValueError, match="matplotlib Axes in ax"):
            display.from_estimator(population, theophylline, ax=[])
    with pytest.raises(ValueError, match="kind to be one of 'predictions', 'residuals'"):
        GoodnessOfFitDisplay.from_estimator(population, theophylline, kind="trend")
    with pytest.raises(ValueError, match=r"subjects with rows in X, got 13.* column 'id'"):
        fits.from_estimator(population, theophylline, subjects=[1, 13])
    with pytest.raises(ValueError, match="at least one subject"):
        fits.from_estimator(population, theophylline, subjects=[])
    with pytest.raises(ValueError, match="quantiles to be numbers from 0 to 1"):
        check.from_estimator(population, theophylline, quantiles=(5, 50, 95))
    with pytest.raises(ValueError, match="responses in column 'dv', got none"):
        check.from_estimator(population, theophylline.assign(dv=np.nan))
    with pytest.raises(ValueError, match="residuals of both levels"):
        GoodnessOfFitDisplay(
            x=[0], observed=[1], predictions={"population": [1], "individual": [1]}, residuals={}
        )
