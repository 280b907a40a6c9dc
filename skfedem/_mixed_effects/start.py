"""Model and start of a fit, from messages of the clients before the first round."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from .._typing import FloatArray
from ..models._base import Start
from ..models.mixed_effects.maximization import Constants, Theta
from ..models.mixed_effects.messages import covariate_moments, squared_residuals
from ..models.mixed_effects.model import MixedEffectsModel
from ..models.mixed_effects.transforms import IDENTITY
from ..solvers.base import Clients
from .design import Design
from .settings import MOST_DIMENSIONS

# Smallest condition number of the covariates' moments that is refused as a dependence.
_DEPENDENT = 1e12
# Start of the error relative to the prediction, or on logarithms.
_RELATIVE = 0.3


def model_of(
    design: Design, n_observations: int, n_nodes: int, n_chains: int = 1
) -> MixedEffectsModel:
    """Model for rows with places for n observations, without what clients send once."""
    return MixedEffectsModel(
        structure=design.structure,
        transforms=design.transforms,
        error=design.error,
        layout=design.layout,
        sent=Constants(np.eye(len(design.mask)), 1.0),
        center=design.start,
        regressors=design.regressors,
        n_observations=n_observations,
        n_nodes=n_nodes,
        n_chains=n_chains,
        criterion="log_likelihood" if len(design.names) <= MOST_DIMENSIONS else "",
    )


def with_constants(design: Design, model: MixedEffectsModel, clients: Clients) -> MixedEffectsModel:
    """Model with the means of x xᵀ and of the number of observations, which all clients get."""
    numbers = clients.mean(covariate_moments, model)
    clients.tell("means", len(numbers))
    moment = np.ones((model.layout.n_covariates, model.layout.n_covariates))
    rows, columns = np.triu_indices(len(moment))
    moment[rows[1:], columns[1:]] = moment[columns[1:], rows[1:]] = numbers[1:]
    _check_covariates(design, moment)
    return replace(model, sent=Constants(moment, float(numbers[0])))


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


def start_of(design: Design, model: MixedEffectsModel, clients: Clients, labels: Any) -> Start:
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
    natural = model.parameters(theta).natural
    (total,) = clients.mean(squared_residuals, model, natural, list(labels))
    if "a" in design.error.names and not design.error.is_on_logarithms:
        mean = float(total) / model.sent.n_observations
        squares[0] = mean if mean > 0 else 1.0
    parameters = model.parameters(theta)
    return Start(model.statistics_of(parameters), parameters)
