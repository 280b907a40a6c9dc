"""Automatic step sizes and loop lengths.

The theorems of the paper give how a step may grow with the number of clients n, ω, p and b; the
constants in front belong to the problem and are unknown. Those here, and in the models those of
minibatches, were established by measurement (examples/benchmarks/step_size_grid.py; table in
doc/step_sizes.rst).
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, sqrt

from ..theory import participation_omega
from ._base import Problem

# Share of Theorem 4's bound p √n / ((1 + ω) √ω_p), whose L is unknown: control variates must
# follow the fields while Ŝ moves. 1 failed with three clients, narrow components and "rand_k".
_MEMORY = 0.5
# Share of p α, with α = 1 / (1 + ω): the rate at which a control variate learns. 1 needed the
# safeguard where clients were away.
_LEARNING = 0.5
# Where the errors of many clients cancel, steps may be larger than control variates can follow, but
# no larger than this: 1 failed with 100 clients.
_LARGEST_AVERAGED = 0.5
# A step of FedEM with minibatches is held until its sum is this, and decreases from then on, as
# (rounds)^-0.7: the noise floor goes to 0 and the sum of the steps still diverges.
_HELD = 10.0
_DECAY = 0.7
# A stream's step falls as the share of a round's rows in all rows, to this power: 0.6 to 0.7 came
# within 0.02 nats of EM with 20 to 400 rounds (examples/benchmarks/streams.py).
_STREAM_DECAY = 0.65
# A row of a stream is read once: more noise is allowed than in the minibatches of a fit.
_STREAM_NOISE = 12.5
# Rows of a minibatch, or rounds of an inner loop: a double holds it, and its products.
LARGEST_COUNT = 2**52


def automatic_step_size(problem: Problem, *, variance_reduced: bool) -> Callable[[int], float]:
    """Schedule of γ for a problem.

    Parameters
    ----------
    problem : Problem
    variance_reduced : bool
        Whether the clients' estimates have no noise in the limit although they read minibatches.

    Returns
    -------
    schedule : callable
        From the round, counted from 1, to γ in (0, 1].
    """
    first = first_step_size(problem, variance_reduced=variance_reduced)
    if problem.batch_size is None or variance_reduced:
        return lambda round_number: first
    return lambda round_number: first * max(1.0, round_number * first / _HELD) ** -_DECAY


def first_step_size(problem: Problem, *, variance_reduced: bool) -> float:
    """γ before any decrease: the smallest of what clients, noise and SPIDER allow, at most 1.

    Clients allow what their control variates can follow, or more where there are so many of them
    that their errors cancel.
    """
    omega, p = problem.omega, problem.participation
    omega_p = participation_omega(omega, p)
    bounds = [1.0]
    if omega_p > 0:
        n_clients = problem.federation.effective_n_clients
        memory = _MEMORY * p * sqrt(n_clients) / ((1 + omega) * sqrt(omega_p))
        learning = _LEARNING * p / (1 + omega)
        averaging = min(
            problem.model.averaging_bound(problem.federation) / omega_p, _LARGEST_AVERAGED
        )
        bounds.append(max(min(memory, learning), averaging))
    if problem.batch_size is not None:
        noise, spider = problem.model.minibatch_bounds(
            problem.federation, problem.batch_size, omega_p
        )
        bounds.append(spider * sqrt(p / problem.n_inner) if variance_reduced else noise)
    return min(bounds)


def stream_step_size(problem: Problem, n_before: int) -> float:
    """γ of a round of a stream.

    The share of its rows in all rows so far, to a power: rows count alike in the end, and those of
    the beginning are forgotten. Less, where messages are compressed or a client may be away, or
    where the round has few rows for so many statistics.

    Parameters
    ----------
    problem : Problem
        Its federation is the batch, read whole.
    n_before : int
        Rows that came before it.

    Returns
    -------
    step_size : float
        In (0, 1].
    """
    federation, n_rows = problem.federation, problem.federation.n_samples
    batch_size = n_rows / federation.n_clients
    present = problem._replace(
        federation=federation._replace(weights=federation.weights / problem.presence),
        batch_size=None,
    )
    share = (n_rows / (n_before + n_rows)) ** _STREAM_DECAY
    noise, _ = problem.model.minibatch_bounds(present.federation, batch_size, 0.0)
    noise *= _STREAM_NOISE / (1 + participation_omega(problem.omega, problem.participation))
    memory = first_step_size(present, variance_reduced=False)
    return min(share, noise, memory)


def automatic_n_inner(n_clients: int, n_samples: int, omega: float, participation: float) -> int:
    """Rounds between two passes over all rows, k_in.

    ``(1 + omega) * sqrt(m / 2)``, with m rows a client, makes the passes cost as much as the
    minibatches if these are of ``sqrt(m / 2) / (1 + omega)`` rows, which is Theorem 3's batch
    (Appendix E.2). The batch size in use is not looked at: with b rows it would be ``m / (2 * b)``.
    A client takes part in ``participation`` of the rounds.
    """
    n_inner = (1 + omega) * sqrt(n_samples / n_clients / 2) / participation
    return ceil(min(n_inner, LARGEST_COUNT))
