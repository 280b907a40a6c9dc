"""A table of subjects, with the fitted population for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from .._data.long_tables import columns_of
from .._random import label_keys
from .._typing import FloatArray
from ..models.mixed_effects.conditional import Population, find_modes
from ..models.mixed_effects.importance import AT_ONCE, Sampled, importance_sampled
from ..models.mixed_effects.maximization import Theta
from ..models.mixed_effects.model import MixedEffectsModel
from ..models.mixed_effects.quadrature import conditional
from ..models.mixed_effects.subjects import Subjects
from .design import Design
from .records import Records, packed, read_table
from .start import model_of


class SubjectTable(NamedTuple):
    """Subjects of a table, and the fitted population for them."""

    records: Records
    subjects: Subjects
    population: Population
    model: MixedEffectsModel

    def in_rows(self, values: FloatArray) -> FloatArray:
        """Values (..., n, N) in the order of the rows of the table, (..., n_rows)."""
        lengths = self.records.lengths
        has_row = np.arange(values.shape[-2])[:, None] < lengths
        result = np.empty((*values.shape[:-2], len(self.records.order)))
        result[..., self.records.order] = np.swapaxes(values, -1, -2)[..., has_row.T]
        return result

    def log_likelihoods(self) -> FloatArray:
        """Log p(y) of each subject."""
        if self.model.criterion:
            return conditional(self.population, self.subjects, self.model.n_nodes).log_likelihood
        return np.concatenate([draws.log_likelihood for _, draws in self._draws()])

    def mean_parameters(self) -> list[FloatArray]:
        """E[h(φ) | y] of each subject, parameter after parameter."""
        if self.model.criterion:
            distribution = conditional(self.population, self.subjects, self.model.n_nodes)
            phi = self.population.means[:, None] + distribution.effects
            return self._means(phi, distribution.weights)
        blocks = [self._means(own.gaussian(draws.z), draws.weights) for own, draws in self._draws()]
        return [np.concatenate(values) for values in zip(*blocks, strict=True)]

    def _means(self, phi: FloatArray, weights: FloatArray) -> list[FloatArray]:
        transforms = self.population.transforms.values()
        pairs = zip(transforms, phi, strict=True)
        return [(weights * transform.to_subject(own)).sum(axis=0) for transform, own in pairs]

    def _draws(self) -> Iterator[tuple[Population, Sampled]]:
        """Draws for some subjects at a time, and the population for these."""
        keys = label_keys(self.records.labels)
        for first in range(0, len(keys), AT_ONCE):
            some = np.arange(first, min(first + AT_ONCE, len(keys)))
            population, subjects = self.population.take(some), self.subjects.take(some)
            modes = find_modes(population, subjects)
            yield population, importance_sampled(population, subjects, modes, 0, keys[some])

    def on_response(self, predicted: FloatArray) -> FloatArray:
        """Predictions or responses from their logarithms, if the error has these."""
        return np.exp(predicted) if self.population.error.is_on_logarithms else predicted


def read_subjects(X: Any, design: Design, theta: Theta, n_nodes: int) -> SubjectTable:
    """Subjects of one table, whose responses may be missing."""
    records = read_table(columns_of(X), design, "", drop_missing=False)
    if not len(records.labels):
        raise ValueError("Expected a table with rows, got none. Give the rows of a subject.")
    subjects = packed(records, int(records.lengths.max()))
    model = model_of(design, len(subjects.response), n_nodes)
    population = model.population(design.layout.join(*theta), subjects)
    return SubjectTable(records, subjects, population, model)
