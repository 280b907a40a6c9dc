"""Random streams addressed by (seed, purpose, round, client).

A client's numbers depend on nothing else: neither on which other clients take part, nor on how
clients are grouped for the computation, nor on the number of workers. A deployed client can draw
the same numbers as in the simulation. (In ``partial_fit``, clients are numbered among those that
take part in the round.)

Seed, purpose and round are hashed by NumPy's ``SeedSequence`` to a stream of PCG-64 DXSM; client
``i`` owns its numbers ``i * size`` to ``(i + 1) * size - 1``, where ``size`` is the number that
each client needs. The generator can jump to any of them, and adjacent clients are adjacent in the
stream, so that the numbers of many clients are drawn in one call. If clients need different
amounts, these are rounded up to powers of two, each of which has its own stream.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from ._messages import repr_of
from ._typing import FloatArray, IntArray, Seed

# Purposes of streams, which never share numbers.
PARTICIPATION, MINIBATCH, COMPRESSION, INITIALISATION, VALIDATION = range(5)

# Numbers of absent clients, per active client, that are drawn rather than skipped. A jump takes as
# long as 500 draws; with fewer, the time of a round hardly depends on the number of clients.
_PASSED = 150
# Number of clients in a group, for which numbers are drawn at once or by separate jumps.
_GROUP = 1024
# If clients need different amounts, separate jumps are used for more than this.
_LARGE = 512


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
    """Generator at a position in the stream of a seed, a purpose and a round.

    Parameters
    ----------
    seed : int
        Non-negative.
    purpose : int
        One of the constants of this module.
    round_index : int, default=0
    position : int, default=0
        Number of 64-bit numbers of the stream to skip.
    kind : int, default=0
        Distinguishes several streams of one address.

    Returns
    -------
    generator : numpy.random.Generator
        Its ``bit_generator`` can ``advance``, which NumPy's types do not know.
    """
    address = [seed, purpose, round_index, kind]
    # An equivalent array of words, which is hashed in half the time.
    words = np.array(address, dtype=np.uint32) if max(address) < 2**32 else address
    bits = np.random.PCG64DXSM(np.random.SeedSequence(words))
    return np.random.Generator(bits.advance(int(position)))


def client_uniforms(
    seed: int, purpose: int, round_index: int, clients: IntArray, size: int, kind: int = 0
) -> FloatArray:
    """Uniform numbers in [0, 1) for each of some clients.

    Parameters
    ----------
    seed, purpose, round_index : int
        Address of the stream.
    clients : ndarray of int, shape (n,)
        Increasing client indices.
    size : int
        Number of values that each client needs.
    kind : int, default=0
        As in ``generator``.

    Returns
    -------
    uniforms : ndarray of shape (n, size)
        Row ``j`` depends on the address, ``clients[j]`` and ``size`` alone.

    Raises
    ------
    ValueError
        If the clients are not in increasing order, without repetition.
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
            position = _draw_each(source, position, group, size, numbers)
    return uniforms


def _check_increasing(clients: IntArray) -> None:
    """Raise for other orders, in which clients would get the numbers of others."""
    if len(clients) and (clients[0] < 0 or (clients[1:] <= clients[:-1]).any()):
        raise ValueError(
            "Expected client indices >= 0 in increasing order, without repetition, got "
            f"{repr_of(clients)}. Sort them."
        )


def _draw_each(
    source: Any, position: int, clients: IntArray, size: int, pieces: Iterable[FloatArray]
) -> int:
    """Fill the clients' pieces of an array one by one; return the position after the last."""
    for client, piece in zip(clients.tolist(), pieces, strict=True):
        source.bit_generator.advance(client * size - position)
        source.random(out=piece)
        position = client * size + len(piece)
    return position


def ragged_client_uniforms(
    seed: int, purpose: int, round_index: int, clients: IntArray, lengths: IntArray
) -> FloatArray:
    """Uniform numbers in [0, 1) for clients that need different amounts.

    Parameters
    ----------
    seed, purpose, round_index : int
        Address of the stream.
    clients : ndarray of int, shape (n,)
        Increasing client indices.
    lengths : ndarray of int, shape (n,)
        Number of values that each client needs.

    Returns
    -------
    uniforms : ndarray of shape (sum(lengths),)
        Numbers client after client; they only depend on the address, the client and its length.

    Raises
    ------
    ValueError
        If the clients are not in increasing order, without repetition.
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
        _draw_each(generator(seed, purpose, round_index, kind=kind), 0, clients[own], size, pieces)
    return uniforms
