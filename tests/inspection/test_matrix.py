"""Sums and means of a fitted matrix, and of the cells that were observed."""

import itertools

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import coo_array
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from displays import COLUMNS, NAN, ROUNDING, SHAPE, counts_of_clients, pooled_means
from skfedem import FederatedMatrixImputer
from skfedem.inspection import ImputationDisplay, _matrix


def summary(imputer, X=None, row_order="given", max_rows=300):
    return _matrix.matrix_summary(imputer, X, row_order, max_rows)


def test_the_trend_is_the_sum_of_the_fitted_means(imputer, monkeypatch):
    means = imputer.fitted_mean()
    for block in (_matrix._BLOCK, 3 * SHAPE[1]):
        monkeypatch.setattr(_matrix, "_BLOCK", block)
        got = summary(imputer)
        assert_allclose(got["trend"], means.sum(axis=0), **ROUNDING)
        assert_allclose(got["fitted"], means, **ROUNDING)


def test_observed_cells(imputer):
    clients = counts_of_clients()
    pooled = pooled_means(clients)
    seen = ~np.isnan(pooled)
    got = summary(imputer, clients)
    assert_allclose(got["observed"], pooled, **ROUNDING)
    assert_allclose(got["observed_share"], seen.mean(axis=0), **ROUNDING)
    total = np.where(seen.any(axis=0), np.nansum(pooled, axis=0), NAN)
    assert_allclose(got["observed_total"], total, **ROUNDING)


def test_cells_are_drawn_for_one_unit_of_effort():
    clients = counts_of_clients()
    hours = [np.full(SHAPE, 1.0 + k) for k in range(len(clients))]
    offset = [np.log(own) for own in hours]
    fitted = FederatedMatrixImputer(1, family="poisson", max_iter=20, tol=0.1)
    fitted.fit(clients, offset=offset)
    birds = np.nansum(clients, axis=0)
    effort = sum(own * ~np.isnan(table) for own, table in zip(hours, clients, strict=True))
    display = ImputationDisplay.from_estimator(
        fitted, clients, offset=offset, kind="heatmap", row_order="given"
    )
    rates = np.divide(birds, effort, out=np.full(SHAPE, NAN), where=effort > 0)
    assert_allclose(display.observed, rates, **ROUNDING)
    with pytest.raises(ValueError, match="Expected an offset, as the fit had one"):
        ImputationDisplay.from_estimator(fitted, clients)


def test_plots_of_fits_with_covariates(pyplot):
    clients, rows, columns = counts_of_clients(), np.arange(SHAPE[0]), np.arange(SHAPE[1])
    fitted = FederatedMatrixImputer(1, family="poisson", max_iter=20, tol=0.1).fit(
        clients, row_covariates=rows, column_covariates=columns, row_groups=rows % 2
    )
    for kind in ("trend", "heatmap"):
        display = ImputationDisplay.from_estimator(fitted, clients, kind=kind)
        assert_allclose(display.trend, fitted.fitted_mean().sum(axis=0), **ROUNDING)


def test_cells_of_a_huge_matrix_are_distinct():
    # Of these rows and columns, the products are no 32-bit integers.
    shape, rows, columns = (70_000, 70_000), [0, 40_000, 69_999], [5, 69_999, 1]
    cells = coo_array(([1.0, 2.0, 3.0], (rows, columns)), shape=shape)
    fitted = FederatedMatrixImputer(1, family="poisson", penalty=10.0).fit([cells])
    observed = _matrix.observed_cells(fitted, [cells, cells])
    assert_array_equal(np.array(observed), [rows, columns, [1, 2, 3]])


def test_rows_are_ordered_by_their_totals_and_averaged_in_bands(imputer):
    clients = counts_of_clients()
    means, pooled = imputer.fitted_mean(), pooled_means(clients)
    order = np.argsort(-means.sum(axis=1))
    got = summary(imputer, clients, "total")
    assert_allclose(got["fitted"], means[order], **ROUNDING)
    assert_allclose(got["observed"], pooled[order], **ROUNDING)
    edges = _matrix.band_edges(SHAPE[0], 4)
    assert set(np.diff(edges)) == {3, 4}
    bands = summary(imputer, clients, "total", max_rows=4)
    for band, (start, end) in enumerate(itertools.pairwise(edges)):
        rows = order[start:end]
        assert_allclose(bands["fitted"][band], means[rows].mean(axis=0), **ROUNDING)
        for column in range(SHAPE[1]):
            seen = pooled[rows, column][~np.isnan(pooled[rows, column])]
            expected = seen.mean() if len(seen) else NAN
            assert_allclose(bands["observed"][band, column], expected, **ROUNDING)


def test_every_form_of_the_data_gives_the_same_arrays(imputer):
    clients = counts_of_clients()
    want = summary(imputer, clients)
    cells = [coo_array(np.nan_to_num(table)) for table in clients]
    for table, own in zip(clients, cells, strict=True):
        own.row, own.col = np.nonzero(~np.isnan(table))
        own.data = table[own.row, own.col]
    triplets = [np.column_stack([own.row, own.col, own.data]) for own in cells]
    listed = clone(imputer).fit(triplets, shape=SHAPE)
    owners = np.repeat(range(3), [own.nnz for own in cells])
    long = clone(imputer).fit(np.concatenate(triplets), clients=owners, shape=SHAPE)
    names = ["site", "month", "count"]  # of the columns of triplets, not of the matrix
    for fitted, X in (
        (imputer, cells),
        (imputer, np.stack(clients)),
        (listed, triplets),
        (listed, [pd.DataFrame(own, columns=names) for own in triplets]),
        (long, np.concatenate(triplets)),
    ):
        got = summary(fitted, X)
        assert_allclose(got["observed"], want["observed"], **ROUNDING)
        assert_allclose(got["observed_share"], want["observed_share"], **ROUNDING)


def test_clients_with_disjoint_rows():
    clients = [table[3 * k + 4 : 3 * k + 7] for k, table in enumerate(counts_of_clients())]
    model = FederatedMatrixImputer(1, family="poisson", rows="disjoint", random_state=0)
    assert_array_equal(summary(model.fit(clients), clients)["observed"], np.concatenate(clients))


def test_the_marker_of_missing_values_is_that_of_the_fit():
    marked = [np.nan_to_num(table, nan=-1) for table in counts_of_clients()]
    model = FederatedMatrixImputer(1, family="poisson", missing_values=-1, random_state=0)
    observed = summary(model.fit(marked), marked)["observed"]
    assert_allclose(observed, pooled_means(counts_of_clients()), **ROUNDING)


def test_pipelines_transform_the_data(pyplot):
    pooled = pooled_means(counts_of_clients())
    pipeline = make_pipeline(FunctionTransformer(np.log1p), FederatedMatrixImputer(1))
    display = ImputationDisplay.from_estimator(pipeline.fit(pooled), pooled, row_order="given")
    assert_allclose(display.observed, np.log1p(pooled), **ROUNDING)


@pytest.mark.parametrize("kind", ["periods", "dates", "years", "text"])
def test_labels_of_columns_are_those_of_the_data_or_of_the_fit(kind):
    months = pd.period_range("2000-01", periods=SHAPE[1], freq="M")
    labels = {
        "periods": months,
        "dates": months.to_timestamp(),
        "years": pd.Index(range(1995, 1995 + SHAPE[1])),
        "text": pd.Index(COLUMNS),
    }[kind]
    frames = [pd.DataFrame(table, columns=labels) for table in counts_of_clients()]
    imputer = FederatedMatrixImputer(1, family="poisson", tol=0.1, random_state=0).fit(frames)
    for X in (None, frames, counts_of_clients()):
        assert list(_matrix.known_labels(imputer, X)) == list(labels)


def test_data_other_than_those_of_the_fit_are_errors(imputer):
    clients, sites = counts_of_clients(), list("abcdefghijklmn")
    with pytest.raises(ValueError, match=r"matrix of shape \(14, 24\), got shape \(13, 24\)"):
        summary(imputer, [table[1:] for table in clients])
    frames = [pd.DataFrame(table, columns=COLUMNS, index=sites) for table in clients]
    named = clone(imputer).fit(frames)
    with pytest.raises(ValueError, match="row labels of the fit.*'a' for row 0, got 'n'"):
        summary(named, [frame[::-1] for frame in frames])
    with pytest.raises(ValueError, match="column labels of the fit.*'2000-01' for column 0"):
        summary(named, [frame[COLUMNS[::-1]] for frame in frames])
    triplets = [np.column_stack([*np.nonzero(t >= 0), t[t >= 0]]) for t in clients]
    numbered = clone(imputer).fit(triplets, shape=SHAPE)
    for X in (clients[0], clients[:1]):
        with pytest.raises(ValueError, match="Expected"):
            summary(numbered, X)


def test_rows_of_a_table_are_compared_with_those_of_the_fit():
    sites = [f"site {k}" for k in range(12)]
    table = pd.DataFrame(np.random.default_rng(0).poisson(4.0, (12, 5)) * 1.0, index=sites)
    imputer = FederatedMatrixImputer(1, random_state=0).fit(table)
    assert_array_equal(summary(imputer, table)["observed_total"], table.sum(axis=0))
    for other in (table[::-1], [table[::-1]]):
        with pytest.raises(ValueError, match="row labels of the fit.*'site 0' for row 0"):
            summary(imputer, other)
    own = FederatedMatrixImputer(1, rows="disjoint", random_state=0).fit([table[:5], table[5:]])
    with pytest.raises(ValueError, match="labels of the fit.*'site 5' for row 5, got 'site 11'"):
        summary(own, [table[:5], table[:4:-1]])
