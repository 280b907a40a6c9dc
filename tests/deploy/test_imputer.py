"""A deployed imputer is that of the simulation, bit for bit."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import coo_array

from deployed import Deployment
from skfedem import FederatedGaussianMixture, FederatedMatrixImputer
from skfedem.datasets import make_site_counts, read_counts
from skfedem.deploy import Server
from skfedem.deploy._messages import seal, unseal
from skfedem.deploy._questions import ROUND

pd = pytest.importorskip("pandas")

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


def assert_equal_fits(got, want):
    for name, value in vars(want).items():
        if name.endswith("_") and name not in ("client_ids_", "history_"):
            assert_array_equal(getattr(got, name), value, err_msg=name)
    for name, column in want.history_.items():
        assert_array_equal(got.history_[name], column, err_msg=name)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("case", CASES)
def test_fits_equal_those_of_the_simulation(case, tmp_path):
    parameters = {"family": "poisson", "max_iter": 8, "random_state": 1, **CASES[case]}
    imputer = FederatedMatrixImputer(2, **parameters)
    data = counts_of(imputer.family)
    deployment = Deployment(imputer, data.clients, tmp_path, shape=data.shape)
    got = deployment.run().end()
    want = imputer.fit(data.clients, shape=data.shape)
    assert_equal_fits(got, want)
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


EFFORTS = {
    "exact": {},
    "uniform": {"client_weights": "uniform", **NOISY},
    "negative binomial": {"family": "negative_binomial", "penalty": "auto"},
    "gaussian": {"family": "gaussian", **NOISY},
}


def offsets_of(data):
    """Log efforts of each client."""
    generator = np.random.default_rng(0)
    return [np.log(generator.uniform(0.5, 4.0, len(own))) for own in data.clients]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("case", EFFORTS)
def test_offsets_are_those_of_the_simulation(case, tmp_path):
    parameters = {"family": "poisson", "max_iter": 8, "random_state": 1, **EFFORTS[case]}
    imputer = FederatedMatrixImputer(2, **parameters)
    data = counts_of(imputer.family)
    offset = offsets_of(data)
    own = {"offset": offset}
    deployment = Deployment(imputer, data.clients, tmp_path, shape=data.shape, own=own)
    got = deployment.run().end()
    want = imputer.fit(data.clients, shape=data.shape, offset=offset)
    assert_equal_fits(got, want)
    assert got._has_offset
    filled = want.transform(data.clients, offset=offset)
    for name, table, means in zip("abc", data.clients, filled, strict=True):
        client = deployment.clients[name]
        personal, visited = client.personal_result(), np.unique(table[:, 0]).astype(int)
        assert personal.pop("site") == visited.tolist()
        assert_array_equal(np.column_stack([*personal.values()]), means[visited])
        with pytest.raises(ValueError, match="Expected an offset, as the fit had one"):
            client.result().transform([table])


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_offsets_of_matrices_are_matrices(tmp_path):
    generator, tables, offset = np.random.default_rng(0), [], []
    for _ in range(2):
        seen = generator.random((6, 5)) < 0.6
        tables.append(coo_array(np.where(seen, generator.poisson(4.0, seen.shape) + 1.0, 0.0)))
        offset.append(np.log(generator.uniform(0.5, 4.0, seen.shape)))
    imputer = FederatedMatrixImputer(2, family="poisson", max_iter=6, random_state=0)
    deployment = Deployment(imputer, tables, tmp_path, shape=(6, 5), own={"offset": offset})
    got = deployment.run().end()
    want = imputer.fit(tables, offset=offset)
    assert_array_equal(got.fitted_mean(), want.fitted_mean())
    personal = deployment.clients["b"].personal_result()
    rows = personal.pop("site")
    filled = want.transform(tables, offset=offset)[1]
    assert_array_equal(np.column_stack([*personal.values()]), filled[rows])


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_offsets_follow_the_rows_of_a_long_table(tmp_path):
    generator, n = np.random.default_rng(0), 40
    table = {
        "site": generator.choice(["marsh", "pond", "wood"], n),
        "time": generator.integers(2020, 2024, n),
        "count": np.where(generator.random(n) < 0.1, np.nan, generator.poisson(3.0, n)),
        "hours": generator.uniform(0.5, 4.0, n),
        "who": np.arange(n) % 2,
    }
    names = {"site": "site", "time": "time", "count": "count"}
    counts = read_counts(table, **names, observer="who", effort="hours")
    parts = [{name: table[name][table["who"] == k] for name in table} for k in range(2)]
    shape = counts.sites, counts.times
    imputer = FederatedMatrixImputer(1, family="poisson", max_iter=6, random_state=0)
    tables = [{name: part[name] for name in names} for part in parts]
    own = {"offset": [np.log(part["hours"]) for part in parts]}
    got = Deployment(imputer, tables, tmp_path, shape=shape, own=own).run().end()
    want = imputer.fit(counts.clients, shape=shape, offset=counts.offset)
    assert_array_equal(got.fitted_mean(), want.fitted_mean())


def known_of(case, shape):
    """Covariates and groups of a matrix."""
    generator = np.random.default_rng(0)
    altitude = generator.normal(100, 30, shape[0])
    habitat = np.array(["dunes", "marsh", "wood"])[np.arange(shape[0]) % 3]
    trend = np.linspace(-1, 1, shape[1])
    return {
        "rows": {"row_covariates": altitude},
        "named": {
            "row_covariates": pd.DataFrame({"altitude": altitude, "habitat": habitat}),
            "column_covariates": pd.DataFrame({"trend": trend}),
        },
        "groups": {"row_groups": habitat, "column_covariates": trend},
        "numbered groups": {"row_groups": np.arange(shape[0]) % 2},
    }[case]


@pytest.mark.filterwarnings("ignore:. of 8 totals hang on one missing cell")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    ("case", "parameters"),
    [
        *((case, {}) for case in ("rows", "named", "groups", "numbered groups")),
        ("groups", NOISY),
        ("named", {"family": "negative_binomial"}),
    ],
    ids=str,
)
def test_covariates_of_the_plan_are_those_of_the_simulation(case, parameters, tmp_path):
    data = counts_of()
    given = known_of(case, data.shape)
    parameters = {"family": "poisson", "effects_penalty": 1.0, **parameters}
    imputer = FederatedMatrixImputer(1, max_iter=6, random_state=0, **parameters)
    deployment = Deployment(imputer, data.clients, tmp_path, shape=data.shape, **given)
    got = deployment.run().end()
    want = imputer.fit(data.clients, shape=data.shape, **given)
    assert_equal_fits(got, want)
    own = deployment.clients["b"].result()
    assert_array_equal(own.fitted_mean(), want.fitted_mean())
    for name in ("row_covariate_names_", "column_covariate_names_", "row_groups_", "row_coef_"):
        assert_array_equal(getattr(own, name), getattr(want, name), err_msg=name)
    assert_array_equal(own.column_coef_, want.column_coef_)
    filled = own.transform(data.clients)[1]
    assert_array_equal(filled, want.transform(data.clients)[1])
    if imputer.family == "poisson" and not imputer.omega:
        errors = {"errors": "parametric", "n_draws": 2, "random_state": 0}
        totals, expected = (fit.totals(data.clients, **errors) for fit in (own, want))
        # Covariates that are read again differ by rounding.
        assert_allclose(totals.model_covariance, expected.model_covariance, rtol=1e-6)
    # A restarted server finds its plan again; not with other covariates.
    deployment.new_server().stop()
    with pytest.raises(ValueError, match="got others. Give another folder"):
        Server(imputer, [*"abc"], tmp_path / "server", shape=data.shape)


def test_covariates_that_do_not_fit_are_refused_at_once(tmp_path):
    imputer, shape = FederatedMatrixImputer(1, family="poisson"), (["a", "b"], [1, 2, 3])
    for given, said in {
        "row_covariates": "Expected row_covariates with 2 rows",
        "column_covariates": "Expected column_covariates with 3 columns",
        "row_groups": "Expected",
    }.items():
        with pytest.raises(ValueError, match=said):
            Server(imputer, ["a"], tmp_path, shape=shape, **{given: [1, 2, 3, 4]})
        with pytest.raises(TypeError, match=f"Expected {given} to be None for FederatedGaussian"):
            Server(FederatedGaussianMixture(2), ["a"], tmp_path, **{given: [1, 2]})
    assert not [*tmp_path.iterdir()]


def test_offsets_that_do_not_fit_are_refused(tmp_path):
    data = counts_of()
    for k, (offset, said) in enumerate(
        {
            "short": [[1.0], "Expected an offset of shape"],
            "large": [None, "Expected a finite offset for each observation"],
        }.values()
    ):
        own = [np.zeros(len(table)) for table in data.clients]
        own[0] = own[0] + 50.0 if offset is None else offset
        imputer = FederatedMatrixImputer(1, family="poisson")
        folder = tmp_path / str(k)
        deployment = Deployment(
            imputer, data.clients, folder, shape=data.shape, own={"offset": own}
        )
        verdicts = deployment.phase()
        assert said in deployment.clients["a"].refusal and verdicts["b"].used
        deployment.server.stop()


def test_names_that_the_plan_lacks_are_refused(tmp_path):
    tables = [{"site": ["a", "b"], "time": [1, 2], "count": [3.0, 4.0]}] * 2
    imputer = FederatedMatrixImputer(1, family="poisson")
    deployment = Deployment(imputer, tables, tmp_path, shape=(["a", "c"], [1, 2]))
    assert not deployment.phase()["a"].used
    assert "every site to be one of the plan, got 'b'" in deployment.clients["a"].refusal


def test_what_is_simulated_only_is_refused_at_once(tmp_path):
    imputer = FederatedMatrixImputer(client_effects_penalty="auto")
    with pytest.raises(ValueError, match="client_effects_penalty=None, got 'auto'"):
        Server(imputer, ["a"], tmp_path / "server", shape=(3, 4))
    imputer = FederatedMatrixImputer(rows="disjoint")
    for shape in (None, (3, 4)):
        with pytest.raises(ValueError, match="Expected rows='shared', got 'disjoint'"):
            Server(imputer, ["a"], tmp_path / "server", shape=shape)


@pytest.mark.parametrize(
    ("estimator", "shape"),
    [(FederatedMatrixImputer(), None), (FederatedGaussianMixture(), (3, 4))],
)
def test_matrices_have_a_shape_and_tables_none(estimator, shape, tmp_path):
    with pytest.raises(TypeError, match="Expected shape to be"):
        Server(estimator, ["a"], tmp_path, shape=shape)


@pytest.mark.parametrize("facts", [[1, 0, 1], [1, 1.5, 1], [1, 2, 0], [1, 2, -1], [1, 2, 5e-324]])
def test_facts_that_no_cells_have_are_not_used(facts, tmp_path):
    data, imputer = counts_of(), FederatedMatrixImputer(1, family="poisson", random_state=0)
    own = {"offset": [np.full(len(table), -30.0) for table in data.clients]}
    deployment = Deployment(imputer, data.clients, tmp_path, shape=data.shape, own=own)
    reply = unseal(deployment.clients["a"].answer(deployment.server.request("a")))
    body = np.array(facts, "<f8").tobytes() + reply.body[24:]
    assert deployment.server.receive("a", seal(reply._replace(body=body))) == (False, "facts")
    assert deployment.server.receive("a", seal(reply)).used  # the smallest that there are
    deployment.server.stop()
