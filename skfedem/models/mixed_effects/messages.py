"""What clients of a population send before the first round: functions of their own subjects.

Each takes the ``ClientRows`` of some clients, and returns one message per client. The server learns
nothing else of the subjects.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._error_messages import label_repr
from ..._federation import ClientRows, read
from ..._typing import FloatArray
from .conditional import Fit, fit_of
from .model import MixedEffectsModel
from .subjects import Subjects


def covariate_moments(rows: ClientRows, model: MixedEffectsModel) -> FloatArray:
    """Each client's mean number of observations, and mean of x xᵀ without its first entry, 1."""
    federation, clients, _ = rows
    one, other = (places[1:] for places in np.triu_indices(model.layout.n_covariates))
    sums = np.zeros((len(clients), 1 + len(one)))
    for group, block, lengths, _ in read(federation, clients, model.block_rows):
        subjects = model.features(block)
        x = subjects.covariates
        values = np.concatenate([subjects.n_observations[None], x[one] * x[other]])
        sums[group] += np.add.reduceat(values, np.cumsum(lengths) - lengths, axis=1).T
    return sums / federation.lengths_of(clients)[:, None]


def squared_residuals(
    rows: ClientRows, model: MixedEffectsModel, natural: FloatArray, labels: list[Any]
) -> FloatArray:
    """Each client's mean over its subjects of their sums of squared residuals at η = 0.

    Raises ValueError if some prediction is of no use; ``labels`` are those of all clients.
    """
    federation, clients, ids = rows
    sums = np.zeros((len(clients), 1))
    for group, block, lengths, _ in read(federation, clients, model.block_rows):
        subjects = model.features(block)
        population = model.population(natural, subjects)
        fit = fit_of(population, subjects, population.means)
        wrong = np.flatnonzero(np.isinf(fit.loss))
        if len(wrong):
            owner = np.repeat(ids[group], lengths)[wrong[0]]
            raise _useless(model, subjects, fit, int(wrong[0]), labels[owner])
        squares = np.where(subjects.observed, fit.residuals, 0.0) ** 2
        starts = np.cumsum(lengths) - lengths
        sums[group, 0] += np.add.reduceat(squares.sum(axis=0), starts)
    return sums / federation.lengths_of(clients)[:, None]


def _useless(
    model: MixedEffectsModel, subjects: Subjects, fit: Fit, subject: int, label: Any
) -> ValueError:
    """Error for a subject whose responses are impossible at the start."""
    error = model.error
    predicted, own = fit.predicted[:, subject], subjects.observed[:, subject]
    usable = np.isfinite(predicted) & ((predicted != 0) | (error.names != ("b",)))
    place = int(np.flatnonzero(own & ~usable)[0]) if (own & ~usable).any() else 0
    regressors = {name: float(each[place, subject]) for name, each in subjects.regressors.items()}
    value = np.exp(predicted[place]) if error.is_on_logarithms else predicted[place]
    advice = "Correct start or the model"
    if error.names == ("b",) or error.is_on_logarithms:
        advice = 'Drop observations that are predicted to be 0, or use error="combined"'
    return ValueError(
        "Expected predictions at start that the error allows for every observation, got "
        f"{value:g} at {regressors} for a subject of client {label_repr(label)}. {advice}."
    )
