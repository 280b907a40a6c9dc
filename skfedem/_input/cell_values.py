"""Checks of observed values, with messages that name the cell in the user's data."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import issparse

from .._federation import owners_of
from .._messages import label_repr
from .._typing import Table
from .observations import Observations
from .table_labels import label_text, table_labels
from .tables import LARGEST

Family = Any
"""``Family`` of the models, which validation does not import."""


def check_values(observations: Observations, family: Family, missing: float) -> None:
    """Raise if values are missing, infinite, too large, or outside the family's domain."""
    values = observations.values
    bad = ~family.is_valid(values) | ~(np.abs(values) <= LARGEST) | (values == missing)
    if not bad.any():
        return
    position = int(np.argmax(bad))
    value = float(values[position])
    got = f"got {value} in {_place(observations, position)}"
    if value != value or value == missing:
        marked = "" if missing != missing else f"Mark cells as missing by {_bare(missing)} only. "
        raise ValueError(
            f"Input X contains {'NaN' if value != value else 'missing_values'}: expected a number "
            f"in each observed cell, {got}. {marked}Leave missing cells out of sparse matrices and "
            "triplets: what is stored there is observed."
        )
    _, table = _giver(observations, position)
    is_matrix = table is not None and not issparse(table)
    if abs(value) == np.inf:
        raise ValueError(
            f"Input X contains infinity: expected finite numbers, {got}. Correct it, or "
            f"{'mark the cell as missing' if is_matrix else 'leave it out'}."
        )
    if abs(value) > LARGEST:
        raise ValueError(
            f"Expected numbers of at most {LARGEST:g} in size, {got}: their squares are too "
            "large for a double. Rescale the data."
        )
    what_to_do = "Correct it, or choose another family."
    if is_matrix and value.is_integer():
        what_to_do = "Correct it, choose another family"
        if family.name == "bernoulli" and value > 1:
            what_to_do = "Give numpy.minimum(X, 1), in which NaN remains, if these are counts"
        what_to_do += f", or give missing_values={_bare(value)} if this marks missing cells."
    raise ValueError(f"Expected {family.domain} for family={family.name!r}, {got}. {what_to_do}")


def _bare(number: float) -> str:
    """An integer without its decimal point."""
    return str(number).removesuffix(".0")


def _giver(observations: Observations, position: int) -> tuple[int, Table]:
    """Client of an observation, and its table or None for triplets."""
    client = int(owners_of(observations.offsets, position))
    given = observations.given
    return client, given[client] if isinstance(given, list) else given


def _place(observations: Observations, position: int) -> str:
    """Cell and client of an observation, in terms of the user's data."""
    cell = [int(n) for n in divmod(observations.codes[position], observations.shape[1])]
    client, table = _giver(observations, position)
    if observations.row_offsets is not None:
        cell[0] -= int(observations.row_offsets[client])
    # Rows and columns of a table of triplets are not those of the matrix.
    axes = ("site", "month") if table is None else ("row", "column")
    place = ", ".join(
        f"{axis} {n}" + ("" if labels is None else f" ({label_text(labels[n])})")
        for axis, n, labels in zip(axes, cell, table_labels(table), strict=True)
    )
    if observations.ids is None:
        return place
    return f"{place} of client {label_repr(observations.ids[client])}"
