"""What the oldest supported versions of numpy and scipy do otherwise, and nothing else.

Everything that a rise of the lower bounds in ``pyproject.toml`` would make superfluous stands here.
"""

from __future__ import annotations

import inspect

import numpy as np
from scipy.sparse.linalg import cg

# scipy < 1.12 calls it `tol`.
_RELATIVE = "rtol" if "rtol" in inspect.signature(cg).parameters else "tol"


def conjugate_gradients(matrix, right, *, rtol, maxiter, M, callback):
    """``scipy.sparse.linalg.cg`` of these arguments: the solution, and how it ended.

    Parameters
    ----------
    matrix, M : LinearOperator of shape (q, q)
        Of the system, and of its preconditioner.
    right : ndarray of shape (q,)
    rtol : float
        Ends where the norm of the residual is at most `rtol` times that of `right`.
    maxiter : int
    callback : callable
        Called with the solution so far after each step.
    """
    # Without `atol`, scipy < 1.12 warns.
    return cg(matrix, right, **{_RELATIVE: rtol}, atol=0.0, maxiter=maxiter, M=M, callback=callback)


def divide_in_place(values, divisors):
    """Divide `values`, in place, by positive `divisors` that no quotient overflows with."""
    # numpy 1.26 fills the last vector register up with ones and divides these too: where a divisor
    # is subnormal, that raises the overflow flag although all quotients are right.
    with np.errstate(over="ignore"):
        np.divide(values, divisors, out=values)
