"""One client's matrix or triplets, as an array of numbers or a sparse matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import issparse
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_array

from .._error_messages import plural
from .._typing import IntArray, Table
from .tables import as_numbers, check_dimensions, check_not_masked, is_client_list

GIVE_MATRICES = (
    "Give a list with one sites x months matrix for each client (an array or DataFrame with "
    "missing cells, a sparse matrix of the observed ones, or a 3-D array of several observers), "
    "(site, month, value) triplets with `shape=`, or one matrix alone for a single client."
)
ENCODE_CELLS = (
    "Put names of sites in the index of a DataFrame (set_index); in triplets, number sites and "
    "months from 0. Encode or drop other columns that are not numbers."
)


def holds_clients(X: object) -> bool:
    """Whether X is a list of clients, or a 3-D array of observers."""
    return is_client_list(X) or (not issparse(X) and getattr(X, "ndim", 2) == 3)


def client_matrix(table: Table, whose: str) -> Any:
    """One client's table as a COO array or matrix, or a 2-D or 3-D array of numbers."""
    if issparse(table):
        return _as_coo(table, whose)
    if is_client_list(table):
        raise ValueError(
            f"Expected one table{whose}, got a list of {len(table)} tables. Give each as a client "
            "of its own, or a 3-D array."
        )
    array = as_numbers(table, whose, ENCODE_CELLS)
    check_dimensions(array, (2, 3), f"Expected a 2-D or 3-D table{whose}", GIVE_MATRICES)
    return array


def single_matrix(estimator: BaseEstimator, X: Table) -> Any:
    """One table as a COO array or matrix, or a 2-D array of floats; errors name the estimator."""
    return check_array(
        _as_coo(X) if issparse(X) else as_numbers(X, advice=ENCODE_CELLS),
        accept_sparse=True,
        dtype=[np.float64, np.float32, np.float16],  # markers are compared in this dtype
        ensure_all_finite=False,  # check_values names the cell
        estimator=estimator,
        input_name="X",
    )


def _as_coo(matrix: Any, whose: str = "") -> Any:
    """Sparse matrix in COO format, with the same entries."""
    kind = type(matrix).__name__
    if matrix.ndim != 2:
        raise ValueError(
            f"Expected a 2-D sparse matrix{whose}, got {plural(matrix.ndim, 'dimension')}. "
            f"{GIVE_MATRICES}"
        )
    if matrix.format == "dia" or (matrix.format == "bsr" and matrix.blocksize != (1, 1)):
        raise TypeError(
            f"Expected a sparse format that stores single entries{whose} (COO, CSR, CSC, LIL, "
            f"DOK), got a {kind}, whose padding cannot be told from observed zeros. Build a "
            "coo_array of the observed cells."
        )
    if matrix.dtype.kind not in "biuf":
        why = "Complex data not supported. " if matrix.dtype.kind == "c" else ""
        raise ValueError(
            f"{why}Expected real numbers{whose}, got a {kind} of dtype {matrix.dtype}. Convert "
            "them."
        )
    return matrix.tocoo()


def checked_index(name: str, index: ArrayLike | None, size: int) -> IntArray:
    """Row or column numbers as an array."""
    if index is None:
        return np.arange(size)
    check_not_masked(name, index)
    index = np.atleast_1d(np.asarray(index))
    if not index.size:
        return np.empty(0, dtype=np.intp)
    if index.ndim != 1 or index.dtype.kind not in "iu":
        raise TypeError(
            f"Expected {name} to be a list of integers, the numbers of {name}, got an array of "
            f"dtype {index.dtype} and shape {index.shape}. Give numpy.flatnonzero of a mask."
        )
    outside = index[(index < -size) | (index >= size)]
    if len(outside):
        raise IndexError(
            f"Expected {name} from 0 to {size - 1}, or from -{size} to -1 to count from the end, "
            f"got {outside[0]}."
        )
    return index
