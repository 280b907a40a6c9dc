import pickle
import re
import threading
import warnings
from functools import cache

import joblib
import numpy as np
import pandas as pd
import pytest
import sklearn
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.datasets import load_iris
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV, KFold, cross_validate
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state

from problems import assert_same_fit, fit_unconverged, lower_bounds
from skfedem import FederatedGaussianMixture, _fitted_mixture, _parallel
from skfedem._federation import Federation, offsets_of, weights_of_clients
from skfedem._random import INITIALISATION, generator
from skfedem.compression import BlockQuantizer, Compressor, Dithering, Identity, RandK
from skfedem.models import mixture_assignment, mixture_start
from skfedem.models.gaussian_mixture import GaussianMixtureModel
from skfedem.models.mixture_given import Given
from skfedem.preprocessing import FederatedStandardScaler
from skfedem.solvers._base import ServerState
from skfedem.solvers._loop import Run
from skfedem.solvers._report import (
    Wording,
    _how_to_travel_on,
    _rounds_enough,
    _warn_of_steps,
    calmer,
)

COVARIANCE_TYPES = ("full", "tied", "diag", "spherical")
CENTERS = np.array([[-6.0, 0.0], [6.0, 0.0], [0.0, 8.0]])
# Rows of each component at each client: label-skewed, and of different lengths.
ROWS_OF_COMPONENTS = [(20, 0, 0), (31, 0, 0), (0, 25, 0), (0, 12, 0), (0, 0, 30), (9, 8, 7)]
LENGTHS = np.array(ROWS_OF_COMPONENTS).sum(axis=1)
N_CLIENTS, N_FEATURES, N_COMPONENTS, N_SAMPLES = len(LENGTHS), 2, 3, int(LENGTHS.sum())
HISTORY_COLUMNS = {
    "round",
    "epoch",
    "log_likelihood",
    "field_sq_norm",
    "mean_field_sq_norm",
    "step_size",
    "n_active",
    "uplink_bits",
    "downlink_bits",
    "safeguarded",
    "weights",
}
# Random in every way at once. With this tolerance it converges, and says nothing, after the three
# sweeps of ten rounds that are the least.
STOCHASTIC = {
    "n_components": 3,
    "covariance_type": "tied",
    "solver": "vr_fedem",
    "step_size": 0.125,
    "omega": 1.0,
    "participation": 0.7,
    "batch_size": 4,
    "means_init": CENTERS / 2,
    "tol": 20.0,
    "max_iter": 2000,
    "random_state": 0,
}
EXACT = {"n_components": 3, "means_init": CENTERS / 2, "random_state": 0}


def make_rows():
    rng = np.random.default_rng(0)
    components = np.concatenate([np.repeat(range(3), counts) for counts in ROWS_OF_COMPONENTS])
    owners = np.repeat(np.arange(N_CLIENTS), LENGTHS)
    shuffled = rng.permutation(N_SAMPLES)
    components, owners = components[shuffled], owners[shuffled]
    rows = CENTERS[components] + rng.normal(size=(N_SAMPLES, N_FEATURES))
    for array in (rows, components, owners):
        array.setflags(write=False)
    return rows, components, owners


# Rows of all clients, mixed up; read-only, so that no fit may change them.
X, COMPONENTS, OWNERS = make_rows()
CLIENTS = [X[owner == OWNERS] for owner in range(N_CLIENTS)]
FRAMES = [pd.DataFrame(client, columns=["length", "width"]) for client in CLIENTS]


@pytest.fixture
def fitted():
    return FederatedGaussianMixture(**EXACT).fit(CLIENTS)


def evaluated_rows(estimator, column="log_likelihood"):
    return np.flatnonzero(~np.isnan(estimator.history_[column])).tolist()


# ------------------------------------------------------------------ forms of input


@pytest.mark.parametrize(
    "tables",
    [
        tuple(CLIENTS),
        FRAMES,
        [client.tolist() for client in CLIENTS],
        [np.asfortranarray(client) for client in CLIENTS],
        [np.repeat(client, 2, axis=0)[::2] for client in CLIENTS],
        [frame.set_index(frame.index + 7) for frame in FRAMES],
        [frame.astype("Float64") for frame in FRAMES],
    ],
    ids=["tuple", "frames", "nested lists", "fortran", "strided", "odd index", "nullable"],
)
def test_tables_of_any_kind_give_the_fit_of_a_list_of_arrays(tables):
    want = FederatedGaussianMixture(**STOCHASTIC).fit(CLIENTS)
    got = FederatedGaussianMixture(**STOCHASTIC).fit(tables)
    assert_same_fit(got, want)
    assert got.client_ids_.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_the_layout_of_tables_in_memory_changes_no_digit(covariance_type):
    # Columns of a DataFrame lie one after the other, rows of an array do.
    given = {**STOCHASTIC, "covariance_type": covariance_type}
    want = FederatedGaussianMixture(**given).fit(CLIENTS)
    columns = [np.asfortranarray(client) for client in CLIENTS]
    assert_same_fit(FederatedGaussianMixture(**given).fit(columns), want)


@cache
def fit_of_the_list():
    return FederatedGaussianMixture(**STOCHASTIC).fit(CLIENTS)


NAMES = np.array(["ash", "birch", "cedar", "elm", "fir", "oak"])
DAYS = pd.to_datetime("2024-02-27") + pd.to_timedelta(np.arange(N_CLIENTS), "D")


@pytest.mark.parametrize(
    ("labels", "ids"),
    [
        (OWNERS, range(6)),
        (10 * OWNERS - 25, [-25, -15, -5, 5, 15, 25]),
        (OWNERS.tolist(), range(6)),
        (OWNERS / 4, np.arange(6) / 4),
        (NAMES[OWNERS], NAMES),
        (NAMES[OWNERS].tolist(), NAMES),
        (NAMES[OWNERS].astype(object), NAMES),
        (OWNERS.astype(object), range(6)),
        (pd.Series(NAMES[OWNERS], index=np.arange(N_SAMPLES)[::-1]), NAMES),
        (pd.Categorical(NAMES[OWNERS], categories=[*NAMES[::-1], "unused"]), NAMES),
        (pd.Series(NAMES[OWNERS], dtype="category"), NAMES),
        (pd.Series(OWNERS, dtype="Int64"), range(6)),
        (DAYS[OWNERS], DAYS.to_numpy()),
    ],
    ids=[
        "int",
        "negative int",
        "list of int",
        "float",
        "str",
        "list of str",
        "object of str",
        "object of int",
        "series, other index",
        "categorical",
        "series of categories",
        "nullable int",
        "dates",
    ],
)
@pytest.mark.parametrize("table", [X, pd.DataFrame(X)], ids=["array", "frame"])
def test_labelled_rows_give_the_fit_of_a_list(table, labels, ids):
    got = FederatedGaussianMixture(**STOCHASTIC).fit(table, clients=labels)
    assert_same_fit(got, fit_of_the_list())
    assert got.n_clients_ == 6
    assert list(got.client_ids_) == list(ids)


def test_clients_are_the_sorted_labels_whatever_they_are_called():
    names = np.array(["f", "e", "d", "c", "b", "a"])
    got = FederatedGaussianMixture(**STOCHASTIC).fit(X, clients=names[OWNERS])
    assert_same_fit(got, FederatedGaussianMixture(**STOCHASTIC).fit(CLIENTS[::-1]))
    assert got.client_ids_.tolist() == ["a", "b", "c", "d", "e", "f"]


@pytest.mark.parametrize("parameters", [EXACT, STOCHASTIC], ids=["exact", "stochastic"])
def test_one_table_is_one_client(parameters):
    alone = FederatedGaussianMixture(**parameters).fit(X)
    assert_same_fit(alone, FederatedGaussianMixture(**parameters).fit([X]))
    assert_same_fit(alone, FederatedGaussianMixture(**parameters).fit(X, clients=["a"] * len(X)))
    assert alone.n_clients_ == 1
    assert alone.client_ids_.tolist() == [0]


def test_a_list_of_rows_is_one_table():
    got = FederatedGaussianMixture(**EXACT).fit(X.tolist())
    assert_same_fit(got, FederatedGaussianMixture(**EXACT).fit(X))


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_the_defaults_are_em_on_the_pooled_rows(covariance_type):
    start = FederatedGaussianMixture(
        3, covariance_type=covariance_type, max_iter=0, random_state=0
    ).fit(CLIENTS)
    pooled = GaussianMixture(
        3,
        covariance_type=covariance_type,
        weights_init=start.weights_,
        means_init=start.means_,
        precisions_init=start.precisions_,
    ).fit(X)
    federated = FederatedGaussianMixture(3, covariance_type=covariance_type, random_state=0).fit(
        CLIENTS
    )
    assert federated.n_iter_ == pooled.n_iter_
    assert federated.converged_
    assert_allclose(federated.lower_bounds_, lower_bounds(pooled, X), rtol=1e-9)
    for name in ("weights_", "means_", "covariances_", "precisions_", "precisions_cholesky_"):
        assert_allclose(getattr(federated, name), getattr(pooled, name), rtol=1e-8, atol=1e-10)
    assert_allclose(federated.predict_proba(X), pooled.predict_proba(X), atol=1e-10)
    assert_allclose(federated.score_samples(X), pooled.score_samples(X), rtol=1e-9)


def test_rows_far_from_the_origin_give_the_fit_of_centred_ones(fitted):
    shift = 1e6
    moved = FederatedGaussianMixture(**{**EXACT, "means_init": CENTERS / 2 + shift})
    moved.fit([client + shift for client in CLIENTS])
    assert_allclose(moved.means_ - shift, fitted.means_, atol=1e-8)
    assert_allclose(moved.covariances_, fitted.covariances_, rtol=1e-7, atol=1e-8)
    # Adding the shift has rounded the rows themselves to about 1e-10.
    assert_allclose(moved.score_samples(X + shift), fitted.score_samples(X), atol=1e-7)
    assert_allclose(moved.predict_proba(X + shift), fitted.predict_proba(X), atol=1e-8)


def test_float32_rows_are_read_as_the_numbers_they_are():
    rows = X.astype(np.float32)
    want = FederatedGaussianMixture(**EXACT).fit(rows.astype(np.float64))
    got = FederatedGaussianMixture(**EXACT).fit(rows)
    assert_allclose(got.means_, want.means_, rtol=1e-12, atol=1e-12)
    assert_allclose(got.covariances_, want.covariances_, rtol=1e-10, atol=1e-12)
    assert got.means_.dtype == np.float64
    assert got.predict_proba(rows).shape == (N_SAMPLES, 3)


def test_clients_may_differ_in_dtype():
    as_integers = [client.round() for client in CLIENTS]
    want = FederatedGaussianMixture(**EXACT).fit(as_integers)
    dtypes = [np.int8, np.int64, np.float32, np.float64, np.float16, np.int16]
    mixed = [client.astype(dtype) for client, dtype in zip(as_integers, dtypes, strict=True)]
    assert_same_fit(FederatedGaussianMixture(**EXACT).fit(mixed), want)


def test_read_only_memory_maps(tmp_path):
    joblib.dump(np.array(X), tmp_path / "rows")
    rows = joblib.load(tmp_path / "rows", mmap_mode="r")
    assert isinstance(rows, np.memmap)
    assert not rows.flags.writeable
    want = FederatedGaussianMixture(**STOCHASTIC).fit(CLIENTS)
    assert_same_fit(FederatedGaussianMixture(**STOCHASTIC).fit(rows, clients=OWNERS), want)
    pieces = [rows[owner == OWNERS] for owner in range(N_CLIENTS)]
    assert_same_fit(FederatedGaussianMixture(**STOCHASTIC).fit(pieces), want)
    assert_array_equal(want.predict(rows), want.predict(X))


def test_feature_names():
    named = FederatedGaussianMixture(**EXACT).fit(FRAMES)
    assert named.feature_names_in_.tolist() == ["length", "width"]
    assert named.n_features_in_ == 2
    with pytest.raises(ValueError, match="feature names should match"):
        named.predict([FRAMES[0][["width", "length"]]])
    named.fit(CLIENTS)
    assert not hasattr(named, "feature_names_in_")


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
def test_fit_predict(parameters):
    gm = FederatedGaussianMixture(**parameters)
    labels = gm.fit_predict(X, clients=OWNERS)
    assert_array_equal(labels, gm.predict(X))
    assert gm.n_clients_ == N_CLIENTS
    by_client = FederatedGaussianMixture(**parameters).fit_predict(CLIENTS)
    assert isinstance(by_client, tuple)
    for owner, values in enumerate(by_client):
        assert_array_equal(values, labels[owner == OWNERS])


def test_fit_transform():
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
def test_information_criteria_are_those_of_scikit_learn(covariance_type):
    gm = FederatedGaussianMixture(**{**EXACT, "covariance_type": covariance_type}).fit(CLIENTS)
    pooled = sklearn_mixture_of(gm)
    for criterion in ("aic", "bic"):
        want = getattr(pooled, criterion)(X)
        assert_allclose(getattr(gm, criterion)(X), want, rtol=1e-12)
        assert_allclose(getattr(gm, criterion)(CLIENTS), want, rtol=1e-12)
        assert isinstance(getattr(gm, criterion)(X), float)


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


def test_a_known_covariance_is_the_fixed_point_of_means_and_weights():
    gm = FederatedGaussianMixture(
        **EXACT, covariance_type="tied", fixed_covariance=np.eye(2), tol=0.0
    )
    fit_unconverged(gm, CLIENTS)
    posterior = gm.predict_proba(X)
    assert_allclose(gm.weights_, posterior.mean(axis=0), rtol=1e-10)
    assert_allclose(gm.means_, posterior.T @ X / posterior.sum(axis=0)[:, None], rtol=1e-8)


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


def direct_fit():
    return FederatedGaussianMixture(3, random_state=0).fit(
        StandardScaler().fit_transform(X), clients=OWNERS
    )


def test_pipeline_without_metadata_routing():
    pipe = pipeline().fit(X, gm__clients=NAMES[OWNERS])
    assert_same_fit(pipe["gm"], direct_fit())
    assert pipe["gm"].client_ids_.tolist() == NAMES.tolist()
    assert_array_equal(pipeline().fit_predict(X, gm__clients=OWNERS), pipe.predict(X))
    assert_array_equal(pipeline().fit_transform(X, gm__clients=OWNERS), pipe.transform(X))
    assert pipe.get_feature_names_out().tolist() == pipe["gm"].get_feature_names_out().tolist()


def test_pipeline_with_metadata_routing():
    with sklearn.config_context(enable_metadata_routing=True):
        pipe = pipeline().fit(X, clients=NAMES[OWNERS])
        predicted = pipeline().fit_predict(X, clients=OWNERS)
        transformed = pipeline().fit_transform(X, clients=OWNERS)
    assert_same_fit(pipe["gm"], direct_fit())
    assert_array_equal(predicted, pipe.predict(X))
    assert_array_equal(transformed, pipe.transform(X))


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


@pytest.mark.parametrize("routing", [False, True])
def test_grid_search_over_labelled_rows(routing):
    with sklearn.config_context(enable_metadata_routing=routing):
        search = GridSearchCV(FederatedGaussianMixture(**SEARCHED), GRID, cv=N_FOLDS)
        search.fit(X, clients=NAMES[OWNERS])
    assert_searched(search, labelled_fold, N_SAMPLES)
    assert search.best_estimator_.client_ids_.tolist() == NAMES.tolist()


@pytest.mark.parametrize(
    ("routing", "key"), [(False, "gm__clients"), (True, "clients")], ids=["prefix", "routing"]
)
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


@pytest.mark.parametrize("routing", [False, True])
def test_cross_validate(routing):
    gm = FederatedGaussianMixture(**SEARCHED)
    with sklearn.config_context(enable_metadata_routing=routing):
        by_rows = cross_validate(gm, X, params={"clients": NAMES[OWNERS]}, cv=N_FOLDS)
        by_clients = cross_validate(gm, CLIENTS, params={}, cv=N_FOLDS)
    assert_allclose(by_rows["test_score"], scores_by_hand(SEARCHED, labelled_fold, N_SAMPLES))
    assert_allclose(by_clients["test_score"], scores_by_hand(SEARCHED, listed_fold, N_CLIENTS))


COMPRESSED = {**STOCHASTIC, "compressor": Dithering(levels=3)}


def test_clone_has_the_parameters_and_not_the_fit():
    gm = FederatedGaussianMixture(**COMPRESSED).fit(CLIENTS)
    copy = clone(gm)
    assert copy.get_params().keys() == gm.get_params().keys()
    assert copy.compressor == gm.compressor
    assert not [name for name in vars(copy) if name.endswith("_")]
    assert_same_fit(copy.fit(CLIENTS), gm)


@pytest.mark.parametrize("how", ["pickle", "joblib"])
def test_persistence(how, tmp_path):
    gm = FederatedGaussianMixture(**COMPRESSED).fit(X, clients=NAMES[OWNERS])
    if how == "pickle":
        copy = pickle.loads(pickle.dumps(gm))
    else:
        joblib.dump(gm, tmp_path / "gm.joblib")
        copy = joblib.load(tmp_path / "gm.joblib")
    assert_same_fit(copy, gm)
    assert copy.client_ids_.tolist() == NAMES.tolist()
    assert_array_equal(copy.predict_proba(X), gm.predict_proba(X))
    assert_same_fit(copy.fit(X, clients=NAMES[OWNERS]), gm)


def test_representations():
    gm = FederatedGaussianMixture(3, omega=2.0, compressor=Dithering(levels=3))
    text = repr(gm)
    assert "n_components=3" in text
    assert "Dithering(levels=3" in text
    assert "participation" not in text  # a default
    assert "FederatedGaussianMixture" in gm._repr_html_()


def test_parameters_are_flat_and_nest_in_a_pipeline():
    pipe = pipeline().set_params(gm__omega=2.0, gm__step_size=0.5, gm__participation=0.3)
    assert pipe["gm"].omega == 2.0
    assert pipe.get_params()["gm__step_size"] == 0.5
    assert set(FederatedGaussianMixture().get_params()) == {
        "n_components", "covariance_type", "fixed_covariance", "solver", "step_size",
        "control_step", "control_init", "batch_size", "replacement", "n_inner", "compressor",
        "omega", "participation", "client_weights", "max_iter", "max_epochs", "tol", "reg_covar",
        "n_init", "init_params", "weights_init", "means_init", "precisions_init", "eval_every",
        "random_state", "warm_start", "n_jobs", "checkpoint", "checkpoint_every", "verbose",
    }  # fmt: skip


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


# ------------------------------------------------------------------ randomness and workers


def test_a_seed_gives_the_same_fit_every_time():
    first, second = (FederatedGaussianMixture(**STOCHASTIC).fit(CLIENTS) for _ in range(2))
    assert_same_fit(first, second)
    other = FederatedGaussianMixture(**{**STOCHASTIC, "random_state": 1}).fit(CLIENTS)
    assert (other.means_ != first.means_).any()


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


class Recording(Compressor):
    """A compressor that keeps what it returned, and which threads asked."""

    def __init__(self, inner):
        self.inner = inner
        self.sent, self.threads = [], set()

    def compress(self, values, uniforms, lengths=None):
        self.threads.add(threading.get_ident())
        compressed = self.inner.compress(values, uniforms, lengths)
        self.sent.append(compressed.copy())
        return compressed

    def omega_for(self, length):
        return self.inner.omega_for(length)

    def variance(self, values, lengths=None):
        return self.inner.variance(values, lengths)

    def n_bytes(self, values, lengths=None):
        return self.inner.n_bytes(values, lengths)

    def encode(self, values):
        return self.inner.encode(values)

    def decode(self, data):
        return self.inner.decode(data)


@pytest.mark.parametrize("solver", ["fedem", "vr_fedem"])
def test_n_jobs_changes_nothing(solver, monkeypatch):
    # Also calls as short as these go to the threads.
    monkeypatch.setattr(_parallel, "_WORTH_SHARING", 0.0)
    rng = np.random.default_rng(3)
    # Three groups of at most 1024 clients for two workers: their order could go wrong.
    clients = [rng.normal(size=(2 + i % 3, 2)) for i in range(2500)]
    parameters = {**STOCHASTIC, "solver": solver, "participation": 0.9}
    fits, recordings = {}, {}
    for n_jobs in (None, 2):
        recordings[n_jobs] = Recording(Dithering(omega=1.0))
        gm = FederatedGaussianMixture(
            **{**parameters, "n_jobs": n_jobs, "compressor": recordings[n_jobs]}
        )
        fits[n_jobs] = gm.fit(clients)
    assert len(recordings[None].threads) == 1
    assert len(recordings[2].threads) > 1
    assert_same_fit(fits[2], fits[None])


# ------------------------------------------------------------------ starts


@pytest.mark.parametrize("init_params", ["kmeans", "k-means++", "random_from_data", "random"])
def test_every_init_finds_well_separated_components(init_params):
    # The two that draw without looking may begin badly: the best of ten starts.
    n_init = 10 if init_params.startswith("random") else 1
    gm = FederatedGaussianMixture(3, init_params=init_params, n_init=n_init, random_state=0).fit(
        CLIENTS
    )
    assert adjusted_rand_score(COMPONENTS, gm.predict(X)) == 1


def test_kmeans_finds_components_that_no_client_has_alone():
    # Each client holds a single component: its own centroids split it.
    clients = [X[g == COMPONENTS] for g in range(3)]
    gm = FederatedGaussianMixture(3, max_iter=0, random_state=0).fit(clients)
    assert adjusted_rand_score(COMPONENTS, gm.predict(X)) == 1


def test_random_probabilities_are_each_clients_own(monkeypatch):
    # Some clients are read together, and one in several pieces.
    monkeypatch.setattr(GaussianMixtureModel, "block_rows", 7)
    rng, lengths = np.random.default_rng(0), [2, 3, 1, 17, 5, 7]
    clients = [rng.normal(size=(length, 2)) for length in lengths]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    federation = Federation(np.concatenate(clients), offsets, np.full(6, 1 / 6))
    model, _ = mixture_start.standardise(FederatedGaussianMixture(3), federation, Given())
    expected = 0.0
    for k, rows in enumerate(clients):
        drawn = generator(4, INITIALISATION, position=k << 32)
        for first in range(0, len(rows), 7):
            piece = rows[first : first + 7]
            posterior = drawn.random((3, len(piece)))
            posterior /= posterior.sum(axis=0)
            sums = model.assigned(posterior, model.features(piece), np.array([len(piece)]), None)
            expected = expected + sums[0] / len(rows) / 6
    statistics = mixture_assignment._random_statistics(model, federation, 4)
    assert_allclose(statistics, expected, rtol=1e-12, atol=1e-14)


def centroids_sent(client, n_clusters, seed):
    """What one client sends for init_params="kmeans": alone, its centroids are the centres."""
    federation = Federation(client, np.array([0, len(client)]), np.ones(1))
    model, _ = mixture_start.standardise(FederatedGaussianMixture(n_clusters), federation, Given())
    centers, n_numbers, _ = mixture_assignment._CENTERS["kmeans"](model, federation, seed)
    n_sent = n_numbers // (client.shape[1] + 1)
    return centers[:n_sent], n_sent


@pytest.mark.parametrize("n_clusters", [1, 3, 8])
def test_kmeans_reveals_no_row(n_clusters):
    rng = np.random.default_rng(1)
    for seed in range(20):
        client = rng.normal(size=(rng.integers(2, 12), 2)) * rng.lognormal(size=2)
        sent, n_sent = centroids_sent(client, n_clusters, seed)
        assert n_sent <= len(client) // 2
        distances = np.abs(sent[:, None] - client).max(axis=2)
        assert distances.size == 0 or distances.min() > 1e-6


@pytest.mark.parametrize("n_clusters", [2, 3, 8])
def test_what_centroids_leave_of_the_mean_is_no_row(n_clusters):
    n_alone = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        client = np.concatenate([rng.normal(size=(20, 2)), 30 * rng.normal(size=(seed % 3, 2))])
        n_alone += seed % 3 == 1
        weights = np.ones(len(client))
        sent, mass = mixture_assignment._centroids_to_send(client, n_clusters, seed, weights)
        counts = np.rint(len(client) * mass)
        # As few as possible are held back: the outliers, or else the smallest cluster.
        assert n_clusters == 2 or counts.sum() >= len(client) / 2
        held_back = len(client) - counts.sum()
        assert held_back != 1
        if held_back > 1:
            mean_of_others = (client.sum(axis=0) - counts @ sent) / held_back
            assert np.abs(mean_of_others - client).max(axis=1).min() > 1e-6
    assert n_alone > 10


def test_a_few_copies_of_a_row_send_no_centroid():
    # Two clusters of forty rows, and three copies of a row: a cluster whose mean is that row.
    rng = np.random.default_rng(0)
    client = np.concatenate([rng.normal(center, 1, size=(40, 2)) for center in (0, 20)])
    client = np.concatenate([client, 3 * [[50.0, 0.0]]])
    sent, n_sent = centroids_sent(client, 3, 0)
    # Without one of the others, the row would follow from the mean of all rows.
    assert n_sent == 1
    assert np.abs(sent - [50, 0]).max(axis=1).min() > 1


def test_no_row_of_a_small_client_is_common():
    # One row in a cluster of its own, or four times, is half of what the rows are per component.
    for n_copies in (1, 4):
        client = np.array([[0.0, 0.0], [0.1, 0.0], [0.0, 0.1]] + n_copies * [[50.0, 50.0]])
        for seed in range(5):
            sent, _ = centroids_sent(client, 2, seed)
            assert np.abs(sent).max(initial=0) < 1
    sent, n_sent = centroids_sent(np.concatenate([client, client[-1:]]), 2, 0)
    # Five of them are common. The nearest row adds at most 0.1 to one of the sums.
    assert n_sent == 2
    assert_allclose(sent[sent[:, 0].argmax()], 5 * 50 / 6, rtol=0, atol=0.1 / 6 + 1e-12)


def test_a_value_as_common_as_a_component_is_sent_with_the_nearest_row():
    rng = np.random.default_rng(0)
    rest = rng.normal(5, 1, size=(60, 2))
    nearest = rest[(rest**2).sum(axis=1).argmin()]
    sent, n_sent = centroids_sent(np.concatenate([np.zeros((40, 2)), rest]), 2, 0)
    assert n_sent == 2
    want = [nearest / 41, (rest.sum(axis=0) - nearest) / 59]
    assert_allclose(sent[sent[:, 0].argsort()], want, rtol=1e-10)
    # A component of zeros is found by every start.
    clients = [np.concatenate([np.zeros((50, 2)), rng.normal(5, 1, (50, 2))]) for _ in range(4)]
    for seed in range(5):
        start = start_of(clients, 2, reg_covar=0.01, random_state=seed)
        assert np.abs(np.sort(start.means_[:, 0]) - [0, 5]).max() < 0.5


def test_a_row_that_a_sample_consists_of_is_not_taken_for_the_mean(monkeypatch):
    monkeypatch.setattr(mixture_assignment, "_LARGEST_SAMPLE", 20)
    row = np.array([3.25, -1.5])
    client = np.repeat(row[None], 500, axis=0)
    client[77] = 5e4
    rows = np.concatenate([client, np.random.default_rng(0).normal(size=(15, 2))])
    federation = Federation(rows, np.array([0, 500, 515]), np.array([0.5, 0.5]))
    model, _ = mixture_start.standardise(FederatedGaussianMixture(2), federation, Given())
    clustered, kmeans = [], mixture_assignment._kmeans

    def watched(centroids, *arguments, **options):
        clustered.append(centroids)
        return kmeans(centroids, *arguments, **options)

    monkeypatch.setattr(mixture_assignment, "_kmeans", watched)
    for seed in range(5):
        mixture_assignment._kmeans_centers(model, federation, seed)
    assert len(clustered) >= 10  # each time the second client, then the server
    assert np.abs(np.concatenate(clustered) - row).max(axis=1).min() > 0.1


def test_fewer_different_rows_than_components_leave_centres_to_draw():
    rows = np.repeat(np.random.default_rng(0).normal(size=(3, 2)), 20, axis=0)
    for init_params in ("kmeans", "k-means++"):
        means = start_of(rows, 5, init_params=init_params).means_
        assert np.isfinite(means).all()
    # All rows are centres, of which those that are drawn take no row.
    assert np.abs(rows[::20, None] - means).max(axis=2).min(axis=1).max() < 0.1


def start_of(clients, n_components=3, **parameters):
    """Where a fit begins, quietly."""
    parameters = {"random_state": 0, **parameters}
    return FederatedGaussianMixture(n_components, max_iter=0, **parameters).fit(clients)


def test_kmeans_plusplus_tells_rows_apart_that_are_far_from_the_origin():
    # Squares of 2**30 have no digits below 256, where distances of rows are. Sums are exact.
    clients = [np.round(rows * 2**16) / 2**16 for rows in CLIENTS]
    for seed in range(5):
        here, there = (
            start_of([rows + shift for rows in clients], init_params="k-means++", random_state=seed)
            for shift in (0.0, 2.0**30)
        )
        # Rounding of means of that size.
        assert_allclose(there.means_ - 2.0**30, here.means_, rtol=0, atol=1e-6)


def test_clients_of_one_row_send_no_centroid():
    assert centroids_sent(X[:1], 3, 0)[1] == 0
    # Their mean, which all clients send first, is that row: the start is k-means of all rows.
    rows = X[::3]
    start = start_of(list(rows[:, None]))
    bits = start.history_["uplink_bits"][0]
    assert bits == 64 * len(rows) * (2 + 3 + 3 * 6)  # mean, second moment, assignment
    best = KMeans(3, n_init=10, random_state=0).fit(rows)
    assert adjusted_rand_score(best.labels_, start.predict(rows)) > 0.95
    # Two far outliers are clusters of their own, and are not sent.
    client = np.concatenate([X[COMPONENTS == 0], [[1e3, 0.0], [0.0, -1e3]]])
    sent, n_sent = centroids_sent(client, 3, 0)
    assert n_sent == 1
    assert np.abs(sent).max() < 100


def test_a_federation_of_single_rows_is_fitted():
    gm = FederatedGaussianMixture(3, random_state=0).fit(X, clients=np.arange(N_SAMPLES))
    assert gm.n_clients_ == N_SAMPLES
    assert (np.diff(gm.lower_bounds_) > -1e-9).all()
    assert adjusted_rand_score(COMPONENTS, gm.predict(X)) == 1


def test_centres_that_are_drawn_have_no_spread_where_rows_have_none():
    # One client sends a single centroid; the other two centres are drawn.
    rows = np.column_stack([0.01 * X[:2], [5.0, 5.0]])
    one = Federation(rows, np.array([0, 2]), np.ones(1))
    for covariance_type in ("full", "diag"):
        estimator = FederatedGaussianMixture(3, covariance_type=covariance_type)
        model, _ = mixture_start.standardise(estimator, one, Given())
        assert_allclose(model.units.spread, rows.std(axis=0), rtol=1e-9, atol=1e-12)
        centers, *_ = mixture_assignment._CENTERS["kmeans"](model, one, 0)
        assert_allclose(centers[:, 2], 5.0, rtol=1e-12)
        assert np.ptp(centers[:, 0]) > 0.1 * rows[:, 0].std()


def test_a_large_client_among_many_small_ones_is_heard():
    rng = np.random.default_rng(0)
    many = [rng.normal(size=(10, 2)) for _ in range(400)]
    own = np.array([[20.0, 0.0], [0.0, 20.0]])
    one = own[rng.integers(2, size=4000)] + rng.normal(size=(4000, 2))
    for seed in range(5):
        start = start_of([*many, one], random_state=seed)
        distances = np.linalg.norm(start.means_[:, None] - own, axis=2)
        assert (distances.min(axis=0) < 1).all()


def test_clients_that_are_drawn_stand_for_all():
    rng = np.random.RandomState(0)
    few = np.append(np.full(4, 0.24), np.full(400, 0.04 / 400))
    for weights, n_large in ((np.append(0.9, np.full(400, 0.1 / 400)), 1), (few, 4)):
        cohort, shares = mixture_assignment._cohort(rng, weights)
        assert cohort[:n_large].tolist() == list(range(n_large))
        assert_allclose(shares[:n_large], weights[:n_large])
        assert_allclose(shares[n_large:], (1 - weights[:n_large].sum()) / (128 - n_large))
    _, shares = mixture_assignment._cohort(rng, np.full(500, 1 / 500))
    assert_allclose(shares, 1 / 128)
    # All weight that doubles can tell is with two clients.
    cohort, shares = mixture_assignment._cohort(rng, np.append([0.5, 0.5], np.zeros(300)))
    assert cohort.tolist() == [0, 1]
    assert shares.tolist() == [0.5, 0.5]


@pytest.mark.parametrize("client_weights", ["n_samples", "uniform"])
def test_centroids_count_as_much_as_the_clients_that_send_them(client_weights):
    rng = np.random.default_rng(0)
    clients = [rng.normal(k, 1, size=(length, 2)) for k, length in enumerate((10, 200, 45))]
    lengths = np.array([10, 200, 45])
    weights = weights_of_clients(lengths, client_weights)
    federation = Federation(np.concatenate(clients), offsets_of(lengths), weights)
    model, _ = mixture_start.standardise(FederatedGaussianMixture(1), federation, Given())
    centers, *_ = mixture_assignment._CENTERS["kmeans"](model, federation, 0)
    # One centroid each: the client's mean.
    means = [rows.mean(axis=0) for rows in clients]
    assert_allclose(centers[0], weights @ means, rtol=1e-12)


def test_the_start_weighs_clients_as_the_fit_does():
    rng = np.random.default_rng(0)
    large = rng.normal([0, 0], 2, size=(3000, 2))
    small = [rng.normal(center, 1, size=(30, 2)) for center in ([3, 0], [0, 3], [4, 4]) * 4]
    clients = [large, *small]
    uniform = start_of(clients, 4, client_weights="uniform")
    shares = [np.full(len(rows), 1 / len(rows)) for rows in clients]
    weighted = FederatedGaussianMixture(4, max_iter=0, random_state=0)
    weighted.fit(clients, sample_weight=shares)
    assert_allclose(uniform.means_, weighted.means_, rtol=1e-9)


def test_a_given_start_is_where_the_fit_starts():
    weights, precisions = np.array([0.2, 0.3, 0.5]), np.array([0.5, 1.0, 2.0])
    gm = FederatedGaussianMixture(
        3,
        covariance_type="spherical",
        weights_init=weights,
        means_init=CENTERS,
        precisions_init=precisions,
        max_iter=0,
    ).fit(CLIENTS)
    assert gm.n_iter_ == 0
    assert not gm.converged_
    assert_allclose(gm.weights_, weights)
    assert_allclose(gm.means_, CENTERS, atol=1e-12)
    assert_allclose(gm.covariances_, 1 / precisions)
    assert_allclose(gm.precisions_, precisions)
    assert len(gm.history_["round"]) == 1
    assert_allclose(gm.lower_bound_, gm.score(X))


@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag", "spherical"])
def test_covariances_that_are_not_given_are_scatter_about_the_means_that_are(covariance_type):
    means = np.add(CENTERS, [0.5, -0.3])
    nearest = np.linalg.norm(X[:, None] - means, axis=2).argmin(axis=1)
    shares = np.bincount(nearest) / N_SAMPLES
    scatter = (
        np.stack([(X[nearest == g] - means[g]).T @ (X[nearest == g] - means[g]) for g in range(3)])
        / np.bincount(nearest)[:, None, None]
    )
    axes = np.diagonal(scatter, axis1=1, axis2=2)
    expected = {
        "full": scatter,
        "tied": np.tensordot(shares, scatter, 1),
        "diag": axes,
        "spherical": axes.mean(axis=1),
    }[covariance_type]
    gm = FederatedGaussianMixture(
        3, covariance_type=covariance_type, means_init=means, max_iter=0, reg_covar=0.0
    )
    gm.fit(CLIENTS)
    assert_allclose(gm.means_, means)
    assert_allclose(gm.weights_, shares)
    assert_allclose(gm.covariances_, expected)


@pytest.mark.parametrize("seed", [0, 2, 6])
def test_narrow_components_keep_their_rows_from_rough_means(seed):
    # Rounded, a mean is hundreds of standard deviations from its rows, in the narrow direction. The
    # scatter about the rows' own means made these fits end 3 to 5 nats below.
    rng = np.random.default_rng(seed)
    means, along = 6 * rng.normal(size=(3, 2)), rng.normal(size=(900, 1))
    rows = np.repeat(means, 300, axis=0) + along + 1e-3 * rng.normal(size=(900, 2)) * [0, 1]
    gm = FederatedGaussianMixture(3, means_init=means, tol=1e-7, max_iter=1000)
    exact = gm.fit([rows[::2], rows[1::2]]).score(rows)
    rough = gm.set_params(means_init=means.round()).fit([rows[::2], rows[1::2]]).score(rows)
    assert_allclose(rough, exact, atol=1e-3)


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_warm_start_goes_on_where_the_last_fit_ended(covariance_type):
    parameters = {**EXACT, "covariance_type": covariance_type, "tol": 0.0}
    straight = fit_unconverged(FederatedGaussianMixture(**parameters, max_iter=7), CLIENTS)
    warm = FederatedGaussianMixture(**parameters, max_iter=4, warm_start=True)
    fit_unconverged(warm, CLIENTS)
    warm.set_params(max_iter=3)
    fit_unconverged(warm, CLIENTS)
    assert warm.n_iter_ == 3
    assert_allclose(warm.means_, straight.means_, rtol=1e-9, atol=1e-9)
    assert_allclose(warm.covariances_, straight.covariances_, rtol=1e-8, atol=1e-10)
    assert_allclose(warm.lower_bounds_, straight.lower_bounds_[4:], rtol=1e-10)
    cold = fit_unconverged(warm.set_params(warm_start=False), CLIENTS)
    assert_allclose(cold.lower_bounds_, straight.lower_bounds_[:3], rtol=1e-10)


def test_warm_start_is_one_start(capsys):
    gm = FederatedGaussianMixture(**EXACT, n_init=3, warm_start=True, verbose=1)
    gm.fit(CLIENTS)
    assert capsys.readouterr().out.count("Start") == 3
    gm.fit(CLIENTS)
    assert capsys.readouterr().out.count("Start") == 1


@pytest.mark.parametrize(
    ("init_params", "seed"),
    [("kmeans", 0), ("kmeans", 5), ("kmeans", 7), *(("random_from_data", k) for k in (0, 1, 3))],
)
def test_n_init_keeps_the_first_of_starts_that_end_alike(init_params, seed):
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(center, 1, size=(50, 2)) for center in CENTERS])
    parameters = {"init_params": init_params, "random_state": seed, "tol": 1e-12, "max_iter": 500}
    first, best = (
        FederatedGaussianMixture(3, n_init=n_init, **parameters).fit(rows) for n_init in (1, 10)
    )
    # All starts end in one optimum, up to rounding, with the components in another order.
    assert_array_equal(best.means_, first.means_)


def test_n_init_keeps_the_best_start(capsys):
    parameters = {"n_components": 3, "init_params": "random_from_data", "random_state": 0}
    n_init = 6
    best = FederatedGaussianMixture(**parameters, n_init=n_init, verbose=1).fit(CLIENTS)
    printed = capsys.readouterr().out
    assert all(f"Start {k}" in printed for k in range(n_init))
    # The first k starts are the same for any n_init: the best of them can only improve.
    bounds = [
        FederatedGaussianMixture(**parameters, n_init=k).fit(CLIENTS).lower_bound_
        for k in range(1, n_init + 1)
    ]
    assert best.lower_bound_ == bounds[-1] == max(bounds)
    assert bounds == sorted(bounds)
    assert bounds[-1] > bounds[0] + 0.1


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
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.simplefilter("ignore", ConvergenceWarning)
        gm.set_params(omega=float(advised)).fit(CLIENTS)


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


def test_without_control_variates_there_is_no_drift_to_tell():
    parameters = {**STOCHASTIC, "omega": 0.2, "step_size": 0.05}
    naive = FederatedGaussianMixture(**parameters, control_step=0, control_init="zeros")
    naive.fit(CLIENTS)
    assert_array_equal(naive.client_drift_, np.zeros(N_CLIENTS))


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


def test_client_weights():
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


def test_reg_covar_is_added_in_the_units_of_the_rows():
    gm = FederatedGaussianMixture(covariance_type="diag", reg_covar=0.5).fit(CLIENTS)
    assert_allclose(gm.covariances_[0], X.var(axis=0) + 0.5)


@pytest.mark.parametrize(
    "other", [{"replacement": False}, {"batch_size": 5}, {"n_inner": 7}, {"solver": "fedem"}]
)
def test_parameters_of_the_minibatches_matter(other):
    parameters = {**STOCHASTIC, "omega": 0.0, "batch_size": 6, "step_size": 0.05}
    want = FederatedGaussianMixture(**parameters).fit(CLIENTS)
    got = FederatedGaussianMixture(**{**parameters, **other}).fit(CLIENTS)
    assert (got.means_ != want.means_).any()


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


# ------------------------------------------------------------------ when a fit ends


def test_max_iter_is_said_when_reached():
    gm = FederatedGaussianMixture(**{**EXACT, "tol": 0.0, "max_iter": 3})
    says = (
        r"tol=0.0 after 3 rounds, as no fit does\. Increase tol, to see whether it converges, "
        r"or check for degenerate data\.$"
    )
    with pytest.warns(ConvergenceWarning, match=says):
        gm.fit(CLIENTS)
    assert gm.n_iter_ == 3
    assert not gm.converged_
    assert gm.history_["round"].tolist() == [0, 1, 2, 3]


def test_one_round_is_one_round():
    gm = FederatedGaussianMixture(**{**EXACT, "tol": 1e-9, "max_iter": 1})
    says = r"after 1 round\. Increase max_iter, or increase tol, or check for degenerate data\.$"
    with pytest.warns(ConvergenceWarning, match=says):
        gm.fit(CLIENTS)


def test_minibatches_that_do_not_converge_name_the_solver_that_does():
    gm = FederatedGaussianMixture(**EXACT, batch_size=4, max_iter=200, tol=1e-9, step_size=0.5)
    with pytest.warns(ConvergenceWarning, match="increase tol, or use solver='vr_fedem', whose"):
        gm.fit(CLIENTS)


@pytest.mark.parametrize("noise", [{"omega": 0.3}, {"participation": 0.95}])
def test_rounds_without_control_variates_name_them(noise):
    few = {"control_step": 0.0, "step_size": 0.02, "max_iter": 510, "tol": 1e-9}
    gm = FederatedGaussianMixture(**EXACT, **noise, **few)
    says = r"with control_step=0, the noise .* does not die out\. Set control_step='auto', or inc"
    with pytest.warns(ConvergenceWarning, match=says):
        gm.fit(CLIENTS)


@pytest.mark.parametrize("bounds", [{"max_iter": 20}, {"max_iter": None, "max_epochs": 20}])
def test_rounds_of_small_steps_say_how_many_are_needed(bounds):
    gm = FederatedGaussianMixture(**EXACT, tol=0.0, step_size=0.05, **bounds)
    # 20 steps of 0.05 are one EM iteration; fifty are 1000 rounds, of an epoch each.
    name = "max_iter" if bounds["max_iter"] else "max_epochs"
    says = f"20 rounds, as .*: .* only 1 EM iterations.* set {name} to about 1000, and increase"
    with pytest.warns(ConvergenceWarning, match=says):
        gm.fit(CLIENTS)


def test_rounds_of_steps_that_decrease_by_themselves():
    gm = FederatedGaussianMixture(
        **{**EXACT, "tol": 0.0, "max_iter": 30}, batch_size=4, covariance_type="tied"
    )
    with pytest.warns(ConvergenceWarning, match="added up to only") as caught:
        gm.fit(CLIENTS)
    n_rounds = int(str(caught[-1].message).split("max_iter to about ")[1].split(",")[0])
    steps = gm.history_["step_size"]
    # At least what a step as large as the last would need.
    assert n_rounds > 0.95 * (30 + (50 - np.nansum(steps)) / steps[-1])


@pytest.mark.parametrize("step_size", [5e-324, 1e-300])
def test_steps_that_are_too_small_for_any_number_of_rounds(step_size):
    gm = FederatedGaussianMixture(**EXACT, step_size=step_size, omega=1.0, max_iter=3, max_epochs=9)
    with pytest.warns(
        ConvergenceWarning, match="1,000,000 rounds would not .* use a larger step_size, "
    ):
        gm.fit(CLIENTS)
    # Fifty whole steps, as above.
    with pytest.warns(ConvergenceWarning, match="set max_iter to about 50000 and max_epochs"):
        gm.set_params(step_size=1e-3).fit(CLIENTS)


@pytest.mark.parametrize("method", ["fit", "fit_predict", "fit_transform"])
def test_warnings_show_the_line_of_the_user(method):
    gm = FederatedGaussianMixture(**{**EXACT, "tol": 0.0, "max_iter": 3})
    with pytest.warns(ConvergenceWarning) as caught:
        getattr(gm, method)(CLIENTS)
    assert [warning.filename for warning in caught] == [__file__]


def test_a_fit_is_what_it_was_after_set_params(fitted):
    parameters = {"n_components": 5, "covariance_type": "diag", "fixed_covariance": np.eye(2)}
    want = [getattr(fitted, method)(X) for method in ("predict_proba", "score", "aic", "bic")]
    changed = clone(fitted).fit(CLIENTS).set_params(**parameters)
    for got, method in zip(want, ("predict_proba", "score", "aic", "bic"), strict=True):
        assert_array_equal(getattr(changed, method)(X), got)
    assert changed.sample(4)[0].shape == (4, 2)


def test_warm_start_of_another_type_with_arrays_of_one_shape():
    gm = FederatedGaussianMixture(2, covariance_type="diag", warm_start=True, random_state=0)
    gm.fit(CLIENTS)
    gm.set_params(covariance_type="tied")  # (2, 2), too
    with pytest.raises(ValueError, match="covariance_type='diag', as in the last fit"):
        gm.fit(CLIENTS)


def test_no_rounds_are_not_a_failure_to_converge():
    gm = FederatedGaussianMixture(3, max_iter=0, random_state=0).fit(CLIENTS)  # warns nothing
    assert gm.n_iter_ == 0
    assert gm.predict(X).shape == (N_SAMPLES,)


@pytest.mark.parametrize("parameters", [{"omega": 1.0}, {"batch_size": 4, "solver": "vr_fedem"}])
def test_epochs_that_the_start_uses_up(parameters):
    gm = FederatedGaussianMixture(3, max_iter=None, max_epochs=1, random_state=0, **parameters)
    gm.set_params(step_size=0.01)
    says = "No round was done: the start took 1 of max_epochs=1. Increase max_epochs, or set "
    with pytest.warns(ConvergenceWarning, match=says):
        gm.fit(CLIENTS)
    assert gm.n_iter_ == 0
    gm.set_params(control_init="zeros")
    with pytest.warns(ConvergenceWarning, match="Not converged"):
        gm.fit(CLIENTS)
    assert gm.n_iter_ > 0


def test_epochs_that_would_be_enough():
    steps = {"step_size": 0.1, "batch_size": 5, "tol": 0.0, "max_iter": None, "random_state": 0}
    gm = FederatedGaussianMixture(3, **steps, max_epochs=1.5)
    # 500 rounds of 30 of the 142 rows, and one pass before.
    enough = 1 + 500 * 6 * 5 / N_SAMPLES
    with pytest.warns(ConvergenceWarning, match=f"max_epochs to about {int(np.ceil(enough))}, "):
        gm.fit(CLIENTS)


def test_variance_reduction_does_not_converge_before_it_has_read_all_rows_again():
    # Three clients of 2,000 rows, most of each in a cluster of its own; long inner loops.
    rng = np.random.default_rng(0)
    centers, labels = 2.0 * rng.normal(size=(4, 5)), rng.integers(4, size=6000)
    rows = centers[labels] + rng.normal(size=(6000, 5))
    owners = (labels + 4 * rng.integers(3, size=6000)) % 3
    gm = FederatedGaussianMixture(4, random_state=0)
    exact = clone(gm).set_params(tol=1e-6, max_iter=1000).fit(rows, clients=owners)
    reduced = gm.set_params(solver="vr_fedem", batch_size=2, n_inner=700, max_iter=20000)
    reduced.fit(rows, clients=owners)
    assert reduced.converged_
    # A pass was made early, to see, and not in every round from then on.
    assert reduced.n_iter_ < 700
    assert reduced._memory.server.n_restarts == 1
    assert exact.score(rows) - reduced.score(rows) < 0.002


def test_short_exact_steps_do_not_pass_for_convergence():
    tight = {**EXACT, "max_iter": 20_000}
    best = FederatedGaussianMixture(**tight, tol=1e-9).fit(CLIENTS).lower_bound_
    gaps = []
    for step_size in (1.0, 0.1, 0.01):
        gm = FederatedGaussianMixture(**tight, step_size=step_size, tol=1e-4).fit(CLIENTS)
        assert gm.converged_
        gaps.append(best - gm.lower_bound_)
    # A round of γ gains γ of what EM does: without that, the gap would grow by 1/γ.
    assert max(gaps) < 3 * max(gaps[0], 1e-4)


@pytest.mark.parametrize("max_iter", [None, 10_000])
def test_max_epochs_ends_with_the_round_that_completes_them(max_iter):
    gm = FederatedGaussianMixture(
        **{**STOCHASTIC, "tol": 0.0, "max_iter": max_iter, "max_epochs": 4.5}
    )
    with pytest.warns(ConvergenceWarning, match="max_epochs"):
        gm.fit(CLIENTS)
    assert gm.history_["epoch"][-1] >= 4.5
    assert gm.history_["epoch"][-2] < 4.5
    assert gm.n_iter_ == len(gm.history_["epoch"]) - 1


@pytest.mark.parametrize(
    ("batch_size", "n_rounds", "evaluated"),
    [(5, 60, [0, 20, 40, 60]), (30, 10, [0, 4, 7, 10]), (7, 43, [0, 15, 29, 43])],
)
def test_epochs_are_counted_in_rows_not_in_rounded_shares(batch_size, n_rounds, evaluated):
    # Each of ten clients reads ``batch_size`` of its 100 rows in a round.
    rng = np.random.default_rng(0)
    gm = FederatedGaussianMixture(
        batch_size=batch_size,
        control_init="zeros",
        max_iter=None,
        max_epochs=3,
        tol=0,
        random_state=0,
    )
    with pytest.warns(ConvergenceWarning, match="Not converged to tol=0"):
        gm.fit([rng.normal(size=(100, 1)) for _ in range(10)])
    assert gm.n_iter_ == n_rounds
    assert evaluated_rows(gm) == evaluated
    assert_array_equal(gm.history_["epoch"], np.arange(n_rounds + 1) * batch_size / 100)


@pytest.fixture(scope="module")
def overlapping():
    """Model and start, clients that overlap, so that EM needs many rounds, and where EM ends."""
    common = {"n_components": 3, "covariance_type": "tied", "means_init": CENTERS / 3}
    rng = np.random.default_rng(5)
    clients = [client / 2 + rng.normal(size=client.shape) for client in CLIENTS]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        pooled = FederatedGaussianMixture(**common, tol=0.0, max_iter=2000).fit(clients)
    return common, clients, pooled.score(clients)


@pytest.mark.parametrize(
    "parameters",
    [
        {"participation": 0.5},
        {"omega": 1.0, "step_size": 0.3},
        {"solver": "vr_fedem", "batch_size": 5, "omega": 1.0, "participation": 0.7},
    ],
    ids=["participation", "compression", "vr_fedem"],
)
def test_stochastic_fits_stop_neither_early_nor_away_from_em(overlapping, parameters):
    common, clients, pooled = overlapping
    for seed in range(3):
        gm = FederatedGaussianMixture(**common, **parameters, max_iter=5000, random_state=seed).fit(
            clients
        )
        assert gm.converged_
        # Three sweeps of at least ten rounds.
        assert gm.n_iter_ >= 30
        assert abs(gm.lower_bound_ - pooled) < 0.01


def test_tol_governs_stochastic_fits():
    rounds = [
        FederatedGaussianMixture(
            **{**STOCHASTIC, "solver": "fedem", "batch_size": None, "tol": tol, "max_iter": 5000}
        )
        .fit(CLIENTS)
        .n_iter_
        for tol in (1e-1, 1e-3, 1e-5)
    ]
    assert rounds[0] < rounds[1] < rounds[2]


@pytest.mark.filterwarnings("ignore:The fit ended")  # without the component
def test_components_that_noise_took_are_named():
    # Fifty of 20,000 rows; of 400 that a round reads, one is of them.
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(size=(19_950, 2)), 0.3 * rng.normal(size=(50, 2)) + [0, 9]])
    start = {
        "weights_init": [0.9975, 0.0025],
        "means_init": [[0, 0], [0, 9]],
        "precisions_init": [np.eye(2), 9 * np.eye(2)],
        "random_state": 0,
    }
    clients = np.arange(len(rows)) % 20
    exact = FederatedGaussianMixture(2, **start).fit(rows, clients=clients)
    assert_allclose(exact.weights_[1], 0.0025, rtol=1e-6)
    noisy = FederatedGaussianMixture(2, batch_size=2, step_size=0.5, tol=1.0, **start)
    with pytest.warns(ConvergenceWarning, match=r"Components \[1\] ended with less than half"):
        noisy.fit(rows, clients=clients)
    assert len(rows) * noisy.weights_[1] < 0.5
    # What began with nothing was taken by nobody.
    lost = clone(noisy).set_params(warm_start=True)
    with pytest.warns(ConvergenceWarning, match="Components"):
        lost.fit(rows, clients=clients)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lost.fit(rows, clients=clients)
    assert not [w for w in caught if str(w.message).startswith("Components")]
    kept = noisy.set_params(solver="vr_fedem", step_size="auto").fit(rows, clients=clients)
    assert_allclose(kept.weights_[1], 0.0025, rtol=0.1)


@pytest.mark.parametrize("seed", [0, 2])
def test_a_row_of_its_own_is_a_whole_component(seed):
    rows, species = load_iris(return_X_y=True)
    rows[5, 0] *= 10
    components = np.where(species > 0, 1, 0)
    components[5] = 2
    gm = FederatedGaussianMixture(
        3,
        weights_init=np.bincount(components) / 150,
        means_init=[rows[components == g].mean(axis=0) for g in range(3)],
        omega=0.5,
        participation=0.1,
        max_iter=1000,
        random_state=seed,
    )
    gm.fit(rows, clients=species + 10 * (np.arange(150) % 3))  # a warning would be an error
    assert_allclose(150 * gm.weights_[2], 1, atol=1e-3)


def test_a_fit_that_ends_below_its_start_is_told():
    clients = [X[g == COMPONENTS] for g in range(3)]
    exact = FederatedGaussianMixture(3, random_state=0).fit(clients)
    worse = FederatedGaussianMixture(
        3,
        weights_init=exact.weights_,
        means_init=exact.means_,
        precisions_init=exact.precisions_,
        batch_size=1,
        step_size=0.5,
        max_iter=40,
        random_state=0,
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        worse.fit(clients)
    (message,) = [str(w.message) for w in caught if "below its start" in str(w.message)]
    fall = exact.score(clients) - worse.score(clients)
    assert fall > 0.1 and f"ended {fall:.3g} nats per row" in message
    # Nor does it take a history, where the first control variates tell what the start was worth.
    for control_init, n_told in (("field", 1), ("zeros", 0)):
        unseen = clone(worse).set_params(eval_every=None, control_init=control_init)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            unseen.fit(clients)
        assert len([w for w in caught if "below its start" in str(w.message)]) == n_told
    assert len(unseen.lower_bounds_) == 1
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        worse.set_params(step_size="auto", batch_size=10).fit(clients)
    assert not [w for w in caught if "below its start" in str(w.message)]


def test_rare_components_that_wait_are_no_shortened_steps():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(3000, 3))
    rows[:2] = 2 + 0.1 * rng.normal(size=(2, 3))
    gm = FederatedGaussianMixture(
        2,
        weights_init=[0.9993, 0.0007],
        means_init=[[0] * 3, [2] * 3],
        precisions_init=[np.eye(3)] * 2,
        solver="vr_fedem",
        batch_size=20,
        omega=2.0,
        eval_every=None,
        max_iter=40,
        random_state=2,
    )
    with pytest.warns(ConvergenceWarning) as caught:
        gm.fit(rows, clients=np.arange(3000) % 10)
    assert gm.history_["safeguarded"][-1] == 1
    assert len(set(gm.history_["step_size"][1:])) == 1
    assert "left rare components as they were" in str(caught[0].message)
    assert "shortened" not in str(caught[0].message)


@pytest.mark.parametrize(
    ("setting", "ways"),
    [
        ({}, "a larger batch_size or solver='vr_fedem'"),
        ({"omega": 4.0}, "a larger batch_size, solver='vr_fedem' or a smaller omega"),
        (
            {"omega": 8.0, "participation": 0.3, "solver": "vr_fedem", "n_inner": 30},
            "a larger batch_size, a smaller n_inner, more participation or a smaller omega",
        ),
    ],
)
def test_advice_is_about_what_is_random(setting, ways):
    rows, species = load_iris(return_X_y=True)
    gm = FederatedGaussianMixture(
        3, step_size=1.0, batch_size=1, max_iter=30, random_state=0, **setting
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gm.fit(rows, clients=species)
    (message,) = [str(w.message) for w in caught if "left the domain" in str(w.message)]
    assert f"Use a smaller step_size (it was 1), {ways}, or fewer components" in message


def test_loops_of_one_round_are_not_advised_to_be_shorter():
    gm = FederatedGaussianMixture(solver="vr_fedem", batch_size=5, n_inner=1)
    assert calmer(gm) == ["a larger batch_size"]
    assert calmer(gm.set_params(n_inner=2)) == ["a larger batch_size", "a smaller n_inner"]


@pytest.mark.parametrize(("step_size", "expected"), [("auto", 120), (0.1, 500)])
def test_rounds_that_are_enough_with_automatic_steps_that_were_cut(step_size, expected):
    gm = FederatedGaussianMixture(step_size=step_size)

    def schedule(number):
        return 0.2 if number <= 20 else 1.0

    # The last step was half of what the schedule asked for, and so are the later ones, whose sizes
    # change with the number of the round: 20 of 0.1, then 0.5. A number stays what it is.
    assert _rounds_enough(gm, 20, 20 * 0.1, 0.1, schedule) == expected


def test_steps_out_of_the_domain_are_counted_and_said():
    clients = [X[g == COMPONENTS] for g in range(3)]
    gm = FederatedGaussianMixture(
        3, step_size=1.0, batch_size=1, omega=4.0, max_iter=30, random_state=0
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gm.fit(clients)
    messages = [str(w.message) for w in caught if w.category is ConvergenceWarning]
    # More rounds would not help it.
    assert len(messages) == 2 and "below its start: do not use it" in messages[1]
    assert "left the domain" in messages[0]
    assert "smaller step_size" in messages[0]
    assert "or drop linearly dependent features" in messages[0]
    assert gm.history_["safeguarded"].sum() > 0
    assert gm.history_["safeguarded"][0] == 0
    assert np.isfinite(gm.means_).all()
    assert np.isfinite(gm.score(X))


def test_rounds_without_anyone_are_rounds():
    gm = FederatedGaussianMixture(
        **{**STOCHASTIC, "participation": 0.2, "step_size": 0.02, "batch_size": None}
    ).fit(CLIENTS)
    idle = np.flatnonzero(gm.history_["n_active"][1:] == 0) + 1
    assert len(idle) > 10
    for column in ("uplink_bits", "downlink_bits"):
        assert_array_equal(gm.history_[column][idle], 0)
    assert_array_equal(np.diff(gm.history_["epoch"])[idle - 1], 0)
    assert np.isfinite(gm.history_["weights"]).all()


# ------------------------------------------------------------------ history


@pytest.mark.parametrize("parameters", [EXACT, STOCHASTIC], ids=["exact", "stochastic"])
def test_history_is_a_table(parameters):
    gm = FederatedGaussianMixture(**parameters).fit(CLIENTS)
    assert isinstance(gm.history_, dict)
    assert set(gm.history_) == HISTORY_COLUMNS
    assert {len(column) for column in gm.history_.values()} == {gm.n_iter_ + 1}
    columns = {name: column for name, column in gm.history_.items() if name != "weights"}
    frame = pd.DataFrame(columns)
    assert frame.shape == (gm.n_iter_ + 1, 10)
    assert frame["round"].tolist() == list(range(gm.n_iter_ + 1))
    for name in ("n_active", "uplink_bits", "downlink_bits", "safeguarded", "round"):
        assert frame[name].dtype.kind == "i"
    assert gm.history_["weights"].shape == (gm.n_iter_ + 1, 3)
    assert_allclose(gm.history_["weights"][-1], gm.weights_)
    assert_allclose(gm.history_["weights"].sum(axis=1), 1)
    # Nobody steps before the first round.
    assert np.isnan(frame["step_size"][0])
    assert np.isnan(frame["field_sq_norm"][0])
    assert frame["n_active"][0] == 0
    # But for the pass that the first control variates take, where there are any.
    assert frame["epoch"][0] == (0 if parameters == EXACT else 1)
    assert frame[["step_size", "field_sq_norm"]][1:].notna().all(axis=None)


def test_exact_rounds_tell_everything_for_free():
    gm = FederatedGaussianMixture(**EXACT).fit(CLIENTS)
    assert evaluated_rows(gm) == list(range(gm.n_iter_ + 1))
    assert evaluated_rows(gm, "mean_field_sq_norm") == list(range(gm.n_iter_ + 1))
    # The field of a round is the mean field where it began.
    assert_array_equal(gm.history_["field_sq_norm"][1:], gm.history_["mean_field_sq_norm"][:-1])
    assert_array_equal(gm.history_["epoch"], gm.history_["round"])
    assert_array_equal(gm.history_["n_active"][1:], N_CLIENTS)
    assert_array_equal(gm.history_["step_size"][1:], 1)
    # As in scikit-learn the bound is that of the last E-step; the fit is one M-step further.
    assert_array_equal(gm.lower_bounds_, gm.history_["log_likelihood"][:-1])
    assert gm.lower_bound_ == gm.lower_bounds_[-1]
    assert len(gm.lower_bounds_) == gm.n_iter_
    assert_allclose(gm.history_["log_likelihood"][-1], gm.score(X))
    assert (np.diff(gm.history_["log_likelihood"]) > -1e-12).all()


@pytest.mark.parametrize("method", ["predict", "predict_proba", "score_samples"])
def test_small_arrays_are_answered_as_each_alone(method, monkeypatch):
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
    monkeypatch.setattr(_fitted_mixture, "_BLOCK", 3 * 7)  # seven rows
    assert_allclose(getattr(gm, method)(X), whole, rtol=1e-10)
    assert getattr(gm, method)(X[:1]).shape == whole[:1].shape


@pytest.mark.parametrize("solver", ["fedem", "vr_fedem"])
def test_stochastic_rounds_leave_a_plateau_that_exact_ones_leave(solver):
    # Means nearly alike: an iteration gains little, the next ones more, and then nothing.
    draws = np.random.default_rng(0).normal(size=(200, 1))
    X = draws + np.repeat([-2.0, 2.0], 100)[:, None]
    clients = [X[k::4] for k in range(4)]
    settings = {"n_components": 2, "covariance_type": "tied", "max_iter": 1000}
    with pytest.warns(ConvergenceWarning):
        start = FederatedGaussianMixture(
            **settings | {"max_iter": 2}, means_init=[[-0.3], [0.3]]
        ).fit(clients)
    settings |= {
        "weights_init": start.weights_,
        "means_init": start.means_,
        "precisions_init": start.precisions_,
    }
    optimum = FederatedGaussianMixture(**settings, tol=1e-10).fit(clients)
    tol = 0.67 * (optimum.lower_bounds_[1] - optimum.lower_bounds_[0])
    exact = FederatedGaussianMixture(**settings, tol=tol).fit(clients)
    noisy = FederatedGaussianMixture(
        **settings, tol=tol, solver=solver, omega=1e-6, step_size=0.1, random_state=0
    ).fit(clients)
    for gm in (exact, noisy):
        assert gm.converged_
        # 0.006 tol and 0.02 tol; a sweep of half that gain was quiet, and lost 1.06 tol.
        assert gm.score(X) > optimum.score(X) - 0.05 * tol


@pytest.mark.parametrize("control_init", ["field", "zeros"])
def test_eval_every_so_many_rounds(control_init):
    gm = FederatedGaussianMixture(**STOCHASTIC, eval_every=7, control_init=control_init)
    gm.fit(CLIENTS)
    assert gm.n_iter_ == 30
    assert evaluated_rows(gm) == [0, 7, 14, 21, 28, 30]
    assert evaluated_rows(gm, "mean_field_sq_norm") == [0, 7, 14, 21, 28, 30]
    assert_allclose(gm.lower_bound_, gm.score(X))
    assert_array_equal(gm.lower_bounds_, gm.history_["log_likelihood"][evaluated_rows(gm)])


def test_eval_every_epoch():
    gm = FederatedGaussianMixture(**STOCHASTIC).fit(CLIENTS)
    epoch = gm.history_["epoch"]
    # The first row at or after each whole epoch, the start, and the end.
    wanted = {int(np.searchsorted(epoch, k)) for k in range(int(epoch[-1]) + 1)}
    assert len(wanted) > 3
    assert evaluated_rows(gm) == sorted(wanted | {gm.n_iter_})


@pytest.mark.parametrize(
    "setting",
    [
        {},
        {"max_iter": 0},
        {"omega": 1.0},
        {"omega": 1.0, "control_init": "zeros"},
        {"participation": 0.5, "control_init": "zeros"},
    ],
)
def test_a_start_that_no_statistic_gives_has_no_field(setting, capsys):
    # "tied" covariances are what the means leave of all rows' moments: those of all rows are not.
    # Then Ŝ_0 is s̄(θ), and 0 would be drawn 30 decades below the next values.
    start = {"means_init": X[:3], "precisions_init": np.linalg.inv(np.cov(X.T))}
    setting = {"max_iter": 4, "eval_every": 1, "tol": 0, "random_state": 0, **setting}
    gm = FederatedGaussianMixture(3, covariance_type="tied", **setting, verbose=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        history = gm.set_params(**start).fit(CLIENTS).history_
    assert "nan" not in capsys.readouterr().out
    assert np.isnan(history["mean_field_sq_norm"][0]) and np.isfinite(history["log_likelihood"][0])
    assert np.isnan(history["field_sq_norm"][:2]).all()
    assert np.isfinite(history["mean_field_sq_norm"][1:]).all()
    assert np.isfinite(history["field_sq_norm"][2:]).all()


def test_minibatches_of_more_rows_than_any_client_has():
    most = max(map(len, CLIENTS))
    gm = FederatedGaussianMixture(**{**STOCHASTIC, "batch_size": most + 1})
    told = f"batch_size={most + 1} rows is more than any client has; the most are {most}[.]"
    with pytest.warns(UserWarning, match=told):
        gm.fit(CLIENTS)
    gm.set_params(batch_size=most).fit(CLIENTS)  # which may be a step of a search, and is silent


def test_never_evaluated():
    gm = FederatedGaussianMixture(**STOCHASTIC, eval_every=None, control_init="zeros")
    gm.fit(CLIENTS)
    assert evaluated_rows(gm) == []
    assert evaluated_rows(gm, "mean_field_sq_norm") == []
    assert_allclose(gm.lower_bound_, gm.score(X))
    exact = FederatedGaussianMixture(**EXACT, eval_every=None).fit(CLIENTS)
    assert evaluated_rows(exact) == []
    assert exact.lower_bounds_ == FederatedGaussianMixture(**EXACT).fit(CLIENTS).lower_bounds_


@pytest.mark.parametrize("eval_every", [None, 1, 7, "auto"])
def test_looking_changes_neither_the_fit_nor_its_cost(eval_every):
    want = FederatedGaussianMixture(**STOCHASTIC).fit(CLIENTS)
    got = FederatedGaussianMixture(**STOCHASTIC, eval_every=eval_every).fit(CLIENTS)
    assert_array_equal(got.means_, want.means_)
    for name in ("epoch", "uplink_bits", "downlink_bits", "field_sq_norm", "step_size"):
        assert_array_equal(got.history_[name], want.history_[name], err_msg=name)


def test_epochs_of_minibatches():
    batch_size = 8
    gm = FederatedGaussianMixture(
        **{**STOCHASTIC, "solver": "fedem", "batch_size": batch_size, "step_size": 0.02}
    ).fit(CLIENTS)
    assert len(set(gm.history_["n_active"][1:])) > 1
    # The first control variates, h_i(Ŝ_0), took one pass over all rows.
    expectations = batch_size * gm.history_["n_active"]
    assert_allclose(gm.history_["epoch"], 1 + np.cumsum(expectations) / N_SAMPLES)


@pytest.mark.parametrize("n_inner", [1, 4])
def test_epochs_of_variance_reduction(n_inner):
    batch_size = 3
    gm = FederatedGaussianMixture(
        **{**STOCHASTIC, "participation": 1.0, "n_inner": n_inner, "batch_size": batch_size}
    ).fit(CLIENTS)
    # All rows at the start of an inner loop, else a minibatch for each of two iterates.
    expectations = [
        N_SAMPLES if k % n_inner == 0 else 2 * batch_size * N_CLIENTS for k in range(gm.n_iter_)
    ]
    assert_allclose(gm.history_["epoch"][1:], 1 + np.cumsum(expectations) / N_SAMPLES)


def test_automatic_n_inner():
    batch_size, omega = 3, RandK(omega=1.0).omega_for(9)
    gm = FederatedGaussianMixture(
        **{**STOCHASTIC, "participation": 1.0, "batch_size": batch_size, "compressor": "rand_k"}
    ).fit(CLIENTS)
    passes = np.flatnonzero(np.isclose(np.diff(gm.history_["epoch"]), 1.0))
    # k_in = (1 + omega) sqrt(m / 2), rounded up, with m the mean number of rows.
    n_inner = int(np.ceil((1 + omega) * np.sqrt(N_SAMPLES / N_CLIENTS / 2)))
    assert_array_equal(passes, np.arange(0, gm.n_iter_, n_inner))


def test_epochs_of_absent_clients_are_not_counted():
    clients = [X[i : i + 10] for i in range(0, 100, 10)]
    gm = FederatedGaussianMixture(
        **{**STOCHASTIC, "batch_size": None, "control_init": "zeros"}
    ).fit(clients)
    assert len(set(gm.history_["n_active"][1:])) > 1
    assert_allclose(gm.history_["epoch"], np.cumsum(gm.history_["n_active"]) / len(clients))


# ------------------------------------------------------------------ bits

FLOAT = 64
N_FUNCTIONS = {"full": 6, "tied": 3, "diag": 5, "spherical": 4}  # of a row with two features


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_bits_of_uncompressed_rounds(covariance_type):
    gm = FederatedGaussianMixture(
        **{**EXACT, "covariance_type": covariance_type, "participation": 0.6, "tol": 10.0}
    ).fit(CLIENTS)
    n_statistics = 3 * N_FUNCTIONS[covariance_type]
    # The floats, and a few bytes around them: format, length and checksum.
    message = 8 * len(Identity().encode(np.ones(n_statistics)))
    assert FLOAT * n_statistics < message <= FLOAT * (n_statistics + 1)
    active = gm.history_["n_active"][1:]
    assert len(set(active)) > 1
    assert_array_equal(gm.history_["uplink_bits"][1:], message * active)
    assert_array_equal(gm.history_["downlink_bits"][1:], FLOAT * n_statistics * active)


@pytest.mark.parametrize(
    "operator",
    [Dithering(levels=2), Dithering(omega=3.0), BlockQuantizer(block_length=4), RandK(k=2)],
    ids=repr,
)
def test_bits_of_compressed_rounds_are_those_of_the_bytes(operator):
    recording = Recording(operator)
    parameters = {
        **STOCHASTIC,
        "compressor": recording,
        "omega": 4.0,
        "step_size": 0.05,
        "participation": 1.0,
        "batch_size": None,
    }
    gm = FederatedGaussianMixture(**parameters).fit(CLIENTS)
    # Few clients are one group: one call of the compressor a round.
    assert [len(messages) for messages in recording.sent] == [N_CLIENTS] * gm.n_iter_
    for row, messages in enumerate(recording.sent, start=1):
        n_bytes = sum(len(operator.encode(message)) for message in messages)
        assert gm.history_["uplink_bits"][row] == 8 * n_bytes


ONE_OFF = {"n_components": 3, "max_iter": 0, "random_state": 0}


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_bits_before_the_first_round_of_a_given_start(covariance_type):
    precisions = {
        "full": np.stack([np.eye(2)] * 3),
        "tied": np.eye(2),
        "diag": np.ones((3, 2)),
        "spherical": np.ones(3),
    }
    gm = FederatedGaussianMixture(
        **ONE_OFF,
        covariance_type=covariance_type,
        weights_init=np.full(3, 1 / 3),
        means_init=CENTERS / 2,
        precisions_init=precisions[covariance_type],
    ).fit(CLIENTS)
    # Each client sends its mean and its second moment (an upper triangle where rows are whitened,
    # else a variance a feature), and is told those of all, then the start.
    moments = 2 + (3 if covariance_type in ("full", "tied") else 2)
    start = 3 * N_FUNCTIONS[covariance_type]
    assert gm.history_["uplink_bits"][0] == FLOAT * N_CLIENTS * moments
    assert gm.history_["downlink_bits"][0] == FLOAT * N_CLIENTS * (moments + start)


def test_bits_of_a_start_that_is_wide_beside_the_rows():
    start = {"weights_init": np.full(3, 1 / 3), "means_init": CENTERS, "covariance_type": "diag"}

    def uplink_bits(precision):
        gm = FederatedGaussianMixture(
            **ONE_OFF, **start, precisions_init=np.full((3, 2), precision)
        ).fit(CLIENTS)
        return gm.history_["uplink_bits"][0]

    # Expected statistics on top of the moments, from some hundred standard deviations on.
    moments, statistics = 4, 15
    assert uplink_bits(1e-3) == FLOAT * N_CLIENTS * moments
    assert uplink_bits(1e-7) == FLOAT * N_CLIENTS * (moments + statistics)


def test_bits_of_given_means():
    gm = FederatedGaussianMixture(**ONE_OFF, means_init=CENTERS).fit(CLIENTS)
    # Moments, then the statistics of the rows nearest to each mean, for means and a start.
    moments, means, statistics = 5, 6, 18
    assert gm.history_["uplink_bits"][0] == FLOAT * N_CLIENTS * (moments + statistics)
    assert gm.history_["downlink_bits"][0] == FLOAT * N_CLIENTS * (moments + means + statistics)


def test_bits_of_the_inits():
    def bits(init_params):
        gm = FederatedGaussianMixture(**ONE_OFF, init_params=init_params).fit(clients)
        history = gm.history_
        # Without the moments (5 floats) and the statistics of the first assignment (18).
        everyone = FLOAT * len(clients)
        return (
            history["uplink_bits"][0] - everyone * (5 + 18),
            history["downlink_bits"][0] - everyone * 5,
        )

    # Every client has all three components, far apart and many rows of each: three centroids.
    clients = [X[k::4] for k in range(4)]
    assert bits("kmeans") == (FLOAT * 4 * 3 * (2 + 1), FLOAT * 4 * 6)
    # The first row and three tries for each of two more, which every client is told, and from
    # every client a sum of distances for each of them.
    assert bits("k-means++") == (FLOAT * (7 * 2 + 7 * 4), FLOAT * 4 * (7 * 2 + 6))
    assert bits("random_from_data") == (FLOAT * 3 * 2, FLOAT * 4 * 6)
    assert bits("random") == (0, 0)


def test_bits_of_the_first_control_variates():
    with_field, without = (
        FederatedGaussianMixture(**STOCHASTIC, control_init=how).fit(CLIENTS).history_
        for how in ("field", "zeros")
    )
    n_statistics = 9
    more = with_field["uplink_bits"][0] - without["uplink_bits"][0]
    assert more == FLOAT * N_CLIENTS * n_statistics
    # Clients compute them at Ŝ_0, which all are told first.
    told = with_field["downlink_bits"][0] - without["downlink_bits"][0]
    assert told == FLOAT * N_CLIENTS * n_statistics


# ------------------------------------------------------------------ what is printed


def test_verbose(capsys):
    parameters = {**EXACT, "tol": 0.0, "max_iter": 25}
    fit_unconverged(FederatedGaussianMixture(**parameters), CLIENTS)
    assert capsys.readouterr().out == ""
    fit_unconverged(FederatedGaussianMixture(**parameters, verbose=1), CLIENTS)
    lines = capsys.readouterr().out.splitlines()
    steps = ["Start 0", "Round 10", "Round 20", "Not converged after 25 rounds"]
    assert [line.partition(":")[0].partition(",")[0].strip() for line in lines] == steps
    fit_unconverged(FederatedGaussianMixture(**parameters, verbose=2), CLIENTS)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 27
    assert not any("nan" in line for line in lines)
    # An exact round yields the log-likelihood of the parameters that it began with.
    start = FederatedGaussianMixture(**parameters).set_params(max_iter=0).fit(CLIENTS)
    assert lines[1].endswith(f"log-likelihood before it {start.lower_bound_:.6g}")
    gm = FederatedGaussianMixture(**{**STOCHASTIC, "tol": 1.0}, verbose=1).fit(CLIENTS)
    n_bytes = gm.history_["uplink_bits"].sum() / 8
    assert gm.converged_
    assert capsys.readouterr().out.splitlines()[-1] == (
        f"  Converged after {gm.n_iter_} rounds, {n_bytes:,.0f} bytes sent by clients: "
        f"log-likelihood {gm.score(X):.6g}"
    )


def test_rounds_that_are_not_evaluated_are_printed_without(capsys):
    gm = FederatedGaussianMixture(**{**STOCHASTIC, "eval_every": 7}, verbose=2).fit(CLIENTS)
    lines = [line for line in capsys.readouterr().out.splitlines() if "Round" in line]
    assert len(lines) == gm.n_iter_
    assert "nan" not in "".join(lines)
    assert "log-likelihood" in lines[6]
    assert "log-likelihood" not in lines[5]


# ------------------------------------------------------------------ rounding


@pytest.mark.parametrize("covariance_type", ["full", "tied"])
def test_rounding_of_whitened_rows_does_not_change_a_run(covariance_type):
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(center, 1, size=(100, 4)) for center in (-3, 0, 3)])
    rows = PCA(whiten=True).fit_transform(rows)
    start = {"covariance_type": covariance_type, "means_init": rows[[0, 100, 200]]}
    gm = FederatedGaussianMixture(
        3, **start, omega=1.0, participation=0.5, batch_size=5, random_state=0, tol=0, max_iter=30
    )
    fits = []
    for size in (0, 1e-15):
        nudged = rows * (1 + size * rng.normal(size=rows.shape))
        fits.append(fit_unconverged(clone(gm), nudged, clients=np.arange(300) % 6).means_)
    # Messages are rounded at random, by the same draws; 30 rounds add roundings up, and no more.
    assert_allclose(*fits, rtol=0, atol=1e-12)


# ------------------------------------------------------------------ rows far apart


def apart(distance, seed=0):
    """Clients with one component each, of variance 1 and so far apart."""
    rng = np.random.default_rng(seed)
    clients = [rng.normal(k * distance, 1, size=(60, 2)) for k in (-1, 0, 1)]
    return clients, np.array([client.mean(axis=0) for client in clients])


@pytest.mark.parametrize("covariance_type", ["full", "tied"])
def test_components_far_apart_keep_their_covariances(covariance_type):
    clients, means = apart(1e6)
    given = {"covariance_type": covariance_type, "means_init": means}
    gm = FederatedGaussianMixture(3, **given).fit(clients)  # warns nothing
    rows = np.concatenate(clients)
    theirs = GaussianMixture(3, **given).fit(rows)
    # Second moments in units of 1e6 have four digits of a variance left.
    assert gm.score(rows) == pytest.approx(theirs.score(rows), abs=3e-3)
    assert gm.lower_bound_ == pytest.approx(gm.score(rows), abs=3e-3)


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_covariances_that_rounding_widens_are_told(covariance_type):
    clients, means = apart(1e8)
    gm = FederatedGaussianMixture(3, covariance_type=covariance_type, means_init=means)
    says = r"Covariances of components \[0, 1, 2\] are smaller than second moments in float64"
    with pytest.warns(UserWarning, match=says):
        gm.fit(clients)
    assert np.isfinite(gm.covariances_).all()
    # A known covariance needs no second moment.
    gm.set_params(covariance_type="tied", fixed_covariance=np.eye(2)).fit(clients)


@pytest.mark.parametrize("seed", range(4))
def test_one_wrong_cell_is_no_error(seed):
    rng = np.random.default_rng(5)
    rows = np.concatenate([rng.normal(center, 1, size=(50, 3)) for center in (-4, 0, 4)])
    rows[7, 1] = 1e5
    gm = FederatedGaussianMixture(4, random_state=seed)
    with pytest.warns(UserWarning, match="Look for outliers"):
        gm.fit([rows[:75], rows[75:]])
    assert np.isfinite(gm.score(rows))


@pytest.mark.parametrize("seed", range(3))
def test_a_code_for_what_is_missing_is_no_error(seed):
    # Components die out between it and the rows: rounding of Ŝ over their mass is a large variance.
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(200, 1))
    rows[rng.random(200) < 0.2] = 99999
    gm = FederatedGaussianMixture(5, random_state=0)
    with pytest.warns(UserWarning, match="Look for outliers"):
        gm.fit(rows, clients=np.arange(200) % 4)
    log_likelihood = gm.history_["log_likelihood"]
    assert np.isfinite(gm.covariances_).all()
    # Far better than the start, unless that had converged already.
    assert log_likelihood[-1] > log_likelihood[0] + 5


# ------------------------------------------------------------------ tables of polars


def test_polars_tables():
    polars = pytest.importorskip("polars")
    frames = [polars.DataFrame(client, schema=["length", "width"]) for client in CLIENTS]
    gm = FederatedGaussianMixture(**EXACT).fit(frames)
    plain = FederatedGaussianMixture(**EXACT).fit(CLIENTS)
    assert_array_equal(gm.means_, plain.means_)
    # Names are scikit-learn's business, whose versions know other tables.
    theirs = StandardScaler().fit(frames[0])
    names = [getattr(fitted, "feature_names_in_", ()) for fitted in (gm, theirs)]
    assert_array_equal(*names)
    assert_array_equal(gm.predict(frames)[1], plain.predict(CLIENTS)[1])
    pipeline = make_pipeline(FederatedStandardScaler(), FederatedGaussianMixture(3, random_state=0))
    outputs = pipeline.set_output(transform="polars").fit(frames).transform(frames)
    assert {type(table) for table in outputs} == {polars.DataFrame}


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_features_that_are_constant_within_a_component_have_reg_covar(covariance_type):
    rng = np.random.default_rng(0)
    gains = np.where(rng.random(2000) < 0.9, 0.0, np.exp(rng.normal(6, 1, 2000)))
    rows = np.column_stack([rng.integers(17, 90, 2000), gains, rng.integers(1, 99, 2000)])
    means = np.array([[50.0, 0.0, 50.0], [50.0, 1000.0, 50.0]])
    given = {"covariance_type": covariance_type, "means_init": means, "tol": 1e-2}
    gm = FederatedGaussianMixture(2, **given, random_state=0).fit(rows)  # warns nothing
    if covariance_type == "diag":
        # What rounding leaves of a second moment, about the mean of all rows.
        rounding = 4 * np.finfo(float).eps * gains.var()
        assert_allclose(gm.covariances_[0, 1], 1e-6, rtol=0, atol=rounding)


# ------------------------------------------------------------------ after a fit, and odd inputs


def test_samples_are_those_of_the_fit_after_set_params():
    gm = FederatedGaussianMixture(2, covariance_type="tied", random_state=0).fit(CLIENTS)
    rows, components = gm.sample(10)
    again = gm.set_params(covariance_type="full").sample(10)
    assert_array_equal(again[0], rows)
    assert_array_equal(again[1], components)


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


def test_clients_whose_centroids_are_all_the_same_do_not_make_twins():
    # Two components that start at the same place would move as one for ever.
    gm = FederatedGaussianMixture(2, random_state=0).fit([[[-1.0], [1.0]]] * 10)
    assert abs(gm.means_[0, 0] - gm.means_[1, 0]) > 0.1


def test_rounding_alone_does_not_exceed_the_omega_of_messages():
    # 6 / 3 - 1 is larger than this by less than 1e-6; warnings are errors here.
    gm = FederatedGaussianMixture(
        1, compressor=RandK(k=3), omega=1 - 1e-7, max_iter=2, tol=0.0, random_state=0
    )
    with pytest.warns(ConvergenceWarning, match="^Not converged"):
        gm.fit([rows[:, :2] for rows in CLIENTS])


def outcome_of(step_size, safeguarded, *, round_index):
    """An estimator of exact rounds with automatic steps, and how its run ended."""
    history = {
        "step_size": np.append(np.nan, step_size),
        "safeguarded": np.append(0, safeguarded),
        "epoch": np.arange(1.0 + len(step_size)),
    }
    server = ServerState(round_index, None, None, None, step_limit=0.9)
    result = Run(server, None, history, None, [], np.nan, converged=False, gains=None)
    return FederatedGaussianMixture(max_iter=10), result


@pytest.mark.parametrize(("last", "warns"), [(19, True), (18, True), (17, False)])
def test_steps_are_looked_at_in_the_last_tenth_of_the_rounds(last, warns):
    safeguarded = np.arange(20) == last
    estimator, result = outcome_of(np.ones(20), safeguarded, round_index=20)
    wording = Wording("", left="were too long", remedy="", otherwise=[])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _warn_of_steps(estimator, result, lambda number: 1.0, wording)
    said = [str(warning.message) for warning in caught]
    assert [text.startswith("Steps were too long in 1 of the last 2 rounds") for text in said] == (
        [True] * warns
    )


def test_advice_after_a_warm_start_counts_the_rounds_before_it():
    # Steps of 50 / r add up to 50 from round 100 to round 100e, 172 later; it is rounded up.
    steps = 50 / np.arange(101, 111)
    estimator, result = outcome_of(steps, np.zeros(10), round_index=110)
    says = _how_to_travel_on(estimator, result, lambda number: 50 / number, steps.sum())
    assert says == "With this step set max_iter to about 180"


def test_advice_where_automatic_steps_are_too_short_is_not_a_number_of_rounds():
    steps = np.full(10, 1e-6)
    estimator, result = outcome_of(steps, np.zeros(10), round_index=10)
    estimator.set_params(omega=1.0, participation=0.5)
    says = _how_to_travel_on(estimator, result, lambda number: 1e-6, steps.sum())
    assert says == (
        "1,000,000 rounds would not be enough with this step: use more participation or a smaller "
        "omega"
    )
