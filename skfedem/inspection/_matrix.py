"""Data for plots of a fitted matrix: sums over rows, and means over bands of rows."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from sklearn.base import clone

from .._cells import distinct_cells
from .._federation import owners_of
from .._imputer.fitted import FittedMatrix
from .._input.cells import check_cells
from .._input.matrices import holds_clients
from .._input.table_labels import check_labels, fit_labels
from .._typing import FloatArray, IntArray, MatricesLike, RowsName
from ..models.matrix.families import FAMILIES

# Number of cells whose fitted means are computed at once.
_BLOCK = 2**21


class Observed(NamedTuple):
    """Distinct observed cells of all clients, in row-major order.

    ``values`` are the means over all observations of each cell.
    """

    rows: IntArray
    columns: IntArray
    values: FloatArray


def observed_cells(imputer: FittedMatrix, X: MatricesLike) -> Observed:
    """Cells that at least one client observed.

    Parameters
    ----------
    imputer : FederatedMatrixImputer
        Fitted.
    X : list of clients, or array-like
        Data that the imputer was fitted to.

    Returns
    -------
    observed : Observed

    Raises
    ------
    TypeError, ValueError
        If the imputer cannot be fitted to the data, or they have other rows or columns than the
        data of the fit.
    """
    shape = imputer._shape
    if imputer._has_triplets and not (imputer._has_triplets_alone or holds_clients(X)):
        raise ValueError(
            "Expected a list of triplets (site, month, value), one array for each client, got one "
            f"{type(X).__name__}. Give the X of the fit: a list of triplets."
        )
    rows: RowsName = "shared" if imputer.row_offsets_ is None else "disjoint"
    data = check_cells(
        clone(imputer).set_params(rows=rows),
        X,
        shape=shape if imputer._has_triplets else None,
        family=FAMILIES[imputer._fitted_family],
    )
    if data.shape != shape:
        raise ValueError(
            f"Expected the data of the fit, a matrix of shape {shape}, got shape {data.shape}. "
            "Give the X of the fit."
        )
    _check_same_names(imputer, X, rows)
    sites, months, cell = distinct_cells(data.rows, data.columns, shape[1])
    totals = np.bincount(cell, data.counts * data.values)
    return Observed(sites, months, totals / np.bincount(cell, data.counts))


def _check_same_names(imputer: FittedMatrix, X: MatricesLike, rows: RowsName) -> None:
    """Raise if labels of rows or columns differ from those of the fit, or are reordered."""
    of_fit = imputer._row_labels, imputer._column_labels
    for axis, want, got in zip(("row", "column"), of_fit, fit_labels(X, rows), strict=True):
        check_labels(axis, want, got, "Give the X of the fit")


def totals(imputer: FittedMatrix) -> tuple[FloatArray, FloatArray]:
    """Sums of the fitted means over all rows (n_columns,) and over all columns (n_rows,)."""
    n_rows, n_columns = imputer._shape
    over_rows, over_columns = np.zeros(n_columns), np.empty(n_rows)
    step = max(1, _BLOCK // n_columns)
    for first in range(0, n_rows, step):
        block = np.arange(first, min(first + step, n_rows))
        means = imputer.fitted_mean(rows=block)
        over_rows += means.sum(axis=0)
        over_columns[block] = means.sum(axis=1)
    return over_rows, over_columns


def band_edges(n_rows: int, most_bands: int) -> IntArray:
    """Edges of at most ``most_bands`` bands of neighbouring rows, of nearly equal sizes."""
    return np.linspace(0, n_rows, min(n_rows, most_bands) + 1).round().astype(np.intp)


def fitted_bands(imputer: FittedMatrix, order: IntArray, edges: IntArray) -> FloatArray:
    """Fitted means, averaged over the rows of each band, shape (n_bands, n_columns)."""
    n_columns = imputer._shape[1]
    bands = np.empty((len(edges) - 1, n_columns))
    widest = int(np.diff(edges).max())
    step = max(1, _BLOCK // (widest * n_columns))
    for first in range(0, len(bands), step):
        last = min(first + step, len(bands))
        starts = edges[first:last]
        means = imputer.fitted_mean(rows=order[starts[0] : edges[last]])
        bands[first:last] = np.add.reduceat(means, starts - starts[0], axis=0)
    return bands / np.diff(edges)[:, None]


def observed_bands(
    observed: Observed, order: IntArray, edges: IntArray, n_columns: int
) -> tuple[FloatArray, FloatArray]:
    """Means and shares of the observed cells of each band in each column.

    Returns
    -------
    means : ndarray of shape (n_bands, n_columns)
        Means over the observed cells; NaN if there are none.
    share : ndarray of shape (n_bands, n_columns)
        Share of the band's rows that were observed, 0 to 1.
    """
    place = np.empty(len(order), dtype=np.intp)
    place[order] = np.arange(len(order))
    band = owners_of(edges, place[observed.rows])
    code = band * n_columns + observed.columns
    size = (len(edges) - 1) * n_columns
    count = np.bincount(code, minlength=size)
    total = np.bincount(code, observed.values, minlength=size)
    means = np.divide(total, count, out=np.full(size, np.nan), where=count > 0)
    share = count.reshape(-1, n_columns) / np.diff(edges)[:, None]
    return means.reshape(-1, n_columns), share


def drawn(
    imputer: FittedMatrix,
    X: MatricesLike | None,
    row_order: Literal["total", "given"],
    max_rows: int,
) -> dict[str, Any]:
    """Arrays for the constructor of ``ImputationDisplay``, by name."""
    trend, sizes = totals(imputer)
    n_rows, n_columns = len(sizes), len(trend)
    order = np.argsort(-sizes, kind="stable") if row_order == "total" else np.arange(n_rows)
    bands = band_edges(n_rows, max_rows)
    data = {
        "trend": trend,
        "fitted": fitted_bands(imputer, order, bands),
        "n_rows": n_rows,
        "unobserved_columns": imputer.unobserved_columns_,
    }
    if X is not None:
        cells = observed_cells(imputer, X)
        means, share = observed_bands(cells, order, bands, n_columns)
        data["observed"], data["band_observed_share"] = means, share
        data["observed_share"] = np.bincount(cells.columns, minlength=n_columns) / n_rows
        total = np.bincount(cells.columns, cells.values, minlength=n_columns)
        data["observed_total"] = np.where(data["observed_share"] > 0, total, np.nan)
    return data


def moving_mean(values: FloatArray, window: int) -> FloatArray:
    """Centred moving mean over ``window`` values; NaN near both ends.

    If the window is even, the values at both of its ends have half weight, which centres it.
    """
    weights = np.ones(window)
    if window % 2 == 0:
        weights = np.r_[0.5, np.ones(window - 1), 0.5]
    smooth = np.full(len(values), np.nan)
    margin = len(weights) // 2
    if len(values) >= len(weights):
        smooth[margin : len(values) - margin] = np.convolve(
            values, weights / weights.sum(), mode="valid"
        )
    return smooth
