"""Clients that take part in a round.

Raises
------
TypeError, ValueError
    By all functions, if an argument is not of its type or out of range.
"""

from __future__ import annotations

from numbers import Integral

import numpy as np

from ._error_messages import repr_of
from ._parameters import check_counts, check_not_negative, check_number
from ._typing import IntArray, Participation

__all__ = ["draw_active", "inclusion_probability", "participation_omega"]

_HINT = "Give a probability as a float, such as 1.0 for all, or so many clients a round as an int."


def check_participation(participation: Participation, n_clients: int | None = None) -> None:
    """Raise if this is neither a float in (0, 1] nor an integer from 1 to the number of clients."""
    if not isinstance(participation, Integral):
        check_number("participation", participation, low=0, low_open=True, high=1, hint=_HINT)
        return
    check_number("participation", participation, kind=Integral, low=1, hint=_HINT)
    if n_clients is not None and participation > n_clients:
        raise ValueError(
            f"Expected participation to be at most the number of clients, {n_clients}, got "
            f"{participation}. {_HINT}"
        )


def draw_active(
    generator: np.random.Generator, n_clients: int, participation: Participation
) -> IntArray:
    """Draw the clients of a round: each independently, or so many without replacement.

    The cost grows with the number of active clients, not with the number of clients.

    Parameters
    ----------
    generator : numpy.random.Generator
    n_clients : int
    participation : float in (0, 1] or int in [1, n_clients]
        A float is the probability p that a client takes part, independently of the others. An int
        is the number m of clients that take part; all sets of m clients are equally likely. So 1.0
        is all clients, and 1 is one client. If all take part, nothing is drawn.

    Returns
    -------
    active : ndarray of int, shape (n_active,)
        Indices of the active clients, in increasing order; may be empty with a probability.

    Notes
    -----
    A probability is assumption A9 (Appendix A) of Dieuleveut, Fort, Moulines and Robin, NeurIPS
    2021.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedem.participation import draw_active
    >>> draw_active(np.random.default_rng(0), n_clients=4, participation=1.0).tolist()
    [0, 1, 2, 3]
    >>> draw_active(np.random.default_rng(0), n_clients=4, participation=2).tolist()
    [2, 3]
    """
    if not isinstance(generator, np.random.Generator):
        raise TypeError(
            f"Expected generator to be a numpy.random.Generator, got {repr_of(generator)}. Make "
            "one with numpy.random.default_rng(seed)."
        )
    share = inclusion_probability(participation, n_clients)
    if share == 1:
        return np.arange(n_clients)
    if isinstance(participation, Integral):
        n_active = int(participation)
    else:
        n_active = generator.binomial(n_clients, share)
    return np.sort(generator.choice(n_clients, n_active, replace=False, shuffle=False))


def inclusion_probability(participation: Participation, n_clients: int) -> float:
    """Probability p that a client takes part in a round: messages are divided by it.

    Parameters
    ----------
    participation : float in (0, 1] or int in [1, n_clients]
        As in :func:`draw_active`.
    n_clients : int

    Returns
    -------
    float
        `participation` itself, or ``participation / n_clients`` if it is a number of clients.

    Examples
    --------
    >>> from skfedem.participation import inclusion_probability
    >>> inclusion_probability(0.3, n_clients=4), inclusion_probability(1, n_clients=4)
    (0.3, 0.25)
    """
    check_counts(n_clients=n_clients)
    check_participation(participation, n_clients)
    return share_of(participation, n_clients)


def share_of(participation: Participation, n_clients: int) -> float:
    """``inclusion_probability`` of numbers that have been checked."""
    if isinstance(participation, Integral):
        return int(participation) / int(n_clients)
    return float(participation)


def participation_omega(omega: float, participation: Participation, n_clients: int) -> float:
    """Relative variance ω_p of messages with compression and partial participation.

    The sum of the messages Q(x_i) of the active clients, divided by p, is an unbiased estimate of
    the sum of all x_i, and its variance is at most ``participation_omega * sum(||x_i||^2)``.

    Parameters
    ----------
    omega : float
        Relative variance ω of the compression operator, ``omega >= 0``.
    participation : float in (0, 1] or int in [1, n_clients]
        As in :func:`draw_active`.
    n_clients : int

    Returns
    -------
    float
        ``omega + (1 - p) * (1 + omega) / p`` for a probability p, and ``(omega + (1 - p) *
        n_clients / (n_clients - 1)) / p`` with ``p = participation / n_clients`` for a number of
        clients.

    Notes
    -----
    For a probability, it is ω_p of Proposition 13 of Dieuleveut, Fort, Moulines and Robin, NeurIPS
    2021, and attained if the operator attains ω. Without replacement, the variance is ``sum(||x_i
    - mean(x)||^2) * (1 - p) / p * n_clients / (n_clients - 1)`` (W. G. Cochran, "Sampling
    techniques", 1977, Theorem 2.2) and that of the compression, ``omega / p * sum(||x_i||^2)``: the
    bound is attained if the x_i sum to 0, as at the limit of a fit.

    Examples
    --------
    >>> from skfedem.participation import participation_omega
    >>> participation_omega(1.0, 0.5, n_clients=4)
    3.0
    >>> participation_omega(0.0, 3, n_clients=4)
    0.4444444444444444
    """
    check_not_negative(omega=omega)
    p = inclusion_probability(participation, n_clients)
    if p == 1:
        return float(omega)
    if isinstance(participation, Integral):
        return float((omega + (1 - p) * n_clients / (n_clients - 1)) / p)
    return float(omega + (1 - p) * (1 + omega) / p)
