"""Files, tables and clusters that are refused, with what to do."""

import sys

import numpy as np
import pytest

from skfedem import FederatedGaussianMixture, FederatedNonlinearMixedEffects
from skfedem.pharmacokinetics import one_compartment_oral
from skfedem.preprocessing import FederatedStandardScaler

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")
skfedem_dask = pytest.importorskip("skfedem.dask")
read_clients = skfedem_dask.read_clients

ROWS = pd.DataFrame({"speed": [1.0, 2.0, 4.0], "load": [0.0, 1.0, 0.0]})


@pytest.fixture
def write(tmp_path):
    """A function that writes tables by name, and returns the pattern of all files."""

    def written(**tables):
        for name, table in tables.items():
            table.to_parquet(tmp_path / f"{name}.parquet")
        return f"{tmp_path}/*.parquet"

    return written


def test_a_client_with_two_files(cluster, write, tmp_path):
    (tmp_path / "more").mkdir()
    ROWS.to_parquet(tmp_path / "more" / "a.parquet")
    write(a=ROWS)
    paths = [f"{tmp_path}/a.parquet", f"{tmp_path}/more/a.parquet"]
    with pytest.raises(ValueError, match="two for client 'a': .*/a.parquet and .*/more/a.parquet"):
        read_clients(cluster, paths)


@pytest.mark.parametrize("clients", [None, "car"])
def test_columns_that_differ(cluster, write, clients):
    pattern = write(a=ROWS.assign(car=1), b=ROWS[["load", "speed"]].assign(car=2))
    with pytest.raises(ValueError, match=r"columns of .*a\.parquet.*got \['load'.*b\.parquet"):
        read_clients(cluster, pattern, clients=clients)


def test_text_and_empty_files_are_named(cluster, write):
    pattern = write(a=ROWS, b=ROWS.assign(load="much"))
    with pytest.raises(ValueError, match=r"In .*b\.parquet: Expected numbers.*'load'"):
        read_clients(cluster, pattern)
    with pytest.raises(ValueError, match=r"In .*c\.parquet: Expected at least one row"):
        read_clients(cluster, write(b=ROWS, c=ROWS[:0]))


def test_values_that_are_missing_or_infinite_are_found_with_their_client(cluster, write):
    bad = ROWS.copy()
    bad.loc[1, "load"] = np.nan
    federation = read_clients(cluster, write(a=ROWS, b=bad))
    assert FederatedStandardScaler().fit(federation).n_samples_seen_.tolist() == [6, 5]
    with pytest.raises(ValueError, match=r"NaN.*row 1, column 1 \('load'\) of client 'b'"):
        FederatedGaussianMixture().fit(federation)
    bad.loc[1, "load"] = np.inf
    with pytest.raises(ValueError, match=r"infinity.*row 1, column 1 \('load'\) of client 'b'"):
        read_clients(cluster, write(a=ROWS, b=bad))


def test_no_files_no_column_and_no_labels(cluster, write, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"match '.*none-\*'"):
        read_clients(cluster, f"{tmp_path}/none-*")
    with pytest.raises(ValueError, match=r"Expected the column 'car'.*\['speed', 'load'\]"):
        read_clients(cluster, write(a=ROWS), clients="car")
    with pytest.raises(TypeError, match="clients= the column"):
        read_clients(cluster, ROWS)
    with pytest.raises(ValueError, match="snapshot_every"):
        read_clients(cluster, write(a=ROWS), snapshot_every=0)
    federation = read_clients(cluster, write(a=ROWS))
    with pytest.raises(ValueError, match="clients=None"):
        FederatedGaussianMixture().fit(federation, clients=[0, 0, 0])


def test_workers_need_this_version_of_the_package(cluster, write, monkeypatch):
    # Inside a function, so that workers get them as they are.
    def hide(dask_worker):
        dask_worker.hidden, sys.modules["skfedem"] = sys.modules["skfedem"], None

    def show(dask_worker):
        sys.modules["skfedem"] = dask_worker.hidden

    pattern, (address, _) = write(a=ROWS), sorted(cluster.nthreads())
    cluster.run(hide, workers=[address])
    try:
        with pytest.raises(RuntimeError, match=f"got ModuleNotFoundError: .* on {address}"):
            read_clients(cluster, pattern)
    finally:
        cluster.run(show, workers=[address])
    monkeypatch.setattr(skfedem_dask._read, "__version__", "9.9")
    with pytest.raises(RuntimeError, match="Expected skfedem 9.9 on all workers, got 0"):
        read_clients(cluster, pattern)


def test_what_fits_to_a_federation_do_not_take(cluster, write):
    federation = read_clients(cluster, write(a=ROWS, b=ROWS))
    start = {"ka": 1.0, "V": 20.0, "CL": 0.5}
    with pytest.raises(TypeError, match="sample_weight=None with clients elsewhere"):
        FederatedGaussianMixture().fit(federation, sample_weight=[[1, 2, 3]] * 2)
    with pytest.raises(TypeError, match="sample_weight=None with clients elsewhere"):
        FederatedGaussianMixture(1).fit(federation).score(federation, sample_weight=[1, 2, 3])
    with pytest.raises(TypeError, match="Expected tables, got DaskFederation. Use fit"):
        FederatedGaussianMixture().partial_fit(federation)
    with pytest.raises(TypeError, match="Expected tables of the clients, got DaskFederation"):
        FederatedNonlinearMixedEffects(one_compartment_oral, start=start).fit(federation)


@pytest.mark.parametrize("clients", [None, "car"])
def test_no_files(cluster, clients):
    with pytest.raises(ValueError, match="Expected at least one file, got none"):
        read_clients(cluster, [], clients=clients)


def test_labels_of_two_types(cluster, write):
    pattern = write(a=ROWS.assign(car=1), b=ROWS.assign(car="x"))
    with pytest.raises(TypeError, match="labels of one type in column 'car'"):
        read_clients(cluster, pattern, clients="car")
