"""For the tests of the imputer: counts of four observers in many forms, parameters, checks of fits.

The data are many tests': none of them may write into them.
"""

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import coo_array

N_ROWS, N_COLUMNS = SHAPE = (12, 8)
N_CLIENTS = 4
NAN = np.nan
FITTED = (
    "row_factors_",
    "singular_values_",
    "column_factors_",
    "row_effects_",
    "column_effects_",
    "intercept_",
    "objective_",
    "client_drift_",
)
EXACT = {"rank": 4, "family": "poisson", "penalty": 2.0, "random_state": 0}
# For what does not depend on how far a fit goes.
QUICK = {**EXACT, "tol": 1e-2}
# Random in every way at once; enough rounds to converge.
STOCHASTIC = {
    **EXACT,
    "solver": "vr_fedem",
    "omega": 1.0,
    "participation": 0.75,
    "batch_size": 5,
    "tol": 1e-4,
    "max_iter": 2000,
}
FAMILIES = ("gaussian", "bernoulli", "poisson")
every_family = pytest.mark.parametrize("family", FAMILIES)


def make_clients(n_clients=N_CLIENTS, share=0.4, seed=0):
    """Counts of several observers, read-only, so that no fit may change them."""
    generator = np.random.default_rng(seed)
    theta = 1 + 0.5 * generator.standard_normal(N_ROWS)[:, None]
    theta = theta + 0.6 * np.outer(
        generator.standard_normal(N_ROWS), generator.standard_normal(N_COLUMNS)
    )
    clients = []
    for _ in range(n_clients):
        counts = generator.poisson(np.exp(theta)).astype(float)
        counts[generator.random(SHAPE) > share] = NAN
        counts.setflags(write=False)
        clients.append(counts)
    return clients


CLIENTS = make_clients()
SEEN = [~np.isnan(client) for client in CLIENTS]
STACKED = np.concatenate(CLIENTS)
OWNERS = np.repeat(["ann", "bob", "cid", "dan"], N_ROWS)
SITES, MONTHS = [f"site {j}" for j in range(N_ROWS)], [f"month {k}" for k in range(N_COLUMNS)]
FRAMES = [pd.DataFrame(client, SITES, MONTHS) for client in CLIENTS]
SPARSE = [
    coo_array((client[seen], np.nonzero(seen)), shape=SHAPE)
    for client, seen in zip(CLIENTS, SEEN, strict=True)
]
TRIPLETS = [np.column_stack([cells.row, cells.col, cells.data]) for cells in SPARSE]
NOTHING = np.full(SHAPE, NAN)


def of_family(family, clients=CLIENTS):
    if family == "bernoulli":
        return [np.where(np.isnan(client), NAN, client > 2) for client in clients]
    return clients


def observed(clients, fitted):
    """Observations of all clients, and the fitted values in their cells."""
    seen = [~np.isnan(client) for client in clients]
    values = [client[own] for client, own in zip(clients, seen, strict=True)]
    return np.concatenate(values), np.concatenate([fitted[own] for own in seen])


def assert_finite(imputer):
    for name in FITTED:
        assert np.isfinite(getattr(imputer, name)).all(), name
    assert np.isfinite(imputer.fitted_mean()).all()
    for name in ("round", "epoch", "n_active", "uplink_bits", "downlink_bits", "singular_values"):
        assert np.isfinite(imputer.history_[name]).all(), name
