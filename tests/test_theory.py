"""The constants of the theorems, against the conditions in the proofs that they come from.

Tolerances: a relative 1e-12 is a few thousand roundings of float64, far more than any of these
formulas makes; anything looser is explained where it is used.
"""

import math

import numpy as np
import pytest

from skfedem import theory
from skfedem.compression import BlockQuantizer

OMEGAS = [0.0, 0.1, 1.0, 3.7, 50.0]
PARTICIPATIONS = [0.05, 0.3, 0.75, 1.0]
N_CLIENTS = [1, 7, 400]
CONSTANTS = {"v_min": 0.3, "gradient_lipschitz": 1.7, "field_lipschitz": 2.3}
# The curvature term is so large that the term of compression and participation decides.
MESSAGES_ONLY = {"v_min": 1e9, "gradient_lipschitz": 1.0, "field_lipschitz": 2.3}


def close(expected):
    return pytest.approx(expected, rel=1e-12, abs=0)


@pytest.mark.parametrize("omega", OMEGAS)
def test_control_step_keeps_the_memories_contracting(omega):
    # Proposition 11 needs alpha * (1 + omega) <= 1; the default is the largest such alpha.
    assert theory.control_step(omega) * (1 + omega) == close(1)


@pytest.mark.parametrize("omega", OMEGAS)
@pytest.mark.parametrize("n_clients", N_CLIENTS)
@pytest.mark.parametrize("constants", [CONSTANTS, MESSAGES_ONLY])
def test_theorem_4_with_everybody_is_theorem_1(n_clients, omega, constants):
    curvature = constants["v_min"] / (2 * constants["gradient_lipschitz"])
    root = 2 * np.sqrt(2 * omega) * (1 + omega) * constants["field_lipschitz"]
    messages = np.sqrt(n_clients) / root if root else np.inf
    assert theory.max_step_size(n_clients, omega, **constants) == close(min(curvature, messages))


@pytest.mark.parametrize("omega", OMEGAS)
@pytest.mark.parametrize("participation", PARTICIPATIONS)
@pytest.mark.parametrize("n_clients", N_CLIENTS)
def test_noise_enters_by_the_variance_of_a_scaled_message(n_clients, omega, participation):
    # Theorem 4: 1 + 5 ω_p, of which Theorem 1 has the case ω_p = ω.
    omega_p = (1 + omega) / participation - 1
    noise = theory.noise_factor(n_clients, omega, participation)
    assert noise == close((1 + 5 * omega_p) / n_clients)


@pytest.mark.parametrize(
    ("omega", "participation"),
    [(o, p) for o in OMEGAS for p in PARTICIPATIONS if (o, p) != (0.0, 1.0)],
)
@pytest.mark.parametrize("n_clients", N_CLIENTS)
def test_max_step_size_fills_the_condition_of_the_proof(n_clients, omega, participation):
    # Step 2 in the proof of Theorem 4:
    # step^2 <= alpha^2 p^2 n / (8 L^2 omega_p), with alpha = 1 / (1 + omega).
    omega_p = (1 + omega) / participation - 1
    step = theory.max_step_size(n_clients, omega, participation, **MESSAGES_ONLY)
    lipschitz = MESSAGES_ONLY["field_lipschitz"]
    alpha = 1 / (1 + omega)
    bound = (alpha * participation) ** 2 * n_clients / (8 * lipschitz**2 * omega_p)
    assert step**2 == close(bound)


def test_large_constants_do_not_overflow_on_the_way():
    large = {"v_min": 1e308, "gradient_lipschitz": 1e308}
    small = {"v_min": 1.0, "gradient_lipschitz": 1.0}
    for n_clients, omega in ((2, 1.0), (8, 0.0)):
        step = theory.max_step_size(n_clients, omega, 1.0, **large, field_lipschitz=1.0)
        expected = theory.max_step_size(n_clients, omega, 1.0, **small, field_lipschitz=1.0)
        assert step == expected


@pytest.mark.parametrize("omega", [0.0, 1e-300, 1e-12])
def test_curvature_alone_limits_the_step_as_compression_vanishes(omega):
    curvature_bound = CONSTANTS["v_min"] / (2 * CONSTANTS["gradient_lipschitz"])
    assert theory.max_step_size(3, omega, **CONSTANTS) == curvature_bound


@pytest.mark.parametrize("omega", OMEGAS)
def test_optimal_step_size_balances_start_and_noise(omega):
    n_clients, n_rounds, initial_gap, noise_variance = 20, 10**6, 2.0, 0.5
    step = theory.optimal_step_size(
        n_clients,
        omega,
        n_rounds,
        initial_gap=initial_gap,
        noise_variance=noise_variance,
        **CONSTANTS,
    )

    def bound(step):
        floor = CONSTANTS["gradient_lipschitz"] * (1 + 5 * omega) / n_clients * noise_variance
        return initial_gap / (n_rounds * step) + floor * step

    assert step < theory.max_step_size(n_clients, omega, **CONSTANTS)
    # A/x + Bx at x (1 + e) exceeds its minimum by e^2 / 2, relative: 5e-7 for e = 1e-3.
    assert bound(step) < min(bound(step * (1 - 1e-3)), bound(step * (1 + 1e-3)))


def test_optimal_step_size_is_the_largest_one_when_there_is_little_noise():
    arguments = {"initial_gap": 2.0, **CONSTANTS}
    largest = theory.max_step_size(20, 1.0, **CONSTANTS)
    for noise_variance in (0.0, 1e-9):
        step = theory.optimal_step_size(20, 1.0, 10, noise_variance=noise_variance, **arguments)
        assert step == largest


@pytest.mark.parametrize("omega", OMEGAS)
@pytest.mark.parametrize("n_clients", N_CLIENTS)
def test_vr_step_size_fills_the_condition_of_the_proof(n_clients, omega):
    # Appendix E.5: the largest step with 1 - step * A >= 1/2, A from Proposition 25 with
    # alpha = 1 / (1 + omega) and batches for which n_inner * alpha^2 / batch_size = 1.
    v_max = 0.9
    v_min, lipschitz = CONSTANTS["v_min"], CONSTANTS["field_lipschitz"]
    variance = omega + (1 + 10 * omega) / 8
    slope = CONSTANTS["gradient_lipschitz"] / (2 * v_min) + 2 * math.sqrt(2) * (
        v_max / v_min
    ) * lipschitz / math.sqrt(n_clients) * (1 + omega) * math.sqrt(variance)
    step = theory.vr_step_size(n_clients, omega, v_max=v_max, **CONSTANTS)
    assert 1 - step * slope == close(0.5)


@pytest.mark.parametrize("omega", OMEGAS)
@pytest.mark.parametrize("n_inner", [1, 2, 20, 333, 2**52])  # without compression, all of it
def test_vr_batch_size_is_the_smallest_sufficient_one(n_inner, omega):
    batch_size = theory.vr_batch_size(n_inner, omega)
    assert isinstance(batch_size, int)
    assert batch_size >= 1
    assert batch_size >= n_inner / (1 + omega) ** 2 > batch_size - 1


def test_vr_batch_size_is_exact_where_the_formula_gives_an_integer():
    # (1 + t / 10)² times a square of tens: of such n_inner and omega, some are one off in doubles.
    for tenths in range(1, 100):
        for root in (1, 5, 30):
            n_inner = (root * (10 + tenths)) ** 2
            assert theory.vr_batch_size(n_inner, tenths / 10) == (10 * root) ** 2
    # That of blocks of B coordinates, a root that doubles round: k_in / (1 + ω)² = k_in / B.
    for length in range(1, 100):
        omega = BlockQuantizer(block_length=length).omega_for(length)
        assert theory.vr_batch_size(10 * length, omega) == 10
        assert theory.vr_batch_size(10 * length + 1, omega) == 11
    assert theory.vr_batch_size(49, 0.4) == 25
    # What is over is more than rounding: a quarter of a row of 1e12.
    assert theory.vr_batch_size(4 * 10**12 + 1, 1.0) == 10**12 + 1
    assert theory.vr_batch_size(20, 1e200) == 1


def test_vr_cost_counts_evaluations():
    n_clients, n_samples, batch_size, n_inner, n_outer = 3, 11, 2, 4, 5
    evaluations = 0
    for _ in range(n_outer):
        evaluations += n_clients * n_samples
        for _ in range(n_inner):
            evaluations += n_clients * batch_size  # at the current iterate
            evaluations += n_clients * batch_size  # the same rows at the previous one
    assert theory.vr_cost(n_clients, n_samples, batch_size, n_inner, n_outer) == evaluations


@pytest.mark.parametrize("omega", [0.0, 0.3, 1.0, 4.0])
@pytest.mark.parametrize("n_samples", [1, 5, 100, 700, 12345])
def test_vr_n_inner_minimises_the_cost(n_samples, omega):
    def cost_per_round(n_inner):
        batch_size = n_inner / (1 + omega) ** 2
        return theory.vr_cost(10, n_samples, batch_size, n_inner, n_outer=1) / n_inner

    candidates = np.arange(1, 2 * math.ceil((1 + omega) * math.sqrt(n_samples / 2)) + 10)
    cheapest = min(cost_per_round(int(n_inner)) for n_inner in candidates)
    n_inner = theory.vr_n_inner(n_samples, omega)
    assert isinstance(n_inner, int)
    # Equality up to rounding: at a tie two neighbours cost the same.
    assert cost_per_round(n_inner) == close(cheapest)


def test_vr_n_inner_is_exact_where_the_formula_gives_an_integer():
    assert theory.vr_n_inner(200, 0.0) == 10
    assert theory.vr_n_inner(200, 2.0) == 30


VALID = {
    theory.control_step: {"omega": 1.0},
    theory.max_step_size: {"n_clients": 4, "omega": 1.0, "participation": 0.5, **CONSTANTS},
    theory.noise_factor: {"n_clients": 4, "omega": 1.0, "participation": 0.5},
    theory.optimal_step_size: {
        "n_clients": 4,
        "omega": 1.0,
        "n_rounds": 10,
        "initial_gap": 1.0,
        "noise_variance": 1.0,
        **CONSTANTS,
    },
    theory.vr_batch_size: {"n_inner": 20, "omega": 1.0},
    theory.vr_step_size: {"n_clients": 4, "omega": 1.0, "v_max": 1.0, **CONSTANTS},
    theory.vr_cost: {
        "n_clients": 4,
        "n_samples": 100,
        "batch_size": 5,
        "n_inner": 10,
        "n_outer": 2,
    },
    theory.vr_n_inner: {"n_samples": 100, "omega": 1.0},
}
ARGUMENTS = [
    pytest.param(function, name, id=f"{function.__name__}-{name}")
    for function, arguments in VALID.items()
    for name in arguments
]
COUNTS = {"n_clients", "n_rounds", "n_inner", "n_outer"}
MAY_BE_ZERO = {"omega", "initial_gap", "noise_variance"}


def test_every_public_function_is_in_the_list_of_valid_calls():
    assert sorted(function.__name__ for function in VALID) == theory.__all__


@pytest.mark.parametrize(("function", "name"), ARGUMENTS)
@pytest.mark.parametrize("value", [-1, math.nan, math.inf])
def test_values_outside_the_domain_are_refused(function, name, value):
    # NaN and infinity are floats: where a count is expected they are of the wrong type.
    error = TypeError if name in COUNTS and value != -1 else ValueError
    with pytest.raises(error, match=f"^Expected {name} to be .*got {value}"):
        function(**VALID[function] | {name: value})


@pytest.mark.parametrize(("function", "name"), ARGUMENTS)
@pytest.mark.parametrize("value", ["1", True])
def test_other_types_are_refused(function, name, value):
    with pytest.raises(TypeError, match=f"^Expected {name} to be "):
        function(**VALID[function] | {name: value})


@pytest.mark.parametrize("function", VALID, ids=lambda function: function.__name__)
def test_numbers_of_numpy_are_computed_with_in_full(function):
    # A product of these leaves 8 bits; 0.3 and its reciprocal are rounded to 24.
    small = {name: np.int8(100) if name in COUNTS else np.float32(0.3) for name in VALID[function]}
    got = function(**small)
    assert got == function(**{name: number.item() for name, number in small.items()})
    assert type(got) in (int, float)


def test_a_loop_has_a_round_however_few_the_rows():
    assert theory.vr_n_inner(5e-324, 0.0) == 1


@pytest.mark.parametrize(("function", "name"), ARGUMENTS)
def test_zero_is_accepted_only_where_it_means_something(function, name):
    arguments = VALID[function] | {name: 0}
    if name in MAY_BE_ZERO:
        assert math.isfinite(function(**arguments))
    else:
        with pytest.raises(ValueError, match=f"^Expected {name} to be "):
            function(**arguments)


def test_participation_above_one_is_refused():
    with pytest.raises(ValueError, match="<= 1, got 1.01. It is the share of rounds"):
        theory.noise_factor(4, 1.0, 1.01)


def test_v_max_below_v_min_is_refused():
    with pytest.raises(ValueError, match="Expected v_max >= v_min"):
        theory.vr_step_size(4, 1.0, v_max=0.1, **CONSTANTS)


def test_of_two_loop_lengths_that_cost_the_same_the_shorter_is_taken():
    # k and k + 1 where k (k + 1) is half the number of rows.
    assert [theory.vr_n_inner(n_samples, 0.0) for n_samples in (4, 12, 24)] == [1, 2, 3]
