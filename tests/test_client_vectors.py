"""How the vectors of many clients lie in memory, against lists of one vector a client."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import kstest

from skfedem import _random
from skfedem._client_vectors import DenseLayout, RaggedLayout, as_slice

PURPOSE = _random.COMPRESSION
property_test = settings(max_examples=100, deadline=None, derandomize=True)


class Example:
    """Vectors of some layout, and the same numbers as a list of one array a client."""

    def __init__(self, vectors, lengths, seed=0):
        generator = np.random.default_rng(seed)
        self.vectors = vectors
        self.n_clients = len(lengths)
        self.own = [generator.standard_normal(length) for length in lengths]
        self.weights = generator.random(self.n_clients)
        self.kept = vectors.zeros()
        self.kept[...] = np.reshape(np.concatenate(self.own), self.kept.shape)

    def of(self, clients):
        """Vectors of some clients, as they lie in memory."""
        return self.kept[self.vectors.indices(clients)]

    def numbers(self, clients):
        """Numbers of some clients, one client after the other."""
        return np.concatenate([self.own[k] for k in clients])

    def on_server(self, client):
        """What a client's vector alone is in a server's vector, one number after the other."""
        total = np.zeros(self.vectors.length)
        if isinstance(self.vectors, DenseLayout):
            return total + self.own[client]
        first = self.vectors.offsets[client]
        for k, number in enumerate(self.own[client]):
            total[self.vectors.positions[first + k]] += number
        return total


def dense(n_clients, length, seed=0):
    return Example(DenseLayout(n_clients, length), [length] * n_clients, seed)


def ragged_vectors(lengths, n_positions, seed=0):
    """Clients whose rows have positions that others' rows have too, or their own."""
    positions = np.random.default_rng(seed).integers(n_positions, size=sum(lengths))
    offsets = np.cumsum([0, *lengths])
    return Example(RaggedLayout(offsets, positions, n_positions), lengths, seed)


examples = st.one_of(
    st.builds(dense, st.integers(1, 9), st.integers(1, 5), st.integers(0, 99)),
    st.builds(
        ragged_vectors,
        st.lists(st.integers(1, 6), min_size=1, max_size=9),
        st.integers(1, 12),
        st.integers(0, 99),
    ),
)


@st.composite
def examples_with_clients(draw):
    """An example, and some of its clients: increasing, at least one."""
    example = draw(examples)
    clients = draw(st.sets(st.integers(0, example.n_clients - 1), min_size=1))
    return example, np.array(sorted(clients))


# ---- where they are


@property_test
@given(examples_with_clients())
def test_indices_find_the_vectors_of_some_clients(drawn):
    example, clients = drawn
    assert_array_equal(np.ravel(example.of(clients)), example.numbers(clients))
    # What is written there is theirs, and nobody else's.
    example.kept[example.vectors.indices(clients)] = 0.0
    for k in range(example.n_clients):
        own = np.ravel(example.of(np.array([k])))
        assert_array_equal(own, 0.0 if k in clients else example.own[k])


@pytest.mark.parametrize(
    "example", [dense(5, 3), ragged_vectors([3, 1, 4, 2, 2], 6)], ids=["dense", "ragged"]
)
def test_neighbours_are_read_without_a_copy(example):
    assert np.shares_memory(example.of(np.array([1, 2, 3])), example.kept)
    assert np.shares_memory(example.of(np.array([4])), example.kept)
    assert np.shares_memory(example.of(np.arange(5)), example.kept)
    assert not np.shares_memory(example.of(np.array([1, 3])), example.kept)
    assert as_slice(np.array([1, 2, 3])) == slice(1, 4)
    assert_array_equal(as_slice(np.array([1, 3])), [1, 3])


@property_test
@given(examples_with_clients(), st.randoms(use_true_random=False))
def test_submask_finds_the_chosen_among_some_clients(drawn, random):
    example, clients = drawn
    some = example.of(clients)
    for chosen in (
        np.array([random.random() < 0.5 for _ in clients]),
        np.zeros(len(clients), dtype=bool),
        np.ones(len(clients), dtype=bool),
    ):
        found = some[example.vectors.submask(clients, chosen)]
        expected = example.numbers(clients[chosen]) if chosen.any() else []
        assert_array_equal(np.ravel(found), expected)


@property_test
@given(examples_with_clients())
def test_lengths_are_those_that_compressors_take(drawn):
    example, clients = drawn
    lengths = example.vectors.lengths(clients)
    if lengths is None:
        assert {len(own) for own in example.own} == {np.shape(example.of(clients))[1]}
    else:
        assert_array_equal(lengths, [len(example.own[k]) for k in clients])


# ---- sums and norms


@property_test
@given(examples_with_clients(), st.randoms(use_true_random=False))
def test_total_of_the_weighted_is_the_weighted_sum(drawn, random):
    example, clients = drawn
    vectors = example.vectors
    expected = sum(example.weights[k] * example.on_server(k) for k in clients)
    cut = sorted(random.sample(range(1, len(clients)), random.randrange(len(clients))))
    totals = []
    for groups in ([clients], np.split(clients, cut), np.split(clients, len(clients))):
        parts = [
            vectors.weighted(example.weights[group], group, example.of(group)) for group in groups
        ]
        shards = sorted(random.choices(range(3), k=len(parts)))
        totals.append(vectors.total(clients, parts, shards))
        assert totals[-1].shape == (vectors.length,)
        # Up to 54 numbers of order 1, in another order.
        assert_allclose(totals[-1], expected, rtol=0, atol=1e-13)
        if isinstance(vectors, RaggedLayout):
            # Numbers are added one by one, however clients were grouped.
            assert_array_equal(totals[-1], totals[0])
    assert_array_equal(example.numbers(range(example.n_clients)), np.ravel(example.kept))


@property_test
@given(examples)
def test_total_of_nobody_is_zero(example):
    total = example.vectors.total(np.arange(0), [], [])
    assert_array_equal(total, np.zeros(example.vectors.length))


@property_test
@given(examples)
def test_norms_are_those_of_each_clients_vector(example):
    expected = [np.sqrt(np.sum(own**2)) for own in example.own]
    # A sum of six squares and a root.
    assert_allclose(example.vectors.norms(example.kept), expected, rtol=1e-14)


# ---- uniform numbers


@property_test
@given(examples_with_clients(), st.integers(0, 2**63), st.integers(0, 10**6))
def test_a_clients_uniforms_do_not_depend_on_who_else_takes_part(drawn, seed, round_index):
    example, clients = drawn
    vectors = example.vectors
    together = vectors.uniforms(seed, PURPOSE, round_index, clients, clients)
    assert together.shape == example.of(clients).shape
    assert together.min() >= 0 and together.max() < 1
    for k, client in enumerate(clients):
        one = np.array([client])
        alone = vectors.uniforms(seed, PURPOSE, round_index, one, one)
        here = vectors.submask(clients, np.arange(len(clients)) == k)
        assert_array_equal(alone, together[here])


@pytest.mark.parametrize(
    "example", [dense(40, 7), ragged_vectors([7] * 40, 6)], ids=["dense", "ragged"]
)
def test_no_two_addresses_share_uniforms(example):
    drawn = [
        np.ravel(example.vectors.uniforms(seed, purpose, round_index, *2 * [np.arange(40)]))
        for seed in (0, 1)
        for purpose in (_random.MINIBATCH, _random.COMPRESSION)
        for round_index in (0, 1, 40)
    ]
    # 53 random bits: two of 3360 numbers agree by chance once in 1e9.
    assert len(np.unique(drawn)) == 2 * 2 * 3 * 280


def ragged(clients, lengths, seed=0, round_index=3):
    return _random.ragged_client_uniforms(
        seed, PURPOSE, round_index, np.array(clients), np.array(lengths)
    )


@property_test
@given(
    st.dictionaries(
        st.integers(0, 10**9), st.integers(1, 50) | st.integers(500, 2000), min_size=1, max_size=8
    )
)
def test_ragged_uniforms_depend_on_the_client_and_its_own_length_alone(lengths):
    clients = sorted(lengths)
    drawn = ragged(clients, [lengths[k] for k in clients])
    assert len(drawn) == sum(lengths.values())
    pieces = np.split(drawn, np.cumsum([lengths[k] for k in clients])[:-1])
    for client, piece in zip(clients, pieces, strict=True):
        assert_array_equal(piece, ragged([client], [lengths[client]]))
    assert len(np.unique(drawn)) == len(drawn)


def test_large_clients_are_jumped_to_and_draw_the_same(monkeypatch):
    clients, lengths = np.arange(0, 90, 3), np.random.default_rng(0).integers(1, 3000, size=30)
    drawn = ragged(clients, lengths)
    for largest in (0, 10**9):
        monkeypatch.setattr(_random, "_LARGE", largest)
        assert_array_equal(ragged(clients, lengths), drawn)


def test_ragged_uniforms_of_nobody_are_none():
    nobody = np.arange(0)
    assert _random.ragged_client_uniforms(0, PURPOSE, 0, nobody, nobody).shape == (0,)


def test_ragged_uniforms_are_uniform_and_independent():
    # Of every eight numbers of a stream, five are drawn.
    drawn = ragged(np.arange(4000), np.full(4000, 5)).reshape(4000, 5)
    assert kstest(drawn.ravel(), "uniform").pvalue > 1e-3
    for column in drawn.T:
        assert kstest(column, "uniform").pvalue > 1e-3
    correlations = np.corrcoef(drawn.T) - np.eye(5)
    # 1 / sqrt(4000) is the standard deviation of a correlation: five of them.
    assert np.abs(correlations).max() < 5 / np.sqrt(4000)
    for lag in (1, 2, 1024):
        neighbours = np.corrcoef(drawn[lag:].ravel(), drawn[:-lag].ravel())[0, 1]
        assert abs(neighbours) < 5 / np.sqrt(drawn[lag:].size)
        # Independent numbers differ uniformly on the circle.
        differences = (drawn[lag:, 0] - drawn[:-lag, 0]) % 1
        assert kstest(differences, "uniform").pvalue > 1e-3


def test_clients_of_different_lengths_share_no_uniforms():
    drawn = _random.ragged_client_uniforms(0, 2, 3, np.arange(2), np.array([2000, 1000]))
    assert len(np.unique(drawn)) == 3000
