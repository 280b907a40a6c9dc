"""Who holds which row of a simulated mixture, depending on the component of the row.

A dealer gives ``deal(components, random_state)``: the client of each row.
"""

from __future__ import annotations

from numbers import Integral

import numpy as np

from .._parameters import check_choice, check_number
from ._splits import client_labels, equal_sizes, fill_up


def dealer(heterogeneity, n_clients, n_components):
    """Dealer for "iid", for "one_component", or for a Dirichlet split of the components."""
    _check_sizes(n_clients, n_components)
    hint = "Give 'iid', 'one_component' or a number: near 0 for clients that are very unlike."
    if not isinstance(heterogeneity, str):
        check_number("heterogeneity", heterogeneity, low=0, low_open=True, hint=hint)
        return lambda components, random_state: client_labels(
            components,
            n_clients,
            scheme="dirichlet",
            y=components,
            alpha=heterogeneity,
            random_state=random_state,
        )
    check_choice("heterogeneity", heterogeneity, ("iid", "one_component"), hint=hint)
    if heterogeneity == "iid":
        return lambda components, random_state: client_labels(
            components, n_clients, random_state=random_state
        )
    _check_enough_clients(heterogeneity, n_clients, n_components)
    return lambda components, random_state: _one_component_labels(
        components, n_clients, random_state
    )


def mixing_dealer(heterogeneity, n_clients, n_components):
    """Dealer that deals a share of the rows as for "one_component", the others at random."""
    _check_sizes(n_clients, n_components)
    hint = "It is the share of the rows that go to clients of one component."
    check_number("heterogeneity", heterogeneity, low=0, high=1, hint=hint)
    if heterogeneity > 0:
        _check_enough_clients(heterogeneity, n_clients, n_components)

    def deal(components, random_state):
        labels = client_labels(components, n_clients, random_state=random_state)
        if heterogeneity == 0:
            return labels
        sorted_labels = _one_component_labels(components, n_clients, random_state)
        moved = random_state.random_sample(len(components)) < heterogeneity
        return fill_up(np.where(moved, sorted_labels, labels), n_clients, 1, random_state)

    return deal


def _check_sizes(n_clients, n_components):
    check_number("n_clients", n_clients, kind=Integral, low=1)
    check_number("n_components", n_components, kind=Integral, low=1)


def _check_enough_clients(heterogeneity, n_clients, n_components):
    if n_clients < n_components:
        raise ValueError(
            f"heterogeneity={heterogeneity!r} needs a client for each of the {n_components} "
            f"components, got n_clients={n_clients}: raise n_clients or lower n_components."
        )


def _one_component_labels(components, n_clients, random_state):
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
        labels[components == component] = random_state.permutation(holders_of_rows)
        first += len(holders)
    return labels
