"""Any transformer whose summaries of clients can be put together."""

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.decomposition import PCA, IncrementalPCA
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
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

from preprocessed import CLIENTS, FRAMES, N_FEATURES, X
from skfedem import FederatedGaussianMixture
from skfedem.preprocessing import FederatedStandardScaler, PerClient


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


def test_an_error_that_is_not_about_text_is_kept_beside_text():
    frame = pd.DataFrame({"height": [1.0, 3.0], "site": ["dune", "marsh"]})
    with pytest.raises(ValueError, match="The 'func' parameter .* Got 'log' instead"):
        PerClient(FunctionTransformer("log")).fit(frame)


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


def test_a_subclass_that_can_travel_does():
    class Travelling(FederatedStandardScaler):
        def partial_fit(self, X, y=None):
            return self.fit(X)

    assert PerClient(Travelling()).fit(CLIENTS).transformer_.n_clients_ == 1


def test_missing_values_are_filled_in_by_a_frozen_imputer():
    constant = SimpleImputer(strategy="constant")
    with pytest.raises(TypeError, match="give it in a FrozenEstimator"):
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


def test_what_set_output_wants_is_nothing_that_clients_send():
    clients = [np.arange(6.0).reshape(3, 2), np.ones((2, 2))]
    plain = PerClient(MinMaxScaler()).fit(clients)
    framed = PerClient(MinMaxScaler()).set_output(transform="pandas").fit(clients)
    assert framed.uplink_bits_ == plain.uplink_bits_


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
