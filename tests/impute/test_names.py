"""Names of sites and times given with triplets."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from imputations import CLIENTS, MONTHS, QUICK, SHAPE, SITES, TRIPLETS
from skfedem import FederatedMatrixImputer, FederatedMatrixImputerCV
from skfedem.datasets import read_counts

NUMBERED = FederatedMatrixImputer(**QUICK).fit(TRIPLETS, shape=SHAPE)


@pytest.fixture(scope="module")
def named():
    return FederatedMatrixImputer(**QUICK).fit(TRIPLETS, shape=(SITES, MONTHS))


def test_names_stand_in_for_numbers(named):
    assert_array_equal(named.fitted_mean(), NUMBERED.fitted_mean())
    assert named.get_feature_names_out().tolist() == MONTHS


def test_filled_tables_have_the_names_of_sites_and_times(named):
    filled = named.set_output(transform="pandas").transform(TRIPLETS)
    for table in filled:
        assert table.index.tolist() == SITES
        assert table.columns.tolist() == MONTHS
    named.set_output(transform="default")
    alone = FederatedMatrixImputer(**QUICK).set_output(transform="pandas")
    alone.fit(TRIPLETS[0], shape=(SITES, MONTHS))
    assert alone.transform(TRIPLETS[0]).index.tolist() == SITES


def test_either_axis_may_have_names():
    imputer = FederatedMatrixImputer(**QUICK).fit(TRIPLETS, shape=(SHAPE[0], MONTHS))
    assert imputer.get_feature_names_out().tolist() == MONTHS
    filled = imputer.set_output(transform="pandas").transform(TRIPLETS)
    assert filled[0].index.tolist() == list(range(SHAPE[0]))


def test_the_search_takes_names():
    search = FederatedMatrixImputerCV(penalties=[10.0, 5.0], n_splits=2, family="poisson", tol=1e-2)
    search.fit(TRIPLETS, shape=(SITES, MONTHS))
    assert search.best_estimator_.get_feature_names_out().tolist() == MONTHS


def test_tables_with_other_names_are_refused(named):
    other = pd.DataFrame(CLIENTS[0], SITES[::-1], MONTHS)
    with pytest.raises(ValueError, match="row labels of the fit"):
        named.transform([other])


def test_repeated_names_are_refused():
    with pytest.raises(ValueError, match="different names in `shape`, got 'month 0' 2 times"):
        FederatedMatrixImputer().fit(TRIPLETS, shape=(SITES, ["month 0", *MONTHS[:-1]]))
    with pytest.raises((TypeError, ValueError), match="Expected shape="):
        FederatedMatrixImputer().fit(TRIPLETS, shape=("sites", "months"))


def test_matrices_after_a_fit_to_triplets(named):
    # Not sent to sparse matrices, which turn observed zeros into missing cells.
    whole = NUMBERED.transform(TRIPLETS)
    frames = [pd.DataFrame(matrix, SITES, MONTHS) for matrix in CLIENTS]
    for imputer, matrices in ((NUMBERED, CLIENTS), (NUMBERED, np.stack(CLIENTS)), (named, frames)):
        for one, other in zip(imputer.transform(matrices), whole, strict=True):
            assert_allclose(one, other)
        assert_allclose(imputer.score(matrices), NUMBERED.score(TRIPLETS))
    assert_allclose(NUMBERED.transform([CLIENTS[0], TRIPLETS[1]])[1], whole[1])
    with pytest.raises(ValueError, match="triplets"):
        NUMBERED.transform([CLIENTS[0][:, :4]])
    alone = FederatedMatrixImputer(**QUICK).fit(TRIPLETS[0], shape=SHAPE)
    rows = FederatedMatrixImputer(**QUICK).fit(CLIENTS[0])
    assert_allclose(alone.transform(CLIENTS[0]), rows.transform(CLIENTS[0]))
    assert alone.score(CLIENTS[0]) == pytest.approx(rows.score(CLIENTS[0]))


def test_a_long_table_of_names_to_a_table_of_names():
    notes = pd.DataFrame(
        {
            "site": ["pond", "wood", "pond", "lake", "wood"],
            "year": [2020, 2020, 2021, 2023, 2021],
            "birds": [3, 0, 5, 2, 1],
        }
    )
    counts = read_counts(notes, site="site", time="year", count="birds", freq="Y")
    imputer = FederatedMatrixImputer(rank=1, family="poisson").set_output(transform="pandas")
    imputer.fit(counts.clients, shape=(counts.sites, counts.times))
    (filled,) = imputer.transform(counts.clients)
    assert filled.loc["pond", "2021"] == 5
    assert filled.columns.tolist() == ["2020", "2021", "2022", "2023"]


def test_a_table_of_three_named_times_is_no_triplets():
    sites, times = ["lake", "pond", "wood"], pd.Index(["2021", "2022", "2023"])
    table = pd.DataFrame([[1.0, np.nan, 2], [3, 4, np.nan], [0, 1, 1]], index=sites, columns=times)
    rows, columns = np.nonzero(table.notna().to_numpy())
    triplets = np.column_stack([rows, columns, table.to_numpy()[rows, columns]])
    imputer = FederatedMatrixImputer(1, family="poisson", random_state=0)
    imputer.fit([triplets], shape=(sites, times))
    assert_array_equal(imputer.transform([table])[0], imputer.transform([triplets])[0])
    assert imputer.score([table]) == pytest.approx(imputer.score([triplets]), rel=1e-12)
    with pytest.raises(ValueError, match="lake|row"):
        imputer.transform([table.iloc[::-1]])
