"""Tables that are refused, by messages that name the client, and unusual ones that are not."""

import datetime

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from scipy import sparse
from sklearn.base import clone
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils import Bunch

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
from skfedem._input.tables import shorten
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
    "columns with one name": (
        frames(["a", "b"], ["a", "a"], ["a", "b"]),
        "different names for client 1.*got 'a' 2 times.*Rename",
    ),
    "columns with one name of the first": (
        frames(["b", "b"], ["b", "b"], ["b", "b"]),
        "different names for client 0.*got 'b' 2 times.*Rename",
    ),
    "columns with one name of one table": (
        frames(["b", "b"], ["b"], ["b"])[0],
        "Expected columns with different names, got 'b' 2 times.*Rename",
    ),
    "columns with one name, after another": (
        pd.DataFrame(np.eye(3), columns=["a", "b", "b"]),
        "Expected columns with different names, got 'b' 2 times.*Rename",
    ),
    "columns with one number": (
        frames([1999, 2000], [2000, 2000], [1999, 2000]),
        "different names for client 1, got 2000 2 times.*Rename",
    ),
    "columns with one number of one table": (
        frames([2000, 2000], [2000], [2000])[0],
        "Expected columns with different names, got 2000 2 times.*Rename",
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
    "a hole in a list": ([CLIENTS[0], None], "2-D.*client 1"),
    "an empty list in a list": ([CLIENTS[0], []], "client 1"),
    "strings": ([CLIENTS[0], np.array([["red", "green"]])], "numbers.*client 1.*Encode or drop"),
    "strings in one table": (np.array([["red", "2"], ["1", "3"]]), "numbers.*Encode or drop"),
    "dates": (
        [CLIENTS[0], np.array([["2020-01-01", "2020-01-02"]], dtype="M8[D]")],
        "Expected numbers.*client 1.*datetime64",
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
        "2 numbers in row 0 and 1 number in row 1 of the table of client 1.*same columns",
    ),
    "rows in rows": (
        [CLIENTS[0], [[1, [2, 3]], [4, 5]]],
        r"Expected a 2-D table for client 1: .*inhomogeneous [^.]*\. Give a list",
    ),
    "uneven rows of one table": (
        [[1.0, 2.0], [3.0, 4.0], [5.0]],
        "2 numbers in row 0 and 1 number in row 2.*every client a 2-D table",
    ),
    "vectors of several lengths": (
        [np.ones(2).tolist(), np.ones(3).tolist()],
        "2 numbers in row 0 and 3 numbers in row 1.*every client a 2-D table",
    ),
    "a vector and a table": ([np.ones(2), CLIENTS[1]], "2-D table .*client 0, got 1 dimension"),
    "a number among rows": ([[1.0, 2.0], 3.0], "a bare number in row 1"),
    "text beside what a mask hides": (
        np.ma.array([["blue", 1.0], ["red", 3.0]], dtype=object, mask=[[True, False], [False] * 2]),
        "Expected numbers: .*'red' in row 1, column 0. Encode or drop",
    ),
    "a list of tables in a list": (
        [CLIENTS[0], CLIENTS[1:]],
        "table of client 1.*tables or lists themselves.*client of its own",
    ),
    "an object array of tables in a list": (
        [CLIENTS[0], objects(CLIENTS)],
        "table of client 1.*tables or lists themselves.*client of its own",
    ),
    "an object array of tables": (objects(CLIENTS), r"object ndarray of shape \(3,\).*list\(X\)"),
    "a series of numbers": (pd.Series([1.0, 2.0]), "2D|2-dimensional.*Series|1D"),
    "a series of lists": (pd.Series([[1.0, 2.0], [3.0, 4.0]]), r"object Series.*list\(X\)"),
    "a dictionary in a list": ([CLIENTS[0], {"a": CLIENTS[1]}], "client 1.*a dict, .* not a table"),
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
    "one sparse Series": (pd.Series(pd.arrays.SparseArray([1.0, 2.0, 3.0])), "2-dim"),
    "a sparse Series": (
        [CLIENTS[0], pd.Series(pd.arrays.SparseArray([1.0, 2.0, 3.0]))],
        "2-D.*client 1",
    ),
}
NO_TABLES = {
    "a numpy.matrix": (
        [CLIENTS[0], CLIENTS[1].view(np.matrix)],
        "array or a DataFrame for client 1.*numpy.asarray",
    ),
    "a list of vectors": (
        [np.ones(3), np.zeros(3)],
        r"got a list of 1-D arrays.*values\.reshape\(-1, 1\).*numpy\.array\(X\) if each is a row",
    ),
    "the name of a file": ("data.csv", "got 'data.csv'.*read it first"),
    "nothing": (None, "got None.*a list with one for each client"),
    "a list of series": (
        [pd.Series([1.0, 2.0]), pd.Series([3.0, 4.0])],
        r"got a list of Series.*series\.to_frame\(\)",
    ),
    "columns named by strings and numbers": (
        [NAMED[0], NAMED[1].rename(columns={"a": 3})],
        r"column names of client 1.*strings.*\[3, 'b'\].*astype",
    ),
    "records": (
        NAMED[0].to_records(index=False),
        r"DataFrame, got records with the fields \['a', 'b'\].*structured_to_unstructured",
    ),
    "records in a list": (
        [table.to_records(index=False) for table in NAMED],
        r"DataFrame of client 0, got records .* \['a', 'b'\].*structured_to_unstructured",
    ),
    "records of one client": (
        [CLIENTS[0], NAMED[1].to_records(index=False)],
        "of client 1, got records.*structured_to_unstructured",
    ),
    "sparse": ([CLIENTS[0], sparse.csr_array(CLIENTS[1])], "dense.*client 1.*sparse.*toarray"),
    "a sparse DataFrame": (
        [pd.DataFrame(rows).astype(pd.SparseDtype(float)) for rows in CLIENTS],
        "dense.*client 0.*sparse.*sparse.to_dense",
    ),
    "one sparse DataFrame": (
        pd.DataFrame(X).astype(pd.SparseDtype(float, np.nan)),
        "dense table, got a sparse DataFrame.*sparse.to_dense",
    ),
    # Of one dimension, or one row where scipy < 1.13 has no others.
    "sparse vectors": (
        [sparse.coo_array(np.ones(3))] * 2,
        "dense table.*got a sparse coo_array.*toarray",
    ),
    "one sparse table": (sparse.csr_matrix(X), "[Ss]parse.*toarray"),
    "a dictionary": (dict(enumerate(CLIENTS)), r"list of tables.*got a dict.*list\(X.values\(\)\)"),
    "what a simulator gives": (
        Bunch(clients=CLIENTS, weights=[0.5, 0.5]),
        r"got a Bunch.*Give X\['clients'\]\.$",
    ),
}


@pytest.mark.parametrize(("tables", "says"), BAD_TABLES.values(), ids=BAD_TABLES)
def test_bad_tables(tables, says):
    check_refused(ValueError, says, tables)


@pytest.mark.parametrize(("tables", "says"), NO_TABLES.values(), ids=NO_TABLES)
def test_what_is_no_table(tables, says):
    check_refused(TypeError, says, tables)


def test_one_table_of_text_or_of_many_dimensions():
    for rows in ([["a", "b"], ["c", "d"]], [[1.0, "b"], [2.0, 3.0]]):
        with pytest.raises(ValueError, match="^Expected numbers: could not .* Encode or drop col"):
            FederatedGaussianMixture().fit(rows)
    with pytest.raises(ValueError, match=r"one array with 4 dimensions and shape .*\. Give a list"):
        FederatedGaussianMixture().fit(np.zeros((2, 3, 4, 5)))


@pytest.mark.parametrize("as_list", [False, True])
@every_estimator
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


def test_a_generator_is_refused_as_it_is():
    with pytest.raises(TypeError, match=r"got a generator. Give a list, as list\(X\)"):
        FederatedGaussianMixture().fit(client for client in CLIENTS)
    with pytest.raises(TypeError, match="got a dict_values. Give a list"):
        FederatedGaussianMixture().fit(dict(enumerate(CLIENTS)).values())


def test_a_frame_without_columns():
    check_refused(ValueError, ["at least one feature", "DataFrame without columns"], pd.DataFrame())


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
def test_times_of_polars_are_no_numbers(kind, estimator, as_list):
    # Beside numbers, NumPy has them as numbers: 2020 as the 18262nd day.
    polars = pytest.importorskip("polars")
    numbers = polars.DataFrame({"a": [1.0, 2.0, 4.0], "when": [3.0, 1.0, 2.0]})
    times = numbers.with_columns(when=polars.lit(7).cast(getattr(polars, kind)))
    of_whom = " in the table of client 1" if as_list else ""
    with pytest.raises(ValueError, match=f"Expected numbers{of_whom}, got dtype {kind}.*'when'"):
        clone(estimator).fit([numbers, times] if as_list else times)


@every_estimator
def test_objects_that_are_no_numbers_are_told_by_their_column(estimator):
    frame = pd.DataFrame({"a": [1.0, 2.0], "when": [datetime.date(2020, 1, day) for day in (1, 2)]})
    says = "Expected numbers.* 'datetime.date' in column 'when'"
    with pytest.raises(ValueError, match=says):
        clone(estimator).fit(frame)
    with pytest.raises(ValueError, match=says):
        clone(estimator).fit(frame.assign(when=[1.0, 2.0])).transform(frame)


@every_estimator
@pytest.mark.parametrize("kind", ["array", "list", "frame", "polars"])
@pytest.mark.parametrize(
    ("entry", "error", "says"),
    [
        ("dune", ValueError, "could not convert string to float: 'dune'"),
        (1j, TypeError, "float.. argument must be a string or a real number, not 'complex'"),
        ({}, TypeError, "float.. argument must be a string or a real number, not 'dict'"),
        (10**400, ValueError, "int too large to convert to float"),
    ],
)
def test_entries_that_are_no_numbers_are_told_by_their_place(estimator, kind, entry, error, says):
    table = np.array([[1.0, 2.0, 4.0], [3.0, entry, 5.0]], dtype=object)
    place = "in row 1, column 1"
    if kind == "list":
        table, error = table.tolist(), (TypeError, ValueError)
    elif kind != "array":
        table, error, place = pd.DataFrame(table, columns=list("abc")), ValueError, "in column 'b'"
    if kind == "polars":
        polars = pytest.importorskip("polars")
        table = polars.DataFrame(
            {name: polars.Series([*table[name]], dtype=polars.Object) for name in table}
        )
    with pytest.raises(error, match=f"^Expected numbers: {says} {place}. [EP].*ncode or drop"):
        clone(estimator).fit(table)
    says = f"numbers in the table of client 1: {says} {place}"
    with pytest.raises((TypeError, ValueError), match=says):
        clone(estimator).fit([np.ones((4, 3)), table])


@every_estimator
@pytest.mark.parametrize("time", [np.datetime64("2020-01-01", "ns"), np.timedelta64("NaT", "D")])
@pytest.mark.parametrize("number", [1.0, 1])
@pytest.mark.parametrize("as_list", [False, True])
def test_times_among_numbers_are_told_by_their_place(estimator, time, number, as_list):
    # NumPy would convert them, NaT to -9.2e18, and make durations of integers beside them.
    table = np.array([[number, number], [number, time]], dtype=object)
    table = table.tolist() if as_list else table
    says = f"argument must be .* not '{type(time).__name__}' in row 1, column 1"
    with pytest.raises((TypeError, ValueError), match=f"^Expected numbers: float.. {says}"):
        clone(estimator).fit(table)
    with pytest.raises((TypeError, ValueError), match=f"in the table of client 1: float.. {says}"):
        clone(estimator).fit([np.ones((4, 2)), table])


@every_estimator
@pytest.mark.parametrize("first", [0, 7, 8, 14])
def test_of_several_entries_the_first_is_told(estimator, first):
    table = np.ones((5, 3), dtype=object)
    table.flat[first:] = "x"
    place = f"'x' in row {first // 3}, column {first % 3}"
    with pytest.raises(ValueError, match=f"^Expected numbers: .*{place}[.]"):
        clone(estimator).fit(table)


@every_estimator
def test_columns_of_text_of_polars_are_told(estimator):
    polars = pytest.importorskip("polars")
    table = polars.DataFrame({"a": ["1", "2"], "site": ["dune", "bog"]})
    with pytest.raises(ValueError, match="^Expected numbers: .*'dune' in column 'site'. "):
        clone(estimator).fit(table)


@every_estimator
@pytest.mark.parametrize("as_list", [False, True])
def test_complex_numbers_and_raw_memory_are_told_by_their_type(estimator, as_list):
    whose = " in the table of client 0" if as_list else ""
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


def test_a_wrong_number_of_columns_is_told_before_their_missing_numbers():
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
def test_the_first_of_many_columns_that_differs_is_told(columns, says):
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


def test_the_first_bad_number_is_named_for_every_client():
    for client in range(3):
        for row, column in [(0, 0), (len(CLIENTS[client]) - 1, 1)]:
            tables = with_value(np.nan, client, row, column)
            says = f"row {row}, column {column} of client {client}"
            check_refused(ValueError, says, tables)


def test_a_bad_number_is_found_among_many():
    # As many numbers as are checked at once, and some more.
    rows = np.zeros((2**18 + 5, 2))
    rows[[2**17 + 1, 2**18 + 3], 1] = np.nan
    check_refused(ValueError, "row 131073, column 1\\.", rows)
    rows[2**17 + 1, 1] = 1e150  # which is not too large
    rows[2**17 + 2, 0] = 1.1e150
    check_refused(ValueError, [r"at most 1e\+150", "row 131074, column 0:"], rows)


# ---- other libraries' tables


@pytest.mark.parametrize("which", ["alone", "first", "second", "both"])
@every_estimator
def test_lazy_frames_are_to_be_collected(which, estimator):
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"a": [1.0, 2.0, 4.0], "b": [3.0, 1.0, 2.0]})
    lazy = frame.lazy()
    X = {"alone": lazy, "first": [lazy, frame], "second": [frame, lazy], "both": [lazy, lazy]}
    of_whom = {"alone": "", "second": " of client 1"}.get(which, " of client 0")
    says = f"Expected a table{of_whom}, got a LazyFrame, .*collect"
    with pytest.raises(TypeError, match=says):
        clone(estimator).fit(X[which])
    fitted = clone(estimator).fit(frame)
    with pytest.raises(TypeError, match="got a LazyFrame, .*collect"):
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
        self.columns = list(self._rows.T)
        self.shape = self._rows.shape

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
def test_tables_of_pyarrow_are_to_be_converted(estimator, as_list):
    frame = pd.DataFrame({"a": [1.0, 2.0, 4.0], "b": [3.0, 1.0, 2.0]})
    table = arrow_table(frame)
    X, of_whom = ([frame, table], " (of|for) client 1") if as_list else (table, "")
    says = f"pandas or polars{of_whom}, got a pyarrow Table. .*to_pandas"
    with pytest.raises(TypeError, match=says):
        clone(estimator).fit(X)
    with pytest.raises(TypeError, match="got a pyarrow Table. .*to_pandas"):
        clone(estimator).fit(frame).transform(X)
    if hasattr(estimator, "partial_fit"):
        with pytest.raises(TypeError, match=says):
            clone(estimator).fit(frame).partial_fit(X)


@pytest.mark.parametrize("method", ["to_pandas", "toPandas", "df"])
def test_tables_of_databases_are_to_be_converted(method):
    kind = type("Relation", (), {"__module__": "base.tables", "columns": ["a"], method: None})
    says = f"or polars{{}}, got a base Relation. .* its {method} method"
    with pytest.raises(TypeError, match=says.format("")):
        FederatedGaussianMixture().fit(kind())
    with pytest.raises(TypeError, match=says.format(" of client 1")):
        FederatedGaussianMixture().fit([CLIENTS[0], kind()])
    with pytest.raises(TypeError, match=says.format("")):
        FITTED.predict(kind())


def test_of_many_names_eight_are_told():
    assert shorten(list("abcdefgh")) == "['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h']"
    assert shorten(list("abcdefghi")) == "['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', ...]"


# ---- unusual tables


def test_columns_that_are_no_names():
    tables = [ColumnsInAList(rows) for rows in CLIENTS]
    gm = FederatedGaussianMixture(2, random_state=0)
    assert_array_equal(gm.fit(tables).means_, clone(gm).fit(CLIENTS).means_)
    assert_array_equal(
        gm.partial_fit(tables).means_, clone(gm).fit(CLIENTS).partial_fit(CLIENTS).means_
    )


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


def test_large_numbers_that_can_be_squared_are_rows():
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
