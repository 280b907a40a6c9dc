"""Fits on the workers of a cluster have the bits of fits in one process."""

import doctest
import importlib
import os
from contextlib import nullcontext

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.pipeline import make_pipeline

from skfedem import FederatedGaussianMixture
from skfedem.preprocessing import FederatedPCA, FederatedStandardScaler
from workers import NOISY, SETTINGS, assert_same_fit

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")
skfedem_dask = pytest.importorskip("skfedem.dask")
read_clients = skfedem_dask.read_clients

COLUMNS = ["speed", "load", "slope"]


def mixture(**settings):
    """A mixture that runs so many rounds."""
    return FederatedGaussianMixture(3, random_state=0, tol=0, **{"max_iter": 6, **settings})


@pytest.mark.filterwarnings("ignore:Not converged")
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_mixture_has_the_bits_of_one_process(federation, tables, setting):
    settings = SETTINGS[setting]
    got, want = (mixture(**settings).fit(X) for X in (federation, tables))
    assert_same_fit(got, want)
    assert got.client_ids_.tolist() == [f"car{k:02d}" for k in range(12)]
    assert len(federation.rows) == 4


@pytest.mark.filterwarnings("ignore:Not converged")
def test_rows_of_a_client_may_be_in_several_files(cluster, folder, monkeypatch):
    whole = pd.concat([pd.read_parquet(folder / "joined" / f"{k}.parquet") for k in range(2)])
    want = mixture(**NOISY).fit(whole[COLUMNS], clients=whole["car"])
    got = mixture(**NOISY).fit(read_clients(cluster, f"{folder}/joined", clients="car"))
    assert_same_fit(got, want)
    assert_array_equal(got.client_ids_, want.client_ids_)


@pytest.mark.filterwarnings("ignore:Not converged")
def test_a_dataframe_of_dask_is_read_where_it_is(cluster, folder):
    frame = pytest.importorskip("dask.dataframe").read_parquet(folder / "joined")
    whole = frame.compute()
    want = mixture().fit(whole[COLUMNS], clients=whole["car"])
    got = mixture().fit(read_clients(cluster, frame, clients="car"))
    assert_same_fit(got, want)


@pytest.mark.filterwarnings("ignore:Not converged")
def test_a_pipeline_transforms_rows_on_their_workers(federation, tables):
    steps = FederatedStandardScaler(), FederatedPCA(2, whiten=True), mixture(**NOISY)
    got, want = (make_pipeline(*steps).fit(X) for X in (federation, tables))
    for mine, own in zip(got, want, strict=True):
        assert_same_fit(mine, own)


def test_single_precision_remains_single(cluster, tables, tmp_path):
    small = [own.astype(np.float32)[:50] for own in tables[:2]]
    for k, own in enumerate(small):
        own.to_parquet(tmp_path / f"{k}.parquet")
    got = FederatedStandardScaler().fit(read_clients(cluster, f"{tmp_path}/*.parquet"))
    assert_same_fit(got, FederatedStandardScaler().fit(small))


@pytest.mark.filterwarnings("ignore:Not converged")
def test_no_row_comes_to_the_scheduler_or_to_this_process(cluster, tables, folder, monkeypatch):
    tcp = importlib.import_module("distributed.comm.tcp")
    read, count = tcp.read_bytes_rw, []

    async def counting(stream, n):
        count.append(n)
        return await read(stream, n)

    monkeypatch.setattr(tcp, "read_bytes_rw", counting)
    n_bytes = sum(own.to_numpy().nbytes for own in tables)
    mixture(max_iter=2).fit(read_clients(cluster, f"{folder}/*.parquet"))
    by_file = sum(count)
    mixture(max_iter=2).fit(read_clients(cluster, f"{folder}/joined", clients="car"))
    # Tasks, their reports, and sums; half of the rows would be seen.
    assert 0 < by_file < n_bytes / 2 > sum(count) - by_file > 0


@pytest.mark.filterwarnings("ignore:Not converged")
def test_the_dashboard_shows_what_is_done(cluster, federation):
    mixture(max_iter=5, **NOISY).fit(federation)
    shown = set(cluster.cluster.scheduler.task_prefixes)
    wanted = {"read-rows", "fedem-round", "evaluation", "mean_of_rows", "snapshot"}
    assert wanted <= shown


def test_the_example_of_reading_is_true(cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("distributed.Client", lambda **settings: nullcontext(cluster))
    result = doctest.testmod(skfedem_dask._read)
    assert result.attempted > 5 and not result.failed
    assert os.listdir(tmp_path) == ["trips.parquet"]
