"""Singular values above a threshold, and the directions that are followed to find them again."""

from itertools import product

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import coo_array, csr_array
from scipy.sparse.linalg import ArpackError, svds
from scipy.stats import ortho_group

import literal_imputation as oracle
from low_rank_cells import SHAPE, dense, observations, problem_of
from skfedem import FederatedMatrixImputer
from skfedem.models.matrix import thresholding
from skfedem.models.matrix.theta import LowRank, zero_low_rank
from skfedem.models.matrix.thresholding import orthonormal, threshold_singular_values


def test_thresholding_is_that_of_the_dense_matrix():
    generator = np.random.default_rng(0)
    data = observations("gaussian", overlap=False)
    support = problem_of(data, "gaussian")[0].model.pooled.support
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
    block = thresholding.unset_block(none, 100)
    assert block.shape == (0, 37) and thresholding.unset_block(none, 20).shape == (0, 25)
    for _ in range(10):
        found, block = threshold_singular_values(none, matrix, 1.0, 100, block)
    assert_allclose(found.singular_values, np.ones(n_above), rtol=1e-9)


def test_while_all_directions_are_kept_there_is_room_for_a_twentieth_more():
    none, matrix = zero_low_rank((120, 100)), np.eye(120, 100)
    block = thresholding.unset_block(none, 100)
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


def test_lapack_has_no_say_in_the_directions_that_are_stirred():
    generator = np.random.default_rng(0)
    block = orthonormal(generator.standard_normal((40, 5)))
    stirred = orthonormal(thresholding._with_noisy_spares(block, rank=2))
    for turn in (np.diag([1.0, -1, 1]), ortho_group.rvs(3, random_state=0)):
        other = np.hstack([-block[:, :2], block[:, 2:] @ turn])
        again = orthonormal(thresholding._with_noisy_spares(other, rank=2))
        assert_allclose(again @ again.T, stirred @ stirred.T, atol=1e-13)
    # By a hundredth, times how far noise of three columns in 35 directions may reach, 1.2.
    assert 5e-3 < np.linalg.norm(stirred @ stirred.T - block @ block.T, 2) < 0.02
    assert_array_equal(thresholding._with_noisy_spares(block, rank=5), block)  # no spares


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
