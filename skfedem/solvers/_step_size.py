"""Automatic step sizes and loop lengths.

The theorems of the paper say how the step may depend on the number of clients n, ω, p and b, up to
unknown constants that depend on the problem. The constants here, and those for minibatches in the
models, were measured (step_size_constants.py and step_size_grid.py in examples/benchmarks; tables
in doc/step_sizes.rst).
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, sqrt

from .base import Problem

# Largest step as a share of p α, the learning rate of control variates with α = 1 / (1 + ω), and of
# p √n / ((1 + ω) √ω_p), Theorem 4's bound without the unknown L: control variates must be able to
# follow the fields while Ŝ moves.
_FOLLOWED = 1.0
# Largest step if the errors of so many clients cancel that control variates need not follow: 1
# failed with 100 clients.
_LARGEST_AVERAGED = 0.5
# With minibatches, FedEM's step is constant until the steps add up to this, and then decreases as
# (rounds)^-0.7, so that the noise vanishes while the sum of the steps diverges. With 10, mixtures
# needed up to twice the rounds to reach ``tol``, and imputers ended closer to the optimum no more
# often than not.
_HELD = 5.0
_DECAY = 0.7
# In a stream, the step is a round's share of all rows so far, to this power: MNIST ended 0.01 to
# 0.02 nats lower with 0.6 (examples/benchmarks/streams.py).
_STREAM_DECAY = 0.5
# Steps of a stream may be this many times noisier than with minibatches in a fit, because rows are
# read once and Ŝ is averaged: MNIST ended 0.06 nats lower with 5, at ω = 1.
_STREAM_NOISE = 10.0
# In a stream, Ŝ is averaged with weights that grow as the number of rows so far, to this power
# minus 1: with 3, a poor start was forgotten too slowly; with 6, few rounds averaged too little.
_AVERAGING = 4.0
# Largest minibatch, or inner loop: larger numbers would not be exact in double precision.
MOST_AT_ONCE = 2**52


def automatic_step_size(problem: Problem) -> Callable[[int], float]:
    """Schedule of γ in (0, 1] for a problem, a function of the round number, counted from 1."""
    first = first_step_size(problem)
    if not problem.persistent_noise:
        return lambda round_number: first
    return lambda round_number: first * max(1.0, round_number * first / _HELD) ** -_DECAY


def first_step_size(problem: Problem) -> float:
    """γ before any decrease: the smallest of the bounds by clients, noise and SPIDER, and 1.

    The bound by clients is the step that their control variates can follow, or a larger one if
    there are so many clients that their errors cancel.
    """
    omega, p = problem.omega, problem.inclusion_probability
    omega_p = omega + (1 - p) * (1 + omega) / p  # ``participation_omega``
    bounds = [1.0]
    if omega_p > 0:
        n_clients = problem.sizes.effective_n_clients
        followed = _FOLLOWED * p / (1 + omega) * min(1.0, sqrt(n_clients / omega_p))
        averaging = min(problem.model.averaging_bound(problem.sizes) / omega_p, _LARGEST_AVERAGED)
        bounds.append(max(followed, averaging))
    if problem.task.batch_size is not None:
        minibatches = problem.sizes, problem.task.batch_size, omega_p
        if problem.persistent_noise:
            bounds.append(_known(problem.model.noise_bound(*minibatches), problem))
        else:
            bound = _known(problem.model.spider_bound(*minibatches), problem)
            bounds.append(bound * sqrt(p / problem.n_inner))
    return min(bounds)


def _known(bound: float | None, problem: Problem) -> float:
    """Bound of a model; raise if the model has none."""
    if bound is None:
        raise ValueError(
            f"Expected a number or a function as step_size, got 'auto', for which "
            f"{type(problem.model).__name__} has no bound with minibatches."
        )
    return bound


def stream_step_size(problem: Problem, n_before: float) -> float:
    """γ of a round of a stream, after ``n_before`` rows.

    This is the round's share of all rows read so far, to the power ``_STREAM_DECAY``. The share
    itself would weight all rows equally; with the power, early rows are forgotten, and with them
    the start. It is smaller if messages are compressed, or if the round has few rows for the number
    of statistics. The problem is that of the clients that take part, which read their whole
    batches.
    """
    sizes, n_rows = problem.sizes, problem.sizes.n_samples
    batch_size = n_rows / sizes.n_clients
    present = problem._replace(
        sizes=sizes._replace(weights=sizes.weights / problem.participating_weight)
    )
    share = (n_rows / (n_before + n_rows)) ** _STREAM_DECAY
    noise = _known(problem.model.noise_bound(present.sizes, batch_size, 0.0), problem)
    noise *= _STREAM_NOISE / (1 + problem.omega)
    return min(share, noise, first_step_size(present))


def averaging_rate(n_rows: int, n_before: float) -> float:
    """Share of its distance to Ŝ by which a stream's average moves, on reading so many rows."""
    return min(1.0, _AVERAGING * n_rows / (n_before + n_rows))


def automatic_n_inner(n_clients: int, n_samples: int, omega: float, participation: float) -> int:
    """Number k_in of inner rounds between two passes over all rows.

    With m rows per client, ``(1 + omega) * sqrt(m / 2)`` makes the passes cost as much as the
    minibatches if these have ``sqrt(m / 2) / (1 + omega)`` rows, the batch size of Theorem 3
    (Appendix E.2). The actual batch size is not considered: for b rows, k_in would be ``m / (2 *
    b)``. The result is divided by ``participation``, the share of rounds in which a client takes
    part.
    """
    n_inner = (1 + omega) * sqrt(n_samples / n_clients / 2) / participation
    return ceil(min(n_inner, MOST_AT_ONCE))
