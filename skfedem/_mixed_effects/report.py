"""What sites report about a fitted population: sums over their subjects."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._federation import Federation, Reading, read
from .._parallel import Workers
from .._typing import FloatArray
from ..models.mixed_effects.conditional import find_modes
from ..models.mixed_effects.importance import AT_ONCE, importance_sampled
from ..models.mixed_effects.information import information_of
from ..models.mixed_effects.model import MixedEffectsModel, Parameters
from ..models.mixed_effects.quadrature import conditional
from ..models.mixed_effects.subjects import Subjects


class SiteSums(NamedTuple):
    """Sums over the subjects of a site.

    Attributes
    ----------
    n_subjects : int
    log_likelihood : float
        Σ log p(y; θ) in nats.
    variance : float
        Variance of its error: 0 by quadrature.
    information : ndarray
        Fisher information, see ``information_of``.
    effects, squared_effects : ndarray of shape (p,)
        Σ η̂ and Σ η̂², of the modes.
    """

    n_subjects: int
    log_likelihood: float
    variance: float
    information: FloatArray
    effects: FloatArray
    squared_effects: FloatArray


def sums_of_sites(
    model: MixedEffectsModel,
    federation: Federation,
    parameters: Parameters,
    seed: int,
    workers: Workers,
) -> SiteSums:
    """Sum over all sites of what they report."""
    every = np.arange(federation.n_clients)
    n_rows = model.block_rows if model.criterion else AT_ONCE
    blocks = list(read(federation, every, n_rows))
    assert federation.row_keys is not None  # subjects have labels
    ends = np.cumsum([len(block.rows) for block in blocks])
    keys = np.split(federation.row_keys, ends[:-1])

    def part(numbered: tuple[Reading, NDArray[np.uint64]]) -> SiteSums:
        block, own = numbered
        return sums_of_subjects(model, parameters, model.features(block.rows), seed, own)

    parts = workers.map(part, list(zip(blocks, keys, strict=True)), "report")
    return SiteSums(*(sum(values) for values in zip(*parts, strict=True)))


def sums_of_subjects(
    model: MixedEffectsModel,
    parameters: Parameters,
    subjects: Subjects,
    seed: int,
    keys: NDArray[np.uint64],
) -> SiteSums:
    """What a site reports of some subjects, whose keys address random numbers."""
    population = model.population(parameters.natural, subjects)
    if model.criterion:
        distribution = conditional(population, subjects, model.n_nodes)
        modes, log_likelihood = distribution.modes, distribution.log_likelihood
        variance = np.zeros(1)
    else:
        modes = find_modes(population, subjects)
        draws = importance_sampled(population, subjects, modes, seed, keys)
        log_likelihood, variance = draws.log_likelihood, draws.variance
    effects = population.effects(modes.z)
    return SiteSums(
        subjects.n_subjects,
        float(log_likelihood.sum()),
        float(variance.sum()),
        information_of(model.layout, population, subjects, modes.z),
        effects.sum(axis=1),
        (effects**2).sum(axis=1),
    )
