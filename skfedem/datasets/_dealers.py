"""Who holds which row of a simulated mixture, depending on the component of the row.

A dealer gives ``deal(components, rng)``: the client of each row.
"""

from __future__ import annotations

from numbers import Integral

import numpy as np

from .._parameters import check_number
from ._splits import client_labels, equal_sizes, fill_up


def dealer(heterogeneity, n_clients, n_components):
    """Dealer of a share of the rows to clients of one component, and of the others at random."""
    check_number("n_clients", n_clients, kind=Integral, low=1)
    check_number("n_components", n_components, kind=Integral, low=1)
    hint = "It is the share of the rows that go to clients of one component."
    check_number("heterogeneity", heterogeneity, low=0, high=1, hint=hint)
    if heterogeneity > 0 and n_clients < n_components:
        raise ValueError(
            f"Expected a client for each of the {n_components} components with "
            f"heterogeneity={heterogeneity!r}, got n_clients={n_clients}. Raise n_clients, or use "
            "heterogeneity=0."
        )

    def deal(components, rng):
        labels = client_labels(components, n_clients, random_state=rng)
        if heterogeneity == 0:
            return labels
        sorted_labels = _one_component_labels(components, n_clients, rng)
        moved = rng.random_sample(len(components)) < heterogeneity
        return fill_up(np.where(moved, sorted_labels, labels), n_clients, 1, rng)

    return deal


def _one_component_labels(components, n_clients, rng):
    """Give each component whole clients; the next one goes where clients have the most rows."""
    n_rows = np.bincount(components)
    n_holders = (n_rows > 0).astype(int)
    for _ in range(n_clients - n_holders.sum()):
        n_holders[np.argmax(n_rows / np.maximum(n_holders, 1))] += 1
    labels = np.empty(len(components), dtype=int)
    first = 0
    for component in np.flatnonzero(n_rows):
        holders = np.arange(first, first + n_holders[component])
        holders_of_rows = np.repeat(holders, equal_sizes(n_rows[component], len(holders)))
        labels[components == component] = rng.permutation(holders_of_rows)
        first += len(holders)
    return labels
