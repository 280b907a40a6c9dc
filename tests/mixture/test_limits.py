"""Where fits of a mixture agree with scikit-learn's EM, or with each other, to rounding."""

from math import isclose

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.mixture import GaussianMixture

import literal
from fits import FITTED, assert_same_fit, federated, start_of
from problems import (
    COVARIANCE_TYPES,
    KNOWN_COVARIANCE,
    lower_bounds,
    ragged_clients,
)
from skfedem import FederatedGaussianMixture

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

every_covariance_type = pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)


# EM on 48 rows of spread 1 to 4 is well conditioned: the two implementations part by rounding,
# below 1e-12 in every quantity, which leaves 1e-8 four digits to spare.
@every_covariance_type
@pytest.mark.parametrize("max_iter", [1, 2, 6])
def test_defaults_are_scikit_learns_em_iteration_by_iteration(covariance_type, max_iter):
    clients = ragged_clients()
    params = {"max_iter": max_iter, "reg_covar": 1e-3, **start_of(covariance_type)}
    pooled = GaussianMixture(2, covariance_type=covariance_type, tol=0.0, **params)
    bounds = lower_bounds(pooled.fit(np.concatenate(clients)), np.concatenate(clients))
    fit = federated(covariance_type, **params).fit(clients)
    assert_same_fit(fit, pooled)
    assert_allclose(fit.lower_bounds_, bounds, rtol=1e-10)
    assert_allclose(fit.lower_bound_, pooled.lower_bound_, rtol=1e-10)
    assert (fit.n_iter_, fit.converged_) == (pooled.n_iter_, pooled.converged_)
    assert fit.n_iter_ == max_iter and not fit.converged_
    # Row r of the history is the state after r rounds: one E-step ahead of the bounds.
    assert_allclose(fit.history_["log_likelihood"][:max_iter], bounds, rtol=1e-10)
    assert_array_equal(fit.history_["safeguarded"], 0)


# Rows of spread 1e-8 under unit precisions: in standard units Ŝ_0 would be 1e16, which has no digit
# left for the rows.
@every_covariance_type
@pytest.mark.parametrize("max_iter", [1, 2, 20])
def test_a_start_that_is_wide_beside_the_rows_loses_no_digits(covariance_type, max_iter):
    scale = 1e-8
    clients = [rows * scale for rows in ragged_clients()]
    params = {"max_iter": max_iter, "reg_covar": 1e-3 * scale**2, "tol": 0.0}
    params.update(start_of(covariance_type, scale))
    params["precisions_init"] = params["precisions_init"] * scale**2
    pooled = GaussianMixture(2, covariance_type=covariance_type, **params)
    pooled.fit(np.concatenate(clients))
    fit = federated(covariance_type, **params).fit(clients)
    assert_allclose(fit.lower_bound_, pooled.lower_bound_, rtol=1e-10)
    assert_same_fit(fit, pooled, atol=0)


@every_covariance_type
@pytest.mark.parametrize("tol", [1e-2, 1e-4])
def test_defaults_stop_where_scikit_learn_stops(covariance_type, tol):
    clients = ragged_clients()
    params = {"max_iter": 500, "tol": tol, **start_of(covariance_type)}
    pooled = GaussianMixture(2, covariance_type=covariance_type, **params)
    bounds = lower_bounds(pooled.fit(np.concatenate(clients)), np.concatenate(clients))
    fit = federated(covariance_type, **params).fit(clients)
    assert (fit.n_iter_, fit.converged_) == (pooled.n_iter_, pooled.converged_)
    assert fit.converged_ and fit.n_iter_ > 2
    assert_allclose(fit.lower_bounds_, bounds, rtol=1e-8)
    # Rounding grows a little where EM converges slowly.
    assert_same_fit(fit, pooled, rtol=1e-7)


@every_covariance_type
def test_the_split_does_not_matter(covariance_type):
    rows = np.concatenate(ragged_clients())
    fits = []
    for lengths in ([48], [1] * 48, [47, 1], [10, 20, 3, 15]):
        split = np.split(rows, np.cumsum(lengths)[:-1])
        fits.append(federated(covariance_type, max_iter=20, **start_of(covariance_type)).fit(split))
    assert [fit.n_clients_ for fit in fits] == [1, 48, 2, 4]
    for fit in fits[1:]:
        assert_same_fit(fit, fits[0])
        assert_allclose(fit.lower_bounds_, fits[0].lower_bounds_, rtol=1e-10)


@every_covariance_type
def test_a_known_control_changes_nothing_of_an_exact_fit(covariance_type):
    # The fields of the control variates cancel, whatever their start and their step.
    clients = ragged_clients()
    fits = [
        federated(
            covariance_type, max_iter=10, control_init=init, control_step=step,
            **start_of(covariance_type),
        ).fit(clients)
        for init in ("field", "zeros")
        for step in ("auto", 0.0, 0.3)
    ]  # fmt: skip
    for fit in fits[1:]:
        assert_same_fit(fit, fits[0])


def test_fixed_covariance_is_a_literal_em_of_weights_and_means():
    clients = [rows / [1.0, 3.0] for rows in ragged_clients()]
    rows = np.concatenate(clients)
    weights, means = np.array([0.4, 0.6]), np.array([[1.0, -2.0], [3.0, -1.0]])
    start = {"weights_init": weights, "means_init": means}
    for max_iter in range(1, 6):
        shares = np.array(literal.responsibilities(rows, weights, means, KNOWN_COVARIANCE, "tied"))
        weights, means = shares.mean(axis=0), (shares.T @ rows) / shares.sum(axis=0)[:, None]
        fit = federated("tied", fixed_covariance=KNOWN_COVARIANCE, max_iter=max_iter, **start)
        fit.fit(clients)
        assert_allclose(fit.weights_, weights, rtol=1e-8)
        assert_allclose(fit.means_, means, rtol=1e-8)
        # Units to standard units and back: one rounding each.
        assert_allclose(fit.covariances_, KNOWN_COVARIANCE, rtol=1e-14)
    log_likelihood = literal.log_likelihood(rows, weights, means, KNOWN_COVARIANCE, "tied")
    assert_allclose(fit.score(rows), log_likelihood, rtol=1e-10)
    assert_allclose(fit.history_["log_likelihood"][-1], log_likelihood, rtol=1e-10)


@every_covariance_type
def test_rows_far_from_the_origin_give_the_fit_of_centred_ones(covariance_type):
    # Near 1e6 doubles are 2^-33, about 1e-10, apart. Rows rounded to multiples of it can be moved
    # there and back without an error; the fitted means are rounded to it once more, when they are
    # stored, and the mean of all rows, to a few of it, before.
    spacing = 2.0**-33
    near = [np.round(rows / spacing) * spacing for rows in ragged_clients()]
    far = [rows + 1e6 for rows in near]
    assert all(((a - 1e6) == b).all() for a, b in zip(far, near, strict=True))
    params = {"max_iter": 15, "reg_covar": 1e-6}
    expected = federated(covariance_type, **params, **start_of(covariance_type)).fit(near)
    fit = federated(covariance_type, **params, **start_of(covariance_type, shift=1e6)).fit(far)
    assert_allclose(fit.means_ - 1e6, expected.means_, rtol=0, atol=8 * spacing)
    assert_allclose(fit.weights_, expected.weights_, rtol=1e-9)
    assert_allclose(fit.covariances_, expected.covariances_, rtol=1e-9, atol=1e-9)
    assert_allclose(fit.lower_bounds_, expected.lower_bounds_, rtol=1e-9)
    # Prediction sees means that are off by the spacing, about 1e-9 of a standard deviation.
    assert_allclose(fit.score_samples(far[2]), expected.score_samples(near[2]), atol=1e-8)
    assert_allclose(fit.predict_proba(far[2]), expected.predict_proba(near[2]), atol=1e-8)


@pytest.mark.parametrize("scale", [1e-4, 1e-11, 1e-30])
@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag"])
def test_a_feature_that_reg_covar_drowns_takes_nothing_from_the_others(covariance_type, scale):
    # Correlated with the first one. What is added to its variance may be any number of times that.
    clients = [np.column_stack([rows, rows @ [scale, 0.5 * scale]]) for rows in ragged_clients()]
    precisions = np.diag([1.0, 0.2, 1e6])
    start = {
        **start_of("full"),
        "means_init": [[1.0, -7.0, 0.0], [3.0, -3.0, 0.0]],
        "precisions_init": {
            "full": np.stack([precisions, precisions]),
            "tied": precisions,
            "diag": np.diagonal([precisions] * 2, axis1=1, axis2=2),
        }[covariance_type],
        "max_iter": 20,
    }
    fit = federated(covariance_type, **start).fit(clients)
    pooled = GaussianMixture(2, covariance_type=covariance_type, tol=0.0, **start)
    pooled.fit(np.concatenate(clients))
    assert_same_fit(fit, pooled, names=("weights_", "means_", "covariances_"))
    assert isclose(fit.score(clients), pooled.score(np.concatenate(clients)), rel_tol=1e-8)


@every_covariance_type
@pytest.mark.parametrize("omega", [0.0, 1.0])
def test_a_feature_whose_variance_floats_cannot_hold_is_a_constant_one(covariance_type, omega):
    clients = ragged_clients()
    fit = federated(covariance_type, omega=omega, max_iter=20)
    constant = clone(fit).fit([rows * [1.0, 0.0] for rows in clients])
    assert_same_fit(fit.fit([rows * [1.0, 1e-158] for rows in clients]), constant)
    fit.fit([rows * 1e-158 for rows in clients])
    for name in (*FITTED, "client_drift_"):
        assert np.isfinite(getattr(fit, name)).all()


@pytest.mark.parametrize("setting", ["exact", "rough"])
@every_covariance_type
def test_units_of_the_features_change_nothing_but_units(covariance_type, setting):
    # Also for noisy rounds: what travels is in standard units, and the draws are the same.
    params = {"max_iter": 12, "reg_covar": 0.0}
    if setting == "rough":
        params.update(omega=0.5, participation=0.7, batch_size=5, step_size=0.05)
    units = np.array([1e-3, 1e-3]) if covariance_type == "spherical" else np.array([1e-4, 250.0])
    shift = np.array([7.0, -30.0])
    clients = ragged_clients()
    start = start_of(covariance_type)
    squared = {"spherical": units[0] ** 2, "diag": units**2}
    start_moved = {
        "weights_init": start["weights_init"],
        "means_init": start["means_init"] * units + shift,
        "precisions_init": start["precisions_init"]
        / squared.get(covariance_type, np.outer(units, units)),
    }
    expected = federated(covariance_type, **params, **start).fit(clients)
    moved = [rows * units + shift for rows in clients]
    fit = federated(covariance_type, **params, **start_moved).fit(moved)
    squares = squared.get(covariance_type, np.outer(units, units))
    assert_allclose(fit.weights_, expected.weights_, rtol=1e-8)
    # 7 and 30 are 1e5 of the small unit: the means, and the rows, lose five digits of sixteen.
    assert_allclose((fit.means_ - shift) / units, expected.means_, rtol=1e-8)
    assert_allclose(fit.covariances_ / squares, expected.covariances_, rtol=1e-8)
    log_units = np.log(units).sum()
    assert_allclose(fit.lower_bounds_, np.array(expected.lower_bounds_) - log_units, rtol=1e-8)


@pytest.mark.parametrize("covariance_type", ["full", "tied"])
def test_a_turn_of_the_axes_turns_the_fit(covariance_type):
    turn = np.array([[0.6, -0.8], [0.8, 0.6]]) @ np.diag([1.0, 2.0])
    clients, start = ragged_clients(), start_of(covariance_type)
    inverse = np.linalg.inv(turn)
    turned = {
        "weights_init": start["weights_init"],
        "means_init": start["means_init"] @ turn.T,
        "precisions_init": inverse.T @ start["precisions_init"] @ inverse,
    }
    params = {"max_iter": 12, "reg_covar": 0.0}
    expected = federated(covariance_type, **params, **start).fit(clients)
    fit = federated(covariance_type, **params, **turned).fit([rows @ turn.T for rows in clients])
    assert_allclose(fit.weights_, expected.weights_, rtol=1e-8)
    assert_allclose(fit.means_, expected.means_ @ turn.T, rtol=1e-8)
    assert_allclose(fit.covariances_, turn @ expected.covariances_ @ turn.T, rtol=1e-8)


@every_covariance_type
def test_float32_rows_give_the_fit_of_the_same_numbers_in_float64(covariance_type):
    clients = [rows.astype(np.float32) for rows in ragged_clients()]
    params = {"max_iter": 10, **start_of(covariance_type)}
    low = federated(covariance_type, **params).fit(clients)
    high = federated(covariance_type, **params).fit([rows.astype(np.float64) for rows in clients])
    assert_same_fit(low, high, rtol=1e-12)
    assert low.means_.dtype == np.float64


@every_covariance_type
def test_uniform_weights_are_those_of_clients_resampled_to_equal_size(covariance_type):
    # Rows of clients with 12, 6, 4 and 3 rows, repeated until each has 12.
    clients = ragged_clients((12, 6, 4, 3))
    repeated = [np.repeat(rows, 12 // len(rows), axis=0) for rows in clients]
    params = {"max_iter": 10, "reg_covar": 1e-3, **start_of(covariance_type)}
    uniform = federated(covariance_type, client_weights="uniform", **params).fit(clients)
    by_rows = federated(covariance_type, client_weights="n_samples", **params).fit(repeated)
    assert_same_fit(uniform, by_rows)
    assert_allclose(uniform.lower_bounds_, by_rows.lower_bounds_, rtol=1e-10)
    pooled = federated(covariance_type, client_weights="n_samples", **params).fit(clients)
    assert np.abs(pooled.means_ - uniform.means_).max() > 1e-3


def test_naive_fedem_through_the_estimator_has_no_drift():
    fit = federated(
        "diag", omega=1.0, control_step=0, control_init="zeros", max_iter=5, step_size=0.1
    ).fit(ragged_clients())
    assert_array_equal(fit.client_drift_, 0.0)
    fit.set_params(control_init="field").fit(ragged_clients())
    assert (fit.client_drift_ > 0).all()


# ---- sizes that doubles cannot square


@pytest.mark.parametrize("init_params", ["kmeans", "k-means++", "random"])
@pytest.mark.parametrize(
    ("size", "weight"), [(1e100, 1e149), (1e140, 1e-148), (1e-120, 1e-148), (1e-130, 1e149)]
)
def test_units_of_rows_and_of_weights_change_nothing_together(init_params, size, weight):
    clients = ragged_clients()
    weights = [np.linspace(1, 2, len(rows)) for rows in clients]
    gm = FederatedGaussianMixture(
        2, init_params=init_params, reg_covar=0.0, max_iter=5, tol=0.0, random_state=0
    )
    plain = clone(gm).fit(clients, sample_weight=weights)
    gm.fit([rows * size for rows in clients], sample_weight=[own * weight for own in weights])
    assert_allclose(gm.means_ / size, plain.means_, rtol=1e-8)
    assert_allclose(gm.weights_, plain.weights_, rtol=1e-8)


@every_covariance_type
@pytest.mark.parametrize("size", [1e-150, 1e-300])
def test_numbers_too_small_to_square_are_to_be_multiplied(covariance_type, size):
    gm = FederatedGaussianMixture(2, covariance_type=covariance_type, reg_covar=0.0)
    says = "above 1e-145.* in column 0.*Multiply such a feature by a power of ten"
    with pytest.raises(ValueError, match=says):
        gm.fit([rows * size for rows in ragged_clients()])
