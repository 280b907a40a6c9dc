"""What the oldest supported versions do differently, and what scikit-learn has no public name for.

Everything that higher lower bounds in ``pyproject.toml`` would make superfluous is here.
"""

from __future__ import annotations

import inspect

import numpy as np
from scipy.sparse.linalg import cg, eigsh
from sklearn.utils import _safe_indexing
from sklearn.utils._set_output import _wrap_data_with_container
from sklearn.utils.validation import _num_samples

# scipy < 1.12 calls it `tol`.
_RELATIVE = "rtol" if "rtol" in inspect.signature(cg).parameters else "tol"
# The ARPACK of scipy < 1.17 has a state of its own, which is the same at the start of any process.
SEEDED_ARPACK = "rng" in inspect.signature(eigsh).parameters


def in_container(estimator, array, table=None):
    """What ``set_output`` asks for, of the array that `transform` makes of a table.

    Its rows are named as those of the table, if that is given.
    """
    return _wrap_data_with_container("transform", array, table, estimator)


def in_containers(estimator, arrays, tables):
    """As ``in_container``, for the tables of a list: scikit-learn does so for the first alone."""
    pairs = zip(arrays, tables, strict=True)
    return tuple(in_container(estimator, array, table) for array, table in pairs)


def parameter_names(kind):
    """Names of the parameters in a class's own signature; none for what is no estimator."""
    return kind._get_param_names() if hasattr(kind, "_get_param_names") else []


def row_count(table):
    """Number of rows of a table of any kind, also of one written as a list of rows."""
    return _num_samples(table)


def rows_of(table, positions):
    """Copy of a table's rows by their numbers, a table of the same kind."""
    return _safe_indexing(table, positions)


def conjugate_gradients(matrix, right, *, rtol, **options):
    """``scipy.sparse.linalg.cg`` of these arguments: the solution, and how it ended."""
    # Without `atol`, scipy < 1.12 warns.
    return cg(matrix, right, **{_RELATIVE: rtol}, atol=0.0, **options)


def dominant_eigenvectors(matrix, k, *, v0, generator):
    """``scipy.sparse.linalg.eigsh``: eigenvectors of the k largest eigenvalues, those ascending.

    The generator is for directions that are drawn where there are less than k distinct eigenvalues.
    """
    seeded = {"rng": generator} if SEEDED_ARPACK else {}
    return eigsh(matrix, k, v0=v0, **seeded)[1]


def divide_in_place(values, divisors):
    """Divide `values`, in place, by positive `divisors` that no quotient overflows with."""
    # numpy 1.26 fills the last vector register up with ones and divides these too: where a divisor
    # is subnormal, that raises the overflow flag although all quotients are right.
    with np.errstate(over="ignore"):
        np.divide(values, divisors, out=values)
