"""Questions to a fit: before it, and about tables that do not fit."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from sklearn.exceptions import NotFittedError

from refusals import CLIENTS, FITTED, OWNERS, X, objects, with_value
from skfedem import FederatedGaussianMixture
from skfedem.preprocessing import FederatedPCA

METHODS = ("predict", "predict_proba", "transform", "score_samples", "score", "aic", "bic")


@pytest.mark.parametrize("method", METHODS)
def test_methods_before_fit_raise(method):
    with pytest.raises(NotFittedError, match="not fitted yet"):
        getattr(FederatedGaussianMixture(), method)(CLIENTS)
    with pytest.raises(NotFittedError, match="not fitted yet"):
        FederatedGaussianMixture().sample()


@pytest.mark.parametrize("method", METHODS)
def test_tables_with_other_features_or_missing_values_raise(method):
    answer = getattr(FITTED, method)
    with pytest.raises(ValueError, match="1 features.*expecting 2"):
        answer(X[:, :1])
    with pytest.raises(ValueError, match="(?s)NaN"):
        answer(np.full((2, 2), np.nan))
    with pytest.raises(ValueError, match="(?s)1 features.*client 1|client 1.*1 features"):
        answer([CLIENTS[0], CLIENTS[1][:, :1]])
    with pytest.raises(ValueError, match="(?s)NaN.*client 2|client 2.*NaN"):
        answer(with_value(np.nan, client=2))
    with pytest.raises(ValueError, match="(?s)0 sample.*client 1|client 1.*0 sample"):
        answer([CLIENTS[0], CLIENTS[1][:0]])


@pytest.mark.parametrize("method", METHODS)
def test_text_columns_raise(method):
    frame = pd.DataFrame({0: [1.0, 2.0], 1: ["red", "2"]})
    with pytest.raises(ValueError, match="red.* in column 1. Encode or drop"):
        getattr(FITTED, method)(frame)


def test_a_list_of_series_is_one_table():
    frame = pd.DataFrame(X)
    want = FITTED.predict(X[:2])
    assert_array_equal(FITTED.predict([frame.iloc[0], frame.iloc[1]]), want)


@pytest.mark.parametrize("wrong", [np.zeros(5), pd.DataFrame({"a": [1.0 + 1j, 2.0]})])
def test_errors_are_not_their_own_cause(wrong):
    with pytest.raises(ValueError) as caught:
        FederatedGaussianMixture().fit(wrong)
    assert caught.value.__cause__ is not caught.value


@pytest.mark.parametrize("method", METHODS)
def test_empty_lists_raise(method):
    for nobody in ([], ()):
        with pytest.raises(ValueError, match="at least one client.*Give one table, or a list"):
            getattr(FITTED, method)(nobody)
    with pytest.raises(ValueError, match="client 1: Expected one table, got a list of 0 tables"):
        getattr(FITTED, method)([CLIENTS[0], []])


@pytest.mark.parametrize("method", METHODS)
def test_other_objects_raise(method):
    answer = getattr(FITTED, method)
    with pytest.raises(TypeError, match="of type dict. Convert it"):
        answer(dict(enumerate(CLIENTS)))
    with pytest.raises(TypeError, match="of type list_iterator"):
        answer(iter(CLIENTS))
    with pytest.raises(ValueError, match="Expected numbers: .*inhomogeneous"):
        answer([[1.0, 2.0], [3.0]])
    with pytest.raises(ValueError, match="Expected numbers: setting an array element"):
        answer(objects(CLIENTS))
    with pytest.raises(ValueError, match="of client 1: Expected one table, got a list of 2 tables"):
        answer([CLIENTS[0], CLIENTS[1:]])
    with pytest.raises(ValueError, match="(?s)client 1.*power of ten"):
        answer(with_value(1e200))


@pytest.mark.parametrize("n_samples", [0, -1, 2.5, "x", None])
def test_sample_sizes_must_be_positive_integers(n_samples):
    with pytest.raises((TypeError, ValueError), match=f"n_samples.*got {n_samples!r}"):
        FITTED.sample(n_samples)


@pytest.mark.parametrize("dtype", ["U3", "datetime64[D]", "timedelta64[h]"])
def test_text_and_times_raise_after_fit(dtype, tmp_path):
    rows = np.arange(6).reshape(3, 2).astype("int64").astype(dtype)
    mapped = np.memmap(tmp_path / "rows", dtype=rows.dtype, shape=rows.shape, mode="w+")
    pca = FederatedPCA().fit(CLIENTS)
    for answer in (FITTED.predict, FITTED.score, pca.transform, pca.inverse_transform):
        for given_rows in (rows, mapped):
            with pytest.raises(ValueError, match=f"Expected numbers, got dtype .*{dtype[:4]}"):
                answer(given_rows)
    frame = pd.DataFrame(np.arange(6).reshape(3, 2)).astype("datetime64[s]")
    for answer in (FITTED.predict, pca.transform, pca.inverse_transform):
        with pytest.raises(ValueError, match="Expected numbers, got dtype datetime64"):
            answer(frame)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("method", ["predict", "transform", "score_samples"])
def test_missing_values_raise_after_fit(method, value):
    where = f"got {value} in row 3, column 1"
    with pytest.raises(ValueError, match=where):
        getattr(FITTED, method)(with_value(value)[1])
    with pytest.raises(ValueError, match=f"client 1.*{where}"):
        getattr(FITTED, method)(with_value(value))


def test_errors_name_the_column_of_a_missing_value():
    tables = [pd.DataFrame(rows, columns=["age", "bp"]) for rows in with_value(np.nan)]
    joined = pd.concat(tables)
    gm = FederatedGaussianMixture().fit([tables[0], tables[2]])
    for refused, where in (
        (lambda: gm.fit(tables), r"row 3, column 1 \('bp'\) of client 1\."),
        (lambda: gm.fit(joined), r"row 12, column 1 \('bp'\)\."),
        (lambda: gm.fit(joined, clients=OWNERS), r"row 12, column 1 \('bp'\) of client 'birch'\."),
        (lambda: gm.predict(tables[1]), r"row 3, column 1 \('bp'\)\."),
        (lambda: gm.fit(tables[1].to_numpy()), r"row 3, column 1\."),
    ):
        with pytest.raises(ValueError, match=f"got nan in {where}"):
            refused()
