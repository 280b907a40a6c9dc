"""What a search is compared with, and totals of held-out cells, from fits and loops by hand."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import bernoulli, norm, poisson

from searches import QUICK, SHAPE, clients_of, every_family
from skfedem import FederatedMatrixImputer, FederatedMatrixImputerCV
from skfedem._data.cells import read_cells
from skfedem._penalty_search.held_out import fold_of_cells, split_cells
from skfedem._random import seeds_of_runs
from skfedem.models.matrix.families import FAMILIES

pytestmark = pytest.mark.filterwarnings("ignore:The best penalty.* is the smallest that was tried")
EFFORT = np.random.default_rng(1).normal(size=SHAPE)
LOG_DENSITY = {
    "gaussian": lambda values, means: norm.logpdf(values, means),
    "bernoulli": lambda values, means: bernoulli.logpmf(values, means),
    "poisson": lambda values, means: poisson.logpmf(values, means),
}
with_and_without_effort = pytest.mark.parametrize(
    ("family", "has_effort"),
    [("gaussian", False), ("bernoulli", False), ("poisson", False), ("poisson", True)],
)


def splits_of(clients, family, n_splits, offset=None):
    """The folds that a search with seed 0 holds out."""
    cells = read_cells(
        FederatedMatrixImputer(),
        clients,
        family=FAMILIES[family],
        keep_observations=True,
        offset=offset,
    )
    folds = fold_of_cells(cells, n_splits, seeds_of_runs(0, 1)[0])
    return [split_cells(cells, folds == fold) for fold in range(n_splits)]


def data_of(triplets):
    rows, columns = triplets.table[:, :2].T.astype(int)
    return rows, columns, triplets.table[:, 2]


def mean_of_season(train, family, has_effort, period):
    """Function of row and column: a mean with one more observation, that of the next larger set."""
    rows, columns, values = data_of(train)
    weights, extra = np.ones(len(values)), 0.0 if family == "gaussian" else 0.5
    if has_effort:
        weights = np.exp(EFFORT[rows, columns])
    unit = weights.mean()
    overall = (values.sum() + extra) / (weights.sum() + 2 * extra * unit)

    def mean(row, column):
        result = overall
        for chosen in (rows == row, (rows == row) & (columns % period == column % period)):
            result = (values[chosen].sum() + result * unit) / (weights[chosen].sum() + unit)
        return result * np.exp(EFFORT[row, column]) if has_effort else result

    return mean


@with_and_without_effort
def test_means_of_rows_and_seasons_predict_held_out_cells(family, has_effort):
    clients, period = clients_of(family), 4
    offset = [EFFORT] * len(clients) if has_effort else None
    search = FederatedMatrixImputerCV(penalties=1, period=period, family=family, **QUICK)
    baselines = search.fit(clients, offset=offset).baselines_
    assert baselines["baseline"][1] == "row and season means"
    observed = expected = 0.0
    for fold, (train, test) in enumerate(splits_of(clients, family, 2, offset)):
        mean = mean_of_season(train, family, has_effort, period)
        rows, columns, values = data_of(test)
        means = np.array([mean(row, column) for row, column in zip(rows, columns, strict=True)])
        score = LOG_DENSITY[family](values, means).mean()
        assert_allclose(baselines[f"split{fold}_test_score"][1], score)
        observed, expected = observed + values.sum(), expected + means.sum()
    assert_allclose(baselines["observed_to_expected"][1], observed / expected)


@every_family
def test_effects_alone_have_the_penalty_that_predicts_best(family):
    clients, scores = clients_of(family), {}
    settings = QUICK | {"effects_penalties": [0.1, 10.0]}
    search = FederatedMatrixImputerCV(penalties=2, family=family, **settings).fit(clients)
    for ridge in (0.1, 10.0):
        imputer = FederatedMatrixImputer(0, family=family, effects_penalty=ridge, tol=1e-2)
        scores[ridge] = [
            imputer.fit(train.table, clients=train.clients, shape=SHAPE).score(test.table)
            for train, test in splits_of(clients, family, 2)
        ]
    best = max(scores.values(), key=np.mean)
    baselines = search.baselines_
    assert baselines["baseline"].tolist() == ["effects alone"]
    assert_allclose([baselines[f"split{fold}_test_score"][0] for fold in range(2)], best)
    assert_allclose(baselines["mean_test_score"], np.mean(best))
    assert_allclose(baselines["std_test_score"], np.std(best))


@with_and_without_effort
def test_sums_of_held_out_cells_are_compared_with_those_of_each_fit(family, has_effort):
    clients = clients_of(family)
    offset = [EFFORT] * len(clients) if has_effort else None
    search = FederatedMatrixImputerCV(penalties=[3.0], family=family, **QUICK)
    ratio = search.fit(clients, offset=offset).cv_results_["observed_to_expected"]
    observed = expected = 0.0
    for train, test in splits_of(clients, family, 2, offset):
        imputer = FederatedMatrixImputer(None, family=family, penalty=3.0, effects_penalty=0.1)
        imputer.set_params(tol=1e-2)
        imputer.fit(train.table, clients=train.clients, shape=SHAPE, offset=train.offset)
        rows, columns, values = data_of(test)
        means = imputer.fitted_mean()[rows, columns]
        if has_effort:
            means = means * np.exp(EFFORT[rows, columns])
        observed, expected = observed + values.sum(), expected + means.sum()
    assert_allclose(ratio, [observed / expected])


def test_gaussian_offsets_are_subtracted():
    clients = clients_of()
    search = FederatedMatrixImputerCV(penalties=1, period=4, **QUICK)
    shifted = [client + EFFORT for client in clients]
    baselines = search.fit(shifted, offset=[EFFORT] * len(clients)).baselines_
    for name, column in search.fit(clients).baselines_.items():
        if name != "baseline":
            assert_allclose(baselines[name], column)


def test_a_season_of_zeros_does_not_rule_out_a_count():
    clients = [np.tile([0.0, 3.0], (6, 4))]
    clients[0][0, 0] = 5.0
    search = FederatedMatrixImputerCV(penalties=1, period=2, family="poisson", **QUICK)
    assert np.isfinite(search.fit(clients).baselines_["mean_test_score"]).all()


@pytest.mark.parametrize("period", [0, 2.5, "12"])
def test_a_period_is_a_number_of_columns(period):
    with pytest.raises((TypeError, ValueError), match="Expected period to be an integer >= 1"):
        FederatedMatrixImputerCV(period=period).fit(clients_of())
