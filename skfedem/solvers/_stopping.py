"""When a run has converged, from what the server legitimately sees."""

from __future__ import annotations

from math import inf, isnan, nan
from typing import NamedTuple

import numpy as np

from ._base import outer_loop_of

# A stochastic run converges after this many sweeps in a row that gain less than tol ...
_QUIET_SWEEPS = 3
# ... and a sweep is never shorter than this many rounds.
_SHORTEST_SWEEP = 10


class Gains(NamedTuple):
    """What the latest exact rounds have gained, see ``next_gains``.

    Attributes
    ----------
    latest : ndarray of shape (n_quiet,)
        Gains of the latest steps between iterates whose criteria are known; inf for want of them.
    criterion : float
        Of the last of these iterates.
    step_size : float
        Step that was taken from it.
    ahead : float
        Criterion of the iterate that it led to, if a run has ended there; NaN on the way.
    """

    latest: np.ndarray
    criterion: float = nan
    step_size: float = 0.0
    ahead: float = nan

    def settled(self, tol):
        """Whether they are enough to stop."""
        return bool(self.latest[-1] <= self.latest[0] and self.latest.max() < tol)


class Sweep(NamedTuple):
    """A sweep, see ``next_sweep``, and what is known of those before it.

    Attributes
    ----------
    parameters : NamedTuple
        Where it began.
    outer_loop : int
        In which outer loop.
    travelled : float
        Sum of the steps taken so far.
    n_rounds, n_messages : int
        So far.
    n_quiet : int
        How many sweeps before it, in a row, gained less than tol.
    quiet_since : int
        In which outer loop the first of these began.
    converged : bool
        Whether they are enough to stop.
    """

    parameters: NamedTuple
    outer_loop: int = 0
    travelled: float = 0.0
    n_rounds: int = 0
    n_messages: int = 0
    n_quiet: int = 0
    quiet_since: int = 0
    converged: bool = False

    @property
    def unconfirmed(self):
        """Whether nothing is lacking but a pass over all rows, and it is still to come."""
        enough = self.n_quiet >= _QUIET_SWEEPS and not self.converged
        return enough and self.outer_loop == self.quiet_since


def first_sweep(problem, server):
    """Sweep that begins here, with none before it that was quiet."""
    outer_loop = outer_loop_of(problem, server)
    return Sweep(server.parameters, outer_loop, quiet_since=outer_loop)


def no_gains(model):
    """Gains before the first round."""
    return Gains(np.full(model.n_quiet, inf))


def of_these_rows(gains, criterion, model):
    """Gains of earlier rounds, unless the criterion ahead has become another: so have the rows."""
    return gains if isnan(gains.ahead) or criterion == gains.ahead else no_gains(model)


def next_gains(gains, criterion, step_size, model):
    """Gains once the criterion of the next iterate is known, from which this step was taken.

    This is scikit-learn's rule, for exact rounds, in which the clients' E-steps yield the criterion
    of the iterate that they begin from: a run has settled when the criterion of two iterates in a
    row differs by less than tol times γ. The model defines the difference: in nats per row for a
    log-likelihood, relative for an objective. A step of γ gains a share γ of what a whole step
    gains, so that each difference is judged by the step that led from one iterate to the other; a
    step of 0 says nothing about what is left to gain. The model also says how many differences in a
    row have to be small; the last one must be no larger than the first: steps with momentum may
    gain little once, or while they gather pace, and much thereafter.

    Where a run goes on from another, whose gains count as well, ``of_these_rows`` does.
    """
    gains = of_these_rows(gains, criterion, model)
    gain = inf
    if gains.step_size > 0:
        gain = model.change(criterion, gains.criterion) / gains.step_size
    return Gains(np.append(gains.latest[1:], gain), criterion, step_size)


def next_sweep(sweep, problem, server, step_size, n_messages, tol):
    """Sweep after one more round, from the server's state, step and number of messages.

    A sweep leads from a statistic s' to s. A run has converged when each of three in a row has ::

        2 |Q(s; T(s)) - Q(s; T(s'))| < tol,    Q(s; θ) = <s, φ(θ)> - ψ(θ).

    The steps of a sweep add up to 1, and as many messages arrive as there are clients: enough for Ŝ
    to move as far as one EM iteration moves it. It has 10 rounds or more.

    Q is the model's ``surrogate``, and ``change`` measures its difference. This counts twice, as Q
    bends away from the criterion: along a plateau the criterion gains ``dᵀ I d``, where d is the
    way and I the information of complete data, and Q half of it. (Where Q is the criterion, as for
    low rank, this is a margin for rounds that have no momentum.) Noise in Ŝ adds to it, so that a
    run whose noise is above tol goes on.

    The errors of SPIDER add up on the way and rest when Ŝ does, so that sweeps are quiet at a wrong
    place, too. The last sweep has to be in a later outer loop than the first of them: a pass over
    all rows, which ends these errors, has found nothing to gain. Where that alone is lacking, the
    sweep is ``unconfirmed``, and a new outer loop should begin.
    """
    sweep = sweep._replace(
        travelled=sweep.travelled + step_size,
        n_rounds=sweep.n_rounds + 1,
        n_messages=sweep.n_messages + n_messages,
    )
    is_whole = (
        sweep.travelled >= 1 - 1e-9  # ten steps of 0.1 add up to a little less than 1
        and sweep.n_rounds >= _SHORTEST_SWEEP
        and sweep.n_messages >= problem.federation.n_clients
    )
    if not is_whole:
        return sweep
    model = problem.model
    now = model.surrogate(server.statistics, server.parameters)
    before = model.surrogate(server.statistics, sweep.parameters)
    following = first_sweep(problem, server)
    if not 2 * model.change(now, before) < tol:
        return following
    n_quiet = sweep.n_quiet + 1
    return following._replace(
        n_quiet=n_quiet,
        quiet_since=sweep.quiet_since,
        converged=n_quiet >= _QUIET_SWEEPS and sweep.outer_loop > sweep.quiet_since,
    )
