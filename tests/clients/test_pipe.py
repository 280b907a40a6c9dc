"""Clients in processes of their own, against the clients in threads."""

import multiprocessing
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone

from contracts import assert_same
from problems import federation_of, stack, weighted_sum
from skfedem import FederatedGaussianMixture, FederatedMatrixImputer
from skfedem._data.cells import read_cells
from skfedem._data.clients import ClientData
from skfedem._estimators.fit import best_run
from skfedem._imputer.fit_steps import MatrixFit
from skfedem._mixture.fit_steps import MixtureFit
from skfedem._parallel import Workers
from skfedem._parameters import read_parameters
from skfedem.clients.local import LocalClients
from skfedem.models.matrix.families import FAMILIES
from skfedem.models.matrix.start import cell_federation
from skfedem.models.mixture.initial_parameters import InitialParameters
from skfedem.preprocessing import FederatedPCA, FederatedStandardScaler, _pca, _scaler

sys.path.insert(0, str(Path(__file__).parents[2] / "doc"))
from over_the_wire import PipeClients

RNG = np.random.default_rng(0)
TABLES = [RNG.normal(k, 1, (length, 3)) for k, length in enumerate((40, 1, 25))]
SHAPE = 12, 8
VISITS = [
    np.where(RNG.random(SHAPE) < share, RNG.poisson(3.0, SHAPE), np.nan)
    for share in (0.8, 0.1, 0.4)
]
NOISY = {"omega": 1.0, "participation": 0.7}
REDUCED = {**NOISY, "solver": "vr_fedem", "batch_size": 4}


class Interrupted(PipeClients):
    """The process of a client is killed once, between its answer and the commit."""

    n_rounds = 0
    if "forkserver" in multiprocessing.get_all_start_methods():
        context = multiprocessing.get_context("forkserver")  # imports everything only once
        context.set_forkserver_preload(sorted(name for name in sys.modules if "skfedem" in name))

    def round(self, broadcast, active):
        aggregated = super().round(broadcast, active)
        self.n_rounds += 1
        if self.n_rounds == 2:
            self.crash(int(active[0]))
        return aggregated


@pytest.fixture
def processes(tmp_path):
    """A function that makes clients in processes of their own of those of a federation."""
    made = []

    def make(federation, workers=None):
        everybody = range(federation.n_clients)
        folders = [tmp_path / str(number) for number in everybody]
        for folder in folders:
            folder.mkdir()
        alone = [federation_of(federation, [number]) for number in everybody]
        made.append(Interrupted(alone, folders))
        return made[-1]

    yield make
    for clients in made:
        clients.stop()


def mixture_fit(**parameters):
    """Steps of a mixture's fit."""
    mixture = FederatedGaussianMixture(2, tol=1e-6, max_iter=12, **parameters)
    data = ClientData(stack(TABLES), np.arange(len(TABLES)))
    return MixtureFit(read_parameters(mixture), data, {}, InitialParameters(), None)


def imputer_fit(**parameters):
    """Steps of an imputer's fit."""
    imputer = FederatedMatrixImputer(
        2, family="poisson", penalty=2.0, tol=1e-6, max_iter=12, **parameters
    )
    data = read_cells(clone(imputer), VISITS, family=FAMILIES["poisson"])
    federation = cell_federation(data, imputer.client_weights)
    return MatrixFit(read_parameters(imputer), VISITS, data, federation, {}, None, None)


FITS = {
    "exact mixture": lambda: mixture_fit(),
    "tied mixture": lambda: mixture_fit(covariance_type="tied", **NOISY),
    "variance reduced mixture": lambda: mixture_fit(**REDUCED),
    "exact imputer": lambda: imputer_fit(),
    "noisy imputer": lambda: imputer_fit(**NOISY, effects="columns"),
    "variance reduced imputer": lambda: imputer_fit(**REDUCED),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FITS)
def test_processes_fit_what_threads_fit_to_the_bit(name, processes):
    steps = FITS[name]()
    with Workers(1) as workers:
        local, remote = LocalClients(steps.federation, workers), processes(steps.federation)
        problem, want = best_run(steps, local, [7])
        _, got = best_run(steps, remote, [7])
        controls = remote.save()["controls"]
    assert remote.n_rounds > 2
    assert_same(got.server, want.server)
    assert_array_equal(controls, want.clients["controls"])
    for column, values in want.history.as_dict().items():
        assert_array_equal(got.history[column], values, err_msg=column)
    assert got.converged == want.converged
    assert remote.messages == local.messages
    # V = Σ w_i V_i, up to the rounding of sums of numbers of order 1.
    pooled = weighted_sum(problem.model, steps.federation, controls)
    assert np.abs(got.server.control - pooled).max() < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "module"),
    [
        (FederatedStandardScaler(), _scaler),
        (FederatedStandardScaler(with_mean=False, with_std=False), _scaler),
        (FederatedPCA(2), _pca),
    ],
)
def test_transformers_of_processes_are_those_of_threads(estimator, module, processes, monkeypatch):
    want = clone(estimator).fit(TABLES)
    monkeypatch.setattr(module, "clients_of", lambda X, federation, workers: processes(federation))
    got = clone(estimator).fit(TABLES)
    assert vars(got).keys() == vars(want).keys()
    for name, value in vars(want).items():
        assert_array_equal(getattr(got, name), value, err_msg=name)
