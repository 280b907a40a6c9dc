"""What holds for every prior, by one row of ``hard_em.PRIORS``."""

from copy import deepcopy

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from hard_em import MODEL, PRIORS
from skfedem.compression._survivors import encode_dense, encode_survivors
from skfedem.priors import Local

N = 5
SIZES = np.array([3, 1, 4, 1, 5])


@pytest.fixture(params=PRIORS)
def prior(request):
    return PRIORS[request.param].for_network(MODEL)


def shared_of(prior):
    """Θ after the warm-up, with centres that differ."""
    centres = np.stack([MODEL.initial(seed) for seed in range(prior.n_models)])
    shared = prior.initial(centres)
    while prior.gated and shared.gates.n_rounds < prior.warmup_rounds:
        update = prior.update(
            shared, prior.start(shared, np.zeros(1, int), SIZES[:1]), np.zeros((1, 99))
        )
        shared = prior.after_step(shared, update, np.ones(1), shared.weights)
    return shared


def uniforms(prior, shared, n=N, seed=0):
    size = len(shared.gates.alive) if prior.gated else 0
    return np.random.default_rng(seed).random((n, size)) if prior.gated else None


def trained(prior, shared, chosen=slice(None), n_steps=3):
    """Own parameters and updates of clients after some steps along random gradients."""
    generator = np.random.default_rng(1)
    models = np.arange(N) % prior.n_models
    local = prior.start(shared, models[chosen], SIZES[chosen])
    for step in range(n_steps):
        gradient = generator.normal(size=(N, MODEL.n_parameters))[chosen]
        numbers = uniforms(prior, shared, seed=step)
        relaxed = prior.relaxed(shared, local, numbers if numbers is None else numbers[chosen])
        local = prior.step(shared, local, relaxed[1], gradient, 0.0, 0.1)
    numbers = uniforms(prior, shared, seed=9)
    return local, prior.update(shared, local, numbers if numbers is None else numbers[chosen])


def test_clients_start_at_their_centre(prior):
    shared, models = shared_of(prior), np.arange(N) % prior.n_models
    assert_array_equal(prior.start(shared, models, SIZES).parameters, shared.weights[models])


def test_clients_do_not_depend_on_each_other(prior):
    shared = shared_of(prior)
    local, update = trained(prior, shared)
    for chosen in (slice(0, 1), slice(1, 4)):
        own_local, own_update = trained(prior, shared, chosen)
        assert_array_equal(own_local.parameters, local.parameters[chosen])
        assert_array_equal(own_update.differences, update.differences[chosen])
        if update.kept is not None:
            assert_array_equal(own_update.kept, update.kept[chosen])


def test_nothing_is_changed_in_place(prior):
    shared = shared_of(prior)
    local, update = trained(prior, shared)
    before, weights = deepcopy((shared, local, update)), np.arange(1.0, N + 1)
    numbers = uniforms(prior, shared)
    _, gates = prior.relaxed(shared, local, numbers)
    prior.step(shared, local, gates, np.ones_like(local.parameters), 1.0, 0.1)
    prior.update(shared, local, numbers)
    centres = prior.closed_form(shared, update, weights)
    prior.direction(shared, update, weights)
    prior.after_step(shared, update, weights, centres)
    assert_same(before, (shared, local, update))


def assert_same(one, other):
    if isinstance(one, tuple):
        for first, second in zip(one, other, strict=True):
            assert_same(first, second)
    else:
        assert_array_equal(one, other)


def test_centres_stay_where_all_clients_stayed(prior):
    shared, models = shared_of(prior), np.arange(N) % prior.n_models
    local, numbers = prior.start(shared, models, SIZES), uniforms(prior, shared)
    update = prior.update(shared, local, numbers)
    assert not update.differences.any()
    weights = np.arange(1.0, N + 1)
    distance = prior.closed_form(shared, update, weights) - shared.weights
    if prior.n_models == 1:
        assert not distance.any()
        assert not prior.direction(shared, update, weights).any()
    else:  # some responsibility for each other's clients is left
        assert np.abs(distance).max() < 0.5 * np.abs(np.diff(shared.weights, axis=0)).max()


def test_only_ratios_of_weights_and_no_order_of_clients_matter(prior):
    shared = shared_of(prior)
    _, update = trained(prior, shared)
    weights, order = np.arange(1.0, N + 1), np.array([3, 0, 4, 1, 2])
    shuffled = type(update)(*(None if field is None else field[order] for field in update))
    for step in (prior.closed_form, prior.direction):
        result = step(shared, update, weights)
        assert result.shape == shared.weights.shape
        assert_allclose(step(shared, update, 7 * weights), result, rtol=1e-12, atol=1e-15)
        assert_allclose(step(shared, shuffled, weights[order]), result, rtol=1e-12, atol=1e-15)


def test_directions_point_uphill(prior):
    shared = shared_of(prior)
    _, update = trained(prior, shared)
    weights = np.arange(1.0, N + 1)
    towards = prior.closed_form(shared, update, weights) - shared.weights
    direction = prior.direction(shared, update, weights)
    if not prior.corrects and prior.n_models == 1:  # where a median stays, the mean sign may not
        direction = np.where(towards != 0, direction, 0)
    assert (direction * towards >= 0).all()


def test_bytes_of_the_broadcast_are_those_of_its_encoding(prior):
    shared = shared_of(prior)
    survivors = prior.sent(shared)
    if survivors is None:
        assert prior.downlink_bytes(shared) == 4 * shared.weights.size
    else:
        alive = shared.gates.alive
        numbers = np.concatenate([shared.weights[0][survivors], shared.gates.thresholds[alive]])
        encoded = encode_survivors(alive, encode_dense(numbers))
        assert prior.downlink_bytes(shared) == len(encoded)


def test_survivors_follow_from_the_kept_groups(prior):
    shared = shared_of(prior)
    _, update = trained(prior, shared)
    groups = prior.groups(shared)
    assert (groups is None) == (update.kept is None)
    if groups is not None:
        assert not (update.kept & ~groups).any()
        assert_array_equal(prior.survivors(update.kept), update.survivors)


def test_a_pull_without_a_gradient_is_towards_the_centre(prior):
    shared = shared_of(prior)
    local, _ = trained(prior, shared)
    models = local.models
    open_gates = None if not prior.gated else np.full((N, len(shared.gates.alive)), 1 - 1e-9)
    _, gates = prior.relaxed(shared, local, open_gates)
    after = prior.step(shared, local, gates, np.zeros_like(local.parameters), 0.0, 0.1)
    before = np.linalg.norm(local.parameters - shared.weights[models], axis=1)
    distance = np.linalg.norm(after.parameters - shared.weights[models], axis=1)
    if getattr(prior, "precision", 0) > 0:
        assert (distance < before).all()
    else:
        assert_array_equal(after.parameters, local.parameters)


def test_priors_are_immutable_and_their_own_clones(prior):
    assert clone(prior) is prior
    with pytest.raises(AttributeError):
        prior.precision = 3.0


def test_own_parameters_are_those_that_are_sent(prior):
    shared = shared_of(prior)
    local, update = trained(prior, shared)
    own = prior.own_parameters(shared, local, update)
    sent = np.ones(own.shape, bool) if update.survivors is None else update.survivors
    assert_array_equal(own[sent], local.parameters[sent])
    if prior.gated:
        assert not own[~sent].any()
    assert isinstance(local, Local)
