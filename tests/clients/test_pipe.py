"""Clients in processes of their own, against the clients in threads."""

import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from skfedem import FederatedGaussianMixture
from skfedem._data.clients import ClientData
from skfedem._estimators.fit import best_run
from skfedem._federation import Federation, offsets_of
from skfedem._mixture.fit import MixtureFit
from skfedem._parallel import Workers
from skfedem._parameters import read_parameters
from skfedem.clients.local import LocalClients
from skfedem.models.mixture.initial_parameters import InitialParameters

sys.path.insert(0, str(Path(__file__).parents[2] / "doc"))
from over_the_wire import PipeClients

SETTINGS = {
    "exact": {},
    "tied": {"covariance_type": "tied", "omega": 1.0, "participation": 0.7},
    "minibatch": {"omega": 1.0, "participation": 0.7, "solver": "vr_fedem", "batch_size": 4},
}


class Interrupted(PipeClients):
    """The process of a client is killed once, between its answer and the commit."""

    n_rounds = 0

    def round(self, broadcast, active):
        aggregated = super().round(broadcast, active)
        self.n_rounds += 1
        if self.n_rounds == 2:
            self.crash(int(active[0]))
        return aggregated


def fitted(mixture, federation, clients):
    """State at the end of a fit."""
    data = ClientData(federation, np.arange(federation.n_clients))
    steps = MixtureFit(read_parameters(mixture), data, {}, InitialParameters(), None)
    return best_run(steps, clients, [7]).state


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
def test_processes_fit_what_threads_fit_to_the_bit(setting, tmp_path):
    generator = np.random.default_rng(0)
    tables = [generator.normal(k, 1, (length, 3)) for k, length in enumerate((40, 1, 25))]
    mixture = FederatedGaussianMixture(2, tol=1e-6, max_iter=12, **SETTINGS[setting])
    lengths = np.array([len(rows) for rows in tables])
    federation = Federation(np.concatenate(tables), offsets_of(lengths), lengths / lengths.sum())
    with Workers(1) as workers:
        want = fitted(mixture, federation, LocalClients(federation, workers))
        folders = [tmp_path / str(number) for number in range(len(tables))]
        for folder in folders:
            folder.mkdir()
        clients = Interrupted(tables, folders)
        got = fitted(mixture, federation, clients)
        controls, control = clients.save()["controls"], got.server.control
        clients.stop()
    assert clients.n_rounds > 2
    assert_array_equal(got.server.statistics, want.server.statistics)
    assert_array_equal(control, want.server.control)
    assert_array_equal(controls, want.clients["controls"])
    for name, column in want.history.as_dict().items():
        assert_array_equal(got.history[name], column, err_msg=name)
    assert got.converged == want.converged
    # V = Σ w_i V_i, up to the rounding of sums of numbers of order 1.
    assert np.abs(control - federation.weights @ controls).max() < 1e-12
