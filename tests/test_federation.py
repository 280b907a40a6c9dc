"""Rows of clients: offsets, blocks, minibatches, fingerprints."""

from collections import Counter
from hashlib import sha256
from itertools import pairwise
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from problems import ragged_clients, stack
from skfedem._federation import (
    client_groups,
    fingerprint,
    offsets_of,
    read,
    sample_weight_of,
)
from skfedem._minibatches import draw_minibatches

LARGEST_UNIFORM = 1 - 2.0**-53


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 12), max_size=30), st.integers(1, 20), st.integers(1, 6))
def test_groups_cover_the_clients_within_their_bounds(lengths, n_rows, n_clients):
    found = client_groups(offsets_of(np.array(lengths, dtype=int)), n_rows, n_clients)
    assert [k for group in found for k in range(group.start, group.stop)] == list(
        range(len(lengths))
    )
    for group in found:
        size = group.stop - group.start
        assert 1 <= size <= n_clients
        assert size == 1 or sum(lengths[group]) <= n_rows
    # And no shorter than need be.
    for first, second in pairwise(found):
        one_more = sum(lengths[first]) + lengths[second.start]
        assert one_more > n_rows or first.stop - first.start == n_clients


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.data())
def test_read_gives_each_row_of_the_clients_once(data):
    lengths = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=12))
    chosen = data.draw(st.sets(st.integers(0, len(lengths) - 1), min_size=1))
    n_rows = data.draw(st.integers(1, 25))
    offsets = offsets_of(lengths)
    rows = np.arange(offsets[-1])[:, None]
    federation = stack(np.split(rows, offsets[1:-1]))
    clients = np.array(sorted(chosen))
    got = {int(client): [] for client in clients}
    for reading in read(federation, clients, n_rows):
        assert len(reading.rows) == reading.lengths.sum()
        assert len(reading.rows) <= n_rows
        own = np.split(reading.rows[:, 0], np.cumsum(reading.lengths)[:-1])
        for client, piece in zip(clients[reading.group], own, strict=True):
            got[int(client)].extend(piece.tolist())
    for client, piece in got.items():
        assert piece == list(range(offsets[client], offsets[client + 1]))


def test_neighbouring_clients_are_read_without_a_copy():
    federation = stack(ragged_clients((3, 1, 5, 2)))
    (reading,) = read(federation, np.array([1, 2]), 100)
    assert np.shares_memory(reading.rows, federation.rows)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 15), min_size=1, max_size=8), st.data())
def test_minibatches_hold_rows_of_their_client(lengths, data):
    lengths = np.array(lengths)
    replacement = data.draw(st.booleans())
    size = data.draw(st.integers(1, 20 if replacement else int(lengths.min())))
    edges = st.sampled_from([0.0, 0.5, LARGEST_UNIFORM])
    uniform = st.one_of(edges, st.floats(0, LARGEST_UNIFORM))
    uniforms = np.array(
        data.draw(
            st.lists(
                st.lists(uniform, min_size=size, max_size=size),
                min_size=len(lengths),
                max_size=len(lengths),
            )
        )
    )
    batches = draw_minibatches(uniforms, lengths, replacement=replacement)
    assert batches.shape == (len(lengths), size)
    assert (batches >= 0).all() and (batches < lengths[:, None]).all()
    if not replacement:
        assert all(len(set(batch)) == size for batch in batches.tolist())


@pytest.mark.parametrize("length", [3, 1000, 2**20 - 1, 2**40 - 1, 2**40])
def test_the_largest_uniform_is_a_row_of_the_client(length):
    batch = draw_minibatches(np.array([[LARGEST_UNIFORM]]), np.array([length]), replacement=True)
    assert batch[0, 0] == length - 1


def test_without_replacement_every_subset_is_as_likely():
    n_draws, length, size = 20000, 5, 3
    uniforms = np.random.default_rng(0).random((n_draws, size))
    batches = draw_minibatches(uniforms, np.full(n_draws, length), replacement=False)
    counts = Counter(map(frozenset, batches.tolist()))
    assert len(counts) == comb(length, size)
    expected = n_draws / comb(length, size)
    # Five standard deviations of a count of 2000.
    assert all(abs(count - expected) < 5 * np.sqrt(expected) for count in counts.values())


def test_with_replacement_every_row_is_as_likely():
    n_draws, length = 8000, 5
    uniforms = np.random.default_rng(0).random((n_draws, 2))
    batches = draw_minibatches(uniforms, np.full(n_draws, length), replacement=True)
    counts = np.bincount(batches[:, 0] * length + batches[:, 1])
    expected = n_draws / length**2
    assert len(counts) == length**2
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected)).all()


def test_a_minibatch_does_not_depend_on_the_other_clients():
    lengths, uniforms = np.array([4, 9, 6]), np.random.default_rng(0).random((3, 4))
    for replacement in (True, False):
        together = draw_minibatches(uniforms, lengths, replacement=replacement)
        for k in range(3):
            alone = draw_minibatches(
                uniforms[k : k + 1], lengths[k : k + 1], replacement=replacement
            )
            assert_array_equal(alone[0], together[k])


def digest(federation):
    """Digest of all rows."""
    return fingerprint(federation, 0, federation.n_clients)


def test_fingerprints_know_the_rows_of_clients_and_their_weights():
    clients = ragged_clients((4, 1, 3))
    fingerprints = {digest(stack(clients))}
    for client, row in [(0, 0), (0, -1), (1, 0), (2, -1)]:
        changed = [rows.copy() for rows in clients]
        changed[client][row, 1] += 1e-9
        fingerprints.add(digest(stack(changed)))
    federation = stack(clients)
    for weights in (np.arange(1.0, 9), np.arange(8.0, 0, -1)):
        of_rows = sample_weight_of(weights, federation.offsets)
        fingerprints.add(digest(federation._replace(sample_weight=of_rows)))
    assert len(fingerprints) == 7


def test_a_fingerprint_is_that_of_little_endian_rows_on_any_machine():
    federation = stack(ragged_clients((4, 1, 3)))
    little = sha256(federation.rows.astype("<f8").tobytes()).hexdigest()
    for order in "<>":
        rows = federation.rows.astype(f"{order}f8")
        assert digest(federation._replace(rows=rows)) == little
