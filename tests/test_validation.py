import copy
import datetime
import re
import warnings
from collections import UserList, deque
from enum import Enum
from fractions import Fraction
from functools import partial

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import NotFittedError
from sklearn.preprocessing import MinMaxScaler

from skfedem import FederatedGaussianMixture, FederatedMatrixImputer
from skfedem._input.client_labels import client_codes
from skfedem._input.clients import check_clients, stacks
from skfedem._input.tables import shorten
from skfedem.compression import RandK
from skfedem.datasets import split_clients
from skfedem.preprocessing import FederatedPCA, FederatedStandardScaler, PerClient

RNG = np.random.default_rng(0)
CLIENTS = [RNG.normal(g, 1, size=(rows, 2)) for g, rows in enumerate((9, 12, 7))]
X = np.concatenate(CLIENTS)
OWNERS = np.repeat(["ash", "birch", "cedar"], [9, 12, 7])
N_SAMPLES = len(X)
GOOD = {"n_components": 2, "random_state": 0}
FITTED = FederatedGaussianMixture(**GOOD).fit(CLIENTS)


def frames(*names):
    return [
        pd.DataFrame(client[:, : len(own)], columns=own)
        for client, own in zip(CLIENTS, names, strict=True)
    ]


def with_value(value, client=1, row=3, column=1):
    tables = [table.copy() for table in CLIENTS]
    tables[client][row, column] = value
    return tables


def labels_with(label, row=4, dtype=object):
    labels = OWNERS.astype(dtype)
    labels[row] = label
    return labels


def fitted_attributes(gm):
    return {name: value for name, value in vars(gm).items() if name.endswith("_")}


def assert_unchanged(got, want):
    assert got.keys() == want.keys()
    for name, value in want.items():
        if isinstance(value, dict):
            assert_unchanged(got[name], value)
        else:
            assert_array_equal(got[name], value, err_msg=name)


def check_refused(error, says, tables, clients=None, **parameters):
    """Refuse with a message that says all of ``says``, and change nothing."""
    never = FederatedGaussianMixture(**{**GOOD, **parameters})
    given = never.get_params()
    kept = {name: copy.deepcopy(value) for name, value in given.items() if not callable(value)}
    kept_tables, kept_clients = copy.deepcopy(tables), copy.deepcopy(clients)
    with pytest.raises(error) as caught:
        never.fit(tables, clients=clients)
    with pytest.raises(NotFittedError):
        never.predict(X)
    assert not fitted_attributes(never)

    before = copy.deepcopy(FITTED)
    attributes = fitted_attributes(FITTED)
    before.set_params(**parameters)
    with pytest.raises(error):
        before.fit(tables, clients=clients)
    assert_unchanged(fitted_attributes(before), attributes)
    if not parameters:
        assert_array_equal(before.predict_proba(X), FITTED.predict_proba(X))

    after = never.get_params()
    assert all(after[name] is value for name, value in given.items())
    for name, value in kept.items():
        np.testing.assert_equal(after[name], value, err_msg=name)
    np.testing.assert_equal(repr(tables), repr(kept_tables))
    np.testing.assert_equal(repr(clients), repr(kept_clients))

    message = str(caught.value)
    for fragment in says:
        assert re.search(fragment, message), f"{fragment!r} is not in {message!r}"
    # As a person reads it: no doubled or dangling space, no name of a NumPy type.
    assert "  " not in message.strip()
    assert message == message.strip()
    assert "np." not in message
    return message


def objects(tables):
    array = np.empty(len(tables), dtype=object)
    array[:] = tables
    return array


# ------------------------------------------------------------------ data

THREE_WAYS = ["list with one 2-D array or DataFrame", "`clients=`", "alone"]
NAMED = frames(["a", "b"], ["a", "b"], ["a", "b"])

BAD_TABLES = {
    "an empty list": ([], ValueError, ["at least one client", "empty list", *THREE_WAYS]),
    "an empty tuple": ((), ValueError, ["at least one client", "empty", *THREE_WAYS]),
    "no rows": (
        [CLIENTS[0], CLIENTS[1][:0], CLIENTS[2]],
        ValueError,
        ["at least one row", "none for client 1", r"\(0, 2\)", "Leave .* out"],
    ),
    "no rows, frames": (
        [NAMED[0], NAMED[1], NAMED[2][:0]],
        ValueError,
        ["at least one row", "none for client 2", "Leave .* out"],
    ),
    "no columns": ([client[:, :0] for client in CLIENTS], ValueError, ["0 feature", "client 0"]),
    "ragged": (
        [CLIENTS[0], CLIENTS[1], CLIENTS[2][:, :1]],
        ValueError,
        ["Expected 2 features", "client 0", "got 1 for client 2", r"\(7, 1\)", "same columns"],
    ),
    "other columns": (
        frames(["a", "b"], ["a", "b"], ["a", "c"]),
        ValueError,
        [r"client 0 \(\['a', 'b'\]\)", r"got \['a', 'c'\] for client 2", "Rename or reorder"],
    ),
    "columns in another order": (
        frames(["a", "b"], ["b", "a"], ["a", "b"]),
        ValueError,
        ["client 0", r"got \['b', 'a'\] for client 1", "reorder"],
    ),
    "columns with one name": (
        frames(["a", "b"], ["a", "a"], ["a", "b"]),
        ValueError,
        ["different names for client 1", "got 'a' 2 times", "Rename"],
    ),
    "columns with one name of the first": (
        frames(["b", "b"], ["b", "b"], ["b", "b"]),
        ValueError,
        ["different names for client 0", "got 'b' 2 times", "Rename"],
    ),
    "columns with one name of one table": (
        frames(["b", "b"], ["b"], ["b"])[0],
        ValueError,
        ["Expected columns with different names, got 'b' 2 times", "Rename"],
    ),
    "columns with one number": (
        frames([1999, 2000], [2000, 2000], [1999, 2000]),
        ValueError,
        ["different names for client 1, got 2000 2 times", "Rename"],
    ),
    "columns with one number of one table": (
        frames([2000, 2000], [2000], [2000])[0],
        ValueError,
        ["Expected columns with different names, got 2000 2 times", "Rename"],
    ),
    "no columns of one client": (
        [NAMED[0], pd.DataFrame(index=range(5)), NAMED[2]],
        ValueError,
        [
            "Expected 2 features for every client as for client 0, got 0 for client 1",
            "same columns",
        ],
    ),
    "no columns of the first": (
        [pd.DataFrame(index=range(5)), NAMED[1]],
        ValueError,
        ["at least one feature for every client, got 0 features for client 0", "same columns"],
    ),
    "columns missing": (
        frames(["a", "b"], ["a"], ["a", "b"]),
        ValueError,
        ["Expected 2 features", "got 1 for client 1"],
    ),
    "frames and arrays": (
        [NAMED[0], CLIENTS[1]],
        ValueError,
        [r"\['a', 'b'\]", "no string column names for client 1"],
    ),
    "NaN": (
        with_value(np.nan),
        ValueError,
        ["finite", "got nan", "row 3", "column 1", "client 1", "[Dd]rop or impute"],
    ),
    "infinity": (
        with_value(-np.inf, client=2, row=0, column=0),
        ValueError,
        ["finite", "got -inf", "row 0", "column 0", "client 2", "[Dd]rop or impute"],
    ),
    "NaN in a frame": (
        [NAMED[0], NAMED[1].mask(NAMED[1] == NAMED[1].iloc[5, 0]), NAMED[2]],
        ValueError,
        ["row 5", "column (0|'a')", "client 1"],
    ),
    "three dimensions": (
        np.zeros((3, 4, 2)),
        ValueError,
        ["2-D", "3 dimensions", r"\(3, 4, 2\)", r"list\(X\)"],
    ),
    "three dimensions in a list": (
        [CLIENTS[0], np.zeros((3, 4, 2))],
        ValueError,
        ["2-D", "client 1", "3 dimension", r"\(3, 4, 2\)"],
    ),
    "one dimension in a list": (
        [CLIENTS[0], CLIENTS[1][0]],
        ValueError,
        ["2-D", "client 1", "1 dimension", r"\(2,\)"],
    ),
    "one dimension": (np.zeros(5), ValueError, ["Expected 2D array, got 1D array"]),
    "a hole in a list": ([CLIENTS[0], None], ValueError, ["2-D", "client 1"]),
    "an empty list in a list": ([CLIENTS[0], []], ValueError, ["client 1"]),
    "strings": (
        [CLIENTS[0], np.array([["red", "green"]])],
        ValueError,
        ["Expected numbers", "client 1", "Encode or drop"],
    ),
    "an integer that is larger than any float": (
        [CLIENTS[0], [[10**400, 1]]],
        ValueError,
        ["Expected numbers", "client 1", "Encode or drop"],
    ),
    "an integer that is larger than any float in one table": (
        [[10**400, 1], [1, 2]],
        ValueError,
        ["Expected numbers, got int too large to convert", "an identifier"],
    ),
    "an integer that is larger than any float in one frame": (
        pd.DataFrame({"a": [1.0, 2.0], "b": pd.Series([10**400, 2], dtype=object)}),
        ValueError,
        ["Expected numbers, got int too large .* in column 'b'", "Encode or drop"],
    ),
    "a numpy.matrix": (
        [CLIENTS[0], np.matrix(CLIENTS[1])],
        TypeError,
        ["array or a DataFrame for client 1", "numpy.asarray"],
    ),
    "strings as objects": (
        [np.array([["red", "green"]], dtype=object), CLIENTS[0]],
        ValueError,
        ["Expected numbers", "client 0", "red", "Encode or drop"],
    ),
    "a column of strings": (
        [NAMED[0], NAMED[1].assign(b="red"), NAMED[2]],
        ValueError,
        ["Expected numbers", "client 1", "red", "Encode or drop"],
    ),
    "strings in one table": (
        np.array([["red", "2"], ["1", "3"]]),
        ValueError,
        ["Expected numbers", "Encode or drop"],
    ),
    "a column of strings in one table": (
        pd.DataFrame({"a": [1.0, 2.0], "b": ["red", "2"]}),
        ValueError,
        ["Expected numbers", "red.* in column 'b'", "Encode or drop"],
    ),
    "a list of vectors": (
        [np.ones(3), np.zeros(3)],
        TypeError,
        [
            "got a list of 1-D arrays",
            r"values\.reshape\(-1, 1\)",
            r"numpy\.array\(X\) if each is a row",
        ],
    ),
    "the name of a file": ("data.csv", TypeError, ["got 'data.csv'", "read it first"]),
    "nothing": (None, TypeError, ["got None", "a list with one for each client"]),
    "a list of series": (
        [pd.Series([1.0, 2.0]), pd.Series([3.0, 4.0])],
        TypeError,
        ["got a list of Series", r"series\.to_frame\(\)"],
    ),
    "dates": (
        [CLIENTS[0], np.array([["2020-01-01", "2020-01-02"]], dtype="M8[D]")],
        ValueError,
        ["Expected numbers", "client 1", "datetime64"],
    ),
    "dates in a column": (
        [NAMED[0], NAMED[1].assign(b=pd.Timestamp("2020-01-01")), NAMED[2]],
        ValueError,
        ["Expected numbers", "client 1", "datetime64.* in column 'b'", "Encode or drop"],
    ),
    "dates in one table": (
        pd.DataFrame({"a": pd.to_datetime(["2020", "2021"]), "b": [1.0, 2.0]}),
        ValueError,
        ["Expected numbers", "datetime64.* in column 'a'", "Encode or drop"],
    ),
    "nothing but durations": (
        pd.DataFrame({"a": pd.to_timedelta([1, 2], unit="D")}),
        ValueError,
        ["Expected numbers", "timedelta64.* in column 'a'"],
    ),
    "masked numbers": (
        [CLIENTS[0], np.ma.masked_less(np.ma.array([[7.0, 1.0], [2.0, 0.0]]), 1.0)],
        ValueError,
        ["contains NaN", "row 1, column 1 of client 1", "Drop or impute"],
    ),
    "masked objects": (
        [CLIENTS[0], np.ma.masked_less(np.ma.array([[7.0, 1.0], [2.0, 0.0]], dtype=object), 1.0)],
        ValueError,
        ["contains NaN", "row 1, column 1 of client 1", "Drop or impute"],
    ),
    "complex numbers": ([CLIENTS[0], CLIENTS[1] + 1j], ValueError, ["[Cc]omplex", "client 1"]),
    "uneven rows": (
        [[[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.0], [3.0]]],
        ValueError,
        ["2 numbers in row 0 and 1 number in row 1 of the table of client 1", "same columns"],
    ),
    "uneven rows of one table": (
        [[1.0, 2.0], [3.0, 4.0], [5.0]],
        ValueError,
        ["2 numbers in row 0 and 1 number in row 2", "every client a 2-D table"],
    ),
    "vectors of several lengths": (
        [np.ones(2).tolist(), np.ones(3).tolist()],
        ValueError,
        ["2 numbers in row 0 and 3 numbers in row 1", "every client a 2-D table"],
    ),
    "a number among rows": ([[1.0, 2.0], 3.0], ValueError, ["a bare number in row 1"]),
    "text beside what a mask hides": (
        np.ma.array([["red", 1.0], [2.0, 3.0]], dtype=object, mask=[[False, True], [False] * 2]),
        ValueError,
        ["Expected numbers: .*'red'", "Encode or drop"],
    ),
    "a list of tables in a list": (
        [CLIENTS[0], CLIENTS[1:]],
        ValueError,
        ["table of client 1", "tables or lists themselves", "client of its own"],
    ),
    "an object array of tables in a list": (
        [CLIENTS[0], objects(CLIENTS)],
        ValueError,
        ["table of client 1", "tables or lists themselves", "client of its own"],
    ),
    "an object array of tables": (
        objects(CLIENTS),
        ValueError,
        [r"object ndarray of shape \(3,\)", r"list\(X\)"],
    ),
    "a series of numbers": (pd.Series([1.0, 2.0]), ValueError, ["2D|2-dimensional", "Series|1D"]),
    "a series of lists": (
        pd.Series([[1.0, 2.0], [3.0, 4.0]]),
        ValueError,
        ["object Series", r"list\(X\)"],
    ),
    "a dictionary in a list": (
        [CLIENTS[0], {"a": CLIENTS[1]}],
        ValueError,
        ["2-D", "client 1", "no table, but a dict"],
    ),
    "columns named by strings and numbers": (
        [NAMED[0], NAMED[1].rename(columns={"a": 3})],
        TypeError,
        ["column names of client 1", "strings", r"\[3, 'b'\]", "astype"],
    ),
    "string and integer names": (
        [NAMED[0], pd.DataFrame(CLIENTS[1])],
        ValueError,
        [r"\['a', 'b'\]", "no string column names for client 1"],
    ),
    "huge numbers": (
        with_value(-1e151, client=2, row=4, column=0),
        ValueError,
        [r"1e\+150", r"-1e\+151 in row 4, column 0 of client 2", "power of ten"],
    ),
    "huge numbers in one table": (
        np.concatenate(with_value(1e200)),
        ValueError,
        [r"1e\+200 in row 12, column 1", "power of ten"],
    ),
    "sparse": (
        [CLIENTS[0], sparse.csr_array(CLIENTS[1])],
        TypeError,
        ["dense", "client 1", "sparse", "toarray"],
    ),
    "a sparse DataFrame": (
        [pd.DataFrame(rows).astype(pd.SparseDtype(float)) for rows in CLIENTS],
        TypeError,
        ["dense", "client 0", "sparse", "sparse.to_dense"],
    ),
    "one sparse DataFrame": (
        pd.DataFrame(X).astype(pd.SparseDtype(float, np.nan)),
        TypeError,
        ["dense table, got a sparse DataFrame", "sparse.to_dense"],
    ),
    "one sparse Series": (
        pd.Series(pd.arrays.SparseArray([1.0, 2.0, 3.0])),
        ValueError,
        ["2-dim"],
    ),
    "a sparse Series": (
        [CLIENTS[0], pd.Series(pd.arrays.SparseArray([1.0, 2.0, 3.0]))],
        ValueError,
        ["client 1", "2-D"],
    ),
    "sparse vectors": (  # of one dimension, or one row where scipy < 1.13 has no others
        [sparse.coo_array(np.ones(3))] * 2,
        TypeError,
        ["dense table", "got a sparse coo_array", "toarray"],
    ),
    "one sparse table": (sparse.csr_matrix(X), TypeError, ["[Ss]parse", "toarray"]),
    "a dictionary": (
        dict(enumerate(CLIENTS)),
        TypeError,
        ["list of tables", "got a dict", r"list\(X.values\(\)\)"],
    ),
}


@pytest.mark.parametrize(("tables", "error", "says"), BAD_TABLES.values(), ids=list(BAD_TABLES))
def test_bad_tables(tables, error, says):
    check_refused(error, says, tables)


@pytest.mark.parametrize("as_list", [False, True])
@pytest.mark.parametrize(
    "estimator",
    [FederatedGaussianMixture(), FederatedMatrixImputer(1), FederatedStandardScaler()],
    ids=lambda estimator: type(estimator).__name__,
)
@pytest.mark.parametrize("kind", ["Date", "Datetime", "Duration", "Time"])
def test_times_of_polars_are_no_numbers(kind, estimator, as_list):
    # Beside numbers, NumPy has them as numbers: 2020 as the 18262nd day.
    polars = pytest.importorskip("polars")
    numbers = polars.DataFrame({"a": [1.0, 2.0, 4.0], "when": [3.0, 1.0, 2.0]})
    times = numbers.with_columns(when=polars.lit(7).cast(getattr(polars, kind)))
    of_whom = " in the table of client 1" if as_list else ""
    with pytest.raises(ValueError, match=f"Expected numbers{of_whom}, got dtype {kind}.*'when'"):
        clone(estimator).fit([numbers, times] if as_list else times)


@pytest.mark.parametrize("which", ["alone", "first", "second", "both"])
@pytest.mark.parametrize(
    "estimator",
    [FederatedGaussianMixture(), FederatedMatrixImputer(1), FederatedStandardScaler()],
    ids=lambda estimator: type(estimator).__name__,
)
def test_lazy_frames_are_to_be_collected(which, estimator):
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"a": [1.0, 2.0, 4.0], "b": [3.0, 1.0, 2.0]})
    lazy = frame.lazy()
    X = {"alone": lazy, "first": [lazy, frame], "second": [frame, lazy], "both": [lazy, lazy]}
    of_whom = {"alone": "", "second": " of client 1"}.get(which, " of client 0")
    says = f"Expected a table{of_whom}, got a LazyFrame, .*collect"
    with pytest.raises(TypeError, match=says):
        clone(estimator).fit(X[which])
    if which != "both":
        fitted = clone(estimator).fit(frame)
        with pytest.raises(TypeError, match="got a LazyFrame, .*collect"):
            getattr(fitted, "predict", fitted.transform)(X[which])
    if which in ("alone", "first") and hasattr(estimator, "partial_fit"):
        # Their columns are not read where there are no names to compare them with, either.
        for rows in (frame, frame.to_numpy()):
            with pytest.raises(TypeError, match=says):
                clone(estimator).fit(rows).partial_fit(X[which])


@pytest.mark.parametrize("as_list", [False, True])
@pytest.mark.parametrize(
    "estimator",
    [
        FederatedGaussianMixture(),
        FederatedMatrixImputer(1),
        FederatedStandardScaler(),
        PerClient(MinMaxScaler()),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_tables_of_pyarrow_are_to_be_converted(estimator, as_list):
    pyarrow = pytest.importorskip("pyarrow")
    frame = pd.DataFrame({"a": [1.0, 2.0, 4.0], "b": [3.0, 1.0, 2.0]})
    table = pyarrow.Table.from_pandas(frame)
    X, of_whom = ([frame, table], " (of|for) client 1") if as_list else (table, "")
    says = f"pandas or polars{of_whom}, got a pyarrow Table. .*to_pandas"
    with pytest.raises(TypeError, match=says):
        clone(estimator).fit(X)
    with pytest.raises(TypeError, match="got a pyarrow Table. .*to_pandas"):
        clone(estimator).fit(frame).transform(X)
    if hasattr(estimator, "partial_fit"):
        with pytest.raises(TypeError, match=says):
            clone(estimator).fit(frame).partial_fit(X)


class ColumnsInAList:
    """A table whose ``columns`` are arrays, which have no hash."""

    def __init__(self, rows):
        self._rows = np.asarray(rows)
        self.columns = list(self._rows.T)
        self.shape = self._rows.shape

    def __array__(self, dtype=None, copy=None):
        return np.array(self._rows, dtype=dtype)


def test_columns_that_are_no_names():
    tables = [ColumnsInAList(rows) for rows in CLIENTS]
    gm = FederatedGaussianMixture(2, random_state=0)
    assert_array_equal(gm.fit(tables).means_, clone(gm).fit(CLIENTS).means_)
    assert_array_equal(
        gm.partial_fit(tables).means_, clone(gm).fit(CLIENTS).partial_fit(CLIENTS).means_
    )


@pytest.mark.parametrize(
    "estimator",
    [FederatedGaussianMixture(), FederatedMatrixImputer(1), FederatedStandardScaler()],
    ids=lambda estimator: type(estimator).__name__,
)
def test_objects_that_are_no_numbers_are_told_by_their_column(estimator):
    frame = pd.DataFrame({"a": [1.0, 2.0], "when": [datetime.date(2020, 1, day) for day in (1, 2)]})
    says = "Expected numbers.* 'datetime.date' in column 'when'"
    with pytest.raises(ValueError, match=says):
        clone(estimator).fit(frame)
    with pytest.raises(ValueError, match=says):
        clone(estimator).fit(frame.assign(when=[1.0, 2.0])).transform(frame)


@pytest.mark.parametrize("dtype", ["U3", "datetime64[D]", "timedelta64[h]"])
def test_text_and_times_are_no_numbers_for_a_fitted_estimator_either(dtype, tmp_path):
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


def test_text_in_the_table_of_a_client_is_told_by_its_column():
    frame = pd.DataFrame({"a": [1.0, 2.0], "site": ["dune", "bog"]})
    says = "numbers in the table of client 1, got .*'dune' in column 'site'"
    with pytest.raises(ValueError, match=says):
        FederatedGaussianMixture().fit([frame.assign(site=0.0), frame])


def test_rows_as_series_become_rows_as_it_is_advised():
    polars = pytest.importorskip("polars")
    for kind, table in ((pd, pd.DataFrame), (polars, np.array)):
        rows = [kind.Series([1.0, float(k)]) for k in range(3)]
        advice = "DataFrame(X)" if kind is pd else "numpy.array(X)"
        with pytest.raises(TypeError, match=re.escape(f"{advice} if each is a row")):
            FederatedGaussianMixture().fit(rows)
        assert table(rows).shape == (3, 2)


def test_masked_rows_of_a_list_are_those_of_a_masked_array():
    rows = np.random.default_rng(0).normal(size=(30, 2))
    masked = np.ma.masked_greater(rows, 1)
    assert masked.mask.any()
    as_rows = [np.ma.masked_greater(row, 1) for row in rows]
    of_one = np.zeros(len(rows))
    for X, want, labels in (
        (as_rows, masked, of_one),
        ([as_rows, rows], [masked, rows], None),
    ):
        got, wanted = (FederatedStandardScaler().fit(each, clients=labels) for each in (X, want))
        assert_array_equal(got.mean_, wanted.mean_)
        got, wanted = (FederatedMatrixImputer(1).fit(each, clients=labels) for each in (X, want))
        assert got.intercept_ == wanted.intercept_
        with pytest.raises(ValueError, match="contains NaN"):
            FederatedGaussianMixture().fit(X, clients=labels)
    whole = np.concatenate(split_clients(as_rows, 2, random_state=0))
    assert np.isnan(whole).sum() == masked.mask.sum()


def test_text_of_variable_length_is_no_number():
    string_dtype = getattr(np.dtypes, "StringDType", None)
    if string_dtype is None:
        pytest.skip("NumPy < 2.0 has no such dtype")
    X = np.array([["1", "2"], ["3", "5"]], dtype=string_dtype())
    for estimator in (FederatedGaussianMixture(), FederatedMatrixImputer(1)):
        for texts in (X, [X, X]):
            with pytest.raises(ValueError, match="got dtype StringDType"):
                clone(estimator).fit(texts)


def test_a_generator_is_refused_as_it_is():
    with pytest.raises(TypeError, match=r"got a generator. Give a list, as list\(X\)"):
        FederatedGaussianMixture().fit(client for client in CLIENTS)
    with pytest.raises(TypeError, match="got a dict_values. Give a list"):
        FederatedGaussianMixture().fit(dict(enumerate(CLIENTS)).values())


@pytest.mark.parametrize("as_list", [False, True])
@pytest.mark.parametrize(
    "estimator",
    [FederatedGaussianMixture(), FederatedMatrixImputer(1), FederatedStandardScaler()],
    ids=lambda estimator: type(estimator).__name__,
)
def test_what_groupby_gives_is_no_list_of_tables(estimator, as_list):
    groups = pd.concat(NAMED).groupby(np.repeat([0, 1, 2], [len(table) for table in NAMED]))
    estimator = clone(estimator)
    with pytest.raises(
        TypeError, match=r"got a (list|DataFrameGroupBy).* \[table for _, table in X"
    ):
        estimator.fit(list(groups) if as_list else groups)
    if isinstance(estimator, FederatedGaussianMixture):
        estimator.fit([table for _, table in groups])
        assert estimator.n_clients_ == 3


def test_sequences_of_rows_are_tables():
    rows = np.concatenate(CLIENTS).tolist()
    for table in (deque(rows), UserList(rows)):
        gm = FederatedGaussianMixture().fit(table)
        assert_array_equal(gm.means_, FederatedGaussianMixture().fit(rows).means_)


@pytest.mark.parametrize(
    "tables",
    [
        [pd.DataFrame(CLIENTS[0]), *CLIENTS[1:]],
        [CLIENTS[0], *map(pd.DataFrame, CLIENTS[1:])],
        [pd.DataFrame(CLIENTS[0]), pd.DataFrame(CLIENTS[1], columns=[7, 8]), CLIENTS[2]],
    ],
    ids=["frame first", "array first", "several names"],
)
def test_names_that_are_no_strings_are_no_names(tables):
    # As for scikit-learn.
    gm = FederatedGaussianMixture(**GOOD).fit(tables)
    assert not hasattr(gm, "feature_names_in_")
    assert_array_equal(gm.means_, FITTED.means_)


def test_a_frame_without_columns():
    check_refused(ValueError, ["at least one feature", "DataFrame without columns"], pd.DataFrame())


def test_large_numbers_that_can_be_squared_are_rows():
    want = FederatedGaussianMixture(**GOOD, reg_covar=0).fit(CLIENTS)
    # A power of two, so that nothing is rounded.
    gm = FederatedGaussianMixture(**GOOD, reg_covar=0).fit([c * 2.0**470 for c in CLIENTS])
    np.testing.assert_allclose(gm.means_, want.means_ * 2.0**470, rtol=1e-9)


Owner = Enum("Owner", ["ash", "birch", "cedar"])
BAD_LABELS = {
    "one label too few": (
        OWNERS[:-1],
        ValueError,
        ["one label for each of the 28 rows", r"\(27,\)"],
    ),
    "one label too many": ([*OWNERS, "ash"], ValueError, ["28 rows", r"\(29,\)"]),
    "a column of labels": (OWNERS[:, None], ValueError, ["one label", r"\(28, 1\)"]),
    "the name of a column": (
        "ash",
        TypeError,
        ["one label for each row, got the string .ash.", r"column itself, X\['ash'\]"],
    ),
    "lengths of clients": ([9, 12, 7], ValueError, ["28 rows", r"\(3,\)", "lengths"]),
    "lists of rows": ([[0, 1], [2, 3, 4]], ValueError, ["one label for each of the 28 rows"]),
    "None": (labels_with(None), ValueError, ["missing", "row 4", "[Dd]rop"]),
    "NaN": (
        np.where(np.arange(N_SAMPLES) == 6, np.nan, 1.0),
        ValueError,
        ["missing", "row 6", "[Dd]rop"],
    ),
    "NaN among strings": (labels_with(np.nan), ValueError, ["missing", "row 4"]),
    "NaN among strings in a list": (
        labels_with(np.nan).tolist(),
        ValueError,
        ["missing", "row 4"],
    ),
    "pandas NA": (labels_with(pd.NA), ValueError, ["missing", "row 4"]),
    "a missing string": (
        pd.Series(labels_with(None), dtype="str"),
        ValueError,
        ["missing", "row 4"],
    ),
    "a missing integer": (
        pd.Series([*range(N_SAMPLES - 1), None], dtype="Int64"),
        ValueError,
        ["missing", "row 27"],
    ),
    "a missing category": (pd.Categorical(labels_with(None)), ValueError, ["missing", "row 4"]),
    "no date": (
        pd.to_datetime(pd.Series(["2020-01-01"] * (N_SAMPLES - 1) + [None])),
        ValueError,
        ["missing", "row 27"],
    ),
    "a masked label": (
        np.ma.array(OWNERS, mask=np.arange(N_SAMPLES) == 4),
        ValueError,
        ["Expected clients without masked entries, got 1", "fill the entries in"],
    ),
    "labels of a partial order": (
        np.array([frozenset([owner]) for owner in np.tile(["ash", "birch"], 14)], dtype=object),
        TypeError,
        ["can be sorted", "frozenset", "with str"],
    ),
    "tuples of one length": (
        [(owner, 1) for owner in OWNERS.tolist()],
        ValueError,
        [r"shape \(28, 2\)", "Tuples are labels in a pandas Series"],
    ),
    "labels without a hash": (
        pd.Series([[owner] for owner in np.tile(["ash", "birch"], 14).tolist()]),
        TypeError,
        ["labels that can be told apart by their hash", "list", "with str"],
    ),
    "labels of one type without an order": (
        [Owner[name] for name in OWNERS.tolist()],
        TypeError,
        ["labels that can be sorted, got Owner, which", "with str"],
    ),
    "a missing label of pandas": (
        pd.array([1] * (N_SAMPLES - 1) + [None], dtype="Int64"),
        ValueError,
        ["missing one at row 27"],
    ),
    "mixed types": (labels_with(3), TypeError, ["one type", "int, str", "with str"]),
    "mixed types in a list": (
        labels_with(3).tolist(),
        TypeError,
        ["one type", "int, str", "with str"],
    ),
}


@pytest.mark.parametrize(("labels", "error", "says"), BAD_LABELS.values(), ids=list(BAD_LABELS))
def test_bad_labels(labels, error, says):
    check_refused(error, says, X, labels)


@pytest.mark.parametrize("tables", [CLIENTS, tuple(NAMED)], ids=["list", "tuple of frames"])
@pytest.mark.parametrize("labels", [OWNERS, ["ash", "birch", "cedar"]], ids=["rows", "clients"])
def test_labels_together_with_a_list(tables, labels):
    check_refused(ValueError, ["clients=None", "list", "got both", *THREE_WAYS], tables, labels)


@pytest.mark.parametrize(
    "fit",
    [
        FederatedGaussianMixture().fit,
        FederatedGaussianMixture().partial_fit,
        FederatedMatrixImputer().fit,
        partial(FederatedMatrixImputer().fit, shape=(28, 28)),
        PerClient(MinMaxScaler()).fit,
    ],
    ids=["mixture", "partial_fit", "imputer", "triplets", "PerClient"],
)
def test_the_name_of_a_column_is_told_before_the_text_in_it(fit):
    table = pd.DataFrame(X, columns=["x", "y"]).assign(owner=OWNERS)
    with pytest.raises(TypeError, match=r"the string 'owner'.*X\['owner'\], and take it out of X"):
        fit(table, clients="owner")


def test_missing_numbers_of_labelled_rows_name_the_client():
    rows = X.copy()
    rows[10, 1] = np.nan
    says = ["finite|NaN", "row 10", "column 1", "birch", "[Dd]rop or impute"]
    check_refused(ValueError, says, rows, OWNERS)
    rows[10, 1] = np.inf
    check_refused(ValueError, ["finite|infinity", "row 10", "column 1", "birch"], rows, OWNERS)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("method", ["predict", "transform", "score_samples"])
def test_missing_numbers_after_the_fit_are_found_too(method, value):
    where = f"got {value} in row 3, column 1"
    with pytest.raises(ValueError, match=where):
        getattr(FITTED, method)(with_value(value)[1])
    with pytest.raises(ValueError, match=f"client 1.*{where}"):
        getattr(FITTED, method)(with_value(value))


def test_missing_numbers_are_found_whoever_owns_the_row():
    shuffled = np.random.default_rng(1).permutation(N_SAMPLES)
    rows, owners = X[shuffled], OWNERS[shuffled]
    for row in (0, 5, N_SAMPLES - 1):
        broken = rows.copy()
        broken[row, 0] = np.nan
        check_refused(ValueError, [f"row {row}\\b", "column 0", str(owners[row])], broken, owners)


def test_the_first_bad_number_is_named_for_every_client():
    for client in range(3):
        for row, column in [(0, 0), (len(CLIENTS[client]) - 1, 1)]:
            tables = with_value(np.nan, client, row, column)
            says = [f"row {row}, column {column} of client {client}"]
            check_refused(ValueError, says, tables)


def test_a_bad_number_is_found_among_many():
    # As many numbers as are checked at once, and some more.
    rows = np.zeros((2**18 + 5, 2))
    rows[[2**17 + 1, 2**18 + 3], 1] = np.nan
    check_refused(ValueError, ["row 131073, column 1\\."], rows)
    rows[2**17 + 1, 1] = 1e150  # which is not too large
    rows[2**17 + 2, 0] = 1.1e150
    check_refused(ValueError, [r"at most 1e\+150", "row 131074, column 0:"], rows)


def test_fewer_rows_than_components():
    says = ["n_samples >= n_components", "28", "29", "fewer components or more rows"]
    check_refused(ValueError, says, CLIENTS, n_components=29)
    check_refused(ValueError, says, X, OWNERS, n_components=29)


def test_minibatches_larger_than_a_client_without_replacement():
    large = {"batch_size": 8, "replacement": False, "solver": "vr_fedem"}
    says = ["batch_size=8", "replacement=False", "got 7 for client 2", "replacement=True"]
    check_refused(ValueError, says, CLIENTS, **large)
    says = ["batch_size=8", "got 7 for client '?cedar", "at most 7"]
    check_refused(ValueError, says, X, OWNERS, **large)
    large["batch_size"] = 10
    check_refused(
        ValueError, ["got 9 for client 0 and 1 more", "batch_size of at most 7"], CLIENTS, **large
    )
    FederatedGaussianMixture(**GOOD, batch_size=7, replacement=False, tol=10.0, max_iter=5000).fit(
        CLIENTS
    )


# ------------------------------------------------------------------ parameters

NAN, INFINITY = float("nan"), float("inf")
NOT_NUMBERS = ("x", True, [0.5], 1 + 1j)
NOT_INTEGERS = (*NOT_NUMBERS, 2.5, 2.0, NAN)
BAD_NUMBERS = {
    "n_components": (">= 1", (0, -1), (*NOT_INTEGERS, None)),
    "n_init": (">= 1", (0, -1), (*NOT_INTEGERS, None)),
    "batch_size": (">= 1", (0, -1, 10**400), NOT_INTEGERS),
    "n_inner": (">= 1", (0, -1, 10**400), (*NOT_INTEGERS, None)),
    "max_iter": (">= 0", (-1,), NOT_INTEGERS),
    "eval_every": (">= 1", (0, -1), NOT_INTEGERS),
    "step_size": ("> 0 and <= 1", (0, -0.1, 1.5, NAN, INFINITY), (*NOT_NUMBERS, None)),
    "control_step": (">= 0 and <= 1", (-0.1, 1.5, NAN, INFINITY), (*NOT_NUMBERS, None)),
    "omega": (">= 0", (-1, -1e-9, NAN, INFINITY, 2**1024), (*NOT_NUMBERS, None)),
    "participation": ("> 0 and <= 1", (0, -0.5, 1.1, NAN, INFINITY), (*NOT_NUMBERS, None)),
    "max_epochs": ("> 0", (0, -1, NAN, INFINITY), NOT_NUMBERS),
    "tol": (">= 0", (-1e-3, NAN, INFINITY, 2**1024), (*NOT_NUMBERS, None)),
    "reg_covar": (">= 0", (-1e-6, NAN, INFINITY), (*NOT_NUMBERS, None)),
    "verbose": (">= 0", (-1, NAN), ("x", [0.5], None)),
    "n_jobs": ("other than 0", (0,), ()),
}


def bad_numbers(which):
    return [(name, case[0], value) for name, case in BAD_NUMBERS.items() for value in case[which]]


@pytest.mark.parametrize(("name", "bounds", "value"), bad_numbers(1))
def test_numbers_out_of_bounds(name, bounds, value):
    got = f"got {value!r}"[:100]  # long ones are cut
    says = [f"Expected {name} to be an? (finite number|number|integer) {bounds}", got]
    check_refused(ValueError, says, CLIENTS, **{name: value})


@pytest.mark.parametrize(("name", "bounds", "value"), bad_numbers(2))
def test_what_is_no_number(name, bounds, value):
    kind = type(value).__name__
    says = [
        f"Expected {name} to be an? (finite number|number|integer) {bounds}",
        re.escape(f"got {value!r}"),
        kind,
    ]
    check_refused(TypeError, says, CLIENTS, **{name: value})


@pytest.mark.parametrize("value", NOT_INTEGERS)
def test_what_is_no_number_of_threads(value):
    says = ["Expected n_jobs to be an integer", re.escape(f"got {value!r}"), "-1 for all", "None"]
    check_refused(TypeError, says, CLIENTS, n_jobs=value)


def test_verbose_may_be_a_switch(capsys):
    FederatedGaussianMixture(**GOOD, verbose=True).fit(CLIENTS)
    assert "Start 0" in capsys.readouterr().out
    FederatedGaussianMixture(**GOOD, verbose=np.False_).fit(CLIENTS)
    assert not capsys.readouterr().out


@pytest.mark.parametrize("name", ["step_size", "control_step", "n_inner", "eval_every"])
def test_numbers_or_auto_say_so(name):
    says = ['Or give "auto"']
    check_refused(ValueError, says, CLIENTS, **{name: -1})
    check_refused(TypeError, says, CLIENTS, **{name: np.array([0.1, 0.2])})


CHOICES = {
    "covariance_type": ("full", "tied", "diag", "spherical"),
    "solver": ("fedem", "vr_fedem"),
    "control_init": ("field", "zeros"),
    "compressor": ("dithering", "block", "rand_k"),
    "client_weights": ("n_samples", "uniform"),
    "init_params": ("kmeans", "k-means++", "random_from_data", "random"),
}


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("value", ["unknown", "", 3, True, ["full"]])
def test_unknown_names(name, value):
    names = [re.escape(repr(choice)) for choice in CHOICES[name]]
    says = [f"Expected {name} to be one of", *names]
    check_refused(ValueError, [*says, re.escape(f"got {value!r}")], CLIENTS, **{name: value})


@pytest.mark.parametrize(
    ("name", "value", "meant"),
    [("solver", "FedEM", "fedem"), ("init_params", "k-means+", "k-means++"),
     ("compressor", "ditherng", "dithering"), ("covariance_type", "Full", "full")],
)  # fmt: skip
def test_misspelt_names(name, value, meant):
    check_refused(ValueError, [re.escape(f"Did you mean {meant!r}?")], CLIENTS, **{name: value})
    check_refused(ValueError, ["Give one of these"], CLIENTS, **{name: "xyz"})


@pytest.mark.parametrize("scheme", ["non-iid", "noniid", "Non_IID"])
def test_the_opposite_of_a_name_is_not_suggested(scheme):
    with pytest.raises(ValueError, match="Give one of these. Clients are unlike with 'label' and"):
        split_clients(X, 3, scheme=scheme)


@pytest.mark.parametrize("name", sorted(set(CHOICES) - {"compressor"}))
def test_none_is_no_name(name):
    check_refused(ValueError, [f"Expected {name}", "got None"], CLIENTS, **{name: None})


@pytest.mark.parametrize("value", ["no", None, 2])
@pytest.mark.parametrize("name", ["replacement", "warm_start"])
def test_switches_are_true_or_false(name, value):
    # "no" would be read as True.
    says = [f"Expected {name}", "True or False", re.escape(f"got {value!r}")]
    check_refused(TypeError, says, CLIENTS, **{name: value})


def test_something_must_bound_the_fit():
    says = ["max_iter or max_epochs", "None for both", "Give one"]
    check_refused(ValueError, says, CLIENTS, max_iter=None)


def test_compression_without_a_compressor():
    says = ["omega=0 with compressor=None", "omega=1.5", "dithering"]
    check_refused(ValueError, says, CLIENTS, compressor=None, omega=1.5)


def test_a_column_may_be_called_mask():
    # NumPy takes an attribute of this name for the mask of an array.
    table = pd.DataFrame(X, columns=["a", "_mask"])
    gm = FederatedGaussianMixture(**GOOD).fit(table, clients=OWNERS)
    assert_array_equal(gm.means_, FederatedGaussianMixture(**GOOD).fit(X, clients=OWNERS).means_)
    assert gm.predict([table, table])[0].shape == (N_SAMPLES,)


def test_large_integers_in_a_list_stay_what_they_are():
    # As floats, the last two would be the same client.
    labels = [[1, 2**63 + 5, 2**63 + 6][k % 3] for k in range(N_SAMPLES)]
    gm = FederatedGaussianMixture(**GOOD).fit(X, clients=labels)
    assert gm.client_ids_.tolist() == [1, 2**63 + 5, 2**63 + 6]


@pytest.mark.parametrize(
    "number", [np.int8, np.uint8, np.int16, np.float32, np.longdouble, Fraction]
)
def test_numbers_of_any_type_are_used_as_pythons(number):
    # 100 * 3 clients leaves 8 bits, 2**19 doubles 16: only counts of these types, and no others.
    is_count = issubclass(number, np.integer)
    counts = {"n_components": 2, "batch_size": 100, "max_iter": 7}
    shares = {"step_size": 0.25, "participation": 0.5, "omega": 1.5, "reg_covar": 2.0**-20}
    odd = {name: number(value) for name, value in (counts if is_count else shares).items()}
    got, want = (
        FederatedGaussianMixture(**{**counts, **shares, **parameters}, tol=0, random_state=0)
        for parameters in (odd, {})
    )
    with warnings.catch_warnings():
        # No convergence, and no client has so many rows.
        warnings.simplefilter("ignore", UserWarning)
        got.fit(CLIENTS), want.fit(CLIENTS)
        assert_unchanged(fitted_attributes(got), fitted_attributes(want))
        got.partial_fit(CLIENTS), want.partial_fit(CLIENTS)
    assert_unchanged(fitted_attributes(got), fitted_attributes(want))
    assert all(type(got.get_params()[name]) is number for name in odd)


def test_a_compressor_of_what_is_no_number():
    class Wrong(RandK):
        def compress(self, values, uniforms, lengths=None):
            return np.full_like(values, NAN)

        def n_bytes(self, values, lengths=None):
            return np.full(3, 100)

    says = ["finite values from compress", r"Wrong\(k=3", "Correct this class"]
    check_refused(ValueError, says, CLIENTS, compressor=Wrong(k=3), omega=10.0, step_size=0.1)


@pytest.mark.parametrize(
    ("omega", "got"), [(NAN, "nan"), (INFINITY, "inf"), (-1.0, "-1.0"), (None, "nan")]
)
def test_a_compressor_without_an_omega(omega, got):
    class Wrong(RandK):
        def omega_for(self, length):
            return omega

    says = [
        r"omega_for of compressor=.*Wrong\(k=3",
        ">= 0",
        f"got {got} for messages of 12",
        "class",
    ]
    check_refused(ValueError, says, CLIENTS, compressor=Wrong(k=3), omega=5.0)


@pytest.mark.parametrize(
    ("wrong", "got"),
    [(lambda sent: None, "None"), (lambda sent: sent[:, 1:], r"\(3, 11\)"), (list, "None")],
    ids=["nothing", "too short", "a list"],
)
def test_a_compressor_that_returns_something_else(wrong, got):
    class Wrong(RandK):
        def compress(self, values, uniforms, lengths=None):
            return wrong(super().compress(values, uniforms, lengths))

        def n_bytes(self, values, lengths=None):
            return np.full(3, 100)

    says = [r"compress and n_bytes of .*Wrong\(k=3", r"shapes \(3, 12\) and \(3,\)", f"got {got}"]
    check_refused(ValueError, says, CLIENTS, compressor=Wrong(k=3), omega=5.0)


@pytest.mark.parametrize(
    ("value", "error"), [(2.0, ValueError), (0, ValueError), (NAN, ValueError), (None, TypeError)]
)
def test_a_function_that_gives_no_step_size(value, error):
    def step_size(round_number):
        return 0.5 if round_number < 3 else value

    says = [r"step_size\(3\)", "> 0 and <= 1", f"got {value!r}"]
    check_refused(error, says, CLIENTS, step_size=step_size, tol=0.0)


BAD_STARTS = {
    "too few weights": ({"weights_init": [1.0]}, [r"shape \(2,\)", r"got \(1,\)"]),
    "weights that do not sum to 1": (
        {"weights_init": [0.5, 0.6]},
        ["sum to 1", "sum of 1.1", "Normalise"],
    ),
    "negative weights": ({"weights_init": [1.5, -0.5]}, ["non-negative", "-0.5"]),
    "NaN weights": ({"weights_init": [0.5, NAN]}, ["weights_init", "NaN"]),
    "weights that are words": ({"weights_init": ["a", "b"]}, ["weights_init"]),
    "means for another number of components": (
        {"means_init": np.zeros((3, 2))},
        ["means_init", r"shape \(2, 2\)", r"got \(3, 2\)"],
    ),
    "no means": ({"means_init": []}, ["means_init", r"shape \(2, 2\)", r"got \(0,\)"]),
    "means with other features": (
        {"means_init": np.zeros((2, 1))},
        ["means_init", r"\(2, 2\)", r"\(2, 1\)"],
    ),
    "infinite means": ({"means_init": [[0, 0], [0, INFINITY]]}, ["means_init", "infinity"]),
    "precisions of another type": (
        {"precisions_init": np.eye(2)},
        ["precisions_init", r"\(2, 2, 2\)", r"got \(2, 2\)"],
    ),
    "precisions that are not symmetric": (
        {"precisions_init": [[1, 0.5], [0, 1]], "covariance_type": "tied"},
        ["precisions_init", "symmetric and positive definite", "0.5 from .* the diagonal"],
    ),
    "a negative precision": (
        {"precisions_init": np.stack([np.eye(2), np.diag([1.0, -3.0])])},
        ["precisions_init", "positive definite", "got -3 on a diagonal. Give positive"],
    ),
    "precisions that are not positive definite": (
        {"precisions_init": np.stack([np.eye(2), [[1.0, 2.0], [2.0, 1.0]]])},
        ["precisions_init", "symmetric and positive definite", "eigenvalue -1"],
    ),
    "precisions that are not positive": (
        {"precisions_init": [[1, 1], [1, 0]], "covariance_type": "diag"},
        ["positive", "precisions_init", "got 0", "give 1 / variance"],
    ),
    "negative spherical precisions": (
        {"precisions_init": [1, -2], "covariance_type": "spherical"},
        ["positive", "precisions_init", "got -2"],
    ),
    "NaN precisions": (
        {"precisions_init": [1, NAN], "covariance_type": "spherical"},
        ["precisions_init", "NaN"],
    ),
    "a fixed covariance that is not tied": (
        {"fixed_covariance": np.eye(2)},
        ["covariance_type='tied'|covariance_type=\"tied\"", "fixed_covariance", "got 'full'"],
    ),
    "a fixed covariance and precisions": (
        {
            "fixed_covariance": np.eye(2),
            "precisions_init": np.eye(2),
            "covariance_type": "tied",
        },
        ["precisions_init=None", "fixed_covariance", "got both"],
    ),
    "a fixed covariance of another size": (
        {"fixed_covariance": np.eye(3), "covariance_type": "tied"},
        ["fixed_covariance", r"\(2, 2\)", r"got \(3, 3\)"],
    ),
    "a singular fixed covariance": (
        {"fixed_covariance": np.ones((2, 2)), "covariance_type": "tied"},
        ["fixed_covariance", "positive definite"],
    ),
    "a fixed covariance with a variance of 0": (
        {"fixed_covariance": np.diag([0.0, 1.0]), "covariance_type": "tied"},
        ["fixed_covariance", "positive definite", "eigenvalue 0 with"],
    ),
    "a fixed covariance in small units that is not symmetric": (
        {"fixed_covariance": [[1e-10, 9e-11], [0, 1e-10]], "covariance_type": "tied"},
        ["fixed_covariance", "symmetric", "9e-11 from .* the diagonal"],
    ),
    "a fixed covariance with holes": (
        {"fixed_covariance": [[1, NAN], [NAN, 1]], "covariance_type": "tied"},
        ["fixed_covariance", "NaN"],
    ),
    "a fixed covariance that is a word": (
        {"fixed_covariance": "identity", "covariance_type": "tied"},
        ["fixed_covariance"],
    ),
    "complex means": (
        {"means_init": np.eye(2) + 1j},
        ["Expected means_init to be real numbers, got dtype complex128"],
    ),
    "means that are far beyond the rows": (
        {"means_init": [[0, 0], [1e100, 0]], "covariance_type": "tied", "omega": 1.0},
        [r"means_init within 1e\+37 standard deviations", r"got \[1e\+100, 0.0\] for component 1"],
    ),
    "means whose squares are no doubles": (
        {"means_init": [[1e200, -1e200], [0, 0]]},
        ["means_init within", "for component 0", "in the units of the rows"],
    ),
    "precisions whose inverses are no doubles": (
        {"precisions_init": [1e-320, 1e-320], "covariance_type": "spherical"},
        [r"precisions_init with variances within a factor of 1e\+74", "from inf to inf"],
    ),
    "precision matrices whose inverses are no doubles": (
        {"precisions_init": [[1e-320, 0], [0, 1]], "covariance_type": "tied"},
        ["precisions_init with variances within", "from 1 to inf", "in the units of the rows"],
    ),
    "precisions that are too large for messages": (
        {"precisions_init": 1e200 * np.eye(2), "covariance_type": "tied", "omega": 1.0},
        ["precisions_init with variances within", "from 1e-200 to 1e-200"],
    ),
    "a fixed covariance whose inverse is no double": (
        {"fixed_covariance": 1e-320 * np.eye(2), "covariance_type": "tied"},
        ["fixed_covariance with variances within", "from 1e-320 to 1e-320"],
    ),
}


@pytest.mark.parametrize(("parameters", "says"), BAD_STARTS.values(), ids=list(BAD_STARTS))
def test_bad_starts(parameters, says):
    check_refused(ValueError, says, CLIENTS, **parameters)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"n_components": 3}, "n_components=2, as in the last fit, got 3"),
        ({"covariance_type": "tied"}, "covariance_type='full', as in the last fit, got 'tied'"),
    ],
)
def test_a_fit_does_not_go_on_after_a_change_of_shape(changed, says):
    gm = FederatedGaussianMixture(**GOOD, warm_start=True).fit(CLIENTS)
    attributes = fitted_attributes(gm)
    gm.set_params(**changed)
    advice = r"\. Call fit with warm_start=False, or partial_fit on a clone, after such a change\.$"
    with pytest.raises(ValueError, match=says + advice):
        gm.fit(CLIENTS)
    # A stream goes on whatever warm_start is.
    with pytest.raises(ValueError, match=says + advice):
        gm.set_params(warm_start=False).partial_fit(CLIENTS)
    assert_unchanged(fitted_attributes(gm), attributes)


def test_a_fit_does_not_go_on_with_other_features():
    gm = FederatedGaussianMixture(2, warm_start=True, random_state=0).fit(CLIENTS)
    with pytest.raises(ValueError, match="n_features=2, as in the last fit, got 1. Call fit with"):
        gm.fit([client[:, :1] for client in CLIENTS])


def test_numpy_numbers_are_numbers():
    gm = FederatedGaussianMixture(
        n_components=np.int32(2),
        batch_size=np.int64(4),
        step_size=np.float32(0.03125),
        omega=np.float64(0.5),
        participation=np.float32(0.5),
        max_iter=np.int16(3000),
        tol=np.float64(10.0),
        covariance_type=np.str_("tied"),
        random_state=0,
    )
    assert gm.fit(CLIENTS).converged_


# ------------------------------------------------------------------ questions to a fit


METHODS = ("predict", "predict_proba", "transform", "score_samples", "score", "aic", "bic")


@pytest.mark.parametrize("method", METHODS)
def test_before_a_fit(method):
    with pytest.raises(NotFittedError, match="not fitted yet"):
        getattr(FederatedGaussianMixture(), method)(CLIENTS)
    with pytest.raises(NotFittedError, match="not fitted yet"):
        FederatedGaussianMixture().sample()


@pytest.mark.parametrize("method", METHODS)
def test_questions_about_tables_that_do_not_fit(method):
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
def test_questions_about_text(method):
    frame = pd.DataFrame({0: [1.0, 2.0], 1: ["red", "2"]})
    with pytest.raises(ValueError, match="red.* in column 1. Encode or drop"):
        getattr(FITTED, method)(frame)


def test_rows_as_series_are_answered_for():
    frame = pd.DataFrame(X)
    want = FITTED.predict(X[:2])
    assert_array_equal(FITTED.predict([frame.iloc[0], frame.iloc[1]]), want)


@pytest.mark.parametrize("wrong", [np.zeros(5), pd.DataFrame({"a": [1.0 + 1j, 2.0]})])
def test_no_error_is_its_own_cause(wrong):
    with pytest.raises(ValueError) as caught:
        FederatedGaussianMixture().fit(wrong)
    assert caught.value.__cause__ is not caught.value


@pytest.mark.parametrize("method", METHODS)
def test_questions_about_nobody(method):
    for nobody in ([], ()):
        with pytest.raises(ValueError, match="at least one client.*Give one table, or a list"):
            getattr(FITTED, method)(nobody)
    with pytest.raises(ValueError, match="2-D table.* for client 1, got a list of 0 tables"):
        getattr(FITTED, method)([CLIENTS[0], []])


@pytest.mark.parametrize("method", METHODS)
def test_questions_about_what_is_no_table(method):
    answer = getattr(FITTED, method)
    with pytest.raises(TypeError, match=r"got a dict. Give list\(X.values\(\)\)"):
        answer(dict(enumerate(CLIENTS)))
    with pytest.raises(TypeError, match=r"got a list_iterator. Give a list"):
        answer(iter(CLIENTS))
    with pytest.raises(ValueError, match="2 numbers in row 0 and 1 number in row 1"):
        answer([[1.0, 2.0], [3.0]])
    with pytest.raises(ValueError, match="object ndarray"):
        answer(objects(CLIENTS))
    with pytest.raises(ValueError, match="for client 1, got a list of 2 tables"):
        answer([CLIENTS[0], CLIENTS[1:]])
    with pytest.raises(ValueError, match="(?s)client 1.*power of ten"):
        answer(with_value(1e200))


@pytest.mark.parametrize("n_samples", [0, -1, 2.5, "x", None])
def test_sample_sizes(n_samples):
    with pytest.raises((TypeError, ValueError), match=f"n_samples.*got {n_samples!r}"):
        FITTED.sample(n_samples)


# ------------------------------------------------------------------ any list is some labels

NUMBERS = st.integers(-(10**6), 10**6)
WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data())
def test_a_list_and_its_labels_are_the_same_federation(data):
    n_clients = data.draw(st.integers(1, 6), "clients")
    lengths = data.draw(st.lists(st.integers(1, 6), min_size=n_clients, max_size=n_clients))
    n_features = data.draw(st.integers(1, 3), "features")
    kind = data.draw(st.sampled_from([NUMBERS, WORDS, st.dates()]), "kind of label")
    ids = sorted(data.draw(st.sets(kind, min_size=n_clients, max_size=n_clients)))
    seed = data.draw(st.integers(0, 2**31), "seed")
    as_series, as_objects = data.draw(st.booleans()), data.draw(st.booleans())

    rng = np.random.default_rng(seed)
    owners = rng.permutation(np.repeat(np.arange(n_clients), lengths))
    rows = rng.normal(size=(len(owners), n_features))
    tables = [rows[owners == client] for client in range(n_clients)]
    labels = np.array(ids, dtype=object if as_objects else None)[owners]
    if as_series:
        labels = pd.Series(labels, index=rng.permutation(len(labels)))

    gm = FederatedGaussianMixture(
        covariance_type="diag",
        batch_size=2,
        participation=0.5,
        step_size=0.1,
        max_iter=5,
        random_state=seed % 1000,
    )
    with warnings.catch_warnings():
        # No convergence, and minibatches larger than clients.
        warnings.simplefilter("ignore", UserWarning)
        attributes = fitted_attributes(gm.fit(tables))
        gm.fit(rows, clients=labels)
    got = fitted_attributes(gm)
    assert attributes.pop("client_ids_").tolist() == list(range(n_clients))
    assert got.pop("client_ids_").tolist() == ids
    assert gm.n_clients_ == n_clients
    assert_unchanged(got, attributes)


@pytest.mark.parametrize(
    ("length", "says"),
    [(-1, "lengths >= 0 from n_bytes .* got -1"), (7.5, "integers from n_bytes .* got .*float64")],
)
def test_a_compressor_whose_lengths_are_none(length, says):
    class Wrong(RandK):
        def n_bytes(self, values, lengths=None):
            return np.full(3, length)

    rows = np.random.default_rng(0).normal(size=(3, 10, 2))
    gm = FederatedGaussianMixture(2, compressor=Wrong(k=3), omega=10.0, step_size=0.1)
    with pytest.raises(ValueError, match=f"{says}. Correct this class"):
        gm.fit(list(rows))


def test_a_class_as_compressor():
    says = ["to be an object, got the class RandK", r"Call it, as in RandK\(omega=1.0\)"]
    check_refused(TypeError, says, CLIENTS, compressor=RandK, omega=1.0)
    check_refused(ValueError, ["subclass of skfedem.compression"], CLIENTS, compressor=3)


# ---- lists of small tables


def test_small_tables_are_stacked_and_large_ones_are_not_copied():
    small, large = [np.full((k, 2), float(k)) for k in (1, 2, 3)], np.zeros((2**17, 2))
    ((rows, lengths),) = stacks(small)
    assert_array_equal(rows, np.concatenate(small))
    assert lengths == [1, 2, 3]
    # Large is a matter of numbers, not of rows.
    for table in (large, large.reshape(64, -1)):
        parts = list(stacks([table, np.ones((1, table.shape[1])), table]))
        assert [len(rows) for rows, _ in parts] == [len(table), 1, len(table)]
        assert all(parts[k][0] is table for k in (0, 2))


FRAME = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]})


def test_frames_of_one_kind_are_stacked():
    ((rows, lengths),) = stacks([FRAME, FRAME[:1]])
    assert lengths == [2, 1]
    assert_array_equal(rows.columns, ["a", "b"])
    assert_array_equal(rows, [[1, 3], [2, 4], [1, 3]])


@pytest.mark.parametrize(
    "other",
    [
        FRAME[["b", "a"]],
        FRAME.astype({"b": np.float32}),
        FRAME.astype({"b": np.int16}),
        FRAME.astype({"b": "Int64"}),
        FRAME[:0],
        FRAME.to_numpy(),
        FRAME["a"],
        sparse.csr_array(FRAME),
        [[1.0, 2.0]],
    ],
    ids=["order", "single", "short", "nullable", "empty", "array", "series", "sparse", "list"],
)
def test_other_tables_are_not_stacked(other):
    with pytest.raises(ValueError, match="expected"):
        next(stacks([FRAME, other]))
    with pytest.raises((ValueError, TypeError), match="expected"):
        next(stacks([np.ones((2, 2)), np.ones((2, 2), np.float32)]))


@pytest.mark.parametrize("dtype", [np.int64, np.uint32])
def test_integers_are_stacked_with_doubles(dtype):
    counts = np.array([[1, 2], [3, 4]], dtype=dtype)
    for tables in (
        [FRAME, pd.DataFrame(counts, columns=["a", "b"]), FRAME.astype({"b": dtype})],
        [FRAME.to_numpy(), counts],
    ):
        ((rows, lengths),) = stacks(tables)
        assert lengths == [2] * len(tables)
        assert_array_equal(rows, np.concatenate(tables))
    tables = [client[:4] for client in CLIENTS] + [np.arange(8, dtype=dtype).reshape(4, 2)]
    for estimator in (FITTED, FederatedStandardScaler().fit(CLIENTS), FederatedPCA().fit(CLIENTS)):
        for got, table in zip(estimator.transform(tables), tables, strict=True):
            assert got.dtype == np.float64
            assert_allclose(got, estimator.transform(table), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("format", ["coo", "csr", "csc", "lil", "dok"])
def test_sparse_tables_are_stacked_entry_for_entry(format):
    # An explicit zero is an observation.
    entries = [([1.0, 0.0], ([0, 1], [1, 2])), ([5.0], ([1], [0]))]
    tables = [sparse.coo_array(each, (2, 3)).asformat(format) for each in entries]
    ((rows, lengths),) = stacks(tables)
    assert lengths == [2, 2]
    assert rows.nnz == sum(table.nnz for table in tables)
    assert_array_equal(rows.toarray(), np.concatenate([table.toarray() for table in tables]))


@pytest.mark.parametrize("format", ["bsr", "dia"])
def test_sparse_tables_with_padding_are_not_stacked(format):
    with pytest.raises(ValueError, match="expected"):
        next(stacks([sparse.csr_array(np.eye(2)).asformat(format)] * 2))


def test_sparse_tables_of_other_types_are_not_stacked():
    table = sparse.csr_array(np.eye(2))
    with pytest.raises(ValueError, match="expected"):
        next(stacks([table, table.astype(np.float32)]))


@pytest.mark.parametrize("single", [(0, 1, 2), (0, 2), ()])
def test_rows_are_single_where_all_clients_are(single):
    tables = [
        client.astype(np.float32 if k in single else np.float64) for k, client in enumerate(CLIENTS)
    ]
    rows = check_clients(BaseEstimator(), tables).rows
    assert rows.dtype == (np.float32 if len(single) == 3 else np.float64)
    assert_array_equal(rows, np.concatenate(tables))


def test_of_many_names_eight_are_told():
    assert shorten(list("abcdefgh")) == "['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h']"
    assert shorten(list("abcdefghi")) == "['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', ...]"


def test_tuples_of_several_lengths_are_labels():
    clients = [(owner,) if owner == OWNERS[0] else (owner, 1) for owner in OWNERS.tolist()]
    gm = FederatedGaussianMixture(**GOOD).fit(X, clients=clients)
    assert gm.client_ids_.tolist() == sorted(set(clients))


def test_one_table_of_text_or_of_many_dimensions():
    for rows in ([["a", "b"], ["c", "d"]], [[1.0, "b"], [2.0, 3.0]]):
        with pytest.raises(
            ValueError, match="^Expected numbers: could not .* Encode or drop the c"
        ):
            FederatedGaussianMixture().fit(rows)
    with pytest.raises(ValueError, match=r"one array with 4 dimensions and shape .*\. Give a list"):
        FederatedGaussianMixture().fit(np.zeros((2, 3, 4, 5)))


def test_one_label_that_is_there_twice_is_found_among_labels_without_an_order():
    # None of these sets is smaller or larger than another, so that nothing is out of order.
    ash, birch = frozenset(["ash"]), frozenset(["birch"])
    labels = np.array([ash, birch, ash], dtype=object)
    with pytest.raises(TypeError, match="labels that can be sorted, got frozenset"):
        client_codes(labels, 3)
