"""What a server may ask: messages before the first round, with the shape of what they return."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .._cells import cell_codes
from .._federation import ClientMessage
from .._imputer.residuals import pearson_products
from .._mixed_effects.report import site_sums
from .._typing import FloatArray, IntArray
from ..models.matrix import encoding
from ..models.matrix import messages as matrix_messages
from ..models.mixed_effects import messages as population_messages
from ..models.mixed_effects.model import MixedEffectsModel
from ..models.mixture import assignment, messages
from ..models.mixture.linear_algebra import n_moments
from ..preprocessing import _moments
from ..solvers.messages import EncodedMessage
from ._messages import Refused

# Number of conditional expectations, whether there is a log-likelihood, and the number of numbers
# for the history; then these, and the encoded message.
ROUND = struct.Struct("<QBH")
# Larger numbers are errors: their squares would overflow, those of updates in single precision.
LARGEST = 1e150
LARGEST_UPDATE = 1e18


class Gathered(NamedTuple):
    """How messages become bytes that the server does not sum, but keeps.

    Attributes
    ----------
    encode : callable
        ``encode(message, shape)`` are the bytes of a client's message about a matrix.
    decode : callable
        ``decode(body, n_rows, shape, known, *arguments)`` is the message of a client of so many
        rows, whose earlier messages are known by their names, for these arguments of the message.
        Raises ValueError if it is damaged.
    most : callable
        ``most(n_rows, shape)`` is the largest number of bytes.
    """

    encode: Callable[[Any, tuple[int, int]], bytes]
    decode: Callable[..., Any]
    most: Callable[[int, tuple[int, int]], int]


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
    gathered : Gathered or None
        For messages of no common shape.
    """

    message: ClientMessage
    shape: Callable[..., tuple[int, ...]] = lambda d, *_: ()
    init: str = ""
    at_most: bool = False
    gathered: Gathered | None = None


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


def _doubles(n_numbers: Callable[[int], int]) -> Gathered:
    """Messages of finite doubles, as many as the number of rows says."""
    return Gathered(
        lambda sent, _: sent.astype("<f8").tobytes(),
        lambda body, n_rows, *_: numbers(body, (n_numbers(n_rows),)),
        lambda n_rows, _: 8 * n_numbers(n_rows),
    )


def _sums_of_lines(line_of: Callable[..., IntArray]) -> Gathered:
    """Sums over lines of cells, such as rows, where a client was, which the server knows already.

    ``line_of(rows, columns, *arguments)`` is the line of each cell.
    """

    def decode(
        body: bytes, n_rows: int, shape: tuple[int, int], known: dict[str, Any], *arguments: Any
    ) -> Any:
        codes = known[matrix_messages.observed_cells.__name__]
        lines = np.unique(line_of(*np.divmod(codes, shape[1]), *arguments))
        return np.array([len(lines)]), lines, numbers(body, (len(lines),))

    return Gathered(
        lambda sent, _: sent[2].astype("<f8").tobytes(),
        decode,
        lambda n_rows, _: 8 * n_rows,
    )


def _matrix_questions() -> list[SetUpQuestion]:
    def decode_counts(body: bytes, n_rows: int, *_: Any) -> FloatArray:
        counts = encoding.counts_from_bytes(body, n_rows)
        check_values(counts)
        return counts

    codes = Gathered(
        encoding.codes_to_bytes,
        lambda body, n_rows, shape, *_: encoding.codes_from_bytes(body, n_rows, shape),
        lambda n_rows, _: 8 * n_rows,
    )
    counts = Gathered(
        lambda sent, _: encoding.counts_to_bytes(sent),
        decode_counts,
        lambda n_rows, _: 8 * n_rows,
    )
    return [
        SetUpQuestion(matrix_messages.observed_cells, gathered=codes),
        SetUpQuestion(matrix_messages.numbers_of_observations, gathered=counts),
        SetUpQuestion(matrix_messages.log_base_measure, gathered=_doubles(lambda n_rows: 1)),
        SetUpQuestion(
            matrix_messages.row_sums, gathered=_sums_of_lines(lambda rows, columns, n: rows)
        ),
        SetUpQuestion(
            matrix_messages.column_sums, gathered=_sums_of_lines(lambda rows, columns, n: columns)
        ),
        SetUpQuestion(
            matrix_messages.group_sums,
            gathered=_sums_of_lines(
                lambda rows, columns, n, groups, n_columns: cell_codes(
                    groups[rows], columns, n_columns
                )
            ),
        ),
        SetUpQuestion(matrix_messages.residuals, gathered=_doubles(lambda n_rows: n_rows)),
        SetUpQuestion(matrix_messages.cell_sums, gathered=_doubles(lambda n_rows: n_rows)),
        SetUpQuestion(matrix_messages.size_moments, gathered=_doubles(lambda n_rows: 3)),
        SetUpQuestion(pearson_products, lambda d, *_: (4,)),
    ]


def _population_questions() -> list[SetUpQuestion]:
    def sums(d: int, model: MixedEffectsModel, *_: Any) -> tuple[int, ...]:
        p, layout = model.layout.n_parameters, model.layout
        size = int(layout.mask.sum()) + len(layout.of_covariance[0]) + layout.n_squares
        return (3 + 2 * p + size * (size + 1) // 2,)

    def moments(d: int, model: MixedEffectsModel) -> tuple[int, ...]:
        return (len(np.triu_indices(model.layout.n_covariates)[0]),)

    return [
        SetUpQuestion(population_messages.covariate_moments, moments),
        SetUpQuestion(population_messages.squared_residuals, lambda d, *_: (1,)),
        SetUpQuestion(site_sums, sums),
    ]


SET_UP = {
    own.message.__name__: own
    for own in _mixture_questions()
    + _moments_questions()
    + _matrix_questions()
    + _population_questions()
}
"""Questions by the name of their message; clients answer no others."""


def numbers(
    body: bytes, shape: tuple[int, ...], *, at_most: bool = False, allow_nan: bool = False
) -> FloatArray:
    """Array of finite numbers in a message; nothing is allocated unless its length is right."""
    size = 8 * int(np.prod(shape))
    unit = 8 * int(np.prod(shape[1:]))
    if len(body) != size and not (at_most and len(body) < size and len(body) % unit == 0):
        raise Refused(f"length: expected {size} bytes, got {len(body)}")
    values = np.frombuffer(body, "<f8")
    check_values(values[~np.isnan(values)] if allow_nan else values)
    return values.reshape(-1, *shape[1:]).astype(np.float64)


def check_values(values: FloatArray, most: float = LARGEST) -> None:
    """Refuse numbers that are not finite, or too large."""
    largest = np.abs(values).max(initial=0.0)
    if not np.isfinite(largest):  # also if one is NaN
        raise Refused("not finite")
    if largest > most:
        raise Refused(f"too large: {largest:.3g}")


def message_to_bytes(message: EncodedMessage) -> bytes:
    """Reply in a round."""
    numbers = [own for own in (message.log_likelihood, message.reported) if own is not None]
    has_likelihood = message.log_likelihood is not None
    n_reported = 0 if message.reported is None else message.reported.size
    head = ROUND.pack(message.n_expectations, has_likelihood, n_reported)
    values = np.concatenate([own.ravel() for own in numbers] or [np.empty(0)])
    return head + values.astype("<f8").tobytes() + message.content.tobytes()


def message_from_bytes(body: bytes, most_expectations: int, n_expected: int = 0) -> EncodedMessage:
    """Inverse of ``message_to_bytes``, of a message with so many numbers for the history."""
    if len(body) < ROUND.size:
        raise Refused("length")
    n_expectations, has_likelihood, n_reported = ROUND.unpack_from(body)
    if n_expectations > most_expectations or has_likelihood > 1:
        raise Refused("too large: number of conditional expectations")
    if n_reported != n_expected:
        raise Refused(f"length: expected {n_expected} numbers for the history, got {n_reported}")
    start = ROUND.size
    middle = start + 8 * has_likelihood
    end = middle + 8 * n_reported
    likelihood = numbers(body[start:middle], (has_likelihood,))
    reported = numbers(body[middle:end], (n_reported,), allow_nan=True)
    return EncodedMessage(
        np.frombuffer(body[end:], np.uint8),
        n_expectations,
        likelihood if has_likelihood else None,
        reported=reported[None] if n_reported else None,
    )
