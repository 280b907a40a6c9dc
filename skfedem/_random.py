"""Random streams addressed by (seed, purpose, round, client).

A client's numbers depend on nothing else: not on who else takes part, not on how clients are
grouped for the computation, not on the number of workers. A lone client can draw what it would
have drawn in the simulation.

The address is the counter of a Philox generator (Salmon et al., SC 2011): one key a seed, and
client ``i`` owns the counters ``[i * width, (i + 1) * width)`` of its round and purpose, where
``width`` counters give the numbers it needs. Neighbouring clients are neighbours in the stream, so
that a whole cohort comes out of one call.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

# What a stream is for. Two purposes never share numbers.
PARTICIPATION, MINIBATCH, COMPRESSION, INITIALISATION = range(4)

_NUMBERS_PER_COUNTER = 4  # of Philox 4x64
# Drawing the numbers of absent neighbours costs less than addressing each client, up to about here.
_LARGEST_SPREAD = 6


def generator(seed, purpose, round_index=0, counter=0):
    """Generator at an address of the stream of a seed.

    Parameters
    ----------
    seed : int
        Non-negative.
    purpose : int
        One of the constants of this module.
    round_index : int, default=0
    counter : int, default=0
        Where in the stream of this round the generator starts.

    Returns
    -------
    generator : numpy.random.Generator
    """
    return np.random.Generator(
        np.random.Philox(key=_key(seed), counter=[counter, round_index, purpose, 0])
    )


@lru_cache(maxsize=16)
def _key(seed):
    return np.random.SeedSequence(seed).generate_state(2, np.uint64)


def client_uniforms(seed, purpose, round_index, clients, size):
    """Uniform numbers in [0, 1) for each of some clients.

    Parameters
    ----------
    seed, purpose, round_index : int
        Address of the stream.
    clients : ndarray of int, shape (n,)
        Increasing client indices.
    size : int
        How many numbers each client needs.

    Returns
    -------
    uniforms : ndarray of shape (n, size)
        Row ``j`` depends on ``seed``, ``purpose``, ``round_index``, ``clients[j]`` and ``size``
        alone.
    """
    if not len(clients):
        return np.empty((0, size))
    width = -(-size // _NUMBERS_PER_COUNTER)
    first, spread = int(clients[0]), int(clients[-1]) - int(clients[0]) + 1
    if spread <= _LARGEST_SPREAD * len(clients):
        source = generator(seed, purpose, round_index, first * width)
        drawn = source.random((spread, width * _NUMBERS_PER_COUNTER))
        present = drawn if spread == len(clients) else drawn[clients - first]
        return present[:, :size]
    uniforms = np.empty((len(clients), size))
    bits = np.random.Philox()
    source, state = np.random.Generator(bits), generator(seed, purpose).bit_generator.state
    for row, client in zip(uniforms, clients.tolist(), strict=True):
        state["state"]["counter"] = np.array(
            [client * width, round_index, purpose, 0], dtype=np.uint64
        )
        bits.state = state
        source.random(out=row)
    return uniforms
