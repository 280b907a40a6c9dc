"""Memory layout of clients' vectors: statistics, control variates, messages.

Either all vectors of clients and server have the same length; or a client has one number for each
of its rows, and the server one for each distinct position of rows. In both cases, the first axis of
an array follows the clients in increasing order, and there are no objects per client.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from . import _random
from ._federation import positions_of
from ._typing import BoolArray, FloatArray, IntArray


class DenseLayout(NamedTuple):
    """Vectors of one length: an array of shape (n_clients, length).

    Attributes
    ----------
    n_clients, length : int
    """

    n_clients: int
    length: int

    def zeros(self) -> FloatArray:
        """Zero vectors of all clients."""
        return np.zeros((self.n_clients, self.length))

    def indices(self, clients: IntArray) -> slice | IntArray:
        """Indices of some clients' vectors in an array of all; a slice if they are adjacent."""
        return as_slice(clients)

    def submask(self, clients: IntArray, chosen: BoolArray) -> slice | BoolArray:
        """Indices of the chosen clients' vectors in an array of some clients' vectors."""
        return slice(None) if chosen.all() else chosen

    def lengths(self, clients: IntArray) -> None:
        """Lengths for compressors."""
        return None

    def shape_of(self, client: int) -> tuple[int, ...]:
        """Shape of the vector of a single client."""
        return 1, self.length

    def uniforms(
        self, seed: int, purpose: int, round_index: int, clients: IntArray, ids: IntArray
    ) -> FloatArray:
        """Uniform random numbers in [0, 1), one for each number of some clients' vectors."""
        return _random.client_uniforms(seed, purpose, round_index, ids, self.length)

    def weighted(self, weights: FloatArray, clients: IntArray, vectors: FloatArray) -> FloatArray:
        """Contribution of a segment of clients to a weighted sum."""
        return weights @ vectors

    def split(self, clients: IntArray, segments: list[slice]) -> list[slice]:
        """Indices of segments of these clients in an array of their vectors."""
        return segments

    def total(self, clients: IntArray, parts: list[FloatArray], shards: list[int]) -> FloatArray:
        """Server vector: the sum of the segments of each shard in order, then over the shards."""
        return sum_by_shard(parts, shards) if parts else np.zeros(self.length)

    def norms(self, vectors: FloatArray) -> FloatArray:
        """Euclidean norm of each client's vector."""
        # einsum does not keep the squares of a million vectors in memory.
        return np.sqrt(np.einsum("ij,ij->i", vectors, vectors))


class RaggedLayout(NamedTuple):
    """One number for each row of a client: a flat array of shape (n_samples,).

    Methods are those of ``DenseLayout``.

    Attributes
    ----------
    offsets : ndarray of int, shape (n_clients + 1,)
        Client ``i`` has the numbers ``offsets[i]:offsets[i + 1]``.
    positions : ndarray of int, shape (n_samples,), or None
        Position in a server's vector that each number adds to. None at a client, which does not
        know it: a total then lists the numbers.
    length : int
        Length of a server's vector.
    """

    offsets: IntArray
    positions: IntArray | None
    length: int

    def zeros(self) -> FloatArray:
        return np.zeros(int(self.offsets[-1]))

    def indices(self, clients: IntArray) -> slice | IntArray:
        return row_indices(self.offsets, clients)

    def submask(self, clients: IntArray, chosen: BoolArray) -> slice | BoolArray:
        return slice(None) if chosen.all() else np.repeat(chosen, self.lengths(clients))

    def lengths(self, clients: IntArray) -> IntArray:
        return self.offsets[clients + 1] - self.offsets[clients]

    def shape_of(self, client: int) -> tuple[int, ...]:
        return (int(self.offsets[client + 1] - self.offsets[client]),)

    def uniforms(
        self, seed: int, purpose: int, round_index: int, clients: IntArray, ids: IntArray
    ) -> FloatArray:
        lengths = self.lengths(clients)
        return _random.ragged_client_uniforms(seed, purpose, round_index, ids, lengths)

    def weighted(self, weights: FloatArray, clients: IntArray, vectors: FloatArray) -> FloatArray:
        return np.repeat(weights, self.lengths(clients)) * vectors

    def split(self, clients: IntArray, segments: list[slice]) -> list[slice]:
        ends = np.cumsum(self.lengths(clients))
        starts = ends - self.lengths(clients)
        return [slice(int(starts[s.start]), int(ends[s.stop - 1])) for s in segments]

    def total(self, clients: IntArray, parts: list[FloatArray], shards: list[int]) -> FloatArray:
        # The sum at a position runs over the clients in order, however they are cut.
        if not parts:
            return np.zeros(self.length)
        values = parts[0] if len(parts) == 1 else np.concatenate(parts)
        if self.positions is None:
            return values
        where = self.positions[self.indices(clients)]
        sums: Any = np.bincount(where, values, minlength=self.length)  # floats, by their weights
        return sums

    def norms(self, vectors: FloatArray) -> FloatArray:
        return np.sqrt(np.add.reduceat(vectors**2, self.offsets[:-1]))


ClientVectors = DenseLayout | RaggedLayout


def as_slice(clients: IntArray) -> slice | IntArray:
    """Slice of adjacent clients, which avoids copies; other clients are returned unchanged."""
    first, last = int(clients[0]), int(clients[-1])
    return slice(first, last + 1) if last - first + 1 == len(clients) else clients


def row_indices(offsets: IntArray, clients: IntArray) -> slice | IntArray:
    """Indices of the rows of some clients; a slice if the clients are adjacent."""
    group = as_slice(clients)
    if isinstance(group, slice):
        return slice(int(offsets[group.start]), int(offsets[group.stop]))
    return positions_of(offsets[clients], offsets[clients + 1] - offsets[clients])


def sum_by_shard(terms: list[FloatArray], shards: list[int]) -> FloatArray:
    """Sum of terms: within each shard in order, then over the shards in order."""
    sums: list[FloatArray] = []
    for number, (term, shard) in enumerate(zip(terms, shards, strict=True)):
        if number and shard == shards[number - 1]:
            sums[-1] = sums[-1] + term
        else:
            sums.append(term)
    return sum(sums[1:], start=sums[0])
