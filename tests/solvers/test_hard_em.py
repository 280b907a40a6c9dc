"""Hard EM: exact limits, memories, optimizers, and independence of how it is computed."""

from itertools import pairwise

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from contracts import assert_same
from hard_em import LENGTHS, MODEL, PRIORS, WEIGHTS, begin, case_of, federation, last, rounds
from places import Lossy, Places
from skfedem import _random
from skfedem._federation import Federation, sample_weight_of
from skfedem._rows import LabelledRows
from skfedem._serialization import from_bytes, to_bytes
from skfedem.clients.group import client_half, decoded, encoded
from skfedem.clients.local import LocalClients
from skfedem.clients.sums import aggregate
from skfedem.compression import Dithering
from skfedem.models.perceptron import Perceptron
from skfedem.priors import GaussianPrior, LaplacePrior, MixturePrior
from skfedem.solvers._local_training import _minibatches, mean_losses, n_steps, stacks
from skfedem.solvers._loop import active_clients, open_round
from skfedem.solvers.base import ClientGroup
from skfedem.solvers.messages import stacked

LINEAR = Perceptron((3, 1), loss="squared_error")
SCAFFOLD = {"control_variates": True}
MEMORIES = {"control_step": 0.3, "compressor": Dithering(omega=1.0)}


def regression(lengths=LENGTHS, seed=0, weights=None):
    data = federation(lengths, seed=seed, weights=weights)
    generator, rows = np.random.default_rng(seed), data.rows.features
    noise = generator.normal(size=len(rows))
    slopes = np.repeat(generator.normal(size=(len(lengths), 3)), lengths, axis=0)
    targets = ((rows * slopes).sum(axis=1) + noise)[:, None]
    return data._replace(rows=LabelledRows(rows, targets))


def group_of(case, states, clients):
    """Group of some clients with these states."""
    clients = np.atleast_1d(clients)
    controls = states.controls[clients] if case.task.has_controls else states.controls
    own = states.parameters[clients], states.took_part[clients]
    kept = case.problem.solver.init(case.task, case.federation)
    return ClientGroup(case.federation, clients, clients, controls, type(kept)(*own))


def half_of(case, broadcast, group):
    """Message of a group, and its controls and states afterwards."""
    return client_half(case.problem.solver, case.task, broadcast, group)


# ---- FedAvg and FedProx


@pytest.mark.parametrize("model", [MODEL, Perceptron((3, 3)), Perceptron((3, 2, 2), alpha=0.3)])
def test_one_full_step_of_everybody_is_pooled_gradient_descent(model):
    case = case_of(network=model, local_epochs=1, batch_size=None)
    rows, targets = case.federation.rows[:]
    vector = model.initial(0)
    for server, _, info in rounds(case, 5):
        n = len(targets)
        loss, gradient = model.loss_and_gradient(
            vector[None], rows[None], targets[None], np.full((1, n), 1 / n)
        )
        vector = vector - 0.1 * gradient[0]
        assert_allclose(server.statistics.weights[0], vector, rtol=0, atol=1e-14)
        assert_allclose(info.loss, loss[0], rtol=1e-13)
        assert info.uplink_bytes == info.downlink_bytes == 6 * 4 * model.n_parameters


def test_messages_of_32_bits_are_rounded_and_nothing_else():
    exact, rounded = (
        last(case_of(local_epochs=1, message_type=kind), 5)[0] for kind in ("float64", "float32")
    )
    weights = rounded.statistics.weights
    assert_array_equal(weights, weights.astype(np.float32))
    assert_allclose(weights, exact.statistics.weights, atol=1e-6)
    assert (weights != exact.statistics.weights).any()


def test_weights_of_rows_are_repetitions():
    data = federation()
    counts = np.random.default_rng(0).integers(1, 4, size=data.n_samples)
    owners = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    repeated = federation(np.bincount(owners, counts).astype(int))
    pairs = (np.repeat(field, counts, axis=0) for field in data.rows[:])
    repeated = repeated._replace(rows=LabelledRows(*pairs))
    weights = sample_weight_of(counts.astype(float), data.offsets)
    weighted = Federation(data.rows, data.offsets, repeated.weights, weights)
    settings = {"local_epochs": 3, "batch_size": None}
    one, _, info = last(case_of(data=weighted, **settings), 3)
    other, _, expected = last(case_of(data=repeated, **settings), 3)
    assert len(repeated.rows) == counts.sum()
    assert_allclose(one.statistics.weights, other.statistics.weights, rtol=0, atol=1e-13)
    assert_allclose(info.loss, expected.loss, rtol=1e-12)


def test_fedprox_without_a_penalty_is_fedavg_bit_for_bit():
    for name in ("laplace", "mixture"):
        prior = MixturePrior(1, 1e-300) if name == "mixture" else GaussianPrior(0.0)
        pairs = rounds(case_of(prior), 3), rounds(case_of(GaussianPrior()), 3)
        for (server, _, _), (expected, _, _) in zip(*pairs, strict=True):
            assert_array_equal(server.statistics.weights, expected.statistics.weights)


def test_one_component_is_a_gaussian_bit_for_bit():
    pairs = rounds(case_of(MixturePrior(1, 0.7)), 3), rounds(case_of(GaussianPrior(0.7)), 3)
    for (server, states, _), (expected, others, _) in zip(*pairs, strict=True):
        assert_array_equal(server.statistics.weights, expected.statistics.weights)
        assert_array_equal(states.parameters, others.parameters)


@pytest.mark.parametrize("prior", [GaussianPrior(1e12), LaplacePrior(1e12), MixturePrior(2, 1e12)])
def test_an_infinite_precision_keeps_the_centres(prior):
    case = case_of(prior)
    server, states = begin(case)
    before = server.statistics.weights
    if prior.n_models > 1:
        before = before * [[1.0], [2.0]]
        shared = server.statistics._replace(weights=before)
        server = server._replace(statistics=shared, parameters=shared)
    after, _, _ = last(case, 1, state=(server, states))
    assert_allclose(after.statistics.weights, before, rtol=0, atol=1e-9)


@pytest.mark.parametrize("precision", [0.1, 3.0])
def test_exact_local_solves_of_linear_regression_increase_the_objective(precision):
    data = regression((9, 7, 17, 5, 6, 11))
    case = case_of(
        GaussianPrior(precision),
        LINEAR,
        data,
        local_epochs=1200,
        batch_size=None,
        learning_rate=0.2,
    )
    rows, targets = data.rows[:]
    centre, values = LINEAR.initial(0), []
    for server, states, _ in rounds(case, 3):
        found = []
        for k, (start, stop) in enumerate(pairwise(data.offsets)):
            X = np.hstack([rows[start:stop], np.ones((stop - start, 1))])
            gram = X.T @ X / len(X) + precision * np.eye(4)
            right = X.T @ targets[start:stop, 0] / len(X) + precision * centre
            own = np.linalg.solve(gram, right)
            assert_allclose(states.parameters[k], own, atol=1e-8)
            found.append(own)
            residual = targets[start:stop, 0] - X @ own
            penalty = precision * ((own - centre) ** 2).sum()
            values.append(data.weights[k] * ((residual**2).mean() + penalty) / 2)
        centre = data.weights @ found
        assert_allclose(server.statistics.weights[0], centre, atol=1e-8)
        values[-6:] = [sum(values[-6:])]
    assert (np.diff(values) < 0).all()


def test_the_m_step_does_not_depend_on_the_precision():
    case = case_of()
    server, states = begin(case)
    broadcast, _ = open_round(case.problem, server)
    message, *_ = half_of(case, broadcast, group_of(case, states, 0))
    after = []
    for precision in (0.0, 0.1, 10.0):
        problem = case_of(GaussianPrior(precision)).problem
        seen = aggregate(problem.solver, case.task, problem.sizes, np.array([0]), [message])
        after.append(problem.solver.server_half(problem, server, seen, 1.0)[0].statistics.weights)
    assert_array_equal(after[0], after[1])
    assert_array_equal(after[0], after[2])


def test_coordinates_equal_to_the_servers_are_not_sent():
    case = case_of(LaplacePrior(0.3))
    server, states = begin(case)
    before = server.statistics.weights[0].copy()
    _, states, info = last(case, 1, state=(server, states))
    moved = states.parameters != before
    assert 0 < moved.sum() < moved.size
    assert (moved.sum(axis=1) == 0).any() or moved.any(axis=1).all()
    floor = 4 * moved.sum()
    # Which of 26 coordinates moved: at most 26 bits, counts of 11 and 5, and 3 bytes of a message.
    assert floor < info.uplink_bytes <= floor + len(LENGTHS) * (3 + 6)


# ---- compression and memories


def test_v_is_the_mean_of_the_clients_memories_after_every_round():
    case = case_of(
        compressor=Dithering(omega=1.0), control_step=0.3, participation=0.5,
        data=federation(weights=WEIGHTS),
    )  # fmt: skip
    for server, states, _ in rounds(case, 12):
        assert_allclose(server.control, WEIGHTS @ states.controls, rtol=0, atol=1e-13)
    assert server.control.any()


def test_memories_do_not_change_rounds_of_everybody_without_compression():
    with_memories = rounds(case_of(control_step=0.3), 4)
    for (server, states, _), (expected, _, _) in zip(
        with_memories, rounds(case_of(), 4), strict=True
    ):
        assert_allclose(server.statistics.weights, expected.statistics.weights, rtol=0, atol=1e-14)
        assert states.controls.any()


@pytest.mark.parametrize("name", ["ensemble", "FedSparse of weights"])
def test_compressed_rounds_are_unbiased(name):
    n_models = PRIORS[name].n_models
    centres = np.stack([MODEL.initial(k) for k in range(n_models)])
    exact, _, _ = last(case_of(PRIORS[name]), 1, state=begin(case_of(PRIORS[name]), centres))
    moves = []
    case, n_draws = case_of(PRIORS[name], compressor=Dithering(omega=1.0)), 150
    for seed in range(n_draws):
        # Only the compression has another seed: other streams are those of the exact round.
        with SeededCompression(seed):
            after, _, _ = last(case, 1, state=begin(case, centres))
        moves.append(after.statistics.weights - exact.statistics.weights)
    error, spread = np.mean(moves, axis=0), np.std(moves, axis=0) / np.sqrt(n_draws)
    # Five standard errors; of 52 numbers, one is off by more once in 30,000 runs.
    assert (np.abs(error) <= 5 * spread + 1e-12).all()
    assert spread.any()


class SeededCompression:
    """Context in which numbers for compression come from another seed."""

    def __init__(self, seed):
        self.seed = seed

    def __enter__(self):
        self.draw = _random.client_uniforms

        def drawn(seed, purpose, *args, **kwargs):
            other = purpose == _random.COMPRESSION
            return self.draw(self.seed if other else seed, purpose, *args, **kwargs)

        _random.client_uniforms = drawn

    def __exit__(self, *exception):
        _random.client_uniforms = self.draw


# ---- server optimizers


@pytest.mark.parametrize(("momentum", "rate"), [(0.0, 1.0), (0.5, 0.3)])
def test_sgd_at_the_server(momentum, rate):
    settings = {"server_learning_rate": rate, "server_momentum": momentum}
    case = case_of(server_optimizer="sgd", **settings)
    velocity, before = 0.0, None
    for server, states, _ in rounds(case, 4):
        if before is not None:
            velocity = momentum * velocity + case.federation.weights @ (states.parameters - before)
            assert_allclose(server.statistics.weights[0], before + rate * velocity, atol=1e-14)
        else:
            start = MODEL.initial(0)
            velocity = case.federation.weights @ (states.parameters - start)
        before = server.statistics.weights[0]


@pytest.mark.parametrize(
    ("optimizer", "name"),
    [("sgd", name) for name in PRIORS]
    + [(name, prior) for name in ("adam", "adamax") for prior in ("ensemble", "FedSparse")],
)
def test_optimizers_reduce_the_loss_under_every_prior(optimizer, name):
    rate = 0.2 if optimizer == "sgd" else 0.02
    case = case_of(PRIORS[name], server_optimizer=optimizer, server_learning_rate=rate)
    losses = [info.loss for _, _, info in rounds(case, 25)]
    assert np.mean(losses[-5:]) < losses[0] - 0.01


# ---- what results do not depend on


@pytest.mark.parametrize("name", PRIORS)
@pytest.mark.parametrize("settings", [{}, {"participation": 3}, {"batch_size": None}])
def test_threads_do_not_change_a_bit(name, settings, threads_always_pay):
    case = case_of(PRIORS[name], **settings)
    alone, shared = last(case, 3, n_jobs=1), last(case, 3, n_jobs=3)
    assert_array_equal(alone[0].statistics.weights, shared[0].statistics.weights)
    assert_array_equal(alone[1].parameters, shared[1].parameters)
    assert threads_always_pay


@pytest.mark.parametrize("model", [MODEL, Perceptron((3, 2))])
@pytest.mark.parametrize("name", PRIORS)
def test_clients_train_alike_in_any_company(name, model):
    case = case_of(PRIORS[name], model)
    server, states, _ = last(case, 2)
    broadcast, every = open_round(case.problem, server)
    together = half_of(case, broadcast, group_of(case, states, every))
    alone = [half_of(case, broadcast, group_of(case, states, client)) for client in every]
    assert_same(stacked(alone), together)


@pytest.mark.parametrize("settings", [{}, SCAFFOLD, MEMORIES])
@pytest.mark.parametrize("name", PRIORS)
def test_messages_come_back_from_bytes_as_long_as_is_counted(name, settings):
    prior = PRIORS[name]
    if (settings and not prior.compresses) or (settings is SCAFFOLD and not prior.corrects):
        pytest.skip("not sound together")
    case = case_of(prior, message_type="float32", **settings)
    solver, task = case.problem.solver, from_bytes(to_bytes(case.task))
    for server, states, _ in rounds(case, 3):
        broadcast, every = open_round(case.problem, server)
        told = from_bytes(to_bytes(broadcast))
        for client in every.tolist():
            message, *_ = half_of(case, broadcast, group_of(case, states, client))
            sent = from_bytes(to_bytes(encoded(solver, task, told, message)))
            layout = task.model.vectors(case.problem.sizes)
            assert_same(decoded(solver, task, told, layout, client, sent), message)


@pytest.mark.parametrize("name", PRIORS)
def test_damaged_messages_are_refused(name):
    case = case_of(PRIORS[name])
    server, states = begin(case)
    broadcast, _ = open_round(case.problem, server)
    message, *_ = half_of(case, broadcast, group_of(case, states, 0))
    codec, task = case.problem.solver.codec, case.task
    data = codec.encode(task, broadcast, message)
    assert len(data) == message.n_bytes
    with pytest.raises(ValueError, match=r"Expected .* got .*sent again"):
        codec.decode(task, broadcast, data[:-3])


@pytest.mark.parametrize("settings", [{}, SCAFFOLD, MEMORIES])
def test_bits_do_not_depend_on_where_clients_are(settings):
    case = case_of(message_type="float32", participation=0.6, **settings)
    want = last(case, 4)
    for groups in ([[i] for i in range(6)], [[0, 2, 5], [1, 3, 4]]):

        def places(federation, workers, groups=groups):
            return AtPlaces(federation, groups)

        assert_same(last(case, 4, places=places), want)


class AtPlaces(Places):
    """Clients at several places, which know what all of them keep."""

    def joined(self, name):
        """A field of all clients."""
        order = np.argsort(np.concatenate([place.ids for place in self.places]))
        parts = [getattr(place.states, name, place.controls) for place in self.places]
        whole = np.concatenate(parts)
        return whole[order] if len(whole) else whole

    @property
    def controls(self):
        """V_i of all clients."""
        return self.joined("controls")

    @property
    def states(self):
        """States of all clients."""
        kind = type(self.places[0].states)
        return kind(*map(self.joined, kind._fields))

    def restore(self, saved):
        """Begin as clients begin: nothing else is restored here."""
        assert not saved["controls"].any() and not saved["states"].took_part.any()


@pytest.mark.parametrize("participation", [1.0, 0.7])
@pytest.mark.parametrize("settings", [{}, SCAFFOLD, MEMORIES])
def test_controls_of_both_sides_agree_when_messages_are_lost(settings, participation):
    data = federation(weights=WEIGHTS)
    case = case_of(data=data, participation=participation, **settings)
    n_lost, before = 0, begin(case)[1]
    for server, states, info in rounds(case, 8, places=Lossy):
        if settings:
            assert_allclose(server.control, WEIGHTS @ states.controls, rtol=0, atol=1e-13)
        changed = (states.parameters != before.parameters).any(axis=1)
        assert changed.sum() == info.n_active
        n_lost += 6 - info.n_active
        before = states
    assert n_lost > 8


@pytest.mark.parametrize("name", PRIORS)
def test_a_round_that_is_not_committed_leaves_no_trace(name):
    case = case_of(PRIORS[name], participation=3)

    class Rejected(LocalClients):
        """Clients whose first answer of each round is rejected."""

        def round(self, broadcast, active):
            """Everybody answers, and once more those who were asked."""
            super().round(broadcast, np.arange(6))
            self.commit(broadcast.round_index - 1)
            return super().round(broadcast, active)

    assert_same(last(case, 3, places=Rejected), last(case, 3))


def test_absent_clients_keep_their_states():
    case = case_of(participation=3)
    active = active_clients(case.problem, 0)
    _, states, _ = last(case, 1)
    absent = np.setdiff1d(np.arange(len(LENGTHS)), active)
    assert_array_equal(states.took_part, np.isin(np.arange(len(LENGTHS)), active))
    assert not states.parameters[absent].any() and states.parameters[active].any()


# ---- rounds and clients


def test_numbers_of_clients():
    always = case_of(participation=1.0)
    assert_array_equal(active_clients(always.problem, 5), np.arange(6))
    counts = np.zeros(6)
    for k in range(600):
        active = active_clients(case_of(participation=2).problem, k)
        assert len(active) == 2 and (np.diff(active) > 0).all()
        counts[active] += 1
    # Five standard deviations of a binomial count.
    assert (np.abs(counts - 200) < 5 * np.sqrt(600 * 2 / 9)).all()
    assert len(active_clients(case_of(participation=1).problem, 0)) == 1
    sizes = [len(active_clients(case_of(participation=0.3).problem, k)) for k in range(300)]
    assert min(sizes) == 0 and 1.3 < np.mean(sizes) < 2.3


@pytest.mark.parametrize("settings", [{}, {"control_variates": True}, {"control_step": 0.5}])
def test_a_round_without_clients_changes_nothing_but_its_number(settings):
    case = case_of(**settings)
    state = begin(case)
    after, states, info = last(case, 3, state=state, places=Silent)
    assert_same(after, state[0]._replace(round_index=3))
    assert_same(states, state[1])
    assert info.n_active == info.uplink_bytes == 0 and np.isnan(info.loss)


class Silent(LocalClients):
    """Clients of whom nobody answers."""

    def round(self, broadcast, active):
        """A round without clients."""
        return super().round(broadcast, active[:0])


@pytest.mark.parametrize("batch_size", [1, 4, 5, 1000, None])
def test_steps_of_clients(batch_size):
    case = case_of(batch_size=batch_size, local_epochs=3)
    lengths = case.federation.lengths
    expected = 3 * np.ceil(lengths / (batch_size or 10**9))
    assert_array_equal(n_steps(case.task, lengths), expected)
    _, _, info = last(case, 1)
    assert info.n_rows == 3 * lengths.sum() and np.isfinite(info.loss)


def test_every_row_is_read_once_in_an_epoch():
    case = case_of(batch_size=4, local_epochs=2)
    data, states = case.federation, begin(case)[1]
    every = np.arange(6)
    seen = [[] for _ in every]
    for clients in stacks(case.task, data.lengths):
        for X, y, weights in _minibatches(case.task, 0, group_of(case, states, clients)):
            for k, client in enumerate(clients):
                assert_allclose(weights[k].sum(), 1)
                seen[client].append(X[k][weights[k] > 0])
                present = weights[k][weights[k] > 0]
                assert (present == present[0]).all() and len(y[k]) == len(X[k])
    for client in every:
        own, _ = data.rows[data.offsets[client] : data.offsets[client + 1]]
        found = np.vstack(seen[client])
        half = len(own)
        for epoch in (found[:half], found[half:]):
            assert_array_equal(np.sort(epoch, axis=0), np.sort(own, axis=0))
        assert half < 6 or (found[:half] != found[half:]).any()


def test_losses_of_models_on_all_rows():
    case = case_of()
    models = np.stack([MODEL.initial(k) for k in range(2)])
    group = group_of(case, begin(case)[1], np.array([0, 3]))
    losses = mean_losses(case.task, group, models)
    for row, client in zip(losses, (0, 3), strict=True):
        own = slice(*case.federation.offsets[client : client + 2])
        X, y = case.federation.rows[own]
        expected = [MODEL.losses(w, X, y, np.full(len(y), 1 / len(y))) for w in models]
        assert_allclose(row, expected, rtol=1e-12)


def test_diverged_training_is_an_error_that_names_the_client():
    case = case_of(network=LINEAR, data=regression(), learning_rate=1e3, local_epochs=200)
    with pytest.raises(ValueError, match=r"for the client \d in round 1: its training diverged"):
        last(case, 1)
