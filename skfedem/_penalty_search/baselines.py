"""What the scores of a search are compared with: effects alone, and means of rows by season."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .._typing import FloatArray
from ..models.matrix.families import Family, negative_binomial, working_family
from ..models.matrix.negative_binomial import most_likely_size, size_log_likelihood
from ..models.matrix.pooled import working_cells
from ..models.matrix.theta import Cells
from .held_out import Split, Triplets


class Predicted(NamedTuple):
    """Mean log-likelihood of a fold's observations, in nats; sums of these and of their means."""

    score: float
    sums: FloatArray


class Baseline(NamedTuple):
    """Scores and sums of each fold, see ``Trial``, by a method of this name."""

    name: str
    scores: FloatArray
    sums: FloatArray


def observed_to_expected(sums: FloatArray) -> float:
    """Sum of all held-out observations over that of their predictions; 1 if both are 0."""
    observed, expected = sums.sum(axis=0)
    if observed == expected:
        return 1.0
    with np.errstate(divide="ignore"):
        return float(observed / expected)


def row_season_means(split: Split, family: Family, period: int) -> Predicted:
    """Prediction by the mean of the row in the same season of other years.

    Each mean is taken with one more observation, which has the mean of the row, and that of the
    row with one that has the overall mean: so a season without observations has a prediction, and
    one with zeros alone does not rule out a count.
    """
    train, test = split
    means = _row_season_means(train, family, period)
    if family.name == "negative_binomial" and family.size == np.inf:
        family = negative_binomial(_size(train, family, means, period))
    (rows, columns, values), log_effort = test.table.T, _log_effort(test)
    natural, effort = _natural(test, family, means, period), np.exp(log_effort)
    cells = working_cells(Cells(rows, columns, values / effort, effort), family)
    terms = cells.values * natural - working_family(family).log_partition(natural)
    densities = cells.counts * terms + family.log_base_measure(values, log_effort)
    sums = np.array([values.sum(), effort @ family.mean(natural)])
    return Predicted(float(densities.mean()), sums)


def _natural(triplets: Triplets, family: Family, means: FloatArray, period: int) -> FloatArray:
    """θ of each observation, for one unit of effort."""
    rows, columns, _ = triplets.table.T
    natural: FloatArray = family.link(means[rows.astype(np.intp), columns.astype(np.intp) % period])
    return natural


def _log_effort(triplets: Triplets) -> FloatArray:
    return np.zeros(len(triplets.table)) if triplets.offset is None else triplets.offset


def _size(train: Triplets, family: Family, means: FloatArray, period: int) -> float:
    """Size under which the means make the training observations most likely."""
    natural, effort = _natural(train, family, means, period), np.exp(_log_effort(train))

    def derivatives(size: float) -> tuple[float, float]:
        terms = size_log_likelihood(train.table[:, 2], effort, natural, size)
        return float(terms[1].sum()), float(terms[2].sum())

    return most_likely_size(derivatives, float(effort.mean()))


def _row_season_means(train: Triplets, family: Family, period: int) -> FloatArray:
    """Smoothed means per unit of effort, shape (n_rows, period), from sums of clients' values."""
    (rows, columns, values), effort = train.table.T, np.exp(_log_effort(train))
    seasons = rows.astype(np.intp) * period + columns.astype(np.intp) % period
    shape = train.shape[0], period
    sums, efforts = (
        np.bincount(seasons, own, np.prod(shape)).reshape(shape) for own in (values, effort)
    )
    unit = effort.mean()
    # Half an observation more keeps the mean of counts and presences inside their domain.
    extra = 0.0 if family.name == "gaussian" else 0.5
    overall = (sums.sum() + extra) / (efforts.sum() + 2 * extra * unit)
    of_rows = (sums.sum(axis=1) + overall * unit) / (efforts.sum(axis=1) + unit)
    return (sums + of_rows[:, None] * unit) / (efforts + unit)


def baselines_of(baselines: list[Baseline]) -> dict[str, Any]:
    """``baselines_``, with names as in ``cv_results_``."""
    scores = np.array([own.scores for own in baselines])
    return {
        "baseline": np.array([own.name for own in baselines]),
        **{f"split{fold}_test_score": column for fold, column in enumerate(scores.T)},
        "mean_test_score": scores.mean(axis=1),
        "std_test_score": scores.std(axis=1),
        "observed_to_expected": np.array([observed_to_expected(own.sums) for own in baselines]),
    }
