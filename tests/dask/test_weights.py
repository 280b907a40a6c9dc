"""Weights of rows on workers, and scores and predictions of clients there."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.pipeline import make_pipeline

from skfedem import FederatedGaussianMixture, FederatedMatrixImputer
from skfedem.preprocessing import FederatedPCA, FederatedStandardScaler
from workers import assert_same_fit

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")
read_clients = pytest.importorskip("skfedem.dask").read_clients

COLUMNS = ["speed", "load", "slope"]
SETTINGS = {
    "exact": {},
    "minibatches": {
        "omega": 1.0,
        "participation": 0.5,
        "batch_size": 20,
        "solver": "vr_fedem",
        "client_weights": "uniform",
    },
}
# Sums of rows run by shard on workers, and over all rows in one process.
ROUNDING = 1e-13

pytestmark = pytest.mark.filterwarnings("ignore:Not converged")


def mixture(**settings):
    return FederatedGaussianMixture(3, random_state=0, tol=0, **{"max_iter": 6, **settings})


def weights_of(tables, kind):
    """Weights of any size, in units whose squares would overflow if summed, or all equal."""
    generator = np.random.default_rng(1)
    scale = {"any": 1.0, "huge": 1e100}.get(kind)
    if scale is None:
        return [np.full(len(own), 2.5) for own in tables]
    return [scale * generator.gamma(1.0, size=len(own)) for own in tables]


@pytest.fixture(scope="module", params=["any", "huge", "equal"])
def weighted(request, cluster, tables, tmp_path_factory):
    """Weights of each client's rows, and the federation."""
    folder, weights = tmp_path_factory.mktemp("weighted"), weights_of(tables, request.param)
    for k, (table, own) in enumerate(zip(tables, weights, strict=True)):
        table.assign(hours=own)[["speed", "hours", "load", "slope"]].to_parquet(
            folder / f"car{k:02d}.parquet"
        )
    pattern = f"{folder}/*.parquet"
    return weights, read_clients(cluster, pattern, sample_weight="hours", snapshot_every=4)


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_weighted_mixture_has_the_bits_of_one_process(weighted, tables, setting):
    weights, federation = weighted
    got = mixture(**SETTINGS[setting]).fit(federation)
    want = mixture(**SETTINGS[setting]).fit(tables, sample_weight=weights)
    assert_same_fit(got, want)
    assert federation.columns == COLUMNS


def test_scores_weigh_rows(weighted, tables):
    weights, federation = weighted
    fitted = mixture().fit(tables)
    for name in ("score", "aic", "bic"):
        got = getattr(fitted, name)(federation)
        want = getattr(fitted, name)(tables, sample_weight=weights)
        assert_allclose(got, want, rtol=ROUNDING)


def test_a_pipeline_weighs_rows_in_its_mixture_alone(weighted, tables):
    weights, federation = weighted
    steps = FederatedStandardScaler(), FederatedPCA(2), mixture()
    got = make_pipeline(*steps).fit(federation)
    weighing = {"federatedgaussianmixture__sample_weight": weights}
    want = make_pipeline(*steps).fit(tables, **weighing)
    for mine, own in zip(got, want, strict=True):
        assert_same_fit(mine, own)
    want_score = want.score(tables, sample_weight=weights)
    assert_allclose(got.score(federation), want_score, rtol=ROUNDING)


def test_a_federation_is_scored(federation, tables):
    fitted, pca = mixture().fit(tables), FederatedPCA(2).fit(tables)
    assert_allclose(fitted.score(federation), fitted.score(tables), rtol=ROUNDING)
    assert_allclose(fitted.bic(federation), fitted.bic(tables), rtol=ROUNDING)
    assert_allclose(pca.score(federation), pca.score(tables), rtol=ROUNDING)


def test_predictions_stay_on_workers_until_they_are_asked_for(federation, tables):
    fitted = mixture().fit(tables)
    for method, n_columns in (("predict", 1), ("score_samples", 1), ("predict_proba", 3)):
        found = getattr(fitted, method)(federation)
        assert type(found) is type(federation)
        frame = found.to_dataframe()
        assert frame.npartitions == len(federation.rows)
        got, want = frame.compute(), np.concatenate(getattr(fitted, method)(tables))
        assert_array_equal(got.to_numpy(), want.reshape(-1, n_columns))
        assert got.columns.tolist() == [str(k) for k in range(n_columns)]
        clients = [f"car{k:02d}" for k, own in enumerate(tables) for _ in range(len(own))]
        assert got.index.name == "client" and got.index.tolist() == clients
    assert_array_equal(fitted.predict(federation).to_dataframe().dtypes, [np.int64])


def test_rows_come_back_with_their_names(federation, tables):
    got = federation.to_dataframe().compute()
    pd.testing.assert_frame_equal(got.reset_index(drop=True), pd.concat(tables, ignore_index=True))


def test_bad_weights_are_found_with_their_client(cluster, tmp_path):
    rows = pd.DataFrame({"speed": [1.0, 2.0], "load": [0.0, 1.0], "hours": [1.0, 2.0]})
    rows.to_parquet(tmp_path / "ann.parquet")
    for value in (0.0, -1.0, np.nan, 1e200):
        rows.assign(hours=[1.0, value]).to_parquet(tmp_path / "bob.parquet")
        with pytest.raises(ValueError, match="got .* in row 1.* of client 'bob'"):
            read_clients(cluster, f"{tmp_path}/*.parquet", sample_weight="hours")
    rows.to_parquet(tmp_path / "bob.parquet")
    with pytest.raises(ValueError, match=r"got 'hour' and the columns \['speed', 'load', 'hours'"):
        read_clients(cluster, f"{tmp_path}/*.parquet", sample_weight="hour")


def test_imputers_take_no_weights(weighted):
    with pytest.raises(TypeError, match="without sample_weight for an imputer"):
        FederatedMatrixImputer().fit(weighted[1], shape=(2, 3))
