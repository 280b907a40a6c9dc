"""When a run has converged, from what the server legitimately sees."""

from __future__ import annotations

# A stochastic run converges after this many sweeps in a row that gain less than tol ...
_QUIET_SWEEPS = 3
# ... and a sweep is never shorter than this many rounds.
_SHORTEST_SWEEP = 10


class Exact:
    """scikit-learn's rule: the criterion of two iterates in a row differs by less than tol.

    For exact rounds, where the clients' E-steps tell the criterion. The model says what the
    difference is: nats per row for a log-likelihood, relative for an objective.
    """

    def __init__(self, tol, model):
        self.tol = tol
        self.model = model
        self.criteria = []

    def converged(self, criterion):
        """Take the criterion of one more iterate; say whether to stop."""
        before = self.criteria[-1:]
        self.criteria.append(criterion)
        return bool(before and abs(self.model.change(criterion, before[0])) < self.tol)


class Sweeps:
    """Stop when several sweeps in a row gain less than tol.

    A sweep is a run of rounds whose steps, as taken, add up to 1, and which heard as many messages
    as there are clients: the rounds in which Ŝ can move as far as one EM iteration moves it. Its
    gain is what the M-step's objective gains between its two ends, ``Q(s; T(s)) - Q(s; T(s'))``
    with s the statistic now and s' the one a sweep ago, as the model's ``change`` has it. Noise in
    Ŝ adds to the gain, so that a run whose noise is above tol goes on.
    """

    def __init__(self, tol, model, n_clients, server):
        self.tol = tol
        self.model = model
        self.n_clients = n_clients
        self._start_of_sweep(server)
        self.quiet = 0

    def _start_of_sweep(self, server):
        self.parameters = server.parameters
        self.travelled, self.n_rounds, self.n_messages = 0.0, 0, 0

    def converged(self, server, step_size, n_messages):
        """Take the server's state, step and messages of one more round; say whether to stop."""
        self.travelled += step_size
        self.n_rounds += 1
        self.n_messages += n_messages
        # Ten steps of 0.1 add up to a little less than 1.
        too_short = self.travelled < 1 - 1e-9 or self.n_rounds < _SHORTEST_SWEEP
        if too_short or self.n_messages < self.n_clients:
            return False
        now = self.model.minorizer(server.statistics, server.parameters)
        before = self.model.minorizer(server.statistics, self.parameters)
        gain = self.model.change(now, before)
        self.quiet = self.quiet + 1 if gain < self.tol else 0
        self._start_of_sweep(server)
        return self.quiet >= _QUIET_SWEEPS
