"""A deployed fit is that of the simulation, bit for bit."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone

from deployed import Deployment, tables_of
from skfedem import FederatedGaussianMixture
from skfedem.deploy._questions import ROUND
from skfedem.preprocessing import FederatedPCA, FederatedStandardScaler

NOISY = {"omega": 1.0, "participation": 0.7}
CASES = {
    "exact": {},
    "tied": {"covariance_type": "tied", **NOISY},
    "diag": {"covariance_type": "diag", "omega": 1.0, "init_params": "random"},
    "spherical": {"covariance_type": "spherical", "participation": 2, "init_params": "k-means++"},
    "minibatches": {"batch_size": 4, "init_params": "random_from_data", **NOISY},
    "VR-FedEM": {"solver": "vr_fedem", "batch_size": 4, **NOISY},
    "means": {"means_init": [[0.0, 0.0], [4.0, 4.0]], **NOISY},
    "a step of its own": {"step_size": 0.3, "control_init": "zeros", **NOISY},
    "naive": {"control_step": 0.0, "control_init": "zeros", **NOISY},
    "starts": {"n_init": 2, **NOISY},
    "weights": {"client_weights": "uniform", "compressor": "rand_k", **NOISY},
}
FITTED = ("weights_", "means_", "covariances_", "precisions_", "client_drift_", "n_iter_")


def assert_equal_fits(got, want):
    """All that a user sees is equal, except the labels of clients."""
    for name in (*FITTED, "lower_bound_", "converged_", "n_features_in_"):
        assert_array_equal(getattr(got, name), getattr(want, name), err_msg=name)
    assert got.history_.keys() == want.history_.keys()
    for name, column in want.history_.items():
        assert_array_equal(got.history_[name], column, err_msg=name)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("case", CASES)
def test_fits_equal_those_of_the_simulation(case, tmp_path):
    tables = tables_of(seed=len(case))
    mixture = FederatedGaussianMixture(2, tol=1e-6, max_iter=12, random_state=3, **CASES[case])
    deployment = Deployment(mixture, tables, tmp_path)
    got = deployment.run().end()
    want = mixture.fit(tables)
    assert_equal_fits(got, want)
    assert got.client_ids_.tolist() == ["a", "b", "c"]
    if want._memory.controls.size:
        assert_array_equal(deployment.controls(), want._memory.controls)
    assert_array_equal(got._memory.server.control, want._memory.server.control)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_encoded_messages_are_as_long_as_the_history_says(tmp_path):
    mixture = FederatedGaussianMixture(2, max_iter=6, random_state=0, eval_every=None, **NOISY)
    deployment = Deployment(mixture, tables_of(), tmp_path).run()
    # Neither the plan nor the evaluation at the end is counted.
    phases = deployment.server.history_[1:-1]
    payload = [own["uplink_bytes"] for own in phases]
    for k, own in enumerate(phases):
        if own["question"] == "round":  # without the number of expectations and the likelihood
            payload[k] -= (ROUND.size + 8) * own["n_used"]
        elif own["question"] in ("field", "evaluation"):  # without the likelihood
            payload[k] -= 8 * own["n_used"]
    first = [own["question"] for own in phases].index("round")
    bits = deployment.end().history_["uplink_bits"]
    assert bits[0] == 8 * sum(payload[:first])
    assert_array_equal(bits[1:], 8 * np.array(payload[first:]))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_clients_with_seeds_of_their_own_find_a_similar_fit(tmp_path):
    mixture = FederatedGaussianMixture(2, max_iter=60, random_state=0, **NOISY)
    tables = tables_of(d=1, n_rows=60)
    got = Deployment(mixture, tables, tmp_path, seed=None).run().end()
    want = mixture.fit(tables)
    assert not np.array_equal(got.means_, want.means_)
    # The noise of compression at the optimum is a few hundredths of a standard deviation.
    assert np.abs(np.sort(got.means_, axis=0) - np.sort(want.means_, axis=0)).max() < 0.1


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_float32_tables_and_names_of_columns(tmp_path):
    pd = pytest.importorskip("pandas")
    tables = [pd.DataFrame(own.astype("f4"), columns=["u", "v"]) for own in tables_of()]
    mixture = FederatedGaussianMixture(2, max_iter=5, random_state=0)
    got = Deployment(mixture, tables, tmp_path, columns=["u", "v"]).run().end()
    assert_equal_fits(got, mixture.fit(tables))
    assert got.feature_names_in_.tolist() == ["u", "v"]


@pytest.mark.parametrize("n_clients", [1, 3])
@pytest.mark.parametrize(
    "transformer",
    [
        FederatedStandardScaler(),
        FederatedStandardScaler(with_std=False),
        FederatedStandardScaler(with_mean=False, with_std=False),
        FederatedPCA(),
    ],
    ids=repr,
)
def test_transformers_equal_those_of_the_simulation(transformer, n_clients, tmp_path):
    tables = tables_of(n_clients, d=3)
    if isinstance(transformer, FederatedStandardScaler):
        tables[0][2, 1] = np.nan
    deployment = Deployment(transformer, tables, tmp_path, seed=0)
    got, want = deployment.run().end(), clone(transformer).fit(tables)
    for name, value in vars(want).items():
        if name.endswith("_") and name != "client_ids_":
            assert_array_equal(getattr(got, name), value, err_msg=name)


WEIGHTS = {
    "integers": lambda generator, n: generator.integers(1, 4, n),
    "zeros": lambda generator, n: generator.integers(0, 3, n),
    "shares": lambda generator, n: generator.uniform(0.2, 3.0, n),
    "huge": lambda generator, n: 1e145 * generator.uniform(1, 2, n),
    "equal": lambda generator, n: np.full(n, 0.7),
    "ones": lambda generator, n: np.ones(n),
}


def weights_of(kind, tables):
    generator = np.random.default_rng(len(kind))
    return [WEIGHTS[kind](generator, len(own)) for own in tables]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    ("kind", "case"),
    [*((kind, "exact") for kind in WEIGHTS), ("shares", "minibatches"), ("zeros", "weights")]
    + [("shares", case) for case in ("VR-FedEM", "spherical", "tied")],
)
def test_weighted_rows_are_those_of_the_simulation(kind, case, tmp_path):
    tables = tables_of(seed=len(case))
    weights = weights_of(kind, tables)
    mixture = FederatedGaussianMixture(2, tol=1e-6, max_iter=8, random_state=3, **CASES[case])
    deployment = Deployment(mixture, tables, tmp_path, own={"sample_weight": weights})
    got = deployment.run().end()
    want = mixture.fit(tables, sample_weight=weights)
    assert_equal_fits(got, want)
    assert got.setup_messages_ == want.setup_messages_
    assert_array_equal(deployment.controls(), want._memory.controls)
    assert got._memory.row_weight == want._memory.row_weight
    assert_array_equal(got._memory.totals, want._memory.totals)
