"""Small fits of all kinds of estimators, deployed and simulated."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from deployed import tables_of
from skfedem import (
    FederatedGaussianMixture,
    FederatedMatrixImputer,
    FederatedMLPClassifier,
    FederatedNonlinearMixedEffects,
)
from skfedem.datasets import load_theophylline, make_site_counts
from skfedem.pharmacokinetics import one_compartment_oral

NOISY = {"omega": 1.0, "participation": 0.7}


class Case(NamedTuple):
    """What a fit needs.

    Attributes
    ----------
    estimator : estimator
    tables : list
        Those of the clients.
    server, own : dict
        Further arguments of ``Server``, and of each client's ``Client``.
    simulated : callable
        The fit of the simulation.
    """

    estimator: Any
    tables: list[Any]
    server: dict[str, Any]
    own: dict[str, list[Any]]
    simulated: Callable[[], Any]


def mixture(seed, *, n_clients=4, weighted=False, **parameters):
    estimator = FederatedGaussianMixture(
        2, **{"tol": 1e-8, "max_iter": 12, "random_state": seed, **parameters}
    )
    tables = tables_of(n_clients, seed=seed)
    own = {"sample_weight": [1.0 + np.arange(len(k)) % 3 for k in tables]} if weighted else {}
    return Case(estimator, tables, {}, own, lambda: estimator.fit(tables, **own))


def network(seed, *, n_clients=4, **parameters):
    """Classifier of rows on two sides of a line."""
    estimator = FederatedMLPClassifier(
        (3,), **{"batch_size": 8, "max_iter": 20, "random_state": seed, **NOISY, **parameters}
    )
    tables = [np.round(own, 3) for own in tables_of(n_clients, seed=seed)]  # as in files
    X = [pd.DataFrame(rows, columns=["u", "v"]) for rows in tables]
    y = [(own["u"] + own["v"] > 3).astype(int) for own in X]
    tables = [own.assign(label=labels) for own, labels in zip(X, y, strict=True)]
    return Case(estimator, tables, {"target": "label"}, {}, lambda: estimator.fit(X, y))


def imputer(seed, *, n_clients=4, efforts=False, **parameters):
    """Imputer that keeps its memory, so that V can be checked."""
    options = {"family": "poisson", "penalty": 1.0, "max_iter": 12, "warm_start": True}
    estimator = FederatedMatrixImputer(1, random_state=seed, **{**options, **NOISY, **parameters})
    data = make_site_counts(
        n_sites=8, n_months=5, n_clients=n_clients, observed=0.5, random_state=seed
    )
    shape = {"shape": data.shape}
    own = {"offset": [0.1 * np.arange(len(k)) for k in data.clients]} if efforts else {}
    return Case(
        estimator, data.clients, shape, own, lambda: estimator.fit(data.clients, **shape, **own)
    )


def population(seed, **parameters):
    """Theophylline at four sites."""
    start = {"ka": 1.0, "V": 20.0, "CL": 0.5}
    options = {"max_iter": 6, "random_state": seed, **NOISY, **parameters}
    estimator = FederatedNonlinearMixedEffects(one_compartment_oral, start, **options)
    table = load_theophylline().data
    sites = (np.asarray(table["id"]) - 1) % 4
    tables = [{name: np.asarray(table[name])[sites == k] for name in table} for k in range(4)]
    return Case(estimator, tables, {}, {}, lambda: estimator.fit(tables))


def assert_same_fit(got, want):
    """Fitted attributes, the history, and V and V_i where the server knows them, are equal."""
    for name, value in vars(want).items():
        if name.endswith("_") and name != "client_ids_":
            np.testing.assert_equal(getattr(got, name), value, err_msg=name)
    controls = [fit._memory.server.control for fit in (got, want)]
    np.testing.assert_array_equal(*controls)
    np.testing.assert_array_equal(got._memory.controls, want._memory.controls)


CASES = {
    "EM": mixture,
    "FedEM": partial(mixture, **NOISY),
    "VR-FedEM": partial(mixture, solver="vr_fedem", batch_size=4, **NOISY),
    "weights": partial(mixture, weighted=True, **NOISY),
    "network": network,
    "SCAFFOLD": partial(network, control_variates=True, omega=0.0),
    "imputer": imputer,
    "efforts": partial(imputer, efforts=True, solver="vr_fedem", batch_size=4),
    "negative binomial": partial(imputer, family="negative_binomial", penalty="auto"),
    "population": population,
    "chains": partial(
        population, e_step="mcmc", max_iter=None, n_exploratory=6, n_smoothing=3, n_chains=2
    ),
}
"""Functions of a seed, by name."""

KILLED = {
    "mixture": partial(mixture, omega=1.0, participation=0.8, tol=0.0, eval_every=100),
    "imputer": partial(imputer, tol=0.0, eval_every=100),
    "network": network,
}
"""The same of fits with a number of clients and rounds, by processes that are killed."""
