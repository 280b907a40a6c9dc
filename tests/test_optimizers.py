"""Steps of optimizers against their definitions, written out in numbers."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.neural_network._stochastic_optimizers import AdamOptimizer

from skfedem._optimizers import OPTIMIZERS, adam, adamax, no_moments, sgd

DIRECTIONS = [np.array([1.0, -3.0, 0.0]), np.array([2.0, 0.5, 0.0]), np.array([-1.0, 4.0, 0.0])]


def test_sgd_is_a_step_along_the_direction_and_momentum_adds_up():
    moments = no_moments((3,))
    change, moments = sgd(moments, DIRECTIONS[0], 0.5, momentum=0.9)
    assert_allclose(change, 0.5 * DIRECTIONS[0])
    change, _ = sgd(moments, DIRECTIONS[1], 0.5, momentum=0.9)
    assert_allclose(change, 0.5 * (0.9 * DIRECTIONS[0] + DIRECTIONS[1]))


def test_adam_is_that_of_scikit_learn_uphill():
    parameters, moments = [np.zeros(3)], no_moments((3,))
    theirs = AdamOptimizer(parameters, learning_rate_init=0.1)
    total = np.zeros(3)
    for direction in DIRECTIONS:
        theirs.update_params(parameters, [-direction])
        change, moments = adam(moments, direction, 0.1)
        total += change
        # They add 1e-8 before the correction of the second moment, and not after it.
        assert_allclose(total, parameters[0], rtol=1e-6)


def test_adamax_by_hand():
    moments = no_moments((1,))
    change, moments = adamax(moments, np.array([2.0]), 0.1)
    assert_allclose(change, 0.1)
    change, moments = adamax(moments, np.array([-1.0]), 0.1)
    first = 0.9 * 0.2 - 0.1 * 1.0
    assert_allclose(change, 0.1 / (1 - 0.81) * first / (0.999 * 2.0), rtol=1e-7)


@pytest.mark.parametrize("step", OPTIMIZERS.values())
def test_steps_ascend_and_change_nothing_in_place(step):
    moments, direction = no_moments((2,)), np.array([1.0, -1.0])
    change, after = step(moments, direction, 0.1, 0.9)
    assert change[0] > 0 > change[1]
    assert moments.n_steps == 0 and not moments.first.any() and after.n_steps == 1
    change, _ = step(moments, np.zeros(2), 0.1, 0.9)
    assert not change.any()
