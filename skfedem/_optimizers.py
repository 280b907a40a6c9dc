"""Steps of first-order optimizers as pure functions of their moments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._serialization import serializable

Array = NDArray[Any]

# Decay of the two moments, and what is added to divisors, as in the paper of Adam.
_FIRST, _SECOND, _TINY = 0.9, 0.999, 1e-8


@serializable
class Moments(NamedTuple):
    """Memory of an optimizer, in the shape of the parameters.

    ``n_steps`` may be an array that broadcasts against them.
    """

    n_steps: Any
    first: Array
    second: Array


def no_moments(shape: tuple[int, ...]) -> Moments:
    """Memory before the first step."""
    return Moments(0, np.zeros(shape), np.zeros(shape))


def sgd(
    moments: Moments, direction: Array, learning_rate: float, momentum: float
) -> tuple[Array, Moments]:
    """Change along an ascent direction, with momentum, and the new memory."""
    velocity = momentum * moments.first + direction
    return learning_rate * velocity, Moments(moments.n_steps + 1, velocity, moments.second)


def adam(
    moments: Moments, direction: Array, learning_rate: float, momentum: float = _FIRST
) -> tuple[Array, Moments]:
    """Change by Adam (Algorithm 1 of Kingma and Ba, ICLR 2015), ascending."""
    n_steps = moments.n_steps + 1
    first = momentum * moments.first + (1 - momentum) * direction
    second = _SECOND * moments.second + (1 - _SECOND) * direction**2
    scale = np.sqrt(second / (1 - _SECOND**n_steps)) + _TINY
    return learning_rate * (first / (1 - momentum**n_steps)) / scale, Moments(
        n_steps, first, second
    )


def adamax(
    moments: Moments, direction: Array, learning_rate: float, momentum: float = _FIRST
) -> tuple[Array, Moments]:
    """Change by AdaMax (Algorithm 2 of Kingma and Ba, ICLR 2015), ascending."""
    n_steps = moments.n_steps + 1
    first = momentum * moments.first + (1 - momentum) * direction
    second = np.maximum(_SECOND * moments.second, np.abs(direction) + _TINY)
    return learning_rate / (1 - momentum**n_steps) * first / second, Moments(n_steps, first, second)


OPTIMIZERS: dict[str, Callable[..., tuple[Array, Moments]]] = {
    "sgd": sgd,
    "adam": adam,
    "adamax": adamax,
}
