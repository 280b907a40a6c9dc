"""The clients' rows, stacked, and the ways of reading them.

One array holds all rows, client after client; nothing here is an object per client. A deployed
node is a federation of one client.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np


class Federation(NamedTuple):
    """Rows of all clients.

    Attributes
    ----------
    rows : ndarray of shape (n_samples, n_features), or a NamedTuple of arrays (n_samples,)
        The rows of client 0, then those of client 1, and so on; float32 or float64. Of observed
        cells, their columns.
    offsets : ndarray of int, shape (n_clients + 1,)
        Client ``i`` owns ``rows[offsets[i]:offsets[i + 1]]``; every client has a row.
    weights : ndarray of shape (n_clients,)
        Client weights w_i; they sum to 1.
    """

    rows: np.ndarray
    offsets: np.ndarray
    weights: np.ndarray

    @property
    def n_clients(self):
        """Number of clients, n."""
        return len(self.weights)

    @property
    def effective_n_clients(self):
        """Number of equally weighted clients whose mean is as noisy, 1 / Σ w_i²."""
        return 1 / float((self.weights**2).sum())

    @property
    def n_samples(self):
        """Number of rows of all clients, N."""
        return int(self.offsets[-1])

    @property
    def lengths(self):
        """Number of rows of each client, m_i."""
        return np.diff(self.offsets)


def runs(lengths, n_rows, n_clients=1024):
    """Cut a sequence of clients into runs with at most so many rows and clients.

    A client with more than ``n_rows`` rows is a run by itself. The cut depends on the lengths
    alone, so that sums are the same for any number of workers.

    Parameters
    ----------
    lengths : ndarray of int, shape (n,)
        Number of rows of each client.
    n_rows, n_clients : int
        Largest number of rows and of clients in a run.

    Returns
    -------
    runs : list of slice
        Positions in the sequence; together they cover it.
    """
    if 0 < len(lengths) <= n_clients and lengths.sum() <= n_rows:
        return [slice(0, len(lengths))]
    ends = np.concatenate([[0], np.cumsum(lengths)])
    cuts = [0]
    while cuts[-1] < len(lengths):
        first = cuts[-1]
        last = int(np.searchsorted(ends, ends[first] + n_rows, side="right")) - 1
        cuts.append(min(max(last, first + 1), first + n_clients))
    return [slice(first, last) for first, last in pairwise(cuts)]


class Reading(NamedTuple):
    """Some rows of some clients: ``lengths[j]`` of the client at position ``run.start + j``."""

    run: slice
    rows: np.ndarray
    lengths: np.ndarray


def read(federation, clients, n_rows):
    """Read all rows of some clients, in blocks that a processor's cache can hold.

    Parameters
    ----------
    federation : Federation
    clients : ndarray of int, shape (n,)
        Increasing client indices.
    n_rows : int
        Largest number of rows in a block.

    Yields
    ------
    reading : Reading
        A client with more than ``n_rows`` rows is read in several pieces.
    """
    starts = federation.offsets[clients]
    lengths = federation.offsets[clients + 1] - starts
    for run in runs(lengths, n_rows):
        start, own = int(starts[run.start]), lengths[run]
        stop = int(starts[run.stop - 1] + own[-1])
        if len(own) == 1:
            for piece in range(start, stop, n_rows):
                rows = federation.rows[piece : min(piece + n_rows, stop)]
                yield Reading(run, rows, np.array([len(rows)]))
        elif stop - start == own.sum():
            yield Reading(run, federation.rows[start:stop], own)
        else:
            skipped = starts[run] - (np.cumsum(own) - own)
            yield Reading(run, federation.rows[np.repeat(skipped, own) + np.arange(own.sum())], own)


def draw_minibatches(uniforms, lengths, *, replacement):
    """Minibatch of each client, as row numbers within the client.

    Parameters
    ----------
    uniforms : ndarray of shape (n_clients, batch_size)
        Numbers in [0, 1), one for each row to draw.
    lengths : ndarray of int, shape (n_clients,)
        Number of rows of each client, m_i; at least ``batch_size`` without replacement.
    replacement : bool
        Whether a row may be drawn twice. Without replacement the draw is Floyd's (Bentley and
        Floyd, CACM 1987): every subset is as likely as any other, from one number a row.

    Returns
    -------
    batches : ndarray of int, shape (n_clients, batch_size)
    """
    if replacement:
        return (uniforms * lengths[:, None]).astype(np.intp)
    n_clients, batch_size = uniforms.shape
    batches = np.empty((n_clients, batch_size), dtype=np.intp)
    taken = np.zeros((n_clients, int(lengths.max(initial=0))), dtype=bool)
    every = np.arange(n_clients)
    for j in range(batch_size):
        newest = lengths - batch_size + j
        drawn = (uniforms[:, j] * (newest + 1)).astype(np.intp)
        batches[:, j] = np.where(taken[every, drawn], newest, drawn)
        taken[every, batches[:, j]] = True
    return batches
