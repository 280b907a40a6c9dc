"""Errors of totals from fits to drawn data, and multiple imputation."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from skfedem import FederatedMatrixImputer
from skfedem._imputer.bootstrap import draw
from skfedem.models.matrix.families import family_of

NAN = np.nan
EFFECTS = dict(rank=0, family="poisson", effects_penalty=0)
LOW_RANK = dict(rank=2, family="poisson", penalty=3.0, tol=1e-3)


def simulated(seed=0, n_rows=30, n_columns=6, share=0.2):
    generator = np.random.default_rng(seed)
    natural = 2 + 0.5 * generator.normal(size=(n_rows, 1)) + 0.4 * generator.normal(size=n_columns)
    values = generator.poisson(np.exp(natural)).astype(float)
    values[generator.random(values.shape) < share] = NAN
    return values


VALUES = simulated()


def ratios(one, other):
    return np.sqrt(np.diag(one) / np.diag(other))


def test_drawn_observations_give_the_errors_of_the_equations():
    # For effects alone, both are asymptotically the same; 60 draws have errors of 9 %.
    imputer = FederatedMatrixImputer(**EFFECTS).fit(VALUES)
    exact = imputer.totals(VALUES, serial_correlation=False)
    drawn = imputer.totals(VALUES, errors="parametric", n_draws=60, random_state=0)
    for name in ("imputed_covariance", "model_covariance"):
        ratio = ratios(getattr(drawn, name), getattr(exact, name))
        assert ratio.mean() == pytest.approx(1, abs=0.15)
    assert_allclose(drawn.imputed, exact.imputed, rtol=1e-6)
    assert drawn.dispersion == pytest.approx(max(imputer.dispersion_, 1))
    plain = imputer.totals(
        VALUES, errors="parametric", overdispersion=False, n_draws=4, random_state=0
    )
    assert plain.dispersion == 1


@pytest.mark.parametrize("errors", ["rows", "clients"])
def test_drawn_rows_vary_like_a_sample_of_rows(errors):
    # Complete rows, each of a client: the total is a sum of independent rows.
    values = simulated(share=0.0)
    clients = [values[k : k + 1] for k in range(len(values))]
    imputer = FederatedMatrixImputer(**EFFECTS, rows="disjoint").fit(clients)
    totals = imputer.totals(clients, errors=errors, n_draws=100, random_state=0)
    expected = len(values) * np.cov(values.T)
    assert ratios(totals.imputed_covariance, expected).mean() == pytest.approx(1, abs=0.2)
    assert_allclose(totals.imputed, values.sum(axis=0))


@pytest.mark.parametrize("errors", ["parametric", "rows", "clients"])
def test_fits_with_a_low_rank_part_have_errors(errors):
    values = simulated(1)
    clients = [np.where(np.arange(6) % 2 == k, values, NAN) for k in range(2)] + [values]
    imputer = FederatedMatrixImputer(**LOW_RANK).fit(clients)
    before = {name: np.copy(value) for name, value in vars(imputer).items() if name[-1] == "_"}
    settings = dict(errors=errors, n_draws=5, random_state=0)
    totals = imputer.totals(clients, **settings)
    assert (np.diag(totals.imputed_covariance) > 0).all()
    assert_allclose(totals.model, imputer.fitted_mean().sum(axis=0))
    assert np.isfinite(totals.trend().slope_error)
    again = imputer.totals(clients, **settings)
    assert_array_equal(again.imputed_covariance, totals.imputed_covariance)
    # The fit is left as it was.
    for name, value in before.items():
        if value.dtype != object:
            assert_array_equal(getattr(imputer, name), value)


def test_totals_that_hang_on_a_single_cell_warn():
    values = VALUES.copy()
    values[0] = [40] + 5 * [NAN]
    imputer = FederatedMatrixImputer(**LOW_RANK).fit(values)
    with pytest.warns(UserWarning, match="of row 0 in column .* from 1 observed cell"):
        imputer.totals(values, errors="rows", n_draws=2, random_state=0)


@pytest.mark.slow
def test_draws_do_not_depend_on_the_number_of_processes():
    imputer = FederatedMatrixImputer(**LOW_RANK).fit(VALUES)
    one, two = (
        imputer.totals(VALUES, errors="rows", n_draws=4, random_state=0, n_jobs=n) for n in (1, 2)
    )
    assert_array_equal(one.imputed_covariance, two.imputed_covariance)


def test_groups_have_errors_of_their_own():
    values, groups = simulated(share=0.05), np.arange(30) % 2
    imputer = FederatedMatrixImputer(**LOW_RANK).fit(values)
    settings = dict(errors="parametric", n_draws=4, random_state=0)
    found = imputer.totals(values, groups=groups, columns=[1, 3], **settings)
    some = imputer.totals(values, rows=np.flatnonzero(groups == 1), columns=[1, 3], **settings)
    assert_allclose(found[1].imputed_covariance, some.imputed_covariance)
    assert_allclose(found[1].row_shares, some.row_shares)


@pytest.mark.parametrize("family", ["poisson", "gaussian", "bernoulli"])
@pytest.mark.parametrize("dispersion", [1.0, 4.0])
def test_draws_have_mean_and_dispersion(family, dispersion):
    means = np.full(40_000, 0.3 if family == "bernoulli" else 2.5)
    drawn = draw(family_of(family), means, dispersion, np.random.default_rng(0))
    variance = {"poisson": 2.5, "gaussian": 1, "bernoulli": 0.21}[family]
    variance *= 1 if family == "bernoulli" else dispersion
    assert drawn.mean() == pytest.approx(means[0], abs=4 * np.sqrt(variance / len(means)))
    assert drawn.var() == pytest.approx(variance, rel=0.06)


def test_imputations_keep_what_was_observed_and_draw_the_rest():
    imputer = FederatedMatrixImputer(**LOW_RANK).fit(VALUES)
    matrices = imputer.impute(VALUES, n_imputations=8, random_state=0)
    seen = ~np.isnan(VALUES)
    assert matrices.shape == (8, *VALUES.shape)
    assert_array_equal(matrices[:, seen], np.broadcast_to(VALUES[seen], (8, seen.sum())))
    missing = matrices[:, ~seen]
    assert_array_equal(missing, np.floor(missing))
    # At least as variable as observations around the fitted means.
    means = imputer.fitted_mean()[~seen]
    assert missing.var(axis=0).sum() > 0.8 * imputer.dispersion_ * means.sum()
    assert missing.mean() == pytest.approx(means.mean(), rel=0.2)
    assert_array_equal(imputer.impute(VALUES, n_imputations=8, random_state=0), matrices)


def test_bad_parameters():
    imputer = FederatedMatrixImputer(**EFFECTS).fit(VALUES)
    with pytest.raises(ValueError, match="errors .*'equations', .*'clients', got 'sites'"):
        imputer.totals(VALUES, errors="sites")
    with pytest.raises(ValueError, match="n_draws .*2.*got 1"):
        imputer.totals(VALUES, errors="rows", n_draws=1)
    with pytest.raises(ValueError, match="errors .*'parametric'.* got 'equations'"):
        imputer.impute(VALUES, errors="equations")
    with pytest.raises(ValueError, match="data of the fit"):
        imputer.impute(VALUES[1:])
