"""What the imputer is fitted to, in whatever form, and what it refuses."""

from copy import copy

import numpy as np
import pandas as pd
import pytest
import sklearn
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import coo_array, csr_matrix
from sklearn.model_selection import GridSearchCV

from imputations import (
    CLIENTS,
    EXACT,
    FRAMES,
    N_CLIENTS,
    N_COLUMNS,
    N_ROWS,
    NAN,
    NOTHING,
    OWNERS,
    QUICK,
    SEEN,
    SHAPE,
    SPARSE,
    STACKED,
    TRIPLETS,
)
from problems import assert_same_fit
from skfedem import FederatedMatrixImputer
from skfedem.compression import RandK


@pytest.fixture(scope="module")
def quick():
    return FederatedMatrixImputer(**QUICK).fit(CLIENTS)


# ------------------------------------------------------------------ forms of input

SHARED_FORMS = {
    "tuple": tuple(CLIENTS),
    "nested lists": [client.tolist() for client in CLIENTS],
    "frames": FRAMES,
    "nullable": [pd.DataFrame(client).astype("Int64") for client in CLIENTS],
    "None": [np.where(np.isnan(client), None, client) for client in CLIENTS],
    "masked": [np.ma.masked_invalid(client) for client in CLIENTS],
    "3-D array": np.stack(CLIENTS),
    "coo": SPARSE,
    "csr": [csr_matrix(cells) for cells in SPARSE],
    "float32": [client.astype(np.float32) for client in CLIENTS],
    "fortran": [np.asfortranarray(client) for client in CLIENTS],
    "mixed": [CLIENTS[0], SPARSE[1], CLIENTS[2].tolist(), SPARSE[3].tocsc()],
}


@pytest.mark.parametrize("form", SHARED_FORMS)
def test_clients_of_any_form_give_the_fit_of_arrays(form, quick):
    X = SHARED_FORMS[form]
    assert any((cells.data == 0).any() for cells in SPARSE)  # observed zeros are stored
    got = FederatedMatrixImputer(**QUICK).fit(X)
    assert_same_fit(got, quick)
    assert got.n_clients_ == N_CLIENTS
    assert got.client_ids_.tolist() == [0, 1, 2, 3]
    assert got.n_features_in_ == N_COLUMNS
    assert_allclose(got.score(X), quick.score(CLIENTS), rtol=1e-14)  # tables with labels one by one
    answers = got.transform(X)
    assert isinstance(answers, tuple)
    for answer, want in zip(answers, quick.transform(CLIENTS), strict=True):
        assert_array_equal(answer, want)


@pytest.mark.parametrize("as_client", [np.array, np.ndarray.tolist])
def test_triplets_give_the_fit_of_matrices(as_client, quick):
    X = [as_client(triplets[::-1]) for triplets in TRIPLETS]
    got = FederatedMatrixImputer(**QUICK).fit(X, shape=SHAPE)
    assert_same_fit(got, quick)
    assert got.score(X) == quick.score(CLIENTS)
    for answer, want in zip(got.transform(X), quick.transform(CLIENTS), strict=True):
        assert_array_equal(answer, want)
    # Other forms of a client fit beside them.
    assert_array_equal(got.transform([SPARSE[0]])[0], quick.transform(CLIENTS)[0])
    assert_array_equal(got.transform([np.empty((0, 3))])[0], quick.fitted_mean())
    answers = FederatedMatrixImputer(**QUICK).fit_transform(X, shape=SHAPE)
    assert_array_equal(answers[1], quick.transform(CLIENTS)[1])


def test_triplets_in_frames(quick):
    X = [pd.DataFrame(own, columns=["site", "month", "count"])[::-1] for own in TRIPLETS]
    got = FederatedMatrixImputer(**QUICK).set_output(transform="pandas").fit(X, shape=SHAPE)
    assert_same_fit(got, quick)
    assert_allclose(got.score(X), quick.score(CLIENTS), rtol=1e-14)  # tables with labels one by one
    for frame, want in zip(got.transform(X), quick.transform(CLIENTS), strict=True):
        assert frame.index.tolist() == list(range(N_ROWS))
        assert_array_equal(frame.to_numpy(), want)


LONG = np.concatenate(TRIPLETS)
NOTED_BY = np.repeat(["ann", "bob", "cid", "dan"], [len(own) for own in TRIPLETS])


@pytest.mark.parametrize("as_given", [np.asarray, np.ndarray.tolist, pd.DataFrame])
def test_one_long_table_of_triplets(as_given, quick):
    order = np.random.default_rng(0).permutation(len(LONG))
    X, noted_by = as_given(LONG[order]), NOTED_BY[order]
    got = FederatedMatrixImputer(**QUICK).fit(X, clients=noted_by, shape=SHAPE)
    assert_same_fit(got, quick)
    assert got.client_ids_.tolist() == ["ann", "bob", "cid", "dan"]
    assert_array_equal(got.client_drift_, quick.client_drift_)
    # Triplets alone are what they were in fit, and so they are in a list: the same sums, but for
    # the order of their terms.
    alone = FederatedMatrixImputer(**QUICK).fit([LONG], shape=SHAPE)
    for imputer, given in ((got, X), (got, [X]), (alone, [LONG])):
        assert_allclose(imputer.score(given), quick.score(CLIENTS), rtol=1e-12)
    filled = got.transform(X)
    assert_array_equal(filled, got.transform([X])[0])
    assert filled.shape == SHAPE
    frame = copy(got).set_output(transform="pandas").transform(X)
    assert_array_equal(frame.to_numpy(), filled)
    assert_array_equal(got.transform([SPARSE[0]])[0], quick.transform(CLIENTS)[0])
    # A sparse matrix alone has other rows.
    assert_array_equal(got.transform(SPARSE[0]), quick.transform(SPARSE[0]))


def test_one_long_table_of_one_client(quick):
    one = FederatedMatrixImputer(**QUICK).fit(LONG, shape=SHAPE)
    assert (one.n_clients_, one.client_ids_.tolist()) == (1, [0])
    listed = FederatedMatrixImputer(**QUICK).fit([LONG], shape=SHAPE)
    assert_same_fit(one, listed)
    answer = FederatedMatrixImputer(**QUICK).fit_transform(LONG, shape=SHAPE)
    assert_array_equal(answer, listed.transform([LONG])[0])


@pytest.mark.parametrize("routing", [False, True])
def test_searches_hold_lines_of_a_long_table_out(routing):
    grid = {"penalty": [0.5, 5.0]}
    with sklearn.config_context(enable_metadata_routing=routing):
        search = GridSearchCV(FederatedMatrixImputer(**QUICK), grid, cv=2)
        search.fit(LONG, clients=NOTED_BY, shape=SHAPE)
    halves = np.array_split(np.arange(len(LONG)), 2)
    for penalty, score in zip(grid["penalty"], search.cv_results_["mean_test_score"], strict=True):
        scores = [
            FederatedMatrixImputer(**QUICK)
            .set_params(penalty=penalty)
            .fit(LONG[fitted], clients=NOTED_BY[fitted], shape=SHAPE)
            .score(LONG[held_out])
            for held_out, fitted in (halves, halves[::-1])
        ]
        assert_allclose(score, np.mean(scores), rtol=1e-12)  # the same numbers, a mean of two


def test_triplets_of_polars():
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame(LONG, schema=["site", "month", "count"])
    long = FederatedMatrixImputer(**QUICK).fit(frame, clients=NOTED_BY, shape=SHAPE)
    assert long.score(frame) == long.score(LONG)
    assert_array_equal(long.transform(frame), long.transform(LONG))
    for answer in (long.transform, long.score):
        with pytest.raises(TypeError, match="of type LazyFrame"):
            answer(frame.lazy())


def test_what_is_no_long_table_of_triplets():
    one_owner = ["ann"] * N_ROWS
    for X, clients, says in (
        (SPARSE[0], None, "got a sparse matrix, which has a shape of its own. Fit without"),
        (CLIENTS[0], one_owner, r"Expected triplets .* got shape \(12, 8\)\. "),
        (LONG, NOTED_BY[1:], f"one label for each of the {len(LONG)} rows"),
        ({"ann": LONG}, None, "of type dict"),
        (1 + LONG, NOTED_BY, r"(site|month) numbers to be integers .* in triplet \d+\. Number"),
    ):
        with pytest.raises((TypeError, ValueError), match=says):
            FederatedMatrixImputer(**QUICK).fit(X, clients=clients, shape=SHAPE)
    long = FederatedMatrixImputer(**QUICK).fit(LONG, clients=NOTED_BY, shape=SHAPE)
    frame = pd.DataFrame(LONG, columns=["site", "month", "count"])
    for answer in (long.transform, long.score):
        with pytest.raises(ValueError, match="datetime64.* in column 'month'"):
            answer(frame.assign(month=pd.Timestamp("2020-01-01")))
    for answer in (long.transform, long.score):
        with pytest.raises(ValueError, match=r"^Expected triplets .* got shape \(12, 7\)"):
            answer(CLIENTS[0][:, 1:])
    with pytest.raises(ValueError, match="got -1.0 in site 3, month 2 of client 'bob'"):
        FederatedMatrixImputer(**QUICK).fit(
            [[0, 0, 1.0], [3, 2, -1.0]], clients=["ann", "bob"], shape=SHAPE
        )


@pytest.mark.parametrize(
    ("X", "parameters"),
    [
        ([np.stack(CLIENTS)], {}),
        ([np.stack(CLIENTS[:2]), *CLIENTS[2:]], {}),
        ([np.concatenate(TRIPLETS)], {"shape": SHAPE}),
        ([TRIPLETS[0], np.concatenate(TRIPLETS[1:])], {"shape": SHAPE}),
        ([TRIPLETS[0], SPARSE[1], np.stack(CLIENTS[2:])], {"shape": SHAPE}),
    ],
    ids=["one 3-D", "3-D and 2-D", "one of triplets", "two of triplets", "all together"],
)
def test_all_observations_of_a_cell_count_whoever_made_them(X, parameters, fitted):
    got = FederatedMatrixImputer(**EXACT).fit(X, **parameters)
    assert got.n_clients_ == len(X)
    # The same sums in another order, and twenty rounds that pass rounding on.
    assert_allclose(got.objective_, fitted.objective_, rtol=1e-10)
    assert_allclose(got.score(X), fitted.score(CLIENTS), rtol=1e-10)
    assert_allclose(got.fitted_mean(), fitted.fitted_mean(), rtol=1e-7)


def test_rows_of_ones_own_are_those_of_one_matrix():
    alone = FederatedMatrixImputer(**EXACT).fit(STACKED)
    assert (alone.n_clients_, alone.client_ids_.tolist()) == (1, [0])
    labelled = FederatedMatrixImputer(**EXACT).fit(STACKED, clients=OWNERS)
    assert labelled.client_ids_.tolist() == ["ann", "bob", "cid", "dan"]
    disjoint = FederatedMatrixImputer(**EXACT, rows="disjoint").fit(CLIENTS)
    assert_array_equal(disjoint.row_offsets_, np.arange(len(CLIENTS) + 1) * N_ROWS)
    sparse = FederatedMatrixImputer(**EXACT).fit(coo_array(np.where(np.isnan(STACKED), 0, 1.0)))
    assert sparse.n_features_in_ == N_COLUMNS
    three = FederatedMatrixImputer(**EXACT, rows="disjoint").fit(np.stack(CLIENTS))
    mixed = [np.stack(CLIENTS[:2]), *CLIENTS[2:]]
    for got in (labelled, disjoint, three):
        assert got.row_effects_.shape == (N_CLIENTS * N_ROWS,)
        assert_allclose(got.objective_, alone.objective_, rtol=1e-10)
        for X in (CLIENTS, STACKED, mixed, [STACKED], np.stack(CLIENTS)):
            # Newton's method for a row stops at a gradient of 1e-10.
            assert_allclose(got.score(X), alone.score(STACKED), rtol=1e-7)
        answers = got.transform(mixed)
        assert [answer.shape for answer in answers] == [(2, *SHAPE), SHAPE, SHAPE]
        flat = np.concatenate([answers[0].reshape(-1, N_COLUMNS), *answers[1:]])
        assert_allclose(flat, alone.transform(STACKED), rtol=1e-4)
        assert_allclose(got.transform([STACKED[5:7]])[0], got.transform(STACKED)[5:7], rtol=1e-9)


def test_missing_values_may_have_a_mark(quick):
    marked = [np.where(np.isnan(client), -1, client).astype(int) for client in CLIENTS]
    got = FederatedMatrixImputer(**QUICK, missing_values=-1).fit(marked)
    assert_same_fit(got, quick)
    assert_array_equal(got.transform(marked)[0], quick.transform(CLIENTS)[0])


def test_the_data_stay_as_they_are():
    frames = [frame.copy() for frame in FRAMES]
    sparse = [cells.copy() for cells in SPARSE]
    triplets = [own.copy() for own in TRIPLETS]
    for X, keywords in ((frames, {}), (sparse, {}), (triplets, {"shape": SHAPE})):
        imputer = FederatedMatrixImputer(**QUICK).fit(X, **keywords)
        imputer.score(X)
        for answer in imputer.transform(X):
            answer[:] = -1
    for frame, want in zip(frames, FRAMES, strict=True):
        pd.testing.assert_frame_equal(frame, want)
    for cells, want in zip(sparse, SPARSE, strict=True):
        assert_array_equal(cells.data, want.data)
    for own, want in zip(triplets, TRIPLETS, strict=True):
        assert_array_equal(own, want)
    imputer = FederatedMatrixImputer(**QUICK).fit(STACKED)
    filled = imputer.transform(np.array(STACKED))
    filled[:] = -1
    assert (imputer.transform(STACKED) >= 0).all()


def test_triplets_without_their_shape_give_a_warning():
    triplets = [np.column_stack([*np.nonzero(c == c), c[c == c]]) for c in CLIENTS]
    together, owners = np.concatenate(triplets), np.repeat(range(N_CLIENTS), [*map(len, triplets)])
    imputer = FederatedMatrixImputer(**{**QUICK, "rank": 1})
    with pytest.warns(UserWarning, match=r"three months.* give shape=\(number of sites, number"):
        imputer.fit(together, clients=owners)
    for X in ([client[:20] for client in triplets], pd.DataFrame(together).sort_values(2)):
        with pytest.warns(UserWarning, match="treated as three months"):
            imputer.fit(X)
    imputer.fit(pd.DataFrame(together), clients=owners, shape=CLIENTS[0].shape)  # warns nothing
    imputer.set_params(family="gaussian")
    gaps, halves, less = together.copy(), together.copy(), together.copy()
    gaps[[3, 7, 11], 1], halves[3, 1], less[3, 1] = np.nan, 0.5, -1
    more = np.column_stack([together, np.full(len(together), np.nan)])
    for matrix in (gaps, halves, less, more, together > 1):
        imputer.fit(matrix, clients=owners)
    imputer.fit([coo_array(together + 1)])
    imputer.fit(together[None])


def test_repeated_row_labels_give_a_warning():
    table = np.where(CLIENTS[0] == CLIENTS[0], CLIENTS[0], CLIENTS[1])
    names = ["dune", "bog", *range(2, N_ROWS)]
    imputer = FederatedMatrixImputer(**QUICK).fit(pd.DataFrame(table, index=names))  # no warning
    names[5] = names[7] = "bog"
    with pytest.warns(UserWarning, match="3 rows have the label 'bog'"):
        imputer.fit(pd.DataFrame(table, index=names))
    # Rows with labels of clients are sites of their own: two clients may have a bog.
    imputer.fit(pd.DataFrame(table, index=names), clients=np.arange(N_ROWS) % 3)
    imputer.set_params(rows="disjoint").fit([pd.DataFrame(table, index=names)])


# ------------------------------------------------------------------ what is refused

PARAMETERS = [
    ({"rank": 9}, ValueError, r"rank <= min\(n_rows, n_columns\), got 9 .* shape \(12, 8\)"),
    ({"rank": -1}, ValueError, ">= 0, got -1. Use None for no bound, and 0 for effects alone"),
    ({"rank": 2.0}, TypeError, "rank to be an integer"),
    ({"family": "normal"}, ValueError, "family to be one of 'gaussian', 'bernoulli', 'poisson'"),
    ({"penalty": -1}, ValueError, "penalty to be a number >= 0, got -1"),
    ({"penalty": NAN}, ValueError, "penalty to be a finite number >= 0, got nan"),
    ({"penalty": np.inf}, ValueError, "penalty to be a finite number >= 0, got inf"),
    ({"penalty": "big"}, TypeError, "penalty to be a number"),
    ({"effects": "all"}, ValueError, "effects to be one of 'both', 'rows', 'columns', 'none'"),
    ({"rows": "own"}, ValueError, "rows to be one of 'shared', 'disjoint'"),
    ({"solver": "em"}, ValueError, "solver to be one of 'fedem', 'vr_fedem'"),
    ({"warm_start": 1}, TypeError, "warm_start to be True or False"),
    ({"participation": 0.0}, ValueError, "participation to be a number > 0"),
    ({"missing_values": "?"}, TypeError, "missing_values to be a number or NaN"),
    ({"max_iter": None}, ValueError, "max_iter or max_epochs to bound the fit"),
    (
        {"batch_size": 40, "replacement": False},
        ValueError,
        "batch_size=40 observed cells for every client with replacement=False, got 37 for client 0",
    ),
]
DATA = [
    ([CLIENTS[0], -CLIENTS[1]], "non-negative integers .* in row 0, column . of client 1"),
    ([CLIENTS[0], CLIENTS[1][:5]], "12 rows for every client .* got 5 for client 1.*reindex"),
    ([CLIENTS[0], CLIENTS[1][:, :5]], "8 columns for every client .* got 5 for client 1.*reindex"),
    ([NOTHING, NOTHING], "at least one observed cell, got none from 2 clients"),
    ([], "at least one client"),
    ([FRAMES[0], FRAMES[1][::-1]], "row labels of client 0"),
]


@pytest.mark.parametrize(("parameters", "error", "says"), PARAMETERS)
def test_parameters_that_do_not_fit_leave_the_last_fit(quick, parameters, error, says):
    imputer = copy(quick)
    before = dict(vars(imputer))
    imputer.set_params(**parameters)
    with pytest.raises(error, match=says):
        imputer.fit(CLIENTS)
    for name in set(before) - set(parameters):
        assert vars(imputer)[name] is before[name], name
    fresh = FederatedMatrixImputer(**{**EXACT, **parameters})
    with pytest.raises(error, match=says):
        fresh.fit(CLIENTS)
    assert vars(fresh).keys() == FederatedMatrixImputer().get_params().keys()


@pytest.mark.parametrize(("X", "says"), DATA)
def test_data_that_do_not_fit_leave_the_last_fit(named, X, says):
    imputer = copy(named)
    before = dict(vars(imputer))
    with pytest.raises(ValueError, match=says):
        imputer.fit(X)
    assert vars(imputer) == before
    fresh = FederatedMatrixImputer(**EXACT)
    with pytest.raises(ValueError, match=says):
        fresh.fit(X)
    assert vars(fresh).keys() == fresh.get_params().keys()


@pytest.mark.parametrize(
    ("change", "X"),
    [({"family": "gaussian"}, CLIENTS), ({}, [client[:5] for client in CLIENTS])],
    ids=["family", "shape"],
)
def test_warm_start_of_another_matrix(quick, change, X):
    imputer = copy(quick).set_params(warm_start=True)
    before = imputer.fitted_mean()
    says = r"Expected a matrix of shape \(12, 8\) and family='poisson' as in the last fit"
    with pytest.raises(ValueError, match=says):
        imputer.set_params(**change).fit(X)
    assert_array_equal(imputer.fitted_mean(), before)


def test_what_says_whose_rows_are_does_not_say_it_twice():
    with pytest.raises(ValueError, match="Expected `clients=None` with a list of clients"):
        FederatedMatrixImputer().fit(CLIENTS, clients=OWNERS)
    for X in (TRIPLETS, TRIPLETS[0]):
        with pytest.raises(ValueError, match="Expected rows='shared' with `shape`"):
            FederatedMatrixImputer(rows="disjoint").fit(X, shape=SHAPE)


def test_presences_are_zero_or_one():
    with pytest.raises(ValueError, match="Expected 0 or 1 for family='bernoulli', got 0.5"):
        FederatedMatrixImputer(family="bernoulli").fit([np.full(SHAPE, 0.5)])


def test_a_compressor_coarser_than_omega_is_said():
    imputer = FederatedMatrixImputer(**{**EXACT, "tol": 10.0}, omega=1.0, compressor=RandK(k=3))
    with pytest.warns(UserWarning, match="for messages of 44 numbers, more than omega=1"):
        imputer.fit(CLIENTS)
    assert max(seen.sum() for seen in SEEN) == 44
