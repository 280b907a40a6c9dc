"""Stacked rows of the clients, and functions that read them.

One array holds all rows, client after client; there are no objects per client. A deployed node is a
federation of one client. Rows that would not fit into memory (once or twice) are not copied: a
class of ``_rows`` takes the place of the array.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._rows import LabelledRows, take_rows
from ._typing import ClientWeights, FloatArray, IntArray

# Largest number of clients in a group.
MOST_CLIENTS = 1024
# Number of rows that a digest of all rows reads at once.
_DIGESTED = 2**14


class SampleWeight(NamedTuple):
    """Positive weights of rows.

    Attributes
    ----------
    values : ndarray of shape (n_samples,)
    totals : ndarray of shape (n_clients,)
        Sum of each client's weights.
    cumulative : ndarray of shape (n_samples,)
        Running sums within each client.
    """

    values: FloatArray
    totals: FloatArray
    cumulative: FloatArray


class ClientSizes(NamedTuple):
    """Weights and numbers of rows of clients: what a server knows of them.

    Attributes
    ----------
    weights : ndarray of shape (n_clients,)
    lengths : ndarray of int, shape (n_clients,)
    """

    weights: FloatArray
    lengths: IntArray

    @property
    def n_clients(self) -> int:
        """Number of clients, n."""
        return len(self.weights)

    @property
    def n_samples(self) -> int:
        """Number of rows of all clients, N."""
        return int(self.lengths.sum())

    @property
    def offsets(self) -> IntArray:
        """Number of rows before each client's, if all are stacked; and of all rows."""
        return offsets_of(self.lengths)

    @property
    def effective_n_clients(self) -> float:
        """Number of equally weighted clients whose mean is equally noisy: 1 / Σ w_i²."""
        return 1 / float((self.weights**2).sum())


class Federation(NamedTuple):
    """Rows of all clients.

    Attributes
    ----------
    rows : ndarray of shape (n_samples, n_features), JoinedRows or ReorderedRows
        The rows of client 0, then those of client 1, and so on. For observed cells, a NamedTuple of
        arrays of shape (n_samples,).
    offsets : ndarray of int, shape (n_clients + 1,)
        Client ``i`` owns ``rows[offsets[i]:offsets[i + 1]]``; every client has at least one row.
    weights : ndarray of shape (n_clients,)
        Client weights w_i. They sum to 1; in a batch of a stream, to the share of the total weight
        that its clients have.
    sample_weight : SampleWeight, default=None
        Weights of rows in a client's mean over its rows; None for equal weights.
    row_keys : ndarray of uint64, shape (n_samples,), default=None
        Keys of the rows' labels, which address the random numbers of rows wherever they are; None
        to number the rows of each client.
    log_base_measure : ndarray of shape (n_clients,), default=None
        Of observed cells, the sum of log ρ(y) over each client's observations, in nats: it does not
        follow from the means of the cells.
    """

    rows: Any
    offsets: IntArray
    weights: FloatArray
    sample_weight: SampleWeight | None = None
    row_keys: NDArray[np.uint64] | None = None
    log_base_measure: FloatArray | None = None

    @property
    def n_clients(self) -> int:
        """Number of clients, n."""
        return len(self.weights)

    @property
    def n_samples(self) -> int:
        """Number of rows of all clients, N."""
        return int(self.offsets[-1])

    @property
    def sizes(self) -> ClientSizes:
        """Weights and numbers of rows of the clients."""
        return ClientSizes(self.weights, self.lengths)

    @property
    def lengths(self) -> IntArray:
        """Number of rows of each client, m_i."""
        return np.diff(self.offsets)

    @property
    def totals(self) -> IntArray | FloatArray:
        """Divisor of each client's sums over its rows: total weight, or number of rows."""
        return self.lengths if self.sample_weight is None else self.sample_weight.totals

    @property
    def row_weights(self) -> FloatArray:
        """Factor for the weight of a row of each client: w_i divided by the client's total."""
        return self.weights / self.totals

    def lengths_of(self, clients: IntArray) -> IntArray:
        """``lengths[clients]``, without computing those of possibly a million others."""
        return self.offsets[clients + 1] - self.offsets[clients]

    def totals_of(self, clients: IntArray) -> IntArray | FloatArray:
        """``totals[clients]``, likewise."""
        weighted = self.sample_weight
        return self.lengths_of(clients) if weighted is None else weighted.totals[clients]


class ClientRows(NamedTuple):
    """Rows of some clients, which a message is computed from.

    Attributes
    ----------
    federation : Federation
        Rows of the clients at one place.
    clients : ndarray of int, shape (n,)
        Positions in this federation, in increasing order.
    ids : ndarray of int, shape (n,)
        Numbers of these clients among all, which address their random numbers.
    """

    federation: Federation
    clients: IntArray
    ids: IntArray


ClientMessage = Callable[..., Any]
"""A named function of ``ClientRows`` and further arguments: one message per client."""


MessageBits = Callable[[Any], int]
"""Length in bits of all messages, from what the server received, unless all are doubles."""


class SetUp(Protocol):
    """What a server may ask of clients before the first round; each message has a name and size."""

    @property
    def sizes(self) -> ClientSizes:
        """Weights and numbers of rows of the clients."""

    def mean(self, message: ClientMessage, *arguments: Any) -> FloatArray:
        """Σ_i w_i m_i over all clients, relative to m_0: equal messages have an exact mean."""

    def sum(
        self, message: ClientMessage, *arguments: Any, n_bits: MessageBits | None = None
    ) -> FloatArray:
        """Σ_i m_i over all clients: in order, by shard."""

    def collect(self, message: ClientMessage, clients: IntArray, *arguments: Any) -> list[Any]:
        """Messages of some clients, one by one."""

    def gather(
        self, message: ClientMessage, *arguments: Any, n_bits: MessageBits | None = None
    ) -> Any:
        """Messages of all clients in order, as one array or a tuple of arrays."""

    def tell(
        self, name: str, n_numbers: int, n_clients: int | None = None, n_sent: int = 0
    ) -> None:
        """Count numbers that all clients, or so many, receive, and those that each has sent."""

    @property
    def messages(self) -> list[Any]:
        """All of these so far: their names, and how much was sent and received."""

    def bits(self, first: int = 0) -> tuple[int, int]:
        """Bits that clients sent and received in ``messages``, from one of them on."""


class Elsewhere:
    """Clients that are not in this process, in place of their tables.

    Attributes
    ----------
    lengths : ndarray of int, shape (n_clients,)
        Numbers of rows.
    ids : ndarray of shape (n_clients,)
        Labels of the clients.
    columns : list of str or int
        Names of the features, or their number if they have none.
    federation : Federation or None
        The clients without their rows, if reading does more than to stack rows.
    totals : ndarray of shape (n_clients,) or None
        Sums of the weights of each client's rows; None if all have the same weight.
    row_weight : float
        Unit of these weights, or the weight of every row.
    has_offset : bool
        Whether observations of a matrix have offsets.
    """

    lengths: IntArray
    ids: NDArray[Any]
    columns: list[str] | int
    federation: Any = None
    totals: FloatArray | None = None
    row_weight: float = 1.0
    has_offset: bool = False

    def clients(self, weights: FloatArray) -> Any:
        """``Clients`` of a fit, with these weights."""
        raise NotImplementedError

    def read(self, reading: Any = None) -> Any:
        """What reading tables would have returned, without their rows.

        ``reading`` says how clients read them, unless they have agreed on it.

        Raises
        ------
        TypeError
            If the fit needs more than rows of features.
        """
        raise TypeError(
            f"Expected tables of the clients, got {type(self).__name__}, which has rows of "
            "features. Give tables, or another estimator."
        )

    def check_finite(self, *, allow_nan: bool) -> None:
        """Raise if values are missing, unless the clients themselves see to it."""

    def transformed(self, function: Callable[[Any], NDArray[Any]]) -> Elsewhere:
        """The same clients with the tables that a function makes of theirs."""
        raise NotImplementedError

    def sum_of_rows(self) -> tuple[float, float]:
        """Weighted sum of the only number in each row, and the total weight of the rows."""
        raise NotImplementedError


def offsets_of(lengths: ArrayLike) -> IntArray:
    """Start of each run of items, and end of the last one, from the lengths of the runs.

    As intp, like all lengths: ``repeat`` and ``reduceat`` do not accept wider integers.
    """
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.intp)])


@overload
def owners_of(offsets: IntArray, positions: int) -> np.intp: ...
@overload
def owners_of(offsets: IntArray, positions: IntArray) -> NDArray[np.intp]: ...
def owners_of(offsets: IntArray, positions: int | IntArray) -> np.intp | NDArray[np.intp]:
    """Owner of each position, if ``k`` owns ``offsets[k]`` to ``offsets[k + 1] - 1``."""
    return np.searchsorted(offsets, positions, side="right") - 1


def positions_of(starts: IntArray, lengths: IntArray) -> IntArray:
    """Concatenated positions of several runs, from their starts and lengths."""
    skipped = starts - (np.cumsum(lengths) - lengths)
    return np.repeat(skipped, lengths) + np.arange(lengths.sum())


def weights_of_clients(totals: IntArray | FloatArray, client_weights: ClientWeights) -> FloatArray:
    """Client weights w_i from totals m_i: m_i / N, the pooled likelihood, or 1 / n."""
    if client_weights == "n_samples":
        return totals / totals.sum()
    return np.full(len(totals), 1 / len(totals))


def sample_weight_of(values: FloatArray, offsets: IntArray) -> SampleWeight:
    """Positive weights of rows, with their totals and running sums; sums of integers are exact."""
    lengths = np.diff(offsets)
    totals = np.add.reduceat(values, offsets[:-1])
    # One running sum over all clients, scaled by powers of two, which are exact, so that all
    # clients have totals of similar size.
    exponents = np.repeat(np.frexp(totals)[1], lengths)
    running = np.ldexp(values, -exponents)
    np.cumsum(running, out=running)
    before = np.concatenate([[0.0], running[offsets[1:-1] - 1]])
    running -= np.repeat(before, lengths)
    return SampleWeight(values, totals, cumulative=np.ldexp(running, exponents, out=running))


def fingerprint(federation: Federation, first: int, last: int) -> str:
    """Digest of all rows of clients ``first`` to ``last - 1``, and of their weights."""
    rows, digest = federation.rows, hashlib.sha256()
    if isinstance(rows, tuple):
        start, stop = federation.offsets[[first, last]]
        pieces: Iterable[NDArray[Any]] = (field[start:stop] for field in rows)
    else:
        pieces = _pieces(federation, np.arange(first, last))
    for piece in pieces:
        digest.update(little_endian(piece).data)
    return digest.hexdigest()


def digest_of(fingerprints: Iterable[str]) -> str:
    """Digest of the rows of all shards, from those of each in order."""
    return hashlib.sha256("".join(fingerprints).encode()).hexdigest()


def little_endian(array: NDArray[Any]) -> NDArray[Any]:
    """The array, contiguous and little-endian, so that digests do not depend on the machine."""
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<"))


def _pieces(federation: Federation, clients: IntArray) -> Iterator[NDArray[Any]]:
    """Yield all rows of some clients and their weights in blocks."""
    for reading in read(federation, clients, _DIGESTED):
        yield from reading.rows if isinstance(reading.rows, LabelledRows) else (reading.rows,)
        if reading.sample_weight is not None:
            yield reading.sample_weight


def client_groups(offsets: IntArray, n_rows: int, n_clients: int = MOST_CLIENTS) -> list[slice]:
    """Cut a sequence of clients into groups with at most so many rows and clients.

    A client with more than ``n_rows`` rows is a group by itself. The groups only depend on the
    ``offsets``, the numbers of rows before each client, so that sums do not depend on workers.
    """
    n = len(offsets) - 1
    cuts = [0]
    while cuts[-1] < n:
        first = cuts[-1]
        last = int(np.searchsorted(offsets, offsets[first] + n_rows, side="right")) - 1
        cuts.append(min(max(last, first + 1), first + n_clients))
    return [slice(first, last) for first, last in pairwise(cuts)]


class Reading(NamedTuple):
    """A block of rows: ``lengths[j]`` rows of the client at position ``group.start + j``.

    ``sample_weight`` has the weights of the rows, or is None.
    """

    group: slice
    rows: Any
    lengths: IntArray
    sample_weight: FloatArray | None = None


def read(federation: Federation, clients: IntArray, n_rows: int) -> Iterator[Reading]:
    """Read all rows of some clients, in increasing order, in blocks of at most ``n_rows`` rows.

    A client with more rows is read in several pieces.
    """
    starts = federation.offsets[clients]
    lengths = federation.lengths_of(clients)
    for group in client_groups(offsets_of(lengths), n_rows):
        start, own = int(starts[group.start]), lengths[group]
        stop = int(starts[group.stop - 1] + own[-1])
        if len(own) == 1:
            for piece in range(start, stop, n_rows):
                chosen = slice(piece, min(piece + n_rows, stop))
                yield _reading(federation, group, chosen, np.array([chosen.stop - piece]))
        elif stop - start == own.sum():
            yield _reading(federation, group, slice(start, stop), own)
        else:
            yield _reading(federation, group, positions_of(starts[group], own), own)


def _reading(
    federation: Federation, group: slice, chosen: slice | IntArray, lengths: IntArray
) -> Reading:
    """Rows by a slice, without a copy, or by their positions, and their weights."""
    rows, weights = federation.rows, federation.sample_weight
    rows = rows[chosen] if isinstance(chosen, slice) else take_rows(rows, chosen)
    return Reading(group, rows, lengths, None if weights is None else weights.values[chosen])
