"""What a fit answers, scikit-learn's ways, and what set_params and pickle leave as it was."""

import pickle

import numpy as np
import pandas as pd
import pytest
import sklearn
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from mixtures import (
    CENTERS,
    CLIENTS,
    COMPONENTS,
    EXACT,
    FRAMES,
    LENGTHS,
    N_CLIENTS,
    N_SAMPLES,
    NAMES,
    OWNERS,
    STOCHASTIC,
    WithKeywords,
    X,
)
from problems import COVARIANCE_TYPES, assert_same_fit
from skfedem import FederatedGaussianMixture
from skfedem.compression import Dithering


@pytest.fixture
def fitted():
    return FederatedGaussianMixture(**EXACT).fit(CLIENTS)


# ------------------------------------------------------------------ what a fit answers


@pytest.mark.parametrize("method", ["predict", "predict_proba", "transform", "score_samples"])
@pytest.mark.parametrize("as_sequence", [list, tuple])
def test_a_list_gives_a_tuple_and_an_array_an_array(fitted, method, as_sequence):
    answer = getattr(fitted, method)
    for_all = answer(X)
    assert isinstance(for_all, np.ndarray)
    a_row = (3,) if method in ("predict_proba", "transform") else ()
    assert for_all.shape == (N_SAMPLES, *a_row)
    by_client = answer(as_sequence(CLIENTS))
    assert isinstance(by_client, tuple)
    assert len(by_client) == N_CLIENTS
    for owner, values in enumerate(by_client):
        assert_allclose(values, for_all[owner == OWNERS], rtol=1e-12, atol=1e-300)


def test_predictions_agree_with_each_other(fitted):
    posterior = fitted.predict_proba(X)
    assert_allclose(posterior.sum(axis=1), 1)
    assert_array_equal(fitted.predict(X), posterior.argmax(axis=1))
    assert_array_equal(fitted.transform(X), posterior)
    assert adjusted_rand_score(COMPONENTS, fitted.predict(X)) == 1


def test_a_component_of_weight_zero_has_no_share_of_any_row():
    # A start that is not moved, and whose other component is the standard normal distribution.
    start = {"weights_init": [0, 1], "means_init": [[1, 1], [0, 0]], "precisions_init": np.eye(2)}
    gm = FederatedGaussianMixture(2, covariance_type="tied", **start, max_iter=0).fit(CLIENTS)
    assert_array_equal(gm.predict_proba(X), np.tile([0.0, 1.0], (N_SAMPLES, 1)))
    assert_array_equal(gm.predict(X), 1)
    squared = (X**2).sum(axis=1)
    assert_allclose(gm.score_samples(X), -np.log(2 * np.pi) - squared / 2, rtol=1e-9)


def test_score_is_the_mean_over_rows_not_over_clients(fitted):
    by_row = fitted.score_samples(X)
    by_client = [fitted.score(client) for client in CLIENTS]
    assert isinstance(fitted.score(X), float)
    assert_allclose(fitted.score(X), by_row.mean())
    assert_allclose(fitted.score(CLIENTS), by_row.mean())
    assert_allclose(np.average(by_client, weights=LENGTHS), by_row.mean())
    assert abs(np.mean(by_client) - by_row.mean()) > 1e-3


@pytest.mark.parametrize("parameters", [EXACT, STOCHASTIC], ids=["exact", "stochastic"])
def test_fit_predict_is_a_fit_and_its_predictions(parameters):
    gm = FederatedGaussianMixture(**parameters)
    labels = gm.fit_predict(X, clients=OWNERS)
    assert_array_equal(labels, gm.predict(X))
    assert gm.n_clients_ == N_CLIENTS
    by_client = FederatedGaussianMixture(**parameters).fit_predict(CLIENTS)
    assert isinstance(by_client, tuple)
    for owner, values in enumerate(by_client):
        assert_array_equal(values, labels[owner == OWNERS])


def test_fit_transform_is_a_fit_and_its_probabilities():
    gm = FederatedGaussianMixture(**EXACT)
    posterior = gm.fit_transform(X, clients=OWNERS)
    assert gm.n_clients_ == N_CLIENTS
    assert_array_equal(posterior, gm.transform(X))
    by_client = FederatedGaussianMixture(**EXACT).fit_transform(CLIENTS)
    assert isinstance(by_client, tuple)
    assert_allclose(by_client[2], posterior[OWNERS == 2], rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_samples_come_from_the_mixture(covariance_type):
    gm = FederatedGaussianMixture(
        **{**EXACT, "covariance_type": covariance_type, "client_weights": "uniform"}
    ).fit(CLIENTS)
    n_samples = 4000
    rows, components = gm.sample(n_samples)
    assert rows.shape == (n_samples, 2)
    assert components.shape == (n_samples,)
    # Six standard errors of a share, and of a mean.
    share = np.bincount(components, minlength=3) / n_samples
    assert_allclose(share, gm.weights_, atol=6 * np.sqrt(0.25 / n_samples))
    for g in range(3):
        of_component = rows[components == g]
        error = 6 * of_component.std(axis=0) / np.sqrt(len(of_component))
        assert (np.abs(of_component.mean(axis=0) - gm.means_[g]) < error).all()
    assert_array_equal(rows, gm.sample(n_samples)[0])
    assert gm.sample()[0].shape == (1, 2)


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_samples_have_the_covariances_of_features_in_unlike_units(covariance_type):
    rng = np.random.default_rng(0)
    scales = np.array([1e-7, 1.0, 1e7])
    if covariance_type == "spherical":
        scales[:] = 1e7
    rows = rng.normal(size=(500, 3)) @ (np.eye(3) + 0.5) * scales
    gm = FederatedGaussianMixture(
        1, covariance_type=covariance_type, reg_covar=1e-18, random_state=0
    ).fit(rows)
    drawn = gm.sample(20_000)[0] / scales
    want = (rows / scales).T @ (rows / scales) / len(rows)
    want -= np.outer(rows.mean(axis=0) / scales, rows.mean(axis=0) / scales)
    if covariance_type in ("diag", "spherical"):
        want = np.diag(np.diag(want))
    if covariance_type == "spherical":
        want = np.diag(want).mean() * np.eye(3)
    # Six standard errors of a covariance, √(2 / 20,000) of the largest variance.
    assert_allclose(np.cov(drawn.T), want, atol=6 * 0.01 * want.max())


def test_posterior_probabilities_of_a_row_far_away_sum_to_one():
    rng = np.random.default_rng(0)
    rows = np.column_stack([np.r_[rng.normal(-4, 1, 100), rng.normal(4, 1, 100)], np.zeros(200)])
    gm = FederatedGaussianMixture(2, random_state=0).fit(rows)
    far = [[0.3, 10.0**k] for k in range(9)]
    assert_allclose(gm.predict_proba(far).sum(axis=1), 1, rtol=1e-14)
    assert_array_equal(gm.transform(far), gm.predict_proba(far))


def sklearn_mixture_of(gm):
    """scikit-learn's mixture with the parameters of a fit."""
    mixture = GaussianMixture(gm.n_components, covariance_type=gm.covariance_type)
    mixture.weights_, mixture.means_ = gm.weights_, gm.means_
    mixture.covariances_, mixture.precisions_ = gm.covariances_, gm.precisions_
    mixture.precisions_cholesky_ = gm.precisions_cholesky_
    return mixture


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_answers_and_criteria_are_those_of_scikit_learn(covariance_type):
    gm = FederatedGaussianMixture(**{**EXACT, "covariance_type": covariance_type}).fit(CLIENTS)
    pooled = sklearn_mixture_of(gm)
    assert_allclose(gm.predict_proba(X), pooled.predict_proba(X), atol=1e-10)
    assert_allclose(gm.score_samples(X), pooled.score_samples(X), rtol=1e-9)
    for criterion in ("aic", "bic"):
        want = getattr(pooled, criterion)(X)
        assert_allclose(getattr(gm, criterion)(X), want, rtol=1e-12)
        assert_allclose(getattr(gm, criterion)(CLIENTS), want, rtol=1e-12)
        assert isinstance(getattr(gm, criterion)(X), float)
        with pytest.raises(TypeError):
            getattr(gm, criterion)(X, COMPONENTS)  # which ``score`` ignores, as labels


def test_parameters_that_a_subclass_hides_are_used():
    known = {**EXACT, "covariance_type": "tied", "fixed_covariance": np.eye(2)}
    gm = WithKeywords(**known).fit(CLIENTS)
    assert_array_equal(gm.covariances_, np.eye(2))
    assert_array_equal(gm.means_, FederatedGaussianMixture(**known).fit(CLIENTS).means_)
    # Short integers would overflow.
    short, plain = ({**STOCHASTIC, "batch_size": kind(5)} for kind in (np.int8, int))
    gm = WithKeywords(**short).fit(CLIENTS)
    assert_array_equal(gm.means_, FederatedGaussianMixture(**plain).fit(CLIENTS).means_)


def test_a_fixed_covariance_has_no_parameters():
    gm = FederatedGaussianMixture(
        **EXACT, covariance_type="tied", fixed_covariance=[[1.0, 0.2], [0.2, 0.8]]
    ).fit(CLIENTS)
    assert_allclose(gm.covariances_, [[1.0, 0.2], [0.2, 0.8]], rtol=1e-12)
    assert_allclose(gm.precisions_ @ gm.covariances_, np.eye(2), atol=1e-12)
    n_covariance_parameters = 3  # of a symmetric 2 x 2 matrix
    pooled = sklearn_mixture_of(gm)
    assert_allclose(gm.aic(X), pooled.aic(X) - 2 * n_covariance_parameters, rtol=1e-12)
    assert_allclose(
        gm.bic(X), pooled.bic(X) - np.log(N_SAMPLES) * n_covariance_parameters, rtol=1e-12
    )


@pytest.mark.parametrize("method", ["predict", "predict_proba", "score_samples"])
def test_small_arrays_are_answered_as_each_alone(method):
    gm = FederatedGaussianMixture(**EXACT).fit(CLIENTS)
    answers = getattr(gm, method)
    rng = np.random.default_rng(0)
    small = [X[rng.integers(len(X), size=rng.integers(1, 4))] for _ in range(2500)]
    together = answers(small)
    assert isinstance(together, tuple)
    assert len(together) == len(small)
    for one, rows in zip(together[::10], small[::10], strict=True):
        assert_allclose(one, answers(rows), rtol=1e-10)
    assert_allclose(gm.score(small), gm.score(np.concatenate(small)), rtol=1e-12)
    small[120] = np.full((2, 2), np.nan)
    with pytest.raises(ValueError, match="client 120: .*NaN"):
        answers(small)
    small[120] = np.array(3.0)
    with pytest.raises(ValueError, match="client 120: .*2D"):
        answers(small)
    small[120] = np.zeros((2, 3))
    with pytest.raises(ValueError, match="client 120: .* 3 features"):
        answers(small)


@pytest.mark.parametrize("method", ["predict", "predict_proba", "score_samples"])
def test_answers_in_blocks_of_rows(method, monkeypatch):
    gm = FederatedGaussianMixture(**EXACT).fit(CLIENTS)
    whole = getattr(gm, method)(X)
    monkeypatch.setattr("skfedem._mixture.prediction._BLOCK", 3 * 7)  # seven rows
    assert_allclose(getattr(gm, method)(X), whole, rtol=1e-10)
    assert getattr(gm, method)(X[:1]).shape == whole[:1].shape


# ------------------------------------------------------------------ scikit-learn's ways


def test_feature_names_out(fitted):
    names = fitted.get_feature_names_out()
    assert names.tolist() == [f"federatedgaussianmixture{g}" for g in range(3)]


def test_set_output_makes_every_client_a_frame(fitted):
    arrays = fitted.transform(CLIENTS)
    fitted.set_output(transform="pandas")
    frame = fitted.transform(X)
    assert isinstance(frame, pd.DataFrame)
    assert frame.columns.tolist() == fitted.get_feature_names_out().tolist()
    frames = fitted.transform(CLIENTS)
    assert isinstance(frames, tuple)
    for values, array in zip(frames, arrays, strict=True):
        assert isinstance(values, pd.DataFrame)
        assert values.columns.tolist() == frame.columns.tolist()
        assert_array_equal(values.to_numpy(), array)
    tables = [table.set_index(table.index + 100) for table in FRAMES]
    refitted = fitted.fit_transform(tables)
    assert [values.index.tolist() for values in refitted] == [
        table.index.tolist() for table in tables
    ]
    assert isinstance(fitted.predict_proba(FRAMES[0]), np.ndarray)


def pipeline():
    return Pipeline(
        [("scale", StandardScaler()), ("gm", FederatedGaussianMixture(3, random_state=0))]
    )


prefix_and_routing = pytest.mark.parametrize(
    ("routing", "key"), [(False, "gm__clients"), (True, "clients")], ids=["prefix", "routing"]
)


@prefix_and_routing
def test_the_last_step_of_a_pipeline_is_fitted_as_it_is_alone(routing, key):
    with sklearn.config_context(enable_metadata_routing=routing):
        pipe = pipeline().fit(X, **{key: NAMES[OWNERS]})
        predicted = pipeline().fit_predict(X, **{key: OWNERS})
        transformed = pipeline().fit_transform(X, **{key: OWNERS})
    scaled = StandardScaler().fit_transform(X)
    assert_same_fit(pipe["gm"], clone(pipe["gm"]).fit(scaled, clients=OWNERS))
    assert pipe["gm"].client_ids_.tolist() == NAMES.tolist()
    assert_array_equal(predicted, pipe.predict(X))
    assert_array_equal(transformed, pipe.transform(X))
    assert pipe.get_feature_names_out().tolist() == pipe["gm"].get_feature_names_out().tolist()


N_FOLDS = 2
GRID = {"step_size": ["auto", 0.3], "omega": [0.0, 1.0], "participation": [0.6, 1.0]}
SEARCHED = {
    "n_components": 2,
    "covariance_type": "tied",
    "means_init": CENTERS[:2],
    "tol": 10.0,
    "random_state": 0,
}


def scores_by_hand(parameters, fit_fold, n_items):
    folds = KFold(N_FOLDS).split(np.zeros(n_items))
    return [fit_fold(FederatedGaussianMixture(**parameters), *fold) for fold in folds]


def labelled_fold(gm, train, test):
    return gm.fit(X[train], clients=NAMES[OWNERS][train]).score(X[test])


def listed_fold(gm, train, test):
    return gm.fit([CLIENTS[i] for i in train]).score([CLIENTS[i] for i in test])


def assert_searched(search, fit_fold, n_items):
    """Every score of a search is what the same fold gives by hand."""
    results = search.cv_results_
    assert len(results["params"]) == 8
    for k, parameters in enumerate(results["params"]):
        got = [results[f"split{fold}_test_score"][k] for fold in range(N_FOLDS)]
        assert_allclose(got, scores_by_hand({**SEARCHED, **parameters}, fit_fold, n_items))
    assert search.best_estimator_.n_clients_ == N_CLIENTS
    assert len(np.unique(results["mean_test_score"])) > 4


def test_grid_search_over_a_list_of_clients():
    search = GridSearchCV(FederatedGaussianMixture(**SEARCHED), GRID, cv=N_FOLDS).fit(CLIENTS)
    assert_searched(search, listed_fold, N_CLIENTS)
    assert isinstance(search.predict(CLIENTS), tuple)
    assert search.predict(X).shape == (N_SAMPLES,)


def test_grid_search_over_labelled_rows():
    with sklearn.config_context(enable_metadata_routing=True):
        search = GridSearchCV(FederatedGaussianMixture(**SEARCHED), GRID, cv=N_FOLDS)
        search.fit(X, clients=NAMES[OWNERS])
    assert_searched(search, labelled_fold, N_SAMPLES)
    assert search.best_estimator_.client_ids_.tolist() == NAMES.tolist()


@prefix_and_routing
def test_grid_search_over_a_pipeline(routing, key):
    def scaled_fold(gm, train, test):
        scale = StandardScaler().fit(X[train])
        gm.fit(scale.transform(X[train]), clients=OWNERS[train])
        return gm.score(scale.transform(X[test]))

    steps = [("scale", StandardScaler()), ("gm", FederatedGaussianMixture(**SEARCHED))]
    with sklearn.config_context(enable_metadata_routing=routing):
        search = GridSearchCV(Pipeline(steps), {"gm__participation": [0.6, 1.0]}, cv=N_FOLDS)
        search.fit(X, **{key: OWNERS})
    for k, participation in enumerate([0.6, 1.0]):
        parameters = {**SEARCHED, "participation": participation}
        got = [search.cv_results_[f"split{fold}_test_score"][k] for fold in range(N_FOLDS)]
        assert_allclose(got, scores_by_hand(parameters, scaled_fold, N_SAMPLES))
    assert search.best_estimator_["gm"].n_clients_ == N_CLIENTS


COMPRESSED = {**STOCHASTIC, "compressor": Dithering(levels=3)}


def test_a_clone_has_the_parameters_and_a_pickle_the_fit():
    gm = FederatedGaussianMixture(**COMPRESSED).fit(X, clients=NAMES[OWNERS])
    copy = clone(gm)
    assert copy.get_params().keys() == gm.get_params().keys()
    assert copy.compressor == gm.compressor
    assert not [name for name in vars(copy) if name.endswith("_")]
    loaded = pickle.loads(pickle.dumps(gm))
    assert_same_fit(loaded, gm)
    assert loaded.client_ids_.tolist() == NAMES.tolist()
    for again in (copy, loaded):
        assert_same_fit(again.fit(X, clients=NAMES[OWNERS]), gm)


def test_parameters_nest_in_a_pipeline():
    pipe = pipeline().set_params(gm__omega=2.0, gm__step_size=0.5, gm__participation=0.3)
    assert pipe["gm"].omega == 2.0
    assert pipe.get_params()["gm__step_size"] == 0.5


def test_a_fit_changes_no_parameter_and_no_row():
    parameters = {
        **STOCHASTIC,
        "means_init": CENTERS.copy(),
        "weights_init": np.full(3, 1 / 3),
        "precisions_init": np.eye(2),
    }
    gm = FederatedGaussianMixture(**parameters)
    before = {name: getattr(gm, name) for name in gm.get_params()}
    tables = [client.copy() for client in CLIENTS]
    labels = OWNERS.copy()
    gm.fit(tables)
    gm.fit(np.array(X), clients=labels)
    assert all(getattr(gm, name) is value for name, value in before.items())
    assert_array_equal(parameters["means_init"], CENTERS)
    assert_array_equal(parameters["weights_init"], np.full(3, 1 / 3))
    assert_array_equal(parameters["precisions_init"], np.eye(2))
    assert_array_equal(np.concatenate(tables), np.concatenate(CLIENTS))
    assert_array_equal(labels, OWNERS)


# ------------------------------------------------------------------ after a fit


def test_samples_are_those_of_the_fit_after_set_params():
    gm = FederatedGaussianMixture(2, covariance_type="tied", random_state=0).fit(CLIENTS)
    rows, components = gm.sample(10)
    again = gm.set_params(covariance_type="full").sample(10)
    assert_array_equal(again[0], rows)
    assert_array_equal(again[1], components)


def test_a_fit_is_what_it_was_after_set_params(fitted):
    parameters = {"n_components": 5, "covariance_type": "diag", "fixed_covariance": np.eye(2)}
    want = [getattr(fitted, method)(X) for method in ("predict_proba", "score", "aic", "bic")]
    changed = clone(fitted).fit(CLIENTS).set_params(**parameters)
    for got, method in zip(want, ("predict_proba", "score", "aic", "bic"), strict=True):
        assert_array_equal(getattr(changed, method)(X), got)
    assert changed.sample(4)[0].shape == (4, 2)


@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag", "spherical"])
def test_what_is_loaded_answers_as_what_was_saved_bit_for_bit(covariance_type):
    rows = np.random.default_rng(0).normal(size=(500, 5)) @ np.diag([1, 10, 100, 1, 1])
    gm = FederatedGaussianMixture(3, covariance_type=covariance_type, random_state=0, tol=0.1)
    loaded = pickle.loads(pickle.dumps(gm.fit([rows])))
    # An array in another order of memory would be the same, but not its products.
    for name, value in vars(gm).items():
        if isinstance(value, np.ndarray):
            assert value.strides == getattr(loaded, name).strides, name
    for method in ("predict_proba", "score_samples"):
        assert_array_equal(getattr(loaded, method)(rows), getattr(gm, method)(rows))
    assert_array_equal(loaded.sample(20)[0], gm.sample(20)[0])
