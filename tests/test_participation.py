"""Which clients take part in a round."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy.stats import binom

from skfedem import _random
from skfedem.participation import draw_active


def draws_of_active(participation, n_clients=6, n_rounds=4000):
    for k in range(n_rounds):
        generator = _random.generator(0, _random.PARTICIPATION, k)
        yield draw_active(generator, n_clients, participation)


@pytest.mark.parametrize("participation", [0.1, 0.6])
def test_clients_take_part_independently(participation):
    n_clients, n_rounds = 6, 4000
    present = np.zeros((n_rounds, n_clients))
    for k, active in enumerate(draws_of_active(participation)):
        assert (np.diff(active) > 0).all()
        present[k, active] = 1
    # Five standard deviations of a share of 4000 rounds.
    error = 5 * np.sqrt(participation * (1 - participation) / n_rounds)
    assert (np.abs(present.mean(axis=0) - participation) < error).all()
    covariances = np.cov(present.T)[np.triu_indices(n_clients, 1)]
    assert np.abs(covariances).max() < 5 * participation * (1 - participation) / np.sqrt(n_rounds)
    counts = np.bincount(present.sum(axis=1).astype(int), minlength=n_clients + 1)
    expected = n_rounds * binom.pmf(np.arange(n_clients + 1), n_clients, participation)
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected) + 5).all()


def test_everyone_or_nobody_may_take_part():
    for active in draws_of_active(1.0, n_rounds=3):
        assert_array_equal(active, np.arange(6))
    for active in draws_of_active(1e-12, n_rounds=3):
        assert len(active) == 0 and active.dtype.kind == "i"


@pytest.mark.parametrize(
    ("generator", "n_clients", "participation", "error", "says"),
    [
        (0, 10, 0.5, TypeError, "a numpy.random.Generator, got 0"),
        (np.random.default_rng(0), 10, 2, ValueError, "participation .* <= 1, got 2"),
        (np.random.default_rng(0), 10, 0.0, ValueError, "participation to be a number > 0"),
        (np.random.default_rng(0), 0, 0.5, ValueError, "n_clients to be an integer >= 1, got 0"),
    ],
)
def test_what_nobody_can_be_drawn_from(generator, n_clients, participation, error, says):
    with pytest.raises(error, match=says):
        draw_active(generator, n_clients, participation)
