"""Who takes part in a round."""

from __future__ import annotations

import numpy as np

from ._messages import short
from ._parameters import check_counts, check_number
from ._typing import IntArray

__all__ = ["draw_active"]


def draw_active(generator: np.random.Generator, n_clients: int, participation: float) -> IntArray:
    """Draw the clients of a round, each independently with the same probability.

    The number of active clients is drawn first (binomial), then which they are, so that the cost
    follows the number of active clients, not the number of clients.

    Parameters
    ----------
    generator : numpy.random.Generator
        Draws the numbers, and moves on by doing so.
    n_clients : int
        Number of clients, n.
    participation : float in (0, 1]
        Probability p that a client takes part. With 1, every client does and nothing is drawn.

    Returns
    -------
    active : ndarray of int, shape (n_active,)
        Increasing client indices; may be empty.

    Raises
    ------
    TypeError, ValueError
        If `generator` is no Generator, or a number is out of its domain.

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
            f"Expected generator to be a numpy.random.Generator, got {short(generator)}. "
            "numpy.random.default_rng(seed) makes one."
        )
    check_counts(n_clients=n_clients)
    check_number("participation", participation, low=0, low_open=True, high=1)
    if participation == 1:
        return np.arange(n_clients)
    n_active = generator.binomial(n_clients, participation)
    return np.sort(generator.choice(n_clients, n_active, replace=False, shuffle=False))
