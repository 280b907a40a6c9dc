"""Stopping rules, which only use information that the server has."""

from __future__ import annotations

from math import inf, isnan, nan
from typing import NamedTuple

import numpy as np

from .._typing import FloatArray
from ..models._base import Model, Parameters
from .base import Problem, ServerState
from .server import outer_loop_of

# Random rounds have converged after this many consecutive sweeps that gain less than tol ...
_QUIET = 3
# ... and a sweep has at least this many rounds.
_SHORTEST_SWEEP = 10


class StoppingByCriterion(NamedTuple):
    """Gains of the latest exact rounds, see ``next_by_criterion``.

    Attributes
    ----------
    latest : ndarray of shape (n_quiet,)
        Gains of the latest steps between iterates with known criteria; inf before there are any.
    criterion : float
        Criterion of the last of these iterates.
    step_size : float
        Step that was taken from this iterate.
    next_criterion : float
        Criterion of the next iterate, to which this step led, if the run ended there; NaN during a
        run.
    """

    latest: FloatArray
    criterion: float = nan
    step_size: float = 0.0
    next_criterion: float = nan

    def converged(self, tol: float) -> bool:
        """Whether the gains are small enough to stop."""
        return bool(self.latest[-1] <= self.latest[0] and self.latest.max() < tol)


class StoppingBySurrogate(NamedTuple):
    """A sweep, see ``next_by_surrogate``, and the number of quiet ones before it.

    Attributes
    ----------
    parameters : NamedTuple
        Parameters at its start.
    outer_loop : int
        Outer loop in which it started.
    step_sum : float
        Sum of the steps taken so far.
    n_rounds, n_messages : int
        Numbers of rounds and messages so far.
    n_quiet : int
        Number of consecutive sweeps directly before it that gained less than tol.
    quiet_since : int
        Outer loop in which the first of these started.
    converged : bool
        Whether the run has converged.
    """

    parameters: Parameters
    outer_loop: int = 0
    step_sum: float = 0.0
    n_rounds: int = 0
    n_messages: int = 0
    n_quiet: int = 0
    quiet_since: int = 0
    converged: bool = False

    @property
    def unconfirmed(self) -> bool:
        """Whether convergence only lacks the confirmation by a pass over all rows."""
        enough = self.n_quiet >= _QUIET and not self.converged
        return enough and self.outer_loop == self.quiet_since


def first_stopping(
    problem: Problem, server: ServerState, gains: StoppingByCriterion | None
) -> StoppingByCriterion | StoppingBySurrogate | None:
    """State of the stopping rule before the first round; None without one.

    Exact rounds are judged by the criterion, if the model has one; random ones by the surrogate.
    """
    if not isinstance(problem.model, Model):
        return None
    if problem.exact and problem.model.criterion:
        return gains or first_by_criterion(problem.model)
    return first_by_surrogate(problem, server)


def first_by_surrogate(problem: Problem, server: ServerState) -> StoppingBySurrogate:
    """A sweep that starts here, without quiet ones before it."""
    outer_loop = outer_loop_of(problem, server)
    return StoppingBySurrogate(server.parameters, outer_loop, quiet_since=outer_loop)


def first_by_criterion(model: Model) -> StoppingByCriterion:
    """Gains before the first round."""
    return StoppingByCriterion(np.full(model.n_quiet, inf))


def of_these_rows(
    gains: StoppingByCriterion, criterion: float, model: Model
) -> StoppingByCriterion:
    """Gains of earlier rounds; reset if the next criterion shows that the rows have changed."""
    same_rows = isnan(gains.next_criterion) or criterion == gains.next_criterion
    return gains if same_rows else first_by_criterion(model)


def next_by_criterion(
    gains: StoppingByCriterion, criterion: float, step_size: float, model: Model
) -> StoppingByCriterion:
    """Update the gains with the criterion of the next iterate, and the step taken from it.

    This is scikit-learn's rule, for exact rounds, in which the clients' E-steps yield the criterion
    of the current iterate: a run has converged when the criterion of two consecutive iterates
    differs by less than tol times γ. The model defines the difference: in nats per row for a
    log-likelihood, relative for an objective. A step γ gains about a share γ of what a whole step
    gains, so that each difference is divided by the step between the two iterates; a step of 0 says
    nothing about the remaining gain. The model also sets the number of consecutive differences that
    have to be small, and the last one must not exceed the first: steps with momentum may gain
    little once, or while they accelerate, and much thereafter.

    If a run continues another one, ``of_these_rows`` decides whether its gains count.
    """
    gains = of_these_rows(gains, criterion, model)
    gain = inf
    if gains.step_size > 0:
        gain = model.change(criterion, gains.criterion) / gains.step_size
    return StoppingByCriterion(np.append(gains.latest[1:], gain), criterion, step_size)


def next_by_surrogate(
    sweep: StoppingBySurrogate,
    problem: Problem,
    server: ServerState,
    step_size: float,
    n_messages: int,
    tol: float,
) -> StoppingBySurrogate:
    """State after one more round, from the server's state, step and number of messages.

    A sweep leads from a statistic s' to s. A run has converged when three consecutive sweeps
    satisfy ::

        2 |Q(s; T(s)) - Q(s; T(s'))| < tol,    Q(s; θ) = <s, φ(θ)> - ψ(θ).

    A sweep ends when its steps add up to 1, it has as many messages as there are clients, and it
    has at least 10 rounds: Ŝ could then move as far as in one EM iteration.

    Q is the model's ``surrogate``, and ``change`` measures its difference. The factor 2 accounts
    for the curvature of Q: along a plateau, the criterion gains ``dᵀ I d``, where d is the
    displacement and I the complete-data information, but Q only half of it. (If Q is the criterion,
    as for low rank, the factor is a margin for rounds without momentum.) Noise in Ŝ increases the
    difference, so that a run whose noise is above tol continues.

    The errors of SPIDER accumulate but do not change while Ŝ is fixed, so that sweeps may also be
    quiet at a wrong point. The last sweep therefore has to be in a later outer loop than the first
    one, after a pass over all rows has removed these errors. If only this is missing, the sweep is
    ``unconfirmed``, and a new outer loop should start.
    """
    sweep = sweep._replace(
        step_sum=sweep.step_sum + step_size,
        n_rounds=sweep.n_rounds + 1,
        n_messages=sweep.n_messages + n_messages,
    )
    is_whole = (
        sweep.step_sum >= 1 - 1e-9  # ten steps of 0.1 add up to a little less than 1
        and sweep.n_rounds >= _SHORTEST_SWEEP
        and sweep.n_messages >= problem.sizes.n_clients
    )
    if not is_whole:
        return sweep
    model = problem.model
    now = model.surrogate(server.statistics, server.parameters)
    before = model.surrogate(server.statistics, sweep.parameters)
    following = first_by_surrogate(problem, server)
    if now is None or before is None or not 2 * model.change(now, before) < tol:
        return following
    n_quiet = sweep.n_quiet + 1
    return following._replace(
        n_quiet=n_quiet,
        quiet_since=sweep.quiet_since,
        converged=n_quiet >= _QUIET and sweep.outer_loop > sweep.quiet_since,
    )
