"""penalty="auto": a quarter of the smallest penalty without low-rank part."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from skfedem import FederatedMatrixImputer, FederatedMatrixImputerCV

SHAPE = (20, 9)


def counts(scale=1.0):
    rng = np.random.default_rng(0)
    theta = np.log(5 * scale) + 0.7 * rng.normal(size=(20, 1)) @ rng.normal(size=(1, 9))
    X = rng.poisson(np.exp(theta), (3, *SHAPE)) * 1.0
    return list(np.where(rng.random(X.shape) < 0.5, X, np.nan))


@pytest.mark.parametrize("weights", ["n_samples", "uniform"])
@pytest.mark.parametrize("family", ["gaussian", "poisson"])
def test_it_is_a_quarter_of_where_the_search_starts(family, weights):
    settings = dict(family=family, client_weights=weights, random_state=0)
    search = FederatedMatrixImputerCV([1], 2, n_splits=2, effects_penalties=[0.1], **settings)
    largest = search.fit(counts()).penalty_max_
    imputer = FederatedMatrixImputer(penalty="auto", **settings).fit(counts())
    assert_allclose(imputer.penalty_, largest / 4, rtol=1e-10)
    given = FederatedMatrixImputer(penalty=imputer.penalty_, **settings).fit(counts())
    assert_array_equal(given.fitted_mean(), imputer.fitted_mean())
    assert given.penalty_ == imputer.penalty_


def test_residuals_are_counted_once():
    automatic = FederatedMatrixImputer(penalty="auto").fit(counts())
    given = FederatedMatrixImputer(penalty=automatic.penalty_).fit(counts())
    new = automatic.setup_messages_[len(given.setup_messages_) - 1 :]
    named = {own.name: own for own in automatic.setup_messages_ if own not in given.setup_messages_}
    assert set(named) == {"effects", "residuals"}, new
    assert named["residuals"].uplink_bits == 64 * sum((~np.isnan(X)).sum() for X in counts())
    assert named["effects"].downlink_bits == 64 * 3 * (1 + sum(SHAPE))


def test_it_follows_the_size_of_counts_and_predicts_large_ones():
    X = counts(scale=1e4)
    small, large = (
        FederatedMatrixImputer(family="poisson", penalty="auto").fit(own).penalty_
        for own in (counts(), X)
    )
    assert 1e3 < large / small < 1e5


def test_without_low_rank_part_there_is_nothing_to_penalise():
    imputer = FederatedMatrixImputer(0, penalty="auto").fit(counts())
    assert imputer.penalty_ == 0
    assert "residuals" not in {own.name for own in imputer.setup_messages_}


def test_new_rows_have_the_penalty_of_the_fit():
    imputer = FederatedMatrixImputer(1, family="poisson", penalty="auto").fit(counts())
    given = FederatedMatrixImputer(1, family="poisson", penalty=imputer.penalty_).fit(counts())
    assert_array_equal(imputer.transform(counts()[0]), given.transform(counts()[0]))


@pytest.mark.parametrize("penalty", ["automatic", -1.0])
def test_other_penalties_are_refused(penalty):
    with pytest.raises((TypeError, ValueError), match='or "auto"'):
        FederatedMatrixImputer(penalty=penalty).fit(counts())
