"""Searches for rank and penalty: clients, and quick settings."""

import numpy as np
import pytest

from skfedem import FederatedMatrixImputer
from skfedem._data.cells import read_cells
from skfedem.models.matrix.families import FAMILIES

SHAPE = (14, 9)
every_family = pytest.mark.parametrize("family", FAMILIES)
# For what depends neither on how far fits go nor on which penalties on the effects are tried.
QUICK = {"effects_penalties": [0.1], "n_splits": 2, "tol": 1e-2, "random_state": 0}


def clients_of(family="gaussian", n_clients=4, share=0.35, seed=0):
    """Matrices with missing cells; several clients may have seen one."""
    rng = np.random.default_rng(seed)
    low_rank = rng.normal(size=(SHAPE[0], 2)) @ rng.normal(size=(2, SHAPE[1]))
    mean = FAMILIES[family].mean(0.5 + 0.7 * low_rank)
    clients = []
    for _ in range(n_clients):
        values = {
            "gaussian": lambda: mean + rng.normal(size=SHAPE),
            "bernoulli": lambda: rng.binomial(1, mean).astype(float),
            "poisson": lambda: rng.poisson(mean).astype(float),
        }[family]()
        clients.append(np.where(rng.random(SHAPE) < share, values, np.nan))
    return clients


def observed_by(clients, family="gaussian"):
    imputer = FederatedMatrixImputer(effects="none")
    return read_cells(imputer, clients, family=FAMILIES[family], keep_observations=True)


class Recorder(FederatedMatrixImputer):
    """Keeps what was fitted, as others look on."""

    fits = []

    def fit(self, X, y=None, **data):
        super().fit(X, **data)
        self.fits.append({**self.get_params(), "objective": self.objective_})
        return self
