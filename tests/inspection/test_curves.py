"""Means and bands of the histories of several runs."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from displays import NAN, ROUNDING, made_history
from skfedem.inspection._curves import evaluated, mean_curve


def curve_of(histories, x="epoch", y="loss", log_y=False, quantiles=None):
    return mean_curve(None, histories, x, y, log_x=False, log_y=log_y, quantiles=quantiles)


def test_bits_are_summed_in_double_precision():
    # Single precision has no 2**24 + 1.
    history = made_history(range(3), range(3), uplink_bits=np.array([2**24, 1, 1], np.float32))
    assert_array_equal(evaluated(history, "bits", "loss")[0], 2**24 + np.arange(3))


@pytest.mark.parametrize("y", ["n_active", "safeguarded"])
def test_series_of_rounds_omit_the_start(y):
    history = made_history(range(3), np.zeros(3), **{y: np.array([0, 2, 3])})
    at, values = evaluated(history, "round", y)
    assert (at.tolist(), values.tolist()) == ([1, 2], [[2], [3]])


def test_mean_and_band_at_every_point():
    histories = [made_history([0, 1, 2], values) for values in ([1, 5, 2], [3, 4, 8], [2, 9, 5.0])]
    curve = curve_of(histories, quantiles=(0, 0.5))
    assert_array_equal(curve.values[:, 0], [2, 6, 5])
    assert_array_equal(curve.band[:, :, 0], [[1, 4, 2], [2, 5, 5]])


@pytest.mark.parametrize("log_y", [False, True])
def test_runs_are_interpolated_on_the_scale_of_the_axis(log_y):
    # Straight lines on the scale that is drawn are met exactly, whatever the positions.
    straight = (lambda x: 10.0**-x) if log_y else (lambda x: 3.0 - x)
    at = [0, 1, 2.5, 4], [0.5, 0.75, 3, 6]
    curve = curve_of([made_history(x, straight(np.array(x))) for x in at], log_y=log_y)
    # As far as both go.
    assert_array_equal(curve.x, [0.5, 0.75, 1, 2.5, 3, 4])
    assert_allclose(curve.values[:, 0], straight(curve.x), **ROUNDING)
    assert curve.band is None


def test_runs_with_one_common_position_have_a_mean_there():
    histories = [made_history([0, 1, 2], [4, 2, 1.0]), made_history([2, 3, 4], [3, 2, 1.0])]
    curve = curve_of(histories)
    assert (curve.x.tolist(), curve.values.tolist()) == ([2], [[2]])


def test_a_run_that_reaches_zero_is_interpolated_without_logarithms():
    histories = [made_history([0, 2], [4, 0.0]), made_history([0, 1, 2], [1, 1, 1.0])]
    curve = curve_of(histories, log_y=True)
    assert_allclose(curve.values[:, 0], [2.5, 1.5, 0.5], **ROUNDING)


def test_the_last_round_at_a_position_counts():
    # A round without clients sends nothing: it is where the one before it was.
    histories = [made_history([0, 1, 1, 2], [4, 3, 1, 0.0]), made_history([0, 1, 2], [4, 1, 0.0])]
    assert_array_equal(curve_of(histories).values[:, 0], [4, 1, 0])


def test_a_band_on_a_logarithmic_axis_has_positive_values():
    histories = [made_history([0, 1], values) for values in ([4, 0.0], [4, 2.0])]
    curve = curve_of(histories, log_y=True, quantiles=(0, 1))
    assert_array_equal(curve.band[:, :, 0], [[4, NAN], [4, 2]])


def test_components_of_several_runs_are_matched_by_their_last_values():
    weights = np.array([[0.5, 0.5], [0.8, 0.2]])
    histories = [
        made_history([0, 1], [0.0, 0.0], weights=run) for run in (weights, weights[:, ::-1])
    ]
    assert_allclose(curve_of(histories, y="weights").values[-1], [0.8, 0.2], **ROUNDING)


def test_runs_of_a_group_must_overlap():
    apart = [made_history([0, 1], [1.0, 2.0]), made_history([5, 6], [1.0, 2.0])]
    with pytest.raises(ValueError, match="overlap along 'epoch', got some that end at 1 and some"):
        curve_of(apart)
