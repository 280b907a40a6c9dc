"""The low-rank model on the solvers, against soft-impute and the literal Algorithm 7."""

from functools import cache
from itertools import product

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import coo_array, csr_array
from scipy.sparse.linalg import ArpackError, svds
from scipy.stats import ortho_group

import literal_imputation as oracle
from skfedem import FederatedMatrixImputer
from skfedem._federation import Federation, offsets_of
from skfedem._input.cells import check_cells
from skfedem._parallel import Workers
from skfedem.compression import BlockQuantizer, Dithering, Identity, RandK
from skfedem.models import low_rank_theta, main_effects, proximal, thresholding
from skfedem.models.families import FAMILIES
from skfedem.models.low_rank_start import cell_federation, low_rank_model, start_run
from skfedem.models.low_rank_theta import (
    Cells,
    LowRank,
    Theta,
    at,
    low_rank_at,
    squared_distance,
    zero_low_rank,
)
from skfedem.models.main_effects import (
    Effects,
    Margins,
    Pooled,
    Support,
    _column_factor,
    _solve_for_columns,
    fit_effects,
)
from skfedem.models.proximal import (
    Iterate,
    _above_tangent,
    extrapolate,
    largest_curvature,
    objective,
    proximal_step,
)
from skfedem.models.thresholding import orthonormal, threshold_singular_values
from skfedem.solvers import fedem, vr_fedem
from skfedem.solvers._base import Problem
from skfedem.solvers._loop import Options, run
from skfedem.solvers.step_size import automatic_n_inner, automatic_step_size, first_step_size

SHAPE = (14, 9)
PENALTIES = {"gaussian": 1.5, "bernoulli": 0.6, "poisson": 4.0}


def observations(family, overlap, n_clients=5, seed=0):
    """(rows, columns, values, owners); with `overlap`, cells are seen by several, or twice."""
    generator = np.random.default_rng(seed)
    low_rank = generator.standard_normal((SHAPE[0], 2)) @ generator.standard_normal((2, SHAPE[1]))
    theta = 0.5 + 0.6 * generator.standard_normal(SHAPE[0])[:, None] + 0.5 * low_rank
    cells = generator.permutation(SHAPE[0] * SHAPE[1])[:85]
    # Whoever is never seen has no effect in the oracle.
    cells = np.union1d(cells, np.arange(SHAPE[0]) * SHAPE[1] + np.arange(SHAPE[0]) % SHAPE[1])
    if overlap:
        cells = np.concatenate([cells, generator.choice(cells, 60), cells[:4], cells[:4]])
    rows, columns = np.divmod(cells, SHAPE[1])
    mean = oracle.mean(theta, family)[rows, columns]
    if family == "gaussian":
        values = mean + generator.standard_normal(len(cells))
    elif family == "bernoulli":
        values = (generator.random(len(cells)) < mean).astype(float)
        # A row or column with one value only has no best effect.
        first_in_row, first_in_column = (
            np.unique(k, return_index=True)[1] for k in (rows, columns)
        )
        for first, labels in ((first_in_row, rows), (first_in_column, columns)):
            alike = np.array([np.ptp(values[labels == labels[k]]) == 0 for k in first])
            values[first[alike]] = 1 - values[first[alike]]
    else:
        values = generator.poisson(mean).astype(float)
    owners = np.sort(generator.integers(n_clients, size=len(cells)))
    order = generator.permutation(len(cells))
    return rows[order], columns[order], values[order], owners


def federate(rows, columns, values, owners, client_weights="n_samples"):
    """Federation of the observers' cells; what one saw twice is one cell."""
    code = (owners * SHAPE[0] + rows) * SHAPE[1] + columns
    distinct, inverse = np.unique(code, return_inverse=True)
    counts = np.bincount(inverse).astype(float)
    cells = Cells(
        (distinct // SHAPE[1] % SHAPE[0]).astype(np.int32),
        (distinct % SHAPE[1]).astype(np.int32),
        np.bincount(inverse, values) / counts,
        counts,
    )
    lengths = np.bincount(distinct // (SHAPE[0] * SHAPE[1]))
    weights = lengths / lengths.sum()
    if client_weights == "uniform":
        # Of the means over cells, in which a cell seen twice counts twice.
        weights = lengths / np.bincount(distinct // (SHAPE[0] * SHAPE[1]), counts)
        weights /= weights.sum()
    return Federation(cells, offsets_of(lengths), weights)


def problem_of(
    data, family, *, penalty=None, rank=None, effects="both", adaptive=True, compressor=None,
    participation=1.0, batch_size=None, n_inner=None, seed=0, client_weights="n_samples",
):  # fmt: skip
    federation = federate(*data, client_weights)
    lengths = np.bincount(data[3])
    base = np.bincount(data[3], FAMILIES[family].log_base_measure(data[2]))[lengths > 0]
    imputer = FederatedMatrixImputer(
        rank,
        family=family,
        penalty=PENALTIES[family] if penalty is None else penalty,
        effects=effects,
        effects_penalty=0.0,
        step_size="auto" if adaptive else 1.0,
    )
    model = low_rank_model(imputer, federation, SHAPE, base)
    compressor = Identity() if compressor is None else compressor
    lengths = model.vectors(federation).distinct_lengths
    omega = float(np.max(compressor.omega_for(lengths)))
    if n_inner is None:
        n_inner = automatic_n_inner(
            federation.n_clients, federation.n_samples, omega, participation
        )
    return Problem(
        model, federation, compressor, omega, participation, 1 / (1 + omega), batch_size,
        True, n_inner, seed,
    )  # fmt: skip


def pooled_of(support, margins, family, effects="both", effects_penalty=0.0):
    """What effects beside a given low-rank part are fitted to."""
    return Pooled(support, margins, FAMILIES[family], 0, 0.0, effects, effects_penalty)


def support_of(rows, columns, shape, counts=None):
    """Cells in the order of their rows, of a matrix whose every row and column was observed."""
    counts = np.ones(len(rows)) if counts is None else counts
    everywhere = Margins(np.ones(shape[0], bool), np.ones(shape[1], bool))
    row_starts = np.searchsorted(rows, np.arange(shape[0] + 1))
    return Support(rows, columns, counts, row_starts, everywhere, shape)


def all_cells(shape, counts=None):
    """Support of a matrix whose every cell was observed."""
    return support_of(*np.divmod(np.arange(np.prod(shape)), shape[1]), shape, counts)


def no_effects(shape, intercept=0.0):
    return Effects(intercept, np.zeros(shape[0]), np.zeros(shape[1]))


def dense(low_rank):
    return low_rank.left * low_rank.singular_values @ low_rank.right.T


def fitted(problem, *, solver=fedem, step_size=None, max_iter=3000, tol=0.0):
    lasting_noise = problem.batch_size is not None and not solver.VARIANCE_REDUCED
    problem = problem._replace(lasting_noise=lasting_noise)
    if step_size is None:
        schedule = automatic_step_size(problem)
    else:
        schedule = lambda k: step_size  # noqa: E731
    options = Options(schedule, step_size is None, "field", max_iter, None, tol, "auto")
    with Workers() as workers:
        start = start_run(problem.model, problem.federation)
        return run(solver, problem, start, options, workers, lambda row: None)


@cache
def pooled_optimum(family, overlap, effects="both"):
    """Objective of soft-impute to the observations of everybody, by the oracle, which is slow."""
    return soft_impute(observations(family, overlap), family, effects).objective


def soft_impute(data, family, effects="both", penalty=None):
    penalty = PENALTIES[family] if penalty is None else penalty
    return oracle.soft_impute(*data[:3], SHAPE, penalty, family, effects, 1e-7)


every_family = pytest.mark.parametrize("family", ["gaussian", "bernoulli", "poisson"])
every_split = pytest.mark.parametrize("overlap", [False, True], ids=["disjoint", "overlapping"])


# ---- the pooled optimum, whatever the split


@every_family
@every_split
@pytest.mark.parametrize("effects", ["both", "rows", "columns", "none"])
def test_exact_rounds_reach_the_pooled_optimum(family, overlap, effects):
    data = observations(family, overlap)
    want = pooled_optimum(family, overlap, effects)
    result = fitted(problem_of(data, family, effects=effects), max_iter=300, tol=1e-11)
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
    result = fitted(problem_of(data, family, effects="none"), max_iter=400)
    # An objective has half the digits of θ. The oracle's tol of 1e-11 is of a gradient, of which
    # curvatures of a few hundredths make some 1e-10; after 250 rounds, 2e-8 were left.
    got = dense(result.server.parameters.natural.low_rank)
    assert_allclose(got, want.low_rank, rtol=0, atol=1e-8)


@every_family
@every_split
@pytest.mark.parametrize("compressor", [Dithering(omega=1.0), BlockQuantizer(omega=1.0)])
def test_compressed_and_partial_rounds_reach_the_pooled_optimum(family, overlap, compressor):
    data = observations(family, overlap)
    want = pooled_optimum(family, overlap)
    problem = problem_of(data, family, compressor=compressor, participation=0.75)
    result = fitted(problem, max_iter=150)
    # 1e-7 at most; minibatches leave 1e-2.
    assert abs(result.criteria[-1] - want) < 1e-6 * want
    assert not result.history["safeguarded"].any()


@every_family
def test_variance_reduction_reaches_the_pooled_optimum_with_minibatches(family):
    data = observations(family, overlap=True)
    want = pooled_optimum(family, overlap=True)
    problem = problem_of(
        data, family, compressor=Dithering(omega=1.0), participation=0.75, batch_size=4
    )
    result = fitted(problem, solver=vr_fedem, max_iter=400)
    # 3e-8 at most; FedEM's minibatches leave 1e-2.
    assert abs(result.criteria[-1] - want) < 1e-6 * want


def test_minibatches_step_as_the_documented_rule_has_it():
    problem = problem_of(
        observations("poisson", True), "poisson", compressor=RandK(omega=1.0), participation=0.5,
        batch_size=1, n_inner=40,
    )  # fmt: skip
    omega_p = problem.omega + 0.5 * (1 + problem.omega) / 0.5
    share = 1 / problem.federation.lengths.max()
    noisy = problem._replace(lasting_noise=True)
    assert_allclose(first_step_size(noisy), share / (1 + 5 * omega_p), rtol=1e-12)
    spider = 1.4 * np.sqrt(share * 0.5 / (40 * (1 + omega_p)))
    assert_allclose(first_step_size(problem), spider, rtol=1e-12)


def test_clients_who_count_alike_step_by_their_mean_length():
    # The cells of those with many weigh less, so that theirs are not the noisiest.
    problem = problem_of(
        observations("poisson", False), "poisson", batch_size=1, client_weights="uniform"
    )
    lengths = problem.federation.lengths
    assert lengths.max() > lengths.mean()
    step_size = first_step_size(problem._replace(lasting_noise=True))
    assert_allclose(step_size, 1 / lengths.mean(), rtol=1e-12)


@every_family
def test_any_split_of_the_observations_gives_the_same_fit(family):
    data = observations(family, overlap=True)
    one = fitted(problem_of((*data[:3], np.zeros_like(data[3])), family), max_iter=20)
    for owners in (data[3], np.arange(len(data[3])), data[3][::-1]):
        order = np.argsort(owners, kind="stable")
        other = tuple(column[order] for column in (*data[:3], owners))
        many = fitted(problem_of(other, family), max_iter=20)
        # The same sums in another order, and 20 rounds that pass rounding on.
        assert_allclose(
            many.history["objective"], one.history["objective"], rtol=1e-9, err_msg=family
        )


@pytest.mark.parametrize(("solver", "share_left"), [(fedem, 0.5), (vr_fedem, 1e-6)])
@pytest.mark.parametrize("family", ["gaussian", "poisson"])
def test_minibatches_of_clients_of_very_unlike_effort_do_not_diverge(family, solver, share_left):
    rows, columns, values, _ = observations(family, overlap=True)
    # One client has four fifths of the observations, the others a few each.
    owners = np.maximum(np.arange(len(rows)) - len(rows) * 4 // 5, 0) // 5
    problem = problem_of((rows, columns, values, owners), family, batch_size=3)
    result = fitted(problem, solver=solver, max_iter=300)
    start, end = result.history["objective"][0], result.criteria[-1]
    best = soft_impute((rows, columns, values), family).objective
    assert end - best < share_left * (start - best)


@pytest.mark.parametrize("adaptive", [True, False])
def test_the_norm_of_a_field_does_not_depend_on_the_step_along_it(adaptive):
    # From nothing, of full rank and without a penalty, a step is γ η W.
    problem = problem_of(
        observations("gaussian", overlap=True), "gaussian", penalty=0.0, effects="none",
        adaptive=adaptive,
    )  # fmt: skip
    model = problem.model
    start = start_run(model, problem.federation).statistics
    field = np.random.default_rng(0).standard_normal(len(start.sums))
    expected = np.square(model.scale * field).sum()
    assert_allclose(model.field_sq_norm(start, field), expected, rtol=1e-10)
    for step_size in (1.0, 0.5, 1e-3):
        step = model.server_step(start, field, step_size, exact=False)
        assert_allclose(step.field_sq_norm, expected, rtol=1e-10)


def test_a_penalty_that_leaves_nothing_is_no_trouble_however_long_the_run():
    data = observations("gaussian", overlap=False)
    problem = problem_of(data, "gaussian", penalty=1e3, participation=0.5)
    result = fitted(problem, max_iter=1500)
    assert result.server.parameters.natural.low_rank.singular_values.size == 0
    assert np.isfinite(result.history["field_sq_norm"][1:]).all()
    # Where nothing moves, nothing is learnt of how long a step may be.
    short = fitted(problem, max_iter=5)
    assert result.server.statistics.natural_step == short.server.statistics.natural_step


def test_a_large_ridge_leaves_the_intercept_free():
    support = all_cells((5, 4))
    values = 1000 + np.random.default_rng(0).standard_normal(20)
    for ridge in (0.0, 1.0, 1e6):
        pooled = pooled_of(support, support.margins(values), "gaussian", effects_penalty=ridge)
        effects, _, _ = fit_effects(pooled, np.zeros(20), no_effects(support.shape))
        # Balanced: the mean, to the last decrease of 1e-5 nats that 20 observations notice.
        assert_allclose(effects.intercept, values.mean(), atol=1e-3)


# ---- the literal algorithm


@pytest.mark.parametrize("penalty", [0.0, 0.7])
def test_it_is_algorithm_7_of_one_observer_step_by_step(penalty):
    data = observations("gaussian", overlap=False)
    observer = oracle.Cells(*data[:3])
    literal = oracle.algorithm_7([[observer]], 2, penalty, np.zeros(SHAPE), [1.0], [1.0] * 12)
    problem = problem_of(
        (*data[:3], np.zeros_like(data[3])), "gaussian", penalty=penalty, rank=2, effects="none",
        adaptive=False,
    )  # fmt: skip
    for k, (_, want) in enumerate(literal):
        result = fitted(problem, step_size=1.0, max_iter=k + 1)
        assert_allclose(dense(result.server.parameters.natural.low_rank), want, atol=1e-8)


@every_family
@pytest.mark.parametrize("adaptive", [True, False])
def test_noisy_steps_are_those_of_the_theory(family, adaptive):
    # Θ⁺ = SVT(Θ + γ η W), by γ η λ, with dense matrices. Directions for any rank are all there are.
    problem = problem_of(observations(family, overlap=True), family, adaptive=adaptive)
    model, generator = problem.model, np.random.default_rng(0)
    pooled, support = model.pooled, model.pooled.support
    point = start_run(model, problem.federation).statistics
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
    problem = problem_of(observations("poisson", overlap=True), "poisson")
    support = problem.model.pooled.support
    some, more = (
        fitted(problem, max_iter=n_rounds).server.statistics.iterate for n_rounds in (2, 4)
    )
    found = extrapolate(more, some, 0.5)
    values = low_rank_at(found.low_rank, support.rows, support.columns)
    assert_allclose(found.low_rank_values, values, atol=1e-12)
    assert_allclose(found.theta, values + found.effects.at(support.rows, support.columns))
    assert_allclose(found.theta, more.theta + 0.5 * (more.theta - some.theta))


@pytest.mark.parametrize("exact", [True, False])
def test_a_round_without_a_step_short_enough_starts_from_the_curvature(monkeypatch, exact):
    problem = problem_of(observations("poisson", overlap=True), "poisson")
    model, point = problem.model, fitted(problem, max_iter=3).server.statistics
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
    problem = problem_of(
        (rows, columns, values, owners), "gaussian", penalty=penalty, rank=2, effects="none",
        adaptive=False,
    )  # fmt: skip
    # Our step of 1 is the longest that stands for any number of observers.
    step_size = n_sightings / n_observers
    for k, (_, want) in enumerate(literal):
        result = fitted(problem, step_size=step_size, max_iter=k + 1)
        assert_allclose(dense(result.server.parameters.natural.low_rank), want, atol=1e-8)


# ---- invariants


def test_weights_of_clients_weigh_their_observations():
    data = observations("poisson", overlap=True)
    problem = problem_of(data, "poisson", client_weights="uniform")
    federation = problem.federation
    # Every client's observations weigh N / (n m_i) each, and some cells have several.
    n_observations = np.bincount(data[3])
    assert (n_observations > federation.lengths).any()
    weights = n_observations.sum() / federation.n_clients / n_observations
    counts = federation.rows.counts * np.repeat(weights, federation.lengths)
    total = np.zeros(SHAPE)
    np.add.at(total, (federation.rows.rows, federation.rows.columns), counts)
    support = problem.model.pooled.support
    assert_allclose(support.counts, total[support.rows, support.columns])
    result = fitted(problem, max_iter=200, tol=1e-12)
    theta = result.server.parameters.natural
    values = at(theta, federation.rows.rows, federation.rows.columns)
    # At the optimum the weighted residuals of each row add up to 0, but for the ridge. The
    # objective, 277, does not tell steps of √(277 eps) apart, a few of which are left; counts and
    # means are up to 80. Clients that count by their observations would leave 0.9.
    residual = counts * (federation.rows.values - np.exp(values))
    by_row = np.bincount(federation.rows.rows, residual)
    assert_allclose(by_row, 1e-7 * theta.effects.rows, atol=1e-4)


# ---- pieces


def test_effects_solve_their_likelihood_equations():
    data = observations("poisson", overlap=True)
    model = problem_of(data, "poisson").model
    support, margins = model.pooled.support, model.pooled.margins
    low_rank = 0.3 * np.random.default_rng(0).standard_normal(len(support.counts))
    effects, theta, _ = fit_effects(model.pooled, low_rank, no_effects(SHAPE))
    expected = support.margins(support.counts * np.exp(theta))
    assert_allclose(expected.rows + 1e-7 * effects.rows, margins.rows, rtol=1e-4)
    # From means that are far too small Newton's first step would be (y - μ) / μ, beyond all floats.
    for intercept in (-12.0, -800.0):  # of the latter there is no curvature either
        found = fit_effects(model.pooled, low_rank, no_effects(SHAPE, intercept))
        assert_allclose(found[1], theta, atol=1e-4)
    assert_allclose(expected.columns + 1e-7 * effects.columns, margins.columns, rtol=1e-4)
    assert abs(effects.rows.mean()) + abs(effects.columns.mean()) < 1e-12


def test_an_exact_round_solves_for_the_effects_once(monkeypatch):
    rng = np.random.default_rng(0)
    table = rng.poisson(np.exp(rng.normal(size=(40, 1)) + rng.normal(size=(40, 20)))).astype(float)
    n_calls = 0

    def counted(*args):
        nonlocal n_calls
        n_calls += 1
        return fit_effects(*args)

    monkeypatch.setattr(proximal, "fit_effects", counted)
    imputer = FederatedMatrixImputer(5, family="poisson", penalty=3.0, tol=1e-8, random_state=0)
    imputer.fit([np.where(rng.random(table.shape) < 0.7, table, np.nan)])
    # Once more at the start, and where a step with momentum would have led uphill.
    assert imputer.n_iter_ > 20
    assert n_calls <= 1 + 1.2 * imputer.n_iter_


@pytest.mark.parametrize("seed", range(6))
def test_effects_of_rare_presences_solve_their_likelihood_equations(seed):
    rng, family = np.random.default_rng(seed), FAMILIES["bernoulli"]
    rows, columns = np.nonzero(rng.random((20, 6)) < 0.3)
    presences, low_rank = np.zeros(len(rows)), 6.0 * rng.normal(size=len(rows))
    presences[rng.integers(len(rows), size=3)] = 1.0
    is_observed = Margins(
        np.bincount(rows, minlength=20) > 0, np.bincount(columns, minlength=6) > 0
    )
    support = support_of(rows, columns, (20, 6))._replace(is_observed=is_observed)
    margins = support.margins(presences)
    pooled = pooled_of(support, margins, "bernoulli", effects_penalty=1e-4)
    effects, theta, _ = fit_effects(pooled, low_rank, no_effects((20, 6), -4.0))
    expected = support.margins(family.mean(theta))
    assert_allclose(expected.rows + 1e-4 * effects.rows, margins.rows, atol=3e-3)
    assert_allclose(expected.columns + 1e-4 * effects.columns, margins.columns, atol=3e-3)


@pytest.mark.parametrize("scale", [1e4, 1e8, 1e11])
def test_effects_of_huge_counts_have_their_totals_without_a_penalty(scale):
    family, support = FAMILIES["poisson"], all_cells((8, 6))
    for seed in range(40):
        rng = np.random.default_rng(seed)
        counts = rng.poisson(scale * np.exp(0.3 * rng.normal(size=(8, 1))), (8, 6)).ravel()
        start = no_effects(support.shape, np.log(counts.mean()))
        margins = support.margins(counts)
        _, theta, _ = fit_effects(pooled_of(support, margins, "poisson"), np.zeros(48), start)
        # Newton's method ends at 1e-12 of the objective, and the root of that is the totals'.
        for got, want in zip(support.margins(family.mean(theta)), margins, strict=True):
            assert_allclose(got, want, rtol=3e-6)


def test_effects_that_are_held_back_one_by_one_still_lead_down():
    # From means that are far too small, Newton's step of the intercept goes up by 1e8 and those of
    # most other effects down by 5e5 each. Held back, up is 18 and down is 13 + 13.
    counts = np.full((10, 10), 100.0)
    counts[0] += 5
    counts[:, 0] += 5
    support = all_cells(counts.shape)
    pooled = pooled_of(support, support.margins(counts.ravel()), "poisson")
    _, theta, _ = fit_effects(pooled, np.zeros(100), no_effects(counts.shape, -14.0))
    expected = support.margins(np.exp(theta))
    assert_allclose(expected.rows, counts.sum(axis=1), rtol=1e-6)
    assert_allclose(expected.columns, counts.sum(axis=0), rtol=1e-6)


@pytest.mark.parametrize(
    ("family", "cells", "counts", "means", "start"),
    [
        # Each shortened to a share of its own, rows lose what columns gain, but for 3e-6 nats.
        (
            "bernoulli",
            [(0, 0), (0, 1), (1, 0), (1, 1)],
            [1.0, 1.0, 1e4, 1e4],
            [0.0, 0.0, 0.0199, 0.0202],
            Effects(-25.0, np.zeros(2), np.zeros(2)),
        ),
        # Likewise, all of them together lead up; and 30 halvings of whole steps are too few.
        (
            "poisson",
            [(0, 0), (1, 1), (1, 2)],
            [1e4, 2.0, 1.0],
            [3000.0, 3300.0, 3000.0],
            Effects(-14.0, np.array([4.0, -4.0]), np.array([0.0, 1.0, -1.0])),
        ),
    ],
)
def test_effects_that_compensate_each_other_still_lead_down(family, cells, counts, means, start):
    rows, columns = np.transpose(cells)
    counts, means, shape = np.array(counts), np.array(means), (len(start.rows), len(start.columns))
    support = support_of(rows, columns, shape, counts)
    pooled = pooled_of(support, support.margins(counts * means), family)
    _, theta, _ = fit_effects(pooled, np.zeros(len(rows)), start)
    assert_allclose(FAMILIES[family].mean(theta), means, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("seed", [3, 6, 9])
def test_effects_of_huge_counts_are_as_exact_as_those_of_small_ones(seed):
    # Without the observations' constants, which leave some 600 nats, the objective is -1e14.
    rng = np.random.default_rng(seed)
    counts = rng.poisson(1e10 * np.exp(2 * rng.normal(size=(8, 1))), (8, 6)).astype(float)
    support = all_cells(counts.shape)
    start = no_effects(counts.shape, float(np.log(counts.mean())))
    pooled = pooled_of(support, support.margins(counts.ravel()), "poisson", effects="rows")
    effects, _, _ = fit_effects(pooled, np.zeros(48), start)
    # Means of rows are their best means.
    excess = np.exp(effects.intercept + effects.rows) / counts.mean(axis=1) - 1
    assert 6 * counts.mean(axis=1) @ (excess - np.log1p(excess)) < 0.01


def test_effects_of_huge_counts_are_solved_beyond_the_rounding_of_the_objective():
    # The objective is -6e8 nats, in whose rounding 1e-7 nats are lost, but not slopes of 0.04.
    rng, support = np.random.default_rng(0), all_cells((8, 6))
    means = 1e6 * np.exp(rng.normal(size=(8, 1)) + rng.normal(size=6))
    margins = support.margins(rng.poisson(means).astype(float).ravel())
    pooled = pooled_of(support, margins, "poisson", effects_penalty=10.0)
    none = np.zeros(means.size)
    effects, _, _ = fit_effects(pooled, none, no_effects((8, 6), np.log(1e6)))
    for shift in (1e-8, 3e-8, 1e-7):  # as a small step of the low-rank part would leave them
        near = effects._replace(rows=effects.rows + shift * np.linspace(-1, 1, 8))
        found, theta, _ = fit_effects(pooled, none, near)
        assert_allclose(theta, found.at(support.rows, support.columns), rtol=1e-15)
        expected = support.margins(np.exp(theta))
        assert_allclose(margins.rows - expected.rows, 10 * found.rows, atol=1e-6)
        assert_allclose(margins.columns - expected.columns, 10 * found.columns, atol=1e-6)


@pytest.mark.parametrize("matrix", [np.array([[4e12]]), csr_array([[4e12]])])
def test_where_rounding_spoils_the_normal_equations_curvatures_alone_speed_them_up(matrix):
    # One row and one column: whatever one gains the other loses, and the least ridge, 1e-7, is
    # rounded away.
    curvature = np.array([4e12]) + 1e-7
    assert _column_factor(matrix, curvature, curvature) is None


@pytest.mark.parametrize(("most_entries", "gathered"), [(0, 0), (0, 10), (0, 2**17), (2**20, 0)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_entries_of_a_product_are_the_same_however_many_are_gathered_at_once(
    monkeypatch, most_entries, gathered, order
):
    rng = np.random.default_rng(0)
    left, right = (rng.normal(size=(n, 3)).copy(order) for n in SHAPE)
    rows, columns = (rng.integers(n, size=50).astype(np.int32) for n in SHAPE)
    monkeypatch.setattr(low_rank_theta, "_MOST_ENTRIES", most_entries)
    monkeypatch.setattr(low_rank_theta, "_GATHERED", gathered)
    found = low_rank_theta.products(left, right, rows, columns)
    assert_allclose(found, (left @ right.T)[rows, columns], rtol=0, atol=1e-14)


def test_without_a_factor_conjugate_gradients_solve_the_same_equations(monkeypatch):
    weights = np.random.default_rng(0).uniform(0.5, 2, size=(6, 4))
    by_row, by_column = 0.3 + weights.sum(axis=1), 0.3 + weights.sum(axis=0)
    equations = weights, weights.T, by_row, by_column, np.arange(4.0), None
    direct, _ = _solve_for_columns(*equations)
    schur = np.diag(by_column) - weights.T @ (weights / by_row[:, None])
    assert_allclose(schur @ direct, np.arange(4.0), rtol=0, atol=1e-13)
    monkeypatch.setattr(main_effects, "_column_factor", lambda *_: None)
    # They end at a relative residual of 1e-6.
    assert_allclose(_solve_for_columns(*equations)[0], direct, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_small_matrices_take_the_steps_of_large_ones(monkeypatch, family):
    data = observations(family, overlap=True)
    small = fitted(problem_of(data, family), max_iter=20).server.statistics.iterate
    monkeypatch.setattr(main_effects, "_MOST_ENTRIES", 0)
    large = fitted(problem_of(data, family), max_iter=20).server.statistics.iterate
    # Conjugate gradients leave 1e-6 of a direction, of which the next step leaves the square.
    assert_allclose(small.theta, large.theta, rtol=0, atol=1e-8)


def test_effects_of_rows_without_a_bird_stay_finite():
    support = all_cells((3, 4))
    values = np.where(support.rows == 1, 0.0, 5.0)
    pooled = pooled_of(support, support.margins(values), "poisson")
    effects, theta, _ = fit_effects(pooled, np.zeros(12), no_effects((3, 4)))
    assert np.isfinite(theta).all()
    assert effects.rows[1] < -5
    assert_allclose(np.exp(theta[support.rows != 1]), 5.0, rtol=1e-3)


def test_margins_are_the_same_to_the_bit_however_many_cells_there_are(monkeypatch):
    support = problem_of(observations("gaussian", overlap=False), "gaussian").model.pooled.support
    values = np.random.default_rng(0).standard_normal(len(support.counts))
    few = support.margins(values)
    monkeypatch.setattr(main_effects, "_FEW_CELLS", 0)
    for sums, want in zip(few, support.margins(values), strict=True):
        assert_array_equal(sums, want)


def test_thresholding_is_that_of_the_dense_matrix():
    generator = np.random.default_rng(0)
    data = observations("gaussian", overlap=False)
    support = problem_of(data, "gaussian").model.pooled.support
    values = generator.standard_normal(len(support.counts))
    low_rank = LowRank(
        generator.standard_normal((SHAPE[0], 3)), np.array([2.0, 1.0, -0.5]),
        generator.standard_normal((SHAPE[1], 3)),
    )  # fmt: skip
    array = support.matrix(values)
    assert_array_equal(array[support.rows, support.columns], values)
    whole = dense(low_rank) + array
    for rank, matrix in product((2, min(SHAPE)), (array, csr_array(array))):
        found, block = threshold_singular_values(low_rank, matrix, 1.0, rank)
        again, _ = threshold_singular_values(low_rank, matrix, 1.0, rank, block)
        assert_allclose(again.singular_values, found.singular_values, rtol=1e-12)
        want = oracle.threshold_singular_values(whole, 1.0, rank)
        assert_allclose(dense(found), want, atol=1e-10)


@pytest.mark.parametrize("n_above, n_followed", [(2, 32), (26, 32), (60, 75), (90, 100)])
def test_a_large_rank_is_followed_with_room_for_a_quarter_more_than_is_kept(n_above, n_followed):
    matrix = np.pad(np.diag(np.where(np.arange(100) < n_above, 2.0, 0.5)), ((0, 20), (0, 0)))
    none = zero_low_rank(matrix.shape)
    _, block = threshold_singular_values(none, matrix, 1.0, 100)
    assert block.shape == (100, min(n_followed + 5, 100))
    # Once they are found, one pass is exact.
    found, _ = threshold_singular_values(none, matrix, 1.0, 100, block)
    assert_allclose(found.singular_values, np.ones(n_above), rtol=1e-12)
    # Less room than is needed grows, and rounds that follow find all.
    block = thresholding.block_to_find(none, 100)
    assert block.shape == (0, 37) and thresholding.block_to_find(none, 20).shape == (0, 25)
    for _ in range(10):
        found, block = threshold_singular_values(none, matrix, 1.0, 100, block)
    assert_allclose(found.singular_values, np.ones(n_above), rtol=1e-9)


def test_while_all_directions_are_kept_there_is_room_for_a_twentieth_more():
    none, matrix = zero_low_rank((120, 100)), np.eye(120, 100)
    block = thresholding.block_to_find(none, 100)
    for n_kept, n_followed in ((37, 38), (43, 45), (50, 52), (57, 59)):
        found, block = threshold_singular_values(none, matrix, 0.5, 100, block)
        assert len(found.singular_values) == n_kept and block.shape[1] == n_followed + 5


def test_without_a_bound_directions_near_the_threshold_are_found_in_few_rounds():
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(800, 10)) @ rng.normal(size=(10, 200)) + rng.normal(size=(800, 200))
    matrix[rng.random(matrix.shape) < 0.7] = np.nan
    imputer = FederatedMatrixImputer(None, penalty=18.0, tol=1e-9, random_state=0).fit([matrix])
    assert 40 < len(imputer.singular_values_) < 50
    objective = imputer.history_["objective"]
    # 26 rounds; 52 with room for a twentieth more in all of them.
    assert np.argmax(objective <= (1 + 1e-7) * imputer.objective_) < 40


def test_without_a_bound_a_fit_does_not_stop_before_the_first_factors_are_found():
    # Of noise, many singular values are just below the largest one.
    rng = np.random.default_rng(0)
    at = rng.choice(800 * 800, 20_000, replace=False)
    matrix = coo_array((rng.normal(size=20_000), np.divmod(at, 800)), shape=(800, 800)).tocsr()
    largest = svds(matrix, 1, v0=np.ones(800), return_singular_vectors=False)[0]
    search = {"penalty": 0.99 * largest, "effects": "none", "tol": 1e-10, "random_state": 0}
    found = FederatedMatrixImputer(None, **search).fit([matrix])
    bounded = FederatedMatrixImputer(30, **search).fit([matrix])
    assert len(found.singular_values_) == len(bounded.singular_values_) > 0
    # Both stop where rounds change a share of 1e-10.
    assert_allclose(found.objective_, bounded.objective_, rtol=1e-9)


@pytest.mark.parametrize("penalty, n_factors", [(30.0, 8), (4.0, 44)])
def test_without_a_bound_the_optimum_is_that_of_whole_decompositions(penalty, n_factors):
    rng = np.random.default_rng(0)
    matrix = 2 * rng.normal(size=(90, 8)) @ rng.normal(size=(8, 70)) + rng.normal(size=(90, 70))
    matrix[rng.random(matrix.shape) < 0.3] = np.nan
    search = {"penalty": penalty, "tol": 1e-13, "max_iter": 5000, "random_state": 0}
    found = FederatedMatrixImputer(None, **search).fit([matrix])
    # A number as step has decompositions that are iterated to convergence, and no momentum.
    whole = FederatedMatrixImputer(None, step_size=1.0, **search).fit([matrix])
    assert len(found.singular_values_) == len(whole.singular_values_) == n_factors
    assert_allclose(found.objective_, whole.objective_, rtol=1e-10)


def test_a_singular_value_at_the_threshold_is_left_out():
    none = zero_low_rank((3, 3))
    found, _ = threshold_singular_values(none, csr_array(np.diag([4.0, 2, 1])), 2.0, 3, np.eye(3))
    assert_array_equal(found.singular_values, [2.0])
    # Nor does rounding make a factor of it.
    below = 2.0 - 1e-15
    found, _ = threshold_singular_values(none, csr_array(np.diag([4.0, 2, 1])), below, 3, np.eye(3))
    assert_allclose(found.singular_values, [2.0])


@pytest.mark.parametrize("block", [None, np.eye(4, 2)])
def test_zeros_have_no_directions_to_go_on_from(block):
    found, after = threshold_singular_values(
        zero_low_rank((5, 4)), csr_array((5, 4), dtype=float), 0.0, 1, block
    )
    assert not len(found.singular_values)
    assert after is block


def test_singular_values_are_found_where_arpack_gives_up(monkeypatch):
    # Which matrices it gives up on differs between versions of SciPy.
    def gives_up(*args, **options):
        raise ArpackError(-9999)

    monkeypatch.setattr(thresholding, "dominant_eigenvectors", gives_up)
    rows, columns = np.arange(20), 7 * np.arange(20) % 20
    matrix = csr_array((0.9 ** np.arange(20), (rows, columns)), shape=(30, 20))
    found, _ = threshold_singular_values(zero_low_rank((30, 20)), matrix, 0.1, 2)
    assert_allclose(found.singular_values, [0.9, 0.8], rtol=1e-6)


@pytest.mark.parametrize("block", [None, np.eye(12, 6)], ids=["begun", "given"])
def test_power_iteration_finds_what_has_become_dominant_elsewhere(block):
    # Cells that share neither rows nor columns, so that without the stirring no direction would
    # ever enter. The least of twelve, beyond the rank and all spare columns, becomes the largest.
    none, sizes = zero_low_rank((12, 12)), np.arange(12.0, 0, -1)
    found, block = threshold_singular_values(none, csr_array(np.diag(sizes)), 0.5, 1, block)
    assert_allclose(found.singular_values, [11.5], rtol=1e-12)
    for _ in range(20):
        found, block = threshold_singular_values(
            none, csr_array(np.diag(sizes[::-1])), 0.5, 1, block
        )
    assert_allclose(found.singular_values, [11.5], rtol=1e-12)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_norms_of_fields_with_given_steps_are_those_of_whole_decompositions():
    # Whose vectors of the last step are not those of the step that the field asks for.
    rng = np.random.default_rng(0)
    signal = 3 * np.outer(rng.normal(size=60), rng.normal(size=40))
    clients = [
        np.where(rng.random((60, 40)) < 0.3, signal + rng.normal(size=(60, 40)), np.nan)
        for _ in range(4)
    ]
    noisy = {"omega": 1.0, "step_size": 0.5, "max_iter": 3, "tol": 0, "random_state": 0}
    imputer = FederatedMatrixImputer(2, penalty=3.0, effects="none", **noisy).fit(clients)
    theta = imputer.fitted_mean()
    counts = np.sum(~np.isnan(clients), axis=0)
    residuals = np.nansum(clients, axis=0) - counts * theta
    step = 1 / counts.max()
    left, values, right = np.linalg.svd(theta + step * residuals, full_matrices=False)
    values = np.maximum(values - step * 3.0, 0)[:2]
    moved = (left[:, :2] * values) @ right[:2] - theta
    expected = np.sum((moved / step) ** 2)
    assert_allclose(imputer.history_["mean_field_sq_norm"][-1], expected, rtol=1e-6)


def test_lapack_has_no_say_in_the_directions_that_are_stirred():
    generator = np.random.default_rng(0)
    block = orthonormal(generator.standard_normal((40, 5)))
    stirred = orthonormal(thresholding._with_spares_stirred(block, rank=2))
    for turn in (np.diag([1.0, -1, 1]), ortho_group.rvs(3, random_state=0)):
        other = np.hstack([-block[:, :2], block[:, 2:] @ turn])
        again = orthonormal(thresholding._with_spares_stirred(other, rank=2))
        assert_allclose(again @ again.T, stirred @ stirred.T, atol=1e-13)
    # By a hundredth, times how far noise of three columns in 35 directions may reach, 1.2.
    assert 5e-3 < np.linalg.norm(stirred @ stirred.T - block @ block.T, 2) < 0.02
    assert_array_equal(thresholding._with_spares_stirred(block, rank=5), block)  # no spares


@pytest.mark.parametrize("n_found", [2, 4, 6])
def test_directions_of_singular_values_of_0_are_not_followed(n_found):
    generator = np.random.default_rng(0)
    left, right = generator.normal(size=(60, n_found)), generator.normal(size=(40, n_found))
    matrix, none = left @ right.T, zero_low_rank((60, 40))
    spans = []
    for size in (0, 1e-15):
        nudged = csr_array(matrix * (1 + size * generator.normal(size=matrix.shape)))
        _, block = threshold_singular_values(none, nudged, 0.1, 4)
        assert block.any(axis=0).all()  # noise in their place
        basis = orthonormal(block)
        spans.append(basis @ basis.T)
    assert_allclose(*spans, rtol=0, atol=1e-12)


def test_bases_of_vectors_that_are_nearly_dependent_are_orthonormal():
    generator = np.random.default_rng(0)
    for n_digits in np.tile(range(17), 20):
        # At 9 to 16 digits, factors of some of them exist and are far from right.
        vectors = generator.standard_normal((40, 6)) * np.geomspace(1, 10.0**-n_digits, 6)
        vectors = vectors @ generator.standard_normal((6, 6))
        basis = orthonormal(vectors)
        assert_allclose(basis.T @ basis, np.eye(6), atol=1e-12)
        assert_allclose(basis @ (basis.T @ vectors), vectors, atol=1e-13)


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
    federation = Federation(cells, offsets_of([40]), np.ones(1))
    imputer = FederatedMatrixImputer(1, family=family, penalty=0.1, step_size=1.0)
    model = low_rank_model(imputer, federation, (10, 4), np.zeros(1))
    step = start_run(model, federation).statistics.natural_step
    # Observations are divided by their mean number.
    assert_allclose(1 / step, largest_variance * model.pooled.support.counts.max(), rtol=1e-12)


def test_the_first_step_is_finite_where_a_run_has_diverged():
    rows, columns = np.divmod(np.arange(40), 4)
    cells = Cells(rows, columns, np.zeros(40), np.ones(40))
    federation = Federation(cells, offsets_of([40]), np.ones(1))
    imputer = FederatedMatrixImputer(1, family="poisson", effects="none")
    model = low_rank_model(imputer, federation, (10, 4), np.zeros(1))
    # All means are 0, for exp underflows; warnings are errors.
    low_rank = LowRank(np.full((10, 1), 10**-0.5), np.array([1e5]), np.full((4, 1), -0.5))
    theta = Theta(no_effects((10, 4)), low_rank)
    assert np.isfinite(start_run(model, federation, theta).statistics.natural_step)


def pooled_everywhere(counts, family, penalty=0.0):
    """What the server knows of a matrix of which every cell was observed, so many times."""
    support = all_cells(counts.shape, counts.ravel())
    none = Margins(*map(np.zeros, counts.shape))
    return Pooled(support, none, FAMILIES[family], min(counts.shape), penalty, "none", 0.0)


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
    mean = np.exp(theta)
    found = _above_tangent(pooled, theta, mean, mean, change)
    # N e^θ (e^c - 1 - c), of which the next term of the series is a third of c.
    assert_allclose(found, [3.0, 5.0] @ (mean * change**2 / 2), rtol=1e-7)


def test_changes_of_normal_means_far_from_0_do_not_cancel():
    pooled = pooled_everywhere(np.array([[3.0, 5.0]]), "gaussian")
    theta, change = np.array([1e8, -1e8]), np.array([0.5, -0.25])
    found = _above_tangent(pooled, theta, theta, 0.5 * theta**2, change)
    assert_allclose(found, 0.5 * (3 * 0.25 + 5 * 0.0625), rtol=1e-15)


def test_where_nothing_is_curved_a_step_is_finite():
    pooled = pooled_everywhere(np.ones((2, 2)), "poisson")
    assert 0 < 1 / largest_curvature(pooled, np.full(4, -800.0)) < np.inf
    assert largest_curvature(pooled, np.log([1.0, 2.0, 7.0, 3.0])) == pytest.approx(7.0, rel=1e-15)


def test_weights_of_clients_add_up_to_one_whatever_was_observed_again():
    cell = np.array([[1.0, np.nan], [2.0, 3.0]])
    X = [np.stack([cell] * 3), cell, cell[:, ::-1] * [1, np.nan]]
    data = check_cells(FederatedMatrixImputer(), X, family=FAMILIES["gaussian"])
    for client_weights in ("n_samples", "uniform"):
        federation = cell_federation(data, client_weights)
        assert federation.weights.sum() == pytest.approx(1, abs=1e-15)
