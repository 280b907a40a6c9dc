"""Labels of clients beside those of clients that are known from earlier calls."""

from __future__ import annotations

import numpy as np

from .._messages import shown


def check_kinds(known, ids):
    """Raise for labels that cannot be compared with those of known clients: all would be new."""
    if _are_comparable(known, ids):
        return
    raise ValueError(
        f"Expected client labels like those of the calls before, as {_described(known)}, got "
        f"{_described(ids)}. Name clients by the same labels in every call (those of a list are "
        "their positions; of one table alone, 0), or begin anew: call fit with warm_start=False, "
        "or partial_fit on a clone."
    )


def _are_comparable(known, ids):
    """Whether labels are of one kind, or are objects that can be sorted, as those of a call."""
    kinds = {_kind(known), _kind(ids)}
    if "O" not in kinds or kinds & {"M", "m"}:  # dates as objects are not found among these
        return len(kinds) == 1
    try:
        _ = known.tolist()[0] < ids.tolist()[0]
    except (TypeError, ValueError):  # pandas' periods of other lengths
        return False
    return True


def _kind(labels):
    kind = labels.dtype.kind
    return "number" if kind in "biuf" else "text" if kind in "UT" else kind


def _described(labels):
    """The first label and what it is, for a message."""
    is_object = labels.dtype == object
    kind = f"type {type(labels[0]).__name__}" if is_object else f"dtype {labels.dtype}"
    return f"{shown(labels[0])} of {kind}"


def find_labels(known, ids):
    """Position of each client among the known ones, -1 where it is new; labels are distinct."""
    if len(known) == len(ids) and np.array_equal(known, ids):
        return np.arange(len(ids))
    if known.dtype.kind in "mM" and known.dtype.kind == ids.dtype.kind:
        # In one unit: otherwise their lists would have dates beside integers.
        known, ids = (labels.astype(np.result_type(known, ids)) for labels in (known, ids))
    if {known.dtype.kind, ids.dtype.kind} not in ({"i"}, {"u"}):  # both kinds meet as floats
        labels = ids.tolist()
        where = dict.fromkeys(labels, -1)  # often few, of many that are known
        for k, label in enumerate(known.tolist()):
            if label in where:
                where[label] = k
        return np.array([where[label] for label in labels])
    order = np.argsort(known)
    found = order[np.searchsorted(known, ids, sorter=order).clip(max=len(known) - 1)]
    return np.where(known[found] == ids, found, -1)


def labels_together(known, new):
    """Known and new labels; as objects if conversion to floats would change large integers."""
    if not len(new):
        return known
    labels = np.concatenate([known, new])
    if labels.dtype.kind != "f":
        return labels
    exact = np.concatenate([known.astype(object), new.astype(object)])
    return labels if (labels == exact).all() else exact
