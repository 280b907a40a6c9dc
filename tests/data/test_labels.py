"""Labels of rows, one for each: which are refused, and that any list of clients is some labels."""

import warnings
from enum import Enum
from functools import partial

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import MinMaxScaler

from refusals import (
    CLIENTS,
    GOOD,
    N_SAMPLES,
    NAMED,
    OWNERS,
    THREE_WAYS,
    X,
    assert_unchanged,
    check_refused,
    fitted_attributes,
)
from skfedem import FederatedGaussianMixture, FederatedMatrixImputer
from skfedem._data.labels import group_rows
from skfedem.preprocessing import FederatedStandardScaler, PerClient


def labels_with(label, row=4, dtype=object):
    labels = OWNERS.astype(dtype)
    labels[row] = label
    return labels


Owner = Enum("Owner", ["ash", "birch", "cedar"])
BAD_LABELS = {
    "one label too few": (OWNERS[:-1], r"one label for each of the 28 rows.*\(27,\)"),
    "one label too many": ([*OWNERS, "ash"], r"28 rows.*\(29,\)"),
    "a column of labels": (OWNERS[:, None], r"one label.*\(28, 1\)"),
    "lengths of clients": ([9, 12, 7], r"28 rows.*\(3,\).*label of each row"),
    "lists of rows": ([[0, 1], [2, 3, 4]], "one label for each of the 28 rows"),
    "None": (labels_with(None), "missing.*row 4.*[Dd]rop"),
    "NaN": (np.where(np.arange(N_SAMPLES) == 6, np.nan, 1.0), "missing.*row 6.*[Dd]rop"),
    "NaN among strings": (labels_with(np.nan), "missing.*row 4"),
    "NaN among strings in a list": (labels_with(np.nan).tolist(), "missing.*row 4"),
    "pandas NA": (labels_with(pd.NA), "missing.*row 4"),
    "a missing string": (pd.Series(labels_with(None), dtype="str"), "missing.*row 4"),
    "a missing integer": (
        pd.Series([*range(N_SAMPLES - 1), None], dtype="Int64"),
        "missing.*row 27",
    ),
    "a missing category": (pd.Categorical(labels_with(None)), "missing.*row 4"),
    "no date": (
        pd.to_datetime(pd.Series(["2020-01-01"] * (N_SAMPLES - 1) + [None])),
        "missing.*row 27",
    ),
    "a masked label": (
        np.ma.array(OWNERS, mask=np.arange(N_SAMPLES) == 4),
        "Expected clients without masked entries, got 1.*fill the entries in",
    ),
    "labels in a column": (OWNERS[:, None], r"shape \(28, 1\).*one dimension"),
    "how many clients there are": (3, "got type int. Give the label of each row"),
    "a missing label of pandas": (
        pd.array([1] * (N_SAMPLES - 1) + [None], dtype="Int64"),
        "missing one at row 27",
    ),
}
NO_LABELS = {
    "the name of a column": (
        "ash",
        r"one label for each row, got the string .ash..*column itself, X\['ash'\]",
    ),
    "labels of a partial order": (
        np.array([frozenset([owner]) for owner in np.tile(["ash", "birch"], 14)], dtype=object),
        "can be sorted.*frozenset.*with str",
    ),
    "labels without a hash": (
        pd.Series([[owner] for owner in np.tile(["ash", "birch"], 14).tolist()]),
        "labels that can be sorted, got list.*with str",
    ),
    "labels of one type without an order": (
        [Owner[name] for name in OWNERS.tolist()],
        "labels of one type that can be sorted, got Owner.*with str",
    ),
    "mixed types": (labels_with(3), "one type.*int, str.*with str"),
    "mixed types in a list": (labels_with(3).tolist(), "one type.*int, str.*with str"),
}


@pytest.mark.parametrize(("labels", "says"), BAD_LABELS.values(), ids=BAD_LABELS)
def test_bad_labels(labels, says):
    check_refused(ValueError, says, X, labels)


def test_a_date_is_named_without_the_type_that_numpy_adds():
    dates = np.where(OWNERS == "ash", "2026-01-02", "2026-01-03").astype("datetime64[D]")
    with pytest.raises(ValueError, match="of client 2026-01-0"):
        FederatedGaussianMixture().fit(np.full_like(X, np.nan), clients=dates)


@pytest.mark.parametrize(("labels", "says"), NO_LABELS.values(), ids=NO_LABELS)
def test_invalid_types_of_labels(labels, says):
    check_refused(TypeError, says, X, labels)


@pytest.mark.parametrize("tables", [CLIENTS, tuple(NAMED)], ids=["list", "tuple of frames"])
@pytest.mark.parametrize("labels", [OWNERS, ["ash", "birch", "cedar"]], ids=["rows", "clients"])
def test_labels_together_with_a_list(tables, labels):
    check_refused(ValueError, ["clients=None", "list", "got both", *THREE_WAYS], tables, labels)


@pytest.mark.parametrize(
    "fit",
    [
        FederatedGaussianMixture().fit,
        FederatedGaussianMixture().partial_fit,
        FederatedMatrixImputer().fit,
        partial(FederatedMatrixImputer().fit, shape=(28, 28)),
        PerClient(MinMaxScaler()).fit,
    ],
    ids=["mixture", "partial_fit", "imputer", "triplets", "PerClient"],
)
def test_a_column_name_as_labels_raises(fit):
    table = pd.DataFrame(X, columns=["x", "y"]).assign(owner=OWNERS)
    with pytest.raises(TypeError, match=r"the string 'owner'.*X\['owner'\], and drop it from X"):
        fit(table, clients="owner")


every_estimator = pytest.mark.parametrize(
    "estimator",
    [
        FederatedGaussianMixture(max_iter=0),
        FederatedStandardScaler(),
        PerClient(MinMaxScaler()),
        FederatedMatrixImputer(1),
    ],
    ids=lambda estimator: type(estimator).__name__,
)


@every_estimator
def test_labels_among_the_columns_warn(estimator):
    table = pd.DataFrame(X, columns=["x", "y"]).assign(owner=np.arange(N_SAMPLES) % 3)
    says = "Column 'owner', .* is still in X .* Drop it from X"
    with pytest.warns(UserWarning, match=says) as caught:
        estimator.fit(table, clients=table["owner"])
    assert [warning.filename for warning in caught] == [__file__]
    estimator.fit(table[["x", "y"]], clients=table["owner"])  # warns nothing
    estimator.fit(table, clients=pd.Series(OWNERS))
    estimator.fit(pd.DataFrame(X), clients=pd.DataFrame(OWNERS)[0])


def test_labels_in_place_of_y_warn():
    gm = FederatedGaussianMixture(max_iter=0)
    for labels in (OWNERS, [f"site {k}" for k in OWNERS]):
        with pytest.warns(UserWarning, match=r"is ignored, .* write fit\(X, clients=labels\)"):
            gm.fit(X, labels)
    # Measurements, one class, labels beside the clients', and anything else are no labels.
    for y in (X[:, 0], np.zeros(N_SAMPLES), "y", OWNERS[1:], X):
        gm.fit(X, y)
    gm.fit(X, OWNERS, clients=OWNERS)
    gm.fit([X, X], [0, 0])
    assert gm.n_clients_ == 2


@every_estimator
def test_labels_in_another_index_order_warn(estimator):
    table = pd.DataFrame(X, columns=["x", "y"], index=[f"row {k}" for k in range(N_SAMPLES)])
    owners = pd.Series(OWNERS, index=table.index)
    says = r"`clients` has the index of X in another order.* with .loc\[X.index\] if"
    with pytest.warns(UserWarning, match=says) as caught:
        estimator.fit(table, clients=owners[::-1])
    assert [warning.filename for warning in caught] == [__file__]
    reverse = owners[::-1]
    estimator.fit(table, clients=reverse.loc[table.index])  # warns nothing
    estimator.fit(table, clients=reverse.to_numpy())
    estimator.fit(X, clients=reverse)
    # Another index tells nothing of the rows.
    estimator.fit(table, clients=pd.Series(OWNERS))
    estimator.fit(table, clients=pd.Series(OWNERS, index=["row 1"] * N_SAMPLES))
    levels = pd.MultiIndex.from_product([range(7), range(4)])
    estimator.fit(table.set_index(levels), clients=pd.Series(OWNERS))
    days = pd.date_range("2000-01-01", periods=N_SAMPLES)
    estimator.fit(table.set_index(days), clients=pd.Series(OWNERS, index=days.to_period()))


def test_weights_in_another_index_order_warn():
    table = pd.DataFrame(X)
    weights = pd.Series(np.arange(1.0, 1 + N_SAMPLES))
    gm = FederatedGaussianMixture(max_iter=0)
    for method in (gm.fit, gm.partial_fit, gm.score):
        with pytest.warns(UserWarning, match="`sample_weight` has the index of X in another order"):
            method(table, sample_weight=weights[::-1])
        method(table, sample_weight=weights)  # warns nothing
    with pytest.warns(UserWarning, match="`sample_weight` of client 1 has the index of X in"):
        gm.fit([table, table], sample_weight=[weights, weights[::-1]])


@every_estimator
def test_measurements_as_labels_warn(estimator):
    for measurements in (X[:, 0], X[:, 0].tolist()):
        with pytest.warns(UserWarning, match="holds 28 different numbers for 28 rows") as caught:
            estimator.fit(X, clients=measurements)
        assert [warning.filename for warning in caught] == [__file__]
    numbers = np.arange(N_SAMPLES)
    for labels in (numbers * 1.0, np.append(numbers[1:], np.inf), numbers // 2 + 0.5):
        estimator.fit(X, clients=labels)  # warns nothing


def test_missing_values_of_labelled_rows_name_the_client():
    rows = X.copy()
    rows[10, 1] = np.nan
    says = ["finite|NaN", "row 10", "column 1", "birch", "[Dd]rop or impute"]
    check_refused(ValueError, says, rows, OWNERS)
    rows[10, 1] = np.inf
    check_refused(ValueError, ["finite|infinity", "row 10", "column 1", "birch"], rows, OWNERS)


def test_missing_values_of_shuffled_rows_name_the_client():
    shuffled = np.random.default_rng(1).permutation(N_SAMPLES)
    rows, owners = X[shuffled], OWNERS[shuffled]
    for row in (0, 5, N_SAMPLES - 1):
        broken = rows.copy()
        broken[row, 0] = np.nan
        check_refused(ValueError, [f"row {row}\\b", "column 0", str(owners[row])], broken, owners)


def test_large_integer_labels_are_not_rounded():
    # As floats, the last two would be the same client.
    labels = [[1, 2**63 + 5, 2**63 + 6][k % 3] for k in range(N_SAMPLES)]
    gm = FederatedGaussianMixture(**GOOD).fit(X, clients=labels)
    assert gm.client_ids_.tolist() == [1, 2**63 + 5, 2**63 + 6]


def test_tuples_of_several_lengths_are_labels():
    clients = [(owner,) if owner == OWNERS[0] else (owner, 1) for owner in OWNERS.tolist()]
    gm = FederatedGaussianMixture(**GOOD).fit(X, clients=clients)
    assert gm.client_ids_.tolist() == sorted(set(clients))


def test_partially_ordered_labels_raise():
    # None of these sets is smaller or larger than another, so that nothing is out of order.
    ash, birch = frozenset(["ash"]), frozenset(["birch"])
    labels = np.array([ash, birch, ash], dtype=object)
    with pytest.raises(TypeError, match="labels that can be sorted, got frozenset"):
        group_rows(labels, 3)


# ---- any list is some labels

NUMBERS = st.integers(-(10**6), 10**6)
WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(data=st.data())
def test_a_list_and_its_labels_are_the_same_federation(data):
    n_clients = data.draw(st.integers(1, 6), "clients")
    lengths = data.draw(st.lists(st.integers(1, 6), min_size=n_clients, max_size=n_clients))
    n_features = data.draw(st.integers(1, 3), "features")
    kind = data.draw(st.sampled_from([NUMBERS, WORDS, st.dates()]), "kind of label")
    ids = sorted(data.draw(st.sets(kind, min_size=n_clients, max_size=n_clients)))
    seed = data.draw(st.integers(0, 2**31), "seed")
    as_series, as_objects = data.draw(st.booleans()), data.draw(st.booleans())

    rng = np.random.default_rng(seed)
    owners = rng.permutation(np.repeat(np.arange(n_clients), lengths))
    rows = rng.normal(size=(len(owners), n_features))
    tables = [rows[owners == client] for client in range(n_clients)]
    labels = np.array(ids, dtype=object if as_objects else None)[owners]
    if as_series:
        labels = pd.Series(labels, index=rng.permutation(len(labels)))

    gm = FederatedGaussianMixture(
        covariance_type="diag",
        batch_size=2,
        participation=0.5,
        step_size=0.1,
        max_iter=5,
        random_state=seed % 1000,
    )
    with warnings.catch_warnings():
        # No convergence, and minibatches larger than clients.
        warnings.simplefilter("ignore", UserWarning)
        attributes = fitted_attributes(gm.fit(tables))
        gm.fit(rows, clients=labels)
    got = fitted_attributes(gm)
    assert attributes.pop("client_ids_").tolist() == list(range(n_clients))
    assert got.pop("client_ids_").tolist() == ids
    assert gm.n_clients_ == n_clients
    assert_unchanged(got, attributes)
