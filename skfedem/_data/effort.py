"""Known offsets of the natural parameter, such as the logarithm of the effort."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csr_array, issparse

from .._error_messages import error_context
from .._typing import FloatArray
from .frame_labels import check_labels, table_labels
from .tables import LARGEST, as_numbers

# Largest size of an offset: exp(30) is about 1e13, the largest count.
LARGEST_OFFSET = 30.0


def effort_of(
    offset: Any, table: Any, whose: str, given: Any = None, *, is_triplets: bool = False
) -> Any:
    """Offsets of one client: one for each triplet, or a matrix like that of the client."""
    want = table.shape[:1] if is_triplets else table.shape
    if issparse(offset):
        array: Any = csr_array(offset)  # entries that are not stored are 0
    else:
        with error_context("offset"):
            array = as_numbers(offset, whose, "Give logarithms of efforts.")
        array = array.astype(np.float64, copy=False)
    if array.shape != want:
        raise ValueError(
            f"Expected an offset of shape {want}{whose}, as the observations have, got "
            f"{array.shape}. Give one for each cell of a matrix, or for each triplet."
        )
    labels = zip(("row", "column"), table_labels(given), table_labels(offset), strict=True)
    for axis, want, got in labels:
        check_labels(axis, want, got, "Reindex offset", "X", whose)
    return array


def efforts_of_list(
    offset: Any, tables: list[Any], given: Any = None, *, has_triplets: bool = False
) -> list[Any]:
    """Offsets of each client of a list; None without."""
    if offset is None:
        return [None] * len(tables)
    check_offsets(offset, len(tables))
    return [
        effort_of(
            own,
            table,
            f" for client {k}",
            None if given is None else given[k],
            is_triplets=has_triplets and not issparse(table) and table.ndim == 2,
        )
        for k, (own, table) in enumerate(zip(offset, tables, strict=True))
    ]


def check_offsets(offset: Any, n_clients: int) -> None:
    """Raise unless there is an offset for each client of a list."""
    is_list = isinstance(offset, list | tuple) or getattr(offset, "ndim", 0) == 3
    if not is_list or len(offset) != n_clients:
        got = f"{len(offset)}" if is_list else f"a {type(offset).__name__}"
        raise ValueError(
            f"Expected offset to be a list of {n_clients} arrays, one for each client of X, got "
            f"{got}. Give offsets in the form of X."
        )


def check_effort(log_effort: FloatArray, family: str) -> None:
    """Raise unless the offsets of the observations are numbers that the family can use."""
    if family == "bernoulli":
        raise ValueError(
            "Expected a family of counts, or 'gaussian', with an offset, got 'bernoulli', whose "
            "log-odds are not proportional to effort. Give counts, or no offset."
        )
    bad = ~(np.abs(log_effort) <= (LARGEST if family == "gaussian" else LARGEST_OFFSET))
    if bad.any():
        raise ValueError(
            "Expected a finite offset for each observation, of counts at most "
            f"{LARGEST_OFFSET:g} in size, got {log_effort[bad][0]}. Give logarithms of positive "
            "efforts."
        )


def by_mean_client(
    family_name: str, values: FloatArray, efforts: FloatArray, effects: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Observations per unit of effort, and efforts, as if clients had no effects.

    ``effects`` are those of the observations' clients. They divide counts, like efforts, and are
    subtracted from numbers; of presences, nothing can be.
    """
    if family_name == "bernoulli":
        return values, efforts
    if family_name == "gaussian":
        return values - effects, efforts
    factors = np.exp(effects)
    return values / factors, efforts * factors
