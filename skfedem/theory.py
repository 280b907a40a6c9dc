"""Constants of the theorems as functions of the size of the problem.

The Lipschitz and curvature constants that they require are unknown for most data: in practice, the
dependence on ``n_clients``, ``omega`` and ``participation`` is what matters.

Numbers of theorems, corollaries, propositions, assumptions and equations refer to [1]_.

Raises
------
TypeError, ValueError
    By all functions, if an argument is not a number or out of its domain.

References
----------
.. [1] A. Dieuleveut, G. Fort, E. Moulines and G. Robin, "Federated Expectation Maximization with
   heterogeneity mitigation and variance reduction", Advances in Neural Information Processing
   Systems 34, 2021.
"""

from __future__ import annotations

import math

from ._parameters import (
    check_counts,
    check_not_negative,
    check_number,
    check_positive,
    takes_python_numbers,
)

__all__ = [
    "control_step",
    "max_step_size",
    "noise_factor",
    "optimal_step_size",
    "vr_batch_size",
    "vr_cost",
    "vr_n_inner",
    "vr_step_size",
]


@takes_python_numbers
def control_step(omega: float) -> float:
    """Largest step size of the control variates that the theorems allow.

    Parameters
    ----------
    omega : float
        Relative variance ω of the compression operator, ``omega >= 0``.

    Returns
    -------
    float
        ``1 / (1 + omega)``.

    Notes
    -----
    All theorems take α = 1/(1 + ω); the proofs (Propositions 11, 15 and 22) hold for any α in (0,
    1/(1 + ω)].

    Examples
    --------
    >>> from skfedem.theory import control_step
    >>> control_step(3.0)
    0.25
    """
    check_not_negative(omega=omega)
    return 1 / (1 + omega)


@takes_python_numbers
def max_step_size(
    n_clients: int,
    omega: float,
    participation: float = 1.0,
    *,
    v_min: float,
    gradient_lipschitz: float,
    field_lipschitz: float,
) -> float:
    """Largest step size of FedEM that its theorem allows.

    Parameters
    ----------
    n_clients : int
        Number n of clients, ``n_clients >= 1``.
    omega : float
        Relative variance ω of the compression operator, ``omega >= 0``.
    participation : float, default=1.0
        Probability p that a client takes part in a round, ``0 < participation <= 1``.
    v_min : float
        Positive lower bound of the eigenvalues of the matrices B in A4, which relate the gradient
        of the objective W, as a function of the statistics, to the mean field: ∇W = -B h.
    gradient_lipschitz : float
        Lipschitz constant of ∇W, positive (L_Ẇ in A4).
    field_lipschitz : float
        Root mean square L of the Lipschitz constants of the clients' fields, positive (A5).

    Returns
    -------
    float
        The smaller of ``v_min / (2 * gradient_lipschitz)`` and ``participation * sqrt(n_clients) /
        (2 * sqrt(2) * field_lipschitz * (1 + omega) * sqrt(omega_p))``, with ``omega_p`` from
        :func:`~skfedem.participation.participation_omega`. The latter is infinite if it is 0.

    Notes
    -----
    Theorem 4 (for p = 1, equation (7) of Theorem 1), with the control step α = 1/(1 + ω). For small
    p the second bound decreases like p**1.5: a factor p because control variates are updated less
    often, and the square root of p because of the random participation.

    For p = 1 and ω = 0, it is the limit for ω → 0; the guarantee of equation (9), for this case
    alone, is largest at twice the returned value.

    Examples
    --------
    >>> from skfedem.theory import max_step_size
    >>> constants = dict(v_min=1.0, gradient_lipschitz=1.0, field_lipschitz=1.0)
    >>> max_step_size(32, 0.0, **constants)
    0.5
    >>> round(max_step_size(32, 1.0, 0.25, **constants), 4)
    0.0945
    """
    check_counts(n_clients=n_clients)
    message_omega = _message_omega(omega, participation)
    check_positive(
        v_min=v_min, gradient_lipschitz=gradient_lipschitz, field_lipschitz=field_lipschitz
    )
    curvature_bound = v_min / 2 / gradient_lipschitz
    if message_omega == 0:
        return curvature_bound
    message_noise = field_lipschitz * (1 + omega) * math.sqrt(message_omega)
    message_bound = participation * math.sqrt(n_clients) / (2 * math.sqrt(2) * message_noise)
    return min(curvature_bound, message_bound)


@takes_python_numbers
def noise_factor(n_clients: int, omega: float, participation: float = 1.0) -> float:
    """Factor of the clients' sampling variance in the limiting error of FedEM.

    Parameters
    ----------
    n_clients, omega, participation
        As in :func:`max_step_size`.

    Returns
    -------
    float
        ``(1 + 5 * omega_p) / n_clients``, with ``omega_p`` as in :func:`max_step_size`.

    Notes
    -----
    Theorem 4 (for p = 1, equation (8) of Theorem 1). The part of the bound that does not vanish as
    the number of rounds grows is ``step_size * gradient_lipschitz * noise_factor *
    noise_variance``, divided by ``v_min * (1 - step_size * gradient_lipschitz / v_min)``. Here
    ``noise_variance``, σ², is the mean over clients of the variance of a minibatch statistic (A7).
    It is 0 if clients use all their rows: compression and partial participation multiply the noise
    floor, but do not create one.

    Examples
    --------
    >>> from skfedem.theory import noise_factor
    >>> noise_factor(10, 0.0), noise_factor(10, 1.0, 0.5)
    (0.1, 1.6)
    """
    check_counts(n_clients=n_clients)
    return (1 + 5 * _message_omega(omega, participation)) / n_clients


def _message_omega(omega: float, participation: float) -> float:
    """``omega_p`` of checked arguments."""
    check_not_negative(omega=omega)
    hint = "It is the share of rounds in which a client takes part."
    check_number("participation", participation, low=0, low_open=True, high=1, hint=hint)
    return omega + (1 - participation) * (1 + omega) / participation


@takes_python_numbers
def optimal_step_size(
    n_clients: int,
    omega: float,
    n_rounds: int,
    *,
    initial_gap: float,
    noise_variance: float,
    v_min: float,
    gradient_lipschitz: float,
    field_lipschitz: float,
) -> float:
    """Constant step size of FedEM that balances initial gap and noise, given the number of rounds.

    Parameters
    ----------
    n_clients, omega, v_min, gradient_lipschitz, field_lipschitz
        As in :func:`max_step_size`.
    n_rounds : int
        Number of rounds k_max, ``n_rounds >= 1``.
    initial_gap : float
        Objective at the start minus its minimum, W(Ŝ_0) - min W, ``initial_gap >= 0``.
    noise_variance : float
        Mean over clients of the variance of a minibatch statistic (σ² in A7), in squared units of
        the statistics, ``noise_variance >= 0``.

    Returns
    -------
    float
        The smaller of ``sqrt(initial_gap * n_clients / (n_rounds * gradient_lipschitz * (1 + 5 *
        omega) * noise_variance))`` and :func:`max_step_size`. With ``noise_variance=0``, the
        latter.

    Notes
    -----
    Corollary 2 (all clients take part). This step minimises the bracket of equation (8), the sum of
    ``initial_gap / (step_size * n_rounds)`` and the noise floor, which grows with the step size.

    Examples
    --------
    >>> from skfedem.theory import optimal_step_size
    >>> optimal_step_size(10, 0.0, 1000, initial_gap=4.0, noise_variance=1.0, v_min=1.0,
    ...                   gradient_lipschitz=1.0, field_lipschitz=1.0)
    0.2
    """
    constants = {"gradient_lipschitz": gradient_lipschitz, "field_lipschitz": field_lipschitz}
    max_step = max_step_size(n_clients, omega, v_min=v_min, **constants)
    check_counts(n_rounds=n_rounds)
    check_not_negative(initial_gap=initial_gap, noise_variance=noise_variance)
    if noise_variance == 0:
        return max_step
    noise = gradient_lipschitz * noise_factor(n_clients, omega) * noise_variance
    return min(math.sqrt(initial_gap / (n_rounds * noise)), max_step)


@takes_python_numbers
def vr_batch_size(n_inner: int, omega: float) -> int:
    """Number of rows that a client reads in an inner round of VR-FedEM.

    Parameters
    ----------
    n_inner : int
        Number k_in of inner rounds per outer loop, ``n_inner >= 1``; see :func:`vr_n_inner`.
    omega : float
        Relative variance ω of the compression operator, ``omega >= 0``.

    Returns
    -------
    int
        ``ceil(n_inner / (1 + omega) ** 2)``, at least 1.

    Notes
    -----
    Theorem 3. The stronger the compression of a message, the fewer rows are worth reading for it.
    For ω = 0, this is b = k_in, the choice of SPIDER-EM.

    Examples
    --------
    >>> from skfedem.theory import vr_batch_size
    >>> vr_batch_size(20, 0.0), vr_batch_size(20, 1.0)
    (20, 5)
    """
    check_counts(n_inner=n_inner)
    check_not_negative(omega=omega)
    quotient = n_inner / (1 + omega) / (1 + omega)
    # 49 / 1.4² is 25, but a little more in doubles, which must not add a row.
    is_whole = math.isclose(quotient, round(quotient), rel_tol=2**-50)
    return max(1, round(quotient) if is_whole else math.ceil(quotient))


@takes_python_numbers
def vr_step_size(
    n_clients: int,
    omega: float,
    *,
    v_min: float,
    v_max: float,
    gradient_lipschitz: float,
    field_lipschitz: float,
) -> float:
    """Constant step size of VR-FedEM.

    Parameters
    ----------
    n_clients, omega, gradient_lipschitz
        As in :func:`max_step_size`.
    v_min, v_max : float
        Bounds of the eigenvalues of the matrices B in A4 (∇W = -B h), ``0 < v_min <= v_max``.
    field_lipschitz : float
        Root mean square L over all rows of the Lipschitz constants of a row's field, positive (A8;
        never smaller than L in A5).

    Returns
    -------
    float
        ``(v_min / gradient_lipschitz) / (1 + 4 * sqrt(2) * (v_max / gradient_lipschitz) *
        (field_lipschitz / sqrt(n_clients)) * (1 + omega) * sqrt(omega + (1 + 10 * omega) / 8))``.

    Notes
    -----
    Theorem 3, equation (10), with b from :func:`vr_batch_size`, the control step 1/(1 + ω) and full
    participation. It depends neither on the number of rounds nor on minibatch noise: there is no
    noise floor to balance.

    Examples
    --------
    >>> from skfedem.theory import vr_step_size
    >>> constants = dict(v_min=1.0, v_max=1.0, gradient_lipschitz=1.0, field_lipschitz=1.0)
    >>> round(vr_step_size(4, 0.0, **constants), 12)
    0.5
    """
    check_counts(n_clients=n_clients)
    check_not_negative(omega=omega)
    check_positive(v_min=v_min, v_max=v_max, field_lipschitz=field_lipschitz)
    check_positive(gradient_lipschitz=gradient_lipschitz)
    if v_max < v_min:
        raise ValueError(f"Expected v_max >= v_min, got v_max={v_max!r} and v_min={v_min!r}.")
    message_noise = (1 + omega) * math.sqrt(omega + (1 + 10 * omega) / 8)
    field_noise = field_lipschitz / math.sqrt(n_clients) * message_noise
    return (v_min / gradient_lipschitz) / (
        1 + 4 * math.sqrt(2) * (v_max / gradient_lipschitz) * field_noise
    )


@takes_python_numbers
def vr_cost(
    n_clients: int, n_samples: float, batch_size: float, n_inner: int, n_outer: int
) -> float:
    """Number of times that VR-FedEM evaluates a row's conditional expectation.

    Parameters
    ----------
    n_clients : int
        Number n of clients, ``n_clients >= 1``.
    n_samples : float
        Number m of rows of a client, or its mean over clients, ``n_samples > 0``.
    batch_size : float
        Number b of rows per client and inner round, ``batch_size > 0``.
    n_inner : int
        Number k_in of inner rounds per outer loop, ``n_inner >= 1``.
    n_outer : int
        Number k_out of outer loops, ``n_outer >= 1``.

    Returns
    -------
    int or float
        ``n_clients * n_outer * (n_samples + 2 * batch_size * n_inner)``; an int if all arguments
        are ints. Divided by ``n_clients * n_samples``, it is the number of epochs.

    Notes
    -----
    Appendix E.2: each outer loop begins with one pass over all rows, and each inner round evaluates
    its batch at two iterates. In the first inner round these are equal, so that the solver here
    reads no batch: its outer loops cost ``n_samples + 2 * batch_size * (n_inner - 1)`` per client.

    Examples
    --------
    >>> from skfedem.theory import vr_cost
    >>> vr_cost(n_clients=10, n_samples=200, batch_size=5, n_inner=20, n_outer=3)
    12000
    """
    check_counts(n_clients=n_clients)
    check_positive(n_samples=n_samples, batch_size=batch_size)
    check_counts(n_inner=n_inner, n_outer=n_outer)
    return n_clients * n_outer * (n_samples + 2 * batch_size * n_inner)


@takes_python_numbers
def vr_n_inner(n_samples: float, omega: float) -> int:
    """Number of inner rounds with which VR-FedEM reaches a given accuracy at the least cost.

    Parameters
    ----------
    n_samples : float
        Number m of rows of a client, or its mean over clients, ``n_samples > 0``.
    omega : float
        Relative variance ω of the compression operator, ``omega >= 0``.

    Returns
    -------
    int
        The integer next to ``(1 + omega) * sqrt(n_samples / 2)``, above or below, with the smaller
        cost; at least 1.

    Notes
    -----
    Appendix E.2. With the batch size k_in/(1 + ω)² of Theorem 3, before it is rounded up, a round
    costs m/k_in + 2 k_in/(1 + ω)² evaluations per client.

    Examples
    --------
    >>> from skfedem.theory import vr_n_inner
    >>> vr_n_inner(200, 0.0), vr_n_inner(200, 1.0)
    (10, 20)
    """
    check_positive(n_samples=n_samples)
    check_not_negative(omega=omega)
    square = (1 + omega) ** 2 * n_samples / 2
    below = math.floor(math.sqrt(square))
    # m/k + c k is equal at k and k + 1 where k (k + 1) = m/c, the square of its real minimiser.
    return max(1, below if square <= below * (below + 1) else below + 1)
