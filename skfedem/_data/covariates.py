"""Covariates of rows and columns of a matrix, as centred numbers."""

from __future__ import annotations

from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._error_messages import plural
from .._typing import FloatArray, IntArray
from .frame_labels import Labels, check_labels, table_labels
from .labels import group_rows
from .tables import LARGEST, as_numbers, is_frame, is_missing


class CovariateTable(NamedTuple):
    """Covariates, of mean 0 and mean square 1, their names, and the divisors they had."""

    values: FloatArray
    names: NDArray[Any]
    scale: FloatArray


def read_covariates(
    table: Any, n_lines: int, axis: str, labels: Labels, name: str
) -> CovariateTable:
    """Covariates of each row, or column; texts and categories become indicators.

    The first category of each is the reference. ``labels`` are those of the matrix.
    """
    if table is None:
        return CovariateTable(np.zeros((n_lines, 0)), np.empty(0, dtype=object), np.empty(0))
    if hasattr(table, "index") and hasattr(table, "to_frame"):  # a Series, with its labels
        table = table.to_frame("x0" if table.name is None else table.name)
    if is_frame(table):
        columns = {str(own): table[own] for own in table.columns}
        if len(columns) < table.shape[1]:
            raise ValueError(
                f"Expected distinct column names in {name}, got {[*map(str, table.columns)]}. "
                "Rename them."
            )
    else:
        array = table if hasattr(table, "dtype") else np.array(table, dtype=object)  # mixed lists
        array = array[:, None] if array.ndim == 1 else array
        columns = {f"x{k}": array[:, k] for k in range(array.shape[1])} if array.ndim == 2 else {}
    if not columns or any(len(own) != n_lines for own in columns.values()):
        raise ValueError(
            f"Expected {name} with {plural(n_lines, axis)}, as the matrix has, got shape "
            f"{np.shape(table)}. Give one {axis} for each, in the order of the matrix."
        )
    check_labels(axis, labels, table_labels(table)[0], f"Reindex {name}", "the matrix")
    parts, names = [], []
    for own_name, column in columns.items():
        values = np.asarray(column)
        if values.dtype == object and all(isinstance(own, Real) for own in values):
            values = values.astype(np.float64)
        if values.dtype.kind in "OUS" or hasattr(getattr(column, "dtype", None), "categories"):
            categories, numbers = numbered(column, n_lines, f"{name}, column {own_name}")
            parts.append(np.eye(len(categories))[numbers][:, 1:])
            names += [f"{own_name}={category}" for category in categories[1:]]
        else:
            parts.append(as_numbers(values).astype(np.float64)[:, None])
            names.append(own_name)
    values = np.hstack(parts)
    bad = ~(np.abs(values) <= LARGEST)
    if bad.any():
        raise ValueError(
            f"Expected finite numbers in {name}, of size at most {LARGEST:g}, got "
            f"{values[bad][0]}. Fill in missing covariates, and rescale large ones."
        )
    values = values - values.mean(axis=0)
    scale = np.sqrt(np.mean(values**2, axis=0))
    constant = scale <= 1e-12 * np.abs(np.hstack(parts)).max(axis=0)
    scale = np.where(constant, 1.0, scale)
    return CovariateTable(values * ~constant / scale, np.array(names, dtype=object), scale)


def numbered(labels: ArrayLike, n_lines: int, name: str) -> tuple[NDArray[Any], IntArray]:
    """Distinct labels, sorted, and the number of each row's label."""
    if any(map(is_missing, np.asarray(labels, dtype=object).ravel())):
        raise ValueError(f"Expected no missing values in {name}, got some. Fill them in.")
    distinct, order, offsets = group_rows(labels, n_lines, name)
    numbers = np.empty(n_lines, dtype=np.intp)
    numbers[slice(None) if order is None else order] = np.repeat(
        np.arange(len(distinct)), np.diff(offsets)
    )
    return distinct, numbers
