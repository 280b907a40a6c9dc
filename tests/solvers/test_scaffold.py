"""SCAFFOLD: its literal transcription, six bugs of public implementations, and the invariant."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from hard_em import MODEL, PRIORS, WEIGHTS, begin, case_of, federation, last, rounds
from skfedem._federation import Federation
from skfedem._rows import LabelledRows
from skfedem.models.perceptron import Perceptron
from skfedem.priors import GaussianPrior
from skfedem.solvers._loop import active_clients

SCAFFOLD = {"control_variates": True}


def quadratics(a, m, weights):
    """Clients with the losses a_s (φ - m_s)² / 2: regressions with a single row and feature."""
    rows = np.sqrt(np.asarray(a))[:, None]
    targets = rows * np.asarray(m)[:, None]
    rows = LabelledRows(rows, targets)
    return Federation(rows, np.arange(len(a) + 1), np.asarray(weights))


def literal_scaffold(a, m, weights, active, rate, n_steps, centre, bug=None):
    """Option II of Karimireddy et al. (2020) with weights, in numbers; yields w, c and the c_s."""
    n = len(a)
    c, own = 0.0, np.zeros(n)
    if bug == "variates start at random":
        own = np.random.default_rng(0).normal(size=n)
    for chosen in active:
        moves, changes = {}, {}
        for s in chosen:
            y = centre
            for _ in range(n_steps):
                y -= rate * (a[s] * (y - m[s]) - own[s] + (0 if bug == "gradients lack c" else c))
            n_used = 1 if bug == "epochs in place of steps" else n_steps
            new = own[s] - c + (centre - y) / (n_used * rate)
            changes[s] = new if bug == "the whole variate is sent" else new - own[s]
            moves[s], own[s] = y - centre, new
        share = sum(weights[s] for s in chosen)
        centre += sum(weights[s] * moves[s] for s in chosen) / share
        total = sum(weights[s] * changes[s] for s in chosen)
        factor = {"c moves by a mean over those present": 1 / share}.get(bug, 1.0)
        c += total * (len(chosen) if bug == "c moves by a sum" else factor)
        yield centre, c, own.copy()


A, M = np.array([0.5, 1.0, 2.0, 1.5, 0.8, 1.2]), np.array([3.0, -1.0, 4.0, 0.5, -6.0, 2.0])
ONE_FEATURE = Perceptron((1, 1), loss="squared_error")
BUGS = (
    "variates start at random",
    "gradients lack c",
    "epochs in place of steps",
    "the whole variate is sent",
    "c moves by a mean over those present",
    "c moves by a sum",
)


def scaffold_case():
    """Problem whose intercepts do not move, since their gradient is made zero by the prior."""
    return case_of(
        Frozen(),
        ONE_FEATURE,
        quadratics(A, M, WEIGHTS),
        control_variates=True,
        participation=3,
        local_epochs=4,
        batch_size=1,
    )


class Frozen(GaussianPrior):
    """FedAvg without intercepts."""

    def step(self, shared, local, gates, gradient, correction, learning_rate):
        """Gradient step of the coefficients alone."""
        return super().step(
            shared,
            local,
            gates,
            gradient * [1.0, 0.0],
            correction * np.array([1.0, 0.0]),
            learning_rate,
        )


def without_intercept(case):
    """States before the first round, with an intercept of 0."""
    return begin(case, ONE_FEATURE.initial(0)[None] * [1.0, 0.0])


def scaffold_outcomes(n_rounds):
    case = scaffold_case()
    active = [active_clients(case.problem, k) for k in range(n_rounds)]
    outcomes = [
        (server.statistics.weights[0, 0], server.control[0], states.controls[:, 0].copy())
        for server, states, _ in rounds(case, n_rounds, without_intercept(case))
    ]
    return outcomes, active, ONE_FEATURE.initial(0)[0]


def test_scaffold_is_its_literal_transcription():
    outcomes, active, centre = scaffold_outcomes(8)
    literal = literal_scaffold(A, M, WEIGHTS, active, 0.1, 4, centre)
    for found, expected in zip(outcomes, literal, strict=True):
        for numbers, wanted in zip(found, expected, strict=True):
            assert_allclose(numbers, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("bug", BUGS)
def test_scaffold_does_not_have_the_bug(bug):
    outcomes, active, centre = scaffold_outcomes(8)
    with_bug = [*literal_scaffold(A, M, WEIGHTS, active, 0.1, 4, centre, bug)]
    distance = max(
        abs(found[0] - wrong[0]) for found, wrong in zip(outcomes, with_bug, strict=True)
    )
    assert distance > 1e-3
    # What an implementation would notice without a transcription.
    violated = max(abs(c - WEIGHTS @ own) for _, c, own in with_bug)
    assert violated > 1e-3 or bug in ("gradients lack c", "epochs in place of steps")


@pytest.mark.parametrize("participation", [1.0, 0.5, 2])
@pytest.mark.parametrize("name", ["FedAvg", "FedSparse", "FedSparse of weights"])
def test_c_is_the_mean_of_the_clients_variates_after_every_round(participation, name):
    data = federation(weights=WEIGHTS)
    case = case_of(PRIORS[name], data=data, control_variates=True, participation=participation)
    sizes = set()
    for server, states, info in rounds(case, 12):
        assert_allclose(server.control, WEIGHTS @ states.controls, rtol=0, atol=1e-13)
        sizes.add(info.n_active)
    assert server.control.any()
    assert participation != 0.5 or len(sizes) > 2


def test_scaffold_finds_the_optimum_that_fedavg_misses():
    optimum = (WEIGHTS * A * M).sum() / (WEIGHTS * A).sum()
    settings = {"local_epochs": 10, "batch_size": 1, "data": quadratics(A, M, WEIGHTS)}
    distances = []
    for scaffold in (True, False):
        case = case_of(Frozen(), ONE_FEATURE, control_variates=scaffold, **settings)
        server, _, _ = last(case, 300, state=without_intercept(case))
        distances.append(abs(server.statistics.weights[0, 0] - optimum))
    assert distances[0] < 1e-10 < 0.01 < distances[1]


def test_bytes_of_scaffold():
    _, _, info = last(case_of(control_variates=True, participation=2), 3)
    d = MODEL.n_parameters
    assert (info.uplink_bytes, info.downlink_bytes) == (2 * 4 * d, 2 * 8 * d)
