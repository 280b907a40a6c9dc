"""Row regressions against SciPy's minimiser and their own conditions; subsets; rows of extremes."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize
from sklearn.exceptions import ConvergenceWarning

from skfedem.models.matrix import row_regression
from skfedem.models.matrix.families import FAMILIES, GAUSSIAN
from skfedem.models.matrix.row_regression import fit_rows
from skfedem.models.matrix.theta import Cells

N_ROWS, N_COLUMNS, RANK = 40, 30, 3

each_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
with_and_without_effects = pytest.mark.parametrize("row_effects", [True, False])


def column_side(seed=0):
    """Offsets and factors of the columns."""
    generator = np.random.default_rng(seed)
    offsets = 0.5 * generator.standard_normal(N_COLUMNS)
    return offsets, generator.standard_normal((N_COLUMNS, RANK))


def some_cells(family, seed=1, n_rows=N_ROWS):
    """Cells in no order, some observed several times; a row in eight has none."""
    generator = np.random.default_rng(seed)
    seen = generator.random((n_rows, N_COLUMNS)) < generator.uniform(0.1, 0.9, (n_rows, 1))
    seen[::8] = False
    rows, columns = np.nonzero(seen)
    shuffled = generator.permutation(len(rows))
    rows, columns = rows[shuffled], columns[shuffled]
    offsets, factors = column_side()
    row_factors = 0.5 * generator.standard_normal((n_rows, RANK))
    means = family.mean(
        offsets[columns] + np.einsum("ck,ck->c", row_factors[rows], factors[columns])
    )
    counts = generator.integers(1, 4, len(rows)).astype(float)
    sums = {
        "gaussian": lambda: counts * means + np.sqrt(counts) * generator.standard_normal(len(rows)),
        "bernoulli": lambda: generator.binomial(counts.astype(int), means),
        "poisson": lambda: generator.poisson(counts * means),
    }[family.name]()
    return Cells(rows, columns, sums / counts, counts)


def of_rows(cells, kept):
    """The cells of some rows only, those renumbered."""
    number = np.full(cells.rows.max() + 1, -1)
    number[kept] = np.arange(len(kept))
    chosen = number[cells.rows] >= 0
    return Cells(number[cells.rows[chosen]], *(of_cells[chosen] for of_cells in cells[1:4]))


def fit(cells, family, n_rows=N_ROWS, penalty=0.7, row_effects=True, ridge=0.3, **options):
    return fit_rows(
        cells, n_rows, *column_side(), penalty, family, row_effects=row_effects, ridge=ridge,
        **options,
    )  # fmt: skip


def row_objective(cells, family, row, effect, factor, penalty=0.7, ridge=0.3):
    """Objective of one row, and its derivatives in the effect and in the factor."""
    offsets, factors = column_side()
    own = cells.rows == row
    columns, values, counts = cells.columns[own], cells.values[own], cells.counts[own]
    theta = offsets[columns] + effect + factors[columns] @ factor
    value = counts @ (family.log_partition(theta) - values * theta)
    value += penalty / 2 * factor @ factor + ridge / 2 * effect**2
    residuals = counts * (family.mean(theta) - values)
    return (
        value,
        residuals.sum() + ridge * effect,
        factors[columns].T @ residuals + penalty * factor,
    )


def largest_derivative(cells, family, fitted, row_effects=True, **penalties):
    """Over all rows and coefficients, as a share of the weight of all observations of the row."""
    largest = 0.0
    for row, (effect, factor) in enumerate(zip(*fitted, strict=True)):
        _, in_effect, in_factor = row_objective(cells, family, row, effect, factor, **penalties)
        own = cells.rows == row
        weight = 1 + cells.counts[own] @ (1 + np.abs(cells.values[own]))
        in_effect = in_effect if row_effects else 0.0
        largest = max(largest, abs(in_effect) / weight, np.abs(in_factor).max() / weight)
    return largest


# ---- the minimum


@each_family
@with_and_without_effects
def test_gradients_vanish_which_they_do_at_the_minimum_alone(family, row_effects):
    cells = some_cells(family)
    fitted = fit(cells, family, row_effects=row_effects)
    # The tolerance, on factors of at most 3.5.
    assert largest_derivative(cells, family, fitted, row_effects) <= 3.5e-10


def test_gaussian_is_weighted_ridge_regression():
    cells, (offsets, factors) = some_cells(GAUSSIAN), column_side()
    effects, row_factors = fit(cells, GAUSSIAN)
    design = np.column_stack([np.ones(N_COLUMNS), factors])
    for row in range(1, 8):
        own = cells.rows == row
        x, counts = design[cells.columns[own]], cells.counts[own]
        gram = (x.T * counts) @ x + np.diag([0.3, 0.7, 0.7, 0.7])
        residuals = cells.values[own] - offsets[cells.columns[own]]
        expected = np.linalg.solve(gram, x.T @ (counts * residuals))
        assert_allclose(np.append(effects[row], row_factors[row]), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("penalty", "ridge"), [(0.7, 0.3), (0.0, 0.3), (1e6, 1e6)])
def test_gaussian_takes_one_newton_step(penalty, ridge):
    steps = []

    def variance(theta):
        steps.append(len(theta))
        return GAUSSIAN.variance(theta)

    cells = some_cells(GAUSSIAN)
    fit(cells, GAUSSIAN._replace(variance=variance), penalty=penalty, ridge=ridge)
    assert steps == [len(cells.rows)]


def test_without_factors_effects_are_shrunken_means():
    cells, (offsets, _) = some_cells(GAUSSIAN), column_side()
    nothing = np.empty((N_COLUMNS, 0))
    arguments = cells, N_ROWS, offsets, nothing, 1.0, GAUSSIAN
    effects, factors = fit_rows(*arguments, row_effects=True, ridge=0.3)
    residuals = cells.counts * (cells.values - offsets[cells.columns])
    expected = np.bincount(cells.rows, residuals, minlength=N_ROWS)
    expected /= np.bincount(cells.rows, cells.counts, minlength=N_ROWS) + 0.3
    assert_allclose(effects, expected, rtol=1e-10, atol=1e-12)
    assert factors.shape == (N_ROWS, 0)
    effects, factors = fit_rows(*arguments, row_effects=False, ridge=0.3)
    assert_array_equal(effects, np.zeros(N_ROWS))
    assert factors.shape == (N_ROWS, 0)


# ---- rows by themselves


@each_family
@pytest.mark.parametrize("penalty", [0.7, 1e-4])
def test_a_row_does_not_depend_on_the_others(family, penalty):
    cells = some_cells(family)
    effects, factors = fit(cells, family, penalty=penalty)
    generator = np.random.default_rng(2)
    for size in (1, 2, 7, 25):
        kept = generator.permutation(np.arange(1, N_ROWS - 1))[:size]
        some = fit(of_rows(cells, kept), family, n_rows=size, penalty=penalty)
        assert_allclose(some[0], effects[kept], rtol=1e-10, atol=1e-10)
        assert_allclose(some[1], factors[kept], rtol=1e-10, atol=1e-10)


@each_family
def test_blocks_do_not_matter(family, monkeypatch):
    cells = some_cells(family)
    whole = fit(cells, family)
    # Smaller than a row, and a few rows.
    for block in (1, 100):
        monkeypatch.setattr(row_regression, "_BLOCK", block)
        for ours, expected in zip(fit(cells, family), whole, strict=True):
            assert_allclose(ours, expected, rtol=1e-10, atol=1e-10)


@each_family
def test_a_cell_seen_twice_is_two_cells(family):
    cells = some_cells(family)
    halves = Cells(*(np.concatenate([of_cells, of_cells]) for of_cells in cells[:4]))
    halves = halves._replace(counts=halves.counts / 2)
    for ours, expected in zip(fit(halves, family), fit(cells, family), strict=True):
        assert_allclose(ours, expected, rtol=1e-8, atol=1e-9)


@each_family
def test_rows_without_cells_have_zeros(family):
    effects, factors = fit(some_cells(family), family)
    assert_array_equal(effects[::8], 0.0)
    assert_array_equal(factors[::8], 0.0)
    assert np.all(effects[1:8] != 0)
    nowhere = np.empty(0, dtype=int)
    effects, factors = fit(Cells(nowhere, nowhere, np.empty(0), np.empty(0)), family, n_rows=3)
    assert_array_equal(effects, np.zeros(3))
    assert_array_equal(factors, np.zeros((3, RANK)))


def test_weightless_cells_are_none():
    cells = some_cells(GAUSSIAN)
    effects, factors = fit(cells._replace(counts=np.zeros(len(cells.rows))), GAUSSIAN, penalty=0.0)
    assert_array_equal(effects, 0.0)
    assert_array_equal(factors, 0.0)


# ---- extremes


def constant_rows(value, count=1.0):
    rows, columns = np.divmod(np.arange(3 * N_COLUMNS), N_COLUMNS)
    return Cells(rows, columns, np.full(len(rows), value), np.full(len(rows), count))


@pytest.mark.parametrize(
    ("name", "value", "sign"),
    [("poisson", 0.0, -1), ("bernoulli", 0.0, -1), ("bernoulli", 1.0, 1)],
)
@pytest.mark.parametrize("penalties", [(0.7, 1e-4), (0.0, 1e-4), (0.0, 0.0)])
def test_rows_that_call_for_infinity_stop_where_gradients_vanish(name, value, sign, penalties):
    cells, (penalty, ridge) = constant_rows(value), penalties
    effects, factors = fit(cells, FAMILIES[name], n_rows=3, penalty=penalty, ridge=ridge)
    assert np.all(np.isfinite(factors))
    assert np.all((sign * effects > 3) & (sign * effects < 100))
    fitted = effects, factors
    gap = largest_derivative(cells, FAMILIES[name], fitted, penalty=penalty, ridge=ridge)
    assert gap <= 3.5e-10


@each_family
@with_and_without_effects
def test_fewer_cells_than_coefficients_and_no_penalty_have_a_small_solution(family, row_effects):
    generator = np.random.default_rng(3)
    rows = np.repeat(np.arange(6), [1, 1, 2, 2, 3, 3])
    columns = generator.integers(0, N_COLUMNS, len(rows))
    values = np.full(len(rows), 0.4)  # means of several observations
    cells = Cells(rows, columns, values, np.full(len(rows), 5.0))
    options = {"penalty": 0.0, "ridge": 0.0}
    fitted = fit(cells, family, n_rows=6, row_effects=row_effects, **options)
    assert all(np.isfinite(side).all() for side in fitted)
    # There is room to fit every cell, and the smallest way is of the size of the data.
    assert largest_derivative(cells, family, fitted, row_effects, **options) <= 3.5e-10
    assert max(np.abs(side).max() for side in fitted) < 30


def test_constant_factors_without_a_penalty_share_the_mean_with_the_effect():
    cells = some_cells(GAUSSIAN)
    offsets = np.zeros(N_COLUMNS)
    factors = np.zeros((N_COLUMNS, 2))
    factors[:, 0] = 1.0  # the same as the effect; the other does nothing
    fitted = fit_rows(cells, N_ROWS, offsets, factors, 0.0, GAUSSIAN, row_effects=True, ridge=0.0)
    sums = np.bincount(cells.rows, cells.counts * cells.values, minlength=N_ROWS)
    counts = np.bincount(cells.rows, cells.counts, minlength=N_ROWS)
    expected = np.divide(sums, counts, out=np.zeros(N_ROWS), where=counts > 0)
    assert_allclose(fitted[0] + fitted[1][:, 0], expected, rtol=1e-9, atol=1e-10)
    assert_array_equal(fitted[1][:, 1], 0.0)


@each_family
def test_gradients_vanish_for_huge_counts(family):
    cells = some_cells(family)
    cells = cells._replace(counts=1e6 * cells.counts)
    fitted = fit(cells, family)
    assert all(np.isfinite(side).all() for side in fitted)
    assert largest_derivative(cells, family, fitted) <= 3.5e-10


@pytest.mark.parametrize("value", [1e6, 1e12])
def test_gradients_vanish_for_huge_poisson_values(value):
    family, cells = FAMILIES["poisson"], constant_rows(value)
    fitted = fit(cells, family, n_rows=3)
    assert largest_derivative(cells, family, fitted) <= 3.5e-10
    # Nothing but the offsets differs between cells.
    assert_allclose(fitted[0], np.log(value), atol=0.5)


def test_squares_of_long_steps_do_not_overflow_without_a_penalty():
    cells = Cells(np.zeros(2, int), np.arange(2), np.array([3.0, 0.0]), np.ones(2))
    family, columns = FAMILIES["poisson"], np.array([[1.0], [-1.0]])
    penalties = {"penalty": 0.0, "row_effects": True, "ridge": 0.1}
    effects, factors = fit_rows(cells, 1, np.zeros(2), columns, family=family, **penalties)
    found = fit_rows(cells, 1, np.zeros(2), 1e-155 * columns, family=family, **penalties)
    assert_allclose(found[0], effects, rtol=1e-9)
    assert_allclose(found[1], 1e155 * factors, rtol=1e-9)


def test_a_steep_row_without_penalties_is_fitted():
    cells = Cells(np.zeros(1, int), np.zeros(1, int), np.array([1e13]), np.ones(1))
    factors, offset = np.array([[1.3, 0.7]]), np.array([29.0])
    family = FAMILIES["poisson"]
    effects, own = fit_rows(cells, 1, offset, factors, 0.0, family, row_effects=True, ridge=0.0)
    assert_allclose(offset + effects + own @ factors[0], np.log(1e13), rtol=1e-9)


@each_family
def test_rows_with_far_offsets_are_finite(family):
    cells, (offsets, factors) = some_cells(family), column_side()
    for shift in (-30.0, 25.0, 200.0, -1e6):
        options = {"row_effects": True, "ridge": 0.3}
        fitted = fit_rows(cells, N_ROWS, offsets + shift, factors, 0.7, family, **options)
        assert all(np.isfinite(side).all() for side in fitted)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@each_family
def test_each_step_decreases_the_objective(family):
    # From far off, where full steps overshoot.
    cells, (offsets, factors) = some_cells(family), column_side()
    cells = cells._replace(values=np.where(cells.values > 0, 50.0 * cells.values, 0.0))
    if family.name == "bernoulli":
        cells = cells._replace(values=np.minimum(cells.values, 1.0))

    def objectives(max_iter):
        fitted = fit_rows(
            cells, N_ROWS, offsets, 4 * factors, 0.01, family, row_effects=True, ridge=0.01,
            max_iter=max_iter,
        )  # fmt: skip
        theta = offsets[cells.columns] + fitted[0][cells.rows]
        theta += np.einsum("ck,ck->c", fitted[1][cells.rows], 4 * factors[cells.columns])
        loss = cells.counts * (family.log_partition(theta) - cells.values * theta)
        penalty = 0.005 * ((fitted[1] ** 2).sum(axis=1) + fitted[0] ** 2)
        return np.bincount(cells.rows, loss, minlength=N_ROWS) + penalty

    course = np.array([objectives(max_iter) for max_iter in range(12)])
    assert np.all(np.diff(course, axis=0) <= 1e-12 * np.abs(course[:-1]).max())
    assert_allclose(objectives(100), objectives(200), rtol=1e-12)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("penalty", [0.3, 1.0, 3.0])
def test_a_step_that_only_the_penalty_forbids_is_shortened(penalty):
    # One cell a row: of many values, some have steps that gain of the likelihood and lose more by
    # the penalty.
    values = np.linspace(1.0, 400.0, 4000)
    rows, family = np.arange(len(values)), FAMILIES["poisson"]
    cells = Cells(rows, np.zeros_like(rows), values, np.ones(len(values)))
    options = {"penalty": penalty, "family": family, "row_effects": False, "ridge": 0.0}

    def objectives(max_iter):
        _, factors = fit_rows(
            cells, len(rows), np.array([-1.0]), np.ones((1, 1)), max_iter=max_iter, **options
        )
        theta = factors[:, 0] - 1
        loss = family.log_partition(theta) - values * theta
        return loss + 0.5 * penalty * factors[:, 0] ** 2

    course = np.array([objectives(max_iter) for max_iter in range(5)])
    # A sum of three terms, no larger than at the start or the end: a few roundings.
    assert (np.diff(course, axis=0) <= 1e-14 * np.abs(course).max(axis=0)).all()


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_doubled_step_that_gains_less_is_not_taken():
    # A second cell, of next to no weight, makes the safe share so short that the objective still
    # falls like a line there; twice that share is below the start, but above the share itself.
    family, factors = FAMILIES["poisson"], np.array([[1.0], [2.0]])
    cells = Cells(np.zeros(2, int), np.arange(2), np.array([5.0, 1.0]), np.array([1.0, 1e-9]))
    _, found = fit_rows(
        cells, 1, np.zeros(2), factors, 0.0, family, row_effects=False, ridge=0.0, max_iter=1
    )
    newton = 5.0 - 1.0
    share = np.log1p(2 * newton) / 2

    def objective(theta):
        return np.exp(theta) - 5 * theta

    assert objective(share) < objective(2 * share) < objective(0) - 1
    # The second cell's part of the slope and of the curvature.
    assert_allclose(found[0, 0], share, rtol=1e-8)


def test_a_flat_start_is_left():
    # exp(-60) has no curvature: the first Newton step is 1e11 too long, and halving is too slow.
    cells, (offsets, factors) = constant_rows(1.0), column_side()
    family = FAMILIES["poisson"]
    fitted = fit_rows(cells, 3, offsets - 60.0, factors, 0.0, family, row_effects=True, ridge=0.0)
    assert_allclose(fitted[0], 60.0, atol=0.5)
    theta = (offsets - 60.0 + factors @ fitted[1][0] + fitted[0][0])[cells.columns[:N_COLUMNS]]
    residuals = family.mean(theta) - 1
    # θ has lost two digits to its offset of 60.
    assert np.abs(residuals.sum()) <= 1e-8
    assert np.abs(factors.T @ residuals).max() <= 1e-8


def test_steps_end_where_rounding_begins():
    steps = []

    def variance(theta):
        steps.append(len(theta))
        return GAUSSIAN.variance(theta)

    cells, (offsets, factors) = some_cells(GAUSSIAN), column_side()
    family = GAUSSIAN._replace(variance=variance)
    # Digits of the gradient beyond the eighth are lost to the offsets: its tolerance is not met.
    fit_rows(cells, N_ROWS, offsets + 1e8, factors, 0.7, family, row_effects=True, ridge=0.3)
    assert 1 <= len(steps) <= 3


def test_a_row_far_down_the_logistic_curve_does_not_end_as_far_up():
    # From θ = -6.5 a whole step leads to θ = 660, of a smaller objective, where nothing bends.
    family, nowhere = FAMILIES["bernoulli"], np.empty((1, 0))
    here = np.zeros(1, dtype=int)
    cells = Cells(here, here, np.ones(1), np.ones(1))
    effects, _ = fit_rows(
        cells, 1, np.array([-6.5]), nowhere, 1.0, family, row_effects=True, ridge=1e-7
    )
    # 1 / (1 + exp(-6.5 + e)) = 1e-7 e
    assert_allclose(family.mean(6.5 - effects), 1e-7 * effects, rtol=1e-3)
    assert 15 < effects[0] < 22


@pytest.mark.parametrize("seed", range(180, 220))
def test_extreme_rows_are_those_of_scipy(seed):
    generator = np.random.default_rng(seed)
    family = FAMILIES[["bernoulli", "poisson"][seed % 2]]
    n_columns, rank = generator.integers(1, 5), generator.integers(0, 4)
    offsets = generator.normal(size=n_columns) * generator.choice([0, 1, 5])
    offsets += generator.choice([-4, -7, -20, 15])
    factors = generator.normal(size=(n_columns, rank)) * generator.choice([0.01, 1, 10])
    some = [0.0, 1.0] if family.name == "bernoulli" else [0.0, 1.0, 5.0, 1e3, 1e9]
    values, counts = generator.choice(some, n_columns), generator.integers(1, 4, n_columns) * 1.0
    penalty, ridge = generator.choice([1e-5, 1e-3, 1.0]), generator.choice([1e-7, 1e-3])
    every = np.arange(n_columns)
    effects, row_factors = fit_rows(
        Cells(np.zeros_like(every), every, values, counts), 1, offsets, factors, penalty, family,
        row_effects=True, ridge=ridge, max_iter=50,
    )  # fmt: skip
    design = np.column_stack([np.ones(n_columns), factors])
    penalties = np.append(ridge, np.full(rank, penalty))

    def objective(point):
        theta = offsets + design @ point
        loss = counts @ (family.log_partition(theta) - values * theta)
        return loss + penalties @ point**2 / 2

    def gradient(point):
        residuals = counts * (family.mean(offsets + design @ point) - values)
        return design.T @ residuals + penalties * point

    def hessian(point):
        weights = counts * family.variance(offsets + design @ point)
        return (design.T * weights) @ design + np.diag(penalties)

    ours = np.append(effects, row_factors[0])
    options = {"jac": gradient, "hess": hessian, "method": "trust-ncg"}
    with np.errstate(all="ignore"):
        theirs = min(
            minimize(objective, start, **options).fun for start in (np.zeros(rank + 1), ours)
        )
    size = counts @ (1 + np.abs(values * (offsets + design @ ours)))
    assert objective(ours) <= theirs + 1e-12 * size


def test_rows_that_run_out_of_steps_are_counted():
    cells = some_cells(FAMILIES["bernoulli"])
    with pytest.warns(ConvergenceWarning, match="of 35 of 40 rows did not converge within 1 "):
        fit(cells, FAMILIES["bernoulli"], max_iter=1)


def test_rows_of_all_blocks_are_counted_that_were_not_found(monkeypatch):
    monkeypatch.setattr(row_regression, "_BLOCK", 2)  # a row each
    rows, columns = np.divmod(np.arange(6), 2)
    cells = Cells(rows, columns, np.array([9.0, 0.0, 1.0, 30.0, 0.0, 70.0]), np.ones(6))
    with pytest.warns(ConvergenceWarning, match="of 3 of 3 rows did not converge within 1 "):
        fit_rows(
            cells, 3, np.zeros(2), np.ones((2, 1)), 1.0, FAMILIES["poisson"], row_effects=True,
            ridge=1.0, max_iter=1,
        )  # fmt: skip
