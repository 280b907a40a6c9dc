"""Cells that nobody saw, extreme ones, and counts and means beyond all others."""

import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import brentq
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from imputations import (
    CLIENTS,
    EXACT,
    N_CLIENTS,
    NAN,
    NOTHING,
    OWNERS,
    SEEN,
    SHAPE,
    STACKED,
    assert_finite,
    every_family,
    observed,
    of_family,
)
from problems import assert_same_fit
from skfedem import FederatedMatrixImputer
from skfedem._imputer.warnings import warn_of_means
from skfedem.datasets import make_site_counts
from watched import said_by

# ------------------------------------------------------------------ poor data


def test_clients_without_cells_give_a_warning_and_no_other_fit(fitted):
    clients = [NOTHING, *CLIENTS, *[NOTHING] * 6]
    says = r"7 of 11 clients have no observed cell and contribute nothing: 0, 5, 6, 7, 8, \.\.\.$"
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
def test_unobserved_rows_and_columns_have_no_effects(family, effects):
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


def test_no_unobserved_rows_if_all_were_observed(fitted):
    assert fitted.unobserved_rows_.shape == fitted.unobserved_columns_.shape == (0,)


def test_sites_without_a_bird_have_next_to_none():
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
def test_tiny_matrices_have_the_mean_of_their_cells(family, shape):
    imputer = FederatedMatrixImputer(1, family=family, tol=1e-3).fit(
        [np.ones(shape), np.zeros(shape)]
    )
    assert_finite(imputer)
    assert_allclose(imputer.fitted_mean(), 0.5, rtol=1e-4)


@pytest.mark.parametrize("scale", [1e6, 1e9, 1e12])
@pytest.mark.filterwarnings("ignore:Not converged")
# Cells that nobody saw are far off, if the penalty is nothing beside the counts.
@pytest.mark.filterwarnings("ignore:The fitted means of")
@pytest.mark.filterwarnings("ignore:The cell in row 0, column 0")
def test_huge_counts_are_fitted_to_their_totals(scale):
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


@pytest.mark.filterwarnings("ignore:The dispersion of the counts")
def test_a_warm_start_finds_the_effects_of_a_count_beyond_all_before():
    counts = np.random.default_rng(3).poisson(5.0, (4, 5)).astype(float)
    effects_alone = {"family": "poisson", "penalty": 1e15, "max_iter": 0}
    imputer = FederatedMatrixImputer(**effects_alone, warm_start=True).fit([counts])
    counts[0, 2] = 9e12
    with pytest.warns(UserWarning, match="of other cells"):
        imputer.fit([counts])
        expected = FederatedMatrixImputer(**effects_alone).fit([counts])
    # Terms of the objective are 3e14 nats, and their rounding 0.03.
    assert_allclose(imputer.objective_, expected.objective_, atol=1.0)


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


def test_capped_means_give_a_warning(monkeypatch):
    # No data short of 1e13 make a fit go there: the guard comes down to it.
    monkeypatch.setattr("skfedem._imputer.warnings.MAX_LOG_MEAN", 2.0)
    with pytest.warns(UserWarning, match="cells are above 7.39 and were capped there") as caught:
        imputer = FederatedMatrixImputer(**EXACT).fit(CLIENTS)
    assert [warning.filename for warning in caught] == [__file__]
    with pytest.warns(UserWarning, match="use a larger penalty or a smaller rank"):
        imputer.fitted_mean()
    with pytest.warns(UserWarning, match="capped there"):
        imputer.transform(STACKED)
    monkeypatch.undo()
    imputer.intercept_ = 800.0  # exp of it is inf
    with pytest.warns(UserWarning, match="of 96 of 96 cells, up to 1.07e"):
        assert np.isfinite(imputer.fitted_mean()).all()


@pytest.mark.filterwarnings("ignore:Not converged")
@pytest.mark.parametrize(("step_size", "n_rounds"), [("auto", 1500), (1.0, 400)])
def test_steps_do_not_overflow_without_curvature(step_size, n_rounds):
    # Without a penalty, means of zeros go to 0, and steps grow by 1.3 or e a round: their squares
    # would leave the range of doubles, 1.8e308.
    imputer = FederatedMatrixImputer(
        1, family="poisson", penalty=0.0, effects="none", step_size=step_size, tol=0.0,
        max_iter=n_rounds,
    ).fit([np.zeros((3, 2))])  # fmt: skip
    assert imputer.n_iter_ == n_rounds
    assert 0 <= imputer.objective_ < 1e-90


def test_extrapolated_means_give_a_warning():
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
    says = r"means of 6 of 36 cells, up to .*, are more than 100 times the largest fitted"
    for ask in (imputer.fitted_mean, lambda: imputer.transform([counts])):
        with pytest.warns(UserWarning, match=says) as caught:
            ask()
        assert len(caught) == 1
    assert np.isfinite(imputer.fitted_mean([1, 2])).all()
    # A new row with large counts is no extrapolation.
    assert (imputer.transform(1000 * counts[1:2]) > 100).all()


@pytest.mark.filterwarnings("ignore:Not converged")
def test_measurements_in_any_unit_have_the_same_means():
    parameters = {"rank": None, "tol": 0.0, "max_iter": 60}
    unit = FederatedMatrixImputer(**parameters, penalty=2.0).fit(CLIENTS)
    for scale in (1e-3, 1e2, 1e6, 1e100):
        X = [client * scale for client in CLIENTS]
        imputer = FederatedMatrixImputer(**parameters, penalty=2.0 * scale).fit(X)
        assert_finite(imputer)
        # Without a bound on the rank there is one optimum, the same in any unit.
        assert_allclose(imputer.fitted_mean() / scale, unit.fitted_mean(), atol=1e-3)


def test_integers_and_booleans_are_the_numbers_they_are():
    counts = [np.arange(96).reshape(SHAPE) % 7, np.arange(96).reshape(SHAPE)[::-1] % 5]
    want = FederatedMatrixImputer(**EXACT).fit([table.astype(float) for table in counts])
    got = FederatedMatrixImputer(**EXACT).fit([table.astype(np.uint8) for table in counts])
    assert_same_fit(got, want)
    assert got.transform(counts)[0].dtype == np.float64
    presences = [table > 2 for table in counts]
    imputer = FederatedMatrixImputer(1, family="bernoulli", penalty=5.0).fit(presences)
    assert_array_equal(imputer.transform(presences)[0], presences[0])


# ------------------------------------------------------------------ a count beyond all others


@pytest.mark.parametrize("count", [1e4, 1e8])
def test_huge_count_that_slows_convergence_gives_a_warning(count):
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
    says = r"The cell in row 3, column 4 has .* curvature of other cells"
    with pytest.warns(ConvergenceWarning, match="300 rounds"), pytest.warns(match=says):
        imputer.fit(counts)
    assert imputer.objective_ > 1000


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
def test_large_count_gives_a_warning_without_momentum(parameters):
    with pytest.warns(UserWarning, match="The cell in row 49, column 14 has"):
        fit_with_a_flock(10_000, **parameters, tol=1e-2)
    fit_with_a_flock(1_000, **parameters, tol=1e-2)  # warns nothing


def test_large_count_gives_no_warning_with_momentum():
    fit_with_a_flock(10_000, tol=1e-4)  # warns nothing
    with pytest.warns(UserWarning, match="The cell in row 49, column 14 has"):
        fit_with_a_flock(100_000, tol=1e-4)


@pytest.mark.parametrize("n_times", [1_000, 100_000])
@pytest.mark.parametrize("family", ["gaussian", "bernoulli"])
def test_frequently_observed_cell_gives_a_warning(family, n_times):
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
    says = f"cell in row 7, column 3 has {n_times + 1:,} times the curvature"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        with pytest.warns(UserWarning, match=says):
            fit()


def test_cell_of_a_small_client_with_uniform_weights_gives_a_warning():
    rng = np.random.default_rng(0)
    alone = np.full((150, 100), NAN)
    alone[3, 4] = 0.5
    imputer = FederatedMatrixImputer(1, penalty=5.0, client_weights="uniform", random_state=0)
    # The one observation counts as all 15,000 of the other client.
    with pytest.warns(UserWarning, match="row 3, column 4 has 15,001 times"):
        imputer.fit([rng.normal(size=alone.shape), alone])


@pytest.mark.filterwarnings("ignore:Not converged:sklearn.exceptions.ConvergenceWarning")
def test_large_mean_observed_often_gives_a_warning():
    rng = np.random.default_rng(0)
    once = np.column_stack([*np.divmod(np.arange(300), 15), rng.poisson(1.0, 300)])
    often = np.tile([2, 3, 300], (90, 1))
    imputer = FederatedMatrixImputer(2, family="poisson", penalty=5.0, random_state=0)
    with pytest.warns(UserWarning, match="row 2, column 3 has [0-9,]* times the curvature"):
        imputer.fit([np.concatenate([once, often])], shape=(20, 15))


@pytest.mark.parametrize("container", [None, "pandas"])
def test_extrapolation_in_a_new_row_does_not_depend_on_other_clients(container):
    imputer = FederatedMatrixImputer(1, family="poisson", rows="disjoint", tol=1e-3)
    imputer.fit([np.random.default_rng(0).poisson(5.0, size=(30, 6)).astype(float)])
    imputer.set_output(transform=container)
    imputer.column_effects_[5] += 12  # as rows with little to tell may come out
    far, huge = np.full((1, 6), 3.0), np.full((1, 6), 43_000.0)
    far[0, 5] = NAN
    for clients, n_far in (([far], 1), ([far, huge], 1), ([far, far], 2)):
        with pytest.warns(UserWarning, match=f"^The fitted means of {n_far} of ") as caught:
            imputer.transform(clients)
        assert len(caught) == 1


def test_extrapolation_is_relative_to_the_largest_mean_of_a_row():
    theta = np.array([[0.0, 0.0], [1.0, 9.0]])
    says = r"of 1 of 4 cells, up to 8.1e\+03, .* largest fitted mean of an observed cell, 7.39:"
    with pytest.warns(UserWarning, match=says):
        warn_of_means(theta, np.array([5.0, 2.0]))
    # Where next to nothing was observed, means below 100 are not far from it.
    warn_of_means(np.array([[-9.0, np.log(50)]]), np.array([-9.0]))


@pytest.mark.parametrize(
    ("theta", "largest", "says"),
    [
        ([[810.0, 1.0]], [800.0], ["1 of 2 cells are above 1.07e"]),
        ([[800.0, 799.0], [20, 1]], [799.0, 1.0], ["2 of 4 cells are above", "up to 4.85e+08,"]),
        ([[800.0, 1.0]], [1.0], ["up to 1.07e+13, are more than 100"]),
        ([[2.0, 1.0]], [1.0], []),
    ],
)
def test_warnings_of_capped_and_extrapolated_means(theta, largest, says):
    said = said_by(warn_of_means, np.array(theta), np.array(largest))
    assert len(said) == len(says)
    assert all(part in message for part, message in zip(says, said, strict=True))
