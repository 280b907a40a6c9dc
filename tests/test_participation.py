"""Which clients take part in a round."""

from collections import Counter
from itertools import combinations, product

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import binom

from skfedem import _random
from skfedem.participation import (
    check_participation,
    draw_active,
    inclusion_probability,
    participation_omega,
)


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
        (np.random.default_rng(0), 10, 2.0, ValueError, "participation .* <= 1, got 2"),
        (np.random.default_rng(0), 10, 11, ValueError, "number of clients, 10, got 11. Give"),
        (np.random.default_rng(0), 10, 0, ValueError, "an integer >= 1, got 0. Give a prob"),
        (np.random.default_rng(0), 10, -1, ValueError, "an integer >= 1, got -1"),
        (np.random.default_rng(0), 10, True, TypeError, "an integer >= 1, got True of type bool"),
        (np.random.default_rng(0), 10, "all", TypeError, "participation .* got 'all' of type str"),
        (np.random.default_rng(0), 10, 0.0, ValueError, "participation to be a number > 0"),
        (np.random.default_rng(0), 0, 0.5, ValueError, "n_clients to be an integer >= 1, got 0"),
    ],
)
def test_what_nobody_can_be_drawn_from(generator, n_clients, participation, error, says):
    with pytest.raises(error, match=says):
        draw_active(generator, n_clients, participation)


@pytest.mark.parametrize("n_active", [1, 2, 3])
def test_so_many_clients_are_drawn_without_replacement(n_active):
    n_clients, n_rounds = 4, 4000
    subsets = list(combinations(range(n_clients), n_active))
    drawn = Counter(
        tuple(active.tolist()) for active in draws_of_active(n_active, n_clients, n_rounds)
    )
    assert set(drawn) == set(subsets)
    share = 1 / len(subsets)
    # Five standard deviations of a share of 4000 rounds.
    error = 5 * np.sqrt(share * (1 - share) / n_rounds)
    assert all(abs(drawn[subset] / n_rounds - share) < error for subset in subsets)
    taking_part = sum(count for subset, count in drawn.items() if 0 in subset)
    p = inclusion_probability(n_active, n_clients)
    assert p == n_active / n_clients
    assert abs(taking_part / n_rounds - p) < 5 * np.sqrt(p * (1 - p) / n_rounds)


def test_one_client_and_all_clients_differ_by_type():
    generator = np.random.default_rng(0)
    before = generator.bit_generator.state
    for everybody in (1.0, np.float32(1), 6, np.int8(6)):
        assert_array_equal(draw_active(generator, 6, everybody), np.arange(6))
        assert inclusion_probability(everybody, 6) == 1
    assert generator.bit_generator.state == before
    for one in (1, np.int64(1), np.uint8(1)):
        assert len(draw_active(generator, 6, one)) == 1
        assert inclusion_probability(one, 6) == 1 / 6


def test_the_number_of_clients_may_be_checked_later():
    check_participation(11)
    for wrong in (0, True, 1.5, np.nan, None):
        with pytest.raises((TypeError, ValueError), match="Expected participation to be"):
            check_participation(wrong)


def subsets_and_probabilities(participation, n_clients):
    """All sets of active clients, as masks, and their probabilities."""
    masks = np.array(list(product([0.0, 1.0], repeat=n_clients)))
    n_active = masks.sum(axis=1)
    if isinstance(participation, int):
        chosen = (n_active == participation).astype(float)
        return masks, chosen / chosen.sum()
    p = participation
    return masks, p**n_active * (1 - p) ** (n_clients - n_active)


@pytest.mark.parametrize("participation", [0.3, 1.0, 1, 2, 4, 5])
@pytest.mark.parametrize("omega", [0.0, 1.5])
def test_omega_bounds_the_variance_of_a_round(participation, omega):
    n_clients = 5
    masks, probabilities = subsets_and_probabilities(participation, n_clients)
    p = inclusion_probability(participation, n_clients)
    omega_p = participation_omega(omega, participation, n_clients)
    for seed in range(5):
        x = np.random.default_rng(seed).normal(size=(n_clients, 3))
        for centred in (x, x - x.mean(axis=0)):
            squares = (centred**2).sum()
            sums = masks @ centred / p
            mean = probabilities @ sums
            assert_allclose(mean, centred.sum(axis=0), atol=1e-12)
            of_compression = omega * squares / p  # each with probability p, and divided by p
            variance = probabilities @ ((sums - mean) ** 2).sum(axis=1) + of_compression
            assert variance <= omega_p * squares * (1 + 1e-12)
            if centred is not x or not isinstance(participation, int):
                assert variance == pytest.approx(omega_p * squares, rel=1e-12, abs=1e-25)


def test_omega_of_a_probability_is_that_of_the_paper():
    for omega, p in [(0.0, 1.0), (2.0, 0.25)]:
        # E ||B Quant(x) / p||^2 = p (1 + omega) / p^2 ||x||^2 for B ~ Bernoulli(p).
        assert 1 + participation_omega(omega, p, 7) == pytest.approx(p * (1 + omega) / p**2)
    assert participation_omega(2.0, 1, 1) == 2.0
    with pytest.raises(ValueError, match="omega to be a number >= 0"):
        participation_omega(-1.0, 0.5, 3)
