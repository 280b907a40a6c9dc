"""The low-rank model on the solvers, against soft-impute and the literal Algorithm 7."""

from functools import cache

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import literal_imputation as oracle
from contracts import assert_same
from low_rank_cells import (
    PENALTIES,
    SHAPE,
    all_cells,
    dense,
    every_family,
    fitted,
    model_of_cells,
    no_effects,
    observations,
    problem_of,
    support_of,
)
from skfedem import FederatedMatrixImputer
from skfedem._data.cells import read_cells
from skfedem._federation import Federation, offsets_of
from skfedem._serialization import digest, from_bytes, to_bytes
from skfedem.compression import BlockQuantizer, Dithering, RandK
from skfedem.models.matrix import proximal, theta
from skfedem.models.matrix.families import FAMILIES
from skfedem.models.matrix.pooled import Margins, Pooled
from skfedem.models.matrix.proximal import (
    Iterate,
    _above_tangent,
    extrapolate,
    largest_curvature,
    objective,
    proximal_step,
)
from skfedem.models.matrix.start import cell_federation, observed_support, start_run
from skfedem.models.matrix.theta import (
    Cells,
    Effects,
    LowRank,
    Theta,
    at,
    low_rank_at,
    products,
    squared_distance,
    zero_low_rank,
)
from skfedem.solvers._step_size import first_step_size
from skfedem.solvers.fedem import FEDEM
from skfedem.solvers.vr_fedem import VR_FEDEM


@cache
def pooled_optimum(family, overlap, effects="both"):
    """Objective of soft-impute to the observations of everybody, by the oracle, which is slow."""
    return soft_impute(observations(family, overlap), family, effects).objective


def soft_impute(data, family, effects="both", penalty=None):
    penalty = PENALTIES[family] if penalty is None else penalty
    return oracle.soft_impute(*data[:3], SHAPE, penalty, family, effects, 1e-7)


every_split = pytest.mark.parametrize("overlap", [False, True], ids=["disjoint", "overlapping"])


# ---- the pooled optimum, whatever the split


@every_family
@every_split
@pytest.mark.parametrize("effects", ["both", "rows", "columns", "none"])
def test_exact_rounds_reach_the_pooled_optimum(family, overlap, effects):
    data = observations(family, overlap)
    want = pooled_optimum(family, overlap, effects)
    result = fitted(*problem_of(data, family, effects=effects), max_iter=300, tol=1e-11)
    objectives = result.history["objective"]
    # The ridge on the effects is about 1e-7 of it.
    assert abs(objectives[-1] - want) < 1e-6 * want
    # Rounding of a sum of a hundred terms aside, no round makes it worse.
    assert (np.diff(objectives) <= 1e-12 * objectives[0]).all()
    assert result.server.round_index < 120


@every_family
@every_split
def test_without_effects_exact_rounds_are_pooled_soft_impute(family, overlap):
    data = observations(family, overlap)
    want = oracle.soft_impute(*data[:3], SHAPE, PENALTIES[family], family, "none", 1e-11)
    result = fitted(*problem_of(data, family, effects="none"), max_iter=400)
    # An objective has half the digits of θ. The oracle's tol of 1e-11 is of a gradient, of which
    # curvatures of a few hundredths make some 1e-10; after 250 rounds, 2e-8 were left.
    got = dense(result.server.parameters.natural.low_rank)
    assert_allclose(got, want.low_rank, rtol=0, atol=1e-8)


@every_family
@pytest.mark.parametrize(
    ("overlap", "compressor"), [(True, Dithering(omega=1.0)), (False, BlockQuantizer(omega=1.0))]
)
def test_compressed_and_partial_rounds_reach_the_pooled_optimum(family, overlap, compressor):
    data = observations(family, overlap)
    want = pooled_optimum(family, overlap)
    problem, federation = problem_of(data, family, compressor=compressor, participation=0.75)
    result = fitted(problem, federation, max_iter=150)
    # 1e-7 at most; minibatches leave 1e-2.
    assert abs(result.criteria("objective")[-1] - want) < 1e-6 * want
    assert not result.history["safeguarded"].any()


@every_family
def test_variance_reduction_reaches_the_pooled_optimum_with_minibatches(family):
    data = observations(family, overlap=True)
    want = pooled_optimum(family, overlap=True)
    problem, federation = problem_of(
        data, family, compressor=Dithering(omega=1.0), participation=0.75, batch_size=4
    )
    result = fitted(problem, federation, solver=VR_FEDEM, max_iter=400)
    # 3e-8 at most; FedEM's minibatches leave 1e-2.
    assert abs(result.criteria("objective")[-1] - want) < 1e-6 * want


def test_minibatches_step_as_the_documented_rule_has_it():
    problem, federation = problem_of(
        observations("poisson", True), "poisson", compressor=RandK(omega=1.0), participation=0.5,
        batch_size=1, n_inner=40,
    )  # fmt: skip
    omega_p = problem.omega + 0.5 * (1 + problem.omega) / 0.5
    share = 1 / federation.lengths.max()
    noisy = problem._replace(persistent_noise=True)
    assert_allclose(first_step_size(noisy), share / (1 + 5 * omega_p), rtol=1e-12)
    spider = 1.4 * np.sqrt(share * 0.5 / (40 * (1 + omega_p)))
    assert_allclose(first_step_size(problem), spider, rtol=1e-12)


def test_clients_who_count_alike_step_by_their_mean_length():
    # The cells of those with many weigh less, so that theirs are not the noisiest.
    problem, federation = problem_of(
        observations("poisson", False), "poisson", batch_size=1, client_weights="uniform"
    )
    lengths = federation.lengths
    assert lengths.max() > lengths.mean()
    step_size = first_step_size(problem._replace(persistent_noise=True))
    assert_allclose(step_size, 1 / lengths.mean(), rtol=1e-12)


@every_family
def test_any_split_of_the_observations_gives_the_same_fit(family):
    data = observations(family, overlap=True)
    one = fitted(*problem_of((*data[:3], np.zeros_like(data[3])), family), max_iter=20)
    for owners in (data[3], np.arange(len(data[3])), data[3][::-1]):
        order = np.argsort(owners, kind="stable")
        other = tuple(column[order] for column in (*data[:3], owners))
        many = fitted(*problem_of(other, family), max_iter=20)
        # The same sums in another order, and 20 rounds that pass rounding on.
        assert_allclose(
            many.history["objective"], one.history["objective"], rtol=1e-9, err_msg=family
        )


@pytest.mark.parametrize(("solver", "share_left"), [(FEDEM, 0.5), (VR_FEDEM, 1e-6)])
@pytest.mark.parametrize("family", ["gaussian", "poisson"])
def test_minibatches_of_clients_of_very_unlike_effort_do_not_diverge(family, solver, share_left):
    rows, columns, values, _ = observations(family, overlap=True)
    # One client has four fifths of the observations, the others a few each.
    owners = np.maximum(np.arange(len(rows)) - len(rows) * 4 // 5, 0) // 5
    problem, federation = problem_of((rows, columns, values, owners), family, batch_size=3)
    result = fitted(problem, federation, solver=solver, max_iter=300)
    start, end = result.history["objective"][0], result.criteria("objective")[-1]
    best = soft_impute((rows, columns, values), family).objective
    assert end - best < share_left * (start - best)


@pytest.mark.parametrize("adaptive", [True, False])
def test_the_norm_of_a_field_does_not_depend_on_the_step_along_it(adaptive):
    # From nothing, of full rank and without a penalty, a step is γ η W.
    problem, _ = problem_of(
        observations("gaussian", overlap=True), "gaussian", penalty=0.0, effects="none",
        adaptive=adaptive,
    )  # fmt: skip
    model = problem.model
    start = start_run(model).statistics
    field = np.random.default_rng(0).standard_normal(len(start.sums))
    expected = np.square(model.scale * field).sum()
    assert_allclose(model.field_sq_norm(start, field), expected, rtol=1e-10)
    for step_size in (1.0, 0.5, 1e-3):
        step = model.server_step(start, field, step_size, exact=False)
        assert_allclose(step.field_sq_norm, expected, rtol=1e-10)


def test_a_penalty_that_leaves_nothing_is_no_trouble_however_long_the_run():
    data = observations("gaussian", overlap=False)
    problem, federation = problem_of(data, "gaussian", penalty=1e3, participation=0.5)
    result = fitted(problem, federation, max_iter=1500)
    assert result.server.parameters.natural.low_rank.singular_values.size == 0
    assert np.isfinite(result.history["field_sq_norm"][1:]).all()
    # Where nothing moves, nothing is learnt of how long a step may be.
    short = fitted(problem, federation, max_iter=5)
    assert result.server.statistics.natural_step == short.server.statistics.natural_step


# ---- the literal algorithm


@pytest.mark.parametrize("penalty", [0.0, 0.7])
def test_it_is_algorithm_7_of_one_observer_step_by_step(penalty):
    data = observations("gaussian", overlap=False)
    observer = oracle.Cells(*data[:3])
    literal = oracle.algorithm_7([[observer]], 2, penalty, np.zeros(SHAPE), [1.0], [1.0] * 12)
    problem, federation = problem_of(
        (*data[:3], np.zeros_like(data[3])), "gaussian", penalty=penalty, rank=2, effects="none",
        adaptive=False,
    )  # fmt: skip
    for k, (_, want) in enumerate(literal):
        result = fitted(problem, federation, step_size=1.0, max_iter=k + 1)
        assert_allclose(dense(result.server.parameters.natural.low_rank), want, atol=1e-8)


@every_family
@pytest.mark.parametrize("adaptive", [True, False])
def test_noisy_steps_are_those_of_the_theory(family, adaptive):
    # Θ⁺ = SVT(Θ + γ η W), by γ η λ, with dense matrices. Directions for any rank are all there are.
    problem, _ = problem_of(observations(family, overlap=True), family, adaptive=adaptive)
    model, generator = problem.model, np.random.default_rng(0)
    pooled, support = model.pooled, model.pooled.support
    point = start_run(model).statistics
    for step_size in (1.0, 0.5, 0.5, 0.1, 0.1):
        field = 0.05 * generator.standard_normal(len(support.counts))
        before, point = point, model.server_step(point, field, step_size, exact=False).statistics
        length = step_size * point.natural_step / 1.3  # by which it has grown meanwhile
        moved, after = (dense(each.iterate.low_rank) for each in (before, point))
        moved[support.rows, support.columns] += length * model.scale * field
        want = oracle.threshold_singular_values(moved, length * pooled.penalty)
        # Decompositions of matrices of order 10.
        assert_allclose(after, want, rtol=0, atol=1e-11)
    assert after.any()


def test_an_extrapolated_iterate_has_the_values_of_its_parts():
    problem, federation = problem_of(observations("poisson", overlap=True), "poisson")
    support = problem.model.pooled.support
    some, more = (
        fitted(problem, federation, max_iter=n_rounds).server.statistics.iterate
        for n_rounds in (2, 4)
    )
    found = extrapolate(more, some, 0.5)
    values = low_rank_at(found.low_rank, support.rows, support.columns)
    assert_allclose(found.low_rank_values, values, atol=1e-12)
    assert_allclose(found.theta, values + found.effects.at(support.rows, support.columns))
    assert_allclose(found.theta, more.theta + 0.5 * (more.theta - some.theta))


@pytest.mark.parametrize("exact", [True, False])
def test_a_round_without_a_step_short_enough_starts_from_the_curvature(monkeypatch, exact):
    problem, federation = problem_of(observations("poisson", overlap=True), "poisson")
    model, point = problem.model, fitted(problem, federation, max_iter=3).server.statistics
    assert point.momentum > 1
    monkeypatch.setattr(proximal, "MAX_HALVINGS", 0)
    step = model.server_step(point, np.ones(len(model.pooled.support.counts)), 1.0, exact=exact)
    assert step.statistics.iterate is point.iterate
    assert step.step_taken == 0
    largest = (model.pooled.support.counts * np.exp(point.iterate.theta)).max()
    assert_allclose(step.statistics.natural_step, 1 / largest)


@pytest.mark.parametrize("n_observers", [5, 8])
@pytest.mark.parametrize("penalty", [0.0, 0.7])
def test_it_is_algorithm_7_of_observers_who_see_the_same_cells(penalty, n_observers):
    rows, columns, values, _ = observations("gaussian", overlap=True)
    cells = rows * SHAPE[1] + columns
    # In the paper an observer sees a cell once.
    sightings = np.array([np.count_nonzero(cells[:k] == cell) for k, cell in enumerate(cells)])
    n_sightings = sightings.max() + 1
    assert 1 < n_sightings <= n_observers
    owners = (cells + sightings) % n_observers
    observers = [
        oracle.Cells(rows[own], columns[own], values[own])
        for own in (owners == i for i in range(n_observers))
    ]
    literal = oracle.algorithm_7(
        [[observer] for observer in observers], 2, penalty / n_observers, np.zeros(SHAPE),
        [1 / n_observers] * n_observers, [1.0] * 12,
    )  # fmt: skip
    problem, federation = problem_of(
        (rows, columns, values, owners), "gaussian", penalty=penalty, rank=2, effects="none",
        adaptive=False,
    )  # fmt: skip
    # Our step of 1 is the longest that stands for any number of observers.
    step_size = n_sightings / n_observers
    for k, (_, want) in enumerate(literal):
        result = fitted(problem, federation, step_size=step_size, max_iter=k + 1)
        assert_allclose(dense(result.server.parameters.natural.low_rank), want, atol=1e-8)


# ---- invariants


def test_weights_of_clients_weigh_their_observations():
    data = observations("poisson", overlap=True)
    problem, federation = problem_of(data, "poisson", client_weights="uniform")
    # Every client's observations weigh N / (n m_i) each, and some cells have several.
    n_observations = np.bincount(data[3])
    assert (n_observations > federation.lengths).any()
    weights = n_observations.sum() / federation.n_clients / n_observations
    counts = federation.rows.counts * np.repeat(weights, federation.lengths)
    total = np.zeros(SHAPE)
    np.add.at(total, (federation.rows.rows, federation.rows.columns), counts)
    support = problem.model.pooled.support
    assert_allclose(support.counts, total[support.rows, support.columns])
    result = fitted(problem, federation, max_iter=200, tol=1e-12)
    theta = result.server.parameters.natural
    values = at(theta, federation.rows.rows, federation.rows.columns)
    # At the optimum the weighted residuals of each row add up to 0, but for the ridge. The
    # objective, 277, does not tell steps of √(277 eps) apart, a few of which are left; counts and
    # means are up to 80. Clients that count by their observations would leave 0.9.
    residual = counts * (federation.rows.values - np.exp(values))
    by_row = np.bincount(federation.rows.rows, residual)
    assert_allclose(by_row, 1e-7 * theta.effects.rows, atol=1e-4)


# ---- pieces


@pytest.mark.parametrize(("most_entries", "gathered"), [(0, 0), (0, 10), (0, 2**17), (2**20, 0)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_entries_of_a_product_are_the_same_however_many_are_gathered_at_once(
    monkeypatch, most_entries, gathered, order
):
    rng = np.random.default_rng(0)
    left, right = (rng.normal(size=(n, 3)).copy(order) for n in SHAPE)
    rows, columns = (rng.integers(n, size=50).astype(np.int32) for n in SHAPE)
    sizes = theta._SIZES._replace(dense_entries=most_entries, gathered=gathered)
    monkeypatch.setattr(theta, "_SIZES", sizes)
    found = products(left, right, rows, columns)
    assert_allclose(found, (left @ right.T)[rows, columns], rtol=0, atol=1e-14)


def test_distances_of_low_rank_matrices_do_not_cancel():
    generator = np.random.default_rng(0)
    left, _ = np.linalg.qr(generator.standard_normal((30, 2)))
    right, _ = np.linalg.qr(generator.standard_normal((20, 2)))
    one = LowRank(left, np.array([1e3, 1.0]), right)
    two = LowRank(left, np.array([1e3, 1.0 + 1e-7]), right)
    assert_allclose(squared_distance(one, two), 1e-14, rtol=1e-4)
    rows, columns = np.divmod(np.arange(600), 20)
    assert_allclose(
        low_rank_at(one, rows, columns).reshape(30, 20), left * [1e3, 1.0] @ right.T, atol=1e-10
    )


@pytest.mark.parametrize(("family", "largest_variance"), [("gaussian", 1.0), ("bernoulli", 0.25)])
def test_the_first_step_is_short_enough_for_any_theta(family, largest_variance):
    # Presences are rare: where the start is, their variance is a tenth of the largest.
    rows, columns = np.divmod(np.arange(40), 4)
    cells = Cells(rows, columns, (np.arange(40) % 40 == 0) * 1.0, np.full(40, 3.0))
    federation = Federation(cells, offsets_of([40]), np.ones(1), log_base_measure=np.zeros(1))
    imputer = FederatedMatrixImputer(1, family=family, penalty=0.1, step_size=1.0)
    model = model_of_cells(imputer, federation, (10, 4))
    step = start_run(model).statistics.natural_step
    # Observations are divided by their mean number.
    assert_allclose(1 / step, largest_variance * model.pooled.support.counts.max(), rtol=1e-12)


def test_the_first_step_is_finite_where_a_run_has_diverged():
    rows, columns = np.divmod(np.arange(40), 4)
    cells = Cells(rows, columns, np.zeros(40), np.ones(40))
    federation = Federation(cells, offsets_of([40]), np.ones(1), log_base_measure=np.zeros(1))
    imputer = FederatedMatrixImputer(1, family="poisson", effects="none")
    model = model_of_cells(imputer, federation, (10, 4))
    # All means are 0, for exp underflows; warnings are errors.
    low_rank = LowRank(np.full((10, 1), 10**-0.5), np.array([1e5]), np.full((4, 1), -0.5))
    theta = Theta(no_effects((10, 4)), low_rank)
    assert np.isfinite(start_run(model, theta).statistics.natural_step)


def pooled_everywhere(counts, family, penalty=0.0):
    """What the server knows of a matrix of which every cell was observed, so many times."""
    support = all_cells(counts.shape, counts.ravel())
    none = Margins(*map(np.zeros, counts.shape))
    return Pooled(support, none, family, min(counts.shape), penalty, "none", 0.0)


def at_zero(shape):
    none = np.zeros(np.prod(shape))
    return Iterate(zero_low_rank(shape), none, no_effects(shape), none, None)


@pytest.mark.parametrize("seed", range(10))
def test_a_step_of_the_largest_length_is_not_lost_to_rounding(seed):
    # With one observation in every cell, the loss lies above its tangent by just ‖Θ⁺ - Θ‖² / 2.
    sums = np.random.default_rng(seed).standard_normal(20)
    pooled, origin = pooled_everywhere(np.ones((5, 4)), "gaussian", 0.3), at_zero((5, 4))
    move = proximal_step(pooled, origin, sums, 1.0, 1.0, None)
    assert (move.natural_step, move.halvings) == (1.0, 0)
    move = proximal_step(pooled, origin, sums, 1.0, 2.0**40, None)
    assert (move.natural_step, move.halvings) == (1.0, 40)


@pytest.mark.parametrize("seed", range(10))
def test_rounding_where_the_field_is_0_is_no_step(seed):
    # Without a field and a penalty, Θ⁺ is Θ: its rounding says nothing about the curvature.
    rng, shape = np.random.default_rng(seed), (9, 7)
    left, singular_values, right = np.linalg.svd(rng.standard_normal(shape), full_matrices=False)
    low_rank = LowRank(left[:, :3], 10 * singular_values[:3], right.T[:, :3])
    pooled = pooled_everywhere(np.ones(shape), "gaussian")
    support = pooled.support
    values = low_rank_at(low_rank, support.rows, support.columns)
    origin = Iterate(low_rank, values, at_zero(shape).effects, values, None)
    move = proximal_step(pooled, origin, values, 1.0, 1.0, None)
    assert (move.sq_norm, move.natural_step, move.halvings) == (0.0, 1.0, 0)


def test_the_objective_has_all_its_terms():
    pooled = pooled_everywhere(np.array([[1.0, 2.0], [3.0, 1.0]]), "poisson", 0.5)
    pooled = pooled._replace(effects="both", effects_penalty=0.2)
    effects = Effects(0.1, np.array([1.0, -1.0]), np.array([-2.0, 2.0]))
    low_rank = LowRank(np.eye(2), np.array([3.0, 1.0]), np.eye(2))
    theta = np.log([2.0, 1.0, 4.0, 3.0])
    iterate = Iterate(low_rank, np.array([3.0, 0, 0, 1]), effects, theta, None)
    # N·μ is 2 + 2 + 12 + 3; the nuclear norm is 4, and the effects' squares add up to 10.
    linear = 5 * np.log(2) + 7 * np.log(4) + 2 * np.log(3)
    want = 19 - linear + 0.5 * 4 + 0.5 * 0.2 * 10
    assert_allclose(objective(pooled, iterate, np.array([5.0, 9, 7, 2])), want, rtol=1e-14)


def test_steps_whose_square_underflows_have_no_norm():
    pooled, origin = pooled_everywhere(np.ones((5, 4)), "gaussian"), at_zero((5, 4))
    move = proximal_step(pooled, origin, np.arange(20.0), 1e-200, 1.0, None)
    assert np.isnan(move.sq_norm)


def test_small_changes_of_means_do_not_cancel():
    pooled = pooled_everywhere(np.array([[3.0, 5.0]]), "poisson")
    theta, change = np.array([10.0, 2.0]), np.array([1e-7, -2e-8])
    found = _above_tangent(pooled, theta, change)
    # N e^θ (e^c - 1 - c), of which the next term of the series is a third of c.
    assert_allclose(found, [3.0, 5.0] @ (np.exp(theta) * change**2 / 2), rtol=1e-7)


def test_changes_of_normal_means_far_from_0_do_not_cancel():
    pooled = pooled_everywhere(np.array([[3.0, 5.0]]), "gaussian")
    theta, change = np.array([1e8, -1e8]), np.array([0.5, -0.25])
    found = _above_tangent(pooled, theta, change)
    assert_allclose(found, 0.5 * (3 * 0.25 + 5 * 0.0625), rtol=1e-15)


def test_where_nothing_is_curved_a_step_is_finite():
    pooled = pooled_everywhere(np.ones((2, 2)), "poisson")
    assert 0 < 1 / largest_curvature(pooled, np.full(4, -800.0)) < np.inf
    assert largest_curvature(pooled, np.log([1.0, 2.0, 7.0, 3.0])) == pytest.approx(7.0, rel=1e-15)


def test_weights_of_clients_add_up_to_one_whatever_was_observed_again():
    cell = np.array([[1.0, np.nan], [2.0, 3.0]])
    X = [np.stack([cell] * 3), cell, cell[:, ::-1] * [1, np.nan]]
    data = read_cells(FederatedMatrixImputer(), X, family=FAMILIES["gaussian"])
    for client_weights in ("n_samples", "uniform"):
        federation = cell_federation(data, client_weights)
        assert federation.weights.sum() == pytest.approx(1, abs=1e-15)


@every_family
def test_clients_get_nothing_of_what_others_observed(family):
    tasks = []
    for seed in (0, 1):
        problem, federation = problem_of(observations(family, overlap=True, seed=seed), family)
        tasks.append(problem.task)
    assert digest(tasks[0].for_clients()) == digest(tasks[1].for_clients())
    # A client computes the same from the bytes.
    model, parameters = problem.model, start_run(problem.model).parameters
    received, told = from_bytes(to_bytes((problem.task.for_clients().model, parameters)))
    clients, batches = np.array([1, 3]), np.array([[0, 2], [1, 1]])
    sent = received.all_rows(federation, told, clients)
    assert_same(sent, model.all_rows(federation, parameters, clients))
    means = [
        own.minibatch_mean(theta.natural, own.minibatch(federation, clients, batches))
        for own, theta in ((received, told), (model, parameters))
    ]
    assert_array_equal(*means)


@every_family
def test_a_group_of_clients_alone_sends_what_it_sends_among_all(family):
    problem, federation = problem_of(observations(family, overlap=True), family)
    model, every = problem.model, federation
    theta = start_run(model).parameters

    def message(federation, first=0):
        clients = np.arange(federation.n_clients)
        residuals = model.all_rows(federation, theta, clients).statistics
        layout = model.vectors(federation)._replace(positions=model.positions[first:])
        terms = layout.weighted(federation.weights, clients, residuals)
        return layout.total(clients, [terms], [0])

    def group(first, last):
        rows = every.rows.take(slice(every.offsets[first], every.offsets[last]))
        offsets = every.offsets[first : last + 1] - every.offsets[first]
        return Federation(rows, offsets, every.weights[first:last])

    total = message(group(0, 2)) + message(group(2, every.n_clients), every.offsets[2])
    assert_allclose(total, message(every), rtol=1e-12, atol=1e-14)


# ---- large, mostly observed matrices


def mostly_observed():
    """Cells of 4,000 x 60, most of which are observed, row by row."""
    rng = np.random.default_rng(0)
    return np.nonzero(rng.random((4000, 60)) < 0.8)


@pytest.mark.parametrize("order", ["by row", "shuffled"])
def test_products_of_many_cells_are_those_of_each(order):
    rows, columns = mostly_observed()
    rng = np.random.default_rng(1)
    if order == "shuffled":
        shuffled = rng.permutation(len(rows))
        rows, columns = rows[shuffled], columns[shuffled]
    left, right = rng.normal(size=(4000, 3)), rng.normal(size=(60, 3))
    assert len(rows) > theta._SIZES.long
    found = products(left, right, rows, columns, dense=False)
    # Products of three terms, rounded in one order or another.
    assert_allclose(found, (left[rows] * right[columns]).sum(axis=1), rtol=0, atol=1e-14)


def test_a_matrix_of_many_cells_is_the_sparse_one():
    rows, columns = mostly_observed()
    support, values = support_of(rows, columns, (4000, 60)), np.arange(1.0, 1 + len(rows))
    matrix = support.matrix(values, 0.5)
    assert isinstance(matrix, np.ndarray)
    assert_array_equal(matrix, support._sparse(0.5 * values).toarray())


def test_cells_in_order_are_their_own_support():
    codes, counts = np.array([1, 3, 4, 11]), np.array([1.0, 2.0, 1.0, 5.0])
    support, positions = observed_support(codes, counts, (4, 3))
    shuffled, where = observed_support(codes[::-1], counts[::-1], (4, 3))
    for name in ("rows", "columns", "counts", "row_starts"):
        assert_array_equal(getattr(support, name), getattr(shuffled, name))
    assert_array_equal(positions, where[::-1])


def test_soft_impute_of_a_large_matrix():
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(4000, 2)) @ rng.normal(size=(2, 60)) + rng.normal(size=(4000, 60))
    matrix[rng.random(matrix.shape) > 0.8] = np.nan
    imputer = FederatedMatrixImputer(2, effects="none", penalty=50.0, tol=1e-10, max_iter=1000)
    fitted_matrix = imputer.fit(matrix).fitted_mean()
    filled = np.where(np.isnan(matrix), fitted_matrix, matrix)
    left, values, right = np.linalg.svd(filled, full_matrices=False)
    # At the optimum, soft-impute's next step is none.
    step = left[:, :2] * (values[:2] - 50.0) @ right[:2]
    assert_allclose(step, fitted_matrix, rtol=0, atol=1e-4)
