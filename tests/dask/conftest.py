"""A cluster of two workers, and tables of clients in files that it reads."""

import numpy as np
import pytest

from workers import local_cluster

COLUMNS = ["speed", "load", "slope"]


@pytest.fixture(scope="session")
def cluster():
    """Two workers with a thread each, which are started again when they die."""
    with local_cluster(2) as client:
        yield client


@pytest.fixture(scope="session")
def tables():
    """Twelve clients with 18,600 rows, in four shards."""
    pd = pytest.importorskip("pandas")
    generator = np.random.default_rng(0)
    return [
        pd.DataFrame(
            generator.normal(k % 3, 1 + k % 2, (200 + 900 * (k % 4), 3)),
            columns=COLUMNS,
        )
        for k in range(12)
    ]


@pytest.fixture(scope="session")
def folder(tables, tmp_path_factory):
    """A file for each client, and a folder ``joined`` with two files of rows in any order."""
    pd = pytest.importorskip("pandas")
    folder = tmp_path_factory.mktemp("trips")
    for k, table in enumerate(tables):
        table.to_parquet(folder / f"car{k:02d}.parquet")
    joined = pd.concat([own.assign(car=f"car{k:02d}") for k, own in enumerate(tables)])
    joined = joined.sample(frac=1, random_state=0).reset_index(drop=True)
    (folder / "joined").mkdir()
    for k, part in enumerate((joined[:9000], joined[9000:])):
        part.to_parquet(folder / "joined" / f"{k}.parquet")
    return folder


@pytest.fixture(scope="session")
def federation(cluster, folder):
    """The clients on the workers."""
    from skfedem.dask import read_clients

    return read_clients(cluster, f"{folder}/*.parquet", snapshot_every=4)
