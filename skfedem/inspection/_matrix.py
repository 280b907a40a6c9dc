"""Data for plots of a fitted matrix: sums over rows, and means over bands of rows."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import clone
from sklearn.utils import gen_batches

from .._cells import distinct_cells
from .._data.cells import read_cells
from .._data.effort import by_mean_client
from .._data.frame_labels import check_labels, fit_labels
from .._data.tables import first_table
from .._imputer.imputation import MatrixImputation
from .._typing import FloatArray, IntArray, MatricesLike, RowsName
from ..models.matrix.families import family_of

# Number of cells whose fitted means are computed at once.
_BLOCK = 2**21


class Observed(NamedTuple):
    """Distinct observed cells of all clients, and the means over all observations of each.

    These are as if clients had no effects.
    """

    rows: IntArray
    columns: IntArray
    values: FloatArray


def observed_cells(
    imputer: MatrixImputation, X: MatricesLike, offset: MatricesLike | None = None
) -> Observed:
    """Cells that at least one client observed; raise if they are not the data of the fit."""
    imputer._check_offset(offset)
    shape = imputer._shape
    rows: RowsName = "shared" if imputer.row_offsets_ is None else "disjoint"
    data = read_cells(
        clone(imputer).set_params(rows=rows),
        X,
        shape=shape if imputer._has_triplets else None,
        family=family_of(imputer._fitted_family),
        offset=offset,
    )
    if data.shape != shape:
        raise ValueError(
            f"Expected the data of the fit, a matrix of shape {shape}, got shape {data.shape}. "
            "Give the X of the fit."
        )
    imputer._check_clients(data)
    of_fit = imputer._row_labels, imputer._column_labels
    given = (None, None) if imputer._has_triplets else fit_labels(X, rows)
    for axis, want, got in zip(("row", "column"), of_fit, given, strict=True):
        check_labels(axis, want, got, "Give the X of the fit")
    sites, months, cell = distinct_cells(data.rows, data.columns, shape[1])
    effects, family_name = imputer._effects_of_clients(data), imputer._fitted_family
    values, efforts = by_mean_client(family_name, data.values, data.counts, effects)
    sums = np.bincount(cell, efforts * values)
    return Observed(sites, months, sums / np.bincount(cell, efforts))


def known_labels(imputer: MatrixImputation, X: MatricesLike | None) -> ArrayLike | None:
    """Column labels of a DataFrame (or a list of them), or else of the fit; may be None."""
    labels = getattr(first_table(X), "columns", None)
    return imputer._column_labels if imputer._has_triplets or labels is None else labels


def totals(imputer: MatrixImputation) -> tuple[FloatArray, FloatArray]:
    """Sums of the fitted means over all rows (n_columns,) and over all columns (n_rows,)."""
    n_rows, n_columns = imputer._shape
    over_rows, over_columns = np.zeros(n_columns), np.empty(n_rows)
    for batch in gen_batches(n_rows, max(1, _BLOCK // n_columns)):
        means = imputer.fitted_mean(rows=np.arange(batch.start, batch.stop))
        over_rows += means.sum(axis=0)
        over_columns[batch] = means.sum(axis=1)
    return over_rows, over_columns


def band_edges(n_rows: int, max_bands: int) -> IntArray:
    """Edges of at most ``max_bands`` bands of neighbouring rows, of nearly equal sizes."""
    return np.linspace(0, n_rows, min(n_rows, max_bands) + 1).round().astype(np.intp)


def fitted_bands(imputer: MatrixImputation, order: IntArray, edges: IntArray) -> FloatArray:
    """Fitted means, averaged over the rows of each band, shape (n_bands, n_columns)."""
    means = [imputer.fitted_mean(rows=order[start:end]) for start, end in pairwise(edges)]
    return np.stack([band.mean(axis=0) for band in means])


def observed_bands(
    observed: Observed, order: IntArray, edges: IntArray, n_columns: int
) -> FloatArray:
    """Means of the observed cells of each band in each column, NaN if there are none."""
    rank = np.empty(len(order), dtype=np.intp)
    rank[order] = np.arange(len(order))
    band = np.searchsorted(edges, rank[observed.rows], side="right") - 1
    cell, size = band * n_columns + observed.columns, (len(edges) - 1) * n_columns
    counts = np.bincount(cell, minlength=size)
    sums = np.bincount(cell, observed.values, minlength=size)
    means = np.divide(sums, counts, out=np.full(size, np.nan), where=counts > 0)
    return means.reshape(-1, n_columns)


def matrix_summary(
    imputer: MatrixImputation,
    X: MatricesLike | None,
    row_order: Literal["total", "given"],
    max_rows: int,
    offset: MatricesLike | None = None,
) -> dict[str, Any]:
    """Arrays for the constructor of ``ImputationDisplay``, by name."""
    trend, sizes = totals(imputer)
    n_rows, n_columns = len(sizes), len(trend)
    order = np.argsort(-sizes, kind="stable") if row_order == "total" else np.arange(n_rows)
    edges = band_edges(n_rows, max_rows)
    summary = {
        "trend": trend,
        "fitted": fitted_bands(imputer, order, edges),
        "n_rows": n_rows,
        "unobserved_columns": imputer.unobserved_columns_,
    }
    if X is not None:
        cells = observed_cells(imputer, X, offset)
        counts = np.bincount(cells.columns, minlength=n_columns)
        sums = np.bincount(cells.columns, cells.values, minlength=n_columns)
        summary["observed"] = observed_bands(cells, order, edges, n_columns)
        summary["observed_share"] = counts / n_rows
        summary["observed_total"] = np.where(counts > 0, sums, np.nan)
    return summary
