"""Bounds of the step sizes of rounds in which clients read minibatches of their cells."""

from __future__ import annotations

from typing import NamedTuple

from ..._federation import ClientSizes


class StepBounds(NamedTuple):
    """Factors of ``noise_bound`` and ``spider_bound``.

    With 2 for both, SPIDER diverged on presences with "rand_k" at ω = 1, and FedEM was at its
    limit: a cell that is drawn with probability π, and then weighted by 1 / π, requires γ < 2 π.
    """

    noise: float = 1.0
    spider: float = 1.4


STEP_BOUNDS = StepBounds()


def sampling_fraction(sizes: ClientSizes, batch_size: float) -> float:
    """Share of its cells that a client reads in a minibatch.

    It is the share of a mean client, or that of the client with the noisiest cells if this is
    smaller: the one with the most cells, if all cells have the same weight.
    """
    weights, lengths = sizes
    longest = float(weights.max() / (weights / lengths).max())
    return batch_size / max(longest, float(weights @ lengths))
