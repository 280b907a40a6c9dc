"""Residual errors: the distribution of a response given its prediction f.

============  =======================================  ==========================
name          response                                 squares
============  =======================================  ==========================
constant      y = f + a ε                              a²
proportional  y = f + b f ε                            b²
combined      y = f + a ε + b f ε'                     a², b²
exponential   y = f exp(a ε)                           a²
============  =======================================  ==========================

ε and ε' are standard normal and independent. The M-step estimates squares: each is the sum of its
statistic over all observations, divided by their number. The statistics are r², (r / f)² and, for
"combined", the conditional expectations of u² and e² given r = u + f e, with u ~ N(0, a²) and
e ~ N(0, b²)::

    E[u² | r] = (r a² / v)² + a² b² f² / v        v = a² + b² f²
    E[e² | r] = (r f b² / v)² + a² b² / v

With "exponential", r = log y - log f: all functions take the logarithms of y and f there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..._typing import FloatArray

Squares = Any
"""a², b² as arrays that broadcast with the predictions, along the first axis."""


class ResidualError(NamedTuple):
    """A distribution of responses.

    Attributes
    ----------
    names : tuple of str
        Names of the roots of the squares.
    variance : callable
        ``variance(f, squares)``, v = Var[y | f].
    variance_slope : callable
        ``variance_slope(f, squares)``, dv/df.
    statistics : callable
        ``statistics(r, f, squares)``, a list of the statistic of each square, r being y - f.
    is_on_logarithms : bool
        Whether y and f are logarithms of the response and the prediction.
    """

    names: tuple[str, ...]
    variance: Callable[[FloatArray, Squares], Any]
    variance_slope: Callable[[FloatArray, Squares], Any]
    statistics: Callable[[FloatArray, FloatArray, Squares], list[FloatArray]]
    is_on_logarithms: bool = False


def _augmented(r: FloatArray, f: FloatArray, squares: Squares) -> list[FloatArray]:
    """E[u² | r] and E[e² | r]."""
    a2, b2 = squares
    v = a2 + b2 * f**2
    return [(r * a2 / v) ** 2 + a2 * b2 * f**2 / v, (r * f * b2 / v) ** 2 + a2 * b2 / v]


_CONSTANT = ResidualError(
    names=("a",),
    variance=lambda f, squares: squares[0],
    variance_slope=lambda f, squares: 0.0,
    statistics=lambda r, f, squares: [r**2],
)
ERRORS = {
    "constant": _CONSTANT,
    "proportional": ResidualError(
        names=("b",),
        variance=lambda f, squares: squares[0] * f**2,
        variance_slope=lambda f, squares: 2 * squares[0] * f,
        statistics=lambda r, f, squares: [(r / f) ** 2],
    ),
    "combined": ResidualError(
        names=("a", "b"),
        variance=lambda f, squares: squares[0] + squares[1] * f**2,
        variance_slope=lambda f, squares: 2 * squares[1] * f,
        statistics=_augmented,
    ),
    "exponential": _CONSTANT._replace(is_on_logarithms=True),
}


def minus_log_density(r: FloatArray, f: FloatArray, squares: Squares, error: ResidualError) -> Any:
    """``½ r² / v + ½ log v``, elementwise: minus log p(y | f) up to ``½ log 2π``."""
    v = error.variance(f, squares)
    return 0.5 * (r**2 / v + np.log(v))


def score(r: FloatArray, f: FloatArray, squares: Squares, error: ResidualError) -> Any:
    """Derivative of log p(y | f) in f."""
    v = error.variance(f, squares)
    bend = error.variance_slope(f, squares) / v
    return r / v + 0.5 * bend * (r**2 / v - 1)


def information(f: FloatArray, squares: Squares, error: ResidualError) -> Any:
    """Fisher information about f of one observation, ``1 / v + ½ (v' / v)²``."""
    v = error.variance(f, squares)
    return 1 / v + 0.5 * (error.variance_slope(f, squares) / v) ** 2
