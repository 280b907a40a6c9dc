"""Model and start of a fit."""

from __future__ import annotations

import numpy as np

from .._federation import Federation
from .._messages import label_repr
from .._typing import FloatArray
from ..models._base import Start
from ..models.mixed_effects.conditional import Population, fit_of
from ..models.mixed_effects.maximization import Constants, Theta
from ..models.mixed_effects.model import MixedEffectsModel
from ..models.mixed_effects.subjects import Subjects
from ..models.mixed_effects.transforms import IDENTITY
from .design import Design
from .records import ClientRecords
from .settings import MOST_DIMENSIONS

# Smallest condition number of the covariates' moments that is refused as a dependence.
_DEPENDENT = 1e12
# Start of the error relative to the prediction, or on logarithms.
_RELATIVE = 0.3


def model_of(
    design: Design, data: ClientRecords, federation: Federation, n_nodes: int, n_chains: int
) -> MixedEffectsModel:
    """Model with what clients send once: mean of x xᵀ, and mean number of observations."""
    subjects = data.subjects
    weights = np.repeat(federation.row_weights, federation.lengths)
    x = subjects.covariates
    moment = (weights * x) @ x.T
    _check_covariates(design, moment)
    return MixedEffectsModel(
        structure=design.structure,
        transforms=design.transforms,
        error=design.error,
        layout=design.layout,
        sent=Constants(moment, float(weights @ subjects.n_observations)),
        center=design.start,
        regressors=design.regressors,
        n_observations=len(subjects.response),
        n_nodes=n_nodes,
        n_chains=n_chains,
        criterion="log_likelihood" if len(design.names) <= MOST_DIMENSIONS else "",
    )


def _check_covariates(design: Design, moment: FloatArray) -> None:
    """Raise if covariates are linearly dependent, a constant one included."""
    scale = np.sqrt(np.diagonal(moment))
    scale = np.where(scale > 0, scale, 1.0)
    scaled = moment / scale / scale[:, None]
    for j, name in enumerate(design.names):
        own = np.flatnonzero(design.mask[:, j])
        if np.linalg.cond(scaled[np.ix_(own, own)]) > _DEPENDENT:
            covariates = [design.covariates[k - 1] for k in own[1:]]
            raise ValueError(
                f"Expected covariates of {name!r} that vary and are linearly independent, got "
                f"{covariates}, which are not over all subjects. Leave one out."
            )


def start_of(
    design: Design, model: MixedEffectsModel, data: ClientRecords, federation: Federation
) -> Start:
    """Start at the given values, with large random effects.

    The standard deviation of a random effect is 1 on the scale of its φ; without a transform, it is
    the size of the given value. That of a constant error is the root mean square of the residuals
    at the given values, for which each client sends one number; relative errors start at 0.3.
    """
    sizes = [
        abs(value) or 1.0 if transform is IDENTITY else 1.0
        for transform, value in zip(design.transforms.values(), design.start, strict=True)
    ]
    p, n_covariates = len(sizes), len(design.mask)
    squares = np.full(len(design.error.names), _RELATIVE**2)
    theta = Theta(np.zeros((n_covariates, p)), np.diag(np.square(sizes)), squares)
    population = model.population(model.parameters(theta).natural, data.subjects)
    residuals = _residuals_at_start(design, population, data)
    if "a" in design.error.names and not design.error.is_on_logarithms:
        weights = np.repeat(federation.row_weights, federation.lengths)
        mean = (weights * (residuals**2).sum(axis=0)).sum() / model.sent.n_observations
        squares[0] = mean if mean > 0 else 1.0
    parameters = model.parameters(theta)
    return Start(model.statistics_of(parameters), parameters)


def _residuals_at_start(design: Design, population: Population, data: ClientRecords) -> FloatArray:
    """Residuals at the given values; raise ValueError if these do not explain some subject."""
    subjects: Subjects = data.subjects
    fit = fit_of(population, subjects, population.means)
    wrong = np.flatnonzero(np.isinf(fit.loss))
    if not len(wrong):
        return np.where(subjects.observed, fit.residuals, 0.0)
    client = int(np.searchsorted(data.offsets, wrong[0], side="right")) - 1
    predicted, own = fit.predicted[:, wrong[0]], subjects.observed[:, wrong[0]]
    usable = np.isfinite(predicted) & ((predicted != 0) | (design.error.names != ("b",)))
    place = int(np.flatnonzero(own & ~usable)[0]) if (own & ~usable).any() else 0
    regressors = {name: float(each[place, wrong[0]]) for name, each in subjects.regressors.items()}
    value = np.exp(predicted[place]) if design.error.is_on_logarithms else predicted[place]
    advice = "Correct start or the model"
    if design.error.names == ("b",) or design.error.is_on_logarithms:
        advice = 'Drop observations that are predicted to be 0, or use error="combined"'
    raise ValueError(
        "Expected predictions at start that the error allows for every observation, got "
        f"{value:g} at {regressors} for a subject of client {label_repr(data.ids[client])}. "
        f"{advice}."
    )
