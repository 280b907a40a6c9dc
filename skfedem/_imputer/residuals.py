"""Pearson residuals of clients' cells: dispersion, and correlation of neighbours in a row."""

from __future__ import annotations

from functools import wraps
from typing import Any, NamedTuple

import numpy as np

from .._client_vectors import row_indices
from .._federation import ClientMessage, ClientRows, SetUp
from .._typing import BoolArray, FloatArray, IntArray
from ..models.matrix import messages
from ..models.matrix.degrees_of_freedom import effective_parameters
from ..models.matrix.families import Family
from ..models.matrix.low_rank import LowRankModel, NaturalParameters
from ..models.matrix.pooled import Margins, Support
from ..models.matrix.start import observed_support
from ..models.matrix.theta import Cells

# Largest size of a correlation: that of 1 has no inverse.
_LARGEST_CORRELATION = 0.99


class Observed(NamedTuple):
    """Observed cells that tell about effects.

    Attributes
    ----------
    support : Support
        All observed cells, in row-major order, with their numbers of observations.
    positions : ndarray of int, shape (n_samples,)
        Which of these each cell of each client is.
    is_kept : ndarray of bool, shape (n_cells,)
        Whether row and column of a cell have an effect: not if all counts are 0, or all 1 for
        presences, which are fitted exactly.
    n_groups : int
        Groups of rows, of which each has as many columns of its own.
    """

    support: Support
    positions: IntArray
    is_kept: BoolArray
    n_groups: int = 1

    @property
    def groups_of_columns(self) -> IntArray:
        """Group of each column."""
        n_columns = self.support.shape[1]
        return np.arange(n_columns) // (n_columns // self.n_groups)


class Residuals(NamedTuple):
    """Moments of Pearson residuals: dispersion φ and the correlation ρ of neighbours in a row."""

    dispersion: float
    serial_correlation: float


def each(message: ClientMessage) -> ClientMessage:
    """Message of each client from a function of the cells of one."""

    @wraps(message)
    def messages_of(rows: ClientRows, *arguments: Any) -> FloatArray:
        federation, clients, ids = rows
        alone = (
            ClientRows(federation, clients[k : k + 1], ids[k : k + 1]) for k in range(len(ids))
        )
        return np.array([message(own, *arguments) for own in alone])

    return messages_of


def residual_products(
    rows: ClientRows, observed: Observed, means: FloatArray, variances: FloatArray
) -> FloatArray:
    """Sums of squares of Pearson residuals, and of products of neighbours; how many there are.

    Neighbours are cells of one row in consecutive columns, observed by the same client. Shape
    (n_clients, 4).
    """
    cells, own = own_cells(rows, observed)
    return _products(rows, cells, means[own], variances[own], observed.is_kept[own])


def pearson_products(
    rows: ClientRows,
    model: LowRankModel,
    parameters: NaturalParameters,
    kept_rows: BoolArray,
    kept_columns: BoolArray,
) -> FloatArray:
    """The same of a fit, in the cells of some rows and columns."""
    federation, clients, _ = rows
    cells = federation.rows.take(row_indices(federation.offsets, clients))
    natural = model.kept_natural(federation, parameters.natural, clients)
    family = model.pooled.observed_family
    is_kept = kept_rows[cells.rows] & kept_columns[cells.columns]
    return _products(rows, cells, family.mean(natural), family.variance(natural), is_kept)


def _products(
    rows: ClientRows, cells: Cells, means: FloatArray, variances: FloatArray, is_kept: BoolArray
) -> FloatArray:
    """Sums of ``residual_products``, with mean and variance of each cell."""
    n_clients = len(rows.clients)
    clients = np.repeat(np.arange(n_clients), rows.federation.lengths_of(rows.clients))[is_kept]
    cells, means, variances = cells.take(is_kept), means[is_kept], variances[is_kept]
    residuals = np.sqrt(cells.counts / variances) * (cells.values - means)
    follows = (np.diff(cells.columns) == 1) & (np.diff(cells.rows) == 0) & (np.diff(clients) == 0)
    products, pairs = (residuals[1:] * residuals[:-1])[follows], clients[1:][follows]
    sums = (
        np.bincount(clients, residuals**2, n_clients),
        np.bincount(clients, minlength=n_clients),
        np.bincount(pairs, products, n_clients),
        np.bincount(pairs, minlength=n_clients),
    )
    return np.column_stack(sums)


def own_cells(rows: ClientRows, observed: Observed) -> tuple[Cells, IntArray]:
    """Cells of the clients, and which observed cells they are."""
    indices = row_indices(rows.federation.offsets, rows.clients)
    return rows.federation.rows.take(indices), observed.positions[indices]


def observed_cells(
    clients: SetUp, shape: tuple[int, int], family: Family
) -> tuple[Observed, Margins]:
    """Cells that the clients observed, and the sums of their observations."""
    codes = clients.gather(messages.observed_cells, shape[1])
    counts = clients.gather(messages.numbers_of_observations)
    support, positions = observed_support(codes, counts, shape)
    n_rows, n_columns = shape
    sent = (
        clients.gather(messages.row_sums, n_rows),
        clients.gather(messages.column_sums, n_columns),
    )
    sums: list[Any] = [
        np.bincount(lines, own, size) for (_, lines, own), size in zip(sent, shape, strict=True)
    ]
    margins = Margins(*sums)
    return Observed(support, positions, kept_cells(support, margins, family)), margins


def pearson_moments(
    clients: SetUp, observed: Observed, family: Family, natural: FloatArray, n_parameters: float
) -> Residuals:
    """Dispersion and serial correlation, given θ in the observed cells.

    The dispersion is the sum of squares over (cells - parameters), NaN if that is not positive;
    the correlation is the mean product of neighbours over the dispersion, 0 without neighbours.
    """
    means, variances = family.mean(natural), family.variance(natural)
    sums = clients.sum(residual_products, observed, means, variances)
    return _moments(sums, n_parameters)


def _moments(sums: FloatArray, n_parameters: float) -> Residuals:
    squares, n_cells, products, n_products = sums
    n_degrees = n_cells - n_parameters
    dispersion = squares / n_degrees if n_degrees >= 1 else np.nan
    correlation = products / n_products / dispersion if n_products and dispersion > 0 else 0.0
    limit = _LARGEST_CORRELATION
    return Residuals(float(dispersion), float(np.clip(correlation, -limit, limit)))


def moments_of_fit(clients: SetUp, model: LowRankModel, server: Any) -> Residuals:
    """Dispersion and serial correlation of a fit.

    Parameters beside effects alone are an effective number. If there are too many to find it, they
    are counted as if none was penalised.
    """
    pooled, fit = model.pooled, server.statistics
    iterate = fit.iterate
    n_factors = len(iterate.low_rank.singular_values)
    support, effects = pooled.support, pooled.effects
    is_kept = np.ones(len(support.counts), dtype=bool)
    if effects == "both":
        is_kept = kept_cells(support, pooled.margins, pooled.family)
    # A cell is kept if its row and its column are.
    kept = with_cells(Observed(support, model.positions, is_kept))
    n_rows, n_columns = (int(own.sum()) for own in kept)
    n_parameters: float = int(effects != "none") + n_factors * (n_rows + n_columns - n_factors)
    n_parameters += (n_rows - 1) * (effects in ("both", "rows"))
    n_parameters += (n_columns - 1) * (effects in ("both", "columns"))
    if pooled.covariates is not None:
        n_parameters += len(pooled.covariates.sums)
    if n_factors or pooled.covariates is not None:
        found = effective_parameters(pooled, iterate, fit.sums)
        n_parameters = n_parameters if found is None else found.of_residuals
    clients.tell("theta", server.parameters.natural.n_told)
    return _moments(clients.sum(pearson_products, model, server.parameters, *kept), n_parameters)


def kept_cells(support: Support, margins: Margins, family: Family) -> BoolArray:
    """Cells of rows and columns that have finite effects.

    For counts, rows and columns of zeros have none; for presences, nor have those of ones.
    """
    if family.name == "gaussian":
        return np.ones(len(support.counts), dtype=bool)
    is_kept = np.ones(len(support.counts), dtype=bool)
    sums = [np.array(own) for own in margins]
    while True:
        counts = support.margins(support.counts * is_kept)
        full = [np.inf if family.is_of_counts else own for own in counts]
        rows, columns = ((own > 0) & (own < most) for own, most in zip(sums, full, strict=True))
        kept = is_kept & rows[support.rows] & columns[support.columns]
        if kept.sum() == is_kept.sum():
            return is_kept
        if family.name == "bernoulli":  # a dropped row or column of ones no longer counts
            ones = _are_ones(support, is_kept & ~kept, rows, columns, sums)
            sums = [own - less for own, less in zip(sums, support.margins(ones), strict=True)]
        is_kept = kept


def _are_ones(
    support: Support, dropped: BoolArray, rows: BoolArray, columns: BoolArray, sums: list[Any]
) -> FloatArray:
    """Sums of the dropped cells, whose row or column has only zeros or only ones."""
    by_row = ~rows[support.rows] & (sums[0][support.rows] > 0)
    by_column = rows[support.rows] & ~columns[support.columns] & (sums[1][support.columns] > 0)
    return support.counts * (dropped & (by_row | by_column))


def with_cells(observed: Observed) -> tuple[BoolArray, BoolArray]:
    """Whether rows, and columns, have cells that are kept."""
    counts = observed.support.margins(observed.support.counts * observed.is_kept)
    return counts.rows > 0, counts.columns > 0
