"""Clients that take part in a round."""

from __future__ import annotations

import numpy as np

from ._messages import repr_of
from ._parameters import check_counts, check_number
from ._typing import IntArray

__all__ = ["draw_active"]


def draw_active(generator: np.random.Generator, n_clients: int, participation: float) -> IntArray:
    """Draw the clients of a round, each independently with the same probability.

    The number of active clients is drawn first, from a binomial distribution, and then the clients
    themselves, so that the cost grows with the number of active clients, not with the number of
    clients.

    Parameters
    ----------
    generator : numpy.random.Generator
        Random generator; its state advances.
    n_clients : int
        Number of clients, n.
    participation : float in (0, 1]
        Probability p that a client takes part. With 1, all clients take part and nothing is drawn.

    Returns
    -------
    active : ndarray of int, shape (n_active,)
        Indices of the active clients, in increasing order; may be empty.

    Raises
    ------
    TypeError, ValueError
        If `generator` is not a Generator, or a number is out of range.

    Notes
    -----
    Assumption A9 (Appendix A) of Dieuleveut, Fort, Moulines and Robin, NeurIPS 2021.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedem.participation import draw_active
    >>> draw_active(np.random.default_rng(0), n_clients=4, participation=1.0).tolist()
    [0, 1, 2, 3]
    """
    if not isinstance(generator, np.random.Generator):
        raise TypeError(
            f"Expected generator to be a numpy.random.Generator, got {repr_of(generator)}. Make "
            f"one "
            "with numpy.random.default_rng(seed)."
        )
    check_counts(n_clients=n_clients)
    check_number("participation", participation, low=0, low_open=True, high=1)
    if participation == 1:
        return np.arange(n_clients)
    n_active = generator.binomial(n_clients, participation)
    return np.sort(generator.choice(n_clients, n_active, replace=False, shuffle=False))
