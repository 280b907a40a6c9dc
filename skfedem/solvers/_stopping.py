"""When a run has converged, from what the server legitimately sees."""

from __future__ import annotations

from itertools import pairwise
from math import inf
from typing import NamedTuple

# A stochastic run converges after this many sweeps in a row that gain less than tol ...
_QUIET_SWEEPS = 3
# ... and a sweep is never shorter than this many rounds.
_SHORTEST_SWEEP = 10


class Sweep(NamedTuple):
    """State of ``Sweeps``.

    Where a sweep began and in which outer loop, how far it went, how many sweeps before it were
    quiet, and in which outer loop the first of these began.
    """

    parameters: NamedTuple
    outer_loop: int = 0
    travelled: float = 0.0
    n_rounds: int = 0
    n_messages: int = 0
    quiet: int = 0
    quiet_since: int = 0


class Exact:
    """scikit-learn's rule: the criterion of two iterates in a row differs by less than tol times γ.

    This is for exact rounds, in which the clients' E-steps yield the criterion. The model defines
    the difference: in nats per row for a log-likelihood, relative for an objective. A step of γ
    gains a share γ of what a whole step gains, so that each difference is judged by the step that
    led from one iterate to the other. The model also says how many differences in a row have to be
    small; the last one must be no larger than the first: steps with momentum may gain little once,
    or while they gather pace, and much thereafter. The state is the list of criteria so far.
    """

    def __init__(self, tol, model):
        self.tol = tol
        self.model = model
        self.state = []

    def converged(self, criterion, step_sizes):
        """Take the criterion of one more iterate, and the steps γ up to it; say whether to stop.

        The steps are the last ones actually taken, as many as there are changes that have to be
        small. A step of 0 says nothing about what is left to gain.
        """
        self.state.append(criterion)
        latest = self.state[-1 - self.model.n_quiet :]
        if len(latest) <= self.model.n_quiet:
            return False
        gains = [
            abs(self.model.change(now, before)) / step_size if step_size else inf
            for (before, now), step_size in zip(pairwise(latest), step_sizes, strict=True)
        ]
        return bool(gains[-1] <= gains[0] and max(gains) < self.tol)


class Sweeps:
    """Stop when several sweeps in a row gain less than tol.

    A sweep is a sequence of rounds in which the steps actually taken add up to 1 and at least as
    many messages arrived as there are clients: enough rounds for Ŝ to move as far as one EM
    iteration moves it. Its gain is that of the M-step's objective between its two ends,
    ``Q(s; T(s)) - Q(s; T(s'))``, where s is the statistic now and s' the one a sweep ago, measured
    by the model's ``change``. Noise in Ŝ adds to the gain, so that a run whose noise is above tol
    goes on.

    The errors of SPIDER add up on the way and rest when Ŝ does, so that sweeps are quiet at a wrong
    place, too. The last sweep has to be in a later outer loop than the first of them: a pass over
    all rows, which ends these errors, has found nothing to gain.
    """

    def __init__(self, tol, model, n_clients, server, outer_loop):
        self.tol = tol
        self.model = model
        self.n_clients = n_clients
        self.state = Sweep(server.parameters, outer_loop, quiet_since=outer_loop)

    def converged(self, server, step_size, n_messages, outer_loop):
        """Take one more round: the server's state after it, its step, its messages.

        ``outer_loop`` is that of the next round. Returns whether to stop.
        """
        sweep = self.state._replace(
            travelled=self.state.travelled + step_size,
            n_rounds=self.state.n_rounds + 1,
            n_messages=self.state.n_messages + n_messages,
        )
        # Ten steps of 0.1 add up to a little less than 1.
        too_short = sweep.travelled < 1 - 1e-9 or sweep.n_rounds < _SHORTEST_SWEEP
        if too_short or sweep.n_messages < self.n_clients:
            self.state = sweep
            return False
        now = self.model.minorizer(server.statistics, server.parameters)
        before = self.model.minorizer(server.statistics, sweep.parameters)
        is_quiet = abs(self.model.change(now, before)) < self.tol
        if is_quiet:
            n_quiet, since = sweep.quiet + 1, sweep.quiet_since
        else:
            n_quiet, since = 0, outer_loop
        self.state = Sweep(server.parameters, outer_loop, quiet=n_quiet, quiet_since=since)
        return n_quiet >= _QUIET_SWEEPS and sweep.outer_loop > since
