"""Shards and segments: how sums over clients are cut, whoever is processed together."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from skfedem._client_vectors import sum_by_shard
from skfedem.clients.sums import (
    MOST_SHARDS,
    mean_of_terms,
    mean_term,
    segments_of,
    segments_of_all,
    shards_of,
)

property_test = settings(max_examples=100, deadline=None, derandomize=True)
lengths_of_clients = st.lists(st.integers(1, 200), min_size=1, max_size=60).map(np.array)


@property_test
@given(lengths_of_clients)
def test_shards_are_all_clients_in_order_and_of_similar_size(lengths):
    lengths = lengths * 2**10
    shards = shards_of(lengths)
    assert (shards[0], shards[-1]) == (0, len(lengths))
    assert (np.diff(shards) > 0).all() and len(shards) - 1 <= MOST_SHARDS
    # No shard has more than its part of the rows, but for a client that reaches beyond it.
    sizes = np.add.reduceat(lengths, shards[:-1])
    assert len(sizes) == 1 or sizes.max() <= lengths.sum() / len(sizes) + 2 * lengths.max()


@property_test
@given(lengths_of_clients, st.integers(1, 50), st.data())
def test_segments_are_the_clients_in_order_and_stay_in_their_shard(lengths, block_rows, data):
    lengths, block_rows = lengths * 2**10, block_rows * 2**10
    shards = shards_of(lengths)
    some = data.draw(st.sets(st.integers(0, len(lengths) - 1), min_size=1))
    clients = np.array(sorted(some))
    segments = segments_of(clients, lengths[clients], shards, block_rows)
    positions = [k for own in segments.slices for k in range(own.start, own.stop)]
    assert positions == list(range(len(clients)))
    for own, shard, n_rows in zip(segments.slices, segments.shards, segments.n_rows, strict=True):
        assert shards[shard] <= clients[own][0] and clients[own][-1] < shards[shard + 1]
        assert n_rows == lengths[clients[own]].sum()
        assert n_rows <= block_rows or own.stop - own.start == 1
    assert segments.shards == sorted(segments.shards)


@property_test
@given(lengths_of_clients, st.integers(0, 99))
def test_means_are_weighted_and_exact_for_equal_messages(lengths, seed):
    generator = np.random.default_rng(seed)
    weights, messages = generator.dirichlet(np.ones(len(lengths))), generator.normal(size=3)
    segments = segments_of_all(lengths, block_rows=20)

    def mean(messages):
        terms = [mean_term(weights[own], messages[own]) for own in segments.slices]
        return mean_of_terms(terms, segments.shards)

    equal = np.tile(messages, (len(lengths), 1))
    assert_array_equal(mean(equal), messages)
    unlike = 1e6 + generator.normal(size=(len(lengths), 3))
    # 60 numbers of order 1, apart from 1e6.
    assert_allclose(mean(unlike) - 1e6, weights @ (unlike - 1e6), rtol=0, atol=1e-9)


def test_sums_run_within_shards_and_then_over_them():
    # 1 + 1e-16 is 1 in doubles, but 1e-16 + 1e-16 + ... is not 0.
    terms, small = [np.array([1.0]), *[np.array([1e-16])] * 4], 1e-16
    assert sum_by_shard(terms, [0] * 5) == 1.0
    assert sum_by_shard(terms, [0, 1, 1, 1, 1]) == 1.0 + 4 * small > 1.0
