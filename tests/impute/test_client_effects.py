"""Effects of clients, such as the skill of observers: against an independent optimiser."""

import re

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import optimize, stats
from sklearn.base import clone

from observers import (
    FAMILIES,
    N_CLIENTS,
    SHAPE,
    J,
    L,
    exact,
    optimum,
    slopes,
    theta_of,
    triplets,
)
from skfedem import FederatedMatrixImputer, FederatedMatrixImputerCV

NOISY = dict(omega=1.0, participation=0.75, random_state=1)
every_family = pytest.mark.parametrize("family", FAMILIES)


# ---- optima


@pytest.mark.parametrize("noise", [{}, NOISY], ids=["exact", "noisy"])
@every_family
def test_effects_alone_are_the_joint_optimum(family, noise):
    imputer = exact(family, **noise).fit(triplets(family), shape=SHAPE)
    theta, effects, objective = optimum(family, 1.5)
    assert_allclose(theta_of(imputer), theta, atol=1e-5)
    assert_allclose(imputer.client_effects_, effects, atol=1e-5)
    assert_allclose(imputer.objective_, objective, rtol=1e-9)
    assert imputer.converged_
    assert abs(imputer.client_effects_.sum()) < 1e-6


def test_gaussian_effects_are_a_ridge_regression():
    tables = triplets("gaussian")
    imputer = exact("gaussian", effects_penalty=0.3).fit(tables, shape=SHAPE)
    for client, own in enumerate(tables):
        residuals = own[:, 2] - theta_of(imputer)[own[:, 0].astype(int), own[:, 1].astype(int)]
        mean = residuals.sum() / (len(own) + 1.5)
        assert_allclose(imputer.client_effects_[client], mean, atol=1e-9)


@pytest.mark.parametrize("noise", [{}, NOISY], ids=["exact", "noisy"])
@every_family
def test_the_low_rank_part_satisfies_its_optimality_conditions(family, noise):
    penalty, tables = 1.2, triplets(family)
    imputer = exact(family, None, penalty=penalty, **noise).fit(tables, shape=SHAPE)
    theta, gradient, of_clients = theta_of(imputer), np.zeros(SHAPE), np.zeros(N_CLIENTS)
    for client, own in enumerate(tables):
        cells = own[:, 0].astype(int), own[:, 1].astype(int)
        slope = slopes(family, own[:, 2], theta[cells] + imputer.client_effects_[client])
        np.add.at(gradient, cells, slope)
        of_clients[client] = slope.sum()
    # Rounds stop at a relative change of the objective of 1e-12, distances at its root.
    left, right = imputer.row_factors_, imputer.column_factors_
    assert 0 < len(imputer.singular_values_) < L
    assert_allclose(left.T @ gradient @ right, penalty * np.eye(left.shape[1]), atol=1e-3)
    rest = gradient - left @ (left.T @ gradient)
    assert np.linalg.norm(rest, 2) <= penalty * (1 + 1e-3)
    assert_allclose(of_clients, 1.5 * imputer.client_effects_, atol=1e-3)
    assert_allclose(gradient.sum(axis=1), 0.1 * imputer.row_effects_, atol=1e-3)


@every_family
def test_a_huge_penalty_is_a_fit_without_effects(family):
    tables = triplets(family)
    imputer = exact(family, 1, client_effects_penalty=1e10, penalty=2.0).fit(tables, shape=SHAPE)
    without = clone(imputer).set_params(client_effects_penalty=None).fit(tables, shape=SHAPE)
    assert_allclose(imputer.fitted_mean(), without.fitted_mean(), rtol=1e-4)
    assert_allclose(imputer.client_effects_, 0, atol=1e-6)
    assert_allclose(imputer.dispersion_, without.dispersion_, rtol=1e-4)
    assert without.client_effects_ is None and without.client_effects_penalty_ is None


def test_without_a_penalty_the_mean_effect_is_0():
    rng = np.random.default_rng(0)
    tables = [rng.integers(1, 9, (3, 3)) % (20, 9, 99) for _ in range(400)]
    for effects in ("both", "rows"):
        imputer = FederatedMatrixImputer(
            0, family="poisson", effects=effects, effects_penalty=1.0, client_effects_penalty=0
        )
        assert abs(imputer.fit(tables, shape=(20, 9)).client_effects_.mean()) < 1e-12


@every_family
def test_equal_observers_have_the_largest_penalty(family):
    one = triplets(family)[0]
    imputer = exact(family, client_effects_penalty="auto").fit([one] * 5, shape=SHAPE)
    assert imputer.client_effects_penalty_ == pytest.approx(1e6)
    assert_allclose(imputer.client_effects_, 0, atol=1e-5)


def test_an_observer_without_any_bird_has_a_finite_effect():
    for penalty in (0, 1e-3, "auto"):
        imputer = exact(client_effects_penalty=penalty).fit(triplets(), shape=SHAPE)
        assert np.isfinite(imputer.client_effects_).all()
        assert imputer.client_effects_.argmin() == N_CLIENTS - 1


def test_clients_without_cells_have_no_effect():
    empty = np.empty((0, 3))
    with pytest.warns(UserWarning, match="no observed cell|without"):
        imputer = exact().fit([empty, *triplets(), empty], shape=SHAPE)
    assert_array_equal(imputer.client_effects_[[0, -1]], 0)
    assert_allclose(imputer.client_effects_[1:-1], optimum("poisson", 1.5)[1], atol=1e-5)


def test_minibatches_and_few_clients_end_where_exact_rounds_do():
    want = exact(rank=1, penalty=2.0).fit(triplets(), shape=SHAPE)
    noise = dict(solver="vr_fedem", batch_size=5, random_state=0, participation=4, tol=1e-9)
    imputer = exact(rank=1, penalty=2.0, **noise).fit(triplets(), shape=SHAPE)
    assert_allclose(imputer.objective_, want.objective_, rtol=1e-4)
    assert_allclose(imputer.client_effects_, want.client_effects_, atol=0.02)


def test_steps_are_safe_where_many_observers_share_a_cell():
    X = np.random.default_rng(0).normal(size=(20, J, L)) + np.ones((J, 1)) * np.arange(L)
    imputer = exact("gaussian", 2, step_size=1.0, penalty=3.0, tol=1e-8).fit(X)
    assert imputer.history_["safeguarded"].sum() == 0


# ---- the penalty


def test_the_automatic_penalty_is_restricted_maximum_likelihood():
    """The likelihood of all observations, from which everything else was integrated out."""
    tables = triplets("gaussian")
    sites, months, values = np.concatenate(tables).T
    client = np.repeat(np.arange(N_CLIENTS), [len(own) for own in tables])
    rows, columns = np.eye(J)[sites.astype(int)], np.eye(L)[months.astype(int)]
    known = np.eye(len(values)) + (rows @ rows.T + columns @ columns.T) / 0.1
    known += 1e6  # the variance of the intercept, which has no penalty

    def loss(log_penalty):
        own = np.equal.outer(client, client) / np.exp(log_penalty)
        return -stats.multivariate_normal.logpdf(values, np.zeros(len(values)), known + own)

    best = optimize.minimize_scalar(loss, bounds=(-3, 5), method="bounded").x
    imputer = exact("gaussian", client_effects_penalty="auto").fit(tables, shape=SHAPE)
    assert_allclose(np.log(imputer.client_effects_penalty_), best, atol=1e-3)


@pytest.mark.parametrize("family", ["bernoulli", "poisson", "negative_binomial"])
def test_the_automatic_penalty_is_near_the_inverse_variance_of_many_observers(family):
    rng = np.random.default_rng(0)
    effects = rng.normal(0, 0.8, 100)
    shape, theta = (12, 10), rng.normal(1, 0.5, (12, 1)) + rng.normal(0, 0.3, 10)
    means = np.exp(theta + effects[:, None, None])
    X = rng.poisson(means * (rng.gamma(2, 0.5, means.shape) if "neg" in family else 1.0)) * 1.0
    X = (rng.random(X.shape) < means / (1 + means)) * 1.0 if family == "bernoulli" else X
    X[rng.random(X.shape) < 0.4] = np.nan
    imputer = FederatedMatrixImputer(0, family=family, client_effects_penalty="auto").fit(X)
    assert 0.7 < imputer.client_effects_penalty_ * effects.var() < 1.5
    assert np.corrcoef(imputer.client_effects_, effects)[0, 1] > 0.85
    assert imputer.fitted_mean().shape == shape


def test_equal_observers_have_hardly_any_effects():
    X = np.random.default_rng(0).poisson(5.0, (8, 20, 10))
    imputer = exact(client_effects_penalty="auto").fit(X)
    assert imputer.client_effects_penalty_ > 100
    assert_allclose(imputer.client_effects_, 0, atol=0.05)


# ---- what they are for


def test_a_trend_without_better_observers_is_no_trend():
    """Observers of factors from 0.3 to 3 follow each other, the better ones later."""
    rng = np.random.default_rng(3)
    sites, years, n = 40, 15, 24
    theta = rng.normal(2.5, 0.7, (sites, 1)) - 0.03 * np.arange(years)
    factors, X = np.geomspace(0.3, 3, n), np.full((n, sites, years), np.nan)
    for observer, factor in enumerate(factors):
        begin = observer * (years - 5) // n
        for site in rng.choice(sites, 10, replace=False):
            cells = site, slice(begin, begin + 6)
            X[observer][cells] = rng.poisson(factor * np.exp(theta[cells]))
    X[0][:, -1] = rng.poisson(factors[0] * np.exp(theta[:, -1]))  # until the last year
    slope = {}
    for penalty in (None, "auto"):
        imputer = FederatedMatrixImputer(
            0, family="poisson", effects_penalty=0, client_effects_penalty=penalty
        ).fit(list(X))
        log_totals = np.log(imputer.fitted_mean().sum(axis=0))
        slope[penalty] = np.polyfit(np.arange(years), log_totals, 1)[0]
    assert slope[None] > 0.05  # instead of -0.03
    assert_allclose(slope["auto"], -0.03, atol=0.015)
    skill = imputer.client_effects_ - imputer.client_effects_.mean()
    assert_allclose(skill, np.log(factors) - np.log(factors).mean(), atol=0.25)


# ---- messages


def test_messages_are_counted():
    imputer = exact(rank=1, penalty=2.0).fit(triplets(), shape=SHAPE)
    without = clone(imputer).set_params(client_effects_penalty=None).fit(triplets(), shape=SHAPE)
    named, others = (
        {own.name: own for own in fit.setup_messages_ if own.name != "theta"}
        for fit in (imputer, without)
    )
    assert {*named} - {*others} == {"client_sums"}
    assert named["client_sums"].uplink_bits == 64 * N_CLIENTS
    uplink, downlink = (
        imputer.history_[name][1:5] - without.history_[name][1:5]
        for name in ("uplink_bits", "downlink_bits")
    )
    assert_array_equal(uplink, 0)
    # θ in its cells includes the effect; all factors and effects do not.
    all_numbers = 1 + J + L
    lengths = [len(np.unique(own[:, :2], axis=0)) for own in triplets()]
    n_told = sum(own > all_numbers for own in lengths)
    assert downlink[0] in (0, 64 * n_told)


# ---- refusals

BAD = [
    (dict(client_effects_penalty=-1.0), {}, "client_effects_penalty"),
    (dict(client_effects_penalty="none"), {}, "client_effects_penalty"),
    (dict(effects="none"), {}, "effects='none'"),
    (dict(rows="disjoint"), {}, "rows='disjoint'"),
]


@pytest.mark.parametrize("estimator", [FederatedMatrixImputer, FederatedMatrixImputerCV])
@pytest.mark.parametrize(("settings", "arguments", "message"), BAD)
def test_bad_parameters(estimator, settings, arguments, message):
    settings = dict(client_effects_penalty=1.0) | settings
    X = [np.ones(SHAPE), np.ones(SHAPE)]
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        estimator(**settings).fit(X, **arguments)
    with pytest.raises((TypeError, ValueError), match="client_effects_penalty"):
        estimator(**settings).fit(pd.DataFrame(X[0]), clients=np.arange(J) % 3)
