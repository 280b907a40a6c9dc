"""Hard EM: exact limits, SCAFFOLD's invariant, memories, and independence of how it is computed."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from hard_em import LENGTHS, MODEL, PRIORS, begin, federation, last, rounds, task
from skfedem._federation import Federation, sample_weight_of
from skfedem._parallel import Workers
from skfedem.compression import Dithering
from skfedem.models.perceptron import Perceptron
from skfedem.priors import GaussianPrior, LaplacePrior, MixturePrior
from skfedem.solvers import hard_em
from skfedem.solvers._local_training import mean_losses
from skfedem.solvers.hard_em import active_clients, one_round

WEIGHTS = np.array([0.1, 0.3, 0.2, 0.05, 0.15, 0.2])
LINEAR = Perceptron((3, 1), loss="squared_error")


def regression(lengths=LENGTHS, seed=0, weights=None):
    rows, _ = federation(lengths, seed=seed, weights=weights)
    generator = np.random.default_rng(seed)
    noise = generator.normal(size=len(rows.rows))
    slopes = np.repeat(generator.normal(size=(len(lengths), 3)), lengths, axis=0)
    return rows, ((rows.rows * slopes).sum(axis=1) + noise)[:, None]


# ---- FedAvg and FedProx


@pytest.mark.parametrize("model", [MODEL, Perceptron((3, 3)), Perceptron((3, 2, 2), alpha=0.3)])
def test_one_full_step_of_everybody_is_pooled_gradient_descent(model):
    problem = task(model=model, local_epochs=1, batch_size=None)
    rows, targets = problem.federation, problem.training.targets
    vector = model.initial(0)
    for server, _, info in rounds(problem, 5):
        n = len(targets)
        loss, gradient = model.loss_and_gradient(
            vector[None], rows.rows[None], targets[None], np.full((1, n), 1 / n)
        )
        vector = vector - 0.1 * gradient[0]
        assert_allclose(server.shared.weights[0], vector, rtol=0, atol=1e-14)
        assert_allclose(info.loss, loss[0], rtol=1e-13)
        assert info.uplink_bytes == info.downlink_bytes == 6 * 4 * model.n_parameters


def test_messages_of_32_bits_are_rounded_and_nothing_else():
    exact, rounded = (
        last(task(local_epochs=1, message_type=kind), 5)[0] for kind in (np.float64, np.float32)
    )
    weights = rounded.shared.weights
    assert_array_equal(weights, weights.astype(np.float32))
    assert_allclose(weights, exact.shared.weights, atol=1e-6)
    assert (weights != exact.shared.weights).any()


def test_weights_of_rows_are_repetitions():
    rows, targets = federation()
    counts = np.random.default_rng(0).integers(1, 4, size=len(targets))
    owners = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    repeated, again = federation(np.bincount(owners, counts).astype(int))
    repeated = repeated._replace(rows=np.repeat(rows.rows, counts, axis=0))
    weighted = sample_weight_of(counts.astype(float), rows.offsets)
    weighted = Federation(rows.rows, rows.offsets, repeated.weights, weighted)
    settings = {"local_epochs": 3, "batch_size": None}
    one, _, info = last(task(data=(weighted, targets), **settings), 3)
    other, _, expected = last(task(data=(repeated, np.repeat(targets, counts)), **settings), 3)
    assert len(again) == counts.sum()
    assert_allclose(one.shared.weights, other.shared.weights, rtol=0, atol=1e-13)
    assert_allclose(info.loss, expected.loss, rtol=1e-12)


def test_fedprox_without_a_penalty_is_fedavg_bit_for_bit():
    for name in ("laplace", "mixture"):
        prior = MixturePrior(1, 1e-300) if name == "mixture" else GaussianPrior(0.0)
        pairs = rounds(task(prior), 3), rounds(task(GaussianPrior()), 3)
        for (server, _, _), (expected, _, _) in zip(*pairs, strict=True):
            assert_array_equal(server.shared.weights, expected.shared.weights)


def test_one_component_is_a_gaussian_bit_for_bit():
    pairs = rounds(task(MixturePrior(1, 0.7)), 3), rounds(task(GaussianPrior(0.7)), 3)
    for (server, states, _), (expected, others, _) in zip(*pairs, strict=True):
        assert_array_equal(server.shared.weights, expected.shared.weights)
        assert_array_equal(states.parameters, others.parameters)


@pytest.mark.parametrize("prior", [GaussianPrior(1e12), LaplacePrior(1e12), MixturePrior(2, 1e12)])
def test_an_infinite_precision_keeps_the_centres(prior):
    problem = task(prior)
    server, states = begin(problem)
    before = server.shared.weights
    if prior.n_models > 1:
        server = server._replace(shared=server.shared._replace(weights=before * [[1.0], [2.0]]))
        before = server.shared.weights
    after, _, _ = last(problem, 1, state=(server, states))
    assert_allclose(after.shared.weights, before, rtol=0, atol=1e-9)


@pytest.mark.parametrize("precision", [0.1, 3.0])
def test_exact_local_solves_of_linear_regression_increase_the_objective(precision):
    data = regression((9, 7, 17, 5, 6, 11))
    problem = task(
        GaussianPrior(precision),
        LINEAR,
        data,
        local_epochs=3000,
        batch_size=None,
        learning_rate=0.2,
    )
    rows, targets = data
    centre, values = LINEAR.initial(0), []
    for server, states, _ in rounds(problem, 4):
        found = []
        for k, (start, stop) in enumerate(zip(rows.offsets, rows.offsets[1:], strict=False)):
            X = np.hstack([rows.rows[start:stop], np.ones((stop - start, 1))])
            gram = X.T @ X / len(X) + precision * np.eye(4)
            right = X.T @ targets[start:stop, 0] / len(X) + precision * centre
            own = np.linalg.solve(gram, right)
            assert_allclose(states.parameters[k], own, atol=1e-8)
            found.append(own)
            residual = targets[start:stop, 0] - X @ own
            penalty = precision * ((own - centre) ** 2).sum()
            values.append(rows.weights[k] * ((residual**2).mean() + penalty) / 2)
        centre = rows.weights @ found
        assert_allclose(server.shared.weights[0], centre, atol=1e-8)
        values[-6:] = [sum(values[-6:])]
    assert (np.diff(values) < 0).all()


def test_the_m_step_does_not_depend_on_the_precision():
    problem = task()
    active = np.arange(len(LENGTHS))
    server, states = begin(problem)
    broadcast = hard_em.broadcast_of(problem, server, np.float64)
    group = active[:1]
    own = hard_em.ClientStates(*(field[group] for field in states))
    reply, _ = hard_em.client_half(problem, broadcast, group, own)
    after = [
        hard_em.server_half(task(GaussianPrior(precision)), server, reply, group).shared.weights
        for precision in (0.0, 0.1, 10.0)
    ]
    assert_array_equal(after[0], after[1])
    assert_array_equal(after[0], after[2])


def test_coordinates_equal_to_the_servers_are_not_sent():
    problem = task(LaplacePrior(0.3))
    server, states = begin(problem)
    before = server.shared.weights[0].copy()
    _, states, info = last(problem, 1, state=(server, states))
    moved = states.parameters != before
    assert 0 < moved.sum() < moved.size
    assert (moved.sum(axis=1) == 0).any() or moved.any(axis=1).all()
    floor = 4 * moved.sum()
    # Which of 26 coordinates moved: at most 26 bits, counts of 11 and 5, and 3 bytes of a message.
    assert floor < info.uplink_bytes <= floor + len(LENGTHS) * (3 + 6)


# ---- SCAFFOLD


def quadratics(a, m, weights):
    """Clients with the losses a_s (φ - m_s)² / 2: regressions with a single row and feature."""
    rows = np.sqrt(np.asarray(a))[:, None]
    targets = rows * np.asarray(m)[:, None]
    return Federation(rows, np.arange(len(a) + 1), np.asarray(weights)), targets


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


def scaffold_problem():
    """Problem whose intercepts do not move, since their gradient is made zero by the prior."""
    return task(
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


def without_intercept(problem):
    """States before the first round, with an intercept of 0."""
    return begin(problem, ONE_FEATURE.initial(0)[None] * [1.0, 0.0])


def scaffold_outcomes(n_rounds):
    problem = scaffold_problem()
    active = [active_clients(problem, k) for k in range(n_rounds)]
    outcomes = [
        (server.shared.weights[0, 0], server.control[0], states.controls[:, 0].copy())
        for server, states, _ in rounds(problem, n_rounds, without_intercept(problem))
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
    problem = task(PRIORS[name], data=data, control_variates=True, participation=participation)
    sizes = set()
    for server, states, info in rounds(problem, 12):
        assert_allclose(server.control, WEIGHTS @ states.controls, rtol=0, atol=1e-13)
        sizes.add(info.n_active)
    assert server.control.any()
    assert participation != 0.5 or len(sizes) > 2


def test_scaffold_finds_the_optimum_that_fedavg_misses():
    optimum = (WEIGHTS * A * M).sum() / (WEIGHTS * A).sum()
    settings = {"local_epochs": 10, "batch_size": 1, "data": quadratics(A, M, WEIGHTS)}
    distances = []
    for scaffold in (True, False):
        problem = task(Frozen(), ONE_FEATURE, control_variates=scaffold, **settings)
        server, _, _ = last(problem, 300, state=without_intercept(problem))
        distances.append(abs(server.shared.weights[0, 0] - optimum))
    assert distances[0] < 1e-10 < 0.01 < distances[1]


def test_bytes_of_scaffold():
    _, _, info = last(task(control_variates=True, participation=2), 3)
    d = MODEL.n_parameters
    assert (info.uplink_bytes, info.downlink_bytes) == (2 * 4 * d, 2 * 8 * d)


# ---- compression and memories


def test_v_is_the_mean_of_the_clients_memories_after_every_round():
    problem = task(
        compressor=Dithering(omega=1.0), control_step=0.3, participation=0.5,
        data=federation(weights=WEIGHTS),
    )  # fmt: skip
    for server, states, _ in rounds(problem, 12):
        assert_allclose(server.control, WEIGHTS @ states.controls, rtol=0, atol=1e-13)
    assert server.control.any()


def test_memories_do_not_change_rounds_of_everybody_without_compression():
    with_memories = rounds(task(control_step=0.3), 4)
    for (server, states, _), (expected, _, _) in zip(with_memories, rounds(task(), 4), strict=True):
        assert_allclose(server.shared.weights, expected.shared.weights, rtol=0, atol=1e-14)
        assert states.controls.any()


@pytest.mark.parametrize("name", ["FedAvg", "ensemble", "FedSparse", "FedSparse of weights"])
def test_compressed_rounds_are_unbiased(name):
    n_models = PRIORS[name].n_models
    centres = np.stack([MODEL.initial(k) for k in range(n_models)])
    exact, _, _ = last(task(PRIORS[name]), 1, state=begin(task(PRIORS[name]), centres))
    moves = []
    for seed in range(300):
        problem = task(PRIORS[name], compressor=Dithering(omega=1.0))
        # Only the compression has another seed: other streams are those of the exact round.
        server, states = begin(problem, centres)
        active = np.arange(len(LENGTHS))
        with Workers(1) as workers, SeededCompression(seed):
            after, _, _ = one_round(problem, server, states, active, workers)
        moves.append(after.shared.weights - exact.shared.weights)
    error, spread = np.mean(moves, axis=0), np.std(moves, axis=0) / np.sqrt(300)
    # Five standard errors; of 52 numbers, one is off by more once in 30,000 runs.
    assert (np.abs(error) <= 5 * spread + 1e-12).all()
    assert spread.any()


class SeededCompression:
    """Context in which numbers for compression come from another seed."""

    def __init__(self, seed):
        self.seed = seed

    def __enter__(self):
        self.draw = hard_em._random.client_uniforms

        def drawn(seed, purpose, *args, **kwargs):
            other = purpose == hard_em._random.COMPRESSION
            return self.draw(self.seed if other else seed, purpose, *args, **kwargs)

        hard_em._random.client_uniforms = drawn

    def __exit__(self, *exception):
        hard_em._random.client_uniforms = self.draw


# ---- server optimizers


@pytest.mark.parametrize(("momentum", "rate"), [(0.0, 1.0), (0.5, 0.3)])
def test_sgd_at_the_server(momentum, rate):
    settings = {"server_learning_rate": rate, "server_momentum": momentum}
    problem = task(server_optimizer="sgd", **settings)
    velocity, before = 0.0, None
    for server, states, _ in rounds(problem, 4):
        if before is not None:
            velocity = momentum * velocity + problem.federation.weights @ (
                states.parameters - before
            )
            assert_allclose(server.shared.weights[0], before + rate * velocity, atol=1e-14)
        else:
            start = MODEL.initial(0)
            velocity = problem.federation.weights @ (states.parameters - start)
        before = server.shared.weights[0]


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamax"])
@pytest.mark.parametrize("name", PRIORS)
def test_optimizers_reduce_the_loss_under_every_prior(optimizer, name):
    rate = 0.2 if optimizer == "sgd" else 0.02
    problem = task(PRIORS[name], server_optimizer=optimizer, server_learning_rate=rate)
    losses = [info.loss for _, _, info in rounds(problem, 25)]
    assert np.mean(losses[-5:]) < losses[0] - 0.01


# ---- what results do not depend on


@pytest.mark.parametrize("name", PRIORS)
@pytest.mark.parametrize("settings", [{}, {"participation": 3}, {"batch_size": None}])
def test_threads_do_not_change_a_bit(name, settings, threads_always_pay):
    problem = task(PRIORS[name], **settings)
    alone, shared = last(problem, 3, n_jobs=1), last(problem, 3, n_jobs=3)
    assert_array_equal(alone[0].shared.weights, shared[0].shared.weights)
    assert_array_equal(alone[1].parameters, shared[1].parameters)
    assert threads_always_pay


@pytest.mark.parametrize("model", [MODEL, Perceptron((3, 2))])
@pytest.mark.parametrize("name", PRIORS)
def test_clients_train_alike_in_any_company(name, model):
    problem = task(PRIORS[name], model)
    server, states = begin(problem)
    server, states, _ = last(problem, 2, state=(server, states))
    broadcast = hard_em.broadcast_of(problem, server, np.float64)
    every = np.arange(len(LENGTHS))
    for group in hard_em.stacks(problem.training, problem.federation, every):
        own = hard_em.ClientStates(*(field[group] for field in states))
        reply, after = hard_em.client_half(problem, broadcast, group, own)
        for k, client in enumerate(group):
            alone = hard_em.ClientStates(*(field[[client]] for field in states))
            single, single_after = hard_em.client_half(
                problem, broadcast, np.array([client]), alone
            )
            assert_array_equal(single.update.differences[0], reply.update.differences[k])
            assert_array_equal(single_after.parameters[0], after.parameters[k])
            assert single.n_bytes[0] == reply.n_bytes[k]


@pytest.mark.parametrize("name", PRIORS)
def test_states_change_when_the_round_is_over(name):
    problem = task(PRIORS[name], participation=3)
    server, states = begin(problem)
    kept = [field.copy() for field in states]
    active = active_clients(problem, 0)
    broadcast = hard_em.broadcast_of(problem, server, np.float64)
    for client in active:
        own = hard_em.ClientStates(*(field[[client]] for field in states))
        hard_em.client_half(problem, broadcast, np.array([client]), own)
    for before, field in zip(kept, states, strict=True):
        assert_array_equal(before, field)
    _, states, _ = last(problem, 1, state=(server, states))
    absent = np.setdiff1d(np.arange(len(LENGTHS)), active)
    assert_array_equal(states.took_part, np.isin(np.arange(len(LENGTHS)), active))
    assert not states.parameters[absent].any() and states.parameters[active].any()


# ---- rounds and clients


def test_numbers_of_clients():
    always = task(participation=1.0)
    assert_array_equal(active_clients(always, 5), np.arange(6))
    counts = np.zeros(6)
    for k in range(600):
        active = active_clients(task(participation=2), k)
        assert len(active) == 2 and (np.diff(active) > 0).all()
        counts[active] += 1
    # Five standard deviations of a binomial count.
    assert (np.abs(counts - 200) < 5 * np.sqrt(600 * 2 / 9)).all()
    assert len(active_clients(task(participation=1), 0)) == 1
    sizes = [len(active_clients(task(participation=0.3), k)) for k in range(300)]
    assert min(sizes) == 0 and 1.3 < np.mean(sizes) < 2.3


@pytest.mark.parametrize("settings", [{}, {"control_variates": True}, {"control_step": 0.5}])
def test_a_round_without_clients_changes_nothing_but_its_number(settings):
    problem = task(**settings)
    server, states, _ = last(problem, 2)
    with Workers(1) as workers:
        after, same, info = one_round(problem, server, states, np.arange(0), workers)
    assert after == server._replace(round_index=3) and same is states
    assert info.n_active == info.uplink_bytes == info.downlink_bytes == 0 and np.isnan(info.loss)


@pytest.mark.parametrize("batch_size", [1, 4, 5, 1000, None])
def test_steps_of_clients(batch_size):
    problem = task(batch_size=batch_size, local_epochs=3)
    lengths = problem.federation.lengths
    expected = 3 * np.ceil(lengths / (batch_size or 10**9))
    assert_array_equal(problem.training.n_steps(lengths), expected)
    _, _, info = last(problem, 1)
    assert info.n_rows == 3 * lengths.sum() and np.isfinite(info.loss)


def test_every_row_is_read_once_in_an_epoch():
    problem = task(batch_size=4, local_epochs=2)
    from skfedem.solvers._local_training import _minibatches, stacks

    every, rows = np.arange(6), problem.federation
    seen = [[] for _ in every]
    for group in stacks(problem.training, rows, every):
        for X, y, weights in _minibatches(problem.training, rows, 0, every[group]):
            for k, client in enumerate(group):
                assert_allclose(weights[k].sum(), 1)
                seen[client].append(X[k][weights[k] > 0])
                present = weights[k][weights[k] > 0]
                assert (present == present[0]).all() and len(y[k]) == len(X[k])
    for client in every:
        own = rows.rows[rows.offsets[client] : rows.offsets[client + 1]]
        found = np.vstack(seen[client])
        half = len(own)
        for epoch in (found[:half], found[half:]):
            assert_array_equal(np.sort(epoch, axis=0), np.sort(own, axis=0))
        assert half < 6 or (found[:half] != found[half:]).any()


def test_losses_of_models_on_all_rows():
    problem = task()
    models = np.stack([MODEL.initial(k) for k in range(2)])
    losses = mean_losses(problem.training, problem.federation, np.array([0, 3]), models)
    for row, client in zip(losses, (0, 3), strict=True):
        own = slice(*problem.federation.offsets[client : client + 2])
        X, y = problem.federation.rows[own], problem.training.targets[own]
        expected = [MODEL.losses(w, X, y, np.full(len(y), 1 / len(y))) for w in models]
        assert_allclose(row, expected, rtol=1e-12)


def test_diverged_training_is_an_error_that_names_the_client():
    problem = task(model=LINEAR, data=regression(), learning_rate=1e3, local_epochs=200)
    with pytest.raises(
        ValueError, match=r"client at position \d in round 1: its training diverged"
    ):
        last(problem, 1)
