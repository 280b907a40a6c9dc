"""What sites report about a fitted population: sums over their subjects."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._federation import ClientRows, offsets_of, positions_of, read
from .._typing import FloatArray, IntArray
from ..models.mixed_effects.conditional import find_modes
from ..models.mixed_effects.importance import AT_ONCE, importance_sampled
from ..models.mixed_effects.information import information_of
from ..models.mixed_effects.model import MixedEffectsModel
from ..models.mixed_effects.quadrature import conditional
from ..models.mixed_effects.subjects import Subjects
from ..solvers.base import Clients


class SiteSums(NamedTuple):
    """Sums over the subjects of a site, or of all sites.

    Attributes
    ----------
    n_subjects : int
    log_likelihood : float
        Σ log p(y; θ) in nats.
    variance : float
        Variance of its error: 0 by quadrature.
    effects, squared_effects : ndarray of shape (p,)
        Σ η̂ and Σ η̂², of the modes.
    information : ndarray
        Fisher information, see ``information_of``.
    """

    n_subjects: int
    log_likelihood: float
    variance: float
    effects: FloatArray
    squared_effects: FloatArray
    information: FloatArray


def sums_of_sites(
    model: MixedEffectsModel, clients: Clients, natural: FloatArray, seed: int
) -> SiteSums:
    """Sum over all sites of what they report."""
    numbers, p = clients.sum(site_sums, model, natural, seed), model.layout.n_parameters
    n_subjects, log_likelihood, variance = numbers[:3].tolist()
    effects, squared_effects = numbers[3 : 3 + 2 * p].reshape(2, p)
    # A symmetric matrix.
    n_upper = len(numbers) - 3 - 2 * p
    size = int(np.sqrt(2 * n_upper))
    information = np.zeros((size, size))
    rows, columns = np.triu_indices(size)
    information[rows, columns] = information[columns, rows] = numbers[3 + 2 * p :]
    return SiteSums(
        int(n_subjects), log_likelihood, variance, effects, squared_effects, information
    )


def site_sums(
    rows: ClientRows, model: MixedEffectsModel, natural: FloatArray, seed: int
) -> FloatArray:
    """``SiteSums`` over the subjects of each client, as a vector."""
    federation, clients, _ = rows
    n_rows = model.block_rows if model.criterion else AT_ONCE
    lengths = federation.lengths_of(clients)
    assert federation.row_keys is not None  # subjects have labels
    keys, first = federation.row_keys[positions_of(federation.offsets[clients], lengths)], 0
    blocks = []
    for group, block, in_block, _ in read(federation, clients, n_rows):
        own = keys[first : first + len(block)]
        subjects = model.features(block)
        blocks.append((group, _sums_of_subjects(model, natural, subjects, seed, own, in_block)))
        first += len(own)
    sums = np.zeros((len(clients), blocks[0][1].shape[1]))
    for group, of_block in blocks:
        sums[group] += of_block
    return sums


def _sums_of_subjects(
    model: MixedEffectsModel,
    natural: FloatArray,
    subjects: Subjects,
    seed: int,
    keys: NDArray[np.uint64],
    lengths: IntArray,
) -> FloatArray:
    """The vectors of clients with so many subjects each, whose keys address random numbers."""
    population = model.population(natural, subjects)
    if model.criterion:
        distribution = conditional(population, subjects, model.n_nodes)
        modes, log_likelihood = distribution.modes, distribution.log_likelihood
        variance = np.zeros(1)
    else:
        modes = find_modes(population, subjects)
        draws = importance_sampled(population, subjects, modes, seed, keys)
        log_likelihood, variance = draws.log_likelihood, draws.variance
    effects = population.effects(modes.z)
    variance = np.broadcast_to(variance, log_likelihood.shape)
    values = np.concatenate(
        [[np.ones_like(variance), log_likelihood, variance], effects, effects**2]
    )
    offsets = offsets_of(lengths)
    triangles = []
    for own in map(slice, offsets[:-1], offsets[1:]):
        at_site = population.take(own), subjects.take(own), modes.z[:, own]
        information = information_of(model.layout, *at_site)
        triangles.append(information[np.triu_indices(len(information))])
    return np.hstack([np.add.reduceat(values, offsets[:-1], axis=1).T, triangles])
