"""Types shared by many signatures, and a decorator that preserves types.

Docstrings describe shapes and meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import sparray, spmatrix
from sklearn.utils import metaestimators

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.integer[Any]]
BoolArray = NDArray[np.bool_]

# ---- what users give


class OneTable(Protocol):
    """An array or a DataFrame, that is one table, as opposed to a list of tables."""

    def __array__(self) -> NDArray[Any]: ...


ClientsLike = ArrayLike | Sequence[ArrayLike]
"""One table, or a list with one table for each client."""

Table = Any
"""One array, DataFrame, sparse matrix or list of rows, as users give it, before it is validated."""

RowWeights = ArrayLike | Sequence[ArrayLike]
"""Weights of the rows of one table, or a list of them for the clients."""

Shape = tuple[int | ArrayLike, int | ArrayLike]
"""Numbers of rows and columns of a matrix, or their names."""

MatricesLike = ArrayLike | sparray | spmatrix | Sequence[ArrayLike | sparray | spmatrix]
"""One matrix with missing cells, or a list of clients."""

Seed = int | np.random.RandomState | None
FilePath = str | PathLike[str]

Participation = float | int
"""Probability that a client takes part in a round, or, if an int, so many clients a round."""

CovarianceType = Literal["full", "tied", "diag", "spherical"]
FamilyName = Literal["gaussian", "bernoulli", "poisson", "negative_binomial"]
EffectsName = Literal["both", "rows", "columns", "none"]
InitParams = Literal["kmeans", "k-means++", "random_from_data", "random"]
SolverName = Literal["fedem", "vr_fedem"]
CompressorName = Literal["dithering", "block", "rand_k"]
ControlInit = Literal["field", "zeros"]
ClientWeights = Literal["n_samples", "uniform"]
RowsName = Literal["shared", "disjoint"]
Schedule = Callable[[int], float]
"""Maps the round number, counted from 1, to γ."""

StepSize = float | Literal["auto"] | Schedule

# ---- what they get

ByClient = FloatArray | tuple[FloatArray, ...]
"""Numbers for each row: an array for one table, a tuple of arrays for a list of clients."""

LabelsByClient = IntArray | tuple[IntArray, ...]
"""A label for each row, likewise."""

Transformed = Any
"""One table, or a tuple of tables for a list of clients, of the type chosen by set_output."""

# ---- methods under a decorator of scikit-learn, which has no types of its own

Method = TypeVar("Method", bound=Callable[..., Any])


def available_if(check: Callable[[Any], bool]) -> Callable[[Method], Method]:
    """scikit-learn's decorator, with the type of the method preserved."""
    return metaestimators.available_if(check)
