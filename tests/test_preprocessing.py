"""Scaler and principal components of federated rows, against scikit-learn's of pooled rows."""

from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import sklearn
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import multivariate_normal
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, MinMaxScaler, Normalizer, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from preprocessed import CLIENTS, FRAMES, LENGTHS, N_CLIENTS, N_FEATURES, N_SAMPLES, OWNERS, X
from skfedem.preprocessing import FederatedPCA, FederatedStandardScaler, PerClient, _moments
from skfedem.preprocessing._pca import _principal_axes

SCALERS = [
    {},
    {"with_mean": False},
    {"with_std": False},
    {"with_mean": False, "with_std": False},
]
COMPONENTS = [None, 1, 3, 5, 0.3, 0.9, 0.999999]


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


def test_a_share_of_the_variance_has_to_be_exceeded():
    rows = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    got = FederatedPCA(0.5).fit([rows[:1], rows[1:]])
    assert got.n_components_ == PCA(0.5, svd_solver="full").fit(rows).n_components_ == 2


def test_there_are_no_more_components_than_rows():
    rows = np.random.default_rng(0).normal(size=(3, 5))
    assert FederatedPCA(3).fit([rows[:2], rows[2:]]).n_components_ == 3
    with pytest.raises(ValueError, match=r"min\(n_samples, n_features\) = 3, got 4"):
        FederatedPCA(4).fit([rows[:2], rows[2:]])


# ------------------------------------------------------------------ what does not vary


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


@pytest.mark.parametrize("sign", [1, -1])
def test_rounding_is_no_variance(sign):
    variances, _ = _principal_axes(np.diag([1.0, sign * 1e-15]))
    assert_array_equal(variances, [1, 0])


@pytest.mark.parametrize(("share", "varies"), [(90, False), (120, True)])
def test_a_variance_of_less_than_the_documented_share_is_taken_for_0(share, varies):
    # n_features + 100 is 102.
    size = np.sqrt(share * np.finfo(np.float64).eps)
    pca = FederatedPCA().fit([np.array([[1, 0], [-1, 0]]), np.array([[0, size], [0, -size]])])
    assert (pca.explained_variance_ > 0).tolist() == [True, varies]


def test_one_row_has_no_variance():
    with pytest.raises(
        ValueError, match="at least 2 rows of all clients together, got n_samples=1"
    ):
        FederatedPCA().fit([X[:1]])


# ------------------------------------------------------------------ likelihoods


@pytest.mark.parametrize("n_components", [None, 4, 5])
def test_rows_of_dependent_features_have_no_likelihood(n_components):
    rows = np.c_[X[:, :4], X[:, 0] + X[:, 1]]
    pca = FederatedPCA(n_components).fit([rows])
    for ask in (lambda: pca.score([rows]), lambda: pca.score_samples(rows)):
        with pytest.raises(ValueError, match=r"^Expected n_components < 4, .* 5 features, got"):
            ask()
    # Noise makes up for what is missing, and every axis of full rank is a likelihood, too.
    for likely, data in ((FederatedPCA(3), rows), (FederatedPCA(), X)):
        want = PCA(likely.n_components, svd_solver="full").fit(data)
        got = likely.fit([data])
        assert_allclose(got.score([data]), want.score(data), rtol=1e-9)


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


def test_a_whitened_likelihood_is_that_of_the_rows():
    pca = FederatedPCA(whiten=True).fit(CLIENTS)
    rows = multivariate_normal(X.mean(axis=0), np.cov(X.T))
    assert_allclose(pca.score(X), rows.logpdf(X).mean(), rtol=1e-9)


# ------------------------------------------------------------------ missing values


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


@pytest.mark.parametrize("dtype", [int, bool, np.uint8])
def test_what_a_mask_hides_among_integers_is_missing(dtype):
    masked = np.ma.array([[1, 0], [1, 1], [0, 1]], dtype=dtype, mask=[[1, 0], [0, 0], [0, 1]])
    assert_array_equal(FederatedStandardScaler().fit(masked).mean_, [0.5, 0.5])
    assert_array_equal(FederatedStandardScaler().fit([masked] * 2).n_samples_seen_, [4, 4])


@pytest.mark.parametrize("make", [lambda rows: rows, lambda rows: [rows, rows]])
def test_text_that_a_mask_hides_is_missing(make):
    mask = [[True, False], [False, False]]
    masked = np.ma.array([["none", 1], [2, 3]], dtype=object, mask=mask)
    assert_array_equal(FederatedStandardScaler().fit(make(masked)).mean_, [2.0, 2.0])


# ------------------------------------------------------------------ types and blocks of rows


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


def test_rows_longer_than_a_block_are_read():
    wide = np.arange(2.0)[:, None] + np.zeros(2**18 + 1)
    assert_array_equal(FederatedStandardScaler().fit(wide).mean_, np.full(wide.shape[1], 0.5))


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
