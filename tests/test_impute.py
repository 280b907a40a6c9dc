import pickle
import re
import tracemalloc
import warnings
from copy import copy
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import sklearn
from joblib import parallel_config
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from scipy.optimize import brentq
from scipy.sparse import coo_array, csr_matrix
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer

from problems import assert_same_fit, fit_unconverged
from skfedem import (
    FederatedMatrixImputer,
    FederatedMatrixImputerCV,
    _fitted_matrix,
    _matrix_warnings,
    _parallel,
)
from skfedem._compat import SEEDED_ARPACK
from skfedem._matrix_warnings import instead_of_more_rounds, warn_of_means
from skfedem.compression import Dithering, RandK
from skfedem.datasets import make_site_counts
from skfedem.models import main_effects

N_ROWS, N_COLUMNS = SHAPE = (12, 8)
N_CLIENTS = 4
NAN = np.nan
HISTORY_COLUMNS = {
    "round",
    "epoch",
    "objective",
    "field_sq_norm",
    "mean_field_sq_norm",
    "step_size",
    "n_active",
    "uplink_bits",
    "downlink_bits",
    "safeguarded",
    "singular_values",
}
FITTED = (
    "row_factors_",
    "singular_values_",
    "column_factors_",
    "row_effects_",
    "column_effects_",
    "intercept_",
    "objective_",
    "client_drift_",
)
EXACT = {"rank": 4, "family": "poisson", "penalty": 2.0, "random_state": 0}
# For what does not depend on how far a fit goes.
QUICK = {**EXACT, "tol": 1e-2}
# Random in every way at once; enough rounds to converge.
STOCHASTIC = {
    **EXACT,
    "solver": "vr_fedem",
    "omega": 1.0,
    "participation": 0.75,
    "batch_size": 5,
    "tol": 1e-4,
    "max_iter": 2000,
}
FAMILIES = ("gaussian", "bernoulli", "poisson")
LOG_LIKELIHOODS = {
    "gaussian": stats.norm.logpdf,
    "bernoulli": stats.bernoulli.logpmf,
    "poisson": stats.poisson.logpmf,
}
every_family = pytest.mark.parametrize("family", FAMILIES)


def make_clients(n_clients=N_CLIENTS, share=0.4, seed=0):
    """Counts of several observers, read-only, so that no fit may change them."""
    generator = np.random.default_rng(seed)
    theta = 1 + 0.5 * generator.standard_normal(N_ROWS)[:, None]
    theta = theta + 0.6 * np.outer(
        generator.standard_normal(N_ROWS), generator.standard_normal(N_COLUMNS)
    )
    clients = []
    for _ in range(n_clients):
        counts = generator.poisson(np.exp(theta)).astype(float)
        counts[generator.random(SHAPE) > share] = NAN
        counts.setflags(write=False)
        clients.append(counts)
    return clients


CLIENTS = make_clients()
SEEN = [~np.isnan(client) for client in CLIENTS]
N_OBSERVATIONS = sum(seen.sum() for seen in SEEN)
STACKED = np.concatenate(CLIENTS)
OWNERS = np.repeat(["ann", "bob", "cid", "dan"], N_ROWS)
SITES, MONTHS = [f"site {j}" for j in range(N_ROWS)], [f"month {k}" for k in range(N_COLUMNS)]
FRAMES = [pd.DataFrame(client, SITES, MONTHS) for client in CLIENTS]
SPARSE = [
    coo_array((client[seen], np.nonzero(seen)), shape=SHAPE)
    for client, seen in zip(CLIENTS, SEEN, strict=True)
]
TRIPLETS = [np.column_stack([cells.row, cells.col, cells.data]) for cells in SPARSE]
NOTHING = np.full(SHAPE, NAN)


def of_family(family, clients=CLIENTS):
    if family == "bernoulli":
        return [np.where(np.isnan(client), NAN, client > 2) for client in clients]
    return clients


def observed(clients, fitted):
    """Observations of all clients, and the fitted values in their cells."""
    seen = [~np.isnan(client) for client in clients]
    values = [client[own] for client, own in zip(clients, seen, strict=True)]
    return np.concatenate(values), np.concatenate([fitted[own] for own in seen])


@pytest.fixture(scope="module")
def fitted():
    return FederatedMatrixImputer(**EXACT).fit(CLIENTS)


@pytest.fixture(scope="module")
def quick():
    return FederatedMatrixImputer(**QUICK).fit(CLIENTS)


@pytest.fixture(scope="module")
def named():
    return FederatedMatrixImputer(**QUICK).fit(FRAMES)


@pytest.fixture(scope="module")
def of_triplets():
    return FederatedMatrixImputer(**QUICK).fit(TRIPLETS, shape=SHAPE)


def assert_finite(imputer):
    for name in FITTED:
        assert np.isfinite(getattr(imputer, name)).all(), name
    assert np.isfinite(imputer.fitted_mean()).all()
    for name in ("round", "epoch", "n_active", "uplink_bits", "downlink_bits", "singular_values"):
        assert np.isfinite(imputer.history_[name]).all(), name


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
        with pytest.raises(TypeError, match="LazyFrame.*collect"):
            answer(frame.lazy())


def test_what_is_no_long_table_of_triplets():
    one_owner = ["ann"] * N_ROWS
    for X, clients, says in (
        (SPARSE[0], None, "got a sparse matrix, which has a shape of its own. Fit without"),
        (CLIENTS[0], one_owner, r"Expected triplets .* got shape \(12, 8\) in the table\. "),
        (LONG, NOTED_BY[1:], f"one label for each of the {len(LONG)} rows"),
        ({"ann": LONG}, None, r"got a dict\. Give list\(X\.values\(\)\)"),
        (
            1 + LONG,
            NOTED_BY,
            r"(site|month) numbers to be integers from 0 to .* in triplet \d+\. Number",
        ),
    ):
        with pytest.raises((TypeError, ValueError), match=says):
            FederatedMatrixImputer(**QUICK).fit(X, clients=clients, shape=SHAPE)
    long = FederatedMatrixImputer(**QUICK).fit(LONG, clients=NOTED_BY, shape=SHAPE)
    frame = pd.DataFrame(LONG, columns=["site", "month", "count"])
    for answer in (long.transform, long.score):
        with pytest.raises(ValueError, match="datetime64.* in column 'month'"):
            answer(frame.assign(month=pd.Timestamp("2020-01-01")))
    for answer in (long.transform, long.score):
        with pytest.raises(ValueError, match=r"^Expected triplets .* got shape \(12, 8\)"):
            answer(CLIENTS[0])
    with pytest.raises(ValueError, match="got -1.0 in row 3, column 2 of client 'bob'"):
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


# ------------------------------------------------------------------ what is fitted


@every_family
@pytest.mark.parametrize("effects_penalty", [0.0, 0.01, 2.0])
def test_the_objective_is_that_of_the_docstring(family, effects_penalty):
    X = of_family(family)
    imputer = FederatedMatrixImputer(
        2, family=family, penalty=0.7, effects_penalty=effects_penalty
    ).fit(X)
    values, means = observed(X, imputer.fitted_mean())
    log_likelihood = LOG_LIKELIHOODS[family](values, means).sum()
    want = -log_likelihood + 0.7 * imputer.singular_values_.sum()
    squares = (imputer.row_effects_**2).sum() + (imputer.column_effects_**2).sum()
    assert_allclose(imputer.objective_, want + max(effects_penalty, 1e-7) / 2 * squares, rtol=1e-12)
    assert_allclose(imputer.history_["objective"][-1], imputer.objective_, rtol=1e-12)


@pytest.mark.parametrize("number", [np.int8, np.float16, np.longdouble, Fraction])
def test_numbers_of_any_type_are_used_as_pythons(number):
    # The numbers of 8 factors leave 8 bits, 2**9 squared and summed over cells 16.
    if number is np.int8:
        plain = {"rank": 8, "batch_size": 5, "max_iter": 4}
    else:
        plain = {"penalty": 512.0, "effects_penalty": 0.5, "step_size": 0.25, "omega": 1.5}
    rest = {"family": "gaussian", "omega": 1.0, "tol": 0, "random_state": 0, "max_iter": 4}
    odd = {name: number(value) for name, value in plain.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        got, want = (
            FederatedMatrixImputer(**rest | parameters).fit(CLIENTS) for parameters in (odd, plain)
        )
    for name in FITTED:
        assert_array_equal(getattr(got, name), getattr(want, name), err_msg=name)
    for name, column in want.history_.items():
        assert_array_equal(got.history_[name], column, err_msg=name)
    assert type(got.objective_) is float
    assert got.score(CLIENTS) == want.score(CLIENTS)


@every_family
def test_score_is_the_mean_log_likelihood_of_the_observations(family):
    X = of_family(family)
    imputer = FederatedMatrixImputer(2, family=family, penalty=0.7).fit(X[:3])
    held_out = X[3:]
    values, means = observed(held_out, imputer.fitted_mean())
    assert isinstance(imputer.score(held_out), float)
    assert_allclose(
        imputer.score(held_out), LOG_LIKELIHOODS[family](values, means).mean(), rtol=1e-12
    )
    assert_allclose(imputer.score([*held_out, NOTHING]), imputer.score(held_out), rtol=1e-14)
    assert_allclose(imputer.score([np.stack(held_out)]), imputer.score(held_out), rtol=1e-14)
    # So it is after a fit to a matrix alone, whose rows are the sites of one client.
    alone, listed = (clone(imputer).fit(train) for train in (X[0], [X[0]]))
    assert_allclose(alone.score(held_out), listed.score(held_out), rtol=1e-12)
    assert_allclose(alone.transform(held_out)[0], listed.transform(held_out)[0], rtol=1e-12)
    with pytest.raises(ValueError, match=f"Expected the {N_ROWS} rows of the fit"):
        alone.score([held_out[0][1:]])
    # Rows alone are fitted to what they show before they are scored.
    assert imputer.score(held_out[0]) > imputer.score(held_out) + 0.01


@pytest.mark.parametrize("effects", ["both", "rows", "columns", "none"])
def test_theta_is_the_sum_of_its_parts(effects):
    imputer = FederatedMatrixImputer(**{**EXACT, "effects": effects}).fit(CLIENTS)
    n_factors = len(imputer.singular_values_)
    assert 0 < n_factors <= 4
    assert (np.diff(imputer.singular_values_) <= 0).all()
    assert imputer.row_factors_.shape == (N_ROWS, n_factors)
    assert imputer.column_factors_.shape == (N_COLUMNS, n_factors)
    for factors in (imputer.row_factors_, imputer.column_factors_):
        assert_allclose(factors.T @ factors, np.eye(n_factors), atol=1e-12)
    theta = imputer.intercept_ + imputer.row_effects_[:, None] + imputer.column_effects_
    theta = theta + imputer.row_factors_ * imputer.singular_values_ @ imputer.column_factors_.T
    assert_allclose(imputer.fitted_mean(), np.exp(theta), rtol=1e-12)
    assert isinstance(imputer.intercept_, float)
    assert (imputer.intercept_ == 0) == (effects == "none")
    for own, name in ((imputer.row_effects_, "rows"), (imputer.column_effects_, "columns")):
        assert abs(own.mean()) < 1e-12
        assert own.any() == (effects in ("both", name))


def test_fitted_mean_of_some_cells(fitted):
    means = fitted.fitted_mean()
    assert means.shape == SHAPE
    assert_allclose(fitted.fitted_mean([3, 1, 3]), means[[3, 1, 3]], rtol=1e-12)
    assert_allclose(fitted.fitted_mean(columns=[0, -1]), means[:, [0, -1]], rtol=1e-12)
    assert_allclose(fitted.fitted_mean([-N_ROWS], [-N_COLUMNS]), means[:1, :1], rtol=1e-12)
    assert_allclose(
        fitted.fitted_mean(np.array([2, -1]), (0, 5)), means[np.ix_([2, -1], [0, 5])], rtol=1e-12
    )
    assert_allclose(fitted.fitted_mean(3, 4), means[3:4, 4:5], rtol=1e-12)
    assert fitted.fitted_mean([], [1, 2]).shape == (0, 2)


@pytest.mark.parametrize(
    ("index", "error", "says"),
    [
        ([12], IndexError, "rows from 0 to 11, or from -12 to -1 .* got 12"),
        ([0, -13], IndexError, "got -13"),
        ([0.5], TypeError, "Expected rows to be a list of integers, .* float64"),
        (np.zeros(N_ROWS, bool), TypeError, "numpy.flatnonzero makes numbers of a mask"),
        (np.ma.array([0, 1], mask=[0, 1]), ValueError, "rows without masked entries"),
        ([[0, 1]], TypeError, r"shape \(1, 2\)"),
        ("a", TypeError, "list of integers"),
    ],
)
def test_fitted_mean_of_cells_that_are_not_there(fitted, index, error, says):
    with pytest.raises(error, match=says):
        fitted.fitted_mean(index)
    with pytest.raises(error):
        fitted.fitted_mean(columns=index)


@pytest.mark.parametrize("offset", [1e6, -1e9])
@pytest.mark.parametrize(
    "noise", [{}, {"omega": 1.0, "participation": 0.7, "tol": 1e-3, "max_iter": 2000}]
)
def test_an_offset_of_normal_cells_changes_the_intercept_alone(noise, offset):
    rng = np.random.default_rng(0)
    table = 2 * rng.normal(size=(30, 2)) @ rng.normal(size=(2, 20)) + rng.normal(size=(30, 20))
    # Sixty-fourths, which an offset leaves as they are.
    table = np.round(64 * table) / 64
    clients = [np.where(rng.random(table.shape) < 0.3, table, NAN) for _ in range(3)]
    there = [own + offset for own in clients]
    imputer = FederatedMatrixImputer(None, penalty=3.0, random_state=0, **noise)
    near, far = clone(imputer).fit(clients), clone(imputer).fit(there)
    # What an offset has digits for, a few times.
    digits = {"rtol": 0, "atol": 1e-15 * abs(offset)}
    assert far.n_iter_ == near.n_iter_
    assert_allclose(far.objective_, near.objective_, rtol=1e-9)
    assert_allclose(far.intercept_ - offset, near.intercept_, **digits)
    assert_allclose(far.fitted_mean() - offset, near.fitted_mean(), **digits)
    assert_allclose(far.score(there), near.score(clients), rtol=1e-6)
    others = clients[0][::-1].copy()
    assert_allclose(far.transform(others + offset) - offset, near.transform(others), **digits)
    assert_allclose(far.score(others + offset), near.score(others), rtol=1e-6)
    again = clone(imputer).set_params(warm_start=True, max_iter=2000).fit(there)
    assert again.fit(clients[::-1]).converged_
    assert_allclose(again.objective_, near.objective_, rtol=1e-3)


def test_rounds_do_not_stop_while_momentum_gathers_pace():
    # Gains of the first rounds are below tol, and a thousand times as large in sum.
    counts = np.array([[588.0, 44.0, 32.0, 1.0]])
    clients = [np.where(mask, counts, NAN) for mask in np.eye(4, dtype=bool)[[0]]]
    clients.append(np.where(np.arange(4) > 0, counts, NAN))
    imputer = FederatedMatrixImputer(None, family="poisson", penalty=0.009, max_iter=3000)
    fit = clone(imputer).fit(clients)
    optimum = imputer.set_params(tol=1e-10).fit(clients).objective_
    # A hundred times tol at most, as its docstring says.
    assert fit.converged_ and fit.objective_ < optimum * (1 + 1e-4)


@pytest.mark.parametrize("effects", ["none", "both"])
@pytest.mark.parametrize("noise", [{}, {"omega": 1.0, "participation": 0.7, "max_iter": 2000}])
def test_units_of_normal_cells_do_not_matter(effects, noise):
    rng = np.random.default_rng(0)
    table = rng.normal(size=(30, 3)) @ rng.normal(size=(3, 20)) + rng.normal(size=(30, 20))
    table[rng.random(table.shape) < 0.5] = np.nan
    tables = np.split(table, [5, 12, 20])
    # Powers of two change no digit but in sums with the constant log(2 π) / 2.
    large, small = (
        FederatedMatrixImputer(
            4, penalty=3 * unit, effects=effects, rows="disjoint", random_state=0, **noise
        ).fit([unit * own for own in tables])
        for unit in (1.0, 2.0**-12)
    )
    assert abs(large.n_iter_ - small.n_iter_) <= 10
    assert large.n_iter_ > 15
    # Within what tol leaves; main effects are solved for to 1e-5.
    assert_allclose(2.0**12 * small.fitted_mean(), large.fitted_mean(), atol=0.01)


@pytest.mark.parametrize("effects", ["both", "rows", "columns"])
def test_effects_follow_the_smallest_units(effects):
    table = np.array([[15.0, 17.0, 18.0], [14.0, NAN, 16.5]])
    large, small = (
        FederatedMatrixImputer(1, penalty=100 * unit, effects=effects).fit(unit * table)
        for unit in (1.0, 2.0**-80)
    )
    assert_allclose(2.0**80 * small.fitted_mean(), large.fitted_mean(), rtol=1e-6)


def test_units_of_cells_that_were_observed_again_and_again_do_not_matter():
    rng = np.random.default_rng(0)
    rows, columns = rng.integers(12, size=600), rng.integers(9, size=600)
    values = rng.normal(size=(12, 2))[rows] @ rng.normal(size=(2, 9))
    values = values[np.arange(600), columns] + rng.normal(size=600)
    clients = rng.integers(4, size=600)

    def fit(unit):
        tables = [np.column_stack([rows, columns, unit * values])[clients == k] for k in range(4)]
        imputer = FederatedMatrixImputer(3, penalty=5 * unit, effects="none")
        return imputer.fit(tables, shape=(12, 9))

    large, small = fit(1.0), fit(2.0**-12)
    assert large.n_iter_ > 10
    assert large.n_iter_ == small.n_iter_
    assert_allclose(2.0**12 * small.fitted_mean(), large.fitted_mean(), rtol=1e-9)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("step_size", [lambda k: 1e-8**k, 1e-300])
def test_steps_whose_squares_vanish(step_size):
    imputer = FederatedMatrixImputer(
        2, family="poisson", omega=1.0, step_size=step_size, max_iter=22, random_state=0
    )
    imputer.fit(make_clients())
    assert np.isfinite(imputer.fitted_mean()).all()


def test_effects_that_fit_to_rounding_are_let_be(monkeypatch):
    calls = []
    objective = main_effects._objective

    def counted(*args):
        calls.append(1)
        return objective(*args)

    monkeypatch.setattr(main_effects, "_objective", counted)
    imputer = FederatedMatrixImputer(1, family="bernoulli", tol=0, max_iter=250)
    fit_unconverged(imputer, np.ones((1, 1)))
    # A step of Newton's in a round, now and then another: none is halved for what is rounding.
    assert len(calls) < 5 * imputer.n_iter_


def test_a_penalty_that_leaves_only_effects():
    imputer = FederatedMatrixImputer(**{**EXACT, "penalty": 1e6}).fit(CLIENTS)
    assert imputer.singular_values_.shape == (0,)
    assert imputer.row_factors_.shape == (N_ROWS, 0)
    assert imputer.column_factors_.shape == (N_COLUMNS, 0)
    assert imputer.history_["singular_values"].shape == (imputer.n_iter_ + 1, 4)
    assert not imputer.history_["singular_values"].any()
    # The margins of a log-linear model fit exactly, but for the ridge.
    values, means = observed(CLIENTS, imputer.fitted_mean())
    assert_allclose(means.sum(), values.sum(), rtol=1e-6)
    assert imputer.transform(CLIENTS)[0].shape == SHAPE
    assert imputer.transform(STACKED[:3]).shape == (3, N_COLUMNS)
    assert_finite(pickle.loads(pickle.dumps(imputer)))
    imputer.set_params(warm_start=True, penalty=2.0).fit(CLIENTS)
    assert len(imputer.singular_values_) > 0


def test_rank_none_is_no_bound_and_rank_is_one():
    free = FederatedMatrixImputer(**{**EXACT, "rank": None}).fit(CLIENTS)
    assert free.history_["singular_values"].shape[1] == N_COLUMNS
    assert len(free.singular_values_) > 2
    bound = FederatedMatrixImputer(**{**EXACT, "rank": 2}).fit(CLIENTS)
    assert bound.singular_values_.shape == (2,)
    assert free.objective_ < bound.objective_


@pytest.mark.parametrize("rank", [3, 8])
def test_a_rank_that_does_not_bind_loses_no_client_with_sites_and_months_of_its_own(rank):
    generator = np.random.default_rng(0)

    def signs(*shape):
        return generator.choice([-1.0, 1.0], size=shape)

    # At the start the few cells of the large pattern have many singular values above those of the
    # small one; in the end they have one.
    X = np.full((120, 80), np.nan)
    X[:60, :40] = np.where(generator.random((60, 40)) < 0.12, 5 * signs(60, 1) * signs(40), np.nan)
    small = 0.8 * signs(60, 1) * signs(40)
    X[60:, 40:] = np.where(generator.random((60, 40)) < 0.3, small, np.nan)
    first, second = X.copy(), X.copy()
    first[60:], second[:60] = np.nan, np.nan
    bounded, unbounded = (
        FederatedMatrixImputer(rank, effects="none", penalty=9.0).fit([first, second])
        for rank in (rank, None)
    )
    assert len(bounded.singular_values_) == len(unbounded.singular_values_) == 2
    # tol leaves an objective up to a hundred times 1e-6 above its minimum.
    assert_allclose(bounded.objective_, unbounded.objective_, rtol=1e-4)


def test_no_penalty():
    imputer = FederatedMatrixImputer(2, family="poisson", penalty=0.0, max_iter=1000)
    imputer.fit(CLIENTS)
    assert_finite(imputer)
    assert imputer.objective_ < FederatedMatrixImputer(**EXACT).fit(CLIENTS).objective_


def test_client_weights():
    # Client 0 has a cell, client 1 has three: alike, the one counts as much as the three.
    one, three = (
        coo_array(([0.0], ([0], [0])), (2, 2)),
        coo_array(([3.0] * 3, ([0, 0, 1], [0, 1, 0])), (2, 2)),
    )
    parameters = {"rank": 1, "penalty": 1e6, "effects": "rows", "effects_penalty": 0, "tol": 1e-12}
    pooled = FederatedMatrixImputer(**parameters).fit([one, three])
    uniform = FederatedMatrixImputer(**parameters, client_weights="uniform").fit([one, three])
    # Row 0: 0 weighs 1 or 2, two times 3 weigh 2 or 4/3.
    assert_allclose(pooled.fitted_mean()[0], 2.0, rtol=1e-6)
    assert_allclose(uniform.fitted_mean()[0], 3 * (4 / 3) / (2 + 4 / 3), rtol=1e-6)
    assert_allclose(uniform.fitted_mean()[1], 3.0, rtol=1e-6)


def test_clients_count_alike_however_often_they_looked():
    often, once = np.array([[0, 0, 2.0]] * 100), np.array([[0, 0, 20.0]])
    parameters = {"rank": 1, "penalty": 1e-9, "effects": "none", "tol": 1e-12}
    pooled, alike = (
        FederatedMatrixImputer(**parameters, client_weights=weights).fit(
            [often, once], shape=(2, 2)
        )
        for weights in ("n_samples", "uniform")
    )
    assert_allclose(pooled.fitted_mean()[0, 0], (100 * 2 + 20) / 101, rtol=1e-8)
    assert_allclose(alike.fitted_mean()[0, 0], (2 + 20) / 2, rtol=1e-8)
    # The objective counts as many observations as there are: 50.5 of either client.
    theta = alike.fitted_mean()[0, 0]
    minus_log_likelihood = 0.5 * 50.5 * ((2 - theta) ** 2 + (20 - theta) ** 2)
    expected = minus_log_likelihood + 0.5 * 101 * np.log(2 * np.pi)
    assert_allclose(alike.objective_, expected, rtol=1e-6)  # but for the penalty


BIG = [1000] + [50] * 60


@pytest.mark.parametrize(
    ("settings", "gap"),
    [
        ({"solver": "vr_fedem", "batch_size": 100}, 1e-3),
        ({"solver": "vr_fedem", "batch_size": 100, "omega": 1.0, "compressor": "rand_k"}, 1e-2),
        ({"batch_size": 100}, 0.05),
        ({"batch_size": 10}, 0.2),
    ],
)
def test_one_observer_with_most_of_the_cells_makes_no_minibatches_diverge(settings, gap):
    # Of the mean length, steps were too long for her cells: the objectives rose to 1e5 and 1e26.
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(100, 3)) @ rng.normal(size=(3, 80)) / 1.5
    matrix += rng.normal(size=matrix.shape)
    order, clients = rng.permutation(8000), []
    for cells in np.split(order[: sum(BIG)], np.cumsum(BIG)[:-1]):
        clients.append(coo_array((matrix.ravel()[cells], (cells // 80, cells % 80)), (100, 80)))
    common = {"rank": 5, "penalty": 3.0, "random_state": 0}
    exact = FederatedMatrixImputer(**common, tol=1e-9, max_iter=1000).fit(clients)
    imputer = FederatedMatrixImputer(**common, **settings, max_iter=300, eval_every=100)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Not converged", ConvergenceWarning)
        imputer.fit(clients)
    # Nats a cell; FedEM's noise keeps its floor.
    assert imputer.objective_ - exact.objective_ < gap * sum(BIG)


def test_a_fit_that_runs_away_says_so():
    rng = np.random.default_rng(0)
    clients = [np.where(rng.random((30, 20)) < 0.3, rng.normal(size=(30, 20)), np.nan)] * 3
    imputer = FederatedMatrixImputer(
        rank=2, penalty=1.0, omega=4.0, compressor="rand_k", control_step=1.0, max_iter=100,
        random_state=0,
    )  # fmt: skip
    with pytest.warns(ConvergenceWarning) as caught:
        imputer.fit(clients)
    message = " ".join(str(warning.message) for warning in caught)
    assert re.search(
        r"objective of .*e\+\d+, above the .* start: do not use it. Use a smaller step_size, a "
        r'smaller omega or control_step="auto"\.',
        message,
    )


def test_a_fit_that_runs_away_to_infinity_says_so(capfd):
    rng = np.random.default_rng(0)
    means = rng.normal(size=(57, 2)) @ rng.normal(size=(2, 13))
    table = np.where(rng.random(means.shape) < 0.6, means + rng.normal(size=means.shape), np.nan)
    owner = rng.integers(5, size=table.shape)
    imputer = FederatedMatrixImputer(
        rank=2, penalty=10.0, solver="vr_fedem", batch_size=10, omega=3.0, compressor="rand_k",
        step_size=1.0, max_iter=700, random_state=0,
    )  # fmt: skip
    with pytest.warns(ConvergenceWarning) as caught:
        imputer.fit([np.where(owner == k, table, np.nan) for k in range(5)])
    assert imputer.objective_ > 1e290
    assert {warning.category for warning in caught} == {ConvergenceWarning}
    said = [str(warning.message) for warning in caught]
    assert any("do not use it" in message for message in said)
    assert not any("Not converged" in message for message in said)  # more rounds would not help
    assert "DLASCL" not in capfd.readouterr().out


def test_who_is_unlike_the_others_drifts():
    unlike = CLIENTS[0] + 20
    imputer = FederatedMatrixImputer(**EXACT).fit([*CLIENTS, unlike])
    assert imputer.client_drift_.shape == (5,)
    assert imputer.client_drift_.argmax() == 4
    assert (imputer.client_drift_ > 0).all()


def test_drift_is_that_of_residuals_whoever_looks_more_often():
    # Two observers of the same noise: the one saw each cell once, the other sixteen times.
    rng = np.random.default_rng(0)
    once, often = rng.normal(size=(30, 20)), rng.normal(size=(16, 30, 20))
    imputer = FederatedMatrixImputer(rank=1, penalty=1e3, tol=1e-12).fit([once, often])
    own = once - imputer.fitted_mean(), 4 * (often.mean(axis=0) - imputer.fitted_mean())
    root_mean_squares = [np.sqrt(np.mean(residuals**2)) for residuals in own]
    assert_allclose(imputer.client_drift_, root_mean_squares, rtol=1e-6)
    assert_allclose(imputer.client_drift_, 1.0, atol=0.15)


# ------------------------------------------------------------------ transform


@every_family
def test_transform_of_a_list_keeps_what_a_client_saw(family):
    X = of_family(family)
    imputer = FederatedMatrixImputer(2, family=family, penalty=0.7).fit(X)
    means = imputer.fitted_mean()
    for client, filled in zip(X, imputer.transform(X), strict=True):
        assert_array_equal(filled, np.where(np.isnan(client), means, client))
    assert (means != means.round()).all()


def test_transform_of_a_client_who_saw_nothing(fitted):
    nothing = [
        [NOTHING],
        [coo_array(SHAPE)],
        [pd.DataFrame(NOTHING)],
        [NOTHING, CLIENTS[0]],
        [np.stack([NOTHING, NOTHING])],
    ]
    for X in nothing:
        first = fitted.transform(X)[0]
        assert_array_equal(first[0] if first.ndim == 3 else first, fitted.fitted_mean())


def test_several_observations_of_a_cell_have_their_mean():
    cells = coo_array(([1.0, 4.0, 7.0], ([0, 0, 1], [1, 1, 0])), SHAPE)
    imputer = FederatedMatrixImputer(**QUICK).fit([*CLIENTS, cells])
    filled = imputer.transform([cells])[0]
    assert (filled[0, 1], filled[1, 0]) == (2.5, 7.0)
    assert imputer.transform(cells)[0, 1] == 2.5


@every_family
@pytest.mark.parametrize("effects", ["both", "rows", "columns", "none"])
def test_rows_are_filled_one_by_one(family, effects):
    (X,) = of_family(family, [STACKED])
    imputer = FederatedMatrixImputer(2, family=family, effects=effects, penalty=0.7, tol=1e-3)
    filled = imputer.fit(X).transform(X)
    assert isinstance(filled, np.ndarray)
    assert_array_equal(filled[~np.isnan(X)], X[~np.isnan(X)])
    assert np.isfinite(filled).all()
    # Sums over some rows at a time may round otherwise.
    order = np.random.default_rng(0).permutation(len(X))
    assert_allclose(imputer.transform(X[order]), filled[order], rtol=1e-9)
    for k in (0, 7):
        assert_allclose(imputer.transform(X[k : k + 1])[0], filled[k], rtol=1e-9)
    sparse = coo_array((X[~np.isnan(X)], np.nonzero(~np.isnan(X))), X.shape)
    assert_array_equal(imputer.transform(sparse), filled)


@every_family
def test_rows_of_the_training_matrix_get_what_the_fit_gives_them(family):
    (X,) = of_family(family, [np.array(STACKED)])
    # Both rows and columns of presences, and absences, or there is no best effect.
    X[:4], X[:, 0] = np.arange(N_COLUMNS) % 2, np.arange(len(X)) % 2
    imputer = FederatedMatrixImputer(None, family=family, penalty=2.0, tol=1e-13, max_iter=2000)
    imputer.fit(X)
    assert 0 < len(imputer.singular_values_) < N_COLUMNS
    missing = np.isnan(X)
    # Where the bound on the rank does not bind, a row's own regression gives what the fit has. Its
    # objective is flat: relative changes of 1e-13 are steps of 1e-6 or so.
    assert_allclose(imputer.transform(X)[missing], imputer.fitted_mean()[missing], atol=1e-4)


def test_rows_that_were_never_seen(fitted):
    new = np.full((2, N_COLUMNS), NAN)
    new[1, :3] = [40.0, 30.0, 50.0]
    filled = fitted.transform(new)
    # A row without a cell has the columns' effects.
    assert_allclose(filled[0], np.exp(fitted.intercept_ + fitted.column_effects_), rtol=1e-12)
    assert_array_equal(filled[1, :3], new[1, :3])
    assert (filled[1, 3:] > 10).all()


def test_set_output_makes_every_client_a_frame():
    imputer = FederatedMatrixImputer(**QUICK).set_output(transform="pandas").fit(FRAMES)
    plain = FederatedMatrixImputer(**QUICK).fit(CLIENTS).transform(CLIENTS)
    answers = (imputer.transform(FRAMES), clone(imputer).fit_transform(FRAMES))
    for frames in answers:
        assert isinstance(frames, tuple)
        for frame, want in zip(frames, plain, strict=True):
            assert isinstance(frame, pd.DataFrame)
            assert (frame.index.tolist(), frame.columns.tolist()) == (SITES, MONTHS)
            assert_array_equal(frame.to_numpy(), want)
    alone = imputer.transform(FRAMES[1][::-1])
    assert alone.index.tolist() == SITES[::-1]
    imputer.fit(CLIENTS)
    for X in (CLIENTS, np.stack(CLIENTS), SPARSE):
        frames = imputer.transform(X)
        assert [frame.columns.tolist() for frame in frames] == [
            [f"x{k}" for k in range(N_COLUMNS)]
        ] * N_CLIENTS
    for X in ([np.stack(CLIENTS)], [CLIENTS[0], np.stack(CLIENTS)]):
        with pytest.raises(ValueError, match="client .: a 3-D array does not fit a DataFrame"):
            imputer.transform(X)


@pytest.mark.parametrize("kind", ["periods", "years", "dates", "counted"])
def test_labels_that_are_no_text_name_the_columns_of_what_is_filled(kind):
    columns = {
        "periods": pd.period_range("2020-01", periods=N_COLUMNS, freq="M"),
        "years": range(2001, 2001 + N_COLUMNS),
        "dates": pd.date_range("2020-01-31", periods=N_COLUMNS),
        "counted": range(N_COLUMNS),
    }[kind]
    frames = [pd.DataFrame(client, columns=columns) for client in CLIENTS]
    usual = [f"x{k}" for k in range(N_COLUMNS)]
    names = usual if kind == "counted" else [str(label) for label in columns]
    imputer = FederatedMatrixImputer(**QUICK).set_output(transform="pandas").fit(frames)
    assert imputer.get_feature_names_out().tolist() == names
    assert imputer.transform(frames)[0].columns.tolist() == names
    search = FederatedMatrixImputerCV([1], penalties=[9.0], n_splits=2, random_state=0)
    search.set_output(transform="pandas").fit(frames)
    assert search.get_feature_names_out().tolist() == names
    assert search.transform(frames)[0].columns.tolist() == names
    assert imputer.get_feature_names_out(usual).tolist() == usual


def test_lines_without_their_shape_are_told():
    triplets = [np.column_stack([*np.nonzero(c == c), c[c == c]]) for c in CLIENTS]
    together, owners = np.concatenate(triplets), np.repeat(range(N_CLIENTS), [*map(len, triplets)])
    imputer = FederatedMatrixImputer(**{**QUICK, "rank": 1})
    with pytest.warns(UserWarning, match=r"three months.* give shape=\(number of sites, number"):
        imputer.fit(together, clients=owners)
    with pytest.warns(UserWarning, match="taken for three months"):
        imputer.fit([client[:20] for client in triplets])
    # The index of a filtered or sorted table has gaps or another order, and is no name.
    filtered = pd.DataFrame(together)[np.arange(len(together)) != 7]
    for frame in (filtered, pd.DataFrame(together).sort_values(2)):
        with pytest.warns(UserWarning, match="taken for three months"):
            imputer.fit(frame)
    imputer.fit(pd.DataFrame(together), clients=owners, shape=CLIENTS[0].shape)  # warns nothing
    three = np.column_stack([*np.indices((20, 3)).reshape(2, -1), np.arange(60)])
    imputer.fit(three, shape=(20, 3))
    imputer.set_params(family="gaussian")
    gaps, rows, halves = together.copy(), together.copy(), together.copy()
    gaps[[3, 7, 11], 1], rows[7], halves[3, 1] = np.nan, np.nan, 0.5
    less, more = together.copy(), np.column_stack([together, np.full(len(together), np.nan)])
    less[3, 1] = -1
    named = pd.DataFrame(together, index=[f"site {k}" for k in range(len(together))])
    numbered = pd.DataFrame(together, index=pd.RangeIndex(1, len(together) + 1, name="site"))
    years = pd.DataFrame(together, index=range(2001, 2001 + len(together)))
    for matrix in (gaps, rows, halves, less, more, together > 1, named, numbered, years):
        imputer.fit(matrix, clients=owners)
    imputer.fit([coo_array(together + 1)])
    imputer.fit(together[None])


def test_rows_with_one_label_are_told():
    table = np.where(CLIENTS[0] == CLIENTS[0], CLIENTS[0], CLIENTS[1])
    names = ["dune", "bog", *range(2, N_ROWS)]
    imputer = FederatedMatrixImputer(**QUICK).fit(pd.DataFrame(table, index=names))  # no warning
    names[5] = names[7] = "bog"
    with pytest.warns(UserWarning, match="3 rows have the label 'bog': each was taken for a site"):
        imputer.fit(pd.DataFrame(table, index=names))
    imputer.set_params(rows="disjoint").fit([pd.DataFrame(table, index=names)])


@pytest.mark.parametrize(("offset", "warns"), [(900.0, False), (-1100.0, True)])
def test_cells_far_from_0_are_told_without_effects(offset, warns):
    values = np.random.default_rng(0).normal(size=(30, 8))
    values[0, 0] = np.nan
    centred = (values - np.nanmean(values)) / np.nanstd(values)
    imputer = FederatedMatrixImputer(2, effects="none", max_iter=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        imputer.fit(centred + offset)
        # With effects, it is nothing to speak of.
        clone(imputer).set_params(effects="both").fit(centred + offset)
    said = [str(warning.message) for warning in caught]
    says = r"Cells lie around -1\.1e\+03 and differ by 1\. .* Subtract the mean, or use"
    assert [bool(re.match(says, text)) for text in said].count(True) == warns


def test_effects_that_the_ridge_holds_back_are_told():
    rng = np.random.default_rng(0)
    sites = 1e4 * rng.normal(size=(40, 1)) + rng.normal(size=(40, 24))
    sites[rng.random(sites.shape) < 0.5] = np.nan
    imputer = FederatedMatrixImputer(3, penalty=3.0, max_iter=2)
    with pytest.warns(ConvergenceWarning, match="or decrease effects_penalty, as effects are far"):
        imputer.fit(sites)
    with pytest.warns(ConvergenceWarning) as caught:
        imputer.fit(sites / 1e4)
    assert "effects_penalty" not in str(caught[0].message)


def test_feature_names(fitted, named):
    assert named.feature_names_in_.tolist() == MONTHS
    assert named.get_feature_names_out().tolist() == MONTHS
    assert fitted.get_feature_names_out().tolist() == [f"x{k}" for k in range(N_COLUMNS)]
    for X in (FRAMES[0][MONTHS[::-1]], [FRAMES[0][MONTHS[::-1]]]):
        with pytest.raises(ValueError, match="feature names should match"):
            named.transform(X)
        with pytest.raises(ValueError, match="feature names should match"):
            named.score(X)
    again = copy(named).fit(CLIENTS)
    assert not hasattr(again, "feature_names_in_")


@pytest.mark.parametrize("X", [None, 3.0])
def test_what_is_no_table_at_all(fitted, X):
    for answer in (FederatedMatrixImputer().fit, fitted.transform, fitted.score):
        with pytest.raises(TypeError, match=f"a table or a list of tables, got {X} of type .*Give"):
            answer(X)


COLUMN_LABELS = {
    "periods": pd.period_range("2000-01", periods=N_COLUMNS, freq="M"),
    "dates": pd.date_range("2000-01-01", periods=N_COLUMNS),
    "years": pd.Index(range(2000, 2000 + N_COLUMNS)),
    "months": pd.Index(MONTHS),
}


@pytest.mark.parametrize("labels", COLUMN_LABELS.values(), ids=COLUMN_LABELS)
@pytest.mark.parametrize("rows", ["shared", "disjoint"])
def test_columns_in_another_order_are_refused_whatever_their_labels(labels, rows):
    frames = [pd.DataFrame(table, columns=labels) for table in CLIENTS]
    turned = frames[0].iloc[:, ::-1]
    estimator = FederatedMatrixImputer(**QUICK, rows=rows)
    match = f"Expected the column labels of the fit.*{labels[0]} for column 0, got {labels[-1]}"
    if labels is COLUMN_LABELS["months"]:  # these scikit-learn compares
        match = "feature names should match"
    for fitted in (clone(estimator).fit(frames), clone(estimator).fit(frames[0])):
        for X in (turned, [turned]):
            for answer in (fitted.transform, fitted.score):
                with pytest.raises(ValueError, match=match):
                    answer(X)
        # What has no labels, or only counts its columns, is taken as it is given.
        if labels is not COLUMN_LABELS["months"]:
            expected = fitted.score([frames[0]])
            assert fitted.score([CLIENTS[0]]) == expected
            assert fitted.score([pd.DataFrame(CLIENTS[0])]) == expected


@pytest.mark.parametrize(
    ("own", "nothing", "shape"),
    [(CLIENTS, NOTHING, None), (TRIPLETS, np.empty((0, 3)), SHAPE)],
    ids=["matrices", "triplets"],
)
def test_clients_who_share_their_rows_are_scored_in_one_pass(own, nothing, shape, monkeypatch):
    # Of thousands of observers, checking the tables one by one took most of a search.
    fitted = FederatedMatrixImputer(**QUICK).fit(own, shape=shape)
    seen = [*own[:2], np.stack(CLIENTS[2:]), SPARSE[0]]
    scores = [fitted.score([table]) for table in seen]
    counts = [SEEN[0].sum(), SEEN[1].sum(), SEEN[2].sum() + SEEN[3].sum(), SEEN[0].sum()]
    with monkeypatch.context() as patch:
        patch.delattr(_fitted_matrix, "_each_matrix")
        score = fitted.score([*seen, nothing])
        patch.setattr(_fitted_matrix, "_SCORED_TOGETHER", 100)  # some clients at a time
        in_groups = fitted.score([*seen, nothing])
    assert_allclose([score, in_groups], np.average(scores, weights=counts), rtol=1e-14)
    # What is wrong is told by its client.
    for wrong in (-np.ones(SHAPE), CLIENTS[0][:, 1:], np.empty((0, *SHAPE))):
        with pytest.raises(ValueError, match="In the matrix of client 4: "):
            fitted.score([*seen, wrong])


def test_of_rows_of_their_own_some_may_have_labels():
    named = pd.DataFrame(CLIENTS[0], index=[f"site {k}" for k in range(N_ROWS)])
    imputer = FederatedMatrixImputer(**QUICK, rows="disjoint")
    want = clone(imputer).fit(CLIENTS[:2]).row_effects_
    for clients in ([named, CLIENTS[1]], [CLIENTS[0], pd.DataFrame(CLIENTS[1], named.index)]):
        assert_array_equal(imputer.fit(clients).row_effects_, want)


@pytest.mark.parametrize("family", ["gaussian", "bernoulli", "poisson"])
def test_a_list_of_clients_with_rows_of_their_own_is_answered_as_each_of_them(family):
    clients = [np.minimum(table, 1) if family == "bernoulli" else table for table in CLIENTS]
    imputer = FederatedMatrixImputer(2, family=family, penalty=1.0, tol=1e-3, rows="disjoint")
    imputer.fit(clients)
    clients[2] = np.full((2, N_COLUMNS), np.nan)  # nothing to solve for
    for table, filled in zip(clients, imputer.transform(clients), strict=True):
        # Products of matrices add up in an order that depends on the number of rows.
        assert_allclose(filled, imputer.transform(table), rtol=1e-12)
    seen = [table for table in clients if np.isfinite(table).any()]
    scores = [imputer.score(table) for table in seen]
    counts = [np.isfinite(table).sum() for table in seen]
    # Rounding of sums.
    assert imputer.score(clients) == pytest.approx(np.average(scores, weights=counts), rel=1e-12)
    # Not the first client, and not the list.
    clients[3] = np.where(np.isfinite(clients[3]), np.inf, np.nan)
    for answer in (imputer.transform, imputer.score):
        with pytest.raises(ValueError, match="In the matrix of client 3: "):
            answer(clients)


def test_sites_in_another_order_are_not_filled_with_other_sites_means(named):
    with pytest.raises(ValueError, match="client 1: .* 'site 0' for row 0, got 'site 11'. Reindex"):
        named.transform([FRAMES[0], FRAMES[1][::-1]])
    # Sites of their own are no matter.
    assert named.transform(FRAMES[1][::-1]).shape == SHAPE


@pytest.mark.parametrize("nothing", [NAN, pd.NA, None])
def test_labels_that_are_missing_differ_from_others_alone(nothing):
    tables = [pd.DataFrame(client) for client in CLIENTS[:2]]
    for table in tables:
        table.index = pd.Index([nothing, *range(1, N_ROWS)], dtype=object)
    FederatedMatrixImputer(**QUICK).fit(tables)
    for order, says in (
        ([0, 2, 1], "1 for row 1, got 2"),
        ([1, 0, 2], f"{nothing} for row 0, got 1"),
    ):
        turned = tables[1].iloc[[*order, *range(3, N_ROWS)]]
        with pytest.raises(ValueError, match=f"that order: {says} for client 1"):
            FederatedMatrixImputer(**QUICK).fit([tables[0], turned])


WORDS = np.full(SHAPE, "many", dtype=object)


def test_a_series_of_words_is_no_table():
    pandas = pytest.importorskip("pandas")
    with pytest.raises((TypeError, ValueError), match="Expected"):
        FederatedMatrixImputer().fit(pandas.Series(["a", "b"]))
    with pytest.raises((TypeError, ValueError), match="Expected"):
        FederatedMatrixImputer().fit([pandas.Series(["a", "b"])])


@pytest.mark.parametrize(
    ("X", "says"),
    [
        ([CLIENTS[0], CLIENTS[1][:5]], "client 1: Expected the 12 rows of the fit, got 5"),
        ([CLIENTS[0][:, :3]], "client 0: X has 3 features, .* expecting 8"),
        (CLIENTS[0][:, :3], "X has 3 features"),
        ([], "at least one client, got an empty list. Give one table, or a list"),
        (np.empty((0, *SHAPE)), "at least one client, got an empty ndarray. Give one table, or"),
        ([CLIENTS], "client 0: expected one table, got a list of tables"),
        ([CLIENTS[0], -CLIENTS[1]], "client 1: Expected non-negative integers .* row 0, column"),
        ([np.stack([CLIENTS[0], -CLIENTS[1]])], "client 0: In the matrix of observer 1: Expected"),
        (-CLIENTS[1], "Expected non-negative integers .* got -"),
        ([np.where(SEEN[0], np.inf, NAN)], "client 0: Input X contains infinity"),
        (
            WORDS,
            "^Expected numbers: could not convert .*'many'. Names of sites belong in the index",
        ),
        ([WORDS], "client 0: Expected numbers: could not convert .*'many'. Names of sites"),
    ],
)
def test_what_does_not_fit_the_fit(fitted, X, says):
    with pytest.raises(ValueError, match=says):
        fitted.transform(X)
    with pytest.raises(ValueError, match=says):
        fitted.score(X)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (CLIENTS[0], r"Expected triplets .* got shape \(12, 8\).*fit without `shape`"),
        ([[12, 0, 1.0]], r"site numbers to be integers from 0 to 11 .* got 12.0 in triplet 0\. "),
        ([[0, 0, 1.0], [0, 0.5, 1.0]], r"month numbers .* got 0.5 in triplet 1\. "),
        ([[3, 2, -1.0]], r"got -1.0 in row 3, column 2\. Correct it, or choose another family\.$"),
        ([[0, 0, NAN]], r"got nan in row 0, column 0\. Leave missing"),
        ([0, 0, 1.0], "an array of triplets .* got a list with 1 dimension"),
        (None, "an array of triplets .* got a NoneType"),
        ([["a", "b", "c"]], "Expected numbers in the table, got"),
    ],
)
def test_bad_triplets_after_the_fit(of_triplets, bad, says):
    for answer in (of_triplets.transform, of_triplets.score):
        with pytest.raises(ValueError, match="In the matrix of client 2: .*" + says) as caught:
            answer([*TRIPLETS[:2], bad])
        # The client is named once, and what fit alone was given by no name of its own.
        assert "client" not in str(caught.value).removeprefix("In the matrix of client 2")
        assert "shape=" not in str(caught.value)


@pytest.mark.parametrize("as_given", [np.asarray, pd.DataFrame])
def test_triplets_alone_are_to_be_in_a_list(as_given, of_triplets):
    for answer in (of_triplets.transform, of_triplets.score):
        with pytest.raises(ValueError, match=r"matrix of 8 columns, got 3\. Give \[X\] if these"):
            answer(as_given(TRIPLETS[0]))
        with pytest.raises(ValueError, match="X has 4 features, .* expecting 8"):
            answer(as_given(CLIENTS[0][:, :4]))
        answer(as_given(CLIENTS[0]))
        # What is sparse is no triplets.
        with pytest.raises(ValueError, match="X has 3 features, .* expecting 8"):
            answer(coo_array(TRIPLETS[0]))
    # Of three columns, these are as good a matrix as any.
    three = FederatedMatrixImputer(1).fit([[[0, 0, 1.0], [1, 2, 3.0]]], shape=(2, 3))
    assert_array_equal(three.transform(as_given(TRIPLETS[0])), TRIPLETS[0])


@pytest.mark.parametrize("X", [NOTHING, [NOTHING], [coo_array(SHAPE), NOTHING]])
def test_there_is_no_score_of_nothing(fitted, X):
    with pytest.raises(ValueError, match="at least one observed cell to score, got none"):
        fitted.score(X)


def test_new_rows_have_no_effects_of_their_own_in_a_fit_without_row_effects():
    counts = np.random.default_rng(0).poisson(3.0, size=(30, 6)).astype(float)
    imputer = FederatedMatrixImputer(1, family="poisson", penalty=1e6, effects="columns")
    imputer.fit([counts])
    imputed = imputer.transform([[100.0] * 5 + [np.nan]])
    last = np.exp(imputer.intercept_ + imputer.column_effects_[-1])
    assert_allclose(imputed[0, -1], last, rtol=1e-12)


def test_what_nobody_observed_has_an_effect_of_0():
    counts = np.random.default_rng(0).poisson(3.0, size=(8, 5)).astype(float)
    counts[3], counts[:, 2] = np.nan, np.nan
    imputer = FederatedMatrixImputer(1, family="poisson", tol=1e-4, max_iter=500).fit([counts])
    assert imputer.row_effects_[3] == 0 == imputer.column_effects_[2]
    assert abs(imputer.row_effects_).max() > 0.1


# ------------------------------------------------------------------ scikit-learn's ways


def test_grid_search_holds_out_observers():
    # Rank 1 beside effects, well observed: a penalty in the middle is best, and no penalty worst.
    clients = make_clients(9, share=0.5, seed=3)
    grid = {"rank": [1, 4], "penalty": [0.01, 10.0, 1000.0]}
    imputer = FederatedMatrixImputer(family="poisson", max_iter=500, tol=1e-2)
    search = GridSearchCV(imputer, grid, cv=3).fit(clients)
    assert search.best_params_["penalty"] == 10.0
    folds = KFold(3).split(clients)
    by_hand = [
        clone(imputer)
        .set_params(**search.best_params_)
        .fit([clients[k] for k in train])
        .score([clients[k] for k in test])
        for train, test in folds
    ]
    assert_allclose(search.best_score_, np.mean(by_hand), rtol=1e-12)
    scores = dict(
        zip(
            map(str, search.cv_results_["params"]),
            search.cv_results_["mean_test_score"],
            strict=True,
        )
    )
    for penalty in (0.01, 1000.0):
        assert scores[str({"penalty": penalty, "rank": 4})] < search.best_score_ - 0.05
    assert search.best_estimator_.n_clients_ == 9
    with parallel_config("threading"):
        in_threads = GridSearchCV(imputer, {"rank": [1, 4], "penalty": [10.0]}, cv=3, n_jobs=2)
        in_threads.fit(clients)
    for parameters, score in zip(
        in_threads.cv_results_["params"], in_threads.cv_results_["mean_test_score"], strict=True
    ):
        assert scores[str({"penalty": 10.0, "rank": parameters["rank"]})] == score


def test_grid_search_tunes_the_federation():
    grid = [
        {"omega": [0.0, 1.0], "participation": [0.75, 1.0]},
        {"step_size": [0.3], "omega": [1.0]},
    ]
    imputer = FederatedMatrixImputer(**{**EXACT, "tol": 1e-3, "max_iter": 2000})
    search = GridSearchCV(imputer, grid, cv=2).fit(CLIENTS)
    scores = search.cv_results_["mean_test_score"]
    # All of them go to the same optimum, near enough.
    assert np.isfinite(scores).all()
    assert np.ptp(scores) < 0.05
    assert len(np.unique(scores)) == 5


@pytest.mark.parametrize("routing", [False, True])
def test_cross_validation_of_triplets(routing):
    with sklearn.config_context(enable_metadata_routing=routing):
        scores = cross_val_score(
            FederatedMatrixImputer(**QUICK), TRIPLETS, cv=2, params={"shape": SHAPE}
        )
    want = cross_val_score(FederatedMatrixImputer(**QUICK), CLIENTS, cv=2)
    assert_array_equal(scores, want)


@pytest.mark.parametrize(
    ("routing", "key"), [(False, "impute__clients"), (True, "clients")], ids=["prefix", "routing"]
)
def test_pipeline(routing, key):
    steps = [("as is", FunctionTransformer()), ("impute", FederatedMatrixImputer(**QUICK))]
    direct = FederatedMatrixImputer(**QUICK).fit(STACKED, clients=OWNERS)
    with sklearn.config_context(enable_metadata_routing=routing):
        pipe = Pipeline(steps).fit(STACKED, **{key: OWNERS})
        filled = clone(pipe).fit_transform(STACKED, **{key: OWNERS})
        score = pipe.score(STACKED)
        search = GridSearchCV(clone(pipe), {"impute__penalty": [1.0, 5.0]}, cv=2)
        search.fit(STACKED, **{key: OWNERS})
    assert_same_fit(pipe["impute"], direct)
    assert pipe["impute"].client_ids_.tolist() == ["ann", "bob", "cid", "dan"]
    assert_array_equal(filled, direct.transform(STACKED))
    assert score == direct.score(STACKED)
    assert search.best_estimator_["impute"].n_clients_ == N_CLIENTS


def test_clone_pickle_and_representations():
    parameters = {**STOCHASTIC, "compressor": Dithering(levels=3), "omega": 3.0, "tol": 1e-2}
    imputer = FederatedMatrixImputer(**parameters).fit(CLIENTS)
    copy = clone(imputer)
    assert not [name for name in vars(copy) if name.endswith("_")]
    assert_same_fit(copy.fit(CLIENTS), imputer)
    loaded = pickle.loads(pickle.dumps(imputer))
    assert_same_fit(loaded, imputer)
    assert_array_equal(loaded.transform(CLIENTS)[0], imputer.transform(CLIENTS)[0])
    assert "Dithering(levels=3" in repr(imputer)
    assert "client_weights" not in repr(imputer)  # a default
    assert "FederatedMatrixImputer" in imputer._repr_html_()


def test_parameters():
    assert set(FederatedMatrixImputer().get_params()) == {
        "rank", "family", "penalty", "effects", "effects_penalty", "rows",
        "missing_values", "solver", "step_size", "control_step", "control_init",
        "batch_size", "replacement", "n_inner", "compressor", "omega", "participation",
        "client_weights", "max_iter", "max_epochs", "tol", "eval_every", "random_state",
        "warm_start", "n_jobs", "checkpoint", "checkpoint_every", "verbose",
    }  # fmt: skip


def test_before_a_fit():
    for method in ("transform", "score"):
        with pytest.raises(NotFittedError):
            getattr(FederatedMatrixImputer(), method)(CLIENTS)
    with pytest.raises(NotFittedError):
        FederatedMatrixImputer().fitted_mean()


def test_a_fit_is_what_it_was_after_set_params():
    imputer = FederatedMatrixImputer(**QUICK).fit(CLIENTS)
    want = imputer.fitted_mean(), imputer.score(CLIENTS), imputer.transform(STACKED)
    imputer.set_params(family="gaussian", penalty=99.0, effects="none", rows="disjoint", rank=1)
    assert_array_equal(imputer.fitted_mean(), want[0])
    assert imputer.score(CLIENTS) == want[1]
    assert_array_equal(imputer.transform(STACKED), want[2])


@pytest.mark.parametrize("family", FAMILIES)
def test_negative_numbers_are_a_matter_of_the_family(family):
    tags = FederatedMatrixImputer(family=family).__sklearn_tags__().input_tags
    assert tags.positive_only == (family != "gaussian")
    assert tags.allow_nan
    assert tags.sparse


# ------------------------------------------------------------------ randomness and workers


@pytest.mark.skipif(not SEEDED_ARPACK, reason="ARPACK draws from a state of the process")
@pytest.mark.parametrize("shape", [(30, 12), (12, 30)], ids=["tall", "wide"])
def test_a_seed_gives_the_same_fit_where_fewer_singular_values_are_found_than_asked_for(shape):
    # Ten cells: the residuals have a smaller rank than the 5 + 5 directions that are followed.
    rng = np.random.default_rng(0)
    notes = np.column_stack([*(rng.integers(size, size=10) for size in shape), rng.poisson(6, 10)])
    imputer = FederatedMatrixImputer(
        5, family="poisson", penalty=0.3, effects="none", random_state=0
    )
    first, second = (clone(imputer).fit([notes], shape=shape) for _ in range(2))
    assert_same_fit(first, second)


@pytest.mark.parametrize("solver", ["fedem", "vr_fedem"])
def test_a_seed_gives_the_same_fit_on_any_number_of_workers(solver, monkeypatch):
    monkeypatch.setattr(_parallel, "_WORTH_SHARING", 0.0)
    parameters = {**STOCHASTIC, "solver": solver, "max_iter": 15, "tol": 0.0}
    fits = [
        fit_unconverged(FederatedMatrixImputer(**parameters, n_jobs=n_jobs), CLIENTS)
        for n_jobs in (None, 2, 3)
    ]
    assert_same_fit(fits[1], fits[0])
    assert_same_fit(fits[2], fits[0])
    other = FederatedMatrixImputer(**{**parameters, "random_state": 1})
    assert fit_unconverged(other, CLIENTS).objective_ != fits[0].objective_


def test_a_random_state_advances():
    imputer = FederatedMatrixImputer(
        **{**STOCHASTIC, "tol": 1e-2, "random_state": np.random.RandomState(5)}
    )
    first = imputer.fit(CLIENTS).objective_
    assert imputer.fit(CLIENTS).objective_ != first
    imputer.set_params(random_state=np.random.RandomState(5))
    assert imputer.fit(CLIENTS).objective_ == first


# ------------------------------------------------------------------ rounds and history


@pytest.mark.parametrize("parameters", [EXACT, STOCHASTIC], ids=["exact", "stochastic"])
def test_history_is_a_table(parameters):
    imputer = FederatedMatrixImputer(**parameters).fit(CLIENTS)
    history, n_rows = imputer.history_, imputer.n_iter_ + 1
    assert set(history) == HISTORY_COLUMNS
    assert {len(column) for column in history.values()} == {n_rows}
    for name in ("round", "n_active", "uplink_bits", "downlink_bits", "safeguarded"):
        assert history[name].dtype == np.int64
    assert history["round"].tolist() == list(range(n_rows))
    assert history["singular_values"].shape == (n_rows, 4)
    n_factors = len(imputer.singular_values_)
    assert_array_equal(history["singular_values"][-1, :n_factors], imputer.singular_values_)
    # Nobody steps before the first round, which starts from the effects alone.
    assert np.isnan(history["step_size"][0])
    assert np.isnan(history["field_sq_norm"][0])
    assert not history["singular_values"][0].any()
    assert history["n_active"][0] == 0
    effects = FederatedMatrixImputer(**{**parameters, "max_iter": 0}).fit(CLIENTS)
    assert_allclose(history["objective"][0], effects.objective_, rtol=1e-12)
    assert_allclose(history["objective"][-1], imputer.objective_, rtol=1e-12)


def test_exact_rounds_tell_everything_and_never_lose():
    imputer = FederatedMatrixImputer(**{**EXACT, "tol": 1e-10}).fit(CLIENTS)
    history = imputer.history_
    # Rounding of a sum of 150 terms aside.
    assert np.diff(history["objective"]).max() <= 1e-12 * history["objective"][0]
    assert history["objective"][0] - history["objective"][-1] > 10
    assert_array_equal(history["epoch"], history["round"])
    assert_array_equal(history["n_active"][1:], N_CLIENTS)
    assert_array_equal(history["step_size"][1:], 1)
    assert not history["safeguarded"].any()
    assert history["mean_field_sq_norm"][-1] < 1e-5 * history["mean_field_sq_norm"][0]


def test_bits_of_uncompressed_rounds():
    imputer = FederatedMatrixImputer(**{**EXACT, "control_init": "zeros"}).fit(CLIENTS)
    uplink = imputer.history_["uplink_bits"]
    # A residual for each observed cell, and a few bytes around each client's.
    residuals = 64 * N_OBSERVATIONS
    assert len(np.unique(uplink[1:])) == 1
    assert residuals < uplink[1] <= residuals + N_CLIENTS * 64
    # Before: cell numbers (7 bits of 96 cells), a byte for each count, margins as doubles.
    margins = sum(seen.any(axis=axis).sum() for seen in SEEN for axis in (0, 1))
    assert uplink[0] == (7 + 8) * N_OBSERVATIONS + 64 * margins
    # θ goes to everybody in every round, and for the first control variates.
    downlink = imputer.history_["downlink_bits"]
    assert downlink[0] == 0 < downlink[1] == downlink[-1]
    noisy = FederatedMatrixImputer(**STOCHASTIC).fit(CLIENTS)
    assert noisy.history_["downlink_bits"][0] == downlink[1]


@pytest.mark.parametrize("compressor", ["dithering", "rand_k"])
def test_control_variates_follow_the_worst_message(compressor):
    # 17 numbers have a smaller ω than 16: levels are whole numbers.
    cells = np.random.default_rng(0).permutation(96)[: 16 + 16 + 17]
    triplets = np.column_stack([*np.divmod(cells, N_COLUMNS), cells % 5])
    clients = np.split(triplets.astype(float), [16, 32])
    noisy = {"omega": 1.0, "compressor": compressor, "step_size": 0.3, "max_iter": 5, "tol": 0.0}
    means = []
    for alpha in ("auto", 1 / (1 + 1.0)):
        imputer = FederatedMatrixImputer(**noisy, control_step=alpha, random_state=0)
        with pytest.warns(ConvergenceWarning, match="Not converged"):
            means.append(imputer.fit(clients, shape=SHAPE).fitted_mean())
    assert_array_equal(*means)


@pytest.mark.parametrize("compressor", ["dithering", "block", "rand_k"])
def test_compression_saves_bits_and_reaches_the_same(compressor, fitted):
    compressed = FederatedMatrixImputer(**{**EXACT, "tol": 1e-4}, omega=1.0, compressor=compressor)
    compressed.fit(CLIENTS)
    assert compressed.converged_
    assert compressed.history_["uplink_bits"][1] < 0.6 * fitted.history_["uplink_bits"][1]
    assert abs(compressed.objective_ - fitted.objective_) < 1e-3 * fitted.objective_


def test_looking_changes_neither_the_fit_nor_its_cost():
    def evaluated(imputer):
        return np.flatnonzero(~np.isnan(imputer.history_["objective"])).tolist()

    fits = {
        eval_every: FederatedMatrixImputer(
            **{**STOCHASTIC, "tol": 1e-2}, eval_every=eval_every
        ).fit(CLIENTS)
        for eval_every in (None, 7, "auto")
    }
    n_iter = fits["auto"].n_iter_
    assert evaluated(fits[None]) == []
    assert evaluated(fits[7]) == sorted({*range(0, n_iter + 1, 7), n_iter})
    assert 1 < len(evaluated(fits["auto"])) < n_iter
    for eval_every in (None, 7):
        for name in FITTED:
            assert_array_equal(getattr(fits[eval_every], name), getattr(fits["auto"], name))
        for name in ("epoch", "uplink_bits", "downlink_bits"):
            assert_array_equal(fits[eval_every].history_[name], fits["auto"].history_[name])
    exact = FederatedMatrixImputer(**QUICK, eval_every=None).fit(CLIENTS)
    assert evaluated(exact) == []
    assert np.isfinite(exact.objective_)


def test_verbose(capsys):
    parameters = {**EXACT, "tol": 0.0, "max_iter": 25}
    fit_unconverged(FederatedMatrixImputer(**parameters), CLIENTS)
    assert capsys.readouterr().out == ""
    fit_unconverged(FederatedMatrixImputer(**parameters, verbose=1), CLIENTS)
    lines = capsys.readouterr().out.splitlines()
    steps = ["Round 10", "Round 20", "Not converged after 25 rounds"]
    assert [line.partition(":")[0].partition(",")[0].strip() for line in lines] == steps
    assert all("objective before it 2" in line for line in lines[:2])
    fit_unconverged(FederatedMatrixImputer(**parameters, verbose=2), CLIENTS)
    assert len(capsys.readouterr().out.splitlines()) == 26
    # After the first round the objective still falls fast: that of the round before is another.
    parameters["max_iter"] = 1
    fitted = fit_unconverged(FederatedMatrixImputer(**parameters, verbose=1), CLIENTS)
    assert capsys.readouterr().out.endswith(f": objective {fitted.objective_:.6g}\n")
    fit_unconverged(FederatedMatrixImputer(**parameters, verbose=1, eval_every=None), CLIENTS)
    assert "objective" not in capsys.readouterr().out


def test_no_rounds_are_the_effects():
    imputer = FederatedMatrixImputer(**{**EXACT, "max_iter": 0}).fit(CLIENTS)  # warns nothing
    assert imputer.n_iter_ == 0
    assert not imputer.converged_
    assert imputer.singular_values_.size == 0
    assert_finite(imputer)


def test_max_epochs_ends_with_the_round_that_completes_them():
    parameters = {**STOCHASTIC, "tol": 0.0, "max_iter": None, "max_epochs": 4.5}
    imputer = fit_unconverged(FederatedMatrixImputer(**parameters), CLIENTS, match="max_epochs")
    assert imputer.history_["epoch"][-1] >= 4.5 > imputer.history_["epoch"][-2]


@pytest.mark.parametrize("parameters", [EXACT, {**EXACT, "omega": 1.0, "participation": 0.75}])
def test_tol_governs_the_rounds(parameters):
    fits = [
        FederatedMatrixImputer(**{**parameters, "tol": tol, "max_iter": 2000}).fit(CLIENTS)
        for tol in (1e-2, 1e-4, 1e-6)
    ]
    assert fits[0].n_iter_ < fits[1].n_iter_ < fits[2].n_iter_
    assert all(fit.converged_ for fit in fits)
    best = FederatedMatrixImputer(**{**EXACT, "tol": 1e-12, "max_iter": 2000}).fit(CLIENTS)
    # What is left is more than one round's gain: a factor of thirty.
    assert fits[1].objective_ - best.objective_ < 30 * 1e-4 * best.objective_
    assert fits[2].objective_ - best.objective_ < 30 * 1e-6 * best.objective_


def test_tol_is_relative_to_the_objective():
    imputer = FederatedMatrixImputer(**EXACT).fit(CLIENTS)
    changes = np.abs(np.diff(imputer.history_["objective"])) / imputer.history_["objective"][1:]
    # Five in a row, of the objectives before the last step, as the clients' messages tell them.
    small = changes[:-1] < 1e-6
    assert small[-5:].all()
    assert not any(small[k : k + 5].all() for k in range(len(small) - 5))


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"max_iter": 3}, r"tol=1e-06 after 3 rounds\. Increase max_iter\.$"),
        (
            {"max_iter": 20, "step_size": 0.05},
            r"added up to only 1 natural steps. With this step set max_iter to about 1000, "
            r"or use step_size='auto'\.$",
        ),
        (
            {"max_iter": 20, "batch_size": 5},
            r"\d, or use solver='vr_fedem' \(with FedEM's minibatches cells may never settle\)\.$",
        ),
        ({"max_iter": 5, "max_epochs": 9}, r"Increase max_iter\.$"),
        ({"max_iter": 9, "max_epochs": 5}, r"Increase max_epochs\.$"),
        ({"max_iter": None, "max_epochs": 5}, r"Increase max_epochs\.$"),
        (
            {"max_iter": 20, "max_epochs": 10**6, "step_size": 0.05},
            r"With this step set max_iter to about 1000, or",
        ),
        (
            {"max_iter": 20, "step_size": lambda k: 0.05},
            r"With steps as long as the last set max_iter to about 1000, or",
        ),
        (
            {"max_iter": 5000, "max_epochs": 20, "step_size": 0.05},
            r"With this step set max_epochs to about 1000, or",
        ),
    ],
)
@pytest.mark.parametrize("method", ["fit", "fit_transform"])
def test_a_fit_that_did_not_converge_says_what_to_do(parameters, says, method):
    imputer = FederatedMatrixImputer(**{**EXACT, **parameters})
    with pytest.warns(ConvergenceWarning, match=says) as caught:
        getattr(imputer, method)(CLIENTS)
    assert [warning.filename for warning in caught] == [__file__]
    assert not imputer.converged_


@pytest.mark.parametrize("family", FAMILIES)
def test_steps_of_a_given_size_are_plain_proximal_steps(family):
    X = of_family(family)
    parameters = {"rank": 2, "family": family, "penalty": 0.7, "tol": 1e-7, "max_iter": 3000}
    plain = FederatedMatrixImputer(**parameters, step_size=1.0).fit(X)
    objective = plain.history_["objective"]
    assert np.diff(objective).max() <= 1e-12 * objective[0]
    assert_array_equal(plain.history_["step_size"][1:], 1.0)
    automatic = FederatedMatrixImputer(**parameters).fit(X)
    assert_allclose(plain.objective_, automatic.objective_, rtol=1e-4)
    assert automatic.n_iter_ < plain.n_iter_


def test_step_size_may_be_a_function_of_the_round():
    asked = []

    def step_size(round_number):
        asked.append(round_number)
        return 1 / round_number**0.5

    parameters = {**EXACT, "step_size": step_size, "max_iter": 8}
    imputer = fit_unconverged(FederatedMatrixImputer(**parameters), CLIENTS)
    assert asked == list(range(1, 9))
    assert_allclose(imputer.history_["step_size"][1:], np.arange(1, 9) ** -0.5)
    with pytest.raises(ValueError, match=r"Expected step_size\(1\) to be a number > 0 and <= 1"):
        FederatedMatrixImputer(step_size=lambda k: 2.0).fit(CLIENTS)


def test_variance_reduction_reaches_the_optimum_that_minibatches_alone_miss(fitted):
    reduced = FederatedMatrixImputer(**STOCHASTIC).fit(CLIENTS)
    assert reduced.converged_
    assert abs(reduced.objective_ - fitted.objective_) < 1e-3 * fitted.objective_
    alone = FederatedMatrixImputer(**{**STOCHASTIC, "solver": "fedem", "tol": 0.0})
    alone.set_params(max_iter=reduced.n_iter_)
    fit_unconverged(alone, CLIENTS)
    assert alone.objective_ > reduced.objective_


def test_warm_start_goes_on_where_the_last_fit_ended(fitted):
    imputer = FederatedMatrixImputer(**EXACT, warm_start=True).fit(CLIENTS)
    objective = imputer.objective_
    imputer.fit(CLIENTS)
    assert imputer.n_iter_ < fitted.n_iter_ / 2
    assert imputer.objective_ <= objective
    assert_allclose(imputer.history_["objective"][0], objective, rtol=1e-12)
    cold = FederatedMatrixImputer(**{**EXACT, "penalty": 1.5}).fit(CLIENTS)
    imputer.set_params(penalty=1.5).fit(CLIENTS)
    assert imputer.n_iter_ < cold.n_iter_
    assert_allclose(imputer.objective_, cold.objective_, rtol=1e-4)
    stochastic = FederatedMatrixImputer(**STOCHASTIC, warm_start=True).fit(CLIENTS)
    objective = stochastic.objective_
    stochastic.fit(CLIENTS)
    assert_allclose(stochastic.history_["objective"][0], objective, rtol=1e-12)


def test_warm_start_with_other_parameters():
    imputer = FederatedMatrixImputer(**EXACT, warm_start=True).fit(CLIENTS)
    assert len(imputer.singular_values_) == 4
    # A smaller rank keeps the leading factors.
    imputer.set_params(rank=1).fit(CLIENTS)
    assert imputer.singular_values_.shape == (1,)
    assert imputer.history_["singular_values"].shape[1] == 1
    for effects in ("none", "rows", "columns", "both"):
        imputer.set_params(effects=effects).fit(CLIENTS)
        cold = FederatedMatrixImputer(**{**EXACT, "rank": 1, "effects": effects}).fit(CLIENTS)
        assert_allclose(imputer.objective_, cold.objective_, rtol=1e-3)
        for own, name in ((imputer.row_effects_, "rows"), (imputer.column_effects_, "columns")):
            assert own.any() == (effects in ("both", name))


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


# ------------------------------------------------------------------ poor data


def test_clients_who_saw_nothing(fitted):
    clients = [NOTHING, *CLIENTS, *[NOTHING] * 6]
    says = r"7 of 11 clients have no observed cell and contribute nothing: 0, 5, 6, 7, 8, \.\.\.\."
    with pytest.warns(UserWarning, match=says) as caught:
        imputer = FederatedMatrixImputer(**EXACT).fit(clients)
    assert [warning.filename for warning in caught] == [__file__]
    assert imputer.n_clients_ == 11
    assert imputer.client_ids_.tolist() == list(range(11))
    silent = [0, *range(5, 11)]
    assert not imputer.client_drift_[silent].any()
    assert_array_equal(np.delete(imputer.client_drift_, silent), fitted.client_drift_)
    assert imputer.objective_ == fitted.objective_
    assert imputer.history_["n_active"][1:].max() == N_CLIENTS
    with pytest.warns(UserWarning, match="1 of 4 clients .* nothing: 'bob'"):
        FederatedMatrixImputer(**EXACT).fit(
            np.where(OWNERS[:, None] == "bob", NAN, STACKED), clients=OWNERS
        )


@pytest.mark.parametrize("effects", ["both", "rows", "columns", "none"])
@every_family
def test_sites_and_months_that_nobody_saw(family, effects):
    X = [np.array(client) for client in of_family(family)]
    for client in X:
        client[3], client[:, 5] = NAN, NAN
    imputer = FederatedMatrixImputer(2, family=family, effects=effects).fit(X)
    assert imputer.unobserved_rows_.tolist() == [3]
    assert imputer.unobserved_columns_.tolist() == [5]
    assert imputer.unobserved_rows_.dtype.kind == "i"
    assert_finite(imputer)
    # The ridge makes them 0 as exactly as effects are solved for.
    assert abs(imputer.row_effects_[3]) < 1e-3
    assert abs(imputer.column_effects_[5]) < 1e-3
    assert_allclose(imputer.row_factors_[3], 0, atol=1e-12)
    assert_allclose(imputer.column_factors_[5], 0, atol=1e-12)


def test_everything_seen_is_nothing_unobserved(fitted):
    assert fitted.unobserved_rows_.shape == fitted.unobserved_columns_.shape == (0,)


def test_sites_without_a_bird():
    X = [np.array(client) for client in CLIENTS]
    for client in X:
        client[2, ~np.isnan(client[2])] = 0
    imputer = FederatedMatrixImputer(**EXACT, effects_penalty=0.01).fit(X)
    assert_finite(imputer)
    # A ridge of 0.01 stops at about 0.01 * 5 / n_cells birds.
    assert imputer.fitted_mean([2]).max() < 0.03
    assert imputer.transform(X)[0][2].max() < 0.03
    assert imputer.transform(np.where(np.isnan(X[0][2:3]), NAN, 0)).max() < 0.03


def test_another_site_without_a_bird_has_the_least_ridge():
    counts = np.random.default_rng(0).poisson(3.0, size=(12, 4)).astype(float)
    imputer = FederatedMatrixImputer(
        1, family="poisson", penalty=1e6, effects_penalty=0.0, tol=1e-10, max_iter=500
    ).fit([counts])
    assert not len(imputer.singular_values_)
    means = np.exp(imputer.intercept_ + imputer.column_effects_)
    # Minus the slope of Σ_l μ_l e^r + 1e-7 r² / 2.
    effect = brentq(lambda r: means[:3].sum() * np.exp(r) + 1e-7 * r, -100, 0, xtol=1e-12)
    # Newton's method ends before the last digits of a sum of 1e-6 count.
    got = imputer.transform(np.array([[0.0, 0, 0, NAN]]))[0, 3]
    assert_allclose(got, means[3] * np.exp(effect), rtol=1e-4)


def test_sums_over_cells_that_few_connect_do_not_explode():
    counts = make_site_counts(2000, 100, 5, observed=2500, effort_growth=0.05, random_state=1)
    imputer = FederatedMatrixImputer(2, family="poisson", penalty=10).fit(
        counts.clients, shape=counts.shape
    )
    total = imputer.fitted_mean().sum()
    assert 0.5 * counts.trend.sum() < total < 2 * counts.trend.sum()


@pytest.mark.parametrize("effects", ["both", "rows", "columns", "none"])
@pytest.mark.parametrize(
    ("family", "value", "mean"),
    [
        ("gaussian", 5.0, 5.0),
        ("poisson", 3.0, 3.0),
        ("poisson", 0.0, 0.0),
        ("bernoulli", 1.0, 1.0),
        ("bernoulli", 0.0, 0.0),
    ],
)
# An objective that goes to 0 has no relative change that is small.
@pytest.mark.filterwarnings("ignore:Not converged")
def test_matrices_of_one_value(family, value, mean, effects):
    X = [np.where(seen, value, NAN) for seen in SEEN]
    imputer = FederatedMatrixImputer(1, family=family, effects=effects, penalty=0.1, max_iter=20)
    imputer.fit(X)
    assert_finite(imputer)
    # Without effects the penalty shrinks the means.
    assert_allclose(imputer.fitted_mean(), mean, atol=0.2 if effects == "none" else 1e-3)
    assert np.isfinite(imputer.score(X))
    assert np.isfinite(imputer.transform(X)[0]).all()
    assert np.isfinite(imputer.transform(X[0])).all()


@pytest.mark.parametrize(
    ("family", "value", "effects"),
    [
        ("gaussian", 0.0, "both"),
        ("gaussian", 0.0, "rows"),
        ("gaussian", 0.0, "columns"),
        ("gaussian", 0.0, "none"),
        ("poisson", 1.0, "none"),
    ],
)
def test_matrices_that_the_start_fits_already(family, value, effects):
    X = [np.where(seen, value, NAN) for seen in SEEN]
    imputer = FederatedMatrixImputer(1, family=family, effects=effects).fit(X)
    assert imputer.singular_values_.size == 0
    assert_finite(imputer)
    assert_allclose(imputer.fitted_mean(), value, atol=1e-6)


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (5, 1)])
@every_family
def test_tiny_matrices(family, shape):
    imputer = FederatedMatrixImputer(1, family=family, tol=1e-3).fit(
        [np.ones(shape), np.zeros(shape)]
    )
    assert_finite(imputer)
    assert_allclose(imputer.fitted_mean(), 0.5, rtol=1e-4)


@pytest.mark.parametrize("scale", [1e6, 1e9, 1e12])
@pytest.mark.filterwarnings("ignore:Not converged")
# Cells that nobody saw are far off, if the penalty is nothing beside the counts.
@pytest.mark.filterwarnings("ignore:The fitted means of")
@pytest.mark.filterwarnings("ignore:The fitted mean .* in row 0, column 0 is some")
def test_huge_counts(scale):
    X = [np.floor(client * scale / 20) for client in CLIENTS]
    imputer = FederatedMatrixImputer(**{**EXACT, "max_iter": 50}).fit(X)
    assert_finite(imputer)
    objective = imputer.history_["objective"]
    assert np.diff(objective).max() <= 1e-9 * objective[0]
    filled = imputer.transform(X[0])
    assert np.isfinite(filled).all()
    values, means = observed(X, imputer.fitted_mean())
    # Row and column totals are right at the optimum, so is their sum.
    assert_allclose(means.sum(), values.sum(), rtol=1e-3)
    one = np.array(CLIENTS[0])
    one[0, 0] = scale
    assert_finite(FederatedMatrixImputer(**EXACT, max_iter=50).fit([one, *CLIENTS[1:]]))


def test_counts_whose_means_would_overflow_are_refused(fitted):
    X = np.array(CLIENTS[1])
    X[4, 2] = 2e13
    says = r"Expected non-negative integers up to 1e\+13 .* got 2.*e\+13|20000000000000"
    with pytest.raises(ValueError, match=says) as caught:
        FederatedMatrixImputer(**EXACT).fit([CLIENTS[0], X])
    assert "row 4, column 2 of client 1" in str(caught.value)
    with pytest.raises(ValueError, match="up to 1e"):
        fitted.transform(X)
    FederatedMatrixImputer(**{**EXACT, "family": "gaussian", "effects": "none", "tol": 1e-3}).fit(
        [CLIENTS[0], X]
    )


def test_means_that_reach_the_guard_are_said(monkeypatch):
    # No data short of 1e13 make a fit go there: the guard comes down to it.
    monkeypatch.setattr(_matrix_warnings, "MAX_LOG_MEAN", 2.0)
    with pytest.warns(UserWarning, match="cells are above 7.39 and were cut there") as caught:
        imputer = FederatedMatrixImputer(**EXACT).fit(CLIENTS)
    assert [warning.filename for warning in caught] == [__file__]
    with pytest.warns(
        UserWarning, match="Use a larger penalty or effects_penalty, or a smaller rank"
    ):
        imputer.fitted_mean()
    with pytest.warns(UserWarning, match="cut there"):
        imputer.transform(STACKED)
    monkeypatch.undo()
    imputer.intercept_ = 800.0  # exp of it is inf
    with pytest.warns(UserWarning, match="means of 96 of 96 cells are above 1.07e"):
        assert np.isfinite(imputer.fitted_mean()).all()


def test_means_far_above_all_that_was_observed_are_said():
    # Two sites that were never seen in the months in which others had many.
    rng = np.random.default_rng(0)
    site, month = np.array([3.0, 0, 0, 0, 0, 0]), np.array([0, 0, 0, 0, 1.0, 2.0])
    counts = rng.poisson(np.exp(1 + np.outer(site, month))).astype(float)
    counts[0, 4:] = np.nan
    fit = {"family": "poisson", "random_state": 0, "max_iter": 2000}
    imputer = FederatedMatrixImputer(**fit, penalty=1.0).fit([counts])
    observed = imputer._largest_theta
    assert np.log(np.nanmax(counts)) == pytest.approx(observed, abs=0.5)
    # Nothing to say of this fit, ...
    means = imputer.fitted_mean()
    assert_array_equal(imputer.transform([counts])[0], np.where(np.isnan(counts), means, counts))
    # ... but of one that gives the first site an effect of the size of a colony.
    imputer.row_effects_ = imputer.row_effects_ + np.array([9.0, 0, 0, 0, 0, 0])
    says = r"means of 6 of 36 cells, up to .*, are more than 100 times the largest of an observed"
    for ask in (imputer.fitted_mean, lambda: imputer.transform([counts])):
        with pytest.warns(UserWarning, match=says) as caught:
            ask()
        assert len(caught) == 1
    assert np.isfinite(imputer.fitted_mean([1, 2])).all()
    # A new row with large counts is no extrapolation.
    assert (imputer.transform(1000 * counts[1:2]) > 100).all()


@pytest.mark.filterwarnings("ignore:Not converged")
def test_measurements_in_any_unit():
    parameters = {"rank": None, "tol": 0.0, "max_iter": 60}
    unit = FederatedMatrixImputer(**parameters, penalty=2.0).fit(CLIENTS)
    for scale in (1e-3, 1e2, 1e6, 1e100):
        X = [client * scale for client in CLIENTS]
        imputer = FederatedMatrixImputer(**parameters, penalty=2.0 * scale).fit(X)
        assert_finite(imputer)
        # Without a bound on the rank there is one optimum, the same in any unit.
        assert_allclose(imputer.fitted_mean() / scale, unit.fitted_mean(), atol=1e-3)


def test_integers_and_booleans():
    counts = [np.arange(96).reshape(SHAPE) % 7, np.arange(96).reshape(SHAPE)[::-1] % 5]
    want = FederatedMatrixImputer(**EXACT).fit([table.astype(float) for table in counts])
    got = FederatedMatrixImputer(**EXACT).fit([table.astype(np.uint8) for table in counts])
    assert_same_fit(got, want)
    assert got.transform(counts)[0].dtype == np.float64
    presences = [table > 2 for table in counts]
    imputer = FederatedMatrixImputer(1, family="bernoulli", penalty=5.0).fit(presences)
    assert_array_equal(imputer.transform(presences)[0], presences[0])


# ------------------------------------------------------------------ what is refused

PARAMETERS = [
    ({"rank": 9}, ValueError, r"rank <= min\(n_rows, n_columns\), got 9 .* shape \(12, 8\)"),
    (
        {"rank": 0},
        ValueError,
        "rank to be an integer >= 1, got 0. None is no bound; for effects alone",
    ),
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
    ({"step_size": 1.5}, ValueError, "step_size to be a number > 0 and <= 1"),
    ({"omega": -1.0}, ValueError, "omega to be a number >= 0"),
    ({"participation": 0.0}, ValueError, "participation to be a number > 0"),
    ({"missing_values": "?"}, TypeError, "missing_values to be a number or NaN"),
    ({"missing_values": np.ones(2)}, TypeError, "missing_values to be a number or NaN"),
    ({"max_iter": None}, ValueError, "max_iter or max_epochs to bound the fit"),
    (
        {"batch_size": 40, "replacement": False},
        ValueError,
        "batch_size=40 observed cells for every client with replacement=False, got 37 for client 0",
    ),
]
DATA = [
    ([CLIENTS[0], -CLIENTS[1]], "non-negative integers .* in row 0, column . of client 1"),
    ([CLIENTS[0], CLIENTS[1] + 0.5], "non-negative integers .* of client 1"),
    ([CLIENTS[0], np.where(SEEN[1], np.inf, NAN)], "contains infinity.* client 1"),
    ([CLIENTS[0], CLIENTS[1][:5]], "12 rows for every client .* got 5 for client 1"),
    ([CLIENTS[0], CLIENTS[1][:, :5]], "8 columns for every client .* got 5 for client 1"),
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


# ------------------------------------------------------------------ memory


def test_no_dense_matrix_is_ever_built():
    shape, n_cells = (20_000, 5_000), 5_000
    generator = np.random.default_rng(0)
    clients = []
    for _ in range(4):
        # Every fiftieth site and month, so that the effects are soon found.
        cells = (
            50 * generator.integers(400, size=n_cells),
            50 * generator.integers(100, size=n_cells),
        )
        clients.append(coo_array((generator.poisson(2.0, n_cells) * 1.0, cells), shape))
    imputer = FederatedMatrixImputer(2, family="poisson", penalty=3.0, max_iter=3)
    tracemalloc.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            imputer.fit(clients)
        imputer.score(clients)
        assert imputer.fitted_mean([19_999], [0, 4_999]).shape == (1, 2)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # A dense matrix of doubles is 800 MB; a hundredth of it is a few copies of cells and factors.
    assert peak < 40e6


# ------------------------------------------------------------------ a count beyond all others


@pytest.mark.parametrize("count", [1e4, 1e8])
def test_a_huge_count_is_told_where_it_holds_the_others_up(count):
    rng = np.random.default_rng(1)
    counts = rng.poisson(5, (10, 8)).astype(float)
    counts[counts > 7] = NAN
    counts[3, 4] = count
    imputer = FederatedMatrixImputer(rank=2, family="poisson", penalty=5.0, max_iter=1000)
    if count < 1e5:
        imputer.fit(counts)  # warns nothing
        return
    imputer.set_params(max_iter=300)
    # On its way still, which it says as well: the optimum is at 210 nats.
    says = (
        r"in row 3, column 4 is some .* far from the optimum\. Raise max_iter, not tol\. Check the"
    )
    with pytest.warns(ConvergenceWarning, match="300 rounds"), pytest.warns(match=says):
        imputer.fit(counts)
    assert imputer.objective_ > 1000
    months = [f"m{k}" for k in range(8)]
    tables = [
        pd.DataFrame(np.minimum(counts, 9), [f"a{k}" for k in range(10)], months),
        pd.DataFrame(counts, [f"b{k}" for k in range(10)], months),
    ]
    says = r"in row 3 \('b3'\), column 4 \('m4'\) of client 1 is some"
    with pytest.warns(ConvergenceWarning, match="300 rounds"), pytest.warns(match=says):
        imputer.set_params(rows="disjoint").fit(tables)


def fit_with_a_flock(flock, **parameters):
    counts = make_site_counts(60, 36, n_clients=5, observed=0.4, random_state=0)
    clients = [table.copy() for table in counts.clients]
    clients[2][7] = 49, 14, flock
    imputer = FederatedMatrixImputer(5, family="poisson", penalty=10.0, random_state=0)
    return imputer.set_params(**parameters).fit(clients, shape=counts.shape)


@pytest.mark.parametrize(
    "parameters",
    [
        {"participation": 0.75},
        {"omega": 1.0},
        {"solver": "vr_fedem", "batch_size": 20},
        {"step_size": 1.0},
    ],
    ids=lambda parameters: next(iter(parameters)),
)
@pytest.mark.slow
def test_a_large_flock_is_told_where_rounds_have_no_momentum(parameters):
    says = (
        r"in row 49, column 14 is some .* Raise max_iter, not tol, or fit in exact rounds .* log1p"
    )
    with pytest.warns(UserWarning, match=says):
        fit_with_a_flock(10_000, **parameters, tol=1e-2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        fit_with_a_flock(1_000, **parameters, tol=1e-2)


def test_a_large_flock_is_no_matter_where_rounds_have_momentum():
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        fit_with_a_flock(10_000, tol=1e-4)
    says = r"short of the optimum\. Compare .* smaller tol\. Check the counts of this row"
    with pytest.warns(UserWarning, match=says):
        fit_with_a_flock(100_000, tol=1e-4)


@pytest.mark.parametrize(("shape", "width"), [((4, 4), 4), ((1, 17), 5)])
def test_cells_are_numbered_from_0(shape, width):
    # The last of 16 cells is the 15th, of 4 bits.
    seen = np.full(shape, np.nan)
    seen[0, :2] = 0.0, 1.0
    imputer = FederatedMatrixImputer(1, effects="none", max_iter=0).fit([seen])
    # And a byte for each count.
    assert imputer.history_["uplink_bits"][0] == 2 * (width + 8)


def test_counts_of_observations_take_bytes_of_7_bits():
    def bits(n_times):
        visits = np.full((n_times, 2, 2), np.nan)
        visits[:, 0, 0] = np.arange(n_times) % 2
        visits[0, 1, 1] = 1
        imputer = FederatedMatrixImputer(1, effects="none", max_iter=0)
        return imputer.fit([visits]).history_["uplink_bits"][0]

    assert bits(128) == bits(127) + 8


@pytest.mark.parametrize("n_times", [1_000, 100_000])
@pytest.mark.parametrize("family", ["gaussian", "bernoulli"])
def test_a_cell_observed_beyond_all_others_is_told(family, n_times):
    rng = np.random.default_rng(0)
    once = np.column_stack([*np.divmod(np.arange(240), 12), rng.random(240) < 0.5])
    often = np.column_stack([np.full((n_times, 2), [7, 3]), rng.random(n_times) < 0.3])
    imputer = FederatedMatrixImputer(family=family, tol=1e-4, random_state=0)

    def fit():
        return imputer.fit([once, often], shape=(20, 12))

    if n_times < 10_000:
        fit()  # warns nothing
        # Nor do random rounds, whose steps follow the curvature.
        clone(imputer).set_params(participation=0.9).fit([once, often], shape=(20, 12))
        imputer.set_params(step_size=1.0)
    says = f"cell in row 7, column 3 weigh some {n_times + 1:,} times as much .* Keep fewer"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        with pytest.warns(UserWarning, match=says):
            fit()


def test_the_observations_of_a_small_client_may_weigh_too_much():
    rng = np.random.default_rng(0)
    alone = np.full((150, 100), NAN)
    alone[3, 4] = 0.5
    imputer = FederatedMatrixImputer(1, penalty=5.0, client_weights="uniform", random_state=0)
    # The one observation counts as all 15,000 of the other client.
    with pytest.warns(UserWarning, match="row 3, column 4 weigh some 15,001 .*='n_samples'"):
        imputer.fit([rng.normal(size=alone.shape), alone])


@pytest.mark.filterwarnings("ignore:Not converged:sklearn.exceptions.ConvergenceWarning")
def test_a_mean_that_was_often_observed_is_compared_with_other_means():
    rng = np.random.default_rng(0)
    once = np.column_stack([*np.divmod(np.arange(300), 15), rng.poisson(1.0, 300)])
    often = np.tile([2, 3, 300], (90, 1))
    imputer = FederatedMatrixImputer(2, family="poisson", penalty=5.0, random_state=0)
    with pytest.warns(
        UserWarning, match="The fitted mean 297 in row 2, column 3 is some 2[0-9]{2} "
    ):
        imputer.fit([np.concatenate([once, often])], shape=(20, 15))


@pytest.mark.parametrize("container", [None, "pandas"])
def test_means_far_above_what_a_row_shows_are_told_whoever_else_is_there(container):
    imputer = FederatedMatrixImputer(1, family="poisson", rows="disjoint", tol=1e-3)
    imputer.fit([np.random.default_rng(0).poisson(5.0, size=(30, 6)).astype(float)])
    imputer.set_output(transform=container)
    imputer.column_effects_[5] += 12  # as rows with little to tell may come out
    far, huge = np.full((1, 6), 3.0), np.full((1, 6), 43_000.0)
    far[0, 5] = NAN
    for clients in ([far], [far, huge]):
        with pytest.warns(UserWarning, match="^The fitted means of 1 of .* cells") as caught:
            imputer.transform(clients)
        assert len(caught) == 1


def test_means_are_compared_with_the_largest_that_their_own_row_shows():
    theta = np.array([[0.0, 0.0], [1.0, 9.0]])
    says = r"of 1 of 4 cells, up to 8.1e\+03, .* 100 times the largest of an observed cell, 7.39:"
    with pytest.warns(UserWarning, match=says):
        warn_of_means(theta, np.array([5.0, 2.0]))
    # Where next to nothing was observed, means below 100 are not far from it.
    warn_of_means(np.array([[-9.0, np.log(50)]]), np.array([-9.0]))


def test_who_reads_minibatches_is_told_of_the_other_solver():
    (told,) = instead_of_more_rounds(FederatedMatrixImputer(batch_size=3))
    assert 'solver="vr_fedem"' in told.replace("'", '"')
    assert not instead_of_more_rounds(FederatedMatrixImputer(batch_size=3, solver="vr_fedem"))


@pytest.mark.parametrize(("control_init", "is_told"), [("field", True), ("zeros", False)])
def test_a_fit_above_its_start_is_told_of_without_a_history(control_init, is_told):
    rng = np.random.default_rng(0)
    counts = rng.poisson(5.0, (4, 30, 20))
    clients = [np.where(rng.random((30, 20)) < 0.3, own, np.nan) for own in counts]
    rough = {"omega": 50.0, "compressor": "rand_k", "participation": 0.3, "control_step": 1.0}
    imputer = FederatedMatrixImputer(
        3, family="poisson", penalty=0.1, **rough, step_size=1.0, max_iter=30, random_state=0
    ).set_params(eval_every=None, control_init=control_init)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        imputer.fit(clients)
    said = [str(warning.message) for warning in caught]
    assert any("of its start: do not use it" in message for message in said) == is_told
