"""What a fitted imputer fills in and scores, and which tables it refuses."""

from copy import copy

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import coo_array
from sklearn.base import clone

from imputations import (
    CLIENTS,
    FRAMES,
    MONTHS,
    N_CLIENTS,
    N_COLUMNS,
    N_ROWS,
    NAN,
    NOTHING,
    QUICK,
    SEEN,
    SHAPE,
    SITES,
    SPARSE,
    STACKED,
    TRIPLETS,
    every_family,
    of_family,
)
from skfedem import FederatedMatrixImputer, FederatedMatrixImputerCV


@pytest.fixture(scope="module")
def of_triplets():
    return FederatedMatrixImputer(**QUICK).fit(TRIPLETS, shape=SHAPE)


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
        with pytest.raises(TypeError, match=f"Expected a table .*got {X} of type"):
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
        patch.delattr("skfedem._imputer.imputation.each_table")
        score = fitted.score([*seen, nothing])
        patch.setattr("skfedem._imputer.imputation._SCORED_TOGETHER", 100)  # some clients at a time
        in_groups = fitted.score([*seen, nothing])
    assert_allclose([score, in_groups], np.average(scores, weights=counts), rtol=1e-14)
    # What is wrong is told by its client.
    for wrong in (-np.ones(SHAPE), CLIENTS[0][:, 1:], np.empty((0, *SHAPE))):
        with pytest.raises(ValueError, match="In the table of client 4: "):
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
        with pytest.raises(ValueError, match="In the table of client 3: "):
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
    with pytest.raises((TypeError, ValueError), match="Expected"):
        FederatedMatrixImputer().fit(pd.Series(["a", "b"]))
    with pytest.raises((TypeError, ValueError), match="Expected"):
        FederatedMatrixImputer().fit([pd.Series(["a", "b"])])


@pytest.mark.parametrize(
    ("X", "says"),
    [
        ([CLIENTS[0], CLIENTS[1][:5]], "client 1: Expected the 12 rows of the fit, got 5"),
        ([CLIENTS[0][:, :3]], "client 0: X has 3 features, .* expecting 8"),
        (CLIENTS[0][:, :3], "X has 3 features"),
        ([], "at least one client, got an empty list. Give one table, or a list"),
        (np.empty((0, *SHAPE)), "at least one client, got an empty ndarray. Give one table, or"),
        ([CLIENTS], "client 0: Expected one table, got a list"),
        ([CLIENTS[0], -CLIENTS[1]], "client 1: Expected non-negative integers .* row 0, column"),
        ([np.stack([CLIENTS[0], -CLIENTS[1]])], "client 0: In the table of observer 1: Expected"),
        (-CLIENTS[1], "Expected non-negative integers .* got -"),
        ([np.where(SEEN[0], np.inf, NAN)], "client 0: Input X contains infinity"),
        (WORDS, "^Expected numbers: could not .*'many'. Put names of sites in"),
        ([WORDS], "client 0: Expected numbers: could not .*'many'. Put names"),
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
        (CLIENTS[0][:, 1:], r"Expected triplets .* got shape \(12, 7\).*Fit without `shape`"),
        ([[12, 0, 1.0]], r"site numbers to be integers from 0 to 11 .* got 12.0 in triplet 0\. "),
        ([[0, 0, 1.0], [0, 0.5, 1.0]], r"month numbers .* got 0.5 in triplet 1\. "),
        ([[3, 2, -1.0]], r"got -1.0 in site 3, month 2\. Correct it"),
        ([[0, 0, NAN]], r"got nan in site 0, month 0"),
        ([0, 0, 1.0], "got 1 dimension"),
        (None, "got None of type NoneType"),
        ([["a", "b", "c"]], "Expected numbers, got dtype <U"),
    ],
)
def test_bad_triplets_after_the_fit(of_triplets, bad, says):
    for answer in (of_triplets.transform, of_triplets.score):
        where = "In the table of client 2"
        with pytest.raises((TypeError, ValueError), match=f"{where}: .*{says}") as caught:
            answer([*TRIPLETS[:2], bad])
        # The client is named once.
        assert "client 2" not in str(caught.value).removeprefix(where)


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
