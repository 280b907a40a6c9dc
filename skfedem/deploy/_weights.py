"""Weights of rows: what clients tell of theirs, and what follows for all of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._data.clients import unit_of
from .._data.tables import LARGEST
from .._federation import Federation, sample_weight_of, weights_of_clients
from .._typing import ClientWeights, FloatArray, IntArray
from ._reader import Agreed

N_FACTS = 3
"""Number of facts of a client's weights."""
_UNIT = "weight_unit"


def facts_of_weights(federation: Federation) -> FloatArray:
    """Smallest and largest weight of a client's rows, and their sum."""
    weighted = federation.sample_weight
    if weighted is None:
        return np.array([1.0, 1.0, federation.n_samples])
    return np.array([weighted.values.min(), weighted.values.max(), weighted.totals[0]])


def are_possible(facts: FloatArray) -> bool:
    """Whether a client's weights can have these facts."""
    smallest, largest, total = facts
    return bool(0 < smallest <= largest <= min(total, LARGEST))


def agree_on_weights(lengths: IntArray, facts: FloatArray, client_weights: ClientWeights) -> Agreed:
    """Weights of clients, and the unit of those of rows; equal ones are dropped, as in a fit."""
    smallest, largest = float(facts[:, 0].min()), float(facts[:, 1].max())
    if smallest == largest:
        return Agreed(weights_of_clients(lengths, client_weights), {}, row_weight=largest)
    unit = unit_of(largest)
    totals = facts[:, 2] / unit
    weights = weights_of_clients(totals, client_weights)
    return Agreed(weights, {_UNIT: unit}, totals=totals, row_weight=unit)


def in_agreed_unit(federation: Federation, agreed: dict[str, Any]) -> Federation:
    """Rows of a client with their weights in the unit of all, or without."""
    if _UNIT not in agreed:
        return federation._replace(sample_weight=None)
    weighted = federation.sample_weight
    values = np.ones(federation.n_samples) if weighted is None else weighted.values
    sample_weight = sample_weight_of(values / agreed[_UNIT], federation.offsets)
    return federation._replace(sample_weight=sample_weight)
