"""Bounds of automatic steps of a mixture, with constants that were measured."""

from __future__ import annotations

import numpy as np

# Shares of n / ω_p and N / (q ω_p): up to these steps, averages over so many clients and rows hold
# although control variates lag behind. Twice as much made gaps after 200 rounds 1.6 times as large,
# in the mean of 180 random mixtures, half of which had narrow components.
_CLIENTS = 0.03
_ROWS = 0.15
# Share of n b / (q (1 + ω_p)), or of Theorem 4's n b / (q (1 + 5 ω_p)), for the first steps of
# FedEM: the noise of minibatches and messages must not carry Ŝ out of the domain of the M-step.
_NOISE = 0.1
# Share of √(n b p / (k_in (1 + ω_p))): SPIDER's error adds up over an inner loop. n, b and k_in are
# as in Proposition 25, p and ω_p are ours. 0.2 failed with batches of one row and 660 statistics.
_SPIDER = 0.1


def averaging_bound(model, federation):
    """Bound of the step γ, after division by ω_p, where clients' errors cancel in the mean."""
    of_rows = _ROWS * federation.n_samples / model.n_statistics
    return min(_CLIENTS * federation.effective_n_clients, of_rows)


def minibatch_bounds(model, federation, batch_size, omega_p):
    """Bounds of the step γ of FedEM, and of VR-FedEM after multiplication by ``√(p / k_in)``."""
    n_rows = federation.effective_n_clients * batch_size
    # There, the noise of the means grows with their distance from the centre of all rows.
    factor = 5 if model.covariance_is_rest else 1
    noise = _NOISE * n_rows / (model.n_statistics * (1 + factor * omega_p))
    return noise, _SPIDER * np.sqrt(n_rows / (1 + omega_p))
