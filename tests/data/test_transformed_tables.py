"""Tables that transformers take and give back, and what they refuse."""

import pickle

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler

from preprocessed import (
    CLIENTS,
    FRAMES,
    LENGTHS,
    MIXED,
    N_CLIENTS,
    NAMES,
    OWNERS,
    X,
    every_transformer,
)
from skfedem import FederatedGaussianMixture
from skfedem.preprocessing import FederatedPCA, FederatedStandardScaler, PerClient


@every_transformer
def test_list_labels_and_one_table_agree(transformer):
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
def test_a_list_gives_a_tuple(transformer, kind):
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
def test_stacked_tables_give_the_results_of_single_ones(estimator, container, table):
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


def test_sparse_tables_of_per_client():
    with pytest.raises(TypeError, match="dense table .*client 0, got a sparse csr_array"):
        FederatedPCA().fit([csr_array(X)])
    got = PerClient(MaxAbsScaler()).fit([csr_array(rows) for rows in CLIENTS])
    assert_allclose(got.transform(X), MaxAbsScaler().fit_transform(X), rtol=1e-15)


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
        (None, TypeError, "got None of type NoneType"),
        ("abc.csv", TypeError, "got 'abc.csv' of type str"),
        (X[0], ValueError, "2-?D"),
        (np.stack([X, X]), ValueError, "2-?D"),
        (X[:0], ValueError, "rows|sample"),
        ((rows for rows in CLIENTS), TypeError, "of type generator"),
        ({"east": X}, TypeError, "of type dict"),
        ([pd.Series(rows[:, 0]) for rows in CLIENTS], TypeError, "got a list of 1-D Series"),
        ([[1.0, 2.0], [3.0]], ValueError, "inhomogeneous"),
        (
            [X, [[1.0, 2.0], [3.0]]],
            ValueError,
            "inhomogeneous",
        ),
        ([X, None], TypeError, "for client 1, .*got None of type NoneType"),
        ([pd.DataFrame(index=range(4))] * 2, ValueError, "one feature for every client.* client 0"),
    ],
)
def test_other_objects_raise_type_errors(transformer, data, error, message):
    with pytest.raises(error, match=message):
        clone(transformer).fit(data)


@pytest.mark.parametrize(
    "transformer", [FederatedStandardScaler(), FederatedPCA(), PerClient(MinMaxScaler())]
)
@pytest.mark.parametrize("method", ["transform", "inverse_transform"])
@pytest.mark.parametrize("make", [lambda: {"east": X}, lambda: (rows for rows in CLIENTS)])
def test_other_objects_to_transform_raise(transformer, method, make):
    fitted = clone(transformer).fit(CLIENTS)
    with pytest.raises(TypeError, match="^Expected a table .* or a list of tables, got"):
        getattr(fitted, method)(make())


@pytest.mark.parametrize("transformer", [FederatedStandardScaler(), FederatedPCA(2)])
def test_bad_tables_to_transform_back(transformer):
    fitted = transformer.fit(CLIENTS)
    with pytest.raises(ValueError, match="as transform gives them, got 4"):
        fitted.inverse_transform(X[:, :4])


@pytest.mark.parametrize("transformer", [FederatedStandardScaler(), FederatedPCA(5)])
@pytest.mark.parametrize("method", ["transform", "inverse_transform"])
def test_text_to_transform_or_invert_raises(transformer, method):
    answer = getattr(clone(transformer).fit(X), method)
    words = [["1", "2", "3", "red", "5"]]
    with pytest.raises(ValueError, match="^Expected numbers, got dtype <U.* Encode"):
        answer(words)
    with pytest.raises(
        ValueError, match="In the table of client 1: Expected numbers, got dtype <U"
    ):
        answer([X, words])
    with pytest.raises(ValueError, match="'red' in column 3. Encode or drop columns"):
        answer(pd.DataFrame(words))
    with pytest.raises(ValueError, match="numbers: int too large .*identifiers"):
        answer([[10**400, 2, 3, 4, 5]])


@pytest.mark.parametrize("bad", [np.inf, -np.inf, 1e200])
def test_infinite_and_huge_values_raise(bad):
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
