"""Transformers in pipelines and searches."""

import numpy as np
import sklearn
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.model_selection import GridSearchCV, KFold, cross_validate
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from preprocessed import CLIENTS, X
from skfedem import FederatedGaussianMixture
from skfedem.preprocessing import FederatedPCA, FederatedStandardScaler, PerClient


def make_federation():
    generator = np.random.default_rng(3)
    centers = 4 * generator.normal(size=(3, 6))
    lengths = (30, 21, 40, 25, 33, 28)
    components = [generator.integers(0, 3, length) for length in lengths]
    scales = [1, 10, 0.1, 1, 1, 100]
    rows = [centers[own] + generator.normal(size=(len(own), 6)) for own in components]
    return [1e6 + own * scales for own in rows]


FEDERATION = make_federation()
FEDERATION_ROWS = np.concatenate(FEDERATION)
FEDERATION_OWNERS = np.repeat(np.arange(6), [len(rows) for rows in FEDERATION])


def federated_pipeline(**parameters):
    return make_pipeline(
        FederatedStandardScaler(),
        FederatedPCA(2),
        FederatedGaussianMixture(3, random_state=0, tol=1e-2, **parameters),
    )


def fitted_by_hand(clients):
    """The three steps of the pipeline, one after the other, scikit-learn's where it has them."""
    pooled = np.concatenate(clients)
    offset = pooled.mean(axis=0)
    scale = StandardScaler().fit(pooled - offset)
    pca = PCA(2, svd_solver="full").fit(scale.transform(pooled - offset))

    def apply(rows):
        return pca.transform(scale.transform(rows - offset))

    gm = FederatedGaussianMixture(3, random_state=0, tol=1e-2)
    return gm.fit([apply(rows) for rows in clients]), apply


def test_a_pipeline_is_fitted_to_a_list_of_clients():
    pipeline = federated_pipeline().fit(FEDERATION)
    gm, apply = fitted_by_hand(FEDERATION)
    # Rows at 1e6 with deviations of 0.1 are known to 1e-9 of them.
    assert_allclose(pipeline[-1].means_, gm.means_, atol=1e-6)
    assert_allclose(pipeline.score(FEDERATION), gm.score(apply(FEDERATION_ROWS)), rtol=1e-7)
    labels = pipeline.predict(FEDERATION)
    assert isinstance(labels, tuple)
    for own, rows in zip(labels, FEDERATION, strict=True):
        assert_array_equal(own, gm.predict(apply(rows)))
    assert all(step.uplink_bits_ > 0 for step in pipeline[:-1])
    assert pipeline[-1].n_clients_ == 6


def test_a_pipeline_of_labelled_rows():
    listed = federated_pipeline().fit(FEDERATION)
    steps = {f"{name}__clients": FEDERATION_OWNERS for name in listed.named_steps}
    prefixed = federated_pipeline().fit(FEDERATION_ROWS, **steps)
    with sklearn.config_context(enable_metadata_routing=True):
        routed = federated_pipeline().fit(FEDERATION_ROWS, clients=FEDERATION_OWNERS)
    for pipeline in (prefixed, routed):
        assert [step.n_clients_ for step in pipeline] == [6, 6, 6]
        assert [step.client_ids_.tolist() for step in pipeline] == [list(range(6))] * 3
        assert_allclose(pipeline[-1].means_, listed[-1].means_, rtol=1e-9, atol=1e-9)


GRID = {
    "federatedpca__whiten": [False, True],
    "federatedgaussianmixture__n_components": [2, 3],
}


def test_grid_search_over_held_out_clients_in_two_processes():
    search = GridSearchCV(federated_pipeline(), GRID, cv=3, n_jobs=2).fit(FEDERATION)
    results = search.cv_results_
    assert len(results["params"]) == 4
    for fold, (train, test) in enumerate(KFold(3).split(FEDERATION)):
        for k, parameters in enumerate(results["params"]):
            pipeline = federated_pipeline().set_params(**parameters)
            want = pipeline.fit([FEDERATION[i] for i in train]).score([FEDERATION[i] for i in test])
            # Another process may round another way.
            assert_allclose(results[f"split{fold}_test_score"][k], want, rtol=1e-9)
    assert [step.n_clients_ for step in search.best_estimator_] == [6, 6, 6]
    assert isinstance(search.predict(FEDERATION), tuple)


def test_grid_search_over_labelled_rows_in_two_processes():
    shuffled = np.random.default_rng(4).permutation(len(FEDERATION_ROWS))
    rows, owners = FEDERATION_ROWS[shuffled], NAMES6[FEDERATION_OWNERS[shuffled]]
    with sklearn.config_context(enable_metadata_routing=True):
        search = GridSearchCV(federated_pipeline(), GRID, cv=3, n_jobs=2).fit(rows, clients=owners)
        for fold, (train, test) in enumerate(KFold(3).split(rows)):
            parameters = search.cv_results_["params"][3]
            pipeline = federated_pipeline().set_params(**parameters)
            pipeline.fit(rows[train], clients=owners[train])
            got = search.cv_results_[f"split{fold}_test_score"][3]
            assert_allclose(got, pipeline.score(rows[test]), rtol=1e-9)
    for step in search.best_estimator_:
        assert step.client_ids_.tolist() == NAMES6.tolist()


NAMES6 = np.array(["a", "b", "c", "d", "e", "f"])


def test_parameters_nest_in_what_is_applied_per_client():
    pipeline = Pipeline(
        [
            ("range", PerClient(MinMaxScaler())),
            ("gm", FederatedGaussianMixture(2, random_state=0, tol=0.1)),
        ]
    )
    grid = {
        "range__transformer__feature_range": [(0, 1), (0, 10)],
        "range__transformer": [MinMaxScaler()],
    }
    search = GridSearchCV(pipeline, grid, cv=2).fit(FEDERATION)
    # A map by 10 in 6 dimensions takes 6 log 10 nats from every row.
    first, second = search.cv_results_["mean_test_score"]
    assert_allclose(first - second, 6 * np.log(10), rtol=1e-3)
    with sklearn.config_context(enable_metadata_routing=True):
        routed = clone(pipeline).fit(FEDERATION_ROWS, clients=FEDERATION_OWNERS)
    assert [step.n_clients_ for step in routed] == [6, 6]


def test_the_number_of_components_is_chosen_by_held_out_clients():
    generator = np.random.default_rng(5)
    loadings = 3 * generator.normal(size=(2, 6))
    clients = [
        generator.normal(size=(60, 2)) @ loadings + generator.normal(size=(60, 6)) for _ in range(6)
    ]
    search = GridSearchCV(FederatedPCA(), {"n_components": [0, 1, 2, 3, 4, 5]}, cv=3).fit(clients)
    assert search.best_params_ == {"n_components": 2}
    scores = cross_validate(
        make_pipeline(FederatedStandardScaler(), FederatedPCA(2)), clients, cv=3
    )
    assert np.all(np.isfinite(scores["test_score"]))


def test_without_components_all_variance_is_noise():
    ours, theirs = FederatedPCA(0).fit(CLIENTS), PCA(0).fit(X)
    assert ours.transform(X).shape == (len(X), 0)
    assert_array_equal(ours.inverse_transform(ours.transform(X)), np.tile(ours.mean_, (len(X), 1)))
    assert_allclose(ours.score_samples(X), theirs.score_samples(X), rtol=1e-12)
    assert len(ours.get_feature_names_out()) == 0 and ours.noise_variance_ > 0
