"""Rows of several clients, one client after the other: products and sums for each of them."""

from __future__ import annotations

import numpy as np


def equally_long(lengths):
    """Clients with equally many rows and the positions of these rows, group by group.

    Matrix products are batched over such a group. Where all clients have as many, or a group is one
    client, positions are slices, which copy nothing.
    """
    if (lengths == lengths[0]).all():
        yield slice(None), slice(None)
        return
    starts = np.cumsum(lengths) - lengths
    for length in np.unique(lengths):
        clients = np.flatnonzero(lengths == length)
        if len(clients) == 1:
            yield clients, slice(starts[clients[0]], starts[clients[0]] + length)
        else:
            yield clients, (starts[clients, None] + np.arange(length)).ravel()


def by_client(columns, n_clients):
    """Split the columns of clients with equally many rows: (n, rows) to (n, n_clients, rows)."""
    return columns.reshape(len(columns), n_clients, -1)


def segment_sums(values, lengths):
    """Sum of each client's run of values; clients have at least one."""
    return np.add.reduceat(values, np.cumsum(lengths) - lengths)
