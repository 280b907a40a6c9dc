"""When a run has converged, from what the server legitimately sees."""

from __future__ import annotations

from math import inf

# A stochastic run converges after this many sweeps in a row that gain less than tol ...
_QUIET_SWEEPS = 3
# ... and a sweep is never shorter than this many rounds.
_SHORTEST_SWEEP = 10


class Exact:
    """scikit-learn's rule: the log-likelihood of two iterates in a row differs by less than tol.

    For exact rounds, where the clients' E-steps tell the log-likelihood. Nats per row.
    """

    def __init__(self, tol):
        self.tol = tol
        self.log_likelihoods = []

    def converged(self, log_likelihood):
        """Take the log-likelihood of one more iterate; say whether to stop."""
        last = self.log_likelihoods[-1] if self.log_likelihoods else -inf
        self.log_likelihoods.append(log_likelihood)
        return abs(log_likelihood - last) < self.tol


class Sweeps:
    """Stop when several sweeps in a row gain less than tol.

    A sweep is a run of rounds whose step sizes add up to 1: the rounds in which Ŝ can move as far
    as one EM iteration moves it. Its gain is what the M-step's objective gains between its two
    ends, ``Q(s; T(s)) - Q(s; T(s'))`` with s the statistic now and s' the one a sweep ago: never
    negative, and in nats per row as the log-likelihood. Noise in Ŝ adds to the gain, so that a run
    whose noise is above tol goes on.
    """

    def __init__(self, tol, model, server):
        self.tol = tol
        self.model = model
        self._start_of_sweep(server)
        self.quiet = 0

    def _start_of_sweep(self, server):
        self.parameters, self.travelled, self.n_rounds = server.parameters, 0.0, 0

    def converged(self, server, step_size):
        """Take the server's state after one more round; say whether to stop."""
        self.travelled += step_size
        self.n_rounds += 1
        if self.travelled < 1 or self.n_rounds < _SHORTEST_SWEEP:
            return False
        now = self.model.minorizer(server.statistics, server.parameters)
        gain = now - self.model.minorizer(server.statistics, self.parameters)
        self.quiet = self.quiet + 1 if gain < self.tol else 0
        self._start_of_sweep(server)
        return self.quiet >= _QUIET_SWEEPS
