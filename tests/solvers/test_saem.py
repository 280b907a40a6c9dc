"""SAEM against what all solvers promise."""

from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from contracts import contract
from problems import SETTINGS, model_case
from skfedem.solvers.saem import SaemSchedule, saem

SCHEDULE = SaemSchedule(n_exploratory=8, n_smoothing=4, exponent=0.7)
SAEM = saem(SCHEDULE)
contracts = SimpleNamespace(**contract("clients") | contract("solvers"))


@pytest.mark.parametrize("setting", ["exact", "three", "compressed"])
@pytest.mark.parametrize("model", ["mixed-effects-diag", "mixed-effects-full"])
def test_chains_keep_the_contract(model, setting):
    case, setting = model_case(model), SETTINGS[setting]
    contracts.test_the_servers_control_is_the_weighted_sum_of_the_clients(case, SAEM, setting)
    contracts.test_controls_of_both_sides_agree_when_messages_are_lost(case, SAEM, setting)
    contracts.test_client_half_is_pure(case, SAEM, setting)
    contracts.test_a_client_does_alone_what_it_does_in_a_group(case, SAEM, setting)
    contracts.test_a_client_needs_nobody_elses_rows(case, SAEM, setting)
    contracts.test_a_round_that_is_not_committed_leaves_no_trace(case, SAEM, setting)
    contracts.test_a_step_of_0_moves_nothing_but_the_control(case, SAEM)


def test_steps_are_0_then_long_then_decrease():
    steps = [SCHEDULE.step(k, first=0.25) for k in range(1, 13)]
    assert_array_equal(steps[:8], [0] * 5 + [0.25] * 3)
    assert_allclose(steps[8:], 0.25 * (1 + 0.25 * np.arange(4)) ** -0.7)
