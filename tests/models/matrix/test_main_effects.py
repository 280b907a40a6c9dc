"""Main effects beside a low-rank part: they solve their likelihood equations."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array

from low_rank_cells import (
    SHAPE,
    all_cells,
    fitted,
    no_effects,
    observations,
    problem_of,
    support_of,
)
from skfedem import FederatedMatrixImputer
from skfedem.models.matrix import column_equations, pooled, proximal
from skfedem.models.matrix.column_equations import _column_factor, solve_for_columns
from skfedem.models.matrix.families import FAMILIES
from skfedem.models.matrix.main_effects import fit_effects
from skfedem.models.matrix.pooled import Pooled
from skfedem.models.matrix.theta import Effects


def pooled_of(support, margins, family, effects="both", effects_penalty=0.0):
    """What effects beside a given low-rank part are fitted to."""
    return Pooled(support, margins, family, 0, 0.0, effects, effects_penalty)


def test_a_large_ridge_leaves_the_intercept_free():
    support = all_cells((5, 4))
    values = 1000 + np.random.default_rng(0).standard_normal(20)
    for ridge in (0.0, 1.0, 1e6):
        pooled = pooled_of(support, support.margins(values), "gaussian", effects_penalty=ridge)
        effects, _, _ = fit_effects(pooled, np.zeros(20), no_effects(support.shape))
        # Balanced: the mean, to the last decrease of 1e-5 nats that 20 observations notice.
        assert_allclose(effects.intercept, values.mean(), atol=1e-3)


def test_effects_solve_their_likelihood_equations():
    data = observations("poisson", overlap=True)
    model = problem_of(data, "poisson")[0].model
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
    is_observed = np.bincount(rows, minlength=20) > 0, np.bincount(columns, minlength=6) > 0
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


def test_without_a_factor_conjugate_gradients_solve_the_same_equations(monkeypatch):
    weights = np.random.default_rng(0).uniform(0.5, 2, size=(6, 4))
    by_row, by_column = 0.3 + weights.sum(axis=1), 0.3 + weights.sum(axis=0)
    equations = weights, weights.T, by_row, by_column, np.arange(4.0), None
    direct, _ = solve_for_columns(*equations)
    schur = np.diag(by_column) - weights.T @ (weights / by_row[:, None])
    assert_allclose(schur @ direct, np.arange(4.0), rtol=0, atol=1e-13)
    monkeypatch.setattr(column_equations, "_column_factor", lambda *_: None)
    # They end at a relative residual of 1e-6.
    assert_allclose(solve_for_columns(*equations)[0], direct, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_small_matrices_take_the_steps_of_large_ones(monkeypatch, family):
    data = observations(family, overlap=True)
    small = fitted(*problem_of(data, family), max_iter=20).server.statistics.iterate
    monkeypatch.setattr(pooled, "_SIZES", pooled.Sizes(dense_entries=0))
    large = fitted(*problem_of(data, family), max_iter=20).server.statistics.iterate
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
    support = problem_of(observations("gaussian", overlap=False), "gaussian")[
        0
    ].model.pooled.support
    values = np.random.default_rng(0).standard_normal(len(support.counts))
    few = support.margins(values)
    monkeypatch.setattr(pooled, "_SIZES", pooled.Sizes(bincount_cells=0))
    for sums, want in zip(few, support.margins(values), strict=True):
        assert_array_equal(sums, want)
