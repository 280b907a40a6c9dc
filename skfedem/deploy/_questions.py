"""What a server may ask: messages before the first round, with the shape of what they return."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .._federation import ClientMessage
from .._typing import FloatArray
from ..models.mixture import assignment, messages
from ..models.mixture.linear_algebra import n_moments
from ..preprocessing import _moments
from ..solvers.messages import EncodedMessage
from ._messages import Refused

# Number of conditional expectations, whether there is a log-likelihood, and the number of numbers
# for the history; then these, and the encoded message.
ROUND = struct.Struct("<QBH")
# Larger numbers are errors: their squares would overflow.
_LARGEST = 1e150


class SetUpQuestion(NamedTuple):
    """A message that clients send before the first round.

    Attributes
    ----------
    message : callable
        Function of ``ClientRows`` and further arguments.
    shape : callable
        ``shape(d, *arguments)`` is the shape of a client's message for d features.
    init : str
        Value of ``init_params`` that needs this message; "" if all do.
    at_most : bool
        Whether messages may have fewer rows.
    """

    message: ClientMessage
    shape: Callable[..., tuple[int, ...]]
    init: str = ""
    at_most: bool = False


def _mixture_questions() -> list[SetUpQuestion]:
    def statistics(d: int, model: Any, *_: Any) -> tuple[int, ...]:
        return (model.n_statistics,)

    return [
        SetUpQuestion(messages.mean_of_rows, lambda d: (d,)),
        SetUpQuestion(messages.second_moment, lambda d, center, matrix: (n_moments(d, matrix),)),
        SetUpQuestion(messages.statistics_of_nearest, statistics),
        SetUpQuestion(messages.expected_statistics, statistics),
        SetUpQuestion(messages.random_statistics, statistics, "random"),
        SetUpQuestion(
            assignment.centroids_of_rows, lambda d, n, seed: (n, 1 + d), "kmeans", at_most=True
        ),
        SetUpQuestion(assignment.row_far_from, lambda d, *_: (d,), "k-means++"),
        SetUpQuestion(
            assignment.squared_distances, lambda d, centers, tried: (len(tried),), "k-means++"
        ),
        SetUpQuestion(assignment.random_rows, lambda d, size, seed: (size, d), "random_from_data"),
    ]


def _moments_questions() -> list[SetUpQuestion]:
    def of_scatter(d: int, center: FloatArray, scatter: _moments.Scatter) -> tuple[int, ...]:
        return (d + {"products": n_moments(d, True), "squares": d, None: 0}[scatter],)

    return [
        SetUpQuestion(_moments.counts, lambda d: (2 + d,)),
        SetUpQuestion(_moments.counts_and_sums, lambda d: (2 + 2 * d,)),
        SetUpQuestion(_moments.centred_sums, of_scatter),
    ]


SET_UP = {own.message.__name__: own for own in _mixture_questions() + _moments_questions()}
"""Questions by the name of their message; clients answer no others."""


def numbers(body: bytes, shape: tuple[int, ...], *, at_most: bool = False) -> FloatArray:
    """Array of finite numbers in a message; nothing is allocated unless its length is right."""
    size = 8 * int(np.prod(shape))
    unit = 8 * int(np.prod(shape[1:]))
    if len(body) != size and not (at_most and len(body) < size and len(body) % unit == 0):
        raise Refused(f"length: expected {size} bytes, got {len(body)}")
    values = np.frombuffer(body, "<f8")
    check_values(values)
    return values.reshape(-1, *shape[1:]).astype(np.float64)


def check_values(values: FloatArray) -> None:
    """Refuse numbers that are not finite, or too large."""
    largest = np.abs(values).max(initial=0.0)
    if not np.isfinite(largest):  # also if one is NaN
        raise Refused("not finite")
    if largest > _LARGEST:
        raise Refused(f"too large: {largest:.3g}")


def message_to_bytes(message: EncodedMessage) -> bytes:
    """Reply in a round."""
    numbers = [own for own in (message.log_likelihood, message.reported) if own is not None]
    has_likelihood = message.log_likelihood is not None
    n_reported = 0 if message.reported is None else message.reported.size
    head = ROUND.pack(message.n_expectations, has_likelihood, n_reported)
    values = np.concatenate([own.ravel() for own in numbers] or [np.empty(0)])
    return head + values.astype("<f8").tobytes() + message.content.tobytes()


def message_from_bytes(body: bytes, most_expectations: int) -> EncodedMessage:
    """Inverse of ``message_to_bytes``."""
    if len(body) < ROUND.size:
        raise Refused("length")
    n_expectations, has_likelihood, n_reported = ROUND.unpack_from(body)
    if n_expectations > most_expectations or has_likelihood > 1:
        raise Refused("too large: number of conditional expectations")
    start, n_numbers = ROUND.size, has_likelihood + n_reported
    content = body[start + 8 * n_numbers :]
    values = numbers(body[start : start + 8 * n_numbers], (n_numbers,))
    return EncodedMessage(
        np.frombuffer(content, np.uint8),
        n_expectations,
        values[:1] if has_likelihood else None,
        reported=values[None, has_likelihood:] if n_reported else None,
    )
