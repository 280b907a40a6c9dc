"""FedSparse: gradients of gates against finite differences, pruning, and its limits."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import expit, logit

from hard_em import MODEL, PRIORS, begin, case_of, last, rounds
from skfedem.models.perceptron import Perceptron
from skfedem.priors import GaussianPrior, SpikeSlabPrior
from skfedem.priors._gates import inverse_softplus, open_probabilities, relaxed_gates, softplus

ONE = np.ones(1, int)


def objective(prior, model, shared, parameters, thresholds, uniforms, data):
    """Local objective of one client at fixed random numbers, written out group by group."""
    groups, gates = model.groups(prior.gates), shared.gates
    free = groups.members == -1  # as in a group that is always open
    total = prior.precision / 2 * ((parameters - shared.weights[0])[free] ** 2).sum()
    masked = parameters.copy()
    for g in range(len(groups.layers)):
        own = groups.members == g
        tau = np.log1p(np.exp(thresholds[g]))
        norm = np.linalg.norm(parameters[own] if prior.attached else prior.detached[own])
        value = (gates.scales[g] * norm - tau) / prior.gate_temperature
        s = expit((logit(uniforms[g]) + value) * 1.5)
        masked[own] *= np.clip(1.2 * s - 0.1, 0, 1)
        open_ = expit(value - 2 / 3 * np.log(0.1 / 1.1))
        server = np.linalg.norm(shared.weights[0][own]) * gates.scales[g]
        theta = (server - np.log1p(np.exp(gates.thresholds[g]))) / prior.gate_temperature
        drift = ((parameters - shared.weights[0])[own] ** 2).sum()
        total += open_ * (prior.l0_penalty * own.sum() - prior.cross_entropy * theta)
        total += prior.precision / 2 * open_ * drift
    return total + model.losses(masked[None], *data)[0]


class Settings:
    """Numbers of a prior, and whether norms are attached to the parameters."""

    def __init__(self, prior, detached):
        names = ("gates", "gate_temperature", "l0_penalty", "cross_entropy", "precision")
        vars(self).update({name: getattr(prior, name) for name in names})
        self.attached, self.detached = False, detached


@pytest.mark.parametrize("kind", ["units", "features", "weights"])
@pytest.mark.parametrize("weights", [(0.0, 0.0), (0.02, 0.3)])
def test_gradients_of_gates_are_those_of_finite_differences(kind, weights):
    cross_entropy, precision = weights
    generator = np.random.default_rng(0)
    prior = SpikeSlabPrior(
        l0_penalty=0.03,
        gates=kind,
        gate_temperature=0.5,
        warmup_rounds=0,
        cross_entropy=cross_entropy,
        precision=precision,
        initial_probability=0.6,
        threshold_rates=(1e-7, 0.1),
    )
    prior = prior.for_network(MODEL)
    shared = prior.initial(MODEL.initial(0)[None])
    n_groups = len(shared.gates.alive)
    data = (
        generator.normal(size=(1, 8, 3)),
        generator.integers(2, size=(1, 8)),
        np.full((1, 8), 1 / 8),
    )
    local = prior.start(shared, np.zeros(1, int), ONE)
    parameters = local.parameters + 0.1 * generator.normal(size=local.parameters.shape)
    thresholds = local.gates.thresholds + 0.2 * generator.normal(size=n_groups)
    local = local._replace(parameters=parameters, gates=local.gates._replace(thresholds=thresholds))
    uniforms = generator.random((1, n_groups))
    relaxed, gates = prior.relaxed(shared, local, uniforms)
    _, gradient = MODEL.loss_and_gradient(relaxed, *data)
    rate = 1e-6 if precision else 1.0
    after = prior.step(shared, local, gates, gradient, 0.0, rate)

    def value(parameters, thresholds):
        fixed = Settings(prior, detached=local.parameters[0])
        return objective(fixed, MODEL, shared, parameters, thresholds, uniforms[0], data)

    def slopes(function, at):
        eps = 1e-6 * np.eye(len(at))
        return np.array([(function(at + e) - function(at - e)) / 2e-6 for e in eps])

    by_parameters = slopes(lambda w: value(w, thresholds[0]), parameters[0])
    # Proximal steps differ from gradient steps by the rate.
    tolerance = 2e-6 if precision else 1e-8
    assert_allclose((parameters - after.parameters)[0] / rate, by_parameters, atol=tolerance)
    by_thresholds = slopes(lambda v: value(parameters[0], v), thresholds[0])
    # AdaMax's first moment is a tenth of the first gradient (ascending).
    assert_allclose(-after.gates.moments.first[0], 0.1 * -by_thresholds * -1, atol=1e-9)
    moved = after.gates.thresholds - local.gates.thresholds
    steep = np.abs(by_thresholds) > 1e-4
    assert steep.any()
    assert_array_equal(np.sign(moved[0][steep]), -np.sign(by_thresholds[steep]))


def test_hard_concrete_gates():
    generator = np.random.default_rng(0)
    logits = np.array([[-3.0, 0.0, 3.0]])
    uniforms = generator.random((100_000, 3))
    values, _ = relaxed_gates(logits, uniforms)
    assert values.min() == 0 and values.max() == 1
    # Three standard deviations of a share of 1e5 draws.
    assert_allclose((values > 0).mean(axis=0), open_probabilities(logits)[0], atol=0.005)
    step = 1e-6
    rise = relaxed_gates(logits + step, uniforms)[0] - relaxed_gates(logits - step, uniforms)[0]
    _, slopes = relaxed_gates(logits, uniforms)
    smooth = np.abs(values - np.clip(values, 1e-4, 1 - 1e-4)) == 0
    assert_allclose(slopes[smooth], rise[smooth] / (2 * step), atol=1e-8)
    extremes, _ = relaxed_gates(logits, np.array([[0.0, 0.0, 1 - 1e-16]]))
    assert np.isfinite(extremes).all()
    taus = np.array([1e-3, 0.5, 3.0, 50.0])
    assert_allclose(softplus(inverse_softplus(taus)), taus, rtol=1e-12)


@pytest.mark.parametrize("model", [MODEL, Perceptron((3, 3))])
@pytest.mark.parametrize("settings", [{}, {"control_variates": True, "participation": 3}])
def test_gates_that_are_open_for_certain_are_fedavg_bit_for_bit(model, settings):
    prior = SpikeSlabPrior(l0_penalty=0.0, warmup_rounds=0, gate_temperature=1e-3)
    sparse = case_of(prior, model, **settings)
    server, states = begin(sparse)
    gates = server.statistics.gates
    gates = gates._replace(thresholds=np.full(len(gates.alive), -50.0))  # τ = 2e-22
    shared = server.statistics._replace(gates=gates)
    state = server._replace(statistics=shared, parameters=shared), states
    pairs = rounds(sparse, 4, state), rounds(case_of(GaussianPrior(), model, **settings), 4)
    for (server, states, _), (expected, others, _) in zip(*pairs, strict=True):
        assert (sparse.prior.probabilities(server.statistics) == 1).all()
        assert_array_equal(server.statistics.weights, expected.statistics.weights)
        assert_array_equal(states.parameters, others.parameters)
        assert_array_equal(server.control, expected.control)


@pytest.mark.parametrize("name", [name for name, prior in PRIORS.items() if prior.gated])
@pytest.mark.parametrize("scaffold", [False, True])
def test_pruned_groups_stay_zero_and_cost_nothing(name, scaffold):
    prior = PRIORS[name]
    eager = SpikeSlabPrior(
        l0_penalty=0.2, warmup_rounds=1, gates=prior.gates, threshold_rates=(0.2, 0.3)
    )
    case, before, bits = case_of(eager, control_variates=scaffold), None, []
    for server, states, info in rounds(case, 40):
        alive = server.statistics.gates.alive
        survivors = case.prior.sent(server.statistics)
        if survivors is not None:
            assert not server.statistics.weights[0][~survivors].any()
        if before is not None:
            assert not (alive & ~before).any()
            assert not states.parameters[:, ~case.prior.grouping.survivors(before)].any()
        before = alive
        bits.append((info.uplink_bytes, info.downlink_bytes))
    assert not alive.all()
    assert bits[-1][0] < bits[0][0] and bits[-1][1] < bits[0][1]


def test_all_groups_pruned_leave_the_intercepts():
    eager = SpikeSlabPrior(
        l0_penalty=5.0, warmup_rounds=0, gates="features", threshold_rates=(1.0, 1.0)
    )
    case = case_of(eager, Perceptron((3, 2)))
    server, _, info = last(case, 30)
    ((coefficients, intercepts),) = case.problem.model.network.split(server.statistics.weights[0])
    assert not coefficients.any() and intercepts.any()
    assert info.uplink_bytes == 6 * (4 + 4 * 2) and np.isfinite(info.loss)


def test_thresholds_are_fixed_once_the_target_is_reached():
    prior = SpikeSlabPrior(
        l0_penalty=0.1, warmup_rounds=0, gates="weights", target_sparsity=0.2,
        threshold_rates=(0.1, 0.1),
    )  # fmt: skip
    case, fixed = case_of(prior), None
    for server, _, _ in rounds(case, 40):
        gates = server.statistics.gates
        sparsity = 1 - case.prior.sent(server.statistics).mean()
        assert gates.settled == (fixed is not None or sparsity >= 0.2)
        if fixed is not None:
            assert_array_equal(gates.thresholds, fixed)
            # The target is met by the fewest groups, here of one parameter each.
            assert 0.2 <= sparsity < 0.2 + 1.01 / MODEL.n_parameters
        fixed = gates.thresholds if gates.settled else None
    assert fixed is not None


def test_norms_are_relative_to_their_layer_at_the_end_of_the_warm_up():
    prior = SpikeSlabPrior(warmup_rounds=2).for_network(MODEL)
    case = case_of(SpikeSlabPrior(warmup_rounds=2))
    states = [server for server, _, _ in rounds(case, 2)]
    assert not states[0].statistics.gates.thresholds.any()
    shared = states[1].statistics
    coefficients, intercepts = MODEL.split(shared.weights[0])[0]
    norms = np.sqrt((coefficients**2).sum(axis=0) + intercepts**2)
    assert_allclose(shared.gates.scales, 1 / norms.mean())
    assert_allclose(prior.probabilities(shared), np.minimum(0.99, 1), rtol=1e-9)
    # Weights of another size have the same gates.
    scaled = case_of(SpikeSlabPrior(warmup_rounds=0)).prior
    for factor in (1.0, 100.0):
        other = scaled.initial(factor * shared.weights)
        assert_allclose(scaled.probabilities(other), 0.99, rtol=1e-9)


def test_the_server_steps_against_gates_that_clients_closed():
    prior = SpikeSlabPrior(warmup_rounds=0).for_network(MODEL)
    server, _ = begin(case_of(SpikeSlabPrior(warmup_rounds=0)))
    local = prior.start(server.statistics, np.zeros(2, int), np.ones(2, int))
    update = prior.update(server.statistics, local, np.array([[1 - 1e-9] * 4, [0.0] * 4]))
    assert_array_equal(update.kept, [[False] * 4, [True] * 4])
    for weights, rises in ((np.array([1.0, 0.0]), True), (np.array([0.0, 1.0]), False)):
        after = prior.after_step(server.statistics, update, weights, server.statistics.weights)
        rise = after.gates.thresholds - server.statistics.gates.thresholds
        assert ((rise > 0) == rises).all()


def test_where_nobody_keeps_a_group_its_centre_stays():
    prior = SpikeSlabPrior(warmup_rounds=0).for_network(MODEL)
    server, _ = begin(case_of(SpikeSlabPrior(warmup_rounds=0)))
    local = prior.start(server.statistics, np.zeros(2, int), np.ones(2, int))
    local = local._replace(parameters=local.parameters + np.array([[1.0], [3.0]]))
    numbers = np.zeros((2, 4))
    numbers[:, 1] = numbers[0, 2] = 1.0
    update = prior.update(server.statistics, local, numbers)
    assert_array_equal(update.kept, [[True, False, False, True], [True, False, True, True]])
    moved = (
        prior.closed_form(server.statistics, update, np.array([1.0, 1.0]))
        - server.statistics.weights
    )
    members = MODEL.groups("units").members
    assert not moved[0][members == 1].any()
    assert_allclose(moved[0][members == 2], 3.0)
    assert_allclose(moved[0][members == 0], 2.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target_sparsity": 1.0}, "Expected target_sparsity to be a number > 0 and < 1, got 1.0"),
        ({"gates": "unit"}, "Did you mean 'units'"),
        ({"gate_temperature": 0.0}, "Expected gate_temperature to be a number > 0"),
        ({"threshold_rates": (0.0, 1.0)}, "Expected client_threshold_rate to be a number > 0"),
        ({"prune_threshold": 1}, "Expected prune_threshold"),
        ({"initial_probability": 1}, "Expected initial_probability"),
        ({"warmup_rounds": -1}, "Expected warmup_rounds"),
    ],
)
def test_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        SpikeSlabPrior(**settings)


def test_targets_that_no_gates_can_reach_are_refused():
    prior = SpikeSlabPrior(gates="features", target_sparsity=0.9)
    n_gated = MODEL.sizes[0] * MODEL.sizes[1]  # coefficients of the first layer, no others
    most = n_gated / MODEL.n_parameters
    with pytest.raises(ValueError, match=f"at most {most:.3g}, .* belong to features, got 0.9"):
        prior.for_network(MODEL)
    SpikeSlabPrior(gates="features", target_sparsity=most).for_network(MODEL)
