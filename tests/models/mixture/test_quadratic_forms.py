"""Mixtures of wide rows: products of features are summed without being written out."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.mixture import GaussianMixture

from problems import mixture_model, mixture_parameters, quiet_fit, stack
from skfedem import FederatedGaussianMixture
from skfedem.models.mixture import quadratic_forms

N_COMPONENTS, N_FEATURES = 2, 20
LENGTHS = [9, 1, 30, 9, 40]


@pytest.fixture
def federation():
    generator = np.random.default_rng(0)
    mixing = generator.standard_normal((N_FEATURES, N_FEATURES))
    return stack([generator.standard_normal((n, N_FEATURES)) @ mixing + 5 for n in LENGTHS])


@pytest.fixture
def models(federation):
    """A wide model, and the same with products that are written out."""
    narrow = mixture_model(federation, "full", N_COMPONENTS)
    return replace(narrow, has_quadratic_forms=True), narrow


@pytest.mark.parametrize("of_each", [False, True], ids=["one parameter", "one of each client"])
@pytest.mark.parametrize("weighted", [False, True])
def test_expectations_are_those_of_products_that_are_written_out(
    models, federation, of_each, weighted
):
    parameters = [mixture_parameters(models[1], seed).natural for seed in range(len(LENGTHS))]
    natural = np.array(parameters) if of_each else parameters[0]
    weights = np.random.default_rng(1).random(sum(LENGTHS)) if weighted else None
    found, expected = (
        model.expectation(natural, model.features(federation.rows), federation.lengths, weights)
        for model in models
    )
    # Sums of products of numbers of size 1, in another order.
    assert_allclose(found.statistics, expected.statistics, rtol=1e-10, atol=1e-11)
    assert_allclose(found.log_likelihood, expected.log_likelihood, rtol=1e-11)


@pytest.mark.parametrize(
    ("n_clients", "batch_size", "has_quadratic_forms"),
    [(5, None, True), (5, 19, False), (99, None, False)],
)
def test_rows_are_those_that_a_client_reads_in_a_round(n_clients, batch_size, has_quadratic_forms):
    X, start = digits()
    gm = FederatedGaussianMixture(**start, max_iter=1, batch_size=batch_size)
    gm = quiet_fit(gm, np.array_split(X[:1000], n_clients))
    assert gm._memory.model.has_quadratic_forms is has_quadratic_forms


def digits():
    """Rows of 24 features, and where a fit of two components begins."""
    X = PCA(24, random_state=0).fit_transform(load_digits().data)
    means = X[[0, 1]]
    start = {
        "weights_init": [0.5, 0.5],
        "means_init": means,
        "precisions_init": [np.eye(24) / 50] * 2,
    }
    return X, {"n_components": 2, "random_state": 0, **start}


def test_a_wide_fit_is_that_of_scikit_learn():
    X, start = digits()
    settings = {**start, "tol": 0, "max_iter": 30}
    ours = quiet_fit(FederatedGaussianMixture(**settings), np.array_split(X, [100, 101, 900]))
    theirs = quiet_fit(GaussianMixture(**settings), X)
    assert ours._memory.model.has_quadratic_forms
    assert_allclose(ours.means_, theirs.means_, rtol=1e-8, atol=1e-8)
    assert_allclose(ours.covariances_, theirs.covariances_, rtol=1e-7, atol=1e-7)
    assert_allclose(ours.lower_bound_, theirs.lower_bound_, rtol=1e-10)


@pytest.mark.parametrize("solver", ["fedem", "vr_fedem"])
def test_wide_rounds_are_those_of_products_that_are_written_out(solver, monkeypatch):
    X, start = digits()
    settings = {"omega": 1.0, "participation": 0.7, "batch_size": 20, "max_iter": 12, "tol": 0}
    gm = FederatedGaussianMixture(solver=solver, **start, **settings)
    wide = quiet_fit(gm, np.array_split(X, 7))
    assert wide._memory.model.has_quadratic_forms
    faster = quadratic_forms._FASTER._replace(features=25)
    monkeypatch.setattr(quadratic_forms, "_FASTER", faster)
    means, covariances = wide.means_, wide.covariances_
    narrow = quiet_fit(gm, np.array_split(X, 7))
    # Rounding, which messages and steps carry on.
    assert_allclose(means, narrow.means_, rtol=1e-8, atol=1e-8)
    assert_allclose(covariances, narrow.covariances_, rtol=1e-7, atol=1e-7)
