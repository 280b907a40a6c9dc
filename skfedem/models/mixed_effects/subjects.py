"""Subjects of a population, packed: one row of a federation each."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..._typing import BoolArray, FloatArray


class Subjects(NamedTuple):
    """Measurements of N subjects, padded to n observations each.

    Sums over observations run along the first axis, one by one: what is padded adds an exact zero.

    Attributes
    ----------
    response : ndarray of shape (n, N)
        y; 0 where nothing was observed.
    observed : ndarray of bool, shape (n, N)
    regressors : dict of ndarray of shape (n, N)
        Those of the last observation, where it is padded.
    covariates : ndarray of shape (c, N)
        x; the first row is 1.
    """

    response: FloatArray
    observed: BoolArray
    regressors: dict[str, FloatArray]
    covariates: FloatArray

    @property
    def n_subjects(self) -> int:
        """Number of subjects, N."""
        return self.response.shape[1]

    @property
    def n_observations(self) -> FloatArray:
        """Number of observations of each subject."""
        return self.observed.sum(axis=0).astype(float)

    def take(self, positions: Any) -> Subjects:
        """Some of the subjects."""
        return Subjects(
            self.response[:, positions],
            self.observed[:, positions],
            {name: values[:, positions] for name, values in self.regressors.items()},
            self.covariates[:, positions],
        )


def pack(subjects: Subjects) -> FloatArray:
    """Rows of shape (N, (2 + n_regressors) n + c - 1), from which ``unpack`` makes subjects."""
    columns = [subjects.response, subjects.observed.astype(float), *subjects.regressors.values()]
    return np.concatenate([*columns, subjects.covariates[1:]]).T.copy()


def unpack(rows: NDArray[Any], n_observations: int, regressors: tuple[str, ...]) -> Subjects:
    """Subjects of packed rows, with n observations each, and names of their regressors."""
    columns = np.ascontiguousarray(np.asarray(rows, dtype=np.float64).T)
    n_blocks = 2 + len(regressors)
    blocks = columns[: n_blocks * n_observations].reshape(n_blocks, n_observations, -1)
    given = columns[n_blocks * n_observations :]
    return Subjects(
        response=blocks[0],
        observed=blocks[1] > 0,
        regressors=dict(zip(regressors, blocks[2:], strict=True)),
        covariates=np.concatenate([np.ones((1, columns.shape[1])), given]),
    )


def sum_in_order(values: FloatArray) -> FloatArray:
    """Sum along the first axis, one by one."""
    # In other layouts, or for a single column, NumPy sums in another order.
    values = np.ascontiguousarray(values)
    if values[0].size > 1:
        return values.sum(axis=0)
    return np.add.accumulate(values, axis=0)[-1]
