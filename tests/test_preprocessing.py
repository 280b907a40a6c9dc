import pickle
import warnings
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import sklearn
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array
from scipy.stats import multivariate_normal
from sklearn.base import clone
from sklearn.decomposition import PCA, IncrementalPCA
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV, KFold, cross_validate
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MaxAbsScaler,
    MinMaxScaler,
    Normalizer,
    PolynomialFeatures,
    QuantileTransformer,
    StandardScaler,
)
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import parametrize_with_checks

from skfedem import FederatedGaussianMixture
from skfedem.preprocessing import FederatedPCA, FederatedStandardScaler, PerClient, _moments
from skfedem.preprocessing._pca import _principal_axes

LENGTHS = (40, 1, 33, 2, 64)
N_CLIENTS, N_SAMPLES, N_FEATURES = len(LENGTHS), sum(LENGTHS), 5
OWNERS = np.repeat(np.arange(N_CLIENTS), LENGTHS)
NAMES = np.array(["east", "mid", "north", "south", "west"])


def make_rows():
    """Correlated features of unlike scales; clients of unlike means."""
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(N_SAMPLES, N_FEATURES)) @ generator.normal(size=(N_FEATURES, 5))
    rows = (rows + generator.normal(size=(N_CLIENTS, N_FEATURES))[OWNERS]) * [1, 3, 0.2, 10, 1]
    rows.setflags(write=False)
    return rows


X = make_rows()
CLIENTS = np.split(X, np.cumsum(LENGTHS)[:-1])
FRAMES = [pd.DataFrame(rows, columns=list("abcde")) for rows in CLIENTS]
MIXED = np.random.default_rng(1).permutation(N_SAMPLES)

SCALERS = [
    {},
    {"with_mean": False},
    {"with_std": False},
    {"with_mean": False, "with_std": False},
]
COMPONENTS = [None, 1, 3, 5, 0.3, 0.9, 0.999999]
# Each kind of transformer, with parameters that keep it quick.
TRANSFORMERS = {
    "scaler": FederatedStandardScaler(),
    "pca": FederatedPCA(2),
    "whitening": FederatedPCA(0.9, whiten=True),
    "min-max": PerClient(MinMaxScaler()),
    "normalizer": PerClient(Normalizer()),
}
every_transformer = pytest.mark.parametrize("transformer", TRANSFORMERS.values(), ids=TRANSFORMERS)


@parametrize_with_checks(
    [
        *(FederatedStandardScaler(**parameters) for parameters in SCALERS),
        FederatedPCA(),
        FederatedPCA(n_components=1),
        FederatedPCA(n_components=0.9, whiten=True),
        PerClient(MinMaxScaler()),
        PerClient(StandardScaler()),
        PerClient(Normalizer()),
        PerClient(FunctionTransformer()),
    ]
)
def test_the_contract_of_scikit_learn(estimator, check):
    check(estimator)


# ------------------------------------------------------------------ scikit-learn on pooled rows


def assert_same_scaler(got, want, rtol=1e-12):
    """Sums of a few hundred rows round to some hundred eps."""
    for name in ("mean_", "var_", "scale_"):
        if getattr(want, name) is None:
            assert getattr(got, name) is None
        else:
            assert_allclose(getattr(got, name), getattr(want, name), rtol=rtol, atol=1e-14)
    assert_array_equal(got.n_samples_seen_, want.n_samples_seen_)
    assert type(got.n_samples_seen_) is int or np.ndim(want.n_samples_seen_) == 1
    assert np.asarray(got.n_samples_seen_).dtype.kind == "i"


@pytest.mark.parametrize("parameters", SCALERS)
def test_the_scaler_is_that_of_the_pooled_rows(parameters):
    got = FederatedStandardScaler(**parameters).fit(CLIENTS)
    want = StandardScaler(**parameters).fit(X)
    assert_same_scaler(got, want)
    assert_allclose(got.transform(X), want.transform(X), atol=1e-12)
    assert_allclose(got.inverse_transform(X), want.inverse_transform(X), atol=1e-12)


@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("n_components", COMPONENTS)
def test_the_components_are_those_of_the_pooled_rows(n_components, whiten):
    got = FederatedPCA(n_components, whiten=whiten).fit(CLIENTS)
    want = PCA(n_components, whiten=whiten, svd_solver="full").fit(X)
    assert got.n_components_ == want.n_components_
    for name in (
        "components_",
        "mean_",
        "explained_variance_",
        "explained_variance_ratio_",
        "singular_values_",
        "noise_variance_",
        "n_samples_",
    ):
        assert_allclose(getattr(got, name), getattr(want, name), rtol=1e-8, atol=1e-8, err_msg=name)
    scores = want.transform(X)
    assert_allclose(got.transform(X), scores, atol=1e-8)
    assert_allclose(got.inverse_transform(scores), want.inverse_transform(scores), atol=1e-8)
    # Whitening changes scores, not the model, as it does in scikit-learn.
    want = PCA(n_components, svd_solver="full").fit(X)
    assert_allclose(got.get_covariance(), want.get_covariance(), atol=1e-8)
    assert_allclose(got.get_precision(), want.get_precision(), rtol=1e-8)
    assert_allclose(got.score_samples(X), want.score_samples(X), rtol=1e-8)
    assert_allclose(got.score(CLIENTS), want.score(X), rtol=1e-8)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    n_features=st.integers(1, 6),
    offset=st.sampled_from([0.0, -7.5, 1e3]),
    seed=st.integers(0, 2**31),
)
def test_any_split_of_any_shape_gives_the_fit_of_the_pooled_rows(lengths, n_features, offset, seed):
    generator = np.random.default_rng(seed)
    rows = generator.normal(size=(sum(lengths), n_features)) * generator.uniform(0.5, 3, n_features)
    rows += offset
    clients = np.split(rows, np.cumsum(lengths)[:-1])
    # At 1e3, scikit-learn's own mean is known to 1e-13.
    got, want = FederatedStandardScaler().fit(clients), StandardScaler().fit(rows)
    assert_allclose(got.transform(rows), want.transform(rows), atol=1e-8)
    if len(rows) < 2:
        return
    got, want = FederatedPCA().fit(clients), PCA(svd_solver="full").fit(rows)
    # Axes of close variances are not determined; what they span, and the variances, are.
    assert got.components_.shape == want.components_.shape
    assert_allclose(got.explained_variance_, want.explained_variance_, atol=1e-8)
    assert_allclose(got.singular_values_[:-1], want.singular_values_[:-1], atol=1e-6)
    scores = got.transform(rows)
    assert_allclose(got.inverse_transform(scores), rows, atol=1e-8)


@pytest.mark.parametrize("n_samples", [2, 3, 5, 6])
def test_fewer_rows_than_features_have_as_many_components_as_rows(n_samples):
    rows = X[:n_samples]
    got, want = FederatedPCA().fit([rows[:1], rows[1:]]), PCA(svd_solver="full").fit(rows)
    assert got.n_components_ == want.n_components_ == min(n_samples, N_FEATURES)
    assert_allclose(got.explained_variance_, want.explained_variance_, atol=1e-10)
    assert_allclose(got.singular_values_, want.singular_values_, atol=1e-8)
    n_varying = min(n_samples - 1, N_FEATURES)  # the last axis of fewer rows is any
    varying = slice(None, n_varying)
    assert_allclose(got.components_[varying], want.components_[varying], atol=1e-10)
    # What is left is shared by as many axes as rows can have.
    got, want = FederatedPCA(1).fit(rows), PCA(1, svd_solver="full").fit(rows)
    assert_allclose(got.noise_variance_, want.noise_variance_, atol=1e-10)


def test_entries_of_one_size_have_the_same_signs_for_any_split():
    # Of two standardised features the axes are (1, 1) and (1, -1), whatever rounding says.
    rows = StandardScaler().fit_transform(X[:, :2])
    for seed in range(10):
        owners = np.random.default_rng(seed).integers(0, 4, N_SAMPLES)
        components = FederatedPCA().fit(rows, clients=owners).components_
        assert_allclose(np.abs(components), np.sqrt(0.5), rtol=1e-9)
        assert np.all(components[:, 0] > 0)


@pytest.mark.parametrize(
    "offset", [1e6, 1e8, -1e10, -(2.0**27)]
)  # about which doubles grow coarser
def test_rows_far_from_the_origin_lose_no_digits(offset):
    far = X + offset
    near = far - offset  # exact: the numbers are within a factor of 2
    clients = np.split(far, np.cumsum(LENGTHS)[:-1])
    got, want = FederatedStandardScaler().fit(clients), StandardScaler().fit(near)
    assert_allclose(got.scale_, want.scale_, rtol=1e-13)
    assert_allclose(got.transform(far), want.transform(near), atol=1e-12)
    # A row is given back as the double that it was.
    assert_array_equal(got.inverse_transform(got.transform(far)), far)
    got, want = FederatedPCA(whiten=True).fit(clients), PCA(whiten=True).fit(near)
    assert_allclose(got.explained_variance_, want.explained_variance_, rtol=1e-10)
    # Centred rows keep some 14 digits; the smallest axis has a ten thousandth of the variance.
    assert_allclose(got.components_, want.components_, atol=1e-11)
    assert_allclose(got.transform(far), want.transform(near), atol=1e-9)
    assert_allclose(got.score_samples(far), PCA().fit(near).score_samples(near), atol=1e-8)
    assert_array_equal(got.inverse_transform(got.transform(far)), far)


def test_components_without_variance_are_0_for_rows_of_the_fit():
    rng = np.random.default_rng(0)
    plane = rng.normal(size=(200, 2)) @ rng.normal(size=(2, 4))
    pca = FederatedPCA().fit(np.array_split(plane, 3))
    new = pca.transform(plane)
    assert_array_equal(new[:, 2:], 0.0)
    assert_allclose(new, PCA().fit(plane).transform(plane), atol=1e-12)
    # Rows have the digits of their size and precision.
    far = FederatedPCA().fit(np.array_split(plane + 1e8, 3))
    assert_array_equal(far.transform(plane + 1e8)[:, 2:], 0.0)
    single = plane.astype(np.float32)
    assert_array_equal(FederatedPCA().fit(np.array_split(single, 3)).transform(single)[:, 2:], 0.0)
    # Another row may be off the plane.
    beyond = pca.transform(plane[:1] + pca.components_[3])
    assert_allclose(beyond - new[:1], [[0, 0, 0, 1]], atol=1e-12)


def test_whitened_components_without_variance_are_0():
    rng = np.random.default_rng(0)
    # The variance of the rates is lost beside that of incomes.
    rows = np.column_stack([rng.lognormal(15, 1, 500), rng.normal(40, 10, 500), rng.random(500)])
    clients = np.array_split(rows, 5)
    pca = FederatedPCA(whiten=True).fit(clients)
    assert_array_equal(pca.explained_variance_ > 0, [True, True, False])
    white = np.concatenate(pca.transform(clients))
    assert_allclose(white.std(axis=0, ddof=1), [1, 1, 0], rtol=1e-6)
    tiny = FederatedPCA(whiten=True).fit([1e-17 * table for table in CLIENTS])
    assert_allclose(tiny.inverse_transform(tiny.transform(1e-17 * X)), 1e-17 * X, rtol=1e-9)


def test_moments_are_those_of_exact_arithmetic():
    # So many rows so far away that their mean, summed up as it is, is off by 1e-5.
    generator = np.random.default_rng(6)
    rows = generator.normal(size=(20_000, 2)) @ [[1.0, 0.5], [0.0, 1.0]] + 1e10
    clients = np.split(rows, [3, 10_000, 10_001])
    exact = [[Fraction(value) for value in column] for column in rows.T.tolist()]
    means = [sum(column) / len(rows) for column in exact]
    differences = np.array(
        [[float(value - mean) for value in own] for own, mean in zip(exact, means, strict=True)]
    )
    covariance = differences @ differences.T / len(rows)
    naive = rows.sum(axis=0) / len(rows)
    assert max(abs(float(Fraction(n) - mean)) for n, mean in zip(naive, means, strict=True)) > 1e-6

    scaler = FederatedStandardScaler().fit(clients)
    assert scaler.mean_.tolist() == [float(mean) for mean in means]
    # Sums of 20,000 squares round by some 20,000 eps at the very most.
    assert_allclose(scaler.var_, np.diagonal(covariance), rtol=1e-12)
    standard = (differences / np.sqrt(np.diagonal(covariance))[:, None]).T
    assert_allclose(scaler.transform(rows), standard, rtol=1e-11, atol=1e-14)
    pca = FederatedPCA().fit(clients)
    assert pca.mean_.tolist() == scaler.mean_.tolist()
    want = np.linalg.eigvalsh(covariance)[::-1] * len(rows) / (len(rows) - 1)
    assert_allclose(pca.explained_variance_, want, rtol=1e-12)
    assert_allclose(pca.transform(rows) @ pca.components_, differences.T, atol=1e-13)


@pytest.mark.parametrize("constant", [0.0, 0.1, 1e8 / 3])
def test_columns_that_are_constant_everywhere_are_not_scaled(constant):
    rows = X.copy()
    rows[:, 2] = constant
    clients = np.split(rows, np.cumsum(LENGTHS)[:-1])
    got, want = FederatedStandardScaler().fit(clients), StandardScaler().fit(rows)
    assert got.scale_[2] == want.scale_[2] == 1.0
    assert_allclose(got.scale_, want.scale_, rtol=1e-12)
    assert_allclose(got.transform(rows)[:, 2], 0.0, atol=1e-15 * max(constant, 1))
    got, want = FederatedPCA().fit(clients), PCA(svd_solver="full").fit(rows)
    assert got.explained_variance_[-1] == 0.0
    assert_allclose(got.components_, want.components_, atol=1e-8)
    assert_allclose(got.singular_values_, want.singular_values_, atol=1e-6)


def test_a_column_that_only_rounding_makes_vary_is_constant():
    rows = X.copy()
    rows[:, 2] = 0.1
    rows[::2, 2] = np.nextafter(0.1, 1)
    got = FederatedStandardScaler().fit(rows, clients=OWNERS)
    assert got.scale_[2] == StandardScaler().fit(rows).scale_[2] == 1.0
    assert got.var_[2] > 0


def test_many_rows_do_not_make_a_column_constant():
    # Seconds since 1970; scikit-learn's bound grows with the rows, and takes these for constant.
    rows = 1.7e9 + 0.3 * np.random.default_rng(0).normal(size=(1_000_000, 1))
    got = FederatedStandardScaler().fit(np.split(rows, 4))
    assert_allclose(got.scale_, (rows - 1.7e9).std(axis=0), rtol=1e-12)


def test_a_share_of_the_variance_has_to_be_exceeded():
    rows = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    got = FederatedPCA(0.5).fit([rows[:1], rows[1:]])
    assert got.n_components_ == PCA(0.5, svd_solver="full").fit(rows).n_components_ == 2


def test_a_column_that_is_constant_at_each_client_varies():
    rows = X.copy()
    rows[:, 2] = OWNERS
    clients = np.split(rows, np.cumsum(LENGTHS)[:-1])
    assert_same_scaler(FederatedStandardScaler().fit(clients), StandardScaler().fit(rows))


def test_rows_that_do_not_vary_are_zeros_without_a_share_of_variance():
    clients = [np.full((3, 2), 5.0), np.full((1, 2), 5.0)]
    pca = FederatedPCA(0.5).fit(clients)
    assert_array_equal(pca.explained_variance_ratio_, np.zeros(pca.n_components_))
    for values in pca.transform(clients):
        assert_array_equal(values, np.zeros_like(values))


def test_linearly_dependent_columns_have_a_singular_value_of_0():
    rows = X.copy()
    rows[:, 4] = rows[:, 0] + rows[:, 1]
    got = FederatedPCA().fit(np.split(rows, np.cumsum(LENGTHS)[:-1]))
    want = PCA(svd_solver="full").fit(rows)
    assert_allclose(got.components_, want.components_, atol=1e-8)
    # What rounding makes of no variance is taken for 0, else its root would be 1e-7.
    assert_allclose(got.singular_values_, want.singular_values_, atol=1e-8)


@pytest.mark.parametrize("n_components", [None, 4, 5])
def test_rows_of_dependent_features_have_no_likelihood(n_components):
    rows = np.c_[X[:, :4], X[:, 0] + X[:, 1]]
    pca = FederatedPCA(n_components).fit([rows])
    for ask in (lambda: pca.score([rows]), lambda: pca.score_samples(rows), pca.get_precision):
        with pytest.raises(ValueError, match=r"^Expected n_components < 4, .* 5 features, got"):
            ask()
    # Noise makes up for what is missing, and every axis of full rank is a likelihood, too.
    for likely, data in ((FederatedPCA(3), rows), (FederatedPCA(), X)):
        want = PCA(likely.n_components, svd_solver="full").fit(data)
        got = likely.fit([data])
        assert_allclose(got.score([data]), want.score(data), rtol=1e-9)
        # Precisions up to 20, and rounding times the condition of the covariance, some 1e4.
        assert_allclose(got.get_precision(), want.get_precision(), rtol=0, atol=1e-9)


@pytest.mark.parametrize(("n_components", "kept"), [(None, 4), (3, 3), (1 - 1e-12, 3)])
def test_a_likelihood_needs_fewer_components_than_were_fitted(n_components, kept):
    rows = np.c_[X[:, :3], X[:, 0] + X[:, 1]]
    pca = FederatedPCA(n_components).fit([rows])
    message = f"^Expected n_components < 3, .* for 4 features, got {kept}: .* Fit with fewer"
    for later in (n_components, 2):
        pca.set_params(n_components=later)
        with pytest.raises(ValueError, match=message):
            pca.score([rows])
    assert np.isfinite(pca.fit([rows]).score([rows]))


@pytest.mark.parametrize("is_list", [True, False])
def test_a_likelihood_weighs_rows(is_list):
    weights = np.random.default_rng(0).integers(0, 4, size=len(X), dtype=np.intp)
    ends = np.cumsum([len(rows) for rows in CLIENTS])[:-1]
    pooled = np.concatenate(CLIENTS)
    data = (CLIENTS, np.split(weights, ends)) if is_list else (pooled, weights)
    pca = FederatedPCA(2).fit(CLIENTS)
    want = pca.score(np.repeat(pooled, weights, axis=0))
    assert_allclose(pca.score(data[0], sample_weight=data[1]), want, rtol=1e-12)
    with pytest.raises(ValueError, match="sample_weight"):
        pca.score(data[0], sample_weight=data[1][1:])
    with sklearn.config_context(enable_metadata_routing=True):
        asking = clone(pca).set_score_request(sample_weight=True)
        steps = make_pipeline(FederatedStandardScaler(), asking).fit(pooled)
        scaled = steps[0].transform(pooled)
        want = steps[1].score(np.repeat(scaled, weights, axis=0))
        assert_allclose(steps.score(pooled, sample_weight=weights), want, rtol=1e-12)


def test_without_fewer_components_there_is_other_advice():
    rows = np.ones((6, 2))
    message = r"^Expected at least one axis .* for 2 features, got 0: .* Fit with more rows"
    with pytest.raises(ValueError, match=message):
        FederatedPCA().fit([rows]).score([rows])


def test_advised_components_may_be_none():
    rows = np.outer(np.arange(6.0), [1.0, 2.0])
    with pytest.raises(ValueError, match="^Expected n_components < 1, .* with fewer components"):
        FederatedPCA().fit([rows]).score([rows])
    assert np.isfinite(FederatedPCA(0).fit([rows]).score([rows]))


def test_a_small_variance_is_no_rounding():
    # The variance of 300 numbers has a standard deviation of 8 percent.
    rows = np.random.default_rng(0).normal(size=(300, 2)) * [1.0, 3e-7]
    assert_allclose(FederatedPCA().fit(rows).explained_variance_[-1], 9e-14, rtol=0.2)


@pytest.mark.parametrize("seed", range(6))
def test_indicator_columns_are_dependent(seed):
    # Three columns that add up to 1: rounding leaves several times 3 eps of the largest variance.
    rows = np.eye(3)[np.random.default_rng(seed).integers(3, size=300)]
    pca = FederatedPCA().fit(np.split(rows, 5))
    assert pca.explained_variance_[-1] == 0.0
    with pytest.raises(ValueError, match="Expected n_components < 2"):
        pca.score(rows)


def test_a_whitened_likelihood_is_that_of_the_rows():
    pca = FederatedPCA(whiten=True).fit(CLIENTS)
    rows = multivariate_normal(X.mean(axis=0), np.cov(X.T))
    assert_allclose(pca.score(X), rows.logpdf(X).mean(), rtol=1e-9)


@pytest.mark.parametrize("make", [lambda rows: rows, lambda rows: np.split(rows, [40, 90])])
def test_what_a_mask_hides_is_missing(make):
    hidden = np.random.default_rng(3).random(X.shape) < 0.2
    masked = np.ma.array(np.where(hidden, 999.0, X), mask=hidden)
    plain = np.where(hidden, np.nan, X)
    for transformer in (FederatedStandardScaler(), PerClient(MinMaxScaler())):
        got, want = clone(transformer).fit(make(masked)), clone(transformer).fit(make(plain))
        assert_array_equal(got.transform(masked), want.transform(plain))
        assert_array_equal(got.inverse_transform(masked), want.inverse_transform(plain))
    with pytest.raises(ValueError, match="Input X contains NaN"):
        FederatedPCA().fit(X).inverse_transform(masked)


def test_missing_values_are_left_out():
    rows = X.copy()
    generator = np.random.default_rng(2)
    rows[generator.random(rows.shape) < 0.3] = np.nan
    rows[OWNERS == 2, 3] = np.nan
    clients = np.split(rows, np.cumsum(LENGTHS)[:-1])
    for data, labels in ((clients, None), (rows, OWNERS)):
        got = FederatedStandardScaler().fit(data, clients=labels)
        want = StandardScaler().fit(rows)
        assert_same_scaler(got, want)
    assert_allclose(got.transform(rows), want.transform(rows), atol=1e-12)
    assert_array_equal(np.isnan(np.concatenate(got.transform(clients))), np.isnan(rows))
    assert_allclose(got.inverse_transform(got.transform(rows)), rows, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["Float64", "Int64", object])
def test_missing_values_of_pandas_are_left_out(dtype):
    tables = [(10 * table).round().astype(dtype) for table in FRAMES]
    tables[0].iloc[3, 1] = None if dtype is object else pd.NA
    wanted = (10 * X).round()
    wanted[3, 1] = np.nan
    want = StandardScaler().fit(wanted)
    assert_same_scaler(FederatedStandardScaler().fit(tables), want)
    assert_same_scaler(FederatedStandardScaler().fit(pd.concat(tables), clients=OWNERS), want)
    with pytest.raises(ValueError, match=r"NaN or infinity.*row 3, column 1 \('b'\) of client 0"):
        FederatedPCA().fit(tables)


def test_a_column_that_nobody_observed_is_left_as_it_is():
    clients = [rows.copy() for rows in CLIENTS]
    for rows in clients:
        rows[:, 1] = np.nan
    with pytest.warns(UserWarning, match="No client has a value in column 1") as caught:
        scaler = FederatedStandardScaler().fit(clients)
    assert caught[0].filename == __file__
    assert (scaler.mean_[1], scaler.var_[1], scaler.scale_[1]) == (0.0, 0.0, 1.0)
    assert scaler.n_samples_seen_.tolist() == [N_SAMPLES, 0] + 3 * [N_SAMPLES]
    assert_allclose(scaler.transform(X)[:, 1], X[:, 1], rtol=1e-15)


def test_many_columns_that_nobody_observed_are_not_all_named():
    with pytest.warns(UserWarning) as caught:
        FederatedStandardScaler().fit([np.full((2, 1000), np.nan)])
    told = "No client has a value in 1000 columns (0, 1, 2, 3, 4, ...), which are left unscaled."
    assert str(caught[0].message).startswith(told)


def test_float32_rows_may_have_holes():
    # Warnings are errors: that of a bound of 1e150, in float32.
    rows = np.where(X > 1, np.nan, X).astype(np.float32)
    got = FederatedStandardScaler().fit([rows])
    assert_allclose(got.mean_, FederatedStandardScaler().fit([rows.astype(float)]).mean_)


def test_float32_rows_are_read_as_the_numbers_they_are():
    small = [(rows + 1e3).astype(np.float32) for rows in CLIENTS]
    wide = [rows.astype(np.float64) for rows in small]
    for make in (FederatedStandardScaler, FederatedPCA):
        got, want = make().fit(small), make().fit(wide)
        for name in ("mean_", "scale_", "components_"):
            if hasattr(want, name):
                assert getattr(got, name).dtype == np.float64
                assert_allclose(getattr(got, name), getattr(want, name), rtol=1e-12)
        transformed = got.transform(small)[0]
        assert transformed.dtype == got.inverse_transform(transformed).dtype == np.float32
        assert_allclose(transformed, want.transform(wide)[0], rtol=1e-6, atol=1e-6)


# ------------------------------------------------------------------ any transformer


@pytest.mark.parametrize(
    "transformer",
    [MinMaxScaler(), MaxAbsScaler(), StandardScaler()],
    ids=lambda t: type(t).__name__,
)
def test_summaries_that_travel_are_those_of_the_pooled_rows(transformer):
    got, want = PerClient(transformer).fit(CLIENTS), clone(transformer).fit(X)
    # StandardScaler's updates round, by a few eps a client.
    assert_allclose(got.transform(X), want.transform(X), atol=1e-12)
    assert_allclose(got.inverse_transform(X), want.inverse_transform(X), atol=1e-11)
    assert not hasattr(transformer, "n_features_in_")


def test_a_transformer_travels_in_the_order_of_the_clients():
    big = [rows for rows in CLIENTS if len(rows) > 2]
    want = IncrementalPCA(2)
    for rows in big:
        want.partial_fit(rows)
    got = PerClient(IncrementalPCA(2)).fit(big)
    assert_array_equal(got.transformer_.components_, want.components_)
    labelled = PerClient(IncrementalPCA(2)).fit(
        np.concatenate(big), clients=np.repeat([2, 5, 9], [40, 33, 64])
    )
    assert_array_equal(labelled.transformer_.components_, want.components_)
    assert labelled.client_ids_.tolist() == [2, 5, 9]


def test_what_a_later_client_mends_does_no_harm():
    # One row has no variance yet: 0 / 0.
    want = IncrementalPCA(1)
    with np.errstate(invalid="ignore"):
        want.partial_fit(X[:1])
        got = PerClient(IncrementalPCA(1)).fit([X[:1], X[1:]])
    want.partial_fit(X[1:])
    assert_array_equal(got.transformer_.explained_variance_, want.explained_variance_)


def test_a_client_that_does_not_suit_the_transformer_is_named():
    with pytest.raises(ValueError, match="At client 0: n_components=2 must be less or equal to"):
        PerClient(IncrementalPCA(2)).fit(CLIENTS[1:])
    with pytest.raises(ValueError, match="At client 1: "):  # although there is nothing to learn
        PerClient(Normalizer()).fit([np.ones((3, 2)), *np.full((2, 3, 2), np.inf)])


@pytest.mark.parametrize("transformer", [MinMaxScaler(), Normalizer()])
def test_text_in_the_table_of_a_client_is_told_by_its_place(transformer):
    table = np.array([[1.0, 2.0], [3.0, "dune"]], dtype=object)
    says = "At client 1: Expected numbers: .*'dune' in row 1, column 1. Encode"
    for text in (table, table.tolist()):
        with pytest.raises(ValueError, match=says):
            PerClient(transformer).fit([np.ones((3, 2)), text])
    frame = pd.DataFrame(table, columns=["height", "site"])
    with pytest.raises(ValueError, match="At client 1: .*'dune' in column 'site'"):
        PerClient(transformer).fit([frame[:1], frame])


@pytest.mark.parametrize(
    "transformer",
    [Normalizer(), FunctionTransformer(np.abs), FrozenEstimator(MinMaxScaler().fit(X[:50]))],
    ids=["normalizer", "function", "frozen"],
)
def test_what_needs_no_fit_learns_nothing_from_clients(transformer):
    got = PerClient(transformer).fit(CLIENTS)
    assert (got.uplink_bits_, got.downlink_bits_) == (0, 0)
    inner = transformer if isinstance(transformer, FrozenEstimator) else clone(transformer).fit(X)
    for values, rows in zip(got.transform(CLIENTS), CLIENTS, strict=True):
        assert_array_equal(values, inner.transform(rows))


@pytest.mark.parametrize("transformer", [PCA(2), QuantileTransformer(), PolynomialFeatures()])
def test_what_cannot_be_fitted_to_summaries_says_why(transformer):
    name = type(transformer).__name__
    message = f"with `partial_fit`, or one that needs no fit, got {name}.*FrozenEstimator"
    with pytest.raises(TypeError, match=message):
        PerClient(transformer).fit(CLIENTS)


@pytest.mark.parametrize(
    "transformer", [FederatedPCA(1), FederatedStandardScaler(), PerClient(MinMaxScaler())]
)
def test_what_takes_lists_of_clients_itself_is_not_wrapped(transformer):
    message = f"got {type(transformer).__name__}, .* Use it without PerClient"
    with pytest.raises(TypeError, match=message):
        PerClient(transformer).fit(CLIENTS)


def test_a_subclass_that_can_travel_does():
    class Travelling(FederatedStandardScaler):
        def partial_fit(self, X, y=None):
            return self.fit(X)

    assert PerClient(Travelling()).fit(CLIENTS).transformer_.n_clients_ == 1


def test_it_is_said_how_to_fill_in_missing_values():
    with pytest.raises(TypeError, match=r"PerClient\(FunctionTransformer\(numpy.nan_to_num\)\)"):
        PerClient(SimpleImputer()).fit(CLIENTS)
    constant = SimpleImputer(strategy="constant")
    with pytest.raises(TypeError, match=r"PerClient\(FrozenEstimator\(simpleimputer\)\)"):
        PerClient(constant).fit(CLIENTS)
    holes = np.where(X > 1, np.nan, X)
    filled = PerClient(FrozenEstimator(constant.fit(X))).fit_transform([holes])
    assert_array_equal(filled[0], np.nan_to_num(holes))


@pytest.mark.parametrize("transformer", [None, MinMaxScaler, FederatedGaussianMixture])
def test_what_is_no_transformer_is_refused_with_an_example(transformer):
    with pytest.raises(TypeError, match=r"PerClient\(MinMaxScaler\(\)\)"):
        PerClient(transformer).fit(CLIENTS)


def test_a_frozen_transformer_is_fitted_and_for_the_features_it_was_fitted_to():
    with pytest.raises(NotFittedError):
        PerClient(FrozenEstimator(MinMaxScaler())).fit(CLIENTS)
    with pytest.raises(ValueError, match="At client 0: X has 5 features, but FrozenEstimator is"):
        PerClient(FrozenEstimator(MinMaxScaler().fit(X[:, :2]))).fit(CLIENTS)
    of_frames = PerClient(FrozenEstimator(MinMaxScaler().fit(FRAMES[0])))
    assert of_frames.fit(FRAMES).transform(FRAMES[0]).shape == FRAMES[0].shape
    with pytest.raises(ValueError, match="At client 0: The feature names should match"):
        of_frames.fit([frame.rename(columns=str.upper) for frame in FRAMES])


def test_inverse_transform_is_where_the_transformer_has_it():
    assert hasattr(PerClient(MinMaxScaler()), "inverse_transform")
    assert not hasattr(PerClient(Normalizer()), "inverse_transform")


def test_frames_reach_the_transformer_as_they_are():
    def total(table):
        return (table["a"] + table["b"]).to_frame("total")

    got = PerClient(FunctionTransformer(total)).fit_transform(FRAMES)
    for values, table in zip(got, FRAMES, strict=True):
        pd.testing.assert_frame_equal(values, total(table))


# ------------------------------------------------------------------ forms of input and output


@every_transformer
def test_a_list_labels_and_one_table_tell_the_same(transformer):
    listed = clone(transformer).fit(CLIENTS)
    labelled = clone(transformer).fit(X[MIXED], clients=NAMES[OWNERS[MIXED]])
    single = clone(transformer).fit(X)
    want = listed.transform(X)
    # The order of the sums rounds.
    assert_allclose(labelled.transform(X), want, atol=1e-10)
    assert_allclose(single.transform(X), want, atol=1e-10)
    assert listed.client_ids_.tolist() == list(range(N_CLIENTS))
    assert labelled.client_ids_.tolist() == NAMES.tolist()
    assert (listed.n_clients_, labelled.n_clients_, single.n_clients_) == (5, 5, 1)


@every_transformer
@pytest.mark.parametrize("kind", [list, tuple])
def test_a_list_gives_a_tuple_and_an_array_an_array(transformer, kind):
    fitted = clone(transformer).fit(kind(CLIENTS))
    pooled = fitted.transform(X)
    assert isinstance(pooled, np.ndarray)
    values = fitted.transform(kind(CLIENTS))
    assert isinstance(values, tuple)
    assert [len(table) for table in values] == list(LENGTHS)
    # Products of matrices of other heights round differently.
    assert_allclose(np.concatenate(values), pooled, atol=1e-12)
    again = clone(transformer).fit_transform(kind(CLIENTS))
    assert isinstance(again, tuple)
    for one, other in zip(again, values, strict=True):
        assert_array_equal(one, other)
    if hasattr(fitted, "inverse_transform"):
        back = fitted.inverse_transform(values)
        assert isinstance(back, tuple)
        assert_allclose(np.concatenate(back), fitted.inverse_transform(pooled), atol=1e-11)


@every_transformer
def test_frames_in_and_out(transformer):
    fitted = clone(transformer).set_output(transform="pandas").fit(FRAMES)
    assert fitted.feature_names_in_.tolist() == list("abcde")
    tables = [table.set_index(table.index + 100) for table in FRAMES]
    values = fitted.transform(tables)
    names = fitted.get_feature_names_out().tolist()
    assert isinstance(values, tuple)
    for value, table in zip(values, tables, strict=True):
        assert isinstance(value, pd.DataFrame)
        assert value.columns.tolist() == names
        assert value.index.tolist() == table.index.tolist()
    arrays = clone(transformer).set_output(transform="default").fit(CLIENTS).transform(CLIENTS)
    assert_allclose(values[0].to_numpy(), arrays[0], atol=1e-13)
    assert isinstance(fitted.set_output(transform="default").transform(FRAMES)[0], np.ndarray)
    # An earlier fit's names do not survive.
    assert not hasattr(fitted.fit(CLIENTS), "feature_names_in_")


def test_components_are_named_by_number_and_scaled_columns_as_they_were():
    assert FederatedPCA(2).fit(FRAMES).get_feature_names_out().tolist() == [
        "federatedpca0",
        "federatedpca1",
    ]
    assert FederatedStandardScaler().fit(FRAMES).get_feature_names_out().tolist() == list("abcde")


@every_transformer
def test_fits_can_be_pickled_and_change_nothing_given(transformer):
    before = pickle.dumps(transformer)
    clients = [rows.copy() for rows in CLIENTS]
    fitted = clone(transformer).fit(clients)
    values = pickle.loads(pickle.dumps(fitted)).transform(clients)
    assert_array_equal(np.concatenate(values), np.concatenate(fitted.transform(clients)))
    assert_array_equal(np.concatenate(clients), X)
    assert pickle.dumps(transformer) == before


# ------------------------------------------------------------------ bits


def test_bits_of_the_scaler():
    n, d = N_CLIENTS, N_FEATURES
    scaler = FederatedStandardScaler().fit(CLIENTS)
    # Up: a count, sums, sums of differences and of their squares.
    assert scaler.uplink_bits_ == 64 * n * (1 + 3 * d)
    # Down: a centre, its correction, a scale.
    assert scaler.downlink_bits_ == 64 * n * 3 * d
    scaler = FederatedStandardScaler(with_std=False).fit(CLIENTS)
    assert (scaler.uplink_bits_, scaler.downlink_bits_) == (64 * n * (1 + 2 * d), 64 * n * 2 * d)
    scaler = FederatedStandardScaler(with_mean=False).fit(CLIENTS)
    assert (scaler.uplink_bits_, scaler.downlink_bits_) == (64 * n * (1 + 3 * d), 64 * n * 2 * d)
    scaler = FederatedStandardScaler(with_mean=False, with_std=False).fit(CLIENTS)
    assert (scaler.uplink_bits_, scaler.downlink_bits_) == (64 * n, 0)


def test_clients_with_missing_values_send_a_count_for_each_column():
    clients = [rows.copy() for rows in CLIENTS]
    clients[0][3, 1] = clients[0][4, 2] = clients[4][0, 0] = np.nan
    complete, incomplete = (
        FederatedStandardScaler().fit(CLIENTS),
        FederatedStandardScaler().fit(clients),
    )
    assert incomplete.uplink_bits_ - complete.uplink_bits_ == 64 * 2 * (N_FEATURES - 1)


@pytest.mark.parametrize("whiten", [False, True])
def test_bits_of_the_components(whiten):
    n, d = N_CLIENTS, N_FEATURES
    pca = FederatedPCA(2, whiten=whiten).fit(CLIENTS)
    # Up: a count, sums, sums of differences and of their products, a triangle of a matrix.
    assert pca.uplink_bits_ == 64 * n * (1 + 2 * d + d * (d + 1) // 2)
    # Down: a centre, its correction, two axes, and their variances to whiten by.
    assert pca.downlink_bits_ == 64 * n * (2 * d + 2 * d + 2 * whiten)


def test_bits_of_what_travels_are_those_of_the_pickled_states():
    clients = CLIENTS[:3]
    walker, sizes = MinMaxScaler(), []
    for rows in clients:
        walker.partial_fit(rows)
        state = {name: value for name, value in vars(walker).items() if name.endswith("_")}
        sizes.append(8 * len(pickle.dumps(state, protocol=5)))
    got = PerClient(MinMaxScaler()).fit(clients)
    assert got.uplink_bits_ == sum(sizes)
    assert got.downlink_bits_ == sizes[0] + sizes[1] + 2 * sizes[2]
    # Five vectors of doubles in each state, and some bytes of names.
    assert 64 * 5 * N_FEATURES < sizes[0] < 64 * 5 * N_FEATURES + 8 * 1000


# ------------------------------------------------------------------ pipelines


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


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_requested_weights_of_rows_are_not_forgotten_without_a_word(method):
    with sklearn.config_context(enable_metadata_routing=True):
        scaler = getattr(StandardScaler(), f"set_{method}_request")(sample_weight=True)
        says = f"requests sample_weight for {method}.*set_{method}_request\\(sample_weight=False"
        with pytest.raises(ValueError, match=says):
            PerClient(scaler).fit(FEDERATION)
        pipeline = make_pipeline(PerClient(scaler), FederatedGaussianMixture(2, random_state=0))
        with pytest.raises(ValueError, match=says):
            pipeline.fit(FEDERATION)
        alias = getattr(StandardScaler(), f"set_{method}_request")(sample_weight="w")
        with pytest.raises(ValueError, match=says):
            PerClient(alias).fit(FEDERATION)
        # Without a fit there is nothing to weigh.
        frozen = FrozenEstimator(clone(scaler).fit(FEDERATION_ROWS))
        assert PerClient(frozen).fit(FEDERATION).uplink_bits_ == 0
        withdrawn = getattr(scaler, f"set_{method}_request")(sample_weight=False)
        assert PerClient(withdrawn).fit(FEDERATION).n_clients_ == 6


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
    assert_allclose(ours.get_covariance(), theirs.get_covariance(), rtol=1e-12, atol=1e-14)
    assert len(ours.get_feature_names_out()) == 0 and ours.noise_variance_ > 0


# ------------------------------------------------------------------ bad input


@every_transformer
@pytest.mark.parametrize(
    ("data", "labels", "message"),
    [
        ([], None, "at least one client, got an empty list. Give a list with one 2-D array"),
        ([X, X[:, :2]], None, "5 features for every client as for client 0, got 2 for client 1"),
        ([FRAMES[0], CLIENTS[1]], None, "got no string column names for client 1"),
        ([FRAMES[0], FRAMES[1][list("bacde")]], None, "order all clients' columns alike"),
        ([X, X[:0]], None, "rows? .*for.* client|Leave clients without rows out"),
        ([X, X[0]], None, "2-D table .*client 1"),
        (CLIENTS, OWNERS, "the list already tells the client of each row"),
        (X, OWNERS[1:], "one label for each of the 140 rows"),
        (X, [None, *OWNERS[1:]], "got a missing one at row 0"),
    ],
)
def test_bad_clients(transformer, data, labels, message):
    estimator = clone(transformer).fit(CLIENTS)
    before = pickle.dumps(estimator)
    with pytest.raises(ValueError, match=message):
        estimator.fit(data, clients=labels)
    assert pickle.dumps(estimator) == before


@every_transformer
def test_bad_tables_to_transform(transformer):
    fitted = clone(transformer).fit(CLIENTS)
    with pytest.raises(ValueError, match="In the table of client 1: X has 2 features"):
        fitted.transform([X, X[:, :2]])
    with pytest.raises(ValueError, match="at least one client, got an empty list. Give one"):
        fitted.transform([])
    with pytest.raises(NotFittedError):
        clone(transformer).transform(CLIENTS)


@every_transformer
@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (None, TypeError, "got None .* Give one table"),
        ("abc.csv", TypeError, "got 'abc.csv' .* read it first"),
        (X[0], ValueError, "2-?D"),
        (np.stack([X, X]), ValueError, "2-?D"),
        (X[:0], ValueError, "rows|sample"),
        ((rows for rows in CLIENTS), TypeError, r"list\(X\)"),
        ({"east": X}, TypeError, r"list\(X.values\(\)\)"),
        ([pd.Series(rows[:, 0]) for rows in CLIENTS], TypeError, "got a list of Series"),
        ([[1.0, 2.0], [3.0]], ValueError, "2 numbers in row 0 and 1 number in row 1"),
        ([X, [[1.0, 2.0], [3.0]]], ValueError, "1 number in row 1 of the table .*client 1"),
        ([X, None], ValueError, "for client 1, got .*NoneType"),
        (pd.DataFrame(index=range(4)), ValueError, "got a DataFrame without columns"),
        ([pd.DataFrame(index=range(4))] * 2, ValueError, "one feature for every client.* client 0"),
    ],
)
def test_what_is_no_table(transformer, data, error, message):
    with pytest.raises(error, match=message):
        clone(transformer).fit(data)


@pytest.mark.parametrize(
    "transformer", [FederatedStandardScaler(), FederatedPCA(), PerClient(MinMaxScaler())]
)
@pytest.mark.parametrize("method", ["transform", "inverse_transform"])
@pytest.mark.parametrize("make", [lambda: {"east": X}, lambda: (rows for rows in CLIENTS)])
def test_what_is_no_table_to_transform(transformer, method, make):
    fitted = clone(transformer).fit(CLIENTS)
    with pytest.raises(TypeError, match="^Expected a table or a list of tables, got"):
        getattr(fitted, method)(make())


def test_an_error_of_any_type_names_the_client():
    def decode(rows):
        return b"\xff".decode()  # its error takes five arguments

    fitted = PerClient(FunctionTransformer(decode)).fit(CLIENTS)
    with pytest.raises(ValueError, match="In the table of client 0: 'utf-8' codec can't decode"):
        fitted.transform(CLIENTS)

    unknown = KeyError("unknown")

    def look_up(rows):
        raise unknown

    fitted = PerClient(FunctionTransformer(look_up)).fit(CLIENTS)
    for _ in range(2):
        with pytest.raises(KeyError):
            fitted.transform(CLIENTS)
    assert unknown.__notes__ == ["In the table of client 0"]


@pytest.mark.parametrize("transformer", [FederatedStandardScaler(), FederatedPCA(2)])
def test_bad_tables_to_transform_back(transformer):
    fitted = transformer.fit(CLIENTS)
    with pytest.raises(ValueError, match="as transform gives them, got 4"):
        fitted.inverse_transform(X[:, :4])


@pytest.mark.parametrize("transformer", [FederatedStandardScaler(), FederatedPCA(5)])
@pytest.mark.parametrize("method", ["transform", "inverse_transform"])
def test_text_to_transform_back_is_told_as_text_to_transform(transformer, method):
    answer = getattr(clone(transformer).fit(X), method)
    words = [["1", "2", "3", "red", "5"]]
    with pytest.raises(ValueError, match="^Expected numbers: .*'red' in row 0, column 3. Encode"):
        answer(words)
    with pytest.raises(ValueError, match="In the table of client 1: Expected numbers: .*'red'"):
        answer([X, words])
    with pytest.raises(ValueError, match="'red' in column 3. Encode or drop columns"):
        answer(pd.DataFrame(words))
    with pytest.raises(
        ValueError, match="numbers: int too large .* in row 0, column 0. .*identifiers"
    ):
        answer([[10**400, 2, 3, 4, 5]])


@pytest.mark.parametrize("bad", [np.inf, -np.inf, 1e200])
def test_numbers_that_cannot_be_squared(bad):
    clients = [rows.copy() for rows in CLIENTS]
    clients[2][7, 3], clients[0][0, 0] = bad, np.nan
    message = (
        "infinity: expected finite or missing" if np.isinf(bad) else "at most 1e\\+150 in size"
    )
    with pytest.raises(ValueError, match=f"{message}.*in row 7, column 3 of client 2"):
        FederatedStandardScaler().fit(clients)
    with pytest.raises(ValueError, match="NaN or infinity: .* in row 0, column 0 of client 0"):
        FederatedPCA().fit(clients)


@pytest.mark.parametrize(
    ("estimator", "error", "message"),
    [
        (FederatedStandardScaler(with_mean=1), TypeError, "with_mean to be True or False"),
        (FederatedStandardScaler(with_std="no"), TypeError, "with_std to be True or False"),
        (FederatedPCA(whiten=None), TypeError, "whiten to be True or False"),
        (FederatedPCA(6), ValueError, r"min\(n_samples, n_features\) = 5, got 6"),
        (FederatedPCA(-1), ValueError, "n_components to be an integer >= 0, got -1"),
        (FederatedPCA(0.0), ValueError, "between 0 and 1, got 0.0"),
        (FederatedPCA(1.0), ValueError, "between 0 and 1, got 1.0"),
        (FederatedPCA(True), TypeError, "n_components to be an integer >= 0, got True"),
        (FederatedPCA(np.nan), ValueError, "between 0 and 1, got nan"),
        (FederatedPCA("all"), TypeError, "got 'all'"),
        (FederatedPCA("mle"), ValueError, "not available for federated PCA.*0.95"),
    ],
)
def test_bad_parameters(estimator, error, message):
    with pytest.raises(error, match=message):
        estimator.fit(CLIENTS)
    assert not hasattr(estimator, "n_features_in_")


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("whiten", [False, True])
def test_rows_are_projected_in_blocks(monkeypatch, whiten, dtype):
    rows = X.astype(dtype)
    pca = FederatedPCA(2, whiten=whiten).fit(rows)
    want, scores = pca.transform(rows), pca.score_samples(rows)
    monkeypatch.setattr(_moments, "_NUMBERS_AT_ONCE", 7 * X.shape[1])
    assert pca.transform(rows).dtype == dtype
    assert_allclose(pca.transform(rows), want, rtol=1e-5 if dtype == np.float32 else 1e-12)
    assert_allclose(pca.score_samples(rows), scores, rtol=1e-12)


def test_blocks_have_as_many_rows_as_features():
    # Each of them inverts a matrix of all pairs of features.
    assert _moments.n_rows_for_products(1000) == 1000
    assert _moments.n_rows_for_products(8) > 8


def test_one_row_has_no_variance():
    with pytest.raises(
        ValueError, match="at least 2 rows of all clients together, got n_samples=1"
    ):
        FederatedPCA().fit([X[:1]])


def test_sparse_tables_go_to_those_who_take_them():
    with pytest.raises(TypeError, match="dense table .*client 0, got a sparse csr_array"):
        FederatedPCA().fit([csr_array(X)])
    got = PerClient(MaxAbsScaler()).fit([csr_array(rows) for rows in CLIENTS])
    assert_allclose(got.transform(X), MaxAbsScaler().fit_transform(X), rtol=1e-15)


@pytest.mark.parametrize("format", ["csr", "csc", "coo", "bsr", "dia", "lil"])
def test_rows_of_any_sparse_table_may_have_labels(format):
    rows = csr_array(np.diag(np.arange(1.0, 5.0)) + np.eye(4, k=1)).asformat(format)
    got = PerClient(MaxAbsScaler()).fit(rows, clients=[0, 1, 1, 0])
    assert_array_equal(got.transformer_.max_abs_, [1, 2, 3, 4])


@pytest.mark.parametrize("transformer", [StandardScaler(), FunctionTransformer()])
def test_the_wrapped_transformer_says_which_types_of_numbers_it_keeps(transformer):
    got, want = (get_tags(each).transformer_tags for each in (PerClient(transformer), transformer))
    assert got.preserves_dtype == want.preserves_dtype


@pytest.mark.parametrize("transformer", [MinMaxScaler(), MaxAbsScaler(), StandardScaler()])
@pytest.mark.parametrize("spoiler", [0, 2])
def test_a_client_who_never_measured_a_column_is_named(transformer, spoiler):
    # What scikit-learn makes of such a column is NaN, and stays so with the clients that follow.
    clients = list(np.random.default_rng(0).normal(size=(3, 6, 3)))
    clients[spoiler][:, 1] = np.nan
    says = f"after client {spoiler}, got NaN in .*FederatedStandardScaler"
    with warnings.catch_warnings(), pytest.raises(ValueError, match=says):
        warnings.simplefilter("ignore", RuntimeWarning)  # scikit-learn's, of empty slices
        PerClient(transformer).fit(clients)


@pytest.mark.parametrize(
    ("function", "got"),
    [
        (lambda table: table[:3], "3"),
        (lambda table: np.repeat(table, 2, axis=0), "12"),
        (lambda table: None, "a NoneType from FunctionTransf"),
    ],
)
def test_what_is_not_row_wise_is_refused(function, got):
    rows = np.arange(12.0).reshape(6, 2)
    fitted = PerClient(FunctionTransformer(function)).fit([rows, rows])
    says = f"client 0: Expected a row for each of the 6 rows, got {got}"
    with pytest.raises(ValueError, match=says):
        fitted.transform([rows, rows])
    with pytest.raises(ValueError, match=says.removeprefix("client 0: ")):
        fitted.transform(rows)


@pytest.mark.parametrize("sign", [1, -1])
def test_rounding_is_no_variance(sign):
    variances, _ = _principal_axes(np.diag([1.0, sign * 1e-15]))
    assert_array_equal(variances, [1, 0])


def test_what_set_output_wants_is_nothing_that_clients_send():
    clients = [np.arange(6.0).reshape(3, 2), np.ones((2, 2))]
    plain = PerClient(MinMaxScaler()).fit(clients)
    framed = PerClient(MinMaxScaler()).set_output(transform="pandas").fit(clients)
    assert framed.uplink_bits_ == plain.uplink_bits_


def named_columns(rows):
    return pd.DataFrame(rows, columns=list("abc"))


def polars_frame(rows):
    return pytest.importorskip("polars").DataFrame(rows, schema=list("abc"))


@pytest.mark.parametrize(
    "estimator",
    [
        FederatedStandardScaler(),
        FederatedPCA(2, whiten=True),
        FederatedGaussianMixture(2, random_state=0),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
@pytest.mark.parametrize("container", [None, "pandas"])
@pytest.mark.parametrize("table", [np.asarray, pd.DataFrame, named_columns, polars_frame])
def test_a_list_of_small_tables_is_answered_as_each_of_them(estimator, container, table):
    rng = np.random.default_rng(0)
    clients = [table(rng.normal(size=(n_rows, 3))) for n_rows in (4, 1, 20000, 7)]
    fitted = clone(estimator).set_output(transform=container).fit(clients)
    methods = [name for name in ("transform", "inverse_transform") if hasattr(fitted, name)]
    given = clients
    for name in methods:
        answers = getattr(fitted, name)(given)
        alone = [getattr(fitted, name)(own) for own in given]
        for one, other in zip(answers, alone, strict=True):
            assert type(one) is type(other)
            # Products of matrices add up in an order that depends on the number of rows.
            assert_allclose(one, other, rtol=1e-12, atol=1e-12)
        given = [np.asarray(answer) for answer in answers]
    assert_array_equal([len(answer) for answer in answers], [4, 1, 20000, 7])
    if table is named_columns:
        with pytest.raises(ValueError, match="In the table of client 1: The feature names should"):
            fitted.transform([clients[0], clients[1][["c", "b", "a"]]])
    with pytest.raises(ValueError, match="In the table of client 1: "):
        fitted.transform([clients[0], table(np.full((2, 3), np.inf))])
    if table is np.asarray:
        for wrong in (np.ones((2, 4)), np.ones((0, 3)), np.ones(3)):
            with pytest.raises(ValueError, match="In the table of client 1: "):
                fitted.transform([clients[0], wrong])


@pytest.mark.parametrize(("share", "varies"), [(90, False), (120, True)])
def test_a_variance_of_less_than_the_documented_share_is_taken_for_0(share, varies):
    # n_features + 100 is 102.
    size = np.sqrt(share * np.finfo(np.float64).eps)
    pca = FederatedPCA().fit([np.array([[1, 0], [-1, 0]]), np.array([[0, size], [0, -size]])])
    assert (pca.explained_variance_ > 0).tolist() == [True, varies]


def test_there_are_no_more_components_than_rows():
    rows = np.random.default_rng(0).normal(size=(3, 5))
    assert FederatedPCA(3).fit([rows[:2], rows[2:]]).n_components_ == 3
    with pytest.raises(ValueError, match=r"min\(n_samples, n_features\) = 3, got 4"):
        FederatedPCA(4).fit([rows[:2], rows[2:]])


@pytest.mark.parametrize("dtype", [int, bool, np.uint8])
def test_what_a_mask_hides_among_integers_is_missing(dtype):
    masked = np.ma.array([[1, 0], [1, 1], [0, 1]], dtype=dtype, mask=[[1, 0], [0, 0], [0, 1]])
    assert_array_equal(FederatedStandardScaler().fit(masked).mean_, [0.5, 0.5])
    assert_array_equal(FederatedStandardScaler().fit([masked] * 2).n_samples_seen_, [4, 4])


def test_rows_longer_than_a_block_are_read():
    wide = np.arange(2.0)[:, None] + np.zeros(2**18 + 1)
    assert_array_equal(FederatedStandardScaler().fit(wide).mean_, np.full(wide.shape[1], 0.5))


@pytest.mark.parametrize("make", [lambda rows: rows, lambda rows: [rows, rows]])
def test_text_that_a_mask_hides_is_missing(make):
    mask = [[True, False], [False, False]]
    masked = np.ma.array([["none", 1], [2, 3]], dtype=object, mask=mask)
    assert_array_equal(FederatedStandardScaler().fit(make(masked)).mean_, [2.0, 2.0])
