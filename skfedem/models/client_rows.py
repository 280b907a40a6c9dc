"""Products and sums by client, for rows that are stored client after client."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .._typing import FloatArray, IntArray

_Indices = slice | IntArray


def multiplied_by_client(
    matrices: FloatArray,
    columns: FloatArray,
    lengths: IntArray,
    out: FloatArray | None = None,
) -> FloatArray:
    """Products of each client's matrix (n, m), or of a single one, and its columns (m, n_rows).

    Columns are client after client, and so are the products, shape (n, n_rows). Each client has a
    product of its own, as its rounding would otherwise depend on who else is in the group.
    """
    products = np.empty((matrices.shape[1], columns.shape[1])) if out is None else out
    for clients, rows in _equally_long(lengths):
        own = matrices if len(matrices) == 1 else matrices[clients]
        n_clients = len(lengths[clients])
        factors = _by_client(_take_columns(columns, rows), n_clients).transpose(1, 0, 2)
        if 1 in (matrices.shape[1], factors.shape[2]):  # products of vectors round by strides
            factors = np.ascontiguousarray(factors)
        if isinstance(rows, slice):
            part = _by_client(products[:, rows], n_clients).transpose(1, 0, 2)
            np.matmul(own, factors, out=part)
        else:
            part = np.matmul(own, factors)
            products[:, rows] = part.transpose(1, 0, 2).reshape(len(products), -1)
    return products


def segment_products(left: FloatArray, right: FloatArray, lengths: IntArray) -> FloatArray:
    """``left @ right.T`` of each client's run of columns, flattened: shape (n_clients, n * m)."""
    if len(lengths) == 1:
        # The same product as below; unlike matmul, dot releases the GIL if the result is small.
        return np.dot(left, right.T).reshape(1, -1)
    sums = np.empty((len(lengths), len(left), len(right)))
    for clients, rows in _equally_long(lengths):
        n_clients = len(lengths[clients])
        first = _take_columns(left, rows)
        # A product of a matrix with itself rounds otherwise than one with a copy of it.
        second = first if left is right else _take_columns(right, rows)
        products = np.matmul(
            _by_client(first, n_clients).transpose(1, 0, 2),
            _by_client(second, n_clients).transpose(1, 2, 0),
        )
        if n_clients == len(lengths):
            return products.reshape(n_clients, -1)
        sums[clients] = products
    return sums.reshape(len(lengths), -1)


def sum_of_rows(columns: FloatArray) -> FloatArray:
    """Sum of each column, in order; of a single one, ``sum`` would add up pairs."""
    return columns.sum(axis=0) if columns.shape[1] > 1 else columns.cumsum(axis=0)[-1]


def segment_sums(values: FloatArray, lengths: IntArray) -> FloatArray:
    """Sum of each client's run of values; clients have at least one."""
    return np.add.reduceat(values, np.cumsum(lengths) - lengths)


def _equally_long(lengths: IntArray) -> Iterator[tuple[_Indices, _Indices]]:
    """Yield groups of clients with equally many rows, and the positions of these rows.

    Matrix products are batched over such a group. If all clients have equally many rows, or a group
    is a single client, positions are slices, which avoid copies.
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


def _take_columns(columns: FloatArray, rows: _Indices) -> FloatArray:
    """Some columns, row by row in memory: products of other layouts round otherwise."""
    return columns[:, rows] if isinstance(rows, slice) else columns.take(rows, axis=1)


def _by_client(columns: FloatArray, n_clients: int) -> FloatArray:
    """Split the columns of clients with equally many rows: (n, rows) to (n, n_clients, rows)."""
    return columns.reshape(len(columns), n_clients, -1)
