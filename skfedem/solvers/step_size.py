"""Automatic step sizes and loop lengths.

The theorems of the paper say how the step may depend on the number of clients n, ω, p and b; the
constants in front depend on the problem and are unknown. The constants here, and those for
minibatches in the models, were found by measurement (step_size_constants.py and step_size_grid.py
in examples/benchmarks; tables in doc/step_sizes.rst).
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, sqrt

from ..theory import participation_omega
from ._base import Problem

# Share of p α, with α = 1 / (1 + ω), the rate at which a control variate learns, and of Theorem 4's
# p √n / ((1 + ω) √ω_p), whose L is unknown: control variates must follow the fields while Ŝ moves.
_FOLLOWED = 1.0
# Where the errors of many clients cancel, steps may be larger than control variates can follow, but
# no larger than this: 1 failed with 100 clients.
_LARGEST_AVERAGED = 0.5
# A step of FedEM with minibatches is held until its sum is this, and decreases from then on, as
# (rounds)^-0.7: the noise floor goes to 0 and the sum of the steps still diverges. Held for twice
# as long, mixtures took up to twice the rounds to meet ``tol``, and imputers were as often nearer.
_HELD = 5.0
_DECAY = 0.7
# A stream's step falls as the share of a round's rows in all rows, to this power: MNIST ended 0.01
# to 0.02 nats lower with 0.6 (examples/benchmarks/streams.py).
_STREAM_DECAY = 0.5
# Factor by which a stream may be noisier than the minibatches of a fit, as its rows are read once
# and Ŝ is averaged: MNIST ended 0.06 nats lower with 5, at ω = 1.
_STREAM_NOISE = 10.0
# Ŝ of a stream is averaged with weights that grow as the rows so far, to this power less 1: with 3,
# a poor start was forgotten too slowly, with 6 there was too little to average where rounds are
# few.
_AVERAGING = 4.0
# Rows of a minibatch, or rounds of an inner loop: a double holds it, and its products.
MOST_AT_ONCE = 2**52


def automatic_step_size(problem: Problem) -> Callable[[int], float]:
    """Schedule of γ for a problem.

    Parameters
    ----------
    problem : Problem

    Returns
    -------
    schedule : callable
        From the round, counted from 1, to γ in (0, 1].
    """
    first = first_step_size(problem)
    if not problem.lasting_noise:
        return lambda round_number: first
    return lambda round_number: first * max(1.0, round_number * first / _HELD) ** -_DECAY


def first_step_size(problem: Problem) -> float:
    """γ before any decrease: the smallest of what clients, noise and SPIDER allow, at most 1.

    Clients allow what their control variates can follow, or more where there are so many of them
    that their errors cancel.
    """
    omega, p = problem.omega, problem.participation
    omega_p = participation_omega(omega, p)
    bounds = [1.0]
    if omega_p > 0:
        n_clients = problem.federation.effective_n_clients
        followed = _FOLLOWED * p / (1 + omega) * min(1.0, sqrt(n_clients / omega_p))
        averaging = min(
            problem.model.averaging_bound(problem.federation) / omega_p, _LARGEST_AVERAGED
        )
        bounds.append(max(followed, averaging))
    if problem.batch_size is not None:
        noise, spider = problem.model.minibatch_bounds(
            problem.federation, problem.batch_size, omega_p
        )
        bounds.append(noise if problem.lasting_noise else spider * sqrt(p / problem.n_inner))
    return min(bounds)


def stream_step_size(problem: Problem, n_before: float) -> float:
    """γ of a round of a stream.

    This is the share of its rows in all that were read so far, to a power: a share would make all
    rows count alike, and with the power those of the beginning, with their start, are forgotten. It
    is less if messages are compressed or if the round has few rows for so many statistics.

    Parameters
    ----------
    problem : Problem
        Of those who take part, whose rows of the batch are all read.
    n_before : float
        Number of rows that were read before the batch.

    Returns
    -------
    step_size : float
        In (0, 1].
    """
    federation, n_rows = problem.federation, problem.federation.n_samples
    batch_size = n_rows / federation.n_clients
    present = problem._replace(
        federation=federation._replace(weights=federation.weights / problem.presence)
    )
    share = (n_rows / (n_before + n_rows)) ** _STREAM_DECAY
    noise, _ = problem.model.minibatch_bounds(present.federation, batch_size, 0.0)
    noise *= _STREAM_NOISE / (1 + problem.omega)
    return min(share, noise, first_step_size(present))


def averaging_rate(n_rows: int, n_before: float) -> float:
    """By how much of their distance a stream's average moves towards Ŝ in a round.

    Parameters
    ----------
    n_rows : int
        That are read in the round.
    n_before : float
        That were read before.
    """
    return min(1.0, _AVERAGING * n_rows / (n_before + n_rows))


def automatic_n_inner(n_clients: int, n_samples: int, omega: float, participation: float) -> int:
    """Rounds between two passes over all rows, k_in.

    With m rows per client, ``(1 + omega) * sqrt(m / 2)`` makes the passes cost as much as the
    minibatches if these have ``sqrt(m / 2) / (1 + omega)`` rows, the batch size of Theorem 3
    (Appendix E.2). The batch size in use is not considered: for b rows, k_in would be
    ``m / (2 * b)``. This is divided by ``participation``, the share of rounds in which a client
    takes part.
    """
    n_inner = (1 + omega) * sqrt(n_samples / n_clients / 2) / participation
    return ceil(min(n_inner, MOST_AT_ONCE))
