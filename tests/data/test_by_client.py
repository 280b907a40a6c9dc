"""Lists of rows are tables; small tables of a list are stacked where they are alike."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.base import BaseEstimator, clone

from refusals import CLIENTS, FITTED
from skfedem import FederatedGaussianMixture, FederatedMatrixImputer
from skfedem._data import cells
from skfedem._data import clients as clients_module
from skfedem._data.by_client import each_table_stacked, stacks
from skfedem._data.clients import read_clients
from skfedem._federation import MOST_CLIENTS
from skfedem.preprocessing import FederatedPCA, FederatedStandardScaler

# ---- lists of rows


def test_masked_rows_in_a_list():
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


# ---- lists of small tables


def test_small_tables_are_stacked_without_copying_large_ones():
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


@pytest.mark.parametrize("format", ["coo", "csr", "csc", "lil"])
def test_sparse_tables_are_stacked_entry_for_entry(format):
    # An explicit zero is an observation.
    entries = [([1.0, 0.0], ([0, 1], [1, 2])), ([5.0], ([1], [0]))]
    tables = [sparse.coo_array(each, (2, 3)).asformat(format) for each in entries]
    ((rows, lengths),) = stacks(tables)
    assert lengths == [2, 2]
    assert rows.nnz == sum(table.nnz for table in tables)
    assert_array_equal(rows.toarray(), np.concatenate([table.toarray() for table in tables]))


@pytest.mark.parametrize("format", ["bsr", "dia", "dok"])
def test_sparse_tables_of_other_formats_are_not_stacked(format):
    with pytest.raises(ValueError, match="expected"):
        next(stacks([sparse.csr_array(np.eye(2)).asformat(format)] * 2))


def test_sparse_tables_of_other_types_are_not_stacked():
    table = sparse.csr_array(np.eye(2))
    with pytest.raises(ValueError, match="expected"):
        next(stacks([table, table.astype(np.float32)]))


def test_a_different_table_is_processed_alone():
    n_alike = 2 * MOST_CLIENTS
    tables, asked = [*np.arange(2.0 * n_alike).reshape(-1, 1, 2), [[0.5, 1.5]]], []

    def answer(rows):
        asked.append(len(rows))
        return np.asarray(rows)

    assert_array_equal(each_table_stacked(tables, answer), tables)
    assert asked == [MOST_CLIENTS, MOST_CLIENTS, 1]
    # Errors name the client by its position among all.
    tables[-1] = np.array([[np.nan, np.inf]])
    imputer = FederatedMatrixImputer(1, rows="disjoint").fit(CLIENTS)
    for method in (FITTED.predict, imputer.transform):
        with pytest.raises(ValueError, match=f"of client {n_alike}:"):
            method(tables)


@pytest.mark.parametrize(
    "estimator",
    [
        FederatedGaussianMixture(random_state=0),
        FederatedStandardScaler(),
        FederatedPCA(),
        FederatedMatrixImputer(1, rows="disjoint", random_state=0),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_set_output_does_not_prevent_stacking(estimator, monkeypatch):
    fitted, read = clone(estimator).fit(CLIENTS), []
    arrays = fitted.transform(CLIENTS)
    for module in (clients_module, cells):
        check = module.validate_data
        monkeypatch.setattr(
            module, "validate_data", lambda *a, to=check, **k: read.append(1) or to(*a, **k)
        )
    frames = fitted.set_output(transform="pandas").transform(CLIENTS)
    assert len(read) == 1
    for frame, array in zip(frames, arrays, strict=True):
        assert isinstance(frame, pd.DataFrame)
        assert_array_equal(frame.to_numpy(), array)
    if hasattr(fitted, "score"):
        fitted.score(CLIENTS)
        assert len(read) == 2


@pytest.mark.parametrize("single", [(0, 1, 2), (0, 2), ()])
def test_float32_if_all_clients_are(single):
    tables = [
        client.astype(np.float32 if k in single else np.float64) for k, client in enumerate(CLIENTS)
    ]
    rows = read_clients(BaseEstimator(), tables).federation.rows
    assert rows.dtype == (np.float32 if len(single) == 3 else np.float64)
    assert_array_equal(rows, np.concatenate(tables))
