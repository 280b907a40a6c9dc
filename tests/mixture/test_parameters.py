"""Parameters of the algorithms and seeds: what they change, and what they do not."""

import re
from threading import Lock

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from mixtures import CLIENTS, COMPONENTS, EXACT, STOCHASTIC, X
from problems import assert_same_fit, fit_unconverged, quiet_fit
from skfedem import FederatedGaussianMixture, FederatedMatrixImputer
from skfedem.compression import BlockQuantizer, Dithering, Identity, RandK

# ------------------------------------------------------------------ randomness


def test_another_seed_is_another_fit():
    one, other = (
        FederatedGaussianMixture(**STOCHASTIC | {"random_state": seed}).fit(CLIENTS)
        for seed in (0, 1)
    )
    assert (one.means_ != other.means_).any()


def test_a_random_state_advances_and_the_global_one_does_not():
    state = np.random.RandomState(5)
    gm = FederatedGaussianMixture(**{**STOCHASTIC, "random_state": state})
    first = gm.fit(CLIENTS).means_
    assert (gm.fit(CLIENTS).means_ != first).any()
    gm.set_params(random_state=np.random.RandomState(5))
    assert_array_equal(gm.fit(CLIENTS).means_, first)
    everyones = check_random_state(None)
    before = everyones.get_state()[1].copy()
    FederatedGaussianMixture(3, random_state=0).fit(CLIENTS)
    assert_array_equal(everyones.get_state()[1], before)


# ------------------------------------------------------------------ parameters of the algorithms


@pytest.mark.parametrize(
    "compressor",
    [None, "dithering", "block", "rand_k", Identity(), Dithering(levels=1), RandK(k=1)],
    ids=repr,
)
def test_omega_zero_is_no_compression_whatever_the_compressor(compressor):
    parameters = {**STOCHASTIC, "omega": 0.0}
    want = FederatedGaussianMixture(**parameters).fit(CLIENTS)
    gm = FederatedGaussianMixture(**{**parameters, "compressor": compressor})
    if isinstance(compressor, Dithering | RandK):
        with pytest.warns(UserWarning, match="omega=0 means no compression") as caught:
            gm.fit(CLIENTS)
        assert [warning.filename for warning in caught] == [__file__]
    else:
        gm.fit(CLIENTS)
    assert_same_fit(gm, want)


@pytest.mark.parametrize(
    ("name", "operator"),
    [("dithering", Dithering), ("block", BlockQuantizer), ("rand_k", RandK)],
)
def test_a_named_compressor_is_that_operator_with_this_omega(name, operator):
    by_name = FederatedGaussianMixture(**{**STOCHASTIC, "compressor": name}).fit(CLIENTS)
    by_object = FederatedGaussianMixture(
        **{**STOCHASTIC, "compressor": operator(omega=STOCHASTIC["omega"])}
    ).fit(CLIENTS)
    assert_same_fit(by_object, by_name)
    none = FederatedGaussianMixture(**{**STOCHASTIC, "omega": 0.0}).fit(CLIENTS)
    assert (none.means_ != by_name.means_).any()


@pytest.mark.parametrize("n_init", [1, 2])
def test_a_level_that_is_coarser_than_omega_is_kept_and_said(n_init):
    parameters = {**STOCHASTIC, "compressor": RandK(k=3), "n_init": n_init}  # 3 of 9: omega 2
    want = FederatedGaussianMixture(**{**parameters, "omega": 2.0}).fit(CLIENTS)
    gm = FederatedGaussianMixture(**{**parameters, "omega": 1.5})
    says = r"RandK\(k=3.* omega=2 for messages of 9 numbers, more than omega=1.5. Its own level is"
    with pytest.warns(UserWarning, match=says) as caught:
        gm.fit(CLIENTS)
    assert [warning.filename for warning in caught] == [__file__]
    assert_same_fit(gm, want)


@pytest.mark.parametrize(
    "compressor", [Dithering(levels=1), Dithering(levels=3), BlockQuantizer(block_length=3)]
)
def test_the_omega_that_a_coarse_level_asks_for_is_enough(compressor):
    gm = FederatedGaussianMixture(**{**STOCHASTIC, "compressor": compressor, "omega": 1e-3})
    with pytest.warns(UserWarning, match="Its own level is kept") as caught:
        gm.fit(CLIENTS)
    advised = re.search(r"Set omega=([\d.]+) or more", str(caught[0].message)).group(1)
    quiet_fit(gm.set_params(omega=float(advised)), CLIENTS)  # warns of no level


def test_rounding_alone_does_not_exceed_the_omega_of_messages():
    # 6 / 3 - 1 is larger than this by less than 1e-6; warnings are errors here.
    gm = FederatedGaussianMixture(
        1, compressor=RandK(k=3), omega=1 - 1e-7, max_iter=2, tol=0.0, random_state=0
    )
    with pytest.warns(ConvergenceWarning, match="^Not converged"):
        gm.fit([rows[:, :2] for rows in CLIENTS])


def test_automatic_control_step():
    operator = RandK(k=3)
    n_statistics = 3 * (1 + 2)  # tied: 1, y for each of three components
    omega = n_statistics / 3 - 1
    parameters = {**STOCHASTIC, "omega": omega, "compressor": operator, "step_size": 0.02}
    auto = FederatedGaussianMixture(**parameters).fit(CLIENTS)
    given = FederatedGaussianMixture(**parameters, control_step=1 / (1 + omega)).fit(CLIENTS)
    assert_same_fit(auto, given)
    other = FederatedGaussianMixture(**parameters, control_step=0.9 / (1 + omega)).fit(CLIENTS)
    assert (other.means_ != auto.means_).any()


@pytest.mark.parametrize(
    "parameters",
    [EXACT, {**EXACT, "omega": 0.5, "compressor": "block", "step_size": 0.1}],
    ids=["exact", "compressed"],
)
def test_client_drift_tells_who_is_unlike_the_others(parameters):
    parameters = {**parameters, "covariance_type": "tied", "max_iter": 500}
    alike = FederatedGaussianMixture(**parameters).fit([X] * 5)
    unlike = FederatedGaussianMixture(**parameters).fit([X] * 4 + [X[COMPONENTS == 2]])
    assert alike.client_drift_.shape == (5,)
    assert (alike.client_drift_ < 0.05).all()
    assert unlike.client_drift_.argmax() == 4
    assert unlike.client_drift_[4] > 3 * unlike.client_drift_[:4].max()


def test_step_size_may_be_a_function_of_the_round():
    asked = []

    def step_size(round_number):
        asked.append(round_number)
        return 0.2 / round_number**0.5

    gm = FederatedGaussianMixture(**{**STOCHASTIC, "step_size": step_size}).fit(CLIENTS)
    rounds = np.arange(1, gm.n_iter_ + 1)
    assert asked == rounds.tolist()
    assert_allclose(gm.history_["step_size"][1:], 0.2 / rounds**0.5)
    constant = FederatedGaussianMixture(**{**STOCHASTIC, "step_size": lambda _: 0.125})
    assert_same_fit(constant.fit(CLIENTS), FederatedGaussianMixture(**STOCHASTIC).fit(CLIENTS))


class Watched:
    """Steps that cannot be copied, as where they write to a log."""

    def __init__(self):
        self.lock = Lock()

    def __call__(self, round_number):
        with self.lock:
            return 0.125


def test_a_function_of_the_round_need_not_be_copied():
    gm = FederatedGaussianMixture(max_iter=2, step_size=Watched())
    imputer = FederatedMatrixImputer(1, max_iter=2, step_size=Watched())
    gm.fit(CLIENTS[0]).partial_fit(CLIENTS[0])
    fit_unconverged(imputer, CLIENTS[0])
    assert_array_equal(gm.history_["step_size"][1:], 0.125)
    assert_array_equal(imputer.history_["step_size"][1:], 0.125)


def test_clients_count_by_their_rows_or_all_alike():
    # One component: the mean is the weighted mean of the clients' means.
    means = [client.mean(axis=0) for client in CLIENTS]
    pooled = FederatedGaussianMixture().fit(CLIENTS)
    uniform = FederatedGaussianMixture(client_weights="uniform").fit(CLIENTS)
    assert_allclose(pooled.means_[0], X.mean(axis=0))
    assert_allclose(uniform.means_[0], np.mean(means, axis=0))
    spread = np.mean(
        [(c - uniform.means_[0]).T @ (c - uniform.means_[0]) / len(c) for c in CLIENTS], axis=0
    )
    assert_allclose(uniform.covariances_[0], spread + 1e-6 * np.eye(2))


@pytest.mark.parametrize(
    "other", [{"replacement": False}, {"batch_size": 5}, {"n_inner": 7}, {"solver": "fedem"}]
)
def test_parameters_of_the_minibatches_matter(other):
    parameters = {**STOCHASTIC, "omega": 0.0, "batch_size": 6, "step_size": 0.05}
    want = FederatedGaussianMixture(**parameters).fit(CLIENTS)
    got = FederatedGaussianMixture(**{**parameters, **other}).fit(CLIENTS)
    assert (got.means_ != want.means_).any()


def test_minibatches_of_more_rows_than_any_client_has():
    most = max(map(len, CLIENTS))
    gm = FederatedGaussianMixture(**{**STOCHASTIC, "batch_size": most + 1})
    told = f"batch_size={most + 1} is more rows than any client has [(]at most {most}[)][.]"
    with pytest.warns(UserWarning, match=told):
        gm.fit(CLIENTS)
    gm.set_params(batch_size=most).fit(CLIENTS)  # which may be a step of a search, and is silent


@pytest.mark.parametrize("solver", ["fedem", "vr_fedem"])
def test_the_length_of_loops_does_not_matter_where_all_rows_are_read(solver):
    parameters = {**STOCHASTIC, "solver": solver, "batch_size": None, "max_iter": 300}
    one, many = (
        FederatedGaussianMixture(**{**parameters, "n_inner": n_inner}).fit(CLIENTS)
        for n_inner in (1, 250)
    )
    assert one.converged_
    assert one.n_iter_ == many.n_iter_
    assert_array_equal(one.means_, many.means_)
