"""Many clients, many rows, rows in files, several workers."""

import mmap
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from joblib import parallel_config
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import coo_array
from sklearn.base import BaseEstimator

from problems import assert_same_fit
from skfedem import FederatedGaussianMixture, FederatedMatrixImputer
from skfedem._data import clients as clients_module
from skfedem._data.clients import read_clients
from skfedem._data.labels import group_rows
from skfedem._data.tables import is_mapped
from skfedem._federation import ClientRows, Federation, sample_weight_of
from skfedem._rows import JoinedRows, ReorderedRows
from skfedem.models.mixture import assignment
from skfedem.models.mixture.messages import mean_of_rows, second_moment
from skfedem.preprocessing import FederatedPCA, FederatedStandardScaler
from watched import peak_memory

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

LENGTHS = (40, 3, 900, 1, 64, 200)
LABELS = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
MINIBATCHES = {"max_iter": 15, "tol": 0, "batch_size": 5, "step_size": 0.05}
FITS = {
    "exact": {"max_iter": 4, "tol": 0},
    "minibatch": {**MINIBATCHES, "participation": 0.5, "omega": 1.0},
    "variance reduced": {**MINIBATCHES, "solver": "vr_fedem"},
}


def tables(dtype=np.float64):
    generator = np.random.default_rng(0)
    return [
        (10 * generator.normal(size=(length, 3)) + 30 * (k % 2)).astype(dtype)
        for k, length in enumerate(LENGTHS)
    ]


def mapped(folder, array):
    """The same numbers in a file."""
    path = folder / f"{len(list(folder.iterdir()))}.npy"
    np.save(path, array)
    return np.load(path, mmap_mode="r")


def fitted(X, clients=None, **parameters):
    return FederatedGaussianMixture(2, random_state=0, **parameters).fit(X, clients=clients)


# ---- rows that are read where they lie


def a_view(name):
    """A view of some rows, and the same rows as one array."""
    parts = tables()
    if name == "joined of both precisions":
        parts[0] = parts[0].astype(np.float32)
    whole = np.concatenate(parts)
    if name != "reordered":
        return JoinedRows(parts), whole
    order = np.random.default_rng(1).permutation(len(whole))
    return ReorderedRows(whole, order), whole[order]


@pytest.mark.parametrize("name", ["joined", "joined of both precisions", "reordered"])
def test_rows_read_where_they_lie_are_those_of_an_array(name):
    view, whole = a_view(name)
    assert (len(view), view.shape, view.dtype) == (len(whole), whole.shape, whole.dtype)
    ends = np.cumsum((0, *LENGTHS)).tolist()
    for start, stop in [*pairwise(ends), (0, len(whole)), (39, 44), (43, 944), (944, 2000)]:
        assert_array_equal(view[start:stop], whole[start:stop])
    positions = np.random.default_rng(2).integers(len(whole), size=500)
    for some in (positions, np.sort(positions), positions[:1]):
        assert_array_equal(view.take(some, axis=0), whole[some])


def test_the_rows_of_one_table_are_not_copied():
    parts = tables()
    view = JoinedRows(parts)
    for k, (start, stop) in enumerate(pairwise(view.offsets.tolist())):
        assert np.shares_memory(view[start:stop], parts[k])
        assert view[start:stop].shape == parts[k].shape


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int16])
@pytest.mark.parametrize("fit", FITS)
def test_clients_in_files_give_the_fit_of_clients_in_memory(tmp_path, fit, dtype):
    clients = tables(dtype)
    files = [mapped(tmp_path, table) for table in clients]
    assert_same_fit(fitted(files, **FITS[fit]), fitted(clients, **FITS[fit]))


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("fit", FITS)
def test_a_labelled_file_gives_the_fit_of_a_labelled_array(tmp_path, fit, shuffled):
    order = np.arange(len(LABELS))
    if shuffled:
        order = np.random.default_rng(3).permutation(order)
    X, labels = np.concatenate(tables())[order], LABELS[order]
    assert_same_fit(
        fitted(mapped(tmp_path, X), labels, **FITS[fit]), fitted(X, labels, **FITS[fit])
    )


@pytest.mark.parametrize("n_rows", [127, 128, 129, 255, 256, 257, 2**15, 2**15 + 1])
def test_rows_of_a_file_are_found_however_many_they_are(tmp_path, n_rows):
    X = np.arange(float(n_rows))[:, None]
    labels = np.arange(n_rows)[::-1]
    rows = read_clients(BaseEstimator(), mapped(tmp_path, X), labels).federation.rows
    assert isinstance(rows, ReorderedRows)
    assert_array_equal(rows[:n_rows], X[::-1])


def test_an_array_in_a_file_is_known_without_numpys_class_for_it(tmp_path):
    (tmp_path / "rows").write_bytes(np.arange(6.0).tobytes())
    with open(tmp_path / "rows", "rb") as file:
        in_file = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    assert is_mapped(np.ndarray((3, 2), buffer=in_file)[1:])
    assert is_mapped(np.frombuffer(in_file).reshape(3, 2))
    assert not is_mapped(np.frombuffer(np.arange(6.0).tobytes()))
    assert not is_mapped(np.arange(6.0).reshape(3, 2)[1:])


@pytest.mark.parametrize("labelled", [False, True])
def test_transformers_take_rows_in_files(tmp_path, labelled):
    clients = tables()
    clients[2][700, 1] = np.nan
    X, labels = clients, None
    if labelled:
        order = np.random.default_rng(3).permutation(len(LABELS))
        X, labels = np.concatenate(clients)[order], LABELS[order]
    files = mapped(tmp_path, X) if labelled else [mapped(tmp_path, table) for table in X]
    for parameters in ({}, {"with_mean": False, "with_std": False}):
        want = FederatedStandardScaler(**parameters).fit(X, clients=labels)
        got = FederatedStandardScaler(**parameters).fit(files, clients=labels)
        for name, value in vars(want).items():
            assert_array_equal(getattr(got, name), value, err_msg=name)


def test_a_large_shuffled_array_is_not_held_twice(monkeypatch):
    order = np.random.default_rng(4).permutation(len(LABELS))
    X, labels = np.concatenate(tables())[order], LABELS[order]
    copied = fitted(X, labels, **FITS["minibatch"])
    monkeypatch.setattr(clients_module, "_LARGEST_COPY", X.nbytes - 1)
    rows = read_clients(BaseEstimator(), X, labels).federation.rows
    assert isinstance(rows, ReorderedRows) and np.shares_memory(rows.table, X)
    assert_same_fit(fitted(X, labels, **FITS["minibatch"]), copied)


@pytest.mark.parametrize("given", ["list", "labels", "shuffled labels"])
def test_no_file_is_read_into_memory(tmp_path, given):
    # Integers: they become floats when they are read.
    n_rows, n_clients = 400_000, 4
    X = np.random.default_rng(0).integers(100, size=(n_rows, 8), dtype=np.int16)
    labels = np.repeat(np.arange(n_clients, dtype=np.int8), n_rows // n_clients)
    if given == "list":
        files, labels = [mapped(tmp_path, part) for part in np.split(X, n_clients)], None
    else:
        files = mapped(tmp_path, X)
    if given == "shuffled labels":
        labels = np.random.default_rng(1).permutation(labels)
    start = {"weights_init": [0.5, 0.5], "means_init": np.tile([[30], [70]], 8)}
    peak = peak_memory(fitted, files, labels, **start, covariance_type="diag", max_iter=2)
    # Blocks of 4 MB; to sort labels takes 16 bytes a row. The table as doubles,
    # which is what the fit computes with, would take 26 MB.
    assert peak < 8 * 2**20 + (16 * n_rows if given == "shuffled labels" else 2 * n_rows)


def test_rows_in_files_of_those_who_take_part_in_a_stream_are_not_copied(tmp_path):
    parts = np.random.default_rng(0).normal(size=(4, 100_000, 16))
    files = [mapped(tmp_path, part) for part in parts]
    start = {"weights_init": [0.5, 0.5], "means_init": np.tile([[-1], [1]], 16)}
    gm = FederatedGaussianMixture(
        2, **start, covariance_type="diag", participation=0.7, random_state=2
    )
    peak = peak_memory(gm.partial_fit, files)
    n_active = gm.history_["n_active"][-1]
    assert 1 < n_active < 4
    # Blocks of 4 MB; the numbers of rows, 8 bytes each, are held three times while they are found.
    # The rows take 128 bytes each.
    assert peak < 8 * 2**20 + 24 * 100_000 * n_active


def test_answers_about_a_file_take_no_more_memory_than_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr("skfedem._mixture.prediction._BLOCK", 2**16)
    X = np.random.default_rng(0).integers(100, size=(400_000, 8), dtype=np.int16)
    file = mapped(tmp_path, X)
    start = {"weights_init": [0.5, 0.5], "means_init": np.tile([[30], [70]], 8)}
    pca = FederatedPCA(4).fit(X[:1000])
    gm = fitted(X[:1000], **start, covariance_type="diag", max_iter=2)
    # As doubles, the table would take 26 MB. A block of a PCA has 2 MB of rows, and as much again
    # once they are centred, and in between; a block of a mixture has half a megabyte.
    for answer, n_numbers in ((gm.predict, 1), (gm.predict_proba, 2), (pca.transform, 4)):
        assert peak_memory(answer, file) < 8 * n_numbers * len(X) + n_numbers * 2**21
        assert_array_equal(answer(file[:50]), answer(X[:50]))
    assert FederatedStandardScaler().fit(file).transform(file[:5]).dtype == np.float64


def test_numbers_in_files_that_do_not_fit_are_named(tmp_path):
    clients = tables()
    clients[2][700, 1] = np.inf
    files = [mapped(tmp_path, table) for table in clients]
    with pytest.raises(ValueError, match=r"got inf in row 700, column 1 of client 2"):
        fitted(files)
    X = np.concatenate(clients)[::-1]
    names = np.array(["a", "b", "c", "d", "e", "f"])[LABELS][::-1]
    with pytest.raises(ValueError, match=r"got inf in row 464, column 1 of client 'c'"):
        fitted(mapped(tmp_path, X), names)


# ---- memory


@pytest.mark.parametrize("n_clients", [1, 5, 1000])
def test_exact_rounds_take_no_more_memory_for_more_rows(n_clients):
    def peak(n_rows):
        X = np.random.default_rng(0).normal(size=(n_rows, 4))
        labels = np.arange(n_rows) * n_clients // n_rows
        return peak_memory(
            fitted, X, labels, means_init=X[:2], weights_init=[0.5, 0.5],
            precisions_init=np.eye(4), covariance_type="tied", max_iter=2,
        )  # fmt: skip

    few, many = peak(900_000), peak(1_400_000)
    # What still grows: two truth values a row where labels are compared. Rows take 32 bytes.
    assert many - few < 2.5 * 500_000


def test_a_fit_holds_one_array_of_controls_and_little_else():
    n_clients, each, d, size = 40_000, 5, 10, 5
    X = np.random.default_rng(0).normal(size=(n_clients * each, d))
    labels = np.repeat(np.arange(n_clients), each)
    parameters = {"covariance_type": "tied", "batch_size": 5, "participation": 100 / n_clients}
    fit = FederatedGaussianMixture(
        size, **parameters, step_size=0.01, max_iter=3, random_state=0, eval_every=None
    ).fit
    peak = peak_memory(fit, X, clients=labels)
    controls = 8 * n_clients * size * (1 + d)
    # A tenth of data and controls, and 6 MB for blocks, which do not grow.
    assert peak - controls < 0.1 * (X.nbytes + labels.nbytes + controls) + 6 * 2**20


@pytest.mark.parametrize(("case", "n_arrays"), [("warm", 1.5), ("joining", 1), ("starts", 2.5)])
def test_who_goes_on_from_controls_or_keeps_the_best_holds_no_more_of_them(case, n_arrays):
    n_clients, d, size = 40_000, 6, 3
    X = np.random.default_rng(0).normal(size=(n_clients + 1, d))
    labels = np.append(np.arange(n_clients), 0)
    gm = FederatedGaussianMixture(
        size, participation=0.5, max_iter=1, tol=0, n_init=3, init_params="random_from_data",
        warm_start=True, random_state=0,
    )  # fmt: skip
    read = gm.fit
    if case != "starts":
        gm.set_params(n_init=1).fit(X, clients=labels)
        X, labels = X[:-1], labels[:-1]  # other rows, the same clients
    if case == "joining":
        # The first call has zeros for the controls of the fit.
        read = gm.partial_fit(X[:1], clients=labels[:1]).partial_fit
        X, labels = X[:1], np.array([n_clients])
    peak = peak_memory(read, X, clients=labels)
    controls = 8 * n_clients * size * (1 + d + d * (d + 1) // 2)
    # Half of the clients prepare new ones. Beside: a quarter of one for data and sums
    # of each client, and 6 MB for blocks, which do not grow.
    assert peak < (n_arrays + 0.25) * controls + 6 * 2**20


def test_clients_of_integers_become_doubles_once():
    X = np.random.default_rng(0).integers(100, size=(100_000, 8), dtype=np.int16)
    for n_clients in (1, 20):
        clients = np.split(X, n_clients)
        peak = peak_memory(read_clients, BaseEstimator(), clients)
        assert peak < 1.2 * 8 * X.size
        rows = read_clients(BaseEstimator(), clients).federation.rows
        assert rows.dtype == np.float64
        assert_array_equal(rows, X)


def test_little_memory_is_needed_beside_labels_and_weights_of_rows():
    n_rows = 400_000
    names = np.array(["a", "b"], dtype=object).repeat(n_rows // 2)
    # Two truth values a row, where labels are compared.
    assert peak_memory(group_rows, names, n_rows) < 2.5 * n_rows
    weights = np.random.default_rng(0).uniform(0.1, 1, n_rows)
    # Running sums, 8 bytes a row, with powers of two, and with what came before each client.
    peak = peak_memory(sample_weight_of, weights, np.array([0, n_rows // 2, n_rows]))
    assert peak < 21 * n_rows


def test_single_precision_is_standardised_without_a_copy_in_double_precision():
    X = np.random.default_rng(0).normal(size=(400_000, 4)).astype(np.float32)
    for order in "CF":
        rows = np.asarray(X, order=order)
        scaler = FederatedStandardScaler().fit(rows)
        for answer in (scaler.transform, scaler.inverse_transform):
            assert peak_memory(answer, rows) < X.nbytes + 6 * 2**20
            assert_array_equal(answer(rows)[-99:], answer(rows[-99:]))


def test_rows_are_restored_from_their_components_without_a_copy_of_these():
    X = np.random.default_rng(0).normal(size=(200_000, 6))
    pca = FederatedPCA().fit(X)
    assert peak_memory(pca.inverse_transform, X) < X.nbytes + 2**20


@pytest.mark.parametrize("family", ["gaussian", "bernoulli", "poisson"])
def test_a_dense_matrix_of_means_is_held_once(family):
    n_rows, n_columns = 4000, 500
    rng = np.random.default_rng(0)
    cells = coo_array((np.ones(2000), (rng.integers(n_rows, size=2000), np.arange(2000) % 500)))
    cells.resize(n_rows, n_columns)
    cells.sum_duplicates()
    cells.data[::2] = 0.0
    cells.data[1::2] = 1.0
    imputer = FederatedMatrixImputer(1, family=family, max_iter=3).fit(cells)
    # Truth values on the way: whether means are far above what was observed.
    for answer in (imputer.fitted_mean, partial(imputer.transform, cells)):
        assert peak_memory(answer) < (8 + 3.5) * n_rows * n_columns + 7 * 2**20
    part = imputer.fitted_mean(rows=[5, 6], columns=[7])
    assert_allclose(imputer.fitted_mean()[5:7, 7:8], part, rtol=1e-12)


# ---- setting up


def test_a_constant_feature_has_itself_for_a_mean():
    # Added up one by one, a million times 0.1 is 100000.0000013.
    rows = np.full((10**6, 1), 0.1)
    federation = Federation(rows, np.array([0, 10**6]), np.ones(1))
    rows = ClientRows(federation, np.arange(1), np.arange(1))
    (center,) = mean_of_rows(rows)
    assert center == 0.1 and second_moment(rows, center, matrix=False) == 0


@pytest.mark.parametrize("init_params", ["kmeans", "k-means++"])
def test_starts_look_at_a_sample_of_many_rows(monkeypatch, init_params):
    monkeypatch.setattr(assignment, "_LARGEST_SAMPLE", 500)
    generator = np.random.default_rng(0)
    X = generator.normal(size=(20_000, 2)) + 50.0 * (np.arange(20_000) % 4 == 0)[:, None]
    federation = Federation(X, np.array([0, 20_000]), np.ones(1))
    values, _, is_sample = assignment._distinct_rows(federation, 0, seed=0, address=0)
    # Of 500 draws from 20,000, six are expected to be repeats.
    assert is_sample and 450 < len(values) <= 500
    mixture = fitted(X, init_params=init_params)
    # Components are 50 standard deviations apart: every row is assigned for certain.
    assert_array_equal(np.sort(mixture.weights_).round(6), [0.25, 0.75])


# ---- several workers


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.slow
def test_bits_do_not_depend_on_the_workers(threads_always_pay, fit):
    generator = np.random.default_rng(0)
    clients = [generator.normal(size=(2 + k % 7, 2)) for k in range(2500)]
    want = fitted(clients, **FITS[fit])
    for n_jobs in (2, 3):
        assert_same_fit(fitted(clients, **FITS[fit], n_jobs=n_jobs), want)
    assert set(threads_always_pay) == {2, 3}
    for backend in ("loky", "threading"):
        with parallel_config(backend, n_jobs=2):
            assert_same_fit(fitted(clients, **FITS[fit]), want)


@pytest.mark.parametrize("layout", ["columns", "Fortran", "zero weights"])
def test_what_is_not_read_of_a_file_is_not_copied(layout, tmp_path):
    n_rows = 400_000
    wide = np.random.default_rng(0).normal(size=(n_rows, 8))
    table = mapped(tmp_path, np.asfortranarray(wide) if layout == "Fortran" else wide)
    if layout == "columns":
        table = table[:, 2:6]
    labels, weights = np.repeat(np.arange(2000), 200), None
    if layout == "zero weights":
        weights = np.ones(n_rows)
        weights[7] = 0.0
    gm = FederatedGaussianMixture(
        2, random_state=0, init_params="random_from_data", batch_size=5, participation=0.01,
        control_init="zeros", eval_every=None, max_iter=5, step_size=0.1,
    )  # fmt: skip
    peak = peak_memory(gm.fit, table, clients=labels, sample_weight=weights)
    # Blocks of up to 4 MB; where rows are left out, the numbers of the others.
    # A copy would take 12 MB of four columns, 24 MB of eight.
    assert peak < 8 * 2**20 + (0 if weights is None else 32 * n_rows)
