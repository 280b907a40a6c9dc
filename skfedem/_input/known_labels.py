"""Lookup of client labels among those of earlier calls."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._messages import label_repr
from .._typing import IntArray


def check_kinds(known: NDArray[Any], ids: NDArray[Any]) -> None:
    """Raise if labels cannot be compared with known ones, so that all would look new."""
    if _are_comparable(known, ids):
        return
    raise ValueError(
        "Expected client labels of the same kind as in earlier calls, such as "
        f"{_described(known)}, got {_described(ids)}. Use the same labels in every call (the "
        "clients of a list are labelled by their positions, a single table by 0), or start over: "
        "call fit with warm_start=False, or partial_fit on a clone."
    )


def _are_comparable(known: NDArray[Any], ids: NDArray[Any]) -> bool:
    """Whether labels are of the same kind, or are objects that can be compared."""
    kinds = {_kind(known), _kind(ids)}
    if "O" not in kinds or kinds & {"M", "m"}:  # dates as objects would not be found among dates
        return len(kinds) == 1
    try:
        _ = known.tolist()[0] < ids.tolist()[0]
    except (TypeError, ValueError):  # such as pandas' periods with different frequencies
        return False
    return True


def _kind(labels: NDArray[Any]) -> str:
    kind = labels.dtype.kind
    return "number" if kind in "biuf" else "text" if kind in "UT" else kind


def _described(labels: NDArray[Any]) -> str:
    """First label and its type, for a message."""
    is_object = labels.dtype == object
    kind = f"type {type(labels[0]).__name__}" if is_object else f"dtype {labels.dtype}"
    return f"{label_repr(labels[0])} of {kind}"


def find_labels(known: NDArray[Any], ids: NDArray[Any]) -> IntArray:
    """Position of each client among the known ones, -1 if it is new; labels are distinct."""
    if len(known) == len(ids) and np.array_equal(known, ids):
        return np.arange(len(ids))
    if known.dtype.kind in "mM" and known.dtype.kind == ids.dtype.kind:
        # In the same unit: otherwise, one list would have dates and the other integers.
        known, ids = (labels.astype(np.result_type(known, ids)) for labels in (known, ids))
    if {known.dtype.kind, ids.dtype.kind} not in ({"i"}, {"u"}):  # mixed, they would be floats
        labels = ids.tolist()
        where = dict.fromkeys(labels, -1)  # usually few, compared with the known ones
        for k, label in enumerate(known.tolist()):
            if label in where:
                where[label] = k
        return np.array([where[label] for label in labels])
    order = np.argsort(known)
    found = order[np.searchsorted(known, ids, sorter=order).clip(max=len(known) - 1)]
    return np.where(known[found] == ids, found, -1)


def labels_together(known: NDArray[Any], new: NDArray[Any]) -> NDArray[Any]:
    """Known and new labels; as objects if conversion to floats would round large integers."""
    if not len(new):
        return known
    labels = np.concatenate([known, new])
    if labels.dtype.kind != "f":
        return labels
    exact = np.concatenate([known.astype(object), new.astype(object)])
    return labels if (labels == exact).all() else exact
