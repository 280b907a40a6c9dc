"""Addressed random numbers: of clients, and of rows by their labels."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy.stats import kstest

from skfedem import _random

# ---- numbers of clients


def test_a_client_draws_the_same_whoever_else_takes_part():
    # Dense and sparse cohorts are drawn in two ways, a group of them at a time.
    n_clients = 9000
    some = [[0], [7], [0, 8999], [3, 4, 5], [10, 500, 501, 2000], [1, 3, 5, 9]]
    thirds, squares = np.arange(0, n_clients, 3), np.arange(94) ** 2
    for size in (1, 3, 4, 9, 450):
        every = _random.client_uniforms(5, _random.COMPRESSION, 2, np.arange(n_clients), size)
        for clients in [*map(np.array, some), thirds, squares, np.union1d(thirds[:2000], squares)]:
            drawn = _random.client_uniforms(5, _random.COMPRESSION, 2, clients, size)
            assert_array_equal(drawn, every[clients])
    assert _random.client_uniforms(5, 1, 2, np.array([], dtype=int), 4).shape == (0, 4)


def test_no_two_addresses_share_numbers():
    purposes = (
        _random.PARTICIPATION,
        _random.MINIBATCH,
        _random.COMPRESSION,
        _random.INITIALISATION,
        _random.VALIDATION,
    )
    numbers = [
        _random.client_uniforms(seed, purpose, round_index, np.arange(40), 7).ravel()
        for seed in (0, 1)
        for purpose in purposes
        for round_index in (0, 1, 40)
    ]
    numbers = np.concatenate(numbers)
    # 53 random bits: two of 8400 numbers agree by chance once in 2e8.
    assert len(np.unique(numbers)) == len(numbers) == 2 * 5 * 3 * 280


def test_client_uniforms_are_uniform_and_independent():
    drawn = _random.client_uniforms(0, _random.COMPRESSION, 3, np.arange(2000), 5)
    assert drawn.min() >= 0 and drawn.max() < 1
    assert kstest(drawn.ravel(), "uniform").pvalue > 1e-3
    correlations = np.corrcoef(drawn.T) - np.eye(5)
    # 1 / sqrt(2000) is the standard deviation of a correlation: five of them.
    assert np.abs(correlations).max() < 5 / np.sqrt(2000)
    neighbours = np.corrcoef(drawn[1:].ravel(), drawn[:-1].ravel())[0, 1]
    assert abs(neighbours) < 5 / np.sqrt(drawn.size)


@pytest.mark.parametrize("seed", [0, 1, 2**31 - 2, 2**32 - 1, 2**32, 2**63 + 11])
@pytest.mark.parametrize("round_index", [0, 7, 2**32 - 1, 2**32])
def test_an_address_is_the_list_of_its_numbers(seed, round_index):
    words = np.random.SeedSequence([seed, _random.COMPRESSION, round_index, 3])
    want = np.random.Generator(np.random.PCG64DXSM(words)).random(5)
    source = _random.generator(seed, _random.COMPRESSION, round_index, kind=3)
    assert_array_equal(source.random(5), want)


@pytest.mark.parametrize("seed", [0, 2**31 - 2, 2**63 + 11])
def test_large_addresses_are_taken(seed):
    first = _random.generator(seed, _random.INITIALISATION, position=(2**20) << 32).random(3)
    again = _random.generator(seed, _random.INITIALISATION, position=(2**20) << 32).random(3)
    assert_array_equal(first, again)
    drawn = _random.client_uniforms(seed, 1, 10**9, np.array([10**9, 2 * 10**9]), 5)
    assert drawn.shape == (2, 5)
    alone = _random.client_uniforms(seed, 1, 10**9, np.array([2 * 10**9]), 5)
    assert_array_equal(alone[0], drawn[1])


@pytest.mark.parametrize("clients", [[1, 0], [3, 3], [0, 5, 2], [-1, 0]])
def test_clients_out_of_order_are_refused(clients):
    clients = np.array(clients)
    with pytest.raises(ValueError, match="increasing order, without repetition, got array"):
        _random.client_uniforms(0, _random.COMPRESSION, 0, clients, 3)
    with pytest.raises(ValueError, match="increasing order, without repetition, got array"):
        _random.ragged_client_uniforms(0, _random.COMPRESSION, 0, clients, np.ones_like(clients))
