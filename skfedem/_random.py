"""Random numbers addressed by (seed, purpose, round, client), or by the label of a row.

A client's numbers depend on nothing else: neither on which other clients take part, nor on how
clients are grouped for the computation, nor on the number of workers. A deployed client can draw
the same numbers as in the simulation. (In ``partial_fit``, clients are numbered among those that
take part in the round.)

Numbers of many clients, ``client_uniforms``: seed, purpose and round are hashed by NumPy's
``SeedSequence`` to a stream of PCG-64 DXSM; client ``i`` owns its numbers ``i * size`` to
``(i + 1) * size - 1``, where ``size`` is the number that each client needs. The generator can jump
to any of them, and adjacent clients are adjacent in the stream, so that the numbers of many clients
are drawn in one call. If clients need different amounts, these are rounded up to powers of two,
each of which has its own stream.

Any amount for one client, ``client_generator``: a stream of its own.

Numbers of many rows, ``row_uniforms``: a counter-based generator, Philox, whose key is the hash of
seed, purpose and round, and whose counter is a row's key and the position of the number. A row's
numbers follow it to other clients, groups and machines.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime
from hashlib import blake2b
from numbers import Integral, Real
from struct import pack
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from ._error_messages import repr_of
from ._typing import FloatArray, IntArray, Seed

# Purposes of streams, which never share numbers.
PARTICIPATION, MINIBATCH, COMPRESSION, INITIALISATION, VALIDATION, CHAINS, GATES = range(7)
IMPORTANCE, DROPOUT = 7, 8

# Kinds of streams of one address: 0 is that of ``generator``, 1 to 64 are those of clients that
# need different amounts.
_ONE_CLIENT, _ROWS = 65, 66

# Numbers of absent clients, per active client, that are drawn rather than skipped. A jump takes as
# long as 500 draws; with fewer, the time of a round hardly depends on the number of clients.
_PASSED = 150
# Number of clients in a group, for which numbers are drawn at once or by separate jumps.
_GROUP = 1024
# If clients need different amounts, separate jumps are used for more than this.
_LARGE = 512

# Philox 4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3",
# SC 2011: multipliers and increments of the key, of the two halves of a block.
_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], dtype=np.uint64)
_INCREMENTS = np.array([[0x9E3779B9], [0xBB67AE85]], dtype=np.uint64)
_N_PHILOX_ROUNDS = 10
_LOW = np.uint64(2**32 - 1)
_HALF = np.uint64(32)
# Blocks of Philox that are computed at once: their arrays stay in the processor's cache.
_N_BLOCKS = 8192


def random_numbers(random_state: Seed) -> np.random.RandomState:
    """``check_random_state`` of scikit-learn, with error messages that name the parameter.

    Raises
    ------
    ValueError
    """
    try:
        return check_random_state(random_state)
    except (TypeError, ValueError) as error:
        advice = "Give an integer for reproducible results."
        if isinstance(random_state, np.random.Generator):
            advice = "Draw an integer from it, as generator.integers(2**32), and give that."
        raise ValueError(
            "Expected random_state to be an integer from 0 to 2**32 - 1, a "
            f"numpy.random.RandomState or None, got {repr_of(random_state)}. {advice}"
        ) from error


def seeds_of_runs(random_state: Seed, n_runs: int) -> list[int]:
    """Seeds of runs from an estimator's ``random_state``."""
    largest = np.iinfo(np.int32).max
    return random_numbers(random_state).randint(largest, size=n_runs).tolist()


def generator(
    seed: int, purpose: int, round_index: int = 0, position: int = 0, kind: int = 0
) -> Any:
    """Generator at a position, in 64-bit numbers, in the stream of a seed, a purpose and a round.

    ``kind`` distinguishes several streams of one address. The ``bit_generator`` can ``advance``,
    which NumPy's types do not know.
    """
    bits = np.random.PCG64DXSM(_hash(seed, purpose, round_index, kind))
    return np.random.Generator(bits.advance(int(position)))


def _hash(*address: int) -> np.random.SeedSequence:
    # An equivalent array of words, which is hashed in half the time.
    words = np.array(address, dtype=np.uint32) if max(address) < 2**32 else address
    return np.random.SeedSequence(words)


def client_generator(seed: int, purpose: int, round_index: int, client: int) -> np.random.Generator:
    """Generator of one client, for any amount of numbers: set-up work, such as k-means.

    ``numpy.random.RandomState(generator.bit_generator)`` draws from the same stream, for
    scikit-learn.
    """
    bits = np.random.PCG64DXSM(_hash(seed, purpose, round_index, _ONE_CLIENT, client))
    return np.random.Generator(bits)


def client_uniforms(
    seed: int, purpose: int, round_index: int, clients: IntArray, size: int, kind: int = 0
) -> FloatArray:
    """Uniform numbers in [0, 1) for each of some clients, shape (n, size).

    Row ``j`` depends on the address, ``clients[j]`` and ``size`` alone. Raises ValueError unless
    the client indices increase.
    """
    _check_increasing(clients)
    if not len(clients):
        return np.empty((0, size))
    position = int(clients[0]) * size
    source = generator(seed, purpose, round_index, position, kind)
    if clients[-1] - clients[0] < len(clients):
        return source.random((len(clients), size))
    uniforms = np.empty((len(clients), size))
    for start in range(0, len(clients), _GROUP):
        group, numbers = clients[start : start + _GROUP], uniforms[start : start + _GROUP]
        spread = int(group[-1] - group[0]) + 1
        if spread * size <= len(group) * (size + _PASSED):
            # Numbers of absent clients in between are drawn as well.
            source.bit_generator.advance(int(group[0]) * size - position)
            numbers[:] = source.random((spread, size))[group - group[0]]
            position = (int(group[-1]) + 1) * size
        else:
            position = _draw_each(source, position, group * size, size, numbers)
    return uniforms


def _check_increasing(clients: IntArray) -> None:
    """Raise for other orders, in which clients would get the numbers of others."""
    if len(clients) and (clients[0] < 0 or (clients[1:] <= clients[:-1]).any()):
        raise ValueError(
            "Expected client indices >= 0 in increasing order, without repetition, got "
            f"{repr_of(clients)}. Sort them."
        )


def _draw_each(
    source: Any, position: int, starts: IntArray, lengths: Any, pieces: Iterable[FloatArray]
) -> int:
    """Fill pieces of an array one by one, each from its start; return the end of the last."""
    ends = starts + lengths
    skipped = starts - np.concatenate([[position], ends[:-1]])
    advance, random = source.bit_generator.advance, source.random
    for n_skipped, piece in zip(skipped.tolist(), pieces, strict=True):
        advance(n_skipped)
        random(out=piece)
    return int(ends[-1])


def ragged_client_uniforms(
    seed: int, purpose: int, round_index: int, clients: IntArray, lengths: IntArray
) -> FloatArray:
    """Uniform numbers in [0, 1) for clients that need different amounts, client after client.

    They only depend on the address, the client and its length. Raises ValueError unless the client
    indices increase.
    """
    _check_increasing(clients)
    uniforms = np.empty(int(lengths.sum()))
    starts = np.cumsum(lengths) - lengths
    n_bits = np.frexp(np.maximum(lengths, 1) - 1)[1]
    for width in np.unique(n_bits).tolist():
        own, size, kind = np.flatnonzero(n_bits == width), 1 << width, 1 + width
        if size <= _LARGE:
            drawn = client_uniforms(seed, purpose, round_index, clients[own], size, kind)
            needed = np.arange(size) < lengths[own, None]
            uniforms[(starts[own, None] + np.arange(size))[needed]] = drawn[needed]
            continue
        pieces = [uniforms[i] for i in map(slice, starts[own], starts[own] + lengths[own])]
        source = generator(seed, purpose, round_index, kind=kind)
        _draw_each(source, 0, clients[own] * size, lengths[own], pieces)
    return uniforms


# ---- rows


# Types of labels that are numbers; a sum type would hide methods from type checkers.
_NUMBERS: tuple[Any, ...] = (Real, np.bool_)


def label_keys(labels: Iterable[Any]) -> NDArray[np.uint64]:
    """Keys of rows or subjects for ``row_uniforms``, from their labels.

    Equal labels have equal keys in every process, on every platform and for all types that hold
    them: 7, 7.0 and ``numpy.int32(7)``; a ``datetime``, a ``numpy.datetime64`` and a
    ``pandas.Timestamp``. Keys are integers modulo 2**64, or else 64 bits of BLAKE2b: two of a
    million labels agree by chance once in 4e7 fits, and integers from -2**63 to 2**63 - 1 never.
    Labels are int, float, str, bytes, date, datetime, or nested tuples of these, including the
    types of NumPy and pandas. Raises TypeError for others, and TypeError or ValueError for missing
    ones: None, NaN and NaT.

    Examples
    --------
    >>> from skfedem._random import label_keys
    >>> label_keys([7, 7.0, "7", ("clinic", 7)])
    array([                  7,                   7, 4877466193483061569,
           2902342008897214443], dtype=uint64)
    """
    dtype = getattr(labels, "dtype", None)
    if isinstance(dtype, np.dtype) and dtype.kind in "iu" and dtype != np.uint64:
        return np.asarray(labels).astype(np.int64).view(np.uint64)
    return np.array([_label_key(label) for label in labels], dtype=np.uint64)


def _label_key(label: Any) -> int:
    if isinstance(label, tuple):
        return _digest(b"tuple", b"".join(pack("<Q", _label_key(part)) for part in label))
    if isinstance(label, str):
        return _digest(b"str", label.encode("utf-8", "surrogatepass"))
    if isinstance(label, bytes):
        return _digest(b"bytes", label)
    if isinstance(label, date | np.datetime64):
        return _digest(b"time", pack("<qq", *_seconds_and_nanoseconds(label)))
    if isinstance(label, _NUMBERS) and not isinstance(label, np.timedelta64):
        if isinstance(label, Integral) or float(label).is_integer():
            number = int(label)
            small = -(2**63) <= number < 2**63
            return number % 2**64 if small else _digest(b"int", str(number).encode())
        if label == label:
            return _digest(b"float", pack("<d", label))
        raise ValueError("Expected labels of rows, got NaN. Give each row a label.")
    raise TypeError(
        f"Expected labels to be integers, strings, dates or tuples of these, got {repr_of(label)} "
        f"of type {type(label).__name__}. Convert them to strings."
    )


def _digest(kind: bytes, content: bytes) -> int:
    return int.from_bytes(blake2b(content, digest_size=8, person=kind).digest(), "little")


def _seconds_and_nanoseconds(time: date | np.datetime64) -> tuple[int, int]:
    """Seconds since 1970, in UTC if the time zone is known, and nanoseconds."""
    if hasattr(time, "to_datetime64"):  # of pandas, with nanoseconds
        time = time.to_datetime64()
    elif isinstance(time, datetime) and time.tzinfo is not None:
        time = time.astimezone(UTC).replace(tzinfo=None)
    exact = np.datetime64(time)
    if np.isnat(exact):
        raise ValueError("Expected labels of rows, got NaT. Give each row a label.")
    seconds = exact.astype("M8[s]")
    return int(seconds.astype(np.int64)), int((exact - seconds).astype("m8[ns]").astype(np.int64))


def row_uniforms(
    seed: int, purpose: int, round_index: int, keys: NDArray[np.uint64], size: int
) -> FloatArray:
    """Uniform numbers in [0, 1) for each of some rows, shape (n_rows, size).

    Entry ``[j, t]`` depends on the address, ``keys[j]`` (of ``label_keys``, in any order) and ``t``
    alone, not on ``size``. Rows with equal keys get equal numbers.
    """
    *key, high = _hash(seed, purpose, round_index, _ROWS).generate_state(3).tolist()
    n_pairs = -(-size // 2)
    uniforms = np.empty((len(keys), 2 * n_pairs))
    step = max(_N_BLOCKS // max(n_pairs, 1), 1)
    position = np.arange(n_pairs, dtype=np.uint64) | np.uint64(high << 32)
    for start in range(0, len(keys), step):
        some = keys[start : start + step, None]
        shape = (2, len(some), n_pairs)
        counter = np.empty(shape, np.uint64)
        counter[0], counter[1] = position, some
        words = _philox(counter.reshape(2, -1), key)
        pairs = uniforms[start : start + step].reshape(len(some), n_pairs, 2)
        # The highest 53 of 64 bits.
        words >>= np.uint64(11)
        np.multiply(words.reshape(shape).transpose(1, 2, 0), 2.0**-53, out=pairs)
    return np.ascontiguousarray(uniforms[:, :size])


def _philox(counter: NDArray[np.uint64], key: list[int]) -> NDArray[np.uint64]:
    """Blocks of Philox 4x32-10, shape (2, n): a block is four words, two in each number, low first.

    The key is two words below 2**32.
    """
    factors, others = counter & _LOW, counter >> _HALF
    round_key = np.array(key, dtype=np.uint64)[:, None]
    for _ in range(_N_PHILOX_ROUNDS):
        products = factors * _MULTIPLIERS
        factors = (products >> _HALF)[::-1]
        factors ^= others
        factors ^= round_key
        others = products[::-1]
        others &= _LOW
        round_key = (round_key + _INCREMENTS) & _LOW
    others <<= _HALF
    return factors | others
