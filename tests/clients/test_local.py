"""Clients in threads: sums and lists of their messages, and what is counted of these."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from skfedem._federation import Federation, offsets_of
from skfedem._parallel import Workers
from skfedem.clients.local import LocalClients

LENGTHS = np.array([4, 1, 7, 2])


def made_federation(lengths=LENGTHS, seed=0):
    """Clients with rows of three numbers."""
    rows = np.random.default_rng(seed).normal(size=(lengths.sum(), 3))
    return Federation(rows, offsets_of(lengths), lengths / lengths.sum())


def own_rows(rows):
    """Rows of each client."""
    offsets = rows.federation.offsets
    return [rows.federation.rows[offsets[i] : offsets[i + 1]] for i in rows.clients]


def sum_about(rows, center, power):
    return np.array([((own - center) ** power).sum(axis=0) for own in own_rows(rows)])


def mean_about(rows, center):
    return np.array([(own - center).mean(axis=0) for own in own_rows(rows)])


def own_sums(rows):
    lengths = rows.federation.lengths[rows.clients]
    return lengths, np.concatenate([own.sum(axis=0) for own in own_rows(rows)])


@pytest.mark.parametrize("n_jobs", [1, 3])
def test_sums_run_over_shards_for_any_number_of_workers(n_jobs):
    # Several shards, and a client with more rows than are read at once.
    lengths = np.array([200_000, *[30] * 4000, 150_000])
    federation = made_federation(lengths)
    with Workers(1) as workers:
        want = LocalClients(federation, workers).sum(sum_about, np.ones(3), 2)
    with Workers(n_jobs) as workers:
        clients = LocalClients(federation, workers)
        for _ in range(2):  # threads take over when they are worth it
            assert_array_equal(clients.sum(sum_about, np.ones(3), 2), want)
    exact = ((federation.rows - 1) ** 2).sum(axis=0)
    np.testing.assert_allclose(want, exact, rtol=1e-12)


def test_messages_are_a_list_of_names_and_bits():
    with Workers(1) as workers:
        clients = LocalClients(made_federation(), workers)
        clients.mean(mean_about, np.zeros(3))
        clients.sum(sum_about, np.zeros(3), 1)
        clients.sum(sum_about, np.zeros(3), 1, n_bits=lambda total: 10 * len(total))
        clients.collect(mean_about, np.array([2, 3]), np.zeros(3))
        clients.gather(mean_about, np.zeros(3))
        clients.gather(own_sums, n_bits=lambda sent: len(sent[0]))
        clients.tell("centre", 3, n_clients=2)
    number = 64
    assert clients.messages == [
        ("mean_about", 4, 4 * 3 * number, 4 * 3 * number),
        ("sum_about", 4, 4 * 3 * number, 4 * 3 * number),
        ("sum_about", 4, 30, 4 * 3 * number),
        ("mean_about", 2, 2 * 3 * number, 2 * 3 * number),
        ("mean_about", 4, 4 * 3 * number, 4 * 3 * number),
        ("own_sums", 4, 4, 0),
        ("centre", 2, 0, 2 * 3 * number),
    ]
    assert clients.bits(5) == (4, 2 * 3 * number)
    up, down = (sum(message[k] for message in clients.messages) for k in (2, 3))
    assert clients.bits() == (up, down)


def test_gathered_messages_are_in_the_order_of_clients():
    federation = made_federation()
    with Workers(1) as workers:
        lengths, sums = LocalClients(federation, workers).gather(own_sums)
    offsets = federation.offsets[1:-1]
    want = [own.sum(axis=0) for own in np.split(federation.rows, offsets)]
    assert_array_equal(lengths, federation.lengths)
    assert_array_equal(sums, np.concatenate(want))
