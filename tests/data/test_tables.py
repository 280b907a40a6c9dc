"""Tables that are refused, by messages that name the client, and unusual ones that are not."""

import datetime

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from scipy import sparse
from sklearn.base import clone
from sklearn.preprocessing import MinMaxScaler

from refusals import (
    CLIENTS,
    FITTED,
    GOOD,
    N_SAMPLES,
    NAMED,
    OWNERS,
    THREE_WAYS,
    X,
    check_refused,
    frames,
    objects,
    with_value,
)
from skfedem import FederatedGaussianMixture, FederatedMatrixImputer
from skfedem._data.features import shorten
from skfedem.preprocessing import FederatedStandardScaler, PerClient

every_estimator = pytest.mark.parametrize(
    "estimator",
    [FederatedGaussianMixture(), FederatedMatrixImputer(1), FederatedStandardScaler()],
    ids=lambda estimator: type(estimator).__name__,
)

# ---- bad tables

TWO_LEVELS = [("m", "a"), ("m", "b")]
BAD_TABLES = {
    "an empty list": ([], ["at least one client", "empty list", *THREE_WAYS]),
    "an empty tuple": ((), ["at least one client", "empty", *THREE_WAYS]),
    "no rows": (
        [CLIENTS[0], CLIENTS[1][:0], CLIENTS[2]],
        r"at least one row.*none for client 1.*\(0, 2\).*Leave .* out",
    ),
    "no rows, frames": ([NAMED[0], NAMED[1], NAMED[2][:0]], "none for client 2.*Leave .* out"),
    "no columns": ([client[:, :0] for client in CLIENTS], "0 feature.*client 0"),
    "ragged": (
        [CLIENTS[0], CLIENTS[1], CLIENTS[2][:, :1]],
        r"Expected 2 features.*client 0.*got 1 for client 2.*\(7, 1\).*same columns",
    ),
    "other columns": (
        frames(["a", "b"], ["a", "b"], ["a", "c"]),
        r"client 0 \(\['a', 'b'\]\).*got \['a', 'c'\] for client 2.*order all clients' columns "
        "alike",
    ),
    "columns in another order": (
        frames(["a", "b"], ["b", "a"], ["a", "b"]),
        r"client 0.*got \['b', 'a'\] for client 1.*order all clients",
    ),
    "no columns of one client": (
        [NAMED[0], pd.DataFrame(index=range(5)), NAMED[2]],
        "Expected 2 features for every client as for client 0, got 0 for client 1.*same columns",
    ),
    "no columns of the first": (
        [pd.DataFrame(index=range(5)), NAMED[1]],
        "at least one feature for every client, got 0 features for client 0.*same columns",
    ),
    "columns missing": (
        frames(["a", "b"], ["a"], ["a", "b"]),
        r"columns of client 0 \(\['a', 'b'\]\).*got \['a'\] for client 1",
    ),
    "frames and arrays": (
        [NAMED[0], CLIENTS[1]],
        r"\['a', 'b'\].*no string column names for client 1.*alike, or name none",
    ),
    "NaN": (with_value(np.nan), "finite.*got nan.*row 3.*column 1.*client 1.*[Dd]rop or impute"),
    "infinity": (
        with_value(-np.inf, client=2, row=0, column=0),
        "finite.*got -inf.*row 0.*column 0.*client 2.*[Dd]rop or impute",
    ),
    "NaN in a frame": (
        [NAMED[0], NAMED[1].mask(NAMED[1] == NAMED[1].iloc[5, 0]), NAMED[2]],
        "row 5.*column (0|'a').*client 1",
    ),
    "three dimensions": (np.zeros((3, 4, 2)), r"2-D.*3 dimensions.*\(3, 4, 2\).*list\(X\)"),
    "three dimensions in a list": (
        [CLIENTS[0], np.zeros((3, 4, 2))],
        r"2-D.*client 1.*3 dimension.*\(3, 4, 2\)",
    ),
    "one dimension in a list": ([CLIENTS[0], CLIENTS[1][0]], r"2-D.*client 1.*1 dimension.*\(2,\)"),
    "one dimension": (np.zeros(5), "Expected 2D array, got 1D array"),
    "an empty list in a list": ([CLIENTS[0], []], "client 1"),
    "strings": ([CLIENTS[0], np.array([["red", "green"]])], "numbers.*client 1.*Encode or drop"),
    "strings in one table": (np.array([["red", "2"], ["1", "3"]]), "numbers.*Encode or drop"),
    "dates": (
        [CLIENTS[0], np.array([["2020-01-01", "2020-01-02"]], dtype="M8[D]")],
        "Expected numbers for client 1, got dtype datetime64",
    ),
    "dates in a column": (
        [NAMED[0], NAMED[1].assign(b=pd.Timestamp("2020-01-01")), NAMED[2]],
        "Expected numbers.*client 1.*datetime64.* in column 'b'.*Encode or drop",
    ),
    "dates in one table": (
        pd.DataFrame({"a": pd.to_datetime(["2020", "2021"]), "b": [1.0, 2.0]}),
        "Expected numbers.*datetime64.* in column 'a'.*Encode or drop",
    ),
    "nothing but durations": (
        pd.DataFrame({"a": pd.to_timedelta([1, 2], unit="D")}),
        "Expected numbers.*timedelta64.* in column 'a'",
    ),
    "masked numbers": (
        [CLIENTS[0], np.ma.masked_less(np.ma.array([[7.0, 1.0], [2.0, 0.0]]), 1.0)],
        "contains NaN.*row 1, column 1 of client 1.*Drop or impute",
    ),
    "masked objects": (
        [CLIENTS[0], np.ma.masked_less(np.ma.array([[7.0, 1.0], [2.0, 0.0]], dtype=object), 1.0)],
        "contains NaN.*row 1, column 1 of client 1.*Drop or impute",
    ),
    "complex numbers": ([CLIENTS[0], CLIENTS[1] + 1j], "[Cc]omplex.*client 1"),
    "uneven rows": (
        [[[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.0], [3.0]]],
        "Expected numbers for client 1: .*inhomogeneous.*Encode or drop",
    ),
    "a vector and a table": ([np.ones(2), CLIENTS[1]], "2-D table .*client 0, got 1 dimension"),
    "a list of tables in a list": (
        [CLIENTS[0], CLIENTS[1:]],
        "numbers for client 1: .*sequence",
    ),
    "an object array of tables": (
        objects(CLIENTS),
        "Expected numbers: setting an array element",
    ),
    "a series of numbers": (pd.Series([1.0, 2.0]), "2D|2-dimensional.*Series|1D"),
    "string and integer names": (
        [NAMED[0], pd.DataFrame(CLIENTS[1])],
        r"\['a', 'b'\].*no string column names for client 1",
    ),
    "integer names in another order": (
        [pd.DataFrame(CLIENTS[0]), pd.DataFrame(CLIENTS[1])[[1, 0]]],
        r"columns of client 0 \(\[0, 1\]\).*\[1, 0\] for client 1.*order all clients",
    ),
    "names of two levels in another order": (
        frames(TWO_LEVELS, TWO_LEVELS, TWO_LEVELS[::-1]),
        r"\[\('m', 'a'\), \('m', 'b'\)\].*\('m', 'a'\)\] for client 2.*order all clients",
    ),
    "huge numbers": (
        with_value(-1e151, client=2, row=4, column=0),
        r"1e\+150.*-1e\+151 in row 4, column 0 of client 2.*power of ten",
    ),
    "huge numbers in one table": (
        np.concatenate(with_value(1e200)),
        r"1e\+200 in row 12, column 1.*power of ten",
    ),
    "a sparse Series": (
        [CLIENTS[0], pd.Series(pd.arrays.SparseArray([1.0, 2.0, 3.0]))],
        "2-D.*client 1",
    ),
}
NO_TABLES = {
    "a list of vectors": (
        [np.ones(3), np.zeros(3)],
        r"got a list of 1-D ndarray.*numpy\.array\(X\) if each is a row",
    ),
    "the name of a file": ("data.csv", "got 'data.csv' of type str. Convert it"),
    "nothing": (None, "got None of type NoneType"),
    "a hole in a list": ([CLIENTS[0], None], "for client 1, .*got None of type NoneType"),
    "columns named by strings and numbers": (
        [NAMED[0], NAMED[1].rename(columns={"a": 3})],
        r"column names of client 1.*strings.*\[3, 'b'\].*astype",
    ),
    "sparse": ([CLIENTS[0], sparse.csr_array(CLIENTS[1])], "dense.*client 1.*sparse.*toarray"),
    "one sparse table": (sparse.csr_matrix(X), "[Ss]parse.*toarray"),
    "a dictionary": (dict(enumerate(CLIENTS)), "list of tables, got .* of type dict. Convert it"),
}


@pytest.mark.parametrize(("tables", "says"), BAD_TABLES.values(), ids=BAD_TABLES)
def test_bad_tables(tables, says):
    check_refused(ValueError, says, tables)


@pytest.mark.parametrize(("tables", "says"), NO_TABLES.values(), ids=NO_TABLES)
def test_other_objects_raise_type_errors(tables, says):
    check_refused(TypeError, says, tables)


def test_one_table_of_text_or_of_many_dimensions():
    for rows in ([["a", "b"], ["c", "d"]], [[1.0, "b"], [2.0, 3.0]]):
        with pytest.raises(ValueError, match="^Expected numbers, got dtype <U.* Encode or drop"):
            FederatedGaussianMixture().fit(rows)
    with pytest.raises(ValueError, match=r"one array with 4 dimensions and shape .*\. Give a list"):
        FederatedGaussianMixture().fit(np.zeros((2, 3, 4, 5)))


def test_a_frame_without_columns():
    check_refused(ValueError, "0 sample|0 feature", pd.DataFrame())


def test_fewer_rows_than_components():
    says = ["n_samples >= n_components", "28", "29", "fewer components or more rows"]
    check_refused(ValueError, says, CLIENTS, n_components=29)
    check_refused(ValueError, says, X, OWNERS, n_components=29)


@pytest.mark.parametrize("given", [X, [1, 2, 3]])
def test_data_or_several_numbers_in_place_of_a_number_of_components(given):
    says = ["n_components", "integer >= 1", "Pass data to fit", "GridSearchCV"]
    check_refused(TypeError, says, CLIENTS, n_components=given)


# ---- what is no number


@pytest.mark.parametrize("as_list", [False, True])
@every_estimator
@pytest.mark.parametrize("kind", ["Date", "Datetime", "Duration", "Time"])
def test_polars_times_raise(kind, estimator, as_list):
    # Beside numbers, NumPy has them as numbers: 2020 as the 18262nd day.
    polars = pytest.importorskip("polars")
    numbers = polars.DataFrame({"a": [1.0, 2.0, 4.0], "when": [3.0, 1.0, 2.0]})
    times = numbers.with_columns(when=polars.lit(7).cast(getattr(polars, kind)))
    whose = " for client 1" if as_list else ""
    with pytest.raises(ValueError, match=f"Expected numbers{whose}, got dtype {kind}.*'when'"):
        clone(estimator).fit([numbers, times] if as_list else times)


@every_estimator
def test_errors_name_the_column_of_objects(estimator):
    frame = pd.DataFrame({"a": [1.0, 2.0], "when": [datetime.date(2020, 1, day) for day in (1, 2)]})
    says = "Expected numbers.* 'datetime.date' in column 'when'"
    with pytest.raises(ValueError, match=says):
        clone(estimator).fit(frame)
    with pytest.raises(ValueError, match=says):
        clone(estimator).fit(frame.assign(when=[1.0, 2.0])).transform(frame)


@every_estimator
@pytest.mark.parametrize("kind", ["array", "frame", "polars"])
@pytest.mark.parametrize(
    ("entry", "error", "says"),
    [
        ("dune", ValueError, "could not convert string to float: 'dune'"),
        (1j, TypeError, "float.. argument must be a string or a real number, not 'complex'"),
        ({}, TypeError, "float.. argument must be a string or a real number, not 'dict'"),
        (10**400, ValueError, "int too large to convert to float"),
    ],
)
def test_errors_show_the_entry_that_is_no_number(estimator, kind, entry, error, says):
    table = np.array([[1.0, 2.0, 4.0], [3.0, entry, 5.0]], dtype=object)
    place = ""
    if kind != "array":
        table, error, place = pd.DataFrame(table, columns=list("abc")), ValueError, " in column 'b'"
    if kind == "polars":
        polars = pytest.importorskip("polars")
        table = polars.DataFrame(
            {name: polars.Series([*table[name]], dtype=polars.Object) for name in table}
        )
    with pytest.raises(error, match=f"^Expected numbers: {says}{place}. [EP].*ncode or drop"):
        clone(estimator).fit(table)
    says = f"numbers for client 1: {says}{place}"
    with pytest.raises((TypeError, ValueError), match=says):
        clone(estimator).fit([np.ones((4, 3)), table])


@every_estimator
def test_errors_name_text_columns_of_polars(estimator):
    polars = pytest.importorskip("polars")
    table = polars.DataFrame({"a": ["1", "2"], "site": ["dune", "bog"]})
    with pytest.raises(ValueError, match="^Expected numbers: .*'dune' in column 'site'. "):
        clone(estimator).fit(table)


@every_estimator
@pytest.mark.parametrize("as_list", [False, True])
def test_complex_and_raw_dtypes_raise(estimator, as_list):
    whose = " for client 0" if as_list else ""
    for table, says in [
        (
            np.ones((3, 2)) + 1j,
            f"^Complex data not supported. Expected numbers{whose}, got dtype c",
        ),
        (pd.DataFrame({"a": 1j}, index=[0]), f"^Expected numbers{whose}, got dtype c.* column 'a'"),
        (np.ones((3, 2)).view("V8"), rf"^Expected numbers{whose}, got dtype [|]V8"),
    ]:
        with pytest.raises(ValueError, match=says):
            clone(estimator).fit([table] if as_list else table)


def test_number_of_features_is_checked_before_values():
    frame = pd.DataFrame({k: pd.array([True, None], dtype="boolean") for k in range(3)})
    with pytest.raises(ValueError, match="X has 3 features"):
        FITTED.predict(frame)


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ("abcdefghiXklmnopqr", ("[..., 'i', 'j', 'k', 'l', 'm', 'n', 'o', 'p', ...]", "'i', 'X'")),
        ("abcdefghijklmnopq", ("[..., 'q', 'r']", "[..., 'q']")),
        ("bacdefghijklmnopqr", ("['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', ...]", "['b', 'a'")),
    ],
)
def test_errors_show_the_first_differing_column(columns, says):
    names = "abcdefghijklmnopqr", columns
    first, other = (pd.DataFrame(np.eye(18)[:, : len(own)], columns=[*own]) for own in names)
    gm = FederatedGaussianMixture().fit(first)
    for use, of_whom in ((gm.fit, "client 0"), (gm.partial_fit, "the last fit")):
        with pytest.raises(ValueError, match=f"Expected the columns of {of_whom}") as caught:
            use([first, other] if of_whom == "client 0" else other)
        assert all(some in str(caught.value) for some in says)


def test_text_of_variable_length_is_no_number():
    string_dtype = getattr(np.dtypes, "StringDType", None)
    if string_dtype is None:
        pytest.skip("NumPy < 2.0 has no such dtype")
    X = np.array([["1", "2"], ["3", "5"]], dtype=string_dtype())
    for estimator in (FederatedGaussianMixture(), FederatedMatrixImputer(1)):
        for texts in (X, [X, X]):
            with pytest.raises(ValueError, match="got dtype StringDType"):
                clone(estimator).fit(texts)


def test_errors_name_the_cell_of_a_missing_value():
    for client in range(3):
        for row, column in [(0, 0), (len(CLIENTS[client]) - 1, 1)]:
            tables = with_value(np.nan, client, row, column)
            says = f"row {row}, column {column} of client {client}"
            check_refused(ValueError, says, tables)


def test_invalid_values_beyond_the_first_block():
    # As many numbers as are checked at once, and some more.
    rows = np.zeros((2**18 + 5, 2))
    rows[[2**17 + 1, 2**18 + 3], 1] = np.nan
    check_refused(ValueError, "row 131073, column 1\\.", rows)
    rows[2**17 + 1, 1] = 1e150  # which is not too large
    rows[2**17 + 2, 0] = 1.1e150
    check_refused(ValueError, [r"at most 1e\+150", "row 131074, column 0:"], rows)


# ---- other libraries' tables


@pytest.mark.parametrize("which", ["alone", "first", "second"])
@every_estimator
def test_lazy_frames_raise(which, estimator):
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"a": [1.0, 2.0, 4.0], "b": [3.0, 1.0, 2.0]})
    lazy = frame.lazy()
    X = {"alone": lazy, "first": [lazy, frame], "second": [frame, lazy]}
    of_whom = {"alone": "", "second": " for client 1"}.get(which, " (of|for) client 0")
    says = f"Expected a table .*{of_whom}, or .* of type LazyFrame"
    with pytest.raises(TypeError, match=says):
        clone(estimator).fit(X[which])
    fitted = clone(estimator).fit(frame)
    with pytest.raises(TypeError, match="of type LazyFrame"):
        getattr(fitted, "predict", fitted.transform)(X[which])
    if which in ("alone", "first") and hasattr(estimator, "partial_fit"):
        # Their columns are not read where there are no names to compare them with, either.
        for rows in (frame, frame.to_numpy()):
            with pytest.raises(TypeError, match=says):
                clone(estimator).fit(rows).partial_fit(X[which])


class ColumnsInAList:
    """A table whose ``columns`` are arrays, which have no hash."""

    def __init__(self, rows):
        self._rows = np.asarray(rows)
        self.shape = self._rows.shape

    @property
    def columns(self):
        return list(self._rows.T)

    def __array__(self, dtype=None, copy=None):
        return np.array(self._rows, dtype=dtype)


def arrow_table(frame):
    """A table of pyarrow or, where that is not installed, as much of one as is looked at."""
    try:
        import pyarrow
    except ImportError:
        has = {"__module__": "pyarrow.lib", "to_pandas": None}
        return type("Table", (ColumnsInAList,), has)(frame)
    return pyarrow.Table.from_pandas(frame)


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
def test_pyarrow_tables_raise(estimator, as_list):
    frame = pd.DataFrame({"a": [1.0, 2.0, 4.0], "b": [3.0, 1.0, 2.0]})
    table = arrow_table(frame)
    X, of_whom = ([frame, table], " for client 1") if as_list else (table, "")
    says = f"pandas or polars.{of_whom}, or .* of type Table"
    with pytest.raises(TypeError, match=says):
        clone(estimator).fit(X)
    with pytest.raises(TypeError, match="of type Table"):
        clone(estimator).fit(frame).transform(X)
    if hasattr(estimator, "partial_fit"):
        with pytest.raises(TypeError, match=says):
            clone(estimator).fit(frame).partial_fit(X)


def test_shorten():
    assert shorten(list("abcdefgh")) == "['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h']"
    assert shorten(list("abcdefghi")) == "['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', ...]"


# ---- unusual tables


@pytest.mark.parametrize(
    "tables",
    [
        [pd.DataFrame(CLIENTS[0]), *CLIENTS[1:]],
        [CLIENTS[0], *map(pd.DataFrame, CLIENTS[1:])],
        [pd.DataFrame(CLIENTS[0]), pd.DataFrame(CLIENTS[1], columns=[7, 8]), CLIENTS[2]],
    ],
    ids=["frame first", "array first", "several names"],
)
def test_other_column_names_than_strings_are_ignored(tables):
    # As for scikit-learn.
    gm = FederatedGaussianMixture(**GOOD).fit(tables)
    assert not hasattr(gm, "feature_names_in_")
    assert_array_equal(gm.means_, FITTED.means_)


def test_large_finite_values():
    want = FederatedGaussianMixture(**GOOD, reg_covar=0).fit(CLIENTS)
    # A power of two, so that nothing is rounded.
    gm = FederatedGaussianMixture(**GOOD, reg_covar=0).fit([c * 2.0**470 for c in CLIENTS])
    np.testing.assert_allclose(gm.means_, want.means_ * 2.0**470, rtol=1e-9)


def test_a_column_may_be_called_mask():
    # NumPy takes an attribute of this name for the mask of an array.
    table = pd.DataFrame(X, columns=["a", "_mask"])
    gm = FederatedGaussianMixture(**GOOD).fit(table, clients=OWNERS)
    assert_array_equal(gm.means_, FederatedGaussianMixture(**GOOD).fit(X, clients=OWNERS).means_)
    assert gm.predict([table, table])[0].shape == (N_SAMPLES,)
