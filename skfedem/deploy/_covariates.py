"""Covariates and groups of rows in plans: the server knows them, and tells them all clients."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._data.covariates import CovariateTable
from .._data.frame_labels import labels_of_shape, sizes_of_shape
from .._imputer.covariates import NO_COVARIATES, GivenCovariates, KnownCovariates, read_given


def described(given: GivenCovariates, shape: Any, effects: Any) -> dict[str, Any]:
    """Covariates and groups as they are sent."""
    known = read_given(given, sizes_of_shape(shape), labels_of_shape(shape), effects)
    groups = [own if isinstance(own, str | int) else str(own) for own in known.groups.tolist()]
    return {
        "rows": [known.rows.values, [*map(str, known.rows.names)], known.rows.scale],
        "columns": [known.columns.values, [*map(str, known.columns.names)], known.columns.scale],
        "groups": groups,
        "numbers": known.numbers,
        "with_effects": known.with_effects,
    }


def known_covariates(plan: dict[str, Any]) -> KnownCovariates:
    """Covariates and groups of a plan."""
    told, shape = plan.get("covariates"), plan["shape"]
    if told is None:
        sizes, labels = sizes_of_shape(shape), labels_of_shape(shape)
        return read_given(NO_COVARIATES, sizes, labels, plan["parameters"]["effects"])
    rows, columns = (
        CovariateTable(values, np.array(names, dtype=object), scale)
        for values, names, scale in (told["rows"], told["columns"])
    )
    groups = np.array(told["groups"]) if told["groups"] else np.empty(0)
    return KnownCovariates(
        rows, columns, groups, told["numbers"], told["with_effects"], n_clients=0
    )


def given_again(known: KnownCovariates) -> GivenCovariates:
    """Arguments of a fit with the same covariates, but for their names and means."""
    rows, columns = known.rows, known.columns
    return GivenCovariates(
        rows.values * rows.scale if len(rows.names) else None,
        columns.values * columns.scale if len(columns.names) else None,
        known.groups[known.numbers] if len(known.groups) else None,
    )
