"""The imputation oracles against classical iterations, scikit-learn, conditions and each other."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from sklearn.linear_model import LogisticRegression, PoissonRegressor

import literal
import literal_imputation as oracle

SHAPE = (30, 20)
PENALTIES = {"gaussian": 3.0, "bernoulli": 1.2, "poisson": 4.0}


def observations(family, n_observations=500, shape=SHAPE, seed=0):
    """Observations of a low-rank θ with main effects, many cells seen twice and many never."""
    generator = np.random.default_rng(seed)
    factors = [generator.standard_normal((size, 2)) for size in shape]
    main = np.add.outer(*(generator.standard_normal(size) / 2 for size in shape))
    theta = main + factors[0] @ factors[1].T / 2
    rows = generator.integers(shape[0], size=n_observations)
    columns = generator.integers(shape[1], size=n_observations)
    means = oracle.mean(theta[rows, columns], family)
    if family == "gaussian":
        values = generator.normal(means)
    elif family == "bernoulli":
        values = generator.random(n_observations) < means
    else:
        values = generator.poisson(means)
    return oracle.Cells(rows, columns, values.astype(float))


def observers(n_observers, family="gaussian", shape=(7, 5), share=0.4, seed=0):
    """For each observer the cells it saw, each once; cells are shared between observers."""
    generator = np.random.default_rng(seed)
    theta = generator.standard_normal((shape[0], 1)) @ generator.standard_normal((1, shape[1]))
    draw = {"gaussian": generator.normal, "poisson": lambda t: generator.poisson(np.exp(t))}
    draw["bernoulli"] = lambda t: generator.random(len(t)) < oracle.mean(t, "bernoulli")
    everyone = []
    for _ in range(n_observers):
        rows, columns = np.nonzero(generator.random(shape) < share)
        values = draw[family](theta[rows, columns]).astype(float)
        everyone.append(oracle.Cells(rows, columns, values))
    return everyone


def pooled(everyone):
    return oracle.Cells(*(np.concatenate(parts) for parts in zip(*everyone, strict=True)))


def exact_rounds(n_rounds, n_clients):
    """Arguments of `algorithm_7` for γ = 1, ω = 0, p = 1 and all observations."""
    return {
        "step_sizes": [1.0] * n_rounds,
        "control_step": 0.5,
        "participation": 1.0,
        "active_sets": [range(n_clients)] * n_rounds,
        "batches": [[None] * n_clients] * n_rounds,
    }


def noisy(k, c, matrix, theta=None):
    """An unbiased operator whose noise depends on the round and the client only."""
    kept = np.random.default_rng([k, c]).random(matrix.shape) < 0.5
    return 2 * kept * matrix


# ---- the families


@pytest.mark.parametrize("family", oracle.FAMILIES)
def test_log_density_is_scipys(family):
    theta = np.array([-1.3, 0.0, 0.4, 2.1])
    distribution = {
        "gaussian": stats.norm(theta).logpdf,
        "bernoulli": stats.bernoulli(oracle.mean(theta, "bernoulli")).logpmf,
        "poisson": stats.poisson(np.exp(theta)).logpmf,
    }[family]
    values = np.array([0.0, 1.0, 1.0, 0.0] if family == "bernoulli" else [0.0, 2.0, 1.0, 7.0])
    assert_allclose(oracle.log_density(values, theta, family), distribution(values), rtol=1e-12)


@pytest.mark.parametrize("family", oracle.FAMILIES)
def test_mean_and_variance_are_the_derivatives_of_the_potential(family):
    theta, h = np.linspace(-3, 3, 7), 1e-5
    slope = (oracle.potential(theta + h, family) - oracle.potential(theta - h, family)) / (2 * h)
    assert_allclose(oracle.mean(theta, family), slope, atol=1e-8)
    slope = (oracle.mean(theta + h, family) - oracle.mean(theta - h, family)) / (2 * h)
    assert_allclose(oracle.variance(theta, family), slope, atol=1e-8)


def test_every_observation_of_a_cell_counts():
    rows, columns, values = np.array([0, 0, 1]), np.array([1, 1, 0]), np.array([3.0, 5.0, 2.0])
    theta = np.array([[0.0, 1.2], [0.7, 0.0]])
    expected = stats.poisson.logpmf([3, 5, 2], np.exp([1.2, 1.2, 0.7])).sum()
    assert_allclose(oracle.log_likelihood(rows, columns, values, theta, "poisson"), expected)


# ---- Algorithm 7


@pytest.mark.parametrize("rank, penalty", [(2, 0.0), (None, 0.4), (2, 0.4)])
def test_one_client_is_classical_hard_and_soft_impute(rank, penalty):
    cells = observers(1)[0]
    filled = np.zeros((7, 5))
    filled[cells.rows, cells.columns] = cells.values
    seen = np.zeros((7, 5), dtype=bool)
    seen[cells.rows, cells.columns] = True

    start = np.array(filled)
    controls = oracle.missing_values_controls([[cells]], "gaussian", rank, penalty, start)
    arguments = exact_rounds(25, 1)
    rounds = oracle.algorithm_7(
        [[cells]], "gaussian", rank, penalty, start, controls, [1.0], **arguments
    )
    for completed in rounds:
        # The textbook: impute the holes with the last fit, then take the thresholded SVD.
        u, s, vt = np.linalg.svd(start, full_matrices=False)
        theta = (u[:, :rank] * np.maximum(s[:rank] - penalty, 0)) @ vt[:rank]
        start = np.where(seen, filled, theta)
        assert_allclose(completed.statistics, start, atol=1e-12)


@pytest.mark.parametrize("family", oracle.FAMILIES)
def test_fixed_point_is_pooled_soft_impute(family):
    """Six observers in three clients; the paper's λ is the pooled one over 6."""
    everyone, penalty = observers(6, family), 1.2
    clients = [everyone[:1], everyone[1:3], everyone[3:]]
    weights = [1 / 6, 2 / 6, 3 / 6]
    fit = oracle.soft_impute(*pooled(everyone), (7, 5), penalty, family, effects="none")

    theta = np.zeros((7, 5))
    start = literal.weighted_sum(
        weights, [oracle.client_statistic(client, theta, family) for client in clients]
    )
    controls = [np.zeros((7, 5))] * 3
    arguments = exact_rounds(250, 3)
    rounds = oracle.algorithm_7(
        clients, family, None, penalty / 6, start, controls, weights, **arguments
    )
    values = []
    for completed in rounds:
        completed_problem = completed.theta, oracle.Effects(0.0, np.zeros(7), np.zeros(5))
        values.append(oracle.objective(*pooled(everyone), *completed_problem, penalty, family))
    assert np.all(np.diff(values) <= 1e-9 * values[0])  # EM never climbs
    assert_allclose(values[-1], fit.objective, rtol=1e-8)
    assert_allclose(completed.theta, fit.low_rank, atol=1e-3)


@pytest.mark.parametrize("family", oracle.FAMILIES)
def test_algorithm_7_is_fedem_with_dense_statistics(family):
    """Partial participation, minibatches and compression, against the oracle of Algorithm 1."""
    # The rank is not limited, so that the iterative M-step does not depend on where it starts. The
    # noise takes Ŝ out of the means that the family has; the penalty has to outweigh that.
    everyone, rank, penalty = observers(5, family), None, 1.0
    clients, weights, n_rounds = [everyone[:2], everyone[2:3], everyone[3:]], [0.4, 0.2, 0.4], 6
    generator = np.random.default_rng(1)
    sizes = [sum(len(cells.values) for cells in client) for client in clients]
    batches = [[generator.integers(m, size=4) for m in sizes] for _ in range(n_rounds)]
    start = 0.5 * np.ones((7, 5))
    shared = {
        "step_sizes": [0.2 / (k + 1) for k in range(n_rounds)],
        "control_step": 0.25,
        "participation": 0.75,
        "active_sets": [[0, 1, 2], [1], [0, 2], [], [0, 1], [2]],
        "batches": batches,
        "quantise": noisy,
    }
    controls = oracle.missing_values_controls(clients, family, rank, penalty, start)

    def m_step(statistics):
        return oracle.missing_values_m_step(statistics, family, rank, penalty, np.zeros((7, 5)))

    def client_statistics(c, theta, batch):
        return oracle.client_statistic(clients[c], theta, family, batch)

    dense = oracle.algorithm_7(clients, family, rank, penalty, start, controls, weights, **shared)
    plain = literal.fedem(client_statistics, m_step, start, controls, weights, **shared)
    for ours, theirs in zip(dense, plain, strict=True):
        for name in theirs._fields:
            assert_allclose(getattr(ours, name), getattr(theirs, name), atol=1e-9)


def test_algorithm_7_keeps_the_control_the_mean_of_the_clients():
    clients = [[cells] for cells in observers(4)]
    arguments = exact_rounds(5, 4) | {"active_sets": [[0], [1, 3], [], [2], [0, 1, 2, 3]]}
    controls = [c * np.ones((7, 5)) for c in range(4)]
    rounds = oracle.algorithm_7(
        clients,
        "gaussian",
        2,
        0.0,
        np.zeros((7, 5)),
        controls,
        [0.25] * 4,
        quantise=noisy,
        **arguments,
    )
    for completed in rounds:
        assert_allclose(completed.control, np.mean(completed.client_controls, axis=0), atol=1e-13)


@pytest.mark.parametrize("family", oracle.FAMILIES)
def test_minibatch_statistic_is_unbiased(family):
    """The mean over all batches of one, and over all pairs, is the statistic of all."""
    client = observers(2, family)
    theta = np.linspace(-1, 1, 35).reshape(7, 5)
    exact = oracle.client_statistic(client, theta, family)
    n = sum(len(cells.values) for cells in client)
    ones = [oracle.client_statistic(client, theta, family, [m]) for m in range(n)]
    assert_allclose(np.mean(ones, axis=0), exact, atol=1e-12)
    twos = [oracle.client_statistic(client, theta, family, [m, (m + 3) % n]) for m in range(n)]
    assert_allclose(np.mean(twos, axis=0), exact, atol=1e-12)


def test_client_statistic_is_zero_beside_the_observed_cells():
    """s̄ - ψ'(θ) lives on the observed cells: what lets only residuals travel."""
    client, theta = observers(3, share=0.1), np.linspace(-1, 1, 35).reshape(7, 5)
    statistic = oracle.client_statistic(client, theta, "gaussian")
    residuals = np.zeros((7, 5))
    for rows, columns, values in client:
        residuals[rows, columns] += (values - theta[rows, columns]) / 3
    assert_allclose(statistic - theta, residuals, atol=1e-14)


def test_selection_as_printed_sends_nothing_from_elsewhere():
    cells = observers(1)[0]
    selection = np.zeros((7, 5), dtype=bool)
    selection[2:4, 1:] = True
    arguments = exact_rounds(1, 1) | {"batches": [[selection]]}
    start, controls = np.ones((7, 5)), [np.zeros((7, 5))]
    (completed,) = oracle.algorithm_7(
        [[cells]], "gaussian", 2, 0.0, start, controls, [1.0], **arguments
    )
    theta = oracle.threshold_singular_values(start, 0.0, 2)
    expected = oracle.client_statistic([cells], theta, "gaussian") - start
    assert_array_equal(completed.field[~selection], 0.0)
    assert_allclose(completed.field[selection], expected[selection])


@pytest.mark.parametrize("family", oracle.FAMILIES)
def test_m_step_minimises_the_surrogate(family):
    generator = np.random.default_rng(3)
    statistics = oracle.mean(generator.standard_normal((6, 4)), family)
    penalty = 0.1
    theta = oracle.missing_values_m_step(statistics, family, None, penalty, np.zeros((6, 4)))

    def surrogate(theta):
        smooth = np.sum(oracle.potential(theta, family) - statistics * theta)
        return smooth + penalty * oracle.nuclear_norm(theta)

    for scale in (1e-3, 1e-1, 1.0):
        for _ in range(20):
            other = theta + scale * generator.standard_normal((6, 4))
            assert surrogate(other) >= surrogate(theta)
    # It is where a proximal gradient step of any length stays.
    step = theta + 0.3 * (statistics - oracle.mean(theta, family))
    assert_allclose(oracle.threshold_singular_values(step, 0.3 * penalty), theta, atol=1e-9)


@pytest.mark.parametrize("family", oracle.FAMILIES)
def test_m_step_of_a_limited_rank_has_that_rank(family):
    statistics = oracle.mean(np.random.default_rng(3).standard_normal((6, 4)), family)
    theta = oracle.missing_values_m_step(statistics, family, 2, 0.0, np.zeros((6, 4)))
    assert np.linalg.matrix_rank(theta, tol=1e-9) == 2


# ---- pooled soft-impute


@pytest.mark.parametrize("effects", oracle.EFFECTS)
@pytest.mark.parametrize("family", oracle.FAMILIES)
def test_soft_impute_is_optimal(family, effects):
    cells, penalty = observations(family), PENALTIES[family]
    fit = oracle.soft_impute(*cells, SHAPE, penalty, family, effects)
    gap = oracle.optimality_gap(*cells, fit.low_rank, fit.effects, penalty, family, effects)
    assert gap == fit.gap
    assert max(gap.effects, gap.support, gap.complement) < 1e-8
    assert abs(gap.objective) < 1e-9 * fit.objective
    rank = np.linalg.matrix_rank(fit.low_rank, tol=1e-6)
    assert 2 <= rank < min(SHAPE)  # the penalty is at work, and not alone

    generator = np.random.default_rng(1)
    for scale in (1e-4, 1e-2, 1.0):
        for direction in (rank_one(generator), generator.standard_normal(SHAPE), fit.low_rank):
            moved = other_effects(generator, fit.effects, scale, effects)
            point = fit.low_rank + scale * direction, moved
            value = oracle.objective(*cells, *point, penalty, family)
            assert value >= fit.objective * (1 - 1e-12)
    for factor in (0.99, 1.01):
        value = oracle.objective(*cells, factor * fit.low_rank, fit.effects, penalty, family)
        assert value > fit.objective


def rank_one(generator):
    return np.outer(*(generator.standard_normal(size) for size in SHAPE))


def other_effects(generator, fitted, scale, effects):
    intercept = scale * generator.standard_normal() * (effects != "none")
    by_row = scale * generator.standard_normal(SHAPE[0]) * (effects in ("both", "rows"))
    by_column = scale * generator.standard_normal(SHAPE[1]) * (effects in ("both", "columns"))
    changes = (intercept, by_row, by_column)
    return oracle.Effects(*(old + new for old, new in zip(fitted, changes, strict=True)))


@pytest.mark.parametrize("family", oracle.FAMILIES)
def test_optimality_gap_sees_each_violation(family):
    cells, penalty = observations(family), PENALTIES[family]
    fit = oracle.soft_impute(*cells, SHAPE, penalty, family)
    by_row = fit.effects.rows + 0.01 * (np.arange(SHAPE[0]) == 3)
    u, s, vt = np.linalg.svd(fit.low_rank)
    without_last = (u[:, : len(s)] * np.where(s > 0.7 * s[1], s, 0)) @ vt
    points = {
        "effects": (fit.low_rank, fit.effects._replace(rows=by_row)),
        "support": (1.01 * fit.low_rank, fit.effects),
        "complement": (without_last, fit.effects),
    }
    for name, (low_rank, effects) in points.items():
        gap = oracle.optimality_gap(*cells, low_rank, effects, penalty, family, "both")
        assert getattr(gap, name) > 1e-4


@pytest.mark.parametrize("family", oracle.FAMILIES)
def test_gap_bounds_the_objective_from_the_minimum(family):
    cells, penalty = observations(family), PENALTIES[family]
    fit = oracle.soft_impute(*cells, SHAPE, penalty, family, "none")
    for low_rank in (1.02 * fit.low_rank, fit.low_rank + 0.01, 0 * fit.low_rank):
        gap = oracle.optimality_gap(*cells, low_rank, fit.effects, penalty, family, "none")
        value = oracle.objective(*cells, low_rank, fit.effects, penalty, family)
        assert value - fit.objective <= gap.objective * (1 + 1e-9)


@pytest.mark.parametrize("family", oracle.FAMILIES)
def test_low_rank_part_adds_up_to_zero_beside_both_effects(family):
    fit = oracle.soft_impute(*observations(family), SHAPE, PENALTIES[family], family)
    for axis in (0, 1):
        assert_allclose(fit.low_rank.sum(axis=axis), 0, atol=1e-7)
    assert_allclose([fit.effects.rows.sum(), fit.effects.columns.sum()], 0, atol=1e-12)


@pytest.mark.parametrize("family", ["gaussian", "poisson"])
def test_no_low_rank_part_exactly_from_the_largest_penalty_on(family):
    """λ_max is the spectral norm of the residuals of the effects alone."""
    cells = observations(family)
    alone = oracle.soft_impute(*cells, SHAPE, 1e6, family)
    assert not alone.low_rank.any()
    residuals = np.zeros(SHAPE)
    means = oracle.mean(alone.theta[cells.rows, cells.columns], family)
    np.add.at(residuals, (cells.rows, cells.columns), cells.values - means)
    largest = np.linalg.norm(residuals, 2)
    point = alone.low_rank, alone.effects
    gap = oracle.optimality_gap(*cells, *point, 0.9 * largest, family, "both")
    assert_allclose([gap.complement, gap.support], [0.1 * largest, 0.0], rtol=1e-6)
    assert not oracle.soft_impute(*cells, SHAPE, 1.001 * largest, family).low_rank.any()
    assert oracle.soft_impute(*cells, SHAPE, 0.99 * largest, family).low_rank.any()


# scikit-learn 1.8 takes C=inf for a penalty=None of the user's, which overrules C.
@pytest.mark.filterwarnings("ignore:Setting penalty=None will ignore the C")
@pytest.mark.parametrize("family", ["bernoulli", "poisson"])
def test_effects_alone_are_sklearns_regression(family):
    shape = (5, 4)
    cells = observations(family, 120, shape, seed=2)
    fit = oracle.soft_impute(*cells, shape, 1e6, family)
    design = np.hstack([np.eye(5)[cells.rows][:, 1:], np.eye(4)[cells.columns][:, 1:]])
    if family == "poisson":
        regression = PoissonRegressor(alpha=0, solver="newton-cholesky", tol=1e-12)
        means = regression.fit(design, cells.values).predict(design)
    else:
        regression = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-12)
        means = regression.fit(design, cells.values).predict_proba(design)[:, 1]
    fitted = oracle.mean(fit.theta[cells.rows, cells.columns], family)
    assert_allclose(fitted, means, rtol=1e-5)


def test_gaussian_effects_alone_are_least_squares():
    cells = observations("gaussian")
    design = np.hstack([np.eye(30)[cells.rows], np.eye(20)[cells.columns]])
    fitted = design @ np.linalg.lstsq(design, cells.values, rcond=None)[0]
    fit = oracle.soft_impute(*cells, SHAPE, 1e6)
    assert_allclose(fit.theta[cells.rows, cells.columns], fitted, atol=1e-9)


@pytest.mark.parametrize("family", oracle.FAMILIES)
def test_a_cell_seen_twice_counts_twice(family):
    """Everything twice, at twice the penalty, is the same problem; once more is another."""
    cells, penalty = observations(family, 300), PENALTIES[family]
    once = oracle.soft_impute(*cells, SHAPE, penalty, family)
    again = (np.concatenate([part, part]) for part in cells)
    twice = oracle.soft_impute(*again, SHAPE, 2 * penalty, family)
    assert_allclose(twice.objective, 2 * once.objective, rtol=1e-9)
    assert_allclose(twice.theta, once.theta, atol=1e-6)

    # One more observation of a cell draws its fit towards it.
    extra = [cells.rows[0]], [cells.columns[0]], [1.0 if family == "bernoulli" else 9.0]
    more = (np.concatenate([part, new]) for part, new in zip(cells, extra, strict=True))
    drawn = oracle.soft_impute(*more, SHAPE, penalty, family)
    cell = cells.rows[0], cells.columns[0]
    assert drawn.theta[cell] > once.theta[cell] + 1e-3


def test_gaussian_without_effects_is_the_textbook_soft_impute():
    cells = pooled(observers(1, shape=SHAPE, share=0.5))
    filled, seen = np.zeros(SHAPE), np.zeros(SHAPE, dtype=bool)
    filled[cells.rows, cells.columns], seen[cells.rows, cells.columns] = cells.values, True
    low_rank = np.zeros(SHAPE)
    for _ in range(1000):
        u, s, vt = np.linalg.svd(np.where(seen, filled, low_rank), full_matrices=False)
        low_rank = (u * np.maximum(s - 3.0, 0)) @ vt
    fit = oracle.soft_impute(*cells, SHAPE, 3.0, effects="none")
    assert_allclose(fit.low_rank, low_rank, atol=1e-7)


def test_soft_impute_refuses_what_has_no_solution():
    cells = observations("gaussian", 40)
    with pytest.raises(ValueError, match="never observed"):
        oracle.soft_impute(*cells, (31, 20), 1.0)
    with pytest.raises(ValueError, match="positive"):
        oracle.soft_impute(*cells, (31, 20), 0.0)
