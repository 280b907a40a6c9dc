"""Addressed random numbers: of clients, and of rows by their labels."""

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from hashlib import blake2b

import numpy as np
import pandas as pd
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
        _random.CHAINS,
    )
    clients, lengths = np.arange(40), np.arange(40)
    numbers = []
    for seed in (0, 1):
        for purpose in purposes:
            for k in (0, 1, 40):
                numbers += [
                    _random.client_uniforms(seed, purpose, k, clients, 7).ravel(),
                    _random.ragged_client_uniforms(seed, purpose, k, clients, lengths),
                    _random.client_generator(seed, purpose, k, 0).random(30),
                    _random.client_generator(seed, purpose, k, 1).random(30),
                    _random.row_uniforms(seed, purpose, k, clients, 7).ravel(),
                ]
    numbers = np.concatenate(numbers)
    # 53 random bits: two of 50,000 numbers agree by chance once in 7e6.
    assert len(np.unique(numbers)) == len(numbers) == 2 * 6 * 3 * (280 + 780 + 60 + 280)


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


def test_a_client_has_a_generator_of_its_own():
    draw = _random.client_generator(3, _random.INITIALISATION, 2, 7).random(1000)
    assert_array_equal(draw, _random.client_generator(3, _random.INITIALISATION, 2, 7).random(1000))
    bits = _random.client_generator(3, _random.INITIALISATION, 2, 7).bit_generator
    assert_array_equal(np.random.RandomState(bits).random_sample(1000), draw)
    others = [_random.client_generator(3, _random.INITIALISATION, 2, i) for i in range(6)]
    correlations = np.corrcoef([draw, *(other.random(1000) for other in others)]) - np.eye(7)
    # 1 / sqrt(1000) is the standard deviation of a correlation: five of them.
    assert np.abs(correlations).max() < 5 / np.sqrt(1000)


# ---- numbers of rows

SEED, K = 5, 2


def uniforms(keys, size, seed=SEED, round_index=K):
    keys = np.asarray(keys, dtype=np.uint64)
    return _random.row_uniforms(seed, _random.CHAINS, round_index, keys, size)


# Random123 1.14, tests/kat_vectors: counter, key and result of philox4x32 10.
PHILOX = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip


def words(text):
    return [int(word, 16) for word in text.split()]


def pairs_of(text):
    """Four words as two numbers of 64 bits, low word first."""
    first, second, third, fourth = words(text)
    return np.array([[first | second << 32], [third | fourth << 32]], dtype=np.uint64)


@pytest.mark.parametrize(("counter", "key", "block"), PHILOX)
def test_blocks_are_those_of_philox(counter, key, block):
    assert_array_equal(_random._philox(pairs_of(counter), words(key)), pairs_of(block))


def test_numbers_of_rows_are_those_of_their_counters():
    # The counter of a pair: its position, 32 bits of the address, and the key of the row.
    *key, high = np.random.SeedSequence([SEED, _random.CHAINS, K, 66]).generate_state(3).tolist()
    row = 2**63 + 7
    blocks = np.array([[pair | high << 32 for pair in range(2)], [row, row]], dtype=np.uint64)
    want = (_random._philox(blocks, key) >> np.uint64(11)).T.ravel() * 2.0**-53
    assert_array_equal(uniforms([row], 3)[0], want[:3])


@pytest.mark.parametrize("size", [0, 1, 2, 5, 40])
def test_a_row_draws_the_same_whatever_the_others(size):
    keys = _random.label_keys([f"row {i}" for i in range(30_000)])
    every = uniforms(keys, size)
    assert every.shape == (30_000, size) and every.flags.c_contiguous
    order = np.random.default_rng(0).permutation(30_000)[:2000]
    assert_array_equal(uniforms(keys[order], size), every[order])
    for j in (0, 7, 29_999):
        assert_array_equal(uniforms(keys[[j]], size), every[[j]])
    # More numbers are further ones.
    assert_array_equal(uniforms(keys[:50], 41)[:, :size], every[:50])
    assert uniforms(keys[:0], size).shape == (0, size)


@pytest.mark.parametrize("keys", [np.arange(4000), 2**40 * np.arange(4000)], ids=["low", "high"])
def test_numbers_of_rows_are_uniform_and_independent(keys):
    drawn = uniforms(keys, 6)
    assert drawn.min() >= 0 and drawn.max() < 1
    assert kstest(drawn.ravel(), "uniform").pvalue > 1e-3
    other_round, other_seed = uniforms(keys, 6, round_index=K + 1), uniforms(keys, 6, SEED + 1)
    columns = np.hstack([drawn, other_round, other_seed])
    correlations = np.corrcoef(columns.T) - np.eye(18)
    # 1 / sqrt(4000) is the standard deviation of a correlation: five of them.
    assert np.abs(correlations).max() < 5 / np.sqrt(4000)
    neighbours = np.corrcoef(drawn[1:].ravel(), drawn[:-1].ravel())[0, 1]
    assert abs(neighbours) < 5 / np.sqrt(drawn.size)
    # Every bit that a double can hold is fair: five standard deviations of a share.
    bits = (drawn.ravel() * 2**53).astype(np.int64)[:, None] >> np.arange(53) & 1
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 2.5 / np.sqrt(drawn.size)


# ---- keys of rows

PARIS = timezone(timedelta(hours=1))
EQUAL_LABELS = [
    [7, 7.0, True * 7, np.int8(7), np.uint64(7), np.float32(7), Fraction(7)],
    [1, True, np.True_, 1.0],
    [-1, np.int16(-1), -1.0],
    [2**63, np.uint64(2**63), 2.0**63],
    [2**70, 2.0**70],
    [0.5, np.float32(0.5), Fraction(1, 2)],
    ["7", np.str_("7"), np.array(["7", "seven"])[0]],
    ["Zoë", np.str_("Zoë")],
    [b"7", np.bytes_(b"7")],
    [("a", 7), ("a", np.int64(7)), (np.str_("a"), 7.0)],
    [("a", (7,)), ("a", (7.0,))],
    [
        datetime(2020, 1, 2),
        np.datetime64("2020-01-02"),
        np.datetime64("2020-01-02T00:00", "ns"),
        pd.Timestamp("2020-01-02"),
        datetime(2020, 1, 2, tzinfo=UTC),
        datetime(2020, 1, 2, 1, tzinfo=PARIS),
        date(2020, 1, 2),
    ],
    [datetime(1969, 12, 31, 23, 59, 59, 999_999), np.datetime64("1969-12-31T23:59:59.999999")],
    [pd.Timestamp(1), np.datetime64(1, "ns")],
    [datetime(9999, 1, 1), np.datetime64("9999-01-01")],
]


def test_equal_labels_have_equal_keys_and_others_have_others():
    keys = [set(_random.label_keys(labels).tolist()) for labels in EQUAL_LABELS]
    assert [len(each) for each in keys] == [1] * len(keys)
    assert len(set.union(*keys)) == len(keys)


def test_keys_of_a_column_are_those_of_its_labels():
    whole = [3, 1, 2]
    columns = [
        np.array(whole, dtype=np.int32), np.array(whole, dtype=np.uint64), np.array(whole, float),
        pd.Series(whole, dtype="Int64"), pd.Series(whole, index=[5, 6, 7]), pd.Index(whole),
        pd.Categorical(whole), np.array(whole, dtype=object), tuple(whole), iter(whole),
    ]  # fmt: skip
    for column in columns:
        keys = _random.label_keys(column)
        assert keys.tolist() == whole and keys.dtype == np.uint64
    assert _random.label_keys([]).shape == (0,)


def test_keys_are_documented_hashes():
    text = blake2b("Zoë".encode(), digest_size=8, person=b"str").digest()
    assert _random.label_keys(["Zoë"])[0] == int.from_bytes(text, "little")
    both = text + (7).to_bytes(8, "little")
    pair = blake2b(both, digest_size=8, person=b"tuple").digest()
    assert _random.label_keys([("Zoë", 7)])[0] == int.from_bytes(pair, "little")


@pytest.mark.parametrize("label", [None, {"a": 1}, ["a"], 1j, Decimal(7), timedelta(1),
                                   np.timedelta64(1, "s"), ("a", None), pd.NA])  # fmt: skip
def test_what_is_no_label_is_refused(label):
    with pytest.raises(TypeError, match=r"Expected labels to be integers, strings.* Convert them"):
        _random.label_keys(["a", label])


@pytest.mark.parametrize("label", [np.nan, np.float32("nan"), pd.NaT, np.datetime64("NaT")])
def test_missing_labels_are_refused(label):
    with pytest.raises(ValueError, match="Expected labels of rows, got Na[NT]"):
        _random.label_keys([1, label])
