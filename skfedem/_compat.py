"""Differences of the oldest supported versions, and private functions of scikit-learn.

Everything that raising the lower bounds in ``pyproject.toml`` would make unnecessary is here.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, cg, eigsh
from sklearn.base import BaseEstimator
from sklearn.utils import _safe_indexing
from sklearn.utils._set_output import _wrap_data_with_container
from sklearn.utils.validation import _num_samples

from ._typing import FloatArray, IntArray, Transformed

_Table = TypeVar("_Table")

# scipy < 1.12 calls it `tol`.
_RELATIVE = "rtol" if "rtol" in inspect.signature(cg).parameters else "tol"
# ARPACK in scipy < 1.17 has a global random state, initialised equally in every process.
SEEDED_ARPACK = "rng" in inspect.signature(eigsh).parameters


def in_container(
    estimator: BaseEstimator, array: NDArray[Any], table: object = None
) -> Transformed:
    """The result of `transform` for one table, in the container that ``set_output`` requests.

    If the table is given, its index is kept.
    """
    return _wrap_data_with_container("transform", array, table, estimator)


def in_containers(
    estimator: BaseEstimator, arrays: Iterable[NDArray[Any]], tables: Iterable[object]
) -> tuple[Transformed, ...]:
    """As ``in_container``, for each table of a list: scikit-learn only wraps the first."""
    pairs = zip(arrays, tables, strict=True)
    return tuple(in_container(estimator, array, table) for array, table in pairs)


def parameter_names(kind: type) -> list[str]:
    """Names of the parameters in the signature of a class; none if it is not an estimator."""
    return kind._get_param_names() if hasattr(kind, "_get_param_names") else []


def row_count(table: object) -> int:
    """Number of rows of a table of any type, including a list of rows."""
    return _num_samples(table)


def rows_of(table: _Table, positions: IntArray) -> _Table:
    """Copy of a table's rows by position, as a table of the same type."""
    return _safe_indexing(table, positions)


def conjugate_gradients(
    matrix: LinearOperator, right: FloatArray, *, rtol: float, **options: Any
) -> tuple[FloatArray, int]:
    """``scipy.sparse.linalg.cg`` with these arguments: the solution and the exit status."""
    # Without `atol`, scipy < 1.12 warns.
    return cg(matrix, right, **{_RELATIVE: rtol}, atol=0.0, **options)


def dominant_eigenvectors(
    matrix: LinearOperator, k: int, *, v0: FloatArray, generator: np.random.Generator
) -> FloatArray:
    """``scipy.sparse.linalg.eigsh``: eigenvectors of the k largest eigenvalues, ascending.

    The generator draws directions if there are fewer than k distinct eigenvalues.
    """
    seeded = {"rng": generator} if SEEDED_ARPACK else {}
    return eigsh(matrix, k, v0=v0, **seeded)[1]


def divide_in_place(values: FloatArray, divisors: FloatArray) -> None:
    """Divide `values` in place by positive `divisors`, if no quotient overflows."""
    # numpy 1.26 pads the last vector register with ones and divides these too, which may raise the
    # overflow flag for subnormal divisors although all quotients are right.
    with np.errstate(over="ignore"):
        np.divide(values, divisors, out=values)
