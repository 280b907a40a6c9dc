"""Bootstrap of fitted matrices: fits to drawn data, each started from the fit.

Of Efron and Tibshirani (1993), "An introduction to the bootstrap", the nonparametric bootstrap over
rows or clients, with Poisson weights instead of a sample of fixed size: each row, or client, draws
its own weight, so that a server would not learn who was drawn. And the parametric bootstrap.
"""

from __future__ import annotations

from copy import copy
from typing import Any, Literal, NamedTuple

import numpy as np
from joblib import Parallel, delayed
from sklearn.exceptions import ConvergenceWarning

from .._data.cells import CellData
from .._data.effort import by_mean_client
from .._federation import offsets_of, positions_of
from .._typing import FloatArray, IntArray
from .._warnings import collect_warnings, warn
from ..models.matrix.families import Family
from .row_sums import hangs
from .totals import Totals, warn_of_shares

# Standard deviation of client effects beyond which they have hardly any prior, and counts of other
# clients would overflow.
_LARGEST_DEVIATION = 5.0

Unit = Literal["parametric", "rows", "clients"]
"""What is drawn: observations from the fit, or rows, or clients, with replacement."""


class Lines(NamedTuple):
    """Observations of all clients, client after client.

    Attributes
    ----------
    owners, rows, columns : ndarray of int, shape (n_observations,)
    values, log_effort : ndarray of shape (n_observations,)
    effects : ndarray of shape (n_observations,)
        Effects of the observations' clients.
    """

    owners: IntArray
    rows: IntArray
    columns: IntArray
    values: FloatArray
    log_effort: FloatArray
    effects: FloatArray


class Replicate(NamedTuple):
    """Fit to drawn data.

    Attributes
    ----------
    means : ndarray of shape (n_rows, n_columns)
        Fitted means.
    filled : ndarray of shape (n_rows, n_columns)
        Means of the (drawn) observations of observed cells, fitted means elsewhere.
    weights : ndarray of shape (n_rows,)
        How often each row was drawn, 1 on average.
    converged : bool
    generator : numpy.random.Generator
        For further draws.
    """

    means: FloatArray
    filled: FloatArray
    weights: FloatArray
    converged: bool
    generator: np.random.Generator


def replicates(
    imputer: Any,
    data: CellData,
    unit: Unit,
    dispersion: float,
    seeds: list[int],
    n_jobs: int | None,
) -> list[Replicate]:
    """Fits to data drawn with each seed; ``data`` has all observations."""
    lines = _lines(imputer, data)
    n_units = {"rows": len(np.unique(lines.rows)), "clients": len(np.unique(lines.owners))}
    if n_units.get(unit, 2) < 2:
        raise ValueError(
            f"Expected at least two {unit} with observations for errors={unit!r}, got one. Draw "
            "observations (errors='parametric')."
        )
    means = imputer.fitted_mean()
    with collect_warnings():
        fits = Parallel(n_jobs)(
            delayed(_replicate)(imputer, data.shape, lines, means, unit, dispersion, seed)
            for seed in seeds
        )
    failed = sum(not own.converged for own in fits)
    if failed:
        warn(
            f"{failed} of {len(fits)} fits to drawn data have not converged: increase max_iter.",
            ConvergenceWarning,
        )
    return fits


def _lines(imputer: Any, data: CellData) -> Lines:
    counts = data.n_observations.astype(np.intp)
    owners = np.repeat(np.repeat(np.arange(len(data.ids)), np.diff(data.offsets)), counts)
    assert data.observations is not None  # they were asked for
    rows, columns = np.repeat(data.rows, counts), np.repeat(data.columns, counts)
    log_effort = np.zeros(len(rows)) if data.log_effort is None else data.log_effort
    effects = np.repeat(imputer._effects_of_clients(data), counts)
    return Lines(owners, rows, columns, data.observations, log_effort, effects)


def _replicate(
    imputer: Any,
    shape: tuple[int, int],
    lines: Lines,
    means: FloatArray,
    unit: Unit,
    dispersion: float,
    seed: int,
) -> Replicate:
    generator = np.random.default_rng(seed)
    if unit == "parametric":
        effort, family = np.exp(lines.log_effort), imputer._family()
        own_means = means[lines.rows, lines.columns]
        if imputer.client_effects_ is not None:
            effects = _drawn_effects(imputer, lines, generator)
            own_means = family.mean(family.link(own_means) + effects)
        values = draw(family, own_means * effort, dispersion, generator, effort)
        lines, weights = lines._replace(values=values), np.ones(shape[0])
    else:
        lines, weights = _resampled(lines, shape[0], unit, generator)
    replica = copy(imputer)
    replica._memory = None
    # Triplets of all clients, whose rows are numbered together; checkpoints are not of these data.
    given = dict(warm_start=True, rows="shared", checkpoint=None, missing_values=np.nan)
    replica.set_params(**given, verbose=0, random_state=seed)
    with collect_warnings():
        offset = _by_client(lines, lines.log_effort) if imputer._has_offset else None
        covariates = imputer._given_covariates._asdict()
        replica.fit(_triplets(lines), shape=shape, offset=offset, **covariates)
        fitted = replica.fitted_mean()
    if replica.client_effects_ is not None:
        _, numbers = np.unique(lines.owners, return_inverse=True)
        lines = lines._replace(effects=replica.client_effects_[numbers])
    filled = _filled(imputer, fitted, lines)
    return Replicate(fitted, filled, weights, replica.converged_, generator)


def _drawn_effects(imputer: Any, lines: Lines, generator: np.random.Generator) -> FloatArray:
    """Effects of other clients from the same distribution.

    With those of the fit, errors would lack the differences of clients. Nearly free effects absorb
    these, and are kept.
    """
    deviation = 1 / np.sqrt(imputer.client_effects_penalty_)
    if deviation > _LARGEST_DEVIATION and imputer._fitted_family != "gaussian":
        return lines.effects
    effects: FloatArray = generator.normal(0.0, deviation, int(lines.owners.max()) + 1)
    return effects[lines.owners]


def _filled(imputer: Any, means: FloatArray, lines: Lines) -> FloatArray:
    """Means, with those of the observations in observed cells, as if clients had no effects."""
    counts, sums, filled = np.zeros(means.shape), np.zeros(means.shape), means.copy()
    efforts = np.exp(lines.log_effort)
    per_unit = lines.values / efforts
    values, efforts = by_mean_client(imputer._fitted_family, per_unit, efforts, lines.effects)
    np.add.at(counts, (lines.rows, lines.columns), efforts)
    np.add.at(sums, (lines.rows, lines.columns), efforts * values)
    filled[counts > 0] = sums[counts > 0] / counts[counts > 0]
    return filled


def drawn_totals(
    imputer: Any,
    data: CellData,
    fits: list[Replicate],
    dispersion: float,
    groups: IntArray,
    columns: IntArray,
    labels: tuple[Any, Any],
    interval: float,
) -> list[Totals]:
    """Totals of the fit for each group of rows, with covariances of those of the replicates."""
    lines = _lines(imputer, data)
    means = imputer.fitted_mean()
    filled, is_seen = _filled(imputer, means, lines), np.zeros(means.shape, dtype=bool)
    is_seen[lines.rows, lines.columns] = True
    n_cells = is_seen.sum(axis=1)
    groups = np.where(n_cells > 0, groups, -1)
    hanging = np.where(hangs(means, is_seen), means, 0.0)
    results = []
    for group in range(int(groups.max()) + 1):
        members = np.flatnonzero(groups == group)
        block = np.ix_(members, columns)
        model, imputed = (
            np.array([own.weights[members] @ matrix(own)[block] for own in fits])
            for matrix in (lambda own: own.means, lambda own: own.filled)
        )
        largest, all_columns = hanging[members].argmax(axis=0), np.arange(len(means.T))
        parts = hanging[members][largest, all_columns] / filled[members].sum(axis=0)
        warn_of_shares(n_cells, parts, members[largest], columns, labels)
        shares = np.bincount(members, means[block].sum(axis=1), len(groups))
        results.append(
            Totals(
                columns if labels[1] is None else labels[1],
                filled[block].sum(axis=0),
                means[block].sum(axis=0),
                np.cov(imputed.T).reshape(2 * (len(columns),)),
                np.cov(model.T).reshape(2 * (len(columns),)),
                dispersion,
                0.0,
                shares / shares.sum(),
                interval,
                is_positive=imputer._fitted_family != "gaussian",
            )
        )
    return results


def draw(
    family: Family,
    means: FloatArray,
    dispersion: float,
    generator: np.random.Generator,
    effort: FloatArray | float = 1.0,
) -> FloatArray:
    """Observations with these means; counts are negative binomial if they are over-dispersed."""
    if family.name == "gaussian":
        return generator.normal(means, np.sqrt(dispersion))
    if family.name == "bernoulli":
        return (generator.random(means.shape) < means).astype(np.float64)
    # The variance is the dispersion times that of the family, and the mean has the rest of it.
    excess = dispersion - 1 + dispersion * means / (family.size * effort)
    if np.any(excess > 0):
        excess = np.maximum(excess, 1e-12)
        means = generator.gamma(np.maximum(means / excess, 1e-12), excess)
    return generator.poisson(means).astype(np.float64)


def _resampled(
    lines: Lines, n_rows: int, unit: Unit, generator: np.random.Generator
) -> tuple[Lines, FloatArray]:
    """Lines, each as often as its row or client was drawn, and how often each row was drawn.

    A row that several clients observed was drawn as often as its clients on average.
    """
    units = lines.rows if unit == "rows" else lines.owners
    members = np.unique(units)
    drawn = np.zeros(int(units.max()) + 1, dtype=np.intp)
    while not drawn.any():
        drawn[members] = generator.poisson(1.0, len(members))
    pairs = np.unique(np.column_stack([lines.rows, units]), axis=0)
    number = np.bincount(pairs[:, 0], minlength=n_rows)
    weights = np.bincount(pairs[:, 0], drawn[pairs[:, 1]], n_rows) / np.maximum(number, 1)
    resampled = Lines._make(np.repeat(own, drawn[units]) for own in lines)
    if unit == "clients":  # drawn twice, it is two clients
        copies = positions_of(np.zeros(len(units), dtype=np.intp), drawn[units])
        order = np.lexsort([copies, resampled.owners])
        resampled = Lines._make(own[order] for own in resampled)
        owners = resampled.owners * (1 + copies.max()) + copies[order]
        resampled = resampled._replace(owners=owners)
    return resampled, weights / drawn[members].mean()


def _triplets(lines: Lines) -> list[FloatArray]:
    """Triplets of each client that has lines."""
    return _by_client(lines, np.column_stack([lines.rows, lines.columns, lines.values]))


def _by_client(lines: Lines, table: FloatArray) -> list[FloatArray]:
    """Rows of a table of all lines, for each client that has lines."""
    _, lengths = np.unique(lines.owners, return_counts=True)
    return np.split(table, offsets_of(lengths)[1:-1])


def domain_of_dispersion(family: str, dispersion: float) -> float:
    """Dispersion that data of the family can be drawn with."""
    if np.isnan(dispersion) or family == "bernoulli":
        return 1.0
    return dispersion if family == "gaussian" else max(dispersion, 1.0)
