"""Forms of input: tables and labels of any kind give the fit of a list of arrays."""

from functools import cache

import joblib
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mixtures import CLIENTS, EXACT, FRAMES, N_CLIENTS, N_SAMPLES, NAMES, OWNERS, STOCHASTIC, X
from problems import COVARIANCE_TYPES, assert_same_fit
from skfedem import FederatedGaussianMixture
from skfedem.preprocessing import FederatedStandardScaler


@pytest.mark.parametrize(
    "tables",
    [
        tuple(CLIENTS),
        FRAMES,
        [client.tolist() for client in CLIENTS],
        [np.repeat(client, 2, axis=0)[::2] for client in CLIENTS],
        [frame.set_index(frame.index + 7) for frame in FRAMES],
        [frame.astype("Float64") for frame in FRAMES],
    ],
    ids=["tuple", "frames", "nested lists", "strided", "odd index", "nullable"],
)
def test_tables_of_any_kind_give_the_fit_of_a_list_of_arrays(tables):
    want = FederatedGaussianMixture(**STOCHASTIC).fit(CLIENTS)
    got = FederatedGaussianMixture(**STOCHASTIC).fit(tables)
    assert_same_fit(got, want)
    assert got.client_ids_.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_results_do_not_depend_on_memory_layout(covariance_type):
    # Columns of a DataFrame lie one after the other, rows of an array do.
    given = {**STOCHASTIC, "covariance_type": covariance_type}
    want = FederatedGaussianMixture(**given).fit(CLIENTS)
    columns = [np.asfortranarray(client) for client in CLIENTS]
    assert_same_fit(FederatedGaussianMixture(**given).fit(columns), want)


@cache
def fit_of_the_list():
    return FederatedGaussianMixture(**STOCHASTIC).fit(CLIENTS)


DAYS = pd.to_datetime("2024-02-27") + pd.to_timedelta(np.arange(N_CLIENTS), "D")


@pytest.mark.parametrize(
    ("labels", "ids"),
    [
        (OWNERS, range(6)),
        (10 * OWNERS - 25, [-25, -15, -5, 5, 15, 25]),
        (OWNERS.tolist(), range(6)),
        (OWNERS / 4, np.arange(6) / 4),
        (NAMES[OWNERS], NAMES),
        (NAMES[OWNERS].tolist(), NAMES),
        (NAMES[OWNERS].astype(object), NAMES),
        (OWNERS.astype(object), range(6)),
        (pd.Series(NAMES[OWNERS], index=np.arange(N_SAMPLES)[::-1] + 1), NAMES),
        (pd.Categorical(NAMES[OWNERS], categories=[*NAMES[::-1], "unused"]), NAMES),
        (pd.Series(NAMES[OWNERS], dtype="category"), NAMES),
        (pd.Series(OWNERS, dtype="Int64"), range(6)),
        (DAYS[OWNERS], DAYS.to_numpy()),
    ],
    ids=[
        "int",
        "negative int",
        "list of int",
        "float",
        "str",
        "list of str",
        "object of str",
        "object of int",
        "series, other index",
        "categorical",
        "series of categories",
        "nullable int",
        "dates",
    ],
)
@pytest.mark.parametrize("table", [X, pd.DataFrame(X)], ids=["array", "frame"])
def test_labelled_rows_give_the_fit_of_a_list(table, labels, ids):
    got = FederatedGaussianMixture(**STOCHASTIC).fit(table, clients=labels)
    assert_same_fit(got, fit_of_the_list())
    assert got.n_clients_ == 6
    assert list(got.client_ids_) == list(ids)


def test_clients_are_sorted_by_label():
    names = np.array(["f", "e", "d", "c", "b", "a"])
    got = FederatedGaussianMixture(**STOCHASTIC).fit(X, clients=names[OWNERS])
    assert_same_fit(got, FederatedGaussianMixture(**STOCHASTIC).fit(CLIENTS[::-1]))
    assert got.client_ids_.tolist() == ["a", "b", "c", "d", "e", "f"]


@pytest.mark.parametrize("parameters", [EXACT, STOCHASTIC], ids=["exact", "stochastic"])
def test_one_table_is_one_client(parameters):
    alone = FederatedGaussianMixture(**parameters).fit(X)
    assert_same_fit(alone, FederatedGaussianMixture(**parameters).fit([X]))
    assert_same_fit(alone, FederatedGaussianMixture(**parameters).fit(X, clients=["a"] * len(X)))
    assert alone.n_clients_ == 1
    assert alone.client_ids_.tolist() == [0]


def test_a_list_of_rows_is_one_table():
    got = FederatedGaussianMixture(**EXACT).fit(X.tolist())
    assert_same_fit(got, FederatedGaussianMixture(**EXACT).fit(X))


def test_clients_may_differ_in_dtype():
    as_integers = [client.round() for client in CLIENTS]
    want = FederatedGaussianMixture(**EXACT).fit(as_integers)
    dtypes = [np.int8, np.int64, np.float32, np.float64, np.float16, np.int16]
    mixed = [client.astype(dtype) for client, dtype in zip(as_integers, dtypes, strict=True)]
    assert_same_fit(FederatedGaussianMixture(**EXACT).fit(mixed), want)


def test_read_only_memory_maps(tmp_path):
    joblib.dump(np.array(X), tmp_path / "rows")
    rows = joblib.load(tmp_path / "rows", mmap_mode="r")
    assert isinstance(rows, np.memmap)
    assert not rows.flags.writeable
    want = FederatedGaussianMixture(**STOCHASTIC).fit(CLIENTS)
    assert_same_fit(FederatedGaussianMixture(**STOCHASTIC).fit(rows, clients=OWNERS), want)
    pieces = [rows[owner == OWNERS] for owner in range(N_CLIENTS)]
    assert_same_fit(FederatedGaussianMixture(**STOCHASTIC).fit(pieces), want)
    assert_array_equal(want.predict(rows), want.predict(X))


def test_feature_names():
    named = FederatedGaussianMixture(**EXACT).fit(FRAMES)
    assert named.feature_names_in_.tolist() == ["length", "width"]
    assert named.n_features_in_ == 2
    with pytest.raises(ValueError, match="feature names should match"):
        named.predict([FRAMES[0][["width", "length"]]])
    named.fit(CLIENTS)
    assert not hasattr(named, "feature_names_in_")


def test_polars_tables():
    polars = pytest.importorskip("polars")
    frames = [polars.DataFrame(client, schema=["length", "width"]) for client in CLIENTS]
    gm = FederatedGaussianMixture(**EXACT).fit(frames)
    plain = FederatedGaussianMixture(**EXACT).fit(CLIENTS)
    assert_array_equal(gm.means_, plain.means_)
    # Names are scikit-learn's business, whose versions know other tables.
    theirs = StandardScaler().fit(frames[0])
    names = [getattr(fitted, "feature_names_in_", ()) for fitted in (gm, theirs)]
    assert_array_equal(*names)
    assert_array_equal(gm.predict(frames)[1], plain.predict(CLIENTS)[1])
    pipeline = make_pipeline(FederatedStandardScaler(), FederatedGaussianMixture(3, random_state=0))
    outputs = pipeline.set_output(transform="polars").fit(frames).transform(frames)
    assert {type(table) for table in outputs} == {polars.DataFrame}
