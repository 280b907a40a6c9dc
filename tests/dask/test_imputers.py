"""Imputers of triplets on the workers of a cluster have the bits of fits in one process."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from skfedem import FederatedMatrixImputer, FederatedMatrixImputerCV
from skfedem.clients.sums import shards_of
from workers import NOISY, SETTINGS, assert_same_fit, kill_a_worker

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")
read_clients = pytest.importorskip("skfedem.dask").read_clients

SHAPE = (40, 24)
pytestmark = pytest.mark.filterwarnings("ignore:Not converged", "ignore:Counts around effects")


def triplets_of(family, n_clients=12):
    """Notes of clients, some of whom were in a cell several times: cells are fewer than notes."""
    generator, tables = np.random.default_rng(0), []
    low_rank = generator.normal(size=(SHAPE[0], 2)) @ generator.normal(size=(2, SHAPE[1]))
    for k in range(n_clients):
        n_notes = 400 + 300 * (k % 4)
        sites = generator.integers(SHAPE[0] if k % 3 else 5, size=n_notes)
        months = generator.integers(SHAPE[1], size=n_notes)
        mean = np.exp(1 + 0.5 * low_rank[sites, months])
        values = {"poisson": generator.poisson(mean), "gaussian": generator.normal(10 + mean)}
        columns = {"site": sites, "month": months, "value": values[family]}
        tables.append(pd.DataFrame(columns))
    return tables


@pytest.fixture(scope="module", params=["poisson", "gaussian"])
def counts(request, cluster, tmp_path_factory):
    """Family, tables, and their federation."""
    folder, tables = tmp_path_factory.mktemp("notes"), triplets_of(request.param)
    for k, own in enumerate(tables):
        own.to_parquet(folder / f"ann{k:02d}.parquet")
    federation = read_clients(cluster, f"{folder}/*.parquet", snapshot_every=4)
    return request.param, tables, federation


def imputer(family, **settings):
    settings = {"rank": 2, "max_iter": 6, "tol": 0, "random_state": 0, **settings}
    return FederatedMatrixImputer(family=family, **settings)


@pytest.mark.parametrize("setting", SETTINGS)
def test_an_imputer_has_the_bits_of_one_process(counts, setting):
    family, tables, federation = counts
    got = imputer(family, **SETTINGS[setting]).fit(federation, shape=SHAPE)
    want = imputer(family, **SETTINGS[setting]).fit([*map(np.asarray, tables)], shape=SHAPE)
    assert_same_fit(got, want)
    assert got.client_ids_.tolist() == [f"ann{k:02d}" for k in range(12)]


def test_shards_of_cells_are_cut_by_cells(counts):
    _, _, federation = counts
    read = []

    class Watched(type(federation)):
        def read(self, reading=None):
            read.append(super().read(reading))
            return read[-1]

    watched = Watched.__new__(Watched)
    vars(watched).update(vars(federation))
    imputer("gaussian", max_iter=1).fit(watched, shape=SHAPE)
    place = read[0].place
    assert place.lengths.sum() < federation.lengths.sum()
    assert place.shards.tolist() == shards_of(place.lengths).tolist()
    assert place.shards.tolist() != federation.shards.tolist()


def test_lost_workers_change_no_bit(cluster, counts):
    family, tables, federation = counts
    killed = []

    def steps(k):
        if k in (4, 7) and len(killed) < 2:
            kill_a_worker(cluster)
            killed.append(k)
        return 0.1

    settings = {"step_size": steps, "max_iter": 8, **NOISY}
    got = imputer(family, **settings).fit(federation, shape=SHAPE)
    assert killed == [4, 7]
    settings["step_size"] = 0.1
    want = imputer(family, **settings).fit([*map(np.asarray, tables)], shape=SHAPE)
    assert_same_fit(got, want)


def test_a_checkpoint_is_resumed_in_either_place(counts, tmp_path):
    family, tables, federation = counts
    path, arrays = tmp_path / "run.ckpt", [*map(np.asarray, tables)]
    whole = imputer(family, **NOISY).fit(arrays, shape=SHAPE)
    for first, then in ((federation, arrays), (arrays, federation)):
        imputer(family, max_iter=3, checkpoint=path, **NOISY).fit(first, shape=SHAPE)
        resumed = imputer(family, **NOISY).fit(then, shape=SHAPE, resume_from=path)
        for name in ("row_effects_", "column_effects_", "row_factors_", "singular_values_"):
            assert_array_equal(getattr(resumed, name), getattr(whole, name))


def test_sites_and_months_have_names(counts):
    family, tables, federation = counts
    names = [f"site{j}" for j in range(SHAPE[0])], pd.period_range("2020-01", periods=24, freq="M")
    got, want = (
        imputer(family).fit(X, shape=names) for X in (federation, [*map(np.asarray, tables)])
    )
    assert_array_equal(got.get_feature_names_out(), want.get_feature_names_out())
    assert_array_equal(got.fitted_mean(), want.fitted_mean())


def test_what_needs_tables_says_so(counts):
    family, _, federation = counts
    fitted = imputer(family, rank=0).fit(federation, shape=SHAPE)
    says = "Expected a fit of FederatedMatrixImputer.*DaskFederation.*Give tables"
    for use in (
        lambda: fitted.totals(federation),
        lambda: FederatedMatrixImputerCV(family=family).fit(federation, shape=SHAPE),
        lambda: imputer(family, rows="disjoint").fit(federation, shape=SHAPE),
        lambda: imputer(family).fit(federation, shape=SHAPE, offset=np.zeros(3)),
        lambda: imputer(family).fit(federation, shape=SHAPE, clients=np.zeros(3)),
        lambda: imputer(family, client_effects_penalty=1.0).fit(federation, shape=SHAPE),
    ):
        with pytest.raises(TypeError, match=says):
            use()
    for use in (fitted.transform, fitted.score):
        with pytest.raises(TypeError, match="Expected a table .*got <DaskFederation"):
            use(federation)
    with pytest.raises(ValueError, match="Expected shape=.*DaskFederation, got None"):
        imputer(family).fit(federation)


def test_bad_triplets_are_found_with_their_client(cluster, tmp_path):
    good = pd.DataFrame({"site": [0, 1], "month": [0, 2], "count": [3, 4]})
    good.to_parquet(tmp_path / "ann.parquet")
    for column, value, says in (
        ("month", 3, r"month numbers.*got 3.0 in triplet 1 of client 'bob'"),
        ("count", -1, r"non-negative integers.*got -1.0 in site 1, month 2 of client 'bob'"),
    ):
        good.assign(**{column: [0, value]}).to_parquet(tmp_path / "bob.parquet")
        federation = read_clients(cluster, f"{tmp_path}/*.parquet")
        with pytest.raises(ValueError, match=says):
            imputer("poisson").fit(federation, shape=(2, 3))
    wide = pd.DataFrame({"a": [0.0], "b": [1.0], "c": [0.0], "d": [1.0]})
    (tmp_path / "wide").mkdir()
    wide.to_parquet(tmp_path / "wide" / "ann.parquet")
    with pytest.raises(ValueError, match=r"triplets.*got shape \(1, 4\)"):
        imputer("poisson").fit(read_clients(cluster, f"{tmp_path}/wide/*.parquet"), shape=(2, 3))
