"""Nobody but clients reads rows: everything else is in their messages."""

import numpy as np
import pytest
from sklearn.base import clone

from skfedem import (
    FederatedGaussianMixture,
    FederatedMatrixImputer,
    FederatedMatrixImputerCV,
    FederatedNonlinearMixedEffects,
    _parallel,
    impute,
    mixed_effects,
    mixture,
)
from skfedem._federation import Federation
from skfedem._penalty_search import penalty_path
from skfedem.clients.local import LocalClients
from skfedem.datasets import load_theophylline
from skfedem.pharmacokinetics import one_compartment_oral
from skfedem.preprocessing import FederatedPCA, FederatedStandardScaler, _pca, _scaler

RNG = np.random.default_rng(0)
TABLES = [RNG.normal(k, 1, (20 + k, 3)) for k in (-3, 0, 3)]
MATRICES = [np.where(RNG.random((8, 6)) < 0.7, RNG.poisson(3.0, (8, 6)), np.nan) for _ in range(3)]
NOISY = {"omega": 1.0, "participation": 0.7, "batch_size": 4, "step_size": 0.2}
ROUNDS = {"max_iter": 6, "tol": 1e9, "random_state": 0}


def mixture_with(**parameters):
    return FederatedGaussianMixture(2, **{**ROUNDS, **parameters}), TABLES


def imputer_with(**parameters):
    return FederatedMatrixImputer(2, family="poisson", **{**ROUNDS, **parameters}), MATRICES


def population_with(**parameters):
    data = load_theophylline().data
    hospitals = [own for _, own in data.groupby((data["id"] - 1) // 4)]
    start = {"ka": 1.0, "V": 20.0, "CL": 0.5}
    settings = {"random_state": 0, "max_iter": 8, **parameters}
    return FederatedNonlinearMixedEffects(one_compartment_oral, start, **settings), hospitals


ESTIMATORS = {
    "kmeans": mixture_with(),
    "k-means++": mixture_with(init_params="k-means++", covariance_type="tied"),
    "random": mixture_with(init_params="random", covariance_type="diag"),
    "random_from_data": mixture_with(init_params="random_from_data", reg_covar=1e-3),
    "given": mixture_with(means_init=np.eye(2, 3), weights_init=[0.5, 0.5]),
    "noisy mixture": mixture_with(**NOISY),
    "variance reduced mixture": mixture_with(**NOISY, solver="vr_fedem"),
    "imputer": imputer_with(),
    "columns alone": imputer_with(effects="columns", client_weights="uniform"),
    "noisy imputer": imputer_with(**NOISY),
    "variance reduced imputer": imputer_with(**NOISY, solver="vr_fedem"),
    "warm imputer": imputer_with(warm_start=True),
    "search": (FederatedMatrixImputerCV(penalties=2, n_splits=2, **ROUNDS), MATRICES),
    "scaler": (FederatedStandardScaler(), TABLES),
    "counts": (FederatedStandardScaler(with_mean=False, with_std=False), TABLES),
    "components": (FederatedPCA(), TABLES),
    "population": population_with(covariates={"V": ["weight"]}),
    "noisy population": population_with(**{**NOISY, "batch_size": 2}),
    "chains": population_with(e_step="mcmc"),
    "averaged parameters": population_with(e_step="mcmc", aggregate="parameters"),
}


class ClientsOnly:
    """Rows, or cells, that can only be read while clients are at work."""

    at_work = False

    def __init__(self, rows):
        self.rows = rows
        self.dtype, self.shape = getattr(rows, "dtype", None), getattr(rows, "shape", None)

    def __len__(self):
        return len(self.rows)

    def read(self):
        assert ClientsOnly.at_work, "rows were read outside of a client's function"
        return self.rows

    def __getitem__(self, chosen):
        return self.read()[chosen]

    def take(self, chosen, **axis):
        return self.read().take(chosen, **axis)


@pytest.fixture
def guarded(monkeypatch):
    """Rows can only be read by what runs over groups of clients; the names of what does."""
    names = []

    def with_guard(function):
        def read(*arguments, **keywords):
            found = function(*arguments, **keywords)
            if isinstance(found, Federation):
                return found._replace(rows=ClientsOnly(found.rows))
            if hasattr(found, "federation"):
                own = found.federation._replace(rows=ClientsOnly(found.federation.rows))
                return found._replace(federation=own)
            return found[0]._replace(rows=ClientsOnly(found[0].rows)), *found[1:]

        return read

    def by_clients(method):
        def called(self, *arguments):
            names.append(arguments[-1] if arguments else "fingerprint")
            monkeypatch.setattr(ClientsOnly, "at_work", True)
            try:
                return method(self, *arguments)
            finally:
                monkeypatch.setattr(ClientsOnly, "at_work", False)

        return called

    for module in (mixture, _scaler, _pca):
        monkeypatch.setattr(module, "read_clients", with_guard(module.read_clients))
    guarded_population = with_guard(mixed_effects.federation_of)
    monkeypatch.setattr(mixed_effects, "federation_of", guarded_population)
    for module in (impute, penalty_path):
        monkeypatch.setattr(module, "cell_federation", with_guard(module.cell_federation))
    monkeypatch.setattr(_parallel.Workers, "map", by_clients(_parallel.Workers.map))
    monkeypatch.setattr(LocalClients, "fingerprint", by_clients(lambda clients: "digest"))
    return names


@pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning", "ignore:The best penalty:UserWarning"
)
@pytest.mark.parametrize("name", ESTIMATORS)
def test_only_clients_read_rows(guarded, name):
    estimator, X = ESTIMATORS[name]
    clone(estimator).fit(X)
    assert guarded


@pytest.mark.parametrize("batch_size", [None, 7])
@pytest.mark.parametrize("weights", [None, [np.full(len(table), 2.0) for table in TABLES]])
def test_streams_are_read_by_clients_alone(guarded, batch_size, weights):
    gm = clone(ESTIMATORS["kmeans"][0]).set_params(batch_size=batch_size)
    for _ in range(2):
        gm.partial_fit(TABLES, sample_weight=weights)
    assert guarded


def test_rows_are_guarded(guarded):
    federation = mixture.read_clients(clone(ESTIMATORS["kmeans"][0]), TABLES).federation
    with pytest.raises(AssertionError, match="outside"):
        federation.rows[:1]
    with pytest.raises(AssertionError, match="outside"):
        federation.rows.take(np.arange(1), axis=0)
