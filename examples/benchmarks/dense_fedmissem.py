"""Algorithm 7 (FedMissEM) with dense matrices, as in the paper: the baseline of the benchmark.

This does exact rounds for Gaussian cells, without compression and with all clients. Control
variates make no difference then and are left out. Each client fills a J x L matrix; the server
averages these matrices and takes the dominant part of the average. The tests compare this with a
literal implementation of Algorithm 7.
"""

from typing import NamedTuple

import numpy as np


class DenseClient(NamedTuple):
    """A client's distinct cells, with the sum and the number of its observers' values in each."""

    rows: np.ndarray
    columns: np.ndarray
    sums: np.ndarray
    counts: np.ndarray
    n_observers: int


def dense_client(rows, columns, values, n_observers, n_columns):
    """Client from its observations; an observer sees a cell at most once."""
    cells, position = np.unique(rows * n_columns + columns, return_inverse=True)
    return DenseClient(
        rows=cells // n_columns,
        columns=cells % n_columns,
        sums=np.bincount(position, values),
        counts=np.bincount(position),
        n_observers=n_observers,
    )


def client_statistic(client, theta):
    """Mean of the observers' matrices: what they saw, and θ elsewhere."""
    filled = theta.copy()
    cells = client.rows, client.columns
    unseen = client.n_observers - client.counts
    filled[cells] = (client.sums + unseen * filled[cells]) / client.n_observers
    return filled


def threshold_singular_values(matrix, threshold, rank):
    """Singular values shrunk by the threshold and cut to the rank."""
    left, singular_values, right = np.linalg.svd(matrix, full_matrices=False)
    shrunk = np.maximum(singular_values[:rank] - threshold, 0)
    return (left[:, :rank] * shrunk) @ right[:rank]


def dense_round(clients, weights, statistics, theta, rank, penalty, step_size=1.0):
    """One round from Ŝ and θ = T(Ŝ) to the next; returns both.

    ``penalty`` is on the paper's scale: it is added to a mean over observers.
    """
    mean_field = -statistics
    for client, weight in zip(clients, weights, strict=True):
        filled = client_statistic(client, theta)
        filled *= weight
        mean_field += filled
    mean_field *= step_size
    mean_field += statistics
    return mean_field, threshold_singular_values(mean_field, penalty, rank)
