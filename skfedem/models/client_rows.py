"""Rows of several clients, one client after the other: products and sums for each of them."""

from __future__ import annotations

import numpy as np


def multiplied_by_client(matrices, columns, lengths):
    """Each client's columns (m, n_rows) times its own matrix (n, m), or all times the only one.

    Columns are client after client, and so are the products, shape (n, n_rows).
    """
    if len(matrices) == 1:
        return matrices[0] @ columns
    products = np.empty((matrices.shape[1], columns.shape[1]))
    for clients, rows in _equally_long(lengths):
        own = _by_client(columns[:, rows], len(matrices[clients]))
        part = np.matmul(matrices[clients], own.transpose(1, 0, 2))
        products[:, rows] = part.transpose(1, 0, 2).reshape(len(products), -1)
    return products


def segment_products(left, right, lengths):
    """``left @ right.T`` of each client's run of columns, flattened: shape (n_clients, n * m)."""
    if len(lengths) == 1:
        # Not matmul, which keeps other threads from running if the result is small.
        return np.dot(left, right.T).reshape(1, -1)
    sums = np.empty((len(lengths), len(left), len(right)))
    for clients, rows in _equally_long(lengths):
        n_clients = len(lengths[clients])
        products = np.matmul(
            _by_client(left[:, rows], n_clients).transpose(1, 0, 2),
            _by_client(right[:, rows], n_clients).transpose(1, 2, 0),
        )
        if n_clients == len(lengths):
            return products.reshape(n_clients, -1)
        sums[clients] = products
    return sums.reshape(len(lengths), -1)


def segment_sums(values, lengths):
    """Sum of each client's run of values; clients have at least one."""
    return np.add.reduceat(values, np.cumsum(lengths) - lengths)


def _equally_long(lengths):
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


def _by_client(columns, n_clients):
    """Split the columns of clients with equally many rows: (n, rows) to (n, n_clients, rows)."""
    return columns.reshape(len(columns), n_clients, -1)
