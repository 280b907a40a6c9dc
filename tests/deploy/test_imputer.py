"""A deployed imputer is that of the simulation, bit for bit."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from deployed import Deployment
from skfedem import FederatedGaussianMixture, FederatedMatrixImputer
from skfedem.datasets import make_site_counts
from skfedem.deploy import Server
from skfedem.deploy._questions import ROUND

NOISY = {"omega": 1.0, "participation": 0.7}
CASES = {
    "exact": {},
    "gaussian": {"family": "gaussian", **NOISY},
    "presences": {"family": "bernoulli", "participation": 2},
    "negative binomial": {"family": "negative_binomial", "penalty": "auto", **NOISY},
    "VR-FedEM": {"solver": "vr_fedem", "batch_size": 4, **NOISY},
    "columns alone": {"effects": "columns", "client_weights": "uniform", **NOISY},
    "no effects": {"family": "gaussian", "effects": "none", "step_size": 0.3},
}


def counts_of(family="poisson", n_clients=3):
    return make_site_counts(
        n_sites=12, n_months=8, n_clients=n_clients, observed=0.5, family=family, random_state=0
    )


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("case", CASES)
def test_fits_equal_those_of_the_simulation(case, tmp_path):
    parameters = {"family": "poisson", "max_iter": 8, "random_state": 1, **CASES[case]}
    imputer = FederatedMatrixImputer(2, **parameters)
    data = counts_of(imputer.family)
    deployment = Deployment(imputer, data.clients, tmp_path, shape=data.shape)
    got = deployment.run().end()
    want = imputer.fit(data.clients, shape=data.shape)
    for name, value in vars(want).items():
        if name.endswith("_") and name not in ("client_ids_", "history_"):
            assert_array_equal(getattr(got, name), value, err_msg=name)
    for name, column in want.history_.items():
        assert_array_equal(got.history_[name], column, err_msg=name)
    server = deployment.server._clients
    assert_array_equal(server.controls, deployment.controls())
    total = server.layout.total(server.every, [_weighted(server)], [0])
    assert_array_equal(total, server.control())


def _weighted(server):
    return np.repeat(server.sizes.weights, server.sizes.lengths) * server.controls


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_payloads_are_as_long_as_the_fit_says(tmp_path):
    data = counts_of()
    imputer = FederatedMatrixImputer(2, family="poisson", max_iter=5, random_state=0, **NOISY)
    imputer.set_params(eval_every=None)
    deployment = Deployment(imputer, data.clients, tmp_path, shape=data.shape).run()
    got, phases = deployment.end(), deployment.server.history_
    # Three facts of each client; the rest of the plan is not counted.
    sent = [24 * 3, *(own["uplink_bytes"] for own in phases if own["question"] == "set-up")]
    told = [own.uplink_bits for own in got.setup_messages_ if own.uplink_bits]
    assert told == [8 * own for own in sent]
    rounds = [own for own in phases if own["question"] == "round"]
    bits = [8 * (own["uplink_bytes"] - (ROUND.size + 8) * own["n_used"]) for own in rounds]
    assert_array_equal(got.history_["uplink_bits"][1:], bits)


def test_clients_complete_their_own_rows_from_a_long_table(tmp_path):
    pd = pytest.importorskip("pandas")
    data = counts_of(n_clients=2)
    sites, times = [f"pond {k}" for k in range(12)], [*range(2000, 2008)]
    tables = []
    for site, time, count in (own.T for own in data.clients):
        names = np.array(sites)[site.astype(int)], np.array(times)[time.astype(int)]
        tables.append(pd.DataFrame({"time": names[1], "site": names[0], "count": count}))
    imputer = FederatedMatrixImputer(1, family="poisson", penalty=5.0, max_iter=300)
    deployment = Deployment(imputer, tables, tmp_path, shape=(sites, times))
    got = deployment.run().end()
    want = imputer.fit(data.clients, shape=(sites, times))
    assert_array_equal(got.fitted_mean(), want.fitted_mean())
    for name, own, filled in zip("ab", data.clients, want.transform(data.clients), strict=True):
        client = deployment.clients[name]
        personal = client.personal_result()
        visited = np.unique(own[:, 0]).astype(int)
        assert personal.pop("site") == [sites[k] for k in visited]
        assert [*personal] == [str(time) for time in times]
        assert_array_equal(np.column_stack([*personal.values()]), np.asarray(filled)[visited])
        assert_array_equal(client.result().row_effects_, want.row_effects_)
        assert not hasattr(client.result(), "client_drift_")


def test_names_that_the_plan_lacks_are_refused(tmp_path):
    tables = [{"site": ["a", "b"], "time": [1, 2], "count": [3.0, 4.0]}] * 2
    imputer = FederatedMatrixImputer(1, family="poisson")
    deployment = Deployment(imputer, tables, tmp_path, shape=(["a", "c"], [1, 2]))
    assert "site 'b' is not in the plan" in deployment.phase()["a"].reason


@pytest.mark.parametrize(
    ("estimator", "shape"),
    [(FederatedMatrixImputer(), None), (FederatedGaussianMixture(), (3, 4))],
)
def test_matrices_have_a_shape_and_tables_none(estimator, shape, tmp_path):
    with pytest.raises(TypeError, match="Expected shape to be"):
        Server(estimator, ["a"], tmp_path, shape=shape)
