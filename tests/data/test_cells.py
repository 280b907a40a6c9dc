import copy
import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import check_is_fitted

from skfedem import FederatedMatrixImputer
from skfedem._data import cells as cells_module
from skfedem._data import observations
from skfedem._data.cells import read_cells, read_matrix
from skfedem._data.tables import is_client_list
from skfedem.models.matrix.families import BERNOULLI, GAUSSIAN, POISSON

NAN = np.nan
SHAPE = (4, 3)
SITES, MONTHS = ["dune", "fen", "isle", "marsh"], ["may", "june", "july"]
# Client 1 has nothing, 0 and 2 share the cell (3, 2).
MATRICES = [
    np.array([[NAN, 2, NAN], [0, NAN, NAN], [NAN, NAN, NAN], [NAN, NAN, 5]]),
    np.full(SHAPE, NAN),
    np.array([[1, NAN, NAN], [NAN, NAN, NAN], [NAN, 0, 7], [NAN, NAN, 3.0]]),
]
ROWS, COLUMNS = [0, 1, 3, 0, 2, 2, 3], [1, 0, 2, 0, 1, 2, 2]
VALUES, OFFSETS = [2.0, 0, 5, 1, 0, 7, 3], [0, 3, 3, 7]
FORMATS = ["coo", "csr", "csc", "lil", "dok"]


def cells_of(X, clients=None, *, family=POISSON, shape=None, estimator=None, **options):
    estimator = (estimator or FederatedMatrixImputer()).set_params(effects="none", **options)
    return read_cells(estimator, X, clients, shape=shape, family=family)


def triplets_of(matrix):
    rows, columns = np.nonzero(~np.isnan(matrix))
    return np.column_stack([rows, columns, matrix[rows, columns]])


def sparse_of(matrix, kind=sparse.coo_array):
    rows, columns, values = triplets_of(matrix).T
    return kind((values, (rows.astype(np.int32), columns.astype(np.int32))), shape=matrix.shape)


def frozen(X):
    """The same in memory that cannot be written to, as far as it is arrays."""
    for table in X if isinstance(X, list | tuple) else [X]:
        arrays = [table]
        if sparse.issparse(table) and hasattr(table, "data"):
            arrays = [getattr(table, name, None) for name in ("data", "row", "col", "indices")]
        elif isinstance(table, pd.DataFrame):
            arrays = [table.to_numpy()]
        for array in arrays:
            if isinstance(array, np.ndarray):
                array.flags.writeable = False
    return X


def frames_of(matrices, sites=SITES, months=MONTHS):
    return [pd.DataFrame(matrix, index=sites, columns=months) for matrix in matrices]


def assert_same(got, want):
    for name in want._fields:
        one, other = getattr(got, name), getattr(want, name)
        if one is None or other is None:
            assert one is other, name
        else:
            assert_array_equal(one, other, err_msg=name)
        assert getattr(one, "dtype", None) == getattr(other, "dtype", None), name


def check_refused(error, says, X, clients=None, **options):
    kept = copy.deepcopy((X, clients))
    with pytest.raises(error) as caught:
        cells_of(X, clients, **options)
    np.testing.assert_equal(repr((X, clients)), repr(kept))
    message = str(caught.value)
    for fragment in [says] if isinstance(says, str) else says:
        assert re.search(fragment, message), f"{fragment!r} is not in {message!r}"
    assert "  " not in message
    assert message == message.strip()
    assert "np." not in message
    assert message.count("Expected ") <= 1


# ------------------------------------------------------------------ one federation, many forms

OF_MATRICES = {
    "arrays": list(MATRICES),
    "a tuple": tuple(MATRICES),
    "float32": [matrix.astype(np.float32) for matrix in MATRICES],
    "columns first in memory": [np.asfortranarray(matrix) for matrix in MATRICES],
    "lists": [matrix.tolist() for matrix in MATRICES],
    "objects with None": [np.where(np.isnan(m), None, m.astype(object)) for m in MATRICES],
    "frames": frames_of(MATRICES),
    "numbered frames": [pd.DataFrame(matrix) for matrix in MATRICES],
    "a frame that numbers and arrays": [pd.DataFrame(MATRICES[0]), *MATRICES[1:]],
    "frames of nullable integers": [frame.astype("Int64") for frame in frames_of(MATRICES)],
    "frames of objects with NA": [
        frame.astype(object).where(frame.notna(), pd.NA) for frame in frames_of(MATRICES)
    ],
    "masked arrays": [np.ma.masked_array(np.nan_to_num(m), np.isnan(m)) for m in MATRICES],
    "one 3-D array": np.stack(MATRICES),
    "3-D arrays of one observer": [matrix[None] for matrix in MATRICES],
    **{name: [sparse_of(m).asformat(name) for m in MATRICES] for name in FORMATS},
    "sparse matrices": [sparse_of(matrix, sparse.coo_matrix).tocsr() for matrix in MATRICES],
    "sparse integers": [sparse_of(matrix).astype(np.int16) for matrix in MATRICES],
    "a mix": [MATRICES[0], sparse_of(MATRICES[1]).tocsc(), MATRICES[2][None]],
}
OF_TRIPLETS = {
    "triplets": [triplets_of(matrix) for matrix in MATRICES],
    "integer triplets": [triplets_of(matrix).astype(np.int64) for matrix in MATRICES],
    "triplets in a list": [
        triplets_of(MATRICES[0]).tolist(),
        np.empty((0, 3)),
        triplets_of(MATRICES[2]),
    ],
    "triplets backwards": [triplets_of(matrix)[::-1] for matrix in MATRICES],
    "triplets in frames": [
        pd.DataFrame(triplets_of(m), columns=["site", "month", "count"]) for m in MATRICES
    ],
    "triplets and matrices": [triplets_of(MATRICES[0]), sparse_of(MATRICES[1]), MATRICES[2][None]],
}
FORMS = {name: (X, {}) for name, X in OF_MATRICES.items()}
FORMS |= {name: (X, {"shape": SHAPE}) for name, X in OF_TRIPLETS.items()}
FORMS |= {
    "sparse blocks of single entries": (
        [sparse_of(m, sparse.csr_array).tobsr(blocksize=(1, 1)) for m in MATRICES],
        {},
    ),
    "-1 for missing": ([np.nan_to_num(m, nan=-1) for m in MATRICES], {"missing_values": -1}),
    "-1 among integers": (
        [np.nan_to_num(m, nan=-1).astype(np.int8) for m in MATRICES],
        {"missing_values": -1.0},
    ),
    "None for missing": (list(MATRICES), {"missing_values": None}),
    "1e20 in float32": (
        [np.nan_to_num(m, nan=1e20).astype(np.float32) for m in MATRICES],
        {"missing_values": 1e20},
    ),
    "-999.9 in frames of both precisions": (
        [
            pd.DataFrame(np.nan_to_num(m, nan=-999.9)).astype({0: np.float32, 1: np.float32})
            for m in MATRICES
        ],
        {"missing_values": -999.9},
    ),
    "the lowest double for missing": (
        [np.nan_to_num(m, nan=-1.7976931348623157e308) for m in MATRICES],
        {"missing_values": -1.7976931348623157e308},
    ),
    "infinity for missing": (
        [np.nan_to_num(m, nan=np.inf) for m in MATRICES],
        {"missing_values": np.inf},
    ),
}


@pytest.mark.parametrize(("X", "options"), FORMS.values(), ids=list(FORMS))
def test_every_form_gives_the_same_cells(X, options):
    estimator = FederatedMatrixImputer()
    data = cells_of(frozen(X), estimator=estimator, **options)
    assert_array_equal(data.rows, ROWS)
    assert_array_equal(data.columns, COLUMNS)
    assert_array_equal(data.values, VALUES)
    assert_array_equal(data.counts, np.ones(7))
    assert_array_equal(data.offsets, OFFSETS)
    # log 1/y!, by hand.
    assert_allclose(data.log_base_measure, [-np.log(240), 0, -np.log(5040 * 6)], rtol=1e-14)
    assert_array_equal(data.ids, [0, 1, 2])
    assert data.shape == SHAPE
    assert data.row_offsets is None
    assert [getattr(data, name).dtype for name in data._fields[:6]] == [
        np.int32, np.int32, np.float64, np.float64, np.intp, np.float64,
    ]  # fmt: skip
    assert estimator.n_features_in_ == SHAPE[1]
    named = isinstance(X, list) and hasattr(X[0], "columns") and "shape" not in options
    if named and isinstance(X[0].columns[0], str):
        assert list(estimator.feature_names_in_) == MONTHS
    else:
        assert not hasattr(estimator, "feature_names_in_")


def test_disjoint_rows_are_numbered_consecutively():
    data = cells_of([MATRICES[0], MATRICES[2][:3]], rows="disjoint")
    assert data.shape == (7, 3)
    assert_array_equal(data.row_offsets, [0, 4, 7])
    assert_array_equal(data.rows, [0, 1, 3, 4, 6, 6])
    assert_array_equal(data.columns, COLUMNS[:6])
    assert_array_equal(data.offsets, [0, 3, 6])
    frames = frames_of(MATRICES[:1]) + frames_of([MATRICES[2][:3]], ["a", "b", "c"])
    assert_same(cells_of(frames, rows="disjoint"), data)
    sparse_ones = [sparse_of(MATRICES[0]).tocsr(), sparse_of(MATRICES[2][:3])]
    assert_same(cells_of(sparse_ones, rows="disjoint"), data)


@pytest.mark.parametrize("as_given", [np.asarray, pd.DataFrame, sparse_of, np.ndarray.tolist])
def test_rows_of_one_table_stay_where_they_are(as_given):
    table = np.array([[1, NAN], [NAN, 2], [3, 4], [NAN, NAN], [5, NAN]])
    data = cells_of(as_given(table), ["oak", "ash", "oak", "elm", "ash"])
    assert_array_equal(data.ids, ["ash", "elm", "oak"])
    assert_array_equal(data.offsets, [0, 2, 2, 5])
    assert_array_equal(data.rows, [1, 4, 0, 2, 2])
    assert_array_equal(data.columns, [1, 0, 0, 0, 1])
    assert_array_equal(data.values, [2, 5, 1, 3, 4])
    assert data.shape == (5, 2)
    alone = cells_of(as_given(table))
    assert_array_equal(alone.offsets, [0, 5])
    assert_array_equal(alone.ids, [0])
    assert_array_equal(alone.rows, [0, 1, 2, 2, 4])
    assert_array_equal(alone.values, [1, 2, 3, 4, 5])


def test_observations_of_one_cell_all_count():
    triplets = np.array([[3, 2, 5], [0, 1, 2], [3, 2, 0], [0, 0, 9], [3, 2, 1]])
    rows, columns, values = triplets.T
    coo = sparse.coo_array((values, (rows, columns)), shape=SHAPE)
    starts = np.searchsorted(np.sort(rows), np.arange(5))
    by_row = triplets[np.argsort(rows, kind="stable")]
    csr = sparse.csr_matrix((by_row[:, 2], by_row[:, 1], starts), shape=SHAPE)
    observers = np.full((3, *SHAPE), NAN)
    observers[[0, 1, 1, 0, 2], rows, columns] = values
    for client in (triplets, coo, csr, observers):
        data = cells_of([client, client], shape=SHAPE)
        assert_array_equal(data.rows, [0, 0, 3] * 2)
        assert_array_equal(data.columns, [0, 1, 2] * 2)
        assert_array_equal(data.values, [9, 2, 2] * 2)
        assert_array_equal(data.counts, [1, 1, 3] * 2)
        assert_array_equal(data.offsets, [0, 3, 6])
        # log 1/5! + 1/2! + 1/0! + 1/9! + 1/1!: of the observations, not of their means.
        assert_allclose(data.log_base_measure, [-np.log(120 * 2 * 362880)] * 2, rtol=1e-14)
    assert len(coo.data) == len(csr.data) == 5


def test_a_huge_matrix_is_never_built():
    shape = (2**31 - 1, 2**31 - 1)
    last = np.array([[2**31 - 2, 2**31 - 2, 1], [0, 0, 4], [2**31 - 2, 2**31 - 2, 2]])
    data = cells_of([last, last[:0], last, last], shape=shape)
    assert_array_equal(data.rows, [0, 2**31 - 2] * 3)
    assert_array_equal(data.columns, [0, 2**31 - 2] * 3)
    assert_array_equal(data.values, [4, 1.5] * 3)
    assert_array_equal(data.offsets, [0, 2, 2, 4, 6])
    rows, columns, values = last.T
    # Products of SciPy's indices, 32-bit integers where these fit, would not fit.
    indices = rows.astype(np.int32), columns.astype(np.int32)
    one = cells_of(sparse.coo_array((values, indices), shape=shape))
    assert_array_equal(one.rows, [0, 2**31 - 2])
    assert_array_equal(one.columns, [0, 2**31 - 2])
    says = ["at most 2147483647 rows", r"\(2147483648, 3\)"]
    check_refused(ValueError, says, sparse.coo_array((2**31, 3)))
    check_refused(ValueError, says, [last], shape=(2**31, 3))


def test_cells_do_not_depend_on_the_order_of_triplets():
    rng = np.random.default_rng(0)
    triplets = np.column_stack([np.argwhere(np.ones((20, 10))), rng.normal(size=200)])
    shuffled = triplets[rng.permutation(200)]
    want, got = (cells_of([own], shape=(20, 10), family=GAUSSIAN) for own in (triplets, shuffled))
    assert_allclose(got.sums, want.sums, rtol=1e-12)  # they are rounded in the order of rows
    assert_same(got._replace(sums=want.sums), want)


def test_cells_do_not_depend_on_blocks(monkeypatch):
    rng = np.random.default_rng(0)
    clients = [
        np.column_stack([rng.integers(4, size=n), rng.integers(3, size=n), rng.poisson(2, size=n)])
        for n in rng.integers(0, 12, size=30)
    ]
    want = cells_of(clients, shape=SHAPE)
    for block in (1, 7, 40):
        for module in (observations, cells_module):
            monkeypatch.setattr(module, "_BLOCK", block)
        assert_same(cells_of(clients, shape=SHAPE), want)
    for row, bad in enumerate(([[4, 0, 1], [0, 0, 1]], [[0, 0, 1], [4, 0, 1]])):
        clients[20] = np.array(bad)
        says = f"got 4.0 in triplet {row} of client 20"
        check_refused(ValueError, says, clients, shape=SHAPE)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_triplets_sparse_and_dense_agree(data):
    family = data.draw(st.sampled_from([GAUSSIAN, BERNOULLI, POISSON]), "family")
    value = {
        "gaussian": st.floats(-1e6, 1e6),
        "bernoulli": st.integers(0, 1),
        "poisson": st.integers(0, 10**6),
    }[family.name]
    n_rows, n_columns = data.draw(st.tuples(st.integers(1, 5), st.integers(1, 5)), "shape")
    cell = st.tuples(st.integers(0, n_rows - 1), st.integers(0, n_columns - 1), value)
    lists = data.draw(st.lists(st.lists(cell, max_size=12), min_size=1, max_size=5), "clients")
    triplets = [np.array(cells, dtype=float).reshape(-1, 3) for cells in lists]
    seen = {(k, *map(int, cell[:2])): [] for k, own in enumerate(triplets) for cell in own}
    for k, own in enumerate(triplets):
        for row, column, number in own:
            seen[k, int(row), int(column)].append(number)
    if not seen:
        check_refused(ValueError, "at least one observed", triplets, shape=(n_rows, n_columns))
        return

    shape = (n_rows, n_columns)
    stored, dense = [], []
    for own in triplets:
        rows, columns = own[:, :2].T.astype(np.int32)
        stored.append(sparse.coo_matrix((own[:, 2], (rows, columns)), shape=shape))
        observers = np.full((max(len(own), 1), *shape), NAN)
        observers[np.arange(len(own)), rows, columns] = own[:, 2]
        dense.append(observers)
    got = cells_of(triplets, shape=shape, family=family)
    assert_same(cells_of(stored, family=family), got)
    assert_same(cells_of(dense, family=family), got)

    order = sorted(seen)
    assert_array_equal(
        np.repeat(np.arange(len(lists)), np.diff(got.offsets)), [c[0] for c in order]
    )
    assert_array_equal(got.rows, [c[1] for c in order])
    assert_array_equal(got.columns, [c[2] for c in order])
    assert_array_equal(got.counts, [len(seen[c]) for c in order])
    # A dozen additions of numbers up to 1e6.
    assert_allclose(got.values, [np.mean(seen[c]) for c in order], rtol=1e-13, atol=1e-8)
    base = [family.log_base_measure(own[:, 2]).sum() for own in triplets]
    assert_allclose(got.log_base_measure, base, rtol=1e-13)

    if max(map(len, seen.values())) == 1:
        matrices = [observers[0].copy() for observers in dense]
        for k, row, column in order:
            matrices[k][row, column] = seen[k, row, column][0]
        assert_same(cells_of(matrices, family=family), got)
        stacked = cells_of(matrices, rows="disjoint", family=family)
        labels = np.repeat(np.arange(len(lists)), n_rows)
        labelled = cells_of(np.concatenate(matrices), labels, family=family)
        assert_same(labelled, stacked._replace(row_offsets=None))


# ------------------------------------------------------------------ refused


def put(value, client=2, row=3, column=0):
    matrices = [matrix.copy() for matrix in MATRICES]
    matrices[client][row, column] = value
    return matrices


def put_triplet(*triplet):
    return [triplets_of(MATRICES[0]), np.array([[0, 0, 1.0], triplet])]


def case(X, says, **options):
    """A case of what is refused: the data, how they are read, and what the message says."""
    return X, options, says


SIZED = {"shape": SHAPE}
REORDERED = frames_of(MATRICES[:1]) + frames_of(MATRICES[1:2], ["dune", "isle", "fen", "marsh"])
BAD = {
    "infinity": case(put(np.inf), "finite.*got inf in row 3, column 0 of client 2.*mark"),
    "infinity in a frame": case(
        frames_of(put(-np.inf)),
        r"infinity.*got -inf in row 3 \('marsh'\), column 0 \('may'\) of client 2",
    ),
    "infinity in an observer": case([put(np.inf)[2][None]], "row 3, column 0 of cli"),
    "a period": case(
        [pd.DataFrame(put(-1)[2], columns=pd.period_range("2020-05", periods=3, freq="M"))],
        r"row 3, column 0 \(2020-05\) of client 0",
    ),
    "own rows": case(put(-1), "got .* in row 3, column 0 of client 2", rows="disjoint"),
    "negative counts": case(
        put(-3), "non-negative integers.*'poisson'.*got .* in row 3, column 0 of client 2"
    ),
    "broken counts": case(
        put(2.5), "non-negative integers.*got 2.5 in row 3, column 0 of client 2"
    ),
    "the marker unsaid": case(
        put(-99999999), "got -99999999.0 in row 3.*or give missing_values if"
    ),
    "no presence": case(
        [np.where(m > 1, 2, m) for m in MATRICES],
        r"Expected 0 or 1.*got 2.0 in row 0, column 1 of client 0",
        family=BERNOULLI,
    ),
    "huge": case(
        put(-1e151),
        r"at most 1e\+150.*got -1e\+151 in row 3, column 0 of client 2.*Rescale",
        family=GAUSSIAN,
    ),
    "a stored NaN": case(
        [sparse_of(MATRICES[0]), sparse.csr_array(put(NAN)[1][:, :3])],
        "NaN.*row 0, column 0 of client 1.*leave them out of sparse",
    ),
    "NaN in a triplet": case(
        put_triplet(3, 2, NAN), "NaN.*got nan in site 3, month 2 of client 1.*triplets", **SIZED
    ),
    "NaN beside a marker": case(
        put(NAN), "NaN.*row 0, column 0 of client 0.*by missing_values only", missing_values=-1
    ),
    "a stored marker": case(
        [sparse_of(matrix) for matrix in put(-1)],
        "missing_values.*got -1.0 in row 3, column 0 of client 2",
        missing_values=-1,
        family=GAUSSIAN,
    ),
    "other rows": case(
        [MATRICES[0], MATRICES[1][:2]],
        r"4 rows.*client 0.*got 2 for client 1 \(shape \(2, 3\)\).*'disjoint'.*shape=",
    ),
    "triplets without a shape": case(
        [triplets_of(MATRICES[0]), triplets_of(MATRICES[2])],
        r"3 rows.*got 4 for client 1.*shape=\(sites, months\) with triplets",
    ),
    "other columns": case(
        [MATRICES[0], MATRICES[1][:, :1]],
        r"3 columns.*got 1 for client 1.*\(4, 1\)",
        rows="disjoint",
    ),
    "no rows": case([MATRICES[0], MATRICES[1][:0]], r"one row.*client 1 \(shape \(0, 3\)\)"),
    "no observers": case([MATRICES[0][None][:0]], r"one row.*\(0, 4, 3\)"),
    "other sites": case(
        REORDERED,
        "row labels.*'fen' for row 1.*got 'isle' for client 1.*same labels.*disjoint",
    ),
    "a site without a label": case(
        frames_of(MATRICES[:1], pd.Index([pd.NA, *SITES[1:]], dtype=object))
        + frames_of(MATRICES[1:2]),
        "row labels.*<NA> for row 0.*got 'dune' for client 1.*same labels.*disjoint",
    ),
    "other years": case(
        frames_of(MATRICES[:1], SITES, [2001, 2002, 2003])
        + frames_of(MATRICES[1:2], SITES, [2001, 2002, 2004]),
        "column labels.*2003 for column 2.*got 2004 for client 1.*Give DataFrames",
    ),
    "other months": case(
        frames_of(MATRICES[:1]) + frames_of(MATRICES[1:2], SITES, ["may", "june", "june"]),
        "column labels.*'july' for column 2.*got 'june' for client 1.*Give DataFrames",
        rows="disjoint",
    ),
    "frames and arrays": case(
        [MATRICES[0], *frames_of(MATRICES[1:])],
        r"no row labels for.*client 0.*got row labels from 'dune' for client 1.*rows=.disjoint.",
    ),
    "rows numbered from 0 and in another order": case(
        frames_of(MATRICES[:1], None) + frames_of(MATRICES[1:2], [1, 0, 2, 3]),
        r"no row labels for every.*got row labels from 1 for client 1",
    ),
    "a site too many": case(
        put_triplet(4, 0, 1),
        "site numbers .* integers from 0 to 3.*got 4.0 in triplet 1 of client 1.*larger shape",
        **SIZED,
    ),
    "a negative month": case(put_triplet(0, -1, 1), "month.*got -1.0 in tri", **SIZED),
    "half a site": case(put_triplet(0.5, 0, 1), "site.*got 0.5 in triplet 1", **SIZED),
    "no month": case(put_triplet(0, NAN, 1), "month.*got nan in triplet 1", **SIZED),
    "four numbers": case(
        [np.zeros((2, 3)), np.zeros((2, 4))],
        r"triplets .* \(n, 3\) for client 1.*shape \(2, 4\).*Fit without `shape`",
        **SIZED,
    ),
    "another sparse shape": case(
        [np.zeros((2, 3)), sparse.coo_array((3, 4))],
        r"shape \(4, 3\) for client 1, got \(3, 4\)",
        **SIZED,
    ),
    "shape of halves": case(MATRICES, r"integers.*2\.5\)", shape=(4, 2.5)),
    "shape of switches": case(MATRICES, r"integers.*\(True, 3\)", shape=(True, 3)),
    "an empty shape": case(MATRICES, "two integers >= 1", shape=(0, 3)),
    "shape and own rows": case(MATRICES, "rows='shared'.*different row", **SIZED, rows="disjoint"),
    "shape and one matrix": case(MATRICES[0], "site numbers .* got nan in triplet 0", **SIZED),
    "unknown rows": case(MATRICES, "'shared', 'disjoint'.*'own'", rows="own"),
    "nothing": case([], "at least one client.*empty list"),
    "nothing observed": case(
        [MATRICES[1]] * 2, "one observed cell.*none from 2 clients.*missing_values"
    ),
    "nothing observed in one": case(MATRICES[1], "one observed cell.*1 client:"),
    "labels and a list": case(MATRICES, "clients=None.*both", clients=[0, 1, 2]),
    "labels and observers": case(np.stack(MATRICES), "clients=None.*both", clients=[0, 1, 2]),
    "too few labels": case(MATRICES[0], "one label for each of the 4 rows", clients=["a", "b"]),
    "a missing label": case(
        MATRICES[0], "label.*missing one at row 1", clients=["a", None, "b", "a"]
    ),
    "a bad cell of a label": case(
        put(-1)[2], "got -1.0 in row 3, column 0 of client 'a'", clients=["b", "a", "b", "a"]
    ),
    "a bad cell of one": case(put(-1)[2], "row 3, column 0. Correct"),
    "a bad cell of one frame": case(
        frames_of(put(-1))[2], r"row 3 \('marsh'\), column 0 \('may'\). Correct"
    ),
    "words": case([MATRICES[0], [["a", "b"]]], "numbers.*client 1.*Encode"),
    "dates": case(
        [MATRICES[0], np.array([["2020-05"]], dtype="M8[M]")],
        "numbers for client 1.*datetime64",
    ),
    "months that are dates": case(
        pd.DataFrame({"site": [0], "month": pd.to_datetime(["2020-05"]), "count": [1]}),
        "datetime64.* in column 'month'. .*number sites and months from 0",
    ),
    "months of a client that are dates": case(
        [pd.DataFrame({"site": [0], "month": pd.to_datetime(["2020-05"]), "count": [1]})],
        "client 0, got .* in column 'month'. .*number sites and months from 0",
        shape=(1, 1),
    ),
    "words as objects": case(
        [np.array([["a", 1.0]], dtype=object)],
        "numbers for client 0: .*'a'. Put .*set_index",
    ),
    "a column of names": case(
        frames_of(MATRICES, range(4))[0].assign(site=SITES),
        "Expected numbers: could not convert .*'dune' in column 'site'. .*index of a DataFrame "
        r"\(set_index\)",
    ),
    "a word in a cell": case(
        np.array([[1, "X"], [None, 2]], dtype=object),
        "Expected numbers: could not convert .*'X'. Put .*Encode or drop",
    ),
    "one table of words": case(np.array([["a"]]), "numbers.*Encode"),
    "complex": case([MATRICES[0] + 0j], "Complex data not supported.*client 0"),
    "sparse complex": case([sparse_of(MATRICES[0]) * 1j], "Complex data not supported.*client 0"),
    "a marker that no float holds": case(
        MATRICES[0],
        "missing_values to be a number that fits in a float, got 1000",
        missing_values=10**400,
    ),
    "one dimension": case(np.zeros(3), "Expected 2D array, got 1D"),
    "tables in a table": case([MATRICES[0], MATRICES], "table for client 1, got a list of 3"),
    "four dimensions": case([np.zeros((1, 1, 1, 1))], "2-D or 3-D.*client 0"),
}
NO_CELLS = {
    "names and numbers": case(
        frames_of(MATRICES, months=["may", "june", 7]), "column names of client 0.*strings"
    ),
    "a shape of three": case(MATRICES, r"two integers.*3, 2\)", shape=(4, 3, 2)),
    "shape 5": case(MATRICES, "two integers.*got 5", shape=5),
    "a marker that is a word": case(
        MATRICES, "missing_values to be a number.*'NA'.*str", missing_values="NA"
    ),
    "a marker that is a switch": case(
        MATRICES, "missing_values to be a number.*True.*bool", missing_values=True
    ),
    "a marker in an array": case(
        MATRICES, "missing_values to be a number.*ndarray", missing_values=np.array([-1, -2])
    ),
    "diagonals": case(
        [sparse.dia_array((np.ones((1, 3)), [0]), shape=(3, 3))],
        "single entries for client 0.*dia_array, whose padding",
    ),
    "blocks": case(sparse.bsr_matrix(np.ones((4, 4)), blocksize=(2, 2)), "bsr_matrix, whose pad"),
    "a hole": case([MATRICES[0], None], "for client 1, .* got None of type NoneType"),
    "a dictionary": case(dict(enumerate(MATRICES)), "of type dict"),
}


# In scipy 1.11 the repr of a dia_array warns of its own code.
@pytest.mark.filterwarnings("ignore:`getformat` is deprecated:DeprecationWarning")
@pytest.mark.parametrize(("X", "options", "says"), NO_CELLS.values(), ids=NO_CELLS)
def test_invalid_types_of_matrices(X, options, says):
    check_refused(TypeError, says, X, **options)


@pytest.mark.parametrize(("X", "options", "says"), BAD.values(), ids=BAD)
def test_invalid_matrices(X, options, says):
    check_refused(ValueError, says, X, **options)


def test_the_largest_numbers_are_allowed():
    assert_array_equal(cells_of([[1e150, -1e150]], family=GAUSSIAN).values, [1e150, -1e150])
    says = r"at most 1e\+150 in size, got 1.01e\+150"
    check_refused(ValueError, says, [[1.0, 1.01e150]], family=GAUSSIAN)


def test_words_of_polars_are_refused():
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"site": SITES, "may": [1, 2, 3, 4]})
    check_refused(ValueError, r"^Expected numbers: could .*'dune' in column 'site'\. ", frame)


def test_a_sparse_cube_is_refused():
    try:
        cube = sparse.coo_array(np.ones((2, 2, 2)))
    except (TypeError, ValueError):  # scipy 1.14 raises the latter
        pytest.skip("scipy < 1.15 has no such thing")
    check_refused(ValueError, ["2-D sparse matrix, got 3 dimensions"], cube)


@pytest.mark.parametrize("marker, datum", [(99999999, 1e8), (16777217, 16777216.0), (1e-50, 0.0)])
def test_float32_value_of_a_marker_may_be_data(marker, datum):
    assert np.float32(marker) == datum
    table = np.array([[datum, 1.0], [marker, 2.0]])
    data = cells_of([table], missing_values=marker)
    assert_array_equal(data.values, [datum, 1.0, 2.0])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_marker_is_rounded_as_the_cells_are(dtype):
    table = np.array([[3.0, -999.9], [4.0, 5.0]], dtype=dtype)
    for X in (table, [table]):
        assert_array_equal(cells_of(X, missing_values=-999.9).values, [3.0, 4.0, 5.0])


def test_functions_as_tables_raise():
    check_refused(TypeError, "Expected a table .* for client 1", [MATRICES[0], len])
    check_refused(TypeError, "Expected a table .*, got <built-in function len>", len)


def test_markers_are_not_wrapped_to_integers():
    given = np.array([[255, 1], [2, 3]], dtype=np.uint8)
    data = cells_of([given], missing_values=-1)
    assert_array_equal(data.values, [255, 1, 2, 3])


def test_missing_cells_raise_no_warnings_in_float32():
    single = [matrix.astype(np.float32) for matrix in MATRICES]
    assert_array_equal(cells_of(single, missing_values=NAN).values, VALUES)
    check_refused(ValueError, "NaN", single, missing_values=1e300)


def test_is_client_list():
    for clients in ([], MATRICES, tuple(MATRICES), [sparse_of(MATRICES[0])], [np.zeros((1, 2, 3))]):
        assert is_client_list(clients)
    for table in (MATRICES[0], MATRICES[0].tolist(), np.stack(MATRICES), sparse_of(MATRICES[0])):
        assert not is_client_list(table)


# ------------------------------------------------------------------ one table, after a fit


class ColumnMeans(TransformerMixin, BaseEstimator):
    """The least that uses both checks, so that scikit-learn can check them."""

    rows, effects = "shared", "none"

    def __init__(self, missing_values=NAN):
        self.missing_values = missing_values

    def fit(self, X, y=None, clients=None):
        checked = clone(self)
        data = read_cells(checked, X, clients, family=GAUSSIAN)
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(checked, name):
                setattr(self, name, getattr(checked, name))
        sums = np.bincount(data.columns, data.values * data.counts, minlength=data.shape[1])
        counts = np.bincount(data.columns, data.counts, minlength=data.shape[1])
        self.means_ = sums / np.maximum(counts, 1)
        return self

    def transform(self, X):
        check_is_fitted(self)
        cells = read_matrix(self, X, self.missing_values, GAUSSIAN)
        full = np.tile(self.means_, (cells.shape[0], 1))
        full[cells.rows, cells.columns] = cells.values
        return full

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        return tags


@parametrize_with_checks([ColumnMeans()])
def test_the_contract_of_scikit_learn(estimator, check):
    check(estimator)


FITTED = ColumnMeans().fit(MATRICES)
NAMED = ColumnMeans().fit(frames_of(MATRICES))


@pytest.mark.parametrize("as_given", [np.asarray, sparse_of])
def test_read_matrix(as_given):
    cells = read_matrix(FITTED, as_given(MATRICES[0]), NAN, POISSON)
    for got, want in zip(cells[:3], (ROWS, COLUMNS, VALUES), strict=True):
        assert_array_equal(got, want[:3])
    assert_array_equal(cells.counts, [1, 1, 1])
    assert cells.shape[0] == 4
    assert cells.log_base_measure == pytest.approx(-np.log(240), rel=1e-14)
    empty = read_matrix(FITTED, as_given(MATRICES[1][:2]), NAN, POISSON)
    assert len(empty.rows) == 0
    assert empty.shape[0] == 2
    assert empty.log_base_measure == 0


def test_one_table_may_have_any_marker():
    given = np.nan_to_num(MATRICES[0], nan=-1)
    kept = given.copy()
    for table in (given, given.astype(np.float32)):
        cells = read_matrix(FITTED, table, -1, POISSON)
        for got, want in zip(cells[:3], (ROWS, COLUMNS, VALUES), strict=True):
            assert_array_equal(got, want[:3])
    assert_array_equal(given, kept)


def test_read_matrix_of_invalid_tables():
    def refused(says, X, fitted=FITTED, missing_values=NAN):
        with pytest.raises(ValueError, match=says):
            read_matrix(fitted, X, missing_values, POISSON)

    refused("2 features.*expecting 3", MATRICES[0][:, :2])
    refused("2 features.*expecting 3", sparse_of(MATRICES[0][:, :2]))
    refused("list of tables", MATRICES)
    refused("dim 3", np.stack(MATRICES))
    refused(r"feature names should match", frames_of(MATRICES, months=MONTHS[::-1])[0], NAMED)
    refused(r"row 3 \('marsh'\), column 0 \('may'\)", frames_of(put(-1))[2], NAMED)
    refused("infinity.*row 3, column 0", put(np.inf)[2])
    refused("NaN.*by missing_values only", MATRICES[0], missing_values=-1)
