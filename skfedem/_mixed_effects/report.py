"""What sites report about a fitted population: sums over their subjects."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .._federation import Federation, read
from .._parallel import Workers
from .._typing import FloatArray
from ..models.mixed_effects.information import information_of
from ..models.mixed_effects.model import MixedEffectsModel, Parameters
from ..models.mixed_effects.quadrature import conditional


class SiteSums(NamedTuple):
    """Sums over the subjects of a site.

    Attributes
    ----------
    n_subjects : int
    log_likelihood : float
        Σ log p(y; θ) in nats.
    information : ndarray
        Fisher information, see ``information_of``.
    effects, squared_effects : ndarray of shape (p,)
        Σ η̂ and Σ η̂², of the modes.
    """

    n_subjects: int
    log_likelihood: float
    information: FloatArray
    effects: FloatArray
    squared_effects: FloatArray


def sums_of_sites(
    model: MixedEffectsModel, federation: Federation, parameters: Parameters, workers: Workers
) -> SiteSums:
    """Sum over all sites of what they report."""
    every = np.arange(federation.n_clients)
    blocks = list(read(federation, every, model.block_rows))
    parts = workers.map(
        lambda block: sums_of_subjects(model, parameters, block.rows), blocks, "report"
    )
    return SiteSums(*(sum(values) for values in zip(*parts, strict=True)))


def sums_of_subjects(
    model: MixedEffectsModel, parameters: Parameters, rows: FloatArray
) -> SiteSums:
    """What a site reports of some packed subjects."""
    subjects = model.features(rows)
    population = model.population(parameters.natural, subjects)
    distribution = conditional(population, subjects, model.n_nodes)
    z = distribution.modes.z
    effects = population.effects(z)
    return SiteSums(
        subjects.n_subjects,
        float(distribution.log_likelihood.sum()),
        information_of(model.layout, population, subjects, z),
        effects.sum(axis=1),
        (effects**2).sum(axis=1),
    )
