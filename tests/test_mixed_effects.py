"""Population models, as users fit them."""

import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize
from scipy.stats import multivariate_normal, norm
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, GroupKFold
from statsmodels.regression.mixed_linear_model import MixedLM

from populations import line, linear_subjects
from problems import fit_unconverged, quiet_fit
from skfedem import FederatedNonlinearMixedEffects
from skfedem.datasets import load_theophylline
from skfedem.pharmacokinetics import one_compartment_oral

# -2 log-likelihood of the exact maximum likelihood estimates, by BFGS and 9 nodes.
EXACT_120, EXACT_132 = 345.4348, 360.7007
START = {"ka": 1.0, "V": 20.0, "CL": 0.5}
ESTIMATES = ("population_parameters_", "residual_", "standard_errors_")


@pytest.fixture(scope="module")
def table():
    return load_theophylline().data


@pytest.fixture(scope="module")
def after_dose(table):
    return table[table["time"] > 0]


def oral(**parameters):
    return FederatedNonlinearMixedEffects(one_compartment_oral, START, **parameters)


def by_dose(table):
    """Four sites with three subjects each, sorted by dose."""
    doses = table.groupby("id")["dose"].first().sort_values(kind="stable")
    site = {subject: place // 3 for place, subject in enumerate(doses.index)}
    return table["id"].map(site).to_numpy()


@pytest.fixture(scope="module")
def pooled(after_dose):
    return oral(n_nodes=7, tol=1e-9).fit(after_dose)


def lines_of(n_subjects=60, seed=0):
    """Long table of lines, with a covariate."""
    subjects = linear_subjects(n_subjects, seed)
    places, owners = np.nonzero(subjects.observed)
    return pd.DataFrame(
        {
            "id": owners,
            "time": subjects.regressors["time"][places, owners],
            "x": subjects.covariates[1, owners],
            "dv": subjects.response[places, owners],
        }
    )


def lines(**parameters):
    start = {"level": 1.0, "slope": 0.5}
    fixed = {"transform": "identity", "regressors": ["time"], "covariates": {"slope": ["x"]}}
    return FederatedNonlinearMixedEffects(line, start, **{**fixed, **parameters})


# ---- maximum likelihood


def test_theophylline_has_its_maximum_likelihood_estimates(pooled):
    assert pooled.converged_
    # 7 nodes are off by 0.001, which is also what separates EM's fixed point from the maximum.
    assert abs(-2 * pooled.log_likelihood_ - EXACT_120) < 0.004
    values = list(pooled.population_parameters_.values())
    assert_allclose(values, [1.5794, 31.626, 2.7480], rtol=2e-4)
    variances = np.diagonal(pooled.random_effects_cov_)
    assert_allclose(variances, [0.3947, 0.01789, 0.07075], rtol=2e-3)
    assert_allclose(pooled.residual_["a"], 0.7380, rtol=2e-4)


def test_thirty_rounds_are_enough_and_none_falls_back(after_dose):
    fit = quiet_fit(oral(n_nodes=7, max_iter=30, tol=0.0), after_dose)
    assert abs(-2 * fit.log_likelihood_ - EXACT_120) < 0.004
    assert np.diff(-24 * fit.history_["log_likelihood"]).max() < 1e-6


def test_standard_errors_and_all_measurements(table):
    fit = oral().fit(table)
    assert abs(-2 * fit.log_likelihood_ - EXACT_132) < 0.01
    relative = [
        fit.standard_errors_[name] / value for name, value in fit.population_parameters_.items()
    ]
    assert_allclose(relative, [0.194, 0.0461, 0.0838], rtol=0.05)


def line_likelihood(data, vector, is_full):
    """Log-likelihood of lines in closed form; the vector has means, L of Ω, and log a."""
    level, slope, beta, *root, log_a = vector
    factor = np.array([[root[0], 0.0], [root[2] if is_full else 0.0, root[1]]])
    total = 0.0
    for _, own in data.groupby("id"):
        design = np.column_stack([np.ones(len(own)), own["time"]])
        mean = design @ [level, slope + beta * own["x"].iloc[0]]
        covariance = design @ factor @ factor.T @ design.T + np.exp(2 * log_a) * np.eye(len(own))
        total += multivariate_normal(mean, covariance).logpdf(own["dv"])
    return total


@pytest.mark.parametrize("covariance_type", ["diag", "full"])
def test_lines_have_their_maximum_likelihood_estimates(covariance_type):
    data, is_full = lines_of(), covariance_type == "full"
    fit = lines(covariance_type=covariance_type, tol=1e-14, max_iter=3000, n_nodes=3).fit(data)
    root = np.linalg.cholesky(fit.random_effects_cov_)
    means = [*fit.population_parameters_.values(), fit.coef_[0, 1]]
    vector = np.array([*means, root[0, 0], root[1, 1], root[1, 0], np.log(fit.residual_["a"])])
    found = line_likelihood(data, vector, is_full)
    assert_allclose(fit.log_likelihood_, found, rtol=1e-10)
    best = minimize(
        lambda moved: -line_likelihood(data, moved, is_full), vector, method="BFGS", tol=1e-7
    )
    # To where the likelihood is flat to rounding.
    assert_allclose(-best.fun, found, rtol=1e-8)
    assert_allclose(best.x, vector, atol=1e-4)


def test_lines_have_the_fit_and_the_errors_of_statsmodels():
    data = lines_of()
    ours = lines(covariance_type="full", tol=1e-13, max_iter=3000, n_nodes=3).fit(data)
    exog = np.column_stack([np.ones(len(data)), data["time"], data["x"] * data["time"]])
    theirs = MixedLM(data["dv"], exog, groups=data["id"], exog_re=exog[:, :2])
    fit = theirs.fit(reml=False, method=["bfgs"], gtol=1e-9, maxiter=1000)
    assert_allclose(ours.log_likelihood_, fit.llf, rtol=1e-8)
    got = [*ours.population_parameters_.values(), ours.coef_[0, 1]]
    # Their optimiser leaves off where the likelihood is flat to rounding.
    assert_allclose(got, fit.fe_params, rtol=1e-4)
    assert_allclose(ours.random_effects_cov_, fit.cov_re, rtol=1e-3, atol=1e-4)
    assert_allclose(ours.residual_["a"] ** 2, fit.scale, rtol=1e-4)
    # Theirs are of the observed information, which knows that of the covariance as well.
    names = ["level", "slope", "beta_slope_x"]
    assert_allclose([ours.standard_errors_[name] for name in names], fit.bse_fe, rtol=0.02)


@pytest.mark.parametrize(
    ("error", "truth"),
    [
        ("proportional", {"b": 0.15}),
        ("combined", {"a": 0.3, "b": 0.12}),
        ("exponential", {"a": 0.15}),
    ],
)
def test_every_error_is_recovered_from_its_own_simulations(error, truth, after_dose):
    many = pd.concat([after_dose.assign(id=after_dose["id"] + 100 * k) for k in range(20)])
    model = oral(error=error).fit(after_dose)
    model.residual_ = truth
    model._theta = model._theta._replace(squares=np.square(list(truth.values())))
    drawn = many.assign(dv=model.simulate(many, random_state=0)[0])
    if error != "exponential":
        drawn = drawn[drawn["dv"] > -np.inf]
    again = oral(error=error).fit(drawn)
    errors = [again.standard_errors_[f"residual_{name}"] for name in truth]
    z = (np.array(list(again.residual_.values())) - list(truth.values())) / errors
    assert np.abs(z).max() < 4
    want = np.log(list(model.population_parameters_.values()))
    got = np.log(list(again.population_parameters_.values()))
    relative = [
        again.standard_errors_[name] / value for name, value in again.population_parameters_.items()
    ]
    assert (np.abs(got - want) < 4 * np.array(relative)).all()


# ---- federation


def assert_same_estimates(got, want, tolerance):
    for name in ESTIMATES:
        one, other = getattr(got, name), getattr(want, name)
        assert one.keys() == other.keys()
        assert_allclose(list(one.values()), list(other.values()), rtol=tolerance, err_msg=name)
    for name, column in want.history_.items():
        if name not in ("n_active", "uplink_bits", "downlink_bits"):
            assert_allclose(got.history_[name], column, rtol=tolerance, atol=1e-12, err_msg=name)


@pytest.mark.filterwarnings("ignore:.*fewer than 3 subjects")
@pytest.mark.parametrize("split", ["ragged", "one each", "two"])
def test_a_federation_has_the_fit_of_the_pooled_subjects(split, after_dose):
    sites = {
        "ragged": np.repeat([0, 1, 2, 3], [5, 1, 4, 2])[after_dose["id"] - 1],
        "one each": after_dose["id"].to_numpy(),
        "two": (after_dose["id"] > 3).to_numpy(),
    }[split]
    want = oral(max_iter=12, tol=0.0)
    quiet_fit(want, after_dose)
    mixed = np.random.default_rng(0).permutation(len(after_dose))
    for n_jobs in (1, 2):
        got = quiet_fit(
            oral(max_iter=12, tol=0.0, n_jobs=n_jobs), after_dose.iloc[mixed], clients=sites[mixed]
        )
        assert_same_estimates(got, want, 1e-10)


def test_lists_labels_and_columns_are_one_fit(after_dose):
    sites = by_dose(after_dose)
    tables = [after_dose[sites == k] for k in range(4)]
    fits = [
        quiet_fit(oral(max_iter=3), tables),
        quiet_fit(oral(max_iter=3), after_dose, clients=sites),
        quiet_fit(oral(max_iter=3), after_dose.assign(site=sites), clients="site"),
        quiet_fit(oral(max_iter=3), [pl.from_pandas(own) for own in tables]),
        quiet_fit(oral(max_iter=3), [own.to_dict("list") for own in tables]),
        quiet_fit(oral(max_iter=3), [own.assign(id=own["id"].astype(float)) for own in tables]),
    ]
    for fit in fits:
        assert_same_estimates(fit, fits[0], 0)
        assert fit.n_clients_ == 4
        assert fit.n_subjects_ == 12
        assert_array_equal(fit.client_ids_, range(4))


def test_absences_and_compression_are_made_up_for_by_control_variates(after_dose):
    sites = by_dose(after_dose)
    best = quiet_fit(oral(tol=1e-13, max_iter=500), after_dose)
    federated = {"omega": 1.0, "participation": 0.5, "random_state": 0, "eval_every": None}
    automatic = oral(**federated).fit(after_dose, clients=sites)
    assert automatic.converged_
    assert automatic.n_iter_ <= 300
    excess = {}
    for controls in ({}, {"control_step": 0.0, "control_init": "zeros"}):
        fits = [
            quiet_fit(
                oral(**{**federated, "random_state": seed}, **controls, step_size=0.15).set_params(
                    max_iter=200, tol=0.0
                ),
                after_dose,
                clients=sites,
            )
            for seed in range(3)
        ]
        gaps = [2 * (best.log_likelihood_ - fit.log_likelihood_) for fit in fits]
        excess[bool(controls)] = np.median(gaps)
    assert excess[False] < 1e-6
    assert excess[True] > 0.1


def test_vr_fedem_reaches_the_optimum_with_minibatches(after_dose):
    sites = by_dose(after_dose)
    best = quiet_fit(oral(tol=1e-13, max_iter=500), after_dose)
    fit = oral(solver="vr_fedem", batch_size=1, participation=0.75, random_state=0)
    quiet_fit(fit.set_params(max_iter=200), after_dose, clients=sites)
    assert 2 * (best.log_likelihood_ - fit.log_likelihood_) < 0.001


def test_a_checkpoint_continues_a_run_to_the_bit(tmp_path, after_dose):
    sites, path = by_dose(after_dose), tmp_path / "run.npz"
    rough = {"omega": 1.0, "participation": 0.5, "random_state": 0, "eval_every": None}
    whole = quiet_fit(oral(max_iter=12, tol=0.0, **rough), after_dose, clients=sites)
    quiet_fit(oral(max_iter=5, tol=0.0, checkpoint=path, **rough), after_dose, clients=sites)
    again = quiet_fit(
        oral(max_iter=12, tol=0.0, **rough), after_dose, clients=sites, resume_from=path
    )
    assert_same_estimates(again, whole, 0)


# ---- what a fitted model answers


def test_predictions_are_in_the_order_of_the_rows(pooled, after_dose):
    mixed = np.random.default_rng(0).permutation(len(after_dose))
    for level in ("population", "individual"):
        straight = pooled.predict(after_dose, level=level)
        other = pooled.predict(after_dose.iloc[mixed], level=level)
        assert_allclose(other, straight[mixed], rtol=1e-6)
    values = pooled.population_parameters_
    regressors = {name: after_dose[name].to_numpy() for name in ("time", "dose")}
    assert_allclose(pooled.predict(after_dose), one_compartment_oral(values, regressors))
    own = pooled.individual_parameters(after_dose).set_index("id")
    for subject in (1, 7):
        rows = (after_dose["id"] == subject).to_numpy()
        predicted = one_compartment_oral(
            own.loc[subject].to_dict(), {name: each[rows] for name, each in regressors.items()}
        )
        assert_allclose(pooled.predict(after_dose, level="individual")[rows], predicted)


def test_a_site_alone_gets_what_it_gets_in_company(pooled, after_dose):
    sites = by_dose(after_dose)
    tables = [after_dose[sites == k] for k in range(4)]
    together = pooled.predict(tables, level="individual")
    for one, own in zip(tables, together, strict=True):
        assert_allclose(pooled.predict(one, level="individual"), own, rtol=1e-6)
    scores = [pooled.score(one) for one in tables]
    assert_allclose(pooled.score(tables), np.mean(scores), rtol=1e-12)
    assert_allclose(12 * pooled.score(after_dose), pooled.log_likelihood_, rtol=1e-12)
    assert_allclose(pooled.aic(tables), -2 * pooled.log_likelihood_ + 14)
    assert_allclose(pooled.bic(tables), -2 * pooled.log_likelihood_ + 7 * np.log(12))
    for kind in ("mode", "mean"):
        own = pooled.individual_parameters(tables, kind)
        assert [len(each) for each in own] == [3] * 4


def test_conditional_means_of_lines_are_best_linear_predictions():
    data = lines_of()
    fit = quiet_fit(lines(max_iter=5), data)
    modes, means = (fit.individual_parameters(data, kind) for kind in ("mode", "mean"))
    # The posterior of a line is normal.
    assert_allclose(modes, means, rtol=1e-8, atol=1e-8)


def test_residuals_of_simulated_data_are_standard_normal(pooled, after_dose):
    many = pd.concat([after_dose.assign(id=after_dose["id"] + 100 * k) for k in range(20)])
    drawn = many.assign(dv=pooled.simulate(many, random_state=1)[0])
    residuals = pooled.residuals(drawn)
    assert_array_equal(residuals.columns, ["population", "individual"])
    # 2400 residuals: five standard errors of mean and deviation, and 0.03 for the linearisation.
    assert abs(residuals["population"].mean()) < 5 / np.sqrt(2400) + 0.03
    assert abs(residuals["population"].std() - 1) < 5 / np.sqrt(4800) + 0.03
    # Modes follow the data: their residuals are smaller.
    assert 0.7 < residuals["individual"].std() < 1


def test_simulations_have_the_distribution_of_the_model():
    data = lines_of()
    fit = quiet_fit(lines(max_iter=10), data)
    drawn = fit.simulate(data, n_samples=4000, random_state=0)
    design = np.column_stack([np.ones(len(data)), data["time"]])
    variance = np.einsum("ij,jk,ik->i", design, fit.random_effects_cov_, design)
    deviation = np.sqrt(variance + fit.residual_["a"] ** 2)
    # Six standard errors, which one of 200 rows exceeds once in a million times.
    assert_allclose(drawn.mean(axis=0), fit.predict(data), atol=6 * deviation.max() / np.sqrt(4000))
    assert_allclose(drawn.std(axis=0) / deviation, 1, atol=6 / np.sqrt(8000))
    assert_array_equal(fit.simulate(data, 3, 7), fit.simulate(data, 3, 7))


def test_missing_responses_are_predicted_but_not_fitted(pooled, after_dose):
    holes = after_dose.copy()
    holes.loc[holes.index[::5], "dv"] = np.nan
    rest = holes.dropna()
    fit = quiet_fit(oral(max_iter=3), holes)
    assert_same_estimates(fit, quiet_fit(oral(max_iter=3), rest), 0)
    assert (fit.n_missing_, fit.n_observations_) == (24, 96)
    known = holes["dv"].notna().to_numpy()
    at_all = pooled.predict(holes, level="individual")
    assert_allclose(at_all[known], pooled.predict(rest, level="individual"), rtol=1e-6)
    assert_allclose(pooled.score(holes), pooled.score(rest), rtol=1e-10)
    assert_array_equal(np.isnan(pooled.residuals(holes)["population"]), ~known)
    unknown = after_dose.drop(columns="dv")
    assert_allclose(pooled.predict(unknown), pooled.predict(after_dose))
    # The modes of subjects without responses are those of the population.
    assert_allclose(pooled.predict(unknown, level="individual"), pooled.predict(after_dose))


def test_the_summary_has_a_row_for_each_estimate(pooled):
    summary = pooled.summary().set_index("name")
    assert list(summary.index) == list(pooled.standard_errors_)
    assert_allclose(summary["rse_percent"].iloc[:3], [19.4, 4.61, 8.38], rtol=0.06)
    omega2 = np.diagonal(pooled.random_effects_cov_)
    assert_allclose(summary["cv_percent"].iloc[:3], 100 * np.sqrt(np.exp(omega2) - 1))
    assert (summary["shrinkage_percent"].iloc[:3].between(0, 40)).all()
    assert summary["cv_percent"].iloc[3:].isna().all()


def test_the_history_has_a_column_for_each_estimate(pooled):
    history = pd.DataFrame(pooled.history_)
    assert len(history) == pooled.n_iter_ + 1
    for name, value in pooled.population_parameters_.items():
        assert history[name].iloc[-1] == value
    assert_allclose(history.loc[0, list(START)].astype(float), list(START.values()))
    assert history["residual_a"].iloc[-1] == pooled.residual_["a"]


def test_transforms_keep_parameters_in_their_bounds(after_dose):
    transform = {"ka": ("logit", 0.1, 10.0), "V": "log", "CL": "log"}
    fit = oral(transform=transform, n_nodes=7).fit(after_dose)
    assert 0.1 < fit.population_parameters_["ka"] < 10.0
    assert_allclose(list(fit.population_parameters_.values()), [1.58, 31.6, 2.75], rtol=0.05)
    assert np.isfinite(list(fit.standard_errors_.values())).all()


def test_a_fitted_model_can_be_pickled_and_cloned(pooled, after_dose):
    again = pickle.loads(pickle.dumps(pooled))
    assert_array_equal(again.predict(after_dose), pooled.predict(after_dose))
    assert not hasattr(clone(pooled), "population_parameters_")


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_searches_split_clients_or_subjects(after_dose):
    sites = by_dose(after_dose)
    grid = {"covariance_type": ["diag", "full"]}
    tables = [after_dose[sites == k] for k in range(4)]
    search = GridSearchCV(oral(max_iter=5, tol=1.0), grid, cv=2).fit(tables)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    folds = GroupKFold(3)
    search = GridSearchCV(oral(max_iter=5, tol=1.0), grid, cv=folds)
    search.fit(after_dose, groups=after_dose["id"])
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def test_large_numbers_lose_no_digits():
    data, until = lines_of(), {"tol": 1e-12, "max_iter": 3000}
    near = lines(**until).fit(data)
    far = data.assign(dv=data["dv"] + 1e6)
    fit = lines(**until).set_params(start={"level": 1e6 + 1.0, "slope": 0.5}).fit(far)
    got = fit.population_parameters_["level"] - 1e6
    # The responses have ten digits left, and EM stops where steps gain 1e-12.
    assert_allclose(got, near.population_parameters_["level"], atol=1e-5)
    assert_allclose(fit.random_effects_cov_, near.random_effects_cov_, atol=1e-5)


def test_what_was_fitted_does_not_change_with_the_parameters(pooled, after_dose):
    copy = pickle.loads(pickle.dumps(pooled))
    want = copy.predict(after_dose)
    copy.set_params(transform="identity", error="proportional", regressors=("a",), response="z")
    assert_array_equal(copy.predict(after_dose), want)


def test_callbacks_may_look_and_rounds_may_be_none(after_dose):
    fit = oral(max_iter=0).fit(after_dose)
    assert_allclose(list(fit.population_parameters_.values()), list(START.values()), rtol=1e-12)
    assert not fit.converged_
    fit_unconverged(oral(max_iter=1), after_dose)


def test_scores_are_densities():
    data = lines_of(1)
    fit = quiet_fit(lines(covariates=None, max_iter=0), data)
    one = data.iloc[:1]
    time = one["time"].to_numpy()
    design = np.column_stack([np.ones(1), time])
    variance = design @ fit.random_effects_cov_ @ design.T + fit.residual_["a"] ** 2
    want = norm(fit.predict(one), np.sqrt(variance)).logpdf(one["dv"])
    assert_allclose(fit.score(one), want.item(), rtol=1e-10)
