"""Fixtures of the displays: matplotlib without a screen, and small fits."""

import pytest
from sklearn.base import clone

from displays import counts_of_clients, rows_of_clients
from skfedem import (
    FederatedGaussianMixture,
    FederatedMatrixImputer,
    FederatedNonlinearMixedEffects,
)
from skfedem.datasets import load_theophylline
from skfedem.pharmacokinetics import one_compartment_oral


@pytest.fixture
def pyplot():
    """matplotlib without a screen; figures are closed afterwards."""
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    yield plt
    plt.close("all")


@pytest.fixture(scope="module")
def mixtures():
    """Runs with evaluations here and there, of unlike lengths in epochs and bits."""
    gm = FederatedGaussianMixture(3, omega=1.0, participation=0.7, max_iter=25, tol=0, eval_every=4)
    clients = rows_of_clients()
    with pytest.warns(Warning, match="Not converged"):
        return [clone(gm).set_params(random_state=seed).fit(clients) for seed in range(3)]


@pytest.fixture(scope="module")
def imputer():
    model = FederatedMatrixImputer(2, family="poisson", penalty=2.0, random_state=0)
    return model.fit(counts_of_clients())


@pytest.fixture(scope="session")
def theophylline():
    return load_theophylline().data


@pytest.fixture(scope="session")
def population(theophylline):
    start = {"ka": 1.5, "V": 30.0, "CL": 2.5}
    model = FederatedNonlinearMixedEffects(one_compartment_oral, start, n_nodes=3, tol=0.01)
    return model.fit(theophylline)
