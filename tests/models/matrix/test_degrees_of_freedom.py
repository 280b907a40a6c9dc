"""Effective numbers of parameters: against formulas, derivatives, and simulated dispersions."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from skfedem import FederatedMatrixImputer
from skfedem._data.cells import read_cells
from skfedem._parallel import Workers
from skfedem.clients.local import LocalClients
from skfedem.models.matrix.degrees_of_freedom import effective_parameters
from skfedem.models.matrix.families import FAMILIES
from skfedem.models.matrix.main_effects import fit_effects
from skfedem.models.matrix.proximal import Iterate
from skfedem.models.matrix.start import cell_federation, low_rank_model
from skfedem.models.matrix.theta import LowRank, low_rank_at


def fit(X, **settings):
    settings = dict(rank=None, tol=1e-14, max_iter=5000) | settings
    return FederatedMatrixImputer(**settings).fit(X)


def effective(X, imputer):
    """Effective number of parameters of a fit of one client."""
    data = read_cells(imputer, X, family=FAMILIES[imputer.family])
    with Workers(1) as workers:
        clients = LocalClients(cell_federation(data, "n_samples"), workers)
        pooled = low_rank_model(imputer, clients, data.shape).pooled
    low_rank = LowRank(imputer.row_factors_, imputer.singular_values_, imputer.column_factors_)
    values = low_rank_at(low_rank, data.rows, data.columns)
    start = imputer._theta().minus(data.origin).effects
    effects, theta, _ = fit_effects(pooled, values, start)
    iterate = Iterate(low_rank, values, effects, theta, None)
    return effective_parameters(pooled, iterate, data.counts * (data.values - data.origin))


def table(seed=0, shape=(9, 6), share=1.0):
    rng = np.random.default_rng(seed)
    X = 1.5 * rng.normal(size=(shape[0], 2)) @ rng.normal(size=(2, shape[1]))
    X += rng.normal(size=shape)
    return np.where(rng.random(shape) < share, X, np.nan)


@pytest.mark.parametrize("penalty", [0.5, 2.0, 4.0])
def test_complete_gaussian_matrices(penalty):
    # Candès, Sing-Long and Trzasko (2013), equation 9.
    X = table()
    imputer = fit(X, effects="none", penalty=penalty)
    values = np.linalg.svd(X, compute_uv=False)
    kept = values > penalty
    want = (kept * (1 + (9 - 6) * (1 - penalty / values))).sum()
    gaps = values[:, None] ** 2 - values**2 + np.eye(6)
    pairs = (values * np.maximum(values - penalty, 0))[:, None] / gaps
    want += 2 * (pairs * (1 - np.eye(6))).sum()
    assert_allclose(effective(X, imputer).divergence, want, rtol=1e-4)


def test_divergence_of_the_fitted_values_with_missing_cells():
    X = table(1, shape=(5, 4), share=0.8)
    settings = dict(penalty=1.5, effects_penalty=0.5)
    imputer, step, trace = fit(X, **settings), 1e-4, 0.0
    for cell in np.argwhere(~np.isnan(X)):
        moved = []
        for sign in (1, -1):
            nearby = X.copy()
            nearby[tuple(cell)] += sign * step
            moved.append(fit(nearby, **settings).fitted_mean()[tuple(cell)])
        trace += (moved[0] - moved[1]) / (2 * step)
    assert_allclose(effective(X, imputer).divergence, trace, rtol=2e-3)


@pytest.mark.parametrize(("family", "penalty"), [("gaussian", 2.0), ("poisson", 5.0)])
def test_simulated_dispersion_is_nearly_one(family, penalty):
    rng = np.random.default_rng(0)
    theta = 1.5 + 0.6 * rng.normal(size=(25, 2)) @ rng.normal(size=(2, 14))
    dispersions = []
    for _ in range(8):
        X = rng.normal(theta) if family == "gaussian" else rng.poisson(np.exp(theta)) * 1.0
        X[rng.random(X.shape) < 0.3] = np.nan
        dispersions.append(fit(X, family=family, penalty=penalty, tol=1e-7).dispersion_)
    # Nine factors, whose parameters are more than the cells; the penalty's bias remains.
    assert 0.9 < np.mean(dispersions) < 1.25


def test_many_parameters_are_counted():
    X = table(2, shape=(1600, 3))
    assert effective(X, fit(X, rank=1, tol=1e-4)) is None
    assert np.isfinite(fit(X, rank=1, tol=1e-4).dispersion_)
